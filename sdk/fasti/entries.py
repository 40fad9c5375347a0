"""The common part of `client.dead` and `client.retries`: a message with its session, group or endpoint.

One message may be listed for several groups and sessions: its id and its group name one entry. Entries are
chosen by ids or by a filter, and `dry_run` only counts them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from .answers import BulkResult
from .errors import BadArgument
from .names import items_of
from .ranges import selection
from .transport import PAGE_MAX, Transport
from .wire import Json, dumps

IDS_MAX = 1_000
"""Maximum number of ids in one request."""


class Entries:
    """Calls that list and change the entries of one path."""

    def __init__(self, transport: Transport, path: str, name: str) -> None:
        """`name`: of the list in an answer."""
        self._transport = transport
        self._path = path
        self._name = name

    def pages(
        self, chosen: Mapping[str, Any], *, page: int = PAGE_MAX, limit: int | None = None
    ) -> AsyncIterator[Json]:
        """The chosen ones, as the server has them."""
        return self._transport.pages(self._path, self._name, selection(chosen), page=page, limit=limit)

    async def count(self, chosen: Mapping[str, Any]) -> int:
        """Number of the selected ones."""
        params = {**selection(chosen), "limit": "1", "count": "true"}
        return int(
            (await self._transport.call("GET", self._path, params=params, timeout_s=0)).object()["count"]
        )

    async def change(
        self, verb: str, ids: Iterable[str] | None, body: Json, chosen: Mapping[str, Any]
    ) -> BulkResult:
        """Change by ids, of all groups or of one, or by a filter. Raises Refused, BadArgument."""
        found = selection(chosen)
        if ids is None:
            return await self._ask(verb, {**body, "filter": found})
        if not found.keys() <= {"group"}:
            raise BadArgument("ids", "or a filter must be given, not both; only `group` goes with ids")
        matched = changed = 0
        for some in _some(ids):
            one = await self._ask(verb, {**body, **found, "ids": some})
            matched, changed = matched + one.matched, changed + one.changed
        return BulkResult(matched, changed)

    async def _ask(self, verb: str, body: Json) -> BulkResult:
        answer = await self._transport.call(
            "POST", f"{self._path}:{verb}", body=dumps(body), repeatable=False, timeout_s=0
        )
        return BulkResult.of(answer.object())


def _some(ids: Iterable[str]) -> Iterator[list[str]]:
    """The ids in portions that fit one request."""
    rest = items_of("ids", ids)
    while some := list(islice(rest, IDS_MAX)):
        yield some
