"""The store contract: ordered tables of bytes, atomic batches, an explicit sync.

Everything above this file (keys, records, slices, commits, sessions) is the same for every engine, and
one conformance suite (tests/store) holds for all of them. What an engine promises:

  - a batch is applied whole or not at all, and batches survive a crash as a prefix: never the later one
    without the earlier;
  - `write` makes a batch readable, `flush` makes all that was written before it durable. Between the two
    a row can be read but may be gone after a crash;
  - `scan` gives every row of [start, end) in key order as of its opening, or raises: it never ends early
    and quietly;
  - `flush`, `compact` and `checkpoint` block and may be called from another thread than the rest, at the same
    time as each other and as the rest.
"""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Protocol


class Table(Enum):
    """The tables of a store; values are the names on disk."""

    MESSAGES = "messages"
    SLICES = "slices"
    SHARDS = "shards"
    STRUCTURES = "structures"
    SESSIONS = "sessions"
    CURSORS = "cursors"
    RECEIVED = "received"
    DEDUPE = "dedupe"
    MOVED = "moved"
    HELD = "held"
    DISPATCHES = "dispatches"
    SCHEDULES = "schedules"
    RETAINED = "retained"
    RETRIES = "retries"
    DEAD = "dead"
    ENDPOINTS = "endpoints"
    META = "meta"

    __hash__ = object.__hash__
    """Each is the only one of its name. Enum's own would be 0.2 us for each row that is put or looked up."""


class Batch(Protocol):
    """Changes that become visible together."""

    def put(self, table: Table, key: bytes, value: bytes) -> None: ...

    def put_message(self, key: bytes, value: bytes) -> None:
        """`put` into `messages`, with as little as possible in between."""

    def delete(self, table: Table, key: bytes) -> None: ...

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        """Delete every key in [start, end)."""

    @property
    def size(self) -> int:
        """Bytes of what it puts, and of some of what it says beside that."""

    def __len__(self) -> int: ...


class Store(Protocol):
    """One database. Errors: StoreFailed, Corrupt."""

    def batch(self) -> Batch: ...

    def write(self, batch: Batch) -> None:
        """Apply a batch of this store: readable at once, durable at the next `flush`."""

    def flush(self) -> None:
        """Return when all that was written before the call is durable."""

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows with start <= key < end, in order, as they were at the first `next`."""

    def keys_beside(self, table: Table, start: bytes, end: bytes) -> Iterator[bytes]:
        """Where `scan` fails: the keys of [start, end), in order, of each file that can be read by itself.

        `get` may find less there, and the keys of a rotten file are not among them. Makes files; blocks for
        half a millisecond a megabyte. Raises StoreFailed.
        """

    def compact(self, table: Table, start: bytes, end: bytes) -> None:
        """Give the space of deleted rows in [start, end) back."""

    def unload(self) -> None:
        """Give memory back: what it holds of the tables goes into files, which ends the log, and what was
        read is forgotten. Raises StoreFailed."""

    def checkpoint(self, path: Path) -> None:
        """A consistent, durable copy in a new directory."""

    def mark(self, bound_ms: int) -> None:
        """Note how far dispatch may go while nothing else can be written; durable on return, blocks.

        Takes no room on the disk. Raises StoreFailed.
        """

    def marked_ms(self) -> int:
        """What was noted last, 0 if nothing was. Raises Corrupt, StoreFailed."""

    def reopen(self) -> None:
        """After a failure: close and open again, with what became durable. Raises StoreFailed."""

    def close(self) -> None: ...
