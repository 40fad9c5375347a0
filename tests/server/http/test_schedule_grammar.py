"""No schedule gives 500: a walk over the grammar of rules, cron lines, times, durations and zones.

What is accepted has fires that keep `start` and `end`; a PUT answers as the preview did. The values of rules
and cron lines have oracles of their own (tests/timeline/).
"""

from contextlib import suppress
from datetime import datetime
from time import process_time
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from server.http.upcoming import fire_views
from server.http.values.bodies import FieldError, decoded
from server.http.values.schedule_body import PreviewRequest, checked_plan, timing_of
from server.schedules.recurring import plan_of
from server.settings.config import Limits
from tests.support.soak import SOAK
from timeline.fires import Progress, due_by, following
from timeline.recurrence import RuleError

from ..conftest import HOUR_MS, START_MS, Running

YEARS = (1970, 1999, 2026, 2027, 2037, 2099, 2400, 9900, 9999)


def instants() -> st.SearchStrategy[str]:
    """Times, most of them valid, many at the edges of what a date can be."""
    parts = st.tuples(
        st.sampled_from(YEARS),
        st.integers(1, 12),
        st.integers(1, 31),
        st.integers(0, 24),
        st.sampled_from([0, 30, 59, 60]),
    )
    places = "[Europe/Bucharest] [Pacific/Kiritimati] [America/New_York] [Nowhere]"
    tails = st.sampled_from(["", *f"Z +14:00 -12:00 {places} .999999999Z".split()])
    made = st.tuples(parts, tails).map(
        lambda one: "{:04}-{:02}-{:02}T{:02}:00:{:02}".format(*one[0]) + one[1]
    )
    gaps = [f"2027-{day}T03:30[Europe/Bucharest]" for day in ("03-28", "10-31")]
    edges = [*gaps, "9999-12-31T23:59:59.999Z", "soon", ""]
    return st.one_of(made, st.sampled_from(edges))


def stamps() -> st.SearchStrategy[str]:
    made = st.tuples(st.sampled_from(YEARS), st.integers(1, 13), st.integers(1, 31)).map(
        lambda one: "{:04}{:02}{:02}".format(*one)
    )
    return st.tuples(made, st.sampled_from(["", "T235959Z", "T000000", "T240000", "Z"])).map("".join)


def numbers() -> st.SearchStrategy[str]:
    one = st.one_of(st.integers(-400, 400), st.sampled_from([0, 1, -1, 53, 366, 10**9])).map(str)
    return st.lists(st.one_of(one, st.sampled_from(["", "-0", "+1", "1_0", "x", "1MO"])), max_size=4).map(
        ",".join
    )


@st.composite
def rrules(draw: st.DrawFn) -> str:
    parts_of_time = "MONTH MONTHDAY YEARDAY WEEKNO HOUR MINUTE SECOND SETPOS EASTER"
    names = [*(f"BY{name}" for name in parts_of_time.split()), "INTERVAL", "COUNT"]
    freqs = ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY", "NEVER"]
    parts = [f"FREQ={draw(st.sampled_from(freqs))}"]
    for name in draw(st.lists(st.sampled_from(names), max_size=3)):
        plain = st.integers(0, 60).map(str)
        parts.append(f"{name}={draw(st.one_of(plain, plain, numbers()))}")
    if draw(st.booleans()):
        days = st.lists(
            st.tuples(
                st.sampled_from(["", "", "1", "-1", "5", "0", "54"]),
                st.sampled_from(["MO", "FR", "SU", "XX"]),
            ).map("".join),
            min_size=1,
            max_size=3,
        )
        parts.append("BYDAY=" + ",".join(draw(days)))
    if draw(st.booleans()):
        parts.append("UNTIL=" + draw(stamps()))
    text = ";".join(draw(st.permutations(parts)))
    if draw(st.integers(0, 4)) == 0:
        text = (
            f"RRULE:{text}\nEXDATE{draw(st.sampled_from(['', ';TZID=UTC', ';VALUE=DATE']))}:{draw(stamps())}"
        )
    return text


def crons() -> st.SearchStrategy[str]:
    others = "L W LW 15W L-3 5#3 5L ? * jan mon sun 7 -1 x"
    number = st.one_of(
        st.integers(0, 32).map(str),
        st.sampled_from(["", *others.split()]),
    )
    part = st.one_of(number, st.tuples(number, number).map("-".join), st.tuples(number, number).map("/".join))
    field = st.one_of(
        st.just("*"), st.integers(0, 12).map(str), st.lists(part, min_size=1, max_size=3).map(",".join)
    )
    macros = "@daily|@every 5m|@every|@reboot|CRON_TZ=UTC 0 9 * * *|TZ=Nowhere 0 9 * * *|CRON_TZ= * * * * *"
    macro = st.sampled_from(macros.split("|"))
    return st.one_of(st.lists(field, min_size=4, max_size=8).map(" ".join), macro)


def durations() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.sampled_from(["PT1S", "5m", "1d", "P400Y", "-1s", "", "1e9", "999999999w", True]),
        st.floats(),
        st.integers(-1, 10**16),
    )


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["rrule", "rrule", "cron", "every"]))
    body: dict[str, Any] = {kind: draw({"rrule": rrules(), "cron": crons(), "every": durations()}[kind])}
    named = "Europe/Bucharest America/New_York Australia/Lord_Howe Pacific/Apia Pacific/Kiritimati"
    zones = ["", *f"UTC {named} Nowhere ../etc".split()]
    body["timezone"] = draw(st.sampled_from(zones))
    for name, values in (
        ("start", instants()),
        ("end", instants()),
        ("jitter", durations()),
        ("limit", st.integers(1, 5)),
    ):
        if draw(st.integers(0, 2)) == 0:
            body[name] = draw(values)
    gap, overlap = (
        draw(st.sampled_from(["skip", "after", "before"])),
        draw(st.sampled_from(["first", "second", "both"])),
    )
    return {**body, "dst": {"gap": gap, "overlap": overlap}}


LIMITS = Limits(max_delay_ms=10**15)


@pytest.mark.long
@given(bodies(), st.sampled_from(["fire_once", "fire_all", "skip"]), st.integers(0, 10**8))
@settings(max_examples=20_000 if SOAK else 400, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_any_schedule_is_planned_or_refused(body: dict[str, Any], misfire: Any, later: int) -> None:
    """What the routes and the writer do with it, without a server."""
    now_ms = START_MS + later
    try:
        timing = timing_of(decoded_preview({**body, "count": 20}), "s", now_ms, LIMITS)
        plan, after_ms = checked_plan(timing, "s", now_ms)
    except FieldError:
        return
    views = fire_views(plan, after_ms, 20)
    assert all(plan.start_ms <= ms(view.at) <= (plan.end_ms or 10**15) for view in views)
    assert [view.at for view in views] == sorted({view.at for view in views})
    stored = plan_of(timing, "s", now_ms)
    began = process_time()
    due_ms = due_by(stored, now_ms)
    with suppress(RuleError):
        following(stored, misfire, Progress(due_ms), now_ms + HOUR_MS, was_late=False)
    assert process_time() - began < 0.5, "the loop does this, in less than 60 ms on an idle machine"


DAILY = {"rrule": "FREQ=DAILY", "timezone": "UTC"}
HARD = "FREQ=MINUTELY;INTERVAL=59;BYMINUTE=30;BYHOUR=4;BYDAY=FR;BYMONTHDAY=13"
EDGES: list[dict[str, Any]] = [
    {"rrule": "FREQ=DAILY;UNTIL=99991231T235959Z", "timezone": "UTC"},
    {"rrule": "FREQ=DAILY;UNTIL=99991231", "timezone": "Pacific/Kiritimati"},
    {"rrule": "FREQ=WEEKLY;BYDAY=MO;UNTIL=99991231T000000Z", "timezone": "Europe/Bucharest"},
    {**DAILY, "end": "9999-12-31T23:59:59Z"},
    {**DAILY, "start": "1970-01-01T00:00:00.001Z", "timezone": "America/New_York"},
    {"cron": "0 9 * * *", "timezone": "America/New_York", "end": "9999-12-31T23:59:59Z"},
    {"every": "PT1H", "end": "9999-12-31T23:59:59.999Z", "jitter": "3000d"},
    {"rrule": HARD, "timezone": "UTC", "start": "2026-11-13T04:30:00Z", "jitter": "3000d"},
    {"rrule": HARD, "timezone": "UTC", "start": "2027-01-01T09:00:00Z"},
    {"rrule": "FREQ=SECONDLY;INTERVAL=99991;BYHOUR=8;BYMINUTE=0;BYSECOND=30", "timezone": "UTC"},
]


@pytest.mark.long
async def test_what_the_routes_and_the_writer_do_with_the_edges(server: Running) -> None:
    async def asked(method: str, path: str, body: object = None) -> Any:
        answer = await server.call(method, path, body, status=None)
        assert answer.status in (200, 201, 409, 422), answer
        return answer

    for number, body in enumerate(EDGES):
        previewed = await asked("POST", "/v1/schedules:preview", body)
        path, sent = f"/v1/schedules/s{number}", {"topic": "a", **body}
        made = await asked("PUT", path, sent)
        assert (made.status == 201) == (previewed.status == 200)
        if made.status != 201:
            continue
        for verb in ("pause", "resume", "skip", "trigger"):
            await asked("POST", f"{path}:{verb}")
        assert (await asked("PUT", path, {**sent, "payload": "b"})).status == 200
        assert (await asked("GET", f"{path}/upcoming?count=50")).status == 200
    assert (await asked("GET", "/v1/schedules.ics?days=366")).status == 200
    await server.call("POST", "/v1/clock:advance", {"by": "P1D"})
    for one in (await asked("GET", "/v1/schedules")).body["schedules"]:
        assert one["state"] in ("active", "stopped"), "none of them has come to an end"
        assert bool(one.get("reason")) == (one["state"] == "stopped")


def decoded_preview(body: dict[str, Any]) -> PreviewRequest:
    return decoded(msgspec.json.encode(body), msgspec.json.Decoder(PreviewRequest))


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000)
