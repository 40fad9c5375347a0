"""The accounts of messages and of arrivals: for each rule a story that keeps it and one that breaks it.

An account that finds nothing proves nothing.
"""

from collections import Counter

import pytest

from tests.crash.past import Piece, wrong
from tests.support.ledger.arrivals import KINDS, Arrivals, Inbox, Rewind
from tests.support.ledger.messages import Message, Messages
from tests.support.planted import Fault, finds
from tests.support.stories import Teller, each
from timeline.position import Position, id_text, message_id

DUE, DAY = 1_800_000_000_000, 86_400_000
STORIES = {
    "": {
        "it comes once": "got a due=0; stored a; listed dispatched",
        "what may be seen twice": "got a; retained 6; found 7; found 8; fires 1; fires 1",
        "one that was not acked comes again": "read a; opens; got a 6",
        "one that is far need not come": "got a; accepted far 9 86400000; until 1000",
        "one that was not answered need not come": "got a; asked b; stored a",
        "at QoS 0 it may be missed, and come again": "lossy; accepted b 2; read a; read a",
        "a cancel without an answer leaves both open": "cancelling a; listed cancelled",
        "a cancel without an answer, and it came": "cancelling a; got a",
        "a cancel that came too late": "cancelling a; got a; uncancelled a",
        "one that is cancelled": "cancelled a; listed cancelled",
        # A machine that is busy with something else: nothing was answered between the ack and the kill.
        "acked while the server did not run": "got a; wrote -500; killed 10000; opens; got a 20000",
        "an ack that was sent as its connection ended may be lost": (
            "got a; wrote 500 1500 2500; killed 10000; closes 0; opens; got a 20000"
        ),
        # It lay on the way; the ack went nowhere, whatever the next server answers before its own end.
        "read when its server had been killed": (
            "opens -1000; killed 0; got a 8; wrote 500 1500 2500; killed 10000; opens 400; got a 20000"
        ),
        "a member gets what another has not acked": (
            "shared; accepted b 0; got a; got b; got a 30 due=20 attempt=2"
        ),
        "a move without an answer leaves both open": (
            "wish a 10; wish a 20; wish a 30; moved a 10; unmoved a 20; got a 30 due=30"
        ),
        "it comes as before, and nobody knows whether it was moved": "wish a 3; got a due=0",
        "a key is used again when its message was dropped": "cancelled a; wish a 7; got a 9 due=7 name=f",
        "a replay brings it again": "got a; sure; replay 0 load; got a 20 place=1",
        "what the clock has shown is not early when it is set back": "shows 0; got a -3000 due=0",
    },
    "lost": {
        "it never came": "until 0",
        "not again until it was acked": "read a",
        "it is not listed": "got a; listed gone",
        "it is listed as cancelled": "got a; listed cancelled",
        "it is not listed, and nobody knows whether it was cancelled": "got a; cancelling a; listed gone",
        "the cancel was refused": "cancelling a; shows 0; uncancelled a",
        "one of a key that is used again": "got a; accepted again 3 0 a",
    },
    "given after a cancel": {"cancelled before": "cancelled a; got a"},
    "cancelled after it was given": {
        "given before": "got a; cancelled a",
        "not acked": "read a; cancelled a",
        "as a retry, and nobody has seen the first try": "shared; read a 7 due=6 attempt=2; cancelled a",
    },
    "moved after a cancel": {"cancelled before": "cancelled a; moved a 1"},
    "there after a cancel": {
        "dispatched": "cancelled a; listed dispatched",
        "stored": "cancelled a; stored a",
    },
    "409 ahead of time": {
        "long before": "shows -2001; uncancelled a; got a",
        "where it was to be moved, and nobody knows whether it was": (
            "wish a 10; shows -2001; uncancelled a; got a"
        ),
    },
    "early": {
        "before its due": "got a -1",
        "as it says; it may be at another due, which has come": "wish a 10; got a due=10",
        "as it says; that was asked for when the clock had been set back": (
            "shows 20; shows -5000; wish a 10; got a -2000 due=10"
        ),
        "what the clock has shown counts for nothing that is asked for later": (
            "got a; shows -5000; accepted b 2 2; got b -2000"
        ),
        "a retry before its time": "shared; got a; got a 7 due=9 attempt=2",
        "one that was sent at once says that it is due later": "sent b; got b due=6; got a",
    },
    "doubled": {
        "at QoS 2": "got a qos=2; opens; got a 6 qos=2",
        "in the store": "got a; stored aa",
    },
    "cursors back": {"by one": "got a; found 7; found 6"},
    "fired twice": {"another message for its time": "got a; fires 1; fires 2"},
    "halved": {
        "half of what was not answered": "got a; asked b both; asked c both; stored ab",
        "what was answered is gone": "got a; stored -",
    },
    "retained lost": {
        "one before the last that was answered": "got a; retained 4",
        "one that nobody has asked for": "got a; retained 8",
    },
    "out of order": {"the later one first": "accepted b 2; got b; got a"},
    "given again after its ack": {
        "after a kill, a good while later": "got a; wrote 500 1500 2500; killed 10000; opens; got a 20000",
        "on the next connection": "got a; closes 5; opens; got a 20000",
        "on one connection": "read a; got a 6",
        "a replay was of another topic, or from behind that": (
            "got a; sure; replay 2 load; replay 0 other; got a 20 place=1"
        ),
        "a replay brings it once": (
            "got a; sure; replay 0 load; got a 20 place=1; sure; opens; got a 30 place=1"
        ),
    },
    "strange": {
        "nobody sent it": "got a; got b",
        "another due": "got a due=1",
        "the due that it had before it was moved": "wish a 3; got a due=0; moved a 3",
        "the due of a move that was refused": "wish a 3; got a due=3; unmoved a 3",
    },
    "not verified": {"a directory": "got a; hears verified"},
    "expired wrongly": {"of a slice, a job has dropped one message": "got a; hears slice"},
}
HEARD = {
    "verified": ["not verified: what is found in a directory"],
    "slice": list(wrong(Piece(DUE, {"a": "1", "b": "2"}, "2", is_asked=True), {"1": "dispatched"})),
}


class Book(Teller):
    """The account of one session, and one message that was answered before it was due.

    A story is a list of steps, each one of these methods. Times are ms behind DUE.
    """

    def __init__(self) -> None:
        self.account = Arrivals(Messages(DUE - DAY))
        self.messages = self.account.messages
        self.messages.kept["kept"] = (5, 7)
        self.inbox = self.account.inboxes.setdefault("reader", Inbox("reader", connection=1))
        self.accepted("a", 1)

    def _of(self, tag: str) -> Message:
        return self.messages.by_tag[tag]

    def asked(self, tag: str, request: str = "") -> None:
        self.messages.ask(tag, "load", DUE, request)

    def sent(self, tag: str) -> None:
        self.messages.accepted(self.messages.ask(tag, "load", 0))

    def accepted(self, tag: str, seq: int, due: int = 0, under: str = "") -> None:
        """`under`: another message under that tag, which was used before."""
        name = id_text(message_id(Position(DUE + due << 48 | seq), 0, 0))
        message = self.messages.named(under, name, DUE + due) if under else None
        self.messages.accepted(message or self.messages.ask(tag, "load", DUE + due), name)

    def read(
        self, tag: str, late: int = 5, *, qos: int = 1, due: int | None = None, attempt: int = 1, **more: int
    ) -> None:
        said = 0 if due is None else DUE + due
        self.account.arrived(
            self.inbox,
            tag,
            DUE + late,
            said,
            attempt,
            qos,
            place=DUE + more.get("place", 0),
            name=str(more.get("name", "")),
        )

    def got(self, tag: str, late: int = 5, **more: int) -> None:
        self.read(tag, late, **more)
        self.account.acked(self.inbox, self.inbox.arrivals[-1], DUE + late)

    def sure(self) -> None:
        self.inbox.arrivals[-1].is_ack_read = True

    def cancelling(self, tag: str) -> None:
        self._of(tag).is_cancel_asked = True

    def cancelled(self, tag: str) -> None:
        self.messages.cancelled(self._of(tag))

    def uncancelled(self, tag: str) -> None:
        self.messages.not_cancelled(self._of(tag))

    def wish(self, tag: str, due: int) -> None:
        self.messages.wish(self._of(tag), DUE + due)

    def moved(self, tag: str, due: int) -> None:
        self.messages.moved(self._of(tag), DUE + due, self._of(tag).row)

    def unmoved(self, tag: str, due: int) -> None:
        self.messages.not_moved(self._of(tag), DUE + due)

    def shows(self, late: int) -> None:
        self.messages.clock.shows(DUE + late)

    def wrote(self, *since: int) -> None:
        for late in since:
            self.account.written(DUE + late, DUE + late + 1)

    def killed(self, late: int) -> None:
        self.account.kills_ms.append(DUE + late)

    def opens(self, late: int = 0) -> None:
        self.inbox.open(DUE + late)

    def closes(self, late: int) -> None:
        self.inbox.closed(DUE + late)

    def lossy(self) -> None:
        self.inbox.is_lossy = True

    def shared(self) -> None:
        self.inbox.is_shared = True

    def replay(self, to: int, text: str) -> None:
        self.inbox.rewinds.append(Rewind(DUE + to, text, self.inbox.turn + 1))

    def found(self, seq: int) -> None:
        self.account.found_place("reader", ("2026-11-21T08:53:55.214Z", seq))

    def retained(self, number: int) -> None:
        self.messages.retained("kept", number)

    def fires(self, name: int) -> None:
        self.messages.fires("tick", DUE, str(name))

    def stored(self, tags: str) -> None:
        self.messages.stored(Counter(tags), self.messages.by_tag.values())

    def listed(self, state: str) -> None:
        self.messages.listed({self._of("a").id: state})

    def until(self, late: int) -> None:
        self.account.until_ms = DUE + late

    def hears(self, what: str) -> None:
        self.account.book.heard(HEARD[what])


def told(story: str, kind: str) -> bool:
    """Whether that is what the accounts find in it, once, and nothing else."""
    book = Book()
    book.tell(story)
    return book.account.counted() == ", ".join(f"{one} {int(one == kind)}" for one in KINDS)


@each(STORIES)
def test_what_breaks_a_rule_is_named_and_what_keeps_them_is_not(kind: str, story: str) -> None:
    assert told(story, kind)


@finds("stories")
def test_a_rule_that_is_left_out_is_missed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a story of that kind."""
    fault.plant(monkeypatch)
    kind = fault.drivers["stories"]
    assert not all(told(story, kind) for story in STORIES[kind].values())


def test_there_is_a_story_of_each_kind() -> None:
    assert set(STORIES) == {*KINDS, ""}
