"""`GET /v1/messages:export`: pending messages, as NDJSON that `:batch` accepts.

The timeline continues during an export, and millions of messages take a while. The export contains messages
that were pending when it began and still are when it reaches them. Each step reads a bounded run of rows and
waits until the client has taken them, so memory is bounded by the step.

A message that is moved meanwhile comes once, as it is now: the rows are read as of the beginning
(selection.py).

The export leaves out what a message request cannot contain: the idempotency key (only its hash is stored),
the publisher, and MQTT properties other than content type and user properties. It also leaves out dispatched
messages. A header of the answer says so.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice

import msgspec
from aiohttp import web
from msgspec import UNSET
from msgspec.structs import asdict

from shards.record import decode
from shards.state import PENDING
from timeline.position import Position

from ..access import Sees, rights_of, sees
from ..calls import NDJSON, READ, Gives, described
from ..problems import Problem
from ..requests import flag, instant_parameter
from ..selection import Query, Selection, query_over
from ..timeline import Timeline
from ..turns import Turn, Turns
from ..values import shapes
from ..values.scalars import FLAG, SELECTED
from ..values.views import message_view

STEP_ROWS = 500
STEP_BYTES = 1 << 20
LEFT_OUT = "Fasti-Left-Out"
_LEFT_OUT = (
    "what was dispatched: unread messages of sessions, groups and endpoints, retries and dead letters; "
    "of each message its idempotency key, publisher, and MQTT properties but content type and user properties"
)
_NOT_SENT = ("state", "publisher")

_encode = msgspec.json.Encoder().encode


class Export:
    """The route."""

    def __init__(self, timeline: Timeline, turns: Turns) -> None:
        self._timeline = timeline
        self._turns = turns

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/messages:export", self.get)]

    @described(
        "What is pending as NDJSON, which `:batch` takes back",
        READ,
        Gives(200, str, {LEFT_OUT: str}, "one message a line", NDJSON),
        query={**SELECTED, "ids": FLAG},
    )
    async def get(self, request: web.Request) -> web.StreamResponse:
        since, until = instant_parameter(request, "due_from"), instant_parameter(request, "due_to")
        order = request.query.get("ordering_key")
        query = query_over(request.query.get("topic"), since, until, ordering_key=order)
        reading = Reading(self._timeline, query, partial(sees, request), with_ids=flag(request, "ids"))
        rights, turn = rights_of(request), self._turns.of(request)
        response = web.StreamResponse(headers={"Content-Type": NDJSON, LEFT_OUT: _LEFT_OUT})
        await turn.begin()
        lines = reading.step(turn)  # before the answer begins: what cannot be read is a problem then
        await response.prepare(request)
        while lines or not reading.is_over:
            if rights is not None and not rights.is_live:
                raise Problem("unauthorized", "The key is no longer valid.")  # which closes the connection
            if lines:
                await response.write(b"\n".join(lines) + b"\n")
            await turn.begin()
            lines = [] if reading.is_over else reading.step(turn)
        await response.write_eof()
        return response


class Reading:
    """A running export."""

    def __init__(
        self,
        timeline: Timeline,
        query: Query,
        sees: Callable[[], Sees | None],
        *,
        with_ids: bool,
    ) -> None:
        """`sees`: current visibility for the key, since rules may change meanwhile."""
        self._timeline = timeline
        self._query = replace(query, as_of=timeline.as_of)
        self._sees = sees
        self._start = query.start
        self._not_sent = _NOT_SENT if with_ids else ("id", *_NOT_SENT)
        self.is_over = False

    def step(self, turn: Turn) -> list[bytes]:
        """The next lines, without line ends; sets `is_over`."""
        selection = Selection(self._timeline, self._query, self._sees())
        lines: list[bytes] = []
        looked = size = 0
        for place, number, value in islice(selection.rows(self._start), STEP_ROWS):
            looked += 1
            self._start = Position(place + 1)
            met = selection.met(place, number, value)
            if met is not None and selection.counts(*met):
                line = self._line(*met)
                lines.append(line)
                size += len(line)
            if size > STEP_BYTES or turn.is_over(looked):
                return lines
        self.is_over = looked < STEP_ROWS
        return lines

    def _line(self, place: Position, number: int, value: bytes) -> bytes:
        record = decode(value)
        name = self._timeline.id_at(place, number, record)
        view = message_view(shapes.Message, name, place, record, PENDING)
        if view.local:
            view.deliver_at, view.local = view.local, UNSET
        members = asdict(view)
        for member in self._not_sent:
            del members[member]
        return _encode({name: one for name, one in members.items() if one is not UNSET})
