"""`fasti-server cluster init` and `cluster heal`: a person begins a log where the nodes do not by themselves.

They work through the log and the other nodes' HTTP. This node may run or be stopped. `heal` takes the heard
node that has the most, and lets the log go on behind its last record (shards/log/chained.py). Nodes that have
other records from there on say so in `why`, and wait for a person.

The log goes on at the next multiple of FORK, further than any node can be ahead of those that are heard. So
whoever has followed it since has a later claim than any that was abandoned, and is the furthest at the next
`heal`:

    node c, not heard            990   1,000 claim   1,010
    begun behind 990 of node b         1,000,000,001 claim   1,000,000,002
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from shards.log.chained import ChainedLog
from shards.log.errors import Damaged, NoLog, Trimmed
from shards.log.record import ORIGIN, claim_of
from shards.replicated import new_timeline
from shards.rocks import RocksStore

from ..settings.config import Config, ConfigError
from ..settings.public import public_url
from .beginning import ask
from .key import ClusterKey
from .opening import begin_log, open_hand
from .standing import Standing, standing_of
from .swap import check_swapped

DONE, NOT_DONE = 0, 1
FORK = 1_000_000_000
"""Places of the log between two at which it is begun anew."""


def run(config: Config, verb: str, *, accepts_loss: bool) -> int:
    """Run `init` or `heal`. Returns the exit code. Raises ConfigError, ShardsError."""
    if not config.cluster.log:
        raise ConfigError("cluster.log", "is not set: this server is alone, and needs no log")
    heard = asyncio.run(_heard(config))
    return _init(config, heard) if verb == "init" else _heal(config, heard, accepts_loss=accepts_loss)


async def _heard(config: Config) -> dict[str, Standing | None]:
    """The standing of each node, this one first."""
    mine = public_url(config, str(config.http.listen))
    async with aiohttp.ClientSession() as session:
        heard = await ask(session, (mine, *config.cluster.peers), ClusterKey(config.cluster.keys))
    return {mine: heard.pop(mine) or _stopped(config), **heard}


def _stopped(config: Config) -> Standing:
    """The standing of this node, which does not run."""
    path = Path(config.store.dir)
    check_swapped(path)
    if not (path / "CURRENT").exists():
        return Standing(config.cluster.node)
    store = RocksStore(path)
    try:
        return standing_of(config.cluster.node, store)
    finally:
        store.close()


def _init(config: Config, heard: dict[str, Standing | None]) -> int:
    cluster = config.cluster
    try:
        open_hand(config).close()
    except NoLog:
        pass
    else:
        _say(f"the log {cluster.name} is there already; if it is empty, delete it first")
        return NOT_DONE
    others = [one for one in heard.values() if one is not None and one.seq]
    if others:
        _say(
            f"node {others[0].node} has a timeline, up to record {others[0].seq:,}: its log is lost, use heal"
        )
        return NOT_DONE
    own = sorted({one.node for one in heard.values() if one is not None and one.has_rows} - {cluster.node})
    if own:
        _say(f"node {' and '.join(own)} has a timeline of its own: run init there, or empty its directory")
        return NOT_DONE
    timeline = new_timeline()
    begin_log(config, ORIGIN, timeline, cluster.node)
    _say(f"the log {cluster.name} is made for timeline {timeline}; node {cluster.node} begins it")
    if None in heard.values():
        _say("a node that was not heard can only join it with an empty directory")
    return DONE


def _heal(config: Config, heard: dict[str, Standing | None], *, accepts_loss: bool) -> int:
    for url, one in heard.items():
        _say(f"{url}: {'no answer' if one is None else _status_line(one)}")
    nodes = [one for one in heard.values() if one is not None]
    furthest = max(nodes, key=_place)
    last, reason = _look(config, nodes)
    if reason or not furthest.seq:
        _say(reason or "no node that was heard has records: start the others, or use init for a new timeline")
        return NOT_DONE if not reason.endswith("nothing to heal") else DONE
    if len({one.timeline for one in nodes if one.timeline}) > 1:
        _say("these are nodes of different timelines: nothing was changed")
        return NOT_DONE
    upto = max(last, *(max(one.seq, one.heard) for one in nodes))
    fork = (upto // FORK + 1) * FORK
    _say(
        f"the log would go on behind record {furthest.seq:,} of node {furthest.node}, at record {fork + 1:,}"
    )
    if upto > furthest.seq:
        _say(f"lost: records {furthest.seq + 1:,} to {upto:,}, written after {furthest.time}")
    if 0 < last <= furthest.seq:
        _say(f"lost: what the log has up to record {last:,}, where it is not what node {furthest.node} has")
    if None in heard.values():
        _say("a node that was not heard may have more: its later records are lost, too")
    if not accepts_loss:
        _say("nothing was changed: stop here, or repeat it with --accept-loss")
        return NOT_DONE
    begin_log(config, furthest.seal, furthest.timeline or new_timeline(), last=last, beyond=fork)
    _say(f"done: node {furthest.node} goes on, the others take a copy where they lack records")
    return DONE


def _place(one: Standing) -> tuple[int, int]:
    """Orders nodes: an abandoned end may have more records."""
    return one.epoch, one.seq


def _look(config: Config, nodes: Sequence[Standing]) -> tuple[int, str]:
    """The last record of the log, 0 if there is none, and why not to heal it."""
    try:
        hand = open_hand(config)
    except NoLog:
        return 0, ""
    try:
        _, last = hand.bounds()
        time.sleep(config.cluster.takeover_after_ms / 1000)
        first, now = hand.bounds()
        if now > last:
            return now, _writing(nodes)
        for one in sorted(nodes, key=_place, reverse=True):
            is_ahead = any(other.seq > last and other.timeline == one.timeline for other in nodes)
            if not is_ahead and _fits(hand, one, first, last):
                return last, f"node {one.node} goes on with the log as it is: nothing to heal"
        timeline = _timeline(hand, last)
        other = [one.node for one in nodes if timeline and one.timeline not in ("", timeline)]
        if other:
            return last, f"the log is of timeline {timeline}, which is not that of {', '.join(other)}"
        return last, ""
    finally:
        hand.close()


def _writing(nodes: Sequence[Standing]) -> str:
    """The reason not to heal a log to which a node writes."""
    of = {one.timeline: one.node for one in nodes if one.leads}
    others = [one.node for one in nodes if one.timeline and of and one.timeline not in of]
    if others:
        return (
            f"node {of.popitem()[1]} leads on another timeline than {', '.join(others)}:"
            " keep one of them (docs/cluster.md, A node)"
        )
    return "a node writes into the log: nothing to heal"


def _fits(hand: ChainedLog, one: Standing, first: int, last: int) -> bool:
    """Whether a node can go on with the log."""
    if first > last:
        return 0 < one.seq == last
    seal = one.seal if one.seq else ORIGIN
    there = hand.seal_at(seal.seq)
    if last < seal.seq or (there is not None and seal.digest and there.digest != seal.digest):
        return False
    hand.stand(seal)
    found = None
    try:
        for record in hand.read(seal.seq):
            found = found or record
    except (Trimmed, Damaged):
        return False
    if hand.is_doubtful:
        return False
    return one.seq > 0 or (found is not None and not claim_of(found[2]).has_base)


def _timeline(hand: ChainedLog, last: int) -> str:
    """The id of the log's timeline; empty: it cannot be told."""
    try:
        seal = hand.seal_at(last)
        if seal is not None and hand.seal_at(seal.epoch) is not None:
            for _, _, data in hand.read(seal.epoch - 1):
                return claim_of(data).timeline
    except (Trimmed, Damaged):
        pass
    return hand.origin.timeline


def _status_line(one: Standing) -> str:
    if not one.seq:
        return f"node {one.node}, {'a timeline of its own' if one.has_rows else 'no data'}"
    state = "leads" if one.leads else "finds no log" if one.is_lost else "does not lead"
    timeline = one.timeline or "without id"
    return f"node {one.node}, record {one.seq:,} of {one.time}, timeline {timeline}, {state}"


def _say(line: str) -> None:
    print(line)  # noqa: T201
