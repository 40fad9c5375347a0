"""What happens to a delivery, on its way to the writer, and what has become of it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from timeline.delivery_rows import Case, Event
from timeline.key_rows import NO_KEY
from timeline.position import START, MessageId, Position
from timeline.session import Flight

from ...engine.commit_hook import ignore
from ..place import Place, Rights
from ..subscriber import Subscriber


class Outcome(Enum):
    """What has become of a delivery."""

    AGAIN = auto()
    """It is tried again later: durable."""
    DEAD = auto()
    """It is a dead letter: durable."""
    DONE = auto()
    """It is done, late: durable."""
    GONE = auto()
    """There was nothing to end: it was no longer in flight, or done already, or nobody is to get it."""
    FAILED = auto()
    """It cannot be written now. What is in flight stays, and is tried again each second."""


Answered = Callable[[Outcome], None]
"""Called when the outcome is durable, or cannot be for now."""


MayMove = Callable[[bytes], bool]
"""Whether a message of that topic may move."""


@dataclass(slots=True, eq=False)
class Happening:
    """Something happens to a delivery, for which the writer is asked."""

    place: Place
    """Whose delivery it is."""
    event: Event
    root: Position
    shard: int
    case: Case
    answered: Answered = ignore
    flight: Flight | None = None
    """It ends with that, ..."""
    holder: Place | None = None
    """... which this session or group has: at QoS 2 the group's member."""
    is_sent: bool = True
    """Whether its last delivery has begun."""
    is_ended: bool = False
    """The client has ended the exchange: the packet id becomes free with the flight."""
    wrote: Position = START
    """Where its row stands in its list, by a batch that has failed. It may be stored."""
    is_try: bool = False
    """A failed try is counted with it."""
    message: MessageId | None = None
    """A late ack that names it so, ..."""
    member: Subscriber | None = None
    """... of this member; ..."""
    rights: Rights | None = None
    """... or of somebody with these rights; None: they allow it."""
    to: Place | None = None
    """Where a retry moves, ..."""
    may: MayMove | None = None
    """... if it may."""

    @property
    def owner(self) -> Place:
        """Whose cursor is written with it."""
        return self.holder or self.place

    @property
    def is_head(self) -> bool:
        """Whether the message is the head of its key, and nothing of that is given before it."""
        key = b"" if self.flight is None else self.flight.key
        is_of_key = key not in (b"", NO_KEY) and self.holder is self.place
        return is_of_key and self.place.session.order.rule.is_ordered
