"""MQTT where this node does not lead: every CONNECT is answered with where to go.

    level 5     CONNACK 0x9C and a server reference, host:port of the node that leads;
                0x88 "server unavailable" while none is known
    3.1, 3.1.1  return code 3, "server unavailable"; the client tries its next address

Nobody is asked for a key: where the leader is each node tells whoever comes. What is no CONNECT is answered
as a server answers it. Listeners, TLS and websockets are those of a server (listeners.py), and so are the
bounds: `limits.connections` and those of an address, `limits.connect_rate`, `limits.in_bytes` of
CONNECTs that are not whole. A connection lasts `limits.connect_timeout` at most; one CONNECT is all that is
read of it, and then it lingers (server/net/lingering.py).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import cast

from ..codec.encode import encode
from ..codec.errors import MqttError
from ..codec.fields import Properties
from ..codec.packets import Connack, Connect
from ..codec.publish import Decoder
from ..codec.reasons import Reason
from ..net.acceptor import Acceptor
from ..net.browsers import Pages, websocket_pages
from ..net.lingering import Lingering
from ..net.loop_time import LoopTime
from ..net.networks import Networks, Rate, network_of
from ..net.opening import Opening
from ..net.tls import Certificates
from ..observe.logs import by
from ..settings.config import Config
from ..settings.kinds import Address
from .listeners import TRANSPORTS
from .state import answer_to
from .websocket import Websocket

log = logging.getLogger(__name__)


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
        self._kept_bytes = 0
        self._rate = Rate(config.limits.connect_rate)
        self._time = LoopTime(monotonic)
        self._acceptor = Acceptor(
            bounded,
            self._time,
            handshake_bound="limits.connect_timeout",
            handshake_s=config.limits.connect_timeout_ms / 1000,
        )

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> "Iterator[Away]":
        return iter(list(self._all))

    async def open(self) -> list[dict[str, object]]:
        """Start listening; where, as /v1/info tells it. Raises OSError."""
        return [await self._open(address) for address in self.config.mqtt.listen]

    def close(self) -> None:
        """Accept no more, and end those that are here."""
        self._acceptor.close()
        for away in self:
            away.cut()

    def discard(self, away: "Away") -> None:
        if away in self._all:
            self.keep(away, 0)
            self._all.discard(away)
            self._networks.discard(away.address)

    def keep(self, away: "Away", kept_bytes: int) -> None:
        """Note what a connection keeps. Above `limits.in_bytes` in all the one that keeps most is cut."""
        self._kept_bytes += kept_bytes - away.kept_bytes
        away.kept_bytes = kept_bytes
        while self._kept_bytes > self.config.limits.in_bytes:
            largest = max(self._all, key=lambda one: one.kept_bytes)
            self._bounded["limits.in_bytes"] += 1
            text = "connection closed: limits.in_bytes: no other keeps so much that is not handled"
            log.warning(text, extra=by(largest.address))
            largest.cut()

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
        bound = self._bound_of(peer)
        if bound:
            self._bounded[bound] += 1
            log.warning("connection refused: no more are taken by %s", bound, extra=by(peer))
            return None
        away = Away(self, peer)
        self._all.add(away)
        self._networks.add(peer)
        return away if pages is None else Websocket(away, pages, self._time)

    def _bound_of(self, peer: str) -> str:
        """The setting that leaves no room for one more from there, if one does; the rate comes last."""
        limits = self.config.limits
        if len(self._all) >= limits.connections:
            return "limits.connections"
        if 0 < limits.connections_per_address <= self._networks.count(peer):
            return "limits.connections_per_address"
        is_taken = self._rate.admits(asyncio.get_running_loop().time())
        return "" if is_taken else "limits.connect_rate"


class Away(Opening):
    """One connection: one CONNECT, one CONNACK."""

    def __init__(self, listeners: AwayListeners, address: str) -> None:
        """`address`: of its client, without the port."""
        self.address = address
        self.owner = network_of(address)
        self.kept_bytes = 0
        """As `listeners` have noted it."""
        self._listeners = listeners
        limits = listeners.config.limits
        self._decoder = Decoder(listeners.config.mqtt.maximum_packet_size, users_max=limits.user_properties)
        self._frame_bytes = 0
        self._lingering: Lingering | None = None
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        self._timer = asyncio.get_running_loop().call_later(limits.connect_timeout_ms / 1000, self.cut)

    # -- asyncio.Protocol

    @property
    def is_begun(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._is_over:  # its time was up in the midst of the TLS handshake
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            if self._lingering is not None:
                self._lingering.drop(len(data))
            return
        try:
            packets = self._decoder.feed(data, 1)
        except MqttError as error:
            log.info("connect refused: %s", error, extra=by(self.address))
            self._say(answer_to(error))
            return
        if packets:
            assert isinstance(packets[0], Connect), "the decoder takes nothing else first"
            self._say(self._answer(packets[0]))
        else:
            self._keep()

    def eof_received(self) -> None:
        """The loop closes the transport."""
        self._is_over = True

    def pause_writing(self) -> None:
        """There is one small answer."""

    def resume_writing(self) -> None:
        """There is one small answer."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self._is_over = True
        self._timer.cancel()
        if self._lingering is not None:
            self._lingering.lost()
        self._listeners.discard(self)

    # -- for a websocket

    def keep_frames(self, count: int) -> None:
        """So many bytes of frames are not read yet."""
        self._frame_bytes = count
        if not self._is_over:
            self._keep()

    # -- the end

    def end(self) -> None:
        """Nothing more is said; close when the client has had time to read what was."""
        transport = self._transport
        if self._is_over or transport is None:
            return
        self._is_over = True
        self._decoder = Decoder(4)
        self._listeners.keep(self, 0)
        self._timer.cancel()
        self._lingering = Lingering(transport)

    def cut(self) -> None:
        """End it, whatever it is doing."""
        self._is_over = True
        self._listeners.keep(self, 0)
        if self._transport is not None:
            self._transport.abort()

    def _say(self, data: bytes) -> None:
        """The last word, if it is one."""
        assert self._transport is not None
        if data:
            self._transport.write(data)
        self.end()

    def _answer(self, packet: Connect) -> bytes:
        where = self._listeners.where()
        if packet.level < 5 or not where:
            return encode(Connack(False, Reason.SERVER_UNAVAILABLE), packet.level)
        asked = packet.properties
        most = (asked.maximum_packet_size if asked is not None else None) or 0
        data = encode(Connack(False, Reason.USE_ANOTHER_SERVER, Properties(server_reference=where)), 5)
        if 0 < most < len(data):
            data = encode(Connack(False, Reason.USE_ANOTHER_SERVER), 5)
        return data

    def _keep(self) -> None:
        kept_bytes = self._decoder.kept_bytes + self._frame_bytes
        if kept_bytes != self.kept_bytes:
            self._listeners.keep(self, kept_bytes)
