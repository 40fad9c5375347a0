"""A message that is read from its row says what one made of its record does, and goes out as the same."""

import pytest

from server.codec.publish import publish_parts
from server.delivery.message import SHARED_MS, Message
from server.mqtt.forms import common_properties, parts
from shards.errors import Corrupt
from shards.fields import Record
from shards.record import CANCELLED, encode, stub
from timeline.position import position

AT_MS = 1_795_248_000_000
PLACE = position(AT_MS + 3, 77)
USUAL = [
    Record(b"a/b", b"payload", AT_MS, 1),
    Record(b"a/b", b"", AT_MS, 0, encoding=2),
    Record(b"a/b", b"payload", 0, 2),
    Record(b"a", b"x" * 20_000, AT_MS, 1, key=b"k" * 16, publisher=b"who"),
    Record(b"a/b", b"payload", AT_MS, 1, owner=b"meter"),
    Record(b"a/b", b"payload", AT_MS, 1, key=b"k" * 16, publisher=b"who", owner=b"meter"),
]
OTHERS = [
    Record(b"a/b", b"payload", AT_MS, 1, retain=True),
    Record(b"a/b", b"payload", AT_MS, 1, drop_late=True),
    Record(b"a/b", b"payload", AT_MS, 1, expires_ms=10_000),
    Record(b"a/b", b"payload", AT_MS, 1, id=99),
    Record(b"a/b", b"payload", AT_MS, 1, properties=b"\x03\x00\x01a"),
    Record(b"a/b", b"payload", AT_MS, 1, schedule=b"nightly"),
    Record(b"a/b", b"payload", AT_MS, 1, owner=b"meter", deliver_to=b"door"),
    Record(b"a/b", b"payload", AT_MS, 1, deliver_to=b"door"),
]


@pytest.mark.parametrize("shard", [-1, 0, 513])
@pytest.mark.parametrize("record", USUAL + OTHERS)
def test_it_says_the_same_as_one_of_its_record(record: Record, shard: int) -> None:
    late_ms = AT_MS + 20
    read, made = Message(PLACE, shard, None, late_ms, encode(record)), Message(PLACE, shard, record, late_ms)
    assert read.is_usual == (record in USUAL)
    for name in (
        "topic",
        "payload",
        "qos",
        "requested_ms",
        "due_ms",
        "late_ms",
        "retain",
        "body_bytes",
        "sender",
    ):
        assert getattr(read, name) == getattr(made, name), name
    assert (read.attempts_before, read.counted_before) == (made.attempts_before, made.counted_before)
    assert read.id(5) == made.id(5)
    assert read.is_expired(AT_MS + 60_000) == made.is_expired(AT_MS + 60_000)
    assert read.is_judged == made.is_judged == bool(record.owner or record.retain)
    assert read.size() >= made.size()
    assert read.record == record
    size = read.size()
    assert (read.size(), read.payload, read.body_bytes) == (size, record.payload, record.size)
    later = AT_MS + 5_000
    fresh = Message(read.position, read.shard, record, later)
    for message in (read, made):
        message.wire = {}
        message.refresh(message.as_of_ms + SHARED_MS - 1)
        assert message.wire == {}
        message.refresh(later)
        assert (message.wire, message.late_ms, message.record) == (None, fresh.late_ms, record)


@pytest.mark.parametrize("level", [3, 4, 5])
@pytest.mark.parametrize("shard", [-1, 0, 513])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("record", USUAL)
def test_the_short_way_to_its_bytes_is_the_same(record: Record, qos: int, shard: int, level: int) -> None:
    for wall_ms in (AT_MS, AT_MS + 20, AT_MS + 10**9):
        message = Message(PLACE, shard, None, wall_ms, encode(record))
        told = common_properties(message, 300) if level == 5 else b""
        wanted = publish_parts(level, record.topic, record.payload, qos, False, False, told)
        assert parts(message, level, qos, False, 300) == wanted
        assert parts(Message(PLACE, shard, record, wall_ms), level, qos, False, 300) == wanted


def test_what_cannot_be_read_is_corrupt() -> None:
    value = encode(USUAL[0])
    for size in range(len(value) - len(USUAL[0].payload)):
        with pytest.raises(Corrupt):
            Message(PLACE, 0, None, AT_MS, value[:size])


def test_a_stub_is_not_usual() -> None:
    assert not Message(PLACE, 0, None, AT_MS, stub(USUAL[0], CANCELLED, AT_MS)).is_usual
