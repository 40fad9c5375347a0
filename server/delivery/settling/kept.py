"""What is kept for places, for people: retries and dead letters are listed, and changed one by one.

A retry can be changed while it waits: not while it is out, and not after its place has ended, when the burial
takes it. To *requeue* a dead letter is to let the delivery wait again, all its tries before it; its expiry
starts again, and the attempt number shown to receivers continues. If its session or group is gone, or has
another owner, the dead letter stays. The group of a URL is created again.
"""

from collections.abc import Callable, Iterator
from heapq import merge
from operator import attrgetter

from shards import delivery_rows as rows
from shards.commit import Commit
from shards.delivery_rows import DeliveryRow, Name
from shards.record import decode
from shards.store import Store
from timeline.delivery_rows import Case, Event
from timeline.filters import SHARE_PREFIX
from timeline.position import START, MessageId, Position

from ..membership import Membership
from ..place import Place
from ..retries import Retries
from ..shared import ENDPOINT_PREFIX
from ..url_groups import UrlGroups
from .lives import Lives

May = Callable[[DeliveryRow, Place | None], bool]
"""Whether the caller may act on a row, and send to this session or group."""
BURIED = "buried"
"""Reason of a dead letter that somebody has buried; the last try's reason follows."""
_CASE = Case(START)


class KeptRetries:
    """Retries that wait."""

    def __init__(self, store: Store, groups: Membership, retries: Retries, lives: Lives) -> None:
        self._store = store
        self._groups = groups
        self._retries = retries
        self._lives = lives

    def read(self, start: Position = START, *, group: str | None = None) -> Iterator[DeliveryRow]:
        """Waiting retries at or behind `start`, by time; of places of one name if named."""
        if group is None:
            return self._waiting(rows.waiting(self._store, start))
        session = self._groups.named(group)
        places = [*self._groups.called(group), *([] if session is None else [session])]
        return merge(*(self._retries.kept(one, start) for one in places), key=attrgetter("at"))

    def of_message(self, message: MessageId) -> Iterator[DeliveryRow]:
        """Waiting retries of one message, one per place."""
        return self._waiting(row for row in rows.of_message(self._store, message) if row.is_waiting)

    def _waiting(self, found: Iterator[DeliveryRow]) -> Iterator[DeliveryRow]:
        return (row for row in found if self._place_of(row) is not None)

    def _place_of(self, row: DeliveryRow) -> Place | None:
        """The session or group for which it waits."""
        one = self._groups.place_of(row)
        return None if one is not None and one.rows.holds(row.root) else one

    # -- in the writer: False, if it does not wait, or that is not allowed. Each raises Refused, Corrupt,
    # before anything is changed

    def try_(self, commit: Commit, name: Name, due_ms: int, may: May) -> bool:
        """Set the time of the next try."""
        return self._change(
            commit, name, may, Event.TRY, Case(START, delay_ms=due_ms - commit.open_batch.wall_ms)
        )

    def bury(self, commit: Commit, name: Name, may: May) -> bool:
        """Make it a dead letter."""
        return self._change(commit, name, may, Event.BURY, _CASE)

    def drop(self, commit: Commit, name: Name, may: May) -> bool:
        return self._change(commit, name, may, Event.DROP, _CASE)

    def _change(self, commit: Commit, name: Name, may: May, event: Event, case: Case) -> bool:
        row = rows.at(commit.open_batch, name)
        place = None if row is None or not row.is_waiting else self._place_of(row)
        if row is None or place is None or not may(row, place):
            return False
        if event is Event.BURY:
            case = Case(START, reason=f"{BURIED}; {row.reason}" if row.reason else BURIED)
        return self._lives.of_row(commit, row, event, case, place)


class DeadLetters:
    """Dead letters."""

    def __init__(
        self, store: Store, groups: Membership, url_groups: UrlGroups, retries: Retries, lives: Lives
    ) -> None:
        self._store = store
        self._groups = groups
        self._url_groups = url_groups
        self._retries = retries
        self._lives = lives

    def read(self, start: Position = START, *, group: str | None = None) -> Iterator[DeliveryRow]:
        """Dead letters by time of death, from `start` on; of one group or session if named."""
        if group is None:
            return rows.dead(self._store, start)
        if group.startswith(SHARE_PREFIX):
            group = group.removeprefix(SHARE_PREFIX).partition("/")[0]
        names = group, ENDPOINT_PREFIX + group
        return merge(*(rows.dead_of(self._store, name, start) for name in names), key=attrgetter("at"))

    def of_message(self, message: MessageId) -> Iterator[DeliveryRow]:
        """Dead letters of one message, one per group."""
        return (row for row in rows.of_message(self._store, message) if row.is_dead)

    # -- in the writer

    def requeue(self, commit: Commit, name: Name, due_ms: int, may: May, to: Place | None = None) -> bool:
        """Requeue for its place, or `to` another. False if the letter or the place is gone, or it is not
        allowed.

        Raises Refused, Corrupt, before anything is changed.
        """
        row = rows.at(commit.open_batch, name)
        if row is None or not row.is_dead:
            return False
        record = decode(row.record)
        place = self._groups.place_of(row) if to is None else to
        if not record.topic:
            return False  # only its id is known
        if (
            place is None
            and b"://" in record.deliver_to
            and row.group.startswith(ENDPOINT_PREFIX)
            and may(row, None)
        ):
            place = self._url_groups.find(record)
        if place is None or self._groups.named(place.session.client_id) is not place or not may(row, place):
            return False  # its place has ended, whatever has its name now
        is_own, is_to_come = place.whose == row.whose, self._retries.is_to_come(place, row.root, record)
        case = Case(START, delay_ms=due_ms - commit.open_batch.wall_ms)
        if not self._lives.come(
            commit, row, Event.REQUEUE if is_own else Event.COME, case, place, is_to_come=is_to_come
        ):
            return False
        return is_own or self._lives.of_row(commit, row, Event.SEND_AWAY, _CASE, self._groups.place_of(row))

    def drop(self, commit: Commit, name: Name, may: May) -> bool:
        """Drop a dead letter; False if it is gone, or that is not allowed. Raises Corrupt."""
        row = rows.at(commit.open_batch, name)
        if row is None or not row.is_dead or not may(row, None):
            return False
        return self._lives.of_row(commit, row, Event.DROP, _CASE, None)
