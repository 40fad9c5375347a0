"""`/v1/schedules`: recurring schedules: make, show, change, pause, preview.

    PUT      201 new, 200 changed or unchanged                   the pending occurrence follows the change
    DELETE   204; the pending occurrence is cancelled too
    :pause :resume :skip :trigger      200
    :preview, /upcoming          200 {"fires": [{"at", "local", "note"?}]}

A key with rules sees schedules to topics that it sees, and changes those whose messages it may send itself:
the writer looks at the stored row. Names are `[A-Za-z0-9._-]{1,128}`, so none can contain a verb. Some rules
take long to compute, so that is done in a thread.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET

from shards.commit import Commit
from shards.record import deliver_to_of, topic_of
from shards.schedules import ScheduleRow, read_schedule
from timeline.fires import END_MS
from timeline.position import MessageId, id_text

from ...engine.clock import Clock
from ...engine.writer import Ask, Decide
from ...schedules.recurring import Schedules
from ...settings.config import Limits
from ...settings.times import format_ms
from ...webhook.targets import NAME
from ...webhook.webhooks import Webhooks
from ..access import check_send, may_send, not_to_send, rights_of, sees
from ..answers import answer_of, put_answer, refusals
from ..calls import ADMIN, READ, WRITES, Gives, described
from ..problems import Problem
from ..requests import body_of, limit_of, name_of, number_parameter, whole_body
from ..timeline import Timeline
from ..turns import OneThread, Turns
from ..upcoming import Upcoming, fire_views
from ..values import shapes
from ..values.bodies import FieldError, NotReadable
from ..values.message_body import TO_SOMETHING
from ..values.scalars import PAGED, Location, only_one, rules, some_of
from ..values.schedule_body import (
    COUNT_DEFAULT,
    COUNT_MAX,
    PreviewRequest,
    ResumeRequest,
    ScheduleRequest,
    checked_plan,
    record_of,
    timing_of,
)
from ..values.schedule_views import schedule_view, start_note

ONE = "/v1/schedules/{name:[^/]+(?<!:pause)(?<!:resume)(?<!:skip)(?<!:trigger)}"
"""The path of a schedule; paths with a verb behind it have their own handlers, for every method."""
STEP_ROWS = 20
"""Maximum schedules read in one turn of a list."""
_RULES = ("cron", "every", "rrule")
ONE_RULE = (only_one(*_RULES), some_of(*_RULES))
Count = Annotated[
    int, msgspec.Meta(extra_json_schema={"minimum": 1, "maximum": COUNT_MAX, "default": COUNT_DEFAULT})
]
Body = TypeVar("Body")
Found = TypeVar("Found")

_SCHEDULE = msgspec.json.Decoder(ScheduleRequest)
_PREVIEW = msgspec.json.Decoder(PreviewRequest)
_RESUME = msgspec.json.Decoder(ResumeRequest)


class ScheduleRoutes:
    def __init__(
        self,
        ask: Ask,
        clock: Clock,
        timeline: Timeline,
        turns: Turns,
        thread: OneThread,
        schedules: Schedules,
        webhooks: Webhooks,
        limits: Limits,
    ) -> None:
        """`thread`: where rules are parsed and computed."""
        self._ask = ask
        self._turns = turns
        self._thread = thread
        self._clock = clock
        self._timeline = timeline
        self._upcoming = Upcoming(clock, timeline, thread)
        self._schedules = schedules
        self._webhooks = webhooks
        self._limits = limits

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/schedules", self.list),
            web.post("/v1/schedules:preview", self.preview),
            web.put(ONE, self.put),
            web.get(ONE, self.get),
            web.delete(ONE, self.delete),
            web.get("/v1/schedules/{name}/upcoming", self.upcoming),
            web.post("/v1/schedules/{name}:pause", self.pause),
            web.post("/v1/schedules/{name}:resume", self.resume),
            web.post("/v1/schedules/{name}:skip", self.skip),
            web.post("/v1/schedules/{name}:trigger", self.trigger),
        ]

    @described(
        "Make a schedule, or change it in place",
        ADMIN,
        Gives(201, shapes.Schedule, {"Location": Location}),
        Gives(200, shapes.Schedule, description="it was there"),
        body=Annotated[ScheduleRequest, rules(*ONE_RULE, TO_SOMETHING)],
        example={
            "cron": "30 3 * * *",
            "timezone": "Europe/Bucharest",
            "topic": "jobs/nightly",
            "payload": {"table": "orders"},
        },
        problems=WRITES,
    )
    async def put(self, request: web.Request) -> web.Response:
        name = name_of(request)
        definition = await _read(request, _SCHEDULE)
        now_ms = self._clock.wall_ms()
        timing = await self._in_thread(request, partial(timing_of, definition, name, now_ms, self._limits))
        rights = rights_of(request)
        record = record_of(definition, now_ms, self._limits, "" if rights is None else rights.name)
        deliver_to = deliver_to_of(record)
        check_send(rights, topic_of(record), deliver_to)
        body = await whole_body(request)
        with refusals():
            barred = await self._webhooks.barred([(0, deliver_to)] if deliver_to else [])
        if barred:
            raise FieldError("deliver_to", barred[0])
        decide = partial(self._schedules.put, name=name, timing=timing, record=record, body=body)
        row, is_new = await self._decided(request, name, decide, record)
        return put_answer(self._view(name, row), is_new=is_new, where=f"/v1/schedules/{name}")

    @described("A schedule", ADMIN, problems=("not-found",))
    async def get(self, request: web.Request) -> shapes.Schedule:
        name, row = self._found(request)
        return self._view(name, row)

    @described("Schedules by name", ADMIN, query=PAGED)
    async def list(self, request: web.Request) -> shapes.SchedulePage:
        limit, after = limit_of(request), request.query.get("cursor", "")
        views, turn = list[Any](), self._turns.of(request)
        while len(views) <= limit:
            await turn.begin()
            step = self._schedules.after(after, STEP_ROWS)
            if not step or request.transport is None:
                break
            for number, (after, row) in enumerate(step, 1):
                if _is_seen(request, row):
                    views.append(self._view(after, row))
                if turn.is_over(number):
                    break
        following = views[limit - 1]["name"] if len(views) > limit else None
        return shapes.SchedulePage(following, views[:limit])

    @described(
        "Forget a schedule; its pending occurrence goes too",
        ADMIN,
        problems=("not-found", *WRITES),
    )
    async def delete(self, request: web.Request) -> None:
        name = request.match_info["name"]
        decide = partial(self._schedules.delete, name=name)
        if not NAME.fullmatch(name) or not await self._decided(request, name, decide):
            raise _unknown(name)

    @described("Stop firing", ADMIN, problems=("not-found", *WRITES))
    async def pause(self, request: web.Request) -> shapes.Schedule:
        return await self._change(request, self._schedules.pause)

    @described(
        "Fire again",
        ADMIN,
        body=ResumeRequest,
        example={"from": "now"},
        problems=("not-found", *WRITES),
        needs_body=False,
    )
    async def resume(self, request: web.Request) -> shapes.Schedule:
        definition = await body_of(request, _RESUME) if await whole_body(request) else ResumeRequest()
        return await self._change(request, partial(self._schedules.resume, anew=definition.from_ is not None))

    @described(
        "Leave the next fire out",
        ADMIN,
        problems=("not-found", "wrong-state", *WRITES),
    )
    async def skip(self, request: web.Request) -> shapes.Schedule:
        return await self._change(request, self._schedules.skip)

    @described(
        "Send its message now, beside what is planned",
        ADMIN,
        problems=("not-found", *WRITES),
    )
    async def trigger(self, request: web.Request) -> shapes.Triggered:
        name, _ = self._found(request)
        now_ms = self._clock.wall_ms()
        decide = partial(self._schedules.trigger, name=name)
        message: MessageId | None = await self._decided(request, name, decide)
        if message is None:
            raise _unknown(name)
        return shapes.Triggered(name, id_text(message), format_ms(now_ms))

    @described(
        "When a schedule would fire",
        READ,
        body=Annotated[PreviewRequest, rules(*ONE_RULE)],
        example={
            "rrule": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0;BYSECOND=0",
            "timezone": "Europe/Bucharest",
            "count": 3,
        },
    )
    async def preview(self, request: web.Request) -> shapes.Fires:
        definition = await _read(request, _PREVIEW)
        now_ms = self._clock.wall_ms()
        if definition.topic is not None:
            record_of(definition, now_ms, self._limits)

        def found() -> list[shapes.Fire]:
            timing = timing_of(definition, definition.name, now_ms, self._limits)
            plan, after_ms = checked_plan(timing, definition.name, now_ms)
            count = min(definition.count, timing.limit or definition.count)
            views = fire_views(plan, after_ms, count) or fire_views(plan, after_ms, 1, END_MS)
            views[0].note = start_note(timing, views[0].note or "") or UNSET
            return views

        return shapes.Fires(await self._in_thread(request, found))

    @described(
        "When a schedule will fire, the pending occurrence first",
        ADMIN,
        query={"count": Count},
        problems=("not-found",),
    )
    async def upcoming(self, request: web.Request) -> shapes.Fires:
        """The next fires: the pending occurrence, wherever it was moved, then the fires behind it."""
        count = number_parameter(request, "count", COUNT_DEFAULT, COUNT_MAX)
        name, row = self._found(request)
        return shapes.Fires(await self._upcoming.of(self._turns.of(request), name, row, count))

    # -- helpers

    async def _change(
        self, request: web.Request, change: Callable[[Commit, str], ScheduleRow | None]
    ) -> shapes.Schedule:
        name, _ = self._found(request)
        row = await self._decided(request, name, lambda commit: change(commit, name))
        if row is None:
            raise _unknown(name)
        return self._view(name, row)

    async def _decided(self, request: web.Request, name: str, decide: Decide, new: bytes = b"") -> Any:
        """The writer's answer to `decide`, if the key may send what the schedule sends now. Raises Problem.
        `new`: what a PUT has it send, which the key must be allowed too. It is told also of a schedule that
        it does not see, since it cannot have the name."""
        rights = rights_of(request)

        def allowed(commit: Commit) -> Any:
            if rights is None or rights.sends_all:
                return decide(commit)
            row = read_schedule(commit, name)
            records = [new] if row is None else [new, row.record]
            if all(may_send(rights, topic_of(one), deliver_to_of(one)) for one in records if one):
                return decide(commit)
            may_know = bool(new) or (row is not None and _is_seen(request, row))
            return not_to_send(rights) if may_know else _unknown(name)

        return await answer_of(self._ask, allowed)

    async def _in_thread(self, request: web.Request, work: Callable[[], Found]) -> Found:
        return await self._turns.of(request).in_thread(self._thread, work)

    def _found(self, request: web.Request) -> tuple[str, ScheduleRow]:
        name = request.match_info["name"]
        row = self._schedules.get(name) if NAME.fullmatch(name) else None
        if row is None or not _is_seen(request, row):
            raise _unknown(name)
        return name, row

    def _view(self, name: str, row: ScheduleRow) -> shapes.Schedule:
        clock_ms = self._timeline.horizon.clock_ms
        return schedule_view(name, row, self._upcoming.pending(row), self._clock.wall_ms(), clock_ms)


async def _read(request: web.Request, decoder: "msgspec.json.Decoder[Body]") -> Body:
    """The body; decoding does not check a payload's bytes, so they are checked here."""
    definition = await body_of(request, decoder)
    try:
        (await whole_body(request)).decode()
    except UnicodeDecodeError:
        raise NotReadable("not UTF-8") from None
    return definition


def _unknown(name: str) -> Problem:
    return Problem("not-found", f"Schedule {name[:128]!r} not found.")


def _is_seen(request: web.Request, row: ScheduleRow) -> bool:
    """Whether the key may see the schedule's messages."""
    may_see = sees(request)
    return may_see is None or may_see(topic_of(row.record))
