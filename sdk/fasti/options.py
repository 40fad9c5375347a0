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
Outcome = Literal["failed", "retrying", "withheld", "done"]
State = Literal["pending", "dispatched", "cancelled", "expired", "withheld", "all"]
Body = Literal["raw", "envelope"]
OnDead = Literal["next", "hold"]
Gap = Literal["skip", "after", "before"]
Overlap = Literal["first", "second", "both"]
Misfire = Literal["fire_all", "fire_once", "skip"]
DEFAULTS: Mapping[str, int] = {"qos": 1, "max_in_flight": 64}
"""Of a subscription's options that are never None."""


class Due(TypedDict, total=False):
    """When a message is due: `at` or `delay`, not both.

    `at`: an aware datetime, or text: RFC 3339, or local time with its zone,
        `2027-03-28T09:00[Europe/Bucharest]`.
    `delay`: from now by the server's clock: a timedelta, seconds, or text such as `15m`, `3d`, `PT15M`.
    """

    at: When | None
    delay: Span | None


class Sending(TypedDict, total=False):
    """How a message is sent when it is due, a schedule's as well.

    `qos`: MQTT quality of service to subscribers: 0, 1 (the default) or 2.
    `retain`: the topic keeps it as its retained message once it is due.
    `expires_in`: it is dropped if it is that long past due.
    `late`: what happens if the time has passed on arrival: "deliver" (the default) or "drop".
    `headers`: its MQTT user properties, by name.
    `content_type`: media type of the payload, such as `application/json`.
    `deliver_to`: an `https://` URL or the name of an endpoint to which it is posted, in addition to its
        topic's subscribers.
    `ordering_key`: what it belongs to, such as a customer: up to 128 bytes, shown with each delivery.
    """

    qos: Qos | None
    retain: bool | None
    expires_in: Span | None
    late: Late | None
    headers: Mapping[str, str] | None
    content_type: str | None
    deliver_to: str | None
    ordering_key: str | None


class MessageOptions(Due, Sending, total=False):
    """Options of a message. Without `at` and `delay` it is due now.

    `key`: idempotency key: a call with the same key and message, also from another process, is the same
        message.
    `key_scope`: how long the key is taken: "kept" (the default: as long as its message is kept) or "pending"
        (until its message is finished everywhere).
    `spread`: the server may choose a later moment within this span, the emptiest one.
    """

    key: Key | None
    key_scope: KeyScope | None
    spread: Span | None


class Timing(TypedDict, total=False):
    """When a schedule fires: one of `cron`, `every` and `rrule`.

    `cron`: 5 fields, 6 with seconds first, or a macro such as `@daily`.
    `every`: elapsed time between fires: a timedelta, seconds, or text such as `90s`.
    `rrule`: RFC 5545, `FREQ=MONTHLY;BYDAY=-1FR`.
    `timezone`: `Europe/Bucharest`, `UTC`; required for cron and rrule.
    `start`: no fire before this instant.
    `end`: no fire after this instant.
    `limit`: maximum number of fires.
    `jitter`: maximum random delay of each fire, always the same for one fire.
    `gap`: for a local time that does not exist (DST): "skip", "after" (the default) or "before".
    `overlap`: for a local time that exists twice (DST): "first" (the default), "second" or "both".
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
    """Options of a schedule.

    `misfire`: for fires missed while the server was down: "fire_all", "fire_once" (the default) or "skip".
    """

    misfire: Misfire | None


class Selection(TypedDict, total=False):
    """Selects messages.

    `topic`: a topic filter, `orders/+/remind`.
    `due_from`: due at or after this instant.
    `due_to`: due before this instant.
    `ordering_key`: what the messages belong to.
    """

    topic: str | None
    due_from: When | None
    due_to: When | None
    ordering_key: str | None


class Listed(Selection, total=False):
    """Selects messages to list.

    `state`: "pending" (the default), "dispatched", "cancelled", "expired", "withheld", or "all".
    `outcome`: "failed", "retrying", "withheld" or "done", of any state.
    """

    state: State | None
    outcome: Outcome | None


class Kept(TypedDict, total=False):
    """Selects retries or dead letters.

    `group`: a group's name, `$share/{group}/{filter}`, an endpoint's name, or a client id.
    `topic`: a topic filter.
    `reason`: text that the reason of the last failure contains.
    `id`: id of one message.
    `key`: idempotency key of one message.
    """

    group: str | None
    topic: str | None
    reason: str | None
    id: str | None
    key: Key | None


class DeadSelection(Kept, total=False):
    """Selects dead letters.

    `died_from`: died at or after this instant.
    `died_to`: died before this instant.
    """

    died_from: When | None
    died_to: When | None


class RetrySelection(Kept, total=False):
    """Selects retries.

    `retry_from`: next tried at or after this instant.
    `retry_to`: next tried before this instant.
    """

    retry_from: When | None
    retry_to: When | None


class RetryOptions(TypedDict, total=False):
    """How often a message is tried, and when. Absent options have the server's defaults.

    `max_attempts`: tries before it becomes a dead letter; 0: no limit.
    `backoff`: waits after the first, the second ... try; the last one repeats. Each wait is up to a fifth
        shorter or longer, so that joint failures spread.
    """

    max_attempts: int | None
    backoff: Sequence[Span] | None


class PerKey(TypedDict, total=False):
    """Limits of each ordering key, without order.

    `concurrency`: maximum messages of a key that are out at a time.
    `rate`: maximum messages of a key a second, or text such as `100/m` or `5/h`.
    """

    concurrency: int
    rate: float | str


class PlaceOptions(TypedDict, total=False):
    """What a group or endpoint does with its messages.

    `order`: of one ordering key one message at a time is delivered, in order, through retries.
    `on_dead`: with `order`: after a dead letter its key goes on ("next"), or is held ("hold").
    `per_key`: `{"concurrency": 2, "rate": "10/s"}`: limits of each ordering key, without order.
    `fair`: ordering keys take turns, whatever one of them has dumped.
    `keep`: finished deliveries that keep their story: "failed" (the default: those that failed at least
        once), "all", "none", or all for a span.
    `result_ttl`: how long results are kept, default an hour.
    `alerts`: endpoint that is told of dead letters and withheld messages; "" for none.
    """

    order: bool | None
    on_dead: OnDead | None
    per_key: PerKey | None
    fair: bool | None
    keep: Span | None
    result_ttl: Span | None
    alerts: str | None


class WorkerOptions(PlaceOptions, total=False):
    """Options of a worker's group. Absent options have the server's defaults.

    `expiry`: how long it is kept without members, default "never" (until it is deleted).
    `rate`: maximum messages a second for the group, or text such as `100/m`.
    """

    expiry: Span | None
    rate: float | str | None


class GroupOptions(RetryOptions, WorkerOptions, total=False):
    """Options of a group. Absent options have the server's defaults.

    `ack_timeout`: a message that is neither acked nor extended for this time goes to another member.
    """

    ack_timeout: Span | None


class SubscribeOptions(GroupOptions, total=False):
    """Options of a subscription.

    `session`: name under which the server keeps our read position while we are away; two subscribers with
        one name disconnect each other.
    `group`: name under which several subscribers share the messages; the server keeps its read position, its
        members need no session.
    `qos`: highest quality of service at which messages come, default 1.
    `replay_from`: where a new subscription starts: an instant, or a timedelta back from now.
    `max_in_flight`: maximum unacked messages, default 64.
    `expiry`: how long the read position is kept without subscribers, by default the server's maximum for
        sessions; for a group also text, `2d` or `never`.
    """

    session: str | None
    group: str | None
    qos: Qos
    replay_from: When | timedelta | None
    max_in_flight: int


class NoOptions(TypedDict):
    """Of a call that has none: it takes names only to refuse them."""


class EndpointOptions(PlaceOptions, total=False):
    """Options of an endpoint. Absent options have the server's defaults.

    `secret`: signs the requests, `whsec_` and base64; if absent it stays as it was, "" removes it.
    `headers`: added to each request.
    `concurrency`: maximum concurrent requests.
    `rate`: maximum requests a second, or text such as `100/m`.
    `timeout`: maximum time of one request.
    `body`: what is posted: "raw", the payload, or "envelope", JSON with the payload in it.
    `retry`: how often a message is tried, `{"max_attempts": 5, "backoff": ["1s", "5m"]}`.
    `expiry`: how long it stays while it is paused, default "never" (until it is deleted).
    """

    secret: str | None
    headers: Mapping[str, str] | None
    concurrency: int | None
    rate: float | str | None
    timeout: Span | None
    body: Body | None
    retry: RetryOptions | None
    expiry: Span | None
