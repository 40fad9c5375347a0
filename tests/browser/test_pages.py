"""Every page: it draws itself, complains of nothing, fits, and can be used without eyes or a mouse."""

import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ViewportSize

from tests.support.mqtt import dial

from .conftest import PAGES, Console, looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

RULES = {"resultTypes": ["violations"]}
PHONE, DESK = ViewportSize(width=390, height=844), ViewportSize(width=1_280, height=900)
WIDTHS = (320, 640, 2_000)
"""WCAG's narrowest, which is 1,280 px at 400 %; 1,280 px at 200 %; a wide screen."""
STICKING_OUT = """(width) => [...document.querySelectorAll("body *")]
    .filter((one) => !one.closest(".scroll, pre, dialog") && one.getBoundingClientRect().right > width + 1)
    .slice(0, 3).map((one) => one.outerHTML.slice(0, 120))"""
MOVING = """[...document.querySelectorAll("body *")].filter((one) => {
    const style = getComputedStyle(one);
    return style.animationName !== "none" || style.transitionDuration !== "0s"
        || style.scrollBehavior === "smooth";
}).map((one) => one.outerHTML.slice(0, 120))"""
UNSEEN_FOCUS = """(() => {
    const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
    const isSeen = style.outlineStyle !== "none" && box.width && box.bottom > 0 && box.top < innerHeight;
    return isSeen ? null : one.outerHTML.slice(0, 120);
})()"""


@pytest_asyncio.fixture(loop_scope="session")
async def furnished(browser: Browser, tmp_path: Path) -> AsyncIterator[Console]:
    """One with something on every page."""
    async with looking(browser, tmp_path / "data") as console:
        call = console.http.call
        items = [
            {"topic": f"orders/{n}/remind", "payload": {"id": n}, "deliver_in": n * n * 40} for n in range(60)
        ]
        await call("POST", "/v1/messages:batch", items, status=201)
        schedule = {"cron": "30 3 * * *", "timezone": "Europe/Bucharest", "topic": "jobs/nightly"}
        await call("PUT", "/v1/schedules/nightly", schedule, status=201)
        await call("PUT", "/v1/groups/workers", {"filter": "orders/#"}, status=201)
        await call("PUT", "/v1/endpoints/billing", {"url": "https://example.com/hook"}, status=201)
        await call("PUT", "/v1/groups/mailers", {"filter": "mail/#", "max_attempts": 1}, status=201)
        for group, topic in (("workers", "orders/a"), ("mailers", "mail/a")):  # a retry, a dead letter
            path = f"/v1/groups/{group}/messages"
            await call("POST", "/v1/messages", {"topic": topic, "payload": "x"}, status=201)
            lease = {"max": 1, "wait": "5s"}
            [held] = (await call("POST", f"{path}:lease", lease, status=200)).body["messages"]
            nacked = {"lease_ids": [held["lease_id"]], "reason": "smtp: mailbox full"}
            await call("POST", f"{path}:nack", nacked, status=200)
        peer = await dial(console.server.mqtt)
        await peer.connect("till-3", clean=False, session_expiry=3_600)
        await peer.subscribe("orders/#")
        yield console
        await peer.close()
        assert console.faults == []


async def test_every_page_in_light_and_dark_narrow_and_wide(furnished: Console) -> None:
    """Nothing is said on the browser's console, sticks out sideways or moves; axe finds nothing."""
    page = furnished.page
    found: list[tuple[str, ...]] = []
    await page.add_init_script(Axe().axe_script)  # once: half a megabyte
    await page.emulate_media(reduced_motion="reduce")
    [message] = (await furnished.get("/v1/messages?limit=1"))["messages"]
    [piece] = (await furnished.get("/v1/slices?limit=1"))["slices"]

    async def look(address: str, size: ViewportSize, theme: str) -> None:
        await page.set_viewport_size(size)
        await page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        violations = (await page.evaluate("rules => axe.run(rules)", RULES))["violations"]
        found.extend((address, theme, one["id"], one["nodes"][0]["html"]) for one in violations)

    for address in (*PAGES, f"messages/{message['id']}", f"slices/{piece['start']}"):
        await page.set_viewport_size(DESK)
        await furnished.open(address)
        await look(address, DESK, "light")
        await look(address, PHONE, "dark")
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            if await page.evaluate("document.documentElement.scrollWidth - innerWidth") > 0:
                found.append((address, f"{width} px", "overflow", *await page.evaluate(STICKING_OUT, width)))
        found.extend((address, "reduced motion", one) for one in await page.evaluate(MOVING))
    await page.set_viewport_size(PHONE)
    await furnished.press("Menu")
    await look("the menu", PHONE, "light")
    await page.keyboard.press("?")
    await page.get_by_role("dialog").wait_for()
    await look("the keyboard's list", PHONE, "dark")
    assert found == []


async def test_a_walk_by_keyboard(furnished: Console) -> None:
    page = furnished.page
    await furnished.open("node")
    await page.keyboard.press("g")
    await page.keyboard.press("t")
    await furnished.shown("timeline")
    await page.keyboard.press("?")
    listed = page.get_by_role("dialog", name="Keyboard")
    await listed.get_by_text("find messages").wait_for()
    await page.keyboard.press("g")  # no page opens behind a dialog
    await page.keyboard.press("n")
    await page.keyboard.press("Escape")
    await listed.wait_for(state="detached")
    await furnished.shown("timeline")
    # Whatever has the focus shows it, from the link over the header to the end of the page.
    await page.keyboard.press("Tab")
    assert await page.locator(":focus").inner_text() == "Skip to content"
    unseen, walked = [], 0
    while await page.evaluate("document.activeElement !== document.body") and walked < 60:
        unseen.append(await page.evaluate(UNSEEN_FOCUS))
        await page.keyboard.press("Tab")
        walked += 1
    assert [one for one in unseen if one] == []
    assert walked > 30
    await page.keyboard.press("/")
    await page.keyboard.type("orders/+/remind")  # letters in a field are no shortcuts
    await page.keyboard.press("Enter")
    await furnished.shown("messages")
    await page.locator("tbody tr").first.wait_for()
    furnished.faults.clear()  # the browser notes that no message has this key


async def test_a_page_that_is_not_there_is_the_first_one(furnished: Console) -> None:
    for address in ("nothing/here", "%E0%A4%A"):
        await furnished.page.goto(f"{furnished.server.url}/#/{address}")
        await furnished.shown("overview")


async def test_the_timeline_by_mouse_and_keys(furnished: Console) -> None:
    page = furnished.page
    await furnished.open("timeline")
    chart = page.locator("svg.chart")
    before = await chart.get_attribute("aria-label")
    await chart.focus()
    await page.keyboard.press("-")
    await page.wait_for_function(
        "before => document.querySelector('svg.chart').ariaLabel !== before", arg=before
    )
    await page.get_by_role("button", name="1 d", exact=True).click()
    await page.get_by_text("a bar is 15 min").wait_for()
    # 60 messages lie within 40 hours: the bar holds some when the day has been read.
    bar = page.locator("svg.chart .hit", has_text=re.compile(r"15 min: [1-9]\d* pending"))
    await bar.nth(1).click()
    await furnished.shown("messages")
    shown = await page.locator("tbody tr").count()
    assert shown > 0
    assert await page.get_by_label("Due from").input_value() != ""


async def test_what_moves(furnished: Console) -> None:
    """The line above the pages follows the server, and says so when it is gone."""
    page = furnished.page
    await furnished.open("messages")
    line = page.locator("#live")
    await line.get_by_text(re.compile(r"\b(5[0-9]|60) pending")).wait_for()
    items = [{"topic": "a", "payload": "", "deliver_in": 9_000}] * 1_000
    await furnished.http.call("POST", "/v1/messages:batch", items, status=201)
    await line.get_by_text(re.compile(r"1,0\d\d pending")).wait_for()
    await furnished.server.stopped()
    await line.get_by_text("no live figures").wait_for()
    furnished.faults.clear()


async def test_a_server_that_says_nothing_is_not_live(furnished: Console) -> None:
    """A connection may lead nowhere without an end: a computer that slept, a network that is gone."""
    page, server = furnished.page, furnished.server
    await page.clock.install()
    await furnished.open("messages")
    line = page.locator("#live")
    await line.get_by_text("pending").wait_for()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        await page.clock.fast_forward(11_000)
        await line.get_by_text("no live figures").wait_for()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await page.clock.fast_forward(3_000)
    await line.get_by_text("pending").wait_for()


async def test_times_are_those_of_the_server(furnished: Console) -> None:
    """The clock of the browser may be wrong, or that of the server simulated."""
    await furnished.page.clock.install(time="2031-01-01T00:00:00Z")
    await furnished.open("timeline")
    year = (await furnished.get("/v1/info"))["now"][:4]
    legend = furnished.page.locator(".legend")
    await legend.get_by_text(f"{year}-").wait_for()
    assert await furnished.page.locator("svg.chart line.now").count() == 1


async def test_a_wheel_does_not_flood_the_server(furnished: Console) -> None:
    page, asked = furnished.page, []
    await furnished.open("timeline")
    page.on("request", lambda request: asked.append(request.url))
    await page.locator("svg.chart").hover()
    before = await page.locator("svg.chart").get_attribute("aria-label")
    await page.evaluate(
        """() => { for (let n = 0; n < 60; n += 1) document.querySelector("svg.chart").dispatchEvent(
            new WheelEvent("wheel", { deltaY: n % 3 ? 1 : -1, clientX: 600, cancelable: true })); }"""
    )
    await page.wait_for_function(
        "before => document.querySelector('svg.chart').ariaLabel !== before", arg=before
    )
    await page.wait_for_timeout(500)
    assert 2 <= sum("density" in url for url in asked) <= 8
