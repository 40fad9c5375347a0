"""A delivery whose connection or server was lost is a try, and is told as one: the same for both."""

import json
from typing import Any

import pytest
from msgspec import UNSET

from server.codec.packets import Publish
from server.delivery.message import Message
from server.delivery.subscriber import Subscriber
from server.delivery.tries import (
    LAPSED_LEASE,
    LOST,
    TRIES_MAX,
    UNANSWERED,
    tries_before,
    tries_of_flight,
    tries_view,
)
from shards import delivery_rows
from shards.fields import Record, TryRow
from shards.store import Table
from shards.tables import cursor_row_of
from tests.support.link import FakeLink
from tests.support.mqtt import user
from tests.support.pulling import Puller
from tests.support.rig import START_MS, Rig, config
from timeline.position import START, Position
from timeline.session import Flight, Losses, Session

from .test_deliveries import one

GROUP = "$share/workers/t"
DUE_MS = START_MS + 1_000
SAID = ("lost", UNANSWERED, "", None)


def _published(rig: Rig, text: str) -> None:
    """Member or session `a` has the message, which had a due."""
    rig.lasting("a").subscribe(text)
    rig.connected("p").publish1("$delayed/1/t", "x")
    rig.pass_ms(1_000)


def _told(packet: Publish) -> list[tuple[Any, ...]]:
    tries = json.loads(user(packet, "fasti-tries") or "[]")
    return [(row["outcome"], row["reason"], row["by"], row["seconds"]) for row in tries]


def _back(rig: Rig) -> Publish:
    """`a` connects again: what it is sent."""
    peer = rig.lasting("a")
    (packet,) = peer.publishes()
    assert peer.connection.client_id == "a"
    return packet


@pytest.mark.parametrize("text", ["t", GROUP])
def test_a_try_that_a_kill_has_ended_is_told(rig: Rig, text: str) -> None:
    """With the message, where it is looked up, and in the row of the retry."""
    _published(rig, text)
    assert one(rig).tries is UNSET
    rig.disown()
    rig.kill()
    rig.pass_ms(5_000)
    packet = _back(rig)
    assert user(packet, "fasti-attempt") == "2"
    assert _told(packet) == [SAID]
    assert (one(rig).attempts, one(rig).tries) == (
        2,
        tries_view([TryRow(DUE_MS + 5_000, "", LOST, UNANSWERED)]),
    )
    rig.disown()
    rig.kill()
    rig.pass_ms(5_000)
    assert one(rig).attempts == 2
    assert one(rig).tries == tries_view([TryRow(DUE_MS + 5_000, "", LOST, UNANSWERED)]), "it was stored"
    peer = rig.lasting("a")
    (packet,) = peer.publishes()
    assert _told(packet) == [SAID, SAID]
    peer.nack(packet, "60s", "no paper")
    (row,) = delivery_rows.waiting(rig.core.opened.store, START)
    assert row.attempts == 3
    assert [(tried.outcome, tried.reason) for tried in row.tries] == [
        ("lost", UNANSWERED),
        ("lost", UNANSWERED),
        ("failed", "no paper"),
    ]
    assert [tried.at_ms for tried in row.tries] == [DUE_MS + 10_000] * 3


def _later(rig: Rig, ms: int = 5_000) -> Publish:
    """`a` connects again, so much later: what it is sent."""
    rig.pass_ms(ms)
    return _back(rig)


def _lost(at_ms: int, ms: int = 0, by: str = "a") -> TryRow:
    """That was lost so long after it was due, and had been in hand for so long."""
    return TryRow(DUE_MS + at_ms, by, LOST, UNANSWERED, ms)


def _end(rig: Rig) -> None:
    """The connection of `a` is lost."""
    (peer,) = [peer for peer in rig.peers if peer.connection.client_id == "a"]
    peer.drop()


def test_each_lost_connection_of_a_session_is_told(rig: Rig) -> None:
    """With the message, where it is looked up, and in the row of the retry."""
    _published(rig, "t")
    _end(rig)
    packet = _later(rig)
    assert (user(packet, "fasti-attempt"), packet.dup) == ("2", True)
    assert _told(packet) == [("lost", UNANSWERED, "a", None)]
    assert one(rig).tries == tries_view([_lost(0)])
    rig.pass_ms(3_000)
    _end(rig)
    packet = _later(rig)
    assert user(packet, "fasti-attempt") == "3"
    assert _told(packet) == [("lost", UNANSWERED, "a", None), ("lost", UNANSWERED, "a", 3.0)]
    assert (one(rig).attempts, one(rig).tries) == (3, tries_view([_lost(0), _lost(8_000, 3_000)]))
    (peer,) = [peer for peer in rig.peers if peer.connection.client_id == "a"]
    peer.nack(packet, "2s", "no paper")
    (row,) = delivery_rows.waiting(rig.core.opened.store, START)
    before = [_lost(0), _lost(8_000, 3_000), TryRow(DUE_MS + 13_000, "a", "failed", "no paper")]
    assert (row.attempts, row.tries) == (3, before)
    rig.pass_ms(2_000)
    _end(rig)
    packet = _later(rig)
    assert (user(packet, "fasti-attempt"), len(_told(packet))) == ("5", 4)
    assert one(rig).tries == tries_view([*before, _lost(15_000)])


@pytest.mark.parametrize("how", ["taken over", "returned", "stopped"])
def test_a_session_ends_its_try_however_its_connection_ends(rig: Rig, how: str) -> None:
    _published(rig, "t")
    _end(rig)
    _later(rig)
    rig.pass_ms(3_000)
    if how == "returned":
        rig.peers[-1].disconnect()
    elif how == "stopped":
        rig.restart()
    _later(rig, 0 if how == "taken over" else 1_000)
    first = _lost(5_000, by="") if how == "stopped" else _lost(0)
    assert one(rig).tries == tries_view([first, _lost(8_000, 3_000)]), "of the first one no more is stored"


def test_what_a_kill_ended_is_told_before_what_a_connection_ended(rig: Rig) -> None:
    _published(rig, "t")
    _end(rig)
    _later(rig)
    rig.kill()
    _later(rig)
    rig.pass_ms(3_000)
    _end(rig)
    _later(rig)
    assert one(rig).tries == tries_view([_lost(10_000, by=""), _lost(10_000, by=""), _lost(13_000, 3_000)])


def test_a_dead_letter_names_each_connection() -> None:
    rig = Rig(config(max_attempts=3))
    _published(rig, "t")
    for _ in range(3):
        _end(rig)
        rig.pass_ms(5_000)
        rig.lasting("a")
    (row,) = list(rig.core.dead_letters.read())
    last = TryRow(DUE_MS + 10_000, "a", LOST, "not acked after 3 deliveries", 0)
    assert row.tries == [_lost(0), _lost(5_000), last], "it was in hand for no time"


def test_what_a_member_has_alone_names_its_connections(rig: Rig) -> None:
    rig.lasting("a").subscribe(GROUP, qos=2)
    rig.connected("p").publish2("$delayed/1/t", "x")
    rig.pass_ms(1_000)
    _end(rig)
    assert _told(_later(rig)) == [("lost", UNANSWERED, "a", None)]
    assert one(rig).tries == tries_view([_lost(0)])


def test_a_lease_that_lapses_names_who_had_it() -> None:
    rig = Rig(config(ack_timeout_ms=10_000))
    _published(rig, GROUP)
    rig.pass_ms(10_500)
    (row,) = delivery_rows.waiting(rig.core.opened.store, START)
    (tried,) = row.tries
    assert (tried.by, tried.outcome, tried.reason) == ("a", LAPSED_LEASE, "not acked within 10 s")
    assert 10_000 <= tried.ms <= 10_500


def test_a_packet_without_properties_is_sent_again(rig: Rig) -> None:
    rig.lasting("a", 4).subscribe("t")
    rig.connected("p").publish1("$delayed/1/t", "x")
    rig.pass_ms(1_000)
    _end(rig)
    (packet,) = rig.lasting("a", 4).publishes()
    assert (packet.payload, packet.dup, packet.properties) == (b"x", True, None)


def test_who_leases_what_a_kill_took_from_a_member_is_told(rig: Rig) -> None:
    _published(rig, GROUP)
    rig.disown()
    rig.kill()
    (leased,) = Puller(rig, GROUP).ask().leased
    assert leased.given.attempt == 2
    (tried,) = tries_before(leased.given.message, leased.given.attempt)
    assert (tried.outcome, tried.reason) == (LOST, UNANSWERED)


@pytest.mark.parametrize("text", ["t", GROUP])
def test_a_dead_letter_has_as_many_tries_as_attempts(text: str) -> None:
    rig = Rig(config(max_attempts=3))
    _published(rig, text)
    for _ in range(3):
        rig.disown()
        rig.kill()
        rig.lasting("a")
    (row,) = list(rig.core.dead_letters.read())
    assert row.attempts == len(row.tries) == 3
    assert {tried.outcome for tried in row.tries} == {LOST}
    assert row.tries[-1].reason == row.reason == "not acked after 3 deliveries"


def test_what_was_returned_before_the_kill_was_no_try(rig: Rig) -> None:
    _published(rig, GROUP)
    rig.peers[0].disconnect()
    rig.kill()
    packet = _back(rig)
    assert (user(packet, "fasti-attempt"), _told(packet)) == (None, [])
    assert one(rig).tries is UNSET


def test_what_has_no_room_to_wait_after_a_kill_has_failed_a_try() -> None:
    rig = Rig(config(returned=1))
    rig.lasting("a").subscribe(GROUP)
    rig.send("t", *"xy")
    rig.disown()
    rig.kill()
    (row,) = delivery_rows.waiting(rig.core.opened.store, START)
    (tried,) = row.tries
    assert (row.attempts, tried.outcome, tried.reason, row.reason) == (1, LOST, UNANSWERED, UNANSWERED)


def test_a_first_delivery_stores_nothing_more(rig: Rig) -> None:
    _published(rig, "t")
    rig.kill()
    value = rig.store.get(Table.CURSORS, b"a")
    assert value is not None
    (flight,) = cursor_row_of(value).flights
    assert (flight.attempts, flight.lost_ms) == (1, 0)
    assert len(value) < 45


def test_a_plain_publish_that_is_sent_again_has_no_property_for_it(rig: Rig) -> None:
    rig.lasting("a").subscribe("t")
    rig.connected("p").publish1("t", "x")
    rig.kill()
    packet = _back(rig)
    assert packet.dup
    assert user(packet, "fasti-tries") is None


def test_a_link_is_told_which_delivery_it_is() -> None:
    """Whatever is known of those before, which are told once."""
    taken: list[int] = []
    link = FakeLink(taken=lambda message, qos, packet_id, attempt: taken.append(attempt))
    session = Session("a", read=Position(1), expiry_s=60, window=5)
    subscriber = Subscriber(session, set(), lambda one, done: None)
    subscriber.link, subscriber.presence.ended_ms = link, 900
    flight = session.launch(Position(5 << 48), 0, 1)
    message = Message(flight.position, 0, Record(b"t", b"x", due_ms=5), 1_000)
    for _ in range(2):
        assert subscriber.resend(message, flight, ())
    assert taken == [2, 3]
    lost = [TryRow(900, "a", LOST, UNANSWERED)] * 2
    assert tries_before(link.sent[-1], taken[-1]) == lost


def test_only_the_last_tries_are_told() -> None:
    before_them = [TryRow(n, "w", "failed", "no") for n in range(TRIES_MAX)]
    flight = Flight(1, Position(5 << 48), 0, 1, attempts=4, losses=Losses(7))
    told = tries_of_flight(before_them, flight, "a")
    assert len(told) == TRIES_MAX
    assert told == [*before_them[3:], *[TryRow(7, "", LOST, UNANSWERED)] * 3]
    assert len(tries_of_flight([], Flight(1, Position(5 << 48), 0, 1, attempts=1_000_000), "a")) == TRIES_MAX
    assert tries_of_flight([], Flight(1, Position(5 << 48), 0, 1, attempts=2), "a")[0].at_ms == 5
    assert tries_of_flight(before_them, Flight(1, Position(5 << 48), 0, 1, attempts=0), "a") == before_them
    flight.begin_again(12, 9)
    told = tries_of_flight(before_them, flight, "a")
    assert told == [
        *before_them[4:],
        *[TryRow(7, "", LOST, UNANSWERED)] * 3,
        TryRow(9, "a", LOST, UNANSWERED, 2),
    ]
