"""What was sent to the log and is not settled.

A record is put behind others that are not settled; only the oldest is ever settled. So no record counts as
durable before the one that it is chained to. A frame needs the digest of the one before it, which is known as
soon as that is made.

What fails is settled by the loop of chained.py. What was sent behind it has an unknown outcome, and is sent
again afterwards: the same bytes if the chain is as it was, else new ones, and those sent before are void
(chain.py).
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from .chain import Chain
from .engine import Clock, Engine, NoAnswer, Taken
from .errors import Unfit
from .record import Record, Seal, digest_in, frame_of, part_bytes

log = logging.getLogger(__name__)

SLOWEST = 1 << 20
"""Bytes a second that a way must take: a try lasts so much longer for what goes or comes with it."""


class _Sent(NamedTuple):
    """A record that is not settled."""

    seal: Seal
    frame: bytes
    data: bytes


class Flight:
    """Records under way, in their order."""

    def __init__(self, engine: Engine, clock: Clock, patience_s: float, write: Callable[..., None]) -> None:
        """`patience_s`: of a small record. `write`: writes a record, and waits for it."""
        self._engine = engine
        self._clock = clock
        self._patience_s = patience_s
        self._write = write
        self.sent: deque[_Sent] = deque()
        """The first is at the chain's next place."""
        self._until = 0.0
        """When the patience for the first is over."""

    def send(self, chain: Chain, epoch: int, data: bytes) -> bool:
        """Send it behind the others. False: it cannot be."""
        if len(data) > part_bytes(self._engine.largest):
            return False
        before = self.sent[-1].seal if self.sent else chain.link
        at = before.seq + 1 if self.sent else chain.next
        frame = frame_of(at, epoch, before, data, is_ahead=bool(self.sent))
        self._launch(_Sent(Seal(at, epoch, digest_in(frame)), frame, data))
        return True

    def settle(self, chain: Chain) -> bool:
        """Wait for the oldest. False: nudged."""
        sent = self.sent[0]
        try:
            if not self._engine.answer(self._until - self._clock.monotonic()):
                return False
        except (Taken, NoAnswer, Unfit):
            self._settle_again(chain)
            return True
        self.sent.popleft()
        self._wait_for_next()
        chain.step(Record(sent.seal, chain.link.digest, sent.data))
        return True

    def _launch(self, sent: _Sent) -> None:
        self.sent.append(sent)
        if len(self.sent) == 1:
            self._wait_for_next()
        try:
            self._engine.send(sent.seal.seq, sent.frame, self._patience_s)
        except (NoAnswer, Unfit) as error:
            log.info("log: record %d is sent again: %s", sent.seal.seq, error)  # once its answer is missed

    def _wait_for_next(self) -> None:
        if self.sent:
            patience_s = self._patience_s + len(self.sent[0].frame) / SLOWEST
            self._until = self._clock.monotonic() + patience_s

    def _settle_again(self, chain: Chain) -> None:
        """The first has no answer, or its place was taken. Write it, then send all behind it again."""
        first, *behind = self.sent
        self.sent.clear()
        epoch = first.seal.epoch
        self._write(chain, epoch, first.data, frame=first.frame)
        is_as_sent = chain.last == first.seal
        for sent in behind:
            if is_as_sent:
                self._launch(sent)
            elif not self.send(chain, epoch, sent.data):
                raise Unfit(f"the log's engine takes {self._engine.largest:,} bytes now, it took more before")
