"""Members, the retained offsets and the lease: small parts of trimming and serving."""

from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import json
from msgspec.structs import replace as replaced

from server.cluster.clocks import Clocks
from server.cluster.damage import Damage
from server.cluster.key import ClusterKey
from server.cluster.members import ALIVE_S, DOUBLED_S, GIVEN_UP_S, MEMBERS_MAX, Member, Members, Row
from server.cluster.opening import open_hand
from server.cluster.reports import WARN_S, Reports
from server.cluster.trimming import RetainedOffsets
from server.cluster.view import Places
from server.engine.lease import Lease
from server.settings.config import Config, ConfigError


class Hand:
    """A clock that is set."""

    is_simulated = False

    def __init__(self) -> None:
        self.now = 100.0

    def mono(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def until(self, at_ms: int) -> float:
        return at_ms / 1000 - self.now


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def members(clock: Hand) -> Members:
    return Members(clock.mono)


def member(node: str, applied: int = 0) -> Member:
    return Member(node, f"http://{node}", f"{node}:1883", "follower", 1, applied, "1")


def reporting(members: Members, clock: Hand, url: str) -> Reports:
    """Of node a to the one at that URL."""
    key, clocks = ClusterKey(["k" * 16]), Clocks("a", clock.mono)
    return Reports(members, "a", key, [url], clocks, clock.wall_ms, clock.mono)


def test_who_is_heard_with_a_record_behind_the_log(clock: Hand, members: Members) -> None:
    members.hear(member("a", 90))
    assert members.beyond(90) == ""
    assert members.beyond(89) == "the log ends at 89, node a has record 90"
    clock.now += GIVEN_UP_S
    assert members.beyond(89) == ""


def test_the_log_is_kept_for_who_is_away_for_a_while(clock: Hand, members: Members) -> None:
    assert members.lowest() == 0
    members.hear(member("a", 90))
    members.hear(member("b", 50))
    assert members.lowest() == 50
    clock.now += GIVEN_UP_S - 1
    members.hear(member("a", 95))
    assert members.lowest() == 50
    clock.now += 2
    assert members.lowest() == 95


def test_two_nodes_of_one_name_are_told(clock: Hand, members: Members) -> None:
    """But not one that was started again, whatever others still tell of it."""
    before, after = replaced(member("a"), process="1"), replaced(member("a"), process="2")
    for one in (before, before, after, after):
        clock.now += 1
        members.hear(one)
    members.hear_all([Row(before, 3_000)])
    members.hear(after)
    assert members.doubled == []
    members.hear(before)
    assert members.doubled == ["a"]
    clock.now += DOUBLED_S
    members.hear(before)
    assert members.doubled == []


def test_nodes_of_another_timeline_are_shown_and_do_not_count() -> None:
    """They have the same key, and `cluster.peers` of somebody names them; one that has none yet counts."""
    clock = Hand()
    members = Members(clock.mono, lambda: "t1")
    mine = [
        replaced(member("a", 50), timeline="t1", state="leader"),
        member("b", 40),
    ]
    for one in (*mine, replaced(member("x", 2), timeline="t2"), replaced(member("y", 99), timeline="t2")):
        members.hear(one)
    damage = Damage("a", members, clock.mono)
    damage.look()
    assert ([row.member.node for row in members], members.strangers) == (["a", "b", "x", "y"], ["x", "y"])
    assert (members.lowest(), members.next_leader(), damage.heirs) == (40, "b", ("b",))
    members = Members(clock.mono)
    members.hear(replaced(member("x", 2), timeline="t2"))
    assert (members.strangers, members.lowest()) == ([], 2)


def test_who_resigns_names_a_fit_one_with_the_most_of_the_log(clock: Hand, members: Members) -> None:
    members.hear(replaced(member("a", 99), state="leader"))
    assert members.next_leader() == ""
    members.hear(member("b", 50))
    members.hear(member("c", 60))
    members.hear(replaced(member("d", 70), fit=False))
    assert members.next_leader() == "c"
    clock.now += ALIVE_S + 1
    members.hear(member("b", 55))
    assert members.next_leader() == "b"


def test_what_was_heard_later_stays() -> None:
    clock = Hand()
    members, others = Members(clock.mono), Members(clock.mono)
    others.hear(member("b", 1))
    clock.now += 5
    members.hear(member("b", 7))
    clock.now += 1
    members.hear_all(list(others))
    assert [(row.member.applied, row.heard_ms) for row in members] == [(7, 1000)]
    members.hear_all([Row(member("c", 3), 2_000)])
    assert [(row.member.node, row.heard_ms) for row in members] == [("b", 1000), ("c", 2000)]


def test_who_was_heard_longest_ago_makes_room(clock: Hand, members: Members) -> None:
    for number in range(MEMBERS_MAX + 1):
        clock.now += 1
        members.hear(member(f"n{number:02}"))
    assert len(list(members)) == MEMBERS_MAX
    assert "n00" not in {row.member.node for row in members}
    members.hear(member("x" * 1000))
    assert "x" * 1000 not in {row.member.node for row in members}


@pytest.mark.parametrize("step", [1, 7, 64, 1000])
def test_the_trail_gives_up_what_is_further_back(step: int) -> None:
    keep, offsets, oldest = 6400, RetainedOffsets(6400), 0
    for seq in range(1, 20_000 // step + 2):
        offsets.note(seq, seq * step)
        oldest = offsets.oldest(seq * step)
        kept = (seq - oldest) * step
        assert kept >= keep or oldest == 0
        assert kept <= keep + keep // 32 + 2 * step, "not much more either"
    assert oldest > 0


def test_a_lease_is_due_before_it_is_over() -> None:
    clock = Hand()
    lease = Lease(clock, 4.0)
    assert lease.is_fresh
    assert not lease.is_due
    clock.now += 1.1
    assert lease.is_fresh
    assert lease.is_due
    lease.renew(clock.now - 0.5)
    assert not lease.is_due
    lease.renew(clock.now - 3.0)
    clock.now += 3.4
    assert lease.is_fresh, "an older one takes nothing back"
    clock.now += 0.2
    assert not lease.is_fresh


def test_where_a_node_is_goes_into_a_claim_and_back() -> None:
    one = Places("http://a:8080", ("mqtt://a:1883", "wss://a/mqtt"))
    assert Places.of(str(one)) == one
    assert one.first_mqtt == "a:1883"
    assert Places.of("http://a:8080") == ("http://a:8080", ())
    assert Places.of("").first_mqtt == ""


async def test_a_wrong_key_is_said_once_and_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=401)

    site = web.Application()
    site.router.add_post("/v1/cluster/nodes", refuse)
    clock = Hand()
    async with TestServer(site) as other:
        url = f"http://127.0.0.1:{other.port}"
        reports = reporting(Members(clock.mono), clock, url)
        for passed_s in (0, 1, 1, WARN_S):
            clock.now += passed_s
            await reports.tell(member("a", 1))
        await reports.close()
    lines = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert lines == [f"report: refused by {url}: its cluster.key differs from this node's"] * 2


async def test_what_a_slow_answer_says_is_as_old_as_the_question(clock: Hand, members: Members) -> None:
    """Node c reports here itself, while b's answer with an older report of c is under way."""

    async def answer(_: web.Request) -> web.Response:
        body = json.encode([Row(member("c", 1), 0), Row(member("d", 5), 500)])
        clock.now += 1.5
        members.hear(member("c", 7))
        return web.Response(body=body)

    site = web.Application()
    site.router.add_post("/v1/cluster/nodes", answer)
    async with TestServer(site) as other:
        reports = reporting(members, clock, f"http://127.0.0.1:{other.port}")
        await reports.tell(member("a", 1))
        await reports.close()
    rows = [(row.member.node, row.member.applied, row.heard_ms) for row in members]
    assert rows == [("a", 1, 1_500), ("c", 7, 0), ("d", 5, 2_000)]


def test_a_copy_is_of_a_fit_node_if_there_is_one(clock: Hand, members: Members) -> None:
    """Node c has an end that the log has abandoned: it follows nothing, and has the most records."""
    reports = reporting(members, clock, "http://e")
    members.hear(replaced(member("c", 2_000), fit=False))
    assert reports.sources(900, "") == ["http://c", "http://e"]
    members.hear(replaced(member("b", 1_000), state="leader"))
    members.hear(member("d", 100))
    assert reports.sources(900, "") == ["http://b"]
    members.hear(member("f", 990))
    assert reports.sources(900, "") == ["http://f", "http://b"]
    clock.now += ALIVE_S
    members.hear(replaced(member("c", 2_000), fit=False))
    assert reports.sources(900, "")[0] == "http://c", "nobody else is heard"


def test_a_bad_name_of_the_log_is_said_of_its_setting() -> None:
    cluster = replace(Config().cluster, log="nats://127.0.0.1:1", name="No Name")
    with pytest.raises(ConfigError) as caught:
        open_hand(replace(Config(), cluster=cluster))
    assert caught.value.key == "cluster.name"


def test_a_leader_that_is_not_heard_is_no_leader() -> None:
    leader = Member("a", "http://a", "a:1883", "leader", 1, 1, "1")
    rows = [Row(leader, ms) for ms in (0, 4_999, 5_000)]
    assert [(row.state, row.is_alive) for row in rows] == [*[("leader", True)] * 2, ("gone", False)]
