"""The fields of a stored message; `record.py` has their bytes.

A separate file: its users may be compiled, and a Struct must not be.
"""

import msgspec


class TryRow(msgspec.Struct, frozen=True, array_like=True):
    """A failed delivery."""

    at_ms: int
    """Time of the failure, wall ms."""
    by: str
    """Who had it: a client id, or a worker's name; empty: unknown."""
    outcome: str
    reason: str
    ms: int = 0
    """How long it was held; 0: unknown."""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """A message's tries at one place so far, from the row of its delivery (delivery_rows.py). Not stored in a
    record's bytes."""

    attempts: int = 0
    """Deliveries to it before this row."""
    counted: int = 0
    """Those that count toward `sessions.max_attempts`."""
    reason: bytes = b""
    """Why the last delivery failed, UTF-8."""
    tries: list[TryRow] = []
    """The last tries, as far as they are known."""
    returns: int = 0
    """Times that the message was returned in order, without a try."""
    recorded: int = 0
    """Deliveries from this row that `tries` already has."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A stored message. Times in ms; bytes as on the wire."""

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
    """When it was cancelled, ms. In the stub of a move, the seq of the next row (0.1.0: ms)."""
    schedule: bytes = b""
    owner: bytes = b""
    """Name of the key that sent it, UTF-8; empty: no key."""
    retry: Retry | None = None
    """None: it never failed there. Not stored in a record's bytes."""
    deliver_to: bytes = b""
    """Endpoint name, or URL, to which it is posted in addition, UTF-8; empty: none."""
    ordering_key: bytes = b""
    """What it belongs to, such as a customer, UTF-8; empty: none."""

    @property
    def size(self) -> int:
        """Approximate bytes sent to a subscriber."""
        return len(self.topic) + len(self.properties) + len(self.payload)
