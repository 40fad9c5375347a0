"""The cluster's calls, on every node: for users, and between nodes.

    GET  /v1/cluster             the cluster as this node sees it
    POST /v1/cluster/nodes       a node's report; answered with all reports
    GET  /v1/cluster/checkpoint  a copy of this node's data (copy_out.py)

Nodes use the cluster's key, which is not in the keys file.

HTTP of a node that does not lead:

    the calls of the cluster, /livez, /readyz, /metrics     answered here
    everything else                                         307 to the node that leads, or 503 and Retry-After

A redirect needs no key: every node tells any client where the leader is. Path and query are kept byte by
byte. Connections are those of a server (server/http/front.py), with all their bounds, but without the quick
path. So unreadable requests, or those for another host, are refused here and not redirected.

A redirect does not read the body. An announced body is discarded as it comes, as after any early answer, and
the connection stays open. It is closed if the client waits for "100 Continue" or the end of its body is
unknown, since the start of the next request is then unknown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from ..auth.keyring import Keyring
from ..http.access import Access, sees_totals
from ..http.admission import unasked
from ..http.answers import RETRY_AFTER, json_answer
from ..http.calls import ANY, OPEN, READ, Gives, described
from ..http.problems import Problem
from ..http.values import shapes
from ..net.browsers import http_pages
from ..observe.metrics import Metrics
from ..settings.config import Config
from ..site import bare_site
from .key import ClusterKey
from .members import Member, Members, Row
from .view import View

REPORT_BYTES = 16 << 10
BODY_BYTES = 1 << 20
"""Maximum bytes of a body of the cluster's calls."""
NODE, CLOCK = "Fasti-Node", "Fasti-Clock"
"""Headers of the answer to a report: the node's name, quoted, and its wall time, ms."""

_REPORT = msgspec.json.Decoder(Member)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterRoutes:
    """The routes that need no store. `wall_ms`: the clock of this `node`, which its answers tell."""

    view: Callable[[], View]
    members: Members
    key: ClusterKey
    node: str
    wall_ms: Callable[[], int]

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/cluster", self.get),
            web.post("/v1/cluster/nodes", self.report),
        ]

    @described("The cluster as this node sees it", ANY, Gives(200, View))
    async def get(self, _: web.Request) -> web.Response:
        return json_answer(self.view())

    @described("A node reports to another", OPEN, Gives(200, list[Row]), query=None)
    async def report(self, request: web.Request) -> web.Response:
        await self.key.check(request)
        if request.content_length is None or request.content_length > REPORT_BYTES:
            raise Problem("too-large", f"A report may have at most {REPORT_BYTES} bytes.")
        try:
            self.members.hear(_REPORT.decode(await request.read()))
        except msgspec.DecodeError as error:
            raise Problem("not-readable", f"The report cannot be read: {error}") from None
        return web.Response(
            body=msgspec.json.encode(list(self.members)),
            content_type="application/json",
            headers={NODE: quote(self.node), CLOCK: str(self.wall_ms())},
        )


def redirecting_site(
    config: Config,
    keyring: Keyring,
    metrics: Metrics,
    routes: Sequence[web.RouteDef],
    where: Callable[[], str],
    why: Callable[[], str],
) -> web.Application:
    """The routes of a node that does not lead. `routes`: the cluster's. `where`: the leader's URL; empty:
    unknown. `why`: what keeps this node from leading; empty: nothing."""
    site = bare_site(metrics, http_pages(config), Access(keyring), BODY_BYTES)
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
