"""A job that a server starts has the umask of who started the server: its archive is for others too."""

import os
from collections.abc import Iterator

import pytest

from server.jobs.launch import UMASK_VARIABLE
from spark import __main__ as program

pytestmark = pytest.mark.short


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def ends(monkeypatch: pytest.MonkeyPatch) -> int:
    """The umask after a job that finds no server."""
    monkeypatch.setattr(program, "_check_machine", lambda _: None)
    assert program.main(["expire", "--server", "http://127.0.0.1:1"]) == 3
    return os.umask(0o077)


def test_a_job_of_the_server_gets_the_umask_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert program.UMASK == UMASK_VARIABLE
    monkeypatch.setenv(UMASK_VARIABLE, "022")
    assert ends(monkeypatch) == 0o022


def test_a_job_by_hand_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UMASK_VARIABLE, raising=False)
    assert ends(monkeypatch) == 0o077
