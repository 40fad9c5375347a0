"""The stream decoder, with the hot path of PUBLISH and acks, and publishes encoded once for many receivers.

Written for speed: at 100,000 messages a second the whole server has 10 us a message. A 64 KiB chunk of
200-byte publishes costs 0.98 us a packet at QoS 0 and 1.15 us at QoS 1 (1.21 us at level 5), an ack in such
a chunk 0.42 us; `parse` alone takes 4.1 us (2 cores, Python 3.11, freeing the packets included). So
`Decoder.feed` reads the usual PUBLISH and the 2-byte ack in one loop, without a call per field, and leaves
everything else to `parse`, which knows the rules and makes the complaints. `parse` would accept all that the
loop accepts, with the same result (a test checks this).

A client acks many deliveries at a time. A server reads such PUBACKs as one packet, an `AckRun`: 0.04 us for
each in place of 0.42.

Out: a message is encoded once per level and QoS into (head, tail); for QoS 1 and 2 each receiver's copy is
head + its packet id + tail:

    32 0d 00 03 61 2f 62 | 00 2a | 00 68 65 6c 6c 6f        topic "a/b", packet id 42, no properties, "hello"
            head           id             tail
"""

from __future__ import annotations

import struct
import sys
from typing import Final, Literal

from . import wire
from .errors import MalformedPacket, MqttError, PacketTooLarge
from .packets import Ack, AckRun, Connect, Packet, Properties, Publish
from .parse import check_first, parse
from .properties import read_users
from .wire import Reader

# First byte -> (qos, retain, dup) of a PUBLISH with sound flags, else None.
_PUBLISH_FLAGS: Final = tuple(
    (first >> 1 & 3, first & 1 == 1, first & 8 == 8)
    if first >> 4 == wire.PUBLISH and first & 6 != 6 and first & 14 != 8
    else None
    for first in range(256)
)
# First byte -> kind of ack with sound flags, else 0.
_ACK_KINDS: Final = tuple(
    {0x40: wire.PUBACK, 0x50: wire.PUBREC, 0x62: wire.PUBREL, 0x70: wire.PUBCOMP}.get(first, 0)
    for first in range(256)
)
MANY_BYTES: Final = 256
"""From so many bytes of properties on, reading them all at once is faster than one by one."""
_FOUR: Final = struct.Struct(">BBBB").unpack_from
_HEAD_1: Final = struct.Struct(">BBH").pack
_HEAD_2: Final = struct.Struct(">BBBH").pack
BYTES_AT_ONCE: Final = 16 << 10
"""How many bytes of packets are read before the caller looks at the clock: 3,000 user properties, 1 ms."""
RUN_MAX: Final = 256
"""Acks in one AckRun at most."""
RUN_COST: Final = 16
"""Bytes that an ack of a run counts for in BYTES_AT_ONCE: 1,000 acks between two looks at the clock."""
_PUBACK: Final = b"\x40\x02"
CONNECT_BYTES: Final = 192 << 10
"""Maximum size of a CONNECT, whatever `max_packet_bytes` is: the client does not know that bound yet."""
_LEVEL_5: Final = b"\x00\x04MQTT\x05"
_ACK_FIRST: Final = {wire.PUBACK: 0x40, wire.PUBREC: 0x50, wire.PUBREL: 0x62, wire.PUBCOMP: 0x70}


class Decoder:
    """Bytes of one connection in, packets out.

    `level` is 0 until CONNECT has come (a server's decoder learns it there); given, CONNECT counts as done.
    `role` is our side: a "server" reads what clients send, a "client" (which knows its level) what servers
    send. A packet of more than `max_packet_bytes`, fixed header included, is refused when its length is
    read; up to that much of an incomplete packet is kept. For CONNECT it is `CONNECT_BYTES`. One
    with more than `users_max` user properties, which cost far more than their bytes, is refused as well.
    `gathers`: PUBACKs that stand together come as one AckRun.
    """

    __slots__ = (
        "_at",
        "_dead",
        "_from_server",
        "_held",
        "_is_cut",
        "_left",
        "_wanted",
        "gathers",
        "level",
        "max_packet_bytes",
        "unreturned",
        "users_max",
    )

    def __init__(
        self,
        max_packet_bytes: int,
        level: int = 0,
        role: Literal["server", "client"] = "server",
        users_max: int = sys.maxsize,
        *,
        gathers: bool = False,
    ) -> None:
        if role == "client" and not level:
            raise ValueError("a client's decoder must be told its level")
        if max_packet_bytes < 4:
            raise ValueError("max_packet_bytes must be 4 at least: an ack has as many")
        self.max_packet_bytes = max_packet_bytes
        self.users_max = users_max
        self.level = level
        self._from_server = role == "client"
        self.gathers = gathers
        """May be changed from one `feed` to the next."""
        self._held = bytearray()  # the start of an incomplete packet ...
        self._wanted = 0  # ... and how much of it there must be before looking again
        self._left = b""  # what has not been looked at yet ...
        self._at = 0  # ... from here on
        self._is_cut = False  # the last call took what it was allowed to, and there is more
        self._dead = False
        self.unreturned: list[Packet] = []
        """The good packets of the call of `feed` that raised, in order."""

    @property
    def is_behind(self) -> bool:
        """Whether the last call took as many packets as it was allowed to: `feed(b"")` goes on."""
        return bool(self._left)

    @property
    def kept_bytes(self) -> int:
        """What is kept: the start of an incomplete packet, or what has not been looked at yet."""
        return len(self._held) + len(self._left) - self._at

    def feed(self, data: bytes, count_max: int = sys.maxsize) -> list[Packet]:
        """The packets that `data` completes, in order; O(len(data)) over all calls however it is cut.

        At most `count_max` of them and, if that is given, none that begins behind BYTES_AT_ONCE; the rest is
        kept (`is_behind`). Raises MqttError, the packets before the bad one are then in `.unreturned`; after
        that all input is ignored.
        """
        held = self._held
        at = 0
        if held:
            held += data
            if len(held) < self._wanted:
                return []
            data = bytes(held)
            self._held = bytearray()
        elif self._left:
            data, at = self._left + data if data else self._left, self._at
            self._left, self._at = b"", 0
        packets: list[Packet] = []
        if self._dead:
            return packets
        try:
            upto = at + BYTES_AT_ONCE if count_max < sys.maxsize else sys.maxsize
            at = self._decode(data, at, packets, count_max, upto)
        except MqttError:
            self._dead = True
            self.unreturned = packets
            raise
        if at < len(data):
            if self._is_cut:
                self._left, self._at = data, at
            else:
                self._held += data[at:]
        return packets

    def _decode(self, data: bytes, at: int, packets: list[Packet], count_max: int, upto: int) -> int:
        """Append `count_max` packets of `data` from `at` on, none that begins behind `upto`; return where the
        next one starts, or the end."""
        add = packets.append
        limit = self.max_packet_bytes
        level = self.level
        end = len(data)
        last = end - 4
        gathers = self.gathers
        self._is_cut = False
        while count_max and at < end and at <= upto:
            count_max -= 1
            if at <= last and level:
                first, length, third, fourth = _FOUR(data, at)
                flags = _PUBLISH_FLAGS[first]
                stop = at + 2 + length
                if flags is not None and length > 2:
                    if length < 128:
                        mark = at + 4
                        size = third << 8 | fourth
                    elif 0 < third < 128 and at < last:
                        stop += (third << 7) - 127
                        mark = at + 5
                        size = fourth << 8 | data[at + 4]
                    else:
                        stop = end + 1
                    if stop <= end and stop - at <= limit:
                        qos, retain, dup = flags
                        topic = data[mark : mark + size]
                        mark += size
                        packet_id = 0
                        if qos:
                            mark += 2
                            packet_id = data[mark - 2] << 8 | data[mark - 1] if mark <= stop else 0
                        properties: Properties | None = None
                        if level == 5:
                            if mark < stop and data[mark]:
                                properties, mark = _usual_properties(data, mark, stop, self.users_max)
                            else:
                                mark += 1
                        if (
                            mark <= stop
                            and (packet_id or not qos)
                            and (topic or (properties and properties.topic_alias))
                            and topic.isascii()
                            and 43 not in topic  # +
                            and 35 not in topic  # #
                            and 0 not in topic
                        ):
                            add(Publish(topic, data[mark:stop], qos, retain, dup, packet_id, properties))
                            at = stop
                            continue
                elif length == 2 and _ACK_KINDS[first] and (third or fourth):
                    if gathers and first == 0x40 and data.startswith(_PUBACK, at + 8):
                        ids = _run_of_acks(data, at)
                        add(AckRun(ids))
                        stop = at + 4 * len(ids)
                        upto -= (RUN_COST - 4) * len(ids)
                    else:
                        add(Ack(_ACK_KINDS[first], third << 8 | fourth))
                    at = stop
                    continue
            start, at = at, self._any(data, at, packets)
            if at == start:
                return at
            level = self.level
        self._is_cut = at < end
        return at

    def _any(self, data: bytes, at: int, packets: list[Packet]) -> int:
        """Append the packet at `at`, of any kind; returns its end. If it is incomplete that is `at`, and
        `_wanted` is the number of bytes that it needs."""
        length, body = _read_length(data, at, self.level)
        stop = body + length
        if not body:
            self._wanted = len(data) - at + 1
            return at
        limit = self.max_packet_bytes if self.level else CONNECT_BYTES
        if stop - at > limit:
            detail = f"makes {stop - at} bytes, {limit} are allowed"
            large = PacketTooLarge(wire.NAMES[data[at] >> 4], "remaining length", 1, detail)
            large.spoken = 5 if data.startswith(_LEVEL_5, body) else 0
            raise large
        reader = Reader(data, at, body, min(stop, len(data)), self.level, self._from_server, self.users_max)
        if stop > len(data):
            check_first(reader)
            self._wanted = stop - at
            return at
        try:
            packet = parse(reader)
            if type(packet) is Connect:
                if packet.level == 5 and body - at - 1 != len(wire.varint(length)):
                    raise MalformedPacket("CONNECT", "remaining length", 1, "is not in the shortest form")
                self.level = packet.level
        except MqttError as error:
            error.spoken = reader.level
            raise
        packets.append(packet)
        return stop


def _run_of_acks(data: bytes, at: int) -> tuple[int, ...]:
    """Packet ids of the PUBACKs of 4 bytes that stand together from `at` on; the first is valid."""
    run = data[at : at + 4 * min(RUN_MAX, (len(data) - at) // 4)]
    firsts, lengths = run[::4], run[1::4]
    count = len(firsts) - max(len(firsts.lstrip(b"\x40")), len(lengths.lstrip(b"\x02")))
    ids: tuple[int, ...] = struct.unpack(f">{2 * count}H", run[: 4 * count])[1::2]
    return ids[: ids.index(0)] if 0 in ids else ids


def _usual_properties(data: bytes, at: int, stop: int, users_max: int) -> tuple[Properties | None, int]:
    """The section at `at` if it has only user properties, message expiry and topic alias, and its end. For
    any other the end is behind `stop`, which sends the packet to `parse`."""
    users: list[tuple[str, str]] = []
    expiry = alias = None
    end = at + 1 + data[at]
    at += 1
    try:
        if data[at - 1] > 127:
            end += (data[at] << 7) - 127 if 0 < data[at] < 128 else stop
            at += 1
        while at < end <= stop:
            identifier = data[at]
            if identifier == 0x26:
                if end - at > MANY_BYTES:
                    more, at = read_users(data, at, end, users_max - len(users))
                    if not more:
                        break
                    users += more
                    continue
                key_end = at + 3 + (data[at + 1] << 8 | data[at + 2])
                value_end = key_end + 2 + (data[key_end] << 8 | data[key_end + 1])
                key = data[at + 3 : key_end].decode()
                value = data[key_end + 2 : value_end].decode()
                if "\0" in key or "\0" in value or len(users) == users_max:
                    break
                users.append((key, value))
                at = value_end
            elif identifier == 0x02 and expiry is None:
                expiry = int.from_bytes(data[at + 1 : at + 5])
                at += 5
            elif identifier == 0x23 and alias is None:
                alias = data[at + 1] << 8 | data[at + 2]
                at += 3
            else:
                break
    except (IndexError, UnicodeDecodeError):
        pass  # a string that ends behind the chunk or is not UTF-8
    if at != end or alias == 0:
        return None, stop + 1
    return Properties(message_expiry=expiry, topic_alias=alias, user_properties=tuple(users)), end


def _read_length(data: bytes, start: int, level: int) -> tuple[int, int]:
    """Remaining length and start of the body; (0, 0) if more bytes are needed. Only MQTT 5 forbids forms
    longer than needed; a CONNECT is checked again when its level is known."""
    value = shift = 0
    for at in range(start + 1, min(start + 5, len(data))):
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            if not byte and shift and level == 5:
                raise MalformedPacket(
                    wire.NAMES[data[start] >> 4], "remaining length", 1, "is not in the shortest form"
                )
            return value, at + 1
        shift += 7
    if shift == 28:
        raise MalformedPacket(wire.NAMES[data[start] >> 4], "remaining length", 1, "is longer than 4 bytes")
    return 0, 0


def publish_parts(
    level: int, topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool, properties: bytes = b""
) -> tuple[bytes, bytes]:
    """(head, tail) of a PUBLISH: QoS 0 is head + tail, QoS 1 and 2 head + packet id (2 bytes) + tail.

    `properties` are encoded, without their length; below level 5 they are left out. ValueError if the topic
    has more than 65,535 bytes or the packet more than 256 MiB.
    """
    if level < 5:
        tail = payload
    elif properties:
        tail = wire.varint(len(properties)) + properties + payload
    else:
        tail = b"\0" + payload
    return joined(topic, tail, qos, retain, dup)


def joined(topic: bytes, tail: bytes, qos: int, retain: bool, dup: bool = False) -> tuple[bytes, bytes]:
    """`publish_parts` of a tail that is made: at level 5 properties with their length, then the payload."""
    topic_bytes = len(topic)
    if topic_bytes > 65_535:
        raise ValueError(f"a topic of {topic_bytes} bytes does not fit: 65,535 at most")
    length = topic_bytes + len(tail) + (4 if qos else 2)
    first = 0x30 | dup << 3 | qos << 1 | retain
    if length < 128:
        return _HEAD_1(first, length, topic_bytes) + topic, tail
    if length < 16_384:
        return _HEAD_2(first, length & 127 | 128, length >> 7, topic_bytes) + topic, tail
    return b"%c%b%b%b" % (first, wire.varint(length), topic_bytes.to_bytes(2), topic), tail


def with_dup(head: bytes) -> bytes:
    """The head of a PUBLISH for sending it again: the same with DUP set."""
    return (head[0] | 8).to_bytes(1) + head[1:]


def ack(level: int, kind: int, packet_id: int, reason: int = 0, properties: bytes = b"") -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP (`kind`) in its shortest form; `properties` encoded, without length.
    ValueError for a failure below level 5, which has none: disconnect such a client."""
    first = _ACK_FIRST[kind]
    if level < 5:
        if reason >= 0x80:
            raise ValueError(f"an ack of level {level} cannot carry reason 0x{reason:02x}")
    elif properties:
        section = wire.varint(len(properties)) + properties
        return b"%c%b%b%c%b" % (first, wire.varint(3 + len(section)), packet_id.to_bytes(2), reason, section)
    elif reason:
        return b"%c\x03%b%c" % (first, packet_id.to_bytes(2), reason)
    return _HEAD_1(first, 2, packet_id)
