"""A PostgreSQL with two synchronous standbys on loopback, where its programs are installed.

The processes run as the user postgres where the tests run as root, which PostgreSQL refuses. What is
started is ended by its process id.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from .ports import free_ports

SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
shared_buffers = 16MB
max_wal_size = 64MB
wal_keep_size = 64MB
max_connections = 40
dynamic_shared_memory_type = mmap
wal_receiver_timeout = 5s
wal_sender_timeout = 5s
wal_retrieve_retry_interval = 200ms
"""
QUORUM = "ANY 1 (s1, s2)"
PRIMARY, STANDBYS = "p0", ("s1", "s2")


def programs() -> Path | None:
    """The directory of the newest PostgreSQL from 15 on, None if there is none."""
    found = [path for path in Path("/usr/lib/postgresql").glob("*/bin/initdb") if int(path.parts[4]) >= 15]
    if found:
        return max(found, key=lambda path: int(path.parts[4])).parent
    there = shutil.which("initdb")
    return Path(there).resolve().parent if there else None


class Postgres:
    """The servers p0, the primary, and s1 and s2; `standbys=()`: one alone."""

    def __init__(self, standbys: Sequence[str] = STANDBYS) -> None:
        found = programs()
        assert found is not None
        self._programs = found
        self._user = "postgres" if os.getuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="fasti-postgres-"))
        self._standbys = tuple(standbys)
        self.ports = dict(zip((PRIMARY, *standbys), free_ports(1 + len(standbys)), strict=True))
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.ports[PRIMARY]}/postgres"

    @property
    def url_of_all(self) -> str:
        """Standbys first: who takes writes has to be found."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in reversed(self.ports.values()))
        return f"postgresql://postgres@{hosts}/postgres"

    @property
    def pids(self) -> dict[str, list[int]]:
        """Of those that run, each with its processes."""
        return {name: [process.pid, *self._children(name)] for name, process in self._running.items()}

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [self._programs / "postgres", "-D", self.folder / name, "-p", str(self.ports[name])],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """kill -9 of the server and all its processes."""
        children, process = self._children(name), self._running.pop(name)
        for pid in (process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def stop(self, *names: str) -> None:
        self._signal(names, signal.SIGSTOP)

    def resume(self, *names: str) -> None:
        self._signal(names, signal.SIGCONT)

    def add_standby(self, name: str, of: str = PRIMARY) -> None:
        """A copy of a server, which then follows it. A new name gets a port of its own."""
        if name not in self.ports:
            (self.ports[name],) = free_ports(1)
        source = f"host=127.0.0.1 port={self.ports[of]} user=postgres application_name={name}"
        self._run(
            "pg_basebackup",
            "-D",
            self.folder / name,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "-N",
            "-d",
            source,
        )
        self.start(name)

    def set_standbys(self, names: str, name: str = PRIMARY) -> None:
        self.asked(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", name)
        self.asked("SELECT pg_reload_conf()", name)
        self._until(lambda: self.asked("SHOW synchronous_standby_names", name) == [(names,)], "not set", 5)

    def wait_ready(self, name: str, limit_s: float = 60) -> None:
        self._until(lambda: bool(self.asked("SELECT 1", name)), f"{name} does not answer", limit_s)

    def wait_replicating(self, limit_s: float = 60) -> None:
        """Until every standby is a synchronous one."""
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
        self._until(lambda: self.asked(query) == [(len(self._standbys),)], "no standbys", limit_s)

    def asked(self, query: str, name: str = PRIMARY) -> list[tuple[Any, ...]]:
        """The rows of a query, for which no standby is waited."""
        url = f"postgresql://postgres@127.0.0.1:{self.ports[name]}/postgres?connect_timeout=2"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            found = connection.execute(query)  # type: ignore[call-overload]
            return list(found.fetchall()) if found.description else []

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self) -> None:
        if self._user:
            user = pwd.getpwnam(self._user)
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        folder = self.folder / PRIMARY
        self._run(
            "initdb",
            "-D",
            folder,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-N",
            "-E",
            "UTF8",
            "--locale=C",
            "--wal-segsize=1",
        )
        with (folder / "postgresql.conf").open("a") as conf:
            conf.write(SETTINGS)
        self.start(PRIMARY)
        self.wait_ready(PRIMARY)
        for name in self._standbys:
            self.add_standby(name)
        if self._standbys:
            self.set_standbys(QUORUM)
            self.wait_replicating()

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            user=self._user,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"

    def _signal(self, names: Sequence[str], what: signal.Signals) -> None:
        for name in names:
            for pid in (self._running[name].pid, *self._children(name)):
                with suppress(ProcessLookupError):
                    os.kill(pid, what)

    def _children(self, name: str) -> list[int]:
        """The server's own processes: each is the leader of its own session."""
        pid = self._running[name].pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @staticmethod
    def _until(is_so: Callable[[], bool], what: str, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while True:
            with suppress(psycopg.Error):
                if is_so():
                    return
            if time.monotonic() > until:
                raise TimeoutError(what)
            time.sleep(0.05)
