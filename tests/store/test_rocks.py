"""What can go wrong between Python and RocksDB, each case as it was met (shards/scan.py, shards/rocks.py)."""

import base64
import gc
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import ref

import pytest
from rocksdict import Options, Rdict

from shards import rocks, scan
from shards.errors import Corrupt, StoreFailed, StoreLocked
from shards.rocks import LOG_BYTES, MEMTABLE_BYTES, RocksStore
from shards.store import Table
from tests.support.stores import rewrite

ROWS = 3_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    opened = RocksStore(tmp_path / "db")
    yield opened
    opened.close()


def key_of(number: int) -> bytes:
    return number.to_bytes(22, "big")


def fill(store: RocksStore, count: int = ROWS, size: int = 100) -> None:
    batch = store.batch()
    for number in range(count):
        batch.put(Table.MESSAGES, key_of(number), number.to_bytes(4, "big") * (size // 4))
    store.write(batch)


def test_a_scan_owns_its_upper_bound(store: RocksStore) -> None:
    """The iterator keeps a pointer to the bound: were that freed, rows would go missing in silence.

    Between the rows small keys are made, which would take the place of a freed bound.
    """
    fill(store)
    store.flush()
    for is_on_disk in (False, True):
        if is_on_disk:
            store._families[Table.MESSAGES].flush()
        for number in range(20):
            rows = 0
            for _ in store.scan(Table.MESSAGES, key_of(0), key_of(ROWS - number)):
                rows += 1
                junk = [key_of(5) for _ in range(3)]
            assert (rows, len(junk)) == (ROWS - number, 3)


class Wanted:
    """Options as the binding's, that can be looked at."""

    def set_iterate_upper_bound(self, bound: bytes) -> None:
        assert bound == key_of(9)

    def fill_cache(self, wanted: bool) -> None: ...


class Looking:
    """A family, and iterators over three rows of it, that have to have their options at every step."""

    def __init__(self) -> None:
        self.left, self.asked = 3, 0
        self._options: Callable[[], Wanted | None] = lambda: None

    def iter(self, options: Wanted) -> "Looking":
        self._options = ref(options)
        return self

    def items(self, from_key: bytes, read_opt: Wanted) -> Iterator[tuple[bytes, bytes]]:
        self._options = ref(read_opt)
        del read_opt
        while self.valid():
            yield b"k", b"v"
            self.next()

    def seek(self, key: bytes) -> None: ...

    def valid(self) -> bool:
        self.look()
        return self.left > 0

    def next(self) -> None:
        self.look()
        self.left -= 1

    def key(self) -> bytes:
        return b"k"

    value = key

    def status(self) -> None:
        self.look()

    def look(self) -> None:
        self.asked += 1
        assert self._options() is not None, "what the iterator points into is gone"


@pytest.mark.parametrize("through", [scan.scan, scan.scan_at_rest])
def test_options_and_bound_live_as_long_as_their_iterator(
    through: Callable[..., Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is compiled, and a local is let go after its last use."""
    monkeypatch.setattr(scan, "ReadOptions", Wanted)
    family = Looking()
    assert len(list(through(family, b"", key_of(9), RuntimeError))) == 3
    assert family.asked > 6


@pytest.mark.long
def test_many_scans_at_once_lose_nothing(store: RocksStore) -> None:
    fill(store)
    scans = [store.scan(Table.MESSAGES, key_of(0), key_of(ROWS - number)) for number in range(50)]
    counts = [0] * len(scans)
    for step in range(ROWS):
        for index, rows in enumerate(scans):
            counts[index] += next(rows, None) is not None
        if step % 1_000 == 0:
            gc.collect()
    assert counts == [ROWS - number for number in range(50)]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_scan_at_rest_owns_its_upper_bound(tmp_path: Path, is_on_disk: bool) -> None:
    """Rows from the log or from a table file, whole or from a key between, up to any bound."""
    store = RocksStore(tmp_path / "db")
    fill(store)
    store.flush()
    if is_on_disk:
        store._families[Table.MESSAGES].flush()
    store.close()
    still = RocksStore(tmp_path / "db", read_only=True)
    for number in range(20):
        rows = []
        for key, value in still.scan(Table.MESSAGES, key_of(number), key_of(ROWS - number)):
            rows.append((key, value))
            junk = [key_of(5) for _ in range(3)]
        assert len(junk) == 3
        expected = range(number, ROWS - number)
        assert rows == [(key_of(one), one.to_bytes(4, "big") * 25) for one in expected]
    assert list(still.scan(Table.MESSAGES, key_of(ROWS), key_of(ROWS + 9))) == []
    still.close()


def with_damaged_table(tmp_path: Path, part: float = 0.5, *, read_only: bool = False) -> RocksStore:
    """A store with 30,000 rows in a table file that has one wrong byte, so far into it."""
    path = tmp_path / "db"
    store = RocksStore(path)
    fill(store, 30_000)
    store.flush()
    store._families[Table.MESSAGES].flush()
    store.close()
    largest = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    flip(largest, int(largest.stat().st_size * part))
    return RocksStore(path, read_only=read_only)


@pytest.mark.long
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("part", [0.0001, 0.3, 0.5, 0.9])
def test_a_scan_of_a_damaged_file_raises(tmp_path: Path, part: float, read_only: bool) -> None:
    """The binding's own loop over rows just ends there."""
    store = with_damaged_table(tmp_path, part, read_only=read_only)
    seen: list[bytes] = []
    with pytest.raises(Corrupt, match="messages"):
        seen.extend(key for key, _ in store.scan(Table.MESSAGES, b"", b"\xff" * 24))
    assert len(seen) < 30_000
    assert bool(seen) is (part > 0.01)
    store.close()


def test_a_read_of_a_damaged_block_raises(tmp_path: Path) -> None:
    store = with_damaged_table(tmp_path)
    damaged = 0
    for number in range(30_000):
        try:
            assert store.get(Table.MESSAGES, key_of(number)) == number.to_bytes(4, "big") * 25
        except Corrupt:
            damaged += 1
    assert 0 < damaged < 30_000
    store.close()


def test_a_directory_is_open_once(store: RocksStore) -> None:
    with pytest.raises(StoreLocked):
        RocksStore(store.path)


def copy_as_killed(store: RocksStore, tmp_path: Path) -> Path:
    """The files as a kill -9 would leave them."""
    copy = tmp_path / "killed"
    shutil.copytree(store.path, copy)
    (copy / "LOCK").unlink()
    return copy


def log_of(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda file: file.stat().st_size)


def with_many_batches(store: RocksStore) -> None:
    for number in range(500):
        rewrite(store, (Table.MESSAGES, key_of(number), b"x" * 200))
    store.flush()


def test_a_damaged_log_refuses_to_open(store: RocksStore, tmp_path: Path) -> None:
    """The engine's own default opens quietly with the rows before the damage."""
    with_many_batches(store)
    copy = copy_as_killed(store, tmp_path)
    log = log_of(copy)
    flip(log, log.stat().st_size // 2)
    with pytest.raises(Corrupt, match="killed"):
        RocksStore(copy)


def test_a_torn_log_opens_with_what_came_before(store: RocksStore, tmp_path: Path) -> None:
    with_many_batches(store)
    copy = copy_as_killed(store, tmp_path)
    log = log_of(copy)
    log.write_bytes(log.read_bytes()[:-100])
    with pytest.raises(Corrupt, match="499, 500 was synced"):
        RocksStore(copy)
    (copy / "synced").unlink()
    torn = RocksStore(copy)
    rows = [key for key, _ in torn.scan(Table.MESSAGES, b"", b"\xff" * 24)]
    assert rows == [key_of(number) for number in range(499)]
    torn.close()


def test_a_store_that_was_killed_opens(store: RocksStore, tmp_path: Path) -> None:
    with_many_batches(store)
    killed = RocksStore(copy_as_killed(store, tmp_path))
    assert sum(1 for _ in killed.scan(Table.MESSAGES, b"", b"\xff" * 24)) == 500
    killed.close()


def test_a_checkpoint_is_a_store(store: RocksStore, tmp_path: Path) -> None:
    fill(store, 100)
    store.flush()
    store.checkpoint(tmp_path / "copy")
    fill(store, 200)
    copy = RocksStore(tmp_path / "copy", read_only=True)
    assert sum(1 for _ in copy.scan(Table.MESSAGES, b"", b"\xff" * 24)) == 100
    batch = copy.batch()
    batch.put(Table.META, b"k", b"v")
    with pytest.raises(StoreFailed):
        copy.write(batch)
    copy.close()
    with pytest.raises(StoreFailed):
        store.checkpoint(tmp_path / "copy")


def test_a_compacted_range_gives_its_space_back(store: RocksStore) -> None:
    fill(store, 20_000, 400)
    store._families[Table.MESSAGES].flush()
    before = sum(file.stat().st_size for file in store.path.glob("*.sst"))
    batch = store.batch()
    batch.delete_range(Table.MESSAGES, key_of(0), key_of(20_000))
    store.write(batch)
    store.flush()
    store.compact(Table.MESSAGES, key_of(0), key_of(20_000))
    after = sum(file.stat().st_size for file in store.path.glob("*.sst"))
    assert after < before // 10


def test_who_reads_beside_a_server_is_not_told_that_something_is_missing(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is synced after it was opened is no part of it."""
    fill(store, 10)
    store.flush()
    opened = RocksStore._opened

    def overtaken(self: RocksStore, options: Options, names: set[str], *, read_only: bool) -> Rdict:
        found = opened(self, options, names, read_only=read_only)
        fill(store, 20)
        store.flush()
        store._synced.settle()
        return found

    monkeypatch.setattr(RocksStore, "_opened", overtaken)
    reading = RocksStore(store.path, read_only=True)
    assert sum(1 for _ in reading.scan(Table.MESSAGES, b"", b"\xff" * 64)) == 10
    reading.close()


def test_no_directory_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose only writable file system is the data's."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    path = tmp_path / "data"
    for count in (10, 20):
        store = RocksStore(path)
        fill(store, count)
        store.flush()
        store.close()
    assert not [file for file in path.iterdir() if file.is_dir()], "nothing is left of them"


@pytest.mark.long
def test_tables_that_hardly_grow_do_not_keep_the_log(store: RocksStore) -> None:
    """Each group writes to small tables too: the log would wait until they have filled a memtable."""
    value = bytes(64 << 10)
    for number in range(6 * MEMTABLE_BYTES // len(value)):
        batch = store.batch()
        batch.put_message(key_of(number), value)
        batch.put(Table.META, b"cursor", key_of(number))
        store.write(batch)
    store.flush()
    assert sum(log.stat().st_size for log in store.path.glob("*.log")) < LOG_BYTES + 2 * MEMTABLE_BYTES


def test_unloaded_it_has_no_log_to_read(store: RocksStore) -> None:
    """What was written is in tables then, those that hardly grow too."""
    fill(store)
    rewrite(store, (Table.META, b"cursor", b"1"))
    store.flush()
    assert sum(log.stat().st_size for log in store.path.glob("*.log")) > 100 * ROWS
    store.unload()
    assert sum(log.stat().st_size for log in store.path.glob("*.log")) == 0
    for table in (Table.MESSAGES, Table.META):
        assert store._families[table].property_int_value("rocksdb.num-entries-active-mem-table") == 0
    assert store.get(Table.META, b"cursor") == b"1"
    assert len(list(store.scan(Table.MESSAGES, key_of(0), key_of(ROWS)))) == ROWS


def test_text_shrinks_where_it_lies_long(store: RocksStore) -> None:
    """base64 of chance has six bits in each byte, and nothing that comes twice."""
    messages, taken = store._families[Table.MESSAGES], 0
    for first in (0, 1):  # two files over the same keys: one alone would be moved down as it is
        batch = store.batch()
        for number in range(first, ROWS, 2):
            value = base64.b64encode(random.Random(number).randbytes(150))
            taken += len(value)
            batch.put_message(key_of(number), value)
        store.write(batch)
        messages.flush()
    assert sum(file["size"] for file in messages.live_files()) > taken
    store.compact(Table.MESSAGES, key_of(0), key_of(ROWS))
    assert sum(file["size"] for file in messages.live_files()) < 0.85 * taken


@pytest.mark.parametrize("is_full", [True, False])
def test_reads_go_on_while_it_is_reopened(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """Whatever step of it is under way, and as often as it is tried."""
    fill(store, 10)
    store.flush()
    found: list[bytes | None] = []
    for step in ("_close", "_families_on_disk"):
        real = getattr(rocks, step)

        def looking(*given: object, real: Callable[..., object] = real) -> object:
            found.append(store.get(Table.MESSAGES, key_of(7)))
            assert len(list(store.scan(Table.MESSAGES, key_of(0), key_of(10)))) == 10
            return real(*given)

        monkeypatch.setattr(rocks, step, looking)
    monkeypatch.setattr(rocks, "ROOM_BYTES", 1 << 62 if is_full else 0)
    for _ in range(2):
        if is_full:
            with pytest.raises(StoreFailed, match="No space left on device"):
                store.reopen()
            with pytest.raises(StoreFailed, match="takes no writes now"):
                store.checkpoint(store.path / "copy")
        else:
            store.reopen()
            fill(store, 10)
    assert found
    assert set(found) == {(7).to_bytes(4, "big") * 25}


def test_the_binding_s_own_words_are_not_told(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def borrowed(_: object) -> None:
        raise RuntimeError("Already mutably borrowed")

    monkeypatch.setattr(rocks, "Checkpoint", borrowed)
    with pytest.raises(StoreFailed, match=r"checkpoint into .*/copy: the store is being reopened$"):
        store.checkpoint(tmp_path / "copy")
    store._db.close()
    with pytest.raises(StoreFailed, match=r"sync of .*: the store is being reopened$"):
        store.flush()


def test_what_the_engine_says_has_a_bound(store: RocksStore) -> None:
    """LOG grows while the process runs: four files of it, of a mebibyte each, are all that there is."""
    (options,) = store.path.glob("OPTIONS-*")
    told = dict(line.strip().split("=", 1) for line in options.read_text().splitlines() if "=" in line)
    assert told["max_log_file_size"] == str(1 << 20)
    assert told["keep_log_file_num"] == "4"


def test_a_damaged_log_is_named_with_what_to_do(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db")
    fill(store)
    store.flush()
    shutil.copytree(store.path, tmp_path / "copy")
    store.close()
    (log,) = (tmp_path / "copy").glob("*.log")
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    for read_only in (True, False):
        with pytest.raises(Corrupt, match=f"^{log}: Corruption: .*restore a backup"):
            RocksStore(tmp_path / "copy", read_only=read_only)
