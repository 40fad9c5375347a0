"""What is wrong in a data directory that nobody has open, as `verify` finds it; nothing is written."""

from pathlib import Path

from shards.pointers import pointers
from shards.recover import read_directory, stored_cursor
from shards.rocks import RocksStore
from shards.verify import orphans, strays, verify_counts, verify_owners, verify_tables


def verified(data: Path) -> list[str]:
    """Each begins with its kind in the ledger."""
    store = RocksStore(data, read_only=True)
    cursor = stored_cursor(store, 0)
    directory = read_directory(store, 1 << 20)
    directory.floor = cursor.floor
    found = [
        *verify_tables(store),
        *verify_counts(store, directory),
        *strays(store, directory, cursor.floor),
        *orphans(store, directory),
        *pointers(store, directory),
        *verify_owners(store, directory, cursor.horizon),
    ]
    store.close()
    return [f"not verified: {one}" for one in found]
