"""What people do: schedule and cancel, many at once, schedules, keys."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route

from tests.support.keys import KeysFile

from .conftest import Console, looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'


async def test_a_schedule_is_edited_beside_its_preview(console: Console) -> None:
    made = {
        "cron": "0 2 * * *",
        "timezone": "Europe/Bucharest",
        "topic": "jobs/nightly",
        "payload": {"do": "it"},
        "headers": {"x": "y"},
        "qos": 2,
    }
    await console.http.call("PUT", "/v1/schedules/nightly", made, status=201)
    await console.open("schedules")
    await console.page.get_by_role("link", name="nightly").click()
    await console.page.locator("table tbody tr").nth(19).wait_for()
    assert await console.page.locator("table tbody tr").count() == 20
    await console.write("Rule", "30 3 99 3 *")
    await console.page.locator("main .field-error", has_text="cron").wait_for()
    console.faults.clear()  # the browser notes each 422
    await console.write("Rule", "30 3 28 3 *")
    await console.page.locator("td .warn").first.wait_for()
    await console.press("Save")
    await console.says("nightly is saved")
    saved = await console.get("/v1/schedules/nightly")
    assert (saved["cron"], saved["payload"], saved["headers"], saved["qos"]) == (
        "30 3 28 3 *",
        {"do": "it"},
        {"x": "y"},
        2,
    )
    await console.press("Pause")
    await console.says("nightly is paused")
    assert (await console.get("/v1/schedules/nightly"))["state"] == "paused"


async def test_a_silent_schedule_says_why_and_goes_on(console: Console) -> None:
    """The clock of the server cannot be set here: what it tells of one is made silent on its way."""
    made = {"every": "1h", "topic": "jobs/nightly"}
    first = (await console.http.call("PUT", "/v1/schedules/nightly", made, status=201)).body["next"]["at"]
    silent = {"until": first, "why": "the clock was ahead"}

    async def answer(route: Route) -> None:
        found = await console.get("/v1/schedules/nightly")
        is_list = route.request.url.partition("?")[0].endswith("/schedules")
        one = {**found, "silent": silent}
        await route.fulfill(json={"schedules": [one], "next": None} if is_list else one)

    await console.page.route(re.compile(r"/v1/schedules(/nightly)?(\?.*)?$"), answer)
    await console.open("schedules")
    await console.page.locator("td .warn", has_text="silent").wait_for()
    await console.open("schedules/nightly")
    await console.page.get_by_role("status").get_by_text("the clock was ahead").wait_for()
    async with console.page.expect_request("**/v1/schedules/nightly:resume") as asked:
        await console.press("Continue from now")
    assert (await asked.value).post_data_json == {"from": "now"}
    await console.says("nightly continues from now")
    await console.press("Skip next")
    await console.says("is skipped")
    assert (await console.get("/v1/schedules/nightly"))["next"]["at"] > first
    # To bring it back would end the silence as well.
    assert await console.page.get_by_role("button", name="Undo").count() == 0


async def test_what_is_done_to_a_schedule_is_undone_or_asked(console: Console) -> None:
    page = console.page

    async def now() -> Any:
        return await console.get("/v1/schedules/hourly")

    made = {"every": "1h", "topic": "jobs/hourly"}
    await console.http.call("PUT", "/v1/schedules/hourly", made, status=201)
    await console.http.call("PUT", "/v1/schedules/a-daily", made | {"every": "1d"}, status=201)
    fires = [(await now())["next"]["at"]]
    await console.open("schedules")
    # The next one that fires comes first.
    assert await page.locator("tbody a").all_inner_texts() == ["hourly", "a-daily"]
    await page.get_by_role("button", name="Name").click()
    assert await page.locator("tbody a").all_inner_texts() == ["a-daily", "hourly"]
    row = page.locator("tr", has_text="hourly")
    # Two fires are left out; the second comes back, the first does not.
    for n in (1, 2):
        await row.get_by_role("button", name="Skip next").click()
        await page.locator("#notices .notice").nth(n - 1).wait_for()
        fires.append((await now())["next"]["at"])
    await page.get_by_role("button", name="Undo").last.click()
    await console.says("Undone")
    assert (await now())["next"]["at"] == fires[1]
    await row.get_by_role("button", name="Pause").click()
    await console.says("hourly is paused")
    await page.get_by_role("button", name="Undo").last.click()
    await row.get_by_text("active").wait_for()
    # What cannot be undone asks.
    sent = (await console.get("/v1/info"))["now"]
    await row.get_by_role("button", name="Send now…").click()
    await console.press("Close")
    await row.get_by_role("button", name="Send now…").click()
    await console.press("Send it now")
    await console.says("The message of hourly was sent")
    found = await console.get("/v1/messages?state=dispatched")
    assert [one["topic"] for one in found["messages"]] == ["jobs/hourly"]
    assert found["messages"][0]["deliver_at"] > sent
    await row.get_by_role("link").click()
    await console.press("Delete…")
    await console.press("Delete it")
    await console.says("hourly was deleted")
    await page.get_by_role("link", name="a-daily").wait_for()
    await page.get_by_role("link", name="hourly").wait_for(state="detached")


async def test_text_that_looks_like_html_stays_text(console: Console) -> None:
    message = {"topic": HOSTILE, "payload": HOSTILE, "deliver_in": 60, "headers": {HOSTILE: HOSTILE}}
    made = await console.http.call("POST", "/v1/messages", message, status=201)
    await console.http.call("PUT", "/v1/groups/workers", {"filter": HOSTILE}, status=201)
    for address in ("messages", f"messages/{made.body['id']}", "places", "timeline"):
        await console.open(address)
        if address != "timeline":
            await console.page.get_by_text(HOSTILE).first.wait_for()
        assert await console.page.evaluate("window.pwned") is None
        assert await console.page.locator("main img, main script").count() == 0


async def test_text_cannot_turn_or_hide_what_is_beside_it(console: Console) -> None:
    long = "x" * 5_000
    body = {
        "topic": f"orders/\u202ednik\u2066{long}",
        "payload": "a\u202eb",
        "headers": {"h" * 500: long[:4_000]},
    }
    body["deliver_in"] = "1h"
    sent = (await console.http.call("POST", "/v1/messages", body, status=201)).body
    for address in ("messages", f"messages/{sent['id']}"):
        await console.open(address)
        await console.page.get_by_text("orders/\\u202ednik\\u2066xxx").first.wait_for()
        await console.page.get_by_text("a\\u202eb").first.wait_for()
        page = "document.documentElement"
        assert await console.page.evaluate(f"{page}.scrollWidth - innerWidth") <= 0
        assert await console.page.evaluate(f"{page}.scrollHeight") < 1_500


async def test_a_node_that_leads_no_longer_says_so(console: Console) -> None:
    """Its answers lead to another origin, where no page of this one may follow."""
    await console.open("retries")
    elsewhere = {"status": 307, "headers": {"Location": "http://127.0.0.1:9/v1/groups"}}
    await console.page.route("**/v1/groups*", lambda route: route.fulfill(**elsewhere))
    await console.open("places?kind=group")
    await console.page.get_by_text("Another node leads now").wait_for()


async def test_numbers_are_reckoned_with_but_in_payloads(console: Console) -> None:
    """A browser writes 1e-6 otherwise than the server; that is no reason to take it for a text."""
    body = {"filter": "a/#", "rate": 1e-06, "ack_timeout": "1m"}
    await console.http.call("PUT", "/v1/groups/slow", body, status=201)
    await console.page.goto(f"{console.server.url}/#/groups/slow?filter=a/%23")  # as it was called once
    await console.shown("places")
    await console.page.get_by_text("0.000001 a second").wait_for()


async def test_a_key_is_asked_for_and_kept_for_the_tab(browser: Browser, tmp_path: Path) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    key = file.add("reader", "read")
    async with looking(browser, tmp_path / "data", auth__keys_file=file.path) as console:
        page = console.page
        await page.goto(f"{console.server.url}/#/messages")
        asked = page.get_by_role("heading", name="This server requires a key")
        await asked.wait_for()
        await console.press("Close")
        await page.get_by_role("alert").get_by_text("A key is required").wait_for()
        await page.wait_for_timeout(2_500)  # whatever tries again by itself
        assert not await asked.is_visible()
        await console.press("Try again")
        await asked.wait_for()
        await console.write("Key", "fasti_reader_wrong")
        await console.press("Use it")
        await page.get_by_text(re.compile("does not know the key")).wait_for()
        await console.write("Key", key)
        await console.press("Use it")
        await console.shown("messages")
        await page.reload()
        await console.shown("messages")
        assert await page.locator("dialog").count() == 0
        assert await page.evaluate("localStorage.getItem('fasti-key')") is None


async def test_who_may_only_read_sees_the_timeline_and_messages(browser: Browser, tmp_path: Path) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    reader, writer = file.add("reader", "read"), file.add("writer", "schedule")
    async with looking(browser, tmp_path / "data", auth__keys_file=file.path) as console:
        body = {"topic": "a", "payload": "x", "deliver_in": "20m"}
        shown = {"Authorization": f"Bearer {writer}"}
        sent = (await console.http.call("POST", "/v1/messages", body, status=201, **shown)).body
        page = console.page
        await page.add_init_script(f"sessionStorage.setItem('fasti-key', '{reader}')")
        await console.open("timeline")
        await page.get_by_label(re.compile("^1 messages from")).wait_for()
        await console.open(f"messages/{sent['id']}")
        await console.press("Cancel…")
        await console.press("Cancel it")
        await console.says("Key 'reader' lacks the scope 'schedule'")
        await page.locator("#state", has_text="pending").wait_for()
        await console.open("schedules")
        await page.get_by_text("Key 'reader' lacks the scope 'admin'").wait_for()


async def test_who_works_by_keyboard_stays_where_it_was(console: Console) -> None:
    """Pages draw themselves anew every few seconds."""
    for name in ("a", "b"):
        body = {"every": "1h", "topic": name}
        await console.http.call("PUT", f"/v1/schedules/{name}", body, status=201)
    await console.open("schedules")
    pause = console.page.locator("tr", has_text="b").get_by_role("button", name="Pause")
    await pause.focus()
    for name in ("0", "c"):
        await console.http.call("PUT", f"/v1/schedules/{name}", {"every": "1h", "topic": name}, status=201)
    await console.page.get_by_role("link", name="c", exact=True).wait_for()
    focused = console.page.locator("tr:has(:focus)")
    assert "Pause" in await console.page.locator(":focus").inner_text()
    assert await focused.locator("td").first.inner_text() == "b"
    # Nor is he on the button of another row when his is gone.
    await console.http.call("DELETE", "/v1/schedules/b", status=204)
    await console.page.get_by_role("link", name="b", exact=True).wait_for(state="detached")
    assert await focused.count() == 0
    assert await console.page.locator("[role=region]:focus").count() == 1


async def test_many_schedules_are_drawn_less_often(console: Console) -> None:
    page, asked = console.page, 0
    one = {"name": "s", "every": "1h", "topic": "t", "state": "active", "count": 0, "timezone": "UTC"}

    async def answer(route: Route) -> None:
        nonlocal asked
        asked += 1
        many = [one | {"name": f"s{number}"} for number in range(3 if asked > 2 else 201)]
        await route.fulfill(json={"schedules": many, "next": None})

    await page.route("**/v1/schedules?*", answer)
    await page.clock.install()
    await console.open("schedules")
    await page.get_by_role("link", name="s200", exact=True).wait_for()
    await page.clock.fast_forward(20_000)  # the clock runs on meanwhile: a busy machine has 10 s
    assert asked == 1
    async with page.expect_response("**/v1/schedules?*"):
        await page.clock.fast_forward(11_000)
    assert asked == 2
    async with page.expect_response("**/v1/schedules?*"):
        await page.clock.fast_forward(31_000)
    await page.get_by_role("link", name="s200", exact=True).wait_for(state="detached")
    async with page.expect_response("**/v1/schedules?*"):
        await page.clock.fast_forward(6_000)
    assert asked >= 4


async def test_who_keeps_slices_is_named(console: Console) -> None:
    """No server of a test lives as long as retention: its answer is told."""
    answer = await console.get("/v1/slices") | {"held_by": {"group": HOSTILE, "seconds": 180_000}}
    await console.page.route("**/v1/slices?*", lambda route: route.fulfill(json=answer))
    await console.open("slices")
    line = console.page.get_by_text("Old slices are kept")
    assert await line.inner_text() == (
        "Old slices are kept 2 d 2 h longer than their retention, "
        f"because {HOSTILE} has not finished their messages."
    )


async def test_what_a_jobs_program_wrote_is_text(console: Console) -> None:
    """No Spark is needed to look at it: the server's answers are told."""
    job = {"id": "1" * 32, "kind": "split", "run": "server", "state": "aborted", "detail": "it ended with 3"}
    job["created_at"] = job["ended_at"] = "2026-11-23T08:00:00.000Z"
    log = f"first line\n{HOSTILE}"
    await console.page.route("**/v1/jobs?*", lambda route: route.fulfill(json={"jobs": [job], "next": None}))
    await console.page.route(
        "**/v1/jobs/*/log", lambda route: route.fulfill(body=log, content_type="text/plain")
    )
    await console.open("jobs")
    await console.press("Log")
    shown = console.page.locator("dialog pre")
    await shown.wait_for()
    assert await shown.inner_text() == log
    assert await console.page.evaluate("window.pwned") is None
    assert await console.page.locator("dialog button").all_inner_texts() == ["Close"]
    await console.press("Close")
    await console.page.locator("dialog").wait_for(state="detached")


async def test_a_slice_and_the_node_say_their_numbers_in_words(console: Console) -> None:
    page = console.page
    items = [{"topic": f"orders/{n}", "payload": n, "deliver_in": 7_200} for n in range(1_100)]
    made = (await console.http.call("POST", "/v1/messages:batch", items, status=201)).body
    await console.http.call("DELETE", f"/v1/messages/{made['ids'][0]}", status=204)
    await console.open("slices")
    await page.get_by_text("Slices: 1 · messages: 1,099 · ").wait_for()
    await page.locator("tbody a").click()
    await page.get_by_text("1,099, and 1 cancelled or moved").wait_for()
    # An address with Unix ms is the same slice.
    [one] = (await console.get("/v1/slices"))["slices"]
    title = await page.locator("h1").inner_text()
    start_ms = int(datetime.fromisoformat(one["start"]).timestamp() * 1_000)
    await console.open(f"slices/{start_ms}")
    assert await page.locator("h1").inner_text() == title
    await page.get_by_role("link", name="Split it…").click()
    assert await page.get_by_label("Slice (when it starts)").input_value() == one["start"]
    await console.press("Close")
    await console.open("node")
    cells = page.locator("tr", has_text="limits.pending").locator("td")
    assert await cells.all_inner_texts() == [
        "Pending messages and retries limits.pending",
        "1,099",
        "no limit",
        "–",
    ]
    text = await page.locator("main").inner_text()
    assert not re.search(r"\d{7}|NaN|undefined|null", text.replace(str(console.server.http[1]), ""))
