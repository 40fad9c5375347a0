"""What the tests of the log stand on: a clock that elapses by sleeping, and faults around any engine."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import TypeVar

from shards.log.engine import Engine, LogState, NoAnswer, Origin, Taken
from shards.log.errors import NoLog, Unfit

T = TypeVar("T")
AnyEngine = TypeVar("AnyEngine", bound=Engine)


TRIES = 3
"""A machine may be busy, or a server's leader not chosen yet."""


def created(engine: AnyEngine) -> AnyEngine:
    """An engine whose storage exists, if the server answers."""
    for _ in range(TRIES):
        try:
            engine.connect(5)
        except NoLog:
            _made(engine)
        except NoAnswer:
            continue
        except Unfit:
            pass  # who opens it says so
        break
    return engine


def _made(engine: Engine) -> None:
    """Also where the connection takes most of a call's time."""
    try:
        engine.make(0, Origin(), 5)
    except NoAnswer:
        engine.make(0, Origin(), 5)


class Elapsing:
    """Nobody waits: to sleep is to have slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds


class Skipping:
    """Time as it is; but who sleeps in vain, as a network is cut, has slept at once."""

    def __init__(self) -> None:
        self.networks: list[Faulty] = []
        self._skipped_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped_s

    def sleep(self, seconds: float, /) -> None:
        if any(network.is_cut or network.plan or network.is_vain for network in self.networks):
            self._skipped_s += seconds
        else:
            time.sleep(seconds)


class Lost(Enum):
    """What gets lost of one call. None of them is answered."""

    REQUEST = "request"
    ANSWER = "answer"
    LATE = "late"
    """The request is under way when the caller gives up: it arrives after the next one."""


class Faulty:
    """An engine over a bad network.

    `plan`: what becomes of the next calls, None for nothing; `is_cut`: all are lost.
    `is_vain`: nothing else will come of it, however often it is asked (Skipping).
    `is_slow`: what is late stays under way until it is told to arrive.
    `between`: called after a call that was lost, before it is tried again: what others do meanwhile.
    """

    def __init__(self, engine: Engine) -> None:
        self.plan: deque[Lost | None] = deque()
        self.is_cut = False
        self.is_vain = False
        self.is_slow = False
        self.between: Callable[[], None] = lambda: None
        self._engine = engine
        self._late: list[Callable[[], object]] = []
        self._sent: deque[Exception | None] = deque()

    @property
    def largest(self) -> int:
        return self._engine.largest

    @property
    def origin(self) -> Origin:
        return self._engine.origin

    def make(self, after: int, origin: Origin, timeout_s: float) -> None:
        self._called(lambda: self._engine.make(after, origin, timeout_s))

    def connect(self, timeout_s: float) -> None:
        self._called(lambda: self._engine.connect(timeout_s))

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        self._sent.clear()
        self._called(lambda: self._engine.put(seq, frame, timeout_s))

    def send(self, seq: int, frame: bytes, timeout_s: float) -> None:
        """As it is planned for each: what is lost is not answered, and what is late comes after it."""
        try:
            self._called(lambda: self._engine.put(seq, frame, timeout_s))
        except (NoAnswer, Taken) as error:
            self._sent.append(error)
        else:
            self._sent.append(None)

    def answer(self, timeout_s: float) -> bool:
        if not self._sent:
            raise NoAnswer("nothing was sent")
        error = self._sent.popleft()
        if error is not None:
            self._sent.clear()
            raise error
        return True

    def nudge(self) -> None:
        """Nobody waits."""

    def fetch(self, seq: int, count: int, timeout_s: float, *, is_sure: bool = True) -> Sequence[bytes]:
        return self._called(lambda: self._engine.fetch(seq, count, timeout_s, is_sure=is_sure))

    def hear(self, seq: int, timeout_s: float) -> Sequence[bytes] | None:
        return self._engine.hear(seq, timeout_s)

    def state(self, timeout_s: float) -> LogState:
        return self._called(lambda: self._engine.state(timeout_s))

    def limit(self, wanted_bytes: int, timeout_s: float) -> None:
        self._called(lambda: self._engine.limit(wanted_bytes, timeout_s))

    def confirm(self, timeout_s: float) -> None:
        self._called(lambda: self._engine.confirm(timeout_s))

    def drop(self, upto: int, timeout_s: float) -> None:
        self._called(lambda: self._engine.drop(upto, timeout_s))

    def close(self) -> None:
        self._engine.close()

    def arrive(self) -> None:
        """What was late is here; nobody waits for its answer."""
        late, self._late = self._late, []
        for call in late:
            with suppress(Taken, NoAnswer):
                call()

    def _called(self, call: Callable[[], T]) -> T:
        lost = Lost.REQUEST if self.is_cut else self.plan.popleft() if self.plan else None
        if lost is None:
            try:
                return call()
            finally:
                if not self.is_slow:
                    self.arrive()
        if lost is Lost.LATE:
            self._late.append(call)
        elif lost is Lost.ANSWER:
            call()
        between, self.between = self.between, lambda: None
        between()
        raise NoAnswer(f"planted: {lost.value}")
