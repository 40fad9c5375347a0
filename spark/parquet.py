"""A Parquet file of the archive: written by row groups, summed on the way, and read back.

The sum is of what was written, not of what is there afterwards: a file that differs is an error at once.
"""

import hashlib
from collections.abc import Iterable, Iterator
from io import RawIOBase
from itertools import chain
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shards.archives import DELIVERIES, ENDS, MESSAGES, ArchivedFile
from shards.state import WITHHELD

from . import columns, deliveries
from .storage import Storage, StorageFailed

GROUP_ROWS = 32_768
GROUP_BYTES = 16 << 20
Table = Literal["messages", "deliveries", "ends"]
TIMES: dict[Table, str] = {MESSAGES: "at", DELIVERIES: "ended_at", ENDS: "minute"}
"""The column by which a table's rows are in order."""
SCHEMAS: dict[Table, pa.Schema] = {
    MESSAGES: columns.SCHEMA,
    DELIVERIES: deliveries.DELIVERIES,
    ENDS: deliveries.ENDS,
}


class _Summed(RawIOBase):
    """A file to write to that knows what it should have."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.sum = hashlib.sha256()
        self.bytes = 0

    def write(self, data: Any) -> int:
        self.sum.update(data)
        self.bytes += len(data)
        self._file.write(data)
        return len(data)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes


def write_file(
    storage: Storage, path: str, name: Table, groups: Iterator[pa.Table], **options: Any
) -> ArchivedFile | None:
    """Write row groups, in order of their times, and read the file back; None: there are no rows. `options`:
    of the ParquetWriter. Raises StorageFailed."""
    first = next(groups, None)
    if first is None:
        return None
    rows = withheld = 0
    options.setdefault("use_dictionary", columns.DICTIONARY if name == MESSAGES else True)
    with storage.writing(path) as file:
        summed = _Summed(file)
        with pq.ParquetWriter(summed, SCHEMAS[name], compression="zstd", **options) as writer:
            for group in chain([first], groups):
                writer.write_table(group, row_group_size=group.num_rows)
                rows += group.num_rows
                last_ms = _ms(group, name, -1)
                if name == MESSAGES:
                    withheld += pc.sum(pc.equal(group["state"], WITHHELD)).as_py()
    found = rows, summed.bytes, summed.sum.hexdigest(), name, _ms(first, name, 0), last_ms, withheld
    written = ArchivedFile(path, *found)
    if fault := storage.fault_in(written):
        raise StorageFailed(fault)
    return written


def _ms(table: pa.Table, name: Table, row: int) -> int:
    return int(table[TIMES[name]][row].cast(pa.int64()).as_py())


def row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, in tables of a row group."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        held.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.concat_tables(held)
