"""The Containerfile: what it copies is there and is enough, what it runs starts, what it asks is answered.

There is no container engine where the tests run: the image itself is not built here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.settings.reading import load
from tests.support.server import ServerProcess

ROOT = Path(__file__).parents[2]
LINES = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text(encoding="utf-8")).splitlines()


def said(word: str) -> list[str]:
    """What stands behind a word, in each of its lines."""
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{word} ")]


def listed(text: str) -> list[str]:
    found: list[str] = json.loads(text[text.index("[") :])
    return found


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """What comes of what is copied into its first stage, and of nothing else, without what is locked."""
    source, made = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    for line in said("COPY"):
        if line.startswith("--from"):
            continue
        *names, target = line.split()
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source / target)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", made, source], check=True, timeout=120)
    return made


def run(image: Path, data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The entry point with these arguments, in what has been installed."""
    (program,) = listed(*said("ENTRYPOINT"))
    env = dict(pair.split("=") for line in said("ENV") for pair in line.split())
    env = {name: value.replace("/data/", f"{data}/") for name, value in env.items()}
    command = [sys.executable, "-P", image / "bin" / program, *arguments]
    env |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(image)}
    return subprocess.run(
        command, cwd=data, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.process
def test_what_it_runs_is_all_there(image: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A key is made, then the settings are right; without one nothing listens on all addresses."""
    data = tmp_path_factory.mktemp("data")
    arguments = [text.replace("/data", str(data)) for text in listed(*said("CMD"))]
    assert run(image, data, *arguments, "--check").returncode == 2
    made = run(image, data, "keys", "add", "ops", "--scope", "admin")
    assert made.returncode == 0, made.stderr
    checked = run(image, data, *arguments, "--check")
    assert checked.returncode == 0, checked.stderr
    assert re.search(r"auth\.keys_file\s.*keys\.toml", checked.stdout)


def test_backups_are_in_its_volume() -> None:
    """Nothing else there is its user's to write to."""
    config, _ = load(None, dict(pair.split("=") for line in said("ENV") for pair in line.split()), {})
    assert config.store.backups_dir.is_relative_to(*said("VOLUME"))


@pytest.mark.process
def test_it_is_healthy_when_it_is_ready(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    try:
        server.wait_ready()
        (line,) = said("HEALTHCHECK")
        program, *arguments = listed(line)
        assert program == "python"

        def healthy() -> bool:
            code = [text.replace("127.0.0.1:8080", f"127.0.0.1:{server.http[1]}") for text in arguments]
            return subprocess.run([sys.executable, *code], check=False, capture_output=True).returncode == 0

        assert healthy()
        assert server.stop() == 0
        assert not healthy()
    finally:
        server.kill()


def test_who_runs_it_is_nobody_in_particular_and_what_it_is_made_of_is_locked() -> None:
    assert said("USER") == ["fasti"]
    assert said("VOLUME") == ["/data"]
    assert said("FROM") == ["${BASE} AS build", "${BASE}"]
    (base,) = (line for line in said("ARG") if line.startswith("BASE="))
    assert re.fullmatch(r"BASE=python:3\.\d+-slim", base)
    assert [line for line in said("COPY") if line.startswith("--from")] == [
        "--from=build /opt/fasti /opt/fasti"
    ]
    installs = [line for line in said("RUN") if "pip install" in line]
    assert "--require-hashes -r requirements.lock" in installs[0]
    assert len(installs) == 2
    assert "--no-deps" in installs[1], "nothing comes in that is not locked"


def test_a_health_check_needs_the_format_of_docker() -> None:
    """Podman leaves it out of the format that it builds by itself, with a warning."""
    places = [ROOT / "Containerfile", *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    told = [
        line
        for one in places
        for line in one.read_text(encoding="utf-8").splitlines()
        if "podman build" in line
    ]
    assert len(told) > 5
    assert [line for line in told if "podman build --format docker " not in line] == []


def test_what_is_left_out_is_not_copied() -> None:
    """Files of a checkout that are not under version control, and would be sent to who builds.

    Podman reads this name too, docker no other.
    """
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "build", "data", "**/*.key"} <= set(left_out)
