"""The pages for other languages: their files are written down, and run beside each other with a server.

MQTT.js comes from npm, paho from Debian (golang-github-eclipse-paho.mqtt.golang-dev) or by `go get`.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.server import ServerProcess

from .programs import ROOT, key_of, ran

pytestmark = pytest.mark.proof

FILE = re.compile(r"^```(?:js|go)\n(// (\w+\.\w+).*?)^```$", re.DOTALL | re.MULTILINE)
WAIT_S = 60
INSTALL_S = 180
GOCODE = Path("/usr/share/gocode")
PAHO = "github.com/eclipse/paho.mqtt.golang"
SCHEDULED = re.compile(r"(moved|has been sent before) [0-9a-f]{32}\ncancelled, nobody will get it\n")


def written(page: str, folder: Path) -> Path:
    """The files of the page."""
    folder.mkdir()
    found = FILE.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(found) == 4
    for text, name in found:
        (folder / name).write_text(text)
    return folder


def installed(command: list[str], folder: Path, env: dict[str, str]) -> None:
    """Run an installer; skip where it has nothing to install from."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{' '.join(command)} takes longer than {INSTALL_S} s")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        pytest.skip(f"{' '.join(command)} fails: {said[-1] if said else done.returncode}")


def javascript(folder: Path) -> Callable[[str], list[str]]:
    """The command that runs a file."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    written("javascript.md", folder)
    installed(["npm", "install", "--no-audit", "--no-fund", "mqtt@5"], folder, dict(os.environ))
    return lambda what: ["node", f"{ {'work': 'worker'}.get(what, what) }.mjs"]


def go(folder: Path) -> Callable[[str], list[str]]:
    """The same; all of it is one program."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    written("go.md", folder)
    env = {**os.environ, "GOFLAGS": "-modcacherw"}
    if (GOCODE / "src" / PAHO).is_dir():
        env |= {"GO111MODULE": "off", "GOPATH": str(GOCODE), "GOFLAGS": ""}
    else:
        env |= {"GOPATH": str(folder / "path")}
        installed(["go", "mod", "init", "example"], folder, env)
        installed(["go", "get", PAHO], folder, env)
    subprocess.run(["go", "vet", "."], cwd=folder, env=env, timeout=INSTALL_S, check=True)
    subprocess.run(["go", "build", "-o", "example"], cwd=folder, env=env, timeout=INSTALL_S, check=True)
    assert subprocess.run(["gofmt", "-l", "."], cwd=folder, capture_output=True, check=True).stdout == b""
    return lambda what: ["./example", what]


@contextmanager
def beside(command: list[str], folder: Path, env: dict[str, str], name: str) -> Iterator[Path]:
    """A program that goes on until the end; what it prints."""
    with (folder / name).open("w") as out, subprocess.Popen(command, cwd=folder, env=env, stdout=out) as one:
        try:
            yield folder / name
        finally:
            one.kill()


def until(what: Callable[[], object], name: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, name
        time.sleep(0.05)


@pytest.mark.parametrize("language", [javascript, go], ids=lambda one: one.__name__)
def test_the_page_schedules_works_and_subscribes(
    language: Callable[[Path], Callable[[str], list[str]]], tmp_path: Path
) -> None:
    command = language(tmp_path / "page")
    keys = tmp_path / "keys.toml"
    key = key_of("keys add shop --scope schedule --scope read", keys)
    server = ServerProcess(tmp_path / "data", settings={"auth.keys_file": keys})

    def is_there() -> bool:
        request = Request(f"{server.url}/v1/groups/shop", headers={"Authorization": f"Bearer {key}"})
        try:
            with urlopen(request, timeout=10) as answer:
                return bool(json.load(answer)["groups"])
        except HTTPError:
            return False

    def post(path: str, body: object) -> None:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        urlopen(Request(server.url + path, json.dumps(body).encode(), headers), timeout=10).close()

    try:
        server.wait_ready()
        scheme = "tcp" if language is go else "mqtt"
        mqtt = f"{scheme}://{server.mqtt[0]}:{server.mqtt[1]}"
        env = {**os.environ, "FASTI_URL": server.url, "FASTI_MQTT": mqtt, "FASTI_KEY": key}
        with ExitStack() as programs:
            folder = tmp_path / "page"
            heard = programs.enter_context(beside(command("subscribe"), folder, env, "heard"))
            worked = programs.enter_context(beside(command("work"), folder, env, "worked"))
            until(is_there, "the worker's group")
            for said in ("moved", "has been sent before"):
                done = ran(*command("schedule"), cwd=folder, env=env, within_s=WAIT_S)
                scheduled = SCHEDULED.fullmatch(done.stdout)
                assert scheduled, done.stdout + done.stderr
                assert scheduled[1] == said
                until(lambda: worked.read_text() == "remind 17\n", worked.read_text())
            until(lambda: heard.read_text() == "devices/7/wake now\n", heard.read_text())
            server.kill()
            listen = f"{server.http[0]}:{server.http[1]}"
            server = ServerProcess(server.data, "--http", listen, settings={"auth.keys_file": keys})
            server.wait_ready()
            post("/v1/messages", {"topic": "orders/19/remind", "payload": {"order": 19}})
            until(lambda: worked.read_text() == "remind 17\nremind 19\n", worked.read_text())
    finally:
        server.kill()
