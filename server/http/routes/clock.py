"""`POST /v1/clock:advance`: move the simulated clock forward, and do everything that falls due.

One move at a time: a second request waits for the first, so that the clock never runs back
(server/rounds/simulation.py).
"""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from ...engine.clock import NotSimulated
from ...settings.durations import TimeError
from ...settings.times import format_ms
from ..answers import refusals
from ..calls import ADMIN, WRITES, described
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
    def __init__(self, advance: Callable[[int], Awaitable[int]]) -> None:
        """`advance`: moves the clock by some ms; returns its new time, ms."""
        self._advance = advance

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/clock:advance", self.advance)]

    @described(
        "Move a simulated clock",
        ADMIN,
        body=Advance,
        example={"by": "PT1H"},
        problems=("clock-not-simulated", *WRITES),
    )
    async def advance(self, request: web.Request) -> shapes.Advanced:
        body = await body_of(request, _ADVANCE)
        by_ms = delay_ms("by", body.by)
        try:
            with refusals():
                now_ms = await self._advance(by_ms)
        except TimeError as error:
            raise FieldError("by", str(error)) from None
        except NotSimulated as error:
            raise Problem("clock-not-simulated", str(error)) from None
        return shapes.Advanced(format_ms(now_ms))
