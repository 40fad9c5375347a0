"""Opens a node's store with its connection to the log, and checks whose rows they are.

    no rows                       a new node: it begins with record 1, or with a copy of another's data
    rows up to a record           it continues there
    rows of its own               the log must be empty, and begins with them

Two timelines cannot be joined: a node with its own rows is refused by a log that has records.
"""

import time
from collections.abc import Callable
from pathlib import Path

from shards.log.contract import Log
from shards.log.errors import Damaged, OtherKey, Trimmed
from shards.log.opening import NAME, open_log
from shards.log.record import claim_of
from shards.recover import check_number, format_of
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore

from ..settings.config import Config, ConfigError


def open_hand(config: Config) -> Log:
    """Connect to the log. Blocks, at most `takeover_after`. Raises ConfigError, LogDown, Unfit."""
    cluster = config.cluster
    if not NAME.fullmatch(cluster.name):
        raise ConfigError("cluster.name", f"may have a-z, 0-9 and _ only, got {cluster.name!r}")
    try:
        return open_log(
            cluster.log,
            cluster.name,
            time,
            deadline_s=cluster.takeover_after_ms / 1000,
            keys=cluster.keys,
            must_replicate=not cluster.allow_unreplicated,
        )
    except ValueError as error:
        raise ConfigError("cluster.log", str(error)) from None


def open_store(
    config: Config, through: Callable[[Callable[[], None]], None], damage: str = ""
) -> ReplicatedStore:
    """This node's store on the log. `through` calls each of its writes into the log. `damage`: what was found
    of it before. Blocks.

    Raises ConfigError for its own rows with a log that has records, StoreLocked, WrongFormat, Corrupt,
    StoreFailed, and what the log raises.
    """
    below = RocksStore(
        Path(config.store.dir),
        memtable_bytes=config.store.memtable_bytes,
        cache_bytes=config.store.cache_bytes,
        damage=damage,
    )
    try:
        format_of(below)
        check_number(below, config.store.number)
        hand = open_hand(config)
    except BaseException:
        below.close()
        raise
    store = ReplicatedStore(below, hand, through)
    try:
        if store.has_rows and store.applied.seq == 0:
            _check_own(config, hand)
    except BaseException:
        store.close()
        raise
    return store


def _check_own(config: Config, hand: Log) -> None:
    """Raise unless the log may begin with this store's rows: it is empty, or this node has claimed it as its
    base."""
    _, last = hand.bounds()
    if last == 0:
        return
    try:
        first = next(hand.read(0), None)
    except (Trimmed, OtherKey, Damaged):
        pass
    else:
        claim = None if first is None else claim_of(first[2])  # None: there are only strays
        if claim is None or (claim.has_base and claim.node == config.cluster.node):
            return
    raise ConfigError(
        "store.dir",
        f"{config.store.dir} holds a timeline of its own, and the log {config.cluster.name} has another: "
        "a node joins with an empty directory",
    )
