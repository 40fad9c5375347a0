"""Back-off: after wrong keys under a name the next guess waits before it is checked.

    no wait for FREE wrong keys, then 1 s, 2 s, 4 s ... up to HOLD_S_MAX; forgotten after FORGET_S without one

It counts by network and name: a device with a wrong key delays no other name of its network, and that name in
no other network. An IPv6 network is the first 64 bits: a host has all addresses behind them. A name longer
than any key's counts as no name.

Bound: ENTRIES_MAX; the entry that failed longest ago is evicted.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FREE = 5
HOLD_S_MAX = 60.0
FORGET_S = 600.0
ENTRIES_MAX = 10_000
NAME_MAX = 255


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0
    until_s: float = 0.0


class Backoff:
    """Failures by network and name."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._known: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def wait_s(self, network: str, name: str) -> float:
        """Seconds until a guess is checked; 0.0: now."""
        known = self._known.get((network, _short(name)))
        return max(0.0, known.until_s - self._mono()) if known is not None else 0.0

    def failed(self, network: str, name: str) -> None:
        """Count a wrong key."""
        now_s, who = self._mono(), (network, _short(name))
        known = self._known.pop(who, None)
        if known is None or now_s - known.last_s > FORGET_S:
            known = _Failures()
        known.count += 1
        known.last_s = now_s
        if known.count > FREE:
            known.until_s = now_s + min(HOLD_S_MAX, 2.0 ** min(known.count - FREE - 1, 16))
        if len(self._known) >= ENTRIES_MAX:
            self._known.popitem(last=False)
        self._known[who] = known


def _short(name: str) -> str:
    return name if len(name) <= NAME_MAX else ""
