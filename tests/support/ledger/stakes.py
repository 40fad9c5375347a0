"""What is known of a message at a place: a *stake*, which is one message at one incarnation of a place."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .messages import Message
from .words import WAITING, fits


@dataclass(slots=True)
class Count:
    """What the server has counted: at least, and at most."""

    least: int = 0
    most: int = 0

    def up(self) -> None:
        self.least, self.most = self.least + 1, self.most + 1

    def down(self, *, is_sure: bool) -> None:
        self.least, self.most = max(0, self.least - 1), max(0, self.most - is_sure)

    def anew(self) -> None:
        self.least = self.most = 0


class Ender(NamedTuple):
    """Somebody who has acked it."""

    by: str
    result: bytes | None
    expires: int | None
    """When the result may go."""
    is_former: bool = False
    """It is to be read again since. If it is not after all, that counts again."""


@dataclass(slots=True)
class Stake:
    message: Message
    may: frozenset[str] = frozenset({WAITING})
    tries: Count = field(default_factory=Count)
    """Deliveries that count toward the most that the place makes."""
    total: Count = field(default_factory=Count)
    """The same, requeued or not: what `attempt` shows."""
    returns: Count = field(default_factory=Count)
    """How often it was given back in order."""
    was_given: bool = False
    """It has been seen in somebody's hands."""
    not_before: int = 0
    """No delivery before then: a nack or the back-off has named it."""
    epoch: int = 0
    """How often the clock had been set back at that nack."""
    since: float = 0.0
    """When the last step was sent that has no answer (mono); a kill may undo it for `SURE_S`."""
    by: str = ""
    """Who was given it last."""
    lapses: float | None = None
    """When its lease is over (mono)."""
    ended: float | None = None
    """When it was over; it may go on for `Deliveries.grace`."""
    is_leased: bool = False
    """Whoever has or had it last leases, so no connection and no restart ends that."""
    extended_at: float = 0.0
    """When it was extended last (mono), ..."""
    former_lapses: tuple[float, ...] = ()
    """... and when it would have been over without that, and without others of that moment: a kill may undo
    them."""
    late: float = 0.0
    """By which it may end later, as kills have taken running time with them."""
    may_run: bool = False
    """Who had it at a kill may have it still, and the server may not know: the next delivery says so."""
    until: int = 0
    """The same in running time, which counts for what is leased after a restart."""
    wall_until: int = 0
    """The same by the wall clock, which no lease goes by."""
    former: frozenset[str] = frozenset()
    """The place was set back: what it was before that, until it is read again. A retry or a dead letter
    stands beside it until then."""
    former_due: int = 0
    """When that retry comes."""
    read_again: float = 0.0
    """When it was read again (mono); a kill may undo it, so below 0 it was perhaps not."""
    is_held_too: bool = False
    """Done by a late ack, while another has it in flight; that one's ack changes nothing."""
    number: int = 0
    """Deliveries that have been seen; it never starts again, so it names one."""
    is_read: bool = False
    """It has been in somebody's hands or is a retry, so it is not just unread."""
    stays: bool = False
    """A skip leaves it, for certain: it is a retry, or was in flight and is in nobody's hands."""
    is_exact: bool = False
    """`not_before` is the very time of its next try."""
    reason: str = ""
    """How the reason of its dead letter begins, if that is known."""
    may_be_nobodys: bool = False
    """A lease of it may have been answered to nobody: it lasts as long as any."""
    requeued_at: int = 0
    """It expires so long after this, if it was requeued."""
    is_head: bool = False
    """It was given, so of its key it goes before what was not."""
    is_in_line: bool = True
    """It has its turn among its key's: nobody has requeued it, nor was it out when the place was set back."""
    may_lead: bool = False
    """It was out when the place was set back, and a kill may have put it into its key's line again."""
    is_returned: bool = False
    """It was out at a restart, or given back, so it goes out again whatever holds its key."""
    is_released: bool = False
    """Dead, and its key goes on without it."""
    is_reported: bool = False
    given_at: float = 0.0
    """When it was given last (mono)."""
    acked_at: float = 0.0
    """When an ack was sent last that has no answer, or may not be read (mono)."""
    ack_read: float = 0.0
    """When an ack was sent that has been read for certain."""
    passed: str = ""
    """What is behind it in its key and was given since, as if it were over."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Tries that came to nothing: who had it, and the outcome; empty: any."""
    former_failures: list[tuple[str, str]] = field(default_factory=list)
    """Those before it was read again, which a kill may undo."""
    enders: list[Ender] = field(default_factory=list)
    """Who may have acked it since it was given last."""
    is_swept: bool = False
    """Its result may have gone, as its time was over."""
    was_done: bool = False
    """It has been done, before its place was set back."""
    past: list[str] = field(default_factory=list)
    """What has happened, for who has to understand a fault."""

    @property
    def was_finished(self) -> bool:
        return bool(self.former) and self.read_again <= 0


@dataclass(slots=True, eq=False)
class Place:
    """One incarnation of a session, group or endpoint. No two places of different kinds have one name."""

    kind: str
    name: str
    filter: str
    number: int
    since: int
    max_tries: int
    expiry: int | None
    """ms of running time with nobody there; None: it stays until it is deleted."""
    is_open: bool = True
    left_at: int = 0
    """Running time."""
    behind: frozenset[str] = frozenset()
    """Messages that were out when it was made."""
    stakes: dict[str, Stake] = field(default_factory=dict)
    backoff: tuple[int, ...] = ()
    """ms from a failed try to the next one, if that is known; the last one goes on."""
    most: int = 0
    """Messages of a key that may be out at a time; 0: any number."""
    waits_for_keys: bool = False
    """What was read may wait for its key, or for its turn among all, and is unread for all to see."""
    is_ordered: bool = False
    """The next of a key comes when all before it are done or dead."""
    on_dead_hold: bool = False
    """A dead letter holds its key."""
    held: set[str] = field(default_factory=set)
    """Keys that somebody holds."""
    passed_over: dict[str, list[int]] = field(default_factory=dict)
    """Of each sort: how many of the other one the last calls gave, none of which gave one of it."""

    keep: str = "none"
    """What stays of deliveries that are done."""
    others: list[str] = field(default_factory=list)
    """Further filters of a session, which have begun later."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}, incarnation {self.number}"

    def is_for(self, message: Message) -> bool:
        if self.kind == "endpoint":
            return message.to == self.name
        return any(fits(text, message.topic) for text in (self.filter, *self.others))


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A lease of a worker."""

    place: Place
    stake: Stake
    number: int
    """Which delivery, as the account counts them."""
    name: Any
    """By which the worker speaks of it."""
