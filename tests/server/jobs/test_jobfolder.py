"""What a job's folder holds, read in chunks that the writer can take."""

from itertools import chain
from pathlib import Path

import pytest

from server.jobs import jobfolder
from shards.errors import Corrupt
from shards.manifest import MovedFile
from shards.memory import MemoryStore, write_table

Rows = list[tuple[bytes, bytes]]


def listed(folder: Path, name: str, content: Rows, **said: int | str) -> MovedFile:
    """A file that is linked, and what the manifest says of it."""
    (folder / "in").mkdir(exist_ok=True)
    write_table(folder / "in" / name, content)
    told = {"rows": len(content), "first": content[0][0].hex(), "last": content[-1][0].hex(), **said}
    return MovedFile(name=name, bytes=0, sha256="", slice=0, shards=[], **told)  # type: ignore[arg-type]


def test_chunks_are_bounded_in_rows_and_in_bytes(tmp_path: Path) -> None:
    small = [(bytes([1, n]), b"v") for n in range(250)]
    large = [(bytes([2, n]), bytes(600_000)) for n in range(5)]
    files = [listed(tmp_path, "a", small), listed(tmp_path, "b", large)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jobfolder, "CHUNK_ROWS", 100)
        chunks = list(jobfolder.rows(MemoryStore(), tmp_path, files))
    assert [len(chunk) for chunk in chunks] == [100, 100, 50, 2, 2, 1]
    assert list(chain(*chunks)) == small + large
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("said", [{"rows": 3}, {"rows": 1}, {"first": "0101"}, {"last": "0100"}])
def test_rows_that_are_not_those_of_the_manifest(tmp_path: Path, said: dict[str, int | str]) -> None:
    file = listed(tmp_path, "a", [(b"\1\0", b"v"), (b"\1\1", b"v")], **said)
    with pytest.raises(Corrupt, match="has changed"):
        list(jobfolder.rows(MemoryStore(), tmp_path, [file]))
