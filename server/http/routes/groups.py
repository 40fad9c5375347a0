"""`/v1/groups`: those who divide the messages of a filter among them, `$share/{group}/{filter}` to MQTT.

A group is there from its first member on, or when it is made here, ahead of any; with nobody in it it keeps
its place (server/delivery/shared.py). Made again it is changed in place: what the body leaves out is as the
server's settings have it. One name may have several filters; each is a group of its own, and what is done to
the name is done to all of them, unless `filter` names one.

A key sees the groups whose members have all connected with it, or that it made; one with the scope admin all.

How far one is behind is counted as for a session (../lag.py), in a list over fewer rows. What changes many
does so in steps, each a decision of the writer.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from urllib.parse import quote

import msgspec
from aiohttp import web

from shards.commit import Commit
from timeline.filters import parse_share

from ...delivery.burials import SKIPPED
from ...delivery.membership import Membership
from ...delivery.replay import Replay
from ...delivery.router import Router
from ...delivery.shared import Group
from ...delivery.subscriptions import Subscriptions
from ...engine.clock import Clock
from ...engine.writer import Ask
from ...settings.config import Config
from ..access import is_own, rights_of
from ..answers import asked, json_answer
from ..calls import READ, WRITES, Gives, described
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
    add_up,
    fate_of,
    is_undone,
    refuse_undone,
    skip_position,
    skipped,
    undone_of,
)
from ..values import shapes
from ..values.group_body import GroupRequest, terms_of, text_of
from ..values.scalars import LIMIT_DEFAULT, PAGED, Filter, Location
from ..values.views import group_view

STEP_GROUPS = 250
ONE = "/v1/groups/{group}"
FILTERED = {"filter": Filter}

_GROUP = msgspec.json.Decoder(GroupRequest)
Groups = list[Group]
Change = Callable[[Commit, Group], bool]
"""In the writer; False: the group is to be taken in hand once more."""


class GroupRoutes:
    """The routes."""

    def __init__(
        self,
        ask: Ask,
        clock: Clock,
        timeline: Timeline,
        turns: Turns,
        groups: Membership,
        subscriptions: Subscriptions,
        router: Router,
        replay: Replay,
        config: Config,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._timeline = timeline
        self._turns = turns
        self._groups = groups
        self._subscriptions = subscriptions
        self._router = router
        self._replay = replay
        self._config = config

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/groups", self.list),
            web.get(ONE, self.get),
            web.put(ONE, self.put),
            web.delete(ONE, self.delete),
            web.post("/v1/groups/{group}:pause", self.pause),
            web.post("/v1/groups/{group}:resume", self.resume),
            web.post("/v1/groups/{group}:replay", self.replay),
            web.post("/v1/groups/{group}:skip", self.skip),
        ]

    @described("Groups, and how far each has read", READ, Gives(200, shapes.GroupPage), query=PAGED)
    async def list(self, request: web.Request) -> web.Response:
        """Those of endpoints are told of, and changed, as endpoints."""
        rights = rights_of(request)
        shared = (group for group in self._groups if not group.is_endpoint and is_own(rights, group))
        return await self._page(request, shared)

    @described(
        "The groups of a name, one for each filter",
        READ,
        Gives(200, shapes.GroupPage),
        query=PAGED | FILTERED,
        problems=("not-found",),
    )
    async def get(self, request: web.Request) -> web.Response:
        return await self._page(request, self._found(request))

    @described(
        "Make a group ahead of any member, or change its terms",
        READ,
        Gives(201, shapes.Group, {"Location": Location}),
        Gives(200, shapes.Group, said="it was there"),
        body=GroupRequest,
        example={"filter": "jobs/#", "ack_timeout": "30s", "max_attempts": 5, "backoff": ["10s", "1m"]},
        problems=WRITES,
    )
    async def put(self, request: web.Request) -> web.Response:
        name, rights = request.match_info["group"], rights_of(request)
        wish = await body_of(request, _GROUP)
        groups, config = self._groups, self._config
        text = text_of(name, wish.filter, config)
        terms, keeping = terms_of(wish, config)

        def make(commit: Commit) -> tuple[Group | None, bool]:
            known = groups.get(text)
            if known is not None and not is_own(rights, known):
                return None, False
            if not self._subscriptions.may_ask(wish.filter, rights):
                return None, False
            return groups.make(commit, text, terms, keeping, rights), known is None

        group, is_new = await asked(self._ask, make)
        if group is None:
            raise Problem("forbidden", f"the filter {wish.filter[:128]!r} is not to be asked for here")
        await self._turns.of(request).begin()
        answer = json_answer(self._view(group, LOOK_ROWS), 201 if is_new else 200)
        if is_new:
            where, which = quote(name, safe=""), quote(wish.filter, safe="")
            answer.headers["Location"] = f"/v1/groups/{where}?filter={which}"
        return answer

    @described(
        "End a group; who holds it no longer subscribes to it",
        READ,
        Gives(204),
        query=FILTERED | DELETED,
        problems=("not-found", "undone", *WRITES),
    )
    async def delete(self, request: web.Request) -> web.Response:
        """All of a name or none of it, as far as nothing falls due meanwhile."""
        fate, found = fate_of(request), self._found(request)
        undone = [group for group in found if fate is None and self._is_undone(group)]

        def end(commit: Commit, group: Group) -> bool:
            if fate is None and self._is_undone(group):
                undone.append(group)
                return True
            return self._groups.disband(commit, group, is_dead=fate != DROP)

        if not undone:
            await self._change(request, end)
        if undone:
            raise refuse_undone(f"the group {undone[0].name[:128]!r}", map(self._undone, undone))
        return web.Response(status=204)

    def _is_undone(self, group: Group) -> bool:
        return is_undone(group, self._timeline, self._router, LIST_LOOK_ROWS)

    def _undone(self, group: Group) -> shapes.Undone:
        lag = lag_of(group, self._timeline, self._router, LIST_LOOK_ROWS)
        return undone_of(group, self._timeline, lag)

    @described(
        "Set its read position forward: it leaves its backlog behind",
        READ,
        Gives(200, shapes.Skipped),
        query=FILTERED,
        body=Skip,
        example={"to": "now", "undone": "dead"},
        problems=("not-found", *WRITES),
    )
    async def skip(self, request: web.Request) -> web.Response:
        """It never moves back. What it had not read becomes dead letters, or is dropped."""
        found = self._found(request)
        wish = await body_of(request, SKIP)
        to = skip_position(wish, self._timeline, self._clock.wall_ms())
        horizon = self._timeline.horizon.position
        before = min(group.session.read_at(horizon) for group in found)
        undone = add_up(map(self._undone, found))

        def skip(commit: Commit, group: Group) -> bool:
            self._replay.skip(commit, group, to, SKIPPED, is_dead=wish.undone != DROP)
            return True

        changed = await self._change(request, skip)
        after = max((group.session.read_at(self._timeline.horizon.position) for group in changed), default=to)
        return json_answer(skipped(before, after, undone))

    @described(
        "Send its members nothing; its place stays",
        READ,
        Gives(200, shapes.GroupPage),
        query=FILTERED,
        problems=("not-found", *WRITES),
    )
    async def pause(self, request: web.Request) -> web.Response:
        return await self._pause(request, is_paused=True)

    @described(
        "Go on where it was paused",
        READ,
        Gives(200, shapes.GroupPage),
        query=FILTERED,
        problems=("not-found", *WRITES),
    )
    async def resume(self, request: web.Request) -> web.Response:
        return await self._pause(request, is_paused=False)

    @described(
        "Set its read position back",
        READ,
        Gives(200, shapes.GroupPage),
        query=FILTERED,
        body=Rewind,
        example={"from": "PT1H"},
        problems=("not-found", *WRITES),
    )
    async def replay(self, request: web.Request) -> web.Response:
        """It never moves forward."""
        self._found(request)
        wish = await body_of(request, REWIND)
        place = position_of(wish.since, self._clock.wall_ms())

        def rewind(commit: Commit, group: Group) -> bool:
            self._replay.rewind(commit, group, place)
            return True

        return await self._page(request, await self._change(request, rewind))

    # -- leaves

    async def _pause(self, request: web.Request, *, is_paused: bool) -> web.Response:
        def pause(commit: Commit, group: Group) -> bool:
            self._groups.pause(commit, group, is_paused=is_paused)
            return True

        return await self._page(request, await self._change(request, pause))

    async def _change(self, request: web.Request, change: Change) -> Groups:
        """Change those that the request names, a step at a time, if they are still there and of who asks."""
        rights, left = rights_of(request), self._found(request)
        changed: Groups = []

        def step(commit: Commit) -> None:
            for group in left[:STEP_GROUPS]:
                is_there = self._groups.get(group.text) is group
                if is_there and is_own(rights, group) and not change(commit, group):
                    return  # it alone is a step's work
                left.remove(group)
                changed.append(group)

        while left:
            await asked(self._ask, step)
        return changed

    def _found(self, request: web.Request) -> Groups:
        """Those that the request names, of who asks. Raises Problem."""
        name, rights = request.match_info["group"], rights_of(request)
        topic_filter = request.query.get("filter")
        found = [
            group
            for group in self._groups.of_name(name)
            if topic_filter in (None, parse_share(group.text)[1]) and is_own(rights, group)
        ]
        if not found:
            raise Problem("not-found", f"there is no group {name[:128]!r}")
        return found

    async def _page(self, request: web.Request, groups: Iterable[Group]) -> web.Response:
        limit = limit_of(request) if "limit" in request.query else LIMIT_DEFAULT
        cursor, rights = request.query.get("cursor", ""), rights_of(request)
        texts = sorted(group.text for group in groups if group.text > cursor)
        views, turn = [], self._turns.of(request)
        for text in islice(texts, limit):
            await turn.begin()
            group = self._groups.get(text)
            if group is not None and is_own(rights, group):
                views.append(self._view(group, LIST_LOOK_ROWS if len(texts) > 1 else LOOK_ROWS))
        page: shapes.GroupPage = {"groups": views, "next": texts[limit - 1] if len(texts) > limit else None}
        return json_answer(page)

    def _view(self, group: Group, look_rows: int) -> shapes.Group:
        lag = lag_of(group, self._timeline, self._router, look_rows)
        view = group_view(group, lag, self._timeline.horizon.position)
        view["undone"] = undone_of(group, self._timeline, lag)
        view["incarnation"] = group.incarnation
        return view
