"""What the clients of a server know: what they asked for, what was answered, what arrived; and what follows.

The server may die between a request and its answer; then the request was carried out whole or not at all, and
nobody knows which. So each letter has a set of dues that it may have, and a fate that is certain only when it
was answered. Everything that the server promised is checked against that, per session:

  - an answered letter that was not cancelled comes until the session has acked it, at least once;
  - a letter whose cancel was answered 204 never comes, before or after;
  - none comes before its due, by the wall clock that the server shares with us;
  - first deliveries are in position order, as far as positions are known (ids and ETags name them);
  - what was acked a good while before the server died does not come again.
"""

from dataclasses import dataclass, field

from timeline.position import MessageId, id_position

SURE_MS = 1_500
"""An ack this long before a kill is on disk: cursors are written every 100 ms, heartbeats every second."""
SOON_MS = 500
"""An ack this long before the end of its connection has been read."""


@dataclass
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


@dataclass
class Arrival:
    tag: str
    at_ms: int
    due_ms: int
    """As the delivery says; 0: it does not say."""
    connection: int
    attempt: int
    acked_ms: int = 0
    is_ack_read: bool = False
    """Its connection went on for a while after the ack."""


@dataclass
class Inbox:
    """All that one persistent session received, over all of its connections and the server's lives."""

    name: str
    arrivals: list[Arrival] = field(default_factory=list)
    connection: int = 0

    def closed(self, now_ms: int) -> None:
        """A connection has ended while the server lived."""
        for arrival in self.arrivals:
            if arrival.connection == self.connection and 0 < arrival.acked_ms <= now_ms - SOON_MS:
                arrival.is_ack_read = True


class Ledger:
    """Everything over all lives of one server."""

    def __init__(self) -> None:
        self.letters: dict[str, Letter] = {}
        self.inboxes: dict[str, Inbox] = {}
        self.kills_ms: list[int] = []
        self.faults: list[str] = []

    def letter(self, tag: str, topic: str, due_ms: int, request: str) -> Letter:
        letter = Letter(tag, topic, {due_ms} if due_ms else set(), request)
        self.letters[tag] = letter
        return letter

    def arrived(self, inbox: Inbox, tag: str, at_ms: int, due_ms: int, attempt: int) -> Arrival:
        """Note a delivery; what is wrong with it whatever comes later is a fault at once."""
        arrival = Arrival(tag, at_ms, due_ms, inbox.connection, attempt)
        inbox.arrivals.append(arrival)
        letter = self.letters.get(tag)
        if letter is None:
            self.faults.append(f"{inbox.name} got {tag!r}, which nobody sent")
        elif due_ms and at_ms < due_ms:
            self.faults.append(f"{inbox.name} got {tag} {due_ms - at_ms} ms early")
        return arrival

    def check(self) -> list[str]:
        """All faults."""
        faults = list(self.faults)
        for inbox in self.inboxes.values():
            faults += self.missing(inbox) + self._wrong(inbox) + self._disorder(inbox) + self._again(inbox)
        return faults

    def missing(self, inbox: Inbox) -> list[str]:
        """What it should have got by now and has not."""
        got = {arrival.tag for arrival in inbox.arrivals if arrival.acked_ms}
        return [
            f"{inbox.name} never got, or never again until it acked, {letter}"
            for letter in self.letters.values()
            if letter.is_acked and not letter.is_cancel_asked and letter.tag not in got
        ]

    def _wrong(self, inbox: Inbox) -> list[str]:
        faults = []
        for arrival in inbox.arrivals:
            letter = self.letters.get(arrival.tag)
            if letter is None:
                continue
            if letter.is_cancelled:
                faults.append(f"{inbox.name} got {letter}, which is cancelled: {arrival}")
            if arrival.due_ms and letter.dues and arrival.due_ms not in letter.dues:
                faults.append(f"{inbox.name} got {letter} with another due: {arrival}")
            if letter.dues and arrival.at_ms < min(letter.dues):
                faults.append(f"{inbox.name} got {letter} before its due: {arrival}")
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
                faults.append(f"{inbox.name} got {letter} after {before}")
            last, before = place, arrival.tag
        return faults

    def _again(self, inbox: Inbox) -> list[str]:
        """Deliveries of what had been acked before, for certain."""
        faults: list[str] = []
        done: dict[str, Arrival] = {}
        for arrival in inbox.arrivals:
            former = done.get(arrival.tag)
            if (
                former is not None
                and former.connection != arrival.connection
                and self._is_sure(former, arrival)
            ):
                faults.append(f"{inbox.name} got {arrival.tag} again: {former}, {arrival}")
            if former is not None and former.connection == arrival.connection:
                faults.append(f"{inbox.name} got {arrival.tag} twice on one connection: {former}, {arrival}")
            if former is None or arrival.acked_ms:
                done[arrival.tag] = arrival
        return faults

    def _is_sure(self, former: Arrival, arrival: Arrival) -> bool:
        if not former.acked_ms:
            return False
        kills = [at for at in self.kills_ms if former.acked_ms <= at <= arrival.at_ms]
        if kills:
            return former.acked_ms <= kills[0] - SURE_MS
        return former.is_ack_read

    def summary(self) -> str:
        """What there was to check."""
        letters = self.letters.values()
        parts = [
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
