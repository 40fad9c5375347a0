"""Builds the HTTP side: the parts of the app that each resource uses, and the middlewares of every request.

From the outside in: the count of answers, CORS, problems for exceptions, keys, the bound on bodies, keys
again when a body has arrived, the lease of a cluster's leader, the route. The resources themselves
(server/http) know only the parts that they get, not the app.
"""

import re
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from aiohttp import web
from aiohttp.typedefs import Middleware

from .console.pages import Console, shipped
from .http.access import Access
from .http.admission import Admission, unasked
from .http.answers import RETRY_AFTER, Handler, name_server
from .http.bulk import BulkParts
from .http.cors import opening, preflight
from .http.cursors import Cursors
from .http.desk import Desk
from .http.following import Following
from .http.intake import Intake
from .http.leasing import Leasing
from .http.openapi import OpenApi
from .http.problems import Problem, problem_middleware
from .http.routes.backups import Backups
from .http.routes.batch import Batch
from .http.routes.calendar import Calendar
from .http.routes.clock import ClockRoutes
from .http.routes.control import Control
from .http.routes.dead import DeadRoutes
from .http.routes.endpoints import EndpointRoutes
from .http.routes.events import Events
from .http.routes.explain import Explain
from .http.routes.export import Export
from .http.routes.groups import GroupRoutes
from .http.routes.history import HistoryRoutes
from .http.routes.info import Info
from .http.routes.jobs import JobRoutes
from .http.routes.leases import LeaseRoutes
from .http.routes.listing import Listing
from .http.routes.messages import Messages
from .http.routes.places import Places
from .http.routes.results import WAITS_MAX, ResultRoutes
from .http.routes.retries import RetryRoutes
from .http.routes.schedules import ScheduleRoutes
from .http.routes.sessions import SessionRoutes
from .http.routes.slices import Slices
from .http.routes.tail import TailRoutes
from .http.routes.timeline import TimelineRoutes
from .http.spread import Spreader
from .http.written import Written
from .net.browsers import Pages, http_pages
from .observe.metrics import Metrics
from .rounds.app import App
from .settings.kinds import Address
from .settings.public import public_mqtt, public_url

TIMELINE_PATHS, CLUSTER_PATHS = "/v1/", "/v1/cluster"
"""Calls that a leader answers, but for those that any node does."""

PARAMETER = re.compile(r"\{(\w+)\}")
"""In a path."""


def build_site(
    app: App, listening: Sequence[Address], more: Sequence[web.RouteDef] = ()
) -> tuple[web.Application, Desk]:
    """The routes that serve `app`, and its quick path. `listening`: MQTT's listeners, for /v1/info. `more`:
    routes that are not the app's."""
    core = app.core
    ask, metrics, hooks = app.ask, app.metrics, app.webhooks
    config, clock, writer, store = core.config, core.clock, core.writer, core.opened.store
    http, limits, slices, shards = config.http, config.limits, config.slices, config.shards
    timeline, turns = app.status.timeline, app.turns
    intake = Intake(ask, Spreader(timeline), turns, hooks, core.retained)
    cursors = Cursors(secrets.token_bytes(32))
    bulk = BulkParts(ask, clock, timeline, cursors, turns, limits.max_delay_ms)
    places = Places(ask, clock, timeline, turns, core.router, core.replay)
    leasing = Leasing(core.pull, core.groups, core.subscriptions, config, node=core.node)
    progress, waits = core.leases.progress, app.streams.beside(WAITS_MAX)
    access, admission, pages = Access(app.keyring), Admission(config, writer), http_pages(config)

    def has_lease() -> bool:
        return app.has_lease

    inner = (admission.bound, access.check_again, only_with_lease(has_lease))
    site = bare_site(metrics, pages, access, http.max_body, *inner)
    parts = core.deliveries, metrics, core.router, limits, core.traces
    messages = Messages(ask, intake, clock, timeline, turns, *parts)
    for resource in (
        Batch(
            intake,
            clock,
            timeline,
            turns,
            admission.bodies,
            metrics,
            limits,
            core.traces,
            max_batch=http.max_batch,
        ),
        Control(bulk, metrics),
        DeadRoutes(bulk, core.dead_letters, core.groups),
        RetryRoutes(bulk, core.kept_retries),
        Export(timeline, turns),
        LeaseRoutes(
            ask,
            leasing,
            core.groups,
            turns,
            Following(core.settling, intake, clock, limits, metrics, core.traces),
        ),
        messages,
        ResultRoutes(clock, messages.shown, core.deliveries, core.settling.awaited, waits),
        Listing(timeline, cursors, turns, core.deliveries.outcomes),
        Explain(clock, timeline, core.wheel, core.groups, messages.shown),
        Slices(timeline, shards, app.figures.held_by, split_above=slices.split_above),
        TimelineRoutes(clock, timeline, turns, core.kept_retries),
        ScheduleRoutes(ask, clock, timeline, turns, admission.fires, core.schedules, hooks, limits),
        Calendar(clock, timeline, turns, admission.fires, core.schedules),
        SessionRoutes(places, core.sessions, core.groups, core.clients),
        GroupRoutes(places, core.groups, core.subscriptions, core.holds, config),
        EndpointRoutes(places, hooks, core.holds, config),
        Events(app.streams, app.figures.moving),
        TailRoutes(
            app.tails, turns, core.tail, core.router, core.owners, core.sent, progress, node=core.node
        ),
        HistoryRoutes(clock, turns, app.history),
        ClockRoutes(app.simulation.advance),
        JobRoutes(app.pipeline, app.splits, app.expiries.archiving, app.expiries, slices),
        Backups(store.checkpoint, app.workers.in_thread, config.store),
        Info(
            clock,
            writer,
            metrics,
            app.status,
            turns,
            core.groups.loans.drain,
            node=core.node,
            url=partial(public_url, config),
            mqtt=partial(public_mqtt, config, listening),
            is_ready=lambda: app.is_ready and app.has_lease,
        ),
        OpenApi(has_api_keys=app.keyring.has_api_keys),
        Console(shipped()),
    ):
        site.router.add_routes([_routed(route) for route in resource.routes()])
    site.router.add_routes([_routed(route) for route in more])
    desk = Desk(
        writer,
        clock,
        timeline,
        metrics,
        http,
        limits,
        admission,
        Written(metrics, pages),
        access,
        core.traces,
        leasing,
        has_lease,
    )
    return site, desk


def bare_site(
    metrics: Metrics, pages: Pages, access: Access, max_bytes: int, *inner: Middleware
) -> web.Application:
    """An application without routes: what happens to every request. `max_bytes`: of a body. `inner`: further
    middlewares."""
    outer = (count_answers(metrics), preflight(pages), problem_middleware, access.check)
    site = web.Application(middlewares=(*outer, *inner), client_max_size=max_bytes)
    site.on_response_prepare.append(opening(pages))
    site.on_response_prepare.append(name_server)
    return site


def _routed(route: web.RouteDef) -> web.RouteDef:
    """A route whose clients get "100 Continue" from admission control. Its parameters may have braces, which
    are not aiohttp's way."""
    path = PARAMETER.sub(r"{\1:[^/]+}", route.path)
    return web.RouteDef(route.method, path, route.handler, {**route.kwargs, "expect_handler": unasked})


def only_with_lease(has_lease: Callable[[], bool]) -> Middleware:
    """A leader that was cut off, or stood still, does not know what another has done since: it gives no
    answer that it has without the log."""

    @web.middleware
    async def checking(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith(TIMELINE_PATHS) or request.path.startswith(CLUSTER_PATHS):
            return await handler(request)
        if not has_lease():
            raise _no_leader()
        response = await handler(request)
        if request.method in ("GET", "HEAD") and not response.prepared and not has_lease():
            raise _no_leader()
        return response

    return checking


def _no_leader() -> Problem:
    return Problem("no-leader", "this node no longer leads", headers=RETRY_AFTER)


def count_answers(metrics: Metrics) -> Middleware:
    """Outermost middleware: counts answers."""

    @web.middleware
    async def counting(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = monotonic()
        response = await handler(request)
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        # A stream takes as long as its client wants.
        took_ms = int((monotonic() - began) * 1_000) if isinstance(response, web.Response) else None
        metrics.answered(request.method if path else "", path, response.status, took_ms)
        return response

    return counting
