"""Two clicks, a page left while it loads, an undo after somebody else's change, a server that fails."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Request, Route

from .conftest import Console, looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

POLL_S = 2.6
"""The page of jobs reads anew every 2 s."""


async def test_a_page_that_was_left_does_nothing_more(console: Console) -> None:
    page, gate = console.page, asyncio.Event()

    async def held(route: Route) -> None:
        await gate.wait()
        await route.continue_()

    await console.open("messages")
    await page.route("**/v1/timeline/density?*", held)
    await page.route("**/v1/jobs?*", held)
    # The timeline picks its span when it knows what is pending; the page of jobs begins to poll.
    for name in ("Timeline", "Jobs", "Messages"):
        await page.get_by_role("link", name=name, exact=True).click()
    await console.shown("messages")
    polls: list[str] = []

    def note(request: Request) -> None:
        if "/v1/jobs" in request.url:
            polls.append(request.url)

    page.on("request", note)
    gate.set()
    await asyncio.sleep(POLL_S)
    assert page.url.endswith("#/messages")
    assert polls == []


async def test_of_two_clicks_one_counts(console: Console) -> None:
    page = console.page
    await console.open("messages/new")
    await console.write("Topic", "orders/17")
    await console.write("In", "20m")
    await page.get_by_role("button", name="Schedule", exact=True).dblclick()
    await page.wait_for_selector("#state")
    assert len((await console.get("/v1/messages"))["messages"]) == 1
    # One dialog, though its figures have to be read first.
    await console.http.call("PUT", "/v1/groups/workers", {"filter": "orders/#"}, status=201)
    await console.open("places/group/workers?filter=orders/%23")
    await page.evaluate("""() => { for (const one of [1, 2]) [...document.querySelectorAll("button")]
        .find((one) => one.textContent === "Skip…").click(); }""")
    await page.wait_for_selector("dialog")
    await asyncio.sleep(0.5)
    assert await page.locator("dialog").count() == 1
    # It asks about this page's place, and does not stay over another page.
    await page.go_back()
    await page.locator("dialog").wait_for(state="detached")


async def test_what_a_closed_dialog_has_begun_is_told(console: Console) -> None:
    page, gate = console.page, asyncio.Event()

    async def held(route: Route) -> None:
        if "as_of" in (route.request.post_data or ""):
            await gate.wait()
        await route.continue_()

    await console.http.schedule("orders/17", deliver_in="20m")
    await page.route("**/v1/messages:cancel", held)
    await console.open("messages?q=orders/%23")
    await console.press("Cancel all matching…")
    await page.get_by_text("1 pending message would be cancelled").wait_for()
    await console.press("Cancel them")
    await page.keyboard.press("Escape")
    await page.locator("dialog").wait_for(state="detached")
    gate.set()
    await console.says("1 of 1 changed")


async def test_an_undo_leaves_what_somebody_else_has_moved(browser: Browser, tmp_path: Path) -> None:
    async with looking(browser, tmp_path / "data") as console:  # 412 is an error in the browser's console
        page = console.page
        sent = await console.http.schedule("orders/17", deliver_in="20m")
        await console.open(f"messages/{sent}")
        await console.press("Move…")
        await console.write("In", "2h")
        await console.press("Move it")
        await console.says("Moved to")
        third = "2030-01-01T00:00:00.000Z"
        await console.http.call("PATCH", f"/v1/messages/{sent}", {"deliver_at": third}, status=200)
        await console.press("Undo")
        await console.says("was moved after")
        # The same for selected ones.
        await console.open("messages")
        await page.get_by_label("Select orders/17").check()
        await console.press("Shift selected…")
        await console.write("Shift by", "1h")
        await console.press("Shift them")
        await console.says("Moved: 1")
        await console.http.call("PATCH", f"/v1/messages/{sent}", {"deliver_at": third}, status=200)
        await console.press("Undo")
        await console.says("0 of 1 moved back")
        assert (await console.get(f"/v1/messages/{sent}"))["deliver_at"] == third


async def test_two_changes_at_once_show_each_row_once(console: Console) -> None:
    page = console.page
    body = {"filter": "orders/#", "max_attempts": 1}
    await console.http.call("PUT", "/v1/groups/workers", body, status=201)
    await give_up(console, 4)
    await console.open("dead")
    await page.locator("tbody tr").nth(3).wait_for()
    await page.evaluate("""() => { for (const one of [...document.querySelectorAll("tbody button")]
        .filter((one) => one.textContent === "Requeue").slice(0, 2)) one.click(); }""")
    await page.get_by_text("Drop all 2…").wait_for()
    await page.locator("tbody tr").nth(2).wait_for(state="detached")
    assert await page.locator("tbody tr").count() == 2
    # All that are shown are those, and not what came since the list was read.
    await give_up(console, 3, requeued=2)
    await console.press("Drop all 2…")
    await page.get_by_text("2 dead letters would be deleted").wait_for()
    await console.press("Drop")
    await console.says("2 of 2 changed")
    await page.get_by_text("Drop all 5…").wait_for()
    # A reason may be any text.
    await console.open("overview")
    await page.get_by_role("row", name="constructor").first.wait_for()
    assert "native code" not in await page.inner_text("main")


async def give_up(console: Console, count: int, requeued: int = 0) -> None:
    """Let the group workers give up new messages, and those that were requeued to it."""
    for n in range(count):
        await console.http.schedule(f"orders/{n}")
    wish = {"max": 10, "wait": "5s"}
    left = count + requeued
    while left > 0:
        found = (await console.http.call("POST", "/v1/groups/workers/messages:lease", wish, status=200)).body
        names = [one["lease_id"] for one in found["messages"]]
        nack = {"lease_ids": names, "reason": "constructor"}
        await console.http.call("POST", "/v1/groups/workers/messages:nack", nack, status=200)
        left -= len(names)


async def test_a_page_that_cannot_be_read_again_says_so(browser: Browser, tmp_path: Path) -> None:
    async with looking(browser, tmp_path / "data") as console:  # 500 is an error in the browser's console
        page = console.page
        await console.open("jobs")
        await page.route("**/v1/jobs?*", lambda route: route.fulfill(status=500, body="no"))
        await page.get_by_text("Not up to date since").wait_for()
        await page.unroute("**/v1/jobs?*")
        await page.get_by_text("Not up to date since").wait_for(state="detached")
