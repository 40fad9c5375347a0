"""Listening sockets, and connections before they have a protocol: the same for all listeners.

Connections are accepted here, not by the loop's servers, which report a connection only after its TLS
handshake. So a listener's bounds on connections, rate and time hold from the accept on, whatever the client
does or does not do.

    accept ──> is a file descriptor left? ──> [PROXY header] ──> does the crowd admit it? ──> [TLS]
        ──> connection_made

If the crowd is full a newcomer waits for ROOM_TURNS turns of the loop. A client that closes a connection and
opens another may come before the server has read that the first is closed.

Descriptors run out, too. Each connection is one, and so is each file of the store, which must always be able
to open the next. So the last few are not for connections: further connections are closed at once, and the log
says why. If not even an accept is possible, a reserved descriptor is freed for a moment: accepting and
closing tells a client more than waiting in the backlog would. Both are counted, and so are handshakes that
take too long.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ..observe.logs import by
from ..settings.kinds import Address, CannotListen
from .crowd import Crowd
from .loop_time import LoopTime, Paced
from .opening import Caller, Opening
from .proxies import ProxyHeaderError, introduced

log = logging.getLogger(__name__)

BACKLOG = 1_024
ACCEPTED_AT_ONCE = 16
ACCEPT_PAUSE_S = 1.0
"""How long accepting pauses when the system has no room for another connection."""
SPARE_FILES = 64
"""Descriptors reserved for the store; an eighth of a small limit."""
TLS_END_S = 2.0
"""How long a client may take to complete the end of TLS."""
FILES = "open files"
"""Counts connections refused because the process has no descriptor left."""


HEADER = "mqtt.proxy_protocol"
"""Counts connections whose proxy has not named its client."""
INTRODUCING_MAX = 1_024
ROOM_TURNS = 8
NO_TLS = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER")
"""OpenSSL's reasons for a client that does not begin with TLS."""

_TLS_TEXT = b"This port speaks TLS: use https://, wss:// or mqtts://.\n"
TLS_HERE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_TLS_TEXT), _TLS_TEXT)
)
"""The answer to HTTP without TLS on a TLS port."""
_REASONS = {
    errno.EADDRINUSE: "another program uses this port; stop it, or name another port",
    errno.EADDRNOTAVAIL: "this machine has no such address; use one that it has, or 0.0.0.0 for all",
    errno.EACCES: "the system does not allow it; use a port above 1023, or run as root",
}

Begin = Callable[[Caller], Opening]
"""Makes the protocol of an admitted connection."""
Context = Callable[[], ssl.SSLContext]
"""The TLS context, asked for with each connection."""


class Ports:
    """Listening sockets that outlive their acceptors. Between two of them clients wait in the backlog."""

    def __init__(self) -> None:
        self._kept: dict[Address, list[socket.socket]] = {}

    async def keep(self, address: Address) -> Address:
        """Listen at `address`; returns it with the port that the system gave. Raises OSError."""
        opened = await _bound(address)
        known = replace(address, port=int(opened[0].getsockname()[1]))
        self._kept[known] = opened
        return known

    def at(self, address: Address) -> list[socket.socket]:
        """The sockets kept for an address."""
        return self._kept.get(address, [])

    def close(self) -> None:
        """Close the sockets."""
        for listening in [one for opened in self._kept.values() for one in opened]:
            listening.close()
        self._kept.clear()


class _Way(NamedTuple):
    """Handling of connections to one address."""

    begin: Begin
    context: Context | None


class Acceptor:
    """The listening sockets of one listener."""

    def __init__(
        self,
        crowd: Crowd[Any],
        time: LoopTime,
        ports: Ports,
        *,
        needs_header: bool,
        handshake_bound: str,
        handshake_s: float,
    ) -> None:
        """`needs_header`: whether trusted proxies must send PROXY headers. `handshake_s`: maximum time of a
        header, and of TLS, from the setting `handshake_bound`."""
        self._needs_header = needs_header
        self._crowd = crowd
        self._time = time
        self._handshake_bound = handshake_bound
        self._handshake_s = handshake_s
        self._ports = ports
        self._sockets: list[socket.socket] = []
        self._own: list[socket.socket] = []
        """Sockets that are not kept."""
        self._openings: set[asyncio.Task[None]] = set()
        self._introducing: set[asyncio.Task[None]] = set()
        self._spare: int | None = None

    async def open(self, address: Address, begin: Begin, context: Context | None) -> int:
        """Listen; returns the port. Raises OSError."""
        opened = self._ports.at(address)
        if not opened:
            opened = await _bound(address)
            self._own += opened
        self._keep_spare()
        self._sockets += opened
        for listening in opened:
            self._listen(listening, _Way(begin, context))
        return int(opened[0].getsockname()[1])

    def close(self) -> None:
        """Stop accepting. Connections stay, except those in their TLS handshake."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
        for listening in self._own:
            listening.close()
        self._sockets.clear()
        self._own.clear()
        for opening in (*self._openings, *self._introducing):
            opening.cancel()
        self._give_spare()

    def _listen(self, listening: socket.socket, way: _Way) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening, way)

    def _accept(self, listening: socket.socket, way: _Way) -> None:
        files_max = _files_max()
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._shed(listening):
                    continue
                self._pause(listening, way, error)
                return
            cause = by(str(peer[0]))
            if accepted.fileno() >= files_max:
                self._refuse_full(cause)
                accepted.close()
                continue
            accepted.setblocking(False)
            caller = Caller(str(peer[0]), int(peer[1]), accepted)
            if self._crowd.proxies.has_header and self._crowd.proxies.trusts(caller.address):
                self._introduce(caller, way)
            else:
                self._admit(caller, way)

    def _introduce(self, caller: Caller, way: _Way) -> None:
        """Wait for a proxy's PROXY header. Until then the connection is in no crowd."""
        if len(self._introducing) >= INTRODUCING_MAX:
            self._turn_away(caller, f"{INTRODUCING_MAX} connections wait for a PROXY header")
            return
        introducing = asyncio.get_running_loop().create_task(self._introduced(caller, way))
        self._introducing.add(introducing)
        introducing.add_done_callback(self._introducing.discard)

    async def _introduced(self, caller: Caller, way: _Way) -> None:
        try:
            async with asyncio.timeout(self._handshake_s):
                known = await introduced(caller, is_needed=self._needs_header)
        except (ProxyHeaderError, TimeoutError) as error:
            self._turn_away(caller, str(error) or "the PROXY header did not arrive in time")
        except asyncio.CancelledError:
            caller.accepted.close()
            raise
        else:
            self._admit(known, way)

    def _turn_away(self, caller: Caller, why: str) -> None:
        log.warning("connection refused: %s", why, extra=by(caller.address))
        self._crowd.note(HEADER)
        caller.accepted.close()

    def _admit(self, caller: Caller, way: _Way, turns: int = ROOM_TURNS) -> None:
        loop, crowd = asyncio.get_running_loop(), self._crowd
        if turns and self._sockets and crowd.is_full(caller.address):
            loop.call_soon(self._admit, caller, way, turns - 1)
        elif self._sockets and crowd.admits(caller.address, loop.time()):
            self._begin(caller, way)
        else:
            caller.accepted.close()

    def _pause(self, listening: socket.socket, way: _Way, error: OSError) -> None:
        log.warning("listener: cannot accept connections for now: %s", error, extra=by("the system"))
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(ACCEPT_PAUSE_S, self._listen, listening, way)

    def _begin(self, caller: Caller, way: _Way) -> None:
        accepted, cause = caller.accepted, by(caller.address)
        paced = Paced(way.begin(caller), self._time, cause if way.context is None else None)
        opening = asyncio.get_running_loop().create_task(self._connect(accepted, paced, way, cause))
        self._openings.add(opening)

        def connected(ended: asyncio.Task[None]) -> None:
            self._openings.discard(ended)
            if not paced.is_begun:
                accepted.close()
                paced.connection_lost(None)

        opening.add_done_callback(connected)

    async def _connect(
        self, accepted: socket.socket, paced: Paced, way: _Way, cause: Mapping[str, object]
    ) -> None:
        loop = asyncio.get_running_loop()
        connect = partial(loop.connect_accepted_socket, lambda: paced, accepted)
        if way.context is None:
            await connect()
            return
        try:
            answering = accepted.dup()  # a failed handshake closes the other
        except OSError:
            self._refuse_full(cause)
            accepted.close()
            return
        try:
            await connect(
                ssl=way.context(), ssl_handshake_timeout=self._handshake_s, ssl_shutdown_timeout=TLS_END_S
            )
        except ssl.SSLError as error:
            # Nothing above would report it.
            if error.reason in NO_TLS:
                with suppress(OSError):
                    answering.send(TLS_HERE)
                log.warning("connection closed: a client without TLS, this port speaks TLS", extra=cause)
            else:
                log.warning("connection closed: the TLS handshake failed (%s)", error.reason, extra=cause)
        except ConnectionAbortedError:
            self._crowd.note(self._handshake_bound)
            text = "connection closed: no TLS handshake within %g s"
            log.info(text, self._handshake_s, extra=cause)
        except OSError:
            log.info("connection closed: the client left during the TLS handshake", extra=cause)
        finally:
            answering.close()

    def _refuse_full(self, cause: Mapping[str, object]) -> None:
        self._crowd.note(FILES)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = "connection refused: out of file descriptors, %d may be open (ulimit -n)"
        log.warning(text, soft, extra=cause)

    def _shed(self, listening: socket.socket) -> bool:
        """Accept a connection with the reserved descriptor, and close it. False if there is none."""
        if self._spare is None:
            return False
        self._give_spare()
        try:
            accepted, peer = listening.accept()
        except OSError:
            return False
        accepted.close()
        self._keep_spare()
        self._refuse_full(by(str(peer[0])))
        return True

    def _keep_spare(self) -> None:
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _give_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


def _files_max() -> float:
    """A connection's descriptor must be below this number. The system gives the lowest free one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft - min(SPARE_FILES, soft // 8)


async def _bound(address: Address) -> list[socket.socket]:
    """Listening sockets for all addresses of the host. Raises CannotListen."""
    loop = asyncio.get_running_loop()
    opened: list[socket.socket] = []
    port = address.port
    try:
        found = await loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found):
            listening = socket.create_server((str(where[0]), port), family=family, backlog=BACKLOG)
            port = port or int(listening.getsockname()[1])
            listening.setblocking(False)
            opened.append(listening)
    except BaseException as error:
        for listening in opened:
            listening.close()
        if isinstance(error, OSError):
            raise CannotListen(address, _REASONS.get(error.errno or 0, str(error))) from error
        raise
    return opened
