"""A drain: groups and endpoints are given nothing new, whatever brings a message. All else goes on."""

import pytest

from server.codec import wire
from server.codec.packets import Publish
from server.delivery.drain import StopFollows
from server.delivery.settling.settling import HELD_MS
from server.delivery.terms import LASTING
from tests.support.mqtt import user
from tests.support.pulling import Puller
from tests.support.rig import Peer, Rig, asking

TEXT = "$share/g/t/#"


def begin(rig: Rig) -> None:
    rig.core.groups.loans.drain.begin(rig.clock.wall_ms())
    rig.pump()


def cancel(rig: Rig) -> None:
    rig.core.groups.loans.drain.cancel()
    rig.pump()


def out(rig: Rig) -> int:
    drain = rig.core.groups.loans.drain
    assert drain.is_done == (drain.out == 0)
    return drain.out


def worker(rig: Rig, name: str = "w", text: str = TEXT, qos: int = 1, **terms: str) -> Peer:
    return rig.lasting(name).subscribed(text, qos=qos, user_properties=asking(**terms))


def attempts(packets: list[Publish]) -> list[str]:
    return [user(packet, "fasti-attempt") or "1" for packet in packets]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_group_gets_nothing_new_and_sessions_do(rig: Rig, qos: int) -> None:
    w, s = worker(rig, qos=qos), rig.lasting("s").subscribed("t/#", qos=qos)
    rig.send("t/x", "before", qos=qos)
    had = w.publishes()
    s.take_all()
    begin(rig)
    rig.send("t/x", "1", "2", qos=qos)
    assert (w.inbox, s.take_all(), out(rig)) == ([], ["1", "2"], 1)
    w.inbox += had
    assert (w.take_all(), out(rig)) == (["before"], 0)
    cancel(rig)
    assert w.take_all() == ["1", "2"]
    rig.send("t/x", "3", qos=qos)
    assert w.take_all() == ["3"]


def test_what_falls_due_and_runs_of_a_backlog_wait(rig: Rig) -> None:
    w = worker(rig)
    for n in range(300):
        rig.connected("p").publish1("t/x", str(n), user_properties=(("deliver-in", "5s"),))
    begin(rig)
    rig.pass_ms(5_000)
    assert (w.inbox, out(rig)) == ([], 0)
    cancel(rig)
    assert w.take_all() == [str(n) for n in range(300)]


def test_at_qos_0_it_is_as_when_the_group_is_paused(rig: Rig) -> None:
    """Nothing is stored: the tail has it for as long as that reaches."""
    w, s = worker(rig, qos=0), rig.connected("s").subscribed("t/#", qos=0)
    begin(rig)
    rig.send("t/x", "1", "2", qos=0)
    assert (w.inbox, s.payloads(), rig.core.spill.dropped) == ([], ["1", "2"], 0)
    cancel(rig)
    assert w.payloads() == ["1", "2"]


def test_a_retry_that_falls_due_waits(rig: Rig) -> None:
    w = worker(rig)
    rig.send("t/x", "job")
    w.nack(w.one(), "2s")
    begin(rig)
    rig.pass_ms(10_000)
    assert (w.inbox, out(rig)) == ([], 0)
    cancel(rig)
    found = w.publishes()
    assert (attempts(found), found[0].payload) == (["2"], b"job")


def test_a_lapsed_lease_is_not_out_and_its_message_waits(rig: Rig) -> None:
    w = worker(rig, ack_timeout="2s", backoff="1s")
    rig.send("t/x", "job")
    w.publishes()
    begin(rig)
    assert out(rig) == 1
    rig.pass_ms(10_000)
    assert (w.inbox, out(rig)) == ([], 0)
    cancel(rig)
    rig.pass_ms(1_000)
    assert attempts(w.publishes()) == ["2"]


def test_what_came_back_waits_for_another_member(rig: Rig) -> None:
    a, b = worker(rig, "a"), worker(rig, "b")
    rig.send("t/x", "1", "2")
    theirs = a.publishes()
    b.take_all()
    begin(rig)
    a.disconnect()
    assert (b.inbox, out(rig)) == ([], 0)
    cancel(rig)
    assert [one.payload for one in b.publishes()] == [one.payload for one in theirs]


def test_a_key_that_becomes_free_waits(rig: Rig) -> None:
    w = worker(rig, order="true")
    for n in "12":
        rig.connected("p").publish1("t/x", n, user_properties=(("ordering-key", "k"),))
    first = w.one()
    begin(rig)
    w.ack(wire.PUBACK, first.packet_id)
    rig.send("t/x", "other")
    assert (w.inbox, out(rig)) == ([], 0)
    cancel(rig)
    assert sorted(w.take_all()) == ["2", "other"]


def test_a_retry_goes_to_no_sibling(rig: Rig) -> None:
    """That of a filter without workers, when a worker of another filter of the name is there."""
    rig.make("$share/g/t/#", keeping=LASTING)
    rig.send("t/x", "job")
    puller = Puller(rig, "$share/g/t/#")
    puller.nack(puller.lease(), 5_000)
    rig.pass_ms(6_000)
    rig.make("$share/g/t/+", keeping=LASTING)
    begin(rig)
    w = worker(rig, text="$share/g/t/+")
    rig.pass_ms(5_000)
    assert w.inbox == []
    cancel(rig)
    rig.pass_ms(1_000)
    assert w.take_all() == ["job"]


def test_groups_made_and_joined_meanwhile_drain_too(rig: Rig) -> None:
    begin(rig)
    w = worker(rig)
    rig.send("t/x", "1")
    rig.make("$share/made/t/#", keeping=LASTING)
    other = worker(rig, "o", "$share/made/t/#")
    rig.send("t/x", "2")
    assert w.inbox == other.inbox == []
    w.drop()
    w = rig.lasting("w")
    assert w.inbox == []
    cancel(rig)
    assert (w.take_all(), other.take_all()) == (["1", "2"], ["2"])


def test_calls_for_messages_wait_or_are_answered_empty(rig: Rig) -> None:
    rig.make(TEXT, keeping=LASTING)
    puller = Puller(rig, TEXT)
    rig.send("t/x", "1", "2")
    leases = puller.lease(1)
    waiting = puller.ask(wait_ms=5_000, most=1)
    assert waiting.payloads == ["2"]
    waiting = puller.ask(wait_ms=5_000)
    begin(rig)
    rig.send("t/x", "3")
    assert puller.ask().payloads == []
    assert waiting.answer is None
    rig.pass_ms(6_000)
    assert waiting.payloads == []
    assert out(rig) == 2
    (extended,) = puller.extend(leases, 60_000)
    (acked,) = puller.ack(leases)
    assert (extended.done, acked.done, out(rig)) == (1, 1, 1)
    cancel(rig)
    assert puller.ask().payloads == ["3"]


def test_a_call_that_waits_has_what_comes_after_the_drain(rig: Rig) -> None:
    rig.make(TEXT, keeping=LASTING)
    begin(rig)
    waiting = Puller(rig, TEXT).ask(wait_ms=60_000)
    rig.send("t/x", "1")
    assert waiting.answer is None
    cancel(rig)
    assert waiting.payloads == ["1"]


def test_a_lease_of_before_the_start_is_out_and_leased_on(rig: Rig) -> None:
    rig.make(TEXT, keeping=LASTING)
    puller, w = Puller(rig, TEXT), worker(rig, "w", "$share/h/t/#")
    rig.send("t/x", "1")
    leases = puller.lease(lease_ms=60_000)
    assert len(w.publishes()) == 1
    drain = rig.core.groups.loans.drain
    assert (drain.out, drain.leased) == (2, 2)
    rig.start_again("restart")
    assert (out(rig), rig.core.groups.loans.drain.leased) == (2, 2)
    puller.ack(leases)
    assert out(rig) == 1
    rig.pass_ms(HELD_MS)
    assert out(rig) == 0


def test_what_is_paused_stays_so(rig: Rig) -> None:
    w = worker(rig)
    rig.pause(TEXT)
    begin(rig)
    rig.send("t/x", "1")
    cancel(rig)
    assert w.inbox == []
    begin(rig)
    rig.pause(TEXT, is_paused=False)
    assert w.inbox == []
    cancel(rig)
    assert w.take_all() == ["1"]


def test_it_begins_once_and_ends_with_the_process(rig: Rig) -> None:
    w = worker(rig)
    drain = rig.core.groups.loans.drain
    cancel(rig)
    assert drain.since_ms is None
    begin(rig)
    since_ms = drain.since_ms
    rig.pass_ms(1_000)
    begin(rig)
    assert drain.since_ms == since_ms == rig.clock.wall_ms() - 1_000
    rig.send("t/x", "1")
    assert w.inbox == []
    rig.start_again("restart")
    assert rig.core.groups.loans.drain.since_ms is None
    assert rig.lasting("w").take_all() == ["1"]


def test_one_that_a_stop_follows_cannot_be_cancelled(rig: Rig) -> None:
    drain = rig.core.groups.loans.drain
    begin(rig)
    drain.begin(rig.clock.wall_ms(), is_last=True)
    with pytest.raises(StopFollows, match="is stopping"):
        drain.cancel()
    assert drain.since_ms is not None


def test_after_a_kill_nothing_is_lost_or_done_twice(rig: Rig) -> None:
    w = worker(rig)
    rig.send("t/x", "1", "2")
    assert w.take_all() == ["1", "2"]
    begin(rig)
    rig.send("t/x", "3")
    rig.pass_ms(1_000)
    rig.kill()
    assert rig.lasting("w").take_all() == ["3"]
