"""One message request: what each field becomes, and the field that is named when it is refused."""

import json
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.http.values.bodies import FieldError, NotReadable, RequestError, UnsupportedMedia, check_json
from server.settings.config import Limits
from tests.support.reading import parse_one

from ..conftest import Running

NOW = 1_795_248_000_000
LIMITS = Limits()
PLAIN = {"topic": "orders/17", "payload": "hi"}


def body(**fields: Any) -> bytes:
    return json.dumps(PLAIN | fields).encode()


def refused(raw: bytes, **more: Any) -> tuple[str, str]:
    with pytest.raises(FieldError) as caught:
        parse_one(raw, NOW, LIMITS, **more)
    return caught.value.field, caught.value.detail


def test_a_plain_message_is_now_and_qos_1() -> None:
    message = parse_one(body(), NOW, LIMITS)
    assert (message.topic, message.payload, message.due_ms, message.qos) == (b"orders/17", b"hi", 0, 1)
    assert (message.retain, message.drop_late, message.expires_ms, message.headers) == (False, False, 0, ())
    assert (message.content_type, message.encoding, message.key, message.fingerprint) == ("", "text", "", b"")


def test_every_field_arrives() -> None:
    raw = body(
        deliver_at="2026-11-21T08:00:00.5Z",
        qos=2,
        retain=True,
        expires_in="PT1M",
        late="drop",
        headers={"a": "b", "c": ""},
        content_type="text/plain",
        key="order-17",
        ordering_key="customer-17",
    )
    message = parse_one(raw, NOW, LIMITS)
    assert message.ordering_key == b"customer-17"
    assert (message.due_ms, message.qos, message.retain, message.drop_late) == (NOW + 500, 2, True, True)
    assert message.expires_ms == 60_000
    assert message.headers == (("a", "b"), ("c", ""))
    assert (message.content_type, message.key) == ("text/plain", "order-17")
    assert message.fingerprint == blake2b(raw, digest_size=16).digest()


@pytest.mark.parametrize(
    ("value", "encoding", "payload", "kept", "content_type"),
    [
        ('"hi"', None, b"hi", "text", ""),
        ('""', None, b"", "text", ""),
        ('"h\\u00e9\\n\\""', None, 'hé\n"'.encode(), "text", ""),
        ('"hé"', "text", "hé".encode(), "text", ""),
        ('"AP8="', "base64", b"\0\xff", "base64", ""),
        ('"AP\\u0038="', "base64", b"\0\xff", "base64", ""),
        ('""', "base64", b"", "base64", ""),
        ('{"id": 17}', None, b'{"id": 17}', "json", "application/json"),
        ("[1, 2]", "json", b"[1, 2]", "json", "application/json"),
        ("null", None, b"null", "json", "application/json"),
        ("12345678901234567890123", None, b"12345678901234567890123", "json", "application/json"),
        ('"hi"', "json", b'"hi"', "json", "application/json"),
    ],
)
def test_a_payload_is_text_base64_or_json(
    value: str, encoding: str | None, payload: bytes, kept: str, content_type: str
) -> None:
    raw = f'{{"topic": "a", "payload": {value}, "encoding": {json.dumps(encoding)}}}'.encode()
    message = parse_one(raw, NOW, LIMITS)
    assert (message.payload, message.encoding, message.content_type) == (payload, kept, content_type)


@given(st.text())
def test_any_text_goes_through(text: str) -> None:
    for raw in (body(payload=text), json.dumps(PLAIN | {"payload": text}, ensure_ascii=False).encode()):
        assert parse_one(raw, NOW, LIMITS).payload == text.encode()


@pytest.mark.parametrize(
    ("fields", "due_ms"),
    [
        ({"deliver_in": "15m"}, NOW + 900_000),
        ({"deliver_in": 0}, NOW),
        ({"deliver_in": 1.5}, NOW + 1_500),
        ({"deliver_at": "2001-01-01T00:00:00Z"}, 978_307_200_000),
        ({"deliver_at": "2027-03-28T09:00[Europe/Bucharest]"}, 1_806_213_600_000),
        ({"deliver_in": "3650d"}, NOW + 3_650 * 86_400_000),
        ({}, 0),
    ],
)
def test_a_due_time_is_resolved(fields: dict[str, Any], due_ms: int) -> None:
    assert parse_one(body(**fields), NOW, LIMITS).due_ms == due_ms


@pytest.mark.parametrize("topic", ["$", "$foo", "$foo/a/b", "$sys/a", "$SYSTEM/a", "$/a"])
def test_topics_that_begin_with_a_dollar_are_like_others(topic: str) -> None:
    assert parse_one(body(topic=topic), NOW, LIMITS).topic == topic.encode()


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"topic": ""}, "topic", "empty"),
        ({"topic": "a/+"}, "topic", "wildcard"),
        ({"topic": "a\0"}, "topic", "NUL"),
        ({"topic": "a\x07b"}, "topic", "the control character U+0007"),
        ({"topic": "a\x85b"}, "topic", "the control character U+0085"),
        ({"topic": "a\uffff"}, "topic", "the non-character U+FFFF"),
        ({"topic": "$SYS/x"}, "topic", "'$SYS', which is reserved for the server"),
        ({"topic": "$delayed/5/x"}, "topic", "'$delayed'"),
        ({"topic": "$SYS/broker/connection/a/state"}, "topic", "'$SYS'"),
        ({"topic": "a" * 65_536}, "topic", "65536"),
        ({"payload": "x" * (256 * 1024 + 1)}, "payload", "limits.max_payload"),
        ({"payload": "A", "encoding": "base64"}, "payload", "is not base64"),
        ({"payload": "AA==AA==", "encoding": "base64"}, "payload", "is not base64"),
        ({"payload": "A A=", "encoding": "base64"}, "payload", "is not base64"),
        ({"payload": 1, "encoding": "base64"}, "encoding", "a string"),
        ({"payload": {}, "encoding": "text"}, "encoding", "a string"),
        ({"deliver_at": "2027-03-28T09:00"}, "deliver_at", "needs an offset"),
        ({"deliver_at": 1_796_127_600}, "deliver_at", "a number may be Unix seconds, ms or a delay"),
        ({"deliver_at": 1_796_127_600.5}, "deliver_at", "a number may be Unix seconds, ms or a delay"),
        ({"deliver_at": "2026-11-21T08:00:00Z", "deliver_in": 1}, "deliver_in", "exclude each other"),
        ({"deliver_in": None}, "deliver_in", "null"),
        ({"deliver_at": None}, "deliver_at", "null"),
        ({"deliver_at": None, "deliver_in": 1}, "deliver_at", "null"),
        ({"deliver_at": "2046-11-21T08:00:00Z"}, "deliver_at", "limits.max_delay"),
        ({"deliver_at": "1970-01-21T18:55:27.600Z"}, "deliver_at", "Unix s is 2026-12-01T12:20:00.000Z"),
        ({"deliver_at": "1796127600"}, "deliver_at", "Unix s is 2026-12-01T12:20:00.000Z"),
        ({"deliver_at": "1796127600000"}, "deliver_at", "Unix ms is 2026-12-01T12:20:00.000Z"),
        ({"expires_in": 1_796_127_600}, "expires_in", "31 years; 1796127600 in Unix s is 2026-12-01T12:20"),
        ({"expires_in": "1796127600"}, "expires_in", "31 years; 1796127600 in Unix s is 2026-12-01T12:20"),
        ({"spread": 1_796_127_600_000}, "spread", "in Unix ms is 2026-12-01T12:20:00.000Z"),
        ({"deliver_in": 1_796_127_600}, "deliver_in", "Unix s is 2026-12-01T12:20:00.000Z"),
        ({"deliver_in": "1796127600000"}, "deliver_in", "Unix ms is 2026-12-01T12:20:00.000Z"),
        ({"deliver_in": "P1M"}, "deliver_in", "no fixed length"),
        ({"deliver_in": -1}, "deliver_in", "not negative"),
        ({"deliver_in": True}, "deliver_in", "bool"),
        ({"headers": {"": "x"}}, "headers", "has an empty name, with the value 'x'"),
        ({"headers": {"a": "é" * 2_049}}, "headers", "4096"),
        ({"headers": {"a": "\0"}}, "headers", "U+0000"),
        ({"headers": {"a": "1\n2"}}, "headers", "U+000A"),
        ({"headers": {"fasti-id": "x"}}, "headers", "prefix"),
        ({"content_type": "a\r\nb"}, "content_type", "control"),
        ({"key": "a\n"}, "key", "control"),
        ({"ordering_key": "a\n"}, "ordering_key", "control"),
        ({"delay": 5}, "delay", "unknown field"),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, Any], field: str, said: str) -> None:
    found = refused(body(**fields))
    assert found[0] == field
    assert said in found[1]


def test_what_is_missing_or_no_object_is_refused() -> None:
    assert refused(b'{"topic": "a"}') == ("payload", "is required")
    assert refused(b"{}") == ("payload", "is required")
    assert refused(b'{"payload": "a"}') == ("topic", "is required")
    assert refused(b"[1]") == ("", "Expected `object`, got `array`")


def test_spread() -> None:
    assert parse_one(body(spread="PT10M"), NOW, LIMITS).spread_ms == 600_000
    assert parse_one(body(spread=None), NOW, LIMITS).spread_ms == 0
    with pytest.raises(FieldError, match="reaches beyond"):
        parse_one(body(spread="P3651D"), NOW, LIMITS)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nope",
        body() + b"x",
        b'{"topic": "a", "payload": "\xff"}',
        b'{"topic": "a", "payload": {"k": "\xff"}}',
        b'{"topic": "\xff", "payload": 1}',
        b'{"topic": "a", "payload": "\\ud800"}',
        b'{"topic": "a", "payload": NaN}',
        b'{"topic": "a", "payload": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_json_is_not_readable(raw: bytes) -> None:
    with pytest.raises(NotReadable):
        parse_one(raw, NOW, LIMITS)


def test_the_key_of_the_header_counts_like_one_in_the_body() -> None:
    raw = body()
    message = parse_one(raw, NOW, LIMITS, key="k")
    assert (message.key, message.fingerprint) == ("k", blake2b(raw, digest_size=16).digest())
    assert parse_one(body(key="k"), NOW, LIMITS, key="k").key == "k"
    assert refused(body(key="other"), key="k") == ("key", "differs from the header Idempotency-Key")
    assert refused(body(), key="")[0] == "key"


@given(st.binary(max_size=60), st.integers(0, 200))
def test_a_damaged_body_is_a_message_or_a_request_error(noise: bytes, at: int) -> None:
    raw = body(deliver_in="15m", headers={"a": "b"}, qos=0)
    at %= len(raw)
    for damaged in (raw[:at], raw[:at] + noise + raw[at:], raw[:at] + noise + raw[at + len(noise) :]):
        try:
            message = parse_one(damaged, NOW, LIMITS)
        except RequestError:
            continue
        if message.encoding != "base64":
            message.payload.decode()


def test_the_media_type_of_a_request() -> None:
    for good in ("application/json", "Application/JSON; charset=UTF-8", "application/merge-patch+json"):
        check_json(good)
    for bad in ("", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"):
        with pytest.raises(UnsupportedMedia, match="expected"):
            check_json(bad)


@pytest.mark.parametrize("name", [" - at `$" + "a" * 2_000_000 + "`x", " - at `$" * 200_000, "`" * 1_000_000])
def test_a_made_up_name_is_read_once_and_said_back_in_part(name: str) -> None:
    """It was taken apart in as many ways as it has letters: one body stopped the server for hours."""
    body = json.dumps({"topic": "a", "payload": 1, name: 1}).encode()
    with pytest.raises(FieldError, match="unknown field") as caught:
        parse_one(body, 0, Limits())
    assert name.startswith(caught.value.field)
    assert len(caught.value.field) == 256


def test_a_word_that_is_none_is_told_those_that_are() -> None:
    for name, words in (("late", "deliver, drop"), ("encoding", "base64, json, text")):
        body = json.dumps({"topic": "a", "payload": "x", name: "nope"}).encode()
        with pytest.raises(FieldError) as refused:
            parse_one(body, NOW, LIMITS)
        assert (refused.value.field, refused.value.detail) == (name, f"must be one of {words}, not 'nope'")


async def test_words_in_an_object_of_a_body_too(server: Running) -> None:
    schedule = {"every": "1h", "topic": "a", "dst": {"gap": "maybe"}}
    answer = await server.call("PUT", "/v1/schedules/s", schedule, status=422)
    said = "must be one of after, before, skip, not 'maybe'"
    assert answer.body["errors"] == [{"field": "dst.gap", "detail": said}]
    answer = await server.call("PUT", "/v1/schedules/s", {**schedule, "dst": {}, "misfire": "x"}, status=422)
    assert answer.body["errors"][0]["detail"] == "must be one of fire_all, fire_once, skip, not 'x'"
