"""Who keeps the retention floor where it is: groups and endpoints that have not done what is old.

The floor is one position: the oldest slice that somebody needs keeps all that come after it. So a place that
nobody looks after is moved over what is not for it, and is given up in the end:

    read ......... not theirs ......... the first that is theirs ......... horizon
    advance ──────────────────────────>|
    give_up, after slices.kept_behind ───────────────────────────────────> what is left: dead letters

A session is no holder: what a device that sleeps has missed longer than retention is lost to it, and counted.
"""

from itertools import islice

from shards.commit import Commit
from shards.errors import Corrupt
from shards.read import Reader
from shards.record import deliver_to_of, is_moved, is_stub, topic_of
from timeline.horizon import Horizon
from timeline.position import RETRY_SHARD, Position
from timeline.session import Flight

from .burials import KEPT_TOO_LONG, Burials
from .cursors import Cursors
from .membership import Membership
from .replay import Replay
from .router import Router
from .settling.undone import NEVER, Undone
from .shared import Group

LOOK = 2_000
"""Rows that a group is moved over in a step: some 5 ms."""


class Floor:
    """Of one server."""

    def __init__(
        self,
        reader: Reader,
        horizon: Horizon,
        router: Router,
        cursors: Cursors,
        groups: Membership,
        burials: Burials,
        undone: Undone,
        replay: Replay,
    ) -> None:
        self._reader = reader
        self._horizon = horizon
        self._router = router
        self._cursors = cursors
        self._groups = groups
        self._burials = burials
        self._undone = undone
        self._replay = replay

    @property
    def needed(self) -> Position:
        """Nobody needs what is before."""
        return min([self._burials.floor, *map(self._needs, self._groups)])

    def holders(self, before: Position) -> list[Group]:
        """The groups and endpoints that need something before that position, the furthest behind first."""
        found = [(self._needs(group), group.text, group) for group in self._groups]
        return [group for needs, _, group in sorted(found, key=lambda one: one[:2]) if needs < before]

    def _needs(self, group: Group) -> Position:
        first = Position(group.session.read_at(self._horizon.position) + 1)
        return min([first, *(flight.position for flight in _stored(group))])

    def advance(self, commit: Commit, group: Group, before: Position) -> bool:
        """In the writer: move a group that has nobody over what is not for it; True if there may be more.

        No further than to `before`, and LOOK rows at a time.
        """
        session = group.session
        if group.is_reachable or session.tailing or session.read + 1 >= before:
            return False
        structures = self._reader.structures.overlapping(group.filters)
        rows = self._reader.read(Position(session.read + 1), before, structures)
        looked, read = 0, session.read
        for place, _, value in islice(rows, LOOK):
            if self._is_theirs(group, place, value):
                break
            read = place
            looked += 1
        else:
            read = read if looked == LOOK else Position(before - 1)
        if read > session.read:
            session.read = read
            self._cursors.store(commit, group)
        return looked == LOOK

    def _is_theirs(self, group: Group, place: Position, value: bytes) -> bool:
        """What cannot be read may be."""
        if is_stub(value) or is_moved(value) or place in group.session.finished:
            return False
        try:
            if group.is_endpoint:
                found = self._router.posted(deliver_to_of(value)).get(group, ())
            else:
                found = self._router.route(topic_of(value)).get(group, ())
        except Corrupt:
            return True
        return any(one.since < place for one in found)

    def give_up(self, commit: Commit, group: Group, before: Position) -> bool:
        """In the writer: what a group has not done of what stands before that position becomes dead letters;
        whether there was anything."""
        old = [one for one in _stored(group) if one.position < before]
        for flight in old:
            self._undone.fail(group, flight, KEPT_TOO_LONG, delay_ms=NEVER)
        is_skipped = self._replay.skip(commit, group, Position(before - 1), KEPT_TOO_LONG, is_dead=True)
        return is_skipped or bool(old)


def _stored(group: Group) -> list[Flight]:
    """What it has in flight that stands on the timeline."""
    return [one for one in group.session.flights.values() if 0 <= one.shard < RETRY_SHARD]
