"""A fixture: the servers of fasti.testing are forked, too."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

from .forked import Forked


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where FastiServer starts a process, it is forked: what starts there is for test_testing.py."""

    def popen(command: list[str], *, env: Mapping[str, str], stdout: IO[bytes], **_: object) -> Forked:
        assert command[1:3] == ["-m", "server"]
        return Forked(command[3:], Path.cwd(), env, Path(stdout.name))

    its = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("fasti.testing.subprocess", its)
