"""What a job hands back is taken if it is right; each thing that can be wrong with it is named."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shards.jobs import PieceRow, SourceRow
from shards.manifest import (
    NUMBER_MAX,
    Fault,
    MovedFile,
    Share,
    child_shards,
    files_faults,
    manifest_faults,
    prefix_of,
)
from shards.memory import MemoryStore, write_table
from timeline.position import Position, position
from timeline.slices import Home

START, MIDDLE, END = 1_000, 2_000, 3_000
CHILDREN = [PieceRow(START, MIDDLE, 1), PieceRow(MIDDLE, END, 1)]
SOURCES = [SourceRow(START, 0, number, number * 7) for number in (0, 3)]
ROWS = {0: 4, 3: 2}


def place(at_ms: int, seq: int) -> str:
    return f"{position(at_ms, seq):024x}"


def file(name: str, start_ms: int, *shares: Share) -> MovedFile:
    """A file that is as it says."""
    child = next(child for child in CHILDREN if child.start_ms == start_ms)
    first, last = shares[0], shares[-1]
    return MovedFile(
        name,
        sum(share.rows for share in shares),
        500,
        "00" * 32,
        prefix_of(child, first.shard).hex() + first.first,
        prefix_of(child, last.shard).hex() + last.last,
        start_ms,
        list(shares),
    )


ONE = file("one", START, Share(0, 2, 1, 60, place(START, 1), place(MIDDLE - 1, 2)))
TWO = file("two", START, Share(3, 1, 1, 30, place(START, 5), place(START, 5)))
THREE = file(
    "three",
    MIDDLE,
    Share(0, 2, 2, 60, place(MIDDLE, 3), place(END - 1, 4)),
    Share(3, 1, 0, 30, place(MIDDLE, 6), place(MIDDLE, 6)),
)
GOOD = [ONE, TWO, THREE]


def faults(files: Sequence[MovedFile]) -> list[Fault]:
    return manifest_faults(files, CHILDREN, SOURCES, ROWS)


def checks(files: Sequence[MovedFile]) -> list[tuple[str, str]]:
    """Which file does not pass which check."""
    return [(fault.file, fault.check) for fault in faults(files)]


def with_shares(of: MovedFile, **changes: Any) -> MovedFile:
    """With its first share changed."""
    first, *rest = of.shards
    return msgspec.structs.replace(of, shards=[msgspec.structs.replace(first, **changes), *rest])


def test_a_manifest_that_is_right_has_no_faults() -> None:
    assert faults(GOOD) == []
    assert faults(GOOD[::-1]) == [], "in any order"


def test_a_job_of_no_rows_hands_back_no_files() -> None:
    assert manifest_faults([], CHILDREN, SOURCES, {0: 0, 3: 0}) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "../one", "a\0b"])
def test_names_are_plain(name: str) -> None:
    assert checks([msgspec.structs.replace(ONE, name=name), TWO, THREE]) == [(name, "name")]


def test_names_differ() -> None:
    assert checks([ONE, msgspec.structs.replace(TWO, name="one"), THREE]) == [("one", "name")]


@pytest.mark.parametrize("start_ms", [0, START + 1, END])
def test_each_file_is_of_a_child(start_ms: int) -> None:
    assert checks([ONE, TWO, msgspec.structs.replace(THREE, slice=start_ms)]) == [("three", "slice")]


@pytest.mark.parametrize(
    "change",
    [
        lambda shares: [],
        lambda shares: [shares[0], shares[0]],
        lambda shares: shares[::-1],
        lambda shares: [msgspec.structs.replace(shares[0], shard=1), shares[1]],
    ],
    ids=["none", "twice", "falling", "no source"],
)
def test_shards_are_sources_in_rising_order(change: Callable[[list[Share]], list[Share]]) -> None:
    assert checks([ONE, TWO, msgspec.structs.replace(THREE, shards=change(THREE.shards))]) == [
        ("three", "shards")
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"live": -1},
        {"live": 3},
        {"rows": 0, "live": 0},
        {"bytes": 1},
        {"bytes": NUMBER_MAX + 1},
    ],
)
def test_numbers_of_a_shard_fit_together(changes: dict[str, int]) -> None:
    assert checks([with_shares(ONE, **changes), TWO, THREE]) == [("one", "shards")]


def test_the_largest_numbers_are_taken() -> None:
    assert checks([with_shares(ONE, bytes=NUMBER_MAX, live=2), TWO, THREE]) == []
    assert checks([with_shares(ONE, bytes=2, live=0), TWO, THREE]) == []


def test_a_files_rows_are_those_of_its_shards() -> None:
    assert checks([msgspec.structs.replace(ONE, rows=3), TWO, THREE]) == [("one", "rows")]


@pytest.mark.parametrize("text", ["", "00", "0" * 25, "g" * 24, "A" * 24, "0x" + "0" * 22])
@pytest.mark.parametrize("end", ["first", "last"])
def test_places_are_24_hex_digits(text: str, end: str) -> None:
    assert checks([with_shares(ONE, **{end: text}), TWO, THREE]) == [("one", "first")]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (place(START - 1, 9), place(START, 9)),
        (place(START, 1), place(MIDDLE, 0)),
        (place(START, 2), place(START, 1)),
    ],
    ids=["before", "behind", "backwards"],
)
def test_places_lie_in_the_child(first: str, last: str) -> None:
    one = file("one", START, msgspec.structs.replace(ONE.shards[0], first=first, last=last))
    assert checks([one, TWO, THREE]) == [("one", "range")]


@pytest.mark.parametrize("end", ["first", "last"])
def test_keys_are_those_of_the_shards(end: str) -> None:
    other = msgspec.structs.replace(THREE, **{end: getattr(ONE, end)})
    assert checks([ONE, TWO, other]) == [("three", "range")]


def test_files_of_a_child_do_not_overlap() -> None:
    inside = file("inside", START, Share(0, 1, 1, 30, place(START, 2), place(START, 2)))
    one = file("one", START, msgspec.structs.replace(ONE.shards[0], rows=1))
    assert checks([one, inside, TWO, THREE]) == [("inside", "overlap")]
    same_key = file("again", START, Share(0, 1, 1, 30, place(MIDDLE - 1, 2), place(MIDDLE - 1, 2)))
    assert checks([same_key, one, TWO, THREE]) == [("again", "overlap")]


def test_rows_add_up_to_what_is_stored() -> None:
    assert checks([ONE, TWO]) == [("", "rows"), ("", "rows")]
    (fault,) = faults([TWO, THREE])
    assert fault == Fault("", "rows", "shard 0: 2 rows in all files, 4 are stored")


def test_each_file_that_is_wrong_is_named() -> None:
    bad = [msgspec.structs.replace(one, rows=99) for one in GOOD]
    assert checks(bad) == [("one", "rows"), ("two", "rows"), ("three", "rows")]


# -- the files


class Folder:
    """One good file on a disk, and what the manifest says of it."""

    def __init__(self, path: Path) -> None:
        self.out, self.scratch = path / "out", path / "scratch"
        self.out.mkdir()
        self.scratch.mkdir()
        prefix = prefix_of(CHILDREN[0], 0)
        self.rows = [(prefix + position(START, seq).to_bytes(12, "big"), b"value") for seq in (1, 2, 3)]
        self.write(self.rows)

    def write(self, rows: list[tuple[bytes, bytes]]) -> None:
        """The file, and a manifest that tells of it."""
        path = self.out / "one"
        write_table(path, rows)
        share = Share(0, len(rows), len(rows), 99, rows[0][0][10:].hex(), rows[-1][0][10:].hex())
        self.told = self.measured(file("one", START, share))

    def measured(self, of: MovedFile) -> MovedFile:
        """With the size and hash that the file has."""
        content = (self.out / "one").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        return msgspec.structs.replace(of, bytes=len(content), sha256=digest)

    def check(self, of: MovedFile) -> str:
        """The check that it does not pass, or nothing."""
        found = files_faults(MemoryStore(), [of], self.out, self.scratch)
        assert len(found) <= 1
        return found[0].check if found else ""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_file_that_is_right_passes(folder: Folder) -> None:
    assert folder.check(folder.told) == ""


def test_a_file_has_to_be_there_and_be_one(folder: Folder, tmp_path: Path) -> None:
    assert folder.check(msgspec.structs.replace(folder.told, name="two")) == "file"
    (folder.out / "folder").mkdir()
    assert folder.check(msgspec.structs.replace(folder.told, name="folder")) == "file"
    (folder.out / "link").symlink_to(folder.out / "one")
    assert folder.check(msgspec.structs.replace(folder.told, name="link")) == "file"


def test_size_and_hash(folder: Folder) -> None:
    assert folder.check(msgspec.structs.replace(folder.told, bytes=folder.told.bytes + 1)) == "bytes"
    assert folder.check(msgspec.structs.replace(folder.told, sha256="00" * 32)) == "sha256"


def test_a_file_that_the_engine_does_not_read(folder: Folder) -> None:
    (folder.out / "one").write_bytes(b"no table")
    assert folder.check(folder.measured(folder.told)) == "table"


def test_the_file_holds_what_is_told_of_it(folder: Folder) -> None:
    told = folder.told
    write_table(folder.out / "one", folder.rows[:2])
    assert folder.check(folder.measured(told)) == "rows"
    write_table(folder.out / "one", [folder.rows[0], folder.rows[1], (folder.rows[2][0] + b"\0", b"value")])
    assert folder.check(folder.measured(told)) == "range"


def test_the_first_and_last_row_of_each_shard_are_looked_for(folder: Folder) -> None:
    """First and last key of the file are right, the bounds of a shard between them are not."""
    other = prefix_of(CHILDREN[0], 3)
    rows = [*folder.rows, (other + position(START, 9).to_bytes(12, "big"), b"value")]
    write_table(folder.out / "one", rows)
    shares = [
        Share(0, 3, 3, 90, place(START, 1), place(START, 4)),
        Share(3, 1, 1, 30, place(START, 9), place(START, 9)),
    ]
    assert folder.check(folder.measured(file("one", START, *shares))) == "shards"
    shares[0] = msgspec.structs.replace(shares[0], last=place(START, 3))
    assert folder.check(folder.measured(file("one", START, *shares))) == ""


def test_nobody_waits_for_the_rest(folder: Folder) -> None:
    wrong = msgspec.structs.replace(folder.told, name="two")
    turns = iter([False, True])
    found = files_faults(
        MemoryStore(), [wrong, wrong, wrong], folder.out, folder.scratch, lambda: next(turns)
    )
    assert [fault.check for fault in found] == ["file"]


# -- what becomes of it


def test_a_child_gets_its_shards_from_all_its_files() -> None:
    more = file("more", START, Share(0, 3, 2, 90, place(START, 7), place(START + 5, 8)))
    shards = child_shards([ONE, THREE, more, TWO], CHILDREN[0], {0: 0, 3: 21})
    assert [(s.number, s.structure, s.count, s.live, s.bytes) for s in shards] == [
        (0, 0, 5, 3, 150),
        (3, 21, 1, 1, 30),
    ]
    assert {shard.home for shard in shards} == {Home(START, 1)}
    assert (shards[0].first, shards[0].last) == (position(START, 1), position(MIDDLE - 1, 2))
    assert shards[1].first == shards[1].last == Position(int(place(START, 5), 16))
    assert child_shards([ONE, TWO], CHILDREN[1], {0: 0}) == []


def test_a_childs_prefix_is_its_home_and_the_number() -> None:
    assert prefix_of(PieceRow(START, MIDDLE, 2), 3) == START.to_bytes(6, "big") + b"\0\2\0\3"
