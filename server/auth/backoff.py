"""Addresses that have shown wrong keys wait before the next one is looked at.

    FREE wrong ones are free, then 1 s, 2 s, 4 s ... up to HOLD_S_MAX; forgotten after FORGET_S without one

Who waits is answered at once (429 with Retry-After, 0x9F) and nothing is checked. Of IPv6 the first 64 bits
are one address: a host has all that are behind them. Bound: ADDRESSES_MAX; the one that was heard of longest
ago makes room.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..net.networks import network_of

FREE = 5
HOLD_S_MAX = 60.0
FORGET_S = 600.0
ADDRESSES_MAX = 10_000


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0
    until_s: float = 0.0


class Backoff:
    """Failures by address."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._known: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def wait_s(self, address: str) -> float:
        """How long nothing from there is looked at; 0.0: it is."""
        known = self._known.get(network_of(address))
        return max(0.0, known.until_s - self._mono()) if known is not None else 0.0

    def failed(self, address: str) -> None:
        """A wrong key has come from there."""
        now_s, network = self._mono(), network_of(address)
        known = self._known.pop(network, None)
        if known is None or now_s - known.last_s > FORGET_S:
            known = _Failures()
        known.count += 1
        known.last_s = now_s
        if known.count > FREE:
            known.until_s = now_s + min(HOLD_S_MAX, 2.0 ** min(known.count - FREE - 1, 16))
        if len(self._known) >= ADDRESSES_MAX:
            self._known.popitem(last=False)
        self._known[network] = known
