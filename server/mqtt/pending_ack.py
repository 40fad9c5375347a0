"""A publish that waits for its ack.

A file of its own, because what uses it may be compiled, and a Struct must not be.
"""

import msgspec


class PendingAck(msgspec.Struct, gc=False):
    """A publish that has not been answered yet: by PUBACK at QoS 1, by PUBREC at QoS 2."""

    packet_id: int
    qos: int
    is_ready: bool = False
    reason: int = 0
    detail: str = ""
    """Reason of the refusal."""
    message: int = 0
    """The id that the answer tells, of what was delayed or has a key; any other answer is bare."""
    is_cancelled: bool = False
    """The answer says so too: it was there under its key, and nobody gets it."""
