"""Recomputes pending occurrences of recurring schedules when time zone rules have changed.

Cron expressions and rules name local times, so unwritten fires need no change. The written occurrence is for
a local time too, which its row stores. If that is another instant now, the message is cancelled and the
schedule writes one for the new instant, in one batch, as when it is edited. The new message has another id:
if it were moved, the schedule would continue at its old time. No fire is skipped or doubled, because it stays
the fire of the same local time.

    schedule nightly: 2027-06-01T02:00 moved from 2027-05-31T23:00:00.000Z to 2027-06-01T00:00:00.000Z

An occurrence whose new instant has passed was missed: the schedule's misfire policy applies. `start` and
`end` given as local wall times are recomputed as well. An occurrence that a user has cancelled or moved
stays, and so does one that is too near. `every` counts elapsed time: only its `start` changes.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import cast

import msgspec

from shards.commit import Commit
from shards.dedupe import Refused
from shards.errors import Corrupt
from shards.recover import Opened
from shards.schedules import (
    Occurrence,
    ScheduleRow,
    TimingRow,
    has_passed,
    is_untouched,
    named_row,
    place,
    without,
    write_schedule,
)
from shards.state import Journal
from shards.store import Table
from shards.unreadable import readable
from timeline.fires import Fire, Misfire, Plan, Progress, following, just_before, next_fire
from timeline.sent import shifted

from ..settings.durations import TimeError
from ..settings.times import format_ms, parse_deliver_at, wall_time
from .recurring import NAMES_END, plan_of
from .starts import start_of

STEP = 100
_EPOCH = datetime(1970, 1, 1)


class _Bounds(msgspec.Struct):
    """The parts of a definition that may be local wall times."""

    start: str | None = None
    end: str | None = None


@dataclass(slots=True)
class SchedulesReport:
    """Numbers of pending occurrences: examined, recomputed, failed; and of unreadable rows."""

    looked: int = 0
    moved: int = 0
    kept: int = 0
    unreadable: int = 0

    def __str__(self) -> str:
        text = f"{self.looked} pending occurrences of schedules, {self.moved} moved, {self.kept} could not be"
        return f"{text}, {self.unreadable} rows cannot be read" if self.unreadable else text


def retime_schedules(opened: Opened, wall_ms: int, note: Callable[[str], None]) -> SchedulesReport:
    """Recompute every pending occurrence; `note` gets a line for each that changes or cannot.

    Unreadable rows are skipped: they do not fire either. The timeline must not be in use. Durable on return.
    Raises StoreFailed.
    """
    report, after = SchedulesReport(), b""
    while True:
        rows = list(islice(readable(opened.store, Table.SCHEDULES, after, NAMES_END), STEP))
        if not rows:
            return report
        opened.open_batch.begin(wall_ms)
        for key, value in rows:
            try:
                name, row = named_row(key, value)
                line = _follow(opened, name, row, wall_ms, report)
            except (Corrupt, msgspec.MsgspecError) as error:
                name, line = repr(key), f"passed over, it cannot be read: {error}"
                report.unreadable += 1
            if line:
                note(f"schedule {name}: {line}")
        opened.open_batch.seal()
        opened.store.flush()
        opened.close_group()
        after = rows[-1][0] + b"\0"


def _follow(opened: Opened, name: str, row: ScheduleRow, wall_ms: int, report: SchedulesReport) -> str:
    """Write the row by the current rules. Returns a line for the report, if any."""
    commit, timing, occurrence = opened.commit, _timing(row), row.occurrence
    if timing != row.timing:
        row = msgspec.structs.replace(row, timing=timing)
        write_schedule(commit, name, row)
    if occurrence is None or has_passed(commit, occurrence, wall_ms):
        return ""
    if not is_untouched(commit, occurrence):
        return ""
    report.looked += 1
    label = f"{_local_text(occurrence)} "
    misfire = cast("Misfire", timing.misfire)
    try:
        plan = plan_of(timing, name, row.anchor_ms)
        through_ms = _dealt_with(plan, occurrence)
        same = next_fire(plan, through_ms)
        fire, progress = following(plan, misfire, Progress(through_ms), wall_ms, was_late=False)
    except (ValueError, KeyError, OSError) as error:
        report.kept += 1
        return f"{label}stays at {format_ms(occurrence.at_ms)}: {error}"
    if same is not None and same.base_ms == occurrence.base_ms:
        return ""
    if same is not None:
        row = msgspec.structs.replace(row, sent=shifted(row.sent, same.base_ms - occurrence.base_ms))
    why = _replace(commit, Journal(opened.store), name, row, fire, progress)
    if why:
        report.kept += 1
        return f"{label}stays at {format_ms(occurrence.at_ms)}: {why}"
    report.moved += 1
    new = "none, it has ended" if fire is None else format_ms(fire.at_ms)
    return f"{label}moved from {format_ms(occurrence.at_ms)} to {new}"


def _timing(row: ScheduleRow) -> TimingRow:
    """The timing with current `start` and `end`."""
    timing, bounds = row.timing, msgspec.json.decode(row.body, type=_Bounds)
    start_ms, skipped_ms = _bound(bounds.start, timing.start_ms), -1
    if timing.kind != "every" and bounds.start and wall_time(bounds.start):
        with suppress(ValueError, KeyError, OSError):  # reported when the plan is made
            start_ms, skipped_ms = start_of(bounds.start, timing.zone, timing.gap)
    end_ms = _bound(bounds.end, timing.end_ms)
    return msgspec.structs.replace(timing, start_ms=start_ms, end_ms=end_ms, skipped_ms=skipped_ms)


def _bound(text: str | None, known_ms: int) -> int:
    if text is None or not wall_time(text):
        return known_ms
    try:
        return parse_deliver_at(text)
    except TimeError:
        return known_ms


def _dealt_with(plan: Plan, occurrence: Occurrence) -> int:
    """Handled up to here by the current rules: the next fire is the occurrence's."""
    if plan.counts_elapsed or occurrence.nominal_ms < 0:
        return occurrence.before_ms
    return just_before(plan, occurrence.nominal_ms, occurrence.before_ms)


def _replace(
    commit: Commit, journal: Journal, name: str, row: ScheduleRow, fire: Fire | None, progress: Progress
) -> str:
    """Cancel the pending occurrence and write the fire in its place; returns why it failed, or ""."""
    bare, taken_back = without(commit, row, journal)
    if taken_back is None:
        return "too close or already due"
    progress = replace(progress, before_ms=min(progress.before_ms, bare.through_ms))
    try:
        if fire is not None:
            bare = place(commit, name, bare, fire, progress)
    except Refused as error:
        return str(error)
    commit.cancel(taken_back)
    write_schedule(commit, name, bare)
    return ""


def _local_text(occurrence: Occurrence) -> str:
    if occurrence.nominal_ms < 0:
        return "the next one"
    return (_EPOCH + timedelta(milliseconds=occurrence.nominal_ms)).isoformat(timespec="seconds")
