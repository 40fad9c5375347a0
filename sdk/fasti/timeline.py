"""`client.timeline`: counts of pending messages by time."""

from __future__ import annotations

from .answers import Density
from .ranges import selection
from .transport import Transport
from .wire import Span, When, span


class Timeline:
    """Calls on `/v1/timeline`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def density(
        self,
        *,
        start: When | None = None,
        end: When | None = None,
        bucket: Span = 60,
        topic: str | None = None,
    ) -> Density:
        """Exact counts per bucket; from now and for a day if not said otherwise. Raises Refused."""
        chosen = selection({"topic": topic, "start": start, "end": end})
        params = {**chosen, "bucket": span(bucket, "bucket")}
        answer = await self._transport.call("GET", "/v1/timeline/density", params=params, timeout_s=0)
        return Density.of(answer.object())
