"""The store in RAM can be crashed at every point at which a real one could have been."""

from pathlib import Path

import pytest

from shards.errors import StoreFailed
from shards.store import Table
from tests.support.memory_store import MemoryStore
from tests.support.stores import rewrite


def put(store: MemoryStore, key: bytes) -> None:
    rewrite(store, (Table.META, key, b""))


def keys_of(store: MemoryStore) -> list[bytes]:
    return [key for key, _ in store.scan(Table.META, b"", b"z")]


@pytest.mark.parametrize("survivors", [0, 1, 2, 5])
def test_a_crash_leaves_a_prefix(survivors: int) -> None:
    store = MemoryStore()
    put(store, b"a")
    store.flush()
    put(store, b"b")
    put(store, b"c")
    assert keys_of(store) == [b"a", b"b", b"c"]
    store.crash(survivors)
    assert keys_of(store) == [b"a", b"b", b"c"][: 1 + survivors]
    assert store.durable == len(store.log)
    put(store, b"d")
    store.crash(0)
    assert keys_of(store) == [b"a", b"b", b"c"][: 1 + survivors]


def test_it_fails_when_told_to() -> None:
    store = MemoryStore()
    put(store, b"a")
    store.fail_flushes = True
    with pytest.raises(StoreFailed):
        store.flush()
    assert store.durable == 0
    store.fail_writes = True
    with pytest.raises(StoreFailed):
        put(store, b"b")
    with pytest.raises(StoreFailed):
        store.reopen()
    assert keys_of(store) == []
    store.fail_writes, store.fail_flushes = False, False
    put(store, b"c")
    store.survivors = 1
    store.reopen()
    assert keys_of(store) == [b"c"]


def test_it_has_no_files(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        MemoryStore().checkpoint(tmp_path / "copy")
