"""Retention floor: groups and endpoints with old unfinished messages hold it back.

The floor is one position: the oldest slice that somebody needs keeps all later ones. So a place that nobody
looks after is moved over messages that are not its own, and is given up in the end:

    read ......... not theirs ......... the first that is theirs ......... horizon
    advance ──────────────────────────>|
    give_up, after slices.kept_behind ───────────────────────────────────> what is left: dead letters

Sessions do not hold the floor: what a sleeping device has missed for longer than retention is lost to it.
Before a slice goes, the unread messages of sessions are counted, and those in flight become dead letters:

    what groups need ──> settle: the unread are counted, then flights end, in steps ──> the slices may go
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from shards.commit import Commit
from shards.errors import Corrupt
from shards.read import Reader
from shards.record import is_moved, is_stub
from shards.withheld import Withheld
from timeline.deliveries import NEVER
from timeline.delivery_rows import Event
from timeline.horizon import Horizon
from timeline.position import END, START, Position
from timeline.session import SETTLED, Flight

from .burials import KEPT_TOO_LONG, SESSIONS, Burials
from .membership import Membership
from .place import Place
from .replay import Replay
from .router import Router
from .sessions import Sessions
from .settling.events import Events
from .shared import Group
from .subscriber import Subscriber

LOOK = 2_000
"""Rows that a group is moved over in a step: some 5 ms."""
LOOK_FLIGHTS = 20_000
"""Flights of sessions that are looked at in a step, ..."""
END_COST = 20
"""... and what it costs to end one and to store that it is, counted in these: some 5 ms."""
FILTERS = 1_000
"""Of sessions that are behind: beyond it a slice is read whole."""


class Floor:
    """The retention floor of one server."""

    def __init__(
        self,
        reader: Reader,
        horizon: Horizon,
        router: Router,
        sessions: Sessions,
        groups: Membership,
        burials: Burials,
        events: Events,
        replay: Replay,
        withheld: Withheld,
    ) -> None:
        self._reader = reader
        self._horizon = horizon
        self._router = router
        self._sessions = sessions
        self._cursors = sessions.cursors
        self._groups = groups
        self._burials = burials
        self._events = events
        self._replay = replay
        self._withheld = withheld
        self.settled = START
        """No session has anything undone before it."""
        self._walk: tuple[Position, deque[Subscriber]] = (START, deque())
        """Up to where flights are being ended, and of whom that is still to be done."""

    @property
    def free(self) -> Position:
        """Position before which everything may be dropped: unneeded and settled."""
        return min(self.needed, self.settled if len(self._sessions) else END)

    @property
    def needed(self) -> Position:
        """No group or endpoint needs what is before, nor what is left of any place, nor what is withheld."""
        return min([self._burials.floor, self._withheld.floor, *map(self._needs, self._groups)])

    def holders(self, before: Position) -> list[Group]:
        """The groups and endpoints that need something before that position, the furthest behind first."""
        found = [(self._needs(group), group.text, group) for group in self._groups]
        return [group for needs, _, group in sorted(found, key=lambda one: one[:2]) if needs < before]

    def _needs(self, group: Group) -> Position:
        first = Position(group.session.read_at(self._horizon.position) + 1)
        return min(
            [first, group.session.order.firsts.needed, *(flight.position for flight in self._stored(group))]
        )

    def advance(self, commit: Commit, group: Group, before: Position) -> bool:
        """In the writer: move a group without members over messages that are not its own, up to `before`,
        LOOK rows at a time; True if there may be more."""
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
        """Whether the group still wants the message. An unreadable one counts as wanted."""
        if is_stub(value) or is_moved(value) or place in group.session.finished:
            return False
        try:
            return bool(self._router.wanted_in(group, place, value))
        except Corrupt:
            return True

    def give_up(self, commit: Commit, group: Group, before: Position) -> bool:
        """In the writer: undone messages of a group before that position become dead letters; True if any."""
        old = [one for one in self._stored(group) if one.position < before]
        for flight in old:
            self._events.fail(group, flight, Event.NACK, KEPT_TOO_LONG, delay_ms=NEVER)
        is_skipped = self._replay.skip(commit, group, Position(before - 1), KEPT_TOO_LONG, is_dead=True)
        return is_skipped or bool(old)

    def settle(self, commit: Commit, before: Position) -> bool:
        """In the writer: a step to settle what sessions have undone before that position; True if there is
        more."""
        if before <= self.settled:
            return False
        if self._walk[0] != before:
            if self._pass_unread(before):
                return True
            self._walk = before, deque(self._sessions)
        walk = self._walk[1]
        self._end_flights(commit, walk, before)
        if walk:
            return True
        self.settled = before
        return False

    def _pass_unread(self, before: Position) -> bool:
        """Have unread messages of sessions before that position counted; True while that goes on."""
        burials, upto = self._burials, Position(before - 1)
        if SESSIONS in burials.active:
            return True
        first, filters = END, set[str]()
        for one in self._sessions:
            read = max(one.session.read_at(self._horizon.position), burials.passed)
            if read < upto and (theirs := _acked(one)):
                first = min(first, read)
                if len(filters) <= FILTERS:
                    filters.update(theirs)
        if first < upto:
            burials.pass_sessions(first, upto, filters if len(filters) <= FILTERS else ["#"])
            return True
        burials.passed = max(burials.passed, upto)
        return False

    def _end_flights(self, commit: Commit, walk: deque[Subscriber], before: Position) -> None:
        """End flights of these sessions before that position, as dead letters, unless a QoS 2 client has the
        message already. Takes sessions off the walk."""
        cost = 0
        while walk and cost < LOOK_FLIGHTS:
            one = walk.popleft()
            old = [flight for flight in self._stored(one) if flight.position < before and _needs_row(flight)]
            cost += 4 + len(one.session.flights) + END_COST * len(old)
            if old and self._sessions.get(one.session.client_id) is one:
                self._end(commit, one, old)

    def _end(self, commit: Commit, one: Subscriber, old: Iterable[Flight]) -> None:
        session = one.session
        by_place: dict[Place, list[Flight]] = {}
        for flight in old:
            by_place.setdefault(self._groups.loans.place_of(one, flight), []).append(flight)
        for place, flights in by_place.items():
            self._burials.end_flights(place, flights)
            self._cursors.store(commit, place)
            for flight in flights:
                if one.is_here and flight.packet_id not in session.resends:
                    session.retire([flight.packet_id])  # its client may ack it yet
                self._groups.loans.give_up(one, flight)
        self._cursors.store(commit, one)
        self._groups.read_on(one)

    def _stored(self, one: Place) -> list[Flight]:
        """The flights of a session or group whose messages are stored on the timeline."""
        groups, flights = self._groups, [one for one in one.session.flights.values() if one.is_stored]
        return [it for it in flights if it.position not in groups.loans.place_of(one, it).rows.out]


def _needs_row(flight: Flight) -> bool:
    """Whether a flight of a session is resent from the timeline: not if it is retained, or a group's."""
    is_settled = flight.fate == SETTLED or flight.phase
    return not (is_settled or flight.is_retained or flight.is_of_group)


def _acked(one: Subscriber) -> list[str]:
    """The filters by which messages come to a session itself, at QoS 1 or 2."""
    own = one.session.subscriptions
    return [text for text, theirs in own.items() if theirs.qos and text not in one.groups]
