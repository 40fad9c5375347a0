"""Shared by sessions, groups and endpoints: each has a read position on the timeline, and may be behind.

    async for key in c.groups.keys("workers"):  # ordering keys that are behind or in trouble
        print(key.key, key.lag, key.held)

    try:
        await c.groups.delete("workers")
    except fasti.StillUndone as left:
        print(left.undone.lag, left.undone.retries)
        await c.groups.delete("workers", undone="dead")

`Undone` counts unfinished messages. `delete` and `skip` choose their fate: "dead" makes them dead letters,
"drop" drops them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Literal

from .answers import OrderingKey, Skipped, Undone
from .errors import Refused
from .transport import Transport, quoted
from .values import optional, rows_of
from .wire import Json, When, moment

Fate = Literal["dead", "drop"]
"""Fate of unfinished messages: dead letters, or dropped."""


class StillUndone(Refused):
    """The group or endpoint was not deleted: it has unfinished messages, and the call did not choose their
    fate."""

    @property
    def undone(self) -> Undone:
        """The unfinished messages."""
        return optional(Undone.of, (self.problem.raw or {}).get("undone")) or Undone()


class PlaceCalls:
    """A place, by its path. `topic_filter`: which one of several."""

    def __init__(self, transport: Transport, path: str, topic_filter: str | None = None) -> None:
        self._transport = transport
        self._path = path
        self._params = {} if topic_filter is None else {"filter": topic_filter}

    async def ask(self, verb: str, body: Json | None = None) -> Json:
        """Change it; the answer. Raises NotFound, Refused."""
        return await self._transport.ask("POST", f"{self._path}:{verb}", body, params=self._params)

    async def replay(self, since: When | timedelta) -> Json:
        """Set it back. Raises NotFound, Refused."""
        return await self.ask("replay", {"from": moment(since)})

    async def skip(self, to: When | timedelta, undone: Fate) -> Skipped:
        """Move it forward. Raises NotFound, Refused."""
        return Skipped.of(await self.ask("skip", {"to": moment(to, "to"), "undone": undone}))

    async def delete(self, undone: Fate | None) -> None:
        """Raises NotFound, StillUndone."""
        params = self._params if undone is None else {**self._params, "undone": undone}
        try:
            await self._transport.call("DELETE", self._path, params=params)
        except Refused as error:
            if error.slug != "undone":
                raise
            raise StillUndone(str(error), problem=error.problem) from None

    async def keys(self, limit: int | None) -> AsyncIterator[OrderingKey]:
        """Its ordering keys, the one with the most waiting messages first."""
        async for found in self._transport.pages(f"{self._path}/keys", "keys", self._params, limit=limit):
            yield OrderingKey.of(found)

    async def change(self, key: str, verb: str) -> tuple[OrderingKey, ...]:
        """Hold or release a key; what it is then, if it is behind or in trouble."""
        path = f"{self._path}/keys/{quoted(key)}:{verb}"
        answer = await self._transport.ask("POST", path, params=self._params)
        return tuple(map(OrderingKey.of, rows_of(answer, "keys")))
