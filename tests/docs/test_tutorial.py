"""The two tutorials are followed as they stand, from top to bottom; what they show is compared with what is.

Blocks in order. `bash` is run; one that says more: `server` and `second` go on beside (another terminal),
`kill` kills the server, `install` is here already, and so is what is below "## Install". One of `python` is
written to the file that its first line names. A block without a name shows what the one before printed;
`text second` what the second terminal did; `text example` is one that depends on the hour. `worker` goes on
in the second terminal until `stop`; of `text worker` each line is among what it has printed by then.

Ids, times, latenesses and ports are not the page's: they are compared by their shape.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
WAIT_S = 60
BLOCK = re.compile(r"^```(\w*) ?(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHAPES = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "<instant>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "<time>"),
    (re.compile(r"\+\d+\.\d ms"), "<late>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"^data in \S+"), "data in <folder>"),
    (re.compile(r"in \d+\.\d\ds"), "in <s>"),
    (re.compile(r" +"), " "),
)
FIXED = re.compile(r"2027-\d\d-\d\dT\S+")
"""What is asked for by date is the same in every run."""


def blocks(name: str) -> list[tuple[str, str, str]]:
    """(language, role, text), without what has to be installed."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8").partition("## Start the server")[2]
    return [block for block in BLOCK.findall(page) if block[1] != "install"]


def shaped(text: str) -> list[str]:
    """Its lines with what differs from run to run replaced."""
    lines = []
    for line in text.splitlines():
        fixed = FIXED.findall(line)
        for pattern, name in SHAPES if not fixed else SHAPES[-1:]:
            line = pattern.sub(name, line)
        lines.append(line.rstrip())
    return lines


class Reader:
    """Follows the page in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "here"
        self.folder.mkdir()
        self.log = folder / "server.log"
        programs = folder / "bin"
        programs.mkdir()
        for name, module in (
            ("fasti", "fasti.cli"),
            ("fasti-server", "server"),
            ("pytest", "pytest -p no:asyncio -p no:schemathesis"),
        ):
            self._program(programs / name, f'-m {module} "$@"')
        self._program(programs / "python", '"$@"')
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FASTI", "PYTEST"))}
        self.environment = kept | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}",
            "FASTI_CONFIG": str(folder / "none.toml"),
            "COLUMNS": "200",
        }
        self.url = ""
        self.listeners: tuple[str, ...] = ("--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
        self.server: subprocess.Popen[str] | None = None
        self.second: subprocess.Popen[bytes] | None = None

    @staticmethod
    def _program(path: Path, arguments: str) -> None:
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}\n')
        path.chmod(0o755)

    def start(self, command: str) -> str:
        """The server, on free ports of its own; what it says when it listens."""
        with self.log.open("a") as log:
            self.server = subprocess.Popen(
                [*command.split(), *self.listeners],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
            )
        assert self.server.stdout is not None
        said = ""
        while "try:" not in said:
            line = self.server.stdout.readline()
            assert line, f"the server ended: {self.log.read_text()}"
            said += line
        http, mqtt = re.findall(r"=(127\.0\.0\.1:\d+)", said)
        self.listeners = ("--http", http, "--mqtt", mqtt)
        self.url = self.environment["FASTI_URL"] = f"http://{http}"
        return said

    def kill(self) -> None:
        if self.server is not None:
            server, self.server = self.server, None
            os.killpg(server.pid, signal.SIGKILL)
            server.communicate(timeout=60)

    def begin(self, command: str, ready: str) -> None:
        """In the second terminal; on return it has said that it is `ready`."""
        with (self.folder / "second").open("w") as out:
            self.second = subprocess.Popen(
                ["bash", "-c", command], cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )
        deadline = time.monotonic() + WAIT_S
        while ready not in (self.folder / "second").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def seen(self) -> str:
        """What the second terminal shows when its command has ended."""
        assert self.second is not None
        assert self.second.wait(WAIT_S) == 0
        return (self.folder / "second").read_text()

    def wait_for(self, text: str) -> None:
        """Until the second terminal shows each line of it."""
        deadline = time.monotonic() + WAIT_S
        while not all(line in (self.folder / "second").read_text() for line in text.splitlines()):
            assert time.monotonic() < deadline, (self.folder / "second").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Ctrl-C in the second terminal."""
        assert self.second is not None
        self.second.send_signal(signal.SIGINT)
        assert self.second.wait(WAIT_S) == 0

    def run(self, command: str) -> str:
        """Both outputs, as a terminal shows them."""
        done = subprocess.run(
            ["bash", "-ec", command.replace("http://127.0.0.1:8080", self.url)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    for program in ("bash", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    made = Reader(tmp_path)
    yield made
    made.kill()
    if made.second is not None and made.second.poll() is None:
        made.second.kill()
        made.second.wait()


@pytest.mark.parametrize(("name", "shown"), [("tutorial.md", 11), ("tutorial-retries.md", 11)])
def test_the_tutorial_is_true(name: str, shown: int, reader: Reader) -> None:
    said, compared = "", 0
    for language, role, text in blocks(name):
        if language == "python":
            (reader.folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
        elif role == "server":
            said = reader.start(text)
        elif role == "kill":
            reader.kill()
        elif role == "second" and language == "bash":
            reader.begin(text, "subscribed")
        elif role == "worker" and language == "bash":
            reader.begin(text, "group shop")
        elif role == "worker":
            reader.wait_for(text)
            compared += 1
        elif role == "stop":
            reader.stop()
        elif language == "bash":
            said = reader.run(text)
        elif role == "example":
            assert len(said.splitlines()) > 3
        else:
            assert shaped(reader.seen() if role == "second" else said) == shaped(text)
            compared += 1
    assert compared == shown
