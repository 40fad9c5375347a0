"""FASTI_SOAK=1: a leader that is cut off for long before it gives up dispatches no further than its bound."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from server.codec.packets import Disconnect, Publish
from server.settings.times import format_ms
from tests.support.cluster import Cluster
from tests.support.engines import nats_servers  # noqa: F401
from tests.support.http import http
from tests.support.mqtt import Closed, Peer, dial, wall_ms
from tests.support.nats import Nats
from tests.support.soak import SOAK
from timeline.horizon import BOUND_MS

from .load import STEPPED_DOWN

TAKEOVER_S = 8
COUNT, APART_MS, LEAD_MS = 200, 50, 2_000
ON_THE_WAY_MS = 200


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1")
async def test_nothing_beyond_the_bound(nats_servers: Nats) -> None:  # noqa: F811
    settings = {"cluster.takeover_after": f"{TAKEOVER_S}s"}
    with (
        tempfile.TemporaryDirectory(prefix="fasti-cluster-") as folder,
        Cluster(Path(folder), nats_servers.url, name="bound", settings=settings) as cluster,
    ):
        cluster.start()
        old = await asyncio.to_thread(cluster.wait_ready)
        came: dict[str, int] = {}

        def note(peer: Peer, packet: Publish, at_ms: int) -> None:
            came[packet.payload.decode()] = at_ms
            peer.ack(packet)

        peer = await dial(old.mqtt, on_publish=note)
        await peer.connect("bound", clean=False, session_expiry=600)
        await peer.subscribe("bound/#", qos=1)
        first_ms = wall_ms() + LEAD_MS
        dues = {str(number): first_ms + number * APART_MS for number in range(COUNT)}
        items = [
            {"topic": "bound/1", "payload": name, "deliver_at": format_ms(due_ms)}
            for name, due_ms in dues.items()
        ]
        async with http(old.url) as calls:
            assert (await calls.schedule_many(items)).status == 201
        await asyncio.sleep(LEAD_MS / 1_000 + 1)
        cluster.cut(old)
        cut_ms = wall_ms()
        assert (await peer.take(Disconnect, 2 * TAKEOVER_S)).reason == STEPPED_DOWN
        alone_ms = wall_ms() - cut_ms
        with pytest.raises(Closed):
            await peer.take(Publish)
        by_old = dict(came)
        assert alone_ms > BOUND_MS + 2_000, "it gave up so early that the bound did nothing"
        assert max(dues[name] for name in by_old) <= cut_ms + BOUND_MS + ON_THE_WAY_MS
        new = await asyncio.to_thread(cluster.leader, but=old)
        peer = await dial(new.mqtt, on_publish=note)
        assert (await peer.connect("bound", clean=False, session_expiry=600)).session_present
        while came.keys() < dues.keys():
            assert wall_ms() < max(dues.values()) + 20_000, sorted(dues.keys() - came.keys())
            await asyncio.sleep(0.05)
        assert all(came[name] >= due_ms for name, due_ms in dues.items())
