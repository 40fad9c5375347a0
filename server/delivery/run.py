"""Usual messages that go to the same subscribers, one after the other: routed once, offered as one.

What a client has published in one go, and what a session that was away reads on, mostly has one topic, or the
same subscribers. Of such a run a subscriber's room is looked at once, and its bytes are made once for all
whose deliveries have the same form. With ten subscribers a delivery takes half of what it takes by itself.

All or nothing: where there is no room for the whole of a run, or something is peculiar about a subscriber,
its messages are offered one by one.
"""

from collections.abc import Sequence

from timeline.position import Position

from .message import Message

RUN_MAX = 128
"""Messages in a run. It is not cut for who has room for a part of it only."""


class Run:
    """Messages that are all usual and of one QoS, in position order."""

    __slots__ = ("messages", "qos", "spots", "wire")

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.qos = messages[0].qos
        self.spots: list[tuple[Position, int]] = [(one.position, one.shard) for one in messages]
        """(position, shard) of each."""
        self.wire: dict[int, tuple[list[bytes], int]] = {}
        """By form: what is sent, with room for packet ids, and its size in bytes (server/mqtt/forms)."""

    def __len__(self) -> int:
        return len(self.messages)
