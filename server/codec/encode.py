"""Struct -> bytes, for all packets, levels and both directions.

The caller is trusted: a struct that breaks a rule of the protocol gives bytes that break it. Only what cannot
be written raises ValueError: a number or string too large for its place, a text with U+0000 or a lone
surrogate, a failure reason in a packet whose level has none. publish.py encodes publishes once for many
receivers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import wire
from .fields import Properties
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
    Will,
)
from .properties import encode_properties
from .publish import ack, publish_parts
from .reasons import connect_return

_PROTOCOL_NAMES: Final = {3: "MQIsdp", 4: "MQTT", 5: "MQTT"}


def encode(packet: Packet, level: int) -> bytes:
    """`packet` in protocol `level` (a Connect has its own). Errors: ValueError, see above."""
    return _ENCODERS[type(packet)](packet, level)


def _frame(first: int, *body: bytes) -> bytes:
    joined = b"".join(body)
    return b"%c%b%b" % (first, wire.varint(len(joined)), joined)


def _section(properties: Properties | None, level: int) -> bytes:
    if level < 5:
        return b""
    encoded = encode_properties(properties)
    return wire.varint(len(encoded)) + encoded


def _connect(packet: Connect, _: int) -> bytes:
    will = packet.will
    flags = packet.clean_start << 1 | (packet.password is not None) << 6 | (packet.username is not None) << 7
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
    return _frame(
        0x10,
        wire.text(_PROTOCOL_NAMES[packet.level]),
        bytes((packet.level | packet.is_bridge << 7, flags)),
        packet.keep_alive.to_bytes(2),
        _section(packet.properties, packet.level),
        wire.text(packet.client_id),
        b"" if will is None else _will(will, packet.level),
        b"" if packet.username is None else wire.text(packet.username),
        b"" if packet.password is None else wire.binary(packet.password),
    )


def _will(will: Will, level: int) -> bytes:
    return _section(will.properties, level) + wire.binary(will.topic) + wire.binary(will.payload)


def _connack(packet: Connack, level: int) -> bytes:
    reason = packet.reason if level == 5 else connect_return(packet.reason)
    present = packet.session_present and level > 3
    return _frame(0x20, bytes((present, reason)), _section(packet.properties, level))


def _publish(packet: Publish, level: int) -> bytes:
    properties = encode_properties(packet.properties) if level == 5 else b""
    head, tail = publish_parts(
        level, packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, properties
    )
    return head + packet.packet_id.to_bytes(2) + tail if packet.qos else head + tail


def _ack(packet: Ack, level: int) -> bytes:
    properties = encode_properties(packet.properties) if level == 5 else b""
    return ack(level, packet.kind, packet.packet_id, packet.reason, properties)


def _subscribe(packet: Subscribe, level: int) -> bytes:
    filters = b"".join(wire.text(name) + _options(options, level) for name, options in packet.filters)
    return _frame(0x82, packet.packet_id.to_bytes(2), _section(packet.properties, level), filters)


def _options(options: SubscribeOptions, level: int) -> bytes:
    if level < 5:
        return options.qos.to_bytes(1)
    later = options.no_local << 2 | options.retain_as_published << 3 | options.retain_handling << 4
    return (options.qos | later).to_bytes(1)


def _suback(packet: Suback, level: int) -> bytes:
    reasons = packet.reasons if level == 5 else [min(reason, 0x80) for reason in packet.reasons]
    return _frame(0x90, packet.packet_id.to_bytes(2), _section(packet.properties, level), bytes(reasons))


def _unsubscribe(packet: Unsubscribe, level: int) -> bytes:
    filters = b"".join(map(wire.text, packet.filters))
    return _frame(0xA2, packet.packet_id.to_bytes(2), _section(packet.properties, level), filters)


def _unsuback(packet: Unsuback, level: int) -> bytes:
    reasons = bytes(packet.reasons) if level == 5 else b""
    return _frame(0xB0, packet.packet_id.to_bytes(2), _section(packet.properties, level), reasons)


def _pingreq(_packet: Pingreq, _: int) -> bytes:
    return b"\xc0\x00"


def _pingresp(_packet: Pingresp, _: int) -> bytes:
    return b"\xd0\x00"


def _disconnect(packet: Disconnect, level: int) -> bytes:
    return _reason_frame(0xE0, packet.reason, packet.properties) if level == 5 else b"\xe0\x00"


def _auth(packet: Auth, level: int) -> bytes:
    if level < 5:
        raise ValueError(f"there is no AUTH at level {level}")
    return _reason_frame(0xF0, packet.reason, packet.properties)


def _reason_frame(first: int, reason: int, properties: Properties | None) -> bytes:
    """Reason and properties, each left out where the packet may end before it."""
    if properties is not None:
        return _frame(first, reason.to_bytes(1), _section(properties, 5))
    return _frame(first, reason.to_bytes(1) if reason else b"")


_ENCODERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    Connect: _connect,
    Connack: _connack,
    Publish: _publish,
    Ack: _ack,
    Subscribe: _subscribe,
    Suback: _suback,
    Unsubscribe: _unsubscribe,
    Unsuback: _unsuback,
    Pingreq: _pingreq,
    Pingresp: _pingresp,
    Disconnect: _disconnect,
    Auth: _auth,
}
