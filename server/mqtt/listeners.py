"""Where MQTT listens: plain TCP, TLS, websockets, websockets over TLS; as many as are configured.

Connections are accepted here rather than by the loop's servers, which say nothing of one before its TLS
handshake is done: `limits.connections`, `limits.connect_rate` and `limits.connect_timeout` hold from the
accept on, whatever the client then does or does not.

    accept ──> is there room? ──> [TLS] ──> [websocket] ──> link
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from functools import partial

from ..auth.keyring import Keyring
from ..config import Config
from ..delivery.broker import Broker
from ..kinds import Address
from ..logs import by
from .door import Door
from .link import Links, MqttLink
from .websocket import Websocket

log = logging.getLogger(__name__)

BACKLOG = 1_024
ACCEPTED_AT_ONCE = 64
ACCEPT_PAUSE_S = 1.0
"""How long nothing is accepted when the system has no room for one more."""
_TRANSPORTS = {"mqtt": "tcp", "mqtts": "tls", "ws": "ws", "wss": "wss"}


class Listeners:
    """All MQTT listeners of a server and the connections that came through them."""

    def __init__(self, broker: Broker, config: Config, keyring: Keyring) -> None:
        self._broker = broker
        self._keyring = keyring
        self._lets_anybody = config.lets_anybody
        self._config = config.mqtt
        self.links = Links(broker)
        self._sockets: list[socket.socket] = []
        self._openings: set[asyncio.Task[None]] = set()

    async def open(self) -> list[dict[str, object]]:
        """Start listening; where, as /v1/info tells it. Raises OSError, ssl.SSLError."""
        return [await self._open(address) for address in self._config.listen]

    def close(self) -> None:
        """Accept no more. Connections stay."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for opening in self._openings:
            opening.cancel()

    async def _open(self, address: Address) -> dict[str, object]:
        scheme = address.scheme or "mqtt"
        context = self._tls() if scheme in ("mqtts", "wss") else None
        door = Door(self._keyring, lets_anybody=self._lets_anybody(address))
        opened = await _bound(address)
        self._sockets += opened
        for listening in opened:
            self._listen(listening, scheme in ("ws", "wss"), context, door)
        return {
            "transport": _TRANSPORTS[scheme],
            "host": address.host,
            "port": opened[0].getsockname()[1],
        }

    def review(self) -> None:
        """Keys are others now: end who is here by one that counts no more."""
        for link in self.links:
            link.review()

    def _listen(
        self, listening: socket.socket, is_web: bool, context: ssl.SSLContext | None, door: Door
    ) -> None:
        if listening in self._sockets:
            loop = asyncio.get_running_loop()
            loop.add_reader(listening, self._accept, listening, is_web, context, door)

    def _accept(
        self, listening: socket.socket, is_web: bool, context: ssl.SSLContext | None, door: Door
    ) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection can be accepted for now: %s", error)
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_PAUSE_S, self._listen, listening, is_web, context, door)
                return
            if not self._admits(loop.time(), by(str(peer[0]))):
                accepted.close()
                continue
            accepted.setblocking(False)
            self._begin(accepted, is_web, context, door, by(str(peer[0])))

    def _begin(
        self,
        accepted: socket.socket,
        is_web: bool,
        context: ssl.SSLContext | None,
        door: Door,
        cause: Mapping[str, object],
    ) -> None:
        """A link for it, which counts from now on; the handshake of TLS comes first where there is one."""
        loop = asyncio.get_running_loop()
        link = MqttLink(self._broker, loop, self.links, door)
        protocol = Websocket(link, self._config.ws_origins) if is_web else link
        opening = loop.create_task(self._connect(accepted, protocol, context, cause))
        self._openings.add(opening)

        def connected(ended: asyncio.Task[None]) -> None:
            self._openings.discard(ended)
            if not link.is_begun:
                accepted.close()
                link.connection_lost(None)

        opening.add_done_callback(connected)

    def _admits(self, now_s: float, cause: Mapping[str, object]) -> bool:
        if not self._broker.admits(now_s):
            log.warning("connection refused: more than limits.connect_rate a second", extra=cause)
            return False
        if len(self.links) >= self._broker.config.limits.connections:
            text = "connection refused: %d are open, as many as limits.connections"
            log.warning(text, len(self.links), extra=cause)
            return False
        return True

    async def _connect(
        self,
        accepted: socket.socket,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext | None,
        cause: Mapping[str, object],
    ) -> None:
        connect = partial(asyncio.get_running_loop().connect_accepted_socket, lambda: protocol, accepted)
        if context is None:
            await connect()
            return
        try:
            await connect(
                ssl=context, ssl_handshake_timeout=self._broker.config.limits.connect_timeout_ms / 1000
            )
        except ssl.SSLError as error:
            # Nothing above would say so.
            text = "connection closed: no TLS handshake on a port that is for TLS (%s)"
            log.warning(text, error.reason, extra=cause)
        except OSError:
            log.info("connection closed: no TLS handshake within limits.connect_timeout", extra=cause)

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._config.tls_cert, self._config.tls_key or None)
        return context


async def _bound(address: Address) -> list[socket.socket]:
    """A listening socket for each of the addresses that the host has. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened: list[socket.socket] = []
    try:
        for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found):
            listening = socket.create_server((str(where[0]), int(where[1])), family=family, backlog=BACKLOG)
            listening.setblocking(False)
            opened.append(listening)
    except BaseException:
        for listening in opened:
            listening.close()
        raise
    return opened
