"""Shared by sessions, groups and endpoints: each has a read position on the timeline, and may be behind.

    try:
        await c.groups.delete("workers")
    except fasti.StillUndone as left:
        print(left.undone.lag, left.undone.retries)
        await c.groups.delete("workers", undone="dead")

`Undone` counts unfinished messages. `delete` and `skip` choose their fate: "dead" makes them dead letters,
"drop" drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Self

from .errors import Refused
from .transport import Transport
from .wire import Json, When, dumps, moment, parse_instant, parsed

Fate = Literal["dead", "drop"]
"""Fate of unfinished messages: dead letters, or dropped."""


@dataclass(frozen=True, slots=True)
class Undone:
    """Unfinished messages of a place.

    `lag`: due and not read; `in_flight`: sent or leased, and not acked; `retries`: waiting for their next
    try, the first at `next_retry_at`. `oldest_at`: due of the oldest of all these.
    """

    lag: int
    in_flight: int
    retries: int
    next_retry_at: datetime | None = None
    oldest_at: datetime | None = None

    @classmethod
    def of(cls, said: Json) -> Self:
        return cls(
            lag=int(said.get("lag") or 0),
            in_flight=int(said.get("in_flight") or 0),
            retries=int(said.get("retries") or 0),
            next_retry_at=parsed(said.get("next_retry_at")),
            oldest_at=parsed(said.get("oldest_at")),
        )

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.lag or self.in_flight or self.retries)

    def __str__(self) -> str:
        return f"{self.lag:,} unread, {self.in_flight:,} in flight, {self.retries:,} to be tried again"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A place was moved forward from `start` to `end`; `undone`: its unfinished messages before."""

    start: datetime
    end: datetime
    undone: Undone
    raw: Mapping[str, Any] = field(repr=False)


class StillUndone(Refused):
    """The group or endpoint was not deleted: it has unfinished messages, and the call did not choose their
    fate."""

    @property
    def undone(self) -> Undone:
        """The unfinished messages."""
        return undone_of(dict(self.problem.raw or {})) or Undone(0, 0, 0)


def undone_of(said: Json) -> Undone | None:
    """Unfinished messages of a listed place; None: not in the answer."""
    found = said.get("undone")
    return Undone.of(found) if isinstance(found, dict) else None


def expiry_of(said: Json) -> timedelta | None:
    """How long a place is kept without members; None: until it is deleted."""
    found = said.get("expiry")
    return timedelta(seconds=found) if isinstance(found, (int, float)) and found else None


async def delete(transport: Transport, path: str, params: Mapping[str, str], undone: Fate | None) -> None:
    """Delete a group or endpoint. Raises NotFound, StillUndone."""
    asked = dict(params) if undone is None else {**params, "undone": undone}
    try:
        await transport.call("DELETE", path, params=asked)
    except Refused as error:
        if error.slug != "undone":
            raise
        raise StillUndone(str(error), problem=error.problem) from None


async def skip(
    transport: Transport, path: str, params: Mapping[str, str], to: When | timedelta, undone: Fate
) -> Skipped:
    """Move a place forward. Raises NotFound, Refused."""
    body = dumps({"to": moment(to, "to"), "undone": undone})
    said = (await transport.call("POST", f"{path}:skip", params=params, body=body)).object()
    start, end = parse_instant(said["from"]), parse_instant(said["to"])
    return Skipped(start, end, Undone.of(said["undone"]), said)
