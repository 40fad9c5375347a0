"""The asyncio protocol around a connection: bytes from and to a socket, and the timers.

Output is gathered for a loop turn and written in one call. While the socket takes no more data, the
connection has no room, and its session reads on later.

A socket is not read (it is *held*) if its client has published and the server is congested, if its client
does not read the answers, while its session is being opened, and if it has sent more than one turn can
handle. So a publisher that is too fast waits instead of filling RAM, and a flood of tiny packets leaves the
others their turns. Held links wait for their owner's turn (server/net/loop_time.py). Those that have just
published also wait while the server is congested. Those that wait for their own socket or session are read
again when that is over.

A client that leaves, by DISCONNECT or by the end of its stream, loses nothing that it sent before: its link
handles the rest in its turns, leaves the session, and sends the answers that are ready within LINGER_S. If
the server ends a connection, or another one takes it over, unhandled input is dropped.

The end has two steps. What belongs to the session is settled at once: its will, its group's messages, its
place. The socket lingers (server/net/lingering.py).
"""

import asyncio
import logging
from collections import deque
from functools import partial
from typing import cast

from ..codec.reasons import Reason
from ..delivery.link import Closing
from ..delivery.publishing import Publishing
from ..net.crowd import Cause, Crowd
from ..net.lingering import LINGER_S, Lingering, abort_socket
from ..net.loop_time import KEY, LoopTime
from ..net.networks import network_of
from ..net.opening import Caller, read_on, write_to
from ..net.outgoing import Outgoing
from ..net.pool import Pool
from ..net.revoked import CertificateId
from ..net.tls import client_certificate_id, common_name
from ..net.unsent import counting
from ..observe.logs import by, clean
from .authenticator import Authenticator
from .parts import Parts
from .state import Connection
from .websocket import Inner

log = logging.getLogger(__name__)

CONGESTION_POLL_S = 0.005
RESUMED_AT_ONCE = 64
"""Links read again in one turn, between two checks for congestion."""
KEEP_ALIVE_SLACK = 1.5
HELD_CHECK_S = 1.0
READ_BYTES = 32 << 10
"""After so many bytes at once a link waits for its turn: the loop would read the socket 32 times in a row."""
LENT_BYTES = 64 << 10
"""Maximum sent in one turn to a client that does not read all."""
SHARED_BYTES = 4 << 10
"""From this average size pieces are sent as they are: all receivers of a message share its payload."""
UNREAD_FACTOR = 4
"""Times `limits.out_bytes` that may lie unread before the link is held."""
HTTP_REQUESTS = (b"GET /", b"HEAD /", b"POST /", b"PUT /", b"PATCH /", b"DELETE /", b"OPTIONS /")
CLOSINGS = {Cause.STOPPING: Closing.STOPPING, Cause.MOVED: Closing.MOVED}


class Links:
    """Shared by links: their crowd, the pool, the output, and the queues of held links.

    Links whose clients have published wait for a turn, and while their key is congested.
    """

    def __init__(
        self, crowd: "Crowd[MqttLink]", pool: Pool, publishing: Publishing, outgoing: Outgoing, time: LoopTime
    ) -> None:
        self.crowd = crowd
        self.pool = pool
        self.outgoing = outgoing
        self.time = time
        self._is_congested = publishing.is_congested
        self._waiting: dict[str, deque[MqttLink]] = {}
        """By key, in the order of their coming. None is empty."""
        self._returned: dict[str, list[MqttLink]] = {}
        """Before those: it was congested again when their turn came."""
        self._is_planned = False

    def wait(self, link: "MqttLink", *, has_published: bool = True) -> None:
        """Call its `go_on` in its turn; if it has published, not while its key is congested."""
        if has_published and (link.key in self._waiting or self._is_congested(link.key)):
            self._waiting.setdefault(link.key, deque()).append(link)
            self._plan(CONGESTION_POLL_S)
        else:
            self.time.wait(link.owner, partial(self._go_on, link, has_published))

    def _go_on(self, link: "MqttLink", has_published: bool) -> None:
        if has_published and self._is_congested(link.key):
            self._returned.setdefault(link.key, []).append(link)
            self._plan(CONGESTION_POLL_S)
            return
        try:
            link.go_on()
        except Exception:
            log.exception("connection: failed inside the server", extra=by(link.address))
            link.refuse(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "the server failed")

    def _plan(self, delay_s: float) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._is_planned = False
        for key, links in self._returned.items():
            self._waiting.setdefault(key, deque()).extendleft(reversed(links))
        self._returned.clear()
        free = [key for key in self._waiting if not self._is_congested(key)]
        for key in free:
            line = self._waiting[key]
            for _ in range(min(len(line), RESUMED_AT_ONCE)):
                link = line.popleft()
                self.time.wait(link.owner, partial(self._go_on, link, has_published=True))
            if not line:
                del self._waiting[key]
        if self._waiting:
            self._plan(0 if free else CONGESTION_POLL_S)


class MqttLink(Inner):
    """One accepted socket: among `links` from now to its end."""

    def __init__(
        self,
        parts: Parts,
        loop: asyncio.AbstractEventLoop,
        links: Links,
        authenticator: Authenticator,
        caller: Caller,
    ) -> None:
        self._parts = parts
        self._limits = parts.config.limits
        self._publishing = parts.publishing
        self._authenticator = authenticator
        self._caller = caller
        self.address = caller.address
        self.owner = network_of(caller.address)
        self._loop = loop
        self._links = links
        self._crowd, self._pool = links.crowd, links.pool
        self._transport: asyncio.Transport | None = None
        self._certificate_id: CertificateId | None = None
        """Identity of its client's certificate."""
        self._connection: Connection | None = None
        self._is_flush_planned = False
        self._is_held = False
        self._is_waiting = False
        self._is_armed = False
        self._is_last = self._is_ending = False
        """The client sends no more, and the server sends it nothing more."""
        self._lingering: Lingering | None = None
        self._last_received = loop.time()
        self.held_bytes = 0
        """As the pool has noted it."""
        self._frame_bytes = self._unread_bytes = self._unsent_bytes = 0
        self._is_lent = False
        """Its client has not read all that it was sent: unread bytes count too."""
        parts.publishing.traffic.sockets += 1
        links.crowd.add(self)
        self._timer = loop.call_later(self._limits.connect_timeout_ms / 1000, self._check_alive)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = counting(cast("asyncio.Transport", transport))
        config, identity = self._parts.config, common_name(transport)
        self._connection = Connection(
            self._parts,
            self._authenticator,
            peer=str(self._caller),
            identity=identity,
            wake=self._plan_flush,
            fill=self._plan_filling,
            in_turn=lambda work: self._links.time.wait(self.owner, work),
        )
        self._transport.set_write_buffer_limits(high=self._pool.own_bytes)
        self._last_received = self._loop.time()
        self._certificate_id = client_certificate_id(transport)
        has_tls = transport.get_extra_info("sslcontext") is not None
        if config.mqtt.tls_identity_as_username and has_tls and not identity:
            cause = by(self.address)
            log.warning("connection closed: the certificate has no common name", extra=cause)
            self._transport.abort()
        elif self._authenticator.has_revoked(
            self._certificate_id
        ):  # meanwhile: the handshake has looked at the list before
            cause = by(self.address)
            log.warning("connection closed: the certificate has been revoked", extra=cause)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        assert connection is not None
        if self._is_ending:
            if self._lingering is not None:
                self._lingering.drop(len(data))
            return
        self._last_received = self._loop.time()
        self._publishing.traffic.bytes_received += len(data)
        if not self._is_armed and data.startswith(HTTP_REQUESTS) and self._is_untouched(connection):
            self._answer_http()
            return
        connection.receive(data)
        if connection.has_left:
            self._answer_last()
            return
        if (
            self._keep(connection)
            and not self._is_held
            and (len(data) >= READ_BYTES or self._is_to_hold(connection))
        ):
            self._hold()

    def _is_untouched(self, connection: Connection) -> bool:
        """Whether nothing has come before, also no part of a CONNECT."""
        return self._transport is not None and not connection.outbox.level and not connection.kept_bytes

    def _answer_http(self) -> None:
        """Somebody has taken this port for that of HTTP: say so in HTTP, and close."""
        transport = self._transport
        assert transport is not None
        port = self._parts.config.http.listen.port
        where = f"at port {port}" if port else "at another port"
        text = f"This port speaks MQTT. HTTP is {where} (http.listen).".encode()
        head = b"HTTP/1.1 421 Misdirected Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
        write_to(transport, head + b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(text), text))
        log.warning("connection closed: an HTTP request on a port of MQTT", extra=by(self.address))
        self.linger()

    def eof_received(self) -> bool:
        """The client sends no more. Returns whether earlier input still needs the socket."""
        connection = self._connection
        if connection is None or self._is_ending:
            return False
        connection.end_input()
        self._is_held = connection.is_unfinished
        self._answer_last()
        return not self._is_ending

    def pause_writing(self) -> None:
        assert self._connection is not None
        self._is_lent = True
        self._connection.outbox.out_max = min(LENT_BYTES, self._limits.out_bytes)
        self._connection.outbox.is_blocked = True

    def resume_writing(self) -> None:
        assert self._connection is not None
        self._is_lent = False
        self._unsent_bytes = 0
        if self._is_ending:
            self._pool.hold(self, 0)
        else:
            self._keep(self._connection)
        self._connection.outbox.out_max = self._limits.out_bytes
        self._connection.outbox.is_blocked = False
        self._connection.drained()
        if self._is_held:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """Earlier input, and the end, are handled in turns: the ends of 60 connections at once, each in a
        thousand shared subscriptions, take 0.3 s."""
        self._transport = None
        self._timer.cancel()
        if self._lingering is not None:
            self._lingering.lost()
            self._lingering = None  # a websocket holds this link
        connection = self._connection
        if connection is None or self._is_ending:
            self._finish()
            return
        self._crowd.lost_socket(self)
        connection.outbox.is_blocked = True  # whatever it were sent would be in vain
        if connection.is_unfinished:
            self._is_held = True
            self._wait()
        else:
            self._plan_flush()

    # -- for the crowd and the listener

    @property
    def idle_since_s(self) -> float:
        return self._last_received

    def close(self, cause: Cause) -> None:
        """Close with a reason, if there is a client to tell."""
        closing = CLOSINGS.get(cause)
        if closing is None:
            self.refuse(Reason.QUOTA_EXCEEDED, cause.value)
        elif self._connection is not None:
            self._connection.close(closing)
            self.flush()

    def abort(self) -> None:
        if self._transport is not None:
            abort_socket(self._transport)
        elif self._connection is None:
            self._caller.abort()

    @property
    def key(self) -> str:
        """Name of the client's API key; empty: none."""
        return "" if self._connection is None else self._connection.key

    def review(self) -> None:
        """Keys or certificates have changed."""
        if self._connection is not None and not self._is_ending:
            self._connection.review(has_revoked=self._authenticator.has_revoked(self._certificate_id))

    def hear(self, head: bytes) -> None:
        """A trusted proxy says in the request for a websocket whose it is."""
        if self._crowd.is_shared(self) and self._connection is not None:
            self.address = self._crowd.proxies.client_in(head, self._caller.address)
            self.owner = network_of(self.address)
            self._connection.call_from(self.address)

    def keep_frames(self, count: int) -> None:
        if count != self._frame_bytes:
            self._frame_bytes = count
            if self._connection is not None and not self._is_ending:
                self._keep(self._connection)

    def keep_unread(self, count: int) -> None:
        self._unread_bytes = count
        if self._connection is not None and not self._is_ending:
            self._keep(self._connection)

    # -- for the queue

    def go_on(self) -> None:
        """In its turn: handle the rest; if that was all, read on."""
        self._is_waiting = False
        connection = self._connection
        if self._is_ending or connection is None:
            return
        connection.receive(b"")
        if not self._keep(connection):
            return
        if self._transport is None:
            if connection.is_unfinished:
                self._wait()
            else:
                self._finish()
            return
        if self._is_last or connection.has_left:
            self._is_held = connection.is_unfinished
            self._answer_last()
            return
        if self._is_to_hold(connection):
            self._wait()
            return
        self._is_held = False
        if not self._transport.is_closing():
            self._last_received = self._loop.time()
            read_on(self._transport)

    def refuse(self, reason: Reason, why: str) -> None:
        """End it, whatever it is doing."""
        if self._connection is not None:
            self._connection.refuse(reason, why)
            self.flush()
        if not self._is_ending:
            self._finish()

    def evict(self) -> None:
        """The pool is short, and nobody holds more. What its client does not read it will not read now."""
        self._crowd.note("limits.memory")
        is_lent, self._is_lent, self._unsent_bytes = self._is_lent, False, 0
        if not self._is_ending:
            self.refuse(Reason.QUOTA_EXCEEDED, "limits.memory: it holds the most unhandled or unread bytes")
        if is_lent and self._transport is not None:
            abort_socket(self._transport)

    # -- the end

    def _answer_last(self) -> None:
        """The client sends no more. Stop reading, and close once all answers are out, after LINGER_S at the
        latest."""
        transport = self._transport
        if not self._is_last and transport is not None:
            self._is_last = True
            self._timer.cancel()
            self._timer = self._loop.call_later(LINGER_S, self._give_up)
            if not transport.is_closing():
                transport.pause_reading()
        self.flush()

    def _give_up(self) -> None:
        """The answers take too long: close. The client's input is still handled."""
        connection, transport = self._connection, self._transport
        if connection is not None and connection.is_unfinished and transport is not None:
            abort_socket(transport)
        else:
            self.linger()

    def linger(self) -> None:
        """Leave the session now; close when the client has had time to read why."""
        transport, connection = self._transport, self._connection
        if self._is_ending or transport is None or connection is None:
            return
        self._is_ending = True
        self._timer.cancel()
        connection.lost()
        self._pool.hold(self, transport.get_write_buffer_size() if self._is_lent else 0)
        self._crowd.lingers(self)
        self._lingering = Lingering(transport)

    def _finish(self) -> None:
        """There is no socket and nothing left to handle."""
        self._is_ending = True
        self._pool.hold(self, 0)
        self._crowd.discard(self)
        if self._connection is not None:
            self._connection.lost()

    # -- leaves

    def _keep(self, connection: Connection) -> bool:
        """Note what is held; False: that was too much, and this link has been ended."""
        kept_bytes = connection.kept_bytes + self._frame_bytes + self._unread_bytes
        held_bytes = kept_bytes + self._unsent_bytes
        if held_bytes != self.held_bytes:
            self._pool.hold(self, held_bytes)
        return not self._is_ending

    def _plan_flush(self) -> None:
        """Write answers soon, together with deliveries that wait."""
        self._is_flush_planned = True
        self._links.outgoing.press(self)

    def _plan_filling(self) -> None:
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._links.outgoing.add(self)

    def flush(self) -> int:
        """Write what the connection has to send; bytes."""
        self._is_flush_planned = False
        transport, connection = self._transport, self._connection
        if connection is None or self._is_ending:
            return 0
        if self.held_bytes:
            self._keep(connection)
        out = connection.take_output()
        if transport is None and not connection.is_unfinished:
            self._finish()
            return 0
        size = 0
        if transport is not None:
            if not self._is_armed and connection.outbox.is_open:
                self._arm()
            if out and not transport.is_closing():
                data = b"".join(out)
                size = len(data)
                self._publishing.traffic.bytes_sent += size
                if size < SHARED_BYTES * len(out):
                    write_to(transport, data)
                else:
                    for piece in out:
                        write_to(transport, piece)
                if self._is_lent:
                    self._borrow(transport, connection)
            if connection.outbox.is_closed:
                self.linger()
            elif out:
                connection.drained()
        if self._is_held:
            self._wait()
        return size

    def _borrow(self, transport: asyncio.Transport, connection: Connection) -> None:
        """Go on sending while there is room for unread bytes, which count."""
        self._unsent_bytes = transport.get_write_buffer_size()
        if self._keep(connection):
            has_room = self._unsent_bytes < self._limits.out_bytes and self._pool.may_take(self.owner)
            connection.outbox.is_blocked = not has_room

    def _is_to_hold(self, connection: Connection) -> bool:
        """Whether the server has to catch up with the input, or the client with the answers."""
        publishing = self._publishing
        is_too_fast = (
            connection.has_published and publishing.is_pressed and publishing.is_congested(connection.key)
        )
        return is_too_fast or connection.is_behind or self._is_unread

    @property
    def _is_unread(self) -> bool:
        """The client sends, but does not read the answers: they must not pile up."""
        if not self._is_lent or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() > UNREAD_FACTOR * self._limits.out_bytes

    def _hold(self) -> None:
        """Read no more until it is its turn again."""
        if self._transport is not None and not self._transport.is_closing():
            self._is_held = True
            self._transport.pause_reading()
            self._wait()

    def _wait(self) -> None:
        """Queue for a turn, but not while it waits for its session or its answers lie unread; this is called
        again when that is over."""
        connection = self._connection
        if not (self._is_waiting or self._is_unread or connection is None or connection.is_waiting):
            self._is_waiting = True
            self._links.wait(self, has_published=connection.has_published)

    def _arm(self) -> None:
        """CONNECT has come: from now on the keep alive counts."""
        self._is_armed = True
        connection = self._connection
        assert connection is not None
        if connection.key:
            self.owner = KEY + connection.key
        if not connection.is_stranger:
            self._crowd.let_in(self, connection.key)
        if not self._is_last:
            self._timer.cancel()
            self._check_alive()

    def _check_alive(self) -> None:
        """Close a client that has not connected, or has been silent for 1.5 times its keep alive; after its
        input that waits for its owner's turn."""
        connection = self._connection
        if connection is None:  # the TLS handshake: it has the same time, to the millisecond
            self._timer = self._loop.call_later(HELD_CHECK_S, self._check_alive)
            return
        if self._transport is None:
            return
        left_s = self._left_s(connection)
        if left_s <= 0:
            self._links.time.wait(self.owner, self._judge)
        elif connection.keep_alive_s:
            self._timer = self._loop.call_later(left_s, self._check_alive)

    def _judge(self) -> None:
        """Decide after all input is handled: close it if it was silent for too long."""
        connection, transport = self._connection, self._transport
        if self._is_last or self._is_ending or connection is None:
            return
        if transport is None or transport.is_closing():
            return
        if self._left_s(connection) > 0:
            self._timer.cancel()
            self._check_alive()
        elif connection.outbox.is_open:
            cause = by(self.address, client=connection.client_id)
            log.info("connection closed: %s, keep alive timeout", clean(connection.client_id), extra=cause)
            connection.close(Closing.TIMED_OUT)
            self.flush()
        else:
            limit_s = self._limits.connect_timeout_ms / 1000
            log.info("connection closed: no CONNECT within %g s", limit_s, extra=by(self.address))
            self._crowd.note("limits.connect_timeout")
            transport.abort()

    def _left_s(self, connection: Connection) -> float:
        """Seconds until the next check for silence; 0.0 or less: it was silent for too long."""
        if not (connection.outbox.is_open or connection.is_opening):
            return 0.0
        if not connection.keep_alive_s:
            return HELD_CHECK_S
        allowed = connection.keep_alive_s * KEEP_ALIVE_SLACK
        left_s = allowed - (self._loop.time() - self._last_received)
        return HELD_CHECK_S if left_s <= 0 and self._is_held and not self._is_unread else left_s
