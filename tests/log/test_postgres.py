"""What befalls a PostgreSQL with standbys: killed, stopped, promoted, cancelled; and what is no log."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from shards.log.chained import ChainedLog, open_engine
from shards.log.engine import Origin
from shards.log.errors import LogDown, Unfit
from shards.log.postgres import Postgres as PostgresEngine
from tests.support.logs import created
from tests.support.postgres import PRIMARY, QUORUM, STANDBYS, Postgres, programs
from tests.support.proxy import Network

from .ledger import Ledger, hurried

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL from 15 on is installed")
SOON_S = 6
"""A call ends by its deadline, and does not hang; also on a busy machine."""
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def servers(postgres_servers: Postgres) -> Postgres:
    """They are hurt here, and mended."""
    return postgres_servers


def opened(servers: Postgres, name: str, deadline_s: float = 8, *, must_replicate: bool = True) -> ChainedLog:
    engine = PostgresEngine(servers.url_of_all, name, must_replicate=must_replicate)
    return open_engine(created(engine), time, deadline_s)


@contextmanager
def held(servers: Postgres, table: str) -> Iterator[None]:
    """Nobody else writes into the table; it begins once what is called meanwhile waits for that."""
    with psycopg.connect(servers.url) as holder:
        holder.execute(f"LOCK TABLE {table} IN SHARE MODE")
        yield


def wait_held(servers: Postgres) -> None:
    until = time.monotonic() + SOON_S
    while not servers.asked("SELECT 1 FROM pg_locks WHERE NOT granted AND relation IS NOT NULL"):
        assert time.monotonic() < until
        time.sleep(0.01)


def by_way(servers: Postgres, network: Network, name: str) -> PostgresEngine:
    """An engine that can be cut off."""
    url = re.sub(
        r"127\.0\.0\.1:(\d+)",
        lambda at: f"127.0.0.1:{network.way('a', int(at[1]))}",
        servers.url_of_all,
    )
    return PostgresEngine(url, name)


def test_a_leaders_machine_is_lost_while_it_writes(servers: Postgres) -> None:
    """No connection ends: what it had begun is done or not, and keeps no other node from the lead."""
    with Network() as network:
        old = open_engine(created(by_way(servers, network, "silent")), time, 8)
        epoch = old.claim(1, "a", "")
        with held(servers, "silent_log"):
            assert old.send(2, epoch, b"second")
            assert old.send(2, epoch, b"third")
            settling = threading.Thread(target=pytest.raises, args=(LogDown, lambda: settled(old)))
            settling.start()
            wait_held(servers)
            network.cut("a")
        new = opened(servers, "silent")
        read = list(new.read(0))
        began = time.monotonic()
        assert new.claim(read[-1][0] + 1, "b", "") > epoch
        assert time.monotonic() - began < SOON_S
        settling.join()
        network.heal("a")
        old.close()
        new.close()


def settled(log: ChainedLog) -> None:
    with hurried(log, 2):
        while log.settle():
            pass


def test_a_node_is_lost_while_it_begins(servers: Postgres) -> None:
    """In a transaction that waits for its next statement: the server ends it."""
    with Network() as network:
        engine = by_way(servers, network, "begun")
        engine.make(0, Origin("12ab", "a"), 8)
        old, errors = open_engine(engine, time, 2), []

        def run() -> None:
            try:
                old.claim(1, "a", "")
            except LogDown as error:
                errors.append(error)

        with held(servers, "begun_log"):
            claiming = threading.Thread(target=run)
            claiming.start()
            wait_held(servers)
            network.cut("a")
        new = opened(servers, "begun", deadline_s=20)
        assert new.claim(1, "b", "") == 1
        claiming.join()
        assert len(errors) == 1
        network.heal("a")
        old.close()
        new.close()


def test_the_primary_is_killed_during_appends(servers: Postgres) -> None:
    ledger = Ledger(opened(servers, "killed", deadline_s=20))
    ledger.append(20)
    with ledger.appending() as appending:
        appending.wait(20)
        servers.kill(PRIMARY)
        servers.start(PRIMARY)
        appending.wait(40)
    servers.wait_replicating()
    ledger.check(opened(servers, "killed"))


def test_who_may_begin_is_not_named_any_more_once_it_has(servers: Postgres) -> None:
    """The table is truncated, and the node has lost its data: others have records of this timeline."""
    engine = PostgresEngine(servers.url_of_all, "truncated")
    engine.make(0, Origin("12ab", "a"), 8)
    log = open_engine(engine, time, 8)
    assert log.origin == Origin("12ab", "a")
    epoch = log.claim(1, "a", "")
    log.append(2, epoch, b"second")
    servers.asked("TRUNCATE truncated_log")
    log.close()
    other = open_engine(PostgresEngine(servers.url_of_all, "truncated"), time, 8)
    assert other.bounds() == (1, 0)
    assert other.origin == Origin("12ab")
    other.close()


def test_no_standby_confirms(servers: Postgres) -> None:
    """The call ends by the deadline; the same one goes on where the standbys do."""
    ledger = Ledger(opened(servers, "unconfirmed"))
    ledger.append(3)
    servers.stop(*STANDBYS)
    try:
        for _ in range(4):
            began = time.monotonic()
            with pytest.raises(LogDown), hurried(ledger.log):
                ledger.append(1)
            assert 0.9 < time.monotonic() - began < SOON_S
        # The append, and a new connection that waits before it reads; not one more for each try.
        assert len(servers.asked(WAITING)) <= 2
    finally:
        servers.resume(*STANDBYS)
    servers.wait_replicating()
    ledger.append(3)
    ledger.check(opened(servers, "unconfirmed"))


def test_one_standby_is_enough(servers: Postgres) -> None:
    ledger = Ledger(opened(servers, "one"))
    servers.stop(STANDBYS[0])
    try:
        ledger.append(3)
    finally:
        servers.resume(STANDBYS[0])
    ledger.check(ledger.log)


def test_the_primary_is_stopped_for_longer_than_the_deadline(servers: Postgres) -> None:
    ledger = Ledger(opened(servers, "stopped"))
    ledger.append(3)
    servers.stop(PRIMARY)
    try:
        for call in (lambda: ledger.append(1), ledger.log.bounds, lambda: list(ledger.log.read(0))):
            began = time.monotonic()
            with pytest.raises(LogDown), hurried(ledger.log):
                call()
            assert 0.9 < time.monotonic() - began < SOON_S
    finally:
        servers.resume(PRIMARY)
    servers.wait_ready(PRIMARY)
    servers.wait_replicating()
    ledger.append(3)
    ledger.check(opened(servers, "stopped"))


def test_the_client_hangs(servers: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever psycopg does, who calls is free by the deadline; then there is a fresh connection."""
    released = threading.Event()
    ledger = Ledger(opened(servers, "hung"))
    ledger.append(3)
    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", lambda *_, **__: released.wait())
        began = time.monotonic()
        said = r"no answer of 127\.0\.0\.1:\d+,.* within"
        with pytest.raises(LogDown, match=said), hurried(ledger.log):
            ledger.append(1)
        assert time.monotonic() - began < SOON_S
    ledger.append(3)
    released.set()
    ledger.check(ledger.log)
    ledger.log.close()


@pytest.mark.parametrize("level", ["notice", "error"])
def test_a_wait_that_is_cancelled_is_no_acknowledgement(servers: Postgres, level: str) -> None:
    """The row is there to be seen then, on the primary alone; the log does not take it for durable. Also
    where the role hears no warnings."""
    table = f"cancelled_{level}_log"
    servers.asked(f"ALTER ROLE postgres SET client_min_messages = {level}")
    try:
        ledger = Ledger(opened(servers, f"cancelled_{level}"))
    finally:
        servers.asked("ALTER ROLE postgres RESET client_min_messages")
    ledger.append(1)
    servers.stop(*STANDBYS)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with hurried(ledger.log, 3):
                ledger.append(1)
        except LogDown as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not (waiting := servers.asked(WAITING)):
            assert thread.is_alive()
        servers.asked(f"SELECT pg_cancel_backend({waiting[0][0]})")
        thread.join()
        assert servers.asked(f"SELECT max(seq) FROM {table}") == [(3,)]
        assert len(errors) == 1
    finally:
        servers.resume(*STANDBYS)
    servers.wait_replicating()
    ledger.append(1)
    ledger.check(ledger.log)


def test_a_database_without_an_encoding(servers: Postgres) -> None:
    servers.asked("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0")
    url = servers.url_of_all.removesuffix("postgres") + "plain"
    ledger = Ledger(open_engine(created(PostgresEngine(url, "plain")), time, 8))
    ledger.append(1)
    ledger.check(ledger.log)


def test_what_no_standby_has_is_not_read(servers: Postgres) -> None:
    """A primary that comes back from a crash shows a row whose commit still waited."""
    ledger = Ledger(opened(servers, "unread"))
    ledger.append(1)
    reader = opened(servers, "unread")
    assert [seq for seq, _, _ in reader.read(0)] == [1, 2]
    servers.stop(*STANDBYS)
    try:
        with pytest.raises(LogDown), hurried(ledger.log, 2):
            ledger.append(1)
        servers.kill(PRIMARY)
        servers.start(PRIMARY)
        servers.wait_ready(PRIMARY)
        assert servers.asked("SELECT max(seq) FROM unread_log") == [(3,)]
        for _ in range(3):
            with pytest.raises(LogDown), hurried(reader):
                list(reader.read(2))
        assert len(servers.asked(WAITING)) <= 1, "one waits for all"
    finally:
        servers.resume(*STANDBYS)
    servers.wait_replicating()
    assert [seq for seq, _, _ in opened(servers, "unread").read(2)] == [3]
    ledger.append(1)
    ledger.check(ledger.log)


def test_standbys_that_are_given_up_meanwhile(servers: Postgres) -> None:
    ledger = Ledger(opened(servers, "given_up"))
    ledger.append(1)
    servers.set_standbys("")
    try:
        with pytest.raises(Unfit, match="no synchronous standbys"), hurried(ledger.log, 3):
            ledger.append(1)
        with pytest.raises(Unfit, match="no synchronous standbys"):
            opened(servers, "given_up")
    finally:
        servers.set_standbys(QUORUM)
    servers.wait_replicating()
    ledger.append(1)
    ledger.check(ledger.log)


def test_a_standby_takes_over() -> None:
    """What was acknowledged is on the one that has more; without standbys of its own it takes nothing new."""
    with Postgres() as servers:
        ledger = Ledger(opened(servers, "over", deadline_s=2))
        ledger.append(20)
        servers.kill(PRIMARY)
        received = "SELECT pg_last_wal_receive_lsn()::text::pg_lsn - '0/0'"
        heir = max(STANDBYS, key=lambda name: servers.asked(received, name)[0][0])
        servers.asked("SELECT pg_promote()", heir)
        with pytest.raises(Unfit, match="no synchronous standbys"):
            ledger.append(1)
        ledger.log = opened(servers, "over", must_replicate=False)
        ledger.append(3)
        ledger.check(ledger.log)


def test_a_server_without_standbys_is_refused_unless_told_otherwise() -> None:
    with Postgres(standbys=()) as alone:
        with pytest.raises(Unfit, match="no synchronous standbys"):
            opened(alone, "alone")
        ledger = Ledger(opened(alone, "alone", must_replicate=False))
        ledger.append(3)
        ledger.check(ledger.log)
        ledger.log.close()
        alone.asked("ALTER SYSTEM SET fsync = off")
        alone.asked("SELECT pg_reload_conf()")
        time.sleep(0.2)
        with pytest.raises(Unfit, match="fsync"):
            opened(alone, "alone", must_replicate=False)
