"""`/v1/endpoints`: webhook endpoints: make, show, change, pause, test.

    PUT      201 new, 200 changed           absent members get their defaults; `secret` stays as it was
    DELETE   204; 409 if something is undone and `undone` is missing
    :pause :resume :replay    200 with the new state
    :skip    200 {"from", "to", "undone"}
    :test    200 {"ok", "status", "latency_ms", "reason"}: one post at once, beside the queue

An endpoint's URL and headers may hold credentials, so every call needs the scope admin, and a key with rules
manages only its own endpoints and those that it may have messages delivered to. Header values and secrets are
never shown; secrets have a fingerprint.
"""

import secrets
from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from ...delivery.settling.holds import Holds
from ...delivery.shared import Group
from ...settings.config import Config
from ...settings.times import format_ms
from ...webhook.last_posts import LAST_POSTS
from ...webhook.verdicts import Outcome
from ...webhook.webhooks import EndpointStatus, TooMany, Unknown, Webhooks
from ..access import over_quota, rights_of
from ..answers import put_answer, refusals
from ..backlog import DELETED, DROP, LIST_LOOK_ROWS, LOOK_ROWS, fate_of, refuse_undone
from ..calls import ADMIN, WRITES, Gives, described
from ..requests import body_of, limit_of, name_of
from ..values import shapes
from ..values.endpoint_body import EndpointRequest, wanted_of
from ..values.endpoint_views import endpoint_view
from ..values.scalars import PAGED, WITH_ORDER, WITHOUT_ORDER, Location, rules
from .ordering_keys import OrderingKeyRoutes
from .places import PlaceKind, Places, Verbs

ONE = "/v1/endpoints/{name:[^/]+(?<!:pause)(?<!:resume)(?<!:test)(?<!:replay)(?<!:skip)}"
"""The path of an endpoint; paths with a verb behind it have their own handlers, for every method."""
TEST_BYTES = 16
"""Random bytes in the id of a test."""
TEST_WAIT_S = 1.0
LISTED = 5
"""Last answers of each endpoint in a list."""

_ENDPOINT = msgspec.json.Decoder(EndpointRequest)


class EndpointRoutes:
    def __init__(self, places: Places, webhooks: Webhooks, holds: Holds, config: Config) -> None:
        self._places = places
        self._webhooks = webhooks
        self._config = config
        self._kind = PlaceKind(
            "endpoint",
            "name",
            ADMIN,
            shapes.Endpoint,
            self._found,
            lambda group, rights: webhooks.has(group) and webhooks.is_managed(group.endpoint, rights),
            self._answer,
            webhooks.pause,
        )
        self._keys = OrderingKeyRoutes(self._kind, places, holds)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/endpoints", self.list),
            web.put(ONE, self.put),
            web.get(ONE, self.get),
            web.delete(ONE, self.delete),
            *Verbs(self._kind, self._places).routes(),
            *self._keys.routes(),
            web.post("/v1/endpoints/{name}:test", self.test),
        ]

    @described("Endpoints by name", ADMIN, query=PAGED)
    async def list(self, request: web.Request) -> shapes.EndpointPage:
        limit, cursor, rights = limit_of(request), request.query.get("cursor", ""), rights_of(request)
        every = [name for name in self._webhooks.registry.names() if name > cursor]
        names = [name for name in every if self._webhooks.is_managed(name, rights)]

        def view(name: str) -> shapes.Endpoint | None:
            status = self._webhooks.status(name)
            if status is None or not self._webhooks.is_managed(name, rights):
                return None
            return self._view(status, LIST_LOOK_ROWS, LISTED)

        views, following = await self._places.page(request, names, limit, view)
        return shapes.EndpointPage(following, views)

    @described("An endpoint", ADMIN, problems=("not-found",))
    async def get(self, request: web.Request) -> shapes.Endpoint:
        await self._places.turns.of(request).begin()
        return self._view(self._status(request))

    @described(
        "Make an endpoint, or change it in place",
        ADMIN,
        Gives(201, shapes.Endpoint, {"Location": Location}),
        Gives(200, shapes.Endpoint, description="it was there"),
        body=Annotated[EndpointRequest, rules(WITH_ORDER, WITHOUT_ORDER)],
        example={"url": "https://shop.example.com/hooks/due", "concurrency": 4, "timeout": "10s"},
        problems=WRITES,
    )
    async def put(self, request: web.Request) -> web.Response:
        name = name_of(request)
        wanted = wanted_of(await body_of(request, _ENDPOINT), self._config)
        with refusals():
            status, is_new = await self._webhooks.put(name, wanted, rights_of(request))
        return put_answer(self._view(status), is_new=is_new, where=f"/v1/endpoints/{name}")

    @described(
        "Forget an endpoint",
        ADMIN,
        query=DELETED,
        problems=("not-found", "undone", *WRITES),
    )
    async def delete(self, request: web.Request) -> None:
        """Unfinished messages become dead letters or are dropped, as the query says."""
        name, fate = request.match_info["name"], fate_of(request)

        def may_go(group: Group) -> bool:
            return fate is not None or not self._places.is_undone(group, LOOK_ROWS)

        try:
            with refusals():
                left = await self._webhooks.drop(name, rights_of(request), may_go, is_dead=fate != DROP)
        except Unknown:
            raise self._kind.unknown(request) from None
        if left is not None:
            raise refuse_undone(f"the endpoint {name!r}", self._places.undone([left]))

    @described(
        "Post to an endpoint at once, beside the queue, and tell what came of it",
        ADMIN,
        problems=("not-found", "over-quota"),
    )
    async def test(self, request: web.Request) -> shapes.Tried:
        name = self._status(request).endpoint.name
        message = f"test_{secrets.token_hex(TEST_BYTES)}"
        now = format_ms(self._places.clock.wall_ms())
        sent = {"type": "fasti.test", "endpoint": name, "timestamp": now, "data": {"endpoint": name}}
        try:
            with refusals():
                verdict, reply = await self._webhooks.try_out(name, message, msgspec.json.encode(sent))
        except Unknown:
            raise self._kind.unknown(request) from None
        except TooMany:
            raise over_quota("Too many endpoints are being tested now.", TEST_WAIT_S) from None
        return shapes.Tried(
            ok=verdict.outcome is Outcome.DONE,
            status=reply.status or None,
            latency_ms=reply.latency_ms,
            reason=verdict.reason or None,
            webhook_id=message,
        )

    # -- helpers

    def _status(self, request: web.Request) -> EndpointStatus:
        status = self._webhooks.status(request.match_info["name"])
        if status is None or not self._webhooks.is_managed(status.endpoint.name, rights_of(request)):
            raise self._kind.unknown(request)
        return status

    def _found(self, request: web.Request) -> Sequence[Group]:
        group = self._status(request).group
        if group is None:
            raise self._kind.unknown(request)
        return [group]

    async def _answer(self, request: web.Request, changed: Sequence[Group]) -> shapes.Endpoint:  # noqa: ARG002
        return self._view(self._status(request))

    def _view(
        self, status: EndpointStatus, look_rows: int = LOOK_ROWS, answers: int = LAST_POSTS
    ) -> shapes.Endpoint:
        group = status.group
        place_status = None if group is None else self._places.status_of(group, look_rows)
        return endpoint_view(status, place_status, self._webhooks.now_ms, answers)
