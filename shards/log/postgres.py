"""PostgreSQL: a table is the log, a row is a record. A commit that waits for synchronous standbys makes it
durable.

    CREATE TABLE fasti_log (seq bigint PRIMARY KEY, record bytea NOT NULL)
    COMMENT ON TABLE fasti_log IS 'fasti timeline 6f0e… after 0'

The comment says what for, and after which record an empty table goes on. It names the node that may begin
until there is a first record: a table that is truncated looks as if it never had one.

**The fence.** One statement in its own transaction inserts the row if `seq - 1` is the greatest, with the
rows that were sent behind it. Two at once for one place both see that; then the primary key makes one wait
for the other, and fail when the other has committed. One statement, since a machine may be lost without a
word: a transaction that waits for its next statement would keep the place.

**A quorum.** `synchronous_commit` is set for the session, whatever the database's default. Which standbys the
commit waits for is the primary's `synchronous_standby_names`; it must not be empty (else Unfit). A fail-over
manager may empty it while there is no standby, so each `put` checks it again, in its transaction. It can
still change between that check and the commit: with Patroni, `synchronous_mode_strict` keeps it from ever
being emptied.

**Visible, but not safe.** A commit that waits is invisible until the wait ends early: by a cancel, or a
restart of the primary. Then it is visible, on the primary alone. So nothing here ever cancels a statement,
and no timeout in the server ends one. A commit that returns with a warning did not wait, and counts as
unanswered: the session hears warnings, whatever the role's settings. A record that was found, not
acknowledged, is confirmed by a small commit of its own, which cannot reach the standbys before everything
earlier has. Each new connection begins with one: so nothing is read that only a primary has which came back
from a crash, and which a standby may replace without it. A lock lets one at a time wait for it, since an
abandoned one goes on waiting. A connection that is open reads a row at once whose commit somebody has
cancelled; if the primary is then lost for good, a follower has a record that the log lacks.

**Notices.** Who follows listens on a channel. The leader notifies it after a commit, not in it: such a commit
holds a lock of the whole server, and ours wait for standbys. It does so at most every NOTIFY_S: who hears a
notice looks again later than that.

**Abandoned connections.** psycopg returns when its socket is shut; the server notices at its next check of
the client, each second (`client_connection_check_interval`). One backend may stay in a commit that no standby
confirms. Later tries for the same place wait for it as for a lock, and end like the others.

Give the addresses of all nodes (`postgresql://a,b,c/db`): libpq finds the one that takes writes, in random
order. Poolers that share a session between clients do not work: the settings are the session's.
"""

import os
import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .engine import LogState, NoAnswer, Origin, Taken
from .errors import LogError, NoLog, Unfit
from .line import Line

LARGEST = 64 << 20
"""A row takes up to 1 GB; this much is copied several times on its way."""
OLDEST = 15
NOTIFY_S = 0.025
"""Minimum time between two notices; half of a follower's pause."""
HEARD = 16
"""Maximum records fetched after a notice."""
CONNECT_S = 2
"""For each address; the smallest value in libpq."""
SILENT_MS = 5_000
"""The server ends a transaction, and its locks, whose client says nothing for so long."""
SESSION = (
    "SET synchronous_commit = on; SET statement_timeout = 0; SET lock_timeout = 0; "
    f"SET idle_in_transaction_session_timeout = {SILENT_MS}; SET idle_session_timeout = 0; "
    "SET client_connection_check_interval = 1000; SET client_min_messages = warning"
)
MAKE = """
CREATE TABLE IF NOT EXISTS {table} (seq bigint PRIMARY KEY, record bytea NOT NULL);
ALTER TABLE {table} ALTER COLUMN record SET STORAGE EXTERNAL
"""
COMMENTED = """
SELECT to_regclass(%(name)s) IS NOT NULL, coalesce(obj_description(to_regclass(%(name)s), 'pg_class'), '')
"""
COMMENT = re.compile(r"fasti timeline (\w*) after (\d+)(?: node (.*))?", re.ASCII)
AFTER = (
    "coalesce(substring(obj_description({name}::regclass, 'pg_class') from 'after ([0-9]+)'), '0')::bigint"
)
"""Looked up for an empty table only."""
PUT = f"""
INSERT INTO {{table}} (seq, record) SELECT * FROM unnest(%(places)s::bigint[], %(frames)s::bytea[])
WHERE (SELECT coalesce(max(seq), {AFTER}) FROM {{table}}) = %(places)s[1] - 1
  AND (%(alone)s OR current_setting('synchronous_standby_names') <> '')
"""
FETCH = "SELECT seq, record FROM {table} WHERE seq >= %s AND seq < %s ORDER BY seq"
STATE = f"""
SELECT coalesce(min(seq), {AFTER} + 1), coalesce(max(seq), {AFTER}),
  floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM {{table}}
"""
DROP = "DELETE FROM {table} WHERE seq <= %s"
ALONE = "SELECT pg_try_advisory_xact_lock(hashtext(%s))"
CONFIRM = "SELECT pg_logical_emit_message(true, 'fasti', '')"
STANDBYS = "SHOW synchronous_standby_names"
LISTEN, NOTIFY, UNLISTEN = "LISTEN {table}", "NOTIFY {table}", "UNLISTEN *"

Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]
T = TypeVar("T")


class Postgres:
    """An engine on the table `name`_log. `must_replicate`: refuse a server without synchronous standbys."""

    def __init__(self, url: str, name: str, *, must_replicate: bool = True) -> None:
        self._conninfo = _conninfo(url)
        self._table = f"{name}_log"
        self._must_replicate = must_replicate
        self._wanted: Origin | None = None
        """Of a table that is to be created if it is missing."""
        self.origin = Origin()
        self._warnings: list[str] = []
        self._sent: list[tuple[int, bytes]] = []
        self._answered = 0
        """How many that were sent are durable, and nobody has asked for."""
        self._is_listening = self._is_noticed = self._has_news = False
        """On this connection: whether there was ever a notice, and one since the last fetch."""
        self._notified_at = 0.0
        self._line: Line[Connection] = Line(url, self._connected, _closed, _abort)

    def connect(self, timeout_s: float) -> None:
        self._line.call(lambda _connection, _left_s: None, timeout_s)

    def make(self, after: int, origin: Origin, timeout_s: float) -> None:
        self._wanted = origin  # until it is there: to connect may take several calls
        self._call(self._empty, timeout_s, after, origin)
        self._wanted = None

    @property
    def largest(self) -> int:
        return LARGEST

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        self._sent, self._answered = [], 0
        self._call(self._put, timeout_s, [(seq, frame)])

    def send(self, seq: int, frame: bytes, timeout_s: float) -> None:  # noqa: ARG002 - nothing is sent yet
        self._sent.append((seq, frame))

    def answer(self, timeout_s: float) -> bool:
        """All that was sent meanwhile shares a commit: each waits for the standbys."""
        if not self._answered:
            some, self._sent = self._sent, []
            if not some:
                raise NoAnswer("nothing was sent")
            self._call(self._put, timeout_s, some)
            self._answered = len(some)
        self._answered -= 1
        return True

    def nudge(self) -> None:
        """Does nothing: a reader waits in the PostgreSQL server."""

    def fetch(
        self,
        seq: int,
        count: int,
        timeout_s: float,
        *,
        is_sure: bool = True,  # noqa: ARG002 - it always is
    ) -> list[bytes]:
        return self._call(self._fetched, timeout_s, seq, count)

    def hear(self, seq: int, timeout_s: float) -> list[bytes] | None:
        try:
            return self._call(self._heard, timeout_s + CONNECT_S, seq, timeout_s)
        except (NoAnswer, LogError):
            return None

    def state(self, timeout_s: float) -> LogState:
        ((first, last, wall_ms),) = self._call(self._rows, timeout_s, STATE)
        return LogState(first, last, wall_ms=wall_ms)

    def limit(self, wanted_bytes: int, timeout_s: float) -> None:
        """A table has no bound."""

    def confirm(self, timeout_s: float) -> None:
        self._call(self._committed, timeout_s, CONFIRM)

    def drop(self, upto: int, timeout_s: float) -> None:
        self._call(self._committed, timeout_s, DROP, (upto,))

    def close(self) -> None:
        self._line.close()

    def _call(self, work: Callable[..., T], timeout_s: float, *args: object) -> T:
        """`work(connection, ...)` in the line's thread. psycopg is not told how long it may take."""
        return self._line.call(lambda connection, _left_s: work(connection, *args), timeout_s)

    # -- in the line's thread

    def _connected(self, _timeout_s: float) -> Connection:
        connection = psycopg.connect(self._conninfo, autocommit=True)
        self._is_listening = self._is_noticed = self._has_news = False
        try:
            connection.add_notice_handler(self._noted)
            connection.add_notify_handler(self._noticed)
            connection.execute(SESSION)
            self._judge(connection)
            self._find(connection)
            if self._must_replicate:
                self._confirm(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _judge(self, connection: Connection) -> None:
        """Check the server's settings. Raises Unfit."""
        version = connection.info.server_version // 10_000
        if version < OLDEST:
            raise Unfit(f"PostgreSQL {version}; {OLDEST} or later is needed")
        for setting in ("fsync", "full_page_writes"):
            if self._rows(connection, f"SHOW {setting}") != [("on",)]:
                raise Unfit(f"PostgreSQL runs with {setting} = off: a power cut takes what it acknowledged")
        if self._must_replicate and self._rows(connection, STANDBYS) == [("",)]:
            raise Unfit("PostgreSQL has no synchronous standbys: synchronous_standby_names is empty")

    def _find(self, connection: Connection) -> None:
        """Read what the table was made for. Creates a missing table if it is wanted. Raises NoLog."""
        ((there, comment),) = self._rows(connection, COMMENTED, {"name": self._table})
        found = COMMENT.fullmatch(comment)
        self.origin = Origin() if found is None else Origin(found[1], found[3] or "")
        if there:
            return
        if self._wanted is None:
            raise NoLog(f"the table {self._table} is not there")
        try:
            self._committed(connection, MAKE)
        except psycopg.errors.UniqueViolation as error:
            raise NoAnswer(f"another node makes the table: {error}") from error

    def _empty(self, connection: Connection, after: int, origin: Origin) -> None:
        """Empty the table, and note what it is for. Raises Taken."""
        self._warnings.clear()
        with connection.transaction():
            connection.execute(self._named("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
            ((_, last, _),) = self._rows(connection, STATE)
            if last > after:
                raise Taken
            connection.execute(self._named("DELETE FROM {table}"))
            self._describe(connection, after, origin)
        self._check_warnings()
        self.origin = origin

    def _describe(self, connection: Connection, after: int, origin: Origin) -> None:
        comment = f"fasti timeline {origin.timeline} after {after}"
        if origin.node:
            comment += f" node {origin.node}"
        connection.execute(self._named("COMMENT ON TABLE {table} IS {comment}", comment))

    def _confirm(self, connection: Connection) -> None:
        """Return once all that this connection can see is on a standby. Raises NoAnswer."""
        self._warnings.clear()
        with connection.transaction():
            if self._rows(connection, ALONE, (self._table,)) != [(True,)]:
                raise NoAnswer("another connection waits until the standbys have all that the primary has")
            connection.execute(CONFIRM)
        self._check_warnings()

    def _put(self, connection: Connection, some: list[tuple[int, bytes]]) -> None:
        """Put all of these, or none."""
        self._warnings.clear()
        begins = some[0][0] == 1 and self.origin.node != ""
        if self._is_listening:
            connection.execute(UNLISTEN)
            self._is_listening = False
        try:
            with connection.transaction() if begins else nullcontext():
                self._insert(connection, some)
                if begins:
                    self._describe(connection, 0, Origin(self.origin.timeline))
        except psycopg.errors.UniqueViolation:
            raise Taken from None
        except Taken:
            self._judge(connection)
            raise
        self._check_warnings()
        if time.monotonic() - self._notified_at > NOTIFY_S:
            connection.execute(self._named(NOTIFY))
            self._notified_at = time.monotonic()

    def _insert(self, connection: Connection, some: list[tuple[int, bytes]]) -> None:
        places, frames = zip(*some, strict=True)
        values = {"places": list(places), "frames": list(frames), "alone": not self._must_replicate}
        if not connection.execute(self._named(PUT), values).rowcount:
            raise Taken

    def _fetched(self, connection: Connection, seq: int, count: int) -> list[bytes]:
        rows = self._rows(connection, FETCH, (seq, seq + count))
        return [row[1] for index, row in enumerate(rows) if row[0] == seq + index]

    def _heard(self, connection: Connection, seq: int, timeout_s: float) -> list[bytes] | None:
        """What is there, else what comes with a notice. None: no leader has given one yet."""
        if not self._is_listening:
            connection.execute(self._named(LISTEN))
            self._is_listening = True
        if not self._is_noticed and not self._has_come(connection, 0):
            return None
        until = time.monotonic() + timeout_s
        while not (found := self._fetched(connection, seq, HEARD)):
            if not self._has_come(connection, until - time.monotonic()):
                break
        return found

    def _has_come(self, connection: Connection, timeout_s: float) -> bool:
        """Wait for a notice; whether there was one."""
        waiting = select.poll()
        waiting.register(connection.fileno(), select.POLLIN)
        if not self._has_news and waiting.poll(max(0, timeout_s) * 1000):
            connection.pgconn.consume_input()
            while (notice := connection.pgconn.notifies()) is not None:
                self._noticed(notice)
        has_come, self._has_news = self._has_news, False
        return has_come

    def _noticed(self, _notice: object) -> None:
        self._is_noticed = self._has_news = True

    def _committed(self, connection: Connection, statement: str, values: Any = None) -> None:
        """Execute and commit. Raises NoAnswer if the commit did not wait for a standby."""
        self._warnings.clear()
        connection.execute(self._named(statement), values)
        self._check_warnings()

    def _check_warnings(self) -> None:
        if self._warnings:
            raise NoAnswer(self._warnings[0])

    def _rows(self, connection: Connection, statement: str, values: Any = None) -> list[Row]:
        with connection.cursor(binary=True) as cursor:
            return cursor.execute(self._named(statement), values).fetchall()

    def _named(self, statement: str, comment: str = "") -> sql.Composed:
        name = self._table
        return sql.SQL(statement).format(
            table=sql.Identifier(name), name=sql.Literal(name), comment=sql.Literal(comment)
        )

    def _noted(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self._warnings.append(f"{diagnostic.message_primary}: {diagnostic.message_detail}")


def _conninfo(url: str) -> str:
    """Raises ValueError."""
    defaults: dict[str, Any] = {
        "application_name": "fasti",
        "target_session_attrs": "read-write",
        "load_balance_hosts": "random",
        "connect_timeout": CONNECT_S,
        "client_encoding": "utf8",  # a database in SQL_ASCII would answer with bytes
    }
    try:
        return make_conninfo(**{**defaults, **conninfo_to_dict(url)})
    except psycopg.Error:  # which may quote the password
        raise ValueError(
            "is no URL of PostgreSQL: has it an unknown parameter, or a password in which % is not written"
            " as %25, @ as %40 and the like?"
        ) from None


def _closed(connection: Connection) -> None:
    connection.close()


def _abort(connection: Connection) -> None:
    """From another thread: shut the socket, to end a wait."""
    try:
        held = socket.socket(fileno=os.dup(connection.fileno()))
    except (OSError, psycopg.Error):
        return  # the connection is closed
    with held, suppress(OSError):  # nobody is at the other end
        held.shutdown(socket.SHUT_RDWR)
