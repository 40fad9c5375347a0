"""Calls on sessions, slices and shards, jobs on slices, the timeline, the server itself and its cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

from .answers import ClusterState, Commit, Density, Job, Session, Shard, Skipped, Slice
from .places import Fate, PlaceCalls
from .ranges import selection
from .transport import Calls, quoted
from .wire import Json, Span, When, dumps, instant, moment, span

POLL_S = 0.5


class Sessions(Calls):
    """Calls on `/v1/sessions`."""

    async def list(self) -> AsyncIterator[Session]:
        """All sessions, connected and away."""
        async for found in self._transport.pages("/v1/sessions", "sessions"):
            yield Session.of(found)

    async def get(self, client_id: str) -> Session:
        """Raises NotFound."""
        return Session.of(await self._transport.ask("GET", _session(client_id)))

    async def remove(self, client_id: str) -> None:
        """Forget the session, its subscriptions and its read position. Raises NotFound."""
        await self._transport.call("DELETE", _session(client_id))

    async def replay(self, client_id: str, since: When | timedelta) -> Json:
        """Set the read position back to an instant, or by a duration. Raises NotFound, Refused."""
        body = dumps({"from": moment(since)})
        answer = await self._transport.call("POST", _session(client_id) + ":replay", body=body)
        return answer.body if isinstance(answer.body, dict) else {}

    async def skip(self, client_id: str, to: When | timedelta = "now", undone: Fate = "dead") -> Skipped:
        """Skip the backlog, as for a group. Raises NotFound, Refused."""
        return await PlaceCalls(self._transport, _session(client_id)).skip(to, undone)


class Slices(Calls):
    """Calls on `/v1/slices`. `start` is the slice's first instant, as RFC 3339 or Unix ms in text."""

    async def list(self) -> AsyncIterator[Slice]:
        """All slices in order of time."""
        async for found in self._transport.pages("/v1/slices", "slices"):
            yield Slice.of(found)

    async def get(self, start: When) -> Slice:
        """One slice with its shards. Raises NotFound."""
        return Slice.of(await self._transport.ask("GET", _slice(start)))

    async def shard(self, start: When, number: int) -> Shard:
        """Raises NotFound."""
        return Shard.of(await self._transport.ask("GET", f"{_slice(start)}/shards/{number}"))


class Timeline(Calls):
    """Calls on `/v1/timeline`."""

    async def density(
        self,
        *,
        start: When | None = None,
        end: When | None = None,
        bucket: Span = 60,
        topic: str | None = None,
    ) -> Density:
        """Exact counts per bucket; from now and for a day if not said otherwise. Raises Refused."""
        chosen = selection({"topic": topic, "start": start, "end": end})
        params = {**chosen, "bucket": span(bucket, "bucket")}
        return Density.of(
            await self._transport.ask("GET", "/v1/timeline/density", params=params, timeout_s=0)
        )


class Cluster(Calls):
    """Calls on `/v1/cluster`."""

    async def status(self) -> ClusterState:
        """The cluster as the answering node sees it. Raises NotFound if the server is not in a cluster.

        Every node answers for itself. The table of all nodes is the leader's; the others have the last one
        that they received.
        """
        return ClusterState.of(await self._transport.ask("GET", "/v1/cluster"))


class Jobs(Calls):
    """Calls on `/v1/jobs`: work on whole slices, and the archive.

    A job goes on by itself; a `Job` is what the server last said of it. `wait` asks until it has ended.
    """

    async def split(self, start: When, *, parts: int | None = None) -> Job:
        """Split a slice into narrower ones. `start`: its first instant.

        Raises NotFound; Refused with the slug `too-near`, `job-active` or `no-spark`.
        """
        body: Json = {"kind": "split", "slice": instant(start, "start"), "run": "server"}
        return await self._start(body if parts is None else {**body, "parts": parts})

    async def expire(self) -> Job:
        """Drop the slices behind retention; with an archive those that it has. Raises Refused if there are
        none."""
        return await self._start({"kind": "expire", "run": "server"})

    async def archive(self) -> Job:
        """Archive what has passed. Raises Refused with the slug `nothing-to-do` if that is done."""
        return await self._start({"kind": "archive", "run": "server"})

    async def compact(self, date: str | None = None) -> Job:
        """Compact the archive's files of a day, such as "2026-12-01", or of the newest one that is worth it.

        Raises Refused with the slug `nothing-to-do` if there is none.
        """
        body: Json = {"kind": "compact", "run": "server"}
        return await self._start(body if date is None else {**body, "date": date})

    async def commits(self, since: int = 0) -> AsyncIterator[Commit]:
        """The archive's commits behind a number, in order. Raises Refused if these are recorded no longer."""
        while True:
            answer = await self._transport.ask("GET", "/v1/archive", params={"since": str(since)})
            found = [Commit.of(one) for one in answer["manifests"]]
            for one in found:
                yield one
            if not found:
                return
            since = found[-1].number

    async def get(self, job_id: str) -> Job:
        """Raises NotFound."""
        return Job.of(await self._transport.ask("GET", f"/v1/jobs/{quoted(job_id)}"))

    async def list(self) -> AsyncIterator[Job]:
        """Open jobs, and the last ones that ended."""
        async for found in self._transport.pages("/v1/jobs", "jobs"):
            yield Job.of(found)

    async def wait(
        self, job_id: str, *, on_progress: Callable[[Job], None] | None = None, poll_s: float = POLL_S
    ) -> Job:
        """Wait until the job is done or aborted; each poll calls `on_progress`."""
        while True:
            job = await self.get(job_id)
            if on_progress is not None:
                on_progress(job)
            if job.is_over:
                return job
            await asyncio.sleep(poll_s)

    async def _start(self, body: Json) -> Job:
        return Job.of(await self._transport.ask("POST", "/v1/jobs", body, repeatable=False, timeout_s=0))


class Server(Calls):
    """Calls that concern the server itself."""

    async def backup(self, directory: str) -> str:
        """Write a consistent copy of the data into a new directory on the server's machine; returns its path.

        Raises Refused: the path is not below the server's `store.backups`, or something is there.
        """
        body = {"dir": directory}
        answer = await self._transport.ask("POST", "/v1/backups", body, repeatable=False, timeout_s=0)
        return str(answer["dir"])

    async def drain(self, *, cancel: bool = False) -> Json:
        """Give groups and endpoints nothing new, for maintenance, or (`cancel`) let them go on.

        Gives `draining`, `since` and `out`: how many messages workers and endpoints still have. Call it again
        to see how that falls. Raises Refused: the server is stopping, which cannot be cancelled.
        """
        return await self._transport.ask("POST", "/v1/drain:cancel" if cancel else "/v1/drain")


def _session(client_id: str) -> str:
    return f"/v1/sessions/{quoted(client_id)}"


def _slice(start: When) -> str:
    return f"/v1/slices/{quoted(instant(start, 'start'))}"
