"""Output of one connection: deliveries, answers, and the last packet before it closes.

Output waits in a list that the link takes once a loop turn. Nothing follows a DISCONNECT. Nothing is sent
that is larger than the client accepts: a delivery is dropped, an answer ends the connection, explaining
properties are left out.
"""

import logging
from collections.abc import Callable, Sequence
from struct import Struct

import msgspec

from timeline.position import MessageId, id_text
from timeline.session import Flight, Subscription

from ..codec import wire
from ..codec.encode import encode
from ..codec.packets import Ack, Connack, Disconnect, Packet, Properties, Suback
from ..codec.publish import ack
from ..codec.reasons import Reason
from ..delivery.link import Closing
from ..delivery.message import Message
from ..delivery.publishing import Traffic
from ..delivery.run import Run
from ..engine.commit_hook import ignore
from ..observe.logs import TEXT_MAX, clean
from .forms import Shape, fasti_id, is_refused, parts, puback_with_id, run_pieces
from .peer import Peer

log = logging.getLogger(__name__)

_PUBACK = Struct(">BBH").pack
_REASONS = {
    Closing.TAKEN_OVER: Reason.SESSION_TAKEN_OVER,
    Closing.DROPPED: Reason.ADMINISTRATIVE_ACTION,
    Closing.STORE_FAILED: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Closing.FAILED: Reason.UNSPECIFIED_ERROR,
    Closing.STOPPING: Reason.SERVER_SHUTTING_DOWN,
    Closing.MOVED: Reason.SERVER_MOVED,
    Closing.TIMED_OUT: Reason.KEEP_ALIVE_TIMEOUT,
    Closing.REVOKED: Reason.NOT_AUTHORIZED,
}


class Outbox:
    """Output of one connection: the link that delivery sees.

    `wake` is called when there is an answer to send or something to close, `fill` when there are deliveries,
    which may wait for others. `drop` gets the packet id of a delivery that is too large for the client; 0: at
    QoS 0.
    """

    def __init__(
        self,
        traffic: Traffic,
        peer: Peer,
        *,
        node: int,
        out_bytes: int,
        wake: Callable[[], None],
        fill: Callable[[], None],
        drop: Callable[[int], None],
        displaced: Callable[[], None] = ignore,
    ) -> None:
        self._node = node
        self._traffic = traffic
        self._peer = peer
        self._wake = wake
        self._fill = fill
        self._drop = drop
        self._displaced = displaced
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._has_answer = False
        """Whether an answer is in the queue."""
        self.out_max = out_bytes
        """Unsent bytes from which there is no room."""
        self._max_packet = 0
        self._shape = Shape(0, node, 0, 0)
        self._is_plain = True
        """Deliveries go out in a form that is shared: no size to look at, no aliases."""
        self._tells_more = True
        """Whether acks may carry reason strings and user properties."""
        self.level = 0
        """Protocol level of the CONNECT; 0 before."""
        self._form = 0
        """Form of most deliveries (`forms.parts`), without QoS and retain."""
        self.has_refused = False
        """Whether a publish at QoS 2 was refused."""
        self.is_open = False
        """CONNACK may leave, and the end has not come."""
        self.is_closed = False
        """The end has come: the connection closes once the output has been sent."""
        self._is_blocked = False
        self.has_room = False
        """Cached, because it is read before each delivery."""

    def speak(self, level: int) -> None:
        """Set the protocol level of the CONNECT."""
        self.level = level
        self._form = level << 3

    def learn(self, requested: Properties) -> None:
        """Set the client's limits from its CONNECT."""
        aliases_max = requested.topic_alias_maximum or 0
        self._max_packet = requested.maximum_packet_size or 0
        self._shape = Shape(self.level, self._node, self._max_packet, aliases_max)
        self._is_plain = not (self._max_packet or aliases_max)
        self._tells_more = requested.request_problem_info is not False

    def open(self) -> None:
        """Open the output: the session is durable, so CONNACK and deliveries may leave."""
        self.is_open = True
        self._look()

    @property
    def is_blocked(self) -> bool:
        """Whether the socket is full; set by the link."""
        return self._is_blocked

    @is_blocked.setter
    def is_blocked(self, is_blocked: bool) -> None:
        self._is_blocked = is_blocked
        self._look()

    def _look(self) -> None:
        self.has_room = self._out_bytes < self.out_max and self.is_open and not self._is_blocked

    def take_output(self) -> list[bytes]:
        """Take the output to send now, in order."""
        out, self._out = self._out, []
        self._out_bytes = 0
        self._has_answer = False
        self._look()
        return out

    # -- Link

    @property
    def is_limited(self) -> bool:
        return self._max_packet > 0

    def takes(
        self, message: Message, qos: int, subscriptions: tuple[Subscription, ...], attempt: int
    ) -> bool:
        retain = message.retain and any(s.retain_as_published for s in subscriptions)
        is_dup = attempt > 1
        fit = self._shape.parts(message, qos, retain, subscriptions, attempt, is_dup, is_trial=True)
        return fit is not None

    def send(
        self,
        message: Message,
        qos: int,
        packet_id: int,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
        is_retained: bool = False,
        is_first: bool = False,
    ) -> None:
        """Queue a delivery. One that the client does not take is dropped and counted."""
        if self.is_closed:
            return
        if attempt == 1 and self._is_plain and len(subscriptions) == 1 and subscriptions[0].is_plain:
            retain = is_retained
            if not message.is_usual and not retain:
                retain = message.retain and subscriptions[0].retain_as_published
            wire = message.wire
            known = None if wire is None else wire.get(self._form | qos << 1 | retain)
            found = known or parts(message, self.level, qos, retain, self._node)
        else:
            retain = is_retained or (message.retain and any(s.retain_as_published for s in subscriptions))
            is_dup = attempt != 1 and not is_first
            found = self._shape.parts(message, qos, retain, subscriptions, attempt, is_dup)
        if found is None:
            self._lose(message, packet_id)
            return
        head, tail = found
        out = self._out
        if not out:
            self._fill()
        out.append(head)
        if qos:
            out.append(packet_id.to_bytes(2, "big"))
        out.append(tail)
        size = self._out_bytes = self._out_bytes + len(head) + len(tail)
        if size >= self.out_max:
            self.has_room = False
        traffic = self._traffic
        traffic.sent += 1
        traffic.payload_sent += message.payload_bytes

    def _lose(self, message: Message, packet_id: int) -> None:
        """Drop a delivery that is larger than the client allows, or whose topic clients refuse."""
        if is_refused(message):
            text = "delivery dropped: %s, control characters in the topic %s"
            log.warning(text, self._peer, clean(message.topic), extra=self._peer.cause)
        self._traffic.dropped += 1
        self._drop(packet_id)

    def takes_run(self, run: Run, qos: int) -> bool:
        if self.is_closed or not self._is_plain:
            return False
        _, size = run_pieces(run, self.level, qos, self._node)
        return self._out_bytes + size < self.out_max

    def send_run(self, run: Run, qos: int, flights: Sequence[Flight]) -> None:
        pieces, size = run_pieces(run, self.level, qos, self._node)
        if not self._out:
            self._fill()
        if qos:
            pieces = pieces.copy()
            pieces[1::3] = [flight.packet_id.to_bytes(2, "big") for flight in flights]
        self._out += pieces
        self._out_bytes += size
        self._traffic.sent += len(run.addresses)
        self._traffic.payload_sent += run.payload_bytes

    def release(self, packet_id: int) -> None:
        self.put(Ack(wire.PUBREL, packet_id))

    def close(self, why: Closing | None = None) -> None:
        """Send the reason, if any, at level 5. Close once the queued output has been sent."""
        if not self.is_closed:
            if why is Closing.TAKEN_OVER:
                self._displaced()
            if why is not None:
                self.say_why(_REASONS[why])
            self.abort()
            self._wake()

    # -- answers

    def put(self, packet: Packet) -> None:
        """Queue an answer. If the client does not take packets of its size the connection ends."""
        data = encode(packet, self.level)
        if 0 < self._max_packet < len(data) and isinstance(packet, Suback | Disconnect):
            data = encode(msgspec.structs.replace(packet, properties=None), self.level)
        if not self._max_packet or len(data) <= self._max_packet:
            self.write(data)
            return
        log.info(
            "connection closed: %s takes no answer of %d bytes",
            self._peer,
            len(data),
            extra=self._peer.cause,
        )
        if not isinstance(packet, Disconnect | Connack):
            self.say_why(Reason.PACKET_TOO_LARGE)
        self.close()

    def with_why(self, packet: Suback, why: str) -> Suback:
        """The answer with a reason string, if the client wants one."""
        if self.level == 5 and self._tells_more:
            return msgspec.structs.replace(packet, properties=Properties(reason_string=clean(why, TEXT_MAX)))
        return packet

    def put_ack(self, kind: int, packet_id: int, reason: int, more: bytes) -> None:
        """PUBACK or PUBREC; `more`, encoded properties, only if the client wants them and they fit."""
        self.has_refused |= kind == wire.PUBREC and reason >= 0x80
        data = ack(self.level, kind, packet_id, reason, more if self._tells_more else b"")
        if self._max_packet and len(data) > self._max_packet:
            data = ack(self.level, kind, packet_id, reason)
        self.write(data)

    def put_puback(self, packet_id: int) -> None:
        """`put_ack` of a QoS 1 publish of which there is nothing to say, the usual one."""
        if not self.is_closed:
            if not self._has_answer:
                self._has_answer = True
                self._wake()
            self._out.append(_PUBACK(0x40, 2, packet_id))
            self._out_bytes += 4
            if self._out_bytes >= self.out_max:
                self.has_room = False

    def put_named_puback(self, packet_id: int, message: int) -> None:
        """The same with the id of what was stored, which only level 5 can tell."""
        if self.level < 5:
            self.put_puback(packet_id)
        elif self._max_packet or not self._tells_more:
            self.put_ack(wire.PUBACK, packet_id, 0, fasti_id(id_text(MessageId(message))))
        else:
            self.write(puback_with_id(packet_id, message))

    def say_why(self, reason: int, why: str = "") -> None:
        """DISCONNECT, which only level 5 has and which may not come before CONNACK."""
        if self.level == 5 and self.is_open:
            properties = Properties(reason_string=clean(why, TEXT_MAX)) if why else None
            self.put(Disconnect(reason, properties))

    def write(self, data: bytes) -> None:
        """Queue bytes, whatever their size; nothing once the end has come."""
        if self.is_closed:
            return
        if not self._has_answer:
            self._has_answer = True
            self._wake()
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= self.out_max:
            self.has_room = False

    def end(self) -> None:
        """Discard further output: the connection is gone. Let go of it and of its link."""
        self.abort()
        self._wake = self._fill = self._drop = self._displaced = ignore

    def abort(self) -> None:
        """Discard further output."""
        self.is_closed = True
        self.is_open = self.has_room = False
