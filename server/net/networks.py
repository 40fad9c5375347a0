"""Networks of clients, and the rate limit of new connections.

A network is an address, of IPv6 its first 64 bits: a host has all addresses behind them.
"""

import ipaddress
from collections import Counter

from timeline.shares import may_take


class ConnectRateLimiter:
    """Rate limiter by second; an eighth is for networks that have had less than an equal share."""

    def __init__(self, rate: int) -> None:
        """0: no limit."""
        self._rate = rate
        self._second = self._count = 0
        self._counts: Counter[str] = Counter()
        """By network, in this second."""

    def admits(self, network: str, now_s: float) -> bool:
        """Whether there is room for another in this second; if so, counts it."""
        if not self._rate:
            return True
        if int(now_s) != self._second:
            self._second, self._count = int(now_s), 0
            self._counts.clear()
        counts = self._counts
        mine = counts[network]
        if not may_take(self._count, self._rate, mine, len(counts) + (not mine)):
            return False
        counts[network] = mine + 1
        self._count += 1
        return True


def network_of(address: str) -> str:
    """The network of an address; an invalid address stands for itself."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0].strip("[]"))
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
