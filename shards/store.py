"""The store contract: ordered tables of bytes, atomic batches, an explicit sync.

Everything above this file (keys, records, slices, commits, sessions) is the same for every engine. One
conformance suite (tests/store) tests all engines. An engine promises:

  - a batch is applied whole or not at all, and batches survive a crash as a prefix: never the later one
    without the earlier;
  - `write` makes a batch readable, `flush` makes everything written before it durable. In between a row can
    be read, but a crash may lose it;
  - `scan` yields every row of [start, end) in key order as of its opening, or raises: it never ends early
    without an error;
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
    DELIVERIES = "deliveries"
    DEAD = "dead"
    """Of format 1: empty since (upgrade.py)."""
    ENDPOINTS = "endpoints"
    ORDER = "order"
    META = "meta"

    __hash__ = object.__hash__
    """Every member is unique. Enum's own hash would cost 0.2 us for each row that is put or looked up."""


ROWS_END = b"\xff" * 64
"""Above every key of every table."""


class Batch(Protocol):
    """Changes that become visible together."""

    def put(self, table: Table, key: bytes, value: bytes) -> None: ...

    def put_message(self, key: bytes, value: bytes) -> None:
        """`put` into `messages`, with minimal overhead."""

    def delete(self, table: Table, key: bytes) -> None: ...

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        """Delete every key in [start, end)."""

    @property
    def size(self) -> int:
        """Bytes of its puts, and of part of their overhead."""

    def __len__(self) -> int: ...


class Store(Protocol):
    """One database. Errors: StoreFailed, Corrupt."""

    def batch(self) -> Batch: ...

    def write(self, batch: Batch) -> None:
        """Apply a batch of this store: readable at once, durable at the next `flush`."""

    def flush(self) -> None:
        """Return when everything written before the call is durable."""

    def written(self) -> int:
        """How much was written so far, for `flush_to`."""

    def flush_to(self, written: int) -> None:
        """Return when so much is durable, later writes perhaps not. Blocks."""

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows with start <= key < end, in order, as they were at the first `next`."""

    @property
    def damage(self) -> str:
        """What could not be read since it was opened, in words; empty: nothing."""

    def check(self, table: Table, start: bytes, most: int) -> tuple[bytes | None, int]:
        """Read about `most` bytes of rows from `start` on, past the cache. Returns the key where the rest
        begins, None if there is none, and how many bytes these were."""

    @property
    def file_bytes(self) -> int:
        """Bytes of its table files. Raises StoreFailed."""

    def drop_pages(self) -> None:
        """Make the system forget what it keeps of the table files in RAM: reads come from the disk."""

    def keys_beside(self, table: Table, start: bytes, end: bytes) -> Iterator[bytes]:
        """When `scan` fails: the keys of [start, end), in order, of each file that can be read by itself.

        `get` may find fewer, and the keys of a rotten file are missing. Makes files; blocks for half a
        millisecond per megabyte. Raises StoreFailed.
        """

    def compact(self, table: Table, start: bytes, end: bytes) -> None:
        """Free the space of deleted rows in [start, end)."""

    def unload(self) -> None:
        """Free memory: write the memtables to files, which ends the log, and drop the cache. Raises
        StoreFailed."""

    def checkpoint(self, path: Path) -> None:
        """Make a consistent, durable copy in a new directory."""

    def mark(self, bound_ms: int) -> None:
        """Note how far dispatch may go while nothing else can be written. Durable on return; blocks.

        Takes no room on the disk. Raises StoreFailed.
        """

    def marked_ms(self) -> int:
        """The bound noted last, 0 if none. Raises Corrupt, StoreFailed."""

    def reopen(self) -> None:
        """After a failure: close and open again, with what was durable. Raises StoreFailed."""

    def close(self) -> None: ...
