"""`GET /v1/timeline/density`: pending messages per bucket of time, see `server/http/density.py`."""

from typing import Annotated

import msgspec
from aiohttp import web

from timeline.cells import MINUTE_MS, WIDE_MS
from timeline.position import Position, at_of

from ...delivery.settling.kept import KeptRetries
from ...engine.clock import Clock
from ...settings.times import INSTANT_MS_MAX, format_ms
from ..access import rights_of, sees
from ..calls import READ, described
from ..density import STEP_ROWS, Density
from ..requests import flag, instant_parameter
from ..selection import Selection, query_over, span_of
from ..timeline import Timeline
from ..turns import Turn, Turns
from ..values import shapes
from ..values.bodies import FieldError, delay_ms
from ..values.scalars import FLAG, Delay, Filter, Point
from .kept import KeptSelection, is_there, may_of, until

BUCKETS_MAX = 10_000
BUCKET_BYTES = 64
"""RAM of a bucket while it is counted."""
DAY_MS = 86_400_000
Bucket = Annotated[
    Delay, msgspec.Meta(title="Width", description="ISO 8601, short or seconds; PT1M if missing")
]


class TimelineRoutes:
    def __init__(self, clock: Clock, timeline: Timeline, turns: Turns, steering: KeptRetries) -> None:
        self._steering = steering
        self._clock = clock
        self._timeline = timeline
        self._turns = turns

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/timeline/density", self.density)]

    @described(
        "Pending messages per bucket, with `past` those too that the horizon has passed",
        READ,
        query={"from": Point, "to": Point, "bucket": Bucket, "topic": Filter, "past": FLAG, "retries": FLAG},
    )
    async def density(self, request: web.Request) -> shapes.Density:
        start_ms, end_ms, width_ms = self._buckets(request)
        query = query_over(request.query.get("topic"), start_ms, end_ms)
        may_see = sees(request)
        selection = Selection(self._timeline, query, may_see)
        turn, starts = self._turns.of(request), range(start_ms, end_ms, width_ms)
        async with turn.room(BUCKET_BYTES * len(starts)):
            density = Density(self._timeline, start_ms, end_ms, width_ms, with_past=flag(request, "past"))
            counts = await density.count(
                turn,
                query.topic,
                lambda row: selection.counts(*row),
                lambda: request.transport is None,
                is_all=may_see is None,
            )
            waiting = None
            if flag(request, "retries"):
                waiting = await self._waiting(request, starts, end_ms, query.topic, turn)
        buckets = [shapes.Bucket(format_ms(at_ms), n) for at_ms, n in zip(starts, counts, strict=True)]
        for bucket, count in zip(buckets, waiting or (), strict=False):
            bucket.retries = count
        width_s, total = width_ms / 1_000, sum(counts)
        return shapes.Density(format_ms(start_ms), format_ms(end_ms), width_s, buckets, total)

    async def _waiting(
        self, request: web.Request, starts: range, end_ms: int, topic: str, turn: Turn
    ) -> list[int]:
        """Retries by the bucket of their next try, of those that the caller may see."""
        may = may_of(rights_of(request), sees(request))
        wanted = KeptSelection(*span_of(starts.start, end_ms), topic=topic or None)
        counts, is_end = [0] * len(starts), False
        start = wanted.start
        while not is_end and request.transport is not None:
            await turn.begin()
            is_end = True
            for looked, row in enumerate(until(wanted.end, self._steering.read(start)), 1):
                start = Position(row.at + 1)
                if is_there(wanted, row, may):
                    counts[(at_of(row.at) - starts.start) // starts.step] += 1
                if looked == STEP_ROWS or turn.is_over(looked):
                    is_end = False
                    break
        return counts

    def _buckets(self, request: web.Request) -> tuple[int, int, int]:
        """(start, end, width), ms. Raises FieldError."""
        start_ms, end_ms = instant_parameter(request, "from"), instant_parameter(request, "to")
        width_ms = delay_ms("bucket", request.query.get("bucket", "PT1M"))
        if start_ms is None:
            # Buckets that begin with a cell need no reading (timeline/cells.py).
            cell_ms = MINUTE_MS if width_ms % WIDE_MS else WIDE_MS
            start_ms = self._clock.wall_ms() // cell_ms * cell_ms
        if end_ms is None:
            end_ms = start_ms + DAY_MS
        if not start_ms < end_ms <= INSTANT_MS_MAX:
            raise FieldError("to", "must be later than from, and within the year 9999")
        if not width_ms or (end_ms - start_ms) / width_ms > BUCKETS_MAX:
            raise FieldError("bucket", f"must be long enough for at most {BUCKETS_MAX} buckets")
        return start_ms, end_ms, width_ms
