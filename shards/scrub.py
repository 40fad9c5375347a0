"""Reads the tables of a store whole, in steps, to find damage before a row is needed.

The engine checks the checksum of every block that it reads, of rows that were replaced or deleted too. So it
is enough to read all rows: past the engine's cache, and past what the system keeps of the files in RAM. Not
found are blocks that nobody reads (filters, and what a deleted range covers), and rows that were wrong before
the engine had them. What is in the engine's log only is checked when the store is opened.

    walk = Walk(store)
    while not walk.is_over: walk.step()         some 256 KiB each: 1 to 3 ms

A place in the walk is (number of the table, key): a later walk may begin there.
"""

from collections.abc import Generator
from pathlib import Path

from .recover import format_of
from .rocks import RocksStore
from .store import Store, Table

STEP_BYTES = 256 << 10
COPY_CACHE_BYTES = 4 << 20
"""The engine's cache for a copy: index blocks."""
_TABLES = tuple(Table)


class Walk:
    """A walk over all rows of a store."""

    def __init__(self, store: Store, table: int = 0, key: bytes = b"") -> None:
        self._store = store
        self.table, self.key = table, key

    @property
    def is_over(self) -> bool:
        return self.table >= len(_TABLES)

    def step(self) -> int:
        """Read some rows; returns how many bytes. Raises Corrupt, StoreFailed."""
        key, size = self._store.check(_TABLES[self.table], self.key, STEP_BYTES)
        if key is None:
            self.table, self.key = self.table + 1, b""
        else:
            self.key = key
        return size


def whole(path: Path) -> Generator[None]:
    """Check a copy that nobody writes to, a step each time. Close it if it is not exhausted.

    Raises Corrupt, WrongFormat, StoreFailed.
    """
    store = RocksStore(path, read_only=True, cache_bytes=COPY_CACHE_BYTES)
    try:
        format_of(store)
        store.drop_pages()
        walk = Walk(store)
        while not walk.is_over:
            walk.step()
            yield
    finally:
        store.close()
