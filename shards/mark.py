"""A time on disk that can be written when nothing else can: the bound of dispatch while the disk is full.

The file is made at its full size before it is needed and overwritten in place, so that it takes no room. It
holds its number twice, each with a checksum and in a sector of its own: one that is torn or rotten leaves the
other. Two that are neither are damage, and refused by the name of the file, for a bound that is too low would
let a cancel win against a message that has been sent.
"""

import os
import struct
import zlib
from pathlib import Path

from .errors import Corrupt, StoreFailed

_SECTOR = 4_096
_MARK = struct.Struct(">QI")


class Mark:
    """A number that only grows, in a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Make the file, if there is none. Raises StoreFailed."""
        if self.path.exists():
            return
        new = self.path.with_suffix(".new")
        try:
            _write(new, 0, "wb")
            new.rename(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error

    def read(self) -> int:
        """What was written last; 0 if there is no file. Raises Corrupt, StoreFailed."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error
        found = [ms for ms in (_value(raw[:_SECTOR]), _value(raw[_SECTOR:])) if ms is not None]
        if not found:
            raise Corrupt(
                f"{self.path}: how far dispatch went on a full disk cannot be read; without the file the "
                "server starts, and may let cancels win against what it sent, if the clock was set back since"
            )
        return max(found)

    def write(self, ms: int) -> None:
        """Durable on return; blocks. Raises StoreFailed."""
        try:
            _write(self.path, ms, "r+b")
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error


def _write(path: Path, ms: int, mode: str) -> None:
    number = ms.to_bytes(8, "big")
    sector = _MARK.pack(ms, zlib.crc32(number)).ljust(_SECTOR, b"\0")
    with path.open(mode, buffering=0) as file:
        file.write(sector)
        file.write(sector)
        os.fdatasync(file.fileno())


def _value(sector: bytes) -> int | None:
    if len(sector) < _MARK.size:
        return None
    ms, checksum = _MARK.unpack_from(sector)
    return ms if zlib.crc32(sector[:8]) == checksum else None
