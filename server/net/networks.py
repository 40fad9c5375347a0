"""Where clients come from, how many connections each network has open, and how many begin in a second.

A network is an address, of IPv6 its first 64 bits: a host has the others for itself, and would be as many
addresses as it likes.
"""

import ipaddress
from collections import Counter


class Networks:
    """The connections of one door, by network. Bounded as these are: one without any is not kept."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def count(self, address: str) -> int:
        """How many are open from where `address` is."""
        return self._open[network_of(address)]

    def add(self, address: str) -> None:
        self._open[network_of(address)] += 1

    def discard(self, address: str) -> None:
        """One that was added has ended."""
        network = network_of(address)
        self._open[network] -= 1
        if not self._open[network]:
            del self._open[network]


class Rate:
    """So many in each second."""

    def __init__(self, rate: int) -> None:
        """0: any number."""
        self._rate = rate
        self._second = self._count = 0

    def admits(self, now_s: float) -> bool:
        """Whether there is room for one more in this second; it counts."""
        if int(now_s) != self._second:
            self._second, self._count = int(now_s), 0
        self._count += 1
        return not self._rate or self._count <= self._rate


def network_of(address: str) -> str:
    """What an address counts as; what is none stands for itself."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0].strip("[]"))
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
