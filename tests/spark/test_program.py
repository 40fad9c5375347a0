"""The real thing: `python -m spark` as a process of its own, told to end. Killed: test_large.py."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark.job import Job
from tests.support.server import ROOT

from .served import Served, far, served
from .test_end_to_end import COUNT, overfull

PARTS = 4
PATIENCE_S = 200.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "data") as one:
        yield one


@pytest.fixture
def job(server: Served) -> Job:
    server.put(far(COUNT))
    return server.remote.create("split", slice=overfull(server), parts=PARTS)


@contextmanager
def program(server: Served, job: Job, held: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """It has a job; whoever has the token goes on with one that another began.

    `held`: it stops while it reads, and makes this file.
    """
    environment = {**os.environ, "FASTI_JOB_TOKEN": job.token, "PYTHONPATH": str(ROOT)}
    module = ["tests.spark.held", str(held)] if held else ["spark"]
    command = [sys.executable, "-m", *module, "split", "--server", server.url, "--job", job.id]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_java(child: subprocess.Popen[str]) -> bool:
    """Spark is starting: nothing has been planned."""
    return bool(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())


def test_a_signal_aborts_the_job(server: Served, job: Job, tmp_path: Path) -> None:
    with program(server, job, tmp_path / "reading") as child:
        wait_until((tmp_path / "reading").exists)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 1
    assert "ended by a signal" in errors
    ended = server.remote.call("GET", f"/v1/jobs/{job.id}")
    assert (ended["state"], ended["detail"]) == ("aborted", "the job was told to end")
    assert server.payloads() == [f"m{n}" for n in range(COUNT)]
