"""Numbers of packet types, and integers and strings on the wire.

MQTT has six forms: integers of 1, 2 and 4 bytes (big-endian), integers of variable length (7 bits a byte,
least significant first, at most 4 bytes: 321 is C1 02), and strings and binary values behind a length of 2
bytes. `Reader` walks one packet through them. It never reads past the packet, and every complaint names
packet, field and byte.
"""

from __future__ import annotations

import sys
from typing import Final

from .errors import MalformedPacket, ProtocolViolation

WILL: Final = 0  # not a packet: the will inside CONNECT has properties of its own
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

NAMES: Final = (
    *("RESERVED", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
    *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"),
)

VARINT_MAX: Final = 268_435_455


def varint(value: int) -> bytes:
    """`value` as variable byte integer in its shortest form; ValueError outside 0 .. 268,435,455."""
    if not 0 <= value <= VARINT_MAX:
        raise ValueError(f"{value} does not fit in a variable byte integer")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(value: str) -> bytes:
    """`value` as UTF-8 with its length in front; ValueError for U+0000, surrogates or over 65,535 bytes."""
    raw = value.encode()
    if 0 in raw:
        raise ValueError("U+0000 cannot be sent in an MQTT string")
    return binary(raw)


def binary(value: bytes) -> bytes:
    """`value` with its length in front; ValueError over 65,535 bytes."""
    if len(value) > 65_535:
        raise ValueError(f"{len(value)} bytes do not fit: an MQTT string holds 65,535 at most")
    return len(value).to_bytes(2) + value


class Reader:
    """A cursor over one packet: `data[start:stop]` with the cursor `at` behind the fixed header."""

    __slots__ = ("at", "data", "first", "from_server", "level", "start", "stop", "users_max")

    def __init__(
        self,
        data: bytes,
        start: int,
        at: int,
        stop: int,
        level: int,
        from_server: bool,
        users_max: int = sys.maxsize,
    ) -> None:
        self.data = data
        self.start = start
        self.at = at
        self.stop = stop
        self.first = data[start]
        self.level = level
        self.from_server = from_server
        self.users_max = users_max

    def malformed(self, field: str, detail: str, at: int | None = None) -> MalformedPacket:
        return MalformedPacket(NAMES[self.first >> 4], field, self._offset(at), detail)

    def violation(
        self, field: str, detail: str, at: int | None = None, reason: int | None = None
    ) -> ProtocolViolation:
        return ProtocolViolation(NAMES[self.first >> 4], field, self._offset(at), detail, reason)

    def _offset(self, at: int | None) -> int:
        return (self.at if at is None else at) - self.start

    def take(self, size: int, field: str) -> bytes:
        at = self.at
        end = at + size
        if end > self.stop:
            raise self.malformed(field, f"needs {size} bytes, the packet has {self.stop - at} left")
        self.at = end
        return self.data[at:end]

    def byte(self, field: str) -> int:
        return self.take(1, field)[0]

    def u16(self, field: str) -> int:
        return int.from_bytes(self.take(2, field))

    def u32(self, field: str) -> int:
        return int.from_bytes(self.take(4, field))

    def varint(self, field: str) -> int:
        value = shift = 0
        for at in range(self.at, min(self.at + 4, self.stop)):
            byte = self.data[at]
            value |= (byte & 127) << shift
            if byte < 128:
                if not byte and shift:
                    raise self.malformed(field, "is not in the shortest form")
                self.at = at + 1
                return value
            shift += 7
        raise self.malformed(field, "does not end within 4 bytes and the packet")

    def binary(self, field: str) -> bytes:
        return self.take(self.u16(field), field)

    def text(self, field: str) -> str:
        at = self.at
        return self._decode(self.binary(field), field, at)

    def _decode(self, raw: bytes, field: str, at: int) -> str:
        """`raw` as text. Python's UTF-8 is the strict one MQTT wants: no surrogates, no overlong forms."""
        try:
            value = raw.decode()
        except UnicodeDecodeError as error:
            raise self.malformed(field, f"is not UTF-8: {error.reason}", at) from None
        if "\0" in value:
            raise self.malformed(field, "holds U+0000", at)
        return value

    def topic_name(self, field: str) -> bytes:
        """A topic name as it came, checked: UTF-8, no U+0000, no wildcards. It may be empty."""
        at = self.at
        raw = self.binary(field)
        self._decode(raw, field, at)
        if b"+" in raw or b"#" in raw:
            raise self.malformed(field, "is a topic name and holds a wildcard", at)
        return raw

    def packet_id(self) -> int:
        packet_id = self.u16("packet id")
        if not packet_id:
            raise self.malformed("packet id", "is 0", self.at - 2)
        return packet_id

    def end(self) -> None:
        if self.at != self.stop:
            raise self.malformed("end", f"is followed by {self.stop - self.at} more bytes")
