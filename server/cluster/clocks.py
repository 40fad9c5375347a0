"""Clocks of the nodes: whose differs, and what a step of one's own is worth.

Each node asks each other once a second. The answer has the other's wall time, taken between the question and
the answer, so the difference of the two clocks is known but for the time that this took. A node whose clock
more than half of the nodes contradict, by more than SKEW_MS beyond that doubt, does not lead.

`NodeClock` is the clock of a node. If the wall clock steps by more than SKEW_MS against the time that has
elapsed, the node goes on by its former time, and holds the step for a mistake until another node agrees with
the new time. So a clock that is set an hour ahead sends nothing early.

Time that elapses goes on while a virtual machine is paused, where the system can tell (CLOCK_BOOTTIME).
"""

import time
from collections.abc import Callable, Iterable
from functools import partial

from .members import Row

SKEW_MS = 5_000
"""Clocks may differ by this."""
FRESH_S = 10.0
"""A measurement is reported for so long, ..."""
KEPT_S = 600.0
"""... and counts for so long here, also when the other node is gone."""
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class NodeClock:
    """The machine's clocks; a step of the wall clock counts once it is confirmed.

    Each message reads the wall clock nine times and the other 27 times (measured, one in flight), so neither
    goes through more functions of Python than it must.
    """

    is_simulated = False

    def __init__(
        self, system_ns: Callable[[], int] | None = None, mono: Callable[[], float] | None = None
    ) -> None:
        self._system_ns = time.time_ns if system_ns is None else system_ns
        self.mono = partial(time.clock_gettime, _BOOT) if mono is None else mono
        self._ahead_ms = self.system_ms() - self.mono() * 1000
        self.stepped_ms = 0
        """By how much the wall clock is ahead of the time that counts; 0: it counts."""

    def system_ms(self) -> int:
        """The wall clock as it is."""
        return self._system_ns() // 1_000_000

    def wall_ms(self) -> int:
        now_ms, elapsed_ms = self._system_ns() // 1_000_000, self.mono() * 1000
        expected_ms = self._ahead_ms + elapsed_ms
        if not -SKEW_MS <= now_ms - expected_ms <= SKEW_MS:
            self.stepped_ms = int(now_ms - expected_ms)
            return int(expected_ms)
        self.stepped_ms = 0
        self._ahead_ms = now_ms - elapsed_ms
        return now_ms

    def until(self, at_ms: int) -> float:
        return (at_ms - self.wall_ms()) / 1000

    def confirm(self) -> None:
        """The wall clock is right: it counts from now on."""
        self._ahead_ms = self.system_ms() - self.mono() * 1000
        self.stepped_ms = 0


class Clocks:
    """Differences of other nodes' clocks, as measured here and as told by them."""

    def __init__(self, node: str, mono: Callable[[], float]) -> None:
        self._node = node
        self._mono = mono
        self._measured: dict[str, tuple[int, int, float]] = {}

    def measured(self, node: str, low_ms: int, high_ms: int) -> None:
        """The other node's clock is ahead of this one's by `low_ms` to `high_ms`."""
        if node != self._node:  # an address of its own that it does not know
            self._measured[node] = low_ms, high_ms, self._mono()

    def forget(self) -> None:
        """This node's clock is another from now on."""
        self._measured.clear()

    def measurements(self) -> dict[str, tuple[int, int]]:
        """The fresh measurements, for the report."""
        return {node: (low, high) for node, (low, high, _) in self._since(FRESH_S).items()}

    def offset_ms(self) -> int | None:
        """How far this node's clock is ahead of the others' middle one; None: unknown."""
        ahead = sorted(-(low + high) // 2 for low, high, _ in self._since(FRESH_S).values())
        return ahead[len(ahead) // 2] if ahead else None

    def compared(self, rows: Iterable[Row]) -> dict[str, bool]:
        """Node -> whether its clock differs for certain; those that either of the two has compared."""
        found = {node: differ(low, high) for node, (low, high, _) in self._since(KEPT_S).items()}
        for row in rows:
            node, between = row.member.node, row.member.clocks.get(self._node)
            if row.is_alive and between is not None and node != self._node:
                found[node] = found.get(node, False) or differ(*between)
        return found

    def contradicting(self, rows: Iterable[Row]) -> list[str]:
        """Nodes whose clock differs."""
        return sorted(node for node, differs in self.compared(rows).items() if differs)

    def agree(self) -> bool:
        """Whether a node's clock has just been found to be as this one's."""
        return any(not differ(low, high) for low, high, _ in self._since(FRESH_S).values())

    def _since(self, age_s: float) -> dict[str, tuple[int, int, float]]:
        since = self._mono() - age_s
        return {node: found for node, found in self._measured.items() if found[2] >= since}


def differ(low_ms: int, high_ms: int) -> bool:
    """Whether clocks with this difference, at least and at most, are not as one."""
    return low_ms > SKEW_MS or high_ms < -SKEW_MS
