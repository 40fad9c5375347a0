"""Rows of a group's ordering keys that are not stored yet.

All of them go in the batch of the next cursor, as a kill must leave cursor and rows of one moment. A batch
may fail, also after a later one was composed. So what was taken is kept until it can be read:

    note, note      a key row has changed, a follower has come
    take            what the next batch has: it is being written
    wrote           the oldest batch can be read
    lost            nothing of what was taken may be there: it is taken again, with what has come since

The reader waits when UNWRITTEN_MAX rows are to be written: a cursor would take too long.
"""

from collections.abc import Callable

from .key_rows import Address, Changes, KeyRow

UNWRITTEN_MAX = 2_000
"""Rows that may wait for a cursor: some 5 ms. A dump of 20,000 a second writes as many with each."""


class Unwritten:
    """Changes of the ordering keys of one group that are not stored yet."""

    __slots__ = ("_count", "_followers", "_writing", "keys")

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        """Keys whose rows have changed."""
        self._followers: dict[bytes, list[Address]] = {}
        """Index rows that are not in a batch yet."""
        self._writing: list[Changes] = []
        """Changes in batches that are not durable yet, the oldest first."""
        self._count = 0

    @property
    def is_crowded(self) -> bool:
        """Whether the reader waits until what has changed is written."""
        return len(self.keys) + self._count >= UNWRITTEN_MAX

    @property
    def is_empty(self) -> bool:
        """Whether all of it is stored."""
        return not (self.keys or self._followers or self._writing)

    def follows(self, key: bytes, address: Address) -> None:
        """One more message of the key is behind."""
        self._followers.setdefault(key, []).append(address)
        self._count += 1

    def followers(self, key: bytes) -> set[Address]:
        """Followers of the key that may not be read from the index yet."""
        found = set(self._followers.get(key, ()))
        for changes in self._writing:
            found.update(changes.index.get(key, ()))
        return found

    def take(self, row: Callable[[bytes], KeyRow], needs: Callable[[bytes, Address], bool]) -> Changes:
        """Take the changes to write with the cursor: the key's current row, and the followers that it still
        needs. Batches are written in the order of these calls."""
        rows = {key: row(key) for key in self.keys}
        index: dict[bytes, list[Address]] = {}
        for key, places in self._followers.items():
            if needed := [one for one in places if needs(key, one)]:
                index[key] = needed
        changes = Changes({key: None if one == KeyRow() else one for key, one in rows.items()}, index)
        self.keys, self._followers, self._count = set(), {}, 0
        self._writing.append(changes)
        return changes

    def wrote(self) -> None:
        """The oldest of what was taken can be read."""
        if self._writing:
            del self._writing[0]

    def lost(self) -> None:
        """Nothing of what was taken may have been written: it is taken again."""
        for changes in reversed(self._writing):
            self.keys.update(changes.keys)
            for key, places in changes.index.items():
                self._followers[key] = places + self._followers.get(key, [])
                self._count += len(places)
        self._writing.clear()
