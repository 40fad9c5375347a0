"""The store contract in RAM: for tests, and as the model of the RocksDB store.

Its write-ahead log is a list of batches, with a mark up to which they are durable. So a test can crash it at
every prefix that a real crash could leave (`crash`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from sortedcontainers import SortedDict

from shards.errors import StoreFailed
from shards.store import Batch, Table

Change = tuple[Table, bytes, bytes | None, bytes | None]
"""(table, key, value, None): put; (table, key, None, None): delete; (table, start, None, end): range."""


class MemoryBatch:
    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.size = 0

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self.changes.append((table, key, value, None))
        self.size += len(key) + len(value)

    def put_message(self, key: bytes, value: bytes) -> None:
        self.put(Table.MESSAGES, key, value)

    def delete(self, table: Table, key: bytes) -> None:
        self.changes.append((table, key, None, None))

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        self.changes.append((table, start, None, end))

    def __len__(self) -> int:
        return len(self.changes)


class MemoryStore:
    """A sorted dictionary for each table, and the log that builds them."""

    def __init__(self) -> None:
        self.log: list[MemoryBatch] = []
        self.durable = 0
        self.fail_writes = False
        self.fail_flushes = False
        self.fail_marks = False
        self.damage = ""
        self.survivors = 0
        """Number of non-durable batches that a `reopen` keeps."""
        self._marked_ms = 0
        self._tables = _empty()

    def batch(self) -> MemoryBatch:
        return MemoryBatch()

    def write(self, batch: Batch) -> None:
        if self.fail_writes:
            raise StoreFailed("the memory store was told to fail its writes")
        own = cast("MemoryBatch", batch)
        self.log.append(own)
        self._apply(own)

    def flush(self) -> None:
        if self.fail_flushes:
            raise StoreFailed("the memory store was told to fail its syncs")
        self.durable = len(self.log)

    def written(self) -> int:
        return len(self.log)

    def flush_to(self, written: int) -> None:
        self.flush()

    def get(self, table: Table, key: bytes) -> bytes | None:
        found: bytes | None = self._tables[table].get(key)
        return found

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = self._tables[table]
        yield from [(key, rows[key]) for key in rows.irange(start, end, (True, False))]

    def check(self, table: Table, start: bytes, most: int) -> tuple[bytes | None, int]:
        size = 0
        for key in self._tables[table].irange(start):
            if size >= most:
                return key, size
            size += len(key) + len(self._tables[table][key])
        return None, size

    @property
    def file_bytes(self) -> int:
        return 0

    def drop_pages(self) -> None:
        """There are no files."""

    def keys_beside(self, table: Table, start: bytes, end: bytes) -> Iterator[bytes]:
        return iter(())

    def compact(self, table: Table, start: bytes, end: bytes) -> None:
        """Nothing to free."""

    def unload(self) -> None:
        """Nothing to unload: memory is all it has."""

    def checkpoint(self, path: Path) -> None:
        raise StoreFailed(f"a store in RAM has no files to link into {path}")

    def mark(self, bound_ms: int) -> None:
        if self.fail_marks:
            raise StoreFailed("the memory store was told to fail its marks")
        self._marked_ms = bound_ms

    def marked_ms(self) -> int:
        return self._marked_ms

    def reopen(self) -> None:
        self.crash(self.survivors)
        if self.fail_writes:
            raise StoreFailed("the memory store was told to fail: it can only be read")

    def close(self) -> None:
        """Nothing to close."""

    def crash(self, survivors: int) -> None:
        """Reopen with the durable batches and the first `survivors` batches after them."""
        del self.log[self.durable + survivors :]
        self._tables = _empty()
        for batch in self.log:
            self._apply(batch)
        self.durable = len(self.log)

    def _apply(self, batch: MemoryBatch) -> None:
        for table, key, value, end in batch.changes:
            rows = self._tables[table]
            if value is not None:
                rows[key] = value
            elif end is None:
                rows.pop(key, None)
            else:
                for doomed in list(rows.irange(key, end, (True, False))):
                    del rows[doomed]


def _empty() -> dict[Table, "SortedDict[bytes, bytes]"]:
    return {table: SortedDict() for table in Table}
