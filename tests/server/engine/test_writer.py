"""The writer by itself: what it bounds, and what one request can do to the others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from server.engine.writer import GROUP_BYTES, OPEN_GROUPS, STEP_S, Busy, Writer
from server.settings.config import Config, Limits
from shards import keys
from shards.commit import Commit, Draft
from shards.errors import Corrupt, StoreFailed
from shards.fields import Record
from shards.record import decode, encode
from shards.recover import count_pending, read_directory
from shards.steps import STEP, Bits, Steps
from shards.store import Table
from shards.verify import verify_counts
from tests.support.clock import HandClock
from tests.support.memory_store import MemoryStore
from tests.support.stepper import Stepper
from timeline.position import END, START, at_of, before, message_id

NOW_MS = 1_800_000_000_000
LIMITS = replace(Limits(), queued_bytes=1_000)


class Rig:
    """A core whose syncs end when the test says so."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = HandClock(NOW_MS)
        self.stepper = Stepper(self.store, self.clock, replace(Config(), limits=LIMITS))
        self.core = self.stepper.core
        self.writer = self.core.writer
        self.answers: list[tuple[str, Any]] = []

    def submit(self, name: str, decide: Any, size: int = 0, *, writes: bool = True) -> None:
        self.writer.submit(
            decide, lambda answer: self.answers.append((name, answer)), size=size, writes=writes
        )

    def put(self, name: str, size: int = 0) -> None:
        self.submit(name, lambda commit: put_one(commit, name), size)

    def compose(self) -> bool:
        """Whether there is a group to sync."""
        unsynced = self.stepper.unsynced
        self.stepper.compose()
        return self.stepper.unsynced > unsynced

    def sync(self) -> None:
        assert self.stepper.settle()

    def write(self) -> None:
        assert self.compose()
        self.sync()

    @property
    def answered(self) -> list[str]:
        return [name for name, _ in self.answers]

    @property
    def kinds(self) -> list[tuple[str, type]]:
        return [(name, type(answer)) for name, answer in self.answers]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def put_one(commit: Commit, topic: str) -> object:
    due_ms = NOW_MS + 60_000
    return commit.put([Draft(due_ms, topic.encode(), encode(Record(topic.encode(), b"x", due_ms, 1)))])


class TestBytes:
    def test_count_until_the_answer_leaves(self, rig: Rig) -> None:
        rig.put("a", 600)
        rig.put("b", 300)
        assert rig.writer.queued_bytes == 900
        with pytest.raises(Busy):
            rig.put("c", 200)
        assert (rig.writer.queued_bytes, rig.writer.queued) == (900, 2)
        assert rig.compose()
        # Written, not yet synced: it is held all the same.
        with pytest.raises(Busy):
            rig.put("c", 200)
        rig.put("d", 100)
        rig.sync()
        assert (rig.answered, rig.writer.queued_bytes) == (["a", "b"], 100)
        rig.write()
        assert rig.writer.queued_bytes == 0

    def test_what_is_written_bounds_a_group_whoever_counts_it(self, rig: Rig) -> None:
        row = bytes(GROUP_BYTES // 2 + 1)
        for name in "abc":
            rig.submit(name, lambda commit: commit.row(Table.META, b"large", row))
        rig.write()
        assert rig.answered == ["a", "b"]
        rig.write()
        assert rig.answered == ["a", "b", "c"]

    def test_one_is_let_in_however_large(self, rig: Rig) -> None:
        rig.put("a", 5_000)
        with pytest.raises(Busy):
            rig.put("b", 1)
        rig.put("c")  # the server's own, that hold nothing

    def test_what_is_on_its_way_counts_with_them(self, rig: Rig) -> None:
        rig.writer.enter(900)
        with pytest.raises(Busy):
            rig.put("a", 200)
        with pytest.raises(Busy):
            rig.writer.enter(101)
        rig.writer.leave(900)
        rig.put("a", 200)

    @pytest.mark.parametrize("composed", [0, 1])
    def test_are_free_again_after_a_failure(self, rig: Rig, composed: int) -> None:
        rig.put("a", 900)
        for _ in range(composed):
            rig.compose()
        rig.writer.fail(StoreFailed("disk"))
        assert (rig.writer.queued_bytes, [type(answer) for _, answer in rig.answers]) == (0, [StoreFailed])

    def test_are_free_when_the_answer_comes(self, rig: Rig) -> None:
        """An answer makes a client go on at once: it must not be refused for its own last request."""
        seen = []
        rig.writer.submit(lambda commit: None, lambda answer: seen.append(rig.writer.queued_bytes), size=999)
        rig.compose()
        rig.sync()
        rig.writer.submit(
            lambda commit: None,
            lambda answer: seen.append(rig.writer.queued_bytes),
            size=999,
            writes=False,
        )
        assert not rig.compose()
        assert seen == [0, 0]


def half(commit: Commit) -> None:
    """Places a message, opens slices, then fails."""
    put_one(commit, "half")
    far_ms = NOW_MS + 90 * 86_400_000
    commit.put([Draft(far_ms, b"half", encode(Record(b"half", b"x", far_ms, 1)))])
    raise ZeroDivisionError("a fault of ours")


def stored(rig: Rig) -> list[str]:
    values = [value for _, value in rig.store.scan(Table.MESSAGES, b"", keys.LAST)]
    return [decode(value).topic.decode() for value in values]


def check_counts(rig: Rig) -> None:
    """RAM is what the rows say."""
    opened = rig.core.opened
    fresh = read_directory(rig.store, opened.directory.max_slices)
    assert verify_counts(rig.store, fresh) == []
    assert [(p.home, p.count, p.live, p.bytes, sorted(p.shards)) for p in opened.directory] == [
        (p.home, p.count, p.live, p.bytes, sorted(p.shards)) for p in fresh
    ]
    assert opened.waiting.pending == count_pending(opened.reader, opened.horizon.position)


class TestOneRequest:
    """One that fails does so alone."""

    def test_that_fails_before_it_changes_anything(self, rig: Rig) -> None:
        rig.put("a")
        rig.submit("bad", lambda commit: raised(Corrupt("a row")))
        rig.put("b")
        rig.write()
        assert rig.kinds == [("a", list), ("bad", Corrupt), ("b", list)]
        assert stored(rig) == ["a", "b"]

    def test_that_fails_half_way_takes_nothing_with_it_but_its_group(self, rig: Rig) -> None:
        rig.put("before")
        assert rig.compose()  # being synced all the while
        rig.put("fellow", 500)
        rig.submit("bad", half, 500)
        rig.put("after")
        assert not rig.compose()
        assert rig.kinds == [("fellow", StoreFailed), ("bad", ZeroDivisionError)]
        assert rig.writer.broken is None
        assert rig.writer.queued_bytes == 0
        check_counts(rig)
        rig.write()
        rig.sync()
        assert rig.kinds[2:] == [("before", list), ("after", list)]
        assert stored(rig) == ["before", "after"]
        check_counts(rig)
        assert (rig.core.opened.waiting.pending, rig.writer.given_up) == (2, 1)

    def test_that_cannot_be_counted(self, rig: Rig) -> None:
        rig.put("before")
        rig.write()
        (piece,) = rig.core.directory
        ((place, number, _),) = rig.core.opened.reader.read(START, END)

        def decide(commit: Commit) -> None:
            piece.shards[0].bytes = 1 << 70
            commit.cancel(message_id(place, number, commit.open_batch.node))

        rig.submit("bad", decide)
        assert not rig.compose()
        rig.put("after")
        rig.write()
        assert rig.kinds == [("before", list), ("bad", StoreFailed), ("after", list)]
        check_counts(rig)

    def test_whose_answer_cannot_be_given(self, rig: Rig) -> None:
        rig.writer.submit(lambda commit: None, lambda answer: raised(ZeroDivisionError()), size=7)
        rig.put("a")
        rig.compose()
        rig.sync()
        assert (rig.answered, rig.writer.queued_bytes) == (["a"], 0)

    def test_of_which_the_rows_of_its_group_cannot_be_made(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is known of what was composed then: as after a failed write."""
        monkeypatch.setattr(rig.core.cursors, "write", lambda commit: raised(ZeroDivisionError()))
        rig.put("a")
        assert not rig.compose()
        monkeypatch.undo()
        assert isinstance(rig.writer.broken, StoreFailed)
        assert rig.stepper.recover()
        rig.put("b")
        rig.write()
        assert rig.kinds == [("a", StoreFailed), ("b", list)]
        check_counts(rig)


def raised(error: Exception) -> None:
    raise error


class TestGathering:
    """While a group is being synced a few requests wait for one another, not each for a sync of its own."""

    @staticmethod
    def rig(gather: int, wake: Callable[[], None] = lambda: None, groups: int = OPEN_GROUPS) -> Rig:
        rig = Rig()
        core = rig.core
        bounds: Any = {"max_queued": 100, "max_bytes": 4 << 20, "gather": gather, "groups": groups}
        rig.writer = Writer(core.opened, core.wheel, core.clock, wake=wake, **bounds)
        return rig

    def test_nobody_is_woken_for_what_cannot_be_composed_yet(self) -> None:
        woken: list[str] = []
        rig = self.rig(3, lambda: woken.append("up"))
        rig.put("a")
        assert rig.writer.compose() is not None
        assert woken == ["up"]
        rig.put("b")
        rig.put("c")
        assert woken == ["up"]
        rig.put("d")  # with it there are enough
        assert woken == ["up", "up"]
        rig.writer.settle()
        assert woken == ["up"] * 3

    def test_a_few_wait_for_the_sync(self) -> None:
        rig = self.rig(3)
        rig.put("a")
        assert rig.writer.compose() is not None
        for name in "bc":
            rig.put(name)
            assert not rig.writer.can_compose
            assert rig.writer.compose() is None
        rig.writer.settle()
        assert rig.writer.can_compose
        assert rig.writer.compose() is not None
        assert not rig.writer.queued
        rig.writer.settle()
        assert rig.answered == ["a", "b", "c"]

    def test_enough_of_them_do_not(self) -> None:
        rig = self.rig(3)
        rig.put("a")
        assert rig.writer.compose() is not None
        for name in "bcd":
            rig.put(name)
        assert rig.writer.compose() is not None
        for name in "efg":
            rig.put(name)
        assert rig.writer.compose() is None  # two are being synced

    def test_nor_does_what_is_large(self) -> None:
        rig = self.rig(100)
        rig.put("a", 1 << 20)
        assert rig.writer.compose() is not None
        rig.put("b", 1)
        assert rig.writer.compose() is not None

    def test_what_writes_nothing_is_let_through(self) -> None:
        rig = self.rig(3)
        rig.put("a")
        assert rig.writer.compose() is not None
        rig.submit("b", lambda commit: None, writes=False)
        assert rig.writer.can_compose
        assert rig.writer.compose() is None
        assert rig.answered == ["b"]

    def test_on_a_log_a_few_wait_for_a_share_of_the_last_answer(self) -> None:
        woken: list[str] = []
        rig = self.rig(100, lambda: woken.append("up"), groups=4)
        clock = rig.core.clock
        assert isinstance(clock, HandClock)
        rig.put("a")
        assert rig.writer.compose() is not None
        rig.put("b")
        assert len(woken) == 2, "somebody has to look at the time"
        assert rig.writer.compose() is None
        assert rig.writer.wait_s() == pytest.approx(STEP_S)
        clock.mono_s += 0.005_1
        assert rig.writer.compose() is not None
        clock.mono_s += 0.395
        rig.writer.settle()  # after 400 ms
        for name in "cde":
            rig.put(name)
            assert rig.writer.compose() is not None
            rig.put(name * 2)
            assert rig.writer.wait_s() in (pytest.approx(0.1, rel=0.01), float("inf"))
            clock.mono_s += 0.099
            assert rig.writer.compose() is None
            clock.mono_s += 0.001_1
        assert rig.writer.compose() is None, "four are under way"


class TestLargeGroups:
    """What is due is dispatched between deciding and writing."""

    def test_what_the_group_touches_stays(self, rig: Rig) -> None:
        rig.put("first")  # with it a bound is durable
        rig.write()
        horizon = rig.core.horizon
        rig.submit(
            "late",
            lambda commit: commit.put([Draft(NOW_MS - 1, b"a", encode(Record(b"a", b"x", NOW_MS - 1, 1)))]),
        )
        before = horizon.position
        reached = []

        def between() -> None:
            rig.core.dispatch.turn()
            reached.append(horizon.limit(END))
            assert len(stored(rig)) == 1

        rig.stepper.heartbeat()
        rig.stepper.compose(between)
        assert len(reached) == 1
        (row,) = rig.core.writer._open[0][0].placed
        assert before <= reached[0] < row[0]
        assert len(stored(rig)) == 2

    def test_a_small_one_is_written_at_once(self, rig: Rig) -> None:
        rig.put("a")
        assert rig.writer.compose(lambda: pytest.fail("it is small")) is not None

    def test_what_fails_in_between_fails_the_group(self, rig: Rig) -> None:
        rig.put("a")

        def between() -> None:
            raise StoreFailed("a row cannot be read")

        rig.stepper.compose(between)
        assert rig.kinds == [("a", StoreFailed)]
        assert rig.writer.broken is not None
        assert stored(rig) == []
        assert rig.stepper.recover()
        rig.put("b")
        rig.write()
        assert rig.answered == ["a", "b"]
        check_counts(rig)


class TestSteps:
    """A large request is decided in several turns of the loop, and nothing that writes is meanwhile."""

    DUES = (60_000, 0, 3, 90_000)

    def put_many(self, rig: Rig, name: str, fault: Exception | None = None) -> None:
        drafts = []
        for delay_ms in self.DUES:
            due_ms = NOW_MS + delay_ms if delay_ms else 0
            drafts.append(
                Draft(due_ms, name.encode(), encode(Record(name.encode(), b"x", due_ms or NOW_MS, 1)))
            )

        def steps(commit: Commit) -> Bits[object]:
            placed = yield from commit.put_in_steps(drafts, step=1)
            if fault is not None:
                raise fault
            return placed

        rig.writer.submit(
            lambda commit: Steps(commit.open_batch.in_order(steps(commit))),
            lambda answer: rig.answers.append((name, answer)),
            cost=len(drafts),
        )

    def step(self, rig: Rig) -> bool:
        """Whether there is a group to sync."""
        return rig.writer.compose(large=1, decide_s=0.0) is not None

    def pass_on(self, rig: Rig) -> None:
        rig.stepper.load()
        rig.stepper.dispatch()

    def turns(self, rig: Rig) -> int:
        """As many as it takes until it is written."""
        for count in range(1, 20):
            self.pass_on(rig)
            if self.step(rig):
                rig.stepper._unsynced.append(len(rig.store.log))
                return count
        raise AssertionError("it is never written")

    def test_it_is_written_whole_in_a_turn_of_its_own(self, rig: Rig) -> None:
        rig.put("first")
        rig.write()
        self.put_many(rig, "many")
        assert not self.step(rig)
        assert rig.writer.is_deciding
        assert rig.writer.can_compose
        assert not rig.writer.is_idle
        rig.put("after")
        assert self.turns(rig) == 1 + len(self.DUES), "a step to reserve, one for each, one to write"
        assert stored(rig).count("many") == len(self.DUES)
        assert "after" not in stored(rig)
        rig.sync()
        assert rig.answered == ["first", "many"]
        rig.write()
        assert rig.writer.is_idle
        check_counts(rig)

    def test_what_writes_nothing_is_decided_between_the_steps(self) -> None:
        rig, decided = Rig(), list[str]()
        self.put_many(rig, "many")
        assert not self.step(rig)
        for name, owner, writes in (("plain", "b", False), ("row", "c", True), ("behind it", "c", False)):
            rig.writer.submit(
                lambda _, name=name: decided.append(name),
                lambda answer: rig.answers.append(("", answer)),
                writes=writes,
                owner=owner,
            )
        assert not self.step(rig)
        assert decided == ["plain"]
        self.turns(rig)
        assert decided == ["plain"]
        rig.sync()
        rig.compose()
        assert decided == ["plain", "row", "behind it"]

    @pytest.mark.parametrize("steps_before", range(1, 9))
    def test_what_writes_after_all_between_the_steps_is_written(self, rig: Rig, steps_before: int) -> None:
        """A subscriber has no room any more: a plain publish is stored, even while rows are sorted."""
        drafts = [
            Draft(NOW_MS + 60_000, b"many", encode(Record(b"many", b"x", NOW_MS + 60_000, 1)))
            for _ in range(4 * STEP)
        ]
        rig.writer.submit(
            lambda commit: Steps(commit.open_batch.in_order(commit.put_in_steps(drafts))),
            lambda answer: rig.answers.append(("many", answer)),
            cost=len(drafts),
        )
        for _ in range(steps_before):
            assert not self.step(rig)

        def write(commit: Commit) -> object:
            commit.row(Table.RECEIVED, b"key", b"")
            return put_one(commit, "plain")

        rig.submit("plain", write, writes=False)
        self.turns(rig)
        rig.sync()
        if rig.writer.can_compose:  # it was too late to be decided between the steps
            rig.write()
        assert sorted(rig.kinds) == [("many", list), ("plain", list)]
        assert stored(rig).count("many") == len(drafts)
        assert stored(rig).count("plain") == 1
        assert rig.store.get(Table.RECEIVED, b"key") == b""
        check_counts(rig)

    def test_one_that_fails_between_the_steps_spoils_the_group_and_all_are_answered(self, rig: Rig) -> None:
        self.put_many(rig, "many")
        assert not self.step(rig)
        rig.submit("bad", half, writes=False)
        assert not self.step(rig)
        assert rig.kinds == [("bad", ZeroDivisionError), ("many", StoreFailed)]
        assert rig.writer.is_idle
        assert rig.writer.queued_bytes == 0
        rig.put("after")
        rig.write()
        assert stored(rig) == ["after"]
        check_counts(rig)

    def test_the_horizon_waits_for_what_is_reserved(self, rig: Rig) -> None:
        rig.put("first")
        rig.write()
        self.put_many(rig, "many")
        rig.stepper.heartbeat()
        assert not self.step(rig)
        clock = rig.clock
        clock.now_ms += 50
        self.turns(rig)
        self.pass_on(rig)
        placed = [place for place, _, _ in rig.writer._open[0][0].placed]
        assert [at_of(place) - NOW_MS for place in placed] == list(self.DUES)
        assert rig.core.horizon.position < min(placed)
        rig.sync()
        self.pass_on(rig)
        assert rig.core.horizon.position > before(NOW_MS + 3)
        assert rig.core.dispatch.counts.dispatched == 2

    def test_it_begins_a_group_of_its_own(self, rig: Rig) -> None:
        rig.put("a")
        self.put_many(rig, "many")
        assert self.step(rig)
        assert stored(rig) == ["a"]

    def test_a_small_one_is_decided_in_one_go(self, rig: Rig) -> None:
        rig.put("a")
        self.put_many(rig, "many")
        assert rig.compose()
        assert len(stored(rig)) == 5

    def test_when_the_store_fails_so_does_it(self, rig: Rig) -> None:
        rig.put("first")
        assert rig.compose()
        self.put_many(rig, "many")
        rig.put("after")
        rig.writer._gather = 0
        assert not self.step(rig)
        assert rig.writer.is_deciding
        rig.stepper.fail_sync()
        assert rig.kinds == [("first", StoreFailed), ("many", StoreFailed), ("after", StoreFailed)]
        assert not rig.writer.is_deciding
        assert rig.writer.queued_bytes == 0
        assert rig.stepper.recover()
        rig.put("b")
        rig.write()
        assert "many" not in stored(rig)
        check_counts(rig)

    def test_one_that_fails_in_a_later_step_spoils_its_own_group(self, rig: Rig) -> None:
        self.put_many(rig, "many", ZeroDivisionError("later"))
        rig.put("after")
        for _ in range(10):
            assert not self.step(rig)
            if not rig.writer.is_deciding:
                break
        assert rig.writer.given_up == 1
        assert rig.kinds == [("many", ZeroDivisionError)]
        rig.write()
        assert stored(rig) == ["after"]
        check_counts(rig)

    def test_requests_that_take_long_share_no_group(self, rig: Rig) -> None:
        """What costs more than its messages say, as keys do that have to be read."""
        clock = rig.clock

        def slow(commit: Commit) -> object:
            clock.mono_s += 0.003
            return put_one(commit, "slow")

        for _ in range(5):
            rig.submit("slow", slow)
        sizes = []
        while rig.writer.can_compose:
            group = rig.writer.compose()
            assert group is not None
            rig.writer.settle()
            sizes.append(len(group.placed))
        assert sizes == [2, 2, 1]
