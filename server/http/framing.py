"""Finds the end of a request's body in the bytes of a connection.

aiohttp reads bodies; this file only measures them. So the front knows where the next head begins, and whether
a client still owes bytes. aiohttp finds errors inside a chunk itself, and closes the connection.

Chunks of a few bytes cost more to read than to send, so their overhead is bounded: each counts 32 bytes less
its data, and 64 KiB of that are refused. Chunks of one NDJSON line each count nothing.

Source: RFC 9112, section 7.1.
"""

import re

CHUNK_LINE_MAX = 1_024
TRAILERS_MAX = 8_190
OVERHEAD = 32
OVERHEAD_MAX = 64 << 10

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")


class FramingError(Exception):
    """Invalid chunks, or abusively small ones."""

    def __init__(self, text: str, good: int) -> None:
        """`good`: bytes of the last `feed` before the bad line."""
        super().__init__(text)
        self.good = good


class Body:
    """A body being measured: of a length, or chunked: size, data, ..., size 0, trailers, an empty line."""

    def __init__(self, length: int | None) -> None:
        """`length`: bytes, as the head announces; None: chunked."""
        self.is_done = length == 0
        self._is_chunked = length is None
        self._left = length or 0
        """Bytes left of the body, or of the chunk, including its line end."""
        self._line = b""
        self._in_trailers = False
        self._trailer_bytes = 0
        self._overhead = 0

    def feed(self, data: bytes) -> int:
        """Number of these next bytes that belong to the body. Raises FramingError."""
        at = 0
        while at < len(data) and not self.is_done:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                self.is_done = not (self._left or self._is_chunked)
                at += step
                continue
            stop = data.find(b"\n", at, at + CHUNK_LINE_MAX)
            end = stop + 1 if stop >= 0 else len(data)
            self._line += data[at:end]
            if len(self._line) > CHUNK_LINE_MAX:
                raise FramingError("The line between two chunks is too long.", at)
            if stop >= 0:
                line, self._line = self._line, b""
                self._read_line(line, at)
            at = end
        return at

    def _read_line(self, line: bytes, at: int) -> None:
        if self._in_trailers:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > TRAILERS_MAX:
                raise FramingError("The trailers are too long.", at)
            self.is_done = line == b"\r\n"
            return
        found = _SIZE.fullmatch(line)
        if found is None:
            raise FramingError("Invalid chunk size.", at)
        size = int(found[1], 16)
        if size == 0:
            self._in_trailers = True
            return
        self._left = size + 2
        self._overhead = max(0, self._overhead + OVERHEAD - size)
        if self._overhead > OVERHEAD_MAX:
            raise FramingError("The chunks are too small.", at)
