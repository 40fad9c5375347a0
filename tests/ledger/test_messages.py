"""The accounts of messages and of arrivals: for each rule a story that keeps it and one that breaks it.

An account that finds nothing proves nothing.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.crash.past import Piece, wrong
from tests.support.ledger.arrivals import KINDS, Arrivals, Inbox, Rewind
from tests.support.ledger.messages import Message, Messages
from timeline.position import Position, id_text, message_id

DUE, DAY = 1_800_000_000_000, 86_400_000
AT = "2026-11-21T08:53:55.214Z"


class Book:
    """The account of one session, and one message that was answered before it was due."""

    def __init__(self) -> None:
        self.account = Arrivals(Messages(DUE - DAY))
        self.messages = self.account.messages
        self.inbox = self.account.inboxes.setdefault("reader", Inbox("reader", connection=1))
        self.message = self.accepted("a", DUE, 1)

    def accepted(self, tag: str, due: int, seq: int) -> Message:
        message = self.messages.ask(tag, "load", due)
        self.messages.accepted(message, id_text(message_id(Position(due << 48 | seq), 0, 0)))
        return message

    def got(
        self,
        tag: str = "a",
        late: int = 5,
        qos: int = 1,
        *,
        due: int = 0,
        attempt: int = 1,
        place: int = 0,
        is_acked: bool = True,
    ) -> None:
        arrival = self.account.arrived(self.inbox, tag, DUE + late, due, attempt, qos, place=place)
        if is_acked:
            self.account.acked(self.inbox, arrival, arrival.at_ms)

    def wrote(self) -> None:
        """The server lives for a while, and dies ten seconds after the first due."""
        for since in (500, 1_500, 2_500):
            self.account.written(DUE + since, DUE + since + 1)
        self.account.kills_ms.append(DUE + 10_000)

    def got_again(self) -> None:
        self.inbox.open(DUE + 400)
        self.got(late=20_000)

    @property
    def found(self) -> list[str]:
        return [fault.kind for fault in self.account.check()]


# -- what is kept


def it_comes_once(book: Book) -> None:
    book.got(due=DUE)
    book.messages.kept["kept"] = (5, 7)
    book.messages.retained("kept", 6)
    book.account.found_place("reader", (AT, 7))
    book.account.found_place("reader", ("2026-11-21T08:53:55.300Z", 1))
    for _ in range(2):
        book.messages.fires("tick", DUE, "1")
    book.messages.stored(Counter("a"), [book.message])


def one_that_was_not_acked_comes_again(book: Book) -> None:
    book.got(is_acked=False)
    book.got_again()


def one_that_is_far_need_not_come(book: Book) -> None:
    book.got()
    book.accepted("far", DUE + DAY, 9)
    book.account.until_ms = DUE + 1_000


def one_that_was_not_answered_need_not_come(book: Book) -> None:
    book.got()
    book.messages.stored(Counter("a"), [book.message, book.messages.ask("b", "load", DUE)])


def what_comes_at_qos_0_may_be_missed_and_come_again(book: Book) -> None:
    book.inbox.is_lossy = True
    book.accepted("b", DUE, 2)
    book.got(is_acked=False)
    book.got(is_acked=False)


def a_cancel_without_an_answer_leaves_both_open(book: Book) -> None:
    book.message.is_cancel_asked = True
    assert not book.found
    book.got()


def a_cancel_that_came_too_late(book: Book) -> None:
    book.message.is_cancel_asked = True
    book.got()
    book.messages.not_cancelled(book.message)


def one_that_is_cancelled(book: Book) -> None:
    book.messages.cancelled(book.message)


def what_is_acked_while_the_server_does_not_run_may_come_again(book: Book) -> None:
    """A machine that is busy with something else: nothing was answered between the ack and the kill."""
    book.got()
    book.account.written(DUE - 500, DUE)
    book.account.kills_ms.append(DUE + 10_000)
    book.got_again()


def an_ack_that_was_sent_as_its_connection_ended_may_be_lost(book: Book) -> None:
    book.got()
    book.wrote()
    book.inbox.closed(DUE)
    book.got_again()


def what_is_read_when_its_server_has_been_killed_may_come_again(book: Book) -> None:
    """It lay on the way; the ack went nowhere, whatever the next server answers before its own end."""
    book.inbox.open(DUE - 1_000)
    book.account.kills_ms.append(DUE)
    book.got(late=8)
    book.wrote()
    book.got_again()


def a_member_gets_what_another_has_not_acked(book: Book) -> None:
    book.inbox.is_shared = True
    book.accepted("b", DUE, 0)
    for tag in ("a", "b"):
        book.got(tag)
    book.got(late=30, due=DUE + 20, attempt=2)


def a_move_without_an_answer_leaves_both_open(book: Book) -> None:
    for due in (DUE + 10, DUE + 20, DUE + 30):
        book.messages.wish(book.message, due)
    book.messages.moved(book.message, DUE + 10, book.message.row)
    book.messages.not_moved(book.message, DUE + 20)
    assert book.message.dues == {DUE + 10, DUE + 30}
    book.got(late=30, due=DUE + 30)


def a_key_is_used_again(book: Book) -> None:
    """Its first message was cancelled and dropped: there is another one under its tag."""
    book.messages.cancelled(book.message)
    book.messages.wish(book.message, DUE + 7)
    book.account.acked(
        book.inbox, book.account.arrived(book.inbox, "a", DUE + 9, DUE + 7, name="f" * 32), DUE + 9
    )
    other = book.messages.named("a", "f" * 32, DUE + 7)
    assert other is not None
    assert other is not book.message
    book.messages.accepted(other, "f" * 32)


def a_replay_brings_it_again(book: Book) -> None:
    book.got()
    book.inbox.arrivals[-1].is_ack_read = True
    book.inbox.rewinds.append(Rewind(DUE, "load", 1))
    book.got(late=20, place=DUE + 1)


def what_the_clock_has_shown_before_it_was_set_back_is_not_early(book: Book) -> None:
    book.messages.clock.shows(DUE)
    book.got(late=-3_000, due=DUE)


KEPT: tuple[Callable[[Book], None], ...] = (
    it_comes_once,
    one_that_was_not_acked_comes_again,
    one_that_is_far_need_not_come,
    one_that_was_not_answered_need_not_come,
    what_comes_at_qos_0_may_be_missed_and_come_again,
    a_cancel_without_an_answer_leaves_both_open,
    a_cancel_that_came_too_late,
    one_that_is_cancelled,
    what_is_acked_while_the_server_does_not_run_may_come_again,
    an_ack_that_was_sent_as_its_connection_ended_may_be_lost,
    what_is_read_when_its_server_has_been_killed_may_come_again,
    a_member_gets_what_another_has_not_acked,
    a_move_without_an_answer_leaves_both_open,
    a_key_is_used_again,
    a_replay_brings_it_again,
    what_the_clock_has_shown_before_it_was_set_back_is_not_early,
)


@pytest.mark.parametrize("tell", KEPT, ids=lambda tell: tell.__name__)
def test_what_keeps_the_rules_is_no_fault(tell: Callable[[Book], None]) -> None:
    book = Book()
    tell(book)
    assert book.found == []


# -- what is broken


def never_came(book: Book) -> None:
    pass


def not_again_until_it_was_acked(book: Book) -> None:
    book.got(is_acked=False)


def given_and_cancelled_before(book: Book) -> None:
    book.messages.cancelled(book.message)
    book.got()


def cancelled_and_given_before(book: Book) -> None:
    book.got()
    book.messages.cancelled(book.message)


def moved_and_cancelled_before(book: Book) -> None:
    book.messages.cancelled(book.message)
    book.messages.moved(book.message, DUE + 1)


def too_late_to_cancel_long_before(book: Book) -> None:
    book.messages.clock.shows(DUE - 2_001)
    book.messages.not_cancelled(book.message)
    book.got()


def too_late_to_cancel_where_it_was_moved(book: Book) -> None:
    """Before it was to be moved there; nobody knows whether it was."""
    book.messages.wish(book.message, DUE + 10)
    too_late_to_cancel_long_before(book)


def early(book: Book) -> None:
    book.got(late=-1)


def early_as_it_says(book: Book) -> None:
    """It may be at another due, which has come."""
    book.messages.wish(book.message, DUE + 10)
    book.got(due=DUE + 10)


def early_since_the_clock_was_set_back(book: Book) -> None:
    """What it has shown before counts for nothing that is asked for now."""
    book.got()
    book.messages.clock.shows(DUE - 5_000)
    book.accepted("b", DUE + 2, 2)
    book.got("b", -2_000)


def a_retry_before_its_time(book: Book) -> None:
    book.inbox.is_shared = True
    book.got()
    book.got(late=7, due=DUE + 9, attempt=2)


def doubled(book: Book) -> None:
    book.got(qos=2)
    book.inbox.open(DUE + 6)
    book.got(qos=2)


def stored_twice(book: Book) -> None:
    book.got()
    book.messages.stored(Counter("aa"), [book.message])


def read_positions_go_back(book: Book) -> None:
    book.got()
    book.account.found_place("reader", (AT, 7))
    book.account.found_place("reader", (AT, 6))


def two_for_one_time(book: Book) -> None:
    book.got()
    book.messages.fires("tick", DUE, "1")
    book.messages.fires("tick", DUE, "2")


def half_a_request(book: Book) -> None:
    book.got()
    for tag in ("b", "c"):
        book.messages.ask(tag, "load", DUE, "both")
    book.messages.stored(Counter("ab"), book.messages.by_tag.values())


def an_answered_request_is_gone(book: Book) -> None:
    book.got()
    book.messages.stored(Counter(), [book.message])


def not_retained(book: Book) -> None:
    book.got()
    book.messages.kept["kept"] = (5, 7)
    book.messages.retained("kept", 4)


def retained_by_nobody(book: Book) -> None:
    book.got()
    book.messages.kept["kept"] = (5, 7)
    book.messages.retained("kept", 8)


def disorder(book: Book) -> None:
    book.accepted("b", DUE, 2)
    book.got("b")
    book.got("a")


def again_after_a_kill(book: Book) -> None:
    book.got()
    book.wrote()
    book.got_again()


def again_on_the_next_connection(book: Book) -> None:
    book.got()
    book.inbox.closed(DUE + 5)
    book.got_again()


def again_on_one_connection(book: Book) -> None:
    book.got(is_acked=False)
    book.got(late=6)


def again_beside_a_replay(book: Book) -> None:
    """What was asked for is another topic, or behind that."""
    book.got()
    book.inbox.arrivals[-1].is_ack_read = True
    book.inbox.rewinds += [Rewind(DUE + 2, "load", 1), Rewind(DUE, "other", 2)]
    book.got(late=20, place=DUE + 1)


def nobody_sent_it(book: Book) -> None:
    book.got()
    book.got("nobody's")


def another_due(book: Book) -> None:
    book.got(due=DUE + 1)


def a_due_that_it_had_before(book: Book) -> None:
    """It was moved, and came where it had been."""
    book.messages.wish(book.message, DUE + 3)
    book.got(due=DUE)
    book.messages.moved(book.message, DUE + 3)


def a_slice_lacks_one(book: Book) -> None:
    """A slice of which a job has dropped one message."""
    book.got()
    piece = Piece(DUE, {"a": "1", "b": "2"}, cancelled="2", is_asked=True)
    book.account.book.heard(wrong(piece, {"1": "dispatched"}))


def a_directory_is_wrong(book: Book) -> None:
    """Found by `verified`, which reads it."""
    book.got()
    book.account.book.heard(["not verified: ..."])


BROKEN: dict[Callable[[Book], None], str] = {
    never_came: "lost",
    not_again_until_it_was_acked: "lost",
    given_and_cancelled_before: "given after a cancel",
    cancelled_and_given_before: "cancelled after it was given",
    moved_and_cancelled_before: "moved after a cancel",
    too_late_to_cancel_long_before: "409 ahead of time",
    too_late_to_cancel_where_it_was_moved: "409 ahead of time",
    early: "early",
    early_as_it_says: "early",
    early_since_the_clock_was_set_back: "early",
    a_retry_before_its_time: "early",
    doubled: "doubled",
    stored_twice: "doubled",
    read_positions_go_back: "cursors back",
    two_for_one_time: "fired twice",
    half_a_request: "halved",
    an_answered_request_is_gone: "halved",
    not_retained: "retained lost",
    retained_by_nobody: "retained lost",
    disorder: "out of order",
    again_after_a_kill: "given again after its ack",
    again_on_the_next_connection: "given again after its ack",
    again_on_one_connection: "given again after its ack",
    again_beside_a_replay: "given again after its ack",
    nobody_sent_it: "strange",
    another_due: "strange",
    a_due_that_it_had_before: "strange",
    a_slice_lacks_one: "expired wrongly",
    a_directory_is_wrong: "not verified",
}


@pytest.mark.parametrize("tell", BROKEN, ids=lambda tell: tell.__name__)
def test_what_breaks_a_rule_is_named(tell: Callable[[Book], None]) -> None:
    book = Book()
    tell(book)
    assert book.account.counted() == ", ".join(f"{one} {int(one == BROKEN[tell])}" for one in KINDS)


def test_there_is_a_story_of_each_kind() -> None:
    assert set(BROKEN.values()) == set(KINDS)
