"""`client.dead`: messages that a session, group or endpoint has given up.

    async for letter in c.dead.list(group="workers"):
        print(letter.id, letter.reason, letter.tries)
    await c.dead.requeue(group="workers", delay=timedelta(minutes=5))

A message that two groups have given up is there twice: its id and its group name one. To requeue is to have
it sent again, under its id, to that session or group alone, or to another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Unpack

from .answers import BulkResult, DeadLetter
from .entries import Entries
from .errors import Refused, renamed
from .options import DeadSelection
from .signatures import check, unfolded
from .transport import PAGE_MAX, Transport
from .wire import DUE_NAMES, Json, Span, span

_OPTIONS = DeadSelection.__optional_keys__


@unfolded
class Dead:
    """Calls on `/v1/dead`."""

    def __init__(self, transport: Transport) -> None:
        self._entries = Entries(transport, "/v1/dead", "messages")

    async def list(
        self,
        *,
        limit: int | None = None,
        page: int = PAGE_MAX,
        **chosen: Unpack[DeadSelection],
    ) -> AsyncIterator[DeadLetter]:
        """Dead letters, ordered by the time at which they died. `limit` bounds the whole listing."""
        check(_OPTIONS, chosen)
        async for found in self._entries.pages(chosen, page=page, limit=limit):
            yield DeadLetter.of(found)

    async def count(self, **chosen: Unpack[DeadSelection]) -> int:
        """Their exact number."""
        check(_OPTIONS, chosen)
        return await self._entries.count(chosen)

    async def get(self, message_id: str) -> tuple[DeadLetter, ...]:
        """Dead letters of one message, one for each session or group that gave it up; may be empty."""
        return tuple([DeadLetter.of(found) async for found in self._entries.pages({"id": message_id})])

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
        check(_OPTIONS, chosen)
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
        check(_OPTIONS, chosen)
        return await self._entries.change("drop", ids, {"dry_run": dry_run}, chosen)
