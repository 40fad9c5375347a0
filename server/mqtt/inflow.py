"""The publishes of one connection: read, handed to the broker chunk by chunk, answered in their order.

MQTT-4.6.0 wants PUBACKs in the order of the PUBLISHes, but a message that is stored is answered after its
sync and one that is not when it has been handed on. So every publish takes a place in a queue, and what is
complete is sent from the front.
"""

from collections import deque
from collections.abc import Callable

from .broker import Answer, Broker
from .incoming import PublishRefused, Wish, read_publish
from .packets import Publish
from .reasons import Reason


class PendingAck:
    """A publish that has not been answered yet."""

    __slots__ = ("is_ready", "message", "packet_id", "reason")

    def __init__(self, packet_id: int) -> None:
        self.packet_id = packet_id
        self.is_ready = False
        self.reason = 0
        self.message = 0


class Inflow:
    """Publishes in, answers out through `acknowledge`, in order."""

    def __init__(self, broker: Broker, acknowledge: Callable[[PendingAck], None]) -> None:
        self._broker = broker
        self._acknowledge = acknowledge
        self._acks: deque[PendingAck] = deque()
        self._wishes: list[tuple[Wish, Answer | None]] = []

    def fault(self, packet: Publish, level: int) -> tuple[Reason, str] | None:
        """What of a publish ends the connection."""
        config = self._broker.config
        if packet.qos > 1:
            return Reason.QOS_NOT_SUPPORTED, "QoS 2"
        if packet.retain:
            return Reason.RETAIN_NOT_SUPPORTED, "a retained message"
        if packet.properties is not None and packet.properties.topic_alias is not None:
            return Reason.TOPIC_ALIAS_INVALID, "a topic alias, none were offered"
        if packet.qos and level == 5 and len(self._acks) >= config.mqtt.receive_maximum:
            return Reason.RECEIVE_MAXIMUM_EXCEEDED, "more publishes in flight than CONNACK allowed"
        if len(packet.payload) > config.limits.max_payload:
            return Reason.PACKET_TOO_LARGE, "the payload is larger than limits.max_payload"
        return None

    def take(self, packet: Publish, client_id: str) -> PublishRefused | None:
        """Read a publish and keep it for `flush`; the reason if it cannot be taken."""
        broker = self._broker
        pending = PendingAck(packet.packet_id) if packet.qos else None
        if pending is not None:
            self._acks.append(pending)
        try:
            wish = read_publish(packet, client_id, broker.clock.wall_ms(), broker.config.limits.max_delay_ms)
        except PublishRefused as error:
            broker.traffic.refused += 1
            self._answer(pending, error.reason, 0)
            return error
        answer = None
        if pending is not None:

            def answer(reason: int, message: int) -> None:
                self._answer(pending, reason, message)

        self._wishes.append((wish, answer))
        return None

    def flush(self) -> None:
        """Hand what has been gathered to the broker, as one request."""
        if self._wishes:
            wishes, self._wishes = self._wishes, []
            self._broker.publish(wishes)

    def forget(self) -> None:
        """The connection ends with a fault: what has not been handed over is dropped."""
        self._wishes.clear()

    def _answer(self, pending: PendingAck | None, reason: int, message: int) -> None:
        if pending is None:
            return
        pending.is_ready, pending.reason, pending.message = True, reason, message
        acks = self._acks
        while acks and acks[0].is_ready:
            self._acknowledge(acks.popleft())
