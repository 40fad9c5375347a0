"""Quarantine: corrupt ranges are noted, left out of the counts, and dispatched late when readable again.

A reader that meets an unreadable stretch of messages goes round it (shards/unreadable.py). Here is what
has to be written about it, a step in each round:

    note      the stretch goes into the table `meta` with the first position that is owed: what lies behind
              the horizon has been dispatched. The loader stops before the stretch until that is durable
    renote    the wheel may hold messages of the stretch, read before it rotted: when the horizon has passed
              them they have been dispatched from RAM, and are owed no more
    recount   when the horizon has passed it, what is pending is counted again
    forget    when its slice has been dropped, so is the note
    revive    after a start: a noted stretch that can be read again. Its messages that were owed are moved to
              now, 1,000 to a group; whoever reads on gets them late, and once

A message that dispatch met by itself, in the wheel without its payload, is noted a moment after the horizon
has passed it: a kill in between leaves it to the log alone.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shards import keys
from shards.commit import Commit
from shards.errors import Corrupt
from shards.read import Found
from shards.record import decode, id_at, is_stub
from shards.recover import Opened
from shards.store import Table
from shards.unreadable import Stretch, note_key, note_value
from timeline.position import Position, at_of
from timeline.wheel import Wheel

from .clock import Clock
from .errand import RETRY_S, Errand
from .writer import GROUP_BYTES, Entry, Writer

log = logging.getLogger(__name__)

STEP_ROWS = 1_000
LOOK_S = 1.0


@dataclass(slots=True, eq=False)
class Task:
    """A pending write. `is_durable`: called once it is durable."""

    decide: Callable[[Commit], None]
    is_durable: Callable[[], None]


class Quarantine:
    """Handles corrupt ranges, one task at a time; usually there are none."""

    def __init__(self, opened: Opened, wheel: Wheel[Entry], writer: Writer, clock: Clock) -> None:
        self._opened = opened
        self._wheel = wheel
        self._clock = clock
        self._unreadable = opened.reader.unreadable
        self._owed = opened.owed
        self._until = opened.horizon.position
        """What this start may find that is owed: it dispatches the rest itself."""
        self._held: dict[Stretch, tuple[Position, int]] = {}
        """Up to where the wheel holds what is owed of a stretch, if it has given nothing back since."""
        self._passed: set[Stretch] = set()
        self._gone: list[Stretch] = []
        """Those whose slices have been dropped."""
        self._from = self._look_from = 0.0
        self.errand: Errand[Task, None] = Errand(
            writer,
            clock,
            lambda commit, task: task.decide(commit),
            lambda task, _: task.is_durable(),
            self._put_off,
            most=1,
            source=self._tasks,
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
            yield self._revive(self._owed[0])
        elif self._unreadable.fresh:
            yield self._note(list(self._unreadable.fresh))
        elif dispatched := self._dispatched():
            yield self._renote(dispatched)
        elif self._gone:
            yield self._forget(self._gone)

    def _put_off(self, _: Task, error: Exception) -> None:
        """Retry in a second."""
        log.warning("corrupt range: not noted yet: %s", error)
        self._from = self._clock.mono() + RETRY_S

    def _note(self, fresh: list[Stretch]) -> Task:
        horizon = self._opened.horizon
        held: dict[Stretch, tuple[Position, int]] = {}

        def decide(commit: Commit) -> None:
            for stretch in fresh:
                if stretch.owed is None:
                    stretch.owed = max(stretch.first, Position(horizon.position + 1))
                commit.row(
                    Table.META, note_key(stretch), note_value(stretch, stretch.owed, self._clock.wall_ms())
                )
            held.update(self._in_wheel(fresh))

        def is_durable() -> None:
            self._unreadable.noted(fresh)
            self._held |= held

        return Task(decide, is_durable)

    def _in_wheel(self, stretches: list[Stretch]) -> dict[Stretch, tuple[Position, int]]:
        """Those of which the wheel holds the beginning, without a gap, and up to where.

        A large message is in the wheel without its payload: that one, and what comes after it, stays owed.
        """
        wheel = self._wheel
        bare = [(place, item[0]) for place, (item, _) in wheel.items() if item[1] is None]
        held: dict[Stretch, tuple[Position, int]] = {}
        for stretch in stretches:
            first, last, number = stretch.owed, min(stretch.last, wheel.loaded), stretch.home[1]
            assert first is not None, "it has been noted"
            large = [place for place, shard in bare if shard == number and first <= place <= last]
            last = Position(min(large, default=last + 1) - 1)
            if self._opened.horizon.position < first <= last:
                held[stretch] = last, wheel.given_back
        return held

    def _dispatched(self) -> list[Stretch]:
        """Those whose messages in the wheel the horizon has passed."""
        if not self._held:
            return []
        position = self._opened.horizon.position
        self._held = {s: held for s, held in self._held.items() if held[1] == self._wheel.given_back}
        return [stretch for stretch, (last, _) in self._held.items() if last <= position]

    def _renote(self, dispatched: list[Stretch]) -> Task:
        owed = {stretch: Position(self._held[stretch][0] + 1) for stretch in dispatched}

        def decide(commit: Commit) -> None:
            for stretch, place in owed.items():
                commit.row(Table.META, note_key(stretch), note_value(stretch, place, self._clock.wall_ms()))

        def is_durable() -> None:
            for stretch, place in owed.items():
                stretch.owed = place
                self._held.pop(stretch, None)

        return Task(decide, is_durable)

    def _forget(self, gone: list[Stretch]) -> Task:
        def decide(commit: Commit) -> None:
            for stretch in gone:
                commit.row(Table.META, note_key(stretch), None)

        def is_durable() -> None:
            self._gone = []
            for stretch in gone:
                self._unreadable.drop(stretch)
                self._passed.discard(stretch)
                self._held.pop(stretch, None)

        return Task(decide, is_durable)

    def _recount(self) -> None:
        """What lies in a stretch was pending as long as only its shard was counted."""
        opened = self._opened
        position = opened.horizon.position
        passed = {s for s in self._unreadable if s.is_of_messages and s.last <= position} - self._passed
        if passed:
            self._passed |= passed
            opened.recount()

    def _revive(self, note: Stretch) -> Task:
        start, end = self._bounds(note)
        rows: int | None = None
        rest: Position | None = None

        def decide(commit: Commit) -> None:
            nonlocal rows, rest
            # All is read before anything is changed: the scan may fail.
            try:
                read, rest = _some(self._opened.store.scan(Table.MESSAGES, start, end))
            except Corrupt:
                return
            rows = len(read)
            for key, value in read:
                try:
                    found = self._found(note, keys.place_of(key), value)
                    if found is not None:
                        commit.revive(found)
                except Corrupt as error:
                    log.error("%s: message skipped: %s", key.hex(), error)
            left = None if rest is None else note_value(note, rest, self._clock.wall_ms())
            commit.row(Table.META, note_key(note), left)

        def is_durable() -> None:
            if rows is None:
                self._owed.pop(0)
                self._unreadable.look_beside(self._opened.store, Table.MESSAGES, note)
                self._unreadable.add(note, is_noted=True)
                return
            log.warning("corrupt range: %d rows readable again, sending them now: %s", rows, note)
            if rest is not None:
                note.owed = rest
            else:
                self._owed.pop(0)

        return Task(decide, is_durable)

    def _bounds(self, note: Stretch) -> tuple[bytes, bytes]:
        """The keys of what is owed of a note."""
        assert note.owed is not None, "a note says what is owed"
        until = note.scope + keys.place(Position(self._until + 1))
        return note.scope + keys.place(note.owed), min(note.end, until)

    def _found(self, note: Stretch, place: Position, value: bytes) -> Found | None:
        """The message, or None if it is gone."""
        _, number = note.home
        piece = self._opened.directory.find(at_of(place))
        shard = piece.shard(number) if piece is not None else None
        if shard is None or shard.prefix != note.scope or is_stub(value):
            return None
        name = id_at(place, number, self._opened.node, decode(value).id)
        return Found(name, place, shard, value)


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
