"""requirements.lock: everything that the server runs with is in it, at one version that fits, by hash."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PIN = re.compile(
    r"^([\w.-]+)==([\w.]+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)(?:    #.*\n)*", re.MULTILINE
)
LOCKED = {canonicalize_name(name): version for name, version, _ in PIN.findall(LOCK)}


def wanted() -> list[Requirement]:
    """What pyproject.toml asks for, to run the server, also as a node of a cluster."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [
        Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["cluster"])
    ]


def missing(asked: list[Requirement]) -> list[str]:
    """Of these, what the lock does not have, or at a version that does not fit."""
    return [
        str(one)
        for one in asked
        if (one.marker is None or one.marker.evaluate({"extra": ""}))
        and not (
            canonicalize_name(one.name) in LOCKED
            and one.specifier.contains(LOCKED[canonicalize_name(one.name)])
        )
    ]


def test_the_file_is_pins_with_hashes_and_nothing_else() -> None:
    assert PIN.sub("", LOCK) == ""
    assert LOCKED


def test_what_the_project_asks_for_is_locked() -> None:
    assert missing(wanted()) == []
    assert missing([Requirement("aiohttp<3"), Requirement("flask")]) == ["aiohttp<3", "flask"]


def test_what_those_ask_for_is_locked_too() -> None:
    """As far as they are installed here, at this version or one near."""
    asked = []
    for name in LOCKED:
        try:
            asked.extend(Requirement(text) for text in requires(name) or ())
        except PackageNotFoundError:
            continue
    assert any(one.name == "yarl" for one in asked)
    assert missing(asked) == []


def test_nothing_is_locked_that_nobody_asks_for() -> None:
    named = {canonicalize_name(one.name) for one in wanted()}
    via = re.findall(r"^    # via (.+)$", LOCK, re.MULTILINE)
    assert len(via) == len(LOCKED)
    direct = {name for name, why in zip(LOCKED, via, strict=True) if "pyproject.toml" in why}
    assert direct == named
