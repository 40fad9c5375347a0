"""The rows that an endpoint which is behind has still to read: those that are noted, then all that there are.

Dispatch notes them (ahead.py). The notes are in RAM: a start makes them again for what was dispatched last.
"""

from collections.abc import Iterator
from contextlib import suppress

from shards.errors import Corrupt
from shards.read import Reader, Row
from timeline.horizon import Horizon
from timeline.position import Position, at_of, before

from .ahead import Ahead
from .membership import Membership
from .place import Place
from .router import Router

RESTORED_MS, RESTORED_ROWS, RESTORED_BYTES = 300_000, 200_000, 256 << 20
"""How far back a start looks for what endpoints have still to read: so long, and so many rows or bytes, about
a second."""


class EndpointRows:
    """Reads the store for endpoints."""

    def __init__(self, reader: Reader, horizon: Horizon, router: Router, groups: Membership) -> None:
        self._reader = reader
        self._horizon = horizon
        self._router = router
        self._groups = groups

    def after(self, ahead: Ahead, read: Position) -> Iterator[Row]:
        """Rows behind `read`, up to the horizon, that an endpoint may have to post."""
        horizon = self._horizon.position
        for place, shard in ahead.after(read):
            try:
                value = self._reader.value_at(place, shard)
            except Corrupt:
                ahead.forget()
                read = Position(place - 1)
                break
            if value is not None:
                yield place, shard, value
        if ahead.sure < horizon:
            yield from self._every(max(read, ahead.sure), horizon)

    def restore(self) -> None:
        """At start: note what endpoints have still to read of the last while, in one pass over it."""
        horizon = self._horizon.position
        start = max(self._reader.directory.floor, before(max(0, at_of(horizon) - RESTORED_MS)))
        found: dict[Place, Ahead] = {}
        for group in self._groups:
            if group.ahead is not None and start <= group.session.read:
                group.ahead.begin()
                found[group] = group.ahead
        if not found:
            return
        looked = size = 0
        for place, shard, value in self._every(min([one.session.read for one in found]), horizon):
            looked, size = looked + 1, size + len(value)
            with suppress(Corrupt):
                for one in self._router.posted_in(value, place):
                    if one in found and place > one.session.read:
                        found[one].note(place, shard)
            if looked == RESTORED_ROWS or size >= RESTORED_BYTES:
                for ahead in found.values():
                    ahead.sure = min(ahead.sure, place)
                return

    def _every(self, read: Position, horizon: Position) -> Iterator[Row]:
        """Rows behind `read` where messages to endpoints stand: structure 0."""
        structures = self._reader.structures.overlapping(())
        return self._reader.read(Position(read + 1), Position(horizon + 1), structures)
