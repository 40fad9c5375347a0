"""The clock of a real server process is set under it, by libfaketime: two hours back, a day ahead and back.

    apt-get install faketime

Wall time is read through a library that adds what a file says; monotonic time is the machine's.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.support.http import Http, http
from tests.support.mqtt import dial
from tests.support.server import serving

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
PROGRAM = ("server.__main__",)
"""A process of its own: a forked one would have been linked before."""
SYS_S = 10.0
HOUR_S, DAY_S = 3_600, 86_400

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed (Debian: faketime)"),
]


class Wall:
    """What the server's wall clock is ahead of ours."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead_s: int) -> None:
        self._file.write_text(f"{ahead_s:+d}\n")


@pytest.fixture
def wall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wall:
    file = tmp_path / "ahead"
    monkeypatch.setenv("LD_PRELOAD", str(LIBRARY))
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(file))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    monkeypatch.setenv("DONT_FAKE_MONOTONIC", "1")
    return Wall(file)


async def test_housekeeping_goes_on(tmp_path: Path, wall: Wall) -> None:
    """`$SYS` comes each 10 s, from the same timetable as all chores."""
    news = asyncio.Event()
    async with serving(tmp_path / "data", program=PROGRAM) as server:
        peer = await dial(server.mqtt, on_publish=lambda *_: news.set())
        await peer.connect("sys")
        await peer.subscribe("$SYS/broker/uptime", qos=0)
        for ahead_s in (DAY_S, 0):
            wall.set(ahead_s)
            news.clear()
            async with asyncio.timeout(SYS_S + 5):
                await news.wait()
        await peer.close()


async def test_schedules_go_on_and_send_nothing_twice(tmp_path: Path, wall: Wall) -> None:
    got: Counter[tuple[str, str]] = Counter()

    async def lease(calls: Http, name: str) -> None:
        """Until another message of that schedule has come."""
        async with asyncio.timeout(15):
            while True:
                wish = {"max": 100, "wait": "1s"}
                found = (await calls.call("POST", "/v1/groups/g/messages:lease", wish)).body["messages"]
                got.update((one["payload"], one["deliver_at"]) for one in found)
                ids = [one["lease_id"] for one in found]
                if ids:
                    await calls.call("POST", "/v1/groups/g/messages:ack", {"lease_ids": ids}, status=200)
                if any(one["payload"] == name for one in found):
                    return

    async with serving(tmp_path / "data", program=PROGRAM) as server, http(server.url) as calls:
        await calls.call("PUT", "/v1/groups/g", {"filter": "tick"}, status=201)
        for name, when in (("e", {"every": "1s"}), ("c", {"cron": "* * * * * *", "timezone": "UTC"})):
            body = {**when, "topic": "tick", "payload": name}
            await calls.call("PUT", f"/v1/schedules/{name}", body, status=201)
        for ahead_s in (0, 2 * HOUR_S, 0, DAY_S, 0):
            wall.set(ahead_s)
            for name in ("e", "c", "e", "c"):
                await lease(calls, name)
        assert {sent for sent, times in got.items() if times > 1} == set()
        for name in ("e", "c"):
            assert (await calls.call("GET", f"/v1/schedules/{name}")).body["silent"] is None
