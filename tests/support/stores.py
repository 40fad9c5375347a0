"""A store on disk that fails, loses or waits when it is told to. In RAM shards/memory.py does so itself."""

import threading
from pathlib import Path

from shards.errors import StoreFailed
from shards.rocks import RocksStore
from shards.store import Batch


class FailingStore(RocksStore):
    """Its writes, syncs and re-openings fail while it is told so."""

    is_failing = False
    loses_next = False
    """The next group is lost: its sync fails, and the store is back at once, without it."""

    def __init__(self, path: Path) -> None:
        self.gate = threading.Event()
        """While it is cleared syncs wait, ten seconds at most."""
        self.gate.set()
        self.gate_of_opening = threading.Event()
        """While it is cleared a re-opening waits, ten seconds at most."""
        self.gate_of_opening.set()
        self.is_opening = False
        """A re-opening has begun."""
        super().__init__(path)

    def write(self, batch: Batch) -> None:
        self._check()
        if not self.loses_next:
            super().write(batch)

    def flush(self) -> None:
        self.gate.wait(10)
        self._check()
        if self.loses_next:
            self.loses_next = False
            raise StoreFailed("told to lose one group")
        super().flush()

    def reopen(self) -> None:
        self.is_opening = True
        assert self.gate_of_opening.wait(10), "the loop stands still, or the test does"
        self._check()
        super().reopen()

    def _check(self) -> None:
        if self.is_failing:
            raise StoreFailed("told to fail")
