"""Publish requests: messages that a client wants published now, later, or after it is gone.

A file of its own, because what uses it may be compiled, and a Struct must not be.
"""

import msgspec

from shards.draft import AS_EVER, Terms
from shards.fields import Record


class PublishRequest(msgspec.Struct, frozen=True, gc=False):
    """A parsed publish request: the record, and the options that were asked for."""

    record: Record
    is_scheduled: bool = False
    key: bytes = b""
    fingerprint: bytes = b""
    terms: Terms = AS_EVER
    """Terms of its idempotency key."""
    received: bytes = b""
    """Row to write with it: the packet id of a QoS 2 publish of a session that outlives its connection."""
    is_plain: bool = False
    """Nothing was asked for, and its record has a topic, a payload, a QoS, a publisher and an owner only."""


class Will(msgspec.Struct, frozen=True):
    """A record to publish, and how many seconds after the connection has ended."""

    record: Record
    delay_s: int
