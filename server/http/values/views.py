"""How the server's things are shown: messages with their state, slices, shards, sessions, positions.

A message's state is stored nowhere. It follows from where its row stands and what is in it:

    a stub that a cancel left                        cancelled
    in the table `held`, or beyond the horizon       pending
    else                                             dispatched, or expired if dispatch gave it to nobody:
                                                     its time to live, counted from its due, was over, or
                                                     it was to be dropped if late, and was

When dispatch came to it stands in the journal of dispatch turns, a little later than it happens; until then
the writer knows it. A view is a dict for the JSON encoder; a payload that came as JSON goes out as the bytes
that came.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from shards import keys
from shards.borrow import Counts
from shards.fate import is_dropped
from shards.read import Reader
from shards.record import ENCODINGS, Record, schedule_name
from shards.store import Store, Table
from shards.tables import wall_from
from timeline.position import MessageId, Position, at_of, id_text, seq_of
from timeline.slices import Shard, Slice

from ...codec.properties import Properties, decode_properties
from ...config import Shards
from ...delivery.shared import Group
from ...delivery.subscriber import Subscriber
from ...times import INSTANT_MS_MAX, format_ms
from . import shapes
from .message_body import Encoding
from .scalars import State

PENDING: Final = "pending"
DISPATCHED: Final = "dispatched"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
STATES: tuple[State, ...] = (PENDING, DISPATCHED, CANCELLED, EXPIRED)


def time_text(at_ms: int) -> str:
    return format_ms(min(at_ms, INSTANT_MS_MAX))


def etag(row: MessageId) -> str:
    """Names the row that a message is in: another one after each move."""
    return f'"{row:032x}"'


# -- messages


class Journal:
    """When messages were dispatched, asked in rising order of position: one scan for a whole page."""

    def __init__(self, store: Store, latest: Callable[[Position], int | None]) -> None:
        """`latest`: asked for what the scan does not have."""
        self._store = store
        self._latest = latest
        self._turn: tuple[Position, int] | None = None
        self._turns: Iterator[tuple[bytes, bytes]] = iter(())
        self._is_open = False

    def dispatched_ms(self, place: Position) -> int | None:
        """Wall ms of the dispatch turn that passed `place`; None if nobody knows it (any more)."""
        if not self._is_open:
            self._turns = self._store.scan(Table.DISPATCHES, keys.place(place), keys.LAST)
            self._is_open = True
            self._next()
        while self._turn is not None and self._turn[0] < place:
            self._next()
        return self._turn[1] if self._turn is not None else self._latest(place)

    def _next(self) -> None:
        row = next(self._turns, None)
        self._turn = None if row is None else (keys.place_of(row[0]), wall_from(row[1]))


def state_of(
    place: Position, record: Record, horizon: Position, journal: Journal, *, is_held: bool
) -> tuple[State, int | None]:
    """(state, when dispatch came to it if that is known). Not for what a move left."""
    if record.stub:
        return CANCELLED, None
    if is_held or place > horizon:
        return PENDING, None
    dispatched_ms = journal.dispatched_ms(place)
    if record.expires_ms or record.drop_late:
        passed_ms = at_of(place) if dispatched_ms is None else dispatched_ms
        if is_dropped(record, due_of_row(place, record), passed_ms):
            return EXPIRED, dispatched_ms
    return DISPATCHED, dispatched_ms


def due_of_row(place: Position, record: Record) -> int:
    """The due that was asked for; of a plain publish, when it came."""
    return record.due_ms or at_of(place)


def message_view(
    message: MessageId, place: Position, record: Record, state: State, dispatched_ms: int | None
) -> shapes.Message:
    """A message as it came in, with what became of it."""
    view: shapes.Message = {
        "id": id_text(message),
        "topic": record.topic.decode(),
        "deliver_at": time_text(due_of_row(place, record)),
        "state": state,
        "qos": record.qos,
    }
    if record.zone:
        view["local"] = record.zone.decode()
    if (schedule := schedule_name(record)) is not None:
        view["schedule"] = schedule
    if dispatched_ms is not None:
        view["dispatched_at"] = time_text(dispatched_ms)
    if record.stub:
        view["cancelled_at"] = time_text(record.when_ms)
    else:
        view["payload"], view["encoding"] = _payload(record)
    if record.retain:
        view["retain"] = True
    if record.drop_late:
        view["late"] = "drop"
    if record.expires_ms:
        seconds, rest = divmod(record.expires_ms, 1_000)
        view["expires_in"] = record.expires_ms / 1_000 if rest else seconds
    if record.publisher:
        view["publisher"] = record.publisher.decode("utf-8", "replace")
    if record.properties:
        _add_properties(view, record.properties)
    return view


def _payload(record: Record) -> tuple[object, Encoding]:
    """As it came in; what is said to be text and is not (a plain publish can be anything) as base64."""
    encoding: Encoding = ENCODINGS[record.encoding]
    if encoding == "json":
        return msgspec.Raw(record.payload), encoding
    if encoding == "text":
        try:
            return record.payload.decode(), encoding
        except UnicodeDecodeError:
            pass
    return b64encode(record.payload).decode(), "base64"


def _add_properties(view: shapes.Message, encoded: bytes) -> None:
    properties = decode_properties(encoded) or Properties()
    if properties.content_type:
        view["content_type"] = properties.content_type
    if properties.user_properties:
        view["headers"] = dict(properties.user_properties)


# -- the timeline


def position_view(place: Position) -> shapes.Position:
    return {"at": time_text(at_of(place)), "seq": seq_of(place)}


def slice_numbers(piece: Slice, borrowed: Counts, is_exact: bool, reader: Reader) -> shapes.SliceNumbers:
    """`borrowed`: what it holds of borrowed shards; `is_exact`: if all of it has been counted."""
    unreadable = sum(len(reader.unreadable.of(shard.prefix)) for shard in piece.readable())
    return {
        "start": time_text(piece.start_ms),
        "end": time_text(piece.end_ms),
        "generation": piece.generation,
        "count": piece.count + borrowed.rows,
        "live": piece.live + borrowed.live,
        "bytes": piece.bytes + borrowed.bytes,
        "count_is_exact": is_exact,
        "borrowed": len(piece.borrowed),
        "unreadable": unreadable,
    }


def shard_view(piece: Slice, shard: Shard, caps: Shards, reader: Reader, clock_ms: int) -> shapes.Shard:
    """A shard as it stands when the horizon's clock shows `clock_ms`."""
    is_borrowed = piece.borrowed.get(shard.number) is shard
    is_sealed = (
        is_borrowed
        or piece.newest.get(shard.structure) is not shard
        or shard.count >= caps.cap_messages
        or shard.bytes >= caps.cap_bytes
        or clock_ms >= piece.end_ms
    )
    return {
        "shard": shard.number,
        "structure": reader.structures.pattern(shard.structure),
        "count": shard.count,
        "live": shard.live,
        "bytes": shard.bytes,
        "cap": caps.cap_messages,
        "cap_bytes": caps.cap_bytes,
        "first": position_view(shard.first) if shard.count else None,
        "last": position_view(shard.last) if shard.count else None,
        "borrowed": is_borrowed,
        "sealed": is_sealed,
        "unreadable": [
            {"first": position_view(stretch.first), "last": position_view(stretch.last)}
            for stretch in reader.unreadable.of(shard.prefix)
        ],
    }


# -- sessions


def session_view(subscriber: Subscriber, lag: shapes.Lag, horizon: Position) -> shapes.Session:
    """`lag`: the members that say how far it is behind."""
    session = subscriber.session
    view: shapes.Session = {
        "client_id": session.client_id,
        "connected": subscriber.is_reachable,
        "expiry_s": session.expiry_s,
        "subscriptions": [
            {"filter": s.filter, "qos": s.qos, "since": time_text(at_of(s.since))}
            for s in session.subscriptions.values()
        ],
        "read_position": position_view(session.read_at(horizon)),
        "lag_messages": lag["lag_messages"],
        "lag_messages_is_exact": lag["lag_messages_is_exact"],
        "lag_seconds": lag["lag_seconds"],
        "in_flight": len(session.flights),
        "delivered": subscriber.delivered,
    }
    if isinstance(subscriber, Group):
        view["client_id"] = subscriber.text
        ordered = sorted(subscriber.members, key=lambda member: member.session.client_id)
        view["members"] = members = [_member_view(subscriber, member) for member in ordered]
        # Its own flights are those of QoS 1, with what waits for another member among them.
        view["in_flight"] = len(subscriber.session.resends) + sum(member["in_flight"] for member in members)
    elif subscriber.link is not None:
        view["connected_at"] = time_text(subscriber.connected_ms)
    elif subscriber.left_ms:
        view["left_at"] = time_text(subscriber.left_ms)
    return view


def _member_view(group: Group, member: Subscriber) -> shapes.Member:
    return {
        "client_id": member.session.client_id,
        "connected": member.link is not None,
        "qos": group.members[member].qos,
        "in_flight": group.held_by(member),
    }
