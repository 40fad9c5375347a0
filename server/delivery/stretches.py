"""What several sessions read that are behind at about the same place: read once for all of them.

Two hundred sessions that come back, each with five hundred messages of its own to catch up on, would each
read the hundred thousand of all. So while others wait for a turn a session reads in *stretches*, runs of rows
that stay in RAM for a while. A stretch knows which of its rows have which topic: whoever comes to it asks the
router once a topic, not once a row, and is given no row that it does not want.

    after ............ end      what stands behind `after`, up to `end`: all that is in some structures

Only usual rows (shards/record.py) are kept. Behind the horizon they stay as they are until retention drops
them, and who is behind that reads from there on. Of any other row the place is kept, and each reader looks at
it anew: a retry may have been done meanwhile.

Bounded: a stretch by ROWS and STRETCH_BYTES, all of them by KEPT_MAX and MAX_BYTES; the one that nobody has
used for the longest goes.
"""

from bisect import bisect_right
from collections import OrderedDict
from itertools import islice

from shards.read import Reader
from shards.record import usual
from timeline.position import Position

ROWS = 1_000
STRETCH_BYTES = 1 << 20
KEPT_MAX = 64
MAX_BYTES = 8 << 20
ROW_BYTES = 250
"""What a row costs in RAM besides its value, with its place in the index."""

Layout = tuple[int, int, int, int]


class Stretch:
    """Rows in position order, and where each topic is among them."""

    __slots__ = ("after", "end", "layouts", "others", "places", "shards", "size", "topics", "values")

    def __init__(self, after: Position) -> None:
        self.after = self.end = after
        self.places: list[Position] = []
        self.shards: list[int] = []
        self.values: list[bytes] = []
        """Empty of one that is not usual."""
        self.layouts: list[Layout | None] = []
        self.topics: dict[bytes, list[int]] = {}
        """Numbers of the usual rows."""
        self.others: list[int] = []
        """Numbers of those that are not."""
        self.size = 0

    def add(self, place: Position, shard: int, value: bytes) -> None:
        """Take the next row."""
        number, layout = len(self.places), usual(value)
        if layout is None:
            self.others.append(number)
            value = b""
        else:
            topic = value[layout[2] : layout[3]]
            numbers = self.topics.get(topic)
            if numbers is None:
                self.topics[topic] = [number]
                self.size += ROW_BYTES + len(topic)
            else:
                numbers.append(number)
        self.places.append(place)
        self.shards.append(shard)
        self.values.append(value)
        self.layouts.append(layout)
        self.size += ROW_BYTES + len(value)

    def first_behind(self, read: Position) -> int:
        """Number of the first row behind a place."""
        return bisect_right(self.places, read)


class Stretches:
    """Those that are in RAM, by what they were read of."""

    def __init__(self, reader: Reader, *, max_bytes: int = MAX_BYTES) -> None:
        self._reader = reader
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[frozenset[int], Position], Stretch] = OrderedDict()
        """By structures and `after`; what was used last is the last."""
        self.bytes = 0
        self.read = 0
        """Rows that were read from the store."""

    def __len__(self) -> int:
        return len(self._kept)

    def at(self, read: Position, horizon: Position, structures: set[int]) -> tuple[Stretch, bool]:
        """The stretch that has what comes behind `read`, and whether it had to be read for that.

        `horizon`: up to where rows may be trusted; it is above `read`.
        """
        wanted = frozenset(structures)
        for key in reversed(self._kept):
            stretch = self._kept[key]
            if stretch.after <= read < stretch.end and key[0] == wanted:
                self._kept.move_to_end(key)
                return stretch, False
        stretch = self._load(read, horizon, structures)
        self._kept[wanted, read] = stretch
        self.bytes += stretch.size
        while len(self._kept) > 1 and (self.bytes > self._max_bytes or len(self._kept) > KEPT_MAX):
            self.bytes -= self._kept.popitem(last=False)[1].size
        return stretch, True

    def _load(self, after: Position, horizon: Position, structures: set[int]) -> Stretch:
        stretch = Stretch(after)
        rows = self._reader.read(Position(after + 1), Position(horizon + 1), structures)
        for place, shard, value in islice(rows, ROWS):
            stretch.add(place, shard, value)
            if stretch.size >= STRETCH_BYTES:
                break
        count = len(stretch.places)
        self.read += count
        is_all = count < ROWS and stretch.size < STRETCH_BYTES
        stretch.end = horizon if is_all else stretch.places[-1]
        return stretch
