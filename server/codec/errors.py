"""Faults in what the other side sent.

An error of the codec carries the reason code for a DISCONNECT (or a CONNACK, before there is a session). It
ends the connection: nothing can be read behind a malformed packet.
"""

from __future__ import annotations

from .reasons import Reason


class MqttError(Exception):
    """The input is not MQTT; the connection must end.

    `packet` names the packet, `field` the wrong field, `offset` its byte from the packet's first one.
    `reason` is the reason code of the answer. `spoken` is the protocol level, if the packet tells it; 0:
    unknown.
    """

    reason: int = Reason.UNSPECIFIED_ERROR

    def __init__(self, packet: str, field: str, offset: int, detail: str, reason: int | None = None) -> None:
        super().__init__(f"{packet}: {field} at byte {offset} {detail}")
        self.packet = packet
        self.field = field
        self.offset = offset
        self.spoken = 0
        if reason is not None:
            self.reason = reason


class MalformedPacket(MqttError):
    """The bytes cannot be read as the packet they claim to be."""

    reason = Reason.MALFORMED_PACKET


class ProtocolViolation(MqttError):
    """The packet can be read, but may not be sent like this, now or by this side."""

    reason = Reason.PROTOCOL_ERROR


class PacketTooLarge(MqttError):
    """The packet is larger than we said we take."""

    reason = Reason.PACKET_TOO_LARGE


class UnsupportedLevel(MqttError):
    """CONNECT asks for an unsupported protocol level, `level`. `connack`: the answer before closing, return
    code 0x01 in the form of 3.1.1 or reason code 0x84 in that of MQTT 5, which such a client can read."""

    reason = Reason.UNSUPPORTED_PROTOCOL_VERSION

    def __init__(self, offset: int, name: str, level: int) -> None:
        super().__init__("CONNECT", "protocol level", offset, f"is {level} of {name!r}: not 3, 4 or 5")
        self.level = level

    @property
    def connack(self) -> bytes:
        # Bridges set the top bit to say that they are bridges.
        return b"\x20\x03\x00\x84\x00" if (self.level & 0x7F) >= 5 else b"\x20\x02\x00\x01"
