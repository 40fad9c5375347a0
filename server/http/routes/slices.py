"""`/v1/slices`: the timeline's current slices, down to one shard. Read only.

All figures are in RAM and exact, also a slice's counts of borrowed shards (shards/borrow.py). The figures of
a borrowed shard itself are from when its slice was cut.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from itertools import islice

from aiohttp import web

from timeline.slices import Shard, Slice

from ...settings.config import Shards
from ..calls import ADMIN, described
from ..problems import Problem
from ..requests import limit_of
from ..timeline import Timeline
from ..values import shapes
from ..values.bodies import FieldError, instant_ms
from ..values.scalars import PAGED
from ..values.views import shard_view, slice_fields


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """The routes."""

    timeline: Timeline
    caps: Shards
    held_by: Callable[[], shapes.HeldBy | None]
    _: KW_ONLY
    split_above: int

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/slices", self.list),
            web.get("/v1/slices/{start}", self.get),
            web.get("/v1/slices/{start}/shards/{n}", self.shard),
        ]

    @described("The spans of the timeline", ADMIN, query=PAGED)
    async def list(self, request: web.Request) -> shapes.SlicePage:
        limit = limit_of(request)
        start_ms = _cursor(request.query.get("cursor", "0"))
        pieces = (piece for piece in self.timeline.directory if piece.start_ms >= start_ms)
        found = list(islice(pieces, limit + 1))
        more = str(found[limit].start_ms) if len(found) > limit else None
        reader = self.timeline.reader
        views = [
            shapes.Slice(**slice_fields(piece, reader), shards=len(piece.shards) + len(piece.borrowed))
            for piece in found[:limit]
        ]
        return shapes.SlicePage(more, views, self.split_above, self.held_by())

    @described("A slice and its shards", ADMIN, problems=("not-found",))
    async def get(self, request: web.Request) -> shapes.SliceDetail:
        piece = self._slice(request)
        shards = [self._view(piece, shard) for shard in piece.readable()]
        return shapes.SliceDetail(**slice_fields(piece, self.timeline.reader), shards=shards)

    @described("A shard", ADMIN, problems=("not-found",))
    async def shard(self, request: web.Request) -> shapes.Shard:
        piece, text = self._slice(request), request.match_info["n"]
        shard = piece.shard(int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else None
        if shard is None:
            raise Problem("not-found", f"Shard {text[:40]!r} not found in this slice.")
        return self._view(piece, shard)

    def _view(self, piece: Slice, shard: Shard) -> shapes.Shard:
        timeline = self.timeline
        return shard_view(piece, shard, self.caps, timeline.reader, timeline.horizon.clock_ms)

    def _slice(self, request: web.Request) -> Slice:
        """The slice whose start is in the path. Raises Problem."""
        text = request.match_info["start"]
        try:
            piece = self.timeline.directory.get(instant_ms("start", text))
        except FieldError as error:
            raise Problem("not-found", f"{text[:40]!r} is not the start of a slice: {error.detail}") from None
        if piece is None:
            raise Problem("not-found", f"No slice starts at {text[:40]!r}.")
        return piece


def _cursor(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise FieldError("cursor", "is not one that this server gave")
    return int(text)
