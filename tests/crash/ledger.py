"""What the clients of a server know: what they asked for, what was answered, what arrived; and what follows.

The server may die between a request and its answer; then the request was carried out whole or not at all, and
nobody knows which. So each letter has a set of dues that it may have, and a fate that is certain only when it
was answered. Everything that the server promised is checked against that, per session:

  - an answered letter that was not cancelled comes until the session has acked it, at least once;
  - a letter whose cancel was answered 204 never comes, before or after;
  - none comes before its due, by the wall clock that the server shares with us;
  - first deliveries are in position order, as far as positions are known (ids and ETags name them);
  - what was acked a good while before the server died does not come again; at QoS 2 nothing does;
  - what a start finds of read positions is never behind what a start before has found;
  - of a recurring schedule there is one message for each time, and a retained message is the last one that
    was answered, or one that was asked for later.

A fault begins with its kind, by which `counted` counts.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

from timeline.position import MessageId, id_position

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
    *("acked lost", "204 delivered", "early", "QoS 2 doubled", "cursors back", "occurrences doubled"),
    *("halved requests", "retained lost", "out of order", "again after an ack", "strange"),
    *("expired wrongly", "not verified"),
)


@dataclass(slots=True)
class Letter:
    """One message, by its payload."""

    tag: str
    topic: str
    dues: set[int]
    """The dues that it may have, ms: one, but for moves of which the answer never came. Empty: plain."""
    request: str
    """Which request brought it; all of one request or none."""
    id: str = ""
    row: str = ""
    """Id of the row that it is in, if that is known."""
    is_acked: bool = False
    is_cancel_asked: bool = False
    is_cancelled: bool = False


@dataclass(slots=True)
class Arrival:
    tag: str
    at_ms: int
    due_ms: int
    """As the delivery says; 0: it does not say."""
    connection: int
    attempt: int
    qos: int = 1
    acked_ms: int = 0
    is_ack_read: bool = False
    """Its connection went on for a while after the ack."""


@dataclass
class Inbox:
    """All that one persistent session received, over all of its connections and the server's lives.

    Of what comes at QoS 2 only what is new to the client, who holds packet ids.
    """

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

    def open(self, now_ms: int) -> None:
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


class Ledger:
    """Everything over all lives of one server."""

    def __init__(self) -> None:
        self.letters: dict[str, Letter] = {}
        self.inboxes: dict[str, Inbox] = {}
        self.kills_ms: list[int] = []
        self.faults: list[str] = []
        self.until_ms = 1 << 62
        """What was wished for later than this has not come by the end."""
        self.places: dict[str, tuple[str, int]] = {}
        """By session, the read position that the last start found."""
        self.occurrences: Counter[tuple[str, str]] = Counter()
        """Messages by schedule and due."""
        self.kept: dict[str, tuple[int, int]] = {}
        """By topic, the number of the retained message that was answered last, and asked for last."""
        self.wrote: list[tuple[int, int, int]] = []
        """Writes that were answered, now and then one: when it was asked for, and when answered, and how long
        the slowest took since the one before."""
        self._slowest_ms = 0
        self.splits = 0
        """Jobs that were committed."""
        self.checked = 0
        """Read positions and retained messages that were compared."""

    def letter(self, tag: str, topic: str, due_ms: int, request: str) -> Letter:
        letter = Letter(tag, topic, {due_ms} if due_ms else set(), request)
        self.letters[tag] = letter
        return letter

    def arrived(self, inbox: Inbox, tag: str, at_ms: int, due_ms: int, attempt: int, qos: int = 1) -> Arrival:
        """Note a delivery; what is wrong with it whatever comes later is a fault at once."""
        arrival = Arrival(tag, at_ms, due_ms, inbox.connection, attempt, qos)
        inbox.arrivals.append(arrival)
        letter = self.letters.get(tag)
        if letter is None:
            self.faults.append(f"strange: {inbox.name} got {tag!r}, which nobody sent")
        elif due_ms and at_ms < due_ms:
            self.faults.append(f"early: {inbox.name} got {tag} {due_ms - at_ms} ms before its due")
        return arrival

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

    def check(self) -> list[str]:
        """All faults."""
        faults = list(self.faults)
        for inbox in self.inboxes.values():
            faults += self._wrong(inbox)
            if not inbox.is_lossy:
                faults += self.missing(inbox)
            if not inbox.is_lossy and not inbox.is_shared:
                faults += self._disorder(inbox) + self._again(inbox)
        faults += [
            f"occurrences doubled: {count} messages of schedule {name} for {due}"
            for (name, due), count in self.occurrences.items()
            if count > 1
        ]
        return faults

    def counted(self) -> str:
        """How many faults of each kind there are, those of which there are none too."""
        found = Counter(fault.split(":")[0] for fault in self.check())
        assert set(found) <= set(KINDS), found
        return ", ".join(f"{kind} {found[kind]}" for kind in KINDS)

    # -- what a start finds

    def place(self, session: str, position: tuple[str, int]) -> None:
        """The read position of a session after a start, as (time in RFC 3339, seq)."""
        if position < self.places.get(session, ("", 0)):
            self.faults.append(f"cursors back: {session} from {self.places[session]} to {position}")
        self.places[session] = position
        self.checked += 1

    def retained(self, topic: str, number: int) -> None:
        """What is retained after a start; 0: nothing."""
        acked, asked = self.kept.get(topic, (0, 0))
        if not acked <= number <= asked:
            self.faults.append(f"retained lost: {number} of {topic}, answered {acked}, asked for {asked}")
        self.checked += 1

    # -- deliveries

    def missing(self, inbox: Inbox) -> list[str]:
        """What it should have got, once the last due that was wished for has come, and has not."""
        got = {arrival.tag for arrival in inbox.arrivals if arrival.acked_ms}
        return [
            f"acked lost: {inbox.name} never got, or never again until it acked, {letter}"
            for letter in self.letters.values()
            if letter.is_acked
            and not letter.is_cancel_asked
            and max(letter.dues, default=0) <= self.until_ms
            and letter.tag not in got
        ]

    def _wrong(self, inbox: Inbox) -> list[str]:
        faults = []
        for arrival in inbox.arrivals:
            letter = self.letters.get(arrival.tag)
            if letter is None:
                continue
            if letter.is_cancelled:
                faults.append(f"204 delivered: {inbox.name} got {letter}: {arrival}")
            # A retry is due when it is to come again, which is later than the message was.
            asked_ms = min(letter.dues, default=0)
            is_retry = inbox.is_shared and arrival.attempt > 1 and arrival.due_ms > asked_ms
            if arrival.due_ms and letter.dues and arrival.due_ms not in letter.dues and not is_retry:
                faults.append(f"strange: {inbox.name} got {letter} with another due: {arrival}")
            if letter.dues and arrival.at_ms < (arrival.due_ms if is_retry else asked_ms):
                faults.append(f"early: {inbox.name} got {letter}: {arrival}")
        return faults

    def _disorder(self, inbox: Inbox) -> list[str]:
        faults: list[str] = []
        seen: set[str] = set()
        last, before = 0, ""
        for arrival in inbox.arrivals:
            letter = self.letters.get(arrival.tag)
            if arrival.tag in seen or letter is None or not letter.row:
                continue
            seen.add(arrival.tag)
            place = id_position(MessageId(int(letter.row, 16)))
            if place < last:
                faults.append(f"out of order: {inbox.name} got {letter} after {before}")
            last, before = place, arrival.tag
        return faults

    def _again(self, inbox: Inbox) -> list[str]:
        """Deliveries of what had been acked before, for certain."""
        faults: list[str] = []
        done: dict[str, Arrival] = {}
        for arrival in inbox.arrivals:
            former = done.get(arrival.tag)
            if former is not None and arrival.qos == 2:
                faults.append(f"QoS 2 doubled: {inbox.name} got {arrival.tag} twice: {former}, {arrival}")
            elif (
                former is not None
                and former.connection != arrival.connection
                and self._is_sure(inbox, former, arrival)
            ):
                faults.append(f"again after an ack: {inbox.name} got {arrival.tag}: {former}, {arrival}")
            elif former is not None and former.connection == arrival.connection:
                faults.append(f"again after an ack: {inbox.name}, on one connection: {former}, {arrival}")
            if former is None or arrival.acked_ms:
                done[arrival.tag] = arrival
        return faults

    def _is_sure(self, inbox: Inbox, former: Arrival, arrival: Arrival) -> bool:
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

    def totals(self) -> str:
        """So far, in few words."""
        letters = self.letters.values()
        return (
            f"{len(self.kills_ms)} kills, {len(letters)} messages sent, {sum(x.is_acked for x in letters)} "
            f"acked, {sum(x.is_cancelled for x in letters)} cancelled, {self.splits} splits, "
            f"{sum(len(inbox.arrivals) for inbox in self.inboxes.values())} deliveries, "
            f"{self.checked} read positions and retained messages checked, {len(self.faults)} faults"
        )

    def summary(self) -> str:
        """What there was to check."""
        letters = self.letters.values()
        fired = len(self.occurrences)
        parts = [
            f"{self.splits} splits",
            f"{fired} occurrences",
            f"{self.checked} read positions and retained messages after a start",
            f"{sum(x.is_acked for x in letters)} of {len(letters)} accepted",
            f"{sum(x.is_cancelled for x in letters)} cancelled",
            f"{sum(x.is_acked and x.row not in ('', x.id) for x in letters)} moved",
            f"{len(self.kills_ms)} kills",
        ]
        for inbox in self.inboxes.values():
            first = len({arrival.tag for arrival in inbox.arrivals})
            parts.append(
                f"{inbox.name}: {first} first deliveries and {len(inbox.arrivals) - first} more "
                f"on {inbox.connection} connections"
            )
        return "; ".join(parts)
