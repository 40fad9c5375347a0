"""What a node tells of itself when a log is to be begun, and what the nodes conclude from it.

    nothing anywhere          a new timeline: any node begins it
    rows of one node's own    that node begins it, and the others take a copy
    records in some nodes     the log is lost: whoever has the most begins it anew behind its last record

All nodes of `cluster.peers` must have answered, and each must have found the log lost itself. Then none can
get a record that it did not tell of, and what no node has is nowhere. Else a person decides: `fasti-server
cluster init` for a new timeline, `heal --accept-loss` for one that has records (healing.py).
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from shards.log.record import VERSION, Seal
from shards.recover import place_in_log
from shards.replicated import timeline_in
from shards.store import Store, Table
from shards.tables import META_CURSOR, META_FORMAT, cursor_from
from timeline.horizon import BOUND_MS

from ..settings.times import format_ms

INIT = "`fasti-server cluster init` on the node that shall begin"
HEAL = "`fasti-server cluster heal` says what would be lost"


class Standing(msgspec.Struct, frozen=True):
    """A node's last record, with the epoch and digest (hexadecimal) of its seal; 0: none."""

    node: str
    seq: int = 0
    epoch: int = 0
    digest: str = ""
    version: int = VERSION
    """Format version of its last record."""
    timeline: str = ""
    """The timeline's id; empty: none."""
    has_rows: bool = False
    """Whether there is a timeline in its store, of the log or its own."""
    at_ms: int = 0
    """Time of its last record by its leader's clock; 0: unknown."""
    is_lost: bool = False
    """Whether it waits because there is no log, or none with records."""
    leads: bool = False
    heard: int = 0
    """The last record that it has heard of any node."""
    log: str = ""
    """Its `cluster.name`; empty: an earlier version, which does not report it."""

    def up_to(self, seal: Seal, timeline: str) -> "Standing":
        """The same with the log up to a record."""
        seq, epoch, digest = seal
        has_rows = self.has_rows or seq > 0
        return replace(self, seq=seq, epoch=epoch, digest=digest.hex(), timeline=timeline, has_rows=has_rows)

    @property
    def seal(self) -> Seal:
        """Raises ValueError for a digest that is none."""
        return Seal(self.seq, self.epoch, bytes.fromhex(self.digest))

    @property
    def time(self) -> str:
        """Time of its last record, as text."""
        return format_ms(self.at_ms) if self.at_ms else "an unknown time"


def standing_of(node: str, store: Store) -> Standing:
    """The standing of a node with this store. Raises StoreFailed, Corrupt, Damaged."""
    place, has_rows = place_in_log(store), store.get(Table.META, META_FORMAT) is not None
    mine = Standing(node, has_rows=has_rows, at_ms=written_ms(store))
    return mine if place is None else mine.up_to(place, timeline_in(store))


def written_ms(store: Store) -> int:
    """Time of the store's last record; 0: unknown. Raises StoreFailed, Corrupt, Damaged."""
    cursor = store.get(Table.META, META_CURSOR)
    return 0 if cursor is None else max(0, cursor_from(cursor).bound_ms - BOUND_MS)


class Verdict(NamedTuple):
    """Whether this node begins the log now; else why not."""

    begins: bool
    why: str = ""


def verdict(mine: Standing, peers: Mapping[str, Standing | None]) -> Verdict:
    """`peers`: the answers of all nodes of `cluster.peers`, by URL; None: no answer."""
    a_person = HEAL if mine.seq else INIT
    if not peers:
        return Verdict(False, f"no peers are named that could have the timeline: {a_person}")
    silent = [url for url, answer in peers.items() if answer is None]
    if silent:
        return Verdict(
            False, f"waits until all of cluster.peers answer, {', '.join(silent)} do not; {a_person}"
        )
    answers = [answer for answer in peers.values() if answer is not None]
    all_ = [*answers, mine]
    if len({one.node for one in answers}) < len(peers):
        return Verdict(False, "two of cluster.peers answer as the same node")
    logs = {one.node: one.log for one in all_ if one.log}
    if len(set(logs.values())) > 1:
        names = ", ".join(f"{log} on {node}" for node, log in sorted(logs.items()))
        return Verdict(False, f"cluster.name is not the same on all nodes: {names}")
    seeing = list(dict.fromkeys(one.node for one in all_ if not one.is_lost))
    if seeing:
        return Verdict(False, f"waits for {', '.join(seeing)}, which has not found the log lost")
    last, heard = (max(getattr(one, name) for one in all_) for name in ("seq", "heard"))
    if heard > last:
        return Verdict(
            False, f"a node had record {heard:,}, and the last one left is {last:,}: {HEAL if last else INIT}"
        )
    return _furthest(mine, all_) if any(one.seq for one in all_) else _first(mine, all_)


def is_last(mine: Standing, peers: Mapping[str, Standing | None]) -> bool:
    """Whether no node has a record that this one lacks: then there is none. Not without all answers; one that
    cannot open its store says 0."""
    answers = [answer for answer in peers.values() if answer is not None]
    are_all = bool(peers) and len({one.node for one in answers}) == len(peers)
    return are_all and all(0 < one.seq <= mine.seq >= one.heard and not one.leads for one in answers)


def _first(mine: Standing, all_: list[Standing]) -> Verdict:
    """The verdict for a new timeline."""
    own = list(dict.fromkeys(one.node for one in all_ if one.has_rows))
    if len(own) > 1:
        names = f"{' and '.join(own)} have each a timeline of their own"
        return Verdict(False, f"{names}: start all but one with an empty directory")
    begins = not own or own == [mine.node]
    return Verdict(begins, "" if begins else f"waits for {own[0]}, whose timeline begins the log")


def _furthest(mine: Standing, all_: list[Standing]) -> Verdict:
    """The verdict after a lost log."""
    last = max(one.seq for one in all_)
    first_of = [one for one in all_ if one.seq == last]
    if len({one.timeline for one in all_ if one.timeline}) > 1:
        names = ", ".join(f"{one.node} {one.timeline}" for one in all_ if one.timeline)
        return Verdict(False, f"the nodes have different timelines: {names}")
    later = [one for one in all_ if one.epoch > first_of[0].epoch]  # a claim that the furthest never read
    if later or len({(one.epoch, one.digest) for one in first_of}) > 1 or not first_of[0].digest:
        names = " and ".join(dict.fromkeys(one.node for one in [*first_of, *later]))
        return Verdict(False, f"record {last:,} of {names} cannot be compared, or differs: {HEAL}")
    begins = mine.seq == last
    return Verdict(begins, "" if begins else f"waits for {first_of[0].node}, which has the most of it")
