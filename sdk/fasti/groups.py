"""`client.groups`: shared subscriptions, each with its own read position.

    await c.groups.put("workers", "jobs/#", max_attempts=5, backoff=["1s", "30s", "5m"])
    await c.groups.pause("workers")

A group is there from its first member on, or from `put`, and stays until `delete`, if no `expiry` is said.
One name may have groups for several filters: what is said of the name alone is said of all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Unpack

from .answers import Group, OrderingKey, Skipped
from .names import check_group, items_of
from .options import GroupOptions
from .places import Fate, PlaceCalls
from .signatures import check, unfolded
from .transport import Calls, quoted
from .values import rows_of
from .wire import Json, Spell, When, as_is, span, spelled

TERMS: Mapping[str, Spell] = {
    **dict.fromkeys(("expiry", "ack_timeout", "keep", "result_ttl"), span),
    **dict.fromkeys(("max_attempts", "rate", "order", "on_dead", "per_key", "fair", "alerts"), as_is),
    "backoff": lambda spans: [span(each) for each in items_of("backoff", spans)],
}
"""The field names of a group's options."""


@unfolded
class Groups(Calls):
    """Calls on `/v1/groups`."""

    async def list(self) -> AsyncIterator[Group]:
        """All groups."""
        async for found in self._transport.pages("/v1/groups", "groups"):
            yield Group.of(found)

    async def get(self, name: str) -> tuple[Group, ...]:
        """The groups of one name, one for each filter. Raises NotFound."""
        return _groups(await self._transport.ask("GET", _path(name)))

    async def put(self, name: str, filter: str, **options: Unpack[GroupOptions]) -> Group:
        """Create the group before its first member joins, starting from now, or change its options.

        What is left out is the server's default again. Raises Refused.
        """
        check(GroupOptions.__optional_keys__, options)
        body = {"filter": filter, **spelled(TERMS, options)}
        return Group.of(await self._transport.ask("PUT", _path(name), body))

    async def delete(self, name: str, filter: str | None = None, *, undone: Fate | None = None) -> None:
        """Delete the group; its members receive nothing more. Raises NotFound.

        Raises StillUndone for a group that has something undone, unless `undone` says what becomes of it:
        "dead" or "drop".
        """
        await self._at(name, filter).delete(undone)

    async def pause(self, name: str, filter: str | None = None) -> tuple[Group, ...]:
        """Pause the group, also over restarts; it keeps its read position. Raises NotFound."""
        return _groups(await self._at(name, filter).ask("pause"))

    async def resume(self, name: str, filter: str | None = None) -> tuple[Group, ...]:
        """Resume at the kept read position. Raises NotFound."""
        return _groups(await self._at(name, filter).ask("resume"))

    async def replay(
        self, name: str, since: When | timedelta, filter: str | None = None
    ) -> tuple[Group, ...]:
        """Set the read position back to an instant, or by a duration. Raises NotFound, Refused."""
        return _groups(await self._at(name, filter).replay(since))

    async def skip(
        self,
        name: str,
        to: When | timedelta = "now",
        undone: Fate = "dead",
        filter: str | None = None,
    ) -> Skipped:
        """Skip the backlog: continue at `to`, an instant or a duration back. Raises NotFound, Refused.

        `undone`: what becomes of what is left out: "dead" letters, or "drop".
        """
        return await self._at(name, filter).skip(to, undone)

    async def keys(
        self, name: str, filter: str | None = None, *, limit: int | None = None
    ) -> AsyncIterator[OrderingKey]:
        """Ordering keys that are behind or in trouble, the one with the most waiting messages first.

        Raises NotFound.
        """
        async for found in self._at(name, filter).keys(limit):
            yield found

    async def hold(self, name: str, key: str, filter: str | None = None) -> tuple[OrderingKey, ...]:
        """Deliver nothing more of an ordering key until `release`. Raises NotFound, Refused."""
        return await self._at(name, filter).change(key, "hold")

    async def release(self, name: str, key: str, filter: str | None = None) -> tuple[OrderingKey, ...]:
        """Let a held ordering key go on, whether by `hold` or by a dead letter. Raises NotFound, Refused."""
        return await self._at(name, filter).change(key, "release")

    def _at(self, name: str, topic_filter: str | None) -> PlaceCalls:
        return PlaceCalls(self._transport, _path(name), topic_filter)


def _groups(answer: Json) -> tuple[Group, ...]:
    return tuple(Group.of(each) for each in rows_of(answer, "groups"))


def _path(name: str) -> str:
    check_group("name", name)
    return f"/v1/groups/{quoted(name)}"
