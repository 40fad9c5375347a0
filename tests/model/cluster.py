"""Three nodes and their log, as the disk of the server in the model.

Each node has a store of its own, of which a power failure may take what was not synced, and an engine of the
log, which loses requests, answers, or delivers late. One of them leads; its batches are the model's. One that
led before may still believe that it does. A node that the log has been trimmed for takes a copy of another.

Of what people do to it: they publish strays into the log, purge it, give a node another key, put an old copy
of its data back.
"""

from collections.abc import Sequence
from contextlib import suppress
from random import Random

from shards.changes import Changes, Recorded, decode_changes
from shards.errors import StoreFailed
from shards.log.chain import Chain
from shards.log.chained import open_engine
from shards.log.contract import Log
from shards.log.errors import LogError, Trimmed
from shards.log.memory import MemoryEngine, Shelf
from shards.log.record import ORIGIN
from shards.memory import MemoryBatch, MemoryStore
from shards.replicated import ReplicatedStore
from shards.store import Batch, Table
from tests.support.logs import Elapsing, Faulty, Lost

from .oracle import need

NODES = 3
DEADLINE_S = 0.2
LAST = b"\xff" * 64
KEYS = ("the key of the nodes",)
OTHER_KEYS = ("a key of another cluster",)
STRAYS = (b"", b"hello", bytes(64), b"\xff" * 200)


class Shared(ReplicatedStore):
    """A node's store, whose batches can be looked at: those that came with the log and those written here."""

    def __init__(self, below: MemoryStore, log: Log, cluster: "Cluster") -> None:
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
        self.below = MemoryStore()
        self.number = number
        self.engine = Faulty(MemoryEngine(cluster.shelf))
        self.saved: tuple[list[MemoryBatch], int] = ([], 0)
        """A copy of its store that somebody has made, and the record up to which that has the log."""
        self.synced = 0
        """Up to which record its store has the log, whatever becomes of the machine."""
        self.has_surprise = False
        """An append of its own that it had given up has come to the log since it last read that."""
        self._cluster = cluster
        self.start()

    def start(self, keys: Sequence[str] = KEYS) -> None:
        """The process begins, on what the store has. What was under way of the one before may still come."""
        clock = Elapsing()
        self.engine.plan.clear()
        self.below.fail_writes = False
        self.store = Shared(self.below, open_engine(self.engine, clock, DEADLINE_S, keys), self._cluster)
        need(self.synced <= self.store.applied.seq, f"{self.name} has lost what it had synced")

    def save(self) -> None:
        self.synced = self.store.sync().seq
        self.saved = list(self.below.log), self.synced

    def restore(self) -> None:
        """Somebody puts the copy back."""
        self.put(*self.saved)

    def put(self, batches: list[MemoryBatch], upto: int) -> None:
        """Its data is replaced by these, all durable; the process begins."""
        self.below = MemoryStore()
        self.below.log = list(batches)
        self.below.durable = len(batches)
        self.below.crash(0)
        self.synced = upto
        self.start()

    def lose(self, r: Random) -> None:
        """The power goes: some of what was not synced with it."""
        self.below.crash(r.randrange(len(self.below.log) - self.below.durable + 1))
        self.start()

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
        self._batches: list[MemoryBatch] = []
        self._chain = Chain(ORIGIN, KEYS)
        self.nodes = [Node(self, number) for number in range(NODES)]
        self.leader = self.nodes[0]

    def batches(self) -> list[MemoryBatch]:
        """All that the log has ever had, without the claims."""
        chain = self._chain
        while chain.next <= self.shelf.last:
            frame = self.shelf.frames[chain.next]
            record = chain.judged(frame)
            if record is None:
                chain.skip(frame)
            elif (parts := chain.step(record)) and record.seal.epoch != record.seal.seq:
                self._batches.append(_seen(decode_changes(b"".join(parts))))
        return list(self._batches)

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
            self._copy_to(node)
            node.store.follow()
        except LogError:
            if fetches is None:
                raise
        node.engine.plan.clear()

    def _copy_to(self, node: Node) -> None:
        """Of one that has what is left of the log to go on with."""
        others = [one for one in self.nodes if one.store.applied.seq >= self.shelf.first - 1]
        need(bool(others), "the log is trimmed before what any node has")
        other = others[0]
        node.put(other.below.log, other.store.applied.seq)

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


def _seen(changes: Changes) -> MemoryBatch:
    made = MemoryBatch()
    changes.into(made)
    return made
