"""One pool for what waits at connections, of MQTT and HTTP alike: what has come and is not handled, and what
their clients have not read.

Each connection has a small part of its own, so nobody can keep it from working. What it holds beyond that it
takes from the pool. When the pool is short, whoever holds most is relieved first: of the owner (a key, else a
network) that holds most, the connection that holds most.

    a pool of 160 MiB     A's 40 connections hold 4 MiB each, B's one holds 6: it is full
    B's holds one more    A holds most: one of A's connections is ended. B, whose one is the largest, goes on

What a client does not read can be held back before it is sent, so nothing has to be ended for it: an owner
takes no more than it leaves free (`may_take`), half of the pool if it is alone.
"""

from typing import Protocol

from ..settings.config import Config

OWN_BYTES = 64 << 10
"""Of a connection, if there are few of them."""


class Holder(Protocol):
    """A connection, as the pool sees it."""

    owner: str
    held_bytes: int
    """`Pool.hold` writes it."""

    def relieve(self) -> None:
        """End it and let go of what it holds: nobody holds more."""


def pool_of(config: Config) -> "Pool":
    """The pool of one process."""
    return Pool(config.limits.pool_bytes, config.limits.connections + config.http.connections)


class Pool:
    """Who holds how much beyond its own part."""

    def __init__(self, most: int, connections: int) -> None:
        """`most`: bytes of the pool; the own parts of so many connections are as much again."""
        self.most = most
        self.own_bytes = min(OWN_BYTES, most // connections)
        self.taken = 0
        """Of the pool, bytes."""
        self.held = 0
        """The same with the own parts."""
        self._takers: dict[Holder, tuple[str, int]] = {}
        """Owner and bytes of those that have taken something."""
        self._owners: dict[str, int] = {}

    def hold(self, holder: Holder, size: int) -> None:
        """The connection holds so much now. Above the bound whoever holds most is relieved."""
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
                self._relieve()

    def may_take(self, owner: str) -> bool:
        """Whether an owner may take more of it for what its clients have not read."""
        return self._owners.get(owner, 0) < self.most - self.taken

    def _count(self, owner: str, size: int) -> None:
        self.taken += size
        left = self._owners.get(owner, 0) + size
        if left:
            self._owners[owner] = left
        else:
            del self._owners[owner]

    def _relieve(self) -> None:
        while self.taken > self.most:
            owner = max(self._owners, key=self._owners.__getitem__)
            of_owner = [one for one, (whose, _) in self._takers.items() if whose == owner]
            largest = max(of_owner, key=lambda one: one.held_bytes)
            self.hold(largest, 0)
            largest.relieve()
