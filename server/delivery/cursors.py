"""Cursors of sessions and groups, written with every batch of the writer, so with each group commit.

Cursors are no requests that the writer could refuse: the writer asks for them (`write`) when it seals a
batch.

    ended    names of ended sessions: their rows go with the next batch
    asked    sessions that somebody waits for (SUBACK, PUBREL, a delivery at the write barrier): one row each
             in a batch, however many ask
    dirty    the rest, in turns: each once before any twice, within a budget for each batch and a tenth of the
             time

A session's cursor is written at most every 100 ms, and once more when its connection ends. A tailing session
to which nothing was sent is not written: an older read position only means a few rows to pass over after a
start. What a group has given to its members is written soon, if nothing else asks for a batch (`soon`). At
shutdown what the store lacks is written, read positions too, in batches of about 30 ms.

A session with 1,000 subscriptions has a row of 50 KB, one with 1,024 deliveries in flight a cursor of 20 KB,
which a few bytes from the client would write again. So each session pays for its writes, 4 MiB a second after
the first 2 MiB, and waits when it owes.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Final

from shards import keys
from shards.commit import Commit
from shards.deliveries import end
from shards.delivery_rows import DeliveryRow, Name, at
from shards.ended import DONE, count
from shards.errors import Corrupt, StoreFailed
from shards.kept import Story, is_kept, keep
from shards.keys import GROUP_PREFIX
from shards.order import note_order, write_changes
from shards.store import Table
from timeline.delivery_rows import Keep, keeps
from timeline.horizon import Horizon
from timeline.key_order import KeyOrder
from timeline.position import Position

from ..engine.clock import Clock
from ..engine.commit_hook import CommitHook, Done, ignore
from ..engine.writer import Busy, Writer
from .done_counts import DoneCounts
from .place import Place
from .session_rows import cursor_row, group_row, session_row
from .shared import Group
from .subscriber import Subscriber
from .write_barrier import Persisted

log = logging.getLogger(__name__)

CURSOR_INTERVAL_S = 0.1
IDLE_CURSOR_S = 60.0
OWN_BYTES_PER_S = 4 << 20
"""Sustained write rate of one session's cursors."""
BURST_S = 0.5
"""Maximum debt of a session, in seconds of that rate."""
ROW_COST = 16
"""Cost of a row, without its flights and subscriptions."""
ORDER_BYTES = 70
"""Approximate bytes in the log of a row of a group that orders."""
SUBSCRIPTION_COST = 6
"""Cost of a subscription. The unit is the cost of a flight, 0.1 us."""
STORY_COST = 25
"""Cost of the story of a delivery that is done."""
LAZY_COST = 8_192
REQUESTED_COST = 32_768
"""Maximum cost of a batch: of the cursors that no caller waits for (about 1 ms), and of all (4 ms)."""
LAST_COST = 262_144
"""Both maxima at shutdown."""
LAZY_PAUSE = 9
"""Pause after writing cursors that no caller waits for, in multiples of the time that the write took."""
LAZY_PAUSE_MAX_S = 0.2
"""Maximum of this pause: on a busy machine other work has already had most of the measured time."""
NEVER = float("inf")
NOTHING: Final[dict[Position, Story]] = {}


class Cursors(CommitHook):
    """Collects what sessions and groups have to store, and writes it with each batch."""

    def __init__(
        self,
        sessions: Mapping[str, Subscriber],
        groups: Mapping[str, Group],
        horizon: Horizon,
        clock: Clock,
        writer: Writer,
    ) -> None:
        """`sessions`, `groups`: all of them, by client id and by text; their owners go on changing them."""
        self._sessions = sessions
        self._groups = groups
        self._horizon = horizon
        self._clock = clock
        self._writer = writer
        self.dirty: set[Place] = set()
        """Sessions whose cursor on disk is behind (dirty)."""
        self._ended: dict[str, bool] = {}
        """Names whose rows must go; True: they are gone when the open batches are durable. At most as many as
        there were sessions."""
        self._heirs: dict[str, list[Subscriber]] = {}
        """Sessions that took over messages in flight, by the former owner: their cursors share its batch."""
        self._requests: dict[Place, list[Persisted]] = {}
        """Callbacks that wait for a place's cursor to be durable, in the order of the requests."""
        self._now: dict[Place, None] = {}
        """Places whose cursors must be in the open batch."""
        self._wanted_at = NEVER
        """Time by which a waiting session needs a batch, s of monotonic time, ..."""
        self._soon_at = NEVER
        """... and by which the dirty ones do."""
        self._is_soon = False
        """Whether the round was asked for: what it has not written does not wait for another batch."""
        self._is_nudged = False
        """Whether the writer has been asked for a batch."""
        self._round: deque[Place] = deque()
        """Places that were dirty at the start of the round and are not written yet."""
        self._round_at = self._lazy_from = -NEVER
        self._is_last = False
        self._over: list[tuple[Place, list[Position], dict[Position, Story]]] = []
        """Roots of the rows that the open batch deletes, and stories that it has, by their place."""
        self._done_counts = DoneCounts()
        self.crowded_out = 0
        """Stories that had to go for newer ones, since the start."""
        self._ordered: list[KeyOrder] = []
        """Groups that order whose key rows are in the open batch."""
        writer.add_hook(self)

    def recover(self) -> None:
        """After a store failure: mark everything dirty again, in turns. Raises StoreFailed, Corrupt."""
        self._done_counts.recover()
        for subscriber in chain(self._sessions.values(), self._groups.values()):
            self.mark_dirty(subscriber)
            subscriber.cursor.is_entangled = isinstance(subscriber, Subscriber) and bool(subscriber.groups)
            self.dirty.add(subscriber)
        self._round_at = -NEVER

    def finish(self) -> None:
        """At shutdown: write what the store lacks with the next batches, whatever a session owes."""
        self._is_last = True
        horizon = self._horizon.position
        for one in chain(self._sessions.values(), self._groups.values()):
            session = one.session
            is_stored = one.cursor.changes == session.changes and one.cursor.read == session.read_at(horizon)
            if not is_stored and session.is_persistent:
                self.dirty.add(one)
        self._round.clear()

    @property
    def is_behind(self) -> bool:
        """Whether the store lacks something of a session or group."""
        return bool(self.dirty or self._requests)

    def mark_idle(self) -> None:
        """Housekeeping: tailing sessions to which nothing was sent for a while, so that they stay near."""
        mono = self._clock.mono()
        self.dirty.update(
            s
            for s in self._sessions.values()
            if s.session.tailing and mono - s.cursor.written_at > IDLE_CURSOR_S
        )

    def persist(self, subscriber: Place, done: Persisted) -> None:
        """Persist a session in its state at that time. Later requests share the batch."""
        self._requests.setdefault(subscriber, []).append(done)
        self._want(subscriber.cursor.even_at - BURST_S)

    def soon(self) -> None:
        """Write what is dirty in the next round."""
        self._soon_at = max(self._round_at + CURSOR_INTERVAL_S, self._lazy_from)
        self._want(self._soon_at)

    @property
    def failure(self) -> StoreFailed:
        """Why what was requested is not durable."""
        return StoreFailed(str(self._writer.broken or "not durable"))

    def begin(self, subscriber: Subscriber, done: Persisted, *, is_new: bool) -> None:
        """The same for a client that connects, behind all that was asked for before. `is_new`: nothing is
        left of an earlier session."""
        self.mark_dirty(subscriber)
        if is_new:
            subscriber.cursor.is_stored = False
        is_decided = False

        def decide(_: Commit) -> None:
            nonlocal is_decided
            is_decided = True
            if is_new:
                self._ended[subscriber.session.client_id] = False
            self._requests.setdefault(subscriber, []).append(done)

        def answered(answer: object) -> None:
            # A group that is given up is never written: nobody else says so to those who wait for its rows.
            if not is_decided or (isinstance(answer, Exception) and self._withdraw(subscriber, done)):
                done(-1)

        try:
            self._writer.submit(decide, answered)
        except (Busy, StoreFailed):
            done(-1)

    def _withdraw(self, subscriber: Place, done: Persisted) -> bool:
        """Remove `done` from the waiting; whether it was there."""
        waiting = self._requests.get(subscriber, [])
        if done not in waiting:
            return False
        waiting.remove(done)
        if not waiting:
            del self._requests[subscriber]
        return True

    def mark_dirty(self, subscriber: Place) -> None:
        """The row has changed beside its subscriptions (its will, say): write it with the next cursor."""
        subscriber.cursor.changes = -1

    def restored(self, subscriber: Place, *, is_whole: bool) -> None:
        """It has been made from its rows. Unless these say all (`is_whole`) they are written again."""
        subscriber.cursor.is_stored, subscriber.cursor.read = True, subscriber.session.read
        if is_whole:
            subscriber.cursor.changes = subscriber.session.changes
        else:
            self.dirty.add(subscriber)

    def store(self, _: Commit, subscriber: Place) -> None:
        """In the writer: write the cursor, and changed subscriptions, with this batch, unless it is not
        stored or has ended."""
        self._now[subscriber] = None

    def store_done(self, commit: Commit, group: Group) -> None:
        """In the writer: the same, and one more is done, which is counted in RAM when that is durable."""
        self.store(commit, group)
        count(commit.open_batch, group.whose, group.names, DONE)

    def store_next(self, subscriber: Place) -> None:
        """Outside the writer: the same with the next batch, and with each until one is durable."""
        self._now[subscriber] = None

    def erase(self, name: str) -> None:
        """Delete the rows of a session or group that is over with the next batch, whenever that can be."""
        self._ended[name] = False
        self._want(-NEVER)

    def drop_group(self, group: Group, heirs: Iterable[Subscriber]) -> None:
        """The group ends, or its rows do. Its messages in flight are its `heirs`' own: their cursors go in
        the same batch, or a kill in between would lose them."""
        self.part(group)
        group.cursor.is_stored = False
        name = group.session.client_id
        self._heirs[name] = [heir for heir in heirs if self._is_to_store(heir)]
        self.erase(name)

    def part(self, group: Group) -> None:
        """A group ends, or its rows do: what it has done is noted."""
        self.dirty.discard(group)
        self._done_counts.part(group)

    def forget(self, subscriber: Subscriber) -> None:
        """Delete the rows of an ended session with the next batch."""
        self.dirty.discard(subscriber)
        if subscriber.cursor.is_stored:
            self.erase(subscriber.session.client_id)

    def is_stored(self, name: str) -> bool:
        """Whether a restart could find a session of that client."""
        known = self._sessions.get(name)
        return name in self._ended or (known is not None and known.cursor.is_stored)

    def asks(self, subscriber: Place) -> int:
        """Number of requests that wait for the session to be durable."""
        return len(self._requests.get(subscriber, ()))

    # -- when

    def step(self) -> None:
        """Ask for a batch if a waiting session may be written now."""
        if self._is_nudged or self._clock.mono() < self._wanted_at:
            return
        try:
            self._writer.submit(ignore, self._nudged)
        except Busy:
            return  # the next round asks again
        except StoreFailed:
            self._refuse_requests()
            return
        self._is_nudged = True

    def wait_s(self) -> float:
        """Seconds until `step` has something to do."""
        return NEVER if self._is_nudged else max(0.001, self._wanted_at - self._clock.mono())

    def _want(self, at_s: float) -> None:
        self._wanted_at = min(self._wanted_at, at_s)
        self.step()

    def _nudged(self, answer: object) -> None:
        if isinstance(answer, Exception):
            self._is_nudged = False
            self._refuse_requests()

    def _refuse_requests(self) -> None:
        """The store takes no writes: fail the waiting. The first batch it takes deletes ended sessions."""
        requests, self._requests, self._wanted_at = self._requests, {}, NEVER
        for waiting in requests.values():
            for done in waiting:
                done(-1)

    # -- rows

    def write(self, commit: Commit) -> Done:
        """Write what is to be stored into the batch that is about to be sealed. Changed subscriptions go with
        the cursors: a read position says nothing without them."""
        self._is_nudged = False
        for place, _, unsealed in self._over:
            place.rows.failed(unsealed)
        self._over, self._ordered = [], []
        self._done_counts.begin(commit)
        gone, heirs, cost = self._erase_ended(commit)
        now = dict(self._now)
        cost, answers = self._write_requested(commit, heirs, cost)
        self._write_dirty(commit, cost)
        soon_at = -NEVER if self._is_soon and self._round else self._soon_at
        self._wanted_at = min(self._wanted_at, max(soon_at, self._lazy_from))
        over, ordered, noted = self._over, self._ordered, self._done_counts.sealed()
        self._over = []

        def done(answer: object) -> None:
            is_durable = not isinstance(answer, Exception)
            for order in ordered:
                if is_durable:
                    order.unwritten.wrote()
                else:
                    order.unwritten.lost()
            if not is_durable:
                self._now.update(now)
                self._done_counts.failed(noted)
            for subscriber, roots, told in over:
                if is_durable:
                    subscriber.rows.forget(roots)
                    subscriber.rows.wrote(told)
                else:
                    subscriber.rows.failed(told)
            for name in gone:
                if not is_durable:
                    self._ended[name] = False
                elif self._ended.get(name):
                    del self._ended[name]
                    self._heirs.pop(name, None)
            for persisted, waiting in answers:
                persisted(waiting if is_durable else -1)

        return done

    def _erase_ended(self, commit: Commit) -> tuple[list[str], set[Place], int]:
        """Which names are erased, whose cursors went with them, once each, and what these cost."""
        mono = self._clock.mono()
        heirs: set[Place] = set()
        cost = 0
        gone = [name for name, is_written in self._ended.items() if not is_written]
        for name in gone:
            self._ended[name] = True
            for owner in self._heirs.get(name, ()):
                if owner in self.dirty and self._is_to_store(owner):
                    # Whatever it costs; who asks for it waits for the answer to an UNSUBSCRIBE that is paced.
                    heirs.add(owner)
                    cost += self._write_cursor(commit, owner, mono)
            commit.row(Table.SESSIONS, name.encode(), None)
            commit.row(Table.CURSORS, name.encode(), None)
            commit.open_batch.clear(Table.RECEIVED, *keys.received_range(name))
            heir = self.named(name)
            if heir is not None:
                self.mark_dirty(heir)
                self.dirty.add(heir)
        return gone, heirs, cost

    def _write_requested(
        self, commit: Commit, written: set[Place], cost: int
    ) -> tuple[int, list[tuple[Persisted, int]]]:
        """Write sessions that somebody waits for, unless they owe. Returns the cost of the batch, and whom to
        call. `written`: in the batch already, for `cost`."""
        mono = self._clock.mono()
        requests, self._requests, self._wanted_at = self._requests, {}, NEVER
        now, self._now = self._now, {}
        for subscriber in now:
            if not self._is_to_store(subscriber):
                self._end_over(commit, subscriber)
            elif subscriber not in requests and subscriber not in written:
                cost += self._write_cursor(commit, subscriber, mono)
        answers: list[tuple[Persisted, int]] = []
        most = LAST_COST if self._is_last else REQUESTED_COST
        for subscriber, waiting in requests.items():
            owes = cost >= most or (subscriber.cursor.even_at > mono + BURST_S and not self._is_last)
            if owes and not (subscriber in now or subscriber in written):
                self._requests[subscriber] = waiting
                self._wanted_at = min(self._wanted_at, subscriber.cursor.even_at - BURST_S)
                continue
            if subscriber not in written and self._is_to_store(subscriber):
                cost += self._write_cursor(commit, subscriber, mono)
            barrier = subscriber.barrier if isinstance(subscriber, Subscriber) else None
            held = 0 if barrier is None else len(barrier.waiting)
            answers += [(done, held) for done in waiting]
        return cost, answers

    def _write_dirty(self, commit: Commit, cost: int) -> None:
        """Write dirty sessions that nobody waits for, as many as fit; later batches write the rest."""
        started = self._clock.mono()
        most = LAST_COST if self._is_last else LAZY_COST
        if cost >= most or (started < self._lazy_from and not self._is_last):
            return
        if not self._round and (started >= self._round_at + CURSOR_INTERVAL_S or self._is_last):
            self._round, self._round_at = deque(self.dirty), started
            self._is_soon, self._soon_at = started >= self._soon_at, NEVER
        while self._round and cost < most:
            subscriber = self._round.popleft()
            if subscriber not in self.dirty:
                continue
            if not self._is_to_store(subscriber):
                self._end_over(commit, subscriber)
                self.dirty.discard(subscriber)
            elif self._is_last or subscriber.cursor.even_at <= started + BURST_S:
                try:
                    cost += self._write_cursor(commit, subscriber, started)
                except Exception:
                    log.exception("session %r: cursor cannot be written", subscriber.session.client_id)
                    self.dirty.discard(subscriber)
            elif self._is_soon:
                even_at = max(subscriber.cursor.even_at - BURST_S, self._round_at + CURSOR_INTERVAL_S)
                self._soon_at = min(self._soon_at, even_at)
        ended = self._clock.mono()
        self._lazy_from = ended + min(LAZY_PAUSE * (ended - started), LAZY_PAUSE_MAX_S)

    def _write_cursor(self, commit: Commit, subscriber: Place, mono: float) -> int:
        """Write the cursor, and changed subscriptions; returns the cost.

        A group goes with members that it has sent QoS 2: such a message is behind the group's read position
        and in flight in the member's, and must not be in both or in neither. It also goes with a member that
        joins or leaves, but not with all former members: of 60 members of a thousand groups all would go.
        """
        size = cost = 0
        waiting, unfinished = [subscriber], list[Place]()
        while waiting:
            one = waiting.pop()
            if one is not subscriber and one not in self.dirty:
                continue
            waiting += [other for other in one.bound() if self._go_together(one, other)]
            session = one.session
            key = session.client_id.encode()
            if one.rows.is_any:
                cost += STORY_COST * len(one.rows.ended)
                self._end_over(commit, one)
            else:
                self._done_counts.write(commit, one, NOTHING)
            if one.cursor.changes != session.changes:
                one.cursor.is_stored = True
                one.cursor.changes = session.changes
                assert isinstance(one, (Group, Subscriber)), "a place is one of the two"
                row = group_row(one) if isinstance(one, Group) else session_row(one)
                commit.row(Table.SESSIONS, key, row)
                if session.order.is_on:
                    note_order(commit, one.whose)
                size += len(row)
                cost += ROW_COST + SUBSCRIPTION_COST * len(session.subscriptions)
            if session.order.is_on:
                count = write_changes(commit, one.whose, session.order.take())
                size += count * ORDER_BYTES
                cost += count * ROW_COST
                self._ordered.append(session.order)
            row = cursor_row(one, self._horizon.position)
            commit.row(Table.CURSORS, key, row)
            size += len(row)
            cost += ROW_COST + len(session.flights) + len(session.finished)
            one.cursor.written_at, one.cursor.read = mono, session.read_at(self._horizon.position)
            one.cursor.is_entangled = one.cursor.has_given_back = False
            self.dirty.discard(one)
            if session.order.past:
                unfinished.append(one)
        if unfinished and not self._is_last:
            self.dirty.update(unfinished)
            self._want(mono + LAZY_PAUSE_MAX_S)
        subscriber.cursor.even_at = max(subscriber.cursor.even_at, mono) + size / OWN_BYTES_PER_S
        return cost

    def _end_over(self, commit: Commit, one: Place) -> None:
        """Its rows that have no effect go with its cursor, and the stories of what is done come. Those of an
        ended place are a burial's."""
        if self.named(one.session.client_id) is not one:
            return
        open_ones = one.rows.told
        over, told, group = one.over(), one.rows.untold(), commit.open_batch
        unsure = (told.keys() & one.rows.unsure) - one.rows.over
        there = {root for root in unsure if is_kept(group, Name(one.whose, root))}.union(open_ones)
        before = dict[Position, DeliveryRow]()
        for root in (told.keys() & over) - one.rows.over - there:
            with suppress(Corrupt):
                row = at(group, Name(one.whose, root))
                if row is not None:
                    before[root] = row
        for root in over:
            if root not in there:
                end(commit, Name(one.whose, root))
        stories = {root: story for root, story in told.items() if root not in there}
        kept = one.keeping.keep if isinstance(one, Group) else Keep.NONE
        for root, row in before.items():
            story = told[root]
            counts = row.attempts + story.attempts, row.counted + story.counted
            if story.result is None and not keeps(kept, failed=counts[0] > 1):
                del stories[root]  # its row was of what was put off
            else:
                stories[root] = story._replace(
                    attempts=counts[0], counted=counts[1], tries=[*row.tries, *story.tries]
                )
        if stories:
            self.crowded_out += keep(commit, one.whose, stories, one.keeper)
        self._done_counts.write(commit, one, stories)
        if over or told:
            one.rows.tell(told)
            self._over.append((one, over, told))

    def _go_together(self, one: Place, other: Place) -> bool:
        is_bound = one.cursor.is_entangled or one.cursor.has_given_back or other.cursor.is_entangled
        return is_bound and other in self.dirty and other.session.is_persistent

    def _is_to_store(self, subscriber: Place) -> bool:
        session = subscriber.session
        return session.is_persistent and self.named(session.client_id) is subscriber

    def named(self, name: str) -> Place | None:
        """The session or group with this row name."""
        if name.startswith(GROUP_PREFIX):
            return self._groups.get(name.removeprefix(GROUP_PREFIX))
        return self._sessions.get(name)


def cursor_cost(subscriber: Place) -> int:
    """Cost of the cursor and the row of a place with one filter, such as a group."""
    session = subscriber.session
    return 2 * ROW_COST + SUBSCRIPTION_COST + len(session.flights) + len(session.finished)
