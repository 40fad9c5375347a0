"""Calls with a timeout, whatever the driver does; a new connection after a failed one.

A *line* is a connection and the one thread that uses it. Drivers hang: psycopg did, in partitions, with its
own timeouts set, and a name server may. So a caller waits for the line's thread, not for the driver, and
abandons both when the time is over. The socket is shut under the driver, which ends nearly every wait; the
thread closes what is left; the next call makes a new line. The thread does not keep the process from exiting.

A driver that hangs for ever keeps its thread. There are at most STUCK such threads; at this bound no call is
made until one returns.

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
"""Share of the remaining time passed to the driver, so that a driver that obeys it ends its call itself."""

CLOSE_S = 2.0

C = TypeVar("C")
T = TypeVar("T")


class Line(Generic[C]):
    """Calls over a connection to `url` that `connect(seconds)` makes, in a thread of its own.

    `close` closes a connection, in that thread; `abort` is called from another while a call hangs in it.
    """

    def __init__(
        self, url: str, connect: Callable[[float], C], close: Callable[[C], None], abort: Callable[[C], None]
    ) -> None:
        self._place = urlsplit(url).netloc.rpartition("@")[2]  # without the password: this is logged
        self._connect = connect
        self._close = close
        self._abort = abort
        self._open: _Wire[C] | None = None
        self._left: list[_Wire[C]] = []

    def call(self, work: Callable[[C, float], T], timeout_s: float) -> T:
        """The result of `work(connection, seconds)`. Raises NoAnswer, Taken, and any LogError that it
        raises."""
        wire = self._open
        if wire is None:
            wire = self._open = self._fresh()
        told_s = timeout_s * TOLD
        return self._judged(
            lambda: wire.wait(lambda: work(wire.connected(told_s), told_s), timeout_s), timeout_s
        )

    @property
    def connection(self) -> C | None:
        """The one that is open."""
        wire = self._open
        return None if wire is None else wire.connection

    def use(self, work: Callable[[C], T], timeout_s: float) -> T:
        """The same for work of a driver that keeps to its timeouts: in this thread, once connected."""
        connection = self.connection
        if connection is None:
            connection = self.call(lambda connected, _left_s: connected, timeout_s)
        return self._judged(lambda: work(connection), timeout_s)

    def _judged(self, run: Callable[[], T], timeout_s: float) -> T:
        try:
            return run()
        except Taken:
            raise
        except TimeoutError:
            self._abandon()
            raise NoAnswer(f"no answer of {self._place} within {timeout_s:.1f} s") from None
        except (LogError, NoAnswer):
            self._abandon()
            raise
        except Exception as error:  # whatever a driver raises: the call's outcome is unknown
            self._abandon()
            raise NoAnswer(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Return when the connection is closed, or its close has timed out."""
        wire = self._open
        self._abandon()
        if wire is not None:
            wire.join(CLOSE_S)

    def _fresh(self) -> "_Wire[C]":
        self._left = [wire for wire in self._left if wire.is_alive()]
        if len(self._left) >= STUCK:
            raise NoAnswer(f"{len(self._left)} calls to the engine hang")
        return _Wire(self._connect, self._close, self._abort)

    def _abandon(self) -> None:
        if self._open is not None:
            self._open.abandon()
            self._left.append(self._open)
            self._open = None


class _Wire(Generic[C]):
    """One thread with its connection, from the first call to `abandon`."""

    def __init__(
        self, connect: Callable[[float], C], close: Callable[[C], None], abort: Callable[[C], None]
    ) -> None:
        self._connect = connect
        self._close = close
        self._abort = abort
        self.connection: C | None = None
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._is_busy = False
        self._thread = Thread(target=self._run, name="fasti-log", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def connected(self, timeout_s: float) -> C:
        """In the thread: the connection, made on first use."""
        if self.connection is None:
            self.connection = self._connect(timeout_s)
        return self.connection

    def wait(self, work: Callable[[], T], timeout_s: float) -> T:
        """Run `work` in the thread. Raises what it raises; TimeoutError."""
        answer: Future[T] = Future()
        self._calls.put((work, answer))
        return answer.result(timeout_s)

    def abandon(self) -> None:
        """Have the thread close the connection and end as soon as it can."""
        self._calls.put(None)
        if self._is_busy and self.connection is not None:
            self._abort(self.connection)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            work, answer = call
            self._is_busy = True
            try:
                answer.set_result(work())
            except BaseException as error:  # raised in the caller, if one still waits
                answer.set_exception(error)
            self._is_busy = False
        if self.connection is not None:
            self._close(self.connection)
