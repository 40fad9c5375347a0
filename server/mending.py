"""What the store cannot read any more: noted, kept out of the counts, dispatched late when it comes back.

A reader that meets an unreadable stretch of messages goes round it (shards/unreadable.py). Here is what
has to be written about it, a step in each round:

    note      the stretch goes into the table `meta` with the first position that is owed: what lies behind
              the horizon has been dispatched. The loader stops before the stretch until that is durable
    recount   when the horizon has passed it, what is pending is counted again
    forget    when its slice has been dropped, so is the note
    revive    after a start: a noted stretch that can be read again. Its messages that were owed are moved to
              now, 1,000 to a group; whoever reads on gets them late, and once

A message that dispatch met by itself, in the wheel without its payload, is noted a moment after the horizon
has passed it: a kill in between leaves it to the log alone.
"""

import logging
from itertools import islice

from shards import keys
from shards.commit import Commit
from shards.errors import Corrupt, StoreFailed
from shards.read import Found
from shards.record import decode, is_stub
from shards.recover import Opened, count_pending
from shards.store import Table
from shards.unreadable import Stretch, note_key, note_value
from timeline.position import MessageId, Position, at_of, message_id

from .clock import Clock
from .writer import Busy, Decide, Done, Writer

log = logging.getLogger(__name__)

STEP_ROWS = 1_000
LOOK_S = 1.0


class Mending:
    """One step at a time; nothing to do is the usual case."""

    def __init__(self, opened: Opened, writer: Writer, clock: Clock) -> None:
        self._opened = opened
        self._writer = writer
        self._clock = clock
        self._unreadable = opened.reader.unreadable
        self._owed = opened.owed
        self._until = opened.horizon.position
        """What this start may find that is owed: it dispatches the rest itself."""
        self._passed: set[Stretch] = set()
        self._is_asked = False
        self._is_put_off = False
        self._from = 0.0

    @property
    def is_settled(self) -> bool:
        """Nothing is owed that can be read, and no stretch waits for its note."""
        return self._is_put_off or not (self._owed or self._unreadable.fresh)

    def step(self) -> None:
        """Ask the writer for what has to be written next."""
        if not (self._owed or len(self._unreadable)) or self._is_asked or self._writer.broken is not None:
            return
        if self._clock.mono() < self._from:
            return
        if self._owed:
            self._revive(self._owed[0])
        elif self._unreadable.fresh:
            self._note(list(self._unreadable.fresh))
        else:
            self._from = self._clock.mono() + LOOK_S
            self._recount()
            self._forget()

    def _note(self, fresh: list[Stretch]) -> None:
        horizon = self._opened.horizon

        def decide(commit: Commit) -> None:
            for stretch in fresh:
                if stretch.owed is None:
                    stretch.owed = max(stretch.first, Position(horizon.position + 1))
                commit.row(
                    Table.META, note_key(stretch), note_value(stretch, stretch.owed, self._clock.wall_ms())
                )

        def done(answer: object) -> None:
            if self._is_done(answer):
                self._unreadable.noted(fresh)

        self._ask(decide, done)

    def _forget(self) -> None:
        floor = self._opened.directory.floor
        gone = [stretch for stretch in self._unreadable if stretch.is_of_messages and stretch.last < floor]
        if not gone:
            return

        def decide(commit: Commit) -> None:
            for stretch in gone:
                commit.row(Table.META, note_key(stretch), None)

        def done(answer: object) -> None:
            if self._is_done(answer):
                for stretch in gone:
                    self._unreadable.drop(stretch)
                    self._passed.discard(stretch)

        self._ask(decide, done)

    def _recount(self) -> None:
        """What lies in a stretch was pending as long as only its shard was counted."""
        opened = self._opened
        position = opened.horizon.position
        passed = {s for s in self._unreadable if s.is_of_messages and s.last <= position} - self._passed
        if passed:
            self._passed |= passed
            opened.commit.pending = count_pending(opened.reader, position)

    def _revive(self, note: Stretch) -> None:
        start, end = self._bounds(note)
        rows = 0
        last = b""

        def decide(commit: Commit) -> None:
            nonlocal rows, last
            rows, last = 0, b""
            for key, value in islice(self._opened.store.scan(Table.MESSAGES, start, end), STEP_ROWS):
                rows, last = rows + 1, key
                found = self._found(note, keys.place_of(key), value)
                if found is not None:
                    commit.revive(found)
            left = None
            if rows == STEP_ROWS:
                left = note_value(note, Position(keys.place_of(last) + 1), self._clock.wall_ms())
            commit.row(Table.META, note_key(note), left)

        def done(answer: object) -> None:
            if isinstance(answer, Corrupt):
                self._owed.pop(0)
                self._unreadable.look_beside(self._opened.store, Table.MESSAGES, note)
                self._unreadable.add(note, is_noted=True)
            elif self._is_done(answer):
                log.warning("%d rows can be read again, what is owed goes out now: %s", rows, note)
                if rows == STEP_ROWS:
                    note.owed = Position(keys.place_of(last) + 1)
                else:
                    self._owed.pop(0)

        self._ask(decide, done, cost=STEP_ROWS)

    def _bounds(self, note: Stretch) -> tuple[bytes, bytes]:
        """The keys of what is owed of a note."""
        assert note.owed is not None, "a note says what is owed"
        until = note.scope + keys.place(Position(self._until + 1))
        return note.scope + keys.place(note.owed), min(note.end, until)

    def _found(self, note: Stretch, place: Position, value: bytes) -> Found | None:
        """The message, unless there is none any more."""
        _, number = note.home
        piece = self._opened.directory.find(at_of(place))
        shard = piece.shard(number) if piece is not None else None
        if shard is None or shard.prefix != note.scope or is_stub(value):
            return None
        node = self._opened.commit.node
        return Found(MessageId(decode(value).id or message_id(place, number, node)), place, shard, value)

    def _ask(self, decide: Decide, done: Done, cost: int = 1) -> None:
        self._is_asked = True
        try:
            self._writer.submit(decide, done, cost=cost)
        except (Busy, StoreFailed) as error:
            self._is_done(error)

    def _is_done(self, answer: object) -> bool:
        self._is_asked = False
        self._is_put_off = isinstance(answer, Exception)
        if self._is_put_off:
            log.warning("what cannot be read is not noted yet: %s", answer)
            self._from = self._clock.mono() + LOOK_S
            return False
        return True
