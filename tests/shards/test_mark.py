"""The bound of dispatch that can be written when nothing else can."""

import resource
import zlib
from pathlib import Path

import pytest

from shards.errors import Corrupt, StoreFailed
from shards.mark import Mark


@pytest.fixture
def mark(tmp_path: Path) -> Mark:
    made = Mark(tmp_path / "bound")
    made.prepare()
    return made


def test_it_keeps_what_was_written_last(mark: Mark) -> None:
    assert mark.read() == 0
    for ms in (1, 1_800_000_000_000):
        mark.write(ms)
        mark.prepare()
        assert Mark(mark.path).read() == ms


def test_without_a_file_there_is_none(tmp_path: Path) -> None:
    mark = Mark(tmp_path / "bound")
    assert mark.read() == 0
    with pytest.raises(StoreFailed, match="bound"):
        mark.write(5)


def test_it_takes_no_room(mark: Mark) -> None:
    size, blocks = mark.path.stat().st_size, mark.path.stat().st_blocks
    mark.write(1_800_000_000_000)
    assert (mark.path.stat().st_size, mark.path.stat().st_blocks) == (size, blocks)


@pytest.mark.parametrize("at", [0, 7, 9, 4_096, 4_103, 4_105])
def test_one_rotten_copy_leaves_the_other(mark: Mark, at: int) -> None:
    mark.write(5_000)
    raw = bytearray(mark.path.read_bytes())
    raw[at] ^= 0x40
    mark.path.write_bytes(raw)
    assert mark.read() == 5_000


@pytest.mark.parametrize("left", [0, 5, 11])
def test_two_rotten_copies_are_refused_by_name(mark: Mark, left: int) -> None:
    mark.write(5_000)
    mark.path.write_bytes(mark.path.read_bytes()[:left])
    with pytest.raises(Corrupt, match=str(mark.path)):
        mark.read()


def test_a_torn_write_leaves_one_of_the_two(mark: Mark) -> None:
    mark.write(5_000)
    before = mark.path.read_bytes()
    mark.write(9_000)
    after = mark.path.read_bytes()
    for cut in range(0, len(after), 4_096):
        mark.path.write_bytes(after[:cut] + before[cut:])
        assert mark.read() in (5_000, 9_000)


def test_a_write_that_fails_says_where(mark: Mark) -> None:
    """Here, by a limit on the size of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StoreFailed, match="bound"):
            mark.write(7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_each_copy_lies_in_a_sector_of_its_own(mark: Mark) -> None:
    """As it is on disk: other versions read it."""
    mark.prepare()
    mark.write(0x0102030405)
    raw = mark.path.read_bytes()
    copy = (0x0102030405).to_bytes(8, "big") + zlib.crc32((0x0102030405).to_bytes(8, "big")).to_bytes(
        4, "big"
    )
    assert raw == (copy + bytes(4_096 - 12)) * 2
    mark.path.write_bytes(bytes([255]) * 4_096 + raw[4_096:])
    assert mark.read() == 0x0102030405


def test_what_cannot_be_made_or_read_says_where(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="missing"):
        Mark(tmp_path / "missing" / "mark").prepare()
    with pytest.raises(StoreFailed, match=tmp_path.name):
        Mark(tmp_path).read()


def test_it_is_on_disk_when_it_has_been_written(mark: Mark, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all its bytes, and its name before that."""
    synced: list[tuple[str, int]] = []

    def note(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        synced.append((path.name, path.stat().st_size if path.is_file() else 0))

    monkeypatch.setattr("shards.mark.os.fdatasync", note)
    monkeypatch.setattr("shards.mark.os.fsync", note)
    mark.path.unlink(missing_ok=True)
    mark.prepare()
    mark.write(7)
    folder = mark.path.parent.name
    assert synced == [(mark.path.with_suffix(".new").name, 8_192), (folder, 0), (mark.path.name, 8_192)]


def test_of_two_copies_the_later_counts(mark: Mark) -> None:
    mark.prepare()
    for numbers in ((5, 9), (9, 5)):
        halves = []
        for number in numbers:
            mark.write(number)
            halves.append(mark.path.read_bytes()[:4_096])
        mark.path.write_bytes(b"".join(halves))
        assert mark.read() == 9
