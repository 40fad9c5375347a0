"""`/v1/groups/{group}/messages`: pull delivery. Workers lease, ack, return and extend messages.

    POST :lease     lease up to `max` messages of a group, at once or within `wait`
    POST :ack       they are done; answered when that is durable
    POST :nack      they failed: redelivered now or later, or dead letters
    POST :extend    extend their leases
    POST :release   return them untried: another worker gets them at once

A worker that pulls is a member of the group like MQTT subscribers, and shares with them (server/pull). With
`filter` it uses the group of that name and filter, and creates it if missing, as SUBSCRIBE to
`$share/{name}/{filter}` would; without, all groups of that name in turn.

A key may lease what it may subscribe to; without `filter` it sees only its own groups, as in /v1/groups. A
key may ack, nack, extend and release its leases, and those of messages that it may receive; others count as
gone.

A waiting call is answered empty as soon as its client shuts down its side of the connection: that is all that
is seen of a dead client, and it would take messages with it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from shards.commit import Commit
from timeline.position import id_text

from ...delivery.membership import Membership
from ...delivery.terms import LASTING
from ...engine.writer import Ask
from ...pull.call import LeaseAnswer, Leased
from ...pull.lease_id import lease_text
from ..access import Rights, rights_of
from ..answers import answer_of, json_answer, raw_answer, refusals
from ..calls import READ, WRITES, Gives, described
from ..following import Following
from ..leasing import AckMessages, ExtendLeases, LeaseMessages, Leasing, NackMessages, ReleaseMessages
from ..protocol import is_gone
from ..requests import json_of, trace_of
from ..turns import Turn, Turns
from ..values import shapes

LEASE_ID = "AwAAnzxafSHoSwYAAAABAaH9XZ7_AAAAEAACJHNoYXJlL3ByaW50ZXJzL2pvYnMvIw"
"""In examples."""


@dataclass(frozen=True, slots=True, eq=False)
class LeaseRoutes:
    ask: Ask
    leasing: Leasing
    groups: Membership
    turns: Turns
    following: Following

    def routes(self) -> list[web.RouteDef]:
        path = "/v1/groups/{group}/messages"
        return [
            web.post(f"{path}:lease", self.lease),
            web.post(f"{path}:ack", self.ack),
            web.post(f"{path}:nack", self.nack),
            web.post(f"{path}:extend", self.extend),
            web.post(f"{path}:release", self.release),
        ]

    @described(
        "Lease messages of a group: they are yours for a while",
        READ,
        Gives(200, shapes.LeasedMessages),
        body=LeaseMessages,
        example={"max": 10, "filter": "jobs/#", "wait": "20s", "lease": "1m"},
        problems=("not-found", *WRITES),
    )
    async def lease(self, request: web.Request) -> web.Response:
        leasing, name, rights = self.leasing, request.match_info["group"], rights_of(request)
        wanted = leasing.call_of(await json_of(request))
        if wanted.filter is None:
            texts = leasing.texts(name, rights)
        else:
            texts = (await self._opened(leasing.text_of(name, wanted.filter, rights), rights),)
        answered: asyncio.Future[LeaseAnswer] = asyncio.get_running_loop().create_future()
        has_left, put = _listener(request, answered), _setter(answered)
        with refusals():
            call = leasing.lease(name, texts, rights, wanted.request, has_left, lambda _, leased: put(leased))
        is_read = False
        try:
            leased = await answered
            with refusals():
                if isinstance(leased, Exception):
                    raise leased
            views = await self._views(leased, self.turns.of(request))
            answer = json_answer(shapes.LeasedMessages(views))  # what cannot be encoded is not read
            is_read = not has_left()
            return answer
        finally:
            leasing.done(call, is_read=is_read)

    @described(
        "Leased messages are done with; with `then` together with messages that follow from one",
        READ,
        Gives(200, shapes.Acked),
        body=AckMessages,
        example={"lease_ids": [LEASE_ID]},
        problems=("idempotency-mismatch", *WRITES),
    )
    async def ack(self, request: web.Request) -> web.Response:
        raw, name, rights = await json_of(request), request.match_info["group"], rights_of(request)
        followed = self.leasing.followed(name, raw, rights)
        if followed is None:
            return await self._settled(request, "ack")
        lease, is_theirs = followed
        ids = None
        if is_theirs:
            turn, context = self.turns.of(request), trace_of(request)
            ids = await self.following.ack(raw, lease, rights, context, turn)
        gone = [lease_text(lease)] if ids is None else []
        return json_answer(shapes.Acked(int(ids is not None), gone, [id_text(one) for one in ids or ()]))

    @described(
        "Leased messages are not done: they come again, later",
        READ,
        Gives(200, shapes.Nacked),
        body=NackMessages,
        example={"lease_ids": [LEASE_ID], "delay": "5m", "reason": "the printer is busy"},
        problems=WRITES,
    )
    async def nack(self, request: web.Request) -> web.Response:
        return await self._settled(request, "nack")

    @described(
        "Hold on to leased messages: they are yours for longer",
        READ,
        Gives(200, shapes.Extended),
        body=ExtendLeases,
        example={"lease_ids": [LEASE_ID], "lease": "2m"},
        problems=WRITES,
    )
    async def extend(self, request: web.Request) -> web.Response:
        return await self._settled(request, "extend")

    @described(
        "Give leased messages back: another worker gets them at once, and it was no try",
        READ,
        Gives(200, shapes.Released),
        body=ReleaseMessages,
        example={"lease_ids": [LEASE_ID]},
        problems=WRITES,
    )
    async def release(self, request: web.Request) -> web.Response:
        """The first ten returns of a message are no tries; each further one counts as a try."""
        return await self._settled(request, "release")

    async def _settled(self, request: web.Request, verb: str) -> web.Response:
        """Settle leases. Raises Problem, which says how far it came."""
        raw, name = await json_of(request), request.match_info["group"]
        found: asyncio.Future[bytes | Exception] = asyncio.get_running_loop().create_future()
        with refusals():
            self.leasing.settle(verb, name, raw, rights_of(request), _setter(found))
            answer = await found
            if isinstance(answer, Exception):
                raise answer
        return raw_answer(answer)

    async def _opened(self, text: str, rights: Rights | None) -> str:
        """The group, created if missing. Raises Problem."""
        groups = self.groups
        if groups.get(text) is None:

            def create_group(commit: Commit) -> None:
                if groups.get(text) is None:
                    groups.make(commit, text, keeping=LASTING, rights=rights)

            await answer_of(self.ask, create_group)
        return text

    async def _views(self, leased: Sequence[Leased], turn: Turn) -> list[shapes.LeasedMessage]:
        views: list[shapes.LeasedMessage] = []
        for count, view in enumerate(self.leasing.views(leased)):
            if not count or turn.is_over(count):
                await turn.begin()
            views.append(view)
        return views


def _setter(future: "asyncio.Future[Any]") -> Callable[[Any], None]:
    """A callback that sets the future, unless it was cancelled."""

    def put(found: Any) -> None:
        if not future.done():
            future.set_result(found)

    return put


def _listener(request: web.Request, answered: "asyncio.Future[Any]") -> Callable[[], bool]:
    """A check whether the client is gone."""
    return lambda: is_gone(request) or answered.cancelled()
