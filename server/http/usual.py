"""Usual requests, as the front reads them: one message, a small batch, or a call for leases.

`read_request` takes the head of a usual request of these calls, and nothing else: another call, a header that
changes how a request is read, or a head that is not whole gives None, and aiohttp answers. So it has to know
little of HTTP. It must only be sure of what it takes.

A connection sends nearly the same head again and again. `LastHead` compares it with the one before.
"""

import re
from enum import IntEnum
from typing import NamedTuple

from ..observe.trace_context import NO_TRACE, Headers, context_of
from .heads import HEADERS_MAX, HOST
from .values.batch_body import is_ndjson
from .values.bodies import RequestError, check_json

HEAD_MAX = 8 << 10
WHOLE_MAX = 16 << 10
"""The front waits for the rest of a request up to this size; some clients send head and body apart."""
BATCH_MAX = 64 << 10
"""The same for a batch."""

# Possessive: no backtracking, of which a head of empty headers had 2 ways for each.
_HEADERS = re.compile(rb"(?:[A-Za-z0-9-]++:[\x21-\x7e \t]*+\r\n)++")
_HEADER = re.compile(rb"([A-Za-z0-9-]++):[ \t]*+([\x21-\x7e \t]*+)\r\n")
_DIFFERING = re.compile(
    rb"\r\n(?:Content-Length|Idempotency-Key):[ \t]*+([\x21-\x7e][\x21-\x7e \t]*+)", re.IGNORECASE
)
"""Headers whose value differs from one request to the next."""
_VALUE = re.compile(rb"[\x21-\x7e][\x21-\x7e \t]*+")
_MATTERS = re.compile(
    rb"transfer-|content-(?!type|length)|expect|upgrade|trailer|te$|origin|sec-fetch-site|if-|range|http2-"
)
"""Headers that change how a request is read or answered."""


class RequestKind(IntEnum):
    """The call of a request."""

    ONE = 0
    ALL = 1
    """A batch, all or nothing."""
    EACH = 2
    """A batch in which each item stands for itself."""
    LEASES = 3
    """A call for leases."""


START = b"POST /v1/"
STARTS = {
    b"POST /v1/messages HTTP/1.1\r\n": RequestKind.ONE,
    b"POST /v1/messages:batch HTTP/1.1\r\n": RequestKind.ALL,
    b"POST /v1/messages:batch?each=true HTTP/1.1\r\n": RequestKind.EACH,
}
START_MAX = max(map(len, STARTS))


LEASES = re.compile(
    rb"POST /v1/groups/([A-Za-z0-9._-]{1,128})/messages:(lease|ack|nack|extend|release) HTTP/1\.1\r\n"
)
LENGTH_DIGITS = 9
"""Maximum digits of a Content-Length."""
DIFFERING_MAX = 512
"""Maximum bytes of a value that differs from the last head's; keys are shorter."""
SAME_HEAD_MAX = 1 << 10
"""Maximum bytes of a head that a connection caches: reading one takes 8 us."""


class Request(NamedTuple):
    """A request; its body is [start, end) of the bytes read, as far as it has come."""

    start: int
    end: int
    key: str | None
    host: str
    authorization: str = ""
    kind: RequestKind = RequestKind.ONE
    context: Headers = NO_TRACE
    """Context of its trace."""
    group: str = ""
    """The group of its leases."""
    verb: str = ""
    """The verb of a call for leases."""


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
        kind, begun, group, verb = RequestKind.LEASES, found.end(), found[1].decode(), found[2].decode()
    stop = data.find(b"\r\n\r\n", begun, HEAD_MAX)
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
        if kind is RequestKind.ONE or kind is RequestKind.LEASES:
            check_json(content_type)
        elif not is_ndjson(content_type):
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
    """The last head of a connection. One that differs only in Content-Length and Idempotency-Key is not read
    again."""

    __slots__ = ("_after", "_before", "_head", "_request")

    def __init__(self) -> None:
        self._head = b""
        self._before: list[tuple[bytes, bool]] = []
        """The parts of the head before each value that may differ, and whether this is the length."""
        self._after = b""
        """The part after the last of them."""
        self._request: Request | None = None
        """Its parsed request."""

    def read(self, data: bytes) -> Request | None:
        """As `read_request`."""
        last = self._request
        if last is not None:
            if data.startswith(self._head):
                return last
            like = self._read_like(data, last)
            if like is not None:
                return like
        request = read_request(data)
        if request is not None and request.start <= SAME_HEAD_MAX:
            self._head, self._request, end = data[: request.start], request, 0
            self._before.clear()
            for found in _DIFFERING.finditer(self._head):
                self._before.append((self._head[end : found.start(1)], found[0][2:9].lower() == b"content"))
                end = found.end(1)
            self._after = self._head[end:]
        return request

    def _read_like(self, data: bytes, last: Request) -> Request | None:
        """The request, if its head is like the last one's."""
        at, length, key = 0, 0, last.key
        for part, is_length in self._before:
            start = at + len(part)
            end = data.find(b"\r", start, start + DIFFERING_MAX)
            if end < 0 or not data.startswith(part, at):
                return None
            value, at = data[start:end], end
            if is_length:
                if not value.isdigit() or len(value) > LENGTH_DIGITS:
                    return None
                length = int(value)
            elif _VALUE.fullmatch(value):
                key = value.rstrip(b" \t").decode()
            else:
                return None
        if not data.startswith(self._after, at):
            return None
        start = at + len(self._after)
        return last._replace(start=start, end=start + length, key=key)
