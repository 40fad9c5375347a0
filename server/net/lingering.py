"""Closes a socket so that its client can read the last answer.

If a socket is closed at once, unread bytes make the system send a reset, which takes the answer from a client
that is still sending. If the server waits without limit, a client that does not read keeps its place for
ever. So the server writes, half-closes, and reads on for a while:

    write ──> half-close ──> read and drop, until the client closes or its time is over ──> abort

A client has LINGER_S to close once it has read everything, and LINGER_BYTES to send. One that reads nothing
has the time that its protocol gives it. TLS has no half-close: its close announces the end, and reads until
the client has announced it too.
"""

import asyncio
import socket
import struct
import sys
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ

LINGER_S = 2.0
LINGER_BYTES = 16 << 20


class Lingering:
    """The end of one socket. Its protocol drops input, and calls `lost` when the connection is gone."""

    __slots__ = ("_dropped_bytes", "_loop", "_patience_s", "_since_s", "_timer", "_transport", "_untaken")

    def __init__(self, transport: asyncio.Transport, patience_s: float = 0.0) -> None:
        """Sends what has been written, and nothing more. `patience_s`: for a client that reads nothing of it;
        at least `LINGER_S`."""
        self._transport = transport
        self._patience_s = max(patience_s, LINGER_S)
        self._dropped_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()
        self._untaken = untaken(transport)
        self._timer = self._loop.call_later(LINGER_S, self._look)
        if transport.is_closing():
            return
        # A handle of uvloop closed by an error shows that only by raising RuntimeError.
        with suppress(RuntimeError):
            transport.resume_reading()
            if not transport.can_write_eof():
                transport.close()
                return
            try:
                transport.write_eof()
            except OSError:  # the client is gone
                transport.abort()

    def drop(self, count: int) -> None:
        """Count dropped bytes."""
        self._dropped_bytes += count
        if self._dropped_bytes > LINGER_BYTES:
            self._transport.abort()

    def lost(self) -> None:
        """The connection is gone."""
        self._timer.cancel()

    def _look(self) -> None:
        before, self._untaken = self._untaken, untaken(self._transport)
        now_s = self._loop.time()
        if self._untaken < before:
            self._since_s = now_s
        elif not self._untaken or now_s - self._since_s >= self._patience_s:
            abort_socket(self._transport)
            return
        self._timer = self._loop.call_later(LINGER_S, self._look)


def untaken(transport: asyncio.Transport) -> int:
    """Bytes written that the client has not read, in the transport and in the system."""
    waiting = 0
    with suppress(OSError, AttributeError, ValueError):
        accepted = transport.get_extra_info("socket")
        waiting = int.from_bytes(ioctl(accepted.fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)
    return transport.get_write_buffer_size() + waiting


def abort_socket(transport: asyncio.Transport) -> None:
    """Close at once, and drop what the client has not read: the system would keep it for minutes."""
    with suppress(OSError, AttributeError):
        if untaken(transport):
            accepted = transport.get_extra_info("socket")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
