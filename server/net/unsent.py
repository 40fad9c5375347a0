"""Counts bytes not sent below TLS, for the bounds on unsent bytes.

A TLS transport of asyncio counts bytes that wait for encryption. But it passes all of one write to the
transport below, where they are not visible. Only when that is full does it keep, and count, the rest. So
output is written in pieces:

    written at once      4 MiB: 0 unsent, though the client reads nothing
    in pieces            64 KiB each: the transport below is full with the first ones, the others are counted
"""

import asyncio
from collections.abc import Iterable
from typing import Any

PIECE = 64 << 10
"""Maximum bytes of one write: enough to fill the transport below."""


def counting(transport: asyncio.Transport) -> asyncio.Transport:
    """A transport whose `get_write_buffer_size` is right; without TLS that is any."""
    return transport if transport.get_extra_info("sslcontext") is None else Pieces(transport)


class Pieces(asyncio.Transport):
    """A TLS transport that is written to in pieces."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if len(data) <= PIECE:
            self._transport.write(data)
            return
        view = memoryview(data)
        for at in range(0, len(view), PIECE):
            self._transport.write(view[at : at + PIECE])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        self._transport.write_eof()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()
