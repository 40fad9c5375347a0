"""The verbs of delivery: what a door (MQTT, HTTP) asks of it.

    claim, begin, resume    a client has come: its session, durable, then sent what it has missed
    leave, drop, rewind     it has gone; its session ends; it reads again from an earlier position
    subscribe, unsubscribe  with what is retained
    open_group, pause_group, end_group      a group, whoever is in it
    enlist, dismiss         a part of the server is a member of a group
    review                  rules are others now
    publish, after_publishes
    ack, received, complete, pass_over      what the client says of a message that it was sent
    nack, extend, lease     it cannot do it now; it wants more time; it has so much
    ack_late, ack_named     who once had it has done it

Messages come back through a `Link` (subscriber.py: `offer` gives it to `send`), whatever its protocol. One
object for all connections. It keeps next to nothing of its own; it knows who does what.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import islice

from shards import keys
from shards.commit import Commit
from shards.draft import Draft
from shards.errors import StoreFailed
from shards.fields import Record
from shards.store import Table
from timeline.filters import SHARE_PREFIX, covers, parse_share
from timeline.horizon import Horizon
from timeline.position import MessageId, Position, position
from timeline.session import USUAL, Flight, Subscription, Terms

from ..engine.clock import Clock
from ..engine.writer import Busy, Writer
from ..net.networks import Rate
from ..observe.logs import by, shown
from ..observe.tracing import Traces
from ..settings.config import Config
from .cursors import Cursors
from .dispatch import Dispatch
from .membership import Membership
from .message import Message
from .publishing import Publishing
from .ready import Ready
from .replay import Replay
from .router import Router
from .sessions import Sessions, TooManySessions
from .settling.late import Late
from .settling.leases import Leases
from .settling.undone import Nacked, Undone
from .shared import Group
from .subscriber import Closing, Inside, Link, Rights, Subscriber
from .terms import UNSAID, Keeping
from .verdict import Answer, RunAnswer
from .wills import Wills
from .wish import Will, Wish

log = logging.getLogger(__name__)

HOLD_MESSAGES = 8_000
HOLD_BYTES = 16 << 20
"""From so much that waits on no publisher is read: what is sent now comes some 30 ms later."""


GIVEN_BACK = "given back"
"""Why something comes again that had no room to wait for the next member."""
TOGETHER_MAX = 100
"""Shared subscriptions whose cursors go with that of a member who leaves, some 3 ms; if it has more than
these, they go in their turns."""
END_MEMBERS = 500
"""Members that a group is taken from in one step when it is ended."""


class Denial(Enum):
    """Why a filter may not be subscribed to."""

    NOT_ALLOWED = auto()
    OVER_QUOTA = auto()


class UnknownGroup(LookupError):
    """No group is there under that text."""


class TooManyGroups(Exception):
    """`limits.groups`, or `limits.subscription_bytes`."""


class Receipt(Enum):
    """What has become of a QoS 2 message that the client says it has received."""

    UNKNOWN = auto()
    """Nothing is in flight under that id."""
    RETIRED = auto()
    """It was given up; the client has to end the exchange."""
    WRONG = auto()
    """What is in flight under that id is not of QoS 2."""
    ENDED = auto()
    """The client does not want it: it is over."""
    NOTED = auto()
    """It may be released."""
    LATER = auto()
    """It may be released when that is durable."""


class Broker:
    """Delivery as its doors see it."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        sessions: Sessions,
        cursors: Cursors,
        horizon: Horizon,
        router: Router,
        groups: Membership,
        ready: Ready,
        replay: Replay,
        dispatch: Dispatch,
        publishing: Publishing,
        undone: Undone,
        late: Late,
        leases: Leases,
        wills: Wills,
        writer: Writer,
        traces: Traces | None,
        *,
        node: int,
    ) -> None:
        self.traces = traces
        self.config = config
        self.clock = clock
        self.sessions = sessions
        self._cursors = cursors
        self._horizon = horizon
        self.router = router
        self.groups = groups
        self.node = node
        self.traffic = publishing.traffic
        self.undone = undone
        self._late = late
        self._leases = leases
        self.wills = wills
        self._ready = ready
        self._replay = replay
        self._publishing = publishing
        self._assigned = 0
        self._rate = Rate(config.limits.connect_rate)
        self._dispatch = dispatch
        self._writer = writer

    @property
    def horizon(self) -> Position:
        """Up to where dispatch has come."""
        return self._horizon.position

    @property
    def is_congested(self) -> bool:
        """Publishers should be held back: what they have sent waits in RAM, others' requests behind it."""
        dispatch, publishing, limits = self._dispatch, self._publishing, self.config.limits
        return dispatch.live + publishing.waiting > min(
            HOLD_MESSAGES, limits.queued // 2
        ) or dispatch.live_bytes + publishing.waiting_bytes > min(HOLD_BYTES, limits.queued_bytes // 2)

    def admits(self, now_s: float) -> bool:
        """Whether `limits.connect_rate` leaves room for one more connection in this second."""
        return self._rate.admits(now_s)

    # -- sessions

    def restore(self) -> None:
        """At start: members of groups, and the wills of those who were connected when the server died."""
        for group, flight in self.groups.restore():
            self.undone.fail(group, flight, GIVEN_BACK, delay_ms=0)
        for subscriber in list(self.sessions):
            if subscriber.will is not None:
                self.wills.publish(subscriber, at_once=False)
                self._cursors.outdate(subscriber)
                self._cursors.secure(subscriber, _drop)

    def take_id(self) -> int:
        """A number for a client id of the server's own making, unique over restarts."""
        self._assigned += 1
        return self.clock.wall_ms() << 20 | self._assigned & 0xFFFFF

    def claim(
        self,
        link: Link,
        client_id: str,
        *,
        clean: bool,
        expiry_s: int,
        window: int,
        rights: Rights | None = None,
    ) -> tuple[Subscriber | None, bool]:
        """The session for a new connection and whether it was there before; None: too many exist.

        `rights`: what its client may from now on; None: nobody is asked for keys.

        A connection that has it is told and closed. The session is the caller's at once, but is sent
        nothing before `resume`.
        """
        known = self.sessions.get(client_id)
        is_present = (
            known is not None
            and known.session.is_persistent
            and not clean
            and not self.sessions.is_over(known)
        )
        if known is not None:
            self._displace(known, is_resumed=is_present)
            if is_present:
                known.session.keep_for(expiry_s)
                known.session.resize(window)
                known.link, known.left_ms, known.left_running_ms = link, 0, 0
                if rights is not None:
                    if known.owner != rights.name:
                        self._hand_over(known, rights)
                    known.owner, known.rights = rights.name, rights
                    self.router.forget()
                return known, True
            self._forget(known)
        try:
            fresh = self.sessions.open(client_id, expiry_s=expiry_s, window=window)
        except TooManySessions as error:
            log.warning("connect refused: %s", error, extra=by("clients"))
            return None, False
        fresh.link = link
        if rights is not None:
            fresh.owner, fresh.rights = rights.name, rights
        return fresh, False

    def _hand_over(self, known: Subscriber, rights: Rights) -> None:
        """Another key's session, or nobody's: of what it subscribes to only what the new one may stays."""
        for text in list(known.session.subscriptions):
            self._end_denied(known, text, rights)

    def review(self) -> Iterator[None]:
        """Keys are others now: end what sessions subscribe to and their keys may not ask for any more.

        A step for each subscription: there may be a million. Of a key that has been revoked nothing ends: who
        has the next one of its name finds them, as far as that one may ask for them.
        """
        for subscriber in list(self.sessions):
            has_ended = False
            for text in list(subscriber.session.subscriptions):
                yield
                rights = subscriber.rights
                if rights is None or not rights.is_live:
                    break
                has_ended = self._end_denied(subscriber, text, rights) or has_ended
            if has_ended and subscriber.session.is_persistent:
                self.store(subscriber, lambda _: None)
        for group in list(self.groups):
            yield
            rights = None if group.members else group.rights
            if rights is not None and rights.is_live and not rights.may_subscribe(parse_share(group.text)[1]):
                log.info("group %s ends: %s may not", shown(group.text), rights.name, extra=by(rights.name))
                self.groups.end(group)

    def _end_denied(self, subscriber: Subscriber, text: str, rights: Rights) -> bool:
        """Whether it was one that is not allowed."""
        if rights.may_subscribe(parse_share(text)[1]) or not self.unsubscribe(subscriber, text):
            return False
        told = (shown(subscriber.session.client_id), shown(text), rights.name or "nobody")
        log.info("session %s no longer subscribes to %s: %s may not", *told, extra=by(rights.name))
        return True

    def is_taken(self, client_id: str, rights: Rights | None) -> bool:
        """Whether the session of that client is not to be taken over: it is another key's that counts."""
        known = self.sessions.get(client_id)
        if rights is None or known is None or known.owner in ("", rights.name):
            return False
        return not self.sessions.is_over(known) and (known.rights is None or known.rights.is_live)

    def asks(self, subscriber: Subscriber) -> int:
        """How many of its client's packets wait for the session to be durable."""
        return self._cursors.asks(subscriber)

    def is_stored(self, client_id: str) -> bool:
        """Whether a restart could find a session of that client."""
        return self._cursors.is_stored(client_id)

    def begin(
        self, subscriber: Subscriber, will: Will | None, done: Callable[[bool], None], *, is_new: bool
    ) -> None:
        """Store what `claim` gave, with the connection's will; `done` says whether it is durable.

        Of a session that ends with its connection it is that nothing is stored under its name. One that
        cannot be stored has not been opened: its client's will does not count, the one before still does, and
        a new session goes with the link, unless another connection has come for it meanwhile. That one
        stores what is not stored yet.
        """
        session, will_id, link = subscriber.session, subscriber.will_id, subscriber.link
        is_unstored = is_new or not subscriber.is_stored
        self.wills.accept(subscriber, will)

        def begun(waiting: int) -> None:
            if waiting >= 0:
                self.wills.confirm(subscriber, will_id)
            else:
                is_ours = subscriber.link in (link, None)
                if is_unstored and is_ours:
                    session.keep_for(0)
                self.wills.refuse(subscriber, is_gone=is_ours)
            done(waiting >= 0)

        if session.is_persistent:
            self._cursors.begin(subscriber, begun, is_new=is_unstored)
        elif self._cursors.is_stored(session.client_id):
            self._cursors.begin(subscriber, begun, is_new=True)
        else:
            done(True)

    def resume(self, subscriber: Subscriber) -> None:
        """The client has been told that it is in: send what was in flight, then read on."""
        subscriber.connected_ms = self.clock.wall_ms()
        self._replay.begin(subscriber)
        self.groups.meet(subscriber)

    def leave(self, subscriber: Subscriber, *, is_clean: bool) -> None:
        """Its connection has ended: a persistent session stays where it is, any other is gone.

        `is_clean`: the client has said so, or the server stops: it has not failed.
        """
        session = subscriber.session
        self._part(subscriber, is_clean=is_clean)
        if not session.is_persistent:
            self.wills.publish(subscriber, at_once=True)
            self._forget(subscriber)
            return
        self.sessions.leave(subscriber)
        self.wills.publish(subscriber, at_once=False)
        self._cursors.outdate(subscriber)
        self._cursors.secure(subscriber, _drop)

    def farewell(self, subscriber: Subscriber, expiry_s: int | None, *, keeps_will: bool) -> bool:
        """The client says that it goes, for how long its session stays (None: as agreed), and whether its
        will comes out nevertheless.

        False: a session that was to end with its connection cannot be kept now.
        """
        session = subscriber.session
        if expiry_s is not None:
            if expiry_s and not session.is_persistent:
                return False
            session.keep_for(min(expiry_s, self.config.sessions.expiry_max_ms // 1000))
        if not keeps_will:
            self.wills.withdraw(subscriber)
        return True

    def store(self, subscriber: Subscriber, done: Callable[[bool], None]) -> None:
        """Make the session durable as it is by then; `done` says whether it is."""
        self._cursors.secure(subscriber, lambda waiting: done(waiting >= 0))

    def store_groups(
        self, subscriber: Subscriber, texts: Iterable[str], done: Callable[[bool], None]
    ) -> None:
        """Make durable what a session that ends with its connection has joined or left; `done` likewise."""
        found = [self.groups.get(text) for text in texts]
        waiting: set[Subscriber] = {group for group in found if group is not None}
        waiting.add(subscriber)  # nothing of it is stored, but with a batch goes what has ended
        failed = 0

        def stored(one: Subscriber, is_durable: bool) -> None:
            nonlocal failed
            waiting.discard(one)
            failed += not is_durable
            if not waiting:
                done(not failed)

        for one in list(waiting):
            self._cursors.secure(one, lambda durable, one=one: stored(one, durable >= 0))  # type: ignore[misc]

    def end_expired(self, subscribers: Sequence[Subscriber]) -> int:
        """In the writer: end those of these sessions and groups that are over by now; how many."""
        ended = 0
        for subscriber in subscribers:
            client_id = subscriber.session.client_id
            if isinstance(subscriber, Group):
                if self.groups.get(subscriber.text) is subscriber and self.groups.is_over(subscriber):
                    self.groups.end(subscriber)
                    log.info("group %s expired", shown(subscriber.text))
                    ended += 1
            elif self.sessions.get(client_id) is subscriber and self.sessions.is_over(subscriber):
                self._forget(subscriber)
                log.info("session %s expired", client_id)
                ended += 1
        return ended

    def read_on(self, subscriber: Subscriber) -> None:
        """The session, or a group that it is a member of, may have room again."""
        self.groups.read_on(subscriber)

    def rewind(self, commit: Commit, subscriber: Subscriber, to: Position) -> None:
        """In the writer: the session or group reads again from `to`, or from where retention begins."""
        session = subscriber.session
        session.rewind(None, max(to, self._replay.floor), self.horizon)
        self._cursors.store(commit, subscriber)
        self._ready.wake(subscriber)

    def drop(self, name: str) -> None:
        """In the writer: end the session of a client, whatever it is doing; its rows go with this batch."""
        subscriber = self.sessions.get(name)
        if subscriber is not None:
            link = subscriber.link
            self._part(subscriber, is_clean=False)
            if link is not None:
                link.close(Closing.DROPPED)
            self.wills.publish(subscriber, at_once=True)
            self.wills.recall(subscriber, at_once=True)
            self._forget(subscriber)
        self._cursors.erase(name)

    def _forget(self, subscriber: Subscriber) -> None:
        """The session is over, in RAM; its rows go with the next batch."""
        self.groups.forget(subscriber)
        self.sessions.drop(subscriber)

    def submit(self, decide: Callable[[Commit], None], done: Callable[[bool], None]) -> None:
        """A request of the server's own; `done` says whether it is durable."""
        try:
            self._writer.submit(decide, lambda answer: done(not isinstance(answer, Exception)))
        except (Busy, StoreFailed) as error:
            log.warning("not stored: %s", error, extra=by("clients"))
            done(False)

    def _displace(self, known: Subscriber, *, is_resumed: bool) -> None:
        """The session's client connects anew: its old connection goes, and its will is settled."""
        if known.link is not None:
            known.link.close(Closing.TAKEN_OVER)
            self._part(known, is_clean=False)
        self.wills.displace(known, is_resumed=is_resumed)

    def _part(self, subscriber: Subscriber, *, is_clean: bool) -> None:
        """No connection any more: what was on its way is in flight, the read position stands still.

        What it had of its groups goes to others: at once, or if it was cut off (`is_clean`) as what failed.
        """
        subscriber.link = None
        subscriber.session.resends.clear()
        subscriber.unanswered = 0
        subscriber.shut_gate()
        subscriber.session.fall_behind(self.horizon)
        failed = self.groups.part(subscriber, is_clean=is_clean)
        subscriber.has_given_back = 0 < len(subscriber.groups) <= TOGETHER_MAX
        # What it still has of groups it has alone.
        flights = subscriber.session.flights.values()
        subscriber.is_entangled |= any(flight.loan is not None for flight in flights)
        for group, flight in failed:
            if is_clean:
                self.undone.fail(group, flight, GIVEN_BACK, delay_ms=0)
            else:
                self.undone.fail(group, flight, "connection lost")

    # -- subscriptions

    def denial(self, text: str, topic_filter: str, subscriber: Subscriber) -> Denial | None:
        """Why a filter, `text` as it was asked for, may not be subscribed to."""
        session, is_shared = subscriber.session, text.startswith(SHARE_PREFIX)
        if not self.may_ask(topic_filter, subscriber.rights, is_lasting=session.is_persistent or is_shared):
            return Denial.NOT_ALLOWED
        if text not in session.subscriptions and not self.sessions.quota.admits(session, text):
            return Denial.OVER_QUOTA
        if is_shared and not self.groups.admits(text):
            return Denial.OVER_QUOTA
        return None

    def may_ask(self, topic_filter: str, rights: Rights | None, *, is_lasting: bool) -> bool:
        """Whether somebody with these rights may ask for a filter; `is_lasting`: for later too."""
        if rights is not None and not rights.may_subscribe(topic_filter):
            return False
        if any(covers(denied, topic_filter) for denied in self.config.mqtt.deny_subscribe):
            return False
        is_all = topic_filter in ("#", "+/#")
        return not is_all or not is_lasting or self.config.limits.hash_on_persistent

    def subscribe(
        self,
        subscriber: Subscriber,
        wanted: Subscription,
        replay_from: Position | None,
        keeping: Keeping = UNSAID,
    ) -> bool:
        """Add or replace; takes effect at once. True if the filter is new to the session.

        `keeping`: what is said of the group, if the filter is one's.
        """
        if replay_from is not None:
            replay_from = max(replay_from, self._replay.floor)
        if wanted.filter not in subscriber.session.subscriptions:
            self.sessions.quota.add(wanted.filter)
        if wanted.filter.startswith(SHARE_PREFIX):
            subscriber.session.subscribe(wanted, self.horizon)
            if replay_from is not None and wanted.filter not in self.groups:
                wanted.since = min(wanted.since, replay_from)
            is_new = self.groups.join(subscriber, wanted.filter, wanted, keeping)
            subscriber.is_entangled = True
            self._cursors.dirty.add(subscriber.groups[wanted.filter])
            return is_new
        known = subscriber.session.subscriptions.get(wanted.filter)
        if known is not None:
            self.router.discard(subscriber, wanted.filter)
        subscriber.session.subscribe(wanted, self.horizon, replay_from)
        self.router.add(subscriber, wanted)
        if not subscriber.session.tailing:
            self.read_on(subscriber)
        return known is None

    def hold_retained(self, subscriber: Subscriber) -> None:
        """Subscriptions come: what they ask for is sent when they are answered (`send_retained`)."""
        subscriber.unanswered += 1

    def ask_retained(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """What is retained for a subscription is to come, before anything new."""
        subscriber.session.fall_behind(self.horizon)
        subscriber.asked.add(subscription)

    def send_retained(self, subscriber: Subscriber) -> None:
        """The subscriptions are answered."""
        subscriber.unanswered -= 1
        if not subscriber.session.tailing:
            self.read_on(subscriber)

    def unsubscribe(self, subscriber: Subscriber, topic_filter: str) -> bool:
        if not subscriber.session.unsubscribe(topic_filter):
            return False
        self.sessions.quota.discard((topic_filter,))
        if topic_filter in subscriber.groups:
            self.groups.leave(subscriber, topic_filter, is_given_up=True)
            return True
        subscriber.asked.discard(topic_filter)
        self.router.discard(subscriber, topic_filter)
        return True

    # -- groups

    def open_group(
        self,
        commit: Commit,
        text: str,
        terms: Terms = USUAL,
        keeping: Keeping = UNSAID,
        rights: Rights | None = None,
    ) -> Group:
        """In the writer: a group that is there with nobody in it, made or changed, durable with this batch.

        A new one begins at the horizon, and is of who has these `rights`. What is not said is as the settings
        have it. Raises TooManyGroups.
        """
        if not self.groups.admits(text):
            raise TooManyGroups("there are as many groups, or bytes of their filters, as may be")
        group = self.groups.make(text, self.horizon, terms, keeping, rights)
        self._cursors.store(commit, group)
        return group

    def pause_group(self, commit: Commit, group: Group, *, is_paused: bool) -> None:
        """In the writer: its members are sent nothing from now on, or again. What they have is theirs."""
        self.groups.pause(group, is_paused=is_paused)
        self._cursors.store(commit, group)

    def end_group(self, commit: Commit, group: Group) -> bool:
        """In the writer: end a group, whoever holds it, a step of its members at a time; True: it is ended.

        What members have in flight is theirs. A client no longer subscribes to it then, and is not told.
        """
        for member in list(islice(group.members, END_MEMBERS)):
            if member.is_inside:
                self.groups.leave(member, group.text, is_given_up=False)
                if member.link is not None:
                    member.link.close(Closing.DROPPED)
            elif self.unsubscribe(member, group.text):
                self._cursors.store(commit, member)
        is_there = self.groups.get(group.text) is group
        if is_there and not group.members:
            self.groups.end(group)
            return True
        return not is_there

    def enlist(
        self,
        link: Link,
        text: str,
        *,
        name: str,
        rights: Rights | None = None,
        keeps_overdue: bool = True,
    ) -> Inside:
        """Make a part of the server a member of a group, under a `name` that people see.

        It is sent what `link` has room for (`read_on` says that it has more), a stored message at QoS 1 at
        least, and says `ack` like a client. Nothing of it is stored; `rights` may limit what it is sent.
        Not `keeps_overdue`: what it has not acked in time it acks by its position (`ack_late`).
        Raises UnknownGroup.
        """
        group = self.groups.get(text)
        if group is None:
            raise UnknownGroup(f"there is no group {text[:128]!r}")
        return self.groups.enlist(group, link, name, rights, keeps_overdue=keeps_overdue)

    def dismiss(self, member: Inside, *, is_clean: bool) -> None:
        """It is a member no more: what it has not acked goes to another, or comes again.

        `is_clean`: it says so itself, and has not failed.
        """
        self._part(member, is_clean=is_clean)
        self.groups.forget(member)

    # -- what clients say of messages

    def ack(self, subscriber: Subscriber, packet_id: int) -> bool:
        """The client has a QoS 1 message. False: what is in flight under that id is of another kind.

        One for each delivery: the usual case, that nothing is peculiar about, is spelled out.
        """
        session = subscriber.session
        flights = session.flights
        flight = flights.get(packet_id)
        if flight is None:
            return True
        if flight.qos != 1:
            return False
        if flight.loan is not None:
            return self.ack_run(subscriber, (packet_id,))
        del flights[packet_id]
        if session.resends:
            session.resends.discard(packet_id)
        if flight.size:
            session.flight_bytes -= flight.size
        subscriber.dirty.add(subscriber)
        if not session.tailing or subscriber.groups:
            self.groups.read_on(subscriber)
        return True

    def ack_run(self, subscriber: Subscriber, packet_ids: Iterable[int]) -> bool:
        """The client has these QoS 1 messages: `ack` of each, and then one look for what there is room for
        now. False: one is of another kind, and those before it have been acked."""
        ended, is_sound = subscriber.session.ack_run(packet_ids)
        if ended:
            subscriber.dirty.add(subscriber)
            for group, lent in self.groups.acked(subscriber, ended):
                self._late.finish(group, lent.position, lent.shard, _drop)
            if subscriber.groups or not subscriber.session.tailing:
                self.groups.read_on(subscriber)
        return is_sound

    def nack(
        self,
        subscriber: Subscriber,
        packet_id: int,
        *,
        delay_ms: int | None,
        reason: str,
        done: Callable[[Nacked], None],
        qos: int = 1,
        is_attempt: bool = True,
    ) -> bool:
        """The client cannot do a message now: it is to come again, to the session or to its group.

        `delay_ms`: after which; None: as the back-off says; NEVER (undone.py): it is dead. `is_attempt`:
        false of one of a group that has not been tried at all, and does not count. The packet id is free.
        `done` is called when what has become of it is durable, or cannot be for now. False: what is in
        flight under that id is of another QoS, or too far, and `done` is not called.
        """
        flight = subscriber.session.flights.get(packet_id)
        if qos == 2:
            subscriber.session.retired.pop(packet_id, None)
        if flight is None or flight.fate:
            done(Nacked.GONE)
            return True
        if flight.qos != qos or flight.phase:
            return False
        if not flight.is_of_group:
            group = self.groups.get(flight.loan.share) if flight.loan is not None else None
            self.undone.fail(
                subscriber, flight, reason, delay_ms=delay_ms, addressee=group, is_ended=True, told=done
            )
            return True
        held = self.groups.take_back(subscriber, flight)
        self.read_on(subscriber)
        if held is None:
            done(Nacked.GONE)
        else:
            self.undone.fail(*held, reason, delay_ms=delay_ms, told=done, is_attempt=is_attempt)
        return True

    @property
    def late_room(self) -> int:
        """How many more late acks may wait: of those beyond, the messages come again."""
        return self._late.room

    def ack_late(self, text: str, place: Position, shard: int, done: Callable[[bool | None], None]) -> None:
        """A group's message is done, of the row that stood there, whoever has it by now.

        `done`: whether something of it was left, when that is durable; None: it cannot be now, and is tried
        again.
        """
        group = self.groups.get(text)
        if group is None:
            done(False)
        else:
            self._late.finish(group, place, shard, done)

    def ack_named(
        self, member: Subscriber, text: str, message: MessageId, done: Callable[[bool | None], None]
    ) -> None:
        """A message of a group that it is a member of is done, which it was sent on a connection before.

        `done`: as for `ack_late`. Of another's group there is nothing left.
        """
        group = self.groups.get(text)
        if group is None or text not in member.groups:
            done(False)
        else:
            self._late.finish_named(group, member, message, done)

    def extend(self, subscriber: Subscriber, packet_id: int, for_ms: int) -> bool:
        """The client wants to keep a message for so long from now on; False: it is not its own any more.

        Where nobody waits for an ack, that changes nothing.
        """
        return self._keep(subscriber, packet_id, for_ms, is_lease=False)

    def lease(self, subscriber: Subscriber, packet_id: int, for_ms: int) -> bool:
        """The same, and it is to come back after that time whether or not its group has an ack timeout."""
        return self._keep(subscriber, packet_id, for_ms, is_lease=True)

    def _keep(self, subscriber: Subscriber, packet_id: int, for_ms: int, *, is_lease: bool) -> bool:
        flight = subscriber.session.flights.get(packet_id)
        if flight is None or flight.fate:
            return False
        loan = flight.loan
        if loan is None or loan.flight is None:
            return True
        group = self.groups.get(loan.share)
        if group is None or not group.is_held(flight):
            return False
        if loan.until_s or is_lease:
            self._leases.extend(group, subscriber, flight, loan, for_ms)
        return True

    def received(
        self, subscriber: Subscriber, packet_id: int, done: Callable[[bool], None], *, is_taken: bool
    ) -> Receipt:
        """The client says that a QoS 2 message is there, or (not `is_taken`) that it does not want it.

        With LATER `done` is called: whether that is durable, and the message may be released.
        """
        flight = subscriber.session.flights.get(packet_id)
        if flight is None:
            return Receipt.RETIRED if packet_id in subscriber.session.retired else Receipt.UNKNOWN
        if flight.qos != 2:
            return Receipt.WRONG
        if not is_taken:
            self._finish(subscriber, flight)
            return Receipt.ENDED
        if flight.phase == 2 or not subscriber.session.is_persistent:
            flight.phase = 2
            return Receipt.NOTED
        flight.phase = 1

        def stored(waiting: int) -> None:
            if waiting >= 0:
                flight.phase = 2
            done(waiting >= 0)

        self._cursors.secure(subscriber, stored)
        return Receipt.LATER

    def complete(self, subscriber: Subscriber, packet_id: int) -> bool:
        """The client has ended a QoS 2 exchange. False: what is in flight under that id is not so far."""
        flight = subscriber.session.flights.get(packet_id)
        if flight is None:
            subscriber.session.retired.pop(packet_id, None)
            return True
        if flight.qos != 2 or not flight.phase:
            return False
        self._finish(subscriber, flight)
        return True

    def pass_over(self, subscriber: Subscriber, packet_id: int) -> None:
        """The client does not take messages of this size: as if it had acked it."""
        flight = subscriber.session.flights.get(packet_id)
        if flight is not None:
            self._finish(subscriber, flight)

    def put_back(self, member: Subscriber, packet_id: int) -> None:
        """What a part of the server was sent has come to nobody: another is sent it, as if for the first
        time."""
        flight = member.session.flights.get(packet_id)
        if flight is not None and flight.loan is not None:
            held = self.groups.put_back(member, flight)
            if held is not None:
                self.undone.fail(*held, GIVEN_BACK, delay_ms=0)

    def _finish(self, subscriber: Subscriber, flight: Flight) -> None:
        """The client has the message for good, or will never take it."""
        self._end(subscriber, flight)
        if subscriber.groups or not subscriber.session.tailing:
            self.groups.read_on(subscriber)

    def _end(self, subscriber: Subscriber, flight: Flight) -> None:
        """It is in flight no more."""
        subscriber.session.ack(flight.packet_id)
        subscriber.dirty.add(subscriber)
        for group, lent in self.groups.acked(subscriber, (flight,)):
            self._late.finish(group, lent.position, lent.shard, _drop)

    # -- publishes

    def publish(self, wishes: Sequence[tuple[Wish, Answer | None]], *, can_refuse: bool = True) -> None:
        """Place publishes in order; each answer comes when the message is durable or handed on.

        Those that cannot be refused come only while the server `is_congested` no more.
        """
        self._publishing.publish(wishes, can_refuse=can_refuse)

    def schedule(self, drafts: Sequence[Draft], answered: RunAnswer, *, can_refuse: bool = True) -> None:
        """The same of a run of delayed ones without keys that are nobody's."""
        self._publishing.schedule(drafts, answered, can_refuse=can_refuse)

    def after_publishes(self, then: Callable[[], None]) -> bool:
        """Call `then` once when all that has been published so far has been handed on, or cannot be.

        False: now, as nothing can be waited for; it is not called.
        """
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
            self._writer.submit(decide, done, cost=0, writes=False)
        except (Busy, StoreFailed):
            return False
        return True

    def publish_system(self, records: Sequence[Record], note: Callable[[Message], None]) -> None:
        """The server's own figures: never stored."""
        self._publishing.publish_system(records, note)

    def released(self, subscriber: Subscriber, packet_id: int, done: Callable[[bool], None]) -> None:
        """The client has ended a QoS 2 publish of its own: forget its id; `done` when that is durable."""
        session = subscriber.session
        session.received.pop(packet_id, None)
        if not session.is_persistent:
            done(True)
            return
        key = keys.received(session.client_id, packet_id)

        def settled(is_durable: bool) -> None:
            if not is_durable:
                session.received[packet_id] = True
            done(is_durable)

        self.submit(lambda commit: commit.row(Table.RECEIVED, key, None), settled)


def _drop(_: object) -> None:
    """An answer that nobody waits for."""
