"""A connection as the loop sees it, from its accept to its end."""

import asyncio
import socket
from contextlib import suppress
from typing import NamedTuple


class Caller(NamedTuple):
    """Who has connected, and the socket. `address`: without the port."""

    address: str
    port: int
    accepted: socket.socket

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"

    def hang_up(self) -> None:
        """End a connection that has no transport yet: its handshake fails."""
        with suppress(OSError):
            self.accepted.shutdown(socket.SHUT_RDWR)


class Opening(asyncio.Protocol):
    """A connection from its accept on. What never gets a transport is told `connection_lost(None)`."""

    __slots__ = ()

    owner: str
    """Whose share of the loop's time it uses (loop_time.py)."""

    @property
    def is_begun(self) -> bool:
        """Whether there is, or was, a transport."""
        raise NotImplementedError

    def keep_unread(self, count: int) -> None:
        """So many bytes have come for it and wait for its owner's turn."""


def read_on(transport: asyncio.ReadTransport) -> bool:
    """Have a socket read again; False if it cannot be, and `connection_lost` is on its way.

    A handle of uvloop that a fault has closed says so only by raising, and not by `is_closing`.
    """
    try:
        transport.resume_reading()
    except RuntimeError:
        return False
    return True


def write_to(transport: asyncio.WriteTransport, data: bytes) -> bool:
    """Have a socket send that; False if such a fault has closed it."""
    try:
        transport.write(data)
    except RuntimeError:
        return False
    return True
