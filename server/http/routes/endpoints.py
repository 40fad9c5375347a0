"""`/v1/endpoints`: where messages are posted, made, looked at, changed, paused, tried.

    PUT      201 new, 200 changed           absent members are as the settings say; `secret` stays as it was
    DELETE   204; 409 if something is undone and it is not said what becomes of that
    :pause :resume :replay    200, as it stands then
    :skip    200 {"from", "to", "undone"}
    :test    200 {"ok", "status", "latency_ms", "reason"}: one post at once, beside the queue

An endpoint's URL and headers may hold what opens somebody's door, so all of this needs the scope admin.
Values of headers are never shown, nor are secrets: of these there is a fingerprint.
"""

import re
import secrets

import msgspec
from aiohttp import web

from shards.commit import Commit

from ...delivery.burials import SKIPPED
from ...delivery.replay import Replay
from ...delivery.router import Router
from ...delivery.shared import Group
from ...engine.clock import Clock
from ...engine.writer import Ask
from ...settings.config import Config
from ...settings.times import format_ms
from ...webhook.verdicts import Outcome
from ...webhook.webhooks import Standing, TooMany, Unknown, Webhooks
from ..access import over_quota, rights_of
from ..answers import asked, json_answer, refusals
from ..calls import ADMIN, WRITES, Gives, described
from ..lag import LIST_LOOK_ROWS, LOOK_ROWS, REWIND, Rewind, lag_of, position_of
from ..problems import Problem
from ..requests import body_of, limit_of
from ..timeline import Timeline
from ..turns import Turns
from ..undone import (
    DELETED,
    DROP,
    SKIP,
    Skip,
    fate_of,
    is_undone,
    refuse_undone,
    skip_position,
    skipped,
    undone_of,
)
from ..values import shapes
from ..values.bodies import FieldError
from ..values.endpoint_body import EndpointRequest, wanted_of
from ..values.endpoint_views import endpoint_view
from ..values.scalars import PAGED, Location

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
ONE = "/v1/endpoints/{name:[^/]+(?<!:pause)(?<!:resume)(?<!:test)(?<!:replay)(?<!:skip)}"
"""The path of one; with a verb behind it the others answer, to every method."""
TEST_BYTES = 16
"""Of chance, in the id of a test."""
TEST_WAIT_S = 1.0

_ENDPOINT = msgspec.json.Decoder(EndpointRequest)


class EndpointRoutes:
    """The routes."""

    def __init__(
        self,
        ask: Ask,
        clock: Clock,
        timeline: Timeline,
        turns: Turns,
        router: Router,
        replay: Replay,
        webhooks: Webhooks,
        config: Config,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._timeline = timeline
        self._turns = turns
        self._router = router
        self._replay = replay
        self._webhooks = webhooks
        self._config = config

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/endpoints", self.list),
            web.put(ONE, self.put),
            web.get(ONE, self.get),
            web.delete(ONE, self.delete),
            web.post("/v1/endpoints/{name}:pause", self.pause),
            web.post("/v1/endpoints/{name}:resume", self.resume),
            web.post("/v1/endpoints/{name}:replay", self.replay),
            web.post("/v1/endpoints/{name}:skip", self.skip),
            web.post("/v1/endpoints/{name}:test", self.test),
        ]

    @described("Endpoints by name", ADMIN, Gives(200, shapes.EndpointPage), query=PAGED)
    async def list(self, request: web.Request) -> web.Response:
        limit, cursor = limit_of(request), request.query.get("cursor", "")
        names = [name for name in self._webhooks.registry.names() if name > cursor]
        views = []
        turn = self._turns.of(request)
        for name in names[:limit]:
            await turn.begin()
            standing = self._webhooks.standing(name)
            if standing is not None:
                views.append(self._view(standing, LIST_LOOK_ROWS))
        page: shapes.EndpointPage = {
            "endpoints": views,
            "next": names[limit - 1] if len(names) > limit else None,
        }
        return json_answer(page)

    @described("An endpoint", ADMIN, Gives(200, shapes.Endpoint), problems=("not-found",))
    async def get(self, request: web.Request) -> web.Response:
        await self._turns.of(request).begin()
        return json_answer(self._view(self._standing(request), LOOK_ROWS))

    @described(
        "Make an endpoint, or change it in place",
        ADMIN,
        Gives(201, shapes.Endpoint, {"Location": Location}),
        Gives(200, shapes.Endpoint, said="it was there"),
        body=EndpointRequest,
        example={"url": "https://shop.example.com/hooks/due", "concurrency": 4, "timeout": "10s"},
        problems=WRITES,
    )
    async def put(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not NAME.fullmatch(name):
            raise FieldError("name", "has 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'")
        wanted = wanted_of(await body_of(request, _ENDPOINT), self._config)
        with refusals():
            standing, is_new = await self._webhooks.put(name, wanted, rights_of(request))
        answer = json_answer(self._view(standing, LOOK_ROWS), 201 if is_new else 200)
        if is_new:
            answer.headers["Location"] = f"/v1/endpoints/{name}"
        return answer

    @described(
        "Forget an endpoint",
        ADMIN,
        Gives(204),
        query=DELETED,
        problems=("not-found", "undone", *WRITES),
    )
    async def delete(self, request: web.Request) -> web.Response:
        """What it has not finished becomes dead letters, or is dropped, as the query says."""
        name, fate = request.match_info["name"], fate_of(request)

        def may_go(group: Group) -> bool:
            return fate is not None or not is_undone(group, self._timeline, self._router, LOOK_ROWS)

        try:
            with refusals():
                left = await self._webhooks.drop(name, may_go, is_dead=fate != DROP)
        except Unknown:
            raise _unknown(name) from None
        if left is not None:
            raise refuse_undone(f"the endpoint {name!r}", [self._undone(left)])
        return web.Response(status=204)

    @described(
        "Post nothing to an endpoint until it is resumed",
        ADMIN,
        Gives(200, shapes.Endpoint),
        problems=("not-found", *WRITES),
    )
    async def pause(self, request: web.Request) -> web.Response:
        return await self._switch(request, is_paused=True)

    @described(
        "Post to an endpoint again", ADMIN, Gives(200, shapes.Endpoint), problems=("not-found", *WRITES)
    )
    async def resume(self, request: web.Request) -> web.Response:
        return await self._switch(request, is_paused=False)

    async def _switch(self, request: web.Request, *, is_paused: bool) -> web.Response:
        name, webhooks = request.match_info["name"], self._webhooks
        try:
            with refusals():
                standing = await (webhooks.pause(name) if is_paused else webhooks.resume(name))
        except Unknown:
            raise _unknown(name) from None
        return json_answer(self._view(standing, LOOK_ROWS))

    @described(
        "Set the read position of an endpoint back",
        ADMIN,
        Gives(200, shapes.Endpoint),
        body=Rewind,
        example={"from": "PT1H"},
        problems=("not-found", *WRITES),
    )
    async def replay(self, request: web.Request) -> web.Response:
        """Set the read position back; it never moves forward."""
        name = request.match_info["name"]
        self._standing(request)
        wish = await body_of(request, REWIND)
        place = position_of(wish.since, self._clock.wall_ms())

        def rewind(commit: Commit) -> bool:
            standing = self._webhooks.standing(name)
            if standing is None or standing.group is None:
                return False
            self._replay.rewind(commit, standing.group, place)
            return True

        if not await asked(self._ask, rewind):
            raise _unknown(name)
        return json_answer(self._view(self._standing(request), LOOK_ROWS))

    def _undone(self, group: Group) -> shapes.Undone:
        return undone_of(group, self._timeline, lag_of(group, self._timeline, self._router, LOOK_ROWS))

    @described(
        "Set the read position of an endpoint forward: it leaves its backlog behind",
        ADMIN,
        Gives(200, shapes.Skipped),
        body=Skip,
        example={"to": "now", "undone": "dead"},
        problems=("not-found", *WRITES),
    )
    async def skip(self, request: web.Request) -> web.Response:
        """It never moves back. What it had not been posted becomes dead letters, or is dropped."""
        name = request.match_info["name"]
        group = self._standing(request).group
        wish = await body_of(request, SKIP)
        to = skip_position(wish, self._timeline, self._clock.wall_ms())
        if group is None:
            raise _unknown(name)
        before, undone = group.session.read_at(self._timeline.horizon.position), self._undone(group)

        def skip(commit: Commit) -> bool:
            standing = self._webhooks.standing(name)
            if standing is None or standing.group is not group:
                return False
            self._replay.skip(commit, group, to, SKIPPED, is_dead=wish.undone != DROP)
            return True

        if not await asked(self._ask, skip):
            raise _unknown(name)
        return json_answer(skipped(before, group.session.read_at(self._timeline.horizon.position), undone))

    @described(
        "Post to an endpoint at once, beside the queue, and tell what came of it",
        ADMIN,
        Gives(200, shapes.Tried),
        problems=("not-found", "over-quota"),
    )
    async def test(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        message = f"test_{secrets.token_hex(TEST_BYTES)}"
        sent = {"type": "fasti.test", "endpoint": name, "timestamp": format_ms(self._clock.wall_ms())}
        try:
            with refusals():
                verdict, reply = await self._webhooks.try_out(name, message, msgspec.json.encode(sent))
        except Unknown:
            raise _unknown(name) from None
        except TooMany:
            raise over_quota("so many endpoints are tried out at the moment", TEST_WAIT_S) from None
        tried: shapes.Tried = {
            "ok": verdict.outcome is Outcome.DONE,
            "status": reply.status or None,
            "latency_ms": reply.latency_ms,
            "reason": verdict.reason or None,
            "webhook_id": message,
        }
        return json_answer(tried)

    def _standing(self, request: web.Request) -> Standing:
        name = request.match_info["name"]
        standing = self._webhooks.standing(name)
        if standing is None:
            raise _unknown(name)
        return standing

    def _view(self, standing: Standing, look_rows: int) -> shapes.Endpoint:
        group = standing.group
        lag = None if group is None else lag_of(group, self._timeline, self._router, look_rows)
        view = endpoint_view(standing, lag, self._timeline.horizon.position, self._webhooks.now_ms)
        if group is not None and lag is not None:
            view["undone"] = undone_of(group, self._timeline, lag)
            view["incarnation"] = group.incarnation
        return view


def _unknown(name: str) -> Problem:
    return Problem("not-found", f"there is no endpoint {name[:128]!r}")
