"""One frozen struct per packet, and one for properties, the same for all protocol levels and both directions.

A field that a level lacks has its default: no properties below 5, no reasons in a 3.1.1 UNSUBACK.
`properties` is None if there are none, so the usual packet costs one small object. The garbage collector does
not track these structs: strings, bytes, numbers and tuples of them form no cycles. What uses them may be
compiled, a Struct must not be.
"""

from __future__ import annotations

import msgspec


class Properties(msgspec.Struct, frozen=True, gc=False):
    """Properties of one packet; None is absent. Intervals and keep alive are seconds, sizes bytes. Read and
    written by properties.py."""

    payload_format: int | None = None
    message_expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: tuple[int, ...] = ()
    topic_alias: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    session_expiry: int | None = None
    receive_maximum: int | None = None
    maximum_packet_size: int | None = None
    topic_alias_maximum: int | None = None
    request_problem_info: bool | None = None
    request_response_info: bool | None = None
    auth_method: str | None = None
    auth_data: bytes | None = None
    will_delay: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    response_info: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    wildcard_available: bool | None = None
    subscription_ids_available: bool | None = None
    shared_available: bool | None = None

    def user(self, key: str) -> str | None:
        """Value of the first user property named `key`."""
        for name, value in self.user_properties:
            if name == key:
                return value
        return None


class Will(msgspec.Struct, frozen=True, gc=False):
    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


class Connect(msgspec.Struct, frozen=True, gc=False):
    """`level` is 3, 4 or 5; `clean_start` is 3.1.1's clean session; `keep_alive` seconds, 0 is off.
    `is_bridge`: the client is a broker; known below level 5 only."""

    level: int
    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties | None = None
    is_bridge: bool = False


class Connack(msgspec.Struct, frozen=True, gc=False):
    """`reason` is a return code 0 .. 5 below level 5; `encode` also takes and translates a `Reason` there."""

    session_present: bool = False
    reason: int = 0
    properties: Properties | None = None


class Publish(msgspec.Struct, frozen=True, gc=False):
    """`topic`: UTF-8 without U+0000 and wildcards, empty only with an alias; `packet_id` is 0 at QoS 0."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties | None = None


class Ack(msgspec.Struct, frozen=True, gc=False):
    """PUBACK, PUBREC, PUBREL or PUBCOMP, as `kind` says (wire.PUBACK, ...)."""

    kind: int
    packet_id: int
    reason: int = 0
    properties: Properties | None = None


class AckRun(msgspec.Struct, frozen=True, gc=False):
    """PUBACKs that stood one behind the other and say nothing more: their packet ids, in order."""

    packet_ids: tuple[int, ...]


class SubscribeOptions(msgspec.Struct, frozen=True, gc=False):
    """`retain_handling`: retained messages are sent 0 always, 1 to a new subscription, 2 never."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Filters are UTF-8 and not empty; the places of wildcards are checked elsewhere."""

    packet_id: int
    filters: tuple[tuple[str, SubscribeOptions], ...]
    properties: Properties | None = None


class Suback(msgspec.Struct, frozen=True, gc=False):
    """One reason per filter, in order. Below level 5 `encode` sends any failure as 0x80."""

    packet_id: int
    reasons: tuple[int, ...]
    properties: Properties | None = None


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties | None = None


class Unsuback(msgspec.Struct, frozen=True, gc=False):
    """One reason per filter, in order; none below level 5."""

    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties | None = None


class Pingreq(msgspec.Struct, frozen=True, gc=False):
    pass


class Pingresp(msgspec.Struct, frozen=True, gc=False):
    pass


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    reason: int = 0
    properties: Properties | None = None


class Auth(msgspec.Struct, frozen=True, gc=False):
    reason: int = 0
    properties: Properties | None = None


Packet = (
    Connect
    | Connack
    | Publish
    | Ack
    | AckRun
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
