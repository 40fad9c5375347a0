"""`client.jobs`: Spark jobs on whole slices: split one, expire old ones.

A job goes on by itself; a `Job` is what the server last said of it. `wait` asks until it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from .answers import Job
from .transport import Transport, quoted
from .wire import Json, When, instant

POLL_S = 0.5


class Jobs:
    """Calls on `/v1/jobs`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def split(self, start: When, *, parts: int | None = None) -> Job:
        """Split a slice into narrower ones. `start`: its first instant.

        Raises NotFound; Refused with the slug `too-near`, `job-active` or `no-spark`.
        """
        body: Json = {"kind": "split", "slice": instant(start, "start"), "run": "server"}
        return await self._start(body if parts is None else {**body, "parts": parts})

    async def expire(self) -> Job:
        """Archive and drop the slices behind retention. Raises Refused if there are none."""
        return await self._start({"kind": "expire", "run": "server"})

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
