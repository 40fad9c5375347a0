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
from collections.abc import Callable

from timeline.position import MessageId, id_text
from timeline.session import Subscription

from ..message import Message
from ..subscriber import Subscriber
from . import wire
from .broker import Broker
from .encode import encode
from .inflow import Inflow, PendingAck
from .opening import connack_properties, connect_fault, granted_expiry_s, granted_window
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
    Unsuback,
    Unsubscribe,
)
from .properties import user_property
from .publish import Decoder, ack
from .reasons import MqttError, Reason, UnsupportedLevel, connect_return
from .subscribing import subscribe, unsubscribe

log = logging.getLogger(__name__)

HELD_PACKETS = 100
OUT_BYTES = 256 << 10
"""Unsent bytes from which a connection has no room: the session then reads on by itself, later."""


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
        self._inflow = Inflow(broker, self._acknowledge)
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
        """CONNACK is out and the connection has not ended."""
        return self._subscriber is not None and not self.is_opening and not self.is_closed

    @property
    def is_overfed(self) -> bool:
        """Too much has come that waits for the session to be opened: read no more for now."""
        return len(self._held) > HELD_PACKETS

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
        self._end()

    # -- packets

    def _accept(self, packets: list[Packet]) -> None:
        """Handle packets in order; what comes while the session is being opened waits."""
        waiting = self._held + packets
        self._held = []
        for index, packet in enumerate(waiting):
            if self.is_closed:
                return
            if self.is_opening:
                self._held = waiting[index:]
                break
            self._handle(packet)
        self._inflow.flush()

    def _handle(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._on_publish(packet)
            return
        if isinstance(packet, Ack):
            self._on_ack(packet)
            return
        self._inflow.flush()
        if isinstance(packet, Connect):
            self._on_connect(packet)
        elif isinstance(packet, Subscribe):
            self._on_subscribe(packet)
        elif isinstance(packet, Unsubscribe):
            self._on_unsubscribe(packet)
        elif isinstance(packet, Pingreq):
            self._put(Pingresp())
        elif isinstance(packet, Disconnect):
            self._on_disconnect(packet)
        elif isinstance(packet, Auth):
            self._refuse(Reason.PROTOCOL_ERROR, "AUTH without an authentication method")
        else:
            self._refuse(Reason.PROTOCOL_ERROR, f"{type(packet).__name__} from a client")

    # -- CONNECT

    def _on_connect(self, packet: Connect) -> None:
        if self._level:
            self._refuse(Reason.PROTOCOL_ERROR, "a second CONNECT")
            return
        self._level = packet.level
        reason = connect_fault(packet, self._broker.config)
        if reason:
            self._refuse_connect(reason)
            return
        broker = self._broker
        self.client_id = packet.client_id or f"fasti-{broker.take_id():x}"
        asked = packet.properties
        self._max_packet = asked.maximum_packet_size or 0 if asked is not None else 0
        self.keep_alive_s = broker.config.mqtt.keep_alive_s or packet.keep_alive
        broker.traffic.connects += 1
        self._open_session(packet)

    def _open_session(self, packet: Connect) -> None:
        """Claim the session; CONNACK leaves when it is durable."""
        broker = self._broker
        expiry_s = granted_expiry_s(packet, broker.config)
        subscriber, is_present = broker.claim(
            self,
            self.client_id,
            clean=packet.clean_start,
            expiry_s=expiry_s,
            window=granted_window(packet, broker.config),
        )
        if subscriber is None:
            self._refuse_connect(Reason.QUOTA_EXCEEDED)
            return
        self.is_opening = True
        self._subscriber = subscriber

        def opened(is_durable: bool) -> None:
            self.is_opening = False
            if self.is_closed:
                return
            if subscriber.link is not self:
                self.close(Reason.SESSION_TAKEN_OVER)
            elif not is_durable:
                self._refuse_connect(Reason.SERVER_UNAVAILABLE)
            else:
                self._opened(subscriber, is_present, packet)

        if expiry_s:
            broker.store(subscriber, opened)
        elif subscriber.is_stored:
            broker.erase(self.client_id, opened)
        else:
            opened(True)

    def _opened(self, subscriber: Subscriber, is_present: bool, packet: Connect) -> None:
        properties = None
        if self._level == 5:
            assigned = None if packet.client_id else self.client_id
            expiry_s = subscriber.session.expiry_s
            properties = connack_properties(packet, self._broker.config, expiry_s, assigned)
        self._put(Connack(is_present, 0, properties))
        self._broker.resume(subscriber)
        self._accept([])

    def _refuse_connect(self, reason: int) -> None:
        log.info("connect refused: %s, reason 0x%02x", self._peer, reason)
        self._put(Connack(False, reason if self._level == 5 else connect_return(reason)))
        self._end()

    # -- SUBSCRIBE, UNSUBSCRIBE

    def _on_subscribe(self, packet: Subscribe) -> None:
        reasons = subscribe(self._broker, self._present(), packet)
        self._put_stored(Suback(packet.packet_id, reasons))

    def _on_unsubscribe(self, packet: Unsubscribe) -> None:
        reasons = unsubscribe(self._broker, self._present(), packet)
        self._put_stored(Unsuback(packet.packet_id, reasons))

    def _put_stored(self, answer: Packet) -> None:
        """Send an answer once the session, if it is persistent, is durable as it is now."""
        subscriber = self._present()
        if not subscriber.session.is_persistent:
            self._put(answer)
            return

        def stored(is_durable: bool) -> None:
            if not is_durable:
                self.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR)
            elif not self.is_closed:
                self._put(answer)

        self._broker.store(subscriber, stored)

    # -- PUBLISH

    def _on_publish(self, packet: Publish) -> None:
        fault = self._inflow.fault(packet, self._level)
        if fault is not None:
            self._refuse(*fault)
            return
        error = self._inflow.take(packet, self.client_id)
        if error is not None:
            log.info("publish refused: %s (%s), %s", self._peer, self.client_id, error)

    def _acknowledge(self, pending: PendingAck) -> None:
        """Answer a publish; below level 5 a refusal can only be said by closing."""
        if self.is_closed:
            return
        if self._level == 5:
            name = id_text(MessageId(pending.message)) if pending.message else ""
            properties = user_property("fasti-id", name) if name else b""
            self._write(ack(5, wire.PUBACK, pending.packet_id, pending.reason, properties))
        elif pending.reason >= 0x80:
            self._refuse(Reason(pending.reason), "a publish that cannot be taken")
        else:
            self._write(ack(self._level, wire.PUBACK, pending.packet_id))

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
        self._end()

    def _fault(self, error: MqttError) -> None:
        if self._level:
            self._refuse(Reason(error.reason), str(error))
            return
        log.info("connect refused: %s, %s", self._peer, error)
        if isinstance(error, UnsupportedLevel):
            self._write(error.connack)
        self._end()

    def _refuse(self, reason: Reason, why: str) -> None:
        """A fault of the client: the connection ends, with the reason where the level has one."""
        log.info("connection closed: %s (%s), 0x%02x %s", self._peer, self.client_id, reason, why)
        self._inflow.forget()
        self.close(reason)

    # -- leaves

    def _present(self) -> Subscriber:
        assert self._subscriber is not None, "the decoder lets nothing through before CONNECT"
        return self._subscriber

    def _end(self) -> None:
        """Close when what has been put has been sent."""
        self.is_closed = True
        self._wake()

    def _put(self, packet: Packet) -> None:
        self._write(encode(packet, self._level))

    def _write(self, data: bytes) -> None:
        if not self._out:
            self._wake()
        self._out.append(data)
        self._out_bytes += len(data)
