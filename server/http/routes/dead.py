"""`/v1/dead`: messages that a session or group was sent too often, to look at, send again or drop.

    GET  /v1/dead             pages in the order of dying, by group, topic, reason, id, and when they died
    POST /v1/dead:requeue     the message again, to that session or group alone, at once or in a while
    POST /v1/dead:drop        forget them

A message that two groups have given up is there twice: its id and its group name one. `group` is the name of
a group or a client id, as in `$dead/{group}/...`; of groups of the same name the whole subscription
(`$share/group/filter`) says which.

What is to be changed is given by ids or by a filter. Rows are read in bounded steps, each in a turn of its
own (turns.py), and each step's matches go through the writer, which decides about every one: `matched` counts
what was found, `changed` what was still there, and, to be requeued, whose session or group is there too. A
letter that died after the call began is passed over, or one that fails at once would be sent again for ever.
A call that is refused half way says in its problem how far it came.

A key sees dead letters of messages that it may see, in sessions and groups that are its own, as /v1/sessions
has it, and changes those that it may send to; with the scope admin those of all sessions.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
from aiohttp import web

from shards.commit import Commit
from shards.errors import Corrupt
from shards.kept import Letter
from shards.keys import message_of
from shards.record import decode, topic_of
from shards.state import DISPATCHED
from shards.tables import KeptRow
from timeline.filters import SHARE_PREFIX, matches
from timeline.position import (
    END,
    START,
    BadId,
    MessageId,
    Position,
    at_of,
    id_position,
    parse_id,
    position,
)

from ...delivery.settling.letters import Letters, May
from ...delivery.shared import KEY_PREFIX
from ...delivery.subscriber import Subscriber
from ...engine.clock import Clock
from ...engine.writer import Ask
from ..access import Rights, Sees, changes, is_own, owns, rights_of, sees
from ..answers import asked, json_answer, refusal
from ..bulk import Acted, change_each
from ..calls import READ, SCHEDULE, WRITES, Gives, described
from ..cursors import Cursors
from ..problems import Problem
from ..requests import body_of, instant_parameter, limit_of
from ..selection import check_selects, span_of
from ..timeline import Timeline
from ..turns import Turn, Turns
from ..values import shapes
from ..values.bodies import FieldError, delay_ms, instant_ms
from ..values.scalars import PAGED, Delay, Id, Point, only_one
from ..values.scalars import Filter as TopicFilter
from ..values.views import message_view, time_text

log = logging.getLogger(__name__)

LOOK_ROWS = 1_000
"""Rows read in a turn at most."""
PAGE_LOOK_ROWS = 20_000
"""And for a page."""
PAGE_BYTES = 4 << 20
VIEW_BYTES = 1_000
STEP_LETTERS = 250
STEP_BYTES = 1 << 20
"""Decided in one go of the writer: so many dead letters, or bytes of them."""
IDS_MAX = 1_000

Group = Annotated[str, msgspec.Meta(description="a group or client id, or $share/group/filter", min_length=1)]


class DeadFilter(msgspec.Struct, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):
    """Which dead letters: from <= died_at < to, RFC 3339 or Unix ms."""

    group: Group | None = None
    topic: TopicFilter | None = None
    since: Point | int | None = None
    until: Point | int | None = None


class DropDead(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `:drop`. `group` goes with ids: of these only its own."""

    ids: Annotated[list[Id], msgspec.Meta(max_length=IDS_MAX)] | None = None
    group: Group | None = None
    filter: DeadFilter | None = None
    dry_run: bool = False


class RequeueDead(DropDead):
    """The body of `:requeue`."""

    deliver_in: Delay | msgspec.UnsetType = msgspec.UNSET


_DROP = msgspec.json.Decoder(DropDead)
_REQUEUE = msgspec.json.Decoder(RequeueDead)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call asks for: from `start` on, up to but without `end`."""

    start: Position = START
    end: Position = END
    group: str | None = None
    topic: str | None = None
    reason: str | None = None
    ids: tuple[MessageId, ...] | None = None

    def fits(self, row: KeptRow) -> bool:
        """Raises Corrupt."""
        if self.group is not None and self.group not in (row.group, _subscription(row)):
            return False
        if self.reason is not None and self.reason not in row.reason:
            return False
        return self.topic is None or matches(self.topic, topic_of(row.record).decode())


Places = list[Position]
Views = list[shapes.DeadLetter]
Act = Callable[[Commit, Position], bool]
"""In the writer: change the dead letter of that place, if it is there. Raises Refused, Corrupt."""


class DeadRoutes:
    """The routes."""

    def __init__(
        self,
        ask: Ask,
        clock: Clock,
        timeline: Timeline,
        letters: Letters,
        cursors: Cursors,
        turns: Turns,
        *,
        max_delay_ms: int,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._timeline = timeline
        self._letters = letters
        self._cursors = cursors
        self._turns = turns
        self._max_delay_ms = max_delay_ms

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/dead", self.list),
            web.post("/v1/dead:requeue", self.requeue),
            web.post("/v1/dead:drop", self.drop),
        ]

    @described(
        "Dead letters: what was delivered too often",
        READ,
        Gives(200, shapes.DeadPage),
        query={
            "group": Group,
            "topic": TopicFilter,
            "reason": Annotated[str, msgspec.Meta(description="part of the reason")],
            "id": Id,
            "from": Point,
            "to": Point,
            **PAGED,
        },
    )
    async def list(self, request: web.Request) -> web.Response:
        limit, wanted = limit_of(request), self._asked(request)
        may = _may(rights_of(request), sees(request))
        turn = self._turns.of(request)
        try:
            views, last = await self._page(wanted, may, limit, turn)
        finally:
            turn.release()
        is_hidden = rights_of(request) is not None
        page: shapes.DeadPage = {
            "messages": views,
            "next": None if last is None else self._cursors.text(last, is_hidden=is_hidden),
        }
        return json_answer(page)

    @described(
        "Send dead letters again, to those alone who gave them up",
        SCHEDULE,
        Gives(200, shapes.DeadChanged),
        body=Annotated[RequeueDead, only_one("ids", "filter")],
        example={"filter": {"group": "printers", "topic": "jobs/#"}, "deliver_in": "1m"},
        problems=WRITES,
    )
    async def requeue(self, request: web.Request) -> web.Response:
        wish = await body_of(request, _REQUEUE)
        wait_ms = 0 if wish.deliver_in is msgspec.UNSET else delay_ms("deliver_in", wish.deliver_in)
        if wait_ms > self._max_delay_ms:
            raise FieldError("deliver_in", "is further ahead than limits.max_delay")
        due_ms = self._clock.wall_ms() + wait_ms
        may = _may(rights_of(request), changes(request))
        requeue = self._letters.requeue
        return await self._answer(request, wish, may, lambda commit, at: requeue(commit, at, due_ms, may))

    @described(
        "Forget dead letters",
        SCHEDULE,
        Gives(200, shapes.DeadChanged),
        body=Annotated[DropDead, only_one("ids", "filter")],
        example={"filter": {"group": "printers", "to": "2026-01-01T00:00:00Z"}, "dry_run": True},
        problems=WRITES,
    )
    async def drop(self, request: web.Request) -> web.Response:
        wish = await body_of(request, _DROP)
        may = _may(rights_of(request), changes(request))
        drop = self._letters.drop
        return await self._answer(request, wish, may, lambda commit, at: drop(commit, at, may))

    # -- listing

    def _asked(self, request: web.Request) -> Wanted:
        """Raises FieldError."""
        query = request.query
        since, until = instant_parameter(request, "from"), instant_parameter(request, "to")
        start, end = span_of(since, until)
        if (cursor := query.get("cursor")) is not None:
            start = max(start, Position(self._cursors.place(cursor) + 1))
        ids = None if "id" not in query else (_id("id", query["id"]),)
        topic = query.get("topic")
        check_selects(topic)
        if query.get("group") == "":
            raise FieldError("group", "is empty")
        return Wanted(start, end, query.get("group"), topic, query.get("reason"), ids)

    async def _page(self, wanted: Wanted, may: May, limit: int, turn: Turn) -> tuple[Views, Position | None]:
        """What there is to show, and behind which place the next page begins, None: there is none."""
        views: Views = []
        start, last, looked, size = wanted.start, wanted.start, 0, 0
        is_crowded = False
        while True:
            await turn.begin()
            count, is_end = 0, True
            for place, row in self._read(wanted, start):
                count += 1
                view = self._view(place, row) if _is_there(wanted, row, may) else None
                if view is not None:
                    if len(views) == limit or size > PAGE_BYTES or is_crowded:
                        return views, last
                    views.append(view)
                    size += len(row.record)
                    is_crowded = not turn.keep(len(row.record) + VIEW_BYTES)
                last = place
                if count == LOOK_ROWS or turn.is_over(count):
                    is_end = False
                    break
            looked += count
            if is_end:
                return views, None
            if looked >= PAGE_LOOK_ROWS:
                return views, last
            start = Position(last + 1)

    def _view(self, place: Position, row: KeptRow) -> shapes.DeadLetter | None:
        """None: it cannot be read."""
        message = message_of(row.id)
        try:
            shown = message_view(message, id_position(message), decode(row.record), DISPATCHED, None)
        except Corrupt as error:
            log.error("a dead letter is passed over: %s", error)
            return None
        return {
            **shown,
            "group": row.group,
            "subscription": _subscription(row),
            "attempts": row.attempts,
            "reason": row.reason,
            "died_at": time_text(at_of(place)),
        }

    def _read(self, wanted: Wanted, start: Position) -> Iterator[Letter]:
        """Those that can be in it, at or behind `start`."""
        if wanted.ids is not None:
            (message,) = wanted.ids
            found = self._letters.of_message(message)
            return (letter for letter in found if start <= letter[0] < wanted.end)
        group = wanted.group
        if group is not None and group.startswith(SHARE_PREFIX):
            group = group.removeprefix(SHARE_PREFIX).partition("/")[0]
        return _until(wanted.end, self._letters.read(start, group=group))

    # -- changing

    async def _answer(self, request: web.Request, wish: DropDead, may: May, act: Act) -> web.Response:
        horizon = self._timeline.horizon
        as_of = Position(position(horizon.clock_ms, horizon.seq) + 1)
        wanted, turn, done = _chosen(wish, as_of), self._turns.of(request), _Done()
        step = self._step if wanted.ids is None else self._step_of_ids
        following: int | None = wanted.start if wanted.ids is None else 0
        try:
            while following is not None and request.transport is not None:
                await turn.begin()
                places, following = step(wanted, following, may, turn)
                done.matched += len(places)
                if places and not wish.dry_run:
                    acted: Acted = await asked(self._ask, partial(_each, places, act), cost=len(places))
                    done.changed += acted.changed
                    if acted.refused is not None:
                        raise refusal(acted.refused)
        except Problem as problem:
            problem.extra |= done.view()
            raise
        return json_answer(done.view())

    def _step(self, wanted: Wanted, start: int, may: May, turn: Turn) -> tuple[Places, int | None]:
        """The next matches at or behind a position, and where to go on, None at the end."""
        places: Places = []
        size = 0
        for looked, (place, row) in enumerate(self._read(wanted, Position(start)), 1):
            start = place + 1
            if _is_there(wanted, row, may):
                places.append(place)
                size += len(row.record)
            if _is_enough(places, size) or looked == LOOK_ROWS or turn.is_over(looked):
                return places, start
        return places, None

    def _step_of_ids(self, wanted: Wanted, index: int, may: May, turn: Turn) -> tuple[Places, int | None]:
        """The same of the ids from an index on."""
        assert wanted.ids is not None, "it is by ids"
        places: Places = []
        size = 0
        for looked, message in enumerate(wanted.ids[index:], 1):
            for place, row in _until(wanted.end, self._letters.of_message(message)):
                if _is_there(wanted, row, may):
                    places.append(place)
                    size += len(row.record)
            if _is_enough(places, size) or turn.is_over(looked):
                return places, index + looked
        return places, None


@dataclass(slots=True)
class _Done:
    """How far a call has come."""

    matched: int = 0
    changed: int = 0

    def view(self) -> shapes.DeadChanged:
        return {"matched": self.matched, "changed": self.changed}


def _is_enough(places: Places, size: int) -> bool:
    """Whether that is what one go of the writer takes."""
    return len(places) >= STEP_LETTERS or size >= STEP_BYTES


def _each(places: Places, act: Act, commit: Commit) -> Acted:
    return change_each(places, partial(act, commit), lambda place: f"the dead letter at {place:024x}")


def _chosen(wish: DropDead, as_of: Position) -> Wanted:
    """What is to be changed, up to `as_of`. Raises FieldError."""
    if (wish.ids is None) == (wish.filter is None):
        raise FieldError("filter", "or ids is required, not both")
    if wish.ids is not None:
        ids = tuple(dict.fromkeys(_id("ids", text) for text in wish.ids))
        return Wanted(end=as_of, group=wish.group, ids=ids)
    chosen = wish.filter
    assert chosen is not None, "one of the two"
    if wish.group is not None:
        raise FieldError("group", "goes with ids; of a filter it is a member")
    if chosen == DeadFilter():
        raise FieldError("filter", 'must name group, topic, from or to; {"topic": "#"} is everything')
    since = None if chosen.since is None else instant_ms("from", str(chosen.since))
    until = None if chosen.until is None else instant_ms("to", str(chosen.until))
    start, end = span_of(since, until)
    check_selects(chosen.topic)
    return Wanted(start, min(end, as_of), chosen.group, chosen.topic)


def _id(field: str, text: str) -> MessageId:
    """Raises FieldError."""
    try:
        return parse_id(text)
    except BadId as error:
        raise FieldError(field, str(error)) from None


def _until(end: Position, found: Iterator[Letter]) -> Iterator[Letter]:
    for letter in found:
        if letter[0] >= end:
            return
        yield letter


def _is_there(wanted: Wanted, row: KeptRow, may: May) -> bool:
    """Whether it is asked for, and there for who asks."""
    try:
        return wanted.fits(row) and may(row, None)
    except Corrupt as error:
        log.error("a dead letter is passed over: %s", error)
        return False


def _may(rights: Rights | None, topic_fits: Sees | None) -> May:
    """Which dead letters are there for who asks, as the rules are when it is called. It may raise Corrupt."""

    def may(row: KeptRow, subscriber: Subscriber | None) -> bool:
        if not owns(rights, (row.keeper,)):
            return False
        if subscriber is not None and not is_own(rights, subscriber):
            return False
        return topic_fits is None or topic_fits(topic_of(row.record))

    return may


def _subscription(row: KeptRow) -> str | None:
    """Of a group the whole subscription; None: it is a session's."""
    return row.addressee.removeprefix(KEY_PREFIX) if row.addressee.startswith(KEY_PREFIX) else None
