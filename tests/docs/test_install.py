"""What a reader is told to install: the name `fasti` on the package index is somebody else's.

Import and command are `fasti`; the distributions are `fasti-client` and `fasti-server`. The README begins
with the command and with five lines of code, which are run.
"""

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fasti.testing import FastiServer, until

ROOT = Path(__file__).parents[2]
PROJECTS = (ROOT / "pyproject.toml", ROOT / "sdk" / "pyproject.toml")
NAMES = {"fasti-client", "fasti-server"}
LEFT_OUT = {
    ".git",
    "data",
    ".venv",
    "build",
    "__pycache__",
    ".egg-info",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
}
KINDS = {".md", ".py", ".toml", ".yml", ".yaml", ".txt", ".service", ".json", ""}
STRANGER = re.compile(
    r"(?<![\w.-])fasti\[[a-z]|\bpip install(?:\s+[\w.'\"\[\]=<>,/-]+)*?\s+['\"]?fasti(?![\w./-])"
)
"""`fasti` as a distribution: with an extra, or as something that is installed."""
INDEX = "pip install fasti-server 'fasti-client[cli]'"
CHECKOUT = "pip install . './sdk[cli]'"
"""Until the first release on the index."""
EXTRAS = re.compile(r"\b(fasti-(?:client|server))\[([a-z,]+)\]")


def project(path: Path) -> Any:
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


def texts() -> Iterator[tuple[str, str]]:
    """(path, text) of everything that a reader may see."""
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [one for one in inner if not LEFT_OUT.intersection((one, Path(one).suffix))]
        for path in (Path(folder, name) for name in names):
            if path.suffix in KINDS:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8", errors="replace")


def test_nobody_is_told_to_install_a_strangers_package() -> None:
    found = {name: STRANGER.findall(text) for name, text in texts() if name != "tests/docs/test_install.py"}
    assert len(found) > 500
    assert {name: said for name, said in found.items() if said} == {}
    for told in (
        "pip install fasti",
        "`pip install pytest 'fasti'`",
        "pip\tinstall fasti[cli]",
        "fasti[otel]",
    ):
        assert STRANGER.search(told.replace("\t", " ")), told
    for told in (
        "pip install fasti-server 'fasti-client[cli]'",
        "pip install fasti_server-*.whl",
        "fasti-server[otel]",
    ):
        assert not STRANGER.search(told), told


def test_each_extra_that_is_told_of_is_there() -> None:
    extras = {one["name"]: one.get("optional-dependencies", {}) for one in map(project, PROJECTS)}
    assert set(extras) == NAMES
    told = {(where, *named) for where, text in texts() for named in EXTRAS.findall(text)}
    assert {name for _, name, _ in told} == NAMES
    for where, name, wanted in told:
        assert set(wanted.split(",")) <= set(extras[name]), where


@pytest.mark.parametrize("demo", ["docs.demo", "docs.cluster_demo"])
def test_a_demo_needs_no_package_of_the_tests(demo: str) -> None:
    """`make demo` and `make cluster` install none: the second one begins as the tests of a cluster do."""
    code = f"import sys; sys.modules.update(dict.fromkeys(sys.argv[1:])); import {demo}"
    absent = ("hypothesis", "mqtt5", "nats", "playwright", "pytest", "yaml")
    subprocess.run(
        [sys.executable, "-c", code, *absent],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
        cwd=ROOT,
        check=True,
    )


async def test_the_five_lines_of_the_readme_do_what_they_say(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert INDEX in " ".join(text.split())
    (commands,) = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    install, serve = commands.splitlines()
    assert serve == "fasti-server --data data &"
    assert install == INDEX or (install == CHECKOUT and "dev" in project(PROJECTS[0])["version"])
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len([line for line in code.splitlines() if line]) == 5
    with FastiServer([sys.executable, "-m", "server"], tmp_path) as server:
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-c", code.replace("http://127.0.0.1:8080", server.url)),
            env={**os.environ, "PYTHONPATH": str(ROOT / "sdk")},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with server.client() as client:

                async def is_there() -> bool:
                    return bool([one async for one in client.sessions.list()])

                await until(is_there)
                await server.advance(seconds=5)
            assert reader.stdout is not None
            async with asyncio.timeout(30):
                said = await reader.stdout.readline()
            assert re.fullmatch(rb"\{'order': 17\} late by 0:00:00\S* acked: True\n", said), said
        finally:
            reader.kill()
            await reader.wait()
