"""Messages of an owner that does not exist: they wait, and go out when the owner is there again.

A keys file may lack a name by mistake: an older copy of it on the node that takes the lead, say. What such an
owner has sent is not given out, and must not be lost either. So each owner that is absent has a *note*: in
which spans dispatch has passed its messages without giving them to anybody. A span begins with the first of
them, and ends when the owner is there again: later messages are given out, and must not go out again with
the release. The note is stored with the horizon.

    dispatch    passes the message, and notes it if it is the first
    replay      a session or group that is behind stands still before a message that others have had already:
                only this place still needs it. What is noted it passes over
    release     the owner is there: what is noted is moved to now in steps, as new messages under their ids.
                Until it is moved, no place that is behind gets it from its old row
    give up     what is older than `slices.kept_behind` is withheld for good; so is all of it if the keys file
                has the name with a `revoked` line

    meta    "awaited/" · owner, UTF-8  ->  first and last position of each span (12 each), without the last
                                           one while the owner is absent
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from shards import keys
from shards.commit import Commit
from shards.errors import Corrupt, StoreFailed
from shards.read import Found
from shards.record import decode, id_at, is_stub, owner_of
from shards.recover import Opened
from shards.store import Table
from timeline.position import END, START, Position, at_of, before

from ..engine.clock import Clock
from ..engine.commit_hook import CommitHook, Done
from ..engine.errand import RETRY_S, Errand
from ..engine.writer import Writer
from ..observe.logs import by, clean
from .message import Message
from .owners import Owners
from .place import Place
from .ready import Ready

log = logging.getLogger(__name__)

NOTE = b"awaited/"
NOTE_END = b"awaited0"
STEP_ROWS = 200
"""Messages moved in one request, ..."""
LOOK_ROWS = 2_000
"""... and rows that are looked at: some 5 ms each."""
LOOK_S = 60.0


SPANS_MAX = 16
"""Maximum spans of an owner that comes and goes. Beyond it the last span grows: a message may be delivered
twice, but none is lost."""


@dataclass(slots=True, eq=False)
class Note:
    """Withheld messages of an owner."""

    owner: bytes
    bounds: list[Position]
    """First and last of each span."""
    is_stored: bool = False

    @property
    def first(self) -> Position:
        return self.bounds[0]

    @property
    def is_open(self) -> bool:
        """Whether the last span goes on."""
        return len(self.bounds) % 2 == 1

    def turn(self, position: Position) -> None:
        """A span begins there, or the open one ends."""
        if len(self.bounds) == 2 * SPANS_MAX:
            self.bounds.pop()
        else:
            self.bounds.append(position)
        self.is_stored = False

    def drop(self, before: Position) -> None:
        """Nothing before it waits any longer."""
        bounds = self.bounds
        while len(bounds) > 1 and bounds[1] < before:
            del bounds[:2]
        if bounds and bounds[0] < before:
            bounds[0] = before
        self.is_stored = False

    def has(self, position: Position) -> bool:
        """Whether a message there was given to nobody."""
        bounds = self.bounds
        return bisect_right(bounds, position) % 2 == 1 or position in bounds[1::2]


class Awaited(CommitHook):
    """Notes of absent owners; usually there are none."""

    def __init__(
        self, opened: Opened, owners: Owners, ready: Ready, writer: Writer, clock: Clock, *, kept_ms: int
    ) -> None:
        """`kept_ms`: how long a message waits at most. Raises StoreFailed, Corrupt."""
        self._opened = opened
        self.owners = owners
        self._ready = ready
        self._clock = clock
        self._kept_ms = kept_ms
        self._gone: set[bytes] = set()
        """Owners whose stored notes must go."""
        self._blocked: set[Place] = set()
        """Places that stand still."""
        self._look_at = self._release_from = 0.0
        self._notes = {owner: Note(owner, bounds, is_stored=True) for owner, bounds in self._stored().items()}
        self.errand: Errand[Note, Position] = Errand(
            writer, clock, self._release, self._released, self._not_released, most=1, source=self._releasing
        )
        writer.add_hook(self)
        self.review()

    def _stored(self) -> dict[bytes, list[Position]]:
        """The spans of each owner that has a note."""
        rows = self._opened.store.scan(Table.META, NOTE, NOTE_END)
        return {key.removeprefix(NOTE): keys.places_of(value) for key, value in rows}

    @property
    def floor(self) -> Position:
        """Nothing before it waits."""
        return min((note.first for note in self._notes.values()), default=END)

    # -- what comes

    def note(self, message: Message) -> bool:
        """Dispatch passes a message that its owner may not send: whether it waits."""
        owner = message.sender[0]
        if not self.owners.is_absent(owner):
            return False
        note = self._notes.get(owner)
        if note is None:
            self._notes[owner] = Note(owner, [message.position])
            self._gone.discard(owner)
        elif not note.is_open:
            note.turn(message.position)
        return True

    def blocks(self, subscriber: Place, message: Message) -> bool:
        """Whether a place that is behind stands still before a message that its owner may not send."""
        if (
            not subscriber.session.is_persistent
            or not self.waits(message)
            or self.keeps(message.record.owner, message.position)
        ):
            return False
        self._blocked.add(subscriber)
        return True

    def keeps(self, owner: bytes, place: Position) -> bool:
        """Whether a message that dispatch has passed there waits for its owner."""
        note = self._notes.get(owner)
        return note is not None and note.has(place)

    def waits(self, message: Message) -> bool:
        """Whether the message's owner is absent, and the message not too old to wait."""
        is_old = at_of(message.position) < self._oldest_ms
        return not is_old and self.owners.is_absent(message.record.owner)

    # -- the owner is there again, or never

    def review(self) -> None:
        """The keys file has changed."""
        position = self._opened.horizon.position
        self.owners.held = {}
        for owner, note in list(self._notes.items()):
            if self.owners.is_absent(owner):
                continue
            if self.owners.is_revoked(owner):
                self._forget(note, "the key was revoked")
                continue
            if note.is_open:
                note.turn(position)
            self.owners.held[owner] = note.has
        self._wake()

    def step(self) -> None:
        """Give up what is too old."""
        if self._clock.mono() < self._look_at:
            return
        self._look_at = self._clock.mono() + LOOK_S
        oldest = before(max(0, self._oldest_ms))
        for note in list(self._notes.values()):
            if note.first < oldest and note.owner not in self.owners.held:
                name = clean(note.owner)
                log.warning("messages given up: key %s has not come back", name, extra=by(name))
                note.drop(oldest)
                if not note.bounds or oldest > self._opened.horizon.position:
                    self._forget(note, "they are too old")
        self._wake()

    @property
    def _oldest_ms(self) -> int:
        return self._clock.wall_ms() - self._kept_ms

    def _wake(self) -> None:
        blocked, self._blocked = self._blocked, set()
        for subscriber in blocked:
            self._ready.wake(subscriber)

    def _forget(self, note: Note, why: str) -> None:
        name = clean(note.owner)
        log.warning("messages of key %s wait no longer: %s", name, why, extra=by(name))
        del self._notes[note.owner]
        self._gone.add(note.owner)

    # -- rows

    def write(self, commit: Commit) -> Done | None:
        fresh = [note for note in self._notes.values() if not note.is_stored]
        for note in fresh:
            commit.row(Table.META, NOTE + note.owner, b"".join(map(keys.place, note.bounds)))
            note.is_stored = True
        for owner in self._gone:
            commit.row(Table.META, NOTE + owner, None)
        self._gone = set()
        return None

    def recover(self) -> None:
        """After a failed batch: write all notes again."""
        self._gone |= self._stored().keys() - self._notes.keys()
        for note in self._notes.values():
            note.is_stored = False
        self.review()

    # -- release

    def _releasing(self) -> Iterator[Note]:
        if self._notes and self._clock.mono() >= self._release_from:
            yield from [self._notes[owner] for owner in islice(self.owners.held, 1)]

    def _release(self, commit: Commit, note: Note) -> Position:
        """In the writer: move a stretch of what waits to now. Where the rest begins."""
        if self._notes.get(note.owner) is not note or note.owner not in self.owners.held:
            return START
        # All is read before anything is changed: reading may fail.
        found, rest = self._some(note, note.bounds[1])
        for one in found:
            commit.revive(one, was_passed=True)
        return rest

    def _some(self, note: Note, upto: Position) -> tuple[list[Found], Position]:
        """Some of what waits, and where the rest begins."""
        found: list[Found] = []
        rows = self._opened.reader.read(note.first, Position(upto + 1))
        for looked, (place, number, value) in enumerate(rows, 1):
            if owner_of(value) == note.owner and not is_stub(value):
                one = self._found(place, number, value)
                if one is not None:
                    found.append(one)
            if looked == LOOK_ROWS or len(found) == STEP_ROWS:
                return found, Position(place + 1)
        return found, Position(upto + 1)

    def _released(self, note: Note, rest: Position) -> None:
        """It is durable: until then a note is as if it had not begun."""
        if self._notes.get(note.owner) is not note:
            return
        note.drop(rest)
        if not note.bounds:
            log.info("messages of key %s have been released", clean(note.owner))
            del self._notes[note.owner]
            self._gone.add(note.owner)
            self.owners.held.pop(note.owner, None)

    def _not_released(self, note: Note, error: Exception) -> None:
        if not isinstance(error, StoreFailed):
            log.warning("messages of key %s: release postponed: %s", clean(note.owner), error)
        self._release_from = self._clock.mono() + RETRY_S

    def _found(self, place: Position, number: int, value: bytes) -> Found | None:
        try:
            piece = self._opened.directory.find(at_of(place))
            shard = None if piece is None else piece.shard(number)
            if shard is None:
                return None
            node = self._opened.open_batch.node
            return Found(id_at(place, number, node, decode(value).id), place, shard, value)
        except Corrupt as error:
            log.error("%024x: message skipped: %s", place, error)
            return None
