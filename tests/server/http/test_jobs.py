"""The hand-over over HTTP, against a plain-Python job: the good way, and everything that is refused."""

import asyncio
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
from server.jobs import pipeline as pipeline_module
from server.jobs import splitting
from server.settings.config import Config, Slices
from server.settings.times import format_ms
from shards import handover
from shards.jobs import stored_job
from shards.rocks import RocksStore
from shards.store import Table
from shards.verify import verify_counts
from tests.server.conftest import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, Running, Start, running, with_settings
from tests.support.mover import counted
from timeline import slices

pytestmark = [with_settings(shards={"cap_messages": 7, "structure_above": 10}), pytest.mark.long]  # on disk

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

    async def count(self, job: Any, cuts: list[int]) -> dict[str, Any]:
        """What its job commits."""
        return {"cuts": cuts, "pieces": await asyncio.to_thread(counted, job, cuts)}

    async def commit(self, job: Any, said: dict[str, Any], status: int = 200) -> Any:
        return await self.post(f"/v1/jobs/{job['id']}:commit", {"token": job["token"], **said}, status)

    async def abort(self, job: Any, detail: str = "") -> Any:
        return await self.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"], "detail": detail})

    async def split(self, cuts: list[int], start_ms: int = SLICE) -> None:
        job = await self.create(start_ms)
        await self.commit(job, await self.count(job, cuts))

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
        app.core.directory.check()
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
    said = await work.count(job, CUTS)
    assert [piece["rows"] for piece in said["pieces"]] == [10, 10, 10]
    rows = list(work.server.store.scan(Table.MESSAGES, b"", b"\xff" * 22))
    ended = await work.commit(job, said)
    assert (ended["id"], ended["state"], ended["rows"]) == (job["id"], "done", COUNT)
    assert [(child["start_ms"], child["generation"]) for child in ended["children"]] == [
        (start_ms, 1) for start_ms in (SLICE, *CUTS)
    ]
    assert list(work.server.store.scan(Table.MESSAGES, b"", b"\xff" * 22)) == rows, "nothing is copied"
    assert await work.listed() == EVERYTHING
    for text, name in work.ids.items():
        found = await work.server.call("GET", f"/v1/messages/{name}")
        assert found.body["payload"] == text
    seen = await work.look(job)
    assert seen["state"] == "done"
    assert "token" not in seen
    for piece, told in zip(await work.slices(), said["pieces"], strict=True):
        assert {name: piece["count" if name == "rows" else name] for name in told} == told
        assert piece["count_is_exact"]
        assert piece["borrowed"] > 0
        detail = (await work.server.call("GET", f"/v1/slices/{piece['start']}")).body
        assert (detail["count"], detail["live"]) == (10, 10)
        assert all(shard["borrowed"] and shard["sealed"] for shard in detail["shards"])


async def test_what_changes_during_the_job_ends_up_right(work: Work) -> None:
    server = work.server
    await server.call("DELETE", f"/v1/messages/{work.ids['m1']}", status=204)
    job = await work.create()
    await server.call("DELETE", f"/v1/messages/{work.ids['m2']}", status=204)
    said = await work.count(job, CUTS)
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
    await work.commit(job, said)
    assert await work.listed() == expected
    assert [(piece["count"], piece["live"]) for piece in await work.slices()] == [(11, 7), (11, 9), (12, 12)]
    answer = await server.call("GET", "/v1/messages?state=cancelled")
    assert len(answer.body["messages"]) == 5
    for text in ("m1", "m2", "m3", "m15", "new15"):
        answer = await server.call("GET", f"/v1/messages/{work.ids[text]}")
        assert answer.body["state"] == "cancelled"
        await server.call("DELETE", f"/v1/messages/{work.ids[text]}", status=204)
    count = (await server.call("GET", "/v1/messages?count=true")).body["count"]
    assert count == len(expected)
    query = f"from={SLICE}&to={SLICE + 6 * HOUR_MS}"
    density = await server.call("GET", f"/v1/timeline/density?{query}&bucket=PT10M")
    assert density.body["total"] == count
    query = f"due_from={SLICE}&due_to={SLICE + 6 * HOUR_MS}"
    assert (await server.call("GET", f"/v1/messages?count=true&{query}")).body["count"] == count
    await server.call("PATCH", f"/v1/messages/{work.ids['m4']}", {"deliver_at": work.text(due(0) + 1)})
    await server.call("DELETE", f"/v1/messages/{work.ids['m20']}", status=204)
    assert (await work.listed())[:3] == ["m0", "m4", "m5"]
    assert [piece["live"] for piece in await work.slices()] == [8, 9, 10]


async def test_much_that_comes_during_the_job_is_counted(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "FEW_ROWS", 3)
    job = await work.create()
    said = await work.count(job, CUTS)
    for number in range(0, 30, 2):
        await work.put(number, f"new{number}")
    await work.commit(job, said)
    assert [(piece["count"], piece["live"]) for piece in await work.slices()] == [(15, 15)] * 3


async def test_delivered_once_in_order_over_a_split(work: Work) -> None:
    server = work.server
    _, link = await server.connect("reader", "t/+/x", expiry_s=365 * 86_400)
    await work.split(CUTS)
    await server.call("POST", "/v1/clock:advance", {"by": "P11D"})
    assert [message.record.payload.decode() for message in link.sent] == EVERYTHING
    # What is behind retention goes, a child at a time, with its part of what is borrowed.
    work.check()
    await server.call("POST", "/v1/clock:advance", {"by": "P8D"})
    assert not list(server.store.scan(Table.MESSAGES, b"", b"\xff" * 22))
    assert not list(server.store.scan(Table.SHARDS, b"", b"\xff" * 22))


async def test_who_was_away_reads_on_over_split_slices(work: Work) -> None:
    server = work.server
    subscriber, gone = await server.connect("reader", "t/+/x", expiry_s=365 * 86_400)
    server.app.core.clients.leave(subscriber, is_clean=False)
    await work.split(CUTS)
    await server.call("POST", "/v1/clock:advance", {"by": "P11D"})
    _, link = await server.connect("reader", expiry_s=365 * 86_400)
    await server.app.quiet()
    assert gone.sent == []
    assert [message.record.payload.decode() for message in link.sent] == EVERYTHING


async def test_an_aborted_split_changes_nothing(work: Work) -> None:
    job = await work.create()
    ended = await work.abort(job, "why not")
    assert (ended["state"], ended["detail"], ended["children"]) == ("aborted", "why not", [])
    await work.put(12, "new12")
    assert [(piece["count"], piece["generation"]) for piece in await work.slices()] == [(31, 0)]


async def test_what_was_cut_is_cut_again(work: Work) -> None:
    await work.split(CUTS)
    await work.put(12, "new12")
    await work.split([due(15)], CUTS[0])
    work.check()
    await work.split([SLICE + 50 * MINUTE_MS])
    await work.server.call("DELETE", f"/v1/messages/{work.ids['m22']}", status=204)
    again = await work.create(CUTS[1])
    assert (again["slice"]["count"], again["slice"]["live"]) == (10, 9)
    await work.commit(again, await work.count(again, [due(25)]))
    work.check()
    seen = [(piece["count"], piece["live"]) for piece in await work.slices()]
    assert seen == [(5, 5), (5, 5), (6, 6), (5, 5), (5, 4), (5, 5)]
    expected = [*EVERYTHING[:13], "new12", *EVERYTHING[13:22], *EVERYTHING[23:]]
    assert await work.listed() == expected


# -- refusals


async def test_what_cannot_be_split(work: Work) -> None:
    assert (await work.create(SLICE + 1, 404))["type"] == "/problems/not-found"
    near = await work.server.schedule(deliver_in="1m")
    start = (await work.server.call("GET", f"/v1/messages/{near}/explain")).body["slice"]
    body = {"kind": "split", "slice": start, "run": "caller"}
    assert (await work.post("/v1/jobs", body, 409))["type"] == "/problems/too-near"
    await work.create()
    assert (await work.create(status=409))["type"] == "/problems/job-active"
    await work.post("/v1/jobs", {"kind": "expire", "slice": SLICE}, 422)
    refused = await work.post("/v1/jobs", {"kind": "expire", "run": "caller"}, 409)
    assert refused["type"] == "/problems/nothing-to-expire"


@pytest.mark.parametrize(
    "cuts", [[], [SLICE], [SLICE + 6 * HOUR_MS], [CUTS[1], CUTS[0]], [CUTS[0], CUTS[0]], [SLICE - 1]]
)
async def test_bad_cuts_change_nothing(work: Work, cuts: list[int]) -> None:
    job = await work.create()
    pieces = [{"rows": 0, "live": 0, "bytes": 0}] * (len(cuts) + 1)
    refused = await work.commit(job, {"cuts": cuts, "pieces": pieces}, 422)
    assert refused["errors"][0]["field"] == "cuts"
    assert [piece["generation"] for piece in await work.slices()] == [0]
    assert (await work.look(job))["state"] == "planning"
    await work.commit(job, await work.count(job, CUTS))


async def test_tokens_and_states(work: Work) -> None:
    job = await work.create()
    said = await work.count(job, CUTS)
    stale = {**job, "token": "0" * 32}
    assert (await work.commit(stale, said, 409))["type"] == "/problems/stale-token"
    assert (await work.commit(job, {"slices": []}, 409))["type"] == "/problems/wrong-state"
    nobody = {**job, "id": "nobody"}
    assert (await work.commit(nobody, said, 404))["type"] == "/problems/not-found"
    await work.server.call("GET", "/v1/jobs/nobody", status=404)
    await work.server.call("POST", f"/v1/jobs/{job['id']}:begin", {}, status=404)
    for wrong in ({}, {"cuts": CUTS}, {"pieces": said["pieces"]}, {**said, "slices": []}, {"files": []}):
        await work.commit(job, wrong, 422)
    await work.abort(job)
    refused = await work.commit(job, said, 409)
    assert refused["type"] == "/problems/wrong-state"
    assert "a client aborted it" in refused["detail"]
    listed = (await work.server.call("GET", "/v1/jobs")).body
    assert [one["id"] for one in listed["jobs"]] == [job["id"]]
    assert listed["next"] is None


async def test_pages_while_jobs_begin_and_end(work: Work) -> None:
    """Three have ended; between two pages one begins, and it ends before the last page."""
    ended = []
    for _ in range(3):
        ended.append(await work.create())
        await work.abort(ended[-1])
        await work.server.pass_time(1_000)
    seen, cursor, job = [], "", None
    while cursor is not None:
        page = (await work.server.call("GET", f"/v1/jobs?limit=1&cursor={cursor}")).body
        seen += [one["id"] for one in page["jobs"]]
        cursor = page["next"]
        if job is None:
            job = await work.create()
        elif len(seen) == 2:
            await work.abort(job)
    assert seen == [one["id"] for one in reversed(ended)]
    await work.server.call("GET", "/v1/jobs?cursor=1", status=422)


async def test_progress_is_shown(work: Work) -> None:
    job = await work.create()
    assert (await work.look(job))["progress"] is None
    answer = await work.post(f"/v1/jobs/{job['id']}:renew", {"token": job["token"], "done": 3, "total": 9})
    assert answer["lease_s"] == 60
    assert (await work.look(job))["progress"] == {"done": 3, "total": 9}


async def test_a_lease_lapses(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "LEASE_S", 0)
    first = await work.create()
    late = await work.commit(first, {"cuts": [], "pieces": []}, 409)
    assert "lapsed" in late["detail"]
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
    said = [await work.count(one, CUTS), await work.count(two, [other + 5 * STEP_MS])]
    await asyncio.gather(work.commit(one, said[0]), work.commit(two, said[1]))
    assert await work.listed() == [*EVERYTHING, *[f"o{number}" for number in range(10)]]


async def test_sibling_slices_at_once(work: Work) -> None:
    """Two jobs that read the same shards, and a cancel in each."""
    await work.split([CUTS[0]])
    one, two = await work.create(SLICE), await work.create(CUTS[0])
    said = [await work.count(one, [due(5)]), await work.count(two, [CUTS[1]])]
    for text in ("m3", "m22"):
        await work.server.call("DELETE", f"/v1/messages/{work.ids[text]}", status=204)
    await asyncio.gather(work.commit(one, said[0]), work.commit(two, said[1]))
    assert await work.listed() == [text for text in EVERYTHING if text not in ("m3", "m22")]
    assert [piece["live"] for piece in await work.slices()] == [4, 5, 10, 9]


# -- what a job says


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"rows": -1}, "29 rows in all pieces, the slice had 30"),
        ({"rows": 1}, "31 rows in all pieces, the slice had 30"),
        ({"live": 1}, "31 live rows in all pieces, the slice had 29 to 30"),
        ({"live": -2}, "28 live rows in all pieces, the slice had 29 to 30"),
        ({"bytes": -(1 << 20)}, None),
    ],
)
async def test_what_cannot_be_is_refused_and_may_be_corrected(
    work: Work, changes: dict[str, int], detail: str | None
) -> None:
    job = await work.create()
    said = await work.count(job, CUTS)
    await work.server.call("DELETE", f"/v1/messages/{work.ids['m7']}", status=204)
    wrong = dict(said["pieces"][0])
    for name, by in changes.items():
        wrong[name] = max(0, wrong[name] + by)
    refused = await work.commit(job, {**said, "pieces": [wrong, *said["pieces"][1:]]}, 422)
    assert refused["type"] == "/problems/bad-manifest"
    assert detail is None or refused["detail"] == detail
    assert (await work.look(job))["state"] == "planning"
    assert [piece["generation"] for piece in await work.slices()] == [0]
    await work.commit(job, said)
    assert [(piece["count"], piece["live"]) for piece in await work.slices()] == [(10, 9), (10, 10), (10, 10)]


async def test_there_are_as_many_pieces_as_cuts_and_one(work: Work) -> None:
    job = await work.create()
    said = await work.count(job, CUTS)
    for pieces in (said["pieces"][1:], [*said["pieces"], said["pieces"][0]], []):
        refused = await work.commit(job, {**said, "pieces": pieces}, 422)
        assert refused["type"] == "/problems/bad-manifest"
    await work.commit(job, {**said, "pieces": [{"rows": -1, "live": 0, "bytes": 0}] * 3}, 422)
    await work.commit(job, {**said, "pieces": [{"rows": 1 << 32, "live": 0, "bytes": 0}] * 3}, 422)


async def test_a_piece_may_have_more_than_four_gigabytes(work: Work) -> None:
    job = await work.create()
    said = await work.count(job, CUTS)
    said["pieces"][0]["bytes"] = 5 << 30
    await work.commit(job, said)
    assert (await work.slices())[0]["bytes"] == 5 << 30


async def test_a_job_that_lapses_while_it_commits_is_done(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at, aborted and committed again meanwhile; its program has ended."""
    app = work.server.app
    monkeypatch.setattr(handover, "FEW_ROWS", 0)
    job = await work.create()
    said = await work.count(job, CUTS)
    await work.put(3, "new")
    count, may_go_on, is_counting = splitting._count, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        is_counting.set()
        may_go_on.wait(60)
        return count(*arguments)

    monkeypatch.setattr(splitting, "_count", slow)
    commit = asyncio.ensure_future(work.commit(job, said))
    await asyncio.to_thread(is_counting.wait, 10)
    app.pipeline.get(job["id"]).lease_until = 0.0  # type: ignore[union-attr]
    await app.pipeline.sweep()
    await app.pipeline._child_ended(job["id"], "killed")
    await work.commit(job, said, 409)
    await work.post(f"/v1/jobs/{job['id']}:abort", {"token": job["token"]}, 409)
    may_go_on.set()
    assert (await commit)["state"] == "done"
    row = stored_job(work.server.store, job["id"])
    assert row is not None
    assert (row.state, row.detail) == ("done", "")
    assert sorted(await work.listed()) == sorted([*EVERYTHING, "new"])


async def test_a_slice_that_has_come_near_is_given_up(work: Work) -> None:
    job = await work.create()
    said = await work.count(job, CUTS)
    await work.server.call("POST", "/v1/clock:advance", {"by": (SLICE - START_MS - 3_000) / 1000})
    assert (await work.commit(job, said, 409))["type"] == "/problems/too-near"
    assert (await work.look(job))["state"] == "aborted"
    assert await work.listed() == EVERYTHING


@pytest.mark.parametrize("is_swept", [True, False])
async def test_too_many_changes_end_a_job(
    work: Work, monkeypatch: pytest.MonkeyPatch, is_swept: bool
) -> None:
    monkeypatch.setattr(slices, "WATCH_MAX", 2)
    job = await work.create()
    said = await work.count(job, CUTS)
    for text in ("m1", "m2", "m3"):
        await work.server.call("DELETE", f"/v1/messages/{work.ids[text]}", status=204)
    if is_swept:
        await work.server.app.pipeline.sweep()
    assert "cancelled or moved" in (await work.commit(job, said, 409))["detail"]
    assert "cancelled or moved" in (await work.look(job))["detail"]
    assert await work.listed() == EVERYTHING[:1] + EVERYTHING[4:]
    await work.split(CUTS)


# -- failures


async def test_a_commit_that_fails_is_as_if_it_had_not_been(work: Work) -> None:
    job = await work.create()
    said = await work.count(job, CUTS)
    work.server.store.is_failing = True
    assert (await work.commit(job, said, 503))["type"] == "/problems/store-unavailable"
    work.server.store.is_failing = False
    await back(work)
    await work.server.app.pipeline.sweep()
    assert [piece["generation"] for piece in await work.slices()] == [0]
    assert (await work.look(job))["detail"] == "the store failed"
    await work.split(CUTS)
    assert await work.listed() == EVERYTHING


async def test_a_store_that_failed_meanwhile_ends_the_job(work: Work) -> None:
    """Stubs were noted that are lost: what the job has counted cannot be made that of now."""
    job = await work.create()
    said = await work.count(job, CUTS)
    work.server.store.loses_next = True
    await work.server.call("DELETE", f"/v1/messages/{work.ids['m3']}", status=503)
    await work.server.app.quiet()
    await back(work)
    assert (await work.commit(job, said, 409))["type"] == "/problems/wrong-state"
    assert (await work.look(job))["state"] == "aborted"
    await work.split(CUTS)
    assert await work.listed() == EVERYTHING


async def back(work: Work) -> None:
    while work.server.app.core.writer.broken is not None:
        await asyncio.sleep(0.05)


async def test_a_start_gives_up_what_was_open(start: Start) -> None:
    async with start() as server:
        work = Work(server)
        await work.fill()
        job = await work.create()
        ended = await work.commit(job, await work.count(job, CUTS))
        open_job = await work.create(CUTS[0])
    async with start() as server:
        work.server = server
        seen = await work.look(open_job)
        assert (seen["state"], seen["detail"]) == ("aborted", "the server restarted")
        seen = await work.look(job)
        assert (seen["ended_at"], seen["children"]) == (ended["ended_at"], ended["children"])
        assert [piece["count"] for piece in await work.slices()] == [10, 10, 10]
        work.check()
        assert await work.listed() == EVERYTHING


# -- expiry


@pytest.fixture
def by_job(config: Config) -> Config:
    return replace(config, slices=replace(Slices(), expire_by="job", retention_ms=DAY_MS))


def counted_slices(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The report of a job that has read its slices."""
    return [
        {"start_ms": one["start_ms"], "generation": one["generation"], "rows": one["count"]}
        for one in job["slices"]
    ]


async def test_expire_jobs_drop_what_they_have_read(
    tmp_path: Path, by_job: Config, clock: SimulatedClock
) -> None:
    async with running(tmp_path / "data", by_job, clock) as server:
        work = Work(server)
        await work.fill()
        await work.split(CUTS)
        await server.call("DELETE", f"/v1/messages/{work.ids['m1']}", status=204)
        await server.call("POST", "/v1/clock:advance", {"by": "P12D"})
        await work.put(0, "late")
        assert len(await work.listed("state=dispatched")) == COUNT - 1 + 1, "nothing goes without a job"
        job = await work.post("/v1/jobs", {"kind": "expire", "run": "caller"}, 201)
        assert job["archive"] is None
        assert [(piece["count"], piece["live"]) for piece in job["slices"]] == [(10, 9), (10, 10), (10, 10)]
        path = f"/v1/jobs/{job['id']}:commit"
        slices = counted_slices(job)
        for spoiled in (slices[1:], [{**slices[0], "rows": 9}, *slices[1:]]):
            refused = await work.post(path, {"token": job["token"], "slices": spoiled}, 422)
            assert refused["type"] == "/problems/bad-manifest"
        ended = await work.post(path, {"token": job["token"], "slices": slices})
        assert (ended["state"], ended["rows"]) == ("done", COUNT)
        assert await work.listed("state=dispatched") == ["late"]
        await server.app.garbage.sweep()
        work.check()
        metrics = (await server.call("GET", "/metrics")).body.decode()
        assert 'fasti_job_rows_total{kind="expire"} 30.0' in metrics
        assert 'fasti_jobs_ended_total{kind="split",outcome="done"} 1.0' in metrics


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
        *("a\0b", "\0", "x" * 10_000, "x" * 256, "x/" * 5_000 + "x"),
        *("first/x/y", "\x01/\x02", "~/x", "inner"),
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
        legal = "DATA|data2|%2e%2e|..%2fdata|\u00e9|e\u0301|\uff0e\uff0e|data\\x|data "
        names = legal.split("|")
        for name in names:
            made = await server.call("POST", "/v1/backups", {"dir": name}, status=201)
            assert made.body["dir"] == str(tmp_path / name)
        assert set(os.listdir(tmp_path)) == {"data", "link", *names}


async def test_one_backup_is_made_at_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine clears `x.tmp` before it makes `x`: it must not be a backup that has been answered."""
    both, checkpoint, met = threading.Barrier(2), RocksStore.checkpoint, []

    def slow(store: RocksStore, path: Path) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.1)
            met.append(path)
        checkpoint(store, path)

    monkeypatch.setattr(RocksStore, "checkpoint", slow)
    async with start() as server:
        wishes = [server.call("POST", "/v1/backups", {"dir": name}, status=None) for name in ("x.tmp", "x")]
        answers = await asyncio.gather(*wishes)
    assert not met
    assert sorted(answer.status for answer in answers) in ([201, 201], [201, 422])
    assert all((Path(one.body["dir"]) / "CURRENT").is_file() for one in answers if one.status == 201)


async def refused_archive(work: Work, status: int = 422, **wish: object) -> str:
    body = {"kind": "archive", "run": "caller", **wish}
    (error,) = (await work.post("/v1/jobs", body, status))["errors"]
    assert error["field"] == "archive"
    return str(error["detail"])


async def test_a_job_archives_only_where_the_server_says(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    archive = str(tmp_path / "archive")
    ours = replace(config, slices=replace(Slices(), archive=archive, retention_ms=DAY_MS))
    async with running(tmp_path / "data", ours, clock) as server:
        work = Work(server)
        for other in ("/elsewhere", "archive", "s3://bucket/archive"):
            for kind in ("archive", "expire", "compact"):
                assert archive in await refused_archive(work, kind=kind, archive=other)
        await work.fill()
        await server.call("POST", "/v1/clock:advance", {"by": "P12D"})
        (tmp_path / "archive").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "archive")
        for same in ((tmp_path / "archive").as_uri(), str(tmp_path / "link")):
            job = await work.post("/v1/jobs", {"kind": "archive", "run": "caller", "archive": same}, 201)
            assert job["archive"] == archive
            await work.abort(job)


async def test_the_archive_of_a_caller(tmp_path: Path, by_job: Config, clock: SimulatedClock) -> None:
    async with running(tmp_path / "data", by_job, clock) as server:
        work = Work(server)
        await work.fill()
        await server.call("POST", "/v1/clock:advance", {"by": "P12D"})
        assert "absolute path or a URL" in await refused_archive(work, archive="archive")
        assert "run=caller" in await refused_archive(work, archive="/a", run="server")
        assert "slices.archive is empty" in await refused_archive(work)
        (tmp_path / "link").symlink_to(tmp_path / "data")
        inside = (str(tmp_path / "data" / "jobs"), (tmp_path / "data").as_uri(), f"file:{tmp_path}/link/x")
        for one in inside:
            assert "store.dir" in await refused_archive(work, archive=one)
        await refused_archive(work, kind="split", slice=SLICE, archive="/a")
        job = await work.post("/v1/jobs", {"kind": "archive", "run": "caller", "archive": "s3://b/x"}, 201)
        assert job["archive"] == "s3://b/x"
