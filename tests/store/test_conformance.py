"""What every Store promises, held against every Store that there is.

An engine joins by a fixture of its own. The list of promises is the theory of shards/store.py.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from shards.errors import StoreFailed
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.store import Store, Table
from shards.tables import META_APPLIED, META_LEADER, META_SEAL, META_TIMELINE
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf
from tests.support.stores import rewrite

ENGINES = ("memory", "rocks")
OF_THE_LOG = (META_APPLIED, META_LEADER, META_SEAL, META_TIMELINE)
REPLICATED = ("replicated memory", "replicated rocks")


def opened(engine: str, path: Path) -> Store:
    below: Store = MemoryStore() if engine.endswith("memory") else RocksStore(path)
    if engine in ENGINES:
        return below
    store = ReplicatedStore(below, open_engine(MemoryEngine(Shelf()), time, 1.0))
    store.lead("a", "http://127.0.0.1:1")
    return store


@pytest.fixture(params=(*ENGINES, *REPLICATED))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = opened(request.param, tmp_path / "db")
    yield made
    made.close()


def put(store: Store, rows: dict[bytes, bytes], table: Table = Table.MESSAGES) -> None:
    batch = store.batch()
    for key, value in rows.items():
        batch.put(table, key, value)
    store.write(batch)


def keys_of(store: Store, start: bytes = b"", end: bytes = b"\xff" * 8) -> list[bytes]:
    return [key for key, _ in store.scan(Table.MESSAGES, start, end)]


def test_what_has_a_log_takes_no_mark(request: pytest.FixtureRequest, store: Store) -> None:
    if request.node.callspec.params["store"] in REPLICATED:
        with pytest.raises(StoreFailed):
            store.mark(1)
    else:
        store.mark(1)
        assert store.marked_ms() == 1


def test_a_row_is_there_once_written(store: Store) -> None:
    assert store.get(Table.MESSAGES, b"k") is None
    put(store, {b"k": b"v"})
    assert store.get(Table.MESSAGES, b"k") == b"v"
    store.flush()
    assert store.get(Table.MESSAGES, b"k") == b"v"


def test_a_message_is_a_row_of_its_table(store: Store) -> None:
    batch = store.batch()
    batch.put_message(b"k", b"v")
    assert len(batch) == 1
    store.write(batch)
    assert store.get(Table.MESSAGES, b"k") == b"v"


def test_a_batch_says_how_large_it_is(store: Store) -> None:
    batch = store.batch()
    assert batch.size < 100
    batch.put(Table.META, b"k" * 100, b"v" * 1_000)
    batch.put_message(b"k" * 100, b"v" * 1_000)
    batch.delete(Table.META, b"k")
    assert 2_200 <= batch.size < 2_400


def test_a_batch_of_before_a_reopening_is_refused_or_written(store: Store) -> None:
    """It must not crash the process: what it was made for has been closed."""
    batch = store.batch()
    batch.put(Table.META, b"k", b"v")
    batch.put_message(b"m", b"v")
    store.reopen()
    try:
        store.write(batch)
    except StoreFailed:
        assert store.get(Table.META, b"k") is None
    else:
        assert store.get(Table.META, b"k") == b"v"


def test_an_empty_value_is_a_value(store: Store) -> None:
    put(store, {b"k": b""})
    assert store.get(Table.MESSAGES, b"k") == b""
    assert list(store.scan(Table.MESSAGES, b"", b"z")) == [(b"k", b"")]


def test_nothing_of_a_batch_is_seen_before_it_is_written(store: Store) -> None:
    batch = store.batch()
    assert len(batch) == 0
    batch.put(Table.MESSAGES, b"a", b"1")
    batch.put(Table.META, b"b", b"2")
    assert len(batch) == 2
    assert store.get(Table.MESSAGES, b"a") is None
    store.write(batch)
    assert (store.get(Table.MESSAGES, b"a"), store.get(Table.META, b"b")) == (b"1", b"2")


def test_changes_of_a_batch_apply_in_their_order(store: Store) -> None:
    put(store, {b"a": b"old", b"b": b"old", b"c": b"old"})
    batch = store.batch()
    batch.delete_range(Table.MESSAGES, b"a", b"c")
    batch.put(Table.MESSAGES, b"b", b"new")
    batch.put(Table.MESSAGES, b"d", b"new")
    batch.delete(Table.MESSAGES, b"d")
    store.write(batch)
    assert list(store.scan(Table.MESSAGES, b"", b"z")) == [(b"b", b"new"), (b"c", b"old")]


def test_tables_are_apart(store: Store) -> None:
    for table in Table:
        put(store, {b"k": table.value.encode()}, table)
    for table in Table:
        assert store.get(table, b"k") == table.value.encode()
        rows = [row for row in store.scan(table, b"", b"z") if row[0] not in OF_THE_LOG]
        assert rows == [(b"k", table.value.encode())]
    batch = store.batch()
    batch.delete_range(Table.MESSAGES, b"", b"z")
    store.write(batch)
    assert store.get(Table.MESSAGES, b"k") is None
    assert store.get(Table.META, b"k") == b"meta"


def test_a_scan_is_in_byte_order_and_half_open(store: Store) -> None:
    put(store, dict.fromkeys((b"b", b"a\x00", b"\xff", b"a", b"\x00", b"ab", b"aa"), b""))
    assert keys_of(store, b"", b"\xff\xff") == [b"\x00", b"a", b"a\x00", b"aa", b"ab", b"b", b"\xff"]
    assert keys_of(store, b"a", b"ab") == [b"a", b"a\x00", b"aa"]
    assert keys_of(store, b"a\x01", b"b") == [b"aa", b"ab"]
    assert keys_of(store, b"a", b"a") == []
    assert keys_of(store, b"c", b"\xfe") == []


def test_a_deleted_range_is_half_open(store: Store) -> None:
    put(store, {bytes([n]): b"" for n in range(10)})
    batch = store.batch()
    batch.delete_range(Table.MESSAGES, bytes([3]), bytes([7]))
    store.write(batch)
    assert keys_of(store) == [bytes([n]) for n in (0, 1, 2, 7, 8, 9)]
    assert store.get(Table.MESSAGES, bytes([3])) is None
    assert store.get(Table.MESSAGES, bytes([7])) == b""
    store.compact(Table.MESSAGES, bytes([3]), bytes([7]))
    assert keys_of(store) == [bytes([n]) for n in (0, 1, 2, 7, 8, 9)]


def test_a_deleted_row_may_be_deleted_again(store: Store) -> None:
    rewrite(store, (Table.MESSAGES, b"never there", None))
    assert keys_of(store) == []


def test_a_scan_sees_what_was_there_at_its_first_row(store: Store) -> None:
    put(store, {bytes([n]): b"old" for n in range(100)})
    rows = store.scan(Table.MESSAGES, b"", b"\xff" * 8)
    first = next(rows)
    batch = store.batch()
    batch.delete_range(Table.MESSAGES, bytes([10]), bytes([20]))
    batch.put(Table.MESSAGES, bytes([50]), b"new")
    batch.put(Table.MESSAGES, bytes([50, 1]), b"new")
    store.write(batch)
    assert [first, *rows] == [(bytes([n]), b"old") for n in range(100)]
    assert store.get(Table.MESSAGES, bytes([50])) == b"new"


def test_a_scan_may_be_left_unfinished(store: Store) -> None:
    put(store, {bytes([n]): b"" for n in range(100)})
    for _ in range(50):
        rows = store.scan(Table.MESSAGES, b"", b"\xff")
        next(rows)
        del rows
    assert len(keys_of(store)) == 100


def test_what_was_flushed_is_there_after_a_reopening(store: Store) -> None:
    put(store, {b"a": b"1"})
    put(store, {b"b": b"2"}, Table.META)
    store.flush()
    store.reopen()
    assert (store.get(Table.MESSAGES, b"a"), store.get(Table.META, b"b")) == (b"1", b"2")
    put(store, {b"c": b"3"})
    assert keys_of(store) == [b"a", b"c"]


Change = tuple[str, int, int]
changes = st.lists(
    st.tuples(st.sampled_from(("put", "delete", "range")), st.integers(0, 15), st.integers(0, 15)), max_size=6
)


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(changes, max_size=6),
    bounds=st.tuples(st.integers(0, 16), st.integers(0, 16)),
    synced=st.sets(st.integers(0, 5)),
)
def test_batches_add_up_as_in_a_dictionary(
    store: Store, batches: list[list[Change]], bounds: tuple[int, int], synced: set[int]
) -> None:
    """`synced`: after which of them there is a sync."""
    wipe = store.batch()
    wipe.delete_range(Table.MESSAGES, b"", b"\xff" * 8)
    store.write(wipe)
    model: SortedDict[bytes, bytes] = SortedDict()
    for number, steps in enumerate(batches):
        batch = store.batch()
        for kind, low, high in steps:
            if kind == "put":
                batch.put(Table.MESSAGES, bytes([low]), bytes([number]))
                model[bytes([low])] = bytes([number])
            elif kind == "delete":
                batch.delete(Table.MESSAGES, bytes([low]))
                model.pop(bytes([low]), None)
            elif low <= high:
                batch.delete_range(Table.MESSAGES, bytes([low]), bytes([high]))
                for key in list(model.irange(bytes([low]), bytes([high]), (True, False))):
                    del model[key]
        store.write(batch)
        if number in synced:
            store.flush()
    low, high = min(bounds), max(bounds)
    expected = [(k, model[k]) for k in model.irange(bytes([low]), bytes([high]), (True, False))]
    assert list(store.scan(Table.MESSAGES, bytes([low]), bytes([high]))) == expected


def test_a_check_reads_every_row_once(store: Store) -> None:
    rows = {b"k%03d" % number: b"v" * 100 for number in range(50)}
    put(store, rows)
    put(store, {b"one": b"x"}, Table.DELIVERIES)
    store.flush()
    at: bytes | None = b""
    sizes = []
    while at is not None:
        at, size = store.check(Table.MESSAGES, at, 1_000)
        sizes.append(size)
    assert sum(sizes) == 50 * 104
    assert max(sizes) < 1_000 + 104
    assert store.check(Table.DELIVERIES, b"", 1_000) == (None, 4)
    assert store.check(Table.MOVED, b"", 1_000) == (None, 0)
    assert store.damage == ""
