"""Fairness between owners: a share of a bound, and turns. An owner is a key, or a network without keys.

`Share` counts what each owner holds of a bound that all share (timeline/shares.py), and asks for the owner's
own bound in the keys file.

`FairQueue` is a round robin: each owner with waiting items gives one, then the next owner does. A new owner
goes first, so that an owner that asks for little does not wait for those that always ask. An owner that comes
again within the same round goes last. (As FQ-CoDel does with new and old flows, RFC 8290.)

`Part` is the factor for the usual time of each piece of a turn of the loop. server/net/loop_time.py sets it,
and each piece reads it.
"""

from collections import Counter, OrderedDict, deque
from typing import Generic, Protocol, TypeVar, cast

from timeline.shares import may_take

NEW_IN_A_ROW = 16
"""Maximum new owners that go first in a row: otherwise owners that are always new would keep others
waiting."""

One = TypeVar("One")


class Part:
    """Factor for the usual time of each piece of a turn: 1.0, or less while there are several owners."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1.0


class Bounds(Protocol):
    """Bounds of owners, from the current keys file."""

    @property
    def is_open(self) -> bool:
        """Whether no keys are needed, so that there is only one owner."""

    def bound_of(self, owner: str, name: str) -> int:
        """An owner's own bound of that name; 0: none."""

    def is_proven(self, owner: str) -> bool:
        """Whether the owner has a key or a password, or no name."""


class Share:
    """Each owner's part of one bound."""

    def __init__(self, name: str, most: int, what: str, bounds: Bounds, by: str = "") -> None:
        """`name`: of the bound, in the keys file. `most`: maximum of all together; 0: no shared bound.
        `what`: the counted things, in words. `by`: the setting of the bound; empty: its own."""
        self._name = name
        self._by = by or f"limits.{name}"
        self._most = most
        self._what = what
        self._bounds = bounds
        self._held: Counter[str] = Counter()
        """By owner; owners with nothing have no entry."""
        self.taken = 0

    def refusal(self, owner: str) -> str:
        """Why the owner may not take one more; empty: it may. `owner`: the name of a key; empty: none."""
        mine, own = self._held[owner], self._bounds.bound_of(owner, self._name)
        if own and mine >= own:
            return f"key '{owner}' has {mine} {self._what}, its limit is {own}"
        if not self._most:
            return ""
        if self.taken >= self._most:
            return f"{self.taken} {self._what} exist, as many as {self._by} allows"
        owners = len(self._held) + (not mine)
        is_proven = self._bounds.is_proven(owner)
        if self._bounds.is_open or may_take(self.taken, self._most, mine, owners, is_proven=is_proven):
            return ""
        who = f"key '{owner}' has" if owner else "clients without a key have"
        return f"{who} {mine} {self._what}, the rest of {self._by} is reserved for others"

    def add(self, owner: str, count: int = 1) -> None:
        """Add `count` to the owner's; it may be negative."""
        count = max(count, -self._held[owner])
        self.taken += count
        self._held[owner] += count
        if not self._held[owner]:
            del self._held[owner]

    def move(self, before: str, after: str, count: int = 1) -> None:
        """Move `count` from one owner to another."""
        self.add(before, -count)
        self.add(after, count)

    def clear(self) -> None:
        """Reset: no owner has anything."""
        self._held.clear()
        self.taken = 0


class FairQueue(Generic[One]):
    """Waiting items by owner, taken in turns. The caller bounds it."""

    def __init__(self) -> None:
        self._new: OrderedDict[str, deque[One]] = OrderedDict()
        """Owners without a turn in this round, in order of arrival. No queue is empty."""
        self._old: OrderedDict[str, deque[One]] = OrderedDict()
        """Owners that have had one, the next first. Some queues are empty: they stay until the round reaches
        them."""
        self._count = 0
        self._in_a_row = 0
        """First turns of new owners since the last turn of an old one."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, owner: object) -> bool:
        """Whether something of that owner waits."""
        return owner in self._new or bool(self._old.get(cast("str", owner)))

    def add(self, owner: str, one: One) -> None:
        """Queue an item behind its owner's others."""
        line = self._old.get(owner)
        if line is None:
            line = self._new.setdefault(owner, deque())
        line.append(one)
        self._count += 1

    def take(self) -> tuple[str, One]:
        """Take the next item and its owner, who goes behind the others. Raises KeyError if nothing waits."""
        is_new = bool(self._new) and (self._in_a_row < NEW_IN_A_ROW or not self._old)
        self._in_a_row = self._in_a_row + 1 if is_new else 0
        lines = self._new if is_new else self._old
        while lines:
            owner, line = lines.popitem(last=False)
            if line:
                break
        else:
            owner, line = self._new.popitem(last=False)
        one = line.popleft()
        self._count -= 1
        if self._count:
            self._old[owner] = line
        else:
            self._old.clear()
        return owner, one
