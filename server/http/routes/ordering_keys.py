"""`/v1/groups/{group}/keys`: ordering keys that are behind or in trouble, of groups that order; also of
endpoints.

    GET  {one}/keys              pages, the key with the most waiting messages first
    POST {one}/keys/{key}:hold       give nothing of the key until it is released
    POST {one}/keys/{key}:release    let it go on, whether somebody holds it or a dead letter

A key that is fine has nothing stored, and is not listed. `lag` counts the messages that wait behind the one
that is in flight, waits for its try, or is a dead letter. Beyond the first few of a key they are counted in
the index, which reads a bounded number of rows, for one key and for the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from types import MethodType
from typing import Any, NamedTuple

from aiohttp import web

from shards.commit import Commit
from shards.delivery_rows import DeliveryRow, Name, stored
from shards.errors import Corrupt
from shards.order import followers
from shards.store import Store
from timeline.filters import parse_share
from timeline.key_order import KeyOrder
from timeline.key_rows import NOWHERE
from timeline.position import Position, at_of, id_text

from ...delivery.settling.holds import Holds
from ...delivery.shared import Group
from ...settings.times import time_text
from ..calls import WRITES, described
from ..problems import Problem
from ..requests import limit_of
from ..turns import least
from ..values import shapes
from ..values.bodies import FieldError
from ..values.message_body import ordering_key_bytes
from ..values.scalars import PAGED
from .places import PlaceKind, Places, Verbs

COUNT_KEY = 1_000
"""Maximum waiting messages counted for one key, ..."""
COUNT_CALL = 10_000
"""... and for a call, ..."""
LOOK_COST = 20
"""... where each key counts as so many more, as the index has a place for each hour: 500 keys at most."""
Entry = tuple[Group, bytes]
Rank = tuple[int, bytes, str, bool]
"""Sorts entries: by lag, the most first; then by key and group. Last, whether the lag is exact."""


class _Lag(NamedTuple):
    """Number of messages that wait for a key."""

    messages: int
    is_exact: bool


@dataclass(slots=True)
class _Counting:
    """Counts the lag of keys, and reads COUNT_CALL rows at most."""

    store: Store
    left: int = COUNT_CALL

    def lag(self, group: Group, order: KeyOrder, key: bytes) -> _Lag:
        one, most = order.find(key), min(COUNT_KEY, self.left)
        if one is None or one.is_whole or not most:
            return _Lag(0, is_exact=True) if one is None else _Lag(len(one.known), one.is_whole)
        start, read = one.next, group.session.read
        found, upto = followers(self.store, group.whose, key, start, read, most)
        self.left -= min(self.left, LOOK_COST + len(found))
        behind = len(found) + (one.row.has_first and (not found or found[0][0] != start))
        return _Lag(max(len(one.known), behind), len(found) < most and upto >= read)


class OrderingKeyRoutes:
    """The routes of one kind of place."""

    def __init__(self, kind: PlaceKind[Group, Any], places: Places, holds: Holds) -> None:
        self._kind = kind
        self._places = places
        self._holds = holds
        self._verbs = Verbs(kind, places)
        self._store = places.timeline.reader.store

    def routes(self) -> list[web.RouteDef]:
        base = f"/v1/{self._kind.noun}s/{{{self._kind.name}}}/keys"
        of = f"of {'an endpoint' if self._kind.noun == 'endpoint' else 'a group'} that orders"
        held = "Hold an ordering key: nothing more of it is delivered until it is released"
        return [
            web.get(base, self._described("list", f"Ordering keys in trouble {of}", PAGED)),
            web.post(f"{base}/{{ordering_key}}:hold", self._described("hold", held)),
            web.post(
                f"{base}/{{ordering_key}}:release",
                self._described("release", "Let an ordering key go on that is held"),
            ),
        ]

    def _described(self, verb: str, summary: str, paged: dict[str, Any] | None = None) -> Any:
        kind = self._kind
        problems = ("not-found",) if paged else ("not-found", "wrong-state", *WRITES)
        mark = described(
            summary,
            kind.scope,
            query={**(kind.query or {}), **(paged or {})},
            problems=problems,
        )
        return MethodType(mark(getattr(OrderingKeyRoutes, verb)), self)

    async def list(self, request: web.Request) -> shapes.GroupKeyPage:
        found, limit = self._kind.find(request), limit_of(request)
        after, counting = _rank_of(request.query.get("cursor", "")), _Counting(self._store)
        turn, chosen = self._places.turns.of(request), list[tuple[Rank, Entry]]()
        for group, order in _ordered(found):

            def rank(key: bytes, group: Group = group, order: KeyOrder = order) -> Rank | None:
                if order.find(key) is None:
                    return None
                lag = counting.lag(group, order, key)
                rank = -lag.messages, key, group.text, lag.is_exact
                return rank if after is None or rank[:3] > after else None

            best = await least(turn, order.keys, rank, limit + 1)
            chosen = nsmallest(limit + 1, [*chosen, *((rank, (group, key)) for rank, key in best)])
        rows = [(entry, _Lag(-rank[0], rank[3])) for rank, entry in chosen[:limit]]
        last = chosen[limit - 1][0] if len(chosen) > limit else None
        return await self._answer(request, found, rows, last)

    async def hold(self, request: web.Request) -> shapes.GroupKeyPage:
        return await self._change(request, self._holds.hold)

    async def release(self, request: web.Request) -> shapes.GroupKeyPage:
        return await self._change(request, self._holds.let_go)

    async def _change(self, request: web.Request, change: Any) -> shapes.GroupKeyPage:
        key = ordering_key_bytes(request.match_info["ordering_key"])
        if not _ordered(self._kind.find(request)):
            raise Problem("wrong-state", "It does not order: no key of it can be held.")

        def act(commit: Commit, group: Group) -> bool:
            change(commit, group, key)
            return True

        changed, counting = await self._verbs.change(request, act), _Counting(self._store)
        rows = [((group, key), counting.lag(group, order, key)) for group, order in _ordered(changed)]
        return await self._answer(request, changed, rows, None)

    async def _answer(
        self,
        request: web.Request,
        found: Sequence[Group],
        rows: Sequence[tuple[Entry, _Lag]],
        following: Rank | None,
    ) -> shapes.GroupKeyPage:
        turn, views = self._places.turns.of(request), []
        await turn.begin()
        for number, ((group, key), lag) in enumerate(rows, 1):
            order = group.session.order
            if order.is_on:
                views.append(self._view(group, order, key, lag))
            if turn.is_over(number):
                await turn.begin()
        orders = [order for _, order in _ordered(found)]
        return shapes.GroupKeyPage(
            keys=views,
            next=None if following is None else _cursor(following),
            blocked=sum(order.blocked for order in orders),
            held=sum(len(order.held) for order in orders),
            is_standing=any(order.room.is_standing for order in orders),
        )

    def _view(self, group: Group, order: KeyOrder, key: bytes, lag: _Lag) -> shapes.GroupKey:
        row, found = order.row(key), order.find(key)
        head = self._head(group, row.root)
        firsts = [place for place in (row.root, row.next) if place != NOWHERE]
        is_dead = found is not None and found.is_dead
        return shapes.GroupKey(
            key=key.decode("utf-8", "replace"),
            filter="" if group.is_endpoint else parse_share(group.text)[1],
            lag=lag.messages,
            lag_is_exact=lag.is_exact,
            in_flight=order.out.get(key, 0),
            retry_at=time_text(at_of(head.at)) if head is not None and head.is_waiting else None,
            held="hand" if row.by_hand else "dead" if is_dead else None,
            id=None if head is None else id_text(head.id),
            oldest_at=time_text(at_of(min(firsts))) if firsts else None,
        )

    def _head(self, group: Group, root: Position) -> DeliveryRow | None:
        """What the key waits for: a message that waits for its try, or a dead letter."""
        try:
            return None if root == NOWHERE else stored(self._store, Name(group.whose, root))
        except Corrupt:
            return None


def _ordered(found: Sequence[Group]) -> list[tuple[Group, KeyOrder]]:
    return [(group, group.session.order) for group in found if group.session.order.is_on]


def _cursor(rank: Rank) -> str:
    return f"{-rank[0]}.{rank[1].hex()}.{rank[2].encode().hex()}"


def _rank_of(text: str) -> tuple[int, bytes, str] | None:
    """What sorts the last entry of the page before; None: there is none. Raises FieldError."""
    if not text:
        return None
    count, _, rest = text.partition(".")
    key, _, group = rest.partition(".")
    try:
        return -int(count[:12]), bytes.fromhex(key), bytes.fromhex(group).decode()
    except ValueError:
        raise FieldError("cursor", "was not issued by this server") from None
