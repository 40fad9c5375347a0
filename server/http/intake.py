"""Intake of messages: from messages read to messages placed by the writer, for all who answer.

    read        values/reader.py, values/batch_body.py    drafts, and messages that need more work
    check       required idempotency keys, rights, the key's rate, retained messages
    draft       a moment within `spread`, spans (server/observe/tracing.py)
    place       in the writer: one, all or each (posting.py)
    answer      for one, for all or for each (posting.py, batching.py)

The routes of `POST /v1/messages` and `:batch` use all of it. The front (front.py) takes messages that need no
waiting, with the same reader and the same trace.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

from msgspec.structs import replace

from shards.draft import BatchKey, Draft, Terms

from ..delivery.retained import Retained
from ..engine.requests import over_http
from ..engine.writer import Ask
from ..observe.trace_context import NO_TRACE, Headers, context_in
from ..observe.tracing import BATCH_LOOKED, BATCH_SPANS, Scheduling, Traces
from ..webhook.webhooks import Webhooks
from .access import Rights, charge, may_send, not_to_send, over_quota, unretained
from .posting import Given, keyless, worth
from .problems import Problem
from .spread import Spreader
from .turns import Turn, Turns
from .values.bodies import FieldError
from .values.drafts import draft_of, late_ones, names_of, posted_ones
from .values.message_body import ParsedMessage
from .values.reader import Item

YIELD_EVERY = 500
Wrong = FieldError | Problem


class Trace:
    """The trace of a request, and those of items with a context of their own.

    A batch has one span, and its items get that span's context. An item with its own context has a span in
    its own trace, as when a client sends calls of many traces together. Spans take time, so only a limited
    number of items have one; the others keep their context all the same.
    """

    def __init__(self, traces: Traces | None, context: Headers, *, is_one: bool = False) -> None:
        """`is_one`: the request is one message, and they share a span."""
        self._traces, self._is_one = traces, is_one
        self._span = None if traces is None or is_one else traces.schedule(context)
        self.context = context if self._span is None else self._span.context
        """Context for items without one."""
        self._items: dict[int, Scheduling] = {}
        self.placed: Sequence[object] | None = None
        """Results of the items, in order."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, lines: object) -> None:
        self.end(error if self.placed is None else self.placed)

    def begin(self, items: Sequence[Item]) -> None:
        """Begin the spans of items."""
        if self._traces is None:
            return
        own = self.context if self._is_one else NO_TRACE
        bringing = (
            (index, item)
            for index, item in enumerate(items)
            if isinstance(item, ParsedMessage) and (item.headers or own)
        )
        for index, item in islice(bringing, BATCH_LOOKED):
            span = self._traces.schedule(context_in(item.headers) or own, item.topic)
            if span is not None:
                self._items[index] = span
            if len(self._items) == BATCH_SPANS:
                break

    def draft_of(self, index: int, item: Item, now_ms: int, user: str) -> Draft:
        """The draft of an item, with the span that was begun for it, if any."""
        if isinstance(item, Draft):
            return item
        span = self._items.get(index)
        context = self.context if span is None else span.context
        return draft_of(item, now_ms, user, context, span is not None)

    def end(self, placed: Any) -> None:
        """End the spans. `placed`: results of the items, in order, or the failure; None: unknown."""
        for index, span in self._items.items():
            span.end(placed[index] if isinstance(placed, Sequence) else placed)
        if self._span is not None:
            self._span.end(placed)


@dataclass(slots=True)
class Coming:
    """A request whose messages have been read."""

    items: list[Item | Wrong]
    """In order, with errors in the places of wrong items."""
    topics: Collection[bytes]
    """Topics of its drafts, each once."""
    now_ms: int
    terms: Terms
    rights: Rights | None
    turn: Turn
    trace: Trace
    decide: Callable[..., Any]
    """`place`, `place_all` or `place_each`."""
    refuse: Callable[[int, Wrong], None]
    """Called for each refused item; may raise."""
    key: BatchKey | None = None
    """The key of the batch."""

    @property
    def drafts(self) -> list[Draft] | None:
        """All items, if each is a draft already."""
        are_drafts = all([type(item) is Draft for item in self.items])  # noqa: C419 - a generator costs more
        return cast("list[Draft]", self.items) if are_drafts else None

    @property
    def messages(self) -> list[Item]:
        """Items without an error."""
        return [item for item in self.items if isinstance(item, (Draft, ParsedMessage))]

    @property
    def decision(self) -> Callable[..., Any]:
        """`decide`, with the key of a batch."""
        if self.key is None:
            return self.decide
        places = [at for at, item in enumerate(self.items) if isinstance(item, (Draft, ParsedMessage))]
        return partial(self.decide, key=replace(self.key, places=places))


class Intake:
    """The routes' handling of messages that have been read."""

    def __init__(
        self, ask: Ask, spreader: Spreader, turns: Turns, webhooks: Webhooks, retained: Retained
    ) -> None:
        self._ask = ask
        self._spreader = spreader
        self._turns = turns
        self._webhooks = webhooks
        self._retained = retained

    async def take(self, coming: Coming) -> tuple[list[Draft], Any]:
        """The drafts, and what `decide` gives in the writer: a list of results. Raises Problem, and Refused
        with the index of a draft."""
        for index in keyless(coming.items, coming.terms):
            coming.refuse(index, FieldError("key", "is required with replace, key_only and key_scope"))
        if coming.rights is not None:
            for index in await _foreign(coming, coming.rights):
                coming.refuse(index, not_to_send(coming.rights))
        drafts = coming.drafts
        if drafts is not None:  # the usual case
            charge(coming.rights, len(drafts))
            return drafts, await self._decided(drafts, Given(terms=coming.terms), coming)
        for index, why in await self._unretained(coming):
            coming.refuse(index, over_quota(why, 1.0))
        messages = coming.messages
        charge(coming.rights, len(messages))
        if any(isinstance(message, ParsedMessage) and message.spread_ms for message in messages):
            async with coming.turn.alone(self._spreader.lock):
                messages = await self._spreader.settled(messages, coming.now_ms, self._turns.apart())
                return await self._place(messages, coming)
        return await self._place(messages, coming)

    async def _place(self, messages: list[Item], coming: Coming) -> tuple[list[Draft], list[Any]]:
        if not messages:
            return [], []
        trace, now_ms = coming.trace, coming.now_ms
        user = "" if coming.rights is None else coming.rights.name
        trace.begin(messages)
        drafts = []
        for index, message in enumerate(messages):
            drafts.append(trace.draft_of(index, message, now_ms, user))
            if not (index + 1) % YIELD_EVERY:
                await coming.turn.begin()
        barred = await self._webhooks.barred(posted_ones(messages))
        given = Given(late_ones(messages, now_ms), names_of(messages), coming.terms, barred)
        return drafts, await self._decided(drafts, given, coming)

    async def _decided(self, drafts: Sequence[Draft], given: Given, coming: Coming) -> list[Any]:
        owner = over_http("" if coming.rights is None else coming.rights.name)
        decide = partial(coming.decision, drafts=drafts, given=given)
        placed: list[Any] = await self._ask(decide, cost=worth(drafts, coming.terms), owner=owner)
        coming.trace.placed = placed
        return placed

    async def _unretained(self, coming: Coming) -> list[tuple[int, str]]:
        """Messages that cannot become retained, and why."""
        found = []
        for index, item in enumerate(coming.items):
            if not isinstance(item, ParsedMessage):
                continue
            why = unretained(item, self._retained, coming.rights)
            if why:
                found.append((index, why))
            if not (index + 1) % YIELD_EVERY:
                await coming.turn.begin()
        return found


async def _foreign(coming: Coming, rights: Rights) -> list[int]:
    """Messages to topics that the key may not send to; in steps, since there may be many rules."""
    refused, found, turn = set[bytes](), [], coming.turn
    for count, topic in enumerate(coming.topics, 1):
        if not may_send(rights, topic):
            refused.add(topic)
        if not count % YIELD_EVERY:
            await turn.begin()
    for index, item in enumerate(coming.items):
        if isinstance(item, Draft):
            is_foreign = item.topic in refused
        else:
            is_foreign = isinstance(item, ParsedMessage) and not may_send(rights, item.topic, item.deliver_to)
        if is_foreign:
            found.append(index)
        if not (index + 1) % YIELD_EVERY:
            await turn.begin()
    return found
