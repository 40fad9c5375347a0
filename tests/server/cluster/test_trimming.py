"""What of the log goes when: on each node, and before it is full."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from server.cluster.engine_side import LogSide
from server.cluster.members import ALIVE_S, GIVEN_UP_S, Member, Members
from server.cluster.trimming import EVERY, LIMIT_S, RESERVE, SURE_S, Trimming
from shards.errors import StoreFailed
from shards.log.chained import ChainedLog, open_engine
from shards.log.engine import NoAnswer
from shards.log.errors import LogDown
from shards.replicated import ReplicatedStore
from shards.store import Table
from tests.support.logs import Elapsing, Faulty, Lost
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf
from tests.support.stores import rewrite

BOUND = 100_000
SIZE = 1_000


@dataclass
class Cluster:
    """One log, a store of each of two nodes on it, and what trims of the second."""

    shelf: Shelf = field(default_factory=Shelf)
    clock: Elapsing = field(default_factory=Elapsing)

    def __post_init__(self) -> None:
        self.network = Faulty(MemoryEngine(self.shelf))
        self.leader = ReplicatedStore(MemoryStore(), self.opened())
        self.store = ReplicatedStore(MemoryStore(), self.opened())
        self.members = Members(self.clock.monotonic)
        self.side = LogSide(lambda: open_engine(self.network, self.clock, 2.0))
        self.trimming = Trimming(self.side, self.members, "b", 50 * SIZE, self.clock.monotonic)
        self.leader.lead("a", "http://a")

    def opened(self) -> ChainedLog:
        return open_engine(MemoryEngine(self.shelf), self.clock, 2.0)

    def write(self, count: int) -> None:
        for number in range(count):
            rewrite(self.leader, (Table.MESSAGES, b"%d" % number, bytes(SIZE)))
            self.leader.flush()

    def hear(self, **applied: int) -> None:
        for node, seq in applied.items():
            self.members.hear(Member(node, "", "", "follower", 1, seq, "1"))

    async def look(self, *, is_led: bool = False, count: int = 1) -> None:
        """A second later, so many times."""
        for _ in range(count):
            self.clock.now += 1
            self.store.follow()
            assert await self.trimming.look(self.store)
            await self.trimming.trim(self.store, self.store.sync().seq, is_led=is_led)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await made.side.close()


async def test_a_node_that_hears_no_leader_trims_what_all_have(cluster: Cluster) -> None:
    cluster.write(20)
    cluster.hear(a=21, b=21, c=10)
    await cluster.look(is_led=True, count=int(SURE_S) + 2 * EVERY)
    assert cluster.shelf.first == 1, "the leader does it"
    await cluster.look(count=EVERY)
    assert cluster.shelf.first == 11
    cluster.clock.now += GIVEN_UP_S
    cluster.hear(a=21, b=21)
    await cluster.look()
    cluster.hear(a=21, b=21)
    await cluster.look(count=EVERY)
    assert cluster.shelf.first == 11, "who has stood still has heard nobody meanwhile"
    await cluster.look(count=int(SURE_S))
    assert cluster.shelf.first == 21, "the last one stays"


async def test_nobody_trims_what_is_not_durable_in_its_own_store(cluster: Cluster) -> None:
    cluster.write(20)
    cluster.hear(a=21, b=21, c=21)
    cluster.store.follow()
    for durable in (0, 7):
        for _ in range(int(SURE_S) + EVERY):
            cluster.clock.now += 1
            await cluster.trimming.look(cluster.store)
            await cluster.trimming.trim(cluster.store, durable, is_led=False)
        assert cluster.shelf.first == durable + 1


@pytest.mark.parametrize("is_led", [False, True])
async def test_who_lacks_most_of_a_bounded_log_is_given_up(cluster: Cluster, *, is_led: bool) -> None:
    """Long before the log is full; and whoever leads, if that does nothing."""
    cluster.shelf.max_bytes = BOUND
    cluster.hear(a=1, b=1, c=1)
    for _ in range(10):
        cluster.write(20)
        await cluster.look(is_led=is_led)
        cluster.hear(a=cluster.leader.applied.seq, b=1)
        assert not cluster.trimming.full(cluster.store.passed_bytes)
    assert cluster.shelf.used_bytes < BOUND * 3 // 4 + 20 * SIZE
    assert cluster.clock.now > ALIVE_S
    lacks = "the log no longer has what c lacks: it takes a copy when it is back"
    assert cluster.trimming.problems() == [lacks], "what b has said is as old, but it is here"


async def test_a_log_filled_by_others_comes_back(cluster: Cluster) -> None:
    """Not a record of it has passed here; and a claim finds room when nobody leads."""
    while cluster.shelf.used_bytes < BOUND:
        cluster.shelf.last += 1
        cluster.shelf.frames[cluster.shelf.last] = b"hello" * 200
        cluster.leader.beat()
    cluster.shelf.max_bytes = cluster.shelf.used_bytes
    with pytest.raises(StoreFailed, match="maximum bytes"):
        cluster.leader.beat()
    cluster.hear(a=1, b=1, c=1)
    cluster.store.follow()
    with pytest.raises(LogDown, match="maximum bytes"):
        cluster.store.lead("b", "http://b")
    await cluster.look()
    cluster.store.lead("b", "http://b")
    assert cluster.store.is_leading
    await cluster.look()
    assert cluster.shelf.used_bytes < BOUND * 3 // 4


@pytest.mark.parametrize("records", [0, 3])
async def test_a_log_that_others_have_filled_alone_comes_back(cluster: Cluster, records: int) -> None:
    """Also to a node that was away meanwhile."""
    if not records:
        MemoryEngine(cluster.shelf).drop(1, 1)
        cluster.shelf.first, cluster.shelf.last = 1, 0
    for _ in range(records):
        cluster.leader.beat()
    below = MemoryStore()
    ReplicatedStore(below, cluster.opened()).follow()
    while cluster.shelf.used_bytes < BOUND:
        MemoryEngine(cluster.shelf).put(cluster.shelf.last + 1, b"hello" * 200, 1)
    cluster.shelf.max_bytes, last = cluster.shelf.used_bytes, cluster.shelf.last
    cluster.store.follow()
    with pytest.raises(LogDown, match="maximum bytes"):
        cluster.store.lead("b", "http://b")
    await cluster.look()
    assert cluster.shelf.first == last, "the last one stays"
    cluster.store.lead("b", "http://b")
    assert cluster.store.is_leading
    back = ReplicatedStore(below, cluster.opened())
    back.follow()
    assert back.applied == cluster.store.applied


async def test_messages_of_others_stay_behind_what_is_not_durable(cluster: Cluster) -> None:
    """Or while what was read of them is of another time."""
    cluster.write(3)
    while cluster.shelf.used_bytes < BOUND:
        MemoryEngine(cluster.shelf).put(cluster.shelf.last + 1, b"hello" * 200, 1)
    cluster.shelf.max_bytes = cluster.shelf.used_bytes
    cluster.store.follow()
    assert await cluster.trimming.look(cluster.store)
    for durable in (2, 3):
        await cluster.trimming.trim(cluster.store, durable, is_led=False)
        assert cluster.shelf.first == durable + 1
    await cluster.trimming.trim(cluster.store, 4, is_led=False)
    assert cluster.shelf.first == cluster.shelf.last


async def test_messages_are_refused_before_claims_are(cluster: Cluster) -> None:
    cluster.shelf.max_bytes = BOUND
    cluster.write(80)
    store = cluster.leader
    assert await cluster.trimming.look(store)
    assert cluster.trimming.full(store.passed_bytes) == ""
    while not cluster.trimming.full(store.passed_bytes):
        cluster.write(1)
    assert BOUND - cluster.shelf.used_bytes > BOUND // RESERVE - 10 * SIZE, "without another look"
    assert cluster.trimming.problems() == []
    assert await cluster.trimming.look(store)
    (line,) = cluster.trimming.problems()
    assert line.startswith("the log is full, at ")
    cluster.store.follow()
    cluster.store.lead("b", "http://b")
    assert cluster.store.is_leading


async def test_a_log_without_a_bound_gets_one(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []
    monkeypatch.setattr(cluster.network, "limit", lambda most, _: wanted.append(most))
    await cluster.look(count=3)
    assert wanted == [100 * SIZE]
    cluster.shelf.max_bytes = BOUND
    await cluster.look(count=int(LIMIT_S))
    assert len(wanted) == 1


async def test_why_it_gets_none_is_told(cluster: Cluster) -> None:
    await cluster.trimming.look(None)
    assert cluster.trimming.problems() == []
    cluster.clock.now += LIMIT_S + 1
    cluster.network.plan.extend([None, *[Lost.REQUEST] * 100])
    assert await cluster.trimming.look(None)
    assert cluster.trimming.problems() == ["the log has no bound, and may fill its servers: planted: request"]


async def test_why_it_is_not_trimmed_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of the log who may not delete, say: else the log fills without a word."""

    def refused(upto: int, timeout_s: float) -> None:
        raise NoAnswer("permissions violation")

    cluster.write(20)
    cluster.hear(a=21, b=21)
    with monkeypatch.context() as patched:
        patched.setattr(cluster.network, "drop", refused)
        await cluster.look(count=int(SURE_S) + EVERY)
        assert cluster.trimming.problems() == ["the log is not trimmed: permissions violation"]
    await cluster.look(count=EVERY)
    assert cluster.trimming.problems() == []
    assert cluster.shelf.first == 21
