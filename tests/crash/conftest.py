"""What tests of this folder ask for by name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .disks import mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk in RAM, empty."""
    with mounted(tmp_path / "disk") as path:
        yield path
