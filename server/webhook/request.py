"""Webhook request: headers and body of a posted message.

    webhook-id           the message's id, the same on each try
    webhook-timestamp    when it was sent, Unix seconds of the machine's clock
    webhook-signature    with a secret (signing.py)
    fasti-due            when it was due          fasti-topic     its topic, percent-encoded
    fasti-attempt        which try this is, from 1 on
    fasti-ordering-key   its ordering key, percent-encoded, if it has one
    content-type         the payload's, or text/plain or application/octet-stream

The body is the payload, or for an endpoint that wants that an *envelope*: JSON with the payload in it, as
Standard Webhooks recommends. Its libraries verify the bytes and then read them as JSON, so to them a text
that was signed rightly is an error.

The endpoint's own headers come next, then the message's. Neither replaces one of these or of the connection,
and the message's none of the endpoint's. Receivers believe some headers because a proxy in front of them sets
these: whoever may publish must not. A message's header of these, or not valid in HTTP, or beyond
HEADERS_BYTES_MAX, is left out.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from yarl import URL

from shards.properties import headers_of
from shards.record import ENCODINGS

from ..delivery.message import Message
from ..delivery.payloads import payload_view
from ..observe.version import server_version
from ..settings.times import format_ms
from .registry import Endpoint
from .signing import signatures

HEADERS_BYTES_MAX = 8 << 10
"""Bytes of the message's headers."""
AGENT = f"fasti/{server_version()}"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?", re.ASCII)
_NOT_OURS = frozenset(
    (
        *("host", "content-length", "content-type", "connection", "keep-alive", "te", "trailer", "expect"),
        *("transfer-encoding", "upgrade", "user-agent", "http2-settings", "date"),
    )
)
_PREFIXES = ("webhook-", "fasti-", "proxy-")
_NOT_OF_MESSAGES = frozenset(
    (
        *("cookie", "cookie2", "set-cookie", "set-cookie2", "content-encoding", "content-range"),
        *("forwarded", "via", "client-ip", "true-client-ip", "remote-user", "x-host", "x-method-override"),
        *("client-cert", "client-cert-chain", "x-scheme", "x-url-scheme", "front-end-https"),
    )
)
_PREFIXES_OF_PROXIES = (
    *("x-forwarded", "x-real-", "x-client-", "x-cluster-client-", "x-original-", "x-rewrite-"),
    *("x-http-method", "x-remote-", "x-auth-request-", "x-ssl-", "x-envoy-", "cf-", "fastly-"),
    *("ssl-client-", "x-webauth-", "x-authenticated-", "x-goog-", "x-amzn-", "x-ms-client-", "x-middleware-"),
)
_PLAIN = {"text": "text/plain; charset=utf-8", "json": "application/json"}


class WebhookRequest(NamedTuple):
    """A webhook request and its URL."""

    url: URL
    headers: Mapping[str, str]
    body: bytes
    timeout_s: float


def is_header(name: str, value: str) -> bool:
    """Whether it is a valid HTTP header, and not reserved."""
    lower = _as_read(name)
    return (
        _TOKEN.fullmatch(name) is not None
        and _VALUE.fullmatch(value) is not None
        and lower not in _NOT_OURS
        and not lower.startswith(_PREFIXES)
    )


def _is_sent(name: str, value: str) -> bool:
    """Whether the webhook request may contain this header of a message."""
    lower = _as_read(name)
    is_believed = lower in _NOT_OF_MESSAGES or lower.startswith(_PREFIXES_OF_PROXIES)
    return is_header(name, value) and not is_believed


def _as_read(name: str) -> str:
    """A name as receivers compare it: some (CGI, WSGI) read `_` as `-`."""
    return name.lower().replace("_", "-")


def headers_for(
    endpoint: Endpoint, message: str, body: bytes, now_ms: int, content_type: str, more: Mapping[str, str]
) -> dict[str, str]:
    """All headers of a post. `message`: its id; `now_ms`: the machine's time; `more`: the server's others."""
    now_s = now_ms // 1_000
    headers = {
        "webhook-id": message,
        "webhook-timestamp": str(now_s),
        **more,
        "content-type": content_type,
        "user-agent": AGENT,
    }
    signed = signatures(endpoint.secrets(now_ms), message, now_s, body)
    if signed:
        headers["webhook-signature"] = signed
    for name, value in endpoint.row.headers.items():
        headers.setdefault(name.lower(), value)
    return headers


def envelope(message: Message, content_type: str | None) -> bytes:
    """The payload in JSON: `type` is the topic, `data` the payload, which `encoding` says how to read."""
    record = message.record
    data, encoding = payload_view(record.payload, ENCODINGS[record.encoding])
    body = {
        "type": record.topic.decode(errors="replace"),
        "timestamp": format_ms(message.due_ms),
        "data": data,
        "encoding": encoding,
    }
    return msgspec.json.encode(body if content_type is None else body | {"content_type": content_type})


def request_for(
    endpoint: Endpoint, message: Message, url: URL, attempt: int, now_ms: int, *, node: int
) -> WebhookRequest:
    """The webhook request for a message. `attempt`: as for a link. Raises Corrupt for unreadable
    properties."""
    record = message.record
    theirs, content_type = headers_of(record.properties)
    body = record.payload
    if endpoint.row.is_enveloped:
        body, content_type = envelope(message, content_type), _PLAIN["json"]
    if content_type is None or _VALUE.fullmatch(content_type) is None:
        content_type = _PLAIN.get(ENCODINGS[record.encoding], "application/octet-stream")
    more = {
        "fasti-due": format_ms(message.due_ms),
        "fasti-attempt": str(message.try_number(attempt)),
        "fasti-topic": quote(record.topic, safe="/$!*'()+,;:@&=~"),
    }
    if message.is_redelivered(attempt):
        more["fasti-redelivered"] = "true"
    if record.ordering_key:
        more["fasti-ordering-key"] = quote(record.ordering_key, safe="")
    headers = headers_for(endpoint, message.id_text(node), body, now_ms, content_type, more)
    left = HEADERS_BYTES_MAX
    taken = set(map(_as_read, headers))
    for name, value in theirs:
        left -= len(name) + len(value)
        if left < 0:
            break
        if _is_sent(name, value) and _as_read(name) not in taken:
            taken.add(_as_read(name))
            headers[name.lower()] = value
    return WebhookRequest(url, headers, body, endpoint.timeout_s)
