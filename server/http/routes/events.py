"""`GET /v1/events`: live figures of the server, as server-sent events.

    event: figures
    data: {"time":"2026-11-21T08:00:01.000Z","horizon":"2026-11-21T08:00:01.000Z","behind_ms":0,...}

One a second, the first at once. The figures are those of `/metrics` (server/reports/figures.py), read when
they are sent. A key that neither sees every message nor may receive `$SYS/broker/#` gets only the time and
the horizon, since totals count all messages.

Source: HTML Living Standard, 9.2 "Server-sent events".
"""

from collections.abc import Callable

import msgspec
from aiohttp import web

from ..access import Rights, client_of, rights_of, sees_totals
from ..calls import READ, Gives, described
from ..streams import MEDIA, Streams, begin_events, ends_within
from ..values import shapes

EVERY_S = 1.0

_encode = msgspec.json.Encoder().encode


class Events:
    """The route."""

    def __init__(self, streams: Streams, figures: Callable[[], shapes.Figures]) -> None:
        self._streams = streams
        self._figures = figures

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/events", self.get, allow_head=False)]

    @described(
        "What moves, as server-sent events, one a second",
        READ,
        Gives(200, str, media=MEDIA, description="events `figures`, their data as Figures in JSON"),
        problems=("over-quota",),
    )
    async def get(self, request: web.Request) -> web.StreamResponse:
        with self._streams.slot(client_of(request)) as stopping:
            response = await begin_events(request)
            rights, is_over = rights_of(request), stopping.is_set()
            while not is_over and (rights is None or _may_still(rights)):
                await response.write(self._event(request))
                is_over = await ends_within(stopping, EVERY_S)
            await response.write_eof()
            return response

    def _event(self, request: web.Request) -> bytes:
        """The event for this key, by its current rights."""
        figures = self._figures()
        if not sees_totals(request):
            figures = shapes.Figures(figures.time, figures.horizon, figures.behind_ms)
        return b"event: figures\ndata: " + _encode(figures) + b"\n\n"


def _may_still(rights: Rights) -> bool:
    """Whether the key is still valid and has the scope."""
    return rights.is_live and rights.principal.has(READ)
