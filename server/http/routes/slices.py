"""`/v1/slices`: how the timeline is cut at the moment, down to one shard. Read only.

All of it is known in RAM but for one thing: what a slice holds of shards that it borrows
(shards/borrow.py) has to be counted. A request looks at 100,000 rows for that at most, in steps; beyond it
`count`, `live` and `bytes` are what was found so far and `count_is_exact` is false.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from aiohttp import web

from shards.borrow import Counts
from timeline.slices import Shard, Slice

from ...settings.config import Shards
from ..answers import json_answer
from ..calls import ADMIN, Gives, described
from ..problems import Problem
from ..requests import limit_of
from ..timeline import Timeline
from ..turns import Turn, Turns
from ..values import shapes
from ..values.bodies import FieldError, instant_ms
from ..values.scalars import PAGED
from ..values.views import shard_view, slice_numbers

LOOK_ROWS = 100_000
STEP_ROWS = 2_000
Counting = Callable[[bytes, int, int, int], Iterator[Counts]]
"""Counts the rows under a prefix in [start, end) ms, so many in a step: see shards.borrow.counting."""


class Look:
    """Counts borrowed rows for one request."""

    def __init__(self, counting: Counting, turn: Turn) -> None:
        self._counting = counting
        self._turn = turn
        self._left = LOOK_ROWS

    async def borrowed(self, piece: Slice) -> tuple[Counts, bool]:
        """What the slice holds of shards that it borrows, and whether that is all."""
        total = Counts()
        for shard in list(piece.borrowed.values()):
            await self._turn.begin()
            for part in self._counting(shard.prefix, piece.start_ms, piece.end_ms, STEP_ROWS):
                total = total.plus(part)
                self._left -= part.rows
                await self._turn.begin()
                if self._left <= 0:
                    return total, False
        # Moved meanwhile: then they are in the slice's own counts.
        return (total, True) if piece.borrowed else (Counts(), True)


class Slices:
    """The routes."""

    def __init__(
        self, timeline: Timeline, turns: Turns, counting: Counting, caps: Shards, *, split_above: int
    ) -> None:
        self._timeline = timeline
        self._turns = turns
        self._counting = counting
        self._caps = caps
        self._split_above = split_above

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/slices", self.list),
            web.get("/v1/slices/{start}", self.get),
            web.get("/v1/slices/{start}/shards/{n}", self.shard),
        ]

    @described("The spans of the timeline", ADMIN, Gives(200, shapes.SlicePage), query=PAGED)
    async def list(self, request: web.Request) -> web.Response:
        limit = limit_of(request)
        start_ms = _cursor(request.query.get("cursor", "0"))
        pieces = (piece for piece in self._timeline.directory if piece.start_ms >= start_ms)
        found = list(islice(pieces, limit + 1))
        more = str(found[limit].start_ms) if len(found) > limit else None
        look = Look(self._counting, self._turns.of(request))
        views: list[shapes.Slice] = [
            {
                **slice_numbers(piece, *(await look.borrowed(piece)), self._timeline.reader),
                "shards": len(piece.shards) + len(piece.borrowed),
            }
            for piece in found[:limit]
        ]
        page: shapes.SlicePage = {"slices": views, "next": more, "split_above": self._split_above}
        return json_answer(page)

    @described("A slice and its shards", ADMIN, Gives(200, shapes.SliceDetail), problems=("not-found",))
    async def get(self, request: web.Request) -> web.Response:
        piece = self._slice(request)
        shards = [self._view(piece, shard) for shard in piece.readable()]
        borrowed, is_exact = await Look(self._counting, self._turns.of(request)).borrowed(piece)
        numbers = slice_numbers(piece, borrowed, is_exact, self._timeline.reader)
        view: shapes.SliceDetail = {**numbers, "shards": shards}
        return json_answer(view)

    @described("A shard", ADMIN, Gives(200, shapes.Shard), problems=("not-found",))
    async def shard(self, request: web.Request) -> web.Response:
        piece, text = self._slice(request), request.match_info["n"]
        shard = piece.shard(int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else None
        if shard is None:
            raise Problem("not-found", f"this slice has no shard {text[:40]!r}")
        return json_answer(self._view(piece, shard))

    def _view(self, piece: Slice, shard: Shard) -> shapes.Shard:
        timeline = self._timeline
        return shard_view(piece, shard, self._caps, timeline.reader, timeline.horizon.clock_ms)

    def _slice(self, request: web.Request) -> Slice:
        """The slice that the path names by its start. Raises Problem."""
        text = request.match_info["start"]
        try:
            piece = self._timeline.directory.get(instant_ms("start", text))
        except FieldError as error:
            raise Problem("not-found", f"{text[:40]!r} is no start of a slice: {error.detail}") from None
        if piece is None:
            raise Problem("not-found", f"no slice starts at {text[:40]!r}")
        return piece


def _cursor(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise FieldError("cursor", "is not one that this server gave")
    return int(text)
