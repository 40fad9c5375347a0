"""Wills: published when a connection ends without DISCONNECT, at once or on the timeline.

A will was accepted with CONNECT, so it must come out; `limits.pending` does not apply. If the queue is full,
the store broken, or the directory without room, the will is kept and tried again each second. Kept wills are
bounded by `limits.connections` and `limits.queued_bytes`; beyond that a will is lost, logged and counted.

One session has up to four wills: that of the current connection (`will`), that of the connection before until
the client is back for certain (`former_will`), one that comes out now and has no place yet (`unplaced`), and
a delayed one on the timeline (`will_id`). They are written here and nowhere else.

The session's row holds the will until the batch that gives it a place. So a will of a persistent session
comes out after a kill too, and once.

A will is published by the rules of that moment: not if the key may no longer send to the topic, or is not
valid any more. (A delayed one: when it is put on the timeline.) A delayed will lies on the timeline at its
time, as a message without a requested due: its receivers get a plain publish.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shards.commit import Commit
from shards.errors import StoreFailed
from timeline.position import MessageId

from ..engine.clock import Clock
from ..engine.commit_hook import Done
from ..engine.writer import Busy, Decide, Writer
from ..observe.logs import by, clean
from ..settings.config import Limits
from .publish_request import PublishRequest, Will
from .publishing import Publishing
from .sessions import Sessions
from .subscriber import Subscriber

log = logging.getLogger(__name__)

RETRY_S = 1.0
OVERHEAD_BYTES = 400
Submit = Callable[[], bool]
"""Asks the writer; False: it takes nothing now."""


@dataclass(slots=True, eq=False)
class Leaving:
    """A will on its way to a position. `due_ms` 0: at once."""

    subscriber: Subscriber
    will: Will
    due_ms: int
    placed: MessageId | None = None
    """Its place in a batch that has failed: it may have survived."""

    @property
    def request(self) -> PublishRequest:
        return PublishRequest(self.will.record)

    @property
    def size(self) -> int:
        return OVERHEAD_BYTES + self.will.record.size


class Wills:
    """The wills of connections that have ended."""

    def __init__(
        self,
        sessions: Sessions,
        publishing: Publishing,
        writer: Writer,
        clock: Clock,
        limits: Limits,
    ) -> None:
        self._sessions = sessions
        self._cursors = sessions.cursors
        self._publishing = publishing
        self._writer = writer
        self._clock = clock
        self._limits = limits
        self._kept: deque[tuple[Submit, int]] = deque()
        """Submits to be tried again, each with its bytes."""
        self._kept_bytes = 0
        self._underway: dict[Subscriber, Will] = {}
        """Delayed wills that have no place yet, in the queue or kept."""
        self._retry_at = 0.0
        self.lost = 0
        """Wills that were given up."""

    def __len__(self) -> int:
        return len(self._kept)

    def accept(self, subscriber: Subscriber, will: Will | None) -> None:
        """Set the will of a new connection; None: it has none, or none any more after a DISCONNECT."""
        subscriber.wills.current = will

    def displace(self, subscriber: Subscriber, *, is_resumed: bool) -> None:
        """The client connects again: the will of the connection before comes out, or is kept until it is
        back. A will on its way to the timeline stops, and goes on if the client is refused. The will of a
        client that was not back for certain does not count."""
        will, subscriber.wills.former = subscriber.wills.former or subscriber.wills.current, None
        subscriber.wills.current = will
        if will is not None and not (is_resumed and will.delay_s):
            self.publish(subscriber, at_once=True)
        if is_resumed:
            subscriber.wills.former = subscriber.wills.current
        subscriber.wills.current = None
        if not is_resumed:
            self.recall(subscriber, at_once=True)

    def confirm(self, subscriber: Subscriber, will_id: int) -> None:
        """The client is back, for certain; `will_id`: the delayed will that it found."""
        subscriber.wills.former = None
        if will_id == subscriber.wills.delayed_id and subscriber.link is not None:
            self.recall(subscriber, at_once=False)

    def refuse(self, subscriber: Subscriber, *, is_gone: bool) -> None:
        """The client could not come back: its will does not count, the one before does. `is_gone`: nobody
        else has the session meanwhile."""
        if is_gone:
            subscriber.wills.current, subscriber.wills.former = subscriber.wills.former, None
        if subscriber.link is None:
            self.publish(subscriber, at_once=False)

    def publish(self, subscriber: Subscriber, *, at_once: bool) -> None:
        """The connection has ended without a word. A delayed will is the session's until it has a place."""
        will = subscriber.wills.current
        if will is None:
            return
        rights = subscriber.rights
        if rights is not None and not rights.may_publish(will.record.topic):
            subscriber.wills.current = None
            self._publishing.traffic.refused += 1
            cause = by("clients")
            log.info("will not published: %s may not send to its topic", clean(subscriber.owner), extra=cause)
            return
        delay_s = 0 if at_once else min(will.delay_s, subscriber.session.expiry_s)
        leaving = Leaving(subscriber, will, self._clock.wall_ms() + delay_s * 1000 if delay_s else 0)
        if not delay_s:
            subscriber.wills.current, subscriber.wills.unplaced = None, will
        elif self._underway.get(subscriber) is will:
            return  # its client was refused when it came back: it goes on as it was
        else:
            self._underway[subscriber] = will
        if not self._try(partial(self._submit, leaving), leaving.size):
            self._forget(leaving)

    def recall(self, subscriber: Subscriber, *, at_once: bool) -> None:
        """The client is back: its delayed will is cancelled, or `at_once`: comes out now."""
        if subscriber.wills.delayed_id:
            wanted, subscriber.wills.delayed_id = MessageId(subscriber.wills.delayed_id), 0
            self._try(partial(self._recall, wanted, at_once=at_once), OVERHEAD_BYTES)

    def step(self) -> None:
        """Retry wills that could not be placed."""
        if not self._kept or self._clock.mono() < self._retry_at:
            return
        self._retry_at = self._clock.mono() + RETRY_S
        for _ in range(len(self._kept)):
            submit, size = self._kept[0]
            if not submit():
                return
            self._kept.popleft()
            self._kept_bytes -= size

    def _try(self, submit: Submit, size: int) -> bool:
        return submit() or self._later(submit, size)

    def _forget(self, leaving: Leaving) -> None:
        """Forget a finished will."""
        if self._underway.get(leaving.subscriber) is leaving.will:
            del self._underway[leaving.subscriber]

    def _later(self, submit: Submit, size: int) -> bool:
        """Keep a will for a retry; False: lost, because the bound is reached."""
        limits = self._limits
        if len(self._kept) >= limits.connections or self._kept_bytes + size > limits.queued_bytes:
            self.lost += 1
            log.warning("will lost: %d wills, %d bytes, wait already", len(self._kept), self._kept_bytes)
            return False
        if not self._kept:
            self._retry_at = self._clock.mono() + RETRY_S
        self._kept.append((submit, size))
        self._kept_bytes += size
        return True

    def _recall(self, wanted: MessageId, *, at_once: bool) -> bool:
        def decide(commit: Commit) -> None:
            if at_once:
                commit.move(wanted, 0)
            else:
                commit.cancel(wanted)

        def done(answer: object) -> None:
            if isinstance(answer, Exception):
                self._later(partial(self._recall, wanted, at_once=at_once), OVERHEAD_BYTES)

        return self._send(decide, done)

    def _submit(self, leaving: Leaving) -> bool:
        """Hand it to the writer; False: not now."""
        stored = self._is_known(leaving.subscriber)
        writes = stored or bool(leaving.due_ms) or self._publishing.is_to_store(leaving.request)

        def done(answer: object) -> None:
            is_wanted = answer is not True and self._is_taken_back(leaving)
            if not (is_wanted and self._later(partial(self._submit, leaving), leaving.size)):
                self._forget(leaving)

        # Behind what its client has published, with its key or without; the session may be another's.
        owner = leaving.will.record.owner.decode()
        return self._send(lambda commit: self._place(commit, leaving), done, writes=writes, owner=owner)

    def _send(self, decide: Decide, done: Done, *, writes: bool = True, owner: str = "") -> bool:
        try:
            self._writer.submit(decide, done, writes=writes, owner=owner)
        except (Busy, StoreFailed):
            return False
        return True

    def _place(self, commit: Commit, leaving: Leaving) -> bool:
        """In the writer: a place for the will, and the session's row without it; False: there is none."""
        subscriber, will = leaving.subscriber, leaving.will
        if leaving.due_ms and subscriber.wills.current is not will:
            return subscriber.wills.former is not will  # the client has come back; not for certain: later
        if not leaving.placed or commit.find(leaving.placed) is None:
            placed = self._publishing.place(commit, leaving.request, leaving.due_ms)
            if placed is None:
                return False
            leaving.placed = placed
        if leaving.due_ms:
            subscriber.wills.current, subscriber.wills.delayed_id = None, leaving.placed
        elif subscriber.wills.unplaced is will:
            subscriber.wills.unplaced = None
        self._cursors.mark_dirty(subscriber)
        self._cursors.store(commit, subscriber)
        return True

    def _is_taken_back(self, leaving: Leaving) -> bool:
        """It was refused, or the batch has failed: the will is the session's again, unless it is void."""
        subscriber, will = leaving.subscriber, leaving.will
        if leaving.due_ms and subscriber.wills.former is will:
            return True
        if leaving.due_ms and subscriber.wills.current is not will:
            if not leaving.placed or subscriber.wills.delayed_id != leaving.placed:
                return False  # the client has come back
            subscriber.wills.current, subscriber.wills.delayed_id = will, 0
        elif not leaving.due_ms and subscriber.wills.unplaced is None:
            subscriber.wills.unplaced = will
        return True

    def _is_known(self, subscriber: Subscriber) -> bool:
        session = subscriber.session
        return session.is_persistent and self._sessions.get(session.client_id) is subscriber
