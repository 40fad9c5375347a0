"""Calls with a timeout, whatever the driver does; a new connection after a failed one.

A *line* is a connection and the one thread that uses it. Drivers hang: psycopg did, in partitions, with its
own timeouts set, and a name server may. So a caller waits for the line's thread, not for the driver, and
abandons both when the time is over. The socket is shut under the driver, which ends nearly every wait; the
thread closes what is left; the next call makes a new line. The thread does not keep the process from exiting.

**A slow way.** To connect takes several answers, one after the other. Who waits in vain for a connection that
is being made leaves it to the next call, for CONNECTS times as long in all. Else nobody with 0.2 s each way
could ever connect in the 0.75 s that a call has.

A driver that hangs for ever keeps its thread. There are at most STUCK such threads; at this bound no call is
made until one returns.

Handing a call to the thread and its answer back takes about 50 us, beside a millisecond and more of an
append.
"""

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar
from urllib.parse import urlsplit

from .engine import NoAnswer, Taken
from .errors import LogError

STUCK = 8
CONNECTS = 3
PROMPT = 0.8
"""Share of the time of a call that must be left once it is connected."""
TOLD = 0.9
"""Share of the remaining time passed to the driver, so that a driver that obeys it ends its call itself."""

CLOSE_S = 2.0

C = TypeVar("C")
P = ParamSpec("P")
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

    def call(
        self, work: Callable[Concatenate[C, float, P], T], timeout_s: float, *args: P.args, **named: P.kwargs
    ) -> T:
        """The result of `work(connection, seconds, ...)`. Raises NoAnswer, Taken, and any LogError that it
        raises."""
        until = monotonic() + timeout_s
        wire = self._open
        if wire is None:
            wire = self._open = self._fresh(timeout_s * CONNECTS)
        connection = self._connected(wire, timeout_s)
        left_s = until - monotonic()
        if left_s < timeout_s * PROMPT:
            raise self._no_answer(timeout_s)  # the next call has all of its time
        try:
            return wire.wait(lambda: work(connection, left_s * TOLD, *args, **named), left_s)
        except Exception as error:
            self._fail(error, timeout_s)

    def _connected(self, wire: "_Wire[C]", timeout_s: float) -> C:
        if not wire.connecting.done():
            wait_for((wire.connecting,), timeout_s)
            if not wire.connecting.done() and monotonic() < wire.until:
                raise self._no_answer(timeout_s)
        try:
            return wire.connecting.result(0)
        except Exception as error:
            self._fail(error, timeout_s)

    @property
    def connection(self) -> C | None:
        """The one that is open."""
        wire = self._open
        return None if wire is None else wire.connection

    def use(self, work: Callable[[C], T], timeout_s: float) -> T:
        """The same for work of a driver that keeps to its timeouts: in this thread, once connected."""
        wire = self._open
        connection = None if wire is None else wire.connection
        if connection is None:
            connection = self.call(lambda connected, _left_s: connected, timeout_s)
        try:
            return work(connection)
        except Exception as error:
            self._fail(error, timeout_s)

    def _fail(self, error: Exception, timeout_s: float) -> NoReturn:
        """A call has failed. Whatever a driver raises: the call's outcome is unknown."""
        if isinstance(error, Taken):
            raise error
        self._abandon()
        if isinstance(error, TimeoutError):
            raise self._no_answer(timeout_s) from None
        if isinstance(error, LogError | NoAnswer):
            raise error
        raise NoAnswer(f"{type(error).__name__}: {error}") from error

    def _no_answer(self, timeout_s: float) -> NoAnswer:
        return NoAnswer(f"no answer of {self._place} within {timeout_s:.1f} s")

    def close(self) -> None:
        """Return when the connection is closed, or its close has timed out, or it is connecting still."""
        wire = self._open
        self._abandon()
        if wire is not None and wire.connecting.done():
            wire.join(CLOSE_S)

    def _fresh(self, connect_s: float) -> "_Wire[C]":
        self._left = [wire for wire in self._left if wire.is_alive()]
        if len(self._left) >= STUCK:
            raise NoAnswer(f"{len(self._left)} calls to the engine hang")
        return _Wire(lambda: self._connect(connect_s * TOLD), self._close, self._abort, connect_s)

    def _abandon(self) -> None:
        if self._open is not None:
            self._open.abandon()
            self._left.append(self._open)
            self._open = None


class _Wire(Generic[C]):
    """One thread with its connection, from the beginning to `abandon`."""

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], None],
        abort: Callable[[C], None],
        connect_s: float,
    ) -> None:
        self._connect = connect
        self._close = close
        self._abort = abort
        self.connection: C | None = None
        self.connecting: Future[C] = Future()
        self.until = monotonic() + connect_s
        """By then it must be connected."""
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._is_busy = False
        self._thread = Thread(target=self._run, name="fasti-log", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

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
        try:
            connection = self.connection = self._connect()
        except BaseException as error:  # raised in the caller, if one still waits
            self.connecting.set_exception(error)
            return
        self.connecting.set_result(connection)
        while (call := self._calls.get()) is not None:
            work, answer = call
            self._is_busy = True
            try:
                answer.set_result(work())
            except BaseException as error:  # as above
                answer.set_exception(error)
            self._is_busy = False
        self._close(connection)
