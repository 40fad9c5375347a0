"""A time on disk that can be written even on a full disk: the bound of dispatch.

The file is created at its full size before it is needed, and overwritten in place, so it takes no room. It
holds its number twice, each copy with a checksum and in its own sector: if one is torn or rotten the other
remains. If both are bad, reading raises Corrupt with the file's name: a bound that is too low would let a
cancel win against a message that has been sent.
"""

import os
from pathlib import Path

from .errors import Corrupt, StoreFailed
from .sectors import sealed, sync_path, unsealed

_MS_BYTES = 8


class Mark:
    """A growing number in a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Create the file, if it is missing. Raises StoreFailed."""
        if self.path.exists():
            return
        new = self.path.with_suffix(".new")
        try:
            _write(new, 0, "wb")
            new.rename(self.path)
            sync_path(self.path.parent)
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error

    def read(self) -> int:
        """The number written last; 0 if there is no file. Raises Corrupt, StoreFailed."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error
        found = [int.from_bytes(ms, "big") for ms in unsealed(raw, _MS_BYTES)]
        if not found:
            raise Corrupt(
                f"{self.path}: how far dispatch went on a full disk cannot be read; without the file the "
                "server starts, and may let cancels win against what it sent, if the clock was set back since"
            )
        return max(found)

    def write(self, ms: int) -> None:
        """Write the number; durable on return. Blocks; raises StoreFailed."""
        try:
            _write(self.path, ms, "r+b")
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error


def _write(path: Path, ms: int, mode: str) -> None:
    sector = sealed(ms.to_bytes(_MS_BYTES, "big"))
    with path.open(mode, buffering=0) as file:
        file.write(sector)
        file.write(sector)
        os.fdatasync(file.fileno())
