"""A split that an older version was killed in: its slices borrow, its copies lie about, its files are there.

`tests/data/half-split` was made by 7858f670, killed after it had taken in the files of a split: the job is in
state `moving`, m1 and m2 were cancelled before its checkpoint, m3 and m18 after it, `new` came after the cut.
"""

import shutil
from pathlib import Path

import pytest

from server.engine.clock import SimulatedClock
from server.offline import verify
from server.settings.config import Config
from shards import keys
from shards.recover import read_directory
from shards.rocks import RocksStore
from shards.store import Table
from shards.verify import verify_counts
from tests.support.mover import counted

from ..conftest import running
from ..http.test_jobs import Work

pytestmark = pytest.mark.long  # on disk

DATA = Path(__file__).parents[2] / "data" / "half-split"
START_MS = 1_796_299_200_000
STEP_MS = 600_000
NOW_MS = START_MS - 9 * 86_400_000
THERE = [f"m{n}" for n in range(20) if n not in (1, 2, 3, 18)]
THERE.insert(THERE.index("m8") + 1, "new")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "data"))


def rows_of_nobody(store: RocksStore) -> int:
    directory = read_directory(store, 1_000)
    assert verify_counts(store, directory) == []
    known = {shard.prefix for piece in directory for shard in piece.readable()}
    return sum(key[:10] not in known for key, _ in store.scan(Table.MESSAGES, b"", keys.LAST))


async def test_it_opens_and_is_whole(data: Path) -> None:
    assert len(list((data / "jobs").rglob("*.sst"))) == 3
    async with running(data, Config(), SimulatedClock(NOW_MS)) as server:
        work = Work(server)
        assert [text for text in await work.listed() if text != "probe"] == THERE
        (job,) = (await server.call("GET", "/v1/jobs")).body["jobs"]
        assert (job["state"], job["detail"]) == ("aborted", "the server restarted")
        pieces = (await server.call("GET", "/v1/slices")).body["slices"]
        assert [(one["count"], one["live"], one["generation"]) for one in pieces] == [
            (7, 4, 1),
            (8, 8, 1),
            (7, 6, 1),
        ]
        await server.app.garbage.sweep()
        assert rows_of_nobody(server.store) == 0
        assert not list((data / "jobs").glob("*"))
        # What was cut by the older version is cut again by this one, and delivered.
        start = pieces[0]["start"]
        job = await work.create(start)
        cuts = [START_MS + 2 * STEP_MS]
        await work.commit(job, {"cuts": cuts, "pieces": counted(job, cuts)})
        _, link = await server.connect("reader", "t/+", expiry_s=86_400)
        await server.call("POST", "/v1/clock:advance", {"by": "P12D"})
        assert [message.record.payload.decode() for message in link.sent] == THERE


async def test_once(data: Path) -> None:
    """The second start finds rows as it writes them itself, and reads no message to count."""
    async with running(data, Config(), SimulatedClock(NOW_MS)):
        pass
    store = RocksStore(data)
    scanned: list[Table] = []
    scan = store.scan
    store.scan = lambda table, start, end: (scanned.append(table), scan(table, start, end))[1]  # type: ignore[method-assign]
    assert sum(piece.live for piece in read_directory(store, 1_000)) == len(THERE) + 1
    assert Table.MESSAGES not in scanned
    store.close()


def test_verify_takes_it_as_it_is(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(data, 1_000, repair=True) == 0
    assert capsys.readouterr().out == "nothing wrong\n"
