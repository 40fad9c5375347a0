"""A core for schedules, and a data directory whose time zones change."""

from pathlib import Path

import pytest

from .rig import Rig, Zoned


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def zoned(tmp_path: Path) -> Zoned:
    """Its first start was on the zones of 2026a."""
    made = Zoned(tmp_path / "data")
    assert made.retimed("2026a") is None
    return made
