"""A message as it is posted."""

import json
import time
from base64 import b64encode
from collections.abc import Iterable

import msgspec
import pytest
from standardwebhooks import Webhook
from yarl import URL

from server.delivery.message import Message
from server.webhook.registry import Endpoint
from server.webhook.request import HEADERS_BYTES_MAX, WebhookRequest, is_header, request_for
from server.webhook.signing import signatures
from shards.endpoints import EndpointRow, SecretRow
from shards.fields import Record, Retry
from shards.properties import properties_of
from timeline.position import position

NOW_S = 1_795_248_000
DUE_MS = 1_795_248_000_250
URL_ = URL("https://example.com/hook")
PLAIN = Record(b"orders/17", b"hello", DUE_MS)


def endpoint_of(secrets: Iterable[bytes], headers: dict[str, str], *, is_enveloped: bool = False) -> Endpoint:
    row = EndpointRow("", [*map(SecretRow, secrets)], headers, 0, 0, 0, 0, is_enveloped=is_enveloped)
    return Endpoint("hook", row, URL_, 15.0, 1)


def made(
    record: Record = PLAIN, *secrets: bytes, attempt: int = 1, is_enveloped: bool = False, **own: str
) -> WebhookRequest:
    message = Message(position(DUE_MS, 7), 3, record, DUE_MS)
    headers = {name.replace("_", "-"): value for name, value in own.items()}
    endpoint = endpoint_of(secrets, headers, is_enveloped=is_enveloped)
    return request_for(endpoint, message, URL_, attempt, NOW_S * 1_000 + 7, node=0)


def with_headers(*headers: tuple[str, str], content_type: str = "") -> Record:
    return msgspec.structs.replace(PLAIN, properties=properties_of(headers, content_type))


def test_what_every_post_says() -> None:
    request = made(attempt=3)
    message = f"{DUE_MS << 80 | 3 << 64 | 7:032x}"
    assert request == (URL_, request.headers, b"hello", 15.0)
    assert {name: value for name, value in request.headers.items() if name != "user-agent"} == {
        "webhook-id": message,
        "webhook-timestamp": str(NOW_S),
        "fasti-due": "2026-11-21T08:00:00.250Z",
        "fasti-attempt": "3",
        "fasti-redelivered": "true",
        "fasti-topic": "orders/17",
        "content-type": "text/plain; charset=utf-8",
    }
    assert request.headers["user-agent"].startswith("fasti/")


def test_the_id_is_the_same_on_each_try() -> None:
    """A retry carries the id of its message, wherever it stands."""
    retry = msgspec.structs.replace(PLAIN, id=0xABC, retry=Retry(2, 2))
    assert made(retry).headers["webhook-id"] == f"{0xABC:032x}"


def test_what_is_signed_is_what_is_sent() -> None:
    one, two = bytes(24), bytes(range(24))
    headers = made(PLAIN, two, one).headers
    signed = signatures([two, one], headers["webhook-id"], NOW_S, b"hello")
    assert headers["webhook-signature"] == signed
    assert signed.count("v1,") == 2


@pytest.mark.parametrize(
    ("encoding", "content_type"),
    [(0, "text/plain; charset=utf-8"), (1, "application/octet-stream"), (2, "application/json")],
)
def test_a_content_type_is_always_there(encoding: int, content_type: str) -> None:
    record = msgspec.structs.replace(PLAIN, encoding=encoding)
    assert made(record).headers["content-type"] == content_type
    assert made(with_headers(content_type="text/csv")).headers["content-type"] == "text/csv"
    assert made(with_headers(content_type="text/ü")).headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("encoding", "payload", "shown"),
    [
        (0, b"hello \x00 \xc3\xbc", {"data": "hello \0 ü", "encoding": "text"}),
        (0, b"\xff", {"data": "/w==", "encoding": "base64"}),
        (1, b"\0\xff", {"data": "AP8=", "encoding": "base64"}),
        (2, b' {"id": 1.50} ', {"data": {"id": 1.5}, "encoding": "json"}),
        (2, b"null", {"data": None, "encoding": "json"}),
    ],
)
def test_an_envelope_is_json_whatever_the_payload_is(
    encoding: int, payload: bytes, shown: dict[str, object]
) -> None:
    record = msgspec.structs.replace(PLAIN, encoding=encoding, payload=payload)
    request = made(record, bytes(24), is_enveloped=True)
    said = {"type": "orders/17", "timestamp": "2026-11-21T08:00:00.250Z", **shown}
    assert json.loads(request.body) == said
    assert request.headers["content-type"] == "application/json"
    signed = signatures([bytes(24)], request.headers["webhook-id"], NOW_S, request.body)
    assert request.headers["webhook-signature"] == signed
    csv = msgspec.structs.replace(record, properties=properties_of((), "text/csv"))
    request = made(csv, is_enveloped=True)
    assert json.loads(request.body) == {**said, "content_type": "text/csv"}
    assert request.headers["content-type"] == "application/json"


def test_its_libraries_verify_an_envelope_and_fail_on_a_text() -> None:
    secret = bytes(range(24))
    receiver = Webhook(b64encode(secret).decode())

    def verified(*, is_enveloped: bool) -> object:
        message = Message(position(DUE_MS, 7), 3, PLAIN, DUE_MS)
        endpoint = endpoint_of([secret], {}, is_enveloped=is_enveloped)
        request = request_for(endpoint, message, URL_, 1, int(time.time() * 1_000), node=0)
        return receiver.verify(request.body, dict(request.headers))

    assert verified(is_enveloped=True)["data"] == "hello"
    with pytest.raises(ValueError, match="Expecting value"):
        verified(is_enveloped=False)


def test_headers_of_the_endpoint_come_before_those_of_the_message() -> None:
    record = with_headers(("authorization", "theirs"), ("X-Tenant", "7"))
    headers = made(record, authorization="ours").headers
    assert headers["authorization"] == "ours"
    assert headers["x-tenant"] == "7"


def test_receivers_that_take_an_underscore_for_a_hyphen_are_not_deceived() -> None:
    record = with_headers(("x_api_key", "theirs"), ("X_Tenant", "7"), ("x-tenant", "8"))
    headers = made(record, **{"x-api-key": "ours"}).headers
    assert headers["x-api-key"] == "ours"
    assert "x_api_key" not in headers
    assert (headers["x_tenant"], "x-tenant" in headers) == ("7", False)


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "content-length", "Content-Type", "connection", "Transfer-Encoding", "upgrade", "TE"),
        *("webhook-id", "Webhook-Signature", "fasti-topic", "FASTI-anything", "proxy-authorization"),
        *("", "a b", "a:b", "a\r\nb", "ü", "user-agent", "Expect"),
        *("webhook_id", "Fasti_Attempt", "content_length", "Transfer_Encoding", "proxy_x"),
    ],
)
def test_a_header_that_is_ours_or_none_is_never_replaced(name: str) -> None:
    assert not is_header(name, "x")
    if name:
        before = made().headers
        assert made(with_headers((name, "forged"))).headers == before


@pytest.mark.parametrize(
    "name",
    [
        *("cookie", "Set-Cookie", "Content-Encoding", "content-range", "Forwarded", "via", "Remote-User"),
        *("X-Forwarded-For", "x-forwarded-host", "X_Forwarded_Proto", "x-real-ip", "X-Client-IP"),
        *("true-client-ip", "CF-Connecting-IP", "x-original-url", "X-Rewrite-URL", "x_remote_user"),
        *("X-HTTP-Method-Override", "x-http-method", "x-method-override", "x-auth-request-email"),
        *("Client-Cert", "ssl_client_verify", "X-Scheme", "x-webauth-user", "x-authenticated-userid"),
        *("X-Goog-Authenticated-User-Email", "x-amzn-oidc-identity", "X-MS-CLIENT-PRINCIPAL-NAME"),
        *("x-middleware-subrequest",),
    ],
)
def test_what_a_receiver_believes_of_a_proxy_comes_from_no_message(name: str) -> None:
    before = made().headers
    assert made(with_headers((name, "gzip"))).headers == before
    assert made(**{name: "ours"}).headers == before | {name.lower().replace("_", "-"): "ours"}, (
        "an endpoint may set it"
    )


@pytest.mark.parametrize("name", ["authorization", "x-tenant", "traceparent", "x-forward", "accept", "vias"])
def test_other_headers_of_a_message_are_sent(name: str) -> None:
    assert made(with_headers((name, "x"))).headers[name] == "x"


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", " a", "a ", "\x00", "ü", "\x7f"])
def test_a_value_that_http_does_not_carry_stays_behind(value: str) -> None:
    assert not is_header("x-a", value)


def test_a_topic_is_always_a_header() -> None:
    record = msgspec.structs.replace(PLAIN, topic="a/ü %\r\n#".encode())
    assert made(record).headers["fasti-topic"] == "a/%C3%BC%20%25%0D%0A%23"


def test_headers_are_bounded() -> None:
    many = [(f"x-{number}", "v" * 1_000) for number in range(60)]
    headers = made(with_headers(*many)).headers
    theirs = {name: value for name, value in headers.items() if name.startswith("x-")}
    assert 0 < sum(len(name) + len(value) for name, value in theirs.items()) <= HEADERS_BYTES_MAX
    assert "x-0" in theirs
    assert "x-59" not in theirs
