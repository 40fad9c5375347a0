"""What `make site` does besides what mkdocs.yml says: mkdocs calls these while it builds the pages.

Decisions are listed by what is in their folder. The conversations of tests/told, which pages link to, are
copied, so that a link works in the repository and on the site.
"""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
TOLD = "../tests/told/"
DECISIONS = "decisions"


def on_config(config: Any) -> Any:
    """Every decision is in the navigation."""
    for section in config.nav:
        for pages in section.values():
            for page in pages:
                if isinstance(page, dict) and page.get("Decisions") == DECISIONS:
                    found = sorted((ROOT / "docs" / DECISIONS).glob("*.md"))
                    page["Decisions"] = [f"{DECISIONS}/{one.name}" for one in found]
    return config


def on_files(files: Any, config: Any) -> Any:
    """The conversations are files of the site."""
    for told in sorted((ROOT / "tests" / "told").glob("*.txt")):
        files.append(File.generated(config, f"told/{told.name}", abs_src_path=str(told)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to them lead there."""
    return markdown.replace(f"]({TOLD}", "](told/")
