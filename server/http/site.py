"""The HTTP side put together: routes of all resources, and what every request passes through.

From the outside in: the count of answers, problems made of exceptions, the bound on bodies, the route.
"""

from aiohttp import web
from aiohttp.typedefs import Middleware

from ..app import App
from ..jobs import Housekeeping
from ..metrics import ServerCollector
from ..spread import Spreader
from .answers import Handler
from .backups import Backups
from .batch import Batch
from .clock import ClockRoutes
from .control import Control
from .explain import Explain
from .export import Export
from .gate import Gate
from .info import Info
from .jobs import JobRoutes
from .listing import Listing
from .messages import Messages
from .openapi import OpenApi
from .problems import problem_middleware
from .schedules import ScheduleRoutes
from .sessions import SessionRoutes
from .slices import Slices
from .timeline import TimelineRoutes


def build_site(app: App, housekeeping: Housekeeping, gate: Gate) -> web.Application:
    """The application that serves `app`; its metrics then tell of the server too."""
    site = web.Application(
        middlewares=[_counting(app), problem_middleware, gate.middleware()],
        client_max_size=app.config.http.max_body,
    )
    spreader = Spreader(app)
    for resource in (
        Batch(app, spreader),
        Control(app),
        Export(app),
        Messages(app, spreader),
        Listing(app),
        Explain(app),
        Slices(app),
        TimelineRoutes(app),
        ScheduleRoutes(app),
        SessionRoutes(app),
        ClockRoutes(app, housekeeping),
        JobRoutes(app),
        Backups(app),
        Info(app),
        OpenApi(),
    ):
        site.router.add_routes(resource.routes())
    app.metrics.registry.register(ServerCollector(app, housekeeping))
    return site


def _counting(app: App) -> Middleware:
    answers = app.metrics.answers

    @web.middleware
    async def counting(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        answers[request.method if path else "", path, response.status] += 1
        return response

    return counting
