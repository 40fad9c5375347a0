"""A body that came compressed -> what it says, within a bound.

Not done while it comes: a MiB can say that it is a GiB, and whoever reads on to find its end, because the
answer is an error long since, unpacks all of it. Here nothing is unpacked before the whole body has been
asked for, and no more than may be: 16 MiB take 20 to 60 ms, so it is for threads.

Source: RFC 1950 and 1952; RFC 9110, section 8.4.1. Some send bare deflate (RFC 1951) for `deflate`.
"""

import zlib

from .bodies import NotReadable

ENCODINGS = (b"gzip", b"deflate")
"""What a body may come in. `identity` is none."""
_GZIP, _ZLIB, _BARE = 31, 15, -15
_METHOD = 8


class TooLong(Exception):
    """It says more than it may."""


def unpacked(raw: bytes, encoding: str, size_max: int) -> bytes:
    """What a body in gzip or deflate says. Raises NotReadable, TooLong."""
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
