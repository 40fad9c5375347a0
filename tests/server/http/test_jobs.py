"""The hand-over over HTTP, against a plain-Python job: the good way, and everything that is refused."""

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.engine.writer import Busy
from server.jobs import jobfolder
from server.jobs import pipeline as pipeline_module
from server.settings.config import Config, Slices
from server.settings.times import format_ms
from shards import handover
from shards.commit import Commit, Refused
from shards.cuts import Cut
from shards.jobs import stored_job
from shards.rocks import RocksStore
from shards.store import Table
from shards.verify import verify_counts
from tests.server.conftest import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, Running, running
from tests.support.build import OPENED
from tests.support.mover import moved, path_of
from timeline.position import parse_id

pytestmark = pytest.mark.long  # on disk

FAR = START_MS + 10 * DAY_MS
SLICE = FAR - FAR % (6 * HOUR_MS)
STEP_MS = 10 * MINUTE_MS
COUNT = 30
CUTS = [SLICE + 100 * MINUTE_MS, SLICE + 200 * MINUTE_MS]


def due(number: int) -> int:
    return SLICE + number * STEP_MS


@pytest.fixture
def ram() -> None:
    """Jobs read checkpoints and hand over files."""


@pytest.fixture
def config() -> Config:
    return replace(Config(), shards=replace(Config().shards, cap_messages=7, structure_above=10))


class Work:
    """A server with a full slice ten days ahead, and who works on it."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.ids: dict[str, str] = {}
        """By payload."""

    async def fill(self) -> None:
        for number in range(COUNT):
            await self.put(number)

    async def put(self, number: int, text: str = "") -> str:
        text = text or f"m{number}"
        at_ms = due(number % COUNT)
        body = {"topic": f"t/{number % 4}/x", "payload": text, "deliver_at": self.text(at_ms)}
        answer = await self.server.call("POST", "/v1/messages", body, status=201)
        self.ids[text] = answer.body["id"]
        return self.ids[text]

    @staticmethod
    def text(at_ms: int) -> str:
        return format_ms(at_ms)

    async def post(self, path: str, body: object, status: int = 200) -> Any:
        return (await self.server.call("POST", path, body, status=status)).body

    async def create(self, start_ms: int = SLICE, status: int = 201) -> Any:
        body = {"kind": "split", "slice": start_ms, "run": "caller"}
        return await self.post("/v1/jobs", body, status)

    async def begin(self, job: Any, cuts: list[int], status: int = 200) -> Any:
        body = {"token": job["token"], "cuts": cuts}
        return await self.post(f"/v1/jobs/{job['id']}:begin", body, status)

    async def commit(self, job: Any, files: list[dict[str, Any]], status: int = 200) -> Any:
        body = {"token": job["token"], "files": files}
        return await self.post(f"/v1/jobs/{job['id']}:commit", body, status)

    async def split(self, cuts: list[int], start_ms: int = SLICE) -> None:
        job = await self.create(start_ms)
        begun = await self.begin(job, cuts)
        await self.commit(job, await asyncio.to_thread(moved, begun))

    async def look(self, job: Any) -> Any:
        return (await self.server.call("GET", f"/v1/jobs/{job['id']}")).body

    async def listed(self, query: str = "state=pending") -> list[str]:
        answer = await self.server.call("GET", f"/v1/messages?limit=1000&{query}")
        return [message["payload"] for message in answer.body["messages"]]

    async def slices(self) -> list[Any]:
        pieces = (await self.server.call("GET", "/v1/slices")).body["slices"]
        return [piece for piece in pieces if piece["start"] >= self.text(SLICE)]

    def check(self) -> None:
        """Counts are those of the rows; every row belongs to a shard; no job has left a file."""
        app = self.server.app
        assert verify_counts(self.server.store, app.core.directory) == []
        known = {shard.prefix for piece in app.core.directory for shard in piece.readable()}
        rows = [key for key, _ in self.server.store.scan(Table.MESSAGES, b"", b"\xff" * 22)]
        assert {key[:10] for key in rows} <= known
        folder = self.server.store.path / "jobs"
        assert not folder.exists() or not list(folder.iterdir())


@pytest.fixture
async def work(server: Running) -> AsyncIterator[Work]:
    made = Work(server)
    await made.fill()
    yield made
    if not server.app.pipeline.open:
        made.check()


EVERYTHING = [f"m{number}" for number in range(COUNT)]


async def test_a_slice_is_split_and_nobody_notices(work: Work) -> None:
    job = await work.create()
    assert job["state"] == "planning"
    assert job["slice"]["count"] == COUNT
    assert len(job["token"]) == 32
    assert len(job["slice"]["sources"]) >= COUNT // 7
    begun = await work.begin(job, CUTS)
    assert begun["state"] == "moving"
    assert [child["generation"] for child in begun["children"]] == [1, 1, 1]
    assert [child["start_ms"] for child in begun["children"]] == [SLICE, *CUTS]
    assert await work.listed() == EVERYTHING
    files = await asyncio.to_thread(moved, begun)
    assert len(files) == 3
    ended = await work.commit(job, files)
    assert (ended["id"], ended["state"], ended["rows"]) == (job["id"], "done", COUNT)
    assert await work.listed() == EVERYTHING
    assert [piece["count"] for piece in await work.slices()] == [10, 10, 10]
    for text, name in work.ids.items():
        found = await work.server.call("GET", f"/v1/messages/{name}")
        assert found.body["payload"] == text
    seen = await work.look(job)
    assert seen["state"] == "done"
    assert "token" not in seen
    assert not any(piece.borrowed for piece in work.server.app.core.directory)
    left = work.server.store.scan(Table.SHARDS, SLICE.to_bytes(6, "big"), CUTS[0].to_bytes(6, "big"))
    assert all(key[6:8] == b"\0\1" for key, _ in left), "the parent's shards are gone"


async def test_what_changes_during_the_job_ends_up_right(work: Work) -> None:
    job = await work.create()
    server = work.server
    await server.call("DELETE", f"/v1/messages/{work.ids['m1']}", status=204)
    begun = await work.begin(job, CUTS)
    await server.call("DELETE", f"/v1/messages/{work.ids['m2']}", status=204)
    files = await asyncio.to_thread(moved, begun)
    await server.call("DELETE", f"/v1/messages/{work.ids['m3']}", status=204)
    await server.call("DELETE", f"/v1/messages/{work.ids['m15']}", status=204)
    later = {"deliver_at": work.text(due(25) + 1)}
    await server.call("PATCH", f"/v1/messages/{work.ids['m4']}", later)
    for number in (5, 15, 25):
        await work.put(number, f"new{number}")
    await server.call("DELETE", f"/v1/messages/{work.ids['new15']}", status=204)
    expected = [text for text in EVERYTHING if text not in ("m1", "m2", "m3", "m4", "m15")]
    expected.insert(expected.index("m5") + 1, "new5")
    expected[expected.index("m25") + 1 : expected.index("m25") + 1] = ["new25", "m4"]
    assert await work.listed() == expected
    await work.commit(job, files)
    assert await work.listed() == expected
    answer = await server.call("GET", "/v1/messages?state=cancelled")
    assert len(answer.body["messages"]) == 5
    for text in ("m1", "m2", "m3", "m15", "new15"):
        answer = await server.call("GET", f"/v1/messages/{work.ids[text]}")
        assert answer.body["state"] == "cancelled"
        await server.call("DELETE", f"/v1/messages/{work.ids[text]}", status=204)
    count = (await server.call("GET", "/v1/messages?count=true")).body["count"]
    assert count == len(expected)
    query = f"from={SLICE}&to={SLICE + 6 * HOUR_MS}&bucket=PT10M"
    assert (await server.call("GET", f"/v1/timeline/density?{query}")).body["total"] == count
    await server.call("PATCH", f"/v1/messages/{work.ids['m4']}", {"deliver_at": work.text(due(0) + 1)})
    await server.call("DELETE", f"/v1/messages/{work.ids['m20']}", status=204)
    assert (await work.listed())[:3] == ["m0", "m4", "m5"]


async def test_delivered_once_in_order_over_a_split(work: Work, clock: SimulatedClock) -> None:
    server = work.server
    _, link = await server.connect("reader", "#", expiry_s=365 * 86_400)
    job = await work.create()
    begun = await work.begin(job, CUTS)
    await work.commit(job, await asyncio.to_thread(moved, begun))
    await server.call("POST", "/v1/clock:advance", {"by": "P11D"})
    assert [message.record.payload.decode() for message in link.sent] == EVERYTHING


async def test_delivered_once_in_order_from_what_is_borrowed(work: Work) -> None:
    server = work.server
    _, link = await server.connect("reader", "t/+/x", expiry_s=365 * 86_400)
    job = await work.create()
    await work.begin(job, CUTS)
    body = {"token": job["token"]}
    await work.post(f"/v1/jobs/{job['id']}:abort", body)
    await server.call("POST", "/v1/clock:advance", {"by": "P11D"})
    assert [message.record.payload.decode() for message in link.sent] == EVERYTHING
    # What is behind retention goes, a child at a time, with its part of what is borrowed.
    work.check()
    await server.call("POST", "/v1/clock:advance", {"by": "P8D"})
    assert not list(server.store.scan(Table.MESSAGES, b"", b"\xff" * 22))
    assert not list(server.store.scan(Table.SHARDS, b"", b"\xff" * 22))


@pytest.mark.parametrize("is_moved", [True, False])
async def test_who_was_away_reads_on_over_split_slices(work: Work, *, is_moved: bool) -> None:
    server = work.server
    subscriber, gone = await server.connect("reader", "t/+/x", expiry_s=365 * 86_400)
    server.app.core.broker.leave(subscriber, is_clean=False)
    job = await work.create()
    begun = await work.begin(job, CUTS)
    if is_moved:
        await work.commit(job, await asyncio.to_thread(moved, begun))
    else:
        await work.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"]})
    await server.call("POST", "/v1/clock:advance", {"by": "P11D"})
    _, link = await server.connect("reader", expiry_s=365 * 86_400)
    await server.app.quiet()
    assert gone.sent == []
    assert [message.record.payload.decode() for message in link.sent] == EVERYTHING


async def test_an_aborted_split_is_finished_child_by_child(work: Work) -> None:
    job = await work.create()
    await work.begin(job, CUTS)
    ended = await work.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"], "detail": "why not"})
    assert (ended["state"], ended["detail"]) == ("aborted", "why not")
    await work.put(12, "new12")
    work.check()
    seen = [(piece["count"], piece["live"], piece["borrowed"] > 0) for piece in await work.slices()]
    assert seen == [(10, 10, True), (11, 11, True), (10, 10, True)]
    await work.split([], CUTS[0])
    work.check()
    await work.split([SLICE + 50 * MINUTE_MS])
    work.check()
    assert any(piece.borrowed for piece in work.server.app.core.directory)
    await work.split([due(25)], CUTS[1])
    work.check()
    assert not any(piece.borrowed for piece in work.server.app.core.directory)
    assert [piece["count"] for piece in await work.slices()] == [5, 5, 11, 5, 5]
    expected = [*EVERYTHING[:13], "new12", *EVERYTHING[13:]]
    assert await work.listed() == expected
    refused = await work.begin(await work.create(), [], 422)
    assert refused["errors"][0]["field"] == "cuts"


async def test_a_slice_that_borrows_a_shared_shard_counts_its_own_part(work: Work) -> None:
    job = await work.create()
    await work.begin(job, [CUTS[0]])
    await work.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"]})
    again = await work.create()
    assert (again["slice"]["count"], again["slice"]["live"]) == (10, 10)
    assert sum(source["count"] for source in again["slice"]["sources"]) == 10
    await work.post(f"/v1/jobs/{again['id']}:abort", {"token": again["token"]})


# -- refusals


async def test_what_cannot_be_split(work: Work) -> None:
    assert (await work.create(SLICE + 1, 404))["type"] == "/problems/not-found"
    near = await work.server.schedule(deliver_in="1m")
    start = (await work.server.call("GET", f"/v1/messages/{near}/explain")).body["slice"]
    body = {"kind": "split", "slice": start, "run": "caller"}
    assert (await work.post("/v1/jobs", body, 409))["type"] == "/problems/too-near"
    await work.create()
    assert (await work.create(status=409))["type"] == "/problems/job-active"
    for wrong in ({"kind": "split"}, {"kind": "split", "slice": "x"}, {"kind": "join"}):
        await work.post("/v1/jobs", wrong, 422)
    await work.post("/v1/jobs", {"kind": "split", "slice": SLICE, "parts": 1}, 422)
    await work.post("/v1/jobs", {"kind": "expire", "slice": SLICE}, 422)
    refused = await work.post("/v1/jobs", {"kind": "expire", "run": "caller"}, 409)
    assert refused["type"] == "/problems/nothing-to-expire"


@pytest.mark.parametrize(
    "cuts", [[], [SLICE], [SLICE + 6 * HOUR_MS], [CUTS[1], CUTS[0]], [CUTS[0], CUTS[0]], [SLICE - 1]]
)
async def test_bad_cuts_change_nothing(work: Work, cuts: list[int]) -> None:
    job = await work.create()
    assert (await work.begin(job, cuts, 422))["errors"][0]["field"] == "cuts"
    assert [piece["generation"] for piece in await work.slices()] == [0]
    assert (await work.look(job))["state"] == "planning"
    await work.begin(job, CUTS)


async def test_tokens_and_states(work: Work) -> None:
    job = await work.create()
    stale = {**job, "token": "0" * 32}
    assert (await work.begin(stale, CUTS, 409))["type"] == "/problems/stale-token"
    assert (await work.commit(job, [], 409))["type"] == "/problems/wrong-state"
    await work.begin(job, CUTS)
    assert (await work.begin(job, CUTS, 409))["type"] == "/problems/wrong-state"
    nobody = {**job, "id": "nobody"}
    assert (await work.begin(nobody, CUTS, 404))["type"] == "/problems/not-found"
    await work.server.call("GET", "/v1/jobs/nobody", status=404)
    await work.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"]})
    refused = await work.commit(job, [], 409)
    assert refused["type"] == "/problems/wrong-state"
    assert "it was asked to end" in refused["detail"]
    listed = (await work.server.call("GET", "/v1/jobs")).body
    assert [one["id"] for one in listed["jobs"]] == [job["id"]]
    assert listed["next"] is None


async def test_progress_is_shown(work: Work) -> None:
    job = await work.create()
    assert (await work.look(job))["progress"] is None
    answer = await work.post(f"/v1/jobs/{job['id']}:renew", {"token": job["token"], "done": 3, "total": 9})
    assert answer["lease_s"] == 60
    assert (await work.look(job))["progress"] == {"done": 3, "total": 9}


async def test_a_lease_lapses(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "LEASE_S", 0)
    first = await work.create()
    begun_late = await work.begin(first, CUTS, 409)
    assert "lapsed" in begun_late["detail"]
    second = await work.create()
    await work.server.app.pipeline.sweep()
    seen = await work.look(second)
    assert (seen["state"], seen["detail"]) == ("aborted", "the lease lapsed")
    monkeypatch.setattr(pipeline_module, "LEASE_S", 60)
    await work.split(CUTS)
    assert await work.listed() == EVERYTHING


async def test_there_is_a_bound_on_open_jobs(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "OPEN_MAX", 0)
    assert (await work.create(status=429))["type"] == "/problems/over-quota"


async def test_two_jobs_at_once(work: Work) -> None:
    other = SLICE + 6 * HOUR_MS
    for number in range(10):
        body = {"topic": "o", "payload": f"o{number}", "deliver_at": work.text(other + number * STEP_MS)}
        await work.post("/v1/messages", body, 201)
    one, two = await asyncio.gather(work.create(), work.create(other))
    begun = await asyncio.gather(work.begin(one, CUTS), work.begin(two, [other + 5 * STEP_MS]))
    files = [await asyncio.to_thread(moved, each) for each in begun]
    await asyncio.gather(work.commit(one, files[0]), work.commit(two, files[1]))
    assert await work.listed() == [*EVERYTHING, *[f"o{number}" for number in range(10)]]


async def test_sibling_slices_at_once(work: Work) -> None:
    """Two jobs that read the same shards, and a cancel in each."""
    job = await work.create()
    await work.begin(job, [CUTS[0]])
    await work.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"]})
    one, two = await work.create(SLICE), await work.create(CUTS[0])
    begun = [await work.begin(one, [due(5)]), await work.begin(two, [CUTS[1]])]
    files = [await asyncio.to_thread(moved, each) for each in begun]
    for text in ("m3", "m22"):
        await work.server.call("DELETE", f"/v1/messages/{work.ids[text]}", status=204)
    await asyncio.gather(work.commit(one, files[0]), work.commit(two, files[1]))
    assert await work.listed() == [text for text in EVERYTHING if text not in ("m3", "m22")]
    assert not any(piece.borrowed for piece in work.server.app.core.directory)


# -- manifests


def spoil(files: list[dict[str, Any]], out: Path, how: str) -> None:
    first = files[0]
    share = first["shards"][0]
    match how:
        case "missing file":
            (out / first["name"]).unlink()
        case "damaged file":
            content = bytearray((out / first["name"]).read_bytes())
            content[len(content) // 2] ^= 1
            (out / first["name"]).write_bytes(bytes(content))
        case "short file":
            with (out / first["name"]).open("ab") as file:
                file.write(b"x")
        case "missing row":
            first["rows"] -= 1
            share["rows"] -= 1
            share["live"] -= 1
        case "rows of another shard":
            taken = max(first["shards"][1:], key=lambda one: one["rows"])
            share["rows"] += 1
            taken["rows"] -= 1
            taken["live"] -= 1
        case "live" | "more bytes than can be":
            share["live"] -= how == "live"
            share["bytes"] <<= 60 * (how != "live")
        case "missing child":
            del files[0]
        case "twice":
            files.append(first)
        case "path":
            first["name"] = "../" + first["name"]
        case "slice":
            first["slice"] += 1
        case "place":
            share["first"] = "f" * 24
        case "last":
            first["last"] = first["last"][:-1] + "f"
        case "no table":
            (out / first["name"]).write_bytes(b"x" * first["bytes"])
            first["sha256"] = hashlib.sha256(b"x" * first["bytes"]).hexdigest()


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


HOWS = {
    "missing file": "file",
    "damaged file": "sha256",
    "short file": "bytes",
    "missing row": "rows",
    "rows of another shard": "rows",
    "live": None,
    "more bytes than can be": "shards",
    "missing child": "rows",
    "twice": "name",
    "path": "name",
    "slice": "slice",
    "place": "range",
    "last": "range",
    "no table": "table",
}


@pytest.mark.parametrize("how", HOWS)
async def test_a_bad_manifest_is_refused_by_name_and_may_be_corrected(work: Work, how: str) -> None:
    job = await work.create()
    begun = await work.begin(job, CUTS)
    files = await asyncio.to_thread(moved, begun)
    spoil(files, Path(begun["output"].removeprefix("file://")), how)
    refused = await work.commit(job, files, 422)
    assert refused["type"] == "/problems/bad-manifest"
    if HOWS[how] is not None:
        assert HOWS[how] in {error["check"] for error in refused["errors"]}
    assert (await work.look(job))["state"] == "moving"
    assert await work.listed() == EVERYTHING
    await work.server.call("DELETE", f"/v1/messages/{work.ids['m7']}", status=204)
    empty(Path(begun["output"].removeprefix("file://")))
    await work.commit(job, await asyncio.to_thread(moved, begun))
    assert await work.listed() == [text for text in EVERYTHING if text != "m7"]


@pytest.mark.parametrize("kind", ["link", "folder", "link to a folder", "link to nothing"])
async def test_what_is_no_file_is_not_taken(work: Work, tmp_path: Path, kind: str) -> None:
    job = await work.create()
    begun = await work.begin(job, CUTS)
    files = await asyncio.to_thread(moved, begun)
    path = path_of(begun["output"]) / files[0]["name"]
    kept = path.rename(tmp_path / "kept")
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"link": kept, "link to a folder": tmp_path}.get(kind, tmp_path / "nothing"))
    refused = await work.commit(job, files, 422)
    assert [(error["file"], error["check"]) for error in refused["errors"]] == [(files[0]["name"], "file")]
    path.rmdir() if kind == "folder" else path.unlink()
    kept.rename(path)
    assert (await work.commit(job, files))["state"] == "done"


async def test_what_is_put_in_the_place_of_a_file_after_the_check_is_not_taken(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await work.create()
    begun = await work.begin(job, CUTS)
    files = await asyncio.to_thread(moved, begun)
    out, ingest = path_of(begun["output"]), jobfolder.ingest

    def late(*arguments: Any) -> None:
        (tmp_path / "other").write_bytes(b"somebody else's")
        for file in files:
            (out / file["name"]).unlink()
            (out / file["name"]).symlink_to(tmp_path / "other")
        ingest(*arguments)

    monkeypatch.setattr(jobfolder, "ingest", late)
    assert (await work.commit(job, files))["state"] == "done"
    assert await work.listed() == EVERYTHING


@OPENED
async def test_what_a_refused_commit_took_in_goes_before_the_next(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused after its files were taken in and a cancel was put over them, while the writer is full."""
    job = await work.create()
    begun = await work.begin(job, CUTS)
    files = await asyncio.to_thread(moved, begun)
    await work.server.call("DELETE", f"/v1/messages/{work.ids['m3']}", status=204)

    def full(*arguments: Any, **named: Any) -> Any:
        raise Busy("told to be full")

    def refused(*arguments: Any) -> None:
        monkeypatch.setattr(work.server.app.core.writer, "submit", full)
        raise Refused("bad-manifest", "told to refuse")

    monkeypatch.setattr(handover, "switch", refused)
    await work.commit(job, files, 422)
    assert (await work.look(job))["state"] == "moving"
    monkeypatch.undo()
    await work.server.call("DELETE", f"/v1/messages/{work.ids['m4']}", status=204)
    assert (await work.commit(job, files))["state"] == "done"
    assert await work.listed() == [text for text in EVERYTHING if text not in ("m3", "m4")]


async def test_a_cancel_that_was_lost_and_sent_again_during_the_commit(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, app = work.server, work.server.app
    job = await work.create()
    begun = await work.begin(job, CUTS)
    server.store.loses_next = True
    await server.call("DELETE", f"/v1/messages/{work.ids['m3']}", status=503)
    await app.quiet()
    files = await asyncio.to_thread(moved, begun)
    overwrite, asked = handover.overwrite, []

    def and_then(commit: Commit, cut: Cut, limit: int) -> int:
        left = overwrite(commit, cut, limit)
        if not asked:
            asked.append(
                app.core.writer.submit(lambda c: c.cancel(parse_id(work.ids["m3"])), lambda answer: None)
            )
        return left

    monkeypatch.setattr(handover, "overwrite", and_then)
    assert (await work.commit(job, files))["state"] == "done"
    assert await work.listed() == [text for text in EVERYTHING if text != "m3"]


async def test_nothing_else_happens_to_a_job_while_it_commits(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease lapses, it is looked at, begun, aborted and committed again meanwhile."""
    app = work.server.app
    job = await work.create()
    begun = await work.begin(job, CUTS)
    files = await asyncio.to_thread(moved, begun)
    check, may_go_on = jobfolder.check, threading.Event()

    def slow(*arguments: Any) -> Any:
        may_go_on.wait(10)
        return check(*arguments)

    monkeypatch.setattr(jobfolder, "check", slow)
    commit = asyncio.ensure_future(work.commit(job, files))
    while (await work.look(job))["state"] != "committing":
        await asyncio.sleep(0.005)
    app.pipeline.get(job["id"]).lease_until = 0.0  # type: ignore[union-attr]
    await app.pipeline.sweep()
    await work.begin(job, CUTS, 409)
    await work.commit(job, files, 409)
    await work.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"]}, 409)
    may_go_on.set()
    assert (await commit)["state"] == "done"
    assert await work.listed() == EVERYTHING


async def test_a_job_that_was_done_while_another_was_ended_stays_done(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program has ended before it had the answer; by then the sweep waits for the files of the other."""
    app, other = work.server.app, SLICE + 6 * HOUR_MS
    await work.post("/v1/messages", {"topic": "o", "payload": "o", "deliver_at": work.text(other)}, 201)
    lapsed, job = await work.create(other), await work.create()
    files = await asyncio.to_thread(moved, await work.begin(job, CUTS))
    remove, check = jobfolder.remove, jobfolder.check
    is_removing, may_remove, may_check = threading.Event(), threading.Event(), threading.Event()

    def slow_remove(folder: Path) -> None:
        if folder.name == lapsed["id"]:
            is_removing.set()
            may_remove.wait(10)
        remove(folder)

    def slow_check(*arguments: Any) -> Any:
        may_check.wait(10)
        return check(*arguments)

    monkeypatch.setattr(jobfolder, "remove", slow_remove)
    monkeypatch.setattr(jobfolder, "check", slow_check)
    app.pipeline.get(lapsed["id"]).lease_until = 0.0  # type: ignore[union-attr]
    sweep = asyncio.ensure_future(app.pipeline.sweep())
    await asyncio.to_thread(is_removing.wait, 10)
    commit = asyncio.ensure_future(work.commit(job, files))
    while (await work.look(job))["state"] != "committing":
        await asyncio.sleep(0.005)
    await app.pipeline._child_ended(job["id"], "killed")
    may_check.set()
    assert (await commit)["state"] == "done"
    may_remove.set()
    await sweep
    row = stored_job(work.server.store, job["id"])
    assert row is not None
    assert (row.state, row.detail) == ("done", "")
    assert await work.listed() == [*EVERYTHING, "o"]


async def test_a_slice_that_has_come_near_is_given_up(work: Work) -> None:
    job = await work.create()
    begun = await work.begin(job, CUTS)
    files = await asyncio.to_thread(moved, begun)
    await work.server.call("POST", "/v1/clock:advance", {"by": (SLICE - START_MS - 3_000) / 1000})
    assert (await work.commit(job, files, 409))["type"] == "/problems/too-near"
    assert (await work.look(job))["state"] == "aborted"
    assert await work.listed() == EVERYTHING


async def test_too_many_changes_end_a_job(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work.server.app.core.opened.notes, "most", 2)
    job = await work.create()
    begun = await work.begin(job, CUTS)
    files = await asyncio.to_thread(moved, begun)
    for text in ("m1", "m2", "m3"):
        await work.server.call("DELETE", f"/v1/messages/{work.ids[text]}", status=204)
    assert "rows changed" in (await work.commit(job, files, 409))["detail"]
    assert await work.listed() == EVERYTHING[:1] + EVERYTHING[4:]


# -- failures


async def test_a_store_that_fails_in_the_middle(work: Work) -> None:
    job = await work.create()
    begun = await work.begin(job, CUTS)
    files = await asyncio.to_thread(moved, begun)
    work.server.store.is_failing = True
    assert (await work.commit(job, files, 503))["type"] == "/problems/store-unavailable"
    work.server.store.is_failing = False
    await back(work)
    await work.server.app.pipeline.sweep()
    assert (await work.look(job))["detail"] == "the store failed"
    assert await work.listed() == EVERYTHING
    work.check()
    for start in (SLICE, *CUTS):
        await work.split([], start)
    assert await work.listed() == EVERYTHING


async def test_a_begin_that_fails_is_as_if_it_had_not_been(work: Work) -> None:
    job = await work.create()
    work.server.store.is_failing = True
    await work.begin(job, CUTS, 503)
    work.server.store.is_failing = False
    await back(work)
    await work.server.app.pipeline.sweep()
    assert [piece["generation"] for piece in await work.slices()] == [0]
    assert (await work.look(job))["state"] == "aborted"
    await work.split(CUTS)
    assert await work.listed() == EVERYTHING


async def back(work: Work) -> None:
    while work.server.app.core.writer.broken is not None:
        await asyncio.sleep(0.05)


async def test_a_start_gives_up_what_was_open(tmp_path: Path, config: Config, clock: SimulatedClock) -> None:
    async with running(tmp_path / "data", config, clock) as server:
        work = Work(server)
        await work.fill()
        begun = await work.create()
        await work.begin(begun, CUTS)
        ended = await work.post(f"/v1/jobs/{begun['id']}:abort", {"token": begun["token"]})
        open_job = await work.create(CUTS[0])
        await work.begin(open_job, [due(15)])
    async with running(tmp_path / "data", config, clock) as server:
        work.server = server
        seen = await work.look(open_job)
        assert (seen["state"], seen["detail"]) == ("aborted", "the server was started again")
        assert (await work.look(begun))["ended_at"] == ended["ended_at"]
        work.check()
        assert await work.listed() == EVERYTHING


# -- expiry


@pytest.fixture
def archived(config: Config) -> Config:
    return replace(config, slices=replace(Slices(), archive="somewhere", retention_ms=DAY_MS))


async def test_expire_jobs_drop_what_they_have_read(
    tmp_path: Path, archived: Config, clock: SimulatedClock
) -> None:
    async with running(tmp_path / "data", archived, clock) as server:
        work = Work(server)
        await work.fill()
        job = await work.create()
        await work.begin(job, CUTS)
        await work.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"]})
        await server.call("DELETE", f"/v1/messages/{work.ids['m1']}", status=204)
        await server.call("POST", "/v1/clock:advance", {"by": "P12D"})
        await work.put(0, "late")
        assert len(await work.listed("state=dispatched")) == COUNT - 1 + 1, "nothing goes without a job"
        job = await work.post("/v1/jobs", {"kind": "expire", "run": "caller"}, 201)
        assert job["archive"] == "somewhere"
        assert [(piece["count"], piece["live"]) for piece in job["slices"]] == [(10, 9), (10, 10), (10, 10)]
        path = f"/v1/jobs/{job['id']}:commit"
        slices = [
            {
                "start_ms": s["start_ms"],
                "generation": s["generation"],
                "rows": s["count"],
                "archived": s["live"],
            }
            for s in job["slices"]
        ]
        for spoiled in (
            slices[1:],
            [{**slices[0], "rows": 9}, *slices[1:]],
            [{**slices[0], "archived": 8}, *slices[1:]],
        ):
            refused = await work.post(path, {"token": job["token"], "slices": spoiled}, 422)
            assert refused["type"] == "/problems/bad-manifest"
        ended = await work.post(path, {"token": job["token"], "slices": slices})
        assert (ended["state"], ended["rows"]) == ("done", COUNT)
        assert await work.listed("state=dispatched") == ["late"]
        await server.app.leavings.sweep()
        work.check()
        metrics = (await server.call("GET", "/metrics")).body.decode()
        assert 'fasti_job_rows_total{kind="expire"} 30.0' in metrics
        assert 'fasti_jobs_ended_total{kind="split",outcome="aborted"} 1.0' in metrics


# -- backups


async def test_a_backup_is_a_store_to_start_on(
    work: Work, tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    path = tmp_path / "backups" / "copy"
    assert (await work.post("/v1/backups", {"dir": str(path)}, 201))["dir"] == str(path)
    await work.put(0, "afterwards")
    for wrong in (str(path), "copy", str(tmp_path / "no" / "where"), "no/where"):
        assert (await work.post("/v1/backups", {"dir": wrong}, 422))["errors"][0]["field"] == "dir"
    async with running(path, config, clock) as copied:
        other = Work(copied)
        assert await other.listed() == EVERYTHING
        assert verify_counts(copied.store, copied.app.core.directory) == []


def everything_below(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if "data" not in one.parts)


async def test_a_backup_is_made_below_one_directory_and_nowhere_else(work: Work, tmp_path: Path) -> None:
    root, outside = tmp_path / "backups", tmp_path / "outside"
    assert (await work.post("/v1/backups", {"dir": "first"}, 201))["dir"] == str(root / "first")
    outside.mkdir()
    (root / "inner").mkdir()
    (root / "out").symlink_to(outside)
    (root / "dangling").symlink_to(outside / "new")
    (root / "loop").symlink_to(root / "loop")
    (root / "data").symlink_to(tmp_path / "data")
    (root / "file").touch()
    (root / "mine.tmp").mkdir()
    before = everything_below(tmp_path)
    for wrong in (
        *("", ".", "/", "..", "../outside/x", "inner/../../outside/x", str(outside / "x"), "/tmp/x"),
        *(str(root), str(root / ".." / "outside" / "x"), str(root) + "-2/x", str(tmp_path / "x")),
        *("out/x", "dangling", "dangling/x", "loop/x", "data/x", "data/jobs", "file/x", "file", "mine"),
        *(
            "a\0b",
            "\0",
            "x" * 10_000,
            "x" * 256,
            "x/" * 5_000 + "x",
            "first/x/y",
            "\x01/\x02",
            "~/x",
            "inner",
        ),
    ):
        refused = await work.post("/v1/backups", {"dir": wrong}, 422)
        assert refused["errors"][0]["field"] == "dir", wrong
        assert len(json.dumps(refused)) < 1_000
    await work.server.call("POST", "/v1/backups", b'{"dir":"\\ud800"}', status=400)
    assert everything_below(tmp_path) == before
    for right in ("inner/x", str(root / "inner" / "y"), "x" * 251, "...", "-rf", "a b\n", "\u00e9"):
        made = await work.post("/v1/backups", {"dir": right}, 201)
        assert (Path(made["dir"]) / "CURRENT").is_file()
        assert Path(made["dir"]).is_relative_to(root)


async def test_the_directory_of_backups_is_a_setting(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    chosen = tmp_path / "elsewhere"
    chosen.mkdir()
    link = tmp_path / "link"
    link.symlink_to(chosen)
    settings = replace(config, store=replace(config.store, backups=str(link)))
    async with running(tmp_path / "data", settings, clock) as server:
        for name in ("one", str(link / "two"), str(chosen / "three")):
            await server.call("POST", "/v1/backups", {"dir": name}, status=201)
        refused = await server.call(
            "POST", "/v1/backups", {"dir": str(tmp_path / "backups" / "x")}, status=422
        )
        assert refused.body["errors"][0]["field"] == "dir"
    assert sorted(one.name for one in chosen.iterdir()) == ["one", "three", "two"]
    assert not (tmp_path / "backups").exists()


async def test_backups_beside_the_data_never_come_into_it(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    """Their directory holds the server's own; a name is that name, whatever it would be elsewhere."""
    settings = replace(config, store=replace(config.store, backups=str(tmp_path)))
    async with running(tmp_path / "data", settings, clock) as server:
        (tmp_path / "link").symlink_to(tmp_path / "data" / "jobs")
        (tmp_path / "data" / "jobs").mkdir(exist_ok=True)
        before = sorted((tmp_path / "data").rglob("*"))
        for wrong in ("data", "data/", "./data", "data/x", "data/jobs/x", "x/../data/y", "link/x", "link"):
            await server.call("POST", "/v1/backups", {"dir": wrong}, status=422)
        assert sorted((tmp_path / "data").rglob("*")) == before
        names = (
            "DATA",
            "data2",
            "%2e%2e",
            "..%2fdata",
            "\u00e9",
            "e\u0301",
            "\uff0e\uff0e",
            "data\\x",
            "data ",
        )
        for name in names:
            made = await server.call("POST", "/v1/backups", {"dir": name}, status=201)
            assert made.body["dir"] == str(tmp_path / name)
        assert set(os.listdir(tmp_path)) == {"data", "link", *names}


async def test_one_backup_is_made_at_a_time(
    tmp_path: Path, config: Config, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine clears `x.tmp` before it makes `x`: it must not be a backup that has been answered."""
    both, checkpoint, met = threading.Barrier(2), RocksStore.checkpoint, []

    def slow(store: RocksStore, path: Path) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.1)
            met.append(path)
        checkpoint(store, path)

    monkeypatch.setattr(RocksStore, "checkpoint", slow)
    async with running(tmp_path / "data", config, clock) as server:
        wishes = [server.call("POST", "/v1/backups", {"dir": name}, status=None) for name in ("x.tmp", "x")]
        answers = await asyncio.gather(*wishes)
    assert not met
    assert sorted(answer.status for answer in answers) in ([201, 201], [201, 422])
    assert all((Path(one.body["dir"]) / "CURRENT").is_file() for one in answers if one.status == 201)


async def test_files_of_a_manifest_have_plain_names(work: Work) -> None:
    """They are looked for in the job's own folder: nothing leads out of it, or is too long to look for."""
    job = await work.create()
    await work.begin(job, CUTS)
    for name in ("../x.sst", "/etc/passwd", "a/b", "..", ".", "", "x" * 10_000, "x" * 256, "a\0b"):
        file = {"name": name, "rows": 1, "bytes": 1, "sha256": "0" * 64, "first": "", "last": "", "slice": 0}
        body = {"token": job["token"], "files": [{**file, "shards": []}]}
        refused = await work.post(f"/v1/jobs/{job['id']}:commit", body, 422)
        assert refused["type"] == "/problems/bad-manifest"
        assert len(json.dumps(refused)) < 1_500
