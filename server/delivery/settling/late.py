"""Late acks: a member may finish a message even after its group has taken it back.

A member did not ack in time, and does now. The ack ends the message, whatever has become of it:

    waits for its next try    its row is deleted (shards/delivery_rows.py)
    due, but not read         the group notes not to send it
    in flight with another    the group's flight ends; the other member's ack is accepted too
    a dead letter             it is deleted. Its copy at `$dead` has gone out already
    done                      nothing to do

After a reconnect a member names the message by its id, since its packet id has no meaning on the new
connection. Then it is checked that the message belongs to the group. Whoever names a message by its id, or by
a lease that it does not hold, must be allowed to receive it.

The message is found by the id in its row, and decided in the writer, which sees retries placed in the same
batch or in one that is not durable yet. The end is written in one batch with the group's cursor.

Late acks are decided many at a time (engine/errand.py), groups in turns, since each group's cursor is written
with them. One that the writer refuses is tried again a second later. One that meets an unreadable row, or
exceeds WAITING_MAX, is dropped, and its message is redelivered.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shards.commit import Commit
from shards.deliveries import end
from shards.delivery_rows import Name, at, of_message_in
from shards.errors import Corrupt, StoreFailed
from shards.record import decode, is_stub, topic_of
from timeline.filters import matches, parse_share
from timeline.horizon import Horizon
from timeline.position import MessageId, Position, at_of
from timeline.session import SETTLED, Flight

from ...engine.clock import Clock
from ...engine.commit_hook import ignore
from ...engine.errand import RETRY_S, Errand
from ...engine.writer import Busy, Writer
from ...observe.logs import by, shown
from ..cursors import Cursors, cursor_cost
from ..membership import Membership
from ..sent import Sent
from ..shared import Group
from ..subscriber import Rights, Subscriber

log = logging.getLogger(__name__)

WAITING_MAX = 10_000
AT_ONCE = 250
"""Late acks in one request, ..."""
CURSORS_COST = 8_192
"""... and the cost of the cursors written with them, as in undone.py."""

Answered = Callable[[bool | None], None]
"""Called when it is durable: whether there was something to end. None: it cannot be written now."""


@dataclass(slots=True, eq=False)
class LateAck:
    """A late ack: the group, and the row that was sent, or the message's id."""

    group: Group
    place: Position | None
    shard: int
    answered: Answered
    message: MessageId | None = None
    member: Subscriber | None = None
    """The member that acks a message by its id."""
    rights: Rights | None = None
    """Rights of the caller that acks by a lease; None: they allow it."""


class Late:
    """Processes late acks. `finished`: number that have ended something."""

    def __init__(
        self,
        horizon: Horizon,
        cursors: Cursors,
        groups: Membership,
        sent: Sent,
        writer: Writer,
        clock: Clock,
        *,
        node: int,
    ) -> None:
        self._horizon = horizon
        self._cursors = cursors
        self._groups = groups
        self._sent = sent
        self._node = node
        self.errand: Errand[LateAck, bool] = Errand(
            writer,
            clock,
            self._end,
            self._ended,
            self._not_ended,
            most=AT_ONCE,
            turn=AT_ONCE,
            owner=lambda ack: ack.group,
            cost=lambda ack: cursor_cost(ack.group),
            cost_max=CURSORS_COST,
            begin=self._look_through,
        )
        self._flights: dict[Group, dict[Position, Flight]] = {}
        """Flights of the groups in the running request, by position."""
        self.finished = 0

    @property
    def room(self) -> int:
        """Number of late acks that may still be queued."""
        return WAITING_MAX - len(self.errand)

    def finish(
        self,
        group: Group,
        place: Position,
        shard: int,
        answered: Answered,
        rights: Rights | None = None,
    ) -> None:
        """Ack a message of the group by the position of its row, if `rights` allow to receive it."""
        self._take(LateAck(group, place, shard, answered, rights=rights))

    def may_finish(self, place: Subscriber, flight: Flight, rights: Rights | None) -> bool:
        """Whether these rights allow to receive a message that a place has in flight."""
        message = None if rights is None else self._sent.message(place, flight)
        return rights is None or (message is not None and rights.may_receive(message.topic))

    def finish_named(self, group: Group, member: Subscriber, message: MessageId, answered: Answered) -> None:
        """Ack a message of the group by its id, for a member."""
        self._take(LateAck(group, None, -1, answered, message, member))

    def _take(self, ack: LateAck) -> None:
        if self.room <= 0:
            name = shown(ack.group.name)
            log.warning("%s: too many late acks wait, a message is redelivered", name, extra=by(name))
            ack.answered(False)
            return
        self.errand.add(ack)

    def _look_through(self, acks: Iterable[LateAck]) -> None:
        self._flights = {
            group: {flight.position: flight for flight in group.session.flights.values()}
            for group in {ack.group for ack in acks}
        }

    def _end(self, commit: Commit, ack: LateAck) -> bool:
        """In the writer: end the message. Returns whether there was something to end."""
        group = ack.group
        if self._groups.get(group.text) is not group:
            return False
        place, message = ack.place, ack.message
        if place is not None:
            message = self._sent.name_at(place, ack.shard, self._node)
        elif message is not None and ack.member is not None:
            place = self._place_of(commit, message, group, ack.member)
        if place is None or not _may_receive(commit, message, group, ack.rights):
            return False
        name = Name(group.whose, place)
        row = at(commit.open_batch, name)
        ended = int(row is None or not row.is_dropped) and int(end(commit, name))
        flight = self._flights[group].get(place)
        if flight is not None and flight.fate != SETTLED:
            ended += group.session.ack(flight.packet_id) is not None
        horizon = self._horizon.position
        if place <= horizon or at_of(place) <= commit.open_batch.wall_ms:
            # A kill or a replay has removed it from the group's cursor, which would give it again. Nothing
            # later was ever sent.
            key = b"" if message is None else _key_of(commit, message)
            ended += group.session.finish_ahead(place, horizon, key)
        self._cursors.store(commit, group)
        return ended > 0

    def _place_of(
        self, commit: Commit, message: MessageId, group: Group, member: Subscriber
    ) -> Position | None:
        """The position of a due message that the group may have given the member; else None."""
        if member.groups.get(group.text) is not group:
            return None
        try:
            found = commit.find(message)
            if found is None or found.shard is None or is_stub(found.value):
                return None
            topic = decode(found.value).topic
        except Corrupt as error:
            log.error("late ack: message unreadable: %s", error)
            return None
        is_due = at_of(found.position) <= commit.open_batch.wall_ms
        is_theirs = matches(parse_share(group.text)[1], topic.decode()) and member.may_receive(topic)
        return found.position if is_due and is_theirs else None

    def _ended(self, ack: LateAck, is_ended: bool) -> None:
        """The end is durable."""
        self.finished += is_ended
        ack.answered(is_ended)
        self._groups.read_on(ack.group)

    def _not_ended(self, ack: LateAck, why: Exception) -> float | None:
        """The write failed: try again if the writer is at fault."""
        name = shown(ack.group.name)
        log.warning("%s: late ack cannot be written: %s", name, why, extra=by(name))
        answered, ack.answered = ack.answered, ignore
        answered(None)
        return RETRY_S if isinstance(why, Busy | StoreFailed) else None


def _may_receive(commit: Commit, message: MessageId | None, group: Group, rights: Rights | None) -> bool:
    """Whether these rights allow to receive a message, as its row says, or its retries and dead letters."""
    if rights is None or rights.may_receive_all(group.filter):
        return True
    if message is None:
        return False
    found = commit.find(message)
    topics = [] if found is None or is_stub(found.value) else [topic_of(found.value)]
    rows = of_message_in(commit.open_batch, message)
    topics += [topic_of(row.record) for row in rows if not row.is_dropped]
    return bool(topics) and all(map(rights.may_receive, topics))


def _key_of(commit: Commit, message: MessageId) -> bytes:
    """The ordering key of a message; empty: none, or it cannot be read."""
    try:
        found = commit.find(message)
        return b"" if found is None or is_stub(found.value) else decode(found.value).ordering_key
    except Corrupt:
        return b""
