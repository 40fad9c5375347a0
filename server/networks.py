"""Where clients come from, and how many connections each network has open.

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
