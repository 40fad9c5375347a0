"""The rig on a log that three nodes share: another of them may lead at any moment.

What a single server does about a failed store is here mostly the end of a *term*: the process, or another
node's, reads the log and claims it, and the clients come there. A node whose log was claimed while it lived,
the *elder*, goes on for a while as if nothing had happened, with the clients that have not left it yet.
"""

from collections.abc import Sequence
from random import Random

from server.cluster.clocks import SKEW_MS
from server.core import Core
from server.delivery.link import Closing
from shards.commit import Control
from shards.errors import StoreFailed
from shards.log.errors import Doubtful
from tests.support.clock import HandClock
from tests.support.logs import Lost
from tests.support.stepper import Stepper
from timeline.position import at_of, before

from .client import Client
from .cluster import NODES, Cluster, Node
from .node_clocks import NodeClocks, World
from .oracle import Disk, Violation, need
from .rig import CONFIG, START_MS, Rig


class Elder:
    """A server that believes that it leads."""

    def __init__(self, node: Node, stepper: Stepper, clients: dict[str, Client]) -> None:
        self.node = node
        self.stepper = stepper
        self.clients = clients
        self.bound_ms = stepper.core.horizon.bound_ms


class NodesRig(Rig):
    """`r`: what becomes of the nodes, where the calls of the rig do not say it."""

    def __init__(self, r: Random) -> None:
        self.r = r
        self.cluster = Cluster()
        self.elder: Elder | None = None
        self.terms = 1
        self._is_elders_turn = False
        self.clocks = NodeClocks(World(START_MS), NODES)
        self.fenced = 0
        """Groups of elders that the log did not take."""
        self.gave_up = 0
        """Terms that ended because of the leader's clock."""
        super().__init__()

    def _first_store(self) -> Disk:
        return self.cluster.lead(self.cluster.leader)

    def _first_clock(self) -> HandClock:
        return self.clocks.all[self.cluster.leader.number]

    def _decided(self, tag: str, control: Control) -> Control:
        """What the elder decides counts for nothing: it is never answered."""
        return control if self._is_elders_turn else super()._decided(tag, control)

    # -- what fails

    def settle(self) -> None:
        try:
            super().settle()
        except StoreFailed as error:
            if self.core.writer.broken is None:
                need(self.cluster.leader.has_surprise, f"the log takes no batch: {error}")
                self.core.writer.fail(error)

    def arrive(self, index: int) -> None:
        """What was late of a node's calls comes to the log, whatever has become of that node."""
        self.cluster.nodes[index % len(self.cluster.nodes)].arrive()

    def fail_sync(self, kinds: Sequence[Lost | None] = (*Lost, None)) -> None:
        """The log does not answer, or the leader's disk is full: what is open fails, and may be there."""
        if not self.stepper.unsynced or self.core.writer.broken is not None:
            return
        node, kind = self.cluster.leader, self.r.choice(kinds)
        node.engine.is_slow = self.r.random() < 0.7
        if kind is None:
            node.below.fail_writes = True
        else:
            node.fail(kind)
        try:
            self.stepper.sync()
        except StoreFailed as error:
            self.core.writer.fail(error)
        else:  # it had been sent ahead, with an earlier one
            self.oracle.synced()
            self.core.writer.settle()
        node.engine.plan.clear()
        node.below.fail_writes = False

    def fail_write(self) -> None:
        self.compose(is_large=self.core.writer.queued > 1)
        while self.core.writer.is_deciding:
            self.compose()
        self.fail_sync()

    def mark(self, *, is_refused: bool = False) -> None:
        """Dispatch never goes on by a mark: another may lead."""

    def recover(self, survivors: int, *, is_refused: bool = False) -> None:
        """The leader goes on with what the log has, or its term ends."""
        if self.core.writer.broken is None or is_refused:
            return
        node = self.cluster.leader
        if self.r.random() < 0.5:
            node.below.survivors = self.r.randrange(len(node.below.log) - node.below.durable + 1)
            need(self.stepper.recover(), "the log does not come back")
            self.oracle.cut()
            self.oracle.floor_ms = at_of(self.core.directory.floor)
        else:
            self._end_term(survivors)

    def kill(self, survivors: int, wall_by_ms: int) -> None:
        """kill -9 of the leader, or its power goes; so many of its appends come to the log nevertheless."""
        self._end_term(survivors, wall_by_ms)

    def _end_term(self, survivors: int, wall_by_ms: int = 0) -> None:
        if self.r.random() < 0.5:
            self.end_elder()
        node = self.cluster.leader
        node.arrives(survivors)
        self._lose(node)
        self.tick(wall_by_ms)
        self._lead(self.r.choice(self._fit()))

    def _lose(self, node: Node) -> None:
        node.lose(self.r)
        self.clocks.begin(node.number)

    def _fit(self, but: Node | None = None) -> list[Node]:
        """The nodes that may lead by their clock, which one of them may after an exchange."""
        for _ in range(3):
            led, elder = self.cluster.leader.number, None if self.elder is None else self.elder.node
            others = [n for n in self.cluster.nodes if n not in (but, elder)]
            found = [n for n in others if self.clocks.may_lead(n.number, led)]
            if found:
                return found
            self._exchange()
        raise Violation("no node of three has a clock that most agree with")

    # -- the other nodes

    def fail_over(self, index: int) -> None:
        """Another node leads, and the leader does not know it yet."""
        self.end_elder()
        node = self.cluster.leader
        others = self._fit(node)
        elder = self.elder = Elder(node, self.stepper, dict(self.clients))
        self._lead(others[index % len(others)])
        # What it had sent ahead is in the log, and the new leader has read it: the elder may learn so yet.
        elder.bound_ms = max(elder.bound_ms, self.oracle.bound_ms)

    def elder_step(self, index: int) -> None:
        """Something that the elder does. What it writes must not come into the log."""
        elder = self.elder
        if elder is None:
            return
        stepper, core = elder.stepper, elder.stepper.core
        if index % 3 == 0:
            stepper.load(4)
            stepper.dispatch(4)
        elif index % 3 == 1:
            stepper.replay()
        else:
            spoilt, self._is_elders_turn = self.spoilt, True
            stepper.compose()
            self.spoilt, self._is_elders_turn = spoilt, False
            self._flush(elder)
        need(core.horizon.position <= before(elder.bound_ms), "the elder goes beyond the durable bound")
        self.clocks.check_early(at_of(core.horizon.position), "the elder")

    def _flush(self, elder: Elder) -> None:
        core = elder.stepper.core
        if core.writer.broken is not None:
            return
        try:
            while elder.stepper.sync():
                core.writer.settle()
        except StoreFailed as error:
            self.fenced += 1
            core.writer.fail(error)
            if self.r.random() < 0.5:
                need(not elder.stepper.recover(), "the elder leads again")
                self.end_elder()

    def end_elder(self) -> None:
        """It has noticed, or is killed: it follows from now on."""
        elder, self.elder = self.elder, None
        if elder is not None:
            for client_id in list(elder.clients):
                self._leave(elder, client_id)
            self._lose(elder.node)

    def follow(self, index: int) -> None:
        """A node writes some of what the log has into its store, and may sync that."""
        node = self.cluster.nodes[index % len(self.cluster.nodes)]
        if self.elder is not None and node is self.elder.node:
            return
        if node is not self.cluster.leader:
            self.cluster.follow(node, self.r.choice((0, 1, 2, 3, None)))
        if self.r.random() < 0.5:
            node.synced = node.store.sync().seq
        if self.r.random() < 0.3:
            self.cluster.trim()

    def _lead(self, node: Node) -> None:
        """A server begins on a node, which has claimed the log."""
        self.terms += 1
        self.store = self.oracle.store = self._claimed(node)
        self.oracle.cut()
        self._forget()
        self.clock = self.clocks.all[node.number]
        self.stepper = Stepper(self.store, self.clock, CONFIG)
        self._begin()

    def _claimed(self, node: Node) -> Disk:
        """Behind what may hide a record it claims once all have answered, and nobody leads."""
        try:
            return self.cluster.lead(node)
        except Doubtful:
            self.end_elder()
        last = node.store.applied.seq
        need(all(one.store.applied.seq <= last for one in self.cluster.nodes), "a node has more")
        node.store.passes_doubt_at = last
        return self.cluster.lead(node)

    def _restore_watches(self, core: Core) -> None:
        """Who is still with the elder has seen no more than that has sent, whatever is in the log."""
        watches = self.oracle.watches
        held = () if self.elder is None else self.elder.clients
        last = {name: watches[name].last for name in held if name in watches}
        super()._restore_watches(core)
        for name in watches.keys() & last.keys():
            watches[name].last = last[name]

    # -- clocks

    def check(self) -> None:
        super().check()
        self.clocks.check_early(at_of(self.core.horizon.position), "the leader")

    def beat(self) -> None:
        """The nodes compare their clocks, twice. A leader whose clock is wrong gives up."""
        self._exchange()
        self._exchange()
        leader = self.cluster.leader
        if not self.clocks.judges[leader.number].is_fit:
            self.gave_up += 1
            self._end_term(0)
        elif self.elder is None:
            self.clocks.check_behind(leader.number)

    def fault_of_clock(self, index: int, by_ms: int) -> None:
        """A clock is set; one that runs wrong does so for no longer than until the nodes compare theirs."""
        self.clocks.fault(index % NODES, by_ms)
        self._observe()
        if abs(by_ms) <= SKEW_MS:
            self.beat()

    def _exchange(self) -> None:
        """An elder is cut off from the others, too; but from the log alone while a clock of theirs is wrong:
        of two that differ none can be told from the other."""
        away = None if self.elder is None else self.elder.node
        if away is not None and self.clocks.is_wrong(but=away.number):
            away = None
        self.clocks.exchange([n.number for n in self.cluster.nodes if n is not away], self.r)
        self._observe()

    def tick(self, by_ms: int) -> None:
        """All clocks may be set back: the nodes see that before long."""
        super().tick(by_ms)
        for _ in range(2 if by_ms < -SKEW_MS else 0):
            self._exchange()
        self._observe()

    def _observe(self) -> None:
        """What the clocks show to who sends."""
        self.oracle.observe(self.clock.now_ms)
        if self.elder is not None:
            self.oracle.observe(self.clocks.all[self.elder.node.number].now_ms)

    # -- what people do

    def stray(self) -> None:
        self.cluster.stray(self.r)

    def purge(self) -> None:
        self.cluster.purge(self.r)

    def other_key(self, index: int) -> None:
        node = self._follower(index)
        if node is not None:
            self._lose(node)
            self.cluster.try_other_key(node)

    def save(self, index: int) -> None:
        self.cluster.nodes[index % NODES].save()

    def restore(self, index: int) -> None:
        node = self._follower(index)
        if node is not None:
            node.restore()
            self.clocks.begin(node.number)

    def _follower(self, index: int) -> Node | None:
        node = self.cluster.nodes[index % NODES]
        is_elder = self.elder is not None and node is self.elder.node
        return None if is_elder or node is self.cluster.leader else node

    # -- clients

    def connect(self, client_id: str, *, clean: bool = False) -> None:
        if self.elder is not None:
            self._leave(self.elder, client_id)
        super().connect(client_id, clean=clean)

    def _leave(self, elder: Elder, client_id: str) -> None:
        """A client leaves the elder: what that has sent since is in nobody's order but its own."""
        client = elder.clients.pop(client_id, None)
        if client is None:
            return
        client.close(Closing.FAILED)
        subscriber = self.core.sessions.get(client_id)
        if subscriber is not None and client_id in self.oracle.watches:
            self.oracle.watches[client_id].last = subscriber.session.read

    def drain(self) -> None:
        self.end_elder()
        self.clocks.fault(0, 0)
        self.beat()
        super().drain()
        for node in self.cluster.nodes:
            if node is not self.cluster.leader:
                self.cluster.follow(node, None)
        self.cluster.check()
