"""`POST /v1/messages:batch`: up to 10,000 messages in one request, as NDJSON or as a JSON array.

All or nothing by default: if an item is bad or refused by the writer, the error names its line and nothing is
stored. With `?each=true` every item stands for itself, and the answer has a result for each; for a known key
also the message's state, which may be `cancelled`. The header `Idempotency-Key` is a key of the whole batch.
With `?ids=true` an item may bring the id from the server that exported it.

This is the bulk path, hence one list of drafts, one request to the writer, one group commit, and an answer
built by one join.
"""

import asyncio
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NoReturn

from aiohttp import web

from shards.dedupe import Refused
from shards.draft import BatchKey

from ...engine.clock import Clock
from ...observe.metrics import Metrics
from ...observe.tracing import Traces
from ...settings.config import Limits
from ..access import rights_of
from ..answers import raw_answer, refusal, refusals
from ..batching import Result, accepted, fresh, result_texts
from ..calls import SCHEDULE, WRITES, Gives, described
from ..intake import YIELD_EVERY, Coming, Intake, Trace, Wrong
from ..posting import TERMS, place_all, place_each, terms_of
from ..problems import Problem
from ..requests import KEY_HEADER, flag, idempotency_key_of, trace_of, whole_body
from ..timeline import Timeline
from ..turns import OneThread, Turn, Turns
from ..values import shapes
from ..values.batch_body import BatchError, LineError, Reading, is_ndjson, items_at_most, read_whole
from ..values.bodies import FieldError
from ..values.drafts import batch_key
from ..values.message_body import Item
from ..values.reader import Reader
from ..values.scalars import FLAG, Key

PIECE = 250
"""Items read in one step: half a millisecond, so that other messages that fall due go out in between."""
OFFLOADED_BYTES = 512 << 10
ITEM_BYTES = 1 << 10
"""RAM of an item besides its payload, from reading to its answer, bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The route."""

    intake: Intake
    clock: Clock
    timeline: Timeline
    turns: Turns
    bodies: OneThread
    metrics: Metrics
    limits: Limits
    traces: Traces | None
    _: KW_ONLY
    max_batch: int

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/messages:batch", self.post)]

    @described(
        "Schedule many, all or nothing; with `each=true` every item for itself (200)",
        SCHEDULE,
        Gives(201, shapes.Accepted),
        Gives(200, shapes.Results, description="`each=true`"),
        query={"each": FLAG, "ids": FLAG, **TERMS},
        body=list[Item],
        example=[
            {"topic": "meters/7/read", "payload": "now", "deliver_in": "1m"},
            {
                "topic": "meters/8/read",
                "payload": "AP8=",
                "encoding": "base64",
                "deliver_at": "2030-01-01T00:00:00Z",
            },
        ],
        as_lines=True,
        headers={KEY_HEADER: Key},
        problems=("idempotency-mismatch", *WRITES),
    )
    async def post(self, request: web.Request) -> web.Response:
        is_each, keep_ids, terms = flag(request, "each"), flag(request, "ids"), terms_of(request)
        rights = rights_of(request)
        if keep_ids and rights is not None and not rights.sees_all:
            # The answer reveals taken ids, also of messages that this key may not see.
            raise Problem(
                "forbidden", f"Key '{rights.name}' may not see every message, so it may not set ids."
            )
        lines = is_ndjson(request.headers.get("Content-Type", ""))
        body = await whole_body(request)
        turn = self.turns.of(request)
        user = "" if rights is None else rights.name
        async with turn.room(ITEM_BYTES * items_at_most(body, self.max_batch)):
            trace, now_ms = Trace(self.traces, trace_of(request)), self.clock.wall_ms()
            with trace:
                reader = Reader(now_ms, self.limits, user, trace.context, keep_ids=keep_ids)
                reading = await self._read(body, lines, reader, turn)
                items: list[Any] = list(reading.items)
                key = await self._key(request, user, body, len(items), turn)
                topics = reader.topics.values()
                if is_each:
                    refuse = items.__setitem__
                    coming = Coming(
                        items, topics, now_ms, terms, rights, turn, trace, place_each, refuse, key
                    )
                    return await self._each(coming)
                check_all(reading)
                refuse = partial(_refuse_all, reading)
                coming = Coming(items, topics, now_ms, terms, rights, turn, trace, place_all, refuse, key)
                return await self._all(coming, reading)

    async def _read(self, body: bytes, lines: bool, reader: Reader, turn: Turn) -> Reading:
        """Read small bodies in steps, and large ones in a thread that yields to the loop every 5 ms: 16 MiB
        take 100. Raises RequestError."""
        most = self.max_batch
        if len(body) > OFFLOADED_BYTES:
            return await turn.in_thread(self.bodies, lambda: read_whole(body, lines, reader, most))
        await turn.begin()
        reading = Reading(body, lines, reader, most)
        reading.step(PIECE)
        while not reading.is_over:
            # No turns while it is quick: the sooner a body is read, the fewer wait half read.
            await (asyncio.sleep(0) if reading.is_fine else turn.begin())
            reading.step(PIECE)
        return reading

    async def _key(
        self, request: web.Request, user: str, body: bytes, count: int, turn: Turn
    ) -> BatchKey | None:
        """The key of the batch. Raises FieldError."""
        key = idempotency_key_of(request)
        if key is None:
            return None
        keyed = partial(batch_key, key, user, body, count)
        if len(body) > OFFLOADED_BYTES:
            return await turn.in_thread(self.bodies, keyed)
        return keyed()

    async def _all(self, coming: Coming, reading: Reading) -> web.Response:
        with refusals():
            try:
                _, placed = await self.intake.take(coming)
            except Refused as error:
                raise refusal(error, reading.line_of(error.index)) from None
        self.metrics.accepted.inc(fresh(placed))
        return raw_answer(accepted(placed), 201)

    async def _each(self, coming: Coming) -> web.Response:
        """Answer each item, in steps: known keys need a look-up of the message's state."""
        with refusals():
            _, placed = await self.intake.take(coming)
        self.metrics.accepted.inc(len({one for one in placed if isinstance(one, int)}))
        rest = iter(placed)
        results: list[Result] = [one if isinstance(one, Wrong) else next(rest) for one in coming.items]
        answers = []
        for count, one in enumerate(result_texts(results, self.timeline), 1):
            answers.append(one)
            if not count % YIELD_EVERY:
                await coming.turn.begin()
        return raw_answer(b'{"results":[' + b",".join(answers) + b"]}")


def check_all(reading: Reading) -> None:
    """Raise BatchError for wrong items."""
    if reading.is_fine:
        return
    errors: list[LineError] = [
        {"line": reading.line_of(index), "field": item.field, "detail": item.detail}
        for index, item in enumerate(reading.items)
        if isinstance(item, FieldError)
    ]
    if errors:
        raise BatchError(errors)


def _refuse_all(reading: Reading, index: int, error: Wrong) -> NoReturn:
    """Refuse the batch because of one item. Raises BatchError, Problem."""
    line = reading.line_of(index)
    if isinstance(error, FieldError):
        raise BatchError([{"line": line, "field": error.field, "detail": error.detail}])
    if error.slug == "forbidden":
        detail = "is not one that the key may send to"
        error.extra["errors"] = [{"line": line, "field": "topic", "detail": detail}]
    raise error
