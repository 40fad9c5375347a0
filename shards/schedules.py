"""Rows of recurring schedules, and their changes in a group commit.

A row names the one occurrence that is written ahead: its fire, and the position where it was first put. The
single writer writes the next one in the same batch as the row that names it, and only if the row still names
the one before. So each fire has exactly one message, whenever the process is killed.

    schedules    name, UTF-8 -> MessagePack of `ScheduleRow`

An occurrence written while the clock was set back waits in `held`, at a position that the horizon has passed.
It has passed when the wall clock has reached its due and it has left `held`.

    place      the message of a fire, and the row that names it
    passed     the row without a finished occurrence, whose fire counts as sent
    without    the row without its occurrence; if its message is untouched, the fire counts as not handled

A fire counts as sent when its message went out, or when somebody cancelled or moved it. It does not if the
message had expired, or came too late for `late: drop`: nobody got it.
"""

import logging

import msgspec

from timeline.fires import Fire, Progress
from timeline.position import MessageId, Position, at_of, id_position, is_held
from timeline.sent import Ranges, with_fire

from . import keys
from .commit import Commit
from .draft import Draft
from .errors import Corrupt
from .fate import is_dropped
from .read import Found
from .record import decode, due_at, due_of, encode, is_stub
from .state import EXPIRED, Journal, state_of
from .store import Table
from .tables import encode_row, reading

log = logging.getLogger(__name__)


class TimingRow(msgspec.Struct, frozen=True, array_like=True):
    """When a schedule fires, as requested. Times in UTC ms, 0: none."""

    kind: str
    """`cron`, `every` or `rrule`."""
    expression: str
    zone: str
    start_ms: int = 0
    end_ms: int = 0
    limit: int = 0
    jitter_ms: int = 0
    gap: str = "after"
    overlap: str = "first"
    misfire: str = "fire_once"
    skipped_ms: int = -1
    """The local start, as if it were UTC, if the clocks skip it."""


class Occurrence(msgspec.Struct, frozen=True, array_like=True):
    """The fire that is written ahead."""

    id: bytes
    base_ms: int
    at_ms: int
    before_ms: int
    """Fires from here up to this one were not sent before it."""
    nominal_ms: int = -1
    """Local time of the fire, as if it were UTC: this stays when its zone's rules change."""

    @property
    def message(self) -> MessageId:
        return keys.message_of(self.id)

    @property
    def position(self) -> Position:
        """Where it was first put; a move does not change it."""
        return id_position(self.message)

    @property
    def is_held(self) -> bool:
        """Whether it was put into the table `held`."""
        return is_held(self.message)


class ScheduleRow(msgspec.Struct, frozen=True, array_like=True):
    """A schedule. `record`: the message without its due; `body`: the definition as sent, JSON."""

    timing: TimingRow
    record: bytes
    body: bytes
    created_ms: int
    anchor_ms: int
    """When the rule was last changed: a rule without a start counts from here."""
    through_ms: int
    """Fires up to this are handled."""
    count: int = 0
    """Messages written so far."""
    made_up: int = 0
    paused: bool = False
    occurrence: Occurrence | None = None
    last_ms: int = 0
    """Due of the last message that went out; 0: none yet."""
    sent: Ranges = ()
    """Fires that were sent (timeline/sent.py)."""
    written_ms: int = 0
    """The clock when the occurrence was written. Later than now: the clock was set back."""
    changed_ms: int = 0
    """When the definition was last changed; 0: at `anchor_ms`."""
    stopped: str = ""
    """Why no next occurrence could be computed."""


_read = reading(ScheduleRow)


def schedule_of(value: bytes) -> ScheduleRow:
    """Raises Corrupt.

    In a row of a version without ranges, all fires handled since its creation count as sent.
    """
    row = _read(value)
    if row.written_ms or row.sent:
        return row
    through_ms = row.through_ms if row.occurrence is None else row.occurrence.before_ms
    known = ((row.created_ms, through_ms),) if through_ms > row.created_ms else ()
    return msgspec.structs.replace(row, sent=known)


def named_row(key: bytes, value: bytes) -> tuple[str, ScheduleRow]:
    """Decode a row from a scan. Raises Corrupt."""
    try:
        return key.decode(), schedule_of(value)
    except UnicodeDecodeError as error:
        raise Corrupt(f"{key!r} is no name") from error


def read_schedule(commit: Commit, name: str) -> ScheduleRow | None:
    """The row as this group leaves it."""
    value = commit.get(Table.SCHEDULES, name.encode())
    return None if value is None else schedule_of(value)


def write_schedule(commit: Commit, name: str, row: ScheduleRow | None) -> None:
    """Put the row; None deletes it."""
    commit.row(Table.SCHEDULES, name.encode(), None if row is None else encode_row(row))


def draft_at(name: str, record: bytes, due_ms: int) -> Draft:
    """The message of a schedule for one due; it names its schedule."""
    made = msgspec.structs.replace(decode(record), due_ms=due_ms, schedule=name.encode())
    return Draft(due_ms, made.topic, encode(made))


def place(commit: Commit, name: str, row: ScheduleRow, fire: Fire, progress: Progress) -> ScheduleRow:
    """Write the message of a fire. Returns the row that names it. Raises Refused, with nothing written."""
    message = commit.put_known(draft_at(name, row.record, fire.at_ms))
    base_ms, at_ms = fire.base_ms, fire.at_ms
    return msgspec.structs.replace(
        row,
        occurrence=Occurrence(keys.message(message), base_ms, at_ms, progress.before_ms, fire.nominal_ms),
        through_ms=progress.through_ms,
        made_up=progress.made_up,
        count=row.count + 1,
        written_ms=commit.open_batch.wall_ms,
    )


def without(commit: Commit, row: ScheduleRow, journal: Journal) -> tuple[ScheduleRow, MessageId | None]:
    """The row without its occurrence, and the message to cancel for that.

    None: it was dispatched, or a user has cancelled or moved it; then its fire is handled. This writes
    nothing, so that the caller can cancel after everything that may be refused.
    """
    occurrence = row.occurrence
    if occurrence is None:
        return row, None
    found = _found(commit, occurrence)
    is_pending = found is not None and (found.shard is None or commit.horizon.undecided(found.position))
    if not is_pending or not is_untouched(commit, occurrence):
        return msgspec.structs.replace(passed(commit, row, journal), made_up=0), None
    bare = msgspec.structs.replace(row, occurrence=None, made_up=0)
    bare = msgspec.structs.replace(bare, through_ms=occurrence.before_ms, count=row.count - 1)
    return bare, occurrence.message


def passed(commit: Commit, row: ScheduleRow, journal: Journal) -> ScheduleRow:
    """The row without a finished occurrence. Its fire becomes the last one, if the message went out.

    It did not go out if it was cancelled, or moved to a later time. `journal` tells a message that was
    dropped, because it had expired or was late, from one that went out.
    """
    occurrence = row.occurrence
    bare = msgspec.structs.replace(row, occurrence=None)
    if occurrence is None:
        return bare
    found = _found(commit, occurrence)
    if found is not None and found.shard is not None and not is_stub(found.value):
        if not commit.horizon.undecided(found.position):
            bare = msgspec.structs.replace(bare, last_ms=due_of(found.value))
        if _was_dropped(commit, found, journal):
            return bare
    return msgspec.structs.replace(bare, sent=with_fire(row.sent, occurrence.before_ms, occurrence.base_ms))


def has_passed(commit: Commit, occurrence: Occurrence, wall_ms: int) -> bool:
    """Whether the occurrence's time has come, whatever has become of its message."""
    place = occurrence.position
    if not occurrence.is_held:
        return place <= commit.horizon.position
    return at_of(place) <= wall_ms and commit.get(Table.HELD, keys.place(place)) is None


def is_untouched(commit: Commit, occurrence: Occurrence) -> bool:
    """Whether its message is where it was put, neither cancelled nor moved."""
    found = _found(commit, occurrence)
    if found is None or is_stub(found.value):
        return False
    # A held message moves on by itself, with its due unchanged.
    return found.row_id == occurrence.message or (
        occurrence.is_held and due_of(found.value) == at_of(occurrence.position)
    )


def cancel(commit: Commit, occurrence: Occurrence) -> None:
    """Cancel its message, wherever it is now. One that cannot be read is not dispatched anyway."""
    if _found(commit, occurrence) is not None:
        commit.cancel(occurrence.message)


def _was_dropped(commit: Commit, found: Found, journal: Journal) -> bool:
    """Whether dispatch dropped it. One that cannot be read counts as sent.

    A held one that has just been released is not dispatched yet, and not before now.
    """
    place, horizon = found.position, commit.horizon.position
    try:
        record = decode(found.value)
        if place > horizon:
            return is_dropped(record, due_at(place, record.due_ms), commit.open_batch.wall_ms)
        return state_of(place, record, horizon, journal, is_held=False, with_time=False)[0] == EXPIRED
    except Corrupt as error:
        log.error("schedule: its message: %s", error)
        return False


def _found(commit: Commit, occurrence: Occurrence) -> Found | None:
    try:
        return commit.find(occurrence.message)
    except Corrupt as error:
        log.error("schedule: its message: %s", error)
        return None
