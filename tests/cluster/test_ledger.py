"""The account sees each kind of fault."""

import pytest

from .ledger import Arrival, Inbox, Ledger, Letter

DUE_MS = 5_000
HERE = ("127.0.0.1", 1)


@pytest.fixture
def ledger() -> Ledger:
    """One message, acked and not delivered yet, to a session at QoS 2."""
    made = Ledger()
    made.inboxes["once"] = Inbox("once", 2)
    made.acked(made.letter(DUE_MS), "1")
    return made


def letter_of(ledger: Ledger) -> Letter:
    (letter,) = ledger.letters.values()
    return letter


def deliver(ledger: Ledger, at_ms: int = DUE_MS, tag: str = "load-0") -> None:
    ledger.inboxes["once"].arrivals.append(Arrival(tag, at_ms, HERE))


def kinds(ledger: Ledger) -> list[str]:
    return [fault.split(":")[0] for fault in ledger.check()]


def test_what_came_once_in_time_is_no_fault(ledger: Ledger) -> None:
    deliver(ledger)
    assert kinds(ledger) == []
    assert "1 acked" in ledger.counted()


def test_what_was_acked_and_did_not_come(ledger: Ledger) -> None:
    assert kinds(ledger) == ["lost"]


def test_what_was_not_acked_need_not_come(ledger: Ledger) -> None:
    deliver(ledger)
    ledger.letter(DUE_MS)
    assert kinds(ledger) == []


def test_what_came_before_its_due(ledger: Ledger) -> None:
    deliver(ledger, DUE_MS - 1)
    assert kinds(ledger) == ["early"]


def test_what_came_though_it_was_cancelled(ledger: Ledger) -> None:
    letter = letter_of(ledger)
    letter.is_cancel_asked = letter.is_cancelled = True
    assert kinds(ledger) == []
    deliver(ledger)
    assert kinds(ledger) == ["cancelled"]


def test_a_cancel_without_an_answer_leaves_both_open(ledger: Ledger) -> None:
    letter_of(ledger).is_cancel_asked = True
    assert kinds(ledger) == []
    deliver(ledger)
    assert kinds(ledger) == []


def test_what_came_twice_at_qos_2(ledger: Ledger) -> None:
    deliver(ledger)
    deliver(ledger, DUE_MS + 1)
    assert kinds(ledger) == ["doubled", "doubled"]
    ledger.inboxes["once"].qos = 1
    assert kinds(ledger) == []


def test_what_nobody_sent(ledger: Ledger) -> None:
    deliver(ledger)
    deliver(ledger, tag="other")
    assert kinds(ledger) == ["strange"]
