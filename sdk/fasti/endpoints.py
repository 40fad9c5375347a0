"""`client.endpoints`: webhook endpoints, the targets of messages with `deliver_to`.

    await c.endpoints.put("billing", "https://billing.example.org/hook", secret="whsec_...", concurrency=4)
    await c.messages.schedule(payload={"order": 17}, deliver_to="billing", delay=3600)

An endpoint is a group like any other: it has its place, can be paused, is tried again with growing delays,
and has dead letters under its name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Unpack

from .answers import Endpoint, OrderingKey, Skipped
from .groups import TERMS
from .options import EndpointOptions
from .places import Fate, PlaceCalls
from .signatures import check, check_retry, unfolded
from .transport import Calls, quoted
from .wire import Json, Spell, When, as_is, span, spelled

_TERMS: Mapping[str, Spell] = {
    **TERMS,
    "secret": lambda secret: secret or None,
    "headers": dict,
    "timeout": span,
    **dict.fromkeys(("concurrency", "body"), as_is),
    "retry": lambda retry: spelled(TERMS, retry),
}


@unfolded
class Endpoints(Calls):
    """Calls on `/v1/endpoints`."""

    async def list(self) -> AsyncIterator[Endpoint]:
        """All endpoints, sorted by name."""
        async for found in self._transport.pages("/v1/endpoints", "endpoints"):
            yield Endpoint.of(found)

    async def get(self, name: str) -> Endpoint:
        """Raises NotFound."""
        return Endpoint.of(await self._transport.ask("GET", _path(name)))

    async def put(self, name: str, url: str, **options: Unpack[EndpointOptions]) -> Endpoint:
        """Create or change an endpoint.

        Raises Refused, whose `errors` name the field: say a URL of a private address.
        """
        check(EndpointOptions.__optional_keys__, options)
        if options.get("retry") is not None:
            check_retry(options["retry"])
        body = {"url": url, **spelled(_TERMS, options)}
        if options.get("secret") == "":
            body["secret"] = None
        return Endpoint.of(await self._transport.ask("PUT", _path(name), body))

    async def delete(self, name: str, *, undone: Fate | None = None) -> None:
        """Delete the endpoint with its read position. `undone` and errors are as for a group."""
        await self._at(name).delete(undone)

    async def pause(self, name: str) -> Endpoint:
        """Pause the endpoint; it keeps its read position. Raises NotFound."""
        return Endpoint.of(await self._at(name).ask("pause"))

    async def resume(self, name: str) -> Endpoint:
        """Resume at the kept read position. Raises NotFound."""
        return Endpoint.of(await self._at(name).ask("resume"))

    async def replay(self, name: str, since: When | timedelta) -> Endpoint:
        """Set the read position back to an instant, or by a duration. Raises NotFound, Refused."""
        return Endpoint.of(await self._at(name).replay(since))

    async def skip(self, name: str, to: When | timedelta = "now", undone: Fate = "dead") -> Skipped:
        """Skip the backlog, as for a group. Raises NotFound, Refused."""
        return await self._at(name).skip(to, undone)

    async def keys(self, name: str, *, limit: int | None = None) -> AsyncIterator[OrderingKey]:
        """Ordering keys that are behind or in trouble, as of a group. Raises NotFound."""
        async for found in self._at(name).keys(limit):
            yield found

    async def hold(self, name: str, key: str) -> tuple[OrderingKey, ...]:
        """Post nothing more of an ordering key until `release`. Raises NotFound, Refused."""
        return await self._at(name).change(key, "hold")

    async def release(self, name: str, key: str) -> tuple[OrderingKey, ...]:
        """Let a held ordering key go on. Raises NotFound, Refused."""
        return await self._at(name).change(key, "release")

    async def test(self, name: str) -> Json:
        """Post a test message now, without the queue. Raises NotFound.

        Gives what came of it: `{"ok", "status", "latency_ms", "reason"}`.
        """
        return await self._transport.ask("POST", _path(name) + ":test", repeatable=False, timeout_s=0)

    def _at(self, name: str) -> PlaceCalls:
        return PlaceCalls(self._transport, _path(name))


def _path(name: str) -> str:
    return f"/v1/endpoints/{quoted(name)}"
