"""HTTP of a node that does not lead: redirects to the leader.

    the calls of the cluster, /livez, /readyz, /metrics     answered here
    everything else                                         307 to the node that leads, or 503 and Retry-After

A redirect needs no key: every node tells any client where the leader is. Path and query are kept byte by
byte. Connections are those of a server (server/http/front.py), with all their bounds, but without the quick
path. So unreadable requests, or those for another host, are refused here and not redirected.

A redirect does not read the body. An announced body is discarded as it comes, as after any early answer, and
the connection stays open. It is closed if the client waits for "100 Continue" or the end of its body is
unknown, since the start of the next request is then unknown.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from ..auth.keyring import Keyring
from ..fair import Part
from ..http.access import Access, sees_totals
from ..http.admission import unasked
from ..http.answers import RETRY_AFTER, json_answer, name_server
from ..http.calls import OPEN, READ, Gives, described
from ..http.cors import opening, preflight
from ..http.desk import Others
from ..http.front import Front as Connection
from ..http.front import begin
from ..http.problems import Problem, problem_middleware
from ..http.protocol import Protocol
from ..http.values import shapes
from ..http.written import Written
from ..net.acceptor import Acceptor, Ports
from ..net.browsers import Pages, http_pages
from ..net.crowd import Cause, Crowd, http_bounds
from ..net.loop_time import LoopTime
from ..net.pool import Pool
from ..net.proxies import proxies_of
from ..net.tls import Certificates
from ..observe.metrics import Metrics
from ..settings.config import Config, Http
from ..site import count_answers

REPORTS_BYTES = 1 << 20
"""Maximum bytes of a body of the cluster's calls."""
CLOSE_S = 0.1
"""How long clients may take to read their answers when this node begins to lead: others wait for it."""
HANDLERS_S = 0.5
"""How long handlers may run, twice, after their connections have ended."""


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
        why: Callable[[], str],
        pool: Pool,
        ports: Ports,
    ) -> None:
        """`routes`: the cluster's. `where`: the leader's URL; empty: unknown. `why`: what keeps this node
        from leading; empty: nothing."""
        self._config = config
        self._tls = tls
        self._metrics = metrics
        self._pages = http_pages(config)
        self._time = LoopTime(monotonic, Part(), metrics.turned)
        self._pool = pool
        proxies = proxies_of(config)
        self._crowd = Crowd[Connection](http_bounds(config.http), metrics.bounded, metrics.tell_http, proxies)
        self._acceptor = Acceptor(
            self._crowd,
            self._time,
            ports,
            needs_header=False,
            handshake_bound="http.head_timeout",
            handshake_s=config.http.head_timeout_ms / 1000,
        )
        site = build_front(self._pages, keyring, metrics, routes, where, why)
        self._runner = web.AppRunner(site, shutdown_timeout=HANDLERS_S)

    async def open(self) -> int:
        """Start listening; returns the port. Raises OSError."""
        await self._runner.setup()
        assert self._runner.server is not None
        others = partial(Protocol, self._runner.server, loop=asyncio.get_running_loop())
        written = Written(self._metrics, self._pages)
        desk = RedirectDesk(
            self._config.http, self._crowd, self._pool, self._pages, others, self._time, written
        )
        context = None if self._tls is None else self._tls.context
        return await self._acceptor.open(self._config.http.listen, partial(begin, desk), context)

    async def close(self) -> None:
        """Stop accepting, give running answers a moment, then close all."""
        self._acceptor.close()
        await self._crowd.close(Cause.STOPPING, CLOSE_S)
        await self._runner.cleanup()


@dataclass(frozen=True, slots=True)
class RedirectDesk:
    """Shared by the connections: implements `server.http.front.Place`."""

    http: Http
    crowd: Crowd[Connection]
    pool: Pool
    pages: Pages
    others: Others
    """The handler that answers."""
    time: LoopTime
    written: Written
    quick: None = None
    is_open: bool = False

    def check_length(self, length: int | None) -> None:
        """Any length: the leader decides."""

    def refusal(self, problem: Problem, head: bytes) -> bytes:
        return self.written.refusal(problem, head)


def build_front(
    pages: Pages,
    keyring: Keyring,
    metrics: Metrics,
    routes: Sequence[web.RouteDef],
    where: Callable[[], str],
    why: Callable[[], str],
) -> web.Application:
    """The application of a node that does not lead."""
    site = web.Application(
        middlewares=[
            count_answers(metrics),
            preflight(pages),
            problem_middleware,
            Access(keyring).middleware(),
        ],
        client_max_size=REPORTS_BYTES,
    )
    site.on_response_prepare.append(opening(pages))
    site.on_response_prepare.append(name_server)
    site.router.add_routes(routes)
    site.router.add_routes(Redirects(metrics, where, why).routes())
    return site


class Redirects:
    """Health calls, and the redirect of everything else."""

    def __init__(self, metrics: Metrics, where: Callable[[], str], why: Callable[[], str]) -> None:
        self._metrics = metrics
        self._where = where
        self._why = why

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/livez", self.live),
            web.get("/readyz", self.ready),
            web.get("/metrics", self.metrics),
            web.route("*", "/{path:.*}", self.away, expect_handler=unasked),
        ]

    @described("Whether the process lives", OPEN, Gives(200, shapes.Status), query=None)
    async def live(self, _: web.Request) -> web.Response:
        return json_answer({"status": "ok"})

    @described("Whether it can serve", OPEN, Gives(200, shapes.Status), query=None, problems=("not-ready",))
    async def ready(self, _: web.Request) -> web.Response:
        why = self._why()
        detail = f"This node does not lead: {why}." if why else "This node does not lead."
        raise Problem("not-ready", detail, headers=RETRY_AFTER)

    @described("Prometheus metrics", READ, Gives(200, str, media="text/plain"), query=None)
    async def metrics(self, request: web.Request) -> web.Response:
        body = self._metrics.collected(is_whole=sees_totals(request)).text()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @described("Where the leader is", OPEN, Gives(307), query=None, problems=("no-leader",))
    async def away(self, request: web.Request) -> web.Response:
        """Redirect, with path and query unchanged."""
        where = self._where()
        if where:
            answer = web.Response(status=307, headers={"Location": where + _target_of(request)})
        else:
            answer = Problem("no-leader", "no node leads at the moment", headers=RETRY_AFTER).response()
        if request.body_exists and (request.content_length is None or "Expect" in request.headers):
            answer.force_close()
        return answer


def _target_of(request: web.Request) -> str:
    """Path and query; a target may be a whole URL, whose authority has been compared with Host."""
    raw = request.raw_path
    return raw if raw.startswith("/") else "/" + raw.partition("://")[2].partition("/")[2]
