"""A message on its way out: one object for all who get it, encoded once per form.

Deliveries of one message to a thousand subscribers differ in a few bytes (packet id, DUP, the
subscription's identifiers), so the parts that are the same are made once and kept in `wire`:
(protocol level, QoS, retain) -> (head, tail), joined with the packet id between them.
"""

from shards.fate import is_over
from shards.fields import Record
from shards.record import id_at
from timeline.position import MessageId, Position, id_text

OVERHEAD_BYTES = 600
"""What a message costs in RAM besides its topic, payload and properties."""
SHARED_MS = 1_000
"""For so long after its dispatch a message goes out as it was then, one object for all."""


def publisher_of(client_id: str) -> bytes:
    """A client id as it is stored with what the client publishes; no rule is for a longer one."""
    return client_id.encode()[:255]


class Message:
    """A dispatched message. `shard` < 0: not stored, nobody can replay it."""

    __slots__ = ("due_ms", "late_ms", "position", "record", "shard", "wire")

    def __init__(self, position: Position, shard: int, record: Record, late_from_ms: int) -> None:
        self.position = position
        self.shard = shard
        self.record = record
        self.due_ms = record.due_ms or position >> 48  # `due_at`, which would cost a call a message
        self.late_ms = max(0, late_from_ms - self.due_ms)
        self.wire: dict[int, tuple[bytes, bytes]] = {}

    @property
    def is_stored(self) -> bool:
        return self.shard >= 0

    def is_expired(self, wall_ms: int) -> bool:
        """Whether its expiry, counted from due, has come."""
        return is_over(self.due_ms, self.record.expires_ms, wall_ms)

    def as_of(self, wall_ms: int) -> "Message":
        """The message as it goes out now: how late it is and what is left of its expiry have changed."""
        if wall_ms - self.due_ms - self.late_ms < SHARED_MS:
            return self
        return Message(self.position, self.shard, self.record, wall_ms)

    def size(self) -> int:
        """Bytes of RAM, about."""
        record = self.record
        return OVERHEAD_BYTES + 2 * len(record.payload) + record.size

    def id(self, node: int) -> MessageId:
        """What users call it."""
        return id_at(self.position, max(self.shard, 0), node, self.record.id)

    def id_text(self, node: int) -> str:
        """The message id as users know it."""
        return id_text(self.id(node))

    @property
    def attempts_before(self) -> int:
        """Of a retry: deliveries to its receiver before this row was written."""
        return 0 if self.record.retry is None else self.record.retry.attempts

    def try_number(self, attempt: int) -> int:
        """Which delivery to its receiver one is, from 1 on. `attempt`: since this row was written; 0: not
        known."""
        return self.attempts_before + max(1, attempt)

    @property
    def counted_before(self) -> int:
        """Those of them that count toward `sessions.max_attempts`."""
        return 0 if self.record.retry is None else self.record.retry.counted
