"""Recurring schedules on a whole core without a loop, and a data directory whose time zones change."""

from contextlib import AbstractAsyncContextManager
from math import inf
from pathlib import Path
from typing import Any

from server.core import Core, timeline_of
from server.engine.clock import SimulatedClock
from server.engine.lease import Lease
from server.schedules import retime
from server.schedules.recurring import Schedules
from server.settings.config import Config
from shards.fields import Record
from shards.record import decode, encode, is_stub
from shards.rocks import RocksStore
from shards.schedules import ScheduleRow, TimingRow
from tests.support.clock import HandClock
from tests.support.memory_store import MemoryStore
from tests.support.stepper import Stepper
from timeline.position import END, START, MessageId

from ..conftest import START_MS, Running, running

RECORD = encode(Record(b"jobs/nightly", b"go"))
HOURLY = TimingRow("cron", "0 * * * *", "UTC")


class Rig:
    """A core on a store in RAM, driven by hand; it remembers what was dispatched, in order."""

    def __init__(self, config: Config | None = None) -> None:
        self.store = MemoryStore()
        self.clock = HandClock(START_MS)
        self.stepper = Stepper(self.store, self.clock, config)

    def crash(self, survivors: int = 0, away_ms: int = 0) -> None:
        self.store.crash(survivors)
        self.clock.step(away_ms)
        self.stepper.start()

    @property
    def core(self) -> Core:
        return self.stepper.core

    @property
    def schedules(self) -> Schedules:
        return self.core.schedules

    def ask(self, decide: Any) -> Any:
        """A request, durable."""
        answers: list[Any] = []
        self.core.writer.submit(decide, answers.append)
        while not answers:
            self.stepper.round()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def put(self, name: str = "s", timing: TimingRow = HOURLY, record: bytes = RECORD) -> ScheduleRow:
        row: ScheduleRow = self.ask(lambda c: self.schedules.put(c, name, timing, record, b"{}"))[0]
        return row

    def lose(self, *decides: Any) -> None:
        """The group of these requests is lost; the store is back before anybody looks."""
        for decide in decides:
            self.core.writer.submit(decide, lambda answer: None)
        self.stepper.compose()
        self.stepper.fail_sync()
        assert self.stepper.recover()

    def deliver(self, rounds: int = 1) -> None:
        """Rounds in which no schedule comes to its turn."""
        for _ in range(rounds):
            self.stepper.heartbeat()
            self.stepper.compose()
            self.stepper.settle()
            self.stepper.dispatch()
            self.stepper.load()

    def rest(self) -> None:
        """Rounds until nothing is left to do at this time."""
        self.stepper.rest(self.stepper.round)

    def walk(self, to_ms: int, step_ms: int) -> None:
        while self.clock.now_ms < to_ms:
            self.clock.step(min(step_ms, to_ms - self.clock.now_ms))
            self.rest()

    def rows(self) -> list[tuple[int, bool]]:
        """(due, cancelled) of every message, moved stubs left out."""
        found = [decode(value) for _, _, value in self.core.reader.read(START, END)]
        return [(r.due_ms, bool(r.stub)) for r in found if r.stub & 0x1000 == 0]

    def fired(self) -> list[int]:
        """Dues of what the horizon has passed and nobody cancelled."""
        horizon = self.core.horizon.position
        return [
            decode(value).due_ms
            for place, _, value in self.core.reader.read(START, END)
            if place <= horizon and not is_stub(value)
        ]

    def pending(self, name: str = "s") -> MessageId:
        row = self.schedules.get(name)
        assert row is not None
        assert row.occurrence is not None
        return row.occurrence.message


class Zoned:
    """A data directory that servers start on, and in between the rules of time zones change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lease_s = inf
        """How long a node would lead without a group."""

    def running(self) -> AbstractAsyncContextManager[Running]:
        return running(self.path, Config(), SimulatedClock(START_MS))

    def retimed(self, version: str) -> retime.Report | None:
        """A start finds that version of the zones; None if the last one had it too, or there was none."""
        store = RocksStore(self.path)
        clock = SimulatedClock(START_MS)
        try:
            return retime.retime_if_changed(
                lambda: timeline_of(Config(), clock, store),
                store,
                clock.wall_ms(),
                version,
                Lease(clock, self.lease_s),
            )
        finally:
            store.close()
