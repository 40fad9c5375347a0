"""MQTT where this node does not lead: every CONNECT is answered with where to go.

    level 5     CONNACK 0x9C and a server reference, host:port of the node that leads;
                0x88 "server unavailable" while none is known
    3.1, 3.1.1  return code 3, "server unavailable"; the client tries its next address

Nobody is asked for a key: where the leader is each node tells whoever comes. The listeners, their TLS and
their websockets are those of a server (listeners.py); a connection lasts `limits.connect_timeout` at most,
and one CONNECT is all that is read of it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import cast

from ..accepting import Acceptor, Opening
from ..browsers import Pages, websocket_pages
from ..codec.encode import encode
from ..codec.errors import MqttError
from ..codec.fields import Properties
from ..codec.packets import Connack, Connect
from ..codec.publish import Decoder
from ..codec.reasons import Reason
from ..config import Config
from ..kinds import Address
from ..logs import by
from ..networks import Networks
from ..tls import Certificates
from .listeners import TRANSPORTS
from .websocket import Websocket

log = logging.getLogger(__name__)

LINGER_S = 1.0
"""How long a client may take to read the answer."""


class AwayListeners:
    """All MQTT listeners of a node that does not lead."""

    def __init__(
        self,
        config: Config,
        certificates: Certificates | None,
        bounded: Counter[str],
        where: Callable[[], str],
    ) -> None:
        """`bounded`: counts who is refused, by the setting that is the bound. `where`: host:port of the
        leader's MQTT, empty: none is known."""
        self.config = config
        self.where = where
        self._certificates = certificates
        self._bounded = bounded
        self._all: set[Away] = set()
        self._networks = Networks()
        self._acceptor = Acceptor(
            bounded,
            handshake_bound="limits.connect_timeout",
            handshake_s=config.limits.connect_timeout_ms / 1000,
        )

    async def open(self) -> list[dict[str, object]]:
        """Start listening; where, as /v1/info tells it. Raises OSError."""
        return [await self._open(address) for address in self.config.mqtt.listen]

    def close(self) -> None:
        """Accept no more, and end those that are here."""
        self._acceptor.close()
        for away in list(self._all):
            away.cut()

    def discard(self, away: "Away") -> None:
        if away in self._all:
            self._all.discard(away)
            self._networks.discard(away.address)

    async def _open(self, address: Address) -> dict[str, object]:
        scheme = address.scheme or "mqtt"
        certificates = self._certificates if scheme in ("mqtts", "wss") else None
        pages = websocket_pages(self.config, address) if scheme in ("ws", "wss") else None
        port = await self._acceptor.open(
            address,
            partial(self._begin, pages=pages),
            None if certificates is None else certificates.context,
        )
        return {"transport": TRANSPORTS[scheme], "host": address.host, "port": port}

    def _begin(self, peer: str, *, pages: Pages | None) -> Opening | None:
        limits = self.config.limits
        bound = ""
        if len(self._all) >= limits.connections:
            bound = "limits.connections"
        elif 0 < limits.connections_per_address <= self._networks.count(peer):
            bound = "limits.connections_per_address"
        if bound:
            self._bounded[bound] += 1
            log.warning("connection refused: as many are open as %s", bound, extra=by(peer))
            return None
        away = Away(self, peer)
        self._all.add(away)
        self._networks.add(peer)
        return away if pages is None else Websocket(away, pages)


class Away(Opening):
    """One connection: one CONNECT, one CONNACK."""

    def __init__(self, listeners: AwayListeners, address: str) -> None:
        """`address`: of its client, without the port."""
        self.address = address
        self._listeners = listeners
        limits = listeners.config.limits
        self._decoder = Decoder(listeners.config.mqtt.maximum_packet_size, users_max=limits.user_properties)
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        self._timer = asyncio.get_running_loop().call_later(limits.connect_timeout_ms / 1000, self.cut)

    @property
    def is_begun(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            packets = self._decoder.feed(data)
        except MqttError as error:
            log.info("connection closed: %s", error, extra=by(self.address))
            self.cut()
            return
        if packets:
            assert isinstance(packets[0], Connect), "the decoder takes nothing else first"
            self._answer(packets[0])

    def eof_received(self) -> None:
        self.end()

    def pause_writing(self) -> None:
        """There is one small answer."""

    def resume_writing(self) -> None:
        """There is one small answer."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self._is_over = True
        self._timer.cancel()
        self._listeners.discard(self)

    def keep_frames(self, count: int) -> None:
        """Of a websocket: bounded by the one packet that is read."""

    def end(self) -> None:
        """Nothing more is to be said."""
        self._is_over = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def cut(self) -> None:
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    def _answer(self, packet: Connect) -> None:
        assert self._transport is not None
        where = self._listeners.where()
        reason = Reason.USE_ANOTHER_SERVER if where and packet.level == 5 else Reason.SERVER_UNAVAILABLE
        properties = Properties(server_reference=where) if where and packet.level == 5 else None
        self._transport.write(encode(Connack(False, reason, properties), packet.level))
        self._is_over = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.cut)
        else:
            self._transport.close()
