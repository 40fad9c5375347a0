"""Struct -> bytes, for the packets that a server sends, at all levels.

The caller is trusted: a struct that breaks a rule of the protocol gives bytes that break it. Only what cannot
be written raises ValueError: a number or string too large for its place, a text with U+0000 or a lone
surrogate, a failure reason in a packet whose level has none. publish.py encodes publishes once for many
receivers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import wire
from .packets import Ack, Connack, Disconnect, Packet, Pingresp, Properties, Suback, Unsuback
from .properties import encode_properties
from .publish import ack
from .reasons import connect_return


def encode(packet: Packet, level: int) -> bytes:
    """`packet` in protocol `level`. Errors: ValueError, see above."""
    return _ENCODERS[type(packet)](packet, level)


def frame(first: int, *body: bytes) -> bytes:
    """A packet that begins with byte `first`."""
    joined = b"".join(body)
    return b"%c%b%b" % (first, wire.varint(len(joined)), joined)


def section(properties: Properties | None, level: int) -> bytes:
    """Properties behind their length; nothing below level 5."""
    if level < 5:
        return b""
    encoded = encode_properties(properties)
    return wire.varint(len(encoded)) + encoded


def _connack(packet: Connack, level: int) -> bytes:
    reason = packet.reason if level == 5 else connect_return(packet.reason)
    present = packet.session_present and level > 3
    return frame(0x20, bytes((present, reason)), section(packet.properties, level))


def _ack(packet: Ack, level: int) -> bytes:
    properties = encode_properties(packet.properties) if level == 5 else b""
    return ack(level, packet.kind, packet.packet_id, packet.reason, properties)


def _suback(packet: Suback, level: int) -> bytes:
    reasons = packet.reasons if level == 5 else [min(reason, 0x80) for reason in packet.reasons]
    return frame(0x90, packet.packet_id.to_bytes(2), section(packet.properties, level), bytes(reasons))


def _unsuback(packet: Unsuback, level: int) -> bytes:
    reasons = bytes(packet.reasons) if level == 5 else b""
    return frame(0xB0, packet.packet_id.to_bytes(2), section(packet.properties, level), reasons)


def _disconnect(packet: Disconnect, level: int) -> bytes:
    return reason_frame(0xE0, packet.reason, packet.properties) if level == 5 else b"\xe0\x00"


def reason_frame(first: int, reason: int, properties: Properties | None) -> bytes:
    """Reason and properties, each left out where the packet may end before it."""
    if properties is not None:
        return frame(first, reason.to_bytes(1), section(properties, 5))
    return frame(first, reason.to_bytes(1) if reason else b"")


_ENCODERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    Connack: _connack,
    Ack: _ack,
    Suback: _suback,
    Unsuback: _unsuback,
    Pingresp: lambda _packet, _: b"\xd0\x00",
    Disconnect: _disconnect,
}
