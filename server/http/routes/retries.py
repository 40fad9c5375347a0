"""`/v1/retries`: messages that wait for their next try: list, try at another time, bury, drop.

    GET  /v1/retries          pages in the order of their next tries
    POST /v1/retries:try      the next try now, or at the given time
    POST /v1/retries:bury     they become dead letters
    POST /v1/retries:drop     nobody gets them again

Messages that are in flight again are not listed. Selection and visibility: kept.py.
"""

from functools import partial
from typing import Annotated

import msgspec
from aiohttp import web

from shards.delivery_rows import DeliveryRow
from shards.state import DISPATCHED, WITHHELD, State

from ...delivery.settling.kept import KeptRetries
from ..bulk import BulkParts
from ..calls import READ, SCHEDULE, WRITES, described
from ..requests import body_of
from ..values import shapes
from ..values.message_body import due_of
from ..values.scalars import Delay, When, not_both, rules
from .kept import CHOSEN, ONE_CHOICE, Change, KeptRows, kept_view


class TryRetries(Change):
    """The body of `:try`; without a time: now."""

    deliver_in: Delay | msgspec.UnsetType = msgspec.UNSET
    deliver_at: When | msgspec.UnsetType = msgspec.UNSET


_TRY = msgspec.json.Decoder(TryRetries)
_CHANGE = msgspec.json.Decoder(Change)
_CHANGES = Annotated[Change, rules(*ONE_CHOICE)]


class RetryRoutes:
    def __init__(self, parts: BulkParts, steering: KeptRetries) -> None:
        self._parts = parts
        self._steering = steering
        self._rows = KeptRows(
            steering,
            parts,
            name="the retry",
            view_of=self._view,
            page_of=lambda following, count, found: shapes.RetryPage(following, count, retries=found),
        )

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/retries", self.list),
            web.post("/v1/retries:try", self.try_),
            web.post("/v1/retries:bury", self.bury),
            web.post("/v1/retries:drop", self.drop),
        ]

    def _view(self, row: DeliveryRow, at: str) -> shapes.WaitingRetry:
        state: State = WITHHELD if row.is_withheld else DISPATCHED
        why = self._parts.timeline.withheld_by(state, row.message())
        return kept_view(shapes.WaitingRetry, row, retry_at=at, withheld_by=why)

    @described("Retries: messages that wait for their next try", READ, query=CHOSEN)
    async def list(self, request: web.Request) -> shapes.RetryPage:
        return await self._rows.page(request)

    @described(
        "Try again now, or at another time",
        SCHEDULE,
        body=Annotated[TryRetries, rules(*ONE_CHOICE, not_both("deliver_in", "deliver_at"))],
        example={"filter": {"group": "printers", "reason": "timeout"}},
        problems=WRITES,
    )
    async def try_(self, request: web.Request) -> shapes.KeptChanged:
        body = await body_of(request, _TRY)
        now_ms = self._parts.clock.wall_ms()
        is_now = body.deliver_in is msgspec.UNSET and body.deliver_at is msgspec.UNSET
        due_ms = now_ms
        if not is_now:
            due_ms = max(now_ms, due_of(body.deliver_at, body.deliver_in, now_ms, self._parts.max_delay_ms))
        return await self._rows.change(request, body, partial(self._steering.try_, due_ms=due_ms))

    @described(
        "Give up: make dead letters of retries",
        SCHEDULE,
        body=_CHANGES,
        example={"filter": {"group": "printers", "topic": "jobs/#"}},
        problems=WRITES,
    )
    async def bury(self, request: web.Request) -> shapes.KeptChanged:
        return await self._rows.change(request, await body_of(request, _CHANGE), self._steering.bury)

    @described(
        "Forget retries: nobody gets these messages again",
        SCHEDULE,
        body=_CHANGES,
        example={"filter": {"key": "order-17"}, "dry_run": True},
        problems=WRITES,
    )
    async def drop(self, request: web.Request) -> shapes.KeptChanged:
        return await self._rows.change(request, await body_of(request, _CHANGE), self._steering.drop)
