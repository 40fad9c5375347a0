"""Properties: what goes on with a message, and the small encoders that deliveries are made of."""

from __future__ import annotations

import pytest
from hypothesis import given

from server.mqtt.properties import (
    Properties,
    decode_properties,
    encode_properties,
    forwarded,
    message_expiry,
    subscription_id,
    topic_alias,
    user_property,
)
from server.mqtt.reasons import MqttError
from tests.server.mqtt import samples

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


def test_forwarded_keeps_what_belongs_to_the_message() -> None:
    assert decode_properties(forwarded(FULL)) == Properties(
        payload_format=1,
        content_type="c",
        response_topic="r",
        correlation_data=b"d",
        user_properties=(("b", "1"), ("a", "2"), ("b", "3")),
    )
    assert forwarded(None) == b""
    assert forwarded(Properties(message_expiry=5)) == b""
    assert forwarded(Properties(payload_format=0)) == b"\x01\x00"


@given(samples.properties("publish from server", 5))
def test_encoded_decodes(properties: Properties | None) -> None:
    assert decode_properties(encode_properties(properties)) == properties


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
def test_stored_properties_that_are_none(raw: bytes) -> None:
    with pytest.raises(MqttError):
        decode_properties(raw)


def test_user_property_by_name() -> None:
    assert FULL.user("b") == "1"
    assert FULL.user("c") is None
