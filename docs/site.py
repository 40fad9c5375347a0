"""What `make site` does besides what mkdocs.yml says: mkdocs calls these while it builds the pages.

The first page is README.md. Decisions are listed by what is in their folder. The conversations of tests/told,
which pages link to, are copied, so that a link works in the repository and on the site. Icon and colours are
the console's.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
CONSOLE = ROOT / "server" / "console" / "static"
TOLD = "../tests/told/"
DECISIONS = "decisions"
HERE = re.compile(r"(?<=\]\()docs/")
"""In front of what a link of the README names, if it is on the site."""
ELSEWHERE = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|docs/|#)[^)]*\)")
"""A link of the README to a file that is not on the site: its text."""
CHECK = re.compile(r"(?ms)^<!-- check\n.*?^-->\n")
ROLE = re.compile(r"(?m)^(```\w+) \w+$")
"""What tests do with a block of code: a block of checks behind it, and a word behind its language."""
CELL = re.compile(r"(?s)<td.*?</td>")
SCHEMES = {":root": "default", ':root[data-theme="dark"]': "slate"}
"""The console's names of its two sets of colours, and the theme's."""


def on_config(config: Any) -> Any:
    """Every decision is in the navigation."""
    for section in config.nav:
        for pages in section.values():
            for page in pages:
                if isinstance(page, dict) and page.get("Decisions") == DECISIONS:
                    page["Decisions"] = [f"{DECISIONS}/{one.name}" for one in decisions()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """The first page, the conversations, icon and colours are files of the site."""
    files.append(File.generated(config, "index.md", content=first_page(config.site_description)))
    for told in sorted((ROOT / "tests" / "told").glob("*.txt")):
        files.append(File.generated(config, f"told/{told.name}", abs_src_path=str(told)))
    files.append(File.generated(config, "icon.svg", abs_src_path=str(CONSOLE / "icon.svg")))
    files.append(File.generated(config, "colours.css", content=colours()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to the conversations lead there; what only the tests read is left out."""
    if page.file.src_uri == "go.md":
        page.meta["search"] = {"boost": 10}  # the search looks for beginnings of words: goes, gone
    return ROLE.sub(r"\1", CHECK.sub("", markdown)).replace(f"]({TOLD}", "](told/")


def on_page_content(html: str, **_: Any) -> str:
    """A bar in code in a table has a backslash, which the theme's reader of Markdown leaves in."""
    return CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)


def decisions() -> list[Path]:
    return sorted((ROOT / "docs" / DECISIONS).glob("*.md"))


def first_page(title: str) -> str:
    """README.md as a page of the site, whose header names the product already."""
    _, _, text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n")
    text = "# " + title + "\n" + ELSEWHERE.sub(r"\1", text)
    return HERE.sub("", text).replace(f"]({DECISIONS}/)", f"]({DECISIONS}/{decisions()[0].name})")


def colours() -> str:
    """The console's two sets of colours, as variables of the theme's two schemes."""
    text = (CONSOLE / "console.css").read_text(encoding="utf-8")
    blocks = {name: text.partition(f"\n{name} {{")[2].partition("}")[0] for name in SCHEMES}
    return "\n".join(
        f'[data-md-color-scheme="{scheme}"] {{{blocks[name]}}}' for name, scheme in SCHEMES.items()
    )
