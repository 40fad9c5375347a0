"""Counts by time over a stop, a kill and data that have none."""

from pathlib import Path
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.rounds import counting
from server.settings.config import Config
from shards.errors import StoreFailed
from shards.keys import CELLS, under
from shards.read import Reader
from shards.store import Table

from ..conftest import DAY_MS, HOUR_MS, START_MS, Running, running


async def fill(server: Running) -> None:
    for hours in range(1, 200, 7):
        await server.schedule(deliver_in=f"{hours}h")
    name = await server.schedule(deliver_in="3h")
    await server.call("DELETE", f"/v1/messages/{name}", status=204)


async def by_hours(server: Running) -> list[int]:
    path = f"/v1/timeline/density?from={START_MS}&to={START_MS + 9 * DAY_MS}&bucket=PT1H"
    return [one["count"] for one in (await server.call("GET", path)).body["buckets"]]


def refuse(*_: object) -> Any:
    raise AssertionError("rows were read")


def stored(server: Running) -> dict[bytes, bytes]:
    return dict(server.store.scan(Table.META, *under(CELLS)))


WANTED = [int(hour % 7 == 1 and hour < 200) for hour in range(9 * 24)]


async def test_a_stop_saves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, Config(), SimulatedClock(START_MS)) as server:
        await fill(server)
    monkeypatch.setattr(Reader, "run", refuse)
    async with running(tmp_path, Config(), SimulatedClock(START_MS)) as server:
        assert await by_hours(server) == WANTED


async def test_slices_without_them_are_counted_in_steps(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "COUNT_ROWS", 1)
    await fill(server)
    for piece in server.app.core.directory:
        piece.cells = None
    assert await by_hours(server) == WANTED
    monkeypatch.setattr(counting, "COUNT_STEPS", 20)
    await server.app.counting.look()
    assert 0 < len(stored(server)) < len(server.app.core.directory)
    assert await by_hours(server) == WANTED
    monkeypatch.setattr(counting, "COUNT_STEPS", 400)
    await server.app.counting.look()
    assert len(stored(server)) == len(server.app.core.directory)
    monkeypatch.setattr(Reader, "run", refuse)
    assert await by_hours(server) == WANTED


async def test_what_has_not_changed_is_not_saved_again(server: Running) -> None:
    await fill(server)
    await server.app.counting.look()
    before, seq = stored(server), server.app.core.horizon.seq
    await server.app.counting.look()
    assert (stored(server), server.app.core.horizon.seq) == (before, seq)
    await server.schedule(deliver_in=f"{HOUR_MS // 1_000}s")
    await server.app.counting.look()
    assert sum(before[key] != value for key, value in stored(server).items()) == 1


async def test_a_slice_with_unreadable_rows_is_left_alone(server: Running) -> None:
    await fill(server)
    (first, *others) = server.app.core.directory
    for piece in (first, *others):
        piece.cells = None
    next(iter(first.shards.values())).live += 1  # it says one more than can be read
    await server.app.counting.look()
    assert first.cells is None
    assert all(piece.cells is not None and piece.cells.is_exact for piece in others)


async def test_nothing_is_counted_while_the_store_fails(server: Running) -> None:
    await fill(server)
    pieces = list(server.app.core.directory)
    for piece in pieces:
        piece.cells = None
    writer = server.app.core.writer
    writer.broken = StoreFailed("full")
    await server.app.counting.look()
    writer.broken = None
    assert [piece.cells for piece in pieces] == [None] * len(pieces)
    await server.app.counting.look()
    assert all(piece.cells is not None for piece in pieces)
