"""The docs against the tree: links lead somewhere, every table is told of.

That every route is, tests/server/http/test_openapi.py sees; settings and metrics, test_tables.py.

Simple on purpose: what is looked for is the name. Whether the sentence round it is true, no test can say.
"""

import re
from pathlib import Path

import pytest

from shards.store import Table

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"#{1,6} +(.*)")
CLAIM = re.compile(
    r"\d ?(?:k|M|msg|messages|[KMG]iB|MB)?(?:/s| per second)"
    r"|\d ?(?:x|times) (?:faster|slower|more|less)"
    r"|\d ?(?:µs|ms|[KMG]iB|MB|%)(?!\w)"
)
"""A figure with a unit of speed, time or size behind it."""


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def without_code(text: str) -> list[str]:
    """Its lines, those of code blocks empty, so that the numbers of the others stay."""
    lines, is_code = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            is_code = not is_code
            line = ""
        lines.append("" if is_code else line)
    return lines


def anchors_of(page: Path) -> set[str]:
    """What headings are called in links."""
    found = (HEADING.fullmatch(line) for line in without_code(page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", match[1].lower()).strip().replace(" ", "-") for match in found if match}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    lost = []
    for target in LINK.findall("\n".join(without_code(page.read_text(encoding="utf-8")))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors_of(there)):
            lost.append(target)
    assert lost == []


def test_the_map_of_the_tests_names_what_is_there() -> None:
    """Files of tests are named below the folder of their table."""
    folder, named = ROOT / "tests", []
    for line in without_code(text_of("tests/README.md")):
        if found := re.fullmatch(r"\| `(server/\w+/)` \| \|", line):
            folder = ROOT / "tests" / found[1]
        named += [folder / name for name in re.findall(r"`(test_\w+\.py)`", line)]
    assert len(named) > 15
    assert [str(path) for path in named if not path.exists()] == []


def test_the_readme_names_the_two_commands_of_a_fresh_machine_near_its_top() -> None:
    top = text_of("README.md").splitlines()[:50]
    targets = re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE)
    for target in ("run", "test"):
        assert target in targets
        assert [line for line in top if f"`make {target}`" in line], target


def test_every_column_family_is_told_of() -> None:
    page = text_of("docs/disk-format.md")
    assert [name.value for name in Table if f"| `{name.value}` |" not in page] == []


def test_every_decision_has_its_parts() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [record.name[:4] for record in records] == [f"{n:04}" for n in range(1, len(records) + 1)]
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert text.startswith(f"# {record.name[:4]}: ")
        parts = ("## Context", "## Decision", "## Consequences", "## Alternatives")
        assert [part for part in parts if part not in text] == [], record.name


def claims_in(text: str) -> list[str]:
    """Lines with a figure that is not in a table right behind `<!-- measured -->`."""
    found, is_measured = [], False
    for line in without_code(text):
        if line.startswith("<!-- measured -->"):
            is_measured = True
        elif not line.startswith("|"):
            is_measured = False
        if not is_measured and CLAIM.search(line):
            found.append(line)
    return found


def test_the_readme_claims_no_figure_that_was_not_measured() -> None:
    assert claims_in(text_of("README.md")) == []
    assert claims_in("it is 10 times faster") == ["it is 10 times faster"]
    assert claims_in("does 5 k/s\n\n| 3 ms |\n<!-- measured -->\n| 3 ms |\n| 99 % |\nin 2 ms") == [
        "does 5 k/s",
        "| 3 ms |",
        "in 2 ms",
    ]
    assert claims_in("Python 3.11, MQTT 5, QoS 2, 0.1.0, payload 200 B, five seconds, 204: nobody") == []
