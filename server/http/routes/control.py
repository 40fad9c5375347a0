"""`POST /v1/messages:cancel` and `:reschedule`: many messages by topic filter and due range.

Each message is decided by itself: rows are read in bounded steps, and each step's matches go through the
writer, which decides each as for a single cancel or move. `matched` counts the pending messages (or, with
`state`, the withheld ones) that the filter selects, `changed` those that were cancelled or moved in time.

A moved message can land further on in the range that is being shifted. Its seq keeps it from being moved
again: seq only grows, so everything placed after the call began is above `as_of`, the last seq issued at that
moment, and is skipped. The answer contains `as_of`, as does the cursor. A later call with either continues
where the first one stopped, for whatever reason, and leaves its moved messages alone.

If somebody else moves a message meanwhile, `:cancel` cancels it if the filter still selects it. `:reschedule`
does not shift it, because the new time is the later request.

If a call is refused half way, its problem says how far it came. An unreadable message counts as matched and
is left as it is.

    {"filter": {"topic": "orders/#"}, "shift": "PT1H", "dry_run": true}   {"matched": 7, ..., "as_of": A}
    {"filter": {"topic": "orders/#"}, "shift": "PT1H", "as_of": A}        connection lost, 3 are moved
    {"filter": {"topic": "orders/#"}, "shift": "PT1H", "as_of": A}        {"matched": 4, "changed": 4, ...}

`limit` ends a call after that many matches, and `next` says where the following one begins, so that a client
can show progress.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec.structs import asdict

from shards.commit import Commit
from shards.draft import Outcome
from shards.errors import Corrupt
from shards.record import decode, due_at
from shards.state import PENDING
from timeline.position import MessageId, Position, at_of, id_text, seq_of

from ...engine.writer import GROUP_BYTES
from ...observe.metrics import Metrics
from ..access import Sees, changes, sees
from ..answers import answer_of, refusal
from ..bulk import Acted, BulkParts, change_each
from ..calls import SCHEDULE, WRITES, described
from ..problems import Problem
from ..requests import body_of
from ..selection import Query, Selection, query_over
from ..turns import Turn
from ..values import shapes
from ..values.bodies import FieldError, delay_ms, instant_ms
from ..values.scalars import Cursor, OrderingKey, Point, Seq, Shift, named, rules, some_of, without
from ..values.scalars import Filter as TopicFilter

log = logging.getLogger(__name__)

LOOK_ROWS = 2_000
"""Maximum rows read in a turn."""
STEP_MESSAGES = 250
"""Messages decided in one request to the writer."""


class Filter(msgspec.Struct, forbid_unknown_fields=True):
    """Selects messages: due_from <= due < due_to, RFC 3339 or Unix ms."""

    topic: TopicFilter | None = None
    due_from: Point | int | None = None
    due_to: Point | int | None = None
    ordering_key: OrderingKey | None = None
    state: Literal["pending", "withheld"] = PENDING


class BulkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of both."""

    filter: Annotated[Filter, rules(some_of("topic", "due_from", "due_to", "ordering_key"))]
    shift: Shift | None = None
    dry_run: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    as_of: Seq | None = None
    cursor: Cursor | None = None


_BULK = msgspec.json.Decoder(BulkRequest)


@dataclass(frozen=True, slots=True)
class Target:
    """A selected message: its id, the row where it was seen, its due, ms."""

    id: MessageId
    row: MessageId
    due_ms: int


Act = Callable[[list[Target], Commit], Acted]
"""In the writer: change the targets."""


@dataclass(slots=True)
class Sweep:
    """Progress of a call."""

    query: Query
    as_of: Position
    sees: Sees | None
    name: Callable[[Position, Position], str]
    """Makes the cursor of a position and a moment."""
    limit: int
    matched: int = 0
    changed: int = 0
    next: Position | None = None

    def view(self) -> shapes.Changed:
        """`next` is the cursor of the last row read, which the caller may not be allowed to see."""
        cursor = None
        if self.next is not None:
            cursor = self.name(Position(max(0, self.next - 1)), self.as_of)
        as_of = f"{seq_of(self.as_of):012x}"
        return shapes.Changed(self.matched, self.changed, as_of, cursor)


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """The routes."""

    parts: BulkParts
    metrics: Metrics

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/messages:cancel", self.cancel),
            web.post("/v1/messages:reschedule", self.reschedule),
        ]

    @described(
        "Cancel all that match",
        SCHEDULE,
        body=Annotated[BulkRequest, without("shift"), named("CancelRequest")],
        example={"filter": {"topic": "orders/17/#"}, "dry_run": True},
        problems=WRITES,
    )
    async def cancel(self, request: web.Request) -> shapes.Changed:
        body = await body_of(request, _BULK)
        if body.shift is not None:
            raise FieldError("shift", "is for messages:reschedule")
        return await self._answer(request, body, cancel_all)

    @described(
        "Shift all that match",
        SCHEDULE,
        body=Annotated[BulkRequest, rules(some_of("shift")), named("RescheduleRequest")],
        example={"filter": {"topic": "meters/#", "due_to": "2030-01-01T00:00:00Z"}, "shift": "PT15M"},
        problems=WRITES,
    )
    async def reschedule(self, request: web.Request) -> shapes.Changed:
        body = await body_of(request, _BULK)
        if body.shift is None:
            raise FieldError("shift", "is required")
        latest_ms = self.parts.clock.wall_ms() + self.parts.max_delay_ms
        act = partial(shift_all, by_ms=signed_ms("shift", body.shift), latest_ms=latest_ms)
        return await self._answer(request, body, act)

    async def _answer(self, request: web.Request, body: BulkRequest, act: Act) -> shapes.Changed:
        name = partial(self.parts.cursors.text, is_hidden=sees(request) is not None)
        sweep, turn = self._sweep(body, changes(request), name), self.parts.turns.of(request)
        try:
            await self._run(sweep, turn, None if body.dry_run else act, lambda: request.transport is None)
        except Problem as problem:
            problem.extra |= asdict(sweep.view())
            raise
        except Corrupt as error:
            log.error("bulk: %s", error)
            raise Problem("unreadable", **asdict(sweep.view())) from error
        finally:
            if body.shift is None:
                self.metrics.cancelled += sweep.changed
            else:
                self.metrics.moved += sweep.changed
        return sweep.view()

    def _sweep(
        self, body: BulkRequest, may_change: Sees | None, name: Callable[[Position, Position], str]
    ) -> Sweep:
        """Begin a call; nothing is revealed of messages that the key may not change. Raises FieldError."""
        chosen = body.filter
        if msgspec.structs.replace(chosen, state=PENDING) == Filter():
            raise FieldError(
                "filter", 'must name a topic, due_from, due_to or ordering_key; {"topic": "#"} is everything'
            )
        since, until = _instant("due_from", chosen.due_from), _instant("due_to", chosen.due_to)
        query = query_over(chosen.topic, since, until, state=chosen.state, ordering_key=chosen.ordering_key)
        start, as_of = query.start, self.parts.timeline.as_of
        if body.cursor is not None:
            last, moment = self.parts.cursors.place(body.cursor)
            if moment is None and body.as_of is None:
                raise FieldError("cursor", "is not one of a bulk call, or needs the `as_of` beside it")
            start, as_of = max(start, Position(last + 1)), moment or as_of
        if body.as_of is not None:
            as_of = Position(at_of(as_of) << 48 | min(seq_of(as_of), _seq(body.as_of)))
        # A shift does not read as of a moment: it would find its own moved messages.
        query = query if body.shift is not None else replace(query, as_of=as_of)
        return Sweep(query, as_of, may_change, name, body.limit or 1 << 62, next=start)

    async def _run(self, sweep: Sweep, turn: Turn, act: Act | None, is_abandoned: Callable[[], bool]) -> None:
        """Run step by step to the end of the range, the limit, or until the client is gone. `act` None: dry
        run."""
        while sweep.next is not None and sweep.matched < sweep.limit and not is_abandoned():
            await turn.begin()
            targets, following = self._step(sweep, sweep.next, turn)
            sweep.matched += len(targets)
            if targets and act is not None:
                acted: Acted = await answer_of(self.parts.ask, partial(act, targets), cost=len(targets))
                sweep.changed += acted.changed
                if acted.refused is not None:
                    raise refusal(acted.refused)  # `next` is the step that was not done
            sweep.next = following

    def _step(self, sweep: Sweep, start: Position, turn: Turn) -> tuple[list[Target], Position | None]:
        """The next matches, and where to continue; None at the end of the range."""
        selection = Selection(self.parts.timeline, sweep.query, sweep.sees)
        most = min(STEP_MESSAGES, sweep.limit - sweep.matched)
        targets: list[Target] = []
        size = 0
        for looked, (place, number, value) in enumerate(selection.rows(start), 1):
            start = Position(place + 1)
            met = selection.met(place, number, value) if seq_of(place) <= seq_of(sweep.as_of) else None
            if met is not None and selection.has(met[0]) and selection.counts(*met):
                targets.append(self._target(*met))
                size += len(met[2])
                if len(targets) == most or size >= GROUP_BYTES:
                    return targets, start
            if looked == LOOK_ROWS or turn.is_over(looked):
                return targets, start
        return targets, None

    def _target(self, place: Position, number: int, value: bytes) -> Target:
        row, record = self.parts.timeline.row_id(place, number), decode(value)
        return Target(self.parts.timeline.id_at(place, number, record), row, due_at(place, record.due_ms))


def cancel_all(targets: list[Target], commit: Commit) -> Acted:
    """Cancel the messages that are still where they were seen."""

    def cancel(target: Target) -> bool:
        found = commit.find(target.id)
        if found is None or found.row_id != target.row:
            return False
        return commit.cancel(target.id).outcome is Outcome.DONE

    return change_each(targets, cancel, _name)


def shift_all(targets: list[Target], commit: Commit, *, by_ms: int, latest_ms: int) -> Acted:
    """Move the messages that are still where they were seen, none beyond `latest_ms`."""

    def shift(target: Target) -> bool:
        due_ms = max(1, target.due_ms + by_ms)
        return due_ms <= latest_ms and commit.move(target.id, due_ms, target.row).outcome is Outcome.DONE

    return change_each(targets, shift, _name)


def _name(target: Target) -> str:
    return id_text(target.id)


def signed_ms(field: str, value: str | float) -> int:
    """A duration that may be negative, `-PT15M` or -900, ms. Raises FieldError."""
    if isinstance(value, str):
        return -delay_ms(field, value[1:]) if value.startswith("-") else delay_ms(field, value)
    return -delay_ms(field, -value) if value < 0 else delay_ms(field, value)


def _instant(field: str, given: str | int | None) -> int | None:
    return None if given is None else instant_ms(field, str(given))


def _seq(text: str) -> int:
    if len(text) != 12 or not set(text) <= set("0123456789abcdef"):
        raise FieldError("as_of", "is not one that this server gave")
    return int(text, 16)
