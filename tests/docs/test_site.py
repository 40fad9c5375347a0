"""The site's navigation has every page once, and both distributions have one version and one licence."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for each in inner for page in pages_of(each)]


def test_every_page_is_in_the_navigation_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = pages_of(config["nav"])
    assert sorted(listed) == sorted([*(page.name for page in DOCS.glob("*.md")), "decisions", "index.md"])
    assert config["strict"] is True


def test_one_version_and_one_licence() -> None:
    server = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    text = (ROOT / "sdk" / "fasti" / "__init__.py").read_text(encoding="utf-8")
    assert re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE) == [server]
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "sdk" / "LICENSE").read_bytes()


def test_forms_and_workflows_can_be_read() -> None:
    found = [yaml.safe_load(one.read_text(encoding="utf-8")) for one in (ROOT / ".github").rglob("*.yml")]
    assert len(found) == 4
    steps = [step for one in found for job in one.get("jobs", {}).values() for step in job["steps"]]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for step in steps:
        command = step.get("run", "")
        if command.startswith("make "):
            assert command.split()[1] in targets
        if ".ci/" in command:
            assert (ROOT / command.split()[-1]).is_file()
