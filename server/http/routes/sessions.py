"""`/v1/sessions`: subscribers and how far each has read; set one back, or delete it.

The lag of one session is counted over at most 10,000 rows (../backlog.py), in a list over 1,000.

A key sees the sessions of clients that have connected with it. A key with the scope admin sees all.

Groups and endpoints have lists of their own (groups.py, endpoints.py). The groups of full URLs are in no
list, but are found here by their names.
"""

from collections.abc import Sequence

from aiohttp import web

from shards.commit import Commit

from ...delivery.clients import Clients
from ...delivery.membership import Membership
from ...delivery.place import Place
from ...delivery.sessions import Sessions
from ...delivery.shared import ENDPOINT_PREFIX
from ..access import Rights, is_own, rights_of, sees_every_session
from ..answers import answer_of
from ..backlog import LIST_LOOK_ROWS, LOOK_ROWS
from ..calls import READ, WRITES, described
from ..problems import Problem
from ..requests import limit_of
from ..turns import least
from ..values import shapes
from ..values.scalars import PAGED
from ..values.views import session_view
from .places import PlaceKind, Places, Verbs

ELSEWHERE = {"$share/": "/v1/groups", ENDPOINT_PREFIX: "/v1/endpoints"}
"""Prefix of names that are not sessions -> where those are listed."""


class SessionRoutes:
    def __init__(self, places: Places, sessions: Sessions, groups: Membership, clients: Clients) -> None:
        self._places = places
        self._sessions = sessions
        self._groups = groups
        self._clients = clients
        self._kind = PlaceKind(
            "session", "client_id", READ, shapes.Session, self._found, self._has, self._answer
        )

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/sessions", self.list),
            web.get("/v1/sessions/{client_id}", self.get),
            web.delete("/v1/sessions/{client_id}", self.delete),
            *Verbs(self._kind, self._places).routes(),
        ]

    @described("Sessions, and how far each has read", READ, query=PAGED)
    async def list(self, request: web.Request) -> shapes.SessionPage:
        limit, cursor = limit_of(request), request.query.get("cursor", "")
        rights = rights_of(request)

        def wanted(subscriber: Place) -> str | None:
            name = subscriber.session.client_id
            return name if name > cursor and is_own(rights, subscriber) else None

        def view(name: str) -> shapes.Session | None:
            subscriber = self._sessions.get(name)
            if subscriber is None or not is_own(rights, subscriber):
                return None
            return session_view(subscriber, name, self._places.status_of(subscriber, LIST_LOOK_ROWS))

        found = await least(self._places.turns.of(request), [*self._sessions], wanted, limit + 1)
        views, following = await self._places.page(request, [name for name, _ in found], limit, view)
        return shapes.SessionPage(following, views)

    @described("A session", READ, problems=("not-found",))
    async def get(self, request: web.Request) -> shapes.Session:
        await self._places.turns.of(request).begin()
        return await self._answer(request, self._found(request))

    @described("Forget a session", READ, problems=("not-found", *WRITES))
    async def delete(self, request: web.Request) -> None:
        """Close its connection and delete it, in the writer: with this request's group commit."""
        name = request.match_info["client_id"]
        rights = rights_of(request)
        known = self._sessions.get(name)
        if not self._clients.is_known(name) or (known is not None and not is_own(rights, known)):
            raise self._unknown(request)

        def drop(_: Commit) -> bool:
            known = self._sessions.get(name)
            may = is_own(rights, known) if known is not None else sees_every_session(rights)
            if may:
                self._clients.drop(name)
            return may

        if not await answer_of(self._places.ask, drop):
            raise self._unknown(request)

    # -- helpers

    def _found(self, request: web.Request) -> Sequence[Place]:
        name = request.match_info["client_id"]
        group = self._groups.get(name)
        subscriber = group if group is not None and group.is_unnamed else self._sessions.get(name)
        if subscriber is None or not is_own(rights_of(request), subscriber):
            raise self._unknown(request)
        return [subscriber]

    def _has(self, subscriber: Place, rights: Rights | None) -> bool:
        there = self._groups.named(subscriber.session.client_id)
        return there is subscriber and is_own(rights, subscriber)

    async def _answer(self, request: web.Request, changed: Sequence[Place]) -> shapes.Session:
        (subscriber,) = changed
        if not is_own(rights_of(request), subscriber):
            raise self._unknown(request)
        name, place_status = request.match_info["client_id"], self._places.status_of(subscriber, LOOK_ROWS)
        return session_view(subscriber, name, place_status)

    def _unknown(self, request: web.Request) -> Problem:
        """The 404 of a name; for names of groups and endpoints, which are no client ids, it says where to
        look."""
        prefix, slash, _ = request.match_info["client_id"].partition("/")
        where = ELSEWHERE.get(prefix + slash)
        if where is None:
            return self._kind.unknown(request)
        return Problem("not-found", f"Groups and endpoints are not sessions: see {where}.")
