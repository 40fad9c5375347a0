"""The properties of MQTT 5: typed on our side, id and value on the wire.

A property section is its length and then, in any order, an id with a value in the form that belongs to the
id:

    26 00 01 61 00 01 62     user property "a" = "b"
    02 00 00 00 3C           message expiry interval, 60 s

One table, `RULES`, holds everything that can be said about a property: name, form, bounds, the packets it
may stand in. Decoding checks all of it. An id that is unknown or that no such packet may carry is malformed;
a repeated one, a value out of bounds or one that only the other side may send is a protocol error.

A message is stored and sent on with `forwarded()`: what the specification makes a server hand through
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, Final, NamedTuple

from shards.properties import USER, user_property

from . import wire
from .packets import Properties
from .reasons import Reason
from .wire import Reader


class _Form(NamedTuple):
    """How a value stands on the wire."""

    read: Callable[[Reader, str], Any]
    write: Callable[[Any], bytes]


def _read_flag(reader: Reader, field: str) -> bool:
    value = reader.byte(field)
    if value > 1:
        raise reader.violation(field, f"is {value}, not 0 or 1", reader.at - 1)
    return value == 1


def _read_pair(reader: Reader, field: str) -> tuple[str, str]:
    return reader.text(field), reader.text(field)


_BYTE: Final = _Form(Reader.byte, lambda value: value.to_bytes(1))
_FLAG: Final = _Form(_read_flag, lambda value: value.to_bytes(1))
_U16: Final = _Form(Reader.u16, lambda value: value.to_bytes(2))
_U32: Final = _Form(Reader.u32, lambda value: value.to_bytes(4))
_VARINT: Final = _Form(Reader.varint, wire.varint)
_TEXT: Final = _Form(Reader.text, wire.text)
_BINARY: Final = _Form(Reader.binary, wire.binary)
_PAIR: Final = _Form(_read_pair, lambda pair: wire.text(pair[0]) + wire.text(pair[1]))

_MESSAGE: Final = frozenset({wire.PUBLISH, wire.WILL})
_CONNECT: Final = frozenset({wire.CONNECT})
_CONNACK: Final = frozenset({wire.CONNACK})
_OPENING: Final = _CONNECT | _CONNACK
_AUTH: Final = _OPENING | {wire.AUTH}
_ACKS: Final = frozenset({wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP, wire.SUBACK, wire.UNSUBACK})
_ANSWERS: Final = _ACKS | {wire.CONNACK, wire.DISCONNECT, wire.AUTH}
_ALL: Final = _ANSWERS | _MESSAGE | {wire.CONNECT, wire.SUBSCRIBE, wire.UNSUBSCRIBE}


class Rule(NamedTuple):
    """`kinds` are the packets that may carry it; a number must be within low .. high."""

    field: str
    form: _Form
    kinds: frozenset[int]
    low: int = 0
    high: int = 0xFFFF_FFFF


RULES: Final = {
    0x01: Rule("payload_format", _BYTE, _MESSAGE, high=1),
    0x02: Rule("message_expiry", _U32, _MESSAGE),
    0x03: Rule("content_type", _TEXT, _MESSAGE),
    0x08: Rule("response_topic", _TEXT, _MESSAGE),
    0x09: Rule("correlation_data", _BINARY, _MESSAGE),
    0x0B: Rule("subscription_ids", _VARINT, frozenset({wire.PUBLISH, wire.SUBSCRIBE}), low=1),
    0x11: Rule("session_expiry", _U32, _OPENING | {wire.DISCONNECT}),
    0x12: Rule("assigned_client_id", _TEXT, _CONNACK),
    0x13: Rule("server_keep_alive", _U16, _CONNACK),
    0x15: Rule("auth_method", _TEXT, _AUTH),
    0x16: Rule("auth_data", _BINARY, _AUTH),
    0x17: Rule("request_problem_info", _FLAG, _CONNECT),
    0x18: Rule("will_delay", _U32, frozenset({wire.WILL})),
    0x19: Rule("request_response_info", _FLAG, _CONNECT),
    0x1A: Rule("response_info", _TEXT, _CONNACK),
    0x1C: Rule("server_reference", _TEXT, _CONNACK | {wire.DISCONNECT}),
    0x1F: Rule("reason_string", _TEXT, _ANSWERS),
    0x21: Rule("receive_maximum", _U16, _OPENING, low=1),
    0x22: Rule("topic_alias_maximum", _U16, _OPENING),
    0x23: Rule("topic_alias", _U16, frozenset({wire.PUBLISH}), low=1),
    0x24: Rule("maximum_qos", _BYTE, _CONNACK, high=1),
    0x25: Rule("retain_available", _FLAG, _CONNACK),
    USER: Rule("user_properties", _PAIR, _ALL),
    0x27: Rule("maximum_packet_size", _U32, _OPENING, low=1),
    0x28: Rule("wildcard_available", _FLAG, _CONNACK),
    0x29: Rule("subscription_ids_available", _FLAG, _CONNACK),
    0x2A: Rule("shared_available", _FLAG, _CONNACK),
}
_SUBSCRIPTION_ID: Final = 0x0B
_LISTS: Final = frozenset({_SUBSCRIPTION_ID, USER})
_ONLY_CLIENT: Final = frozenset({(wire.DISCONNECT, 0x11)})
_ONLY_SERVER: Final = frozenset({(wire.DISCONNECT, 0x1C), (wire.PUBLISH, 0x0B)})


def read_properties(reader: Reader, kind: int) -> Properties | None:
    """The property section at the cursor, with its length; None if it is empty."""
    length = reader.varint("property length")
    if not length:
        return None
    outer = reader.stop
    if reader.at + length > outer:
        raise reader.malformed(
            "property length", f"is {length}, the packet has {outer - reader.at} bytes left"
        )
    reader.stop = reader.at + length  # a value must end within the section
    properties = _read_all(reader, kind)
    reader.stop = outer
    return properties


def _read_all(reader: Reader, kind: int) -> Properties:
    users: list[tuple[str, str]] = []
    ids: list[int] = []
    found: dict[str, Any] = {}
    data = reader.data
    while reader.at < reader.stop:
        identifier = data[reader.at]
        if identifier == USER:  # allowed everywhere, and by far the most frequent
            left = reader.users_max - len(users)
            if left <= 0:
                why = f"are more than {reader.users_max}"
                raise reader.violation("user_properties", why, reader.at, Reason.QUOTA_EXCEEDED)
            more, after = read_users(data, reader.at, reader.stop, left)
            users += more
            reader.at = after
            if not more:  # which complains
                reader.at += 1
                users.append(_read_pair(reader, "user_properties"))
            continue
        at = reader.at
        rule = _rule(reader, kind, identifier)
        value = rule.form.read(reader, rule.field)
        _check_value(reader, rule, value, at)
        if rule.field in found or (ids and identifier == _SUBSCRIPTION_ID and kind != wire.PUBLISH):
            raise reader.violation(rule.field, "is given twice", at)
        if identifier == _SUBSCRIPTION_ID:
            ids.append(value)
        else:
            found[rule.field] = value
    if users:
        found["user_properties"] = tuple(users)
    if ids:
        found["subscription_ids"] = tuple(ids)
    if "auth_data" in found and "auth_method" not in found:
        raise reader.violation("auth_data", "comes without auth_method")
    return Properties(**found)


def read_users(data: bytes, at: int, end: int, count_max: int) -> tuple[list[tuple[str, str]], int]:
    """The user properties from `at` on, `count_max` at most, and where they end: before an invalid one, if
    any, for which the reader of single properties will raise.

    Written for speed, as a packet may hold thousands: 0.4 us each, where reading field by field takes 1.1.
    All text is cut from one string; a U+0000 shows as more zeros than the lengths have.
    """
    section = data[at:end]
    text = section.decode("latin-1")
    is_plain = text.isascii()
    size = len(section)
    users: list[tuple[str, str]] = []
    here = 0
    try:
        for _ in repeat(None, count_max):
            if here >= size or section[here] != USER:
                break
            key_at = here + 3
            key_end = key_at + (section[here + 1] << 8 | section[here + 2])
            value_at = key_end + 2
            stop = value_at + (section[key_end] << 8 | section[key_end + 1])
            if stop > size:
                break
            key, value = text[key_at:key_end], text[value_at:stop]
            if not is_plain:
                if not key.isascii():
                    key = section[key_at:key_end].decode()
                if not value.isascii():
                    value = section[value_at:stop].decode()
            users.append((key, value))
            here = stop
    except (IndexError, UnicodeDecodeError):
        pass  # a string that ends behind the section or is not UTF-8
    if section.count(0, 0, here) != 2 * len(users) and any(
        "\0" in key or "\0" in value for key, value in users
    ):
        return [], at
    return users, at + here


def _rule(reader: Reader, kind: int, identifier: int) -> Rule:
    rule = RULES.get(identifier)
    if rule is None or kind not in rule.kinds:
        where = "the will" if kind == wire.WILL else wire.NAMES[kind]
        raise reader.malformed(f"property 0x{identifier:02x}", f"is not one of {where}")
    wrong_side = _ONLY_CLIENT if reader.from_server else _ONLY_SERVER
    if (kind, identifier) in wrong_side:
        raise reader.violation(rule.field, "may only be sent by the other side")
    reader.at += 1
    return rule


def _check_value(reader: Reader, rule: Rule, value: Any, at: int) -> None:
    if isinstance(value, int):
        if not rule.low <= value <= rule.high:
            reason = Reason.TOPIC_ALIAS_INVALID if rule.field == "topic_alias" else None
            raise reader.violation(rule.field, f"is {value}, out of range", at, reason)
    elif rule.field == "response_topic" and (not value or "+" in value or "#" in value):
        raise reader.violation(rule.field, "is not a topic name", at)


def encode_properties(properties: Properties | None) -> bytes:
    """All of `properties` by rising id, without the length in front; ValueError if one does not fit."""
    if properties is None:
        return b""
    parts: list[bytes] = []
    for identifier, rule in RULES.items():
        value = getattr(properties, rule.field)
        if value is None:
            continue
        for item in value if identifier in _LISTS else (value,):
            parts += (identifier.to_bytes(1), _write(rule, item))
    return b"".join(parts)


def _write(rule: Rule, value: Any) -> bytes:
    if isinstance(value, int) and not rule.low <= value <= rule.high:
        raise ValueError(f"{rule.field} is {value}, out of range")
    try:
        return rule.form.write(value)
    except OverflowError:
        raise ValueError(f"{rule.field} is {value}, out of range") from None


def forwarded(properties: Properties | None) -> bytes:
    """Properties that a server passes on with a publish, encoded, without length: payload format, content
    type, response topic, correlation data, user properties in order. `message_expiry()` makes the rest of the
    expiry when the message is sent."""
    if properties is None:
        return b""
    parts: list[bytes] = []
    if properties.payload_format is not None:
        parts.append(b"\x01\x01" if properties.payload_format else b"\x01\x00")
    if properties.content_type is not None:
        parts.append(b"\x03" + wire.text(properties.content_type))
    if properties.response_topic is not None:
        parts.append(b"\x08" + wire.text(properties.response_topic))
    if properties.correlation_data is not None:
        parts.append(b"\x09" + wire.binary(properties.correlation_data))
    parts += [user_property(key, value) for key, value in properties.user_properties]
    return b"".join(parts)


def message_expiry(seconds: int) -> bytes:
    """Message expiry interval, encoded."""
    return b"\x02" + seconds.to_bytes(4)


def subscription_id(number: int) -> bytes:
    """One subscription identifier (1 .. 268,435,455), encoded."""
    return b"\x0b" + wire.varint(number)


def reason_string(why: str) -> bytes:
    """Reason string, encoded."""
    return b"\x1f" + wire.text(why)


def topic_alias(alias: int) -> bytes:
    """Topic alias (1 .. 65,535), encoded."""
    return b"\x23" + alias.to_bytes(2)
