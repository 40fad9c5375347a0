"""A message as PUBLISH bytes, made once per form and joined with what differs between subscribers.

At level 5 deliveries of a scheduled message carry its id and due: `fasti-id`, `fasti-due`, `fasti-late-ms`;
`fasti-schedule` if a recurring schedule wrote it; `fasti-attempt` from the second delivery on. A retry also
carries its failed tries, `fasti-tries`. A plain publish goes out as it came in, and with `fasti-ordering-key`
if it has one. `fasti-ack-timeout` tells members of a group with an ack timeout how long it is. There a stored
plain publish has its `fasti-id` too, by which it is acked after the server was away. None of these keeps a
message from a client whose Maximum Packet Size it fits without them (`GIVES_WAY`).
"""

import sys
from binascii import hexlify
from functools import lru_cache
from struct import Struct

from shards.fate import AT_ONCE_MS
from shards.fields import Record
from shards.properties import sendable_properties, user_property
from timeline.filters import refused_character
from timeline.position import SEQ_MAX
from timeline.session import Subscription

from ..codec.properties import message_expiry, subscription_id, topic_alias
from ..codec.publish import joined, publish_parts, with_dup
from ..codec.wire import varint
from ..delivery.message import Message
from ..delivery.run import Run
from ..delivery.settling.dead_letter_queue import DEAD_REASON
from ..delivery.tries import tries_before, tries_text
from ..settings.times import format_ms

Parts = tuple[bytes, bytes]
ALIAS = ""
ID, DUE, LATE, SCHEDULE = "fasti-id", "fasti-due", "fasti-late-ms", "fasti-schedule"
ORDERING_KEY, ATTEMPT = "fasti-ordering-key", "fasti-attempt"
TRIES, LEASE = "fasti-tries", "fasti-ack-timeout"
GIVES_WAY = (ALIAS, TRIES, DEAD_REASON, LATE, SCHEDULE, DUE, ORDERING_KEY, ATTEMPT, LEASE, ID)
"""What the server adds to a PUBLISH, in the order in which it leaves this out if the packet is too large for
the client: the new topic alias, then user properties. Those that only inform go first, those that an ack
needs last."""
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
        *,
        is_trial: bool = False,
    ) -> Parts | None:
        """(head, tail) of a delivery. None if it is too large for the client, or if clients may close the
        connection at its topic. May give the topic an alias, unless `is_trial`: then nothing is sent.

        Usual ones are encoded once for all (`parts`). Others have subscription identifiers or a topic alias,
        are redeliveries, or have less of what the server adds.
        """
        lease_ms = subscriptions[0].lease_ms if len(subscriptions) == 1 and qos == 1 else 0
        if not (self._aliases_max or attempt != 1 or any(s.identifier for s in subscriptions)):
            found = parts(message, self._level, qos, retain, self._node, lease_ms)
            if found is not None and not self._is_too_large(sum(map(len, found)), qos):
                return found
        if is_refused(message):
            return None
        topic, payload, own = message.topic, message.payload, b""
        added: dict[str, bytes] = {}
        if self._level == 5:
            own = own_properties(message)
            own += b"".join(subscription_id(s.identifier) for s in subscriptions if s.identifier)
            added = added_properties(message, self._node, attempt, lease_ms)
            known = self._aliases.get(topic, 0)
            if known and not self._exceeds(b"", payload, len(own) + len(topic_alias(known)), qos):
                topic, own = b"", own + topic_alias(known)  # else it is shorter than its alias
            elif not known and self._is_to_alias(topic):
                added[ALIAS] = topic_alias(len(self._aliases) + 1)
            for name in GIVES_WAY:
                if not self._exceeds(topic, payload, len(own) + sum(map(len, added.values())), qos):
                    break
                added.pop(name, None)
        properties = own + b"".join(added.values())
        head, tail = publish_parts(self._level, topic, payload, qos, retain, False, properties)
        if self._is_too_large(len(head) + len(tail), qos):
            return None
        if ALIAS in added and not is_trial:
            self._aliases[topic] = len(self._aliases) + 1
            self._alias_room -= len(topic)
        return with_dup(head) if is_dup and qos else head, tail

    def _is_too_large(self, size: int, qos: int) -> bool:
        """Whether the client takes no PUBLISH of so many bytes and, above QoS 0, a packet id."""
        return 0 < self._max_packet < size + (2 if qos else 0)

    def _exceeds(self, topic: bytes, payload: bytes, properties: int, qos: int) -> bool:
        """The same of one of level 5 that is not encoded yet. `properties`: their bytes."""
        rest = 2 + len(topic) + len(varint(properties)) + properties + len(payload)
        head = 1 + len(varint(rest + (2 if qos else 0)))
        return self._is_too_large(head + rest, qos)

    def _is_to_alias(self, topic: bytes) -> bool:
        """Whether there is room to keep an alias for one more topic."""
        return len(self._aliases) < self._aliases_max and len(topic) <= self._alias_room


_ID = b"\x26\x00\x08fasti-id\x00\x20"
"""User property `fasti-id`, up to its value of 32 digits."""
_ID_BYTES = len(_ID) + 32
_ORDER = user_property(ORDERING_KEY, "")[:-2]
"""User property `fasti-ordering-key`, up to the length of its value."""
_DEAD = user_property(DEAD_REASON, "")[:-2]
_SEQ_BYTES = 6
_PUBACK = Struct(">BBHBB").pack


def is_refused(message: Message) -> bool:
    """Whether the topic has a character at which clients may close the connection. Only an earlier version
    can have stored it. The server does not send it."""
    return bool(refused_character(message.topic.decode()))


def parts(message: Message, level: int, qos: int, retain: bool, node: int, lease_ms: int = 0) -> Parts | None:
    """(head, tail) for a first delivery without subscription identifiers; None: it is refused. Cached in
    `message.wire`."""
    if qos != 1:
        lease_ms = 0
    form = lease_ms << 8 | level << 3 | qos << 1 | retain
    wire = message.wire
    if wire is None:
        wire = message.wire = {}
    found = wire.get(form)
    if found is None and not is_refused(message):
        if message.is_usual:
            found = joined(message.topic, _usual_tail(message, level, node, lease_ms), qos, retain)
        else:
            properties = common_properties(message, node, lease_ms) if level == 5 else b""
            found = publish_parts(level, message.topic, message.payload, qos, retain, False, properties)
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
    if not message.requested_ms:
        if lease_ms:
            name = fasti_id(message.id_text(node)) if message.is_stored else b""
            order = name + order + _lease_property(lease_ms)
        return varint(len(order)) + order + payload
    place = message.position
    opening, closing = _of_millisecond(
        place >> 48, max(0, message.shard), node, message.requested_ms, message.late_ms, lease_ms, len(order)
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


def common_properties(message: Message, node: int, lease_ms: int = 0) -> bytes:
    """All properties of a first delivery."""
    return own_properties(message) + b"".join(added_properties(message, node, 1, lease_ms).values())


def own_properties(message: Message) -> bytes:
    """The publisher's properties, and what is left of the expiry."""
    record = message.record
    properties = sendable_properties(_published(record)[0])
    if record.expires_ms:
        left_ms = max(0, record.expires_ms - message.late_ms)
        # Rounded up, but for the one ms of a message that expires at once.
        properties += message_expiry(0 if left_ms <= AT_ONCE_MS else -(-left_ms // 1000))
    return properties


def _published(record: Record) -> tuple[bytes, bytes]:
    """The publisher's user properties, and the reason that the server appended to a copy of a dead letter."""
    own, dead = record.properties, b""
    if record.topic.startswith(b"$dead/") and (at := own.rfind(_DEAD)) >= 0:
        own, dead = own[:at], own[at:]
    return own, dead


def added_properties(message: Message, node: int, attempt: int, lease_ms: int) -> dict[str, bytes]:
    """The server's own user properties by name, for the `attempt`-th delivery from its row."""
    record, before = message.record, message.attempts_before
    added: dict[str, bytes] = {}
    if record.due_ms or (lease_ms and message.is_stored):
        added[ID] = fasti_id(message.id_text(node))
    if record.due_ms:
        added[DUE] = _due_property(record.due_ms)
        added[LATE] = _late_property(message.late_ms)
        if record.schedule:
            added[SCHEDULE] = user_property(SCHEDULE, record.schedule.decode())
    if record.ordering_key:
        added[ORDERING_KEY] = user_property(ORDERING_KEY, record.ordering_key.decode())
    if before or (attempt > 1 and record.due_ms):
        added[ATTEMPT] = user_property(ATTEMPT, str(message.try_number(attempt)))
    tries = tries_before(message, attempt) if record.due_ms else message.tries
    if tries:
        added[TRIES] = user_property(TRIES, tries_text(tries))
    if lease_ms:
        added[LEASE] = _lease_property(lease_ms)
    if dead := _published(record)[1]:
        added[DEAD_REASON] = sendable_properties(dead)
    return added


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
    return user_property(DUE, format_ms(due_ms))


@lru_cache(1024)
def _lease_property(lease_ms: int) -> bytes:
    return user_property(LEASE, str(lease_ms))


@lru_cache(1024)
def _late_property(late_ms: int) -> bytes:
    return user_property(LATE, str(late_ms))
