"""Where the messages stand that an endpoint has still to read, as dispatch passes them.

What is posted stands in structure 0, with the messages to all other endpoints. One that is a little behind
would read all of theirs: 2,000 origins with a message each, due at once, would read two million rows.

    tailing           nothing is noted: what is passed is posted
    falls behind      dispatch notes each of its messages: position and shard
    has read these    it tails again; beyond what could be noted it reads on from there, all rows

Each endpoint may note PLACES_MAX. It may note more, EACH_MAX at most, while all have less than SHARED_MAX of
these together.

It is a note and no more: what is read is looked at as any row is. Kept in RAM, and made again at a start in
one pass over the last rows (unread.py).
"""

from collections.abc import Iterator

from timeline.position import END, POSITION_BYTES, START, Position

PLACES_MAX = 100
"""14 bytes each: 14 MB for 10,000 endpoints, ..."""
SHARED_MAX = 1_000_000
"""... and 14 MB more."""
EACH_MAX = 10_000
_SHARD_BYTES = 2
_EACH = POSITION_BYTES + _SHARD_BYTES


class SharedNotes:
    """Counts the notes beyond PLACES_MAX of each endpoint."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0


class Ahead:
    """Places of one endpoint, in order: all up to `sure`, and behind that none is known. At first that is
    everything."""

    __slots__ = ("_packed", "_shared", "sure")

    def __init__(self, shared: SharedNotes) -> None:
        self._packed = bytearray()
        self._shared = shared
        self.sure = START

    def __len__(self) -> int:
        return len(self._packed) // _EACH

    def begin(self) -> None:
        """The endpoint tails: it has nothing to read but what is noted from now on."""
        self.forget()
        self.sure = END

    def forget(self) -> None:
        """Nothing is known any more."""
        self._shared.taken -= max(0, len(self) - PLACES_MAX)
        self._packed.clear()
        self.sure = START

    def note(self, place: Position, shard: int) -> None:
        """A message of the endpoint's stands there, behind all others that are noted."""
        if self.sure < place:
            return
        count = len(self)
        if count >= PLACES_MAX:
            if count >= EACH_MAX or self._shared.taken >= SHARED_MAX:
                self.sure = Position(place - 1)
                return
            self._shared.taken += 1
        self._packed += place.to_bytes(POSITION_BYTES, "big") + shard.to_bytes(_SHARD_BYTES, "big")

    def after(self, read: Position) -> Iterator[tuple[Position, int]]:
        """Positions and shards behind `read`; those before it are forgotten."""
        packed = self._packed
        while packed and int.from_bytes(packed[:POSITION_BYTES], "big") <= read:
            self._shared.taken -= len(self) > PLACES_MAX
            del packed[:_EACH]
        taken = bytes(packed)
        for at in range(0, len(taken), _EACH):
            place = Position(int.from_bytes(taken[at : at + POSITION_BYTES], "big"))
            yield place, int.from_bytes(taken[at + POSITION_BYTES : at + _EACH], "big")
