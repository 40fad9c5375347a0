"""The stream decoder: chunks, limits, and that its short cuts agree with `parse`; publishes encoded once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.codec import wire
from server.codec.errors import MalformedPacket, MqttError, PacketTooLarge, ProtocolViolation
from server.codec.packets import Ack, AckRun, Connect, Disconnect, Packet, Pingreq, Properties, Publish
from server.codec.parse import check_first, parse
from server.codec.properties import encode_properties
from server.codec.publish import (
    BYTES_AT_ONCE,
    CONNECT_BYTES,
    RUN_COST,
    RUN_MAX,
    Decoder,
    ack,
    publish_parts,
    with_dup,
)
from server.codec.reasons import Reason
from shards.properties import user_property
from tests.server.codec import samples
from tests.server.codec.samples import LIMIT, SAMPLES, Role
from tests.support.encode import encode

ALL = [(role, level, encode(packet, level)) for role, level, packet in SAMPLES]
ALL_IDS = [f"{role}-{level}-{type(packet).__name__}" for role, level, packet in SAMPLES]


def outcome(role: Role, level: int, raw: bytes, *chunks: bytes) -> tuple[list[Packet], type | None]:
    """Packets that came out, and the kind of error that ended it."""
    decoder = samples.decoder(role, level, raw[0])
    found: list[Packet] = []
    try:
        for chunk in chunks or (raw,):
            found += decoder.feed(chunk)
    except MqttError as error:
        return found + decoder.unreturned, type(error)
    return found, None


def slow_frame(raw: bytes, at: int, level: int) -> tuple[int, int] | None:
    """Where the body of the packet at `at` starts and ends, in simple words; None if that cannot be told."""
    digits = []
    for byte in raw[at + 1 : at + 5]:
        digits.append(byte & 127)
        if byte < 128:
            break
    else:
        if len(digits) == 4:
            raise MalformedPacket("?", "remaining length", 1, "is too long")
        return None
    if level == 5 and len(digits) > 1 and not digits[-1]:
        raise MalformedPacket("?", "remaining length", 1, "is not in the shortest form")
    body = at + 1 + len(digits)
    return body, body + sum(digit << 7 * place for place, digit in enumerate(digits))


def slow_outcome(role: Role, level: int, raw: bytes) -> tuple[list[Packet], type | None]:
    """The same by `parse` alone."""
    level = samples.decoder(role, level, raw[0]).level
    found: list[Packet] = []
    at = 0
    try:
        while at < len(raw) and (frame := slow_frame(raw, at, level)):
            body, stop = frame
            if stop - at > (LIMIT if level else CONNECT_BYTES):
                return found, PacketTooLarge
            reader = wire.Reader(raw, at, body, min(stop, len(raw)), level, role == "client")
            if stop > len(raw):
                check_first(reader)
                break
            packet = parse(reader)
            if type(packet) is Connect:
                level = packet.level
                slow_frame(raw, at, level)
            found.append(packet)
            at = stop
    except MqttError as error:
        return found, type(error)
    return found, None


@pytest.mark.parametrize(("role", "level", "raw"), ALL, ids=ALL_IDS)
def test_every_truncation_waits(role: Role, level: int, raw: bytes) -> None:
    for size in range(len(raw)):
        assert samples.decoder(role, level, raw[0]).feed(raw[:size]) == []


@pytest.mark.parametrize(("role", "level", "raw"), ALL, ids=ALL_IDS)
def test_every_corrupted_byte_is_a_packet_or_an_error(role: Role, level: int, raw: bytes) -> None:
    """And the hot path says of it what `parse` says."""
    for at, byte in enumerate(raw):
        values = {byte ^ 1 << bit for bit in range(8)} | {0, 255, 127, 128, 0x26, 0x2B, 0x23, 2}
        for value in values:
            bad = raw[:at] + bytes((value,)) + raw[at + 1 :]
            assert outcome(role, level, bad) == slow_outcome(role, level, bad), bad.hex()


@pytest.mark.parametrize(("role", "level", "raw"), ALL, ids=ALL_IDS)
def test_every_shortened_body_is_an_error_or_a_packet(role: Role, level: int, raw: bytes) -> None:
    """The remaining length says less than is there: the rest of the bytes belong to another packet."""
    if raw[1] > 127:
        return
    for length in range(raw[1]):
        bad = raw[:1] + bytes((length,)) + raw[2 : 2 + length]
        assert outcome(role, level, bad) == slow_outcome(role, level, bad)
        assert outcome(role, level, bad + b"\xc0\x00")[1] == slow_outcome(role, level, bad + b"\xc0\x00")[1]


@given(st.binary(min_size=1, max_size=60), st.sampled_from([0, 3, 4, 5]))
def test_noise(noise: bytes, level: int) -> None:
    assert outcome("server", level, noise) == slow_outcome("server", level, noise)


@settings(max_examples=60)
@given(st.data())
def test_noise_behind_a_publish_header(data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=60))
    first = data.draw(st.integers(0x30, 0x3F))
    level = data.draw(st.sampled_from([4, 5]))
    raw = bytes((first, len(body))) + body
    assert outcome("server", level, raw) == slow_outcome("server", level, raw)


@settings(max_examples=60)
@given(st.data())
def test_noise_as_properties(data: st.DataObject) -> None:
    """Sections made of plausible pieces, some of them broken."""
    pieces = [
        b"\x26\x00\x01a\x00\x01b",
        b"\x26\x00\x01\x00\x00\x00",
        b"\x02\x00\x00\x00\x09",
        b"\x23\x00\x01",
    ]
    pieces += [
        b"\x23\x00\x00",
        b"\x26\x00\x01\xff\x00\x00",
        b"\x03\x00\x01c",
        b"\x26\x00\x09a",
        b"\x02\x00",
        b"\x26",
    ]
    section = b"".join(data.draw(st.lists(st.sampled_from(pieces), max_size=5)))
    claimed = len(section) + data.draw(st.sampled_from([0, 0, 0, -1, 1, 3]))
    padded = data.draw(st.booleans())
    size = bytes((claimed & 127 | 128, 0)) if padded else wire.varint(max(claimed, 0))
    body = b"\x00\x01t\x00\x07" + size + section + data.draw(st.binary(max_size=4))
    raw = b"\x32" + wire.varint(len(body)) + body
    assert outcome("server", 5, raw) == slow_outcome("server", 5, raw)
    assert outcome("server", 5, raw + b"\xc0\x00" * 4) == slow_outcome("server", 5, raw + b"\xc0\x00" * 4)


@pytest.mark.long
@settings(max_examples=60)
@given(st.data())
def test_chunking_does_not_matter(data: st.DataObject) -> None:
    level = data.draw(st.sampled_from([3, 4, 5]))
    packets = [
        data.draw(samples.connects(level)),
        *data.draw(st.lists(samples.from_client(level), max_size=4)),
    ]
    raw = b"".join(encode(packet, level) for packet in packets) + data.draw(st.binary(max_size=5))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    chunks = [raw[low:high] for low, high in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    whole = outcome("server", 0, raw)
    assert outcome("server", 0, raw, *chunks) == whole
    assert outcome("server", 0, raw, *[bytes((byte,)) for byte in raw]) == whole


def test_a_chunk_may_begin_with_connect_and_go_on() -> None:
    packets: list[Packet] = [
        Connect(5, "c"),
        Publish(b"a", b"1", 1, packet_id=1, properties=Properties(user_properties=(("k", "v"),))),
        Pingreq(),
    ]
    assert Decoder(LIMIT).feed(b"".join(encode(packet, 5) for packet in packets)) == packets


def test_good_packets_before_a_bad_one_are_kept_and_the_rest_is_ignored() -> None:
    decoder = Decoder(LIMIT, 4)
    with pytest.raises(MalformedPacket) as caught:
        decoder.feed(b"\x40\x02\x00\x01" + b"\x40\x02\x00\x02" + b"\x40\x02\x00\x00" + b"\xc0\x00")
    assert decoder.unreturned == [Ack(wire.PUBACK, 1), Ack(wire.PUBACK, 2)]
    assert caught.value.reason == Reason.MALFORMED_PACKET
    assert str(caught.value) == "PUBACK: packet id at byte 2 is 0"
    assert decoder.feed(b"\xc0\x00") == []


def test_a_large_packet_in_small_chunks() -> None:
    packet = Publish(b"big", bytes(200_000), 1, packet_id=5)
    raw = encode(packet, 4) + b"\xc0\x00"
    decoder = Decoder(LIMIT, 4)
    found: list[Packet] = []
    for at in range(0, len(raw), 7):
        found += decoder.feed(raw[at : at + 7])
    assert found == [packet, Pingreq()]


@pytest.mark.parametrize("limit", [127, 128, 129, 130])
def test_too_large_is_known_from_the_length(limit: int) -> None:
    """129 bytes: 2 of header, 3 of topic, 124 of payload; the decoder complains when it has the 2."""
    raw = encode(Publish(b"t", b"x" * 124), 4) + encode(Publish(b"t", b"x" * 124), 4)
    assert len(raw) == 2 * 129
    if limit >= 129:
        assert len(Decoder(limit, 4).feed(raw)) == 2
    else:
        with pytest.raises(PacketTooLarge, match="PUBLISH: remaining length at byte 1 makes 129") as caught:
            Decoder(limit, 4).feed(raw[:2])
        assert caught.value.reason == 0x95
        with pytest.raises(PacketTooLarge):
            Decoder(limit, 4).feed(raw)


def test_a_bad_first_byte_is_not_waited_for() -> None:
    with pytest.raises(ProtocolViolation, match="before CONNECT"):
        Decoder(LIMIT).feed(b"\x30\x7f")


def test_roles() -> None:
    with pytest.raises(ValueError, match="told its level"):
        Decoder(LIMIT, role="client")
    with pytest.raises(ValueError, match="4 at least"):
        Decoder(3)
    with pytest.raises(ProtocolViolation, match="second time"):
        Decoder(LIMIT, 4).feed(encode(Connect(4, "c"), 4))


def test_longer_length_forms_than_needed() -> None:
    """Allowed up to 3.1.1, forbidden by MQTT 5, also in the CONNECT that says that it is 5."""
    assert Decoder(LIMIT, 4).feed(b"\xc0\x80\x00" + b"\x40\x82\x80\x80\x00\x00\x01") == [
        Pingreq(),
        Ack(wire.PUBACK, 1),
    ]
    with pytest.raises(MalformedPacket, match="PINGREQ: remaining length at byte 1 is not in the short"):
        Decoder(LIMIT, 5).feed(b"\xc0\x80\x00")
    publish = b"\x30\x85\x00\x00\x01t\x00x"
    assert Decoder(LIMIT, 4).feed(publish) == [Publish(b"t", b"\0x")]
    with pytest.raises(MalformedPacket, match="PUBLISH: remaining length"):
        Decoder(LIMIT, 5).feed(publish)
    for level in (3, 4, 5):
        raw = encode(Connect(level, "c"), level)
        padded = raw[:1] + bytes((raw[1] | 128, 0)) + raw[2:]
        if level < 5:
            assert len(Decoder(LIMIT).feed(padded)) == 1
        else:
            with pytest.raises(MalformedPacket, match="shortest form"):
                Decoder(LIMIT).feed(padded)


def test_old_clients_may_set_dup_on_more() -> None:
    """3.1 allows DUP on PUBREL, SUBSCRIBE and UNSUBSCRIBE."""
    assert Decoder(LIMIT, 3).feed(b"\x6a\x02\x00\x01") == [Ack(wire.PUBREL, 1)]
    with pytest.raises(MalformedPacket):
        Decoder(LIMIT, 4).feed(b"\x6a\x02\x00\x01")


@settings(max_examples=60)
@given(st.data())
def test_parts_are_the_packet(data: st.DataObject) -> None:
    level = data.draw(st.sampled_from([3, 4, 5]))
    packet = data.draw(samples.publishes(level, "server"))
    section = encode_properties(packet.properties)
    head, tail = publish_parts(
        level, packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, section
    )
    raw = head + (packet.packet_id.to_bytes(2) if packet.qos else b"") + tail
    assert Decoder(LIMIT, level, "client").feed(raw) == [packet]


@pytest.mark.parametrize("size", [0, 100, 121, 122, 123, 16_376, 16_377, 16_378, 2_097_143, 2_097_145])
@pytest.mark.parametrize("level", [4, 5])
def test_parts_of_any_length(size: int, level: int) -> None:
    head, tail = publish_parts(level, b"t", bytes(size), 1, False, False)
    assert Decoder(1 << 24, level, "client").feed(head + b"\x01\x00" + tail) == [
        Publish(b"t", bytes(size), 1, packet_id=256)
    ]


def test_parts_refuse_what_does_not_fit() -> None:
    assert publish_parts(5, b"t" * 65_535, b"", 0, False, False, user_property("k", "v"))
    with pytest.raises(ValueError, match="65,535"):
        publish_parts(5, b"t" * 65_536, b"", 0, False, False)


def test_sending_again() -> None:
    head, tail = publish_parts(4, b"t", b"p", 1, True, False)
    again = Decoder(LIMIT, 4, "client").feed(with_dup(head) + b"\x00\x09" + tail)
    assert again == [Publish(b"t", b"p", 1, True, True, 9)]


def test_ack_with_properties() -> None:
    raw = ack(5, wire.PUBACK, 3, 0x97, user_property("fasti-id", "0" * 32))
    expected = Ack(wire.PUBACK, 3, 0x97, Properties(user_properties=(("fasti-id", "0" * 32),)))
    assert Decoder(LIMIT, 5, "client").feed(raw) == [expected]
    assert Decoder(LIMIT, 5, "client").feed(b"\x40\x03\x00\x01\x00") == [Ack(wire.PUBACK, 1)]
    assert Decoder(LIMIT, 5, "client").feed(b"\x40\x04\x00\x01\x00\x00") == [Ack(wire.PUBACK, 1)]


def test_disconnect_short_forms() -> None:
    for raw in (b"\xe0\x00", b"\xe0\x01\x00", b"\xe0\x02\x00\x00"):
        assert Decoder(LIMIT, 5).feed(raw) == [Disconnect()]


def test_connect_comes_before_anybody_has_told_a_limit() -> None:
    """It has a bound of its own, and what follows the server's."""
    connect = Connect(4, "c" * 1_000)
    decoder = Decoder(16)
    assert decoder.feed(encode(connect, 4)) == [connect]
    assert decoder.feed(encode(Publish(b"t", b"x" * 11), 4)) == [Publish(b"t", b"x" * 11)]
    with pytest.raises(PacketTooLarge, match="makes 17 bytes, 16 are allowed"):
        decoder.feed(encode(Publish(b"t", b"x" * 12), 4))
    for begun, spoken in ((b"", 0), (b"\0\4MQTT\5", 5), (b"\0\4MQTT\4", 0)):
        with pytest.raises(PacketTooLarge, match="196608 are allowed") as caught:
            Decoder(1 << 20).feed(b"\x10\xfd\xff\x0b" + begun)
        assert (caught.value.reason, caught.value.spoken) == (0x95, spoken)


_ANY_ACK = st.one_of(
    st.lists(st.integers(1, 65_535), min_size=1, max_size=40).map(
        lambda ids: b"".join(ack(5, wire.PUBACK, one) for one in ids)
    ),
    st.integers(1, 65_535).map(lambda one: ack(5, wire.PUBREC, one)),
    st.integers(1, 65_535).map(lambda one: ack(5, wire.PUBACK, one, 0x10)),
    st.sampled_from([encode(Publish(b"a/b", b"x" * 9, 1, packet_id=7), 5), encode(Pingreq(), 5)]),
    st.just(b"\x40\x02\x00\x00"),
)


def _each(packets: list[Packet]) -> list[Packet]:
    """Runs of acks as the acks that they stand for."""
    found: list[Packet] = []
    for packet in packets:
        if isinstance(packet, AckRun):
            found += [Ack(wire.PUBACK, one) for one in packet.packet_ids]
        else:
            found.append(packet)
    return found


def _read(raw: bytes, cuts: list[int], count_max: int, *, gathers: bool) -> tuple[list[Packet], bool]:
    decoder = Decoder(LIMIT, 5, gathers=gathers)
    found: list[Packet] = []
    try:
        for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            found += decoder.feed(raw[start:stop], count_max)
        while decoder.is_behind:
            found += decoder.feed(b"", count_max)
    except MqttError:
        return found + decoder.unreturned, True
    return found, False


@pytest.mark.long
@settings(max_examples=100)
@given(st.lists(_ANY_ACK, min_size=1, max_size=12), st.data())
def test_gathered_acks_are_the_acks(parts: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    count_max = data.draw(st.integers(1, 9))
    gathered, has_failed = _read(raw, cuts, count_max, gathers=True)
    assert (_each(gathered), has_failed) == _read(raw, cuts, 100, gathers=False)


def test_acks_of_one_chunk_are_gathered_but_not_all_at_once() -> None:
    count = 3 * RUN_MAX
    raw = b"".join(ack(5, wire.PUBACK, one + 1) for one in range(count))
    found = Decoder(LIMIT, 5, gathers=True).feed(raw)
    assert [len(packet.packet_ids) for packet in found if isinstance(packet, AckRun)] == [RUN_MAX] * 3
    decoder = Decoder(LIMIT, 5, gathers=True)
    at_once = len(_each(decoder.feed(raw * 30, 128)))
    assert BYTES_AT_ONCE // RUN_COST <= at_once <= BYTES_AT_ONCE // RUN_COST + RUN_MAX
    assert decoder.is_behind
