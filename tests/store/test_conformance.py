"""What every Store promises, held against every Store that there is.

An engine joins by a fixture of its own. The list of promises is the theory of shards/store.py.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from shards.errors import Corrupt, StoreFailed
from shards.log.chained import open_engine
from shards.log.memory import MemoryEngine, Shelf
from shards.memory import MemoryStore, write_table
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.store import Store, Table
from shards.tables import META_APPLIED, META_LEADER
from tests.support.mover import write_sst

ENGINES = ("memory", "rocks")
OF_THE_LOG = (META_APPLIED, META_LEADER)
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


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """One that takes table files: a log has rows alone."""
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


def test_what_is_shared_takes_batches_alone(store: Store, tmp_path: Path) -> None:
    if not store.is_shared:
        return
    with pytest.raises(StoreFailed):
        store.ingest(Table.MESSAGES, [tmp_path / "a"])
    with pytest.raises(StoreFailed):
        store.mark(1)


def test_who_is_shared(request: pytest.FixtureRequest, store: Store) -> None:
    assert store.is_shared == (request.node.callspec.params["store"] in REPLICATED)


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
    assert store.get(Table.MESSAGES, b"a") == b"1"
    assert store.get(Table.META, b"b") == b"2"


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
    batch = store.batch()
    batch.delete(Table.MESSAGES, b"never there")
    store.write(batch)
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
    assert store.get(Table.MESSAGES, b"a") == b"1"
    assert store.get(Table.META, b"b") == b"2"
    put(store, {b"c": b"3"})
    assert keys_of(store) == [b"a", b"c"]


# -- table files


def table_file(store: Store, path: Path, rows: dict[bytes, bytes]) -> Path:
    """Written as the engine wants it, by whoever makes such files."""
    write = write_table if isinstance(store, MemoryStore) else write_sst
    write(path, sorted(rows.items()))
    return path


def test_a_table_file_is_looked_into_and_left_alone(engine: Store, tmp_path: Path) -> None:
    file = table_file(engine, tmp_path / "file", {bytes([n]): b"v" for n in range(3, 9)})
    content = file.read_bytes()
    folder = tmp_path / "scratch"
    folder.mkdir()
    held = engine.examine(file, folder, [bytes([3]), bytes([9]), bytes([8])])
    assert held == (6, bytes([3]), bytes([8]), (bytes([9]),))
    assert file.read_bytes() == content
    assert list(folder.iterdir()) == []
    assert keys_of(engine) == []


def test_what_is_no_table_file_is_corrupt(engine: Store, tmp_path: Path) -> None:
    whole = table_file(engine, tmp_path / "file", {bytes([n]): b"v" for n in range(100)}).read_bytes()
    (tmp_path / "scratch").mkdir()
    for content in (b"", b"x" * 1_000, whole[:-1]):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(Corrupt, match="file"):
            engine.examine(tmp_path / "file", tmp_path / "scratch")
    with pytest.raises(Corrupt):
        engine.examine(tmp_path / "nothing", tmp_path / "scratch")


def test_ingested_rows_are_there_and_stay(engine: Store, tmp_path: Path) -> None:
    put(engine, {b"a": b"old", b"m": b"old"})
    batch = engine.batch()
    batch.delete_range(Table.MESSAGES, b"b", b"d")
    engine.write(batch)
    files = [
        table_file(engine, tmp_path / "one", {b"b": b"new", b"c": b"new"}),
        table_file(engine, tmp_path / "two", {b"x": b"new", b"y": b"new"}),
    ]
    engine.ingest(Table.MESSAGES, files)
    assert not any(file.exists() for file in files)
    assert keys_of(engine) == [b"a", b"b", b"c", b"m", b"x", b"y"]
    put(engine, {b"c": b"newer"})
    assert engine.get(Table.MESSAGES, b"c") == b"newer"
    engine.flush()
    engine.reopen()
    assert keys_of(engine) == [b"a", b"b", b"c", b"m", b"x", b"y"]
    assert engine.get(Table.MESSAGES, b"c") == b"newer"
    batch = engine.batch()
    batch.delete_range(Table.MESSAGES, b"b", b"y")
    engine.write(batch)
    assert keys_of(engine) == [b"a", b"y"]


def test_a_link_is_taken_and_the_file_stays(engine: Store, tmp_path: Path) -> None:
    file = table_file(engine, tmp_path / "file", {b"b": b"new"})
    content = file.read_bytes()
    for number in range(2):
        link = tmp_path / f"link{number}"
        link.hardlink_to(file)
        engine.ingest(Table.MESSAGES, [link])
        assert file.read_bytes() == content
        batch = engine.batch()
        batch.delete_range(Table.MESSAGES, b"b", b"c")
        engine.write(batch)
        assert keys_of(engine) == []


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


def test_the_rows_of_a_table_file(engine: Store, tmp_path: Path) -> None:
    rows = {n.to_bytes(2, "big"): b"v%d" % n for n in range(1_000)}
    file, folder = table_file(engine, tmp_path / "file", rows), tmp_path / "scratch"
    folder.mkdir()
    content = file.read_bytes()
    assert list(engine.rows_in(file, folder)) == sorted(rows.items())
    assert next(engine.rows_in(file, folder)) == (b"\0\0", b"v0"), "it may be left half read"
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        every = engine.rows_in(file, folder)
        found = [threads.submit(next, every).result() for _ in range(250) for threads in (one, other)]
    assert found == sorted(rows.items())[:500], "by whichever thread"
    del every
    assert file.read_bytes() == content
    assert list(folder.iterdir()) == []
    assert keys_of(engine) == []
    file.write_bytes(content[:-1])
    with pytest.raises(Corrupt, match="file"):
        list(engine.rows_in(file, folder))
