"""Fairness between owners: a share of a bound, and turns. An owner is a key, or a network without keys.

`may_take` says whether an owner may take one more of a bound that all share. The last eighth of the bound is
reserved for owners that hold less than an equal share, so one owner alone can use nearly all of it, and a
newcomer still finds room:

    bound 80, A holds 70        A gets no more: 70 is the start of the reserve
    B comes, holds 0            B gets up to 10; its equal share is 40

`Turns` is a round robin: each owner that has something waiting gives one, then the next owner does.
"""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

RESERVED = 8
"""One part in so many of a shared bound is reserved."""

One = TypeVar("One")


def may_take(taken: int, bound: int, mine: int, owners: int) -> bool:
    """Whether an owner that holds `mine` may take one more of a shared bound.

    `taken`: what all hold together. `owners`: how many hold something, this one included. One that is alone
    shares with the next one to come.
    """
    if taken >= bound:
        return False
    return taken < bound - bound // RESERVED or mine * max(2, owners) < bound


class Turns(Generic[One]):
    """What waits, by owner. The caller bounds it."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[One]] = OrderedDict()
        """None is empty; the owner whose turn is next comes first."""

    def __bool__(self) -> bool:
        return bool(self._lines)

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
