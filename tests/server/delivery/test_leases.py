"""Leases: which have lapsed, and who is first when there are more than one look takes."""

from server.delivery.settling.leases import Leases
from server.delivery.subscriber import Subscriber
from tests.support.clock import HandClock
from timeline.position import Position
from timeline.session import Flight, Loan, Session


def _somebody() -> Subscriber:
    session = Session("a", read=Position(0), expiry_s=0, window=10)
    return Subscriber(session, set(), lambda *_: None)


def _give(leases: Leases, who: Subscriber, term_ms: int, packet_id: int, *, asked_ms: int = 0) -> Flight:
    loan = Loan("$share/g/t")
    lent = Flight(packet_id, Position(packet_id), 0, 1, loan=loan)
    leases.give(who, who, (lent,), term_ms)
    if asked_ms:
        leases.extend(who, who, (lent,), asked_ms)
    return lent


def test_those_that_ended_first_are_first_whatever_their_length() -> None:
    """A group whose short ones lapse on and on, more than a look takes, keeps nobody else's from lapsing."""
    clock = HandClock(1_000)
    leases, who = Leases(clock, lambda: 0), _somebody()
    for packet_id in range(1, 11):
        _give(leases, who, 1, packet_id, asked_ms=3 if packet_id % 2 else 0)
    victim = _give(leases, who, 1_000, 100)
    looks = 0
    for _ in range(20):
        clock.step(250)
        taken = leases.take_lapsed(5)
        looks += 1
        if any(lent is victim for _, _, lent in taken):
            break
        for _, _, lent in taken:
            _give(leases, who, 1, lent.packet_id, asked_ms=3 if lent.packet_id % 2 else 0)
    assert victim.loan is not None
    assert victim.loan.until_s == 0
    assert looks < 20


def test_numbers_are_the_bits_that_are_drawn_and_never_one_that_runs() -> None:
    drawn = [
        (7).to_bytes(8, "big") + (1 << 63).to_bytes(8, "big"),
        *(n.to_bytes(8, "big") for n in (1 << 63, 9 << 40)),
    ]
    leases, who = Leases(HandClock(0), lambda: 0, lambda count: drawn.pop(0)), _somebody()
    lent = _give(leases, who, 1, 1)
    assert lent.loan is not None
    leases.name(who, who, lent, lent.loan, 1 << 63)
    drawn[1:1] = [(8 << 40).to_bytes(8, "big")]
    assert list(leases.new_numbers(2)) == [8 << 40, 9 << 40], "7 is a packet id of 0.1.0"
