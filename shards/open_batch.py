"""The open batch: rows of the next group commit, and the positions of its messages.

`begin` opens a group, it takes rows, and `seal` closes it: one atomic batch, readable but not yet durable.
`get` sees what the open group has written. So every decision is made against what is stored plus what this
group has already changed.

    begin(wall) -> row, reserve + place, retire, replaced, ... -> seal() -> GroupCommit

`reserve` chooses a message's `at` and slice. It opens missing slices, and refuses before the first row is
placed. `place` then assigns positions and writes rows. Positions are chosen only here (DESIGN: "position").
`get` does not see rows of new messages (no client has their ids yet) until `settle` or `reveal` shows them.

commit.py decides whether a message can be put, cancelled or moved, and counts the waiting messages, except
for rows of `held`, which are put and deleted here. Each owner's counters are written with every group
(owned.py): they belong to its horizon.

`place` is written for speed: at 150,000 messages a second the whole path from socket to disk has 6.6
microseconds a message; this inner loop takes about 1.5.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from timeline.horizon import HELD, Horizon
from timeline.position import END, HELD_SHARD, MessageId, Position, before, message_id, seq_of
from timeline.slices import NARROWEST_MS, SHARDS_MAX, Directory, Shard, Slice, SlicesError, TooManyShards
from timeline.structures import ANYTHING, Structures

from . import keys
from .dedupe import Refused
from .draft import Draft
from .errors import Corrupt
from .gathered import Gathered
from .group_commit import Caps, GroupCommit
from .owned import Owned
from .read import Found, Row
from .record import is_posted
from .steps import STEP, Bits, T
from .store import Batch, Store, Table
from .tables import (
    META_CURSOR,
    NO_EXTRA,
    KeyExtra,
    StoredCursor,
    cursor_value,
    extra_value,
    known_value,
    number_value,
    shard_value,
    slice_value,
)
from .waiting import Waiting

SLICE_STRUCTURES = 33
"""Maximum structures of a slice, including structure 0."""


class OpenBatch:
    """The open batch. Calls come one after the other, never from two threads."""

    def __init__(
        self,
        store: Store,
        directory: Directory,
        structures: Structures,
        horizon: Horizon,
        waiting: Waiting,
        owned: Owned,
        *,
        node: int,
        caps: Caps,
        running_ms: int,
        notes_ends: bool = False,
    ) -> None:
        """`notes_ends`: whether there is an archive, which takes how deliveries ended (ended.py)."""
        self.store = store
        self.notes_ends = notes_ends
        self.ends_lost = 0
        """Ends for which the journal had no room, since the start."""
        self._structures = structures
        self._waiting = waiting
        self._owned = owned
        self._caps = caps
        self.directory = directory
        self.horizon = horizon
        self.node = node
        self.running_ms = running_ms
        """Running time of the server over all starts, written with the group; `ran` adds to it."""
        self.wall_ms = 0
        """The clock's reading for the whole group."""
        self.made = GroupCommit()
        """The open group so far."""
        self._batch: Batch = store.batch()
        self._fresh: dict[Table, dict[bytes, bytes | None]] = {table: {} for table in Table}
        self._touched: dict[bytes, Shard] = {}
        self._slices: dict[int, Slice] = {}
        self._quarters: dict[int, Slice] = {}
        self._extras: dict[bytes, KeyExtra] = {}
        """Values stored with idempotency keys, for the rows that this batch writes."""

    def begin(self, wall_ms: int) -> None:
        """Open a group; `wall_ms` is the clock's reading for all of it."""
        self.horizon.observe(wall_ms)
        self.wall_ms = wall_ms
        self._waiting.begin()
        self._owned.begin()
        self.made = GroupCommit(first_seq=self.horizon.seq)
        self._batch = self.store.batch()
        for rows in self._fresh.values():
            rows.clear()
        self._touched.clear()
        self._slices.clear()
        self._extras.clear()
        if len(self._quarters) > 2 * self.directory.max_slices:
            self._quarters.clear()

    def resume(self, wall_ms: int) -> None:
        """Set the clock's reading for a group that is still open in another turn of the loop."""
        self.horizon.observe(wall_ms)
        self.wall_ms = wall_ms

    def forget(self) -> None:
        """Drop all composed rows and cached slices: the directory is about to be read again."""
        self._quarters.clear()
        self.begin(self.wall_ms)

    def ran(self, passed_ms: int) -> None:
        """Add to the running time."""
        self.running_ms += passed_ms

    @property
    def mark(self) -> tuple[int, int, int]:
        """Changes with every row that is composed."""
        return len(self._batch), len(self._touched), len(self._slices)

    @property
    def size(self) -> int:
        """Bytes of the composed rows."""
        return self._batch.size

    @property
    def is_empty(self) -> bool:
        """Whether the open group has no rows."""
        return not len(self._batch)

    def get(self, table: Table, key: bytes) -> bytes | None:
        """A stored value as this group leaves it."""
        fresh = self._fresh[table]
        return fresh[key] if key in fresh else self.store.get(table, key)

    def is_new(self, key: bytes) -> bool:
        """Whether certainly no message has this idempotency key."""
        try:
            return key not in self._fresh[Table.DEDUPE] and self.store.get(Table.DEDUPE, key) is None
        except Corrupt:
            return False

    def fresh(self, table: Table, start: bytes | tuple[bytes, ...]) -> list[bytes]:
        """Keys that begin with `start`, or one of these, and that this group has put into a table, in the
        order written. Scans all that the group wrote there."""
        rows = self._fresh[table]
        return [key for key, value in rows.items() if value is not None and key.startswith(start)]

    def deleted(self, table: Table, start: bytes) -> list[bytes]:
        """Keys that begin with `start` and that this group deletes from a table. Scans as `fresh` does."""
        rows = self._fresh[table]
        return [key for key, value in rows.items() if value is None and key.startswith(start)]

    def row(self, table: Table, key: bytes, value: bytes | None) -> None:
        """Put a row, or delete it; `get` sees it."""
        if value is None:
            self._batch.delete(table, key)
        else:
            self._batch.put(table, key, value)
        self._fresh[table][key] = value

    def keep_extra(self, key: bytes, extra: KeyExtra) -> None:
        """Set the values stored with the key, for a new message that this batch places under it."""
        if extra != NO_EXTRA:
            self._extras[key] = extra
        else:
            self._extras.pop(key, None)

    def extra_of(self, key: bytes) -> KeyExtra:
        """The values that the last `keep_extra` set for the key."""
        return self._extras.get(key, NO_EXTRA)

    def hold_back(self, place: Position) -> None:
        """Keep the horizon from passing something that is only in RAM, until this group is durable."""
        self.made.touch(place)

    def clear(self, table: Table, start: bytes, end: bytes) -> None:
        """Delete every stored row with start <= key < end. `get` still finds them: nobody reads them
        again."""
        self._batch.delete_range(table, start, end)

    def count(self) -> None:
        """Put the rows of all touched shards and slices. Raises what a wrong number raises."""
        for shard in self._touched.values():
            self._batch.put(Table.SHARDS, shard.prefix, shard_value(shard))
        for piece in self._slices.values():
            self._batch.put(Table.SLICES, keys.slice_key(piece.home), slice_value(piece))
        self._touched.clear()
        self._slices.clear()

    def seal(self) -> GroupCommit:
        """Write the group: readable now, durable after the caller's sync. Raises StoreFailed."""
        self.count()
        made = self.made
        made.last_seq = self.horizon.seq
        made.bound_ms = self.horizon.open_batch(made.floor)
        cursor = StoredCursor(
            self.horizon.position, made.bound_ms, self.horizon.seq, self.running_ms, self.directory.floor
        )
        self._batch.put(Table.META, META_CURSOR, cursor_value(cursor))
        self._owned.write(self._batch)
        made.rows = len(self._batch)
        self.store.write(self._batch)
        self._owned.written()
        return made

    # -- messages

    def reserve(self, drafts: Sequence[Draft]) -> list[tuple[int, Slice | None]]:
        """The `at` and slice of each draft (None: held). Opens slices; raises Refused before any row."""
        wall_ms, clock_ms = self.wall_ms, self.horizon.clock_ms
        quarters = self._quarters
        reserved: list[tuple[int, Slice | None]] = []
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
            reserved.append((at, piece))
        return reserved

    def _slice_for(self, at: int) -> Slice:
        piece = self.directory.find(at)
        if piece is None:
            piece = self.directory.open(at, self.horizon.clock_ms)
            self._slices[piece.start_ms] = piece
        if len(piece.shards) + len(piece.borrowed) >= SHARDS_MAX - 1:
            raise TooManyShards(piece.start_ms)
        self._quarters[at // NARROWEST_MS] = piece
        return piece

    def stay_below(self, reserved: Sequence[tuple[int, Slice | None]]) -> None:
        """Keep the horizon below the reserved places until messages are placed there."""
        lowest = min((at for at, piece in reserved if piece is not None), default=None)
        if lowest is not None:
            self.made.touch(Position(lowest << 48 | self.horizon.seq + 1))

    def place_in_steps(self, drafts: Sequence[Draft], step: int = STEP) -> Bits[list[MessageId]]:
        """`reserve` and `place` in steps. Raises Refused before the first row, in the first step."""
        reserved = self.reserve(drafts)
        self.stay_below(reserved)
        ids: list[MessageId] = []
        for start in range(0, len(drafts), step):
            yield
            ids += self.place(drafts[start : start + step], reserved[start : start + step])
        return ids

    def in_order(self, bits: Bits[T]) -> Bits[T]:
        """Run these steps, and write all their rows in key order (gathered.py)."""
        gathered = Gathered(self._batch)
        self._batch = gathered
        try:
            answer = yield from bits
            yield from gathered.pour_in_steps()
        finally:
            if self._batch is gathered:
                gathered.pour()
                self._batch = gathered.batch
        return answer

    def place(self, drafts: Sequence[Draft], reserved: Sequence[tuple[int, Slice | None]]) -> list[MessageId]:
        """Give each draft its position and row. The inner loop of every schedule."""
        seq, node = self.horizon.seq, self.node << 48
        put, touched, placed = self._batch.put_message, self._touched, self.made.placed
        cap_messages, cap_bytes, busy = self._caps.messages, self._caps.bytes, self._caps.structure_above
        overhead, lowest = keys.MESSAGE_KEY_BYTES, END
        ids: list[MessageId] = []
        for draft, (at, piece) in zip(drafts, reserved, strict=True):
            if piece is None:
                self.horizon.seq = seq
                ids.append(self._hold(draft))
                seq = self.horizon.seq
                continue
            seq += 1
            # No call of `Position` or `MessageId` here: both only return their argument.
            position: Position = at << 48 | seq  # type: ignore[assignment]
            structure = self._structure(piece, draft) if piece.count >= busy else ANYTHING
            shard = piece.newest.get(structure)
            if shard is None or shard.count >= cap_messages or shard.bytes >= cap_bytes:
                shard = piece.open_shard(structure)
            value, number = draft.value, shard.number
            put(shard.prefix + position.to_bytes(12, "big"), value)
            # Shard.grow, written out.
            shard.count += 1
            shard.live += 1
            shard.bytes += len(value) + overhead
            if position < shard.first:
                shard.first = position
            if position > shard.last:
                shard.last = position
            piece.count += 1
            cells = piece.cells
            if cells is not None:
                cells.counts[(at - cells.base_ms) // cells.width_ms] += 1
            touched[shard.prefix] = shard
            if position < lowest:
                lowest = position
            placed.append((position, number, value))
            name: MessageId = at << 80 | number << 64 | node | seq  # type: ignore[assignment]
            ids.append(name)
            if draft.key:
                self._remember(draft, name, position)
        self.horizon.seq = seq
        if lowest != END:
            self.made.touch(lowest)
        return ids

    def _structure(self, piece: Slice, draft: Draft) -> int:
        """The structure whose shards take a message of a busy slice.

        A message to an endpoint goes to structure 0: readers for an endpoint know no topic.
        """
        if is_posted(draft.value):
            return ANYTHING
        number, pattern = self._structures.place(draft.topic)
        if pattern is not None:
            self.row(Table.STRUCTURES, keys.structure(number), pattern.encode())
        if number in piece.newest or len(piece.newest) < SLICE_STRUCTURES:
            return number
        return ANYTHING

    def _remember(self, draft: Draft, name: MessageId, position: Position) -> None:
        value = known_value(name, draft.fingerprint, draft.due_ms or position >> 48, position)
        if self._extras:
            value += extra_value(self.extra_of(draft.key))
        self._batch.put(Table.DEDUPE, draft.key, value)
        self._fresh[Table.DEDUPE][draft.key] = value

    def _hold(self, draft: Draft) -> MessageId:
        """Put a message into `held`: the clock was set back, so it waits until the wall clock reaches its
        due."""
        place = Position(draft.due_ms << 48 | self.horizon.issue())
        self.row(Table.HELD, keys.place(place), draft.value)
        self._waiting.held_back()
        name = message_id(place, HELD_SHARD, self.node)
        if draft.key:
            self._remember(draft, name, self.kept_at(place))
        return name

    def let_go(self, place: Position) -> None:
        """Delete a row of `held`."""
        self.row(Table.HELD, keys.place(place), None)
        self._waiting.let_go()

    def kept_at(self, place: Position) -> Position:
        """Position of a held message for retention: it will be put at T, which is not before the floor."""
        return max(place, before(self.horizon.clock_ms))

    def settle(self, value: bytes, dead: int) -> None:
        """Show this group the row of the message placed last, whose id is known. A stub does not enter the
        wheel."""
        place, number, _ = self.made.placed[-1]
        piece = self._slice_for(place >> 48)
        shard = piece.shards[number]
        self._fresh[Table.MESSAGES][shard.prefix + keys.place(place)] = value
        if dead:
            self.made.placed.pop()
            piece.retire(shard, place)

    def reveal(self, place: Position) -> None:
        """Let `get` see a message that this group has placed at `place`, since its key is asked for.

        It is looked up on demand, not kept for all messages with keys: few are asked for so soon.
        """
        placed, seq = self.made.placed, seq_of(place)
        index = bisect_left(placed, seq, key=_seq) if seq > self.made.first_seq else len(placed)
        if index < len(placed) and placed[index][0] == place:
            _, number, value = placed[index]
            # Not the shard that it was placed in: this group may have cut the slice since, and its pieces
            # borrow.
            shard = self._slice_for(place >> 48).shard(number)
            if shard is not None:
                self._fresh[Table.MESSAGES].setdefault(shard.prefix + keys.place(place), value)

    def retire(self, found: Found, shard: Shard, left: bytes) -> None:
        """Overwrite a message's row by a stub, which stays until its slice goes. Behind the horizon a stub
        stops no reader that has passed it."""
        self.row(Table.MESSAGES, shard.prefix + keys.place(found.position), left)
        piece = self.directory.find(found.position >> 48)
        assert piece is not None, "the message was found in it"
        if piece.retire(shard, found.position):
            self._touched[shard.prefix] = shard
        else:
            self._slices[piece.start_ms] = piece
        if found.position > self.horizon.position:
            self.made.gone.append(found.position)
            self.made.touch(found.position)

    # -- slices and the journal

    def dispatched(self, turns: Iterable[tuple[Position, int]]) -> None:
        """Write dispatch turns to the journal: (last position, wall ms)."""
        for place, wall_ms in turns:
            self._batch.put(Table.DISPATCHES, keys.place(place), number_value(wall_ms))

    def passed(self, piece: Slice) -> None:
        """Start the slice's retention: the horizon has passed it."""
        piece.passed_s = self.running_ms // 1000
        self._slices[piece.start_ms] = piece

    def replaced(self, piece: Slice, children: Sequence[Slice]) -> None:
        """Replace a slice by narrower ones: in the directory and its rows."""
        self.dropped(piece)
        for child in children:
            self.directory.adopt(child)
            self._slices[child.start_ms] = child

    def dropped(self, piece: Slice) -> None:
        """Remove a slice: from the directory and its row."""
        self._batch.delete(Table.SLICES, keys.slice_key(piece.home))
        self._batch.delete(Table.META, keys.cells_key(piece.home))
        self._slices.pop(piece.start_ms, None)
        self.directory.drop(piece)
        self._quarters.clear()

    def forget_shard(self, shard: Shard) -> None:
        """Delete the row of a shard; rows under its prefix then belong to nobody."""
        self._touched.pop(shard.prefix, None)
        self._batch.delete(Table.SHARDS, shard.prefix)


def _seq(row: Row) -> int:
    """Sort key of placed rows."""
    return seq_of(row[0])
