"""Three nodes and their log, as the disk of the server in the model.

Each node has a store of its own, of which a power failure may take what was not synced, and an engine of the
log, which loses requests, answers, or delivers late. One of them leads; its batches are the model's. One that
led before may still believe that it does. A node that the log has been trimmed for takes a copy of another.

Of what people do to it: they publish strays into the log, purge or delete it, give it a bound that is small,
give a node another key, put an old copy of its data back. And a row of a node may rot (node_rot.py).
"""

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from server.cluster import standing
from server.cluster.engine_side import LogSide
from server.cluster.members import ALIVE_S, Member, Members
from server.cluster.standing import Standing
from server.cluster.trimming import Trimming
from shards.changes import Changes, Recorded, decode_changes
from shards.errors import StoreFailed
from shards.log.chain import Chain
from shards.log.chained import ChainedLog, open_engine
from shards.log.engine import LogState, Origin
from shards.log.errors import LogError, Trimmed
from shards.log.record import ORIGIN
from shards.replicated import ReplicatedStore, applied_of
from shards.store import Batch, Table
from tests.support.logs import Elapsing, Faulty, Lost
from tests.support.memory_store import MemoryBatch, MemoryStore
from tests.support.shelf import MemoryEngine, Shelf

from .node_rot import Rotting, scrubbed
from .oracle import need

NODES = 3
DEADLINE_S = 0.2
LAST = b"\xff" * 64
KEYS = ("the key of the nodes",)
OTHER_KEYS = ("a key of another cluster",)
STRAYS = (b"", b"hello", bytes(64), b"\xff" * 200)
KEEP_BYTES = 1 << 20
LEAST_BYTES = 8 << 10
"""Bound of a log that is small: of some records."""

T = TypeVar("T")


class Shared(ReplicatedStore):
    """A node's store, whose batches can be looked at: those that came with the log and those written here."""

    def __init__(self, below: MemoryStore, log: ChainedLog, cluster: "Cluster") -> None:
        super().__init__(below, log)
        self.log: list[MemoryBatch] = []
        self.durable = 0
        self._cluster = cluster

    def lead(self, node: str, url: str) -> None:
        super().lead(node, url)
        self.log = self._cluster.batches()
        self.durable = len(self.log)

    def reopen(self) -> None:
        super().reopen()
        self.log = self._cluster.batches()
        self.durable = len(self.log)

    def write(self, batch: Batch) -> None:
        super().write(batch)
        assert isinstance(batch, Recorded)
        self.log.append(_seen(batch.changes))

    def written(self) -> int:
        return len(self.log)

    def flush_to(self, written: int) -> None:
        while self.durable < written:
            super().flush_to(self._settled + 1)
            self.durable += 1


class Node:
    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.name = f"node-{number}"
        self.below = Rotting()
        self.number = number
        self.engine = Faulty(MemoryEngine(cluster.shelf))
        self.saved: tuple[list[MemoryBatch], int] = ([], 0)
        """A copy of its store that somebody has made, and the record up to which that has the log."""
        self.synced = 0
        """Up to which record its store has the log, whatever becomes of the machine."""
        self.has_surprise = False
        """An append of its own that it had given up has come to the log since it last read that."""
        self.has_heir = False
        """Whether another node could lead in its place, as far as it knows."""
        self._cluster = cluster
        self.start()

    def start(self, keys: Sequence[str] = KEYS) -> None:
        """The process begins, on what the store has. What was under way of the one before may still come."""
        clock = Elapsing()
        self.engine.plan.clear()
        self.below.fail_writes = False
        self.store = Shared(self.below, open_engine(self.engine, clock, DEADLINE_S, keys), self._cluster)
        self.store.has_heir = self.has_heir
        need(self.synced <= self.store.applied.seq, f"{self.name} has lost what it had synced")

    def save(self) -> None:
        self.synced = self.store.sync().seq
        self.saved = list(self.below.log), self.synced

    def restore(self) -> None:
        """Somebody puts the copy back."""
        self.put(*self.saved)

    def put(self, batches: list[MemoryBatch], upto: int) -> None:
        """Its data is replaced by these, all durable; the process begins."""
        self.below = Rotting()
        self.below.log = list(batches)
        self.below.durable = len(batches)
        self.below.crash(0)
        self.synced = upto
        self.start()

    def lose(self, r: Random) -> None:
        """The power goes: some of what was not synced with it."""
        self.crash(r)
        self.start()

    def crash(self, r: Random) -> None:
        self.below.crash(r.randrange(len(self.below.log) - self.below.durable + 1))

    def arrive(self) -> None:
        before = self._cluster.shelf.last
        self.engine.is_slow = False
        self.engine.arrive()
        self.has_surprise = self.has_surprise or self._cluster.shelf.last > before

    def arrives(self, count: int) -> None:
        """So many of the batches that wait here come to the log, and nobody is told."""
        self.engine.is_slow = False
        with suppress(StoreFailed):
            self.store.flush_to(min(self.store.durable + count, self.store.written()))

    def fail(self, lost: Lost) -> None:
        """So the next append ends."""
        self.engine.plan.extend([lost, *[Lost.REQUEST] * 50])


class Cluster:
    """The nodes; `leader` is the one whose server is in the model."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self._batches: list[tuple[int, MemoryBatch]] = []
        """Each with the record that it is."""
        self._chain = Chain(ORIGIN, KEYS)
        self.nodes = [Node(self, number) for number in range(NODES)]
        self.leader = self.nodes[0]
        self._now_s = 0.0
        self._members = Members(lambda: self._now_s)
        self._trimming = [self._trims(node) for node in self.nodes]

    def batches(self) -> list[MemoryBatch]:
        """All that the log has ever had, without the claims."""
        chain = self._chain
        while chain.next <= self.shelf.last:
            frame = self.shelf.frames[chain.next]
            record = chain.judged(frame)
            if record is None:
                chain.skip(frame)
            elif (parts := chain.step(record)) and record.seal.epoch != record.seal.seq:
                self._batches.append((record.seal.seq, _seen(decode_changes(b"".join(parts)))))
        return [batch for _, batch in self._batches]

    def lead(self, node: Node) -> Shared:
        """It reads what there is and leads."""
        self.follow(node, None)
        node.store.lead(node.name, f"http://{node.name} mqtt://{node.name}")
        need(node.store.is_leading, f"{node.name} has claimed the log, and does not lead")
        self.leader = node
        return node.store

    def follow(self, node: Node, fetches: int | None) -> None:
        """As long as answers come; None: they do, to the end. What is trimmed comes from another node."""
        if fetches is not None:
            node.engine.plan.extend([*[None] * fetches, *[Lost.REQUEST] * 50])
        try:
            node.store.follow()
        except Trimmed:
            node.engine.plan.clear()
            if self._sources():
                self.copy(node)
            else:  # of strays alone: once all have answered that they have no more
                last = node.store.passes_doubt_at = node.store.applied.seq
                need(all(one.store.applied.seq <= last for one in self.nodes), "a node has more")
            node.store.follow()
        except LogError:
            if fetches is None:
                raise
        node.engine.plan.clear()

    def copy(self, node: Node) -> None:
        """Its data is replaced by that of a whole one that has what is left of the log to go on with."""
        others = self._sources()
        need(bool(others), "the log is trimmed before what any node has")
        whole = [one for one in others if one is not node and scrubbed(one.below)]
        need(bool(whole), f"{node.name} gets no copy")
        need(not whole[0].below.rotten, "a copy has the rot of where it is from")
        node.put(whole[0].below.log, whole[0].store.applied.seq)

    def _sources(self) -> list[Node]:
        return [one for one in self.nodes if one.store.applied.seq >= self.shelf.first - 1]

    @contextmanager
    def looked_through(self) -> Iterator[None]:
        """A test looks at the rows of all nodes."""
        belows = [node.below for node in self.nodes]
        for below in belows:
            below.is_looked_through = True
        yield
        for below in belows:
            below.is_looked_through = False

    def stray(self, r: Random) -> None:
        """Somebody publishes into the log: something, or a record that it has already."""
        kept = [self.shelf.frames[seq] for seq in range(self.shelf.first, self.shelf.last + 1)]
        self.shelf.last += 1
        self.shelf.frames[self.shelf.last] = r.choice([*STRAYS, *kept[-3:]])

    def purge(self, r: Random) -> None:
        """Somebody deletes records, perhaps all, of which a node has the last one for good."""
        leader = self.leader
        if leader.store.applied.seq < self.shelf.last:
            return
        self.batches()
        leader.synced = leader.store.sync().seq
        upto = r.choice((self.shelf.last, r.randint(self.shelf.first - 1, self.shelf.last)))
        leader.engine.drop(upto, DEADLINE_S)

    def delete(self) -> None:
        """Somebody deletes the log."""
        self.batches()
        self.shelf.is_made = False
        self.shelf.frames.clear()

    def who_begins(self, away: Node | None = None) -> list[tuple[Node, Standing]]:
        """The nodes that would begin the log anew by what all have answered, and what each has, for good."""
        for node in self.nodes:
            if node is not away:
                node.below.flush()
                node.synced = applied_of(node.below).seq
        heard = max(node.synced for node in self.nodes)
        told: dict[str, Standing | None] = {
            node.name: None
            if node is away
            else replace(standing.standing_of(node.name, node.below), is_lost=True, heard=heard)
            for node in self.nodes
        }
        found = [(node, mine) for node in self.nodes if (mine := told[node.name]) is not None]
        return [(node, mine) for node, mine in found if standing.verdict(mine, told).begins]

    def begin(self, mine: Standing) -> None:
        """Raises Fenced where another node has."""
        hand = ChainedLog(MemoryEngine(self.shelf), Elapsing(), DEADLINE_S, KEYS)
        hand.begin(mine.seal, Origin(mine.timeline))
        self._batches = [(seq, batch) for seq, batch in self._batches if seq <= mine.seq]
        self._chain = Chain(mine.seal, KEYS)
        self._chain.next = self.shelf.first

    def fill(self, r: Random) -> None:
        """Somebody gives the log a bound that is near."""
        self.shelf.max_bytes = max(LEAST_BYTES, self.shelf.used_bytes + r.randrange(2_000))

    def make_room(self, away: Node | None, syncing: Sequence[Node], *, is_led: bool) -> None:
        """Seconds in which all others look after the log: longer than somebody is heard who is away.

        `syncing`: those whose disks come to it.
        """
        self.batches()
        present = [node for node in self.nodes if node is not away]
        for _ in range(int(ALIVE_S) + 2):
            self._now_s += 1
            for node in present:
                if node in syncing:
                    node.synced = node.store.sync().seq
                self._members.hear(Member(node.name, "", "", "follower", 1, node.synced, ""))
            for node in present:
                trimming = self._trimming[node.number]
                _at_once(trimming.look(node.store))
                _at_once(trimming.trim(node.store, node.synced, is_led=is_led and node is not self.leader))

    def _trims(self, node: Node) -> Trimming:
        return Trimming(cast("LogSide", Hand(self.shelf)), self._members, node.name, KEEP_BYTES, self._mono)

    def _mono(self) -> float:
        return self._now_s

    def try_other_key(self, node: Node) -> None:
        """It is started with another key, and takes no part until it has the right one again."""
        node.start(OTHER_KEYS)
        applied = node.store.applied
        with suppress(LogError):
            node.store.follow()
            node.store.lead(node.name, "")
        need(not node.store.is_leading, f"{node.name} leads with another key")
        need(node.store.applied == applied, f"{node.name} follows with another key")
        node.start()

    def trim(self) -> None:
        """Up to what all of them have for good."""
        self.batches()
        self.leader.store._log.trim(min(node.synced for node in self.nodes))

    def check(self) -> None:
        """All of them have the same rows, those of the log."""
        whole = MemoryStore()
        for batch in self.batches():
            whole.write(batch)
        for node in self.nodes:
            need(node.store.applied == self._chain.last, f"{node.name} stands at {node.store.applied}")
            for table in Table:
                if table is not Table.META:
                    rows, found = (dict(store.scan(table, b"", LAST)) for store in (whole, node.below))
                    need(rows == found, f"{node.name} has other rows than the log in {table.value}")


class Hand:
    """Another connection of a node to the log, which always answers: server/cluster/engine_side.py."""

    def __init__(self, shelf: Shelf) -> None:
        self._log = open_engine(MemoryEngine(shelf), Elapsing(), DEADLINE_S, KEYS)

    async def state(self) -> LogState:
        return self._log.state()

    async def limit(self, wanted_bytes: int) -> str:
        return ""

    async def trim(self, upto: int) -> None:
        self._log.trim(upto)


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that waits for nothing returns."""
    try:
        work.send(None)
    except StopIteration as ended:
        return cast("T", ended.value)
    raise AssertionError("it waits")


def _seen(changes: Changes) -> MemoryBatch:
    made = MemoryBatch()
    changes.into(made)
    return made
