"""Naive rules, each planted into the real code in place of the one that it was thought to be as good as.

A model test that never fails proves nothing. Each of these has been believed by somebody for a while; the
random walk has to find every one of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

import server.delivery.cursors
import server.engine.loader
import server.engine.writer
import shards.open_batch
from server.delivery.replay import Replay
from server.delivery.subscriber import Subscriber
from server.engine.writer import Writer
from shards.commit import Commit
from shards.errors import ShardsError
from shards.group_commit import GroupCommit
from shards.handover import Tally
from shards.memory import MemoryStore
from shards.open_batch import OpenBatch
from shards.owned import Owned
from shards.tables import StoredCursor, cursor_value
from shards.waiting import Waiting
from timeline.horizon import Horizon
from timeline.position import SEQ_MAX, Position, before
from timeline.session import Session
from timeline.slices import Directory, Slice, Watch
from timeline.tail import Tail
from timeline.wheel import Wheel

Mutant = Callable[[pytest.MonkeyPatch], None]


def no_floor(patch: pytest.MonkeyPatch) -> None:
    """The horizon does not wait for what is being synced."""

    def limit(self: Horizon, loaded: Position) -> Position:
        highest = min(before(self.clock_ms) | self.seq, loaded, before(self.bound_ms))
        return Position(max(highest, self.position))

    patch.setattr(Horizon, "limit", limit)


def half_a_request_holds_nothing(patch: pytest.MonkeyPatch) -> None:
    """What has been decided and is not written yet is not on the timeline: the horizon may pass it."""
    patch.setattr(Horizon, "hold", lambda self, floor: None)


def reserved_is_not_touched(patch: pytest.MonkeyPatch) -> None:
    """The horizon waits for rows, not for those that a request in steps is going to place."""
    patch.setattr(OpenBatch, "stay_below", lambda self, reserved: None)


def half_a_request_outlives_a_failure(patch: pytest.MonkeyPatch) -> None:
    """What has not been written cannot have failed."""
    fail = Writer.fail

    def naive(self: Writer, error: ShardsError) -> None:
        kept, self._deciding = self._deciding, None
        fail(self, error)
        self._deciding = kept

    patch.setattr(Writer, "fail", naive)


def a_group_is_undone_as_it_was_begun(patch: pytest.MonkeyPatch) -> None:
    """While a group is decided nothing is dispatched."""

    def dispatched(self: Waiting, count: int) -> None:
        self.pending -= count

    patch.setattr(Waiting, "dispatched", dispatched)


def floor_of_puts_only(patch: pytest.MonkeyPatch) -> None:
    """Cancels and moves do not hold the horizon."""

    def touch(self: GroupCommit, place: Position) -> None:
        if place not in self.gone and (self.floor is None or place < self.floor):
            self.floor = place

    patch.setattr(GroupCommit, "touch", touch)


def horizon_at_the_end_of_the_millisecond(patch: pytest.MonkeyPatch) -> None:
    """The horizon covers all of T's millisecond, also what has not been placed yet."""
    limit = Horizon.limit

    def naive(self: Horizon, loaded: Position) -> Position:
        seq, self.seq = self.seq, SEQ_MAX
        try:
            return limit(self, loaded)
        finally:
            self.seq = seq

    patch.setattr(Horizon, "limit", naive)


def now_is_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """A message without a due goes to what the wall clock shows, also when that was set back."""

    def observe(self: Horizon, wall_ms: int) -> None:
        self.clock_ms = wall_ms

    patch.setattr(Horizon, "observe", observe)


def nothing_is_held(patch: pytest.MonkeyPatch) -> None:
    """After a step back of the clock a message due before T is placed at T at once."""
    patch.setattr(Horizon, "place", lambda self, due_ms, wall_ms: max(due_ms, self.clock_ms))


def cursors_without_the_horizon(patch: pytest.MonkeyPatch) -> None:
    """Only groups with messages in them write the horizon; cursors go with any."""
    last = [Position(0)]
    seal = OpenBatch.seal

    def naive(self: OpenBatch) -> GroupCommit:
        if self._made.placed or not last[0] or last[0] > self.horizon.position:
            last[0] = self.horizon.position
        return seal(self)

    def stale(cursor: StoredCursor) -> bytes:
        return cursor_value(msgspec.structs.replace(cursor, horizon=min(last[0], cursor.horizon)))

    patch.setattr(OpenBatch, "seal", naive)
    patch.setattr(shards.open_batch, "cursor_value", stale)


def cancels_against_the_horizon(patch: pytest.MonkeyPatch) -> None:
    """A cancel wins until the horizon has passed the message."""
    patch.setattr(Horizon, "undecided", lambda self, place: place > self.position)


def nothing_is_marked(patch: pytest.MonkeyPatch) -> None:
    """While the store takes no writes dispatch needs no bound."""
    patch.setattr(MemoryStore, "mark", lambda self, bound_ms: None)


def no_bound(patch: pytest.MonkeyPatch) -> None:
    """Dispatch does not wait for a durable bound, and a start does not look at it."""
    init = Horizon.__init__

    def naive(self: Horizon, **stored: Any) -> None:
        init(self, **stored)
        self.unbounded, self.refuse_ms = True, 0

    patch.setattr(Horizon, "__init__", naive)


def loaded_beyond_the_run(patch: pytest.MonkeyPatch) -> None:
    """The loader believes that a run was complete."""
    loaded_to = Wheel.loaded_to

    def naive(self: Wheel[Any], place: Position) -> None:
        loaded_to(self, min(self.reach, Position(place + before(50))))

    patch.setattr(Wheel, "loaded_to", naive)


def into_the_wheel_when_written(patch: pytest.MonkeyPatch) -> None:
    """Rows enter the wheel before they are durable, and no floor holds them."""
    write = Writer._write

    def naive(self: Writer, commit: Commit, answers: Any) -> GroupCommit | None:
        group = write(self, commit, answers)
        for place, shard, value in group.placed if group is not None else ():
            item, size = server.engine.writer.entry(shard, value)
            self._wheel.add(place, item, size)
        if group is not None:
            floor = self._opened.horizon._open.pop()
            self._opened.horizon._open.append((Position((1 << 96) - 1), floor[1]))
        return group

    patch.setattr(Writer, "_write", naive)


def wheel_kept_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    """After a failed sync the wheel goes on with what it held."""
    recover = Writer.recover

    def naive(self: Writer) -> bool:
        clear, self._wheel.clear = self._wheel.clear, lambda loaded: None  # type: ignore[method-assign]
        try:
            return recover(self)
        finally:
            self._wheel.clear = clear  # type: ignore[method-assign]

    patch.setattr(Writer, "recover", naive)


def settled_without_a_look_at_cancels(patch: pytest.MonkeyPatch) -> None:
    """A moved row enters the wheel though a later request has cancelled it before it was durable."""
    settle = Writer.settle

    def naive(self: Writer) -> None:
        kept = [(group, list(group.gone)) for group, _ in self._open]
        for group, _ in kept:
            group.gone.clear()
        settle(self)
        for group, gone in kept:
            group.gone.extend(gone)

    patch.setattr(Writer, "settle", naive)


def cancelled_but_kept_in_the_wheel(patch: pytest.MonkeyPatch) -> None:
    """A cancel does not take the message out of the wheel."""
    patch.setattr(Wheel, "cancel", lambda self, place: None)


def seq_starts_again(patch: pytest.MonkeyPatch) -> None:
    """After a start seq goes on from nothing."""
    init = Horizon.__init__

    def naive(self: Horizon, **stored: Any) -> None:
        init(self, **{**stored, "seq": 0})

    patch.setattr(Horizon, "__init__", naive)


def nothing_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    """What was in flight when a connection ended is forgotten."""
    begin = Replay.begin

    def naive(self: Replay, subscriber: Subscriber) -> None:
        subscriber.session.flights.clear()
        begin(self, subscriber)

    patch.setattr(Replay, "begin", naive)


def joined_too_early(patch: pytest.MonkeyPatch) -> None:
    """A session tails as soon as it has a connection."""

    def join(self: Session, horizon: Position) -> bool:
        self.tailing = True
        return True

    patch.setattr(Session, "join", join)


def read_beyond_a_full_window(patch: pytest.MonkeyPatch) -> None:
    """A session that stops tailing is said to have read the message that it had no room for."""
    fall_behind = Session.fall_behind
    patch.setattr(Session, "fall_behind", lambda self, place: fall_behind(self, Position(place + 1)))


def the_tail_covers_all(patch: pytest.MonkeyPatch) -> None:
    """A session reads from the tail though its place has been pushed out."""
    patch.setattr(Tail, "covers", lambda self, read: True)


def acks_are_stored_late(patch: pytest.MonkeyPatch) -> None:
    """A cursor is stored without what was in flight."""
    naive = server.delivery.cursors.cursor_row

    def forgetful(subscriber: Subscriber, horizon: Position) -> bytes:
        session = subscriber.session
        flights, session.flights = session.flights, {}
        try:
            return naive(subscriber, horizon)
        finally:
            session.flights = flights

    patch.setattr(server.delivery.cursors, "cursor_row", forgetful)


def stubs_are_deleted(patch: pytest.MonkeyPatch) -> None:
    """The loader takes stubs for messages."""
    patch.setattr(server.engine.loader, "is_stub", lambda value: False)


def no_refusal_after_a_start(patch: pytest.MonkeyPatch) -> None:
    """A start believes that nothing beyond the stored horizon was sent."""
    init = Horizon.__init__

    def naive(self: Horizon, **stored: Any) -> None:
        init(self, **stored)
        self.refuse_ms = 0

    patch.setattr(Horizon, "__init__", naive)


def stubs_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    """What is cancelled while a job counts is as the job has counted it."""
    patch.setattr(Watch, "retired", lambda self, number, at_ms: None)
    patch.setattr(shards.handover, "_missed", lambda piece, said: 0)


def later_messages_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """What comes while a job counts will be few."""
    patch.setattr(Tally, "take_few", lambda self, commit: True)


def all_stubs_are_taken_off(patch: pytest.MonkeyPatch) -> None:
    """The job cannot have seen a stub that came after it began."""
    patch.setattr(shards.handover, "_missed", lambda piece, said: 0)


def slices_stay_cached_when_cut(patch: pytest.MonkeyPatch) -> None:
    """The quarters of an hour know their slice, whatever becomes of it."""

    def replaced(self: OpenBatch, piece: Slice, children: Sequence[Slice]) -> None:
        kept = dict(self._quarters)
        real(self, piece, children)
        self._quarters.update(kept)

    real = OpenBatch.replaced
    patch.setattr(OpenBatch, "replaced", replaced)


def a_borrowed_shard_goes_with_the_first(patch: pytest.MonkeyPatch) -> None:
    """When a slice expires nobody needs the shards that it borrowed."""
    patch.setattr(Directory, "is_borrowed", lambda self, shard: False)


def a_spoilt_group_stays_in_ram(patch: pytest.MonkeyPatch) -> None:
    """What was composed and is not written does no harm in the directory."""
    patch.setattr(server.engine.writer, "undo_group", lambda opened: None)


def what_was_passed_is_written_lazily(patch: pytest.MonkeyPatch) -> None:
    """The counters of owners go with the groups that change what was placed, not with every horizon."""

    passed = Owned.passed

    def lazy(self: Owned, owner: bytes, size: int) -> None:
        changed = set(self._changed)
        passed(self, owner, size)
        self._changed = changed

    patch.setattr(Owned, "passed", lazy)


def what_was_passed_is_read_again(patch: pytest.MonkeyPatch) -> None:
    """After a failure the counters of owners are as the rows have them."""
    reread = Owned.reread

    def naive(self: Owned) -> None:
        self._counts.clear()
        self._changed.clear()
        reread(self)

    patch.setattr(Owned, "reread", naive)


def what_was_placed_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A group that is not written leaves the counters of owners as it has changed them."""
    patch.setattr(Owned, "undo", lambda self: self._before.clear())


def a_cancelled_one_has_no_owner(patch: pytest.MonkeyPatch) -> None:
    """The horizon passes the cancelled ones, too, so that nobody need count them."""
    placed = Owned.placed
    patch.setattr(Owned, "placed", lambda self, owner, count, size: placed(self, owner, max(0, count), size))


def a_moved_one_has_its_bytes(patch: pytest.MonkeyPatch) -> None:
    """It is the same message: its row has an id more, which nobody counts."""
    patch.setattr(Commit, "_resized", lambda self, before, after: None)


MUTANTS: dict[Mutant, int] = {
    what_was_passed_is_written_lazily: 29,
    what_was_passed_is_read_again: 22,
    what_was_placed_is_kept: 25,
    a_cancelled_one_has_no_owner: 11,
    a_moved_one_has_its_bytes: 15,
    a_spoilt_group_stays_in_ram: 8,
    no_floor: 0,
    half_a_request_holds_nothing: 0,
    reserved_is_not_touched: 33,
    half_a_request_outlives_a_failure: 22,
    a_group_is_undone_as_it_was_begun: 32,
    floor_of_puts_only: 16,
    horizon_at_the_end_of_the_millisecond: 0,
    now_is_the_wall_clock: 11,
    nothing_is_held: 28,
    cursors_without_the_horizon: 48,
    cancels_against_the_horizon: 0,
    no_bound: 0,
    nothing_is_marked: 83,
    no_refusal_after_a_start: 0,
    loaded_beyond_the_run: 0,
    into_the_wheel_when_written: 0,
    wheel_kept_after_a_failure: 22,
    settled_without_a_look_at_cancels: 101,
    cancelled_but_kept_in_the_wheel: 10,
    seq_starts_again: 0,
    nothing_is_sent_again: 10,
    joined_too_early: 0,
    read_beyond_a_full_window: 0,
    the_tail_covers_all: 0,
    acks_are_stored_late: 10,
    stubs_are_deleted: 10,
    stubs_are_not_noted: 66,
    later_messages_are_not_counted: 66,
    all_stubs_are_taken_off: 49,
    slices_stay_cached_when_cut: 66,
    a_borrowed_shard_goes_with_the_first: 3,
}
"""Each with the seed of a walk that has found it, where the search begins."""
