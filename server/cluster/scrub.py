"""The scrub: each node reads its tables whole, once in `cluster.scrub_every` (shards/scrub.py).

The pace follows from the size: a pass takes about that time, in steps of a few milliseconds. A restart goes
on with the pass; for that a file in the data directory notes, once a minute, how far it has come:

    scrubbed    {"began_ms", "scrubbed_ms", "table", "key", "bytes", "last_bytes"}

A pass that meets damage ends. What follows from it is in damage.py.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import msgspec

from shards.errors import Corrupt, ShardsError
from shards.replicated import ReplicatedStore
from shards.scrub import Walk

log = logging.getLogger(__name__)

NAME = "scrubbed"
LOOK_S = 1.0
"""Maximum pause between two looks for work."""
REST_S = 0.01
"""Minimum pause between two steps."""
NOTE_S = 60.0
RATIO = 4
"""Bytes of rows for a byte of files, before the first pass has counted them."""
RATE_MIN = 64 << 10
"""Minimum pace, bytes of rows a second."""


class Note(msgspec.Struct):
    """How far the scrub has come. Times: UTC ms; 0: never. `table`: -1 between passes."""

    began_ms: int = 0
    scrubbed_ms: int = 0
    """When a pass over all rows ended that found nothing."""
    table: int = -1
    key: bytes = b""
    bytes: int = 0
    """Bytes of rows read in this pass."""
    last_bytes: int = 0
    """And in the last whole one."""


class Scrub:
    """Reads the store that is open, as long as it runs."""

    def __init__(
        self,
        data: Path,
        every_ms: int,
        opened: Callable[[], ReplicatedStore | None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._file = data / NAME
        self._every_ms = every_ms
        self._opened = opened
        self._wall_ms = wall_ms
        self._note = self._read()
        self._noted_at = monotonic()

    @property
    def scrubbed_ms(self) -> int:
        """When all rows had been read and nothing was wrong; 0: never yet."""
        return self._note.scrubbed_ms

    def has_been_copied(self) -> None:
        """All rows have just been read, as those of a copy."""
        now_ms = self._wall_ms()
        self._note = Note(began_ms=now_ms, scrubbed_ms=now_ms)
        self._write()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            store, pause_s = self._opened(), LOOK_S
            if store is not None and self._is_due:
                try:
                    pause_s = await asyncio.to_thread(self.step, store)
                except Corrupt as error:
                    log.error("scrub: damage found: %s", error)
                    self._note.table = -1
                    self._write()
                except ShardsError as error:  # it was closed meanwhile
                    log.debug("scrub: %s", error)
            await asyncio.sleep(pause_s)

    def step(self, store: ReplicatedStore) -> float:
        """Read some rows; returns the pause before the next ones, seconds. Blocks. Raises Corrupt,
        StoreFailed."""
        note, since = self._note, monotonic()
        if note.table < 0:
            note.began_ms, note.table, note.key, note.bytes = self._wall_ms(), 0, b"", 0
            store.drop_pages()
        walk = Walk(store, note.table, note.key)
        size = 0 if walk.is_over else walk.step()  # over: another version's tables
        note.table, note.key, note.bytes = walk.table, walk.key, note.bytes + size
        if walk.is_over:
            note.table, note.scrubbed_ms, note.last_bytes = -1, self._wall_ms(), note.bytes
            log.info("scrub: %d bytes of rows read, nothing is damaged", note.bytes)
        if walk.is_over or since - self._noted_at > NOTE_S:
            self._write()
        rate = max(note.last_bytes, RATIO * store.file_bytes) * 1000 / self._every_ms
        return max(REST_S, size / max(rate, RATE_MIN) - (monotonic() - since))

    @property
    def _is_due(self) -> bool:
        """Whether a pass is under way or begins, also if the clock was set back."""
        since_ms = self._wall_ms() - self._note.began_ms
        return self._note.table >= 0 or not 0 <= since_ms < self._every_ms

    def _read(self) -> Note:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Note)
        except (OSError, msgspec.DecodeError):
            return Note()

    def _write(self) -> None:
        """Not synced: without it a pass begins anew."""
        self._noted_at = monotonic()
        beside = self._file.with_suffix(".new")
        try:
            beside.write_bytes(msgspec.json.encode(self._note))
            beside.replace(self._file)
        except OSError as error:
            log.warning("scrub: its note is not written: %s", error)
