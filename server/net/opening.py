"""Protocols of connections, from accept to close."""

import asyncio
import socket
from contextlib import suppress
from typing import NamedTuple


class Caller(NamedTuple):
    """A client's address, without the port, and its socket."""

    address: str
    port: int
    accepted: socket.socket

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"

    def abort(self) -> None:
        """Close a connection without a transport: its handshake fails."""
        with suppress(OSError):
            self.accepted.shutdown(socket.SHUT_RDWR)


class Opening(asyncio.Protocol):
    """A connection from its accept on. One that never gets a transport gets `connection_lost(None)`."""

    __slots__ = ()

    owner: str
    """The owner whose share of the loop's time it uses (loop_time.py)."""

    def keep_unread(self, count: int) -> None:
        """Note bytes that wait unread for the owner's turn."""


def read_on(transport: asyncio.ReadTransport) -> None:
    """Resume reading a socket, unless an error has closed it; then `connection_lost` follows.

    A handle of uvloop closed by an error shows that only by raising, not by `is_closing`.
    """
    with suppress(RuntimeError):
        transport.resume_reading()


def write_to(transport: asyncio.WriteTransport, data: bytes) -> None:
    """Write to a socket, unless such an error has closed it."""
    try:  # noqa: SIM105 - in the path of every packet
        transport.write(data)
    except RuntimeError:
        pass
