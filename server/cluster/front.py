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

from collections.abc import Callable, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from ..auth.keyring import Keyring
from ..http.access import Access, sees_totals
from ..http.admission import unasked
from ..http.answers import RETRY_AFTER, json_answer
from ..http.calls import OPEN, READ, Gives, described
from ..http.problems import Problem
from ..http.values import shapes
from ..net.browsers import http_pages
from ..observe.metrics import Metrics
from ..settings.config import Config
from ..site import bare_site

REPORTS_BYTES = 1 << 20
"""Maximum bytes of a body of the cluster's calls."""


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
    site = bare_site(metrics, http_pages(config), Access(keyring), REPORTS_BYTES)
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
