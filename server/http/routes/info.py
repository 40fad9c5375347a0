"""`/v1/info`, `/v1/drain`, and calls for machines: `/livez`, `/readyz`, `/metrics`.

The process is live if its loop turns. It is ready if it has caught up with its timeline and can write. While
it drains it stays ready: behind a load balancer workers could not ack what they have otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Literal, Protocol

from aiohttp import web
from msgspec import UNSET, UnsetType
from prometheus_client import CONTENT_TYPE_LATEST

from ...build import form
from ...delivery.drain import Drain, StopFollows
from ...engine.clock import Clock
from ...engine.writer import Writer
from ...observe.metrics import Metrics
from ...observe.version import server_version
from ...settings.kinds import Address
from ...settings.times import format_ms
from ..access import sees, sees_totals
from ..answers import RETRY_AFTER
from ..calls import ADMIN, ANY, OPEN, READ, Gives, described
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


@dataclass(frozen=True, slots=True, eq=False)
class Info:
    """The routes."""

    clock: Clock
    writer: Writer
    counters: Metrics
    status: Looking
    """Takes costly measurements."""
    turns: Turns
    drain: Drain
    _: KW_ONLY
    node: int
    url: Callable[[str], str]
    """The address for a client with this Host."""
    mqtt: Callable[[str], Sequence[Address]]
    is_ready: Callable[[], bool]
    """Whether the server has caught up."""
    thread: OneThread = field(default_factory=partial(OneThread, "metrics"))

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/info", self.info),
            web.post("/v1/drain", self.begin_drain),
            web.post("/v1/drain:cancel", self.cancel_drain),
            web.get("/livez", self.live),
            web.get("/readyz", self.ready),
            web.get("/metrics", self.metrics),
        ]

    @described("Version, clock, build, MQTT listeners", ANY)
    async def info(self, request: web.Request) -> shapes.Info:
        return shapes.Info(
            version=server_version(),
            node=self.node,
            clock="simulated" if self.clock.is_simulated else "system",
            build=form(),
            now=format_ms(self.clock.wall_ms()),
            url=self.url(request.host),
            mqtt=[listener_view(one, str(one)) for one in self.mqtt(request.host)],
            draining=self.drain.since_ms is not None,
        )

    @described("Give groups and endpoints nothing new, for maintenance", ADMIN)
    async def begin_drain(self, _: web.Request) -> shapes.Drain:
        self.drain.begin(self.clock.wall_ms())
        return self._drained()

    @described("End the drain: groups and endpoints go on", ADMIN, problems=("wrong-state",))
    async def cancel_drain(self, _: web.Request) -> shapes.Drain:
        try:
            self.drain.cancel()
        except StopFollows as error:
            raise Problem("wrong-state", str(error)) from None
        return self._drained()

    def _drained(self) -> shapes.Drain:
        since_ms = self.drain.since_ms
        since = None if since_ms is None else format_ms(since_ms)
        return shapes.Drain(since_ms is not None, since, self.drain.out)

    @described("Whether the process lives", OPEN, query=None)
    async def live(self, _: web.Request) -> shapes.Status:
        return shapes.Status("ok")

    @described("Whether it can serve", OPEN, query=None, problems=("not-ready",))
    async def ready(self, _: web.Request) -> shapes.Status:
        if not self.is_ready():
            raise Problem(
                "not-ready", "The timeline is loading, or the server is stopping.", headers=RETRY_AFTER
            )
        if self.writer.broken is not None:
            why = why_unavailable(self.writer.broken)
            raise Problem("not-ready", f"The store takes no writes. {why}", headers=RETRY_AFTER)
        return shapes.Status("ok") if self.drain.since_ms is None else shapes.Status("draining", True)

    @described("Prometheus metrics", READ, Gives(200, str, media="text/plain"), query=None)
    async def metrics(self, request: web.Request) -> web.Response:
        await self.status.look(self.turns.of(request))
        # For this answer: no other answer comes in between, and rules may have changed during the look.
        self.status.is_whole = sees(request) is None
        collected = self.counters.collected(is_whole=sees_totals(request))
        body = await self.turns.of(request).in_thread(self.thread, collected.text)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
