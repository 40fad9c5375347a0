"""The store contract on a shared log: a batch is durable when the log has it.

    write(batch)   -> a layer above the store (overlay.py): readable here, nowhere else
    flush()        -> each layer, in order: sent to the log, written into the store once that has it, dropped
    reopen()       -> layers are dropped; records that only the log has are written into the store

So the store below is always a prefix of the log, and nothing is ever undone. Each batch that is written into
it also names its record (`meta/applied` and `meta/seal`), so a kill between append and write only means that
it is written again. The store itself is not synced before an answer: what a machine loses in a power cut, the
log has. The next record must be chained to the named one: rows of another log are told by that.

A node *follows*: it writes into its store what others append (`follow`). Or it *leads*, from its claim record
on (`lead`); only a leader takes batches. It leads for as long as the last record has its epoch. When an
append finds another epoch there, the node takes no more batches, and `reopen` updates `is_leading`. Safety
depends on that alone, not on a clock. An append whose outcome stays unknown may become a record later;
decisions made without it would then be wrong, since rows would appear behind the horizon. So `reopen` claims
the log again. Either it reads that record, or the record finds its place taken for ever.

Up to AHEAD batches are sent before the first of them has an answer. Each names the one in front of it, so
none is a record without it (log/chain.py). If one is refused, so are all behind it.

Never call it on the loop: `flush`, `beat`, `reopen`, `lead` and `follow` block as long as the log does. One
thread at a time calls them, but for `beat`, which waits for a leader's other calls.
"""

import logging
import os
from collections import deque
from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from pathlib import Path
from threading import Lock, RLock

from .changes import Changes, Recorded, decode_changes
from .errors import Corrupt, ShardsError, StoreFailed
from .log.chain import Strays
from .log.chained import ChainedLog, Through, without_lease
from .log.errors import LogError, OtherLog, Trimmed, Unchained
from .log.record import ORIGIN, Claim, Seal, claim_of
from .overlay import Layer, look, through
from .recover import check_released, place_in_log
from .store import Batch, Store, Table
from .tables import (
    META_APPLIED,
    META_FORMAT,
    META_LEADER,
    META_SEAL,
    META_TIMELINE,
    applied_value,
    seal_value,
)

log = logging.getLogger(__name__)

TIMELINE_BYTES = 16
AHEAD = 4
"""Maximum batches sent to the log and not settled. A read looks at the layer of each, and their rows are in
RAM twice."""
NOBODY = 0
"""Epoch of a node that does not lead."""
FOLLOW_BYTES = 16 << 20
"""Bytes of records followed in one call."""
FOLLOW_S = 1.0
"""Time of one call: many strays are passed over in several."""
EMPTIED_MAX = 1_000
"""Maximum remembered ranges; beyond it they are merged into one range over all."""
PLACES = Table.SESSIONS, Table.CURSORS, Table.RECEIVED
"""Tables of rows that a follower keeps in RAM."""


class ReplicatedStore:
    """One node's store, and its part of the log. Takes only batches that it has made itself."""

    def __init__(
        self,
        store: Store,
        log: ChainedLog,
        through: Through = without_lease,
    ) -> None:
        """`store`: rows of this log and no other; empty, or up to where they say. `through` calls each write
        into the log: what succeeds proves that this node leads."""
        self._store = store
        self._log = log
        self._through = through
        self.applied = applied_of(store)
        """The record up to which the store has the log."""
        self.leader = leader_of(store)
        """The last claim up to there."""
        self.timeline = timeline_in(store)
        """The timeline's id, as the last claim has it; empty: there was none yet."""
        self.resigns = True
        """Whether `close` announces that nobody leads any longer."""
        self.passed_bytes = 0
        """Bytes of records applied here since the opening."""
        self.passed = 0, 0
        """A record, and the place up to which only messages of others followed it when the log was read."""
        self.passes_doubt_at = -1
        """A record behind which no node has another: what is trimmed or may be hidden there was none."""
        self.has_heir = False
        """Whether a node with whole data can take the lead."""
        self._hands_over = False
        self._emptied: list[tuple[bytes, bytes]] = []
        self._touched: set[tuple[Table, bytes]] = set()
        self._has_fit = False
        self._epoch = NOBODY
        self._refusal: ShardsError | None = None
        """Why no batch is taken until the store is reopened."""
        self._layers: tuple[Layer, ...] = ()
        self._waiting: deque[Recorded] = deque()
        self._sent = 0
        """How many of those were sent to the log."""
        self._is_awaited = False
        """Whether a thread waits for the log, or is about to: it is nudged when there is more to send."""
        self._settled = 0
        """How many batches the log has had of this node."""
        self._lock = Lock()
        """Guards the layers (one thread writes batches, another flushes) and the emptied ranges."""
        self._appending = RLock()
        """Held by a leader that calls the log, which is for one thread at a time."""
        self._compacting = Lock()
        """Held during a compaction: the engine must not close meanwhile."""

    # -- the log

    @property
    def strays(self) -> Strays:
        """Messages in the log that are no records, and were passed over since it was opened."""
        return self._log.strays

    @property
    def is_behind(self) -> bool:
        """Whether the last `follow` was ended by its time, or had only what was pushed."""
        return self._log.is_behind

    def nudge(self) -> None:
        """Have a thread that waits for records return soon."""
        self._log.nudge()

    @property
    def is_leading(self) -> bool:
        """Whether this node leads, as far as it knows. If another has claimed the log, the next append finds
        out."""
        return self._epoch != NOBODY

    def follow(self, hear_s: float = 0.0) -> int:
        """Write records that only the log has into the store, about FOLLOW_BYTES of them. Returns how many
        were read, with parts of a group that is not whole yet; 0: all done, or `is_behind`. `hear_s`: only
        those that the log pushes, if it does, the first within this time.

        Raises Trimmed and Damaged if the store cannot continue with this log, OtherLog if it is not of this
        log, UnknownVersion for a record that it does not understand, UnreleasedFormat if a version between
        two releases wrote the log, other LogErrors, StoreFailed.
        """
        passed_bytes = self.passed_bytes
        if not self._has_fit:
            self._check_fit()
        self._log.stand(self.applied, is_last=self.passes_doubt_at == self.applied.seq)
        start = self._log.reached
        try:
            for _, _, data in self._log.read(self.applied.seq, FOLLOW_S + hear_s, hear_s):
                self._take(self._log.at, data)
                self._has_fit = True
                if self.passed_bytes - passed_bytes > FOLLOW_BYTES:
                    break
        except Unchained as error:
            if self._has_fit:
                raise
            raise OtherLog(f"this node's data has other records than the log: {error}") from error
        if not self._log.is_doubtful:
            self.passes_doubt_at = -1
        self.passed = self._log.at.seq, self._log.passed
        return self._log.reached - start

    def lead(self, node: str, url: str) -> None:
        """Claim the log with the next record. `url`: where other nodes redirect clients.

        Raises Fenced if the log is ahead of the store, other LogErrors, StoreFailed.
        """
        has_base = self.applied.seq == 0 and self.has_rows
        epoch = self._log.claim(
            self.applied.seq + 1,
            node,
            url,
            timeline=self.timeline or self._log.origin.timeline or new_timeline(),
            has_base=has_base,
        )
        self.follow()
        while self.is_behind and self.applied.seq < epoch:
            self.follow()
        if self.applied.epoch == epoch:
            self._epoch, self._refusal = epoch, None

    @property
    def has_rows(self) -> bool:
        """Whether the store has ever had a timeline."""
        return self._store.get(Table.META, META_FORMAT) is not None

    def sync(self) -> Seal:
        """Sync the store below. Returns the record up to which it is durable. Blocks; from any thread. Raises
        StoreFailed."""
        applied = self.applied
        self._store.flush()
        return applied

    def take_emptied(self) -> list[tuple[bytes, bytes]]:
        """Ranges of messages deleted by records followed since the last call: compacting them frees their
        space."""
        with self._lock:
            taken, self._emptied = self._emptied, []
        return taken

    def take_touched(self) -> set[tuple[Table, bytes]]:
        """The rows of PLACES that records followed since the last call have changed, or where such a range
        begins. For the thread that follows."""
        taken, self._touched = self._touched, set()
        return taken

    def _note_touched(self, changes: Changes) -> None:
        for table in PLACES:
            for key, _, _ in changes.tables.get(table, ()):
                self._touched.add((table, key))

    def _note_emptied(self, changes: Changes) -> None:
        with self._lock:
            self._emptied += changes.emptied(Table.MESSAGES)
            if len(self._emptied) > EMPTIED_MAX:
                starts, ends = zip(*self._emptied, strict=True)
                self._emptied = [(min(starts), max(ends))]

    def _check_fit(self) -> None:
        """Check that the store is a prefix of this log, as far as the log still reaches. Raises OtherLog,
        OtherClusterKey, LogError.

        What is trimmed is checked by the first record that is read: it must be chained to the last one here.
        """
        applied = self.applied
        _, last = self._log.bounds()
        if last < applied.seq:
            raise OtherLog(f"the log ends at {last}, this node's data goes up to record {applied.seq}")
        there = self._log.seal_at(applied.seq)
        if there is not None and there.epoch != applied.epoch:
            raise OtherLog(
                f"record {applied.seq} of the log is of epoch {there.epoch}, in this node's data of epoch"
                f" {applied.epoch}"
            )
        if there is not None and there.digest != applied.digest:
            raise OtherLog(f"record {applied.seq} of the log differs from that in this node's data")
        claim = self._store.get(Table.META, META_LEADER)
        if claim is not None:
            self._log.check_cluster_key(claim, applied)
        self._has_fit = there is not None

    def _take(self, place: Seal, data: bytes) -> None:
        """Write a record of the log into the store."""
        self.passed_bytes += len(data)
        if place.seq != place.epoch:
            changes = decode_changes(data)
            _check_format(changes)
            batch = self._store.batch()
            changes.into(batch)
            self._apply(batch, place)
            self._note_emptied(changes)
            self._note_touched(changes)
            return
        claim = claim_of(data)
        if claim.has_base and not self.has_rows:
            raise Trimmed("the log begins with the rows of a node, and this node has none: it needs a copy")
        batch = self._store.batch()
        batch.put(Table.META, META_LEADER, data)
        if claim.timeline and claim.timeline != self.timeline:
            batch.put(Table.META, META_TIMELINE, claim.timeline.encode())
        self._apply(batch, place)
        self.leader, self.timeline = claim, claim.timeline or self.timeline

    # -- batches

    def batch(self) -> Recorded:
        return Recorded(self._store.batch())

    def write(self, batch: Batch) -> None:
        self._check_leading()
        assert isinstance(batch, Recorded), "a batch of another store"
        layer = Layer(batch.changes)
        with self._lock:
            self._layers = (layer, *self._layers)
            self._waiting.append(batch)
        if self._is_awaited:
            self._log.nudge()

    def flush(self) -> None:
        self.flush_to(self.written())

    def written(self) -> int:
        with self._lock:  # else a batch that is settled meanwhile is missed: one too few would be flushed
            return self._settled + len(self._waiting)

    def flush_to(self, written: int) -> None:
        with self._appending:
            while self._settled < written and self._waiting:
                self._step()

    def beat(self) -> None:
        """Append a record without changes, while no batch proves that this node leads. Raises StoreFailed."""
        with self._appending:
            while self._sent:
                self._step()
            self._check_leading()
            try:
                self._append(self.batch())
            except ShardsError as error:
                raise self._refused(error) from error

    def _step(self) -> None:
        """Send what waits, and wait until the oldest is in the log and in the store below, or more has come.
        Raises StoreFailed."""
        self._check_leading()
        try:
            self._is_awaited = True  # before it is looked at what waits
            while self._sent < min(AHEAD, len(self._waiting)):
                batch = self._waiting[self._sent]
                if not self._log.send(self.applied.seq + 1, self._epoch, batch.data):
                    break
                self._sent += 1
            if not self._sent:
                self._append(self._waiting[0])
            elif self._log.settle():
                self._sent -= 1
                self._note(self._waiting[0])
            else:
                return
            self._is_awaited = False
        except ShardsError as error:
            raise self._refused(error) from error
        with self._lock:
            self._waiting.popleft()
            self._layers = self._layers[:-1]
            self._settled += 1

    def _refused(self, error: ShardsError) -> StoreFailed:
        """A batch is not in the log: none is taken until the store is reopened."""
        self._refusal, self._sent = error, 0
        return StoreFailed(f"a batch is not in the log: {error}")

    def _append(self, batch: Recorded) -> None:
        """The next record, in the log and in the store below."""
        self._log.append(self.applied.seq + 1, self._epoch, batch.data, self._through)
        self._note(batch)

    def _note(self, batch: Recorded) -> None:
        """The log has it as its last record."""
        self._apply(batch.batch, self._log.at)
        self.passed_bytes += len(batch.data)

    def _check_leading(self) -> None:
        """Raise StoreFailed if no batch is taken."""
        if not self.is_leading:
            raise StoreFailed("this node does not lead: its store takes only the log")
        if self._refusal is not None:
            raise StoreFailed(f"the log has refused an earlier batch: {self._refusal}") from self._refusal

    def reopen(self) -> None:
        """If it fails, the rows may be older than what was acked, or another leader's: readers must then
        deliver nothing."""
        with self._appending:
            self._reopen()

    def _reopen(self) -> None:
        with self._lock:
            self._layers, self._sent = (), 0
            self._waiting.clear()
        with self._compacting:
            self._store.reopen()
        self.applied, self.leader = applied_of(self._store), leader_of(self._store)
        self.timeline = timeline_in(self._store)
        try:
            while self.follow():
                pass
            if self.leader is not None and self.applied.epoch == self._epoch:
                self.lead(self.leader.node, self.leader.url)
        except LogError as error:
            self._refusal = error
            raise StoreFailed(f"what the log has is not known: {error}") from error
        if self.applied.epoch != self._epoch:
            self._epoch = NOBODY
            raise StoreFailed(f"another node leads since record {self.applied.epoch} of the log")
        self._refusal = None

    def _apply(self, batch: Batch, place: Seal) -> None:
        batch.put(Table.META, META_APPLIED, applied_value(place))
        batch.put(Table.META, META_SEAL, seal_value(place))
        self._store.write(batch)
        self.applied = place

    # -- reading

    def get(self, table: Table, key: bytes) -> bytes | None:
        layers = self._layers
        seen = look(layers, table, key) if layers else None
        if seen is not None:
            return seen.value
        try:
            return self._store.get(table, key)
        except Corrupt as error:
            met = self._met(error)
        raise met

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        met = None
        try:
            yield from through(self._layers, self._store, table, start, end)
        except Corrupt as error:
            met = self._met(error)
        if met is not None:
            raise met

    def _met(self, error: Corrupt) -> ShardsError:
        """The error of a read that met damage. If another node can take the lead, it is one that may pass:
        a leader ends its term then, and nothing has been dispatched or skipped.

        Raise it without the first one, which keeps an iterator, and that the database: a term's error is
        kept for longer than its store.
        """
        if self.is_leading and (self.has_heir or self._hands_over):
            self._hands_over = True
            return StoreFailed(f"this node's data is damaged, another node takes the lead: {error}")
        return error

    @property
    def damage(self) -> str:
        return self._store.damage

    def check(self, table: Table, start: bytes, most: int) -> tuple[bytes | None, int]:
        """Of the store below. Not while it is closed or opened."""
        with self._compacting:
            return self._store.check(table, start, most)

    @property
    def file_bytes(self) -> int:
        return self._store.file_bytes

    def drop_pages(self) -> None:
        self._store.drop_pages()

    def keys_beside(self, table: Table, start: bytes, end: bytes) -> Iterator[bytes]:
        parts = [part for layer in self._layers if (part := layer.part(table)) is not None]
        every = merge(self._store.keys_beside(table, start, end), *[part.over(start, end) for part in parts])
        return (key for key, _ in groupby(every))

    # -- the store below alone

    def compact(self, table: Table, start: bytes, end: bytes) -> None:
        with self._compacting:
            self._store.compact(table, start, end)

    def unload(self) -> None:
        self._store.unload()

    def checkpoint(self, path: Path) -> None:
        """A copy of what has been applied: it continues with the log from there."""
        self._store.checkpoint(path)

    def mark(self, bound_ms: int) -> None:
        raise StoreFailed(f"dispatch does not go on to {bound_ms} ms without the log")

    def marked_ms(self) -> int:
        return self._store.marked_ms()

    def hand_over(self, to: str = "") -> None:
        """If this node leads, announce that nobody does, so that the others need not wait. `to`: the node
        that is to lead next."""
        with self._appending:
            if self.resigns and self.is_leading and self._refusal is None and not self._waiting:
                try:
                    self._log.claim(self.applied.seq + 1, "", to, timeline=self.timeline)
                    self.follow()  # so that a store has all that the log has
                except ShardsError as error:
                    log.warning("log: the end of this node's lead was not announced: %s", error)
            self._epoch = NOBODY

    def close(self) -> None:
        """Hand over, unless this is done."""
        with self._appending:
            self.hand_over()
            self._log.close()
        with self._compacting:
            self._store.close()


def _check_format(changes: Changes) -> None:
    """Raise UnreleasedFormat if they set a format that no release wrote. A later one is followed and not led:
    nodes are upgraded one after the other."""
    for key, value, _ in changes.tables.get(Table.META, ()):
        if key == META_FORMAT and value is not None:
            check_released(value)


def applied_of(store: Store) -> Seal:
    """The record up to which a store has the log. Raises StoreFailed, Corrupt."""
    return place_in_log(store) or ORIGIN


def new_timeline() -> str:
    """An id that no timeline has."""
    return os.urandom(TIMELINE_BYTES).hex()


def timeline_in(store: Store) -> str:
    """The id of the timeline in a store; empty: it has none yet. Raises StoreFailed, Damaged."""
    value = store.get(Table.META, META_TIMELINE)
    return "" if value is None else value.decode(errors="replace")


def leader_of(store: Store) -> Claim | None:
    """The last claim in the part of the log that a store has. Raises StoreFailed, Damaged."""
    value = store.get(Table.META, META_LEADER)
    return None if value is None else claim_of(value)
