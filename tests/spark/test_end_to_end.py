"""The jobs against a real server: during traffic, dead at each step, run twice."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark import run as run_module
from spark import split as split_module
from spark.__main__ import main
from spark.errors import LeaseLost, Refused, SparkError
from spark.job import Job
from spark.lease import Lease
from spark.plan import WITHIN, cut_points
from spark.remote import Remote
from spark.run import run, words_of
from spark.split import counted, sketches

from .served import Served, far, served

COUNT = 300


@pytest.fixture(autouse=True)
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs use the session of the tests."""
    monkeypatch.setattr(run_module, "spark_session", lambda *_: nullcontext(spark))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "data") as one:
        yield one


def overfull(server: Served) -> str:
    (piece,) = [one for one in server.slices() if one["count"] > one["split_above"]]
    return str(piece["start"])


@pytest.mark.short
def test_a_split_during_traffic(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the cut and after it messages come, are cancelled and moved: all ends up right."""
    ids = server.put(far(COUNT))
    start = overfull(server)
    gone: set[str] = set()

    def change(first: int) -> None:
        server.put([{**one, "payload": f"{one['payload']}-{first}"} for one in far(COUNT)[first::50]])
        for n in range(first, COUNT, 50):
            server.remote.call("DELETE", f"/v1/messages/{ids[n]}")
            gone.add(f"m{n}")
        later = far(COUNT)[first + 30]["deliver_in"]
        server.remote.call("PATCH", f"/v1/messages/{ids[first + 20]}", {"deliver_in": later})

    during(monkeypatch, "sketches", lambda: change(3))
    during(monkeypatch, "counted", lambda: change(7))
    said = run(server.remote, server.remote.create("split", slice=start), None)
    assert "rows cut into 6 slices" in said
    pieces = server.slices()
    assert len(pieces) == 6
    counts = [piece["live"] for piece in pieces]
    assert max(counts) <= WITHIN * min(counts)
    expected = {f"m{n}" for n in range(COUNT)} - gone
    expected |= {f"m{n}-{first}" for first in (3, 7) for n in range(first, COUNT, 50)}
    assert sorted(server.payloads()) == sorted(expected)
    assert sum(counts) == len(expected)
    for n in (3, 7):
        assert server.remote.call("GET", f"/v1/messages/{ids[n]}")["state"] == "cancelled"
        assert server.remote.call("GET", f"/v1/messages/{ids[n + 20]}")["payload"] == f"m{n + 20}"
    assert not list((server.data / "jobs").glob("*"))
    server.kill()
    server.restart()
    assert sorted(server.payloads()) == sorted(expected)


def during(monkeypatch: pytest.MonkeyPatch, stage: str, act: Callable[[], None]) -> None:
    """Act while a stage runs: after Spark has read, before the server hears of it."""
    real = getattr(split_module, stage)

    def staged(*arguments: Any) -> Any:
        found = real(*arguments)
        act()
        return found

    monkeypatch.setattr(split_module, stage, staged)


def plan(server: Served, spark: SparkSession, job: Job) -> None:
    sketches(spark, job)


def count(server: Served, spark: SparkSession, job: Job) -> None:
    found = sketches(spark, job)
    counted(spark, job, found, cut_points(found, 3))


@pytest.mark.parametrize(("upto", "is_named"), [(plan, False), (count, True)])
def test_a_split_that_died_with_its_server_is_finished_by_the_next(
    server: Served, spark: SparkSession, upto: Callable[[Served, SparkSession, Job], None], is_named: bool
) -> None:
    server.put(far(COUNT))
    start = overfull(server)
    upto(server, spark, server.remote.create("split", slice=start))
    server.kill()
    server.restart()
    assert server.payloads() == [f"m{n}" for n in range(COUNT)]
    which = ["--slice", start, "--parts", "5"] if is_named else ["--overfull"]
    assert main(["split", "--server", server.url, *which]) == 0
    pieces = server.slices()
    assert sum(piece["count"] for piece in pieces) == COUNT
    assert len(pieces) == 5 if is_named else len(pieces) >= 3
    assert server.payloads() == [f"m{n}" for n in range(COUNT)]
    assert not list((server.data / "jobs").glob("*"))
    assert main(["split", "--server", server.url, "--overfull"]) == 0


def test_a_job_that_fails_tells_the_server_why(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put(far(COUNT))

    def fail(*_: object) -> None:
        raise RuntimeError("no more\n  shards.errors.Corrupt: table messages, after key 00: flipped\n")

    monkeypatch.setattr(split_module, "counted", fail)
    job = server.remote.create("split", slice=overfull(server))
    with pytest.raises(SparkError, match="table messages, after key 00: flipped"):
        run(server.remote, job, None)
    ended = server.remote.call("GET", f"/v1/jobs/{job.id}")
    assert (ended["state"], ended["detail"]) == ("aborted", "table messages, after key 00: flipped")


def test_a_signal_is_told_whatever_fails_after_it(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put(far(COUNT))

    def cut_off(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("Answer from Java side is empty")

    monkeypatch.setattr(split_module, "counted", cut_off)
    job = server.remote.create("split", slice=overfull(server))
    with pytest.raises(KeyboardInterrupt):
        run(server.remote, job, None)
    ended = server.remote.call("GET", f"/v1/jobs/{job.id}")
    assert (ended["state"], ended["detail"]) == ("aborted", "the job was told to end")


def test_what_was_counted_wrong_is_refused(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put(far(COUNT))
    job = server.remote.create("split", slice=overfull(server))
    real = split_module.counted

    def wrong(*arguments: Any) -> Any:
        first, *others = real(*arguments)
        return [first._replace(rows=first.rows - 1), *others]

    monkeypatch.setattr(split_module, "counted", wrong)
    with pytest.raises(Refused, match=r"bad-manifest.*299 rows in all pieces, the slice had 300"):
        run(server.remote, job, None)
    assert server.payloads() == [f"m{n}" for n in range(COUNT)]
    assert server.state(job.id) == "aborted"


def test_one_instant_is_left_alone(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    at = "2099-01-01T00:00:00Z"
    at = server.remote.call("POST", "/v1/messages", far(1)[0])["deliver_at"]
    server.put([{"topic": "t", "payload": f"m{n}", "deliver_at": at} for n in range(200)])
    assert main(["split", "--server", server.url, "--overfull"]) == 0
    assert "due in the same millisecond" in capsys.readouterr().out
    assert len(server.slices()) == 1


def test_exit_codes(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    server.put([{"topic": "t", "payload": "soon", "deliver_in": 5}])
    (piece,) = server.slices()
    with pytest.raises(SystemExit) as usage:
        main(["split", "--server", server.url])
    assert usage.value.code == 2
    assert main(["split", "--server", "http://127.0.0.1:9", "--overfull"]) == 3
    assert main(["split", "--server", server.url, "--slice", piece["start"]]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("fasti-spark: too-near: ")
    assert main(["split", "--server", server.url, "--slice", "17"]) == 1
    assert main(["split", "--server", server.url, "--overfull"]) == 0
    assert main(["expire", "--server", server.url]) == 0
    assert "no slice is behind retention" in capsys.readouterr().out


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Served]:
    """A server on a simulated clock whose messages are all behind retention."""
    with served(tmp_path / "data", "--clock", "simulated") as one:
        one.put([{"topic": "t", "payload": f"m{n}", "deliver_in": 60 + n * 1_800} for n in range(60)])
        one.remote.call("POST", "/v1/clock:advance", {"by": "P4D"})
        yield one


def test_an_expiry_drops(past: Served) -> None:
    job = past.remote.create("expire")
    assert "with 60 rows dropped" in run(past.remote, job, None)
    assert past.state(job.id) == "done"


def test_a_lost_lease_ends_the_work(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put(far(COUNT))
    job = server.remote.create("split", slice=overfull(server))
    monkeypatch.setattr(run_module, "Lease", lambda *given: Lease(*given, every_s=0.05))

    def stuck(*_: object) -> None:
        server.remote.abort(job, "somebody else")
        time.sleep(60)

    monkeypatch.setattr(split_module, "counted", stuck)
    with pytest.raises(LeaseLost, match="is lost"):
        run(server.remote, job, None)
    assert server.state(job.id) == "aborted"


def test_words_are_those_of_the_task() -> None:
    text = "An exception\nTraceback:\n  File x\nspark.errors.NotAStore: /x is none\n\nJVM stacktrace:\nx"
    assert words_of(RuntimeError(text)) == "/x is none"
    assert words_of(RuntimeError("")) == "RuntimeError"
    text = "calling o5.x.\n: org.apache.spark.E: Task 0, most recent failure: Lost task 0.3 (TID 3): "
    assert words_of(RuntimeError(f"{text}java.io.IOException: no space\n\tat x")) == "IOException: no space"
    assert Remote("http://127.0.0.1:9/").url == "http://127.0.0.1:9"
