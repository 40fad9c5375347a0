"""What all routes share: the query and the body of a request read strictly, an answer made, a refusal told.

Strictly: a parameter that is not known is refused by name, because one that is silently not applied gives a
wrong answer that looks right. Every exception of the write path becomes a problem here and nowhere else:

    Busy          429 over-quota, Retry-After: 1          StoreFailed   503 store-unavailable
    Refused       its own word: 429 over-quota, 422 idempotency-mismatch, 422 refused
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from shards.dedupe import Refused
from shards.errors import StoreFailed
from timeline.position import BadId, MessageId, parse_id

from ..times import TimeError, parse_delay, parse_deliver_at
from ..writer import Ask, Busy, Decide
from .problems import Problem
from .values.bodies import UNREADABLE, FieldError, NotReadable, check_json, field_error, why_unreadable
from .values.scalars import LIMIT_DEFAULT, LIMIT_MAX

RETRY_AFTER = {"Retry-After": "1"}
_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
FIELD_OF = {"idempotency-mismatch": "key", "late": "deliver_at", "id": "id"}
"""The field to blame for what the writer refuses."""

WRITE_ERRORS = (Refused, Busy, StoreFailed)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body")


# -- the way out


def json_answer(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def raw_answer(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """JSON that is encoded already."""
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


async def asked(ask: Ask, decide: Decide, *, cost: int = 1) -> Any:
    """The writer's answer to `decide`, once it is durable. Raises Problem."""
    with refusals():
        return await ask(decide, cost=cost)


@contextmanager
def refusals() -> Iterator[None]:
    """What the write path raises, as problems. Raises Problem."""
    try:
        yield
    except WRITE_ERRORS as error:
        raise problem_of_write(error) from None


def problem_of_write(error: Refused | Busy | StoreFailed) -> Problem:
    """What the write path says instead of an answer."""
    match error:
        case Refused():
            return refusal(error)
        case Busy():
            return Problem("over-quota", str(error), headers=RETRY_AFTER)
    return Problem("store-unavailable", "nothing can be made durable at the moment", headers=RETRY_AFTER)


def refusal(error: Refused, line: int | None = None) -> Problem:
    """A draft that the writer refused; `line` says which of a batch."""
    if error.why == "over-quota":
        return Problem("over-quota", str(error), headers=RETRY_AFTER)
    slug = error.why if error.why in ("idempotency-mismatch", "unreadable") else "refused"
    where: dict[str, object] = {} if line is None else {"line": line}
    where |= {"field": FIELD_OF.get(error.why, ""), "detail": str(error)}
    return Problem(slug, str(error), errors=[where])


# -- the way in


def check_escapes(raw: str) -> None:
    """Raise NotReadable unless every percent sign in a path or query begins an escape, of UTF-8 in the end.

    Guessing would be worse: the router takes `%zz` and `%ff` for themselves, and `DELETE /v1/sessions/%ff`
    would hit the session that is called so.
    """
    if _BROKEN_ESCAPE.search(raw):
        raise NotReadable("a '%' in the URL is followed by two hex digits")
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise NotReadable("what is escaped in the URL is not UTF-8") from None


def check_query(request: web.Request, known: Collection[str] = ()) -> None:
    """Raise FieldError for a parameter that is not known here, or is given twice."""
    if not request.query_string:
        return
    seen = set()
    for name, _ in request.query.items():  # noqa: PERF102 - keys() gives each name once
        if name not in known:
            raise FieldError(name, f"is not a parameter here; there are: {', '.join(known) or 'none'}")
        if name in seen:
            raise FieldError(name, "is given twice")
        seen.add(name)


def flag(request: web.Request, name: str) -> bool:
    """A parameter that is `true` or `false`, false if absent. Raises FieldError."""
    text = request.query.get(name, "false")
    if text not in ("true", "false"):
        raise FieldError(name, f"must be true or false, not {text[:40]!r}")
    return text == "true"


def limit_of(request: web.Request) -> int:
    """The parameter `limit`. Raises FieldError."""
    text = request.query.get("limit")
    if text is None:
        return LIMIT_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= LIMIT_MAX):
        raise FieldError("limit", f"must be a whole number from 1 to {LIMIT_MAX}, not {text[:40]!r}")
    return int(text)


def instant_ms(text: str) -> int:
    """UTC ms of an instant in RFC 3339, or Unix ms in digits. Raises TimeError."""
    if text.isascii() and text.isdigit() and len(text) < 15:
        return int(text)
    return parse_deliver_at(text)


def delay_ms(field: str, value: str | float) -> int:
    """A duration, ms. Raises FieldError."""
    try:
        return parse_delay(value)
    except TimeError as error:
        raise FieldError(field, str(error)) from None


def instant_parameter(request: web.Request, name: str) -> int | None:
    """A parameter that is an instant, UTC ms. Raises FieldError."""
    text = request.query.get(name)
    if text is None:
        return None
    try:
        return instant_ms(text)
    except TimeError as error:
        raise FieldError(name, str(error)) from None


def id_of(request: web.Request) -> MessageId:
    """The message id in the path. Raises Problem: what is no id names nothing."""
    try:
        return parse_id(request.match_info["id"])
    except BadId as error:
        raise Problem("not-found", str(error)) from None


async def body_of(request: web.Request, decoder: "msgspec.json.Decoder[Body]") -> Body:
    """The JSON body as the decoder's type. Raises UnsupportedMedia, NotReadable, FieldError."""
    check_json(request.headers.get("Content-Type", ""))
    raw = await request.read()
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise field_error(error) from None
    except UNREADABLE as error:
        raise NotReadable(why_unreadable(error)) from None
