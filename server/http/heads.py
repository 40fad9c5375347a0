"""Strict reading of a request's head: anything ambiguous is refused before it has an effect.

If a server and the proxy before it disagree where a request ends, a stranger can smuggle requests into
another client's connection. So every head, also of requests that aiohttp answers, is checked here first:

    not HTTP, an invalid header, a length twice, both length and coding, no or two Hosts        400
    a request line above 8,190 bytes                                                            414
    a line above 8,190 bytes, more than 100 headers, a head above 16 KiB                        431
    a body in an unknown Content-Encoding                                                       415
    an Expect other than 100-continue                                                           417
    an unknown method, a transfer coding other than chunked                                     501
    a version other than 1.0 and 1.1                                                            505

Source: RFC 9112, sections 2 to 6.
"""

import re
from typing import NamedTuple

from .problems import Problem
from .values.unpack import ENCODINGS

HEAD_MAX = 16 << 10
LINE_MAX = 8_190
HEADERS_MAX = 100
METHODS = frozenset(b"GET HEAD POST PUT PATCH DELETE OPTIONS TRACE QUERY".split())
"""Methods known elsewhere, too: for these the resource answers 405."""
ONCE = frozenset(
    (
        *(b"host", b"content-length", b"transfer-encoding", b"content-type", b"content-encoding"),
        *(b"expect", b"origin", b"sec-fetch-site", b"authorization"),
    )
)
"""Headers that decide how a request is read, or who sent it."""

CODINGS = frozenset((b"identity", *ENCODINGS))
"""Accepted content codings of a body."""

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_TARGET = re.compile(rb"(?:/.*|\*|https?://([^/?#]*).*)", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*+", re.IGNORECASE)
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(?::[0-9]{1,5})?")


class Head(NamedTuple):
    """The parts of a head that matter before its call is known."""

    method: str
    host: str
    """Empty for HTTP/1.0 without a Host."""
    origin: str | None
    fetch_site: str
    length: int | None
    """Bytes of the body; None: chunked."""
    has_upgrade: bool
    """Whether it asks for another protocol."""


def check_begun(data: bytes) -> None:
    """Raise Problem if `data`, an incomplete head, cannot become a valid one."""
    line, end, _ = data.partition(b"\r\n")
    if end or len(line) > LINE_MAX or b"\n" in line:
        _line_of(line)
    elif line and not _TOKEN.match(line):
        raise Problem("not-readable", "Not an HTTP/1.1 request.")
    if len(data) > HEAD_MAX:
        raise Problem("head-too-large", f"The request line and headers have more than {HEAD_MAX} bytes.")


def read_head(head: bytes) -> Head:
    """Parse a whole head, including its empty line. Raises Problem."""
    first, *lines = head[:-4].split(b"\r\n")
    method, authority, version = _line_of(first)
    headers = _headers_of(lines)
    host = headers.get(b"host", b"")
    if (b"host" in headers or version == b"1.1") and not HOST.fullmatch(host):
        raise Problem("not-readable", "The Host header must appear exactly once.")
    if authority is not None and authority.lower() != host.lower():
        raise Problem("not-readable", "The Host header differs from the host of the URL.")
    length = _length_of(headers, version)
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if length != 0 and encoding not in CODINGS:
        accepted = {"Accept-Encoding": b", ".join(ENCODINGS).decode()}
        text = "Content-Encoding must be gzip, deflate or identity."
        raise Problem("unsupported-media-type", text, headers=accepted)
    if version == b"1.1" and headers.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise Problem("expectation-failed", "Expect must be 100-continue.")
    return Head(
        method.decode(),
        host.decode(),
        headers[b"origin"].decode("latin-1") if b"origin" in headers else None,
        headers.get(b"sec-fetch-site", b"").decode("latin-1"),
        length,
        b"upgrade" in headers,
    )


def without_upgrade(head: bytes) -> bytes:
    """The head without its Upgrade header, which the server ignores (RFC 9110, section 7.8)."""
    return _UPGRADE.sub(b"", head)


def _line_of(line: bytes) -> tuple[bytes, bytes | None, bytes]:
    """Method, authority if the target has one, and version of the request line. Raises Problem."""
    if len(line) > LINE_MAX:
        raise Problem("uri-too-long", f"The request line has more than {LINE_MAX} bytes.")
    found = _LINE.fullmatch(line)
    if found is None:
        raise Problem("not-readable", "Not an HTTP/1.1 request.")
    version = b"%b.%b" % (found[3], found[4])
    if version not in (b"1.0", b"1.1"):
        raise Problem("version-not-supported", "The HTTP version must be 1.1 or 1.0.")
    if found[1] not in METHODS:
        raise Problem("not-implemented", "Unknown method.")
    target = _TARGET.fullmatch(found[2])
    if target is None or (found[2] == b"*" and found[1] != b"OPTIONS"):
        raise Problem("not-readable", "The target of the request must be a path.")
    return found[1], target[1], version


def _headers_of(lines: list[bytes]) -> dict[bytes, bytes]:
    """Headers by name in lower case; of a repeatable one the last. Raises Problem."""
    if len(lines) > HEADERS_MAX:
        raise Problem("head-too-large", f"The request has more than {HEADERS_MAX} headers.")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        if len(line) > LINE_MAX:
            raise Problem("head-too-large", f"A header has more than {LINE_MAX} bytes.")
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Problem("not-readable", "A header line is invalid.")
        lower = name.lower()
        if lower in headers and lower in ONCE:
            raise Problem("not-readable", f"The header {lower.decode()} must appear only once.")
        headers[lower] = value.strip(b" \t")
    return headers


def _length_of(headers: dict[bytes, bytes], version: bytes) -> int | None:
    """Bytes of the body; None: chunked. Raises Problem."""
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if coding is None:
        if length is None:
            return 0
        if not length.isdigit() or len(length) > 15:
            raise Problem("not-readable", "Content-Length must be a number.")
        return int(length)
    if length is not None or version == b"1.0":
        raise Problem("not-readable", "A body needs a Content-Length or, with HTTP/1.1, a Transfer-Encoding.")
    if coding.lower() != b"chunked":
        raise Problem("not-implemented", "Transfer-Encoding must be chunked.")
    return None
