"""The body of one packet -> struct, every normative rule checked.

`parse` reads one whole packet through a `Reader` and returns the struct or raises. It handles PUBLISH and
acks too: publish.py reads only their usual shapes, and leaves everything odd, and every complaint, to this
module.

The levels differ: only 5 has properties and reason codes. 3.1 (level 3, "MQIsdp") allows the DUP bit on
PUBREL, SUBSCRIBE and UNSUBSCRIBE, and has no rule for the reserved connect flag and CONNACK's first byte. A
bridge of mosquitto sets the top bit of the level: 0x83 and 0x84 are 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from . import reasons, wire
from .errors import UnsupportedLevel
from .packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
    Unsubscribe,
    Will,
)
from .properties import read_properties
from .wire import Reader

_LEVELS: Final = {("MQIsdp", 3), ("MQTT", 4), ("MQTT", 5), ("MQIsdp", 0x83), ("MQTT", 0x84)}
FILTERS_MAX: Final = 10_000
"""Filters in one packet: to read so many takes 10 ms."""
CONNECT_USERS: Final = 64
"""User properties of a CONNECT, and of its will, whose sender is not known yet. Any other property may stand
once, so each section has at most 73."""
_CLIENT_ONLY: Final = frozenset({wire.CONNECT, wire.SUBSCRIBE, wire.UNSUBSCRIBE, wire.PINGREQ})
_SERVER_ONLY: Final = frozenset({wire.CONNACK, wire.SUBACK, wire.UNSUBACK, wire.PINGRESP})
_FLAGS_2: Final = frozenset({wire.PUBREL, wire.SUBSCRIBE, wire.UNSUBSCRIBE})
_ACK_REASONS: Final = {
    wire.PUBACK: reasons.PUBLISH_REASONS,
    wire.PUBREC: reasons.PUBLISH_REASONS,
    wire.PUBREL: reasons.RELEASE_REASONS,
    wire.PUBCOMP: reasons.RELEASE_REASONS,
}


def parse(reader: Reader) -> Packet:
    """The packet under `reader`. Raises MalformedPacket, ProtocolViolation, UnsupportedLevel."""
    check_first(reader)
    packet = _PARSERS[reader.first >> 4](reader)
    reader.end()
    return packet


def check_first(reader: Reader) -> None:
    """Check what the first byte alone says: type, sender, flags. So a bad packet is not waited for."""
    kind = reader.first >> 4
    if kind == 0 or (kind == wire.AUTH and reader.level in (3, 4)):
        raise reader.malformed("packet type", f"{kind} is reserved", reader.start)
    if kind != wire.CONNECT and not reader.level:
        raise reader.violation("packet type", "comes before CONNECT", reader.start)
    if kind == wire.CONNECT and reader.level and not reader.from_server:
        raise reader.violation("packet type", "comes a second time", reader.start)
    if kind in (_CLIENT_ONLY if reader.from_server else _SERVER_ONLY):
        raise reader.violation("packet type", "may only be sent by the other side", reader.start)
    if kind == wire.DISCONNECT and reader.from_server and reader.level < 5:
        raise reader.violation("packet type", "is not sent by a server before MQTT 5", reader.start)
    _check_flags(reader, kind)


def _check_flags(reader: Reader, kind: int) -> None:
    flags = reader.first & 15
    if kind == wire.PUBLISH:
        if flags & 6 == 6:
            raise reader.malformed("flags", "ask for QoS 3", reader.start)
        if flags & 14 == 8:
            raise reader.malformed("flags", "set DUP at QoS 0", reader.start)
    elif kind in _FLAGS_2:
        if flags != 2 and not (flags == 10 and reader.level == 3):
            raise reader.malformed("flags", f"are {flags}, must be 2", reader.start)
    elif flags:
        raise reader.malformed("flags", f"are {flags}, must be 0", reader.start)


def _properties(reader: Reader, kind: int) -> Properties | None:
    return read_properties(reader, kind) if reader.level == 5 else None


def _connect(reader: Reader) -> Connect:
    name_at = reader.at
    name = reader.text("protocol name")
    if name not in ("MQTT", "MQIsdp"):
        raise reader.malformed("protocol name", f"is {name[:20]!r}", name_at)
    level = reader.byte("protocol level")
    if (name, level) not in _LEVELS:
        raise UnsupportedLevel(reader.at - 1 - reader.start, name, level)
    reader.level = level & 0x7F
    flags = _connect_flags(reader)
    keep_alive = reader.u16("keep alive")
    reader.users_max = min(reader.users_max, CONNECT_USERS)
    properties = _properties(reader, wire.CONNECT)
    return Connect(
        level=reader.level,
        is_bridge=level > 0x7F,
        clean_start=flags & 2 == 2,
        keep_alive=keep_alive,
        properties=properties,
        client_id=reader.text("client id"),
        will=_will(reader, flags) if flags & 4 else None,
        username=reader.text("user name") if flags & 128 else None,
        password=reader.binary("password") if flags & 64 else None,
    )


def _connect_flags(reader: Reader) -> int:
    at = reader.at
    flags = reader.byte("connect flags")
    if flags & 1 and reader.level > 3:
        raise reader.malformed("connect flags", "set the reserved bit", at)
    if flags & 0x18 == 0x18:
        raise reader.malformed("connect flags", "ask for will QoS 3", at)
    if flags & 0x38 and not flags & 4:
        raise reader.malformed("connect flags", "set will QoS or retain without a will", at)
    if flags & 64 and not flags & 128 and reader.level < 5:
        raise reader.malformed("connect flags", "announce a password without a user name", at)
    return flags


def _will(reader: Reader, flags: int) -> Will:
    properties = _properties(reader, wire.WILL)
    at = reader.at
    topic = reader.topic_name("will topic")
    if not topic:
        raise reader.malformed("will topic", "is empty", at)
    payload = reader.binary("will payload")
    return Will(topic, payload, flags >> 3 & 3, flags & 32 == 32, properties)


def _connack(reader: Reader) -> Connack:
    at = reader.at
    flags = reader.byte("acknowledge flags")
    if flags > 1 and reader.level > 3:
        raise reader.malformed("acknowledge flags", f"are {flags}, must be 0 or 1", at)
    session_present = flags == 1 and reader.level > 3
    reason = _reason(reader, reasons.CONNACK_REASONS if reader.level == 5 else reasons.CONNECT_RETURNS)
    if session_present and reason:
        raise reader.violation("acknowledge flags", f"say session present with reason {reason}", at)
    return Connack(session_present, reason, _properties(reader, wire.CONNACK))


def _reason(reader: Reader, allowed: frozenset[int]) -> int:
    reason = reader.byte("reason code")
    if reason not in allowed:
        raise reader.violation("reason code", f"0x{reason:02x} is not one of this packet", reader.at - 1)
    return reason


def _publish(reader: Reader) -> Publish:
    flags = reader.first
    qos = flags >> 1 & 3
    at = reader.at
    topic = reader.topic_name("topic")
    packet_id = reader.packet_id() if qos else 0
    properties = _properties(reader, wire.PUBLISH)
    if not topic:
        if reader.level < 5:
            raise reader.malformed("topic", "is empty", at)
        if properties is None or properties.topic_alias is None:
            raise reader.violation("topic", "is empty and there is no topic alias", at)
    payload = reader.take(reader.stop - reader.at, "payload")
    return Publish(topic, payload, qos, flags & 1 == 1, flags & 8 == 8, packet_id, properties)


def _ack(reader: Reader) -> Ack:
    kind = reader.first >> 4
    packet_id = reader.packet_id()
    if reader.level < 5:
        return Ack(kind, packet_id)
    reason, properties = _short_form(reader, kind, _ACK_REASONS[kind])
    return Ack(kind, packet_id, reason, properties)


def _short_form(reader: Reader, kind: int, allowed: frozenset[int]) -> tuple[int, Properties | None]:
    """Reason code and properties, where a packet may end before either: reason 0, no properties."""
    reason = _reason(reader, allowed) if reader.at < reader.stop else 0
    return reason, read_properties(reader, kind) if reader.at < reader.stop else None


_USUAL_OPTIONS = {qos: SubscribeOptions(qos, False, False, 0) for qos in range(3)}
"""What most clients ask for, at all levels."""


def _subscribe(reader: Reader) -> Subscribe:
    packet_id = reader.packet_id()
    properties = _properties(reader, wire.SUBSCRIBE)
    filters = _usual_filters(reader)
    _check_count(reader, filters)
    while reader.at < reader.stop:
        filter_ = _filter(reader)
        options = _options(reader)
        if options.no_local and filter_.startswith("$share/"):
            raise reader.violation("options", "set no local on a shared subscription", reader.at - 1)
        filters.append((filter_, options))
        _check_count(reader, filters)
    if not filters:
        raise reader.violation("filters", "are missing")
    return Subscribe(packet_id, tuple(filters), properties)


def _usual_filters(reader: Reader) -> list[tuple[str, SubscribeOptions]]:
    """The first filters, up to a wrong or rare one. Written for speed, as nobody else has a turn meanwhile:
    9,990 filters take 9 ms, and 33 one by one."""
    data, at, stop = reader.data, reader.at, reader.stop
    filters: list[tuple[str, SubscribeOptions]] = []
    while at + 3 < stop:
        end = at + 2 + (data[at] << 8) + data[at + 1]
        if not at + 2 < end < stop:
            break
        options = _USUAL_OPTIONS.get(data[end])
        try:
            text = data[at + 2 : end].decode()
        except UnicodeDecodeError:
            break
        if options is None or "\0" in text:
            break
        filters.append((text, options))
        at = end + 1
    reader.at = at
    return filters


def _check_count(reader: Reader, filters: Sequence[object]) -> None:
    if len(filters) > FILTERS_MAX:
        detail = f"are more than {FILTERS_MAX:,} in one packet"
        raise reader.violation("filters", detail, reason=reasons.Reason.PACKET_TOO_LARGE)


def _filter(reader: Reader) -> str:
    at = reader.at
    filter_ = reader.text("filter")
    if not filter_:
        raise reader.malformed("filter", "is empty", at)
    return filter_


def _options(reader: Reader) -> SubscribeOptions:
    at = reader.at
    options = reader.byte("options")
    if options & (0xC0 if reader.level == 5 else 0xFC):
        raise reader.malformed("options", "set reserved bits", at)
    if options & 3 == 3:
        error = reader.violation if reader.level == 5 else reader.malformed
        raise error("options", "ask for QoS 3", at)
    if options >> 4 == 3:
        raise reader.violation("options", "ask for retain handling 3", at)
    return SubscribeOptions(options & 3, options & 4 == 4, options & 8 == 8, options >> 4)


def _suback(reader: Reader) -> Suback:
    packet_id = reader.packet_id()
    properties = _properties(reader, wire.SUBACK)
    allowed = reasons.SUBACK_REASONS if reader.level == 5 else reasons.SUBACK_RETURNS
    return Suback(packet_id, _reasons(reader, allowed), properties)


def _reasons(reader: Reader, allowed: frozenset[int]) -> tuple[int, ...]:
    found: list[int] = []
    while reader.at < reader.stop:
        found.append(_reason(reader, allowed))
    if not found:
        raise reader.violation("reason codes", "are missing")
    return tuple(found)


def _unsubscribe(reader: Reader) -> Unsubscribe:
    packet_id = reader.packet_id()
    properties = _properties(reader, wire.UNSUBSCRIBE)
    filters: list[str] = []
    while reader.at < reader.stop:
        filters.append(_filter(reader))
        _check_count(reader, filters)
    if not filters:
        raise reader.violation("filters", "are missing")
    return Unsubscribe(packet_id, tuple(filters), properties)


def _unsuback(reader: Reader) -> Unsuback:
    packet_id = reader.packet_id()
    if reader.level < 5:
        return Unsuback(packet_id)
    properties = read_properties(reader, wire.UNSUBACK)
    return Unsuback(packet_id, _reasons(reader, reasons.UNSUBACK_REASONS), properties)


def _disconnect(reader: Reader) -> Disconnect:
    if reader.level < 5:
        return Disconnect()
    allowed = reasons.SERVER_DISCONNECT_REASONS if reader.from_server else reasons.CLIENT_DISCONNECT_REASONS
    return Disconnect(*_short_form(reader, wire.DISCONNECT, allowed))


def _auth(reader: Reader) -> Auth:
    if reader.at == reader.stop:
        # The short form stands for reason 0, which only a server may send.
        if not reader.from_server:
            raise reader.violation("reason code", "0x00 is not one of this packet")
        return Auth()
    allowed = reasons.SERVER_AUTH_REASONS if reader.from_server else reasons.CLIENT_AUTH_REASONS
    reason = _reason(reader, allowed)
    properties = read_properties(reader, wire.AUTH)
    if properties is None or properties.auth_method is None:
        raise reader.violation("auth_method", "is missing")
    return Auth(reason, properties)


_PARSERS: Final[dict[int, Callable[[Reader], Packet]]] = {
    wire.CONNECT: _connect,
    wire.CONNACK: _connack,
    wire.PUBLISH: _publish,
    wire.PUBACK: _ack,
    wire.PUBREC: _ack,
    wire.PUBREL: _ack,
    wire.PUBCOMP: _ack,
    wire.SUBSCRIBE: _subscribe,
    wire.SUBACK: _suback,
    wire.UNSUBSCRIBE: _unsubscribe,
    wire.UNSUBACK: _unsuback,
    wire.PINGREQ: lambda _: Pingreq(),
    wire.PINGRESP: lambda _: Pingresp(),
    wire.DISCONNECT: _disconnect,
    wire.AUTH: _auth,
}
