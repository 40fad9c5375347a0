"""A note of what has been synced, beside the database: a log or MANIFEST that is shorter than noted is
damaged.

An engine cannot tell a log torn by a kill from one that lost its end, or all of itself, afterwards: it opens
with what is left. So a sync notes the number of the last change that it covers, and the length of the
engine's MANIFEST (also synced by then: here, when it has grown). A start that finds less refuses.

Opening uses up the engine's logs, so missing files could not be restored afterwards. So the log written last
is noted too. If it has changed, which is also so when its rows have gone into tables since, the start checks
before it opens the engine.

The note is written in place and not synced: it is never ahead of what is durable, and after a power cut only
older, which claims less. It is written at most every NOTE_S, so it lacks the last moments before a kill; a
heartbeat follows within a second, and a close notes everything. For files that the engine has finished (a log
followed by another) the engine itself keeps such notes in its MANIFEST, if configured (rocks.py).

    "synced"    twice, in sectors of their own:
                change number (8) · number of the MANIFEST (8) · its bytes (8) · number of the log (8) ·
                its bytes (8) · CRC-32 of these (4)
"""

import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .errors import Corrupt
from .sectors import sealed, sync_path, unsealed

NOTE_S = 0.1
_NOTE = struct.Struct(">QQQQQ")


class Note(NamedTuple):
    """What is at least there. `manifest`, `log`: their numbers; 0: no note. The log may be gone."""

    change: int = 0
    manifest: int = 0
    manifest_bytes: int = 0
    log: int = 0
    log_bytes: int = 0


class Synced:
    """The note of one data directory, and its writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "synced"
        self._manifest = (0, 0)
        """Number and bytes of the MANIFEST at its last sync here."""
        self._change = self._noted = 0
        self._next = 0.0

    def read(self) -> Note:
        """The last note; an empty one if there is none that can be read."""
        try:
            raw = self._path.read_bytes()
        except OSError:
            return Note()
        return max((Note(*_NOTE.unpack(found)) for found in unsealed(raw, _NOTE.size)), default=Note())

    def check_manifest(self, noted: Note) -> None:
        """Before the engine opens: raise Corrupt if the MANIFEST is shorter than noted."""
        with suppress(OSError, ValueError):
            path = self._folder / (self._folder / "CURRENT").read_text().strip()
            size = path.stat().st_size
            if _number(path) == noted.manifest and size < noted.manifest_bytes:
                raise Corrupt(
                    f"{path}: {size} bytes, of {noted.manifest_bytes} that were synced: it is cut off"
                )

    def is_doubtful(self) -> bool:
        """Before the engine opens: whether the noted log is cut off, or gone without a later one."""
        noted = self.read()
        with suppress(OSError):
            logs = self._logs()
            if noted.log not in logs:
                return noted.log > max(logs, default=0)
            return (self._folder / logs[noted.log]).stat().st_size < noted.log_bytes
        return False

    def check(self, noted: Note, change: int) -> None:
        """The engine is open, up to `change`: raise Corrupt if more had been synced before."""
        if change < noted.change:
            raise Corrupt(
                f"{self._folder}: what was synced is not all there: the log ends at change {change}, "
                f"{noted.change} was synced. A *.log file is cut off or gone: restore a backup. "
                "`verify --repair` accepts what is left"
            )

    def note(self, change: int) -> None:
        """Note that all changes up to this one are durable. Blocks; ignores failures."""
        self._change = change
        now = time.monotonic()
        if now >= self._next:
            self._next = now + NOTE_S
            self.settle()

    def settle(self) -> None:
        """Write the note now, if it is due."""
        if self._change == self._noted:
            return
        with suppress(OSError, ValueError):
            self._sync_manifest()
            sector = sealed(_NOTE.pack(self._change, *self._manifest, *self._last_log()))
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(file, sector + sector, 0)
            finally:
                os.close(file)
            self._noted = self._change

    def _sync_manifest(self) -> None:
        path = self._folder / (self._folder / "CURRENT").read_text().strip()
        found = _number(path), path.stat().st_size
        if found != self._manifest:
            sync_path(path)
            self._manifest = found

    def _last_log(self) -> tuple[int, int]:
        """Number and bytes of the log being written."""
        logs = self._logs()
        number = max(logs, default=0)
        return number, (self._folder / logs[number]).stat().st_size if number else 0

    def _logs(self) -> dict[int, str]:
        """The engine's logs, by number."""
        names = [name for name in os.listdir(self._folder) if name.endswith(".log")]
        return {int(name[:-4]): name for name in names if name[:-4].isdecimal()}


def _number(manifest: Path) -> int:
    return int(manifest.name.removeprefix("MANIFEST-"))
