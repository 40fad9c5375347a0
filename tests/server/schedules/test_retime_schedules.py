"""Recurring schedules when the rules of their zone change: Bucharest with the clocks of another place."""

from datetime import timedelta
from itertools import pairwise
from math import inf
from zoneinfo import ZoneInfo

import pytest

from server.engine.lease import Lease
from server.schedules import recurring as schedules
from server.schedules import retime, retime_schedules, starts
from server.settings.times import parse_deliver_at
from shards.schedules import TimingRow
from timeline.fires import local_of

from ..conftest import HOUR_MS, MINUTE_MS, START_MS, Running
from .rig import Rig, Zoned

BUCHAREST = "Europe/Bucharest"
SCHEDULES: dict[str, dict[str, object]] = {
    "nightly": {"cron": "0 2 * * *"},
    "paused": {"cron": "0 2 * * *"},
    "moved": {"cron": "0 2 * * *"},
    "cancelled": {"cron": "0 2 * * *"},
    "monthly": {"rrule": "FREQ=MONTHLY;BYMONTHDAY=1", "start": "2026-12-01T09:00[Europe/Bucharest]"},
    "late": {"every": "PT6H", "start": "2026-12-01T09:00[Europe/Bucharest]"},
    "elapsed": {"every": "PT6H"},
    "elsewhere": {"cron": "0 2 * * *", "timezone": "America/New_York"},
}


def move_bucharest(monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    """From now on Europe/Bucharest has the clocks of another zone."""

    def zone(name: str) -> ZoneInfo:
        return ZoneInfo(to if name == BUCHAREST else name)

    for module in (schedules, starts):
        monkeypatch.setattr(module, "ZoneInfo", zone)
    for module in (retime_schedules, starts):
        monkeypatch.setattr(
            module, "parse_deliver_at", lambda text: parse_deliver_at(text.replace(BUCHAREST, to))
        )


async def fill(server: Running) -> dict[str, str]:
    """Ids of the pending occurrences."""
    for name, when in SCHEDULES.items():
        body = {"topic": f"t/{name}", "payload": name, "timezone": BUCHAREST, **when}
        await server.call("PUT", f"/v1/schedules/{name}", body, status=201)
    shown = {name: (await server.call("GET", f"/v1/schedules/{name}")).body for name in SCHEDULES}
    ids = {name: str(body["next"]["id"]) for name, body in shown.items()}
    await server.call("POST", "/v1/schedules/paused:pause")
    await server.call("PATCH", f"/v1/messages/{ids['moved']}", {"deliver_in": "3d"})
    await server.call("DELETE", f"/v1/messages/{ids['cancelled']}", status=204)
    return ids


async def upcoming(server: Running, name: str) -> list[str]:
    found = (await server.call("GET", f"/v1/schedules/{name}/upcoming?count=2")).body["fires"]
    return [fire["at"][5:16] for fire in found]


@pytest.mark.long
async def test_what_is_written_ahead_follows(zoned: Zoned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bucharest (+02:00 in winter) gets the clocks of Moscow (+03:00)."""
    async with zoned.running() as server:
        ids = await fill(server)
        before = {name: await upcoming(server, name) for name in SCHEDULES}
        pending = server.app.core.opened.waiting.pending
    assert before["nightly"] == ["11-22T00:00", "11-23T00:00"]
    assert before["monthly"] == ["12-01T07:00", "01-01T07:00"]
    move_bucharest(monkeypatch, "Europe/Moscow")
    report = zoned.retimed("2026b")
    assert report is not None
    assert (report.schedules.looked, report.schedules.moved, report.schedules.kept) == (5, 3, 0)
    assert str(report).endswith("; 5 pending occurrences of schedules, 3 moved, 0 could not be")
    again = zoned.retimed("2026c")
    assert again is not None
    assert again.schedules.moved == 0
    async with zoned.running() as server:
        after = {name: await upcoming(server, name) for name in SCHEDULES}
        assert server.app.core.opened.waiting.pending == pending
        shown = (await server.call("GET", "/v1/schedules/nightly")).body
        assert (shown["count"], shown["next"]["id"] == ids["nightly"]) == (1, False)
        old = (await server.call("GET", f"/v1/messages/{ids['nightly']}")).body
        assert (old["state"], old["schedule"]) == ("cancelled", "nightly")
        await server.call("POST", "/v1/schedules/paused:resume")
        assert (await upcoming(server, "paused"))[0] == "11-21T23:00"
    assert {name for name in SCHEDULES if after[name] != before[name]} == {
        *("nightly", "monthly", "late", "moved", "cancelled")
    }
    assert after["nightly"] == ["11-21T23:00", "11-22T23:00"]
    assert after["monthly"] == ["12-01T06:00", "01-01T06:00"]
    assert after["late"] == ["12-01T06:00", "12-01T12:00"]
    assert after["moved"] == [before["moved"][0], "11-22T23:00"], "where it was put; the plan goes on"
    assert after["cancelled"] == ["11-22T23:00", "11-23T23:00"]


async def test_what_is_too_near_stays_and_is_told(zoned: Zoned, monkeypatch: pytest.MonkeyPatch) -> None:
    async with zoned.running() as server:
        body = {"topic": "a", "cron": "1 0 10 * * *", "timezone": BUCHAREST}
        await server.call("PUT", "/v1/schedules/near", body, status=201)
    move_bucharest(monkeypatch, "Europe/Moscow")
    report = zoned.retimed("2026b")
    assert report is not None
    assert (report.schedules.moved, report.schedules.kept) == (0, 1)


async def test_a_zone_that_is_no_more(zoned: Zoned, monkeypatch: pytest.MonkeyPatch) -> None:
    async with zoned.running() as server:
        await fill(server)
    move_bucharest(monkeypatch, "Mars/Olympus")
    report = zoned.retimed("2026b")
    assert report is not None
    assert report.schedules.kept == 4


@pytest.mark.parametrize("misfire", ["fire_once", "fire_all", "skip"])
@pytest.mark.parametrize("to", ["Etc/GMT-8", "Etc/GMT+5", "UTC"])
def test_each_local_time_fires_once_over_the_change(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, misfire: str, to: str
) -> None:
    """Six hours ahead, seven behind, two behind; an hourly schedule in the middle of its day."""
    zone = ZoneInfo("Etc/GMT-2")
    monkeypatch.setattr(schedules, "ZoneInfo", lambda name: zone)
    rig.put(timing=TimingRow("cron", "20 * * * *", BUCHAREST, misfire=misfire))
    rig.walk(START_MS + 3 * HOUR_MS, 10 * MINUTE_MS)
    fired = [local_of(at, zone) for at in rig.fired()]
    later = ZoneInfo(to)
    monkeypatch.setattr(schedules, "ZoneInfo", lambda name: later)
    rig.crash()
    retime.retime(rig.core.opened, rig.clock.wall_ms(), lambda line: None, Lease(rig.clock, inf))
    changed_ms = rig.clock.wall_ms()
    rig.crash()
    rig.walk(changed_ms + 12 * HOUR_MS, 10 * MINUTE_MS)
    fired += [local_of(at, later) for at in rig.fired()[len(fired) :]]
    assert len(set(fired)) == len(fired), "none is doubled"
    gaps = [b - a for a, b in pairwise(sorted(fired)) if b - a != timedelta(hours=1)]
    if to == "Etc/GMT-8" and misfire != "fire_all":
        # The clocks jumped over six hours: missed, so one of them for all, or none.
        assert gaps == ([timedelta(hours=6)] if misfire == "fire_once" else [timedelta(hours=7)])
    else:
        assert gaps == [], "none is skipped"
