"""Offloads slow checks to threads: a few at a time; answers come on the loop.

argon2 and PBKDF2 release the interpreter while they work, so the loop continues.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

THREADS = 2
"""Maximum concurrent checks."""
NICE = 10
"""How much lower than the loop's the threads' priority is."""


class Offload(Protocol):
    """Runs `work` elsewhere and calls `done` with its result, on the loop; None: it failed."""

    def __call__(self, work: Callable[[], bool], done: Callable[[bool | None], None]) -> None: ...


class Threads:
    """`Offload` by threads. Work not done when the server stops is never answered."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "keys", step_back)

    def __call__(self, work: Callable[[], bool], done: Callable[[bool | None], None]) -> None:
        loop = asyncio.get_running_loop()

        def ended(future: Future[bool]) -> None:
            if future.cancelled() or loop.is_closed():
                return
            answer = None if future.exception() is not None else future.result()
            loop.call_soon_threadsafe(done, answer)

        self._pool.submit(work).add_done_callback(ended)

    def stop(self) -> None:
        """Take no more work."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def step_back() -> None:
    """Lower the priority of the calling thread below the loop's, where threads have their own priorities.

    On two cores two checks at a time, each of 25 ms, made a ping wait for 128 ms. Use it only for work that
    releases the interpreter. Otherwise the loop would wait for a thread that gets no processor time.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def at_once(work: Callable[[], bool], done: Callable[[bool | None], None]) -> None:
    """`Offload` without threads or a loop: for tests and commands."""
    done(work())
