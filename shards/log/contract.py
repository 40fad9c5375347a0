"""The contract of the log: records in one order, each written once, durable on a quorum before `append`
returns.

The records have the sequences 1, 2, 3, … A node leads from the record that it has *claimed*. The sequence of
that record is its *epoch*; every later record up to the next claim has this epoch:

    seq      1       2    3    4       5    6
    epoch    1       1    1    4       4    4
             claim             claim
             of A    A    A    of B    B    B

**The fence.** A record becomes `seq` only if `seq - 1` is the last record, and has the same epoch or the new
record is a claim. Say A still holds epoch 1 when B has claimed 4. A's next append, as 4, finds the place
taken. Had A read on and tried 7, it would find that 6 has epoch 4. Both raise `Fenced`. No clock is involved.

**Unknown outcomes.** An engine may take a record while its answer is lost. `append` and `claim` resolve that
themselves: they try again, and if the place is taken they look whose record it is. They raise LogDown only if
the engine has not answered by the deadline. The record may then be there, be missing, or appear later. After
LogDown the caller of `append` can repeat the call with the same bytes, as often as it likes: it succeeds if
any of them became that record. Or it can give up the epoch and read. Other bytes at the same place would be
Fenced by the first.

**Reading** is gapless, or ends with an error: the engine's leader says where the log ends, every record is
chained to the one before it, and a missing record raises Trimmed or Damaged and is never skipped. Only what
is no record of this timeline is passed over, if the chain fits across it (chain.py).

A call blocks for at most `deadline` seconds. A Log is for one thread at a time; each thread opens its own.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from .chain import Strays
from .engine import LogState, Origin
from .record import Seal

Write = Callable[[], None]
Through = Callable[[Write], None]
"""Calls a write into the log: what succeeds proves that this node leads."""


def without_lease(write: Write) -> None:
    """A `Through` of who holds no lease."""
    write()


class Log(Protocol):
    """One opened log. Errors of every call: LogDown, Unfit; of those that read: Damaged, UnknownVersion,
    OtherKey."""

    @property
    def at(self) -> Seal:
        """The seal of the record that was read or written here last."""

    def stand(self, seal: Seal, *, is_last: bool = False) -> None:
        """Continue behind a record that the caller has, as its store names it. What is read next must be
        chained to it, and it need not be in the log any more. Without this the log looks it up. `is_last`: no
        node has a record behind it, so that none was trimmed there, and none is hidden."""

    @property
    def strays(self) -> Strays:
        """Messages that were passed over since the log was opened, since they are no records."""

    @property
    def is_behind(self) -> bool:
        """Whether the last read was ended by its time, or had only what was pushed. The next one goes on
        there."""

    @property
    def passed(self) -> int:
        """The place up to which there are only messages that are no records behind the record at `at`."""

    @property
    def is_doubtful(self) -> bool:
        """Whether a record may be hidden behind the last one that was read: a claim there is refused."""

    @property
    def origin(self) -> Origin:
        """What the log was made for."""

    def begin(self, seal: Seal, origin: Origin, last: int = 0, beyond: int = 0) -> None:
        """Make the log, or empty it, and go on behind the record that `seal` names, with a claim that nobody
        leads. Whatever else the log had is lost. At ORIGIN a new log stays empty. `last`: its last place when
        this was decided; 0: it was not there. `beyond`: the claim comes behind this place. Raises Fenced if
        another node has written since."""

    def check_key(self, claim: bytes, seal: Seal) -> None:
        """Raise OtherKey unless the claim, of the epoch of `seal`, was made with a key of this cluster."""

    @property
    def reached(self) -> int:
        """The place of the record that was read or written here last, also of a part of a group."""

    def append(
        self,
        seq: int,
        epoch: int,
        data: bytes,
        through: Through = without_lease,
    ) -> None:
        """Return once `data` is durable on a quorum as record `seq`, or as several from there on, which are
        read as one. `through` calls each write. Raises Fenced.
        """

    def send(self, seq: int, epoch: int, data: bytes) -> bool:
        """Have `data` come behind all that was sent and is not settled, as an `append` that is not waited
        for. False: it cannot be sent now; it can be appended once all is settled.

        `seq`: one more than the last record that is settled. Raises Fenced.
        """

    def settle(self) -> bool:
        """Wait for the oldest that was sent. Whether it is durable on a quorum now; False: nudged. Raises as
        `append` does. All that was sent then has an unknown outcome, and none is a record without those in
        front of it."""

    def nudge(self) -> None:
        """Have a thread that waits in `settle` or for a push return soon. From any thread."""

    def claim(
        self,
        seq: int,
        node: str,
        url: str,
        *,
        timeline: str = "",
        has_base: bool = False,
    ) -> int:
        """Become the leader with record `seq`. Returns the epoch, which is `seq`, or more where strays are
        passed over. Raises Fenced.

        `seq` is one more than the last record that this node has applied. `url`: where other nodes redirect
        clients. With an empty `node` nobody leads from here on, and any node may claim at once; `url` is then
        the node that is to be the first to do so. `has_base`: the node's store had rows before the log had
        records. Raises Doubtful if a record may be hidden behind the last one here, Trimmed if that is no
        longer there, Damaged if it never was.
        """

    def seal_at(self, seq: int) -> Seal | None:
        """The seal of record `seq`; None if it is trimmed or never existed."""

    def bounds(self) -> tuple[int, int]:
        """First and last sequence, as the engine's leader knows them; (1, 0) of an empty log."""

    def state(self) -> LogState:
        """The same, with the bytes that the log takes and may take, and the time at its server."""

    def limit(self, wanted_bytes: int) -> None:
        """Set a bound of these bytes if there is none and the engine has bounds."""

    def read(
        self, after: int, for_s: float | None = None, hear_s: float = 0.0
    ) -> Iterator[tuple[int, int, bytes]]:
        """(seq, epoch, data) of every claim and group later than `after`, in order, up to the last whole one.
        `seq`: of its last record. `for_s`: end after this time, although there is more: strays may come for
        ever. Trimmed records are passed over where the first one that is left is chained to the caller's.
        `hear_s`: if the engine pushes records, wait so long for one, and read only what was pushed.

        A claim has its own `seq` as epoch; `record.claim_of` reads its data. Raises Trimmed if `after + 1` is
        trimmed; Damaged for a gap, for changed bytes, and if the log ends before `after`; Unchained for a
        record that does not follow `after`.
        """

    def trim(self, upto: int) -> None:
        """Delete the records up to and including `upto`. The last record always stays: the next is chained to
        it."""

    def close(self) -> None: ...


class Clock(Protocol):
    """Time that only elapses, in seconds. The module `time` is one."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...
