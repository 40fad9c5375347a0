"""CONNECT: what is refused, and what CONNACK grants."""

from ..config import Config
from .packets import Connect
from .properties import Properties
from .reasons import Reason


def connect_fault(packet: Connect, config: Config) -> Reason | None:
    """Why a CONNECT is refused; None when it is not."""
    properties = packet.properties
    if not packet.client_id and packet.level < 5 and not packet.clean_start:
        return Reason.CLIENT_IDENTIFIER_NOT_VALID
    if properties is not None and properties.auth_method is not None:
        return Reason.BAD_AUTHENTICATION_METHOD
    if not config.mqtt.allow_anonymous:
        return Reason.NOT_AUTHORIZED
    if packet.will is not None:
        return Reason.IMPLEMENTATION_SPECIFIC_ERROR
    return None


def granted_expiry_s(packet: Connect, config: Config) -> int:
    """Session expiry in seconds, capped; 0: the session ends with the connection."""
    longest = config.sessions.expiry_max_ms // 1000
    if packet.level == 5:
        asked = packet.properties.session_expiry if packet.properties is not None else None
        return min(asked or 0, longest)
    return 0 if packet.clean_start else longest


def granted_window(packet: Connect, config: Config) -> int:
    """How many deliveries may be in flight."""
    asked = packet.properties.receive_maximum if packet.properties is not None else None
    return min(asked or 65_535, config.sessions.max_in_flight)


def connack_properties(packet: Connect, config: Config, expiry_s: int, assigned: str | None) -> Properties:
    """What the server says of itself at level 5."""
    asked = packet.properties.session_expiry if packet.properties is not None else None
    mqtt = config.mqtt
    return Properties(
        session_expiry=expiry_s if expiry_s != (asked or 0) else None,
        receive_maximum=mqtt.receive_maximum,
        maximum_qos=min(1, mqtt.maximum_qos),
        retain_available=False,
        maximum_packet_size=mqtt.maximum_packet_size,
        assigned_client_id=assigned,
        topic_alias_maximum=mqtt.topic_alias_maximum or None,
        server_keep_alive=mqtt.keep_alive_s or None,
        shared_available=False,
    )
