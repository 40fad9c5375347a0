"""The contract of the log: records in one order, each written once, durable on a quorum before `append`
returns.

The records have the sequences 1, 2, 3, … A node leads from the record that it has *claimed*: the sequence
of that record is its *epoch*, and every later record up to the next claim is of this epoch:

    seq      1       2    3    4       5    6
    epoch    1       1    1    4       4    4
             claim             claim
             of A    A    A    of B    B    B

**The fence.** A record becomes `seq` only if `seq - 1` is the last one there, and only if that one is of
the same epoch, unless it is a claim itself. A still holds epoch 1 when B has claimed 4: its next append,
as 4, finds the place taken; had it read on and tried 7, it would find that 6 is of epoch 4. Both are
`Fenced`. No clock has a part in it.

**Unknown outcomes.** An engine may take a record and its answer be lost. `append` and `claim` settle that
themselves: they try again, and where the place turns out to be taken they look whose it is. Only where the
engine has not answered by the deadline do they raise LogDown; the record may then be there, not be there,
or come to be there later. Whoever goes on after it has two ways: the same call with the same bytes, as
often as it likes, which succeeds if any of them became that record; or giving up the epoch and reading.
Other bytes at the same place would be Fenced by the first.

**Reading** is gapless, or ends with an error: the log's end is asked of the engine's leader, every record
is chained to the one before it, and what is missing is Trimmed or Damaged, never passed over.

A call blocks, for `deadline` seconds at most. A Log is for one thread at a time; each thread opens one of
its own.
"""

from collections.abc import Iterator
from typing import Protocol


class Log(Protocol):
    """One opened log. Errors of every call: LogDown; of those that read: Damaged, UnknownVersion."""

    @property
    def largest(self) -> int:
        """Most bytes of `data` that one append takes."""

    def append(self, seq: int, epoch: int, data: bytes) -> None:
        """Return once `data` is durable on a quorum as record `seq`. Raises Fenced, TooLarge."""

    def claim(self, seq: int, node: str, url: str, *, has_base: bool = False) -> int:
        """Become the leader with record `seq`; gives the epoch, which is `seq`. Raises Fenced, TooLarge.

        `seq` is one more than the last record that this node has applied. `url`: where others send its
        clients; with an empty `node` nobody leads from here on, and whoever wants to may claim at once.
        `has_base`: the node's store had rows before the log had records. Raises Trimmed if the record before
        it is no longer there, Damaged if it never was.
        """

    def epoch_at(self, seq: int) -> int | None:
        """The epoch of record `seq`; None if it is trimmed or was never there."""

    def bounds(self) -> tuple[int, int]:
        """First and last sequence, as the engine's leader knows them; (1, 0) of an empty log."""

    def read(self, after: int) -> Iterator[tuple[int, int, bytes]]:
        """(seq, epoch, data) of every record later than `after`, in order, up to the last there is.

        A claim has `seq` for its epoch; `record.claim_of` reads its data. Raises Trimmed if `after + 1` is
        trimmed; Damaged for a gap, for changed bytes, and if the log ends before `after`.
        """

    def trim(self, upto: int) -> None:
        """Give up the records up to and with `upto`; the last one always stays, the next is chained to it."""

    def close(self) -> None: ...


class Clock(Protocol):
    """Time that only elapses, in seconds. The module `time` is one."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...
