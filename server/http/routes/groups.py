"""`/v1/groups`: shared subscriptions, whose members divide a filter's messages; `$share/{group}/{filter}` in
MQTT.

A group exists from its first member on, or when it is created here, before any. Without members it keeps its
place (server/delivery/shared.py). PUT on an existing group changes it in place; absent members get the
server's defaults. One name may have several filters. Each is a group of its own, and a call on the name
affects all of them, unless `filter` names one.

A key sees the groups that it made, or whose members have all connected with it. A key with the scope admin
sees all.

Lag is counted as for a session (../backlog.py), in a list over fewer rows. Calls that change many groups do
so in steps, each a decision of the writer.
"""

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

import msgspec
from aiohttp import web

from shards.commit import Commit
from timeline.filters import parse_share

from ...delivery.membership import Membership
from ...delivery.settling.holds import Holds
from ...delivery.shared import Group
from ...delivery.subscriptions import Subscriptions
from ...settings.config import Config
from ..access import Rights, is_own, rights_of
from ..answers import answer_of, put_answer
from ..backlog import DELETED, DROP, LIST_LOOK_ROWS, LOOK_ROWS, fate_of, refuse_undone
from ..calls import READ, WRITES, Gives, described
from ..problems import Problem
from ..requests import body_of, limit_of
from ..values import shapes
from ..values.group_body import GroupRequest, terms_of, text_of
from ..values.scalars import PAGED, WITH_ORDER, WITHOUT_ORDER, Filter, Location, rules
from ..values.views import group_view
from .ordering_keys import OrderingKeyRoutes
from .places import PlaceKind, Places, Verbs, look_rows_of

ONE = "/v1/groups/{group}"
FILTERED = {"filter": Filter}

WARNINGS_MAX = 10

_GROUP = msgspec.json.Decoder(GroupRequest)


class GroupRoutes:
    def __init__(
        self,
        places: Places,
        groups: Membership,
        subscriptions: Subscriptions,
        holds: Holds,
        config: Config,
    ) -> None:
        self._places = places
        self._groups = groups
        self._subscriptions = subscriptions
        self._config = config
        self._kind = PlaceKind(
            "group",
            "group",
            READ,
            shapes.GroupPage,
            self._found,
            self._has,
            self._page,
            lambda commit, group, is_paused: groups.pause(commit, group, is_paused=is_paused),
            FILTERED,
        )
        self._verbs = Verbs(self._kind, places)
        self._keys = OrderingKeyRoutes(self._kind, places, holds)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/groups", self.list),
            web.get(ONE, self.get),
            web.put(ONE, self.put),
            web.delete(ONE, self.delete),
            *self._verbs.routes(),
            *self._keys.routes(),
        ]

    @described("Groups, and how far each has read", READ, query=PAGED)
    async def list(self, request: web.Request) -> shapes.GroupPage:
        """Without endpoints' groups: they are listed and changed as endpoints."""
        rights = rights_of(request)
        shared = [group for group in self._groups if not group.is_endpoint and is_own(rights, group)]
        return await self._page(request, shared)

    @described(
        "The groups of a name, one for each filter",
        READ,
        query=PAGED | FILTERED,
        problems=("not-found",),
    )
    async def get(self, request: web.Request) -> shapes.GroupPage:
        return await self._page(request, self._found(request))

    @described(
        "Make a group ahead of any member, or change its terms",
        READ,
        Gives(201, shapes.MadeGroup, {"Location": Location}),
        Gives(200, shapes.MadeGroup, description="it was there"),
        body=Annotated[GroupRequest, rules(WITH_ORDER, WITHOUT_ORDER)],
        example={"filter": "jobs/#", "ack_timeout": "30s", "max_attempts": 5, "backoff": ["10s", "1m"]},
        problems=WRITES,
    )
    async def put(self, request: web.Request) -> web.Response:
        name, rights = request.match_info["group"], rights_of(request)
        body = await body_of(request, _GROUP)
        groups, config = self._groups, self._config
        text = text_of(name, body.filter, config)
        terms, keeping = terms_of(body, config)

        def make(commit: Commit) -> tuple[Group | None, bool]:
            known = groups.get(text)
            if not self._subscriptions.may_ask(body.filter, rights):
                return None, False
            if known is None:
                may = rights is None or rights.may_receive_some(body.filter)
            else:
                may = is_own(rights, known) or groups.claim(known, rights)
            if not may:
                return None, False
            return groups.make(commit, text, terms, keeping, rights), known is None

        group, is_new = await answer_of(self._places.ask, make)
        if group is None:
            which = f"the group {name[:64]!r} with the filter {body.filter[:128]!r}"
            raise Problem("forbidden", f"You may not create or change {which}.")
        await self._places.turns.of(request).begin()
        view = group_view(shapes.MadeGroup, group, self._places.status_of(group, LOOK_ROWS))
        others = [one for one in groups.of_name(name) if one is not group and is_own(rights, one)]
        if body.order and others:
            view.warnings = [_several(parse_share(one.text)[1]) for one in others[:WARNINGS_MAX]]
        where = f"/v1/groups/{quote(name, safe='')}?filter={quote(body.filter, safe='')}"
        return put_answer(view, is_new=is_new, where=where)

    @described(
        "End a group; who holds it no longer subscribes to it",
        READ,
        query=FILTERED | DELETED,
        problems=("not-found", "undone", *WRITES),
    )
    async def delete(self, request: web.Request) -> None:
        """Deletes all groups of a name or none, unless messages fall due meanwhile."""
        fate, found = fate_of(request), self._found(request)
        undone = [group for group in found if fate is None and self._is_undone(group)]

        def end(commit: Commit, group: Group) -> bool:
            if fate is None and self._is_undone(group):
                undone.append(group)
                return True
            return self._groups.disband(commit, group, is_dead=fate != DROP)

        if not undone:
            await self._verbs.change(request, end)
        if undone:
            raise refuse_undone(f"the group {undone[0].name[:128]!r}", self._places.undone(undone))

    # -- helpers

    def _is_undone(self, group: Group) -> bool:
        return self._places.is_undone(group, LIST_LOOK_ROWS)

    def _found(self, request: web.Request) -> Sequence[Group]:
        name, rights = request.match_info["group"], rights_of(request)
        topic_filter = request.query.get("filter")
        found = [
            group
            for group in self._groups.of_name(name)
            if topic_filter in (None, parse_share(group.text)[1]) and is_own(rights, group)
        ]
        if not found:
            raise self._kind.unknown(request)
        return found

    def _has(self, group: Group, rights: Rights | None) -> bool:
        return self._groups.get(group.text) is group and is_own(rights, group)

    async def _page(self, request: web.Request, groups: Sequence[Group]) -> shapes.GroupPage:
        limit, cursor, rights = limit_of(request), request.query.get("cursor", ""), rights_of(request)
        texts = sorted(group.text for group in groups if group.text > cursor)

        def view(text: str) -> shapes.Group | None:
            group = self._groups.get(text)
            if group is None or not is_own(rights, group):
                return None
            return group_view(shapes.Group, group, self._places.status_of(group, look_rows_of(texts)))

        views, following = await self._places.page(request, texts, limit, view)
        return shapes.GroupPage(following, views)


def _several(topic_filter: str) -> str:
    """Of another filter of a name that orders."""
    excerpt = repr(topic_filter[:128])
    return f"the name has the filter {excerpt} too: each filter has an order of its own, over what it matches"
