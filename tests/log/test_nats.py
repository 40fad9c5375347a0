"""The client of NATS against servers that misbehave: nothing hangs, and what they send takes bounded room."""

import base64
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from shards.log.chained import open_engine
from shards.log.errors import LogDown
from shards.log.feed import Feed
from shards.log.jetstream import JetStream
from shards.log.nats import LINE_BYTES, PUSHED_BYTES, READ_BYTES, NatsConnection, NatsError, Request

CALL_S = 0.4
SOON_S = 30.0
HELLO = b'INFO {"version":"2.15.0","max_payload":1048576}\r\n'
LEAVING = b'INFO {"version":"2.15.0","max_payload":1048576,"ldm":true}\r\n'
ASKED = Request(b"subject", b"question")

Play = Callable[["Stage"], None]


class Stage:
    """One connection of a client, as its server has it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._input = connection.makefile("rb")

    def say(self, *lines: bytes) -> None:
        self.connection.sendall(b"".join(lines))

    def introduce(self) -> None:
        """As a good server does."""
        self.say(HELLO)
        while self._input.readline() != b"PING\r\n":
            continue
        self.say(b"PONG\r\n")

    def heard(self) -> tuple[bytes, bytes, bytes]:
        """Subject, address of the reply, and data of the next request."""
        while True:
            words = self._input.readline().split()
            if not words:
                raise EOFError
            if words[0] in (b"PUB", b"HPUB"):
                data = self._input.read(int(words[-1]) + 2)[:-2]
                return words[1], words[2], data[int(words[-2]) if words[0] == b"HPUB" else 0 :]

    def reply(self, to: bytes, data: bytes) -> None:
        self.say(b"MSG %s 1 %d\r\n%s\r\n" % (to, len(data), data))

    def wait(self) -> None:
        """Until the client has gone."""
        while self.connection.recv(READ_BYTES):
            continue


class Server:
    """One that plays with each connection."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.place = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.url = f"nats://{self.place}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._run, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _run(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._play(Stage(connection))
            except (OSError, EOFError):
                return  # the client has gone

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(SOON_S)
            assert not thread.is_alive(), "it hangs"


@pytest.fixture
def served() -> Iterator[Callable[[Play], Server]]:
    servers = []

    def begin(play: Play) -> Server:
        servers.append(Server(play))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


def silent(stage: Stage) -> None:
    stage.wait()


def without_end(stage: Stage) -> None:
    while True:
        stage.say(b"INFO" * 1_000)


def without_pong(stage: Stage) -> None:
    stage.say(HELLO)
    stage.wait()


def only_pings(stage: Stage) -> None:
    stage.say(HELLO)
    flood(stage)


def flood(stage: Stage) -> None:
    while True:
        stage.say(b"PING\r\n")
        stage.connection.setblocking(False)
        try:
            while stage.connection.recv(READ_BYTES):
                continue
        except BlockingIOError:
            pass
        stage.connection.setblocking(True)


def refusing(stage: Stage) -> None:
    stage.say(HELLO, b"-ERR 'Authorization Violation'\r\n")
    stage.wait()


def of_another_protocol(stage: Stage) -> None:
    stage.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    stage.wait()


def closing(stage: Stage) -> None:
    stage.say(HELLO[:20])


@pytest.mark.parametrize(
    ("play", "error"),
    [
        *((silent, "timed out"), (without_end, "does not say who it is|^$|timed out")),
        *((without_pong, "timed out"), (only_pings, "^$|timed out"), (refusing, "Authorization Violation")),
        *((of_another_protocol, "not a server of NATS"), (closing, "does not say who it is")),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_server_that_does_not_greet(served: Callable[[Play], Server], play: Play, error: str) -> None:
    began = time.monotonic()
    with pytest.raises((OSError, NatsError), match=error):
        NatsConnection(served(play).url, CALL_S)
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", "^$|timed out"),
        (b"MSG _INBOX.half", "^$|timed out"),
        (b"MSG %s 1 100\r\nhalf of it", "^$|timed out"),
        (b"-ERR 'Slow Consumer'\r\n", "Slow Consumer"),
        (b"MSG %s 1 1099511627776\r\n", "a message of 1,099,511,627,776 bytes"),
        (b"MSG %s 1 -5\r\n", "a message of -5 bytes"),
        (b"HMSG %s 1 50 20\r\n", "50 of headers"),
        (b"MSG %s 1 many\r\n", "invalid literal"),
        (b"MSG\r\n", "invalid literal"),
        (b"x" * (LINE_BYTES + 2 * READ_BYTES), "does not end"),
    ],
)
def test_a_server_that_answers_nonsense(
    served: Callable[[Play], Server], said: bytes, error: str, *, is_sent: bool
) -> None:
    """Or half a line, or nothing. Whoever asks is told in time, and holds no more than it must."""

    def play(stage: Stage) -> None:
        stage.introduce()
        _, to, _ = stage.heard()
        stage.say(said.replace(b"%s", to))
        stage.wait()

    connection, began = NatsConnection(served(play).url, SOON_S), time.monotonic()
    if is_sent:
        connection.send(ASKED, CALL_S)
    with pytest.raises((OSError, NatsError, ValueError), match=error):
        connection.answer(CALL_S) if is_sent else connection.ask([ASKED], CALL_S)
    assert time.monotonic() - began < SOON_S
    assert len(connection._input) <= LINE_BYTES + READ_BYTES
    connection.close()


def test_a_server_that_takes_nothing(served: Callable[[Play], Server]) -> None:
    gone = threading.Event()

    def play(stage: Stage) -> None:
        stage.introduce()
        gone.wait(SOON_S)

    connection, began = NatsConnection(served(play).url, SOON_S), time.monotonic()
    with pytest.raises(TimeoutError):
        connection.ask([Request(b"subject", bytes(64 << 20))], CALL_S)
    assert time.monotonic() - began < SOON_S
    connection.close()
    gone.set()


def test_replies_that_nobody_waits_for_are_dropped(served: Callable[[Play], Server]) -> None:
    """Of another time, of no time, and one that comes twice."""

    def play(stage: Stage) -> None:
        stage.introduce()
        for _ in range(2):
            _, to, _ = stage.heard()
            inbox, _, number = to.rpartition(b".")
            for other in range(2_000):
                stage.reply(b"%s.%d" % (inbox, int(number) + 1 + other), bytes(1_000))
            stage.reply(b"%s.0" % inbox, b"early")
            stage.reply(to, b"answer")
            stage.reply(to, b"again")
        stage.wait()

    connection = NatsConnection(served(play).url, SOON_S)
    assert [reply.data for reply in connection.ask([ASKED], SOON_S)] == [b"early"]
    connection.send(ASKED, SOON_S)
    reply = connection.answer(SOON_S)
    assert reply is not None
    assert reply.data == b"answer"
    assert not connection._found
    assert not connection._awaited
    connection.close()


class Stream:
    """A stream in RAM, which several servers have."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.puts = 0

    def play(self, stage: Stage) -> None:
        stage.introduce()
        while True:
            self.serve(stage, *stage.heard())

    def serve(self, stage: Stage, subject: bytes, to: bytes, data: bytes) -> None:
        stage.reply(to, json.dumps(self.answer(subject, data)).encode())

    def answer(self, subject: bytes, data: bytes) -> dict[str, object]:
        if subject == b"x.log":
            self.frames.append(data)
            return {"stream": "x", "seq": len(self.frames)}
        if subject.startswith(b"$JS.API.STREAM.MSG.GET"):
            seq = json.loads(data)["seq"]
            if seq > len(self.frames):
                return {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
            return {"message": {"seq": seq, "data": base64.b64encode(self.frames[seq - 1]).decode()}}
        return {
            "config": {"name": "x", "subjects": ["x.log"], "allow_direct": False},
            "state": {"first_seq": min(1, len(self.frames)), "last_seq": len(self.frames)},
        }


class Leaving(Stream):
    """Its server says that it will shut down, takes two records more, and closes before an answer."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.frames = stream.frames

    def serve(self, stage: Stage, subject: bytes, to: bytes, data: bytes) -> None:
        self.puts += subject == b"x.log"
        if self.puts == 2:
            stage.say(LEAVING)
        if self.puts == 4:
            self.answer(subject, data)
            stage.connection.shutdown(socket.SHUT_RDWR)
            raise EOFError
        super().serve(stage, subject, to, data)


class Fenced(Stream):
    """One that looks at the place."""

    def serve(self, stage: Stage, subject: bytes, to: bytes, data: bytes) -> None:
        if subject == b"x.log" and data in self.frames:
            stage.reply(to, b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"}}')
            return
        super().serve(stage, subject, to, data)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_server_that_shuts_down(served: Callable[[Play], Server], *, is_ahead: bool) -> None:
    """What it took without an answer is there once; the next server has the rest."""
    stream = Fenced()
    first, second = served(Leaving(stream).play), served(stream.play)
    log = open_engine(JetStream(f"{first.url},{second.place}", "x"), time, 2 * SOON_S)
    epoch, began = log.claim(1, "a", ""), time.monotonic()
    wanted = [b"record %d" % number for number in range(6)]
    for number, data in enumerate(wanted):
        if is_ahead:
            assert log.send(log.at.seq + 1, epoch, data)
            if number % 3 == 2:
                assert [log.settle() for _ in range(3)] == [True] * 3
        else:
            log.append(log.at.seq + 1, epoch, data)
    assert time.monotonic() - began < SOON_S
    assert [data for _, _, data in log.read(1)] == wanted
    assert len(stream.frames) == 7
    log.close()


def test_a_server_that_hangs_is_left_for_the_next(served: Callable[[Play], Server]) -> None:
    stream = Fenced()

    class Hanging(Leaving):
        def serve(self, stage: Stage, subject: bytes, to: bytes, data: bytes) -> None:
            if subject == b"x.log" and len(self.frames) == 1:
                stage.wait()
                raise EOFError
            super().serve(stage, subject, to, data)

    first, second = served(Hanging(stream).play), served(stream.play)
    log = open_engine(JetStream(f"{first.url},{second.place}", "x"), time, 4 * CALL_S)
    epoch = log.claim(1, "a", "")
    log.append(2, epoch, b"second")
    assert [seq for seq, _, _ in log.read(0)] == [1, 2]
    log.close()


@pytest.mark.parametrize("said", ["later", "2", "2.x", "-2.15"])
def test_a_version_that_nobody_knows(served: Callable[[Play], Server], said: str) -> None:
    def play(stage: Stage) -> None:
        stage.say(HELLO.replace(b"2.15.0", said.encode()))
        stage.wait()

    def introduced(stage: Stage) -> None:
        stage.say(HELLO.replace(b"2.15.0", said.encode()), b"PONG\r\n")
        stage.wait()

    with pytest.raises(Exception, match=re.escape(f"nats-server {said}; 2.15 or later")):
        JetStream(served(introduced).url, "x").connect(SOON_S)
    with pytest.raises(LogDown):
        open_engine(JetStream(served(play).url, "x"), time, CALL_S)


def test_a_server_that_pushes_more_than_was_asked_for(served: Callable[[Play], Server]) -> None:
    """Also while something else is waited for."""

    def play(stage: Stage) -> None:
        stage.introduce()
        stage.heard()
        for _ in range(100):
            stage.say(b"MSG log 2 to 1000000\r\n", bytes(1_000_000), b"\r\n")

    connection = NatsConnection(served(play).url, CALL_S)
    connection.listen()
    with pytest.raises(NatsError, match="more than it was asked for"):
        connection.ask([ASKED], SOON_S)
    assert sum(len(one.data) for one in connection.take_pushed()) <= PUSHED_BYTES
    connection.close()


def test_what_is_pushed_unasked_is_dropped(served: Callable[[Play], Server]) -> None:
    def play(stage: Stage) -> None:
        stage.introduce()
        _, to, _ = stage.heard()
        stage.say(b"MSG log 2 to 5\r\nhello\r\n")
        stage.reply(to, b"answer")
        stage.wait()

    connection = NatsConnection(served(play).url, CALL_S)
    assert connection.ask([ASKED], SOON_S)[0].data == b"answer"
    assert connection.take_pushed() == []
    connection.close()


def test_a_flood_of_pings_does_not_hold_who_listens(served: Callable[[Play], Server]) -> None:
    def play(stage: Stage) -> None:
        stage.introduce()
        _, to, _ = stage.heard()
        stage.reply(to, b"{}")
        flood(stage)

    connection = NatsConnection(served(play).url, CALL_S)
    feed = Feed(connection, b"x", 1)
    began = time.monotonic()
    assert feed.frames(1, CALL_S) == []
    assert time.monotonic() - began < SOON_S
    connection.close()


def test_a_refused_consumer_is_told_in_the_servers_words(served: Callable[[Play], Server]) -> None:
    def play(stage: Stage) -> None:
        stage.introduce()
        _, to, _ = stage.heard()
        stage.reply(
            to, b'{"error":{"code":400,"err_code":10026,"description":"maximum consumers limit reached"}}'
        )

    connection = NatsConnection(served(play).url, CALL_S)
    with pytest.raises(NatsError, match=r"^no consumer: maximum consumers limit reached$"):
        Feed(connection, b"x", 1)
    connection.close()
