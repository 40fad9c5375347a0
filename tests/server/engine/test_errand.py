"""Work for the writer in steps: pieces, owners in turns, what fails alone, what is asked for again."""

from collections.abc import Iterable

import pytest

from server.core import Core
from server.engine import errand
from server.engine.errand import MOST, Errand
from server.engine.writer import GROUP_BYTES
from shards.commit import Commit, Refused
from shards.errors import Corrupt, StoreFailed
from shards.store import Table
from tests.support.clock import HandClock
from tests.support.memory_store import MemoryStore
from tests.support.stepper import Stepper

START_MS = 1_795_248_000_000


class Work:
    """Items are texts: their first letter is their owner, the rest a number."""

    def __init__(self, *, most: int = MOST, turn: int = MOST, cost: int = 0, cost_max: int = 1) -> None:
        self.clock = HandClock(START_MS)
        self.stepper = Stepper(MemoryStore(), self.clock)
        self.stepper.rest(self.stepper.round)
        self.pieces: list[list[str]] = []
        self.done: list[str] = []
        self.failures: list[tuple[str, str]] = []
        self.wrong: dict[str, Exception] = {}
        self.is_half_way = False
        self.takes_ms = 0
        self.bytes = 1
        self.found: list[str] = []
        self.drops: set[str] = set()
        self.errand = Errand(
            self.core.writer,
            self.clock,
            self._decide,
            lambda item, _: self.done.append(item),
            self._failed,
            most=most,
            turn=turn,
            owner=lambda item: item[0],
            cost=lambda _: cost,
            cost_max=cost_max,
            source=self._source,
        )

    @property
    def core(self) -> Core:
        return self.stepper.core

    def add(self, owner: str, count: int = 1) -> None:
        for number in range(count):
            self.errand.add(f"{owner}{number}")

    def turn(self) -> None:
        """One piece."""
        self.pieces.append([])
        self.errand.step()
        self.stepper.compose()
        if self.core.writer.broken is None:
            self.stepper.settle()

    def rest(self) -> None:
        for _ in range(100):
            self.turn()
            if self.errand.is_settled:
                return
        raise AssertionError("it does not come to rest")

    def _decide(self, commit: Commit, item: str) -> str:
        self.pieces[-1].append(item)
        self.clock.mono_s += self.takes_ms / 1_000
        wrong = self.wrong.get(item)
        if wrong is not None and not self.is_half_way:
            raise wrong
        commit.row(Table.META, b"errand" + item.encode(), bytes(self.bytes))
        if wrong is not None:
            raise wrong
        return item

    def _failed(self, item: str, error: Exception) -> float | None:
        self.failures.append((item, type(error).__name__))
        return None if item in self.drops else errand.RETRY_S

    def _source(self) -> Iterable[str]:
        return [item for item in self.found if item not in self.done and item not in self.drops]


def test_what_is_added_meanwhile_shares_the_next_request() -> None:
    work = Work()
    work.add("a", 5)
    work.rest()
    assert (work.pieces, work.done) == ([["a0"], ["a1", "a2", "a3", "a4"]], ["a0", "a1", "a2", "a3", "a4"])
    assert (work.errand._waiting, work.errand.wait_s()) == ({}, float("inf"))


def test_a_piece_has_so_many_and_owners_take_turns() -> None:
    work = Work(most=4, turn=2)
    work.add("a", 8)
    work.add("b", 3)
    work.rest()
    assert work.pieces == [["a0"], ["a1", "a2", "b0", "b1"], ["a3", "a4", "b2", "a5"], ["a6", "a7"]]


def test_owners_cost_something() -> None:
    work = Work(cost=5, cost_max=10)
    for owner in "abcd":
        work.add(owner, 2)
    work.rest()
    assert work.pieces == [["a0"], ["a1", "b0", "b1"], ["c0", "c1", "d0", "d1"]]


def test_what_there_is_no_time_for_goes_first_with_the_next_piece() -> None:
    work = Work(turn=2)
    work.add("a", 4)
    work.add("b", 2)
    work.takes_ms = 3
    work.turn()
    work.pieces.append([])
    work.stepper.compose()
    work.add("a")
    work.stepper.settle()
    work.rest()
    assert work.pieces == [["a0"], ["a1", "a2", "b0"], ["b1", "a3", "a0"]]


def test_a_piece_ends_with_the_room_of_a_group() -> None:
    work = Work()
    work.bytes = GROUP_BYTES // 2
    work.add("a", 4)
    work.rest()
    assert work.pieces == [["a0"], ["a1", "a2"], ["a3"]]


@pytest.mark.parametrize("error", [Refused("over-quota", "no room"), Corrupt("a row")])
def test_one_fails_alone_and_is_asked_for_a_second_later(error: Exception) -> None:
    work = Work()
    work.wrong = {"a2": error}
    work.add("a", 4)
    work.rest()
    assert (work.done, work.failures) == (["a0", "a1", "a3"], [("a2", type(error).__name__)])
    assert (len(work.errand.put_off), work.errand._waiting, work.core.writer.given_up) == (1, {}, 0)
    assert work.errand.wait_s() == pytest.approx(errand.RETRY_S)
    work.wrong.clear()
    work.clock.mono_s += 0.9
    work.turn()
    assert work.done[3:] == []
    work.clock.mono_s += 0.1
    work.turn()
    assert work.done[3:] == ["a2"]


def test_what_goes_on_failing_puts_nobody_else_off() -> None:
    """Each has a second of its own."""
    work = Work()
    work.wrong = {f"a{number}": Corrupt("a row") for number in range(2)}
    work.add("a")
    work.turn()
    work.clock.mono_s += 0.5
    work.errand.add("a1")
    work.turn()
    work.wrong.pop("a0")
    work.clock.mono_s += 0.5
    work.turn()
    assert (work.done, len(work.errand.put_off)) == (["a0"], 1)


def test_what_is_dropped_is_not_asked_for_again() -> None:
    work = Work()
    work.wrong, work.drops = {"a0": Corrupt("a row")}, {"a0"}
    work.add("a")
    work.turn()
    assert not work.errand.put_off
    work.clock.mono_s += 2
    work.rest()
    assert len(work.failures) == 1


@pytest.mark.parametrize("error", [Corrupt("a row"), ZeroDivisionError()])
def test_one_that_fails_half_way_spoils_one_group_a_minute(error: Exception) -> None:
    work = Work()
    work.is_half_way, work.wrong = True, {"a2": error}
    work.add("a", 4)
    work.rest()
    assert work.core.writer.given_up == 1
    assert work.failures == [("a1", "StoreFailed"), ("a2", type(error).__name__), ("a3", "StoreFailed")]
    work.clock.mono_s += 1
    work.rest()
    assert (work.done, work.core.writer.given_up, len(work.failures)) == (["a0", "a1", "a3"], 1, 3)
    work.clock.mono_s += errand.SPOILER_S - 1
    work.rest()
    assert (work.core.writer.given_up, len(work.failures)) == (2, 4)


def test_a_refusal_among_others_does_not_undo_them() -> None:
    work = Work()
    work.wrong = {"a2": Refused("over-quota", "no room")}
    work.add("a", 4)
    work.rest()
    rows = [key for key, _ in work.core.opened.store.scan(Table.META, b"errand", b"errane")]
    assert rows == [b"errand" + item.encode() for item in ("a0", "a1", "a3")]


def test_when_the_writer_is_full_all_that_waits_is_asked_for_a_second_later() -> None:
    work = Work()
    work.add("a", 3)
    for _ in range(work.core.config.limits.queued // 1_000 + 2):
        work.core.writer.submit(lambda _: None, lambda _: None, cost=1_000, can_refuse=False)
    work.turn()
    assert work.failures == [("a1", "Busy"), ("a2", "Busy")]
    assert work.errand.is_settled
    while not work.core.writer.is_idle:
        work.turn()
    assert work.done == ["a0"]
    work.clock.mono_s += 1
    work.rest()
    assert work.done == ["a0", "a1", "a2"]


def test_while_the_store_fails_nothing_is_asked() -> None:
    work = Work()
    work.add("a", 3)
    work.turn()
    work.stepper.compose()
    work.core.writer.fail(StoreFailed("told to"))
    assert [item for item, _ in work.failures] == ["a1", "a2"]
    for _ in range(3):
        work.clock.mono_s += 2
        work.turn()
    assert (len(work.failures), work.errand.wait_s()) == (2, float("inf"))
    assert work.stepper.recover()
    work.rest()
    assert work.done == ["a0", "a1", "a2"]


def test_a_source_is_asked_when_nothing_waits() -> None:
    work = Work(most=3)
    work.found = [f"s{number}" for number in range(7)]
    assert not work.errand.is_settled
    work.rest()
    assert work.pieces == [["s0", "s1", "s2"], ["s3", "s4", "s5"], ["s6"]]


def test_what_a_source_yields_waits_alone_when_it_is_refused() -> None:
    work = Work(most=3)
    work.wrong = {"s1": Refused("over-quota", "no room")}
    work.found = [f"s{number}" for number in range(4)]
    for _ in range(5):
        work.turn()
    assert work.pieces == [["s0", "s1", "s2"], ["s3"], [], [], []]
    assert not work.errand.is_settled, "it is still to be done"
    work.wrong.clear()
    work.clock.mono_s += 1
    work.rest()
    assert work.done == ["s0", "s2", "s3", "s1"]


def test_a_source_that_the_writer_takes_nothing_of_is_settled() -> None:
    work = Work()
    work.core.writer.fail(StoreFailed("told to"))
    work.found, work.drops = ["s0"], set()
    for _ in range(3):
        work.turn()
    assert (work.failures, work.errand.is_settled) == ([], True)
    assert work.stepper.recover()
    work.rest()
    assert work.done == ["s0"]


def test_what_waits_can_be_forgotten() -> None:
    work = Work()
    work.wrong = {"a0": Refused("over-quota", "no room")}
    work.add("a", 3)
    work.turn()
    work.errand.clear()
    work.clock.mono_s += 1
    work.rest()
    assert work.done == ["a1", "a2"]
