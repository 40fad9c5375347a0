"""`GET /v1/messages/{id}/result`: what a worker has answered, or how else the message has ended.

A call may wait. It is woken when a result is stored (server/delivery/settling), and looks by itself each
LOOK_S for other ends, for a client that is gone, and for a server that stops or no longer leads. Each look
judges anew who may see what. Waiting calls have the bounds of streams (streams.py), WAITS_MAX in all.

Whoever may publish to the topic may read the result; else whoever may receive it and sees the group.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET

from shards.state import PENDING
from timeline.position import Position

from ...delivery.deliveries import OVER, Deliveries
from ...engine.clock import Clock
from ..access import client_of, rights_of
from ..answers import RETRY_AFTER
from ..calls import READ, described
from ..problems import Problem
from ..protocol import is_gone
from ..streams import Streams, ends_within
from ..values import shapes
from ..values.bodies import FieldError, delay_ms
from ..values.scalars import Delay
from ..values.views import Shown

Group = Annotated[str, msgspec.Meta(min_length=1, description="name of a group")]
LOOK_S = 1.0
WAIT_MAX_S = 60
WAITS_MAX = 500


@dataclass(frozen=True, slots=True, eq=False)
class ResultRoutes:
    clock: Clock
    shown: Callable[[web.Request], Awaitable[Shown]]
    deliveries: Deliveries
    awaited: dict[Position, set[Callable[[], None]]]
    waits: Streams

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/messages/{id}/result", self.get)]

    @described(
        "The result that a worker of a group has given with its ack; waits for it",
        READ,
        query={"wait": Delay, "group": Group},
        problems=("not-found", "other-timeline", "several-results", "over-quota", "not-ready"),
    )
    async def get(self, request: web.Request) -> shapes.MessageResult:
        wait_s = delay_ms("wait", request.query.get("wait", 0)) / 1_000
        if request.query.get("group") == "":
            raise FieldError("group", "is empty")
        if wait_s > WAIT_MAX_S:
            raise FieldError("wait", f"must be at most {WAIT_MAX_S} s")
        until_s = self.clock.mono() + wait_s
        with self.waits.slot(client_of(request)) if wait_s else nullcontext() as stopping:
            while True:
                answer, place, has_more = await self._look(request)
                left_s = until_s - self.clock.mono()
                if not has_more or stopping is None or left_s <= 0 or is_gone(request):
                    return answer
                woken = asyncio.Event()
                wakes = self.awaited.setdefault(place, set())
                wakes.add(woken.set)
                try:
                    await ends_within(woken, min(LOOK_S, left_s))
                finally:
                    wakes.discard(woken.set)
                    if not wakes:
                        self.awaited.pop(place, None)
                if stopping.is_set():
                    raise Problem("not-ready", "The server stops, or leads no longer.", headers=RETRY_AFTER)

    async def _look(self, request: web.Request) -> tuple[shapes.MessageResult, Position, bool]:
        """The answer as of now, where the message is, and whether there is more to come. Raises Problem."""
        shown, rights, wanted = await self.shown(request), rights_of(request), request.query.get("group")
        view, listed = shown.view, shown.view.deliveries or []
        if rights is not None and view.deliveries is not UNSET and rights.may_publish(shown.record.topic):
            listed, _ = self.deliveries.of(shown.message, shown.place, shown.record, lambda _: True)
        mine = [one for one in listed if one.group is not UNSET and wanted in (None, one.group)]
        results = {str(one.group): one for one in reversed(mine) if one.result is not UNSET}
        if len(results) > 1:
            names = sorted(results)
            raise Problem("several-results", f"Give group, one of {', '.join(names)}.", groups=names)
        assert view.outcome is not UNSET, "it is shown by itself"
        answer = shapes.MessageResult(view.outcome)
        for one in results.values():
            answer.result, answer.ended_at = one.result, one.ended_at
        is_ended = bool(results) or (view.state != PENDING and all(one.state in OVER for one in mine))
        return answer, shown.place, not is_ended
