"""MQTT over websockets: the same link, over a transport that writes binary frames.

MQTT-6.0: frames are binary, packet boundaries mean nothing, the subprotocol is "mqtt". Bytes to the client
wait in a queue for the one task that writes them; from `high` on the link is told to pause, as a socket's
transport does.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, web

from .broker import Broker
from .link import MqttLink

log = logging.getLogger(__name__)

CLOSE_UNSUPPORTED_DATA = 1003


class WebsocketTransport(asyncio.Transport):
    """What a link needs of a transport, on a websocket."""

    def __init__(self, socket: web.WebSocketResponse, link: MqttLink, peer: object) -> None:
        super().__init__({"peername": peer})
        self._socket = socket
        self._link = link
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._high = 1 << 16
        self._is_closing = False
        self._is_paused = False
        self._has_work = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()

    def write(self, data: Any) -> None:
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(data)
        self._has_work.set()
        if self._waiting_bytes > self._high and not self._is_paused:
            self._is_paused = True
            self._link.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self._high = high or self._high

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True
        self._has_work.set()

    def abort(self) -> None:
        self._waiting.clear()
        self.close()

    async def readable(self) -> None:
        await self._may_read.wait()

    async def write_out(self) -> None:
        """Send what waits, until the transport is closed and nothing waits, or the client is gone."""
        with suppress(ConnectionError):
            await self._write_out()

    async def _write_out(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            data, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
            if data:
                await self._socket.send_bytes(data)
            if self._is_paused:
                self._is_paused = False
                self._link.resume_writing()
            if self._is_closing and not self._waiting:
                await self._socket.close()
                return


async def serve_websocket(request: web.Request, broker: Broker, links: set[MqttLink]) -> web.StreamResponse:
    """One websocket connection, from the handshake to its end."""
    socket = web.WebSocketResponse(
        protocols=("mqtt", "mqttv3.1"), max_msg_size=broker.config.mqtt.maximum_packet_size, compress=False
    )
    await socket.prepare(request)
    link = MqttLink(broker, asyncio.get_running_loop(), links)
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    transport = WebsocketTransport(socket, link, peer)
    link.connection_made(transport)
    writer = asyncio.create_task(transport.write_out())
    try:
        await _read(socket, transport, link)
    finally:
        transport.abort()
        link.connection_lost(None)
        writer.cancel()
    return socket


async def _read(socket: web.WebSocketResponse, transport: WebsocketTransport, link: MqttLink) -> None:
    async for message in socket:
        if message.type is not WSMsgType.BINARY:
            log.info("websocket closed: a frame that is not binary")
            await socket.close(code=CLOSE_UNSUPPORTED_DATA)
            return
        if not transport.is_closing():
            link.data_received(message.data)
        await transport.readable()
