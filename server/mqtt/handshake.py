"""The request that makes a connection a websocket, and its answer.

    GET /mqtt HTTP/1.1 ... -> 101, then frames; anything else -> an HTTP error, and the end

A page in a browser may connect to any host that the browser can reach: server/net/browsers.py says which
pages may. Source: RFC 6455, section 4.2.
"""

import binascii
import re
from asyncio import BaseTransport
from base64 import b64decode, b64encode
from hashlib import sha1
from http import HTTPStatus
from typing import Final

from ..net.browsers import ForeignHost, ForeignOrigin, Pages

PATHS = frozenset({"/", "/mqtt"})
PROTOCOLS = ("mqtt", "mqttv3.1")
HEAD_MAX = 16 << 10
_REQUEST = re.compile(r"([A-Z]+) ([\x21-\x7e]+) HTTP/1\.1")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
_KEY_TAIL: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class HandshakeRefused(Exception):
    """A request that is not answered with 101."""

    def __init__(self, status: HTTPStatus, detail: str, *headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers


def answer_handshake(head: bytes, pages: Pages, transport: BaseTransport) -> bytes:
    """The answer to a request, its lines without the empty one; raises HandshakeRefused."""
    if len(head) > HEAD_MAX:
        raise HandshakeRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too large")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = _headers(lines)
    _check_request(first, headers)
    site = headers.get("sec-fetch-site", "")
    try:
        pages.check(headers["host"], headers.get("origin"), site, transport, changes=True)
    except ForeignHost as error:
        raise HandshakeRefused(HTTPStatus.MISDIRECTED_REQUEST, str(error)) from None
    except ForeignOrigin as error:
        raise HandshakeRefused(HTTPStatus.FORBIDDEN, str(error)) from None
    key = headers.get("sec-websocket-key", "").encode("latin-1")
    accept = b64encode(sha1(key + _KEY_TAIL, usedforsecurity=False).digest())
    offered = _tokens(headers.get("sec-websocket-protocol", ""))
    chosen = next((name for name in PROTOCOLS if name in offered), "")
    return b"".join(
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
            b"Sec-WebSocket-Accept: %b\r\n" % accept,
            b"Sec-WebSocket-Protocol: %b\r\n" % chosen.encode() if chosen else b"",
            b"\r\n",
        )
    )


def _headers(lines: list[str]) -> dict[str, str]:
    """By name in lower case; one that is repeated is a list with commas. Read as strictly as HTTP's."""
    headers: dict[str, str] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise HandshakeRefused(HTTPStatus.BAD_REQUEST, "invalid header line")
        lower, value = found[1].lower(), found[2].strip(" \t")
        if lower == "host" and lower in headers:
            raise HandshakeRefused(HTTPStatus.BAD_REQUEST, "the Host header must appear exactly once")
        headers[lower] = f"{headers[lower]}, {value}" if lower in headers else value
    return headers


def _tokens(text: str) -> set[str]:
    return {token.strip() for token in text.split(",")}


def _check_request(first: str, headers: dict[str, str]) -> None:
    request = _REQUEST.fullmatch(first)
    if request is None or not headers.get("host"):
        raise HandshakeRefused(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
    if request[2].partition("?")[0] not in PATHS:
        raise HandshakeRefused(HTTPStatus.NOT_FOUND, "unknown path: MQTT is at /mqtt")
    if request[1] != "GET":
        raise HandshakeRefused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET", "Allow: GET")
    upgrade, connection = headers.get("upgrade", "").lower(), headers.get("connection", "").lower()
    if "websocket" not in _tokens(upgrade) or "upgrade" not in _tokens(connection):
        raise HandshakeRefused(
            HTTPStatus.UPGRADE_REQUIRED, "expected a websocket upgrade", "Upgrade: websocket"
        )
    if headers.get("sec-websocket-version") != "13":
        raise HandshakeRefused(
            HTTPStatus.UPGRADE_REQUIRED, "the websocket version must be 13", "Sec-WebSocket-Version: 13"
        )
    try:
        key = b64decode(headers.get("sec-websocket-key", ""), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 16:
        raise HandshakeRefused(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key is not 16 bytes in base64")
