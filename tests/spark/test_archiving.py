"""Archive and expiry against a real server: killed at each step, two at once, damaged, on a full disk.

The account is the test's own: which payloads were put. After whatever happened each of them is in the archive
once, and no slice was dropped before.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from shards.archives import MARKER, ArchivedFile, manifest_name
from spark import run as run_module
from spark.__main__ import main
from spark.archive import archive
from spark.errors import Refused, SparkError
from spark.job import Job
from spark.manifests import read_archive
from spark.remote import Remote
from spark.run import run
from spark.storage import storage_at
from spark.verify import faults_in
from tests.support.server import ROOT

from .archived import no_lease
from .served import Served, served

HOUR_S = 3_600
KILLED = -signal.SIGKILL


class World:
    """A server on a simulated clock with an archive, and what was put."""

    def __init__(self, server: Served, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.put_so_far: list[str] = []

    def put(self, count: int = 12, step_s: int = 600) -> None:
        """Messages of the next hours, and then these pass."""
        first = len(self.put_so_far)
        names = [f"m{n}" for n in range(first, first + count)]
        items = [
            {"topic": "t", "payload": name, "deliver_in": 60 + n * step_s} for n, name in enumerate(names)
        ]
        self.server.put(items)
        self.put_so_far += names
        self.pass_time(count * step_s + HOUR_S)

    def pass_time(self, seconds: int) -> None:
        self.server.remote.call("POST", "/v1/clock:advance", {"by": f"PT{seconds}S"})

    def run(self, command: str = "archive", *more: str) -> int:
        return main([command, "--server", self.server.url, *more])

    def program(self, job: Job, *module: str, **how: Any) -> int:
        """The program for a job, as a process of its own; its exit code. `module`: else spark itself."""
        command = [sys.executable, "-m", *(module or ("spark",)), job.kind, "--job", job.id]
        command += ["--server", self.server.url]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FASTI_JOB_TOKEN": job.token}
        return subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=60, **how).returncode

    def files(self, table: str = "messages") -> list[ArchivedFile]:
        return read_archive(storage_at(str(self.folder))).files(table)

    def rows(self, table: str = "messages") -> list[dict[str, Any]]:
        tables = [pq.ParquetFile(self.folder / file.path).read() for file in self.files(table)]
        return [row for one in tables for row in one.to_pylist()]

    def archived(self) -> list[str]:
        """Payloads, in the order in which they were put."""
        return sorted((row["payload"].decode() for row in self.rows()), key=lambda name: int(name[1:]))

    def faults(self) -> list[str]:
        return list(faults_in(str(self.folder)))

    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.remote.call("GET", "/v1/jobs")["jobs"]
        return found


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "spark_session", lambda *_: nullcontext(spark))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    settings = {"slices.archive": str(tmp_path / "archive")}
    with served(tmp_path / "data", "--clock", "simulated", settings=settings) as server:
        yield World(server, tmp_path / "archive")


@pytest.mark.short
def test_archived_and_dropped_when_its_time_has_come(world: World) -> None:
    world.put()
    assert world.run() == 0
    assert world.archived() == world.put_so_far
    assert world.faults() == []
    assert world.server.slices(), "retention is not over"
    assert world.run("expire") == 0
    assert world.server.slices()
    world.put()
    world.pass_time(4 * 86_400)
    assert world.run("expire") == 0
    assert world.server.slices() == []
    assert world.archived() == world.put_so_far
    assert world.faults() == []
    assert {job["state"] for job in world.jobs()} == {"done"}


def test_killed_at_each_step_nothing_is_twice_or_missing(world: World) -> None:
    step, code = 0, KILLED
    while code == KILLED:
        world.put()
        job = world.server.remote.create("archive")
        code = world.program(job, "tests.spark.stopping", str(step))
        assert code in (0, KILLED)
        with suppress(Refused):
            world.server.remote.abort(job, "its lease lapses")
        assert world.run() == 0
        assert world.archived() == world.put_so_far
        assert world.faults() == []
        step += 1
    assert step > 8
    world.pass_time(4 * 86_400)
    assert world.run("expire") == 0
    assert world.server.slices() == []
    assert world.archived() == world.put_so_far


def test_the_server_killed_between_record_and_manifest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has recorded the commit: the next job writes the same manifest, and the archive gets no second
    commit."""
    real = run_module.Remote.record

    def record(*given: Any) -> Any:
        found = real(*given)
        world.server.kill()
        recorded.append(found)
        return found

    recorded: list[Any] = []
    world.put()
    monkeypatch.setattr("spark.remote.Remote.record", record)
    monkeypatch.setattr("spark.remote.PAUSES_S", ())
    monkeypatch.setattr("spark.publish.write_manifest", lambda *_: None)
    assert world.run() == 3
    monkeypatch.undo()
    assert world.archived() == []
    world.server.restart()
    world.pass_time(HOUR_S)
    assert world.run() == 0
    assert read_archive(storage_at(str(world.folder))).commits[0] == recorded[0]
    assert world.archived() == world.put_so_far
    assert world.faults() == []


def test_the_server_killed_at_each_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has the call, and after it has done what it was asked for."""
    real, steps = Remote.ask, 0

    def ask(remote: Remote, kind: Any, method: str, *given: Any) -> Any:
        nonlocal left
        for is_after in (False, True):
            found = real(remote, kind, method, *given) if is_after else None
            left -= method == "POST"
            if left == 0:
                world.server.kill()
        return found

    monkeypatch.setattr("spark.remote.PAUSES_S", ())
    while world.server.process.is_running:
        world.put()
        steps, left = steps + 1, steps + 1
        with monkeypatch.context() as patched:
            patched.setattr(Remote, "ask", ask)
            code = world.run()
        if not world.server.process.is_running:
            assert code == 3
            world.server.restart()
            world.put()  # a start goes on where the stored horizon was
            assert world.run() == 0
            assert world.archived() == world.put_so_far
            assert world.faults() == []
        elif left > 0:
            break
    assert steps > 6


def test_an_archive_that_is_days_behind_catches_up(world: World) -> None:
    world.put(count=24, step_s=12 * HOUR_S)
    assert world.run() == 0
    commits = read_archive(storage_at(str(world.folder))).commits
    assert len(commits) >= 3
    assert max(one.end_ms - one.start_ms for one in commits) <= 5 * 86_400_000
    assert world.archived() == world.put_so_far
    assert world.faults() == []
    assert world.run("expire") == 0
    assert world.archived() == world.put_so_far
    kept = sum(piece["count"] for piece in world.server.slices())
    assert kept < len(world.put_so_far)


def test_another_job_is_in_the_way_and_the_slow_one_is_refused(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.put()
    slow = world.server.remote.create("archive")
    assert world.run() == 4
    assert "job-active" in capsys.readouterr().err
    storage = storage_at(str(world.folder))
    report = archive(slow, storage, no_lease())
    world.server.remote.abort(slow, "its lease lapses")
    assert world.run() == 0
    assert world.archived() == world.put_so_far
    with pytest.raises(Refused):
        world.server.remote.record(slow, report)
    with pytest.raises(SparkError):
        run(world.server.remote, slow, None)
    assert world.archived() == world.put_so_far
    assert {line.partition(" ")[2] for line in world.faults()} <= {"belongs to no commit"}
    assert world.run() == 0
    assert world.archived() == world.put_so_far


def test_what_is_damaged_is_written_again_before_the_drop(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.put()
    assert world.run() == 0
    storage = storage_at(str(world.folder))
    (file,) = read_archive(storage).files()
    path = world.folder / file.path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (world.folder / manifest_name(1)).unlink()
    world.pass_time(4 * 86_400)
    slices = world.server.slices()
    job = world.server.remote.create("expire")
    with pytest.raises(SparkError, match="nothing dropped: the archive is damaged"):
        run(world.server.remote, job, None)
    assert world.server.state(job.id) == "aborted"
    assert world.server.slices() == slices
    assert world.run("expire") == 0
    assert world.server.slices() == []
    assert world.archived() == world.put_so_far
    kinds = [one.kind for one in read_archive(storage).commits]
    assert "again" in kinds


def test_a_full_disk_leaves_nothing_half_done(world: World) -> None:
    world.put(40)

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))

    assert world.program(world.server.remote.create("archive"), preexec_fn=small) == 1
    (job,) = world.jobs()
    assert job["state"] == "aborted"
    assert "File too large" in job["detail"]
    assert not list(world.folder.rglob("*.parquet"))
    assert not list(world.folder.rglob("*.tmp"))
    assert world.run() == 0
    assert world.archived() == world.put_so_far


def test_another_folder_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """As when it is not mounted, or each machine has its own."""
    world.put()
    assert world.run() == 0
    world.put()
    elsewhere = world.folder.with_name("elsewhere")
    world.folder.rename(elsewhere)
    assert world.run() == 1
    assert f"{world.folder} has no {MARKER}" in capsys.readouterr().err.splitlines()[-1]
    with suppress(FileNotFoundError):
        shutil.rmtree(world.folder)
    elsewhere.rename(world.folder)
    assert world.run() == 0
    assert world.archived() == world.put_so_far


def test_a_restored_server_does_not_write_into_the_archive(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.put()
    assert world.run() == 0
    world.server.kill()
    shutil.copytree(world.server.data, tmp_path / "older")
    world.server.restart()
    world.put()
    assert world.run() == 0
    world.server.kill()
    shutil.rmtree(world.server.data)
    (tmp_path / "older").rename(world.server.data)
    world.server.restart()
    world.pass_time(HOUR_S)
    world.put()
    assert world.run() == 1
    assert "ahead of this timeline" in capsys.readouterr().err


def test_ends_of_deliveries_go_with_their_time(world: World) -> None:
    """Also of messages that were archived before: what counts is when the delivery ended."""
    remote = world.server.remote
    remote.call("PUT", "/v1/groups/workers", {"filter": "t", "keep": "all"})
    world.put()
    assert world.run() == 0
    leased = remote.call("POST", "/v1/groups/workers/messages:lease", {"max": 8})["messages"]
    for leases in ([one["lease_id"] for one in leased[:5]], [one["lease_id"] for one in leased[5:]]):
        remote.call("POST", "/v1/groups/workers/messages:ack", {"lease_ids": leases})
        world.put()
        assert world.run() == 0
    rows = world.rows("deliveries")
    assert [(row["place"], row["end"]) for row in rows] == [("workers", "done")] * 8
    assert {row["id"] for row in rows} == {one["id"] for one in leased}
    numbers = [row["number"] for row in rows]
    assert numbers == sorted({*numbers})
    counts = world.rows("ends")
    assert {(row["place"], row["end"]) for row in counts} == {("workers", "done")}
    assert sorted(row["count"] for row in counts) == [3, 5]


def test_a_closed_day_is_compacted(world: World, shared_session: None) -> None:
    for _ in range(3):
        world.put()
        assert world.run() == 0
    world.pass_time(86_400)
    world.put()
    assert world.run() == 0
    before = len(world.files())
    assert world.run("compact") == 0
    assert len(world.files()) < before
    assert world.archived() == world.put_so_far
    assert world.faults() == []
    assert world.run("compact") == 0
    world.pass_time(4 * 86_400)
    assert world.run("expire") == 0
    assert world.server.slices() == []
    assert world.archived() == world.put_so_far


def files_by_day(world: World) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in world.files():
        found.setdefault(file.path.partition("/")[0], []).append(file.path)
    return found


def test_a_backfill_goes_through_spark(
    world: World, shared_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tasks, of which each has its own files."""
    monkeypatch.setattr("spark.archive.ROWS_MAX", 30)
    monkeypatch.setattr("spark.tasks.TASK_ROWS", 20)
    world.put(100)
    assert world.run("archive", "--master", "local[2]") == 0
    (job,) = world.jobs()
    assert job["state"] == "done"
    assert len({file.path.rpartition("-")[2] for file in world.files()}) > 3
    assert world.archived() == world.put_so_far
    assert world.faults() == []
    day, paths = max(files_by_day(world).items(), key=lambda one: len(one[1]))
    assert len(paths) > 1, "one of several of that day is lost"
    (world.folder / paths[0]).unlink()
    world.pass_time(4 * 86_400)
    assert world.run("expire") == 1
    assert world.run() == 0
    assert len(files_by_day(world)[day]) == 1
    assert world.archived() == world.put_so_far
    assert world.run("expire") == 0
    assert world.server.slices() == []
