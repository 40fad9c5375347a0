"""`client.dead`: messages that a session or group was sent too often and has not acked.

    async for letter in c.dead.list(group="workers"):
        print(letter.id, letter.reason)
    await c.dead.requeue(group="workers", delay=timedelta(minutes=5))

A message that two groups have given up is there twice: its id and its group name one. To requeue is to have
it sent again, under its id, to that session or group alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Self, Unpack

from .options import DeadSelection
from .ranges import BulkResult
from .transport import PAGE_MAX, Transport
from .wire import Json, Span, When, dumps, get_headers, get_payload, instant, parse_instant, span

IDS_MAX = 1_000
"""Ids in one request."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up. `group`: the group or client id; `attempts`: deliveries to it, in all.

    `subscription`: of a group `$share/{group}/{filter}`; None: it is a session's.
    """

    id: str
    topic: str
    group: str
    subscription: str | None
    attempts: int
    reason: str
    died_at: datetime
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Json) -> Self:
        return cls(
            id=said["id"],
            topic=said["topic"],
            group=said["group"],
            subscription=said.get("subscription"),
            attempts=int(said["attempts"]),
            reason=str(said["reason"]),
            died_at=parse_instant(said["died_at"]),
            raw=said,
        )

    @property
    def payload(self) -> Any:
        """bytes, str or a JSON value, as it was given."""
        return get_payload(self.raw)

    @property
    def headers(self) -> Mapping[str, str]:
        return get_headers(self.raw)


class Dead:
    """Calls on `/v1/dead`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(
        self,
        *,
        reason: str | None = None,
        limit: int | None = None,
        page: int = PAGE_MAX,
        **chosen: Unpack[DeadSelection],
    ) -> AsyncIterator[DeadLetter]:
        """Dead letters in the order of dying. `reason`: part of it; `limit` bounds the whole listing."""
        params = _selection(**chosen)
        if reason is not None:
            params["reason"] = reason
        async for found in self._transport.pages("/v1/dead", "messages", params, page=page, limit=limit):
            yield DeadLetter.of(found)

    async def get(self, message_id: str) -> tuple[DeadLetter, ...]:
        """Those of one message, one for each session or group that has given it up; empty: none has."""
        pages = self._transport.pages("/v1/dead", "messages", {"id": message_id})
        return tuple([DeadLetter.of(found) async for found in pages])

    async def requeue(
        self,
        ids: Iterable[str] | None = None,
        *,
        delay: Span | None = None,
        dry_run: bool = False,
        **chosen: Unpack[DeadSelection],
    ) -> BulkResult:
        """Have them sent again, each to the session or group that gave it up: at once, or after `delay`.

        Give `ids` (of all groups, or of `group`), or at least one of the others. `changed` leaves out those
        whose session or group is there no more. Raises Refused; not repeated when the connection is lost.
        """
        body: Json = {} if delay is None else {"deliver_in": span(delay)}
        return await self._change("requeue", ids, {**body, "dry_run": dry_run}, **chosen)

    async def drop(
        self,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        **chosen: Unpack[DeadSelection],
    ) -> BulkResult:
        """Forget them. Chosen as for `requeue`. Raises Refused; not repeated when the connection is lost."""
        return await self._change("drop", ids, {"dry_run": dry_run}, **chosen)

    async def _change(
        self, verb: str, ids: Iterable[str] | None, body: Json, **chosen: Unpack[DeadSelection]
    ) -> BulkResult:
        found = _selection(**chosen)
        if ids is None:
            return await self._ask(verb, {**body, "filter": found})
        if not found.keys() <= {"group"}:
            raise ValueError("give ids, or topic, died_from and died_to")
        matched = changed = 0
        for some in _some(ids):
            one = await self._ask(verb, {**body, **found, "ids": some})
            matched, changed = matched + one.matched, changed + one.changed
        return BulkResult(matched, changed)

    async def _ask(self, verb: str, body: Json) -> BulkResult:
        answer = await self._transport.call(
            "POST", f"/v1/dead:{verb}", body=dumps(body), repeatable=False, timeout_s=0
        )
        said = answer.object()
        return BulkResult(said["matched"], said["changed"])


def _some(ids: Iterable[str]) -> Iterator[list[str]]:
    """As many as one request takes."""
    rest = iter(ids)
    while some := list(islice(rest, IDS_MAX)):
        yield some


def _selection(
    group: str | None = None,
    topic: str | None = None,
    died_from: When | None = None,
    died_to: When | None = None,
) -> dict[str, str]:
    """The members that are given, as the server calls them."""
    found: dict[str, str] = {}
    if group is not None:
        found["group"] = group
    if topic is not None:
        found["topic"] = topic
    if died_from is not None:
        found["from"] = instant(died_from)
    if died_to is not None:
        found["to"] = instant(died_to)
    return found
