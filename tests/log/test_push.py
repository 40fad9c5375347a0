"""Records that an engine pushes to who follows: what comes, and that nothing is asked for meanwhile."""

import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from shards.log.chained import ChainedLog, open_engine
from shards.log.engine import LogState
from shards.log.errors import Trimmed
from shards.log.jetstream import JetStream
from shards.log.postgres import NOTIFY_S
from tests.support.logs import Elapsing, Faulty, created
from tests.support.nats import Nats
from tests.support.server import ROOT
from tests.support.shelf import MemoryEngine, Shelf

from .conftest import DEADLINE_S, JetStreamPlace, Place, PostgresPlace

LONG_S = 30.0
DEAF_S = 1.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's servers take their time."""
    monkeypatch.setattr("shards.log.feed.CREATE_S", LONG_S)
    monkeypatch.setattr("shards.log.jetstream.DEAF_S", DEAF_S)


class Counted(Faulty):
    """Counts what is asked for."""

    def __init__(self, place: Place) -> None:
        super().__init__(created(place.engine()))
        self.asked = 0

    def fetch(self, seq: int, count: int, timeout_s: float, *, is_sure: bool = True) -> Sequence[bytes]:
        self.asked += 1
        return super().fetch(seq, count, timeout_s, is_sure=is_sure)

    def state(self, timeout_s: float) -> LogState:
        self.asked += 1
        return super().state(timeout_s)


def heard(log: ChainedLog, hear_s: float = LONG_S) -> list[int]:
    return [seq for seq, _, _ in log.read(log.at.seq, hear_s=hear_s)]


def all_heard(log: ChainedLog, upto: int) -> list[int]:
    found: list[int] = []
    while log.at.seq < upto:
        found += heard(log)
    return found


@pytest.fixture(params=["jetstream", "postgres"])
def pushing(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def pair(place: Place) -> tuple[ChainedLog, int, ChainedLog, Counted]:
    """Who leads, its epoch, and who listens."""
    engine = Counted(place)
    leader, reader = place.open(), open_engine(engine, time, DEADLINE_S)
    epoch = leader.claim(1, "a", "")
    assert [seq for seq, _, _ in reader.read(0)] == [1]
    assert heard(reader, 0.01) == []
    time.sleep(NOTIFY_S)
    leader.append(2, epoch, b"")  # PostgreSQL: who has had no notice yet is not sure to get one
    while reader.at.seq < 2:
        heard(reader)
    engine.asked = 0
    return leader, epoch, reader, engine


def test_what_is_pushed_is_read_and_not_asked_for(pushing: Place) -> None:
    leader, epoch, reader, engine = pair(pushing)
    timer = threading.Timer(0.2, lambda: leader.append(3, epoch, b"later"))
    timer.start()
    assert all_heard(reader, 3) == [3]
    timer.join()
    for first in range(4, 804, 200):
        for seq in range(first, first + 200):
            leader.append(seq, epoch, b"data %d" % seq)
        assert all_heard(reader, first + 199) == list(range(first, first + 200))
        if not engine.asked:
            break
        time.sleep(DEAF_S)  # a busy server said nothing for too long: then it is asked for a while
        while heard(reader, 0.01):
            pass
        engine.asked = 0
    assert engine.asked == 0
    assert reader.is_behind, "there may be more"
    assert heard(reader, 0.01) == []
    list(reader.read(reader.at.seq))
    assert not reader.is_behind


def test_who_is_nudged_waits_no_longer(jetstream: JetStreamPlace) -> None:
    reader = pair(jetstream)[2]
    threading.Timer(0.2, reader.nudge).start()
    assert heard(reader) == []


def test_a_stray_and_a_large_group_are_pushed(pushing: Place) -> None:
    leader, epoch, reader, _ = pair(pushing)
    pushing.put(3, b"hello")
    leader.append(3, epoch, bytes(3 << 20))
    leader.append(leader.at.seq + 1, epoch, b"last")
    assert all_heard(reader, leader.at.seq) == [leader.at.seq - 1, leader.at.seq]
    assert reader.strays == (1, 3, 3)


def test_who_leads_is_not_pushed_what_it_writes(pushing: Place) -> None:
    """And listens again afterwards."""
    leader, _, reader, _ = pair(pushing)
    epoch = reader.claim(3, "b", "")
    for seq in range(4, 100):
        reader.append(seq, epoch, b"data")
    [*leader.read(2)]
    epoch = leader.claim(100, "a", "")
    [*reader.read(99)]
    assert heard(reader, 0.01) == []
    leader.append(101, epoch, b"")
    time.sleep(NOTIFY_S)
    leader.append(102, epoch, b"")
    assert all_heard(reader, 102) == [101, 102]


def test_records_were_read_otherwise(pushing: Place) -> None:
    leader, epoch, reader, engine = pair(pushing)
    for seq in range(3, 50):
        leader.append(seq, epoch, b"data")
    [*reader.read(2)]
    engine.asked = 0
    assert heard(reader, 0.3) == []
    time.sleep(NOTIFY_S)
    leader.append(50, epoch, b"")
    assert all_heard(reader, 50) == [50]
    assert engine.asked == 0


def test_a_record_is_lost_for_who_listens(pushing: Place) -> None:
    """When it begins, a consumer of JetStream passes over what is not there."""
    leader, reader = pushing.open(), pushing.open()
    epoch = leader.claim(1, "a", "")
    [*reader.read(0)]
    for seq in range(2, 7):
        leader.append(seq, epoch, b"")
    leader.trim(5)
    with pytest.raises(Trimmed):
        heard(reader)


def test_a_consumer_that_is_gone(jetstream: JetStreamPlace) -> None:
    leader, epoch, reader, engine = pair(jetstream)
    api = jetstream.servers.api
    for name in api(f"CONSUMER.NAMES.{jetstream.name}", {})["consumers"]:
        assert api(f"CONSUMER.DELETE.{jetstream.name}.{name}", {})["success"]
    leader.append(3, epoch, b"")
    assert all_heard(reader, 3) == [3]
    assert engine.asked > 0
    engine.asked = 0
    leader.append(4, epoch, b"")
    assert heard(reader) == [4]
    assert heard(reader) == [], "nobody waits"
    assert engine.asked > 0, "for a while nothing is pushed"


@pytest.mark.parametrize("may_listen", [True, False])
def test_the_user_of_the_page_for_operators(tmp_path: Path, *, may_listen: bool) -> None:
    """By the page of an earlier version it may not make consumers: records are asked for."""
    page = (ROOT / "docs/cluster.md").read_text()
    block = page[page.index("authorization {") :].partition("```")[0].replace("…", "secret")
    if not may_listen:
        block = re.sub(r',\s*"\$JS.API.CONSUMER[^\]]*', "", block)
    with Nats(tmp_path, count=1) as alone:
        alone.kill("n0")
        with (tmp_path / "n0" / "conf").open("a") as conf:
            conf.write(block)
        alone.start("n0")
        alone.wait_ready()
        url = alone.url.replace("//", "//fasti:secret@")
        leader, reader = (
            open_engine(created(JetStream(url, "fasti", must_replicate=False)), time, DEADLINE_S)
            for _ in range(2)
        )
        epoch = leader.claim(1, "a", "")
        assert [seq for seq, _, _ in reader.read(0)] == [1]
        leader.append(2, epoch, b"")
        assert heard(reader) == [2]
        assert reader.is_behind is may_listen
        leader.append(3, epoch, b"")
        assert heard(reader) == [3]
        leader.trim(2)
        leader.close()
        reader.close()


def test_a_leader_of_an_earlier_version_gives_no_notice(postgres: PostgresPlace) -> None:
    reader, leader = postgres.open(), postgres.open()
    epoch = leader.claim(1, "a", "")
    assert heard(reader) == [1]
    monkey = pytest.MonkeyPatch()
    monkey.setattr("shards.log.postgres.NOTIFY_S", float("inf"))
    leader.append(2, epoch, b"")
    assert heard(reader) == [2]
    assert heard(reader) == []
    monkey.undo()


def test_an_engine_that_cannot_push_is_asked() -> None:
    shelf = Shelf()
    leader = open_engine(MemoryEngine(shelf), Elapsing(), 2.0)
    reader = open_engine(MemoryEngine(shelf), Elapsing(), 2.0)
    leader.claim(1, "a", "")
    assert heard(reader) == [1]
    assert reader.is_behind
    assert heard(reader) == []
    assert not reader.is_behind
