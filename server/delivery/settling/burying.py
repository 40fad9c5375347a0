"""Settles what places have left undone (burials.py), step by step, by the table of a delivery's life.

    in flight                   ──┐
    waits for its key           ──┤
    not read                    ──┼──> lives.py: a dead letter with the reason; or dropped, and counted
    waits for its next try      ──┘    (of a place that has ended)

    not read by sessions when retention passes it ──> counted

One step is STEP messages or LOOK rows. Each writes its progress, in the batch with its dead letters.

One burial takes at most half of the room for dead letters at its beginning, so that it evicts no others.
Messages without room are dropped and counted, as are those to be dropped. The drop is known as long as the
message, and the log says their number at the end.

What sessions miss is counted in one pass over the rows, and the router finds who misses each: 10,000 sleeping
devices cost no more than one. They get no dead letters: a device that comes back wants new messages, and
copies of one message for all sleeping sessions would evict dead letters that users look for.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import msgspec

from shards import keys
from shards.burials import BurialRow, burial_key, burial_value
from shards.commit import Commit
from shards.deliveries import end
from shards.delivery_rows import DeliveryRow, Name, new_row, size_of, waiting_of, waits_at
from shards.errors import Corrupt
from shards.fate import is_over
from shards.fields import Record
from shards.order import buried_name, clear_keys, given_up, keys_name, rows_under, value_of
from shards.read import Row
from shards.record import decode, id_at, is_moved, is_stub
from shards.recover import Opened
from shards.store import Table
from timeline.delivery_rows import Case, Effect, Event, Out, Seen
from timeline.key_rows import NO_KEY, Address, KeyRow
from timeline.position import START, Position, at_of

from ...engine.clock import Clock
from ...engine.errand import RETRY_S, Errand
from ...engine.writer import Writer
from ...observe.logs import by, clean
from ..burials import SESSIONS, Burials
from ..router import Router
from ..shared import ENDPOINT_PREFIX
from .dead_letter_queue import DeadLetterQueue
from .lives import GONE, Lives

log = logging.getLogger(__name__)

Found = TypeVar("Found")
STEP = 50
"""Messages settled in a step, ..."""
LOOK = 1_000
"""... and rows read in a step: some 5 ms, interpreted."""
PAIRS = 5_000
"""Maximum sessions looked at in a step, over all its messages, except those of the last message: some 5
ms."""
UNREAD = Seen(is_ahead=True, replay=1)
"""A row of its delivery is from before a replay: else it would not be unread."""


class Burying:
    """Processes the burials."""

    def __init__(
        self,
        opened: Opened,
        burials: Burials,
        dead_letter_queue: DeadLetterQueue,
        lives: Lives,
        router: Router,
        writer: Writer,
        clock: Clock,
    ) -> None:
        self._opened = opened
        self._burials = burials
        self._dead_letter_queue = dead_letter_queue
        self._lives = lives
        self._router = router
        self._passed: BurialRow | None = None
        """Result of a step over the sessions, until the next one."""
        self.errand: Errand[int, BurialRow] = Errand(
            writer, clock, self._step, self._stepped, self._failed, most=1, source=burials.ready
        )

    def _step(self, commit: Commit, number: int) -> BurialRow:
        """In the writer: do a step. Returns what is left."""
        row = self._burials.active[number]
        if number == SESSIONS:
            row = self._pass_sessions(commit, row)
        elif row.flights:
            row = self._settle_flights(commit, row)
        elif row.behind:
            row = self._settle_followers(commit, number, row)
        elif not row.is_read:
            row = self._settle_unread(commit, row)
        elif row.is_ended:
            row = self._settle_retries(commit, row)
        value = burial_value(row) if number == SESSIONS or not row.is_over else None
        commit.row(Table.META, burial_key(number), value)
        self._burials.stepped[number] = row
        return row

    def _stepped(self, number: int, row: BurialRow) -> None:
        before = self._burials.active[number]
        self._burials.stepped.clear()
        self._burials.dropped[row.reason] += row.dropped - before.dropped
        self._burials.active[number] = row.cut(before.upto)
        if row.is_over:
            del self._burials.active[number]
            _tell(row)

    def _failed(self, number: int, error: Exception) -> float:
        row = self._burials.active[number]
        self._burials.stepped.clear()
        log.warning("%s: its unfinished messages wait: %s", clean(row.group), error, extra=by(row.group))
        return RETRY_S

    # -- parts of a step

    def _settle_flights(self, commit: Commit, row: BurialRow) -> BurialRow:
        flights = row.flights
        for at, shard, attempts in flights[:STEP]:
            place = keys.place_of(at)
            value = _sound(place, self._opened.reader.value_at, place, shard)
            if value is not None and is_stub(value):
                continue
            record = None if value is None else _sound(place, decode, value)
            one = self._delivery(row, (place, shard), record or GONE)
            row = self._give_up(commit, row, one, Seen(Out(attempts, attempts)))
        return msgspec.structs.replace(row, flights=flights[STEP:])

    def _settle_followers(self, commit: Commit, number: int, row: BurialRow) -> BurialRow:
        """Settle messages that waited for their keys."""
        name = keys_name(row.whose) if row.is_ended else buried_name(number)
        upto, finished, left = keys.place_of(row.read), frozenset(row.finished), STEP
        for key, one in islice(rows_under(self._opened.store, name), STEP):
            places, rest = given_up(self._opened.store, row.whose, key, one, upto, left)
            for place in places:
                value = _sound(place[0], self._opened.reader.value_at, *place)
                row = self._pass(commit, row, finished, place, value, key)
            commit.row(Table.ORDER, name + key, None if rest == KeyRow() else value_of(rest))
            left -= 1 + len(places)
            if rest != KeyRow() or left <= 0:
                return row
        return msgspec.structs.replace(row, behind=b"")

    def _settle_unread(self, commit: Commit, row: BurialRow) -> BurialRow:
        """Settle unread messages up to `upto`."""
        settled, finished, read = 0, frozenset(row.finished), row.upto
        for looked, (place, shard, value) in enumerate(self._rows(row), 1):
            was, row = row, self._pass(commit, row, finished, (place, shard), value)
            settled += row is not was
            if settled == STEP or looked == LOOK:
                read = keys.place(place)
                break
        return msgspec.structs.replace(row, read=read)

    def _settle_retries(self, commit: Commit, row: BurialRow) -> BurialRow:
        found = list(islice(waiting_of(self._opened.store, row.whose), STEP))
        for place, root in found:
            name = Name(row.whose, root)
            kept = waits_at(self._opened.store, name, place)
            if kept is None:
                end(commit, name)
                commit.row(Table.DELIVERIES, keys.delivery(keys.WAITS_OF + row.whose, place), None)
            elif kept.is_of(row.addressee, row.incarnation):
                row = self._give_up(commit, row, kept, Seen())
        if len(found) == STEP:
            return row
        clear_keys(commit, row.whose)
        return msgspec.structs.replace(row, is_ended=False)

    def _pass_sessions(self, commit: Commit, row: BurialRow) -> BurialRow:
        """Count a step of messages that sessions have not read. They read on behind it at once.

        A step whose write failed is written again unchanged: they may have read on since.
        """
        last = self._passed
        if last is not None and last.upto == row.upto and last.read > row.read:
            return last
        missed, pairs, read, horizon = 0, 0, keys.place_of(row.upto), self._opened.horizon.position
        for looked, (place, _, value) in enumerate(self._rows(row), 1):
            record = _live(commit, place, value)
            targets = self._router.route(record.topic) if record is not None and record.qos else {}
            for one, found in targets.items():
                if record is not None and not one.is_group and one.session.is_ahead(place, horizon):
                    theirs = tuple([its for its in found if its.qos and its.since < place])
                    missed += bool(theirs and one.theirs(record, theirs))
            pairs += len(targets)
            if looked == LOOK or pairs >= PAIRS:
                read = place
                break
        self._burials.passed = read
        self._passed = msgspec.structs.replace(row, read=keys.place(read), dropped=row.dropped + missed)
        return self._passed

    # -- what is undone, and what becomes of it

    def _rows(self, row: BurialRow) -> Iterator[Row]:
        """Rows of the range, as far as they may be the place's."""
        structures = self._opened.reader.structures.overlapping([text for text, _ in row.filters])
        start, end = Position(keys.place_of(row.read) + 1), Position(keys.place_of(row.upto) + 1)
        return self._opened.reader.read(start, end, structures)

    def _pass(
        self,
        commit: Commit,
        row: BurialRow,
        finished: frozenset[bytes],
        at: Address,
        value: bytes | None,
        key: bytes | None = None,
    ) -> BurialRow:
        """Give up a message that the place had still to get. `key`: that it waited for; one of another key
        may stand there."""
        place, _ = at
        # What is withheld comes again, for all.
        is_over = keys.place(place) in finished or self._opened.withheld.has(place)
        record = None if value is None or is_over else _live(commit, place, value)
        if record is None or (key is not None and key != (record.ordering_key or NO_KEY)):
            return row
        is_wanted = row.asks(place, record.topic.decode())
        if row.group.startswith(ENDPOINT_PREFIX):
            is_wanted = self._router.is_for(row.group.removeprefix(ENDPOINT_PREFIX), record, place)
        return self._give_up(commit, row, self._delivery(row, at, record), UNREAD) if is_wanted else row

    def _delivery(self, row: BurialRow, at: Address, record: Record) -> DeliveryRow:
        name = id_at(*at, self._opened.open_batch.node, record.id)
        return new_row(row.whose, row.names, at[0], name, at[1], record)

    def _give_up(self, commit: Commit, row: BurialRow, one: DeliveryRow, seen: Seen) -> BurialRow:
        """As the table says: a dead letter, while there is room, or dropped; or it stays as it is."""
        event = Event.SKIP if seen.out is None else Event.SLICE_GOES
        running_ms = commit.open_batch.running_ms
        dead_letter = msgspec.structs.replace(
            one, reason=row.reason, keeper=row.keeper, running_ms=running_ms
        )
        size, (count, left) = size_of(dead_letter), row.room or self._dead_letter_queue.half_of_room(commit)
        is_dead = row.is_dead and count > 0 and size <= left
        case = Case(START, reason=row.reason, is_dead=is_dead, keeper=row.keeper)
        fate = self._lives.give_up(commit, one, Event.END_OF_PLACE if row.is_ended else event, case, seen)
        is_buried, is_dropped = Effect.COUNT_DEAD in fate.effects, Effect.COUNT_DROPPED in fate.effects
        return msgspec.structs.replace(
            row,
            room=(count - is_buried, left - is_buried * size),
            buried=row.buried + is_buried,
            dropped=row.dropped + is_dropped,
        )


def _live(commit: Commit, place: Position, value: bytes) -> Record | None:
    """A message that may still be given; None: it is not, or cannot be read."""
    record = None if is_stub(value) or is_moved(value) else _sound(place, decode, value)
    if record is None or is_over(record.due_ms or at_of(place), record.expires_ms, commit.open_batch.wall_ms):
        return None
    return record


def _sound(place: Position, read: Callable[..., Found], *arguments: object) -> Found | None:
    """None: it cannot be read."""
    try:
        return read(*arguments)
    except Corrupt as error:
        log.error("message at %024x: unreadable, skipped: %s", place, error)
        return None


def _tell(row: BurialRow) -> None:
    if row.buried or row.dropped:
        text = "%s: %s: %d unfinished messages became dead letters, %d were dropped"
        log.warning(text, clean(row.group), row.reason, row.buried, row.dropped, extra=by(row.group))
