"""`client.retries`: messages that a session, group or endpoint has failed to handle and will be sent again.

    async for retry in c.retries.list(group="workers"):
        print(retry.id, retry.retry_at, retry.reason)
    await c.retries.try_(group="workers", reason="db is down")

They are listed and changed as dead letters are (`client.dead`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Unpack

from .answers import BulkResult, WaitingRetry
from .entries import Entries
from .options import RetrySelection
from .signatures import check, unfolded
from .transport import PAGE_MAX, Transport
from .wire import Json, Span, When, due

_OPTIONS = RetrySelection.__optional_keys__


@unfolded
class Retries:
    """Calls on `/v1/retries`."""

    def __init__(self, transport: Transport) -> None:
        self._entries = Entries(transport, "/v1/retries", "retries")

    async def list(
        self, *, limit: int | None = None, page: int = PAGE_MAX, **chosen: Unpack[RetrySelection]
    ) -> AsyncIterator[WaitingRetry]:
        """Retries, ordered by the time of their next try. `limit` bounds the whole listing."""
        check(_OPTIONS, chosen)
        async for found in self._entries.pages(chosen, page=page, limit=limit):
            yield WaitingRetry.of(found)

    async def count(self, **chosen: Unpack[RetrySelection]) -> int:
        """Their exact number."""
        check(_OPTIONS, chosen)
        return await self._entries.count(chosen)

    async def get(self, message_id: str) -> tuple[WaitingRetry, ...]:
        """Retries of one message, one for each session or group that will try it again; may be empty."""
        return tuple([found async for found in self.list(id=message_id)])

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
        return await self._change("try", ids, {**due(deliver_at, deliver_in), "dry_run": dry_run}, **chosen)

    async def bury(
        self,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        **chosen: Unpack[RetrySelection],
    ) -> BulkResult:
        """Turn them into dead letters. Selection, errors: as `try_`."""
        return await self._change("bury", ids, {"dry_run": dry_run}, **chosen)

    async def drop(
        self,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        **chosen: Unpack[RetrySelection],
    ) -> BulkResult:
        """Delete them: that session or group does not get them again. Selection, errors: as `try_`."""
        return await self._change("drop", ids, {"dry_run": dry_run}, **chosen)

    async def _change(
        self, verb: str, ids: Iterable[str] | None, body: Json, **chosen: Unpack[RetrySelection]
    ) -> BulkResult:
        check(_OPTIONS, chosen)
        return await self._entries.change(verb, ids, body, chosen)
