"""The common part of `client.dead` and `client.retries`: a message with its session, group or endpoint.

One message may be listed for several groups and sessions: its id and its group name one entry. Entries are
chosen by ids or by a filter, and `dry_run` only counts them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Self

from .errors import BadArgument
from .names import items_of
from .ranges import BulkResult, selection
from .transport import PAGE_MAX, Transport, rows_of
from .wire import Json, dumps, get_headers, get_payload, parse_instant

IDS_MAX = 1_000
"""Maximum number of ids in one request."""


@dataclass(frozen=True, slots=True)
class Try:
    """A delivery attempt that began `at`, to the client or endpoint `by`, with its outcome and duration."""

    at: datetime
    by: str
    outcome: str
    reason: str
    seconds: float | None

    @classmethod
    def of(cls, said: Json) -> Self:
        return cls(
            at=parse_instant(said["at"]),
            by=str(said.get("by") or ""),
            outcome=str(said.get("outcome") or ""),
            reason=str(said.get("reason") or ""),
            seconds=seconds if isinstance(seconds := said.get("seconds"), int | float) else None,
        )


def tries_of(said: Mapping[str, Any]) -> tuple[Try, ...]:
    """The last attempts, at most 20, oldest first."""
    return tuple(map(Try.of, rows_of(said, "tries"))) if said.get("tries") else ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A message kept for a group or session. `group`: the group or client id; `attempts`: all deliveries to
    it.

    `subscription`: `$share/{group}/{filter}` of a group; None: a session. `reason`: why the last delivery
    failed.
    """

    id: str
    topic: str
    group: str
    subscription: str | None
    attempts: int
    reason: str
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Json, **more: Any) -> Self:
        """`more`: fields of the subclass."""
        return cls(
            id=said["id"],
            topic=said["topic"],
            group=said["group"],
            subscription=said.get("subscription"),
            attempts=int(said["attempts"]),
            reason=str(said["reason"]),
            raw=said,
            **more,
        )

    @property
    def payload(self) -> Any:
        """bytes, str or a JSON value, as it was given."""
        return get_payload(self.raw)

    @property
    def headers(self) -> Mapping[str, str]:
        return get_headers(self.raw)

    @property
    def tries(self) -> tuple[Try, ...]:
        """The last deliveries, at most 20."""
        return tries_of(self.raw)


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
        said = answer.object()
        return BulkResult(said["matched"], said["changed"])


def _some(ids: Iterable[str]) -> Iterator[list[str]]:
    """The ids in portions that fit one request."""
    rest = items_of("ids", ids)
    while some := list(islice(rest, IDS_MAX)):
        yield some
