"""The keyword arguments of the calls, each named once.

Both clients and the command line take them as `**options: Unpack[MessageOptions]` and hand them on unread, so
that an option added here is there in all three. What it becomes on the wire is told in one place as well: in
`wire` for messages, in `schedules`, `ranges` and `subscribe`. A type checker knows each name and its type, in
a user's code too, and a wrong name raises TypeError. Each may be left out; where None is allowed it says the
same.

    async def remind(c: fasti.Client, order: int, **options: Unpack[MessageOptions]) -> fasti.Message:
        return await c.messages.schedule(f"orders/{order}/remind", {"id": order}, **options)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypedDict

from .wire import Key, KeyScope, Late, Qos, Span, When

Door = Literal["http", "mqtt"]
State = Literal["pending", "dispatched", "cancelled", "expired", "all"]
Gap = Literal["skip", "after", "before"]
Overlap = Literal["first", "second", "both"]
Misfire = Literal["fire_all", "fire_once", "skip"]


class Due(TypedDict, total=False):
    """When a message is due: `at`, or `delay` from now by the server's clock, not both."""

    at: When | None
    delay: Span | None


class Sending(TypedDict, total=False):
    """How a message is sent when it is due, a schedule's as well.

    `expires_in`: dropped if it is that long past due; `late`: what happens if the time has passed on arrival,
    "deliver" (the default) or "drop"; `headers`: its MQTT user properties; `deliver_to`: an `https://` URL or
    the name of an endpoint to which it is posted, in addition to its topic's subscribers.
    """

    qos: Qos | None
    retain: bool | None
    expires_in: Span | None
    late: Late | None
    headers: Mapping[str, str] | None
    content_type: str | None
    deliver_to: str | None


class MessageOptions(Due, Sending, total=False):
    """Options of a message. Without `at` and `delay` it is due now.

    `key`: a call with the same key and message, also from another process, is the same message. `key_scope`:
    how long the key is taken, "kept" (the default: as long as its message is kept) or "pending" (until its
    message is finished everywhere). `spread`: the server may choose a later moment within this span, the
    emptiest one.
    """

    key: Key | None
    key_scope: KeyScope | None
    spread: Span | None


class Timing(TypedDict, total=False):
    """When a schedule fires: one of `cron`, `every` and `rrule`.

    `timezone` is required for cron and rrule. `limit`: maximum number of fires; `jitter`: maximum random
    delay of each fire, always the same for one fire. `gap` and `overlap`: policy for a local time that does
    not exist or exists twice (DST).
    """

    cron: str | None
    every: Span | None
    rrule: str | None
    timezone: str | None
    start: When | None
    end: When | None
    limit: int | None
    jitter: Span | None
    gap: Gap | None
    overlap: Overlap | None


class ScheduleOptions(Timing, Sending, total=False):
    """Options of a schedule. `misfire`: policy for fires missed while the server was down."""

    misfire: Misfire | None


class Selection(TypedDict, total=False):
    """Selects messages by topic filter, due in [`due_from`, `due_to`)."""

    topic: str | None
    due_from: When | None
    due_to: When | None


class Listed(Selection, total=False):
    """Which messages, pending ones unless `state` says otherwise ("all" for every one)."""

    state: State | None


class DeadSelection(TypedDict, total=False):
    """Selects dead letters by group or session, by topic filter, died in [`died_from`, `died_to`).

    `group`: a group's name, `$share/{group}/{filter}`, or a client id.
    """

    group: str | None
    topic: str | None
    died_from: When | None
    died_to: When | None


class RetrySelection(TypedDict, total=False):
    """Selects retries by group or session, by topic filter, next tried in [`retry_from`, `retry_to`).

    `group`: a group's name, `$share/{group}/{filter}`, or a client id. `reason`: text that it contains. `id`,
    `key`: of one message, by its id or its idempotency key.
    """

    group: str | None
    topic: str | None
    reason: str | None
    id: str | None
    key: Key | None
    retry_from: When | None
    retry_to: When | None


class RetryOptions(TypedDict, total=False):
    """How often a message is tried, and when. Absent options have the server's defaults.

    `max_attempts`: tries before it becomes a dead letter; 0: no limit. `backoff`: waits after the first, the
    second ... try; the last one repeats. Each wait is up to a fifth shorter or longer, so that joint failures
    spread.
    """

    max_attempts: int | None
    backoff: Sequence[Span] | None


class SubscribeOptions(RetryOptions, total=False):
    """Options of a subscription.

    `session`: name under which the server keeps our read position while we are away; two subscribers with one
    name disconnect each other. `group`: name under which several subscribers share the messages; the server
    keeps its read position, its members need no session. `expiry`: how long the read position is kept without
    subscribers, by default the server's maximum for sessions; for a group also "never" or other text. `qos`:
    default 1. `replay_from`: where a new subscription starts, an instant or how far back. `max_in_flight`:
    maximum unacked messages, default 64.

    `ack_timeout`: a message that is neither acked nor extended for this time goes to another member of the
    group. `rate`: maximum messages a second for the group.
    """

    session: str | None
    group: str | None
    qos: Qos
    replay_from: When | timedelta | None
    max_in_flight: int
    expiry: Span | None
    ack_timeout: Span | None
    rate: float | None


class GroupOptions(RetryOptions, total=False):
    """Options of a group. Absent options have the server's defaults.

    `expiry`: how long it is kept without members, default "never" (until it is deleted). `ack_timeout`: a
    message that is neither acked nor extended for this time goes to another member. `rate`: maximum messages
    a second.
    """

    expiry: Span | None
    ack_timeout: Span | None
    rate: float | None


class EndpointOptions(TypedDict, total=False):
    """Options of an endpoint. Absent options have the server's defaults.

    `secret`: signs the requests, `whsec_` and base64; if absent it stays as it was, "" removes it. `headers`:
    added to each request. `concurrency`: maximum concurrent requests; `rate`: maximum requests a second;
    `timeout`: maximum time of one; `retry`: how often a message is tried. `expiry`: as for a group.
    """

    secret: str | None
    headers: Mapping[str, str] | None
    concurrency: int | None
    rate: float | None
    timeout: Span | None
    retry: RetryOptions | None
    expiry: Span | None


def check(allowed: frozenset[str], options: Mapping[str, object]) -> None:
    """Check the option names of a call. Raises TypeError for an unknown one."""
    if not options.keys() <= allowed:
        name = min(options.keys() - allowed)
        raise TypeError(f"got an unexpected keyword argument {name!r}")
