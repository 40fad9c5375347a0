"""Counts bytes not sent below TLS, for the bounds on unsent bytes.

A TLS transport of asyncio counts bytes that wait for encryption. But it passes all of one write to the
transport below, where they are not visible. Only when that is full does it keep, and count, the rest. So
output is written in pieces:

    written at once      4 MiB: 0 unsent, though the client reads nothing
    in pieces            64 KiB each: the transport below is full with the first ones, the others are counted
"""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

PIECE = 64 << 10
"""Maximum bytes of one write: enough to fill the transport below."""


def counting(transport: asyncio.Transport) -> asyncio.Transport:
    """A transport whose `get_write_buffer_size` is right; without TLS that is any."""
    has_tls = transport.get_extra_info("sslcontext") is not None
    return cast("asyncio.Transport", Pieces(transport)) if has_tls else transport


class Pieces:
    """A TLS transport that is written to in pieces; otherwise it is the transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
