"""A large slice split in eight by the real program, under load, against a real server; it is killed twice.

Messages are put, cancelled and moved all the while, and after each of these the counts are asked for and are
exact. Then time passes, and two subscribers have each message exactly once. FASTI_SOAK=1: ten million;
otherwise 8,000. FASTI_ROWS: as many.
"""

import asyncio
import json
import os
import random
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.settings.times import format_ms, parse_deliver_at
from tests.bench.http import ask, get, post, send_all
from tests.bench.mqtt import Client, connect
from tests.bench.workload import NDJSON
from tests.support.soak import SOAK

from .served import Served, served
from .test_program import has_java, program

ROWS = int(os.environ.get("FASTI_ROWS") or (10_000_000 if SOAK else 8_000))
PARTS = 8
INSTANTS = 9_600 if ROWS > 1_000_000 else 400
"""In each of them as many messages are due: the simulated clock goes through every one."""
SLICE_MS = 6 * 3_600_000
STEP_MS = SLICE_MS // INSTANTS
BATCH = 1_000
DIGITS = 8
PAUSE_S = 0.1
MORE = 100_000
"""As many messages may come while it is split."""


class Seen:
    """What a subscriber has been sent, by the numbers that the payloads are."""

    def __init__(self, most: int) -> None:
        self.times = array("B", bytes(most))
        self.client: Client

    async def connect(self, server: Served, name: str, filter_: str) -> None:
        self.client = await connect(server.process.mqtt, name, expiry_s=86_400 * 365, look=self._look)
        await self.client.subscribe(filter_, 1)

    def _look(self, data: bytes, start: int, end: int) -> None:
        self.times[int(data[end - DIGITS : end])] += 1


class Load:
    """Everybody but the subscribers."""

    def __init__(self, server: Served, rows: int) -> None:
        self.server = server
        self.chance = random.Random(7)
        self.start_ms = 0
        self.live = self.rows = 0
        """That the slice has, and what came of it."""
        self.gone: set[int] = set()
        self.ids: dict[int, str] = {}
        """Of some."""
        self.next = rows
        self.looks = 0

    async def fill(self) -> None:
        probe = await self.call(post("/v1/messages", _body("t/0", 0, in_s=10 * 86_400)))
        explained = await self.call(get(f"/v1/messages/{probe['id']}/explain"))
        self.start_ms = _ms(explained["slice"])
        await self.call(
            b"DELETE /v1/messages/" + probe["id"].encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        await send_all(self.server.process.http, self._requests(), 8)
        self.live = self.next
        self.rows = self.next + 1

    def _requests(self) -> Any:
        for first in range(0, self.next, BATCH):
            items = [self._item(number) for number in range(first, min(self.next, first + BATCH))]
            yield post("/v1/messages:batch", b"\n".join(items) + b"\n", NDJSON)

    def _item(self, number: int) -> bytes:
        return _body(f"t/{number % 10}", number, at_ms=self.start_ms + number * 7_919 % INSTANTS * STEP_MS)

    async def call(self, wish: bytes) -> Any:
        body = await ask(self.server.process.http, wish)
        return json.loads(body) if body else None

    async def change(self) -> None:
        """Some messages come, some of the first ones go or are moved; and what is counted is right."""
        items = [self._item(number) for number in range(self.next, self.next + 10)]
        body = b"\n".join(items) + b"\n"
        answer = await self.call(post("/v1/messages:batch", body, NDJSON))
        self.ids |= {self.next + index: name for index, name in enumerate(answer["ids"])}
        self.next += 10
        self.live += 10
        self.rows += 10
        page = await self.call(get(f"/v1/messages?limit=5&due_from={self._somewhen()}"))
        picked = [(int(one["payload"]), one["id"]) for one in page["messages"]]
        for number, name in picked[:3]:
            await self.call(b"DELETE /v1/messages/" + name.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.gone.add(number)
            self.live -= 1
        for _, name in picked[3:]:
            due = json.dumps({"deliver_at": format_ms(self._somewhen())}).encode()
            head = (
                f"PATCH /v1/messages/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            await self.call(f"{head}Content-Length: {len(due)}\r\n\r\n".encode() + due)
            self.rows += 1
        await self.check()

    def _somewhen(self) -> int:
        return self.start_ms + self.chance.randrange(INSTANTS) * STEP_MS

    async def check(self) -> None:
        slices = [one for one in self.server.slices() if _ms(one["start"]) >= self.start_ms]
        assert all(one["count_is_exact"] for one in slices)
        assert sum(one["live"] for one in slices) == self.live
        assert sum(one["count"] for one in slices) == self.rows
        pending = (await self.call(get("/v1/messages?count=true&limit=1")))["count"]
        assert pending == self.live
        self.looks += 1

    async def check_each(self) -> None:
        """Every slice against its rows; the density against all."""
        for piece in self.server.slices():
            span = f"due_from={_ms(piece['start'])}&due_to={_ms(piece['end'])}"
            for topic in ("", "&topic=%23"):  # by what is stored of counts, and row by row
                counted = await self.call(get(f"/v1/messages?count=true&limit=1&{span}{topic}"))
                assert counted["count"] == piece["live"], piece
        span = f"from={self.start_ms}&to={self.start_ms + SLICE_MS}"
        density = await self.call(get(f"/v1/timeline/density?{span}&bucket=PT10M"))
        assert density["total"] == self.live


def _body(topic: str, number: int, *, at_ms: int = 0, in_s: int = 0) -> bytes:
    due = f'"deliver_at":"{format_ms(at_ms)}"' if at_ms else f'"deliver_in":{in_s}'
    return f'{{"topic":"{topic}","payload":"{number:0{DIGITS}}",{due}}}'.encode()


def _ms(text: str) -> int:
    return parse_deliver_at(text)


async def changing(load: Load, until: Callable[[], bool]) -> None:
    while not until():
        await load.change()
        await asyncio.sleep(PAUSE_S)


async def split(load: Load, folder: Path, figures: dict[str, Any]) -> None:
    """Changes all the while, and some more after it. The program is killed before it reads, and while it
    counts; it ends; and it is run once more, as if its last answer had been lost."""
    server = load.server
    job = server.remote.create("split", slice=str(load.start_ms), parts=PARTS)
    reading = folder / "reading"
    with program(server, job) as child:
        await changing(load, lambda: has_java(child))
    with program(server, job, reading) as child:
        await changing(load, reading.exists)
    assert server.state(job.id) == "planning"
    started = time.monotonic()
    with program(server, job) as child:
        await changing(load, lambda: child.poll() is not None)
        said, errors = child.communicate()
    figures["split_s"] = round(time.monotonic() - started, 1)
    assert child.returncode == 0, errors
    assert f"cut into {PARTS} slices" in said
    figures["changes during"] = load.looks
    with program(server, job) as child:
        await changing(load, lambda: child.poll() is not None)
        assert "is done already" in child.communicate()[0]
    for _ in range(20):
        await load.change()
    assert not list((server.data / "jobs").glob("*"))


async def drained(seen: Sequence[tuple[Seen, int]]) -> None:
    for one, count in seen:
        await one.client.until(count, timeout_s=3_000)


async def test_a_large_split_under_load(tmp_path: Path, record_property: Any) -> None:
    pytest.importorskip("pyspark")
    settings = {"shards.cap_messages": max(500, ROWS // 100), "limits.pending": ROWS + MORE}
    figures: dict[str, Any] = {"rows": ROWS}
    with served(tmp_path / "data", "--clock", "simulated", settings=settings) as server:
        load = Load(server, ROWS)
        every, tenth = Seen(ROWS + MORE), Seen(ROWS + MORE)
        await every.connect(server, "every", "#")
        await tenth.connect(server, "tenth", "t/3")
        await load.fill()
        await load.check()
        await split(load, tmp_path, figures)
        pieces = [one for one in server.slices() if _ms(one["start"]) >= load.start_ms]
        assert len(pieces) == PARTS
        assert all(one["borrowed"] for one in pieces)
        assert max(one["count"] for one in pieces) <= 1.3 * min(one["count"] for one in pieces)
        await load.check_each()
        started = time.monotonic()
        numbers = set(range(load.next)) - load.gone
        moving = asyncio.ensure_future(load.call(post("/v1/clock:advance", b'{"by":"P11D"}')))
        fourth = sum(number % 10 == 3 for number in numbers)
        await drained([(every, len(numbers)), (tenth, fourth)])
        await moving
        figures["drain_s"] = round(time.monotonic() - started, 1)
        for number in range(load.next):
            expected = number in numbers
            assert every.times[number] == expected, number
            assert tenth.times[number] == (expected and number % 10 == 3), number
        assert sum(every.times) == len(numbers)
        assert (await load.call(get("/v1/messages?count=true&limit=1")))["count"] == 0
        for one in (every, tenth):
            one.client.close()
    print(figures, flush=True)
    record_property("counted", str(figures))
