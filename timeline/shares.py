"""A share of a bound that all owners have together. An owner is a key, or a network without keys.

The last eighth of the bound is reserved for owners that hold less than an equal share, so one owner alone can
use nearly all of it, and a newcomer still finds room:

    bound 80, A holds 70        A gets no more: 70 is the start of the reserve
    B comes, holds 0            B gets up to 10; its equal share is 40

Names that nobody has proven get nothing of the reserve: one client can make up as many as it likes.
"""

RESERVED = 8
"""The reserved fraction of a shared bound: one part in this many."""


def may_take(
    taken: int, bound: int, mine: int, owners: int, count: int = 1, *, is_proven: bool = True
) -> bool:
    """Whether an owner that holds `mine` may take `count` more (at least one) of a shared bound.

    `taken`: held by all together. `owners`: number of holders, including this one. A lone owner shares with
    the next one to come. `is_proven`: the reserve is for this owner too.
    """
    last = taken + count - 1
    if last >= bound:
        return False
    is_free = last < bound - bound // RESERVED
    return is_free or (is_proven and (mine + count - 1) * max(2, owners) < bound)
