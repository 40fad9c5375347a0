"""Derived data against the message rows that it can always be made from again."""

from dataclasses import dataclass

from timeline.position import Position
from timeline.slices import Directory, Shard

from .keys import place_of
from .placing import ROW_OVERHEAD
from .record import is_stub
from .store import Store, Table
from .tables import shard_value


@dataclass(frozen=True, slots=True)
class Fault:
    """A shard whose row says something else than its messages."""

    shard: Shard
    counted: Shard

    def __str__(self) -> str:
        said, is_ = self.shard, self.counted
        return (
            f"slice {said.home.start_ms} shard {said.number}: says {said.count} rows, {said.live} live, "
            f"has {is_.count} rows, {is_.live} live"
        )


def verify_counts(store: Store, directory: Directory) -> list[Fault]:
    """Count every shard. Raises Corrupt when rows cannot be read."""
    directory.check()
    faults = []
    for piece in directory:
        for shard in piece.shards.values():
            counted = _count(store, shard)
            if (counted.count, counted.live) != (shard.count, shard.live) or (
                shard.count and (counted.first, counted.last) != (shard.first, shard.last)
            ):
                faults.append(Fault(shard, counted))
    return faults


def repair_counts(store: Store, faults: list[Fault]) -> None:
    """Write what was counted; durable on return."""
    batch = store.batch()
    for fault in faults:
        batch.put(Table.SHARDS, fault.counted.prefix, shard_value(fault.counted))
    store.write(batch)
    store.flush()


def _count(store: Store, shard: Shard) -> Shard:
    counted = Shard(shard.home, shard.number, shard.structure)
    for key, value in store.scan(Table.MESSAGES, shard.prefix, _after(shard.prefix)):
        counted.grow(Position(place_of(key)), len(value) + ROW_OVERHEAD)
        if is_stub(value):
            counted.live -= 1
    return counted


def _after(prefix: bytes) -> bytes:
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
