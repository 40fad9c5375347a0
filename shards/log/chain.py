"""A place in the log, and what may stand behind it.

    last    the last whole record, a claim or a group: up to there the caller has the log
    link    the record that the next one is chained to: `last`, or a part of a group that is not whole yet
    next    where the next one is looked for

What stands at `next` is one of these:

    a frame chained to `link`, of its epoch or a claim    the next record
    bytes that name this place, or `link`                 Damaged: a record of ours has changed
    a frame chained to another record                     Unchained: records are missing, or it is another log
    a claim without a MAC by our keys                     OtherClusterKey
    a frame sent ahead, and not chained to what stands    *void*: it is passed over
    directly before it
    anything else                                         a *stray*: it is passed over

A stray is any message that somebody else has put there (`nats pub`). Say somebody publishes `hello`, and the
leader's next record comes to stand at 7:

    seq       4     5       6        7
              A <─────────────────── A       7 is chained to 5's digest: all pass over 6
                    A <───┘ hello

**Why that loses nothing.** If 6 were a record after all, rotten beyond recognition, then 7 would be chained
to it, and be Unchained here. Who writes 7 asks the engine's leader what 6 is, and passes over nothing that
names the place. A node that has read another 6 finds 7 Unchained, and says so.

**Void.** A leader sends 7 before it knows that 6 is in the log. Say another node's claim takes that place, or
a stray does:

    seq       5     6       7        8
              A <── B       A        B        7 was sent ahead, for behind A's 6
              A   hello     A        A        A's 6 was refused: A writes both again, from 8 on

The engine compares places only, so it takes A's 7. A record sent ahead names the one that was sent for the
place directly before. If another frame of ours stands there, the named one never became a record. So this one
was never acknowledged, and all pass over it. Behind a stray a reader passes over it too, and decides nothing
by that: a record behind it that is chained to it is Unchained, and the stray was a record, now rotten. Who
claims there cannot know, and does not before all nodes have said that they have no more; who sent it does.

**Trimmed.** A full log of strays alone is trimmed whole. A node that has read them goes on behind them. One
that was started since cannot know what they were, and passes over them once all nodes have said the same.

**Half a group.** Its leader was fenced, or killed. The next claim is chained to the last part; the parts are
dropped, by all alike.

**Another key.** A claim whose MAC does not fit is not passed over. It is chained to our record, so it is most
likely by a node of ours that was given its new key too early, and what it acknowledged must not be lost. So a
node with another key reads nothing, and never writes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .errors import Damaged, OtherClusterKey, Unchained, UnknownVersion
from .record import Record, Seal, follows, is_of, is_signed, opened


class Strays(NamedTuple):
    """Messages that are no records: how many were passed over, the first and the last place."""

    many: int
    first: int
    last: int


NONE = Strays(0, 0, 0)


class Chain:
    """The place behind one record, moved on by frames."""

    def __init__(self, last: Seal, keys: Sequence[str], strays: Strays = NONE) -> None:
        """`last`: its digest may be unknown; then any record follows. `keys`: of the cluster."""
        self.last = self.link = last
        self.next = last.seq + 1
        self.strays = strays
        self.is_doubtful = False
        """Whether a void record behind a stray was passed over since `link`."""
        self.is_last = False
        """Whether no node has a record behind `last`."""
        self._is_behind_stray = False
        self._keys = keys
        self._parts: list[bytes] = []

    def rewind(self) -> None:
        """Back to the end of the last whole record, if parts of another follow."""
        if self.link != self.last:
            self.link, self.next = self.last, self.last.seq + 1
            self._parts = []
            self.is_doubtful = self._is_behind_stray = False

    def judged(self, frame: bytes) -> Record | None:
        """The next record, if the frame at `next` is it; None: a stray, or void. Raises Damaged, Unchained,
        OtherClusterKey, UnknownVersion."""
        seq, link = self.next, self.link
        try:
            record = opened(frame, seq)
        except Damaged:
            if is_of(frame, seq, link):
                raise
            return None
        if link.digest and not follows(record, link):
            if record.is_ahead:
                return None
            raise Unchained(f"record {seq} of the log does not continue record {link.seq}")
        if record.seal.epoch == seq and not is_signed(record.data, seq, self._keys):
            raise OtherClusterKey(f"the claim at record {seq} of the log is signed with another cluster.key")
        return record

    def skip(self, frame: bytes) -> bool:
        """Go on behind a stray or a void record; returns whether it is void."""
        is_void = _is_void(frame, self.next)
        if is_void:
            self.is_doubtful = self.is_doubtful or self._is_behind_stray
        else:
            many, first, last = self.strays
            if self.next > last:
                self.strays = Strays(many + 1, first or self.next, self.next)
        self._is_behind_stray = not is_void
        self.next += 1
        return is_void

    def step(self, record: Record) -> Sequence[bytes]:
        """Go on behind the next record. Returns the parts of the claim or group that ends with it; none if it
        goes on."""
        seal = record.seal
        self.link, self.next = seal, seal.seq + 1
        self.is_doubtful = self._is_behind_stray = self.is_last = False
        if seal.epoch == seal.seq:
            self._parts = []
        parts = self._parts
        parts.append(record.data)
        if record.is_part:
            return ()
        self.last, self._parts = seal, []
        return parts


def _is_void(frame: bytes, seq: int) -> bool:
    """Whether what is passed over at `seq` is a record that was sent ahead."""
    try:
        return opened(frame, seq).is_ahead
    except (Damaged, UnknownVersion):
        return False
