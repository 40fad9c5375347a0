"""Keys within a group: their rule, the rows that are stored, and the bound on these in all groups."""

from collections.abc import Mapping
from dataclasses import dataclass

from .position import START, Position
from .shares import may_take

NOWHERE = START
"""In place of a position: none."""
NO_SHARD = -1
Address = tuple[Position, int]
"""Position and shard of a message."""
NO_KEY = b"\0"
"""Key of the messages without one, in a fair group. No client can send it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a key may have one more message."""

    is_ordered: bool = False
    """One is out, and a failed one is followed by nothing."""
    most: int = 0
    """Messages of a key that are out; 0: any number."""
    per_ms: float = 0.0
    """Messages of a key that are given in a millisecond; 0.0: any number."""
    is_fair: bool = False

    @property
    def is_counted(self) -> bool:
        """Whether what is given may need a place within the bound."""
        return self.is_ordered or self.per_ms > 0.0


ORDERED = Rule(is_ordered=True, most=1)
NO_RULE = Rule()
"""Keys do not count."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The stored state of an ordering key. A position is NOWHERE if there is none."""

    next: Position = NOWHERE
    shard: int = NO_SHARD
    """Shard of the message at `next`; NO_SHARD: it is unknown whether there is one."""
    root: Position = NOWHERE
    """The head, if it is not in flight: its delivery's row says whether it waits or is dead."""
    by_hand: bool = False
    """Somebody holds the key."""

    @property
    def has_first(self) -> bool:
        """Whether there is a message at `next`."""
        return self.shard != NO_SHARD


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows to write with a cursor."""

    keys: Mapping[bytes, KeyRow | None]
    """None: the row goes."""
    index: Mapping[bytes, list[Address]]


class KeyBound:
    """A bound on the key rows of all groups. One group has at most half of what the others leave, and the
    groups of one owner a share as of every bound (shares.py)."""

    __slots__ = ("_held", "begun", "count", "is_freed", "lined", "most", "stopped")

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self._held: dict[str, int] = {}
        """Key rows by owner of their groups; none is 0."""
        self.begun = 0
        """Groups that have begun to go by keys."""
        self.stopped = 0
        """Groups whose reader stands still at the bound."""
        self.is_freed = False
        """Whether one of them may read on, as a key row has gone; the caller looks, and clears it."""
        self.lined = 0
        """Retries in lines. A key has one, and at most half of what the others leave."""

    def add(self, owner: str, rows: int) -> None:
        """So many key rows have come, or have gone."""
        self.count += rows
        left = self._held.get(owner, 0) + rows
        if left:
            self._held[owner] = left
        else:
            self._held.pop(owner, None)
        self.is_freed = self.is_freed or (rows < 0 and self.stopped > 0)

    def has_room(self, owner: str, own: int) -> bool:
        """Whether a group of that owner, which has `own` rows, may have one more."""
        mine = self._held.get(owner, 0)
        is_within = own < (self.most - self.count + own) // 2
        return is_within and may_take(self.count, self.most, mine, len(self._held) + (not mine))


class KeyRoom:
    """What one group has of the bound: one place for each key row, and for each key that has not all its
    tokens."""

    __slots__ = ("_owner", "bound", "is_stopped", "rows")

    def __init__(self, bound: KeyBound) -> None:
        self.bound = bound
        bound.begun += 1
        self.rows = 0
        self._owner = ""
        self.is_stopped = False
        """The reader stood still before a key for which there was no room, and was not told to go on."""

    def add(self, rows: int) -> None:
        self.rows += rows
        self.bound.add(self._owner, rows)

    def belong_to(self, owner: str) -> None:
        """The group has an owner, or another one."""
        self.bound.add(self._owner, -self.rows)
        self.bound.add(owner, self.rows)
        self._owner = owner

    @property
    def is_full(self) -> bool:
        """Whether a key without a row has to wait."""
        return not self.bound.has_room(self._owner, self.rows)

    @property
    def is_standing(self) -> bool:
        """Whether the reader stands still, as there is no room for another key in trouble."""
        return self.is_stopped and self.is_full

    def stop(self) -> None:
        """The reader stands still."""
        self.bound.stopped += not self.is_stopped
        self.is_stopped = True

    def may_read_on(self) -> bool:
        """Whether the stopped reader may continue. Restarts it, so a second call returns False."""
        may = self.is_stopped and not self.is_full
        if may:
            self._read_on()
        return may

    def _read_on(self) -> None:
        self.bound.stopped -= self.is_stopped
        self.is_stopped = False

    def leave(self) -> None:
        """The group has ended: its rows count no more."""
        self._read_on()
        self.bound.add(self._owner, -self.rows)
        self.bound = KeyBound(0)
