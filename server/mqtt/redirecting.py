"""Redirecting listener: MQTT on a node that does not lead answers every CONNECT with the leader's address.

    level 5     CONNACK 0x9C and a server reference, host:port of the node that leads, or a URL where
                that differs in more than the host (server/settings/public.py);
                0x88 "server unavailable" while none is known
    3.1, 3.1.1  return code 3, "server unavailable"; the client tries its next address

No key is needed: every node tells any client where the leader is. Anything but a CONNECT is answered as by a
server. Listeners, TLS and websockets are those of a server (listeners.py), and so are the bounds:
`limits.connections` and those of an address, `limits.connect_rate`, the pool (server/net/pool.py) for
incomplete CONNECTs. A connection lasts at most 10 s; only one CONNECT is read, and then it lingers
(server/net/lingering.py).

It is no state of the ordinary link (link.py), which has sessions, delivery and a writer behind it. This node
has none of them, and to stand in for them would take more lines than this connection.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import cast

from ..codec.encode import encode
from ..codec.errors import MqttError
from ..codec.packets import Connack, Connect, Properties
from ..codec.publish import Decoder
from ..codec.reasons import Reason
from ..fair import Part
from ..net.acceptor import Ports
from ..net.crowd import Cause, Crowd
from ..net.lingering import Lingering
from ..net.loop_time import LoopTime
from ..net.networks import network_of
from ..net.opening import Caller
from ..net.pool import Pool
from ..net.tls import Certificates
from ..observe.logs import by
from ..settings.config import Config
from ..settings.kinds import Address
from .listeners import Behind, Listeners
from .state import answer_to
from .websocket import Inner

log = logging.getLogger(__name__)


def redirecting_listeners(
    config: Config,
    certificates: Certificates | None,
    crowd: "Crowd[Redirecting]",
    pool: Pool,
    where: Callable[[str], str],
    ports: Ports,
) -> Listeners:
    """Redirecting listeners. `where`: the server reference to the leader, for a listener's scheme; empty:
    none is known."""

    def behind(address: Address, _: Certificates | None) -> Behind:
        there = partial(where, address.scheme or "mqtt")
        return lambda caller: Redirecting(config, crowd, pool, there, caller)

    return Listeners(config, certificates, crowd, LoopTime(monotonic, Part()), ports, behind)


class Redirecting(Inner):
    """One connection: one CONNECT, one CONNACK."""

    def __init__(
        self,
        config: Config,
        crowd: "Crowd[Redirecting]",
        pool: Pool,
        where: Callable[[], str],
        caller: Caller,
    ) -> None:
        self._caller = caller
        self._where = where
        self._crowd = crowd
        self._pool = pool
        self.address = caller.address
        self.owner = network_of(caller.address)
        self.held_bytes = 0
        """As the pool has noted it."""
        limits = config.limits
        self._decoder = Decoder(config.mqtt.maximum_packet_size, users_max=limits.user_properties)
        self._frame_bytes = 0
        self._lingering: Lingering | None = None
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        loop = asyncio.get_running_loop()
        self.idle_since_s = loop.time()
        self._timer = loop.call_later(limits.connect_timeout_ms / 1000, self._time_out)
        crowd.add(self)

    # -- asyncio.Protocol

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

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self._is_over = True
        self._timer.cancel()
        if self._lingering is not None:
            self._lingering.lost()
        self._pool.hold(self, 0)
        self._crowd.discard(self)

    # -- for the crowd, and for a websocket

    def keep_frames(self, count: int) -> None:
        """So many bytes of frames are not read yet."""
        self._frame_bytes = count
        if not self._is_over:
            self._keep()

    # -- the end

    def linger(self) -> None:
        """Nothing more is said; close when the client has had time to read what was."""
        transport = self._transport
        if self._is_over or transport is None:
            return
        self._is_over = True
        self._decoder = Decoder(4)
        self._pool.hold(self, 0)
        self._crowd.lingers(self)
        self._timer.cancel()
        self._lingering = Lingering(transport)

    def close(self, cause: Cause) -> None:  # noqa: ARG002 - there is nothing to say before CONNECT
        self.abort()

    def abort(self) -> None:
        self._is_over = True
        self._pool.hold(self, 0)
        if self._transport is not None:
            self._transport.abort()
        else:
            self._caller.abort()

    def _time_out(self) -> None:
        log.info("connection closed: no CONNECT in time", extra=by(self.address))
        self.abort()

    def evict(self) -> None:
        """The pool is short, and nobody holds more."""
        text = "connection closed: limits.memory: it holds the most unhandled bytes"
        log.warning(text, extra=by(self.address))
        self._crowd.note("limits.memory")
        self.abort()

    def _say(self, data: bytes) -> None:
        """Send the last packet, if any."""
        assert self._transport is not None
        if data:
            self._transport.write(data)
        self.linger()

    def _answer(self, packet: Connect) -> bytes:
        where = self._where()
        if packet.level < 5 or not where:
            return encode(Connack(False, Reason.SERVER_UNAVAILABLE), packet.level)
        properties = packet.properties
        most = (properties.maximum_packet_size if properties is not None else None) or 0
        data = encode(Connack(False, Reason.USE_ANOTHER_SERVER, Properties(server_reference=where)), 5)
        if 0 < most < len(data):
            data = encode(Connack(False, Reason.USE_ANOTHER_SERVER), 5)
        return data

    def _keep(self) -> None:
        kept_bytes = self._decoder.kept_bytes + self._frame_bytes
        if kept_bytes != self.held_bytes:
            self._pool.hold(self, kept_bytes)
