"""The rate of each ordering key of a group, as tokens.

A key has one number: when it has all its tokens again (`full_ms`). A message moves it on by the time of one,
1 / per_ms. A key may have a message while that time is less than BURST_MS away. At 1 in 50 ms, of a key that
was given nothing for long:

    at 0     given: full at 50      50 - 50 <= 0: it may have one more
    at 0     given: full at 100     100 - 50 > 0: it waits until 50, which is in the heap
    at 50    one token              it may have one more
    at 100   all of them            it is known no more

So RAM is bounded by the keys that are below their rate, and each of them has a place within the bound of key
rows. After a start all keys have all their tokens.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from .key_rows import NO_KEY, KeyRoom

BURST_MS = 100.0
"""A key that was given nothing for so long may be given its messages of that time at once."""
ADVANCE_MAX = 1_000
"""Keys that are looked at in a turn as they have tokens again."""


class KeyTokens:
    """Which keys of one group have spent tokens."""

    __slots__ = ("_full_ms", "_heap", "_look", "_now_ms", "_per_ms", "_room")

    def __init__(self, room: KeyRoom, per_ms: float, look: Callable[[bytes], None]) -> None:
        """`per_ms`: tokens of a key in a millisecond; 0.0: any number. `look`: called with each key that may
        have one more message, or none."""
        self._room = room
        self._per_ms = per_ms
        self._look = look
        self._full_ms: dict[bytes, float] = {}
        self._heap: list[tuple[float, bytes, bool]] = []
        """When to look at these. True: the one place of a key that is given up when it has all."""
        self._now_ms = 0.0

    def __len__(self) -> int:
        """Number of keys that have not all their tokens."""
        return len(self._full_ms)

    @property
    def _burst_ms(self) -> float:
        """So long before a key has all its tokens it has one."""
        return max(0.0, BURST_MS - 1.0 / self._per_ms) if self._per_ms else 0.0

    def has_one(self, key: bytes) -> bool:
        """Whether the key may have one more message."""
        return not self._full_ms or self._full_ms.get(key, 0.0) - self._burst_ms <= self._now_ms

    def spend(self, key: bytes, now_ms: float) -> None:
        """A message of the key is given."""
        if key == NO_KEY:
            return
        before_ms = self._full_ms.get(key)
        full_ms = self._full_ms[key] = max(before_ms or 0.0, now_ms) + 1.0 / self._per_ms
        if before_ms is None:
            self._room.add(1)
            heappush(self._heap, (full_ms, key, True))
        if now_ms < full_ms - self._burst_ms < full_ms:
            heappush(self._heap, (full_ms - self._burst_ms, key, False))
        self._look(key)

    def advance(self, now_ms: float) -> None:
        """Time has passed. O(keys that have tokens again), ADVANCE_MAX at most: others follow."""
        self._now_ms, heap = now_ms, self._heap
        for _ in range(ADVANCE_MAX):
            if not heap or heap[0][0] > now_ms:
                break
            _, key, is_last = heappop(heap)
            full_ms = self._full_ms.get(key, 0.0)
            if is_last and full_ms > now_ms:
                heappush(heap, (full_ms, key, True))
            elif is_last:
                del self._full_ms[key]
                self._room.add(-1)
            self._look(key)

    @property
    def next_ms(self) -> float | None:
        """When to advance; None: all keys have all their tokens."""
        return self._heap[0][0] if self._heap else None

    def change(self, per_ms: float) -> None:
        """From now on another rate counts, and all keys have all their tokens."""
        self._room.add(-len(self._full_ms))
        self._full_ms.clear()
        self._heap.clear()
        self._per_ms = per_ms
