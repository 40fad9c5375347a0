"""Garbage collection: reads the rows of expired slices, forgets their names, and frees the space.

One task at a time, begun after an expiry, at start and by housekeeping. If the store refuses writes, the next
call continues. It reads rows in a thread, 1,000 in a step; their names go through the writer, 250 to a
request. After each request it rests several times as long as that took of the loop. So it can keep up with
the highest rate of messages with keys without a noticeable load.

In addition a slow walk goes through all of `dedupe` and `moved`, for rows that no expired message names: keys
of batches, and what is left by a damaged slice that could not be read, or by a version that wrote no notes.
It goes through the dropped deliveries of expired messages, too.
It continues at once while a quarter of what it reads has expired.
"""

import asyncio
import logging
from functools import partial

from shards.errors import Corrupt, ShardsError
from shards.garbage import Name, clear, forget, left, look, look_through
from shards.recover import Opened
from shards.store import Table

from .workers import Workers
from .writer import Ask, Busy, Writer

log = logging.getLogger(__name__)

LOOK_ROWS = 1_000
LOOK_BYTES = 4 << 20
FORGET_NAMES = 250
REST_S = 0.005


class GarbageCollector:
    """Garbage collection of one server."""

    def __init__(self, ask: Ask, writer: Writer, opened: Opened, workers: Workers) -> None:
        self._ask = ask
        self._writer = writer
        self._store = opened.store
        self._directory = opened.directory
        self._workers = workers
        self._running = asyncio.Lock()
        self._walk: dict[Table, bytes] = {Table.DEDUPE: b"", Table.MOVED: b"", Table.DELIVERIES: b""}
        self._is_stopping = False

    def stop(self) -> None:
        """Stop after the current step."""
        self._is_stopping = True

    async def sweep(self) -> None:
        """Collect everything that has expired. Waits for a running sweep."""
        async with self._running:
            try:
                while not self._is_stopping:
                    note = next(left(self._store), None)
                    if note is None:
                        break
                    await self._sweep_range(*note)
            except (ShardsError, Busy) as error:
                log.warning("retention: deletion postponed: %s", error)

    async def walk(self) -> None:
        """Walk a step through each table, and more while it finds much. Raises StoreFailed, Busy, Corrupt."""
        for table in self._walk:
            is_worth_it = True
            while is_worth_it and not self._is_stopping:
                floor = self._directory.floor
                step = partial(
                    look_through, self._store, table, self._walk[table], LOOK_ROWS, LOOK_BYTES, floor
                )
                found = await self._workers.in_thread(step)
                await self._forget(found.names)
                self._walk[table] = found.next or b""
                is_worth_it = found.next is not None and 4 * len(found.names) > found.looked

    async def _sweep_range(self, start: bytes, end: bytes) -> None:
        at: bytes | None = start
        while at is not None:
            epoch = self._directory.epoch
            step = partial(look, self._store, at, end, LOOK_ROWS, LOOK_BYTES)
            try:
                found = await self._workers.in_thread(step)
            except Corrupt as error:
                if self._writer.broken is not None or self._directory.epoch != epoch:
                    raise  # the store was closed during the read
                log.warning("retention: expired slice unreadable, its keys go in later sweeps: %s", error)
                break
            await self._forget(found.names)
            at = found.next
            if self._is_stopping and at is not None:
                return
        await self._ask(lambda commit: clear(commit, start, end))
        await self._workers.compact([(start, end)])

    async def _forget(self, names: list[Name]) -> None:
        for index in range(0, len(names), FORGET_NAMES):
            some = names[index : index + FORGET_NAMES]
            await self._ask(partial(forget, names=some), cost=len(some))
            if len(some) == FORGET_NAMES:
                await asyncio.sleep(REST_S)
