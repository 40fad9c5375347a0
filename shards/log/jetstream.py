"""NATS JetStream: a stream is the log, a message is a record, the stream's sequences are the log's.

    put       publish with Nats-Expected-Last-Sequence; the ack comes when a quorum of servers has stored it
    fetch     $JS.API.DIRECT.GET, several at a time: any server answers from its own file, in raw bytes.
              With `is_sure` $JS.API.STREAM.MSG.GET: only the stream's leader answers, in Base64 and JSON.
              A follower's file can lack records silently, or be behind: missing or wrong ones are asked
              for again (chained.py)
    state     $JS.API.STREAM.INFO, from the leader too
    drop      $JS.API.STREAM.PURGE up to a sequence
    limit     $JS.API.STREAM.UPDATE of `max_bytes`

    hear      a consumer pushes what is stored (feed.py), while it can be had

**Requirements** (else Unfit): nats-server 2.15 or later; a stream in files, of 3 replicas, which never
deletes a record by itself (no maximum age; a full stream refuses) and whose writes are not deferred
(`persist_mode`). Whether the *servers* sync before they acknowledge is their own setting, `jetstream {
sync_interval: always }`, which no client can see. Without it a power cut of two machines loses acknowledged
records.

The stream is checked when the log is opened, and with each `state`: an operator may change it. Nodes ask for
those once a second, and before they claim.

Only `make` creates a stream: an empty one in the place of a lost one would look like a log in which nothing
was ever written. Its metadata say what for. The next sequence is set by the purge of an empty stream.

**Size.** A record is one message, so the servers' `max_payload` (1 MiB by default) bounds it. `largest` is
what they allow. A larger group is in parts (chained.py).

**Room.** Servers that have reached their own limit (`max_file`) stop the stream: it takes nothing, not even a
purge. With `max_bytes` they set so much aside, and what is full refuses records and can be purged. So a
stream without it gets one, of what they have to give: half, if that is less than was wanted.

**The connection** (nats.py) is to one server at a time. After any failure the line (`line.py`) is abandoned
and the next line goes to the next server. The server's pings are answered during calls. The server closes a
connection that was idle for minutes, and the next call makes a new one.
"""

import logging
import random
import re
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from .engine import LogState, NoAnswer, Origin, Taken
from .errors import LogError, NoLog, Unfit
from .feed import Feed
from .line import CONNECTS, Line
from .nats import NatsConnection, Reply, Request

log = logging.getLogger(__name__)

PORT = 4222
OLDEST = (2, 15)
VERSION = re.compile(r"(\d+)\.(\d+)", re.ASCII)
REPLICAS = 3
HEADER_BYTES = 256
"""Room for the headers of a record, which count toward the servers' bound."""
LEAST_BYTES = 16 << 20
"""Minimum bound of a stream."""
NO_ROOM = (10002, 10047, 10122)
NO_STREAM = 10059
NO_MESSAGE = 10037
NOT_FOUND = b"404"
WRONG_LAST = (10071, 10164)
DEAF_S = 60.0
"""Pause before another try to have records pushed."""
NOT_CLUSTERED = (10074, 10005)
"""Replicas were requested from a lone server, or from too few servers."""

TIMELINE, NODE = "fasti-timeline", "fasti-node"
"""Metadata of a stream."""


class ApiError(msgspec.Struct):
    """A server's refusal."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class State(msgspec.Struct):
    """Bounds of a stream; both 0 if nothing was ever in it."""

    first_seq: int = 0
    last_seq: int = 0
    bytes: int = 0


class Config(msgspec.Struct):
    """The settings of a stream that matter here."""

    subjects: list[str] = []
    retention: str = "limits"
    max_msgs: int = -1
    max_msgs_per_subject: int = -1
    max_bytes: int = -1
    max_age: int = 0
    max_msg_size: int = -1
    storage: str = "file"
    discard: str = "new"
    num_replicas: int = REPLICAS
    deny_delete: bool = True
    allow_direct: bool = True
    allow_msg_ttl: bool = False
    sealed: bool = False
    persist_mode: str | None = None
    metadata: dict[str, str] = {}


class Message(msgspec.Struct):
    """A stored message; `data` comes as Base64."""

    data: bytes = b""


class ApiReply(msgspec.Struct):
    """Any answer of the API, and the ack of a publish."""

    error: ApiError | None = None
    seq: int = 0
    state: State = msgspec.field(default_factory=State)
    config: msgspec.Raw = msgspec.Raw(b"{}")
    message: Message | None = None
    ts: datetime | None = None


T = TypeVar("T")
_API_REPLY = msgspec.json.Decoder(ApiReply)
_CONFIG = msgspec.json.Decoder(Config)


class JetStream:
    """An engine on the stream `name`. `must_replicate`: refuse one with fewer than 3 replicas."""

    def __init__(self, url: str, name: str, *, must_replicate: bool = True) -> None:
        self._servers = servers_of(url)
        self._name = name
        self._stream = name.encode()
        self._subject = f"{name}.log"
        self._must_replicate = must_replicate
        self._largest = 0
        self._wanted: Origin | None = None
        """Of a stream that is to be created if it is missing."""
        self.origin = Origin()
        self._is_direct = False
        self._deaf_until = 0.0
        self._tried = random.randrange(len(self._servers))
        """The first one may be lost: who opens a log again and again begins with another one."""
        self._sent: deque[int] = deque()
        """Places of what was sent, and has no answer."""
        self._feed: Feed | None = None
        self._line: Line[NatsConnection] = Line(
            url, self._connected, NatsConnection.close, NatsConnection.abort
        )

    def connect(self, timeout_s: float) -> None:
        self._line.call(lambda _connection, _left_s: None, timeout_s)

    def make(self, after: int, origin: Origin, timeout_s: float) -> None:
        if self._wanted is None:
            self._line.close()  # the next connection looks for the stream, and may take several calls
            self._wanted = origin
        state = self._api(timeout_s, b"INFO").state
        self._wanted = None
        if state.last_seq > after:
            raise Taken
        if after and state.first_seq != after + 1:
            self.drop(after, timeout_s)

    @property
    def largest(self) -> int:
        return self._largest

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        self._sent.clear()
        self._judge_put(seq, self._line.call(self._put, timeout_s, seq, frame))

    def _put(self, connection: NatsConnection, timeout_s: float, seq: int, frame: bytes) -> ApiReply:
        connection.forget()
        connection.ignore()
        self._feed = None
        return self._answer_to(connection, timeout_s, self._publish(seq, frame))

    def send(self, seq: int, frame: bytes, timeout_s: float) -> None:
        self._sent.append(seq)
        self._through(lambda connection: connection.send(self._publish(seq, frame), timeout_s), timeout_s)

    def answer(self, timeout_s: float) -> bool:
        if not self._sent:
            raise NoAnswer("nothing was sent")
        answer = self._through(lambda connection: self._next(connection, timeout_s), timeout_s)
        if answer is not None:
            self._judge_put(self._sent.popleft(), answer)
        return answer is not None

    def _next(self, connection: NatsConnection, timeout_s: float) -> ApiReply | None:
        reply = connection.answer(timeout_s)
        return None if reply is None else _API_REPLY.decode(reply.data)

    def _publish(self, seq: int, frame: bytes) -> Request:
        headers = b"NATS/1.0\r\nNats-Expected-Last-Sequence: %d\r\nNats-Expected-Stream: %s\r\n\r\n"
        return Request(b"%s.log" % self._stream, frame, headers % (seq - 1, self._stream))

    def _through(self, work: Callable[[NatsConnection], T], timeout_s: float) -> T:
        """In this thread: the connection keeps to its timeouts."""
        try:
            return self._line.use(work, timeout_s)
        except BaseException:
            self._sent.clear()
            raise

    def nudge(self) -> None:
        connection = self._line.connection
        if connection is not None:
            connection.nudge()

    def _judge_put(self, seq: int, answer: ApiReply) -> None:
        if answer.error is not None:
            if answer.error.err_code in WRONG_LAST:
                self._sent.clear()
                raise Taken
            raise NoAnswer(_reason(answer.error))
        if answer.seq != seq:
            raise NoAnswer(f"the stream {self._name} took record {seq} as {answer.seq}")

    def fetch(self, seq: int, count: int, timeout_s: float, *, is_sure: bool = True) -> list[bytes]:
        seqs, is_direct = range(seq, seq + count), self._is_direct and not is_sure
        return self._line.call(self._fetched, timeout_s, seqs, is_direct)

    def _fetched(
        self, connection: NatsConnection, timeout_s: float, seqs: range, is_direct: bool
    ) -> list[bytes]:
        """The messages of these sequences, up to the first that is missing."""
        verb, read = (b"DIRECT.GET", _direct) if is_direct else (b"STREAM.MSG.GET", _stored)
        requests = [self._request(verb, b'{"seq":%d}' % seq) for seq in seqs]
        replies = zip(seqs, connection.ask(requests, timeout_s), strict=True)
        found: list[bytes] = []
        for seq, reply in replies:
            data = read(seq, reply)
            if data is None:
                break
            found.append(data)
        return found

    def hear(self, seq: int, timeout_s: float) -> list[bytes] | None:
        if self._line.connection is None or time.monotonic() < self._deaf_until:
            return None
        try:
            return self._line.use(lambda connection: self._heard(connection, seq, timeout_s), timeout_s)
        except (NoAnswer, LogError) as error:
            self._deaf_until = time.monotonic() + DEAF_S
            log.info("log: asked for new records, for %d s, since none is pushed: %s", DEAF_S, error)
            return None

    def _heard(self, connection: NatsConnection, seq: int, timeout_s: float) -> list[bytes] | None:
        feed, self._feed = self._feed, None
        if feed is None or feed.connection is not connection:
            feed = Feed(connection, self._stream, seq)
        found = feed.frames(seq, timeout_s)
        if found is not None:
            self._feed = feed
        return found

    def state(self, timeout_s: float) -> LogState:
        answer = self._api(timeout_s, b"INFO")
        config, state = _CONFIG.decode(answer.config), answer.state
        self._judge(config)
        first, last = (state.first_seq, state.last_seq) if state.last_seq else (1, 0)
        wall_ms = 0 if answer.ts is None else int(answer.ts.timestamp() * 1000)
        return LogState(first, last, state.bytes, max(0, config.max_bytes), wall_ms)

    def limit(self, wanted_bytes: int, timeout_s: float) -> None:
        self._line.call(self._limit, timeout_s, wanted_bytes)

    def confirm(self, timeout_s: float) -> None:
        """Nothing to do: what the stream's leader has, a quorum has in its log."""

    def drop(self, upto: int, timeout_s: float) -> None:
        self._api(timeout_s, b"PURGE", b'{"seq":%d}' % (upto + 1))

    def close(self) -> None:
        self._line.close()

    def _api(self, timeout_s: float, verb: bytes, body: bytes = b"") -> ApiReply:
        answer = self._line.call(self._ask, timeout_s, verb, body)
        if answer.error is not None:
            raise self._refused(answer.error)
        return answer

    def _ask(self, connection: NatsConnection, timeout_s: float, verb: bytes, body: bytes = b"") -> ApiReply:
        return self._answer_to(connection, timeout_s, self._request(b"STREAM.%s" % verb, body))

    def _answer_to(self, connection: NatsConnection, timeout_s: float, request: Request) -> ApiReply:
        (reply,) = connection.ask([request], timeout_s)
        return _API_REPLY.decode(reply.data)

    def _request(self, verb: bytes, body: bytes) -> Request:
        return Request(b"$JS.API.%s.%s" % (verb, self._stream), body)

    def _limit(self, connection: NatsConnection, timeout_s: float, wanted_bytes: int) -> None:
        def update(max_bytes: int) -> ApiReply:
            body = msgspec.json.encode({**config, "max_bytes": max_bytes})
            return self._ask(connection, timeout_s, b"UPDATE", body)

        answer = self._ask(connection, timeout_s, b"INFO")
        if answer.error is not None:
            raise self._refused(answer.error)
        config = msgspec.json.decode(answer.config, type=dict[str, Any])
        if config.get("max_bytes", -1) > 0:
            return
        least, bound = max(LEAST_BYTES, 2 * answer.state.bytes), wanted_bytes
        while (answer := update(bound)).error is not None:
            bound //= 2
            if not _lacks_room(answer.error) or bound < least:
                raise NoAnswer(_reason(answer.error))
        if least <= bound // 2 < wanted_bytes // 2:
            update(bound // 2)

    def _refused(self, error: ApiError) -> NoAnswer | NoLog:
        if error.err_code == NO_STREAM:
            return NoLog(f"the stream {self._name} is not there")
        return NoAnswer(_reason(error))

    def _connected(self, timeout_s: float) -> NatsConnection:
        """In the line's thread: connect to the next server, and check the stream."""
        server = self._servers[self._tried % len(self._servers)]
        self._tried += 1
        connection = NatsConnection(server, timeout_s)
        try:
            _check_version(connection.info.version)
            self._largest = connection.info.max_payload - HEADER_BYTES
            self._judge(self._settings(connection, timeout_s / CONNECTS))  # nobody may lead it just now
        except BaseException:
            connection.close()
            raise
        return connection

    def _settings(self, connection: NatsConnection, timeout_s: float) -> Config:
        """The stream's settings. Creates a missing stream if it is wanted. Raises NoLog."""
        answer = self._ask(connection, timeout_s, b"INFO")
        wanted = self._wanted
        if answer.error is not None and answer.error.err_code == NO_STREAM and wanted is not None:
            answer = self._make(connection, wanted, REPLICAS, timeout_s)
            if (
                answer.error is not None
                and answer.error.err_code in NOT_CLUSTERED
                and not self._must_replicate
            ):
                answer = self._make(connection, wanted, 1, timeout_s)
        if answer.error is not None:
            if answer.error.err_code == NOT_CLUSTERED[0]:
                raise Unfit(
                    f"the stream {self._name} cannot be of {REPLICAS} replicas: {_reason(answer.error)}"
                )
            raise self._refused(answer.error)
        return _CONFIG.decode(answer.config)

    def _make(self, connection: NatsConnection, origin: Origin, replicas: int, timeout_s: float) -> ApiReply:
        metadata = {key: value for key, value in ((TIMELINE, origin.timeline), (NODE, origin.node)) if value}
        wanted = Config(subjects=[self._subject], num_replicas=replicas, metadata=metadata)
        settings = {key: value for key, value in msgspec.to_builtins(wanted).items() if value is not None}
        return self._ask(
            connection, timeout_s, b"CREATE", msgspec.json.encode({"name": self._name, **settings})
        )

    def _judge(self, config: Config) -> None:
        """Check the stream's settings. Raises Unfit."""
        self._is_direct = config.allow_direct
        self.origin = Origin(config.metadata.get(TIMELINE, ""), config.metadata.get(NODE, ""))
        if config.num_replicas < REPLICAS and self._must_replicate:
            raise Unfit(
                f"the stream {self._name} is of {config.num_replicas} replicas, fewer than {REPLICAS}"
            )
        wrong = [
            f"{setting} is {is_so!r}, not {should!r}"
            for setting, is_so, should in (
                ("subjects", config.subjects, [self._subject]),
                ("storage", config.storage, "file"),
                ("retention", config.retention, "limits"),
                ("discard", config.discard, "new"),
                ("max_age", config.max_age, 0),
                ("allow_msg_ttl", config.allow_msg_ttl, False),
                ("sealed", config.sealed, False),
                ("persist_mode", config.persist_mode or "default", "default"),
            )
            if is_so != should
        ]
        if wrong:
            raise Unfit(f"the stream {self._name} does not keep what it acknowledges: {', '.join(wrong)}")
        if config.max_msg_size > 0:
            self._largest = min(self._largest, config.max_msg_size - HEADER_BYTES)


def _check_version(version: str) -> None:
    found = VERSION.match(version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise Unfit(f"nats-server {version}; {'.'.join(map(str, OLDEST))} or later is needed")


def _stored(_seq: int, reply: Reply) -> bytes | None:
    answer = _API_REPLY.decode(reply.data)
    if answer.error is not None and answer.error.err_code != NO_MESSAGE:
        raise NoAnswer(_reason(answer.error))
    return None if answer.message is None else answer.message.data


def _direct(seq: int, reply: Reply) -> bytes | None:
    if reply.status == NOT_FOUND:
        return None
    if reply.status or b"\r\nNats-Sequence: %d\r\n" % seq not in reply.headers:
        status = reply.headers.partition(b"\r\n")[0].decode(errors="replace")
        raise NoAnswer(f"record {seq} is not given out: {status}")
    return reply.data


def servers_of(url: str) -> list[str]:
    """One URL for each server of nats://[user:password@]a[:port],b[:port],…"""
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    found = []
    for host in hosts.split(","):
        port = "" if host.rpartition(":")[2].isdigit() else f":{PORT}"
        found.append(f"{parts.scheme}://{user}{'@' if user else ''}{unquote(host)}{port}")
    return found


def _lacks_room(error: ApiError) -> bool:
    """Whether less might be granted."""
    return error.err_code in NO_ROOM or "insufficient storage" in error.description


def _reason(error: ApiError) -> str:
    return f"{error.description} ({error.err_code})"
