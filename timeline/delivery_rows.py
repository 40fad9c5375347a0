"""Values of a delivery (deliveries.py): states, its row, what the cursor says, events and effects."""

from enum import Enum, auto
from typing import NamedTuple

from .position import START, Position


class State(Enum):
    UNREAD = 0
    OUT = auto()
    """In flight, or returned and not given again yet."""
    LEASED = auto()
    """In flight until the end of its lease, also while the server is down."""
    HANDED = auto()
    """In flight, handed over at QoS 2: only its member gets it again (MQTT-4.8.2), until that refuses it."""
    WAITING = auto()
    WITHHELD = auto()
    """Waits until its sender may send it again."""
    DEAD = auto()
    DROPPED = auto()
    DONE = auto()


class Effect(Enum):
    """A change to write with the row, or an action to take when the batch is durable."""

    RECORD = auto()
    """The message is written beside its row, if it is not there."""
    LATER = auto()
    """Nobody waits for it: it is written with the next cursor."""
    CURSOR = auto()
    """The cursor, without the flight, is in the batch."""
    NOTE = auto()
    """The cursor notes that it is done, as the reader, or its key, still comes to its root."""
    KEY_WAITS = auto()
    """It is the head of its key, which waits for its next try."""
    KEY_HELD = auto()
    """The key is held by this dead letter."""
    KEY_GOES_ON = auto()
    """It was the head of its key, and is no more."""
    NEXT_MEMBER = auto()
    """Whoever comes next is given it, before all else."""
    WHEN_DUE = auto()
    """It is given among the retries, from `at` on."""
    OBITUARY = auto()
    """A copy goes to `$dead`."""
    COUNT_DEAD = auto()
    COUNT_DROPPED = auto()
    REFUSED = auto()
    """Nothing has changed: what was asked for cannot be done."""


class Try(NamedTuple):
    """A failed try, as in docs/places.md; the last one of what is done is the good one."""

    at_ms: int
    by: str
    outcome: str
    reason: str
    held_ms: int = 0


class DeliveryRow(NamedTuple):
    """The row of a delivery, without its message."""

    state: State
    at: Position = START
    """Time of the next try, of the death, when it was done, or, if it is withheld, when it is given up."""
    attempts: int = 0
    """All tries."""
    counted: int = 0
    """Tries that count toward `max_attempts`."""
    reason: str = ""
    tries: tuple[Try, ...] = ()
    returns: int = 0
    keeper: str = ""
    running_ms: int = 0
    due_ms: int = 0
    """Since when its expiry counts; 0: since the message's own due."""
    replay: int = 0
    """Number of the last replay that offered it, when the row was written; 0: none."""


class Out(NamedTuple):
    """In flight, or returned and not given again yet. As the cursor has it: counts in all, with those of the
    row below it."""

    attempts: int = 1
    counted: int = 1
    returns: int = 0
    is_leased: bool = False
    is_held: bool = True
    """A member or the session has it; False: it was returned or left, and is given again."""
    is_handed: bool = False
    """Handed over at QoS 2: it is in the member's cursor too, so both go in one batch."""

    @property
    def given(self) -> int:
        """How often it was given."""
        return self.attempts + self.returns


class Seen(NamedTuple):
    """State of a root by the cursor."""

    out: Out | None = None
    is_ahead: bool = False
    """The reader, or its key, comes to it, and a subscription offers it there."""
    replay: int = 0
    """The highest number of a replay of such a subscription that began before the root."""
    done: int | None = None
    """`replay`, when it was noted as done ahead."""


class Case(NamedTuple):
    """Details of an event."""

    now: Position
    """Position of this batch: the time of a death, and the seq of a next try."""
    running_ms: int = 0
    due_ms: int = 0
    """The message's due time."""
    expires_ms: int = 0
    delay_ms: int | None = None
    """Delay of the next try. None: the back-off, or for PUT_OFF at once; NEVER: dead. Of what is withheld,
    until it is given up."""
    reason: str = ""
    by: str = ""
    outcome: str = "failed"
    held_ms: int = 0
    ended_ms: int = 0
    """When the try ended; 0: now."""
    lost: tuple[Try, ...] = ()
    """Tries of the flight before this one, whose connections were lost."""
    is_handed: bool = False
    """GIVE: at QoS 2."""
    is_retry: bool = False
    """GIVE: as it is due, not as the reader has come to it."""
    is_dead: bool = True
    """What is given up becomes a dead letter, for which there is room, or is dropped."""
    has_slice: bool = True
    """The slice of its root is there, so that it could be read again."""
    keeper: str = ""
    chance: float = 0.5
    """For the back-off, in [0, 1)."""
    row: DeliveryRow | None = None
    """COME, JOIN: as the other place had it."""


class Keep(Enum):
    """Which deliveries that are done keep their row."""

    NONE = 0
    FAILED = auto()
    """Those of which a try had failed."""
    ALL = auto()


def keeps(keep: Keep, *, failed: bool) -> bool:
    """Whether a delivery that is done keeps its row. `failed`: a try of it had."""
    return keep is Keep.ALL or (keep is Keep.FAILED and failed)


class Terms(NamedTuple):
    """What counts for this delivery at this moment; never stored with it."""

    is_session: bool = False
    max_attempts: int = 0
    backoff_ms: tuple[int, ...] = (1_000,)
    is_ordered: bool = False
    """It has an ordering key, and the group orders."""
    is_head: bool = False
    """It is the head of its key: out, or what the key waits for, or is held by."""
    dead_holds: bool = False
    """`on_dead` is "hold"."""
    has_room: bool = True
    """One more flight may be in nobody's hands."""
    keep: Keep = Keep.NONE


class Fate(NamedTuple):
    """What becomes of a delivery."""

    row: DeliveryRow | None
    out: Out | None = None
    effects: frozenset[Effect] = frozenset()


def state_of(row: DeliveryRow | None, seen: Seen) -> State:
    """Where a delivery stands."""
    out = seen.out
    if out is not None and (row is None or out.given > row.attempts + row.returns):
        held = State.LEASED if out.is_leased else State.OUT
        return State.HANDED if out.is_handed else held
    if row is not None and not (seen.is_ahead and row.replay < seen.replay):
        return row.state
    is_done = seen.done is not None and seen.done >= seen.replay
    return State.UNREAD if seen.is_ahead and not is_done else State.DONE


class Event(Enum):
    """What happens to a delivery; the table says in which states."""

    GIVE = auto()
    ACK = auto()
    LATE_ACK = auto()
    NACK = auto()
    """Also a member's that refuses what was handed over to it."""
    LAPSE = auto()
    RETURN = auto()
    PUT_BACK = auto()
    """It could not be given after all."""
    PUT_OFF = auto()
    """It can be given to nobody now: no member that is there may receive it."""
    LOST = auto()
    """The connection."""
    KILL = auto()
    """The server was away: it stopped, or was killed."""
    TOO_LARGE = auto()
    """For the packets that the client takes."""
    TRY = auto()
    BURY = auto()
    DROP = auto()
    REQUEUE = auto()
    SEND_AWAY = auto()
    """The letter is requeued to another place."""
    COME = auto()
    """The letter of another place: with all its tries before it."""
    MOVE = auto()
    """The retry goes to another place."""
    JOIN = auto()
    """The retry of another place: with its tries, and only where nothing of the message is."""
    RELEASE = auto()
    """The key that it holds."""
    SKIP = auto()
    EXPIRE = auto()
    WITHHOLD = auto()
    """Its sender may not send it now."""
    OWNER_BACK = auto()
    """Its sender may send it again."""
    BAR = auto()
    """It was withheld for too long, no subscription asks for it, or the place may not receive it."""
    UNREADABLE = auto()
    SLICE_GOES = auto()
    INHERIT = auto()
    """Its group ends, and the member that has it stays: it is the member's own from now on."""
    END_OF_PLACE = auto()
    EVICT = auto()
    """A dead letter, by a bound or its retention."""
