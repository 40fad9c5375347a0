"""Who appends, and knows what was acknowledged; then the log is held against it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from shards.log.chained import ChainedLog


@contextmanager
def hurried(log: ChainedLog, deadline_s: float = 1) -> Iterator[None]:
    """For calls that are to fail by their deadline. All others have time: the machine may be busy."""
    before, log._deadline_s = log._deadline_s, deadline_s
    try:
        yield
    finally:
        log._deadline_s = before


class Ledger:
    """One leader's account of a log that is its own."""

    def __init__(self, log: ChainedLog, size: int = 100) -> None:
        self.log = log
        self.acked: dict[int, bytes] = {}
        self._size = size
        self._seq = self._epoch = log.claim(1, "a", "http://a")

    def append(self, count: int) -> None:
        """After an error the same one again, by the next call."""
        for _ in range(count):
            data = (b"%d." % (self._seq + 1)).ljust(self._size, b"x")
            self.log.append(self._seq + 1, self._epoch, data)
            self._seq += 1
            self.acked[self._seq] = data

    @contextmanager
    def appending(self) -> "Iterator[Appending]":
        """Meanwhile, in a thread of its own."""
        appending = Appending(self)
        try:
            yield appending
        finally:
            appending.end()

    def check(self, log: ChainedLog) -> None:
        """Every acknowledged record is there, and nothing else."""
        found = {seq: data for seq, epoch, data in log.read(0) if epoch != seq}
        assert found == self.acked


class Appending:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._count = 0
        self._error: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait(self, count: int, limit_s: float = 20) -> None:
        """Until so many more have been acknowledged. Raises what appending raised."""
        wanted, until = self._count + count, time.monotonic() + limit_s
        while self._count < wanted:
            if self._error is not None:
                raise self._error
            assert time.monotonic() < until
            time.sleep(0.005)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._ledger.append(1)
                self._count += 1
        except Exception as error:
            self._error = error
