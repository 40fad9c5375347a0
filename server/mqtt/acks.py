"""Acks of deliveries: each moves a flight on, or ends it.

    QoS 1   PUBLISH -> PUBACK: done
    QoS 2   PUBLISH -> PUBREC: remembered, durably -> PUBREL -> PUBCOMP: done

An ack of a packet id that is not in flight is passed over (the message was given to another member, or the
session began anew); one of the wrong kind is a protocol error.
"""

from typing import Protocol

from timeline.session import Flight

from ..codec import wire
from ..codec.packets import Ack, Packet
from ..codec.reasons import Reason
from ..delivery.broker import Broker
from ..delivery.subscriber import Subscriber


def _last_ack(flight: Flight) -> int:
    """The ack that ends a flight as it stands; 0: it has to be received before."""
    if flight.qos == 1:
        return wire.PUBACK
    return wire.PUBCOMP if flight.phase else 0


class Sink(Protocol):
    """The connection that acks come from."""

    @property
    def level(self) -> int: ...

    @property
    def is_closed(self) -> bool: ...

    def put(self, packet: Packet) -> None: ...

    def close(self, reason: int) -> None: ...

    def refuse(self, reason: Reason, why: str) -> None: ...


class Acks:
    """The acks of one connection."""

    def __init__(self, broker: Broker, sink: Sink) -> None:
        self._broker = broker
        self._sink = sink

    def on_ack(self, packet: Ack, subscriber: Subscriber) -> None:
        """PUBACK, PUBREC or PUBCOMP. The first lines are the usual case, one for each delivery."""
        flights = subscriber.session.flights
        flight = flights.get(packet.packet_id)
        if packet.kind == wire.PUBACK and flight is not None and flight.qos == 1 and flight.loan is None:
            del flights[packet.packet_id]
            if subscriber.session.resends:
                subscriber.session.resends.discard(packet.packet_id)
            if flight.size:
                subscriber.session.flight_bytes -= flight.size
            subscriber.dirty.add(subscriber)
            if not subscriber.session.tailing or subscriber.groups:
                self._broker.read_on(subscriber)
            return
        if packet.kind == wire.PUBREC:
            self._on_received(packet, subscriber, flight)
        elif flight is None:
            if packet.kind == wire.PUBCOMP:
                subscriber.session.retired.pop(packet.packet_id, None)
        elif packet.kind != _last_ack(flight):
            self._sink.refuse(Reason.PROTOCOL_ERROR, "an ack of the wrong kind")
        else:
            self.finish(subscriber, flight)

    def finish(self, subscriber: Subscriber, flight: Flight) -> None:
        """The client has the message for good, or will never take it."""
        subscriber.session.ack(flight.packet_id)
        subscriber.dirty.add(subscriber)
        if flight.loan is not None:
            self._broker.groups.over(subscriber, flight, is_acked=True)
        if subscriber.groups or not subscriber.session.tailing:
            self._broker.read_on(subscriber)

    def on_release(self, packet: Ack, subscriber: Subscriber) -> None:
        """PUBREL: the packet id of the client's publish is free again, when that is durable."""
        packet_id = packet.packet_id
        if packet_id not in subscriber.session.received:
            self._put(wire.PUBCOMP, packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
            return

        def released(is_durable: bool) -> None:
            if is_durable:
                self._put(wire.PUBCOMP, packet_id)
            else:
                self._sink.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR)

        self._broker.released(subscriber, packet_id, released)

    def _on_received(self, packet: Ack, subscriber: Subscriber, flight: Flight | None) -> None:
        """PUBREC: remember that the message is there, durably, then release it."""
        packet_id = packet.packet_id
        if flight is None:
            # An exchange that was given up is ended in order; the packet id is free with PUBCOMP.
            is_retired = packet_id in subscriber.session.retired
            self._put(wire.PUBREL, packet_id, 0 if is_retired else Reason.PACKET_IDENTIFIER_NOT_FOUND)
            return
        if flight.qos != 2:
            self._sink.refuse(Reason.PROTOCOL_ERROR, "an ack of the wrong kind")
            return
        if packet.reason >= 0x80:
            self.finish(subscriber, flight)
            return
        if flight.phase == 2 or not subscriber.session.is_persistent:
            flight.phase = 2
            self._put(wire.PUBREL, packet_id)
            return
        flight.phase = 1

        def stored(waiting: int) -> None:
            if waiting >= 0:
                flight.phase = 2
                self._put(wire.PUBREL, packet_id)
            else:
                self._sink.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR)

        subscriber.secure(subscriber, stored)

    def _put(self, kind: int, packet_id: int, reason: int = 0) -> None:
        """Below level 5 an ack carries no reason."""
        if not self._sink.is_closed:
            self._sink.put(Ack(kind, packet_id, reason if self._sink.level == 5 else 0))
