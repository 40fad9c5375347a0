"""`POST /v1/messages` answered without a web framework; every other request goes to aiohttp.

Written for speed: most of the processor time of one schedule was aiohttp's (request and response objects, a
task's turn for the handler, routing). Read here it takes half of it: docs/decisions/0016 has the figures.

A connection begins here. As long as what arrives is made of usual requests of that one call, each is
read, decided in the writer and answered here, one after the other. The first bytes that are anything else
(another call, half a head, a header that changes how a request is read) hand the connection over to
aiohttp for good, together with them. So this file has to know little of HTTP; it must only be sure of what
it takes. The same goes for what is refused before it reaches the writer: refusals are told in one place,
which is not here.

What a client sends ahead while its request is being decided waits, 64 KiB at most; then the socket is read on
when the answer is out.

    data ──> read_request ──> Desk.start ──> writer ... synced ──> answer ──> the next one
                    └──────── not one of ours ──────> aiohttp
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from shards.dedupe import Known
from shards.errors import Corrupt, StoreFailed

from ..clock import Clock
from ..config import Limits
from ..logs import by
from ..metrics import Metrics
from ..writer import Busy, Writer
from .answers import WRITE_ERRORS, problem_of_write
from .gate import Gate
from .posting import first_answer, place
from .problems import MEDIA_TYPE, Problem
from .timeline import Timeline
from .values.bodies import RequestError, check_json
from .values.drafts import draft_of, late_ones
from .values.message_body import parse_one

PATH = "/v1/messages"
START = b"POST /v1/messages HTTP/1.1\r\n"
HEAD_MAX = 8 << 10
WHOLE_MAX = 16 << 10
"""A request up to this size is waited for; some clients send head and body apart."""
AHEAD_MAX = 64 << 10
"""Bytes that a client may send ahead before its socket is read no further."""
IDLE_S = 3_600.0
"""A connection on which nothing has come for so long is closed."""
CLOSE_S = 5.0

log = logging.getLogger(__name__)

# Possessive: nothing is tried a second way, of which a head of empty headers had 2 for each.
_HEADERS = re.compile(rb"(?:[A-Za-z0-9-]++:[\x21-\x7e \t]*+\r\n)++")
_HEADER = re.compile(rb"([A-Za-z0-9-]++):[ \t]*+([\x21-\x7e \t]*+)\r\n")
_MATTERS = re.compile(
    rb"transfer-|content-(?!type|length)|expect|upgrade|trailer|te$|authorization|if-|range|http2-"
)
"""Names of headers that change how a request is read or answered."""

Answer = Callable[[bytes], None]


class Request(NamedTuple):
    """One request: its body lies in [start, end) of what was read, as far as it has come."""

    start: int
    end: int
    key: str | None


def read_request(data: bytes) -> Request | None:
    """The request that `data` begins with; None if that is not the whole head of a usual one of this call."""
    if not data.startswith(START):
        return None
    stop = data.find(b"\r\n\r\n", len(START), HEAD_MAX)
    if stop < 0 or not _HEADERS.fullmatch(data, len(START), stop + 2):
        return None
    known: dict[bytes, bytes] = {}
    for name, value in _HEADER.findall(data, len(START), stop + 2):
        lower = name.lower()
        if lower in known or _MATTERS.match(lower):
            return None
        known[lower] = value.rstrip(b" \t")
    length = known.get(b"content-length", b"")
    if b"host" not in known or not length.isdigit() or len(length) > 9:
        return None
    if known.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    try:
        check_json(known.get(b"content-type", b"").decode())
    except RequestError:
        return None
    key = known.get(b"idempotency-key")
    return Request(stop + 4, stop + 4 + int(length), None if key is None else key.decode())


class Desk:
    """What the connections share: where requests are decided, and who takes over the rest."""

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        timeline: Timeline,
        metrics: Metrics,
        limits: Limits,
        gate: Gate,
        others: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """`others`: makes the protocol of a connection that is handed over."""
        self._writer = writer
        self._clock = clock
        self._timeline = timeline
        self._metrics = metrics
        self._limits = limits
        self._gate = gate
        self.others = others
        self.fronts: set[Front] = set()
        self._date = (0, b"")

    def connection(self) -> "Front":
        """The protocol of a new connection."""
        return Front(self)

    def start(self, body: bytes, key: str | None, answer: Answer) -> bool:
        """Have a request decided, `answer` it later; False if it is not for here, with nothing done."""
        now_ms = self._clock.wall_ms()
        try:
            message = parse_one(body, now_ms, self._limits, key)
            if message.spread_ms:
                return False
            size = self._gate.size(len(body))
        except (RequestError, Problem):
            return False
        draft = draft_of(message, now_ms)

        def done(placed: Any) -> None:
            try:
                said = self._answer(placed, draft.due_ms, now_ms)
            except Exception as error:  # who waits is answered, whatever becomes of the look-up
                said = self._answer(error, draft.due_ms, now_ms)
            answer(said)

        decide = partial(place, drafts=[draft], late=late_ones([message], now_ms))
        try:
            self._writer.submit(decide, done, size=size)
        except (Busy, StoreFailed):
            return False
        return True

    async def close(self) -> None:
        """Let what is being decided be answered, then close the connections that are still here."""
        deadline = time.monotonic() + CLOSE_S
        while any(front.is_busy for front in self.fronts) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for front in list(self.fronts):
            front.close()

    def _answer(self, placed: Any, due_ms: int, now_ms: int) -> bytes:
        media = "application/json"
        if isinstance(placed, Exception):
            problem = _problem_of(placed)
            status, headers, body = problem.status, problem.headers, problem.to_bytes()
            media = MEDIA_TYPE
        else:
            (one,) = placed
            if not isinstance(one, Known):
                self._metrics.accepted.inc()
            status, headers, body = first_answer(one, due_ms, now_ms, self._timeline)
        self._metrics.answers["POST", PATH, status] += 1
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{_STATUS[status]}Content-Type: {media}\r\n{more}Content-Length: {len(body)}\r\n"
        return b"".join((head.encode(), self._dated(), body))

    def _dated(self) -> bytes:
        """The header Date and the end of the head, made once a second."""
        now_s = int(time.time())
        if self._date[0] != now_s:
            self._date = (now_s, f"Date: {formatdate(now_s, usegmt=True)}\r\n\r\n".encode())
        return self._date[1]


class Front(asyncio.Protocol):
    """One connection, until it is handed over."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._transport: asyncio.Transport | None = None
        self.is_busy = False
        """A request is being decided."""
        self._ahead = b""
        self._is_full = False
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._desk.fronts.add(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._leave()

    def data_received(self, data: bytes) -> None:
        if self.is_busy or self._is_full:
            self._ahead += data
            if len(self._ahead) > AHEAD_MAX and self._transport is not None:
                self._transport.pause_reading()
        elif self._ahead:
            data, self._ahead = self._ahead + data, b""
            self._take(data)
        else:
            self._take(data)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._go_on()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _take(self, data: bytes) -> None:
        request = read_request(data)
        if request is not None and len(data) < request.end <= WHOLE_MAX:
            self._ahead = data
            return
        self.is_busy = request is not None and request.end <= len(data)
        if (
            request is None
            or not self.is_busy
            or not self._desk.start(data[request.start : request.end], request.key, self._answered)
        ):
            self._hand_over(data)
        else:
            self._ahead = data[request.end :]

    def _answered(self, answer: bytes) -> None:
        self.is_busy = False
        if self._transport is None:
            return
        self._transport.write(answer)
        self._last_s = asyncio.get_running_loop().time()
        self._go_on()

    def _go_on(self) -> None:
        """Take what was sent ahead."""
        if self.is_busy or self._is_full or not self._ahead or self._transport is None:
            return
        data, self._ahead = self._ahead, b""
        self._transport.resume_reading()
        self._take(data)

    def _hand_over(self, data: bytes) -> None:
        """aiohttp has the connection from here on."""
        transport = self._transport
        assert transport is not None
        self.is_busy = False
        self._leave()
        protocol = cast("asyncio.Protocol", self._desk.others())
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def _leave(self) -> None:
        self._transport = None
        self._desk.fronts.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """Close the connection when it has been idle for too long; looks once in that time."""
        loop = asyncio.get_running_loop()
        idle_s = loop.time() - self._last_s if self._timer is not None else 0.0
        if idle_s >= IDLE_S and not self.is_busy:
            self.close()
        else:
            self._timer = loop.call_later(IDLE_S, self._watch)


def _problem_of(error: Exception) -> Problem:
    if isinstance(error, WRITE_ERRORS):
        return problem_of_write(error)
    if isinstance(error, Corrupt):
        log.error("POST %s: %s", PATH, error)
        return Problem("unreadable")
    log.error("POST %s failed", PATH, exc_info=error, extra=by("clients"))
    return Problem("internal")


_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
