"""The server's own archive, by the real program: archived, published, read back, dropped. No Spark."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.jobs.looks import Looks
from server.settings.config import Config, Slices
from tests.support.served import until

from ..conftest import DAY_MS, Running, running

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed"),
]


@pytest.fixture
def ram() -> None:
    """The child reads a checkpoint."""


async def next_job(server: Running, looks: Looks, known: int) -> Any:
    """The job that the next look starts, when it has ended."""
    await looks.look()
    app = server.app
    await until(lambda: not (app.launcher.is_running or app.pipeline.open))
    jobs = (await server.call("GET", "/v1/jobs")).body["jobs"]
    assert len(jobs) == known, jobs
    return jobs[0]


async def test_what_has_passed_is_archived_and_what_is_archived_is_dropped(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    slices = replace(Slices(), archive=str(tmp_path / "archive"), retention_ms=DAY_MS)
    async with running(tmp_path / "data", replace(config, slices=slices), clock) as server:
        app = server.app
        app.launcher.reachable_at(str(server.http.make_url("")).rstrip("/"))
        looks = app.housekeeping._looks
        await server.schedule(deliver_in="1m")
        await server.call("POST", "/v1/clock:advance", {"by": "PT30M"})
        job = await next_job(server, looks, 1)
        assert (job["kind"], job["run"], job["state"], job["rows"]) == ("archive", "server", "done", 1), job
        (commit,) = (await server.call("GET", "/v1/archive")).body["manifests"]
        (file,) = commit["files"]
        assert (tmp_path / "archive" / file["path"]).stat().st_size == file["bytes"]
        await looks.look()
        assert not app.pipeline.open, "there is nothing to do"
        await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
        job = await next_job(server, looks, 2)
        assert (job["kind"], job["state"], job["rows"]) == ("expire", "done", 1), job
        assert not len(app.core.directory)
