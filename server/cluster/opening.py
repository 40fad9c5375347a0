"""Opens a node's store with its connection to the log, and checks whose rows they are.

    no rows                       a new node: it begins with record 1, or with a copy of another's data
    rows up to a record           it continues there
    rows of its own               the log must be empty, and begins with them
    a log without records         a new one, or a lost one: it is begun by a rule of its own (beginning.py)

Two timelines cannot be joined: a node with its own rows is refused by a log that has records.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from shards.log.chained import ChainedLog
from shards.log.engine import Origin
from shards.log.errors import Damaged, NoLog, OtherClusterKey, Trimmed, UnknownVersion
from shards.log.opening import NAME, open_log, unopened_log
from shards.log.record import Seal, claim_of
from shards.recover import check_number, format_of
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore

from ..settings.config import Config, ConfigError
from .standing import Standing, standing_of

log = logging.getLogger(__name__)


def open_hand(config: Config) -> ChainedLog:
    """Connect to the log. Blocks, at most `takeover_after`. Raises ConfigError, LogDown, Unfit, NoLog."""
    return _reached(config, open_log)


def begin_log(
    config: Config, seal: Seal, timeline: str, node: str = "", last: int = 0, beyond: int = 0
) -> None:
    """Make the log, or empty it, to go on behind the record of `seal`. `node`: it may write the first record
    without asking others. `last`: the log's last place when this was decided. `beyond`: the next record comes
    behind this place. Blocks. Raises ConfigError, LogError: Fenced if it has another now."""
    hand = _reached(config, unopened_log)
    try:
        hand.begin(seal, Origin(timeline, node), last, beyond)
    finally:
        hand.close()


def _reached(config: Config, reach: Callable[..., ChainedLog]) -> ChainedLog:
    cluster = config.cluster
    if not NAME.fullmatch(cluster.name):
        raise ConfigError("cluster.name", f"may have a-z, 0-9 and _ only, got {cluster.name!r}")
    try:
        return reach(
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
    config: Config,
    through: Callable[[Callable[[], None]], None],
    tell: Callable[[Standing], None],
    *,
    may_begin: bool = False,
    damage: str = "",
) -> ReplicatedStore:
    """This node's store on the log. Blocks. `through` calls each of its writes into the log; `tell` is called
    with what it has. `may_begin`: it may write the first record. `damage`: what was found of the data before.

    Raises ConfigError for its own rows with a log that has records, NoLog if there is no log, or none with
    records; StoreLocked, WrongFormat, Corrupt, StoreFailed, and what the log raises.
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
        below.flush()  # what is told to others stays
        mine = standing_of(config.cluster.node, below)
        tell(mine)
        hand = open_hand(config)
    except BaseException:
        below.close()
        raise
    store = ReplicatedStore(below, hand, through)
    try:
        _check_records(config, hand, mine, may_begin=may_begin)
    except BaseException:
        store.close()
        raise
    return store


def _check_records(config: Config, hand: ChainedLog, mine: Standing, *, may_begin: bool) -> None:
    """Raise NoLog for a log without records that this node may not begin; ConfigError unless the log may have
    this store's own rows: it has no records, or this node has claimed it as its base."""
    first, last = hand.bounds()
    if mine.seq and (last == mine.seq or (first <= last > mine.seq)):
        if last > mine.seq:
            text = "node: its data ends at record %d of %s, the log at %d: it reads on"
            log.info(text, mine.seq, mine.time, last)
        return
    found, is_whole = None, True
    try:
        if first <= last:
            found = next(hand.read(0), None)  # None: there are only strays
    except (Trimmed, OtherClusterKey, Damaged, UnknownVersion):  # told as it follows
        is_whole = False
    if is_whole and found is None:
        if may_begin or (mine.seq == 0 and first == 1 and hand.origin.node == mine.node):
            return
        raise NoLog("the log has no records", last)
    claim = None if found is None else claim_of(found[2])
    if mine.seq or not mine.has_rows or (claim is not None and claim.has_base and claim.node == mine.node):
        return
    raise ConfigError(
        "store.dir",
        f"{config.store.dir} holds a timeline of its own, and the log {config.cluster.name} has another: "
        "a node joins with an empty directory",
    )
