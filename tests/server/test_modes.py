"""Nobody else reads what a real server and its commands write, whatever umask they are started with."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryDirectory

import pytest

from server.jobs.launch import UMASK_VARIABLE
from server.run import serve
from server.settings.config import ConfigError
from server.settings.reading import load
from tests.support.http import http
from tests.support.server import run, serving

pytestmark = pytest.mark.process

TOKEN = "token-of-the-receiver"
ENDPOINT = {"url": "https://example.com/hook", "headers": {"Authorization": f"Bearer {TOKEN}"}}


@pytest.fixture(params=[0o000, 0o022], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def used(data: Path, wanted: set[tuple[str, int]]) -> str:
    return asyncio.run(_used(data, wanted))


def modes(path: Path) -> set[tuple[str, int]]:
    """What a directory and all in it have, by kind."""
    return {
        ("folder" if one.is_dir() else "file", S_IMODE(one.stat().st_mode))
        for one in (path, *path.rglob("*"))
        if not one.is_symlink()
    }


OWN = {("folder", 0o700), ("file", 0o600)}
OF_GROUP = {("folder", 0o750), ("file", 0o640)}


async def _used(data: Path, wanted: set[tuple[str, int]]) -> str:
    """A server has run on the data, made a backup and a job, and started again; what it logged.

    `wanted`: what the folder of the job has.
    """
    async with serving(data) as server, http(server.url) as calls:
        await calls.call("PUT", "/v1/endpoints/billing", ENDPOINT, status=201)
        for number in range(100):
            await calls.schedule(f"a/{number}", deliver_in="2d")
        await calls.call("POST", "/v1/backups", {"dir": "monday"}, status=201)
        start = (await calls.call("GET", "/v1/slices")).body["slices"][0]["start"]
        job = {"kind": "split", "run": "caller", "slice": start}
        await calls.call("POST", "/v1/jobs", job, status=201)
        assert modes(data / "jobs") == wanted
        first = server.output
        assert server.stop() == 0
    async with serving(data) as server:
        assert server.stop() == 0
        return first + server.output


def test_data_that_is_made(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "data"
    tmp_path.chmod(0o755)
    log = used(data, OWN)
    assert modes(data) == OWN
    assert modes(tmp_path / "backups") == OWN
    assert any(TOKEN.encode() in file.read_bytes() for file in data.iterdir() if file.is_file())
    assert "WARNING" not in log
    verified = run("verify", "--repair", "--data", str(data))
    assert (verified.returncode, verified.stdout) == (0, "nothing wrong\n")
    assert modes(data) == OWN


def test_data_that_others_could_read(tmp_path: Path, umask: int) -> None:
    """Of an earlier version, or of a directory that somebody has made."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    log = used(data, OWN)
    assert modes(data) == OWN
    assert log.count("WARNING") == 1, log
    assert f"{data}: mode 0755 let others in: narrowed to 0700" in log


def test_data_that_is_shared_with_a_group(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o750)
    log = used(data, OF_GROUP)
    assert modes(data) == OF_GROUP
    assert log.count(f"{data}: mode 0750, so group {os.getgid()} can read the data") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_data_of_somebody_else(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    os.chown(data, 65_534, 65_534)
    log = used(data, OWN)
    assert modes(data) == {("folder", 0o755), ("file", 0o600)}
    assert log.count(f"{data}: mode 0755 and owner 65534, so others can read or change the data") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_nobody_reads_a_token(umask: int) -> None:
    with TemporaryDirectory(prefix="fasti-modes-") as name:
        folder = Path(name)  # not below pytest's own, which lets nobody in
        folder.chmod(0o755)
        used(folder / "data", OWN)
        search = ["grep", "-rl", TOKEN, str(folder / "data"), str(folder / "backups")]
        assert subprocess.run(search, capture_output=True, check=False).stdout
        found = subprocess.run(search, user="nobody", capture_output=True, text=True, check=False)
        assert (found.stdout, found.stderr.count("Permission denied")) == ("", 2)


def test_a_keys_file(tmp_path: Path, umask: int) -> None:
    keys = tmp_path / "keys.toml"
    for name in ("ops", "meter"):
        assert run("keys", "add", name, "--scope", "admin", "--file", str(keys)).returncode == 0
        assert S_IMODE(keys.stat().st_mode) == 0o600
    keys.chmod(0o640)
    assert run("keys", "revoke", "meter", "--file", str(keys)).returncode == 0
    assert S_IMODE(keys.stat().st_mode) == 0o640, "the server's group keeps it"


def test_jobs_get_the_umask_of_who_started_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(UMASK_VARIABLE, "")
    cluster = {"cluster.log": "nats://127.0.0.1:1", "cluster.node": "a", "cluster.key": "k" * 16}
    config = load(None, {}, {"store.dir": str(tmp_path / "data"), **cluster})[0]
    with pytest.raises(ConfigError, match="no simulated one"):
        serve(config, is_simulated=True, umask=0o027)
    assert os.environ[UMASK_VARIABLE] == "027"
