"""What was withheld goes out when its sender may send it again, or is given up.

When keys or rules change, two walks begin. They go in steps; the writer decides by the rights of that moment:

    messages      what dispatch has given to nobody (shards/withheld.py) is moved to now, under its id, and
                  dispatched like any other. Until it is moved, nobody gets it from its old row
    deliveries    what one place alone has still to get is due at once (OWNER_BACK)

A third walk looks each LOOK_S for messages that have been withheld for longer than `slices.kept_behind`. They
become dead letters of the groups and endpoints that would have got them, while there is room. What sessions
or nobody would have got is dropped and counted. (Places give up their deliveries themselves, beside.py.)
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from shards.commit import Commit
from shards.delivery_rows import Name, at, new_row, size_of, withheld
from shards.errors import Corrupt, StoreFailed
from shards.fate import is_over
from shards.read import Found
from shards.record import decode, is_stub
from shards.recover import Opened
from timeline.delivery_rows import Case, Effect, Event
from timeline.position import START, MessageId, Position, at_of, before

from ...engine.clock import Clock
from ...engine.commit_hook import CommitHook, Done
from ...engine.errand import RETRY_S, Errand
from ...engine.writer import GROUP_BYTES, Writer
from ..burials import KEPT_TOO_LONG, Burials
from ..membership import Membership
from ..ready import Ready
from ..retries import Retries
from ..router import Router
from ..unread import TURN_OWNERS, Unread
from .burying import UNREAD
from .dead_letter_queue import DeadLetterQueue
from .lives import Lives

log = logging.getLogger(__name__)

STEP_ROWS = 200
"""Messages or deliveries changed in one request, ..."""
LOOK_ROWS = 1_000
"""... and rows that are looked at: some 5 ms each."""
LOOK_S = 60.0


class Step(NamedTuple):
    """`rest`: where the walk goes on; None: it has ended. `dropped`: given up without a dead letter."""

    rest: Position | None
    changed: int
    dropped: int


Act = Callable[[Commit, Position, Any], int]
"""In the writer: what is done with a row. Returns the cost; 0: nothing has changed."""
Walk = Callable[[Position], tuple[Iterable[tuple[Position, Any]], Act]]
"""Rows from a position on, and what is done with each."""


class Releasing(CommitHook):
    """The walks, and the notes of dispatch on their way to the store."""

    def __init__(
        self,
        opened: Opened,
        lives: Lives,
        retries: Retries,
        groups: Membership,
        router: Router,
        burials: Burials,
        dead_letter_queue: DeadLetterQueue,
        unread: Unread,
        ready: Ready,
        writer: Writer,
        clock: Clock,
    ) -> None:
        self._store = opened.store
        self._noted = opened.withheld
        self._lives = lives
        self._retries = retries
        self._groups = groups
        self._router = router
        self._burials = burials
        self._dead_letter_queue = dead_letter_queue
        self._unread = unread
        self._owners = unread.owners
        self._ready = ready
        self._clock = clock
        self._look_at = self._go_on_at = 0.0
        self._walks: dict[Walk, Position] = {}
        """Those under way, and where they go on."""
        self._dropped, self._upto = 0, START
        """By the step that is decided; and before what nothing is withheld any longer."""
        self._begun: set[Walk] = set()
        """Those that have begun again since their last step was decided."""
        self.errand: Errand[Walk, Step] = Errand(
            writer, clock, self._decide, self._stepped, self._failed, most=1, source=self._walking
        )
        writer.add_hook(self)
        self.review()

    def review(self) -> None:
        """The files say something else now."""
        self._begin(self._release_messages, self._release_deliveries)

    def step(self) -> None:
        """Look for what is too old, and wake who stands before what could not be withheld."""
        if self._clock.mono() >= self._look_at:
            self._look_at = self._clock.mono() + LOOK_S
            self._begin(self._give_up_old)

    def give_up(self, upto: Position) -> None:
        """The disk is nearly full: nothing before that position waits."""
        self._upto = upto
        self._begin(self._give_up_old)

    def _begin(self, *walks: Walk) -> None:
        for walk in walks:
            if walk == self._release_deliveries or self._noted.count:
                self._walks[walk] = START
                self._begun.add(walk)
        blocked, self._unread.blocked = self._unread.blocked, set()
        for place in blocked:
            self._ready.wake(place)

    # -- notes

    def write(self, commit: Commit) -> Done | None:
        notes = self._noted.write(commit.open_batch)
        return partial(self._noted.written, notes) if notes else None

    def recover(self) -> None:
        self._noted.recover()
        self.review()

    # -- walks

    def _walking(self) -> Iterator[Walk]:
        if self._clock.mono() >= self._go_on_at:
            yield from list(self._walks)[:1]

    def _decide(self, commit: Commit, walk: Walk) -> Step:
        self._begun.discard(walk)
        self._owners.take_cost()
        self._dropped = changed = spent = 0
        rows, act = walk(self._walks[walk])
        for looked, (place, what) in enumerate(rows, 1):
            cost = act(commit, place, what)
            changed, spent = changed + (cost > 0), spent + cost
            is_long = looked >= LOOK_ROWS or spent >= STEP_ROWS or self._owners.cost >= TURN_OWNERS
            if is_long or commit.open_batch.size >= GROUP_BYTES:
                return Step(Position(place + 1), changed, self._dropped)
        return Step(None, changed, self._dropped)

    def _stepped(self, walk: Walk, step: Step) -> None:
        if step.changed:
            what = "given up" if walk == self._give_up_old else "released"
            log.info("withheld messages: %d %s", step.changed, what)
            self._burials.dropped[KEPT_TOO_LONG] += step.dropped
        if walk not in self._begun:
            del self._walks[walk]
            self._walks.update({} if step.rest is None else {walk: step.rest})

    def _failed(self, _: Walk, error: Exception) -> None:
        if not isinstance(error, StoreFailed):
            log.warning("withheld messages: release postponed: %s", error)
        self._go_on_at = self._clock.mono() + RETRY_S

    def _release_messages(self, start: Position) -> tuple[Iterable[tuple[Position, MessageId]], Act]:
        return self._noted.rows(start), self._move

    def _release_deliveries(self, start: Position) -> tuple[Iterable[tuple[Position, Name | None]], Act]:
        return withheld(self._store, start), self._release

    def _give_up_old(self, start: Position) -> tuple[Iterable[tuple[Position, MessageId]], Act]:
        oldest = before(max(0, self._clock.wall_ms() - self._unread.kept_ms))
        return self._noted.rows(start, max(self._upto, oldest)), self._give_up

    def _move(self, commit: Commit, place: Position, message: MessageId) -> int:
        found = self._found(commit, place, message)
        if found is None or self._owners.why_not(decode(found.value)):
            return 0
        commit.revive(found)
        return 1

    def _found(self, commit: Commit, place: Position, message: MessageId) -> Found | None:
        """The message of a row; None: it is elsewhere by now, or cannot be read."""
        with suppress(Corrupt):  # the store logs it
            found = commit.find(message)
            if found is not None and found.position == place and not is_stub(found.value):
                decode(found.value)
                return found
            self._noted.end(commit.open_batch, place)
        return None

    def _release(self, commit: Commit, _: Position, name: Name | None) -> int:
        """Let a delivery wait for its place, unless its sender may not send it, or its place has ended."""
        row = None if name is None else at(commit.open_batch, name)
        place = None if row is None else self._groups.place_of(row)
        row = None if row is None or place is None else self._retries.waiting_in(commit, place, row.root)
        with suppress(Corrupt):  # it is looked at again when it is given up
            if row is not None and row.is_withheld and not self._owners.why_not(decode(row.record)):
                return int(self._lives.of_row(commit, row, Event.OWNER_BACK, Case(START), place))
        return 0

    def _give_up(self, commit: Commit, place: Position, message: MessageId) -> int:
        """A dead letter of each group and endpoint that would have got it."""
        found = self._found(commit, place, message)
        if found is None:  # what cannot be read holds its slice no longer either
            self._noted.end(commit.open_batch, place)
            return 0
        record, wall_ms = decode(found.value), commit.open_batch.wall_ms
        why = self._owners.why_not(record)
        if not why:
            return 0
        self._noted.end(commit.open_batch, place)
        posted = self._router.posted(record.deliver_to, record.owner, place)
        targets = (self._router.route(record.topic) | posted).items()
        theirs = [one for one, by in targets if any(its.since < place for its in by)]
        if record.drop_late or is_over(record.due_ms or at_of(place), record.expires_ms, wall_ms):
            theirs = []  # it was over
        self._dropped += sum(not one.is_group for one in theirs) if theirs else 1
        for one in theirs:
            if one.is_group:
                row = new_row(one.whose, one.names, place, found.id, found.address[1], record)
                count, left = self._dead_letter_queue.half_of_room(commit)
                is_dead, reason = count > 0 and size_of(row) <= left, f"{KEPT_TOO_LONG}: {why}"
                case = Case(START, reason=reason, is_dead=is_dead, keeper=one.keeper)
                fate = self._lives.give_up(commit, row, Event.SLICE_GOES, case, UNREAD)
                self._dropped += Effect.COUNT_DROPPED in fate.effects
        return 1 + len(theirs)
