"""The account of messages: which there are, when each is due, and whether it counts as dispatched by now.

It knows the documentation and nothing of the code, and nothing of places: what becomes of a message there is
the account of deliveries, which holds this one.

Times are ms of the server's wall clock. It stands still but for walks and steps, so its bounds are known:
`low` before one, `high` behind it. `top` is the latest time that it has ever shown. What holds when it is
stepped, ahead or back:

    messages   None is given before the clock has shown its due since it was accepted. None is lost and none
               doubled: what was out by `top` stays out. A new message that is due between the clock and `top`
               waits for the clock, but for a step of a second, which is waited out.
    retention  is counted in running time (`ran`), which walks and real time move, and steps do not.
    schedules  None sends an instant twice, wherever the clock was meanwhile. Each goes on with the first
               instant after now that was not sent, and says so if that is not the next one of its rule.
    keys       One at a time: a key is given away when nothing of its message is undone.
"""

from dataclasses import dataclass

from .words import BOUND_MS, KEPT_MS, SLACK_MS, WAITED_OUT_MS, Book


@dataclass(slots=True)
class Message:
    id: str
    topic: str
    due: int
    at: int
    """Its place on the timeline: due, or the time at which it was accepted if that was later."""
    to: str = ""
    expires: int | None = None
    is_cancelled: bool = False
    epoch: int = 0
    """How often the clock had been set back when it was accepted."""
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


class Messages:
    def __init__(self, now: int, book: Book) -> None:
        self.book = book
        self.clock = Clock(now)
        self.by_id: dict[str, Message] = {}
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

    def is_early(self, message: Message, high: int) -> bool:
        """Whether nobody may have it yet, when the clock has shown no more than `high`."""
        return message.due > high or not self.clock.has_shown(message.due, message.epoch)

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
        message.epoch, message.at = clock.epoch, message.due
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

    # -- what is done with it

    def accepted(self, message: Message) -> bool:
        """Whether it is a new one."""
        if message.id in self.by_id:
            return False
        self.book.seen["accepted"] += 1
        self.by_id[message.id] = message
        self.put(message)
        return True

    def moved(self, message: Message, due: int) -> None:
        if due > self.clock.low:
            message.out_at = None
        message.due = due
        self.put(message)

    def not_cancelled(self, message: Message) -> None:
        """409: it counts as dispatched."""
        if not self.is_out(message, by=BOUND_MS):
            what = f"{message.id} is due at {message.due}, and it is {self.clock.high}"
            self.book.fault(4, "409 ahead of time", what)

    def not_found(self, message: Message) -> None:
        if self.is_ahead(message):
            what = f"{message.id} is due at {message.due}; GET answers 404"
            self.book.fault(1, "lost before its time", what)

    # -- schedules

    def accepted_of_schedule(self, message: Message, schedule: str) -> None:
        """Found by listing. If it went out late, nobody has seen when it was written."""
        if message.is_late:
            self.spared.add((schedule, message.due))
        elif (schedule, message.due) in self.fired:
            former = self.fired[schedule, message.due]
            self.book.fault(7, "fired twice", f"{message.id} of {schedule} at {message.due}, as {former}")
        if not message.is_late:
            self.fired[schedule, message.due] = message.id
        self.by_id[message.id] = message
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
