"""Quarantine: corrupt ranges are noted, left out of the counts, and dispatched late when readable again.

A reader skips a corrupt range of messages (shards/unreadable.py). This file writes what is needed about it, a
step in each round:

    note      the range goes into the table `meta` with the first position that is owed, which is at least
              behind the horizon. The loader stops before the range until that is durable
    renote    the wheel may hold messages of the range, read before it rotted: when the horizon has passed
              them they have been dispatched from RAM, and are no longer owed
    recount   when the horizon has passed it, pending messages are counted again
    forget    the note is deleted after its slice has been dropped
    revive    after a start, if a noted range can be read again: its owed messages are moved to now, 1,000 to
              a group, and delivered late, once

A single message that dispatch could not read, in the wheel without its payload, is noted a moment after the
horizon has passed it: after a kill in between only the log file mentions it.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial

from shards import keys
from shards.commit import Commit
from shards.errors import Corrupt
from shards.read import Found
from shards.record import decode, id_at, is_stub
from shards.recover import Opened
from shards.store import Table
from shards.unreadable import CorruptRange, note_key, note_value
from timeline.position import Position, at_of
from timeline.wheel import Wheel

from .clock import Clock
from .errand import RETRY_S, Errand
from .writer import GROUP_BYTES, Entry, Writer

log = logging.getLogger(__name__)

STEP_ROWS = 1_000
LOOK_S = 1.0


Steps = Iterator[None]
"""A write in two steps: in the writer, and once it is durable."""
Task = Callable[[Commit], Steps]


class Quarantine:
    """Handles corrupt ranges, one task at a time; usually there are none."""

    def __init__(self, opened: Opened, wheel: Wheel[Entry], writer: Writer, clock: Clock) -> None:
        self._opened = opened
        self._wheel = wheel
        self._clock = clock
        self._unreadable = opened.reader.unreadable
        self._owed = opened.owed
        self._until = opened.horizon.position
        """Last position that may be owed from before this start, which dispatches the rest itself."""
        self._held: dict[CorruptRange, tuple[Position, int]] = {}
        """Up to where the wheel holds owed messages of a range, if it has dropped nothing since."""
        self._passed: set[CorruptRange] = set()
        self._gone: list[CorruptRange] = []
        """Ranges whose slices have been dropped."""
        self._from = self._look_from = 0.0
        self.errand: Errand[Task, Steps] = Errand(
            writer, clock, _decide, _done, self._put_off, most=1, source=self._tasks
        )

    def step(self) -> None:
        """Process what the horizon and the retention floor have passed."""
        if len(self._unreadable) and self._clock.mono() >= self._look_from:
            self._look_from = self._clock.mono() + LOOK_S
            self._recount()
            floor = self._opened.directory.floor
            self._gone = [s for s in self._unreadable if s.is_of_messages and s.last < floor]

    def _tasks(self) -> Iterator[Task]:
        """The next writes."""
        if not (self._owed or len(self._unreadable)) or self._clock.mono() < self._from:
            return
        if self._owed:
            yield partial(self._revive, self._owed[0])
        elif self._unreadable.fresh:
            yield partial(self._note, list(self._unreadable.fresh))
        elif owed := self._dispatched():
            yield partial(self._renote, owed)
        elif self._gone:
            yield partial(self._forget, self._gone)

    def _put_off(self, _: Task, error: Exception) -> None:
        """Retry in a second."""
        log.warning("corrupt range: not noted yet: %s", error)
        self._from = self._clock.mono() + RETRY_S

    def _note(self, fresh: list[CorruptRange], commit: Commit) -> Steps:
        horizon = self._opened.horizon
        for corrupt in fresh:
            if corrupt.owed is None:
                corrupt.owed = max(corrupt.first, Position(horizon.position + 1))
            commit.row(
                Table.META, note_key(corrupt), note_value(corrupt, corrupt.owed, self._clock.wall_ms())
            )
        held = self._in_wheel(fresh)
        yield
        self._unreadable.noted(fresh)
        self._held |= held

    def _in_wheel(self, ranges: list[CorruptRange]) -> dict[CorruptRange, tuple[Position, int]]:
        """Ranges whose beginning the wheel holds without a gap, and up to where. A large message, in the
        wheel without its payload, stays owed with all behind it."""
        wheel = self._wheel
        bare = [(place, item[0]) for place, (item, _) in wheel.items() if item[1] is None]
        held: dict[CorruptRange, tuple[Position, int]] = {}
        for corrupt in ranges:
            first, last, number = corrupt.owed, min(corrupt.last, wheel.loaded), corrupt.home[1]
            assert first is not None, "it has been noted"
            large = [place for place, shard in bare if shard == number and first <= place <= last]
            last = Position(min(large, default=last + 1) - 1)
            if self._opened.horizon.position < first <= last:
                held[corrupt] = last, wheel.given_back
        return held

    def _dispatched(self) -> dict[CorruptRange, Position]:
        """Ranges whose messages in the wheel the horizon has passed, and the first that is still owed."""
        if not self._held:
            return {}
        position = self._opened.horizon.position
        self._held = {s: held for s, held in self._held.items() if held[1] == self._wheel.given_back}
        return {one: Position(last + 1) for one, (last, _) in self._held.items() if last <= position}

    def _renote(self, owed: dict[CorruptRange, Position], commit: Commit) -> Steps:
        for corrupt, place in owed.items():
            commit.row(Table.META, note_key(corrupt), note_value(corrupt, place, self._clock.wall_ms()))
        yield
        for corrupt, place in owed.items():
            corrupt.owed = place
            self._held.pop(corrupt, None)

    def _forget(self, gone: list[CorruptRange], commit: Commit) -> Steps:
        for corrupt in gone:
            commit.row(Table.META, note_key(corrupt), None)
        yield
        self._gone = []
        for corrupt in gone:
            self._unreadable.drop(corrupt)
            self._passed.discard(corrupt)
            self._held.pop(corrupt, None)

    def _recount(self) -> None:
        """Count again: unreadable messages counted as pending only through their shard."""
        opened = self._opened
        position = opened.horizon.position
        passed = {s for s in self._unreadable if s.is_of_messages and s.last <= position} - self._passed
        if passed:
            self._passed |= passed
            opened.recount()

    def _revive(self, note: CorruptRange, commit: Commit) -> Steps:
        start, end = self._bounds(note)
        # All is read before anything is changed: the scan may fail.
        try:
            read, rest = _some(self._opened.store.scan(Table.MESSAGES, start, end))
        except Corrupt:
            yield
            self._owed.pop(0)
            self._unreadable.look_beside(self._opened.store, Table.MESSAGES, note)
            self._unreadable.add(note, is_noted=True)
            return
        for key, value in read:
            try:
                found = self._found(note, keys.place_of(key), value)
                if found is not None:
                    commit.revive(found)
            except Corrupt as error:
                log.error("%s: message skipped: %s", key.hex(), error)
        left = None if rest is None else note_value(note, rest, self._clock.wall_ms())
        commit.row(Table.META, note_key(note), left)
        yield
        log.warning("corrupt range: %d rows readable again, sending them now: %s", len(read), note)
        if rest is not None:
            note.owed = rest
        else:
            self._owed.pop(0)

    def _bounds(self, note: CorruptRange) -> tuple[bytes, bytes]:
        """The keys of what is owed of a note."""
        assert note.owed is not None, "a note says what is owed"
        until = note.scope + keys.place(Position(self._until + 1))
        return note.scope + keys.place(note.owed), min(note.end, until)

    def _found(self, note: CorruptRange, place: Position, value: bytes) -> Found | None:
        """The message, or None if it is gone."""
        _, number = note.home
        piece = self._opened.directory.find(at_of(place))
        shard = piece.shard(number) if piece is not None else None
        if shard is None or shard.prefix != note.scope or is_stub(value):
            return None
        name = id_at(place, number, self._opened.open_batch.node, decode(value).id)
        return Found(name, place, shard, value)


def _decide(commit: Commit, task: Task) -> Steps:
    steps = task(commit)
    next(steps)
    return steps


def _done(_: Task, steps: Steps) -> None:
    next(steps, None)


def _some(scan: Iterator[tuple[bytes, bytes]]) -> tuple[list[tuple[bytes, bytes]], Position | None]:
    """A group's worth of rows, and from where on there may be more."""
    read: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in scan:
        read.append((key, value))
        size += len(value)
        if len(read) == STEP_ROWS or size >= GROUP_BYTES:
            return read, Position(keys.place_of(key) + 1)
    return read, None
