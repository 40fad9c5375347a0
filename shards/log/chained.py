"""The log of group commits: records in one order, each written once, durable on a quorum before `append`
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

**Writing.** An engine can only append frames. The frame of `seq` needs the digest of the frame before it.
That is known if it was written or read here last; otherwise it is read. With it comes that record's epoch, so
the fence has two halves: this file compares the epoch, against a record that can no longer change, and the
engine decides that the record is still the last.

The rest is one loop. It tries `put` until it succeeds or the place is taken. After no answer it tries again
with the same bytes, which is harmless: whichever comes first takes the place.

    put 7 ──> done                                        return
          ──> no answer (it was stored, its ack was lost)
    put 7 ──> taken;  fetch 7: our bytes                  confirm, return
                               another record             Fenced
                               strays (chain.py)          put behind them
                               nothing: decided, but not yet readable; or unknown to this server: again
          ──> no answer until the deadline                LogDown

Our own bytes are recognised by the frame's digest, which covers (seq, epoch) and a claim's nonce. `confirm`
exists for engines in which a record can be seen before a quorum has it (PostgreSQL, after a crash of the
primary).

**Parts.** A large group is several records, each with a deadline of its own. It is read as a whole, or not at
all: what its leader left unfinished is dropped at the next claim.

**Patience.** Each try gets a quarter of the deadline, 2 s at most, and a second for each MiB. The server
asked may hang while another would answer, and a call that waits for a killed server finds the new leader only
by its next try.

**Where it stands.** A store has the seal of the last record that it applied, and a log begins there: what
follows is chained to that record, whether the log still has it or not. chain.py says what follows.

**Reading** is gapless, or ends with an error: the engine's leader says where the log ends, every record is
chained to the one before it, and a missing record raises Trimmed or Damaged and is never skipped. Only what
is no record of this timeline is passed over, if the chain fits across it (chain.py). It asks a near server,
or listens to it. It may be behind, or have a damaged copy. From a missing or wrong record on, and from a
stray on, a batch is asked for again with `is_sure`. A read fetches up to BATCH frames at a time, fewer if
they are large. Without a seal it starts with the record before the first wanted one, so that the first link
is checked too. The engine's leader says where the log ends. A newly elected leader may not know the newest
records yet, so records that seem lost are asked for again until the deadline.

**A log that is begun anew** has a claim first, chained to the last record that is left in a store. Its place
may be further on: whoever has that last record lacks nothing, as the digest proves.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from .chain import Chain, Strays
from .engine import Clock, Engine, LogState, NoAnswer, Origin, Taken
from .errors import (
    Damaged,
    Doubtful,
    Fenced,
    LogDown,
    LogError,
    NoLog,
    OtherClusterKey,
    Trimmed,
    Unchained,
    Unfit,
)
from .flight import SLOWEST, Flight
from .record import (
    ORIGIN,
    Claim,
    Record,
    Seal,
    claim_data,
    claim_of,
    digest_in,
    follows,
    frame_of,
    is_signed,
    opened,
    part_bytes,
    signed,
)

log = logging.getLogger(__name__)

PAUSE_S = 0.05
"""Pause between two tries."""
TRIES = 4
PATIENCE_S = 2.0
"""Maximum time of a try without many bytes; it is a quarter of the deadline."""
BATCH = 16
BATCH_BYTES = 1 << 20
"""Bytes of frames fetched at a time, estimated from the largest of the frames before."""

T = TypeVar("T")
Through = Callable[[Callable[[], None]], None]
"""Calls a write into the log: what succeeds proves that this node leads."""


def without_lease(write: Callable[[], None]) -> None:
    """A `Through` of who holds no lease."""
    write()


class ChainedLog:
    """One opened log. For one thread at a time; each thread opens its own.

    Errors of every call: LogDown, Unfit; of those that read: Damaged, UnknownVersion, OtherClusterKey.
    """

    def __init__(self, engine: Engine, clock: Clock, deadline_s: float, keys: Sequence[str]) -> None:
        """`engine`: connected, unless to `begin` a log. `deadline_s`: of each call. `keys` of the cluster:
        claims are made with the first, and read with any."""
        self._engine = engine
        self._clock = clock
        self._deadline_s = deadline_s
        self._keys = keys
        self._chain = Chain(ORIGIN, keys)
        self.is_behind = False
        """Whether the last read was ended by its time, or had only what was pushed. The next one goes on
        there."""
        self._flight = Flight(engine, clock, _patience_s(deadline_s), self._write)

    @property
    def at(self) -> Seal:
        """The seal of the record that was read or written here last."""
        return self._chain.last

    @property
    def reached(self) -> int:
        """The place of the record that was read or written here last, also of a part of a group."""
        return self._chain.link.seq

    @property
    def strays(self) -> Strays:
        """Messages that were passed over since the log was opened, since they are no records."""
        return self._chain.strays

    @property
    def passed(self) -> int:
        """The place up to which there are only messages that are no records behind the record at `at`."""
        chain = self._chain
        return chain.last.seq if chain.is_doubtful or chain.link != chain.last else chain.next - 1

    @property
    def is_doubtful(self) -> bool:
        """Whether a record may be hidden behind the last one that was read: a claim there is refused."""
        return self._chain.is_doubtful

    @property
    def origin(self) -> Origin:
        """What the log was made for."""
        return self._engine.origin

    def begin(self, seal: Seal, origin: Origin, last: int = 0, beyond: int = 0) -> None:
        """Make the log, or empty it, and go on behind the record that `seal` names, with a claim that nobody
        leads. Whatever else the log had is lost. At ORIGIN a new log stays empty. `last`: its last place when
        this was decided; 0: it was not there. `beyond`: the claim comes behind this place. Raises Fenced if
        another node has written since."""
        chain = self._chain = Chain(seal, self._keys)
        is_there = True
        try:
            first, now = self.bounds()
        except NoLog:
            is_there, first, now = False, 1, 0
        if is_there and first == 1 and seal == ORIGIN:
            return
        if now != last:
            raise Fenced(f"another node has begun the log: it ended at {last}, and now at {now}")
        after = max(last, seal.seq, beyond)
        try:
            self._timer().ask(lambda left_s: self._engine.make(after, origin, left_s))
        except Taken:
            raise Fenced("another node begins the log") from None
        if not after:
            return
        chain.next = after + 1
        claim = Claim("", "", os.urandom(16).hex(), timeline=origin.timeline, base=seal.seq)
        self._write(chain, 0, claim_data(claim))

    def stand(self, seal: Seal, *, is_last: bool = False) -> None:
        """Continue behind a record that the caller has, as its store names it. What is read next must be
        chained to it, and it need not be in the log any more. Without this the log looks it up. `is_last`: no
        node has a record behind it, so that none was trimmed there, and none is hidden."""
        if seal != self._chain.last:
            self._chain = Chain(seal, self._keys, self._chain.strays)
        self._chain.is_last = is_last

    def check_cluster_key(self, claim: bytes, seal: Seal) -> None:
        """Raise OtherClusterKey unless the claim, of the epoch of `seal`, was made with a key of ours."""
        if not is_signed(claim, seal.epoch, self._keys):
            raise OtherClusterKey(
                f"the claim at record {seal.epoch} in this node's data is signed with another cluster.key"
            )

    def append(self, seq: int, epoch: int, data: bytes, through: Through = without_lease) -> None:
        """Return once `data` is durable on a quorum as record `seq`, or as several from there on, which are
        read as one. `through` calls each write. Raises Fenced."""
        assert 0 < epoch < seq
        chain, size = self._led(seq, epoch), part_bytes(self._engine.largest)
        for start in range(0, max(1, len(data)), size):
            part = data[start : start + size]
            through(partial(self._write, chain, epoch, part, is_part=start + size < len(data)))

    def send(self, seq: int, epoch: int, data: bytes) -> bool:
        """Have `data` come behind all that was sent and is not settled, as an `append` that is not waited
        for. False: it cannot be sent now; it can be appended once all is settled.

        `seq`: one more than the last record that is settled. Raises Fenced.
        """
        chain = self._chain if self._flight.sent else self._led(seq, epoch)
        return self._flight.send(chain, epoch, data)

    def settle(self) -> bool:
        """Wait for the oldest that was sent. Whether it is durable on a quorum now; False: nudged. Raises as
        `append` does. All that was sent then has an unknown outcome, and none is a record without those in
        front of it."""
        return self._flight.settle(self._chain)

    def nudge(self) -> None:
        """Have a thread that waits in `settle` or for a push return soon. From any thread."""
        self._engine.nudge()

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
        chain = self._standing(seq - 1, must_be_known=True)
        data = claim_data(Claim(node, url, os.urandom(16).hex(), has_base, timeline=timeline))
        if chain.is_doubtful and chain.is_last:
            log.warning("log: what stands behind record %d is no node's: passed over", chain.link.seq)
            chain.is_doubtful = False
        self._write(chain, 0, data)
        return chain.last.epoch

    def seal_at(self, seq: int) -> Seal | None:
        """The seal of record `seq`; None if it is trimmed or never existed."""
        frame = self._frame(seq, self._timer()) if seq > 0 else None
        return None if frame is None else opened(frame, seq).seal

    def bounds(self) -> tuple[int, int]:
        """First and last sequence, as the engine's leader knows them; (1, 0) of an empty log."""
        return self.state()[:2]

    def state(self) -> LogState:
        """The same, with the bytes that the log takes and may take, and the time at its server."""
        return self._timer().ask(self._engine.state)

    def limit(self, wanted_bytes: int) -> None:
        """Set a bound of these bytes if there is none and the engine has bounds."""
        self._timer().ask(lambda left_s: self._engine.limit(wanted_bytes, left_s))

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
        until = None if for_s is None else self._clock.monotonic() + for_s
        chain = self._standing(after, must_be_known=False)
        heard = self._engine.hear(chain.next, hear_s) if hear_s > 0 else None
        count, is_sure, timer, self.is_behind = 1, False, self._timer(), heard is not None
        while True:
            frames = self._frames(chain.next, count, timer, is_sure=is_sure) if heard is None else heard
            if not frames:
                if heard is not None:
                    return
                first, last, *_ = timer.ask(self._engine.state)
                if chain.next == last + 1:
                    return
                if is_sure and not self._leaps(chain, first, last, timer):
                    _missed(chain.next, first, last, timer)
                is_sure = True
                continue
            for frame in frames:
                record = _judged(chain, frame, is_sure=is_sure)
                if record is not None:
                    parts = chain.step(record)
                    if parts:
                        yield chain.last.seq, chain.last.epoch, b"".join(parts)
                elif is_sure:
                    self._pass(chain, frame)
                else:
                    break
            is_sure = record is None and not is_sure
            if heard is not None and not is_sure:
                return
            heard, self.is_behind = None, False
            count, timer = _count_after(frames), self._timer()
            # Not while one is missing: that ends by its own deadline, and says so.
            if until is not None and self._clock.monotonic() > until:
                self.is_behind = True
                return

    def trim(self, upto: int) -> None:
        """Delete the records up to and including `upto`. The last record always stays: the next is chained to
        it."""
        timer = self._timer()
        first, last, *_ = timer.ask(self._engine.state)
        goes = min(upto, last - 1)
        if goes >= first:
            timer.ask(lambda left_s: self._engine.drop(goes, left_s))

    def close(self) -> None:
        self._engine.close()

    def _timer(self) -> "_Timer":
        return _Timer(self._clock, self._deadline_s)

    def _standing(self, seq: int, *, must_be_known: bool) -> Chain:
        """The chain behind record `seq`. If its seal is unknown it is read; if it is trimmed, any record
        follows, unless it must be known. Raises Trimmed, Damaged."""
        self._flight.sent.clear()
        chain = self._chain
        if chain.last.seq == seq and chain.last.digest:
            return chain
        timer = self._timer()
        if chain.last.seq != seq:
            chain = Chain(Seal(seq, 0) if seq > 0 else ORIGIN, self._keys, chain.strays)
        while not chain.last.digest:
            frame = self._frame(seq, timer)
            if frame is not None:
                chain = Chain(opened(frame, seq).seal, self._keys, chain.strays)
                break
            first, last, *_ = timer.ask(self._engine.state)
            if first == seq + 1 and not must_be_known:
                break
            _missed(seq, first, last, timer)
        self._chain = chain
        return chain

    def _led(self, seq: int, epoch: int) -> Chain:
        """The chain behind record `seq - 1`, if that is of our epoch. Raises Fenced."""
        chain = self._standing(seq - 1, must_be_known=True)
        chain.rewind()
        if chain.link.epoch != epoch:
            raise Fenced(f"record {seq - 1} is of epoch {chain.link.epoch}, not {epoch}")
        return chain

    def _write(
        self,
        chain: Chain,
        epoch: int,
        data: bytes,
        *,
        is_part: bool = False,
        frame: bytes = b"",
    ) -> None:
        """Write the next record. `epoch`: 0 for a claim, whose epoch is its place. `frame`: as it was sent
        before, for this place."""
        timer, place = self._timer(), chain.next
        while True:
            if not epoch and chain.is_doubtful:
                raise Doubtful(
                    f"a record before {chain.next} of the log may follow one that nobody recognises:"
                    " this node waits until all of cluster.peers answer, or for `fasti-server cluster heal`"
                )
            seq = chain.next
            body = data if epoch else signed(data, seq, self._keys[0])
            if not frame or seq != place:
                frame = frame_of(seq, epoch or seq, chain.link, body, is_part=is_part)
                place = seq
            if self._is_put(chain, frame, timer):
                break
        seal = Seal(seq, epoch or seq, digest_in(frame))
        chain.step(Record(seal, chain.link.digest, body, is_part))

    def _is_put(self, chain: Chain, frame: bytes, timer: "_Timer") -> bool:
        """Try to put the frame at the chain's next place. False: strays are there, and are passed over; or
        the place is taken, and it cannot be seen yet by whom. Raises Fenced."""
        seq = chain.next
        try:
            timer.ask(lambda left_s: self._engine.put(seq, frame, left_s), len(frame))
        except Taken:
            pass
        else:
            return True
        there: Sequence[bytes] = [found] if (found := self._frame(seq, timer)) is not None else []
        if not there:
            timer.doubt(
                LogDown(f"the place of record {seq} in the log is taken, what is there cannot be read")
            )
        elif there[0] == frame:
            timer.ask(self._engine.confirm)
            return True
        count = 1
        while there:
            for one in there:
                fenced = _fenced(chain, one)
                if fenced is not None and chain.next == seq:
                    raise fenced
                if fenced is not None:
                    return False  # perhaps it is our frame of that place, from an earlier call
                self._pass(chain, one)
            if len(there) < count:
                break
            count = _count_after(there)
            there = self._frames(chain.next, count, timer, is_sure=True)
        return False

    def _leaps(self, chain: Chain, first: int, last: int, timer: "_Timer") -> bool:
        """Go on at the first record that is left, if it is chained to the last one here; or behind what is
        trimmed, if none is left, and no node has one."""
        has_records = False
        for seq in range(first, min(last, first + BATCH) + 1) if chain.next < first else ():
            frame = self._frame(seq, timer)
            try:
                record = None if frame is None else opened(frame, seq)
            except Damaged:
                continue  # most likely a stray; else the next is not chained
            has_records = True
            if record is None or not chain.link.digest:
                return False
            if follows(record, chain.link):
                log.warning("log: begun anew at record %d, behind record %d", seq, chain.link.seq)
                chain.next = seq
                return True
            if not record.is_ahead:
                _check_base(record, chain.link)
                return False  # else it is void, or the next is chained to it
        if has_records or not chain.is_last:
            return False
        log.warning("log: what is trimmed behind record %d was no node's: passed over", chain.link.seq)
        chain.next, chain.is_last = first, False
        return True

    def _pass(self, chain: Chain, frame: bytes) -> None:
        seq, last = chain.next, chain.strays.last
        if chain.skip(frame):
            log.info("log: record %d was sent ahead of one that was refused: passed over", seq)
        elif seq > last + 1 or not last:
            log.warning("log: record %d is not of this timeline: passed over", seq)

    def _frame(self, seq: int, timer: "_Timer") -> bytes | None:
        frames = self._frames(seq, 1, timer, is_sure=True)
        return frames[0] if frames else None

    def _frames(self, seq: int, count: int, timer: "_Timer", *, is_sure: bool) -> Sequence[bytes]:
        return timer.ask(lambda left_s: self._engine.fetch(seq, count, left_s, is_sure=is_sure), BATCH_BYTES)


class _Timer:
    """Deadline of one call and of its tries, and the error to raise when it is over."""

    def __init__(self, clock: Clock, deadline_s: float) -> None:
        self._clock = clock
        self._patience_s = _patience_s(deadline_s)
        self._until = clock.monotonic() + deadline_s
        self._verdict: LogError = LogDown("no answer")

    def doubt(self, verdict: LogError) -> None:
        """Note an answer that cannot be final, and pause before another try. Raises `verdict` if this was the
        last."""
        self._verdict = verdict
        self._pause()

    def ask(self, call: Callable[[float], T], size: int = 0) -> T:
        """The answer to `call`, which is passed its timeout, s. `size`: bytes of what goes or comes with it.
        Raises LogDown, Unfit, or the error in doubt."""
        patience_s = self._patience_s + size / SLOWEST
        while True:
            timeout_s = min(self._left_s(), patience_s)
            try:
                return call(timeout_s)
            except (NoAnswer, Unfit) as error:
                if timeout_s >= self._patience_s:  # a call that was cut short says nothing about the reason
                    self._verdict = error if isinstance(error, Unfit) else LogDown(str(error))
            self._pause()

    def _pause(self) -> None:
        self._clock.sleep(min(PAUSE_S, self._left_s()))

    def _left_s(self) -> float:
        left_s = self._until - self._clock.monotonic()
        if left_s <= 0:
            raise self._verdict
        return left_s


def open_engine(engine: Engine, clock: Clock, deadline_s: float, keys: Sequence[str] = ("",)) -> ChainedLog:
    """A log on an engine, once the engine has answered. Raises LogDown, Unfit."""
    until, patience_s, missed = clock.monotonic() + deadline_s, _patience_s(deadline_s), "no answer"
    while (left_s := until - clock.monotonic()) > 0:
        try:
            engine.connect(min(left_s, patience_s))
            return ChainedLog(engine, clock, deadline_s, keys)
        except NoAnswer as error:
            if left_s >= patience_s:
                missed = str(error)
        clock.sleep(min(PAUSE_S, left_s))
    engine.close()  # it may be connecting still
    raise LogDown(missed)


def _patience_s(deadline_s: float) -> float:
    return min(deadline_s / TRIES, PATIENCE_S)


def _count_after(frames: Sequence[bytes]) -> int:
    """How many frames to fetch after these."""
    return max(1, min(BATCH, BATCH_BYTES // max(1, *map(len, frames))))


def _fenced(chain: Chain, frame: bytes) -> Fenced | None:
    """Whose the frame at the chain's next place is, if not ours; None: a stray."""
    try:
        record = chain.judged(frame)
    except LogError as error:
        return Fenced(f"another node wrote record {chain.next} of the log: {error}")
    return None if record is None else Fenced(f"another node wrote record {chain.next} of the log")


def _judged(chain: Chain, frame: bytes, *, is_sure: bool) -> Record | None:
    """The next record; None: a stray, or a damaged copy of a near server. Raises Damaged, OtherClusterKey,
    UnknownVersion."""
    try:
        return chain.judged(frame)
    except Damaged as damage:
        if is_sure:
            raise
        log.warning("%s: reading it again", damage)
        return None


def _check_base(record: Record, link: Seal) -> None:
    """Raise Unchained if the log was begun anew with this record, behind another one than `link`, or before
    it."""
    seq, epoch, _ = record.seal
    base = claim_of(record.data).base if seq == epoch else 0
    if 0 < base <= link.seq:
        raise Unchained(
            f"the log was begun anew at record {seq}, behind record {base}: what there was up to record"
            f" {link.seq} was given up"
        )


def _missed(seq: int, first: int, last: int, timer: _Timer) -> None:
    """Handle a missing record. Returns if it should be asked for again.

    Raises Trimmed; Damaged when it was missing until the deadline.
    """
    if seq < first:
        raise Trimmed(f"record {seq} of the log is trimmed: the log begins at record {first}")
    fault = f"gone: it ends at {last}" if seq > last else f"missing: it has records {first} to {last}"
    timer.doubt(Damaged(f"record {seq} of the log is {fault}"))
