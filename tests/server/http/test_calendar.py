"""Schedules as a calendar: read by a parser, bounded, for who may see them, with Basic."""

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from icalendar import Calendar

from server.http.routes import calendar
from server.http.routes.calendar import escaped, folded

from ..conftest import Running
from .conftest import Keyed

PATH = "/v1/schedules.ics"
NIGHTLY = {"cron": "30 3 * * *", "timezone": "Europe/Bucharest", "topic": "jobs/nightly"}


async def events(server: Running, query: str = "", **headers: str) -> list[Any]:
    answer = await server.call("GET", PATH + query, **headers)
    assert answer.headers["Content-Type"] == "text/calendar; charset=utf-8"
    assert all(len(line) <= 75 for line in answer.body.split(b"\r\n"))
    return list(Calendar.from_ical(answer.body).walk("VEVENT"))


async def test_each_fire_is_an_event(server: Running) -> None:
    await server.call("PUT", "/v1/schedules/nightly", NIGHTLY, status=201)
    found = await events(server, "?days=3")
    said = (await server.call("GET", "/v1/schedules/nightly/upcoming?count=3")).body["fires"]
    at = [datetime.fromisoformat(fire["at"]) for fire in said]
    assert [event.decoded("dtstart") for event in found] == at
    assert at[0] == datetime(2026, 11, 22, 1, 30, tzinfo=UTC)
    assert {str(event["summary"]) for event in found} == {"nightly: jobs/nightly"}
    assert "2026-11-22T03:30:00+02:00" in str(found[0]["description"])
    again = await events(server, "?days=3")
    assert [event["uid"] for event in again] == [event["uid"] for event in found]
    assert len({str(event["uid"]) for event in found}) == 3
    assert len(await events(server)) == 30


async def test_it_is_written_in_steps(server: Running, turns_taken: list[str]) -> None:
    """2,000 events with long topics took 116 ms of the loop; a page of 1,000 schedules 70."""
    await server.call("PUT", "/v1/schedules/nightly", NIGHTLY, status=201)
    assert len(await events(server, "?days=5")) == 5
    assert len(turns_taken) >= 5
    turns_taken.clear()
    for name in "abc":
        await server.call("PUT", f"/v1/schedules/{name}", NIGHTLY, status=201)
    page = (await server.call("GET", "/v1/schedules?limit=3")).body
    assert ([one["name"] for one in page["schedules"]], page["next"]) == (["a", "b", "c"], "c")
    assert len(turns_taken) == 1 + 3


async def test_what_is_paused_is_not_in_it(server: Running) -> None:
    await server.call("PUT", "/v1/schedules/nightly", NIGHTLY, status=201)
    await server.call("POST", "/v1/schedules/nightly:pause")
    assert await events(server) == []


async def test_bounds(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendar, "EVENTS_MAX", 12)
    monkeypatch.setattr(calendar, "EVENTS_EACH", 5)
    monkeypatch.setattr(calendar, "PAGE", 2)
    for n in range(5):
        await server.call("PUT", f"/v1/schedules/s{n}", {"every": "1m", "topic": "a"}, status=201)
    names = [str(event["summary"]) for event in await events(server)]
    assert names == ["s0: a"] * 5 + ["s1: a"] * 5 + ["s2: a"] * 2


def basic(text: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


async def test_keys(keyed: Keyed) -> None:
    keyed.add("narrow", "read", deliver=["a/#"])
    for topic in ("a/b", "c"):
        body = {**NIGHTLY, "topic": topic}
        await keyed.call("ops", "PUT", f"/v1/schedules/{topic[0]}", body, status=201)
    server, shown = keyed.server, basic(f"anybody:{keyed.keys['narrow']}")
    found = await events(server, "?days=1", **shown)
    assert [str(event["summary"]) for event in found] == ["a: a/b"]
    page = await server.call("GET", "/v1/messages", **shown)
    assert [one["topic"] for one in page.body["messages"]] == ["a/b"]
    # A browser shows it by itself, so what a page sends does not go by it.
    pages = ("https://page.example", str(server.http.make_url("/")).rstrip("/"), "null")
    of_pages = [shown | {"Origin": origin} for origin in pages]
    for wrong in (*of_pages, {"Authorization": "Basic x"}, *map(basic, ("", "no-colon", "a:"))):
        said = await server.call("GET", "/v1/messages", status=401, **wrong)
        assert said.headers["WWW-Authenticate"].startswith("Bearer ")


def test_lines_are_folded_between_characters() -> None:
    line = "SUMMARY:" + "ü" * 100
    parts = folded(line).split("\r\n")
    assert all(len(part.encode()) <= 75 for part in parts)
    assert "".join(part.removeprefix(" ") if n else part for n, part in enumerate(parts)) == line


def test_texts_are_escaped() -> None:
    assert escaped("a,b;c\\d\ne\r\x00f") == "a\\,b\\;c\\\\d\\nef"
