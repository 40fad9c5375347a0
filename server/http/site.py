"""The HTTP side put together: routes of all resources, and what every request passes through.

From the outside in: the count of answers, problems made of exceptions, the bound on bodies, the route.
"""

from aiohttp import web
from aiohttp.typedefs import Middleware

from ..app import App
from .answers import Handler
from .gate import Gate
from .openapi import OpenApi
from .problems import problem_middleware
from .routes.backups import Backups
from .routes.batch import Batch
from .routes.clock import ClockRoutes
from .routes.control import Control
from .routes.explain import Explain
from .routes.export import Export
from .routes.info import Info
from .routes.jobs import JobRoutes
from .routes.listing import Listing
from .routes.messages import Messages
from .routes.schedules import ScheduleRoutes
from .routes.sessions import SessionRoutes
from .routes.slices import Slices
from .routes.timeline import TimelineRoutes
from .spread import Spreader


def build_site(app: App, gate: Gate) -> web.Application:
    """The application that serves `app`."""
    site = web.Application(
        middlewares=[_counting(app), problem_middleware, gate.middleware()],
        client_max_size=app.core.config.http.max_body,
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
        ClockRoutes(app.simulation.advance),
        JobRoutes(app),
        Backups(app),
        Info(app),
        OpenApi(),
    ):
        site.router.add_routes(resource.routes())
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
