"""`POST /v1/messages:batch`: up to 10,000 messages in one request, as NDJSON or as a JSON array.

All or nothing by default: a bad item or one that the writer refuses names its line, and nothing is stored.
With `?each=true` every item stands for itself and the answer says of each what became of it; of one whose key
was known also its state, which may be `cancelled` by now. With `?ids=true`
an item may bring the id that it had on the server it was exported from.

This is the way in for many messages, hence one list of drafts, one request to the writer, one group commit,
and an answer put together by one join: apart from parsing and commit it takes about 1.5 µs a message.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from shards.dedupe import Refused
from shards.draft import Draft, Known, Terms
from shards.errors import Corrupt
from shards.record import decode
from shards.state import PENDING
from timeline.position import id_text

from ...clock import Clock
from ...config import Limits
from ...metrics import Metrics
from ...webhook.webhooks import Webhooks
from ...writer import Ask
from ..access import Rights, charge, may_send, not_to_send, rights_of
from ..answers import raw_answer, refusal, refusals
from ..calls import SCHEDULE, WRITES, Gives, described
from ..posting import TERMS, Placed, keyless, no_key, place, place_each, terms_of
from ..problems import Problem, problem_of
from ..requests import flag, whole_body
from ..spread import Spreader
from ..timeline import Timeline
from ..turns import Lock, Turn, Turns
from ..values import shapes
from ..values.batch_body import BatchError, is_ndjson, items_at_most, parse_batch, parse_each
from ..values.bodies import FieldError
from ..values.drafts import draft_of, late_ones, names_of, posted_ones
from ..values.message_body import Item, ParsedMessage
from ..values.scalars import FLAG

YIELD_EVERY = 500
ASIDE_BYTES = 512 << 10
ITEM_BYTES = 1 << 10
"""What an item costs in RAM besides its payload, from when it has been read to its answer."""
T = TypeVar("T")

log = logging.getLogger(__name__)

Result = Placed | Refused | FieldError | Problem
_NEW = b'{"id":"%032x"}'
_REPLAYED = b'{"id":"%032x","replayed":true,"state":"%s"}'


class Batch:
    """The route."""

    def __init__(
        self,
        ask: Ask,
        clock: Clock,
        timeline: Timeline,
        spreader: Spreader,
        turns: Turns,
        metrics: Metrics,
        webhooks: Webhooks,
        limits: Limits,
        *,
        max_batch: int,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._timeline = timeline
        self._spreader = spreader
        self._turns = turns
        self._metrics = metrics
        self._webhooks = webhooks
        self._limits = limits
        self._max_batch = max_batch
        self._is_aside = Lock()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/messages:batch", self.post)]

    @described(
        "Schedule many, all or nothing; with `each=true` every item for itself (200)",
        SCHEDULE,
        Gives(201, shapes.Accepted),
        Gives(200, shapes.Results, said="`each=true`"),
        query={"each": FLAG, "ids": FLAG, **TERMS},
        body=list[Item],
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
            return await post(body, content_type, self._clock.wall_ms(), keep_ids, terms, rights, turn)

    async def _all(
        self,
        body: bytes,
        content_type: str,
        now_ms: int,
        keep_ids: bool,
        terms: Terms,
        rights: Rights | None,
        turn: Turn,
    ) -> web.Response:
        limits, most = self._limits, self._max_batch
        parse = partial(parse_batch, body, content_type, now_ms, limits, most, keep_ids=keep_ids)
        messages = await self._aside(len(body), parse, turn)
        for index in keyless(messages, terms):
            error, line = no_key(), _line(body, content_type, index, len(messages))
            raise BatchError([{"line": line, "field": error.field, "detail": error.detail}])
        if rights is not None:
            for index in await _foreign(messages, rights, turn):
                line = _line(body, content_type, index, len(messages))
                where = {"line": line, "field": "topic", "detail": "is not one that the key may send to"}
                raise not_to_send(rights, errors=[where])
            charge(rights, len(messages))
        with refusals():
            try:
                drafts, placed = await self._submit(messages, now_ms, place, terms, rights, turn)
            except Refused as error:
                raise refusal(error, _line(body, content_type, error.index, len(messages))) from None
        self._metrics.accepted.inc(_fresh(placed, drafts))
        return raw_answer(_accepted(placed, drafts), 201)

    async def _each(
        self,
        body: bytes,
        content_type: str,
        now_ms: int,
        keep_ids: bool,
        terms: Terms,
        rights: Rights | None,
        turn: Turn,
    ) -> web.Response:
        limits, most = self._limits, self._max_batch
        parse = partial(parse_each, body, content_type, now_ms, limits, most, keep_ids=keep_ids)
        items: list[ParsedMessage | FieldError | Problem] = [*await self._aside(len(body), parse, turn)]
        for index in keyless(items, terms):
            items[index] = no_key()
        if rights is not None:
            for index in await _foreign(items, rights, turn):
                items[index] = not_to_send(rights)
        messages = [item for item in items if isinstance(item, ParsedMessage)]
        charge(rights, len(messages))
        with refusals():
            _, placed = await self._submit(messages, now_ms, place_each, terms, rights, turn)
        self._metrics.accepted.inc(len({answer for answer in placed if isinstance(answer, int)}))
        answers = iter(placed)
        results: list[Result] = [next(answers) if isinstance(item, ParsedMessage) else item for item in items]
        said = []
        for count, one in enumerate(_said(results, self._timeline), 1):
            said.append(one)
            if not count % YIELD_EVERY:
                await turn.begin()
        return raw_answer(b'{"results":[' + b",".join(said) + b"]}")

    async def _aside(self, size: int, work: Callable[[], T], turn: Turn) -> T:
        """Small bodies are read in a turn; large ones in a thread, one at a time, which gives way to the loop
        every 5 ms: 16 MiB take 100."""
        if size <= ASIDE_BYTES:
            await turn.begin()
            return work()
        async with turn.alone(self._is_aside):
            return await asyncio.to_thread(work)

    async def _submit(
        self,
        messages: Sequence[ParsedMessage],
        now_ms: int,
        decide: Callable[..., Any],
        terms: Terms,
        rights: Rights | None,
        turn: Turn,
    ) -> tuple[list[Draft], Any]:
        """The drafts and what `decide` (`place` or `place_each`) says of them in the writer."""
        if any(message.spread_ms for message in messages):
            async with turn.alone(self._spreader.lock):
                messages = await self._spreader.settled(messages, now_ms, self._turns.apart())
                return await self._place(messages, now_ms, decide, terms, rights, turn)
        return await self._place(messages, now_ms, decide, terms, rights, turn)

    async def _place(
        self,
        messages: Sequence[ParsedMessage],
        now_ms: int,
        decide: Callable[..., Any],
        terms: Terms,
        rights: Rights | None,
        turn: Turn,
    ) -> tuple[list[Draft], Any]:
        user = "" if rights is None else rights.name
        size = sum(len(message.payload) + len(message.topic) for message in messages)
        drafts = await self._aside(
            size, lambda: [draft_of(message, now_ms, user) for message in messages], turn
        )
        if not drafts:
            return [], []
        late, names = late_ones(messages, now_ms), names_of(messages)
        barred = await self._webhooks.barred(posted_ones(messages))
        work = partial(decide, drafts=drafts, late=late, names=names, terms=terms, barred=barred)
        placed = await self._ask(work, cost=len(drafts))
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


def _problem(result: Refused | FieldError | Problem) -> Problem:
    if isinstance(result, Refused):
        return refusal(result)
    return result if isinstance(result, Problem) else problem_of(result)


def _accepted(placed: Sequence[Placed], drafts: Sequence[Draft]) -> bytes:
    """`{"accepted": n, "ids": [...]}`, by one join."""
    if any(draft.key for draft in drafts):
        ids = [id_text(p.id if isinstance(p, Known) else p) for p in placed]
    else:
        ids = [p.to_bytes(16, "big").hex() for p in placed]  # type: ignore[union-attr]
    listed = '","'.join(ids)
    return b'{"accepted":%d,"ids":[%s]}' % (len(ids), f'"{listed}"'.encode() if ids else b"")


def _fresh(placed: Sequence[Placed], drafts: Sequence[Draft]) -> int:
    """How many are new: the others were there under their keys."""
    if not any(draft.key for draft in drafts):
        return len(placed)
    return len({p for p in placed if isinstance(p, int)})


def _said(results: Sequence[Result], timeline: Timeline) -> Iterator[bytes]:
    """What became of each item, and of the message that was there under its key.

    The second one of a key is there under it as one of an earlier request is.
    """
    seen: set[int] = set()
    for result in results:
        if isinstance(result, int):
            yield _REPLAYED % (result, PENDING.encode()) if result in seen else _NEW % result
            seen.add(result)
        elif isinstance(result, Known):
            yield _known(result, timeline)
        else:
            yield _refused(_problem(result))


def _known(known: Known, timeline: Timeline) -> bytes:
    try:
        found = timeline.reader.find(known.id)
        state = PENDING if found is None else timeline.state_of(found, decode(found.value))[0]
    except Corrupt as error:
        log.error("the message under a key: %s", error)
        return _refused(Problem("unreadable", f"{id_text(known.id)} cannot be read"))
    return _REPLAYED % (known.id, state.encode())


def _refused(problem: Problem) -> bytes:
    return b'{"problem":' + problem.to_bytes() + b"}"


def _line(body: bytes, content_type: str, index: int, count: int) -> int:
    """Which line of the body the item `index` is, from 1; in an array, which item."""
    if is_ndjson(content_type):
        lines = [number for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
        if len(lines) == count:
            return lines[index]
    return index + 1
