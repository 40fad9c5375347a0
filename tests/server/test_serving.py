"""A server that leads others, when its store takes nothing any more."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.registry import Collector

from server.clock import SystemClock
from server.codec.packets import Ack, Disconnect
from server.config import Config
from server.kinds import Address
from server.lease import Lease
from server.serving import Server, Term
from tests.support.mqtt import dial
from tests.support.stores import FailingStore

MOVED = 0x9D
ANY = Address("127.0.0.1", 0)


class NoFigures(Collector):
    def collect(self) -> Iterator[Metric]:
        return iter(())


async def nothing() -> None:
    """There are no other doors."""


async def test_what_may_be_in_the_log_is_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its clients are sent away without an answer, and ask the next leader."""
    config = Config(
        http=replace(Config().http, listen=ANY),
        mqtt=replace(Config().mqtt, listen=(ANY,)),
        store=replace(Config().store, dir=str(tmp_path / "data")),
    )
    clock, store = SystemClock(), FailingStore(tmp_path / "data")
    over: list[str] = []
    term = Term(Lease(clock, 60.0), lambda: over.append("over"), nothing, (), NoFigures())
    server = Server(config, clock, store, None, None, term)
    await server.start()
    try:
        port = int(capsys.readouterr().out.partition("mqtt=127.0.0.1:")[2].split()[0])
        peers = [await dial(("127.0.0.1", port)) for _ in range(2)]
        for peer in peers:
            await peer.connect(f"c{port}-{peers.index(peer)}", clean=False, session_expiry=60)
        store.is_failing = True
        for qos, peer in enumerate(peers, 1):
            peer.put("t", "hi", qos, user_properties=(("deliver-in", "1h"),))
        for peer in peers:
            assert (await peer.take(Disconnect)).reason == MOVED
            await peer.gone()
            assert not [packet for packet in peer.inbox if isinstance(packet, Ack)]
        assert over == ["over"]
    finally:
        store.is_failing = False
        await asyncio.wait_for(server.stop(), 20)
