"""Lines of due retries, each before the key that it waits for.

Without order a failed message lets its key go on, and comes again beside the others. When it is due its key
may have as much out as its rule allows: then it stands in the line of its key, by the time of its try. Lines
are in RAM only, as the rows of retries are the truth: what finds no place in a line is `missed`, and is met
again when the line is empty, or after a start.

The lines of all groups have as many places as there may be key rows. Each key has one, and at most half of
what the others leave.
"""

from dataclasses import dataclass, field

from .key_rows import NOWHERE, KeyRoom
from .position import Position


@dataclass(slots=True)
class _Line:
    places: dict[Position, None] = field(default_factory=dict)
    missed: Position = NOWHERE
    """The first one for which there was no room."""


class KeyLines:
    """The lines of one group."""

    __slots__ = ("_lines", "_missed", "_room")

    def __init__(self, room: KeyRoom) -> None:
        self._room = room
        self._lines: dict[bytes, _Line] = {}
        self._missed = NOWHERE

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, key: bytes) -> bool:
        """Whether a retry waits for the key. No line is empty."""
        return key in self._lines

    @property
    def keys(self) -> list[bytes]:
        return [*self._lines]

    def stand(self, key: bytes, place: Position) -> None:
        """A retry that is due then waits for its key, if there is room."""
        line, bound = self._lines.setdefault(key, _Line()), self._room.bound
        most = (bound.most - bound.lined + len(line.places)) // 2
        if place in line.places:
            return
        if not line.places or (len(line.places) < most and line.missed == NOWHERE):
            line.places[place] = None
            bound.lined += 1
        elif line.missed == NOWHERE or place < line.missed:
            line.missed = place

    def first(self, key: bytes) -> Position | None:
        """The retry that stands first; None: there is no line."""
        return next(iter(self._lines[key].places)) if key in self._lines else None

    def leave(self, key: bytes, place: Position) -> None:
        """A retry is to be given, or has gone."""
        line = self._lines[key]
        del line.places[place]
        self._room.bound.lined -= 1
        if not line.places:
            del self._lines[key]
            if line.missed != NOWHERE:
                self._missed = line.missed if self._missed == NOWHERE else min(self._missed, line.missed)

    def take_missed(self) -> Position:
        """From where on to meet due retries again, once; NOWHERE: none was missed."""
        missed, self._missed = self._missed, NOWHERE
        return missed

    def clear(self) -> None:
        self._room.bound.lined -= sum([len(line.places) for line in self._lines.values()])
        self._lines.clear()
