"""HTTP as a test wants it: one call, the status it expects, the parsed answer."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestClient

NDJSON = "application/x-ndjson"


@asynccontextmanager
async def open_site(app: web.Application) -> AsyncIterator[str]:
    """Somebody else's site, and its address. What it does not answer is cut in the end."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass
class Answer:
    """What came back; `body` is parsed JSON, bytes, or None."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(repr=False)

    @property
    def slug(self) -> str:
        return str(self.body["type"]).removeprefix("/problems/")

    @property
    def tag(self) -> str:
        """ETag without its quotes: the row that the message is in."""
        return self.headers["ETag"].strip('"')


class Http:
    """Calls to one server."""

    def __init__(self, session: aiohttp.ClientSession | TestClient[Any, Any]) -> None:
        self._session = session

    async def call(
        self, method: str, path: str, body: object = None, *, status: int | None = None, **headers: str
    ) -> Answer:
        """Send `body`, bytes as they are, anything else as JSON. `status`: the one it has to be.

        Headers by name with `_` for `-`. Raises aiohttp.ClientError when no whole answer comes.
        """
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        async with self._session.request(method, path, data=data, headers=sent) as response:
            raw = await response.read()
            is_json = "json" in response.content_type and (
                response.content_type != NDJSON or raw.count(b"\n") == 1
            )
            answer = Answer(response.status, json.loads(raw) if is_json else raw, response.headers.copy())
        if status is not None:
            assert answer.status == status, answer
        return answer

    async def schedule(self, topic: str, payload: object = "hi", **members: object) -> str:
        """The id of a new message."""
        body = {"topic": topic, "payload": payload, **members}
        return str((await self.call("POST", "/v1/messages", body, status=201)).body["id"])

    async def schedule_many(
        self, items: Sequence[Mapping[str, object]], path: str = "/v1/messages:batch"
    ) -> Answer:
        lines = b"".join(json.dumps(item).encode() + b"\n" for item in items)
        return await self.call("POST", path, lines, Content_Type=NDJSON)

    async def metrics(self) -> dict[str, float]:
        """All figures, by name and labels as they stand there."""
        page = (await self.call("GET", "/metrics", status=200)).body.decode()
        pairs = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    async def rows(self) -> int:
        """Rows of all slices: what is stored at all."""
        pieces = (await self.call("GET", "/v1/slices?limit=1000", status=200)).body["slices"]
        return sum(piece["count"] for piece in pieces)

    async def listed(self, query: str) -> list[dict[str, Any]]:
        """Every message of a listing, page after page."""
        return [message async for message in self.each(query)]

    async def each(self, query: str) -> AsyncIterator[dict[str, Any]]:
        """The same, one after the other."""
        cursor = ""
        while True:
            answer = await self.call("GET", f"/v1/messages?limit=1000&{query}{cursor}", status=200)
            for message in answer.body["messages"]:
                yield message
            if answer.body["next"] is None:
                return
            cursor = f"&cursor={answer.body['next']}"


@asynccontextmanager
async def http(url: str, *, timeout_s: float = 20.0) -> AsyncIterator[Http]:
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    connector = aiohttp.TCPConnector(limit=64)
    async with aiohttp.ClientSession(base_url=url, timeout=timeout, connector=connector) as session:
        yield Http(session)
