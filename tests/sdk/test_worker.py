"""`fasti.Worker` on the real server: success, failure, slow jobs, keys, a graceful stop, a killed process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import fasti
from fasti.addresses import Broker
from fasti.mqtt_adapter import Connection
from fasti.mqtt_values import Incoming
from fasti.subscribe import SubscribeRequest
from fasti.testing import FastiServer
from fasti.tls import Tls
from tests.sdk.conftest import ROOT, take, until
from tests.sdk.fake import Fake
from tests.sdk.test_against_server import Server, running
from tests.sdk.test_cli import fasti_cli
from tests.support.ports import free_port

GROUP = "$share/workers/jobs/#"


@asynccontextmanager
async def working(worker: fasti.Worker, c: fasti.Client) -> AsyncIterator[asyncio.Task[None]]:
    """It runs, and has its place in the group."""
    task = asyncio.create_task(worker.run(c, signals=False))
    async with asyncio.timeout(60):
        while not task.done() and not [g async for g in c.groups.list() if g.members]:
            await asyncio.sleep(0.01)
    try:
        yield task
    finally:
        worker.stop()
        async with asyncio.timeout(60):
            await asyncio.gather(task, return_exceptions=True)


async def in_flight(c: fasti.Client) -> int:
    return sum([group.in_flight for group in await c.groups.get("workers")])


async def dead(c: fasti.Client) -> list[tuple[str, int, str]]:
    return [(d.payload, d.attempts, d.reason) async for d in c.dead.list()]


async def buried(c: fasti.Client, count: int) -> bool:
    return len(await dead(c)) == count


async def test_what_returns_is_done_and_what_raises_comes_again(
    server: FastiServer, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[tuple[str, int]] = []
    worker = fasti.Worker(group="workers")

    @worker.on("jobs/#", retry={"max_attempts": 3, "backoff": ["10s", "1m"]})
    async def handle(job: fasti.Delivery) -> None:
        tries.append((job.text(), job.attempt))
        if job.text() == "bad":
            raise LookupError("no such order")
        if job.text() == "later" and job.attempt == 1:
            raise fasti.RetryIn(timedelta(hours=1))

    async with server.client() as c, working(worker, c):
        for text in ("good", "bad", "later"):
            await c.messages.schedule("jobs/1", text)

        def told() -> int:
            return worker.figures.done + worker.figures.failed

        await until(lambda: told() == 3)

        async def is_heard() -> bool:
            return await in_flight(c) == 0

        for step_s, count in ((13, 4), (73, 5)):
            await until(is_heard)  # a nack has no answer, and the clock must not overtake it
            await server.advance(seconds=step_s)
            await until(lambda count=count: told() == count)  # type: ignore[misc]
        assert tries[-2:] == [("bad", 2), ("bad", 3)]
        await until(lambda: dead(c))
        assert await dead(c) == [("bad", 3, "LookupError: no such order")]
        await server.advance(hours=1)
        await until(lambda: tries[-1] == ("later", 2))
        await until(lambda: worker.figures.done == 2)
        assert await in_flight(c) == 0
    figures = worker.figures
    assert (figures.done, figures.failed, figures.again, figures.in_hand) == (2, 4, 3, 0)
    failures = [r for r in caplog.records if r.name == "fasti.worker" and r.levelno == logging.WARNING]
    assert len(failures) == 3
    assert "jobs/1" in failures[0].getMessage()


async def test_what_is_rejected_is_a_dead_letter_at_once(server: FastiServer) -> None:
    worker = fasti.Worker(group="workers")

    @worker.on("jobs/#")
    async def handle(job: fasti.Delivery) -> None:
        raise fasti.Reject("no such order") if job.text() == "bad" else fasti.Reject

    async with server.client() as c, working(worker, c):
        await c.messages.schedule("jobs/1", "bad")
        await c.messages.schedule("jobs/1", "worse")
        await until(lambda: worker.figures.failed == 2)
        await until(lambda: buried(c, 2))
        assert sorted(await dead(c)) == [("bad", 1, "no such order"), ("worse", 1, "rejected")]


async def test_no_way_to_fail_ends_the_worker(server: FastiServer) -> None:
    ways: dict[str, BaseException] = {
        "exit": SystemExit(3),
        "cancelled": asyncio.CancelledError(),
        "odd": ValueError("two\nlines, \0 and \x01 " + "é" * 300),
        "stop": StopIteration(),
        "base": type("Base", (BaseException,), {})("x"),
    }
    worker = fasti.Worker(group="workers", concurrency=2)
    once: fasti.options.RetryOptions = {"max_attempts": 1}

    @worker.on("jobs/async/+", retry=once)
    async def handle(job: fasti.Delivery) -> None:
        raise ways[job.text()]

    in_thread = ways | {"ctrl-c": KeyboardInterrupt(), "closed": GeneratorExit()}

    @worker.on("jobs/thread/+", retry=once)
    def plain(job: fasti.Delivery) -> None:
        raise in_thread[job.text()]

    async with server.client() as c, working(worker, c):
        for way in ways:
            await c.messages.schedule(f"jobs/async/{way}", way)
        for way in in_thread:
            await c.messages.schedule(f"jobs/thread/{way}", way)
        await until(lambda: worker.figures.failed == 12)
        await until(lambda: buried(c, 12))
        assert worker.figures.in_hand == 0


async def test_what_takes_too_long_is_given_up_and_comes_again(server: FastiServer) -> None:
    seen: list[tuple[str, int]] = []
    running = threading.Event()
    worker = fasti.Worker(group="workers", concurrency=1)

    @worker.on("jobs/async", timeout=0.05, retry={"max_attempts": 1})
    async def stuck(job: fasti.Delivery) -> None:
        await asyncio.sleep(3_600)

    @worker.on("jobs/thread", timeout=0.05, retry={"backoff": ["1s"]})
    def slow(job: fasti.Delivery) -> None:
        seen.append((threading.current_thread().name, job.attempt))
        if job.attempt == 1:
            running.wait(60)

    async with server.client() as c, working(worker, c):
        await c.messages.schedule("jobs/async", "x")
        await until(lambda: dead(c))
        assert await dead(c) == [("x", 1, "TimeoutError: not done within 0.05 s")]
        await c.messages.schedule("jobs/thread", "y")
        await until(lambda: worker.figures.failed == 2)
        await server.advance(seconds=2)
        await until(lambda: worker.figures.in_hand == 1)
        await asyncio.sleep(0.1)
        assert len(seen) == 1, "the only thread is not free yet"
        running.set()
        await until(lambda: worker.figures.done == 1)
        assert seen == [("fasti-jobs/thread", 1), ("fasti-jobs/thread", 2)]


async def test_a_job_ten_times_slower_than_its_lease_is_done_once(tmp_path: Path) -> None:
    """On the system's clock: the lease is real."""
    started: list[int] = []
    lease = timedelta(seconds=0.3)
    worker = fasti.Worker(group="workers", lease=lease)

    @worker.on("jobs/#", retry={"max_attempts": 1})
    async def handle(job: fasti.Delivery) -> None:
        started.append(job.attempt)
        await asyncio.sleep(10 * lease.total_seconds())

    async with (
        running(Server(tmp_path / "data")) as made,
        fasti.Client(made.url) as c,
        working(worker, c),
    ):
        await c.messages.schedule("jobs/1", "slow")
        await until(lambda: worker.figures.done == 1)
        assert started == [1]
        assert await dead(c) == []
        assert await in_flight(c) == 0


async def test_one_message_of_a_key_at_a_time(server: FastiServer) -> None:
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    done: list[str] = []
    worker = fasti.Worker(group="workers", concurrency=20)

    with pytest.deprecated_call(match="order=True"):
        on = worker.on("jobs/+", one_per=lambda job: job.topic)

    @on
    async def handle(job: fasti.Delivery) -> None:
        for what in (job.topic, "all"):
            now[what] = now.get(what, 0) + 1
            most[what] = max(most.get(what, 0), now[what])
        await asyncio.sleep(0.005)
        for what in (job.topic, "all"):
            now[what] -= 1
        done.append(job.text())

    async with server.client() as c, working(worker, c):
        await asyncio.gather(*(c.messages.schedule(f"jobs/{n % 2}", str(n)) for n in range(20)))
        await until(lambda: worker.figures.done == 20)
    assert most == {"jobs/0": 1, "jobs/1": 1, "all": 2}
    assert [n for n in done if int(n) % 2] == [str(n) for n in range(1, 20, 2)], "in order"
    assert len(worker._locks) == 0, "nothing is kept of a key that nobody has"


async def test_a_graceful_stop_ends_what_runs_and_gives_back_the_rest(server: FastiServer) -> None:
    go_on = asyncio.Event()
    cancelled: list[str] = []
    worker = fasti.Worker(group="workers", concurrency=2, grace=0.2)

    @worker.on("jobs/#")
    async def handle(job: fasti.Delivery) -> None:
        try:
            await (go_on.wait() if job.text() == "quick" else asyncio.sleep(3_600))
        except asyncio.CancelledError:
            cancelled.append(job.text())
            raise

    async with server.client() as c:
        async with c.subscribe("jobs/#", group="workers", max_in_flight=1) as other:
            async with working(worker, c) as task:
                for text in ("0", "quick", "1", "2", "3"):
                    await c.messages.schedule("jobs/1", text)
                await until(lambda: worker.figures.in_hand == 2)
                worker.stop()
                go_on.set()
                async with asyncio.timeout(60):
                    await task
            rest = await take(other, 5 - worker.figures.done)
        assert (len(cancelled), worker.figures.done + len(rest)) == (worker.figures.failed, 5)
        assert sorted(set(rest)) == sorted(rest), "each once, at once"
        assert set(cancelled) <= set(rest)
        assert await dead(c) == []


async def test_stops_in_order_are_no_tries_of_what_no_handler_has_begun(server: FastiServer) -> None:
    begun: list[str] = []

    async def deploy(c: fasti.Client) -> None:
        """The worker takes three jobs of one key, of which two wait for the first, and is stopped."""
        worker = fasti.Worker(group="workers", concurrency=3, grace=0)

        with pytest.deprecated_call(match="'concurrency': 1"):
            on = worker.on("jobs/#", one_per=lambda job: job.topic)

        @on
        async def handle(job: fasti.Delivery) -> None:
            begun.append(job.text())
            await asyncio.sleep(3_600)

        before = len(begun)
        async with working(worker, c):
            await until(lambda: worker.figures.in_hand == 3 and len(begun) > before)

    async with server.client() as c:
        await c.groups.put("workers", "jobs/#", max_attempts=3)
        for n in range(10):
            await c.messages.schedule("jobs/1", str(n))
        for _ in range(4):
            await deploy(c)
        tried = {payload for payload, _, _ in await dead(c)}
        assert tried <= {text for text in begun if begun.count(text) == 3}, (
            "each of these was begun three times"
        )
        async with c.pull("workers", max=10) as jobs:
            left = [await anext(jobs) for _ in range(10 - len(tried))]
        assert {job.attempt for job in left if job.text() not in begun} == {1}


async def test_groups_are_made_ahead_and_what_nobody_takes_is_named(
    client: fasti.Client, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    worker = fasti.Worker(group="workers", lease=30, expiry="7d", rate=5)
    worker.on("jobs/+/go", retry={"backoff": ["1s"]})(print)
    worker.on("jobs/#")(print)
    await worker._make_groups(client, [job.request for job in worker._jobs])
    terms = {"expiry": "7d", "ack_timeout": "PT30S", "backoff": ["1s"], "rate": 5}
    assert fake.asked == {"filter": "jobs/+/go", **terms}
    assert caplog.messages == []
    renamed = fasti.Worker(group="workers")
    renamed.on("work/#")(print)
    await renamed._make_groups(client, [job.request for job in renamed._jobs])
    assert "expiry" not in fake.asked, "until it is deleted: the server's default"
    (said,) = caplog.messages
    assert said.startswith("group workers: nobody receives its filter jobs/#: 12 unread, 3 in flight, 2 to")
    assert said.endswith("this worker has work/#")
    fake.faults = [(403, {})]
    await renamed._make_groups(client, [])
    assert "not created in advance" in caplog.messages[-1]


async def test_a_retry_goes_to_a_handler_that_fits_its_topic(caplog: pytest.LogCaptureFixture) -> None:
    worker = fasti.Worker(group="workers")
    done: list[str] = []
    worker.on("jobs/+")(lambda job: done.append(f"one level {job.topic}"))
    worker.on("jobs/#")(lambda job: done.append(f"all {job.topic}"))

    def came(topic: str, *numbers: int) -> fasti.Delivery:
        way = Connection(SubscribeRequest("t").target(Broker("", 0), Tls(), None), 1, print)
        it = Incoming(topic=topic, payload=b"", qos=1, mid=1, dup=False, connection=way, numbers=numbers)
        return fasti.Delivery(it, cast("Any", None))

    threads = asyncio.Semaphore(1)
    begun: list[None] = []

    def begin() -> None:
        begun.append(None)

    for topic, number in (("jobs/1", 2), ("jobs/1", 1), ("jobs/1/2", 1)):
        assert await worker._tried(came(topic, number), threads, begin) is None
    assert await worker._tried(came("jobs/1"), threads, begin) is None
    assert done == ["all jobs/1", "one level jobs/1", "all jobs/1/2", "one level jobs/1"]
    failure = await worker._tried(came("work/1", 1), threads, begin)
    assert isinstance(failure, fasti.RetryIn)
    assert failure.delay is None
    assert len(begun) == 4, "no handler has begun it"
    assert caplog.messages == ["work/1 None: no handler matches this topic; handlers: jobs/+, jobs/#"]


async def test_a_worker_without_handlers_or_a_server_says_so() -> None:
    worker = fasti.Worker()
    odd: Any = [5]
    with pytest.raises(ValueError, match="no handler"):
        await worker.run()
    refused: list[tuple[str, Callable[[], object]]] = [
        ("concurrency", lambda: fasti.Worker(concurrency=0)),
        ("max_attempts", lambda: worker.on("a", retry={"max_attempts": -1})),
        ("^delay .*negative", lambda: fasti.RetryIn(-5)),
        ("^delay .*'soon' is not a delay", lambda: fasti.RetryIn("soon")),
        ("^delay .*timedelta", lambda: fasti.RetryIn(odd)),
        ("^timeout ", lambda: worker.on("a", timeout=-1)),
    ]
    for said, call in refused:
        with pytest.raises(fasti.BadArgument, match=said):
            call()
    worker.on("a")(lambda job: None)
    async with fasti.Client("http://127.0.0.1:9", retry=fasti.Retry(attempts=1)) as c:
        with pytest.raises(fasti.Unreachable):
            await worker.run(c)


WORKER = """
import asyncio
import fasti

worker = fasti.Worker(group="workers", concurrency=4, grace=5)


@worker.on("jobs/#", retry={"backoff": ["0.1s"]})
async def handle(job):
    await asyncio.sleep(0.01)
    print("job", job.text(), flush=True)
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(WORKER)
    return tmp_path


def start_work(server: FastiServer, folder: Path, out: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "FASTI_URL": server.url, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}"}
    with out.open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "fasti.cli", "work", "tasks:worker", "--concurrency", "3"],
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def test_three_processes_of_which_one_is_killed_lose_nothing(server: FastiServer, module: Path) -> None:
    outs = [module / f"out{n}" for n in range(3)]
    children = [start_work(server, module, out) for out in outs]
    try:
        with server.sync_client() as c:
            deadline = time.monotonic() + 60
            while True:
                groups = list(c.groups.list())
                if groups and len(groups[0].members) == 3:
                    break
                assert time.monotonic() < deadline, [out.read_text() for out in outs]
                time.sleep(0.02)
            c.messages.schedule_many(fasti.NewMessage(topic="jobs/1", payload=str(n)) for n in range(300))
            while "job" not in outs[0].read_text():
                time.sleep(0.005)
            children[0].kill()
            children[0].wait()
            jobs = {str(n) for n in range(300)}
            while True:
                # A lost connection is a try: what it had waits for its back-off.
                server.advance_sync(seconds=1)
                lines = [line for out in outs for line in out.read_text().splitlines()]
                done = {line[4:] for line in lines if line[:4] == "job "}
                if done == jobs:
                    break
                assert time.monotonic() < deadline, jobs - done
                time.sleep(0.05)
            assert [d.id for d in c.dead.list()] == []
        for child in children[1:]:
            child.send_signal(signal.SIGTERM)
        assert [child.wait(30) for child in children[1:]] == [0, 0]
        assert "stopped: done" in outs[1].read_text()
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_the_command_says_what_is_wrong(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (module / "other_tasks.py").write_text("import fasti\nworker = 5\nidle = fasti.Worker()\n")
    for name in (
        "../tasks:worker",
        "no_such_module:worker",
        *(f"other_tasks{n}" for n in (":no_such", "", ":idle")),
    ):
        code, _, said = await fasti_cli("work", name)
        assert code == 2, said
    assert "no handler" in said
    (module / "broken_tasks.py").write_text("import no_such_module\n")
    for name, taught in (
        ("tasks.py", "is tasks meant?"),
        ("tasks:wrker", "it has tasks:worker"),
        ("broken_tasks", "broken_tasks cannot be imported: No module named 'no_such_module'"),
    ):
        assert taught in (await fasti_cli("work", name))[2]
    nowhere = f"http://127.0.0.1:{free_port()}"
    code, _, said = await fasti_cli("work", "tasks:worker", "--expiry", "2d", "--url", nowhere)
    assert code == 3, said
    assert sys.modules["tasks"].worker.expiry == "2d"
