"""Derived data against the message rows that it can always be made from again."""

from dataclasses import dataclass
from itertools import chain

from timeline.position import Position
from timeline.slices import Directory, Shard

from .group import ROW_OVERHEAD
from .keys import place_of, shard_range, span_range
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
    """Count every shard, a borrowed one once. Raises Corrupt when rows cannot be read."""
    directory.check()
    shards = {shard.prefix: shard for piece in directory for shard in piece.readable()}
    own = {shard.prefix for piece in directory for shard in piece.shards.values()}
    spans: dict[bytes, list[tuple[bytes, bytes]]] = {prefix: [shard_range(prefix)] for prefix in own}
    for piece in directory:
        for prefix in (shard.prefix for shard in piece.borrowed.values()):
            # What has expired of it belongs to nobody, and may still lie there.
            spans.setdefault(prefix, []).append(span_range(prefix, piece.start_ms, piece.end_ms))
    faults = []
    for prefix, shard in shards.items():
        counted = _count(store, shard, spans[prefix])
        is_right = (counted.count, counted.live) == (shard.count, shard.live)
        if is_right and shard.count:
            # What is borrowed by fewer than before keeps its bounds.
            is_inside = shard.first <= counted.first and counted.last <= shard.last
            is_right = is_inside and (
                prefix not in own or (counted.first, counted.last) == (shard.first, shard.last)
            )
        if not is_right:
            faults.append(Fault(shard, counted))
    return faults


def repair_counts(store: Store, faults: list[Fault]) -> None:
    """Write what was counted; durable on return."""
    batch = store.batch()
    for fault in faults:
        batch.put(Table.SHARDS, fault.counted.prefix, shard_value(fault.counted))
    store.write(batch)
    store.flush()


def _count(store: Store, shard: Shard, spans: list[tuple[bytes, bytes]]) -> Shard:
    counted = Shard(shard.home, shard.number, shard.structure)
    for key, value in chain.from_iterable(store.scan(Table.MESSAGES, *span) for span in spans):
        counted.grow(Position(place_of(key)), len(value) + ROW_OVERHEAD)
        if is_stub(value):
            counted.live -= 1
    return counted
