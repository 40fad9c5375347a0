"""The server's own history: samples of its figures of the last hour and day, in RAM since the start.

A sample is taken every 10 s and kept for an hour; every 30th of them is also kept for a day. A coarse sample
stands for all between it and the one before: counters are totals since the start, so that nothing is lost
between two samples, and dead letters by reason are added up.

    12:00:00  dispatched 500      12:00:10  dispatched 740      a point of 10 s with 240 dispatched

Samples are kept as bytes (msgpack). Each of the two rings has a bound in samples and in bytes. At either
bound its oldest sample goes: 20 groups and 20 sessions with the longest names shorten the fine part to some
25 minutes, and the whole to some 12 hours; the answer says since when there is history. A restart begins
anew.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import ceil
from typing import NamedTuple

import msgspec

from .metrics import LATENESS_MS

FINE_S, COARSE_EACH = 10, 30
"""Seconds between samples, and samples of a coarse one."""
FINE, COARSE = 392, 289
"""Maximum samples of each ring: an hour, with the coarse sample that it begins behind; a day."""
RING_BYTES = 13 << 17
"""Maximum bytes of the samples of one ring."""
SAMPLE_BYTES = 200
"""Bytes of a sample in its ring besides its own."""
GROUPS = 20
"""Maximum groups of a sample."""
REASONS, REASON_CHARS = 8, 80
"""Maximum reasons of a sample, the most frequent ones, and the length of each."""
OTHERS = "other reasons"
COUNTS = (
    "accepted",
    "published",
    "dispatched",
    "delivered",
    "leased",
    "posted",
    "post_failures",
    "retried",
    "died",
    "unclaimed",
    "dropped",
)
"""Names of the counters of a sample, in order."""


class GroupSample(msgspec.Struct, frozen=True, array_like=True):
    """One group or endpoint with lag, retries or ends. `done`, `dead`, `dropped`, `withheld`: since the
    start."""

    group: str
    filter: str
    lag_messages: int
    lag_messages_is_exact: bool
    lag_seconds: float
    in_flight: int
    retries: int
    done: int = 0
    dead: int = 0
    dropped: int = 0
    withheld: int = 0


class SessionSample(msgspec.Struct, frozen=True, array_like=True):
    """One session with lag."""

    session: str
    lag_messages: int
    lag_messages_is_exact: bool
    lag_seconds: float
    in_flight: int
    retries: int


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """Figures of one moment. `counts`: as COUNTS, since the start; `late`: messages by lateness, as
    LATENESS_MS and one more, since the start. `dead_reasons`: of dead letters since the sample before;
    `retry_reasons`: of retries that wait. `failing`: share of failed posts by endpoint. None: not known."""

    at_ms: int
    counts: Sequence[int]
    late: Sequence[int]
    behind_ms: int
    pending: int
    retries: int
    dead_letters: int
    memory_bytes: int
    store_bytes: int | None
    disk_free_bytes: int | None
    dead_reasons: Mapping[str, int]
    retry_reasons: Mapping[str, int]
    groups: Sequence[GroupSample]
    sessions: Sequence[SessionSample]
    failing: Mapping[str, float]


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Sample).decode


class Kept(NamedTuple):
    """A sample in a ring. `number`: from 1."""

    number: int
    at_ms: int
    data: bytes


class _Ring:
    """Samples, oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.kept: deque[Kept] = deque()
        self.bytes = 0

    def add(self, number: int, sample: Sample) -> None:
        data = _encode(sample)
        self.kept.append(Kept(number, sample.at_ms, data))
        self.bytes += len(data) + SAMPLE_BYTES
        while len(self.kept) > self._most or self.bytes > RING_BYTES:
            self.bytes -= len(self.kept.popleft().data) + SAMPLE_BYTES


class History:
    """Samples of one server."""

    def __init__(self) -> None:
        self._fine = _Ring(FINE)
        self._coarse = _Ring(COARSE)
        self._count = 0
        self._died: Counter[str] = Counter()
        """Dead letters by reason since the last coarse sample."""

    def add(self, sample: Sample) -> None:
        """Add a sample; its time is not before the last one's."""
        self._count += 1
        self._fine.add(self._count, sample)
        self._died = Counter(frequent(self._died + Counter(sample.dead_reasons)))
        if self._count % COARSE_EACH == 1:
            self._coarse.add(self._count, msgspec.structs.replace(sample, dead_reasons=dict(self._died)))
            self._died.clear()

    def samples(self) -> list[Kept]:
        """All samples in order: coarse ones up to the first that fine ones follow, then those."""
        fine, found = self._fine.kept, list[Kept]()
        for coarse in self._coarse.kept:
            found.append(coarse)
            if coarse.number >= fine[0].number:
                break
        last = found[-1].number if found else 0
        return [*found, *(one for one in fine if one.number > last)]


def frequent(reasons: Mapping[str, int]) -> dict[str, int]:
    """The most frequent reasons; the others are one."""
    if len(reasons) <= REASONS:
        return dict(reasons)
    ranked = Counter(reasons)
    others = ranked.pop(OTHERS, 0)
    most = dict(ranked.most_common(REASONS - 1))
    return {**most, OTHERS: others + ranked.total() - sum(most.values())}


def cut(reason: str) -> str:
    """A reason as it is kept."""
    return reason[:REASON_CHARS]


def since(before: Sequence[int], now: Sequence[int]) -> list[int]:
    """What counters have counted between two samples."""
    return [last - first for first, last in zip(before, now, strict=True)]


def quantile_ms(late: Sequence[int], part: float) -> int | None:
    """Upper bound of the lateness of `part` of the messages, at most the last of LATENESS_MS; None: no
    messages."""
    wanted = ceil(sum(late) * part)
    if not wanted:
        return None
    for bound_ms, upto in zip(LATENESS_MS, accumulate(late), strict=False):
        if upto >= wanted:
            return bound_ms
    return LATENESS_MS[-1]
