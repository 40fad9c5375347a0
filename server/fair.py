"""Fairness between owners: a share of a bound, and turns. An owner is a key, or a network without keys.

`Share` counts what each owner holds of a bound that all share (timeline/shares.py), and asks for the owner's
own bound in the keys file.

`Turns` is a round robin: each owner that has something waiting gives one, then the next owner does.
"""

from collections import Counter, OrderedDict, deque
from typing import Generic, Protocol, TypeVar

from timeline.shares import may_take

One = TypeVar("One")


class Bounds(Protocol):
    """Bounds of owners, as the keys file has them now."""

    @property
    def is_open(self) -> bool:
        """Nobody is asked for a key, so all is one owner's."""

    def bound_of(self, owner: str, name: str) -> int:
        """An owner's own bound of that name; 0: it has none."""


class Share:
    """What each owner holds of one bound."""

    def __init__(self, name: str, most: int, what: str, bounds: Bounds, by: str = "") -> None:
        """`name`: of the bound, in the keys file. `most`: what all may hold together; 0: no bound that is
        shared. `what`: what is counted, for people. `by`: the setting that it is from; empty: its own."""
        self._name = name
        self._by = by or f"limits.{name}"
        self._most = most
        self._what = what
        self._bounds = bounds
        self._held: Counter[str] = Counter()
        """By owner; one that holds nothing is not kept."""
        self.taken = 0

    def refusal(self, owner: str) -> str:
        """Why the owner may not take one more; empty: it may. `owner`: the name of a key; empty: nobody's."""
        mine, own = self._held[owner], self._bounds.bound_of(owner, self._name)
        if own and mine >= own:
            return f"the key {owner} has {mine} {self._what}, {own} may be"
        if not self._most:
            return ""
        if self.taken >= self._most:
            return f"{self.taken} {self._what} exist, as many as {self._by} allows"
        owners = len(self._held) + (not mine)
        if self._bounds.is_open or may_take(self.taken, self._most, mine, owners):
            return ""
        who = f"the key {owner}" if owner else "who shows no key"
        return f"{who} has {mine} {self._what}, the last ones that {self._by} allows are for others"

    def add(self, owner: str, count: int = 1) -> None:
        """The owner has so many more; fewer, if negative."""
        count = max(count, -self._held[owner])
        self.taken += count
        self._held[owner] += count
        if not self._held[owner]:
            del self._held[owner]

    def move(self, before: str, after: str, count: int = 1) -> None:
        """What one owner has had is another's."""
        self.add(before, -count)
        self.add(after, count)

    def clear(self) -> None:
        """Nobody holds anything."""
        self._held.clear()
        self.taken = 0


class Turns(Generic[One]):
    """What waits, by owner. The caller bounds it."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[One]] = OrderedDict()
        """None is empty; the owner whose turn is next comes first."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __contains__(self, owner: object) -> bool:
        """Whether something of that owner waits."""
        return owner in self._lines

    def add(self, owner: str, one: One) -> None:
        """Let it wait behind what its owner has waiting."""
        self._lines.setdefault(owner, deque()).append(one)

    def take(self) -> One:
        """The next one. Its owner goes behind the other owners. Raises KeyError if nothing waits."""
        owner, line = self._lines.popitem(last=False)
        one = line.popleft()
        if line:
            self._lines[owner] = line
        return one
