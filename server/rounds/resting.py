"""When the process has worked and comes to rest, it gives back the memory that the work has left behind.

After a million messages, sent in batches, 39 MiB more are resident than before, after three million 45.
Little of it follows what is pending. It is rows that have filled a part of a memtable, and what has been
freed and the C library keeps for what comes next. So when the process has used a second of processor time
and then next to none for a second, what the engine has in memory goes into tables, its cache of blocks is
emptied, and the C library gives back each page that is free: 11 MiB are left of the 39, 17 of the 45. Of a
replay of 100,000 nothing is left, of 12 MiB. With that the log is empty, and a start after a kill has nothing
to read.

Both are done in a thread, without the interpreter's lock: 70 to 230 ms of the one after a million messages,
1 to 4 ms of the other. The rows would have been written some time; with work that pauses again and again
there are more small files to compact, one for each second of work. Where the C library has no `malloc_trim`
(musl, macOS), only the engine's part is given back.
"""

import logging
from collections.abc import Callable
from ctypes import CDLL

from shards.errors import ShardsError
from shards.store import Store

from ..jobs.workers import Workers

log = logging.getLogger(__name__)

LOOK_S = 1.0
REST_S = 0.05
"""Processor time between two looks, of all threads, compactions too: less is rest."""
WORK_S = 1.0
"""Processor time since the last rest that is worth another."""


class Rest:
    """Has memory given back after work."""

    def __init__(self, store: Store, workers: Workers, used_s: Callable[[], float]) -> None:
        """`used_s`: processor time of the process, s."""
        self._store = store
        self._workers = workers
        self._used_s = used_s
        self._seen_s = self._rested_s = used_s()

    async def look(self) -> None:
        """To be called each LOOK_S."""
        used_s = self._used_s()
        since_s, self._seen_s = used_s - self._seen_s, used_s
        if since_s < REST_S and used_s - self._rested_s > WORK_S:
            self._rested_s = used_s
            await self._workers.in_thread(self._give_back)

    def _give_back(self) -> None:
        try:
            self._store.unload()
        except ShardsError as error:
            log.warning("memory: cannot be given back: %s", error)
        trim()


def trim() -> None:
    """Have the C library give back what is free; where it cannot, nothing happens."""
    give_back = getattr(CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
