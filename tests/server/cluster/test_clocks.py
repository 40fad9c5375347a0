"""Whose clock counts: steps of one's own, and what others say."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced

from server.cluster import digests
from server.cluster.clock_judge import UNASKED
from server.cluster.clocks import FRESH_S, KEPT_S, SKEW_MS, Clocks, NodeClock
from server.cluster.digests import api_keys_digest, differing, settings_digest
from server.cluster.log_clock import LogClock
from server.cluster.members import ALIVE_S, Member, Members, Row
from server.cluster.node import Node
from server.cluster.reports import CALL_S
from server.engine.lease import Lease
from server.settings.config import Config
from server.settings.reading import load

HOUR_MS = 3_600_000


@dataclass
class Machine:
    """Wall and elapsed time, each set by hand."""

    system_ms: int = 1_700_000_000_000
    elapsed_s: float = 50.0

    def clock(self) -> NodeClock:
        return NodeClock(self.system_ns, lambda: self.elapsed_s)

    def system_ns(self) -> int:
        return self.system_ms * 1_000_000

    def pass_s(self, seconds: float) -> None:
        self.system_ms += int(seconds * 1000)
        self.elapsed_s += seconds


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, SKEW_MS + 1_000])
def test_a_step_counts_once_it_is_confirmed(step_ms: int) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.pass_s(10)
    before = clock.wall_ms()
    assert before == machine.system_ms
    machine.system_ms += step_ms
    machine.pass_s(2)
    assert clock.wall_ms() == before + 2_000, "dispatch goes on by the former time"
    assert clock.until(before + 3_000) == 1.0
    assert clock.stepped_ms == step_ms
    clock.confirm()
    assert clock.wall_ms() == machine.system_ms
    assert not clock.stepped_ms


def test_a_clock_that_is_set_back_right_needs_nobody() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.system_ms += HOUR_MS
    clock.wall_ms()
    machine.system_ms -= HOUR_MS
    assert clock.wall_ms() == machine.system_ms
    assert not clock.stepped_ms


def test_a_clock_that_drifts_or_is_slewed_counts() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(20):
        machine.pass_s(60)
        machine.system_ms += SKEW_MS - 500
        assert clock.wall_ms() == machine.system_ms


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no such clock")
def test_time_passes_while_a_virtual_machine_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is over then, and the wall clock has made no step: the one that stands still says neither."""
    machine, passed = Machine(), {time.CLOCK_BOOTTIME: 50.0, time.CLOCK_MONOTONIC: 50.0}
    monkeypatch.setattr(time, "clock_gettime", passed.__getitem__)
    clock = NodeClock(machine.system_ns)
    lease = Lease(clock, 3.0)
    assert lease.is_fresh
    machine.pass_s(60)
    passed[time.CLOCK_BOOTTIME] += 60
    assert not lease.is_fresh
    assert clock.wall_ms() == machine.system_ms
    assert not clock.stepped_ms


def test_the_clock_is_the_one_that_a_mishap_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/support/shifted.py sets it after this module was imported."""
    monkeypatch.setattr(time, "time_ns", lambda: 7_000_000)
    assert NodeClock().system_ms() == 7


def rows(*members: Member) -> list[Row]:
    return [Row(member, 0) for member in members]


def member(node: str, keys: str = "", settings: str = "", **clocks: tuple[int, int]) -> Member:
    return Member(node, f"http://{node}", "", "follower", 1, 1, "1", 1, clocks, keys, settings)


def test_only_what_is_certain_contradicts() -> None:
    machine = Machine()
    clocks = Clocks("a", lambda: machine.elapsed_s)
    clocks.measured("b", SKEW_MS - 100, SKEW_MS + 4_000)
    clocks.measured("c", -4_000 - SKEW_MS, 100 - SKEW_MS)
    assert clocks.contradicting([]) == []
    assert clocks.agree()
    clocks.measured("b", SKEW_MS + 1, SKEW_MS + 4_000)
    assert clocks.contradicting([]) == ["b"]
    said = rows(member("c", a=(HOUR_MS, HOUR_MS + 5)), member("a", a=(HOUR_MS, HOUR_MS)))
    assert clocks.contradicting(said) == ["b", "c"]
    gone = [Row(said[0].member, int(ALIVE_S * 1000) + 1)]
    assert clocks.contradicting(gone) == ["b"], "what one that is gone has said counts no more"
    assert clocks.measurements().keys() == {"b", "c"}
    machine.elapsed_s += KEPT_S - 1
    assert clocks.contradicting([]) == ["b"], "who was right stays right for a while"
    assert clocks.measurements() == {}
    assert not clocks.agree()
    machine.elapsed_s += 2
    assert clocks.contradicting([]) == []
    clocks.measured("a", HOUR_MS, HOUR_MS)
    assert clocks.offset_ms() is None, "not itself"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    cluster = {"log": "nats://a", "node": "a", "key": "0123456789abcdef"}
    cluster["peers"] = '["http://a:1", "http://b:1", "http://c:1"]'
    settings = {"store.dir": str(tmp_path), "http.public_url": "http://a:1"}
    settings |= {f"cluster.{name}": value for name, value in cluster.items()}
    made = Node(load(None, {}, settings)[0], None, None)
    yield made
    await made._listeners.stop()


async def test_a_leader_that_two_contradict_gives_up(node: Node) -> None:
    node._state = "leader"
    node._judge.clocks.measured("b", -HOUR_MS, -HOUR_MS)
    node._judge_clock()
    assert not node._over.is_set(), "one of three is no majority"
    node._judge.clocks.measured("c", -HOUR_MS, -HOUR_MS)
    node._judge_clock()
    assert node._over.is_set()
    view = node.view()
    assert "clock differs by more than 5 s from b, c" in view["why"]
    assert not view["fit"]
    assert view["clock_offset_ms"] == HOUR_MS
    node._judge.clocks.measured("c", 0, 0)
    node._judge_clock()
    assert node.view()["why"] == ""


async def test_a_node_asks_the_others_before_it_leads(node: Node) -> None:
    """Its clock may have been wrong when it was started, and nobody may lead."""
    assert node._judge.fault == UNASKED
    node._judge_clock()
    assert node._judge.fault == "", "none of them has to answer"


async def test_a_step_that_another_node_confirms_counts(node: Node) -> None:
    machine = on_machine(node)
    machine.system_ms += HOUR_MS
    node._judge.clocks.measured("b", 0, 2)  # before the step
    node._clock.wall_ms()
    node._judge_clock()
    assert "this node's clock was set by 3600.0 s" in node.view()["why"]
    assert node._clock.wall_ms() == machine.system_ms - HOUR_MS, "nothing goes out early"
    node._judge.clocks.measured("b", -2, 3)
    node._judge_clock()
    assert node.view()["why"] == ""
    node._judge_clock()
    assert node._judge.clocks.agree(), "what confirmed the step stays known"
    assert node._clock.wall_ms() == machine.system_ms


async def test_a_clock_that_is_right_again_is_not_judged_by_what_was_measured_meanwhile(node: Node) -> None:
    machine = on_machine(node)
    machine.system_ms += HOUR_MS
    node._judge_clock()
    for other in "bc":
        node._judge.clocks.measured(other, -HOUR_MS, -HOUR_MS)
    node._judge_clock()
    assert not node.view()["fit"]
    machine.system_ms -= HOUR_MS
    node._judge_clock()  # b and c are gone by now
    assert node.view()["why"] == ""


def told_by_log(node: Node, ahead_ms: int) -> None:
    """The log's server has answered; its clock is ahead of the machine's by so much."""
    asked = node._judge.log_clock.now()
    node._judge.log_clock.answered(asked[0] + ahead_ms, asked)
    node._judge_clock()


async def test_the_log_s_clock_counts_as_one(node: Node) -> None:
    """Of four; with two nodes that are heard it decides, with one it does not."""
    node._state = "leader"
    told_by_log(node, -HOUR_MS)
    assert not node._over.is_set()
    assert node.view()["why"] == "this node's clock differs by 3600.0 s from that of the log's server"
    assert node.view()["clock_offset_ms"] == HOUR_MS
    node._judge.clocks.measured("b", -HOUR_MS, -HOUR_MS)
    node._judge.clocks.measured("c", 0, 0)
    node._judge_clock()
    assert not node._over.is_set(), "two of four"
    two = replace(node._config.cluster, peers=("http://a:1", "http://b:1"))
    for peers in (node._config.cluster, two):
        node._over.clear()
        node._config = replace(node._config, cluster=peers)
        node._judge.clocks.forget()
        node._judge.clocks.measured("b", -HOUR_MS, -HOUR_MS)
        node._judge_clock()
        assert node._over.is_set(), "c is away"
    assert node.view()["why"] == "this node's clock differs by more than 5 s from b, the log's server"
    told_by_log(node, 2)
    assert node.view()["why"] == ""


async def test_the_log_backs_a_node_against_one_that_gave_up(node: Node) -> None:
    """With two nodes: else the right one takes itself to be ahead of the last leader, and waits for ever."""
    node._judge.clocks.measured("b", -HOUR_MS, -HOUR_MS)
    led = Member("b", "http://b:1", "", "leader", 1, 1, "1", clocks={"a": (HOUR_MS, HOUR_MS)})
    node._members.hear(led)
    told_by_log(node, 0)
    assert not node._judge.agrees, "it leads: nobody has said that it is wrong"
    node._members.hear(replaced(led, state="follower", fit=False))
    node._judge_clock()
    assert node._judge.agrees
    told_by_log(node, -HOUR_MS)
    assert not node._judge.agrees


async def test_a_step_that_the_log_confirms_counts(node: Node) -> None:
    machine = on_machine(node)
    machine.system_ms -= HOUR_MS
    node._judge_clock()
    assert "neither another node nor the log confirms it" in node.view()["why"]
    told_by_log(node, 0)
    assert node._clock.stepped_ms, "it was never heard before: it may run on this machine"
    machine.system_ms += HOUR_MS
    node._judge_clock()
    machine.system_ms -= HOUR_MS
    told_by_log(node, HOUR_MS)
    assert node._clock.stepped_ms
    machine.system_ms += HOUR_MS
    told_by_log(node, HOUR_MS)
    machine.system_ms += HOUR_MS
    told_by_log(node, 0)
    assert node._clock.stepped_ms, "perhaps it was asked before"
    told_by_log(node, 0)
    assert not node._clock.stepped_ms
    assert node._clock.wall_ms() == machine.system_ms


async def test_the_log_on_this_machine_confirms_no_step_of_its_clock(node: Node) -> None:
    machine = on_machine(node)
    told_by_log(node, 0)
    machine.system_ms += HOUR_MS
    for _ in range(3):
        machine.pass_s(1)
        told_by_log(node, 0)
    assert node._clock.stepped_ms == HOUR_MS
    assert node._clock.wall_ms() == machine.system_ms - HOUR_MS, "nothing goes out early"
    node._judge.clocks.measured("b", 0, 0)
    node._judge_clock()
    assert not node._clock.stepped_ms
    told_by_log(node, 0)
    assert node._judge.log_clock.agrees, "it counts again"


async def test_what_the_log_says_late_or_while_the_clock_is_set_says_nothing(node: Node) -> None:
    machine = on_machine(node)
    asked = node._judge.log_clock.now()
    machine.pass_s(CALL_S + 1)
    node._judge.log_clock.answered(asked[0], asked)
    asked = node._judge.log_clock.now()
    machine.system_ms += 1_000
    node._judge.log_clock.answered(asked[0], asked)
    node._judge.log_clock.answered(0, node._judge.log_clock.now())
    assert node._judge.log_clock.offset_ms is None
    assert not node._judge.log_clock.agrees
    told_by_log(node, 7)
    assert node._judge.log_clock.offset_ms == -7
    machine.pass_s(FRESH_S + 1)
    assert not node._judge.log_clock.agrees


def on_machine(node: Node) -> Machine:
    machine = Machine()
    node._clock = node._judge._clock = machine.clock()
    node._judge.log_clock = LogClock(node._clock)
    return machine


def test_different_keys_and_settings_are_told(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one")
    config, _ = load(None, {}, {"auth.keys_file": str(path)})
    first = api_keys_digest(config)
    path.write_text("two")
    assert first != api_keys_digest(config)
    assert len(first) == digests.DIGITS
    path.unlink()
    assert api_keys_digest(config) == ""
    assert api_keys_digest(Config()) == "none"
    mine = member("a", "1", "s")
    others = rows(mine, member("b", "1", "s"), member("c", "2", "s"), member("d", "none", "t"), member("e"))
    assert differing(mine, others) == [
        "this node's keys differ from those of c, d",
        "this node's settings differ from those of d",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("slices.expire_by", "job"), ("dead.max_bytes", "1MiB"), ("replay.min_qos", "0")),
        *(("webhook.enabled", "false"), ("limits.max_payload", "1MiB"), ("mqtt.maximum_qos", "1")),
        *(("sessions.max_attempts", "3"), ("slices.retention", "1d")),
    ],
)
def test_a_setting_that_decides_about_messages_differs(key: str, value: str) -> None:
    """One node drops what another would leave to a job, or sends what another refuses."""
    assert settings_digest(load(None, {}, {key: value})[0]) != settings_digest(Config())


def test_a_report_of_an_older_version_has_no_clocks() -> None:
    assert member("a").is_plausible
    assert not Member("a", "", "", "", 1, 1, "1", 1, {str(n): (0, 0) for n in range(17)}).is_plausible
    assert not Members(lambda: 0.0).lowest()
