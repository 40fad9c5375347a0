"""The wheel against a sorted dictionary: everything up to `loaded` comes out once, in order, in time."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.soak import SOAK
from timeline.position import Position, at_of, before, position
from timeline.wheel import REACH_MS, SLOTS, Wheel

START_MS = 5_000


def make(*, entries: int = 100, size: int = 1 << 20, start_ms: int = START_MS) -> Wheel[str]:
    return Wheel(before(start_ms), max_entries=entries, max_bytes=size)


def full(*ats: int, loaded_ms: int = 100_000) -> Wheel[str]:
    """A wheel that is loaded up to `loaded_ms` and holds an entry at each of `ats`."""
    wheel = make()
    wheel.loaded_to(before(loaded_ms))
    for seq, at_ms in enumerate(ats, 1):
        assert wheel.add(position(at_ms, seq), f"{at_ms}", 10)
    return wheel


def advance(wheel: Wheel[str], to_ms: int, limit: int = 1_000) -> list[str]:
    return [item for _, item in wheel.advance(before(to_ms), limit)]


def test_the_example_of_the_module() -> None:
    wheel = full(5_030, 9_000)
    assert advance(wheel, 5_030) == []
    assert advance(wheel, 5_031) == ["5030"]
    assert advance(wheel, 8_999) == []
    assert advance(wheel, 9_001) == ["9000"]
    assert len(wheel) == 0
    assert wheel.bytes == 0


def test_entries_come_in_position_order_whatever_the_order_they_came_in() -> None:
    wheel = make()
    wheel.loaded_to(before(20_000))
    places = [position(at, seq) for at in (19_000, 5_001, 6_144, 5_001, 6_143) for seq in (9, 3)]
    for place in dict.fromkeys(places):
        wheel.add(place, str(place), 1)
    assert [place for place, _ in wheel.advance(before(20_000), 100)] == sorted(set(places))


def test_a_bound_inside_a_millisecond_is_kept() -> None:
    wheel = make()
    wheel.loaded_to(before(6_000))
    for seq in (1, 2, 3):
        wheel.add(position(5_500, seq), str(seq), 1)
    assert wheel.advance(position(5_500, 2), 10) == [(position(5_500, 1), "1"), (position(5_500, 2), "2")]
    assert wheel.advance(position(5_500, 2), 10) == []
    assert wheel.advance(before(5_501), 10) == [(position(5_500, 3), "3")]


def test_what_it_holds_is_told_with_its_size() -> None:
    assert dict(full(5_500, 6_000).items()) == {
        position(5_500, 1): ("5500", 10),
        position(6_000, 2): ("6000", 10),
    }


def test_a_limit_cuts_anywhere() -> None:
    wheel = full(5_001, 5_001, 5_001, 9_000, 9_000)
    assert advance(wheel, 10_000, 2) == ["5001", "5001"]
    assert advance(wheel, 10_000, 2) == ["5001", "9000"]
    assert advance(wheel, 10_000, 2) == ["9000"]
    assert advance(wheel, 10_000, 2) == []


def test_adding_twice_changes_nothing() -> None:
    wheel = full(6_000)
    assert wheel.add(position(6_000, 1), "again", 10)
    assert (len(wheel), wheel.bytes) == (1, 10)
    assert advance(wheel, 7_000) == ["6000"]


def test_what_lies_beyond_is_the_loaders() -> None:
    wheel = full(loaded_ms=6_000)
    assert not wheel.add(position(6_000, 1), "x", 1)
    assert wheel.add(before(6_000), "y", 1)
    assert len(wheel) == 1


def test_an_entry_of_the_past_is_due_at_once() -> None:
    wheel = full()
    advance(wheel, 50_000)
    wheel.add(position(40_000, 1), "late", 1)
    wheel.add(position(50_000, 1), "now", 1)
    assert advance(wheel, 50_001) == ["late", "now"]


def test_a_cancelled_entry_is_passed_over() -> None:
    wheel = full(6_000, 6_000, 9_000)
    wheel.cancel(position(6_000, 1))
    wheel.cancel(position(7_777, 0))
    assert (len(wheel), wheel.bytes) == (2, 20)
    assert advance(wheel, 10_000) == ["6000", "9000"]
    wheel.check()


def test_cancelled_entries_do_not_pile_up() -> None:
    """A message that is moved again and again would leave a position each time."""
    wheel = make(entries=10)
    wheel.loaded_to(before(900_000))
    wheel.add(position(500_000, 1 << 40), "stays", 1)
    for number in range(20 * SLOTS):
        wheel.add(position(500_000 + number % 7, number), "x", 1)
        wheel.cancel(position(500_000 + number % 7, number))
        if number % SLOTS == 0:
            wheel.check()
    assert sum(len(slot) for slot in wheel._coarse) <= SLOTS + 2
    assert advance(wheel, 500_001) == ["stays"]


def test_at_the_bound_the_far_half_is_given_back() -> None:
    wheel = make(entries=4)
    wheel.loaded_to(before(100_000))
    for seq in range(4):
        assert wheel.add(position(6_000 + seq, seq), str(seq), 1)
    assert wheel.is_full
    assert wheel.given_back == 0
    assert not wheel.add(position(50_000, 9), "far", 1)
    assert wheel.given_back == 1
    assert wheel.loaded == position(6_001, 1)
    assert wheel.add(position(6_000, 9), "near", 1)
    assert [item for _, item in wheel.advance(wheel.loaded, 10)] == ["0", "near", "1"]


def test_the_bound_in_bytes() -> None:
    wheel = make(size=30)
    wheel.loaded_to(before(100_000))
    for seq in range(3):
        wheel.add(position(6_000, seq), str(seq), 10)
    assert wheel.is_full
    wheel.add(position(6_000, 0) - 5, "first", 10)  # type: ignore[arg-type]
    assert wheel.bytes <= 30
    assert wheel.loaded == position(6_000, 0)


def test_a_wheel_of_one_entry_makes_room() -> None:
    wheel = make(entries=1)
    wheel.loaded_to(before(100_000))
    wheel.add(position(6_000, 5), "first", 1)
    wheel.add(position(5_500, 6), "nearer", 1)
    assert wheel.loaded == position(6_000, 4)
    assert [item for _, item in wheel.advance(wheel.loaded, 10)] == ["nearer"]


def test_what_is_added_right_behind_what_is_given_back_is_kept() -> None:
    """The loader reads on behind `loaded`: it would not see it."""
    wheel = make(entries=1)
    wheel.loaded_to(before(100_000))
    wheel.add(position(6_000, 5), "first", 1)
    assert wheel.add(position(6_000, 4), "nearer", 1)
    assert wheel.loaded == position(6_000, 4)
    assert [item for _, item in wheel.advance(wheel.loaded, 10)] == ["nearer"]


def test_next_ms_is_never_late() -> None:
    wheel = full()
    assert wheel.next_ms() is None
    wheel.add(position(70_000, 1), "x", 1)
    first = wheel.next_ms()
    assert first is not None
    assert START_MS < first <= 70_000
    wheel.add(position(5_100, 1), "y", 1)
    assert wheel.next_ms() == 5_100
    assert advance(wheel, 5_101) == ["y"]
    advance(wheel, first)
    assert wheel.next_ms() == 70_000


def test_next_ms_over_the_wrap_of_the_second_level() -> None:
    start = SLOTS * SLOTS - 2 * SLOTS
    wheel = make(start_ms=start)
    wheel.loaded_to(wheel.reach)
    wheel.add(position(start + 5 * SLOTS + 3, 1), "x", 1)
    first = wheel.next_ms()
    assert first == start + 5 * SLOTS
    assert advance(wheel, start + 6 * SLOTS) == ["x"]


def test_the_reach_is_the_second_levels() -> None:
    wheel = make()
    assert wheel.reach == before(START_MS + REACH_MS)
    wheel.loaded_to(wheel.reach)
    last = Position(wheel.reach - 1)
    assert wheel.add(last, "last", 1)
    assert [place for place, _ in wheel.advance(wheel.reach, 10)] == [last]
    with pytest.raises(AssertionError, match="beyond"):
        make().loaded_to(before(START_MS + REACH_MS + 1))


def test_it_advances_only_within_what_is_loaded() -> None:
    with pytest.raises(AssertionError, match="within what is loaded"):
        make().advance(before(6_000), 1)


def test_loaded_does_not_move_back_by_itself() -> None:
    wheel = full(loaded_ms=6_000)
    wheel.loaded_to(before(5_500))
    assert wheel.loaded == before(6_000)


def test_clear_forgets_everything() -> None:
    wheel = full(6_000, 9_000, 90_000)
    wheel.clear(before(5_500))
    assert (len(wheel), wheel.bytes, wheel.loaded) == (0, 0, before(5_500))
    assert (list(wheel.items()), wheel.given_back) == ([], 1)
    wheel.check()
    assert advance(wheel, 5_500) == []


def test_skip_jumps_over_an_empty_stretch() -> None:
    wheel = make()
    wheel.skip(before(START_MS + 10 * REACH_MS))
    assert wheel.loaded == before(START_MS + 10 * REACH_MS)
    assert wheel.reach == before(START_MS + 11 * REACH_MS)
    wheel.skip(before(START_MS))
    assert wheel.loaded == before(START_MS + 10 * REACH_MS)


def test_a_full_wheel_does_not_skip() -> None:
    with pytest.raises(AssertionError, match="empty"):
        full(6_000).skip(before(9_000))


def test_after_a_skip_the_horizon_may_still_be_held_back() -> None:
    """The durable bound, or a group that is being synced, can lie far behind what was skipped."""
    wheel = make()
    far_ms = START_MS + 10 * REACH_MS
    wheel.skip(before(far_ms))
    assert advance(wheel, START_MS + 5) == []
    assert wheel.add(position(START_MS + 7, 1), "settled late", 1)
    assert advance(wheel, START_MS + 7) == []
    assert advance(wheel, START_MS + 8) == ["settled late"]
    assert advance(wheel, far_ms) == []


gaps = st.one_of(st.integers(0, 5), st.integers(0, 5_000), st.integers(0, REACH_MS // 3))


class WheelMachine(RuleBasedStateMachine):
    """The disk is a dictionary: what the wheel refuses or sheds is read again from it, by `load`."""

    ENTRIES, BYTES = 8, 60

    def __init__(self) -> None:
        super().__init__()
        self.wheel: Wheel[int] = Wheel(before(START_MS), max_entries=self.ENTRIES, max_bytes=self.BYTES)
        self.disk: dict[Position, int] = {}
        self.horizon = before(START_MS)
        self.seq = 0
        self.load_more = True

    def _due(self, to: Position) -> list[tuple[Position, int]]:
        return sorted((place, size) for place, size in self.disk.items() if place <= to)

    @rule(gap_ms=gaps, size=st.integers(1, 20))
    def add(self, gap_ms: int, size: int) -> None:
        """A message becomes durable."""
        self.seq += 1
        place = position(at_of(self.horizon) + gap_ms, self.seq)
        if place <= self.horizon:
            return
        self.disk[place] = size
        if place <= self.wheel.loaded:
            self.wheel.add(place, size, size)
        else:
            assert not self.wheel.add(place, size, size)

    @rule(index=st.integers(0, 50))
    def add_again(self, index: int) -> None:
        """A message that the loader has read already is settled."""
        if self.disk:
            place = sorted(self.disk)[index % len(self.disk)]
            self.wheel.add(place, self.disk[place], self.disk[place])

    @rule(index=st.integers(0, 50))
    def cancel(self, index: int) -> None:
        if self.disk:
            place = sorted(self.disk)[index % len(self.disk)]
            del self.disk[place]
            self.wheel.cancel(place)

    @rule(rows=st.integers(1, 6), ahead_ms=gaps)
    def load(self, rows: int, ahead_ms: int) -> None:
        """What server/engine/loader.py does in a step."""
        wheel = self.wheel
        end = min(wheel.reach, before(at_of(wheel.loaded) + ahead_ms))
        room = min(rows, wheel.max_entries - len(wheel))
        if room <= 0 or (len(wheel) and wheel.bytes >= wheel.max_bytes) or end <= wheel.loaded:
            return
        found = [row for row in self._due(end) if row[0] > wheel.loaded]
        last, count = wheel.loaded, 0
        for place, size in found[:room]:
            wheel.load(place, size, size)
            last, count = place, count + 1
            if wheel.is_full:
                break
        wheel.loaded_to(end if count == len(found) else last)

    @rule(by_ms=gaps, limit=st.integers(1, 5), seq=st.sampled_from((0, 3, (1 << 48) - 1)))
    def advance(self, by_ms: int, limit: int, seq: int) -> None:
        to = max(self.horizon, min(position(at_of(self.horizon) + by_ms, seq), self.wheel.loaded))
        due = self.wheel.advance(to, limit)
        expected = self._due(to)
        assert due == expected[: len(due)]
        assert len(due) == limit or len(due) == len(expected)
        for place, _ in due:
            del self.disk[place]
        self.horizon = due[-1][0] if len(due) == limit else to

    @rule()
    def shed(self) -> None:
        if len(self.wheel):
            self.wheel.shed()

    @rule()
    def clear(self) -> None:
        """The store has failed and come back."""
        self.wheel.clear(self.horizon)

    @precondition(lambda self: not len(self.wheel))
    @rule(by_ms=st.integers(0, 3 * REACH_MS))
    def skip(self, by_ms: int) -> None:
        place = before(at_of(self.horizon) + by_ms)
        first = min((p for p in self.disk if p > self.wheel.loaded), default=place)
        self.wheel.skip(max(self.wheel.loaded, min(Position(first - 1), place)))

    @invariant()
    def bounds_and_structure_hold(self) -> None:
        wheel = self.wheel
        wheel.check()
        assert len(wheel) <= self.ENTRIES
        assert wheel.bytes < self.BYTES + 20
        held = [place for place in self.disk if place <= wheel.loaded]
        assert len(wheel) == len(held), "the wheel holds all that is loaded and nothing else"
        assert self.horizon <= wheel.loaded
        next_ms = wheel.next_ms()
        assert (next_ms is None) == (not held)
        if next_ms is not None and at_of(min(held)) >= wheel._now_ms:
            assert next_ms <= at_of(min(held))


TestWheel = pytest.mark.long(WheelMachine.TestCase)
TestWheel.settings = settings(
    max_examples=600 if SOAK else 30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
