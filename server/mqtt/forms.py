"""A message as PUBLISH bytes, made once per form and joined with what differs between subscribers.

At level 5 deliveries of a scheduled message carry its id and due: `fasti-id`, `fasti-due`, `fasti-late-ms`;
`fasti-schedule` if a recurring schedule wrote it; `fasti-attempt` from the second delivery on. A retry also
carries its failed tries, `fasti-tries`, unless its client accepts no packet of that size. A plain publish
goes out as it came in, and with `fasti-ordering-key` if it has one. `fasti-ack-timeout` tells members of a
group with an ack timeout how long it is.
"""

import sys
from binascii import hexlify
from functools import lru_cache
from struct import Struct

from shards.fate import AT_ONCE_MS
from shards.properties import sendable_properties, user_property
from timeline.filters import refused_character
from timeline.position import SEQ_MAX
from timeline.session import Subscription

from ..codec.properties import message_expiry, subscription_id, topic_alias
from ..codec.publish import joined, publish_parts, with_dup
from ..codec.wire import varint
from ..delivery.message import Message
from ..delivery.run import Run
from ..delivery.tries import tries_before, tries_text
from ..settings.times import format_ms

Parts = tuple[bytes, bytes]
ALIASES_MAX = 256
"""Topics of a connection that get an alias, if its client takes as many: the first ones."""
ALIAS_BYTES = 65_536
"""And how many bytes these may have together."""


class Shape:
    """How one connection wants its deliveries: level, largest packet, topic aliases."""

    __slots__ = ("_alias_room", "_aliases", "_aliases_max", "_level", "_max_packet", "_node")

    def __init__(self, level: int, node: int, max_packet: int, aliases_max: int) -> None:
        self._level = level
        self._node = node
        self._max_packet = max_packet
        self._aliases_max = min(aliases_max, ALIASES_MAX)
        self._aliases: dict[bytes, int] = {}
        self._alias_room = ALIAS_BYTES

    def parts(
        self,
        message: Message,
        qos: int,
        retain: bool,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
        is_dup: bool,
    ) -> Parts | None:
        """As `fitting`; the topic of what goes out has an alias from then on."""
        found = self.fitting(message, qos, retain, subscriptions, attempt, is_dup)
        if found is not None and self._aliases_max:
            topic = message.record.topic
            if topic not in self._aliases and self._is_to_alias(topic):
                self._aliases[topic] = len(self._aliases) + 1
                self._alias_room -= len(topic)
        return found

    def fitting(
        self,
        message: Message,
        qos: int,
        retain: bool,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
        is_dup: bool,
    ) -> Parts | None:
        """(head, tail) of a delivery; None if it is larger than the client takes, or has a topic that clients
        may close the connection at."""
        if is_refused(message):
            return None
        if self._aliases_max or attempt != 1 or any(s.identifier for s in subscriptions):
            found = self._special(message, qos, retain, subscriptions, attempt, is_dup)
        else:
            lease_ms = subscriptions[0].lease_ms if subscriptions else 0
            found = _parts(message, self._level, qos, retain, self._node, lease_ms)
        if self._is_too_large(found, qos) and (attempt > 1 or message.tries):
            found = self._special(message, qos, retain, subscriptions, attempt, is_dup, has_tries=False)
        return None if self._is_too_large(found, qos) else found

    def _is_too_large(self, found: Parts, qos: int) -> bool:
        size = len(found[0]) + len(found[1]) + (2 if qos else 0)
        return 0 < self._max_packet < size

    def _is_to_alias(self, topic: bytes) -> bool:
        """Whether there is room to keep an alias for one more topic."""
        return len(self._aliases) < self._aliases_max and len(topic) <= self._alias_room

    def _special(
        self,
        message: Message,
        qos: int,
        retain: bool,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
        is_dup: bool,
        *,
        has_tries: bool = True,
    ) -> Parts:
        """With subscription identifiers or a topic alias, or not for the first time."""
        record = message.record
        topic, properties = record.topic, b""
        if self._level == 5:
            properties = common_properties(message, self._node)
            properties += b"".join(subscription_id(s.identifier) for s in subscriptions if s.identifier)
            before = message.attempts_before
            if (attempt > 1 or before) and record.due_ms:
                properties += user_property("fasti-attempt", str(before + max(1, attempt)))
            tries = tries_before(message, attempt) if record.due_ms else message.tries
            if has_tries and tries:
                properties += user_property("fasti-tries", tries_text(tries))
            if qos == 1 and len(subscriptions) == 1 and subscriptions[0].lease_ms:
                properties += _lease_property(subscriptions[0].lease_ms)
            alias = self._aliases.get(topic)
            if alias:
                topic = b""
                properties += topic_alias(alias)
            elif self._is_to_alias(topic):
                properties += topic_alias(len(self._aliases) + 1)
        head, tail = publish_parts(self._level, topic, record.payload, qos, retain, False, properties)
        return (with_dup(head) if is_dup and qos else head), tail


_ID = b"\x26\x00\x08fasti-id\x00\x20"
"""User property `fasti-id`, up to its value of 32 digits."""
_ID_BYTES = len(_ID) + 32
_ORDER = user_property("fasti-ordering-key", "")[:-2]
"""User property `fasti-ordering-key`, up to the length of its value."""
_SEQ_BYTES = 6
_PUBACK = Struct(">BBHBB").pack


def is_refused(message: Message) -> bool:
    """Whether the topic, stored by an earlier version, has a character that clients may close the connection
    at. It is not sent to them."""
    return bool(refused_character(message.topic.decode()))


def parts(message: Message, level: int, qos: int, retain: bool, node: int) -> Parts | None:
    """(head, tail) for a first delivery without subscription identifiers; None: it is refused."""
    return None if is_refused(message) else _parts(message, level, qos, retain, node)


def _parts(message: Message, level: int, qos: int, retain: bool, node: int, lease_ms: int = 0) -> Parts:
    """It, kept in `message.wire`."""
    if qos != 1:
        lease_ms = 0
    form = lease_ms << 8 | level << 3 | qos << 1 | retain
    wire = message.wire
    if wire is None:
        wire = message.wire = {}
    found = wire.get(form)
    if found is None:
        if message.is_usual:
            found = joined(message.topic, _usual_tail(message, level, node, lease_ms), qos, retain)
        else:
            found = _unusual_parts(message, level, qos, retain, node, lease_ms)
        wire[form] = found
    return found


def run_pieces(run: Run, level: int, qos: int, node: int) -> tuple[list[bytes], int]:
    """Pieces of a run, head, (packet id), tail of each message, and their bytes with packet ids. At QoS 1 the
    caller puts in the packet ids."""
    form, lease_ms = level << 3 | qos << 1, run.lease_ms
    found = run.wire.get(form)
    if found is None:
        pieces: list[bytes] = []
        add = pieces.append
        total = 2 * len(run.messages) if qos else 0
        topic = head = b""
        size = -1
        known: dict[tuple[bytes, int], bytes] = {}
        for message in run.messages:
            tail = _usual_tail(message, level, node, lease_ms)
            if len(tail) != size or message.topic != topic:
                topic, size = message.topic, len(tail)
                head = known.get((topic, size), b"")
                if not head:
                    if is_refused(message):
                        return [], sys.maxsize  # they are offered one by one
                    head = known[topic, size] = joined(topic, tail, qos, False)[0]
            add(head)
            if qos:
                add(b"")
            add(tail)
            total += len(head) + size
        found = run.wire[form] = pieces, total
    return found


def _unusual_parts(message: Message, level: int, qos: int, retain: bool, node: int, lease_ms: int) -> Parts:
    record = message.record
    properties = common_properties(message, node) if level == 5 else b""
    if record.retry is not None and level == 5:
        properties += user_property("fasti-attempt", str(message.attempts_before + 1))
        if message.tries:
            properties += user_property("fasti-tries", tries_text(message.tries))
    if lease_ms and level == 5:
        properties += _lease_property(lease_ms)
    return publish_parts(level, record.topic, record.payload, qos, retain, False, properties)


def _usual_tail(message: Message, level: int, node: int, lease_ms: int) -> bytes:
    """The payload of a usual message, at level 5 behind its properties and their length.

    The properties are those of `common_properties`, made in half the time: in one millisecond all messages
    share them, except for the seq.
    """
    payload = message.payload
    if level < 5:
        return payload
    order = message.ordering_key
    if order:
        order = _ORDER + len(order).to_bytes(2, "big") + order
    if not message.asked_ms:
        if lease_ms:
            order += _lease_property(lease_ms)
        return varint(len(order)) + order + payload
    place = message.position
    opening, closing = _of_millisecond(
        place >> 48, max(0, message.shard), node, message.asked_ms, message.late_ms, lease_ms, len(order)
    )
    return opening + hexlify((place & SEQ_MAX).to_bytes(_SEQ_BYTES, "big")) + closing + order + payload


@lru_cache(1024)
def _of_millisecond(
    at_ms: int, shard: int, node: int, due_ms: int, late_ms: int, lease_ms: int, order_bytes: int
) -> tuple[bytes, bytes]:
    """What stands before the seq, and behind it, before the ordering key and its name."""
    closing = _due_property(due_ms) + _late_property(late_ms)
    if lease_ms:
        closing += _lease_property(lease_ms)
    opening = varint(_ID_BYTES + len(closing) + order_bytes) + _ID + b"%012x%04x%04x" % (at_ms, shard, node)
    return opening, closing


def common_properties(message: Message, node: int) -> bytes:
    """The publisher's own properties, what is left of the expiry, and fasti's."""
    record = message.record
    properties = sendable_properties(record.properties)
    if record.expires_ms:
        left_ms = max(0, record.expires_ms - message.late_ms)
        # Rounded up, but for the one ms of a message that expires at once.
        properties += message_expiry(0 if left_ms <= AT_ONCE_MS else -(-left_ms // 1000))
    if record.due_ms:
        properties += (
            fasti_id(message.id_text(node)) + _due_property(record.due_ms) + _late_property(message.late_ms)
        )
        if record.schedule:
            properties += user_property("fasti-schedule", record.schedule.decode())
    if record.ordering_key:
        properties += user_property("fasti-ordering-key", record.ordering_key.decode())
    return properties


CANCELLED = user_property("fasti-state", "cancelled")


def fasti_id(name: str) -> bytes:
    """The user property that says what a message is called, by 32 digits."""
    return _ID + name.encode()


def puback_with_id(packet_id: int, message: int) -> bytes:
    """PUBACK of level 5 that says what the message is called."""
    return _PUBACK(0x40, _ID_BYTES + 4, packet_id, 0, _ID_BYTES) + _ID + hexlify(message.to_bytes(16, "big"))


@lru_cache(1024)
def _due_property(due_ms: int) -> bytes:
    """Many messages are due in the same millisecond."""
    return user_property("fasti-due", format_ms(due_ms))


@lru_cache(1024)
def _lease_property(lease_ms: int) -> bytes:
    return user_property("fasti-ack-timeout", str(lease_ms))


@lru_cache(1024)
def _late_property(late_ms: int) -> bytes:
    return user_property("fasti-late-ms", str(late_ms))
