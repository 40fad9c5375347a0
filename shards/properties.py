"""The MQTT properties of a stored message: reading and writing headers and content type.

A message stores the properties that a server forwards, as subscribers get them (docs/disk-format.md): a
sequence of ids, each with a value in the id's format. So a delivery copies them, and adds another by
appending it.

    03 00 0a text/plain             content type
    26 00 01 61 00 01 62            user property "a" = "b", a header to users

Six ids are possible. Users see two: headers and content type. The others are for subscribers only. Reading
here makes no protocol checks: what is stored was checked on arrival, so an error means Corrupt.
"""

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Final

from timeline.filters import sendable

from .errors import Corrupt

PAYLOAD_FORMAT: Final = 0x01
EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION: Final = 0x09
USER: Final = 0x26
_FIXED: Final = {PAYLOAD_FORMAT: 1, EXPIRY: 4}

REMEMBERED = 4_096
REMEMBERED_BYTES = 256
"""Longer properties are not cached, which bounds the cache in bytes."""
STRING_BYTES_MAX = 65_535

_LENGTH = Struct(">H").pack
_USER_HEAD = Struct(">BH").pack

Headers = tuple[tuple[str, str], ...]


def headers_of(properties: bytes) -> tuple[Headers, str | None]:
    """(headers, content type). A repeated header has its last value at its first place. Raises Corrupt."""
    return _remembered(properties) if len(properties) <= REMEMBERED_BYTES else _read(properties)


def properties_of(headers: Iterable[tuple[str, str]], content_type: str = "") -> bytes:
    """Encode headers and content type; an empty content type is left out. ValueError for an invalid MQTT
    string."""
    head = bytes((CONTENT_TYPE,)) + _string(content_type) if content_type else b""
    return head + b"".join([user_property(name, value) for name, value in headers])


def sendable_properties(properties: bytes) -> bytes:
    """The properties, with a blank for each character at which MQTT clients may close the connection. Raises
    Corrupt."""
    return _cleaned(properties) if len(properties) <= REMEMBERED_BYTES else _clean(properties)


def user_property(name: str, value: str) -> bytes:
    """Encode one user property; ValueError for an invalid MQTT string. Each delivery needs several."""
    key = name.encode()
    raw = value.encode()
    if 0 in key or 0 in raw or len(key) > STRING_BYTES_MAX or len(raw) > STRING_BYTES_MAX:
        return _string(name) + _string(value)  # raises the error
    return _USER_HEAD(USER, len(key)) + key + _LENGTH(len(raw)) + raw


def _string(value: str) -> bytes:
    """UTF-8 with a length in front."""
    raw = value.encode()
    if 0 in raw:
        raise ValueError("U+0000 cannot be sent in an MQTT string")
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"{len(raw)} bytes do not fit: an MQTT string holds {STRING_BYTES_MAX:,} at most")
    return _LENGTH(len(raw)) + raw


def _read(properties: bytes) -> tuple[Headers, str | None]:
    headers: dict[str, str] = {}
    content_type = None
    at, size = 0, len(properties)
    try:
        while at < size:
            number = properties[at]
            if number in _FIXED:
                at += 1 + _FIXED[number]
                continue
            value, at = _binary(properties, at + 1)
            if number == USER:
                name, (value, at) = value, _binary(properties, at)
                headers[name.decode()] = value.decode()
            elif number == CONTENT_TYPE:
                content_type = value.decode()
            elif number not in (RESPONSE_TOPIC, CORRELATION):
                raise Corrupt(f"property 0x{number:02x} in a stored message")
    except UnicodeDecodeError as error:
        raise Corrupt(f"a property of a stored message is not UTF-8: {error.reason}") from error
    if at != size:
        raise Corrupt(f"properties of {size} bytes say that a value ends at {at}")
    return tuple(headers.items()), content_type


def _clean(properties: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while at < len(properties):
        number, start = properties[at], at
        at += 1 + _FIXED.get(number, 0)
        parts.append(properties[start:at])
        for _ in range(0 if number in _FIXED else 2 if number == USER else 1):
            value, at = _binary(properties, at)
            if number != CORRELATION:
                value = sendable(value.decode()).encode()
            parts.append(_LENGTH(len(value)) + value)
    return b"".join(parts)


_remembered = lru_cache(maxsize=REMEMBERED)(_read)
_cleaned = lru_cache(maxsize=REMEMBERED)(_clean)
"""Cached: most messages of a publisher have the same. The functions are pure, so this is no module state."""


def _binary(data: bytes, at: int) -> tuple[bytes, int]:
    """A value with its length in front, and where the next one begins."""
    start = at + 2
    end = start + int.from_bytes(data[at:start], "big")
    if end > len(data):
        raise Corrupt(f"properties of {len(data)} bytes say that a value ends at {end}")
    return data[start:end], end
