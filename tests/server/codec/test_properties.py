"""Properties: what goes on with a message, and the small encoders that deliveries are made of."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.codec import wire
from server.codec.errors import MqttError
from server.codec.packets import Connect, Properties, Publish, Will
from server.codec.properties import (
    encode_properties,
    forwarded,
    message_expiry,
    read_properties,
    read_users,
    subscription_id,
    topic_alias,
)
from server.codec.publish import Decoder
from server.codec.wire import Reader
from shards.properties import user_property
from tests.server.codec import samples
from tests.support.encode import encode

FULL = Properties(
    payload_format=1,
    message_expiry=60,
    content_type="c",
    response_topic="r",
    correlation_data=b"d",
    subscription_ids=(1, 2),
    topic_alias=3,
    user_properties=(("b", "1"), ("a", "2"), ("b", "3")),
)


def decoded(encoded: bytes) -> Properties | None:
    """Read as they stand in a publish of a server."""
    frame = b"\x30" + wire.varint(len(encoded)) + encoded
    return read_properties(Reader(frame, 0, 1, len(frame), 5, True), wire.PUBLISH)


def test_forwarded_keeps_what_belongs_to_the_message() -> None:
    assert decoded(forwarded(FULL)) == Properties(
        payload_format=1,
        content_type="c",
        response_topic="r",
        correlation_data=b"d",
        user_properties=(("b", "1"), ("a", "2"), ("b", "3")),
    )
    assert forwarded(None) == b""
    assert forwarded(Properties(message_expiry=5)) == b""
    assert forwarded(Properties(payload_format=0)) == b"\x01\x00"


@pytest.mark.long
@given(samples.properties("publish from server", 5))
def test_encoded_decodes(properties: Properties | None) -> None:
    assert decoded(encode_properties(properties)) == properties


@pytest.mark.long
@given(samples.properties("will", 5))
def test_forwarded_is_encoded_without_the_rest(properties: Properties | None) -> None:
    if properties is None:
        properties = Properties()
    kept = Properties(
        payload_format=properties.payload_format,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    assert forwarded(properties) == encode_properties(kept)


def test_small_encoders() -> None:
    assert encode_properties(FULL) == b"".join(
        [
            b"\x01\x01",
            message_expiry(60),
            b"\x03\x00\x01c\x08\x00\x01r\x09\x00\x01d",
            subscription_id(1),
            subscription_id(2),
            topic_alias(3),
            user_property("b", "1"),
            user_property("a", "2"),
            user_property("b", "3"),
        ]
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("\0", ""), ("", "\0"), ("k" * 65_536, ""), ("", "v" * 65_536), ("\ud800", "")],
)
def test_user_property_refuses_what_cannot_be_sent(key: str, value: str) -> None:
    with pytest.raises(ValueError):
        user_property(key, value)


@pytest.mark.parametrize(
    "properties",
    [
        Properties(receive_maximum=0),
        Properties(receive_maximum=65_536),
        Properties(message_expiry=1 << 32),
        Properties(server_keep_alive=-1),
        Properties(payload_format=2),
        Properties(subscription_ids=(0,)),
        Properties(subscription_ids=(1 << 28,)),
    ],
)
def test_numbers_out_of_range_are_refused(properties: Properties) -> None:
    with pytest.raises(ValueError):
        encode_properties(properties)


@pytest.mark.parametrize("raw", [b"\x26", b"\x21\x00\x01", b"\x26\x00\x01a", b"\x7f"])
def test_properties_that_are_none(raw: bytes) -> None:
    with pytest.raises(MqttError):
        decoded(raw)


def test_user_property_by_name() -> None:
    assert FULL.user("b") == "1"
    assert FULL.user("c") is None


TEXTS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
    st.sampled_from(["", "x" * 255, "y" * 256, "ä" * 200]),
)


@pytest.mark.long
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5), st.binary(max_size=8), st.integers(0, 6))
def test_many_user_properties_at_once(pairs: list[tuple[str, str]], tail: bytes, count_max: int) -> None:
    """What is read is what was written, up to what is none or not sound."""
    tail = tail.replace(b"\x26", b"\x25")
    data = b"head" + b"".join(user_property(*pair) for pair in pairs) + tail
    users, after = read_users(data, 4, len(data), count_max)
    assert users == pairs[:count_max]
    assert after == 4 + sum(len(user_property(*pair)) for pair in pairs[:count_max])
    if pairs and not tail:
        users, after = read_users(data, 4, len(data) - 1, 100)
        assert users == pairs[:-1]


def _publish(section: bytes, extra: bytes = b"") -> bytes:
    section = extra + section
    body = b"\0\1t" + wire.varint(len(section)) + section
    return b"\x30" + wire.varint(len(body)) + body


SLOWLY = b"\x03\0\0"
"""A content type sends the packet to `parse`."""


@pytest.mark.parametrize("extra", [b"", SLOWLY])
@pytest.mark.parametrize("bad", [b"\x26\0\1\0\0\0", b"\x26\0\0\0\1\0", b"\x26\0\1\xff\0\0", b"\x26\0\2a\0\0"])
@pytest.mark.parametrize("before", [0, 3, 200])
def test_a_bad_one_among_many(extra: bytes, bad: bytes, before: int) -> None:
    good = user_property("key", "value")
    with pytest.raises(MqttError) as caught:
        Decoder(1 << 20, 5).feed(_publish(good * before + bad, extra))
    assert caught.value.reason == 0x81


@pytest.mark.parametrize("extra", [b"", SLOWLY])
@pytest.mark.parametrize("size", [0, 60])
def test_no_more_user_properties_than_are_allowed(extra: bytes, size: int) -> None:
    one = user_property("k", "v" * size)
    (packet,) = Decoder(1 << 20, 5, users_max=10).feed(_publish(one * 10, extra))
    assert isinstance(packet, Publish)
    assert packet.properties is not None
    assert packet.properties.user_properties == (("k", "v" * size),) * 10
    with pytest.raises(MqttError) as caught:
        Decoder(1 << 20, 5, users_max=10).feed(_publish(one * 11, extra))
    assert caught.value.reason == 0x97


@pytest.mark.parametrize("of_will", [False, True])
def test_nobody_has_shown_a_key_yet_so_a_connect_has_few_user_properties(*, of_will: bool) -> None:
    def connect(count: int) -> bytes:
        many = Properties(user_properties=(("k", "v"),) * count)
        if of_will:
            return encode(Connect(5, "c", will=Will(b"t", b"", properties=many)), 5)
        return encode(Connect(5, "c", properties=many), 5)

    assert len(Decoder(1 << 20, users_max=5_000).feed(connect(64))) == 1
    with pytest.raises(MqttError, match="are more than 64") as caught:
        Decoder(1 << 20, users_max=5_000).feed(connect(65))
    assert (caught.value.reason, caught.value.spoken) == (0x97, 5)


@pytest.mark.parametrize("extra", [b"", SLOWLY])
def test_a_flood_of_empty_ones_is_refused_soon(extra: bytes) -> None:
    data = _publish(b"\x26\0\0\0\0" * 200_000, extra)
    took = []
    for _ in range(3):
        started = time.thread_time()
        with pytest.raises(MqttError):
            Decoder(1 << 20, 5, users_max=5_000).feed(data)
        took.append(time.thread_time() - started)
    assert min(took) < 0.02
