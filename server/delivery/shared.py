"""Shared subscriptions: `$share/group/filter`, whose members divide the messages among them.

A group is a place of its own, with a read position and messages in flight. Where a session sends on its
link, a group picks a member (picker.py), of a backlog for several messages in a row (run.py).

A member's delivery is a *loan*. It is in flight in the member's session, under the packet id that the client
acks, and in the group's. So the group still has the message when the member leaves, loses its connection or
is overdue. If a member leaves in order, another gets its messages at once. If it fails, they come again
later (settling/events.py). The client that once had a message may still finish it. QoS 2 belongs to the
member's session alone once it is sent (MQTT-4.8.2): only that client gets it again.

A group without members keeps its read position for its expiry (else `sessions.expiry_max`), counted from the
end of the last member's connection. The next member gets what fell due meanwhile. A group ends when somebody
deletes it. Unless its expiry is `never`, it also ends when its last subscriber unsubscribes, or when it has
expired without members.

A member that may not receive a topic counts as absent. The read position stands before a message that
only an absent member or the owner may receive. If none of them may receive it, the group passes over the
message and counts it (router.py).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from shards import keys
from shards.fields import Record
from timeline.filters import SHARE_PREFIX, parse_share
from timeline.key_order import KeyOrder, Meeting
from timeline.key_rows import NO_RULE, KeyBound, Rule
from timeline.position import START, Position, at_of
from timeline.session import USUAL, Flight, Loan, Returned, Session, Subscription, Terms

from ..auth.rights import Rights
from ..observe.logs import by, clean
from ..settings.config import Sessions
from .ahead import Ahead
from .link import PERHAPS
from .message import Message
from .picker import Picker
from .place import Place
from .rate_limit import RateLimited, RateLimiter
from .router import endpoint_names, is_unnamed
from .run import RUN_MAX, Run
from .settling.leases import Leases
from .subscriber import Subscriber
from .terms import NEXT, UNSAID, Keeping, OnDead, in_force

log = logging.getLogger(__name__)

KEY_PREFIX = keys.GROUP_PREFIX
ENDPOINT_PREFIX = keys.ENDPOINT_PREFIX
"""Of the groups of endpoints. Nobody can subscribe to such a text, so only posters are members."""
TEXT_PREFIXES = (SHARE_PREFIX, ENDPOINT_PREFIX)
"""How the texts of groups begin; no client id may begin so, as groups stand among the sessions."""
LOOK_AGAIN_S = 0.1
"""Time after which the group examines other members, if it has more than it examines for one message."""
WARN_S = 60.0
"""Least time between log lines about messages that no member may receive: publishers decide how many there
are."""
PASSED_MAX = 16
"""Messages, one after the other, that a tailing group passes over. Read in runs they take half the time."""
PASS: Final = Meeting.PASS
STOP: Final = Meeting.STOP
DOTS = (".", "..")
"""No client id and no group may be called so: in the path of a URL it goes elsewhere, also escaped."""


def endpoint_text(name: str) -> str:
    """The group of an endpoint, named or not (router.py)."""
    return ENDPOINT_PREFIX + name


class Group(Place):
    """A place that sends through its members. `members`: each with its own subscription (QoS)."""

    __slots__ = (
        *("_key_bound", "_leases", "_warn_at", "ahead", "all_returned", "client", "endpoint"),
        *("filter", "in_force", "is_buried_dead", "is_endpoint", "is_paused", "is_unnamed", "keeping"),
        *("lent", "members", "picker", "rate_limited", "rate_limiter", "settings", "text"),
    )

    is_group = True

    def __init__(
        self,
        session: Session,
        dirty: set[Place],
        leases: Leases,
        settings: Sessions,
        rate_limited: RateLimited,
        all_returned: Returned,
        key_bound: KeyBound,
        *,
        incarnation: int = 0,
    ) -> None:
        """`settings`: defaults of its terms. `rate_limited`: where it waits for a token. `all_returned`:
        returned messages of all groups that no member has. `key_bound`: of the keys in trouble of all."""
        super().__init__(session, dirty, "", None, incarnation)
        self._leases = leases
        self.rate_limited = rate_limited
        self.rate_limiter: RateLimiter | None = None
        """Rate limiter; None: no rate limit."""
        self.all_returned = all_returned
        self._key_bound = key_bound
        self.settings = settings
        self.keeping = UNSAID
        """Requested expiry and rate."""
        self.rows.ends = Counter[str]()
        self.is_buried_dead = True
        """When it ends, what is undone becomes dead letters; else it is dropped."""
        self.is_paused = False
        """Paused: members are sent nothing; the read position stays."""
        self.client = ""
        """The client that owns it, with `owner` and `rights`; empty: no client created it. An endpoint counts
        for its owner, but belongs to no key."""
        self.text = session.client_id.removeprefix(KEY_PREFIX)
        """The filter as its members subscribe to it: `$share/group/filter`."""
        name, self.filter = parse_share(self.text)
        self.name = name or self.text
        self.is_endpoint = self.text.startswith(ENDPOINT_PREFIX)
        self.endpoint = self.text.removeprefix(ENDPOINT_PREFIX)
        """The name of its endpoint."""
        self.is_unnamed = self.is_endpoint and is_unnamed(self.endpoint)
        """The server made it, for full URLs."""
        self.ahead: Ahead | None = None
        self.members: dict[Subscriber, Subscription] = {}
        self.lent: dict[Subscriber, dict[int, Flight]] = {}
        """Loans by member and packet id, in the order of lending. Former members are here too, and nobody
        without loans."""
        self.picker = Picker(self.members, self.lent)
        self._warn_at = 0.0
        self.in_force = in_force(self.terms, settings, is_group=True)
        """Terms in force: the group's own, else the settings."""
        self._follow()

    @property
    def terms(self) -> Terms:
        """Terms of its subscription."""
        return next((one.terms for one in self.session.subscriptions.values()), USUAL)

    def agree(self, terms: Terms, keeping: Keeping) -> None:
        """Replace all terms."""
        for one in self.session.subscriptions.values():
            one.terms = terms
        self.in_force = in_force(terms, self.settings, is_group=True)
        if keeping.rate != self.keeping.rate:
            self.rate_limited.forget(self)
            self.rate_limiter = self.rate_limited.of(keeping.rate)
        self.keeping = keeping
        rule = keeping.rule
        if rule is not None or self.session.order.is_on:
            self.begin_order(rule or NO_RULE)
        self.cursor.changes = -1
        self.dirty.add(self)
        self._follow()

    def begin_order(self, rule: Rule) -> None:
        """Start to deliver in the order of ordering keys. Messages already in flight hold no key.

        The empty rule ends this: the messages that wait for their keys are delivered first.
        """
        if not self.session.order.is_on:
            self.session.order = KeyOrder(self._key_bound, rule)
            self.session.order.room.belong_to(self.owner)
        else:
            self.session.order.change_rule(rule)

    def is_news(self, terms: Terms, keeping: Keeping) -> bool:
        """Whether these terms differ from the group's, whoever sets them."""
        own = self.keeping._replace(alerts_by=keeping.alerts_by)
        return (self.terms.changed_by(terms), own.changed_by(keeping)) != (self.terms, own)

    @property
    def on_dead(self) -> OnDead:
        """Whether a dead letter holds its key, or lets it go on."""
        return (self.keeping.order and self.keeping.on_dead) or NEXT

    def join(self, member: Subscriber, subscription: Subscription) -> None:
        """Add a member, or take over its new options."""
        self.members[member] = subscription
        self.picker.meet(member)
        self.session.expiry_s = max(self.session.expiry_s, member.session.expiry_s)

    def leave(self, member: Subscriber) -> bool:
        """Remove a member; True if it was the last one."""
        self.members.pop(member, None)
        self.picker.remove(member)
        kept_s = self.session.expiry_s
        if kept_s > self.keeping.stays_s(self.settings) and not any(
            m.session.expiry_s >= kept_s for m in self.members
        ):
            self._follow()
        return not self.members

    def _follow(self) -> None:
        """Stay for the expiry, and at least as long as the most persistent member. Who orders is stored, or
        what waits for its key would be in RAM."""
        members_s = max((m.session.expiry_s for m in self.members), default=0)
        own_s = self.keeping.stays_s(self.settings)
        self.session.expiry_s = max(own_s, members_s, int(self.session.order.is_on))

    @property
    def owners(self) -> frozenset[str]:
        clients = {member.owner: member.rights for member in self.members if not member.is_inside}
        theirs = frozenset(name for name, rights in clients.items() if self.obeys(rights))
        return theirs or frozenset(("" if self.is_endpoint else self.owner,))

    def is_of(self, name: str) -> bool:
        """Whether it belongs to that key: the key of all its clients, or of its owner. An owner that may
        receive nothing does not count, unless the group ends only on request."""
        counts = not self.is_endpoint and (self.keeping.is_lasting or self.obeys(self.rights))
        return (counts and self.owner == name) or super().is_of(name)

    def obeys(self, rights: Rights | None) -> bool:
        """Whether a client may set the terms: it may receive all that the group gets, or is the owner and may
        receive some."""
        if rights is None or rights.may_receive_all(self.filter):
            return True
        return rights.name == self.owner and rights.may_receive_some(self.filter)

    @property
    def is_reachable(self) -> bool:
        # As `is_served`: it is asked for each ack.
        return bool(self.picker.present) and not self.is_paused and self._leases.drained_since_ms is None

    @property
    def is_served(self) -> bool:
        """Whether a member is connected, and the group is not paused; a drain does not count."""
        return bool(self.picker.present) and not self.is_paused

    @property
    def is_here(self) -> bool:
        return bool(self.picker.present)

    @property
    def can_resend(self) -> bool:
        limiter = self.rate_limiter
        is_in_time = limiter is None or self.rate_limited.lets(self, limiter)
        return is_in_time and self.picker.next(None) is not None

    def goes_on(self) -> bool:
        """Whether something waits for it that is not unread: a key that is free, a due retry."""
        order = self.session.order
        if order.is_on:
            self.rate_limited.look_at_tokens(self)
            if order.free or order.room.may_read_on():
                return True
        return self.picker.looks_again

    @property
    def is_restricted(self) -> bool:
        return any(one.is_restricted for one in self.members) if self.members else self.rights is not None

    @property
    def checks(self) -> int:
        return 1 + len(self.members)

    def may_receive(self, topic: bytes) -> bool:
        """Whether its owner or a member, connected or not, may receive it. A message for an owner without a
        key waits for the next key of that name, or for any key that may receive it, if no member may receive
        anything."""
        if super().may_receive(topic) or any(member.may_receive(topic) for member in self.members):
            return True
        rights = self.rights
        if rights is None or (rights.name and rights.is_live):
            return False
        theirs = [member.rights for member in self.members]
        return not any(one is None or one.may_receive_some(self.filter) for one in theirs)

    def offer(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:  # noqa: ARG002
        order = self.session.order
        key = self._key_of(order, message) if order.is_on else b""
        member = self.may_give(message, key)
        if member is PASS:
            return True
        if member is STOP:
            return False
        self._lend(message, member, key, None)
        if key:
            self.rate_limited.spend(self, key)
            self.rate_limited.await_tokens(self)
        return True

    def may_give(self, message: Message, key: bytes) -> Subscriber | Literal[Meeting.PASS, Meeting.STOP]:
        """Who gets the message now. PASS: nobody, as it is done, or waits for its key, or is not kept for
        anybody. STOP: it waits, with all that is behind it. `key`: its key, if the group gives by keys."""
        session = self.session
        if session.finished and message.position in session.finished and not message.is_again:
            return PASS
        self.picker.barred = START
        if self.rate_limiter is not None and not self.rate_limited.lets(self, self.rate_limiter):
            return STOP
        if self.all_returned.failing >= self.all_returned.most:
            self.all_returned.is_missed = True
            return STOP
        member = None if len(session.flights) >= session.window else self.picker.next(message)
        if member is None and self.bars(message) and not (message.is_stored or message.qos):
            return PASS  # at QoS 0 only connected members count
        if key and not message.is_again:
            meeting = self._meet(session.order, key, message, member)
            if meeting is not Meeting.GIVE:
                return meeting
        return STOP if member is None else member

    def _key_of(self, order: KeyOrder, message: Message) -> bytes:
        """The key of a message. A group that orders no more still gives what is behind by its keys."""
        if order.rule is NO_RULE and order.is_over:
            order.leave()
            self.session.forget_order()
            self.cursor.changes = -1
            return b""
        # An unstored one, of QoS 0, cannot wait: it goes out now, or never.
        return order.key_of(message.ordering_key) if message.shard >= 0 else b""

    def _meet(self, order: KeyOrder, key: bytes, message: Message, member: Subscriber | None) -> Meeting:
        """Whether the key gives the message now, or it waits for its key. `member`: who has room."""
        if order.unwritten.is_crowded:
            return STOP
        found = order.find(key) if key in order.free else None
        if found is not None and key in order.free and found.first == (message.position, message.shard):
            if member is not None:
                order.drop(key)
            return Meeting.GIVE
        is_fair, is_tailing = order.rule.is_fair, self.session.tailing
        room = self.room_for(order, key, member)
        if member is None and (not is_fair or is_tailing):
            return STOP
        if is_tailing and ((is_fair and not order.may_start(key, room)) or order.passed >= PASSED_MAX):
            return STOP  # its key goes on in its turn
        meeting = order.meet(key, message.position, message.shard, room)
        if meeting is not Meeting.GIVE:
            self.dirty.add(self)
            self.rate_limited.await_tokens(self)
        return meeting

    def bars(self, message: Message) -> bool:
        if self.picker.barred != message.position:
            return False
        self.warn(message.topic, waits=True)
        if self.picker.is_crowded:
            self.picker.has_new = True
            self.rate_limited.pause(self, LOOK_AGAIN_S)
        return True

    def warn(self, topic: bytes, *, waits: bool = False) -> None:
        now_s = self.rate_limited.now_ms / 1_000
        if now_s < self._warn_at:
            return
        self._warn_at = now_s + WARN_S
        names, cause = (clean(self.name), clean(topic)), by(self.name)
        if waits:
            log.warning("group %s: a message waits, no connected member may receive %s", *names, extra=cause)
        else:
            log.warning("group %s: passes over %s, none of its clients may receive it", *names, extra=cause)

    def room_for(self, order: KeyOrder, key: bytes, member: Subscriber | None) -> int:
        """For how many messages there is room; looked at only as far as it counts. The time is noted too."""
        self.rate_limited.look_at_tokens(self)
        if member is None:
            return 0
        most = 1 + order.out.get(key, 0) if order.rule.is_fair else 1
        return 1 if most == 1 else min(self._allowed, self.picker.find_room(most))

    def find_room(self) -> int:
        return min(self._allowed, self.picker.find_room(RUN_MAX))

    @property
    def _allowed(self) -> int:
        """How many messages the group may give now, if members have room."""
        left = self.session.window - len(self.session.flights)
        return left if self.rate_limiter is None else min(left, self.rate_limiter.tokens)

    def offer_run(self, run: Run, subscriptions: tuple[Subscription, ...]) -> int:  # noqa: ARG002
        """Lend messages of a run, several in a row to each member."""
        if self.session.finished or self.doubt or self.all_returned.failing >= self.all_returned.most:
            return 0
        order, messages = self.session.order, run.messages
        if not order.is_on:
            return self._offer_each(messages, run.qos, ())
        keys = [order.key_of(message.ordering_key) for message in messages]
        if not any(keys):
            return self._offer_each(messages, run.qos, ())
        if run.qos != 1 or self.is_restricted or (order.rule.is_fair and self.session.tailing):
            return 0
        return self._offer_run_keyed(order, messages, keys)

    def _offer_run_keyed(self, order: KeyOrder, messages: Sequence[Message], keys: Sequence[bytes]) -> int:
        """`offer_run` of messages with keys. What is passed over counts as given."""
        room, met = self.find_room(), 0
        self.rate_limited.look_at_tokens(self)
        chosen: list[Message] = []
        theirs: list[bytes] = []
        for message, key in zip(messages, keys, strict=True):
            left, meeting = room - len(chosen), Meeting.GIVE
            if order.unwritten.is_crowded:
                break
            if key:
                meeting = order.meet(key, message.position, message.shard, left)
            if meeting is STOP or (meeting is Meeting.GIVE and left <= 0):
                break
            met += 1
            if meeting is Meeting.GIVE:
                if key:
                    order.launch(key)
                    if order.rule.per_ms:
                        self.rate_limited.spend(self, key)
                chosen.append(message)
                theirs.append(key)
        if met > len(chosen):
            self.dirty.add(self)
        self.rate_limited.await_tokens(self)
        given = self._offer_each(chosen, 1, theirs) if chosen else 0
        for message, key in zip(chosen[given:], theirs[given:], strict=True):
            member = self.picker.next(message)
            flight = self.session.launch(message.position, message.shard, 1)
            flight.key = key
            if member is not None:
                self._lend(message, member, b"", flight)
            else:
                flight.attempts = 0
                self.session.resends.add(flight, flight.position)
        return met

    def _offer_each(self, messages: Sequence[Message], qos: int, keys: Sequence[bytes]) -> int:
        """Lend messages, several in a row to each member; how many. `keys`: those that they are heads of."""
        picker, given, level = self.picker, 0, 0.0
        most = min(len(messages), self._allowed)
        part = picker.part(most, qos)
        while given < most:
            member = picker.next(messages[given])
            if member is None:
                break
            count = part or picker.portion(member, level)
            if count <= 0:
                level = picker.level(most - given, qos)
                count = picker.portion(member, level)
            count = min(count, most - given)
            end = given + count
            if count <= 0 or not self._lend_run(messages[given:end], member, keys[given:end]):
                break
            given += count
        return given

    def resend(self, message: Message, flight: Flight, _: tuple[Subscription, ...]) -> bool:
        member = self.picker.next(message, flight.attempts + 1)
        if member is None:
            return False
        flight.begin_again(message.as_of_ms)
        self.redelivered += 1
        self.rate_limited.spend(self, flight.key)
        self._lend(message, member, b"", flight)
        self.rate_limited.await_tokens(self)
        return True

    def bound(self) -> Iterable[Subscriber]:
        return self.members

    def lent_alone(self) -> list[Flight]:
        every = [lent for theirs in self.lent.values() for lent in theirs.values()]
        return [lent for lent in every if not lent.is_of_group]

    def wants(self, place: Position, record: Record) -> bool:
        if not self.is_endpoint:
            return super().wants(place, record)
        return self.endpoint in endpoint_names(record.deliver_to, record.owner)

    def is_held(self, lent: Flight) -> bool:
        """Whether the member may extend or end the delivery: the group has not gone on."""
        loan = lent.loan
        if loan is None or loan.flight is None or loan.is_overdue or loan.flight.fate:
            return False
        return self.session.has(loan.flight)

    def _lend_run(self, messages: Sequence[Message], member: Subscriber, keys: Sequence[bytes]) -> bool:
        """`_lend` of several, for the first time; False, and nothing done: offer them one by one."""
        own = self.members[member]
        qos = min(messages[0].qos, own.qos)
        term_ms = self.in_force.ack_timeout_ms if qos else 0
        run = Run(messages, term_ms)
        if own.identifier or (not qos and (keys or member.is_inside)) or not member.takes_run(run, qos):
            return False
        if member.rights is not None:
            for topic in {message.topic for message in messages}:
                if not member.may_receive(topic):
                    return False
        self.delivered += len(messages)
        self.dirty.add(self)
        if self.rate_limiter is not None:
            self.rate_limiter.spend(len(messages))
        flights: Sequence[Flight] = ()
        if qos:
            self._leases.is_unwritten = True
            launched = self.session.launch_run(run.addresses, 1)
            for flight, key in zip(launched, keys, strict=False):
                flight.key = key
            flights = member.borrow_run(run, self.text, launched, 0.0 if term_ms else self._leases.turn_s)
            self.lent.setdefault(member, {}).update([(lent.packet_id, lent) for lent in flights])
            if own.lease_ms != term_ms:
                own.lease_for(term_ms)
            if term_ms:
                self._leases.give(self, member, flights, term_ms)
        self.picker.gave(member)
        try:
            member.send_run(run, qos, flights)
        except Exception:
            member.close_failed()  # as in `_lend`
        return True

    def _head(self, message: Message, key: bytes) -> Flight:
        """The group's flight of a message that is the head of its key from now on."""
        flight = self.session.launch(message.position, message.shard, 1)
        if not (message.is_again and self.session.resume(flight)):
            self.session.lead(flight, key)
        return flight

    def _lend(self, message: Message, member: Subscriber, key: bytes, flight: Flight | None) -> None:
        """Written for speed, as it runs for each delivery to a member. `key`: it is the head of that one from
        now on. `flight`: the group's own, if it has one."""
        session, own = self.session, self.members[member]
        qos, attempt = message.qos, 1
        if own.qos < qos:
            qos = own.qos
        if not qos and member.is_inside and message.is_stored:
            qos = 1
        if flight is not None:
            attempt = flight.attempts
            qos = min(1, qos) if flight.key else qos
            if qos != 1:
                session.ack(flight.packet_id)
                flight = None
        elif key and (qos or message.is_again):
            qos, flight = 1, self._head(message, key)
        elif qos == 1:
            flight = session.launch(message.position, message.shard, 1)
        if self.doubt and attempt == 1:
            attempt = _in_doubt(self, message)
        self.delivered += 1
        self.dirty.add(self)
        if self.rate_limiter is not None:
            self.rate_limiter.spend()
        packet_id = 0
        if qos:
            self._leases.is_unwritten = True
            loan = Loan(self.text, flight)
            retry = message.record.retry if message.is_again else None
            if retry is not None and flight is not None:
                flight.returns = max(flight.returns, retry.returns)
            lent = member.borrow(message, qos, loan)
            packet_id = lent.packet_id
            self.lent.setdefault(member, {})[packet_id] = lent
            term_ms = self.in_force.ack_timeout_ms
            if own.lease_ms != term_ms:
                own.lease_for(term_ms)
            if term_ms and flight is not None:
                self._leases.give(self, member, (lent,), term_ms)
            else:
                loan.since_s = self._leases.turn_s
        self.picker.gave(member)
        try:
            member.send(message, qos, packet_id, (own,), attempt)
        except Exception:
            # It is the member's, and comes back when its connection has ended; the others are sent theirs.
            member.close_failed()


def _in_doubt(group: Group, message: Message) -> int:
    """The attempt of a first delivery: a member may have had it before a kill, and still have it. At most a
    window of them were out."""
    session, order = group.session, group.session.order
    if group.doubts(message) and group.delivered < session.window:
        group.redelivered += 1
        return PERHAPS
    read = session.read_at(message.position)
    given = order.read_from(read) if order.is_on else read  # not what waits for its key
    if group.delivered >= session.window or at_of(given) >= at_of(group.doubt):
        group.end_doubt()
    return 1
