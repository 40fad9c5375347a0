"""A second connection to the log, for its bounds, its room, and for trimming.

A log is for one thread at a time; this one has a thread of its own, so its calls delay nobody else.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from shards.log.chained import ChainedLog
from shards.log.engine import LogState
from shards.log.errors import LogError, Unfit

T = TypeVar("T")


class LogSide:
    """Opened on first use, and again after a failure."""

    def __init__(self, opened: Callable[[], ChainedLog]) -> None:
        self._opened = opened
        self._log: ChainedLog | None = None
        self.unfit = ""
        """Why the log does not keep what it acknowledges, as it was found last; empty: it does."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log")

    async def state(self) -> LogState | None:
        """First and last record, the bytes and the clock; None: the log does not answer."""
        try:
            state = await self._in_thread(lambda log: log.state())
        except LogError as error:
            self.unfit = str(error) if isinstance(error, Unfit) else self.unfit
            return None
        self.unfit = ""
        return state

    async def limit(self, wanted_bytes: int) -> str:
        """Set a bound of the log's bytes if there is none. Returns why not; empty: done."""
        return await self._fault_of(lambda log: log.limit(wanted_bytes))

    async def trim(self, upto: int) -> str:
        """Delete records up to this one. Returns why not; empty: done."""
        return await self._fault_of(lambda log: log.trim(upto))

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def _fault_of(self, work: Callable[[ChainedLog], None]) -> str:
        try:
            await self._in_thread(work)
        except LogError as error:
            return str(error)
        return ""

    async def _in_thread(self, question: Callable[[ChainedLog], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, question)

    def _ask(self, question: Callable[[ChainedLog], T]) -> T:
        try:
            if self._log is None:
                self._log = self._opened()
            return question(self._log)
        except LogError:
            self._close()
            raise

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
