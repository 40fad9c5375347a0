"""Who takes the lead, and when: nodes on one log in RAM, with clocks that are set."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from server.cluster.follower import HEAR_S, MOMENT_S, Follower
from server.settings.config import Cluster
from shards.errors import StoreFailed
from shards.log.chained import open_engine
from shards.log.errors import Trimmed
from shards.replicated import FOLLOW_BYTES, ReplicatedStore
from shards.store import Table
from shards.tables import (
    META_APPLIED,
    META_CURSOR,
    META_FORMAT,
    META_SEAL,
    StoredCursor,
    applied_value,
    cursor_value,
    seal_value,
)
from tests.support.logs import Elapsing, Faulty
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf
from tests.support.stores import rewrite
from timeline.horizon import BOUND_MS
from timeline.position import START

TAKEOVER_S = 3.0


class Node:
    """A follower on a store of its own; its log may be cut off."""

    def __init__(self, shelf: Shelf, name: str, below: MemoryStore | None = None) -> None:
        self.name = name
        self.clock = Elapsing()
        self.wall_ms = 1_000_000
        self.engine = Faulty(MemoryEngine(shelf))
        self.unfit, self.agrees = "", False
        self.below = MemoryStore() if below is None else below
        self.store = ReplicatedStore(self.below, open_engine(self.engine, self.clock, 2.0))
        self.follower = Follower(
            Cluster(node=name, takeover_after_ms=int(TAKEOVER_S * 1000)),
            self.store,
            f"http://{name}",
            SimpleNamespace(mono=self.clock.monotonic, wall_ms=lambda: self.wall_ms),
            self,  # which says whether other clocks agree
            lambda: self.unfit,
            lambda: 0.5,
        )

    def step(self, after_s: float = 0.0, *, waits: bool = False) -> bool:
        self.clock.now += after_s
        self.wall_ms += int(after_s * 1000)
        return self.follower.step(waits=waits)

    def beat(self) -> None:
        """A group of a leader, as its own clock has it."""
        batch = self.store.batch()
        batch.put(
            Table.META, META_CURSOR, cursor_value(StoredCursor(START, self.wall_ms + BOUND_MS, 0, 0, START))
        )
        self.store.write(batch)
        self.store.flush()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def made(shelf: Shelf) -> Callable[[str], Node]:
    return lambda name: Node(shelf, name)


def led(made: Callable[[str], Node]) -> tuple[Node, Node]:
    """One that leads and one that follows, which has heard it."""
    leader, other = made("a"), made("b")
    assert not leader.step()
    assert leader.step(MOMENT_S)
    leader.beat()
    assert not other.step()
    leader.beat()
    assert not other.step(1.0)
    return leader, other


def test_nobody_waits_where_nobody_ever_led(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    assert leader.store.is_leading
    assert not other.store.is_leading
    assert other.store.leader is not None
    assert other.store.leader.url == "http://a"
    assert other.follower.hears_leader


def test_who_is_heard_goes_on_to_lead(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    for _ in range(10):
        leader.beat()
        assert not other.step(TAKEOVER_S - 0.1)


def test_who_is_not_heard_is_followed_by_another(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    assert not other.step(TAKEOVER_S - 0.1)
    assert other.step(0.2)
    with pytest.raises(StoreFailed, match="not in the log"):
        leader.beat()
    assert other.store.is_leading


def test_two_claim_and_one_of_them_leads(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    third = made("c")
    third.step()
    both = [other.step(TAKEOVER_S + 0.1), third.step(TAKEOVER_S + 0.1)]
    assert both == [True, False]
    assert not third.step(TAKEOVER_S - 0.1), "its time begins again"
    assert third.step(0.2)
    del leader


def test_a_log_that_does_not_answer_says_nothing_of_the_leader(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    other.engine.is_cut = True
    assert not other.step(10 * TAKEOVER_S)
    assert "planted" in other.follower.why
    other.engine.is_cut = False
    assert not other.step(TAKEOVER_S - 0.1)
    assert other.step(0.2)
    del leader


def test_who_led_before_need_not_wait_for_itself(shelf: Shelf, made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    again = Node(shelf, "a", leader.below)
    assert not again.step()
    assert again.step(MOMENT_S)
    assert not other.step(TAKEOVER_S), "it sees the claim"


def test_who_says_that_it_leads_no_more_is_not_waited_for(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    leader.store.close()
    assert not other.step(0.05)
    assert not other.follower.hears_leader
    assert other.step(MOMENT_S)


def test_who_is_named_by_the_one_that_resigns_claims_at_once(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    third = made("c")
    assert not third.step()
    leader.store.hand_over("c")
    assert not leader.store.is_leading
    assert not other.step(MOMENT_S), "it leaves the named one a moment"
    assert third.step(0.05)
    leader.store.close()
    assert third.store.follow() == 0, "it resigns once"


def test_who_is_named_and_does_not_claim_is_not_waited_for(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    leader.store.hand_over("gone")
    assert not other.step(0.05)
    assert other.step(2 * MOMENT_S)


def test_who_is_told_to_keep_the_lead_does(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    leader.store.resigns = False
    leader.store.close()
    assert not other.step(MOMENT_S)


def test_who_is_unfit_says_why_and_does_not_claim(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    other.unfit = "it is still loading"
    assert not other.step(2 * TAKEOVER_S)
    assert other.follower.why == "it is still loading"
    other.unfit = ""
    assert other.step(0.05)
    del leader


def test_a_clock_that_is_ahead_does_not_lead(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    other.wall_ms += 3_600_000
    leader.beat()
    assert not other.step(1.0)
    assert not other.step(2 * TAKEOVER_S)
    assert "ahead" in other.follower.why
    other.wall_ms -= 3_600_000
    leader.wall_ms = other.wall_ms
    leader.beat()
    other.step()
    assert other.step(TAKEOVER_S)


def test_a_clock_that_is_ahead_of_a_wrong_one_leads(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    other.wall_ms += 3_600_000
    other.agrees = True
    leader.beat()
    assert not other.step(1.0)
    assert other.step(2 * TAKEOVER_S)


def test_a_clock_that_is_behind_may(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    other.wall_ms -= 3_600_000
    leader.beat()
    assert not other.step()
    assert other.step(TAKEOVER_S)


def test_what_was_read_late_does_not_make_a_clock_ahead(made: Callable[[str], Node]) -> None:
    """The log was away for longer than clocks may differ, and its leader was lost meanwhile."""
    leader, other = led(made)
    leader.step(0.1)
    leader.beat()
    other.engine.is_cut = True
    assert not other.step(10 * TAKEOVER_S)
    other.engine.is_cut = False
    assert not other.step()
    assert other.step(TAKEOVER_S)


def test_nor_does_one_append_that_took_long(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    leader.step(0.1)
    leader.wall_ms += 100
    leader.beat()
    assert not other.step(0.1)
    leader.wall_ms += 1
    assert not other.step(2.9)
    leader.beat()  # composed 2.9 s ago
    assert not other.step(2.9)
    leader.wall_ms += 1
    leader.beat()  # and this one 5.8 s ago
    assert not other.step(0.1)
    assert other.step(TAKEOVER_S)


def test_a_clock_that_was_set_right_leads(made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    other.wall_ms += 3_600_000
    leader.wall_ms += 1_000
    leader.beat()
    assert not other.step(1.0)
    assert not other.step(2 * TAKEOVER_S)
    other.wall_ms -= 3_600_000
    assert other.step()


def test_what_is_read_at_the_beginning_says_nothing_of_clocks(made: Callable[[str], Node]) -> None:
    leader = made("a")
    leader.step()
    assert leader.step(MOMENT_S)
    leader.beat()
    late = made("b")
    late.wall_ms += 3_600_000
    assert not late.step()
    assert late.step(TAKEOVER_S)


def test_a_trimmed_log_is_not_passed_over(shelf: Shelf, made: Callable[[str], Node]) -> None:
    leader, _ = led(made)
    leader.store._log.trim(2)
    with pytest.raises(Trimmed):
        made("c").step()


def test_rows_that_came_before_the_log_are_missed(shelf: Shelf) -> None:
    below = MemoryStore()
    rewrite(below, (Table.META, META_FORMAT, b"5"))
    old = Node(shelf, "a", below)
    old.step()
    assert old.step(MOMENT_S)
    with pytest.raises(Trimmed, match="begins with the rows"):
        Node(shelf, "b").step()


@pytest.mark.parametrize("seq", [2, 1])
def test_rows_of_another_log_are_told(shelf: Shelf, made: Callable[[str], Node], seq: int) -> None:
    """By the epoch, or, where that is the same, by the digest."""
    led(made)
    other = Shelf()
    stranger = Node(other, "x")
    stranger.step()
    stranger.step(MOMENT_S)
    seal = stranger.store.applied._replace(seq=seq, epoch=seq)
    meta = {META_APPLIED: applied_value(seal), META_SEAL: seal_value(seal)}
    rewrite(stranger.below, *((Table.META, key, value) for key, value in meta.items()))
    again = Node(shelf, "x", stranger.below)
    assert not again.step()
    assert "this node's data" in again.follower.why
    assert not again.step(10 * TAKEOVER_S), "it neither leads nor gives its rows up"


def test_a_log_that_was_made_anew_is_told(shelf: Shelf, made: Callable[[str], Node]) -> None:
    leader, _ = led(made)
    leader.store.close()
    empty = Node(Shelf(), "a", leader.below)
    assert not empty.step()
    assert "the log ends at 0" in empty.follower.why
    assert not empty.step(10 * TAKEOVER_S)


def test_another_node_of_our_name_is_another(shelf: Shelf, made: Callable[[str], Node]) -> None:
    """Two that are named alike by mistake: neither takes the other's claim for its own."""
    leader, _ = led(made)
    twin = Node(shelf, "a")
    twin.follower._urls = "http://elsewhere"
    assert not twin.step()
    leader.beat()
    assert not twin.step(MOMENT_S)
    assert twin.step(TAKEOVER_S)


@pytest.mark.long
def test_much_is_followed_in_pieces(shelf: Shelf, made: Callable[[str], Node]) -> None:
    leader, other = led(made)
    for number in range(5):
        rewrite(leader.store, (Table.META, b"large%d" % number, bytes(FOLLOW_BYTES // 2)))
        leader.store.flush()
    before = other.store.applied.seq
    assert not other.step()
    assert before < other.store.applied.seq < leader.store.applied.seq
    for _ in range(3):
        assert not other.step()
    assert other.store.applied.seq == leader.store.applied.seq


def test_another_teams_node_does_not_lead(shelf: Shelf, made: Callable[[str], Node]) -> None:
    """It may read and write the engine, and has another key."""
    led(made)
    alien = made("x")
    alien.store = alien.follower._store = ReplicatedStore(
        MemoryStore(), open_engine(alien.engine, alien.clock, 2.0, ("another",))
    )
    for _ in range(3):
        assert not alien.step(10 * TAKEOVER_S)
        assert "another cluster.key" in alien.follower.why
    assert alien.store.applied.seq == 0
    assert alien.store.leader is None, "it sends no client anywhere"


class Silent(Faulty):
    """It pushes nothing, and does not say so: its server has died."""

    def hear(self, seq: int, timeout_s: float) -> Sequence[bytes]:
        assert 0 < timeout_s <= HEAR_S
        return ()


@pytest.mark.parametrize("kind", [Faulty, Silent])
def test_who_waits_for_pushes_reads_to_the_end_now_and_then(
    made: Callable[[str], Node], shelf: Shelf, kind: type[Faulty]
) -> None:
    leader, other = led(made)
    other.engine = kind(MemoryEngine(shelf))
    other.store = ReplicatedStore(other.below, open_engine(other.engine, other.clock, 2.0))
    other.follower._store = other.store
    for _ in range(20):
        leader.beat()
        for _ in range(4):
            assert not other.step(HEAR_S / 2, waits=True)
            assert other.follower.hears_leader
        assert other.store.applied == leader.store.applied
    leader.beat()
    assert not other.step(TAKEOVER_S * 2, waits=True)
    assert other.store.applied == leader.store.applied
    for _ in range(int((TAKEOVER_S - HEAR_S) / HEAR_S * 2)):
        assert not other.step(HEAR_S / 2, waits=True)
    assert any(other.step(HEAR_S, waits=True) for _ in range(6))
