"""The desk: usual requests are decided by the writer here, counted and answered.

Batches of up to BATCH_ITEMS items in BATCH_MAX bytes of NDJSON, with or without `each=true`, are for the
desk: clients that coalesce single messages send them. Batches that must wait before the writer is asked
(`spread`, `deliver_to`, `retain`), or with a refused item, go to aiohttp.

`:lease`, `:ack`, `:nack`, `:extend` and `:release` are read by the same code as in the routes (leasing.py).
The desk takes a `:lease` of up to LEASE_MAX messages of existing groups; one that found messages is answered
in its own turn of the loop. An empty `:lease` takes 0.6 of the processor time of a posted message, through
aiohttp 1.6.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import msgspec

from shards.dedupe import Refused
from shards.draft import BatchKey, Draft, Known
from shards.errors import Corrupt, StoreFailed

from ..auth.rights import READ, SCHEDULE
from ..engine.clock import Clock
from ..engine.requests import over_http
from ..engine.writer import Busy, Writer
from ..observe.logs import by
from ..observe.metrics import Metrics
from ..observe.tracing import Traces
from ..pull.call import Call, LeaseAnswer
from ..settings.config import Http, Limits
from .access import Access, Rights, charge, check_send
from .admission import Admission
from .answers import WRITE_ERRORS, problem_of_write, refusal
from .batching import accepted, fresh, result_texts
from .intake import Trace
from .leasing import Answered, Leasing
from .posting import USUAL, Given, first_answer, place, place_all, place_each
from .problems import MEDIA_TYPE, Problem
from .timeline import Timeline
from .usual import Request, RequestKind
from .values.batch_body import line_of, whole
from .values.bodies import RequestError
from .values.drafts import batch_key, late_ones
from .values.reader import Item, Reader
from .written import Written

PATH = "/v1/messages"
BATCH_PATH = "/v1/messages:batch"
LEASES_PATH = "/v1/groups/{group}/messages:"
JSON = "application/json"
ACCEPTED = 201
BATCH_ITEMS = 300
LEASE_MAX = 100
"""Messages of one answer: 2 ms."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
DECIDE: tuple[Callable[..., Any], ...] = (place, place_all, place_each)
"""Decisions by kind."""

log = logging.getLogger(__name__)

Respond = Callable[[bytes], None]
Made = tuple[int, Mapping[str, str], bytes] | Exception
"""Status, headers and body of an answer, or what went wrong."""


class Desk:
    """Decides the usual requests of all connections."""

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        timeline: Timeline,
        metrics: Metrics,
        http: Http,
        limits: Limits,
        admission: Admission,
        written: Written,
        access: Access,
        traces: Traces | None,
        leasing: Leasing,
        has_lease: Callable[[], bool],
    ) -> None:
        """`has_lease`: whether no other node can lead yet."""
        self._traces = traces
        self._has_lease = has_lease
        self._leasing = leasing
        self._writer = writer
        self._clock = clock
        self._timeline = timeline
        self._metrics = metrics
        self._limits = limits
        self.admission = admission
        self._access = access
        self._written = written
        self._max_items = min(http.max_batch, BATCH_ITEMS)
        self._came_ms: list[int] = []
        """Arrival times of messages answered in this turn and not counted yet."""
        self._waiting: deque[Callable[[], None]] = deque()
        """Answers that have to look up known keys; each connection waits for one at most."""

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return self._access.is_open

    def key_of(self, authorization: str) -> str:
        """The name of a request's key; empty: none that is known."""
        rights = None if self._access.is_open else self._access.recall(authorization, None)
        return "" if rights is None else rights.name

    def start(self, request: Request, body: bytes, is_gone: Callable[[], bool], answer: Respond) -> bool:
        """Have a request decided, and `answer` it later. False: aiohttp must answer it; nothing was done.
        `is_gone`: whether the client is gone.

        With keys, only known keys pass; all others go to aiohttp, where refusals are worded.
        """
        rights, user = None, ""
        if not self._access.is_open:
            scope = READ if request.verb else SCHEDULE
            rights = self._access.recall(request.authorization, scope)
            if rights is None:
                return False
            user = rights.name
        if request.verb:
            return self._start_leases(request, body, rights, is_gone, answer)
        now_ms, kind, context = self._clock.wall_ms(), request.kind, request.context
        trace, as_drafts = None, True
        if self._traces is not None:
            trace = Trace(self._traces, context, is_one=not kind)
            context, as_drafts = trace.context, bool(kind) or not context
        reader = Reader(now_ms, self._limits, user, context, as_drafts=as_drafts)
        try:
            items = _batch(body, reader, self._max_items) if kind else [reader.one(body, request.key)]
            few = [item for item in items if not isinstance(item, Draft)]
            if not items or reader.debounced or (few and not all(map(_is_quick, few))):
                return False
            if rights is not None:
                for topic in reader.topics.values():
                    check_send(rights, topic)
            keyed = _keyed(request, user, body, len(items))
            size = self.admission.size(len(body))
            charge(rights, len(items))
        except (RequestError, Problem):
            return False
        given = USUAL
        drafts: Sequence[Draft]
        if few:
            trace = trace or Trace(None, context)
            trace.begin(items)
            drafts = [trace.draft_of(index, item, now_ms, user) for index, item in enumerate(items)]
            given = Given(late_ones(items, now_ms))
        else:
            drafts = cast("list[Draft]", items)

        def done(placed: Any) -> None:
            if trace is not None:
                trace.end(placed)
            make = partial(self._made, kind, placed, drafts, body, now_ms)
            reply = partial(self._reply, BATCH_PATH if kind else PATH, now_ms, answer, make)
            if kind is RequestKind.EACH and isinstance(placed, list) and _has_known(placed):
                self._later(reply)
            else:
                reply()

        try:
            decide = partial(DECIDE[kind], drafts=drafts, given=given, **keyed)
            self._writer.submit(decide, done, cost=len(drafts), size=size, owner=over_http(user))
        except (Busy, StoreFailed) as error:
            # Answered here: it has been charged for, and a full server need not repeat the work.
            asyncio.get_running_loop().call_soon(done, error)
        return True

    def _start_leases(
        self,
        request: Request,
        body: bytes,
        rights: Rights | None,
        is_gone: Callable[[], bool],
        answer: Respond,
    ) -> bool:
        """`start` for a call for leases."""
        if not self._has_lease():
            return False
        verb = request.verb
        answered = partial(self._answer_leases, LEASES_PATH + verb, self._clock.wall_ms(), answer)
        try:
            self.admission.size(len(body))
            if verb != "lease":
                self._leasing.settle(verb, request.group, body, rights, answered)
                return True
            return self._start_lease(request.group, body, rights, is_gone, answered)
        except (RequestError, Problem, Busy):
            return False

    def _answer_leases(self, path: str, now_ms: int, answer: Respond, body: bytes | Exception) -> None:
        """Answer a call for leases, but not before `start` has returned: the outcome of ended leases is known
        at once."""
        made: Made = body if isinstance(body, Exception) else (200, NO_HEADERS, body)
        asyncio.get_running_loop().call_soon(self._reply, path, now_ms, answer, lambda: made)

    def _start_lease(
        self, name: str, body: bytes, rights: Rights | None, is_gone: Callable[[], bool], answered: Answered
    ) -> bool:
        """`start` for `:lease`. Raises RequestError, Problem, Busy."""
        leasing = self._leasing
        wanted = leasing.call_of(body)
        if wanted.request.most > LEASE_MAX:
            return False
        if wanted.filter is None:
            texts = leasing.texts(name, rights)
        else:
            texts = (leasing.text_of(name, wanted.filter, rights),)
            if not leasing.is_there(texts[0]):
                return False
        leasing.lease(name, texts, rights, wanted.request, is_gone, partial(self._leased, answered))
        return True

    def _leased(self, answered: Answered, call: Call, leased: LeaseAnswer) -> None:
        """Answer a `:lease`."""
        if isinstance(leased, Exception) or not leased:
            self._answer_leased(answered, call, leased)
        else:
            self._later(partial(self._answer_leased, answered, call, leased))

    def _answer_leased(self, answered: Answered, call: Call, leased: LeaseAnswer) -> None:
        body: bytes | Exception
        try:
            if isinstance(leased, Exception):
                body = leased
            else:
                body = msgspec.json.encode({"messages": list(self._leasing.views(leased))})
        except Exception as fault:
            body = fault
        is_read = isinstance(body, bytes) and not call.is_gone()
        answered(body)
        self._leasing.done(call, is_read=is_read)

    def _later(self, reply: Callable[[], None]) -> None:
        """Answer batches that look up messages, one in a turn of the loop: 300 look-ups take some 6 ms."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(reply)

    def _next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)

    def _made(
        self, kind: RequestKind, placed: Any, drafts: Sequence[Draft], body: bytes, now_ms: int
    ) -> Made:
        """The answer to messages."""
        if kind and isinstance(placed, Refused):
            return refusal(placed, line_of(body, True, placed.index, len(drafts)))
        if isinstance(placed, Exception):
            return placed
        if not kind:
            return first_answer(placed[0], drafts[0].due_ms, now_ms, self._timeline)
        if kind is RequestKind.EACH:
            status, text = 200, b'{"results":[' + b",".join(result_texts(placed, self._timeline)) + b"]}"
        else:
            status, text = 201, accepted(placed)
        self._metrics.accepted.inc(fresh(placed))
        return status, NO_HEADERS, text

    def _reply(self, path: str, now_ms: int, answer: Respond, make: Callable[[], Made]) -> None:
        """Answer, whatever the look-ups of `make` find, and count the answer."""
        try:
            made = make()
        except Exception as fault:
            made = fault
        media = JSON
        if isinstance(made, Exception):
            problem = made if isinstance(made, Problem) else _problem_of(made, path)
            made, media = (problem.status, problem.headers, problem.to_bytes()), MEDIA_TYPE
        status, headers, body = made
        if status == ACCEPTED and path is PATH:
            if not self._came_ms:
                asyncio.get_running_loop().call_soon(self._count)
            self._came_ms.append(now_ms)
        else:
            # By the wall clock, which was read for the request anyway; it may have been set back.
            self._metrics.answered("POST", path, status, max(0, self._clock.wall_ms() - now_ms))
        answer(self._written.answer(status, headers, body, media))

    def _count(self) -> None:
        """Count the messages accepted in this turn together; known ones have another status."""
        came_ms, self._came_ms = self._came_ms, []
        self._metrics.accepted.inc(len(came_ms))
        self._metrics.answered_many("POST", PATH, ACCEPTED, came_ms, self._clock.wall_ms())


def _batch(body: bytes, reader: Reader, most: int) -> list[Item]:
    """Items of a batch if all lines are fine; else empty. Raises RequestError."""
    if body.count(b"\n") > most:
        return []
    found = whole(body, True, most)
    return [] if found is None else reader.read(*found)


def _keyed(request: Request, user: str, body: bytes, count: int) -> dict[str, BatchKey]:
    """The key of a batch, if it has one. Raises FieldError."""
    if not request.kind or request.key is None:
        return {}
    return {"key": batch_key(request.key, user, body, count)}


def _is_quick(item: Item) -> bool:
    """Whether it can be placed without waiting."""
    if isinstance(item, Draft):
        return True
    waits = item.spread_ms or item.deliver_to or item.retain
    return not waits and (bool(item.key) or not item.while_undone)


def _has_known(placed: Sequence[object]) -> bool:
    return any([isinstance(one, Known) for one in placed])  # noqa: C419 - a generator costs more


def _problem_of(error: Exception, path: str) -> Problem:
    if isinstance(error, WRITE_ERRORS):
        return problem_of_write(error)
    if isinstance(error, Corrupt):
        log.error("POST %s: %s", path, error)
        return Problem("unreadable")
    log.error("POST %s failed", path, exc_info=error, extra=by("clients"))
    return Problem("internal")
