"""The log of `fasti work`: an event is a line, and a traceback is of the user's code alone."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fasti.cli.logs import JsonFormatter, TextFormatter
from fasti.testing import FastiServer
from tests.sdk.test_cli import fasti_cli

TASKS = """
import fasti

worker = fasti.Worker()


def price(order):
    raise LookupError(f"no such order:\\n{order}, " + "which was looked for everywhere " * 4)


@worker.on("jobs/async", retry={"max_attempts": 1})
async def one(job):
    price(17)


@worker.on("jobs/thread", retry={"max_attempts": 1})
def other(job):
    try:
        price(18)
    except LookupError as error:
        raise ValueError("bad") from error
    finally:
        worker._stop._loop.call_soon_threadsafe(worker.stop)


@worker.on("jobs/slow", timeout=0.01, retry={"max_attempts": 1})
async def slow(job):
    import asyncio
    await asyncio.sleep(60)
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "logged_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield tmp_path / "logged_tasks.py"
    root.handlers[:], root.level = before
    sys.modules.pop("logged_tasks", None)


async def worked(server: FastiServer, *options: str) -> list[str]:
    async with server.client() as c:
        for name in ("async", "slow", "thread"):
            await c.groups.put("workers", f"jobs/{name}")
            await c.messages.schedule(f"jobs/{name}", "x")
    if not options:
        logging.getLogger().handlers[:] = []  # of pytest: nobody has set up logging
    code, out, err = await fasti_cli("work", "logged_tasks", "--url", server.url, *options)
    assert (code, out) == (0, "")
    return err.splitlines()


async def test_an_event_is_a_line_of_text(server: FastiServer, tasks: Path) -> None:
    lines = await worked(server)
    events = [line for line in lines if not line.startswith("    ")]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ +[a-z_.]+ ", line) for line in events)
    (failed,) = [line for line in events if "jobs/async" in line and "attempt" in line]
    assert "attempt 1 failed: LookupError: no such order:\\n17, which was looked for everywhere" in failed
    assert failed.endswith("everywhere ")
    assert events[-1].endswith("retried 0")
    shown = [line for line in lines if line.startswith("    ")]
    assert set(re.findall('File "(.*?)"', "\n".join(shown))) == {str(tasks)}
    assert any("TimeoutError: not done within 0.01 s" in line for line in shown)


async def test_an_event_is_a_line_of_json(server: FastiServer, tasks: Path) -> None:
    events = [json.loads(line) for line in await worked(server, "--log", "json", "-v")]
    (failed,) = [one for one in events if one.get("topic") == "jobs/thread"]
    assert (failed["level"], failed["logger"], failed["attempt"]) == ("warning", "fasti.worker", 1)
    assert failed["event"].endswith("attempt 1 failed: ValueError: bad")
    assert (len(failed["id"]), failed["exception"].count("Traceback")) == (32, 2)
    assert set(re.findall('File "(.*?)"', failed["exception"])) == {str(tasks)}
    assert all(one["time"].endswith("+00:00") for one in events)


def test_what_others_wrote_forges_no_line() -> None:
    record = logging.LogRecord("fasti.worker", logging.INFO, "", 0, "%s: done", ("a\n2026 INFO b",), None)
    assert TextFormatter("%(name)s %(message)s").format(record) == "fasti.worker a\\n2026 INFO b: done"
    assert json.loads(JsonFormatter().format(record))["event"] == "a\n2026 INFO b: done"
