"""What dies, hangs or is cut off, under load; and the account of the clients after it."""

import asyncio
import os
import random
import time
from collections.abc import Callable

import pytest

from tests.crash.work import Pool
from tests.support.cluster import Cluster
from tests.support.mqtt import wall_ms
from tests.support.nats import Nats
from tests.support.receiver import receiving
from tests.support.soak import SOAK

from .load import STEPPED_DOWN, UNANSWERED, Calls, Load

Record = Callable[[str, object], None]
TAKEOVER_S = 2.0
BOUND_MS = 2_000
ON_THE_WAY_MS = 300
ACKS = 30
KILLS = int(os.environ.get("FASTI_CYCLES") or (30 if SOAK else 3))


def check(load: Load, record: Record) -> None:
    """Everybody is up again: everything comes, and the account is right."""
    load.drain()
    print(load.counted(), flush=True)
    record("counted", load.counted())
    faults = load.account.check()
    assert not faults, f"{len(faults)} faults: {faults[:10]}"


@pytest.mark.short
def test_the_leader_is_killed(cluster: Cluster, load: Load, record_property: Record) -> None:
    old = cluster.leader()
    old.kill()
    cluster.leader(but=old)
    load.acked(ACKS)
    old.start()
    check(load, record_property)


def test_the_logs_leader_is_killed(
    cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record
) -> None:
    gone = nats_servers.leader(cluster.name)
    nats_servers.kill(gone)
    load.acked(ACKS)
    nats_servers.start(gone)
    nats_servers.wait_ready()
    check(load, record_property)


def test_all_are_killed(cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record) -> None:
    cluster.kill_all()
    for name in nats_servers.names:
        nats_servers.kill(name)
    for name in nats_servers.names:
        nats_servers.start(name)
    cluster.start()
    nats_servers.wait_ready()
    cluster.wait_ready()
    load.acked(ACKS)
    check(load, record_property)


def test_the_leader_hangs(cluster: Cluster, load: Load, record_property: Record) -> None:
    """For longer than it takes others to follow it; then it goes on where it stood."""
    old = cluster.leader()
    old.stop()
    cluster.leader(but=old)
    load.acked(ACKS)
    old.resume()
    cluster.wait_ready()
    assert (old.status() or {})["state"] == "follower"
    check(load, record_property)


@pytest.mark.short
def test_the_leader_is_cut_off_from_the_log(cluster: Cluster, load: Load, record_property: Record) -> None:
    """With its clients: it acks nothing, dispatches no further than its bound, and sends them away."""
    old = cluster.leader()
    cluster.cut(old)
    cut_ms = wall_ms()
    assert acked_by(old.http, TAKEOVER_S + 1) == 0
    new = cluster.leader(but=old)
    load.acked(ACKS)
    cluster.heal(old)
    cluster.wait_ready()
    assert cluster.leader() is new
    inbox = load.readers[0].inbox
    messages = load.account.messages.by_tag
    beyond = [
        one
        for one in list(inbox.arrivals)
        if one.node == old.mqtt and one.at_ms > cut_ms and messages[one.tag].due > cut_ms + BOUND_MS
    ]
    assert not beyond
    assert any(STEPPED_DOWN in reader.reasons for reader in load.readers)
    check(load, record_property)


def acked_by(address: tuple[str, int], seconds: float) -> int:
    """How often one node says for so long that it has stored a message, after what was on the way."""
    calls, found, until = Calls([address]), 0, time.monotonic() + seconds
    time.sleep(ON_THE_WAY_MS / 1_000)
    while time.monotonic() < until:
        try:
            status, _ = calls.ask(
                "POST", "/v1/messages", b'{"topic":"alone","payload":""}', Content_Type="application/json"
            )
            found += status == 201
        except UNANSWERED:
            pass
        time.sleep(0.02)
    calls.close()
    return found


def test_two_standbys_claim_at_once(cluster: Cluster, load: Load, record_property: Record) -> None:
    """Both have heard nothing for long when they go on at the same time."""
    old = cluster.leader()
    standbys = cluster.others(old)
    for one in standbys:
        one.stop()
    old.kill()
    time.sleep(TAKEOVER_S + 0.5)
    for one in standbys:
        one.resume()
    cluster.wait_ready()
    states = sorted((one.status() or {})["state"] for one in standbys)
    assert states == ["follower", "leader"]
    load.acked(ACKS)
    old.start()
    check(load, record_property)


def test_the_leader_ends(cluster: Cluster, load: Load, record_property: Record) -> None:
    """SIGTERM: nobody waits until it is missed."""
    old = cluster.leader()
    asked = time.monotonic()
    assert old.terminate() == 0
    cluster.leader(but=old)
    load.acked(1)
    took_s = time.monotonic() - asked
    record_property("counted", f"another one leads {took_s:.1f} s after SIGTERM")
    assert took_s < TAKEOVER_S
    old.start()
    check(load, record_property)


async def test_each_key_keeps_its_order_and_each_lease_its_worker(
    cluster: Cluster, record_property: Record
) -> None:
    """Workers of a group that orders subscribe or pull, and fail in every way; an endpoint orders too. The
    leader is killed under them, again and again."""
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}", flush=True)
    chance = random.Random(seed)
    pools = group, hook = Pool(chance, "order"), Pool(chance, "endpoint")
    leader = await asyncio.to_thread(cluster.leader)
    async with receiving() as receiver:
        receiver.behave = hook.posted
        for pool in pools:
            await pool.enlist(leader, receiver.url())
        for _ in range(KILLS):
            for pool in pools:
                pool.begin(leader)
            await asyncio.sleep(1)
            await group.struck()
            for pool in pools:
                pool.kill(leader)
            for pool in pools:
                await pool.died()
            old, leader = leader, await asyncio.to_thread(cluster.leader, but=leader)
            old.start()
        dead = await asyncio.gather(*(pool.drain(leader) for pool in pools))
    for pool, letters in zip(pools, dead, strict=True):
        record_property("counted", pool.summary(letters))
        print(pool.summary(letters), flush=True)
        faults = pool.account.faults
        print(*pool.accounts(), sep="\n", flush=True)
        assert not faults, f"{len(faults)} faults, FASTI_SEED={seed}: {[str(one) for one in faults[:5]]}"
