"""HTTP connections: the quick path for messages, small batches and calls for leases; aiohttp answers the
rest.

Written for speed: most of the processor time of one schedule was aiohttp's (request and response objects, a
task for the handler, routing). The quick path halves it: docs/decisions/0003 has the figures.

The quick path reads, decides and answers usual requests of these calls, one after the other. aiohttp answers
everything else: other calls, headers that change how a request is read, keys that are not known yet. So the
quick path needs little HTTP, but must be sure of what it accepts. Requests refused before the writer also go
to aiohttp: refusals are worded in one place, which is not here.

The quick path takes batches of up to BATCH_ITEMS items in BATCH_MAX bytes of NDJSON, with or without
`each=true`: callers that coalesce single messages send them. Batches that must wait before the writer is
asked (`spread`, `deliver_to`, `retain`), or with a refused item, go to aiohttp.

`:lease`, `:ack`, `:nack`, `:extend` and `:release` are read by the same code as in the routes (leasing.py).
The quick path takes a `:lease` of up to LEASE_MAX messages of existing groups; one that found messages is
answered in its own turn of the loop. An empty `:lease` takes 0.6 of the processor time of a posted message,
through aiohttp 1.6.

Reading uses the owner's share of the loop's time (server/net/loop_time.py): new bytes through `Paced`,
pipelined ones after the answer before them.

The front keeps the socket. It reads every head strictly (server/http/heads.py), measures every body, and
passes aiohttp one request after the other, the next after the last one's answer. So it always knows what a
client owes, and since when:

    waiting for                           maximum time
    a head, from accept or first byte     http.head_timeout, then 408, or close if nothing has come
    the rest of a body                    http.body_timeout without a byte, or below 1 KiB a second after it
    the next request                      http.idle_timeout, then close
    a client that reads its answer        http.idle_timeout without a byte taken, then close

A client is not blamed for bytes that the server does not read, or has not answered yet. Bytes that it sends
ahead of an answer wait, at most 64 KiB; then the socket is not read until the answer is out. If a client
shuts down its sending side, its complete requests are answered, and then the connection is closed. After its
last answer a connection lingers (server/net/lingering.py).

    data ──> read_request ──> Desk.start ──> writer ... synced ──> answer ──> the next one
                    └──> read_head ──> Protocol: aiohttp, routes ──> answer ──┘
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from shards.dedupe import Refused
from shards.draft import Draft, Known
from shards.errors import Corrupt, StoreFailed

from ..auth.rights import READ, SCHEDULE
from ..engine.clock import Clock
from ..engine.requests import over_http
from ..engine.writer import Busy, Writer
from ..net.browsers import ForeignHost, ForeignOrigin, Pages
from ..net.crowd import BUSY, Cause, Crowd
from ..net.lingering import LINGER_S, Lingering
from ..net.loop_time import KEY, LoopTime
from ..net.networks import network_of
from ..net.opening import Caller, Opening, read_on, write_to
from ..net.pool import Pool
from ..observe.logs import by
from ..observe.metrics import Metrics
from ..observe.trace_context import NO_TRACE, Headers, context_of
from ..observe.tracing import Traces
from ..pull.call import Answer as LeaseAnswer
from ..pull.call import Leased
from ..settings.config import Http, Limits
from .access import Access, Rights, charge, check_send
from .admission import Admission
from .answers import WRITE_ERRORS, problem_of_write, refusal
from .batching import accepted, fresh, said
from .framing import Body, FramingError, body_of
from .heads import HEAD_MAX, HEADERS_MAX, HOST, Head, check_begun, read_head, without_upgrade
from .intake import Trace
from .leasing import Leasing
from .posting import first_answer, place, place_all, place_each
from .problems import MEDIA_TYPE, Problem
from .protocol import Protocol as Inner
from .timeline import Timeline
from .values.batch_body import is_ndjson, line_of, whole
from .values.bodies import RequestError, check_json
from .values.drafts import late_ones
from .values.reader import Item, Reader
from .written import Written

PATH = "/v1/messages"
BATCH_PATH = "/v1/messages:batch"
ACCEPTED = 201
QUICK_HEAD_MAX = 8 << 10
WHOLE_MAX = 16 << 10
"""The front waits for the rest of a request up to this size; some clients send head and body apart."""
BATCH_MAX = 64 << 10
"""The same for a batch."""
BATCH_ITEMS = 300
AHEAD_MAX = 64 << 10
"""Bytes that a client may send ahead before its socket is no longer read."""
LARGE = 256 << 10
"""Unsent bytes of an answer that are accounted at once: dozens of pages are made in a tick."""
BODY_RATE = 1 << 10
"""Minimum bytes a second of a body, once `http.body_timeout` has passed."""
CLOSE_S = 3.0
"""Maximum time for answers when the server stops."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
READING = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Methods that change nothing."""

log = logging.getLogger(__name__)

# Possessive: no backtracking, of which a head of empty headers had 2 ways for each.
_HEADERS = re.compile(rb"(?:[A-Za-z0-9-]++:[\x21-\x7e \t]*+\r\n)++")
_HEADER = re.compile(rb"([A-Za-z0-9-]++):[ \t]*+([\x21-\x7e \t]*+)\r\n")
_LENGTH = re.compile(rb"\r\nContent-Length:[ \t]*+(\d++)", re.IGNORECASE)
_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
_MATTERS = re.compile(
    rb"transfer-|content-(?!type|length)|expect|upgrade|trailer|te$|origin|sec-fetch-site|if-|range|http2-"
)
"""Headers that change how a request is read or answered."""

Answer = Callable[[bytes], None]
Others = Callable[[Callable[[bool], None], Callable[[str], str]], Inner]
"""Makes the handler of the calls that the front does not answer. Arguments: a callback for each answer, and
one that says whether a key may have this connection."""


class Kind(IntEnum):
    """The call of a request."""

    ONE = 0
    ALL = 1
    """A batch, all or nothing."""
    EACH = 2
    """A batch in which each item stands for itself."""
    LEASES = 3
    """A call for leases."""


DECIDE = (place, place_all, place_each)
"""Decisions by kind."""
START = b"POST /v1/"
STARTS = {
    b"POST /v1/messages HTTP/1.1\r\n": Kind.ONE,
    b"POST /v1/messages:batch HTTP/1.1\r\n": Kind.ALL,
    b"POST /v1/messages:batch?each=true HTTP/1.1\r\n": Kind.EACH,
}
START_MAX = max(map(len, STARTS))


LEASES = re.compile(
    rb"POST /v1/groups/([A-Za-z0-9._-]{1,128})/messages:(lease|ack|nack|extend|release) HTTP/1\.1\r\n"
)
LEASES_PATH = "/v1/groups/{group}/messages:"
LENGTH_DIGITS = 9
"""Maximum digits of a Content-Length."""
SAME_HEAD_MAX = 1 << 10
"""Maximum bytes of a head that a connection caches: reading one takes 8 us."""
LEASE_MAX = 100
"""Messages of one answer: 2 ms."""


class Request(NamedTuple):
    """A request; its body is [start, end) of the bytes read, as far as it has come."""

    start: int
    end: int
    key: str | None
    host: str
    authorization: str = ""
    kind: Kind = Kind.ONE
    context: Headers = NO_TRACE
    """Context of its trace."""
    group: str = ""
    """The group of its leases."""
    verb: str = ""
    """The verb of a call for leases."""

    @property
    def whole_max(self) -> int:
        """The front waits for the rest of it up to this size."""
        return BATCH_MAX if self.kind else WHOLE_MAX


def read_request(data: bytes) -> Request | None:
    """The request that `data` begins with; None if that is not the whole head of a usual one."""
    if not data.startswith(START):
        return None
    begun = data.find(b"\n", 0, START_MAX) + 1
    kind, group, verb = STARTS.get(data[:begun]), "", ""
    if kind is None:
        found = LEASES.match(data)
        if found is None:
            return None
        kind, begun, group, verb = Kind.LEASES, found.end(), found[1].decode(), found[2].decode()
    stop = data.find(b"\r\n\r\n", begun, QUICK_HEAD_MAX)
    if stop < 0 or not _HEADERS.fullmatch(data, begun, stop + 2):
        return None
    known: dict[bytes, bytes] = {}
    headers = _HEADER.findall(data, begun, stop + 2)
    if len(headers) > HEADERS_MAX:
        return None
    for name, value in headers:
        lower = name.lower()
        if lower in known or _MATTERS.match(lower):
            return None
        known[lower] = value.rstrip(b" \t")
    length = known.get(b"content-length", b"")
    if not HOST.fullmatch(known.get(b"host", b"")) or not length.isdigit() or len(length) > LENGTH_DIGITS:
        return None
    if known.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    key, content_type = known.get(b"idempotency-key"), known.get(b"content-type", b"").decode()
    try:
        if kind is Kind.ONE or kind is Kind.LEASES:
            check_json(content_type)
        elif key is not None or not is_ndjson(content_type):
            return None
    except RequestError:
        return None
    end = stop + 4 + int(length)
    authorization = known.get(b"authorization", b"").decode()
    name = None if key is None else key.decode()
    context = NO_TRACE
    if b"traceparent" in known:
        context = context_of(known[b"traceparent"].decode(), known.get(b"tracestate", b"").decode())
    host = known[b"host"].decode()
    return Request(stop + 4, end, name, host, authorization, kind, context, group, verb)


class LastHead:
    """The last head of a connection. One that differs from it only in Content-Length is not read again."""

    __slots__ = ("_after", "_before", "_length", "_request")

    def __init__(self) -> None:
        self._before = self._length = self._after = b""
        """The parts of the head: before the digits of Content-Length, these digits, and after them."""
        self._request: Request | None = None
        """Its parsed request."""

    def read(self, data: bytes) -> Request | None:
        """As `read_request`."""
        last = self._request
        if last is not None and data.startswith(self._before):
            at = len(self._before)
            end = data.find(b"\r", at, at + LENGTH_DIGITS + 1)
            length = data[at:end] if end > 0 else b""
            if length.isdigit() and data.startswith(self._after, end):
                if length == self._length:
                    return last
                start = end + len(self._after)
                return last._replace(start=start, end=start + int(length))
        request = read_request(data)
        if request is not None and request.start <= SAME_HEAD_MAX:
            found = _LENGTH.search(data, 0, request.start)
            assert found is not None, "a head without a length is not for here"
            self._before, self._length = data[: found.start(1)], found[1]
            self._after, self._request = data[found.end(1) : request.start], request
        return request


class Place(Protocol):
    """What a connection needs of its listener."""

    @property
    def http(self) -> Http: ...

    @property
    def pages(self) -> Pages: ...

    @property
    def crowd(self) -> "Crowd[Front]": ...

    @property
    def pool(self) -> Pool: ...

    @property
    def time(self) -> LoopTime: ...

    @property
    def others(self) -> Others: ...

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""

    @property
    def quick(self) -> "Desk | None":
        """Decides usual requests; None: aiohttp answers all."""

    def check_length(self, length: int | None) -> None:
        """Raise Problem if no body of this announced length (bytes) is accepted."""

    def refusal(self, problem: Problem, head: bytes) -> bytes:
        """The last answer on a connection; `head`: the received part of the refused request."""


class Desk:
    """Shared by the connections: decides requests, and passes the rest on."""

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        timeline: Timeline,
        metrics: Metrics,
        http: Http,
        limits: Limits,
        admission: Admission,
        pages: Pages,
        access: Access,
        others: Others,
        traces: Traces | None,
        time: LoopTime,
        crowd: "Crowd[Front]",
        pool: Pool,
        leasing: Leasing,
    ) -> None:
        self._traces = traces
        self._leasing = leasing
        self.time = time
        self._writer = writer
        self._clock = clock
        self._timeline = timeline
        self._metrics = metrics
        self.http = http
        self._limits = limits
        self.admission = admission
        self.pages = pages
        self._access = access
        self.others = others
        self.crowd = crowd
        self.pool = pool
        self._written = Written(metrics, pages)
        self._max_items = min(http.max_batch, BATCH_ITEMS)
        self._came_ms: list[int] = []
        """Arrival times of messages answered in this turn and not counted yet."""
        self._untold: deque[Callable[[], None]] = deque()
        """Answers that have to look up known keys; each connection waits for one at most."""

    def connection(self, caller: Caller) -> "Front":
        """The protocol of a new connection."""
        self.crowd.look_on()
        return Front(self, caller, asyncio.get_running_loop())

    @property
    def quick(self) -> "Desk":
        return self

    def check_length(self, length: int | None) -> None:
        self.admission.size(length)

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return self._access.is_open

    def key_of(self, authorization: str) -> str:
        """The name of a request's key; empty: none that is known."""
        rights = None if self._access.is_open else self._access.recall(authorization, None)
        return "" if rights is None else rights.name

    def start(self, request: Request, body: bytes, is_gone: Callable[[], bool], answer: Answer) -> bool:
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
            if not items or (few and not all(map(_is_quick, few))):
                return False
            if rights is not None:
                for topic in reader.topics.values():
                    check_send(rights, topic)
            size = self.admission.size(len(body))
            charge(rights, len(items))
        except (RequestError, Problem):
            return False
        late: Sequence[int] = ()
        drafts: Sequence[Draft]
        if few:
            trace = trace or Trace(None, context)
            trace.begin(items)
            drafts = [trace.draft_of(index, item, now_ms, user) for index, item in enumerate(items)]
            late = late_ones(items, now_ms)
        else:
            drafts = cast("list[Draft]", items)

        def done(placed: Any) -> None:
            if trace is not None:
                trace.end(placed)
            if kind is Kind.EACH and isinstance(placed, list) and _has_known(placed):
                self._tell_later(partial(self._tell, kind, body, drafts, now_ms, answer, placed))
            else:
                self._tell(kind, body, drafts, now_ms, answer, placed)

        try:
            decide = partial(DECIDE[kind], drafts=drafts, late=late)
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
        answer: Answer,
    ) -> bool:
        """`start` for a call for leases."""
        verb, now_ms, soon = request.verb, self._clock.wall_ms(), asyncio.get_running_loop().call_soon

        def told(said: bytes | Exception) -> None:
            # Never before `start` has returned: the outcome of ended leases is known at once.
            soon(answer, self._answer_leases(verb, now_ms, said))

        try:
            self.admission.size(len(body))
            if verb != "lease":
                self._leasing.settle(verb, request.group, body, rights, told)
                return True
            return self._start_lease(request.group, body, rights, is_gone, told)
        except (RequestError, Problem, Busy):
            return False

    def _start_lease(
        self,
        name: str,
        body: bytes,
        rights: Rights | None,
        is_gone: Callable[[], bool],
        told: Callable[[bytes | Exception], None],
    ) -> bool:
        """`start` for `:lease`. Raises RequestError, Problem, Busy."""
        leasing = self._leasing
        wanted = leasing.wanted(body)
        if wanted.wish.most > LEASE_MAX:
            return False
        if wanted.filter is None:
            texts = leasing.texts(name, rights)
        else:
            texts = (leasing.text_of(name, wanted.filter, rights),)
            if not leasing.is_there(texts[0]):
                return False

        def tell(leased: Sequence[Leased]) -> None:
            said: bytes | Exception
            try:
                said = msgspec.json.encode({"messages": list(leasing.views(leased))})
            except Exception as fault:
                said = fault
            is_read = isinstance(said, bytes) and not is_gone()
            told(said)
            leasing.done(call, is_read=is_read)

        def answered(leased: LeaseAnswer) -> None:
            if isinstance(leased, Exception):
                leasing.done(call, is_read=False)
                told(leased)
            elif leased:
                self._tell_later(partial(tell, leased))
            else:
                tell(leased)

        call = leasing.lease(name, texts, rights, wanted.wish, is_gone, answered)
        return True

    def _answer_leases(self, verb: str, now_ms: int, said: bytes | Exception) -> bytes:
        path, media, headers, status = LEASES_PATH + verb, "application/json", NO_HEADERS, 200
        if isinstance(said, Exception):
            problem = _problem_of(said, path)
            status, headers, said, media = problem.status, problem.headers, problem.to_bytes(), MEDIA_TYPE
        self._metrics.answered("POST", path, status, self._since(now_ms))
        return self._written.said(status, headers, said, media)

    def _tell(
        self, kind: Kind, body: bytes, drafts: Sequence[Draft], now_ms: int, answer: Answer, placed: Any
    ) -> None:
        """Answer, whatever the look-up finds."""
        try:
            told = self._told(kind, body, drafts, now_ms, placed)
        except Exception as fault:
            told = self._told(kind, body, drafts, now_ms, fault)
        answer(told)

    def _told(self, kind: Kind, body: bytes, drafts: Sequence[Draft], now_ms: int, placed: Any) -> bytes:
        if kind:
            return self._answer_batch(kind, placed, drafts, body, now_ms)
        return self._answer(placed, drafts[0].due_ms, now_ms)

    def _tell_later(self, tell: Callable[[], None]) -> None:
        """Answer batches that look up messages, one in a turn of the loop: 300 look-ups take some 6 ms."""
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._tell_next)
        self._untold.append(tell)

    def _tell_next(self) -> None:
        tell = self._untold[0]
        try:
            tell()
        finally:
            self._untold.popleft()
            if self._untold:
                asyncio.get_running_loop().call_soon(self._tell_next)

    def _answer_batch(
        self, kind: Kind, placed: Any, drafts: Sequence[Draft], body: bytes, now_ms: int
    ) -> bytes:
        media, headers = "application/json", NO_HEADERS
        if isinstance(placed, Exception):
            if isinstance(placed, Refused):
                problem = refusal(placed, line_of(body, True, placed.index, len(drafts)))
            else:
                problem = _problem_of(placed, BATCH_PATH)
            status, headers, text = problem.status, problem.headers, problem.to_bytes()
            media = MEDIA_TYPE
        elif kind is Kind.EACH:
            status, text = 200, b'{"results":[' + b",".join(said(placed, self._timeline)) + b"]}"
            self._metrics.accepted.inc(len({one for one in placed if isinstance(one, int)}))
        else:
            status, text = 201, accepted(placed, drafts)
            self._metrics.accepted.inc(fresh(placed, drafts))
        self._metrics.answered("POST", BATCH_PATH, status, self._since(now_ms))
        return self._written.said(status, headers, text, media)

    def refusal(self, problem: Problem, head: bytes) -> bytes:
        return self._written.refusal(problem, head)

    def _answer(self, placed: Any, due_ms: int, now_ms: int) -> bytes:
        media = "application/json"
        if isinstance(placed, Exception):
            problem = _problem_of(placed, PATH)
            status, headers, text = problem.status, problem.headers, problem.to_bytes()
            media = MEDIA_TYPE
        else:
            (one,) = placed
            status, headers, text = first_answer(one, due_ms, now_ms, self._timeline)
        if status == ACCEPTED:
            if not self._came_ms:
                asyncio.get_running_loop().call_soon(self._count)
            self._came_ms.append(now_ms)
        else:
            self._metrics.answered("POST", PATH, status, self._since(now_ms))
        return self._written.said(status, headers, text, media)

    def _count(self) -> None:
        """Count the messages accepted in this turn together; known ones have another status."""
        came_ms, self._came_ms = self._came_ms, []
        self._metrics.accepted.inc(len(came_ms))
        self._metrics.answered_many("POST", PATH, ACCEPTED, came_ms, self._clock.wall_ms())

    def _since(self, wall_ms: int) -> int:
        """Elapsed ms by the wall clock, which was read for the message anyway; 0 if it was set back."""
        return max(0, self._clock.wall_ms() - wall_ms)


class Front(Opening):
    """One connection, from accept to close."""

    __slots__ = (
        "_ahead",
        "_body",
        "_body_bytes",
        "_caller",
        "_desk",
        "_heard_s",
        "_host",
        "_inner",
        "_is_begun",
        "_is_ending",
        "_is_eof",
        "_is_fresh",
        "_is_full",
        "_is_here",
        "_is_part",
        "_is_shared",
        "_is_waiting",
        "_last",
        "_lingering",
        "_loop",
        "_quick",
        "_shown",
        "_since_s",
        "_transport",
        "_unread",
        "_unsent",
        "address",
        "held_bytes",
        "is_busy",
        "owner",
    )

    def __init__(self, desk: Place, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._desk = desk
        self._quick = desk.quick
        self._caller = caller
        self.address = caller.address
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_begun = False
        self._inner: Inner | None = None
        """aiohttp's side, once it was needed."""
        self.is_busy = False
        """A request is being answered."""
        self._is_here = True
        """Answered by the quick path, not by aiohttp."""
        self._is_ending = False
        """No more input is read."""
        self._is_eof = False
        """The client has shut down its sending side; it still reads."""
        self._is_fresh = True
        """No whole head has come yet."""
        self._is_part = False
        """A request of the quick path has come except for the end of its body."""
        self._is_full = False
        """The client does not read its answers."""
        self._last = LastHead()
        """The last head of the quick path."""
        self._host = ""
        """The last Host that it used, once checked."""
        self._shown = ""
        """The last credentials that it used on the quick path."""
        self.owner = network_of(caller.address)
        self._is_waiting = False
        """Waits for its owner's turn to take what was sent ahead."""
        self._unread = 0
        self._ahead = b""
        self.held_bytes = 0
        """Bytes accounted to the connection by the pool."""
        self._body: Body | None = None
        """Body of a request at aiohttp that is not complete."""
        self._body_bytes = 0
        self._lingering: Lingering | None = None
        self._since_s = self._heard_s = loop.time()
        """Start of the current wait; time of the last byte of a body."""
        self._unsent = (0, 0.0)
        """Unsent bytes, and since when it is this number."""
        desk.crowd.add(self)
        self._is_shared = desk.crowd.is_shared(self)
        """Through a trusted proxy: each request names its client."""

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._is_begun = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ahead = b""
        if self._lingering is not None:
            self._lingering.lost()
        self._desk.crowd.discard(self)
        self._weigh()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            if self._lingering is not None:
                self._lingering.drop(len(data))
        elif self._body is not None:
            self._feed(data)
        elif self.is_busy or self._is_full:
            self._keep(self._ahead + data)
            if len(self._ahead) > AHEAD_MAX and self._transport is not None:
                self._transport.pause_reading()
        elif self._ahead:
            self._take(self._ahead + data)
        else:
            self._take(data)

    def eof_received(self) -> bool:
        """The client shut down its sending side. Returns whether complete requests must still be answered.

        TLS closes both directions at once.
        """
        transport = self._transport
        if transport is None or transport.get_extra_info("sslcontext") is not None:
            return False
        self._is_eof = True
        if self._inner is not None:
            self._inner.is_ended = True
        return self._owes

    def pause_writing(self) -> None:
        self._is_full = True
        if self.unsent_bytes >= LARGE:
            self._weigh()
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._inner is not None:
            self._inner.resume_writing()
        self._go_on()

    # -- state

    @property
    def is_begun(self) -> bool:
        return self._is_begun

    @property
    def is_handed_over(self) -> bool:
        """Whether aiohttp answers."""
        return self._inner is not None

    @property
    def idle_since_s(self) -> float:
        return BUSY if self.is_busy or self._body is not None else self._since_s

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def _owes(self) -> bool:
        """Whether a complete request is being answered, or waits for the client to read."""
        return self._body is None and (self.is_busy or (self._is_full and bool(self._ahead)))

    def check(self, now_s: float, passed_s: float) -> None:
        """Enforce the client's time limits; `passed_s` since the last check."""
        self._weigh()
        transport, http = self._transport, self._desk.http
        if transport is None or self._lingering is not None:
            return  # the TLS handshake and lingering have their own limits
        waited_s = now_s - self._since_s
        unsent = transport.get_write_buffer_size()
        if unsent != self._unsent[0]:
            self._unsent = (unsent, now_s)
        if unsent:
            if (now_s - self._unsent[1]) * 1_000 >= http.idle_timeout_ms:
                self._desk.crowd.note("http.idle_timeout")
                self.abort()
        elif self._is_ending:
            if waited_s >= LINGER_S:
                self.abort()
        elif self._body is not None or self._is_part:
            if not transport.is_reading():
                self._since_s += passed_s
                self._heard_s = now_s
            patience_s = http.body_timeout_ms / 1_000
            is_slow = waited_s - patience_s >= self._body_bytes / BODY_RATE
            if now_s - self._heard_s >= patience_s or is_slow:
                self._give_up("http.body_timeout", "the body did not come in time")
        elif self.is_busy:
            pass
        elif self._ahead or self._is_fresh:
            if waited_s * 1_000 >= http.head_timeout_ms:
                self._give_up("http.head_timeout", "the head did not come in time")
        elif waited_s * 1_000 >= http.idle_timeout_ms:
            self._desk.crowd.note("http.idle_timeout")
            transport.close()

    def close(self, cause: Cause) -> None:  # noqa: ARG002 - HTTP has no word for it
        """Read nothing new; close the connection, after its current answer if there is one."""
        self._is_ending = True
        self._keep(b"")
        if self._transport is None:
            return
        if not self.is_busy or self._body is not None:
            self._transport.close()
        elif self._inner is not None and not self._is_here:
            self._inner.close()

    def abort(self) -> None:
        """Close it at once, whatever it is doing."""
        if not self._is_begun:
            self._caller.hang_up()
        transport, self._transport = self._transport, None
        self._is_ending = True
        self._ahead = b""
        self.keep_unread(0)
        if transport is not None:
            transport.abort()

    def relieve(self) -> None:
        """Close it: the pool is short, and this connection holds the most."""
        text = "connection closed: limits.memory: it holds the most unhandled or unread bytes"
        log.warning(text, extra=by(self.address))
        self._desk.crowd.note("limits.memory")
        self.abort()

    # -- requests

    def _take(self, data: bytes) -> None:
        """Take the next request, or its received part."""
        quick = self._quick
        request = None if quick is None else self._last.read(data)
        if quick is not None and request is not None:
            if self._is_shared:
                self._hear(data[: request.start])
            if len(data) < request.end <= request.whole_max:
                self._wait(data, is_part=True)
                return
            if self._is_fresh or request.authorization != self._shown:
                key = quick.key_of(request.authorization)
                # If the key's bound refuses, aiohttp's side says so.
                self._shown = request.authorization if not self._claim(key) else "?"
            if (
                self._shown != "?"
                and request.end <= len(data)
                and (request.host == self._host or self._knows(request.host))
                and quick.start(request, data[request.start : request.end], self._is_unheard, self._answered)
            ):
                self.is_busy = self._is_here = True
                self._is_fresh = self._is_part = False
                self._keep(data[request.end :])
                return
        self._take_other(data)

    def _take_other(self, data: bytes) -> None:
        """`_take` for aiohttp."""
        if data.startswith(b"\r\n"):  # some clients send an empty line after a body
            data = data[_EMPTY_LINES.match(data).end() :]  # type: ignore[union-attr]
        stop = data.find(b"\r\n\r\n", 0, HEAD_MAX)
        try:
            if stop < 0:
                check_begun(data)
                self._wait(data)
                return
            raw = data[: stop + 4]
            head = read_head(raw)
            if self._is_shared:
                self._hear(raw)
            self._check_page(head)
            self._desk.check_length(head.length)
        except Problem as problem:
            self._refuse(problem, data)
            return
        if self._inner is None:
            self._inner = self._desk.others(self._told, self._claim)
            self._inner.connection_made(cast("asyncio.Transport", self._transport))
            self._inner.is_ended = self._is_eof
        self._inner.address = self.address
        self._shown = "?"  # the next request of the quick path checks the key again
        self.is_busy, self._is_here = True, False
        self._is_fresh = self._is_part = False
        self._keep(b"")
        self._body, self._body_bytes = body_of(head.length), 0
        self._since_s = self._loop.time()
        if head.has_upgrade:
            raw = without_upgrade(raw)
            data = raw + data[stop + 4 :]
        self._feed(data, len(raw))

    def _knows(self, host: str) -> bool:
        """Whether it is a name of this server; the last one is cached."""
        assert self._transport is not None
        try:
            self._desk.pages.check_host(host, self._transport)
        except ForeignHost:
            return False
        self._host = host
        return True

    def _check_page(self, head: Head) -> None:
        """Raise Problem if no page, or not this page, may make the request."""
        assert self._transport is not None
        pages, changes = self._desk.pages, head.method not in READING
        try:
            pages.check(head.host, head.origin, head.fetch_site, self._transport, changes=changes)
        except ForeignHost as error:
            raise Problem("foreign-host", str(error)) from None
        except ForeignOrigin as foreign:
            raise Problem("foreign-origin", str(foreign)) from None

    def _feed(self, data: bytes, at: int = 0) -> None:
        """Pass on what belongs to the request: `data[:at]`, and behind it the body as far as it has come."""
        inner, body = self._inner, self._body
        assert inner is not None
        end = at
        if body is not None:
            try:
                end += body.feed(data[at:] if at else data)
            except FramingError as error:
                log.debug("not readable: %s", error)
                self._is_ending, self._since_s = True, self._loop.time()
                # Nothing behind it: a request might hide behind what aiohttp takes for the end.
                inner.data_received(data[: at + error.good] + b"\0\r\n")  # aiohttp finds the error itself
                return
            self._body_bytes += end - at
            self._heard_s = self._loop.time()
            if body.is_done:
                self._body = None
        inner.data_received(data[:end] if end < len(data) else data)
        if self._body is None:
            if end < len(data):
                self._keep(data[end:])
            self._go_on()

    def _hear(self, head: bytes) -> None:
        """Take the client's address from a trusted proxy's header."""
        self.address = self._desk.crowd.proxies.client_in(head, self._caller.address)
        self.owner = network_of(self.address)
        self._shown = "?"

    def _claim(self, key: str) -> str:
        """Account the connection to its key, or to none. Returns why the key may not have another; empty: it
        may."""
        why = self._desk.crowd.let_in(self, key) if key or self._desk.is_open else ""
        if key and not why:
            self.owner = KEY + key
        return why

    def _wait(self, data: bytes, *, is_part: bool = False) -> None:
        """Wait for the rest of a head or, with `is_part`, of a short body."""
        now_s = self._loop.time()
        if is_part != self._is_part or not (self._is_fresh or self._ahead):
            self._since_s = now_s
        self._is_part, self._heard_s, self._body_bytes = is_part, now_s, len(data)
        self._keep(data)

    def _is_unheard(self) -> bool:
        """Whether the client waits for no answer."""
        return self._is_eof or self._transport is None

    def _answered(self, answer: bytes) -> None:
        """Send the answer of the quick path."""
        self.is_busy = False
        if self._transport is None:
            return
        self._transport.write(answer)
        self._since_s = self._loop.time()
        if self._is_ending:
            self._transport.close()
        else:
            self._go_on()

    def _told(self, goes_on: bool) -> None:
        """aiohttp has answered a request."""
        self.is_busy = False
        if self._desk.is_open:
            self._desk.crowd.let_in(self, "")
        self._since_s = self._loop.time()
        if not goes_on:
            self._end()
        elif self._body is None:
            self._go_on()

    def _go_on(self, *, is_turn: bool = False) -> None:
        """Take what was sent ahead. `is_turn`: in its owner's turn, whose time is counted already."""
        if self.is_busy or self._is_full or self._is_ending or self._body is not None:
            return
        transport, data, time = self._transport, self._ahead, self._desk.time
        if transport is None or transport.is_closing() or self._is_waiting:
            return
        if data:
            began_s = 0.0 if is_turn else time.begin(self.owner)
            if not (is_turn or began_s):
                self._is_waiting = True
                time.wait(self.owner, self._have_turn)
                return
            self._keep(b"")
            if not self._is_eof:
                read_on(transport)
            self._take(data)
            if began_s:
                time.end(began_s)
        if self._is_eof and not self._owes:
            transport.close()

    def _have_turn(self) -> None:
        self._is_waiting = False
        self._go_on(is_turn=True)

    # -- closing

    def _give_up(self, bound: str, detail: str) -> None:
        """Close for a timeout. A handler at aiohttp is told of the disconnect."""
        self._desk.crowd.note(bound)
        if self._body is None and self._ahead:
            self._refuse(Problem("request-timeout", detail), self._ahead)
        else:
            self.abort()

    def _refuse(self, problem: Problem, head: bytes) -> None:
        """Send a last answer, to the received part of a head."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            write_to(transport, self._desk.refusal(problem, head))
        self._end()

    def _end(self) -> None:
        """The last answer has been written: linger."""
        self._is_ending, self._since_s = True, self._loop.time()
        self._keep(b"")
        if self._transport is not None and self._lingering is None:
            self._desk.crowd.ends(self)
            self._lingering = Lingering(self._transport, self._desk.http.idle_timeout_ms / 1_000)

    def _keep(self, data: bytes) -> None:
        """Keep bytes that have come and wait."""
        if data or self._ahead:
            self._ahead = data
            self._weigh()

    def keep_unread(self, count: int) -> None:
        self._unread = count
        self._weigh()

    def _weigh(self) -> None:
        """Account the held bytes. After an abort the waiting ones are dropped, and count no more."""
        transport, held_bytes = self._transport, 0
        if transport is not None:
            held_bytes = len(self._ahead) + self._unread + transport.get_write_buffer_size()
        if held_bytes != self.held_bytes:
            self._desk.pool.hold(self, held_bytes)


def _batch(body: bytes, reader: Reader, most: int) -> list[Item]:
    """Items of a batch if all lines are fine; else empty. Raises RequestError."""
    if body.count(b"\n") > most:
        return []
    found = whole(body, True, most)
    return [] if found is None else reader.read(*found)


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
