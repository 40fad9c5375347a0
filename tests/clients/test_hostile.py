"""A hostile client of a server with keys and TLS: it gets errors, and its key is in no log and no answer.

Every kind of failure comes with a key in it: one that counts, one that does not, in the place for keys and in
all the wrong ones. Afterwards the log, the answers and the files of the server are searched for them.
"""

import json
import re
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.codec.packets import Connect
from tests.support.encode import encode
from tests.support.keys import KeysFile
from tests.support.server import ServerProcess, served

TLS = Path(__file__).parents[1] / "support" / "tls"


class Hostile:
    """Sends bytes, each from an address of its own, and keeps what comes."""

    def __init__(self, server: ServerProcess, keys: dict[str, str]) -> None:
        self.server = server
        self.keys = keys
        self.answers: list[bytes] = []
        self.counts: Counter[int] = Counter()
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    def send(self, data: bytes, port: int = 0) -> bytes:
        """What is answered until the server closes, or a whole answer of HTTP is there."""
        number = len(self.answers) + 1
        source = (f"127.0.{number // 250 + 1}.{number % 250 + 1}", 0)
        plain = socket.create_connection(("127.0.0.1", port or self.server.http[1]), 60, source)
        with plain if port else self._context.wrap_socket(plain) as wire:
            wire.sendall(data)
            found = b""
            while not _is_whole(found) and (more := wire.recv(1 << 16)):
                found += more
        self.answers.append(found)
        return found

    def ask(
        self, first: str, *headers: str, body: bytes = b"", host: str = "localhost", port: int = 0
    ) -> int:
        lines = [f"{first} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        answer = self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body, port)
        status = int(answer.split()[1])
        self.counts[status] += 1
        return status

    def bearer(self, name: str) -> str:
        return f"Authorization: Bearer {self.keys[name]}"


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/"):
        return len(answer) >= 4 and len(answer) >= 2 + answer[1]
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and (b" 101 " in head or (length is not None and len(body) >= int(length[1])))


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    file = KeysFile(tmp_path / "keys.toml")
    keys = {name: file.add(name, name) for name in ("admin", "read", "schedule")}
    keys["wrong"] = f"fasti_admin_{'5a' * 32}"
    settings = {
        "auth.keys_file": file.path,
        "spark.enabled": "false",
        "http.tls_cert": TLS / "cert.pem",
        "http.tls_key": TLS / "key.pem",
    }
    with served(tmp_path / "data", settings=settings) as server:
        made = Hostile(server, keys)
        yield made
        assert server.stop() == 0
        print(f"{len(made.answers)} requests: {dict(sorted(made.counts.items()))}")
        _search(made, tmp_path / "data")


def _search(hostile: Hostile, data: Path) -> None:
    """For any 12 digits in a row of a key's secret."""
    places = {"log": hostile.server.log.read_bytes(), "answers": b"".join(hostile.answers)}
    places |= {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert b"wrong key from" in places["log"]
    assert b"Traceback" not in places["log"]
    for name, key in hostile.keys.items():
        secret = key.rpartition("_")[2].encode()
        pieces = [secret[at : at + 12] for at in range(len(secret) - 11)]
        for place, content in places.items():
            assert not any(piece in content for piece in pieces), f"the key {name} is in {place}"


def test_oddities_of_authorization(hostile: Hostile) -> None:
    key = hostile.keys["admin"]
    assert hostile.ask("GET /v1/jobs", hostile.bearer("admin")) == 200
    assert hostile.ask("GET /v1/jobs", hostile.bearer("admin").upper().replace(key.upper(), key)) == 200
    for status, *headers in (
        (401,),
        (401, hostile.bearer("wrong")),
        (401, hostile.bearer("admin").replace("fasti_admin", "fasti_read")),
        (401, f"Authorization: Bearer {key.upper()}"),
        (401, f"Authorization: {key}"),
        (401, f"Authorization: Basic {key}"),
        (401, f"Authorization: Bearer {key} x"),
        (401, f"Authorization: Bearer {key},{key}"),
        (401, f"Authorization: Bearer\t{key}"),
        (401, f"Authorization: Bearer {key}\xe9"),
        (401, f"Authorization: Bearer {key}{'a' * 8_000}"),
        (431, f"Authorization: Bearer {key}{'a' * 9_000}"),
        (400, hostile.bearer("admin"), hostile.bearer("admin")),
        (400, hostile.bearer("read"), hostile.bearer("admin").lower()),
        (400, f"Authorization: Bearer {key}\0"),
        (400, "Authorization: Bearer", f" {key}"),
        (400, f"X: y\nAuthorization: Bearer {key}"),
        (400, f"Authorization : Bearer {key}"),
        (401, f"Proxy-Authorization: Bearer {key}", f"Cookie: key={key}", "X-Forwarded-User: admin"),
    ):
        assert hostile.ask("GET /v1/jobs", *map(str, headers)) == status, headers


def test_a_key_in_every_wrong_place(hostile: Hostile) -> None:
    key = hostile.keys["admin"]
    for shown, wanted in ((), 401), ((hostile.bearer("read"),), 403):
        for target in (f"/v1/jobs?key={key}", f"/v1/jobs?access_token={key}"):
            assert hostile.ask(f"GET {target}", *shown) == wanted
    assert hostile.ask(f"GET /v1/jobs?key={key}", hostile.bearer("admin")) == 422
    assert hostile.ask(f"GET https://admin:{key}@localhost/v1/jobs") == 400
    assert hostile.ask(f"{key} /v1/jobs") == 501
    assert hostile.ask("GET /v1/jobs", host=key) == 421
    assert hostile.ask("GET /v1/jobs", f"Origin: http://{key}") == 401
    assert hostile.ask("DELETE /v1/jobs", f"Origin: http://{key}") == 403
    assert hostile.ask("POST /v1/messages", f"Expect: {key}", body=b"x") == 417
    assert hostile.ask("POST /v1/messages", f"Content-Encoding: {key}", body=b"x") == 415
    assert hostile.ask("POST /v1/messages", f"Transfer-Encoding: {key}") == 501
    packed = "Content-Encoding: gzip"
    assert hostile.ask("POST /v1/messages", hostile.bearer("admin"), packed, body=key.encode()) == 400
    assert hostile.ask("POST /v1/messages", hostile.bearer("admin"), body=key.encode()) == 400
    port = hostile.server.mqtt[1]
    for level in (4, 5):
        for name, password in (
            *(
                (None, None),
                ("admin", "wrong"),
                ("admin", "read"),
                (key, None),
                (key, "read"),
                (key, "admin"),
            ),
            *((hostile.keys["wrong"], "wrong"), ("key", "wrong"), ("fasti-server", "admin")),
        ):
            shown_key = None if password is None else hostile.keys[password].encode()
            packet = Connect(level, "c", username=name, password=shown_key)
            answer = hostile.send(encode(packet, level), port)
            assert answer[0] == 0x20
            assert answer[3], (name, password)


def test_every_call_with_a_key_that_only_reads(hostile: Hostile) -> None:
    """Whatever changes something is refused before its body is looked at."""
    description = hostile.send(
        f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n{hostile.bearer('read')}\r\n\r\n".encode()
    )
    paths: dict[str, Any] = json.loads(description.partition(b"\r\n\r\n")[2])["paths"]
    let_through: Counter[str] = Counter()
    endless = {path for path, calls in paths.items() if "text/event-stream" in json.dumps(calls)}
    assert endless == {"/v1/events", "/v1/tail"}
    for path, calls in paths.items():
        for method in calls:
            if path in endless:  # who may read it reads on for ever
                assert (
                    hostile.ask(f"GET {path}") == hostile.ask(f"GET {path}", "X-Original-URL: /livez") == 401
                )
                assert hostile.ask(f"GET {path}", hostile.bearer("wrong")) == 401
                continue
            target = re.sub(r"\{\w+\}", "0" * 32, path)
            body = b"" if method == "get" else b"{}"
            status = hostile.ask(f"{method.upper()} {target}", hostile.bearer("read"), body=body)
            override = hostile.ask(f"{method.upper()} {target}", "X-Original-URL: /livez", body=body)
            assert override == 401 or path in ("/livez", "/readyz", "/", "/console/{file}"), path
            let_through[method] += status != 403
            if method != "get":
                assert status in (403, 404, 422), (method, path, status)
    print(dict(let_through))
    for target in ("//v1/jobs", "/v1/./jobs", "/livez/../v1/jobs", "/livez%2f..%2fv1%2fjobs", "/v1/%6aobs"):
        assert hostile.ask(f"GET {target}") == 401
        assert hostile.ask(f"GET {target}", hostile.bearer("read")) in (403, 404)
    assert hostile.ask("GET /v1/info", hostile.bearer("wrong")) == 401
