"""`make cluster`: three nodes of fasti and three servers of their log (NATS) on this machine, each a process.

They go on until Ctrl-C, with their data in build/cluster. `make cluster DEMO=1` kills one instead:

  - messages are scheduled all the time, and a session receives them as they become due;
  - the node that leads is killed with -9 in the middle. Expected: another one takes its place after the
    detection time and a little more, and until then nothing is acked;
  - in the end comes the account. Expected: everything that was acked has arrived, nothing before its due.

One machine for all is for looking only: docs/cluster.md says how to run three.
Exit code of the demo: 0 if all went as expected, else 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import fasti
from tests.support.cluster import Cluster, Machines, Node

STAY = Path("build/cluster")
PORTS = (8081, 1884, 8082, 1885, 8083, 1886)
TOPIC, SESSION = "demo/cluster", "demo-cluster"
WRITERS = 8
PACE_S = 0.02
DUE_MAX_S = 8
KILL_AFTER_S, WRITE_S = 5.0, 16.0
PATIENCE_S = 20.0
TAKEOVER = "3s"


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def told(nodes: list[Node]) -> str:
    return "\n".join(f"  node {one.name}  {one.url}  mqtt {one.mqtt[0]}:{one.mqtt[1]}" for one in nodes)


@dataclass
class Account:
    """What was asked for, answered and received, by the payload; times are of `time.monotonic`."""

    due: dict[str, datetime] = field(default_factory=dict)
    acked: dict[str, float] = field(default_factory=dict)
    came: dict[str, float] = field(default_factory=dict)
    again: int = 0
    early: int = 0

    @property
    def lost(self) -> set[str]:
        return self.acked.keys() - self.came.keys()


def gap_s(times: list[float]) -> float:
    """The longest time between two."""
    return max((later - sooner for sooner, later in pairwise(times)), default=0.0)


async def write(client: fasti.Client, account: Account, writer: int, until: float) -> None:
    """Schedule one message after the other; each is tried, under its key, until it is acked."""
    number = 0
    while time.monotonic() < until:
        name = f"{writer}-{number}"
        number += 1
        due = datetime.now(UTC) + timedelta(seconds=number * 7 % DUE_MAX_S + 0.5)
        due -= timedelta(microseconds=due.microsecond % 1_000)
        account.due[name] = due
        while name not in account.acked:
            try:
                await client.messages.schedule(f"{TOPIC}/{writer}", name, at=due, key=f"{TOPIC}-{name}")
            except fasti.Unreachable:
                await asyncio.sleep(PACE_S)
            else:
                account.acked[name] = time.monotonic()
        await asyncio.sleep(PACE_S)


async def receive(client: fasti.Client, account: Account) -> None:
    async with client.subscribe(f"{TOPIC}/#", session=SESSION, expiry=timedelta(minutes=5)) as deliveries:
        async for delivery in deliveries:
            name, now = delivery.payload.decode(), datetime.now(UTC)
            account.early += now < account.due[name]
            account.again += name in account.came
            account.came.setdefault(name, time.monotonic())
            await delivery.ack()


async def watch(cluster: Cluster, account: Account) -> None:
    """Kill the leader in the middle, and say who leads then."""
    await asyncio.sleep(KILL_AFTER_S)
    old = await asyncio.to_thread(cluster.leader)
    old.kill()
    killed = time.monotonic()
    say(f"kill -9 of node {old.name}, which leads: {len(account.acked)} acked, {len(account.came)} received")
    new = await asyncio.to_thread(cluster.leader, but=old)
    say(f"node {new.name} leads {time.monotonic() - killed:.1f} s after that")
    before = len(account.came)
    while len(account.came) == before:  # noqa: ASYNC110 - once
        await asyncio.sleep(PACE_S)
    say(f"delivery goes on {time.monotonic() - killed:.1f} s after the kill")


async def demo(cluster: Cluster) -> int:
    account, nodes = Account(), list(cluster.nodes.values())
    async with fasti.Client([node.url for node in nodes]) as client:
        receiving = asyncio.create_task(receive(client, account))
        until = time.monotonic() + WRITE_S
        await asyncio.gather(
            watch(cluster, account), *(write(client, account, writer, until) for writer in range(WRITERS))
        )
        say(f"all is scheduled; what is due in the next {DUE_MAX_S} s is waited for")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while account.lost:  # noqa: ASYNC110 - once
                    await asyncio.sleep(PACE_S)
        receiving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await receiving
    return judge(account)


def judge(account: Account) -> int:
    """Say what came of it; the exit code."""
    acks, arrivals = sorted(account.acked.values()), sorted(account.came.values())
    say("")
    say(f"  acked                    {len(account.acked)}")
    say(f"  delivered                {len(account.came)}, and {account.again} once more")
    say(f"  acked and lost           {len(account.lost)}")
    say(f"  early                    {account.early}")
    say(f"  longest without an ack   {gap_s(acks):.1f} s")
    say(f"  longest without delivery {gap_s(arrivals):.1f} s")
    is_good = bool(account.acked) and not (account.lost or account.early)
    say("all as it should be" if is_good else "NOT as it should be")
    return 0 if is_good else 1


def stay(cluster: Cluster) -> int:
    """Until Ctrl-C or SIGTERM."""
    urls = ",".join(node.url for node in cluster.nodes.values())
    say(f"try: .venv/bin/fasti --url {urls} cluster status")
    say("each node's output is in build/cluster/nodes; Ctrl-C ends all")
    signal.pause()
    return 0


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_staying = "--stay" in sys.argv[1:]
    with contextlib.ExitStack() as ending:
        folder = STAY if is_staying else Path(ending.enter_context(tempfile.TemporaryDirectory()))
        settings = {"cluster.takeover_after": TAKEOVER}
        ports = PORTS if is_staying else ()
        say("three servers of the log and three nodes are started")
        cluster = ending.enter_context(Machines(folder.absolute(), ports=ports, settings=settings))
        leader = cluster.wait_ready()
        say(told(list(cluster.nodes.values())))
        say(f"  the log {cluster.log_url}")
        say(f"node {leader.name} leads")
        return stay(cluster) if is_staying else asyncio.run(demo(cluster))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
