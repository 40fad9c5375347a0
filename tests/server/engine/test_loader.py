"""The loader: what is marked as loaded is in the wheel, whatever has failed on the way."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.engine.loader import Loader
from server.engine.writer import Entry, entry
from shards.errors import StoreFailed
from shards.fields import Record
from shards.record import encode
from tests.support.build import OPENED
from timeline.horizon import Horizon
from timeline.position import END, Position, before, position
from timeline.wheel import Wheel

START_MS = 1_795_248_000_000
VALUE = encode(Record(b"a", b"x" * 100))
SIZE = entry(0, VALUE)[1]


class Failing:
    """Rows, the read of which fails once after some."""

    def __init__(self, places: list[Position], fails_after: int) -> None:
        self.unreadable = SimpleNamespace(barrier=END)
        self._places = places
        self._fails_after = fails_after

    def read(self, start: Position, end: Position) -> Iterator[tuple[Position, int, bytes]]:
        for count, place in enumerate(place for place in self._places if start <= place < end):
            if count == self._fails_after:
                self._fails_after = -1
                raise StoreFailed("a read failed")
            yield place, 0, VALUE


@OPENED
def test_rows_that_are_read_once_more_after_a_failed_read_leave_none_out() -> None:
    places = [position(START_MS + 10 + n, n) for n in range(12)]
    wheel: Wheel[Entry] = Wheel(before(START_MS), max_entries=1_000, max_bytes=10 * SIZE)
    horizon = cast("Horizon", SimpleNamespace(clock_ms=START_MS))
    loader = Loader(cast("Any", Failing(places, 9)), wheel, horizon)
    with pytest.raises(StoreFailed):
        loader.step()
    while loader.is_behind and loader.step():
        pass
    missing = [place for place in places if place <= wheel.loaded and place not in dict(wheel.items())]
    assert not missing
