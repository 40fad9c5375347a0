"""Places, endpoints, retries and dead letters as an operator uses them: found, looked at, mended."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.support.keys import KeysFile
from tests.support.mqtt import dial
from tests.support.receiver import answer, receiving

from .conftest import Console, looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

REASON = "db is <b>down</b>"
GROUP = "places/group/workers?filter=orders/%23"


async def fail(console: Console, number: int, reason: str = REASON, first: int = 0, **terms: object) -> None:
    """Let the group workers fail so many messages once."""
    call, group = console.http.call, "/v1/groups/workers"
    await call("PUT", group, {"filter": "orders/#", **terms}, status=200 if first else 201)
    items = [{"topic": f"orders/{first + n}", "payload": n} for n in range(number)]
    await call("POST", "/v1/messages:batch", items, status=201)
    names: list[str] = []
    while len(names) < number:
        lease = await call("POST", f"{group}/messages:lease", {"max": 10, "wait": "5s"}, status=200)
        names += [one["lease_id"] for one in lease.body["messages"]]
    await call("POST", f"{group}/messages:nack", {"lease_ids": names, "reason": reason}, status=200)


async def cells(console: Console, row: str) -> dict[str, str]:
    """The cells of the row with this text, by their headings."""
    heads = await console.page.locator("thead th").all_inner_texts()
    found = await console.page.locator("tbody tr", has_text=row).locator("td").all_inner_texts()
    return dict(zip(heads, found, strict=True))


async def leased(console: Console, group: str) -> list[tuple[str, int]]:
    lease = {"max": 10, "wait": "5s"}
    found = await console.http.call("POST", f"/v1/groups/{group}/messages:lease", lease, status=200)
    return [(one["topic"], one["attempt"]) for one in found.body["messages"]]


async def test_a_session_is_found_replayed_and_deleted(console: Console) -> None:
    page, call = console.page, console.http.call
    await console.open("places")
    await page.get_by_text("There are no places yet").wait_for()
    for name in ("!first", "till-3"):
        peer = await dial(console.server.mqtt)
        await peer.connect(name, clean=False, session_expiry=3_600)
        await peer.subscribe("orders/#")
        await peer.close()
    await call("PUT", "/v1/groups/g", {"filter": "a/#"}, status=201)
    await call("POST", "/v1/messages", {"topic": "orders/1", "payload": "x"}, status=201)
    await page.goto(f"{console.server.url}/#/sessions")  # as it was called once
    await expect(page.locator("tbody a")).to_have_text(["!first", "till-3"])
    await page.get_by_role("link", name="All", exact=True).click()
    await page.get_by_role("link", name="g", exact=True).wait_for()
    await console.write("Name, or a part of it", "irst")
    await console.press("Find")
    await expect(page.locator("tbody a")).to_have_text(["!first"])
    await console.write("Name, or a part of it", "till-3")
    await console.press("Find")
    await (
        page.get_by_text("No place has this in its name")
        .or_(page.get_by_role("heading", name="till-3"))
        .wait_for()
    )
    await console.open("places/session/till-3")
    await page.get_by_role("heading", name="till-3 session offline").wait_for()
    await console.press("Replay…")
    await console.write("Since (a time, or a duration back)", "1h")
    await console.press("Count")
    await page.get_by_text("1 message was dispatched since then").wait_for()
    await console.press("Replay")
    await console.says("The replay has begun")
    read = (await console.get("/v1/sessions/till-3"))["position"]["at"]
    assert read < (await console.get("/v1/info"))["now"]
    await console.press("Delete…")
    await console.press("Delete")
    await console.says("till-3 is deleted")
    assert [one["name"] for one in (await console.get("/v1/sessions"))["sessions"]] == ["!first"]
    await console.open("places/session/!first")
    await call("DELETE", "/v1/sessions/!first", status=204)
    await page.get_by_role("alert").get_by_text("This place no longer exists").wait_for()
    console.faults.clear()  # the browser notes each 404


async def test_an_endpoint_that_fails_is_found_and_mended(browser: Browser, tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        looking(browser, tmp_path / "data", webhook__allow_private="true") as console,
    ):
        page, call = console.page, console.http.call
        receiver.behave = answer(500)
        await call("PUT", "/v1/endpoints/idle", {"url": receiver.url()}, status=201)
        body = {"url": receiver.url(), "retry": {"backoff": ["1h"]}, "headers": {"x-shop": "7"}, "rate": 50}
        await call("PUT", "/v1/endpoints/billing", body, status=201)
        for n in range(2):
            await console.http.schedule("a", n, deliver_to="billing")
        await receiver.posts(2)
        await console.open("endpoints")
        row = page.locator("tr", has_text="billing")
        await row.get_by_text("2 of 2 (100 %)").wait_for()
        shown = await cells(console, "billing")
        assert shown["Last answers"].split() == ["500", "500"]
        assert (shown["State"], shown["Retries"]) == ("failing 100 %", "2")
        await page.locator("tr", has_text="idle").get_by_text("nothing posted yet").wait_for()
        assert [row.split()[0] for row in await page.locator("tbody tr").all_inner_texts()] == [
            "billing",
            "idle",
        ]
        await page.get_by_role("link", name="billing", exact=True).click()
        await page.get_by_text("1 try", exact=True).nth(1).wait_for()
        await page.get_by_text("1 try", exact=True).first.click()
        await page.locator("ol.tries", has_text=re.compile("failed after .*: HTTP 500")).first.wait_for()
        await page.get_by_text("Details").click()
        table = page.get_by_label("Last answers")
        await table.get_by_text("HTTP 500 Internal Server Error").nth(1).wait_for()
        await page.wait_for_timeout(3_500)  # it is drawn anew meanwhile, and stays open
        assert await table.is_visible()
        await console.press("Test post")
        await console.says("HTTP 500 Internal Server Error")
        await console.press("Pause")
        await console.says("billing is paused")
        await console.press("Undo")
        await console.says("billing is resumed")
        assert (await console.get("/v1/endpoints/billing"))["state"] == "active"
        await rotated(console)
        # Its receiver is mended: what waits is tried now, and answers.
        receiver.behave = answer(204)
        await console.press("Try all 2 now…")
        await page.get_by_text("2 retries would be tried").wait_for()
        await console.press("Try now")
        await console.says("2 of 2 changed")
        await page.get_by_text("works again").wait_for()
        await page.get_by_text("No retries.").or_(page.get_by_text("No retries match.")).wait_for()
        # A receiver that is gone pauses it, and the page says why.
        receiver.behave = answer(410)
        await console.http.schedule("a", 3, deliver_to="billing")
        await page.get_by_text("The server has paused it: HTTP 410 Gone").wait_for()
        await console.press("Resume")
        await console.says("billing is resumed")
        # What waits for a full URL is found, and is no session.
        receiver.behave = answer(503, "Retry-After: 600")
        await console.http.schedule("b", 4, deliver_to=receiver.url())
        while not (await console.get("/v1/retries?topic=b"))["retries"]:
            await asyncio.sleep(0.1)
        await console.open("retries?topic=b")
        await page.get_by_role("link", name="http://").click()
        await page.get_by_role("heading", name="posts to full URLs").wait_for()
        assert await page.get_by_role("button", name="Delete…").count() == 0
        assert console.faults == []


async def rotated(console: Console) -> None:
    """Nothing but the secret is another afterwards, and the header has the value that was typed."""
    before = await console.get("/v1/endpoints/billing")
    for act in ("Sign posts", "Rotate"):
        await console.press("Rotate secret…")
        await console.write("Value of the header x-shop, which the server does not show", "8")
        await console.press(act)
        await console.page.locator("dialog").wait_for(state="detached")
    await console.page.get_by_text("signs as well until").wait_for()
    after = await console.get("/v1/endpoints/billing")
    assert {*after["secret"]} == {"fingerprint", "former", "former_until"}
    same = ("url", "headers", "concurrency", "rate", "timeout", "body", "retry", "expiry", "failing")
    assert [after[name] for name in same] == [before[name] for name in same]


async def test_dead_letters_are_requeued_and_dropped(console: Console) -> None:
    page = console.page
    await fail(console, 3, max_attempts=1)
    await fail(console, 2, "no paper", first=3, max_attempts=1)
    await console.http.call("PUT", "/v1/groups/others", {"filter": "else/#"}, status=201)
    await console.open("dead?group=workers")
    await page.locator("tbody tr", has_text=REASON).first.wait_for()
    await page.locator("tr", has_text="orders/0").get_by_role("button", name="Requeue").click()
    await console.says("Requeued")
    assert await leased(console, "workers") == [("orders/0", 2)]
    # Dropping one asks first.
    row = page.locator("tr", has_text="orders/1")
    await row.get_by_role("button", name="Drop").click()
    await page.get_by_text("This cannot be undone").wait_for()
    await console.press("Close")
    assert len((await console.get("/v1/dead"))["messages"]) == 4
    await row.get_by_role("button", name="Drop").click()
    await page.locator("dialog").get_by_role("button", name="Drop").click()
    await console.says("Dropped")
    await row.wait_for(state="detached")
    # Those of one reason alone.
    await page.get_by_role("link", name="no paper · 2").click()
    await page.locator("tbody tr").nth(2).wait_for(state="detached")
    await console.press("Drop all 2…")
    await page.get_by_text("2 dead letters would be deleted").wait_for()
    await console.press("Drop")
    await console.says("2 of 2 changed")
    await page.get_by_text("No dead letters match").wait_for()
    # The selected ones, to another group.
    await console.open("dead")
    await console.press("Select all")
    await console.press("Requeue 1 selected…")
    await page.get_by_text("1 dead letter would be sent again").wait_for()
    await console.write("To another group or endpoint", "others")
    await console.press("Requeue")
    await console.says("1 of 1 changed")
    assert [topic for topic, _ in await leased(console, "others")] == ["orders/2"]
    await page.get_by_text("No dead letters.").wait_for()


async def test_a_group_is_skipped_and_deleted_with_what_is_left(console: Console) -> None:
    page, call = console.page, console.http.call
    await fail(console, 3, backoff=["100m"])  # with what is added or taken at random: 80 to 120 min
    await call("POST", "/v1/messages", {"topic": "orders/held", "payload": 0}, status=201)
    await leased(console, "workers")
    await console.open("places?kind=group")
    shown = await cells(console, "workers")
    assert (shown["Lag"], shown["In flight"], shown["Retries"]) == ("0", "1", "3")
    assert shown["Failed tries"] == "3 of 4 (75 %)"
    assert re.fullmatch(r"in 1 h \d+ min|in 2 h", shown["Next try"])
    await page.get_by_role("link", name="3", exact=True).click()
    await console.shown("retries")
    assert await page.locator("tbody tr").count() == 3
    for n in range(2):
        await call("POST", "/v1/messages", {"topic": f"orders/unread{n}", "payload": 0}, status=201)
    await console.open(GROUP)
    await page.get_by_text("Oldest unfinished").wait_for()
    await page.get_by_text("2 messages, the oldest due").wait_for()
    before = await console.get("/v1/groups/workers")
    await console.press("Skip…")
    await page.locator("dialog dd", has_text="2 messages").wait_for()
    await console.press("Skip")
    await console.says("Unread before: 2")
    await page.locator("tr", has_text="orders/unread1").get_by_text("skipped").wait_for()
    assert (await console.get("/v1/groups/workers"))["groups"][0]["dead_letters"] == 2
    await console.press("Undo")
    await console.says("Its read position is restored")
    await page.get_by_text("2 messages, the oldest due").wait_for()
    after = await console.get("/v1/groups/workers")
    assert after["groups"][0]["position"]["at"] <= before["groups"][0]["position"]["at"]
    await console.press("Delete…")
    await page.locator("dialog dd", has_text="2 messages").wait_for()
    await page.get_by_label("Unfinished messages").select_option("dead")
    await console.press("Delete")
    await console.says("workers is deleted")
    await console.open("dead?group=workers")
    await page.get_by_text("group deleted").first.wait_for()


async def test_retries_are_hastened_buried_and_dropped(console: Console) -> None:
    page = console.page
    await fail(console, 5, backoff=["1h"])
    await console.open("retries?group=workers")
    await page.locator("tbody tr", has_text=REASON).first.wait_for()
    assert await page.locator("tbody tr").count() == 5
    # One at once: it is leased and has a lease until the test ends.
    await page.locator("tr", has_text="orders/0").get_by_role("button", name="Try now").click()
    await console.says("It is tried now")
    assert await leased(console, "workers") == [("orders/0", 2)]
    # One is buried, and back at its time.
    await console.open("retries?group=workers&reason=down")
    (before,) = (await console.get("/v1/retries?topic=orders/1"))["retries"]
    await page.locator("tr", has_text="orders/1").get_by_role("button", name="Bury").click()
    await console.says("It is a dead letter now")
    await console.press("Undo")
    await console.says("It waits for its next try again, and has all its tries")
    (after,) = (await console.get("/v1/retries?topic=orders/1"))["retries"]
    assert after["retry_at"][:15] == before["retry_at"][:15]
    # The selected ones, after a dry run.
    await console.open("retries?group=workers")
    for n in (1, 2):
        await page.locator("tr", has_text=f"orders/{n}").get_by_role("checkbox").check()
    await console.press("Bury 2 selected…")
    await page.get_by_text("2 retries would become dead letters").wait_for()
    assert (await console.get("/v1/dead"))["messages"] == []
    await console.press("Bury")
    await console.says("2 of 2 changed")
    dead = (await console.get("/v1/dead"))["messages"]
    assert {one["topic"] for one in dead} == {"orders/1", "orders/2"}
    # All that the search finds: at another time, and dropped.
    await page.locator("tbody tr").nth(2).wait_for(state="detached")
    waiting = (await console.get("/v1/retries"))["retries"]
    await console.press("Try all 2 now…")
    await console.write("Delay", "PT5M")
    await console.press("Try now")
    await page.locator("dialog").wait_for(state="detached")
    sooner = (await console.get("/v1/retries"))["retries"]
    assert max(one["retry_at"] for one in sooner) < min(one["retry_at"] for one in waiting)
    await console.press("Drop all 2…")
    await page.get_by_text("2 retries would be dropped").wait_for()
    await console.press("Drop")
    await page.get_by_text("No retries match").wait_for()
    found = await console.get(f"/v1/messages/{waiting[0]['id']}")
    assert [one["state"] for one in found["deliveries"]] == ["dropped"]


async def test_a_key_that_only_reads_sees_its_places_and_changes_none(
    browser: Browser, tmp_path: Path
) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    reader, admin = file.add("reader", "read"), file.add("admin", "admin")
    async with looking(browser, tmp_path / "data", auth__keys_file=file.path) as console:
        page, shown = console.page, {"Authorization": f"Bearer {admin}"}
        body = {"filter": "orders/#"}
        mine = {"Authorization": f"Bearer {reader}"}
        await console.http.call("PUT", "/v1/groups/mine", body, status=201, **mine)
        await console.http.call("PUT", "/v1/groups/others", body, status=201, **shown)
        await page.add_init_script(f"sessionStorage.setItem('fasti-key', '{reader}')")
        await console.open("places")
        assert await page.locator("tbody a").all_inner_texts() == ["mine"]
        await console.open("endpoints")
        await page.get_by_text("a key with the scope admin").wait_for()
        for name in ("retries", "dead"):
            await console.open(name)
            await page.locator(".empty").wait_for()
        await console.open("places/group/mine?filter=orders/%23")
        await page.get_by_text("No dead letters").wait_for()


async def test_ordering_keys_are_seen_held_and_released(console: Console) -> None:
    page, call, group = console.page, console.http.call, "/v1/groups/workers"
    await call("PUT", group, {"filter": "orders/#", "order": True, "on_dead": "hold"}, status=201)
    items = [{"topic": "orders/1", "payload": n, "ordering_key": "till/7"} for n in range(3)]
    await call("POST", "/v1/messages:batch", items, status=201)
    lease = await call("POST", f"{group}/messages:lease", {"max": 10, "wait": "5s"}, status=200)
    (one,) = lease.body["messages"]
    await call(
        "POST", f"{group}/messages:nack", {"lease_ids": [one["lease_id"]], "delay": "never"}, status=200
    )
    assert (await console.get(group))["groups"][0]["keys_held"] == 1
    await console.open("overview")
    wrong = page.get_by_role("region", name="What is wrong")
    await wrong.get_by_text("holds an ordering key: nothing more of it is delivered until").wait_for()
    await wrong.get_by_role("link", name="1 dead letter").click()
    await console.shown("dead")
    await console.open("overview")
    await wrong.get_by_role("link", name="workers").first.click()
    await console.shown("places")
    await page.get_by_text("1 behind or in trouble, 1 of them held").wait_for()
    await expect(page.get_by_text("Held ordering keys")).to_be_visible()
    await page.get_by_text("a dead letter holds its key").wait_for()
    row = page.get_by_role("region", name="Ordering keys").locator("tbody tr")
    await expect(row).to_contain_text("held by a dead letter")
    await expect(row).to_contain_text(one["id"])
    await row.get_by_role("button", name="Release").click()
    await console.says("till/7 goes on")
    await expect(row.get_by_role("button", name="Hold")).to_be_visible()
    assert len(await leased(console, "workers")) == 1
    await console.press("Hold a key…")
    await console.write("Ordering key", "other")
    await console.press("Hold")
    await console.says("other is held: nothing more of it is delivered")
    keys = (await console.get(f"{group}/keys"))["keys"]
    assert {(key["key"], key["held"]) for key in keys} == {("till/7", None), ("other", "hand")}
