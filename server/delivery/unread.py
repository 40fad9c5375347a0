"""What a place has still to read: the next messages of the tail or of the store that it is to get.

A row is passed over if no subscription wants it, or if it is unreadable or over. If its owner may not send it
now, though others have had it, the delivery is withheld (`withheld`, beside.py).

An endpoint that is behind reads the rows that dispatch has noted for it (ahead.py), then all that there are.
The notes are in RAM: a start makes them again for what was dispatched last.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import merge
from itertools import islice
from operator import itemgetter

from shards.errors import Corrupt
from shards.order import followers
from shards.read import Reader, Row
from shards.record import encode, is_moved, is_stub, topic_of, usual
from timeline.horizon import Horizon
from timeline.key_firsts import KNOWN_MAX
from timeline.key_rows import Address
from timeline.position import START, Position, at_of, before
from timeline.session import Subscription
from timeline.tail import Tail

from .ahead import Ahead
from .membership import Membership
from .message import Message
from .owners import Owners
from .place import Place
from .router import Router
from .run import RUN_MAX
from .spill_buffer import SpillBuffer

log = logging.getLogger(__name__)

TURN_ROWS = 1_000
"""Messages read in a turn, over all sessions."""
RUN_BYTES = 1 << 16
"""Maximum bytes of messages that are read before they are sent."""
TURN_OWNERS = 2_000
"""Maximum cost in a turn of checks that are not cached, of owners and receivers (owners.py, router.py)."""
RESTORED_MS, RESTORED_ROWS, RESTORED_BYTES = 300_000, 200_000, 256 << 20
"""How far back a start looks for what endpoints have still to read: so long, and so many rows or bytes, about
a second."""


class Unread:
    """Reads for one place at a time."""

    def __init__(
        self,
        reader: Reader,
        horizon: Horizon,
        tail: Tail[Message],
        router: Router,
        spill: SpillBuffer,
        owners: Owners,
        groups: Membership,
        *,
        wall_ms: Callable[[], int],
        dispatched_ms: Callable[[Position], int | None],
        kept_ms: int,
    ) -> None:
        """`kept_ms`: for how long a delivery is withheld."""
        self._reader = reader
        self.store = reader.store
        self._horizon = horizon
        self._tail = tail
        self._router = router
        self.spill = spill
        self.owners = owners
        self.kept_ms = kept_ms
        self._groups = groups
        self.wall_ms = wall_ms
        self._dispatched_ms = dispatched_ms
        self.withheld: Message | None = None
        """Where the stretch stands, if its owner may not send it now, and the place gets it when it may."""
        self.is_blocked = False
        """Whether the last stretch ended before one that cannot be withheld now."""
        self.blocked: set[Place] = set()
        """Places that stand still there."""
        self.most = 1
        """How many messages the stretch reads before they are sent: as many as there is room for, and more
        while all wait for their keys."""

    def restore_endpoints(self) -> None:
        """At start: note what endpoints have still to read of the last while, in one pass over it."""
        horizon = self._horizon.position
        start = max(self._reader.directory.floor, before(max(0, at_of(horizon) - RESTORED_MS)))
        found: dict[Place, Ahead] = {}
        for group in self._groups:
            if group.ahead is not None and start <= group.session.read:
                group.ahead.begin()
                found[group] = group.ahead
        if not found:
            return
        looked = size = 0
        for place, shard, value in self._every(min([one.session.read for one in found]), horizon):
            looked, size = looked + 1, size + len(value)
            with suppress(Corrupt):
                for one in self._router.posted_in(value, place):
                    if one in found and place > one.session.read:
                        found[one].note(place, shard)
            if looked == RESTORED_ROWS or size >= RESTORED_BYTES:
                for ahead in found.values():
                    ahead.sure = min(ahead.sure, place)
                return

    @property
    def floor(self) -> Position:
        """The retention floor: earlier messages are dropped."""
        return self._reader.directory.floor

    def floor_of(self, read: Position) -> Position:
        """The same for who reads on from there: what the tail has is there for it."""
        return START if self._tail.covers(read) else self.floor

    def begin(self, subscriber: Place) -> None:
        """Forget what others have spent, and where they stood."""
        self.is_blocked = False
        self.withheld = None
        self.owners.take_cost()
        self._router.take_cost()
        self.look_at_room(subscriber)

    def look_at_room(self, subscriber: Place) -> None:
        """Read as many as there is room for."""
        self.most = max(1, min(RUN_MAX, subscriber.find_room()))

    def stretch(
        self, subscriber: Place, read: Position, horizon: Position, left: int
    ) -> Iterator[tuple[Position, Sequence[Message], tuple[Subscription, ...]]]:
        """The next positions behind `read`, each with the message if the subscriber is to get it, and the
        subscriptions that it comes by; of a run in the tail the last position, and the run. `left`: messages
        at most."""
        wall_ms = self.wall_ms()
        if self._tail.covers(read) and not subscriber.is_endpoint:
            rows = self._tail.after(read, TURN_ROWS)
            at = 0
            while at < len(rows):
                some = rows[at : at + max(1, min(left, self.most))]
                at += len(some)
                run, found = self._run(subscriber, some, wall_ms)
                if run:
                    left -= len(run)
                    yield some[-1][0], run, found
                    continue
                for place, message in some:
                    found = self._wanted(subscriber, place, message.topic)
                    is_wanted = (
                        found
                        and not _is_missed(subscriber, message)
                        and not message.is_dropped(wall_ms, self._dispatched_ms)
                        and self._may_have(subscriber, message, found)
                    )
                    if is_wanted:
                        left -= 1
                        message.refresh(wall_ms)
                    yield place, (message,) if is_wanted else (), found
            return
        for place, shard, value in islice(self._rows(subscriber, read, horizon), TURN_ROWS):
            whole, found = self._of_row(subscriber, place, shard, value, wall_ms)
            if whole is None or (whole.is_judged and not self._may_have(subscriber, whole, found)):
                yield place, (), ()
            else:
                yield place, (whole,), found

    def _of_row(
        self, subscriber: Place, place: Position, shard: int, value: bytes, wall_ms: int
    ) -> tuple[Message | None, tuple[Subscription, ...]]:
        """The message of a row, and the subscriptions that it comes by; None: it is not wanted, or over."""
        layout = usual(value)
        try:
            if layout is None:
                found = () if is_moved(value) or is_stub(value) else self._wanted_in(subscriber, place, value)
            elif subscriber.is_endpoint:
                return None, ()
            else:
                found = self._wanted(subscriber, place, value[layout[2] : layout[3]])
            message = Message(place, shard, None, wall_ms, value, layout) if found else None
        except Corrupt as error:
            log.error("message at %024x in shard %d: unreadable, skipped: %s", place, shard, error)
            return None, ()
        if message is not None and layout is None and message.is_dropped(wall_ms, self._dispatched_ms):
            return None, ()
        return message, found

    def at(self, subscriber: Place, place: Position, shard: int) -> Message | None:
        """The message at that place, if the subscriber is still to get it."""
        try:
            value = self._reader.value_at(place, shard)
        except Corrupt as error:
            log.error("message at %024x in shard %d: unreadable, skipped: %s", place, shard, error)
            return None
        if value is None or place in subscriber.session.finished:
            return None
        return self._of_row(subscriber, place, shard, value, self.wall_ms())[0]

    def followers(self, subscriber: Place, key: bytes, start: Position) -> tuple[list[Address], Position]:
        """The next ones of a key from `start` on that the reader has passed, and how far they are all."""
        read = subscriber.session.read
        return followers(self._reader.store, subscriber.whose, key, start, read, KNOWN_MAX + 1)

    def _wanted(self, subscriber: Place, place: Position, topic: bytes) -> tuple[Subscription, ...]:
        """`Router.wanted`. Counts the messages that a group passes over."""
        found = self._router.wanted(subscriber, place, topic)
        if not found and subscriber.is_group:
            self._router.pass_over(topic, reader=subscriber)
        return found

    def _wanted_in(self, subscriber: Place, place: Position, value: bytes) -> tuple[Subscription, ...]:
        """The same of a stored value. Raises Corrupt."""
        if subscriber.is_endpoint:
            return self._router.wanted_in(subscriber, place, value)
        return self._wanted(subscriber, place, topic_of(value))

    def _may_have(self, subscriber: Place, message: Message, found: tuple[Subscription, ...]) -> bool:
        """Whether the owner may send it. If not, the place passes it, or it is `withheld`."""
        if self.owners.allow(message):
            return True
        is_promised = subscriber.is_group or (message.qos and any(one.qos for one in found))
        if is_promised and self.is_kept_back(subscriber, message):
            self.withheld = message
        return False

    def is_kept_back(self, subscriber: Place, message: Message) -> bool:
        """Whether a message that its owner may not send now waits for a place that has passed it: not one
        that comes again for everybody, or is for a session and too old, or for one that ends with its
        connection."""
        is_lasting = subscriber.session.is_persistent and message.is_stored
        is_old = not subscriber.is_group and at_of(message.position) < self.wall_ms() - self.kept_ms
        return is_lasting and not is_old and not self.owners.is_noted(message)

    def _run(
        self, subscriber: Place, rows: Sequence[tuple[Position, Message]], wall_ms: int
    ) -> tuple[list[Message], tuple[Subscription, ...]]:
        """All messages of these rows of the tail, if they are a run that the subscriber gets; else none."""
        place, first = rows[0]
        qos = first.qos
        run = [
            message
            for _, message in rows
            if message.is_usual and message.qos == qos and (qos or message.shard >= 0)
        ]
        by = self._router.wanted(subscriber, place, first.topic)
        if not by or len(run) < len(rows) or sum([message.body_bytes for message in run]) >= RUN_BYTES:
            return [], by
        for topic in {message.topic for message in run}:
            is_spent = self._router.cost >= TURN_OWNERS
            if is_spent or self._router.wanted(subscriber, place, topic) is not by:
                return [], by
        for message in run:
            if message.is_judged and not self.owners.is_known(message):
                return [], by
        for message in run:
            message.refresh(wall_ms)
        return run, by

    def _rows(self, subscriber: Place, read: Position, horizon: Position) -> Iterator[Row]:
        """Rows behind `read`, merged with the subscriber's spill buffer."""
        if subscriber.ahead is not None:
            return self._noted(subscriber.ahead, read)
        structures = self._reader.structures.overlapping(subscriber.filters)
        rows = self._reader.read(Position(read + 1), Position(horizon + 1), structures)
        owed = self.spill.of(subscriber)
        if not owed:
            return rows
        return merge(rows, _encoded(owed), key=itemgetter(0))

    def _noted(self, ahead: Ahead, read: Position) -> Iterator[Row]:
        """Rows behind `read`, up to the horizon, that an endpoint may have to post."""
        horizon = self._horizon.position
        for place, shard in ahead.after(read):
            try:
                value = self._reader.value_at(place, shard)
            except Corrupt:
                ahead.forget()
                read = Position(place - 1)
                break
            if value is not None:
                yield place, shard, value
        if ahead.sure < horizon:
            yield from self._every(max(read, ahead.sure), horizon)

    def _every(self, read: Position, horizon: Position) -> Iterator[Row]:
        """Rows behind `read` where messages to endpoints stand: structure 0."""
        structures = self._reader.structures.overlapping(())
        return self._reader.read(Position(read + 1), Position(horizon + 1), structures)


def _is_missed(subscriber: Place, message: Message) -> bool:
    """Unstored QoS 0 is only for clients that were connected, however long it stays in the tail."""
    return not message.is_stored and not message.qos and message.due_ms < subscriber.presence.connected_ms


def _encoded(owed: Sequence[Message]) -> Iterator[Row]:
    """As rows, one after another as they are asked for."""
    for message in owed:
        yield message.position, message.shard, encode(message.record)
