"""A data directory of every format version that was ever released opens, with all that is in it."""

import shutil
from pathlib import Path

import pytest

from server.clock import SimulatedClock
from server.config import load
from server.core import Core
from shards.record import CANCELLED, decode
from shards.rocks import RocksStore
from shards.verify import verify_counts
from timeline.position import END, START, parse_id

DATA = Path(__file__).parents[1] / "data"
NOW_MS = 1_800_000_016_000
VERSIONS = sorted(path.name for path in DATA.glob("format-*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_data_directory_opens_whole(version: str, tmp_path: Path) -> None:
    path = tmp_path / version
    shutil.copytree(DATA / version, path)
    ids = [parse_id(line) for line in (path / "ids").read_text().split()]
    store = RocksStore(path)
    core = Core(load(None, {}, {})[0], SimulatedClock(NOW_MS), store, wake=lambda: None)
    found = [core.reader.find(name) for name in ids]
    records = [decode(one.value) for one in found if one is not None]
    assert [record.payload for record in records[:25]] == [b"payload %d" % index for index in range(25)]
    assert records[25].stub == CANCELLED
    assert records[26].due_ms == 1_800_000_000_000 + 86_400_000
    assert records[30].topic == b"held"
    assert len(records) == 31
    assert len(list(core.reader.read(START, END))) == 31, "30 messages and what the move left"
    assert verify_counts(store, core.directory) == []
    (session,) = core.sessions
    assert (session.session.client_id, list(session.session.subscriptions)) == ("away", ["orders/#"])
    assert core.opened.held == 1
    store.close()


def test_there_is_a_directory_of_the_present_version() -> None:
    assert "format-1" in VERSIONS
