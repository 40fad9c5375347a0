"""`/v1/info`, and what a machine asks: `/livez`, `/readyz`, `/metrics`.

Live is a process whose loop turns. Ready is one that has caught up with its timeline and can write.
"""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from ...app import App
from ...times import format_ms
from ...version import server_version
from ..answers import RETRY_AFTER, json_answer
from ..calls import Gives, described
from ..problems import Problem
from ..values import shapes


class Info:
    """The routes."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._version = server_version()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/info", self.info),
            web.get("/livez", self.live),
            web.get("/readyz", self.ready),
            web.get("/metrics", self.metrics),
        ]

    @described("Version, clock, MQTT listeners", Gives(200, shapes.Info))
    async def info(self, _: web.Request) -> web.Response:
        app = self._app
        view: shapes.Info = {
            "version": self._version,
            "node": app.core.node,
            "clock": "simulated" if app.core.clock.is_simulated else "system",
            "now": format_ms(app.core.clock.wall_ms()),
            "mqtt": app.listening,
        }
        return json_answer(view)

    @described("Whether the process lives", Gives(200, shapes.Status), query=None)
    async def live(self, _: web.Request) -> web.Response:
        return json_answer({"status": "ok"})

    @described("Whether it can serve", Gives(200, shapes.Status), query=None, problems=("not-ready",))
    async def ready(self, _: web.Request) -> web.Response:
        if not self._app.is_ready:
            raise Problem(
                "not-ready", "the timeline is being loaded, or the server stops", headers=RETRY_AFTER
            )
        if self._app.core.writer.broken is not None:
            raise Problem("not-ready", "the store takes no writes", headers=RETRY_AFTER)
        return json_answer({"status": "ok"})

    @described("Prometheus metrics", Gives(200, str, media="text/plain"), query=None)
    async def metrics(self, _: web.Request) -> web.Response:
        body = self._app.metrics.render()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
