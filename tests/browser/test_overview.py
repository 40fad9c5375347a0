"""The first page: what is wrong and where it is mended, an empty server, and keys that see little."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route

from tests.support.keys import KeysFile
from tests.support.mqtt import dial
from tests.support.receiver import OK, answer, raw, receiving

from .conftest import Console, looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE = {"width": 390, "height": 844}


def points(count: int, **figures: object) -> list[dict[str, object]]:
    """Points of an hour, 60 s each, as `/v1/history` gives them."""
    same: dict[str, object] = {"seconds": 60.0, "behind_ms": 0, **figures}
    return [{"at": f"2026-11-21T08:{n:02}:00.000Z", **same} for n in range(count)]


FIGURES = {
    **dict.fromkeys(
        ("accepted", "published", "delivered", "leased", "posted", "retried", "died", "unclaimed"), 600
    ),
    "died_by_reason": {"no such order": 2},
    "retries_by_reason": {"mail: 451": 3, "other reasons": 1},
    "lateness": {"p50_ms": 2, "p99_ms": 50},
    "pending": 7,
    "retries": 4,
    "dead_letters": 2,
    "memory_bytes": 64 << 20,
    "store_bytes": 1 << 20,
    "disk_free_bytes": 5 << 30,
    "groups": [
        {
            "group": "$endpoint/mail",
            "filter": "",
            "lag_messages": 12,
            "lag_messages_is_exact": True,
            "lag_seconds": 60.0,
            "in_flight": 0,
            "retries": 4,
        }
    ],
    "sessions": [
        {
            "session": "till-3",
            "lag_messages": 9,
            "lag_messages_is_exact": True,
            "lag_seconds": 60.0,
            "in_flight": 0,
            "retries": 0,
        }
    ],
    "failing_endpoints": {"mail": 0.5},
}


async def test_a_failing_endpoint_is_found_and_mended(browser: Browser, tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        looking(browser, tmp_path / "data", webhook__allow_private="true") as console,
    ):
        page = console.page
        receiver.behave = answer(503)
        body = {"url": receiver.url(), "retry": {"backoff": ["1h"]}}
        await console.http.call("PUT", "/v1/endpoints/billing", body, status=201)
        await console.http.call("PUT", "/v1/endpoints/idle", body, status=201)
        await console.http.schedule("orders/17/bill", 17, deliver_to="billing")
        await receiver.posts(1)
        await console.open("overview")
        wrong = page.get_by_role("region", name="What is wrong")
        await wrong.get_by_text("the last post failed: HTTP 503 Service Unavailable").wait_for()
        assert await wrong.get_by_text("idle").count() == 0
        await page.get_by_text("The first figures come within ten seconds").wait_for()
        await page.keyboard.press("/")  # why has order 17 not been billed?
        await page.keyboard.type("orders/17")
        await page.keyboard.press("Enter")
        await console.shown("messages")
        await page.get_by_role("link", name="orders/17/bill").click()
        await page.get_by_text("HTTP 503 Service Unavailable").first.wait_for()
        await console.open("overview")
        await wrong.get_by_role("link", name="1 retry waits").click()
        await console.shown("retries")
        await page.get_by_text("orders/17/bill").first.wait_for()
        await page.go_back()
        await console.shown("overview")
        await wrong.get_by_role("link", name="billing").click()
        await console.shown("endpoints")
        await page.get_by_text("503", exact=True).first.wait_for()
        receiver.behave = raw(OK)
        await console.press("Try now")
        await receiver.posts(2)
        await console.open("overview")
        await wrong.get_by_text("the latest one succeeded").wait_for()
        receiver.behave = answer(410)
        await console.http.schedule("orders/18/bill", 18, deliver_to="billing")
        await receiver.posts(3)
        await console.open("timeline")
        await console.open("overview")
        await wrong.get_by_text(re.compile("is paused since .*: HTTP 410 Gone")).wait_for()
        assert console.faults == []


async def test_a_dead_endpoint_leads_to_its_dead_letters(browser: Browser, tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        looking(browser, tmp_path / "data", webhook__allow_private="true") as console,
    ):
        page = console.page
        receiver.behave = answer(500)
        body = {"url": receiver.url(), "retry": {"max_attempts": 1}}
        await console.http.call("PUT", "/v1/endpoints/billing", body, status=201)
        for number in range(3):
            await console.http.schedule("orders/17/bill", number, deliver_to="billing")
        await receiver.posts(3)
        await console.open("overview")
        wrong = page.get_by_role("region", name="What is wrong")
        await wrong.get_by_role("link", name="3 dead letters").click()
        await console.shown("dead")
        await page.get_by_text("orders/17/bill").first.wait_for()
        await console.open("overview")
        table = page.get_by_role("region", name="Failing endpoints")
        await table.get_by_role("link", name="3 dead letters").wait_for()
        await table.get_by_role("link", name="billing").click()
        await console.shown("endpoints")
        await page.get_by_text("0 in 3 tries since the server started").wait_for()
        await page.get_by_role("link", name="3 dead letters").click()
        await console.shown("dead")
        assert console.faults == []


async def test_a_banner_says_on_every_page_that_the_server_drains(browser: Browser, tmp_path: Path) -> None:
    async with looking(browser, tmp_path / "data") as console:
        banner = console.page.get_by_text("The server drains")
        for address in ("overview", "messages"):
            await console.http.call("POST", "/v1/drain", status=200)
            await console.open(address)
            await banner.wait_for()
            await console.http.call("POST", "/v1/drain:cancel", status=200)
            await banner.wait_for(state="hidden")
        assert console.faults == []


async def test_an_empty_server_says_what_to_do_first(console: Console) -> None:
    page = console.page
    await console.page.goto(console.server.url)
    await console.shown("overview")
    await page.get_by_text(f"curl '{console.server.url}/v1/messages'").wait_for()
    await console.write("Deliver in", "soon")
    await console.press("Schedule it")
    await page.get_by_role("alert").get_by_text("deliver_in").wait_for()
    console.faults.clear()  # the browser notes each 422
    await console.write("Deliver in", "1h")
    await console.press("Schedule it")
    await console.says("its topic has no subscriber yet")
    await page.get_by_role("heading", name="orders/17/remind").wait_for()
    assert (await console.get("/v1/messages"))["messages"][0]["payload"] == {"order": 17}
    await console.open("overview")
    await page.get_by_text("Nothing is wrong").wait_for()


async def test_figures_of_the_hour_and_the_day(console: Console) -> None:
    """What the server's history says, and who is behind, on a phone."""
    page, asked = console.page, list[str]()
    await page.set_viewport_size(PHONE)
    await page.clock.install()

    async def history(route: Route) -> None:
        asked.append(route.request.url)
        known = {"since": "2026-11-21T08:00:00.000Z", "step_s": 60.0, "points": points(30, **FIGURES)}
        await route.fulfill(json=known)

    await page.route(re.compile(r"/v1/history"), history)
    await console.http.call("PUT", "/v1/groups/workers", {"filter": "orders/#"}, status=201)
    peer = await dial(console.server.mqtt)
    await peer.connect("till-3", clean=False, session_expiry=3_600)
    await peer.subscribe("orders/#")
    await peer.close()
    await console.http.schedule("orders/17", 17)
    await console.open("overview")
    chart = page.get_by_role("img", name=re.compile(r"^Throughput, .*in 20.s, largest 20.s at .*out 30.s"))
    await chart.wait_for()
    await page.get_by_role(
        "img", name=re.compile(r"^Lateness, .*50 % within 2 ms.*99 % within 50 ms")
    ).wait_for()
    await page.get_by_role("img", name=re.compile(r"^Memory, .*used 64.0 MiB")).wait_for()
    lag = page.get_by_role("region", name="Lag by place")
    assert [row.split("\n")[0] for row in await lag.locator("tbody td:first-child").all_inner_texts()] == [
        "mail",
        "till-3",
        "workers",
    ]
    await lag.get_by_role("img", name="Lag: 9 messages now, 9 at most").wait_for()
    wrong = page.get_by_role("region", name="What is wrong")
    await wrong.get_by_text("60 messages became dead letters in the last hour: 60 × no such order").wait_for()
    await wrong.get_by_text("4 messages wait for another try: 3 × mail: 451, 1 × other reasons").wait_for()
    assert len(asked) == 1
    await page.get_by_role("link", name="Last day").click()
    await page.get_by_role("link", name="Last day").and_(page.locator("[aria-current=page]")).wait_for()
    assert "step=600" in asked[-1]
    over = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert over <= 0
    await wrong.get_by_role("link", name="mail: 451").click()
    await console.shown("retries")
    assert "reason=mail" in page.url


async def test_keys_that_see_little_see_the_page(browser: Browser, tmp_path: Path) -> None:
    """What a key may not see is left out; the page says so, and asks for it once."""
    file = KeysFile(tmp_path / "keys.toml")
    reader, writer = file.add("reader", "read"), file.add("writer", "schedule")
    narrow = file.add("narrow", "read", deliver=["a/#"])
    async with looking(browser, tmp_path / "data", auth__keys_file=file.path) as console:
        page = console.page
        for key, is_empty in ((reader, True), (narrow, False)):
            if not is_empty:
                sent = {"topic": "b", "payload": "", "deliver_in": "1h"}
                shown = {"Authorization": f"Bearer {writer}"}
                await console.http.call("POST", "/v1/messages", sent, status=201, **shown)
            await page.add_init_script(f"sessionStorage.setItem('fasti-key', '{key}')")
            await console.open("overview")
            await page.reload()
            await console.shown("overview")
            if is_empty:
                await page.get_by_text('-H "Authorization: Bearer $FASTI_KEY"').wait_for()
                assert key not in await page.content()
            else:
                unseen = "This key may not see endpoints and the server's figures."
                await page.get_by_text(unseen).wait_for()
                assert not await page.get_by_text("Nothing is wrong").count(), "who can tell"
                await console.open("node")
                await page.get_by_text("Number in message ids").wait_for()
                assert not await page.get_by_text("None since the server started").count()
        assert [one for one in console.faults if "403" not in one] == []
