"""Schedules over HTTP: definitions, previews, verbs, and thirty days of a simulated clock."""

import threading
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import msgspec
import pytest

from server.codec.packets import Properties, Publish
from server.core import timeline_of
from server.engine.clock import SimulatedClock
from server.http import upcoming
from server.mqtt.forms import common_properties
from server.mqtt.publish_requests import read_publish
from server.schedules.retime_schedules import retime_schedules
from server.settings.config import Config
from shards.properties import headers_of
from shards.rocks import RocksStore
from shards.schedules import TimingRow
from shards.store import Table
from shards.tables import encode_row
from timeline.fires import Plan

from ..conftest import DAY_MS, HOUR_MS, START_MS, TOGETHER, Running, running, with_settings

SCHEDULES = "/v1/schedules"
NIGHTLY: dict[str, Any] = {
    "cron": "30 3 * * *",
    "timezone": "Europe/Bucharest",
    "topic": "jobs/nightly",
    "payload": {"n": 1},
}
EACH_MINUTE: dict[str, Any] = {"cron": None, "timezone": None, "every": "PT1M"}


async def put(server: Running, name: str = "nightly", status: int = 201, **changes: object) -> Any:
    return (await server.call("PUT", f"{SCHEDULES}/{name}", NIGHTLY | changes, status=status)).body


async def preview(server: Running, **body: object) -> list[dict[str, str]]:
    found = await server.call("POST", f"{SCHEDULES}:preview", body)
    return list(found.body["fires"])


async def test_rules_are_not_read_in_the_loop_to_show_them(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is hard to count out takes 60 ms, and a page has up to 1,000."""
    await put(server)
    threads: list[threading.Thread] = []
    read = upcoming.plan_of

    def seen(*arguments: Any) -> Plan:
        threads.append(threading.current_thread())
        return read(*arguments)

    monkeypatch.setattr(upcoming, "plan_of", seen)
    (listed,) = (await server.call("GET", SCHEDULES)).body["schedules"]
    assert listed["next"]["at"] == "2026-11-22T01:30:00.000Z"
    assert threads == []
    fires = (await server.call("GET", f"{SCHEDULES}/nightly/upcoming?count=3")).body["fires"]
    assert (fires[0], len(fires)) == (listed["next"], 3)
    await server.call("GET", f"{SCHEDULES}.ics")
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_put_get_list_delete(server: Running) -> None:
    made = await put(server)
    assert made["state"] == "active"
    assert made["payload"] == {"n": 1}
    assert made["dst"] == {"gap": "after", "overlap": "first"}
    assert made["misfire"] == "fire_once"
    assert made["next"]["at"] == "2026-11-22T01:30:00.000Z"
    assert made["next"]["local"] == "2026-11-22T03:30:00+02:00[Europe/Bucharest]"
    message = made["next"]["id"]
    assert (await server.call("GET", f"/v1/messages/{message}")).body["topic"] == "jobs/nightly"
    assert (await server.call("GET", f"{SCHEDULES}/nightly")).body == made
    assert await put(server, status=200) == made, "the same again changes nothing"
    await put(server, "a.b-C_9")
    listed = (await server.call("GET", f"{SCHEDULES}?limit=1")).body
    assert ([s["name"] for s in listed["schedules"]], listed["next"]) == (["a.b-C_9"], "a.b-C_9")
    listed = (await server.call("GET", f"{SCHEDULES}?limit=1&cursor=a.b-C_9")).body
    assert ([s["name"] for s in listed["schedules"]], listed["next"]) == (["nightly"], None)
    await server.call("DELETE", f"{SCHEDULES}/nightly", status=204)
    assert (await server.call("GET", f"/v1/messages/{message}")).body["state"] == "cancelled"
    for method in ("GET", "DELETE"):
        await server.call(method, f"{SCHEDULES}/nightly", status=404)
    await server.call("GET", f"{SCHEDULES}/nightly/upcoming", status=404)
    for verb in ("pause", "resume", "trigger"):
        await server.call("POST", f"{SCHEDULES}/nightly:{verb}", status=404)


async def test_an_occurrence_says_which_schedule_sent_it(server: Running) -> None:
    _, link = await server.connect("c", "#")
    made = await put(server, headers={"a": "b"}, ordering_key="c-1")
    path = f"/v1/messages/{made['next']['id']}"
    got = (await server.call("GET", path)).body
    assert (got["schedule"], got["headers"]) == ("nightly", {"a": "b"})
    triggered = (await server.call("POST", f"{SCHEDULES}/nightly:trigger")).body["id"]
    assert (await server.call("GET", f"/v1/messages/{triggered}")).body["schedule"] == "nightly"
    await server.call("PATCH", path, {"deliver_in": "1h"})
    await server.pass_time(HOUR_MS)
    assert [m.record.schedule for m in link.sent] == [b"nightly"] * 2
    said = dict(headers_of(common_properties(link.sent[1], 0))[0])
    assert (said["a"], said["fasti-schedule"], said["fasti-ordering-key"]) == ("b", "nightly", "c-1")
    assert (await server.call("GET", path)).body["schedule"] == "nightly"
    other = await put(server, "other", headers=None)
    await server.call("DELETE", f"/v1/messages/{other['next']['id']}", status=204)
    assert (await server.call("GET", f"/v1/messages/{other['next']['id']}")).body["schedule"] == "other"
    assert "schedule" not in (await server.call("GET", f"/v1/messages/{await server.schedule()}")).body


async def test_nobody_else_can_say_it() -> None:
    users = (("fasti-schedule", "forged"), ("k", "v"), ("deliver-in", "1m"))
    packet = Publish(b"a", b"x", 1, False, False, 1, Properties(user_properties=users))
    kept = read_publish(packet, b"device-7", START_MS, 10**12).record.properties
    assert headers_of(kept) == ((("k", "v"),), None)


async def test_names(server: Running) -> None:
    for name in ("nightly:stop", "a%20b", "x" * 129, "caf%C3%A9"):
        answer = await server.call("PUT", f"{SCHEDULES}/{name}", NIGHTLY, status=422)
        assert answer.body["errors"][0]["field"] == "name"
        await server.call("GET", f"{SCHEDULES}/{name}", status=404)
        await server.call("DELETE", f"{SCHEDULES}/{name}", status=404)
    assert (await server.call("GET", SCHEDULES)).body["schedules"] == []
    await put(server, "x" * 128)


@TOGETHER
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": None}, "cron"),
        ({"every": "1h"}, "every"),
        ({"rrule": "FREQ=DAILY"}, "rrule"),
        ({"timezone": None}, "timezone"),
        ({"cron": "CRON_TZ=UTC 0 1 * * *"}, "timezone"),
        ({"cron": "CRON_TZ=Mars 0 1 * * *", "timezone": None}, "cron"),
        ({"start": "2027-02-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"}, "end"),
        ({"deliver_in": 5}, "deliver_in"),
        ({"key": "k"}, "key"),
    ],
)
async def test_what_is_refused_names_its_field(
    lasting: Running, changes: dict[str, object], field: str
) -> None:
    answer = await lasting.call("PUT", f"{SCHEDULES}/s", NIGHTLY | changes, status=422)
    assert answer.body["errors"][0]["field"] == field, answer.body
    assert len(lasting.app.core.schedules) == 0


async def test_what_cannot_be_read(server: Running) -> None:
    await server.call("PUT", f"{SCHEDULES}/s", b'{"topic": "a", "payload": "\xff"}', status=400)


@pytest.mark.long
async def test_a_preview_of_seconds_of_rare_days(server: Running) -> None:
    """A thousand fires of this rule took two minutes."""
    rule = "FREQ=SECONDLY;BYHOUR=17;BYMINUTE=3;BYSECOND=5"
    found = await preview(server, rrule=rule, timezone="UTC", start="2027-03-27T00:00:00Z", count=1_000)
    assert len(found) == 1_000
    assert found[9]["at"] == "2027-04-05T17:03:05.000Z"


async def test_a_preview_begins_with_the_next_fire_however_far_it_is(server: Running) -> None:
    """Also when that is further ahead than others are looked for."""
    rule = "FREQ=YEARLY;INTERVAL=200;BYMONTH=1;BYMONTHDAY=1"
    found = await preview(server, rrule=rule, timezone="UTC", start="2000-06-01T09:00:00Z")
    assert [fire["at"] for fire in found] == ["2200-01-01T09:00:00.000Z"]


async def test_a_preview_ends_where_the_next_fire_takes_long_to_find(server: Running) -> None:
    """The days of 99,991 seconds come at one time of day each 99,991 days: a second fire there is too far."""
    rule = "FREQ=SECONDLY;INTERVAL=99991;BYHOUR=5,6;BYMINUTE=3;BYSECOND=7"
    body = {"rrule": rule, "timezone": "UTC", "start": "2027-03-27T05:03:07Z"}
    refused = await server.call("POST", f"{SCHEDULES}:preview", body, status=422)
    assert refused.body["errors"][0]["detail"] == "takes too long to search: change INTERVAL"


async def test_preview_tells_of_changed_clocks(server: Running) -> None:
    found = await preview(server, **NIGHTLY, start="2027-03-27T00:00:00Z", count=3)
    assert [fire["at"] for fire in found] == [
        "2027-03-27T01:30:00.000Z",
        "2027-03-28T01:30:00.000Z",
        "2027-03-29T00:30:00.000Z",
    ]
    assert found[1]["local"] == "2027-03-28T04:30:00+03:00[Europe/Bucharest]"
    assert "03:30" in found[1]["note"]
    assert "note" not in found[0]
    found = await preview(
        server,
        cron="CRON_TZ=America/New_York 30 1 * * *",
        start="2027-11-07T00:00:00-04:00",
        dst={"overlap": "both"},
        count=3,
    )
    assert [fire["at"][5:16] for fire in found] == ["11-07T05:30", "11-07T06:30", "11-08T06:30"]
    found = await preview(server, cron="0 0 * * *", timezone="UTC", start="2027-01-01T00:00:00Z", count=1)
    assert found[0]["at"] == "2027-01-01T00:00:00.000Z", "the first at start"
    assert len(await preview(server, every="90s")) == 10
    assert len(await preview(server, every="90s", limit=4)) == 4
    assert (await preview(server, every=90))[0]["at"] == "2026-11-21T08:01:30.000Z"
    assert len(await preview(server, cron="0 0 29 2 *", timezone="UTC", count=1_000)) == 24


async def test_upcoming_follows_what_became_of_the_pending_one(server: Running) -> None:
    made = await put(server)
    path = f"{SCHEDULES}/nightly/upcoming"

    async def days(count: int) -> list[str]:
        found = (await server.call("GET", f"{path}?count={count}")).body["fires"]
        return [fire["at"][8:16] for fire in found]

    assert await days(3) == ["22T01:30", "23T01:30", "24T01:30"]
    message = made["next"]["id"]
    await server.call("PATCH", f"/v1/messages/{message}", {"deliver_at": "2026-11-22T05:00:00Z"})
    assert await days(2) == ["22T05:00", "23T01:30"]
    await server.call("DELETE", f"/v1/messages/{message}", status=204)
    assert await days(2) == ["23T01:30", "24T01:30"]
    await server.call("POST", f"{SCHEDULES}/nightly:pause")
    assert await days(2) == []


async def test_pause_resume_trigger(server: Running) -> None:
    _, link = await server.connect("c", "#")
    made = await put(server)
    paused = (await server.call("POST", f"{SCHEDULES}/nightly:pause")).body
    assert (paused["state"], paused["next"]) == ("paused", None)
    assert (await server.call("POST", f"{SCHEDULES}/nightly:pause")).body == paused
    fired = (await server.call("POST", f"{SCHEDULES}/nightly:trigger")).body
    await server.app.quiet()
    assert [message.id_text(0) for message in link.sent] == [fired["id"]]
    resumed = (await server.call("POST", f"{SCHEDULES}/nightly:resume")).body
    assert resumed["next"]["at"] == made["next"]["at"]
    assert resumed["next"]["id"] != made["next"]["id"]


async def test_a_clock_that_was_ahead_silences_a_schedule_which_says_so(
    server: Running, clock: SimulatedClock
) -> None:
    made = await put(server, **EACH_MINUTE, misfire="fire_all")
    assert made["silent"] is None
    clock.now_ms += 10 * 60_000
    await server.app.quiet()
    clock.now_ms -= 9 * 60_000
    await server.app.quiet()
    found = (await server.call("GET", f"{SCHEDULES}/nightly")).body
    assert found["next"]["at"] == "2026-11-21T08:11:00.000Z"
    assert found["silent"] == {
        "until": "2026-11-21T08:11:00.000Z",
        "why": "the clock was ahead, up to 2026-11-21T08:10:00.000Z: "
        "fires up to 2026-11-21T08:10:00.000Z were sent",
    }
    upcoming = (await server.call("GET", f"{SCHEDULES}/nightly/upcoming?count=2")).body["fires"]
    assert [fire["at"][11:16] for fire in upcoming] == ["08:11", "08:12"]
    same = (await server.call("POST", f"{SCHEDULES}/nightly:resume")).body
    assert same == found, "it is active: without more that changes nothing"
    resumed = (await server.call("POST", f"{SCHEDULES}/nightly:resume", {"from": "now"})).body
    assert (resumed["next"]["at"][11:16], resumed["silent"]) == ("08:02", None)


async def test_a_rule_that_was_put_while_the_clock_was_ahead_says_when_it_starts(
    server: Running, clock: SimulatedClock
) -> None:
    clock.now_ms += HOUR_MS
    await server.app.quiet()
    await put(server, cron=None, rrule="FREQ=MINUTELY")
    clock.now_ms -= HOUR_MS
    await server.app.quiet()
    (found,) = (await server.call("GET", SCHEDULES)).body["schedules"]
    assert found["silent"]["until"] == found["next"]["at"] == "2026-11-21T09:00:01.000Z"
    assert "when the rule was saved" in found["silent"]["why"]
    resumed = (await server.call("POST", f"{SCHEDULES}/nightly:resume", {"from": "now"})).body
    assert (resumed["next"]["at"], resumed["silent"]) == ("2026-11-21T08:00:01.000Z", None)


async def test_skip(server: Running) -> None:
    made = await put(server)
    skipped = (await server.call("POST", f"{SCHEDULES}/nightly:skip", status=200)).body
    assert (made["next"]["at"], skipped["next"]["at"]) == (
        "2026-11-22T01:30:00.000Z",
        "2026-11-23T01:30:00.000Z",
    )
    assert (skipped["count"], skipped["silent"]) == (1, None)
    assert (await server.call("GET", f"/v1/messages/{made['next']['id']}")).body["state"] == "cancelled"
    await server.call("POST", f"{SCHEDULES}/nightly:pause", status=200)
    refused = await server.call("POST", f"{SCHEDULES}/nightly:skip", status=409)
    assert refused.slug == "wrong-state"
    await server.call("POST", f"{SCHEDULES}/nobody:skip", status=404)
    resumed = (await server.call("POST", f"{SCHEDULES}/nightly:resume")).body
    assert resumed["next"]["at"] == skipped["next"]["at"], "it stays left out"


async def test_edit_while_paused_stays_paused(server: Running) -> None:
    await put(server)
    await server.call("POST", f"{SCHEDULES}/nightly:pause")
    changed = await put(server, status=200, cron="0 4 * * *")
    assert (changed["state"], changed["cron"], changed["next"]) == ("paused", "0 4 * * *", None)


@pytest.mark.long
async def test_thirty_days_of_a_simulated_clock(server: Running) -> None:
    _, link = await server.connect("c", "jobs/#", window=1_000)
    await put(server, "daily")
    await put(server, "six", cron=None, every="PT6H", topic="jobs/six", timezone=None)
    await server.call("POST", "/v1/clock:advance", {"by": "P30D"})
    assert link.topics.count("jobs/nightly") == 30
    assert link.topics.count("jobs/six") == 120
    assert {message.late_ms for message in link.sent} == {0}


async def test_restart_and_misfires(tmp_path: Path, config: Config) -> None:
    clock = SimulatedClock(START_MS)
    async with running(tmp_path, config, clock) as server:
        for misfire in ("fire_all", "fire_once", "skip"):
            await put(server, misfire, cron="0 * * * *", topic=f"jobs/{misfire}", misfire=misfire)
        await server.connect("c", "#", expiry_s=7 * 86_400)
    clock.now_ms += DAY_MS + HOUR_MS // 2
    async with running(tmp_path, config, clock) as server:
        await server.app.quiet()
        _, link = await server.connect("c", "#", expiry_s=7 * 86_400, window=1_000)
        assert link.topics.count("jobs/fire_all") == 24
        assert link.topics.count("jobs/fire_once") == 1
        assert link.topics.count("jobs/skip") == 0
        await server.call("POST", "/v1/clock:advance", {"by": "PT1H"})
        assert link.topics.count("jobs/skip") == 1
        assert link.topics.count("jobs/fire_once") == 2


@with_settings(limits={"schedules": 1})
async def test_the_bound(server: Running) -> None:
    await put(server)
    assert (await server.call("PUT", f"{SCHEDULES}/two", NIGHTLY, status=429)).slug == "over-quota"
    await put(server, status=200, cron="1 1 * * *")


async def test_made_while_the_clock_is_set_back(server: Running, clock: SimulatedClock) -> None:
    await server.app.ask(lambda commit: None)
    await server.app.quiet()
    clock.now_ms -= 3_600_000
    made = await put(server, "tick", **EACH_MINUTE)
    assert (made["state"], made["count"]) == ("active", 1)
    assert made["next"]["at"] == "2026-11-21T07:01:00.000Z"
    upcoming = (await server.call("GET", "/v1/schedules/tick/upcoming?count=2")).body["fires"]
    assert [fire["at"] for fire in upcoming] == ["2026-11-21T07:01:00.000Z", "2026-11-21T07:02:00.000Z"]
    await server.call("DELETE", "/v1/schedules/tick", status=204)
    assert (await server.call("GET", "/v1/messages?state=pending")).body["messages"] == []


PAST = {"start": "2020-01-01T00:00:00Z"}
DAILY = {"cron": "0 9 * * *", "timezone": "UTC"}


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({**DAILY, **PAST, "end": "2020-02-01T00:00:00Z"}, "end"),
        ({**DAILY, **PAST, "end": "2026-11-21T07:59:59Z"}, "end"),
        ({**DAILY, "end": "2026-11-21T07:59:59Z"}, "end"),
        ({"every": "1h", **PAST, "end": "2020-02-01T00:00:00Z"}, "end"),
        ({"rrule": "FREQ=DAILY;COUNT=3", "timezone": "UTC", **PAST}, "rrule"),
        ({"rrule": "FREQ=DAILY;UNTIL=20200201T000000Z", "timezone": "UTC", **PAST}, "rrule"),
    ],
)
async def test_a_new_timing_whose_fires_are_all_past_is_refused(
    server: Running, rule: dict[str, object], field: str
) -> None:
    """As a new schedule, and as a change of one, which goes on as it was."""
    body = {"topic": "t", "payload": "x"}
    path = f"{SCHEDULES}/one"
    for status in (404, 200):
        refused = await server.call("PUT", path, {**body, **rule}, status=422)
        assert [one["field"] for one in refused.body["errors"]] == [field]
        await server.call("GET", path, status=status)
        await server.call("PUT", path, {**body, **DAILY}, status=201 if status == 404 else 200)
    assert (await server.call("GET", path)).body["next"]["at"] == "2026-11-21T09:00:00.000Z"
    assert server.app.core.opened.waiting.pending == 1


async def test_one_that_has_finished_may_be_put_again(server: Running) -> None:
    """Its body as it was, and with another message."""
    path = f"{SCHEDULES}/one"
    body = {"topic": "t", "payload": "x", **DAILY, **PAST, "end": "2026-11-21T10:00:00Z"}
    await server.call("PUT", path, body, status=201)
    await server.pass_time(3 * 3_600_000)
    for payload in ("x", "y"):
        told = (await server.call("PUT", path, {**body, "payload": payload})).body
        assert (told["state"], told["next"]) == ("finished", None)


async def test_a_limit_that_is_reached_ends_a_schedule(server: Running) -> None:
    path, body = f"{SCHEDULES}/one", {"topic": "t", "payload": "x", **DAILY}
    await server.call("PUT", path, body, status=201)
    await server.pass_time(48 * 3_600_000)
    assert (await server.call("PUT", path, {**body, "limit": 1})).body["state"] == "finished"


async def test_one_whose_zone_is_no_more_does_not_hide_the_others(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        await put(server, name, **EACH_MINUTE)

    def gone(key: str) -> None:
        raise ZoneInfoNotFoundError(key)

    monkeypatch.setattr("server.http.upcoming.ZoneInfo", gone)
    page = (await server.call("GET", "/v1/schedules")).body["schedules"]
    assert [(one["name"], one["next"]) for one in page] == [("one", None), ("two", None)]


async def test_a_row_that_cannot_be_read_is_no_schedule(tmp_path: Path, clock: SimulatedClock) -> None:
    """It hides no other, stops no start on other zones, and a PUT or a DELETE of its name heals it."""
    async with running(tmp_path, Config(), clock) as server:
        for name in ("a", "b", "c", "d"):
            await put(server, name)
        batch = server.store.batch()
        for key in (b"b", b"c", b"e\xff"):
            batch.put(Table.SCHEDULES, key, b"\xc1")
        server.store.write(batch)
        server.app.core.schedules.recover()
        assert server.app.core.schedules.unreadable == 3
        listed = (await server.call("GET", f"{SCHEDULES}?limit=2")).body
        assert ([s["name"] for s in listed["schedules"]], listed["next"]) == (["a", "d"], None)
        assert (await server.call("GET", f"{SCHEDULES}/b", status=500)).slug == "unreadable"
        await put(server, "b")
        await server.call("DELETE", f"{SCHEDULES}/c", status=404)
        await server.call("GET", f"{SCHEDULES}/c", status=404)
        assert server.app.core.schedules.unreadable == 1
    store = RocksStore(tmp_path)
    lines: list[str] = []
    report = retime_schedules(timeline_of(Config(), clock, store), clock.now_ms, lines.append)
    assert (report.looked, report.unreadable, len(lines)) == (3, 1, 1)
    store.close()


async def test_the_last_fire_is_told(server: Running) -> None:
    """What went out, when it was due; not what was cancelled or is yet to come."""
    made = await put(server)
    assert made["last"] is None
    first = made["next"]
    await server.call("POST", "/v1/clock:advance", {"by": "P1D"})
    shown = (await server.call("GET", f"{SCHEDULES}/nightly")).body
    assert shown["last"] == {"at": first["at"], "local": first["local"]}
    await server.call("DELETE", f"/v1/messages/{shown['next']['id']}", status=204)
    await server.call("POST", "/v1/clock:advance", {"by": "P1D"})
    after = (await server.call("GET", f"{SCHEDULES}/nightly")).body
    assert after["last"] == shown["last"], "the one in between was cancelled"
    assert after["next"]["at"] > shown["next"]["at"]
    body = {"deliver_in": "1h"}
    moved = (await server.call("PATCH", f"/v1/messages/{after['next']['id']}", body, status=200)).body
    await server.call("POST", "/v1/clock:advance", {"by": "PT2H"})
    await server.call("POST", f"{SCHEDULES}/nightly:pause", status=200)
    assert (await server.call("GET", f"{SCHEDULES}/nightly")).body["last"]["at"] == moved["deliver_at"]


@pytest.mark.parametrize(
    ("gap", "first"), [("after", "03-28T01:30"), ("before", "03-28T00:30"), ("skip", "03-29T00:30")]
)
@pytest.mark.parametrize("kind", [{"rrule": "FREQ=DAILY"}, {"cron": "30 3 * * *"}])
async def test_a_start_that_the_clocks_skip_does_not_shift_the_series(
    server: Running, kind: dict[str, str], gap: str, first: str
) -> None:
    """Bucharest, 2027-03-28: 03:00 becomes 04:00. The day after, it is 03:30 again, 00:30 UTC."""
    body = {**kind, "timezone": "Europe/Bucharest", "start": "2027-03-28T03:30[Europe/Bucharest]"}
    found = [fire["at"][5:16] for fire in await preview(server, **body, dst={"gap": gap}, count=3)]
    later = ["03-29T00:30", "03-30T00:30", "03-31T00:30"]
    assert found == (later if gap == "skip" else [first, *later[:2]])
    sent = {**body, "topic": "a", "dst": {"gap": gap}}
    made = await server.call("PUT", f"{SCHEDULES}/gap", sent, status=201)
    assert made.body["next"]["at"][5:16] == found[0]


async def test_lines_of_a_calendar_file(server: Running) -> None:
    """As Google Calendar writes them, folded. The advice about the zone works."""
    excluded = "EXDATE;TZID=Europe/Bucharest:20270102T0900\r\n 00,20270103T090000\r\n"
    lines = f"RRULE:FREQ=DAILY;COUNT=4\r\n{excluded}"
    body = {"timezone": "Europe/Bucharest", "start": "2027-01-01T09:00[Europe/Bucharest]"}
    refused = await server.call("POST", f"{SCHEDULES}:preview", {**body, "rrule": lines}, status=422)
    assert refused.body["errors"][0]["detail"] == (
        "EXDATE: leave TZID=Europe/Bucharest out, as its times are in the schedule's timezone: "
        "EXDATE:20270102T090000"
    )
    found = await preview(server, **body, rrule=lines.replace(";TZID=Europe/Bucharest", ""))
    assert [fire["at"][5:10] for fire in found] == ["01-01", "01-04"]


MANY = "BYHOUR=" + ",".join(map(str, range(24))) + ";BYMINUTE=" + ",".join(map(str, range(60)))


@pytest.mark.parametrize(
    ("rule", "advice", "followed"),
    [
        ("FREQ=WEEKLY;BYDAY=1MO", "use FREQ=MONTHLY, or BYDAY=MO", ["FREQ=MONTHLY;BYDAY=1MO"]),
        ("FREQ=DAILY;BYDAY=1MO", "use FREQ=MONTHLY, or BYDAY=MO", ["FREQ=DAILY;BYDAY=MO"]),
        ("FREQ=MONTHLY;BYWEEKNO=20", "only with YEARLY", ["FREQ=YEARLY;BYWEEKNO=20"]),
        ("FREQ=MONTHLY;BYSETPOS=1", "such as BYDAY: give one", ["FREQ=MONTHLY;BYDAY=MO;BYSETPOS=1"]),
        (f"FREQ=DAILY;{MANY};BYSECOND=1,2", "use FREQ=SECONDLY", [f"FREQ=SECONDLY;{MANY};BYSECOND=1,2"]),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=MO", "change INTERVAL", ["FREQ=DAILY;INTERVAL=6;BYDAY=MO"]),
        ("FREQ=DAILY\nEXDATE:20270101", "such as 20261224T090000", ["FREQ=DAILY\nEXDATE:20261224T090000"]),
    ],
)  # fmt: skip
async def test_the_advice_about_a_rule_works(
    server: Running, rule: str, advice: str, followed: list[str]
) -> None:
    body = {"timezone": "UTC", "start": "2027-01-01T09:00:00Z"}  # a Friday
    refused = await server.call("POST", f"{SCHEDULES}:preview", {**body, "rrule": rule}, status=422)
    assert refused.body["errors"][0]["detail"].endswith(advice)
    for good in followed:
        assert await preview(server, **body, rrule=good)


async def test_a_rule_without_a_start_tells_what_nobody_has_chosen(server: Running) -> None:
    body = {"rrule": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", "timezone": "UTC"}
    told = "without start, BYMINUTE, BYSECOND come from the time when the rule was sent: give them, or start"
    assert [fire.get("note") for fire in await preview(server, **body, count=2)] == [told, None]
    made = await server.call("PUT", f"{SCHEDULES}/m", {**body, "topic": "a"}, status=201)
    assert made.body["next"]["note"] == told
    given = {**body, "rrule": body["rrule"] + ";BYMINUTE=0;BYSECOND=0"}
    for good in (given, {**body, "start": "2027-01-01T09:00:00Z"}, {"every": "1h"}):
        assert "note" not in (await preview(server, **good))[0]


@pytest.mark.long
async def test_a_schedule_that_cannot_go_on_is_stopped_and_says_why(server: Running) -> None:
    """Accepted by an earlier version, say: its next time is too far."""
    await put(server)
    row = server.app.core.schedules.get("nightly")
    assert row is not None
    timing = TimingRow("rrule", "FREQ=DAILY;INTERVAL=7;BYDAY=MO", "UTC")
    row = msgspec.structs.replace(row, timing=timing)
    batch = server.store.batch()
    batch.put(Table.SCHEDULES, b"nightly", encode_row(row))
    server.store.write(batch)
    assert len((await server.call("GET", f"{SCHEDULES}/nightly/upcoming")).body["fires"]) == 1
    await server.call("POST", "/v1/clock:advance", {"by": "P1D"})
    shown = (await server.call("GET", f"{SCHEDULES}/nightly")).body
    why = "rrule: takes too long to search: change INTERVAL"
    assert (shown["state"], shown["reason"], shown["next"]) == ("stopped", why, None)
    assert (await server.call("GET", f"{SCHEDULES}/nightly/upcoming")).body["fires"] == []
    again = await put(server, status=200)
    assert (again["state"], "reason" in again) == ("active", False)
