"""From a URL to a log; and who has none does not pay for one."""

import subprocess
import sys
import threading
import time

import pytest

from shards.log.chained import open_engine
from shards.log.engine import Origin
from shards.log.errors import LogDown, NoLog, Unfit
from shards.log.jetstream import JetStream
from shards.log.line import Line
from shards.log.opening import open_log, unopened_log
from shards.log.record import ORIGIN
from tests.support.nats import Nats
from tests.support.postgres import Postgres
from tests.support.server import ROOT

pytestmark = pytest.mark.short


def begun(url: str) -> None:
    """It is made once somebody says so."""
    with pytest.raises(NoLog):
        open_log(url, "by_url", time, deadline_s=5, keys=("",))
    log = unopened_log(url, "by_url", time, deadline_s=5, keys=("",))
    log.begin(ORIGIN, Origin("12ab", "a"))
    log.close()
    log = open_log(url, "by_url", time, deadline_s=5, keys=("",))
    assert log.origin == Origin("12ab", "a")
    assert log.bounds() == (1, 0)
    log.close()


def test_nats(nats_servers: Nats) -> None:
    begun(nats_servers.url)
    log = open_log(nats_servers.url, "by_url", time, deadline_s=5, keys=("",))
    assert log.claim(1, "a", "http://a") == 1
    log.close()


def test_postgres(postgres_servers: Postgres) -> None:
    begun(postgres_servers.url_of_all)
    log = open_log(postgres_servers.url_of_all, "by_url", time, deadline_s=5, keys=("",))
    assert log.claim(1, "a", "http://a") == 1
    log.close()


def test_an_engine_whose_records_are_too_small_is_refused(nats_servers: Nats) -> None:
    config = {
        "name": "small",
        "subjects": ["small.log"],
        "num_replicas": 3,
        "discard": "new",
        "max_msg_size": 100_000,
    }
    assert "error" not in nats_servers.api("STREAM.CREATE.small", config)
    with pytest.raises(Unfit, match="1 MiB is needed"):
        open_log(nats_servers.url, "small", time, deadline_s=5, keys=("",))


@pytest.mark.parametrize("url", ["redis://a", "a,b,c", "", "mysql://a"])
def test_another_url(url: str) -> None:
    with pytest.raises(ValueError, match="a log is at"):
        open_log(url, "a", time, deadline_s=1, keys=("",))


@pytest.mark.parametrize("url", ["postgresql://a:se%cret@b/c", "postgresql://a:secret@[b/c"])
def test_a_url_that_cannot_be_read(url: str) -> None:
    """Its password is not told."""
    with pytest.raises(ValueError, match="no URL of PostgreSQL") as raised:
        open_log(url, "a", time, deadline_s=1, keys=("",))
    assert "cret" not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("name", ["", "A", "a.b", "a b", "1a", "a" * 50, "a;b", "_a"])
def test_another_name(name: str) -> None:
    with pytest.raises(ValueError, match="named"):
        open_log("nats://127.0.0.1:1", name, time, deadline_s=1, keys=("",))


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shards.log.postgres", raising=False)
    for module in [name for name in sys.modules if name.split(".")[0] == "psycopg"]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Unfit, match=r"psycopg.* is missing: pip install 'fasti-server.cluster.'"):
        open_log("postgresql://a/b", "a", time, deadline_s=1, keys=("",))


def test_a_server_alone_imports_no_driver() -> None:
    program = (
        "import sys, server.run, shards.log.opening; "
        "print([name for name in ('psycopg', 'shards.log.jetstream') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_who_opens_in_vain_leaves_no_connection() -> None:
    """A node tries again each second, for as long as it takes."""
    released, begun, closed = threading.Event(), [], threading.Semaphore(0)

    def connect(left_s: float) -> str:
        begun.append(left_s)
        assert released.wait(60)
        return "connected"

    engine = JetStream("nats://127.0.0.1:1", "late")
    engine._line = Line("", connect, lambda _: closed.release(), lambda _: None)  # type: ignore[arg-type]
    with pytest.raises(LogDown):
        open_engine(engine, time, 1.0)
    released.set()
    for _ in begun:
        assert closed.acquire(timeout=60)


def test_who_opens_again_and_again_does_not_always_begin_with_a_lost_server() -> None:
    """Who waits for a lost one may have no time left for a slow one."""
    firsts = {engine._tried for engine in (JetStream("nats://a,b,c", "any") for _ in range(200))}
    assert firsts == {0, 1, 2}
