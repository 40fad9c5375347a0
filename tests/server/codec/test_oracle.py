"""MQTT 5 against a codec that others wrote (`mqtt5` on PyPI): what it writes we read, what we write it reads.

It fills in defaults where we say None (receive maximum 65,535 and the like), so those are left out of the
comparison; and it knows neither the empty AUTH of section 3.15.2.1 nor reason 0x8C in a DISCONNECT.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
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
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.server.codec import samples
from tests.server.codec.samples import SAMPLES, Role, sample_id
from tests.support.encode import encode

mqtt5 = pytest.importorskip("mqtt5")

OTHER_NAMES = {
    "payload_format": "payload_format_indicator",
    "message_expiry": "message_expiry_interval",
    "session_expiry": "session_expiry_interval",
    "receive_maximum": "receive_max",
    "maximum_packet_size": "max_packet_size",
    "topic_alias_maximum": "topic_alias_max",
    "auth_method": "authentication_method",
    "auth_data": "authentication_data",
    "will_delay": "will_delay_interval",
    "reason_string": "reason_str",
    "maximum_qos": "max_qos",
    "wildcard_available": "wildcard_subscription_available",
    "subscription_ids_available": "subscription_id_available",
    "shared_available": "shared_subscription_available",
}
ACKS = {
    wire.PUBACK: (mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
    wire.PUBREC: (mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
    wire.PUBREL: (mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
    wire.PUBCOMP: (mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
}
UNKNOWN: list[Packet] = [Auth()]
LEVEL_5 = [(role, packet) for role, level, packet in SAMPLES if level == 5 and packet not in UNKNOWN]


def theirs(properties: Properties | None, one_id: bool = False) -> dict[str, Any]:
    """Our properties as arguments of theirs; only what is set."""
    found: dict[str, Any] = {}
    if properties is None:
        return found
    for field in Properties.__struct_fields__:
        value = getattr(properties, field)
        if value is None or value == ():
            continue
        if field == "user_properties":
            value = list(value)
        if field == "maximum_qos":
            value = mqtt5.QoS(value)
        if field == "subscription_ids":
            found["subscription_id" if one_id else field] = value[0] if one_id else list(value)
        else:
            found[OTHER_NAMES.get(field, field)] = value
    return found


def their_connect(packet: Connect) -> Any:
    will = packet.will and mqtt5.Will(
        packet.will.topic.decode(),
        payload=packet.will.payload,
        qos=mqtt5.QoS(packet.will.qos),
        retain=packet.will.retain,
        **theirs(packet.will.properties),
    )
    return mqtt5.ConnectPacket(
        packet.client_id,
        username=packet.username,
        password=packet.password,
        clean_start=packet.clean_start,
        keep_alive=packet.keep_alive,
        will=will,
        **theirs(packet.properties),
    )


def their_publish(packet: Publish) -> Any:
    return mqtt5.PublishPacket(
        packet.topic.decode(),
        packet.payload,
        qos=mqtt5.QoS(packet.qos),
        retain=packet.retain,
        duplicate=packet.dup,
        packet_id=packet.packet_id or None,
        **theirs(packet.properties),
    )


def their_subscribe(packet: Subscribe) -> Any:
    filters = [
        mqtt5.TopicFilter(
            name,
            max_qos=mqtt5.QoS(options.qos),
            no_local=options.no_local,
            retain_as_published=options.retain_as_published,
            retain_handling=mqtt5.RetainHandling(options.retain_handling),
        )
        for name, options in packet.filters
    ]
    return mqtt5.SubscribePacket(packet.packet_id, filters, **theirs(packet.properties, one_id=True))


def their_answer(packet: Packet) -> Any:
    """Packets of a reason and properties, and PINGs."""
    if isinstance(packet, Ack):
        kind, reasons = ACKS[packet.kind]
        return kind(packet.packet_id, reason_code=reasons(packet.reason), **theirs(packet.properties))
    if isinstance(packet, Connack):
        return mqtt5.ConnAckPacket(
            session_present=packet.session_present,
            reason_code=mqtt5.ConnAckReasonCode(packet.reason),
            **theirs(packet.properties),
        )
    if isinstance(packet, Disconnect):
        reason = mqtt5.DisconnectReasonCode(packet.reason)
        return mqtt5.DisconnectPacket(reason_code=reason, **theirs(packet.properties))
    if isinstance(packet, Auth):
        return mqtt5.AuthPacket(reason_code=mqtt5.AuthReasonCode(packet.reason), **theirs(packet.properties))
    return mqtt5.PingReqPacket() if type(packet).__name__ == "Pingreq" else mqtt5.PingRespPacket()


def their_packet(packet: Packet) -> Any:
    if isinstance(packet, Connect):
        return their_connect(packet)
    if isinstance(packet, Publish):
        return their_publish(packet)
    if isinstance(packet, Subscribe):
        return their_subscribe(packet)
    if isinstance(packet, Suback):
        codes = [mqtt5.SubAckReasonCode(reason) for reason in packet.reasons]
        return mqtt5.SubAckPacket(packet.packet_id, codes, **theirs(packet.properties))
    if isinstance(packet, Unsubscribe):
        return mqtt5.UnsubscribePacket(packet.packet_id, list(packet.filters), **theirs(packet.properties))
    if isinstance(packet, Unsuback):
        codes = [mqtt5.UnsubAckReasonCode(reason) for reason in packet.reasons]
        return mqtt5.UnsubAckPacket(packet.packet_id, codes, **theirs(packet.properties))
    return their_answer(packet)


def same(role: Role, packet: Packet) -> None:
    other = their_packet(packet)
    ours = encode(packet, 5)
    read, size = mqtt5.read(memoryview(ours))
    assert size == len(ours)
    assert read == other
    written = other.write()
    (back,) = samples.decoder(role, 5, written[0]).feed(written)
    assert without_defaults(back) == without_defaults(packet)


# What the other codec neither writes nor tells apart from absent.
DEFAULTS = {
    "payload_format": 0,
    "session_expiry": 0,
    "will_delay": 0,
    "receive_maximum": 65_535,
    "topic_alias_maximum": 0,
    "request_problem_info": True,
    "request_response_info": False,
    "retain_available": True,
    "wildcard_available": True,
    "subscription_ids_available": True,
    "shared_available": True,
}


def without_defaults(value: Any) -> Any:
    """The packet as plain values, without properties that say what absence says."""
    if isinstance(value, Properties):
        fields = {field: getattr(value, field) for field in Properties.__struct_fields__}
        return {
            field: item
            for field, item in fields.items()
            if item is not None and item != () and DEFAULTS.get(field) != item
        }
    if isinstance(value, Packet | Will):
        return {field: without_defaults(getattr(value, field)) or None for field in value.__struct_fields__}
    return value


@pytest.mark.parametrize(("role", "packet"), LEVEL_5, ids=sample_id)
def test_samples_agree(role: Role, packet: Packet) -> None:
    same(role, packet)


@pytest.mark.long
@settings(max_examples=60)
@given(st.data())
def test_any_packet_agrees(data: st.DataObject) -> None:
    role: Role = data.draw(st.sampled_from(["server", "client"]))
    own = samples.from_client(5) | samples.connects(5) if role == "server" else samples.from_server(5)
    packet = data.draw(own)
    assume(packet not in UNKNOWN and not (isinstance(packet, Disconnect) and packet.reason == 0x8C))
    same(role, packet)
