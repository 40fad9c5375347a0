"""Nodes are restarted one after the other, the leader too, while workers do jobs of seconds: no job begins
twice, none is lost, and of an ordering key one runs at a time.

FASTI_SOAK=1: 20 restarts.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.cluster import Cluster
from tests.support.http import http
from tests.support.server import ROOT
from tests.support.soak import SOAK

RESTARTS = 20 if SOAK else 3
JOB_S = 5
WORKERS = 2
TASKS = f"""
import asyncio, os, time, fasti
worker = fasti.Worker(group="ordered", order=True, lease=60, concurrency=4)
loose = fasti.Worker(group="loose", lease=60, concurrency=4)
def say(what, job):
    print(f"{{time.monotonic():.3f}} {{what}} {{job.topic}} {{job.text()}} {{job.attempt}}", flush=True)
async def work(job):
    say("begin", job)
    await asyncio.sleep({JOB_S})
    say("end", job)
worker.on("ordered/+")(work)
loose.on("loose/+")(work)
"""
LINE = re.compile(r"^([\d.]+) (begin|end) (\S+) (\S+) (\d+)$", re.MULTILINE)


class Event(NamedTuple):
    """What a worker says."""

    at_s: float
    what: str
    topic: str
    name: str
    attempt: int


class Workers:
    """Processes of `fasti work`, and what they have said."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        (folder / "tasks.py").write_text(TASKS)
        urls = ",".join(node.url for node in cluster.nodes.values())
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FASTI")}
        environment |= {"FASTI_URL": urls, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}"}
        self.outs: list[Path] = []
        self.children: list[subprocess.Popen[bytes]] = []
        for number in range(WORKERS):
            for name in ("worker", "loose"):
                self.outs.append(folder / f"{name}{number}")
                with self.outs[-1].open("wb") as out:
                    child = subprocess.Popen(
                        [sys.executable, "-m", "fasti.cli", "work", f"tasks:{name}"],
                        cwd=folder,
                        env=environment,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                self.children.append(child)

    def said(self) -> str:
        return "\n".join(out.read_text() for out in self.outs)

    def events(self) -> list[Event]:
        """In the order of time."""
        found = LINE.findall(self.said())
        return sorted(Event(float(at), what, topic, name, int(n)) for at, what, topic, name, n in found)

    def count(self, what: str) -> int:
        return sum(one.what == what for one in self.events())


@contextmanager
def working(cluster: Cluster, folder: Path) -> Iterator[Workers]:
    workers = Workers(cluster, folder)
    try:
        yield workers
    finally:
        for child in workers.children:
            child.kill()
            child.wait()


def until(is_so: Callable[[], bool], what: Callable[[], str], limit_s: float) -> None:
    ends = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < ends, what()
        time.sleep(0.05)


async def put(cluster: Cluster, first: int, count: int) -> None:
    """So many jobs for each group: of three keys."""
    async with http(cluster.leader().url) as calls:
        items = [
            {"topic": f"{group}/{n % 3}", "payload": f"{group}-{n}", "ordering_key": f"k{n % 3}"}
            for n in range(first, first + count)
            for group in ("ordered", "loose")
        ]
        assert (await calls.schedule_many(items)).status == 201


async def members(cluster: Cluster) -> int:
    """Of these groups: the cluster has had others' before."""
    async with http(cluster.leader().url) as calls:
        groups = (await calls.call("GET", "/v1/groups", status=200)).body["groups"]
        return sum(len(one["members"]) for one in groups if one["name"] in ("ordered", "loose"))


async def test_no_job_begins_twice(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with working(cluster, tmp_path) as workers:
        ends = time.monotonic() + 60
        while await members(cluster) < 2 * WORKERS:
            assert time.monotonic() < ends, workers.said()
            await asyncio.sleep(0.1)
        jobs = 0
        for turn in range(RESTARTS):
            await put(cluster, jobs, 3)
            jobs += 3
            begun = workers.count("begin")
            until(lambda begun=begun: workers.count("begin") >= begun + 3, workers.said, 30)  # type: ignore[misc]
            leader = cluster.leader()
            node = (leader, *cluster.others(leader))[turn % 3]
            assert node.terminate() == 0
            node.start()
            cluster.wait_ready()
        until(lambda: workers.count("end") >= 2 * jobs, workers.said, 60)
        events = workers.events()
        record_property("counted", f"{len(events)} events of {2 * jobs} jobs, {RESTARTS} restarts")
    begun = Counter(one.name for one in events if one.what == "begin")
    assert len(begun) == 2 * jobs
    assert [name for name, times in begun.items() if times > 1] == [], workers.said()
    assert {one.attempt for one in events} == {1}
    running = Counter[str]()
    for one in events:
        running[one.topic] += 1 if one.what == "begin" else -1
        assert not one.topic.startswith("ordered/") or running[one.topic] <= 1, workers.said()
