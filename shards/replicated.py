"""The store contract on a log that others read too: a batch is durable when the log has it.

    write(batch)   -> a layer above the store (overlay.py): readable here, nowhere else
    flush()        -> each layer in its order: appended to the log, then written into the store, then dropped
    reopen()       -> the layers are given up; what the log has beyond the store is written into it

So the store below never has what the log has not: its rows are always a prefix of the log, and nothing is
ever undone. Each batch that is written into it also says of which record it came (`meta/applied`), so that a
kill between append and write costs nothing but writing it again. The store itself is not synced for an
answer: what a machine loses of it with its power, the log has.

A node *follows*: it writes into its store what others append (`follow`). Or it *leads*, from the record by
which it has claimed that (`lead`), and only then takes batches. It goes on for as long as the last record is
of its epoch; when an append finds another's there, nothing is taken any more, and `reopen` says so
(`is_leading`). Safety hangs on that alone, on no clock. An append whose outcome stays unknown may become a
record later, and what was decided without it would be wrong by then: rows would appear behind the horizon. So
`reopen` claims the log anew. Either it reads that record, or the record finds its place taken for ever.

Not for the loop: `flush`, `reopen`, `lead` and `follow` block as long as the log does, and are called by one
thread at a time.
"""

import logging
from collections import deque
from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from pathlib import Path
from threading import Lock

from .changes import Changes, decode_changes
from .errors import ShardsError, StoreFailed
from .log.contract import Log
from .log.errors import LogError, OtherLog, Trimmed
from .log.record import Claim, claim_of
from .overlay import Layer, look, through
from .store import Batch, Store, Table
from .tables import META_APPLIED, META_FORMAT, META_LEADER, Applied, applied_from, applied_value

log = logging.getLogger(__name__)

NOBODY = 0
"""No epoch: of who does not lead."""
FOLLOW_BYTES = 16 << 20
"""Of records that are followed in one go."""
EMPTIED_MAX = 1_000
"""Ranges that are remembered; when there are more they become one that goes over all of them."""


class ReplicatedStore:
    """One node's store and its hand on the log. It takes the batches that it has made, no engine's own."""

    def __init__(self, store: Store, log: Log) -> None:
        """`store`: rows of this log and no other; empty, or up to where they say."""
        self._store = store
        self._log = log
        self.applied = applied_of(store)
        """Up to which record the store has the log."""
        self.leader = leader_of(store)
        """Who has claimed it last, up to there."""
        self.resigns = True
        """Whether to say, when it is closed, that nobody leads any more."""
        self.passed_bytes = 0
        """Of the records that were applied here since the opening."""
        self._emptied: list[tuple[bytes, bytes]] = []
        self._has_fit = False
        self._epoch = NOBODY
        self._refusal: ShardsError | None = None
        """Why no batch is taken until the store is reopened."""
        self._layers: tuple[Layer, ...] = ()
        self._waiting: deque[Layer] = deque()
        self._lock = Lock()
        """Of these two, one thread writes batches, another flushes; and of what was emptied."""
        self._compacting = Lock()
        """The engine does not close while it compacts, and opens for nobody else."""

    # -- the log

    @property
    def is_leading(self) -> bool:
        """As far as is known here. Whoever else has claimed it meanwhile, the next append will tell."""
        return self._epoch != NOBODY

    def follow(self) -> int:
        """Write into the store what the log has beyond it, some FOLLOW_BYTES of it: how many records; 0: all.

        Raises Trimmed and Damaged if the store cannot go on with this log, OtherLog if it is not of this log,
        UnknownVersion for a record that it does not understand, other LogErrors, StoreFailed.
        """
        start, passed_bytes = self.applied.seq, self.passed_bytes
        if not self._has_fit:
            self._check_fit()
        for seq, epoch, data in self._log.read(start):
            self._take(Applied(seq, epoch), data)
            if self.passed_bytes - passed_bytes > FOLLOW_BYTES:
                break
        return self.applied.seq - start

    def lead(self, node: str, url: str) -> None:
        """Claim the log from the record on that comes next here. `url`: where others send its clients.

        Raises Fenced if the log is further than the store, other LogErrors, StoreFailed.
        """
        has_base = self.applied.seq == 0 and self.has_rows
        epoch = self._log.claim(self.applied.seq + 1, node, url, has_base=has_base)
        self.follow()
        if self.applied.epoch == epoch:
            self._epoch, self._refusal = epoch, None

    @property
    def has_rows(self) -> bool:
        """Whether there has ever been a timeline in the store."""
        return self._store.get(Table.META, META_FORMAT) is not None

    def sync(self) -> Applied:
        """Up to which record the store below has the log for good, whatever becomes of the machine. Blocks;
        from any thread. Raises StoreFailed."""
        applied = self.applied
        self._store.flush()
        return applied

    def take_emptied(self) -> list[tuple[bytes, bytes]]:
        """The ranges of messages that were deleted by what has been followed since the last call: their space
        comes back when they are compacted."""
        with self._lock:
            taken, self._emptied = self._emptied, []
        return taken

    def _note_emptied(self, changes: Changes) -> None:
        with self._lock:
            self._emptied += changes.emptied(Table.MESSAGES)
            if len(self._emptied) > EMPTIED_MAX:
                starts, ends = zip(*self._emptied, strict=True)
                self._emptied = [(min(starts), max(ends))]

    def _check_fit(self) -> None:
        """That the store is a prefix of this log, as far as the log still says. Raises OtherLog, LogError."""
        seq, epoch = self.applied
        _, last = self._log.bounds()
        if last < seq:
            raise OtherLog(f"the log ends at {last}, the store has record {seq} of one")
        there = self._log.epoch_at(seq)
        if there is not None and there != epoch:
            raise OtherLog(f"record {seq} of the log is of epoch {there}, the store has it of epoch {epoch}")
        if self.leader is not None and self._log.epoch_at(epoch) is not None:
            for _, _, data in self._log.read(epoch - 1):
                if claim_of(data) != self.leader:
                    raise OtherLog(f"record {epoch} of the log is another claim than the store knows")
                break
        self._has_fit = True

    def _take(self, place: Applied, data: bytes) -> None:
        """Write a record of the log into the store."""
        self.passed_bytes += len(data)
        if place.seq != place.epoch:
            changes = decode_changes(data)
            self._apply(changes, place)
            self._note_emptied(changes)
            return
        claim = claim_of(data)
        if claim.has_base and not self.has_rows:
            raise Trimmed("the log begins with the rows of a store, and this one has none")
        changes = Changes()
        changes.put(Table.META, META_LEADER, data)
        self._apply(changes, place)
        self.leader = claim

    # -- batches

    def batch(self) -> Changes:
        return Changes()

    def write(self, batch: Batch) -> None:
        if not self.is_leading:
            raise StoreFailed("this node does not lead: its store takes only the log")
        if self._refusal is not None:
            raise StoreFailed(f"the log took no batch before this: {self._refusal}") from self._refusal
        assert isinstance(batch, Changes), "a batch of another store"
        layer = Layer(batch)
        with self._lock:
            self._layers = (layer, *self._layers)
            self._waiting.append(layer)

    def flush(self) -> None:
        for _ in range(len(self._waiting)):
            layer = self._waiting[0]
            try:
                place = Applied(self.applied.seq + 1, self._epoch)
                data = layer.changes.encode()
                self._log.append(*place, data)
                self._apply(layer.changes, place)
                self.passed_bytes += len(data)
            except ShardsError as error:
                self._refusal = error
                raise StoreFailed(f"a batch is not in the log: {error}") from error
            with self._lock:
                self._waiting.popleft()
                self._layers = self._layers[:-1]

    def reopen(self) -> None:
        """When it fails, the rows may be older than what was acked, or another leader's: whoever reads them
        then hands nothing on."""
        with self._lock:
            self._layers = ()
            self._waiting.clear()
        with self._compacting:
            self._store.reopen()
        self.applied, self.leader = applied_of(self._store), leader_of(self._store)
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

    def _apply(self, changes: Changes, place: Applied) -> None:
        batch = self._store.batch()
        changes.into(batch)
        batch.put(Table.META, META_APPLIED, applied_value(place))
        self._store.write(batch)
        self.applied = place

    # -- reading

    def get(self, table: Table, key: bytes) -> bytes | None:
        layers = self._layers
        seen = look(layers, table, key) if layers else None
        return self._store.get(table, key) if seen is None else seen.value

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from through(self._layers, self._store, table, start, end)

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
        """Of what has been applied: whoever takes it goes on with the log from there."""
        self._store.checkpoint(path)

    def mark(self, bound_ms: int) -> None:
        raise StoreFailed(f"dispatch does not go on to {bound_ms} ms without the log")

    def marked_ms(self) -> int:
        return self._store.marked_ms()

    def close(self) -> None:
        """Who leads and can says first that nobody does, so that the others need not wait."""
        if self.resigns and self.is_leading and self._refusal is None and not self._waiting:
            try:
                self._log.claim(self.applied.seq + 1, "", "")
            except LogError as error:
                log.warning("log: the end of this node's lead was not announced: %s", error)
        self._epoch = NOBODY
        self._log.close()
        with self._compacting:
            self._store.close()


def applied_of(store: Store) -> Applied:
    """Up to which record a store has the log. Raises StoreFailed, Corrupt."""
    value = store.get(Table.META, META_APPLIED)
    return Applied(0, 0) if value is None else applied_from(value)


def leader_of(store: Store) -> Claim | None:
    """Who has claimed the log last, up to where a store has it. Raises StoreFailed, Damaged."""
    value = store.get(Table.META, META_LEADER)
    return None if value is None else claim_of(value)
