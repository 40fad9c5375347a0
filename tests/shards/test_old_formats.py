"""A data directory of every format that was released opens, with all that is in it; any other is refused.

This program's own format has no directory before it is released: the tests make one.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from server.__main__ import main
from server.core import Core
from server.delivery.terms import Keeping
from server.engine.clock import SimulatedClock
from server.settings.reading import load
from shards import delivery_rows, keys
from shards.cells import step
from shards.keys import owned
from shards.pointers import pointers
from shards.record import CANCELLED, decode, owner_of
from shards.recover import count_owned, format_of
from shards.rocks import RocksStore
from shards.store import Table
from shards.tables import (
    FORMAT,
    FORMAT_FIRST,
    META_DEAD,
    META_FORMAT,
    META_ZONES,
    KeptTotals,
    kept_totals_value,
    number_value,
    owned_value,
)
from shards.verify import verify_counts, verify_owners
from tests.data.make_format import OWNER, make
from tests.support.http import http
from tests.support.server import serving
from tests.support.stores import rewrite
from timeline.position import END, START, at_of, parse_id
from timeline.session import Terms

DATA = Path(__file__).parents[1] / "data"
NOW_MS = 1_800_000_016_000
RETRY_MS = 1_800_000_000_000 + 86_400_000
RELEASED = sorted(path.name for path in DATA.glob("format-*"))
OWN = f"format-{FORMAT}"
VERSIONS = [*RELEASED, OWN]
BETWEEN = range(FORMAT_FIRST + 1, FORMAT)


Copy = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this program's own format."""
    path = tmp_path_factory.mktemp("made") / OWN
    make(path)
    return path


@pytest.fixture
def directory_of(made: Path, tmp_path: Path) -> Copy:
    """A copy of the data directory of a format."""
    return lambda version: shutil.copytree(made if version == OWN else DATA / version, tmp_path / version)


def opened(store: RocksStore) -> Core:
    return Core(load(None, {}, {})[0], SimulatedClock(NOW_MS), store, wake=lambda: None, chance=lambda: 0.5)


def test_there_is_a_directory_of_every_format_that_was_released() -> None:
    assert [f"format-{FORMAT_FIRST}"] == RELEASED


@pytest.mark.parametrize("version", VERSIONS)
def test_a_data_directory_opens_whole(version: str, directory_of: Copy) -> None:
    path = directory_of(version)
    ids = [parse_id(line) for line in (path / "ids").read_text().split()]
    store = RocksStore(path)
    core = opened(store)
    assert format_of(store) == FORMAT
    found = [core.reader.find(name) for name in ids]
    records = [decode(one.value) for one in found if one is not None]
    assert [record.payload for record in records[:25]] == [b"payload %d" % index for index in range(25)]
    assert (records[25].stub, records[26].due_ms) == (CANCELLED, 1_800_000_000_000 + 86_400_000)
    assert (records[30].topic, len(records)) == (b"held", 31)
    assert len(list(core.reader.read(START, END))) == 31, "30 messages, and what the move left"
    waiting, dead = list(delivery_rows.waiting(store)), list(core.dead_letters.read())
    if version == "format-1":
        assert (waiting, dead, list(store.scan(Table.DELIVERIES, b"", b"\xff"))) == ([], [], [])
    else:
        (row,) = waiting
        assert (row.addressee, row.group, row.attempts, row.counted) == ("away", "away", 3, 1)
        assert (row.reason, row.id, owner_of(row.record)) == ("busy", ids[0], OWNER)
        assert (row.message().payload, at_of(row.at)) == (b"payload 0", RETRY_MS)
        assert list(delivery_rows.of_message(store, ids[0])) == [row]
        assert delivery_rows.count_waiting(store, row.whose) == 1
        assert [(one.group, one.attempts, one.id) for one in dead] == [("away", 4, ids[1])]
        (dropped,) = delivery_rows.of_message(store, ids[2])
        assert (dropped.addressee, dropped.is_dropped) == ("away", True)
    assert core.opened.waiting.retries == len(waiting)
    assert list(pointers(store, core.directory)) == []
    for piece in core.directory:
        assert piece.cells is None, "nobody has counted by time"
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
        pending = core.opened.owned
        assert pending.pending(OWNER) == 1 + len(waiting), "what is due later, and the retry"
        amounts = count_owned(store, core.reader, core.horizon.position)
        assert amounts == {OWNER: (pending.pending(OWNER), pending.pending_bytes(OWNER))}
    (session,) = core.sessions
    assert (session.session.client_id, list(session.session.subscriptions)) == ("away", ["orders/#"])
    assert core.opened.waiting.held == 1
    groups = [(group.text, group.terms, group.keeping) for group in core.groups]
    if version == "format-1":
        assert groups == []
    else:
        terms, keeping = Terms(30_000, 5, (1_000, 5_000)), Keeping(7_200, 10.0)
        assert groups == [("$share/workers/orders/#", terms, keeping)]
    store.close()


@pytest.mark.process
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_goes_on_with_a_data_directory(version: str, directory_of: Copy) -> None:
    path = directory_of(version)
    names = (path / "ids").read_text().split()
    async with serving(path) as server, http(server.url) as calls:
        found = await calls.call("GET", f"/v1/messages/{names[26]}", status=200)
        assert found.body["topic"] == "lights/hall"
        await calls.call("DELETE", f"/v1/messages/{names[26]}", status=204)
    assert main(["verify", "--data", str(path)]) == 0
    assert main(["inspect", "--data", str(path)]) == 0


def test_what_an_older_program_did_not_have_is_empty_to_read(directory_of: Copy) -> None:
    """A backup that is only looked at: nothing is made in it."""
    store = RocksStore(directory_of("format-1"), read_only=True)
    for table in (Table.DELIVERIES, Table.ORDER):
        assert store.get(table, b"\0") is None
        assert list(store.scan(table, b"", b"\xff")) == []
    store.close()


def test_what_only_looks_leaves_the_format(directory_of: Copy) -> None:
    path = directory_of("format-1")
    before = rows_of(path)
    assert main(["verify", "--data", str(path)]) == 0
    assert main(["inspect", "--data", str(path)]) == 0
    assert rows_of(path) == before


# -- what is refused


@pytest.mark.long
@pytest.mark.parametrize("command", [[], ["inspect"], ["verify"], ["verify", "--repair"], ["leave"]])
@pytest.mark.parametrize("other", [FORMAT_FIRST - 1, *BETWEEN, FORMAT + 1, FORMAT + 41])
def test_any_other_format_is_refused_and_left_as_it_is(
    other: int, command: list[str], directory_of: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what the start would write before it opens the timeline, and what a repair would make anew."""
    path = directory_of(OWN)
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
    assert f"{path}: the data has format {other}, " in said
    assert f"this program reads formats {FORMAT_FIRST} and {FORMAT}" in said
    assert (
        ("which no release wrote" in said) == ("begin with an empty directory" in said) == (other in BETWEEN)
    )
    assert rows_of(path) == before


def test_a_table_that_only_such_a_format_has_is_no_obstacle(
    directory_of: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused by its number."""
    path = directory_of(OWN)
    store = RocksStore(path)
    rewrite(store, (Table.META, META_FORMAT, b"5"))
    store._db.create_column_family("retries", store._options()).put(b"\0" * 13, b"a row")
    store.close()
    assert main(["--data", str(path)]) == 2
    assert "the data has format 5, which no release wrote" in capsys.readouterr().err


# -- what is wrong in this format


@pytest.mark.long
@pytest.mark.parametrize(
    "how", ["totals", "names", "state", "record", "nothing's name", "count", "nobody's count"]
)
def test_what_is_wrong_of_deliveries_is_found_and_repaired(
    how: str, directory_of: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory_of(OWN)
    store = RocksStore(path)
    before = rows_in(store)
    names = [
        key for key in before if key[:1] in (keys.WAITS_OF, keys.WAITS, keys.DEAD, keys.DEAD_OF, keys.DROPPED)
    ]
    assert len(names) == 5
    batch = store.batch()
    if how == "totals":
        batch.put(Table.META, META_DEAD, kept_totals_value(KeptTotals(7, 7, START)))
    elif how == "names":
        for key in names:
            batch.delete(Table.DELIVERIES, key)
    elif how in ("state", "record"):
        for key in before:
            if key[:1] == (keys.STATE if how == "state" else keys.RECORD):
                batch.put(Table.DELIVERIES, key, b"rotten")
    elif how == "nothing's name":
        batch.put(Table.DELIVERIES, keys.WAITS_OF + bytes(8) + b"\7" * 12, b"\7" * 12)
        batch.put(Table.DELIVERIES, names[1][:-1] + b"\xff", before[names[1]])
    elif how == "count":
        batch.put(
            Table.DELIVERIES, next(key for key in before if key[:1] == keys.WAITING_COUNT), number_value(9)
        )
    else:
        batch.put(Table.DELIVERIES, keys.WAITING_COUNT + bytes(8), number_value(1))
    store.write(batch)
    store.close()
    assert main(["verify", "--data", str(path)]) == 1
    capsys.readouterr()
    assert main(["verify", "--repair", "--data", str(path)]) == 0
    assert main(["verify", "--data", str(path)]) == 0
    store = RocksStore(path)
    assert rows_in(store) == ({} if how in ("state", "record") else before)
    assert delivery_rows.totals(store).count == len(list(delivery_rows.dead(store)))
    store.close()


def rows_in(store: RocksStore) -> dict[bytes, bytes]:
    return dict(store.scan(Table.DELIVERIES, b"", b"\xff" * 64))


def rows_of(path: Path) -> list[tuple[Table, bytes, bytes]]:
    store = RocksStore(path, read_only=True)
    rows = [(table, key, value) for table in Table for key, value in store.scan(table, b"", b"\xff" * 64)]
    store.close()
    return rows


def test_a_wrong_counter_of_an_owner_is_found_and_repaired(
    directory_of: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory_of(OWN)
    store = RocksStore(path)
    rewrite(store, (Table.META, owned(OWNER), owned_value(9, 1, 9, 1)))
    store.close()
    assert main(["verify", "--data", str(path)]) == 1
    assert "owner 'meter-7': says 8 messages are pending, there are 2" in capsys.readouterr().out
    assert main(["verify", "--repair", "--data", str(path)]) == 0
    assert main(["verify", "--data", str(path)]) == 0
