"""Answers made of messages, slices, shards, sessions and positions.

A message's state follows from its row (shards/state.py). A JSON payload goes out as the bytes that came.
"""

from typing import Any, NamedTuple, TypeVar

from msgspec import UNSET
from msgspec.structs import asdict

from shards.fields import Record
from shards.properties import headers_of
from shards.read import Reader
from shards.record import ENCODINGS, due_at, schedule_name
from shards.state import State
from timeline.filters import parse_share
from timeline.position import MessageId, Position, at_of, id_text, seq_of
from timeline.slices import Shard, Slice

from ...delivery.payloads import payload_view
from ...delivery.place import Place
from ...delivery.shared import Group
from ...delivery.subscriber import Subscriber
from ...delivery.terms import KEEP_FAILED, KEEP_WORDS, Keeping
from ...settings.config import Shards
from ...settings.times import time_text
from . import shapes

M = TypeVar("M", bound=shapes.Message)
G = TypeVar("G", bound=shapes.Group)
KEPT_AS = {keep_ms: word for word, keep_ms in KEEP_WORDS.items()}


def etag(row: MessageId) -> str:
    """Names the row that holds a message; each move gives another."""
    return f'"{row:032x}"'


# -- messages


class Shown(NamedTuple):
    """A message as it is shown; where its row is, and that row's name."""

    view: shapes.MessageShown
    message: MessageId
    place: Position
    record: Record
    row: MessageId


def message_view(
    shape: type[M],
    message: MessageId,
    place: Position,
    record: Record,
    state: State,
    dispatched_ms: int | None = None,
    **more: Any,
) -> M:
    """A message as sent, and its state; `more`: the further fields of the shape."""
    due = time_text(due_at(place, record.due_ms))
    view = shape(id_text(message), record.topic.decode(), due, state, record.qos, **more)
    if record.deliver_to:
        view.deliver_to = record.deliver_to.decode("utf-8", "replace")
    if record.ordering_key:
        view.ordering_key = record.ordering_key.decode("utf-8", "replace")
    if record.zone:
        view.local = record.zone.decode()
    if (schedule := schedule_name(record)) is not None:
        view.schedule = schedule
    if dispatched_ms is not None:
        view.dispatched_at = time_text(dispatched_ms)
    if record.stub:
        view.cancelled_at = time_text(record.when_ms)
    else:
        view.payload, view.encoding = payload_view(record.payload, ENCODINGS[record.encoding])
    if record.retain:
        view.retain = True
    if record.drop_late:
        view.late = "drop"
    if record.expires_ms:
        seconds, rest = divmod(record.expires_ms, 1_000)
        view.expires_in = record.expires_ms / 1_000 if rest else seconds
    if record.publisher:
        view.publisher = record.publisher.decode("utf-8", "replace")
    if record.properties:
        headers, content_type = headers_of(record.properties)
        view.headers, view.content_type = dict(headers) or UNSET, content_type or UNSET
    return view


# -- the timeline


def position_view(place: Position) -> shapes.Position:
    return shapes.Position(time_text(at_of(place)), seq_of(place))


def slice_fields(piece: Slice, reader: Reader) -> dict[str, Any]:
    """The fields of a slice, with or without its shards (shapes.SliceNumbers)."""
    return asdict(
        shapes.SliceNumbers(
            start=time_text(piece.start_ms),
            end=time_text(piece.end_ms),
            generation=piece.generation,
            count=piece.count,
            live=piece.live,
            bytes=piece.bytes,
            count_is_exact=True,
            borrowed=len(piece.borrowed),
            unreadable=sum(len(reader.unreadable.of(shard.prefix)) for shard in piece.readable()),
        )
    )


def shard_view(piece: Slice, shard: Shard, caps: Shards, reader: Reader, clock_ms: int) -> shapes.Shard:
    """A shard when the horizon's clock shows `clock_ms`."""
    is_borrowed = piece.borrowed.get(shard.number) is shard
    is_sealed = (
        is_borrowed
        or piece.newest.get(shard.structure) is not shard
        or shard.count >= caps.cap_messages
        or shard.bytes >= caps.cap_bytes
        or clock_ms >= piece.end_ms
    )
    return shapes.Shard(
        shard=shard.number,
        structure=reader.structures.pattern(shard.structure),
        count=shard.count,
        live=shard.live,
        bytes=shard.bytes,
        cap=caps.cap_messages,
        cap_bytes=caps.cap_bytes,
        first=position_view(shard.first) if shard.count else None,
        last=position_view(shard.last) if shard.count else None,
        borrowed=is_borrowed,
        sealed=is_sealed,
        unreadable=[
            shapes.CorruptRange(position_view(corrupt.first), position_view(corrupt.last))
            for corrupt in reader.unreadable.of(shard.prefix)
        ],
    )


# -- sessions


def session_view(subscriber: Place, client_id: str, place_status: shapes.PlaceStatus) -> shapes.Session:
    is_connected = isinstance(subscriber, Subscriber) and subscriber.link is not None
    return shapes.Session(
        **asdict(place_status),
        client_id=client_id,
        connected=subscriber.is_here,
        connected_at=time_text(subscriber.presence.connected_ms) if is_connected else UNSET,
        expiry_s=place_status.expiry,
        subscriptions=[
            shapes.Subscription(s.filter, s.qos, time_text(at_of(s.since)))
            for s in subscriber.session.subscriptions.values()
        ],
        read_position=place_status.position,
    )


def keep_view(kept: Keeping) -> str | float:
    """What a place keeps: a word, or seconds."""
    keep_ms = KEEP_FAILED if kept.keep_ms is None else kept.keep_ms
    return KEPT_AS.get(keep_ms, keep_ms / 1_000)


def group_fields(group: Group, place_status: shapes.PlaceStatus) -> dict[str, Any]:
    """The fields that groups and endpoints share."""
    kept = group.keeping
    return asdict(place_status) | {
        "rate": kept.rate or 0.0,
        "order": bool(kept.order),
        "on_dead": group.on_dead,
        "per_key": shapes.PerKey(kept.concurrency or 0, kept.key_rate or 0.0),
        "fair": bool(kept.fair),
        "keep": keep_view(kept),
        "result_ttl": kept.result_ms / 1_000,
        "alerts": kept.alerts or None,
        "keys_held": len(group.session.order.held),
    }


def retry_view(group: Group) -> shapes.Retry:
    terms = group.in_force
    return shapes.Retry(terms.max_attempts, [step_ms / 1_000 for step_ms in terms.backoff_ms])


def group_view(shape: type[G], group: Group, place_status: shapes.PlaceStatus) -> G:
    ordered = sorted(group.members, key=lambda member: member.session.client_id)
    members = [_member_view(group, member) for member in ordered]
    fields = group_fields(group, place_status)
    # Its own flights are those of QoS 1, including those that wait for another member.
    fields["in_flight"] = len(group.session.resends) + sum(member.in_flight for member in members)
    return shape(
        **fields,
        **asdict(retry_view(group)),
        filter=parse_share(group.text)[1],
        state="paused" if group.is_paused else "active",
        members=members,
        ack_timeout=group.in_force.ack_timeout_ms / 1_000,
    )


def _member_view(group: Group, member: Subscriber) -> shapes.Member:
    return shapes.Member(
        client_id=member.session.client_id,
        connected=member.link is not None,
        qos=group.members[member].qos,
        in_flight=len(group.lent.get(member, ())),
    )
