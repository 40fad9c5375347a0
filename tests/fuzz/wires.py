"""What comes over sockets, beside what targets.py has: conversations, heads, chunks, handshakes, frames."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader

from server.codec import wire
from server.codec.packets import (
    Ack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    Publish,
    Subscribe,
    SubscribeOptions,
    Unsubscribe,
    Will,
)
from server.http.framing import Body, FramingError
from server.http.heads import HEAD_MAX, read_head
from server.http.problems import Problem
from server.mqtt.frames import BINARY, FrameError, Frames
from server.mqtt.handshake import PATHS, HandshakeRefused, answer_handshake
from server.net.browsers import Pages
from server.settings.kinds import Address
from tests.support.rig import Peer, Rig, props

from .fuzzer import Target
from .targets import OTHER, SMALL, Sender, client_packets, goes_on, no_errors_logged

# -- conversations: packets of several clients, faults and time between them

OPS_MAX = 80
LEVELS = (5, 4, 3)
NAMES = ("a", "b", "")
FILTERS = ("a/#", "a/b", "#", "+/b", "$share/g/a/#", "$share/g/other/#", "$dead/#", "a/+/c", "$SYS/#", "b")
TOPICS = (b"a/b", b"a", b"a/b/c", b"b", b"$delayed/1/a/b", b"$delayed/0/a", b"other/y", b"")
ACKS = (wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP)
RAW = {level: client_packets(level) for level in LEVELS}


def conversation(data: bytes) -> None:
    """Two bytes a step: who does what, and how. However they go on, a bystander notices nothing of it."""
    with no_errors_logged():
        rig = Rig(WINDOW_OF_3)
        other = rig.connected(OTHER, expiry=3_600)
        other.subscribe("other/#", qos=1)
        walk = Walk(rig)
        for at in range(0, min(len(data), 2 * OPS_MAX) - 1, 2):
            walk.step(data[at], data[at + 1])
            if other.is_closed:
                other = rig.lasting(OTHER)
            other.take_all()
        goes_on(rig, other)


WINDOW_OF_3 = replace(
    SMALL,
    mqtt=replace(SMALL.mqtt, receive_maximum=4, topic_alias_maximum=2),
    sessions=replace(SMALL.sessions, max_in_flight=3, max_attempts=4),
    limits=replace(SMALL.limits, sessions=4, retained=2, out_bytes=1 << 12),
)


class Walk:
    """Up to three clients of one server; what they send may be wrong in every way that a packet can be."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._peers: list[Peer | None] = [None, None, None]

    def step(self, first: int, how: int) -> None:
        who, what = first % 3, first // 3 % 16
        if what == 0:
            self._connect(who, how)
        elif what == 1:
            self._rig.pass_ms((1, 900, 1_000, 2_500, 61_000)[how % 5])
        elif what == 2:
            self._rig.crash(how % 4)
            self._rig.pump()
        elif what == 3 and how & 1:
            self._rig.restart()
        elif (peer := self._peers[who]) is not None and not (peer.is_closed or peer.is_gone):
            self._say(peer, what, how)

    def _connect(self, who: int, how: int) -> None:
        level = LEVELS[how % 3]
        peer = self._peers[who] = Sender(self._rig, level)
        is_new = level == 5
        will = Will(b"a/b", b"gone", how >> 6, bool(how & 16), props(will_delay=1) if is_new else None)
        peer.send(
            Connect(
                level,
                NAMES[who] or ("a" if how & 8 else ""),
                clean_start=bool(how & 4) or (level < 5 and not NAMES[who]),
                keep_alive=0 if how & 32 else 2,
                will=will if how & 16 else None,
                properties=props(session_expiry=60, receive_maximum=2) if is_new and how & 8 else None,
            )
        )

    def _say(self, peer: Peer, what: int, how: int) -> None:
        number, rest = how & 7, how >> 3
        options = SubscribeOptions(how % 3, bool(how & 32), bool(how & 64), how % 3)
        if peer.level < 5:
            options = SubscribeOptions(how % 3)
        match what:
            case 4 | 5:
                asked = props(subscription_ids=(1 + number,)) if peer.level == 5 and how & 128 else None
                peer.send(Subscribe(1 + number, ((FILTERS[how % len(FILTERS)], options),), asked))
            case 6:
                peer.send(Unsubscribe(1 + number, (FILTERS[rest % len(FILTERS)],)))
            case 7 | 8 | 9:
                self._publish(peer, what - 7, how)
            case 10:
                reason = 0x80 if how & 64 and peer.level == 5 else 0
                peer.send(Ack(ACKS[rest % 4], number, reason))
            case 11:
                self._acknowledge(peer, keep=number)
            case 12:
                peer.send(Disconnect(0x04 if how & 1 and peer.level == 5 else 0))
            case 13:
                peer.drop()
            case 14:
                peer.is_reading = not peer.is_reading
            case _:
                raw = RAW[peer.level]
                peer.send_bytes(raw[how % len(raw)])

    def _publish(self, peer: Peer, qos: int, how: int) -> None:
        """Packet ids are few, so that they come again while the first is not done."""
        number, topic = 1 + (how & 3) if qos else 0, TOPICS[how >> 2 & 7]
        properties: Properties | None = None
        if peer.level == 5:
            if how & 64:
                properties = props(topic_alias=1 + (how & 1))
            elif how & 32:
                properties = props(message_expiry=1)
        peer.send(Publish(topic, b"x", qos, bool(how & 128), bool(qos and how & 32), number, properties))

    def _acknowledge(self, peer: Peer, keep: int) -> None:
        """All but the last `keep` of what has come, as they should be."""
        waiting: list[Packet] = peer.inbox[: max(0, len(peer.inbox) - keep)]
        del peer.inbox[: len(waiting)]
        for packet in waiting:
            if isinstance(packet, Publish) and packet.qos:
                peer.ack(wire.PUBACK if packet.qos == 1 else wire.PUBREC, packet.packet_id)
            elif isinstance(packet, Ack) and packet.kind in (wire.PUBREC, wire.PUBREL):
                peer.ack(packet.kind + 1, packet.packet_id)
        peer.send(Pingreq())


def _walks() -> Iterator[bytes]:
    """Each step by itself behind the steps that make it count, and a long one."""
    opening = bytes((0, 8, 4 * 3, 0, 1, 8 + 16, 4 * 3 + 1, 2))
    for what in range(16):
        yield opening + bytes((7 * 3, 0, 8 * 3, 1, 9 * 3, 2, what * 3, 9, what * 3 + 1, 0, 11 * 3, 0))
    yield opening + bytes(b for what in range(4, 16) for b in (what * 3, 16 + what, what * 3 + 1, 128 + what))
    yield opening + bytes((7 * 3, 0x80, 2 * 3, 1, 0, 8, 11 * 3, 0, 1 * 3, 3, 0, 8, 11 * 3, 1, 3 * 3, 1, 0, 8))


# -- HTTP


def heads(data: bytes) -> None:
    """What is read of a head aiohttp reads too, or refuses: its host, its method, where its body ends."""
    stop = data.find(b"\r\n\r\n", 0, HEAD_MAX)
    if stop < 0:
        return
    try:
        head = read_head(data[: stop + 4])
    except Problem:
        return
    found = _aiohttp(data[: stop + 4])
    if found is None:
        return
    message, _ = found
    assert (message.method, message.headers.get("Host", "")) == (head.method, head.host)
    assert message.chunked == (head.length is None)
    assert head.length is None or int(message.headers.get("Content-Length", "0")) == head.length
    origin = [] if head.origin is None else [head.origin.encode("latin-1").decode("utf-8", "surrogateescape")]
    assert message.headers.getall("Origin", []) == origin
    assert len(message.headers.getall("Authorization", [])) <= 1


def _aiohttp(data: bytes) -> tuple[RawRequestMessage, StreamReader] | None:
    """What its parser makes of it; None if it refuses."""
    parser = HttpRequestParser(Mock(), Mock(), 1 << 16, max_line_size=8_190, max_field_size=8_190)
    try:
        messages, _, left = parser.feed_data(data)
    except HttpProcessingError:
        return None
    assert len(messages) == 1, messages
    assert not left, left
    message, payload = messages[0]
    return message, payload


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunks(data: bytes) -> None:
    """Where a body in chunks ends for the front, it ends for aiohttp: nothing can stand behind it unseen."""
    piece = 1 + (data[0] if data else 0)
    whole, end = Body(None), 0
    parts = Body(None)
    body = data[1:]
    try:
        end = whole.feed(body)
    except FramingError:
        return
    fed = sum(parts.feed(body[at : at + piece]) for at in range(0, len(body), piece))
    assert (fed, parts.is_done) == (end, whole.is_done)
    if not whole.is_done:
        return
    found = _aiohttp(CHUNKED + body[:end])
    if found is not None:
        assert found[1].is_eof() or found[1].exception() is not None, "aiohttp waits for more"


# -- websockets

HANDSHAKE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost:9001\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: foo, mqtt"
)


class Loopback(asyncio.Transport):
    """A connection to port 9001, without TLS."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 9001) if name == "sockname" else default


PAGES = Pages(
    Address("127.0.0.1", 9001, "ws"), hosts=(), origins=("http://page.example",), has_api_keys=False
)
FRIENDS = ("http://page.example", "http://localhost:9001", "http://127.0.0.1:9001", "http://[::1]:9001")


def handshake(data: bytes) -> None:
    """Whom it lets in has named this server, once, and is no foreign page; all others get a status."""
    try:
        answer = answer_handshake(data, PAGES, Loopback())
    except HandshakeRefused:
        return
    first, *lines = answer[:-4].split(b"\r\n")
    assert first == b"HTTP/1.1 101 Switching Protocols"
    assert all(line.partition(b": ")[1] for line in lines)
    asked = data.decode("latin-1").split("\r\n")
    assert asked[0].split(" ")[1].partition("?")[0] in PATHS
    named: dict[str, list[str]] = {}
    for line in asked[1:]:
        name, _, value = line.partition(":")
        named.setdefault(name.lower(), []).append(value.strip(" \t").lower())
        assert not set(line) & set("\r\n\0"), "a line in a line"
    host = named["host"][0]
    assert host.removesuffix(":9001").removesuffix(":") in ("localhost", "127.0.0.1", "[::1]")
    assert len(named["host"]) == 1
    assert all(origin in FRIENDS for origin in named.get("origin", []))


def frames(data: bytes) -> None:
    """In pieces the same comes out as at once, and nothing is kept but the head of a frame."""
    piece = 1 + (data[0] if data else 0)
    whole, found = _framed([data[1:]]), _framed([data[at : at + piece] for at in range(1, len(data), piece)])
    assert found == whole


def _framed(pieces: list[bytes]) -> tuple[bytes, list[tuple[int, bytes]], int]:
    """All payload, the control frames, and with which code it ended."""
    reader, payload, control = Frames(), b"", []
    for piece in pieces:
        reader.feed(piece)
        try:
            while (found := reader.next()) is not None:
                if found[0] == BINARY:
                    payload += found[1]
                else:
                    control.append(found)
        except FrameError as error:
            return payload, control, error.code
        assert reader.kept_bytes <= 131
    return payload, control, 0


def _masked(kind: int, payload: bytes, *, key: bytes = b"\1\2\3\4", is_last: bool = True) -> bytes:
    size = len(payload)
    head = bytes((kind | is_last << 7,))
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2)
    return head + length + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


HEADS = tuple(
    b"\r\n".join((*lines, b"", b""))
    for lines in (
        (b"GET /v1/messages?limit=1 HTTP/1.1", b"Host: localhost:8080", b"Authorization: Bearer fasti_a_b"),
        (b"POST http://a/x HTTP/1.1", b"host:\ta ", b"Content-Length: 12", b"Content-Encoding: gzip"),
        (b"PUT /x HTTP/1.1", b"Host: [::1]:1", b"Transfer-Encoding: Chunked", b"Expect: 100-continue"),
        (b"OPTIONS * HTTP/1.0", b"Origin: http://a", b"Sec-Fetch-Site: none", b"Content-Length: 0"),
    )
)
HEAD_WORDS = (
    *(b"\r\n", b"\n", b"\r", b":", b" ", b"\t", b"\0", b"\x0b", b"\x85", b"\r\n ", b"%2e%2e", b"HTTP/1.0"),
    *(b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n"),
    *(b"Connection: close\r\n", b"Upgrade: websocket\r\n", b"Host: b\r\n", b"+1", b"0x1", b"\xc2\xb2", b", "),
    *(
        b"Origin: http://evil\r\n",
        b"Authorization: Bearer x\r\n",
        b"Content-Length : 3\r\n",
        b"gzip, chunked",
    ),
)
FRAME_SEEDS = (
    b"\xff" + _masked(2, b"\x10\x02") + _masked(9, b"ping") + _masked(8, b"\x03\xe8"),
    b"\x02" + _masked(2, b"a" * 200, is_last=False) + _masked(10, b"") + _masked(0, b"b" * 3),
    b"\x00\x82\xff\0\0\0\0\0\0\0\3\1\2\3\4abc" + _masked(1, b"text"),
)

TARGETS = (
    Target("conversation", conversation, tuple(_walks()), steps=800_000, steps_per_byte=20_000),
    Target("heads", heads, HEADS, HEAD_WORDS, steps=4_000),
    Target(
        "chunks",
        chunks,
        (b"\xff5\r\nhello\r\n0\r\n\r\n", b"\0A;x=y\r\n0123456789\r\n000\r\nT: u\r\n\r\nGET", b"\20\r\n\r\n"),
        (b"\r\n", b"\n", b"0\r\n\r\n", b"ffffffff\r\n", b";", b" ", b"0x", b"0000", b"\r", b"X: y\r\n", b"_"),
        steps=4_000,
    ),
    Target("handshake", handshake, (HANDSHAKE,), HEAD_WORDS),
    Target("frames", frames, FRAME_SEEDS, steps_per_byte=200),
)
