"""Clients of several nodes, each noting in the account (support/ledger/arrivals.py) what it knows.

    Poster      HTTP: singles and batches with idempotency keys, each tried until it is answered
    Canceller   HTTP: takes back what was answered, at any distance from its due
    Publisher   MQTT: scheduled publishes at QoS 2, which paho goes on with over connections
    Reader      MQTT: a session, or a member of a group, that goes to the next node when one is gone

Each is a thread of its own. All go from node to node by what they are told: HTTP by 307, MQTT by the server
reference; where nothing is said, to the next one.
"""

import http.client
import json
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from server.settings.times import format_ms, parse_deliver_at
from tests.support.cluster import Node
from tests.support.http import NDJSON
from tests.support.ledger.arrivals import Arrivals, Inbox
from tests.support.ledger.messages import Message, Messages
from tests.support.mqtt import wall_ms

ANSWER_S = 2.0
PAUSE_S = 0.05
KEEP_ALIVE_S = 2
TURN_S = 0.03
UNDER_WAY = 50
EXPIRY_S = 600
PACE_S = 0.03
CANCEL_PACE_S = 0.05
ELSEWHERE, STEPPED_DOWN = 0x9C, 0x9D
NOT_FOUND = 0x92
"""To a PUBREL that comes once more, or after a PUBREC that refused: paho does not tell the two apart."""
DUES_MS = (0, 50, 500, 1_000, 2_000)
UNANSWERED = (OSError, http.client.HTTPException)


class Client:
    """A thread that does one thing until it is told to end; what it raises is a fault."""

    def __init__(self, load: "Load", seed: int) -> None:
        self.load, self.nodes, self.messages = load, load.nodes, load.account.messages
        self.chance = random.Random(seed)
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.is_over.set()
        if self._thread.is_alive():
            self._thread.join(60)
            assert not self._thread.is_alive(), self

    def _run(self) -> None:
        try:
            while not self.is_over.is_set():
                self.turn()
        except Exception as error:
            self.load.fault("client", f"{self} ended with {error!r}")

    def turn(self) -> None:
        raise NotImplementedError

    def soon_ms(self) -> int:
        return wall_ms() + self.chance.choice(DUES_MS) + self.chance.randrange(500)


class Calls:
    """HTTP to whichever node answers; follows 307."""

    def __init__(self, addresses: Sequence[tuple[str, int]], at: int = 0) -> None:
        self._addresses = addresses
        self._at = at
        self._line: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Status and body. Raises UNANSWERED; the next call goes to the next node then, as after a 503."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            line = self._line or http.client.HTTPConnection(
                *self._addresses[self._at % len(self._addresses)], timeout=ANSWER_S
            )
            self._line = line
            line.request(method, path, body, sent)
            answer = line.getresponse()
            raw = answer.read()
        except UNANSWERED:
            self._next()
            raise
        if answer.status == 307:
            self._go(urlsplit(answer.headers["Location"]).netloc)
            return 307, {}
        if answer.status == 503:
            self._next()
        return answer.status, json.loads(raw) if raw else {}

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _go(self, where: str) -> None:
        self.close()
        host, _, port = where.rpartition(":")
        self._line = http.client.HTTPConnection(host, int(port), timeout=ANSWER_S)

    def _next(self) -> None:
        self.close()
        self._at += 1


class Caller(Client):
    """One who makes the same call until it is answered."""

    def __init__(self, load: "Load", seed: int) -> None:
        super().__init__(load, seed)
        self._calls = Calls([node.http for node in self.nodes], seed)

    def end(self) -> None:
        super().end()
        self._calls.close()

    def insist(
        self, wanted: tuple[int, int], method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Status, one of those, and body; 0 if there was none."""
        while not self.is_over.is_set():
            said: dict[str, Any] = {}
            try:
                status, said = self._calls.ask(method, path, body, **headers)
            except UNANSWERED:
                status = 503
            if status in wanted:
                return status, said
            if status not in (307, 429, 503):
                self.load.fault("refused", f"{method} {path}: {status} {said}")
                break
            if status != 307:
                self.is_over.wait(PAUSE_S)
        return 0, {}


class Poster(Caller):
    """`batch`: messages of a request, 1 for singles; `pace_s`: pause after each."""

    def __init__(self, load: "Load", seed: int, *, batch: int = 1, pace_s: float = PACE_S) -> None:
        super().__init__(load, seed)
        self.batch, self.pace_s = batch, pace_s

    def turn(self) -> None:
        kind, call = ("batch", ":batch") if self.batch > 1 else ("single", "")
        messages = [
            self.load.ask(kind, self.soon_ms(), f"{self.chance.randrange(20)}") for _ in range(self.batch)
        ]
        items: list[dict[str, object]] = [
            {"topic": one.topic, "payload": one.tag, "qos": 2, "deliver_at": format_ms(one.due)}
            for one in messages
        ]
        headers = {"Content_Type": NDJSON if call else "application/json"}
        keys = [f"{self.load.topic}-{one.tag}" for one in messages]
        if not call or self.chance.random() < 0.5:
            headers["Idempotency_Key"] = keys[0]
        else:
            items = [item | {"key": key} for item, key in zip(items, keys, strict=True)]
        body = b"\n".join(json.dumps(item).encode() for item in items)
        status, said = self.insist((200, 201), "POST", f"/v1/messages{call}", body, **headers)
        if status:
            for message, name in zip(messages, said["ids"] if call else [said["id"]], strict=True):
                self.load.accepted(message, name)
        self.is_over.wait(self.pace_s)


class Canceller(Caller):
    """Takes back one of the messages that were answered, again and again."""

    def turn(self) -> None:
        self.is_over.wait(CANCEL_PACE_S)
        last = list(self.messages.by_tag.values())[-400:]
        open_ones = [one for one in last if one.id and not one.is_cancel_asked]
        if not open_ones:
            return
        message = self.chance.choice(open_ones)
        message.is_cancel_asked = True
        status, _ = self.insist((204, 409), "DELETE", f"/v1/messages/{message.id}")
        if status:
            self.messages.clock.shows(wall_ms())
            (self.messages.cancelled if status == 204 else self.messages.not_cancelled)(message)


class Session(Client):
    """paho in a thread, a connection after the other. `reasons`: with what they ended, in order."""

    def __init__(self, load: "Load", seed: int, name: str) -> None:
        super().__init__(load, seed)
        self.name = name
        self.reasons: list[int] = []
        self.present: list[bool] = []
        """Of each connection that was accepted: whether its session was there."""
        self.connected = threading.Event()
        self.where = ("", 0)
        self._next_at = seed
        self._address: tuple[str, int] | None = None
        """Where the last node has sent it."""
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, reconnect_on_failure=False
        )
        self.paho.connect_timeout = ANSWER_S
        self.paho.max_inflight_messages_set(100)
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect

    def turn(self) -> None:
        """One connection, from its begin to its end."""
        self.where, self._address = self._address or self._next(), None
        self._keep_releases()
        asked = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        asked.SessionExpiryInterval = EXPIRY_S
        try:
            self.paho.connect(*self.where, keepalive=KEEP_ALIVE_S, clean_start=False, properties=asked)
        except OSError:
            self.is_over.wait(PAUSE_S)
            return
        while not self.is_over.is_set():
            self.step()
            if self.paho.loop(TURN_S) != paho.MQTT_ERR_SUCCESS:
                break
        if self.is_over.is_set():
            self.paho.disconnect()
            self.paho.loop(0.1)
        elif self._address is None:
            self.is_over.wait(PAUSE_S)

    def _keep_releases(self) -> None:
        """paho forgets with the second connection that fails in a row that it has sent a PUBREL.

        It would send the PUBLISH again, as a new one: `_messages_reconnect_reset_out`, with which each
        attempt begins, takes what it has itself set to "resend the PUBREL" for something never sent.
        """
        for message in self.paho._out_messages.values():
            if message.state == MessageState.MQTT_MS_RESEND_PUBREL:
                message.state = MessageState.MQTT_MS_WAIT_FOR_PUBCOMP

    def started(self) -> None:
        """It is connected, and its session was not there."""

    def step(self) -> None:
        """Between two looks at the socket."""

    def _next(self) -> tuple[str, int]:
        self._next_at += 1
        return self.nodes[self._next_at % len(self.nodes)].mqtt

    def _on_connect(self, _client: Any, _user: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._ended(reason, properties)
            return
        self.present.append(flags.session_present)
        if not flags.session_present:
            self.started()
        self.connected.set()

    def _on_disconnect(self, _client: Any, _user: Any, _flags: Any, reason: Any, properties: Any) -> None:
        self.connected.clear()
        self._ended(reason, properties)

    def _ended(self, reason: Any, properties: Any) -> None:
        self.reasons.append(reason.value)
        told = getattr(properties, "ServerReference", None)
        if told:
            host, _, port = told.rpartition(":")
            self._address = host, int(port)


class Reader(Session):
    """A session of its own, or with `group` a member of one; what it gets goes into the inbox."""

    def __init__(self, load: "Load", seed: int, name: str, *, qos: int, group: str = "") -> None:
        super().__init__(load, seed, name)
        self._filter = f"$share/{group}/{load.topic}/#" if group else f"{load.topic}/#"
        self.qos = qos
        self.inbox = load.account.inboxes.setdefault(
            group or name, Inbox(group or name, is_shared=bool(group))
        )
        self.subscribed = threading.Event()
        self.paho.on_message = self._on_message
        self.paho.on_subscribe = lambda *_: self.subscribed.set()

    def started(self) -> None:
        self.paho.subscribe(self._filter, options=SubscribeOptions(self.qos))

    def turn(self) -> None:
        self.inbox.open(wall_ms())
        super().turn()

    def _on_message(self, _client: Any, _user: Any, message: Any) -> None:
        """At QoS 2 paho tells of each packet id once, when it is released."""
        users, account, now_ms = dict(message.properties.UserProperty), self.load.account, wall_ms()
        due_ms, attempt = parse_deliver_at(users["fasti-due"]), int(users.get("fasti-attempt", 1))
        tag = message.payload.decode()
        arrival = account.arrived(self.inbox, tag, now_ms, due_ms, attempt, message.qos, node=self.where)
        account.acked(self.inbox, arrival, now_ms)


class Publisher(Session):
    """Schedules at QoS 2; what has no answer yet paho sends again on the next connection."""

    def __init__(self, load: "Load", seed: int, name: str) -> None:
        super().__init__(load, seed, name)
        self._under_way: dict[int, Message] = {}
        self._next_s = 0.0
        self.paho.on_publish = self._on_publish

    def step(self) -> None:
        if self.connected.is_set() and len(self._under_way) < UNDER_WAY and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PACE_S
            message = self.load.ask("qos2", self.soon_ms(), "qos2")
            asked = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            asked.UserProperty = [("deliver-at", format_ms(message.due))]
            info = self.paho.publish(message.topic, message.tag, 2, properties=asked)
            self._under_way[info.mid] = message

    def _on_publish(self, _client: Any, _user: Any, mid: int, reason: Any, _properties: Any) -> None:
        message = self._under_way.pop(mid)
        if not reason.is_failure:
            self.load.accepted(message, "")
        elif reason.value != NOT_FOUND:
            self.load.fault("refused", f"{reason} for {message}")


class Load:
    """All clients on these nodes: begun together, ended together."""

    def __init__(self, nodes: Sequence[Node], topic: str, seed: int, *, batch: int = 20) -> None:
        self.account = Arrivals(Messages(wall_ms()))
        self.nodes, self.topic = nodes, topic
        self.accepted_ms: list[int] = []
        """When requests were answered with success."""
        self._tags = count()
        chance = random.Random(seed)

        def seed_of_one() -> int:
            return chance.randrange(1_000)

        self.readers = [
            Reader(self, seed_of_one(), f"{topic}-once", qos=2),
            Reader(self, seed_of_one(), f"{topic}-least", qos=1),
            Reader(self, seed_of_one(), f"{topic}-w1", qos=1, group=f"{topic}-team"),
            Reader(self, seed_of_one(), f"{topic}-w2", qos=2, group=f"{topic}-team"),
        ]
        self.writers: list[Client] = [
            Poster(self, seed_of_one()),
            Poster(self, seed_of_one(), batch=batch, pace_s=0.4),
            Canceller(self, seed_of_one()),
            Publisher(self, seed_of_one(), f"{topic}-publisher"),
        ]

    def __enter__(self) -> "Load":
        """Readers first: what is scheduled counts for them from there on."""
        try:
            for reader in self.readers:
                reader.start()
            for reader in self.readers:
                assert reader.subscribed.wait(20), (
                    f"{reader.name}: {reader.reasons} {self.account.book.faults}"
                )
            for writer in self.writers:
                writer.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        for client in (*self.writers, *self.readers):
            client.is_over.set()
        for client in (*self.writers, *self.readers):
            client.end()

    # -- what the clients note

    def ask(self, kind: str, due_ms: int, level: str) -> Message:
        """`kind`: of whoever asks for it."""
        return self.account.messages.ask(f"{kind}-{next(self._tags)}", f"{self.topic}/{level}", due_ms)

    def accepted(self, message: Message, name: str) -> None:
        self.account.messages.accepted(message, name)
        self.accepted_ms.append(wall_ms())

    def fault(self, kind: str, what: str) -> None:
        self.account.book.fault(1, kind, what)

    def counted(self) -> str:
        """What there was to check, how many faults of each kind, and how long nothing was answered."""
        gap_ms = max((b - a for a, b in pairwise(self.accepted_ms)), default=0)
        return f"{self.account.summary()}; {self.account.counted()}; no answer for {gap_ms / 1_000:.1f} s"

    # -- what a test waits for

    def acked(self, more: int, limit_s: float = 20) -> None:
        """Until so many more requests were answered with success."""
        wanted = len(self.accepted_ms) + more
        what = f"no {more} answers: {self.account.book.faults}"
        _wait(lambda: len(self.accepted_ms) >= wanted, what, limit_s)

    def drain(self, limit_s: float = 25) -> None:
        """No more is written; wait for what has to come, `limit_s` after the last that did."""
        for writer in self.writers:
            writer.end()
        until, least = time.monotonic() + limit_s, math.inf
        while (missing := self._missing()) and time.monotonic() < until:
            if missing < least:
                until, least = time.monotonic() + limit_s, missing
            time.sleep(0.2)
        time.sleep(0.3)  # what comes once too often comes now

    def _missing(self) -> int:
        return sum(len(self.account.missing(inbox)) for inbox in self.account.inboxes.values())


def _wait(is_so: Callable[[], bool], what: str, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.05)
