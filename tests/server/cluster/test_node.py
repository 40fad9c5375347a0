"""What a node waits for, and what ends its waiting."""

import asyncio
import itertools
from contextlib import nullcontext
from dataclasses import replace as replaced
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from server.cluster import beginning, node, opening
from server.cluster.damage import LAG_RECORDS
from server.cluster.engine_side import LogSide
from server.cluster.follower import Follower
from server.cluster.members import Member
from server.cluster.node import Node, _ends
from server.cluster.standby import Standby
from server.cluster.standing import Standing
from server.delivery.stored_sessions import STRETCH
from server.serving import Server
from server.settings.config import Config, ConfigError
from server.settings.kinds import Address
from server.settings.public import reference_for
from server.settings.reading import load
from shards.errors import UnreleasedFormat, WrongFormat
from shards.log.chained import ChainedLog, open_engine
from shards.log.engine import LogState
from shards.log.errors import Trimmed, Unfit
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.store import Table
from shards.tables import FORMAT, META_CURSOR, META_FORMAT, SessionRow, StoredCursor, cursor_value, encode_row
from tests.support.logs import Elapsing
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf
from tests.support.stores import rewrite
from timeline.horizon import BOUND_MS
from timeline.position import START

from .test_follower import Node as Following
from .test_follower import led


async def test_a_copy_is_given_up_when_the_node_stops() -> None:
    stopping, is_cut = asyncio.Event(), False

    async def endless() -> None:
        nonlocal is_cut
        try:
            await asyncio.Event().wait()
        finally:
            is_cut = True

    waiting = asyncio.ensure_future(_ends(endless(), before=stopping))
    await asyncio.sleep(0)
    assert not waiting.done()
    stopping.set()
    assert not await waiting
    assert is_cut


async def test_what_ends_before_is_what_counts() -> None:
    stopping = asyncio.Event()
    assert await _ends(asyncio.sleep(0), before=stopping)

    async def failing() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        await _ends(failing(), before=stopping)


def configured(folder: Path, **more: object) -> Config:
    """Settings of a node."""
    said = {"log": "postgresql://a/b", "node": "a", "key": "0123456789abcdef", **more}
    config, _ = load(
        None, {}, {"store.dir": str(folder), **{f"cluster.{key}": value for key, value in said.items()}}
    )
    return config


async def test_what_is_in_the_log_and_none_of_it_is_told(tmp_path: Path) -> None:
    """Until it is trimmed."""
    shelf = Shelf()
    made = Node(configured(tmp_path, peers=["http://b:1", "http://c:1"]), None, None)
    store = made._store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(shelf), Elapsing(), 2.0))
    store.lead("a", "http://a")
    store.beat()
    assert made.view()["why"] == ""
    MemoryEngine(shelf).put(3, b"hello", 1)
    store.follow()
    store.lead("a", "http://a")
    passed = "the log has messages of others, 1 from record 3 to 3: passed over"
    for first, why in ((1, passed), (3, passed), (4, "")):
        made._trimming.bounds = (first, 4)
        assert made.view()["why"] == why


async def test_an_old_copy_of_the_data_that_is_put_back_reads_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is whole: it undoes the restore, which may not be what the operator wants."""
    caplog.set_level("INFO")
    shelf, below = Shelf(), RocksStore(tmp_path)

    def opened(_: Config) -> ChainedLog:
        return open_engine(MemoryEngine(shelf), Elapsing(), 2.0, ["key"])

    leader = ReplicatedStore(MemoryStore(), opened(Config()))
    leader.lead("b", "http://b")
    old = ReplicatedStore(below, opened(Config()))
    old.follow()
    old.close()
    for _ in range(3):
        leader.beat()
    monkeypatch.setattr(opening, "open_hand", opened)
    store = opening.open_store(configured(tmp_path), lambda put: put(), lambda _: None)
    (line,) = [one.getMessage() for one in caplog.records if "reads on" in one.getMessage()]
    assert line == "node: its data ends at record 1 of an unknown time, the log at 4: it reads on"
    made = Node(configured(tmp_path / "other"), None, None)
    made._store = store
    for last, why in (
        (LAG_RECORDS + 1, ""),
        (LAG_RECORDS + 2, "it reads on: the log has 10,001 records more than this node's data"),
    ):
        made._trimming.bounds = 1, last
        assert made.view()["why"] == why
    store.close()


async def test_a_doubt_ends_once_all_have_answered_that_nobody_has_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader was killed as a message of somebody else came between two records that it had sent."""
    shelf, urls = Shelf(), ("http://b:1", "http://c:1")
    leader, other = led(lambda name: Following(shelf, name))
    MemoryEngine(shelf).put(shelf.last + 1, b"hello", 1)
    seq, epoch = leader.store.applied[:2]
    for data in (b"refused", b"void"):
        assert leader.store._log.send(seq + 1, epoch, data)
    made = Node(configured(tmp_path, peers=[*urls]), None, None)
    made._store, made._follower = other.store, other.follower
    b, answers = Standing("b", seq), dict[str, Standing | None]()

    async def ask(*_: object) -> dict[str, Standing | None]:
        return answers

    monkeypatch.setattr(beginning, "ask", ask)
    await made._decide_doubt()
    for c in (None, Standing("c", seq + 1), Standing("c", seq, heard=seq + 1), Standing("b", seq)):
        assert not other.step(10.0)
        assert "that nobody recognises: this node waits until all of" in other.follower.why
        answers = dict(zip(urls, (b, c), strict=True))
        await made._decide_doubt()
        assert other.store.passes_doubt_at < 0
    answers = dict(zip(urls, (b, Standing("c", seq - 1)), strict=True))
    await made._decide_doubt()
    assert other.step(10.0)
    assert other.store.applied.seq == shelf.last == seq + 3
    await made._reports.close()


async def test_a_log_of_strays_alone_goes_on_once_all_have_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was full of them and is trimmed, and no node has read it since its start."""
    shelf, urls = Shelf(), ("http://b:1", "http://c:1")

    def log() -> ChainedLog:
        return open_engine(MemoryEngine(shelf), Elapsing(), 2.0)

    former = ReplicatedStore(MemoryStore(), log())
    former.lead("b", urls[0])
    for seq in (2, 3, 4):
        MemoryEngine(shelf).put(seq, b"hello", 1)
    MemoryEngine(shelf).drop(3, 1)
    made = Node(configured(tmp_path, peers=[*urls]), None, None)
    made._side = LogSide(log)
    made._beginning.keep(Standing("a", *former.applied[:2]))
    for name, url in zip("bc", urls, strict=True):
        made._members.hear(replace(made._member(), node=name, url=url, applied=1))
    answers = dict[str, Standing | None]()

    async def ask(*_: object) -> dict[str, Standing | None]:
        return answers

    monkeypatch.setattr(beginning, "ask", ask)
    monkeypatch.setattr(node, "AGAIN_S", 0.0)
    for c, last in ((None, -1), (Standing("c", 2), -1), (Standing("c", 1), 1)):
        answers = dict(zip(urls, (Standing("b", 1), c), strict=True))
        await made._resync(Trimmed("record 2 is trimmed"), 1)
        assert "it goes on once all of cluster.peers answer" in made.view()["why"]
        assert made._last == last
    store = ReplicatedStore(former._store, log())
    made._halt.set()
    await made._follow(store)
    assert (store.passes_doubt_at, made._last) == (1, -1)
    await made._reports.close()
    await made._side.close()


async def test_a_log_that_is_not_fit_any_more_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby was promoted that has none of its own yet: the node says so, and goes on trying."""
    config = configured(tmp_path)
    tries = 0

    def unfit(*_: object, **_more: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            made.stopping.set()
        raise Unfit("no synchronous standbys")

    monkeypatch.setattr(node, "open_store", unfit)
    monkeypatch.setattr(node, "AGAIN_S", 0.0)
    made = Node(config, None, None)
    await made._live(None)
    assert tries == 2
    assert made.view()["why"] == "no synchronous standbys"
    await made._listeners.stop()


async def test_a_leader_on_a_log_that_is_not_fit_any_more_gives_up(tmp_path: Path) -> None:
    """Somebody has changed the stream: what it acknowledges may be lost with one machine."""

    class Changed(MemoryEngine):
        def state(self, timeout_s: float) -> LogState:
            raise Unfit("the stream is of 1 replicas")

    side = LogSide(lambda: open_engine(Changed(Shelf()), Elapsing(), 2.0))
    made = Node(configured(tmp_path), None, None)
    made._side = made._trimming._side = side
    made._state = "leader"
    looking = asyncio.ensure_future(made._look())
    await asyncio.wait_for(made._over.wait(), 5)
    assert made.view()["why"] == "the stream is of 1 replicas"
    assert not made.view()["fit"]
    looking.cancel()
    await side.close()


async def test_a_group_behind_the_last_one_does_not_keep_the_lead(tmp_path: Path) -> None:
    made = Node(configured(tmp_path), None, None)
    shelf = Shelf()
    store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(shelf), Elapsing(), 2.0))
    store.lead("a", "http://a")
    store.write(store.batch())
    made._members.hear(replace(made._member(), node="b", state="follower", fit=True))
    await made._hand_over(store)
    assert shelf.last == 3
    assert store.leader is not None
    assert (store.leader.node, store.leader.url) == ("", "b")


async def test_what_differs_on_other_nodes_is_told(tmp_path: Path) -> None:
    made = Node(configured(tmp_path, takeover_after="3s"), None, None)
    other = replace(made._member(), node="b", url="http://b", process="2", takeover_ms=10_000)
    made._members.hear(other)
    assert made.view()["why"] == "cluster.takeover_after is 3 s here, 10 s on b"
    made._members.hear(replace(other, takeover_ms=3_000))
    assert made.view()["why"] == ""
    for _ in range(2):
        made._members.hear(made._member())
        made._members.hear(replace(made._member(), process="2"))
    assert made.view()["why"] == "two nodes have the name a (cluster.node)"


async def test_heal_is_told_the_time_of_the_last_record(tmp_path: Path) -> None:
    """Not of the one that was last when the store was opened: a person judges by it what would be lost."""
    made = Node(configured(tmp_path), None, None)
    store = made._store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(Shelf()), Elapsing(), 2.0))
    store.lead("a", "http://a")
    for bound_ms in (5_000, 9_000):
        rewrite(store, (Table.META, META_CURSOR, cursor_value(StoredCursor(START, bound_ms, 0, 0, START))))
        store.flush()
        assert made._beginning.standing.at_ms == bound_ms - BOUND_MS


async def test_who_still_loads_sessions_is_not_fit(tmp_path: Path) -> None:
    """Also while it hears a leader: that one must not hand over to it, and nobody stops the next node."""
    made = Node(configured(tmp_path), None, None)
    made._judge.fault = ""
    store = made._store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(Shelf()), Elapsing(), 2.0))
    store.lead("a", "http://a")
    batch = store.batch()
    for n in range(3 * STRETCH):
        batch.put(Table.SESSIONS, b"%03d" % n, encode_row(SessionRow(60, [])))
    store.write(batch)
    store.flush()
    standby = Standby(made._config, store, itertools.count().__next__)
    said: list[tuple[str, bool, bool]] = []

    def step(*, waits: bool) -> bool:
        said.append((made.view()["why"], made.view()["fit"], made._member().fit))
        if made.view()["fit"] and len(said) > 1:
            made._halt.set()
        return False

    made._follow_on(cast("Follower", SimpleNamespace(step=step, why="")), store, standby)
    loading = "it is still loading sessions: {} so far"
    assert said[1:] == [
        *[(loading.format(n * STRETCH), False, False) for n in (1, 2, 3, 3)],
        ("", True, True),
    ]


async def test_who_begins_a_term_redirects_nobody_to_itself(tmp_path: Path) -> None:
    """It listens as a leader once it has caught up."""
    made = Node(configured(tmp_path), None, None)
    store = made._store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(Shelf()), Elapsing(), 2.0))
    store.lead("a", str(made._listeners.places))
    made._server = cast("Server", object())
    assert made._leader() is not None
    assert made._other_leader() is None


async def test_a_claim_names_every_listener(tmp_path: Path) -> None:
    """With the port that it has got; a client is sent to that of its own kind."""
    config = configured(tmp_path)
    listen = replaced(config.mqtt, listen=(Address("127.0.0.1", 0), Address("127.0.0.1", 0, "ws")))
    http = replaced(config.http, listen=Address("127.0.0.1", 0))
    made = Node(replaced(config, mqtt=listen, http=http), None, None)
    await made._listeners.open(())
    store = made._store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(Shelf()), Elapsing(), 2.0))
    store.lead("a", str(made._listeners.places))
    made._server = cast("Server", object())
    leader = made._leader()
    assert leader is not None
    plain, websockets = leader["mqtt_urls"]
    assert [url.rpartition(":")[0] for url in (plain, websockets)] == ["mqtt://127.0.0.1", "ws://127.0.0.1"]
    ports = {int(url.rpartition(":")[2].partition("/")[0]) for url in (plain, websockets)}
    assert len(ports - {0}) == 2
    assert reference_for("mqtt", leader["mqtt_urls"]) == leader["mqtt"] == plain.removeprefix("mqtt://")
    assert reference_for("ws", leader["mqtt_urls"]) == websockets
    await made._listeners.stop()


@pytest.mark.parametrize(
    ("found", "joins"), [([], True), ([b"hello"], True), ([b"\1" + bytes(7) + b"\1" + bytes(40)], False)]
)
def test_rows_of_its_own_begin_a_log_without_records_and_are_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[bytes], *, joins: bool
) -> None:
    """A damaged record is one too: the node's own rows must not make way for a copy of another's."""
    below = RocksStore(tmp_path)
    rewrite(below, (Table.META, META_FORMAT, b"%d" % FORMAT))
    below.flush()
    below.close()
    shelf = Shelf(dict(enumerate(found, 1)), last=len(found))
    monkeypatch.setattr(
        opening, "open_hand", lambda _: open_engine(MemoryEngine(shelf), Elapsing(), 2.0, ["key"])
    )
    with nullcontext() if joins else pytest.raises(ConfigError, match="a timeline of its own"):
        store = opening.open_store(configured(tmp_path), lambda put: put(), lambda _: None, may_begin=True)
        assert store.follow() == 0
        store.lead("a", "http://a")
        assert store.is_leading
        store.close()


def test_data_of_no_release_is_refused_before_the_log_is_opened(tmp_path: Path) -> None:
    below = RocksStore(tmp_path)
    rewrite(below, (Table.META, META_FORMAT, b"%d" % (FORMAT - 1)))
    below.close()
    with pytest.raises(UnreleasedFormat):
        opening.open_store(configured(tmp_path), lambda put: put(), lambda _: None, may_begin=True)


LATER, BETWEEN = WrongFormat("9"), UnreleasedFormat("which no release wrote")


@pytest.mark.parametrize("error", [LATER, BETWEEN])
async def test_a_log_of_no_release_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: WrongFormat
) -> None:
    """One of a later version does not: this node waits until it is upgraded."""
    made = Node(configured(tmp_path), None, None)
    store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(Shelf()), Elapsing(), 2.0))

    async def follow(_: ReplicatedStore) -> None:
        raise error

    async def pause() -> None:
        made.stopping.set()

    monkeypatch.setattr(made, "_follow", follow)
    monkeypatch.setattr(made, "_pause", pause)
    await made._guarded(made._live(store))
    assert made.stopping.is_set()
    assert made.exit_code == (2 if error is BETWEEN else 0)
    assert ("node: stops: which no release wrote" in caplog.text) == (error is BETWEEN)


async def test_damaged_data_is_told_and_leads_only_without_an_heir(tmp_path: Path) -> None:
    made = Node(configured(tmp_path), None, None)
    below = MemoryStore()
    store = made._store = ReplicatedStore(below, open_engine(MemoryEngine(Shelf()), Elapsing(), 2.0))
    store.lead("a", "http://a")
    made._state = "leader"
    heir = Member("b", "http://b", "", "follower", 1, 1, "1")
    made._members.hear(heir)
    made._judge_clock()
    made._judge_damage()
    assert store.has_heir
    assert not made._over.is_set()
    assert (made._member().damage, made._member().fit, made.view()["scrubbed_at"]) == ("", True, None)
    below.damage = "table messages: a rotten block"
    made._members.hear(replace(heir, damage="too"))
    made._judge_damage()
    assert not store.has_heir
    assert not made._over.is_set()
    alone = "this node's data is damaged, no other node is fit to lead: table messages: a rotten block"
    assert alone in made.view()["why"]
    made._members.hear(heir)
    made._judge_damage()
    assert made._over.is_set(), "the lead is given up"
    assert made._member().damage == below.damage
    made._state = "follower"
    assert "b can lead" in made.view()["why"]
    assert not made.view()["fit"]


async def test_a_store_that_is_opened_again_has_the_heirs_that_were_judged_last(tmp_path: Path) -> None:
    """Else the first second of a term would pass what another node can read."""
    made = Node(configured(tmp_path), None, None)
    made._damage.heirs = ("b",)
    made._halt.set()
    store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(Shelf()), Elapsing(), 2.0))
    await made._follow(store)
    assert store.has_heir
