"""CONNECT: what is refused, and what CONNACK grants."""

from shards.fields import Record
from timeline.filters import levels_of, matches, refused_character

from ..codec.packets import Connect, Properties
from ..codec.reasons import Reason
from ..delivery.message import publisher_of
from ..delivery.publish_request import Will
from ..delivery.shared import DOTS, TEXT_PREFIXES
from ..settings.config import Config
from .publish_requests import BRIDGE_STATE, expires_ms, handed_on, is_as_declared, may_publish, refused_in

SUBSCRIPTION_IDS = "subscription-identifiers"
"""User property of CONNECT."""
TOKEN = "fasti-token"
"""User property of CONNECT: what a client shows on each of its connections, and nobody else knows."""
BRIDGE_WINDOW = 20
"""mosquitto's default `max_inflight_messages`. It drops QoS 2 beyond that, and cannot announce the number
below level 5."""


def connect_fault(packet: Connect, config: Config) -> Reason | None:
    """Why a CONNECT is refused; None when it is not."""
    properties = packet.properties
    if not packet.client_id and (packet.level == 3 or (packet.level == 4 and not packet.clean_start)):
        return Reason.CLIENT_IDENTIFIER_NOT_VALID
    if packet.client_id.startswith(TEXT_PREFIXES) or packet.client_id in DOTS:
        return Reason.CLIENT_IDENTIFIER_NOT_VALID
    longest = config.mqtt.keep_alive_s
    if longest and packet.level < 5 and not 0 < packet.keep_alive <= longest:
        # It cannot be told of another keep alive, and would be closed for keeping its own.
        return Reason.CLIENT_IDENTIFIER_NOT_VALID
    if properties is not None and properties.auth_method is not None:
        return Reason.BAD_AUTHENTICATION_METHOD
    return _will_fault(packet, config)


def granted_keep_alive_s(packet: Connect, config: Config) -> int:
    """The keep alive in force, in seconds; 0: none. Only level 5 can be told another than it asked for."""
    imposed = config.mqtt.keep_alive_s if packet.level == 5 else 0
    return imposed or packet.keep_alive


def read_will(packet: Connect, client_id: str, owner: bytes) -> Will | None:
    """The will of a CONNECT as a record to publish. `owner`: the name of the key that was shown."""
    will = packet.will
    if will is None:
        return None
    properties = will.properties
    record = Record(
        will.topic,
        will.payload,
        0,
        will.qos,
        will.retain,
        expires_ms=expires_ms(properties),
        publisher=publisher_of(client_id),
        properties=handed_on(properties),
        owner=owner,
    )
    return Will(record, (properties.will_delay or 0) if properties is not None else 0)


def _will_fault(packet: Connect, config: Config) -> Reason | None:
    will = packet.will
    if will is None:
        return None
    is_too_deep = levels_of(will.topic) > config.limits.topic_levels
    if not may_publish(will.topic) or is_too_deep or refused_character(will.topic.decode()):
        return Reason.TOPIC_NAME_INVALID
    if refused_in(will.properties):
        return Reason.IMPLEMENTATION_SPECIFIC_ERROR
    if will.qos > config.mqtt.maximum_qos:
        return Reason.QOS_NOT_SUPPORTED
    if will.retain and not config.mqtt.retain_available:
        return Reason.RETAIN_NOT_SUPPORTED
    if len(will.payload) > config.limits.max_payload:
        return Reason.PACKET_TOO_LARGE
    if not is_as_declared(will.payload, will.properties):
        return Reason.PAYLOAD_FORMAT_INVALID
    return None


def granted_expiry_s(packet: Connect, config: Config) -> int:
    """Session expiry in seconds, capped; 0: the session ends with the connection."""
    longest = config.sessions.expiry_max_ms // 1000
    if packet.level == 5:
        requested = packet.properties.session_expiry if packet.properties is not None else None
        return min(requested or 0, longest)
    return 0 if packet.clean_start else longest


def shown_token(packet: Connect) -> str:
    """What tells the process behind a client id from another; empty: nothing."""
    return "" if packet.properties is None else packet.properties.user(TOKEN) or ""


def is_bridge(packet: Connect) -> bool:
    """Whether the client says that it is a bridge: in its level, or by a will at the topic of its state."""
    will = packet.will
    return packet.is_bridge or (will is not None and matches(BRIDGE_STATE, will.topic.decode()))


def granted_window(packet: Connect, config: Config) -> int:
    """How many deliveries may be in flight."""
    requested = packet.properties.receive_maximum if packet.properties is not None else None
    if packet.level < 5 and is_bridge(packet):
        requested = BRIDGE_WINDOW
    return min(requested or 65_535, config.sessions.max_in_flight)


def connack_properties(packet: Connect, config: Config, expiry_s: int, assigned: str | None) -> Properties:
    """CONNACK's properties at level 5. Node-RED cannot read a PUBLISH with several subscription identifiers.
    A client may therefore ask the server to announce that it has none: then the client sends none."""
    properties = packet.properties or Properties()
    requested = properties.session_expiry
    mqtt = config.mqtt
    return Properties(
        session_expiry=expiry_s if expiry_s != (requested or 0) else None,
        receive_maximum=mqtt.receive_maximum,
        maximum_qos=mqtt.maximum_qos if mqtt.maximum_qos < 2 else None,
        retain_available=None if mqtt.retain_available else False,
        maximum_packet_size=mqtt.maximum_packet_size,
        assigned_client_id=assigned,
        topic_alias_maximum=mqtt.topic_alias_maximum or None,
        server_keep_alive=mqtt.keep_alive_s or None,
        subscription_ids_available=False if properties.user(SUBSCRIPTION_IDS) == "false" else None,
    )
