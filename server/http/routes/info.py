"""`/v1/info`, and calls for machines: `/livez`, `/readyz`, `/metrics`.

The process is live if its loop turns. It is ready if it has caught up with its timeline and can write.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from aiohttp import web
from msgspec import UNSET, UnsetType
from prometheus_client import CONTENT_TYPE_LATEST

from ...build import form
from ...engine.clock import Clock
from ...engine.writer import Writer
from ...observe.metrics import Metrics
from ...observe.version import server_version
from ...settings.kinds import Address
from ...settings.times import format_ms
from ..access import sees, sees_totals
from ..answers import RETRY_AFTER
from ..calls import ANY, OPEN, READ, Gives, described
from ..problems import Problem, why_unavailable
from ..turns import OneThread, Turn, Turns
from ..values import shapes

TRANSPORTS: dict[str, Literal["tcp", "tls", "ws", "wss"]] = {
    "mqtt": "tcp",
    "mqtts": "tls",
    "ws": "ws",
    "wss": "wss",
}


class Looking(Protocol):
    """Takes measurements before `metrics.collected`. `is_whole`: the caller may see single clients."""

    is_whole: bool

    async def look(self, turn: Turn) -> None: ...


def listener_view(address: Address, url: str | UnsetType = UNSET) -> shapes.Listener:
    """An address of MQTT with a scheme."""
    return shapes.Listener(TRANSPORTS[address.scheme], address.host, address.port, url)


class Info:
    """The routes."""

    def __init__(
        self,
        clock: Clock,
        writer: Writer,
        metrics: Metrics,
        status: Looking,
        turns: Turns,
        *,
        node: int,
        url: Callable[[str], str],
        mqtt: Callable[[str], Sequence[Address]],
        is_ready: Callable[[], bool],
    ) -> None:
        """`status`: takes costly measurements. `url`, `mqtt`: the addresses for a client with this
        Host. `is_ready`: whether the server has caught up."""
        self._clock = clock
        self._writer = writer
        self._metrics = metrics
        self._status = status
        self._turns = turns
        self._node = node
        self._url = url
        self._mqtt = mqtt
        self._is_ready = is_ready
        self._thread = OneThread("metrics")
        self._version = server_version()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/info", self.info),
            web.get("/livez", self.live),
            web.get("/readyz", self.ready),
            web.get("/metrics", self.metrics),
        ]

    @described("Version, clock, build, MQTT listeners", ANY)
    async def info(self, request: web.Request) -> shapes.Info:
        return shapes.Info(
            version=self._version,
            node=self._node,
            clock="simulated" if self._clock.is_simulated else "system",
            build=form(),
            now=format_ms(self._clock.wall_ms()),
            url=self._url(request.host),
            mqtt=[listener_view(one, str(one)) for one in self._mqtt(request.host)],
        )

    @described("Whether the process lives", OPEN, query=None)
    async def live(self, _: web.Request) -> shapes.Status:
        return shapes.Status("ok")

    @described("Whether it can serve", OPEN, query=None, problems=("not-ready",))
    async def ready(self, _: web.Request) -> shapes.Status:
        if not self._is_ready():
            raise Problem(
                "not-ready", "The timeline is loading, or the server is stopping.", headers=RETRY_AFTER
            )
        if self._writer.broken is not None:
            why = why_unavailable(self._writer.broken)
            raise Problem("not-ready", f"The store takes no writes. {why}", headers=RETRY_AFTER)
        return shapes.Status("ok")

    @described("Prometheus metrics", READ, Gives(200, str, media="text/plain"), query=None)
    async def metrics(self, request: web.Request) -> web.Response:
        await self._status.look(self._turns.of(request))
        # For this answer: no other answer comes in between, and rules may have changed during the look.
        self._status.is_whole = sees(request) is None
        collected = self._metrics.collected(is_whole=sees_totals(request))
        body = await self._turns.of(request).in_thread(self._thread, collected.text)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
