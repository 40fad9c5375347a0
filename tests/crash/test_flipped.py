"""One flipped byte in any file of a data directory: refused by name, or nothing is silently less.

What is acked is there, or lies in a known corrupt range; or the start says which file.
"""

import shutil
from pathlib import Path

import pytest

from server.core import Core
from server.settings.config import Config
from shards.commit import Draft
from shards.errors import ShardsError
from shards.fields import Record
from shards.record import decode, encode, is_stub
from shards.rocks import RocksStore
from shards.store import Table
from tests.support.clock import HandClock
from timeline.position import END, START

from .hand import Hand

pytestmark = pytest.mark.short

START_MS = 1_800_000_000_000
COUNT = 600
KINDS = (
    *("CURRENT", "MANIFEST-*", "OPTIONS-*", "*.log", "*.sst", "IDENTITY", "rocksdict-config.json"),
    *("bound", "synced"),
)


def _draft(number: int) -> Draft:
    payload = b"%d " % number + bytes((number * 7 + 131 * n * n) % 251 for n in range(100))
    due_ms = START_MS + 3_600_000 + 10 * number
    return Draft(due_ms, b"a/b", encode(Record(b"a/b", payload, due_ms, 1)))


def _number(value: bytes) -> int:
    return int(decode(value).payload.split()[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the messages in table files, half in the log, in many records."""
    path = tmp_path_factory.mktemp("flipped") / "data"
    store = RocksStore(path)
    hand = Hand(store, HandClock(START_MS), reached=lambda point: None)
    for number in range(0, COUNT, 20):
        if number == COUNT // 2:
            for table in Table:
                store._families[table].flush()
        drafts = [_draft(n) for n in range(number, number + 20)]
        hand.ask(lambda commit, drafts=drafts: commit.put(drafts), lambda answer: None, 20)
        hand.round()
    store.mark(START_MS + 5_000)
    copy = path.parent / "copy"
    shutil.copytree(path, copy)
    store.close()
    return copy


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_silently_less(whole: Path, tmp_path: Path, kind: str, part: float) -> None:
    damaged = sorted(whole.glob(kind))
    assert damaged, "there is such a file"
    for number, file in enumerate(damaged):
        path = tmp_path / str(number)
        shutil.copytree(whole, path)
        raw = bytearray(file.read_bytes())
        raw[int((len(raw) - 1) * part)] ^= 0x40
        (path / file.name).write_bytes(raw)
        assert _loss(path, file.name) == "", file.name


def _loss(path: Path, flipped: str) -> str:
    """What is gone without a word; `flipped`: the file with the flipped byte."""
    try:
        store = RocksStore(path)
    except ShardsError as error:
        return "" if flipped in str(error) else f"refused without a name: {error}"
    try:
        core = Core(Config(), HandClock(START_MS), store, wake=lambda: None, chance=lambda: 0.5)
        rows = core.reader.read(START, END)
        there = {_number(value) for _, _, value in rows if not is_stub(value)}
        is_known = bool(len(core.reader.unreadable))
        marked_ms = core.horizon.refuse_ms
    except ShardsError as error:
        text = str(error)
        return "" if str(path) in text or "table " in text else f"refused without a name: {error}"
    finally:
        store.close()
    if marked_ms < START_MS + 5_000:
        return f"the bound is {marked_ms}"
    lost = COUNT - len(there)
    return f"{lost} messages are gone" if lost and not is_known else ""
