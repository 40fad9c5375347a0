"""config.toml and the tables of settings and metrics are those that the code makes, and name all of them."""

import re

from server.settings.reading import keys
from tests.support.tables import ROOT, made, settings


def test_what_is_made_is_up_to_date() -> None:
    """If not: python -m tests.support.tables"""
    files = made()
    stale = [str(path.relative_to(ROOT)) for path, text in files.items() if path.read_text() != text]
    assert stale == [], "make them again: python -m tests.support.tables"
    pages = {path.name: text for path, text in files.items()}
    assert all(f"| `{name}` |" in pages["settings.md"] for name, _, _ in keys())
    assert len(re.findall(r"(?m)^\| `fasti_\w+` \|", pages["metrics.md"])) > 60


def test_every_setting_has_its_text() -> None:
    for name, _, text in settings():
        assert text.endswith((".", ").")), name
        assert text[0].isupper(), name
