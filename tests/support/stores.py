"""Stores that fail, lose or wait when they are told to, on disk and in RAM."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import StoreFailed
from shards.rocks import RocksStore
from shards.store import Batch, Store, Table
from tests.support.memory_store import MemoryStore

if TYPE_CHECKING:
    Below = RocksStore
else:
    Below = object


def rewrite(store: Store, *rows: tuple[Table, bytes, bytes | None]) -> None:
    """Put rows, or delete those whose value is None, in one batch."""
    batch = store.batch()
    for table, key, value in rows:
        if value is None:
            batch.delete(table, key)
        else:
            batch.put(table, key, value)
    store.write(batch)


class Failing(Below):
    """The writes, syncs and re-openings of the store below fail while it is told so."""

    is_failing = False
    loses_next = False
    """The next group is lost: its sync fails, and the store is back at once, without it."""
    keeps_next = False
    """The sync of the next group fails, and the store is back at once, with all that was written."""

    def _begin(self) -> None:
        self.gate = threading.Event()
        """While it is cleared syncs wait, a minute at most."""
        self.gate.set()
        self.gate_of_opening = threading.Event()
        """While it is cleared a re-opening waits, a minute at most."""
        self.gate_of_opening.set()
        self.is_opening = False
        """A re-opening has begun."""

    def write(self, batch: Batch) -> None:
        self._check()
        if not self.loses_next:
            super().write(batch)

    def flush(self) -> None:
        self.gate.wait(60)
        self._check()
        if self.loses_next:
            self.loses_next = False
            raise StoreFailed("told to lose one group")
        if self.keeps_next:
            self.keeps_next = False
            raise StoreFailed("told to fail once")
        super().flush()

    def reopen(self) -> None:
        self.is_opening = True
        assert self.gate_of_opening.wait(60), "the loop stands still, or the test does"
        self._check()
        super().reopen()

    def _check(self) -> None:
        if self.is_failing:
            raise StoreFailed("told to fail")


class FailingStore(Failing, RocksStore):
    """On disk."""

    def __init__(self, path: Path) -> None:
        self._begin()
        super().__init__(path)


class FailingMemory(Failing, MemoryStore):  # type: ignore[misc]  # both are stores
    """In RAM: opens and closes in no time. A server that is started on it again finds what it left."""

    def __init__(self) -> None:
        self._begin()
        super().__init__()
