"""`client.timeline`: counts of pending messages by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from .ranges import selection
from .transport import Transport
from .wire import Json, Span, When, parse_instant, span


@dataclass(frozen=True, slots=True)
class Bucket:
    """Number of messages pending from `at` until the next bucket."""

    at: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Density:
    """Pending messages per bucket, in order of time."""

    start: datetime
    end: datetime
    bucket: timedelta
    buckets: tuple[Bucket, ...]
    total: int
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Json) -> Self:
        buckets = tuple(Bucket(parse_instant(b["at"]), b["count"]) for b in said["buckets"])
        width = timedelta(seconds=said["bucket_s"])
        start, end = parse_instant(said["from"]), parse_instant(said["to"])
        return cls(start, end, width, buckets, said["total"], said)


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
