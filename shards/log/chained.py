"""The log on an engine that can only append frames.

**Writing.** The frame of `seq` needs the digest of the frame before it. That is known if it was written or
read here last; otherwise it is read. With it comes that record's epoch, so the fence has two halves: this
file compares the epoch, against a record that can no longer change, and the engine decides that the record is
still the last.

The rest is one loop. It tries `put` until it succeeds or the place is taken. After no answer it tries again
with the same bytes, which is harmless: whichever comes first takes the place.

    put 7 ──> done                                        return
          ──> no answer (it was stored, its ack was lost)
    put 7 ──> taken;  fetch 7: our bytes                  confirm, return
                               other bytes                Fenced
                               nothing: decided, but not yet readable; or unknown to this server: again
          ──> no answer until the deadline                LogDown

Our own bytes are recognised by the frame's digest, which covers (seq, epoch) and a claim's nonce. `confirm`
exists for engines in which a record can be seen before a quorum has it (PostgreSQL, after a crash of the
primary).

**Patience.** Each try gets a quarter of the deadline, 2 s at most. The server asked may hang while another
would answer, and a call that waits for a killed server finds the new leader only by its next try.

**Where it stands.** A store has the seal of the last record that it applied, and a log begins there: what
follows is chained to that record, whether the log still has it or not.

**Reading** asks a near server, which may be behind or have a damaged copy. Missing or wrong records are asked
for again with `is_sure`. A read fetches up to BATCH frames at a time, fewer if they are large. Without
a seal it starts with the record before the first wanted one, so that the first link is checked too. The
engine's leader says where
the log ends. A newly elected leader may not know the newest records yet, so records that seem lost are asked
for again until the deadline.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from .contract import Clock
from .engine import Engine, NoAnswer, Taken
from .errors import Damaged, Fenced, LogDown, LogError, TooLarge, Trimmed, Unchained, Unfit
from .record import EXTRA_BYTES, ORIGIN, Claim, Record, Seal, claim_data, digest_in, follows, frame_of, opened

log = logging.getLogger(__name__)

PAUSE_S = 0.05
"""Pause between two tries."""
TRIES = 4
PATIENCE_S = 2.0
"""Maximum time of a try, which is a quarter of the deadline; 16 MiB then need 70 Mbit/s."""
BATCH = 16
BATCH_BYTES = 16 << 20
"""Bytes of frames fetched at a time, estimated from the largest of the frames before."""

T = TypeVar("T")


class ChainedLog:
    """A Log on a connected engine; `deadline_s` for each call. One thread at a time."""

    def __init__(self, engine: Engine, clock: Clock, deadline_s: float) -> None:
        self._engine = engine
        self._clock = clock
        self._deadline_s = deadline_s
        self._last: Seal | None = None
        """Of the record that was written or read here last, or that the caller has."""

    @property
    def largest(self) -> int:
        return self._engine.largest - EXTRA_BYTES

    @property
    def at(self) -> Seal:
        return self._last or ORIGIN

    def stand(self, seal: Seal) -> None:
        self._last = seal if seal.digest else None

    def append(self, seq: int, epoch: int, data: bytes) -> None:
        assert 0 < epoch < seq
        self._write(seq, epoch, data)

    def claim(self, seq: int, node: str, url: str, *, has_base: bool = False) -> int:
        self._write(seq, seq, claim_data(Claim(node, url, os.urandom(16).hex(), has_base)))
        return seq

    def seal_at(self, seq: int) -> Seal | None:
        frame = self._frame(seq, self._timer()) if seq > 0 else None
        return None if frame is None else opened(frame, seq).seal

    def bounds(self) -> tuple[int, int]:
        return self._timer().ask(self._engine.bounds)

    def read(self, after: int) -> Iterator[tuple[int, int, bytes]]:
        before = self._sealed_here(after)
        seq = after + 1 if before else after
        count, timer = 1, self._timer()
        while True:
            frames = self._frames(seq, count, timer)
            if not frames:
                first, last = timer.ask(self._engine.bounds)
                if seq == last + 1 and seq > after:
                    return
                if seq == after and first == seq + 1:
                    seq += 1  # the one before is trimmed: the first link cannot be checked
                    continue
                sure = self._frame(seq, timer)
                if sure is None:
                    _missed(seq, first, last, timer)
                    continue
                frames = [sure]
            for frame in frames:
                record = self._checked(frame, seq, before, timer)
                before = self._last = record.seal
                if seq > after:
                    yield seq, record.seal.epoch, record.data
                seq += 1
            count, timer = _next_count(frames), self._timer()

    def trim(self, upto: int) -> None:
        timer = self._timer()
        first, last = timer.ask(self._engine.bounds)
        goes = min(upto, last - 1)
        if goes >= first:
            timer.ask(lambda left_s: self._engine.drop(goes, left_s))

    def close(self) -> None:
        self._engine.close()

    def _timer(self) -> "_Timer":
        return _Timer(self._clock, self._deadline_s)

    def _write(self, seq: int, epoch: int, data: bytes) -> None:
        if len(data) > self.largest:
            raise TooLarge(f"a record of {len(data):,} bytes, the engine takes {self.largest:,}")
        timer = self._timer()
        before = self._sealed_here(seq - 1) or self._read_before(seq, timer)
        if epoch not in (seq, before.epoch):
            raise Fenced(f"record {before.seq} is of epoch {before.epoch}, not {epoch}")
        frame = frame_of(seq, epoch, before, data)
        while not self._is_put(seq, frame, timer):
            pass
        self._last = Seal(seq, epoch, digest_in(frame))

    def _is_put(self, seq: int, frame: bytes, timer: "_Timer") -> bool:
        """Try until it is decided. False: the place is taken, and it cannot be seen yet by whom. Raises
        Fenced."""
        try:
            timer.ask(lambda left_s: self._engine.put(seq, frame, left_s))
        except Taken:
            pass
        else:
            return True
        there = self._frame(seq, timer)
        if there is None:
            timer.doubt(LogDown(f"the place of record {seq} is taken, by what cannot be read"))
            return False
        if there != frame:
            raise Fenced(f"record {seq} is another's")
        timer.ask(self._engine.confirm)
        return True

    def _sealed_here(self, seq: int) -> Seal | None:
        """The seal of a record, if it is known without a call."""
        if seq <= 0:
            return ORIGIN
        return self._last if self._last is not None and self._last.seq == seq else None

    def _read_before(self, seq: int, timer: "_Timer") -> Seal:
        """The seal of the record before this one. Raises Trimmed, Damaged."""
        while (frame := self._frame(seq - 1, timer)) is None:
            _missed(seq - 1, *timer.ask(self._engine.bounds), timer)
        return opened(frame, seq - 1).seal

    def _frames(self, seq: int, count: int, timer: "_Timer") -> Sequence[bytes]:
        """Frames from a near server."""
        return timer.ask(lambda left_s: self._engine.fetch(seq, count, left_s, is_sure=False))

    def _checked(self, frame: bytes, seq: int, before: Seal | None, timer: "_Timer") -> Record:
        """The record in a frame that follows `before`; if it does not fit, the record of the sure copy.

        Raises Damaged, UnknownVersion.
        """
        try:
            return _following(opened(frame, seq), before)
        except Damaged as damage:
            sure = self._frame(seq, timer)
            if sure is None:
                raise
            log.warning("%s: reading it again", damage)
            return _following(opened(sure, seq), before)

    def _frame(self, seq: int, timer: "_Timer") -> bytes | None:
        frames = timer.ask(lambda left_s: self._engine.fetch(seq, 1, left_s))
        return frames[0] if frames else None


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

    def ask(self, call: Callable[[float], T]) -> T:
        """The answer to `call`, which is passed its timeout, s. Raises LogDown, or the error in doubt."""
        while True:
            told_s = min(self._left_s(), self._patience_s)
            try:
                return call(told_s)
            except (NoAnswer, Unfit) as error:
                if told_s == self._patience_s:  # a call that was cut short says nothing about the reason
                    self._verdict = LogDown(str(error))
            self._pause()

    def _pause(self) -> None:
        self._clock.sleep(min(PAUSE_S, self._left_s()))

    def _left_s(self) -> float:
        left_s = self._until - self._clock.monotonic()
        if left_s <= 0:
            raise self._verdict
        return left_s


def open_engine(engine: Engine, clock: Clock, deadline_s: float) -> ChainedLog:
    """A log on an engine, once the engine has answered. Raises LogDown, Unfit."""
    until, patience_s, missed = clock.monotonic() + deadline_s, _patience_s(deadline_s), "no answer"
    while (left_s := until - clock.monotonic()) > 0:
        try:
            engine.connect(min(left_s, patience_s))
            return ChainedLog(engine, clock, deadline_s)
        except NoAnswer as error:
            if left_s >= patience_s:
                missed = str(error)
        clock.sleep(min(PAUSE_S, left_s))
    raise LogDown(missed)


def _following(record: Record, before: Seal | None) -> Record:
    """The record, if it was written after `before`. Raises Unchained."""
    if before is not None and not follows(record, before):
        raise Unchained(
            f"record {record.seal.seq} of the log was not written after the one that stands before it"
        )
    return record


def _patience_s(deadline_s: float) -> float:
    return min(deadline_s / TRIES, PATIENCE_S)


def _next_count(frames: Sequence[bytes]) -> int:
    """Number of frames to fetch next."""
    return max(1, min(BATCH, BATCH_BYTES // max(map(len, frames))))


def _missed(seq: int, first: int, last: int, timer: _Timer) -> None:
    """Handle a missing record. Returns if it should be asked for again.

    Raises Trimmed; Damaged when it was missing until the deadline.
    """
    if seq < first:
        raise Trimmed(f"the log begins at {first}, record {seq} is trimmed")
    if seq > last:
        timer.doubt(Damaged(f"the log ends at {last}, record {seq} was there"))
    else:
        timer.doubt(Damaged(f"record {seq} of the log is missing, it goes from {first} to {last}"))
