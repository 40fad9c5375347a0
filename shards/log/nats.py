"""A connection to one server of NATS that blocks: requests out, their replies in.

An append is one message out and one back. nats-py takes 0.6 ms of processor time for that, in the leader's
interpreter: an event loop, tasks and futures, for one socket on which one thread waits. Here it is one `send`
and one `recv`.

    HPUB fasti.log _INBOX.4f1d.7 98 398\\r\\n…        a request; its number is the end of the reply's subject
    MSG _INBOX.4f1d.7 1 31\\r\\n{"seq":12}\\r\\n       its reply
    HMSG fasti.log 2 $JS.ACK.… 98 398\\r\\n…           pushed, of the second subscription (`listen`)

Several requests may be under way in one call; their replies come in any order. `send` and `answer` are the
two halves of a request: more can be sent before the first is answered, and the wait for its answer ends early
when another thread has written to the socket `wake`. `-ERR`, a closed connection and a timeout end the
connection: whoever holds it makes another. A server that shuts down says so (`ldm`), and closes it later:
that is the same. Replies that nobody waits for are dropped, and none may be larger than the server's bound.
TLS as the server or the URL asks, with the certificates that Python's default context trusts; a user with a
password, or a token, from the URL.
Source: docs.nats.io, client protocol.
"""

import os
import secrets
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

NO_RESPONDERS = b"503"
LINE_BYTES = 1 << 20
"""Maximum bytes of a line of the protocol; the first one may name many servers."""
READ_BYTES = 1 << 18
WAKE_BYTES = 1 << 10
REST_S = 5.0
"""Maximum time for the rest of a pushed message whose beginning has come."""
PUSHED_BYTES = 32 << 20
"""Maximum of what was pushed and is not taken, ..."""
PUSHED_LEAST = 1 << 10
"""... each message with so much beside its own size."""
LISTENER = b"2"
"""The second subscription; the first is that of replies."""
PAYLOAD_MAX = 64 << 20
"""Maximum of a server's `max_payload`."""
BLOCKED = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError
"""What a socket raises that would have to wait."""


class Info(msgspec.Struct):
    """What a server says of itself."""

    version: str = "0.0.0"
    max_payload: int = 0
    tls_required: bool = False


class Request(NamedTuple):
    """`headers`: with their first line, or none."""

    subject: bytes
    data: bytes
    headers: bytes = b""


class Reply(NamedTuple):
    """A reply, or what was pushed. `to`: where that says it is answered, if it has no status."""

    headers: bytes
    data: bytes
    to: bytes = b""

    @property
    def status(self) -> bytes:
        """The number in the first line of the headers; empty: none."""
        return self.headers.partition(b"\r\n")[0].partition(b" ")[2][:3]


class NatsError(Exception):
    """The server refuses, or says what is not understood."""


class NatsConnection:
    """Open from the beginning. Raises NatsError, OSError. For one thread at a time."""

    def __init__(self, server: str, timeout_s: float) -> None:
        """`server`: nats://[user:password@]host:port, or tls://…"""
        url = urlsplit(server)
        self._until = time.monotonic() + timeout_s
        self._held = ExitStack()
        try:
            address = url.hostname or "", url.port or 0
            self._socket = self._held.enter_context(socket.create_connection(address, timeout_s))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.info = self._greeting()
            if self.info.tls_required or url.scheme == "tls":
                self._socket.settimeout(self._left_s)
                context = ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=url.hostname)
                self._held.enter_context(self._socket)
            self._socket.setblocking(False)
            self._wake, self._waker = map(self._held.enter_context, socket.socketpair())
            self._waker.setblocking(False)
            self._waiting = select.poll()
            for one in (self._socket, self._wake):
                self._waiting.register(one, select.POLLIN)
            self._input = bytearray()
            self._inbox = b"_INBOX.%s." % secrets.token_hex(11).encode()
            self._largest = (
                2 * min(self.info.max_payload, PAYLOAD_MAX) + LINE_BYTES
            )  # a record comes as Base64
            self._next_number = 0
            self._awaited: set[int] = set()
            self._found: dict[int, Reply] = {}
            self._sent: deque[int] = deque()
            """Numbers of what was sent, whose replies nobody has asked for."""
            self._is_listening = False
            self._pushed: list[Reply] = []
            self._pushed_bytes = 0
            self._introduce(url.username, url.password)
        except BaseException:
            self.close()
            raise

    def _greeting(self) -> Info:
        """The first line, byte by byte: what follows it may be TLS."""
        line = bytearray()
        while not line.endswith(b"\n"):
            self._socket.settimeout(self._left_s)
            byte = self._socket.recv(1)
            if not byte or len(line) > LINE_BYTES:
                raise NatsError("the server does not say who it is")
            line += byte
        verb, _, text = bytes(line).partition(b" ")
        if verb != b"INFO":
            raise NatsError(f"not a server of NATS: {bytes(line[:80])!r}")
        return msgspec.json.decode(text, type=Info)

    def _introduce(self, user: str | None, password: str | None) -> None:
        options: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": "1",
            "name": "fasti",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
        }
        if user is not None and password is not None:
            options |= {"user": unquote(user), "pass": unquote(password)}
        elif user is not None:
            options["auth_token"] = unquote(user)
        subscribed = b"SUB %s* 1\r\nPING\r\n" % self._inbox
        self._write(b"CONNECT %s\r\n%s" % (msgspec.json.encode(options), subscribed))
        while self._line() != b"PONG":
            pass

    def ask(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        """Their replies. Raises NatsError, OSError, which TimeoutError is one of."""
        self._until = time.monotonic() + timeout_s
        first = self._next_number
        self._next_number += len(requests)
        self._awaited.update(range(first, self._next_number))
        self._write(b"".join([self._numbered(number, one) for number, one in enumerate(requests, first)]))
        return [self._reply_to(number) for number in range(first, self._next_number)]

    def send(self, request: Request, timeout_s: float) -> None:
        """Send it; `answer` has its reply."""
        self._until = time.monotonic() + timeout_s
        self._sent.append(self._next_number)
        self._awaited.add(self._next_number)
        self._next_number += 1
        self._write(self._numbered(self._sent[-1], request))

    def answer(self, timeout_s: float) -> Reply | None:
        """The reply to the oldest that was sent; None: woken."""
        self._until = time.monotonic() + timeout_s
        if not self._sent:
            raise NatsError("nothing was sent")
        while self._sent[0] not in self._found:
            if not self._has_come(self._left_s):
                if time.monotonic() >= self._until:
                    raise TimeoutError
                return None
            self._read()
        return self._taken(self._sent.popleft())

    def listen(self) -> bytes:
        """Subscribe to a subject of its own, and return it."""
        self._until = time.monotonic() + REST_S
        subject, self._is_listening = b"_INBOX.%s" % secrets.token_hex(11).encode(), True
        self._write(b"SUB %s %s\r\n" % (subject, LISTENER))
        return subject

    def ignore(self) -> None:
        """The opposite: what comes there is dropped."""
        if self._is_listening:
            self._is_listening = False
            self.take_pushed()
            self._until = time.monotonic() + REST_S
            self._write(b"UNSUB %s\r\n" % LISTENER)

    def take_pushed(self) -> list[Reply]:
        """What came since `listen`, or the last call."""
        taken, self._pushed, self._pushed_bytes = self._pushed, [], 0
        return taken

    def tell(self, request: Request, reply_to: bytes) -> None:
        """Send it; what it is answered with comes elsewhere."""
        self._until = time.monotonic() + REST_S
        self._write(self._publication(reply_to, request))

    def wait(self, timeout_s: float) -> bool:
        """Read once. False: nothing came in that time, or it was nudged."""
        if not self._has_come(timeout_s):
            return False
        self._until = time.monotonic() + REST_S
        self._read()
        return True

    def _has_come(self, timeout_s: float) -> bool:
        """Wait for input. False: none came in that time, or it was nudged."""
        if self._input:
            return True
        ready = dict(self._waiting.poll(timeout_s * 1000))
        if self._wake.fileno() in ready:
            self._wake.recv(WAKE_BYTES)
            return False
        return bool(ready)

    def forget(self) -> None:
        """Nobody asks for what was sent so far."""
        self._sent.clear()
        self._found.clear()
        self._awaited.clear()

    def close(self) -> None:
        """Close it. What is under way has no outcome."""
        self._held.close()

    def nudge(self) -> None:
        """From another thread: end a wait in `answer`, this one or the next."""
        with suppress(OSError):  # it is full, and so wakes who waits; or this connection is closed
            self._waker.send(b"\0")

    def abort(self) -> None:
        """From another thread: shut the socket, to end a wait."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._socket.fileno())) as held:
            held.shutdown(socket.SHUT_RDWR)

    def _numbered(self, number: int, request: Request) -> bytes:
        return self._publication(b"%s%d" % (self._inbox, number), request)

    def _publication(self, reply: bytes, request: Request) -> bytes:
        subject, data, headers = request
        if not headers:
            return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(data), data)
        many = len(headers)
        return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (subject, reply, many, many + len(data), headers, data)

    def _reply_to(self, number: int) -> Reply:
        while number not in self._found:
            self._read()
        return self._taken(number)

    def _taken(self, number: int) -> Reply:
        reply = self._found.pop(number)
        if reply.status == NO_RESPONDERS:
            raise NatsError("nobody answers: the stream has no leader, or is not there")
        return reply

    def _read(self) -> None:
        """Read one message of the protocol."""
        words = self._line().split(b" ")
        if words[0] in (b"MSG", b"HMSG"):
            many = int(words[-2]) if words[0] == b"HMSG" else 0
            size = int(words[-1])
            if not 0 <= many <= size <= self._largest:
                raise NatsError(f"a message of {size:,} bytes, {many:,} of headers")
            while len(self._input) < size + 2:
                self._more()
            body = bytes(self._input[:size])
            del self._input[: size + 2]
            reply = Reply(body[:many], body[many:], words[3])
            if words[2] == LISTENER:
                if self._is_listening:
                    self._pushed_bytes += size + PUSHED_LEAST
                    if self._pushed_bytes > PUSHED_BYTES:
                        raise NatsError("the server pushes more than it was asked for")
                    self._pushed.append(reply)
                return
            number = int(words[1].rpartition(b".")[2])
            if number in self._awaited:
                self._awaited.remove(number)
                self._found[number] = reply

    def _line(self) -> bytes:
        """The next line; pings are answered. Raises NatsError."""
        while (end := self._input.find(b"\r\n")) < 0:
            if len(self._input) > LINE_BYTES:
                raise NatsError("a line of the server does not end")
            self._more()
        line = bytes(self._input[:end])
        del self._input[: end + 2]
        if line.startswith(b"-ERR"):
            raise NatsError(line[5:].decode(errors="replace").strip("'"))
        if line == b"PING":
            self._write(b"PONG\r\n")
        return line

    def _more(self) -> None:
        """Read what has come, or wait until something has."""
        try:
            read = self._socket.recv(READ_BYTES)
        except BLOCKED as error:
            self._unblock(error, select.POLLIN)
            return
        if not read:
            raise NatsError("the server has closed the connection")
        self._input += read

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BLOCKED as error:
                self._unblock(error, select.POLLOUT)

    def _unblock(self, error: Exception, wanted: int) -> None:
        """Wait until it goes on. A socket with a timeout of its own asks the system four times more for each
        append."""
        if isinstance(error, ssl.SSLWantReadError):
            wanted = select.POLLIN
        elif isinstance(error, ssl.SSLWantWriteError):
            wanted = select.POLLOUT
        waiting = select.poll()
        waiting.register(self._socket, wanted)
        if not waiting.poll(self._left_s * 1000):
            raise TimeoutError("timed out")

    @property
    def _left_s(self) -> float:
        """What is left of this call's time. Raises TimeoutError."""
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s
