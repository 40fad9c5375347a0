"""Recomputes local wall times after a change of the time zone database.

A message for `2027-03-28T09:00[Europe/Bucharest]` is stored with that local time and with its instant at
acceptance. Governments change their rules: with a newer database nine o'clock there may be another instant.
Then every such pending message is moved to its new instant, as a user would move it: the id stays. A message
too near to be moved goes out at the old time, and the report says so.

`meta` has the database's version. A server that starts with another version, or a node that takes the lead
with another one, goes through all pending messages before it serves. Meanwhile `meta` has both versions:
after a crash the next server does it again, with either of them. A node writes a group now and then even if
nothing moves, so that the others do not consider it dead.

The platform chooses the database (zoneinfo looks in the system's folders first, then for the package tzdata),
and the version is read where the platform writes it. Without one the digest of the files is the version.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from heapq import merge
from importlib.metadata import PackageNotFoundError, version
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from zoneinfo import TZPATH

from shards.dedupe import Refused
from shards.draft import Outcome
from shards.errors import Corrupt
from shards.read import Row
from shards.record import decode, has_zone, id_at, is_stub
from shards.recover import Opened
from shards.store import Store, Table
from shards.tables import META_ZONES
from timeline.position import END, START, MessageId, Position, id_text, message_id, seq_of

from ..engine.lease import Lease
from ..engine.writer import GROUP_BYTES
from ..observe.logs import EACH
from ..settings.durations import TimeError
from ..settings.times import format_ms, parse_deliver_at
from .retime_schedules import SchedulesReport, retime_schedules

log = logging.getLogger(__name__)

GROUP_MESSAGES = 1_000
STEP_ROWS = 20_000
"""Rows read at once, 20 ms; 200 if all have a zone."""
LOGGED = 100
"""Maximum moves logged one by one at a start."""

_VERSION = re.compile(r"# version (\S+)")


class Change(NamedTuple):
    """A message whose local time is another instant now."""

    id: MessageId
    row: MessageId
    local_time: str
    old_ms: int
    new_ms: int


@dataclass(slots=True)
class Report:
    """Result of a run: messages with a zone, moved ones, and those that could not be moved."""

    zoned: int = 0
    moved: int = 0
    kept: int = 0
    schedules: SchedulesReport = field(default_factory=SchedulesReport)

    def __str__(self) -> str:
        text = f"{self.zoned} pending messages with a zone, {self.moved} moved, {self.kept} could not be"
        return f"{text}; {self.schedules}" if self.schedules.looked else text


def zones_version(folders: Sequence[str] = TZPATH) -> str:
    """The version of the time zone database in use; "unknown" if there is none."""
    for folder in map(Path, folders):
        source, plain = folder / "tzdata.zi", folder / "+VERSION"
        if source.is_file():
            with source.open(encoding="utf-8", errors="replace") as lines:
                found = _VERSION.match(lines.readline())
            if found:
                return found[1]
        if plain.is_file():
            return plain.read_text(encoding="utf-8", errors="replace").strip()
        if (folder / "UTC").is_file():
            return _digest(folder)
    try:
        return version("tzdata")
    except PackageNotFoundError:
        return "unknown"


def _digest(folder: Path) -> str:
    """The version of a database without one: digest of 1,250 files, 90 ms."""
    digest = sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(b"%b\0%b" % (str(path.relative_to(folder)).encode(), path.read_bytes()))
    return digest.hexdigest()[:16]


def retime_if_changed(
    opened: Callable[[], Opened], store: Store, wall_ms: int, current: str, lease: Lease
) -> Report | None:
    """Recompute if the database has changed since the last time; None if not.

    `opened`: opens the store's timeline. `lease`: renewed meanwhile. Raises what the store raises.
    """
    stored = store.get(Table.META, META_ZONES)
    if stored == current.encode():
        return None
    report = None
    if stored is not None:
        before = stored.decode().partition(" to ")[0]
        log.info("time zones: changed from %s to %s", stored.decode(), current)
        note_zones(store, f"{before} to {current}")
        changes = 0

        def note(line: str) -> None:
            nonlocal changes
            changes += 1
            if changes <= LOGGED:
                log.info("%s", line, extra=EACH)  # at most LOGGED of them, at the start

        report = retime(opened(), wall_ms, note, lease)
        log.info("%s", report)
    lease.renewed_by(partial(note_zones, store, current))
    return report


def retime(opened: Opened, wall_ms: int, note: Callable[[str], None], lease: Lease) -> Report:
    """Move every pending message whose local time is another instant now, and pending occurrences of
    schedules.

    `note` gets a line for each. `lease`: as of `retime_if_changed`.

    The timeline must not be in use. Durable on return. Raises StoreFailed, Corrupt.
    """
    report = Report()
    as_of = opened.horizon.seq
    start: Position | None = START
    while start is not None:
        changes, start = _step(opened, start, as_of, report, note)
        if changes or lease.is_due:
            lease.renewed_by(partial(_move, opened, wall_ms, changes, report, note))
    report.schedules = retime_schedules(opened, wall_ms, note)
    return report


def _step(
    opened: Opened, start: Position, as_of: int, report: Report, note: Callable[[str], None]
) -> tuple[list[Change], Position | None]:
    """The next changes, at most one group, and where to continue; None at the end."""
    changes: list[Change] = []
    size = 0
    for looked, (place, number, value) in enumerate(_rows(opened, start)):
        if looked == STEP_ROWS:
            return changes, Position(place)
        if not has_zone(value) or is_stub(value) or seq_of(place) > as_of:
            continue
        record = decode(value)
        node, local_time = opened.open_batch.node, record.zone.decode()
        row, name = message_id(place, number, node), id_at(place, number, node, record.id)
        report.zoned += 1
        try:
            new_ms = parse_deliver_at(local_time)
        except TimeError as error:
            report.kept += 1
            note(f"{id_text(name)} {local_time} stays at {format_ms(record.due_ms)}: {error}")
            continue
        if new_ms != record.due_ms:
            changes.append(Change(name, row, local_time, record.due_ms, new_ms))
            size += len(value)
        if len(changes) == GROUP_MESSAGES or size >= GROUP_BYTES:
            return changes, Position(place + 1)
    return changes, None


def _rows(opened: Opened, start: Position) -> Iterator[Row]:
    """Pending rows from `start` on: those behind the horizon, and held ones."""
    rows = opened.reader.read(max(start, Position(opened.horizon.position + 1)), END)
    if not opened.waiting.held:
        return rows
    return merge((row for row in opened.reader.held() if row[0] >= start), rows, key=itemgetter(0))


def _move(
    opened: Opened, wall_ms: int, changes: Sequence[Change], report: Report, note: Callable[[str], None]
) -> None:
    """Write one group commit of moves."""
    opened.open_batch.begin(wall_ms)
    for change in changes:
        line = f"{id_text(change.id)} {change.local_time}"
        try:
            moved = opened.commit.move(change.id, change.new_ms, change.row, zone=change.local_time.encode())
            why = "" if moved.outcome is Outcome.DONE else "too close or already due"
        except (Refused, Corrupt) as error:
            why = str(error)
        if why:
            report.kept += 1
            note(f"{line} stays at {format_ms(change.old_ms)}: {why}")
        else:
            report.moved += 1
            note(f"{line} moved from {format_ms(change.old_ms)} to {format_ms(change.new_ms)}")
    opened.open_batch.seal()
    opened.store.flush()
    opened.close_group()


def note_zones(store: Store, current: str) -> None:
    """Note the database with which dues were computed."""
    batch = store.batch()
    batch.put(Table.META, META_ZONES, current.encode())
    store.write(batch)
    store.flush()
