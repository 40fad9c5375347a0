"""The publishes of one connection: read, handed on chunk by chunk, answered in their order.

MQTT-4.6.0 wants PUBACKs in the order of the PUBLISHes, but a stored message is answered after its sync, and
any other when it has been handed on. So answers wait in a queue, whose complete front is sent.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from shards import keys
from shards.draft import Draft
from shards.fields import Record
from shards.record import encode_fresh
from timeline.position import MessageId, id_text
from timeline.session import PACKET_ID_MAX, Session

from ..auth.rights import Rights
from ..codec import wire
from ..codec.packets import Publish
from ..codec.properties import reason_string
from ..codec.reasons import Reason
from ..delivery.message import publisher_of
from ..delivery.owners import owner_of
from ..delivery.publish_request import PublishRequest
from ..delivery.publishing import Publishing
from ..delivery.settling.settling import Busy, Outcome, Settling
from ..delivery.subscriber import Subscriber
from ..delivery.verdict import OnVerdict, Verdict
from ..engine.clock import Clock
from ..observe.logs import clean
from ..observe.trace_context import context_in
from ..observe.tracing import Scheduling, Traces
from ..settings.config import Config
from .forms import CANCELLED, fasti_id
from .outbox import Outbox
from .peer import Peer
from .pending_ack import PendingAck
from .publish_requests import (
    DONE,
    EXTEND,
    HOLDING,
    REFUSED_MAX,
    PublishRefused,
    is_as_declared,
    read_done,
    read_extension,
    read_holding,
    read_plain,
    read_publish,
    usual_delayed,
)

log = logging.getLogger(__name__)

ALIAS_BYTES = 2_048
"""Bytes that the topics behind aliases may have, for each alias of `mqtt.topic_alias_maximum`."""
_REASONS: tuple[int, ...] = (
    Reason.SUCCESS,
    Reason.NO_MATCHING_SUBSCRIBERS,
    Reason.QUOTA_EXCEEDED,
    Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Reason.SUCCESS,
)
"""By `Verdict`."""
_GOOD = (Verdict.TAKEN, Verdict.UNWANTED, Verdict.CANCELLED)
HOLDING_COST = 10
"""What a message that a client still has costs in a turn, in deliveries: it may be looked up."""
RECEIVED_FACTOR = 4
"""Times `mqtt.receive_maximum` that a session may hold packet ids of QoS 2 that are not released."""


class Inbound:
    """Publishes in, answers out, in order."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        publishing: Publishing,
        settling: Settling,
        traces: Traces | None,
        peer: Peer,
        outbox: Outbox,
    ) -> None:
        self._clock = clock
        self._publishing = publishing
        self._settling = settling
        self._traces = traces
        self._peer = peer
        self._outbox = outbox
        self._mqtt = config.mqtt
        self._limits = config.limits
        self._level = 0
        self._counts = False
        """Whether the client must keep to the Receive Maximum of CONNACK. Below level 5 CONNACK has none, and
        mosquitto's bridges exceed it by a whole window with each ack."""
        self._is_usual = False
        """Nothing but the time and the properties of a publish decides what is made of it."""
        self._publisher = self._owner = b""
        self.key = ""
        """Name of the key that publishes; empty: none."""
        self._rights: Rights | None = None
        self._unanswered: deque[PendingAck] = deque()
        """Publishes that wait for an answer, in order."""
        self._aliases: dict[int, bytes] = {}
        self._alias_bytes = 0
        self._requests: list[tuple[PublishRequest, OnVerdict | None]] = []
        self._drafts: list[Draft] = []
        """Usual delayed publishes, of which each is before all of `_requests`."""
        self._drafted: list[PendingAck | None] = []
        """The acks that wait for their answers; None: at QoS 0."""
        self._drafting: Session | None = None
        self._now_ms = 0
        """Time at which the first of them was read."""
        self._waiting: dict[int, PendingAck] = {}
        """The same publishes by their packet id."""
        self._requested: set[int] = set()
        """Packet ids of SUBSCRIBE and UNSUBSCRIBE that wait for their answer."""
        self._unreleased: set[int] = set()
        """Packet ids of QoS 2 that were answered here: what Receive Maximum counts, with `_unanswered`."""
        self.is_settled = True
        """Whether nothing has been handed over since `settle`."""
        self.has_published = False
        """Whether something has been handed over since `begin_turn`."""
        self.reach = 0
        """Deliveries of publishes since then, while several owners are there (net/loop_time.py)."""
        self._reach_before = 0
        """The part of `reach` that has been handed over."""

    def learn(self, level: int, client_id: str, rights: Rights | None, *, is_bridge: bool) -> None:
        """Set the publisher from CONNECT. `rights`: None: everything."""
        self._level = level
        self._counts = level == 5 and not is_bridge
        self._rights = rights
        self._publisher = publisher_of(client_id)
        self._owner = owner_of(rights)
        self.key = "" if rights is None else rights.key
        self._is_usual = rights is None and self._mqtt.maximum_qos > 0

    def begin_turn(self) -> None:
        """Begin a turn: later publishes count as published in it."""
        self.has_published = False
        self.reach = self._reach_before = 0

    def settle(self) -> None:
        """Every task handed over has finished."""
        self.is_settled = True

    def _check(self, packet: Publish, session: Session) -> None:
        """Raises PublishRefused for faults that end the connection."""
        mqtt = self._mqtt
        if packet.qos > mqtt.maximum_qos:
            detail = f"QoS {packet.qos}, {mqtt.maximum_qos} is the highest"
            raise PublishRefused(Reason.QOS_NOT_SUPPORTED, detail)
        if packet.retain and not mqtt.retain_available:
            raise PublishRefused(Reason.RETAIN_NOT_SUPPORTED, "a retained message")
        if packet.qos and len(self._unanswered) + len(self._unreleased) >= mqtt.receive_maximum:
            self._check_excess(packet.packet_id, session)

    def _check_excess(self, packet_id: int, session: Session) -> None:
        """Raises PublishRefused if too many publishes wait for an answer."""
        if self._counts and packet_id not in session.received:
            detail = "more publishes in flight than CONNACK allowed"
            raise PublishRefused(Reason.RECEIVE_MAXIMUM_EXCEEDED, detail)
        # What is known counts already, until it is asked for again.
        bound = self._mqtt.receive_maximum if self._counts else PACKET_ID_MAX
        if len(self._unanswered) >= bound:
            detail = "too many publishes wait for an answer"
            raise PublishRefused(Reason.RECEIVE_MAXIMUM_EXCEEDED, detail)

    def _resolved(self, packet: Publish, alias: int) -> Publish:
        """The packet with its topic in place of the alias. Raises PublishRefused, which ends the connection,
        for an unknown alias or too many bytes of topics."""
        aliases_max = self._mqtt.topic_alias_maximum
        if alias > aliases_max:
            raise PublishRefused(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias} is above the maximum")
        if packet.topic:
            self._alias_bytes += len(packet.topic) - len(self._aliases.get(alias, b""))
            if self._alias_bytes > ALIAS_BYTES * aliases_max:
                detail = f"the topics behind the aliases have {self._alias_bytes} bytes"
                raise PublishRefused(Reason.QUOTA_EXCEEDED, detail)
            self._aliases[alias] = packet.topic
            return packet
        topic = self._aliases.get(alias)
        if topic is None:
            raise PublishRefused(Reason.PROTOCOL_ERROR, f"topic alias {alias} is unknown")
        return msgspec.structs.replace(packet, topic=topic)

    def is_in_use(self, packet_id: int) -> bool:
        """Whether something that this connection has begun under the packet id is not over."""
        return packet_id in self._waiting or packet_id in self._requested or packet_id in self._unreleased

    @property
    def is_awaited(self) -> bool:
        """Whether a publish, SUBSCRIBE or UNSUBSCRIBE still waits for its answer."""
        return bool(self._unanswered or self._requested)

    def reserve(self, packet_id: int) -> None:
        """A SUBSCRIBE or UNSUBSCRIBE waits for its answer under this packet id."""
        self._requested.add(packet_id)

    def free(self, packet_id: int) -> None:
        """Free the packet id: the answer is sent."""
        self._requested.discard(packet_id)

    def take(self, packet: Publish, subscriber: Subscriber) -> None:
        """Read a publish and keep it for `flush`, or answer a refusal. Raises PublishRefused for a fault that
        ends the connection."""
        self._publishing.traffic.payload_received += len(packet.payload)
        if self._is_usual and packet.properties is None:
            if packet.topic.startswith(b"$"):
                if not self._requests and self._take_delayed(packet, subscriber.session):
                    return
            elif self._take_usual(packet, subscriber.session):
                return
        if self._drafts:
            self._flush_drafts()
        self._take_any(packet, subscriber)

    def _take_any(self, packet: Publish, subscriber: Subscriber) -> None:
        session, properties = subscriber.session, packet.properties
        if properties is not None and properties.topic_alias is not None:
            packet = self._resolved(packet, properties.topic_alias)
        self._check(packet, session)
        pending = PendingAck(packet.packet_id, packet.qos) if packet.qos else None
        if packet.qos == 2 and self._is_known(packet.packet_id, session, pending):
            return
        if pending is not None:
            self._unanswered.append(pending)
        try:
            if pending is not None:
                self._claim(pending, session)
            request = self._read(packet, subscriber, pending)
        except PublishRefused as error:
            self._publishing.traffic.refused += 1
            if pending is not None:
                pending.detail = clean(error, error.most)
            self._answer(pending, error.reason, 0, session)
            log.info("publish refused: %s, %s", self._peer, error, extra=self._peer.why(error.reason, error))
            return
        if request is None:
            return
        answer = None
        if pending is not None:
            if packet.qos == 2:
                session.received[packet.packet_id] = False
                if session.is_persistent:
                    row = keys.received(session.client_id, packet.packet_id)
                    request = msgspec.structs.replace(request, received=row)

            is_named = request.is_scheduled or bool(request.key)

            def answer(verdict: Verdict, message: int) -> None:
                pending.is_cancelled = is_named and verdict is Verdict.CANCELLED
                self._answer(pending, _REASONS[verdict], message if is_named else 0, session)

        traces = self._traces
        answered = answer if traces is None else _traced(traces, packet, request, answer)
        self._requests.append((request, answered))
        if self._publishing.is_shared:
            self.reach += self._publishing.reach(request)

    def _take_usual(self, packet: Publish, session: Session) -> bool:
        """`take` of a valid publish without properties; False, and nothing done, for any other. It runs for
        most messages: with the answer a tenth of a publish at QoS 1."""
        topic, payload, qos, packet_id = packet.topic, packet.payload, packet.qos, packet.packet_id
        limits = self._limits
        if (
            qos == 2
            or packet.retain
            or topic.count(b"/") >= limits.topic_levels
            or len(payload) > limits.max_payload
            or not topic.decode().isprintable()
        ):
            return False
        answer = None
        if qos:
            pending = self._awaited(packet_id)
            if pending is None:
                return False
            answer = partial(self._answer_usual, pending, session)
        if self._drafts:
            self._flush_drafts()
        record = Record(topic, payload, 0, qos, publisher=self._publisher)
        request = PublishRequest(record, is_plain=True)
        self._requests.append((request, answer))
        if self._publishing.is_shared:
            self.reach += self._publishing.reach(request)
        return True

    def _take_delayed(self, packet: Publish, session: Session) -> bool:
        """The same of a publish to `$delayed/{n}/{topic}`, whose draft is made here. Several together are
        placed and answered as one; not behind other publishes of the same turn, which are before them in
        order."""
        payload, qos, limits = packet.payload, packet.qos, self._limits
        if not self._drafts:
            self._now_ms = self._clock.wall_ms()
        now_ms = self._now_ms
        read = usual_delayed(packet.topic, now_ms)
        if read is None or qos == 2 or packet.retain or len(payload) > limits.max_payload:
            return False
        topic, due_ms = read
        if topic.count(b"/") >= limits.topic_levels or due_ms > now_ms + limits.max_delay_ms:
            return False
        pending = None
        if qos:
            pending = self._awaited(packet.packet_id)
            if pending is None:
                return False
        value = encode_fresh(topic, payload, due_ms, qos, 0, publisher=self._publisher)
        self._drafts.append(Draft(due_ms, topic, value))
        self._drafted.append(pending)
        self._drafting = session
        return True

    def _awaited(self, packet_id: int) -> PendingAck | None:
        """The answer that a usual publish at QoS 1 waits for; None, and nothing done, if it is not usual."""
        waiting, unanswered = self._waiting, self._unanswered
        if (
            packet_id in waiting
            or packet_id in self._unreleased
            or packet_id in self._requested
            or len(unanswered) + len(self._unreleased) >= self._mqtt.receive_maximum
        ):
            return None
        pending = waiting[packet_id] = PendingAck(packet_id, 1)
        unanswered.append(pending)
        return pending

    def _answer_usual(
        self,
        pending: PendingAck,
        session: Session,
        verdict: Verdict,
        message: int,  # noqa: ARG002 - a plain publish has no name
    ) -> None:
        """`_answer` of a plain publish at QoS 1, which has no name."""
        if not pending.is_ready:
            pending.is_ready, pending.reason = True, _REASONS[verdict]
            self._send_ready(session)

    def _answer_run(
        self,
        drafted: list[PendingAck | None],
        session: Session,
        ids: Sequence[int],
        refused: Mapping[int, Verdict],
    ) -> None:
        """`_answer` of delayed publishes that were handed over together."""
        for pending, message in zip(drafted, ids, strict=True):
            if pending is not None:
                pending.is_ready, pending.message = True, message
        for index, verdict in refused.items():
            pending = drafted[index]
            if pending is not None:
                pending.reason = _REASONS[verdict]
        self._send_ready(session)

    def flush(self) -> None:
        """Hand on what has been gathered, as one request; two if it began with delayed ones."""
        if self._drafts:
            self._flush_drafts()
        if self._requests:
            requests, self._requests = self._requests, []
            self.is_settled = False
            self.has_published = True
            reach, self._reach_before = self.reach - self._reach_before, self.reach
            self._publishing.publish(requests, self.key, reach, can_refuse=self._level == 5)
            if any([request.record.retain for request, _ in requests]):  # noqa: C419 - half the time
                self._publishing.note_retained(self.key, self._clock.mono())

    def refuse(self, reason: Reason, why: str) -> None:
        """End the connection after a fault of the client, with a reason at level 5. What came before is
        handed on."""
        log.info(
            "connection closed: %s, 0x%02x %s", self._peer, reason, why, extra=self._peer.why(reason, why)
        )
        if not self._outbox.is_closed:
            self.flush()
            self._outbox.say_why(reason, why)
            self._outbox.close()

    def _flush_drafts(self) -> None:
        drafts, self._drafts = self._drafts, []
        drafted, self._drafted = self._drafted, []
        self.is_settled = False
        self.has_published = True
        assert self._drafting is not None
        answered = partial(self._answer_run, drafted, self._drafting)
        self._publishing.schedule(drafts, answered, self.key, can_refuse=self._level == 5)

    def released(self, packet_id: int) -> None:
        """Handle PUBREL: the publish no longer counts."""
        self._unreleased.discard(packet_id)

    def _read(
        self, packet: Publish, subscriber: Subscriber, pending: PendingAck | None
    ) -> PublishRequest | None:
        """None: it was a command for the server. Raises PublishRefused. The usual publish needs neither the
        time nor properties."""
        limits = self._limits
        if packet.properties is None and not packet.topic.startswith(b"$"):
            request = read_plain(packet, self._publisher, limits.topic_levels, self._owner)
        elif packet.topic == EXTEND:
            self._extend(packet, subscriber)
            self._answer(pending, 0, 0, subscriber.session)
            return None
        elif packet.topic == HOLDING:
            self._hold(packet, subscriber)
            self._answer(pending, 0, 0, subscriber.session)
            return None
        elif packet.topic == DONE:
            self._finish(packet, subscriber, pending)
            return None
        else:
            now_ms = self._clock.wall_ms()
            request = read_publish(
                packet, self._publisher, now_ms, limits.max_delay_ms, limits.topic_levels, self._owner
            )
        if self._rights is not None:
            _check_rights(self._rights, request)
        if len(packet.payload) > limits.max_payload:
            # CONNACK tells how large a packet may be, not how large a payload: the connection need not end.
            raise PublishRefused(Reason.QUOTA_EXCEEDED, "the payload is larger than limits.max_payload")
        if packet.properties is not None and not is_as_declared(packet.payload, packet.properties):
            raise PublishRefused(Reason.PAYLOAD_FORMAT_INVALID, "the payload is declared as UTF-8 and is not")
        return request

    def _extend(self, packet: Publish, subscriber: Subscriber) -> None:
        """Extend the lease of a delivery. Raises PublishRefused."""
        packet_id, for_ms, progress = read_extension(packet)
        try:
            if self._settling.extend(subscriber, packet_id, for_ms, progress):
                return
        except Busy as error:
            raise PublishRefused(Reason.QUOTA_EXCEEDED, f"$control/extend: {error}") from None
        detail = f"$control/extend: packet id {packet_id} is no longer leased to this client"
        detail += ", or no message of a group at QoS 1: only these have progress" if progress else ""
        raise PublishRefused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, detail)

    def _hold(self, packet: Publish, subscriber: Subscriber) -> None:
        """Hold leases from before the start. Raises PublishRefused if one is not the client's."""
        text, messages = read_holding(packet)
        self.reach += HOLDING_COST * len(messages)
        lost = self._settling.hold(subscriber, text, messages)
        if lost:
            detail = f"$control/holding: not leased to this client: {', '.join(map(id_text, lost))}"
            raise PublishRefused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, detail, REFUSED_MAX)

    def _finish(self, packet: Publish, subscriber: Subscriber, pending: PendingAck | None) -> None:
        """Finish a group's message from an earlier connection. Raises PublishRefused."""
        text, message = read_done(packet)

        def answered(outcome: Outcome) -> None:
            is_ended = outcome is Outcome.DONE
            reason = Reason.SUCCESS if is_ended else Reason.IMPLEMENTATION_SPECIFIC_ERROR
            if pending is not None and outcome is Outcome.FAILED:
                pending.detail, reason = "the store takes no writes now", Reason.QUOTA_EXCEEDED
            elif pending is not None and not is_ended:
                pending.detail = f"$control/done: nothing is left of {id_text(message)}"
            self._answer(pending, reason, 0, subscriber.session)

        self._settling.ack_named(subscriber, text, message, answered)

    def _claim(self, pending: PendingAck, session: Session) -> None:
        """Take the packet id. Raises PublishRefused if it is in use (level 5 only: older clients resend what
        was not acked soon), or if there are too many at QoS 2."""
        if self._level == 5 and self.is_in_use(pending.packet_id):
            detail = f"packet id {pending.packet_id} is in use"
            raise PublishRefused(Reason.PACKET_IDENTIFIER_IN_USE, detail)
        self._waiting[pending.packet_id] = pending
        if pending.qos == 2 and len(session.received) >= RECEIVED_FACTOR * self._mqtt.receive_maximum:
            detail = f"{len(session.received)} publishes of the session wait for their PUBREL"
            raise PublishRefused(Reason.QUOTA_EXCEEDED, detail)

    def _is_known(self, packet_id: int, session: Session, pending: PendingAck | None) -> bool:
        """Whether a QoS 2 publish is here already: it is answered again, not published again."""
        is_durable = session.received.get(packet_id)
        if is_durable is None:
            return False
        if is_durable and pending is not None:
            self._unanswered.append(pending)
            self._answer(pending, 0, 0, session)
        return True

    def _answer(self, pending: PendingAck | None, reason: int, message: int, session: Session) -> None:
        if pending is None or pending.is_ready:
            return
        if pending.qos == 2:
            if reason >= 0x80:
                session.received.pop(pending.packet_id, None)
            elif pending.packet_id in session.received:
                session.received[pending.packet_id] = True
        pending.is_ready, pending.reason, pending.message = True, reason, message
        self._send_ready(session)

    def _send_ready(self, session: Session) -> None:
        """Acknowledge from the front what has its answer."""
        unanswered, waiting = self._unanswered, self._waiting
        while unanswered and unanswered[0].is_ready:
            ready = unanswered.popleft()
            packet_id = ready.packet_id
            if waiting.get(packet_id) is ready:
                del waiting[packet_id]
            if ready.qos == 2 and session.received.get(packet_id):
                self._unreleased.add(packet_id)
            self._acknowledge(ready)

    def _acknowledge(self, pending: PendingAck) -> None:
        """Answer a publish; below level 5 a refusal closes the connection."""
        outbox = self._outbox
        if pending.qos == 1 and not (pending.reason or pending.detail or pending.is_cancelled):
            if pending.message:
                outbox.put_named_puback(pending.packet_id, pending.message)
            else:
                outbox.put_puback(pending.packet_id)
            return
        if outbox.is_closed:
            return
        more = b""
        if outbox.level == 5:
            if pending.message:
                more = fasti_id(id_text(MessageId(pending.message)))
                if pending.is_cancelled:
                    more += CANCELLED
            elif pending.detail:
                more = reason_string(pending.detail)
        elif pending.reason >= 0x80:
            self.refuse(Reason(pending.reason), "publish not accepted")
            return
        kind = wire.PUBACK if pending.qos == 1 else wire.PUBREC
        outbox.put_ack(kind, pending.packet_id, pending.reason, more)


def _check_rights(rights: Rights, request: PublishRequest) -> None:
    """Raises PublishRefused. A delayed publish counts by the topic that it goes to."""
    if not rights.may_publish(request.record.topic):
        raise PublishRefused(Reason.NOT_AUTHORIZED, "the key may not publish to this topic")
    if rights.principal.rate_limiter.take():
        raise PublishRefused(Reason.QUOTA_EXCEEDED, "the key is above its rate of messages a second")


def _traced(
    traces: Traces, packet: Publish, request: PublishRequest, answer: OnVerdict | None
) -> OnVerdict | None:
    """`answer`, with the span of a publish that belongs to a trace: it ends then."""
    if packet.properties is None:
        return answer
    span = traces.schedule(context_in(packet.properties.user_properties), request.record.topic)
    return answer if span is None else partial(_end_span, span, answer)


def _end_span(span: Scheduling, answer: OnVerdict | None, verdict: Verdict, message: int) -> None:
    """End the span of a publish, and answer it."""
    span.end(message if verdict in _GOOD else verdict.name)
    if answer is not None:
        answer(verdict, message)
