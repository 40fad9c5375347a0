"""A table file that is written outside of the database: what it says of itself; it is whole or not there."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shards import keys, sst
from shards.errors import Corrupt, StoreFailed
from shards.fields import Record
from shards.record import CANCELLED, decode, encode, stub
from shards.rocks import RocksStore
from shards.sst import ShardPart, SstFile, sync_directory, write_sst
from shards.store import Table
from timeline.position import position
from timeline.slices import Home, Shard

PARENT, CHILD = Home(1_000, 0), Home(1_000, 1)
Row = tuple[bytes, bytes]

LIVE = encode(Record(b"a/b", b"x" * 30, 5))
STUB = stub(decode(LIVE), CANCELLED, 7)


def rows(number: int, *seqs: int, value: bytes = LIVE) -> list[Row]:
    """Of a shard of the parent, at one instant."""
    prefix = Shard(PARENT, number).prefix
    return [(prefix + keys.place(position(1_500, seq)), value) for seq in seqs]


def under_the_child(written: list[Row], number: int) -> list[Row]:
    return [(Shard(CHILD, number).prefix + key[10:], value) for key, value in written]


def written(path: Path, *runs: tuple[int, list[Row]]) -> SstFile:
    made = write_sst(path, CHILD, runs)
    assert made is not None
    return made


def taken_in(tmp_path: Path, path: Path) -> list[Row]:
    """The rows that a database has after it has taken the file in."""
    store = RocksStore(tmp_path / "data")
    try:
        store.ingest(Table.MESSAGES, [path])
        return list(store.scan(Table.MESSAGES, b"", keys.LAST))
    finally:
        store.close()


def test_a_database_takes_it_in_under_the_childs_keys(tmp_path: Path) -> None:
    first, second = rows(0, 1, 3, 5), rows(4, 2, 4)
    made = written(tmp_path / "one.sst", (0, first), (4, second))
    assert taken_in(tmp_path, made.path) == [*under_the_child(first, 0), *under_the_child(second, 4)]


def test_it_says_what_it_holds(tmp_path: Path) -> None:
    first = [*rows(0, 1), *rows(0, 2, value=STUB), *rows(0, 3)]
    second = rows(4, 7, value=STUB)
    path = tmp_path / "one.sst"
    made = written(path, (0, first), (4, second))
    content = path.read_bytes()
    places = [keys.place(position(1_500, seq)) for seq in (1, 3, 7)]
    assert made == SstFile(
        path,
        4,
        len(content),
        hashlib.sha256(content).hexdigest(),
        Shard(CHILD, 0).prefix + places[0],
        Shard(CHILD, 4).prefix + places[2],
        (
            ShardPart(0, 3, 2, 2 * len(LIVE) + len(STUB) + 3 * 22, places[0], places[1]),
            ShardPart(4, 1, 0, len(STUB) + 22, places[2], places[2]),
        ),
    )


def test_the_engine_says_the_same(tmp_path: Path) -> None:
    made = written(tmp_path / "one.sst", (0, rows(0, 1, 2)), (1, rows(1, 3)))
    (tmp_path / "scratch").mkdir()
    store = RocksStore(tmp_path / "data")
    held = store.examine(made.path, tmp_path / "scratch", [made.first, made.last, b"x" * 22])
    store.close()
    assert (held.rows, held.first, held.last) == (made.rows, made.first, made.last)
    assert held.absent == (b"x" * 22,)


def test_a_shard_without_rows_is_no_part(tmp_path: Path) -> None:
    made = written(tmp_path / "one.sst", (0, []), (1, rows(1, 3)), (2, []))
    assert [part.shard for part in made.shards] == [1]
    assert made.first == made.last == Shard(CHILD, 1).prefix + keys.place(position(1_500, 3))


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert write_sst(tmp_path / "one.sst", CHILD, []) is None
    assert write_sst(tmp_path / "one.sst", CHILD, [(0, []), (1, [])]) is None
    assert list(tmp_path.iterdir()) == []


def test_what_has_the_name_is_whole(tmp_path: Path) -> None:
    """While rows come there is a file of another name; only then one of the name that was asked for."""
    seen: list[list[str]] = []

    def slowly() -> Iterator[Row]:
        for row in rows(0, 1, 2):
            seen.append(sorted(path.name for path in tmp_path.iterdir()))
            yield row

    assert write_sst(tmp_path / "one.sst", CHILD, [(0, slowly())]) is not None
    assert seen == [[".one.sst.tmp"]] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["one.sst"]


def test_it_is_synced_before_it_is_named_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, bool]] = []
    digest, directory = sst._synced_digest, sst.sync_directory

    def note_digest(path: Path) -> str:
        steps.append(("file", (tmp_path / "one.sst").exists()))
        return digest(path)

    def note_directory(path: Path) -> None:
        steps.append((path.name, (tmp_path / "one.sst").exists()))
        directory(path)

    monkeypatch.setattr(sst, "_synced_digest", note_digest)
    monkeypatch.setattr(sst, "sync_directory", note_directory)
    written(tmp_path / "one.sst", (0, rows(0, 1)))
    assert steps == [("file", False), (tmp_path.name, True)]


# -- failures leave nothing behind


@pytest.mark.parametrize(
    "error", [Corrupt("block checksum mismatch"), StoreFailed("closed"), OSError(5, "io")]
)
def test_rows_that_cannot_be_read(tmp_path: Path, error: Exception) -> None:
    def torn() -> Iterator[Row]:
        yield from rows(0, 1, 2)
        raise error

    expected = StoreFailed if isinstance(error, OSError) else type(error)
    with pytest.raises(expected, match=str(error.args[-1])):
        write_sst(tmp_path / "one.sst", CHILD, [(0, torn())])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "runs",
    [
        [(0, rows(0, 2, 1))],
        [(0, rows(0, 1, 1))],
        [(1, rows(1, 1)), (0, rows(0, 2))],
    ],
    ids=["falling places", "a row twice", "falling shards"],
)
def test_what_is_not_in_order_is_refused(tmp_path: Path, runs: list[tuple[int, list[Row]]]) -> None:
    with pytest.raises(StoreFailed, match=r"one\.sst"):
        write_sst(tmp_path / "one.sst", CHILD, runs)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match=r"gone.*one\.sst"):
        write_sst(tmp_path / "gone" / "one.sst", CHILD, [(0, rows(0, 1))])


def test_a_directory_to_sync_has_to_be_one(tmp_path: Path) -> None:
    sync_directory(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "file")


def test_what_makes_names_durable_is_the_sync_of_their_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(
        sst.os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink())
    )
    before = len(list(Path("/proc/self/fd").iterdir()))
    sync_directory(tmp_path)
    assert synced == [tmp_path]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
