"""What asks for a place on the timeline, on which terms, and the answer where its key is known.

A file of its own, because what uses it may be compiled, and a Struct must not be.
"""

import msgspec

from timeline.position import MessageId


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message that wants a place. `value` is the encoded record; due 0: as soon as possible."""

    due_ms: int
    topic: bytes
    value: bytes
    key: bytes = b""
    fingerprint: bytes = b""
    while_undone: bool = False
    """Its key is taken only as long as something of the message that has it is undone."""


class Known(msgspec.Struct, frozen=True):
    """The idempotency key was used before, by the same request: the first answer again."""

    id: MessageId
    due_ms: int


class Terms(msgspec.Struct, frozen=True):
    """What a request has to say of its keys."""

    key_only: bool = False
    """Whatever was asked for under the key was this request."""
    replace: bool = False
    """A key whose message was cancelled is free."""
    while_undone: bool = False
    """`Draft.while_undone`, of all of them."""


AS_EVER = Terms()
