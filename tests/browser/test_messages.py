"""Messages as people work with them: schedule, find, move, cancel, look at what failed, watch them live."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route

from tests.support.keys import KeysFile
from tests.support.receiver import answer, receiving

from .conftest import Console, looking

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.short
async def test_schedule_find_move_undo_cancel(console: Console) -> None:
    page = console.page
    await console.open("messages")
    await page.get_by_text("No messages. Schedule one").wait_for()
    await page.get_by_role("link", name="New message").click()
    await console.write("Topic", "orders/17/remind")
    await console.write("In", "1h")
    await page.get_by_text(
        re.compile(r"^\w{3} \d{4}-.* Europe/Bucharest \(.*\d\d:\d\d:\d\d UTC\), in 1 h$")
    ).wait_for()
    await console.write("Payload", '{"id": 17, "big": 12345678901234567890')
    await page.get_by_label("Payload type").select_option("JSON")
    await console.press("Schedule")
    await page.locator("label:has(#field-payload) + .field-error", has_text="no JSON").wait_for()
    await console.write("Payload", '{"id": 17, "big": 12345678901234567890}')
    await console.press("Add a header")
    await console.write("Name", "tenant")
    await console.write("Value", "blue")
    await console.write("Key", "order-17")
    await console.press("Schedule")
    await console.says("Scheduled for")
    await page.get_by_role("heading", name="orders/17/remind").wait_for()
    name = page.url.rsplit("/", 1)[1]
    stored = await console.get(f"/v1/messages/{name}")
    assert (stored["state"], stored["payload"]["id"], stored["headers"]) == (
        "pending",
        17,
        {"tenant": "blue"},
    )
    assert stored["payload"]["big"] == 12345678901234567890
    await console.press("Hex")
    await page.get_by_text("7b 22 69 64").wait_for()

    await console.http.schedule("orders/170/remind", {"id": 170}, deliver_in="1h")
    for sought, told in (
        ("order 17", "2 read, 1 found"),
        ("orders/17", "1 shown"),
        ("orders/+/remind 17", "2 read, 1 found"),
    ):
        await page.get_by_label("Find messages by topic").fill(sought)
        await page.keyboard.press("Enter")
        await page.get_by_text(told).first.wait_for()
        assert await page.locator("tbody tr").count() == 1
    for sought in ("order-17", name):
        await page.get_by_label("Find messages by topic").fill(sought)
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="orders/17/remind").wait_for()
        await page.go_back()
        await page.locator("tbody").first.wait_for()
    await page.get_by_role("link", name="orders/17/remind").click()

    await console.press("Move…")
    await console.write("In", "2h")
    await console.press("Move it")
    await console.says("Moved to")
    await page.get_by_text("First due time").wait_for()
    assert (await console.get(f"/v1/messages/{name}"))["deliver_at"] > stored["deliver_at"]
    await console.press("Undo")
    await console.says("Moved back")
    assert (await console.get(f"/v1/messages/{name}"))["deliver_at"] == stored["deliver_at"]
    await console.press("Cancel…")
    await page.get_by_text("This cannot be undone").wait_for()
    await console.press("Cancel it")
    await console.says("nobody will get it")
    await page.locator("#state", has_text="cancelled").wait_for()
    assert (await console.get(f"/v1/messages/{name}"))["state"] == "cancelled"


async def test_what_the_server_refuses_is_said_at_its_field(console: Console) -> None:
    page = console.page
    await console.open("messages/new?topic=a")
    await console.write("Payload", "kept")
    await page.get_by_text("More: QoS").click()
    await console.write("Expires after (counted from due)", "soon")
    await page.get_by_text("More: QoS").click()
    await console.write("In", "1 fortnight")
    await console.press("Schedule")
    await page.locator("label + .field-error").first.wait_for()
    assert await page.get_by_label("Payload", exact=True).input_value() == "kept"
    fields = await page.locator(".invalid").evaluate_all("nodes => nodes.map(node => node.name)")
    assert fields
    assert set(fields) <= {"deliver_in", "expires_in"}
    await console.open("messages?due_from=soon&q=orders")
    await page.get_by_text('Due from: "soon" is not a time').wait_for()
    assert await page.get_by_label("Due from").input_value() == "soon"
    console.faults.clear()  # the browser notes each 422


async def test_too_late_is_said_as_the_api_says_it(console: Console) -> None:
    name = await console.http.schedule("a", "", deliver_in="1h")
    await console.open(f"messages/{name}")
    await console.press("Cancel…")
    await console.http.call("PATCH", f"/v1/messages/{name}", {"deliver_in": 0}, status=200)
    await console.press("Cancel it")
    await console.says("has been dispatched")
    await console.page.locator("#state", has_text="dispatched").wait_for()
    await console.page.get_by_text("No group or endpoint asked for it").wait_for()
    console.faults.clear()  # the browser notes each 409


async def test_many_after_a_dry_run(console: Console) -> None:
    page = console.page
    items = [{"topic": f"orders/{n}", "payload": n, "deliver_in": 3_600 + n} for n in range(5)]
    items.append({"topic": "other", "payload": 0, "deliver_in": 3_600})
    await console.http.call("POST", "/v1/messages:batch", items, status=201)
    await console.open("messages?topic=orders/%23")
    await page.get_by_text("5 of 5 shown").wait_for()
    await console.press("Shift all matching…")
    await page.get_by_text("5 pending messages would").wait_for()
    before = await console.get("/v1/messages?topic=orders/%23")
    await console.write("Shift by", "PT1H")
    await console.press("Shift them")
    await console.says("5 of 5 changed")
    after = await console.get("/v1/messages?topic=orders/%23")
    assert [one["id"] for one in after["messages"]] == [one["id"] for one in before["messages"]]
    assert after["messages"][0]["deliver_at"] > before["messages"][-1]["deliver_at"]
    await console.shown("messages")

    # The selected ones, by an hour back; and that is undone.
    for n in (1, 3):
        await page.locator("tr", has_text=f"orders/{n}").get_by_role("checkbox").check()
    await console.press("Shift selected…")
    await page.get_by_text("2 selected messages would").wait_for()
    await console.write("Shift by", "-30m")
    await console.press("Shift them")
    await console.says("2 of 2 changed")
    moved = await console.get("/v1/messages?topic=orders/%23")
    assert [one["payload"] for one in moved["messages"]] == [1, 3, 0, 2, 4]
    await console.press("Undo")
    await console.says("2 moved back")
    back = await console.get("/v1/messages?topic=orders/%23")
    assert [one["deliver_at"] for one in back["messages"]] == [one["deliver_at"] for one in after["messages"]]

    await console.shown("messages")
    await console.press("Cancel all matching…")
    await page.get_by_text("5 pending messages would").wait_for()
    await console.press("Close")
    assert len((await console.get("/v1/messages?topic=orders/%23"))["messages"]) == 5
    await page.locator("tr", has_text="orders/4").get_by_role("checkbox").check()
    await console.press("Cancel selected…")
    await console.press("Cancel them")
    await console.says("1 of 1 changed")
    await page.locator("tr", has_text="orders/4").wait_for(state="detached")
    await console.press("Cancel all matching…")
    await page.get_by_text("4 pending messages would").wait_for()
    await console.press("Cancel them")
    await console.says("4 of 4 changed")
    left = await console.get("/v1/messages")
    assert [one["topic"] for one in left["messages"]] == ["other"]


async def test_a_search_tells_how_far_it_is_and_stops(console: Console) -> None:
    page = console.page
    items: list[dict[str, Any]] = [
        {"topic": f"a/{n}", "payload": f"text {n}", "deliver_in": 3_600 + n} for n in range(3_000)
    ]
    items[5]["headers"] = {"tenant": "blue"}
    items[2_500]["headers"] = {"tenant": "blue"}
    await console.http.call("POST", "/v1/messages:batch", items, status=201)
    go = asyncio.Event()

    async def hold(route: Route) -> None:
        if "cursor=" in route.request.url:
            await go.wait()
        await route.continue_()

    await page.route("**/v1/messages?*", hold)
    await console.open("messages?header=tenant%3Dblue&state=pending")
    await page.get_by_text(re.compile(r"1,000 read, 1 found, up to \d{4}-")).wait_for()
    await console.press("Stop")
    go.set()
    await page.get_by_text(re.compile(r"2,000 read, 1 found, up to \d{4}-.*: stopped")).wait_for()
    await console.press("Continue")
    await page.get_by_text("3,000 read, 2 found: that is all").wait_for()
    assert await page.locator("tbody tr").count() == 2
    await console.open("messages?text=TEXT%2029&state=pending")
    await page.get_by_text("3,000 read, 111 found").wait_for()
    assert await page.locator("tbody tr").count() == 100
    await console.press("More")
    await page.locator("tbody tr").nth(110).wait_for()

    # What was dispatched: the newest first, whatever the number of pages.
    await console.http.schedule_many([{"topic": f"done/{n}", "payload": n} for n in range(1_200)])
    await console.open("messages?state=dispatched")
    await page.locator("tbody tr").nth(99).wait_for()
    shown = await page.locator("tbody td[data-label=Topic]").all_inner_texts()
    assert shown == [f"done/{n}" for n in range(1_199, 1_099, -1)]


async def test_each_failed_try_is_shown_and_what_can_be_done(console: Console) -> None:
    page, call = console.page, console.http.call
    group = "/v1/groups/workers"
    await call("PUT", group, {"filter": "orders/#", "backoff": ["1h"]}, status=201)
    name = await console.http.schedule("orders/17/bill", {"order": 17})
    lease = {"max": 10, "wait": "5s"}

    async def fail(reason: str) -> None:
        leased = await call("POST", f"{group}/messages:lease", lease, status=200)
        nack = {"lease_ids": [leased.body["messages"][0]["lease_id"]], "reason": reason}
        await call("POST", f"{group}/messages:nack", nack, status=200)

    await fail("db is <b>down</b>")
    await console.open("messages")
    await page.keyboard.press("/")
    await page.keyboard.type("order 17")
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="orders/17/bill").click()
    await page.get_by_text(re.compile(r"failed after .*, a worker over HTTP: db is <b>down</b>")).wait_for()
    await page.get_by_text(re.compile(r"Next try in (1 h|\d+ min)")).wait_for()
    await console.press("Try now")
    await console.says("Next try is now")
    await fail("again")
    await page.get_by_text("a worker over HTTP: again").wait_for()
    await console.press("Bury")
    await page.get_by_text("dead letter", exact=True).wait_for()
    assert [one["id"] for one in (await console.get("/v1/dead"))["messages"]] == [name]
    await console.press("Requeue")
    await console.says("Sent again")
    await fail("third")
    await page.get_by_text("a worker over HTTP: third").wait_for()
    await console.press("Drop…")
    await page.get_by_text("This cannot be undone").wait_for()
    await console.press("Drop it")
    await page.get_by_text("dropped", exact=True).wait_for()


async def test_what_has_become_of_it_is_said(console: Console) -> None:
    page, call = console.page, console.http.call
    group = "/v1/groups/workers"
    await call("PUT", group, {"filter": "orders/#", "keep": "all"}, status=201)
    name = await console.http.schedule("orders/17/bill", {"order": 17})
    await console.open(f"messages/{name}")
    await page.get_by_text("outcome: queued").wait_for()
    why = page.locator("#why")
    await why.get_by_text("It waits for group 'workers': no worker is connected").wait_for()
    lease = {"max": 1, "wait": "5s"}
    (leased,) = (await call("POST", f"{group}/messages:lease", lease, status=200)).body["messages"]
    await call("POST", f"{group}/messages:ack", {"lease_ids": [leased["lease_id"]]}, status=200)
    await page.get_by_text("outcome: done").wait_for()
    await page.locator(".story").get_by_text(re.compile(r"done after .*, a worker over HTTP$")).wait_for()
    await why.get_by_text(re.compile(r"group 'workers': \(pull\) was done with it at ")).wait_for()
    assert await why.get_by_text("It waits for").count() == 0


async def test_a_failed_post_to_a_full_url_leads_to_its_place(browser: Browser, tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        looking(browser, tmp_path / "data", webhook__allow_private="true") as console,
    ):
        receiver.behave = answer(500)
        page, url = console.page, receiver.url()
        await console.http.call("PUT", "/v1/endpoints/billing", {"url": url}, status=201)
        name = await console.http.schedule("orders/17/bill", {"order": 17}, deliver_to=url)
        await receiver.posts(1)
        await console.open(f"messages/{name}")
        await page.get_by_text("HTTP 500").first.wait_for()
        await console.press("Bury")
        await console.says("Moved to the dead letters")
        await page.locator(".story").get_by_role("link").first.click()
        await page.get_by_role("heading", name=re.compile("posts to full URLs")).wait_for()
        await page.get_by_role("region", name="Dead letters").get_by_text("orders/17/bill").wait_for()
        # At 200 % zoom the rows of wide tables are cards, and nothing is cut off.
        await page.set_viewport_size({"width": 700, "height": 450})
        for address in ("places", "endpoints", "dead", "messages?state=all"):
            await console.open(address)
            await page.locator("tbody tr").first.wait_for()
            over = "[...document.querySelectorAll('.scroll')].map((one) => one.scrollWidth - one.clientWidth)"
            assert max(await page.evaluate(over)) <= 0, address
        assert console.faults == []


async def test_a_copied_curl_line_schedules_the_same_again(console: Console) -> None:
    page = console.page
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    body = {"payload": {"say": 'it\'s <"here">', "n": 12345678901234567890}, "headers": {"x": "y z"}}
    name = await console.http.schedule("orders/17", **body, deliver_in="1h", qos=2, expires_in=60)
    await console.open(f"messages/{name}")
    await console.press("Copy id")
    await console.says("Copied: the id")
    assert await page.evaluate("navigator.clipboard.readText()") == name
    await console.press("Copy as curl")
    await console.says("Copied: a curl command")
    line = await page.evaluate("navigator.clipboard.readText()")
    ran = await asyncio.create_subprocess_exec("sh", "-c", f"{line} -s", stdout=asyncio.subprocess.PIPE)
    out, _ = await ran.communicate()
    assert b'"state":"pending"' in out.replace(b" ", b"")
    first, second = (await console.get("/v1/messages"))["messages"]
    assert first.pop("id") != second.pop("id")
    assert first == second


async def test_messages_are_seen_as_they_are_dispatched(browser: Browser, tmp_path: Path) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    key = file.add("ops", "read", "schedule", subscribe=["orders/#"])
    async with looking(browser, tmp_path / "data", auth__keys_file=file.path) as console:
        page = console.page
        await page.add_init_script(f"sessionStorage.setItem('fasti-key', '{key}')")
        await console.open("tail?topic=orders/%23")
        await page.get_by_text("Listening to orders/#").wait_for()
        for n in range(2):
            await console.write("Topic", f"orders/{n}")
            await console.write("Payload", "<b>hi</b>")
            await console.press("Publish")
            await page.locator("tbody tr").nth(n).wait_for()
        topics = page.locator("tbody td[data-label=Topic]")
        assert await topics.all_inner_texts() == ["orders/1", "orders/0"]
        await console.press("Pause")
        await console.write("Topic", "orders/2")
        await console.press("Publish")
        await page.get_by_role("button", name="Resume (1 new)").click()
        assert await topics.all_inner_texts() == ["orders/2", "orders/1", "orders/0"]
        await page.get_by_role("link", name="orders/2").click()
        await page.locator("#state", has_text="dispatched").wait_for()
        assert console.faults == []
        await console.open("tail?topic=else/%23")
        await page.get_by_text("The key may not subscribe to this filter").wait_for()
        await console.write("Topic filter", "orders/#")
        await console.press("Start")
        await page.get_by_text("Listening to orders/#").wait_for()
        told = 'event: skipped\ndata: {"messages": 1234}\n\nevent: skipped\ndata: {"messages": null}\n\n'
        events = {"body": told, "content_type": "text/event-stream"}
        await page.route("**/v1/tail?*", lambda route: route.fulfill(**events), times=1)
        await console.press("Start")
        await page.get_by_text("1,234 messages were too fast").wait_for()
        await page.get_by_text("Some messages were too fast").wait_for()
        await console.server.stopped()
        await page.get_by_text(re.compile("trying again|No answer from the server")).wait_for()
