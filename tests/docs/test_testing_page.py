"""docs/testing.md is run as it stands: its files are written out and handed to a pytest of their own."""

import os
import re
import sys
from pathlib import Path

import pytest

from .programs import ROOT, ran

pytestmark = pytest.mark.proof

BLOCK = re.compile(r"^```\w+\n# (\S+\.(?:py|toml))\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def written(folder: Path) -> list[str]:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(page)
    for name, text in blocks:
        (folder / name).write_text(text, encoding="utf-8")
    return [name for name, _ in blocks]


def run(folder: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FASTI")}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}", **variables}
    words = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:schemathesis", ".")
    return ran(sys.executable, *words, cwd=folder, env=environment, within_s=120).stdout


def test_the_worked_example_works(tmp_path: Path) -> None:
    assert written(tmp_path) == [
        "pyproject.toml",
        "conftest.py",
        "shop.py",
        "test_shop.py",
        "test_trouble.py",
        "mailer.py",
        "test_mailer.py",
    ]
    assert "6 passed" in run(tmp_path, FASTI_SERVER=f"{sys.executable} -m server")


def test_without_a_server_it_skips_and_says_so(tmp_path: Path) -> None:
    written(tmp_path)
    said = run(tmp_path, PATH=str(tmp_path))
    assert "6 skipped" in said
    assert "FASTI_SERVER" in said
