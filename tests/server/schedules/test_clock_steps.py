"""The clock is stepped under schedules, both ways: no fire twice, none left out that was not sent."""

import random

import msgspec
import pytest

from shards.fields import Record
from shards.record import decode, encode, is_stub
from shards.schedules import ScheduleRow, TimingRow, write_schedule
from tests.support.soak import SOAK
from timeline.fires import GRACE_MS
from timeline.position import END, START

from ..conftest import DAY_MS, HOUR_MS, MINUTE_MS, START_MS
from .rig import RECORD, Rig

POLICIES = ("fire_all", "fire_once", "skip")
EVERY = TimingRow("every", str(10 * MINUTE_MS), "UTC")
CRON = TimingRow("cron", "*/10 * * * *", "UTC")


def rule(kind: TimingRow, misfire: str) -> TimingRow:
    record: TimingRow = msgspec.structs.replace(kind, misfire=misfire)
    return record


def message(misfire: str, payload: bytes = b"go") -> bytes:
    """As HTTP makes it: with `skip` nobody gets what is late."""
    return encode(Record(b"jobs/nightly", payload, drop_late=misfire == "skip"))


def row_of(rig: Rig) -> ScheduleRow:
    row = rig.schedules.get("s")
    assert row is not None
    return row


def minutes(dues: list[int]) -> list[int]:
    return [(due - START_MS) // MINUTE_MS for due in dues]


class Listener:
    """What went out to somebody, in minutes from START_MS: dues, and with `skip` without what was dropped."""

    def __init__(self, rig: Rig, misfire: str) -> None:
        self.rig = rig
        self._is_skip = misfire == "skip"
        self._known: set[int] = set()
        """Where what it got stands: a kill may have dispatch come to the same message again."""
        self.got: list[int] = []

    def walk(self, by_ms: int, step_ms: int = MINUTE_MS) -> list[int]:
        """Time passes; what goes out meanwhile."""
        began, end_ms = len(self.got), self.rig.clock.now_ms + by_ms
        while self.rig.clock.now_ms < end_ms:
            self.rig.clock.step(min(step_ms, end_ms - self.rig.clock.now_ms))
            self.look()
        return self.got[began:]

    def set(self, by_ms: int) -> list[int]:
        """Somebody sets the clock."""
        began = len(self.got)
        self.rig.clock.step(by_ms)
        self.look()
        return self.got[began:]

    def look(self) -> None:
        self.rig.rest()
        horizon, late_ms = self.rig.core.horizon.position, self.rig.clock.now_ms - GRACE_MS
        for place, _, value in self.rig.core.reader.read(START, END):
            if place <= horizon and not is_stub(value) and place not in self._known:
                self._known.add(place)
                due_ms = decode(value).due_ms
                if not (self._is_skip and due_ms < late_ms):
                    self.got += minutes([due_ms])


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("kind", [EVERY, CRON], ids=["every", "cron"])
@pytest.mark.parametrize("misfire", POLICIES)
def test_a_clock_that_was_two_hours_ahead(rig: Rig, misfire: str, kind: TimingRow, is_killed: bool) -> None:
    """Right until minute 35, then 15 minutes of 2:35 to 2:50, then right again."""
    rig.put(timing=rule(kind, misfire), record=message(misfire))
    heard = Listener(rig, misfire)
    assert heard.walk(35 * MINUTE_MS) == [10, 20, 30]
    at_once = heard.set(2 * HOUR_MS)
    missed = list(range(40, 155, 10))
    assert at_once == {"fire_all": missed, "fire_once": [40], "skip": []}[misfire]
    assert heard.walk(15 * MINUTE_MS) == [160, 170]
    heard.set(-2 * HOUR_MS)
    if is_killed:
        rig.crash()
        heard.look()
    went = heard.walk(3 * HOUR_MS)
    end = (rig.clock.now_ms - START_MS) // MINUTE_MS
    expected = [] if misfire == "fire_all" else range(60, 160, 10)
    assert went == [*expected, *range(180, end + 1, 10)]
    assert len(heard.got) == len(set(heard.got)), "none goes out twice"
    assert len(row_of(rig).sent) <= 2


@pytest.mark.parametrize("misfire", POLICIES)
def test_a_clock_that_is_set_back(rig: Rig, misfire: str) -> None:
    """Two hours back: what was sent is left out, so it is silent until then, and says so by its ranges."""
    rig.put(timing=rule(EVERY, misfire), record=message(misfire))
    heard = Listener(rig, misfire)
    heard.walk(3 * HOUR_MS)
    assert heard.set(-2 * HOUR_MS) == []
    assert heard.walk(2 * HOUR_MS + 20 * MINUTE_MS) == [190, 200]


@pytest.mark.parametrize("misfire", POLICIES)
def test_a_server_that_starts_when_the_clock_is_ahead_and_again_when_it_is_right(
    rig: Rig, misfire: str
) -> None:
    rig.put(timing=rule(CRON, misfire), record=message(misfire))
    heard = Listener(rig, misfire)
    heard.walk(35 * MINUTE_MS)
    rig.crash(away_ms=DAY_MS)
    heard.look()
    heard.walk(20 * MINUTE_MS)
    rig.crash(away_ms=-DAY_MS)
    heard.look()
    went = heard.walk(30 * MINUTE_MS)
    assert went == ([] if misfire == "fire_all" else [60, 70, 80])
    assert len(heard.got) == len(set(heard.got))


def test_a_schedule_that_was_made_while_the_clock_was_ahead(rig: Rig) -> None:
    heard = Listener(rig, "fire_once")
    heard.set(DAY_MS)
    rig.put(timing=EVERY)
    heard.walk(25 * MINUTE_MS)
    heard.set(-DAY_MS)
    now = (rig.clock.now_ms - START_MS) // MINUTE_MS
    assert heard.walk(30 * MINUTE_MS) == [now + 5, now + 15, now + 25], (
        "an anchor ahead keeps nothing waiting"
    )


def test_a_rule_with_a_count(rig: Rig) -> None:
    """Each of its times is one fire, wherever the clock was when it came."""
    timing = TimingRow("rrule", "FREQ=MINUTELY;INTERVAL=10;COUNT=6", "UTC", START_MS + 10 * MINUTE_MS)
    rig.put(timing=timing)
    heard = Listener(rig, "fire_once")
    heard.walk(15 * MINUTE_MS)
    heard.set(20 * MINUTE_MS)
    heard.walk(10 * MINUTE_MS)
    heard.set(-25 * MINUTE_MS)
    heard.walk(2 * HOUR_MS)
    assert sorted(heard.got) == [10, 20, 30, 40, 50, 60]
    assert row_of(rig).occurrence is None


def test_a_limit_counts_what_was_sent(rig: Rig) -> None:
    rig.put(timing=msgspec.structs.replace(EVERY, limit=4))
    heard = Listener(rig, "fire_once")
    heard.walk(15 * MINUTE_MS)
    heard.set(DAY_MS)
    heard.set(-DAY_MS)
    heard.walk(2 * HOUR_MS)
    assert len(heard.got) == 4


def test_steps_while_it_is_paused(rig: Rig) -> None:
    rig.put(timing=EVERY)
    heard = Listener(rig, "fire_once")
    heard.walk(15 * MINUTE_MS)
    heard.set(2 * HOUR_MS)
    heard.walk(10 * MINUTE_MS)
    rig.ask(lambda c: rig.schedules.pause(c, "s"))
    heard.set(-2 * HOUR_MS)
    assert heard.walk(10 * MINUTE_MS) == []
    rig.ask(lambda c: rig.schedules.resume(c, "s"))
    assert heard.walk(20 * MINUTE_MS) == [40, 50]
    assert len(heard.got) == len(set(heard.got))


def test_resumed_from_now_it_sends_what_was_sent_by_a_clock_that_was_ahead(rig: Rig) -> None:
    rig.put(timing=rule(EVERY, "fire_all"))
    heard = Listener(rig, "fire_all")
    heard.walk(15 * MINUTE_MS)
    heard.set(2 * HOUR_MS)
    heard.set(-2 * HOUR_MS)
    assert heard.walk(20 * MINUTE_MS) == [], "all of the two hours were sent"
    rig.ask(lambda c: rig.schedules.resume(c, "s"))
    assert heard.walk(20 * MINUTE_MS) == [], "it is not paused, and by itself that changes nothing"
    pending = rig.pending()
    rig.ask(lambda c: rig.schedules.resume(c, "s", anew=True))
    assert rig.pending() != pending
    assert heard.walk(20 * MINUTE_MS) == [60, 70]


def test_resumed_from_now_when_nothing_was_wrong_the_message_stays(rig: Rig) -> None:
    rig.put(timing=EVERY)
    rig.walk(START_MS + 15 * MINUTE_MS, MINUTE_MS)
    before = row_of(rig)
    rig.ask(lambda c: rig.schedules.resume(c, "s", anew=True))
    after = row_of(rig)
    assert (after.occurrence, after.count) == (before.occurrence, before.count)


def test_resumed_from_now_a_rule_that_begins_ahead_begins_now(rig: Rig) -> None:
    heard = Listener(rig, "fire_once")
    heard.set(DAY_MS)
    rig.put(timing=TimingRow("rrule", "FREQ=MINUTELY;INTERVAL=10", "UTC"))
    heard.set(-DAY_MS)
    assert heard.walk(HOUR_MS) == [], "it counts from its start, which the clock has yet to show"
    rig.ask(lambda c: rig.schedules.resume(c, "s", anew=True))
    assert heard.walk(25 * MINUTE_MS) == [60, 70, 80], "from the next whole second"


def test_a_step_of_a_second_is_waited_out(rig: Rig) -> None:
    rig.put(timing=EVERY)
    rig.walk(START_MS + 10 * MINUTE_MS, MINUTE_MS)
    before = row_of(rig)
    rig.clock.step(-GRACE_MS)
    rig.rest()
    assert row_of(rig) == before


def test_an_occurrence_that_stays_is_not_written_again(rig: Rig) -> None:
    rig.put(timing=EVERY)
    rig.walk(START_MS + 10 * MINUTE_MS, MINUTE_MS)
    pending = rig.pending()
    rig.clock.step(-5 * MINUTE_MS)
    rig.rest()
    assert rig.pending() == pending
    assert row_of(rig).written_ms == rig.clock.now_ms
    assert rig.schedules.errand.is_settled


@pytest.mark.parametrize("change", ["cancelled", "moved"])
def test_one_that_was_changed_by_itself_does_not_come_back(rig: Rig, change: str) -> None:
    rig.put(timing=EVERY)
    heard = Listener(rig, "fire_once")
    heard.walk(15 * MINUTE_MS)
    heard.set(DAY_MS)
    heard.walk(MINUTE_MS)
    if change == "cancelled":
        rig.ask(lambda c: c.cancel(rig.pending()))
    else:
        rig.ask(lambda c: c.move(rig.pending(), START_MS + 10 * DAY_MS))
    left_out = minutes([row_of(rig).occurrence.base_ms])[0]  # type: ignore[union-attr]
    heard.set(-DAY_MS)
    heard.walk(20 * MINUTE_MS)
    assert heard.got == [10, 20, 30], "20 was the one for all that were missed while the clock was ahead"
    assert row_of(rig).sent[-1] == (START_MS + left_out * MINUTE_MS,) * 2


def test_another_rule_begins_anew(rig: Rig) -> None:
    rig.put(timing=rule(EVERY, "fire_all"))
    heard = Listener(rig, "fire_all")
    heard.walk(15 * MINUTE_MS)
    heard.set(2 * HOUR_MS)
    heard.set(-2 * HOUR_MS)
    rig.put(timing=rule(EVERY, "fire_all"), record=message("fire_all", b"another message"))
    assert heard.walk(10 * MINUTE_MS) == [], "the rule is the same, and so is what was sent"
    rig.put(timing=TimingRow("every", str(5 * MINUTE_MS), "UTC"))
    assert heard.walk(15 * MINUTE_MS) == [30, 35, 40]


@pytest.mark.parametrize(
    ("timing", "found"),
    [
        (TimingRow("cron", "0 * * * *", "UTC"), [24, 27]),
        (TimingRow("cron", "*/30 * * * *", "UTC"), [24, 24.5, 25, 25.5, 26, 26.5, 27]),
        (TimingRow("cron", "*/30 * * * *", "UTC", start_ms=START_MS + 26 * HOUR_MS + 1), [26.5, 27]),
    ],
    ids=["the same", "another", "another from then on"],
)
def test_another_rule_is_silent_for_nothing_that_only_the_old_one_sent(
    rig: Rig, timing: TimingRow, found: list[float]
) -> None:
    """The clock is a day ahead for two hours; the fires 25 and 26 are sent. The same rule leaves them out.
    One that fires twice as often sends all of its own, also 25.5, which nobody was sent; or starts later.
    """
    rig.put(timing=rule(TimingRow("cron", "0 * * * *", "UTC"), "skip"))
    heard = Listener(rig, "skip")
    heard.set(DAY_MS + 30 * MINUTE_MS)
    assert [due / 60 for due in heard.walk(2 * HOUR_MS)] == [25, 26]
    heard.set(-DAY_MS - 2 * HOUR_MS - 30 * MINUTE_MS)
    rig.put(timing=rule(timing, "skip"))
    heard.walk(23 * HOUR_MS + 30 * MINUTE_MS, 15 * MINUTE_MS)
    assert [due / 60 for due in heard.walk(3 * HOUR_MS + 30 * MINUTE_MS)] == found


def test_a_kill_between_an_occurrence_and_the_next(rig: Rig) -> None:
    """The horizon has passed it, the row still names it, and the clock is set back before the start."""
    rig.put(timing=EVERY)
    rig.clock.step(2 * HOUR_MS)
    rig.deliver(3)
    rig.core.writer.submit(lambda c: None, lambda answer: None)
    rig.stepper.compose()
    rig.stepper.settle()
    assert minutes(rig.fired()) == [10]
    rig.crash(away_ms=-2 * HOUR_MS)
    heard = Listener(rig, "fire_once")
    heard.look()
    heard.walk(30 * MINUTE_MS)
    assert heard.got == [10, 20, 30]


def test_a_row_that_noted_no_ranges(rig: Rig) -> None:
    """Of a version before: what it has dealt with counts as sent."""
    rig.put(timing=EVERY)
    rig.walk(START_MS + 35 * MINUTE_MS, MINUTE_MS)
    old = msgspec.structs.replace(row_of(rig), sent=(), written_ms=0)
    rig.ask(lambda c: write_schedule(c, "s", old))
    rig.crash()
    assert row_of(rig).sent == ((START_MS, START_MS + 30 * MINUTE_MS),)
    heard = Listener(rig, "fire_once")
    heard.look()
    heard.walk(10 * MINUTE_MS)
    heard.set(-30 * MINUTE_MS)
    assert heard.walk(50 * MINUTE_MS) == [50, 60]
    assert len(heard.got) == len(set(heard.got))


def test_skip_leaves_out_the_next_one(rig: Rig) -> None:
    rig.put(timing=msgspec.structs.replace(EVERY, limit=3))
    heard = Listener(rig, "fire_once")
    row = rig.ask(lambda c: rig.schedules.skip(c, "s"))
    assert minutes([row.occurrence.base_ms]) == [20]
    assert row.count == 1
    assert heard.walk(25 * MINUTE_MS) == [20]
    rig.ask(lambda c: c.move(rig.pending(), START_MS + HOUR_MS + MINUTE_MS))
    rig.ask(lambda c: rig.schedules.skip(c, "s"))
    rig.put(timing=msgspec.structs.replace(EVERY, limit=9), record=message("", b"changed"))
    assert heard.walk(25 * MINUTE_MS) == [40, 50], (
        "neither comes back through a change, nor where it was moved"
    )
    rig.ask(lambda c: rig.schedules.pause(c, "s"))
    with pytest.raises(Exception, match="no occurrence is pending"):
        rig.ask(lambda c: rig.schedules.skip(c, "s"))
    assert rig.ask(lambda c: rig.schedules.skip(c, "nobody")) is None


# -- PUT with another message


def deployed(rig: Rig, timing: TimingRow, hours: int) -> list[float]:
    """Hours at which it fires when each 12 hours somebody puts it with another payload."""
    for hour in range(0, hours, 12):
        rig.put(timing=timing, record=message("", b"release %d" % hour))
        rig.walk(rig.clock.now_ms + 12 * HOUR_MS, HOUR_MS)
    return [(due - START_MS) / HOUR_MS for due in rig.fired()]


def test_a_changed_message_does_not_put_every_off(rig: Rig) -> None:
    assert deployed(rig, TimingRow("every", str(24 * HOUR_MS), "UTC"), 120) == [24, 48, 72, 96, 120]


def test_a_changed_message_does_not_begin_a_count_anew(rig: Rig) -> None:
    timing = TimingRow("rrule", "FREQ=HOURLY;INTERVAL=24;COUNT=3", "UTC")
    assert len(deployed(rig, timing, 240)) == 3


def test_a_changed_interval_counts_from_the_change(rig: Rig) -> None:
    rig.put(timing=TimingRow("every", str(24 * HOUR_MS), "UTC"))
    rig.walk(START_MS + 12 * HOUR_MS, HOUR_MS)
    made = rig.put(timing=TimingRow("every", str(20 * HOUR_MS), "UTC"))
    assert made.occurrence is not None
    assert made.occurrence.base_ms == START_MS + 32 * HOUR_MS
    assert (made.anchor_ms, made.changed_ms) == (START_MS + 12 * HOUR_MS,) * 2


def test_when_it_was_changed_is_told_apart_from_what_it_counts_from(rig: Rig) -> None:
    rig.put(timing=EVERY)
    rig.walk(START_MS + 5 * MINUTE_MS, MINUTE_MS)
    made = rig.put(timing=EVERY, record=message("", b"another"), name="s")
    again = rig.ask(lambda c: rig.schedules.put(c, "s", EVERY, RECORD, b'{"payload": "x"}'))[0]
    assert (made.anchor_ms, made.changed_ms) == (START_MS, START_MS), "another owner of the same definition"
    assert (again.anchor_ms, again.changed_ms) == (START_MS, START_MS + 5 * MINUTE_MS)


# -- anything


@pytest.mark.long
@pytest.mark.parametrize("misfire", POLICIES)
@pytest.mark.parametrize("seed", range(100 if SOAK else 5))
def test_any_steps_at_any_time(rig: Rig, seed: int, misfire: str) -> None:
    """None goes out twice; and while the clock only runs, the next one is the first that was not sent."""
    chance = random.Random(f"{seed}{misfire}")
    kind = chance.choice([EVERY, CRON])
    rig.put(timing=rule(kind, misfire), record=message(misfire))
    heard = Listener(rig, misfire)
    for _ in range(50):
        match chance.randrange(8):
            case 0:
                heard.set(chance.choice([-3, -1, 1, 3]) * chance.choice([MINUTE_MS, HOUR_MS, DAY_MS]))
            case 1:
                rig.crash(chance.randrange(3), chance.choice([-DAY_MS, -HOUR_MS, 0, 0, 0, HOUR_MS]))
                heard.look()
            case 2:
                rig.ask(lambda c: rig.schedules.pause(c, "s"))
                rig.clock.step(chance.choice([-HOUR_MS, MINUTE_MS, HOUR_MS]))
                rig.ask(lambda c: rig.schedules.resume(c, "s"))
                heard.look()
            case 3:
                rig.put(timing=rule(kind, misfire), record=message(misfire, b"%d" % chance.randrange(9)))
            case _:
                heard.walk(chance.choice([MINUTE_MS, 25 * MINUTE_MS]), chance.choice([30_000, 7 * MINUTE_MS]))
        heard.look()
        expect_the_first_unsent(rig, set(heard.got))
    assert len(heard.got) == len(set(heard.got)), "none goes out twice"


def expect_the_first_unsent(rig: Rig, got: set[int]) -> None:
    row = row_of(rig)
    if row.occurrence is None or len(row.sent) == 16:
        return
    pending = minutes([row.occurrence.base_ms])[0]
    now = (rig.clock.now_ms - START_MS) // MINUTE_MS
    # Below the stored bound nothing can be taken back: that goes out beside the one that the row names.
    comes = set(minutes([due for due, is_cancelled in rig.rows() if not is_cancelled]))
    passed_over = [at for at in range(now // 10 * 10 + 10, pending, 10) if at not in got | comes]
    assert passed_over == [], "fires between now and the next one that nobody gets"
