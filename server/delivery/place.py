"""A place: reads the timeline from a position of its own, and is given what it subscribes to.

A session (subscriber.py) sends on its link, a group (shared.py) through its members. Whoever reads for a
place calls `offer`, whichever it is. A group decides in `may_give` which member gets it. A session is its own
one member, and has that decision inlined in `offer`: it would be one more call for each delivery.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from shards.delivery_rows import whose
from shards.fields import Record
from timeline.filters import matches
from timeline.position import Position, at_of, seq_of
from timeline.session import SETTLED, Flight, Session, Subscription

from ..auth.rights import Rights
from .ahead import Ahead
from .message import Message, publisher_of
from .place_state import CursorState, PlaceRows, Presence
from .run import Run
from .write_barrier import Persisted

log = logging.getLogger(__name__)

Persist = Callable[["Place", Persisted], None]
"""Makes a cursor durable, then calls back."""


class Place:
    """Its reader, its rows, and who it belongs to."""

    __slots__ = (
        *("_whose", "cursor", "delivered", "dirty", "doubt", "failed", "incarnation", "is_ready", "name"),
        *("owner", "presence", "reads_next", "redelivered", "rights", "rows", "session"),
    )

    is_group = False
    is_endpoint = False
    """Gets the messages that name it as their endpoint, on any topic."""
    ahead: Ahead | None = None
    """Positions that an endpoint has still to read; None for other places."""

    def __init__(
        self, session: Session, dirty: "set[Place]", owner: str, rights: Rights | None, incarnation: int
    ) -> None:
        self.session = session
        self.name = session.client_id
        """Its name for users: the client id, or the name of the group without the filter."""
        self._whose = -1, b""
        """For which incarnation, and `whose`."""
        self.incarnation = incarnation
        """Number that tells it from earlier places of its name. 0: stored by a version without numbers."""
        self.rows = PlaceRows()
        self.cursor = CursorState()
        self.presence = Presence()
        self.dirty = dirty
        """The server's set of dirty places: the cursor on disk is behind."""
        self.owner = owner
        """Name of the client's key; empty: none."""
        self.rights = rights
        """Rights of its client, here or away; None: everything, as no keys are needed."""
        self.is_ready = False
        """Waits in `Ready` for its turn to read on."""
        self.reads_next = False
        """Behind, with retries that are due: whether unread messages are next, or those."""
        self.delivered = self.redelivered = self.failed = 0
        """Numbers of deliveries, of those that were not the first, and of failed tries."""
        self.doubt = Position(0)
        """Bound of what it may have been given before a kill: due before its ms, placed up to its seq. 0:
        nothing. At QoS 1 only; at QoS 2 the cursor tells."""

    def doubts(self, message: Message) -> bool:
        """Whether it may have been given the message before the server was killed."""
        doubt, place = self.doubt, message.at or message.position
        return at_of(place) < at_of(doubt) and seq_of(place) <= seq_of(doubt)

    def end_doubt(self) -> None:
        """What it is given from now on it was never given before."""
        self.doubt, self.cursor.changes = Position(0), -1

    @property
    def whose(self) -> bytes:
        """Its identifier in the rows of its deliveries."""
        if self._whose[0] != self.incarnation:
            self._whose = self.incarnation, whose(self.session.client_id, self.incarnation)
        return self._whose[1]

    @property
    def filters(self) -> Iterable[str]:
        """Filters of the topics that it reads in the store. None of an endpoint: its messages stand in
        structure 0, whatever their topics."""
        return () if self.is_endpoint else self.session.subscriptions

    @property
    def owners(self) -> frozenset[str]:
        """Names of its clients' keys."""
        return frozenset((self.owner,))

    def is_of(self, name: str) -> bool:
        """Whether it belongs to the key of that name."""
        return self.owners == {name}

    @property
    def names(self) -> tuple[str, str, int]:
        """Its names in the rows of its deliveries, and its incarnation."""
        return self.session.client_id, self.name, self.incarnation

    @property
    def keeper(self) -> str:
        """The key that all its clients use; empty: none, or several."""
        owners = self.owners
        return min(owners) if len(owners) == 1 else ""

    def wants(self, place: Position, record: Record) -> bool:
        """Whether it subscribes to the message at this position."""
        topic, own = record.topic.decode(), self.session.subscriptions.items()
        return any(one.since < place and matches(text, topic) for text, one in own)

    def theirs(self, record: Record, subscriptions: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
        """The subscriptions without those that do not want the client's own publishes."""
        if record.publisher != publisher_of(self.session.client_id):
            return subscriptions
        return tuple(s for s in subscriptions if not s.no_local)

    @property
    def is_restricted(self) -> bool:
        """Whether `may_receive` depends on the topic."""
        return self.rights is not None

    @property
    def checks(self) -> int:
        """How many clients `may_receive` may have to ask."""
        return 1

    def may_receive(self, topic: bytes) -> bool:
        """Whether current rules allow it to receive messages of this topic."""
        return self.rights is None or self.rights.may_receive(topic)

    def warn(self, topic: bytes, *, waits: bool = False) -> None:
        """Log that the group keeps back or passes over a message of this topic."""

    @property
    def is_reachable(self) -> bool:
        """Whether the session or a member is connected and has room."""
        raise NotImplementedError

    @property
    def is_here(self) -> bool:
        """Whether it, or one of the group's members, is connected."""
        return self.is_reachable

    @property
    def can_resend(self) -> bool:
        """Whether there is room to resend one more message."""
        raise NotImplementedError

    def find_room(self) -> int:
        """How many messages there may be room for. A group lets go of members without room."""
        raise NotImplementedError

    def offer(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:
        """Send a message that these subscriptions match; False if there is no room for it now."""
        raise NotImplementedError

    def offer_run(self, run: Run, subscriptions: tuple[Subscription, ...]) -> int:
        """Send the first messages of a run; returns how many. Offer the rest one by one."""
        raise NotImplementedError

    def resend(self, message: Message, flight: Flight, subscriptions: tuple[Subscription, ...]) -> bool:
        """Resend a message that was in flight when the last connection ended; False: no room."""
        raise NotImplementedError

    def close_failed(self) -> None:
        """In an exception handler: sending failed, so the connection ends, if there is one."""
        log.exception("%r: cannot be sent messages", self.session.client_id)

    def bound(self) -> "Iterable[Place]":
        """Places whose cursors go with this one's: a session's groups, or a group's members."""
        raise NotImplementedError

    def lent_alone(self) -> Sequence[Flight]:
        """QoS 2 deliveries of a group, which only its members have in flight."""
        return ()

    def flying(self) -> set[Position]:
        """Roots of its deliveries that are in flight. O(flights)."""
        own = [one for one in self.session.flights.values() if one.loan is None and one.fate != SETTLED]
        return {one.position for one in (*own, *self.lent_alone())}

    def over(self) -> list[Position]:
        """Roots of its rows that have no effect any more. O(flights)."""
        return self.rows.without_effect(self.flying() if self.rows.out else set())
