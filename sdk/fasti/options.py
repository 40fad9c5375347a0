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
    the name of an endpoint that it is posted to, beside those who subscribe to its topic.
    """

    qos: Qos | None
    retain: bool | None
    expires_in: Span | None
    late: Late | None
    headers: Mapping[str, str] | None
    content_type: str | None
    deliver_to: str | None


class MessageOptions(Due, Sending, total=False):
    """Of one message: without `at` and `delay` it is due now.

    `key`: the same key and message again, also from another process, is the same message. `key_scope`: how
    long the key is taken, "kept" (the default: as long as its message is kept) or "pending" (free again as
    soon as nothing of its message is undone). `spread`: the server may choose a later moment within this
    span, the emptiest one.
    """

    key: Key | None
    key_scope: KeyScope | None
    spread: Span | None


class Timing(TypedDict, total=False):
    """When a schedule fires: one of `cron`, `every` and `rrule`.

    `timezone` is required for cron and rrule. `limit`: so many fires in all; `jitter`: each fire is later by
    up to this, always the same for it. `gap` and `overlap` say what becomes of a local time that the clocks
    skip or show twice.
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
    """Of a schedule. `misfire`: what becomes of fires while the server was down."""

    misfire: Misfire | None


class Selection(TypedDict, total=False):
    """Which messages: those of a topic filter, due in [`due_from`, `due_to`)."""

    topic: str | None
    due_from: When | None
    due_to: When | None


class Listed(Selection, total=False):
    """Which messages, pending ones unless `state` says otherwise ("all" for every one)."""

    state: State | None


class DeadSelection(TypedDict, total=False):
    """Which dead letters: those of a group or session, of a topic filter, died in [`died_from`, `died_to`).

    `group`: a group's name or a client id, or of a group `$share/{group}/{filter}`.
    """

    group: str | None
    topic: str | None
    died_from: When | None
    died_to: When | None


class RetrySelection(TypedDict, total=False):
    """Which retries: of a group or session, of a topic filter, next tried in [`retry_from`, `retry_to`).

    `group`: a group's name or a client id, or of a group `$share/{group}/{filter}`. `reason`: part of it.
    `id`, `key`: of one message, by its id or its idempotency key.
    """

    group: str | None
    topic: str | None
    reason: str | None
    id: str | None
    key: Key | None
    retry_from: When | None
    retry_to: When | None


class RetryOptions(TypedDict, total=False):
    """How often a message is tried, and when again. What is not said is the server's default.

    `max_attempts`: tries before it is a dead letter, 0: as many as it takes. `backoff`: how long to wait
    after the first, the second ... try; the last one repeats. Each wait is up to a fifth shorter or longer,
    so that what failed together does not come again together.
    """

    max_attempts: int | None
    backoff: Sequence[Span] | None


class SubscribeOptions(RetryOptions, total=False):
    """Of a subscription.

    `session`: a name under which the server keeps our place while we are away; two subscribers of one name
    push each other out. `group`: a name under which several subscribers share the messages; the server keeps
    its place, its members need no session. `expiry`: how long the place is kept with nobody there, as long as
    the server allows a session if not said; of a group also "never" or other text. `qos`: 1 if not said.
    `replay_from`: where a new subscription starts, an instant or how far back. `max_in_flight`: most messages
    handed over and not acked, 64 if not said.

    `ack_timeout`: what is neither acked nor extended for so long goes to another member of the group. `rate`:
    a group gets so many messages a second at most.
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
    """Of a group; what is not said is the server's default.

    `expiry`: how long its place is kept with nobody there, "never" (it stays until it is deleted) if not
    said. `ack_timeout`: what is neither acked nor extended
    for so long goes to another. `rate`: so many messages a second at most.
    """

    expiry: Span | None
    ack_timeout: Span | None
    rate: float | None


class EndpointOptions(TypedDict, total=False):
    """Of an endpoint; what is not said is the server's default.

    `secret`: `whsec_` and base64, what the requests are signed with; left out it stays as it was, "" takes it
    away. `headers`: added to each request.
    `concurrency`: so many requests at once; `rate`: so many a second; `timeout`: how long one may take;
    `retry`: how often a message is tried. `expiry`: as of a group.
    """

    secret: str | None
    headers: Mapping[str, str] | None
    concurrency: int | None
    rate: float | None
    timeout: Span | None
    retry: RetryOptions | None
    expiry: Span | None


def check(allowed: frozenset[str], options: Mapping[str, object]) -> None:
    """For a call that reads its options by name, and not by arguments. Raises TypeError for one too many."""
    if not options.keys() <= allowed:
        name = min(options.keys() - allowed)
        raise TypeError(f"got an unexpected keyword argument {name!r}")
