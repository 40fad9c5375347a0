"""The rules of one connection, sans IO: packets in, bytes and calls to the broker out.

    new --CONNECT--> opening --session durable--> open --DISCONNECT, fault, takeover--> closed

What arrives while a session is being opened waits. Answers to publishes leave in the order of the
publishes (MQTT-4.6.0), each when its message is durable or handed on: a queue of them is kept, and sent
from the front as far as it is complete.

A fault ends this connection only: at level 5 with a DISCONNECT that names the reason, below by closing.

What it does not do yet is refused as the protocol has it: QoS 2 (0x9B), retained messages (0x9A), wills,
shared subscriptions (0x9E).
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import assert_never

from timeline.filters import TopicError, check_filter, parse_share
from timeline.position import MessageId, Position, before, id_text
from timeline.session import Subscription

from ..http.times import TimeError, parse_delay, parse_deliver_at
from ..message import Message
from ..subscriber import Subscriber
from . import wire
from .broker import Answer, Broker
from .encode import encode
from .incoming import PublishRefused, Wish, read_publish
from .outgoing import parts, special_parts
from .packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
    Unsubscribe,
)
from .properties import Properties, user_property
from .publish import Decoder, ack
from .reasons import MqttError, Reason, UnsupportedLevel, connect_return

log = logging.getLogger(__name__)

OUT_BYTES = 256 << 10
"""Unsent bytes from which a connection has no room: the session then reads on by itself, later."""


class PendingAck:
    """A publish that has not been answered yet."""

    __slots__ = ("is_ready", "message", "packet_id", "reason")

    def __init__(self, packet_id: int) -> None:
        self.packet_id = packet_id
        self.is_ready = False
        self.reason = 0
        self.message = 0


class Connection:
    """One client's connection. `wake` is called when there is something to send or to close."""

    def __init__(self, broker: Broker, *, peer: str, wake: Callable[[], None]) -> None:
        self._broker = broker
        self._peer = peer
        self._wake = wake
        self._decoder = Decoder(broker.config.mqtt.maximum_packet_size)
        self._level = 0
        self._subscriber: Subscriber | None = None
        self._held: list[Packet] = []
        self._acks: deque[PendingAck] = deque()
        self._wishes: list[tuple[Wish, Answer | None]] = []
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._max_packet = 0
        self.client_id = ""
        self.keep_alive_s = 0
        self.is_opening = False
        self.is_closed = False
        self.is_blocked = False
        """The socket takes no more data; set by the link."""

    # -- bytes

    def receive(self, data: bytes) -> None:
        """Bytes have come."""
        if self.is_closed:
            return
        try:
            packets = self._decoder.feed(data)
        except MqttError as error:
            self._accept(error.packets)
            self._fault(error)
        else:
            self._accept(packets)

    def take_output(self) -> list[bytes]:
        """What is to be sent now, in order."""
        out, self._out = self._out, []
        self._out_bytes = 0
        return out

    def lost(self) -> None:
        """The connection is gone. The session stays if it is persistent."""
        self.is_closed = True
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None and subscriber.link is self:
            self._broker.leave(subscriber)

    def drained(self) -> None:
        """What was waiting to be sent has gone out."""
        if self._subscriber is not None and not self.is_blocked:
            self._broker.read_on(self._subscriber)

    @property
    def is_open(self) -> bool:
        return self._subscriber is not None and not self.is_closed

    # -- Link

    @property
    def has_room(self) -> bool:
        return self._out_bytes < OUT_BYTES and not self.is_blocked and self.is_open

    def send(
        self,
        message: Message,
        qos: int,
        packet_id: int,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
    ) -> None:
        """Queue a delivery. One that is larger than the client takes is dropped and counted."""
        level, node = self._level, self._broker.node
        retain = False
        if attempt > 1 or any(s.identifier for s in subscriptions):
            head, tail = special_parts(message, level, qos, retain, node, subscriptions, attempt)
        else:
            head, tail = parts(message, level, qos, retain, node)
        size = len(head) + len(tail) + 2
        if self._max_packet and size > self._max_packet:
            self._drop(packet_id)
            return
        out = self._out
        if not out:
            self._wake()
        out.append(head)
        if qos:
            out.append(packet_id.to_bytes(2, "big"))
        out.append(tail)
        self._out_bytes += size

    def close(self, reason: int) -> None:
        """Say why, at level 5, and close."""
        if self.is_closed:
            return
        if self._level == 5 and self._subscriber is not None:
            self._put(Disconnect(reason))
        self.is_closed = True
        self._wake()

    # -- packets

    def _accept(self, packets: list[Packet]) -> None:
        if self.is_opening:
            self._held += packets
            return
        for index, packet in enumerate(packets):
            if self.is_closed:
                break
            if self.is_opening:
                self._held += packets[index:]
                break
            self._handle(packet)
        self._flush_publishes()

    def _handle(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._on_publish(packet)
        elif isinstance(packet, Ack):
            self._on_ack(packet)
        elif isinstance(packet, Connect):
            self._on_connect(packet)
        elif isinstance(packet, Subscribe):
            self._flush_publishes()
            self._on_subscribe(packet)
        elif isinstance(packet, Unsubscribe):
            self._flush_publishes()
            self._on_unsubscribe(packet)
        elif isinstance(packet, Pingreq):
            self._put(Pingresp())
        elif isinstance(packet, Disconnect):
            self._flush_publishes()
            self._on_disconnect(packet)
        elif isinstance(packet, Auth):
            self._refuse(Reason.BAD_AUTHENTICATION_METHOD, "AUTH without an authentication method")
        elif isinstance(packet, Connack | Suback | Unsuback | Pingresp):
            self._refuse(Reason.PROTOCOL_ERROR, f"{type(packet).__name__} from a client")
        else:
            assert_never(packet)

    # -- CONNECT

    def _on_connect(self, packet: Connect) -> None:
        if self._level:
            self._refuse(Reason.PROTOCOL_ERROR, "a second CONNECT")
            return
        self._level = packet.level
        reason = self._connect_fault(packet)
        if reason:
            self._refuse_connect(reason)
            return
        asked = packet.properties or Properties()
        self.client_id = packet.client_id or self._assign_id()
        self._max_packet = asked.maximum_packet_size or 0
        self.keep_alive_s = self._broker.config.mqtt.keep_alive_s or packet.keep_alive
        self._broker.traffic.connects += 1
        self._open_session(packet, asked)

    def _connect_fault(self, packet: Connect) -> Reason | None:
        properties = packet.properties
        if not packet.client_id and packet.level < 5 and not packet.clean_start:
            return Reason.CLIENT_IDENTIFIER_NOT_VALID
        if properties is not None and properties.auth_method is not None:
            return Reason.BAD_AUTHENTICATION_METHOD
        if not self._broker.config.mqtt.allow_anonymous:
            return Reason.NOT_AUTHORIZED
        if packet.will is not None:
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR
        return None

    def _refuse_connect(self, reason: int) -> None:
        log.info("connect refused: %s, reason 0x%02x", self._peer, reason)
        code = reason if self._level == 5 else connect_return(reason)
        self._put(Connack(False, code))
        self.is_closed = True
        self._wake()

    def _assign_id(self) -> str:
        return f"fasti-{self._broker.take_id():x}"

    def _expiry_s(self, packet: Connect, asked: Properties) -> int:
        """The session expiry that is granted."""
        longest = self._broker.config.sessions.expiry_max_ms // 1000
        if self._level == 5:
            return min(asked.session_expiry or 0, longest)
        return 0 if packet.clean_start else longest

    def _open_session(self, packet: Connect, asked: Properties) -> None:
        broker = self._broker
        expiry_s = self._expiry_s(packet, asked)
        window = min(asked.receive_maximum or 65_535, broker.config.sessions.max_in_flight)
        subscriber, is_present = broker.claim(
            self, self.client_id, clean=packet.clean_start, expiry_s=expiry_s, window=window
        )
        if subscriber is None:
            self._refuse_connect(Reason.QUOTA_EXCEEDED)
            return
        self.is_opening = True
        assigned = None if packet.client_id else self.client_id

        def opened(is_durable: bool) -> None:
            if self.is_closed:
                return
            self.is_opening = False
            if subscriber.link is not self:
                self.close(Reason.SESSION_TAKEN_OVER)
            elif not is_durable:
                self._refuse_connect(Reason.SERVER_UNAVAILABLE)
            else:
                self._opened(subscriber, is_present, asked, assigned)

        if expiry_s:
            broker.store(subscriber, opened)
        elif subscriber.is_stored:
            broker.erase(self.client_id, opened)
        else:
            opened(True)

    def _opened(
        self, subscriber: Subscriber, is_present: bool, asked: Properties, assigned: str | None
    ) -> None:
        self._subscriber = subscriber
        self._put(Connack(is_present, 0, self._connack_properties(subscriber, asked, assigned)))
        self._broker.resume(subscriber)
        held, self._held = self._held, []
        self._accept(held)

    def _connack_properties(
        self, subscriber: Subscriber, asked: Properties, assigned: str | None
    ) -> Properties | None:
        if self._level < 5:
            return None
        config = self._broker.config.mqtt
        granted = subscriber.session.expiry_s
        return Properties(
            session_expiry=granted if granted != (asked.session_expiry or 0) else None,
            receive_maximum=config.receive_maximum,
            maximum_qos=min(1, config.maximum_qos),
            retain_available=False,
            maximum_packet_size=config.maximum_packet_size,
            assigned_client_id=assigned,
            topic_alias_maximum=config.topic_alias_maximum or None,
            server_keep_alive=config.keep_alive_s or None,
            shared_available=False,
        )

    # -- SUBSCRIBE

    def _on_subscribe(self, packet: Subscribe) -> None:
        subscriber = self._present()
        properties = packet.properties or Properties()
        try:
            replay_from = self._replay_from(properties)
        except TimeError as error:
            log.info("subscribe refused: %s, replay-from: %s", self._peer, error)
            reasons = tuple(int(Reason.IMPLEMENTATION_SPECIFIC_ERROR) for _ in packet.filters)
            self._put(Suback(packet.packet_id, reasons))
            return
        identifier = properties.subscription_ids[0] if properties.subscription_ids else 0
        reasons = tuple(
            self._subscribe_one(subscriber, text, options, identifier, replay_from)
            for text, options in packet.filters
        )
        answer = Suback(packet.packet_id, reasons)
        if not subscriber.session.is_persistent:
            self._put(answer)
            return

        def stored(is_durable: bool) -> None:
            if is_durable:
                self._put(answer)
            else:
                self.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR)

        self._broker.store(subscriber, stored)

    def _subscribe_one(
        self,
        subscriber: Subscriber,
        text: str,
        options: SubscribeOptions,
        identifier: int,
        replay_from: Position | None,
    ) -> int:
        try:
            group, topic_filter = parse_share(text)
            check_filter(topic_filter)
        except TopicError:
            return Reason.TOPIC_FILTER_INVALID
        if group is not None:
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        denied = self._broker.denial(topic_filter, subscriber)
        if denied is not None:
            return denied
        granted = min(options.qos, self._broker.config.mqtt.maximum_qos, 1)
        wanted = Subscription(
            topic_filter,
            granted,
            self._broker.horizon(),
            options.no_local,
            options.retain_as_published,
            identifier,
        )
        self._broker.subscribe(subscriber, wanted, replay_from)
        return granted

    def _replay_from(self, properties: Properties) -> Position | None:
        """`replay-from`: a time, or a duration back from now. Raises TimeError."""
        text = properties.user("replay-from")
        if text is None:
            return None
        try:
            return before(parse_deliver_at(text))
        except TimeError:
            return before(max(0, self._broker.clock.wall_ms() - parse_delay(text)))

    def _on_unsubscribe(self, packet: Unsubscribe) -> None:
        subscriber = self._present()
        reasons = tuple(
            0 if self._broker.unsubscribe(subscriber, text) else int(Reason.NO_SUBSCRIPTION_EXISTED)
            for text in packet.filters
        )
        answer = Unsuback(packet.packet_id, reasons)
        if not subscriber.session.is_persistent:
            self._put(answer)
            return

        def stored(is_durable: bool) -> None:
            if is_durable:
                self._put(answer)
            else:
                self.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR)

        self._broker.store(subscriber, stored)

    # -- PUBLISH

    def _on_publish(self, packet: Publish) -> None:
        fault = self._publish_fault(packet)
        if fault is not None:
            self._refuse(*fault)
            return
        broker = self._broker
        pending = None
        if packet.qos:
            pending = PendingAck(packet.packet_id)
            self._acks.append(pending)
        try:
            wish = read_publish(
                packet, self.client_id, broker.clock.wall_ms(), broker.config.limits.max_delay_ms
            )
        except PublishRefused as error:
            broker.traffic.refused += 1
            log.info("publish refused: %s, %s", self._peer, error)
            self._answer(pending, error.reason, 0)
            return
        answer = None
        if pending is not None:

            def answer(reason: int, message: int) -> None:
                self._answer(pending, reason, message)

        self._wishes.append((wish, answer))

    def _publish_fault(self, packet: Publish) -> tuple[Reason, str] | None:
        """What of a publish ends the connection."""
        if packet.qos > 1:
            return Reason.QOS_NOT_SUPPORTED, "QoS 2"
        if packet.retain:
            return Reason.RETAIN_NOT_SUPPORTED, "a retained message"
        properties = packet.properties
        if properties is not None and properties.topic_alias is not None:
            return Reason.TOPIC_ALIAS_INVALID, "a topic alias, none were offered"
        if packet.qos and len(self._acks) >= self._broker.config.mqtt.receive_maximum and self._level == 5:
            return Reason.RECEIVE_MAXIMUM_EXCEEDED, "more publishes in flight than CONNACK allowed"
        if len(packet.payload) > self._broker.config.limits.max_payload:
            return Reason.PACKET_TOO_LARGE, "the payload is larger than limits.max_payload"
        return None

    def _flush_publishes(self) -> None:
        if self._wishes:
            wishes, self._wishes = self._wishes, []
            self._broker.publish(wishes)

    def _answer(self, pending: PendingAck | None, reason: int, message: int) -> None:
        """A publish has its answer: send what is complete from the front of the queue."""
        if reason >= 0x80 and self._level < 5:
            self._refuse(Reason(reason), "a publish that cannot be taken")
            return
        if pending is None:
            return
        pending.is_ready, pending.reason, pending.message = True, reason, message
        acks = self._acks
        while acks and acks[0].is_ready:
            self._write(self._puback(acks.popleft()))

    def _puback(self, pending: PendingAck) -> bytes:
        if self._level < 5:
            return ack(self._level, wire.PUBACK, pending.packet_id)
        properties = b""
        if pending.message:
            properties = user_property("fasti-id", id_text(MessageId(pending.message)))
        return ack(5, wire.PUBACK, pending.packet_id, pending.reason, properties)

    # -- acks of deliveries

    def _on_ack(self, packet: Ack) -> None:
        subscriber = self._present()
        if packet.kind != wire.PUBACK:
            if packet.kind == wire.PUBREL:
                self._put(Ack(wire.PUBCOMP, packet.packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))
            else:
                self._refuse(Reason.PROTOCOL_ERROR, "an ack of the wrong kind")
            return
        if subscriber.session.ack(packet.packet_id) is not None:
            subscriber.dirty.add(subscriber)
            if not subscriber.session.tailing:
                self._broker.read_on(subscriber)

    def _drop(self, packet_id: int) -> None:
        """The client does not take packets of this size: as if it had been acked."""
        self._broker.traffic.dropped += 1
        if self._subscriber is not None and packet_id:
            self._subscriber.session.ack(packet_id)

    # -- the end

    def _on_disconnect(self, packet: Disconnect) -> None:
        subscriber = self._present()
        asked = packet.properties.session_expiry if packet.properties is not None else None
        if asked is not None:
            session = subscriber.session
            if asked and not session.is_persistent:
                self._refuse(Reason.PROTOCOL_ERROR, "DISCONNECT gives a session an expiry that had none")
                return
            session.expiry_s = min(asked, self._broker.config.sessions.expiry_max_ms // 1000)
        self.is_closed = True
        self._wake()

    def _fault(self, error: MqttError) -> None:
        if self._level:
            self._refuse(Reason(error.reason), str(error))
            return
        log.info("connect refused: %s, %s", self._peer, error)
        if isinstance(error, UnsupportedLevel):
            self._write(error.connack)
        self.is_closed = True
        self._wake()

    def _refuse(self, reason: Reason, why: str) -> None:
        """A fault of the client: the connection ends, with the reason where the level has one."""
        log.info("connection closed: %s (%s), 0x%02x %s", self._peer, self.client_id, reason, why)
        self._wishes.clear()
        self.close(reason)

    # -- leaves

    def _present(self) -> Subscriber:
        assert self._subscriber is not None, "the decoder lets nothing through before CONNECT"
        return self._subscriber

    def _put(self, packet: Packet) -> None:
        self._write(encode(packet, self._level))

    def _write(self, data: bytes) -> None:
        if not self._out:
            self._wake()
        self._out.append(data)
        self._out_bytes += len(data)
