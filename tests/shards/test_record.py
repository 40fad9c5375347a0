"""Stored messages: what goes in comes out, and what cannot be one is Corrupt and nothing else."""

import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import Corrupt
from shards.fields import Record, Retry
from shards.record import (
    CANCELLED,
    MOVED,
    decode,
    deliver_to_of,
    due_of,
    encode,
    encode_fresh,
    has_zone,
    is_moved,
    is_posted,
    is_stub,
    likeness,
    names_of,
    ordering_key_of,
    owner_of,
    schedule_name,
    sender_of,
    stub,
    topic_of,
    usual,
    with_id,
)

USUAL = ("topic", "payload", "due_ms", "qos", "key", "publisher", "owner", "encoding", "ordering_key")


def parts_of(record: Record, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


times = st.integers(0, (1 << 48) - 1)
records = st.builds(
    Record,
    topic=st.binary(max_size=30),
    payload=st.binary(max_size=40),
    due_ms=times,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    drop_late=st.booleans(),
    expires_ms=times,
    id=st.integers(0, (1 << 128) - 1),
    key=st.one_of(st.just(b""), st.binary(min_size=16, max_size=16)),
    publisher=st.binary(max_size=255),
    properties=st.binary(max_size=300),
    encoding=st.integers(0, 2),
    zone=st.binary(max_size=40),
    schedule=st.binary(max_size=128),
    owner=st.one_of(st.just(b""), st.binary(max_size=255)),
    ordering_key=st.one_of(st.just(b""), st.binary(max_size=128)),
)
posted = st.builds(
    lambda record, deliver_to: msgspec.structs.replace(record, deliver_to=deliver_to),
    records,
    st.binary(max_size=300),
)
FULL = Record(
    b"a/b", b"payload", 5, 2, True, True, 7, 9, b"k" * 16, b"who", b"properties", 2, b"Europe/Bucharest"
)
POSTED = msgspec.structs.replace(FULL, owner=b"meter-7", deliver_to=b"https://example.com/")
OWNED = msgspec.structs.replace(FULL, owner=b"meter-7")
KEYED = msgspec.structs.replace(OWNED, ordering_key=b"customer-17")


@pytest.mark.long
@given(records)
def test_a_record_comes_back(record: Record) -> None:
    value = encode(record)
    assert decode(value) == record
    assert topic_of(value) == record.topic
    assert owner_of(value) == record.owner
    assert names_of(value) == (record.id.to_bytes(16, "big") if record.id else b"", record.key)
    assert due_of(value) == record.due_ms
    assert not is_stub(value)
    assert (is_posted(value), deliver_to_of(value)) == (False, b"")


def test_tries_are_not_in_the_bytes() -> None:
    assert decode(encode(msgspec.structs.replace(FULL, retry=Retry(2, 1)))) == FULL


@given(posted)
def test_where_it_is_delivered_to_comes_back(record: Record) -> None:
    value = encode(record)
    assert decode(value) == record
    assert topic_of(value) == record.topic
    assert owner_of(value) == record.owner
    assert is_posted(value) == bool(record.deliver_to)
    assert deliver_to_of(value) == record.deliver_to
    assert decode(with_id(value, 7, 9)).deliver_to == record.deliver_to
    assert decode(stub(record, MOVED, 5)).deliver_to == record.deliver_to


usuals = st.builds(
    Record,
    topic=st.binary(max_size=30),
    payload=st.binary(max_size=40),
    due_ms=times,
    qos=st.integers(0, 2),
    key=st.one_of(st.just(b""), st.binary(min_size=16, max_size=16)),
    publisher=st.binary(max_size=255),
    owner=st.binary(max_size=255),
    encoding=st.integers(0, 2),
    ordering_key=st.binary(max_size=128),
)


@given(st.one_of(usuals, records, posted))
def test_the_usual_message_is_told_from_others(record: Record) -> None:
    """What is said of it is what `decode` says, and that it has nothing more."""
    value = encode(record)
    said = usual(value)
    assert (said is None) == (record != Record(**parts_of(record, *USUAL)))
    if said is not None:
        qos, due_ms, start, end = said
        assert (value[start:end], value[end:]) == (record.topic, record.payload)
        assert (due_ms, qos) == (record.due_ms, record.qos)
        assert sender_of(value) == (record.owner, record.publisher)
        assert ordering_key_of(value) == record.ordering_key


@given(usuals, usuals)
def test_alike_are_those_that_differ_in_due_key_and_payload_alone(one: Record, other: Record) -> None:
    def alike(record: Record) -> bytes:
        value = encode(record)
        return likeness(value, len(value) - len(record.payload))

    same = msgspec.structs.replace(one, due_ms=other.due_ms, payload=other.payload)
    if bool(one.key) == bool(other.key):
        same = msgspec.structs.replace(same, key=other.key)
    assert alike(one) == alike(same)
    assert (alike(one) == alike(other)) == (same == other)


@given(usuals)
def test_a_usual_message_that_is_cut_is_none(record: Record) -> None:
    value = encode(record)
    for size in range(len(value) - len(record.payload)):
        assert usual(value[:size]) is None


@given(records)
def test_only_what_has_an_owner_or_ordering_key_is_of_version_2(record: Record) -> None:
    """Any other is the same, byte for byte, as before there were these."""
    order = record.ordering_key
    record = msgspec.structs.replace(record, ordering_key=b"")
    value, bare = encode(record), encode(msgspec.structs.replace(record, owner=b""))
    extension = struct.pack(">HHB", 3 + len(record.owner), 1, len(record.owner)) + record.owner
    assert bare[0] == 1
    assert value == (b"\x02" + bare[1:13] + extension + bare[13:] if record.owner else bare)
    if order:
        extension = struct.pack(">HHB", 3 + len(order), 8, len(order)) + order
        keyed = encode(msgspec.structs.replace(record, owner=b"", ordering_key=order))
        assert keyed == b"\x02" + bare[1:13] + extension + bare[13:]


@given(records)
def test_the_short_way_of_the_usual_message_is_the_same(record: Record) -> None:
    parts = parts_of(record, *USUAL, "properties")
    assert encode(Record(**parts)) == encode_fresh(**parts)


def test_the_shortest_record_is_thirteen_bytes_and_its_text() -> None:
    value = encode(Record(b"ab", b"xyz", 0x0102, 1))
    assert value == bytes.fromhex("01 0001 0002 0000000000000102") + b"abxyz"


@given(records, st.sampled_from((CANCELLED, MOVED)), times)
def test_a_stub_keeps_all_but_the_load(record: Record, kind: int, when_ms: int) -> None:
    left = decode(stub(record, kind, when_ms))
    assert is_stub(stub(record, kind, when_ms))
    assert (left.topic, left.due_ms, left.qos, left.key, left.id, left.owner) == (
        *(record.topic, record.due_ms, record.qos, record.key, record.id, record.owner),
    )
    assert (left.payload, left.properties, left.stub, left.when_ms) == (b"", b"", kind, when_ms)
    assert topic_of(stub(record, kind, when_ms)) == record.topic


@given(records, st.integers(1, (1 << 128) - 1), times)
def test_a_moved_message_knows_its_id(record: Record, message: int, due_ms: int) -> None:
    moved = decode(with_id(encode(record), message, due_ms))
    assert (moved.id, moved.due_ms) == (message, due_ms)
    assert (moved.topic, moved.payload, moved.key) == (record.topic, record.payload, record.key)
    assert (moved.owner, moved.ordering_key) == (record.owner, record.ordering_key)


@pytest.mark.parametrize("record", [Record(b"a/b", b"", 5), FULL, OWNED, KEYED])
def test_every_cut_is_corrupt_or_a_shorter_payload(record: Record) -> None:
    value = encode(record)
    head = len(value) - len(record.payload)
    for size in range(len(value)):
        if size < head:
            with pytest.raises(Corrupt):
                decode(value[:size])
        else:
            assert decode(value[:size]).payload == record.payload[: size - head]


@pytest.mark.parametrize("record", [Record(b"a/b", b"pay", 5), FULL, OWNED, KEYED, POSTED])
def test_every_wrong_byte_is_corrupt_or_another_record(record: Record) -> None:
    value = bytearray(encode(record))
    for at in range(len(value)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(value)
            damaged[at] ^= flip
            for reads in (decode, topic_of, names_of, deliver_to_of, usual):
                with suppress(Corrupt):
                    reads(bytes(damaged))


def test_another_version_is_corrupt() -> None:
    for reads in (decode, topic_of, names_of):
        with pytest.raises(Corrupt, match="version 3"):
            reads(b"\x03" + encode(OWNED)[1:])


def test_an_extension_that_is_not_known_is_corrupt_but_for_who_looks_for_the_topic() -> None:
    """Of a later program: its flags, and what it has written behind the owner."""
    value = encode(OWNED)
    further = value[:13] + struct.pack(">HH", 3 + 7 + 4, 17) + value[17:25] + b"more" + value[25:]
    with pytest.raises(Corrupt, match="further flags 0x0011"):
        decode(further)
    assert topic_of(further) == OWNED.topic
    assert names_of(further) == names_of(value)
    longer = value[:13] + struct.pack(">HH", 3 + 7 + 4, 1) + value[17:25] + b"more" + value[25:]
    with pytest.raises(Corrupt, match="does not end"):
        decode(longer)
    assert OWNED.owner == value[18:25]
    between = value[:13] + struct.pack(">HH", 3 + 7 + 13, 3) + value[17:25] + bytes(13) + value[25:]
    with pytest.raises(Corrupt, match="further flags 0x0003"):
        decode(between)  # a retry on the timeline, which no release wrote
    without = value[:13] + struct.pack(">HHB", 3, 1, 0) + value[25:]
    with pytest.raises(Corrupt, match="does not end"):
        decode(without)


@pytest.mark.parametrize("record", [Record(b"a", b"x"), FULL])
@pytest.mark.parametrize("flags", [0x0003, 0x0600])
def test_a_qos_or_an_encoding_that_cannot_be_is_corrupt(record: Record, flags: int) -> None:
    value = bytearray(encode(record))
    value[1] |= flags >> 8
    value[2] |= flags & 0xFF
    with pytest.raises(Corrupt, match="cannot be"):
        decode(bytes(value))


def test_what_is_too_short_to_be_a_record_is_said_to_be_so() -> None:
    for size in range(13):
        value = b"\xff" * size
        with pytest.raises(Corrupt, match=f"{size} bytes"):
            names_of(value)
        assert not has_zone(value)
    assert not is_moved(b"")
    assert not is_moved(b"\x01")
    with pytest.raises(Corrupt, match="no name"):
        schedule_name(Record(b"a", b"", schedule=b"\xff"))
