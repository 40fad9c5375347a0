"""`client.dead`, `client.retries`: what a session, group or endpoint has given up, or failed to handle.

    async for letter in c.dead.list(group="workers"):
        print(letter.id, letter.reason, letter.tries)
    await c.dead.requeue(group="workers", delay=timedelta(minutes=5))

    async for retry in c.retries.list(group="workers"):
        print(retry.id, retry.retry_at, retry.reason)
    await c.retries.try_(group="workers", reason="db is down")

To requeue a dead letter is to have it sent again, under its id, to that session or group alone, or to another
one. A retry is sent again anyway. One message may be listed for several groups and sessions: its id and its
group name one entry. Entries are chosen by ids or by a filter, and `dry_run` only counts them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar, Unpack

from .answers import BulkResult, DeadLetter, WaitingRetry
from .errors import BadArgument, Refused, renamed
from .names import items_of
from .options import DeadSelection, RetrySelection
from .ranges import selection
from .signatures import check, unfolded
from .transport import PAGE_MAX, Transport
from .wire import DUE_NAMES, Json, Span, When, due, span

IDS_MAX = 1_000
"""Maximum number of ids in one request."""
T = TypeVar("T")


class Entries(Generic[T]):
    """The entries of one path. Calls raise TypeError for what does not select them."""

    def __init__(
        self, transport: Transport, path: str, name: str, read: Callable[[Json], T], kind: Any
    ) -> None:
        """`name`: of the list in an answer; `kind`: of `fasti.options`, selects entries."""
        self._transport = transport
        self._path = path
        self._name = name
        self._read = read
        self._options: frozenset[str] = kind.__optional_keys__

    async def list(
        self, chosen: Mapping[str, Any], page: int = PAGE_MAX, limit: int | None = None
    ) -> AsyncIterator[T]:
        """The chosen ones."""
        params = self._selected(chosen)
        async for found in self._transport.pages(self._path, self._name, params, page=page, limit=limit):
            yield self._read(found)

    async def get(self, message_id: str) -> tuple[T, ...]:
        """Those of one message."""
        return tuple([found async for found in self.list({"id": message_id})])

    async def count(self, chosen: Mapping[str, Any]) -> int:
        """Number of the chosen ones."""
        params = {**self._selected(chosen), "limit": "1", "count": "true"}
        return int((await self._transport.ask("GET", self._path, params=params, timeout_s=0))["count"])

    async def change(
        self, verb: str, ids: Iterable[str] | None, body: Json, chosen: Mapping[str, Any]
    ) -> BulkResult:
        """Change by ids, of all groups or of one, or by a filter. Raises Refused, BadArgument."""
        found = self._selected(chosen)
        if ids is None:
            return await self._ask(verb, {**body, "filter": found})
        if not found.keys() <= {"group"}:
            raise BadArgument("ids", "or a filter must be given, not both; only `group` goes with ids")
        matched = changed = 0
        for some in _some(ids):
            one = await self._ask(verb, {**body, **found, "ids": some})
            matched, changed = matched + one.matched, changed + one.changed
        return BulkResult(matched, changed)

    def _selected(self, chosen: Mapping[str, Any]) -> dict[str, str]:
        check(self._options, chosen)
        return selection(chosen)

    async def _ask(self, verb: str, body: Json) -> BulkResult:
        path = f"{self._path}:{verb}"
        return BulkResult.of(await self._transport.ask("POST", path, body, repeatable=False, timeout_s=0))


def _some(ids: Iterable[str]) -> Iterator[list[str]]:
    """The ids in portions that fit one request."""
    rest = items_of("ids", ids)
    while some := list(islice(rest, IDS_MAX)):
        yield some


@unfolded
class Dead:
    """Calls on `/v1/dead`."""

    def __init__(self, transport: Transport) -> None:
        self._entries = Entries(transport, "/v1/dead", "messages", DeadLetter.of, DeadSelection)

    async def list(
        self, *, limit: int | None = None, page: int = PAGE_MAX, **chosen: Unpack[DeadSelection]
    ) -> AsyncIterator[DeadLetter]:
        """Dead letters, ordered by the time at which they died. `limit` bounds the whole listing."""
        async for found in self._entries.list(chosen, page, limit):
            yield found

    async def count(self, **chosen: Unpack[DeadSelection]) -> int:
        """Their exact number."""
        return await self._entries.count(chosen)

    async def get(self, message_id: str) -> tuple[DeadLetter, ...]:
        """Dead letters of one message, one for each session or group that gave it up; may be empty."""
        return await self._entries.get(message_id)

    async def requeue(
        self,
        ids: Iterable[str] | None = None,
        *,
        delay: Span | None = None,
        to: str | None = None,
        dry_run: bool = False,
        **chosen: Unpack[DeadSelection],
    ) -> BulkResult:
        """Send dead letters again, each to the session or group that gave it up: at once, or after `delay`.

        Give `ids` (of all groups, or of `group`), or at least one of the others. `to`: another place gets
        them, `$share/{group}/{filter}` or an endpoint's name. `changed` leaves out those whose session or
        group no longer exists. Raises Refused; not repeated when the connection is lost.
        """
        body: Json = {} if delay is None else {"deliver_in": span(delay)}
        if to is not None:
            body["to"] = to
        try:
            return await self._entries.change("requeue", ids, {**body, "dry_run": dry_run}, chosen)
        except Refused as error:
            raise renamed(error, DUE_NAMES) from None

    async def drop(
        self,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        **chosen: Unpack[DeadSelection],
    ) -> BulkResult:
        """Delete them. Chosen as for `requeue`. Raises Refused; not repeated when the connection is lost."""
        return await self._entries.change("drop", ids, {"dry_run": dry_run}, chosen)


@unfolded
class Retries:
    """Calls on `/v1/retries`."""

    def __init__(self, transport: Transport) -> None:
        self._entries = Entries(transport, "/v1/retries", "retries", WaitingRetry.of, RetrySelection)

    async def list(
        self, *, limit: int | None = None, page: int = PAGE_MAX, **chosen: Unpack[RetrySelection]
    ) -> AsyncIterator[WaitingRetry]:
        """Retries, ordered by the time of their next try. `limit` bounds the whole listing."""
        async for found in self._entries.list(chosen, page, limit):
            yield found

    async def count(self, **chosen: Unpack[RetrySelection]) -> int:
        """Their exact number."""
        return await self._entries.count(chosen)

    async def get(self, message_id: str) -> tuple[WaitingRetry, ...]:
        """Retries of one message, one for each session or group that will try it again; may be empty."""
        return await self._entries.get(message_id)

    async def try_(
        self,
        ids: Iterable[str] | None = None,
        *,
        deliver_in: Span | None = None,
        deliver_at: When | None = None,
        dry_run: bool = False,
        **chosen: Unpack[RetrySelection],
    ) -> BulkResult:
        """Move their next attempt to now, `deliver_in` from now, or `deliver_at`.

        Give `ids` (of all groups, or of `group`), or at least one of the others. Raises Refused; not repeated
        when the connection is lost.
        """
        body = {**due(deliver_at, deliver_in), "dry_run": dry_run}
        return await self._entries.change("try", ids, body, chosen)

    async def bury(
        self,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        **chosen: Unpack[RetrySelection],
    ) -> BulkResult:
        """Turn them into dead letters. Selection, errors: as `try_`."""
        return await self._entries.change("bury", ids, {"dry_run": dry_run}, chosen)

    async def drop(
        self,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        **chosen: Unpack[RetrySelection],
    ) -> BulkResult:
        """Delete them: that session or group does not get them again. Selection, errors: as `try_`."""
        return await self._entries.change("drop", ids, {"dry_run": dry_run}, chosen)
