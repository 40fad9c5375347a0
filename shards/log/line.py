"""Calls that are waited for only so long, whatever the driver does; and a fresh connection after one that
failed.

A *line* is a connection and the one thread that speaks over it. Drivers hang: of nats-py and psycopg both
it was seen, in partitions, with their own timeouts set. So whoever calls does not wait for the driver but
for the line's thread, and when the time is over leaves both to themselves: the socket is cut under the
driver's feet, which ends nearly every wait, the thread closes what is left, and the next call makes a new
line. The thread does not keep the process from ending.

A driver that hangs for good keeps its thread. Of these there are at most STUCK; with so many no call is
made until one comes back.

Handing a call to the thread and its answer back takes about 50 us, beside a millisecond and more of an
append.
"""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from .engine import NoAnswer, Taken
from .errors import LogError

STUCK = 8
TOLD = 0.9
"""Of the time there is, what a driver is told: one that keeps to it ends its call by itself."""

CLOSE_S = 2.0

C = TypeVar("C")
T = TypeVar("T")


class Line(Generic[C]):
    """Calls over a connection to `url` that `connect(seconds)` makes, in a thread of its own.

    `close` ends a connection, in that thread; `cut` is called from another while a call hangs in it.
    """

    def __init__(
        self, url: str, connect: Callable[[float], C], close: Callable[[C], None], cut: Callable[[C], None]
    ) -> None:
        self._place = urlsplit(url).netloc.rpartition("@")[2]  # whose password nobody reads in a log
        self._connect = connect
        self._close = close
        self._cut = cut
        self._open: _Wire[C] | None = None
        self._left: list[_Wire[C]] = []

    def call(self, work: Callable[[C, float], T], timeout_s: float) -> T:
        """What `work(connection, seconds)` gives. Raises NoAnswer, Taken, and any LogError that it raises."""
        wire = self._open
        if wire is None:
            wire = self._open = self._fresh()
        told_s = timeout_s * TOLD
        try:
            return wire.wait(lambda: work(wire.connected(told_s), told_s), timeout_s)
        except Taken:
            raise
        except TimeoutError:
            self._leave()
            raise NoAnswer(f"no answer of {self._place} within {timeout_s:.1f} s") from None
        except (LogError, NoAnswer):
            self._leave()
            raise
        except Exception as error:  # whatever a driver raises: what became of the call is not known
            self._leave()
            raise NoAnswer(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Returns when the connection is closed, or does not care to be."""
        wire = self._open
        self._leave()
        if wire is not None:
            wire.join(CLOSE_S)

    def _fresh(self) -> "_Wire[C]":
        self._left = [wire for wire in self._left if wire.is_alive()]
        if len(self._left) >= STUCK:
            raise NoAnswer(f"{len(self._left)} calls to the engine hang")
        return _Wire(self._connect, self._close, self._cut)

    def _leave(self) -> None:
        if self._open is not None:
            self._open.leave()
            self._left.append(self._open)
            self._open = None


class _Wire(Generic[C]):
    """One thread with its connection, from the first call to `leave`."""

    def __init__(
        self, connect: Callable[[float], C], close: Callable[[C], None], cut: Callable[[C], None]
    ) -> None:
        self._connect = connect
        self._close = close
        self._cut = cut
        self._connection: C | None = None
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._is_busy = False
        self._thread = Thread(target=self._run, name="fasti-log", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def connected(self, timeout_s: float) -> C:
        """In the thread: the connection, made if it is not yet."""
        if self._connection is None:
            self._connection = self._connect(timeout_s)
        return self._connection

    def wait(self, work: Callable[[], T], timeout_s: float) -> T:
        """Have it done in the thread. Raises what it raises; TimeoutError."""
        answer: Future[T] = Future()
        self._calls.put((work, answer))
        return answer.result(timeout_s)

    def leave(self) -> None:
        """Have the thread close the connection and end, as soon as it can."""
        self._calls.put(None)
        if self._is_busy and self._connection is not None:
            self._cut(self._connection)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            work, answer = call
            self._is_busy = True
            try:
                answer.set_result(work())
            except BaseException as error:  # it is raised where it is waited for, or by nobody
                answer.set_exception(error)
            self._is_busy = False
        if self._connection is not None:
            self._close(self._connection)
