"""What a group keeps of deliveries that are done."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec import UNSET

from server.codec import wire
from server.codec.packets import Publish
from server.delivery import place_state
from server.delivery.done import Done
from server.delivery.shared import Group
from server.delivery.subscriber import Subscriber
from server.rounds.housekeeping import Housekeeping
from shards import kept, keys
from shards.commit import Commit
from shards.dedupe import Refused
from shards.delivery_rows import Name
from shards.fields import Record
from shards.kept import Kept
from shards.pointers import pointers
from shards.store import Table
from shards.tables import KeptRow, encode_row
from shards.verify import repair
from tests.support.kept import kept_of, result_at
from tests.support.rig import Peer, Rig, config
from timeline.position import START, Position, message_id

TEXT = "$share/g/jobs"
ALL, FAILED, NONE, TEN_S = ("keep", "all"), ("keep", "failed"), ("keep", "none"), ("keep", "10s")


class Place:
    def __init__(self, *terms: tuple[str, str]) -> None:
        self.rig = Rig(config())
        self.peer = self._come(terms)

    def _come(self, terms: tuple[tuple[str, str], ...] = ()) -> Peer:
        peer = self.rig.lasting("w")
        peer.subscribe(TEXT, qos=1, user_properties=(("backoff", "1s"), *terms))
        return peer

    @property
    def group(self) -> Group:
        group = self.rig.core.groups.get(TEXT)
        assert group is not None
        return group

    def job(self, payload: str = "x") -> Publish:
        """Publish one; as the worker gets it."""
        self.rig.send("jobs", payload)
        return self.next()

    def next(self) -> Publish:
        self.rig.pass_ms(3_000)
        return self.peer.publishes()[-1]

    def ack(self, job: Publish) -> None:
        self.peer.ack(wire.PUBACK, job.packet_id)
        self.rig.pass_ms(1_000)

    @property
    def kept(self) -> list[Kept]:
        return list(kept_of(self.rig.store, self.group.whose))

    def is_sound(self) -> bool:
        return not list(pointers(self.rig.store, self.rig.core.directory))


def done_of(place: Place) -> Done:
    core = place.rig.core
    return Done(core.opened.store, core.directory, core.groups, core.clock)


def test_what_failed_keeps_its_story_and_what_never_failed_writes_nothing() -> None:
    place = Place()
    place.ack(place.job())
    assert place.kept == []
    assert kept.totals(place.rig.store) == kept.NONE
    place.peer.nack(place.job("again"))
    began = place.rig.clock.now_ms
    place.ack(place.next())
    (one,) = place.kept
    assert (one.state.attempts, [(x.by, x.outcome) for x in one.tries]) == (2, [("w", "failed")])
    assert (one.good.by, one.good.outcome, one.good.reason) == ("w", "done", "")
    assert began < one.good.at_ms <= place.rig.clock.now_ms
    assert 0 < one.good.ms <= 3_000
    assert kept.totals(place.rig.store).count == kept.totals_of(place.rig.store, place.group.whose).count == 1
    assert place.is_sound()
    assert not list(place.rig.store.scan(Table.DELIVERIES, keys.RECORD, keys.KEPT))


@pytest.mark.parametrize(("terms", "count"), [(ALL, 2), (NONE, 0), (FAILED, 1), (TEN_S, 2)])
def test_keep_says_what_stays(terms: tuple[str, str], count: int) -> None:
    place = Place(terms)
    place.ack(place.job())
    place.peer.nack(place.job())
    place.ack(place.next())
    assert len(place.kept) == count
    assert place.is_sound()


def test_the_story_is_there_after_a_kill_with_the_ack() -> None:
    place = Place(ALL)
    place.ack(place.job())
    place.rig.crash(0)
    place.rig.pump()
    assert [one.state.attempts for one in place.kept] == [1]
    assert place.is_sound()


def test_a_replay_and_a_new_end_have_a_new_story() -> None:
    place = Place(ALL)
    place.peer.nack(place.job())
    place.ack(place.next())
    assert [one.state.attempts for one in place.kept] == [2]
    place.rig.decide(partial(place.rig.core.replay.rewind, subscriber=place.group, to=START))
    again = place.next()
    assert place.kept == []
    place.ack(again)
    assert [(one.state.attempts, one.tries) for one in place.kept] == [(1, [])]
    assert place.is_sound()


@pytest.mark.parametrize("then", [ALL, NONE])
def test_what_was_kept_before_a_replay_is_not_told_of_what_is_done_since(then: tuple[str, str]) -> None:
    place = Place(ALL)
    place.job()
    ack_with(place, b"1")
    core, ((root, _),) = place.rig.core, place.kept
    place.peer.subscribe(TEXT, qos=1, user_properties=(then,))
    place.rig.decide(partial(core.replay.rewind, subscriber=place.group, to=START))
    place.rig.clock.now_ms += 50
    while not place.group.session.flights:
        place.rig.micro()
    place.rig.deliver()
    place.peer.ack(wire.PUBACK, place.peer.publishes()[-1].packet_id, pump=False)
    place.rig.deliver()
    assert not place.group.session.flights
    assert place.kept, "until the next cursor"
    name, record = message_id(root, 0, 0), Record(b"jobs", b"x", qos=1)
    ((one,), _) = core.deliveries.of(name, root, record, lambda _: True)
    assert (one.state, one.result, one.ended_at is UNSET) == ("done", UNSET, then is NONE)


def test_a_replay_that_fails_forgets_what_was_done() -> None:
    place = Place(ALL)
    place.ack(place.job())
    place.rig.decide(partial(place.rig.core.replay.rewind, subscriber=place.group, to=START))
    place.peer.nack(place.next(), "never")
    place.rig.pass_ms(1_000)
    assert place.kept == []
    assert len(list(place.rig.core.dead_letters.read())) == 1
    assert place.is_sound()


def test_a_late_ack_has_its_story_once() -> None:
    place = Place(("ack-timeout", "1s"))
    late = place.job()
    place.rig.pass_ms(1_000)
    place.peer.ack(wire.PUBACK, late.packet_id)
    place.rig.pass_ms(5_000)
    (one,) = place.kept
    assert (one.state.attempts, one.tries[0].outcome, one.good.outcome) == (2, "lapsed", "done")
    events = place.rig.core.events
    events.finish(place.group, one.root, 0, lambda _: None)
    place.rig.pass_ms(1_000)
    assert place.kept == [one]
    assert place.is_sound()


@pytest.mark.parametrize(("ms", "attempts"), [(1_500, 1), (1_900, 2)])
def test_the_story_of_a_late_ack_says_who_acked(ms: int, attempts: int) -> None:
    """Also as another has it."""
    place = Place(("ack-timeout", "1s"))
    place.rig.send("jobs", "x")
    place.rig.pass_ms(300)
    late = place.peer.one()
    place.rig.pass_ms(ms)
    assert bool(place.group.session.flights) is (attempts > 1)
    place.ack(late)
    (one,) = place.kept
    assert (one.state.attempts, [(x.by, x.outcome) for x in one.tries]) == (attempts, [("w", "lapsed")])
    assert (one.good.by, one.good.outcome) == ("w", "done")
    assert place.is_sound()


@pytest.mark.parametrize(("terms", "count"), [(NONE, 0), (FAILED, 0), (ALL, 1)])
def test_a_late_ack_of_what_is_to_be_read_again_ends_its_former_story(
    terms: tuple[str, str], count: int
) -> None:
    place = Place(terms)
    place.job()
    ack_with(place, b"1")
    (one,) = place.kept
    place.peer.disconnect()
    place.rig.decide(partial(place.rig.core.replay.rewind, subscriber=place.group, to=START))
    place.rig.core.events.finish(place.group, one.root, 0, lambda _: None, by="b")
    place.rig.pass_ms(1_000)
    assert [now.good.by for now in place.kept] == ["b"] * count
    assert kept.totals(place.rig.store).results == 0
    assert place.is_sound()


def test_a_late_ack_right_after_a_message_is_read_again_has_its_story() -> None:
    place = Place(ALL)
    place.job()
    ack_with(place, b"1")
    place.rig.decide(partial(place.rig.core.replay.rewind, subscriber=place.group, to=START))
    (flight,) = place.group.session.flights.values()
    place.rig.core.events.finish(place.group, flight.position, 0, lambda _: None, by="b")
    place.rig.pass_ms(1_000)
    assert [one.good.by for one in place.kept] == ["b"]
    assert place.is_sound()


def test_a_late_ack_of_what_was_read_again_counts_no_try_from_before() -> None:
    place = Place(ALL)
    place.peer.nack(place.job(), "60s")
    place.rig.decide(partial(place.rig.core.replay.rewind, subscriber=place.group, to=START))
    (flight,) = place.group.session.flights.values()
    place.rig.core.events.finish(place.group, flight.position, 0, lambda _: None, by="b")
    place.rig.pass_ms(1_000)
    assert [(one.state.attempts, one.tries) for one in place.kept] == [(1, [])]
    assert place.is_sound()


def test_a_second_ack_leaves_the_story_of_the_first() -> None:
    """Also before that is written."""
    place = Place()
    place.peer.nack(place.job())
    job = place.next()
    (flight,) = place.group.session.flights.values()
    place.peer.ack(wire.PUBACK, job.packet_id)
    assert place.group.rows.ended
    place.rig.core.events.finish(place.group, flight.position, 0, lambda _: None, by="b")
    place.rig.pass_ms(1_000)
    assert [(one.state.attempts, one.good.by) for one in place.kept] == [(2, "w")]
    assert place.is_sound()


def test_the_story_of_a_late_ack_counts_the_flight_that_it_ends() -> None:
    """What a kill has left in nobody's hands, and what was returned in order."""
    place = Place(ALL)
    place.job()
    root = next(iter(place.group.session.flights.values())).position
    place.peer.disconnect()
    place.rig.pass_ms(500)
    place.rig.core.events.finish(place.group, root, 0, lambda _: None, by="b")
    place.rig.pass_ms(1_000)
    assert [(one.state.attempts, one.good.by) for one in place.kept] == [(0, "b")]
    place = Place(ALL)
    place.job()
    place.rig.pass_ms(1_000)
    (flight,) = place.group.session.flights.values()
    flight.begin_again(place.rig.clock.now_ms)
    place.rig.core.events.finish(place.group, flight.position, 0, lambda _: None, by="b")
    place.rig.pass_ms(1_000)
    assert [(one.state.attempts, len(one.tries)) for one in place.kept] == [(2, 1)]
    assert place.is_sound()


def test_a_duration_ends_and_so_does_what_a_group_that_is_gone_kept() -> None:
    place = Place(TEN_S)
    place.ack(place.job())
    done, whose = done_of(place), place.group.whose
    assert done.over() == []
    place.rig.pass_ms(11_000)
    assert done.over() == [(whose, place.group)]
    assert place.rig.decide(partial(done.drop, whose=whose, group=place.group)) == [1]
    assert place.kept == []
    assert done.over() == []
    assert place.is_sound()
    other = Place(ALL)
    other.ack(other.job())
    whose = other.group.whose
    other.peer.unsubscribe(TEXT)
    other.rig.pass_ms(1_000)
    assert done_of(other).over() == [(whose, None)]
    assert other.rig.decide(partial(done_of(other).drop, whose=whose, group=None)) == [1]
    assert other.is_sound()


def test_the_oldest_go_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ROWS_EACH", 3)
    monkeypatch.setattr(kept, "STEP", 1)
    place = Place(ALL)
    for number in range(6):
        place.ack(place.job(str(number)))
    assert len(place.kept) == 3
    assert place.rig.core.cursors.crowded_out == 3
    assert place.is_sound()
    roots = [one.root for one in place.kept]
    monkeypatch.setattr(kept, "ROWS_EACH", 100)
    monkeypatch.setattr(kept, "ROWS_ALL", 2)
    place.ack(place.job())
    assert [one.root for one in place.kept][:-1] == roots[1:]
    assert place.is_sound()


def test_what_is_dropped_for_an_older_one_does_not_hide_that(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(ALL)
    jobs = [place.job(str(number)) for number in range(4)]
    for job in jobs[1:]:
        place.ack(job)
    monkeypatch.setattr(kept, "ROWS_EACH", 3)
    monkeypatch.setattr(kept, "STEP", 1)
    place.ack(jobs[0])
    assert len(place.kept) == 3
    assert place.is_sound()
    place.peer.subscribe(TEXT, qos=1, user_properties=(NONE,))
    place.rig.pass_ms(1_000)
    sweep(place)
    assert place.kept == []


@pytest.mark.parametrize("count", [0, 7])
def test_a_count_that_is_mended_hides_nothing(count: int) -> None:
    place = Place(ALL)
    place.ack(place.job())
    whose, store = place.group.whose, place.rig.store
    wrong = encode_row(KeptRow(count)) if count else None
    place.rig.decide(lambda commit: commit.row(Table.DELIVERIES, keys.KEPT + whose, wrong))
    repair(store, [*pointers(store, place.rig.core.directory)])
    assert place.is_sound()
    place.ack(place.job())
    assert kept.totals_of(store, whose).count == 2
    assert place.is_sound()


def test_acks_beyond_what_may_wait_have_no_story(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_state, "ENDED_MAX", 0)
    place = Place(ALL)
    place.ack(place.job())
    assert place.kept == []
    place.job()
    assert ack_with(place, b"1") == [], "but a result is promised"
    assert [kept.result_of(place.rig.store, place.group.whose, one) for one in place.kept] == [b"1"]


def test_where_all_have_too_much_the_oldest_nearby_go_and_what_is_missing_of_the_place_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be 100,000 places: they are not all looked at."""
    place = Place(ALL)
    others = [f"$share/other{number}/jobs" for number in range(3)]
    for other in others:
        place.peer.subscribe(other, qos=1, user_properties=(ALL,))
    for number in range(2):
        place.rig.send("jobs", str(number))
        place.rig.pass_ms(1_000)
        for job in place.peer.publishes():
            place.ack(job)
        place.peer.inbox.clear()
    for other in others:
        place.peer.unsubscribe(other)
    place.rig.pass_ms(1_000)
    assert kept.totals(place.rig.store).count == 8
    monkeypatch.setattr(kept, "ROWS_ALL", 6)
    monkeypatch.setattr(kept, "STEP", 3)
    looked: list[bytes] = []
    places = kept.places

    def noted(*args: Any) -> Iterator[tuple[bytes, kept.KeptRow]]:
        for one in places(*args):
            looked.append(one[0])
            yield one

    monkeypatch.setattr(kept, "places", noted)
    for _ in range(3):
        place.ack(place.job())
    assert kept.totals(place.rig.store).count <= 6
    assert len(looked) <= 3 * 3
    assert place.is_sound()


def leased(rig: Rig, group: Group) -> tuple[Subscriber, int, int, Position]:
    """Lease the one message: who has it, its packet id, the number, its root."""
    ((member, theirs),) = group.lent.items()
    ((packet_id, lent),) = theirs.items()
    return member, packet_id, rig.core.settling.lease(member, TEXT, [packet_id], 30_000)[0], lent.position


def ack_with(place: Place, result: bytes) -> object:
    """Ack the one message with a result."""
    settling, (_, _, number, _) = place.rig.core.settling, leased(place.rig, place.group)

    def decide(commit: Commit) -> object:
        return settling.follow(commit, TEXT, number, lambda _: True, list, None, result)

    (answer,) = place.rig.decide(decide)
    return answer


@pytest.mark.parametrize("keep", [FAILED, NONE, ALL])
def test_a_result_lies_beside_its_delivery_until_its_time_is_over(keep: tuple[str, str]) -> None:
    place = Place(keep, ("result-ttl", "10s"))
    place.job()
    assert ack_with(place, b'{"sum": 3}') == []
    ((name, store),) = [(Name(place.group.whose, one.root), place.rig.store) for one in place.kept]
    assert result_at(store, name) == b'{"sum": 3}'
    assert kept.totals(store).results == 1
    place.rig.crash(0)
    place.rig.pump()
    assert result_at(place.rig.store, name) == b'{"sum": 3}'
    assert place.is_sound()
    done = done_of(place)
    assert done.over() == []
    place.rig.pass_ms(11_000)
    assert done.over() == [(name.whose, place.group)]
    assert place.rig.decide(partial(done.drop, whose=name.whose, group=place.group)) == [1]
    assert len(place.kept) == (keep is ALL)
    assert result_at(place.rig.store, name) is None
    assert done.over() == []
    assert place.is_sound()


def sweep(place: Place) -> None:
    done = done_of(place)
    for whose, group in done.over():
        place.rig.decide(partial(done.drop, whose=whose, group=group))
    assert place.is_sound()


def test_a_result_outlasts_a_shorter_keep() -> None:
    place = Place(TEN_S)
    place.job()
    ack_with(place, b"1")
    ((name, store),) = [(Name(place.group.whose, one.root), place.rig.store) for one in place.kept]
    place.rig.pass_ms(11_000)
    sweep(place)
    assert result_at(store, name) == b"1"
    place.rig.pass_ms(3_600_000)
    sweep(place)
    assert place.kept == []


def test_a_look_for_old_results_begins_behind_those_that_went() -> None:
    """Over 300,000 deleted rows the store takes 0.3 s."""
    place = Place(ALL, ("result-ttl", "20s"))
    whose, store = place.group.whose, place.rig.store
    for number in range(3):
        place.job()
        ack_with(place, b"%d" % number)
        place.rig.pass_ms(6_000)
    times = [one.state.at for one in place.kept]
    assert kept.totals_of(store, whose).first_result == times[0]
    place.rig.pass_ms(5_000)
    sweep(place)
    assert times[0] < kept.totals_of(store, whose).first_result <= times[1]
    place.job()
    ack_with(place, b"4")
    assert place.is_sound()


@pytest.mark.parametrize(("keep", "left"), [(FAILED, [1]), (NONE, []), (TEN_S, [])])
def test_what_is_kept_no_more_goes(keep: tuple[str, str], left: list[int]) -> None:
    """Also one whose only counted try was the good one: it had lapsed before."""
    place = Place(ALL, ("ack-timeout", "1s"))
    for ms in (0, 1_500):
        place.rig.send("jobs", "x")
        place.rig.pass_ms(300)
        job = place.peer.publishes()[-1]
        place.rig.pass_ms(ms)
        place.ack(job)
    assert [one.state.attempts for one in place.kept] == [1, 1]
    place.peer.subscribe(TEXT, qos=1, user_properties=(keep,))
    place.rig.pass_ms(11_000)
    sweep(place)
    assert [len(one.tries) for one in place.kept] == left


def test_a_result_without_room_is_refused_and_the_lease_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "RESULT_BYTES_EACH", 5)
    place = Place()
    place.job()
    refused = ack_with(place, b"123456")
    assert isinstance(refused, Refused)
    assert refused.why == "result-quota"
    assert place.kept == []
    assert len(place.group.session.flights) == 1
    assert ack_with(place, b"12345") == []
    assert not place.group.session.flights
    monkeypatch.setattr(kept, "RESULT_BYTES_EACH", 100)
    monkeypatch.setattr(kept, "RESULT_BYTES_ALL", 6)
    place.job()
    assert isinstance(ack_with(place, b"12"), Refused)
    assert place.is_sound()


def test_a_sweep_ends_though_more_is_over_with_each_step() -> None:
    place = Place(TEN_S)
    for _ in range(12):
        place.ack(place.job())
    asked: list[int] = []

    async def ask(decide: Any, *, cost: int = 1) -> int:
        place.rig.pass_ms(4_000)  # one more is over
        (gone,) = place.rig.decide(decide)
        asked.append(gone)
        return int(gone)

    others: list[Any] = [AsyncMock() for _ in range(6)]
    asyncio.run(Housekeeping(place.rig.core, ask, *others)._sweep_done())
    assert len(asked) == 1


def test_a_result_whose_batch_failed_is_not_there_and_the_message_is_out() -> None:
    place = Place(ALL)
    place.job()
    settling, (_, _, number, _) = place.rig.core.settling, leased(place.rig, place.group)
    place.rig.decide(
        lambda commit: settling.follow(commit, TEXT, number, lambda _: True, list, None, b"1"), pump=False
    )
    place.rig.crash(0)
    place.rig.pump()
    assert place.kept == []
    assert place.is_sound()


@pytest.mark.parametrize(("keep", "count"), [(ALL, 2), (FAILED, 1)])
def test_at_qos_2_the_story_comes_with_the_end_of_the_exchange(keep: tuple[str, str], count: int) -> None:
    rig = Rig(config())
    peer = rig.lasting("w")
    peer.subscribe(TEXT, qos=2, user_properties=(("backoff", "1s"), keep))
    for fails in (True, False):
        rig.send("jobs", "x", qos=2)
        rig.pass_ms(3_000)
        if fails:
            peer.nack(peer.publishes()[-1])
            rig.pass_ms(3_000)
            peer.inbox = [packet for packet in peer.inbox if isinstance(packet, Publish)]
        job = peer.publishes()[-1]
        peer.ack(wire.PUBREC, job.packet_id)
        rig.pass_ms(500)
        peer.ack(wire.PUBCOMP, job.packet_id)
        peer.inbox.clear()
        rig.pass_ms(1_000)
    group = rig.core.groups.get(TEXT)
    assert group is not None
    assert len(list(kept_of(rig.store, group.whose))) == count


def written(place: Place) -> None:
    """Steps until a story is in the store, and not durable yet."""
    for _ in range(30):
        place.rig.turn()
        place.rig.compose()
        if kept.totals(place.rig.store).count:
            return
        place.rig.settle()
    raise AssertionError("no story is written")


@pytest.mark.parametrize("terms", [ALL, FAILED])
def test_a_story_whose_batch_failed_and_is_stored_is_there_once(terms: tuple[str, str]) -> None:
    place = Place(terms)
    place.peer.nack(place.job())
    place.peer.ack(wire.PUBACK, place.next().packet_id, pump=False)
    place.rig.clock.now_ms += 200
    written(place)
    place.rig.lose(survivors=5)
    place.rig.pass_ms(3_000)
    assert [(one.state.attempts, len(one.tries)) for one in place.kept] == [(2, 1)]
    assert not place.group.rows.ended
    assert place.is_sound()


@pytest.mark.parametrize("survivors", [0, 5])
def test_an_ack_whose_batch_failed_is_known_by_its_own_story(survivors: int) -> None:
    """Not by that of the same message before a replay, with a result or without."""
    place = Place(ALL)
    place.job()
    ack_with(place, b"1")
    place.rig.decide(partial(place.rig.core.replay.rewind, subscriber=place.group, to=START))
    assert [kept.result_of(place.rig.store, place.group.whose, one) for one in place.kept] == [b"1"]
    settling, (_, _, number, _) = place.rig.core.settling, leased(place.rig, place.group)
    place.rig.decide(
        lambda commit: settling.follow(commit, TEXT, number, lambda _: True, list, None, b"2"), pump=False
    )
    place.rig.compose()
    place.rig.lose(survivors)
    assert bool(place.group.session.flights) is not bool(survivors)
    if not survivors:
        assert ack_with(place, b"2") == []
    place.rig.pass_ms(3_000)
    assert [kept.result_of(place.rig.store, place.group.whose, one) for one in place.kept] == [b"2"]
    assert place.is_sound()
