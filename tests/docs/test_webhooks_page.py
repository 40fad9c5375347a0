"""The receiver on docs/webhooks.md takes what the server signs, and nothing else."""

import re
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from yarl import URL

from server.webhook.registry import Endpoint
from server.webhook.request import headers_for
from server.webhook.signing import secret_of
from shards.endpoints import EndpointRow, SecretRow

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")
SECRET = secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
OTHER = secret_of("whsec_" + b64encode(bytes(24)).decode())


@pytest.fixture
def page() -> dict[str, Any]:
    """What the example defines."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/webhooks.md", "exec"), names)
    return names


@pytest.fixture
def port(page: dict[str, Any]) -> Iterator[int]:
    page["Hook"].log_message = lambda *_: None
    server = HTTPServer(("127.0.0.1", 0), page["Hook"])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def post(port: int, body: bytes, secrets: list[bytes], now_s: int | None = None, name: str = "m1") -> int:
    stamp = int(time.time()) if now_s is None else now_s
    row = EndpointRow("", [*map(SecretRow, secrets)], {}, 0, 0, 0, 0)
    endpoint = Endpoint("hook", row, URL("https://example.com"), 15.0, 1)
    headers = headers_for(endpoint, name, body, stamp * 1_000, "text/plain", {})
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}/", body, headers)) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code


def test_what_is_genuine_is_handled_once(
    page: dict[str, Any], port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert post(port, b"hello", [SECRET]) == 204
    assert post(port, b"hello", [SECRET]) == 204
    assert post(port, b"rotated", [OTHER, SECRET], name="m2") == 204
    assert capsys.readouterr().out.splitlines() == ["handle b'hello'", "handle b'rotated'"]
    assert page["done"] == {"m1", "m2"}


def test_what_is_not_is_refused(page: dict[str, Any], port: int) -> None:
    assert post(port, b"hello", [OTHER]) == 401
    assert post(port, b"hello", [SECRET], int(time.time()) - 600) == 401
    assert page["done"] == set()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"webhook-id": "m1", "webhook-timestamp": "{now}"},
        {"webhook-id": "m1", "webhook-timestamp": "soon", "webhook-signature": "v1,a"},
        {"webhook-id": "m1", "webhook-timestamp": "{now}", "webhook-signature": "v1,\xe9"},
    ],
)
def test_what_nobody_signed_is_refused(port: int, headers: dict[str, str]) -> None:
    sent = {name: value.format(now=int(time.time())) for name, value in headers.items()}
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"http://127.0.0.1:{port}/", b"hello", sent))
    refused.value.close()
    assert refused.value.code == 401


def test_the_secret_on_the_page_is_the_one_of_its_example() -> None:
    assert f"whsec_{b64encode(SECRET).decode()}" in PAGE
    assert f'b64decode("{b64encode(SECRET).decode()}")' in PAGE
