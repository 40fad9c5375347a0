"""The space of what the leader has deleted, given back on a node that follows.

A leader compacts the slices that it has split or dropped (server/jobs). Its records say which ranges of
messages these were, and who reads them compacts the same ranges, one after the other, beside its reading: a
large one takes seconds. A node that ends before it comes to one leaves that to the engine, which gives the
space back as it rewrites its files anyhow.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from shards.replicated import ReplicatedStore
from shards.store import Table

log = logging.getLogger(__name__)

LOOK_S = 5.0


async def give_back(opened: Callable[[], ReplicatedStore | None], look_s: float = LOOK_S) -> None:
    """Until it is cancelled. `opened`: the node's store, if it is open."""
    loop = asyncio.get_running_loop()
    while True:
        store = opened()
        if store is not None:
            for emptied in store.take_emptied():
                try:
                    await loop.run_in_executor(None, partial(store.compact, Table.MESSAGES, *emptied))
                except Exception as error:  # the engine's own, if it was closed meanwhile
                    log.warning("compaction: failed: %s", error)
        await asyncio.sleep(look_s)
