"""Struct -> bytes, for both directions: what clients send, and through the server's codec what it sends.

The caller is trusted, as by server/codec/encode.py. Only what cannot be written raises ValueError.
"""

from collections.abc import Callable
from typing import Any

from server.codec import wire
from server.codec.encode import encode as encode_answer
from server.codec.encode import frame, reason_frame, section
from server.codec.packets import (
    Auth,
    Connect,
    Packet,
    Pingreq,
    Publish,
    Subscribe,
    SubscribeOptions,
    Unsubscribe,
    Will,
)
from server.codec.properties import encode_properties
from server.codec.publish import publish_parts

_PROTOCOL_NAMES = {3: "MQIsdp", 4: "MQTT", 5: "MQTT"}


def encode(packet: Packet, level: int) -> bytes:
    """`packet` in protocol `level` (a Connect has its own)."""
    return _ENCODERS.get(type(packet), encode_answer)(packet, level)


def _connect(packet: Connect, _: int) -> bytes:
    will = packet.will
    flags = packet.clean_start << 1 | (packet.password is not None) << 6 | (packet.username is not None) << 7
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
    return frame(
        0x10,
        wire.text(_PROTOCOL_NAMES[packet.level]),
        bytes((packet.level | packet.is_bridge << 7, flags)),
        packet.keep_alive.to_bytes(2),
        section(packet.properties, packet.level),
        wire.text(packet.client_id),
        b"" if will is None else _will(will, packet.level),
        b"" if packet.username is None else wire.text(packet.username),
        b"" if packet.password is None else wire.binary(packet.password),
    )


def _will(will: Will, level: int) -> bytes:
    return section(will.properties, level) + wire.binary(will.topic) + wire.binary(will.payload)


def _publish(packet: Publish, level: int) -> bytes:
    properties = encode_properties(packet.properties) if level == 5 else b""
    head, tail = publish_parts(
        level, packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, properties
    )
    return head + packet.packet_id.to_bytes(2) + tail if packet.qos else head + tail


def _subscribe(packet: Subscribe, level: int) -> bytes:
    filters = b"".join(wire.text(name) + _options(options, level) for name, options in packet.filters)
    return frame(0x82, packet.packet_id.to_bytes(2), section(packet.properties, level), filters)


def _options(options: SubscribeOptions, level: int) -> bytes:
    if level < 5:
        return options.qos.to_bytes(1)
    later = options.no_local << 2 | options.retain_as_published << 3 | options.retain_handling << 4
    return (options.qos | later).to_bytes(1)


def _unsubscribe(packet: Unsubscribe, level: int) -> bytes:
    filters = b"".join(map(wire.text, packet.filters))
    return frame(0xA2, packet.packet_id.to_bytes(2), section(packet.properties, level), filters)


def _pingreq(_packet: Pingreq, _: int) -> bytes:
    return b"\xc0\x00"


def _auth(packet: Auth, level: int) -> bytes:
    if level < 5:
        raise ValueError(f"there is no AUTH at level {level}")
    return reason_frame(0xF0, packet.reason, packet.properties)


_ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    Connect: _connect,
    Publish: _publish,
    Subscribe: _subscribe,
    Unsubscribe: _unsubscribe,
    Pingreq: _pingreq,
    Auth: _auth,
}
