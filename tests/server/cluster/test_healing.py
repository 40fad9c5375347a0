"""`fasti-server cluster init` and `heal`, on a log in RAM: what they say, and what becomes of the log."""

from pathlib import Path

import pytest

from server.cluster import healing, opening
from server.cluster.healing import FORK
from server.cluster.standing import Standing
from server.settings.config import Config, ConfigError
from server.settings.reading import load
from shards.log.chained import ChainedLog, open_engine
from shards.log.engine import Origin
from shards.log.errors import Damaged, UnknownVersion
from shards.log.record import ORIGIN, Seal
from shards.replicated import ReplicatedStore
from tests.support.logs import Elapsing
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf

KEY = "0123456789abcdef"
B, C = "http://b:1", "http://c:1"


class Lab:
    """A log, and what the nodes b and c answer; node a is the one where the command runs."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        said = {"log": "nats://x", "node": "a", "key": KEY, "peers": [B, C]}
        self.config, _ = load(
            None, {}, {"store.dir": str(folder), **{f"cluster.{key}": value for key, value in said.items()}}
        )
        self.shelf = Shelf(is_made=False)
        self.heard: dict[str, Standing | None] = {"http://a:1": Standing("a"), B: None, C: None}
        self.meanwhile = 0
        """Records that somebody writes while the command looks."""

    def opened(self) -> ReplicatedStore:
        store = ReplicatedStore(MemoryStore(), self.log(self.config))
        store.follow()
        return store

    def log(self, _: Config) -> ChainedLog:
        return open_engine(MemoryEngine(self.shelf), Elapsing(), 1.0, (KEY,))

    def begin(
        self, _: Config, seal: Seal, timeline: str, node: str = "", last: int = 0, beyond: int = 0
    ) -> None:
        hand = ChainedLog(MemoryEngine(self.shelf), Elapsing(), 1.0, (KEY,))
        hand.begin(seal, Origin(timeline, node), last, beyond)

    def lose(self) -> None:
        self.shelf.frames.clear()
        self.shelf.is_made = False

    def sleep(self, _: float) -> None:
        if self.meanwhile:
            log = self.log(self.config)
            last = log.bounds()[1]
            log.claim(last + 1, "b", B)

    def told(self, status: int, command: str = "heal", *, accepts_loss: bool = True) -> str:
        """What the command says that ends with this status."""
        assert healing.run(self.config, command, accepts_loss=accepts_loss) == status
        return self._capsys.readouterr().out

    async def answers(self, _: Config) -> dict[str, Standing | None]:
        return self.heard


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lab:
    made = Lab(tmp_path, capsys)
    monkeypatch.setattr(healing, "open_hand", made.log)
    monkeypatch.setattr(healing, "begin_log", made.begin)
    monkeypatch.setattr(healing, "_heard", made.answers)
    monkeypatch.setattr(healing.time, "sleep", made.sleep)
    return made


def standing(node: str, seal: Seal, timeline: str, **more: object) -> Standing:
    return Standing(node, seal.seq, seal.epoch, seal.digest.hex(), timeline=timeline, **more)  # type: ignore[arg-type]


def led(lab: Lab, count: int) -> list[tuple[Seal, str]]:
    """A log with so many records: their seals, and the timeline."""
    lab.begin(lab.config, ORIGIN, "5678")
    store, found = lab.opened(), []
    store.lead("b", B)
    for _ in range(count):
        found.append((store.applied, store.timeline))
        store.beat()
    return found


def test_a_new_timeline_is_begun_by_the_node_that_is_named(lab: Lab) -> None:
    assert "node a begins it" in lab.told(0, "init", accepts_loss=False)
    assert (lab.shelf.origin.node, lab.shelf.last) == ("a", 0)
    assert "there already" in lab.told(1, "init", accepts_loss=False)
    opening._check_records(lab.config, lab.log(lab.config), Standing("a"), may_begin=False)
    with pytest.raises(opening.NoLog):
        opening._check_records(lab.config, lab.log(lab.config), Standing("b"), may_begin=False)
    store = lab.opened()
    store.lead("a", "http://a:1")
    assert store.timeline == lab.shelf.origin.timeline


def test_a_new_timeline_is_not_begun_beside_rows_of_another_node(lab: Lab) -> None:
    """A server that was alone would be refused by its own cluster."""
    lab.heard[B] = Standing("b", has_rows=True)
    assert "node b has a timeline of its own: run init there" in lab.told(1, "init", accepts_loss=False)
    assert not lab.shelf.is_made


def test_a_record_of_a_later_version_does_not_end_a_new_node(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so in `why` as it follows, and goes on once it is upgraded."""
    led(lab, 3)
    log = lab.log(lab.config)

    def unknown(_: int) -> None:
        raise UnknownVersion("record 1 has version 99")

    monkeypatch.setattr(log, "read", unknown)
    opening._check_records(lab.config, log, Standing("b"), may_begin=False)


def test_a_timeline_that_has_records_is_not_begun_again(lab: Lab) -> None:
    lab.heard[B] = standing("b", Seal(7, 1, b"x" * 16), "12ab")
    assert "node b has a timeline, up to record 7: its log is lost, use heal" in lab.told(
        1, "init", accepts_loss=False
    )
    assert not lab.shelf.is_made


def test_a_lost_log_goes_on_from_the_furthest_that_is_heard(lab: Lab) -> None:
    """It is said beforehand what may be lost; without the option nothing changes."""
    seal, timeline = led(lab, 4)[3]
    lab.lose()
    lab.heard[B] = standing("b", seal, timeline, at_ms=1_000, heard=6, is_lost=True)
    said = lab.told(1, accepts_loss=False)
    assert f"{C}: no answer" in said
    assert f"{B}: node b, record 4 of 1970-01-01T00:00:01.000Z, timeline {timeline}, finds no log" in said
    assert "lost: records 5 to 6, written after 1970-01-01T00:00:01.000Z" in said
    assert "a node that was not heard may have more" in said
    assert not lab.shelf.is_made
    lab.told(0)
    assert (lab.shelf.first, lab.shelf.last) == (FORK + 1, FORK + 1)
    assert "node b goes on with the log as it is: nothing to heal" in lab.told(0)
    assert lab.shelf.last == FORK + 1


def test_an_end_that_was_abandoned_is_not_gone_on_with(lab: Lab) -> None:
    """Its last claim came later than the record behind which the log was begun anew."""
    seal, timeline = led(lab, 4)[3]
    for _ in range(2):
        lab.lose()
        lab.heard[B] = standing("b", seal, timeline)
        assert f"behind record {seal.seq:,} of node b" in lab.told(0)
        log = lab.log(lab.config)
        log.stand(seal)
        list(log.read(seal.seq))
        log.append(log.at.seq + 2, log.claim(log.at.seq + 1, "b", B), b"acknowledged")
        seal = log.at
        lab.heard[C] = standing("c", Seal(40, 30, b"y" * 16), timeline)
    assert lab.shelf.first == 2 * FORK + 1


@pytest.mark.parametrize("is_stray", [False, True])
def test_an_old_backup_behind_a_trimmed_log(lab: Lab, *, is_stray: bool) -> None:
    """Also if the log was purged, with a message of somebody else behind it."""
    found = led(lab, 8)
    lab.log(lab.config).trim(6)
    if is_stray:
        MemoryEngine(lab.shelf).make(9, Origin(), 1)
        MemoryEngine(lab.shelf).put(10, b"hello", 1)
    last = lab.shelf.last
    lab.heard[B] = standing("b", *found[1])
    assert f"lost: records 3 to {last}" in lab.told(0)
    log = lab.log(lab.config)
    log.stand(found[1][0])
    assert [seq for seq, _, _ in log.read(2)] == [FORK + 1]
    assert log.claim(FORK + 2, "b", B) == FORK + 2


def test_a_log_that_nobody_may_claim_goes_on_without_what_was_sent_last(lab: Lab) -> None:
    """Its leader was killed as a message of somebody else came between two records that it had sent."""
    lab.begin(lab.config, ORIGIN, "5678")
    log = lab.log(lab.config)
    epoch, last = log.claim(1, "b", B), log.at
    MemoryEngine(lab.shelf).put(2, b"hello", 1)
    for data in (b"refused", b"void"):
        assert log.send(2, epoch, data)
    lab.heard[B] = standing("b", last, "5678")
    reader = lab.log(lab.config)
    assert [seq for seq, _, _ in reader.read(0)] == [1]
    with pytest.raises(Damaged, match="cluster heal"):
        reader.claim(2, "b", B)
    assert "lost: records 2 to 3" in lab.told(0)
    reader.stand(last)
    assert [seq for seq, _, _ in reader.read(1)] == [FORK + 1]
    assert reader.claim(FORK + 2, "b", B) == FORK + 2


def test_a_log_that_somebody_writes_is_left_alone(lab: Lab) -> None:
    led(lab, 8)
    lab.log(lab.config).trim(6)
    lab.heard[B] = standing("b", Seal(2, 1, b"x" * 16), "")
    lab.meanwhile = 1
    assert "a node writes into the log: nothing to heal" in lab.told(0)
    assert lab.shelf.last == 10
    lab.heard[B] = standing("b", Seal(2, 1, b"x" * 16), "12ab", leads=True)
    lab.heard[C] = standing("a", Seal(900, 1, b"x" * 16), "34cd")
    assert "node b leads on another timeline than a: keep one of them" in lab.told(1)


def test_the_log_of_another_timeline_is_left_alone(lab: Lab) -> None:
    _, timeline = led(lab, 8)[0]
    lab.log(lab.config).trim(5)
    lab.heard[B] = standing("b", Seal(2, 1, b"x" * 16), "12ab")
    assert f"the log is of timeline {timeline}, which is not that of b" in lab.told(1)
    lab.heard[C] = standing("c", Seal(1, 1, b"x" * 16), timeline)
    assert lab.shelf.last == 9


def test_what_a_log_has_that_the_furthest_lacks_is_told(lab: Lab) -> None:
    """Node b was not heard by the heal before, and has more than the log that went on without it."""
    _, timeline = led(lab, 8)[0]
    lab.log(lab.config).trim(5)
    lab.heard[B] = standing("b", Seal(2_000, 1, b"x" * 16), timeline)
    assert "lost: what the log has up to record 9, where it is not what node b has" in lab.told(
        1, accepts_loss=False
    )
    lab.heard[C] = standing("c", Seal(1_995, 1_991, b"y" * 16), timeline)
    said = lab.told(1, accepts_loss=False)
    assert "behind record 1,995 of node c" in said
    assert "lost: records 1,996 to 2,000" in said


def test_nodes_of_different_timelines(lab: Lab) -> None:
    lab.heard[B] = standing("b", Seal(2, 1, b"x" * 16), "12ab")
    lab.heard[C] = standing("c", Seal(3, 1, b"x" * 16), "34cd")
    assert "these are nodes of different timelines" in lab.told(1)
    assert not lab.shelf.is_made


def test_nobody_has_records(lab: Lab) -> None:
    assert "no node that was heard has records" in lab.told(1)
    assert not lab.shelf.is_made


def test_a_server_alone_has_no_log(tmp_path: Path) -> None:
    config, _ = load(None, {}, {"store.dir": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"cluster\.log"):
        healing.run(config, "heal", accepts_loss=True)


def test_what_a_stopped_node_has(lab: Lab) -> None:
    assert healing._stopped(lab.config) == Standing("a")
