"""Usual messages that go to the same subscribers, one after the other: routed once, offered as one.

What a client publishes in one go, and what a session reads on after it was away, mostly has one topic, or the
same subscribers. For a run a subscriber's room is looked at once, and its bytes are made once for all
deliveries of the same form. With ten subscribers a delivery takes half the time.

A session takes a whole run or nothing. A group (shared.py) divides it among its members. What was not taken,
for lack of room or because of a peculiar subscription, is offered one by one.
"""

from collections.abc import Sequence

from timeline.position import Position

from .message import Message

RUN_MAX = 128
"""Messages in a run. It is not cut for who has room for a part of it only."""


class Run:
    """Messages that are all usual and of one QoS, in position order."""

    __slots__ = ("addresses", "lease_ms", "messages", "payload_bytes", "qos", "wire")

    def __init__(self, messages: Sequence[Message], lease_ms: int = 0) -> None:
        """`lease_ms`: ack timeout that a member of a group is told; 0: none."""
        self.messages = messages
        self.lease_ms = lease_ms
        self.qos = messages[0].qos
        self.payload_bytes = sum([one.payload_bytes for one in messages])
        self.addresses: list[tuple[Position, int]] = [(one.position, one.shard) for one in messages]
        """(position, shard) of each."""
        self.wire: dict[int, tuple[list[bytes], int]] = {}
        """By form: what is sent, with room for packet ids, and its size in bytes (server/mqtt/forms)."""

    def __len__(self) -> int:
        return len(self.messages)
