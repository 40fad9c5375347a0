"""The requests of the write path (put, cancel, move, ...) and their answers.

The writer opens a group (`OpenBatch.begin`), hands in the requests one after the other in the order of their
arrival, closes it (`OpenBatch.seal`: one atomic batch, readable but not yet durable) and, when the sync is
done, sends the answers that were decided here. Decisions are made against what is stored plus what this group
has already changed, so that two cancels of one message in one group get the same truth as in two.

    open_batch.begin(wall)
        put, cancel, move, release, ...        each decided against the open group, and written into it
    open_batch.seal() -> GroupCommit -> (sync) -> the answers

A batch of drafts is checked whole before the first row is placed, so a refused one leaves nothing behind.

New messages cannot be cancelled or moved by id within their own group: no client has the id yet. By key they
can be: `find_known` sees them.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from timeline.position import HELD_SHARD, ID_BYTES, MessageId, Position, before, id_position, id_shard
from timeline.shares import may_take
from timeline.slices import Slice

from . import keys
from .dedupe import BATCH_MISMATCH, Refused, keys_in_steps, woven
from .delivery_rows import is_waiting_in
from .draft import AS_EVER, BatchKey, Control, Draft, Known, Outcome, Terms
from .errors import Corrupt
from .group_commit import Caps, GroupCommit
from .open_batch import OpenBatch
from .owned import NO_QUOTA, Owned, QuotaOf
from .read import Found, find
from .record import (
    CANCELLED,
    MOVED,
    decode,
    id_at,
    is_stub,
    owner_of,
    stub,
    with_id,
)
from .steps import STEP, Bits, at_once
from .store import Table
from .tables import (
    NO_EXTRA,
    BatchRow,
    DedupeRow,
    KeyExtra,
    batch_from,
    batch_value,
    dedupe_from,
    dedupe_value,
)
from .waiting import Waiting
from .withheld import Withheld

log = logging.getLogger(__name__)

IsUndone = Callable[[OpenBatch, Found], bool]
"""Whether a dispatched message is still unfinished at some place, as the open group leaves it."""


def always(group: OpenBatch, found: Found) -> bool:  # noqa: ARG001
    """`is_undone` for callers without places."""
    return True


class Commit:
    """The requests of one writer. Calls come one after the other, never from two threads."""

    def __init__(
        self,
        open_batch: OpenBatch,
        waiting: Waiting,
        owned: Owned,
        withheld: Withheld,
        *,
        caps: Caps,
        quota_of: QuotaOf,
        is_undone: IsUndone = always,
    ) -> None:
        """`quota_of` is asked with each request, `is_undone` with each draft whose key is taken only while
        undone."""
        self.open_batch = open_batch
        self.directory = open_batch.directory
        self.horizon = open_batch.horizon
        self.caps = caps
        self._waiting = waiting
        self._owned = owned
        self._withheld = withheld
        self._quota_of = quota_of
        self._is_undone = is_undone

    # -- rows of the small tables, which are written with the group

    def get(self, table: Table, key: bytes) -> bytes | None:
        """A stored value as this group leaves it."""
        return self.open_batch.get(table, key)

    def row(self, table: Table, key: bytes, value: bytes | None) -> None:
        """Put a row, or delete it."""
        self.open_batch.row(table, key, value)

    # -- messages

    def find(self, wanted: MessageId) -> Found | None:
        """The message, wherever moves have taken it. Raises Corrupt."""
        return find(self.get, self.directory, wanted)

    def put(self, drafts: Sequence[Draft], terms: Terms = AS_EVER) -> list[MessageId | Known]:
        """Place all drafts of one owner, or none; returns ids in their order. `terms`: of their keys.

        Raises Refused, naming the first draft that cannot be placed.
        """
        known = self.known(drafts, terms) if _has_keys(drafts) else {}
        fresh, owner, size = self._admitted(drafts, known)
        group = self.open_batch
        ids = group.place(fresh, group.reserve(fresh))
        return self._answers(ids, known, owner, size)

    def put_in_steps(
        self, drafts: Sequence[Draft], terms: Terms = AS_EVER, step: int = STEP
    ) -> Bits[list[MessageId | Known]]:
        """`put` of many drafts, `step` of them in each step."""
        known: dict[int, Known | int] = {}
        if _has_keys(drafts):
            known = yield from self.known_in_steps(drafts, terms, step)
        fresh, owner, size = self._admitted(drafts, known)
        ids = yield from self.open_batch.place_in_steps(fresh, step)
        return self._answers(ids, known, owner, size)

    def _admitted(
        self, drafts: Sequence[Draft], known: dict[int, Known | int]
    ) -> tuple[Sequence[Draft], bytes, int]:
        """The drafts to place, their owner, and their bytes (0 without an owner). Raises Refused for too
        many."""
        fresh = [draft for index, draft in enumerate(drafts) if index not in known] if known else drafts
        owner = owner_of(drafts[0].value) if drafts else b""
        size = 0
        if owner:
            for draft in fresh:
                size += len(draft.value)
        self.check_pending(len(fresh), owner, size)
        return fresh, owner, size

    def _answers(
        self, ids: list[MessageId], known: dict[int, Known | int], owner: bytes, size: int
    ) -> list[MessageId | Known]:
        """Count the placed drafts and build the answers of all drafts."""
        self.placed(len(ids), owner, size)
        answers: list[MessageId | Known] = list(ids)
        return woven(answers, known, len(ids) + len(known)) if known else answers

    def put_known(self, draft: Draft) -> MessageId:
        """Place one message without a key that the rest of this group may cancel or move."""
        self.check_pending(1, owner_of(draft.value), len(draft.value))
        row = self.put_owed(draft)
        if id_shard(row) != HELD_SHARD:
            self.open_batch.settle(draft.value, 0)
        return row

    def put_under(self, draft: Draft, extra: KeyExtra) -> MessageId:
        """Place one message under its key, whatever had that before. Raises Refused."""
        self.check_pending(1, owner_of(draft.value), len(draft.value))
        return self.put_owed(draft, extra)

    def put_owed(self, draft: Draft, extra: KeyExtra | None = None) -> MessageId:
        """Place one message that was promised before, whatever the bound on pending. `extra`: the new one of
        its key. Raises Refused."""
        reserved = self.open_batch.reserve([draft])
        if extra is not None:
            self.open_batch.keep_extra(draft.key, extra)
        (row,) = self.open_batch.place([draft], reserved)
        self.placed(1, owner_of(draft.value), len(draft.value))
        return row

    def cancel(self, wanted: MessageId) -> Control:
        """Cancel the message, if nobody has been given it."""
        control = self.winnable(wanted)
        if control.outcome is Outcome.CANCELLED:
            return Control(Outcome.DONE, control.found)
        if control.outcome is Outcome.DONE:
            assert control.found is not None
            value = control.found.value
            if self.open_batch.notes_ends and self._withheld.has_in(self.open_batch, control.found):
                # Its row may be archived. Of a message the last row counts there: so the stub goes to T.
                self.revive(control.found, CANCELLED)
            else:
                self._retire(control.found, CANCELLED)
            self._waiting.cancelled()
            owner = owner_of(value)
            if owner:
                self._owned.placed(owner, -1, -len(value))
        return control

    def move(
        self, wanted: MessageId, due_ms: int, expected: MessageId | None = None, *, zone: bytes = b""
    ) -> Control:
        """Move to another due (`zone`: as wall time); same id, new position. `expected`: only if its row is
        this. A message with `late: drop` is cancelled if that due has passed: the answer names no row."""
        control = self.winnable(wanted)
        found = control.found
        if control.outcome is not Outcome.DONE or found is None:
            return control
        if expected is not None and found.row_id != expected:
            return Control(Outcome.CHANGED, found)
        if decode(found.value).drop_late and 0 < due_ms < self.open_batch.wall_ms:
            return self.cancel(wanted)
        return self._put_again(found, with_id(found.value, wanted, due_ms, zone), due_ms)

    def change(self, wanted: MessageId, draft: Draft) -> Control:
        """Put another message in the place of one that dispatch has not reached; same id, new position.

        The draft has its key. Raises Refused.
        """
        control = self.winnable(wanted)
        if control.outcome is not Outcome.DONE or control.found is None:
            return control
        owner = owner_of(draft.value)
        if owner:
            more = len(draft.value) - len(control.found.value)
            self._check_bytes(owner, more, self._quota_of(owner).bytes)
        return self._put_again(control.found, with_id(draft.value, wanted, draft.due_ms), draft.due_ms)

    def _put_again(self, found: Found, value: bytes, due_ms: int) -> Control:
        """Put a message that nobody has been given to another place, as `value`. Raises Refused."""
        if self._withheld.has_in(self.open_batch, found):
            self.check_pending(1, owner_of(value), len(value))
        reserved = self.open_batch.reserve([Draft(due_ms, b"", b"")])
        taken = self.taken_by(value)
        self._retire(found, MOVED)
        self._resized(found.value, value)
        row = self.rehome(found.id, value, due_ms, reserved[0], taken)
        return Control(Outcome.DONE, found, row)

    def revive(self, found: Found, stub_kind: int = 0) -> None:
        """Place a message again at T, late: dispatch could not read it at its time, or it is withheld.
        `stub_kind`: only such a stub of it. Raises Refused."""
        reserved = self.open_batch.reserve([Draft(0, b"", b"")])
        due_ms = decode(found.value).due_ms
        value = with_id(found.value, found.id, due_ms)
        taken = self._if_readable(value)
        if not self._withheld.has_in(self.open_batch, found):
            self._waiting.placed(1)  # its owner has had it pending all the time
        self._retire(found, MOVED)
        if stub_kind:
            value = stub(decode(value), stub_kind, self.open_batch.wall_ms)
        else:
            self._resized(found.value, value)
        self.rehome(found.id, value, due_ms, reserved[0], taken)

    def release(self, place: Position) -> None:
        """Put a held message on the timeline: the wall clock has reached its due. Raises Refused."""
        held = self.open_batch.get(Table.HELD, keys.place(place))
        if held is None:
            return
        record = decode(held)
        wanted = id_at(place, HELD_SHARD, self.open_batch.node, record.id)
        # First: if this is refused the message must stay where it is.
        reserved = self.open_batch.reserve([Draft(record.due_ms, b"", b"")])
        value = with_id(held, wanted, record.due_ms)
        taken = self._if_readable(value)
        self.open_batch.let_go(place)
        if not record.stub:
            self._resized(held, value)
        self.rehome(wanted, value, record.due_ms, reserved[0], taken)

    # -- parts of requests, also used by adopt.py

    def check_pending(self, count: int, owner: bytes, size: int) -> None:
        """Raise Refused if `count` more messages of `size` bytes exceed the bound on pending, the owner's
        quota or its share."""
        if not count:
            return
        caps, taken = self.caps, self._waiting.pending + self._waiting.retries
        if taken + count > caps.pending:
            raise Refused("over-quota", f"{caps.pending} messages are pending, the limit of limits.pending")
        quota = self._quota_of(owner) if owner else NO_QUOTA
        most = quota.messages
        if most and (pending := self._owned.pending(owner)) + count > most:
            text = f"key '{owner.decode()}' has {pending} messages pending, its limit is {most}"
            raise Refused("over-quota", text)
        if quota.bytes:
            self._check_bytes(owner, size, quota.bytes)
        if caps.is_shared:
            self._check_share(count, owner, taken, is_proven=quota.is_proven)

    def _check_bytes(self, owner: bytes, size: int, most: int) -> None:
        """Raise Refused if the owner has more than `most` bytes pending with `size` more; 0: no limit."""
        if most and size > 0 and (pending := self._owned.pending_bytes(owner)) + size > most:
            text = f"key '{owner.decode()}' has {pending} bytes pending, its limit is {most}"
            raise Refused("over-quota", text)

    def _check_share(self, count: int, owner: bytes, taken: int, *, is_proven: bool) -> None:
        """Check the owner's share; `taken`: pending of all. What has no owner counts as one owner. Raises
        Refused."""
        owned = self._owned
        nobodys = taken - owned.messages
        mine = owned.pending(owner) if owner else nobodys
        owners = owned.owners + (nobodys > 0) + (mine <= 0)
        if not may_take(taken, self.caps.pending, mine, owners, count, is_proven=is_proven):
            who = f"key '{owner.decode()}' has" if owner else "clients without a key have"
            text = f"{who} {mine} messages pending, the rest of limits.pending is reserved for others"
            raise Refused("over-quota", text)

    def placed(self, count: int, owner: bytes, size: int) -> None:
        """Count `count` new pending messages of an owner, of `size` bytes."""
        self._waiting.placed(count)
        if owner and count:
            self._owned.placed(owner, count, size)

    def retry_kept(self, count: int, record: bytes) -> None:
        """Count one more (1) or one fewer (-1) message that waits for its next try."""
        self._waiting.retry_kept(count)
        owner = owner_of(record)
        if owner:
            self._owned.placed(owner, count, count * len(record))

    def _resized(self, before: bytes, after: bytes) -> None:
        """Count the bytes of a pending message whose row changed."""
        owner = owner_of(after)
        if owner and len(after) != len(before):
            self._owned.placed(owner, 0, len(after) - len(before))

    def known(self, drafts: Sequence[Draft], terms: Terms) -> dict[int, Known | int]:
        """Drafts that were accepted before, by index. Raises Refused."""
        return at_once(self.known_in_steps(drafts, terms))

    def known_in_steps(
        self, drafts: Sequence[Draft], terms: Terms, step: int = STEP
    ) -> Bits[dict[int, Known | int]]:
        taken = partial(self.taken_from, terms=terms)
        is_new = self.open_batch.is_new
        return keys_in_steps(drafts, taken, self._stored_under, is_new, key_only=terms.key_only, step=step)

    def taken_from(self, draft: Draft, terms: Terms) -> DedupeRow | None:
        """The request that has the draft's key, unless the key is free for this draft. Raises Refused."""
        if not draft.while_undone:
            return self.taken(draft.key, terms)
        return self.taken(draft.key, Terms(terms.key_only, terms.replace, while_undone=True))

    def _stored_under(self, row: DedupeRow) -> bytes:
        """The message under a key; empty if it cannot be read."""
        try:
            found = self.find_known(row)
        except Corrupt:
            found = None
        return b"" if found is None else found.value

    def taken(self, key: bytes, terms: Terms = AS_EVER) -> DedupeRow | None:
        """The request that has the key. Raises Refused if that cannot be read.

        The key is free if its message was lost (in a repair). By `terms` it is also free if the message was
        cancelled, or is no longer undone.
        """
        row = self.standing(key)
        is_free = row is None or self._is_free(row, terms)
        # A version stays known under the key, whatever message has it next.
        self.open_batch.keep_extra(key, NO_EXTRA if row is None else KeyExtra(row.extra.version))
        return None if is_free else row

    def standing(self, key: bytes) -> DedupeRow | None:
        """The row of the key, unless retention has passed it. Raises Refused.

        While a place has still to try its message, the key stays taken.
        """
        row = self.known_under(key)
        if row is None or row.position >= self.directory.floor:
            return row
        return row if row.id and is_waiting_in(self.open_batch, row.id) else None

    def _is_free(self, row: DedupeRow, terms: Terms) -> bool:
        if row.position < self.directory.floor:
            return False
        try:
            found = self.find_known(row)
        except Corrupt:
            return False  # counts as pending
        if found is None:
            return True
        if is_stub(found.value):
            return terms.replace or terms.while_undone
        return terms.while_undone and not self.is_undone(found)

    def is_undone(self, found: Found) -> bool:
        """Whether a message is pending, or some place has not finished it."""
        is_pending = found.shard is None or found.position > self.horizon.position
        return is_pending or self._is_undone(self.open_batch, found)

    def known_under(self, key: bytes) -> DedupeRow | None:
        """The row of the key, whether or not its message is still there. Raises Refused."""
        try:
            value = self.open_batch.get(Table.DEDUPE, key)
            return dedupe_from(value) if value is not None else None
        except Corrupt as error:
            raise Refused("unreadable", "the message stored under the key cannot be read") from error

    def note_extra(self, key: bytes, row: DedupeRow, extra: KeyExtra) -> None:
        """Remember this of the key of a message, beside its message; `row`: the key's."""
        if extra != row.extra:
            again = DedupeRow(row.id, row.fingerprint, row.due_ms, row.position, extra)
            self.row(Table.DEDUPE, key, dedupe_value(again))

    def find_known(self, row: DedupeRow) -> Found | None:
        """The message of a key; sees those that this group has placed. None: it is gone. Raises Corrupt."""
        if not row.id:
            return None
        self.open_batch.reveal(row.position)
        return self.find(row.id)

    def batch_under(self, batch: BatchKey) -> BatchRow | None:
        """The batch that has the key. Raises Refused if it is another one, or cannot be read."""
        try:
            value = self.open_batch.get(Table.DEDUPE, batch.key)
            row = batch_from(value) if value is not None else None
        except Corrupt as error:
            raise Refused("unreadable", "the batch stored under the key cannot be read") from error
        if row is None or row.position < self.directory.floor:
            return None
        if row.fingerprint != batch.fingerprint or row.count != batch.count:
            raise Refused(BATCH_MISMATCH, "the Idempotency-Key was used for another batch")
        return row

    def note_batch(self, batch: BatchKey, ids: Sequence[MessageId], due_ms: int) -> None:
        """Remember the messages of a batch (0: refused) until retention passes `due_ms`, its last time."""
        place = before(max(due_ms, self.horizon.clock_ms))
        names = b"".join([name.to_bytes(ID_BYTES, "big") for name in ids])
        self.row(Table.DEDUPE, batch.key, batch_value(BatchRow(batch.fingerprint, place, names)))

    def is_kept(self, name: MessageId) -> bool:
        """Whether a message that was placed is still there; sees those that this group has placed."""
        self.open_batch.reveal(id_position(name))
        try:
            found = self.find(name)
        except Corrupt:
            return True
        return found is not None or is_waiting_in(self.open_batch, name)

    def taken_by(self, value: bytes) -> DedupeRow | None:
        """The row of a message's key, for `rehome`. Raises Refused, Corrupt."""
        key = decode(value).key
        return self.taken(key) if key else None

    def rehome(
        self,
        wanted: MessageId,
        value: bytes,
        due_ms: int,
        slot: tuple[int, Slice | None],
        taken: DedupeRow | None,
    ) -> MessageId:
        """Write a message that already has an id to a new position, and note the position. Counts nothing.

        Its old row is overwritten by now, so nothing is refused here: the caller has read what can be
        refused.
        """
        group, record = self.open_batch, decode(value)
        (row_id,) = group.place([Draft(due_ms, record.topic, value)], [slot])
        is_held = slot[1] is None
        if not is_held:
            group.settle(value, record.stub)
        group.row(Table.MOVED, keys.message(wanted), keys.message(row_id))
        if taken and taken.id == wanted:  # else the key has gone to another message since the cancel
            place = id_position(row_id)
            kept = group.kept_at(place) if is_held else place
            follow = DedupeRow(taken.id, taken.fingerprint, taken.due_ms, kept, taken.extra)
            group.row(Table.DEDUPE, record.key, dedupe_value(follow))
        return row_id

    def _if_readable(self, value: bytes) -> DedupeRow | None:
        """`taken_by` for a message that must be sent now; None if its key cannot be read."""
        try:
            return self.taken_by(value)
        except Refused as error:
            log.error("message keeps no idempotency key: %s", error)
            return None

    def winnable(self, wanted: MessageId) -> Control:
        """Whether a cancel or move of the message can still win: nobody has been given it."""
        found = self.find(wanted)
        if found is None:
            return Control(Outcome.NOT_FOUND)
        if is_stub(found.value):
            return Control(Outcome.CANCELLED, found)
        is_passed = found.shard is not None and not self.horizon.undecided(found.position)
        if is_passed and not self._withheld.has_in(self.open_batch, found):
            return Control(Outcome.ALREADY_DISPATCHED, found)
        return Control(Outcome.DONE, found)

    def _retire(self, found: Found, kind: int) -> None:
        """Overwrite the row by a stub, so that nobody gets the message from it. A withheld one is pending
        again."""
        group = self.open_batch
        if self._withheld.has_in(group, found):
            self._withheld.end(group, found.position)
            self.placed(1, owner_of(found.value), len(found.value))
        # A move stores the seq of its next row here, so that a list as of a moment finds messages moved
        # since.
        left = stub(decode(found.value), kind, self.horizon.seq + 1 if kind == MOVED else group.wall_ms)
        if found.shard is not None:
            group.retire(found, found.shard, left)
        elif kind == MOVED:
            group.let_go(found.position)
        else:
            group.row(Table.HELD, keys.place(found.position), left)


def _has_keys(drafts: Sequence[Draft]) -> bool:
    # A list: starting a generator costs more than all else done here for a lone publish.
    return any([draft.key for draft in drafts])  # noqa: C419


__all__ = ["Caps", "Commit", "Control", "Draft", "GroupCommit", "Known", "Outcome", "Refused"]
