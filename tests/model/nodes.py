"""The rig on a log that three nodes share: another of them may lead at any moment.

What a single server does about a failed store is here mostly the end of a *term*: the process, or another
node's, reads the log and claims it, and the clients come there. A node whose log was claimed while it lived,
the *elder*, goes on for a while as if nothing had happened, with the clients that have not left it yet.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from random import Random

from server.cluster.clocks import SKEW_MS
from server.core import Core
from server.delivery.link import Closing
from server.delivery.message import Message
from shards.commit import Control
from shards.errors import StoreFailed
from shards.log.errors import Doubtful, Fenced, LogDown
from tests.support.clock import HandClock
from tests.support.logs import Lost
from tests.support.stepper import Stepper
from timeline.position import at_of, before

from .client import Client
from .cluster import NODES, Cluster, Node
from .node_clocks import NodeClocks, World
from .node_rot import Health, scrubbed
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
        self.health = Health([node.name for node in self.cluster.nodes])
        self.deciders: list[Callable[[], None]] = []
        """Nodes that have decided to begin the log anew, and come to it late."""
        self.fenced = 0
        """Groups of elders that the log did not take."""
        self.gave_up = 0
        """Terms that ended because of the leader's clock."""
        self.handed_over = 0
        """And because of its data."""
        self.begun = 0
        """Times that the log was begun anew."""
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
                shelf = self.cluster.shelf
                may_fail = self.cluster.leader.has_surprise or shelf.max_bytes or not shelf.is_made
                need(bool(may_fail), f"the log takes no batch: {error}")
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
        if self.r.random() < 0.5 and not self.cluster.shelf.max_bytes and not node.below.rotten:
            node.below.survivors = self.r.randrange(len(node.below.log) - node.below.durable + 1)
            if self.stepper.recover():
                self.oracle.cut()
                self.oracle.floor_ms = at_of(self.core.directory.floor)
                return
            # Behind what is left of the log, it needs a copy.
            is_behind = node.store.applied.seq < self.cluster.shelf.first - 1
            is_in_doubt = isinstance(node.store._refusal, Doubtful)
            need(is_behind or is_in_doubt, "the log does not come back")
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
        for turn in range(5):
            led = self.cluster.leader.number
            others = [n for n in self.cluster.nodes if n not in (but, self._away)]
            whole = [n for n in others if not self.health.damage[n.number].fault]
            found = [n for n in whole if self.clocks.may_lead(n.number, led)]
            if found:
                return found
            if turn == 2:
                self.end_elder()  # it does not stay away for ever
            self._exchange()
        raise Violation("no node of three is whole, with a clock that most agree with")

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
        core = elder.stepper.core
        try:
            self._elder_does(elder, index)
        except StoreFailed as error:
            need(bool(elder.node.below.damage), f"the elder cannot read: {error}")
            core.writer.fail(error)
            self.end_elder()
            return
        need(core.horizon.position <= before(elder.bound_ms), "the elder goes beyond the durable bound")
        self.clocks.check_early(at_of(core.horizon.position), "the elder")

    def _elder_does(self, elder: Elder, index: int) -> None:
        stepper = elder.stepper
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
        """A server begins on a node, which has claimed the log; if its data is damaged, on the next one."""
        while True:
            self.terms += 1
            self.store = self.oracle.store = self._claimed(node)
            self.oracle.cut()
            self._forget()
            self.clock = self.clocks.all[node.number]
            try:
                self.stepper = Stepper(self.store, self.clock, CONFIG)
                break
            except StoreFailed as error:
                need(bool(node.below.damage), f"a term does not begin: {error}")
                node.start()
                self._exchange()
                node = self.r.choice(self._fit())
        with self.cluster.looked_through():
            self._begin()

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
        if self.clocks.all[self.cluster.leader.number].node_clock.stepped_ms:
            self._give_up()  # it holds to its former time, which is wrong since all clocks were set back
        if self.cluster.leader.below.damage:  # who asks for a damaged row fails, with all of the group
            self.spoilt = self.core.writer.given_up
        with self.cluster.looked_through():
            super().check()
        self.clocks.check_early(at_of(self.core.horizon.position), "the leader")

    def beat(self) -> None:
        """The nodes compare their clocks, twice. A leader whose clock is wrong gives up."""
        self._exchange()
        self._exchange()
        self._mend()
        self._give_up()
        if self.elder is None:
            self.clocks.check_behind(self.cluster.leader.number)

    def _give_up(self) -> None:
        """A leader that has found its clock wrong does so."""
        if not self.clocks.judges[self.cluster.leader.number].is_fit:
            self.gave_up += 1
            self._end_term(0)

    def fault_of_clock(self, index: int, by_ms: int) -> None:
        """A clock is set; one that runs wrong does so for no longer than until the nodes compare theirs."""
        self._make_whole()
        self.clocks.fault(index % NODES, by_ms)
        self._observe()
        if abs(by_ms) <= SKEW_MS:
            self.beat()

    def _exchange(self) -> None:
        """An elder is cut off from the others, too; but from the log alone while one of them goes by a wrong
        time: of two that differ none can be told from the other."""
        away, nodes = self._away, self.cluster.nodes
        is_heard = away is not None and self.clocks.is_wrong(but=away.number)
        self.clocks.exchange([node.number for node in nodes if is_heard or node is not away], self.r)
        present = [node for node in nodes if node is not away]
        self.health.exchange(
            {node.number: node.below for node in present},
            are_fit=[judge.is_fit for judge in self.clocks.judges],
        )
        for node in present:
            node.has_heir = node.store.has_heir = bool(self.health.damage[node.number].heirs)
        self._observe()

    @property
    def _away(self) -> Node | None:
        """Whom the others do not hear."""
        return None if self.elder is None else self.elder.node

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
        self._make_whole()
        self.cluster.purge(self.r)

    def other_key(self, index: int) -> None:
        node = self._follower(index)
        if node is not None:
            self._lose(node)
            self.cluster.try_other_key(node)

    def save(self, index: int) -> None:
        self.cluster.nodes[index % NODES].save()

    def restore(self, index: int) -> None:
        self._make_whole()
        node = self._follower(index)
        if node is not None:
            node.restore()
            self.clocks.begin(node.number)

    def _follower(self, index: int) -> Node | None:
        node = self.cluster.nodes[index % NODES]
        is_elder = self.elder is not None and node is self.elder.node
        return None if is_elder or node is self.cluster.leader else node

    # -- what breaks

    def rot(self, index: int) -> None:
        """A row of a node rots, while the others are whole, follow, and have right clocks."""
        self._make_whole()
        self.give_room()
        node = self.cluster.nodes[index % NODES]
        self.clocks.fault(node.number, 0)
        for other in self.cluster.nodes:
            if other is not self._away and other is not self.cluster.leader:
                self.cluster.follow(other, None)
        self.beat()
        if not node.below.rotten and (rows := node.below.rows()):
            node.below.rotten.add(self.r.choice(rows))

    def scrub(self, index: int) -> None:
        """A node reads its rows; what it finds has its consequences before long, or at once."""
        scrubbed(self.cluster.nodes[index % NODES].below)
        if self.r.random() < 0.5:
            self.beat()

    def replace(self, index: int) -> None:
        """A new node takes the place of one that is gone."""
        node = self._follower(index)
        if node is not None and (self._away is None or not self.cluster.leader.below.rotten):
            self.cluster.copy(node)
            self.clocks.begin(node.number)

    @contextmanager
    def as_a_turn(self) -> Iterator[None]:
        """A turn of the server: if it cannot read, its term is over (server/rounds/app.py)."""
        try:
            yield
        except StoreFailed as error:
            need(bool(self.cluster.leader.below.damage), f"the leader cannot read: {error}")
            self.core.writer.fail(error)
            self.handed_over += 1
            self._exchange()
            self._end_term(0)

    def _mend(self) -> None:
        """Who knows of its damage, and of another that can lead, leads no longer and takes a copy."""
        for node in self.cluster.nodes:
            damage = self.health.damage[node.number]
            if node is self._away or not damage.needs_copy:
                continue
            if node is self.cluster.leader:
                self.handed_over += 1
                self._end_term(0)
            if node is not self.cluster.leader and node is not self._away:
                self.cluster.copy(node)
                damage.mended()

    def _make_whole(self) -> None:
        """The scrub has come to all nodes."""
        rotten = [node for node in self.cluster.nodes if node.below.rotten]
        if not rotten:
            return
        if rotten[0] is self._away:
            self.end_elder()
        scrubbed(rotten[0].below)
        self.beat()
        need(not any(node.below.rotten for node in self.cluster.nodes), "rot is not mended")

    def delete(self, index: int) -> None:
        """Somebody deletes the log: it is begun anew once all have answered, by one that has the most."""
        self._make_whole()
        self.end_elder()
        cluster, led = self.cluster, self.cluster.leader
        cluster.delete()
        while self.stepper.unsynced and self.core.writer.broken is None:
            self.settle()
        gone = [node for node in cluster.nodes if node is not led and self.r.random() < 0.5]
        for node in gone:
            node.crash(self.r)
        away = cluster.nodes[index % NODES]
        need(not cluster.who_begins(away), f"the log is begun before {away.name} has answered")
        begins = cluster.who_begins()
        need(bool(begins), "nobody begins the log")
        self.r.shuffle(begins)
        (_, first), *late = begins
        cluster.begin(first)
        self.begun += 1
        self.deciders += [partial(cluster.begin, mine) for _, mine in late]
        for node in cluster.nodes:
            node.start()
        for node in gone:
            self.clocks.begin(node.number)
        self._lead(self.r.choice(self._fit()))

    def decide_late(self) -> None:
        """Who had decided to begin the log comes to it: another node has."""
        deciders, self.deciders = self.deciders, []
        for begin in deciders:
            with suppress(Fenced):
                begin()

    def fill(self) -> None:
        """The log gets full. It does not stay so: the nodes look after it."""
        self._make_whole()
        self.cluster.fill(self.r)

    def make_room(self) -> None:
        is_led = self.core.writer.broken is None
        syncing = [node for node in self.cluster.nodes if self.r.random() < 0.5]
        self.cluster.make_room(self._away, syncing, is_led=is_led)

    def give_room(self) -> None:
        """Somebody takes the bound away."""
        self.cluster.shelf.max_bytes = 0

    def _claimed(self, node: Node) -> Disk:
        """The store of a node that has claimed the log. While that is full, all look after it."""
        for _ in range(3):
            try:
                return self.cluster.lead(node)
            except LogDown:
                need(self.cluster.shelf.max_bytes > 0, "the log takes no claim")
                self.cluster.make_room(self._away, self.cluster.nodes, is_led=False)
            except Doubtful:  # behind what may hide a record: once all have answered, and nobody leads
                self.end_elder()
                last = node.store.applied.seq
                need(all(one.store.applied.seq <= last for one in self.cluster.nodes), "a node has more")
                node.store.passes_doubt_at = last
        raise Violation("a full log takes no claim, and nobody makes room")

    # -- clients

    def connect(self, client_id: str, *, clean: bool = False) -> None:
        if self.elder is not None:
            self._leave(self.elder, client_id)
        super().connect(client_id, clean=clean)

    def delivered(self, client: Client, message: Message, qos: int, packet_id: int, attempt: int) -> None:
        """What the elder sends to a client that has left it comes to nobody."""
        if not client.is_closed or self.clients.get(client.client_id) is client:
            super().delivered(client, message, qos, packet_id, attempt)

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
        self._make_whole()
        self.decide_late()
        self.give_room()
        self.clocks.fault(0, 0)
        self.beat()
        super().drain()
        for node in self.cluster.nodes:
            if node is not self.cluster.leader:
                self.cluster.follow(node, None)
        self.cluster.check()
