"""A real server among clients that say half of what they want: closes them, sheds others, ends when told."""

import resource
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.served import TLS
from tests.support.server import ServerProcess, served

pytestmark = pytest.mark.process

POST = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALVES = (
    b"",
    b"POST /v1/mess",
    POST,
    POST + b"Content-Length: 50\r\n\r\n{",
    POST + b"Content-Length: 5000000\r\n\r\n{",
    POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /liv",
    b"\x10\x7f\x00\x04MQ",
)
"""What clients send, of HTTP and of MQTT, and then no more."""
WITHIN_S = 50.0
TIMES = ("http.head_timeout_ms", "http.body_timeout_ms", "limits.connect_timeout_ms")
"""A server has to end so soon, whatever clients do."""


PAIR = {"tls_cert": TLS / "cert.pem", "tls_key": TLS / "key.pem"}
SECURE = {f"{door}.{name}": path for door in ("http", "mqtt") for name, path in PAIR.items()}


@contextmanager
def halves(server: ServerProcess, *, has_tls: bool = False) -> Iterator[list[socket.socket]]:
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    with ExitStack() as stack:
        made = []
        for at in (server.http, server.mqtt):
            for half in (*HALVES, b"no hello") if has_tls else HALVES:
                one: socket.socket = stack.enter_context(socket.create_connection(at, timeout=60))
                if has_tls and half != b"no hello":
                    one = stack.enter_context(context.wrap_socket(one, server_hostname="localhost"))
                one.sendall(half)
                made.append(one)
        yield made


def ended(one: socket.socket) -> bool:
    """Whether the server closes it, soon; waits for that."""
    one.settimeout(WITHIN_S)
    try:
        while one.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def livez(server: ServerProcess) -> bytes:
    with socket.create_connection(server.http, timeout=60) as one:
        one.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        said = b""
        try:
            while data := one.recv(65_536):
                said += data
        except ConnectionError:
            pass
        return said


def options(has_tls: bool) -> tuple[tuple[str, ...], dict[str, object]]:
    return (("--mqtt", "mqtts://127.0.0.1:0"), dict(SECURE)) if has_tls else ((), {})


@pytest.mark.parametrize("has_tls", [False, True])
def test_halves_are_closed(tmp_path: Path, has_tls: bool) -> None:
    more, settings = options(has_tls)
    settings |= dict.fromkeys(TIMES, 1_000)
    with (
        served(tmp_path / "data", *more, settings=settings) as server,
        halves(server, has_tls=has_tls) as made,
    ):
        assert all(ended(one) for one in made)
        assert server.process.poll() is None


@pytest.mark.parametrize("has_tls", [False, True])
def test_it_ends_in_time_whatever_clients_do(tmp_path: Path, has_tls: bool) -> None:
    """Nobody is too slow yet, by the settings. One reads nothing of what it asked for, too."""
    more, settings = options(has_tls)
    settings |= dict.fromkeys(TIMES, 3_600_000)
    with (
        served(tmp_path / "data", *more, settings=settings) as server,
        halves(server, has_tls=has_tls) as made,
    ):
        deaf = made[0]
        with suppress(TimeoutError):
            deaf.settimeout(1)
            deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5_000)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < WITHIN_S


def test_answers_that_nobody_takes_are_bounded_below_tls_too(tmp_path: Path) -> None:
    """Of each the system takes some MB; the rest is the server's."""
    more, settings = options(True)
    settings |= {"limits.pool_bytes": 8 << 20}
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    line = b'{"topic":"a","payload":"%b","deliver_in":"3h"}\n' % (b"x" * 8_000)
    with served(tmp_path / "data", *more, settings=settings) as server, ExitStack() as stack:

        def dial() -> ssl.SSLSocket:
            one = stack.enter_context(socket.socket())
            one.settimeout(60)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            one.connect(server.http)
            return stack.enter_context(context.wrap_socket(one, server_hostname="localhost"))

        def ask(call: bytes, body: bytes = b"") -> bytes:
            one = dial()
            head = b"%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n" % call
            one.sendall(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return b"".join(iter(lambda: one.recv(65_536), b""))

        assert ask(b"POST /v1/messages:batch", line * 1_000).startswith(b"HTTP/1.1 201 ")
        for _ in range(16):
            deaf = dial()
            deaf.sendall(b"GET /v1/messages?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        deadline = time.monotonic() + WITHIN_S
        while b'bounded_total{bound="limits.memory"}' not in (said := ask(b"GET /metrics")):
            assert time.monotonic() < deadline, said[-200:]


def test_out_of_descriptors_it_sheds_and_says_so(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server, ExitStack() as stack:
        assert livez(server).startswith(b"HTTP/1.1 200 ")
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        used = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 60, hard))
        crowd = [
            stack.enter_context(socket.create_connection(at, timeout=60))
            for at in (server.http, server.mqtt) * 60
        ]
        assert livez(server) == b""
        assert f"out of file descriptors, {used + 60} may be open" in server.output
        for one in crowd:
            one.close()
        deadline = time.monotonic() + 60
        while not livez(server).startswith(b"HTTP/1.1 200 "):
            assert time.monotonic() < deadline
        assert server.stop() == 0
