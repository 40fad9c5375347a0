"""Calls of a job to a server with TLS: which certificates it trusts."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from spark import __main__ as program
from spark.errors import SparkError, Unreachable
from spark.remote import Remote
from tests.support.served import TLS

pytestmark = pytest.mark.short

CERT = TLS / "cert.pem"


class Empty(BaseHTTPRequestHandler):
    """No slices."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"slices": [], "split_above": 1, "next": null}')

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Empty)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERT, TLS / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_ca_is_named_or_in_the_environment(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_check_machine", lambda _: None)
    called = ["split", "--server", f"https://127.0.0.1:{port}", "--overfull"]
    assert program.main(called) == 3
    assert program.main([*called, "--ca", str(CERT)]) == 0
    monkeypatch.setenv("FASTI_CA", str(CERT))
    assert program.main(called) == 0
    assert program.main([*called, "--ca", str(TLS / "other-cert.pem")]) == 3, "the option counts"


def test_a_certificate_that_is_not_trusted_says_what_to_do(port: int) -> None:
    with pytest.raises(Unreachable, match=r"certificate is refused: .*; give its CA as --ca or FASTI_CA$"):
        list(Remote(f"https://127.0.0.1:{port}").slices())
    with pytest.raises(SparkError, match=r"the CA file /none cannot be used: No such file"):
        Remote("https://127.0.0.1", ca="/none")
    Remote("http://127.0.0.1", ca="/none")
