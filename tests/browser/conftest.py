"""A real browser before a real server: Debian's Chromium, driven by Playwright. Without one they skip.

Its headless shell comes first: `chromium` draws its own windows too, which nobody sees.
"""

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from tests.support.http import Http
from tests.support.server import ServerProcess, serving

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
PATIENCE_MS = 20_000
PAGES = (
    "overview",
    "overview?range=day",
    "timeline",
    "messages",
    "messages?q=17",
    "messages/new",
    "tail",
    "schedules",
    "schedules/nightly",
    "schedules/new",
    "places",
    "places?kind=session",
    "places/session/till-3",
    "places/group/workers?filter=orders/%23",
    "endpoints",
    "endpoints/billing",
    "retries",
    "dead",
    "slices",
    "jobs",
    "node",
)


class Console:
    """A page of the console, and the server behind it."""

    def __init__(self, page: Page, server: ServerProcess, http: Http) -> None:
        self.page = page
        self.server = server
        self.http = http
        self.faults: list[str] = []
        """What the browser's console and the page's scripts have complained of."""
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text}")

    async def open(self, address: str) -> None:
        """Go to a page, and wait until it has drawn itself."""
        await self.page.goto(f"{self.server.url}/#/{address}")
        await self.shown(address)

    async def shown(self, address: str) -> None:
        name = re.split(r"[/?]", address)[0]
        await self.page.wait_for_selector(f"[data-ready={name}]")

    async def press(self, name: str) -> None:
        """The button of this name; of a dialog, if there is one."""
        await self.page.get_by_role("button", name=name, exact=True).last.click()

    async def write(self, label: str, text: str) -> None:
        await self.page.get_by_label(label, exact=True).last.fill(text)

    async def says(self, text: str) -> None:
        """Wait until a notice says it."""
        await self.page.locator("#notices").get_by_text(text).first.wait_for()

    async def get(self, path: str) -> Any:
        return (await self.http.call("GET", path, status=200)).body


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One for all: a start takes two seconds. Each test has a context of its own."""
    if CHROMIUM is None:
        pytest.skip("no browser: apt-get install chromium")
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        await found.close()


@asynccontextmanager
async def looking(browser: Browser, data: Path, **settings: object) -> AsyncIterator[Console]:
    """A new tab, before a server of its own; `settings` by their names with `__` for the dot."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    async with serving(data, settings=named) as server, aiohttp.ClientSession(server.url) as session:
        context = await browser.new_context(
            viewport={"width": 1_280, "height": 900}, timezone_id="Europe/Bucharest"
        )
        yield Console(await context.new_page(), server, Http(session))
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def console(browser: Browser, tmp_path: Path) -> AsyncIterator[Console]:
    async with looking(browser, tmp_path / "data") as made:
        yield made
        assert made.faults == []
