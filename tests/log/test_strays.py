"""Messages of others in the log, by the thousand: passed over in a bounded time, and from where one was."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from shards.log.chained import ChainedLog, open_engine
from shards.log.errors import Doubtful, Fenced, LogDown, OtherLog, Trimmed
from shards.log.record import PART_BYTES, Seal, frame_of
from shards.replicated import FOLLOW_S, ReplicatedStore
from shards.store import Store
from tests.support.logs import Elapsing, Faulty, Lost
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf

T = TypeVar("T")

CALL_S = 0.002
DEADLINE_S = 3.0
MANY = 2_000


class Paced(Faulty):
    """An engine each of whose calls takes two milliseconds; meanwhile somebody publishes `flood` messages."""

    def __init__(self, shelf: Shelf, clock: Elapsing) -> None:
        super().__init__(MemoryEngine(shelf))
        self._shelf = shelf
        self._clock = clock
        self.flood = 0
        self.calls = 0

    def _called(self, call: Callable[[], T]) -> T:
        self._clock.now += CALL_S
        self.calls += 1
        strays(self._shelf, self.flood)
        return super()._called(call)


def strays(shelf: Shelf, count: int) -> None:
    for _ in range(count):
        shelf.last += 1
        shelf.frames[shelf.last] = b"hello"


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def clock() -> Elapsing:
    return Elapsing()


@pytest.fixture
def engine(shelf: Shelf, clock: Elapsing) -> Paced:
    return Paced(shelf, clock)


@pytest.fixture
def log(engine: Paced, clock: Elapsing) -> ChainedLog:
    return open_engine(engine, clock, DEADLINE_S)


def records(shelf: Shelf) -> Sequence[tuple[int, bytes]]:
    reader = open_engine(MemoryEngine(shelf), Elapsing(), DEADLINE_S)
    return [(seq, data) for seq, epoch, data in reader.read(0) if seq != epoch]


def test_thousands_between_two_records_do_not_end_a_term(shelf: Shelf, log: ChainedLog) -> None:
    epoch = log.claim(1, "a", "")
    for _ in range(3):
        strays(shelf, MANY)
        log.append(log.at.seq + 1, epoch, b"x")
    assert [seq for seq, _ in records(shelf)] == [MANY + 2, 2 * MANY + 3, 3 * MANY + 4]


def test_who_had_no_time_for_all_of_them_goes_on_there(shelf: Shelf, log: ChainedLog, engine: Paced) -> None:
    epoch = log.claim(1, "a", "")
    strays(shelf, 20 * MANY)
    engine.calls = tries = 0
    while log.at.seq == 1:
        tries += 1
        try:
            log.append(2, epoch, b"x")
        except LogDown:
            continue
    assert tries > 1
    assert engine.calls < 20 * MANY / 10
    assert records(shelf) == [(20 * MANY + 2, b"x")]


def test_who_reads_ends_although_they_come_for_ever(shelf: Shelf, clock: Elapsing, engine: Paced) -> None:
    leader = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(shelf), Elapsing(), DEADLINE_S))
    leader.lead("a", "http://a")
    follower = ReplicatedStore(MemoryStore(), open_engine(engine, clock, DEADLINE_S))
    assert follower.follow() == 1
    engine.flood = 20
    for _ in range(3):
        began = clock.now
        assert follower.follow() == 0, "strays are no sign of a leader"
        assert FOLLOW_S < clock.now - began < 2 * FOLLOW_S
        assert follower.is_behind
    engine.flood = 0
    leader.beat()
    calls, engine.calls = engine.calls, 0
    while not follower.follow():
        assert follower.is_behind
    assert follower.applied == leader.applied
    while follower.follow():
        continue
    assert not follower.is_behind
    assert engine.calls < 100 * calls, "none is read again"


def test_a_claim_behind_many_counts_at_once(shelf: Shelf, clock: Elapsing, engine: Paced) -> None:
    """Who has claimed reads over them again, however long that takes."""
    store = ReplicatedStore(MemoryStore(), open_engine(engine, clock, 10 * DEADLINE_S))
    store.lead("a", "http://a")
    strays(shelf, 10 * MANY)
    store.lead("a", "http://a")
    assert store.is_leading
    assert store.applied.seq == 10 * MANY + 2


def test_a_group_that_was_half_written_behind_strays_is_found_again(
    shelf: Shelf, log: ChainedLog, engine: Paced
) -> None:
    epoch = log.claim(1, "a", "")
    strays(shelf, 2)
    data = b"1" * PART_BYTES + b"2" * 10
    engine.plan.extend([None, None, None, None, *[Lost.REQUEST] * 1000])
    with pytest.raises(LogDown):
        log.append(2, epoch, data)
    engine.plan.clear()
    assert shelf.last == 4, "its first part is there"
    log.append(2, epoch, data)
    assert records(shelf) == [(5, data)]


def test_another_s_record_behind_strays_is_no_stray(shelf: Shelf, log: ChainedLog) -> None:
    epoch = log.claim(1, "a", "")
    strays(shelf, 40)
    other = open_engine(MemoryEngine(shelf), Elapsing(), DEADLINE_S)
    list(other.read(0))
    other.claim(2, "b", "")
    strays(shelf, 40)
    with pytest.raises(Fenced):
        log.append(2, epoch, b"x")


def node_on(shelf: Shelf, disk: Store | None = None) -> ReplicatedStore:
    return ReplicatedStore(disk or MemoryStore(), open_engine(MemoryEngine(shelf), Elapsing(), DEADLINE_S))


def restarted(store: ReplicatedStore, shelf: Shelf) -> ReplicatedStore:
    return node_on(shelf, store._store)


def full_of_strays(shelf: Shelf) -> tuple[ReplicatedStore, ReplicatedStore, ReplicatedStore]:
    """Two nodes that have all records, and one that lacks the last; the log has neither any more."""
    whole, other, behind = node_on(shelf), node_on(shelf), node_on(shelf)
    whole.lead("a", "http://a")
    behind.follow()
    whole.beat()
    other.follow()
    strays(shelf, 40)
    MemoryEngine(shelf).drop(shelf.last - 1, 1)
    return whole, other, behind


def test_a_log_of_strays_alone_that_was_trimmed(shelf: Shelf) -> None:
    """Who was started since does not know what they were: it goes on once no node has more."""
    whole, other, behind = full_of_strays(shelf)
    store = restarted(whole, shelf)
    with pytest.raises(Trimmed):
        store.follow()
    store.passes_doubt_at = store.applied.seq - 1
    with pytest.raises(Trimmed):
        store.follow()
    store.passes_doubt_at = store.applied.seq
    assert store.follow() == 0
    assert store.passes_doubt_at < 0, "it counts once"
    store.lead("a", "http://a")
    assert store.applied.seq == shelf.last == 43
    assert restarted(other, shelf).follow(), "who has all finds the claim"
    with pytest.raises(Trimmed):
        restarted(behind, shelf).follow()


def test_a_record_that_is_left_is_not_passed_over(shelf: Shelf) -> None:
    """Although all have said that there is none, since another node began to lead meanwhile."""
    whole, _, behind = full_of_strays(shelf)
    late = restarted(behind, shelf)
    late.passes_doubt_at = late.applied.seq
    store = restarted(whole, shelf)
    store.passes_doubt_at = store.applied.seq
    store.follow()
    store.lead("a", "http://a")
    with pytest.raises(Trimmed):
        late.follow()
    assert late.applied.seq == 1


def test_what_comes_behind_trimmed_strays_must_be_chained(shelf: Shelf) -> None:
    whole, _, behind = full_of_strays(shelf)
    late, store = restarted(behind, shelf), restarted(whole, shelf)
    for one in (late, store):
        one.passes_doubt_at = one.applied.seq
        assert one.follow() == 0
    store.lead("a", "http://a")
    with pytest.raises(OtherLog):
        late.follow()


def test_a_void_record_behind_trimmed_strays(shelf: Shelf) -> None:
    """Another doubt, which has to be answered again."""
    whole, _, _ = full_of_strays(shelf)
    seq, epoch = whole.applied[:2]
    store = restarted(whole, shelf)
    store.passes_doubt_at = seq
    store.follow()
    ahead = frame_of(shelf.last + 1, epoch, Seal(shelf.last, epoch, bytes(16)), b"", is_ahead=True)
    MemoryEngine(shelf).put(shelf.last + 1, ahead, 1)
    store.follow()
    with pytest.raises(Doubtful):
        store.lead("a", "http://a")
    store.passes_doubt_at = seq
    store.follow()
    store.lead("a", "http://a")
    assert store.is_leading
