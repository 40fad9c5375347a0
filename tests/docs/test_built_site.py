"""The site as it is built, where mkdocs is installed (`make site` installs it)."""

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .programs import ran
from .test_docs import HEADING, without_code

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    ran(*command, env=quiet, within_s=600)
    return folder


def test_every_heading_is_one(site: Path) -> None:
    """A block of code that its reader does not know ends somewhere else, and hides what is between."""
    for page in (ROOT / "docs").glob("*.md"):
        text = re.sub(r"(?ms)^<!--.*?-->$", "", page.read_text(encoding="utf-8"))
        written = [line for line in without_code(text) if HEADING.fullmatch(line)]
        shown = re.findall(r"<h[1-6] id=", (site / page.stem / "index.html").read_text(encoding="utf-8"))
        assert len(shown) == len(written), page.name


def test_the_first_page_has_install_comparison_and_figures(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<title>(.*?)</title>", page) == ["fasti"]
    parts = ("fasti-client[cli]", "<h2", 'id="compared"', 'id="figures"', 'id="read-on"')
    places = [page.index(part) for part in parts]
    assert places == sorted(places)


def test_the_colours_are_the_consoles(site: Path) -> None:
    console = (ROOT / "server" / "console" / "static" / "console.css").read_text(encoding="utf-8")
    colours = (site / "colours.css").read_text(encoding="utf-8")
    for name in ("default", "slate"):
        (block,) = re.findall(rf'\[data-md-color-scheme="{name}"\] \{{(.*?)\}}', colours, re.DOTALL)
        assert "--accent" in block
        assert block in console


@pytest.mark.parametrize("word", ["Kubernetes", "JavaScript", "Go"])
def test_search_finds_a_page_of_that_name(site: Path, word: str) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {
        one["title"]: one.get("boost", 1)
        for one in index["docs"]
        if re.search(rf"(?i)\b{word}", one["title"])
    }
    assert max(found, key=lambda title: found[title]).split()[1:] == [word], (
        "the search finds goes and going too"
    )
