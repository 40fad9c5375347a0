"""Acks of deliveries: each moves a flight on, or ends it.

    QoS 1   PUBLISH -> PUBACK: done
    QoS 2   PUBLISH -> PUBREC: remembered, durably -> PUBREL -> PUBCOMP: done

With a reason code >= 0x80 the client refuses the message, and it is done. With the user property `retry-in`
as well, the client could not do it now: the message comes again after that time (no value: the back-off), or
is a dead letter at once (`never`).

A PUBACK with the user property `result` (JSON) stores that as the message's result.

PUBACKs that stand together are ended in one go, and subscribers look for room once.

An ack of a packet id that is not in flight is ignored (the message was given to another member, or the
session is a new one). One of the wrong kind is a protocol error.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from timeline.deliveries import NEVER

from ..codec import wire
from ..codec.packets import Ack, AckRun, Packet, Properties
from ..codec.reasons import Reason
from ..delivery.link import Closing
from ..delivery.publishing import Publishing
from ..delivery.settling.settling import Receipt, Settling
from ..delivery.subscriber import Subscriber
from ..engine.commit_hook import ignore
from ..settings.durations import NEVER_TEXT, TimeError, parse_delay

WRONG_KIND = "wrong kind of ack"
RETRY_IN = "retry-in"
RESULT = "result"
AUTO = ("", "auto")
"""Value of `retry-in` that leaves the time to the back-off."""


class Sink(Protocol):
    """What Acks needs of a connection's outbox. The model of the tests has a client of its own instead."""

    @property
    def level(self) -> int: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def has_refused(self) -> bool: ...

    def put(self, packet: Packet) -> None: ...

    def close(self, why: Closing) -> None: ...


class Acks:
    """The acks of one connection."""

    def __init__(
        self,
        settling: Settling,
        publishing: Publishing,
        outbox: Sink,
        refuse: Callable[[Reason, str], None],
        *,
        max_delay_ms: int,
    ) -> None:
        self._settling = settling
        self._publishing = publishing
        self._max_delay_ms = max_delay_ms
        self._outbox = outbox
        self._refuse = refuse
        self.is_resumed = False
        """Whether the session is from before: then either side may not know a packet id of the other."""
        self.unsent = 0
        """Answers to acks that wait for the store."""

    def on_run(self, packet: AckRun, subscriber: Subscriber) -> None:
        """Handle a run of PUBACKs without a reason."""
        if not self._settling.ack_run(subscriber, packet.packet_ids):
            self._refuse(Reason.PROTOCOL_ERROR, WRONG_KIND)

    def on_ack(self, packet: Ack, subscriber: Subscriber) -> None:
        """Handle PUBACK, PUBREC or PUBCOMP."""
        if packet.properties is not None and packet.reason >= 0x80:
            wait = packet.properties.user(RETRY_IN)
            if wait is not None and packet.kind != wire.PUBCOMP:
                self._on_nack(packet, packet.properties, wait, subscriber)
                return
        result = None if packet.properties is None or packet.reason else packet.properties.user(RESULT)
        if packet.kind == wire.PUBACK and result is not None:
            is_due = self._settling.answer(subscriber, packet.packet_id, _json_of(result))
        elif packet.kind == wire.PUBACK:
            is_due = self._settling.ack(subscriber, packet.packet_id)
        elif packet.kind == wire.PUBREC:
            is_due = self._on_received(packet, subscriber)
        else:
            is_due = self._settling.complete(subscriber, packet.packet_id)
        if not is_due:
            self._refuse(Reason.PROTOCOL_ERROR, WRONG_KIND)

    def on_release(self, packet: Ack, subscriber: Subscriber) -> None:
        """Handle PUBREL: free the packet id of the client's publish, durably."""
        packet_id = packet.packet_id
        if packet_id not in subscriber.session.received:
            self._put_unknown(wire.PUBCOMP, packet_id, is_error=self._outbox.has_refused)
            return
        self.unsent += 1
        self._publishing.released(subscriber, packet_id, self._answering(wire.PUBCOMP, packet_id))

    def _on_nack(self, packet: Ack, properties: Properties, wait: str, subscriber: Subscriber) -> None:
        """Handle a refusing PUBACK or PUBREC: redeliver later."""
        try:
            delay_ms = None if wait in AUTO else NEVER if wait == NEVER_TEXT else parse_delay(wait)
        except TimeError as error:
            self._refuse(Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{RETRY_IN}: {error}")
            return
        if delay_ms is not None and delay_ms > self._max_delay_ms:
            self._refuse(Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{RETRY_IN} is above limits.max_delay")
            return
        why = properties.user("reason") or properties.reason_string or f"nacked with 0x{packet.reason:02x}"
        qos = 1 if packet.kind == wire.PUBACK else 2
        if not self._settling.nack(
            subscriber, packet.packet_id, delay_ms=delay_ms, reason=why, done=ignore, qos=qos
        ):
            self._refuse(Reason.PROTOCOL_ERROR, WRONG_KIND)

    def _on_received(self, packet: Ack, subscriber: Subscriber) -> bool:
        """PUBREC: the message is released when it is remembered durably that it is there."""
        packet_id = packet.packet_id
        done = self._answering(wire.PUBREL, packet_id)
        receipt = self._settling.received(subscriber, packet_id, done, is_taken=packet.reason < 0x80)
        match receipt:
            case Receipt.LATER:
                self.unsent += 1
            case Receipt.UNKNOWN:
                self._put_unknown(wire.PUBREL, packet_id)
            case Receipt.NOTED | Receipt.RETIRED:
                # An exchange that was given up is ended in order too: the packet id is free with PUBCOMP.
                self._put(wire.PUBREL, packet_id)
        return receipt is not Receipt.WRONG

    def _answering(self, kind: int, packet_id: int) -> Callable[[bool], None]:
        """A callback: sends the packet once the change is durable, or ends the connection if it cannot be."""

        def answer(is_durable: bool) -> None:
            self.unsent -= 1
            if is_durable:
                self._put(kind, packet_id)
            else:
                self._outbox.close(Closing.STORE_FAILED)

        return answer

    def _put_unknown(self, kind: int, packet_id: int, *, is_error: bool = False) -> None:
        """Answer an ack of an exchange that is over here. During recovery this is no error (MQTT 5.0,
        3.6.2.1), and clients such as MQTT.js read 0x92 as a refused publish. `is_error`: the server may have
        refused the publish. paho sends PUBREL for these too, and reads 0 as success."""
        is_known = self.is_resumed and not is_error
        self._put(kind, packet_id, 0 if is_known else Reason.PACKET_IDENTIFIER_NOT_FOUND)

    def _put(self, kind: int, packet_id: int, reason: int = 0) -> None:
        """Send an ack; below level 5 it carries no reason."""
        if not self._outbox.is_closed:
            self._outbox.put(Ack(kind, packet_id, reason if self._outbox.level == 5 else 0))


def _json_of(text: str) -> bytes:
    """As it came; empty: it is not JSON."""
    with suppress(msgspec.DecodeError, RecursionError):
        msgspec.json.decode(text, type=msgspec.Raw)  # any number, as over HTTP
        return text.encode()
    return b""
