"""How a socket ends so that its client can read the last answer.

Closed at once, bytes that nobody has read make the system send a reset, which takes the answer from a client
that is still sending. Waited for without end, a client that does not read keeps its place for ever. So the
server writes, says that this is all, and reads on for a while:

    write ──> half-close ──> read and drop, until the client hangs up or its time is over ──> cut

A client has LINGER_S to hang up once it has taken everything, and LINGER_BYTES to send. One that takes
nothing has the patience that its protocol gives it. TLS has no half-close: its close says that this is the
end, and reads until the client has said so too.
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
    """The end of one socket. Its protocol drops what still comes, and says when the connection is lost."""

    __slots__ = ("_dropped_bytes", "_loop", "_patience_s", "_since_s", "_timer", "_transport", "_untaken")

    def __init__(self, transport: asyncio.Transport, patience_s: float = 0.0) -> None:
        """What has been written goes out; nothing more is. `patience_s`: for a client that takes nothing of
        it; at least `LINGER_S`."""
        self._transport = transport
        self._patience_s = max(patience_s, LINGER_S)
        self._dropped_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()
        self._untaken = untaken(transport)
        self._timer = self._loop.call_later(LINGER_S, self._look)
        if transport.is_closing():
            return
        # A handle of uvloop that a fault has closed says so only by raising RuntimeError.
        with suppress(RuntimeError):
            transport.resume_reading()
            if not transport.can_write_eof():
                transport.close()
                return
            try:
                transport.write_eof()
            except OSError:  # the client has gone meanwhile
                transport.abort()

    def drop(self, count: int) -> None:
        """So many more bytes have come."""
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
            cut(self._transport)
            return
        self._timer = self._loop.call_later(LINGER_S, self._look)


def untaken(transport: asyncio.Transport) -> int:
    """Bytes that were written and that the client has not taken, here and with the system."""
    waiting = 0
    with suppress(OSError, AttributeError, ValueError):
        accepted = transport.get_extra_info("socket")
        waiting = int.from_bytes(ioctl(accepted.fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)
    return transport.get_write_buffer_size() + waiting


def cut(transport: asyncio.Transport) -> None:
    """Close at once. What the client has not taken goes too: the system would keep it for minutes."""
    with suppress(OSError, AttributeError):
        if untaken(transport):
            accepted = transport.get_extra_info("socket")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
