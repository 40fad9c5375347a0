"""Frees the space of rows that the leader has deleted, on a follower.

A leader compacts the slices that it has split or dropped (server/jobs). Its records contain these ranges of
messages. A follower compacts the same ranges, one after the other, while it reads on: a large one takes
seconds. If a node stops before it comes to a range, the engine frees the space later, when it rewrites its
files.
"""

import asyncio
import logging
from collections.abc import Callable

from shards.replicated import ReplicatedStore
from shards.store import Table

log = logging.getLogger(__name__)

LOOK_S = 5.0


async def give_back(opened: Callable[[], ReplicatedStore | None], look_s: float = LOOK_S) -> None:
    """Run until cancelled. `opened`: the node's store, if it is open."""
    while True:
        store = opened()
        if store is not None:
            for emptied in store.take_emptied():
                try:
                    await asyncio.to_thread(store.compact, Table.MESSAGES, *emptied)
                except Exception as error:  # the engine's own error, if it was closed meanwhile
                    log.warning("compaction: failed: %s", error)
        await asyncio.sleep(look_s)
