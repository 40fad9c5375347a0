"""Recurring schedules: the next occurrence written when the horizon has passed the one before.

For each schedule RAM holds its name and the position that its pending occurrence was first put at, sorted by
position. Each round looks at the first of them: once the horizon has passed it, whatever has become of the
message (delivered, cancelled, moved to another time), an errand to the writer writes the next occurrence and
the row that names it, if the row still names the one before. After a start the rows are read, and those that
the horizon had passed are asked for at once. So nothing hangs on a timer, and nothing is written twice.

An occurrence that was written while the clock was set back waits in the table `held`; its successor is
written when the wall clock has reached its due and it has left that table. So there is never more than one
that is written and not yet dispatched, whatever the clock does, and a change takes it back.

When the clock is set back, an occurrence that was written before may be too far ahead. Its row says what the
clock showed then; while that is later than now, live or after a restart, the writer looks again, and puts the
first fire after now that was not sent (timeline/sent.py) in its place.

What is refused is asked for again a second later, and stands nobody in the way meanwhile: it may be that only
the owner of its messages has as many pending as he may.

What was noted in RAM when it was decided may be lost with its group; whenever the store has failed and is
back all rows are read again. Bound: `share`.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from typing import cast
from zoneinfo import ZoneInfo

import msgspec
from sortedcontainers import SortedSet

from shards.commit import Commit, Refused
from shards.errors import Corrupt, StoreFailed
from shards.record import owner_of
from shards.schedules import (
    Occurrence,
    ScheduleRow,
    TimingRow,
    cancel,
    draft_at,
    has_passed,
    is_untouched,
    named_row,
    passed,
    place,
    read_schedule,
    schedule_of,
    without,
    write_schedule,
)
from shards.store import Store, Table
from shards.unreadable import readable
from timeline.cron import Cron, parse_cron
from timeline.fires import GRACE_MS, Every, Fire, Gap, Misfire, Overlap, Plan, Progress, following, local_of
from timeline.horizon import Horizon
from timeline.position import MessageId, Position, at_of, before
from timeline.recurrence import Rule, parse_rule
from timeline.sent import with_fire

from ..engine.clock import Clock
from ..engine.errand import RETRY_S, Errand
from ..engine.rider import Rider
from ..engine.writer import Busy, Writer
from ..fair import Share

log = logging.getLogger(__name__)

RELEASE_S = 0.01
UNRELEASED = "unreleased"
"""Why one is refused: the occurrence is in the table `held` still."""
NAMES_END = b"\x7f"
"""Above every name: they are ASCII."""


def plan_of(timing: TimingRow, name: str, anchor_ms: int) -> Plan:
    """What makes the fires. Raises CronError, RuleError; KeyError, ValueError or OSError for the zone."""
    zone = ZoneInfo(timing.zone)
    return Plan(
        _source(timing, zone, anchor_ms),
        zone,
        timing.start_ms,
        timing.end_ms or None,
        cast("Gap", timing.gap),
        cast("Overlap", timing.overlap),
        timing.jitter_ms,
        name,
    )


def _source(timing: TimingRow, zone: ZoneInfo, anchor_ms: int) -> Cron | Rule | Every:
    if timing.kind == "cron":
        return parse_cron(timing.expression)
    if timing.kind == "rrule":
        # A rule counts from its start, which is its first time: without one that is the next whole second.
        start_ms = timing.start_ms or anchor_ms // 1_000 * 1_000 + 1_000
        return parse_rule(timing.expression, local_of(start_ms, zone))
    interval_ms = int(timing.expression)
    # Without a start it goes on from the anchor both ways: a clock that was ahead then may be set back.
    return Every(interval_ms, timing.start_ms or anchor_ms % interval_ms)


def is_same_rule(timing: TimingRow, other: TimingRow) -> bool:
    """Whether both give the same fires, but for bounds, delays and what is done about missed ones."""
    return _rule_of(timing) == _rule_of(other)


def _rule_of(timing: TimingRow) -> TimingRow:
    return msgspec.structs.replace(timing, end_ms=0, limit=0, jitter_ms=0, misfire="")


def _with_rule(row: ScheduleRow, now_ms: int, dealt_with: Occurrence | None) -> ScheduleRow:
    """The row when it gets another rule: it counts from now, and what the old one has sent is not its.

    A range of the old rule covers fires of the new one that were never sent.
    `dealt_with`: the occurrence that it had, if that was sent, cancelled or moved: it does not come back.
    """
    sent = () if dealt_with is None else ((dealt_with.base_ms, dealt_with.base_ms),)
    return msgspec.structs.replace(row, anchor_ms=now_ms, sent=sent)


def _advanced(_: tuple[Position, str], answer: None) -> None:
    """The next occurrence is durable."""


class Schedules(Rider):
    """All schedules of one server."""

    def __init__(self, store: Store, horizon: Horizon, writer: Writer, clock: Clock, *, share: Share) -> None:
        """`share`: of how many there may be, by owner, empty."""
        self._store = store
        self._horizon = horizon
        self._clock = clock
        self._journal = writer.journal
        self._places: dict[str, tuple[int, Position] | None] = {}
        """When its occurrence was written, and where; None: it has none."""
        self._share = share
        self._owners: dict[str, str] = {}
        """Name -> whose its messages are."""
        self._due: SortedSet[tuple[Position, str]] = SortedSet()
        self._held: SortedSet[tuple[Position, str]] = SortedSet()
        """Of those whose occurrence is, or was, in the table `held`."""
        self._written: SortedSet[tuple[int, tuple[Position, str]]] = SortedSet()
        """What the clock showed when the occurrence was written, ms, of those in the other two."""
        self._passed: set[tuple[Position, str]] = set()
        """Passed by the horizon before this start: not delivered late by it."""
        self._stuck: dict[str, Position] = {}
        """Stopped schedules: not asked again, also when the rows are read again."""
        self._unreadable: set[bytes] = set()
        """Keys of rows that were passed over: they are no schedules."""
        self.errand: Errand[tuple[Position, str], None] = Errand(
            writer, clock, self._advance, _advanced, self._not_advanced, source=self._come
        )
        self.recover()
        writer.carry(self)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def unreadable(self) -> int:
        """Rows that were passed over."""
        return len(self._unreadable)

    def recover(self) -> None:
        """Read all rows: at start, and when the store is back after a failure."""
        self._places.clear()
        self._owners.clear()
        self._share.clear()
        self._due.clear()
        self._held.clear()
        self._written.clear()
        self.errand.clear()
        self._unreadable.clear()
        for key, value in readable(self._store, Table.SCHEDULES, b"", NAMES_END):
            try:
                self._note(*named_row(key, value))
            except Corrupt as error:
                self._unreadable.add(key)
                log.error("schedule %r: unreadable, it does not fire: %s", key, error)
        horizon = self._horizon.position
        self._passed = set(takewhile(lambda entry: entry[0] <= horizon, self._due))

    # -- rounds

    def _come(self) -> Iterator[tuple[Position, str]]:
        """Those whose occurrence the horizon has passed, or, of held ones, whose due the wall clock shows.

        Then those that were written at a time that the clock has yet to show again.
        """
        horizon = self._horizon.position
        yield from takewhile(lambda entry: entry[0] <= horizon, self._due)
        wall_ms = self._clock.wall_ms()
        if self._held:
            wall = before(wall_ms + 1)
            yield from takewhile(lambda entry: entry[0] < wall, self._held)
        for written_ms, entry in reversed(self._written):
            if not self._is_set_back(written_ms, wall_ms):
                return
            yield entry

    def _is_set_back(self, shown_ms: int, wall_ms: int) -> bool:
        """Whether the clock has been set back since it showed that; steps as small are waited out."""
        return shown_ms - wall_ms > GRACE_MS

    def _advance(self, commit: Commit, entry: tuple[Position, str]) -> None:
        """In the writer: the next occurrence, if the row still names this one."""
        position, name = entry
        row = read_schedule(commit, name)
        if row is None or row.occurrence is None or row.occurrence.position != position:
            self._note(name, row)
            return
        wall_ms = self._clock.wall_ms()
        if has_passed(commit, row.occurrence, wall_ms):
            self._write(commit, name, self._successor(commit, name, row))
            self._passed.discard(entry)
        elif self._is_set_back(row.written_ms, wall_ms):
            bare, taken_back = without(commit, row, self._journal())
            self._write(commit, name, self._instead(commit, name, row, bare, taken_back))
        elif at_of(position) <= wall_ms:
            raise Refused(UNRELEASED, "is about to be released: usually it has been by now")

    def _successor(self, commit: Commit, name: str, row: ScheduleRow) -> ScheduleRow:
        """The row with the occurrence that follows the one it names. Raises Refused."""
        assert row.occurrence is not None
        position = row.occurrence.position
        was_late = (
            (position, name) not in self._passed
            and self._clock.wall_ms() - at_of(position) > GRACE_MS
            and is_untouched(commit, row.occurrence)
        )
        return self._next(commit, name, passed(commit, row, self._journal()), was_late=was_late)

    def _not_advanced(self, entry: tuple[Position, str], error: Exception) -> float | None:
        place, name = entry
        if isinstance(error, Refused):
            if error.why == UNRELEASED:
                return RELEASE_S
            log.warning("schedule %s: next message refused, trying again: %s", name, error)
            return RETRY_S
        noted = self._places.get(name)
        if not isinstance(error, Busy | StoreFailed) and noted is not None and noted[1] == place:
            # It would fail again, and take others with it each time.
            log.error("schedule %s: stopped until it is changed or the server restarts: %r", name, error)
            self._stuck[name] = place
            self._leave_alone(name, *noted)
        return None

    def _next(self, commit: Commit, name: str, row: ScheduleRow, *, was_late: bool = False) -> ScheduleRow:
        """The row with its next occurrence, written; without one when there is none. Raises Refused."""
        fire, progress = self._following(name, row, was_late=was_late)
        return row if fire is None else place(commit, name, row, fire, progress)

    def _instead(
        self, commit: Commit, name: str, row: ScheduleRow, bare: ScheduleRow, taken_back: MessageId | None
    ) -> ScheduleRow:
        """`bare` with what is next for it. The message that `row` names stays if it is for the same fire, and
        is cancelled if not. Raises Refused."""
        fire, progress = self._following(name, bare)
        known = row.occurrence
        if known is not None and taken_back is not None and (fire is None or fire.base_ms == known.base_ms):
            made_up, through_ms = row.made_up, row.through_ms
            bare = msgspec.structs.replace(bare, occurrence=known, through_ms=through_ms, made_up=made_up)
            return msgspec.structs.replace(bare, count=row.count, written_ms=commit.open_group.wall_ms)
        made = bare if fire is None else place(commit, name, bare, fire, progress)
        self._take_back(commit, taken_back)
        return made

    def _following(
        self, name: str, row: ScheduleRow, *, was_late: bool = False
    ) -> tuple[Fire | None, Progress]:
        """The fire that is next for a row without an occurrence, if any."""
        now_ms, through_ms = self._clock.wall_ms(), row.through_ms
        if self._is_set_back(through_ms, now_ms):
            through_ms = now_ms  # of what is still to come, what was sent is left out, and nothing else
        misfire, progress = cast("Misfire", row.timing.misfire), Progress(through_ms, row.made_up)
        if row.paused or (row.timing.limit and row.count >= row.timing.limit):
            return None, progress
        try:
            plan = plan_of(row.timing, name, row.anchor_ms)
            return following(plan, misfire, progress, now_ms, was_late=was_late, sent=row.sent)
        except (ValueError, KeyError, OSError) as error:
            log.error("schedule %s: stopped, no next occurrence can be computed: %s", name, error)
            return None, progress

    # -- requests, decided in the writer

    def put(
        self, commit: Commit, name: str, timing: TimingRow, record: bytes, body: bytes
    ) -> tuple[ScheduleRow, bool]:
        """Make or change a schedule; its row and whether it is new. Raises Refused.

        A change counts from now on; what the old definition owed by then is written first, if that is not
        refused. With the same rule it keeps its anchor, so that who changes the message again and again does
        not put it off for ever. One that cannot be read is no schedule: this one is new.
        """
        old, now_ms, taken_back = self._if_readable(commit, name), self._clock.wall_ms(), None
        is_new = old is None
        if old is None:
            why = "" if name in self._places else self._share.refusal(owner_of(record).decode())
            if why:
                raise Refused("over-quota", why)
            row = ScheduleRow(timing, record, body, now_ms, now_ms, through_ms=now_ms)
        elif (old.timing, old.record, old.body) == (timing, record, body):
            return old, False
        else:
            if old.occurrence is not None and has_passed(commit, old.occurrence, now_ms):
                # Written at once: what follows may be refused, and this one is placed. Whose it was may have
                # as many pending as he may, which who takes it over does not wait for.
                with suppress(Refused):
                    old = self._successor(commit, name, old)
                    self._write(commit, name, old)
            row, taken_back = without(commit, old, self._journal())
            row = self._from_now(row)
            # Of the same definition by somebody else only the owner is another.
            is_same = (old.timing, old.body) == (timing, body)
            changed_ms = (old.changed_ms or old.anchor_ms) if is_same else now_ms
            if not is_same_rule(old.timing, timing):
                row = _with_rule(row, now_ms, None if taken_back is not None else old.occurrence)
            row = msgspec.structs.replace(row, timing=timing, record=record, body=body, changed_ms=changed_ms)
        row = self._next(commit, name, row)
        self._take_back(commit, taken_back)
        self._write(commit, name, row)
        return row, is_new

    def pause(self, commit: Commit, name: str) -> ScheduleRow | None:
        """Take the pending occurrence back and write no further one. None: there is no such schedule."""
        row = read_schedule(commit, name)
        if row is None or row.paused:
            return row
        row, taken_back = without(commit, row, self._journal())
        row = msgspec.structs.replace(row, paused=True)
        self._take_back(commit, taken_back)
        self._write(commit, name, row)
        return row

    def resume(self, commit: Commit, name: str, *, anew: bool = False) -> ScheduleRow | None:
        """Go on with the first fire later than now that was not sent: what a pause left out was not missed.

        `anew`: paused or not, and whatever was sent: with the first fire later than now.
        """
        row = read_schedule(commit, name)
        if row is None or not (row.paused or anew):
            return row
        bare, taken_back = without(commit, row, self._journal())
        bare = msgspec.structs.replace(self._from_now(bare), paused=False)
        if anew:
            anchor_ms = min(bare.anchor_ms, self._clock.wall_ms())
            bare = msgspec.structs.replace(bare, sent=(), anchor_ms=anchor_ms)
        row = self._instead(commit, name, row, bare, taken_back)
        self._write(commit, name, row)
        return row

    def skip(self, commit: Commit, name: str) -> ScheduleRow | None:
        """Leave the next fire out: its message is cancelled, wherever it was moved. None: no such schedule.

        Raises Refused with `wrong-state` if no message is pending.
        """
        row = read_schedule(commit, name)
        if row is None:
            return None
        if row.occurrence is not None and has_passed(commit, row.occurrence, self._clock.wall_ms()):
            row = self._successor(commit, name, row)
            self._write(commit, name, row)
        if row.occurrence is None:
            raise Refused(
                "wrong-state", f"it is {'paused' if row.paused else 'finished'}: no occurrence is pending"
            )
        bare, taken_back = without(commit, row, self._journal())
        if taken_back is not None:
            occurrence = row.occurrence
            sent = with_fire(bare.sent, occurrence.before_ms, occurrence.base_ms)
            bare = msgspec.structs.replace(bare, sent=sent, through_ms=occurrence.base_ms)
        made = self._next(commit, name, bare)
        cancel(commit, row.occurrence)
        self._write(commit, name, made)
        return made

    def trigger(self, commit: Commit, name: str) -> MessageId | None:
        """One message now, besides the planned ones."""
        row = read_schedule(commit, name)
        return None if row is None else commit.put_known(draft_at(name, row.record, self._clock.wall_ms()))

    def delete(self, commit: Commit, name: str) -> bool:
        """Forget the schedule; its pending occurrence is cancelled, also if it was moved.

        One that cannot be read is no schedule, but its row goes.
        """
        row = self._if_readable(commit, name)
        if row is not None and row.occurrence is not None:
            cancel(commit, row.occurrence)
        write_schedule(commit, name, None)
        self._note(name, None)
        return row is not None

    # -- leaves

    def get(self, name: str) -> ScheduleRow | None:
        """The row as it can be read now."""
        value = self._store.get(Table.SCHEDULES, name.encode())
        return None if value is None else schedule_of(value)

    def after(self, name: str, limit: int) -> list[tuple[str, ScheduleRow]]:
        """Schedules in order of their names, from behind `name`."""
        start = name.encode() + b"\0" if name else b""
        found: list[tuple[str, ScheduleRow]] = []
        for key, value in readable(self._store, Table.SCHEDULES, start, NAMES_END):
            with suppress(Corrupt):  # the log has it since the rows were loaded
                found.append(named_row(key, value))
            if len(found) == limit:
                break
        return found

    def _if_readable(self, commit: Commit, name: str) -> ScheduleRow | None:
        try:
            return read_schedule(commit, name)
        except Corrupt as error:
            log.error("schedule %s: unreadable, one of its messages may be pending: %s", name, error)
            return None

    def _take_back(self, commit: Commit, message: MessageId | None) -> None:
        if message is not None:
            commit.cancel(message)

    def _from_now(self, row: ScheduleRow) -> ScheduleRow:
        return msgspec.structs.replace(row, through_ms=max(row.through_ms, self._clock.wall_ms()))

    def _write(self, commit: Commit, name: str, row: ScheduleRow) -> None:
        write_schedule(commit, name, row)
        self._note(name, row)

    def _own(self, name: str, owner: str | None) -> None:
        """The schedule is that owner's; None: it is gone."""
        before = self._owners.pop(name, None)
        if before is not None:
            self._share.add(before, -1)
        if owner is not None:
            self._owners[name] = owner
            self._share.add(owner)

    def _note(self, name: str, row: ScheduleRow | None) -> None:
        """What RAM keeps of a row, from when it is decided: the horizon waits for the group anyway."""
        self._unreadable.discard(name.encode())
        last = self._places.pop(name, None)
        if last is not None:
            self._leave_alone(name, *last)
        if row is None:
            self._stuck.pop(name, None)
            self._own(name, None)
            return
        self._own(name, owner_of(row.record).decode())
        occurrence = row.occurrence
        self._places[name] = None if occurrence is None else (row.written_ms, occurrence.position)
        if occurrence is not None and self._stuck.get(name) != occurrence.position:
            entry = occurrence.position, name
            (self._held if occurrence.is_held else self._due).add(entry)
            self._written.add((row.written_ms, entry))

    def _leave_alone(self, name: str, written_ms: int, place: Position) -> None:
        """Stop asking for its next occurrence."""
        self._due.discard((place, name))
        self._held.discard((place, name))
        self._written.discard((written_ms, (place, name)))
