"""What a reader is told to install: the name `fasti` on the package index is somebody else's.

Import and command are `fasti`; the distributions are `fasti-client` and `fasti-server`.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
