"""Commands on a stopped server's data: inspect, verify, repair."""

import os
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgspec

from shards.errors import Corrupt, SharedData, StoreFailed, StoreLocked, WrongFormat
from shards.order import rebuild_index
from shards.pointers import Pointer, pointers
from shards.read import Reader
from shards.recover import check_own, format_of, place_in_log, read_directory, stored_cursor
from shards.rocks import RocksStore, is_open
from shards.store import Table
from shards.tables import META_APPLIED, META_LEADER, META_SEAL, META_TIMELINE
from shards.verify import (
    Damage,
    Fault,
    orphans,
    repair,
    strays,
    verify_counts,
    verify_owners,
    verify_tables,
)
from timeline.structures import Structures

from .cluster.swap import check_swapped
from .reports.inspecting import inspection_of, lines_of, summary_lines, summary_of


def inspect(
    path: Path, max_slices: int, *, split_above: int = 0, is_json: bool = False, is_summary: bool = False
) -> int:
    """Print slices, shards and sessions, as text or one JSON object, complete or as a summary. Returns 0.

    `split_above`: a slice with more rows is overfull.
    """
    store = _open_existing(path, is_read=True)
    try:
        if not is_json:
            _say_whose(store)
        found = inspection_of(store, str(path), max_slices)
    finally:
        store.close()
    summary = summary_of(found, split_above) if is_summary else None
    if is_json:
        _say(msgspec.json.encode(summary or found).decode())
    else:
        for line in lines_of(found) if summary is None else summary_lines(summary):
            _say(line)
    return 0


def verify(path: Path, max_slices: int, *, repair: bool) -> int:
    """Check derived data against the rows, and that everything can be read. Returns 0 if all is well or
    repaired, else 1.

    If the directory is damaged nothing is repaired. Raises Corrupt if it is lost, SharedData for data of a
    cluster.
    """
    store = _open_existing(path, is_read=not repair, for_repair=repair)
    try:
        if repair:
            _check_own(
                store,
                "repaired alone it would differ from the others: if another node is undamaged, empty this "
                "directory, and the node copies that one when it starts",
            )
        else:
            _say_whose(store)
        return _verify(store, max_slices, is_repair=repair)
    finally:
        store.close()


def _verify(store: RocksStore, max_slices: int, *, is_repair: bool) -> int:
    if is_repair:
        store.finish_rewrites()
    damages = verify_tables(store)
    for damage in damages:
        _say(str(damage))
    gone = [damage.table.value for damage in damages if damage.is_final]
    if gone:
        _say(f"table {', '.join(gone)} cannot be made again: nothing is repaired, restore a backup")
        return 1
    lost_shards = [damage for damage in damages if damage.table is Table.SHARDS]
    if lost_shards and not is_repair:
        _say("--repair counts these shards again; nothing else is looked at before")
        return 1
    if lost_shards:
        repair(store, lost_shards)
    cursor = stored_cursor(store, 0)
    directory = read_directory(store, max_slices)
    directory.floor = cursor.floor
    faults = verify_counts(store, directory)
    lost = strays(store, directory, cursor.floor)
    lone = orphans(store, directory)
    wrong = [] if lost or is_repair else list(pointers(store, directory))
    owners = verify_owners(store, directory, cursor.horizon)
    for found in (*faults, *lost, *lone, *wrong, *owners):
        _say(str(found))
    if is_repair:
        repair(store, [*lost, *lone])
        others = [damage for damage in damages if damage not in lost_shards]
        _repair(store, others, faults, max_slices, is_adopted=bool(lost))
        wrong = _repair_pointers(store, max_slices)
        # Last: lost messages are not pending, adopted strays are.
        owners_now = verify_owners(store, read_directory(store, max_slices), cursor.horizon)
        if owners_now:
            repair(store, owners_now)
        store.flush()  # from now on the repaired state counts as synced
    count = len(damages) + len(faults) + len(lost) + len(lone) + len(wrong) + len(owners)
    left = [str(one) for one in lost if not one.is_mendable] + [str(one) for one in lone if one.has_rows]
    _say(f"{count} faults" if count else "nothing wrong")
    if is_repair and left:
        _say(f"{len(left)} of them cannot be repaired: the end of that slice is unknown")
    return 0 if not count or (is_repair and not left) else 1


def _repair_pointers(store: RocksStore, max_slices: int) -> list[Pointer]:
    """Repair pointers, once all messages are in place. Returns the wrong ones."""
    directory = read_directory(store, max_slices)
    directory.floor = stored_cursor(store, 0).floor
    wrong = list(pointers(store, directory))
    for pointer in wrong:
        _say(str(pointer))
    if wrong:
        repair(store, wrong)
    return wrong


def _repair(
    store: RocksStore, damages: list[Damage], faults: list[Fault], max_slices: int, *, is_adopted: bool
) -> None:
    """Keep what can be read; drop the rest."""
    ranges = chain(*(damage.ranges for damage in damages), *(fault.ranges for fault in faults))
    if any(corrupt.is_cut for corrupt in ranges):
        raise StoreFailed("nothing is repaired: readable rows would be lost, see the log")
    unreadable = [damage.table for damage in damages if damage.ranges]
    if any(fault.ranges for fault in faults):
        unreadable.append(Table.MESSAGES)
    lost = sum(f.shard.count - f.counted.count for f in faults if f.ranges)
    if faults:
        # First: once a lost structure's row is gone its number may be reused.
        repair(store, faults)
    for table in unreadable:
        store.rewrite(table)
        _say(f"table {table.value} is rebuilt from its readable rows")
    if damages:
        repair(store, damages)
    if any(damage.table is Table.ORDER for damage in damages):
        directory = read_directory(store, max_slices)
        count = rebuild_index(store, Reader(store, directory, Structures(max_structures=1)))
        _say(f"table order: {count} messages wait for their keys")
    if is_adopted or Table.MESSAGES in unreadable:
        # Rows were read around damage from both ends, or by borrowers: the counts may differ.
        again = verify_counts(store, read_directory(store, max_slices))
        repair(store, again)
        lost += sum(f.shard.count - f.counted.count for f in again if Table.MESSAGES in unreadable)
    if faults:
        _say(f"repaired {len(faults)} shards" + (f"; {lost} messages are lost" if lost > 0 else ""))


def leave(path: Path) -> int:
    """Turn data of a cluster's node into standalone data: rows without a log. Returns 0."""
    store = _open_existing(path)
    try:
        place = place_in_log(store)
        batch = store.batch()
        for key in (META_APPLIED, META_LEADER, META_SEAL, META_TIMELINE):
            batch.delete(Table.META, key)
        store.write(batch)
        store.flush()
    finally:
        store.close()
    _say(f"{path}: {'was of no cluster' if place is None else f'is of its own now, {place}'}")
    return 0


def _say_whose(store: RocksStore) -> None:
    """Print whether the data belongs to a cluster, if that can be read."""
    with suppress(Corrupt):
        place = place_in_log(store)
        if place is not None:
            _say(f"of a cluster's node, {place}")


def _check_own(store: RocksStore, instead: str) -> None:
    """Raise SharedData, which says what to do instead."""
    with suppress(Corrupt):  # the command itself finds what cannot be read
        try:
            check_own(store)
        except SharedData as error:
            raise SharedData(f"{error}; {instead}") from None


def _open_existing(path: Path, *, is_read: bool = False, for_repair: bool = False) -> RocksStore:
    """`is_read`: only read, so a read-only directory works."""
    check_swapped(path)
    if not (path / "CURRENT").exists():
        raise StoreFailed(f"{path} holds no data")
    read_only = is_read and not os.access(path, os.W_OK)
    if read_only and is_open(path):  # no lock can be taken there, but a lock can be seen
        raise StoreLocked(f"{path} is open in another process")
    store = RocksStore(path, read_only=read_only, for_repair=for_repair)
    try:
        with suppress(Corrupt):  # the command itself finds what cannot be read
            format_of(store)
    except WrongFormat:
        store.close()
        raise
    return store


def _say(line: str) -> None:
    print(line)  # noqa: T201
