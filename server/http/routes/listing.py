"""`GET /v1/messages`: pages in position order, and exact counts. Selection: server/http/selection.py.

A page begins at the cursor, behind the last message of the page before, and is read as of the first one;
`next` is present until the range has been read to its end. `due_from` <= t < `due_to` is a range of positions
on the timeline. With `key` nothing is read but the messages under it, one from HTTP and one from MQTT. With
`outcome` messages in every state are read, unless `state` says one.
"""

from dataclasses import replace
from typing import Annotated, Literal, get_args

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from shards.state import PENDING, STATES, State
from timeline.position import Position

from ...delivery.outcomes import Outcomes
from ..access import sees, user_of
from ..calls import READ, described
from ..cursors import Cursors
from ..requests import flag, instant_parameter, limit_of
from ..selection import ALL, Query, Selection, count, query_over
from ..timeline import Timeline
from ..turns import Turns
from ..values import shapes
from ..values.bodies import FieldError
from ..values.scalars import FLAG, PAGED, SELECTED, Key
from ..values.scalars import Query as Params

Selectable = Literal["failed", "retrying", "withheld", "done"]
SELECTABLE: tuple[str, ...] = get_args(Selectable)
OUTCOMES: Params = {"outcome": Selectable, "outcomes": FLAG}
AnyState = Annotated[Literal[State, "all"], msgspec.Meta(extra_json_schema={"default": PENDING})]


class Listing:
    """The route."""

    def __init__(self, timeline: Timeline, cursors: Cursors, turns: Turns, outcomes: Outcomes) -> None:
        self._timeline = timeline
        self._outcomes = outcomes
        self._cursors = cursors
        self._turns = turns

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/messages", self.get)]

    @described(
        "List and count",
        READ,
        query={**SELECTED, "state": AnyState, **OUTCOMES, "key": Key, **PAGED, "count": FLAG},
    )
    async def get(self, request: web.Request) -> shapes.MessagePage:
        query = query_of(request, self._outcomes)
        is_counted = flag(request, "count")
        cursor, start = request.query.get("cursor"), query.start
        as_of = None
        if cursor is not None:
            last, as_of = self._cursors.place(cursor)
            start = max(start, Position(last + 1))
        as_of = as_of or self._timeline.as_of
        key = request.query.get("key")
        if key is not None:
            views = self._under(request, replace(query, start=start), key)
            number = len(views) if is_counted else UNSET
            return shapes.MessagePage(None, number, messages=views)
        turn = self._turns.of(request)
        total: int | UnsetType = UNSET
        if is_counted:
            is_abandoned = lambda: request.transport is None  # noqa: E731
            total = await count(self._timeline, query, sees(request), turn, is_abandoned)
        selection = Selection(self._timeline, replace(query, as_of=as_of), sees(request))
        views, end, is_hidden = await selection.page(turn, start)
        following = None if end is None else self._cursors.text(end, as_of, is_hidden=is_hidden)
        return shapes.MessagePage(following, total, messages=views)

    def _under(self, request: web.Request, query: Query, key: str) -> list[shapes.Message]:
        """The messages under a key of the caller that the query selects. Raises FieldError, Corrupt."""
        selection = Selection(self._timeline, query, sees(request))
        names = sorted(self._timeline.ids_under(key, user_of(request)))
        found = [one for name in names if (one := self._timeline.reader.find(name)) is not None]
        return [view for one in found if (view := selection.one(one)) is not None]


def query_of(request: web.Request, outcomes: Outcomes) -> Query:
    """The query parameters except the cursor. Raises FieldError."""
    since, until = instant_parameter(request, "due_from"), instant_parameter(request, "due_to")
    outcome, is_shown = request.query.get("outcome"), flag(request, "outcomes")
    if outcome not in (None, *SELECTABLE):
        wanted = f"must be one of {', '.join(SELECTABLE)}, not {str(outcome)[:40]!r}: no index has others"
        raise FieldError("outcome", wanted)
    state = request.query.get("state", ALL if outcome else PENDING)
    if state not in (*STATES, ALL):
        raise FieldError("state", f"must be one of {', '.join((*STATES, ALL))}, not {state[:40]!r}")
    topic, order = request.query.get("topic"), request.query.get("ordering_key")
    query = query_over(topic, since, until, state=state, limit=limit_of(request), ordering_key=order)
    return replace(query, outcome=outcome or "", outcomes=outcomes if outcome or is_shown else None)
