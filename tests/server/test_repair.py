"""`verify --repair` on a real store with rotten table files: it never makes more damage than it found."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from server.offline import verify
from shards.commit import Caps
from shards.errors import Corrupt
from shards.recover import Opened, open_timeline, stored_cursor
from shards.rocks import RocksStore
from shards.store import Table
from shards.tables import META_CURSOR, META_FORMAT
from tests.shards.timelines import NOW, draft, put
from timeline.position import MessageId

HOUR = 3_600_000
CAPS = Caps(messages=100_000, bytes=1 << 28, pending=1_000_000, structure_above=1_000_000)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


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
    batch = store.batch()
    batch.delete(Table.META, key)
    store.write(batch)
    with pytest.raises(Corrupt, match="meta"):
        opened_at(store)
    store.close()
    if key == META_CURSOR:
        with pytest.raises(Corrupt, match="meta"):
            verify(path, 50, repair=True)


@pytest.mark.parametrize("parts", [[range(400)]])
def test_the_first_block_of_a_shard_is_rotten(
    parts: list[Sequence[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"
    parts = [[n + 36_000 * k for n in numbers] for k, numbers in enumerate(parts)]
    ids, files = filled(path, parts)
    spoil(files[-1], 100)
    assert verify(path, 50, repair=True) == 0
    out = capsys.readouterr().out
    assert verify(path, 50, repair=False) == 0
    store = RocksStore(path)
    opened = opened_at(store)
    found = [n for n, name in ids.items() if opened.reader.find(name) is not None]
    assert 0 < len(ids) - len(found) < 100
    assert f"{len(ids) - len(found)} messages are lost" in out
    assert set(parts[0]) <= set(found) or len(parts) == 1
    assert sum(piece.count for piece in opened.directory) == len(found)
    assert stored_cursor(store, 0).seq >= len(ids)
    store.close()
