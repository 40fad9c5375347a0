"""What stands in flight is stored with each cursor, and encoded once."""

from collections.abc import Callable

import pytest

from server.delivery import session_rows
from server.delivery.session_rows import cursor_row
from server.delivery.settling import lives
from server.delivery.settling.events import UNDER_WAY
from server.delivery.subscriber import Subscriber
from shards.commit import Commit, Refused
from shards.delivery_rows import DeliveryRow
from shards.record import decode
from shards.store import Table
from shards.tables import CursorRow, FlightRow, cursor_row_of
from tests.support.build import OPENED
from tests.support.rig import Peer, Rig
from timeline.position import Position
from timeline.session import FAILED, SETTLED, Flight, Loan, Session

GROUP = "$share/g/t/#"


def _subscriber(*flights: Flight) -> Subscriber:
    session = Session("a", read=Position(1 << 48), expiry_s=9, window=100)
    session.restore(list(flights))
    return Subscriber(session, set(), _no)


def _no(_subscriber: object, _opened: object) -> None:
    raise AssertionError


def _stored(subscriber: Subscriber) -> CursorRow:
    return cursor_row_of(cursor_row(subscriber, Position(9 << 48)))


def _place(number: int) -> bytes:
    return (number << 48).to_bytes(12, "big")


@pytest.mark.parametrize("count", [0, 1, 15, 16, 300])
def test_flights_are_stored_in_their_order(count: int) -> None:
    stood = _subscriber(*(Flight(n, Position(n << 48), n % 3, 1) for n in range(1, count + 1)))
    rows = [FlightRow(n, _place(n), shard=n % 3) for n in range(1, count + 1)]
    assert _stored(stood).flights == _stored(stood).flights == rows


def test_what_changes_of_a_flight_is_stored_anew() -> None:
    shared = Flight(4, Position(4 << 48), 0, 1, loan=Loan(GROUP, Flight(1, Position(4 << 48), 0, 1)))
    twice = Flight(5, Position(5 << 48), 0, 2, loan=Loan(GROUP))
    usual, kept = Flight(6, Position(6 << 48), 0, 1), Flight(7, Position(7 << 48), 2, 1, is_retained=True)
    stood = _subscriber(shared, twice, usual, kept)
    before = [
        FlightRow(5, _place(5), 2, share=GROUP),
        FlightRow(6, _place(6)),
        FlightRow(7, _place(7), shard=2, is_retained=True),
    ]
    assert _stored(stood).flights == before
    shared.loan, twice.phase, usual.attempts, kept.attempts = None, 2, 3, 2
    after = [
        FlightRow(4, _place(4)),
        FlightRow(5, _place(5), 2, 1, share=GROUP),
        FlightRow(6, _place(6), attempts=3),
        FlightRow(7, _place(7), attempts=2, shard=2, is_retained=True),
    ]
    assert _stored(stood).flights == after
    usual.attempts, usual.fate, kept.fate = 1, FAILED, SETTLED
    assert _stored(stood).flights == [after[0], after[1], FlightRow(6, _place(6))]


@OPENED
def test_a_flight_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Flight] = []
    naive = session_rows._flight_row

    def counted(flight: Flight) -> bytes:
        encoded.append(flight)
        return naive(flight)

    monkeypatch.setattr(session_rows, "_flight_row", counted)
    stood = _subscriber(*(Flight(n, Position(n << 48), 1, 1) for n in range(1, 101)))
    assert _stored(stood) == _stored(stood)
    assert len(encoded) == 100
    stood.session.ack(50)
    stood.session.launch(Position(101 << 48), 1, 1)
    assert len(_stored(stood).flights) == 100
    assert len(encoded) == 101


def _held(rig: Rig, count: int) -> list[Peer]:
    """Members that have as many flights as they are given at first, and have acked none."""
    members = [rig.connected(f"m{n}") for n in range(count // 16)]
    for member in members:
        assert member.subscribe(GROUP, qos=1) == (1,)
    rig.send("t/x", *map(str, range(count)))
    return members


@pytest.mark.long
@OPENED
def test_failures_that_come_together_write_the_cursor_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in bytes: all that is in flight, once for each UNDER_WAY failures."""
    rig = Rig()
    members = _held(rig, 640)
    group = rig.group(GROUP)
    assert len(group.session.flights) == 640
    written = 0
    naive: Callable[[Commit, Table, bytes, bytes | None], None] = Commit.row

    def counted(self: Commit, table: Table, key: bytes, value: bytes | None) -> None:
        nonlocal written
        if table is Table.CURSORS and key == group.session.client_id.encode():
            written += len(value or b"")
        naive(self, table, key, value)

    monkeypatch.setattr(Commit, "row", counted)
    whole = len(cursor_row(group, rig.core.horizon.position))
    for member in members:
        member.drop(pump=False)
    rig.pump()
    assert rig.core.events.retried == 640
    assert not group.session.flights
    assert written < whole * (640 // UNDER_WAY + 2)


@OPENED
def test_one_that_has_no_place_does_not_keep_those_decided_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    members = _held(rig, 32)
    naive = lives.wait

    def refusing(commit: Commit, row: DeliveryRow, due_ms: int, *, is_owed: bool) -> Position:
        if decode(row.record).payload == b"7":
            raise Refused("over-quota", "there is no place")
        return naive(commit, row, due_ms, is_owed=is_owed)

    monkeypatch.setattr(lives, "wait", refusing)
    for member in members:
        member.drop(pump=False)
    rig.pump()
    group = rig.group(GROUP)
    assert rig.core.events.retried == 31
    assert len(group.session.flights) == 1
    monkeypatch.setattr(lives, "wait", naive)
    rig.pass_ms(1_000)
    assert rig.core.events.retried == 32
