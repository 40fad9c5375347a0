"""A data directory of every format version that was ever released opens, with all that is in it."""

import shutil
from pathlib import Path

import pytest

from server.__main__ import main
from server.core import Core
from server.delivery.terms import Keeping
from server.engine.clock import SimulatedClock
from server.settings.reading import load
from shards.cells import step
from shards.dead import DEAD
from shards.keys import GROUP_PREFIX, message_of, owned
from shards.memory import MemoryStore
from shards.pointers import pointers
from shards.record import CANCELLED, MOVED, decode, is_retry, owner_of
from shards.recover import count_owned, format_of
from shards.retries import RETRIES
from shards.rocks import RocksStore
from shards.store import Table
from shards.tables import (
    FORMAT,
    FORMAT_FIRST,
    META_DEAD,
    META_FORMAT,
    META_RETRIES,
    META_ZONES,
    NEVER_S,
    GroupRow,
    KeptTotals,
    SubscriptionRow,
    count_value,
    encode_row,
    group_of,
    kept_totals_value,
    owned_value,
)
from shards.unreadable import readable
from shards.upgrade import raise_groups
from shards.verify import verify_counts, verify_owners
from tests.data.make_format import OWNER
from tests.support.http import http
from tests.support.server import serving
from tests.support.stores import rewrite
from timeline.position import END, START, at_of, parse_id
from timeline.session import Terms

DATA = Path(__file__).parents[1] / "data"
NOW_MS = 1_800_000_016_000
RETRY_MS = 1_800_000_000_000 + 86_400_000
VERSIONS = sorted(path.name for path in DATA.glob("format-*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_data_directory_opens_whole(version: str, tmp_path: Path) -> None:
    path = tmp_path / version
    shutil.copytree(DATA / version, path)
    ids = [parse_id(line) for line in (path / "ids").read_text().split()]
    store = RocksStore(path)
    core = Core(load(None, {}, {})[0], SimulatedClock(NOW_MS), store, wake=lambda: None, chance=lambda: 0.5)
    found = [core.reader.find(name) for name in ids]
    records = [decode(one.value) for one in found if one is not None]
    assert [record.payload for record in records[:25]] == [b"payload %d" % index for index in range(25)]
    assert (records[25].stub, records[26].due_ms) == (CANCELLED, 1_800_000_000_000 + 86_400_000)
    assert (records[30].topic, len(records)) == (b"held", 31)
    rows = list(core.reader.read(START, END))
    assert not any(is_retry(value) for _, _, value in rows)
    # 30 messages and what the move left; format 4 had the retry among them.
    assert len(rows) == 32 if version == "format-4" else 31
    retries = list(RETRIES.all(store))
    dead = [(row.group, row.attempts, message_of(row.id)) for _, row in core.dead_letters.read()]
    if version == "format-1":
        assert (retries, dead) == ([], [])
    else:
        ((place_, row),) = retries
        assert (row.addressee, row.group, row.attempts, row.counted) == ("away", "away", 3, 1)
        assert (row.reason, message_of(row.id), owner_of(row.record)) == ("busy", ids[0], OWNER)
        assert (decode(row.record).payload, at_of(place_)) == (b"payload 0", RETRY_MS)
        assert [one for one, _ in RETRIES.of_message(store, ids[0])] == [place_]
        assert RETRIES.count_of(store, RETRIES.whose(row)) == RETRIES.stored_totals(store).count == 1
        assert dead == [("away", 4, ids[1])]
        left = [value for other, _, value in rows if other == place_]
        assert [decode(value).stub for value in left] == ([MOVED] if version == "format-4" else [])
    assert core.opened.retries == len(retries)
    assert list(pointers(store, core.directory)) == []
    for piece in core.directory:
        assert piece.cells is None, "no older version has counts by time"
        while not step(core.reader, piece, core.horizon.seq, 2):
            pass
        assert piece.cells is not None
    assert verify_counts(store, core.directory) == []
    assert verify_owners(store, core.directory, core.horizon.position) == []
    owners = [record.owner for record in records]
    if version == "format-1":
        assert set(owners) == {b""}
    else:
        assert owners == [OWNER if index % 3 == 0 and index < 30 else b"" for index in range(31)]
        owned = core.opened.owned
        assert owned.pending(OWNER) == 1 + len(retries), "what is due later, and the retry"
        amounts = count_owned(store, core.reader, core.horizon.position)
        assert amounts == {OWNER: (owned.pending(OWNER), owned.pending_bytes(OWNER))}, (
            "which its row did not say"
        )
    (session,) = core.sessions
    assert (session.session.client_id, list(session.session.subscriptions)) == ("away", ["orders/#"])
    assert core.opened.held == 1
    groups = [(group.text, group.terms, group.keeping) for group in core.groups]
    if version == "format-1":
        assert groups == []
    else:
        terms, keeping = Terms(30_000, 5, (1_000, 5_000)), Keeping(7_200, 10.0)
        assert groups == [("$share/workers/orders/#", terms, keeping)]
    store.close()


@pytest.mark.process
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


def test_what_an_older_program_did_not_have_is_empty_to_read(tmp_path: Path) -> None:
    """A backup that is only looked at: nothing is made in it."""
    shutil.copytree(DATA / "format-1", tmp_path / "old")
    store = RocksStore(tmp_path / "old", read_only=True)
    for table in (Table.RETRIES, Table.DEAD):
        assert store.get(table, b"\0") is None
        assert list(store.scan(table, b"", b"\xff")) == []
    store.close()


@pytest.mark.long
@pytest.mark.parametrize("table", [Table.DEAD, Table.RETRIES])
@pytest.mark.parametrize("how", ["totals", "name", "row", "nothing's name", "count", "nobody's count"])
def test_what_is_wrong_of_dead_letters_and_retries_is_found_and_repaired(
    how: str, table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"
    shutil.copytree(DATA / f"format-{FORMAT}", path)
    store = RocksStore(path)
    before = rows_in(store, table)
    names = [key for key in before if key[0]]
    batch = store.batch()
    if how == "totals":
        meta = META_DEAD if table is Table.DEAD else META_RETRIES
        batch.put(Table.META, meta, kept_totals_value(KeptTotals(7, 7, START)))
    elif how == "name":
        batch.delete(table, names[0])
        batch.delete(table, names[1])
    elif how == "row":
        batch.put(table, next(iter(before)), b"rotten")
    elif how == "nothing's name":
        batch.put(table, b"\1" + bytes(8) + b"\7" * 12, b"")
        batch.put(table, names[1][:-1] + b"\xff", b"")
    elif how == "count":
        batch.put(table, names[-1] if names[-1][0] == 3 else b"\3" + bytes(8), count_value(9))
    else:
        batch.put(table, b"\3" + bytes(8), count_value(1))
    store.write(batch)
    store.close()
    assert main(["verify", "--data", str(path)]) == 1
    capsys.readouterr()
    assert main(["verify", "--repair", "--data", str(path)]) == 0
    assert main(["verify", "--data", str(path)]) == 0
    store = RocksStore(path)
    assert rows_in(store, table) == ({} if how == "row" else before)
    for one in (DEAD, RETRIES):
        assert one.stored_totals(store).count == len(list(one.all(store)))
    store.close()


def rows_in(store: RocksStore, table: Table) -> dict[bytes, bytes]:
    return dict(store.scan(table, b"", b"\xff" * 64))


def rows_of(path: Path) -> list[tuple[Table, bytes, bytes]]:
    store = RocksStore(path, read_only=True)
    rows = [(table, key, value) for table in Table for key, value in store.scan(table, b"", b"\xff" * 64)]
    store.close()
    return rows


@pytest.mark.long
@pytest.mark.parametrize("command", [[], ["inspect"], ["verify"], ["verify", "--repair"], ["leave"]])
@pytest.mark.parametrize("other", [FORMAT_FIRST - 1, FORMAT + 1, FORMAT + 41])
def test_any_other_format_is_refused_and_left_as_it_is(
    other: int, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what the start would write before it opens the timeline, and what a repair would make anew."""
    path = tmp_path / "other"
    shutil.copytree(DATA / f"format-{FORMAT}", path)
    store = RocksStore(path)
    batch = store.batch()
    batch.put(Table.META, META_FORMAT, b"%d" % other)
    batch.delete(Table.META, META_ZONES)
    batch.delete_range(Table.SHARDS, b"", b"\xff" * 64)  # as if counts were elsewhere by then
    store.write(batch)
    store.close()
    before = rows_of(path)
    assert main([*command, "--data", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"format {other}, this program reads formats {FORMAT_FIRST} to {FORMAT};" in said
    assert str(path) in said
    assert rows_of(path) == before


def test_there_is_a_directory_of_every_version() -> None:
    """Format 4 was never released, and has retries on the timeline."""
    assert [f"format-{version}" for version in (FORMAT_FIRST, 4, FORMAT)] == VERSIONS


@pytest.mark.parametrize(
    ("version", "number"), [(version, None) for version in VERSIONS] + [("format-4", 2), ("format-4", 3)]
)
def test_opening_raises_an_older_format_in_one_step(version: str, number: int | None, tmp_path: Path) -> None:
    """2 and 3 are numbers that development versions wrote; their rows are a part of those of format 4."""
    path = tmp_path / version
    shutil.copytree(DATA / version, path)
    store = RocksStore(path)
    assert format_of(store) == int(version[-1])
    if number is not None:
        rewrite(store, (Table.META, META_FORMAT, b"%d" % number))
    Core(load(None, {}, {})[0], SimulatedClock(NOW_MS), store, wake=lambda: None, chance=lambda: 0.5)
    assert format_of(store) == FORMAT
    store.close()


def test_what_only_looks_leaves_the_format(tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(DATA / "format-1", path)
    before = rows_of(path)
    assert main(["verify", "--data", str(path)]) == 0
    assert main(["inspect", "--data", str(path)]) == 0
    assert rows_of(path) == before


def test_a_wrong_counter_of_an_owner_is_found_and_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"
    shutil.copytree(DATA / "format-4", path)
    store = RocksStore(path)
    rewrite(store, (Table.META, owned(OWNER), owned_value(9, 1)))
    store.close()
    assert main(["verify", "--data", str(path)]) == 1
    assert "owner 'meter-7': says 8 messages are pending, there are 2" in capsys.readouterr().out
    assert main(["verify", "--repair", "--data", str(path)]) == 0
    assert main(["verify", "--data", str(path)]) == 0


def test_a_group_of_which_nothing_was_said_stays() -> None:
    store = MemoryStore()
    group = SubscriptionRow("jobs/#", 2, bytes(14))
    for name, expiry_s in (("$group/a", None), ("$group/b", 60)):
        batch = store.batch()
        batch.put(
            Table.SESSIONS, GROUP_PREFIX.encode() + name.encode(), encode_row(GroupRow(group, expiry_s))
        )
        store.write(batch)
    batch = store.batch()
    assert raise_groups(store, batch) == 1
    store.write(batch)
    rows = [group_of(value).expiry_s for _, value in readable(store, Table.SESSIONS, b"", b"\xff")]
    assert rows == [NEVER_S, 60]
