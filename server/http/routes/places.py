"""Shared by sessions, groups and endpoints: each has a read position on the timeline, and the same verbs.

    POST {one}:pause :resume :replay    200 with the new state
    POST {one}:skip                     200 {"from", "to", "undone"}

A `PlaceKind` says which places a request names and how they are shown. The rest is shared: the writer decides
each change, in steps if a name has many groups. The answer is 404 if nothing is left to change.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, Generic, TypeVar

from aiohttp import web
from msgspec import UNSET
from msgspec.structs import asdict

from shards.commit import Commit
from timeline.position import Position, at_of

from ...delivery.burials import SKIPPED
from ...delivery.place import Place
from ...delivery.replay import Replay
from ...delivery.router import Router
from ...delivery.terms import NEVER_S
from ...engine.clock import Clock
from ...engine.writer import Ask
from ...settings.times import time_text
from ..access import Rights, rights_of
from ..answers import answer_of
from ..backlog import (
    DROP,
    LIST_LOOK_ROWS,
    LOOK_ROWS,
    REWIND,
    SKIP,
    Rewind,
    Skip,
    lag_of,
    position_of,
    retries_of,
    undone_of,
)
from ..calls import WRITES, Gives, described
from ..problems import Problem
from ..requests import body_of
from ..timeline import Timeline
from ..turns import Turns
from ..values import shapes
from ..values.scalars import Query
from ..values.views import position_view

STEP_PLACES = 250

P = TypeVar("P", bound=Place)
A = TypeVar("A")
View = TypeVar("View")


@dataclass(frozen=True, slots=True)
class PlaceKind(Generic[P, A]):
    """One kind of place: how its routes differ from the others."""

    noun: str
    name: str
    """In the path: /v1/{noun}s/{name}."""
    scope: str
    shape: type[A]
    """Of the answer."""
    find: Callable[[web.Request], Sequence[P]]
    """The places that the request names and its key may see. Raises Problem if there is none."""
    has: Callable[[P, Rights | None], bool]
    """Whether the place still exists and the key may see it."""
    answer: Callable[[web.Request, Sequence[P]], Awaitable[A]]
    pause: Callable[[Commit, P, bool], None] | None = None
    """None: it cannot be paused."""
    query: Query | None = None

    def unknown(self, request: web.Request) -> Problem:
        return Problem(
            "not-found", f"{self.noun.capitalize()} {request.match_info[self.name][:128]!r} not found."
        )


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Read positions and unfinished messages of places."""

    ask: Ask
    clock: Clock
    timeline: Timeline
    turns: Turns
    router: Router
    replay: Replay

    def status_of(self, place: Place, look_rows: int) -> shapes.PlaceStatus:
        """The fields that all kinds of places have, reading at most `look_rows` rows."""
        lag, session = self._lag(place, look_rows), place.session
        return shapes.PlaceStatus(
            **asdict(lag),
            name=place.name,
            position=position_view(session.read_at(self.timeline.horizon.position)),
            in_flight=len(session.flights),
            delivered=place.delivered,
            failed=place.failed,
            undone=undone_of(place, self.timeline, lag),
            dead_letters=self.timeline.dead_of(place.name, look_rows),
            expiry="never" if session.expiry_s >= NEVER_S else session.expiry_s,
            incarnation=place.incarnation,
            left_at=time_text(place.presence.left_ms) if place.presence.left_ms else UNSET,
        )

    def _lag(self, place: Place, look_rows: int) -> shapes.Lag:
        return lag_of(place, self.timeline, self.router, look_rows)

    def undone(self, places: Sequence[Place]) -> shapes.Undone:
        """The sum of their unfinished messages."""
        look_rows = look_rows_of(places)
        found = [undone_of(place, self.timeline, self._lag(place, look_rows)) for place in places]
        return shapes.Undone(
            lag=sum(one.lag for one in found),
            in_flight=sum(one.in_flight for one in found),
            retries=sum(one.retries for one in found),
            next_retry_at=min((one.next_retry_at for one in found if one.next_retry_at), default=None),
            oldest_at=min((one.oldest_at for one in found if one.oldest_at), default=None),
        )

    def is_undone(self, place: Place, look_rows: int) -> bool:
        """Whether there is, or may be, anything unfinished: of a place far behind not all is read."""
        lag = self._lag(place, look_rows)
        return (
            lag.lag_messages > 0
            or not lag.lag_messages_is_exact
            or bool(place.session.flights)
            or any(root in place.rows.out for root in place.flying())
            or retries_of(place, self.timeline)[0] > 0
        )

    async def page(
        self, request: web.Request, names: Sequence[str], limit: int, view: Callable[[str], View | None]
    ) -> tuple[list[View], str | None]:
        """A page and the next cursor; `view` gives None for a place that has ended meanwhile."""
        turn, views = self.turns.of(request), []
        for name in names[:limit]:
            await turn.begin()
            found = view(name)
            if found is not None:
                views.append(found)
        return views, names[limit - 1] if len(names) > limit else None


class Verbs(Generic[P, A]):
    """The verbs of one kind of place."""

    def __init__(self, kind: PlaceKind[P, A], places: Places) -> None:
        self._kind = kind
        self._places = places

    def routes(self) -> list[web.RouteDef]:
        answer = Gives(200, self._kind.shape)
        rewind = {"body": Rewind, "example": {"from": "PT1H"}}
        skip = {"body": Skip, "example": {"to": "now", "undone": "dead"}}
        pausing = [
            self._route("pause", "Deliver nothing until it is resumed; its place stays", answer),
            self._route("resume", "Go on where it was paused", answer),
        ]
        return [
            *(pausing if self._kind.pause else ()),
            self._route("replay", "Set the read position back", answer, **rewind),
            self._route("skip", "Set the read position forward, past the backlog", **skip),
        ]

    def _route(self, verb: str, summary: str, *gives: Gives, **body: Any) -> web.RouteDef:
        kind = self._kind
        problems = ("not-found", *WRITES)
        mark = described(summary, kind.scope, *gives, query=kind.query or {}, problems=problems, **body)
        handler = MethodType(mark(getattr(Verbs, verb)), self)
        return web.post(f"/v1/{kind.noun}s/{{{kind.name}}}:{verb}", handler)

    async def pause(self, request: web.Request) -> A:
        return await self._pause(request, is_paused=True)

    async def resume(self, request: web.Request) -> A:
        return await self._pause(request, is_paused=False)

    async def _pause(self, request: web.Request, *, is_paused: bool) -> A:
        pause = self._kind.pause
        assert pause is not None

        def act(commit: Commit, place: P) -> bool:
            pause(commit, place, is_paused)
            return True

        return await self._kind.answer(request, await self.change(request, act))

    async def replay(self, request: web.Request) -> A:
        """The position never moves forward."""
        self._kind.find(request)
        body = await body_of(request, REWIND)
        to = position_of("from", body.since, self._places.clock.wall_ms())

        def act(commit: Commit, place: P) -> bool:
            self._places.replay.rewind(commit, place, to)
            return True

        return await self._kind.answer(request, await self.change(request, act))

    async def skip(self, request: web.Request) -> shapes.Skipped:
        """The position never moves back. Messages not read by then become dead letters, or are dropped."""
        places, found = self._places, self._kind.find(request)
        body = await body_of(request, SKIP)
        to = places.timeline.horizon.position
        if body.to != "now":
            to = position_of("to", body.to, places.clock.wall_ms())
        before = min(place.session.read_at(places.timeline.horizon.position) for place in found)
        undone = places.undone(found)

        ends: dict[P, Position] = {}

        def act(commit: Commit, place: P) -> bool:
            end = ends.setdefault(place, min(to, places.timeline.horizon.position))
            places.replay.skip(commit, place, end, SKIPPED, is_dead=body.undone != DROP)
            order = place.session.order
            return not order.has_upto(end)

        changed = await self.change(request, act)
        after = max(place.session.read_at(places.timeline.horizon.position) for place in changed)
        return shapes.Skipped(time_text(at_of(before)), time_text(at_of(after)), undone)

    async def change(self, request: web.Request, act: Callable[[Commit, P], bool]) -> list[P]:
        """Change the places that the request names, in steps; returns those that still existed.

        `act`: in the writer; False if it must be called again for the same place. Raises Problem.
        """
        kind, rights, left = self._kind, rights_of(request), list(self._kind.find(request))
        changed: list[P] = []

        def step(commit: Commit) -> None:
            for place in left[:STEP_PLACES]:
                if kind.has(place, rights):
                    if not act(commit, place):
                        return  # it alone is a step's work
                    changed.append(place)
                left.remove(place)

        while left:
            await answer_of(self._places.ask, step)
        if not changed:
            raise kind.unknown(request)
        return changed


def look_rows_of(many: Sequence[object]) -> int:
    """How many rows to read for each of these places."""
    return LIST_LOOK_ROWS if len(many) > 1 else LOOK_ROWS
