"""Where an archive of dropped slices lies, and whether its files are there as they were written.

An archive is a directory, named by a path or a `file:` URL. The program that first reads the name makes it
absolute, because the server, the job's program and its workers run in different directories:

    archive  in /srv            /srv/archive          file:///var/a%20b     /var/a b
    s3://bucket/x, C:\\x, ~/x    refused               file://host/x, a\\0b   refused

A drop is final. So the server, or the program that asks it to drop a slice, first reads the slice's files
back (`fault_in`). Writing and Parquet are Spark's (spark/archive.py).
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import msgspec

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
FILES_MAX = 10
"""Files of one slice: one a day, of at most 8 days and the rest of one."""

RelativePath = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[^\u0000-\u001f]+$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ArchivedFile(msgspec.Struct, frozen=True):
    """A file of an archive. `path`: within the archive; `sha256`: hexadecimal."""

    path: RelativePath
    rows: Count
    bytes: Count
    sha256: Sha256


def local_path(name: str) -> str:
    """The absolute path of a directory of this machine, named by a path or `file:` URL; a relative one is
    resolved in the working directory. Raises ValueError."""
    if name.startswith("~"):
        raise ValueError("must be written out: only a shell replaces ~")
    if not name or "\0" in name or name != name.strip():
        raise ValueError("must be a directory, without a space at its ends")
    if not _SCHEME.match(name):
        return os.path.abspath(name)
    scheme, host, path, *more = urlsplit(name)
    path = unquote(path)
    if scheme != "file" or host not in ("", "localhost") or any(more) or path[:1] != "/" or "\0" in path:
        raise ValueError("must be a directory or a URL such as file:///var/fasti/archive")
    return os.path.abspath(path)


def why_not_usable(folder: Path, *, is_written: bool = True) -> str:
    """Why files cannot be written below this directory, which need not exist yet; empty: they can.
    `is_written`: False if it is only read."""
    there = folder
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a directory"
    access = os.X_OK | (os.W_OK if is_written else os.R_OK)
    return "" if os.access(there, access) else f"{there} is not {'writable' if is_written else 'readable'}"


def fault_in(folder: Path, file: ArchivedFile) -> str:
    """Reads a file of the archive back. Returns what is wrong with it; empty: nothing. Blocks."""
    path = folder / file.path
    if Path(file.path).is_absolute() or ".." in path.parts:
        return f"{file.path} is not inside {folder}"
    try:
        if not path.is_file():
            return f"{path} is missing"
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != file.bytes:
                return f"{path} has {size} bytes, not {file.bytes}"
            is_same = hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return "" if is_same else f"{path} has other bytes than were written"
