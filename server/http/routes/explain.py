"""`GET /v1/messages/{id}/explain` and `/why`: where a message is stored, and what has happened to it.

`explain` shows the slice, shard and structure of the row, its position on the timeline, and whether the wheel
has it. The loader loads a row some minutes before its due; a full wheel takes it later, but always in time.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from shards.record import is_stub
from timeline.position import at_of, id_text
from timeline.wheel import Wheel

from ...delivery.membership import Membership
from ...engine.clock import Clock
from ...engine.loader import AHEAD_MS
from ...engine.writer import Entry
from ...settings.times import time_text
from ..access import sees
from ..calls import READ, described
from ..problems import Problem
from ..requests import id_of
from ..selection import visible
from ..timeline import Timeline
from ..values import shapes
from ..values.views import Shown, position_view
from ..why import why_of


@dataclass(frozen=True, slots=True, eq=False)
class Explain:
    """The routes. `shown`: the message of a request."""

    clock: Clock
    timeline: Timeline
    wheel: Wheel[Entry]
    groups: Membership
    shown: Callable[[web.Request], Awaitable[Shown]]

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/messages/{id}/explain", self.get),
            web.get("/v1/messages/{id}/why", self.why),
        ]

    @described(
        "What has happened to a message, in sentences, and what it waits for",
        READ,
        problems=("not-found", "other-timeline"),
    )
    async def why(self, request: web.Request) -> shapes.Why:
        shown = await self.shown(request)
        return why_of(shown, self.groups, self.timeline.horizon.position, self.clock.wall_ms())

    @described("Where a message lies", READ, problems=("not-found", "other-timeline"))
    async def get(self, request: web.Request) -> shapes.MessageLocation:
        timeline = self.timeline
        message = id_of(request, timeline.number)
        found = visible(timeline, message, sees(request))
        if found is None:
            raise Problem("not-found", f"Message {id_text(message)} not found.")
        place, shard = found.position, found.shard
        is_ahead = shard is not None and place > timeline.horizon.position and not is_stub(found.value)
        in_wheel = is_ahead and place <= self.wheel.loaded
        enters_ms = None
        if is_ahead and not in_wheel:
            enters_ms = max(timeline.horizon.clock_ms, at_of(place) - AHEAD_MS)
        view = shapes.MessageLocation(
            id=id_text(message),
            position=position_view(place),
            held=shard is None,
            in_wheel=in_wheel,
            enters_ram_at=None if enters_ms is None else time_text(enters_ms),
        )
        if shard is not None:
            piece = timeline.directory.find(at_of(place))
            assert piece is not None, "a row that was found lies in a slice"
            view.slice, view.generation = time_text(piece.start_ms), piece.generation
            view.shard, view.borrowed = shard.number, shard.number in piece.borrowed
            view.structure = timeline.reader.structures.pattern(shard.structure)
        return view
