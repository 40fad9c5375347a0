"""Several addresses: redirects and references followed, others tried in turn, and whom the key goes to."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Self

import pytest
from aiohttp import web

import fasti
from fasti import sync
from fasti.addresses import Broker, Brokers, Plain, Servers, addresses, broker
from tests.sdk.conftest import QUICK
from tests.sdk.fake import Fake
from tests.sdk.scripted import CONNACK, DISCONNECT, PUBREC, Act, Peer, Script, giving, rest, saying
from tests.sdk.test_cli import fasti_cli, ok
from tests.support.ports import free_port

Answer = Callable[[web.Request], web.StreamResponse]
STATE = {
    "name": "fasti",
    "node": "a",
    "state": "leader",
    "epoch": 12,
    "applied": 3456,
    "leader": {"node": "a", "url": "http://a:8080", "mqtt": "a:1883"},
    "log": {"url": "nats://a", "first": 1, "last": 3456},
    "takeovers": 1,
    "why": "",
    "tzdata": {"node": "2026b", "store": "2026a", "retime": True},
    "nodes": [
        {"node": node, "state": state, "epoch": 12, "applied": 3456 - lag, "lag": lag, "heard_ms": ms}
        | {"is_alive": lag == 0}
        for node, state, lag, ms in (("a", "leader", 0, 0), ("b", "gone", 56, 1200))
    ],
}


class Node:
    """An HTTP server that answers every request as `answers` says; the last one for good."""

    def __init__(self, *answers: Answer | str) -> None:
        """Text: where it sends on to; "none": no leader; "lost": cut after the request was read."""
        self.answers = list(answers)
        self.seen: list[tuple[str, str, bytes, str | None]] = []

    async def __aenter__(self) -> Self:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            self.seen.append((request.method, request.path_qs, body, request.headers.get("Authorization")))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if callable(answer):
                return answer(request)
            if answer == "none":
                body_ = {"type": "/problems/no-leader", "status": 503, "detail": "no leader"}
                return web.json_response(body_, status=503, headers={"Retry-After": "0"})
            if answer == "lost":
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            return web.Response(status=307, headers={"Location": answer + request.path_qs})

        app = web.Application()
        app.router.add_route("*", "/{any:.*}", handle)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def fine(_: web.Request) -> web.Response:
    return web.json_response({"dir": "/b"})


def client(*urls: str, **more: Any) -> fasti.Client:
    return fasti.Client(",".join(urls), **{"retry": QUICK, "key": "secret", **more})


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def test_a_redirect_keeps_method_body_and_key_and_is_remembered() -> None:
    async with Node(fine) as leader, Node(leader.url) as follower, client(follower.url) as c:
        assert c.url == follower.url
        await c.server.backup("/b")
        assert leader.seen == follower.seen
        [(method, path, body, key)] = leader.seen
        assert (method, path) == ("POST", "/v1/backups")
        assert (json.loads(body), key) == ({"dir": "/b"}, "Bearer secret")
        await c.cluster.status()
        assert (len(leader.seen), len(follower.seen), c.url) == (2, 1, leader.url)


async def test_redirects_in_a_circle_end() -> None:
    async with Node("") as one, Node(one.url) as other:
        one.answers = [other.url]
        async with client(one.url, other.url, timeout=0.2) as c:
            with pytest.raises(fasti.Unreachable, match="5 times in a row"):
                await c.cluster.status()
        assert len(one.seen) + len(other.seen) < 1_000


async def test_another_takes_over_when_the_leader_dies() -> None:
    retry = fasti.Retry(attempts=2, first_s=0.01)
    async with (
        Node(fine) as heir,
        Node(nowhere(), nowhere(), heir.url) as follower,
        client(nowhere(), follower.url, retry=retry) as c,
    ):
        await c.server.backup("/b")
        assert (len(heir.seen), c.url) == (1, heir.url)


async def test_a_takeover_is_waited_for_over_the_attempts_for_as_long_as_the_call_has() -> None:
    async with Node(*["none"] * 30, fine) as node:
        async with client(node.url, nowhere()) as c:
            await c.server.backup("/b")
        assert len(node.seen) == 31
        node.answers = ["none"]
        async with client(node.url, timeout=0.2) as c:
            with pytest.raises(fasti.Refused) as refused:
                await c.server.backup("/b")
            assert refused.value.slug == "no-leader"
        before = len(node.seen)
        async with client(node.url, retry=fasti.Retry(attempts=1)) as c:
            with pytest.raises(fasti.Refused):
                await c.server.backup("/b")
        assert len(node.seen) == before + 1


@pytest.mark.parametrize("way", ["direct", "sent on"])
async def test_what_may_have_been_done_is_not_done_again_elsewhere(way: str) -> None:
    async with Node("lost") as leader, Node(leader.url) as follower, Node(fine) as other:
        first = leader if way == "direct" else follower
        async with client(first.url, other.url) as c:
            with pytest.raises(fasti.Unreachable):
                await c.server.backup("/b")
            assert (len(leader.seen), other.seen) == (1, [])
            assert c.url == other.url, "but the next call does not begin with who was lost"
            assert await c.cluster.status(), "a call that may be repeated goes on to the others"


async def test_a_scheduled_message_is_there_once_over_a_lost_answer(url: str, fake: Fake) -> None:
    fake.faults = [None, "lost"]
    async with Node(url) as follower, client(follower.url, url) as c:
        await c.messages.schedule("a", 1)
        await c.messages.schedule("a", 2)
    assert len(fake.messages) == 2


async def test_exports_follow_too() -> None:
    def lines(_: web.Request) -> web.Response:
        return web.Response(body=b'{"n":1}\n{"n":2}\n')

    async with Node(lines) as leader, Node(leader.url) as follower, client(nowhere(), follower.url) as c:
        assert [line async for line in c._transport.lines("/v1/x", {"a": "b"})] == [b'{"n":1}', b'{"n":2}']
        assert leader.seen == [("GET", "/v1/x?a=b", b"", "Bearer secret")]
    async with client(nowhere()) as c:
        with pytest.raises(fasti.Unreachable):
            [line async for line in c._transport.lines("/v1/x", {})]


async def test_a_redirect_to_another_path_is_not_followed() -> None:
    def steer(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/v1/clock:advance"})

    async with Node(steer) as node, client(node.url) as c:
        with pytest.raises(fasti.Refused):
            await c.server.backup("/b")
        assert len(node.seen) == 1


def test_whom_the_key_may_go_to() -> None:
    servers = Servers("https://a,https://b")
    path = "/v1/sessions/x%2Fy"
    for bad in ("http://b", "ftp://c", "https://u:p@c", "https://:x"):
        assert not servers.follow("https://a", bad + path, path), bad
        assert servers.current == "https://a"
    assert servers.follow("https://a", "https://c/base" + path, path)
    assert servers.current == "https://c/base", "one that was given may name any other"
    assert servers.follow("https://c/base", "https://d" + path, path)
    assert servers.current == "https://b", "one that was named may not: the given are asked again"
    servers.turn("https://b")
    assert servers.follow("https://a", "https://c" + path + "?q=1", path)
    assert servers.follow("https://c", "https://b" + path, path)
    assert servers.current == "https://b", "to one that was given, on anybody's word"
    servers.turn("https://a")
    assert servers.current == "https://b", "another call has moved on already"
    servers.turn("https://b")
    assert servers.current == "https://a"


def test_what_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        addresses(" http://a , http://b,") == addresses(["http://a", "http://b"]) == ("http://a", "http://b")
    )
    monkeypatch.setenv("FASTI_URL", "http://a/,http://b")
    assert fasti.Client().url == "http://a"
    assert fasti.Client(["http://c", "http://d"], mqtt=["h:1", "h:2"]).url == "http://c"
    for no in (",", []):
        with pytest.raises(ValueError, match="no server address"):
            fasti.Client(no or [""])


async def test_one_address_is_tried_as_before() -> None:
    async with Node("lost") as node, client(node.url) as c:
        for call, attempts in ((c.groups.pause("g"), QUICK.attempts), (c.server.backup("/b"), 1)):
            with pytest.raises(fasti.Unreachable):
                await call
            assert len(node.seen) == attempts
            node.seen.clear()


# MQTT


def referred(code: int, to: str) -> bytes:
    """Reason code and properties with a server reference (0x1C)."""
    text = to.encode()
    properties = b"\x1c" + len(text).to_bytes(2, "big") + text if to else b""
    return bytes((code, len(properties))) + properties


def elsewhere(to: str, code: int = 0x9C) -> Act:
    """Answers CONNECT by sending on."""

    async def act(peer: Peer) -> None:
        await peer.read()
        peer.send(CONNACK, b"\x00" + referred(code, to))

    return act


def leading(seen: list[bytes], text: bytes) -> Act:
    """Takes the session over, and has a message for it."""

    async def act(peer: Peer) -> None:
        seen.append(await peer.welcome(session_present=True))
        await peer.subscribed()
        peer.publish(1, text)
        await rest(peer)

    return act


async def first(c: fasti.Client, **options: Any) -> str:
    async with asyncio.timeout(60), c.subscribe("t", **options) as deliveries:
        return (await anext(deliveries)).text()


async def test_connack_says_where() -> None:
    seen: list[bytes] = []
    async with Script(leading(seen, b"here")) as leader, Script(elsewhere(leader.address)) as follower:
        async with fasti.Client(mqtt=follower.address, retry=fasti.Retry(attempts=1)) as c:
            assert await first(c, session="audit") == "here"
        assert (follower.connections, leader.connections) == (1, 1)


async def test_disconnect_says_where_and_the_session_goes_along() -> None:
    seen: list[bytes] = []

    async def stepping_down(peer: Peer) -> None:
        seen.append(await peer.welcome())
        await peer.subscribed()
        peer.publish(7, b"two", qos=2)
        assert (await peer.read())[0] == PUBREC
        peer.send(DISCONNECT, referred(0x9D, heir.address))

    async def heir_act(peer: Peer) -> None:
        seen.append(await peer.welcome(session_present=True))
        await peer.subscribed()
        peer.publish(7, b"two", qos=2, dup=True)
        assert (await peer.read())[0] == PUBREC, "acked again"
        peer.publish(8, b"three")
        await rest(peer)

    async with Script(heir_act) as heir, Script(stepping_down) as old:
        async with (
            asyncio.timeout(60),
            fasti.Client(mqtt=old.address, retry=QUICK) as c,
            c.subscribe("t", session="audit", qos=2) as deliveries,
        ):
            d = await anext(deliveries)
            assert d.text() == "two"
            await d.ack()
            assert (await anext(deliveries)).text() == "three", "QoS 2 is not handed out twice"
        assert seen[0] == seen[1], "the same CONNECT: client id, session, expiry"
        assert (old.connections, heir.connections) == (1, 1)


@pytest.mark.parametrize("answer", [elsewhere(""), elsewhere("", 0x88), elsewhere("", 0x9D)])
async def test_without_a_reference_the_next_one_in_turn(answer: Act) -> None:
    seen: list[bytes] = []
    async with Script(answer) as follower, Script(leading(seen, b"x")) as leader:
        gone = f"127.0.0.1:{free_port()}"
        mqtt = [gone, follower.address, leader.address]
        async with fasti.Client(mqtt=mqtt, retry=fasti.Retry(attempts=1, first_s=0.01)) as c:
            assert await first(c) == "x"
        assert follower.connections == 1


async def test_the_leader_dies_and_the_next_one_has_the_session() -> None:
    seen: list[bytes] = []

    async def dying(peer: Peer) -> None:
        seen.append(await peer.welcome())
        await peer.subscribed()
        old.stop()
        peer.cut()

    class Mortal(Script):
        def stop(self) -> None:
            self._server.close()

    async with (
        Mortal(dying) as old,
        Script(leading(seen, b"on")) as heir,
        fasti.Client(mqtt=f"{old.address},{heir.address}", retry=QUICK) as c,
    ):
        assert await first(c, session="audit") == "on"
    assert seen[0] == seen[1]


async def test_one_broker_that_sends_on_to_nowhere_is_a_no() -> None:
    async with Script(elsewhere("")) as only, fasti.Client(mqtt=only.address, retry=QUICK) as c:
        with pytest.raises(fasti.Refused) as refused:
            await first(c)
        assert (refused.value.reason_code, only.connections) == (0x9C, 1)


async def test_brokers_that_send_on_in_a_circle_are_unreachable() -> None:
    async with Script(elsewhere("")) as one, Script(elsewhere(one.address)) as other:
        one._acts = (elsewhere(other.address),)
        async with fasti.Client(mqtt=one.address, retry=fasti.Retry(attempts=2, first_s=0.01)) as c:
            with pytest.raises(fasti.Unreachable, match="in a row"):
                await first(c)
        assert one.connections + other.connections <= 12


async def test_the_word_of_a_broker_that_was_only_named_does_not_count() -> None:
    async def given() -> tuple[Broker, ...]:
        return (Broker("a", 1), Broker("b", 2))

    brokers = Brokers(given, lambda: True, Plain(None, allowed=False))
    assert not brokers.follow("c:1"), "nobody was asked"
    assert await brokers.current() == Broker("a", 1)
    assert brokers.follow("[::1]:7 other")
    assert await brokers.current() == Broker("::1", 7)
    assert brokers.follow("evil:1")
    assert await brokers.current() == Broker("b", 2)
    assert brokers.follow("c")
    assert await brokers.current() == Broker("c", 1883)
    assert brokers.follow("a:1")
    assert await brokers.current() == Broker("a", 1)


@pytest.mark.parametrize(
    ("asked", "reference", "followed"),
    [
        ("mqtts://a:1", "b", "mqtts://b:8883"),
        ("mqtts://a:1", "mqtt://b", None),
        ("mqtts://a:1", "mqtt://b wss://b/x", "wss://b:443/x"),
        ("wss://a:1/x", "b", "wss://b:443/x"),
        ("wss://a:1/x", "ws://b", None),
        ("mqtt://a:1", "mqtts://b", "mqtts://b:8883"),
        ("mqtt://a:1", "http://b ws://b", "ws://b:80/mqtt"),
        ("mqtt://a:1", "http://b", None),
    ],
)
async def test_a_reference_keeps_the_scheme_and_never_leads_from_tls_to_plain(
    asked: str, reference: str, followed: str | None
) -> None:
    async def given() -> tuple[Broker, ...]:
        return (broker(asked),)

    for allow_plain in (False, True):
        brokers = Brokers(given, lambda: True, Plain(None, allowed=allow_plain))
        await brokers.current()
        if not allow_plain:
            assert brokers.follow(reference) is (followed is not None)
            assert str(await brokers.current()) == (followed or asked)
        elif "mqtt://" in reference or "ws://" in reference:
            assert brokers.follow(reference)


async def test_where_the_new_leader_listens_is_asked(fake: Fake) -> None:
    """Without `mqtt=`: over HTTP, again when the one that was named is gone."""
    seen: list[bytes] = []
    stepping_down = giving(then=saying(DISCONNECT, referred(0x9D, "")))

    def at(script: Script) -> Answer:
        listener = {"transport": "tcp", "host": "0.0.0.0", "port": script.port}
        return lambda _: web.json_response({"now": "2030-01-01T00:00:00Z", "mqtt": [listener]})

    async with AsyncExitStack() as stack:
        heir = await stack.enter_async_context(Script(leading(seen, b"on")))
        old = await stack.enter_async_context(Script(stepping_down))
        no_leader = ["none"] * 600  # for longer than one call waits
        node = await stack.enter_async_context(Node(at(old), *no_leader, at(heir)))
        c = await stack.enter_async_context(client(node.url, node.url + "/x", timeout=0.1))
        assert await first(c) == "on"
        assert (old.connections, heir.connections, len(node.answers)) == (1, 1, 1)


# The calls


async def test_status() -> None:
    async with Node(lambda _: web.json_response(STATE)) as node, client(node.url) as c:
        found = await c.cluster.status()
        assert (found.leader, found.epoch, found.takeovers, found.wants_retime) == ("a", 12, 1, True)
        assert [(n.node, n.state, n.lag, n.is_alive) for n in found.nodes] == [
            ("a", "leader", 0, True),
            ("b", "gone", 56, False),
        ]

        def blocking() -> str | None:
            with sync.Client(node.url) as s:
                return s.cluster.status().leader

        assert await asyncio.to_thread(blocking) == "a"
        at = ("--server", f"{nowhere()},{node.url}")
        out = await ok("cluster", "status", *at)
        assert [line.split() for line in out.splitlines()] == [
            ["node", "state", "epoch", "applied", "lag", "heard"],
            ["a", "leader", "12", "3,456", "0", "0", "ms", "ago"],
            ["b", "gone", "12", "3,400", "56", "1,200", "ms", "ago"],
        ]
        _, _, err = await fasti_cli("cluster", "status", *at)
        assert "a: tzdata differs" in err
        assert json.loads(await ok("cluster", "status", "-o", "json", *at)) == STATE
    assert (await fasti_cli("cluster", "status", "--server", nowhere()))[0] == 3
