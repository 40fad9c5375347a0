"""Commands on a stopped server's data: look, check, repair."""

from contextlib import suppress
from itertools import chain
from pathlib import Path

from shards import keys
from shards.errors import Corrupt, StoreFailed, WrongFormat
from shards.recover import format_of, read_directory, stored_cursor
from shards.rocks import RocksStore
from shards.store import Table
from shards.tables import session_of
from shards.verify import (
    DIRECTORY,
    Damage,
    Fault,
    adopt_strays,
    repair_counts,
    repair_owners,
    repair_rows,
    strays,
    verify_counts,
    verify_owners,
    verify_tables,
)
from timeline.position import at_of

from .clock import SystemClock
from .config import Config
from .core import timeline_of
from .schedules.retime import note_zones, zones_version
from .schedules.retime import retime as retime_all
from .times import format_ms


def inspect(path: Path, max_slices: int) -> int:
    """Print slices, shards and sessions; 0."""
    store = _open_existing(path)
    cursor = stored_cursor(store, 0)
    directory = read_directory(store, max_slices)
    _say(f"{path}: horizon {format_ms(at_of(cursor.horizon))}, bound {format_ms(cursor.bound_ms)}")
    _say(f"last seq {cursor.seq}, running {cursor.running_ms // 1000} s, {len(directory)} slices")
    _say("slice                     end                       gen  rows       live       bytes        shards")
    for piece in directory:
        _say(
            f"{format_ms(piece.start_ms):25} {format_ms(piece.end_ms):25} {piece.generation:<4} "
            f"{piece.count:<10} {piece.live:<10} {piece.bytes:<12} {len(piece.shards)}"
        )
        for shard in piece.shards.values():
            span = f"first {format_ms(at_of(shard.first))}, last {format_ms(at_of(shard.last))}"
            rows = f"{shard.count} rows, {shard.live} live, {shard.bytes} bytes"
            _say(f"  shard {shard.number}: structure {shard.structure}, {rows}, {span}")
        for shard in piece.borrowed.values():
            home = f"{format_ms(shard.home.start_ms)} generation {shard.home.generation}"
            _say(f"  shard {shard.number}: borrowed from {home}, {shard.count} rows with all who borrow it")
    for key, value in store.scan(Table.SESSIONS, b"", keys.LAST):
        filters = ", ".join(f"{s.filter} (QoS {s.qos})" for s in session_of(value).subscriptions)
        _say(f"session {key.decode()}: {filters or 'no subscriptions'}")
    store.close()
    return 0


def verify(path: Path, max_slices: int, *, repair: bool) -> int:
    """Check derived data against the rows, and that all can be read; 0 if all is well or repaired, else 1.

    What is damaged in the directory cannot be repaired, and then nothing is. Raises Corrupt: it has gone.
    """
    store = _open_existing(path, for_repair=repair)
    if repair:
        store.finish_rewrites()
    damages = verify_tables(store)
    for damage in damages:
        _say(str(damage))
    gone = [damage.table.value for damage in damages if damage.table in DIRECTORY]
    if gone:
        store.close()
        _say(f"table {', '.join(gone)} cannot be made again: nothing is repaired, restore a backup")
        return 1
    cursor = stored_cursor(store, 0)
    directory = read_directory(store, max_slices)
    faults = verify_counts(store, directory)
    lost = strays(store, directory, cursor.floor)
    owners = verify_owners(store, directory, cursor.horizon)
    for fault in (*faults, *lost, *owners):
        _say(str(fault))
    if repair:
        adopt_strays(store, lost)
        _repair(store, damages, faults, max_slices)
        # After all else: what is lost is not pending, what was a stray is.
        repair_owners(store, verify_owners(store, read_directory(store, max_slices), cursor.horizon))
    store.close()
    count = len(damages) + len(faults) + len(lost) + len(owners)
    _say(f"{count} faults" if count else "nothing wrong")
    return 0 if not count or (repair and all(stray.is_known for stray in lost)) else 1


def _repair(store: RocksStore, damages: list[Damage], faults: list[Fault], max_slices: int) -> None:
    """What can be read is kept; the rest is gone."""
    stretches = chain(*(damage.stretches for damage in damages), *(fault.stretches for fault in faults))
    if any(stretch.is_cut for stretch in stretches):
        raise StoreFailed("nothing is repaired: rows would go that can be read, see the log")
    unreadable = [damage.table for damage in damages if damage.stretches]
    if any(fault.stretches for fault in faults):
        unreadable.append(Table.MESSAGES)
    lost = sum(f.shard.count - f.counted.count for f in faults if f.stretches)
    if faults:
        # First: once a lost structure's row has gone, its number may be given again.
        repair_counts(store, faults)
    for table in unreadable:
        store.rewrite(table)
        _say(f"table {table.value} is made anew from what can be read of it")
    if damages:
        repair_rows(store, damages)
    if Table.MESSAGES in unreadable:
        # Rows were read round the damage from both ends: the counts of the two need not agree.
        again = verify_counts(store, read_directory(store, max_slices))
        repair_counts(store, again)
        lost += sum(f.shard.count - f.counted.count for f in again)
    if faults:
        _say(f"repaired {len(faults)} shards" + (f"; {lost} messages are lost" if lost > 0 else ""))


def retime(path: Path, config: Config) -> int:
    """Move pending messages to where their local wall times are now; print each; 0."""
    store = _open_existing(path)
    clock = SystemClock()
    report = retime_all(timeline_of(config, clock, store), clock.wall_ms(), _say)
    note_zones(store, zones_version())
    store.close()
    _say(f"time zones {zones_version()}: {report}")
    return 0


def _open_existing(path: Path, *, for_repair: bool = False) -> RocksStore:
    if not (path / "CURRENT").exists():
        raise StoreFailed(f"{path} holds no data")
    store = RocksStore(path, for_repair=for_repair)
    try:
        with suppress(Corrupt):  # what cannot be read is found by the command
            format_of(store)
    except WrongFormat:
        store.close()
        raise
    return store


def _say(line: str) -> None:
    print(line)  # noqa: T201
