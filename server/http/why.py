"""Why a message was delivered, or was not: sentences for people, in the order of what happened, and what it
waits for. They are made of the answer of `GET /v1/messages/{id}`, so they say no more than that shows, and of
the groups that it names. All templates are here; a test reads them, and reaches each.
"""

from collections.abc import Iterator
from itertools import chain

from msgspec import UnsetType

from shards.fields import Record
from timeline.filters import SHARE_PREFIX
from timeline.key_rows import NOWHERE
from timeline.position import Position, at_of, id_position

from ..delivery.deliveries import Delivery
from ..delivery.membership import Membership
from ..delivery.shared import ENDPOINT_PREFIX, Group
from ..settings.times import format_ms
from .values import shapes
from .values.views import Shown, keep_view

SENTENCES = {
    "sent": "It was to be due at {first}.",
    "sent_by": "API key '{owner}' sent it, to be due at {first}.",
    "fired": "The schedule '{schedule}' sent it, to be due at {first}.",
    "moved": "It was moved to {due}.",
    "released": "It was withheld until {placed}, when its sender could send it again.",
    "cancelled": "It was cancelled at {at}: nobody gets it.",
    "expired": "It was dropped at {at}: its time to live was over, or it was late with `late: drop`.",
    "withheld": "It was due, and nobody is given it: {why}.",
    "dispatched": "It was dispatched at {at}.",
    "unclaimed": "Nothing was to get it: no group, endpoint or session that is there now.",
    "untold": "{who}: of {count} earlier tries nothing is known.",
    "tried": "{who}: a try of {by} ended at {at}{after}, {outcome}: {reason}.",
    "running": "{who}: {by} has it, try {number}.",
    "queued": "{who}: it was not given yet.",
    "retrying": "{who}: it comes again.",
    "withheld_there": "{who}: it is withheld: {why}.",
    "dead": "{who}: it is a dead letter after {number} tries: {reason}.",
    "dropped": "{who}: it was dropped undone, and is no dead letter.",
    "done": "{who}: {by} was done with it at {at}{after}, try {number}{answer}.",
    "not_kept": "{who}: it is done, or was not to be sent any more. Not kept: keep is {keep}.",
    "elsewhere": "At a place that is not listed (a session, or not this key's to see) it is {outcome}.",
    "more": "There are more places, which are not listed.",
}
WAITS = {
    "due": "its due time, {due}",
    "dispatch": "dispatch, which has come to {at}",
    "clock": "the clock, which was set back, to reach {placed}",
    "owner": "the right of its sender: {why}",
    "answer": "{who}: the answer of {by}",
    "lease": "{who}: the answer of {by}, or the end of its lease at {until}",
    "try": "{who}: the next try at {at}",
    "paused": "{who}: paused",
    "nobody": "{who}: no worker is connected or asks for messages{since}",
    "draining": "{who}: the server drains, and gives out nothing new",
    "key_held": "{who}: the ordering key '{key}' is held",
    "key_head": "{who}: the message of {head}, which is before it under the ordering key '{key}'",
    "key_out": "{who}: those before it under the ordering key '{key}', or its rate",
    "rate": "{who}: its rate of {rate} messages a second",
    "room": "{who}: its workers have as many messages as they take; {count} are in flight",
    "turn": "{who}: its turn; the group has read to {at}",
}
OUTCOMES = {
    "in_flight": "running",
    "withheld": "withheld",
    "retry": "retrying",
    "waiting": "retrying",
    "dead": "failed",
    "dropped": "dropped",
    "done": "done",
}
"""Of a delivery, by its state, if it was tried."""
Said = Iterator[tuple[str, dict[str, object]]]
"""Names of templates, and what stands in them."""


def why_of(shown: Shown, groups: Membership, horizon: Position, wall_ms: int) -> shapes.Why:
    """The sentences, and what it waits for."""
    sentences, waits = list[str](), list[str]()
    of_each = [_of_delivery(one, shown, groups) for one in shown.view.deliveries or ()]
    for name, fields in chain(_of_message(shown, horizon, wall_ms), *of_each, _of_others(shown.view)):
        if name in WAITS:
            waits.append(WAITS[name].format(**fields))
        else:
            sentences.append(SENTENCES[name].format(**fields))
    return shapes.Why(sentences, "; ".join(dict.fromkeys(waits)) or None)


def _of_message(shown: Shown, horizon: Position, wall_ms: int) -> Said:
    view, message, place, record, _ = shown
    was, due, placed = id_position(message), view.deliver_at, format_ms(at_of(place))
    first = format_ms(at_of(was)) if place != was else due
    owner = record.owner.decode(errors="replace")
    sent = "fired" if view.schedule else "sent_by" if owner else "sent"
    yield sent, {"schedule": view.schedule, "owner": owner, "first": first}
    if place != was:
        yield "moved" if due != first else "released", {"due": due, "placed": placed}
    why = view.withheld_by or "it may send it now"
    match view.state:
        case "cancelled":
            yield "cancelled", {"at": view.cancelled_at}
        case "expired" | "dispatched":
            yield view.state, {"at": view.dispatched_at or placed}
        case "withheld":
            yield "withheld", {"why": why}
            yield "owner", {"why": why}
        case _:
            is_over = at_of(place) <= wall_ms  # one that dispatch has passed is held
            waits = "clock" if place <= horizon else "dispatch" if is_over else "due"
            yield waits, {"due": due, "placed": placed, "at": format_ms(at_of(horizon))}


def _of_delivery(one: Delivery, shown: Shown, groups: Membership) -> Said:
    who, text = f"session '{one.session}'", str(one.group or "")
    if text.startswith(ENDPOINT_PREFIX):
        who = f"endpoint '{text.removeprefix(ENDPOINT_PREFIX)}'"
    elif text:
        who, text = f"group '{text}'", f"{SHARE_PREFIX}{text}/{one.filter}"
    group = groups.get(text)
    tries, number = one.tries or [], one.attempts or 0
    ended = number - (one.state in ("in_flight", "done"))
    fields: dict[str, object] = {"who": who, "number": number, "by": one.by or one.session or "somebody"}
    fields |= {"reason": one.reason or "not known", "answer": f": {one.answer}" if one.answer else ""}
    fields |= {"after": _after(one.seconds), "until": one.lease_until, "at": one.retry_at or one.ended_at}
    if ended > len(tries):
        yield "untold", {"who": who, "count": ended - len(tries)}
    for each in tries:
        own = {"by": each.by or "somebody", "at": each.at, "reason": each.reason, "outcome": each.outcome}
        yield "tried", {"who": who, "after": _after(each.seconds), **own}
    match one.state:
        case "in_flight":
            yield "running", fields
            yield "lease" if one.lease_until else "answer", fields
        case "retry":
            yield outcome_of(one), fields
            yield "try", fields
        case "withheld":
            yield "withheld_there", {**fields, "why": one.withheld_by or "it comes now"}
            yield "owner", {"why": one.withheld_by or "it may send it now"}
        case "waiting":
            yield outcome_of(one), fields
            if group is not None:
                name, more = _hindrance(group, shown.place, shown.record)
                yield name, {"who": who, **more}
        case "done" if not one.ended_at:
            yield "not_kept", {"who": who, "keep": "none" if group is None else keep_view(group.keeping)}
        case _:
            yield one.state, fields


def _hindrance(group: Group, place: Position, record: Record) -> tuple[str, dict[str, object]]:
    """Why a group is not given a message that waits for it."""
    session, order, limiter = group.session, group.session.order, group.rate_limiter
    if group.is_paused:
        return "paused", {}
    key = order.key_of(record.ordering_key) if order.is_on and record.ordering_key else b""
    row, name = order.find(key) if key else None, record.ordering_key.decode(errors="replace")
    if row is not None and row.is_held:
        return "key_held", {"key": name}
    if not group.is_here:
        left_ms = group.presence.left_ms
        return "nobody", {"since": f", since {format_ms(left_ms)}" if left_ms else ""}
    if not group.is_reachable:
        return "draining", {}
    if row is not None and row.root not in (NOWHERE, place):
        return "key_head", {"key": name, "head": format_ms(at_of(row.root))}
    is_free = row is not None and (row.root == place or (row.next == place and key in order.free))
    if key and not is_free and (row is not None or order.out.get(key)):
        return "key_out", {"key": name}
    if limiter is not None and not limiter.has_token:
        return "rate", {"rate": group.keeping.rate}
    if group.find_room() <= 0:
        busy = len(session.flights)
        return ("room", {"count": busy}) if busy else ("nobody", {"since": ""})
    return "turn", {"at": format_ms(at_of(session.read_at(place)))}


def _of_others(view: shapes.MessageShown) -> Said:
    """What is not listed, and counts."""
    seen = {outcome_of(one) for one in view.deliveries or ()}
    seen |= {"done" for one in view.deliveries or () if one.session}
    if view.outcome == "unclaimed":
        yield "unclaimed", {}
    elif view.state == "dispatched" and view.outcome not in seen:
        yield "elsewhere", {"outcome": view.outcome}
    if view.deliveries_truncated:
        yield "more", {}


def outcome_of(one: Delivery) -> str:
    """The outcome of a delivery."""
    return "queued" if one.state in ("waiting", "retry") and not one.attempts else OUTCOMES[one.state]


def _after(seconds: float | UnsetType | None) -> str:
    return f" after {seconds:g} s" if seconds else ""
