"""A message on its way out: one object for all who get it, encoded once per form.

Deliveries of one message to a thousand subscribers differ in a few bytes (packet id, DUP, the
subscription's identifiers), so the parts that are the same are made once and kept in `wire`:
(protocol level, QoS, retain) -> (head, tail), joined with the packet id between them.

Written for speed: there is one for each message that is dispatched or replayed. A stored one is kept as the
bytes that were read, with what routing needs; its `Record` is made on demand. The usual message (`is_usual`)
has only a topic, a payload, a QoS and perhaps a due, an owner and an ordering key, and needs none: the replay
of a backlog takes three quarters of the time.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from shards.fate import is_over, is_too_late
from shards.fields import Record, Retry, TryRow
from shards.record import VERSION, decode, id_at, likeness, ordering_key_of, owner_of, sender_of, usual
from timeline.position import START, MessageId, Position, id_text

OVERHEAD_BYTES = 600
"""RAM of a message besides its topic, payload and properties, bytes."""
SHARED_MS = 1_000
"""For this time after it went out a message goes out unchanged, with the same encoded forms for all."""


def publisher_of(client_id: str) -> bytes:
    """A client id as it is stored with what the client publishes; no rule is for a longer one."""
    return client_id.encode()[:255]


class Message:
    """A dispatched message. `shard` < 0: not stored, nobody can replay it."""

    is_again = False
    """It comes from the row of a delivery, which waited for this try."""
    at = START
    """Its place among those that waited."""

    __slots__ = (
        "_body_at",
        "_record",
        "_value",
        "due_ms",
        "is_judged",
        "is_usual",
        "late_ms",
        "position",
        "qos",
        "requested_ms",
        "shard",
        "topic",
        "wire",
    )

    def __init__(
        self,
        position: Position,
        shard: int,
        record: Record | None,
        late_from_ms: int,
        value: bytes = b"",
        layout: tuple[int, int, int, int] | None = None,
        *,
        is_usual: bool = False,
    ) -> None:
        """From `record`, or if that is None from the stored `value`, which raises Corrupt. `layout`: result
        of `shards.record.usual` for the value, if known. `is_usual`: whether the record is usual."""
        self.position = position
        self.shard = shard
        if record is None:
            layout = layout or usual(value)
            if layout is None:
                record = decode(value)
            else:
                is_usual = True
                self.is_judged = owner_of(value) != b""
                """Whether `Owners` is asked before it is handed out: it has an owner, or is retained."""
                self.qos, self.requested_ms, topic_at, end = layout
                self.topic = value[topic_at:end]
                self._body_at = end
        if record is not None:
            self.qos = record.qos
            self.requested_ms = record.due_ms
            self.topic = record.topic
            self.is_judged = record.owner != b"" or record.retain
            self._body_at = 0
        self._record = record
        self._value = value if is_usual else b""
        self.is_usual = is_usual
        """It has a topic, a payload, a QoS, perhaps a due, an owner and an ordering key; nothing expires or
        asks for more."""
        self.due_ms = due_ms = (
            self.requested_ms or position >> 48
        )  # `due_at`, which would cost a call a message
        """When it was due; of a plain publish, when it came. `requested_ms`: 0 for that."""
        self.late_ms = late_from_ms - due_ms if late_from_ms > due_ms else 0
        self.wire: dict[int, tuple[bytes, bytes]] | None = None
        """Encoded forms; None: not encoded yet."""

    @property
    def record(self) -> Record:
        """The full record."""
        record = self._record
        if record is None:
            record = self._record = decode(self._value)
        return record

    @property
    def sender(self) -> tuple[bytes, bytes, bytes]:
        """Its owner and publisher, empty: none; and its topic."""
        record = self._record
        owner, publisher = sender_of(self._value) if record is None else (record.owner, record.publisher)
        return owner, publisher, self.topic

    @property
    def ordering_key(self) -> bytes:
        """Its ordering key; empty: none."""
        record = self._record
        if record is not None:
            return record.ordering_key
        value = self._value
        return ordering_key_of(value) if value[0] != VERSION else b""

    @property
    def payload(self) -> bytes:
        record = self._record
        return self._value[self._body_at :] if record is None else record.payload

    @property
    def payload_bytes(self) -> int:
        return len(self._value) - self._body_at if self._record is None else len(self._record.payload)

    @property
    def likeness(self) -> bytes:
        """Equal for usual messages that differ in position, due, key and payload alone; empty: unknown."""
        return likeness(self._value, self._body_at) if self._body_at else b""

    @property
    def body_bytes(self) -> int:
        """Approximate bytes on the wire."""
        record = self._record
        return len(self.topic) + len(self._value) - self._body_at if record is None else record.size

    @property
    def retain(self) -> bool:
        return not self.is_usual and self.record.retain

    @property
    def is_stored(self) -> bool:
        return self.shard >= 0

    def is_expired(self, wall_ms: int) -> bool:
        """Whether its expiry, counted from due, has come."""
        return not self.is_usual and is_over(self.due_ms, self.record.expires_ms, wall_ms)

    def is_dropped(self, wall_ms: int, dispatched_ms: Callable[[Position], int | None]) -> bool:
        """Whether it has expired, or was dispatched too late to be delivered. `dispatched_ms`: when what
        stands at a position was dispatched, wall ms."""
        if self.is_expired(wall_ms):
            return True
        if self.is_usual or not self.record.drop_late:
            return False
        dispatched = dispatched_ms(self.position)
        return dispatched is not None and is_too_late(self.due_ms, dispatched)

    @property
    def as_of_ms(self) -> int:
        """When it was read, as far as it says how late it is: wall ms, not before it was due."""
        return self.due_ms + self.late_ms

    def refresh(self, wall_ms: int) -> None:
        """It goes out again, now: how late it is and what is left of its expiry have changed, so that its
        forms are encoded anew."""
        late_ms = wall_ms - self.due_ms
        if late_ms - self.late_ms >= SHARED_MS:
            self.late_ms, self.wire = late_ms, None

    def tried(self, attempts: int, tries: Sequence[TryRow]) -> "Message":
        """The message after so many deliveries from its row, with what is known of all its tries."""
        retry = replace(self.record.retry or Retry(), tries=tries, recorded=attempts)
        record = replace(self.record, retry=retry)
        if self.is_again:
            return Again(self.position, self.shard, record, self.as_of_ms, at=self.at)
        return Message(self.position, self.shard, record, self.as_of_ms)

    def size(self) -> int:
        """Bytes of RAM, about: what it is kept as, and once more as a Record and as a PUBLISH."""
        if self._value:
            return OVERHEAD_BYTES + 3 * len(self._value)
        record = self.record
        return OVERHEAD_BYTES + 2 * len(record.payload) + record.size

    def id(self, node: int) -> MessageId:
        """Message id."""
        stored = 0 if self.is_usual else self.record.id
        return id_at(self.position, max(self.shard, 0), node, stored)

    def id_text(self, node: int) -> str:
        """Message id as text."""
        return id_text(self.id(node))

    @property
    def attempts_before(self) -> int:
        """Deliveries to the receiver of a retry before this row was written; else 0."""
        retry = None if self.is_usual else self.record.retry
        return 0 if retry is None else retry.attempts

    @property
    def tries(self) -> Sequence[TryRow]:
        """The last failed tries of a retry."""
        retry = None if self.is_usual else self.record.retry
        return () if retry is None else retry.tries

    def try_number(self, attempt: int) -> int:
        """Number of a delivery to its receiver, from 1. `attempt`: since this row was written; 0: unknown."""
        return self.attempts_before + max(1, attempt)

    def is_redelivered(self, attempt: int) -> bool:
        """Whether its receiver may have had it before."""
        return attempt != 1 or self.attempts_before > 0

    @property
    def counted_before(self) -> int:
        """Part of `attempts_before` that counts toward `sessions.max_attempts`."""
        retry = None if self.is_usual else self.record.retry
        return 0 if retry is None else retry.counted


class Again(Message):
    """A message that its place gets again."""

    __slots__ = ("at", "is_withheld")

    is_again = True

    def __init__(self, root: Position, shard: int, record: Record, wall_ms: int, *, at: Position) -> None:
        super().__init__(root, shard, record, wall_ms)
        self.at = at
        self.is_withheld = False
