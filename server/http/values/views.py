"""Views of messages with their state, slices, shards, sessions and positions.

A message's state follows from its row (shards/state.py). A view is a dict for the JSON encoder; a JSON
payload goes out as the bytes that came.
"""

from typing import NamedTuple

from shards.fields import Record
from shards.properties import headers_of
from shards.read import Reader
from shards.record import ENCODINGS, due_at, schedule_name
from shards.state import State
from timeline.filters import parse_share
from timeline.position import MessageId, Position, at_of, id_text, seq_of
from timeline.slices import Shard, Slice

from ...delivery.deliveries import Delivery
from ...delivery.payloads import payload_view
from ...delivery.place import Place
from ...delivery.shared import Group
from ...delivery.subscriber import Subscriber
from ...delivery.terms import NEVER_S
from ...delivery.tries import try_view
from ...settings.config import Shards
from ...settings.times import INSTANT_MS_MAX, format_ms
from . import shapes


def time_text(at_ms: int) -> str:
    return format_ms(min(at_ms, INSTANT_MS_MAX))


def etag(row: MessageId) -> str:
    """Names the row that holds a message; each move gives another."""
    return f'"{row:032x}"'


# -- messages


def message_view(
    message: MessageId, place: Position, record: Record, state: State, dispatched_ms: int | None
) -> shapes.Message:
    """A message as sent, and its state."""
    view: shapes.Message = {
        "id": id_text(message),
        "topic": record.topic.decode(),
        "deliver_at": time_text(due_at(place, record.due_ms)),
        "state": state,
        "qos": record.qos,
    }
    if record.deliver_to:
        view["deliver_to"] = record.deliver_to.decode("utf-8", "replace")
    if record.ordering_key:
        view["ordering_key"] = record.ordering_key.decode("utf-8", "replace")
    if record.zone:
        view["local"] = record.zone.decode()
    if (schedule := schedule_name(record)) is not None:
        view["schedule"] = schedule
    if dispatched_ms is not None:
        view["dispatched_at"] = time_text(dispatched_ms)
    if record.stub:
        view["cancelled_at"] = time_text(record.when_ms)
    else:
        view["payload"], view["encoding"] = payload_view(record.payload, ENCODINGS[record.encoding])
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


def delivery_view(delivery: Delivery) -> shapes.Delivery:
    """Delivery state of a message in one session or group."""
    view: shapes.Delivery = {"state": delivery.state}
    if delivery.filter is None:
        view["session"] = delivery.name
    else:
        view["group"], view["filter"] = delivery.name, delivery.filter
    if delivery.attempts is not None:
        view["attempts"] = delivery.attempts
    if delivery.retry_ms is not None:
        view["retry_at"] = time_text(delivery.retry_ms)
    if delivery.reason:
        view["reason"] = delivery.reason
    if delivery.by:
        view["by"] = delivery.by
    if delivery.until_ms is not None:
        view["lease_until"] = time_text(delivery.until_ms)
    if delivery.tries:
        view["tries"] = [try_view(one) for one in delivery.tries]
    return view


def _add_properties(view: shapes.Message, encoded: bytes) -> None:
    headers, content_type = headers_of(encoded)
    if content_type:
        view["content_type"] = content_type
    if headers:
        view["headers"] = dict(headers)


# -- the timeline


def position_view(place: Position) -> shapes.Position:
    return {"at": time_text(at_of(place)), "seq": seq_of(place)}


def slice_numbers(piece: Slice, reader: Reader) -> shapes.SliceNumbers:
    unreadable = sum(len(reader.unreadable.of(shard.prefix)) for shard in piece.readable())
    return {
        "start": time_text(piece.start_ms),
        "end": time_text(piece.end_ms),
        "generation": piece.generation,
        "count": piece.count,
        "live": piece.live,
        "bytes": piece.bytes,
        "count_is_exact": True,
        "borrowed": len(piece.borrowed),
        "unreadable": unreadable,
    }


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
            {"first": position_view(corrupt.first), "last": position_view(corrupt.last)}
            for corrupt in reader.unreadable.of(shard.prefix)
        ],
    }


# -- sessions


class Progress(NamedTuple):
    """Read position of a place and its unfinished messages, as of `horizon`."""

    lag: shapes.Lag
    undone: shapes.Undone
    dead_letters: int
    horizon: Position


def place_view(place: Place, progress: Progress) -> shapes.PlaceShown:
    """The fields that sessions, groups and endpoints share."""
    session = place.session
    view: shapes.PlaceShown = {
        "name": place.name,
        "position": position_view(session.read_at(progress.horizon)),
        "lag_messages": progress.lag["lag_messages"],
        "lag_messages_is_exact": progress.lag["lag_messages_is_exact"],
        "lag_seconds": progress.lag["lag_seconds"],
        "in_flight": len(session.flights),
        "delivered": place.delivered,
        "failed": place.failed,
        "undone": progress.undone,
        "dead_letters": progress.dead_letters,
        "expiry": expiry_view(session.expiry_s),
        "incarnation": place.incarnation,
    }
    if place.presence.left_ms:
        view["left_at"] = time_text(place.presence.left_ms)
    return view


def session_view(subscriber: Place, progress: Progress) -> shapes.Session:
    place = place_view(subscriber, progress)
    since: shapes.Connected = {}
    if isinstance(subscriber, Subscriber) and subscriber.link is not None:
        since = {"connected_at": time_text(subscriber.presence.connected_ms)}
    return {
        **place,
        **since,
        "client_id": subscriber.session.client_id,
        "connected": subscriber.is_here,
        "expiry_s": place["expiry"],
        "subscriptions": [
            {"filter": s.filter, "qos": s.qos, "since": time_text(at_of(s.since))}
            for s in subscriber.session.subscriptions.values()
        ],
        "read_position": place["position"],
    }


def expiry_view(expiry_s: int) -> shapes.Expiry:
    return "never" if expiry_s >= NEVER_S else expiry_s


def keeping_view(group: Group) -> shapes.Keeping:
    kept = group.keeping
    return {
        "rate": kept.rate or 0.0,
        "order": bool(kept.order),
        "on_dead": group.on_dead,
        "per_key": {"concurrency": kept.concurrency or 0, "rate": kept.key_rate or 0.0},
        "fair": bool(kept.fair),
        "keys_held": len(group.session.order.held),
    }


def retry_view(group: Group) -> shapes.Retry:
    terms = group.in_force
    return {
        "max_attempts": terms.max_attempts,
        "backoff": [step_ms / 1_000 for step_ms in terms.backoff_ms],
    }


def group_view(group: Group, progress: Progress) -> shapes.Group:
    ordered = sorted(group.members, key=lambda member: member.session.client_id)
    members = [_member_view(group, member) for member in ordered]
    return {
        **place_view(group, progress),
        "filter": parse_share(group.text)[1],
        "state": "paused" if group.is_paused else "active",
        "members": members,
        # Its own flights are those of QoS 1, including those that wait for another member.
        "in_flight": len(group.session.resends) + sum(member["in_flight"] for member in members),
        "ack_timeout": group.in_force.ack_timeout_ms / 1_000,
        **retry_view(group),
        **keeping_view(group),
    }


def _member_view(group: Group, member: Subscriber) -> shapes.Member:
    return {
        "client_id": member.session.client_id,
        "connected": member.link is not None,
        "qos": group.members[member].qos,
        "in_flight": len(group.lent.get(member, ())),
    }
