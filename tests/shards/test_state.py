"""What has become of a message: its state from its row, and when dispatch came to it from the journal."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards import keys
from shards.errors import Corrupt
from shards.fate import AT_ONCE_MS, LATE_MS, has_expired, is_over, is_too_late
from shards.fields import Record
from shards.read import Reader
from shards.record import CANCELLED as CANCEL
from shards.record import MOVED, due_at, encode, is_moved, stub
from shards.state import CANCELLED, DISPATCHED, EXPIRED, PENDING, STATES, WITHHELD, Journal, State, state_of
from shards.store import Table
from shards.tables import number_value
from shards.unreadable import CorruptRange, note_key, note_value
from tests.support.memory_store import MemoryStore
from timeline.position import Position, position
from timeline.slices import Directory
from timeline.structures import Structures

HORIZON = position(10_000, 50)
TURNS = [(position(100, 5), 130), (position(200, 1), 230), (position(9_000, 7), 20_000)]


class Counting(MemoryStore):
    """Says how often a journal was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = 0

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        return super().scan(table, start, end)


class Rotten(MemoryStore):
    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        raise Corrupt(f"table {table.value}")


@pytest.fixture
def store() -> Counting:
    made = Counting()
    write(made, TURNS)
    return made


def write(store: MemoryStore, turns: list[tuple[Position, int]]) -> None:
    batch = store.batch()
    for place, wall_ms in turns:
        batch.put(Table.DISPATCHES, keys.place(place), number_value(wall_ms))
    store.write(batch)


# -- the journal


def test_a_place_belongs_to_the_first_turn_that_passed_it(store: Counting) -> None:
    journal = Journal(store)
    asked = [position(50, 1), position(100, 5), position(100, 6), position(200, 1), position(9_000, 8)]
    assert [journal.dispatched_ms(place) for place in asked] == [130, 130, 230, 230, None]
    assert store.scans == 1


def test_places_that_fall_are_answered_too(store: Counting) -> None:
    journal = Journal(store)
    asked = [position(9_000, 8), position(150, 1), position(150, 1), position(1, 1)]
    assert [journal.dispatched_ms(place) for place in asked] == [None, 230, 230, 130]
    assert store.scans == 3


def test_what_is_not_written_yet_is_known_to_the_latest(store: Counting) -> None:
    asked: list[Position] = []

    def latest(place: Position) -> int:
        asked.append(place)
        return 30_000

    journal = Journal(store, latest)
    places = [position(100, 5), position(9_000, 7), position(9_000, 8), position(9_001, 1)]
    assert [journal.dispatched_ms(place) for place in places] == [130, 20_000, 30_000, 30_000]
    assert asked == places[2:]


def test_a_turn_that_is_written_while_the_scan_is_open_is_found_by_the_latest(store: Counting) -> None:
    """The scan does not see it, and by then the writer has forgotten it: it looks again."""
    reader = Reader(store, Directory(max_slices=1), Structures(max_structures=1))
    journal = Journal(store, reader.dispatched_ms)
    assert journal.dispatched_ms(position(9_000, 8)) is None
    write(store, [(position(9_500, 1), 21_000)])
    assert journal.dispatched_ms(position(9_000, 9)) == 21_000


def test_a_journal_that_cannot_be_read_says_so_and_the_reader_does_not(store: Counting) -> None:
    with pytest.raises(Corrupt):
        Journal(Rotten()).dispatched_ms(position(100, 5))
    reader = Reader(Rotten(), Directory(max_slices=1), Structures(max_structures=1))
    assert reader.dispatched_ms(position(100, 5)) is None


turns = st.dictionaries(st.integers(0, 40), st.integers(1, 1_000), max_size=8)


@given(turns, st.lists(st.integers(0, 45), max_size=12))
def test_the_journal_is_a_look_up_in_the_turns(turns: dict[int, int], asked: list[int]) -> None:
    store = MemoryStore()
    write(store, [(Position(place), wall_ms) for place, wall_ms in turns.items()])
    journal = Journal(store)
    for place in asked:
        first = min((turn for turn in turns if turn >= place), default=None)
        assert journal.dispatched_ms(Position(place)) == (None if first is None else turns[first])


# -- states


def state(store: MemoryStore, place: Position, record: Record, *, is_held: bool = False) -> State:
    journal = Journal(store)
    with_time, dispatched_ms = state_of(place, record, HORIZON, journal, is_held=is_held)
    without, _ = state_of(place, record, HORIZON, Journal(store), is_held=is_held, with_time=False)
    assert with_time == without
    if with_time in (PENDING, CANCELLED):
        assert dispatched_ms is None
    else:
        assert dispatched_ms == journal.dispatched_ms(place)
    return with_time


AHEAD, PASSED = position(10_000, 51), position(9_000, 1)


@pytest.mark.parametrize(
    ("place", "record", "expected"),
    [
        (AHEAD, Record(b"t", b"", 10_000), PENDING),
        (HORIZON, Record(b"t", b"", 10_000), DISPATCHED),
        (AHEAD, Record(b"t", b"", 10_000, stub=CANCEL, when_ms=5), CANCELLED),
        (PASSED, Record(b"t", b"", 9_000, stub=CANCEL, when_ms=5), CANCELLED),
        (PASSED, Record(b"t", b"", 9_000), DISPATCHED),
        (PASSED, Record(b"t", b""), DISPATCHED),
        # The turn of PASSED was at 20,000: 11 s after its due.
        (PASSED, Record(b"t", b"", 9_000, expires_ms=11_001), DISPATCHED),
        (PASSED, Record(b"t", b"", 9_000, expires_ms=11_000), EXPIRED),
        (PASSED, Record(b"t", b"", expires_ms=11_000), EXPIRED),
        (PASSED, Record(b"t", b"", 8_000, expires_ms=11_001), EXPIRED),
        (PASSED, Record(b"t", b"", 9_000, expires_ms=AT_ONCE_MS), EXPIRED),
        (PASSED, Record(b"t", b"", 20_000 - LATE_MS, expires_ms=AT_ONCE_MS), EXPIRED),
        (PASSED, Record(b"t", b"", 20_001 - LATE_MS, expires_ms=AT_ONCE_MS), DISPATCHED),
        (PASSED, Record(b"t", b"", 20_000 - LATE_MS, drop_late=True), DISPATCHED),
        (PASSED, Record(b"t", b"", 19_999 - LATE_MS, drop_late=True), EXPIRED),
        # Nobody knows when dispatch came to what is behind the last turn: then it was when it was due.
        (position(9_500, 1), Record(b"t", b"", 9_500, drop_late=True, expires_ms=1_000), DISPATCHED),
        (position(9_500, 1), Record(b"t", b"", 8_000, drop_late=True), EXPIRED),
    ],
)
def test_states(store: Counting, place: Position, record: Record, expected: State) -> None:
    assert state(store, place, record) == expected
    if not record.stub:
        assert state(store, place, record, is_held=True) == PENDING


def test_the_journal_is_asked_only_where_it_decides(store: Counting) -> None:
    plain, expiring = Record(b"t", b"", 9_000), Record(b"t", b"", 9_000, expires_ms=5)
    journal = Journal(store, is_withheld=lambda _: False)
    assert state_of(PASSED, plain, HORIZON, journal, is_held=False, with_time=False)[0] == DISPATCHED
    assert state_of(AHEAD, expiring, HORIZON, journal, is_held=False) == (PENDING, None)
    assert store.scans == 0
    assert state_of(PASSED, expiring, HORIZON, journal, is_held=False, with_time=False)[0] == EXPIRED
    assert store.scans == 1


def test_what_has_a_row_is_withheld_unless_it_is_cancelled_or_ahead(store: Counting) -> None:
    plain = Record(b"t", b"", 9_000)
    batch = store.batch()
    for place in (PASSED, AHEAD):
        batch.put(Table.META, keys.withheld(place), b"")
    store.write(batch)
    expiring, cancelled = Record(b"t", b"", 9_000, expires_ms=1), Record(b"t", b"", 9_000, stub=CANCEL)
    journal = Journal(store)
    asked = [(PASSED, plain), (PASSED, expiring), (PASSED, cancelled), (HORIZON, plain), (AHEAD, plain)]
    states = [state_of(place, record, HORIZON, journal, is_held=False)[0] for place, record in asked]
    assert states == [WITHHELD, WITHHELD, CANCELLED, DISPATCHED, PENDING]


class Spoiled(MemoryStore):
    """No scan of messages comes to its end."""

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        if table is Table.MESSAGES:
            raise Corrupt("block checksum mismatch")
        return super().scan(table, start, end)


@pytest.mark.parametrize("kind", [MemoryStore, Spoiled])
def test_what_is_owed_of_a_range_that_reads_again_is_withheld(kind: type[MemoryStore]) -> None:
    """Not what dispatch had before, nor rows of other shards, nor of a range that is still unreadable."""
    shard, other = bytes(9) + b"\1", bytes(9) + b"\2"
    places = [position(9_000, seq) for seq in range(8)]
    corrupt = CorruptRange(shard + keys.place(places[1]), shard + keys.place(places[6]), shard, "rotten")
    store = kind()
    batch = store.batch()
    for seq, place in enumerate(places):
        batch.put(Table.MESSAGES, (other if seq == 4 else shard) + keys.place(place), b"row")
    batch.put(Table.META, note_key(corrupt), note_value(corrupt, places[3], 5))
    store.write(batch)
    journal, record = Journal(store), Record(b"t", b"", 9_000)
    states = [state_of(place, record, HORIZON, journal, is_held=False)[0] for place in places]
    owed = [seq for seq, state in enumerate(states) if state == WITHHELD]
    assert owed == ([3, 5] if kind is MemoryStore else [])
    assert set(states) <= {WITHHELD, DISPATCHED}
    assert state_of(places[3], record, position(8_000, 0), journal, is_held=False) == (PENDING, None)


def test_the_states_have_these_names() -> None:
    assert STATES == ("pending", "dispatched", "cancelled", "expired", "withheld")


# -- what a row is


def test_what_a_move_left_is_no_message() -> None:
    record = Record(b"t", b"payload", 5)
    assert [
        is_moved(value) for value in (encode(record), stub(record, MOVED, 3), stub(record, CANCEL, 3))
    ] == [*(False, True, False)]


def test_what_was_asked_without_a_time_is_due_when_it_came() -> None:
    assert due_at(position(70, 3), 50) == 50
    assert due_at(position(70, 3), 0) == 70


def test_a_second_is_not_late() -> None:
    assert not is_too_late(70, 1_070)
    assert is_too_late(70, 1_071)
    assert not has_expired(70, AT_ONCE_MS, 1_069)
    assert has_expired(70, AT_ONCE_MS, 1_070)
    assert not has_expired(70, 5, 74)
    assert has_expired(70, 5, 75)


def test_after_its_dispatch_at_once_means_at_once() -> None:
    assert [is_over(100, AT_ONCE_MS, wall_ms) for wall_ms in (100, 101)] == [False, True]
    assert [is_over(100, 50, wall_ms) for wall_ms in (149, 150)] == [False, True]
    assert not is_over(100, 0, 1 << 60)
