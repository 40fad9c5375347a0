"""The thread that waits for the disk, so that the loop does not.

It runs its tasks one after the other, and tells the loop when each ends. Between the two are only a queue and
a handle of the loop: 42 µs of processor time there and back, for each group commit. An executor, its future
and the loop's future took 77.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

Work = Callable[[], Exception | None]
"""Work for the thread; returns or raises the reason of a failure."""
Ended = Callable[[Exception | None], None]


class DiskThread:
    """Runs jobs one after another until `stop`."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[asyncio.AbstractEventLoop, Work, Ended] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def run(self, loop: asyncio.AbstractEventLoop, work: Work, ended: Ended) -> None:
        """Run `work` there, then call `ended` with its failure on the loop, if the loop still runs."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="sync", daemon=True)
            self._thread.start()
        self._jobs.put((loop, work, ended))

    def stop(self) -> None:
        """Block until all given work is done."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, work, ended = job
            failure: Exception | None
            try:
                failure = work()
            except Exception as error:
                failure = error
            except BaseException as error:  # the engine's binding raises its own faults so
                failure = RuntimeError(repr(error))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended, failure)
