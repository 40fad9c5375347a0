"""Jobs, backups, and what the shell completes: SDK and command line against the stand-in."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

import fasti
import fasti.sync
from tests.sdk.fake import SLICE, Fake
from tests.sdk.test_cli import fasti_cli, ok
from tests.support.ports import free_port

START = str(SLICE["start"])
ODD = "2030-01-01T00:01:00.000Z"


async def test_a_job_is_followed_to_its_end(client: fasti.Client) -> None:
    made = await client.jobs.split(START, parts=4)
    assert (made.kind, made.state, made.is_over, made.raw["parts"]) == ("split", "planning", False, 4)
    with pytest.raises(fasti.Refused) as refused:
        await client.jobs.expire()
    assert refused.value.slug == "job-active"
    seen: list[tuple[int | None, int | None]] = []
    ended = await client.jobs.wait(
        made.id, on_progress=lambda job: seen.append((job.done, job.total)), poll_s=0.01
    )
    assert (ended.state, seen) == ("done", [(1, 2), (2, 2)])
    assert [job.id async for job in client.jobs.list()] == [made.id]
    with pytest.raises(fasti.NotFound):
        await client.jobs.get("nothing")


async def test_a_job_is_started_once(client: fasti.Client, fake: Fake) -> None:
    fake.faults = ["lost"]
    with pytest.raises(fasti.Unreachable):
        await client.jobs.split(START)
    assert len(fake.jobs) == 1
    fake.jobs.clear()
    fake.faults = [(503, {})]
    made = await client.jobs.expire()
    assert (made.kind, (await client.jobs.wait(made.id, poll_s=0.01)).state) == ("expire", "done")


async def test_what_the_archive_has(client: fasti.Client, fake: Fake) -> None:
    fake.commits = [{"number": number, "kind": "append", "end_ms": number} for number in (1, 2, 3)]
    assert [one.number async for one in client.jobs.commits()] == [1, 2, 3]
    assert [(one.number, one.end_ms) async for one in client.jobs.commits(since=2)] == [(3, 3)]
    assert (await client.jobs.archive()).kind == "archive"
    fake.jobs.clear()
    assert (await client.jobs.compact("2026-12-01")).kind == "compact"


async def test_the_command_line(url: str, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasti.admin.Jobs.wait.__kwdefaults__", {"on_progress": None, "poll_s": 0.01})
    at = ("--url", url)
    said = json.loads(await ok("slice", "split", START, "--parts", "3", "-o", "json", *at))
    assert (said["state"], said["parts"]) == ("done", 3)
    code, out, err = await fasti_cli("slice", "split", ODD, *at)
    assert (code, "aborted" in out, "lease lapsed" in err) == (1, True, True)
    for verb in ("archive", "compact"):
        assert json.loads(await ok("slice", verb, "-o", "json", *at))["kind"] == verb
    started = json.loads(await ok("slice", "expire", "--no-wait", "-o", "json", *at))
    assert started["state"] == "planning"
    code, _, err = await fasti_cli("slice", "expire", *at)
    assert (code, "job-active" in err) == (1, True)
    table = await ok("job", "ls", *at)
    assert START in table
    assert "lease lapsed" in table
    assert len(json.loads(await ok("job", "ls", "-o", "json", *at))) == 5
    assert json.loads(await ok("job", "show", said["id"], "-o", "ndjson", *at))["kind"] == "split"
    assert (await fasti_cli("job", "show", "nothing", *at))[0] == 1
    assert (await fasti_cli("slice", "split", START, "--parts", "1", *at))[0] == 2


async def test_backup(url: str) -> None:
    assert json.loads(await ok("server", "backup", "/b", "-o", "json", "--url", url)) == {"dir": "/b"}
    code, _, err = await fasti_cli("server", "backup", "b", "--url", url)
    assert (code, "must be absolute" in err) == (1, True)
    assert (await fasti_cli("server", "backup", "--url", url))[0] == 2


async def completed(line: str, **variables: str) -> list[str]:
    """What bash would be offered behind `line`."""
    words = line.split()
    index = len(words) if line.endswith(" ") else len(words) - 1
    given = {"_FASTI_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(index)}
    with patch.dict(os.environ, {**given, **variables}):
        code, out, _ = await fasti_cli()
    assert code == 0
    return out.split()


async def test_names_are_completed(url: str) -> None:
    async with fasti.Client(url) as c:
        job = await c.jobs.expire()
    assert await completed("fasti sch") == ["schedule"]
    assert "--cron" in await completed("fasti schedule put --c")
    assert await completed("fasti session show a", FASTI_URL=url) == ["audit/1"]
    assert await completed(f"fasti --url {url} session rm ") == ["audit/1"]
    assert await completed("fasti job show ", FASTI_URL=url) == [job.id]
    assert await completed("fasti session show x", FASTI_URL=url) == []
    assert await completed("fasti session show ", FASTI_URL=f"http://127.0.0.1:{free_port()}") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_completion_is_installed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fasti.cli", "--show-completion", "bash"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "_FASTI_COMPLETE=complete_bash" in done.stdout
