"""The archive's commits over HTTP: archive, expire and compact jobs, with a child that is played by calls."""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.delivery.retention import Retention
from server.engine import archive as archive_module
from server.engine.clock import SimulatedClock
from server.settings.config import Config, Slices
from server.settings.times import format_ms
from shards import archived
from shards.archives import QUARTER_MS, file_name
from shards.expiry import expire
from shards.record import is_stub
from shards.verify import verify_tables
from tests.support.mover import counted
from timeline.position import at_of, before

from ..conftest import DAY_MS, MINUTE_MS, START_MS, Running, running

URL = "s3://bucket/archive"
FIRST = START_MS + 20 * MINUTE_MS
QUARTER = FIRST - FIRST % QUARTER_MS
DAY = "2026-11-21"


@pytest.fixture
def ram() -> None:
    """Jobs read checkpoints."""


@pytest.fixture
def config() -> Config:
    return replace(Config(), slices=replace(Slices(), archive=URL, retention_ms=DAY_MS))


class Child:
    """Calls as the job's program makes them; `published`: the manifests in the archive."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.published: dict[int, Any] = {}

    async def post(self, path: str, body: object, status: int = 200) -> Any:
        return (await self.server.call("POST", path, body, status=status)).body

    async def create(self, kind: str, status: int = 201, **wish: object) -> Any:
        return await self.post("/v1/jobs", {"kind": kind, "run": "caller", **wish}, status)

    async def commit(self, job: Any, status: int = 200, **result: object) -> Any:
        return await self.post(f"/v1/jobs/{job['id']}:commit", {"token": job["token"], **result}, status)

    async def look(self, job: Any) -> Any:
        return (await self.server.call("GET", f"/v1/jobs/{job['id']}")).body

    async def put(self, at_ms: int, count: int = 1) -> list[str]:
        members = {"deliver_at": format_ms(at_ms)}
        return [await self.server.schedule("t/x", f"m{number}", **members) for number in range(count)]

    async def archive_more(self, count: int) -> None:
        """So many commits, of a message each at least."""
        for _ in range(count):
            at_ms = self.server.clock.now_ms + MINUTE_MS
            await self.put(at_ms)
            await self.pass_to(max(at_ms, FIRST) + 2 * QUARTER_MS)
            await self.archive()

    async def pass_to(self, at_ms: int) -> None:
        await self.server.pass_time(at_ms - self.server.clock.now_ms)
        await self.server.pass_time(1)

    def report(self, job: Any, end_ms: int = 0) -> dict[str, Any]:
        """What a job has written of the rows that are there."""
        kind = "again" if job.get("again") else "append"
        start_ms, end_ms = job["from_ms"], end_ms or job["to_ms"]
        rows, live, days = Counter[Any](), Counter[Any](), Counter[str]()
        core = self.server.app.core
        for place, _, value in core.reader.read(before(start_ms), before(end_ms)):
            at_ms = at_of(place)
            piece = core.directory.find(at_ms)
            assert piece is not None
            span = max(at_ms - at_ms % QUARTER_MS, piece.start_ms), *piece.home
            rows[span] += 1
            live[span] += not is_stub(value)
            days[DAY] += not is_stub(value)
        spans = [
            {
                "slice_ms": slice_ms,
                "generation": generation,
                "start_ms": at_ms,
                "end_ms": min(at_ms - at_ms % QUARTER_MS + QUARTER_MS, core.directory.get(slice_ms).end_ms),
                "rows": rows[at_ms, slice_ms, generation],
                "archived": live[at_ms, slice_ms, generation],
            }
            for at_ms, slice_ms, generation in sorted(rows)
        ]
        files = [file_of(job, "messages", day, count, 0) for day, count in sorted(days.items())]
        replaces = [path for one in job.get("again", ()) for path in one["paths"]]
        covers = {"start_ms": start_ms, "end_ms": end_ms}
        return {"kind": kind, **covers, "spans": spans, "files": files, "replaces": replaces}

    async def publish(self, job: Any, status: int = 200) -> Any:
        manifest = (await self.look(job))["manifest"]
        self.published[manifest["number"]] = manifest
        return await self.commit(job, status, published=manifest["number"])

    async def archive(self, end_ms: int = 0) -> Any:
        """A whole job."""
        job = await self.create("archive")
        await self.commit(job, archived=self.report(job, end_ms))
        return await self.publish(job)

    async def expire(self, status: int = 200) -> Any:
        job = await self.create("expire")
        return await self.commit(job, status, slices=self.read_back(job))

    def read_back(self, job: Any) -> list[dict[str, Any]]:
        for manifest in job["manifests"]:
            assert self.published[manifest["number"]] == manifest
        spans = {
            (span["slice_ms"], span["generation"], span["start_ms"]): span
            for manifest in job["manifests"]
            for span in manifest.get("spans", ())
        }
        return [
            {
                "start_ms": piece["start_ms"],
                "generation": piece["generation"],
                **{
                    name: sum(span[name] for key, span in spans.items() if key[0] == piece["start_ms"])
                    for name in ("rows", "archived")
                },
            }
            for piece in job["slices"]
        ]


def file_of(job: Any, table: str, day: str, rows: int, index: int, **more: object) -> dict[str, Any]:
    path = file_name(table, day, job["number"], job["id"], index)
    sum_ = hashlib.sha256(path.encode()).hexdigest()
    return {"path": path, "rows": rows, "bytes": 100, "sha256": sum_, "table": table, **more}


@pytest.fixture
async def child(server: Running) -> AsyncIterator[Child]:
    child = Child(server)
    await child.put(FIRST, 2)
    yield child
    assert verify_tables(server.store) == []


def row_of(server: Running) -> archived.ArchiveRow:
    return server.app.expiries.archiving.archive.row


async def test_a_quarter_is_archived_when_it_has_passed_and_then_dropped(child: Child) -> None:
    server = child.server
    assert (await child.create("archive", 409))["type"] == "/problems/nothing-to-do"
    await child.pass_to(QUARTER + QUARTER_MS + 4 * MINUTE_MS)
    assert (await child.create("archive", 409))["type"] == "/problems/nothing-to-do"
    await child.pass_to(QUARTER + QUARTER_MS + 5 * MINUTE_MS)
    assert server.app.expiries.archiving.archive.lag_s == pytest.approx(900, abs=1)
    job = await child.create("archive")
    assert (job["state"], job["archive"], job["number"], job["last"]) == ("archiving", URL, 1, 0)
    assert (job["to_ms"], job["unpublished"]) == (QUARTER + QUARTER_MS, [])
    assert job["from_ms"] % QUARTER_MS == 0
    assert [piece["count"] for piece in job["slices"]] == [2]
    assert job["checkpoint"].startswith("file://")
    committed = await child.commit(job, archived=child.report(job))
    assert (committed["state"], committed["manifest"]["number"]) == ("publishing", 1)
    assert committed["manifest"]["timeline"] == job["timeline"]
    assert (await server.call("GET", "/v1/archive")).body == {"manifests": [], "next": 0}
    ended = await child.publish(job)
    assert (ended["state"], ended["rows"]) == ("done", 2)
    page = (await server.call("GET", "/v1/archive?since=0")).body
    assert page == {"manifests": [child.published[1]], "next": 1}
    assert (await server.call("GET", "/v1/archive?since=1")).body == {"manifests": [], "next": 1}
    assert (await child.create("expire", 409))["type"] == "/problems/nothing-to-expire"
    await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    ended = await child.expire()
    assert (ended["state"], ended["rows"]) == ("done", 2)
    assert not len(server.app.core.directory)


async def test_an_end_of_a_delivery_may_be_written_a_moment_later(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    at_once = replace(config, slices=replace(config.slices, archive_after_ms=0))
    async with running(tmp_path / "data", at_once, clock) as server:
        child = Child(server)
        await child.put(FIRST)
        await child.pass_to(QUARTER + QUARTER_MS + 9_000)
        assert not server.app.expiries.archiving.archive.find()
        await child.pass_to(QUARTER + QUARTER_MS + 10_000)
        assert server.app.expiries.archiving.archive.find()


async def test_the_first_commit_begins_with_the_first_slice(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    """Rows in front of the first one that can be read are named as damaged only if they are covered."""
    async with running(tmp_path / "data", config, clock) as server:
        child = Child(server)
        await child.put(FIRST + 4 * DAY_MS)
        (piece,) = server.app.core.directory
        await child.pass_to(FIRST + 5 * DAY_MS)
        job = await child.create("archive")
        assert job["from_ms"] == piece.start_ms < FIRST + 4 * DAY_MS - QUARTER_MS


async def test_nothing_is_dropped_that_is_not_archived(child: Child) -> None:
    server = child.server
    await child.put(QUARTER + QUARTER_MS + MINUTE_MS, 3)
    await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    await server.app.housekeeping.run_due()
    assert len(server.app.core.directory) == 2
    refused = await child.create("expire", 409)
    assert refused["type"] == "/problems/nothing-to-expire"
    job = await child.create("archive")
    report = child.report(job, QUARTER + QUARTER_MS)
    await child.commit(job, archived=report)
    assert (await child.create("expire", 409))["type"] == "/problems/nothing-to-expire", "it is not published"
    await child.publish(job)
    ended = await child.expire()
    assert ended["rows"] == 2
    assert len(server.app.core.directory) == 1
    await child.archive()
    assert [one["start_ms"] for one in child.published.values()] == [report["start_ms"], QUARTER + QUARTER_MS]
    assert (await child.expire())["rows"] == 3


async def test_stubs_and_the_slices_of_one_quarter(child: Child) -> None:
    server = child.server
    gone, _ = await child.put(FIRST + 1, 2)
    await server.call("DELETE", f"/v1/messages/{gone}", status=204)
    await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    assert (await child.archive())["rows"] == 3
    assert (await child.expire())["rows"] == 4


async def test_what_a_commit_may_not_say(child: Child) -> None:
    await child.pass_to(QUARTER + 4 * QUARTER_MS)
    job = await child.create("archive")
    right = child.report(job)
    (span,), (file,) = right["spans"], right["files"]
    for wrong, field in (
        ({"kind": "again"}, "kind"),
        ({"start_ms": right["start_ms"] + QUARTER_MS}, "end_ms"),
        ({"end_ms": right["end_ms"] + QUARTER_MS}, "end_ms"),
        ({"end_ms": right["end_ms"] - 1}, "end_ms"),
        ({"spans": []}, "files"),
        ({"spans": [span, span]}, "spans"),
        ({"spans": [{**span, "end_ms": span["end_ms"] + 1}]}, "spans"),
        ({"spans": [{**span, "archived": 3}]}, "spans"),
        ({"spans": [{**span, "generation": 7}]}, "spans"),
        ({"files": []}, "files"),
        ({"files": [file, file]}, "files"),
        ({"files": [{**file, "rows": 1}]}, "files"),
        ({"files": [{**file, "path": "../x"}]}, "files"),
        ({"files": [{**file, "path": file["path"].replace(job["id"][:8], "0" * 8)}]}, "files"),
        ({"files": [file_of(job, "messages", "a/../../bc", 2, 0)]}, "files"),
        ({"files": [file_of(job, "messages", "2026-13-01", 2, 0)]}, "files"),
        ({"replaces": ["date=2026-11-21/x.parquet"]}, "replaces"),
    ):
        refused = await child.commit(job, 422, archived={**right, **wrong})
        assert refused["type"] == "/problems/bad-manifest", wrong
        assert refused["errors"][0]["check"] == field, wrong
    await child.commit(job, 422, archived={**right, "kind": "append", "end_ms": -1})
    await child.commit(job, 422, archived=right, published=1)
    await child.commit(job, 409, published=1)
    await child.commit({**job, "token": "0" * 32}, 409, archived=right)
    await child.commit(job, archived=right)
    await child.commit(job, 409, archived=right)
    await child.commit(job, 409, published=2)
    await child.publish(job)
    assert row_of(child.server).published == 1


async def test_one_job_at_a_time_has_the_archive(child: Child) -> None:
    await child.server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    job = await child.create("archive")
    for kind in ("archive", "compact", "expire"):
        refused = await child.create(kind, 409)
        assert refused["type"] in (
            "/problems/job-active",
            "/problems/nothing-to-do",
            "/problems/nothing-to-expire",
        )
    assert (await child.create("archive", 409))["type"] == "/problems/job-active"
    await child.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"]})
    await child.archive()


async def test_a_start_between_the_two_steps_makes_no_second_commit(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    async with running(tmp_path / "data", config, clock) as server:
        child = Child(server)
        await child.put(FIRST)
        await child.pass_to(QUARTER + 2 * QUARTER_MS)
        job = await child.create("archive")
        recorded = (await child.commit(job, archived=child.report(job)))["manifest"]
    async with running(tmp_path / "data", config, clock) as server:
        child.server = server
        assert (await child.look(job))["detail"] == "the server restarted"
        await child.commit(job, 409, published=1)
        assert (await server.call("GET", "/v1/archive")).body["manifests"] == []
        after = await child.create("archive")
        assert after["unpublished"] == [recorded]
        assert (after["from_ms"], after["number"], after["last"]) == (after["to_ms"], 2, 1)
        ended = await child.commit(after, published=1)
        assert ended["state"] == "done"
        assert (await server.call("GET", "/v1/archive")).body["manifests"] == [recorded]
        assert (await child.create("archive", 409))["type"] == "/problems/nothing-to-do"


async def test_a_store_that_fails_at_the_commit(child: Child) -> None:
    server = child.server
    await child.pass_to(QUARTER + 2 * QUARTER_MS)
    job = await child.create("archive")
    server.store.loses_next = True
    await child.commit(job, 503, archived=child.report(job))
    await server.writable()
    assert (await child.commit(job, 409, archived=child.report(job)))["type"] == "/problems/wrong-state"
    await child.archive()
    assert row_of(server).last == 1


async def test_what_was_unpublished_goes_first_and_then_more(child: Child) -> None:
    await child.pass_to(QUARTER + 2 * QUARTER_MS)
    job = await child.create("archive")
    await child.commit(job, archived=child.report(job))
    await child.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"]})
    await child.put(QUARTER + 3 * QUARTER_MS)
    await child.pass_to(QUARTER + 5 * QUARTER_MS)
    job = await child.create("archive")
    assert [one["number"] for one in job["unpublished"]] == [1]
    assert job["from_ms"] == QUARTER + QUARTER_MS * 1 + QUARTER_MS - QUARTER_MS
    still = await child.commit(job, published=1)
    assert still["state"] == "archiving"
    await child.commit(job, archived=child.report(job))
    assert (await child.publish(job))["state"] == "done"
    assert row_of(child.server).published == 2


async def test_a_long_silence_and_a_long_time_are_cut_into_jobs(child: Child) -> None:
    server = child.server
    last = QUARTER + 30 * DAY_MS
    await child.put(last)
    await server.call("POST", "/v1/clock:advance", {"by": "P40D"})
    await child.archive()
    (first,) = child.published.values()
    assert first["end_ms"] == QUARTER + 4 * DAY_MS
    await child.archive()
    assert child.published[2]["end_ms"] == last - last % QUARTER_MS + 4 * DAY_MS
    assert (await child.create("archive", 409))["type"] == "/problems/nothing-to-do"


async def test_another_archive_begins_anew(tmp_path: Path, config: Config, clock: SimulatedClock) -> None:
    async with running(tmp_path / "data", config, clock) as server:
        child = Child(server)
        await child.put(FIRST)
        await child.pass_to(QUARTER + 2 * QUARTER_MS)
        await child.archive()
        timeline = child.published[1]["timeline"]
    other = replace(config, slices=replace(config.slices, archive="gs://other"))
    async with running(tmp_path / "data", other, clock) as server:
        child = Child(server)
        assert server.app.expiries.archiving.archive.is_due("gs://other")
        job = await child.create("archive")
        assert (job["number"], job["last"], job["timeline"]) == (2, 0, timeline)
        await child.commit(job, archived=child.report(job))
        await child.publish(job)
        gone = await server.call("GET", "/v1/archive?since=0", status=422)
        assert gone.body["errors"][0]["field"] == "since"
        page = (await server.call("GET", "/v1/archive?since=1")).body
        assert [one["number"] for one in page["manifests"]] == [2]


# -- damage


async def test_damaged_files_are_written_again_and_only_then_dropped(child: Child) -> None:
    server = child.server
    await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    await child.archive()
    (file,) = child.published[1]["files"]
    job = await child.create("expire")
    faults = [
        {"path": file["path"], "detail": "is missing"},
        {"path": "_manifests/0000000001.json", "detail": "x"},
    ]
    ended = await child.commit(job, faults=faults)
    assert (ended["state"], "is missing" in ended["detail"]) == ("aborted", True)
    assert len(server.app.core.directory) == 1
    again = await child.create("archive")
    assert again["again"] == [{"number": 1, "paths": [file["path"]]}]
    assert [one["number"] for one in again["unpublished"]] == [1]
    assert (again["from_ms"], again["to_ms"]) == (
        child.published[1]["start_ms"],
        child.published[1]["end_ms"],
    )
    report = child.report(again)
    refused = await child.commit(again, 422, archived={**report, "spans": []})
    assert refused["errors"][0]["check"] == "spans"
    await child.commit(again, archived=report)
    await child.publish(again)
    assert child.published[2]["replaces"] == [file["path"]]
    assert (await child.create("archive", 409))["type"] == "/problems/nothing-to-do"
    job = await child.create("expire")
    assert [one["number"] for one in job["manifests"]] == [1, 2]
    assert (await child.commit(job, slices=child.read_back(job)))["rows"] == 2


async def test_files_of_a_day_are_written_again_together(child: Child) -> None:
    """A backfill has several. To replace only the damaged one would double the rows of the others."""
    await child.server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    job = await child.create("archive")
    report = child.report(job)
    files = [file_of(job, "messages", DAY, 1, index) for index in range(2)]
    await child.commit(job, archived={**report, "files": files})
    await child.publish(job)
    paths = [file["path"] for file in files]
    job = await child.create("expire")
    await child.commit(job, faults=[{"path": paths[1], "detail": "is missing"}])
    again = await child.create("archive")
    assert again["again"] == [{"number": 1, "paths": paths}]
    await child.commit(again, 422, archived={**child.report(again), "replaces": paths[1:]})
    await child.commit(again, archived=child.report(again))
    await child.publish(again)
    assert (await child.expire())["rows"] == 2


async def test_what_is_left_of_a_quarter_is_written_again(
    tmp_path: Path, config: Config, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A split has made slices that are narrower, and the first of them is dropped already."""
    async with running(tmp_path / "data", config, clock) as server:
        child = Child(server)
        first = QUARTER + 4 * DAY_MS
        cut = first + 5 * MINUTE_MS
        await child.put(first + MINUTE_MS)
        await child.put(cut + MINUTE_MS, 2)
        (piece,) = server.app.core.directory
        split = await child.create("split", slice=piece.start_ms)
        await child.commit(split, cuts=[cut], pieces=counted(split, [cut]))
        await child.pass_to(piece.end_ms + QUARTER_MS)
        await child.archive()
        await server.app.ask(lambda commit: expire(commit, [*server.app.core.directory][:1]))
        await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
        job = await child.create("expire")
        path = child.published[1]["files"][0]["path"]
        await child.commit(job, faults=[{"path": path, "detail": "is missing"}])
        again = await child.create("archive")
        assert again["from_ms"] == cut
        assert f"{path} cannot be written again as a whole: rows before {cut}" in caplog.text
        await child.commit(again, archived=child.report(again))
        await child.publish(again)
        assert (await child.expire())["rows"] == 2


async def test_rows_that_could_not_be_read_are_named_and_hold_nothing(child: Child) -> None:
    await child.server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    job = await child.create("archive")
    report = child.report(job)
    (span,), (file,) = report["spans"], report["files"]
    short = {"spans": [{**span, "rows": 1, "archived": 1}], "files": [{**file, "rows": 1}]}
    await child.commit(job, archived={**report, **short})
    await child.publish(job)
    refused = await child.expire(422)
    assert refused["type"] == "/problems/bad-manifest"
    assert "1 of the 2 rows" in refused["detail"]


async def test_damaged_rows(child: Child) -> None:
    await child.server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    job = await child.create("archive")
    report = child.report(job)
    (span,), (file,) = report["spans"], report["files"]
    damaged = [{"start": f"{before(span['start_ms']):024x}", "end": f"{before(span['end_ms']):024x}"}]
    short = {
        "spans": [{**span, "rows": 1, "archived": 1, "damaged": damaged}],
        "files": [{**file, "rows": 1}],
    }
    await child.commit(job, archived={**report, **short})
    await child.publish(job)
    assert (await child.expire())["state"] == "done"


async def test_an_expiry_that_has_not_read_everything_back(child: Child) -> None:
    await child.server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    await child.archive()
    job = await child.create("expire")
    (right,) = child.read_back(job)
    for wrong in ([], [{**right, "rows": 1}], [{**right, "archived": 1}], [{**right, "generation": 1}]):
        assert (await child.commit(job, 422, slices=wrong))["type"] == "/problems/bad-manifest"
    await child.commit(job, slices=[right])


# -- compaction


async def test_a_day_is_compacted(child: Child) -> None:
    server = child.server
    await child.put(QUARTER + QUARTER_MS, 3)
    await child.pass_to(QUARTER + 2 * QUARTER_MS)
    await child.archive()
    assert (await child.create("compact", 409))["type"] == "/problems/nothing-to-do"
    await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    await child.put(server.clock.now_ms + 1)
    await server.call("POST", "/v1/clock:advance", {"by": "P1D"})
    await child.archive()
    assert server.app.expiries.archiving.archive.find_day()
    await child.create("compact", 409, date="2026-11-20")
    job = await child.create("compact")
    assert (job["state"], job["date"], job["number"]) == ("compacting", DAY, 3)
    paths = [file["path"] for file in job["files"]]
    assert [file["number"] for file in job["files"]] == [1, 2]
    whole = file_of(job, "messages", DAY, sum(file["rows"] for file in job["files"]), 0)
    for wrong in (
        {"files": [{**whole, "rows": 1}], "replaces": paths},
        {"files": [whole], "replaces": []},
        {"files": [whole], "replaces": [*paths, paths[0]]},
        {"files": [file_of(job, "messages", "2026-11-22", 1, 0)], "replaces": paths},
        {"files": [], "replaces": paths},
    ):
        await child.commit(job, 422, archived={"kind": "compact", **wrong})
    await child.commit(job, 409, published=2)
    await child.commit(job, archived={"kind": "compact", "files": [whole], "replaces": paths})
    assert (await child.publish(job))["state"] == "done"
    assert (await child.create("compact", 409))["type"] == "/problems/nothing-to-do"
    job = await child.create("expire")
    assert [one["number"] for one in job["manifests"]] == [1, 2, 3][: len(job["manifests"])]


# -- records


async def test_old_records_go_and_those_of_kept_slices_stay(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = child.server
    monkeypatch.setattr(archived, "RECORDS_MAX", 2)
    await child.archive_more(4)
    row = row_of(server)
    assert (row.first, row.last) == (1, 4), "their slices are there"
    assert row.bytes == sum(size for size, _ in archived.records(server.store))
    await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    await child.expire()
    await child.put(server.clock.now_ms + 1)
    await server.call("POST", "/v1/clock:advance", {"by": "PT1H"})
    await child.archive()
    row = row_of(server)
    assert (row.first, row.last) == (4, 5)
    assert row.bytes == sum(size for size, _ in archived.records(server.store))
    await server.call("GET", "/v1/archive?since=2", status=422)
    await server.call("GET", "/v1/archive?since=x", status=422)
    page = (await server.call("GET", "/v1/archive?since=3&limit=1")).body
    assert ([one["number"] for one in page["manifests"]], page["next"]) == ([4], 4)


async def test_a_page_has_a_bound_in_bytes(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "PAGE_BYTES", 1)
    await child.archive_more(2)
    page = (await child.server.call("GET", "/v1/archive")).body
    assert ([one["number"] for one in page["manifests"]], page["next"]) == ([1], 1)


async def test_a_commit_that_is_too_large_is_refused(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived, "RECORD_BYTES", 10)
    await child.pass_to(QUARTER + 2 * QUARTER_MS)
    job = await child.create("archive")
    assert "more than 10" in (await child.commit(job, 422, archived=child.report(job)))["detail"]


async def test_which_members_belong_to_which_kind(child: Child) -> None:
    for kind, wrong in (
        ("archive", {"slice": 0}),
        ("archive", {"date": DAY}),
        ("expire", {"parts": 2}),
        ("compact", {"slice": 0}),
        ("compact", {"date": "today"}),
        ("split", {"slice": 0, "date": DAY}),
    ):
        refused = await child.create(kind, 422, **wrong)
        assert refused["errors"][0]["field"] in wrong, kind
    for other in ("/elsewhere", "archive", "s3://bucket/other", "http://bucket/archive", "s3://a:b@c"):
        refused = await child.create("archive", 422, archive=other)
        assert refused["errors"][0]["field"] == "archive"


async def test_a_job_that_reads_back_much_takes_fewer_slices(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.jobs.expiring.READ_BYTES", 1)
    await child.archive_more(2)
    await child.server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    for _ in range(2):
        job = await child.create("expire")
        await child.commit(job, slices=child.read_back(job))
    assert not len(child.server.app.core.directory)


# -- a disk that is nearly full


@pytest.fixture
def short(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has less than `store.min_free`."""

    async def is_short() -> bool:
        return True

    monkeypatch.setattr(child.server.app.housekeeping, "_is_nearly_full", is_short)


@pytest.mark.usefixtures("short")
async def test_messages_are_refused_while_only_the_archive_holds_slices(child: Child) -> None:
    server = child.server
    (pending,) = await child.put(START_MS + 9 * DAY_MS)
    await server.app.housekeeping.run_due()
    await child.put(FIRST)
    await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    await server.app.housekeeping.run_due()
    body = {"topic": "t/x", "payload": "", "deliver_in": 60}
    refused = (await server.call("POST", "/v1/messages", body, status=503)).body
    assert refused["type"] == "/problems/store-unavailable"
    assert "wait for the archive" in refused["detail"]
    metrics = (await server.call("GET", "/metrics")).body.decode()
    assert "fasti_archive_refusing 1.0" in metrics
    await server.call("DELETE", f"/v1/messages/{pending}", status=204)
    await server.call("GET", "/readyz")
    await child.archive()
    await child.expire()
    await server.app.quiet()
    await child.put(server.clock.now_ms + 1)
    await server.app.housekeeping.run_due()
    await child.put(server.clock.now_ms + 1)


@pytest.mark.usefixtures("short")
async def test_no_place_is_given_up_for_what_the_archive_has_not(child: Child) -> None:
    server = child.server
    core = server.app.core
    body = {"filter": "t/#"}
    await server.call("PUT", "/v1/groups/slow", body, status=201)
    at_ms = FIRST + MINUTE_MS
    await child.put(at_ms)
    await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
    end = server.app.expiries.retention.end_of(DAY_MS)
    assert end is not None
    for _ in range(2):
        await server.app.housekeeping.run_due()
        assert core.floor.needed < end, "the group still has its messages"
    body = {"topic": "t/x", "payload": "", "deliver_in": 60}
    refused = (await server.call("POST", "/v1/messages", body, status=503)).body
    assert "wait for the archive" in refused["detail"], "to give the group up would free nothing"
    await child.archive()
    await server.app.housekeeping.run_due()
    await server.app.quiet()
    assert core.floor.needed >= end
    assert (await child.expire())["state"] == "done"


def test_an_expiry_of_the_server_waits_for_more_slices(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    expiries = server.app.expiries
    monkeypatch.setattr(Retention, "due", lambda *_: [object()])
    for over_s, is_short, wanted in (
        (0, False, ""),
        (0, True, "expire"),
        (DAY_MS // 1_000 // 28, False, "expire"),
    ):
        monkeypatch.setattr(Retention, "kept", (before(0), over_s))
        expiries.retention.is_short = is_short
        assert expiries.find() == wanted
