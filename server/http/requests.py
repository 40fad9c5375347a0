"""Strict reading of a request's path, query and body, for all routes.

An unknown parameter is refused by name: if it were silently ignored, a wrong answer would look right. A
repeated one is refused too.
"""

import re
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from timeline.position import NUMBER_MAX, BadId, MessageId, id_node, id_text, parse_id

from ..observe.trace_context import NO_TRACE, PARENT, STATE, Headers, context_of
from ..webhook.targets import NAME
from .problems import Problem
from .values.bodies import Body, FieldError, NotReadable, check_json, decoded, instant_ms
from .values.scalars import LIMIT_DEFAULT, LIMIT_MAX
from .values.unpack import TooLong, unpacked

KEY_HEADER = "Idempotency-Key"
UNPACKED = web.RequestKey("unpacked", bytes)
UNPACKING: web.RequestKey[Callable[[Callable[[], bytes]], Awaitable[bytes]]] = web.RequestKey("unpacking")
"""Unpacks in a thread, in turns by client (admission.py)."""
_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


def trace_of(request: web.Request) -> Headers:
    """The trace context of a request. An invalid or repeated one is ignored."""
    parents = request.headers.getall(PARENT, ())
    if len(parents) != 1:
        return NO_TRACE
    return context_of(parents[0], ",".join(request.headers.getall(STATE, ())))


def idempotency_key_of(request: web.Request) -> str | None:
    """The idempotency key of a request. Raises FieldError for several."""
    keys = request.headers.getall(KEY_HEADER, ())
    if len(keys) > 1:
        raise FieldError("key", f"The header {KEY_HEADER} must appear only once.")
    return keys[0] if keys else None


def name_of(request: web.Request) -> str:
    """The name in the path of a schedule or endpoint that is put. Raises FieldError."""
    name = request.match_info["name"]
    if not NAME.fullmatch(name):
        raise FieldError("name", "has 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'")
    return name


def check_escapes(raw: str) -> None:
    """Raise NotReadable unless every percent sign in a path or query begins an escape, and the result is
    UTF-8.

    Guessing would be worse: the router takes `%zz` and `%ff` literally, and `DELETE /v1/sessions/%ff` would
    hit the session of that name.
    """
    if _BROKEN_ESCAPE.search(raw):
        raise NotReadable("A '%' in the URL must be followed by two hex digits.")
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise NotReadable("The escaped bytes in the URL are not UTF-8.") from None


def check_query(request: web.Request, known: Collection[str] = ()) -> None:
    """Raise FieldError for an unknown or repeated parameter."""
    if not request.query_string:
        return
    seen = set()
    for name, _ in request.query.items():  # noqa: PERF102 - keys() gives each name once
        if name not in known:
            raise FieldError(name, f"unknown parameter; known are: {', '.join(known) or 'none'}")
        if name in seen:
            raise FieldError(name, "must appear only once")
        seen.add(name)


def flag(request: web.Request, name: str) -> bool:
    """A parameter that is `true` or `false`, false if absent. Raises FieldError."""
    text = request.query.get(name, "false")
    if text not in ("true", "false"):
        raise FieldError(name, f"must be true or false, not {text[:40]!r}")
    return text == "true"


def limit_of(request: web.Request) -> int:
    """The parameter `limit`. Raises FieldError."""
    return number_parameter(request, "limit", LIMIT_DEFAULT, LIMIT_MAX)


def number_parameter(request: web.Request, name: str, default: int, most: int) -> int:
    """A parameter that is a whole number from 1 to `most`. Raises FieldError."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise FieldError(name, f"must be a whole number from 1 to {most}, not {text[:40]!r}")
    return int(text)


def instant_parameter(request: web.Request, name: str) -> int | None:
    """A parameter that is an instant, UTC ms. Raises FieldError."""
    text = request.query.get(name)
    return None if text is None else instant_ms(name, text)


def id_of(request: web.Request, number: int) -> MessageId:
    """The message id in the path, of the timeline `number`. Raises Problem: an invalid id names nothing."""
    try:
        message = parse_id(request.match_info["id"])
    except BadId as error:
        raise Problem("not-found", str(error)) from None
    other = id_node(message)
    if number != other <= NUMBER_MAX:
        raise Problem(
            "other-timeline",
            f"Message {id_text(message)} is of the timeline with store.number {other}; this is {number}.",
        )
    return message


async def whole_body(request: web.Request) -> bytes:
    """The body, unpacked if it was compressed. Raises NotReadable, Problem."""
    raw = await request.read()
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if not raw or encoding == "identity":
        return raw
    if UNPACKED not in request:
        try:
            work = partial(unpacked, raw, encoding, request.client_max_size)
            request[UNPACKED] = await request[UNPACKING](work)
        except TooLong:
            text = f"the body has more than {request.client_max_size} bytes after decompression"
            raise Problem("too-large", text) from None
    return request[UNPACKED]


async def json_of(request: web.Request) -> bytes:
    """A body with a JSON media type. Raises UnsupportedMedia, NotReadable, Problem."""
    check_json(request.headers.get("Content-Type", ""))
    return await whole_body(request)


async def body_of(request: web.Request, decoder: "msgspec.json.Decoder[Body]") -> Body:
    """The JSON body as the decoder's type. Raises UnsupportedMedia, NotReadable, FieldError."""
    return decoded(await json_of(request), decoder)
