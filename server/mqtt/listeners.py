"""Where MQTT listens: plain TCP, TLS, websockets, websockets over TLS; as many as are configured."""

import asyncio
import logging
import ssl

from aiohttp import web

from ..config import Mqtt
from ..kinds import Address
from .broker import Broker
from .link import MqttLink
from .websocket import serve_websocket

log = logging.getLogger(__name__)

BACKLOG = 1_024
WS_PATH = "/mqtt"
_TRANSPORTS = {"mqtt": "tcp", "mqtts": "tls", "ws": "ws", "wss": "wss"}


class _Tls(ssl.SSLObject):
    """Says so when a client does not speak TLS: nothing above would."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            log.warning("connection closed: no TLS handshake on a port that is for TLS (%s)", error.reason)
            raise


class Listeners:
    """All MQTT listeners of a server and the connections that came through them."""

    def __init__(self, broker: Broker, config: Mqtt) -> None:
        self._broker = broker
        self._config = config
        self.links: set[MqttLink] = set()
        self._servers: list[asyncio.Server] = []
        self._runners: list[web.AppRunner] = []

    async def open(self) -> list[dict[str, object]]:
        """Start listening; where, as /v1/info tells it. Raises OSError, ssl.SSLError."""
        return [await self._open(address) for address in self._config.listen]

    async def close(self) -> None:
        """Accept no more. Connections stay."""
        for server in self._servers:
            server.close()

    async def cleanup(self) -> None:
        """Connections are gone: end what is left of the websocket listeners."""
        for runner in self._runners:
            await runner.cleanup()

    async def _open(self, address: Address) -> dict[str, object]:
        scheme = address.scheme or "mqtt"
        context = self._tls() if scheme in ("mqtts", "wss") else None
        if scheme in ("ws", "wss"):
            port = await self._open_websocket(address, context)
        else:
            port = await self._open_tcp(address, context)
        return {"transport": _TRANSPORTS[scheme], "host": address.host, "port": port}

    async def _open_tcp(self, address: Address, context: ssl.SSLContext | None) -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: MqttLink(self._broker, loop, self.links),
            address.host,
            address.port,
            backlog=BACKLOG,
            ssl=context,
        )
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _open_websocket(self, address: Address, context: ssl.SSLContext | None) -> int:
        site_app = web.Application()

        async def handle(request: web.Request) -> web.StreamResponse:
            return await serve_websocket(request, self._broker, self.links)

        site_app.router.add_get(WS_PATH, handle)
        site_app.router.add_get("/", handle)
        runner = web.AppRunner(site_app, access_log=None)
        self._runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, address.host, address.port, backlog=BACKLOG, ssl_context=context)
        await site.start()
        port: int = runner.addresses[0][1]
        return port

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.sslobject_class = _Tls
        context.load_cert_chain(self._config.tls_cert, self._config.tls_key or None)
        return context
