"""What is tried: everything that reads bytes from outside or from the disk. Each gives a value or raises the
error that its docstring names; anything else, and more steps than it may take, is a failure.

A seed is a good input. What a run has found besides is in corpus/, a file a target, a line an input in hex.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import msgspec
from aiohttp.http_parser import HttpRequestParser

from server.codec.errors import MqttError
from server.codec.packets import Connect, Packet, Publish, Will
from server.codec.publish import Decoder
from server.delivery.session_rows import subscription_of
from server.http.cursors import Cursors
from server.http.usual import read_request
from server.http.values.batch_body import Reading
from server.http.values.bodies import UNREADABLE, FieldError, RequestError
from server.http.values.drafts import draft_of
from server.http.values.message_body import ParsedMessage
from server.http.values.reader import Item, Reader
from server.http.values.schedule_body import ScheduleRequest, record_of, timing_of
from server.settings.config import Config, Limits
from shards import keys, tables
from shards.errors import Corrupt
from shards.fields import Record
from shards.jobs import JobRow, PieceRow, SourceRow
from shards.properties import headers_of, properties_of
from shards.record import (
    CANCELLED,
    ENCODINGS,
    decode,
    deliver_to_of,
    due_of,
    encode,
    has_zone,
    is_moved,
    is_stub,
    names_of,
    owner_of,
    schedule_name,
    topic_of,
)
from shards.schedules import schedule_of
from tests.server.codec.samples import SAMPLES
from tests.support.encode import encode as encode_packet
from tests.support.reading import parse_one
from tests.support.rig import Peer, Rig, config
from timeline.position import BadId, parse_id

from .fuzzer import Target

NOW_MS = 1_795_248_000_000
LIMITS = Limits()
PACKET_MAX = 2_048
HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


# -- MQTT


def client_packets(level: int) -> list[bytes]:
    """What clients send, one sample each."""
    return [encode_packet(packet, level) for role, of, packet in SAMPLES if role == "server" and of == level]


def decoded(data: bytes) -> None:
    """The first byte: level of the connection, and how it is cut. In pieces the same comes out as at once."""
    level, piece = (0, 3, 4, 5)[data[0] & 3] if data else 0, 1 + (data[0] >> 2 if data else 0)
    whole = _packets(level, [data[1:]])
    assert _packets(level, [data[at : at + piece] for at in range(1, len(data), piece)]) == whole


def _packets(level: int, pieces: list[bytes]) -> tuple[list[Packet], type | None]:
    decoder, found = Decoder(PACKET_MAX, level, users_max=20), []
    for piece in pieces:
        try:
            found += decoder.feed(piece)
        except MqttError as error:
            return found + decoder.unreturned, type(error)
        assert decoder.kept_bytes <= PACKET_MAX or not level
    return found, None


class Sender(Peer):
    """A connection that sends bytes, and reads what comes in the level that was agreed."""

    def deliver(self) -> bool:
        if self.connection.outbox.level and self.connection.outbox.level != self.level:
            self.level = self.connection.outbox.level
            self.decoder = Decoder(1 << 28, self.level, "client")
        if self.connection.outbox.level:
            return super().deliver()
        self.connection.take_output()  # the refusal of a CONNECT that cannot be read, in whatever form
        if self.connection.outbox.is_closed and not self.is_closed:
            self.is_closed = True
            self.connection.lost()
            return True
        return False


@contextmanager
def no_errors_logged() -> Iterator[None]:
    """What is caught somewhere and logged is a failure too."""

    class Loud(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]

    handler, root = Loud(logging.ERROR), logging.getLogger()
    raising, logging.raiseExceptions = logging.raiseExceptions, True
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        logging.raiseExceptions = raising


def connection(data: bytes) -> None:
    """A stream of one client, in pieces. The others do not notice, and the server goes on."""
    piece = 1 + data[0] if data else 1
    with no_errors_logged():
        rig = Rig(SMALL)
        other = rig.connected(OTHER, expiry=3_600)
        other.subscribe("other/#", qos=1)
        sender = Sender(rig, 5)
        for at in range(1, len(data), piece):
            sender.send_bytes(data[at : at + piece])
        rig.pass_ms(2_000)
        sender.drop()
        goes_on(rig, other)


def goes_on(rig: Rig, other: Peer) -> None:
    """What a bystander is sent arrives, behind all that has come for it before, also after a crash."""
    other.inbox.clear()
    other.publish1("other/1", "still here")
    rig.crash()
    rig.pump()
    assert "still here" in rig.lasting(OTHER).take_all()


OTHER = "a bystander"

SMALL = replace(
    config(maximum_packet_size=PACKET_MAX, user_properties=20, subscriptions_per_session=20),
    sessions=replace(Config().sessions, max_in_flight=8),
)


def streams() -> Iterator[bytes]:
    """Conversations: CONNECT and what a client may send behind it."""
    for level in (4, 5):
        packets = client_packets(level)
        will = Will(b"other/will", b"gone", 1, False, None)
        opening = encode_packet(Connect(level, "c", clean_start=False, keep_alive=30, will=will), level)
        for packet in packets:
            yield b"\xff" + opening + packet
        yield b"\x07" + opening + b"".join(packets[:12])
        publish = encode_packet(Publish(b"other/x", b"hello", 1, False, False, 7, None), level)
        subscribe = next((raw for raw in packets if raw[0] == 0x82), b"")
        yield b"\x3f" + opening + subscribe + publish * 3 + b"\x40\x02\x00\x01" + b"\xe0\x00"


# -- HTTP


def front(data: bytes) -> None:
    """What the front takes for a request is the same request for aiohttp's parser."""
    request = read_request(data)
    if request is None:
        return
    parser = HttpRequestParser(Mock(), Mock(), 1 << 16, max_line_size=8_190, max_field_size=8_190)
    messages, is_upgraded, _ = parser.feed_data(data[: request.end])
    assert len(messages) == 1, messages
    assert not is_upgraded
    message, payload = messages[0]
    assert (message.method, message.path, tuple(message.version)) == ("POST", "/v1/messages", (1, 1))
    assert not any((message.should_close, message.chunked, message.compression, message.upgrade))
    assert message.headers.getall("Content-Length") == [message.headers["Content-Length"]], "said twice"
    assert int(message.headers["Content-Length"]) == request.end - request.start
    assert message.headers.get("Idempotency-Key") == request.key
    if request.end <= len(data):
        body = b"".join(bytes(chunk) for chunk in payload._buffer) if request.end > request.start else b""
        assert body == data[request.start : request.end]
        _one(body, request.key)


def _one(body: bytes, key: str | None = None) -> None:
    try:
        message = parse_one(body, NOW_MS, LIMITS, key)
    except RequestError as error:
        str(error)
    else:
        _sound(message)


def _sound(message: ParsedMessage) -> None:
    """What is taken can be stored, and is read as it was written."""
    draft = draft_of(message, NOW_MS)
    record = decode(draft.value)
    assert (record.topic, record.payload, record.qos) == (message.topic, message.payload, message.qos)
    assert headers_of(record.properties)[0] == message.headers
    assert 0 <= draft.due_ms <= NOW_MS + LIMITS.max_delay_ms


def batch(data: bytes) -> None:
    """A draft is what is made of all that the message says; read in steps or in one go."""
    for lines in (True, False):
        drafts = messages = None
        with suppress(RequestError):
            drafts = _read(data, lines, 3, as_drafts=True)
        with suppress(RequestError):
            messages = _read(data, lines, 20, as_drafts=False)
        if drafts is None or messages is None:
            assert drafts is messages
            continue
        for item, message in zip(drafts, messages, strict=True):
            if isinstance(message, ParsedMessage):
                _sound(message)
                draft = draft_of(item, NOW_MS) if isinstance(item, ParsedMessage) else item
                assert draft == draft_of(message, NOW_MS)
            else:
                assert str(item) == str(message)


def _read(data: bytes, lines: bool, step: int, *, as_drafts: bool) -> list[Item | FieldError]:
    reading = Reading(data, lines, Reader(NOW_MS, LIMITS, as_drafts=as_drafts, keep_ids=True), 20)
    while not reading.is_over:
        reading.step(step)
    return reading.items


_schedule = msgspec.json.Decoder(ScheduleRequest)


def schedule(data: bytes) -> None:
    try:
        wish = _schedule.decode(data)
    except (msgspec.ValidationError, *UNREADABLE):
        return
    try:
        timing_of(wish, "name", NOW_MS, LIMITS)
        decode(record_of(wish, NOW_MS, LIMITS))
    except RequestError as error:
        str(error)


CURSORS = Cursors(bytes(32))
PLACES = tuple(
    CURSORS.text(keys.place_of(b"place of it."), as_of, is_hidden=is_hidden).encode()
    for as_of in (None, keys.place_of(b"a moment of."))
    for is_hidden in (False, True)
)


def cursor(data: bytes) -> None:
    """Cursors and ids as users send them."""
    text = data.decode("utf-8", "surrogateescape")
    with suppress(RequestError):
        assert CURSORS.text(*CURSORS.place(text), is_hidden=len(text) not in (24, 48)) == text
    with suppress(BadId):
        assert f"{parse_id(text):032x}" == text


# -- what is stored


def record(data: bytes) -> None:
    for read in (topic_of, names_of, is_moved, has_zone, is_stub, due_of, deliver_to_of):
        _typed(read, data)
    found = _typed(decode, data)
    if found is None:
        return
    assert found.qos <= 2
    assert found.encoding < len(ENCODINGS)
    assert topic_of(data) == found.topic
    assert owner_of(data) == found.owner
    assert deliver_to_of(data) == found.deliver_to
    assert decode(encode(found)) == found
    _typed(schedule_name, found)


def _typed(read: Callable[[Any], Any], value: Any) -> Any:
    """What it gives; None where it says that this cannot be."""
    try:
        return read(value)
    except Corrupt as error:
        str(error)
        return None


def properties(data: bytes) -> None:
    found = _typed(headers_of, data)
    if found is None:
        return
    headers, content_type = found
    if not any("\0" in text for text in (*sum(headers, ()), content_type or "")):
        assert headers_of(properties_of(headers, content_type or ""))[0] == headers


def key(data: bytes) -> None:
    """Keys and the rows of the small tables: the first 22 bytes are taken for the key."""
    name, value = data[:22], data[22:]
    keys.place_of(name)
    home, number = keys.shard_of(name)
    assert keys.slice_of(keys.slice_key(home)) == home
    assert 0 <= number <= 0xFFFF
    _typed(lambda row: tables.shard_from(name, row), value)
    _typed(lambda row: tables.slice_from(name, row), value)


def rows(data: bytes) -> None:
    for read in (tables.cursor_from, tables.dedupe_from, tables.number_from, tables.owned_from):
        _typed(read, data)
    for read in (tables.cursor_row_of, tables.state_row_of, tables.record_row_of, schedule_of):
        _typed(read, data)
    session = _typed(tables.session_of, data)
    for row in session.subscriptions if session is not None else ():
        subscription_of(row)
    group = _typed(tables.group_of, data)
    if group is not None:
        subscription_of(group.subscription)
    _typed(_job, data)


_job = tables.reading(JobRow)


# -- all of them

ONE = b'{"topic":"a/b","payload":"hi","deliver_in":"15m","key":"k","headers":{"a":"b"}}'
LOCAL = (
    b'{"topic":"a","payload":{"x":[1,2.5e3,null]},"deliver_at":"2027-03-28T09:00[Europe/Bucharest]","qos":2,'
    b'"retain":true,"expires_in":3600,"late":"drop","content_type":"text/plain","spread":"PT1M"}'
)
BASE64 = (
    b'{"topic":"\xc3\xa9/\\u00e9","payload":"aGk=","encoding":"base64",'
    b'"deliver_at":"2026-12-01T00:00:00.5+02:00"}'
)
BODY_WORDS = (
    *(b'"', b"{", b"}", b"[", b"]", b":", b",", b"\\", b"\n", b"null", b"true", b"-1", b"1e999", b"0.1"),
    *(b"\xff", b"\\u0000", b"\\ud800", b"9" * 30, b"[" * 200, b'"topic"', b'"payload"', b'"encoding":"json"'),
    *(b'"id":"', b'"deliver_in":"P1Y"', b"1h30m", b"PT1H", b"+14:00", b"[Europe/Paris]", b"2027-10-31T03:30"),
    *(b"#", b"+/$SYS"),
)
SCHEDULES = (
    b'{"topic":"a","cron":"*/5 0-3 1,15 * MON-FRI","timezone":"Europe/Bucharest","jitter":"5m"}',
    b'{"topic":"a","cron":"CRON_TZ=UTC 0 2 L * *","misfire":"skip","dst":{"gap":"skip"},"limit":5}',
    b'{"topic":"a","every":"90s","start":"2026-12-01T00:00:00Z","end":"2027-12-01T00:00:00Z"}',
    b'{"topic":"a","rrule":"FREQ=MONTHLY;BYDAY=2TU;COUNT=5;BYHOUR=9;UNTIL=20301231T000000","timezone":"UTC"}',
)
SCHEDULE_WORDS = (
    *(b"FREQ=SECONDLY", b"FREQ=YEARLY", b"INTERVAL=0", b"INTERVAL=999999999", b"BYMONTHDAY=31", b"BYMONTH=2"),
    *(b";", b"BYSETPOS=-1", b"BYEASTER=0", b"BYYEARDAY=366", b"COUNT=0", b"WKST=SU", b"@hourly", b"#5"),
    *(b"60", b"*/0", b"-"),
)
FULL = Record(
    *(b"a/b", b"payload", 5, 2, True, True, 60_000, 1 << 70, b"k" * 16, b"client"),
    *(b"\x03\0\x01x&\0\x01a\0\x01b", 1, b"2027-03-28T09:00[UTC]", CANCELLED, 77, b"nightly", b"meter-7"),
)
SESSION = tables.SessionRow(
    60, [tables.SubscriptionRow("a/#", 1, b"p" * 12, 3, 7, 1)], 5, b"w" * 16, encode(FULL), 3, 9, b"d" * 12
)
CURSOR = tables.CursorRow(
    b"p" * 12, [tables.FlightRow(7, b"p" * 12, 2, 1, 3, 1, True, "$share/g/a")], 1, b"t", [4]
)
GROUP = tables.GroupRow(
    tables.SubscriptionRow("a/#", 2, b"p" * 12, 0, 0, 0, 30_000, 5, [1_000]), 60, 2.5, 5, 9, "app", "w1", True
)
CHILDREN = [PieceRow(at, at + 900_000, 1) for at in (900_000, 1_800_000)]
SOURCES = [SourceRow(900_000, 0, number, 0, 10, 10) for number in (0, 1)]
JOB = JobRow("1", "split", "server", "moving", 0, 5, CHILDREN, [SOURCES], 2, CHILDREN)

TARGETS = (
    Target(
        "decoder",
        decoded,
        tuple(
            bytes((number << 2 | at,)) + raw
            for at, level in ((0, 5), (2, 4), (3, 5))
            for number, raw in enumerate(client_packets(level)[:60])
        ),
        steps_per_byte=200,
    ),
    Target("connection", connection, tuple(streams()), steps=400_000, steps_per_byte=2_000),
    Target(
        "front",
        front,
        (
            HEAD + b"Content-Length: %d\r\n\r\n" % len(ONE) + ONE,
            HEAD
            + b"content-length:\t 2 \r\nIdempotency-Key: order-17\r\nConnection: Keep-Alive\r\n\r\n{}GET",
            HEAD + b"Accept: */*\r\nUser-Agent: x/1\r\nContent-Length: 0\r\n\r\n",
        ),
        (
            *(b"\r\n", b"\n", b"\r", b":", b" ", b"\t", b"\0", b"Content-Length: 1\r\n"),
            *(b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Content-Encoding: gzip\r\n"),
            *(b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"\r\n\r\n", b"HTTP/1.0", b"; charset=latin-1"),
            *(b"Host: y\r\n", b"+1", b"0x1", b"\xc2\xb2", b"X:\r\n y"),
        ),
    ),
    Target("message body", _one, (ONE, LOCAL, BASE64), BODY_WORDS),
    Target(
        "batch body",
        batch,
        (ONE + b"\n\n" + LOCAL, b"[" + ONE + b" , " + LOCAL + b"]", BASE64 + b"\r\n" + b"{}", b"[]"),
        BODY_WORDS,
        steps_per_byte=400,
    ),
    Target(
        "schedule body",
        schedule,
        SCHEDULES,
        (*BODY_WORDS, *SCHEDULE_WORDS),
        steps=500_000,
        steps_per_byte=500,
    ),
    Target(
        "cursor",
        cursor,
        (*PLACES, b"%032x" % (1 << 100)),
    ),
    Target(
        "record",
        record,
        (encode(FULL), encode(msgspec.structs.replace(FULL, owner=b"")), encode(Record(b"a/b", b"hi"))),
    ),
    Target(
        "properties",
        properties,
        (FULL.properties, b"\x01\x01\x02\0\0\0\x05\x08\0\x01r\x09\0\x02\0\xff&\0\0\0\0"),
    ),
    Target("key", key, (b"\0\1" * 11 + b"\0" * 42, b"\0" * 22 + b"\1" * 40, b"")),
    Target(
        "rows",
        rows,
        (
            *(
                tables.encode_row(SESSION),
                tables.encode_row(CURSOR),
                tables.encode_row(GROUP),
                tables.encode_row(JOB),
                tables.encode_row(tables.StateRow(1, b"p" * 12, 3, 2, "busy", "ops", 7, 9)),
                tables.encode_row(tables.RecordRow("away", "away", 1, b"i" * 16, 2, b"record")),
            ),
            *(b"c" * 48, b"d" * 52, b"w" * 8),
        ),
    ),
)
