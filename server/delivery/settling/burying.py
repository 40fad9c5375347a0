"""Settles the unfinished messages of ended places (burials.py), step by step.

    in flight     ──┐
    not read      ──┼──> a dead letter of the place, with the reason; or dropped, and counted
    its retries   ──┘

    not read by sessions when retention passes it ──> counted (missed.py)

One step is STEP messages or LOOK rows. Each writes its progress, in the batch with its dead letters.

One burial takes at most half of the room for dead letters at its beginning, so that it evicts no others.
Messages without room are dropped and counted, as are those to be dropped. The drop is known as long as the
message (`dropped`, deliveries.py), and the log says their number at the end.
"""

import logging
from collections.abc import Iterator
from itertools import islice

import msgspec

from shards import keys
from shards.burials import BurialRow, burial_key, burial_value
from shards.commit import Commit
from shards.deliveries import drop, end
from shards.delivery_rows import DeliveryRow, Name, RowsAhead, size_of, state_at, waiting_of, waits_at, whose
from shards.errors import Corrupt
from shards.fate import is_over
from shards.fields import Record
from shards.order import buried_name, clear_keys, followers, keys_name, rows_under, value_of
from shards.read import Reader
from shards.record import decode, encode, id_at, is_moved, is_stub, topic_of
from shards.store import Store, Table
from shards.tables import DEAD, DROPPED
from timeline.filters import matches
from timeline.key_rows import NO_KEY, NO_SHARD, NOWHERE, Address, KeyRow
from timeline.position import START, MessageId, Position

from ...engine.clock import Clock
from ...engine.errand import RETRY_S, Errand
from ...engine.writer import Writer
from ...observe.logs import by, shown
from ..burials import SESSIONS, Burials
from ..router import Router
from .letters import Letters
from .lives import Lives
from .missed import PAIRS, Missed

log = logging.getLogger(__name__)

_NOTHING = encode(Record(b"", b""))
"""Stands for a message that is gone, or cannot be read."""
STEP = 100
"""Messages settled in a step, ..."""
LOOK = 1_000
"""... and rows read in a step: some 5 ms."""


class Burying:
    """Processes the burials."""

    def __init__(
        self,
        store: Store,
        reader: Reader,
        burials: Burials,
        letters: Letters,
        lives: Lives,
        missed: Missed,
        router: Router,
        writer: Writer,
        clock: Clock,
        *,
        node: int,
    ) -> None:
        self._store = store
        self._reader = reader
        self._burials = burials
        self._letters = letters
        self._lives = lives
        self._missed = missed
        self._router = router
        self._node = node
        self._passed: BurialRow | None = None
        """Result of a step over the sessions, until the next one."""
        self.errand: Errand[int, BurialRow | None] = Errand(
            writer, clock, self._step, self._stepped, self._failed, most=1, source=burials.ready
        )

    def _step(self, commit: Commit, number: int) -> BurialRow | None:
        """In the writer: do a step. Returns the remaining burial; None: finished."""
        row = self._burials.active[number]
        if number == SESSIONS:
            row = self._pass_sessions(commit, row)
            commit.row(Table.META, burial_key(number), burial_value(row))
            return row
        if row.room is None:
            row = msgspec.structs.replace(row, room=self._letters.half_of_room(commit))
        if row.flights:
            row = self._settle_flights(commit, row)
        elif not row.is_read:
            row = self._settle_unread(commit, row)
        elif row.has_retries:
            row = self._settle_retries(commit, row)
        elif row.behind:
            row = self._settle_followers(commit, number, row)
        commit.row(Table.META, burial_key(number), None if row.is_over else burial_value(row))
        return row

    def _stepped(self, number: int, row: BurialRow | None) -> None:
        before = self._burials.active[number]
        assert row is not None, "a step leaves a row"
        self._burials.dropped[row.reason] += row.dropped - before.dropped
        self._letters.note_buried(row.buried - before.buried)
        self._burials.active[number] = row
        if row.is_over:
            del self._burials.active[number]
            _tell(row)

    def _failed(self, number: int, error: Exception) -> float:
        row = self._burials.active[number]
        log.warning("%s: its unfinished messages wait: %s", shown(row.group), error, extra=by(row.group))
        return RETRY_S

    # -- parts of a step

    def _settle_flights(self, commit: Commit, row: BurialRow) -> BurialRow:
        taken, left = row.flights[:STEP], row.flights[STEP:]
        for at, shard, attempts in taken:
            place = keys.place_of(at)
            try:
                value = self._reader.value_at(place, shard)
                if value is not None and is_stub(value):
                    continue
                name = id_at(place, shard, self._node, 0 if value is None else decode(value).id)
            except Corrupt:
                value, name = None, id_at(place, shard, self._node, 0)
            row = self._settle(commit, row, name, value or b"", attempts, (place, shard))
        return msgspec.structs.replace(row, flights=left)

    def _settle_unread(self, commit: Commit, row: BurialRow) -> BurialRow:
        """Settle unread messages up to `upto`."""
        settled = 0
        read, upto = keys.place_of(row.read), keys.place_of(row.upto)
        finished, ahead = frozenset(row.finished), self._rows_ahead(row, read)
        for looked, (place, shard, value) in enumerate(self._unread(row), 1):
            read = place
            is_done = keys.place(place) in finished
            name = None if is_done else self._wanted(commit, row, place, shard, value, ahead)
            if name is not None:
                row = self._settle(commit, row, name, value, 0, (place, shard))
                settled += 1
            if settled == STEP or looked == LOOK:
                break
        else:
            read = upto
        return msgspec.structs.replace(row, read=keys.place(read))

    def _pass_sessions(self, commit: Commit, row: BurialRow) -> BurialRow:
        """Count a step of messages that sessions have not read. They read on behind it at once.

        A step whose write failed is written again unchanged: they may have read on since.
        """
        last = self._passed
        if last is not None and last.upto == row.upto and last.read > row.read:
            return last
        missed, self._missed.pairs = 0, 0
        read = keys.place_of(row.upto)
        for looked, (place, _, value) in enumerate(self._unread(row), 1):
            missed += self._missed.count(commit, place, value)
            if looked == LOOK or self._missed.pairs >= PAIRS:
                read = place
                break
        self._burials.passed = read
        self._passed = msgspec.structs.replace(row, read=keys.place(read), dropped=row.dropped + missed)
        return self._passed

    def _unread(self, row: BurialRow) -> Iterator[tuple[Position, int, bytes]]:
        filters = () if row.endpoint else tuple(text for text, _ in row.filters)
        structures = self._reader.structures.overlapping(filters)
        start, end = Position(keys.place_of(row.read) + 1), Position(keys.place_of(row.upto) + 1)
        return self._reader.read(start, end, structures)

    def _wanted(
        self, commit: Commit, row: BurialRow, place: Position, shard: int, value: bytes, ahead: RowsAhead
    ) -> MessageId | None:
        """The id of a message that the place had still to get; None: not its message, or over."""
        if is_stub(value) or is_moved(value):
            return None
        try:
            if not self._fits(row, place, value):
                return None
            record = decode(value)
        except Corrupt as error:
            log.error("message at %024x: unreadable, skipped: %s", place, error)
            return None
        due_ms = record.due_ms or place >> 48
        if is_over(due_ms, record.expires_ms, commit.open_batch.wall_ms):
            return None
        name = id_at(place, shard, self._node, record.id)
        state = state_at(commit.open_batch, Name(ahead.whose, place)) if ahead.has(place) else None
        if state is None or state.state == DROPPED:
            return name
        is_ended = record.ordering_key and self._lives.end_former(commit, row, place)
        return name if is_ended else None

    def _rows_ahead(self, row: BurialRow, read: Position) -> RowsAhead:
        """Which of the place's deliveries behind `read` have rows: it had been set back."""
        return RowsAhead(self._store, whose(row.addressee, row.incarnation), Position(read + 1))

    def _fits(self, row: BurialRow, place: Position, value: bytes) -> bool:
        """Whether the place had asked for a message. Raises Corrupt."""
        asked = [text for text, since in row.filters if since < keys.place(place)]
        if row.endpoint:
            return bool(asked) and self._router.is_for(row.endpoint, value, place)
        topic = topic_of(value).decode()
        return any(matches(text, topic) for text in asked)

    def _settle_retries(self, commit: Commit, row: BurialRow) -> BurialRow:
        count, over = 0, frozenset(row.over)
        of = whose(row.addressee, row.incarnation)
        for place, root in waiting_of(self._store, of):
            if count == STEP:
                return row
            count += 1
            kept = waits_at(self._store, Name(of, root), place)
            if kept is None:
                end(commit, Name(of, root))
                commit.row(Table.DELIVERIES, keys.waits_of(of, place), None)
                continue
            if not kept.is_of(row.addressee, row.incarnation):
                continue
            if keys.place(root) in over:
                end(commit, kept.name)
            else:
                letter = msgspec.structs.replace(
                    kept, reason=row.reason, running_ms=commit.open_batch.running_ms
                )
                row = self._keep(commit, row, letter)
        return msgspec.structs.replace(row, has_retries=False)

    def _settle_followers(self, commit: Commit, number: int, row: BurialRow) -> BurialRow:
        """Settle messages that waited for their keys, a step's worth."""
        of, finished = whose(row.addressee, row.incarnation), frozenset(row.finished)
        name = keys_name(of) if row.is_ended else buried_name(number)
        upto, left = keys.place_of(row.behind_upto), STEP
        for key, one in islice(rows_under(self._store, name), STEP):
            places, end = list[Address](), upto
            if one.next > upto:  # it is read again
                one = KeyRow()
            if one.next != NOWHERE:
                places, end = followers(self._store, of, key, one.next, upto, left)
            is_more = end < upto or len(places) == left
            following = places[-1][0] if len(places) == left else end
            if one.shard != NO_SHARD and places[:1] != [(one.next, one.shard)]:
                places.insert(0, (one.next, one.shard))
            ahead = self._rows_ahead(row, Position(places[0][0] - 1) if places else upto)
            for place, shard in places:
                value = None if keys.place(place) in finished else self._follower(place, shard, key)
                letter = None if value is None else self._wanted(commit, row, place, shard, value, ahead)
                if letter is not None and value is not None:
                    row = self._settle(commit, row, letter, value, 0, (place, shard))
            again = value_of(KeyRow(Position(following + 1))) if is_more else None
            commit.row(Table.ORDER, name + key, again)
            left -= 1 + len(places)
            if is_more or left <= 0:
                return row
        if row.is_ended:
            clear_keys(commit, of)
        return msgspec.structs.replace(row, behind=b"")

    def _follower(self, place: Position, shard: int, key: bytes) -> bytes | None:
        """A message that waited for its key; None: it is gone, or of another key with the same hash."""
        try:
            value = self._reader.value_at(place, shard)
            return value if value is not None and (decode(value).ordering_key or NO_KEY) == key else None
        except Corrupt as error:
            log.error("message at %024x: unreadable, skipped: %s", place, error)
            return None

    def _settle(
        self,
        commit: Commit,
        row: BurialRow,
        name: MessageId,
        value: bytes,
        attempts: int,
        address: Address,
    ) -> BurialRow:
        root, shard = address
        letter = DeliveryRow(
            state=DEAD,
            whose=whose(row.addressee, row.incarnation),
            root=root,
            at=START,
            addressee=row.addressee,
            group=row.group,
            incarnation=row.incarnation,
            id=name,
            shard=max(shard, 0),
            record=value or _NOTHING,
            attempts=attempts,
            counted=0,
            reason=row.reason,
            keeper=row.keeper,
            running_ms=commit.open_batch.running_ms,
            due_ms=0,
            tries=[],
            returns=0,
        )
        return self._keep(commit, row, letter)

    def _keep(self, commit: Commit, row: BurialRow, letter: DeliveryRow) -> BurialRow:
        """Keep a dead letter while there is room; else drop the message."""
        size = size_of(letter)
        count, left = row.room or (0, 0)
        if row.is_dead and count and size <= left:
            self._letters.keep(commit, letter)
            return msgspec.structs.replace(row, room=(count - 1, left - size), buried=row.buried + 1)
        drop(commit, letter)
        return msgspec.structs.replace(row, dropped=row.dropped + 1)


def _tell(row: BurialRow) -> None:
    if row.buried or row.dropped:
        text = "%s: %s: %d unfinished messages became dead letters, %d were dropped"
        log.warning(text, shown(row.group), row.reason, row.buried, row.dropped, extra=by(row.group))
