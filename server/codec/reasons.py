"""Reason codes, and which packet may carry which.

Up to 3.1.1 only CONNACK and SUBACK had a code. MQTT 5 gives nearly every answer one: below 0x80 the request
worked, from 0x80 on it failed. A code that its packet may not carry is a protocol error of the sender, so the
allowed ones are sets, per packet and, where it matters, per sender.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Reason(IntEnum):
    """Reason codes of MQTT 5, section 2.4. GRANTED_QOS_0 and NORMAL_DISCONNECTION are 0x00 as SUCCESS is."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ConnectReturn(IntEnum):
    """Return codes of CONNACK up to 3.1.1."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


_RETURNS: Final[dict[int, ConnectReturn]] = {
    Reason.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturn.UNACCEPTABLE_PROTOCOL_VERSION,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturn.IDENTIFIER_REJECTED,
    Reason.BAD_USER_NAME_OR_PASSWORD: ConnectReturn.BAD_USER_NAME_OR_PASSWORD,
    Reason.BAD_AUTHENTICATION_METHOD: ConnectReturn.BAD_USER_NAME_OR_PASSWORD,
    Reason.NOT_AUTHORIZED: ConnectReturn.NOT_AUTHORIZED,
    Reason.BANNED: ConnectReturn.NOT_AUTHORIZED,
    # This server will never take these: "server unavailable" would tell the client to come back.
    Reason.TOPIC_NAME_INVALID: ConnectReturn.NOT_AUTHORIZED,
    Reason.PACKET_TOO_LARGE: ConnectReturn.NOT_AUTHORIZED,
    Reason.PAYLOAD_FORMAT_INVALID: ConnectReturn.NOT_AUTHORIZED,
    Reason.RETAIN_NOT_SUPPORTED: ConnectReturn.NOT_AUTHORIZED,
    Reason.QOS_NOT_SUPPORTED: ConnectReturn.NOT_AUTHORIZED,
}


def connect_return(reason: int) -> int:
    """The 3.1.1 return code (0 to 5) that says best what `reason` of a CONNACK says; below 0x80 it stays."""
    if reason < 0x80:
        return reason
    return _RETURNS.get(reason, ConnectReturn.SERVER_UNAVAILABLE)


# Per packet. The numbers are those of the tables in chapter 3 of the specification.
CONNACK_REASONS: Final = frozenset({0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F})
PUBLISH_REASONS: Final = frozenset({0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})  # PUBACK and PUBREC
RELEASE_REASONS: Final = frozenset({0, 0x92})  # PUBREL and PUBCOMP
SUBACK_REASONS: Final = frozenset({0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2})
UNSUBACK_REASONS: Final = frozenset({0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91})
CLIENT_DISCONNECT_REASONS: Final = frozenset({0, 4, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A)})
# 0x8C stands in the common table (2.4) but not in that of DISCONNECT: read it, do not send it.
SERVER_DISCONNECT_REASONS: Final = frozenset(
    {0, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3)}
)
CLIENT_AUTH_REASONS: Final = frozenset({0x18, 0x19})
SERVER_AUTH_REASONS: Final = frozenset({0x00, 0x18})
SUBACK_RETURNS: Final = frozenset({0, 1, 2, 0x80})  # up to 3.1.1
CONNECT_RETURNS: Final = frozenset(range(6))  # up to 3.1.1
