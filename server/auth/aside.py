"""Slow checks in threads: a few at a time, the answers on the loop.

argon2 and PBKDF2 let go of the interpreter while they work, so the loop goes on.
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
"""Checks at a time."""
NICE = 10
"""Lower than the loop's by so much."""
CHECK_BYTES = 20 << 20
"""What one takes."""


class Aside(Protocol):
    """Has `work` done elsewhere and calls `done` with what it gave, on the loop; None: it failed."""

    def __call__(self, work: Callable[[], bool], done: Callable[[bool | None], None]) -> None: ...


class Threads:
    """`Aside` by threads. What is not done when the server stops is never answered."""

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
        """Take no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def step_back() -> None:
    """The thread that calls it leaves the processor to the loop, where threads have priorities of their own.

    On two cores two checks at a time, each of 25 ms, made a ping wait for 128 ms. Only for work that lets go
    of the interpreter: for what holds it the loop would have to wait.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def at_once(work: Callable[[], bool], done: Callable[[bool | None], None]) -> None:
    """`Aside` without a thread or a loop: for tests and commands."""
    done(work())
