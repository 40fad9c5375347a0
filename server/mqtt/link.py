"""The asyncio protocol round a connection: bytes from and to a socket, and the timers.

Output is gathered for a loop turn and written in one call. While the socket takes no more data the
connection has no room and its session reads on later; while the server is congested the socket is not
read, so that a publisher that is too fast waits instead of filling RAM.
"""

import asyncio
import logging
from typing import cast

from .broker import Broker
from .state import Connection

log = logging.getLogger(__name__)

CONGESTION_POLL_S = 0.005
KEEP_ALIVE_SLACK = 1.5
UNREAD_FACTOR = 4
"""Times `limits.out_bytes` that may lie unread before the client is read from no more."""
TLS_HELLO = b"\x16\x03"


class MqttLink(asyncio.Protocol):
    """One accepted socket. `links` is the listener's set of all of them."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, links: "set[MqttLink]") -> None:
        self._broker = broker
        self._loop = loop
        self._links = links
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._is_flush_planned = False
        self._is_holding = False
        self._is_armed = False
        self._last_received = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = self._transport.get_extra_info("peername")
        self._connection = Connection(self._broker, peer=str(peer), wake=self._plan_flush)
        self._links.add(self)
        if not self._broker.admits(self._loop.time()):
            log.warning("connection refused: more than limits.connect_rate a second")
            self._transport.abort()
            return
        if len(self._links) > self._broker.config.limits.connections:
            log.warning(
                "connection refused: %d are open, as many as limits.connections", len(self._links) - 1
            )
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._broker.config.limits.out_bytes)
        self._last_received = self._loop.time()
        self._timer = self._loop.call_later(
            self._broker.config.limits.connect_timeout_ms / 1000, self._check_alive
        )

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        assert connection is not None
        self._last_received = self._loop.time()
        if not self._is_armed and data.startswith(TLS_HELLO) and self._transport is not None:
            log.warning("connection closed: a TLS hello on a port that is not for TLS")
            self._transport.abort()
            return
        connection.receive(data)
        if not self._is_holding and self._is_to_hold(connection):
            self._hold()

    def pause_writing(self) -> None:
        assert self._connection is not None
        self._connection.is_blocked = True

    def resume_writing(self) -> None:
        assert self._connection is not None
        self._connection.is_blocked = False
        self._connection.drained()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self._links.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.lost()
        self._transport = None

    # -- for the listener

    def shut(self, reason: int) -> None:
        """The server stops: tell the client and close."""
        if self._connection is not None:
            self._connection.close(reason)
            self._flush()

    # -- leaves

    def _plan_flush(self) -> None:
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_planned = False
        transport, connection = self._transport, self._connection
        if transport is None or connection is None:
            return
        out = connection.take_output()
        if not self._is_armed and connection.is_open:
            self._arm()
        if out:
            transport.write(b"".join(out))
        if connection.is_closed:
            transport.close()
        elif out:
            connection.drained()

    def _is_to_hold(self, connection: Connection) -> bool:
        """Whether the server has to catch up with what came, or the client with what it was answered."""
        return self._broker.is_congested or connection.is_overfed or self._is_unread

    @property
    def _is_unread(self) -> bool:
        """The client sends, but does not read the answers: they must not pile up."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting > UNREAD_FACTOR * self._broker.config.limits.out_bytes

    def _hold(self) -> None:
        """Read no more from this publisher until the server has caught up."""
        if self._transport is not None and not self._transport.is_closing():
            self._is_holding = True
            self._transport.pause_reading()
            self._loop.call_later(CONGESTION_POLL_S, self._release)

    def _release(self) -> None:
        self._is_holding = False
        if self._transport is None or self._transport.is_closing():
            return
        connection = self._connection
        if connection is not None and self._is_to_hold(connection):
            self._is_holding = True
            self._loop.call_later(CONGESTION_POLL_S, self._release)
        else:
            self._transport.resume_reading()
            self._last_received = self._loop.time()

    def _arm(self) -> None:
        """CONNECT has come: from now on it is the keep alive that counts."""
        self._is_armed = True
        if self._timer is not None:
            self._timer.cancel()
        self._check_alive()

    def _check_alive(self) -> None:
        """Close a client that has not connected, or has been silent for 1.5 times its keep alive."""
        connection, transport = self._connection, self._transport
        if connection is None or transport is None:
            return
        if not (connection.is_open or connection.is_opening):
            transport.abort()
            return
        if not connection.keep_alive_s:
            return
        allowed = connection.keep_alive_s * KEEP_ALIVE_SLACK
        silent = self._loop.time() - self._last_received
        if silent >= allowed and (not self._is_holding or self._is_unread):
            connection.close(0x8D)
            self._flush()
            return
        self._timer = self._loop.call_later(max(allowed - silent, 0.05), self._check_alive)
