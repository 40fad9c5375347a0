"""PostgreSQL: a table of messages with an index on due, synchronous_commit on, so that a commit is answered
when its log is on the disk.

What is said to it is made before the clock runs: a statement is prepared once on each connection, then each
batch is one Bind with its rows as binary arrays (one array a column), Execute and Sync. That is faster than a
text of a thousand VALUES, which has to be parsed each time, and costs this side next to nothing.
"""

import os
import pwd
import re
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.gauges import cpu_s
from tests.support.ports import free_port

from ..exchange import Failed, line_to
from ..process import Process, Running, answering
from ..workload import Draft
from . import Kind

USER = "bench"
TABLE = (
    "CREATE TABLE messages (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
    " topic text NOT NULL, payload bytea NOT NULL, due bigint NOT NULL);"
    "CREATE INDEX messages_due ON messages (due)"
)
PUT_ALL = (
    "INSERT INTO messages (topic, payload, due) SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[])"
)
PUT = "INSERT INTO messages (topic, payload, due) VALUES ($1, $2, $3)"
_TEXT, _BYTEA, _BIGINT = 25, 17, 20
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "synchronous_commit": "on",
    "fsync": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "max_connections": "100",
}


class _Postmaster(Process):
    """Its processor time is that of all its processes, and of those that have ended."""

    STOP = signal.SIGINT

    def cpu_s(self) -> float:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        ended = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        ended_s = sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")
        return cpu_s(self.pid) + sum(cpu_s(int(child)) for child in children) + ended_s


@contextmanager
def _running(folder: Path) -> Iterator[Running | None]:
    """A fresh one; its files lie beside `folder` or, where only root gets there, elsewhere."""
    program = _program()
    user = _user()
    if program is None or (os.getuid() == 0 and user is None):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="fasti-bench-postgres-", dir=_reachable(folder.parent)) as name:
        data = Path(name) / "data"
        if user is not None:
            shutil.chown(name, user)
        subprocess.run(
            [program.parent / "initdb", "--no-sync", "-A", "trust", "-U", USER, "-D", data],
            check=True, capture_output=True, user=user, cwd="/",
        )  # fmt: skip
        at = ("127.0.0.1", free_port())
        settings = [f"-c{key}={value}" for key, value in (_SETTINGS | {"port": str(at[1])}).items()]
        process = _Postmaster(
            [str(program), "-D", str(data), *settings], folder / "postgres.log", {}, Path("/"), user
        )
        with answering(process, at):
            process.until(re.compile("ready to accept connections"))
            yield Running(process, at)


POSTGRESQL = Kind("PostgreSQL", "fsynced, write-ahead log", _running)


async def prepare(peer: Running) -> None:
    """Make the table."""
    line = await line_to(peer.at, answer_end, (startup(),))
    await line.ask(_message(b"Q", TABLE.encode() + b"\0"))
    line.close()


def _program() -> Path | None:
    found = shutil.which("postgres")
    if found is not None:
        return Path(found)
    return max(Path("/usr/lib/postgresql").glob("*/bin/postgres"), default=None)


def _user() -> str | None:
    """Whom it runs as: it refuses root."""
    if os.getuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return None


def _reachable(folder: Path) -> Path:
    if os.getuid() or all(path.stat().st_mode & 1 for path in (folder, *folder.parents)):
        return folder
    return Path(tempfile.gettempdir())


# -- what is said


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


def startup() -> bytes:
    return _message(b"", (196608).to_bytes(4) + f"user\0{USER}\0database\0postgres\0\0".encode())


def hello(statement: str) -> tuple[bytes, ...]:
    """What a connection says first: who it is, and the statement that it will repeat."""
    parse = _message(b"P", b"put\0" + statement.encode() + b"\0\0\0")
    return startup(), parse + _SYNC


def put_all(drafts: Sequence[Draft]) -> bytes:
    """A batch, one commit."""
    columns = (
        _array(_TEXT, [draft.topic.encode() for draft in drafts]),
        _array(_BYTEA, [draft.text.encode() for draft in drafts]),
        _array(_BIGINT, [draft.due_ms.to_bytes(8) for draft in drafts]),
    )
    return _bind(columns)


def put(draft: Draft) -> bytes:
    return _bind((draft.topic.encode(), draft.text.encode(), draft.due_ms.to_bytes(8)))


def _bind(values: Sequence[bytes]) -> bytes:
    sized = b"".join([len(value).to_bytes(4) + value for value in values])
    head = b"\0put\0" + struct.pack(">HHH", 1, 1, len(values))
    return _message(b"B", head + sized + b"\0\0") + _EXECUTE + _SYNC


_EXECUTE = _message(b"E", b"\0" + bytes(4))
_SYNC = _message(b"S", b"")


def _array(oid: int, values: Sequence[bytes]) -> bytes:
    head = struct.pack(">iiIii", 1, 0, oid, len(values), 1)
    return head + b"".join([len(value).to_bytes(4) + value for value in values])


def answer_end(data: bytes) -> int:
    """After ReadyForQuery; 0 while it has not come. Raises Failed."""
    at = 0
    while len(data) - at >= 5:
        kind, stop = data[at], at + 1 + int.from_bytes(data[at + 1 : at + 5])
        if stop > len(data):
            return 0
        if kind == 69:
            raise Failed(data[at:stop].decode(errors="replace"))
        at = stop
        if kind == 90:
            return at
    return 0
