"""What befalls three NATS servers: killed, stopped, all of them; and what is no log for anybody."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shards.log.chained import ChainedLog, open_engine
from shards.log.errors import Damaged, LogDown, NoLog, Unfit
from shards.log.jetstream import JetStream, servers_of
from shards.log.nats import NatsConnection
from tests.support.authority import NAMES, Authority
from tests.support.logs import created
from tests.support.nats import Nats
from tests.support.soak import SOAK

from .ledger import Ledger, hurried

SOON_S = 30
"""A call of a second ends, and does not hang until that of the others, also on a busy machine."""


@pytest.fixture
def servers(nats_servers: Nats) -> Iterator[Nats]:
    """They are hurt here, and mended: whole again also after a test that has failed."""
    before = nats_servers.streams
    yield nats_servers
    nats_servers.resume(*nats_servers.pids)
    for name in (missing := nats_servers.missing):
        nats_servers.start(name)
    if missing:
        nats_servers.wait_ready()
    nats_servers.delete(*nats_servers.streams - before)


def opened(servers: Nats, name: str, deadline_s: float = 60) -> ChainedLog:
    return open_engine(created(JetStream(servers.url, name)), time, deadline_s)


def test_its_leader_is_killed_during_appends(servers: Nats) -> None:
    """No acknowledged record is lost, and the one whose outcome was not known is settled."""
    ledger = Ledger(opened(servers, "killed"))
    ledger.append(20)
    leader = servers.leader("killed")
    with ledger.appending() as appending:
        appending.wait(60)
        servers.kill(leader)
        appending.wait(120)  # within the deadline, or the thread has an error
    servers.start(leader)
    ledger.check(opened(servers, "killed"))
    servers.wait_ready()


def test_all_are_killed_at_once(servers: Nats) -> None:
    ledger = Ledger(opened(servers, "all_killed"))
    ledger.append(20)
    for name in servers.names:
        servers.kill(name)
    began = time.monotonic()
    with pytest.raises(LogDown), hurried(ledger.log):
        ledger.append(1)
    assert time.monotonic() - began < SOON_S
    for name in servers.names:
        servers.start(name)
    servers.wait_ready()
    ledger.log = opened(servers, "all_killed")
    ledger.append(20)
    ledger.check(ledger.log)


def test_all_are_stopped_for_longer_than_the_deadline(servers: Nats) -> None:
    """What does not come is waited for: the call ends by the deadline, the log works again after."""
    log = opened(servers, "stopped")
    other = opened(servers, "stopped")
    ledger = Ledger(log)
    ledger.append(3)
    servers.stop(*servers.names)
    try:
        for call in (lambda: ledger.append(1), log.bounds, lambda: list(log.read(0))):
            began = time.monotonic()
            with pytest.raises(LogDown), hurried(log):
                call()
            assert 0.9 < time.monotonic() - began < SOON_S
    finally:
        servers.resume(*servers.names)
    ledger.log = opened(servers, "stopped")
    ledger.append(3)
    ledger.check(other)


def test_the_client_hangs(servers: Nats, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it does, who calls is free by the deadline; then there is a fresh connection."""
    released = threading.Event()
    ledger = Ledger(opened(servers, "hung"))
    ledger.append(3)
    with monkeypatch.context() as patched:
        patched.setattr(NatsConnection, "ask", lambda *_: released.wait())
        began = time.monotonic()
        said = r"no answer of 127\.0\.0\.1:\d+,.* within"
        with pytest.raises(LogDown, match=said), hurried(ledger.log):
            ledger.append(1)
        assert time.monotonic() - began < SOON_S
    ledger.append(3)
    released.set()
    ledger.check(ledger.log)
    ledger.log.close()


def test_one_is_stopped(servers: Nats) -> None:
    """The one that is asked first: another one is asked."""
    ledger = Ledger(opened(servers, "one_stopped"))
    ledger.append(3)
    follower = next(name for name in servers.names if name != servers.leader("one_stopped"))
    engine = JetStream(servers.url, "one_stopped")
    engine._tried = first = servers.names.index(follower)
    servers.stop(follower)
    try:
        ledger.log = open_engine(engine, time, 8)
        assert engine._tried > first + 1
        ledger.append(2)
    finally:
        servers.resume(follower)
    ledger.check(ledger.log)


def test_a_stream_that_is_gone_is_not_made_anew_by_who_had_it(servers: Nats) -> None:
    log = opened(servers, "gone")
    epoch = log.claim(1, "a", "http://a")
    assert servers.api("STREAM.DELETE.gone", {})["success"]
    with pytest.raises(NoLog, match="the stream gone is not there"):
        log.append(2, epoch, b"")
    assert servers.api("STREAM.INFO.gone", {})["error"]["err_code"] == 10059


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"num_replicas": 1}, "1 replicas"),
        ({"storage": "memory"}, "storage"),
        ({"discard": "old"}, "discard"),
        ({"max_age": 3_600_000_000_000}, "max_age"),
        ({"retention": "interest"}, "retention"),
        ({"subjects": ["unfit.log", "unfit.other"]}, "subjects"),
        ({"persist_mode": "async", "num_replicas": 1}, "persist_mode|replicas"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_stream_that_would_lose_records_is_refused(
    servers: Nats, setting: dict[str, object], said: str
) -> None:
    config = {"name": "unfit", "subjects": ["unfit.log"], "num_replicas": 3, "discard": "new"} | setting
    made = servers.api("STREAM.CREATE.unfit", config)
    assert "error" not in made, made
    try:
        with pytest.raises(Unfit, match=said):
            opened(servers, "unfit")
        if setting == {"num_replicas": 1}:
            open_engine(JetStream(servers.url, "unfit", must_replicate=False), time, 5).close()
    finally:
        servers.api("STREAM.DELETE.unfit", {})


def test_a_stream_that_is_changed_later_is_found_out(servers: Nats) -> None:
    """Each time the log's bounds are asked for: a leader gives up, and a follower does not claim."""
    log = opened(servers, "changed", deadline_s=1)
    log.claim(1, "a", "http://a")
    assert log.bounds() == (1, 1)
    config = servers.api("STREAM.INFO.changed", {})["config"]
    try:
        assert "error" not in servers.api("STREAM.UPDATE.changed", {**config, "num_replicas": 1})
        with pytest.raises(Unfit, match="1 replicas"):
            log.bounds()
        with pytest.raises(Unfit, match="1 replicas"):
            list(log.read(1))
    finally:
        servers.api("STREAM.DELETE.changed", {})


def test_one_server_alone_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    with Nats(tmp_path, count=1) as alone:
        with pytest.raises(Unfit, match="replicas"):
            opened(alone, "alone")
        log = open_engine(created(JetStream(alone.url, "alone", must_replicate=False)), time, 5)
        log.append(2, log.claim(1, "a", "http://a"), b"x")
        assert len(list(log.read(0))) == 2
        log.close()


def test_tls_and_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page for operators says: `tls://`, a user with a password, certificates of a CA of one's own."""
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("nats", NAMES)
    with Nats(tmp_path, count=1) as alone:
        alone.kill("n0")
        with (tmp_path / "n0" / "conf").open("a") as conf:
            conf.write(f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n')
            conf.write('authorization { users: [ { user: fasti, password: "s@ cret" } ] }\n')
        alone.start("n0")
        port = urlsplit(alone.url).port
        for scheme, secret, said in (
            ("tls", "s%40%20cret", "CERTIFICATE_VERIFY_FAILED"),
            ("tls", "wrong", "Authorization Violation"),
            ("tls", "s%40%20cret", ""),
            ("nats", "s%40%20cret", ""),
        ):
            if "CERT" not in said:
                monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
            url = f"{scheme}://fasti:{secret}@localhost:{port}"
            engine = JetStream(url, "safe", must_replicate=False)
            if said:
                found, until = "", time.monotonic() + 60
                while said not in found:  # on a busy machine there may be no answer within the time of a call
                    assert time.monotonic() < until, found
                    with pytest.raises(LogDown) as told:
                        open_engine(engine, time, 2)
                    found = str(told.value)
            else:
                log = open_engine(created(engine), time, 8)
                before = log.bounds()[1]
                assert log.claim(before + 1, "a", "") == before + 1
                log.close()
            engine.close()


def test_nobody_there(tmp_path: Path) -> None:
    servers = Nats(tmp_path)
    began = time.monotonic()
    with pytest.raises(LogDown):
        opened(servers, "nobody", deadline_s=0.5)
    assert time.monotonic() - began < SOON_S


def test_a_group_may_be_larger_than_a_message_of_the_servers(servers: Nats) -> None:
    log = opened(servers, "size")
    epoch = log.claim(1, "a", "http://a")
    log.append(2, epoch, bytes(3 << 20))
    assert log.at.seq == 5
    assert [(seq, len(data)) for seq, _, data in opened(servers, "size").read(1)] == [(5, 3 << 20)]


def test_another_client_publishes_into_the_stream(servers: Nats) -> None:
    """It takes a place, and is nobody's record; headers are not asked for."""
    log = opened(servers, "foreign")
    epoch = log.claim(1, "a", "http://a")
    servers.publish("foreign.log", b"hello")
    log.append(2, epoch, b"goes on")
    reader = opened(servers, "foreign")
    assert [seq for seq, _, _ in reader.read(0)] == [1, 3]
    assert reader.strays == (1, 2, 2)


def test_a_stream_without_a_bound_gets_what_the_servers_have(servers: Nats) -> None:
    """Half of it, if that is less than was wanted; the bound that somebody has set stays."""
    log = opened(servers, "bound")
    assert log.state().max_bytes == 0
    assert abs(log.state().wall_ms - time.time() * 1000) < 60_000
    log.limit(64 << 40)
    most = log.state().max_bytes
    assert 16 << 20 <= most < 4 << 30
    log.limit(1 << 20)
    assert log.state().max_bytes == most
    config = servers.api("STREAM.INFO.bound", {})["config"]
    servers.api("STREAM.UPDATE.bound", {**config, "max_bytes": 1_100})
    epoch = log.claim(1, "a", "http://a")
    log.append(2, epoch, b"x")
    with pytest.raises(LogDown, match="maximum bytes"), hurried(log, 3):
        log.append(3, epoch, bytes(500))
    assert log.state().used_bytes > 300
    log.trim(1)
    log.append(3, epoch, bytes(500))
    servers.api("STREAM.DELETE.bound", {})


def test_urls() -> None:
    assert servers_of("nats://a,b:5000,c") == ["nats://a:4222", "nats://b:5000", "nats://c:4222"]
    assert servers_of("tls://u:p@a,b") == ["tls://u:p@a:4222", "tls://u:p@b:4222"]
    assert servers_of("nats://[::1]:4000,[::2]") == ["nats://[::1]:4000", "nats://[::2]:4222"]


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1")
@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_bit_of_a_server_s_file_is_flipped(servers: Nats, whose: str) -> None:
    """The servers may mend it, or lose records with it; a reader gets all of them, or an error.

    Also where the one that was hurt leads.
    """
    name = f"flipped_{whose}"
    ledger = Ledger(opened(servers, name), size=1_000)
    ledger.append(60)
    leader = servers.leader(name)
    hurt = leader if whose == "leader" else next(one for one in servers.names if one != leader)
    for one in servers.names:
        servers.kill(one)
    (block,) = (servers.folder / hurt).glob(f"js/**/streams/{name}/msgs/1.blk")
    raw = bytearray(block.read_bytes())
    raw[len(raw) // 2] ^= 1
    block.write_bytes(raw)
    for one in servers.names:
        servers.start(one)
    servers.wait_ready()
    print(f"{whose} hurt, whoever leads: {said_of(ledger, servers, name)}")
    until = time.monotonic() + 20
    while servers.leader(name) != hurt and time.monotonic() < until:
        servers.api(f"STREAM.LEADER.STEPDOWN.{name}", {"placement": {"preferred": hurt}})
        time.sleep(0.5)
    print(f"{whose} hurt, {servers.leader(name) == hurt} leads: {said_of(ledger, servers, name)}")


def said_of(ledger: Ledger, servers: Nats, name: str) -> str:
    try:
        ledger.check(opened(servers, name, deadline_s=8))
    except (Damaged, LogDown) as error:
        return str(error)
    return "mended"
