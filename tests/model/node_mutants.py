"""Naive rules of nodes that share a log, planted like those of mutants.py; the walks over them find each."""

from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest

from server.cluster.clocks import Clocks, NodeClock
from server.cluster.damage import Damage
from server.cluster.standing import Standing, Verdict, verdict
from server.cluster.trimming import Trimming
from shards.changes import Recorded
from shards.errors import ShardsError, StoreFailed
from shards.log.chain import Chain
from shards.log.chained import ChainedLog
from shards.log.engine import Origin
from shards.log.errors import LogError, Trimmed
from shards.log.record import Record, Seal, opened
from shards.replicated import ReplicatedStore, applied_of, leader_of
from shards.scrub import Walk
from shards.store import Batch, Table
from shards.tables import META_APPLIED, META_SEAL, applied_value, seal_value

from .mutants import Mutant, no_bound, no_refusal_after_a_start

Through = Callable[[Callable[[], None]], None]


def _drop(store: ReplicatedStore) -> Recorded:
    batch = store._waiting.popleft()
    store._settled += 1
    store._layers = store._layers[:-1]
    return batch


def _place(store: ReplicatedStore) -> Seal:
    return Seal(store.applied.seq + 1, store._epoch)


def applied_before_it_is_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """The order of the two is the same to who waits for both."""

    def flush_to(self: ReplicatedStore, written: int) -> None:
        while self._settled < written and self._waiting:
            batch, place = self._waiting[0], _place(self)
            try:
                self._apply(batch.batch, place)
                self._log.append(place.seq, place.epoch, batch.changes.encode())
            except ShardsError as error:
                self._refusal = error
                raise StoreFailed("naive") from error
            _drop(self)

    patch.setattr(ReplicatedStore, "flush_to", flush_to)


def answered_before_it_is_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """The log will take it: the last batch may be on its way while its answers leave."""
    real = ReplicatedStore.flush_to

    def flush_to(self: ReplicatedStore, written: int) -> None:
        if len(self._waiting) > 1:
            real(self, written)

    patch.setattr(ReplicatedStore, "flush_to", flush_to)


def answered_once_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    """What is sent behind a record that the log has will be taken, too."""

    def flush_to(self: ReplicatedStore, written: int) -> None:
        while self._settled < written and self._waiting and not self._settled + self._sent >= written:
            self._step()

    patch.setattr(ReplicatedStore, "flush_to", flush_to)


def void_is_a_record(patch: pytest.MonkeyPatch) -> None:
    """What was sent ahead and came into the log is a record, whatever stands before it."""
    real = Chain.judged

    def judged(self: Chain, frame: bytes) -> Record | None:
        record = real(self, frame)
        if record is None:
            with suppress(LogError):
                found = opened(frame, self.next)
                return found if found.is_ahead else None
        return record

    patch.setattr(Chain, "judged", judged)


def dropped_before_the_store_has_it(patch: pytest.MonkeyPatch) -> None:
    """What is in the log need not be held here any more, whatever the disk says of it."""

    def flush_to(self: ReplicatedStore, written: int) -> None:
        while self._settled < written and self._waiting:
            batch, place = _drop(self), _place(self)
            try:
                self._log.append(place.seq, place.epoch, batch.changes.encode())
            except ShardsError as error:
                self._refusal = error
                raise StoreFailed("naive") from error
            try:
                self._apply(batch.batch, self._log.at)
            except StoreFailed:
                self.applied = self._log.at

    patch.setattr(ReplicatedStore, "flush_to", flush_to)


def where_it_stands_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """A node begins with the first record there is: to apply one twice does no harm."""

    def apply(self: ReplicatedStore, batch: Batch, place: Seal) -> None:
        self._store.write(batch)
        self.applied = place

    patch.setattr(ReplicatedStore, "_apply", apply)


def where_it_stands_is_written_first(patch: pytest.MonkeyPatch) -> None:
    """The record's number and its rows may be two batches."""

    def apply(self: ReplicatedStore, batch: Batch, place: Seal) -> None:
        note = self._store.batch()
        note.put(Table.META, META_APPLIED, applied_value(place))
        note.put(Table.META, META_SEAL, seal_value(place))
        self._store.write(note)
        self._store.write(batch)
        self.applied = place

    patch.setattr(ReplicatedStore, "_apply", apply)


def applied_is_durable(patch: pytest.MonkeyPatch) -> None:
    """What is written below is there: the log may be trimmed up to it."""
    patch.setattr(ReplicatedStore, "sync", lambda self: self.applied)


def who_has_read_on_goes_on(patch: pytest.MonkeyPatch) -> None:
    """Whoever has the log's last record may write the next one, whoever leads."""

    def reopen(self: ReplicatedStore) -> None:
        self._layers = ()
        self._waiting.clear()
        self._store.reopen()
        self.applied, self.leader = applied_of(self._store), leader_of(self._store)
        self.follow()
        self._epoch, self._refusal = self.applied.epoch, None

    patch.setattr(ReplicatedStore, "reopen", reopen)


def the_next_place_will_do(patch: pytest.MonkeyPatch) -> None:
    """A batch whose place is taken goes to the next one: the fence is for the place alone."""
    append, flush_to = ChainedLog.append, ReplicatedStore.flush_to

    def anyhow(self: ChainedLog, seq: int, epoch: int, data: bytes, *through: Through) -> None:
        before = self.seal_at(seq - 1)
        if before is not None:
            self.stand(before)
            epoch = before.epoch
        append(self, seq, epoch, data, *through)

    def naive(self: ReplicatedStore, written: int) -> None:
        try:
            self.follow()
        except LogError as error:
            raise StoreFailed("naive") from error
        flush_to(self, written)

    patch.setattr(ChainedLog, "append", anyhow)
    patch.setattr(ChainedLog, "send", lambda *_: False)
    patch.setattr(ReplicatedStore, "flush_to", naive)


def nothing_comes_late(patch: pytest.MonkeyPatch) -> None:
    """What is not in the log when it is read never will be."""

    def reopen(self: ReplicatedStore) -> None:
        self._layers = ()
        self._waiting.clear()
        self._store.reopen()
        self.applied, self.leader = applied_of(self._store), leader_of(self._store)
        self.follow()
        if self.applied.epoch != self._epoch:
            raise StoreFailed("naive")
        self._refusal = None

    patch.setattr(ReplicatedStore, "reopen", reopen)


def what_waits_is_given_to_the_next_term(patch: pytest.MonkeyPatch) -> None:
    """A store that is reopened still has what it had taken."""
    real = ReplicatedStore.reopen

    def reopen(self: ReplicatedStore) -> None:
        layers, waiting = self._layers, list(self._waiting)
        real(self)
        self._layers = layers
        self._waiting.extend(waiting)

    patch.setattr(ReplicatedStore, "reopen", reopen)


def a_step_of_the_clock_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    """The machine knows what time it is."""
    patch.setattr(NodeClock, "wall_ms", lambda self: self.system_ms())


def a_step_of_the_clock_confirms_itself(patch: pytest.MonkeyPatch) -> None:
    """Whoever has been asked, the new time is right."""
    patch.setattr(Clocks, "agree", lambda _: True)


def a_wrong_clock_leads(patch: pytest.MonkeyPatch) -> None:
    """Clocks run alike: nobody has to be contradicted."""
    patch.setattr(Clocks, "contradicting", lambda *_: [])


def one_other_clock_is_enough_to_give_up(patch: pytest.MonkeyPatch) -> None:
    """Who differs from anybody is wrong."""
    real = Clocks.contradicting
    patch.setattr(Clocks, "contradicting", lambda self, rows: real(self, rows) * 2)


def any_key_will_do(patch: pytest.MonkeyPatch) -> None:
    """Who can write into the log belongs to it."""
    patch.setattr("shards.log.chain.is_signed", lambda *_: True)
    patch.setattr("shards.log.chained.is_signed", lambda *_: True)


def a_stray_is_damage(patch: pytest.MonkeyPatch) -> None:
    """In the log there are records, and what has become of them."""
    patch.setattr("shards.log.chain.is_of", lambda *_: True)


def what_is_purged_is_not_missed(patch: pytest.MonkeyPatch) -> None:
    """The log begins where it begins: go on from there."""

    def follow(self: ReplicatedStore) -> int:
        try:
            return real(self)
        except Trimmed:
            first, _ = self._log.bounds()
            self.applied = Seal(first - 1, self.applied.epoch)
            return real(self)

    real = ReplicatedStore.follow
    patch.setattr(ReplicatedStore, "follow", follow)


def what_is_damaged_is_passed(patch: pytest.MonkeyPatch) -> None:
    """A row that cannot be read is as good as none."""
    patch.setattr(ReplicatedStore, "_met", lambda _, error: error)


def who_is_damaged_is_fit(patch: pytest.MonkeyPatch) -> None:
    """What is damaged may not be read for a long time."""
    patch.setattr(Damage, "fault", "")


def the_first_rows_stand_for_all(patch: pytest.MonkeyPatch) -> None:
    """A file that begins well is well: so says the scrub, and whoever takes a copy."""

    def step(self: Walk) -> int:
        self._store.check(Table.MESSAGES, b"", 1)
        self.table = len(Table)
        return 0

    patch.setattr(Walk, "step", step)


def a_copy_is_taken_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """It was right where it comes from."""
    patch.setattr("tests.model.cluster.scrubbed", lambda _: True)


def who_misses_the_log_begins_it(patch: pytest.MonkeyPatch) -> None:
    """A node that finds none makes one."""
    patch.setattr("server.cluster.standing.verdict", lambda *_: Verdict(begins=True))


def most_of_the_nodes_decide(patch: pytest.MonkeyPatch) -> None:
    """Of those that answer, one has the most."""

    def naive(mine: Standing, peers: Mapping[str, Standing | None]) -> Verdict:
        return verdict(mine, {url: one for url, one in peers.items() if one is not None})

    patch.setattr("server.cluster.standing.verdict", naive)


def who_decides_late_begins_the_log(patch: pytest.MonkeyPatch) -> None:
    """What all have agreed to is right for ever."""
    real = ChainedLog.begin

    def begin(self: ChainedLog, seal: Seal, origin: Origin, last: int = 0, beyond: int = 0) -> None:
        with suppress(LogError):
            last = self.bounds()[1]
        real(self, seal, origin, last, beyond)

    patch.setattr(ChainedLog, "begin", begin)


def who_leads_trims(patch: pytest.MonkeyPatch) -> None:
    """One node looks after the log."""
    real = Trimming.trim

    async def trim(self: Trimming, store: ReplicatedStore, durable: int, *, is_led: bool) -> None:
        if store.is_leading:
            await real(self, store, durable, is_led=is_led)

    patch.setattr(Trimming, "trim", trim)


def what_is_applied_is_trimmed(patch: pytest.MonkeyPatch) -> None:
    """What a store has it keeps."""
    real = Trimming.trim

    async def trim(self: Trimming, store: ReplicatedStore, durable: int, *, is_led: bool) -> None:
        await real(self, store, max(durable, store.applied.seq), is_led=is_led)

    patch.setattr(Trimming, "trim", trim)


def a_full_log_is_kept_for_who_is_away(patch: pytest.MonkeyPatch) -> None:
    """It will come back, and want it."""
    patch.setattr("server.cluster.trimming.SHORT", 2.0)


NODE_MUTANTS: dict[Mutant, int] = {
    applied_before_it_is_in_the_log: 0,
    answered_before_it_is_in_the_log: 0,
    answered_once_it_is_sent: 0,
    void_is_a_record: 0,
    dropped_before_the_store_has_it: 1,
    where_it_stands_is_not_written: 0,
    where_it_stands_is_written_first: 10,
    applied_is_durable: 0,
    who_has_read_on_goes_on: 6,
    the_next_place_will_do: 8,
    nothing_comes_late: 15,
    what_waits_is_given_to_the_next_term: 15,
    a_step_of_the_clock_counts_at_once: 81,
    a_step_of_the_clock_confirms_itself: 88,
    a_wrong_clock_leads: 67,
    one_other_clock_is_enough_to_give_up: 6,
    any_key_will_do: 10,
    a_stray_is_damage: 0,
    what_is_purged_is_not_missed: 3,
    no_bound: 6,
    no_refusal_after_a_start: 6,
}
"""Each with the seed of a walk that has found it, where the search begins."""

BREAKAGE_MUTANTS: dict[Mutant, int] = {
    what_is_damaged_is_passed: 14,
    who_is_damaged_is_fit: 0,
    the_first_rows_stand_for_all: 0,
    a_copy_is_taken_as_it_is: 187,
    who_misses_the_log_begins_it: 0,
    most_of_the_nodes_decide: 0,
    who_decides_late_begins_the_log: 0,
    who_leads_trims: 25,
    what_is_applied_is_trimmed: 68,
    a_full_log_is_kept_for_who_is_away: 68,
}
"""The same of walks in which rows rot, and the log is deleted or full."""
