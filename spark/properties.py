"""What a user sees of a message's stored MQTT properties: its headers and its content type.

Stored are the properties that a server hands through, as they go to subscribers (docs/disk-format.md): each
an id and a value in the form that belongs to the id. This is the reading half for those six, without the
checks of a protocol: what is stored was checked when it came in.
"""

from functools import lru_cache

from shards.errors import Corrupt

PAYLOAD_FORMAT, EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION, USER = 0x01, 0x02, 0x03, 0x08, 0x09, 0x26
_FIXED = {PAYLOAD_FORMAT: 1, EXPIRY: 4}

Headers = tuple[tuple[str, str], ...]


@lru_cache(maxsize=4_096)
def headers_of(properties: bytes) -> tuple[Headers, str | None]:
    """(headers, content type). Of headers with the same name the last. Raises Corrupt.

    Remembered: the messages of one publisher mostly have the same.
    """
    headers: dict[str, str] = {}
    content_type = None
    at = 0
    while at < len(properties):
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
    return tuple(headers.items()), content_type


def _binary(data: bytes, at: int) -> tuple[bytes, int]:
    """A value with its length in front, and where the next one begins."""
    start = at + 2
    end = start + int.from_bytes(data[at:start], "big")
    if end > len(data):
        raise Corrupt(f"properties of {len(data)} bytes say that a value ends at {end}")
    return data[start:end], end
