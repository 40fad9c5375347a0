"""Idle trim: after work, an idle process frees memory that it no longer needs.

After a million messages, sent in batches, the process is 39 MiB larger than before, after three million 45.
Little of it depends on pending messages: it is rows in partly filled memtables, and freed memory that the C
library keeps. So when the process has used a second of processor time, and then almost none for a second, the
engine flushes its memtables and empties its block cache, and the C library returns all free pages: 11 MiB
remain of the 39, 17 of the 45. After a replay of 100,000 messages none of 12 MiB remains. The log is empty
then, and a start after a kill has nothing to read.

Both run in a thread, without the interpreter's lock: 70 to 230 ms for the engine after a million messages, 1
to 4 ms for the C library. The rows would have been written some time anyway; work with frequent pauses makes
more small files to compact, one for each second of work. If the C library has no `malloc_trim` (musl, macOS),
only the engine's part is freed.
"""

import logging
from collections.abc import Callable
from ctypes import CDLL

from shards.errors import ShardsError
from shards.store import Store

from ..engine.workers import Workers

log = logging.getLogger(__name__)

LOOK_S = 1.0
IDLE_S = 0.05
"""Maximum processor time between two looks of an idle process, of all threads, including compactions."""
WORK_S = 1.0
"""Processor time since the last trim that makes another worthwhile."""


class IdleTrim:
    """Trims memory after work."""

    def __init__(self, store: Store, workers: Workers, used_s: Callable[[], float]) -> None:
        """`used_s`: processor time of the process, s."""
        self._store = store
        self._workers = workers
        self._used_s = used_s
        self._seen_s = self._trimmed_s = used_s()

    async def look(self) -> None:
        """Call it each LOOK_S."""
        used_s = self._used_s()
        since_s, self._seen_s = used_s - self._seen_s, used_s
        if since_s < IDLE_S and used_s - self._trimmed_s > WORK_S:
            self._trimmed_s = used_s
            await self._workers.in_thread(self._give_back)

    def _give_back(self) -> None:
        try:
            self._store.unload()
        except ShardsError as error:
            log.warning("memory: cannot be given back: %s", error)
        trim()


def trim() -> None:
    """Have the C library return free pages, if it can."""
    give_back = getattr(CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
