"""HTTP connections: the quick path for messages, small batches and calls for leases; aiohttp answers the
rest.

Written for speed: most of the processor time of one schedule was aiohttp's (request and response objects, a
task for the handler, routing). The quick path halves it: docs/decisions/0003 has the figures.

The quick path reads, decides and answers usual requests of these calls, one after the other. aiohttp answers
everything else: other calls, headers that change how a request is read, keys that are not known yet. So the
quick path needs little HTTP, but must be sure of what it accepts. Requests refused before the writer also go
to aiohttp: refusals are worded in one place, which is not here. usual.py reads the requests of the quick
path, desk.py has them decided.

Reading uses the owner's share of the loop's time (server/net/loop_time.py): new bytes through `Paced`,
pipelined ones after the answer before them.

The front keeps the socket. It reads every head strictly (server/http/heads.py), measures every body, and
passes aiohttp one request after the other, the next after the last one's answer. So it always knows what a
client owes, and since when. Its state is what the connection waits for:

    state     waits for                             bytes that come    maximum time
    HEAD      a head, from accept or first byte     are read           http.head_timeout, then 408, or close
                                                                       if nothing has come
    PART      the rest of a short request           are read           http.body_timeout without a byte, or
    BODY      the rest of a body, at the routes     are passed on      below 1 KiB a second after it
    REST      the same, already answered            are passed on
    DESK      the quick path's answer               wait               none
    ROUTES    the routes' answer                    wait               none
    IDLE      the next request                      are read           http.idle_timeout, then close
    LAST      the last answer, once it is closed    are dropped        LINGER_S
    OVER      the end of the socket                 are dropped        LINGER_S

A client that does not read its answer has http.idle_timeout without a byte taken; its requests wait so long.
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
from enum import IntEnum
from typing import cast

from aiohttp import web

from ..fair import Share
from ..net.acceptor import Acceptor, Ports
from ..net.browsers import ForeignHost, ForeignOrigin, http_pages
from ..net.crowd import BUSY, Cause, Crowd, http_bounds
from ..net.lingering import LINGER_S, Lingering
from ..net.loop_time import KEY, LoopTime
from ..net.networks import network_of
from ..net.opening import Caller, Opening, read_on, write_to
from ..net.pool import Pool
from ..net.proxies import proxies_of
from ..net.tls import Certificates
from ..observe.logs import by
from ..observe.metrics import Metrics
from ..settings.config import Config
from ..settings.kinds import Address
from .desk import Desk
from .framing import Body, FramingError
from .heads import HEAD_MAX, Head, check_begun, read_head, without_upgrade
from .problems import Problem
from .protocol import Protocol as Inner
from .usual import BATCH_MAX, WHOLE_MAX, LastHead
from .written import Written

AHEAD_MAX = 64 << 10
"""Bytes that a client may send ahead before its socket is no longer read."""
LARGE = 256 << 10
"""Unsent bytes of an answer that are accounted at once: dozens of pages are made in a tick."""
BODY_RATE = 1 << 10
"""Minimum bytes a second of a body, once `http.body_timeout` has passed."""
HANDLERS_S = 0.5
"""How long handlers may run, twice, after their connections have ended."""
SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Methods that change nothing."""
_EMPTY_LINES = re.compile(rb"(?:\r\n)*")

log = logging.getLogger(__name__)


class State(IntEnum):
    """What a connection waits for."""

    HEAD = 0
    PART = 1
    BODY = 2
    REST = 3
    DESK = 4
    ROUTES = 5
    IDLE = 6
    LAST = 7
    OVER = 8


READING = frozenset((State.HEAD, State.PART, State.IDLE))
PASSING = frozenset((State.BODY, State.REST))
DROPPING = frozenset((State.LAST, State.OVER))
"""What becomes of bytes that come; in the other states they wait."""
OWED = frozenset((State.DESK, State.ROUTES, State.LAST))
"""A complete request is being answered."""
ANSWERED = {State.DESK: State.IDLE, State.ROUTES: State.IDLE, State.BODY: State.REST}
RECEIVED = {State.BODY: State.ROUTES, State.REST: State.IDLE}
"""The state after an answer, and after the end of a body. All others: OVER."""


class HttpListener:
    """HTTP's listening sockets, and what their connections share: of a server, and of a node that does not
    lead."""

    def __init__(
        self,
        config: Config,
        pool: Pool,
        time: LoopTime,
        metrics: Metrics,
        ports: Ports,
        share: Share | None = None,
    ) -> None:
        """`share`: of connections by key."""
        self.http = config.http
        self.pages = http_pages(config)
        self.pool = pool
        self.time = time
        self.written = Written(metrics, self.pages)
        bounds, proxies = http_bounds(config.http), proxies_of(config)
        self.crowd = Crowd[Front](bounds, metrics.bounded, metrics.tell_http, proxies, share)
        self._acceptor = Acceptor(
            self.crowd,
            time,
            ports,
            needs_header=False,
            handshake_bound="http.head_timeout",
            handshake_s=config.http.head_timeout_ms / 1000,
        )
        self.quick: Desk | None = None
        """Decides usual requests; None: aiohttp answers all."""
        self._runner: web.AppRunner | None = None

    async def start(self, site: web.Application, quick: Desk | None = None) -> None:
        """Prepare the routes; `open` begins to accept."""
        self.quick, self._runner = quick, web.AppRunner(site, shutdown_timeout=HANDLERS_S)
        await self._runner.setup()

    async def open(self, address: Address, tls: Certificates | None) -> int:
        """Listen; returns the port. Raises OSError."""
        return await self._acceptor.open(address, self._begin, None if tls is None else tls.context)

    async def close(self, patience_s: float) -> None:
        """Stop accepting, give running answers that time, then close all."""
        self._acceptor.close()
        await self.crowd.close(Cause.STOPPING, patience_s)
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return self.quick is not None and self.quick.is_open

    @property
    def server(self) -> web.Server:
        """Runs the routes."""
        assert self._runner is not None
        assert self._runner.server is not None
        return self._runner.server

    def _begin(self, caller: Caller) -> "Front":
        self.crowd.look_on()
        return Front(self, caller, asyncio.get_running_loop())


class Front(Opening):
    """One connection, from accept to close."""

    __slots__ = (
        "_ahead",
        "_authorization",
        "_body",
        "_body_bytes",
        "_caller",
        "_heard_s",
        "_host",
        "_inner",
        "_is_begun",
        "_is_eof",
        "_is_full",
        "_is_shared",
        "_is_waiting",
        "_last",
        "_lingering",
        "_listener",
        "_loop",
        "_since_s",
        "_transport",
        "_unread",
        "_unsent",
        "address",
        "held_bytes",
        "owner",
        "state",
    )

    def __init__(self, listener: HttpListener, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._caller = caller
        self.address = caller.address
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_begun = False
        self._inner: Inner | None = None
        """aiohttp's side, once it was needed."""
        self.state = State.HEAD
        self._is_eof = False
        """The client has shut down its sending side; it still reads."""
        self._is_full = False
        """The client does not read its answers."""
        self._last = LastHead()
        """The last head of the quick path."""
        self._host = ""
        """The last Host that it used, once checked."""
        self._authorization = "?"
        """The last credentials that it used on the quick path; "?": the next ones are checked."""
        self.owner = network_of(caller.address)
        self._is_waiting = False
        """Waits for its owner's turn to take what was sent ahead."""
        self._unread = 0
        self._ahead = b""
        self.held_bytes = 0
        """Bytes accounted to the connection by the pool."""
        self._body = Body(0)
        """The body of the last request at aiohttp."""
        self._body_bytes = 0
        self._lingering: Lingering | None = None
        self._since_s = self._heard_s = loop.time()
        """Start of the current wait; time of the last byte of a body."""
        self._unsent = (0, 0.0)
        """Unsent bytes, and since when it is this number."""
        listener.crowd.add(self)
        self._is_shared = listener.crowd.is_shared(self)
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
        self._listener.crowd.discard(self)
        self._weigh()
        inner, self._inner = self._inner, None  # each held the other
        if inner is not None:
            inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.state in READING and not self._is_full:
            self._take(self._ahead + data if self._ahead else data)
        elif self.state in PASSING:
            self._feed(data)
        elif self.state in DROPPING:
            if self._lingering is not None:
                self._lingering.drop(len(data))
        else:
            self._keep(self._ahead + data)
            if len(self._ahead) > AHEAD_MAX and self._transport is not None:
                self._transport.pause_reading()

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
    def idle_since_s(self) -> float:
        return self._since_s if self.state in READING else BUSY

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def _owes(self) -> bool:
        """Whether a complete request is being answered, or waits for the client to read."""
        return self.state in OWED or (self._is_full and bool(self._ahead))

    def check(self, now_s: float, passed_s: float) -> None:
        """Enforce the client's time limits; `passed_s` since the last check."""
        self._weigh()
        transport, http = self._transport, self._listener.http
        if transport is None or self._lingering is not None:
            return  # the TLS handshake and lingering have their own limits
        waited_s = now_s - self._since_s
        unsent = transport.get_write_buffer_size()
        if unsent != self._unsent[0]:
            self._unsent = (unsent, now_s)
        if unsent:
            if (now_s - self._unsent[1]) * 1_000 >= http.idle_timeout_ms:
                self._listener.crowd.note("http.idle_timeout")
                self.abort()
        elif self.state in DROPPING:
            if waited_s >= LINGER_S:
                self.abort()
        elif self.state in PASSING or self.state is State.PART:
            if not transport.is_reading():
                self._since_s += passed_s
                self._heard_s = now_s
            patience_s = http.body_timeout_ms / 1_000
            is_slow = waited_s - patience_s >= self._body_bytes / BODY_RATE
            if now_s - self._heard_s >= patience_s or is_slow:
                self._time_out("http.body_timeout", "the body did not come in time")
        elif self.state is State.HEAD:
            if waited_s * 1_000 >= http.head_timeout_ms:
                self._time_out("http.head_timeout", "the head did not come in time")
        elif self.state is State.IDLE and waited_s * 1_000 >= http.idle_timeout_ms:
            self._listener.crowd.note("http.idle_timeout")
            transport.close()

    def close(self, cause: Cause) -> None:  # noqa: ARG002 - HTTP has no word for it
        """Read nothing new; close the connection, after its current answer if there is one."""
        before, self.state = self.state, State.LAST if self.state in OWED else State.OVER
        self._keep(b"")
        if self._transport is not None and self.state is State.OVER:
            self._transport.close()
        elif self._inner is not None and before is State.ROUTES:
            self._inner.close()

    def abort(self) -> None:
        """Close it at once, whatever it is doing."""
        if not self._is_begun:
            self._caller.abort()
        transport, self._transport = self._transport, None
        self.state = State.OVER
        self._ahead = b""
        self.keep_unread(0)
        if transport is not None:
            transport.abort()

    def evict(self) -> None:
        """Close it: the pool is short, and this connection holds the most."""
        text = "connection closed: limits.memory: it holds the most unhandled or unread bytes"
        log.warning(text, extra=by(self.address))
        self._listener.crowd.note("limits.memory")
        self.abort()

    # -- requests

    def _take(self, data: bytes) -> None:
        """Take the next request, or its received part."""
        quick = self._listener.quick
        request = None if quick is None else self._last.read(data)
        if quick is not None and request is not None:
            if self._is_shared:
                self._hear(data[: request.start])
            if len(data) < request.end <= (BATCH_MAX if request.kind else WHOLE_MAX):
                self._wait(data, State.PART)
                return
            if request.authorization != self._authorization:
                key = quick.key_of(request.authorization)
                # If the key's bound refuses, aiohttp's side says so.
                self._authorization = request.authorization if not self._claim(key) else "?"
            if (
                self._authorization != "?"
                and request.end <= len(data)
                and (request.host == self._host or self._knows(request.host))
                and quick.start(request, data[request.start : request.end], self._is_unheard, self._answered)
            ):
                self.state = State.DESK
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
                self._wait(data, State.HEAD)
                return
            raw = data[: stop + 4]
            head = read_head(raw)
            if self._is_shared:
                self._hear(raw)
            self._check_page(head)
            if self._listener.quick is not None:
                self._listener.quick.admission.size(head.length)
        except Problem as problem:
            self._refuse(problem, data)
            return
        if self._inner is None:
            self._inner = Inner(self._listener.server, self._inner_answered, self._claim, loop=self._loop)
            self._inner.connection_made(cast("asyncio.Transport", self._transport))
            self._inner.is_ended = self._is_eof
        self._inner.address = self.address
        self._authorization = "?"
        self._keep(b"")
        self._body, self._body_bytes = Body(head.length), 0
        self.state = State.ROUTES if self._body.is_done else State.BODY
        self._since_s = self._loop.time()
        if head.has_upgrade:
            raw = without_upgrade(raw)
            data = raw + data[stop + 4 :]
        self._feed(data, len(raw))

    def _knows(self, host: str) -> bool:
        """Whether it is a name of this server; the last one is cached."""
        assert self._transport is not None
        try:
            self._listener.pages.check_host(host, self._transport)
        except ForeignHost:
            return False
        self._host = host
        return True

    def _check_page(self, head: Head) -> None:
        """Raise Problem if no page, or not this page, may make the request."""
        assert self._transport is not None
        pages, changes = self._listener.pages, head.method not in SAFE
        try:
            pages.check(head.host, head.origin, head.fetch_site, self._transport, changes=changes)
        except ForeignHost as error:
            raise Problem("foreign-host", str(error)) from None
        except ForeignOrigin as foreign:
            raise Problem("foreign-origin", str(foreign)) from None

    def _feed(self, data: bytes, at: int = 0) -> None:
        """Pass on what belongs to the request: `data[:at]`, and behind it the body as far as it has come."""
        inner, body, end = self._inner, self._body, at
        assert inner is not None
        if self.state in PASSING:
            try:
                end += body.feed(data[at:] if at else data)
            except FramingError as error:
                log.debug("not readable: %s", error)
                self.state, self._since_s = State.OVER, self._loop.time()
                # Nothing behind it: a request might hide behind what aiohttp takes for the end.
                inner.data_received(data[: at + error.good] + b"\0\r\n")  # aiohttp finds the error itself
                return
            self._body_bytes += end - at
            self._heard_s = self._loop.time()
            if body.is_done:
                self.state = RECEIVED[self.state]
        inner.data_received(data[:end] if end < len(data) else data)
        if self.state not in PASSING:
            if end < len(data):
                self._keep(data[end:])
            self._go_on()

    def _hear(self, head: bytes) -> None:
        """Take the client's address from a trusted proxy's header."""
        self.address = self._listener.crowd.proxies.client_in(head, self._caller.address)
        self.owner = network_of(self.address)
        self._authorization = "?"

    def _claim(self, key: str) -> str:
        """Account the connection to its key, or to none. Returns why the key may not have another; empty: it
        may."""
        why = self._listener.crowd.let_in(self, key) if key or self._listener.is_open else ""
        if key and not why:
            self.owner = KEY + key
        return why

    def _wait(self, data: bytes, state: State) -> None:
        """Wait for the rest of a head or of a short request."""
        now_s = self._loop.time()
        if self.state is not state:
            self.state, self._since_s = state, now_s
        self._heard_s, self._body_bytes = now_s, len(data)
        self._keep(data)

    def _is_unheard(self) -> bool:
        """Whether the client waits for no answer."""
        return self._is_eof or self._transport is None

    def _answered(self, answer: bytes) -> None:
        """Send the answer of the quick path."""
        transport = self._transport
        if transport is None:
            return
        self.state, self._since_s = ANSWERED.get(self.state, State.OVER), self._loop.time()
        transport.write(answer)
        if self.state is State.OVER:
            transport.close()
        else:
            self._go_on()

    def _inner_answered(self, goes_on: bool) -> None:
        """aiohttp has answered a request."""
        self.state = ANSWERED.get(self.state, State.OVER)
        if self._listener.is_open:
            self._listener.crowd.let_in(self, "")
        self._since_s = self._loop.time()
        if not goes_on:
            self._end()
        else:
            self._go_on()

    def _go_on(self, *, is_turn: bool = False) -> None:
        """Take what was sent ahead. `is_turn`: in its owner's turn, whose time is counted already."""
        if self._is_full or self.state not in READING:
            return
        transport, data, time = self._transport, self._ahead, self._listener.time
        if transport is None or transport.is_closing() or self._is_waiting:
            return
        if data:
            began_s = 0.0 if is_turn else time.begin(self.owner)
            if not (is_turn or began_s):
                self._is_waiting = True
                time.wait(self.owner, self._have_turn)
                return
            self._keep(b"")
            self.state = State.IDLE
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

    def _time_out(self, bound: str, detail: str) -> None:
        """Close for a timeout. A handler at aiohttp is told of the disconnect."""
        self._listener.crowd.note(bound)
        if self._ahead:
            self._refuse(Problem("request-timeout", detail), self._ahead)
        else:
            self.abort()

    def _refuse(self, problem: Problem, head: bytes) -> None:
        """Send a last answer, to the received part of a head."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            write_to(transport, self._listener.written.refusal(problem, head))
        self._end()

    def _end(self) -> None:
        """The last answer has been written: linger."""
        self.state, self._since_s = State.OVER, self._loop.time()
        self._keep(b"")
        if self._transport is not None and self._lingering is None:
            self._listener.crowd.lingers(self)
            self._lingering = Lingering(self._transport, self._listener.http.idle_timeout_ms / 1_000)

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
            self._listener.pool.hold(self, held_bytes)
