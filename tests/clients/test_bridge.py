"""A real mosquitto that is bridged to the server: both ways, at every QoS, and no message goes round.

The bridge is as a stock configuration has it: with notifications and, below level 5, with `try_private`, by
which it says that it is one.
"""

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish
from tests.clients.conftest import Room
from tests.support.mqtt import Peer, dial
from tests.support.ports import free_port

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
pytestmark = [pytest.mark.proof, pytest.mark.skipif(not MOSQUITTO, reason="mosquitto is not installed")]
STATE = "$SYS/broker/connection/{}/state"
BOTH_VERSIONS = pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])


class Mosquitto:
    """The broker, bridged under the client id `name` with the topics below `name`."""

    def __init__(self, folder: Path, name: str, server: tuple[str, int], version: str, *more: str) -> None:
        self.address = ("127.0.0.1", free_port())
        lines = [
            f"listener {self.address[1]} 127.0.0.1",
            "allow_anonymous true",
            "persistence false",
            "connection to-fasti",
            f"address {server[0]}:{server[1]}",
            f"remote_clientid {name}",
            f"bridge_protocol_version {version}",
            "restart_timeout 1",
            *(f"topic {name}/{way}/# {way} 2" for way in ("out", "in", "both")),
            *more,
        ]
        path = folder / "mosquitto.conf"
        path.write_text("\n".join(lines) + "\n")
        self.log = folder / "mosquitto.log"
        with self.log.open("wb") as out:
            assert MOSQUITTO
            self.process = subprocess.Popen(
                [MOSQUITTO, "-v", "-c", str(path)], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    async def dial(self, level: int = 5) -> Peer:
        """A connection to it, as soon as it listens."""
        deadline = time.monotonic() + 20
        while True:
            try:
                return await dial(self.address, level)
            except OSError:
                ended = self.process.poll()
                assert ended is None, f"ended with {ended}: {self.log.read_text(errors='replace')}"
                assert time.monotonic() < deadline, self.log.read_text(errors="replace")
                await asyncio.sleep(0.05)

    async def has_logged(self, pattern: str) -> None:
        """Wait for a line of its log."""
        deadline = time.monotonic() + 20
        while not re.search(pattern, self.log.read_text(errors="replace")):
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")
            await asyncio.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def bridged(room: Room, folder: Path, name: str, version: str, *more: str) -> AsyncIterator[Mosquitto]:
    """One whose bridge is connected, as its state on the server says."""
    broker = Mosquitto(folder, name, room.server.mqtt, version, *more)
    try:
        (await broker.dial()).drop()
        watch = await room.connected()
        await watch.subscribe(STATE.format(name))
        try:
            while (await watch.take(Publish, 20)).payload != b"1":
                pass  # what it left the last time
        except TimeoutError:
            raise AssertionError(broker.log.read_text(errors="replace")) from None
        yield broker
    finally:
        broker.kill()


async def listening(peer: Peer, *filters: str) -> Peer:
    if not peer.inbox:
        connack = await peer.connect()
        assert connack.reason == 0
    await peer.subscribe(*filters, qos=2)
    return peer


async def publish(peer: Peer, topic: str, text: str, qos: int, *, retain: bool = False) -> None:
    peer.send(Publish(topic.encode(), text.encode(), qos, retain, packet_id=7 if qos else 0))
    if qos:
        assert (await peer.take(Ack)).reason < 0x80
    if qos == 2:
        peer.send(Ack(wire.PUBREL, 7))
        await peer.take(Ack)


async def receive(peer: Peer) -> tuple[str, int, bool]:
    """Payload, QoS, retain flag of the next delivery, which is acked to its end."""
    packet = await peer.take(Publish)
    if packet.qos == 1:
        peer.ack(packet)
    elif packet.qos == 2:
        peer.send(Ack(wire.PUBREC, packet.packet_id))
        await peer.take(Ack)
        peer.send(Ack(wire.PUBCOMP, packet.packet_id))
    return packet.payload.decode(), packet.qos, packet.retain


async def talkers(room: Room, broker: Mosquitto) -> tuple[Peer, Peer]:
    """One connected to the server, one to mosquitto."""
    there = await broker.dial()
    assert (await there.connect()).reason == 0
    return await room.connected(), there


@BOTH_VERSIONS
async def test_both_ways(room: Room, tmp_path: Path, name: str, version: str) -> None:
    """Each message once on each side, at its QoS; the last one of each shows that nothing more comes."""
    async with bridged(room, tmp_path, name, version) as broker:
        here, there = await talkers(room, broker)
        hears_here = await listening(await room.dial(), f"{name}/#")
        hears_there = await listening(await broker.dial(), f"{name}/#")
        for qos in range(3):
            await publish(there, f"{name}/out/a", f"out {qos}", qos)
            assert await receive(hears_here) == (f"out {qos}", qos, False)
            assert await receive(hears_there) == (f"out {qos}", qos, False)
            await publish(here, f"{name}/in/a", f"in {qos}", qos)
            assert await receive(hears_there) == (f"in {qos}", qos, False)
            assert await receive(hears_here) == (f"in {qos}", qos, False)
            for talks in (here, there):
                await publish(talks, f"{name}/both/a", f"both {qos}", qos)
                assert await receive(hears_here) == (f"both {qos}", qos, False)
                assert await receive(hears_there) == (f"both {qos}", qos, False)
        await hears_here.silence(0.3)
        await hears_there.silence(0.3)


@BOTH_VERSIONS
async def test_retained(room: Room, tmp_path: Path, name: str, version: str) -> None:
    """It is retained on the other side too, whether it was there before the bridge or came later."""
    before = await room.connected()
    await publish(before, f"{name}/in/early", "early", 1, retain=True)
    async with bridged(room, tmp_path, name, version) as broker:
        here, there = await talkers(room, broker)
        for qos in range(3):
            await publish(here, f"{name}/in/{qos}", f"in {qos}", qos, retain=True)
            await publish(there, f"{name}/out/{qos}", f"out {qos}", qos, retain=True)
        await publish(here, f"{name}/both/here", "here", 1, retain=True)
        await publish(there, f"{name}/both/there", "there", 1, retain=True)
        want = [
            ("early", 1, True),
            ("here", 1, True),
            *((f"in {qos}", qos, True) for qos in range(3)),
            *((f"out {qos}", qos, True) for qos in range(3)),
            ("there", 1, True),
        ]
        for dials in (room.dial, broker.dial):
            found: list[tuple[str, int, bool]] = []
            deadline = time.monotonic() + 20
            while sorted(found) != want:
                assert time.monotonic() < deadline, (dials, found)
                peer = await listening(await dials(), f"{name}/#")
                found = []
                while True:
                    try:
                        await asyncio.wait_for(_one(peer, found), 0.3)
                    except TimeoutError:
                        break
                peer.drop()
        for peer in (here, there):
            for way in ("in", "out", "both"):
                for level in ("early", "here", "there", "0", "1", "2"):
                    await publish(peer, f"{name}/{way}/{level}", "", 1, retain=True)


async def _one(peer: Peer, found: list[tuple[str, int, bool]]) -> None:
    found.append(await receive(peer))


@BOTH_VERSIONS
async def test_delayed_and_scheduled(room: Room, tmp_path: Path, name: str, version: str) -> None:
    async with bridged(room, tmp_path, name, version) as broker:
        here, there = await talkers(room, broker)
        hears_there = await listening(await broker.dial(), f"{name}/#")
        started = time.monotonic()
        await publish(here, f"$delayed/1/{name}/in/a", "late", 1)
        assert await receive(hears_there) == ("late", 1, False)
        assert time.monotonic() - started >= 0.9
        there.drop()


@BOTH_VERSIONS
async def test_its_state(room: Room, tmp_path: Path, name: str, version: str) -> None:
    """A bridge that is killed leaves a 0, retained, by its will."""
    watch = await room.connected()
    await watch.subscribe(STATE.format(name))
    async with bridged(room, tmp_path, name, version) as broker:
        assert (await watch.take(Publish)).payload == b"1"
        broker.kill()
        state = await watch.take(Publish)
        assert (state.payload, state.retain) == (b"0", False)
    late = await room.connected()
    await late.subscribe(STATE.format(name))
    state = await late.take(Publish)
    assert (state.payload, state.retain) == (b"0", True)


async def test_what_it_missed(room: Room, tmp_path: Path, name: str) -> None:
    """A bridge that keeps its session gets it when it is there again."""
    keeps = ("cleansession false",)
    async with bridged(room, tmp_path, name, "mqttv311", *keeps) as broker:
        broker.kill()
        await publish(await room.connected(), f"{name}/in/a", "missed", 2)
    async with bridged(room, tmp_path, name, "mqttv311", *keeps) as broker:
        await broker.has_logged(rf"Received PUBLISH .*q2.*'{name}/in/a'")


async def test_a_bridge_that_does_not_say_that_it_is_one(room: Room, tmp_path: Path, name: str) -> None:
    async with bridged(room, tmp_path, name, "mqttv311", "try_private false") as broker:
        here, there = await talkers(room, broker)
        hears_here = await listening(await room.dial(), f"{name}/#")
        hears_there = await listening(await broker.dial(), f"{name}/#")
        await publish(there, f"{name}/out/a", "out", 2)
        assert await receive(hears_here) == ("out", 2, False)
        assert await receive(hears_there) == ("out", 2, False)
        await publish(here, f"{name}/in/a", "in", 2)
        assert await receive(hears_there) == ("in", 2, False)
