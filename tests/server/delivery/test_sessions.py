"""What sessions have written of themselves: as little as says it, never before it is so, in turns."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from server.codec import wire
from server.codec.packets import Ack, Suback, Subscribe, SubscribeOptions
from server.delivery.cursors import (
    BURST_S,
    LAST_COST,
    LAZY_COST,
    LAZY_PAUSE_MAX_S,
    OWN_BYTES_PER_S,
    REQUESTED_COST,
    ROW_COST,
    SUBSCRIPTION_COST,
)
from server.delivery.subscriber import Subscriber
from server.engine.writer import Busy
from server.rounds.housekeeping import Housekeeping
from shards import keys
from shards.store import Table
from shards.tables import encode_row, session_of
from tests.support.memory_store import MemoryBatch
from tests.support.rig import LONG_S, Peer, Rig, config
from timeline.position import START, Position
from timeline.session import Subscription


def _rows(rig: Rig, table: Table, since: int = 0) -> Iterator[tuple[bytes, bytes | None]]:
    for batch in rig.store.log[since:]:
        assert isinstance(batch, MemoryBatch)
        yield from ((key, value) for found, key, value, _ in batch.changes if found is table)


def _bytes(rig: Rig, since: int) -> int:
    return sum(len(value or b"") for batch in rig.store.log[since:] for _, _, value, _ in batch.changes)


def _at_qos_2(rig: Rig, count: int) -> Peer:
    """A persistent session with so many messages in flight."""
    peer = rig.lasting("s").subscribed("t", qos=2)
    publisher = rig.connected("p", level=4)
    for _ in range(count):
        publisher.publish("t", "x", 2, pump=False)
    rig.pump()
    assert len(peer.publishes()) == count
    rig.pass_ms(1_000)
    return peer


def test_a_pubrec_that_comes_again_writes_nothing(rig: Rig) -> None:
    peer = _at_qos_2(rig, 3)
    peer.ack(wire.PUBREC, 1)
    assert peer.take_ack(wire.PUBREL, 1)
    mark = len(rig.store.log)
    for _ in range(50):
        peer.ack(wire.PUBREC, 1, pump=False)
    assert not rig.compose()
    rig.pump()
    assert [packet.packet_id for packet in peer.inbox if isinstance(packet, Ack)] == [1] * 50
    assert not list(_rows(rig, Table.CURSORS, mark))


def test_a_pubrec_that_comes_again_waits_for_the_first(rig: Rig) -> None:
    peer = _at_qos_2(rig, 2)
    peer.ack(wire.PUBREC, 1, pump=False)
    assert rig.compose()
    peer.ack(wire.PUBREC, 1, pump=False)
    peer.ack(wire.PUBREC, 2, pump=False)
    peer.deliver()
    assert peer.inbox == [], "nothing is durable"
    rig.settle()
    peer.deliver()
    assert [packet.packet_id for packet in peer.inbox] == [1]
    rig.pump()
    assert sorted(packet.packet_id for packet in peer.inbox) == [1, 1, 2]


def test_what_a_session_asks_for_meanwhile_shares_a_group(rig: Rig) -> None:
    """A flood of PUBRECs and SUBSCRIBEs: a cursor and a row for each group, not for each packet."""
    peer = _at_qos_2(rig, 500)
    mark = len(rig.store.log)
    for number in range(1, 501):
        peer.ack(wire.PUBREC, number, pump=False)
        peer.send(Subscribe(1_000 + number, ((f"f/{number}", SubscribeOptions(1)),)), pump=False)
    rig.pump()
    assert sum(isinstance(packet, Suback) for packet in peer.inbox) == 500
    assert sum(isinstance(packet, Ack) for packet in peer.inbox) == 500
    assert len(list(_rows(rig, Table.CURSORS, mark))) <= 2
    assert len(list(_rows(rig, Table.SESSIONS, mark))) <= 2
    rig.crash()
    assert len(rig.session("s").session.subscriptions) == 501
    assert all(flight.phase for flight in rig.session("s").session.flights.values())


def test_a_session_that_drips_writes_at_its_own_pace(rig: Rig) -> None:
    """One SUBSCRIBE at a time on a session with a row of 100 KB: the burst, then its bytes a second."""
    peer = rig.lasting("s")
    wanted = tuple((f"{number:04}" + "x" * 1_000, SubscribeOptions(1)) for number in range(100))
    peer.send(Subscribe(1, wanted))
    peer.inbox.clear()
    mark = len(rig.store.log)
    answered = 0
    for number in range(200):
        peer.send(Subscribe(2 + number, (("one more", SubscribeOptions(number % 2)),)))
        answered += len(peer.inbox)
        peer.inbox.clear()
    burst = int(BURST_S * OWN_BYTES_PER_S)
    assert answered < 200
    assert burst // 2 < _bytes(rig, mark) < burst + 200_000
    rig.pass_ms(1_000)
    assert len(peer.inbox) + answered == 200, "it only had to wait"
    assert _bytes(rig, mark) < burst + 1_100 * OWN_BYTES_PER_S // 1_000
    assert rig.core.cursors.wait_s() == float("inf")


def test_one_who_floods_is_read_no_more_until_it_has_been_answered(rig: Rig) -> None:
    peer = rig.lasting("s", level=4)
    for number in range(101):
        peer.send(Subscribe(1 + number, (("a", SubscribeOptions(1)),)), pump=False)
    assert peer.connection.is_behind
    rig.pump()
    assert not peer.connection.is_behind


def test_nobody_is_answered_before_it_is_durable(rig: Rig) -> None:
    peer = rig.lasting("s")
    peer.subscribe("a", pump=False)
    rig.compose()
    peer.subscribe("b", pump=False)
    peer.deliver()
    assert peer.inbox == []
    rig.settle()
    peer.deliver()
    assert [packet.packet_id for packet in peer.inbox] == [1]
    rig.crash()
    assert list(rig.session("s").session.subscriptions) == ["a"]


def test_who_waits_is_told_when_the_store_has_failed(rig: Rig) -> None:
    peer, other = rig.lasting("s"), rig.lasting("o")
    peer.subscribe("a", pump=False)
    rig.store.fail_writes = True
    rig.pump()
    assert peer.is_closed
    other.subscribe("b", pump=False)
    rig.pump()
    assert other.is_closed, "asked for while the store was broken"
    rig.mend_store()
    rig.pump()
    assert rig.lasting("s").subscribe("a") == (2,)


def _fill(rig: Rig) -> None:
    with suppress(Busy):
        for _ in range(10):
            rig.decide(lambda _: None, pump=False)


def test_a_full_queue_makes_nobody_fail() -> None:
    rig = Rig(config(queued=5))
    peer = rig.lasting("s")
    _fill(rig)
    peer.subscribe("a", pump=False)
    rig.pump()
    assert peer.take(Suback).reasons == (2,)


@pytest.mark.parametrize("filter_", ["t", "$share/g/t"])
def test_what_waits_for_a_sync_is_bounded_in_bytes(filter_: str) -> None:
    """QoS 2 to a session that was away: read from the store as fast as it is sent, not all at once."""
    rig = Rig(config(out_bytes=100_000))
    rig.lasting("s").subscribed(filter_).drop()
    publisher = rig.connected("p", level=4)
    for number in range(40):
        publisher.publish("t", f"{number:02}" + "." * 20_000, 2, pump=False)
    rig.pump()
    peer = rig.peer()
    peer.connect("s", clean=False, expiry=LONG_S, pump=False)
    subscriber = rig.session("s")
    most = 0
    while rig.micro():
        waiting = 0
        if subscriber.barrier is not None:
            waiting = sum(len(one[0].record.payload) for one in subscriber.barrier.waiting)
            assert waiting <= subscriber.barrier.bytes
        most = max(most, waiting)
    assert 100_000 < most < 125_000
    assert subscriber.barrier is not None
    assert subscriber.barrier.bytes == 0
    peer.inbox.pop(0)
    assert [int(payload[:2]) for payload in peer.take_all()] == list(range(40))
    # What is at the barrier when the connection ends is counted no more.
    publisher.publish("t", "x" * 20_000, 2, pump=False)
    while not subscriber.has_held:
        rig.micro()
    peer.drop(pump=False)
    assert subscriber.barrier is None


# -- in turns


def _busy(rig: Rig, sessions: int, flights: int) -> list[Subscriber]:
    """Sessions with much in flight, all behind on disk."""
    made = []
    for number in range(sessions):
        subscriber = rig.core.sessions.open(f"s{number}", expiry_s=LONG_S, window=65_535)
        for place in range(flights):
            subscriber.session.launch(Position(place + 1), 0, 1)
        rig.core.cursors.dirty.add(subscriber)
        made.append(subscriber)
    return made


def _group(rig: Rig) -> None:
    rig.decide(lambda _: None, pump=False)
    rig.write()


def test_cursors_that_nobody_waits_for_go_in_turns(rig: Rig) -> None:
    made = _busy(rig, 40, 1_000)
    rig.clock.now_ms += 200
    written = []
    for _ in range(100):
        mark = len(rig.store.log)
        _group(rig)
        written.append([key for key, _ in _rows(rig, Table.CURSORS, mark)])
        assert len(written[-1]) <= LAZY_COST // 1_000 + 1
        rig.core.cursors.dirty.update(made[:20])  # the first half is always behind
        if sum(map(len, written)) >= 40:
            break
    assert sorted(key for group in written for key in group) == sorted(
        one.session.client_id.encode() for one in made
    ), "everybody once before anybody twice"


class _SlowClock:
    """Every look at it takes so long."""

    def __init__(self, rig: Rig, look_s: float = 0.001) -> None:
        self._rig = rig
        self._look_s = look_s
        self.looks = 0

    def mono(self) -> float:
        self.looks += 1
        return self._rig.clock.mono() + self.looks * self._look_s


def test_they_take_a_tenth_of_the_time(rig: Rig) -> None:
    rig.pass_ms(200)
    _busy(rig, 40, 1_000)
    clock: Any = _SlowClock(rig)
    rig.core.cursors._clock = clock
    groups = with_cursors = 0
    while rig.core.cursors.dirty and groups < 2_000:
        mark = len(rig.store.log)
        _group(rig)
        groups += 1
        with_cursors += bool(list(_rows(rig, Table.CURSORS, mark)))
    assert not rig.core.cursors.dirty
    assert groups > 3 * with_cursors


def test_they_wait_no_longer_than_they_may_where_others_have_the_processor(rig: Rig) -> None:
    """A kill then finds acks on disk that came a moment before, however busy the machine is."""
    rig.pass_ms(200)
    _busy(rig, 1, 10)
    clock: Any = _SlowClock(rig, look_s=3.0)
    rig.core.cursors._clock = clock
    _group(rig)
    assert not rig.core.cursors.dirty
    rig.core.cursors._clock = rig.clock
    paused_s = rig.core.cursors._lazy_from - rig.clock.mono() - clock.looks * 3.0
    assert paused_s <= LAZY_PAUSE_MAX_S + 0.001


def test_who_is_waited_for_goes_in_turns_too(rig: Rig) -> None:
    told: list[int] = []
    for one in _busy(rig, 80, 1_000):
        rig.core.cursors.persist(one, told.append)
    _group(rig)
    assert len(told) == -(-REQUESTED_COST // (1_000 + 2 * ROW_COST))
    rig.pump()
    assert told == [0] * 80


def test_a_server_that_stops_writes_all_of_them(rig: Rig) -> None:
    _busy(rig, 40, 1_000)
    rig.restart()
    assert sum(len(one.session.flights) for one in rig.core.sessions) == 40_000


def test_a_shared_subscription_does_not_drag_everybody_along(rig: Rig) -> None:
    """At QoS 1 the group remembers alone; at QoS 2 the member is written with it."""
    members = [rig.lasting(name).subscribed("$share/g/t") for name in "abc"]
    publisher = rig.connected("p")
    rig.pass_ms(1_000)
    for number in range(3):
        publisher.publish1("t", str(number))
    rig.core.cursors.dirty.update(rig.session(name) for name in "abc")
    members[0].inbox.clear()
    mark = len(rig.store.log)
    members[0].subscribe("x")
    assert {key for key, _ in _rows(rig, Table.CURSORS, mark)} == {b"a"}
    mark = len(rig.store.log)
    publisher.publish2("t", "2")
    assert {key for key, _ in _rows(rig, Table.CURSORS, mark)} >= {b"\0share/$share/g/t"}


# -- sessions that are over


SHORT_S = 600
"""Time passes in steps of less than a second."""


def _away_for_2_h_of_downtime(rig: Rig) -> None:
    rig.crash()
    rig.clock.now_ms += 2 * LONG_S * 1_000
    rig.stepper.start()
    rig.pump()


@pytest.mark.parametrize("was_there", [False, True])
def test_downtime_does_not_count_for_expiry(rig: Rig, was_there: bool) -> None:
    peer = rig.lasting("s", expiry=SHORT_S)
    if not was_there:
        peer.disconnect()
        rig.pass_ms(1_000 * SHORT_S // 2)
    _away_for_2_h_of_downtime(rig)
    peer = rig.peer()
    assert peer.connect("s", clean=False, expiry=SHORT_S).session_present
    peer.disconnect()
    rig.crash()
    rig.pass_ms(1_000 * SHORT_S - 10_000)
    _away_for_2_h_of_downtime(rig)
    rig.pass_ms(5_000)
    assert not rig.core.sessions.is_over(rig.session("s"))
    rig.pass_ms(10_000)
    assert rig.core.sessions.is_over(rig.session("s"))
    assert not rig.peer().connect("s", clean=False, expiry=SHORT_S).session_present


def test_a_row_of_an_older_server_counts_from_the_start(rig: Rig) -> None:
    rig.lasting("s", expiry=60).disconnect()
    row = session_of(rig.store.get(Table.SESSIONS, b"s") or b"")
    assert row.left_running_ms
    old = encode_row([row.expiry_s, row.subscriptions, row.left_ms])
    rig.decide(lambda commit: commit.row(Table.SESSIONS, b"s", old), pump=False)
    rig.pass_ms(30_000)
    rig.crash()
    rig.pass_ms(50_000)
    assert not rig.core.sessions.is_over(rig.session("s"))
    rig.pass_ms(20_000)
    assert rig.core.sessions.is_over(rig.session("s"))


def test_running_time_passes_however_small_the_groups_are(rig: Rig) -> None:
    started_ms = rig.core.opened.open_batch.running_ms
    clock: Any = SimpleNamespace(mono=lambda: rig.clock.now_ms / 1_000 + ticks * 0.0015)
    ticks = 0
    rig.core.writer._clock, wall = clock, rig.clock.wall_ms
    clock.wall_ms = wall
    for ticks in range(1, 1_001):  # noqa: B007
        _group(rig)
    assert rig.core.opened.open_batch.running_ms - started_ms in (1_499, 1_500)


def _stored(rig: Rig, client_id: str) -> list[bytes]:
    name = client_id.encode()
    found = [name for table in (Table.SESSIONS, Table.CURSORS) if rig.store.get(table, name) is not None]
    return found + [key for key, _ in rig.store.scan(Table.RECEIVED, *keys.received_range(client_id))]


def test_housekeeping_ends_no_session_that_has_begun_anew(rig: Rig) -> None:
    """A session runs out, and its client is back while housekeeping waits for the writer."""
    rig.lasting("gone", expiry=1).disconnect()
    rig.lasting("b", expiry=1).subscribed("t").disconnect()
    rig.pass_ms(5_000)
    back: list[Peer] = []

    async def ask(decide: Any, *, cost: int = 1) -> None:
        if not back:
            back.append(rig.lasting("b"))
            back[0].subscribe("t")
        rig.core.writer.submit(decide, lambda _: None, cost=cost)
        rig.pump()

    others: list[Any] = [AsyncMock() for _ in range(6)]
    housekeeping = Housekeeping(rig.core, ask, *others)
    asyncio.run(housekeeping._expire_sessions())
    assert [one.session.client_id for one in rig.core.sessions] == ["b"]
    assert _stored(rig, "gone") == []
    rig.crash()
    assert list(rig.session("b").session.subscriptions) == ["t"]


@pytest.mark.parametrize("how", ["busy", "broken", "unsynced"])
def test_a_session_that_has_ended_does_not_come_back(how: str) -> None:
    """Its rows go with a later group when they could not at once."""
    rig = Rig(config(queued=5))
    peer = rig.lasting("s").subscribed("t")
    if how == "busy":
        _fill(rig)
        peer.send_bytes(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00", pump=False)  # DISCONNECT, expiry 0
        peer.drop()
    else:
        peer.send_bytes(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00", pump=False)
        rig.store.fail_writes = how == "broken"
        peer.drop(pump=False)
        rig.compose()
        if how == "unsynced":
            rig.fail_sync()
        rig.mend_store()
    rig.pass_ms(3_000)
    assert rig.core.sessions.get("s") is None
    assert _stored(rig, "s") == []
    rig.crash()
    assert rig.core.sessions.get("s") is None


def test_a_new_session_is_not_erased_with_the_old_one(rig: Rig) -> None:
    """The old one's rows could not go when it ended; the new one is there when they can."""
    peer = rig.lasting("s").subscribed("old")
    peer.send_bytes(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00", pump=False)
    peer.drop(pump=False)
    rig.compose()
    rig.lose()
    again = rig.lasting("s").subscribed("new")
    again.publish("t", "x", 2)
    rig.pass_ms(3_000)
    assert len(_stored(rig, "s")) == 3
    rig.crash()
    assert list(rig.session("s").session.subscriptions) == ["new"]
    assert rig.session("s").session.received


def test_a_clean_start_waits_for_the_end_of_what_was_stored(rig: Rig) -> None:
    rig.lasting("s").drop()
    peer = rig.peer()
    peer.connect("s", clean=True, pump=False)
    rig.compose()
    peer.deliver()
    assert peer.inbox == [], "a kill now would bring the old session back"
    rig.pump()
    assert len(peer.inbox) == 1
    assert _stored(rig, "s") == []
    rig.connected("never stored", clean=True)


def test_a_session_that_could_not_be_stored_was_never_opened(rig: Rig) -> None:
    peer = rig.peer()
    rig.store.fail_writes = True
    peer.connect("s", clean=False, expiry=LONG_S, pump=False)
    rig.pump()
    assert peer.is_closed
    rig.mend_store()
    rig.pass_ms(1_000)
    assert rig.core.sessions.get("s") is None
    assert _stored(rig, "s") == []


def test_packet_ids_of_no_session_go_at_start(rig: Rig) -> None:
    """Placed behind the end of a session, by what its client had sent before."""
    row = keys.received("s", 7)
    rig.decide(lambda commit: commit.row(Table.RECEIVED, row, b""))
    rig.crash()
    rig.pass_ms(2_000)
    assert _stored(rig, "s") == []


def _stored_since(rig: Rig, mark: int) -> dict[Table, set[str]]:
    return {
        table: {key.decode() for key, _ in _rows(rig, table, mark)}
        for table in (Table.SESSIONS, Table.CURSORS)
    }


def test_a_stop_writes_what_the_store_lacks_and_nothing_else(rig: Rig) -> None:
    for n in range(50):
        peer = rig.lasting(f"away-{n}").subscribed(f"devices/{n}")
        peer.disconnect()
    rig.lasting("tailing").subscribe("t")
    rig.finish()
    mark = len(rig.store.log)
    rig.finish()
    assert _stored_since(rig, mark) == {Table.SESSIONS: set(), Table.CURSORS: set()}
    rig.pass_ms(100)  # who is there has read further
    rig.core.cursors.mark_dirty(rig.session("away-3"))
    mark = len(rig.store.log)
    rig.finish()
    stored = _stored_since(rig, mark)
    assert stored == {Table.SESSIONS: {"away-3"}, Table.CURSORS: {"away-3", "tailing"}}


def test_a_start_after_a_stop_has_nothing_to_write_at_the_next(rig: Rig) -> None:
    for n in range(20):
        peer = rig.lasting(f"away-{n}").subscribed(f"devices/{n}")
        peer.disconnect()
    rig.restart()
    mark = len(rig.store.log)
    rig.finish()
    assert _stored_since(rig, mark) == {Table.SESSIONS: set(), Table.CURSORS: set()}


@pytest.mark.long
def test_a_stop_with_many_sessions_takes_several_batches(rig: Rig) -> None:
    """None of which holds up the loop, and the connection to the log, for long."""
    sessions, each = 450, 100
    for n in range(sessions):
        subscriber = rig.core.sessions.open(f"s{n}", expiry_s=60, window=10)
        for k in range(each):
            rig.core.subscriptions.subscribe(subscriber, Subscription(f"{n}/{k}", 1, START), None)
    mark = len(rig.store.log)
    rig.finish()
    sizes = [sum(table is Table.SESSIONS for table, *_ in batch.changes) for batch in rig.store.log[mark:]]
    assert sum(sizes) == sessions
    most = LAST_COST // (2 * ROW_COST + SUBSCRIPTION_COST * each) + 1
    assert max(sizes) == most < sessions
