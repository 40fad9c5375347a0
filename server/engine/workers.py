"""Long work off the event loop: in its own threads, not in the one that syncs.

Checkpoints, counting and compaction run here. Background tasks are waited for when the server stops.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from shards.store import Store, Table

log = logging.getLogger(__name__)

THREADS = 2

Found = TypeVar("Found")


class Workers:
    """Two threads for one store, and the background tasks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pipeline")
        self._tasks: set[asyncio.Task[None]] = set()

    async def in_thread(self, work: Callable[[], Found]) -> Found:
        """The result of `work`. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a background task; `stop` waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def compact(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """Free the space of deleted messages in these ranges of keys."""
        for start, end in ranges:
            try:
                await self.in_thread(partial(self._store.compact, Table.MESSAGES, start, end))
            except Exception as error:  # the engine's own error, while the store is being reopened
                log.warning("compaction: failed: %s", error)

    async def stop(self) -> None:
        """Wait for running work."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown()
