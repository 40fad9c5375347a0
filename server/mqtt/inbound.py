"""The publishes of one connection: read, handed to the broker chunk by chunk, answered in their order.

MQTT-4.6.0 wants PUBACKs in the order of the PUBLISHes, but a message that is stored is answered after its
sync and one that is not when it has been handed on. So every publish takes a place in a queue, and what is
complete is sent from the front.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from shards import keys
from timeline.session import PACKET_ID_MAX, Session

from ..codec.packets import Publish
from ..codec.reasons import Reason
from ..delivery.broker import Broker
from ..delivery.publishing import Answer
from .wishes import PublishRefused, Wish, is_payload_as_said, raised, read_publish

ALIAS_BYTES = 2_048
"""How long the topics that stand behind aliases may be, on the average of `mqtt.topic_alias_maximum`."""


RECEIVED_FACTOR = 4
"""Times `mqtt.receive_maximum` that a session may hold packet ids of QoS 2 that are not released."""


class PendingAck:
    """A publish that has not been answered yet: by PUBACK at QoS 1, by PUBREC at QoS 2."""

    __slots__ = ("detail", "is_ready", "message", "packet_id", "qos", "reason")

    def __init__(self, packet_id: int, qos: int) -> None:
        self.packet_id = packet_id
        self.qos = qos
        self.is_ready = False
        self.reason = 0
        self.detail = ""
        """Why it was refused."""
        self.message = 0
        """The id that the answer tells, of what was delayed or has a key; any other answer is bare."""


class Inbound:
    """Publishes in, answers out through `acknowledge`, in order."""

    def __init__(self, broker: Broker, acknowledge: Callable[[PendingAck], None]) -> None:
        self._broker = broker
        self._acknowledge = acknowledge
        self._qos_floor = broker.config.mqtt.qos_floor
        self._acks: deque[PendingAck] = deque()
        self._aliases: dict[int, bytes] = {}
        self._alias_bytes = 0
        self._wishes: list[tuple[Wish, Answer | None]] = []
        self._waiting: dict[int, PendingAck] = {}
        """`_acks` by packet id."""
        self.asked: set[int] = set()
        """Packet ids of SUBSCRIBE and UNSUBSCRIBE that wait for their answer."""
        self._unreleased: set[int] = set()
        """Packet ids of QoS 2 that were answered here: what Receive Maximum counts, with `_acks`."""
        self.is_settled = True
        """Nothing was handed over since who looks here has waited for it."""
        self.has_published = False
        """Something was handed over since who looks here has reset it."""

    def fault(self, packet: Publish, session: Session, level: int) -> tuple[Reason, str] | None:
        """What of a publish ends the connection."""
        mqtt = self._broker.config.mqtt
        if packet.qos > mqtt.maximum_qos:
            return Reason.QOS_NOT_SUPPORTED, f"QoS {packet.qos}, {mqtt.maximum_qos} is the highest"
        if packet.retain and not mqtt.retain_available:
            return Reason.RETAIN_NOT_SUPPORTED, "a retained message"
        if packet.qos and len(self._acks) + len(self._unreleased) >= mqtt.receive_maximum:
            return self._excess(packet.packet_id, session, level)
        return None

    def _excess(self, packet_id: int, session: Session, level: int) -> tuple[Reason, str] | None:
        """What is wrong with one more publish that is to be answered, when there are so many already."""
        if level == 5 and packet_id not in session.received:
            return Reason.RECEIVE_MAXIMUM_EXCEEDED, "more publishes in flight than CONNACK allowed"
        # Below level 5 nobody was told a number; what is known counts already, until it is asked for again.
        bound = self._broker.config.mqtt.receive_maximum if level == 5 else PACKET_ID_MAX
        if len(self._acks) >= bound:
            return Reason.RECEIVE_MAXIMUM_EXCEEDED, "more publishes wait for an answer than there may be"
        return None

    def resolve(self, packet: Publish) -> Publish:
        """Put the topic in the place of its alias.

        Raises PublishRefused for what ends the connection: an alias that is none, topics too long to be kept.
        """
        alias = packet.properties.topic_alias if packet.properties is not None else None
        if alias is None:
            return packet
        aliases_max = self._broker.config.mqtt.topic_alias_maximum
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
            raise PublishRefused(Reason.PROTOCOL_ERROR, f"topic alias {alias} stands for nothing")
        return msgspec.structs.replace(packet, topic=topic)

    def is_in_use(self, packet_id: int) -> bool:
        """Whether something that this connection has begun under the packet id is not over."""
        return packet_id in self._waiting or packet_id in self.asked or packet_id in self._unreleased

    def take(self, packet: Publish, session: Session, level: int) -> PublishRefused | None:
        """Read a publish and keep it for `flush`; the reason if it cannot be taken."""
        broker = self._broker
        pending = PendingAck(packet.packet_id, packet.qos) if packet.qos else None
        if packet.qos == 2 and self._is_known(packet.packet_id, session, pending):
            return None
        if pending is not None:
            self._acks.append(pending)
        try:
            self._claim(pending, level)
            if packet.qos == 2:
                self._check_unreleased(session)
            limits = broker.config.limits
            now_ms = broker.clock.wall_ms()
            wish = read_publish(packet, session.client_id, now_ms, limits.max_delay_ms, limits.topic_levels)
            if self._qos_floor:
                wish = raised(wish, self._qos_floor)
            _check_payload(packet, limits.max_payload)
        except PublishRefused as error:
            broker.traffic.refused += 1
            if pending is not None:
                pending.detail = str(error)[:200]
            self._answer(pending, error.reason, 0, session)
            return error
        answer = None
        if pending is not None:
            if packet.qos == 2:
                session.received[packet.packet_id] = False
                if session.is_persistent:
                    row = keys.received(session.client_id, packet.packet_id)
                    wish = msgspec.structs.replace(wish, received=row)

            if wish.is_scheduled or wish.key:

                def answer(reason: int, message: int) -> None:
                    self._answer(pending, reason, message, session)
            else:

                def answer(reason: int, message: int) -> None:  # noqa: ARG001 - a plain publish has no name
                    self._answer(pending, reason, 0, session)

        self._wishes.append((wish, answer))
        return None

    def flush(self) -> None:
        """Hand what has been gathered to the broker, as one request."""
        if self._wishes:
            wishes, self._wishes = self._wishes, []
            self.is_settled = False
            self.has_published = True
            self._broker.publish(wishes)

    def released(self, packet_id: int) -> None:
        """PUBREL has come: it counts no more."""
        self._unreleased.discard(packet_id)

    def _claim(self, pending: PendingAck | None, level: int) -> None:
        """Take the packet id. Raises PublishRefused if it is in use, which only level 5 can say.

        Below level 5 there are clients that send again what was not acked soon.
        """
        if pending is None:
            return
        if level == 5 and self.is_in_use(pending.packet_id):
            detail = f"packet id {pending.packet_id} is in use"
            raise PublishRefused(Reason.PACKET_IDENTIFIER_IN_USE, detail)
        self._waiting[pending.packet_id] = pending

    def _check_unreleased(self, session: Session) -> None:
        """Raises PublishRefused when the session holds all it may, most of it from earlier connections."""
        if len(session.received) >= RECEIVED_FACTOR * self._broker.config.mqtt.receive_maximum:
            detail = f"{len(session.received)} publishes of the session wait for their PUBREL"
            raise PublishRefused(Reason.QUOTA_EXCEEDED, detail)

    def _is_known(self, packet_id: int, session: Session, pending: PendingAck | None) -> bool:
        """Whether a QoS 2 publish is here already: it is answered again, not published again."""
        is_durable = session.received.get(packet_id)
        if is_durable is None:
            return False
        if is_durable and pending is not None:
            self._acks.append(pending)
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
        acks, waiting = self._acks, self._waiting
        while acks and acks[0].is_ready:
            ready = acks.popleft()
            if waiting.get(ready.packet_id) is ready:
                del waiting[ready.packet_id]
            if ready.qos == 2 and session.received.get(ready.packet_id):
                self._unreleased.add(ready.packet_id)
            self._acknowledge(ready)


def _check_payload(packet: Publish, bytes_max: int) -> None:
    if len(packet.payload) > bytes_max:
        # CONNACK tells how large a packet may be, not how large a payload: no reason to end the connection.
        raise PublishRefused(Reason.QUOTA_EXCEEDED, "the payload is larger than limits.max_payload")
    if not is_payload_as_said(packet.payload, packet.properties):
        raise PublishRefused(Reason.PAYLOAD_FORMAT_INVALID, "the payload is said to be UTF-8 and is not")
