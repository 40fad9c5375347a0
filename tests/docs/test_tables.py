"""config.toml and the tables of settings and metrics are those that the code makes, and name all of them."""

import re

from server.settings.reading import keys
from server.settings.removed import REMOVED
from tests.support.tables import ROOT, made, settings


def test_what_is_made_is_up_to_date() -> None:
    """If not: python -m tests.support.tables"""
    files = made()
    stale = [str(path.relative_to(ROOT)) for path, text in files.items() if path.read_text() != text]
    assert stale == [], "make them again: python -m tests.support.tables"
    pages = {path.name: text for path, text in files.items()}
    assert all(f"| `{name}` |" in pages["settings.md"] for name, _, _ in keys())
    assert len(re.findall(r"(?m)^\| `fasti_\w+` \|", pages["metrics.md"])) > 60


def test_no_page_names_a_setting_that_went() -> None:
    """But those that say what took its place."""
    pages = [
        page for page in (ROOT / "docs").glob("*.md") if page.stem not in ("settings", "upgrade", "deploy")
    ]
    told = {page.name: re.findall(r"`([a-z]+\.\w+)`", page.read_text(encoding="utf-8")) for page in pages}
    assert [(name, key) for name, keys in told.items() for key in keys if key in REMOVED] == []


def test_every_setting_has_its_text() -> None:
    for name, _, text in settings():
        assert text.endswith((".", ").")), name
        assert text[0].isupper(), name
