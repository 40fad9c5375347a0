"""`POST /v1/messages:batch`: up to 10,000 messages in one request, as NDJSON or as a JSON array.

All or nothing by default: a bad item or one that the writer refuses names its line, and nothing is stored.
With `?each=true` every item stands for itself and the answer says of each what became of it; of one whose key
was known also its state, which may be `cancelled` by now. With `?ids=true`
an item may bring the id that it had on the server it was exported from.

This is the way in for many messages, hence one list of drafts, one request to the writer, one group commit,
and an answer put together by one join: apart from parsing and commit it takes about 1.5 µs a message.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from aiohttp import web

from shards.dedupe import Refused
from shards.draft import AS_EVER, Draft, Terms

from ...delivery.retained import Retained
from ...engine.clock import Clock
from ...engine.writer import Ask
from ...observe.metrics import Metrics
from ...observe.trace_context import Headers, context_in
from ...observe.tracing import BATCH_LOOKED, BATCH_SPANS, Scheduling, Traces
from ...settings.config import Limits
from ...webhook.webhooks import Webhooks
from ..access import Rights, charge, may_send, not_to_send, over_quota, rights_of, unretained
from ..answers import raw_answer, refusal, refusals
from ..batching import Result, accepted, fresh, line_of, said
from ..calls import SCHEDULE, WRITES, Gives, described
from ..posting import TERMS, keyless, no_key, place_all, place_each, terms_of, worth
from ..problems import Problem
from ..requests import flag, trace_of, whole_body
from ..spread import Spreader
from ..timeline import Timeline
from ..turns import OneThread, Turn, Turns
from ..values import shapes
from ..values.batch_body import BatchError, is_ndjson, items_at_most, parse_batch, parse_each
from ..values.bodies import FieldError
from ..values.drafts import draft_of, late_ones, names_of, posted_ones
from ..values.message_body import Item, ParsedMessage
from ..values.scalars import FLAG
from ..values.usual import Reading, Usual, usual_batch

YIELD_EVERY = 500
PIECE = 250
"""Items that are read in one go: half a millisecond. Others' messages may be due meanwhile."""
ASIDE_BYTES = 512 << 10
ITEM_BYTES = 1 << 10
"""What an item costs in RAM besides its payload, from when it has been read to its answer."""
T = TypeVar("T")


class _Trace:
    """The trace that a batch belongs to, and those of items that bring a context of their own.

    One span is that of the whole batch, whose context its items are given. An item with a context has a span
    in its trace: so it is where a client sends calls of many traces together. As each takes time, so many
    items have one and no more; the others keep their context all the same.
    """

    def __init__(self, traces: Traces | None, context: Headers) -> None:
        self._traces = traces
        self._span = None if traces is None else traces.schedule(context)
        self.context = context if self._span is None else self._span.context
        """What items are given that bring none."""
        self._items: dict[int, Scheduling] = {}
        self._placed: Sequence[object] | None = None

    def begin(self, messages: Sequence[ParsedMessage]) -> None:
        """The spans of items."""
        if self._traces is None:
            return
        bringing = ((index, message) for index, message in enumerate(messages) if message.headers)
        for index, message in islice(bringing, BATCH_LOOKED):
            span = self._traces.schedule(context_in(message.headers), message.topic)
            if span is not None:
                self._items[index] = span
            if len(self._items) == BATCH_SPANS:
                break

    def of(self, index: int) -> tuple[Headers, bool]:
        """What an item is given, and whether that is of a span of its own."""
        span = self._items.get(index)
        return (self.context, False) if span is None else (span.context, True)

    def placed(self, placed: Sequence[object]) -> None:
        """What became of each, in order."""
        self._placed = placed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, lines: object) -> None:
        for index, span in self._items.items():
            span.end(error if self._placed is None else self._placed[index])
        if self._span is not None:
            self._span.end(error if self._placed is None else self._placed)


class Batch:
    """The route."""

    def __init__(
        self,
        ask: Ask,
        clock: Clock,
        timeline: Timeline,
        spreader: Spreader,
        turns: Turns,
        bodies: OneThread,
        metrics: Metrics,
        webhooks: Webhooks,
        retained: Retained,
        limits: Limits,
        traces: Traces | None,
        *,
        max_batch: int,
    ) -> None:
        self._traces = traces
        self._ask = ask
        self._clock = clock
        self._timeline = timeline
        self._spreader = spreader
        self._turns = turns
        self._metrics = metrics
        self._webhooks = webhooks
        self._retained = retained
        self._limits = limits
        self._max_batch = max_batch
        self._bodies = bodies

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/messages:batch", self.post)]

    @described(
        "Schedule many, all or nothing; with `each=true` every item for itself (200)",
        SCHEDULE,
        Gives(201, shapes.Accepted),
        Gives(200, shapes.Results, said="`each=true`"),
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
        problems=("idempotency-mismatch", *WRITES),
    )
    async def post(self, request: web.Request) -> web.Response:
        is_each, keep_ids, terms = flag(request, "each"), flag(request, "ids"), terms_of(request)
        rights = rights_of(request)
        if keep_ids and rights is not None and not rights.sees_all:
            # The answer tells which ids are taken, also by messages that are not there for this key.
            raise Problem("forbidden", f"the key {rights.name} may not see every message: it brings no ids")
        content_type = request.headers.get("Content-Type", "")
        is_ndjson(content_type)
        body = await whole_body(request)
        turn = self._turns.of(request)
        post = self._each if is_each else self._all
        async with turn.room(ITEM_BYTES * items_at_most(body, self._max_batch)):
            trace = _Trace(self._traces, trace_of(request))
            with trace:
                return await post(
                    body, content_type, self._clock.wall_ms(), keep_ids, terms, rights, turn, trace
                )

    async def _all(
        self,
        body: bytes,
        content_type: str,
        now_ms: int,
        keep_ids: bool,
        terms: Terms,
        rights: Rights | None,
        turn: Turn,
        trace: _Trace,
    ) -> web.Response:
        usual = await self._usual(body, content_type, now_ms, terms, rights, turn, trace)
        if usual is not None:
            return await self._place_usual(usual, body, content_type, terms, trace)
        limits, most = self._limits, self._max_batch
        parse = partial(parse_batch, body, content_type, now_ms, limits, most, keep_ids=keep_ids)
        messages = await self._aside(len(body), parse, turn)
        for index in keyless(messages, terms):
            error, line = no_key(), line_of(body, content_type, index, len(messages))
            raise BatchError([{"line": line, "field": error.field, "detail": error.detail}])
        if rights is not None:
            for index in await _foreign(messages, rights, turn):
                line = line_of(body, content_type, index, len(messages))
                where = {"line": line, "field": "topic", "detail": "is not one that the key may send to"}
                raise not_to_send(rights, errors=[where])
            charge(rights, len(messages))
        for index, why in await self._unretained(messages, rights, turn):
            raise refusal(Refused("over-quota", why), line_of(body, content_type, index, len(messages)))
        with refusals():
            try:
                drafts, placed = await self._submit(messages, now_ms, place_all, terms, rights, turn, trace)
            except Refused as error:
                raise refusal(error, line_of(body, content_type, error.index, len(messages))) from None
        self._metrics.accepted.inc(fresh(placed, drafts))
        return raw_answer(accepted(placed, drafts), 201)

    async def _each(
        self,
        body: bytes,
        content_type: str,
        now_ms: int,
        keep_ids: bool,
        terms: Terms,
        rights: Rights | None,
        turn: Turn,
        trace: _Trace,
    ) -> web.Response:
        usual = await self._usual(body, content_type, now_ms, terms, rights, turn, trace)
        if usual is not None:
            return await self._place_usual_each(usual, terms, turn, trace)
        limits, most = self._limits, self._max_batch
        parse = partial(parse_each, body, content_type, now_ms, limits, most, keep_ids=keep_ids)
        items: list[ParsedMessage | FieldError | Problem] = [*await self._aside(len(body), parse, turn)]
        for index in keyless(items, terms):
            items[index] = no_key()
        if rights is not None:
            for index in await _foreign(items, rights, turn):
                items[index] = not_to_send(rights)
        for index, why in await self._unretained(items, rights, turn):
            items[index] = over_quota(why, 1.0)
        messages = [item for item in items if isinstance(item, ParsedMessage)]
        charge(rights, len(messages))
        with refusals():
            _, placed = await self._submit(messages, now_ms, place_each, terms, rights, turn, trace)
        self._metrics.accepted.inc(len({answer for answer in placed if isinstance(answer, int)}))
        answers = iter(placed)
        results: list[Result] = [next(answers) if isinstance(item, ParsedMessage) else item for item in items]
        return await self._results(results, turn)

    async def _unretained(
        self, items: Sequence[object], rights: Rights | None, turn: Turn
    ) -> list[tuple[int, str]]:
        """Which of the messages cannot become retained, and why."""
        found = []
        for index, item in enumerate(items):
            why = unretained(item, self._retained, rights) if isinstance(item, ParsedMessage) else ""
            if why:
                found.append((index, why))
            if not (index + 1) % YIELD_EVERY:
                await turn.begin()
        return found

    async def _usual(
        self,
        body: bytes,
        content_type: str,
        now_ms: int,
        terms: Terms,
        rights: Rights | None,
        turn: Turn,
        trace: _Trace,
    ) -> list[Draft] | None:
        """The drafts of a batch of usual items, paid for; None if the general way has to look at it."""
        user = "" if rights is None else rights.name
        usual = await self._read(body, is_ndjson(content_type), now_ms, user, turn, trace.context)
        if usual is None or not usual.drafts or (terms is not AS_EVER and usual.keys < len(usual.drafts)):
            return None
        if rights is not None:
            for count, topic in enumerate(usual.topics, 1):
                if not may_send(rights, topic):
                    return None
                if not count % YIELD_EVERY:
                    await turn.begin()
        charge(rights, len(usual.drafts))
        return usual.drafts

    async def _read(
        self, body: bytes, lines: bool, now_ms: int, user: str, turn: Turn, context: Headers
    ) -> Usual | None:
        limits, most = self._limits, self._max_batch
        if len(body) > ASIDE_BYTES:
            work = partial(usual_batch, body, lines, now_ms, limits, most, user, context)
            return await self._aside(len(body), work, turn)
        await turn.begin()
        reading = Reading(body, lines, now_ms, limits, most, user, context)
        reading.step(PIECE)
        while not reading.is_over:
            await asyncio.sleep(
                0
            )  # not a turn: the sooner one batch is through, the less lies about half read
            reading.step(PIECE)
        return reading.usual

    async def _place_usual(
        self, drafts: Sequence[Draft], body: bytes, content_type: str, terms: Terms, trace: _Trace
    ) -> web.Response:
        with refusals():
            try:
                placed = await self._ask(
                    partial(place_all, drafts=drafts, terms=terms), cost=worth(drafts, terms)
                )
            except Refused as error:
                raise refusal(error, line_of(body, content_type, error.index, len(drafts))) from None
        trace.placed(placed)
        self._metrics.accepted.inc(fresh(placed, drafts))
        return raw_answer(accepted(placed, drafts), 201)

    async def _place_usual_each(
        self, drafts: Sequence[Draft], terms: Terms, turn: Turn, trace: _Trace
    ) -> web.Response:
        with refusals():
            placed = await self._ask(
                partial(place_each, drafts=drafts, terms=terms), cost=worth(drafts, terms)
            )
        trace.placed(placed)
        self._metrics.accepted.inc(len({answer for answer in placed if isinstance(answer, int)}))
        return await self._results(placed, turn)

    async def _results(self, results: Sequence[Result], turn: Turn) -> web.Response:
        """In steps: of what was there under its key the state is looked up."""
        answers = []
        for count, one in enumerate(said(results, self._timeline), 1):
            answers.append(one)
            if not count % YIELD_EVERY:
                await turn.begin()
        return raw_answer(b'{"results":[' + b",".join(answers) + b"]}")

    async def _aside(self, size: int, work: Callable[[], T], turn: Turn) -> T:
        """Small bodies are read in a turn; large ones in a thread, which gives way to the loop every 5 ms:
        16 MiB take 100."""
        if size <= ASIDE_BYTES:
            await turn.begin()
            return work()
        return await turn.in_thread(self._bodies, work)

    async def _submit(
        self,
        messages: Sequence[ParsedMessage],
        now_ms: int,
        decide: Callable[..., Any],
        terms: Terms,
        rights: Rights | None,
        turn: Turn,
        trace: _Trace,
    ) -> tuple[list[Draft], Any]:
        """The drafts and what `decide` (`place_all` or `place_each`) says of them in the writer."""
        if any(message.spread_ms for message in messages):
            async with turn.alone(self._spreader.lock):
                messages = await self._spreader.settled(messages, now_ms, self._turns.apart())
                return await self._place(messages, now_ms, decide, terms, rights, turn, trace)
        return await self._place(messages, now_ms, decide, terms, rights, turn, trace)

    async def _place(
        self,
        messages: Sequence[ParsedMessage],
        now_ms: int,
        decide: Callable[..., Any],
        terms: Terms,
        rights: Rights | None,
        turn: Turn,
        trace: _Trace,
    ) -> tuple[list[Draft], Any]:
        user = "" if rights is None else rights.name
        size = sum(len(message.payload) + len(message.topic) for message in messages)
        trace.begin(messages)
        drafts = await self._aside(
            size,
            lambda: [draft_of(message, now_ms, user, *trace.of(i)) for i, message in enumerate(messages)],
            turn,
        )
        if not drafts:
            return [], []
        late, names = late_ones(messages, now_ms), names_of(messages)
        barred = await self._webhooks.barred(posted_ones(messages))
        work = partial(decide, drafts=drafts, late=late, names=names, terms=terms, barred=barred)
        placed = await self._ask(work, cost=worth(drafts, terms))
        trace.placed(placed)
        return drafts, placed


async def _foreign(items: Sequence[object], rights: Rights, turn: Turn) -> list[int]:
    """Which of the messages go to topics that the key may not send to; in steps, as rules may be many."""
    found = []
    for index, item in enumerate(items):
        if isinstance(item, ParsedMessage) and not may_send(rights, item.topic, item.deliver_to):
            found.append(index)
        if not (index + 1) % YIELD_EVERY:
            await turn.begin()
    return found
