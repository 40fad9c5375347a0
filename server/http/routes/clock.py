"""`POST /v1/clock:advance`: let the simulated clock pass over a stretch of time, everything in it done.

One walk at a time: a second request waits for the first to arrive, so that the clock never runs back.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from ...clock import Clock, NotSimulated
from ...times import INSTANT_MS_MAX, format_ms
from ..answers import json_answer, refusals
from ..calls import WRITES, Gives, described
from ..problems import Problem
from ..requests import body_of
from ..values import shapes
from ..values.bodies import FieldError, delay_ms
from ..values.scalars import Delay


class Advance(msgspec.Struct, forbid_unknown_fields=True):
    """The body: how far, as a duration or in seconds."""

    by: Delay


_ADVANCE = msgspec.json.Decoder(Advance)


class ClockRoutes:
    """The route."""

    def __init__(self, clock: Clock, walk: Callable[[int], Awaitable[int]]) -> None:
        """`walk`: moves the clock by so many ms, and gives what it shows then. Raises NotSimulated."""
        self._clock = clock
        self._walk = walk
        self._walking = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/clock:advance", self.advance)]

    @described(
        "Move a simulated clock",
        Gives(200, shapes.Advanced),
        body=Advance,
        problems=("clock-not-simulated", *WRITES),
    )
    async def advance(self, request: web.Request) -> web.Response:
        wish = await body_of(request, _ADVANCE)
        by_ms = delay_ms("by", wish.by)
        async with self._walking:
            if self._clock.wall_ms() + by_ms > INSTANT_MS_MAX:
                raise FieldError("by", "goes beyond the year 9999")
            try:
                with refusals():
                    now_ms = await self._walk(by_ms)
            except NotSimulated as error:
                raise Problem("clock-not-simulated", str(error)) from None
        view: shapes.Advanced = {"now": format_ms(now_ms)}
        return json_answer(view)
