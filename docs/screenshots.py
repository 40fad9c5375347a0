"""Pictures of the console for docs/console.md: a server with made-up messages, each page in Chromium.

    .venv/bin/python -m docs.screenshots

Wants Debian's `chromium`, and the development packages. Pictures are 1,200 pixels wide, of a phone 390.
`pngquant --force --ext .png docs/console/*.png` makes them a third as large.
"""

import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Browser, async_playwright

from tests.support.mqtt import dial
from tests.support.receiver import Receiver, answer, receiving
from tests.support.server import ServerProcess, serving

FOLDER = Path(__file__).parent / "console"
PAGES = {
    "overview": "overview",
    "timeline": "timeline?span=86400000",
    "messages": "messages?q=orders/%23",
    "message": "messages/{message}",
    "new": "messages/new",
    "tail": "tail?topic=ticks/%23",
    "schedules": "schedules",
    "schedule": "schedules/nightly",
    "places": "places",
    "place": "places/group/workers?filter=orders/%23",
    "endpoint": "endpoints/billing",
    "retries": "retries",
    "dead": "dead",
    "slices": "slices",
    "jobs": "jobs",
    "node": "node",
}
"""File -> address."""
ON_A_PHONE = {"phone-overview": "overview", "phone-timeline": "timeline?span=86400000"}
WIDE, PHONE = (1_200, 720), (390, 720)
WATCHED_S = 75
"""The server looks at its places once a minute."""


async def furnish(server: ServerProcess, receiver: Receiver) -> str:
    """Something for every page; the id of a message whose posts fail."""
    chance = random.Random(7)
    async with aiohttp.ClientSession(server.url) as http:

        async def call(method: str, path: str, body: object) -> dict[str, Any]:
            async with http.request(method, path, json=body) as answer:
                answer.raise_for_status()
                found: dict[str, Any] = await answer.json()
                return found

        peer = await dial(server.mqtt)
        await peer.connect("audit", clean=False, session_expiry=3_600)
        await peer.subscribe("#")
        await call("PUT", "/v1/groups/workers", {"filter": "orders/#", "max_attempts": 3})
        for mean_s in (1_500, 20_000, 300_000):
            items = [
                {
                    "topic": f"orders/{n}/remind",
                    "payload": {"order": n, "mail": "again"},
                    "deliver_in": chance.expovariate(1 / mean_s),
                }
                for n in range(900)
            ]
            await call("POST", "/v1/messages:batch", items)
        nightly = {"cron": "30 3 * * *", "timezone": "Europe/Bucharest", "topic": "jobs/nightly"}
        await call("PUT", "/v1/schedules/nightly", nightly)
        await call(
            "PUT",
            "/v1/schedules/invoices",
            {
                "rrule": "FREQ=MONTHLY;BYMONTHDAY=1;BYHOUR=6;BYMINUTE=0;BYSECOND=0",
                "timezone": "UTC",
                "topic": "jobs/invoices",
            },
        )
        await call("PUT", "/v1/schedules/ticks", {"every": "1s", "topic": "ticks/second", "payload": "tick"})
        await call(
            "PUT", "/v1/endpoints/billing", {"url": receiver.url(), "retry": {"backoff": ["2s", "1h"]}}
        )
        bill = {"order": 17, "amount": 4_200, "currency": "EUR"}
        made = await call(
            "POST",
            "/v1/messages",
            {
                "topic": "orders/17/bill",
                "payload": bill,
                "deliver_to": "billing",
                "headers": {"tenant": "blue"},
            },
        )
        await asyncio.sleep(3)
        for delay in ("20m", "never", "never", "3h"):
            leased = await call("POST", "/v1/groups/workers/messages:lease", {"max": 4, "wait": "20s"})
            names = [one["lease_id"] for one in leased["messages"]]
            nack = {"lease_ids": names, "delay": delay, "reason": "mail: 451 try again later"}
            await call("POST", "/v1/groups/workers/messages:nack", nack)
        await peer.close()
        await asyncio.sleep(WATCHED_S)
        async with http.get("/v1/slices", params={"limit": 20}) as found:
            *_, far = (await found.json())["slices"]
        job = await call("POST", "/v1/jobs", {"kind": "split", "slice": far["start"], "run": "caller"})
        await call("POST", f"/v1/jobs/{job['id']}:renew", {"token": job["token"], "done": 3, "total": 8})
        return str(made["id"])


async def shoot(
    browser: Browser, url: str, size: tuple[int, int], pages: dict[str, str], message: str
) -> None:
    """A picture of each page."""
    page = await browser.new_page(
        viewport={"width": size[0], "height": size[1]}, timezone_id="Europe/Bucharest"
    )
    for name, address in pages.items():
        await page.goto(f"{url}/#/{address.format(message=message)}")
        await page.wait_for_selector(f"[data-ready={address.split('/')[0].split('?')[0]}]")
        await asyncio.sleep(4 if name == "tail" else 1)
        await page.screenshot(path=FOLDER / f"{name}.png")
    await page.close()


async def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium: apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            receiving() as receiver,
            serving(Path(folder) / "data", settings={"webhook.allow_private": "true"}) as server,
            async_playwright() as playwright,
        ):
            receiver.behave = answer(500)
            message = await furnish(server, receiver)
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            await shoot(browser, server.url, WIDE, PAGES, message)
            await shoot(browser, server.url, PHONE, ON_A_PHONE, message)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
