"""Slow ways. One takes few bytes a second: a large group is written and read over it, and ends no term. On
another one each answer takes long: a log is begun over it."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shards.log.chained import SLOWEST, ChainedLog, open_engine
from shards.log.engine import NoAnswer, Origin
from shards.log.record import ORIGIN
from tests.support.logs import Elapsing, Faulty
from tests.support.shelf import MemoryEngine, Shelf

from .conftest import Place

DEADLINE_S = 3.0
GROUP = bytes(range(256)) * (15 << 12)
"""15 MiB: a legal batch."""


class Slow(Faulty):
    def __init__(self, shelf: Shelf, clock: Elapsing) -> None:
        super().__init__(MemoryEngine(shelf))
        self._clock = clock

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        self._pass(len(frame), timeout_s)
        super().put(seq, frame, timeout_s)

    def fetch(self, seq: int, count: int, timeout_s: float, *, is_sure: bool = True) -> Sequence[bytes]:
        frames = super().fetch(seq, count, timeout_s, is_sure=is_sure)
        self._pass(sum(map(len, frames)), timeout_s)
        return frames

    def _pass(self, size: int, timeout_s: float) -> None:
        took_s = size / SLOWEST
        self._clock.now += min(took_s, timeout_s)
        if took_s > timeout_s:
            raise NoAnswer("it takes longer")


def test_a_large_group_passes_a_slow_way() -> None:
    shelf, clock = Shelf(), Elapsing()
    log = open_engine(Slow(shelf, clock), clock, DEADLINE_S)
    epoch = log.claim(1, "a", "http://a")
    waits_s = []

    def through(put: Callable[[], None]) -> None:
        since = clock.now
        put()
        waits_s.append(clock.now - since)

    log.append(2, epoch, GROUP, through)
    assert sum(waits_s) > 14
    assert max(waits_s) < DEADLINE_S / 2, "each part proves in time that its writer leads"
    other = open_engine(Slow(shelf, clock), clock, DEADLINE_S)
    assert [data for _, _, data in other.read(1)] == [GROUP]


@pytest.mark.parametrize("engine", ["jetstream", "postgres"])
def test_a_log_is_begun_although_to_connect_takes_longer_than_a_call(
    engine: str, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(engine)
    slow: Any = place.engine()
    connect = slow._line._connect

    def slowly(left_s: float) -> object:
        time.sleep(1.2)
        return connect(left_s)

    slow._line._connect = slowly
    log = ChainedLog(slow, time, 4.0, ("",))
    log.begin(ORIGIN, Origin("12ab", "a"))
    log.close()
    assert place.open().origin == Origin("12ab", "a")
