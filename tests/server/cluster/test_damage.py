"""Damage of a node: who could lead in its place, what it says, and when it takes a copy."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace as replace_of
from pathlib import Path

import pytest
from msgspec.structs import replace

from server.cluster.damage import AGAIN_S, LAG_RECORDS, Damage
from server.cluster.members import ALIVE_S, TEXT_MAX, Member, Members
from server.core import Core
from server.engine.clock import SimulatedClock
from server.engine.lease import Lease
from server.rounds.app import App
from server.settings.config import Config, Shards
from shards.commit import Draft
from shards.fields import Record
from shards.log.chained import open_engine
from shards.record import encode
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.unreadable import notes
from tests.support.logs import Elapsing
from tests.support.shelf import MemoryEngine, Shelf

START_MS = 1_795_248_000_000
DUE_MS = START_MS + 3_600_000
COUNT = 2_000


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.members = Members(lambda: self.now)
        self.damage = Damage("a", self.members, lambda: self.now)

    def hear(self, node: str, **more: object) -> tuple[str, ...]:
        said = Member(node, f"http://{node}", "", "follower", 1, 20_000, "1")
        self.members.hear(replace(said, **more))
        self.damage.look()
        return self.damage.heirs


def test_an_heir_is_heard_fit_whole_and_nearly_as_far() -> None:
    world = World()
    assert world.hear("a") == ()
    assert world.hear("b") == ("b",)
    for more in ({"fit": False}, {"damage": "x"}, {"state": "resync"}, {"applied": 19_999 - LAG_RECORDS}):
        assert world.hear("b", **more) == (), more
        assert world.hear("b", state="leader") == ("b",)
    assert world.hear("c", applied=20_000 - LAG_RECORDS) == ("b", "c")
    world.now += ALIVE_S
    assert world.hear("c") == ("c",)


def test_what_is_said_and_done() -> None:
    world = World()
    damage = world.damage
    world.hear("b")
    damage.met("")
    assert (damage.fault, damage.problem, damage.needs_copy) == ("", "", False)
    damage.met("table messages: " + "x" * 1_000)
    damage.met("more")
    found = damage.found
    assert len(found) == TEXT_MAX
    assert found.startswith("table messages")
    assert damage.problem == damage.fault == f"this node's data is damaged, b can lead: {found}"
    assert damage.needs_copy
    damage.copying()
    assert not damage.needs_copy
    world.now += AGAIN_S
    world.hear("b")
    assert damage.needs_copy
    world.hear("b", damage="too")
    assert (damage.fault, damage.needs_copy) == ("", False)
    assert damage.problem == f"this node's data is damaged, no other node is fit to lead: {found}"
    damage.copying()
    damage.mended()
    assert damage.problem == ""
    world.hear("b")
    damage.met("table messages: new")
    assert damage.needs_copy, "the last copy has not failed"


CONFIG = replace_of(Config(), shards=replace_of(Shards(), cap_messages=1_000))


class Term:
    """A server that leads on a node's store."""

    def __init__(self, store: ReplicatedStore, clock: SimulatedClock) -> None:
        self.store, self.over = store, list[str]()
        store.lead("a", "http://a")
        self.app = App(
            CONFIG,
            clock,
            store,
            fatal=lambda: self.over.append("died"),
            lease=Lease(clock, 1e9),
            lost=lambda: self.over.append("lost"),
        )

    @property
    def core(self) -> Core:
        return self.app.core


class Nodes:
    """Two nodes with the same 2,000 messages; a block of the first one's table file rots."""

    def __init__(self, folder: Path) -> None:
        self.clock = SimulatedClock(START_MS)
        self.shelf = Shelf()
        self.below = [RocksStore(folder / "a"), RocksStore(folder / "b")]
        self.stores = [
            ReplicatedStore(below, open_engine(MemoryEngine(self.shelf), Elapsing(), 2.0))
            for below in self.below
        ]

    @asynccontextmanager
    async def term(self, number: int) -> AsyncIterator[Term]:
        while self.stores[number].follow():
            pass
        made = Term(self.stores[number], self.clock)
        await made.app.start()
        yield made
        await made.app.stop()

    async def fill(self) -> None:
        async with self.term(0) as first:
            drafts = [
                Draft(DUE_MS + 10 * n, b"a/b", encode(Record(b"a/b", os.urandom(200), DUE_MS + 10 * n, 1)))
                for n in range(COUNT)
            ]
            await first.app.ask(lambda commit: commit.put(drafts), cost=COUNT)
            self.below[0].unload()
        file = max((self.below[0].path).glob("*.sst"), key=lambda path: path.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
        self.open_again()

    def open_again(self) -> None:
        """As after a restart, or a copy."""
        self.below[0] = RocksStore(self.below[0].path)
        self.stores[0] = ReplicatedStore(
            self.below[0], open_engine(MemoryEngine(self.shelf), Elapsing(), 2.0)
        )

    def close(self) -> None:
        for store in self.stores:
            store.close()


async def passed(term: Term, clock: SimulatedClock) -> int:
    """How many messages have been dispatched when all are due."""
    for _ in range(60):
        clock.now_ms += 1_000
        await term.app.quiet()
    return term.core.dispatch.counts.dispatched


@pytest.mark.long
async def test_a_leader_hands_over_before_it_passes_what_it_cannot_read(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    await nodes.fill()
    nodes.stores[0].has_heir = True
    nodes.clock.now_ms = DUE_MS - 20_000
    async with nodes.term(0) as first:
        before = await passed(first, nodes.clock)
        assert "lost" in first.over
        assert before < COUNT // 2
    assert nodes.stores[0].damage
    nodes.open_again()  # in the same process: no iterator of the term holds the database
    async with nodes.term(1) as second:
        assert not list(notes(nodes.stores[1])), "nothing was noted as unreadable"
        after = await passed(second, nodes.clock)
        assert before + after >= COUNT
        assert second.core.horizon.position > DUE_MS + 10 * COUNT << 48
        assert second.over == []
    nodes.close()


@pytest.mark.long
async def test_without_an_heir_it_goes_on_and_a_whole_node_sends_the_rest(tmp_path: Path) -> None:
    """As one server alone: what cannot be read is passed, and noted as owed."""
    nodes = Nodes(tmp_path)
    await nodes.fill()
    nodes.clock.now_ms = DUE_MS - 20_000
    async with nodes.term(0) as first:
        before = await passed(first, nodes.clock)
        assert first.over == []
        assert COUNT - 200 < before < COUNT - 10
    async with nodes.term(1) as second:
        assert before + await passed(second, nodes.clock) >= COUNT
    nodes.close()
