"""The handshake and the frames of websockets, without a socket: cut anywhere, refused where they must be."""

import asyncio

import pytest

from server.mqtt.frames import BINARY, CLOSE, PING, PONG, TEXT, FrameError, Frames, frame
from server.mqtt.handshake import HEAD_MAX, HandshakeRefused, answer_handshake
from server.net.browsers import Pages
from server.settings.kinds import Address
from tests.server.mqtt.test_links import masked

HEADERS = {
    "Host": "broker.example:9001",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "foo, mqtt",
}


def head(first: str = "GET /mqtt HTTP/1.1", **changes: str | None) -> bytes:
    headers: dict[str, str | None] = dict(HEADERS)
    headers |= {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [first, *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    return "\r\n".join(lines).encode("latin-1")


class Plain(asyncio.Transport):
    """A connection to port 9001, without TLS."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("10.0.0.1", 9001) if name == "sockname" else default


def answer(data: bytes, *origins: str) -> bytes:
    where = Address("0.0.0.0", 9001, "ws")
    pages = Pages(where, hosts=("broker.example",), origins=origins, has_api_keys=False)
    return answer_handshake(data, pages, Plain())


def refusal(data: bytes, *origins: str) -> int:
    with pytest.raises(HandshakeRefused) as caught:
        answer(data, *origins)
    return int(caught.value.status)


@pytest.mark.parametrize("target", ["/", "/mqtt", "/mqtt?token=1"])
def test_a_request_is_answered(target: str) -> None:
    """The key and its answer are those of RFC 6455, section 1.3."""
    lines = answer(head(f"GET {target} HTTP/1.1")).split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 101 Switching Protocols"
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in lines
    assert b"Sec-WebSocket-Protocol: mqtt" in lines
    assert lines[-2:] == [b"", b""]


def test_the_subprotocol() -> None:
    assert b"Sec-WebSocket-Protocol: mqttv3.1\r\n" in answer(head(**{"Sec-WebSocket-Protocol": "mqttv3.1"}))
    assert b"Sec-WebSocket-Protocol" not in answer(head(**{"Sec-WebSocket-Protocol": None}))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"\x10\x20\x00\x04MQTT", 400),
        (head("GET /mqtt HTTP/1.0"), 400),
        (head("GET /other HTTP/1.1"), 404),
        (head("POST /mqtt HTTP/1.1"), 405),
        (head(Host=None), 400),
        (head(Host=""), 400),
        (head("GET /mqtt?\0 HTTP/1.1"), 400),
        (head(Sec_WebSocket_Protocol="mqtt\0"), 400),
        (head(X="a\nHost: evil.example"), 400),
        (head(X="a\rb"), 400),
        (head().replace(b"Host:", b"Host :"), 400),
        (head() + b"\r\nHost: broker.example:9001", 400),
        (head(Host="evil.example:9001"), 421),
        (head(Host="evil.example:9001", Origin="http://evil.example:9001"), 421),
        (head(Sec_Fetch_Site="cross-site"), 403),
        (head(Upgrade=None), 426),
        (head(Upgrade="h2c"), 426),
        (head(Connection="close"), 426),
        (head(Sec_WebSocket_Version="8"), 426),
        (head(Sec_WebSocket_Key="short"), 400),
        (head(Sec_WebSocket_Key=None), 400),
        (head() + b"\r\nno header", 400),
        (head() + b"\r\n folded: x", 400),
        (head() + b"\r\nX: " + bytes(HEAD_MAX), 431),
    ],
)
def test_what_is_refused(data: bytes, status: int) -> None:
    assert refusal(data) == status


def test_pages_of_the_same_origin_may_connect() -> None:
    assert answer(head(Origin="http://BROKER.example:9001"))
    assert answer(head(Host="broker.example", Origin="http://broker.example:80"))


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "http://broker.example.evil.example", "null", "", "http://["),
        *(
            "broker.example",
            "http://broker.example",
            "http://broker.example:8443",
            "https://broker.example:9001",
        ),
    ],
)
def test_others_may_not_unless_they_are_named(origin: str) -> None:
    assert refusal(head(Origin=origin)) == 403
    assert refusal(head(Origin=origin), "https://app.example") == 403
    assert answer(head(Origin=origin), "*")
    assert answer(head(Origin="https://App.example"), "https://app.example")
    assert refusal(head(Origin=origin) + b"\r\nOrigin: http://broker.example") == 403


def pieces(data: bytes, step: int) -> list[tuple[int, bytes]]:
    """What comes of bytes that arrive `step` at a time; data that follows data is joined."""
    frames, found = Frames(), []
    for at in range(0, len(data), step):
        frames.feed(data[at : at + step])
        while (piece := frames.next()) is not None:
            if found and piece[0] == found[-1][0] == BINARY:
                found[-1] = (BINARY, found[-1][1] + piece[1])
            else:
                found.append(piece)
    return found


@pytest.mark.long
@pytest.mark.parametrize("step", [1, 2, 3, 7, 100_000])
def test_frames_cut_anywhere(step: int) -> None:
    payload = bytes(range(256)) * 300
    data = b"".join(
        (
            masked(BINARY, b""),
            masked(BINARY, payload[:125]),
            masked(BINARY, payload[125:1_000], first=0),
            masked(PING, b"are you there"),
            masked(0, payload[1_000:1_003], first=0),
            masked(0, payload[1_003:]),
            masked(PONG, b""),
            masked(BINARY, b"more"),
            masked(CLOSE, b"\x03\xe8"),
        )
    )
    assert pieces(data, step) == [
        (BINARY, payload[:1_000]),
        (PING, b"are you there"),
        (BINARY, payload[1_000:]),
        (PONG, b""),
        (BINARY, b"more"),
        (CLOSE, b"\x03\xe8"),
    ]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (masked(TEXT, b"x"), 1003),
        (frame(BINARY, b"x"), 1002),
        (masked(BINARY, b"x", first=0xC0), 1002),
        (masked(3, b"x"), 1002),
        (masked(11, b"x"), 1002),
        (masked(0, b"x"), 1002),
        (masked(BINARY, b"x", first=0) + masked(BINARY, b"y"), 1002),
        (masked(PING, bytes(126)), 1002),
        (masked(CLOSE, b"", first=0), 1002),
    ],
)
def test_frames_that_end_the_connection(data: bytes, code: int) -> None:
    frames = Frames()
    frames.feed(data)
    with pytest.raises(FrameError) as caught:
        list(iter(frames.next, None))
    assert caught.value.code == code


def test_what_a_server_sends() -> None:
    assert frame(BINARY, b"x" * 125)[:2] == b"\x82\x7d"
    assert frame(BINARY, b"x" * 126)[:4] == b"\x82\x7e\x00\x7e"
    assert frame(BINARY, b"x" * 65_536)[:10] == b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00"
