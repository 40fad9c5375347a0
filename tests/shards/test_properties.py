"""Stored properties: what the codec of MQTT writes is read here, and what is written here the codec reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.codec import wire
from server.codec.errors import MqttError
from server.codec.packets import Properties
from server.codec.properties import RULES, encode_properties, forwarded, message_expiry, read_properties
from shards import properties as stored
from shards.errors import Corrupt
from shards.properties import REMEMBERED_BYTES, headers_of, properties_of, user_property
from tests.server.codec import samples

LONG = "ä" * REMEMBERED_BYTES
FULL = Properties(
    payload_format=1,
    content_type="text/plain",
    response_topic="r",
    correlation_data=b"d\xff",
    user_properties=(("b", "1"), ("a", "ä"), ("b", "3"), ("", "")),
)


def codec_reads(encoded: bytes) -> Properties:
    """As they stand in a publish of a server."""
    frame = b"\x30" + wire.varint(len(encoded)) + encoded
    found = read_properties(wire.Reader(frame, 0, 1, len(frame), 5, True), wire.PUBLISH)
    return Properties() if found is None else found


def test_of_one_name_the_last_value_counts_where_the_first_stood() -> None:
    assert headers_of(forwarded(FULL)) == ((("b", "3"), ("a", "ä"), ("", "")), "text/plain")
    assert headers_of(b"") == ((), None)


def test_an_example_in_bytes() -> None:
    encoded = properties_of([("a", "b")], "text/plain")
    assert encoded.hex(" ") == "03 00 0a 74 65 78 74 2f 70 6c 61 69 6e 26 00 01 61 00 01 62"
    assert headers_of(encoded) == ((("a", "b"),), "text/plain")


@pytest.mark.long
@given(samples.properties("will", 5))
def test_what_the_codec_forwards_is_read(properties: Properties | None) -> None:
    properties = properties or Properties()
    expected = tuple(dict(properties.user_properties).items()), properties.content_type
    assert headers_of(forwarded(properties)) == expected


@given(samples.properties("will", 5), st.integers(0, 0xFFFF_FFFF))
def test_so_is_what_goes_to_a_subscriber(properties: Properties | None, expiry_s: int) -> None:
    encoded = forwarded(properties)
    assert headers_of(message_expiry(expiry_s) + encoded) == headers_of(encoded)
    users = (properties or Properties()).user_properties
    added = encoded + user_property("fasti-dead-reason", "not acked")
    assert codec_reads(added).user_properties == (*users, ("fasti-dead-reason", "not acked"))
    assert dict(headers_of(added)[0])["fasti-dead-reason"] == "not acked"


@given(samples.pairs, samples.text)
def test_what_is_written_is_what_the_codec_would_write(
    headers: tuple[tuple[str, str], ...], content_type: str
) -> None:
    as_properties = Properties(content_type=content_type or None, user_properties=headers)
    encoded = properties_of(headers, content_type)
    assert encoded == forwarded(as_properties) == encode_properties(as_properties)
    assert codec_reads(encoded) == as_properties


@given(samples.properties("will", 5), st.data())
def test_what_is_cut_short_is_corrupt_or_says_less(
    properties: Properties | None, data: st.DataObject
) -> None:
    """Whatever the codec refuses is Corrupt, and what both read they read alike."""
    encoded = forwarded(properties)
    cut = encoded[: data.draw(st.integers(0, len(encoded)))]
    try:
        expected = codec_reads(cut)
    except MqttError:
        with pytest.raises(Corrupt):
            headers_of(cut)
    else:
        assert headers_of(cut) == (tuple(dict(expected.user_properties).items()), expected.content_type)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"\x26", b"\x26\x00\x01a", b"\x26\x00\x02a\x00\x00", b"\x03\x00", b"\x03\x00\x02a"),
        *(b"\x21\x00\x01", b"\x7f", b"\x01", b"\x02\x00\x00\x00"),
        *(b"\x03\x00\x01\xff", b"\x26\x00\x01\xff\x00\x00", b"\x26\x00\x00\x00\x01\xff"),
    ],
)
@pytest.mark.parametrize("before", [b"", properties_of([("a", LONG)])], ids=["alone", "behind a long one"])
def test_what_is_none_is_corrupt(raw: bytes, before: bytes) -> None:
    for _ in range(2):
        with pytest.raises(Corrupt):
            headers_of(before + raw)


@pytest.mark.parametrize(
    ("name", "value"),
    [("\0", ""), ("", "\0"), ("k" * 65_536, ""), ("", "v" * 65_536), ("\ud800", "")],
)
def test_what_is_no_mqtt_string_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError):
        user_property(name, value)
    with pytest.raises(ValueError):
        properties_of([], name + value)


def test_the_ids_are_those_of_the_codec() -> None:
    fields = {number: rule.field for number, rule in RULES.items()}
    assert [
        fields[number]
        for number in (
            *(stored.PAYLOAD_FORMAT, stored.EXPIRY, stored.CONTENT_TYPE),
            *(stored.RESPONSE_TOPIC, stored.CORRELATION, stored.USER),
        )
    ] == [
        *("payload_format", "message_expiry", "content_type"),
        *("response_topic", "correlation_data", "user_properties"),
    ]


def test_long_ones_are_read_and_not_remembered() -> None:
    long = properties_of([("a", LONG)])
    known = stored._remembered.cache_info().currsize
    assert headers_of(long) == headers_of(long) == ((("a", LONG),), None)
    assert stored._remembered.cache_info().currsize == known


@pytest.mark.parametrize(("name", "value"), [("n" * 65_535, "v"), ("n", "v" * 65_535)])
def test_the_longest_string_is_one(name: str, value: str) -> None:
    lengths = [len(text).to_bytes(2, "big") for text in (name, value)]
    expected = b"\x26" + lengths[0] + name.encode() + lengths[1] + value.encode()
    assert properties_of([(name, value)]) == expected
