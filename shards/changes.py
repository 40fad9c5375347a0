"""A batch as values, and as the bytes that go into a replicated log.

An engine's own batch cannot be read back. This one keeps its changes by table, in their order. (The order
between tables does not matter: all changes become visible together.) It is written as MessagePack,
{table: [[key, value, end], ...]}: about 8 bytes more a row than the row.

A leader composes the engine's batch beside it (`Recorded`), row by row, as a server alone does: no row is
walked again when the log has it.
"""

from collections.abc import Iterable
from functools import cached_property

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

    def put_message(self, key: bytes, value: bytes) -> None:
        self._messages.append((key, value, None))

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self.of(table).append((key, value, None))

    def delete(self, table: Table, key: bytes) -> None:
        self.of(table).append((key, None, None))

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        self.of(table).append((start, None, end))

    def emptied(self, table: Table) -> list[tuple[bytes, bytes]]:
        """The deleted ranges of a table."""
        return [(start, end) for start, _, end in self.tables.get(table, ()) if end is not None]

    def encode(self) -> bytes:
        return _encode({table: changes for table, changes in self.tables.items() if changes})

    def into(self, batch: Batch) -> None:
        """Copy the changes into a batch of an engine."""
        for table, changes in self.tables.items():
            apply(batch, table, changes)

    def of(self, table: Table) -> list[Change]:
        changes = self.tables.get(table)
        if changes is None:
            changes = self.tables[table] = []
        return changes


class Recorded:
    """A leader's batch: an engine's own, and the same changes for the log."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.changes = Changes()
        self._note = self.changes.of(Table.MESSAGES).append
        self._put_message = batch.put_message

    @cached_property
    def data(self) -> bytes:
        """Its changes as the log has them. It must not change any more."""
        return self.changes.encode()

    def put_message(self, key: bytes, value: bytes) -> None:
        self._note((key, value, None))
        self._put_message(key, value)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self.changes.put(table, key, value)
        self.batch.put(table, key, value)

    def delete(self, table: Table, key: bytes) -> None:
        self.changes.delete(table, key)
        self.batch.delete(table, key)

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        self.changes.delete_range(table, start, end)
        self.batch.delete_range(table, start, end)

    @property
    def size(self) -> int:
        return self.batch.size

    def __len__(self) -> int:
        return len(self.batch)


def apply(batch: Batch, table: Table, changes: Iterable[Change]) -> None:
    """Put changes of a table into a batch."""
    for key, value, end in changes:
        if value is None:
            if end is None:
                batch.delete(table, key)
            else:
                batch.delete_range(table, key, end)
        elif table is Table.MESSAGES:
            batch.put_message(key, value)
        else:
            batch.put(table, key, value)


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
        is_old = table is Table.DEAD and any(value is not None for _, value, _ in changes)
        if table is None or is_old:
            raise UnknownVersion(f"a record in the log changes a table {name!r}: another version wrote it")
        made.of(table).extend(changes)
    return made
