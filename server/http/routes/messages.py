"""`/v1/messages` and `/v1/messages/{id}`: schedule, show, move and cancel a message.

The writer decides every change, and the answer is sent once it is durable. The answer is the writer's
decision, never an earlier look-up.

    POST    201 with id, ETag of its row        the same key again: 200, its current state
    PATCH   200, the same id, a new ETag        409 already-dispatched | cancelled, 412 with If-Match, 404
    DELETE  204: nobody will get it             409 already-dispatched with when, 404

`/v1/messages/by-key/{key}` is the message that was scheduled with a key: the same calls with the same
answers. The writer also decides which message that is, and whether the caller may see and change it, since
another request may take the key meanwhile (`?replace=true`).

    PUT makes the message, changes the pending one, or cancels it (shards/upsert.py)

    a message has the key                                      as by its id
    retention or a repair has dropped it                       410 gone
    the key was never used, or has been forgotten              404
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import msgspec
from aiohttp import web

from shards.commit import Commit
from shards.draft import AS_EVER, Control, Known, Outcome
from shards.fields import Record
from shards.read import Found
from shards.record import decode, due_at, topic_of
from shards.state import CANCELLED, DISPATCHED, EXPIRED, PENDING, WITHHELD, State
from shards.upsert import Effect, Upserted
from timeline.position import MessageId, Position, id_text

from ...delivery.deliveries import OVER, Deliveries
from ...delivery.router import Router
from ...engine.clock import Clock
from ...engine.writer import Ask
from ...observe.metrics import Metrics
from ...observe.tracing import Traces
from ...settings.config import Limits
from ...settings.times import format_ms, time_text, wall_time
from ..access import changes, charge, owns, rights_of, sees, user_of
from ..answers import answer_of, json_answer, raw_answer, refusals
from ..by_key import SEES_ONLY, Act, KeyedMessage
from ..calls import READ, SCHEDULE, WRITES, Gives, described
from ..claims import claims_of
from ..intake import Coming, Intake, Trace, Wrong
from ..posting import TERMS, debounced_answer, first_answer, place, terms_of
from ..problems import Problem
from ..requests import KEY_HEADER, body_of, flag, id_of, idempotency_key_of, trace_of, whole_body
from ..selection import visible
from ..timeline import Timeline
from ..turns import Turns
from ..values import shapes
from ..values.bodies import FieldError, check_json
from ..values.drafts import HTTP, MQTT, stored_key
from ..values.message_body import ONE_TIME, ParsedMessage, due_of
from ..values.post_body import Debounced, New
from ..values.reader import Reader
from ..values.scalars import FLAG, Delay, ETag, Key, Location, Query, Tags, When, rules, some_of
from ..values.upsert_body import Upsert
from ..values.views import Shown, etag, message_view

TAGGED = {"ETag": ETag}
PLACED = {"Location": Location, **TAGGED}
NAMED = "/v1/messages/by-key/{key}"
NO_ROW = MessageId(0)
"""A tag that matches no row."""
Door = Annotated[Literal["http", "mqtt"], msgspec.Meta(extra_json_schema={"default": HTTP})]
BY_KEY = {"door": Door}
CLAIMS: Query = {"claims": FLAG}


class Move(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PATCH; exactly one of the two."""

    deliver_at: When | msgspec.UnsetType = msgspec.UNSET
    deliver_in: Delay | msgspec.UnsetType = msgspec.UNSET


_MOVE = msgspec.json.Decoder(Move)
_MOVES = Annotated[Move, rules(ONE_TIME, some_of("deliver_at", "deliver_in"))]


class MoveRequest(NamedTuple):
    """A parsed PATCH."""

    now_ms: int
    due_ms: int
    zone: bytes
    tags: frozenset[str] | None


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The routes of single messages."""

    ask: Ask
    intake: Intake
    clock: Clock
    timeline: Timeline
    turns: Turns
    deliveries: Deliveries
    metrics: Metrics
    router: Router
    limits: Limits
    traces: Traces | None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/messages", self.post),
            web.get("/v1/messages/{id}", self.get),
            web.patch("/v1/messages/{id}", self.patch),
            web.delete("/v1/messages/{id}", self.delete),
            web.get(NAMED, self.get_by_key),
            web.put(NAMED, self.put_by_key),
            web.patch(NAMED, self.patch_by_key),
            web.delete(NAMED, self.delete_by_key),
        ]

    @described(
        "Schedule a message; sent again under its key it gets the first answer",
        SCHEDULE,
        Gives(201, shapes.Posted, PLACED),
        Gives(
            200,
            shapes.Posted,
            {**PLACED, "Idempotent-Replayed": Literal["true", "false"]},
            "the first answer; false: debounced, and the pending message has changed",
        ),
        query=TERMS | CLAIMS,
        body=New,
        example={
            "topic": "orders/17/reminder",
            "payload": {"order": 17},
            "deliver_in": "15m",
            "key": "order-17",
        },
        headers={KEY_HEADER: Key},
        problems=("idempotency-mismatch", *WRITES),
    )
    async def post(self, request: web.Request) -> web.Response:
        check_json(request.headers.get("Content-Type", ""))
        body = await whole_body(request)
        now_ms, rights, turn = self.clock.wall_ms(), rights_of(request), self.turns.of(request)
        trace = Trace(self.traces, trace_of(request), is_one=True)
        user, are_drafts = "" if rights is None else rights.name, self.traces is None
        reader = Reader(now_ms, self.limits, user, trace.context, as_drafts=are_drafts)
        item, terms = reader.one(body, idempotency_key_of(request)), terms_of(request)
        with_claims = flag(request, "claims")
        topics = reader.topics.values()
        coming = Coming([item], topics, now_ms, terms, rights, turn, trace, place, _refuse)
        if reader.debounced is not None:
            status, headers, answer = await self._debounced(request, coming, reader.debounced)
        else:
            with trace, refusals():
                (draft,), (placed,) = await self.intake.take(coming)
            if not isinstance(placed, Known):
                self.metrics.accepted.inc()
            status, headers, answer = first_answer(placed, draft.due_ms, now_ms, self.timeline)
        if with_claims:
            deliver_to = item.deliver_to if isinstance(item, ParsedMessage) else b""
            claims = await claims_of(item.topic, deliver_to, self.router, rights, turn)
            answer = b'%b,"claims":%b}' % (answer[:-1], msgspec.json.encode(claims))
        return raw_answer(answer, status, headers)

    async def _debounced(
        self, request: web.Request, coming: Coming, how: Debounced
    ) -> tuple[int, dict[str, str], bytes]:
        """Place a debounced message; status, headers and body of the answer. Raises Problem, FieldError."""
        if coming.terms is not AS_EVER:
            raise FieldError("debounce", "does not go with replace, key_only and key_scope")
        named = _named(request, how.key)
        coming.decide = partial(named.debounce, until_ms=how.until_ms, may_change=changes(request))
        upserted: Upserted | Problem
        with coming.trace, refusals():
            _, (upserted,) = await self.intake.take(coming)
            coming.trace.placed = [_id_of(upserted)]
        if isinstance(upserted, Problem):
            raise upserted
        self.metrics.accepted.inc(upserted.effect is Effect.MADE)
        self.metrics.moved += upserted.effect is Effect.CHANGED
        return debounced_answer(upserted, coming.now_ms)

    @described(
        "Look at a message, and at what has become of it with each who was to get it",
        READ,
        Gives(200, shapes.MessageShown, TAGGED),
        problems=("not-found", "other-timeline"),
    )
    async def get(self, request: web.Request) -> web.Response:
        return _response(await self.shown(request))

    @described(
        "Look at the message under an idempotency key",
        READ,
        Gives(200, shapes.MessageShown, TAGGED),
        query=BY_KEY,
        problems=("not-found", "gone"),
    )
    async def get_by_key(self, request: web.Request) -> web.Response:
        named = _by_key(request)
        row = self.timeline.known_under(named.stored)
        found = named.judge(row, None if row is None else self.timeline.reader.find(row.id))
        if isinstance(found, Problem):
            if row is None or found.slug != "gone":
                raise found
            return _response(await self._kept(request, row.id, found))
        return _response(await self._found(request, found))

    async def shown(self, request: web.Request) -> Shown:
        """The message of the path. Raises Problem."""
        message = id_of(request, self.timeline.number)
        found = visible(self.timeline, message, sees(request))
        return await (self._kept(request, message) if found is None else self._found(request, found))

    async def _kept(
        self, request: web.Request, message: MessageId, otherwise: Problem | None = None
    ) -> Shown:
        """A message whose slice is gone, from a place that still keeps it. Raises Problem."""
        known = self._known(request, message)
        if known is None:
            raise otherwise or _unknown(message)
        return await self._view(request, message, *known, DISPATCHED, None, message)

    def _known(self, request: web.Request, message: MessageId) -> tuple[Position, Record] | None:
        """Where that message was, and as stored, except its due; None: no place keeps it."""
        row = self.deliveries.kept(message, partial(owns, rights_of(request)))
        may_see = sees(request)
        if row is None or not (may_see is None or may_see(topic_of(row.record))):
            return None
        return row.root, msgspec.structs.replace(decode(row.record), due_ms=0)

    async def _found(self, request: web.Request, found: Found) -> Shown:
        record = decode(found.value)
        state, dispatched_ms = self.timeline.state_of(found, record)
        return await self._view(request, found.id, found.position, record, state, dispatched_ms, found.row_id)

    async def _view(
        self,
        request: web.Request,
        message: MessageId,
        place: Position,
        record: Record,
        state: State,
        dispatched_ms: int | None,
        row: MessageId,
    ) -> Shown:
        """A message; a dispatched or withheld one with its deliveries."""
        view = message_view(shapes.MessageShown, message, place, record, state, dispatched_ms)
        view.withheld_by = self.timeline.withheld_by(state, record)
        if state in (DISPATCHED, WITHHELD):
            # It was so, whatever happens while this waits for its turn.
            await self.turns.of(request).begin()
            may = partial(owns, rights_of(request))
            found = self.deliveries.of(message, place, record, may)
            view.deliveries, view.deliveries_truncated = found
        view.outcome = self.deliveries.outcomes.of(place, record, state)
        return Shown(view, message, place, record, row)

    @described(
        "Move a message; its id stays",
        SCHEDULE,
        Gives(200, shapes.Scheduled, TAGGED),
        body=_MOVES,
        example={"deliver_at": "2030-03-28T09:00[Europe/Bucharest]"},
        headers={"If-Match": Tags},
        problems=(
            "not-found",
            "other-timeline",
            "already-dispatched",
            "cancelled",
            "precondition-failed",
            *WRITES,
        ),
    )
    async def patch(self, request: web.Request) -> web.Response:
        message = id_of(request, self.timeline.number)
        move = await self._read_move(request)
        control = await self._changed(request, message, partial(_move, move=move))
        return self._moved(message, control, move)

    @described(
        "Move the message under an idempotency key; its id and its key stay",
        SCHEDULE,
        Gives(200, shapes.Scheduled, TAGGED),
        query=BY_KEY,
        body=_MOVES,
        example={"deliver_at": "2030-03-28T09:00[Europe/Bucharest]"},
        headers={"If-Match": Tags},
        problems=("not-found", "gone", "already-dispatched", "cancelled", "precondition-failed", *WRITES),
    )
    async def patch_by_key(self, request: web.Request) -> web.Response:
        named = _by_key(request)
        move = await self._read_move(request)
        message, control = await self._decided(request, named, partial(_move, move=move))
        return self._moved(message, control, move)

    async def _read_move(self, request: web.Request) -> MoveRequest:
        """The body and If-Match of a PATCH. Raises RequestError."""
        move = await body_of(request, _MOVE)
        now_ms = self.clock.wall_ms()
        due_ms = due_of(move.deliver_at, move.deliver_in, now_ms, self.limits.max_delay_ms)
        tags = _tags(request.headers.getall("If-Match", []))
        return MoveRequest(
            now_ms, due_ms, b"" if move.deliver_at is msgspec.UNSET else wall_time(move.deliver_at), tags
        )

    def _moved(self, message: MessageId, control: Control, move: MoveRequest) -> web.Response:
        if control.outcome is not Outcome.DONE:
            self._refuse(message, control)
        assert control.found is not None
        self.metrics.moved += bool(control.row)
        self.metrics.cancelled += not control.row
        state: State = PENDING if control.row else CANCELLED
        answer = json_answer(
            shapes.Scheduled(id_text(message), format_ms(move.due_ms), state, format_ms(move.now_ms))
        )
        answer.headers["ETag"] = etag(control.row or control.found.row_id)
        return answer

    @described(
        "Cancel a message: nobody will get it",
        SCHEDULE,
        problems=("not-found", "other-timeline", "already-dispatched", *WRITES),
    )
    async def delete(self, request: web.Request) -> None:
        message = id_of(request, self.timeline.number)
        await self._cancelled(request, message, await self._changed(request, message, Commit.cancel))

    @described(
        "Cancel the message under an idempotency key: nobody will get it",
        SCHEDULE,
        query=BY_KEY,
        problems=("not-found", "gone", "already-dispatched", *WRITES),
    )
    async def delete_by_key(self, request: web.Request) -> None:
        await self._cancelled(request, *await self._decided(request, _by_key(request), Commit.cancel))

    async def _cancelled(self, request: web.Request, message: MessageId, control: Control) -> None:
        """Count a cancel. Raises Problem."""
        if control.outcome is not Outcome.DONE:
            await self._not_cancelled(request, message, control)
        self.metrics.cancelled += 1

    @described(
        "Make the message under an idempotency key what the body says: made, changed or cancelled",
        SCHEDULE,
        Gives(201, shapes.Upserted, PLACED, "made"),
        Gives(200, shapes.Upserted, description="changed, cancelled, or nothing to do"),
        body=Upsert,
        example={"topic": "orders/17/reminder", "payload": "hi", "deliver_in": "1h", "version": [3, 0]},
        problems=("not-found", "already-dispatched", *WRITES),
    )
    async def put_by_key(self, request: web.Request) -> web.Response:
        check_json(request.headers.get("Content-Type", ""))
        body = await whole_body(request)
        named, now_ms, rights = _by_key(request), self.clock.wall_ms(), rights_of(request)
        trace, may_change = Trace(self.traces, trace_of(request), is_one=True), changes(request)
        user = "" if rights is None else rights.name
        reader = Reader(now_ms, self.limits, user, trace.context, as_drafts=False)
        wish, item = reader.wish(body, named.key)
        upserted: Upserted | Problem
        if item is None:
            charge(rights, 1)  # its version is kept as long as a message
            cancel = partial(named.cancel, version=wish.version, may_change=may_change)
            upserted = await answer_of(self.ask, cancel)
        else:
            decide, turn = partial(named.upsert, wish=wish, may_change=may_change), self.turns.of(request)
            topics = reader.topics.values()
            coming = Coming([item], topics, now_ms, AS_EVER, rights, turn, trace, decide, _refuse)
            with trace, refusals():
                _, (upserted,) = await self.intake.take(coming)
                trace.placed = [_id_of(upserted)]
        return await self._upserted_answer(request, named, upserted)

    async def _upserted_answer(
        self, request: web.Request, named: KeyedMessage, upserted: Upserted | Problem
    ) -> web.Response:
        """The answer to an upsert. Raises Problem."""
        if isinstance(upserted, Problem):
            raise upserted
        effect, found, message = upserted.effect, upserted.found, upserted.id
        if effect is Effect.UNKNOWN:
            raise named.unknown()
        if effect is Effect.TOO_LATE:
            outcome = Outcome.NOT_FOUND if found is None else Outcome.ALREADY_DISPATCHED
            await self._not_cancelled(request, message, Control(outcome, found))
        self.metrics.accepted.inc(effect is Effect.MADE)
        self.metrics.moved += effect is Effect.CHANGED
        self.metrics.cancelled += effect is Effect.CANCELLED
        state, due_ms = self._after(upserted)
        body = shapes.Upserted(
            id=id_text(message) if message else None,
            state=state,
            deliver_at=format_ms(due_ms) if message else None,
            changed=effect in (Effect.MADE, Effect.CHANGED, Effect.CANCELLED),
        )
        answer = json_answer(body, 201 if effect is Effect.MADE else 200)
        if effect is Effect.MADE:
            answer.headers.update({"Location": f"/v1/messages/{id_text(message)}", "ETag": etag(message)})
        return answer

    def _after(self, upserted: Upserted) -> tuple[State, int]:
        """State and due of the message under a key after an upsert."""
        effect, found = upserted.effect, upserted.found
        if effect in (Effect.MADE, Effect.CHANGED):
            return PENDING, upserted.due_ms
        if found is None:
            return DISPATCHED if upserted.id else CANCELLED, upserted.due_ms
        record = decode(found.value)
        is_cancelled = effect is not Effect.NOTHING
        state = CANCELLED if is_cancelled else self.timeline.state_of(found, record)[0]
        return state, due_at(found.position, record.due_ms)

    async def _decided(
        self, request: web.Request, named: KeyedMessage, act: Act
    ) -> tuple[MessageId, Control]:
        """The message of a key, and the outcome of `act` on it. Raises Problem."""
        answer: tuple[MessageId, Control] = await answer_of(
            self.ask, partial(named.decide, act=act, may_change=changes(request))
        )
        return answer

    async def _changed(self, request: web.Request, message: MessageId, act: Act) -> Control:
        """The outcome of `act` on a message. Raises Problem.

        The writer decides whether the caller may change it: an upsert may give it another topic meanwhile.
        """

        def decide(commit: Commit) -> Control | Problem:
            return self._barred(request, message, commit) or act(commit, message)

        control: Control = await answer_of(self.ask, decide)
        return control

    def _barred(self, request: web.Request, message: MessageId, commit: Commit) -> Problem | None:
        """In the writer: the refusal, if the caller may not see or change the message."""
        may_change, may_see = changes(request), sees(request)
        if may_change is None:
            return None
        found = commit.find(message)
        topic = None if found is None else topic_of(found.value)
        if topic is None or not (may_see is None or may_see(topic)):
            known = self._known(request, message)
            topic = None if known is None else known[1].topic
        if topic is None:
            return _unknown(message)
        if not may_change(topic):
            return Problem("forbidden", SEES_ONLY)
        return None

    async def _not_cancelled(self, request: web.Request, message: MessageId, control: Control) -> NoReturn:
        """Raise the problem of a failed cancel; for a dispatched message with its deliveries."""
        await self.turns.of(request).begin()
        found = control.found if control.outcome is Outcome.ALREADY_DISPATCHED else None
        if found is not None:
            place, record, when = found.position, decode(found.value), self._when(found)
        else:
            known = self._known(request, message) if control.outcome is Outcome.NOT_FOUND else None
            if known is None:
                self._refuse(message, control)
            (place, record), when = known, {}
        may = partial(owns, rights_of(request))
        listed, is_cut = self.deliveries.of(message, place, record, may)
        if found is not None and self.timeline.state_of(found, record)[0] == EXPIRED:
            listed = []  # it was dropped as late: who has not read so far will not get it
        left = [one for one in listed if one.state not in OVER]
        raise _too_late(message, **when, deliveries=left, deliveries_truncated=is_cut)

    def _refuse(self, message: MessageId, control: Control) -> NoReturn:
        """Raise the problem of a failed move or cancel."""
        name = id_text(message)
        match control.outcome:
            case Outcome.NOT_FOUND:
                raise _unknown(message)
            case Outcome.CANCELLED:
                raise Problem("cancelled", f"Message {name} was already cancelled.")
            case Outcome.CHANGED:
                raise Problem("precondition-failed", f"{name} was moved after the ETag in If-Match.")
        assert control.found is not None
        raise _too_late(message, **self._when(control.found))

    def _when(self, found: Found) -> dict[str, Any]:
        dispatched_ms = self.timeline.journal().dispatched_ms(found.position)
        return {} if dispatched_ms is None else {"dispatched_at": time_text(dispatched_ms)}


def _response(shown: Shown) -> web.Response:
    answer = json_answer(shown.view)
    answer.headers["ETag"] = etag(shown.row)
    return answer


def _move(commit: Commit, message: MessageId, move: MoveRequest) -> Control:
    """In the writer: move the message if its row matches one of the tags."""
    if move.tags is None:
        return commit.move(message, move.due_ms, zone=move.zone)
    found = commit.find(message)
    is_meant = found is not None and etag(found.row_id) in move.tags
    row = found.row_id if found is not None and is_meant else NO_ROW
    return commit.move(message, move.due_ms, row, zone=move.zone)


def _by_key(request: web.Request) -> KeyedMessage:
    """The caller's key in the path. Raises FieldError."""
    key, door = request.match_info["key"], request.query.get("door", HTTP)
    if door not in (HTTP, MQTT):
        raise FieldError("door", f"must be {HTTP} or {MQTT}, not {door[:40]!r}")
    return _named(request, key, door)


def _named(request: web.Request, key: str, door: str = HTTP) -> KeyedMessage:
    """A message by a key of the caller."""
    return KeyedMessage(key, stored_key(key, user_of(request), door), sees(request))


def _id_of(upserted: Upserted | Problem) -> MessageId | Problem:
    """The id for a span, or the problem."""
    return upserted.id if isinstance(upserted, Upserted) else upserted


def _refuse(_: int, error: Wrong) -> NoReturn:
    raise error


def _tags(headers: list[str]) -> frozenset[str] | None:
    """The tags of If-Match; None: any state matches. Weak tags never match (RFC 9110, 13.1.1)."""
    tags = frozenset(tag.strip() for header in headers for tag in header.split(","))
    return None if not tags or "*" in tags else tags


def _too_late(message: MessageId, **extra: Any) -> Problem:
    return Problem("already-dispatched", f"{id_text(message)} is due too soon, or past.", **extra)


def _unknown(message: MessageId) -> Problem:
    return Problem("not-found", f"Message {id_text(message)} not found.")
