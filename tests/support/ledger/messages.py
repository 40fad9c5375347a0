"""The account of messages: which were asked for, what was answered, and whether each counts as dispatched.

It knows the documentation and nothing of the code, and nothing of places: what becomes of a message there is
the account of deliveries, what came to a session that of arrivals. Each of them holds this one.

A server may die between a request and its answer. Then the request was carried out whole or not at all, and
nobody knows which: a message has its due as of the last answer and the *wishes* that have none, and may have
any of these. A fate is certain only when it was answered: 204 to a cancel, 200 to a move, 409 to either.

Times are ms of the server's wall clock. Where a test holds it, it stands still but for walks and steps, so
its bounds are known: `low` before one, `high` behind it. `top` is the latest time that it has ever shown.
What holds when it is stepped, ahead or back:

    messages   None is given before the clock has shown its due since that was asked for. None is lost and
               none doubled: what was out by `top` stays out. A new message that is due between the clock and
               `top` waits for the clock, but for a step of a second, which is waited out.
    retention  is counted in running time (`ran`), which walks and real time move, and steps do not.
    schedules  None sends an instant twice, wherever the clock was meanwhile. Each goes on with the first
               instant after now that was not sent, and says so if that is not the next one of its rule.
    keys       One at a time: a key is given away when nothing of its message is undone.
    retained   A topic has the last one that was answered, or one that was asked for later.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .words import BOUND_MS, KEPT_MS, SLACK_MS, WAITED_OUT_MS, Book

NOBODY_ASKED = -1


@dataclass(slots=True, eq=False)
class Message:
    """`id`: once it was answered. What was sent names it by its tag, the text of its payload."""

    id: str
    topic: str
    due: int
    """0: at once."""
    at: int = 0
    """Its place on the timeline: due, or the time at which it was accepted if that was later."""
    to: str = ""
    expires: int | None = None
    is_cancelled: bool = False
    epoch: int = NOBODY_ASKED
    """How often the clock had been set back when it was asked for."""
    is_now: bool = False
    """It was due when it was accepted, so it went out at once."""
    is_held: bool = False
    """The clock had been set back, so it waits until the wall clock shows its due."""
    is_late: bool = False
    """Nobody was to get it late, and it was; it is unread until it is passed over."""
    out_at: int | None = None
    """Running time when it went out, at the earliest."""
    latest: int = 0
    """Its place at the latest; of a schedule's, nobody has seen when it was written."""
    tag: str = ""
    request: str = ""
    """Which request brought it; all of one request or none."""
    wishes: list[tuple[int, int]] = field(default_factory=list)
    """Dues that were asked for and have no answer, and how often the clock had been set back then."""
    row: str = ""
    """Id of the row that it is in, as of the last answer."""
    is_accepted: bool = False
    is_cancel_asked: bool = False
    """And not refused."""
    said: set[int] = field(default_factory=set)
    """Which due those said who got it, or 0. If somebody did, no cancel may be answered with 204."""
    is_excused: bool = False
    """It came when the server could note nothing, so that it may."""
    key: str = ""
    """Its ordering key."""
    seq: int = 0
    """Messages of one `at` come as they were accepted, or moved there."""

    @property
    def dues(self) -> set[int]:
        """Which due it may have."""
        return {self.due, *(due for due, _ in self.wishes)}

    @property
    def is_sure(self) -> bool:
        """It is stored for certain, and nobody has taken it back."""
        return self.is_accepted and not self.is_cancel_asked

    @property
    def place(self) -> tuple[int, int] | None:
        """Its position, if that is known: an id begins with its time, and ends with its seq."""
        return None if self.wishes or not self.row else (int(self.row[:12], 16), int(self.row[-12:], 16))

    def __str__(self) -> str:
        asked = "".join(f" or {due}" for due, _ in self.wishes)
        return f"{self.tag or self.id} of {self.topic}, due {self.due}{asked}"


class Clock:
    """What the server's clock has shown, and how long the server has run."""

    def __init__(self, now: int) -> None:
        self.low = self.high = now
        self.shown_by_epoch = [now]
        """The latest time that the clock has shown, since each step back."""
        self.mono = 0.0
        """Real time, seconds."""
        self.walked = 0
        """ms of running time that walks of the clock have made."""

    @property
    def top(self) -> int:
        """The latest time that it has ever shown."""
        return max(self.shown_by_epoch)

    @property
    def ran(self) -> int:
        """Running time of the server, ms: at least, but for what passes in this step."""
        return self.walked + round(1_000 * self.mono)

    @property
    def epoch(self) -> int:
        """How often it was set back."""
        return len(self.shown_by_epoch) - 1

    def has_shown(self, time: int, epoch: int) -> bool:
        """Whether it has been there since it was set back so often."""
        return time <= max(self.shown_by_epoch[epoch:])

    def advance(self, to: int) -> None:
        self.high = max(to, self.high)
        self.shown_by_epoch[-1] = max(to, self.shown_by_epoch[-1])

    def set_back(self, now: int) -> None:
        self.shown_by_epoch.append(now)
        self.low = self.high = now

    def shows(self, now: int) -> None:
        """It was looked at."""
        if now < self.shown_by_epoch[-1]:
            self.set_back(now)
        else:
            self.advance(now)
            self.low = self.high


class Messages:
    def __init__(self, now: int = 0, book: Book | None = None) -> None:
        self.book = book or Book()
        self.clock = Clock(now)
        self.by_id: dict[str, Message] = {}
        """Those that were answered."""
        self.by_tag: dict[str, Message] = {}
        """Those that were asked for."""
        self.kept: dict[str, tuple[int, int]] = {}
        """By topic, the number of the retained message that was answered last, and asked for last."""
        self.count = 0
        """Places on the timeline that were given out."""
        self.listed_at = 0
        """Running time when all messages of schedules were known: those that are not are from after that."""
        self.solo: dict[str, Message] = {}
        """By key, the message that has it: one at a time."""
        self.fired: dict[tuple[str, int], str] = {}
        """Of each schedule: the instants of its messages, and which message that is."""
        self.spared = set[tuple[str, int]]()
        """Instants that may be sent, or count as sent."""

    # -- where it stands

    def is_out(self, message: Message, by: int = 0) -> bool:
        """Whether it counts as dispatched, or will when the clock has gone on by so much."""
        if message.is_now:
            return True
        if message.is_held:
            is_shown = self.clock.has_shown(message.due, message.epoch)
            return is_shown or message.due <= self.clock.high + by
        return message.at <= self.clock.top + by

    def is_ahead(self, message: Message) -> bool:
        return not message.is_cancelled and not self.is_out(message)

    def is_early(self, message: Message, due: int, high: int | None = None) -> bool:
        """Whether nobody may have it yet who says that it was due then, or 0: does not say it.

        `high`: the clock has shown no more.
        """
        dues = [one for one in ((message.due, message.epoch), *message.wishes) if due in (0, one[0])]
        top = self.clock.top if high is None else high
        return not any(one <= top and self.clock.has_shown(one, epoch) for one, epoch in dues)

    def has_expired(self, message: Message) -> bool:
        return message.expires is not None and self.clock.has_shown(
            message.due + message.expires, message.epoch
        )

    def age(self, message: Message) -> int:
        """For how long it may have been out, ms of running time."""
        return 0 if message.out_at is None else self.clock.ran - message.out_at

    def is_old(self, message: Message) -> bool:
        """Retention may have passed it."""
        return self.age(message) > KEPT_MS - SLACK_MS

    def put(self, message: Message) -> None:
        """Where it lies: docs/concepts.md, when the clock is wrong."""
        clock = self.clock
        self.count += 1
        message.at, message.seq = message.due, self.count
        message.is_now = message.due <= clock.low
        message.is_held = False
        if message.is_now:
            message.at = clock.top + 1  # behind what has been dispatched, and due now
        elif message.due <= clock.top:
            message.is_held = clock.top - clock.low > WAITED_OUT_MS
            message.at = message.due if message.is_held else clock.top + 1

    def goes_out(self, message: Message) -> bool:
        """Whether it is out, noting since when."""
        if message.is_cancelled or not self.is_out(message):
            return False
        if message.out_at is None:
            message.out_at = self.clock.ran
            if message.is_held:  # it lies where the clock has ever been, not where it is due
                message.latest = self.clock.top + 1
        return True

    # -- what is asked for

    def ask(self, tag: str, topic: str, due: int, request: str = "") -> Message:
        """A message is on its way to the server."""
        message = Message("", topic, due, epoch=self.clock.epoch, tag=tag, request=request or tag)
        self.by_tag[tag] = message
        return message

    def wish(self, message: Message, due: int) -> None:
        """It is to be due then. Until that is answered it may be so, or as before."""
        message.wishes.append((due, self.clock.epoch))

    def _granted(self, message: Message, due: int) -> int:
        """That wish is answered; how often the clock had been set back when it was said."""
        found = next((one for one in message.wishes if one[0] == due), None)
        if found is None:
            return self.clock.epoch
        message.wishes.remove(found)
        return found[1]

    def came(self, message: Message, due: int) -> None:
        """Somebody got it, who says that it was due then, or 0."""
        message.said.add(due)
        self._look(message)

    def _look(self, message: Message) -> None:
        """Whether it may have had the dues that were said."""
        wrong = message.said - message.dues - {0}
        if wrong and message.due and not message.is_excused:
            message.said -= wrong
            self.book.fault(3, "strange", f"somebody got {message}, said to be due {wrong}")

    # -- what is answered

    def accepted(self, message: Message, name: str = "", row: str = "") -> bool:
        """Whether it is a new one. `name`: its id; a plain publish has none that anybody is told."""
        self._learn(message, name)
        message.row = row or name or message.row
        if self.by_id.get(message.id, message).is_accepted:
            return False
        self.book.seen["accepted"] += 1
        message.is_accepted = True
        self._learn(message, message.id)
        if message.epoch == NOBODY_ASKED:
            message.epoch = self.clock.epoch
        self.put(message)
        return True

    def named(self, tag: str, name: str, due: int) -> Message | None:
        """Which message that is, under a tag that may be used again when its first message was dropped."""
        message = self.by_id.get(name) or self.by_tag.get(tag)
        if message is None or not name or message.id in ("", name):
            return message and self._learn(message, name)
        other = self.ask(tag, message.topic, due, message.request)
        other.epoch, other.wishes, message.wishes = self._granted(message, due), message.wishes, []
        return self._learn(other, name)

    def _learn(self, message: Message, name: str) -> Message:
        if name:
            message.id = name
            self.by_id.setdefault(name, message)
        return message

    def moved(self, message: Message, due: int, row: str = "") -> None:
        """200, or as GET shows it if the answer was lost."""
        if message.is_cancelled:
            self.book.fault(4, "moved after a cancel", f"{message}: the cancel was answered 204")
        if due > self.clock.low:
            message.out_at = None
        message.due, message.epoch, message.row = due, self._granted(message, due), row
        self.put(message)
        self._look(message)

    def not_moved(self, message: Message, due: int) -> None:
        """409."""
        self._granted(message, due)
        self._look(message)

    def cancelled(self, message: Message) -> None:
        """204."""
        message.is_cancelled = message.is_cancel_asked = True
        if message.said and not message.is_excused:
            self.book.fault(4, "cancelled after it was given", f"{message}: 204, and somebody got it")

    def not_cancelled(self, message: Message) -> None:
        """409: it counts as dispatched."""
        message.is_cancel_asked = message.is_cancelled
        ahead = self.clock.top + BOUND_MS
        if not self.is_out(message, by=BOUND_MS) and all(due > ahead for due, _ in message.wishes):
            what = f"{message} is due at {message.due}, and it is {self.clock.high}"
            self.book.fault(4, "409 ahead of time", what)

    def not_found(self, message: Message) -> None:
        if self.is_ahead(message):
            what = f"{message.id} is due at {message.due}; GET answers 404"
            self.book.fault(1, "lost before its time", what)

    # -- what a start finds

    def stored(self, there: Counter[str], asked: Iterable[Message]) -> None:
        """Each request is there whole, or, if it was not answered, perhaps not at all. `there`: by tag."""
        for tag, count in there.items():
            if count > 1:
                self.book.fault(2, "doubled", f"{count} messages {tag} are stored")
        requests: dict[str, list[Message]] = {}
        for message in asked:
            if message.is_cancelled and message.tag in there:
                self.book.fault(4, "there after a cancel", f"{message}")
            requests.setdefault(message.request, []).append(message)
        for request, messages in requests.items():
            sure = [one for one in messages if not one.is_cancel_asked]
            found = sum(one.tag in there for one in sure)
            if found not in (0, len(sure)) or (not found and any(one.is_accepted for one in sure)):
                self.book.fault(1, "halved", f"{found} of {len(sure)} messages of {request} are stored")

    def listed(self, states: Mapping[str, str]) -> None:
        """All that is there, by id."""
        for message in self.by_id.values():
            state = states.get(message.id, "gone")
            fates = ("pending", "dispatched", *(() if message.is_sure else ("cancelled",)))
            if message.is_cancelled and state != "cancelled":
                self.book.fault(4, "there after a cancel", f"{message} is {state}")
            elif message.is_accepted and state not in fates:
                self.book.fault(1, "lost", f"{message} is {state}")

    def retained(self, topic: str, number: int) -> None:
        """0: nothing."""
        self.book.seen["retained"] += 1
        answered, asked = self.kept.get(topic, (0, 0))
        if not answered <= number <= asked:
            what = f"{number} of {topic}, answered {answered}, asked for {asked}"
            self.book.fault(1, "retained lost", what)

    # -- schedules

    def fires(self, schedule: str, instant: int, key: str) -> None:
        """There is a message for it, perhaps one that was there before."""
        former = self.fired.setdefault((schedule, instant), key)
        if former != key:
            self.fired[schedule, instant] = key
            self.book.fault(7, "fired twice", f"{key} of {schedule} at {instant}, as {former}")

    def accepted_of_schedule(self, message: Message, schedule: str) -> None:
        """Found by listing. If it went out late, nobody has seen when it was written."""
        if message.is_late:
            self.spared.add((schedule, message.due))
        else:
            self.fires(schedule, message.due, message.id)
        self.by_id[message.id] = message
        message.epoch = self.clock.epoch
        self.put(message)
        self.goes_out(message)
        if message.is_now:  # or long ago
            message.at, message.latest = message.due, message.at
            message.out_at = self.listed_at

    def not_fired(self, schedule: str, key: str) -> None:
        """Cancelled, which counts as sent, or taken back or dropped because it was late, which does not."""
        for instant in [one for one, its in self.fired.items() if its == key]:
            del self.fired[instant]
            self.spared.add(instant)

    def goes_on(self, schedule: str, following: int, every: int, *, is_told: bool) -> None:
        """Its next instant is the first one after now that was not sent."""
        if (schedule, following) not in self.fired:
            return  # moved, or not listed yet
        first, was_sent = following, False
        while first - every > self.clock.high + WAITED_OUT_MS:
            first -= every
            key = self.fired.get((schedule, first))
            was_sent |= key is not None and self.is_out(self.by_id[key]) and self.by_id[key].due == first
            if key is None and (schedule, first) not in self.spared:
                what = f"{first} of {schedule}, before {following}"
                self.book.fault(7, "an instant is left out", what)
                return
        if was_sent and not is_told:
            what = f"{schedule} until {following}, and it is {self.clock.high}"
            self.book.fault(7, "silent without a word", what)

    def forgotten(self, schedule: str) -> None:
        """Deleted, or resumed from now: what it sent does not count any more."""
        self.fired = {
            one: key for one, key in self.fired.items() if one[0] != schedule or self._waits(one, key)
        }

    def _waits(self, instant: tuple[str, int], key: str) -> bool:
        """Pending, and nobody has moved it: it stays, or is seen as cancelled."""
        message = self.by_id[key]
        return self.is_ahead(message) and message.due == instant[1]

    # -- keys of one at a time

    def key_given(self, key: str, message: Message, *, was_taken: bool) -> None:
        """A new message has it. `was_taken`: something of the former one was undone for certain."""
        self.book.seen["keys given"] += 1
        if was_taken:
            self.book.fault(7, "a key is given away", f"{key} to {message.id}, from {self.solo[key].id}")
        self.solo[key] = message

    def key_kept(self, key: str, name: str, *, was_free: bool) -> None:
        """The message that is there already has it."""
        self.book.seen["keys kept"] += 1
        former = self.solo.get(key)
        if former is None or former.id != name:
            self.book.fault(7, "another has the key", f"{key}: {name}, and it was given to {former}")
        elif was_free:
            self.book.fault(7, "a key is kept", f"{key} by {name}, of which nothing is undone")
