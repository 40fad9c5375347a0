"""Outcomes of a cancel or move.

A separate file: its users may be compiled, and a Struct must not be.
"""

from enum import Enum

import msgspec

from timeline.position import MessageId

from .read import Found


class Outcome(Enum):
    """Outcome of a cancel or move."""

    DONE = "done"
    NOT_FOUND = "not-found"
    ALREADY_DISPATCHED = "already-dispatched"
    CANCELLED = "cancelled"
    CHANGED = "precondition-failed"


class Control(msgspec.Struct, frozen=True):
    """The answer to a cancel or move: its outcome, and where the message was, or is now."""

    outcome: Outcome
    found: Found | None = None
    row: MessageId = MessageId(0)
