"""Shared by `/v1/dead` and `/v1/retries`: listing, selecting and changing messages kept for one place.

A message kept for two groups is listed twice; id and group together identify one. `group` is the name of a
group or endpoint, or a client id, as in `$dead/{group}/...`. If several groups have the name, the whole
subscription (`$share/group/filter`) says which.

A change selects messages by ids or by a filter. Rows are read in bounded steps, each in its own turn
(turns.py). Each step's matches go through the writer, which decides each: `matched` counts the found ones,
`changed` those that were still there. Messages kept since the call began are skipped; otherwise one that
fails at once would be changed for ever. If a call is refused half way, its problem says how far it came.

A key sees kept messages that it may see, of its own sessions and groups as in their lists. It changes those
that it may send to. With the scope admin it has all sessions.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from shards.commit import Commit
from shards.delivery_rows import DeliveryRow, Name
from shards.errors import Corrupt
from shards.record import topic_of
from shards.state import DISPATCHED, WITHHELD
from timeline.filters import matches
from timeline.position import (
    END,
    START,
    BadId,
    MessageId,
    Position,
    at_of,
    id_position,
    parse_id,
    seq_of,
)

from ...delivery.place import Place
from ...delivery.settling.kept import May
from ...delivery.shared import ENDPOINT_PREFIX, KEY_PREFIX
from ...delivery.tries import tries_view
from ...settings.times import time_text
from ..access import Rights, Sees, changes, is_own, owns, rights_of, sees, user_of
from ..answers import answer_of, refusal
from ..bulk import Acted, BulkParts, change_each
from ..problems import Problem
from ..requests import flag, instant_parameter, limit_of
from ..selection import EVERYTHING, check_selects, span_of
from ..turns import Turn
from ..values import shapes
from ..values.bodies import FieldError, delay_ms, instant_ms
from ..values.scalars import FLAG, NULL, PAGED, Id, Key, Point, only_one, some_of
from ..values.scalars import Filter as TopicFilter
from ..values.views import message_view

log = logging.getLogger(__name__)

LOOK_ROWS = 1_000
"""Maximum rows read in a turn."""
PAGE_LOOK_ROWS = 20_000
"""Maximum rows read for a page."""
PAGE_BYTES = 4 << 20
VIEW_BYTES = 1_000
STEP_ROWS = 250
STEP_BYTES = 1 << 20
"""One request to the writer: so many rows, or bytes of them."""
IDS_MAX = 1_000
K = TypeVar("K", bound=shapes.Kept)
P = TypeVar("P", bound=shapes.CountedPage)

Group = Annotated[
    str, msgspec.Meta(description="a group, endpoint or client id, or $share/group/filter", min_length=1)
]
Reason = Annotated[str, msgspec.Meta(description="part of the reason")]
CHOSEN: dict[str, Any] = {
    "group": Group,
    "topic": TopicFilter,
    "reason": Reason,
    "id": Id,
    "key": Key,
    "from": Point,
    "to": Point,
    **PAGED,
    "count": FLAG,
}
"""Query parameters of a listing."""


class Chosen(msgspec.Struct, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):
    """Selects by from <= died_at, or retry_at, < to, RFC 3339 or Unix ms. `key`: an idempotency key."""

    group: Group | None = None
    topic: TopicFilter | None = None
    reason: Reason | None = None
    id: Id | None = None
    key: Key | None = None
    since: Point | int | None = None
    until: Point | int | None = None


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a change. With ids, `group` limits them to its own."""

    ids: Annotated[list[Id], msgspec.Meta(max_length=IDS_MAX)] | None = None
    group: Group | None = None
    filter: Chosen | None = None
    dry_run: bool = False


_NAMED = {"anyOf": [NULL, some_of(*Chosen.__struct_encode_fields__)]}
ONE_CHOICE = (
    only_one("ids", "filter"),
    some_of("ids", "filter"),
    only_one("group", "filter"),
    {"properties": {"filter": _NAMED}},
)
"""Rules of a change."""


@dataclass(frozen=True, slots=True)
class KeptSelection:
    """The selection of a call: from `start` on, up to but without `end`."""

    start: Position = START
    end: Position = END
    group: str | None = None
    topic: str | None = None
    reason: str | None = None
    ids: tuple[MessageId, ...] | None = None
    seq: int | None = None
    """Messages kept after this seq are skipped; None: none are."""

    def fits(self, row: DeliveryRow) -> bool:
        """Whether the row is selected. Raises Corrupt."""
        if self.seq is not None and seq_of(row.at) > self.seq:
            return False
        if self.group is not None and not is_called(row, self.group):
            return False
        if self.reason is not None and self.reason not in row.reason:
            return False
        return self.topic in (None, EVERYTHING) or matches(self.topic, topic_of(row.record).decode())


Names = list[Name]
Act = Callable[..., bool]
"""In the writer: (commit, name, *, may), change the delivery, if it is still so. Raises Refused, Corrupt."""


class Source(Protocol):
    """Source of rows, in the order of their `at`."""

    def read(self, start: Position = START, *, group: str | None = None) -> Iterator[DeliveryRow]: ...

    def of_message(self, message: MessageId) -> Iterator[DeliveryRow]: ...


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows(Generic[P]):
    """Lists and changes the rows of one source."""

    source: Source
    parts: BulkParts
    name: str
    """What the log calls a row."""
    view_of: Callable[[DeliveryRow, str], shapes.Kept]
    """Makes its answer, with the time of its position. Raises Corrupt."""
    page_of: Callable[[str | None, int | UnsetType, Any], P]
    """Makes the answer of a listing, from its cursor, count and views."""

    # -- listing

    async def page(self, request: web.Request) -> P:
        """A page of the listing."""
        limit, rights = limit_of(request), rights_of(request)
        whole = self._selection(request)
        wanted, cursor = whole, request.query.get("cursor")
        if cursor is not None:
            behind = Position(self.parts.cursors.place(cursor)[0] + 1)
            wanted = replace(whole, start=max(whole.start, behind))
        may = may_of(rights, sees(request))
        turn = self.parts.turns.of(request)
        try:
            views, last = await self._page(wanted, may, limit, turn)
            following = None if last is None else self.parts.cursors.text(last, is_hidden=rights is not None)
            count = await self._count(request, whole, may, turn) if flag(request, "count") else UNSET
        finally:
            turn.release()
        return self.page_of(following, count, views)

    def _selection(self, request: web.Request) -> KeptSelection:
        """The selection of a listing. Raises FieldError."""
        query = request.query
        span = span_of(instant_parameter(request, "from"), instant_parameter(request, "to"))
        if query.get("group") == "":
            raise FieldError("group", "is empty")
        check_selects(query.get("topic"))
        ids = self._ids(request, query.get("id"), query.get("key"))
        return KeptSelection(*span, query.get("group"), query.get("topic"), query.get("reason"), ids)

    def _ids(self, request: web.Request, name: str | None, key: str | None) -> tuple[MessageId, ...] | None:
        """Message ids for an id, or for an idempotency key of the caller; None: any.

        Raises FieldError, Corrupt.
        """
        ids = None if name is None else (_id("id", name),)
        if key is None:
            return ids
        known = self.parts.timeline.ids_under(key, user_of(request))
        return tuple(known if ids is None else known.intersection(ids))

    async def _page(
        self, wanted: KeptSelection, may: May, limit: int, turn: Turn
    ) -> tuple[list[Any], Position | None]:
        """The views of a page, and the position behind which the next begins; None: there is none."""
        views: list[shapes.Kept] = []
        start, last, looked, size = wanted.start, wanted.start, 0, 0
        is_crowded = False
        while True:
            await turn.begin()
            count, is_end = 0, True
            for row in self._read(wanted, start):
                count += 1
                view = self._view(row) if is_there(wanted, row, may) else None
                if view is not None:
                    if len(views) == limit or size > PAGE_BYTES or is_crowded:
                        return views, last
                    views.append(view)
                    size += len(row.record)
                    is_crowded = not turn.keep(len(row.record) + VIEW_BYTES)
                last = row.at
                if count == LOOK_ROWS or turn.is_over(count):
                    is_end = False
                    break
            looked += count
            if is_end:
                return views, None
            if looked >= PAGE_LOOK_ROWS:
                return views, last
            start = Position(last + 1)

    async def _count(self, request: web.Request, wanted: KeptSelection, may: May, turn: Turn) -> int:
        count, following = 0, wanted.start
        while request.transport is not None:
            await turn.begin()
            names, after = self._step(wanted, following, may, turn)
            count += len(names)
            if after is None:
                break
            following = Position(after)
        return count

    def _view(self, row: DeliveryRow) -> shapes.Kept | None:
        """The view of a row; None: it cannot be read."""
        try:
            return self.view_of(row, time_text(at_of(row.at)))
        except Corrupt as error:
            log.error("message %s: unreadable, skipped: %s", self.name, error)
            return None

    def _read(self, wanted: KeptSelection, start: Position) -> Iterator[DeliveryRow]:
        """Rows that may be selected, at or behind `start`."""
        if wanted.ids is not None:
            rows = [row for message in wanted.ids for row in self.source.of_message(message)]
            rows.sort(key=lambda row: row.at)
            return (row for row in rows if start <= row.at < wanted.end)
        return until(wanted.end, self.source.read(start, group=wanted.group))

    # -- changing

    async def change(self, request: web.Request, body: Change, act: Act) -> shapes.KeptChanged:
        """Change all selected messages that the caller may change."""
        may = may_of(rights_of(request), changes(request))
        wanted, turn = self._chosen(request, body), self.parts.turns.of(request)
        done = shapes.KeptChanged(0, 0)
        step = self._step if body.ids is None else self._step_of_ids
        following: int | None = wanted.start if body.ids is None else 0
        try:
            while following is not None and request.transport is not None:
                await turn.begin()
                names, following = step(wanted, following, may, turn)
                done.matched += len(names)
                if names and not body.dry_run:
                    each = partial(self._each, names, act, may)
                    acted: Acted = await answer_of(self.parts.ask, each, cost=len(names))
                    done.changed += acted.changed
                    if acted.refused is not None:
                        raise refusal(acted.refused)
        except Problem as problem:
            problem.extra |= msgspec.structs.asdict(done)
            raise
        return done

    def _chosen(self, request: web.Request, body: Change) -> KeptSelection:
        """The messages to change, as of now. Raises FieldError."""
        seq = self.parts.timeline.horizon.seq
        if (body.ids is None) == (body.filter is None):
            raise FieldError("filter", "or ids is required, but not both")
        if body.ids is not None:
            ids = tuple(dict.fromkeys(_id("ids", text) for text in body.ids))
            return KeptSelection(group=body.group, ids=ids, seq=seq)
        chosen = body.filter
        assert chosen is not None, "one of the two"
        if body.group is not None:
            raise FieldError("group", "goes with ids; of a filter it is a member")
        if chosen == Chosen():
            raise FieldError("filter", 'must name something; {"topic": "#"} is everything')
        since = None if chosen.since is None else instant_ms("from", str(chosen.since))
        until = None if chosen.until is None else instant_ms("to", str(chosen.until))
        check_selects(chosen.topic)
        span, ids_of = span_of(since, until), self._ids(request, chosen.id, chosen.key)
        return KeptSelection(*span, chosen.group, chosen.topic, chosen.reason, ids_of, seq)

    def _step(self, wanted: KeptSelection, start: int, may: May, turn: Turn) -> tuple[Names, int | None]:
        """The next matches at or behind a position, and where to continue; None at the end."""
        names: Names = []
        size = 0
        for looked, row in enumerate(self._read(wanted, Position(start)), 1):
            start = row.at + 1
            if is_there(wanted, row, may):
                names.append(row.name)
                size += len(row.record)
            if _is_enough(names, size) or looked == LOOK_ROWS or turn.is_over(looked):
                return names, start
        return names, None

    def _step_of_ids(
        self, wanted: KeptSelection, index: int, may: May, turn: Turn
    ) -> tuple[Names, int | None]:
        """`_step` over the ids from an index on."""
        assert wanted.ids is not None, "it is by ids"
        names: Names = []
        size = 0
        for looked, message in enumerate(wanted.ids[index:], 1):
            for row in self.source.of_message(message):
                if is_there(wanted, row, may):
                    names.append(row.name)
                    size += len(row.record)
            if _is_enough(names, size) or turn.is_over(looked):
                return names, index + looked
        return names, None

    def _each(self, names: Names, act: Act, may: May, commit: Commit) -> Acted:
        change = partial(act, commit, may=may)
        return change_each(names, change, lambda name: f"{self.name} of {name.root:024x}")


def kept_view(shape: type[K], row: DeliveryRow, **more: Any) -> K:
    """The view of a row; `more`: the further fields of its shape. Raises Corrupt."""
    return message_view(
        shape,
        row.id,
        id_position(row.id),
        row.message(),
        WITHHELD if row.is_withheld else DISPATCHED,
        group=row.group,
        subscription=_subscription(row),
        attempts=row.attempts,
        reason=row.reason,
        tries=tries_view(row.tries),
        **more,
    )


def wait_of(deliver_in: str | float | msgspec.UnsetType, max_delay_ms: int) -> int:
    """Parse the delay, ms. Raises FieldError."""
    wait_ms = 0 if deliver_in is msgspec.UNSET else delay_ms("deliver_in", deliver_in)
    if wait_ms > max_delay_ms:
        raise FieldError("deliver_in", "is further ahead than limits.max_delay")
    return wait_ms


def may_of(rights: Rights | None, topic_fits: Sees | None) -> May:
    """A check for the rows that the caller may see, by the rules at the time of the check. It may raise
    Corrupt."""

    def may(row: DeliveryRow, subscriber: Place | None) -> bool:
        if not owns(rights, (row.keeper,)):
            return False
        if subscriber is not None and not is_own(rights, subscriber):
            return False
        return topic_fits is None or topic_fits(topic_of(row.record))

    return may


def is_called(row: DeliveryRow, name: str) -> bool:
    """Whether its place has that name."""
    return name in (row.group, _subscription(row)) or ENDPOINT_PREFIX + name == row.group


def _is_enough(names: Names, size: int) -> bool:
    """Whether these are enough for one request to the writer."""
    return len(names) >= STEP_ROWS or size >= STEP_BYTES


def _id(field: str, text: str) -> MessageId:
    """Parse a message id. Raises FieldError."""
    try:
        return parse_id(text)
    except BadId as error:
        raise FieldError(field, str(error)) from None


def is_there(wanted: KeptSelection, row: DeliveryRow, may: May) -> bool:
    """Whether the row is selected, and visible to the caller."""
    try:
        return wanted.fits(row) and may(row, None)
    except Corrupt as error:
        log.error("message at %024x: unreadable, skipped: %s", row.root, error)
        return False


def until(end: Position, found: Iterator[DeliveryRow]) -> Iterator[DeliveryRow]:
    for row in found:
        if row.at >= end:
            return
        yield row


def _subscription(row: DeliveryRow) -> str | None:
    """The whole subscription of a group; None: a session."""
    return row.addressee.removeprefix(KEY_PREFIX) if row.addressee.startswith(KEY_PREFIX) else None
