"""One MQTT 5 connection, over aiomqtt. All use of what aiomqtt and paho keep private is in this file.

These are fifteen names, which a test lists. The ranges in sdk/pyproject.toml let in tested releases only.

Why private access is needed at all:

- aiomqtt acknowledges on arrival, before anybody has seen the message. paho can leave the ack to us
  (`manual_ack_set`), aiomqtt does not pass that on.
- `session_present` of the CONNACK is thrown away, and so is the reason of a server's DISCONNECT, and the
  reference to another server in either.
- aiomqtt's queue survives a reconnect and then holds packet ids of the old connection. Here each network
  connection is an object of its own with a queue of its own, and every message knows its connection. The
  queue has no bound of its own (a full one would drop): Receive Maximum bounds what can be in it.
- QoS 2: paho answers PUBREC on arrival and hands on at PUBREL, so that a crash between the two loses the
  message. Here a message is handed on at PUBLISH, PUBREC goes out when the user acks, and PUBREL is always
  answered by PUBCOMP.
- A close right behind the last acks can overtake them (a reset throws away what the peer has not read). So a
  close first waits for the answer to a PINGREQ, which the server reads after the acks.
- aiomqtt asks the loop to watch a file descriptor some time later, when it may be closed or another's. Here
  the socket is asked at that moment.
- paho queues an ack and forgets it. Here an ack is written at once and watched until the socket has all of
  it, so that `ack()` can say whether it went out.
- An ack has no reason code and no properties in paho, so a refusal is put together here. The reason codes and
  strings of what the server answers to SUBSCRIBE and PUBLISH are thrown away by aiomqtt.
- aiomqtt waits 10 s for the answer to CONNECT and to SUBSCRIBE, also when the connection has long been lost.
- Where TLS or a websocket fails paho leaves the socket open, and aiomqtt keeps the text of the error only. A
  websocket that takes a part of a frame makes paho forget the packet.
- Speed: aiomqtt reads one packet per turn of the loop, and paho makes a wake-up and two changes of the
  selector of every ack. Here a turn reads what has come, and an ack is one write.

A connection that ended says so through `receive()`, once what had arrived before is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import aiomqtt
from paho.mqtt.client import Client as Paho
from paho.mqtt.client import ConnectFlags, MQTTMessage
from paho.mqtt.enums import LogLevel, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from .addresses import Broker
from .errors import Error, Unreachable, Untrusted
from .mqtt_values import (
    ELSEWHERE,
    RESULT,
    STAY_AWAY,
    TRY_AGAIN,
    Ended,
    Incoming,
    OutPacket,
    Target,
    UserProperties,
    refused,
    refused_or_sent_on,
)
from .tls import CUT, is_cut, trouble, unaccepted
from .wire import dumps

_SETTLE_S = 2.0
_TOKEN = "fasti-token"
_HTTP = "this port speaks HTTP: leave out mqtt= (--mqtt), or give the port of MQTT"
_TLS = "this port speaks TLS: give mqtts:// or wss://, or another port"
_NO_WEBSOCKET = "no websocket of MQTT is there: give wss:// if the port speaks TLS, or another port or path"
_TLS_ALERT = b"\x15\x03"
_BURST = 256
_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # beside POLLHUP and POLLERR, which are always told
_ACK = {1: 0x40, 2: 0x50}
_PINGREQ = b"\xc0\x00"
_BOM, _REPLACEMENT = "\ufeff".encode(), "\ufffd".encode()
_UNSPECIFIED = 0x80  # the first reason code that is a no
_NOT_OURS = 0x83  # answer to an extension: the message is no longer ours
_EXTEND, _DONE, _HOLDING = "$control/extend", "$control/done", "$control/holding"


class Connection:
    """One network connection. `number` counts the connections of a subscription, from 1."""

    def __init__(self, target: Target, number: int, on_release: Callable[[int], None]) -> None:
        self.number = number
        self.session_present = False
        self._arrived: deque[Incoming] = deque()
        self._news = asyncio.Event()
        self._pong = asyncio.Event()
        self._settled = True
        self._is_entered = False
        self._ended: Ended | None = None
        self._on_release = on_release
        self._reference: str | None = None  # to another server
        self._why = ""  # the reason string of the last SUBACK
        self._answers: dict[
            int, asyncio.Future[tuple[ReasonCode, str]]
        ] = {}  # to our PUBLISHes, by packet id
        broker = target.broker
        self._mqtt = aiomqtt.Client(
            broker.host,
            broker.port,
            transport="websockets" if broker.is_websocket else "tcp",
            websocket_path=broker.path if broker.is_websocket else None,
            websocket_headers=_without_origin,
            identifier=target.client_id,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=target.clean,
            keepalive=target.keep_alive_s,
            timeout=target.timeout_s,
            username=None if target.password is None else "key",
            password=target.password,
            properties=_connect_properties(target),
        )
        self._broker = broker
        self._tls = target.tls
        self._socket: socket.socket | None = None  # the last that was opened
        self._is_given_up = False  # before it was connected
        self._greeting = b""  # the first bytes of the answer to CONNECT
        self._paho: Paho = self._mqtt._client
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._withheld: list[int] = []
        self._is_closing = False
        self._poll: select.poll | None = None
        self._came = 0  # packets of the kinds that come in numbers
        self._wrote = asyncio.Event()
        self._hook_callbacks()
        self._hook_packets()
        self._hook_socket()

    @property
    def is_open(self) -> bool:
        """Whether an ack can still be sent. The socket notices an end before paho does, and the loop last."""
        is_there = self._ended is None and not self._is_closing and self._paho.socket() is not None
        return is_there and not self._is_hung_up()

    async def open(self) -> None:
        """Connect. Raises Unreachable (worth another try) or Refused (not)."""
        failures: list[str] = []  # paho tells its log alone why a connection was lost
        self._paho.on_log = lambda _client, _userdata, level, text: (
            failures.append(text) if level == LogLevel.MQTT_LOG_ERR else None
        )
        try:
            if self._broker.has_tls:
                self._paho.tls_set_context(await asyncio.to_thread(self._tls.context))
            await self._mqtt.__aenter__()
        except aiomqtt.MqttError as error:
            await asyncio.sleep(0)  # aiomqtt has asked the loop to watch the socket; let that pass first
            failed = self._failed(error, f"{error} {' '.join(failures)}")
            self._drop_socket()
            if self._socket is not None:  # a websocket that failed: paho leaves it open
                self._socket.close()
            raise failed from error
        except BaseException:
            self._is_given_up = True
            self._drop_socket()
            raise
        self._paho.on_log = None
        self._is_entered = True
        connected = self._paho.socket()
        if connected is None:  # since CONNACK, of which aiomqtt says nothing
            raise Unreachable(f"{self._broker}: the connection was lost at once")
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(cast("socket.socket", connected), _HUNG_UP)
        self._mqtt._disconnected.add_done_callback(self._on_end)

    def _failed(self, error: aiomqtt.MqttError, logged: str) -> Error:
        """Why there is no connection. `logged`: its text and what paho has logged."""
        if why := trouble(logged, self._tls):
            return Untrusted(f"{self._broker}: {why}")
        if self._greeting.startswith(_TLS_ALERT) or b"speaks TLS" in self._greeting:
            return Untrusted(f"{self._broker}: {_TLS}")
        # With TLS a handshake also fails for want of a client certificate, which is told below.
        if "not upgraded" in logged or ("WebSocket handshake error" in logged and not self._broker.has_tls):
            return Unreachable(f"{self._broker}: {_NO_WEBSOCKET}")
        if self._greeting.startswith(b"HTTP/"):
            return Unreachable(f"{self._broker}: {_HTTP}")
        failed = _refused_connect(error, self._broker, self._reference)
        is_lost = isinstance(failed, Unreachable) and self._paho.socket() is None
        if is_lost and isinstance(self._socket, ssl.SSLSocket):
            # At TLS 1.3 our certificate is refused behind the handshake, by asyncio's servers without a word.
            return Unreachable(f"{failed}; {unaccepted(self._tls)}")
        return failed

    async def subscribe(self, topic_filter: str, qos: int, users: UserProperties, number: int = 0) -> None:
        """SUBSCRIBE and wait. Raises Refused naming the reason code, or Ended.

        `number` > 0: the subscription identifier, which comes with each message.
        """
        properties = _with_users(PacketTypes.SUBSCRIBE, users)
        if number:
            properties.SubscriptionIdentifier = number
        # Retained messages come with a new subscription only, not again at each reconnect.
        kept = 0 if topic_filter.startswith("$share/") else 1
        options = SubscribeOptions(qos=qos, retainHandling=kept)
        try:
            codes = await self._mqtt.subscribe(topic_filter, options=options, properties=properties)
        except aiomqtt.MqttError as error:
            if self._ended is not None:
                raise self._ended from error
            raise Ended(f"no answer to SUBSCRIBE: {error}") from error
        code = codes[0]
        if isinstance(code, ReasonCode) and code.value >= 0x80:
            raise refused(f"SUBSCRIBE {topic_filter}", code, self._why)

    async def receive(self) -> Incoming:
        """The next message. Raises Ended once all that had arrived is taken."""
        while not self._arrived:
            if self._ended is not None:
                raise self._ended
            self._news.clear()
            await self._news.wait()
        return self._arrived.popleft()

    def send_ack(self, incoming: Incoming, refusal: UserProperties | None = None) -> None:
        """Write PUBACK or PUBREC, as far as the socket takes it; only once, and nothing on a closed
        connection."""
        if incoming.ack is None and self.is_open:
            incoming.ack = _out_packet(_ack_packet(incoming, refusal))
            self._paho._out_packet.append(incoming.ack)
            self._settled = False
            self._write()

    async def ack(self, incoming: Incoming, refusal: UserProperties | None = None) -> bool:
        """PUBACK or PUBREC. True: the socket has taken it. False: the connection ended before."""
        self.send_ack(incoming, refusal)
        while incoming.ack is not None and incoming.ack["to_process"]:
            if self._paho.socket() is None:
                return False
            self._wrote.clear()
            await self._wrote.wait()
        return incoming.ack is not None

    async def extend(self, incoming: Incoming, span: str, **said: Any) -> bool:
        """Ask for more time. False: it is no longer ours.

        Raises Refused if the server does not grant the time, Ended.
        """
        code, why = await self._published(_EXTEND, dumps({"packet_id": incoming.mid, "for": span, **said}))
        if code.value >= _UNSPECIFIED and code.value != _NOT_OURS:
            raise refused("extend", code, why)
        return code.value < _UNSPECIFIED

    async def done(self, group: str, message: str) -> bool:
        """Ack a group's message from an earlier connection. False: nothing is left of it. Raises Ended."""
        code, _ = await self._published(_DONE, dumps({"group": group, "id": message}))
        return code.value < _UNSPECIFIED

    async def holding(self, group: str, messages: Sequence[str]) -> bool:
        """Say that we have these messages of the group still, from an earlier connection. False: some of them
        are not held for us any more. Raises Ended."""
        code, _ = await self._published(_HOLDING, dumps({"group": group, "ids": messages}))
        return code.value < _UNSPECIFIED

    async def _published(self, topic: str, payload: bytes) -> tuple[ReasonCode, str]:
        """PUBLISH at QoS 1; the answer's reason code and string. Raises Ended."""
        if not self.is_open:
            raise Ended("closed")
        mid = self._paho.publish(topic, payload, qos=1).mid
        self._answers[mid] = asyncio.get_running_loop().create_future()
        try:
            return await self._answers[mid]
        finally:
            del self._answers[mid]

    async def close(self) -> None:
        """See the acks through, DISCONNECT, close the socket. From here on no further ack goes out."""
        self._is_closing = True
        await self._settle()
        if self._is_entered:
            with contextlib.suppress(aiomqtt.MqttError, OSError):
                await self._mqtt.__aexit__(None, None, None)
        self._drop_socket()

    def _is_hung_up(self) -> bool:
        """Whether the peer has closed, which the loop may not have seen yet, say behind a slow user's code.

        The socket would take an ack even so, and throw it away.
        """
        return self._poll is not None and bool(self._poll.poll(0))

    def _watch(self, _client: Paho, _userdata: Any, sock: Any) -> None:
        """paho wants to write: from the loop, or from the thread that connects."""
        if threading.get_ident() == self._thread:
            self._watch_here(sock)
        else:
            self._loop.call_soon_threadsafe(self._watch_here, sock)

    def _watch_here(self, sock: Any) -> None:
        if sock.fileno() >= 0:
            self._loop.add_writer(sock.fileno(), self._write)

    def _write(self) -> None:
        try:
            self._paho.loop_write()
        except Exception as error:
            if not self._mqtt._disconnected.done():
                self._mqtt._disconnected.set_exception(error)
        self._wrote.set()

    async def _settle(self) -> None:
        """Wait until the server has read every ack, but not for long."""
        if self._settled or self._ended is not None:
            return
        self._pong.clear()
        self._paho._out_packet.append(_out_packet(_PINGREQ))
        self._write()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._pong.wait()
        self._settled = True

    def abandon(self) -> None:
        """`close()` for callers that cannot wait: scheduled on the loop, if it still runs."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self.close()))

    def _hook_callbacks(self) -> None:
        """Know of what paho tells, before aiomqtt does."""
        paho = self._paho
        connected: Any = paho.on_connect  # aiomqtt's own
        subscribed: Any = paho.on_subscribe
        disconnected: Any = paho.on_disconnect

        def on_connect(client: Paho, userdata: Any, flags: ConnectFlags, code: ReasonCode, more: Any) -> None:
            self.session_present = bool(flags.session_present)
            self._reference = getattr(more, "ServerReference", None)
            connected(client, userdata, flags, code, more)

        def on_subscribe(
            client: Paho, userdata: Any, mid: int, codes: list[ReasonCode], more: Properties | None
        ) -> None:
            self._why = getattr(more, "ReasonString", "")
            subscribed(client, userdata, mid, codes, more)

        def on_disconnect(
            client: Paho, userdata: Any, flags: Any, code: ReasonCode, more: Properties | None
        ) -> None:
            self._reference = getattr(more, "ServerReference", self._reference)
            disconnected(client, userdata, flags, code, more)
            self._let_go()

        def on_publish(
            _client: Paho, _userdata: Any, mid: int, code: ReasonCode, more: Properties | None
        ) -> None:
            self._came += 1
            answer = self._answers.get(mid)
            if answer is not None and not answer.done():
                answer.set_result((code, getattr(more, "ReasonString", "")))

        paho.on_connect = on_connect
        paho.on_disconnect = on_disconnect
        paho.on_message = self._on_message
        paho.on_subscribe = on_subscribe
        paho.on_publish = on_publish
        paho.on_socket_register_write = self._watch

    def _hook_packets(self) -> None:
        """Ack by hand, and read for as long as something comes."""
        paho = self._paho
        read, handle_publish, handle_pubrel = paho.loop_read, paho._handle_publish, paho._handle_pubrel
        handle_pingresp = paho._handle_pingresp

        def withhold(mid: int) -> MQTTErrorCode:
            self._withheld.append(mid)
            return MQTTErrorCode.MQTT_ERR_SUCCESS

        def on_publish_packet() -> MQTTErrorCode:
            self._came += 1
            flags, packet = paho._in_packet["command"], paho._in_packet["packet"]
            paho._in_packet["packet"] = _readable(packet, has_mid=bool(flags & 0x06))
            code = handle_publish()
            while self._withheld:
                self._on_message(paho, None, paho._in_messages.pop(self._withheld.pop()))
            return code

        def on_pubrel_packet() -> MQTTErrorCode:
            self._came += 1
            mid = int.from_bytes(bytes(paho._in_packet["packet"][:2]), "big")
            code = handle_pubrel()
            self._on_release(mid)
            return code or paho.ack(mid, 2)  # which sends PUBCOMP

        def on_pingresp_packet() -> MQTTErrorCode:
            self._pong.set()
            return handle_pingresp()

        def loop_read(_max_packets: int = 1) -> MQTTErrorCode:
            """paho's, for as long as each call brings something: it does not say so itself."""
            self._greeting = self._greeting or (b"" if self._is_entered else self._peeked())
            for _ in range(_BURST):
                came, code = self._came, read()
                if code != MQTTErrorCode.MQTT_ERR_SUCCESS or self._came == came:
                    break
            return code

        paho.manual_ack_set(True)
        paho.loop_read = loop_read  # type: ignore[assignment, method-assign]
        paho._send_pubrec = withhold  # type: ignore[method-assign]
        paho._handle_publish = on_publish_packet  # type: ignore[method-assign]
        paho._handle_pubrel = on_pubrel_packet  # type: ignore[method-assign]
        paho._handle_pingresp = on_pingresp_packet  # type: ignore[method-assign]

    def _peeked(self) -> bytes:
        """The first bytes of an answer that can be read now. Empty over TLS."""
        with contextlib.suppress(OSError, ValueError):  # of TLS
            return b"" if self._socket is None else self._socket.recv(512, socket.MSG_PEEK)
        return b""

    def _hook_socket(self) -> None:
        paho = self._paho
        connect, send = paho._create_socket_connection, paho._sock_send

        def wanted(made: socket.socket) -> None:
            """Note it. The loop may have given up while this thread connected."""
            if self._is_given_up:
                made.close()
                raise ConnectionAbortedError
            self._socket = made

        def opened() -> socket.socket:
            made = connect()
            wanted(made)
            # Else an ack after another waits until the peer's TCP has confirmed the first: 40 ms and more.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made

        def with_tls(tcp_sock: socket.socket) -> ssl.SSLSocket:
            """With the handshake. Raises Untrusted."""
            try:
                tls_sock = self._tls.context().wrap_socket(tcp_sock, server_hostname=self._broker.host)
            except OSError as error:
                if why := trouble(error, self._tls):
                    raise Untrusted(f"{self._broker}: {why}") from error
                raise ConnectionAbortedError(CUT if is_cut(error) else str(error)) from error
            wanted(tls_sock)
            return tls_sock

        def send_frame(buf: bytes | bytearray) -> int:
            """A packet as a websocket's frame: all of it, or again later with the same packet."""
            sent = send(buf)
            if not sent:
                raise BlockingIOError
            return sent

        paho._create_socket_connection = opened  # type: ignore[method-assign]
        paho._ssl_wrap_socket = with_tls  # type: ignore[method-assign]
        if self._broker.is_websocket:
            paho._sock_send = send_frame  # type: ignore[method-assign]

    def _let_go(self) -> None:
        """End everything that waits for an answer of a lost connection."""
        mqtt = self._mqtt
        waited_for: list[asyncio.Future[Any]] = [mqtt._connected, *mqtt._pending_subscribes.values()]
        for future in waited_for:
            if not future.done():
                future.set_exception(aiomqtt.MqttError("the connection was lost"))
        for future in (*waited_for, mqtt._disconnected):
            if future.done() and not future.cancelled():
                future.exception()  # retrieve it, even if nothing waits for it

    def _on_message(self, _client: Paho, _userdata: Any, message: MQTTMessage) -> None:
        properties = message.properties
        self._arrived.append(
            Incoming(
                topic=message.topic,
                payload=bytes(message.payload),
                qos=message.qos,
                mid=message.mid,
                dup=message.dup,
                retain=message.retain,
                properties=tuple(getattr(properties, "UserProperty", ())),
                content_type=getattr(properties, "ContentType", None),
                connection=self,
                arrived_s=self._loop.time(),
                numbers=tuple(getattr(properties, "SubscriptionIdentifier", ())),
            )
        )
        self._news.set()

    def _on_end(self, disconnected: asyncio.Future[None]) -> None:
        error = None if disconnected.cancelled() else disconnected.exception()
        code = error.rc if isinstance(error, aiomqtt.MqttCodeError) else None
        final = isinstance(code, ReasonCode) and code.value in STAY_AWAY | ELSEWHERE
        why = refused_or_sent_on("DISCONNECT", code, self._reference) if final else None
        self._ended = Ended(str(error or "closed"), why)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._ended)
        self._news.set()
        self._pong.set()
        self._wrote.set()

    def _drop_socket(self) -> None:
        """Close the socket in cases in which paho leaves it open."""
        if self._paho.socket() is not None:
            self._paho._sock_close()
        self._wrote.set()


def _without_origin(headers: dict[str, str]) -> dict[str, str]:
    """Of a websocket's request: only pages have an origin. One from a proxy's name would be another's."""
    return {name: value for name, value in headers.items() if name != "Origin"}


def _ack_packet(incoming: Incoming, refusal: UserProperties | None) -> bytes:
    """PUBACK or PUBREC; with a refusal a reason code that is a no, and its user properties."""
    kind, mid = _ACK[incoming.qos], incoming.mid.to_bytes(2, "big")
    if refusal is None:
        return bytes((kind, len(mid))) + mid
    properties = _with_users(PacketTypes.PUBACK, refusal)
    reason = 0 if refusal[0][0] == RESULT else _UNSPECIFIED
    body: bytes = mid + bytes((reason,)) + properties.pack()  # type: ignore[no-untyped-call]
    length: bytes = VariableByteIntegers.encode(len(body))  # type: ignore[no-untyped-call]
    return bytes((kind,)) + length + body


def _readable(packet: bytearray, *, has_mid: bool) -> bytearray:
    """A PUBLISH with another character for U+FEFF in its properties: MQTT allows it there, but paho takes it
    for a fault, and the same message would come again on each connection."""
    if _BOM not in packet:
        return packet
    start = 2 + int.from_bytes(packet[:2], "big") + (2 if has_mid else 0)
    size, width = VariableByteIntegers.decode(packet[start:])  # type: ignore[no-untyped-call]
    end = start + width + size
    return packet[:start] + packet[start:end].replace(_BOM, _REPLACEMENT) + packet[end:]


def _with_users(kind: int, users: UserProperties) -> Properties:
    properties = Properties(kind)  # type: ignore[no-untyped-call]
    for pair in users:
        properties.UserProperty = pair
    return properties


def _out_packet(packet: bytes) -> OutPacket:
    """One of paho's outgoing packets; `to_process` counts down to 0 as the socket takes it."""
    return {
        "command": packet[0],
        "mid": 0,
        "qos": 1,
        "pos": 0,
        "to_process": len(packet),
        "packet": packet,
        "info": None,
    }


def _connect_properties(target: Target) -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = target.expiry_s
    properties.ReceiveMaximum = target.receive_maximum
    if target.token:
        properties.UserProperty = (_TOKEN, target.token)
    return properties


def _refused_connect(error: aiomqtt.MqttError, broker: Broker, reference: str | None = None) -> Error:
    """Refused where CONNACK is final, SentOn, Unreachable where another try may help."""
    code = error.rc if isinstance(error, aiomqtt.MqttCodeError) else None
    if not isinstance(code, ReasonCode):
        return Unreachable(f"{broker}: {error}")
    if code.value in TRY_AGAIN:
        return Unreachable(f"{broker}: CONNECT: {code} (0x{code.value:02X})")
    return refused_or_sent_on("CONNECT", code, reference)
