"""Every kind of fault that `verify` knows, planted one by one: named, mended as far as nothing is lost by it,
clean after, and left alone by a second repair. A repair that is killed goes on when it is run again."""

import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.offline import verify
from shards import keys
from shards.errors import Corrupt, ShardsError
from shards.jobs import ABORTED, SPLIT, JobRow, PieceRow, SourceRow, job_key, job_value
from shards.recover import open_timeline, read_directory
from shards.rocks import RocksStore
from shards.store import Table
from shards.tables import META_CURSOR, META_RETAINED, shard_from, shard_value, slice_from, slice_value
from tests.server.test_repair import flushed, spoil
from tests.shards.timelines import CAPS, NOW, QUARTER, draft, group, put, sync, texts
from tests.support.soak import SOAK
from tests.support.stores import rewrite
from timeline.position import Position, before, id_position
from timeline.slices import Counts, Home, Shard, Slice

ROOT = Path(__file__).parents[2]
LAST = b"\xff" * 64
COUNT = 12

Plant = Callable[[RocksStore], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages in several slices with all that points at them; one is retained."""
    path = tmp_path_factory.mktemp("whole") / "data"
    store = RocksStore(path)
    opened = open_timeline(store, wall_ms=NOW, node=5, max_slices=50, max_structures=20, caps=CAPS)
    drafts = [
        draft(NOW + n * QUARTER // 2, str(n), key=bytes([n]) * 16 if n < 4 else b"") for n in range(COUNT)
    ]
    ids = put(opened, *drafts)
    commit = group(opened)
    commit.cancel(ids[5])
    commit.move(ids[7], NOW + 9 * QUARTER)
    place = id_position(ids[8])
    commit.row(Table.RETAINED, b"a/b", keys.place(place) + bytes(2) + drafts[8].value)
    commit.row(Table.RETAINED, keys.retained_at(place), b"a/b")
    commit.row(Table.META, META_RETAINED, b"")
    sync(opened, commit.open_batch.seal())
    store.close()
    return path


def _put(store: RocksStore, table: Table, key: bytes, value: bytes | None) -> None:
    rewrite(store, (table, key, value))
    store.flush()


def _row(store: RocksStore, table: Table, index: int = 1) -> tuple[bytes, bytes]:
    return list(store.scan(table, b"", LAST))[index]


def _miscount(store: RocksStore) -> None:
    key, value = _row(store, Table.SHARDS)
    shard = shard_from(key, value)
    shard.count += 2
    shard.live += 1
    _put(store, Table.SHARDS, key, shard_value(shard))


def _shard_row_gone(store: RocksStore) -> None:
    _put(store, Table.SHARDS, _row(store, Table.SHARDS)[0], None)


def _shard_row_cut(store: RocksStore) -> None:
    key, value = _row(store, Table.SHARDS)
    _put(store, Table.SHARDS, key, value[:20])


def _shard_without_rows(store: RocksStore) -> None:
    key, _ = _row(store, Table.SHARDS)
    for row, _ in list(store.scan(Table.MESSAGES, *keys.under(key))):
        _put(store, Table.MESSAGES, row, None)


def _orphan(store: RocksStore) -> None:
    shard = Shard(Home(NOW + 1_000 * QUARTER, 0), 3, 0)
    _put(store, Table.SHARDS, shard.prefix, shard_value(shard))


def _borrowed_gone(store: RocksStore) -> None:
    """A slice borrows the shard of one that has been cut, which has no row."""
    key, value = _row(store, Table.SLICES)
    piece, *_ = slice_from(key, value)
    (prefix,) = [k for k, _ in store.scan(Table.SHARDS, *keys.under(keys.slice_key(piece.home)))][:1]
    _put(store, Table.SLICES, key, None)
    new = Slice(piece.start_ms, piece.end_ms, piece.generation + 1)
    shard = shard_from(prefix, store.get(Table.SHARDS, prefix) or b"")
    new.borrow([shard], Counts(shard.count, shard.live, shard.bytes))
    _put(store, Table.SLICES, keys.slice_key(new.home), slice_value(new))
    _put(store, Table.SHARDS, prefix, None)


def _moved_nowhere(store: RocksStore) -> None:
    _put(store, Table.MOVED, b"\x00" * 3 + b"\x07" * 13, (NOW + 40 * QUARTER << 80 | 7).to_bytes(16, "big"))


def _dedupe_nowhere(store: RocksStore) -> None:
    _, value = _row(store, Table.DEDUPE)
    gone = (NOW + 40 * QUARTER << 80 | 7).to_bytes(16, "big")
    _put(store, Table.DEDUPE, b"k" * 16, gone + value[16:])


def _retained_nowhere(store: RocksStore) -> None:
    _put(store, Table.RETAINED, b"\xff" + b"\x01" * 12, b"no/topic")


def _retained_elsewhere(store: RocksStore) -> None:
    _put(store, Table.RETAINED, b"\xff" + b"\x02" * 12, b"a/b")


def _retained_unindexed(store: RocksStore) -> None:
    _put(store, Table.RETAINED, _row(store, Table.RETAINED)[0], None)


def _job(store: RocksStore, state: str) -> None:
    """A job on a slice, of which it has made another one, into which it has copied a shard."""
    key, value = _row(store, Table.SHARDS)
    shard = shard_from(key, value)
    piece = PieceRow(shard.home.start_ms, shard.home.start_ms + QUARTER, 0)
    child = PieceRow(piece.start_ms, piece.end_ms, 7)
    sources = [[SourceRow(piece.start_ms, 0, shard.number, 0)]]
    row = job_value(JobRow("j", SPLIT, "", state, 0, NOW, [piece], sources, 1, [child]))
    _put(store, Table.META, job_key("j"), row)
    copy = Shard(child.home, shard.number)
    for row, value in list(store.scan(Table.MESSAGES, *keys.under(key))):
        _put(store, Table.MESSAGES, copy.prefix + row[10:], value)


def _job_left(store: RocksStore) -> None:
    _job(store, ABORTED)


def _cut(table: Table) -> Plant:
    def plant(store: RocksStore) -> None:
        _put(store, table, b"half" if table is not Table.HELD else keys.place(before(NOW)), b"\xc1\x01")

    return plant


SMALL = (
    *(Table.SESSIONS, Table.CURSORS, Table.SCHEDULES, Table.HELD, Table.DISPATCHES),
    *(Table.MOVED, Table.DEDUPE, Table.RETAINED, Table.STRUCTURES),
)


def _all_cut(store: RocksStore) -> None:
    for table in SMALL:
        _cut(table)(store)


MENDED: dict[str, tuple[Plant, *tuple[str, ...]]] = {
    "counts": (_miscount, "live, has "),
    "rows without a shard row": (_shard_row_gone, "in a shard that has no row"),
    "a shard row that is cut off": (_shard_row_cut, "table shards: the row at"),
    "a shard row without rows": (_shard_without_rows, "has 0 rows"),
    "a shard of no slice": (_orphan, "of no slice, without messages"),
    "a borrowed shard without a row": (_borrowed_gone, "in a shard that has no row"),
    "moved to nowhere": (_moved_nowhere, "table moved: the row at"),
    "a key of no message": (_dedupe_nowhere, "table dedupe: the row at"),
    "retained by a topic that has none": (_retained_nowhere, "table retained: the row at"),
    "retained by a topic that has another": (_retained_elsewhere, "table retained: the row at"),
    "retained, not found by position": (_retained_unindexed, "is missing, which names the topic"),
    "copies of a job": (_job_left, "copied by a job that did not end well"),
    "half a row of each small table": (_all_cut, *(f"table {table.value}: the row at" for table in SMALL)),
}


def _all_at_once(store: RocksStore) -> None:
    """But for what takes messages away, or a slice."""
    for plant, *_ in MENDED.values():
        if plant not in (_borrowed_gone, _shard_without_rows, _shard_row_cut):
            plant(store)
    _shard_row_cut(store)


def _all(path: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    store = RocksStore(path, for_repair=True)
    try:
        return {table.value: list(store.scan(table, b"", LAST)) for table in Table}
    finally:
        store.close()


def _messages(path: Path) -> list[str]:
    store = RocksStore(path)
    try:
        return texts(open_timeline(store, wall_ms=NOW, node=5, max_slices=50, max_structures=20, caps=CAPS))
    finally:
        store.close()


def _planted(path: Path, plant: Plant) -> None:
    store = RocksStore(path)
    try:
        plant(store)
    finally:
        store.close()


def test_nothing_is_wrong_before(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before_it = _all(path)
    assert verify(path, 50, repair=False) == 0
    assert verify(path, 50, repair=True) == 0
    assert capsys.readouterr().out == "nothing wrong\n" * 2
    assert _all(path) == before_it


@pytest.mark.long
@pytest.mark.parametrize("fault", MENDED)
def test_it_is_named_and_mended(fault: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant, *said = MENDED[fault]
    texts_before = _messages(path)
    _planted(path, plant)
    damaged = _all(path)
    assert verify(path, 50, repair=False) == 1
    out = capsys.readouterr().out
    assert [text for text in said if text not in out] == []
    assert _all(path) == damaged, "looking changes nothing"
    assert verify(path, 50, repair=True) == 0
    out = capsys.readouterr().out
    assert [text for text in said if text not in out] == []
    mended = _all(path)
    assert verify(path, 50, repair=False) == 0
    assert verify(path, 50, repair=True) == 0
    assert capsys.readouterr().out == "nothing wrong\n" * 2
    assert _all(path) == mended, "a second repair changes nothing"
    if plant is not _shard_without_rows:
        assert _messages(path) == texts_before


def test_copies_of_a_job_that_is_under_way_are_its_own(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start aborts it, and deletes them."""
    _planted(path, lambda store: _job(store, "moving"))
    assert verify(path, 50, repair=False) == 0
    assert capsys.readouterr().out == "nothing wrong\n"


def test_messages_of_a_lost_slice_are_named_and_left(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _planted(path, lambda store: _put(store, Table.SLICES, _row(store, Table.SLICES)[0], None))
    for _ in range(2):
        assert verify(path, 50, repair=True) == 1
        out = capsys.readouterr().out
        assert "the row of a shard of no slice" in out
        assert "of a slice that has none" in out
        assert "cannot be repaired" in out


def test_slices_that_overlap_are_refused_by_name(path: Path) -> None:
    store = RocksStore(path)
    key, value = _row(store, Table.SLICES)
    piece, *_ = slice_from(key, value)
    piece.end_ms += QUARTER
    _put(store, Table.SLICES, key, slice_value(piece))
    store.close()
    before = _all(path)
    for repair in (False, True):
        with pytest.raises(Corrupt, match="table slices"):
            verify(path, 50, repair=repair)
    assert _all(path) == before


@pytest.mark.long
def test_pointers_among_rows_that_cannot_be_read(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They count as being there, and what else is wrong is told."""
    store = RocksStore(path)
    batch = store.batch()
    value = store.get(Table.RETAINED, b"a/b")
    assert value is not None
    for number in range(2_000):
        place = keys.place(Position(keys.place_of(value[:12]) + 1 + number))
        topic = b"t/%05d" % number
        batch.put(Table.RETAINED, topic, place + value[12:])
        batch.put(Table.RETAINED, keys.retained_at(keys.place_of(place)), topic)
    store.write(batch)
    file = flushed(store, Table.RETAINED)
    _dedupe_nowhere(store)
    store.close()
    size = file.stat().st_size
    for share in (3, 4):
        spoiled = shutil.copytree(path, path.with_name(f"{share}"))
        spoil(spoiled / file.name, size // 8 * share)
        assert verify(spoiled, 50, repair=False) == 1
        told = capsys.readouterr().out
        assert "table retained" in told
        assert "names a message that is not there" in told
        assert told.splitlines()[-1].endswith("faults")
        assert verify(spoiled, 50, repair=True) == 0
        assert verify(spoiled, 50, repair=False) == 0
        capsys.readouterr()


@pytest.mark.long
@pytest.mark.parametrize(("table", "key"), [(Table.SLICES, None), (Table.META, META_CURSOR)])
def test_what_cannot_be_mended_is_named_by_all(
    table: Table, key: bytes | None, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a row of the directory: for a start, and for a repair, which leaves all as it is."""
    row = _all(path)[table.value][1][0] if key is None else key
    _planted(path, lambda store: _put(store, table, row, (store.get(table, row) or b"")[:7]))
    damaged = _all(path)
    with pytest.raises(Corrupt, match=f"table {table.value}, key {row.hex()}"):
        _messages(path)
    assert verify(path, 50, repair=True) == 1
    assert "cannot be made again" in capsys.readouterr().out
    assert _all(path) == damaged


@pytest.mark.parametrize("plant", [_shard_row_cut, _cut(Table.STRUCTURES)])
def test_a_start_refuses_by_name_what_a_repair_mends(plant: Plant, path: Path) -> None:
    _planted(path, plant)
    with pytest.raises(Corrupt, match=r"table (shards|structures), key"):
        _messages(path)


KILLED = """
import os, signal, sys
from pathlib import Path
from server.offline import verify
from shards.rocks import RocksStore

left = int(sys.argv[2])
def counted(name):
    real = getattr(RocksStore, name)
    def call(self, *arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *arguments)
    setattr(RocksStore, name, call)
for name in ("write", "flush", "_copy", "_finish"):
    counted(name)
sys.exit(verify(Path(sys.argv[1]), 50, repair=True))
"""


@pytest.mark.process
@pytest.mark.parametrize("calls", range(40) if SOAK else (1, 5))
def test_a_repair_that_is_killed_goes_on(calls: int, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a store with every fault at once, one of them a rotten block, at one of its writes or syncs."""
    _planted(path, _all_at_once)
    _rot(path)
    command = [sys.executable, "-c", KILLED, str(path), str(calls)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (-signal.SIGKILL, 0), done
    said = ""
    try:
        verify(path, 50, repair=False)
    except ShardsError as error:
        said = str(error)
    assert not said or "run it again" in said
    assert verify(path, 50, repair=True) == 0
    capsys.readouterr()
    assert verify(path, 50, repair=False) == 0
    assert capsys.readouterr().out == "nothing wrong\n"
    store = RocksStore(path)
    directory = read_directory(store, 50)
    assert sum(piece.count for piece in directory) >= COUNT
    store.close()


def _rot(path: Path) -> None:
    """The rows of `dispatches` cannot be read."""
    store = RocksStore(path)
    _put(store, Table.DISPATCHES, keys.place(before(NOW)), bytes(8))
    family = store._families[Table.DISPATCHES]
    family.flush()
    file = path / str(max(family.live_files(), key=lambda one: str(one["name"]))["name"]).lstrip("/")
    store.close()
    raw = bytearray(file.read_bytes())
    raw[6] ^= 0xFF
    file.write_bytes(raw)
