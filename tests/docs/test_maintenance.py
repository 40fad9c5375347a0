"""docs/maintenance.md: its commands, in its order, on a server of the test's own; the limits it names."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.support.server import ServerProcess

from .programs import ROOT, ran
from .test_deploy import DEPLOY, read, unit
from .test_kubernetes import parts

PAGE = (ROOT / "docs" / "maintenance.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^ *```bash\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line.strip() for block in BLOCKS for line in block.splitlines()]
ADDRESS = "http://localhost:8080"


def done(command: str, server: ServerProcess) -> Any:
    """Run it as the page has it, for this server: what it prints, read as JSON."""
    words = shlex.split(command.replace(ADDRESS, server.url))
    if words[0] == "fasti":
        words = [sys.executable, "-m", "fasti.cli", *words[1:], "-o", "json", "--url", server.url]
    said = ran(*words, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "PATH": "/usr/bin:/bin"}).stdout
    return json.loads(said)


def test_a_server_is_taken_down_as_the_page_says(tmp_path: Path) -> None:
    one_machine = COMMANDS[: COMMANDS.index("fasti server drain --cancel") + 1]
    assert [line for line in one_machine if line.startswith("systemctl")] == [
        "systemctl stop fasti",
        "systemctl start fasti",
    ]
    server, said = ServerProcess(tmp_path / "data"), {}
    try:
        server.wait_ready()
        for command in one_machine:
            if command == "systemctl stop fasti":
                assert server.stop() == 0
            elif command == "systemctl start fasti":
                server = ServerProcess(tmp_path / "data")
                server.wait_ready()
            else:
                said[command] = done(command, server)
        assert server.stop() == 0
    finally:
        server.kill()
    shown = json.loads(re.findall(r'^ *(\{"draining".*\})$', PAGE, re.MULTILINE)[0])
    assert shown.keys() == said["fasti server drain"].keys()
    assert said["fasti server drain"]["draining"] is True
    assert Path(said["fasti server backup before"]["dir"]).name == "before"
    assert said["fasti server status"]["draining"] is False, "it has ended with its process"
    assert said["fasti server drain --cancel"]["draining"] is False


def test_the_line_of_the_log_is_the_server_s() -> None:
    (line,) = re.findall(r"`(drain: ended [^`]+)`", PAGE)
    source = (ROOT / "server" / "run.py").read_text(encoding="utf-8")
    (text,) = re.findall(r'"(drain: ended [^"]+)"', source)
    assert re.fullmatch(re.escape(text).replace("%\\.1f", r"\d+\.\d").replace("%d", r"\d+"), line)


def test_each_file_waits_longer_than_its_drain() -> None:
    """By 15 s, which a stop takes behind it; and the page says what they have."""
    (start,) = unit()["ExecStart"]
    compose, (pod, container) = read("compose.yaml")["services"]["fasti"], parts()
    found = {
        "fasti.service": (start.split(), unit()["TimeoutStopSec"][0]),
        "compose.yaml": (compose["command"], compose["stop_grace_period"]),
        "statefulset.yaml": (container["args"], str(pod["terminationGracePeriodSeconds"])),
    }
    for name, (command, limit) in found.items():
        drain = command[command.index("--drain") + 1]
        assert int(drain.removesuffix("s")) + 15 <= int(limit.removesuffix("s")), name
        assert re.search(rf"\[{name}\].* `--drain {drain}` .*\b{limit}`", PAGE), name


def test_compose_runs_what_the_image_does_and_drains() -> None:
    image = json.loads(re.findall(r"(?m)^CMD (.+)$", (ROOT / "Containerfile").read_text("utf-8"))[0])
    assert read("compose.yaml")["services"]["fasti"]["command"] == [*image, "--drain", "30s"]
    assert (DEPLOY / "compose.yaml").is_file()
