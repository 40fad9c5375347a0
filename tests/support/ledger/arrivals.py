"""The account of arrivals: what came to each session, over all its connections and the server's lives.

It holds the account of messages, and checks what follows from both. Per session:

  - a message that was accepted and not cancelled comes until the session has acked it, at least once;
  - one whose cancel was answered 204 never comes, before or after;
  - none comes before the clock has shown its due since that was asked for;
  - first deliveries are in the order of positions, as far as positions are known (ids and ETags name them);
  - on one connection none comes twice. What was acked a good while before the server died does not come
    again, unless a replay asks for it; at QoS 2 nothing does;
  - what a start finds of read positions is never behind what a start before has found.

What can be told at once is a fault in the book at once, the rest is found by `check`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from .messages import Message, Messages
from .words import Fault, fits

SURE_MS = 1_500
"""An ack this long before the last write that was answered before a kill is on disk: cursors are written
every 100 ms, heartbeats every second; and SLOW times as long as the slowest of those writes took, for cursors
that nobody waits for get a tenth of the time, and a busy machine gives the server little of it."""
SLOW = 10
APART_MS = 300
"""Between writes that are noted."""
LIFE_WRITES = 100
SOON_MS = 500
"""An ack this long before the end of its connection has been read; with a write answered since."""

KINDS = (
    *("lost", "given after a cancel", "cancelled after it was given", "moved after a cancel"),
    *("there after a cancel", "409 ahead of time", "early", "doubled", "cursors back", "fired twice"),
    *("halved", "retained lost", "out of order", "given again after its ack", "strange"),
    *("expired wrongly", "not verified"),
)


@dataclass(slots=True, eq=False)
class Arrival:
    tag: str
    at_ms: int
    due_ms: int
    """As the delivery says; 0: it does not say."""
    connection: int
    attempt: int = 1
    qos: int = 1
    turn: int = 0
    """How many replays had been asked for."""
    message: Message | None = None
    place: int = 0
    """Its position, if that is known."""
    acked_ms: int = 0
    """The client has it for good: it has acked it, or holds its packet id."""
    is_ack_read: bool = False
    """Its connection went on for a while after the ack."""
    node: tuple[str, int] = ("", 0)
    """Where the connection went to."""

    def __str__(self) -> str:
        acked = f", acked at {self.acked_ms}" if self.acked_ms else ""
        return f"{self.tag} at {self.at_ms} on connection {self.connection}, attempt {self.attempt}{acked}"


class Rewind(NamedTuple):
    """A replay that was asked for: what matches `filter` behind `to` may come again."""

    to: int
    filter: str
    turn: int


@dataclass(eq=False)
class Inbox:
    """All that one session received. Of what comes at QoS 2 the client acks only what is new to it."""

    name: str
    is_lossy: bool = False
    """At QoS 0: may miss anything."""
    is_shared: bool = False
    """Of all members of a group: what one has not acked comes to another."""
    arrivals: list[Arrival] = field(default_factory=list)
    connection: int = 0
    ended: set[int] = field(default_factory=set)
    """Connections that the client ended: what it sent last may be lost with them."""
    opened: dict[int, int] = field(default_factory=dict)
    """When each connection was begun, ms. What comes of it may be read when its server has been killed."""
    of: dict[Message, list[Arrival]] = field(default_factory=dict)
    once: set[tuple[Message, int]] = field(default_factory=set)
    """What the client has worked on at QoS 2, and in which turn."""
    rewinds: list[Rewind] = field(default_factory=list)

    @property
    def turn(self) -> int:
        return len(self.rewinds)

    def open(self, now_ms: int = 0) -> None:
        """The next connection begins."""
        self.connection += 1
        self.opened[self.connection] = now_ms

    def closed(self, read_ms: int) -> None:
        """A connection has ended while the server lived, which had read what was sent until then."""
        self.ended.add(self.connection)
        for arrival in reversed(self.arrivals):
            if arrival.connection != self.connection:
                break
            if 0 < arrival.acked_ms <= read_ms:
                arrival.is_ack_read = True

    def may_come(self, arrival: Arrival, topic: str, done: Sequence[int]) -> bool:
        """`done`: the turns in which it was acked for certain."""
        if arrival.turn in done:
            return False
        last = max((turn for turn in done if turn < arrival.turn), default=None)
        return last is None or any(
            one.turn > last and arrival.place > one.to and fits(one.filter, topic) for one in self.rewinds
        )

    def has(self, message: Message) -> bool:
        return any(arrival.acked_ms for arrival in self.of.get(message, ()))


class Arrivals:
    """Everything over all lives of one server, or of several that take turns."""

    def __init__(self, messages: Messages | None = None) -> None:
        self.messages = messages or Messages()
        self.book = self.messages.book
        self.inboxes: dict[str, Inbox] = {}
        self.kills_ms: list[int] = []
        self.until_ms = 1 << 62
        """What was wished for later than this has not come by the end."""
        self.places: dict[str, tuple[str, int]] = {}
        """By session, the read position that the last start found."""
        self.wrote: list[tuple[int, int, int]] = []
        """Writes that were answered, now and then one: when it was asked for, and when answered, and how long
        the slowest took since the one before."""
        self._slowest_ms = 0

    # -- what a client sees

    def arrived(
        self,
        inbox: Inbox,
        tag: str,
        at_ms: int,
        due_ms: int = 0,
        attempt: int = 1,
        qos: int = 1,
        *,
        name: str = "",
        place: int = 0,
        turn: int | None = None,
        connection: int | None = None,
        node: tuple[str, int] = ("", 0),
    ) -> Arrival:
        """`name`: its id, where the delivery says it."""
        self.messages.clock.shows(at_ms)
        number = inbox.connection if connection is None else connection
        message = self.messages.named(tag, name, due_ms)
        turn = inbox.turn if turn is None else turn
        arrival = Arrival(tag, at_ms, due_ms, number, attempt, qos, turn, message, place, node=node)
        inbox.arrivals.append(arrival)
        if message is None:
            self.book.fault(3, "strange", f"{inbox.name} got {tag!r}, which nobody sent")
            return arrival
        if message.is_cancelled:
            self.book.fault(4, "given after a cancel", f"{inbox.name} got {message}: {arrival}")
        elif self._is_early(inbox, message, arrival):
            self.book.fault(1, "early", f"{inbox.name} got {message}, said to be due {due_ms}: {arrival}")
        self.messages.came(message, 0 if _is_retry(inbox, message, arrival) else due_ms)
        before = inbox.of.setdefault(message, [])
        if qos < 2 and before and not inbox.is_shared and not inbox.is_lossy:
            self._again(inbox, message, arrival)
        before.append(arrival)
        return arrival

    def acked(self, inbox: Inbox, arrival: Arrival, at_ms: int) -> None:
        """At QoS 2 the client has it now, whether the server hears of that or not."""
        arrival.acked_ms = at_ms
        message = arrival.message
        if message is None or arrival.qos < 2 or inbox.is_shared:
            return
        if (message, arrival.turn) in inbox.once:
            self.book.fault(2, "doubled", f"{inbox.name} got {message} twice: {arrival}")
        inbox.once.add((message, arrival.turn))

    def written(self, asked_ms: int, answered_ms: int) -> None:
        """A write was answered: the server lives, and reads what it is sent."""
        self._slowest_ms = max(self._slowest_ms, answered_ms - asked_ms)
        if not self.wrote or asked_ms >= self.wrote[-1][1] + APART_MS:
            self.wrote.append((asked_ms, answered_ms, self._slowest_ms))
            self._slowest_ms = 0

    def read_until(self, now_ms: int) -> int:
        """What a client sent until then the server has read, for certain."""
        asked_ms = next((asked for asked, answered, _ in reversed(self.wrote) if answered <= now_ms), 0)
        return min(asked_ms, now_ms - SOON_MS)

    def found_place(self, session: str, position: tuple[str, int]) -> None:
        """The read position of a session after a start, as (time in RFC 3339, seq)."""
        self.book.seen["read positions"] += 1
        if position < self.places.get(session, ("", 0)):
            self.book.fault(1, "cursors back", f"{session} from {self.places[session]} to {position}")
        self.places[session] = position

    # -- what is wrong

    def check(self) -> list[Fault]:
        """All faults."""
        faults = list(self.book.faults)
        for inbox in self.inboxes.values():
            faults += self.missing(inbox) + self._disorder(inbox)
        return faults

    def missing(self, inbox: Inbox) -> list[Fault]:
        """What it should have got, once the last due that was wished for has come, and has not."""
        if inbox.is_lossy:
            return []
        return [
            Fault(1, "lost", f"{inbox.name} never got, or never again until it acked, {message}")
            for message in list(self.messages.by_tag.values())
            if message.is_sure and max(message.dues) <= self.until_ms and not inbox.has(message)
        ]

    def _is_early(self, inbox: Inbox, message: Message, arrival: Arrival) -> bool:
        if _is_retry(inbox, message, arrival):
            return arrival.at_ms < arrival.due_ms
        due_ms = arrival.due_ms if arrival.due_ms in message.dues else 0
        return arrival.due_ms > self.messages.clock.top or self.messages.is_early(message, due_ms)

    def _disorder(self, inbox: Inbox) -> list[Fault]:
        if inbox.is_lossy or inbox.is_shared:
            return []
        faults, last, before = [], (0, 0), ""
        for message in list(inbox.of):
            place = message.place
            if place is None:
                continue
            if place < last:
                faults.append(Fault(1, "out of order", f"{inbox.name} got {message} after {before}"))
            last, before = place, str(message)
        return faults

    def _again(self, inbox: Inbox, message: Message, arrival: Arrival) -> None:
        """A delivery of what came before: on this connection, or acked for certain."""
        before = inbox.of[message]
        here = [one for one in before if (one.connection, one.turn) == (arrival.connection, arrival.turn)]
        done = [one for one in before if self._is_sure(inbox, one, arrival)]
        if here:
            what = f"{inbox.name}, on one connection: {here[-1]}; {arrival}"
            self.book.fault(5, "given again after its ack", what)
        elif not inbox.may_come(arrival, message.topic, [one.turn for one in done]):
            self.book.fault(5, "given again after its ack", f"{inbox.name}: {done[-1]}; {arrival}")

    def _is_sure(self, inbox: Inbox, former: Arrival, arrival: Arrival) -> bool:
        """Whether its ack has been read, and no kill since has undone it."""
        if not former.acked_ms or (former.connection in inbox.ended and not former.is_ack_read):
            return False
        first = bisect_left(self.kills_ms, inbox.opened.get(former.connection, former.acked_ms))
        if first < len(self.kills_ms) and self.kills_ms[first] <= arrival.at_ms:
            start = bisect_left(self.wrote, (former.acked_ms, 0, 0))
            since = self.wrote[start : start + LIFE_WRITES]
            answered = list(takewhile(lambda one: one[1] <= self.kills_ms[first], since))
            slowest_ms = max((one[2] for one in answered), default=0)
            return bool(answered) and former.acked_ms + SURE_MS + SLOW * slowest_ms <= answered[-1][1]
        return former.is_ack_read

    # -- what there was to check

    def counted(self) -> str:
        """How many faults of each kind there are, those of which there are none too."""
        found = Counter(fault.kind for fault in self.check())
        return ", ".join(f"{kind} {found[kind]}" for kind in dict.fromkeys((*KINDS, *found)))

    def summary(self) -> str:
        messages = list(self.messages.by_tag.values())
        seen = {
            f"of {len(messages)} accepted": sum(one.is_accepted for one in messages),
            "cancelled": sum(one.is_cancelled for one in messages),
            "moved": sum(one.is_accepted and one.row != one.id for one in messages),
            "occurrences": len(self.messages.fired),
            "kills": len(self.kills_ms),
        }
        seen |= {what: count for what, count in self.book.seen.items() if what != "accepted"}
        parts = [f"{count} {what}" for what, count in seen.items() if count]
        for inbox in self.inboxes.values():
            more = len(inbox.arrivals) - len(inbox.of)
            on = f" on {inbox.connection} connections" if inbox.connection else ""
            parts.append(f"{inbox.name}: {len(inbox.of)} first deliveries and {more} more{on}")
        return "; ".join(parts)


def _is_retry(inbox: Inbox, message: Message, arrival: Arrival) -> bool:
    """A retry is due when it is to come again, which is later than the message was."""
    return inbox.is_shared and arrival.attempt > 1 and arrival.due_ms > min(message.dues)
