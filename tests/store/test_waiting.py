"""A store whose batches wait for the log, read while another thread takes them there.

Group commits are written while the one before is being appended, answers come late or not at all, and who
reads in between sees every batch that was written, as if there were no log. The thread that flushes is a real
one; it goes from one *point* to the next when it is told, so that every interleaving is one that can be
repeated: before and after a record is put into the log, before and after it is put into the store below.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shards.changes import Recorded, decode_changes
from shards.errors import StoreFailed
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore, applied_of
from shards.rocks import RocksStore
from shards.store import Batch, Table
from tests.support.logs import Elapsing, Faulty, Lost
from tests.support.memory_store import MemoryStore
from tests.support.planted import Fault, finds
from tests.support.shelf import MemoryEngine, Shelf
from tests.support.soak import SOAK

TABLES = (Table.MESSAGES, Table.HELD)
KEYS = range(8)
LAST = b"\xff"
WAITING_MAX = 3
PATIENCE_S = 60.0

key_numbers = st.sampled_from(KEYS)
changes_of_one = st.tuples(
    st.sampled_from(TABLES),
    st.one_of(
        st.tuples(st.just("put"), key_numbers, st.binary(max_size=2)),
        st.tuples(st.just("delete"), key_numbers, st.none()),
        st.tuples(st.just("range"), key_numbers, st.integers(0, 4)),
    ),
)
Change = tuple[Table, tuple[str, int, bytes | int | None]]
Rows = dict[Table, dict[bytes, bytes]]


class Flusher:
    """A thread that goes on only while it is waited for."""

    def __init__(self) -> None:
        self.error: StoreFailed | None = None
        self._thread: threading.Thread | None = None
        self._goes = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)

    @property
    def is_busy(self) -> bool:
        return self._thread is not None

    def begin(self, act: Callable[[], None]) -> None:
        def run() -> None:
            assert self._goes.acquire(timeout=PATIENCE_S)
            try:
                act()
            except StoreFailed as error:
                self.error = error
            finally:
                self._thread = None
                self._stands.release()

        self.error = None
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """To the next point, or to the end."""
        if self._thread is not None:
            self._goes.release()
            assert self._stands.acquire(timeout=PATIENCE_S), "it waits for something else"

    def point(self) -> None:
        """Called by whoever comes there; only that thread waits."""
        if threading.current_thread() is self._thread:
            self._stands.release()
            assert self._goes.acquire(timeout=PATIENCE_S)


class SteppedEngine(Faulty):
    def __init__(self, shelf: Shelf, point: Callable[[], None]) -> None:
        super().__init__(MemoryEngine(shelf))
        self._point = point

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        self._point()
        super().put(seq, frame, timeout_s)
        self._point()

    def send(self, seq: int, frame: bytes, timeout_s: float) -> None:
        self._point()
        super().send(seq, frame, timeout_s)
        self._point()


class Stepped:
    """What a store below adds: it stands before and after each batch."""

    point: Callable[[], None] = staticmethod(lambda: None)
    is_full = False

    def write(self, batch: Batch) -> None:
        self.point()
        if self.is_full:
            raise StoreFailed("told to fail")
        super().write(batch)  # type: ignore[misc]
        self.point()


class SteppedMemory(Stepped, MemoryStore):
    def keys_beside(self, table: Table, start: bytes, end: bytes) -> Iterator[bytes]:
        """As if each row were in a file that can be read."""
        return (key for key, _ in self.scan(table, start, end))


class SteppedRocks(Stepped, RocksStore):
    pass


def changed(rows: Rows, batch: list[Change]) -> None:
    """What a batch does, in plain words."""
    for table, (kind, number, more) in batch:
        key, of_table = bytes([number]), rows[table]
        if kind == "put":
            assert isinstance(more, bytes)
            of_table[key] = more
        elif kind == "delete":
            of_table.pop(key, None)
        else:
            assert isinstance(more, int)
            for doomed in range(number, number + more):
                of_table.pop(bytes([doomed]), None)


def filled(batch: Batch, changes: list[Change]) -> None:
    for table, (kind, number, more) in changes:
        key = bytes([number])
        if isinstance(more, bytes):
            batch.put(table, key, more)
        elif kind == "delete":
            batch.delete(table, key)
        else:
            assert isinstance(more, int)
            batch.delete_range(table, key, bytes([number + more]))


class Waiting(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.flusher = Flusher()
        self.engine = SteppedEngine(self.shelf, self.flusher.point)
        self.below = self.make_below()
        self.below.point = self.flusher.point  # type: ignore[method-assign]
        self.store = ReplicatedStore(self.below, open_engine(self.engine, Elapsing(), 0.2))
        self.store.lead("one", "http://127.0.0.1:1")
        self.batches: list[list[Change]] = []
        self.rows = self.rows_of(0)
        self.acked = self.taken = 0
        """Batches whose flush has ended well; up to which the one that goes on takes them."""
        self.is_broken = False

    def make_below(self) -> SteppedMemory | SteppedRocks:
        return SteppedMemory()

    def rows_of(self, count: int) -> Rows:
        """After so many batches."""
        rows: Rows = {table: {} for table in TABLES}
        for batch in self.batches[:count]:
            changed(rows, batch)
        return rows

    @precondition(lambda self: len(self.batches) - self.acked < WAITING_MAX)
    @rule(changes=st.lists(changes_of_one, max_size=5))
    def write(self, changes: list[Change]) -> None:
        batch = self.store.batch()
        filled(batch, changes)
        if self.is_broken:
            with pytest.raises(StoreFailed):
                self.store.write(batch)
            return
        self.store.write(batch)
        self.batches.append(changes)
        changed(self.rows, changes)

    @precondition(lambda self: not self.flusher.is_busy)
    @rule(
        losses=st.lists(st.none() | st.sampled_from(Lost), max_size=6),
        is_slow=st.booleans(),
        is_full=st.sampled_from((False, False, False, True)),
    )
    def begin_flush(self, losses: list[Lost | None], is_slow: bool, is_full: bool) -> None:
        self.engine.plan.extend(losses)
        self.engine.is_slow, self.below.is_full = is_slow, is_full
        self.taken = len(self.batches)
        self.flusher.begin(self.store.flush)

    @precondition(lambda self: self.flusher.is_busy)
    @rule(steps=st.integers(1, 6))
    def go_on(self, steps: int) -> None:
        self._step(steps)

    @rule(table=st.sampled_from(TABLES), start=key_numbers, size=st.integers(0, 8), steps=st.integers(0, 4))
    def scan_slowly(self, table: Table, start: int, size: int, steps: int) -> None:
        """What is scanned stays as it was at the first row, whatever is acked meanwhile."""
        first, end = bytes([start]), bytes([start + size])
        wanted = sorted((key, value) for key, value in self.rows[table].items() if first <= key < end)
        rows = self.store.scan(table, first, end)
        found = [row for row in [next(rows, None)] if row is not None]
        self._step(steps)
        assert found + list(rows) == wanted

    @precondition(lambda self: not self.flusher.is_busy)
    @rule(survivors=st.integers(0, 3), arrives=st.booleans())
    def reopen(self, survivors: int, arrives: bool) -> None:
        """What was not flushed may be gone, from the last on; what was acked is not."""
        if arrives:
            self.engine.arrive()
        if isinstance(self.below, MemoryStore):
            self.below.survivors = min(survivors, len(self.below.log) - self.below.durable)
        self.store.reopen()
        kept = list(self._logged())
        assert self.acked <= len(kept) <= len(self.batches)
        assert kept == [self._encoded(batch) for batch in self.batches[: len(kept)]]
        del self.batches[len(kept) :]
        self.rows = self.rows_of(len(kept))
        self.acked, self.is_broken = len(kept), False

    @rule()
    def arrive(self) -> None:
        """What is late comes, while nothing is being flushed."""
        if not self.flusher.is_busy:
            self.engine.is_slow = False
            self.engine.arrive()

    @invariant()
    def every_read_sees_all_that_was_written(self) -> None:
        for table in TABLES:
            rows = self.rows[table]
            assert list(self.store.scan(table, b"", LAST)) == sorted(rows.items())
            for number in KEYS:
                key = bytes([number])
                assert self.store.get(table, key) == rows.get(key)
            if isinstance(self.below, SteppedMemory):
                keys = list(self.store.keys_beside(table, b"", LAST))
                assert keys == sorted(set(keys))
                assert rows.keys() <= set(keys)

    @invariant()
    def what_was_acked_waits_no_more(self) -> None:
        if not self.flusher.is_busy:
            assert len(self.store._layers) == len(self.store._waiting) == len(self.batches) - self._written()

    @invariant()
    def what_was_acked_is_in_the_log(self) -> None:
        wanted = [self._encoded(batch) for batch in self.batches[: self.acked]]
        assert list(self._logged())[: self.acked] == wanted

    def teardown(self) -> None:
        while self.flusher.is_busy:
            self._step(1)
        self.store.close()

    def _step(self, steps: int) -> None:
        """The thread goes so many points on; when it ends, the flush is judged."""
        for _ in range(steps):
            if not self.flusher.is_busy:
                return
            self.flusher.step()
            if self.flusher.is_busy:
                continue
            self.engine.plan.clear()
            self.below.is_full = False
            if self.flusher.error is None:
                self.acked = max(self.acked, self.taken)
            else:
                self.is_broken = True

    def _written(self) -> int:
        """So many batches the store below has, which says so itself."""
        seqs = [seq for seq, _ in self._records() if seq <= applied_of(self.below).seq]
        return len(seqs)

    def _logged(self) -> Iterator[bytes]:
        """The batches that the log has."""
        return (data for _, data in self._records())

    def _records(self) -> Iterator[tuple[int, bytes]]:
        for seq, epoch, data in open_engine(MemoryEngine(self.shelf), Elapsing(), 0.2).read(0):
            if epoch != seq:
                yield seq, decode_changes(data).encode()

    @staticmethod
    def _encoded(batch: list[Change]) -> bytes:
        made = Recorded(MemoryStore().batch())
        filled(made, batch)
        return made.changes.encode()


class WaitingRocks(Waiting):
    def make_below(self) -> SteppedRocks:
        self._folder = tempfile.TemporaryDirectory(prefix="fasti-waiting-")
        return SteppedRocks(Path(self._folder.name) / "store")

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


@pytest.mark.long
@pytest.mark.parametrize(("machine", "examples"), [(Waiting, 30), (WaitingRocks, 4)])
def test_what_waits_is_read_as_if_it_were_there(machine: type[Waiting], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples * 150 if SOAK else examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.mark.long
@finds("waiting")
def test_a_naive_rule_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that the machine can fail."""
    fault.plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Waiting,
            settings=settings(
                max_examples=400,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.generate,),
                database=None,
            ),
        )
