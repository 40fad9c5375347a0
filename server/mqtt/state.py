"""The rules of one connection, sans IO: packets in, bytes and calls to delivery out.

    new --CONNECT--> opening --key known, session durable--> open --DISCONNECT, fault, takeover--> closed

Packets wait while a key is being checked or a session opened, and behind a SUBSCRIBE or UNSUBSCRIBE that is
not finished (subscribing.py). When the wait is over, and when more has come than one turn can handle
(`is_behind`), the link calls `receive` again.

Answers to publishes leave in the order of the publishes (MQTT-4.6.0), each when its message is durable or
handed on. They wait in a queue, whose complete front is sent.

A fault ends this connection only: at level 5 with a DISCONNECT that names the reason, below by closing.

QoS 2 from the client: PUBREC leaves when message and packet id are durable, PUBCOMP when the release is. To
the client: the session's cursor is durable before the PUBLISH leaves (server/delivery/write_barrier.py), and
again before PUBREL.
"""

import logging
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial

from ..auth.rights import Rights
from ..codec import wire
from ..codec.encode import encode
from ..codec.errors import MqttError, UnsupportedLevel
from ..codec.packets import (
    Ack,
    AckRun,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
)
from ..codec.publish import Decoder
from ..codec.reasons import CONNACK_REASONS, Reason
from ..delivery.link import Closing
from ..delivery.owners import owner_of
from ..delivery.subscriber import Subscriber
from .acks import Acks
from .authenticator import Authenticator
from .backlog import Backlog
from .inbound import Inbound
from .opening import (
    connack_properties,
    connect_fault,
    granted_expiry_s,
    granted_keep_alive_s,
    granted_window,
    is_bridge,
    read_will,
    shown_token,
)
from .outbox import Outbox
from .parts import Parts
from .peer import Peer
from .publish_requests import PublishRefused
from .subscribing import Subscribing, bridged

log = logging.getLogger(__name__)

PACKETS_AT_ONCE = 128
"""Packets handled between two looks at the clock."""
ASKS_MAX = 100
"""Packets of one client that may wait for its session to be stored; beyond it the socket is held."""
REACH_MAX = 1_000
"""Deliveries of what one connection publishes in a turn, while several owners are there."""
TURN_S = 0.002
"""Time for one connection in a turn, s; then the others have theirs."""


class Ending(Enum):
    """How a connection ends: lost, by DISCONNECT, or as the server stops or leads no longer."""

    LOST = auto()
    CLEAN = auto()
    STOPPING = auto()


class Connection:
    """One client's connection.

    `wake` is called when there is an answer to send or something to close, `fill` when there are deliveries,
    `in_turn` with what is to be done in a turn of the client's owner (server/net/loop_time.py).
    """

    def __init__(
        self,
        parts: Parts,
        authenticator: Authenticator,
        *,
        peer: str,
        identity: str,
        wake: Callable[[], None],
        fill: Callable[[], None],
        in_turn: Callable[[Callable[[], None]], None],
    ) -> None:
        """`identity`: the common name of the client's certificate, empty without one."""
        config, publishing, settling = parts.config, parts.publishing, parts.settling
        self._authenticator = authenticator
        self._rights: Rights | None = None
        self._config = config
        self._clock = parts.clock
        self._clients = parts.clients
        self._groups = parts.groups
        self._cursors = parts.cursors
        self._publishing = publishing
        self._settling = settling
        self._peer = Peer(peer, identity)
        self._subscriber: Subscriber | None = None
        self._decoder = Decoder(
            config.mqtt.maximum_packet_size, users_max=config.limits.user_properties, gathers=True
        )
        self._backlog = Backlog()
        self.outbox = Outbox(
            publishing.traffic,
            self._peer,
            node=parts.node,
            out_bytes=config.limits.out_bytes,
            wake=wake,
            fill=fill,
            drop=self._pass_over,
            displaced=self._displaced,
        )
        self._inbound = Inbound(
            config, parts.clock, publishing, settling, parts.traces, self._peer, self.outbox
        )
        self._acks = Acks(
            settling, publishing, self.outbox, self._inbound.refuse, max_delay_ms=config.limits.max_delay_ms
        )
        self._subscribing = Subscribing(
            config,
            parts.clock,
            parts.clients,
            parts.subscriptions,
            publishing,
            self.outbox,
            self._inbound,
            self._backlog,
            self._peer,
            wake=wake,
            in_turn=in_turn,
        )
        self._is_bridge = False
        self._ending = Ending.LOST
        self.is_opening = False
        """Its key is being checked, or its session has been claimed and is not durable yet."""
        self.keep_alive_s = 0
        self._is_ended = False
        """The client sends no more."""
        self.has_left = False
        """The client sends no more and all its input is handled. The session has been left, and only answers
        go out."""
        self._is_stopped = False
        """Whether a publish that cannot be refused waits for the end of the congestion."""

    def call_from(self, address: str) -> None:
        """Set the address of its client, as a trusted proxy names it."""
        self._peer.address = self._peer.host = address

    # -- bytes

    def receive(self, data: bytes) -> None:
        """Handle received bytes, or without any continue in this connection's turn. What is not done in
        `TURN_S`, or has to wait, is kept (`is_behind`)."""
        clock, decoder, backlog, outbox = self._clock, self._decoder, self._backlog, self.outbox
        self._inbound.begin_turn()
        until = 0.0
        while not (outbox.is_closed or self.has_left):
            came = decoder.kept_bytes + len(data)
            packets = self._decode(data)
            self._accept(packets)
            if backlog.is_noted:
                backlog.note(len(packets), came - decoder.kept_bytes)
            if not decoder.is_behind or self.is_waiting or self._inbound.reach >= REACH_MAX:
                break
            now = clock.mono()
            until = until or now + TURN_S
            if now >= until:
                break
            data = b""
        self._inbound.flush()

    def take_output(self) -> list[bytes]:
        """Take the output to send now, in order. With the last answer to a client that sends no more the
        connection closes."""
        if self._is_ended and not (self.is_opening or self.is_unfinished):
            self._leave()
        if self.has_left and not (self._inbound.is_awaited or self._acks.unsent):
            self.outbox.abort()
        return self.outbox.take_output()

    def end_input(self) -> None:
        """The client has shut down its sending side. It leaves its session once its input is handled."""
        self._is_ended = True

    def lost(self) -> None:
        """Handle the lost connection, with unhandled input (`is_unfinished`). The parts that refer to this or
        to the link drop the reference. Otherwise only the garbage collector would free them, after millions
        of objects."""
        self._inbound.flush()
        self.outbox.end()
        self._subscribing.end()
        self._leave()

    def _leave(self) -> None:
        """Leave the session; a persistent one stays. Answers that wait for the store still go out."""
        self.has_left = True
        self._backlog.clear()
        self._decoder = Decoder(4)
        rights, self._rights = self._rights, None
        if rights is not None:
            self._clients.connections.add(rights.name, -1)
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None and subscriber.link is self.outbox:
            is_clean, is_stopping = self._ending is Ending.CLEAN, self._ending is Ending.STOPPING
            self._clients.leave(subscriber, is_clean=is_clean, is_stopping=is_stopping)

    def drained(self) -> None:
        """Note that all output has been sent."""
        if self._subscriber is not None and not self.outbox.is_blocked:
            self._groups.read_on(self._subscriber)

    @property
    def client_id(self) -> str:
        """Client id; empty before CONNECT."""
        return self._peer.client_id

    @property
    def key(self) -> str:
        """Name of the client's key; empty: none."""
        return "" if self._rights is None else self._rights.key

    @property
    def is_stranger(self) -> bool:
        """Whether a key is required and the client has shown none."""
        return self._rights is not None and not self._rights.key

    @property
    def is_behind(self) -> bool:
        """Whether input waits: the link stops reading, and calls `receive` in its next turn."""
        return not (self.outbox.is_closed or self.has_left) and (
            bool(self._backlog.packets) or self._decoder.is_behind or self._asks_much
        )

    @property
    def is_unfinished(self) -> bool:
        """Whether input is unfinished; a client that disconnects in order may rely on it being done."""
        return not self.outbox.is_closed and (not self._backlog.is_empty or self._decoder.is_behind)

    @property
    def has_published(self) -> bool:
        """Whether the last call of `receive` handled a publish, or would have without the congestion."""
        return self._inbound.has_published or self._is_stopped

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its session or its publishes; `wake` is called when that is over."""
        return self.is_opening or self._backlog.work is not None or self._asks_much

    @property
    def _asks_much(self) -> bool:
        subscriber = self._subscriber
        return subscriber is not None and self._cursors.asks(subscriber) > ASKS_MAX

    @property
    def kept_bytes(self) -> int:
        """Received bytes that wait for the rest of their packet, or for their turn."""
        return self._decoder.kept_bytes + self._backlog.kept_bytes

    # -- packets

    def _decode(self, data: bytes) -> Sequence[Packet | MqttError]:
        """The next packets, none while the session is being opened. An error comes last. Waiting packets are
        bounded in number; acks that may have to wait come one by one."""
        waiting = self._backlog.packets
        is_full = self.is_opening or len(waiting) > PACKETS_AT_ONCE
        self._decoder.gathers = not waiting
        try:
            return self._decoder.feed(data, 0 if is_full else PACKETS_AT_ONCE)
        except MqttError as error:
            return [*self._decoder.unreturned, error]

    def _accept(self, packets: Sequence[Packet | MqttError]) -> None:
        """Handle packets in order until one has to wait. Acks do not wait for subscriptions. While the server
        is congested no publish is begun. PINGREQ waits for neither, or the client may take the connection for
        dead."""
        backlog, outbox, inbound = self._backlog, self.outbox, self._inbound
        held = backlog.packets
        stops = self._publishing.is_pressed and self._publishing.is_congested(self.key)
        if held or stops:
            for packet in packets:
                if not self._goes_ahead(packet, is_stopped=stops):
                    held.append(packet)
        else:
            for packet in packets:
                if outbox.is_closed:
                    return
                if self.is_opening or backlog.work is not None or inbound.reach >= REACH_MAX:
                    if not self._goes_ahead(packet, is_stopped=False):
                        held.append(packet)
                else:
                    self._handle(packet)
        self._is_stopped = False
        while held and not (self.is_opening or outbox.is_closed) and backlog.work is None:
            if inbound.reach >= REACH_MAX:
                break
            if stops and isinstance(held[0], Publish):
                self._is_stopped = True
                break
            self._handle(held.popleft())

    def _goes_ahead(self, packet: Packet | MqttError, *, is_stopped: bool) -> bool:
        """Handle a packet that need not wait for a subscription, or a PINGREQ behind publishes that are held;
        False for any other."""
        backlog = self._backlog
        if backlog.work is not None:
            is_ahead = isinstance(packet, Ack | AckRun | Pingreq)
        else:
            is_held = is_stopped and bool(backlog.packets) and not self.is_opening
            is_ahead = is_held and isinstance(packet, Pingreq) and self._subscriber is not None
        if is_ahead and not self.outbox.is_closed:
            backlog.skip()
            self._handle(packet)
            return True
        return False

    def _handle(self, packet: Packet | MqttError) -> None:
        """The usual packets first: one for each message that comes, one for each that is delivered."""
        subscriber = self._subscriber
        if subscriber is None:
            self._on_first(packet)
        elif isinstance(packet, Publish):
            try:
                self._inbound.take(packet, subscriber)
            except PublishRefused as error:
                self.refuse(error.reason, str(error))
        elif isinstance(packet, AckRun):
            self._acks.on_run(packet, subscriber)
        elif isinstance(packet, Ack) and packet.kind != wire.PUBREL:
            self._acks.on_ack(packet, subscriber)
        elif isinstance(packet, MqttError):
            self.refuse(Reason(packet.reason), str(packet))
        else:
            self._inbound.flush()
            self._on_other(packet, subscriber)

    def _on_other(self, packet: Packet, subscriber: Subscriber) -> None:
        """Handle the rarer packets; earlier messages have been handed over."""
        if isinstance(packet, Ack):
            self._inbound.released(packet.packet_id)
            self._acks.on_release(packet, subscriber)
        elif isinstance(packet, Subscribe | Unsubscribe):
            wanted = bridged(packet) if self._is_bridge and isinstance(packet, Subscribe) else packet
            self._subscribing.take(wanted, subscriber)
        elif isinstance(packet, Pingreq):
            self.outbox.put(Pingresp())
        elif isinstance(packet, Disconnect):
            self._on_disconnect(packet, subscriber)
        elif isinstance(packet, Auth):
            self.refuse(Reason.PROTOCOL_ERROR, "AUTH without an authentication method")
        else:
            self.refuse(Reason.PROTOCOL_ERROR, f"{type(packet).__name__} from a client")

    # -- CONNECT

    def _on_first(self, packet: Packet | MqttError) -> None:
        """Handle CONNECT; the decoder guarantees that it comes first and once."""
        if self.has_left:
            return  # what follows a DISCONNECT
        if isinstance(packet, MqttError):
            self._refuse_bytes(packet)
        else:
            assert isinstance(packet, Connect)
            self._on_connect(packet)

    def _on_connect(self, packet: Connect) -> None:
        self.outbox.speak(packet.level)
        reason = connect_fault(packet, self._config)
        if reason:
            self._refuse_connect(reason)
            return
        self._peer.client_id = packet.client_id or f"fasti-{self._clients.take_id():x}"
        self._is_bridge = packet.is_bridge
        self.outbox.learn(packet.properties or Properties())
        self.keep_alive_s = granted_keep_alive_s(packet, self._config)
        self.is_opening = True
        identity = self._peer.identity if self._config.mqtt.tls_identity_as_username else ""
        entered = partial(self._entered, packet)
        self._authenticator.authenticate(packet, self.client_id, self._peer.host, identity, entered)

    def _entered(self, packet: Connect, rights: Rights | None, reason: Reason | None) -> None:
        """Handle the result of the authentication."""
        self.is_opening = False
        if self.outbox.is_closed:
            return
        if reason is None and rights is not None and packet.will is not None:
            reason = None if rights.may_publish(packet.will.topic) else Reason.NOT_AUTHORIZED
        reason = reason or self._unwelcome(rights)
        if reason is not None:
            self._refuse_connect(reason)
            return
        self._rights = rights
        if rights is not None:
            self._clients.connections.add(rights.name)
        self._inbound.learn(packet.level, self.client_id, rights, is_bridge=is_bridge(packet))
        self._publishing.traffic.connects += 1
        self._open_session(packet)

    def _unwelcome(self, rights: Rights | None) -> Reason | None:
        """Reason to refuse the client id, or one more connection of its key; None: accepted."""
        if self._clients.is_taken(self.client_id, rights):
            return Reason.CLIENT_IDENTIFIER_NOT_VALID
        if rights is None:
            return None
        if not rights.may_connect:
            return Reason.CLIENT_IDENTIFIER_NOT_VALID
        why = self._clients.admission(self.client_id, rights)
        if why:
            log.info("connect refused: %s, %s", self._peer.address, why, extra=self._peer.cause)
        return Reason.QUOTA_EXCEEDED if why else None

    def review(self, *, has_revoked: bool = False) -> None:
        """End the connection if its key, or its certificate (`has_revoked`), is no longer valid."""
        if has_revoked:
            log.info(
                "connection closed: %s, its certificate has been revoked", self._peer, extra=self._peer.cause
            )
            self.close(Closing.REVOKED)
        elif self._rights is not None and not self._rights.may_connect:
            why = "may no longer use this client id" if self._rights.is_live else "is no longer valid"
            log.info("connection closed: %s, its key %s", self._peer, why, extra=self._peer.cause)
            self.close(Closing.REVOKED)

    def _open_session(self, packet: Connect) -> None:
        """Claim the session; CONNACK leaves when it is durable."""
        config, clients = self._config, self._clients
        expiry_s = granted_expiry_s(packet, config)
        subscriber, is_present = clients.claim(
            self.outbox,
            self.client_id,
            clean_start=packet.clean_start,
            expiry_s=expiry_s,
            window=granted_window(packet, config),
            rights=self._rights,
            token=shown_token(packet),
        )
        if subscriber is None:
            self._refuse_connect(Reason.QUOTA_EXCEEDED)
            return
        self.is_opening = True
        self._subscriber = subscriber
        will = read_will(packet, self.client_id, owner_of(self._rights))

        def opened(is_durable: bool) -> None:
            self.is_opening = False
            if self.outbox.is_closed:
                return
            if subscriber.link is not self.outbox:
                self.close(Closing.TAKEN_OVER)
            elif not is_durable:
                self._refuse_connect(Reason.SERVER_UNAVAILABLE)
            else:
                self._opened(subscriber, is_present, packet)

        clients.begin(subscriber, will, opened, is_new=not is_present)

    def _opened(self, subscriber: Subscriber, is_present: bool, packet: Connect) -> None:
        self.outbox.open()
        self._acks.is_resumed = is_present
        properties = None
        if self.outbox.level == 5:
            assigned = None if packet.client_id else self.client_id
            expiry_s = subscriber.session.expiry_s
            properties = connack_properties(packet, self._config, expiry_s, assigned)
        self.outbox.put(Connack(is_present, 0, properties))
        self._publishing.traffic.answer(0)
        self._clients.resume(subscriber)

    def _refuse_connect(self, reason: int) -> None:
        log.info(
            "connect refused: %s, reason 0x%02x", self._peer.address, reason, extra=self._peer.why(reason)
        )
        self._publishing.traffic.answer(reason)
        self.outbox.put(Connack(False, reason))
        self.outbox.close()

    def _refuse_bytes(self, error: MqttError) -> None:
        """Refuse bytes that are not a CONNECT."""
        log.info(
            "connect refused: %s, %s", self._peer.address, error, extra=self._peer.why(error.reason, error)
        )
        self._publishing.traffic.answer(error.reason)
        answer = answer_to(error)
        if answer:
            self.outbox.write(answer)
        self.outbox.close()

    # -- what the outbox asks for

    def _pass_over(self, packet_id: int) -> None:
        """Treat a delivery that is too large for the client as acked."""
        if self._subscriber is not None:
            self._settling.pass_over(self._subscriber, packet_id)

    def _displaced(self) -> None:
        """The client has connected again. If its earlier DISCONNECT still waits behind a packet, the
        DISCONNECT and the publishes before it stay valid."""
        held, subscriber = self._backlog.packets, self._subscriber
        if held and isinstance(held[-1], Disconnect) and subscriber is not None:
            for packet in [one for one in held if isinstance(one, Publish)]:
                self._handle(packet)
            self._inbound.flush()
            self._clients.farewell(subscriber, None, keeps_will=held[-1].reason != 0)

    # -- the end

    def _on_disconnect(self, packet: Disconnect, subscriber: Subscriber) -> None:
        expiry_s = packet.properties.session_expiry if packet.properties is not None else None
        if self._clients.farewell(subscriber, expiry_s, keeps_will=packet.reason != 0):
            if packet.reason in (Reason.SUCCESS, Reason.DISCONNECT_WITH_WILL):
                self._ending = Ending.CLEAN
            self._leave()
        else:
            self.refuse(Reason.PROTOCOL_ERROR, "DISCONNECT sets an expiry for a session that had none")

    def refuse(self, reason: Reason, why: str) -> None:
        """End the connection after a fault of the client, with a reason at level 5."""
        self._inbound.refuse(reason, why)

    def close(self, why: Closing) -> None:
        """Send the reason, at level 5, and close."""
        if why in (Closing.STOPPING, Closing.MOVED):
            self._ending = Ending.STOPPING
        self.outbox.close(why)


def answer_to(error: MqttError) -> bytes:
    """The answer to bytes that are not a CONNECT: CONNACK, or empty, as at 3.1.1 [MQTT-3.1.4-1],
    [MQTT-3.1.4-2]."""
    if isinstance(error, UnsupportedLevel):
        return error.connack
    if error.spoken != 5:
        return b""
    is_known = error.reason in CONNACK_REASONS
    return encode(Connack(False, error.reason if is_known else Reason.MALFORMED_PACKET), 5)
