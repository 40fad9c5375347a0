"""A compressed body -> its content, within a bound.

A body is not unpacked while it arrives: a MiB can unpack to a GiB, also when the body is read only to find
its end, after an error. It is unpacked only when a call needs the whole body, and only up to the bound. 16
MiB take 20 to 60 ms, so it runs in a thread.

Source: RFC 1950 and 1952; RFC 9110, section 8.4.1. Some clients send bare deflate (RFC 1951) as `deflate`.
"""

import zlib

from .bodies import NotReadable

ENCODINGS = (b"gzip", b"deflate")
"""Accepted encodings besides `identity`."""
_GZIP, _ZLIB, _BARE = 31, 15, -15
_METHOD = 8


class TooLong(Exception):
    """The content exceeds the bound."""


def unpacked(raw: bytes, encoding: str, size_max: int) -> bytes:
    """Unpack a gzip or deflate body. Raises NotReadable, TooLong."""
    form = _GZIP
    if encoding == "deflate":
        form = _ZLIB if raw and raw[0] & 0xF == _METHOD else _BARE
    unpacker = zlib.decompressobj(form)
    try:
        body = unpacker.decompress(raw, size_max + 1)
    except zlib.error:
        raise NotReadable(f"The body is not valid {encoding}.") from None
    if len(body) > size_max:
        raise TooLong
    if not unpacker.eof or unpacker.unused_data:
        raise NotReadable(f"The body must be one complete {encoding} stream.")
    return body
