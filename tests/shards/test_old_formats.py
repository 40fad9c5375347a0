"""A data directory of every format version that was ever released opens, with all that is in it."""

import shutil
from pathlib import Path

import pytest

from server.__main__ import main
from server.clock import SimulatedClock
from server.config import load
from server.core import Core
from shards.record import CANCELLED, decode
from shards.rocks import RocksStore
from shards.store import Table
from shards.tables import FORMAT_VERSION, META_FORMAT, META_ZONES
from shards.verify import verify_counts
from tests.support.http import http
from tests.support.server import serving
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


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_goes_on_with_an_old_data_directory(version: str, tmp_path: Path) -> None:
    path = tmp_path / version
    shutil.copytree(DATA / version, path)
    names = (path / "ids").read_text().split()
    async with serving(path) as server, http(server.url) as calls:
        found = await calls.call("GET", f"/v1/messages/{names[26]}", status=200)
        assert found.body["topic"] == "lights/hall"
        await calls.call("DELETE", f"/v1/messages/{names[26]}", status=204)
    assert main(["verify", "--data", str(path)]) == 0
    assert main(["inspect", "--data", str(path)]) == 0


def rows_of(path: Path) -> list[tuple[Table, bytes, bytes]]:
    store = RocksStore(path, read_only=True)
    rows = [(table, key, value) for table in Table for key, value in store.scan(table, b"", b"\xff" * 64)]
    store.close()
    return rows


@pytest.mark.parametrize("command", [[], ["inspect"], ["verify"], ["verify", "--repair"], ["retime"]])
def test_a_newer_format_is_refused_and_left_as_it_is(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what the start would write before it opens the timeline, and what a repair would make anew."""
    path = tmp_path / "newer"
    shutil.copytree(DATA / f"format-{FORMAT_VERSION}", path)
    store = RocksStore(path)
    batch = store.batch()
    batch.put(Table.META, META_FORMAT, b"%d" % (FORMAT_VERSION + 41))
    batch.delete(Table.META, META_ZONES)
    batch.delete_range(Table.SHARDS, b"", b"\xff" * 64)  # as if counts were elsewhere by then
    store.write(batch)
    store.close()
    before = rows_of(path)
    assert main([*command, "--data", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"format {FORMAT_VERSION + 41}," in said
    assert f"reads format {FORMAT_VERSION};" in said
    assert str(path) in said
    assert rows_of(path) == before


def test_there_is_a_directory_of_the_present_version() -> None:
    assert f"format-{FORMAT_VERSION}" in VERSIONS
