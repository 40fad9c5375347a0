"""One pool for the bytes that wait at MQTT and HTTP connections: unhandled input, and output that clients
have not read.

Each connection has a small part of its own, so that no other can block it. Further bytes come from the pool.
When the pool is full, the connection that holds most is closed, of the owner (a key, else a network) that
holds most.

    a pool of 160 MiB     A's 40 connections hold 4 MiB each, B's one holds 6: it is full
    B's holds one more    A holds most: one of A's connections is closed. B's, the largest of all, stays

Output for a client that does not read can be held back before it is sent, without closing anything: an owner
takes no more than it leaves free (`may_take`), half of the pool if it is alone.
"""

from typing import Protocol

from ..settings.config import Config

OWN_BYTES = 64 << 10
"""Maximum own part of a connection, with few connections."""


class Holder(Protocol):
    """A connection, as the pool sees it."""

    owner: str
    held_bytes: int
    """Written by `Pool.hold`."""

    def evict(self) -> None:
        """Close it and free what it holds: it holds the most."""


def pool_of(config: Config) -> "Pool":
    """The pool of one process."""
    return Pool(config.limits.pool_bytes, config.limits.connections + config.http.connections)


class Pool:
    """Bytes that connections hold beyond their own parts."""

    def __init__(self, most: int, connections: int) -> None:
        """`most`: bytes of the pool; the own parts of all connections are as much again."""
        self.most = most
        self.own_bytes = min(OWN_BYTES, most // connections)
        self.taken = 0
        """Bytes taken from the pool."""
        self.held = 0
        """The same, with the own parts."""
        self._takers: dict[Holder, tuple[str, int]] = {}
        """Owner and bytes of connections that have taken something."""
        self._owners: dict[str, int] = {}

    def hold(self, holder: Holder, size: int) -> None:
        """Set the bytes that a connection holds. Above the bound, evicts the one that holds most."""
        self.held += size - holder.held_bytes
        holder.held_bytes = size
        takes = max(0, size - self.own_bytes)
        owner, took = self._takers.pop(holder, ("", 0))
        if took:
            self._count(owner, -took)
        if takes:
            self._takers[holder] = holder.owner, takes
            self._count(holder.owner, takes)
            if takes > took:
                self._evict()

    def may_take(self, owner: str) -> bool:
        """Whether an owner may take more for output that its clients have not read."""
        return self._owners.get(owner, 0) < self.most - self.taken

    def _count(self, owner: str, size: int) -> None:
        self.taken += size
        left = self._owners.get(owner, 0) + size
        if left:
            self._owners[owner] = left
        else:
            del self._owners[owner]

    def _evict(self) -> None:
        while self.taken > self.most:
            owner = max(self._owners, key=self._owners.__getitem__)
            of_owner = [one for one, (whose, _) in self._takers.items() if whose == owner]
            largest = max(of_owner, key=lambda one: one.held_bytes)
            self.hold(largest, 0)
            largest.evict()
