"""paho-mqtt 2, 3.1.1 and 5: its own threads, its own state machine, its own idea of the protocol.

On it stands aiomqtt, on that the SDK: tests/sdk.
"""

import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.server import ServerProcess

mqtt = pytest.importorskip("paho.mqtt.client")
from paho.mqtt.packettypes import PacketTypes  # noqa: E402
from paho.mqtt.properties import Properties  # noqa: E402
from paho.mqtt.subscribeoptions import SubscribeOptions  # noqa: E402

WAIT_S = 60.0


class Client:
    """paho with queues instead of callbacks. Its version 2 callback interface."""

    def __init__(self, server: ServerProcess, level: int, client_id: str = "", **options: Any) -> None:
        self.level = level
        self.connected: queue.Queue[Any] = queue.Queue()
        self.ended: queue.Queue[Any] = queue.Queue()
        self.messages: queue.Queue[Any] = queue.Queue()
        self.subscribed: queue.Queue[Any] = queue.Queue()
        self.published: queue.Queue[Any] = queue.Queue()
        if level == 4:
            options.setdefault("clean_session", True)
        self.paho = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id,
            protocol=mqtt.MQTTv5 if level == 5 else mqtt.MQTTv311,
            reconnect_on_failure=False,
            **options,
        )
        self.paho.on_connect = lambda _c, _u, flags, reason, properties: self.connected.put(
            (flags.session_present, reason, properties)
        )
        self.paho.on_disconnect = lambda _c, _u, _flags, reason, _properties: self.ended.put(reason)
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message)
        self.paho.on_subscribe = lambda _c, _u, _mid, reasons, _properties: self.subscribed.put(reasons)
        self.paho.on_publish = lambda _c, _u, mid, reason, properties: self.published.put(
            (mid, reason, properties)
        )
        self._server = server

    def start(self, *, expiry: int = 0, clean: bool = True, receive_maximum: int = 0) -> bool:
        """Connect; whether the session was there."""
        extra: dict[str, Any] = {}
        if self.level == 5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            if expiry:
                properties.SessionExpiryInterval = expiry
            if receive_maximum:
                properties.ReceiveMaximum = receive_maximum
            extra = {"clean_start": clean, "properties": properties}
        self.paho.connect(*self._server.mqtt, **extra)
        self.paho.loop_start()
        present, reason, _ = self.connected.get(timeout=WAIT_S)
        assert not reason.is_failure, reason
        return bool(present)

    def subscribe(self, topic_filter: str, qos: int = 1) -> list[int]:
        options = {"options": SubscribeOptions(qos)} if self.level == 5 else {"qos": qos}
        self.paho.subscribe(topic_filter, **options)
        return [reason.value for reason in self.subscribed.get(timeout=WAIT_S)]

    def publish(self, topic: str, payload: str, qos: int = 1, **users: str) -> Any:
        """Wait for its end; (message id, reason, properties)."""
        properties = None
        if users:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.UserProperty = [(name.replace("_", "-"), text) for name, text in users.items()]
        self.paho.publish(topic, payload, qos, properties=properties)
        return self.published.get(timeout=WAIT_S)

    def take(self, count: int) -> list[Any]:
        return [self.messages.get(timeout=WAIT_S) for _ in range(count)]

    def stop(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@pytest.fixture
def clients(server: ServerProcess) -> Iterator[Any]:
    made: list[Client] = []

    def make(level: int, client_id: str = "", **options: Any) -> Client:
        made.append(Client(server, level, client_id, **options))
        return made[-1]

    yield make
    for client in made:
        client.stop()


def lasting(level: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(constructor options, start options) of a persistent session."""
    return ({}, {"expiry": 600, "clean": False}) if level == 5 else ({"clean_session": False}, {})


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_both_ways(clients: Any, name: str, level: int, qos: int) -> None:
    client = clients(level)
    assert client.start() is False
    assert client.subscribe(f"{name}/#", qos) == [qos]
    for index in range(20):
        _, reason, _ = client.publish(f"{name}/{index % 3}", str(index), qos)
        assert not reason.is_failure
    got = client.take(20)
    assert [message.payload.decode() for message in got] == [str(index) for index in range(20)]
    assert {message.qos for message in got} == {qos}
    assert not any(message.retain or message.dup for message in got)


def test_away_and_back(clients: Any, name: str, level: int) -> None:
    made, started = lasting(level)
    first = clients(level, name, **made)
    assert first.start(**started) is False
    first.subscribe(f"{name}/#")
    first.stop()
    writer = clients(level)
    writer.start()
    for index in range(120):
        writer.publish(f"{name}/{index % 4}", str(index))
    back = clients(level, name, **made)
    assert back.start(**started) is True
    assert [message.payload.decode() for message in back.take(120)] == [str(index) for index in range(120)]
    back.stop()
    clean = clients(level, name)
    assert clean.start() is False
    with pytest.raises(queue.Empty):
        clean.messages.get(timeout=0.2)


def test_unsubscribe(clients: Any, name: str, level: int) -> None:
    client = clients(level)
    client.start()
    for topic in ("a", "b"):
        client.subscribe(f"{name}/{topic}")
    client.paho.unsubscribe(f"{name}/a")
    for topic in ("a", "b"):
        client.publish(f"{name}/{topic}", topic)
    assert [message.payload for message in client.take(1)] == [b"b"]


def test_delayed(clients: Any, name: str, level: int) -> None:
    client = clients(level)
    client.start()
    client.subscribe(name)
    started = time.time()
    _, reason, properties = client.publish(f"$delayed/1/{name}", "late")
    assert not reason.is_failure
    (message,) = client.take(1)
    # The server's clock shows whole ms: a publish counts from the ms in which it came.
    assert time.time() - int(started * 1000) / 1000 >= 1.0
    assert (message.topic, message.payload) == (name, b"late")
    if level == 5:
        told, had = dict(properties.UserProperty), dict(message.properties.UserProperty)
        assert told["fasti-id"] == had["fasti-id"]
        assert had["fasti-due"].endswith("Z")


def test_deliver_in_and_own_properties(clients: Any, name: str) -> None:
    client = clients(5)
    client.start()
    client.subscribe(name)
    client.publish(name, "x", deliver_in="500ms", colour="blue")
    (message,) = client.take(1)
    users = dict(message.properties.UserProperty)
    assert users["colour"] == "blue"
    assert "deliver-in" not in users


def test_receive_maximum(clients: Any, name: str) -> None:
    """A client that acks by hand never has more than it asked for."""
    client = clients(5, name, manual_ack=True)
    client.start(expiry=600, clean=False, receive_maximum=3)
    client.subscribe(name)
    writer = clients(5)
    writer.start()
    for index in range(10):
        writer.publish(name, str(index))
    got: list[Any] = []
    while len(got) < 10:
        flight = client.take(min(3, 10 - len(got)))
        with pytest.raises(queue.Empty):
            client.messages.get(timeout=0.05)
        got += flight
        for message in flight:
            client.paho.ack(message.mid, message.qos)
    assert [message.payload.decode() for message in got] == [str(index) for index in range(10)]


def test_takeover(clients: Any, name: str, level: int) -> None:
    made, started = lasting(level)
    old = clients(level, name, **made)
    old.start(**started)
    new = clients(level, name, **made)
    assert new.start(**started) is True
    reason = old.ended.get(timeout=WAIT_S)
    assert reason.is_failure
    if level == 5:
        assert reason.value == 0x8E


def test_a_refused_publish(clients: Any, name: str, level: int) -> None:
    client = clients(level)
    client.start()
    if level == 5:
        _, reason, _ = client.publish(f"$delayed/x/{name}", "x")
        assert reason.value == 0x90
        client.publish(name, "goes on")
    else:
        client.paho.publish(f"$delayed/x/{name}", "x", 1)
        assert client.ended.get(timeout=WAIT_S).is_failure


def test_retained(clients: Any, name: str, level: int) -> None:
    client = clients(level)
    client.start()
    client.paho.publish(name, "kept", 1, retain=True)
    client.published.get(timeout=WAIT_S)
    reader = clients(level)
    reader.start()
    reader.subscribe(name)
    (message,) = reader.take(1)
    assert (message.retain, message.payload) == (True, b"kept")
    client.paho.publish(name, None, 1, retain=True)
    client.published.get(timeout=WAIT_S)
    assert not reader.take(1)[0].retain


def test_many_at_once(clients: Any, name: str, level: int) -> None:
    """As fast as it can, both levels, three subscribers with different filters."""
    readers = [clients(level) for _ in range(3)]
    for reader, pattern in zip(readers, ("{}/#", "{}/+", "{}/1"), strict=True):
        reader.start()
        reader.subscribe(pattern.format(name))
    writer = clients(level)
    writer.start()
    for index in range(1_500):
        writer.paho.publish(f"{name}/{index % 2}", str(index), 1)
    for reader, step in zip(readers, (1, 1, 2), strict=True):
        want = [str(index) for index in range(step - 1, 1_500, step)]
        assert [message.payload.decode() for message in reader.take(len(want))] == want
