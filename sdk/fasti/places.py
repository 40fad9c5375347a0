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
from datetime import timedelta
from typing import Literal

from .answers import Skipped, Undone
from .errors import Refused
from .transport import Transport
from .values import optional
from .wire import When, dumps, moment

Fate = Literal["dead", "drop"]
"""Fate of unfinished messages: dead letters, or dropped."""


class StillUndone(Refused):
    """The group or endpoint was not deleted: it has unfinished messages, and the call did not choose their
    fate."""

    @property
    def undone(self) -> Undone:
        """The unfinished messages."""
        return optional(Undone.of, (self.problem.raw or {}).get("undone")) or Undone()


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
    return Skipped.of((await transport.call("POST", f"{path}:skip", params=params, body=body)).object())
