"""What fails for one session, schedule or callback ends that one; what only the core does ends the server."""

import asyncio

import pytest

from server.delivery.link import Closing
from server.delivery.message import Message
from server.rounds.app import App
from shards.commit import Commit, Refused
from shards.errors import Corrupt
from shards.store import Table
from tests.server.conftest import Running
from tests.support.build import OPENED
from tests.support.link import FakeLink
from tests.support.served import until

MINUTE_MS = 60_000


def _fails(message: Message, qos: int, packet_id: int, attempt: int) -> None:
    """Nothing can be sent to it."""
    raise ZeroDivisionError("a fault of ours")


async def connected(server: Running, client_id: str, link: FakeLink) -> FakeLink:
    subscriber, _ = await server.connect(client_id, "a/#")
    subscriber.link = link
    return link


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_session_to_which_nothing_can_be_sent(server: Running, is_behind: bool) -> None:
    """It loses its connection, whether it tails or reads on; the others get the message."""
    _, before = await server.connect("1-before", "a/#")
    broken = await connected(server, "2-broken", FakeLink(_fails))
    _, after = await server.connect("3-after", "a/#")
    if is_behind:
        for name in ("1-before", "2-broken", "3-after"):
            subscriber = server.app.core.sessions.get(name)
            assert subscriber is not None
            subscriber.session.fall_behind(server.app.core.horizon.position)
    await server.schedule(deliver_in=60)
    await server.pass_time(MINUTE_MS)
    for name in ("1-before", "2-broken", "3-after"):
        subscriber = server.app.core.sessions.get(name)
        assert subscriber is not None
        server.app.core.groups.read_on(subscriber)
    await server.app.quiet()
    assert (len(before.sent), len(after.sent)) == (1, 1)
    assert broken.closed[0] is Closing.FAILED
    await server.schedule()
    await server.app.quiet()
    assert (len(before.sent), len(after.sent)) == (2, 2)
    await server.call("GET", "/readyz")


async def test_a_retained_message_whose_topic_cannot_be_read(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, link = await server.connect("c", "a/#")

    def note(*_: object) -> None:
        raise Corrupt("a row")

    monkeypatch.setattr(server.app.core.retained, "note", note)
    await server.schedule(retain=True, deliver_in=60)
    await server.schedule(deliver_in=61)
    await server.pass_time(2 * MINUTE_MS)
    assert len(link.sent) == 2
    assert server.app.core.writer.broken is None


async def test_a_schedule_that_cannot_go_on(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once, and others go on; a change asks again."""
    every = {"every": "PT1M", "topic": "a/b", "payload": 1, "timezone": "UTC"}
    _, link = await server.connect("c", "a/#", window=1_000)
    for name in ("bad", "good"):
        await server.call("PUT", f"/v1/schedules/{name}", {**every, "payload": name}, status=201)
    real, asked = server.app.core.schedules._successor, []

    def successor(commit: object, name: str, row: object) -> object:
        if name == "bad":
            asked.append(name)
            raise ZeroDivisionError
        return real(commit, name, row)  # type: ignore[arg-type]

    monkeypatch.setattr(server.app.core.schedules, "_successor", successor)
    for _ in range(5):
        await server.pass_time(MINUTE_MS)
    assert (asked, [m.record.payload for m in link.sent].count(b"good")) == (["bad"], 5)
    assert server.app.core.writer.given_up <= 1
    monkeypatch.undo()
    await server.call("POST", "/v1/schedules/bad:pause")
    await server.call("POST", "/v1/schedules/bad:resume")
    await server.pass_time(MINUTE_MS)
    assert [m.record.payload for m in link.sent].count(b"bad") == 2


@OPENED
@pytest.mark.parametrize("error", [Corrupt("a row"), Refused("over-quota", "no slice")])
async def test_a_held_message_that_cannot_be_released(
    server: Running, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    _, link = await server.connect("c", "a/#")
    server.clock.now_ms -= 10 * MINUTE_MS
    ids = [await server.schedule(payload=f"{n}", deliver_in=60 + n) for n in range(3)]
    assert server.app.core.opened.waiting.held == 3
    real, asked = server.app.core.opened.commit.release, []

    def release(place: int) -> None:
        if place & (1 << 48) - 1 == int(ids[1], 16) & (1 << 48) - 1:
            asked.append(place)
            raise error
        real(place)  # type: ignore[arg-type]

    monkeypatch.setattr(server.app.core.opened.commit, "release", release)
    server.clock.now_ms += 5 * MINUTE_MS
    server.app.plan()
    await until(lambda: len(link.sent) >= 2)
    assert ([m.record.payload for m in link.sent], len(asked)) == ([b"0", b"2"], 1)
    monkeypatch.undo()


@pytest.mark.parametrize("part", ["round", pytest.param("settle", marks=OPENED)])
async def test_the_core_stops_the_server(server: Running, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """After an exception there nobody knows what has been dispatched: a start does."""
    stopped = asyncio.Event()
    app: App = server.app
    monkeypatch.setattr(app, "_fatal", stopped.set)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    if part == "round":
        monkeypatch.setattr(app.core.dispatch, "turn", broken)
        app.plan()
    else:
        monkeypatch.setattr(app.core.horizon, "close_group", broken)
        app.core.writer.submit(lambda commit: None, lambda answer: None)
    await asyncio.wait_for(stopped.wait(), 60)
    await server.call("POST", "/v1/messages", {"topic": "a", "payload": 1}, status=503)


def retained_rows(server: Running) -> set[bytes]:
    return {topic for topic, _ in server.store.scan(Table.RETAINED, b"", b"\xff")}


async def test_a_group_that_is_given_up_loses_nothing_that_is_retained(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of somebody else, between those of two retained messages, fails half way."""
    app = server.app
    for topic in ("A", "B"):
        await server.schedule(topic, retain=True, deliver_in=60)
    real, noted = app.core.retained.note, []

    def spoil(commit: Commit) -> None:
        raise ZeroDivisionError

    def note(message: Message) -> None:
        real(message)
        noted.append(message)
        if len(noted) == 1:
            app.core.writer.submit(spoil, lambda answer: None)

    monkeypatch.setattr(app.core.retained, "note", note)
    await server.pass_time(61_000)
    await app.ask(lambda commit: None)
    assert app.core.writer.given_up == 1
    assert retained_rows(server) == {b"A", b"B"}
    assert not app.core.retained._fresh
    assert app.core.retained.count == 2


async def test_what_is_retained_while_the_store_fails_is_written_when_it_is_back(server: Running) -> None:
    app = server.app
    for n in range(5):
        await server.schedule(f"t/{n}", retain=True, deliver_in=60)
    server.store.is_failing = True
    await server.call("POST", "/v1/messages", {"topic": "z", "payload": 1}, status=503)
    server.clock.now_ms += 61_000
    app.plan()
    async with asyncio.timeout(30):
        while len(app.core.retained._fresh) < 5:
            await asyncio.sleep(0.01)
        server.store.is_failing = False
        while app.core.writer.broken is not None:
            app.plan()
            await asyncio.sleep(0.01)
    await app.ask(lambda commit: None)
    assert len(retained_rows(server)) == app.core.retained.count == 5
    assert not app.core.retained._fresh
