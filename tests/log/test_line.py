"""A line: whatever a driver does, who calls is free by the deadline, and has a fresh connection after."""

import threading
import time
from collections.abc import Iterator

import pytest

from shards.log.engine import NoAnswer, Taken
from shards.log.errors import Unfit
from shards.log.line import CONNECTS, STUCK, TOLD, Line

pytestmark = pytest.mark.short


class Wires:
    """Connections that are counted: each is a number, and hangs until `released`, or until it is cut."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.closed: list[int] = []
        self.cut: list[int] = []
        self.released = threading.Event()
        self._has_closed = threading.Semaphore(0)
        self.line: Line[int] = Line("memory://nowhere", self._connect, self._close, self.cut.append)

    def _connect(self, _timeout_s: float) -> int:
        self.made.append(len(self.made))
        return self.made[-1]

    def _close(self, connection: int) -> None:
        self.closed.append(connection)
        self._has_closed.release()

    def wait_closed(self, count: int) -> None:
        for _ in range(count):
            assert self._has_closed.acquire(timeout=60)

    def hang(self, _connection: int, _timeout_s: float) -> None:
        self.released.wait()


@pytest.fixture
def wires() -> Iterator[Wires]:
    made = Wires()
    yield made
    made.released.set()
    made.line.close()


def number(connection: int, _timeout_s: float) -> int:
    return connection


def raising(error: Exception) -> int:
    raise error


def test_calls_go_over_one_connection(wires: Wires) -> None:
    assert [wires.line.call(number, 60) for _ in range(3)] == [0, 0, 0]
    wires.line.close()
    assert (wires.closed, wires.cut) == ([0], [])


def test_who_hangs_is_left_and_cut(wires: Wires) -> None:
    wires.line.call(number, 60)  # it is connected, so that the next call has its time
    with pytest.raises(NoAnswer, match="no answer of nowhere within 0"):
        wires.line.call(wires.hang, 0.3)
    assert wires.cut == [0]
    assert wires.line.call(number, 60) == 1
    wires.released.set()
    wires.line.close()
    wires.wait_closed(2)  # the one that hung closes its own, when it comes to it
    assert sorted(wires.closed) == [0, 1]


def test_who_connects_for_ever_is_left_too(wires: Wires) -> None:
    line: Line[None] = Line("", lambda left_s: wires.hang(0, left_s), lambda _: None, lambda _: None)
    for _ in range(CONNECTS * 2):
        with pytest.raises(NoAnswer):
            line.call(lambda _, _left_s: None, 0.05)
    assert len(line._left) == 2


def test_a_connection_may_take_longer_than_a_call(wires: Wires) -> None:
    """A call that has waited for most of its time leaves it to the next one, which has all of it."""
    told: list[float] = []

    def connect(left_s: float) -> str:
        told.append(left_s)
        assert wires.released.wait(60)
        return "connected"

    line = Line("", connect, lambda _: None, lambda _: None)
    with pytest.raises(NoAnswer, match="within 0"):
        line.call(lambda _, _left_s: None, 0.05)
    threading.Timer(0.8, wires.released.set).start()
    with pytest.raises(NoAnswer, match="within 1"):
        line.call(lambda _, _left_s: None, 1)
    assert line.call(lambda connected, _left_s: connected, 60) == "connected"
    assert told == [pytest.approx(0.05 * CONNECTS * TOLD)]
    line.close()


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("odd"), NoAnswer("refused"), Unfit("alone")])
def test_after_an_error_the_connection_is_a_fresh_one(wires: Wires, error: Exception) -> None:
    expected = type(error) if isinstance(error, NoAnswer | Unfit) else NoAnswer
    with pytest.raises(expected, match=error.args[0]):
        wires.line.call(lambda _, _left_s: raising(error), 60)
    assert wires.line.call(number, 60) == 1


def test_a_place_that_is_taken_is_an_answer(wires: Wires) -> None:
    wires.line.call(number, 60)
    with pytest.raises(Taken):
        wires.line.call(lambda _, _left_s: raising(Taken()), 60)
    assert wires.line.call(number, 60) == 0


def test_so_many_may_hang_and_no_more(wires: Wires) -> None:
    while len(wires.cut) < STUCK:  # a call that finds no time left once it is connected leaves it to the next
        with pytest.raises(NoAnswer, match="within"):
            wires.line.call(wires.hang, 0.01)
    with pytest.raises(NoAnswer, match=f"{STUCK} calls to the engine hang"):
        wires.line.call(number, 60)
    wires.released.set()
    until = time.monotonic() + 60
    while len(wires.closed) < STUCK and time.monotonic() < until:
        time.sleep(0.01)
    assert wires.line.call(number, 60) == STUCK
