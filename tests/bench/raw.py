"""MQTT 5 as bytes: packets put together by hand, and a peer on a blocking socket that says what it is told.

Nothing of the server's codec is used, so that the other end may be any version of it, and any packet be said.
"""

import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Self

Address = tuple[str, int]
CONNACK, PUBLISH, PUBACK, PUBREC, PUBCOMP, SUBACK, PINGRESP = 2, 3, 4, 5, 7, 9, 13
PINGREQ = b"\xc0\x00"
LEAVE_S = 1.0
WINDOW = 500
"""Publishes on the way; the server allows 1,024."""


def varint(number: int) -> bytes:
    said = bytearray()
    while number > 127:
        said.append(number & 127 | 128)
        number >>= 7
    return bytes((*said, number))


def text(said: str | bytes) -> bytes:
    raw = said.encode() if isinstance(said, str) else said
    return len(raw).to_bytes(2) + raw


def packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + varint(len(body)) + body


def connect(
    name: str,
    key: str = "",
    *,
    lasting: bool = False,
    window: int = 0,
    keep_alive: int = 0,
    properties: bytes = b"",
) -> bytes:
    """A `key` is the password, and the name in it that of the user."""
    properties += b"\x11\x00\x00\x0e\x10" if lasting else b""
    if window:
        properties += b"\x21" + window.to_bytes(2)
    flags = (0 if lasting else 2) | (0xC0 if key else 0)
    shown = text(key.split("_")[1]) + text(key) if key else b""
    head = b"\x00\x04MQTT\x05" + bytes((flags,)) + keep_alive.to_bytes(2)
    return packet(0x10, head + varint(len(properties)) + properties + text(name) + shown)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    number: int = 0,
    retain: bool = False,
    properties: bytes = b"",
) -> bytes:
    which = number.to_bytes(2) if qos else b""
    body = text(topic) + which + varint(len(properties)) + properties + payload
    return packet(0x30 | qos << 1 | retain, body)


def subscribe(filters: Iterable[str], qos: int = 0, number: int = 1) -> bytes:
    return packet(0x82, number.to_bytes(2) + b"\x00" + b"".join(text(f) + bytes((qos,)) for f in filters))


def ack(first: int, number: int) -> bytes:
    return bytes((first, 2)) + number.to_bytes(2)


class Peer:
    """One connection, CONNACK read. Raises OSError, EOFError when the server ends it."""

    def __init__(
        self,
        at: Address,
        name: str,
        key: str = "",
        *,
        lasting: bool = False,
        window: int = 0,
        keep_alive: int = 0,
        patience_s: float = 30.0,
    ) -> None:
        self.socket = socket.create_connection(at, patience_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name = name
        self.is_cut = False
        self._held = bytearray()
        self.send(connect(name, key, lasting=lasting, window=window, keep_alive=keep_alive))
        first, body = self.read()
        if first >> 4 != CONNACK or body[1]:
            raise ConnectionError(f"{name}: {first:#x} {body!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def leave(self) -> None:
        """DISCONNECT, and wait a moment until the server has closed the connection."""
        with suppress(OSError):
            self.socket.settimeout(LEAVE_S)
            self.send(b"\xe0\x00")
            while self.socket.recv(1 << 16):
                pass
        self.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> tuple[int, bytes]:
        """The next packet: first byte and body. Raises TimeoutError."""
        while True:
            found = self._whole()
            if found is not None:
                return found
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError(f"{self.name}: the server closed")
            self._held += data

    def _whole(self) -> tuple[int, bytes] | None:
        held, length, shift, at = self._held, 0, 0, 1
        while at < len(held):
            length |= (held[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if held[at - 1] < 128:
                break
        else:
            return None
        if len(held) < at + length:
            return None
        found = held[0], bytes(held[at : at + length])
        del held[: at + length]
        return found

    def subscribe(self, filters: Sequence[str], qos: int = 0) -> int:
        """Ask and wait, and pass over what is published meanwhile. How many filters were granted."""
        self.send(subscribe(filters, qos))
        while True:
            first, body = self.read()
            if first >> 4 == SUBACK:
                return sum(code < 0x80 for code in body[3 + body[2] :])

    def exchange(self, packets: Iterable[bytes], until: float) -> int:
        """Publishes of QoS 1 or 2 in windows; how many were acked by the monotonic time `until`."""
        waiting = acked = 0
        for one in packets:
            if time.monotonic() > until:
                break
            self.send(one)
            waiting += 1
            while waiting >= WINDOW:
                waiting, acked = waiting - 1, acked + self._acked()
        while waiting:
            waiting, acked = waiting - 1, acked + self._acked()
        return acked

    def sent(self, much: str) -> str:
        """A remark: so much, and whether the server ended it."""
        return f"{much}, then cut off" if self.is_cut else much

    def _acked(self) -> int:
        """Wait for the end of one exchange; 1 if it was taken."""
        while True:
            first, body = self.read()
            is_refused = len(body) > 2 and body[2] >= 0x80
            if first >> 4 == PUBREC and not is_refused:
                self.send(ack(0x62, int.from_bytes(body[:2])))
            elif first >> 4 in (PUBACK, PUBREC, PUBCOMP):
                return not is_refused

    def pour(self, data: bytes, until: float, most: int = 64 << 20) -> int:
        """The same bytes again and again, as fast as they are taken; how many were. Ends when it is cut."""
        sent, view = 0, memoryview(data)
        at = 0
        self.socket.settimeout(0.2)
        while sent < most and time.monotonic() < until:
            try:
                count = self.socket.send(view[at:])
            except TimeoutError:
                continue
            except OSError:
                self.is_cut = True
                break
            sent, at = sent + count, (at + count) % len(data)
        return sent


def take(peer: Peer) -> int:
    """Read one packet; ack it if it is a QoS 1 publish. How many were."""
    first, body = peer.read()
    if first >> 4 != PUBLISH or not first & 2:
        return 0
    at = 2 + int.from_bytes(body[:2])
    peer.send(ack(0x40, int.from_bytes(body[at : at + 2])))
    return 1
