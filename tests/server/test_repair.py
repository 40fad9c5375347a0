"""`verify --repair` on a real store with rotten table files: it never makes more damage than it found."""

import gc
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from server.offline import verify
from shards.commit import Caps
from shards.errors import Corrupt, StoreFailed
from shards.record import decode, is_stub
from shards.recover import Opened, open_timeline, stored_cursor
from shards.rocks import RocksStore
from shards.store import Table
from shards.synced import Note, Synced
from shards.tables import META_CURSOR, META_FORMAT
from tests.shards.timelines import NOW, draft, group, put, sync
from tests.support.stores import rewrite
from timeline.position import END, START, MessageId, id_position

HOUR = 3_600_000
CAPS = Caps(messages=100_000, bytes=1 << 28, pending=1_000_000, structure_above=1_000_000)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True, scope="module")
def light() -> None:
    """What other tests have left is looked through once here, and not by each `gc.collect()`."""
    gc.collect()
    gc.freeze()


def opened_at(store: RocksStore, caps: Caps = CAPS) -> Opened:
    return open_timeline(store, wall_ms=NOW, node=5, max_slices=50, max_structures=20, caps=caps)


def flushed(store: RocksStore, table: Table) -> Path:
    """The file that the table's last rows are in now."""
    family = store._families[table]
    known = {file["name"] for file in family.live_files()}
    family.flush()
    (name,) = {file["name"] for file in family.live_files()} - known
    return store.path / str(name).lstrip("/")


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def filled(path: Path, parts: Sequence[Sequence[int]]) -> tuple[dict[int, MessageId], list[Path]]:
    """Messages by number, each part in a table file of its own."""
    store, ids, files = RocksStore(path), {}, []
    opened = opened_at(store)
    for numbers in parts:
        texts = [f"{n} ".ljust(200, "x") for n in numbers]
        ids |= dict(
            zip(
                numbers,
                put(opened, *(draft(NOW + HOUR + 100 * n, t) for n, t in zip(numbers, texts, strict=True))),
                strict=True,
            )
        )
        files.append(flushed(store, Table.MESSAGES))
    store.close()
    return ids, files


def gettable(path: Path, ids: dict[int, MessageId]) -> set[int]:
    """The messages that can be read one by one."""
    store = RocksStore(path, for_repair=True)
    find, found = opened_at(store).reader.find, set()
    for number, name in ids.items():
        with suppress(Corrupt):
            assert find(name) is not None
            found.add(number)
    store.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("table", [Table.META, Table.SLICES, Table.SHARDS])
def test_the_directory_is_not_repaired(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"
    store = RocksStore(path)
    put(opened_at(store), draft(NOW + HOUR))
    for other in set(Table) - {Table.META, table}:
        store._families[other].flush()
    file = flushed(store, table)
    store.close()
    spoil(file, 6)
    for _ in range(2):
        assert verify(path, 50, repair=True) == 1
        assert f"table {table.value} cannot be made again" in capsys.readouterr().out
    store = RocksStore(path)
    with pytest.raises(Corrupt, match=table.value):
        opened_at(store)
    store.close()


@pytest.mark.parametrize("key", [META_CURSOR, META_FORMAT])
def test_a_store_with_rows_is_not_taken_for_new(key: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data"
    filled(path, [range(5)])
    store = RocksStore(path)
    rewrite(store, (Table.META, key, None))
    with pytest.raises(Corrupt, match="meta"):
        opened_at(store)
    store.close()
    if key == META_CURSOR:
        with pytest.raises(Corrupt, match="meta"):
            verify(path, 50, repair=True)


@pytest.mark.long
@pytest.mark.parametrize("parts", [[range(400)], [range(-400, 0), range(400)]])
def test_the_first_block_of_a_shard_is_rotten(
    parts: list[Sequence[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"
    parts = [[n + 36_000 * k for n in numbers] for k, numbers in enumerate(parts)]
    ids, files = filled(path, parts)
    spoil(files[-1], 100)
    fine = gettable(path, ids)
    assert verify(path, 50, repair=True) == 0
    out = capsys.readouterr().out
    assert verify(path, 50, repair=False) == 0
    store = RocksStore(path)
    opened = opened_at(store)
    found = [n for n, name in ids.items() if opened.reader.find(name) is not None]
    assert set(found) == fine
    assert 0 < len(ids) - len(found) < 100
    assert f"{len(ids) - len(found)} messages are lost" in out
    assert sum(piece.count for piece in opened.directory) == len(found)
    assert stored_cursor(store, 0).seq >= len(ids)
    store.close()


@pytest.mark.long
def test_shards_of_a_lost_structure_are_anything(tmp_path: Path) -> None:
    path = tmp_path / "data"
    caps = Caps(messages=1_000, bytes=1 << 28, pending=1_000_000, structure_above=50)
    store = RocksStore(path)
    opened = opened_at(store, caps)
    for k in range(60):
        put(opened, *(draft(NOW + HOUR, topic=f"devices/{k}-{j}/temp") for j in range(40)))
    assert 1 in {shard.structure for piece in opened.directory for shard in piece.shards.values()}
    file = flushed(store, Table.STRUCTURES)
    store.close()
    spoil(file, 6)
    assert verify(path, 50, repair=True) == 0
    assert verify(path, 50, repair=False) == 0
    store = RocksStore(path)
    opened = opened_at(store, caps)
    # The number that is free again goes to something else.
    put(opened, *(draft(NOW + HOUR, topic=f"orders/{k}/new") for k in range(3_000)))
    wanted = opened.reader.structures.overlapping(("devices/+/temp",))
    rows = opened.reader.read(START, END, wanted)
    assert sum(decode(value).topic.startswith(b"devices/") for _, _, value in rows) == 2_400
    store.close()


def scattered(path: Path) -> dict[int, MessageId]:
    """One block of a small file has rotted, and the rows of others lie in its range."""
    numbers = list(range(3_000))
    Random(1).shuffle(numbers)
    ids, files = filled(path, [numbers[:300], numbers[300:1_500], numbers[1_500:]])
    spoil(files[0], files[0].stat().st_size // 3)
    return ids


def test_rows_of_other_files_in_a_corrupt_range_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data"
    ids = scattered(path)
    fine = gettable(path, ids)
    assert 0 < len(ids) - len(fine) < 120
    store = RocksStore(path)
    opened = opened_at(store)
    # In the memtable, and in the corrupt range too.
    moved = list(fine)[:5]
    commit = group(opened)
    for number in moved:
        commit.cancel(ids[number])
    sync(opened, commit.open_batch.seal())
    for _ in range(2):
        rows = {place: value for place, _, value in opened.reader.read(START, END)}
        assert set(rows) == {id_position(ids[number]) for number in fine}
        assert {place for place, value in rows.items() if is_stub(value)} == {
            id_position(ids[number]) for number in moved
        }
    assert not (path / "beside").exists()
    (corrupt,) = opened.reader.unreadable
    low, high = sorted(place for place in rows if corrupt.first <= place <= corrupt.last)[10:40:29]
    assert [place for place, _, _ in opened.reader.read(low, high)] == sorted(
        place for place in rows if low <= place < high
    )
    store.close()


@pytest.mark.long
def test_rows_that_can_be_read_are_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / "data"
    ids = scattered(path)
    fine = gettable(path, ids)
    assert verify(path, 50, repair=True) == 0
    assert verify(path, 50, repair=False) == 0
    assert gettable(path, {number: ids[number] for number in fine}) == fine


@pytest.mark.long
@pytest.mark.parametrize("module", ["rocks", "verify"])
def test_a_table_of_which_too_much_would_go_is_left(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    ids = scattered(path)
    fine = gettable(path, ids)
    monkeypatch.setattr(f"shards.{module}.REPAIR_BYTES", 1_000)
    with pytest.raises(StoreFailed, match="rows would be lost"):
        verify(path, 50, repair=True)
    gc.collect()
    assert gettable(path, ids) == fine


@pytest.mark.long
def test_a_repair_that_was_cut_off_is_refused_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the engine, when it is closed again, meets the rotten block: it says so in its own words."""
    path, left = tmp_path / "data", tmp_path / "left"
    ids = scattered(path)
    store = RocksStore(path, for_repair=True)
    # One file more, which has the engine compact them once it is opened for anything else.
    put(opened_at(store), draft(NOW + HOUR))
    flushed(store, Table.MESSAGES)
    store.close()
    fine = gettable(path, ids)

    def killed(store: RocksStore, table: Table) -> None:
        shutil.copytree(store.path, left)
        raise StoreFailed("killed")

    with monkeypatch.context() as patch:
        patch.setattr(RocksStore, "_finish", killed)
        with pytest.raises(StoreFailed, match="killed"):
            verify(path, 50, repair=True)
    gc.collect()
    with monkeypatch.context() as patch:
        patch.setattr(Synced, "check", _not_all_there)
        for _ in range(2):
            with pytest.raises(Corrupt, match="not all there"):
                RocksStore(left)
            gc.collect()
    for _ in range(2):
        with pytest.raises(Corrupt, match="a repair was cut off; run it again"):
            RocksStore(left)
        gc.collect()
    assert verify(left, 50, repair=True) == 0
    assert gettable(left, {number: ids[number] for number in fine}) == fine


def _not_all_there(synced: Synced, noted: Note, change: int) -> None:
    raise Corrupt("what was synced is not all there")
