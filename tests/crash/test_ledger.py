"""Each kind of fault is found by the ledger: a book that finds nothing proves nothing."""

from collections.abc import Callable

import pytest

from timeline.position import Position, id_text, message_id

from .ledger import KINDS, Inbox, Ledger, Letter
from .past import Piece, wrong

DUE_MS = 1_800_000_000_000


class Book:
    """A ledger of one session, and one letter that was answered."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.inbox = self.ledger.inboxes.setdefault("reader", Inbox("reader", connection=1))
        self.letter = self.accepted("a", DUE_MS, 1)

    def accepted(self, tag: str, due_ms: int, seq: int) -> Letter:
        letter = self.ledger.letter(tag, "load", due_ms, tag)
        letter.id = letter.row = id_text(message_id(Position(due_ms << 48 | seq), 0, 0))
        letter.is_acked = True
        return letter

    def got(self, tag: str = "a", *, late_ms: int = 5, qos: int = 1, is_acked: bool = True) -> None:
        arrival = self.ledger.arrived(self.inbox, tag, DUE_MS + late_ms, 0, 1, qos)
        arrival.acked_ms = arrival.at_ms if is_acked else 0


def lost(book: Book) -> None:
    book.got(is_acked=False)


def cancelled(book: Book) -> None:
    book.letter.is_cancel_asked = book.letter.is_cancelled = True
    book.got()


def early(book: Book) -> None:
    book.got(late_ms=-1)


def doubled(book: Book) -> None:
    book.got(qos=2)
    book.inbox.connection += 1
    book.got(qos=2)


def back(book: Book) -> None:
    book.got()
    book.ledger.place("reader", ("2026-11-21T08:53:55.214Z", 7))
    book.ledger.place("reader", ("2026-11-21T08:53:55.214Z", 6))


def twice_at_one_time(book: Book) -> None:
    book.got()
    book.ledger.occurrences["tick", "2026-11-21T08:53:55.000Z"] = 2


def not_retained(book: Book) -> None:
    book.got()
    book.ledger.kept["kept"] = (5, 7)
    book.ledger.retained("kept", 4)


def disorder(book: Book) -> None:
    book.accepted("b", DUE_MS, 2)
    book.got("b")
    book.got("a")


def again(book: Book) -> None:
    book.got()
    for since_ms in (500, 1_500, 2_500):
        book.ledger.written(DUE_MS + since_ms, DUE_MS + since_ms + 1)
    book.ledger.kills_ms.append(DUE_MS + 10_000)
    book.inbox.connection += 1
    book.got(late_ms=20_000)


def strange(book: Book) -> None:
    book.got()
    book.got("nobody's")


def halved(book: Book) -> None:
    """Found by `whole_or_absent`, which asks a server."""
    book.got()
    book.ledger.faults.append("halved requests: ...")


def expired(book: Book) -> None:
    """A slice of which a job has dropped one message."""
    book.got()
    piece = Piece(DUE_MS, {"a": "1", "b": "2"}, cancelled="2", is_asked=True)
    book.ledger.faults += wrong(piece, {"1": "dispatched"})


def unverified(book: Book) -> None:
    """Found by `verified`, which reads a data directory."""
    book.got()
    book.ledger.faults.append("not verified: ...")


FAULTS: dict[str, Callable[[Book], None]] = {
    "acked lost": lost,
    "204 delivered": cancelled,
    "early": early,
    "QoS 2 doubled": doubled,
    "cursors back": back,
    "occurrences doubled": twice_at_one_time,
    "halved requests": halved,
    "retained lost": not_retained,
    "out of order": disorder,
    "again after an ack": again,
    "strange": strange,
    "expired wrongly": expired,
    "not verified": unverified,
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_found(kind: str) -> None:
    book = Book()
    FAULTS[kind](book)
    assert book.ledger.counted() == ", ".join(f"{one} {int(one == kind)}" for one in KINDS)


def test_nothing_is_wrong_with_a_message_that_comes_once() -> None:
    book = Book()
    book.got()
    book.ledger.kept["kept"] = (5, 7)
    book.ledger.retained("kept", 6)
    book.ledger.place("reader", ("2026-11-21T08:53:55.214Z", 7))
    book.ledger.place("reader", ("2026-11-21T08:53:55.300Z", 1))
    assert book.ledger.check() == []


def test_one_that_was_not_acked_may_come_again_and_one_that_is_far_need_not_come() -> None:
    book = Book()
    book.got(is_acked=False)
    book.inbox.connection += 1
    book.got()
    book.accepted("far", DUE_MS + 86_400_000, 9)
    book.ledger.until_ms = DUE_MS + 1_000
    assert book.ledger.check() == []


def test_what_is_acked_while_the_server_does_not_run_may_come_again() -> None:
    """A machine that is busy with something else: nothing was answered between the ack and the kill."""
    book = Book()
    book.got()
    book.ledger.written(DUE_MS - 500, DUE_MS)
    book.ledger.kills_ms.append(DUE_MS + 10_000)
    book.inbox.connection += 1
    book.got(late_ms=20_000)
    assert book.ledger.check() == []


def test_an_ack_that_was_sent_as_its_connection_ended_may_be_lost() -> None:
    book = Book()
    book.got()
    for since_ms in (500, 1_500, 2_500):
        book.ledger.written(DUE_MS + since_ms, DUE_MS + since_ms + 1)
    book.inbox.closed(DUE_MS)
    book.ledger.kills_ms.append(DUE_MS + 10_000)
    book.inbox.connection += 1
    book.got(late_ms=20_000)
    assert book.ledger.check() == []


def test_what_is_read_when_its_server_has_been_killed_may_come_again() -> None:
    """It lay on the way; the ack went nowhere, whatever the next server answers before its own end."""
    book = Book()
    book.inbox.open(DUE_MS - 1_000)
    book.ledger.kills_ms += [DUE_MS, DUE_MS + 10_000]
    book.got(late_ms=8)
    for since_ms in (500, 1_500, 2_500):
        book.ledger.written(DUE_MS + since_ms, DUE_MS + since_ms + 1)
    book.inbox.open(DUE_MS + 400)
    book.got(late_ms=20_000)
    assert book.ledger.check() == []
