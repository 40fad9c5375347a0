"""Local wall times when the rules of time zones change: with a database in which Bucharest is in India."""

from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from server.codec.packets import Properties, Publish
from server.engine.clock import SimulatedClock
from server.mqtt.publish_requests import read_publish
from server.schedules import retime
from server.settings.durations import TimeError
from server.settings.times import parse_deliver_at, time_text, wall_time
from shards.errors import StoreFailed
from shards.rocks import RocksStore
from shards.store import Table
from shards.tables import META_ZONES
from tests.support.http import http
from tests.support.server import serving

from ..conftest import HOUR_MS, START_MS, Running
from .rig import Zoned

WISH = "2027-06-01T09:00[Europe/Bucharest]"
YEAR = datetime.now(UTC).year + 1


def elsewhere(text: str) -> int:
    """A newer database: Bucharest is an hour earlier; the zone of Kolkata is gone."""
    if "Kolkata" in text:
        raise TimeError("unknown time zone")
    return parse_deliver_at(text) - (HOUR_MS if "Bucharest" in text else 0)


async def fill(server: Running) -> dict[str, str]:
    async def at(text: str) -> str:
        return await server.schedule(deliver_at=text)

    return {
        "local": await at(WISH),
        "offset": await at("2027-06-01T09:00+03:00[Europe/Bucharest]"),
        "utc": await at("2027-06-01T06:00:00Z"),
        "paris": await at("2027-06-01T09:00[Europe/Paris]"),
        "kolkata": await at("2027-06-01T09:00[Asia/Kolkata]"),
        "near": await at("2026-11-21T10:00:01[Europe/Bucharest]"),
        "moved": await server.schedule(deliver_in="1h"),
        "cancelled": await at(WISH),
    }


@pytest.mark.long
async def test_only_wall_times_move(zoned: Zoned, monkeypatch: pytest.MonkeyPatch) -> None:
    async with zoned.running() as server:
        ids = await fill(server)
        await server.call("PATCH", f"/v1/messages/{ids['moved']}", {"deliver_at": WISH})
        await server.call("DELETE", f"/v1/messages/{ids['cancelled']}", status=204)
        shown = (await server.call("GET", f"/v1/messages/{ids['local']}")).body
        assert (shown["local"], shown["deliver_at"]) == (WISH, "2027-06-01T06:00:00.000Z")
        assert "local" not in (await server.call("GET", f"/v1/messages/{ids['offset']}")).body
        before = {name: (await show(server, one))["deliver_at"] for name, one in ids.items()}
    monkeypatch.setattr(retime, "parse_deliver_at", elsewhere)
    assert zoned.retimed("2026a") is None
    report = zoned.retimed("2026b")
    assert report == retime.Report(zoned=5, moved=2, kept=2)
    assert str(report) == "5 pending messages with a zone, 2 moved, 2 could not be"
    assert zoned.retimed("2026b") is None
    async with zoned.running() as server:
        after = {name: await show(server, one) for name, one in ids.items()}
        assert {name for name in ids if after[name]["deliver_at"] != before[name]} == {"local", "moved"}
        for name in ("local", "moved"):
            assert after[name]["deliver_at"] == "2027-06-01T05:00:00.000Z"
            assert (after[name]["local"], after[name]["id"]) == (WISH, ids[name])
        assert server.app.core.opened.waiting.pending == 7


async def show(server: Running, name: str) -> Any:
    return (await server.call("GET", f"/v1/messages/{name}")).body


async def test_a_move_forgets_or_replaces_the_wall_time(server: Running) -> None:
    name = await server.schedule(deliver_at=WISH)
    await server.call("PATCH", f"/v1/messages/{name}", {"deliver_in": "1h"})
    assert "local" not in await show(server, name)
    await server.call("PATCH", f"/v1/messages/{name}", {"deliver_at": "2027-01-01T00:00[UTC]"})
    assert (await show(server, name))["local"] == "2027-01-01T00:00[UTC]"
    body = {"filter": {"topic": "#"}, "shift": 60}
    await server.call("POST", "/v1/messages:reschedule", body)
    assert "local" not in await show(server, name)


@pytest.mark.parametrize(("bound", "most"), [("GROUP_MESSAGES", 7), ("GROUP_BYTES", 500)])
async def test_many_move_in_groups(
    zoned: Zoned, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    async with zoned.running() as server:
        ids = [await server.schedule(payload=n, deliver_at=WISH) for n in range(30)]
    monkeypatch.setattr(retime, "parse_deliver_at", lambda text: parse_deliver_at(text) + HOUR_MS)
    monkeypatch.setattr(retime, bound, most)
    groups, move = [], retime._move
    monkeypatch.setattr(retime, "_move", lambda *given: (groups.append(len(given[2])), move(*given)))
    assert zoned.retimed("9999z") == retime.Report(zoned=30, moved=30)
    assert len(groups) > 3
    assert max(groups) <= 7
    async with zoned.running() as server:
        found = (await server.call("GET", "/v1/messages")).body["messages"]
        assert sorted(m["id"] for m in found) == sorted(ids)
        assert {m["deliver_at"] for m in found} == {time_text(parse_deliver_at(WISH) + HOUR_MS)}


@pytest.mark.long
async def test_what_was_cut_off_is_done_again_with_whichever_database(
    zoned: Zoned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the messages follow the new rules: the old ones are no better known than the new ones."""
    async with zoned.running() as server:
        for n in range(4):
            await server.schedule(payload=n, deliver_at=WISH)
    monkeypatch.setattr(retime, "parse_deliver_at", lambda text: parse_deliver_at(text) + HOUR_MS)
    monkeypatch.setattr(retime, "GROUP_MESSAGES", 2)
    move, moves = retime._move, iter((True, False))

    def cut_off(*given: Any) -> None:
        if not next(moves):
            raise StoreFailed("cut off")
        move(*given)

    monkeypatch.setattr(retime, "_move", cut_off)
    with pytest.raises(StoreFailed, match="cut off"):
        zoned.retimed("2026b")
    monkeypatch.setattr(retime, "_move", move)
    monkeypatch.setattr(retime, "parse_deliver_at", parse_deliver_at)
    assert zoned.retimed("2026a") == retime.Report(zoned=4, moved=2)
    assert zoned.retimed("2026a") is None
    async with zoned.running() as server:
        found = (await server.call("GET", "/v1/messages")).body["messages"]
        assert {m["deliver_at"] for m in found} == {time_text(parse_deliver_at(WISH))}


@pytest.mark.parametrize(("lease_s", "groups"), [(0, 4), (60, 0)])
async def test_the_others_of_a_cluster_hear_of_a_node_that_looks(
    zoned: Zoned, monkeypatch: pytest.MonkeyPatch, lease_s: int, groups: int
) -> None:
    """Nothing moves, and there is much to look at."""
    async with zoned.running() as server:
        for n in range(7):
            await server.schedule(payload=n, deliver_at=WISH)
    monkeypatch.setattr(retime, "STEP_ROWS", 2)
    monkeypatch.setattr(SimulatedClock, "mono", lambda _: next(seconds))
    seconds, told, move = count(), [], retime._move
    monkeypatch.setattr(retime, "_move", lambda *given: (told.append(given[2]), move(*given)))
    zoned.lease_s = lease_s
    assert zoned.retimed("2026b") == retime.Report(zoned=7)
    assert told == [[]] * groups


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (WISH, True),
        ("2027-06-01 09:00:00.5[Asia/Kolkata]", True),
        ("2027-06-01T09:00Z[Europe/Bucharest]", False),
        ("2027-06-01T09:00+03:00[Europe/Bucharest]", False),
        ("2027-06-01T09:00Z", False),
        ("nonsense]", False),
        ("", False),
    ],
)
def test_what_is_a_wall_time(text: str, kept: bool) -> None:
    assert wall_time(text) == (text.encode() if kept else b"")


def test_the_version_of_the_database(tmp_path: Path) -> None:
    assert retime.zones_version((str(tmp_path),)) not in ("", "unknown")  # of the package
    (tmp_path / "UTC").write_bytes(b"some rules")
    unnamed = retime.zones_version((str(tmp_path),))
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe" / "Paris").write_bytes(b"rules")
    assert len({unnamed, retime.zones_version((str(tmp_path),)), retime.zones_version(())}) == 3
    (tmp_path / "+VERSION").write_text("2031a\n")
    assert retime.zones_version(("/nowhere", str(tmp_path))) == "2031a"
    (tmp_path / "tzdata.zi").write_text("# version 2031b\n# more\n")
    assert retime.zones_version((str(tmp_path),)) == "2031b"


@pytest.fixture
def india(tmp_path: Path) -> Iterator[Path]:
    """A time zone database in which Europe/Bucharest has the rules of Asia/Kolkata."""
    folder = tmp_path / "zones" / "Europe"
    folder.mkdir(parents=True)
    (folder / "Bucharest").write_bytes((files("tzdata.zoneinfo") / "Asia" / "Kolkata").read_bytes())
    (tmp_path / "zones" / "tzdata.zi").write_text("# version 9999z\n")
    return tmp_path / "zones"


@pytest.mark.process
async def test_at_start(tmp_path: Path, india: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, wish = tmp_path / "data", f"{YEAR}-06-01T09:00[Europe/Bucharest]"
    async with serving(data) as server, http(server.url) as calls:
        name = await calls.schedule("a", deliver_at=wish)
        body = {"cron": "0 9 1 1 *", "timezone": "Europe/Bucharest", "topic": "b", "payload": ""}
        made = (await calls.call("PUT", "/v1/schedules/new-year", body, status=201)).body["next"]
        await server.stopped()
    monkeypatch.setenv("PYTHONTZPATH", str(india))
    async with serving(data) as server, http(server.url) as calls:
        shown = (await calls.call("GET", f"/v1/messages/{name}", status=200)).body
        assert (shown["deliver_at"], shown["local"]) == (f"{YEAR}-06-01T03:30:00.000Z", wish)
        assert "time zones: changed" in server.output
        assert f"{name} {wish} moved from {YEAR}-06-01T06:00:00.000Z" in server.output
        assert f"schedule new-year: {YEAR}-01-01T09:00:00 moved from {made['at']}" in server.output
        now = (await calls.call("GET", "/v1/schedules/new-year", status=200)).body["next"]
        assert now["at"] == f"{YEAR}-01-01T03:30:00.000Z"
        await server.stopped()
    monkeypatch.delenv("PYTHONTZPATH")
    async with serving(data) as server, http(server.url) as calls:
        assert f"{name} {wish} moved from {YEAR}-06-01T03:30:00.000Z" in server.output
        new_year = f"schedule new-year: {YEAR}-01-01T09:00:00"
        assert f"{new_year} moved from {now['at']} to {made['at']}" in server.output
        assert "1 moved, 0 could not be; 1 pending occurrences of schedules, 1 moved" in server.output
        await server.stopped()
    store = RocksStore(data)
    assert store.get(Table.META, META_ZONES) == retime.zones_version().encode()
    store.close()


def test_over_mqtt_too() -> None:
    packet = Publish(b"a", b"x", 1, False, False, 1, Properties(user_properties=(("deliver-at", WISH),)))
    assert read_publish(packet, b"device-7", START_MS, 10**12).record.zone == WISH.encode()
