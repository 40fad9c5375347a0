"""How a cancel or move ended.

A file of its own, because what uses it may be compiled, and a Struct must not be.
"""

from enum import Enum

import msgspec

from timeline.position import MessageId

from .read import Found


class Outcome(Enum):
    """How a cancel or move ended."""

    DONE = "done"
    NOT_FOUND = "not-found"
    ALREADY_DISPATCHED = "already-dispatched"
    CANCELLED = "cancelled"
    CHANGED = "precondition-failed"


class Control(msgspec.Struct, frozen=True):
    """The answer to a cancel or move: how it ended and where the message stood, or stands now."""

    outcome: Outcome
    found: Found | None = None
    row: MessageId = MessageId(0)
