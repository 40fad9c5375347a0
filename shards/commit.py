"""What goes into one group commit, and every answer of the write path.

The writer opens a group (`begin`), hands in the requests one after the other in the order of their
arrival, closes it (`seal`: one atomic batch, readable but not yet durable) and, when the sync is done,
sends the answers that were decided here. Decisions are made against what is stored plus what this group
has already changed, so that two cancels of one message in one group get the same truth as in two.

    begin(wall) -> put, cancel, move, release, ... -> seal() -> Group -> (sync) -> durable(group)

A message's place is chosen here and nowhere else (DESIGN: "position"). A batch of drafts is checked whole
before the first row is placed, so a refused one leaves nothing behind.

Rows of fresh drafts cannot be cancelled or moved within their own group: nobody has been told their ids.

`put` is written for speed: at 150,000 messages a second everything from the socket to the disk has 6.6
microseconds a message, and its inner loop takes about 1.5 of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from timeline.horizon import HELD, Horizon
from timeline.position import END, HELD_SHARD, MessageId, Position, before, id_position, message_id
from timeline.slices import NARROWEST_MS, SHARDS_MAX, Directory, Shard, Slice, SlicesError, TooManyShards
from timeline.structures import ANYTHING, Structures

from . import borrow, keys
from .dedupe import Draft, Refused, Replayed, known_keys, woven
from .group import ROW_OVERHEAD, Caps, Control, Group, Outcome
from .read import Found, find
from .record import CANCELLED, MOVED, decode, is_stub, stub, with_id
from .store import Batch, Store, Table
from .tables import (
    META_CURSOR,
    DedupeRow,
    StoredCursor,
    cursor_value,
    dedupe_from,
    dedupe_value,
    shard_value,
    slice_value,
    wall_value,
)

SLICE_STRUCTURES = 33
"""Structures that a slice opens, structure 0 among them."""


class Commit:
    """Composes groups. One writer: calls come one after the other, never from two threads."""

    def __init__(
        self,
        store: Store,
        directory: Directory,
        structures: Structures,
        horizon: Horizon,
        *,
        node: int,
        caps: Caps,
        pending: int,
    ) -> None:
        self._store = store
        self.structures = structures
        self.directory = directory
        self.horizon = horizon
        self.node = node
        self.caps = caps
        self.pending = pending
        """Messages neither dispatched nor cancelled. Derived: counted at start, kept up here."""
        self.held = 0
        """Messages in the table `held`. Derived, like `pending`."""
        self.retired: Callable[[bytes, Position], None] = lambda prefix, place: None
        """Told of each row that a cancel or move overwrites: its shard's prefix and its position."""
        self.running_ms = 0
        """Server running time over all starts; the writer sets it before `seal`."""
        self._wall_ms = 0
        self._group = Group()
        self._batch: Batch = store.batch()
        self._fresh: dict[tuple[Table, bytes], bytes | None] = {}
        self._touched: dict[bytes, Shard] = {}
        self._slices: dict[int, Slice] = {}
        self._quarters: dict[int, Slice] = {}

    def begin(self, wall_ms: int) -> None:
        """Open a group; `wall_ms` is what the clock shows for all of it."""
        self.horizon.observe(wall_ms)
        self._wall_ms = wall_ms
        self._group = Group()
        self._batch = self._store.batch()
        self._fresh.clear()
        self._touched.clear()
        self._slices.clear()
        if len(self._quarters) > 2 * self.directory.max_slices:
            self._quarters.clear()

    def forget(self) -> None:
        """Drop what was composed and every cached slice: the directory is about to be read again."""
        self._quarters.clear()
        self.begin(self._wall_ms)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been written into the open group."""
        return not len(self._batch)

    def get(self, table: Table, key: bytes) -> bytes | None:
        """A stored value as this group leaves it."""
        marker = (table, key)
        return self._fresh[marker] if marker in self._fresh else self._store.get(table, key)

    def find(self, wanted: MessageId) -> Found | None:
        return find(self.get, self.directory, wanted)

    # -- messages

    def put(self, drafts: Sequence[Draft]) -> list[MessageId | Replayed]:
        """Place all drafts or none; ids in their order. Raises Refused, naming the first that cannot be."""
        known = known_keys(drafts, self.taken) if any(draft.key for draft in drafts) else {}
        fresh = [draft for index, draft in enumerate(drafts) if index not in known] if known else drafts
        self.check_pending(len(fresh))
        ids: list[MessageId | Replayed] = list(self.place(fresh, self.reserve(fresh)))
        return woven(ids, known, len(drafts)) if known else ids

    def put_known(self, draft: Draft) -> MessageId:
        """Place one message without a key, that the rest of this group may cancel or move."""
        self.check_pending(1)
        spots = self.reserve([draft])
        (row,) = self.place([draft], spots)
        if spots[0][1] is not None:
            self._settle(draft.value, 0)
        return row

    def cancel(self, wanted: MessageId) -> Control:
        """Make sure that nobody gets the message, if dispatch has not come to it."""
        control = self._open(wanted)
        if control.outcome is Outcome.CANCELLED:
            return Control(Outcome.DONE, control.found)
        if control.outcome is Outcome.DONE:
            assert control.found is not None
            self._retire(control.found, CANCELLED)
            self.pending -= 1
        return control

    def move(
        self, wanted: MessageId, due_ms: int, expected: MessageId | None = None, *, zone: bytes = b""
    ) -> Control:
        """Another due (`zone`: as wall time); same id, new position. `expected`: only if its row is this."""
        control = self._open(wanted)
        found = control.found
        if control.outcome is not Outcome.DONE or found is None:
            return control
        if expected is not None and found.row_id != expected:
            return Control(Outcome.CHANGED, found)
        spots = self.reserve([Draft(due_ms, b"", b"")])
        value = with_id(found.value, wanted, due_ms, zone)
        self._retire(found, MOVED)
        row = self.rehome(wanted, value, due_ms, spots[0])
        return Control(Outcome.DONE, found, row)

    def release(self, place: Position) -> None:
        """Put a held message on the timeline: the wall clock has reached its due."""
        value = self.get(Table.HELD, keys.place(place))
        if value is None:
            return
        record = decode(value)
        wanted = MessageId(record.id or message_id(place, HELD_SHARD, self.node))
        # First: when it is refused the message must stay where it is.
        spots = self.reserve([Draft(record.due_ms, b"", b"")])
        self._delete(Table.HELD, keys.place(place))
        self.held -= 1
        self.rehome(wanted, with_id(value, wanted, record.due_ms), record.due_ms, spots[0])

    # -- other rows

    def row(self, table: Table, key: bytes, value: bytes | None) -> None:
        """Put a row of a small table, or delete it."""
        if value is None:
            self._delete(table, key)
        else:
            self._put(table, key, value)

    def clear(self, table: Table, start: bytes, end: bytes) -> None:
        """Delete every row of a small table with start <= key < end."""
        self._batch.delete_range(table, start, end)

    def dispatched(self, turns: Iterable[tuple[Position, int]]) -> None:
        """Note dispatch turns: (last position, wall ms)."""
        for place, wall_ms in turns:
            self._batch.put(Table.DISPATCHES, keys.place(place), wall_value(wall_ms))

    def passed(self, piece: Slice) -> None:
        """The horizon has passed the slice: its retention begins now."""
        piece.passed_s = self.running_ms // 1000
        self._slices[piece.start_ms] = piece

    def replaced(self, piece: Slice, children: Sequence[Slice]) -> None:
        """Narrower slices stand for one from now on: the directory and its rows."""
        self._batch.delete(Table.SLICES, keys.slice_key(piece.home))
        self._slices.pop(piece.start_ms, None)
        self.directory.drop(piece)
        for child in children:
            self.directory.adopt(child)
        self.changed(children, ())
        self._quarters.clear()

    def changed(self, pieces: Iterable[Slice], shards: Iterable[Shard]) -> None:
        """Their rows are written with this group."""
        self._slices.update((piece.start_ms, piece) for piece in pieces)
        self._touched.update((shard.prefix, shard) for shard in shards)

    def drop_shard(self, shard: Shard) -> None:
        """Delete a shard with all of its rows."""
        self._touched.pop(shard.prefix, None)
        self._batch.delete(Table.SHARDS, shard.prefix)
        self._batch.delete_range(Table.MESSAGES, *keys.shard_range(shard.prefix))

    def expire(
        self, pieces: Sequence[Slice], counted: Mapping[bytes, "borrow.Counts"] = MappingProxyType({})
    ) -> None:
        """Drop whole slices, the oldest ones; the retention floor moves to the last one's end.

        `counted`: what they hold of borrowed shards (`borrow.counted`), as far as it has been counted.
        """
        for piece in pieces:
            start, end = keys.slice_range(piece.home)
            self._batch.delete_range(Table.MESSAGES, start, end)
            self._batch.delete_range(Table.SHARDS, start, end)
            self._batch.delete(Table.SLICES, keys.slice_key(piece.home))
            self.directory.drop(piece)
            self._slices.pop(piece.start_ms, None)
            self.directory.floor = max(self.directory.floor, Position(piece.end_ms << 48))
        for piece in pieces:
            borrow.give_back(self, self._store, piece, counted)
        floor = keys.place(self.directory.floor)
        self._batch.delete_range(Table.DISPATCHES, b"", floor)
        self._quarters.clear()

    # -- the group

    def seal(self) -> Group:
        """Write the group: readable now, durable after the caller's sync. Raises StoreFailed."""
        group = self._group
        for shard in self._touched.values():
            self._batch.put(Table.SHARDS, shard.prefix, shard_value(shard))
        for piece in self._slices.values():
            self._batch.put(Table.SLICES, keys.slice_key(piece.home), slice_value(piece))
        group.bound_ms = self.horizon.open_group(group.floor)
        cursor = StoredCursor(
            self.horizon.position, group.bound_ms, self.horizon.seq, self.running_ms, self.directory.floor
        )
        self._batch.put(Table.META, META_CURSOR, cursor_value(cursor))
        group.rows = len(self._batch)
        self._store.write(self._batch)
        return group

    # -- leaves, some of them for adopt.py

    def _put(self, table: Table, key: bytes, value: bytes) -> None:
        self._batch.put(table, key, value)
        self._fresh[table, key] = value

    def _delete(self, table: Table, key: bytes) -> None:
        self._batch.delete(table, key)
        self._fresh[table, key] = None

    def check_pending(self, count: int) -> None:
        """Raise Refused if so many more would be more than may be pending."""
        if self.pending + count > self.caps.pending:
            raise Refused("over-quota", f"{self.caps.pending} messages are pending, as many as may be")

    def taken(self, key: bytes) -> DedupeRow | None:
        value = self.get(Table.DEDUPE, key)
        row = dedupe_from(value) if value is not None else None
        return row if row and row.position >= self.directory.floor else None

    def reserve(self, drafts: Sequence[Draft]) -> list[tuple[int, Slice | None]]:
        """The `at` of each draft and its slice, None: held. Opens slices; raises Refused before any row."""
        wall_ms, clock_ms = self._wall_ms, self.horizon.clock_ms
        quarters = self._quarters
        spots: list[tuple[int, Slice | None]] = []
        for index, draft in enumerate(drafts):
            due = draft.due_ms
            if due <= wall_ms:
                at = clock_ms
            elif due > clock_ms:
                at = due
            else:
                at = self.horizon.place(due, wall_ms)
            piece = quarters.get(at // NARROWEST_MS)
            if at == HELD:
                piece = None
            elif piece is None or not piece.start_ms <= at < piece.end_ms:
                try:
                    piece = self._slice_for(at)
                except SlicesError as error:
                    raise Refused("over-quota", str(error), index) from error
            spots.append((at, piece))
        return spots

    def _slice_for(self, at: int) -> Slice:
        piece = self.directory.find(at)
        if piece is None:
            piece = self.directory.open(at, self.horizon.clock_ms)
            self._slices[piece.start_ms] = piece
        if len(piece.shards) + len(piece.borrowed) >= SHARDS_MAX - 1:
            raise TooManyShards(piece.start_ms)
        self._quarters[at // NARROWEST_MS] = piece
        return piece

    def place(self, drafts: Sequence[Draft], spots: Sequence[tuple[int, Slice | None]]) -> list[MessageId]:
        """Give each draft its position and row. The inner loop of every schedule."""
        seq, node = self.horizon.seq, self.node << 48
        put, touched, placed = self._batch.put_message, self._touched, self._group.placed
        cap_messages, cap_bytes, busy = self.caps.messages, self.caps.bytes, self.caps.structure_above
        lowest = END
        ids: list[MessageId] = []
        for draft, (at, piece) in zip(drafts, spots, strict=True):
            if piece is None:
                self.horizon.seq = seq
                ids.append(self._hold(draft))
                seq = self.horizon.seq
                continue
            seq += 1
            position = Position(at << 48 | seq)
            structure = self._structure(piece, draft.topic) if piece.count >= busy else ANYTHING
            shard = piece.newest.get(structure)
            if shard is None or shard.count >= cap_messages or shard.bytes >= cap_bytes:
                shard = piece.open_shard(structure)
            value, number = draft.value, shard.number
            put(shard.prefix + position.to_bytes(12, "big"), value)
            # Shard.grow, written out.
            shard.count += 1
            shard.live += 1
            shard.bytes += len(value) + ROW_OVERHEAD
            if position < shard.first:
                shard.first = position
            if position > shard.last:
                shard.last = position
            piece.count += 1
            touched[shard.prefix] = shard
            if position < lowest:
                lowest = position
            placed.append((position, number, value))
            name = MessageId(at << 80 | number << 64 | node | seq)
            ids.append(name)
            if draft.key:
                self._remember(draft, name, position)
        self.horizon.seq = seq
        self.pending += len(ids)
        if lowest is not END:
            self._group.touch(lowest)
        return ids

    def _structure(self, piece: Slice, topic: bytes) -> int:
        """In which structure's shards of a busy slice a message goes."""
        number, pattern = self.structures.place(topic)
        if pattern is not None:
            self._put(Table.STRUCTURES, keys.structure(number), pattern.encode())
        if number in piece.newest or len(piece.newest) < SLICE_STRUCTURES:
            return number
        return ANYTHING

    def _remember(self, draft: Draft, name: MessageId, position: Position) -> None:
        row = DedupeRow(name, draft.fingerprint, draft.due_ms or position >> 48, position)
        self._put(Table.DEDUPE, draft.key, dedupe_value(row))

    def _hold(self, draft: Draft) -> MessageId:
        """The clock was set back: wait in `held` until the wall clock reaches the due."""
        place = Position(draft.due_ms << 48 | self.horizon.issue())
        self._put(Table.HELD, keys.place(place), draft.value)
        self.held += 1
        name = message_id(place, HELD_SHARD, self.node)
        if draft.key:
            self._remember(draft, name, self._kept(place))
        return name

    def _kept(self, place: Position) -> Position:
        """Where a held message counts for retention: its place will be T, which is not before the floor."""
        return max(place, before(self.horizon.clock_ms))

    def _open(self, wanted: MessageId) -> Control:
        """Whether a cancel or move of the message can still win."""
        found = self.find(wanted)
        if found is None:
            return Control(Outcome.NOT_FOUND)
        if is_stub(found.value):
            return Control(Outcome.CANCELLED, found)
        if found.shard is not None and not self.horizon.undecided(found.position):
            return Control(Outcome.ALREADY_DISPATCHED, found)
        return Control(Outcome.DONE, found)

    def _retire(self, found: Found, kind: int) -> None:
        """Overwrite a row by a stub; nothing deletes it before its slice goes."""
        left = stub(decode(found.value), kind, self._wall_ms)
        if found.shard is None:
            if kind == MOVED:
                self._delete(Table.HELD, keys.place(found.position))
                self.held -= 1
            else:
                self._put(Table.HELD, keys.place(found.position), left)
            return
        self._put(Table.MESSAGES, found.shard.prefix + keys.place(found.position), left)
        self.retired(found.shard.prefix, found.position)
        found.shard.live -= 1
        self._touched[found.shard.prefix] = found.shard
        self._group.gone.append(found.position)
        self._group.touch(found.position)

    def rehome(
        self, wanted: MessageId, value: bytes, due_ms: int, spot: tuple[int, Slice | None]
    ) -> MessageId:
        """Write a message that has an id already to a new position, and say where it is."""
        record = decode(value)
        (row_id,) = self.place([Draft(due_ms, record.topic, value)], [spot])
        self.pending -= 1
        if spot[1] is not None:
            self._settle(value, record.stub)
        self._put(Table.MOVED, keys.message(wanted), keys.message(row_id))
        taken = self.taken(record.key) if record.key else None
        if taken:
            kept = id_position(row_id) if spot[1] is not None else self._kept(id_position(row_id))
            follow = DedupeRow(taken.id, taken.fingerprint, taken.due_ms, kept)
            self._put(Table.DEDUPE, record.key, dedupe_value(follow))
        return row_id

    def _settle(self, value: bytes, dead: int) -> None:
        """A re-homed row is known to users: this group must see it. A stub is not for the wheel."""
        place, number, _ = self._group.placed[-1]
        shard = self._slice_for(place >> 48).shards[number]
        self._fresh[Table.MESSAGES, shard.prefix + keys.place(place)] = value
        if dead:
            self._group.placed.pop()
            shard.live -= 1


__all__ = ["Caps", "Commit", "Control", "Draft", "Group", "Outcome", "Refused", "Replayed"]
