"""What both accounts say: the states of a delivery, what was found, and the figures of the documentation."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

WAITING, FLIGHT, DEAD, DONE, DROPPED = "waiting", "flight", "dead", "done", "dropped"
UNDONE = frozenset({WAITING, FLIGHT})
ANY = frozenset({WAITING, FLIGHT, DEAD, DONE, DROPPED})
SHOWN = {
    "in_flight": UNDONE,  # also what was given back and has not been sent anew
    "leased": frozenset({FLIGHT}),  # in flight, and whoever has it until when
    "waiting": frozenset({WAITING}),
    "retry": frozenset({WAITING}),
    "dead": frozenset({DEAD}),
    "done": frozenset({DONE, DROPPED}),
    "dropped": frozenset({DROPPED}),
}
"""The state of a delivery, as GET shows it, and what it means here."""
UNTOLD = "untold"
"""Outcome of a try that was no failure, and is counted: its place or slice went meanwhile."""
DAY = 86_400_000
NEAR_MS = 1_000
"""A time that is known is shown no farther off."""
IN_TURNS = 4
"""In so many messages, what comes in turns has come."""
KEPT_MS = 7 * DAY
"""Retention. A place that is behind for longer may have its messages buried."""
DEAD_MS = 29 * DAY
"""So long a dead letter is there at least."""
BOUND_MS = 2_000
"""So far ahead a message may count as dispatched after a start."""
HELD_S = 30
"""A member without an ack timeout has what it was given for so long after a start."""
RUN_S = 2.0
"""So much of its running time a server may forget with a kill: leases end later by that."""
WRITTEN_S = 0.5
"""So long after it was given, or extended, a lease over MQTT is on disk, also if the server is killed."""
SURE_S = 2.5
"""So long after it was sent, an ack without an answer of its own is on disk, also if the server is killed."""
BACKOFF_MAX = 4_320_000
"""The longest pause before a next try that nobody has named: an hour, and a fifth. What expires before that
is dead at once."""
FREE_RETURNS = 10
"""So many returns in order of one message are no tries."""
WAITED_OUT_MS = 1_000
"""A step back of so much is waited out."""
SLACK_MS = 60_000
"""Of real time, which is part of the running time and is known here only as of the last step."""


@dataclass(frozen=True, slots=True)
class Fault:
    rule: int
    kind: str
    what: str
    step: int = 0

    def __str__(self) -> str:
        return f"rule {self.rule}, {self.kind}: {self.what} (step {self.step})"


@dataclass(slots=True)
class Book:
    """What was found, and how much was looked at."""

    faults: list[Fault] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    step: int = 0
    tell: Callable[[Fault], object] = lambda _: None

    def fault(self, rule: int, kind: str, what: str) -> None:
        self.faults.append(Fault(rule, kind, what, self.step))
        self.tell(self.faults[-1])

    def heard(self, faults: Iterable[str]) -> None:
        """What others have found; each begins with its kind."""
        for text in faults:
            kind, _, what = text.partition(": ")
            self.fault(1, kind, what)


def fits(text: str, topic: str) -> bool:
    """Whether a topic filter matches, as MQTT says."""
    wanted, levels = text.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        w in ("+", level) for w, level in zip(wanted, levels, strict=True)
    )
