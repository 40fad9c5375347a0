"""Any file of a data directory cut off anywhere, or gone: refused by name, or nothing acked is missing.

The engine by itself opens with what is left of its logs, and of a MANIFEST, without a word. What it takes for
the end of a kill (a log that was never synced so far) still opens, with all that lies before the cut.
FASTI_SOAK=1 cuts all files at more places.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from server.core import Core
from server.offline import verify
from server.settings.config import Config
from shards.commit import Draft
from shards.errors import ShardsError
from shards.fields import Record
from shards.record import decode, encode, is_stub
from shards.rocks import RocksStore
from shards.store import Table
from tests.support.clock import HandClock
from tests.support.soak import SOAK
from timeline.position import END, START

from .hand import Hand

START_MS = 1_800_000_000_000
COUNT = 640
GROUP = 20
BLOCK = 32 << 10
"""Records of a log lie in blocks of this size."""
HEADER = 7
KINDS = (
    *("CURRENT", "MANIFEST-*", "OPTIONS-*", "IDENTITY", "*.log", "*.sst"),
    *("rocksdict-config.json", "bound", "synced", "keys-used.json"),
)


def _draft(number: int) -> Draft:
    payload = b"%d " % number + bytes((number * 7 + 131 * n * n) % 251 for n in range(200))
    due_ms = START_MS + 3_600_000 + 10 * number
    return Draft(due_ms, b"a/b", encode(Record(b"a/b", payload, due_ms, 1)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in table files, in two logs that others followed, and in the one that was written last."""
    path = tmp_path_factory.mktemp("truncated") / "data"
    store = RocksStore(path)
    hand = Hand(store, HandClock(START_MS), reached=lambda point: None)
    for number in range(0, COUNT, GROUP):
        if number == COUNT // 4:
            for table in Table:
                store._families[table].flush()
        if number in (COUNT // 2, COUNT * 3 // 4):
            store._families[Table.MESSAGES].flush()
        drafts = [_draft(n) for n in range(number, number + GROUP)]
        hand.ask(lambda commit, drafts=drafts: commit.put(drafts), lambda answer: None, GROUP)
        hand.round()
    store.mark(START_MS + 5_000)
    store._synced.settle()  # a heartbeat does, within a second
    (path / "keys-used.json").write_text('{"meter": 1}')
    copy = path.parent / "copy"
    shutil.copytree(path, copy)
    store.close()
    assert len(list(copy.glob("*.log"))) == 3
    return copy


def _cuts(size: int) -> list[int]:
    """Nothing left, within a header, a record, on the edge of a block and round it, the last byte."""
    edges = [at + d for at in range(BLOCK, size, BLOCK) for d in (-1, 0, HEADER - 1, HEADER)]
    if not SOAK:
        edges = edges[1:3]
    return sorted({at for at in (0, 3, 100, size // 2, *edges, size - HEADER, size - 1) if 0 <= at < size})


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_acked_is_there_or_the_start_refuses(
    whole: Path, tmp_path: Path, kind: str, record_property: Callable[[str, object], None]
) -> None:
    files = sorted(whole.glob(kind))
    if not SOAK and kind == "*.sst":
        files = files[::4]
    assert files, "there is such a file"
    counts = {"whole": 0, "refused": 0}
    for file in files:
        for cut in (*_cuts(file.stat().st_size), None):
            path = tmp_path / "cut"
            shutil.copytree(whole, path)
            if cut is None:
                (path / file.name).unlink()
            else:
                with (path / file.name).open("r+b") as opened:
                    opened.truncate(cut)
            there = _there(path)
            if isinstance(there, str):
                assert str(path) in there or "table " in there, f"refused without a name: {there}"
            else:
                assert there == COUNT, f"{file.name} cut at {cut}: {COUNT - there} are gone without a word"
            counts["refused" if isinstance(there, str) else "whole"] += 1
            shutil.rmtree(path)
    record_property("counted", f"{kind}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    if kind in ("*.log", "MANIFEST-*", "*.sst", "CURRENT"):
        assert not counts["whole"], "what cannot be told from nothing having happened"
    else:
        assert kind == "bound" or not counts["refused"]


def test_a_log_that_was_never_synced_so_far(whole: Path, tmp_path: Path) -> None:
    """As after a loss of power, that took the note's last writes too: all before the cut, in whole groups."""
    log = max(whole.glob("*.log"))
    found = []
    for cut in (*_cuts(log.stat().st_size), None):
        path = tmp_path / "cut"
        shutil.copytree(whole, path)
        (path / "synced").unlink()
        if cut is None:
            (path / log.name).unlink()
        else:
            with (path / log.name).open("r+b") as opened:
                opened.truncate(cut)
        there = _there(path)
        assert isinstance(there, int)
        assert there % GROUP == 0
        assert there >= COUNT * 3 // 4, "what is in the logs before"
        assert verify(path, 50, repair=False) == 0
        found.append((COUNT * 2 if cut is None else cut, there))
        shutil.rmtree(path)
    cuts = [there for _, there in sorted(found)[:-1]]
    assert cuts == sorted(cuts)
    assert len(set(cuts)) > 2


@pytest.mark.parametrize("share", [0, 1, 2], ids=["gone", "empty", "half"])
def test_what_is_missing_can_be_put_back(whole: Path, tmp_path: Path, share: int) -> None:
    """A start that refuses has not used up what was there."""
    path = tmp_path / "cut"
    shutil.copytree(whole, path)
    log = max(path.glob("*.log"))
    before = log.read_bytes()
    if share:
        os.truncate(log, len(before) // share if share > 1 else 0)
    else:
        log.unlink()
    tables = {file.name for file in path.iterdir() if file.suffix in (".sst", ".log")}
    for _ in range(2):
        assert "was synced" in str(_there(path))
    assert {file.name for file in path.iterdir() if file.suffix in (".sst", ".log")} == tables
    log.write_bytes(before)
    assert _there(path) == COUNT


def test_a_log_whose_rows_have_gone_into_tables(whole: Path, tmp_path: Path) -> None:
    """No more is missing than after a kill just then; and what else is called a log is none."""
    path = tmp_path / "data"
    shutil.copytree(whole, path)
    (path / "server.log").write_text("what it says")
    store = RocksStore(path)
    hand = Hand(store, HandClock(START_MS), reached=lambda point: None)
    hand.ask(lambda commit: commit.put([_draft(COUNT)]), lambda answer: None, 1)
    hand.round()
    store._synced.settle()
    noted = store._synced.read()
    assert noted.log == max(int(log.stem) for log in path.glob("0*.log"))
    assert noted.change == store._db.latest_sequence_number()
    for table in Table:
        store._families[table].flush()
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    store.close()
    for log in copy.glob("0*.log"):
        log.unlink()
    assert _there(copy) == COUNT + 1


def test_a_repair_accepts_what_is_left(whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cut"
    shutil.copytree(whole, path)
    log = max(path.glob("*.log"))
    with log.open("r+b") as opened:
        opened.truncate(log.stat().st_size // 2)
    for _ in range(2):
        assert isinstance(_there(path), str), "refused, and refused again"
    assert verify(path, 50, repair=True) == 0
    assert "was synced" in caplog.text
    there = _there(path)
    assert isinstance(there, int)
    assert COUNT * 3 // 4 <= there < COUNT


def _there(path: Path) -> int | str:
    """How many messages are there, or why it does not start."""
    try:
        store = RocksStore(path)
    except ShardsError as error:
        return str(error)
    try:
        core = Core(Config(), HandClock(START_MS), store, wake=lambda: None, chance=lambda: 0.5)
        there = [decode(value) for _, _, value in core.reader.read(START, END) if not is_stub(value)]
        assert core.opened.waiting.pending == len(there)
    except ShardsError as error:
        return str(error)
    finally:
        store.close()
    assert [int(r.payload.split()[0]) for r in there] == list(range(len(there)))
    return len(there)
