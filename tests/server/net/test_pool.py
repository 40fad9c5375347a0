"""The pool of what waits at connections: own parts, who is evicted, and how much an owner may take."""

import random

import pytest

from server.net.pool import OWN_BYTES, Pool, pool_of
from server.settings.config import Config
from server.settings.memory import Memory
from server.settings.reading import divided


class One:
    """A connection that only holds something."""

    def __init__(self, pool: Pool, owner: str) -> None:
        self.pool, self.owner = pool, owner
        self.held_bytes = 0
        self.is_evicted = False

    def hold(self, size: int) -> None:
        self.pool.hold(self, size)

    def evict(self) -> None:
        assert self.held_bytes == 0
        self.is_evicted = True
        self.hold(0)


def test_the_own_part_takes_nothing_of_the_pool() -> None:
    pool = Pool(1_000, 10)
    one = One(pool, "a")
    one.hold(100)
    assert (pool.taken, pool.held) == (0, 100)
    one.hold(150)
    assert (pool.taken, pool.held) == (50, 150)
    one.hold(0)
    assert (pool.taken, pool.held) == (0, 0)


def test_of_the_owner_that_holds_most_the_largest_is_evicted() -> None:
    """A newcomer with one large packet is left alone by a host with many half ones."""
    pool = Pool(1_000, 1_000)
    crowd = [One(pool, "host") for _ in range(9)]
    for number, one in enumerate(crowd):
        one.hold(90 + number)
    honest = One(pool, "honest")
    honest.hold(500)
    assert not honest.is_evicted
    assert [one.is_evicted for one in crowd] == [False] * 5 + [True] * 4
    assert pool.taken <= 1_000


def test_who_holds_most_is_evicted_though_another_asks() -> None:
    pool = Pool(1_000, 1_000)
    large, small = One(pool, "a"), One(pool, "b")
    large.hold(901)
    small.hold(99)
    small.hold(102)
    assert (large.is_evicted, small.is_evicted) == (True, False)


def test_an_owner_may_take_as_much_as_it_leaves_free() -> None:
    pool = Pool(1_000, 1_000)
    mine, other = One(pool, "a"), One(pool, "b")
    mine.hold(499)
    assert pool.may_take("a")
    mine.hold(501)
    assert not pool.may_take("a")
    assert pool.may_take("b")
    other.hold(252)
    assert not pool.may_take("b")


def test_a_connection_takes_what_it_holds_along_to_another_owner() -> None:
    pool = Pool(1_000, 1_000)
    one = One(pool, "network")
    one.hold(600)
    one.owner = "key"
    one.hold(601)
    assert pool.may_take("network")
    assert not pool.may_take("key")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_taken_is_what_all_hold_beyond_their_own(seed: int) -> None:
    chance = random.Random(seed)
    pool = Pool(5_000, 50)
    ones = [One(pool, chance.choice("abc")) for _ in range(30)]
    for _ in range(500):
        one = chance.choice(ones)
        one.owner = chance.choice("abc")
        one.hold(chance.randrange(600))
        assert pool.taken == sum(max(0, one.held_bytes - 100) for one in ones) <= 5_000
        assert pool.held == sum(one.held_bytes for one in ones)
    for one in ones:
        one.hold(0)
    assert all(pool.may_take(owner) for owner in "abc")
    assert pool.held == pool.taken == 0


def test_the_own_parts_of_all_connections_are_as_much_as_the_pool() -> None:
    config = divided(Config(), Memory(1 << 30, "pinned"))
    pool = pool_of(config)
    assert 8 << 10 < pool.own_bytes < OWN_BYTES
    assert pool.own_bytes * (config.limits.connections + config.http.connections) <= pool.most
