"""What places keep of deliveries that are done (shards/kept.py), and for how long.

    keep        "failed": what failed before, until its slice goes · "all": all, so long · a duration: all,
                and so long after their end · "none": nothing
    result      for its group's `result_ttl`, whatever `keep` says; until then its row stays

`keep` counts as it is now: what was kept under another one goes with the next walk.

What is over goes in steps, in the order of the timeline: behind one that may stay longer, so do others.
"""

from functools import partial
from itertools import islice

from shards import kept
from shards.commit import Commit
from shards.kept import Kept
from shards.store import Store
from shards.tables import KeptRow
from timeline.delivery_rows import keeps
from timeline.slices import Directory

from ..engine.clock import Clock
from .membership import Membership
from .shared import Group

STEP = 250
"""Maximum dropped in one request, ..."""
PLACES_MAX = 1_000
"""... and places looked at in one walk: some 10 ms."""


class Done:
    """What the places of one server keep."""

    def __init__(self, store: Store, directory: Directory, groups: Membership, clock: Clock) -> None:
        self._store = store
        self._directory = directory
        self._groups = groups
        self._clock = clock
        self._next = b""
        """The place at which the next walk begins."""

    def over(self) -> list[tuple[bytes, Group | None]]:
        """Places of which something may be over, by `whose`; None: it is gone. Each walk looks at some."""
        walk = list(islice(kept.places(self._store, self._next), PLACES_MAX))
        self._next = walk[-1][0] + b"\0" if len(walk) == PLACES_MAX else b""
        groups = {group.whose: group for group in self._groups} if walk else {}
        looked_at = ((whose, groups.get(whose), row) for whose, row in walk)
        return [(whose, group) for whose, group, row in looked_at if self._has_over(group, whose, row)]

    def _has_over(self, group: Group | None, whose: bytes, row: KeptRow) -> bool:
        if group is None or (
            row.results and kept.has_expired(self._store, whose, row, self._results_from(group))
        ):
            return True
        first = kept.first_of(self._store, whose, row)
        return row.count > 0 and (first is None or self._may_go(group, first))

    def drop(self, commit: Commit, whose: bytes, group: Group | None) -> int:
        """In the writer: drop a step's worth of what is over of a place. Returns the number."""
        if group is not None and self._groups.get(group.text) is not group:
            group = None
        gone = kept.drop_first(commit, whose, STEP, partial(self._may_go, group))
        from_ms = self._clock.wall_ms() if group is None else self._results_from(group)
        return gone + kept.drop_results(commit, whose, from_ms, STEP, partial(_stays, group))

    def _may_go(self, group: Group | None, one: Kept) -> bool:
        if group is None or one.root < self._directory.floor:
            return True
        keep_ms, ended_ms = group.keeping.keep_ms or 0, one.good.at_ms
        if one.had_result and ended_ms >= self._results_from(group):
            return False
        return ended_ms <= self._clock.wall_ms() - keep_ms if keep_ms > 0 else not _stays(group, one)

    def _results_from(self, group: Group) -> int:
        """Results from before then are over, wall ms."""
        return self._clock.wall_ms() - group.keeping.result_ms


def _stays(group: Group | None, one: Kept) -> bool:
    """Whether a delivery is kept beside its result, as `keep` is now."""
    has_failed = one.state.attempts > 1 or bool(one.tries)
    return group is not None and keeps(group.keeping.keep, failed=has_failed)
