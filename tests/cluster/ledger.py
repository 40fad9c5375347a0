"""Clients of several nodes, what they know of each message, and the account in the end.

    Poster      HTTP: singles and batches with idempotency keys, each tried until it is answered
    Canceller   HTTP: takes back what was answered, at any distance from its due
    Publisher   MQTT: scheduled publishes at QoS 2, which paho goes on with over connections
    Reader      MQTT: a session, or a member of a group, that goes to the next node when one is gone

Each is a thread of its own. All go from node to node by what they are told: HTTP by 307, MQTT by the server
reference; where nothing is said, to the next one.

What has to be in the end, for each session:

    lost        what was answered with success, and was not cancelled, came                  0
    early       nothing came before its due, by the wall clock that all share                0
    cancelled   what was cancelled with 204 never came                                       0
    doubled     at QoS 2 nothing came twice, whoever tried again how often                   0
"""

import http.client
import json
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from server.settings.times import format_ms
from tests.support.cluster import Node
from tests.support.http import NDJSON
from tests.support.mqtt import wall_ms

ANSWER_S = 2.0
PAUSE_S = 0.05
KEEP_ALIVE_S = 2
TURN_S = 0.03
UNDER_WAY = 50
EXPIRY_S = 600
PACE_S = 0.03
ELSEWHERE, STEPPED_DOWN = 0x9C, 0x9D
NOT_FOUND = 0x92
"""To a PUBREL that comes once more, or after a PUBREC that refused: paho does not tell the two apart."""
DUES_MS = (0, 50, 500, 1_000, 2_000)
UNANSWERED = (OSError, http.client.HTTPException)


@dataclass(slots=True)
class Letter:
    """One message, by its payload."""

    tag: str
    due_ms: int
    id: str = ""
    is_acked: bool = False
    is_cancel_asked: bool = False
    is_cancelled: bool = False


@dataclass(slots=True)
class Arrival:
    tag: str
    at_ms: int
    node: tuple[str, int]
    """Where the connection went to."""
    id: str = ""


@dataclass
class Inbox:
    """What came to a session, or to all members of a group."""

    name: str
    qos: int
    arrivals: list[Arrival] = field(default_factory=list)


class Ledger:
    """Of all clients. Appending to lists and setting members needs no lock."""

    def __init__(self, topic: str = "load") -> None:
        self.topic = topic
        self.letters: dict[str, Letter] = {}
        self.inboxes: dict[str, Inbox] = {}
        self.acks_ms: list[int] = []
        """When requests were answered with success."""
        self.faults: list[str] = []
        self._tags = count()

    def letter(self, due_ms: int, kind: str = "load") -> Letter:
        """`kind`: of whoever asks for it."""
        letter = Letter(f"{kind}-{next(self._tags)}", due_ms)
        self.letters[letter.tag] = letter
        return letter

    def acked(self, letter: Letter, name: str) -> None:
        letter.id, letter.is_acked = name, True
        self.acks_ms.append(wall_ms())

    @property
    def certain(self) -> list[Letter]:
        """What has to come."""
        return [one for one in list(self.letters.values()) if one.is_acked and not one.is_cancel_asked]

    def missing(self) -> list[str]:
        found = []
        for inbox in self.inboxes.values():
            got = {arrival.tag for arrival in list(inbox.arrivals)}
            found += [f"lost: {inbox.name} did not get {one}" for one in self.certain if one.tag not in got]
        return found

    def check(self) -> list[str]:
        """All faults, each beginning with its kind."""
        found = self.faults + self.missing()
        for inbox in self.inboxes.values():
            for arrival in inbox.arrivals:
                letter = self.letters.get(arrival.tag)
                if letter is None:
                    found.append(f"strange: {inbox.name} got {arrival.tag!r}")
                elif letter.is_cancelled:
                    found.append(f"cancelled: {inbox.name} got {letter}")
                elif arrival.at_ms < letter.due_ms:
                    found.append(f"early: {inbox.name} got {letter}, {letter.due_ms - arrival.at_ms} ms")
            if inbox.qos == 2:
                times = Counter(arrival.tag for arrival in inbox.arrivals)
                doubled = [one for one in inbox.arrivals if times[one.tag] > 1]
                found += [f"doubled: {inbox.name} got {one}" for one in doubled]
        return found

    def counted(self) -> str:
        """What there was to check, and how many faults of each kind."""
        letters, kinds = self.letters.values(), Counter(fault.split(":")[0] for fault in self.check())
        came = ", ".join(f"{one.name} {len(one.arrivals)}" for one in self.inboxes.values())
        return (
            f"{len(letters)} asked for, {sum(one.is_acked for one in letters)} acked, "
            f"{sum(one.is_cancelled for one in letters)} cancelled; came: {came}; no ack for "
            f"{self.gap_ms() / 1000:.1f} s; "
            + ", ".join(f"{kind} {kinds[kind]}" for kind in ("lost", "early", "cancelled", "doubled"))
        )

    def gap_ms(self) -> int:
        """The longest time in which nothing was answered."""
        return max((b - a for a, b in pairwise(self.acks_ms)), default=0)


class Client:
    """A thread that does one thing until it is told to end; what it raises is a fault."""

    def __init__(self, ledger: Ledger, nodes: Sequence[Node], seed: int) -> None:
        self.ledger, self.nodes = ledger, nodes
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
            self.ledger.faults.append(f"client: {self} ended with {error!r}")

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


class Poster(Client):
    """`batch`: messages of a request, 1 for singles; `pace_s`: pause after each."""

    def __init__(
        self, ledger: Ledger, nodes: Sequence[Node], seed: int, *, batch: int = 1, pace_s: float = PACE_S
    ) -> None:
        super().__init__(ledger, nodes, seed)
        self.batch, self.pace_s = batch, pace_s
        self.has_batch_keys = True
        """Whether the nodes take one key for a batch."""
        self._calls = Calls([node.http for node in nodes], seed)

    def turn(self) -> None:
        kind = "batch" if self.batch > 1 else "single"
        letters = [self.ledger.letter(self.soon_ms(), kind) for _ in range(self.batch)]
        items: list[dict[str, object]] = [
            {
                "topic": f"{self.ledger.topic}/{self.chance.randrange(20)}",
                "payload": letter.tag,
                "qos": 2,
                "deliver_at": format_ms(letter.due_ms),
            }
            for letter in letters
        ]
        self._post(letters, items)
        self.is_over.wait(self.pace_s)

    def end(self) -> None:
        super().end()
        self._calls.close()

    def _post(self, letters: list[Letter], items: list[dict[str, object]]) -> None:
        """The same request, until it is answered."""
        is_whole = self.has_batch_keys and self.chance.random() < 0.5
        while not self.is_over.is_set():
            try:
                status, body = self._ask(letters, items, is_whole=is_whole)
            except UNANSWERED:
                status, body = 503, {}
            if status in (200, 201):
                ids = body["ids"] if self.batch > 1 else [body["id"]]
                for letter, name in zip(letters, ids, strict=True):
                    self.ledger.acked(letter, name)
                return
            if status not in (307, 429, 503):
                self.ledger.faults.append(f"refused: {status} {body}")
                return
            if status != 307:
                self.is_over.wait(PAUSE_S)

    def _key(self, letter: Letter) -> str:
        return f"{self.ledger.topic}-{letter.tag}"

    def _ask(
        self, letters: list[Letter], items: list[dict[str, object]], *, is_whole: bool
    ) -> tuple[int, dict[str, Any]]:
        """`is_whole`: a batch has one key, in place of one for each item."""
        if self.batch == 1:
            return self._calls.ask(
                "POST",
                "/v1/messages",
                json.dumps(items[0]).encode(),
                Content_Type="application/json",
                Idempotency_Key=self._key(letters[0]),
            )
        if is_whole:
            lines = [json.dumps(item).encode() for item in items]
            return self._calls.ask(
                "POST",
                "/v1/messages:batch",
                b"\n".join(lines),
                Content_Type=NDJSON,
                Idempotency_Key=self._key(letters[0]),
            )
        lines = [
            json.dumps({**item, "key": self._key(one)}).encode()
            for item, one in zip(items, letters, strict=True)
        ]
        return self._calls.ask("POST", "/v1/messages:batch", b"\n".join(lines), Content_Type=NDJSON)


class Canceller(Client):
    """Takes back one of the messages that were answered, again and again."""

    def __init__(self, ledger: Ledger, nodes: Sequence[Node], seed: int, pace_s: float = 0.05) -> None:
        super().__init__(ledger, nodes, seed)
        self._pace_s = pace_s
        self._calls = Calls([node.http for node in nodes], seed)

    def turn(self) -> None:
        self.is_over.wait(self._pace_s)
        last = list(self.ledger.letters.values())[-400:]
        open_ones = [one for one in last if one.id and not one.is_cancel_asked]
        if not open_ones:
            return
        letter = self.chance.choice(open_ones)
        letter.is_cancel_asked = True
        while not self.is_over.is_set():
            status = self._cancelled(letter)
            if status == 204:
                letter.is_cancelled = True
                return
            if status == 409:
                letter.is_cancel_asked = False
                return
            if status not in (307, 429, 503):
                self.ledger.faults.append(f"refused: {status} to cancel {letter}")
                return
            if status != 307:
                self.is_over.wait(PAUSE_S)

    def end(self) -> None:
        super().end()
        self._calls.close()

    def _cancelled(self, letter: Letter) -> int:
        try:
            return self._calls.ask("DELETE", f"/v1/messages/{letter.id}")[0]
        except UNANSWERED:
            return 503


class Session(Client):
    """paho in a thread, a connection after the other. `reasons`: with what they ended, in order."""

    def __init__(self, ledger: Ledger, nodes: Sequence[Node], seed: int, name: str) -> None:
        super().__init__(ledger, nodes, seed)
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

    def wait_connected(self, limit_s: float = 20) -> None:
        assert self.connected.wait(limit_s), f"{self.name}: {self.reasons}"

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

    def __init__(
        self, ledger: Ledger, nodes: Sequence[Node], seed: int, name: str, *, qos: int, group: str = ""
    ) -> None:
        super().__init__(ledger, nodes, seed, name)
        self._filter = f"$share/{group}/{ledger.topic}/#" if group else f"{ledger.topic}/#"
        self.qos = qos
        # What a member has not acked when its connection ends may come to another one.
        self.inbox = ledger.inboxes.setdefault(group or name, Inbox(group or name, 1 if group else qos))
        self.subscribed = threading.Event()
        self.paho.on_message = self._on_message
        self.paho.on_subscribe = lambda *_: self.subscribed.set()

    def started(self) -> None:
        self.paho.subscribe(self._filter, options=SubscribeOptions(self.qos))

    def _on_message(self, _client: Any, _user: Any, message: Any) -> None:
        users = dict(message.properties.UserProperty)
        arrival = Arrival(message.payload.decode(), wall_ms(), self.where, users["fasti-id"])
        self.inbox.arrivals.append(arrival)


class Publisher(Session):
    """Schedules at QoS 2; what has no answer yet paho sends again on the next connection."""

    def __init__(self, ledger: Ledger, nodes: Sequence[Node], seed: int, name: str) -> None:
        super().__init__(ledger, nodes, seed, name)
        self._under_way: dict[int, Letter] = {}
        self._next_s = 0.0
        self.paho.on_publish = self._on_publish

    def step(self) -> None:
        if self.connected.is_set() and len(self._under_way) < UNDER_WAY and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PACE_S
            letter = self.ledger.letter(self.soon_ms(), "qos2")
            asked = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            asked.UserProperty = [("deliver-at", format_ms(letter.due_ms))]
            info = self.paho.publish(f"{self.ledger.topic}/qos2", letter.tag, 2, properties=asked)
            self._under_way[info.mid] = letter

    def _on_publish(self, _client: Any, _user: Any, mid: int, reason: Any, _properties: Any) -> None:
        letter = self._under_way.pop(mid)
        if not reason.is_failure:
            letter.is_acked = True
            self.ledger.acks_ms.append(wall_ms())
        elif reason.value != NOT_FOUND:
            self.ledger.faults.append(f"refused: {reason} for {letter}")


class Load:
    """All clients on these nodes: begun together, ended together."""

    def __init__(self, nodes: Sequence[Node], topic: str, seed: int, *, batch: int = 20) -> None:
        self.ledger = Ledger(topic)
        chance = random.Random(seed)

        def seed_of_one() -> int:
            return chance.randrange(1_000)

        ledger = self.ledger
        self.readers = [
            Reader(ledger, nodes, seed_of_one(), f"{topic}-once", qos=2),
            Reader(ledger, nodes, seed_of_one(), f"{topic}-least", qos=1),
            Reader(ledger, nodes, seed_of_one(), f"{topic}-w1", qos=1, group=f"{topic}-team"),
            Reader(ledger, nodes, seed_of_one(), f"{topic}-w2", qos=2, group=f"{topic}-team"),
        ]
        self.writers: list[Client] = [
            Poster(ledger, nodes, seed_of_one()),
            Poster(ledger, nodes, seed_of_one(), batch=batch, pace_s=0.4),
            Canceller(ledger, nodes, seed_of_one()),
            Publisher(ledger, nodes, seed_of_one(), f"{topic}-publisher"),
        ]

    def __enter__(self) -> "Load":
        """Readers first: what is scheduled counts for them from there on."""
        try:
            for reader in self.readers:
                reader.start()
            for reader in self.readers:
                assert reader.subscribed.wait(20), f"{reader.name}: {reader.reasons} {self.ledger.faults}"
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

    def acked(self, more: int, limit_s: float = 20) -> None:
        """Wait until so many more requests were answered with success."""
        wanted = len(self.ledger.acks_ms) + more
        _wait(lambda: len(self.ledger.acks_ms) >= wanted, f"no {more} acks: {self.ledger.faults}", limit_s)

    def drain(self, limit_s: float = 25) -> None:
        """No more is written; wait for what has to come, `limit_s` after the last that did."""
        for writer in self.writers:
            writer.end()
        until, least = time.monotonic() + limit_s, math.inf
        while (missing := len(self.ledger.missing())) and time.monotonic() < until:
            if missing < least:
                until, least = time.monotonic() + limit_s, missing
            time.sleep(0.2)
        time.sleep(0.3)  # what comes once too often comes now


def _wait(is_so: Callable[[], bool], what: str, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.05)
