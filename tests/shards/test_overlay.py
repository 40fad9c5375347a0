"""Layers above a store: what is read is what the store would say with all of them written into it."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.changes import Changes, decode_changes
from shards.log.errors import UnknownVersion
from shards.overlay import Layer, look, through
from shards.store import Table
from tests.support.memory_store import MemoryStore
from tests.support.soak import SOAK

Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(st.sampled_from(("put", "put", "delete", "range")), st.integers(0, 12), st.integers(0, 12)),
    max_size=8,
)
TABLES = (Table.MESSAGES, Table.META)


def changes_of(steps: Sequence[Step], number: int) -> Changes:
    made = Changes()
    for kind, low, high in steps:
        table = TABLES[high % 2]
        if kind == "put":
            made.put(table, bytes([low]), b"%d-%d" % (number, high))
        elif kind == "delete":
            made.delete(table, bytes([low]))
        else:
            made.delete_range(table, bytes([low]), bytes([high]))
    return made


def written(store: MemoryStore, changes: Changes) -> None:
    batch = store.batch()
    changes.into(batch)
    store.write(batch)


@pytest.mark.long
@settings(max_examples=1_000 if SOAK else 100, deadline=None)
@given(
    below=st.lists(steps, max_size=3),
    above=st.lists(steps, max_size=3),
    ends=st.tuples(*[st.integers(0, 13)] * 2),
)
def test_layers_say_what_the_store_would(
    below: list[list[Step]], above: list[list[Step]], ends: tuple[int, int]
) -> None:
    store, whole = MemoryStore(), MemoryStore()
    layers: tuple[Layer, ...] = ()
    for number, batch in enumerate(below):
        for one in (store, whole):
            written(one, changes_of(batch, number))
    for number, batch in enumerate(above, len(below)):
        changes = decode_changes(changes_of(batch, number).encode())
        layers = (Layer(changes), *layers)
        written(whole, changes)
    start, end = bytes([ends[0]]), bytes([ends[1]])
    for table in TABLES:
        assert list(through(layers, store, table, start, end)) == list(whole.scan(table, start, end))
        for key in (bytes([n]) for n in range(13)):
            seen = look(layers, table, key)
            found = store.get(table, key) if seen is None else seen.value
            assert found == whole.get(table, key)


def test_many_ranges_and_rows_of_one_batch() -> None:
    """A thousand sessions that end at once: no lookup goes through all of them."""
    made = Changes()
    for n in range(2_000):
        made.put(Table.RECEIVED, b"%05d/a" % n, b"")
        made.delete_range(Table.RECEIVED, b"%05d" % n, b"%05d" % (n + 1))
        made.put(Table.RECEIVED, b"%05d/b" % n, b"v")
    layer = Layer(made)
    store = MemoryStore()
    assert [key for key, _ in through((layer,), store, Table.RECEIVED, b"00010", b"00012")] == [
        b"00010/b",
        b"00011/b",
    ]
    assert look((layer,), Table.RECEIVED, b"00100/a") == (None,)


def test_a_batch_is_read_as_it_was_written() -> None:
    made = Changes()
    made.put_message(b"k", b"v")
    made.put(Table.META, b"m", b"")
    made.delete(Table.META, b"n")
    made.delete_range(Table.DEDUPE, b"a", b"c")
    again = decode_changes(made.encode())
    assert again.tables == made.tables
    assert sum(map(len, again.tables.values())) == 4


@pytest.mark.parametrize("data", [b"", b"\x80\x80", b"\xc1", b"\x93\x01\x02\x03"])
def test_what_is_no_batch_is_not_understood(data: bytes) -> None:
    with pytest.raises(UnknownVersion, match="record"):
        decode_changes(data)


def test_a_table_of_another_version_is_said() -> None:
    made = Changes()
    made.put(Table.META, b"k", b"v")
    with pytest.raises(UnknownVersion, match="another version"):
        decode_changes(made.encode().replace(b"meta", b"mets"))
