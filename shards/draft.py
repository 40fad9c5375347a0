"""A message that wants a place on the timeline, the terms of its key, and the key of a batch; and the answers
for a known key, and to a cancel or move.

A separate file: its users may be compiled, and a Struct must not be.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from timeline.position import MessageId

from .read import Found


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message to place. `value` is the encoded record; due 0: as soon as possible."""

    due_ms: int
    topic: bytes
    value: bytes
    key: bytes = b""
    fingerprint: bytes = b""
    while_undone: bool = False
    """The key is taken only while its earlier message is undone."""


class Known(msgspec.Struct, frozen=True):
    """The same request used the idempotency key before: the first answer again."""

    id: MessageId
    due_ms: int


class Terms(msgspec.Struct, frozen=True):
    """Terms of a request for its keys."""

    key_only: bool = False
    """The key alone decides that it is the same request."""
    replace: bool = False
    """A key whose message was cancelled is free."""
    while_undone: bool = False
    """`Draft.while_undone` for all drafts."""


class BatchKey(msgspec.Struct, frozen=True):
    """The idempotency key of a whole batch."""

    key: bytes
    """Its row key."""
    fingerprint: bytes
    count: int
    """Items of the batch."""
    places: Sequence[int] = ()
    """For each draft, its item; empty: the drafts are the items."""


AS_EVER = Terms()


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
