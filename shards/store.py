"""The store contract: ordered tables of bytes, atomic batches, an explicit sync.

Everything above this file (keys, records, slices, commits, sessions) is the same for every engine, and
one conformance suite (tests/store) holds for all of them. What an engine promises:

  - a batch is applied whole or not at all, and batches survive a crash as a prefix: never the later one
    without the earlier;
  - `write` makes a batch readable, `flush` makes all that was written before it durable. Between the two
    a row can be read but may be gone after a crash;
  - `scan` gives every row of [start, end) in key order as of its opening, or raises: it never ends early
    and quietly;
  - `flush`, `compact`, `checkpoint`, `examine`, `rows_in` and `ingest` block and may be called from another
    thread than the rest, at the same time as each other and as the rest;
  - a *table file* is a sorted run of rows, made by somebody else with the engine's own writer. `ingest` takes
    whole ones in: its rows are readable and durable on return, whatever becomes of batches around it.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol


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


class Contents(NamedTuple):
    """What a table file holds, by its own account. `absent`: of the keys asked for."""

    rows: int
    first: bytes
    last: bytes
    absent: tuple[bytes, ...] = ()


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

    @property
    def is_shared(self) -> bool:
        """Whether other nodes have the same rows, by a log: then batches alone change them, and it takes no
        table files and no mark."""

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
        """Have what memory holds of the tables written into files, which ends the log. Raises StoreFailed."""

    def checkpoint(self, path: Path) -> None:
        """A consistent, durable copy in a new directory."""

    def examine(self, file: Path, folder: Path, sought: Sequence[bytes] = ()) -> Contents:
        """What a table file holds, and which of the sought keys it does not; the file stays as it is.

        `folder`: an empty one on the file's file system, for scratch. Raises Corrupt.
        """

    def rows_in(self, file: Path, folder: Path) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a table file, in order; the file stays as it is. `folder`: as for `examine`.

        Raises Corrupt.
        """

    def ingest(self, table: Table, files: Sequence[Path]) -> None:
        """Take table files in, all or none; they are moved away. Raises StoreFailed."""

    def mark(self, bound_ms: int) -> None:
        """Note how far dispatch may go while nothing else can be written; durable on return, blocks.

        Takes no room on the disk. Raises StoreFailed.
        """

    def marked_ms(self) -> int:
        """What was noted last, 0 if nothing was. Raises Corrupt, StoreFailed."""

    def reopen(self) -> None:
        """After a failure: close and open again, with what became durable. Raises StoreFailed."""

    def close(self) -> None: ...
