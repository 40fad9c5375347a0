"""A message as PUBLISH bytes, made once per form and joined with what differs from subscriber to subscriber.

Deliveries of a scheduled message carry, at level 5, when it was due and what it is called: `fasti-id`,
`fasti-due`, `fasti-late-ms`, and `fasti-attempt` from the second delivery on. A plain publish goes out as
it came in.
"""

from functools import lru_cache

from timeline.session import Subscription

from ..message import Message
from ..times import format_ms
from .properties import message_expiry, subscription_id, user_property
from .publish import publish_parts, with_dup

Parts = tuple[bytes, bytes]

_ID = b"\x26\x00\x08fasti-id\x00\x20"
"""User property `fasti-id`, up to its value of 32 digits."""


def parts(message: Message, level: int, qos: int, retain: bool, node: int) -> Parts:
    """(head, tail) for a first delivery without subscription identifiers; kept in `message.wire`."""
    form = level << 3 | qos << 1 | retain
    found = message.wire.get(form)
    if found is None:
        record = message.record
        properties = common_properties(message, node) if level == 5 else b""
        found = publish_parts(level, record.topic, record.payload, qos, retain, False, properties)
        message.wire[form] = found
    return found


def special_parts(
    message: Message,
    level: int,
    qos: int,
    retain: bool,
    node: int,
    subscriptions: tuple[Subscription, ...],
    attempt: int,
) -> Parts:
    """(head, tail) with subscription identifiers, or for a delivery after the first (DUP)."""
    record = message.record
    properties = b""
    if level == 5:
        properties = common_properties(message, node)
        properties += b"".join(subscription_id(s.identifier) for s in subscriptions if s.identifier)
        if attempt > 1 and record.due_ms:
            properties += user_property("fasti-attempt", str(attempt))
    head, tail = publish_parts(level, record.topic, record.payload, qos, retain, False, properties)
    return (with_dup(head) if attempt > 1 and qos else head), tail


def common_properties(message: Message, node: int) -> bytes:
    """The publisher's own properties, what is left of the expiry, and fasti's."""
    record = message.record
    properties = record.properties
    if record.expires_ms:
        left_ms = max(0, record.expires_ms - message.late_ms)
        properties += message_expiry(-(-left_ms // 1000))
    if record.due_ms:
        name = message.id_text(node).encode()
        properties += _ID + name + _due_property(record.due_ms) + _late_property(message.late_ms)
    return properties


@lru_cache(1024)
def _due_property(due_ms: int) -> bytes:
    """Many messages are due in the same millisecond."""
    return user_property("fasti-due", format_ms(due_ms))


@lru_cache(1024)
def _late_property(late_ms: int) -> bytes:
    return user_property("fasti-late-ms", str(late_ms))
