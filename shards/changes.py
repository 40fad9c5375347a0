"""A batch as values, and as the bytes that go into a replicated log.

An engine's own batch cannot be read back. This one keeps its changes by table, in their order. (The order
between tables does not matter: all changes become visible together.) It is written as MessagePack,
{table: [[key, value, end], ...]}: about 8 bytes more a row than the row.
"""

from collections.abc import Iterator

import msgspec

from .log.errors import UnknownVersion
from .store import Batch, Table

Change = tuple[bytes, bytes | None, bytes | None]
"""(key, value, None): put; (key, None, None): delete; (start, None, end): delete [start, end)."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, list[Change]]).decode
_TABLES = {table.value: table for table in Table}


class Changes:
    """A batch whose changes can be read again."""

    def __init__(self) -> None:
        self._messages: list[Change] = []
        self.tables: dict[Table, list[Change]] = {Table.MESSAGES: self._messages}
        """Changes of each table, in order."""
        self.size = 0

    def put_message(self, key: bytes, value: bytes) -> None:
        self._messages.append((key, value, None))
        self.size += len(key) + len(value)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self._of(table).append((key, value, None))
        self.size += len(key) + len(value)

    def delete(self, table: Table, key: bytes) -> None:
        self._of(table).append((key, None, None))

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        self._of(table).append((start, None, end))

    def __len__(self) -> int:
        return sum(map(len, self.tables.values()))

    def emptied(self, table: Table) -> list[tuple[bytes, bytes]]:
        """The deleted ranges of a table."""
        return [(start, end) for start, _, end in self.tables.get(table, ()) if end is not None]

    def encode(self) -> bytes:
        return _encode({table.value: changes for table, changes in self.tables.items() if changes})

    def into(self, batch: Batch) -> None:
        """Copy the changes into a batch of an engine."""
        for table, key, value, end in self._each():
            if value is not None:
                batch.put(table, key, value)
            elif end is None:
                batch.delete(table, key)
            else:
                batch.delete_range(table, key, end)

    def _each(self) -> Iterator[tuple[Table, bytes, bytes | None, bytes | None]]:
        for table, changes in self.tables.items():
            for key, value, end in changes:
                yield table, key, value, end

    def _of(self, table: Table) -> list[Change]:
        changes = self.tables.get(table)
        if changes is None:
            changes = self.tables[table] = []
        return changes


def decode_changes(data: bytes) -> Changes:
    """Read what `encode` has written. Raises UnknownVersion: the record is whole, so a later version wrote
    it."""
    try:
        found = _decode(data)
    except msgspec.DecodeError as error:
        raise UnknownVersion(f"a record of {len(data)} bytes in the log: {error}") from error
    made = Changes()
    for name, changes in found.items():
        table = _TABLES.get(name)
        if table is None:
            raise UnknownVersion(f"a record in the log changes a table {name!r}: another version wrote it")
        made._of(table).extend(changes)
    return made
