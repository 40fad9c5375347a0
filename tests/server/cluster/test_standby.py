"""A follower has its leader's sessions in RAM before it takes the lead."""

import random

import pytest

from server.cluster.standby import Standby
from server.core import Core
from server.settings.config import Config
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore
from tests.support.clock import HandClock
from tests.support.logs import Elapsing
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf
from tests.support.stepper import Stepper
from timeline.position import START
from timeline.session import Subscription

NOW_MS = 1_700_000_000_000
CONFIG = Config()


class Ticking:
    """Time that passes by a step of a follower whenever it is asked for."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def store_on(shelf: Shelf) -> ReplicatedStore:
    return ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(shelf), Elapsing(), 1.0))


def connected(stepper: Stepper, names: range) -> None:
    """Sessions with a filter each, stored."""
    core = stepper.core
    for n in names:
        subscriber = core.sessions.open(f"client-{n}", expiry_s=3600, window=10)
        core.cursors.begin(subscriber, lambda _: None, is_new=True)
        core.subscriptions.subscribe(subscriber, Subscription(f"devices/{n}", 1, START), None)
    stepper.round()


def test_sessions_are_loaded_before_the_claim_and_follow_their_rows() -> None:
    shelf = Shelf()
    leading, following = store_on(shelf), store_on(shelf)
    leading.lead("a", "http://a")
    clock = HandClock(NOW_MS)
    leader = Stepper(leading, clock)
    leader.round()
    connected(leader, range(200))
    following.follow()
    standby = Standby(CONFIG, following, Ticking())
    assert standby.step(is_led=False), "one step is not enough"
    assert "loading sessions" in standby.unfit()
    connected(leader, range(200, 210))
    leader.core.sessions.drop(leader.core.sessions.get("client-3"))
    leader.round()
    following.follow()
    while standby.step(is_led=False):
        pass
    assert standby.unfit() == ""
    leading.close()
    following.follow()
    following.lead("b", "http://b")
    assert standby.unfit() == ""
    reads = []
    get = following.get
    following.get = lambda table, key: reads.append(key) or get(table, key)  # type: ignore[method-assign,func-returns-value]
    core = Core(
        CONFIG,
        clock,
        following,
        wake=lambda: None,
        chance=random.random,
        stored=standby.sessions,
    )
    assert {one.session.client_id for one in core.sessions} == {f"client-{n}" for n in range(210)} - {
        "client-3"
    }
    assert not [key for key in reads if key.startswith(b"client-")], "none is read after the claim"
    assert [one.session.client_id for one in core.router.route(b"devices/205")] == ["client-205"]
    standby.forget()


@pytest.mark.long
def test_a_stop_with_more_than_20_mb_of_sessions() -> None:
    """They go into the log in records of at most 1 MiB, and the next leader has them all."""
    shelf = Shelf()
    leading, following = store_on(shelf), store_on(shelf)
    leading.lead("a", "http://a")
    leader = Stepper(leading, HandClock(NOW_MS))
    leader.round()
    core, count, each = leader.core, 1_100, 20
    for n in range(count):
        subscriber = core.sessions.open(f"client-{n}", expiry_s=3600, window=10)
        for k in range(each):
            wanted = Subscription(f"devices/{n}/{k}/" + "x" * 1_000, 1, START)
            core.subscriptions.subscribe(subscriber, wanted, None)
    used = shelf.used_bytes
    core.cursors.finish()
    while core.cursors.is_behind:
        core.writer.submit(lambda _: None, lambda _: None)
        leader.round()
    assert core.writer.broken is None
    assert shelf.used_bytes - used > 20 << 20
    assert max(map(len, shelf.frames.values())) <= 1 << 20
    leading.close()
    standby = Standby(CONFIG, following, lambda: 0.0)
    while following.follow():
        pass
    while standby.unfit():
        standby.step(is_led=False)
    following.lead("b", "http://b")
    found = standby.lead().by_id
    assert (len(found), {len(one.session.subscriptions) for one in found.values()}) == (count, {each})
    standby.forget()
