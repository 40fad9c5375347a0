"""JSON answers, and errors of the write path as problems.

Exceptions of the write path become problems only here:

    Busy          429 over-quota, Retry-After: 1          StoreFailed   503 store-unavailable
    Refused       its own word: 429 over-quota, 422 idempotency-mismatch, 422 refused
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from aiohttp import web

from shards.dedupe import BATCH_MISMATCH, Refused
from shards.errors import LogFull, StoreFailed
from shards.state import CANCELLED
from shards.upsert import NOT_DEBOUNCED

from ..engine.writer import Ask, Busy, Decide
from .differing import other_field
from .problems import Problem, problem_of_store

RETRY_AFTER = {"Retry-After": "1"}
MISMATCH = "idempotency-mismatch"
FIELD_OF = {
    MISMATCH: "key",
    NOT_DEBOUNCED: "key",
    "late": "deliver_at",
    "alerts": "alerts",
    **{field: field for field in ("id", "deliver_to", "concurrency", "end", "cron", "every", "rrule")},
}
"""The field to name for a refusal of the writer."""

WRITE_ERRORS = (Refused, Busy, StoreFailed)

SERVER = "fasti"
"""The `Server` header. It reveals no library and no version."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def name_server(_: web.Request, answer: web.StreamResponse) -> None:
    """Handler for `on_response_prepare`."""
    answer.headers["Server"] = SERVER


def json_answer(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def put_answer(body: object, *, is_new: bool, where: str) -> web.Response:
    """The answer to a PUT. `where`: the path of the resource."""
    answer = json_answer(body, 201 if is_new else 200)
    if is_new:
        answer.headers["Location"] = where
    return answer


def raw_answer(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """An answer of already encoded JSON."""
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


async def answer_of(ask: Ask, decide: Decide, *, cost: int = 1) -> Any:
    """The writer's answer to `decide`, once it is durable. Raises Problem, also one that is the answer."""
    with refusals():
        answer = await ask(decide, cost=cost)
    if isinstance(answer, Problem):
        raise answer
    return answer


@contextmanager
def refusals() -> Iterator[None]:
    """Context that turns errors of the write path into problems. Raises Problem."""
    try:
        yield
    except WRITE_ERRORS as error:
        raise problem_of_write(error) from None


def problem_of_write(error: Refused | Busy | StoreFailed) -> Problem:
    """An error of the write path as a problem."""
    match error:
        case Refused():
            return refusal(error)
        case Busy():
            return Problem("over-quota", str(error), headers=RETRY_AFTER)
        case LogFull():
            return Problem("store-unavailable", f"{error}.", headers=RETRY_AFTER)
    return problem_of_store(error)


def refusal(error: Refused, line: int | None = None) -> Problem:
    """The problem for a refused draft; `line`: its line in a batch."""
    if error.why in ("over-quota", "result-quota"):
        return Problem(error.why, str(error), headers=RETRY_AFTER)
    if error.why == BATCH_MISMATCH:
        return Problem(MISMATCH, str(error), errors=[{"field": "key", "detail": str(error)}])
    slug = error.why if error.why in ("unreadable", "wrong-state", "forbidden") else "refused"
    detail, more = str(error), dict[str, Any]()
    if error.why in (MISMATCH, NOT_DEBOUNCED):
        slug = MISMATCH
        detail, more = _mismatch(error)
    where: dict[str, object] = {} if line is None else {"line": line}
    where |= {"field": FIELD_OF.get(error.why, ""), "detail": detail}
    return Problem(slug, detail, errors=[where], **more)


def _mismatch(error: Refused) -> tuple[str, dict[str, Any]]:
    """Detail and members of an idempotency mismatch: what differs from the message that has the key."""
    field, is_cancelled = other_field(error.other, error.wanted)
    difference = f"another {field}" if field else "a different request"
    state = ", and its message is cancelled" if is_cancelled else ""
    detail = f"the key was used with {difference}{state}; key_only=true takes both for the same message"
    if error.why == NOT_DEBOUNCED:
        detail = str(error)
    more = {"differs": field, "state": CANCELLED if is_cancelled else ""}
    return detail, {name: value for name, value in more.items() if value}
