"""HTTP of a node that does not lead: where to go.

    the calls of the cluster, /livez, /readyz, /metrics     answered here
    everything else                                         307 to the node that leads, or 503 and Retry-After

Nobody is asked for a key before a redirect: where the leader is each node tells whoever comes. A connection
has one request, whose head has to come within `http.head_timeout`; its body is not read, but for a while, so
that the answer arrives. Connections are bounded as a server's are.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from aiohttp import web
from aiohttp.typedefs import Middleware
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CONTENT_TYPE_LATEST

from ..accepting import Acceptor, Opening
from ..auth.keyring import Keyring
from ..browsers import ForeignHost, ForeignOrigin, Pages, http_pages
from ..config import Config, Http
from ..http.access import Access
from ..http.answers import RETRY_AFTER, Handler, json_answer, name_server
from ..http.calls import OPEN, READ, Gives, described
from ..http.cors import opening, preflight
from ..http.problems import Problem, problem_middleware
from ..http.values import shapes
from ..logs import by
from ..metrics import Metrics
from ..networks import Networks
from ..tls import Certificates

log = logging.getLogger(__name__)

LINGER_S = 2.0
"""How long a body that nobody wants is read after its answer."""
SHUTDOWN_S = 0.5
READING = ("GET", "HEAD", "OPTIONS", "TRACE")


class Front:
    """Listens at `http.listen`."""

    def __init__(
        self,
        config: Config,
        tls: Certificates | None,
        keyring: Keyring,
        metrics: Metrics,
        routes: Sequence[web.RouteDef],
        where: Callable[[], str],
    ) -> None:
        """`routes`: the cluster's. `where`: the leader's URL, empty: none is known."""
        self._config = config.http
        self._tls = tls
        self._metrics = metrics
        self._networks = Networks()
        self._all: set[Turned] = set()
        self._acceptor = Acceptor(
            metrics.bounded,
            handshake_bound="http.head_timeout",
            handshake_s=config.http.head_timeout_ms / 1000,
        )
        pages = http_pages(config)
        site = web.Application(
            middlewares=[_once(pages), preflight(pages), problem_middleware, Access(keyring).middleware()],
            client_max_size=1 << 20,
        )
        site.on_response_prepare.append(opening(pages))
        site.on_response_prepare.append(name_server)
        site.router.add_routes(routes)
        site.router.add_routes(Away(metrics, where).routes())
        self._runner = web.AppRunner(site, shutdown_timeout=SHUTDOWN_S)

    async def open(self) -> int:
        """Start listening; the port. Raises OSError."""
        await self._runner.setup()
        context = None if self._tls is None else self._tls.context
        return await self._acceptor.open(self._config.listen, self._begin, context)

    async def close(self) -> None:
        """Accept no more, give what is answered a moment, and end all."""
        self._acceptor.close()
        await self._runner.cleanup()
        for turned in list(self._all):
            turned.cut()

    def discard(self, turned: "Turned") -> None:
        if turned in self._all:
            self._all.discard(turned)
            self._networks.discard(turned.address)

    def _begin(self, peer: str) -> Opening | None:
        config = self._config
        bound = ""
        if len(self._all) >= config.connections:
            bound = "http.connections"
        elif self._networks.count(peer) >= config.connections_per_address:
            bound = "http.connections_per_address"
        if bound:
            self._metrics.bounded[bound] += 1
            log.warning("connection refused: as many are open as %s", bound, extra=by(peer))
            return None
        assert self._runner.server is not None
        turned = Turned(self._runner.server, self, peer, config)
        self._all.add(turned)
        self._networks.add(peer)
        return cast("Opening", turned)


class Turned(RequestHandler):
    """One connection of aiohttp's, with a bound on its head."""

    __slots__ = ("_front", "_timer", "address", "is_begun")

    def __init__(self, server: web.Server, front: Front, address: str, config: Http) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self.address = address
        self.is_begun = False
        self._front = front
        self._timer = loop.call_later(config.head_timeout_ms / 1000, self.cut)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_begun = True
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._timer.cancel()
        self._front.discard(self)
        if self.is_begun:
            super().connection_lost(exc)

    def has_head(self) -> None:
        """The request is being answered."""
        self._timer.cancel()

    def cut(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Away:
    """What a machine asks, and everything else."""

    def __init__(self, metrics: Metrics, where: Callable[[], str]) -> None:
        self._metrics = metrics
        self._where = where

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/livez", self.live),
            web.get("/readyz", self.ready),
            web.get("/metrics", self.metrics),
            web.route("*", "/{path:.*}", self.away),
        ]

    @described("Whether the process lives", OPEN, Gives(200, shapes.Status), query=None)
    async def live(self, _: web.Request) -> web.Response:
        return json_answer({"status": "ok"})

    @described("Whether it can serve", OPEN, Gives(200, shapes.Status), query=None, problems=("not-ready",))
    async def ready(self, _: web.Request) -> web.Response:
        raise Problem("not-ready", "this node does not lead", headers=RETRY_AFTER)

    @described("Prometheus metrics", READ, Gives(200, str, media="text/plain"), query=None)
    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @described("Where the leader is", OPEN, Gives(307), query=None, problems=("no-leader",))
    async def away(self, request: web.Request) -> web.Response:
        """The path and query go along as they came."""
        where = self._where()
        if not where:
            raise Problem("no-leader", "no node leads at the moment", headers=RETRY_AFTER)
        return web.Response(status=307, headers={"Location": where + request.raw_path})


def _once(pages: Pages) -> Middleware:
    """Outermost: one request to a connection, and only for this host and from pages that may."""

    @web.middleware
    async def once(request: web.Request, handler: Handler) -> web.StreamResponse:
        cast("Any", request.protocol).has_head()
        answer = await _checked(request, handler)
        answer.force_close()
        return answer

    async def _checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers, transport = request.headers, request.transport
        assert transport is not None
        try:
            pages.check(
                headers.get("Host", ""),
                headers.get("Origin"),
                headers.get("Sec-Fetch-Site", ""),
                transport,
                changes=request.method not in READING,
            )
        except ForeignHost as error:
            return Problem("foreign-host", str(error)).response()
        except ForeignOrigin as error:
            return Problem("foreign-origin", str(error)).response()
        return await handler(request)

    return once
