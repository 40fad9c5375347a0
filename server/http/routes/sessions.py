"""`/v1/sessions`: who subscribes, how far each has read, and setting one back or forgetting it.

Of one session at most 10,000 rows are looked at to count how far it is behind (../lag.py), in a list 1,000.

A key sees the sessions of clients that have connected with it, and shared subscriptions of such alone; one
with the scope admin sees all.

A shared subscription stands among the sessions as `$share/{group}/{filter}`, a name that no client may have:
it has a read position of its own, which a session's does not count. It is set back like a session, for all
its members; it is deleted where it is made (routes/groups.py).
"""

from aiohttp import web

from shards.commit import Commit

from ...delivery.burials import SKIPPED
from ...delivery.clients import Clients
from ...delivery.membership import Membership
from ...delivery.replay import Replay
from ...delivery.router import Router
from ...delivery.sessions import Sessions
from ...delivery.shared import Group
from ...delivery.subscriber import Subscriber
from ...engine.clock import Clock
from ...engine.writer import Ask
from ..access import is_own, rights_of, sees_every_session
from ..answers import asked, json_answer
from ..calls import READ, WRITES, Gives, described
from ..lag import LIST_LOOK_ROWS, LOOK_ROWS, REWIND, Rewind, lag_of, position_of
from ..problems import Problem
from ..requests import body_of, limit_of
from ..timeline import Timeline
from ..turns import Turns, least
from ..undone import DROP, SKIP, Skip, skip_position, skipped, undone_of
from ..values import shapes
from ..values.scalars import PAGED
from ..values.views import session_view


class SessionRoutes:
    """The routes."""

    def __init__(
        self,
        ask: Ask,
        clock: Clock,
        timeline: Timeline,
        turns: Turns,
        sessions: Sessions,
        groups: Membership,
        router: Router,
        clients: Clients,
        replay: Replay,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._timeline = timeline
        self._turns = turns
        self._sessions = sessions
        self._groups = groups
        self._router = router
        self._clients = clients
        self._replay = replay

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/sessions", self.list),
            web.get("/v1/sessions/{client_id}", self.get),
            web.delete("/v1/sessions/{client_id}", self.delete),
            web.post("/v1/sessions/{client_id}:replay", self.replay),
            web.post("/v1/sessions/{client_id}:skip", self.skip),
        ]

    @described(
        "Sessions and groups, and how far each has read", READ, Gives(200, shapes.SessionPage), query=PAGED
    )
    async def list(self, request: web.Request) -> web.Response:
        limit, cursor = limit_of(request), request.query.get("cursor", "")
        rights = rights_of(request)

        def wanted(subscriber: Subscriber) -> str | None:
            name = subscriber.text if isinstance(subscriber, Group) else subscriber.session.client_id
            return name if name > cursor and is_own(rights, subscriber) else None

        turn = self._turns.of(request)
        every = [*self._sessions, *self._groups]
        names = [name for name, _ in await least(turn, every, wanted, limit + 1)]
        views = []
        for name in names[:limit]:
            await turn.begin()
            subscriber = self._find(name)
            if subscriber is not None and is_own(rights, subscriber):
                views.append(self._view(subscriber, LIST_LOOK_ROWS))
        page: shapes.SessionPage = {
            "sessions": views,
            "next": names[limit - 1] if len(names) > limit else None,
        }
        return json_answer(page)

    @described(
        "A session, or a group ($share/group/filter)",
        READ,
        Gives(200, shapes.Session),
        problems=("not-found",),
    )
    async def get(self, request: web.Request) -> web.Response:
        await self._turns.of(request).begin()
        return json_answer(self._view(self._subscriber(request), LOOK_ROWS))

    @described("Forget a session", READ, Gives(204), problems=("not-found", "wrong-state", *WRITES))
    async def delete(self, request: web.Request) -> web.Response:
        """Close its connection, forget it, erase its rows, in the writer: with the group of this request."""
        name = request.match_info["client_id"]
        rights = rights_of(request)
        known = self._find(name)
        if known is not None and not is_own(rights, known):
            raise _unknown(name)
        group = self._groups.get(name)
        if group is not None:
            where = "endpoints" if group.is_endpoint else "groups"
            raise Problem("wrong-state", f"it is deleted under /v1/{where}")
        if not self._clients.is_known(name):
            raise _unknown(name)

        def drop(_: Commit) -> bool:
            known = self._find(name)
            may = is_own(rights, known) if known is not None else sees_every_session(rights)
            if may:
                self._clients.drop(name)
            return may

        if not await asked(self._ask, drop):
            raise _unknown(name)
        return web.Response(status=204)

    @described(
        "Set the read position of a session or group back",
        READ,
        Gives(200, shapes.Session),
        body=Rewind,
        example={"from": "PT1H"},
        problems=("not-found", *WRITES),
    )
    async def replay(self, request: web.Request) -> web.Response:
        """Set the read position back; it never moves forward."""
        name, rights = request.match_info["client_id"], rights_of(request)
        subscriber = self._subscriber(request)
        wish = await body_of(request, REWIND)
        place = position_of(wish.since, self._clock.wall_ms())

        def rewind(commit: Commit) -> bool:
            if self._find(name) is not subscriber or not is_own(rights, subscriber):
                return False
            self._replay.rewind(commit, subscriber, place)
            return True

        if not await asked(self._ask, rewind) or not is_own(rights, subscriber):
            raise _unknown(name)
        return json_answer(self._view(subscriber, LOOK_ROWS))

    @described(
        "Set the read position of a session or group forward: it leaves its backlog behind",
        READ,
        Gives(200, shapes.Skipped),
        body=Skip,
        example={"to": "now", "undone": "dead"},
        problems=("not-found", *WRITES),
    )
    async def skip(self, request: web.Request) -> web.Response:
        """It never moves back. What it had not read becomes dead letters, or is dropped."""
        name, rights = request.match_info["client_id"], rights_of(request)
        subscriber = self._subscriber(request)
        wish = await body_of(request, SKIP)
        to = skip_position(wish, self._timeline, self._clock.wall_ms())
        before = subscriber.session.read_at(self._timeline.horizon.position)
        lag = lag_of(subscriber, self._timeline, self._router, LOOK_ROWS)
        undone = undone_of(subscriber, self._timeline, lag)

        def skip(commit: Commit) -> bool:
            if self._find(name) is not subscriber or not is_own(rights, subscriber):
                return False
            self._replay.skip(commit, subscriber, to, SKIPPED, is_dead=wish.undone != DROP)
            return True

        if not await asked(self._ask, skip):
            raise _unknown(name)
        after = subscriber.session.read_at(self._timeline.horizon.position)
        return json_answer(skipped(before, after, undone))

    def _subscriber(self, request: web.Request) -> Subscriber:
        name = request.match_info["client_id"]
        subscriber = self._find(name)
        if subscriber is None or not is_own(rights_of(request), subscriber):
            raise _unknown(name)
        return subscriber

    def _find(self, name: str) -> Subscriber | None:
        """The group or session of that name."""
        group: Group | None = self._groups.get(name)
        return group or self._sessions.get(name)

    def _view(self, subscriber: Subscriber, look_rows: int) -> shapes.Session:
        lag = lag_of(subscriber, self._timeline, self._router, look_rows)
        view = session_view(subscriber, lag, self._timeline.horizon.position)
        view["undone"] = undone_of(subscriber, self._timeline, lag)
        view["incarnation"] = subscriber.incarnation
        return view


def _unknown(name: str) -> Problem:
    return Problem("not-found", f"there is no session {name[:128]!r}")
