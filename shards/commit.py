"""What goes into one group commit, and every answer of the write path.

The writer opens a group (`begin`), hands in the requests one after the other in the order of their
arrival, closes it (`seal`: one atomic batch, readable but not yet durable) and, when the sync is done,
sends the answers that were decided here. Decisions are made against what is stored plus what this group
has already changed, so that two cancels of one message in one group get the same truth as in two.

    begin(wall) -> put, cancel, move, release, ... -> seal() -> GroupCommit -> (sync) -> durable(group)

A message's place is chosen in `placing.py` and nowhere else (DESIGN: "position"). A batch of drafts is
checked whole before the first row is placed, so a refused one leaves nothing behind.

Rows of fresh drafts cannot be cancelled or moved within their own group: nobody has been told their ids.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from timeline.position import HELD_SHARD, MessageId, Position, id_position, message_id
from timeline.slices import Shard, Slice

from . import borrow, keys
from .dedupe import Draft, Refused, Replayed, known_keys, woven
from .errors import Corrupt
from .group_commit import Caps, Control, GroupCommit, Outcome
from .leavings import leave
from .placing import Placing
from .read import Found
from .record import CANCELLED, MOVED, decode, is_stub, stub, with_id
from .store import Table
from .tables import DedupeRow, dedupe_from, dedupe_value, wall_value

log = logging.getLogger(__name__)


class Commit(Placing):
    """Composes groups. One writer: calls come one after the other, never from two threads."""

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
            self.settle(draft.value, 0)
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
        taken = self.taken_by(value)
        self._retire(found, MOVED)
        row = self.rehome(wanted, value, due_ms, spots[0], taken)
        return Control(Outcome.DONE, found, row)

    def revive(self, found: Found) -> None:
        """Dispatch could not read the message when it came to it: it goes to T, late. Raises Refused."""
        spots = self.reserve([Draft(0, b"", b"")])
        due_ms = decode(found.value).due_ms
        value = with_id(found.value, found.id, due_ms)
        taken = self._if_readable(value)
        self._retire(found, MOVED)
        self.pending += 1
        self.rehome(found.id, value, due_ms, spots[0], taken)

    def release(self, place: Position) -> None:
        """Put a held message on the timeline: the wall clock has reached its due. Raises Refused."""
        value = self.get(Table.HELD, keys.place(place))
        if value is None:
            return
        record = decode(value)
        wanted = MessageId(record.id or message_id(place, HELD_SHARD, self.node))
        # First: when it is refused the message must stay where it is.
        spots = self.reserve([Draft(record.due_ms, b"", b"")])
        value = with_id(value, wanted, record.due_ms)
        taken = self._if_readable(value)
        self._delete(Table.HELD, keys.place(place))
        self.held -= 1
        self.rehome(wanted, value, record.due_ms, spots[0], taken)

    # -- slices and the journal

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

    def forget_shard(self, shard: Shard) -> None:
        """Delete the row of a shard: whatever lies under its prefix belongs to nobody now."""
        self._touched.pop(shard.prefix, None)
        self._batch.delete(Table.SHARDS, shard.prefix)

    def expire(
        self, pieces: Sequence[Slice], counted: Mapping[bytes, "borrow.Counts"] = MappingProxyType({})
    ) -> list[Slice]:
        """Drop whole slices, the oldest ones; the retention floor moves to the last one's end.

        They may have been chosen a while ago, so they are looked up again: what was dropped, as it was, is
        the answer. Their messages are no more, for everybody; the bytes go later (shards/leavings.py).
        `counted`: what they hold of borrowed shards (`borrow.counted`), as far as it has been counted.
        """
        found = [(self.directory.get(piece.start_ms), piece.home) for piece in pieces]
        gone = [piece for piece, home in found if piece is not None and piece.home == home]
        for piece in gone:
            start, end = keys.slice_range(piece.home)
            leave(self, start, end)
            self._batch.delete_range(Table.SHARDS, start, end)
            self._batch.delete(Table.SLICES, keys.slice_key(piece.home))
            self.directory.drop(piece)
            self._slices.pop(piece.start_ms, None)
            self.directory.floor = max(self.directory.floor, Position(piece.end_ms << 48))
        for piece in gone:
            borrow.give_back(self, self._store, piece, counted)
        floor = keys.place(self.directory.floor)
        self._batch.delete_range(Table.DISPATCHES, b"", floor)
        self._quarters.clear()
        return gone

    # -- leaves, some of them for adopt.py

    def check_pending(self, count: int) -> None:
        """Raise Refused if so many more would be more than may be pending."""
        if self.pending + count > self.caps.pending:
            raise Refused("over-quota", f"{self.caps.pending} messages are pending, as many as may be")

    def taken(self, key: bytes) -> DedupeRow | None:
        """The request that has the key. Raises Refused if that cannot be read any more.

        A key whose message has been lost (a repair) is nobody's: who sends it again gets one that is there.
        """
        try:
            value = self.get(Table.DEDUPE, key)
            row = dedupe_from(value) if value is not None else None
        except Corrupt as error:
            raise Refused("unreadable", "what was stored under the key cannot be read") from error
        if row is None or row.position < self.directory.floor:
            return None
        # What this group has placed itself is not lost, but `find` may not see it yet.
        return row if (Table.DEDUPE, key) in self._fresh or self._is_there(row.id) else None

    def taken_by(self, value: bytes) -> DedupeRow | None:
        """What is stored under the key of a message, for `rehome`. Raises Refused, Corrupt."""
        key = decode(value).key
        return self.taken(key) if key else None

    def rehome(
        self,
        wanted: MessageId,
        value: bytes,
        due_ms: int,
        spot: tuple[int, Slice | None],
        taken: DedupeRow | None,
    ) -> MessageId:
        """Write a message that has an id already to a new position, and say where it is.

        The row that it had is overwritten by now, so nothing is refused here: what can be is read before.
        """
        record = decode(value)
        (row_id,) = self.place([Draft(due_ms, record.topic, value)], [spot])
        self.pending -= 1
        if spot[1] is not None:
            self.settle(value, record.stub)
        self._put(Table.MOVED, keys.message(wanted), keys.message(row_id))
        if taken:
            kept = id_position(row_id) if spot[1] is not None else self._kept(id_position(row_id))
            follow = DedupeRow(taken.id, taken.fingerprint, taken.due_ms, kept)
            self._put(Table.DEDUPE, record.key, dedupe_value(follow))
        return row_id

    def _is_there(self, wanted: MessageId) -> bool:
        try:
            return self.find(wanted) is not None
        except Corrupt:
            return True

    def _if_readable(self, value: bytes) -> DedupeRow | None:
        """`taken_by` for what has to be sent now: it does not wait for its key."""
        try:
            return self.taken_by(value)
        except Refused as error:
            log.error("a message goes on without its key: %s", error)
            return None

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
        found.shard.retire()
        self._touched[found.shard.prefix] = found.shard
        self._group.gone.append(found.position)
        self._group.touch(found.position)


__all__ = ["Caps", "Commit", "Control", "Draft", "GroupCommit", "Outcome", "Refused", "Replayed"]
