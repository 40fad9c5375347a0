"""A schedule request: the JSON of a body -> checked timing and message.

    {"cron": "0 2 * * *", "timezone": "Europe/Bucharest", "topic": "jobs/nightly", "payload": "go"}

One of `cron`, `every` and `rrule` says when; the rest of the body is a message without a time, checked as in
`POST /v1/messages`. A zone is never guessed: cron and rrule need `timezone` (or for cron the prefix
`CRON_TZ=`); `every` counts elapsed time and shows UTC without one.

The body is stored as sent, for display.
"""

from itertools import islice
from typing import Annotated, Literal

import msgspec

from shards.record import decode, encode
from shards.schedules import TimingRow
from timeline.cron import CronError
from timeline.fires import END_MS, Gap, Misfire, Overlap, Plan, due_by, fires
from timeline.recurrence import RuleError

from ...schedules.recurring import plan_of
from ...schedules.starts import start_of
from ...settings.config import Limits
from ...settings.durations import TimeError
from ...settings.times import format_ms, parse_deliver_at, zone_of
from .bodies import FieldError, delay_ms
from .drafts import draft_of
from .message_body import Content, MessageRequest, ParsedMessage
from .reader import Reader
from .scalars import Delay, Topic, When, Zone

COUNT_MAX = 1_000
COUNT_DEFAULT = 10
INTERVAL_MS_MIN = 1_000


def _empty() -> msgspec.Raw:
    """The default payload of a schedule."""
    return msgspec.Raw(b'""')


class Dst(msgspec.Struct, forbid_unknown_fields=True):
    """Handling of a local time that does not exist or exists twice (DST)."""

    gap: Gap = "after"
    overlap: Overlap = "first"


class ScheduleRequest(Content):
    """A schedule as sent; types only."""

    topic: Topic | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=_empty)
    cron: str | None = None
    every: Delay | None = None
    rrule: str | None = None
    timezone: Zone | None = None
    start: When | None = None
    end: When | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    jitter: Delay | None = None
    dst: Dst = msgspec.field(default_factory=Dst)
    misfire: Misfire = "fire_once"


class PreviewRequest(ScheduleRequest):
    """A schedule that need not exist, and the number of fires to show."""

    count: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] = COUNT_DEFAULT
    name: str = ""
    """For the jitter, which depends on it."""


class ResumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Where a schedule continues: with `now` it also sends what a clock that was ahead has already sent."""

    from_: Literal["now"] | None = msgspec.field(default=None, name="from")


def timing_of(request: ScheduleRequest, name: str, now_ms: int, limits: Limits) -> TimingRow:
    """The schedule's timing. Raises FieldError."""
    kind, expression, zone = _expression(request, limits)
    start_ms, end_ms, skipped_ms = _instant("start", request.start), _instant("end", request.end), -1
    if start_ms >= END_MS:
        raise FieldError("start", f"must be before {format_ms(END_MS)}")
    if start_ms and kind != "every":
        start_ms, skipped_ms = start_of(request.start, zone, request.dst.gap)
    if start_ms - now_ms > limits.max_delay_ms:
        raise FieldError("start", "exceeds limits.max_delay")
    if end_ms and end_ms < start_ms:
        raise FieldError("end", "is before start")
    jitter_ms = 0 if request.jitter is None else delay_ms("jitter", request.jitter)
    if jitter_ms > limits.max_delay_ms:
        raise FieldError("jitter", "is longer than limits.max_delay")
    timing = TimingRow(
        kind,
        expression,
        zone,
        start_ms,
        end_ms,
        request.limit or 0,
        jitter_ms,
        request.dst.gap,
        request.dst.overlap,
        request.misfire,
        skipped_ms,
    )
    checked_plan(timing, name, now_ms)
    return timing


def checked_plan(timing: TimingRow, name: str, now_ms: int) -> tuple[Plan, int]:
    """The plan of its fires, which has at least one, and up to where they are over. Raises FieldError."""
    try:
        plan = plan_of(timing, name, now_ms, strict=True)
        over_ms = plan.start_ms - 1 if plan.start_ms else due_by(plan, now_ms)
        found = list(islice(fires(plan, over_ms), 2))  # a rule that would stop after one fire is refused
    except (CronError, RuleError) as error:
        raise FieldError(timing.kind, str(error)) from None
    if not found:
        raise FieldError("end" if timing.end_ms else timing.kind, "leaves no fire")
    return plan, over_ms


def record_of(request: ScheduleRequest, now_ms: int, limits: Limits, user: str = "") -> bytes:
    """The message without its due. `user`: name of the key that owns the messages. Raises FieldError."""
    message = MessageRequest(
        payload=request.payload,
        topic=msgspec.UNSET if request.topic is None else request.topic,
        **{name: getattr(request, name) for name in Content.__struct_fields__},
    )
    if request.misfire == "skip":
        message.late = "drop"
    (item,) = Reader(now_ms, limits, user, as_drafts=False).read((message,), (b"",))
    assert isinstance(item, ParsedMessage)
    value = draft_of(item, now_ms, user).value
    return encode(msgspec.structs.replace(decode(value), due_ms=0))


def _expression(request: ScheduleRequest, limits: Limits) -> tuple[str, str, str]:
    """Kind, expression and zone. Raises FieldError."""
    given = [kind for kind in ("cron", "every", "rrule") if getattr(request, kind) is not None]
    if not given:
        raise FieldError("cron", "or every or rrule is required")
    if len(given) > 1:
        raise FieldError(given[1], f"and {given[0]} exclude each other")
    (kind,) = given
    if kind == "every":
        assert request.every is not None
        interval_ms = delay_ms("every", request.every)
        if not INTERVAL_MS_MIN <= interval_ms <= limits.max_delay_ms:
            raise FieldError("every", "must be at least a second and at most limits.max_delay")
        return kind, str(interval_ms), _zone(request.timezone or "UTC", "timezone")
    expression = str(getattr(request, kind))
    zone, field = request.timezone, "timezone"
    if kind == "cron" and expression.startswith(("CRON_TZ=", "TZ=")):
        prefix, _, expression = expression.partition(" ")
        named = prefix.partition("=")[2]
        if zone not in (None, named):
            raise FieldError(
                "timezone", f"differs from the zone at the start of the expression ({named[:64]!r})"
            )
        zone, field = named, "cron"
    if zone is None:
        raise FieldError("timezone", "is required: a name such as Europe/Bucharest, or UTC")
    return kind, expression, _zone(zone, field)


def _zone(name: str, field: str) -> str:
    try:
        return zone_of(name).key
    except TimeError as error:
        raise FieldError(field, str(error)) from None


def _instant(field: str, text: str | None) -> int:
    try:
        return 0 if text is None else parse_deliver_at(text)
    except TimeError as error:
        raise FieldError(field, str(error)) from None
