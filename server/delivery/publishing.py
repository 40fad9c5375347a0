"""Publishes take their place: stored or not, and answered when that is settled.

Persist only what somebody can replay. A publish is stored if it is delayed, keyed or retained; if a
persistent session, a group, or a session that is behind or has no room, subscribes to it at QoS 1 or 2; or if
`[replay] filters` match. (A group of clean sessions replays too: what one member leaves unacked is
another's.) Any other publish takes a position like all, so that order holds, and waits for the horizon in
RAM.

Bounds: `limits.queued` and `limits.queued_bytes` for the writer; beyond them a publish is refused (quota
exceeded). Before that, while the server is congested, a client's publishes wait at its connection. Below
level 5 a client cannot be told of a refusal, so publishes that have begun are accepted beyond the bounds, by
at most what counts as congestion. When the messages that wait for the horizon, and spill buffers, come to
`tail.max_bytes` or LIVE_MAX publishes, QoS 1 and 2 publishes with subscribers are stored, and QoS 0 ones are
dropped and counted.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from shards import keys
from shards.commit import Commit, Draft, Known, Refused
from shards.errors import Corrupt, StoreFailed
from shards.fields import Record
from shards.record import encode, is_stub
from shards.store import Table
from timeline.filters import matches
from timeline.position import MessageId, position

from ..engine.writer import Busy, Writer
from ..fair import Part
from ..observe.logs import by
from ..settings.config import Config
from .dispatch import Dispatch
from .giving import Giving
from .message import Message
from .place import Place
from .publish_request import PublishRequest
from .subscriber import Subscriber
from .verdict import OnVerdict, RunAnswer, Verdict

log = logging.getLogger(__name__)


Judged = dict[bytes, bool]
"""Topic -> whether a publish to it is to be stored at QoS 1 or 2."""
HOLD_MESSAGES = 8_000
HOLD_BYTES = 16 << 20
"""Publishes that may wait before the server stops reading from publishers: about 30 ms of work."""
SHARED_HOLD = 0.25
"""The part of those that may wait while several owners are there: what is decided in two turns."""
RETAINED_COST = 6
"""Deliveries' worth of a publish that becomes retained, as it is written too."""
PLACED_BOUNDS = 4
"""Bounds up to which publishes are remembered by owner. Then all counts are halved, so that an owner that has
published for an hour is not held back until another one has published as much."""
RETAINING_S = 0.03
"""How long subscriptions of other clients wait for a publish that becomes retained."""
LIVE_MAX = 100_000
"""Plain publishes that may wait for the horizon."""
UNDONE_RUN = 10
"""Publishes in one request of the writer, if a key may need a look at all receivers."""
REQUEST_BYTES = 800
"""RAM for a publish that waits for the writer, besides its record, bytes."""


@dataclass(slots=True)
class Traffic:
    """Counts of connections and bytes since the start."""

    sockets: int = 0
    """Opened, whatever came of them."""
    bytes_received: int = 0
    bytes_sent: int = 0
    payload_received: int = 0
    """Bytes of the payloads of PUBLISH packets."""
    payload_sent: int = 0
    connects: int = 0
    received: int = 0
    sent: int = 0
    dropped: int = 0
    refused: int = 0
    answered: dict[int, int] = field(default_factory=dict)
    """CONNECTs, by the reason code that they were answered with."""

    def answer(self, reason: int) -> None:
        """A CONNECT was answered."""
        self.answered[reason] = self.answered.get(reason, 0) + 1


_REFUSALS = dict.fromkeys(("idempotency-mismatch", "unreadable"), Verdict.REFUSED)


class Publishing:
    """The publishes of all connections on their way to the writer."""

    def __init__(
        self,
        config: Config,
        giving: Giving,
        dispatch: Dispatch,
        writer: Writer,
        part: Part,
    ) -> None:
        """`part`: of what may wait."""
        self.config = config
        self.router = giving.router
        self.traffic = Traffic()
        self.waiting = self.waiting_bytes = 0
        """Publishes that are with the writer, or the deliveries that they make if those are more; bytes."""
        self._hold_messages = min(HOLD_MESSAGES, config.limits.queued // 2)
        self._hold_bytes = min(HOLD_BYTES, config.limits.queued_bytes // 2)
        self._part = part
        self.is_pressed = False
        """`is_congested` may be true of some owner; if not, it need not be asked."""
        self._placed: dict[str, int] = {}
        """Publishes by owner since nothing waited, older ones counted less; while several owners publish."""
        self._placed_sum = 0
        self._dispatch = dispatch
        self.alerts = dispatch.alerts
        self._spill, self._retained = giving.spill, giving.retained
        self._retaining: dict[object, float] = {}
        """Start times of unfinished runs of publishes that contain retained ones."""
        self._writer = writer

    @property
    def is_shared(self) -> bool:
        """Several owners are there."""
        return self._part.now < 1.0

    def is_congested(self, owner: str) -> bool:
        """Whether to hold back publishers of this owner (name of a key; empty: none): too much waits in RAM.
        Up to twice the usual bounds, owners with less than an equal share of what waits go on."""
        dispatch, part = self._dispatch, self._part.now
        is_shared = part < 1.0
        if is_shared:
            part *= SHARED_HOLD
        reach = dispatch.reach + self.waiting
        size = dispatch.live_bytes + self.waiting_bytes
        if reach <= self._hold_messages * part and size <= self._hold_bytes * part:
            self.is_pressed = False
            return False
        self.is_pressed = True
        if not is_shared or reach > self._hold_messages * 2 or size > self._hold_bytes * 2:
            return True
        return self._placed.get(owner, 0) * len(self._placed) >= self._placed_sum

    def publish(
        self,
        requests: Sequence[tuple[PublishRequest, OnVerdict | None]],
        owner: str = "",
        reach: int = 0,
        *,
        can_refuse: bool = True,
    ) -> None:
        """Place publishes in order; each answer comes when the message is durable or handed on. `reach`:
        their deliveries, if known. Without `can_refuse`, only call it while the server is not congested."""
        step = len(requests)
        if step > UNDONE_RUN and any([request.terms.while_undone for request, _ in requests]):  # noqa: C419
            step = UNDONE_RUN
        for start in range(0, len(requests), max(1, step)):
            part = requests[start : start + step] if step < len(requests) else requests
            self._publish(part, owner, max(len(part), reach * len(part) // len(requests)), can_refuse)

    def _publish(
        self,
        requests: Sequence[tuple[PublishRequest, OnVerdict | None]],
        owner: str,
        weight: int,
        can_refuse: bool,
    ) -> None:
        self.traffic.received += len(requests)
        known: Judged = {}
        writes = any(request.received or self.is_to_store(request, known) for request, _ in requests)
        count, size = len(requests), _size(requests)

        def done(placed: object) -> None:
            self._left(weight, size)
            if isinstance(placed, list):
                for answer, verdict, message in placed:
                    answer(verdict, message)
            else:
                self._answer_all(requests, Verdict.UNAVAILABLE)

        try:
            self._writer.submit(
                lambda commit: self._place(commit, requests),
                done,
                cost=count,
                size=size,
                writes=writes,
                can_refuse=can_refuse,
                owner=owner,
            )
            self._came(owner, weight, size)
        except Busy:
            self._answer_all(requests, Verdict.OVER_QUOTA)
        except StoreFailed:
            self._answer_all(requests, Verdict.UNAVAILABLE)

    def reach(self, request: PublishRequest) -> int:
        """How many deliveries it makes at once, or costs as much as."""
        if request.is_scheduled:
            return 0
        record = request.record
        matched = len(self.router.route(record.topic))
        return matched + self.router.take_cost() + RETAINED_COST * record.retain

    def _came(self, owner: str, weight: int, size: int) -> None:
        """They are with the writer."""
        if self.is_shared:
            placed = self._placed
            if not self.waiting and not self._dispatch.live:
                placed.clear()
                self._placed_sum = 0
            placed[owner] = placed.get(owner, 0) + weight
            self._placed_sum += weight
            if self._placed_sum > PLACED_BOUNDS * self._hold_messages:
                self._placed = {one: count // 2 for one, count in placed.items() if count > 1}
                self._placed_sum = sum(self._placed.values())
        self.waiting += weight
        self.waiting_bytes += size
        self.is_pressed = self.is_pressed or self.is_congested(owner)

    def _left(self, weight: int, size: int) -> None:
        self.waiting -= weight
        self.waiting_bytes -= size

    def schedule(
        self, drafts: Sequence[Draft], answered: RunAnswer, owner: str = "", *, can_refuse: bool = True
    ) -> None:
        """The same of a run of delayed publishes without keys or owner: one answer for all, at half the cost
        of requests, as only the stored record is made."""
        count = len(drafts)
        size = sum([REQUEST_BYTES + len(draft.value) for draft in drafts])
        self.traffic.received += count
        try:
            self._writer.submit(
                partial(self._place_run, drafts),
                partial(self._placed_run, count, size, answered),
                cost=count,
                size=size,
                can_refuse=can_refuse,
                owner=owner,
            )
            self._came(owner, count, size)
        except Busy:
            self._refuse_run(count, answered, Verdict.OVER_QUOTA)
        except StoreFailed:
            self._refuse_run(count, answered, Verdict.UNAVAILABLE)

    def place(self, commit: Commit, request: PublishRequest, due_ms: int = 0) -> MessageId | None:
        """In the writer: place a message of the server's own, on the timeline if it has `due_ms`. Returns its
        id, 0: not stored, None: refused. `limits.pending` does not apply."""
        is_full = self._is_full()
        if not due_ms and not self.is_to_store(request, is_full=is_full):
            self._place_live(commit, request, None, is_full=is_full)
            return MessageId(0)
        draft = Draft(due_ms or request.record.due_ms, request.record.topic, encode(request.record))
        try:
            placed = commit.put_owed(draft)
        except Refused as error:
            self.traffic.refused += 1
            log.warning("publish by the server refused: %s", error, extra=by("the server"))
            return None
        return placed

    def note_retained(self, owner: str, now_s: float) -> None:
        """Publishes of this owner that become retained are with the writer now."""
        run = object()
        self._retaining[run] = now_s
        if not self.after_publishes(owner, partial(self._retaining.pop, run)):
            del self._retaining[run]

    def is_retaining(self, now_s: float) -> bool:
        """Whether others' publishes are about to become retained, and it does not take so long that waiting
        for them would be in a client's way."""
        return bool(self._retaining) and now_s - next(iter(self._retaining.values())) < RETAINING_S

    def after_publishes(self, owner: str, then: Callable[[], object]) -> bool:
        """Call `then` once, when all earlier publishes of this owner have been handed on, or cannot be.
        False: it cannot wait, and `then` is not called."""
        called = False

        def once() -> None:
            nonlocal called
            if not called:
                called = True
                then()

        def decide(commit: Commit) -> None:
            self._dispatch.add_mark(position(commit.horizon.clock_ms, commit.horizon.seq), once)

        def done(answer: object) -> None:
            if isinstance(answer, Exception):
                once()

        try:
            # Without a cost: it waits behind what this client has in the queue already.
            self._writer.submit(decide, done, cost=0, writes=False, owner=owner)
        except (Busy, StoreFailed):
            return False
        return True

    def released(self, subscriber: Subscriber, packet_id: int, done: Callable[[bool], None]) -> None:
        """The client has ended its QoS 2 publish: forget the packet id. `done` tells whether that is
        durable."""
        session = subscriber.session
        session.received.pop(packet_id, None)
        if not session.is_persistent:
            done(True)
            return
        key = keys.received(session.client_id, packet_id)

        def settled(answer: object) -> None:
            is_durable = not isinstance(answer, Exception)
            if not is_durable:
                session.received[packet_id] = True
            done(is_durable)

        try:
            self._writer.submit(
                lambda commit: commit.row(Table.RECEIVED, key, None), settled, owner=subscriber.owner
            )
        except (Busy, StoreFailed) as error:
            log.warning("publish not stored: %s", error, extra=by("clients"))
            settled(error)

    def publish_system(self, records: Sequence[Record], note: Callable[[Message], None]) -> None:
        """The server's own figures: handed to whoever subscribes now, `note`d for later, never stored."""

        def decide(commit: Commit) -> None:
            for record in records:
                message = _live(commit, record)
                note(message)
                self._dispatch.add_live(message, None)

        with suppress(Busy, StoreFailed):
            self._writer.submit(decide, lambda answer: None, cost=len(records), writes=False)

    def _place(
        self, commit: Commit, requests: Sequence[tuple[PublishRequest, OnVerdict | None]]
    ) -> list[tuple[OnVerdict, Verdict, int]]:
        """In the writer: give each a position; the answers of those that are stored or refused."""
        answers: list[tuple[OnVerdict, Verdict, int]] = []
        # Asked once for everything that one client has sent in one go: that adds little.
        is_full = self._is_full()
        known: Judged = {}
        for request, answer in requests:
            if not self.is_to_store(request, known, is_full=is_full):
                self._place_live(commit, request, answer if not request.received else None, is_full=is_full)
                if request.received and answer is not None:
                    commit.row(Table.RECEIVED, request.received, b"")
                    answers.append((answer, Verdict.TAKEN, 0))
                continue
            record = request.record
            draft = Draft(record.due_ms, record.topic, encode(record), request.key, request.fingerprint)
            verdict, message = Verdict.TAKEN, 0
            try:
                if record.retain and record.payload and not request.is_scheduled:
                    self._check_retained(commit, request, draft)
                (placed,) = commit.put([draft], request.terms)
                if isinstance(placed, Known):
                    message = placed.id
                    if _is_cancelled(commit, placed.id):
                        verdict = Verdict.CANCELLED
                else:
                    message = placed
                if request.received:
                    # Not of a refused one: its packet id is free for another message at once.
                    commit.row(Table.RECEIVED, request.received, b"")
            except Refused as error:
                verdict = self._refused(error)
            if answer is not None:
                answers.append((answer, verdict, message))
        return answers

    def _check_retained(self, commit: Commit, request: PublishRequest, draft: Draft) -> None:
        """Raise Refused if it cannot become retained, unless it was accepted before."""
        if request.key and commit.known([draft], request.terms):
            return
        why = self._retained.refusal(draft.topic, request.record.owner.decode())
        if why:
            raise Refused("over-quota", why)

    def _refused(self, error: Refused) -> Verdict:
        self.traffic.refused += 1
        log.info("publish refused: %s", error, extra=by("clients"))
        return _REFUSALS.get(error.why, Verdict.OVER_QUOTA)

    def _place_run(self, drafts: Sequence[Draft], commit: Commit) -> tuple[list[int], dict[int, Verdict]]:
        """In the writer: place a run; all together if all can be, which is the usual case."""
        try:
            return cast("list[int]", commit.put(drafts)), {}
        except Refused:
            pass
        ids, refused = [0] * len(drafts), {}
        for index, draft in enumerate(drafts):
            try:
                (ids[index],) = cast("list[int]", commit.put([draft]))
            except Refused as error:
                refused[index] = self._refused(error)
        return ids, refused

    def _placed_run(self, count: int, size: int, answered: RunAnswer, placed: object) -> None:
        self._left(count, size)
        if isinstance(placed, tuple):
            answered(*placed)
        else:
            self._refuse_run(count, answered, Verdict.UNAVAILABLE)

    def _refuse_run(self, count: int, answered: RunAnswer, verdict: Verdict) -> None:
        self.traffic.refused += count
        answered([0] * count, dict.fromkeys(range(count), verdict))

    def _place_live(
        self, commit: Commit, request: PublishRequest, answer: OnVerdict | None, *, is_full: bool
    ) -> None:
        """Not stored: it takes a position like all and waits for the horizon in RAM."""
        message = _live(commit, request.record, is_usual=request.is_plain)
        if is_full:
            # Nobody subscribes at QoS 1 or 2, or it would be stored.
            self.traffic.dropped += 1
            if answer is not None:
                is_wanted = self.router.route(request.record.topic)
                answer(Verdict.TAKEN if is_wanted else Verdict.UNWANTED, 0)
            return
        if request.received:
            # Answered when its packet id is durable: were it sent before, that could be an error.
            commit.open_batch.hold_back(message.position)
        self._dispatch.add_live(message, answer)

    def is_to_store(
        self, request: PublishRequest, known: Judged | None = None, *, is_full: bool = False
    ) -> bool:
        """Persist only what somebody can replay; delayed or keyed publishes always. `known`: answers by
        topic, for calls in one go with the same `is_full`: without it asking took a sixth of a QoS 1 delivery
        to ten."""
        record = request.record
        if not request.is_plain and (request.is_scheduled or request.key or record.retain):
            return True
        if not record.qos:
            return False
        replay = self.config.replay
        if record.qos >= replay.min_qos and replay.filters:
            topic = record.topic.decode()
            if any(matches(pattern, topic) for pattern in replay.filters):
                return True
        if known is None:
            return self._is_replayable(record.topic, is_full=is_full)
        judged = known.get(record.topic)
        if judged is None:
            judged = known[record.topic] = self._is_replayable(record.topic, is_full=is_full)
        return judged

    def _is_replayable(self, topic: bytes, *, is_full: bool) -> bool:
        """Whether somebody who subscribes to a topic at QoS 1 or 2 can replay."""
        # Plain loops: in comprehensions it took 19 % of QoS 1.
        for subscriber, subscriptions in self.router.route(topic).items():
            if is_full or _can_replay(subscriber):
                for subscription in subscriptions:
                    if subscription.qos:
                        return True
        return False

    def _is_full(self) -> bool:
        """Whether no more may wait in RAM for the horizon, or for sessions that have no room."""
        dispatch, spill = self._dispatch, self._spill
        return dispatch.live_bytes + spill.bytes >= spill.max_bytes or dispatch.live >= LIVE_MAX

    def _answer_all(
        self, requests: Sequence[tuple[PublishRequest, OnVerdict | None]], verdict: Verdict
    ) -> None:
        self.traffic.refused += len(requests)
        for _, answer in requests:
            if answer is not None:
                answer(verdict, 0)


def _size(requests: Sequence[tuple[PublishRequest, OnVerdict | None]]) -> int:
    """Bytes of RAM of publishes that wait for the writer, about."""
    return sum([REQUEST_BYTES + request.record.size for request, _ in requests])


def _is_cancelled(commit: Commit, message: MessageId) -> bool:
    """Whether nobody gets the message that was there under a key. One that cannot be read counts as there."""
    try:
        found = commit.find(message)
    except Corrupt:
        return False
    return found is not None and is_stub(found.value)


def _can_replay(subscriber: Place) -> bool:
    session = subscriber.session
    if not isinstance(subscriber, Subscriber) or session.is_persistent or not session.tailing:
        return True
    link = subscriber.link
    return link is None or not link.has_room or not session.has_room


def _live(commit: Commit, record: Record, *, is_usual: bool = False) -> Message:
    """A message that is not stored, at the next position."""
    horizon = commit.horizon
    at_ms = horizon.clock_ms
    return Message(position(at_ms, horizon.issue()), -1, record, at_ms, is_usual=is_usual)
