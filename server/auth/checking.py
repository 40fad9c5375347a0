"""Slow checks: a queue for a few threads, in turns by network; answers come on the loop.

    waiting     network A: a1 a2 a3 a4      network B: b1
    checked     a1 b1 a2 a3 a4

So a network delays another only by its turns. Bounds: WAITING_MAX different keys, of which no network takes
the last eighth from the others (timeline/shares.py); NAME_WAITING keys of one name from one network, of which
at most one is right. The same key from the same network is checked once for all clients that send it.

argon2 and PBKDF2 release the interpreter while they work, so the loop continues.
"""

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from timeline.shares import may_take

from ..fair import FairQueue
from .backoff import FREE

THREADS = 2
"""Maximum concurrent checks."""
NICE = 10
"""How much lower than the loop's the threads' priority is."""
WAITING_MAX = 256
"""Maximum keys being checked or waiting: some 3 s of work."""
NAME_WAITING = FREE + 1

Work = Callable[[], str]
Found = Callable[[str | None], None]
"""Called on the loop: the stored hash that the key matches; empty: none; None: it could not be checked."""
Offload = Callable[[Work, Found], None]
"""Does the work elsewhere."""


@dataclass(slots=True)
class _Check:
    network: str
    name: str
    digest: bytes
    is_wanted: Callable[[], bool]
    work: Work
    found: list[Found] = field(default_factory=list)


class Checking:
    """The checks of one keyring."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._waiting: FairQueue[_Check] = FairQueue()
        self._underway: dict[tuple[str, bytes], _Check] = {}
        """Waiting and running checks by network and digest."""
        self._by_network: Counter[str] = Counter()
        self._by_name: Counter[tuple[str, str]] = Counter()
        self._count = 0
        """Running checks."""

    def joins(self, network: str, digest: bytes, found: Found) -> bool:
        """Join a running check of the same key and network, if there is one. Returns whether there is."""
        check = self._underway.get((network, digest))
        if check is not None:
            check.found.append(found)
        return check is not None

    def has_many(self, network: str, name: str) -> bool:
        """Whether NAME_WAITING keys of this name from this network wait."""
        return self._by_name[network, name] >= NAME_WAITING

    def has_room(self, network: str) -> bool:
        """Whether one more key from this network may wait."""
        mine = self._by_network[network]
        owners = len(self._by_network) + (not mine)
        return may_take(len(self._underway), WAITING_MAX, mine, owners)

    def begin(
        self,
        network: str,
        name: str,
        digest: bytes,
        is_wanted: Callable[[], bool],
        work: Work,
        found: Found,
    ) -> None:
        """Queue a check. `is_wanted` is asked at its turn; False: it counts as wrong, unchecked."""
        check = _Check(network, name, digest, is_wanted, work, [found])
        self._underway[network, digest] = check
        self._by_network[network] += 1
        self._by_name[network, name] += 1
        self._waiting.add(network, check)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._count < THREADS:
            _, check = self._waiting.take()
            if check.is_wanted():
                self._count += 1
                self._verify(check)
            else:
                self._end(check, "")

    def _verify(self, check: _Check) -> None:
        def verified(stored: str | None) -> None:
            self._count -= 1
            self._end(check, stored)
            self._go_on()

        self._offload(check.work, verified)

    def _end(self, check: _Check, stored: str | None) -> None:
        del self._underway[check.network, check.digest]
        _less(self._by_network, check.network)
        _less(self._by_name, (check.network, check.name))
        for found in check.found:
            found(stored)


def _less(counts: Counter, key: object) -> None:  # type: ignore[type-arg]
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class Threads:
    """`Offload` by threads. Work not done when the server stops is never answered."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "keys", step_back)

    def __call__(self, work: Work, done: Found) -> None:
        def ended(future: asyncio.Future[str]) -> None:
            if not future.cancelled():
                done(None if future.exception() is not None else future.result())

        asyncio.get_running_loop().run_in_executor(self._pool, work).add_done_callback(ended)

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


def at_once(work: Work, done: Found) -> None:
    """`Offload` without threads or a loop: for tests and commands."""
    done(work())
