"""`/v1/dead`: dead letters of sessions and groups: list, send again, drop.

    GET  /v1/dead             pages by time of death
    POST /v1/dead:requeue     send again, to that session or group alone or `to` another place, now or later
    POST /v1/dead:drop        forget them

Only dead letters whose session or group still exists are requeued. Selection and visibility: kept.py.
"""

from functools import partial
from typing import Annotated

import msgspec
from aiohttp import web

from ...delivery.membership import Membership
from ...delivery.owners import manages
from ...delivery.settling.kept import DeadLetters
from ...delivery.shared import Group
from ..access import Rights, is_own, rights_of
from ..bulk import BulkParts
from ..calls import READ, SCHEDULE, WRITES, described
from ..requests import body_of
from ..values import shapes
from ..values.bodies import FieldError
from ..values.scalars import Delay, rules
from .kept import CHOSEN, ONE_CHOICE, Change, KeptRows, kept_view, wait_of


class RequeueDead(Change):
    """The body of `:requeue`. `to`: a group, `$share/group/filter` or an endpoint that gets it instead."""

    deliver_in: Delay | msgspec.UnsetType = msgspec.UNSET
    to: Annotated[str, msgspec.Meta(min_length=1)] | None = None


_DROP = msgspec.json.Decoder(Change)
_REQUEUE = msgspec.json.Decoder(RequeueDead)


class DeadRoutes:
    def __init__(self, parts: BulkParts, dead_letters: DeadLetters, groups: Membership) -> None:
        self._parts = parts
        self._dead_letters = dead_letters
        self._groups = groups
        self._rows = KeptRows(
            dead_letters,
            parts,
            name="the dead letter",
            view_of=lambda row, at: kept_view(shapes.DeadLetter, row, died_at=at),
            page_of=lambda following, count, found: shapes.DeadPage(following, count, messages=found),
        )

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/dead", self.list),
            web.post("/v1/dead:requeue", self.requeue),
            web.post("/v1/dead:drop", self.drop),
        ]

    @described("Dead letters: messages that were given up", READ, query=CHOSEN)
    async def list(self, request: web.Request) -> shapes.DeadPage:
        return await self._rows.page(request)

    @described(
        "Send dead letters again, to those alone who gave them up, or to another place",
        SCHEDULE,
        body=Annotated[RequeueDead, rules(*ONE_CHOICE)],
        example={"filter": {"group": "printers", "topic": "jobs/#"}, "deliver_in": "1m"},
        problems=WRITES,
    )
    async def requeue(self, request: web.Request) -> shapes.KeptChanged:
        body = await body_of(request, _REQUEUE)
        due_ms = self._parts.clock.wall_ms() + wait_of(body.deliver_in, self._parts.max_delay_ms)
        to = None if body.to is None else self._named(body.to, rights_of(request))
        return await self._rows.change(
            request, body, partial(self._dead_letters.requeue, due_ms=due_ms, to=to)
        )

    @described(
        "Forget dead letters",
        SCHEDULE,
        body=Annotated[Change, rules(*ONE_CHOICE)],
        example={"filter": {"group": "printers", "to": "2026-01-01T00:00:00Z"}, "dry_run": True},
        problems=WRITES,
    )
    async def drop(self, request: web.Request) -> shapes.KeptChanged:
        return await self._rows.change(request, await body_of(request, _DROP), self._dead_letters.drop)

    def _named(self, name: str, rights: Rights | None) -> Group:
        """The one group or endpoint with that name. Raises FieldError."""
        found = [group for group in self._groups.called(name) if _may_have(rights, group)]
        match found:
            case [group]:
                return group
            case []:
                raise FieldError("to", f"names no group or endpoint: {name[:100]!r}")
        raise FieldError("to", "names several: give one as $share/group/filter, or rename the endpoint")


def _may_have(rights: Rights | None, group: Group) -> bool:
    """Whether the key may have messages sent to that group or endpoint."""
    return is_own(rights, group) and (not group.is_endpoint or manages(rights, group.endpoint, group.owner))
