"""Recurring schedules on a whole core without a loop: one message for each fire, whatever happens between."""

import random
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from server.settings.config import Config, Limits
from shards.commit import Commit, Outcome, Refused
from shards.errors import ShardsError
from shards.fields import Record
from shards.record import encode, is_stub
from shards.schedules import TimingRow, write_schedule
from shards.verify import verify_counts
from tests.support.soak import SOAK
from timeline.cron import parse_cron
from timeline.fires import Fire, Plan, fires

from ..conftest import DAY_MS, HOUR_MS, MINUTE_MS, START_MS
from .rig import HOURLY, RECORD, Rig


def timing_with(timing: TimingRow, **changes: Any) -> TimingRow:
    return msgspec.structs.replace(timing, **changes)


def hours(first: int, last: int) -> list[int]:
    return [START_MS + n * HOUR_MS for n in range(first, last + 1)]


@pytest.mark.long
def test_thirty_days(rig: Rig) -> None:
    zone = ZoneInfo("Europe/Bucharest")
    rig.put(timing=TimingRow("cron", "30 3,15 * * *", "Europe/Bucharest"))
    rig.walk(START_MS + 30 * DAY_MS, 6 * HOUR_MS // 7)
    expected = (fire.at_ms for fire in fires(Plan(parse_cron("30 3,15 * * *"), zone), START_MS))
    assert rig.fired() == list(takewhile(lambda at: at <= rig.clock.now_ms, expected))
    row = rig.schedules.get("s")
    assert row is not None
    assert row.count == len(rig.fired()) + 1


@pytest.mark.parametrize("survivors", [0, 1, 2])
@pytest.mark.parametrize("stop", range(12))
def test_a_crash_at_every_step(rig: Rig, stop: int, survivors: int) -> None:
    """The occurrence and the row are one batch: killed anywhere, each hour has one message."""
    rig.put()
    rig.clock.step(HOUR_MS)
    steps = 0

    def died() -> bool:
        nonlocal steps
        steps += 1
        return steps > stop

    stepper = rig.stepper
    for _ in range(4):
        stepper.heartbeat()
        if died():
            break
        stepper.compose()
        if died():
            break
        if stepper.sync():
            if died():
                break
            rig.core.writer.settle()
        stepper.dispatch()
        stepper.load()
        rig.schedules.errand.step()
        if died():
            break
    rig.crash(survivors)
    rig.walk(START_MS + 4 * HOUR_MS, HOUR_MS)
    assert rig.fired() == hours(1, 4)
    assert [due for due, _ in rig.rows()] == hours(1, 5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200 if SOAK else 10))
def test_anything_at_any_time(rig: Rig, seed: int) -> None:
    """Cancels, moves, pauses, edits, crashes, failed syncs: never two messages for one fire."""
    chance = random.Random(seed)
    rig.put(timing=TimingRow("cron", "*/10 * * * *", "UTC", misfire="fire_all"))
    gone: set[int] = set()
    for _ in range(60):
        match chance.randrange(12):
            case 0:
                row = rig.schedules.get("s")
                if row is not None and row.occurrence is not None:
                    message, due = row.occurrence.message, row.occurrence.base_ms
                    if rig.ask(lambda c, m=message: c.cancel(m)).outcome is Outcome.DONE:
                        gone.add(due)
            case 1:
                row = rig.schedules.get("s")
                if row is not None and row.occurrence is not None:
                    message, due = row.occurrence.message, row.occurrence.base_ms
                    to = due + chance.choice([-3, 7, 33]) * MINUTE_MS + 1
                    if rig.ask(lambda c, m=message, t=to: c.move(m, t)).outcome is Outcome.DONE:
                        gone.add(due)
            case 2:
                rig.ask(lambda c: rig.schedules.pause(c, "s"))
                rig.ask(lambda c: rig.schedules.resume(c, "s"))
            case 3:
                payload = encode(Record(b"jobs/nightly", b"%d" % chance.randrange(100)))
                rig.put(timing=TimingRow("cron", "*/10 * * * *", "UTC", misfire="fire_all"), record=payload)
            case 4:
                rig.crash(chance.randrange(3))
            case 5:
                rig.core.writer.submit(
                    lambda c: rig.schedules.put(c, "s", HOURLY, RECORD, b"x"), lambda a: None
                )
                rig.core.writer.submit(
                    lambda c: rig.schedules.put(
                        c, "s", TimingRow("cron", "*/10 * * * *", "UTC", misfire="fire_all"), RECORD, b"y"
                    ),
                    lambda a: None,
                )
                rig.rest()
            case _:
                rig.clock.step(chance.choice([MINUTE_MS, 4 * MINUTE_MS, 10 * MINUTE_MS]))
                rig.rest()
    rig.rest()
    live = [due for due, cancelled in rig.rows() if not cancelled and due % (10 * MINUTE_MS) == 0]
    assert len(live) == len(set(live)), "two messages for one fire"
    end = rig.clock.now_ms
    wanted = set(range(START_MS + 10 * MINUTE_MS, end + 1, 10 * MINUTE_MS)) - gone
    assert wanted - set(live) == set(), "a fire without a message"
    assert verify_counts(rig.store, rig.core.directory) == []


@pytest.mark.parametrize("is_back_at_once", [False, True])
def test_a_failed_sync_reads_the_rows_again(rig: Rig, is_back_at_once: bool) -> None:
    rig.put()
    rig.clock.step(HOUR_MS)
    rig.core.heartbeat()
    for _ in range(3):
        rig.stepper.round()
    rig.store.fail_flushes = True
    rig.core.writer.submit(lambda c: rig.schedules.put(c, "t", HOURLY, RECORD, b""), lambda a: None)
    rig.stepper.compose()
    with pytest.raises(ShardsError) as failed:
        rig.stepper.sync()
    rig.core.writer.fail(failed.value)
    if not is_back_at_once:
        rig.core.schedules.errand.step()
    rig.store.fail_flushes = False
    assert rig.stepper.recover()
    rig.walk(START_MS + 3 * HOUR_MS, HOUR_MS)
    assert len(rig.schedules) == 1, "what was not durable is gone, in RAM too"
    assert rig.fired() == hours(1, 3)


CHANGES: dict[str, Any] = {
    "delete": lambda rig: lambda c: rig.schedules.delete(c, "s"),
    "pause": lambda rig: lambda c: rig.schedules.pause(c, "s"),
    "put": lambda rig: (
        lambda c: rig.schedules.put(c, "s", timing_with(HOURLY, expression="0 0 * * *"), RECORD, b"{}")
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_lost_group_had_changed_goes_on(rig: Rig, change: str) -> None:
    rig.put()
    rig.walk(START_MS + HOUR_MS, HOUR_MS)
    rig.lose(CHANGES[change](rig))
    rig.walk(START_MS + 4 * HOUR_MS, HOUR_MS)
    assert rig.fired() == hours(1, 4)


def test_what_a_lost_group_had_resumed_is_paused(rig: Rig) -> None:
    rig.put()
    rig.ask(lambda c: rig.schedules.pause(c, "s"))
    rig.lose(lambda c: rig.schedules.resume(c, "s"))
    rig.walk(START_MS + 3 * HOUR_MS, HOUR_MS)
    assert rig.fired() == []
    rig.ask(lambda c: rig.schedules.resume(c, "s"))
    rig.walk(START_MS + 5 * HOUR_MS, HOUR_MS)
    assert rig.fired() == hours(4, 5)


def test_what_a_lost_group_had_deleted_counts_towards_the_limit() -> None:
    rig = Rig(replace(Config(), limits=replace(Limits(), schedules=1)))
    rig.put()
    rig.lose(CHANGES["delete"](rig))
    assert len(rig.schedules) == 1
    with pytest.raises(Refused, match="as many as"):
        rig.put("t")
    rig.lose(CHANGES["delete"](rig), lambda c: rig.schedules.put(c, "t", HOURLY, RECORD, b"{}"))
    assert [name for name, _ in rig.schedules.after("", 9)] == ["s"]
    rig.ask(CHANGES["delete"](rig))
    rig.put("t")


def test_a_change_that_is_refused_leaves_what_was_owed() -> None:
    """The occurrence that the old definition owed is written, the one of the new is one too many."""
    rig = Rig(replace(Config(), limits=replace(Limits(), pending=1)))
    rig.put()
    rig.clock.step(HOUR_MS)
    while rig.core.horizon.position < START_MS + HOUR_MS << 48:
        rig.deliver()
    with pytest.raises(Refused):
        rig.ask(CHANGES["put"](rig))
    rig.walk(START_MS + 3 * HOUR_MS, HOUR_MS)
    assert rig.fired() == hours(1, 3)


# -- the clock set back

MINUTELY = TimingRow("every", str(MINUTE_MS), "UTC")


def set_back() -> Rig:
    """By an hour, and a schedule is made then."""
    rig = Rig()
    rig.ask(lambda c: None)
    rig.rest()
    rig.clock.step(-HOUR_MS)
    rig.put(timing=MINUTELY)
    rig.rest()
    return rig


def minutes(rig: Rig) -> list[float]:
    return [(due - START_MS + HOUR_MS) / MINUTE_MS for due in rig.fired()]


def test_one_is_held_and_no_more() -> None:
    rig = set_back()
    assert rig.core.opened.waiting.held == 1
    row = rig.schedules.get("s")
    assert row is not None
    assert row.count == 1
    rig.walk(START_MS - 57 * MINUTE_MS, 20_000)
    assert minutes(rig) == [1, 2, 3]
    assert rig.core.opened.waiting.held == 1
    rig.crash()
    rig.rest()
    rig.walk(START_MS + 2 * MINUTE_MS, MINUTE_MS)
    assert minutes(rig) == list(range(1, 63))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_takes_back_the_one_that_is_held(change: str) -> None:
    rig = set_back()
    rig.walk(START_MS - 58 * MINUTE_MS, MINUTE_MS)
    rig.ask(CHANGES[change](rig))
    rig.walk(START_MS + 5 * MINUTE_MS, MINUTE_MS)
    assert minutes(rig) == [1, 2]
    assert rig.core.opened.waiting.held == 0


def test_one_that_is_held_can_be_cancelled_or_moved() -> None:
    rig = set_back()
    assert rig.ask(lambda c: c.cancel(rig.pending())).outcome is Outcome.DONE
    rig.walk(START_MS - 58 * MINUTE_MS, MINUTE_MS)
    assert minutes(rig) == [2]
    third = rig.pending()
    assert rig.ask(lambda c: c.move(third, START_MS - 50 * MINUTE_MS + 7)).outcome is Outcome.DONE
    rig.walk(START_MS - 50 * MINUTE_MS, MINUTE_MS)
    assert minutes(rig) == [2, 4, 5, 6, 7, 8, 9, 10]
    rig.walk(START_MS - 49 * MINUTE_MS, MINUTE_MS)
    assert 10 + 7 / MINUTE_MS in minutes(rig)


def test_one_that_was_held_and_is_late_is_the_one(rig: Rig) -> None:
    rig.ask(lambda c: None)
    rig.rest()
    rig.clock.step(-HOUR_MS)
    rig.put(timing=timing_with(MINUTELY, misfire="fire_once"))
    rig.rest()
    rig.crash(away_ms=10 * MINUTE_MS + 5_000)
    rig.rest()
    rig.walk(START_MS - 48 * MINUTE_MS, MINUTE_MS)
    assert minutes(rig) == [1, 11, 12]


def test_a_held_message_goes_on_while_the_writer_is_busy() -> None:
    rig = set_back()
    core = rig.core
    rig.clock.step(MINUTE_MS)
    for _ in range(5):
        core.writer.submit(lambda c: c.put([]), lambda answer: None)
        assert not core.writer.is_idle
        core.held.errand.step()
        rig.stepper.compose()
        rig.stepper.settle()
    assert core.opened.waiting.held == 0


def down(misfire: str, away_ms: int) -> list[float]:
    """Hours of what is written after a downtime that began before hour 1; the last one is pending."""
    rig = Rig()
    rig.put(timing=timing_with(HOURLY, misfire=misfire))
    rig.rest()
    rig.crash(away_ms=away_ms)
    rig.rest()
    return [(due - START_MS) / HOUR_MS for due, _ in rig.rows()]


def test_downtime() -> None:
    away = 4 * HOUR_MS + 30 * MINUTE_MS
    assert down("fire_all", away) == [1, 2, 3, 4, 5]
    assert down("fire_once", away) == [1, 5], "the one that was pending is the one"
    assert down("skip", away) == [1, 5], "the first one is dropped by `late: drop`, see HTTP"


def test_what_was_passed_before_a_start_was_not_late(rig: Rig) -> None:
    """Delivered on time, then killed before the next one was written: the missed ones still get their one."""
    rig.put(timing=timing_with(HOURLY, misfire="fire_once"))
    rig.clock.step(HOUR_MS)
    rig.deliver(3)
    rig.core.writer.submit(lambda c: None, lambda a: None)
    rig.stepper.compose()
    rig.stepper.settle()
    assert rig.fired() == hours(1, 1)
    rig.crash(away_ms=3 * HOUR_MS + MINUTE_MS)
    rig.rest()
    assert [due for due, _ in rig.rows()] == [*hours(1, 2), *hours(5, 5)]


def test_cancelling_one_occurrence_skips_only_that(rig: Rig) -> None:
    rig.put()
    assert rig.ask(lambda c: c.cancel(rig.pending())).outcome is Outcome.DONE
    rig.walk(START_MS + 3 * HOUR_MS, HOUR_MS)
    assert rig.fired() == hours(2, 3)


def test_moving_one_occurrence_keeps_the_rest(rig: Rig) -> None:
    rig.put()
    later = START_MS + 90 * MINUTE_MS
    assert rig.ask(lambda c: c.move(rig.pending(), later)).outcome is Outcome.DONE
    rig.walk(START_MS + 3 * HOUR_MS, HOUR_MS // 2)
    assert sorted(rig.fired()) == sorted([later, *hours(2, 3)])


def test_pause_takes_back_and_resume_goes_on(rig: Rig) -> None:
    rig.put()
    first = rig.pending()
    row = rig.ask(lambda c: rig.schedules.pause(c, "s"))
    assert (row.paused, row.occurrence, row.count) == (True, None, 0)
    assert is_stub(rig.core.reader.find(first).value)  # type: ignore[union-attr]
    rig.walk(START_MS + 3 * HOUR_MS + 1, HOUR_MS)
    assert rig.fired() == []
    rig.ask(lambda c: rig.schedules.resume(c, "s"))
    rig.walk(START_MS + 5 * HOUR_MS, HOUR_MS)
    assert rig.fired() == hours(4, 5), "what the pause left out was not missed"
    rig.ask(lambda c: c.cancel(rig.pending()))
    rig.ask(lambda c: rig.schedules.pause(c, "s"))
    rig.ask(lambda c: rig.schedules.resume(c, "s"))
    rig.walk(START_MS + 7 * HOUR_MS, HOUR_MS)
    assert rig.fired() == [*hours(4, 5), *hours(7, 7)], "a cancelled one does not come back"


def test_edit_in_place_and_delete(rig: Rig) -> None:
    made = rig.put()
    assert rig.put() == made, "the same again changes nothing"
    edited = rig.put(timing=TimingRow("every", str(30 * MINUTE_MS), "UTC"))
    assert (edited.created_ms, edited.count) == (made.created_ms, 1)
    rig.walk(START_MS + HOUR_MS, 10 * MINUTE_MS)
    assert rig.fired() == [START_MS + 30 * MINUTE_MS, START_MS + HOUR_MS]
    last = rig.pending()
    assert rig.ask(lambda c: rig.schedules.delete(c, "s"))
    assert not rig.ask(lambda c: rig.schedules.delete(c, "s"))
    assert is_stub(rig.core.reader.find(last).value)  # type: ignore[union-attr]
    rig.walk(START_MS + 3 * HOUR_MS, HOUR_MS)
    assert len(rig.fired()) == 2
    assert len(rig.schedules) == 0


def test_an_edit_just_before_the_next_occurrence_is_written(rig: Rig) -> None:
    """In one group: the edit has written it, so the other finds another occurrence and does nothing.

    The edit is decided when hour 2 has come, which the old definition owed.
    """
    rig.put()
    rig.clock.step(HOUR_MS)
    rig.deliver(4)
    assert rig.fired() == hours(1, 1)
    rig.core.writer.submit(lambda c: rig.schedules.put(c, "s", HOURLY, RECORD, b"edited"), lambda a: None)
    rig.schedules.errand.step()
    rig.walk(START_MS + 2 * HOUR_MS, HOUR_MS)
    assert [due for due, _ in rig.rows()] == hours(1, 3)


@pytest.mark.parametrize("call", ["delete", "pause", "put"])
def test_a_change_that_was_not_stored_leaves_it_firing(rig: Rig, call: str) -> None:
    """The store is back before the next round, which finds nothing wrong with it."""
    rig.put()
    rig.walk(START_MS + HOUR_MS, HOUR_MS)
    decide = {
        "delete": lambda c: rig.schedules.delete(c, "s"),
        "pause": lambda c: rig.schedules.pause(c, "s"),
        "put": lambda c: rig.schedules.put(c, "s", timing_with(HOURLY, limit=1), RECORD, b"x"),
    }[call]
    rig.lose(decide)
    rig.walk(START_MS + 4 * HOUR_MS, HOUR_MS)
    assert rig.fired() == hours(1, 4)


def test_a_change_that_is_refused_half_way_leaves_one_message_for_each_fire() -> None:
    """What the old definition owes is written first, then the change is refused: too much is pending."""
    rig = Rig(replace(Config(), limits=replace(Limits(), pending=1)))
    rig.put()
    rig.clock.step(HOUR_MS)
    rig.deliver(4)
    assert rig.fired() == hours(1, 1)
    with pytest.raises(Refused):
        rig.put(timing=timing_with(HOURLY, jitter_ms=1))
    rig.walk(START_MS + 3 * HOUR_MS, HOUR_MS)
    assert [due for due, cancelled in rig.rows() if not cancelled] == hours(1, 4)


def test_trigger_limit_and_end(rig: Rig) -> None:
    rig.put(timing=timing_with(HOURLY, limit=2))
    assert rig.ask(lambda c: rig.schedules.trigger(c, "s"))
    assert rig.ask(lambda c: rig.schedules.trigger(c, "nobody")) is None
    rig.put("t", timing_with(HOURLY, end_ms=START_MS + 3 * HOUR_MS))
    rig.walk(START_MS + 6 * HOUR_MS, HOUR_MS)
    assert rig.fired() == sorted([START_MS, *hours(1, 2), *hours(1, 3)])
    row = rig.schedules.get("s")
    assert row is not None
    assert (row.occurrence, row.count) == (None, 2)
    rig.crash()
    rig.walk(START_MS + 8 * HOUR_MS, HOUR_MS)
    assert len(rig.fired()) == 6


def test_too_many_schedules() -> None:
    rig = Rig(replace(Config(), limits=Limits(schedules=1)))
    rig.put()
    with pytest.raises(Refused, match=r"limits\.memory"):
        rig.put("t")
    rig.put(timing=TimingRow("cron", "5 * * * *", "UTC"))


def test_a_refused_occurrence_is_tried_again() -> None:
    rig = Rig(replace(Config(), limits=Limits(pending=1)))
    rig.put()
    rig.clock.step(HOUR_MS - 1)
    rig.rest()

    def crowd(commit: Commit) -> None:
        commit.caps = replace(commit.caps, pending=0)

    rig.ask(crowd)
    rig.clock.step(1)
    for _ in range(10):
        rig.stepper.round()
    assert not rig.schedules.errand.is_settled
    rig.core.opened.commit.caps = replace(rig.core.opened.commit.caps, pending=10)
    rig.clock.mono_s += 2
    rig.walk(START_MS + 3 * HOUR_MS, HOUR_MS)
    assert rig.fired() == hours(1, 3)


def test_the_clock_set_back(rig: Rig) -> None:
    rig.put(timing=TimingRow("cron", "*/10 * * * *", "UTC"))
    rig.walk(START_MS + HOUR_MS, 10 * MINUTE_MS)
    rig.clock.step(-30 * MINUTE_MS)
    rig.walk(START_MS + 2 * HOUR_MS, 5 * MINUTE_MS)
    assert rig.fired() == [START_MS + n * 10 * MINUTE_MS for n in range(1, 13)]


def test_keys_sort_by_name(rig: Rig) -> None:
    for name in ("b", "a.1", "Z"):
        rig.put(name)
    assert [name for name, _ in rig.schedules.after("", 10)] == ["Z", "a.1", "b"]
    assert [name for name, _ in rig.schedules.after("Z", 1)] == ["a.1"]


def test_a_rule_that_was_taken_and_would_be_searched_for_long_stops(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """By an earlier version: it ends, and the server goes on."""
    rig.put()
    row = rig.schedules.get("s")
    assert row is not None
    never = TimingRow("rrule", "FREQ=DAILY;INTERVAL=7;BYDAY=MO", "UTC")  # counted from a Saturday
    rig.ask(lambda c: write_schedule(c, "s", msgspec.structs.replace(row, timing=never)))
    rig.walk(START_MS + 2 * HOUR_MS, HOUR_MS)
    assert rig.fired() == hours(1, 1)
    assert "no next occurrence" in caplog.text
    row = rig.schedules.get("s")
    assert row is not None
    assert row.stopped == "rrule: takes too long to search: change INTERVAL"
    with pytest.raises(Refused, match="it is stopped"):
        rig.ask(lambda c: rig.schedules.skip(c, "s"))
    assert rig.put(timing=timing_with(HOURLY, limit=99)).stopped == "", "it goes on with another rule"


def jittered(misfire: str) -> tuple[TimingRow, list[Fire]]:
    """A schedule with jitter, and its first fires."""
    jitter_ms = 50 * MINUTE_MS
    plan = Plan(parse_cron("0 * * * *"), ZoneInfo("UTC"), jitter_ms=jitter_ms, seed="s")
    found = list(islice(fires(plan, START_MS - 1), 4))
    assert all(fire.at_ms - fire.base_ms > MINUTE_MS for fire in found)
    return timing_with(HOURLY, jitter_ms=jitter_ms, misfire=misfire), found


@pytest.mark.parametrize("change", ["payload", "pause", "anew", "anew paused", "deleted", "restart", "late"])
@pytest.mark.parametrize("misfire", ["fire_once", "fire_all", "skip"])
def test_a_change_between_the_planned_time_and_its_jitter_keeps_the_fire(
    rig: Rig, misfire: str, change: str
) -> None:
    """The plan is each hour, and jitter delays each fire by up to 50 minutes. A change each 11 minutes: every
    hour has its one fire, at the time that it would have had without the change."""
    timing, expected = jittered(misfire)
    rig.put(timing=timing)
    for minute in range(1, 2 * 60, 11):
        rig.walk(START_MS + minute * MINUTE_MS, 11 * MINUTE_MS)
        match change:
            case "payload":
                rig.put(timing=timing, record=encode(Record(b"jobs/nightly", b"%d" % minute)))
            case "pause" | "anew paused":
                rig.ask(lambda c: rig.schedules.pause(c, "s"))
                rig.clock.step(1)
                rig.ask(lambda c: rig.schedules.resume(c, "s", anew=change != "pause"))
            case "anew":
                rig.ask(lambda c: rig.schedules.resume(c, "s", anew=True))
            case "deleted":
                rig.ask(lambda c: rig.schedules.delete(c, "s"))
                rig.put(timing=timing)
            case "restart":
                rig.crash()
            case "late":  # the horizon has passed the fire, the next one is not written yet
                rig.deliver()
                rig.put(timing=timing, record=encode(Record(b"jobs/nightly", b"%d" % minute)))
    rig.walk(START_MS + 3 * HOUR_MS, 11 * MINUTE_MS)
    assert rig.fired() == [fire.at_ms for fire in expected[:3]]


@pytest.mark.parametrize("misfire", ["fire_once", "fire_all", "skip"])
def test_a_fire_whose_jitter_is_not_over_after_downtime_was_not_missed(rig: Rig, misfire: str) -> None:
    timing, (first, second, third, fourth) = jittered(misfire)
    rig.put(timing=timing)
    rig.crash(away_ms=third.base_ms + MINUTE_MS - rig.clock.now_ms)
    rig.rest()
    rig.walk(fourth.at_ms, 30 * MINUTE_MS)
    missed = [first, second] if misfire == "fire_all" else [first]
    assert rig.fired() == [fire.at_ms for fire in (*missed, third, fourth)], "the first was pending"
