"""What is wrong in a data directory that nobody has open, as `verify` finds it; nothing is written.

And whether a group and what its batch says of it came together: no row has a seq that has not been given out.
"""

from itertools import chain
from pathlib import Path

from shards.keys import place_of
from shards.pointers import pointers
from shards.recover import read_directory, stored_cursor
from shards.rocks import RocksStore
from shards.store import Table
from shards.unreadable import readable
from shards.verify import ROWS_END, orphans, strays, verify_counts, verify_owners, verify_tables
from timeline.position import seq_of


def verified(data: Path) -> list[str]:
    """Each begins with its kind in the ledger."""
    store = RocksStore(data, read_only=True)
    cursor = stored_cursor(store, 0)
    directory = read_directory(store, 1 << 20)
    directory.floor = cursor.floor
    found: list[object] = [
        *verify_tables(store),
        *verify_counts(store, directory),
        *strays(store, directory, cursor.floor),
        *orphans(store, directory),
        *pointers(store, directory),
        *verify_owners(store, directory, cursor.horizon),
    ]
    rows = chain(*(readable(store, table, b"", ROWS_END) for table in (Table.MESSAGES, Table.HELD)))
    last = max((seq_of(place_of(key)) for key, _ in rows), default=0)
    if last > cursor.seq:
        found.append(f"there is a row of seq {last}, the last one that was given out is {cursor.seq}")
    store.close()
    return [f"not verified: {one}" for one in found]
