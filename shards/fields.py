"""The fields of a stored message; `record.py` has their bytes.

A file of its own, because what uses it may be compiled, and a Struct must not be.
"""

import msgspec


class TryRow(msgspec.Struct, frozen=True, array_like=True):
    """A delivery that came to nothing."""

    at_ms: int
    """When that was known, wall ms."""
    by: str
    """Who had it: a client id, or what a worker calls itself; empty: nobody in particular."""
    outcome: str
    reason: str
    ms: int = 0
    """How long it was in hand; 0: not known."""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Of a message that is tried again: who alone gets it, and what came before."""

    addressee: bytes
    """The session or group, by the name that its rows have, UTF-8."""
    attempts: int = 0
    """Deliveries of the message to it before this row."""
    counted: int = 0
    """Those of them that count toward `sessions.max_attempts`."""
    reason: bytes = b""
    """Why the last of them came to nothing, UTF-8."""
    tries: list[TryRow] = []
    """The last ones, as far as they are known. No part of a record's bytes."""
    returns: int = 0
    """How often the message was returned in order, without a try. No part of a record's bytes."""
    told: int = 0
    """Deliveries from this row that `tries` has as well. No part of a record's bytes."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A message as stored. Times in ms; bytes as they go over the wire."""

    topic: bytes
    payload: bytes
    due_ms: int = 0
    qos: int = 1
    retain: bool = False
    drop_late: bool = False
    expires_ms: int = 0
    id: int = 0
    key: bytes = b""
    publisher: bytes = b""
    properties: bytes = b""
    encoding: int = 0
    zone: bytes = b""
    stub: int = 0
    when_ms: int = 0
    schedule: bytes = b""
    owner: bytes = b""
    """Name of the key that sent it, UTF-8; empty: none was shown."""
    retry: Retry | None = None
    """None: it is for everybody who subscribes."""
    deliver_to: bytes = b""
    """The endpoint, by its name, or the URL that it is posted to besides, UTF-8; empty: none."""

    @property
    def size(self) -> int:
        """Bytes that go to a subscriber, about."""
        return len(self.topic) + len(self.properties) + len(self.payload)
