"""Disks that fail: a small file system to be filled, a limit on the size of files; and who works on one.

A file system of its own, in RAM, takes the right to mount; without it who asks for one is skipped.
"""

import asyncio
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.settings.times import format_ms
from tests.support.http import Answer, Http
from tests.support.mqtt import Peer, dial, wall_ms
from tests.support.server import ServerProcess

SIZE = "16m"
LAG_MS = 900
"""Nobody waits so long. The engine, closed on such a disk, waits for a second."""


@contextmanager
def mounted(path: Path, size: str = SIZE) -> Iterator[Path]:
    """A file system of this size."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=10, check=False)
    except OSError as error:
        pytest.skip(f"no disk of its own for the test: {error}")
    if done.returncode:
        pytest.skip(f"no disk of its own for the test: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], capture_output=True, timeout=10, check=True)


class Filler:
    """A file that takes all the room there is."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "filler"

    def fill(self, keep: int = 0) -> None:
        """Leave `keep` bytes, about."""
        with self._path.open("wb", buffering=0) as out:
            for size in (1 << 16, 1 << 12):
                try:
                    while True:
                        out.write(b"\0" * size)
                except OSError:
                    continue
            if keep:
                out.truncate(max(0, out.tell() - keep))

    def free(self) -> None:
        self._path.unlink(missing_ok=True)


@contextmanager
def limited(server: ServerProcess, size: int) -> Iterator[None]:
    """No file of the server may grow beyond `size` bytes, nor be written there."""
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))


async def reader_of(server: ServerProcess) -> Peer:
    """A persistent session that gets what `due_soon` schedules."""
    peer = await dial(server.mqtt)
    await peer.connect("reader", clean=False, session_expiry=600)
    await peer.subscribe("soon/#")
    return peer


async def due_soon(calls: Http, count: int) -> list[str]:
    """Messages due in a second and more, 50 ms apart: the last ones beyond what a group can have allowed."""
    start_ms = wall_ms() + 1_500
    items: list[dict[str, object]] = [
        {"topic": f"soon/{n % 3}", "payload": f"s{n}", "deliver_at": format_ms(start_ms + 50 * n)}
        for n in range(count)
    ]
    assert (await calls.schedule_many(items)).status == 201
    return [f"s{n}" for n in range(count)]


def later(payload: str) -> dict[str, object]:
    """A message that nobody gets in a test."""
    return {"topic": "later", "payload": payload, "deliver_in": "1h"}


async def until_refused(calls: Http) -> Answer:
    """Schedule until the disk takes no more; the answer then."""
    for _ in range(2_000):
        answer = await calls.call("POST", "/v1/messages", later("x" * 200))
        if answer.status != 201:
            assert answer.status == 503, answer
            return answer
    raise AssertionError("the disk is full and writes go on")


async def until_taken(calls: Http) -> str:
    """Schedule until the server writes again; the id of the first."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        answer = await calls.call("POST", "/v1/messages", later("again"))
        if answer.status == 201:
            return str(answer.body["id"])
        assert answer.status == 503, answer
        await asyncio.sleep(0.05)
    raise AssertionError("there is room and writes are still refused")
