"""Every packet of every level comes back as it went out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.codec import wire
from server.codec.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
    Unsubscribe,
)
from server.codec.publish import Decoder
from tests.server.codec import samples
from tests.server.codec.samples import LIMIT, SAMPLES, Role, sample_id
from tests.support.encode import encode


@pytest.mark.long
@pytest.mark.parametrize("level", [3, 4, 5])
@settings(max_examples=60)
@given(data=st.data())
def test_connect_round_trip(level: int, data: st.DataObject) -> None:
    packet = data.draw(samples.connects(level))
    decoder = Decoder(LIMIT)
    assert decoder.feed(encode(packet, 0)) == [packet]
    assert decoder.level == level


@pytest.mark.long
@pytest.mark.parametrize("level", [3, 4, 5])
@settings(max_examples=60)
@given(data=st.data())
def test_round_trip_from_client(level: int, data: st.DataObject) -> None:
    packets = data.draw(st.lists(samples.from_client(level), min_size=1, max_size=4))
    raw = b"".join(encode(packet, level) for packet in packets)
    assert Decoder(LIMIT, level).feed(raw) == packets


@pytest.mark.long
@pytest.mark.parametrize("level", [3, 4, 5])
@settings(max_examples=60)
@given(data=st.data())
def test_round_trip_from_server(level: int, data: st.DataObject) -> None:
    packets = data.draw(st.lists(samples.from_server(level), min_size=1, max_size=4))
    raw = b"".join(encode(packet, level) for packet in packets)
    assert Decoder(LIMIT, level, "client").feed(raw) == packets


@pytest.mark.parametrize(("role", "level", "packet"), SAMPLES, ids=sample_id)
def test_samples_round_trip(role: Role, level: int, packet: Packet) -> None:
    raw = encode(packet, level)
    assert samples.decoder(role, level, raw[0]).feed(raw) == [packet]


@pytest.mark.parametrize(
    ("level", "packet", "raw"),
    [
        (3, Connect(3, "a"), "100f 0006 4d5149736470 03 02 0000 0001 61"),
        (4, Connect(4, "a", keep_alive=60), "100d 0004 4d515454 04 02 003c 0001 61"),
        (5, Connect(5, "a", clean_start=False), "100e 0004 4d515454 05 00 0000 00 0001 61"),
        (4, Connack(True), "2002 01 00"),
        (3, Connack(True), "2002 00 00"),
        (4, Connack(False, 0x87), "2002 00 05"),
        (4, Connack(False, 0x97), "2002 00 03"),
        (5, Connack(False, 0x87), "2003 00 87 00"),
        (4, Publish(b"a/b", b"hi"), "3007 0003 612f62 6869"),
        (5, Publish(b"a/b", b"hi", 1, True, True, 10), "3b0a 0003 612f62 000a 00 6869"),
        (4, Publish(b"a", b"", properties=Properties(topic_alias=1)), "3003 0001 61"),
        (4, Ack(wire.PUBACK, 1), "4002 0001"),
        (5, Ack(wire.PUBREC, 1), "5002 0001"),
        (4, Ack(wire.PUBREL, 1), "6202 0001"),
        (5, Ack(wire.PUBCOMP, 1, 0x92), "7003 0001 92"),
        (4, Ack(wire.PUBACK, 1, 0x10), "4002 0001"),
        (5, Ack(wire.PUBACK, 1, 0, Properties(reason_string="x")), "4008 0001 00 04 1f 0001 78"),
        (4, Subscribe(1, (("a", SubscribeOptions(1, True)),)), "8206 0001 0001 61 01"),
        (5, Subscribe(1, (("a", SubscribeOptions(1, True, True, 2)),)), "8207 0001 00 0001 61 2d"),
        (4, Suback(1, (1, 0x8F)), "9004 0001 01 80"),
        (4, Unsubscribe(1, ("a",)), "a205 0001 0001 61"),
        (4, Unsuback(1, (0,)), "b002 0001"),
        (4, Disconnect(0x8E), "e000"),
        (5, Disconnect(), "e000"),
        (5, Disconnect(0x8E), "e001 8e"),
        (5, Auth(), "f000"),
    ],
    ids=sample_id,
)
def test_bytes(level: int, packet: Packet, raw: str) -> None:
    assert encode(packet, level) == bytes.fromhex(raw)


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(ValueError, match="no AUTH at level 4"):
        encode(Auth(), 4)
    with pytest.raises(ValueError, match="cannot carry reason 0x87"):
        encode(Ack(wire.PUBACK, 1, 0x87), 4)
    with pytest.raises(ValueError, match="U\\+0000"):
        encode(Unsubscribe(1, ("a\0",)), 4)
    with pytest.raises(ValueError, match="surrogates"):
        encode(Unsubscribe(1, ("\ud800",)), 4)
    with pytest.raises(ValueError, match="65,535"):
        encode(Unsubscribe(1, ("a" * 65_536,)), 4)
    with pytest.raises(ValueError, match="variable byte integer"):
        wire.varint(wire.VARINT_MAX + 1)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_152, "80808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_varint(value: int, raw: str) -> None:
    assert wire.varint(value) == bytes.fromhex(raw)
    frame = b"\x30" + bytes.fromhex(raw)
    assert wire.Reader(frame, 0, 1, len(frame), 5, False).varint("x") == value
