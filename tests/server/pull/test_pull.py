"""Messages for who asks for them, on a rig: given, waited for, shared, acked, given back, over kills."""

from dataclasses import replace
from functools import partial

import pytest

from server.auth.rights import Grant, Principal, Rights
from server.codec import wire
from server.codec.packets import Ack
from server.delivery.shared import Group
from server.delivery.terms import Keeping
from server.engine.writer import Busy
from server.pull.lease_id import LeaseId
from server.pull.pull import IDLE_S, LEASE_MS
from server.settings.config import Http
from shards import keys
from shards.commit import Commit
from shards.errors import StoreFailed
from shards.expiry import expire
from shards.record import decode
from shards.store import Table
from tests.support.kept import kept_of
from tests.support.pulling import TEXT, Puller, lease_of
from tests.support.rig import START_MS, Rig, config, props
from timeline.deliveries import NEVER
from timeline.delivery_rows import Event
from timeline.position import END, START, Position, message_id


def _rig(count: int = 0, **settings: object) -> tuple[Rig, Puller]:
    """A server with the group, and so many messages for it: "0", "1", ..."""
    rig = Rig(config(**settings))
    rig.decide(lambda commit: rig.core.groups.make(commit, TEXT))
    _send(rig, *(str(n) for n in range(count)))
    return rig, Puller(rig)


def _send(rig: Rig, *payloads: str, topic: str = "t", qos: int = 1) -> None:
    peer = rig.connected("sender")
    for number, payload in enumerate(payloads, 1):
        peer.publish(topic, payload, qos, pump=number % 50 == 0)
    rig.pump()
    peer.drop()


def _rewind(rig: Rig, *, pump: bool = True) -> None:
    group = rig.group(TEXT)
    rig.decide(lambda commit: rig.core.replay.rewind(commit, group, START), pump=pump)


def _in_flight(rig: Rig) -> int:
    return sum(len(group.session.flights) for group in rig.core.groups)


def test_what_is_there_is_leased_and_acked() -> None:
    rig, puller = _rig(5)
    first, second = puller.ask(3), puller.ask(3)
    assert (first.payloads, second.payloads) == (["0", "1", "2"], ["3", "4"])
    assert [one.given.attempt for one in first.leased] == [1, 1, 1]
    assert {one.until_ms for one in first.leased} == {START_MS + LEASE_MS}
    assert puller.ask().payloads == []
    leases = [lease_of(one) for asked in (first, second) for one in asked.leased]
    (settled,) = puller.ack(leases[:3])
    assert (settled.done, settled.gone, settled.error) == (3, [], None)
    assert _in_flight(rig) == 2
    (settled,) = puller.ack(leases)
    assert (settled.done, settled.gone) == (2, leases[:3])
    assert (_in_flight(rig), rig.core.pull.leased, rig.core.pull.held_bytes) == (0, 5, 0)


def test_a_call_waits_and_is_answered_with_all_that_comes_at_once() -> None:
    rig, puller = _rig()
    asked = puller.ask(wait_ms=20_000)
    rig.pass_ms(10_000)
    assert (asked.answer, rig.core.pull.waiting) == (None, 1)
    peer = rig.connected("sender")
    for n in range(3):
        peer.publish("t", str(n), 1, pump=False)
    rig.pump()
    assert asked.payloads == ["0", "1", "2"]
    assert rig.core.pull.waiting == 0


def test_one_that_has_waited_long_enough_is_answered_with_nothing() -> None:
    rig, puller = _rig()
    asked = puller.ask(wait_ms=1_000)
    rig.pass_ms(900)
    assert asked.answer is None
    assert 0 < rig.core.pull.wait_s() <= 0.1
    rig.pass_ms(100)
    assert asked.payloads == []
    assert rig.core.pull.waiting == 0
    _send(rig, "late")
    assert puller.ask().payloads == ["late"]


def test_the_one_that_has_waited_longest_is_served_first() -> None:
    rig, puller = _rig()
    asked = [puller.ask(2, wait_ms=20_000) for _ in range(3)]
    peer = rig.connected("sender")
    for n in range(3):
        peer.publish("t", str(n), 1, pump=False)
    rig.pump()
    assert [one.payloads for one in asked[:2]] == [["0", "1"], ["2"]]
    assert asked[2].answer is None


def test_an_answer_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.pull.call.ANSWER_BYTES", 250_000)
    rig, puller = _rig()
    _send(rig, *("x" * 30_000 for _ in range(8)))
    sizes = [len(puller.ask(100).payloads) for _ in range(3)]
    assert sum(sizes) == 8
    assert sizes[0] == 3  # a message counts for more than its payload


def test_what_is_not_answered_yet_is_bounded() -> None:
    rig = Rig(replace(config(), http=Http(buffered_bytes=150_000)))
    rig.decide(lambda commit: rig.core.groups.make(commit, TEXT))
    puller = Puller(rig)
    _send(rig, *("x" * 30_000 for _ in range(6)))
    first = puller.ask(10)
    assert first.answer is not None
    second = puller.ask(10, wait_ms=20_000)
    assert second.answer is None
    assert len(first.payloads) == 2
    rig.pump()
    assert second.answer is not None
    assert len(second.payloads) == 2


def test_members_of_both_kinds_share() -> None:
    rig, puller = _rig()
    member = rig.connected("w")
    member.subscribe(TEXT, qos=1)
    asked = puller.ask(wait_ms=20_000)
    peer = rig.connected("sender")
    for n in range(10):
        peer.publish("t", str(n), 1, pump=False)
    rig.pump()
    mine, theirs = asked.payloads, member.payloads()
    assert sorted(mine + theirs) == [str(n) for n in range(10)]
    assert mine
    assert theirs
    _send(rig, "a", "b")
    assert member.payloads() == ["a", "b"]


def test_two_filters_of_a_name_are_asked_in_one_call() -> None:
    rig, _ = _rig()
    other = "$share/g/u"
    rig.decide(lambda commit: rig.core.groups.make(commit, other))
    both = Puller(rig, TEXT, other)
    _send(rig, "0")
    _send(rig, "1", topic="u")
    assert sorted(both.ask().payloads) == ["0", "1"]
    asked = both.ask(1, wait_ms=20_000)
    _send(rig, "2", topic="u")
    assert asked.payloads == ["2"]
    _send(rig, "3")
    assert both.ask().payloads == ["3"]


def test_who_is_gone_is_given_nothing_and_that_was_no_attempt() -> None:
    rig, puller = _rig()
    asked = puller.ask(wait_ms=20_000)
    asked.is_gone = True
    rig.pass_ms(1_000)
    assert asked.payloads == []
    _send(rig, "0")
    rig.is_held = True  # the lease does not become durable
    asked = puller.ask()
    assert asked.answer is None
    asked.is_gone, rig.is_held = True, False
    rig.pump()
    assert asked.payloads == []
    (again,) = puller.ask().leased
    assert again.given.attempt == 1


def test_what_was_not_read_is_put_back() -> None:
    rig, puller = _rig(2)
    asked = puller.ask()
    for _ in range(2):
        rig.core.pull.abandon(asked.call)
    assert rig.core.pull.held_bytes == 0
    again = puller.ask()
    assert [one.given.attempt for one in again.leased] == [1, 1]
    rig.core.pull.abandon(again.call)  # too late: it is released
    assert puller.ask().payloads == []
    waits = puller.ask(wait_ms=20_000)
    rig.core.pull.abandon(waits.call)
    assert rig.core.pull.waiting == 0


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_put_back_before_its_lease_was_stored_is_there_after_a_start(is_killed: bool) -> None:
    rig, puller = _rig(1)
    asked = puller.ask(wait_ms=20_000, pump=False)
    while not asked.call.given:
        rig.core.replay.turn()
    rig.core.pull.abandon(asked.call)
    rig.pump()
    rig.pass_ms(10_000)  # the group's cursor is stored
    if is_killed:
        rig.crash()
    else:
        rig.restart()
    (again,) = puller.ask().leased
    assert again.given.attempt == 1


def test_a_lease_that_is_over_was_an_attempt() -> None:
    rig, puller = _rig(1)
    puller.lease(lease_ms=5_000)
    rig.pass_ms(4_000)
    assert puller.ask().payloads == []
    asked = puller.ask(wait_ms=60_000)
    rig.pass_ms(1_500)
    assert asked.answer is None  # the back-off
    rig.pass_ms(2_000)
    (again,) = asked.leased
    assert (again.given.attempt, again.given.message.record.payload) == (2, b"0")


def test_a_lease_is_extended() -> None:
    rig, puller = _rig(1)
    leases = puller.lease(lease_ms=2_000)
    rig.pass_ms(1_500)
    (settled,) = puller.extend(leases, 10_000)
    assert (settled.done, settled.gone, settled.until_ms) == (1, [], rig.clock.now_ms + 10_000)
    rig.pass_ms(9_000)
    assert _in_flight(rig) == 1
    assert puller.ack(leases)[0].done == 1
    (settled,) = puller.extend(leases, 10_000)
    assert (settled.done, settled.gone) == (0, leases)


def test_a_late_ack_counts_while_it_waits_and_when_another_has_it() -> None:
    rig, puller = _rig(1)
    leases = puller.lease(lease_ms=1_000)
    rig.pass_ms(1_500)  # it waits for its next attempt
    assert puller.ack(leases)[0].done == 1
    rig.pass_ms(60_000)
    assert puller.ask().payloads == []
    _send(rig, "1")
    leases = puller.lease(lease_ms=1_000)
    asked = puller.ask(wait_ms=60_000)
    rig.pass_ms(3_000)
    (another,) = asked.leased
    assert another.given.attempt == 2
    assert puller.ack(leases)[0].done == 1
    assert _in_flight(rig) == 0
    (group,) = rig.core.groups
    assert [one.good.by for one in kept_of(rig.store, group.whose)] == ["(pull)"] * 2
    rig.pass_ms(600_000)
    assert puller.ask().payloads == []


def test_a_nack_comes_again_with_its_reason() -> None:
    rig, puller = _rig(2)
    first, second = puller.lease()
    (settled,) = puller.nack([first], 5_000, "no paper")
    assert (settled.done, settled.dead, settled.gone, settled.error) == (1, 0, [], None)
    assert puller.nack([first])[0].gone == [first]
    asked = puller.ask(wait_ms=60_000)
    rig.pass_ms(4_900)
    assert asked.answer is None
    rig.pass_ms(200)
    (again,) = asked.leased
    assert (again.given.attempt, again.given.message.record.payload) == (2, b"0")
    assert again.given.message.record.retry is not None
    assert again.given.message.record.retry.reason == b"no paper"
    assert puller.ack([second])[0].done == 1


def test_a_nack_of_the_last_attempt_is_the_end_and_an_ack_takes_it_back() -> None:
    rig, puller = _rig(1, max_attempts=1)
    leases = puller.lease()
    assert puller.nack(leases, 0, "bad")[0].dead == 1
    assert rig.core.dead_letter_queue.totals.count == 1
    assert puller.ack(leases)[0].done == 1
    assert rig.core.dead_letter_queue.totals.count == 0
    assert puller.ack(leases)[0].gone == leases


def test_calls_that_wait_are_bounded() -> None:
    rig, puller = _rig(waiting_pulls=8)
    asked = [puller.ask(wait_ms=20_000) for _ in range(4)]
    with pytest.raises(Busy):
        puller.ask()
    rig.decide(lambda commit: rig.core.groups.make(commit, "$share/h/t"))
    others = Puller(rig, "$share/h/t")
    more = [others.ask(wait_ms=20_000) for _ in range(2)]
    with pytest.raises(Busy):
        others.ask()
    rig.pass_ms(20_000)
    assert all(one.answer == () for one in asked + more)
    assert puller.ask().payloads == []


def test_the_calls_of_a_key_leave_room_for_those_of_another() -> None:
    """However many groups it asks."""
    rig, _ = _rig(waiting_pulls=8)
    texts = [f"$share/g{n}/t" for n in range(8)]
    for text in texts:
        rig.decide(partial(rig.core.groups.make, text=text))
    greedy, other = (Rights(Principal(name, Grant(), rig.clock.mono), "") for name in ("greedy", "other"))
    for text in texts[:4]:
        Puller(rig, text, rights=greedy).ask(wait_ms=20_000)
    with pytest.raises(Busy):
        Puller(rig, texts[4], rights=greedy).ask()
    assert Puller(rig, texts[5], rights=other).ask(wait_ms=20_000).answer is None


def test_late_acks_beyond_the_bound_are_refused_and_not_said_to_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, puller = _rig(6)
    leases = puller.lease(lease_ms=1_000)
    rig.pass_ms(1_500)
    monkeypatch.setattr("server.delivery.settling.events.LATE_MAX", 5)
    with pytest.raises(Busy):
        puller.ack(leases)
    assert puller.ack(leases[:5])[0].done == 5
    assert puller.ack(leases[5:])[0].done == 1
    rig.pass_ms(60_000)
    assert puller.ask().payloads == []


def test_what_was_never_sent_cannot_be_acked() -> None:
    """A lease_id that somebody has made up, of a time to come."""
    rig, puller = _rig(1)
    (lease,) = puller.lease()
    ahead = lease._replace(position=Position(lease.position + (1 << 60)))
    assert puller.ack([ahead])[0].gone == [ahead]
    assert not next(iter(rig.core.groups)).session.finished
    assert puller.ack([lease])[0].done == 1


def test_a_consumer_that_stays_empty_is_dismissed_and_the_group_stays() -> None:
    rig, puller = _rig(1)
    leases = puller.lease(lease_ms=60_000)
    (group,) = rig.core.groups
    rig.pass_ms(30_000)
    assert len(group.members) == 1
    puller.ack(leases)
    rig.pass_ms(int(IDLE_S * 1_000) + 1_000)
    assert len(group.members) == 0
    assert rig.core.groups.get(TEXT) is group
    _send(rig, "1")
    assert puller.ask().payloads == ["1"]


def test_at_the_stop_who_waits_is_answered() -> None:
    rig, puller = _rig()
    asked = puller.ask(wait_ms=20_000)
    rig.core.pull.stop()
    assert asked.answer == ()
    assert puller.ask(wait_ms=20_000).answer == ()


def test_without_a_store_nothing_is_said_to_be_leased_or_acked() -> None:
    rig, puller = _rig(2)
    (first,) = puller.lease(1)
    rig.is_held = True
    asked, acked = puller.ask(), puller.ack([first])
    assert (asked.answer, acked) == (None, [])
    rig.fail_sync()
    rig.is_held = False
    while rig.stepper.unsynced:
        rig.fail_sync()
    rig.recover()
    rig.pump()
    assert isinstance(asked.answer, StoreFailed)
    assert isinstance(acked[0].error, StoreFailed)
    assert puller.ask().payloads == ["1"]


@pytest.mark.parametrize("how", ["ack", "nack", "release"])
def test_what_is_said_of_a_lease_while_its_ack_with_messages_fails_leaves_it_to_others(how: str) -> None:
    rig, puller = _rig(1)
    (mine,) = puller.lease()
    follow = partial(
        rig.core.settling.follow,
        text=mine.text,
        number=mine.number,
        is_it=lambda flight: True,
        place=list,
    )
    rig.decide(lambda commit: follow(commit), pump=False)
    rig.compose()
    getattr(puller, how)([mine], pump=False)
    rig.fail_sync()
    rig.store.survivors = 0
    assert rig.recover()
    rig.pass_ms(60_000)
    puller.ack(puller.lease())
    assert not _in_flight(rig)


@pytest.mark.long
@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_kill_keeps_what_was_answered(survivors: int) -> None:
    """At each step of lease, ack and nack: what was answered holds, the rest is done once or again."""
    for steps in range(40):
        rig, puller = _rig(3)
        done, back = puller.lease(2)
        acked = puller.ack([done], pump=False)
        puller.nack([back], 60_000, pump=False)
        asked = puller.ask(pump=False)
        is_at_rest = not rig.take_steps(steps)
        rig.crash(survivors)
        rig.pump()
        found = puller.ask().payloads
        assert found in ([], ["2"]), "the others are leased, or wait for their next try"
        if asked.answer:
            assert not isinstance(asked.answer, Exception)
            assert not found
            assert puller.ack([lease_of(one) for one in asked.answer])[0].done == 1
        if acked:
            assert puller.ack([done])[0].gone == [done]
        assert puller.ack([back])[0].done == 1
        rig.pass_ms(120_000)
        later = puller.ask().payloads
        assert len(set(later)) == len(later)
        assert not (acked and "0" in later)
        assert "1" not in later
        assert ("2" in later) == (not asked.answer)
        if is_at_rest:
            break


def test_a_lease_outlives_the_server_and_all_its_verbs_do() -> None:
    rig, puller = _rig(5)
    leases = puller.lease(lease_ms=10_000)
    (held,) = puller.extend(leases[4:], 60_000)
    assert held.done == 1
    rig.pass_ms(4_000)
    rig.crash()
    rig.pump()
    assert puller.ask().payloads == [], "they are still whoever leased them's"
    assert puller.ack(leases[:1])[0].done == 1
    assert puller.nack(leases[1:2], 5_000)[0].done == 1
    assert puller.release(leases[2:3])[0].done == 1
    again = puller.ask()
    assert again.payloads == ["2"]
    assert again.leased[0].given.attempt == 1
    assert lease_of(again.leased[0]) != leases[2]
    rig.restart()
    assert puller.release(leases[2:3])[0].gone == leases[2:3], "another has it by now"
    assert puller.ask().payloads == []
    rig.pass_ms(12_000)
    other = puller.ask()
    assert other.payloads == ["1", "3"], "the nacked one, and the one whose lease has lapsed"
    puller.ack([lease_of(one) for one in (*again.leased, *other.leased)])
    rig.pass_ms(60_000)
    last = puller.ask()
    assert last.payloads == ["4"]
    assert last.leased[0].given.attempt == 2


def test_leases_from_before_the_start_make_no_queue_each_and_end_in_their_order() -> None:
    rig, puller = _rig(150)
    for n in range(150):
        puller.lease(1, lease_ms=10_000 + 7 * n)
    rig.kill()
    leases = rig.core.settling._leases
    assert (len(leases), len(leases._queues)) == (150, 0), "a look takes time for each queue"
    rig.pass_ms(10_500)
    assert 0 < len(leases) < 150
    rig.pass_ms(10_000)
    assert len(leases) == 0


def test_leases_from_before_the_start_count_for_the_bound_until_they_end() -> None:
    rig, puller = _rig(6, leases=4)
    first = puller.lease(4)
    count = len(first)
    assert 0 < count <= 4
    rig.kill()
    rig.pass_ms(500)
    assert rig.core.pull.out == count
    more = puller.lease(10)
    assert count + len(more) <= 4
    puller.ack(first)
    rig.pass_ms(500)
    assert rig.core.pull.out == len(more)
    assert not rig.core.settling._former, "nobody who holds nothing is kept"


def test_a_deleted_group_leaves_nobody_who_holds_its_leases() -> None:
    rig, puller = _rig(2)
    puller.lease(2)
    rig.kill()
    group = rig.group(TEXT)
    rig.decide(lambda commit: rig.core.groups.disband(commit, group), pump=False)
    rig.pass_ms(500)
    assert not rig.core.settling._former
    assert rig.core.pull.out == 0


def test_a_group_does_not_expire_under_a_lease_from_before_the_start() -> None:
    rig = Rig(config())
    rig.decide(lambda commit: rig.core.groups.make(commit, TEXT, keeping=Keeping(5, None)))
    _send(rig, "0")
    puller = Puller(rig)
    (lease,) = puller.lease(lease_ms=60_000)
    rig.kill()
    group = rig.group(TEXT)
    rig.pass_ms(30_000)
    assert not rig.core.groups.is_over(group)
    assert puller.ack([lease])[0].done == 1
    assert rig.core.groups.is_over(group)


def test_what_was_returned_is_not_leased_after_a_kill_though_too_many_wait_for_a_member() -> None:
    rig, puller = _rig(2, returned=1)
    leases = puller.lease(2, lease_ms=60_000)
    group = rig.group(TEXT)
    rig.core.pull.release_leases(leases, lambda settled: None)
    assert [flight.until_ms for flight in group.session.flights.values()] == [0, 0]


def test_a_lease_that_lapsed_while_it_was_durable_is_nobodys_after_a_restart() -> None:
    rig, puller = _rig(1)
    puller.lease(lease_ms=1_000)
    rig.core.writer.ran(5_000)
    rig.kill()
    assert puller.ask().payloads == ["0"]


def test_a_lease_of_an_earlier_try_touches_nobody_but_its_ack_counts() -> None:
    rig, puller = _rig(1)
    first = puller.lease()
    assert puller.nack(first, 0)[0].done == 1
    rig.pass_ms(500)
    second = puller.lease()
    assert first != second
    for settled in (puller.nack(first), puller.extend(first, 60_000), puller.release(first)):
        assert settled[0].gone == first
    assert _in_flight(rig) == 1
    assert puller.ack(first)[0].done == 1, "whoever has it by now, it is done"
    assert _in_flight(rig) == 0
    assert puller.extend(second, 60_000)[0].gone == second
    assert puller.ack(second)[0].gone == second
    assert puller.ask().payloads == []


@pytest.mark.parametrize("is_killed_first", [False, True])
@pytest.mark.parametrize("ends", ["idle", "busy", "killed", "stopped"])
def test_a_lease_of_before_a_replay_touches_nobody_but_its_ack_counts(
    ends: str, is_killed_first: bool
) -> None:
    """The same message, its first try both times, and packet ids begin anew: the leases are two all the same.

    After the second one: nothing, a kill, or a stop in order. Before it: a kill, or a dismissed consumer.
    """
    rig, puller = _rig(1)
    first = puller.lease()
    assert puller.ack(first)[0].done == 1
    if is_killed_first:
        rig.kill()
    elif ends == "idle":
        rig.pass_ms(int(IDLE_S * 1_000) + 1_000)
    _rewind(rig)
    second = puller.lease(lease_ms=60_000)
    assert len(second) == 1
    assert second != first
    if ends == "killed":
        rig.kill()
    elif ends == "stopped":
        rig.restart()
    for settled in (puller.nack(first), puller.extend(first, 1_000), puller.release(first)):
        assert settled[0].gone == first
    rig.pass_ms(5_000)
    assert puller.ask().payloads == [], "the second lease is as it was"
    assert puller.extend(second, 60_000)[0].done == 1
    assert puller.ack(first)[0].done == 1, "whoever has it by now, it is done"
    assert puller.ack(second)[0].gone == second


def test_a_lease_is_of_its_own_group() -> None:
    """The number finds a lease of any group: who may lease of one decides nothing of another's."""
    rig, puller = _rig(1)
    other = "$share/h/t"
    rig.decide(lambda commit: rig.core.groups.make(commit, other))
    (lease,) = puller.lease()
    forged = [lease._replace(text=other)]
    for settled in (puller.nack(forged), puller.extend(forged, 1_000), puller.release(forged)):
        assert settled[0].gone == forged
    puller.ack(forged)
    assert puller.extend([lease], 1_000)[0].done == 1


def test_a_lease_of_the_first_release_is_acked_and_is_gone_for_all_else() -> None:
    """Its ids have a packet id for the number."""
    rig, puller = _rig(1)
    (lease,) = puller.lease()
    (flight,) = [flight for group in rig.core.groups for flight in group.session.flights.values()]
    first = [lease._replace(number=flight.packet_id)]
    for settled in (puller.nack(first), puller.extend(first, 1_000), puller.release(first)):
        assert settled[0].gone == first
    assert puller.ack(first)[0].done == 1
    assert puller.ack([lease])[0].gone == [lease]


def test_a_lease_is_forgotten_when_it_ends() -> None:
    """However it does."""
    rig, puller = _rig(5)
    leases = puller.lease(5, lease_ms=1_000)
    named = rig.core.leases._named
    assert set(named) == {lease.number for lease in leases}
    puller.ack(leases[:1])
    puller.nack(leases[1:2], 60_000)
    puller.extend(leases[2:3], 5_000)
    puller.release(leases[3:4])
    assert set(named) == {leases[2].number, leases[4].number}
    rig.pass_ms(2_000)
    assert set(named) == {leases[2].number}
    rig.pass_ms(5_000)
    assert not named


def test_a_release_is_no_try_ten_times() -> None:
    rig, puller = _rig(1, max_attempts=1)
    for _ in range(10):
        asked = puller.ask()
        assert [one.given.attempt for one in asked.leased] == [1]
        assert puller.release([lease_of(one) for one in asked.leased])[0].done == 1
    assert puller.release(puller.lease())[0].done == 1
    (letter,) = list(rig.core.dead_letters.read())
    assert (letter.attempts, letter.returns) == (1, 10)
    assert letter.reason.startswith("returned")


def test_how_long_a_try_took_is_known() -> None:
    rig, puller = _rig(1)
    leases = puller.lease()
    rig.pass_ms(3_000)
    puller.nack(leases, 60_000, "no")
    (row,) = list(rig.core.kept_retries.read())
    assert [(one.outcome, one.reason, one.by, one.ms) for one in row.tries] == [
        ("failed", "no", "(pull)", 3_000)
    ]


def test_leases_of_before_a_kill_are_acked_after_it_by_whoever_had_them() -> None:
    rig, puller = _rig(3)
    leases = puller.lease()
    rig.crash()
    rig.pump()
    assert puller.ack(leases[:1])[0].done == 1
    rig.pass_ms(LEASE_MS + 3_000)
    assert puller.ask().payloads == ["1", "2"], "their leases are over"
    assert puller.ack(leases)[0].done == 2  # another has them
    assert _in_flight(rig) == 0
    assert puller.ask().payloads == []


def test_a_nack_of_before_a_kill_counts_until_another_has_it() -> None:
    rig, puller = _rig(2)
    leases = puller.lease()
    rig.crash()
    rig.pump()
    assert puller.nack(leases[:1], 5_000)[0].done == 1
    rig.pass_ms(6_000)
    assert puller.ask().payloads == ["0"]
    rig.pass_ms(LEASE_MS)
    assert puller.ask().payloads[0] == "1"
    assert puller.nack(leases)[0].gone == leases


def test_one_that_is_not_stored_is_done_with_when_it_is_given() -> None:
    rig, puller = _rig()
    asked = puller.ask(wait_ms=20_000)
    _send(rig, "0", qos=0)
    (one,) = asked.leased
    assert one.given.message.record.payload == b"0"
    assert _in_flight(rig) == 0


def test_a_group_has_as_many_leases_as_it_leaves_for_others() -> None:
    rig, puller = _rig(30, leases=20)
    assert len(puller.lease(30)) == 10
    assert puller.lease(30) == []
    waiting = puller.ask(30, wait_ms=20_000)
    rig.pass_ms(500)
    assert waiting.answer is None
    other = Puller(rig, "$share/other/t")
    rig.decide(lambda commit: rig.core.groups.make(commit, other.texts[0]))
    _send(rig, *(str(n) for n in range(30)))
    assert len(other.lease(30)) == 5


def test_who_waits_because_of_leases_is_given_more_when_some_are_acked() -> None:
    rig, puller = _rig(30, leases=20)
    leases = puller.lease(30)
    waiting = puller.ask(30, wait_ms=20_000)
    puller.ack(leases[:4])
    rig.pass_ms(1_000)
    assert waiting.payloads[0] == "10"


def test_what_nobody_was_sent_and_has_no_room_to_wait_comes_again_from_disk() -> None:
    rig, puller = _rig(10, returned=4)
    rig.is_held = True
    asked = puller.ask(10)
    asked.is_gone = True
    rig.is_held = False
    rig.pump()
    assert asked.answer == ()
    assert rig.core.groups.returned.waiting == 4
    assert _in_flight(rig) == 4
    rig.pass_ms(100)
    again = puller.ask(10, wait_ms=1_000)
    rig.pass_ms(1_000)
    assert sorted(again.payloads) == [str(n) for n in range(10)]
    assert {one.given.attempt for one in again.leased} <= {1}


def test_leases_of_ever_another_time_end_when_they_are_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many times they lie together, and none ends before its own."""
    monkeypatch.setattr("server.delivery.settling.leases.QUEUES_MAX", 2)
    rig, puller = _rig(5)
    times = [5_000, 3_000, 4_000, 1_000, 3_000]
    for lease_ms in times:
        assert len(puller.lease(1, lease_ms=lease_ms)) == 1
    for passed_ms in range(500, 6_000, 500):
        rig.pass_ms(500)
        assert _in_flight(rig) == sum(lease_ms > passed_ms for lease_ms in times), passed_ms


def test_what_is_leased_while_the_group_is_set_back_is_given_once() -> None:
    rig, puller = _rig(3)
    leases = puller.lease()
    puller.nack(leases[2:], 0)
    rig.pass_ms(500)
    retry = puller.lease()
    _rewind(rig)
    assert puller.ack([*leases[:1], *retry])[0].done == 2
    assert puller.ask().payloads == []
    assert puller.ack(leases[1:2])[0].done == 1
    rig.kill()
    assert puller.ask().payloads == []
    assert _in_flight(rig) == 0


def test_an_ack_counts_of_what_was_given_up_while_it_was_leased() -> None:
    rig, puller = _rig(1)
    leases = puller.lease()
    group = rig.group(TEXT)
    (flight,) = group.session.flights.values()
    rig.core.events.fail(group, flight, Event.SLICE_GOES, "kept too long")
    rig.pump()
    assert len(list(rig.core.dead_letters.read())) == 1
    assert puller.ack(leases)[0].done == 1
    assert list(rig.core.dead_letters.read()) == []
    assert puller.ack(leases)[0].gone == leases


@pytest.mark.long
@pytest.mark.parametrize("end", ["given up", "ended", "tried again"])
def test_an_ack_counts_of_what_was_moved_and_is_older_than_retention(end: str) -> None:
    """Its id is another than its row's, and the row has gone by the time of the ack."""
    rig, puller = _rig()
    _send(rig, "moved", topic="$delayed/60/t")
    ((place, shard, _),) = rig.core.reader.read(START, END)
    name = message_id(place, shard, 0)
    rig.decide(lambda commit: commit.move(name, START_MS + 120_000), pump=False)
    rig.pass_ms(3_600_000)
    leases = puller.lease()
    assert len(leases) == 1
    _seal(rig)
    group, floor = rig.group(TEXT), rig.core.floor
    if end == "tried again":
        puller.nack(leases, 0)
        rig.pass_ms(500)
        puller.nack(puller.lease(), NEVER)
    elif end == "ended":
        flights = [*group.session.flights.values()]
        rig.decide(lambda _: rig.core.burials.end_flights(group, flights), pump=False)
        rig.decide(lambda _: [group.session.give_up(one) for one in flights], pump=False)
    else:
        rig.decide(lambda commit: floor.give_up(commit, group, END), pump=False)
    rig.pump()
    assert [row.id for row in rig.core.dead_letters.read()] == [name]
    gone = list(rig.core.directory)
    rig.decide(lambda commit: expire(commit, gone))
    assert list(rig.core.reader.read(START, END)) == []
    assert puller.ack(leases)[0].done == 1
    assert list(rig.core.dead_letters.read()) == []
    assert not list(rig.store.scan(Table.DELIVERIES, keys.RECORD, keys.KEPT))  # its story has no record
    assert puller.ack(leases)[0].gone == leases


def _seal(rig: Rig) -> None:
    """The horizon has passed all slices."""

    def seal(commit: Commit) -> None:
        for piece in rig.core.directory.passed(rig.core.horizon.position):
            commit.open_batch.passed(piece)

    rig.decide(seal)


def test_a_retry_that_is_done_when_its_group_is_deleted_is_no_dead_letter() -> None:
    rig = Rig()
    rig.decide(lambda commit: rig.core.groups.make(commit, TEXT), pump=False)
    worker = rig.connected("w")
    worker.subscribe(TEXT, qos=1)
    _send(rig, "done", "not done")
    for packet in worker.publishes():
        worker.send(Ack(wire.PUBACK, packet.packet_id, 0x80, props(user_properties=(("retry-in", "0"),))))
    rig.pass_ms(500)
    first, *_ = worker.publishes()
    worker.send(Ack(wire.PUBACK, first.packet_id), pump=False)
    worker.connection.receive(b"")
    group = rig.group(TEXT)
    rig.decide(lambda commit: rig.core.groups.disband(commit, group))
    letters = [decode(row.record).payload for row in rig.core.dead_letters.read()]
    assert letters == [b"not done" if first.payload == b"done" else b"done"]


def test_a_letter_of_a_former_group_is_not_requeued_to_the_one_that_has_its_name() -> None:
    rig, puller = _rig(1)
    puller.nack(puller.lease(), NEVER, "")
    (letter,) = rig.core.dead_letters.read()
    assert letter.reason == "rejected"
    group = rig.group(TEXT)
    rig.decide(lambda commit: rig.core.groups.disband(commit, group), pump=False)
    rig.decide(lambda commit: rig.core.groups.make(commit, TEXT))
    again = rig.group(TEXT)

    def requeue(to: Group | None) -> list[object]:
        now_ms, letters = rig.clock.now_ms, rig.core.dead_letters
        return rig.decide(lambda commit: letters.requeue(commit, letter.name, now_ms, lambda *_: True, to))

    assert (requeue(None), requeue(again)) == ([False], [True])


def _leased(count: int) -> tuple[Rig, Puller, list[LeaseId]]:
    rig, puller = _rig(count)
    leases = [lease for _ in range(-(-count // 500)) for lease in puller.lease(500, lease_ms=600_000)]
    assert len(leases) == count
    return rig, puller, leases


@pytest.mark.long
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("acked", [0, 700, 2_500])
def test_each_of_many_that_are_leased_at_a_replay_is_given_once(acked: int, *, is_killed: bool) -> None:
    """Whether it is acked before it would be read again or after that; a kill in between changes nothing.

    Nobody asks for messages when the group is set back, so that it does not read on at once.
    """
    rig, puller, leases = _leased(2_500)
    rig.kill()
    _rewind(rig)
    if is_killed:
        rig.kill()
    assert sum(one.done for one in puller.ack(leases[:acked])) == acked
    if is_killed:
        rig.kill()
    assert puller.ask().payloads == []
    assert _in_flight(rig) == 2_500 - acked
    assert sum(one.done for one in puller.ack(leases[acked:])) == 2_500 - acked
    rig.pass_ms(700_000)
    assert puller.ask().payloads == []
    assert _in_flight(rig) == 0


@pytest.mark.long
@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_kill_while_a_group_with_many_leases_is_set_back_loses_and_doubles_nothing(survivors: int) -> None:
    for steps in range(6):
        rig, puller, leases = _leased(1_500)
        rig.kill()
        _rewind(rig, pump=False)
        for _ in range(steps):
            rig.micro()
        rig.crash(survivors)
        rig.pump()
        assert sum(one.done for one in puller.ack(leases)) == 1_500
        assert puller.ask().payloads == [], steps
        assert _in_flight(rig) == 0
