"""Ordering keys that are behind or in trouble, of a group or endpoint that orders.

async for key in c.groups.keys("workers"):
    print(key.key, key.lag, key.held)
await c.groups.hold("workers", "customer-17")
await c.groups.release("workers", "customer-17")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Self

from .transport import Transport, quoted
from .wire import Json, parsed


@dataclass(frozen=True, slots=True)
class OrderingKey:
    """An ordering key that is behind or in trouble.

    `lag`: messages that wait for the key, counted up to 1,000. `retry_at`: when the message that it waits for
    is tried again. `held`: by a "dead" letter, or by "hand". `id`: of the message that waits, or of the dead
    letter. `oldest_at`: due of the oldest message that is not in flight.
    """

    key: str
    filter: str
    lag: int
    in_flight: int
    raw: Mapping[str, Any] = field(repr=False)
    retry_at: datetime | None = None
    held: Literal["dead", "hand"] | None = None
    id: str | None = None
    oldest_at: datetime | None = None

    @classmethod
    def of(cls, said: Json) -> Self:
        return cls(
            key=said["key"],
            filter=str(said.get("filter") or ""),
            lag=int(said.get("lag") or 0),
            in_flight=int(said.get("in_flight") or 0),
            raw=said,
            retry_at=parsed(said.get("retry_at")),
            held=said.get("held"),
            id=said.get("id"),
            oldest_at=parsed(said.get("oldest_at")),
        )


async def keys_of(
    transport: Transport, path: str, params: Mapping[str, str], limit: int | None
) -> AsyncIterator[OrderingKey]:
    """The keys of a place, the one with the most waiting messages first."""
    async for found in transport.pages(f"{path}/keys", "keys", params, limit=limit):
        yield OrderingKey.of(found)


async def change(
    transport: Transport, path: str, key: str, verb: str, params: Mapping[str, str]
) -> tuple[OrderingKey, ...]:
    """Hold or release a key; what it is then, if it is behind or in trouble."""
    answer = await transport.call("POST", f"{path}/keys/{quoted(key)}:{verb}", params=params)
    return tuple(OrderingKey.of(each) for each in answer.object()["keys"])
