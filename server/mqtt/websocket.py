"""MQTT over websockets: the same link, behind a handshake and frames.

A websocket is a protocol to the socket and a transport to the link. MQTT-6.0: frames are binary, packet
boundaries mean nothing, the subprotocol is "mqtt". So payload is handed on as it comes, and the bounds are
those of the link and its decoder.
"""

import asyncio
import logging
from typing import cast

from ..net.browsers import Pages
from ..net.loop_time import LoopTime
from ..net.opening import Opening
from ..observe.logs import by
from .frames import BINARY, CLOSE, NORMAL, PING, PONG, FrameError, Frames, frame
from .handshake import HEAD_MAX, HandshakeRefused, answer_handshake

log = logging.getLogger(__name__)

FRAMES_AT_ONCE = 500
"""Frames that are read before others have their turn."""
PONG_MAX = 64 << 10
"""Unsent bytes from which on pings are not answered."""


class Inner(Opening):
    """A connection that takes a socket or a websocket for its transport."""

    address: str

    def check(self, now_s: float, passed_s: float) -> None:
        """Ignore: it has a timer of its own."""

    def hear(self, head: bytes) -> None:
        """The request for a websocket has come. Ignored where all clients are the same."""

    def keep_frames(self, count: int) -> None:
        """Note bytes of a websocket's frames that are not read yet: they count with what is kept."""
        raise NotImplementedError

    def linger(self) -> None:
        """Send nothing more; close when the client has had time to read what was sent."""
        raise NotImplementedError


class Websocket(Opening):
    """One connection. To the link it is a transport: what stands under "asyncio.Transport" is that."""

    def __init__(self, link: Inner, pages: Pages, time: LoopTime) -> None:
        self._link = link
        self._time = time
        self._pages = pages
        self._raw: asyncio.Transport
        self._head = b""
        self._frames = Frames()
        self._is_open = False
        self._is_over = False
        """Nothing more is sent: the close frame or a refusal was the last."""
        self._has_heard_close = False
        self._is_paused = False
        """By the link."""
        self._is_planned = False

    # -- asyncio.Protocol

    @property
    def owner(self) -> str:  # type: ignore[override]
        return self._link.owner

    def keep_unread(self, count: int) -> None:
        self._link.keep_unread(count)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = self._raw = cast("asyncio.Transport", transport)
        self.get_extra_info, self.is_closing, self.abort = raw.get_extra_info, raw.is_closing, raw.abort
        self.get_write_buffer_size = raw.get_write_buffer_size
        self.set_write_buffer_limits = raw.set_write_buffer_limits
        self._link.connection_made(cast("asyncio.BaseTransport", self))

    def data_received(self, data: bytes) -> None:
        if self._is_open:
            self._frames.feed(data)
            self._turn()
        elif self._is_over:
            self._link.data_received(data)
        else:
            self._shake_hands(data)

    def eof_received(self) -> bool | None:
        return self._link.eof_received()

    def pause_writing(self) -> None:
        self._link.pause_writing()

    def resume_writing(self) -> None:
        self._link.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._frames = Frames()
        self._link.connection_lost(exc)

    # -- asyncio.Transport

    def write(self, data: bytes | memoryview) -> None:
        if not self._is_over:
            self._raw.write(frame(BINARY, bytes(data)))

    def pause_reading(self) -> None:
        self._is_paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._plan()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Send the close frame. The client's close frame, its end or the link's timeout ends the rest."""
        if self._is_open:
            self._say_close(NORMAL)
        elif self._raw.can_write_eof():
            self._raw.write_eof()
        else:
            self._raw.close()
        self._is_over = True
        if self._has_heard_close:
            self._raw.close()

    def close(self) -> None:
        self.write_eof()
        self._raw.close()

    # -- the handshake

    def _shake_hands(self, data: bytes) -> None:
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end and len(head) <= HEAD_MAX:
            return
        self._link.hear(head)
        try:
            answer = answer_handshake(head, self._pages, self._raw)
        except HandshakeRefused as error:
            self._refuse(error)
            return
        self._raw.write(answer)
        self._head = b""
        self._is_open = True
        if rest:
            self.data_received(rest)

    def _refuse(self, error: HandshakeRefused) -> None:
        address = self._link.address
        log.info("websocket refused: %s, %d %s", address, error.status, error, extra=by(address))
        body = f"{error}\n".encode()
        lines = (
            f"HTTP/1.1 {error.status.value} {error.status.phrase}",
            *error.headers,
            "Connection: close",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
        )
        self._raw.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self._head = b""
        self._link.linger()

    # -- frames

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._time.wait(self.owner, self._go_on)

    def _go_on(self) -> None:
        self._is_planned = False
        if not self._raw.is_closing():
            self._turn()

    def _turn(self) -> None:
        """Hand on payload, if the link reads, for at most one turn's frames."""
        if self._is_paused:
            self._link.keep_frames(self._frames.kept_bytes)
            self._raw.pause_reading()  # it may have been read on: what came was waiting for its turn
            return
        payload: list[bytes] = []
        pongs: list[bytes] = []
        error: FrameError | None = None
        has_more = False
        try:
            has_more = self._take(payload, pongs)
        except FrameError as found:
            error = found
        if pongs:
            self._raw.write(b"".join(pongs))
        self._link.keep_frames(self._frames.kept_bytes)
        if payload:
            self._link.data_received(b"".join(payload))
        if error is not None:
            self._fail(error)
        elif self._has_heard_close:
            self._leave()
        elif has_more:
            self._raw.pause_reading()
            self._plan()
        elif not self._is_paused:
            self._raw.resume_reading()

    def _take(self, payload: list[bytes], pongs: list[bytes]) -> bool:
        """Append the payload and pongs of the next frames; True if there may be more. Raises FrameError."""
        for _ in range(FRAMES_AT_ONCE):
            if self._has_heard_close:
                return False
            piece = self._frames.next()
            if piece is None:
                return False
            kind, data = piece
            if kind == BINARY:
                payload.append(data)
            elif kind == CLOSE:
                self._has_heard_close = True
            elif kind == PING and not self._is_over and self._raw.get_write_buffer_size() < PONG_MAX:
                pongs.append(frame(PONG, data))
        return True

    def _fail(self, error: FrameError) -> None:
        address = self._link.address
        log.info("websocket closed: %s, %d %s", address, error.code, error, extra=by(address))
        self._frames = Frames()
        self._say_close(error.code)
        self._is_open = False
        self._link.linger()

    def _leave(self) -> None:
        """The client has sent a close frame. Its earlier input is handled and answered first."""
        if self._is_paused or self._link.eof_received():
            return
        self._say_close(NORMAL)
        self._raw.close()

    def _say_close(self, code: int) -> None:
        if not self._is_over:
            self._is_over = True
            self._raw.write(frame(CLOSE, code.to_bytes(2)))
