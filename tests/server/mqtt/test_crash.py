"""Every step of both directions of QoS 2, and of SUBSCRIBE, with a break after it: a lost connection, a
takeover, a kill that leaves nothing, one or two of the batches that were not synced. Exactly once each.
"""

from collections.abc import Callable

import pytest

from server.codec.packets import Unsuback, Unsubscribe
from server.delivery.subscriber import Subscriber
from tests.support.client import Client, finish
from tests.support.rig import Peer, Rig, about

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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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
        is_at_rest = not all(_step(rig, clients) for _ in range(step))
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
        if is_at_rest:
            break


@pytest.mark.long
@pytest.mark.parametrize("how", BREAKS)
def test_unsubscribing(how: str) -> None:
    """Once UNSUBACK has come nothing more does; before it, all or nothing."""
    for step in range(12):
        publisher, reader = Client("p"), Client("s", {"t": 2})
        rig = _settled(publisher, reader)
        assert reader.peer is not None
        reader.filters = {}
        reader.peer.send(Unsubscribe(1, ("t",)), pump=False)
        is_at_rest = not rig.take_steps(step)
        was_done = any(isinstance(packet, Unsuback) for packet in reader.peer.inbox)
        _break(rig, [publisher, reader], how)
        publisher.publish("t", "x", 2)
        finish(rig, [publisher, reader])
        assert len(reader.got) <= (not was_done), step
        if is_at_rest:
            break


@pytest.mark.long
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


def _dups(peer: Peer) -> dict[str, tuple[int, bool]]:
    return {packet.payload.decode(): (packet.qos, packet.dup) for packet in peer.publishes()}


def _sent_and_killed(topic_filter: str, qos: int) -> Rig:
    """Deliveries that no cursor knows of, then a kill."""
    rig = Rig()
    peer = rig.lasting("s").subscribed(topic_filter, qos=qos)
    rig.lasting("away").subscribe("t", qos=qos)
    rig.lasting("away").drop()
    publisher = rig.connected("p")
    rig.pass_ms(1_000)
    for number in range(3):
        publisher.publish1("t", str(number))
    publisher.publish1("$delayed/1/t", "due later")
    assert len(peer.publishes()) == 3
    rig.pass_ms(10)
    rig.crash(pump=True)
    return rig


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_what_was_perhaps_sent_before_a_kill_is_sent_as_a_duplicate(topic_filter: str) -> None:
    rig = _sent_and_killed(topic_filter, 1)
    rig.connected("p").publish1("t", "new")
    found = {name: dup for name, (_, dup) in _dups(rig.lasting("s")).items()}
    assert found == {"0": True, "1": True, "2": True, "new": False}
    rig.pass_ms(3_000)
    peer = next(peer for peer in rig.peers if peer.connection.client_id == "s")
    assert _dups(peer) == {"due later": (1, True)}, "it was due before the bound"
    rig.connected("q").publish1("t", "live")
    assert _dups(peer) == {"live": (1, False)}
    assert bool(rig.session("s").doubt) == (topic_filter != "t")
    # Who was not there has had nothing.
    assert not any(dup for _, dup in _dups(rig.lasting("away")).values())


def test_what_is_read_again_carries_no_attempt() -> None:
    """It is not known to be the second one."""
    rig = _sent_and_killed("t", 1)
    peer = rig.lasting("s")
    rig.pass_ms(3_000)
    (packet,) = [packet for packet in peer.publishes() if packet.payload == b"due later"]
    names = [name for name, _ in about(packet).user_properties]
    assert "fasti-due" in names
    assert "fasti-attempt" not in names


@pytest.mark.parametrize("qos", [0, 2])
def test_qos_0_and_2_are_no_duplicates(rig: Rig, qos: int) -> None:
    rig.lasting("s").subscribe("t")
    rig.connected("p").publish("$delayed/1/t", "x", qos)
    rig.pass_ms(10)
    rig.crash(pump=True)
    peer = rig.lasting("s")
    rig.pass_ms(1_500)
    assert _dups(peer) == {"x": (qos, False)}
    assert rig.session("s").doubt


def test_a_doubt_outlives_a_second_kill() -> None:
    rig = _sent_and_killed("t", 1)
    rig.pass_ms(3_000)
    rig.crash(pump=True)
    found = _dups(rig.lasting("s"))
    assert {name for name, (_, dup) in found.items() if dup} == {"0", "1", "2", "due later"}


def test_who_had_left_before_the_kill_is_sent_no_duplicates(rig: Rig) -> None:
    rig.lasting("s").subscribe("t", qos=1)
    rig.lasting("s").disconnect()
    rig.connected("p").publish1("t", "while away")
    rig.crash(pump=True)
    assert _dups(rig.lasting("s")) == {"while away": (1, False)}


def _session(rig: Rig, client_id: str) -> Subscriber:
    return rig.session(client_id)
