"""Every step of both directions of QoS 2, and of SUBSCRIBE, with a break after it: a lost connection, a
takeover, a kill that leaves nothing, one or two of the batches that were not synced. Exactly once each.
"""

from collections.abc import Callable

import pytest

from server.mqtt.packets import Unsuback, Unsubscribe
from tests.mqtt.client import Client, finish
from tests.mqtt.rig import Rig

STEPS_MAX = 150
BREAKS = ["drop", "takeover", "restart", "crash 0", "crash 1", "crash 2"]


def _step(rig: Rig, clients: list[Client]) -> bool:
    """One thing: the server's next, or, when it waits, the next packet that a client looks at."""
    return rig.micro() or any(client.react() for client in clients)


def _break(rig: Rig, clients: list[Client], how: str) -> None:
    if how.startswith("crash"):
        rig.crash(int(how[-1]))
    elif how == "restart":
        rig.restart()
    else:
        for client in clients:
            if how == "drop":
                client.drop()
            client.connect(rig)


def _run(
    begin: Callable[[], tuple[Rig, list[Client]]], how: str, check: Callable[[list[Client]], None]
) -> int:
    """With the break after each step in turn; how many steps there are."""
    for step in range(STEPS_MAX):
        rig, clients = begin()
        ended = False
        for _ in range(step):
            ended = not _step(rig, clients)
        _break(rig, clients, how)
        finish(rig, clients)
        check(clients)
        if ended:
            return step
    raise AssertionError("more steps than were thought of")


def _settled(*clients: Client) -> Rig:
    rig = Rig()
    finish(rig, list(clients))
    return rig


@pytest.mark.parametrize("how", BREAKS)
def test_qos_2_both_ways(how: str) -> None:
    def begin() -> tuple[Rig, list[Client]]:
        publisher, reader = Client("p"), Client("s", {"t": 2}, window=1)
        rig = _settled(publisher, reader)
        publisher.publish("t", "one", 2)
        publisher.publish("t", "two", 2)
        return rig, [publisher, reader]

    def check(clients: list[Client]) -> None:
        assert clients[1].got == ["one", "two"]
        assert sorted(clients[0].acked) == ["one", "two"]

    assert _run(begin, how, check) > 15


@pytest.mark.parametrize("how", BREAKS)
def test_mixed_qos(how: str) -> None:
    def begin() -> tuple[Rig, list[Client]]:
        publisher, reader = Client("p"), Client("s", {"t/#": 2})
        rig = _settled(publisher, reader)
        for number in range(4):
            publisher.publish("t", str(number), 1 + number % 2)
        return rig, [publisher, reader]

    def check(clients: list[Client]) -> None:
        got = clients[1].got
        assert [payload for payload in got if payload in "13"] == ["1", "3"]
        assert list(dict.fromkeys(got)) == ["0", "1", "2", "3"]

    _run(begin, how, check)


@pytest.mark.parametrize("how", BREAKS)
def test_subscribing(how: str) -> None:
    """Once SUBACK has come nothing is missed, and subscribing again after the break replays nothing."""

    def begin() -> tuple[Rig, list[Client]]:
        publisher, reader = Client("p"), Client("s", {"t": 2})
        rig = _settled(publisher)
        reader.connect(rig)
        return rig, [publisher, reader]

    for step in range(40):
        rig, clients = begin()
        publisher, reader = clients
        for _ in range(step):
            _step(rig, clients)
        was_ready = reader.is_ready
        publisher.publish("t", "between", 2)
        _break(rig, clients, how)
        finish(rig, clients)
        assert reader.got in (["between"], []), step
        if was_ready:
            assert reader.got == ["between"], step
        publisher.publish("t", "after", 2)
        finish(rig, clients)
        assert reader.got[-1:] == ["after"]


@pytest.mark.parametrize("how", BREAKS)
def test_unsubscribing(how: str) -> None:
    """Once UNSUBACK has come nothing more does; before it, all or nothing."""
    for step in range(12):
        publisher, reader = Client("p"), Client("s", {"t": 2})
        rig = _settled(publisher, reader)
        assert reader.peer is not None
        reader.filters = {}
        reader.peer.send(Unsubscribe(1, ("t",)), pump=False)
        for _ in range(step):
            rig.micro()
        was_done = any(isinstance(packet, Unsuback) for packet in reader.peer.inbox)
        _break(rig, [publisher, reader], how)
        publisher.publish("t", "x", 2)
        finish(rig, [publisher, reader])
        assert len(reader.got) <= (not was_done), step


@pytest.mark.parametrize("how", BREAKS)
def test_a_shared_subscription(how: str) -> None:
    """QoS 2: once for the group. QoS 1: at least once."""

    def begin() -> tuple[Rig, list[Client]]:
        publisher = Client("p")
        members = [Client(name, {"$share/g/t": 2}, window=2) for name in "ab"]
        rig = _settled(publisher, *members)
        for number in range(4):
            publisher.publish("t", str(number), 1 + number % 2)
        return rig, [publisher, *members]

    def check(clients: list[Client]) -> None:
        got = clients[1].got + clients[2].got
        assert sorted(payload for payload in got if payload in "13") == ["1", "3"]
        assert set(got) == set("0123")

    _run(begin, how, check)
