"""Rows of a node's store that rot in the model, and what the nodes conclude from them.

A rotten row is met by whoever reads over its place: a term, the scrub, or the check of a copy. Each node
judges that by the rule of server/cluster/damage.py, with what the others have reported.

What is promised while one node of three is rotten: nothing is passed that it cannot read, a whole node leads
instead, and the rot is mended by a copy of one that is whole.
"""

from collections.abc import Iterator, Sequence

from server.cluster.damage import Damage
from server.cluster.members import ALIVE_S, Member, Members
from shards.errors import Corrupt
from shards.scrub import Walk
from shards.store import Table
from tests.support.memory_store import MemoryStore

Place = tuple[Table, bytes]


class Rotting(MemoryStore):
    """A store whose rows may rot, as blocks of a file do: also what has replaced them is met there."""

    def __init__(self) -> None:
        super().__init__()
        self.rotten: set[Place] = set()
        self.is_looked_through = False
        """While a test looks at the rows: it meets nothing."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        if (table, key) in self._met_now:
            raise self._corrupt()
        return super().get(table, key)

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        met = min((key for one, key in self._met_now if one is table and start <= key < end), default=None)
        yield from super().scan(table, start, end if met is None else met)
        if met is not None:
            raise self._corrupt()

    def check(self, table: Table, start: bytes, most: int) -> tuple[bytes | None, int]:
        key, size = super().check(table, start, most)
        if any(one is table and start <= at and (key is None or at < key) for one, at in self._met_now):
            raise self._corrupt()
        return key, size

    def rows(self) -> list[Place]:
        """Of all tables whose rows are read beside others."""
        return [(table, key) for table in Table if table is not Table.META for key in self._tables[table]]

    @property
    def _met_now(self) -> set[Place]:
        return set() if self.is_looked_through else self.rotten

    def _corrupt(self) -> Corrupt:
        self.damage = "a row is rotten"
        return Corrupt(self.damage)


def scrubbed(store: Rotting) -> bool:
    """Read a store whole, as the scrub and the check of a copy do; whether nothing is damaged."""
    walk = Walk(store)
    try:
        while not walk.is_over:
            walk.step()
    except Corrupt:
        return False
    return True


class Health:
    """What each node knows of its data and of the others'; by the number of the node."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._now_s = 0.0
        self._members = Members(lambda: self._now_s)
        self.damage = [Damage(name, self._members, lambda: self._now_s) for name in names]

    def exchange(self, stores: dict[int, Rotting], *, are_fit: Sequence[bool]) -> None:
        """These nodes tell each other how they are; who is not among them is not heard."""
        self._now_s += 2 * ALIVE_S
        for number, store in stores.items():
            self.damage[number].met(store.damage)
        for number in stores:
            found, name = self.damage[number].found, self._names[number]
            self._members.hear(
                Member(name, "", "", "follower", 1, 1, "", fit=are_fit[number] and not found, damage=found)
            )
        for number in stores:
            self.damage[number].look()
