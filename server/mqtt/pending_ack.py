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
    """Id of a delayed or keyed message, for the answer; 0: the answer carries none."""
    is_cancelled: bool = False
    """The answer says that the message of this key was cancelled."""
