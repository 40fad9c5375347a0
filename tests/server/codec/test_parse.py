"""Each rule, broken once: bytes, and the error that names packet and field."""

from __future__ import annotations

import pytest

from server.codec.errors import (
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolViolation,
    UnsupportedLevel,
)
from server.codec.publish import Decoder
from server.codec.reasons import Reason, connect_return
from tests.server.codec import samples

M, P = MalformedPacket, ProtocolViolation


def connect(level: int, flags: int, rest: str, properties: str = "00") -> str:
    """A CONNECT in hex with these flags; the payload follows in hex."""
    name = "0006 4d5149736470" if level == 3 else "0004 4d515454"
    body = f"{name} {level:02x} {flags:02x} 003c" + (properties if level == 5 else "") + rest
    return f"10 {len(bytes.fromhex(body)):02x}" + body


def frame(first: int, body: str) -> str:
    return f"{first:02x} {len(bytes.fromhex(body)):02x}" + body


FROM_CLIENT = [
    # fixed header
    ("type 0 is reserved", 4, "00 00", M, "packet type"),
    ("auth is reserved before 5", 4, "f0 00", M, "packet type"),
    ("puback flags", 4, "41 02 0001", M, "flags"),
    ("pubrel flags", 4, "60 02 0001", M, "flags"),
    ("subscribe flags", 5, "80 07 0001 00 0001 61 00", M, "flags"),
    ("pingreq flags", 4, "c1 00", M, "flags"),
    ("disconnect flags", 4, "e8 00", M, "flags"),
    ("five bytes of length", 4, "30 ff ff ff ff 01", M, "remaining length"),
    ("five bytes of length, zero", 4, "30 80 80 80 80 00", M, "remaining length"),
    ("length not short", 5, "c0 80 00", M, "remaining length"),
    ("server packets", 4, "20 02 00 00", P, "packet type"),
    ("server packets, suback", 4, "90 03 0001 00", P, "packet type"),
    ("server packets, unsuback", 5, "b0 04 0001 00 00", P, "packet type"),
    ("server packets, pingresp", 5, "d0 00", P, "packet type"),
    ("first is not connect", 0, "c0 00", P, "packet type"),
    ("second connect", 4, connect(4, 2, "0001 61"), P, "packet type"),
    ("pingreq with a body", 4, "c0 01 00", M, "end"),
    ("disconnect with a body", 4, "e0 01 00", M, "end"),
    # CONNECT
    ("protocol name", 0, "10 0d 0004 48545450 04 02 0000 0001 61", M, "protocol name"),
    ("reserved connect flag", 0, connect(4, 3, "0001 61"), M, "connect flags"),
    ("reserved connect flag, 5", 0, connect(5, 3, "0001 61"), M, "connect flags"),
    ("will qos without will", 0, connect(4, 0x0A, "0001 61"), M, "connect flags"),
    ("will retain without will", 0, connect(4, 0x22, "0001 61"), M, "connect flags"),
    ("will qos 3", 0, connect(4, 0x1E, "0001 61 0001 74 0000"), M, "connect flags"),
    ("password without user name", 0, connect(4, 0x42, "0001 61 0001 70"), M, "connect flags"),
    ("password without user name, 3.1", 0, connect(3, 0x42, "0001 61 0001 70"), M, "connect flags"),
    ("will topic empty", 0, connect(4, 6, "0001 61 0000 0000"), M, "will topic"),
    ("will topic wildcard", 0, connect(4, 6, "0001 61 0001 23 0000"), M, "will topic"),
    ("client id missing", 0, connect(4, 2, ""), M, "client id"),
    ("client id cut", 0, connect(4, 2, "0002 61"), M, "client id"),
    ("client id not utf-8", 0, connect(4, 2, "0001 ff"), M, "client id"),
    ("client id surrogate", 0, connect(4, 2, "0003 eda080"), M, "client id"),
    ("client id overlong nul", 0, connect(4, 2, "0002 c080"), M, "client id"),
    ("client id nul", 0, connect(4, 2, "0001 00"), M, "client id"),
    ("user name missing", 0, connect(4, 0x82, "0001 61"), M, "user name"),
    ("password missing", 0, connect(4, 0xC2, "0001 61 0001 75"), M, "password"),
    ("connect trailing", 0, connect(4, 2, "0001 61 00"), M, "end"),
    ("connect cut in keep alive", 0, "10 08 0004 4d515454 04 02", M, "keep alive"),
    ("connect property not its own", 0, connect(5, 2, "0001 61", "02 24 01"), M, "property 0x24"),
    ("connect property of a publish", 0, connect(5, 2, "0001 61", "02 01 01"), M, "property 0x01"),
    ("receive maximum 0", 0, connect(5, 2, "0001 61", "03 21 0000"), P, "receive_maximum"),
    ("maximum packet size 0", 0, connect(5, 2, "0001 61", "05 27 00000000"), P, "maximum_packet_size"),
    ("problem info 2", 0, connect(5, 2, "0001 61", "02 17 02"), P, "request_problem_info"),
    ("response info 2", 0, connect(5, 2, "0001 61", "02 19 02"), P, "request_response_info"),
    ("twice", 0, connect(5, 2, "0001 61", "06 21 0001 21 0001"), P, "receive_maximum"),
    ("auth data alone", 0, connect(5, 2, "0001 61", "04 16 0001 61"), P, "auth_data"),
    ("will property elsewhere", 0, connect(5, 2, "0001 61", "05 18 00000001"), M, "property 0x18"),
    ("will with topic alias", 0, connect(5, 6, "0001 61 03 23 0001 0001 74 0000"), M, "property 0x23"),
    ("property length too long", 0, connect(5, 2, "", "05 21"), M, "property length"),
    ("property length not short", 0, connect(5, 2, "0001 61", "8000"), M, "property length"),
    ("property length missing", 0, "10 0a 0004 4d515454 05 02 003c", M, "property length"),
    # PUBLISH
    ("qos 3", 4, "36 05 0001 61 0001", M, "flags"),
    ("dup at qos 0", 4, "38 03 0001 61", M, "flags"),
    ("empty body", 4, "30 00", M, "topic"),
    ("topic cut", 4, "30 03 0002 61", M, "topic"),
    ("topic empty", 4, "30 03 0000 61", M, "topic"),
    ("topic empty, 5", 5, "30 03 0000 00", P, "topic"),
    ("topic empty, 5, no alias", 5, "30 08 0000 05 02 00000001", P, "topic"),
    ("topic +", 4, "30 05 0003 612f2b", M, "topic"),
    ("topic #", 5, "30 04 0001 23 00", M, "topic"),
    ("topic nul", 4, "30 04 0002 6100", M, "topic"),
    ("topic not utf-8", 4, "30 04 0002 c328", M, "topic"),
    ("topic surrogate", 4, "30 05 0003 edbfbf", M, "topic"),
    ("packet id 0", 4, "32 05 0001 61 0000", M, "packet id"),
    ("packet id missing", 4, "32 03 0001 61", M, "packet id"),
    ("packet id cut", 4, "32 04 0001 61 00", M, "packet id"),
    ("properties missing", 5, "32 05 0001 61 0001", M, "property length"),
    ("properties too long", 5, "30 05 0001 61 03 01", M, "property length"),
    ("properties too long, two bytes", 5, "30 06 0001 61 8102 01", M, "property length"),
    ("payload format 2", 5, "30 06 0001 61 02 01 02", P, "payload_format"),
    ("topic alias 0", 5, "30 07 0001 61 03 23 0000", P, "topic_alias"),
    ("topic alias twice", 5, "30 0a 0001 61 06 23 0001 23 0001", P, "topic_alias"),
    ("message expiry twice", 5, "30 0e 0001 61 0a 02 00000001 02 00000001", P, "message_expiry"),
    ("message expiry cut", 5, "30 07 0001 61 03 02 0000", M, "message_expiry"),
    ("response topic wildcard", 5, "30 08 0001 61 04 08 0001 2b", P, "response_topic"),
    ("response topic #", 5, "30 08 0001 61 04 08 0001 23", P, "response_topic"),
    ("response topic empty", 5, "30 07 0001 61 03 08 0000", P, "response_topic"),
    ("content type nul", 5, "30 08 0001 61 04 03 0001 00", M, "content_type"),
    ("unknown property", 5, "30 06 0001 61 02 7f 00", M, "property 0x7f"),
    ("id not short", 5, "30 07 0001 61 03 8100 01", M, "property 0x81"),
    ("subscription id from a client", 5, "30 06 0001 61 02 0b 01", P, "subscription_ids"),
    ("user property cut", 5, "30 08 0001 61 04 26 0001 61", M, "user_properties"),
    ("user property past the section", 5, "30 0b 0001 61 06 26 0001 61 0002 62", M, "user_properties"),
    ("user property nul", 5, "30 0a 0001 61 06 26 0001 00 0000", M, "user_properties"),
    ("user property value nul", 5, "30 0a 0001 61 06 26 0000 0001 00", M, "user_properties"),
    ("user property not utf-8", 5, "30 0a 0001 61 06 26 0001 ff 0000", M, "user_properties"),
    # acks
    ("ack id 0", 4, "40 02 0000", M, "packet id"),
    ("ack empty", 4, "50 00", M, "packet id"),
    ("ack cut", 4, "50 01 00", M, "packet id"),
    ("ack reason before 5", 4, "40 03 0001 00", M, "end"),
    ("ack reason", 5, "40 03 0001 01", P, "reason code"),
    ("pubrel reason", 5, "62 03 0001 10", P, "reason code"),
    ("pubcomp reason", 5, "70 03 0001 80", P, "reason code"),
    ("ack property", 5, "40 09 0001 00 05 02 00000001", M, "property 0x02"),
    ("ack trailing", 5, "40 05 0001 00 00 00", M, "end"),
    ("reason string twice", 5, "40 0a 0001 00 06 1f 0000 1f 0000", P, "reason_string"),
    # SUBSCRIBE, UNSUBSCRIBE
    ("subscribe without filters", 4, "82 02 0001", P, "filters"),
    ("subscribe without filters, 5", 5, "82 03 0001 00", P, "filters"),
    ("subscribe id 0", 4, "82 06 0000 0001 61 00", M, "packet id"),
    ("subscribe filter empty", 4, "82 05 0001 0000 00", M, "filter"),
    ("subscribe filter nul", 4, "82 06 0001 0001 00 00", M, "filter"),
    ("subscribe without options", 4, "82 05 0001 0001 61", M, "options"),
    ("subscribe qos 3", 4, "82 06 0001 0001 61 03", M, "options"),
    ("subscribe qos 3, 5", 5, "82 07 0001 00 0001 61 03", P, "options"),
    ("subscribe reserved bits", 4, "82 06 0001 0001 61 04", M, "options"),
    ("subscribe reserved bits, 5", 5, "82 07 0001 00 0001 61 40", M, "options"),
    ("retain handling 3", 5, "82 07 0001 00 0001 61 30", P, "options"),
    (
        "no local on a shared one",
        5,
        frame(0x82, "0001 00 000a 2473686172652f672f61 04"),
        P,
        "options",
    ),
    ("subscription id 0", 5, "82 09 0001 02 0b00 0001 61 00", P, "subscription_ids"),
    ("subscription id twice", 5, "82 0b 0001 04 0b01 0b01 0001 61 00", P, "subscription_ids"),
    ("subscription id too long", 5, "82 0d 0001 06 0b8080808001 0001 61 00", M, "subscription_ids"),
    ("unsubscribe without filters", 4, "a2 02 0001", P, "filters"),
    ("unsubscribe filter empty", 4, "a2 04 0001 0000", M, "filter"),
    ("unsubscribe with subscription id", 5, "a2 08 0001 02 0b01 0001 61", M, "property 0x0b"),
    # DISCONNECT, AUTH
    ("disconnect reason", 5, "e0 01 8e", P, "reason code"),
    ("disconnect server reference", 5, "e0 06 00 04 1c 0001 61", P, "server_reference"),
    ("auth without reason", 5, "f0 00", P, "reason code"),
    ("auth reason of a server", 5, "f0 02 00 00", P, "reason code"),
    ("auth without properties", 5, "f0 01 18", M, "property length"),
    ("auth without method", 5, "f0 02 18 00", P, "auth_method"),
    ("auth without method, with others", 5, "f0 06 18 04 1f 0001 61", P, "auth_method"),
]
FROM_SERVER = [
    ("client packets", 4, connect(4, 2, "0001 61"), P, "packet type"),
    ("client packets, subscribe", 4, "82 06 0001 0001 61 00", P, "packet type"),
    ("client packets, pingreq", 4, "c0 00", P, "packet type"),
    ("disconnect before 5", 4, "e0 00", P, "packet type"),
    ("connack flags", 4, "20 02 02 00", M, "acknowledge flags"),
    ("connack reason", 4, "20 02 00 06", P, "reason code"),
    ("connack reason, 5", 5, "20 03 00 01 00", P, "reason code"),
    ("session present when refused", 4, "20 02 01 05", P, "acknowledge flags"),
    ("maximum qos 2", 5, "20 05 00 00 02 24 02", P, "maximum_qos"),
    ("retain available 2", 5, "20 05 00 00 02 25 02", P, "retain_available"),
    ("suback without reasons", 4, "90 02 0001", P, "reason codes"),
    ("suback reason", 4, "90 03 0001 03", P, "reason code"),
    ("suback reason, 5", 5, "90 04 0001 00 11", P, "reason code"),
    ("unsuback with reasons before 5", 4, "b0 03 0001 00", M, "end"),
    ("unsuback without reasons", 5, "b0 03 0001 00", P, "reason codes"),
    ("unsuback reason", 5, "b0 04 0001 00 01", P, "reason code"),
    ("disconnect reason", 5, "e0 01 04", P, "reason code"),
    ("disconnect session expiry", 5, "e0 07 00 05 11 00000001", P, "session_expiry"),
    ("auth reason of a client", 5, "f0 02 19 00", P, "reason code"),
    ("subscription id 0", 5, "30 06 0001 61 02 0b 00", P, "subscription_ids"),
]


def short(value: object) -> str:
    return str(value)[:40]


def check(decoder: Decoder, raw: str, kind: type[MqttError], field: str) -> MqttError:
    with pytest.raises(MqttError) as caught:
        decoder.feed(bytes.fromhex(raw))
    error = caught.value
    assert type(error) is kind, error
    assert error.field == field
    assert f"{error.packet}: {field} at byte {error.offset} " in str(error)
    assert 0 <= error.offset <= len(bytes.fromhex(raw))
    return error


@pytest.mark.parametrize(("what", "level", "raw", "kind", "field"), FROM_CLIENT, ids=short)
def test_broken_by_a_client(what: str, level: int, raw: str, kind: type[MqttError], field: str) -> None:
    error = check(Decoder(samples.LIMIT, level), raw, kind, field)
    expected = 0x94 if what == "topic alias 0" else {M: 0x81, P: 0x82}[kind]
    assert error.reason == expected


@pytest.mark.parametrize(("what", "level", "raw", "kind", "field"), FROM_SERVER, ids=short)
def test_broken_by_a_server(what: str, level: int, raw: str, kind: type[MqttError], field: str) -> None:
    check(Decoder(samples.LIMIT, level, "client"), raw, kind, field)


@pytest.mark.parametrize(
    ("name", "level", "connack"),
    [
        ("0004 4d515454", 3, "2002 0001"),
        ("0004 4d515454", 2, "2002 0001"),
        ("0004 4d515454", 6, "2003 0084 00"),
        ("0004 4d515454", 0x83, "2002 0001"),
        ("0006 4d5149736470", 0x84, "2002 0001"),
        ("0004 4d515454", 0x85, "2003 0084 00"),
        ("0006 4d5149736470", 4, "2002 0001"),
        ("0006 4d5149736470", 5, "2003 0084 00"),
    ],
)
def test_unknown_level_can_be_answered(name: str, level: int, connack: str) -> None:
    raw = frame(0x10, f"{name} {level:02x} 02 0000 0001 61")
    error = check(Decoder(samples.LIMIT), raw, UnsupportedLevel, "protocol level")
    assert isinstance(error, UnsupportedLevel)
    assert error.level == level
    assert error.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION
    assert error.connack == bytes.fromhex(connack)
    if level != 0x85:  # what is sent is a CONNACK that such a client reads
        client = Decoder(samples.LIMIT, 5 if level >= 5 and level < 0x80 else 4, "client")
        assert client.feed(error.connack)


def test_old_connect_ignores_its_reserved_bit() -> None:
    (packet,) = Decoder(samples.LIMIT).feed(bytes.fromhex(connect(3, 3, "0001 61")))
    assert packet == Decoder(samples.LIMIT).feed(bytes.fromhex(connect(3, 2, "0001 61")))[0]
    (connack,) = Decoder(samples.LIMIT, 3, "client").feed(b"\x20\x02\x07\x00")
    assert connack.session_present is False


def test_base_of_errors() -> None:
    error = PacketTooLarge("PUBLISH", "remaining length", 1, "is long")
    assert error.reason == 0x95
    assert MqttError("X", "y", 0, "z").reason == 0x80


@pytest.mark.parametrize(
    ("reason", "code"),
    [(0, 0), (5, 5), (0x84, 1), (0x85, 2), (0x86, 4), (0x8C, 4), (0x87, 5), (0x8A, 5), (0x88, 3), (0x97, 3)],
)
def test_connect_return(reason: int, code: int) -> None:
    assert connect_return(reason) == code
