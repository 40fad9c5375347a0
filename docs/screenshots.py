"""Pictures of the console for docs/console.md: a server with made-up messages, each page in Chromium.

    .venv/bin/python -m docs.screenshots

Wants Debian's `chromium`, and the development packages. The pictures are 1,200 pixels wide.
"""

import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Page, async_playwright

from tests.support.mqtt import dial
from tests.support.server import ServerProcess, serving

FOLDER = Path(__file__).parent / "console"
PAGES = {
    "timeline": "timeline",
    "messages": "messages?topic=orders/%23",
    "message": "",
    "schedule": "schedules/nightly",
    "sessions": "sessions",
    "groups": "groups",
    "retries": "retries",
    "dead": "dead",
    "slices": "slices",
    "jobs": "jobs",
    "node": "node",
}
"""File -> address; that of the message is known when it is there."""
WIDTH, HEIGHT = 1_200, 720


async def furnish(server: ServerProcess) -> str:
    """Something for every page; the id of a message."""
    chance = random.Random(7)
    async with aiohttp.ClientSession(server.url) as http:

        async def call(method: str, path: str, body: object) -> dict[str, Any]:
            async with http.request(method, path, json=body) as answer:
                answer.raise_for_status()
                found: dict[str, Any] = await answer.json()
                return found

        peer = await dial(server.mqtt)
        await peer.connect("audit", clean=False, session_expiry=3_600)
        await peer.subscribe("orders/#")
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
            {"rrule": "FREQ=MONTHLY;BYMONTHDAY=1", "timezone": "UTC", "topic": "jobs/invoices"},
        )
        made = await call(
            "POST",
            "/v1/messages",
            {
                "topic": "orders/17/remind",
                "payload": {"order": 17, "mail": "again"},
                "deliver_in": "36h",
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
        return str(made["id"])


async def shoot(page: Page, url: str, name: str, address: str) -> None:
    """One picture."""
    await page.goto(f"{url}/#/{address}")
    await page.wait_for_selector(f"[data-ready={address.split('/')[0].split('?')[0]}]")
    await asyncio.sleep(3.5)  # the lines of lag need two looks
    await page.screenshot(path=FOLDER / f"{name}.png")


async def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium: apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder) / "data") as server, async_playwright() as playwright:
            message = await furnish(server)
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            for name, address in PAGES.items():
                await shoot(page, server.url, name, address or f"messages/{message}")
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
