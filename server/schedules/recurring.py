"""Recurring schedules: write the next occurrence when the horizon has passed the last one.

For each schedule RAM holds its name and the position where its pending occurrence was first put, sorted by
position. Each round looks at the first of them. Once the horizon has passed it, whatever happened to the
message (delivered, cancelled, moved), an errand to the writer writes the next occurrence and the row that
names it, if the row still names the old one. After a start all rows are read, and passed ones are handled at
once. So nothing depends on a timer, and nothing is written twice.

An occurrence written while the clock was set back waits in the table `held`. Its successor is written when
the wall clock has reached its due and it has left that table. So at most one is written and not yet
dispatched, whatever the clock does, and a change cancels it.

When the clock is set back, an earlier occurrence may be too far ahead. Its row has the clock's time when it
was written. While that is later than now, live or after a restart, the writer replaces it by the first fire
after now that was not sent (timeline/sent.py).

A refused occurrence is tried again a second later, without blocking others: perhaps only its owner is at the
bound of pending messages.

Decisions noted in RAM may be lost with their group, so all rows are read again after a failure of the store.
Bound: `share`.
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
from timeline.fires import (
    GRACE_MS,
    Every,
    Fire,
    Gap,
    Misfire,
    Overlap,
    Plan,
    Progress,
    due_by,
    following,
    local_of,
    nominal_at,
)
from timeline.horizon import Horizon
from timeline.position import MessageId, Position, at_of, before
from timeline.recurrence import Rule, parse_rule
from timeline.sent import with_fire

from ..engine.clock import Clock
from ..engine.commit_hook import CommitHook, ignore
from ..engine.errand import RETRY_S, Errand
from ..engine.writer import Busy, Writer
from ..fair import Share

log = logging.getLogger(__name__)

RELEASE_S = 0.01
UNRELEASED = "unreleased"
"""Refusal: the occurrence is still in the table `held`."""
NAMES_END = b"\x7f"
"""Above every name: names are ASCII."""


def plan_of(timing: TimingRow, name: str, anchor_ms: int, *, strict: bool = False) -> Plan:
    """The plan of a schedule's fires. `strict`: its rule has just been sent. Raises CronError, RuleError;
    KeyError, ValueError or OSError for the zone."""
    zone = ZoneInfo(timing.zone)
    return Plan(
        _source(timing, zone, anchor_ms, strict=strict),
        zone,
        timing.start_ms,
        timing.end_ms or None,
        cast("Gap", timing.gap),
        cast("Overlap", timing.overlap),
        timing.jitter_ms,
        name,
    )


def _source(timing: TimingRow, zone: ZoneInfo, anchor_ms: int, *, strict: bool) -> Cron | Rule | Every:
    if timing.kind == "cron":
        return parse_cron(timing.expression)
    if timing.kind == "rrule":
        # A rule counts from its start, which is its first time; the default is the next whole second.
        start_ms = timing.start_ms or anchor_ms // 1_000 * 1_000 + 1_000
        start = local_of(start_ms, zone) if timing.skipped_ms < 0 else nominal_at(timing.skipped_ms)
        return parse_rule(timing.expression, start, strict=strict)
    interval_ms = int(timing.expression)
    # Without a start it extends from the anchor both ways: a clock that was ahead then may be set back.
    return Every(interval_ms, timing.start_ms or anchor_ms % interval_ms)


def _rule_of(timing: TimingRow) -> TimingRow:
    """What decides the fires, apart from bounds, delays and the misfire policy."""
    return msgspec.structs.replace(timing, end_ms=0, limit=0, jitter_ms=0, misfire="")


def _with_rule(row: ScheduleRow, now_ms: int, dealt_with: Occurrence | None) -> ScheduleRow:
    """The row with a new rule: it counts from now, without the old rule's sent fires.

    A range of the old rule would cover fires of the new one that were never sent. `dealt_with`: the old
    occurrence, if it was sent, cancelled or moved: it does not come back.
    """
    sent = () if dealt_with is None else ((dealt_with.base_ms, dealt_with.base_ms),)
    return msgspec.structs.replace(row, anchor_ms=now_ms, sent=sent)


class Schedules(CommitHook):
    """All schedules of one server."""

    def __init__(self, store: Store, horizon: Horizon, writer: Writer, clock: Clock, *, share: Share) -> None:
        """`share`: maximum schedules by owner; empty at first."""
        self._store = store
        self._horizon = horizon
        self._clock = clock
        self._journal = writer.journal
        self._places: dict[str, tuple[int, Position] | None] = {}
        """Time when its occurrence was written, and its position; None: it has none."""
        self._share = share
        self._owners: dict[str, str] = {}
        """Name -> owner of its messages."""
        self._due: SortedSet[tuple[Position, str]] = SortedSet()
        self._held: SortedSet[tuple[Position, str]] = SortedSet()
        """Schedules whose occurrence is, or was, in the table `held`."""
        self._written: SortedSet[tuple[int, tuple[Position, str]]] = SortedSet()
        """Clock time at which the occurrence was written, ms, for those in the other two."""
        self._passed: set[tuple[Position, str]] = set()
        """Passed by the horizon before this start: this start does not count as delivering them late."""
        self._stuck: dict[str, Position] = {}
        """Stopped schedules: not tried again, also after the rows are read again."""
        self._unreadable: set[bytes] = set()
        """Keys of unreadable rows."""
        self.errand: Errand[tuple[Position, str], None] = Errand(
            writer, clock, self._advance, ignore, self._not_advanced, source=self._come
        )
        self.recover()
        writer.add_hook(self)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def unreadable(self) -> int:
        """Number of unreadable rows."""
        return len(self._unreadable)

    def recover(self) -> None:
        """Read all rows: at start, and after a failure of the store."""
        for known in (self._places, self._owners, self._share, self._due, self._held, self._written):
            known.clear()
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
        """Schedules whose occurrence the horizon has passed; for held ones, whose due the wall clock has
        reached.

        Then those written at a clock time that is in the future again.
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

    def _is_set_back(self, clock_ms: int, wall_ms: int) -> bool:
        """Whether the clock has been set back by more than small steps since it showed that time."""
        return clock_ms - wall_ms > GRACE_MS

    def _advance(self, commit: Commit, entry: tuple[Position, str]) -> None:
        """In the writer: write the next occurrence, if the row still names this one."""
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
        """The row with the next occurrence. Raises Refused."""
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
            # It would fail again, and others in the same request with it.
            log.error("schedule %s: stopped until it is changed or the server restarts: %r", name, error)
            self._stuck[name] = place
            self._leave_alone(name, *noted)
        return None

    def _next(self, commit: Commit, name: str, row: ScheduleRow, *, was_late: bool = False) -> ScheduleRow:
        """The row with its next occurrence, written; without one if there is none. Raises Refused."""
        fire, progress, stopped = self._following(name, row, was_late=was_late)
        row = msgspec.structs.replace(row, stopped=stopped)
        return row if fire is None else place(commit, name, row, fire, progress)

    def _instead(
        self, commit: Commit, name: str, row: ScheduleRow, bare: ScheduleRow, taken_back: MessageId | None
    ) -> ScheduleRow:
        """`bare` with its next occurrence. The message that `row` names stays if it is for the same fire;
        else it is cancelled. Raises Refused."""
        fire, progress, stopped = self._following(name, bare)
        bare = msgspec.structs.replace(bare, stopped=stopped)
        known = row.occurrence
        if known is not None and taken_back is not None and (fire is None or fire.base_ms == known.base_ms):
            made_up, through_ms = row.made_up, row.through_ms
            bare = msgspec.structs.replace(bare, occurrence=known, through_ms=through_ms, made_up=made_up)
            return msgspec.structs.replace(bare, count=row.count, written_ms=commit.open_batch.wall_ms)
        made = bare if fire is None else place(commit, name, bare, fire, progress)
        self._take_back(commit, taken_back)
        return made

    def _following(
        self, name: str, row: ScheduleRow, *, was_late: bool = False
    ) -> tuple[Fire | None, Progress, str]:
        """The next fire of a row without an occurrence, if any, and why it cannot be computed."""
        now_ms, misfire = self._clock.wall_ms(), cast("Misfire", row.timing.misfire)
        progress = Progress(row.through_ms, row.made_up)
        if row.paused or (row.timing.limit and row.count >= row.timing.limit):
            return None, progress, ""
        try:
            plan = plan_of(row.timing, name, row.anchor_ms)
            if self._is_set_back(row.through_ms, now_ms):
                # Of future fires, only the sent ones are left out.
                progress = Progress(due_by(plan, now_ms), row.made_up)
            fire, progress = following(plan, misfire, progress, now_ms, was_late=was_late, sent=row.sent)
        except (ValueError, KeyError, OSError) as error:
            log.error("schedule %s: stopped, no next occurrence can be computed: %s", name, error)
            return None, progress, f"{row.timing.kind}: {error}"
        return fire, progress, ""

    # -- requests, decided in the writer

    def put(
        self, commit: Commit, name: str, timing: TimingRow, record: bytes, body: bytes
    ) -> tuple[ScheduleRow, bool]:
        """Create or change a schedule. Returns its row, and whether it is new. Raises Refused.

        A change counts from now on; an occurrence that the old definition still owes is written first, unless
        it is refused. With the same rule the schedule keeps its anchor, so that repeated changes of the
        message do not defer it for ever. An unreadable schedule counts as missing: this one is new. A new
        timing whose fires are all in the past is refused.
        """
        old, now_ms, taken_back = self._if_readable(commit, name), self._clock.wall_ms(), None
        is_new = old is None
        if old is None:
            why = "" if name in self._places else self._share.refusal(owner_of(record).decode())
            if why:
                raise Refused("over-quota", why)
            row = ScheduleRow(timing, record, body, now_ms, now_ms, through_ms=0)
        elif (old.timing, old.record, old.body) == (timing, record, body):
            return old, False
        else:
            if old.occurrence is not None and has_passed(commit, old.occurrence, now_ms):
                # Placed at once, since what follows may be refused. Its owner may be at his bound of
                # pending messages; a new owner does not have to wait for that.
                with suppress(Refused):
                    old = self._successor(commit, name, old)
                    self._write(commit, name, old)
            row, taken_back = without(commit, old, self._journal())
            # If another client sends the same definition only the owner changes.
            is_same = (old.timing, old.body) == (timing, body)
            changed_ms = (old.changed_ms or old.anchor_ms) if is_same else now_ms
            if _rule_of(old.timing) != _rule_of(timing):
                row = _with_rule(row, now_ms, None if taken_back is not None else old.occurrence)
            row = msgspec.structs.replace(row, timing=timing, record=record, body=body, changed_ms=changed_ms)
        row = self._next(commit, name, self._from_now(name, row))
        is_done = row.paused or 0 < timing.limit <= row.count
        if row.occurrence is None and not is_done and (old is None or old.timing != timing):
            raise Refused("end" if timing.end_ms else timing.kind, "leaves no fire after now")
        self._take_back(commit, taken_back)
        self._write(commit, name, row)
        return row, is_new

    def pause(self, commit: Commit, name: str) -> ScheduleRow | None:
        """Cancel the pending occurrence and write no further one. None: no such schedule."""
        row = read_schedule(commit, name)
        if row is None or row.paused:
            return row
        row, taken_back = without(commit, row, self._journal())
        row = msgspec.structs.replace(row, paused=True)
        self._take_back(commit, taken_back)
        self._write(commit, name, row)
        return row

    def resume(self, commit: Commit, name: str, *, anew: bool = False) -> ScheduleRow | None:
        """Continue with the first unsent fire after now: fires during a pause do not count as missed.

        `anew`: continue with the first fire after now, paused or not, whatever was sent.
        """
        row = read_schedule(commit, name)
        if row is None or not (row.paused or anew):
            return row
        bare, taken_back = without(commit, row, self._journal())
        bare = msgspec.structs.replace(self._from_now(name, bare), paused=False)
        if anew:
            anchor_ms = min(bare.anchor_ms, self._clock.wall_ms())
            bare = msgspec.structs.replace(bare, sent=(), anchor_ms=anchor_ms)
        row = self._instead(commit, name, row, bare, taken_back)
        self._write(commit, name, row)
        return row

    def skip(self, commit: Commit, name: str) -> ScheduleRow | None:
        """Skip the next fire: cancel its message, wherever it was moved. None: no such schedule.

        Raises Refused with `wrong-state` if no message is pending.
        """
        row = read_schedule(commit, name)
        if row is None:
            return None
        if row.occurrence is not None and has_passed(commit, row.occurrence, self._clock.wall_ms()):
            row = self._successor(commit, name, row)
            self._write(commit, name, row)
        if row.occurrence is None:
            state = "paused" if row.paused else "stopped" if row.stopped else "finished"
            raise Refused("wrong-state", f"it is {state}: no occurrence is pending")
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
        """Write one message for now, besides the planned ones."""
        row = read_schedule(commit, name)
        return None if row is None else commit.put_known(draft_at(name, row.record, self._clock.wall_ms()))

    def delete(self, commit: Commit, name: str) -> bool:
        """Delete the schedule; cancel its pending occurrence, also if it was moved.

        An unreadable schedule counts as missing, but its row is deleted.
        """
        row = self._if_readable(commit, name)
        if row is not None and row.occurrence is not None:
            cancel(commit, row.occurrence)
        write_schedule(commit, name, None)
        self._note(name, None)
        return row is not None

    # -- helpers

    def get(self, name: str) -> ScheduleRow | None:
        """The row as currently stored."""
        value = self._store.get(Table.SCHEDULES, name.encode())
        return None if value is None else schedule_of(value)

    def after(self, name: str, limit: int) -> list[tuple[str, ScheduleRow]]:
        """Schedules in order of names, from behind `name`."""
        start = name.encode() + b"\0" if name else b""
        found: list[tuple[str, ScheduleRow]] = []
        for key, value in readable(self._store, Table.SCHEDULES, start, NAMES_END):
            with suppress(Corrupt):  # logged when the rows were loaded
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

    def _from_now(self, name: str, row: ScheduleRow) -> ScheduleRow:
        """The row, to continue with the first fire that is due after now."""
        due_ms = self._clock.wall_ms()
        if row.timing.jitter_ms:
            with suppress(ValueError, KeyError, OSError):  # logged when the next fire is computed
                due_ms = due_by(plan_of(row.timing, name, row.anchor_ms), due_ms)
        return msgspec.structs.replace(row, through_ms=max(row.through_ms, due_ms))

    def _write(self, commit: Commit, name: str, row: ScheduleRow) -> None:
        write_schedule(commit, name, row)
        self._note(name, row)

    def _own(self, name: str, owner: str | None) -> None:
        """Set the owner of a schedule; None: it is gone."""
        before = self._owners.pop(name, None)
        if before is not None:
            self._share.add(before, -1)
        if owner is not None:
            self._owners[name] = owner
            self._share.add(owner)

    def _note(self, name: str, row: ScheduleRow | None) -> None:
        """Update RAM from a row, at the decision: the horizon waits for the group anyway."""
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
