"""Description of a call beside its route: `@described` above the handler.

    @described("A slice and its shards", ADMIN, problems=("not-found",))
    async def get(self, request: web.Request) -> shapes.SliceDetail: ...

A handler returns the answer's body (200) or None (204); one that returns a response says what it `Gives`.
`/openapi.json` is generated from it (openapi.py), and the query is checked against it before the handler
runs: undescribed parameters are refused. The scope is what a key needs (access.py): one of the keys' scopes,
ANY for every key, OPEN without a key. Problems that follow from the rest are added: a call with a body can
find it unreadable, too large, of the wrong type, or refuse it.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from aiohttp import web

from ..auth.rights import ADMIN as ADMIN
from ..auth.rights import READ as READ
from ..auth.rights import SCHEDULE as SCHEDULE
from .answers import json_answer
from .requests import check_escapes, check_query
from .values.scalars import Query

JSON, NDJSON = "application/json", "application/x-ndjson"
OPEN, ANY = "", "any"
"""Scopes beside those of keys: anyone, or anyone with a key."""
WRITES = ("over-quota", "store-unavailable")
"""Problems of every call that changes something."""
_READS = ("not-readable", "too-large", "unsupported-media-type", "refused", "over-quota")
_ASKS = ("not-readable", "refused")
_GUARDED = ("unauthorized", "forbidden", "over-quota")
_ENTRY = "_described_as"

R = TypeVar("R")
Method = Callable[[R, web.Request], Awaitable[Any]]
Handler = Callable[[R, web.Request], Awaitable[web.StreamResponse]]


class Gives(NamedTuple):
    """An answer other than a problem. `body`: the type of its JSON; None: empty."""

    status: int
    body: Any = None
    headers: Mapping[str, Any] = {}
    """Name -> type; always present."""
    description: str = ""
    media: str = JSON


class Call(NamedTuple):
    """A described call."""

    summary: str
    scope: str
    gives: tuple[Gives, ...]
    query: Query | None
    body: Any
    example: Any
    as_lines: bool
    headers: Query
    problems: tuple[str, ...]
    needs_body: bool


def described(
    summary: str,
    scope: str,
    *gives: Gives,
    query: Query | None = {},  # noqa: B006 - read only
    body: Any = None,
    example: Any = None,
    as_lines: bool = False,
    headers: Query = {},  # noqa: B006
    problems: tuple[str, ...] = (),
    needs_body: bool = True,
) -> Callable[[Method[R]], Handler[R]]:
    """Describe a handler, and check the URL against it. Calling it raises NotReadable and FieldError.

    `gives`: where the type that the handler returns does not say it. `query` None: not checked. `example`: of
    the body, as JSON. `as_lines`: the body, a list, can be NDJSON too. `headers`: the request's. `problems`:
    slugs. `needs_body`: the body is required.
    """
    derived = (
        *(_GUARDED if scope else ()),
        *(_READS if body is not None else ()),
        *(_ASKS if query is not None else ()),
    )
    slugs = tuple(dict.fromkeys((*problems, *derived)))

    def mark(handler: Method[R]) -> Handler[R]:
        shape = handler.__annotations__["return"]
        given = gives or (Gives(204) if shape is None else Gives(200, shape),)

        @wraps(handler)
        async def checked(self: R, request: web.Request) -> web.StreamResponse:
            if "%" in request.raw_path:
                check_escapes(request.raw_path)
            if query is not None:
                check_query(request, query)
            answer = await handler(self, request)
            if isinstance(answer, web.StreamResponse):
                return answer
            return web.Response(status=204) if answer is None else json_answer(answer)

        entry = Call(summary, scope, given, query, body, example, as_lines, headers, slugs, needs_body)
        setattr(checked, _ENTRY, entry)
        return checked

    return mark


def call_of(handler: object) -> Call | None:
    """The description of a route's handler."""
    entry = getattr(handler, _ENTRY, None)
    return entry if isinstance(entry, Call) else None
