"""What MQTT says on a node that does not lead, and each step of QoS 2 with a failover after it."""

import asyncio

from server.codec import wire
from server.codec.packets import Ack, Publish
from tests.support.cluster import Cluster, Node
from tests.support.http import http
from tests.support.mqtt import Peer, dial

from .load import ELSEWHERE

EXPIRY_S = 600
REFUSED_31 = 3


async def connected(node: Node, client: str) -> tuple[Peer, bool]:
    """A connection, and whether the session was there."""
    peer = await dial(node.mqtt)
    answer = await peer.connect(client, clean=False, session_expiry=EXPIRY_S)
    assert answer.reason == 0, answer
    return peer, answer.session_present


async def after_a_kill(cluster: Cluster) -> Node:
    """The leader is killed, started again, and another one leads."""
    old = cluster.leader()
    old.kill()
    new = await asyncio.to_thread(cluster.leader, but=old)
    old.start()
    return new


async def test_each_step_of_qos_2(cluster: Cluster) -> None:
    peer, was_there = await connected(cluster.leader(), "steps")
    assert not was_there
    await peer.subscribe("steps/#", qos=2)
    async with http(cluster.leader().url) as calls:
        await calls.schedule("steps/1", "one", qos=2)
    first = await peer.take(Publish)

    peer, was_there = await connected(await after_a_kill(cluster), "steps")
    assert was_there
    again = await peer.take(Publish)
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"one", True)
    peer.send(Ack(wire.PUBREC, again.packet_id))
    release = await peer.take(Ack)
    assert (release.kind, release.packet_id) == (wire.PUBREL, first.packet_id)

    await asyncio.to_thread(cluster.wait_ready)
    peer, was_there = await connected(await after_a_kill(cluster), "steps")
    assert was_there
    release = await peer.take(Ack)
    assert (release.kind, release.packet_id) == (wire.PUBREL, first.packet_id)
    peer.send(Ack(wire.PUBCOMP, release.packet_id))
    await peer.silence(0.3)
    await peer.close()


async def test_a_publish_at_qos_2(cluster: Cluster) -> None:
    """What was taken before its PUBREL is not taken again, though another node answers."""
    reader, _ = await connected(cluster.leader(), "publishes")
    await reader.subscribe("publishes/#", qos=1)
    writer, _ = await connected(cluster.leader(), "publisher")
    writer.put("publishes/1", "one", qos=2)
    taken = await writer.take(Ack)
    assert taken.kind == wire.PUBREC
    assert (await reader.take(Publish)).payload == b"one"

    new = await after_a_kill(cluster)
    writer, was_there = await connected(new, "publisher")
    assert was_there
    writer.send(Publish(b"publishes/1", b"one", 2, dup=True, packet_id=taken.packet_id))
    assert (await writer.take(Ack)).kind == wire.PUBREC
    writer.send(Ack(wire.PUBREL, taken.packet_id))
    assert (await writer.take(Ack)).kind == wire.PUBCOMP
    reader, was_there = await connected(new, "publishes")
    assert was_there
    for packet in await more(reader):
        assert packet.dup, packet
    await reader.close()
    await writer.close()


async def more(peer: Peer) -> list[Publish]:
    """What comes within a moment: at QoS 1 perhaps once more what was not acked."""
    await asyncio.sleep(0.3)
    return [packet for packet in peer.inbox if isinstance(packet, Publish)]


async def test_a_follower_sends_clients_to_the_leader(cluster: Cluster) -> None:
    leader = cluster.leader()
    for node in cluster.others(leader):
        peer = await dial(node.mqtt)
        answer = await peer.connect("lost")
        assert answer.reason == ELSEWHERE
        assert answer.properties is not None
        assert answer.properties.server_reference == f"127.0.0.1:{leader.mqtt[1]}"
        await peer.gone()
        peer = await dial(node.mqtt, 4)
        assert (await peer.connect("lost")).reason == REFUSED_31
        await peer.gone()
