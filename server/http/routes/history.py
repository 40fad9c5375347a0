"""`GET /v1/history`: the server's figures of the last hour and day, by observe/history.py.

A point covers a step, from the last sample of the point before to its own last sample. A step without a
sample has no point. A point shows what its last sample shows, and what was counted in between.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec.structs import asdict, astuple

from ...delivery.shared import ENDPOINT_PREFIX
from ...engine.clock import Clock
from ...observe.history import (
    COARSE_EACH,
    COUNTS,
    FINE_S,
    GROUPS,
    History,
    Kept,
    Sample,
    decode,
    frequent,
    quantile_ms,
    since,
)
from ...settings.times import format_ms
from ..access import sees
from ..calls import READ, described
from ..requests import instant_parameter
from ..turns import Turn, Turns
from ..values import shapes
from ..values.bodies import FieldError, delay_ms
from ..values.scalars import Delay, Point

HOUR_MS = 3_600_000
TIMES_LARGER = 8
"""Maximum bytes of a sample in the answer, and while that is made, for each of its own."""
Step = Annotated[
    Delay,
    msgspec.Meta(
        title="Step", description="ISO 8601, short or seconds; 10s up to an hour, else 5m, if missing"
    ),
]
Group = Annotated[str, msgspec.Meta(min_length=1, description="name of a group or endpoint")]


class HistoryRoutes:
    def __init__(self, clock: Clock, turns: Turns, history: History) -> None:
        self._clock = clock
        self._turns = turns
        self._history = history

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/history", self.get)]

    @described(
        "Figures of the last hour and day, kept since the start",
        READ,
        query={"from": Point, "to": Point, "step": Step, "group": Group},
    )
    async def get(self, request: web.Request) -> shapes.History:
        start_ms, end_ms, step_ms = self._span(request)
        kept = self._history.samples()
        known = format_ms(kept[0].at_ms) if kept else None
        before = [one for one in kept if one.at_ms <= start_ms][-1:]
        wanted = [*before, *(one for one in kept if start_ms < one.at_ms <= end_ms)]
        turn = self._turns.of(request)
        async with turn.room(TIMES_LARGER * sum(len(one.data) for one in wanted)):
            points = await _points(turn, wanted, start_ms, step_ms, request.query.get("group"))
            if sees(request) is not None:  # asked now: rules may have changed meanwhile
                points = [shapes.HistoryPoint(one.at, one.seconds, one.behind_ms) for one in points]
            return shapes.History(known, step_ms / 1_000, points)

    def _span(self, request: web.Request) -> tuple[int, int, int]:
        """(from, to, step), ms. Raises FieldError."""
        if request.query.get("group") == "":
            raise FieldError("group", "is empty")
        start_ms, end_ms = instant_parameter(request, "from"), instant_parameter(request, "to")
        if end_ms is None:
            end_ms = self._clock.wall_ms()
        if start_ms is None:
            start_ms = end_ms - HOUR_MS
        if start_ms >= end_ms:
            raise FieldError("to", "must be later than from")
        usual_s = FINE_S if end_ms - start_ms <= HOUR_MS else FINE_S * COARSE_EACH
        step_ms = delay_ms("step", request.query.get("step", str(usual_s)))
        if not step_ms:
            raise FieldError("step", "must be longer than 0 s")
        return start_ms, end_ms, step_ms


async def _points(
    turn: Turn, wanted: list[Kept], start_ms: int, step_ms: int, group: str | None
) -> list[shapes.HistoryPoint]:
    """A point for each step with a sample, except the first sample, which has none before it."""
    points: list[shapes.HistoryPoint] = []
    await turn.begin()
    last = decode(wanted[0].data) if wanted else None
    for _, step in groupby(wanted[1:], lambda one: (one.at_ms - start_ms - 1) // step_ms):
        died = Counter[str]()
        before = last
        for one in step:
            if turn.is_over(0):
                await turn.begin()
            last = decode(one.data)
            died.update(last.dead_reasons)
        assert before is not None
        assert last is not None
        points.append(_point(before, last, frequent(died), group))
    return points


def _ended(before: Sequence[int], now: Sequence[int]) -> list[int]:
    """What a group has counted between two samples. One that was made anew has begun at 0."""
    return [max(0, count) for count in since(before, now)]


def _point(before: Sample, now: Sample, died: dict[str, int], group: str | None) -> shapes.HistoryPoint:
    late, names = since(before.late, now.late), (group, f"{ENDPOINT_PREFIX}{group}")
    known = {one[:2]: one[-4:] for one in map(astuple, before.groups)}
    unknown = (0,) * 4 if len(known) < GROUPS else None  # it had none, or was not among the first
    return shapes.HistoryPoint(
        format_ms(now.at_ms),
        (now.at_ms - before.at_ms) / 1_000,
        now.behind_ms,
        **dict(zip(COUNTS, since(before.counts, now.counts), strict=True)),
        died_by_reason=died,
        lateness=shapes.Lateness(quantile_ms(late, 0.5), quantile_ms(late, 0.99)),
        pending=now.pending,
        retries=now.retries,
        retries_by_reason=dict(now.retry_reasons),
        dead_letters=now.dead_letters,
        memory_bytes=now.memory_bytes,
        store_bytes=now.store_bytes,
        disk_free_bytes=now.disk_free_bytes,
        groups=[
            shapes.GroupPoint(*one[:-4], *_ended(known.get(one[:2], unknown or one[-4:]), one[-4:]))
            for one in map(astuple, now.groups)
            if not group or one[0] in names
        ],
        sessions=[shapes.SessionPoint(**asdict(one)) for one in now.sessions],
        failing_endpoints=dict(now.failing),
    )
