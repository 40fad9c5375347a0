"""Ordering keys that are behind or in trouble, of a group or endpoint that orders.

async for key in c.groups.keys("workers"):
    print(key.key, key.lag, key.held)
await c.groups.hold("workers", "customer-17")
await c.groups.release("workers", "customer-17")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from .answers import OrderingKey
from .transport import Transport, quoted


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
