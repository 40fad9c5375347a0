"""Frames of a websocket: reads those of a client, writes those of the server.

    82 fe 00 c8 <mask> <200 bytes>      a binary frame from a client; the server's have no mask

Payload is handed on as it comes, even in the middle of a frame. Only the head of a frame and the few bytes of
a control frame are gathered, so a frame may have any size. Source: RFC 6455, section 5.
"""

from typing import Final

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10
NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED_DATA: Final = 1003


class FrameError(Exception):
    """A frame that ends the connection; `code` goes into the close frame."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Frames:
    """Bytes from a client in, pieces out: of a data frame what has come of it, a control frame whole."""

    __slots__ = ("_in_message", "_key", "_left", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._left = 0  # bytes of the current data frame that have not come ...
        self._key = b""  # ... and what they are masked with, from the next one on
        self._in_message = False

    def feed(self, data: bytes) -> None:
        self._rest += data

    @property
    def kept_bytes(self) -> int:
        """Bytes received and not read yet."""
        return len(self._rest)

    def next(self) -> tuple[int, bytes] | None:
        """(BINARY, CLOSE, PING or PONG, payload); None if more bytes are needed. Raises FrameError."""
        if self._left:
            return self._piece() if self._rest else None
        rest = self._rest
        if len(rest) < 2:
            return None
        kind, size = rest[0], rest[1] & 127
        self._check(kind, rest[1], size)
        wide = 0 if size < 126 else 2 if size == 126 else 8
        start = 6 + wide
        if len(rest) < start:
            return None
        if wide:
            size = int.from_bytes(rest[2 : 2 + wide])
        key = bytes(rest[start - 4 : start])
        if kind & 8:
            if len(rest) < start + size:
                return None
            payload = _unmasked(bytes(rest[start : start + size]), key)
            del rest[: start + size]
            return kind & 15, payload
        del rest[:start]
        self._in_message = not kind & 128
        self._left, self._key = size, key
        return self._piece() if rest or not size else (BINARY, b"")

    def _piece(self) -> tuple[int, bytes]:
        """What is there of the current frame."""
        raw = bytes(self._rest[: self._left])
        del self._rest[: len(raw)]
        self._left -= len(raw)
        payload = _unmasked(raw, self._key)
        turn = len(raw) % 4
        self._key = self._key[turn:] + self._key[:turn]
        return BINARY, payload

    def _check(self, first: int, second: int, size: int) -> None:
        kind = first & 15
        if first & 0x70 or kind not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise FrameError(PROTOCOL_ERROR, "frame of an unknown kind")
        if not second & 128:
            raise FrameError(PROTOCOL_ERROR, "frame without a mask")
        if kind == TEXT:
            raise FrameError(UNSUPPORTED_DATA, "frame is not binary")
        if kind & 8:
            if size > 125 or not first & 128:
                raise FrameError(PROTOCOL_ERROR, "control frame too long or fragmented")
        elif (kind == CONTINUATION) != self._in_message:
            raise FrameError(PROTOCOL_ERROR, "unexpected or missing continuation frame")


def _unmasked(data: bytes, key: bytes) -> bytes:
    """`data` XOR the key over and over; as whole numbers it takes 1 ms a MiB."""
    size = len(data)
    mask = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")


def frame(kind: int, payload: bytes) -> bytes:
    """A frame of a server."""
    size = len(payload)
    if size < 126:
        return b"%c%c%b" % (0x80 | kind, size, payload)
    if size < 65_536:
        return b"%c\x7e%b%b" % (0x80 | kind, size.to_bytes(2), payload)
    return b"%c\x7f%b%b" % (0x80 | kind, size.to_bytes(8), payload)
