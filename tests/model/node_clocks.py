"""Wall clocks of the nodes in the model.

All show the time of one `World`, each with a fault of its own: `off_ms`. At most one of them has one, and the
server of each node sees what its `NodeClock` makes of it. What the nodes ask each other once a second is an
`exchange`, after which each judges its clock by the rule of server/cluster/clock_judge.py.

What is promised while one clock of three is wrong, whichever and by whatever: nobody dispatches beyond the
time of the world by more than a clock may be off unnoticed; and who leads after two exchanges of all is not
behind it by more than that.
"""

from collections.abc import Sequence
from random import Random

from server.cluster.clock_judge import ClockJudge
from server.cluster.clocks import SKEW_MS, NodeClock, differ
from server.cluster.members import Member, Members
from tests.support.clock import HandClock

from .oracle import need

OFF_MS = 2 * SKEW_MS + 1_000
"""A clock is off by SKEW_MS unnoticed, and by a step of SKEW_MS more until the next exchange."""


class World:
    """The time that is right. It may jump nevertheless: then all clocks do."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = self.latest_ms = now_ms
        self.elapsed_ms = 0
        self.mono_s = 1_000.0
        """As the servers see it: HandClock."""

    def step(self, by_ms: int) -> None:
        self.now_ms = max(1, self.now_ms + by_ms)
        self.latest_ms = max(self.latest_ms, self.now_ms)
        self.elapsed_ms += max(1, by_ms)


class OwnClock(HandClock):
    """One node's, as the server on it sees it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.off_ms = 0
        self.begin()

    def begin(self) -> None:
        """The node's process begins: it knows no other time than the one that is shown."""
        self.node_clock = NodeClock(
            lambda: self.system_ms() * 1_000_000, lambda: self.world.elapsed_ms / 1000
        )

    def system_ms(self) -> int:
        return self.world.now_ms + self.off_ms

    @property
    def now_ms(self) -> int:  # type: ignore[override]
        return self.node_clock.wall_ms()

    @property
    def mono_s(self) -> float:  # type: ignore[override]
        return self.world.mono_s

    @mono_s.setter
    def mono_s(self, mono_s: float) -> None:
        self.world.mono_s = mono_s

    def step(self, by_ms: int) -> None:
        self.world.step(by_ms)
        self.world.mono_s += max(0.001, min(by_ms, 60_000) / 1000)


class Judge:
    """A node, as far as it judges its clock."""

    def __init__(self, name: str, clock: OwnClock, count: int) -> None:
        self._named = count
        self._judge = ClockJudge(name, clock.node_clock)
        self._members = Members(clock.node_clock.mono)

    @property
    def is_fit(self) -> bool:
        return not self._judge.fault

    @property
    def agrees(self) -> bool:
        return self._judge.agrees

    def hear(self, name: str, ahead_ms: int, doubt_ms: int) -> None:
        self._judge.clocks.measured(name, ahead_ms - doubt_ms, ahead_ms)

    def hear_members(self, members: Sequence[Member]) -> None:
        for member in members:
            self._members.hear(member)

    def told(self, name: str) -> Member:
        return Member(name, "", "", "follower", 1, 1, "", clocks=self._judge.clocks.measurements())

    def judge(self) -> None:
        self._judge.judge(self._members, self._named)


class NodeClocks:
    """All of them, by the number of the node."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.all = [OwnClock(world) for _ in range(count)]
        self.judges = [Judge(str(number), clock, count) for number, clock in enumerate(self.all)]
        self.exchange(range(count), Random(0))

    def begin(self, number: int) -> None:
        """The process of this node has begun."""
        clock = self.all[number]
        clock.begin()
        self.judges[number] = Judge(str(number), clock, len(self.all))

    def fault(self, number: int, by_ms: int) -> None:
        """This node's clock is set, or runs, by so much; any other one is right again."""
        for other, clock in enumerate(self.all):
            clock.off_ms = clock.off_ms + by_ms if other == number else 0

    def is_wrong(self, but: int) -> bool:
        """Whether another node's process goes by a wrong time, most likely since it began with that."""
        others = [clock.now_ms - self.world.now_ms for number, clock in enumerate(self.all) if number != but]
        return any(differ(off_ms, off_ms) for off_ms in others)

    def exchange(self, present: Sequence[int], r: Random) -> None:
        for one in present:
            for other in present:
                if one != other:
                    ahead_ms = self.all[other].system_ms() - self.all[one].system_ms()
                    self.judges[one].hear(str(other), ahead_ms, r.randrange(4))
        told = [self.judges[number].told(str(number)) for number in present]
        for number in present:
            self.judges[number].hear_members(told)
            self.judges[number].judge()

    def may_lead(self, number: int, led: int) -> bool:
        """By its clock: others do not contradict it, and it is not ahead of that of who `led`, unless another
        node agrees (server/cluster/follower.py)."""
        judge = self.judges[number]
        ahead_ms = self.all[number].now_ms - self.all[led].now_ms
        return judge.is_fit and (ahead_ms <= SKEW_MS or judge.agrees)

    def check_early(self, at_ms: int, who: str) -> None:
        need(at_ms <= self.world.latest_ms + OFF_MS, f"{who} dispatches by a clock that is ahead")

    def check_behind(self, number: int) -> None:
        behind_ms = self.world.now_ms - self.all[number].now_ms
        need(behind_ms <= OFF_MS, f"node-{number} leads by a clock that is {behind_ms} ms behind")
