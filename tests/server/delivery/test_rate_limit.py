"""How fast a group is given messages, and what is not given while it is paused."""

import pytest

from server.delivery.rate_limit import NEVER, RateLimited, RateLimiter
from server.delivery.terms import Keeping
from shards.commit import Commit
from tests.support.rig import Peer, Rig

TEXT = "$share/g/t"


class Hand:
    """A clock."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("rate", "burst"), [(0.5, 1), (1.0, 1), (10.0, 1), (100.0, 10), (2_000.0, 200)])
def test_a_bucket_gives_no_more_than_its_burst_and_then_its_rate(rate: float, burst: int) -> None:
    clock = Hand()
    rate_limiter = RateLimiter(rate, clock)
    given = 0
    for second in range(1, 21):
        until = 5.0 + second
        while clock.now_s < until:
            while rate_limiter.has_token:
                rate_limiter.spend()
                given += 1
            assert rate_limiter.wake_s > clock.now_s
            clock.now_s = min(until, rate_limiter.wake_s)
        assert given <= burst + rate * second + 1e-6
    assert given >= rate * 20 - burst


def test_a_full_bucket_saves_nothing_up() -> None:
    clock = Hand()
    rate_limiter = RateLimiter(10.0, clock)
    clock.now_s += 1_000
    rate_limiter.spend()
    assert not rate_limiter.has_token
    clock.now_s += 0.11
    assert rate_limiter.has_token


def test_who_waits_is_woken_once_and_not_before() -> None:
    clock = Hand()
    rate_limited = RateLimited(clock)
    assert (rate_limited.of(None), rate_limited.of(0.0)) == (None, None)
    rate_limiter = rate_limited.of(1.0)
    assert rate_limiter is not None
    rig = Rig()
    worker(rig, "a")
    group = rig.group(TEXT)
    rate_limiter.spend()
    for _ in range(3):
        rate_limited.wait(group, rate_limiter.wake_s)
    assert rate_limited.wait_s() == 1.0
    assert rate_limited.due() == []
    clock.now_s += 1.0
    assert rate_limited.due() == [group]
    assert (rate_limited.due(), rate_limited.wait_s()) == ([], NEVER)


def passed(rig: Rig, seconds: int) -> None:
    """In steps as short as those of a server that wakes when it is time."""
    for _ in range(10 * seconds):
        rig.pass_ms(100)


def worker(rig: Rig, name: str, **said: str) -> Peer:
    return rig.connected(name).subscribed(TEXT, qos=1, user_properties=tuple(said.items()))


def test_a_group_is_given_so_many_a_second_whoever_its_members_are(rig: Rig) -> None:
    members = [worker(rig, name, rate="2") for name in "ab"]
    rig.send("t", *map(str, range(20)))
    got: list[str] = []
    for second in range(1, 11):
        passed(rig, 1)
        got += [payload for member in members for payload in member.take_all()]
        assert 2 * second - 1 <= len(got) <= 2 * second + 1
    assert sorted(got, key=int) == list(map(str, range(len(got))))
    rig.crash()
    member = worker(rig, "c")
    passed(rig, 1)
    assert len(member.take_all()) <= 3, "the rate is kept"
    member.subscribe(TEXT, qos=1, user_properties=(("rate", "0"),))
    passed(rig, 1)
    assert set(member.take_all()) | set(got) | {"17", "18", "19"} >= set(map(str, range(20)))


def test_what_comes_again_counts_too(rig: Rig) -> None:
    first = worker(rig, "a", rate="1")
    rig.send("t", *map(str, range(4)))
    passed(rig, 4)
    assert len(first.publishes()) == 4
    first.disconnect()
    second = worker(rig, "b")
    assert len(second.take_all()) <= 1
    passed(rig, 2)
    assert len(second.take_all()) <= 3


def test_paused_nothing_is_sent_again_either(rig: Rig) -> None:
    first = worker(rig, "a")
    rig.send("t", *map(str, range(2)))
    assert len(first.publishes()) == 2
    group = rig.group(TEXT)
    for is_paused in (True, False):

        def decide(commit: Commit, is_paused: bool = is_paused) -> None:
            rig.core.groups.pause(commit, group, is_paused=is_paused)

        rig.decide(decide)
        if is_paused:
            first.disconnect()
            second = worker(rig, "b")
            rig.send("t", *map(str, range(1)))
            rig.pass_ms(5_000)
            assert second.inbox == []
            assert group.is_here
    assert len(second.take_all()) == 3


@pytest.mark.parametrize("how", ["subscribe", "put"])
def test_a_group_that_waits_goes_on_when_it_may_be_faster(rig: Rig, how: str) -> None:
    first = worker(rig, "a", rate="0.000001")
    rig.send("t", *map(str, range(15)))
    assert len(first.take_all()) == 1
    if how == "subscribe":
        assert first.subscribe(TEXT, qos=1, user_properties=(("rate", "2"),)) == (1,)
    else:
        rig.make(TEXT, keeping=Keeping(rate=2.0))
    passed(rig, 3)
    assert 6 <= len(first.take_all()) <= 8


def test_a_group_that_has_ended_waits_no_more(rig: Rig) -> None:
    first = worker(rig, "a", rate="0.000001")
    rig.send("t", *map(str, range(3)))
    assert rig.core.groups.wait_s() < NEVER
    assert len(first.take_all()) == 1
    assert first.unsubscribe(TEXT) == (0,)
    assert rig.core.groups.wait_s() == NEVER
