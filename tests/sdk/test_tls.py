"""TLS as users meet it: a real server with certificates of a CA made here, and the SDK, the worker and the
command line over HTTP and MQTT, with websockets and without."""

import asyncio
import os
import socket
import ssl
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import fasti
from fasti import sync
from fasti.cli.profiles import Profile
from fasti.tls import Tls, trouble
from server.settings.kinds import Address
from tests.sdk.scripted import Peer, Script
from tests.sdk.test_cli import fasti_cli, ok
from tests.server.mqtt.test_redirecting import turning
from tests.support.authority import NAMES, Authority
from tests.support.http import open_site
from tests.support.keys import KeysFile
from tests.support.rig import config
from tests.support.server import ServerProcess

ALL = ("mqtt", "mqtts", "ws", "wss")
KEY = "k" * 32
BRIEF = fasti.Retry(attempts=2, first_s=0.01)


class Home:
    """A CA, a stranger, and servers with certificates of the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = Authority(folder / "ca")
        self.other = Authority(folder / "other", "another CA")
        self.keys = KeysFile(folder / "keys.toml")
        self.key = self.keys.add("ops", "admin")

    @contextmanager
    def serve(
        self, *schemes: str, names: str = NAMES, has_tls: bool = True, **settings: object
    ) -> Iterator["Server"]:
        """`has_tls`: HTTP. `settings`: with __ for the dot."""
        cert, key = self.ca.issue(f"server-{time.monotonic_ns()}", names)
        given: dict[str, object] = {
            "http.tls_cert": cert if has_tls else "",
            "http.tls_key": key if has_tls else "",
            "mqtt.tls_cert": cert,
            "mqtt.tls_key": key,
            "auth.keys_file": self.keys.path,
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        listen = ",".join(f"{scheme}://127.0.0.1:0" for scheme in schemes)
        data = self.folder / f"data-{time.monotonic_ns()}"
        process = ServerProcess(data, "--mqtt", listen, settings=given)
        try:
            process.wait_ready()
            yield Server(process, self, has_tls=has_tls)
        finally:
            process.kill()


class Server:
    def __init__(self, process: ServerProcess, home: Home, *, has_tls: bool) -> None:
        self.process = process
        self.port = process.http[1]
        self.url = f"http{'s' if has_tls else ''}://localhost:{self.port}"
        self.ca = home.ca.path
        self.key = home.key

    def client(self, **options: Any) -> fasti.Client:
        return fasti.Client(**self.options(**options))

    def options(self, **options: Any) -> dict[str, Any]:
        return {"url": self.url, "key": self.key, "ca": self.ca, **options}

    async def broker(self, scheme: str) -> str:
        """Of the listener with that scheme, as the server tells it."""
        async with self.client() as c:
            return next(one["url"] for one in (await c.info()).mqtt if one["url"].startswith(f"{scheme}://"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[Server]:
    with home.serve(*ALL) as made:
        yield made


async def round_trip(c: fasti.Client, topic: str = "orders/17/remind") -> str:
    """Over HTTP there, over MQTT back."""
    async with asyncio.timeout(30), c.subscribe(topic, session=f"s-{time.monotonic_ns()}") as deliveries:
        await c.messages.schedule(topic, "soon")
        d = await anext(deliveries)
        assert await d.ack()
        target = deliveries._target
    assert target is not None
    assert d.text() == "soon"
    return target.broker.scheme


async def test_with_an_https_address_everything_has_tls(server: Server) -> None:
    async with server.client() as c:
        assert await round_trip(c) == "mqtts"
        info = await c.info()
        assert [one["transport"] for one in info.mqtt] == ["tcp", "tls", "ws", "wss"]
        assert info.mqtt[1]["url"] == f"mqtts://localhost:{info.mqtt[1]['port']}"
        assert info.raw["url"] == server.url


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
async def test_a_listener_with_tls_can_be_named(server: Server, scheme: str) -> None:
    async with server.client(mqtt=await server.broker(scheme)) as c:
        assert await round_trip(c) == scheme


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
async def test_plain_mqtt_that_was_named_is_refused_unless_it_is_allowed(server: Server, scheme: str) -> None:
    where = await server.broker(scheme)
    async with server.client(mqtt=where) as c:
        with pytest.raises(
            fasti.Unencrypted, match=rf"mqtt='{where}', while the address is https.*allow_plain=True"
        ):
            await round_trip(c)
    async with server.client(mqtt=where, allow_plain=True) as c:
        assert await round_trip(c) == scheme


async def test_websockets_where_a_server_has_nothing_else(home: Home) -> None:
    with home.serve("ws", "wss") as server:
        async with server.client() as c:
            assert await round_trip(c) == "wss"
    with home.serve("ws", has_tls=False) as server:
        async with server.client() as c:
            assert await round_trip(c) == "ws"


async def test_the_key_is_not_sent_to_plain_mqtt_that_an_https_server_names(home: Home) -> None:
    def names(script: Script) -> str:
        return f"mqtt://localhost:{script.port}"

    async def never(peer: Peer) -> None:
        raise AssertionError("connected")

    async with Script(never) as script:
        with home.serve("mqtt", mqtt__public_urls=names(script)) as server:
            async with server.client() as c:
                with pytest.raises(
                    fasti.Unencrypted, match=rf"no MQTT listener with TLS, only {names(script)}"
                ):
                    await round_trip(c)
                worker = fasti.Worker(c)
                worker.on("orders/#")(print)
                with pytest.raises(fasti.Unencrypted, match=r"mqtt\.public_urls"):
                    await worker.run(signals=False)
        assert script.connections == 0
    with home.serve("mqtt") as server:
        async with server.client(allow_plain=True) as c:
            assert await round_trip(c) == "mqtt"


async def test_a_node_that_does_not_lead_sends_on_to_a_listener_with_tls(home: Home, server: Server) -> None:
    cert, key = home.ca.issue("node", NAMES)
    settings = config(listen=(Address("127.0.0.1", 0, "mqtts"),), tls_cert=str(cert), tls_key=str(key))
    leader = {scheme: await server.broker(scheme) for scheme in ALL}
    async with turning(settings) as node:
        there = f"mqtts://localhost:{node.ports['mqtts']}"
        for where, scheme in (
            (leader["mqtts"].removeprefix("mqtts://"), "mqtts"),
            (leader["wss"], "wss"),
            (f"{leader['mqtt']} {leader['wss']}", "wss"),
        ):
            node.where = where
            async with server.client(mqtt=there) as c:
                assert await round_trip(c) == scheme
        node.where = leader["mqtt"]
        async with server.client(mqtt=there) as c:
            with pytest.raises(fasti.Refused, match="Use another server"):
                await round_trip(c)
        async with server.client(mqtt=there, allow_plain=True) as c:
            assert await round_trip(c) == "mqtt"


async def test_public_addresses_are_used(home: Home) -> None:
    """As behind a proxy: the listener's own address is not asked for."""
    with home.serve("mqtts") as behind:
        there = (await behind.broker("mqtts")).replace("localhost", "127.0.0.1")
        public = {"http__public_url": "https://fasti.example.com", "mqtt__public_urls": there}
        with home.serve("mqtt", **public) as front:
            async with front.client() as c:
                info = await c.info()
                assert info.raw["url"] == "https://fasti.example.com"
                assert [one["url"] for one in info.mqtt] == [there]
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1), c.subscribe("a/b") as deliveries:
                        await anext(deliveries)


# The same everywhere


def test_the_blocking_client(server: Server) -> None:
    with sync.Client(**server.options()) as c, c.subscribe("sync/a", session="sync") as deliveries:
        c.messages.schedule("sync/a", "soon")
        assert next(deliveries).ack()


async def test_the_ca_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTI_CA", str(server.ca))
    async with fasti.Client(server.url, key=server.key) as c:
        assert await round_trip(c) == "mqtts"


async def test_a_worker(server: Server) -> None:
    async with server.client() as c:
        worker = fasti.Worker(group="tls")
        done = asyncio.Event()

        @worker.on("work/#")
        async def work(d: fasti.Delivery) -> None:
            assert d.text() == "soon"
            done.set()

        running = asyncio.create_task(worker.run(c, signals=False))
        await c.messages.schedule("work/1", "soon", delay=1)
        async with asyncio.timeout(30):
            await done.wait()
        worker.stop()
        await running
        assert (worker.figures.done, worker.figures.failed) == (1, 0)


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
async def test_many_messages_and_large_ones_come_through(server: Server, scheme: str) -> None:
    """Many in one record of TLS, and one in many records: nothing stays in a buffer."""
    large = os.urandom(250_000)
    topic = f"many/{scheme}"
    async with server.client(mqtt=await server.broker(scheme)) as c:
        async with c.subscribe(topic, session=topic, max_in_flight=1_000):
            pass
        small = [fasti.NewMessage(topic=topic, payload=str(n)) for n in range(1_500)]
        for _ in range(2):
            await c.messages.schedule_many(small)
            await c.messages.schedule(topic, large)
        got = []
        async with asyncio.timeout(60), c.subscribe(topic, session=topic, max_in_flight=1_000) as deliveries:
            async for d in deliveries:
                got.append(d.payload)
                assert await d.ack()
                if len(got) == 3_002:
                    break
        assert got.count(large) == 2
        assert [one for one in got if one != large] == [str(n).encode() for n in range(1_500)] * 2


async def test_a_websocket_that_takes_a_part_of_a_frame_gets_the_rest(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server.client(mqtt=await server.broker("ws"), allow_plain=True) as c:
        async with c.subscribe("parts", session="parts") as deliveries:
            for n in range(3):
                await c.messages.schedule("parts", str(n))
            assert deliveries._connection is not None
            inner = deliveries._connection._paho.socket()._socket  # type: ignore[union-attr]

            class Slow:
                """Takes three bytes of each write."""

                def send(self, data: bytes) -> int:
                    return int(inner.send(data[:3]))

                def __getattr__(self, name: str) -> Any:
                    return getattr(inner, name)

            monkeypatch.setattr(deliveries._connection._paho.socket(), "_socket", Slow())
            async with asyncio.timeout(30):
                for n in range(3):
                    d = await anext(deliveries)
                    assert d.text() == str(n)
                    assert await d.ack()
            monkeypatch.undo()
        assert not (await c.sessions.get("parts")).undone


# Client certificates


async def test_a_client_certificate_in_one_file_or_two(home: Home) -> None:
    cert, key = home.ca.issue("meter")
    both = home.folder / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    asks = {"mqtt__tls_ca": home.ca.path, "mqtt__tls_require_certificate": True}
    with home.serve("mqtts", "wss", **asks) as server:
        for shown in ((cert, key), both, str(both)):
            async with server.client(cert=shown) as c:
                assert await round_trip(c) == "mqtts"
        async with server.client(cert=both, mqtt=await server.broker("wss")) as c:
            assert await round_trip(c) == "wss"
        for scheme in ("mqtts", "wss"):
            where = await server.broker(scheme)
            async with server.client(mqtt=where, retry=BRIEF) as c:
                with pytest.raises(fasti.Unreachable, match=r"ask for a client certificate\? Give one"):
                    await round_trip(c)
            async with server.client(mqtt=where, retry=BRIEF, cert=home.other.issue("stranger")) as c:
                with pytest.raises(fasti.Unreachable, match="does the server accept the client certificate"):
                    await round_trip(c)


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
async def test_a_server_that_says_why_it_refuses_a_certificate(home: Home, scheme: str) -> None:
    """As most proxies do, and asyncio does not."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(home.ca.path))
    context.load_cert_chain(*home.ca.issue("proxy", NAMES))
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(listening: socket.socket) -> None:
        """What the client has sent is read to its end: a reset could overtake the alert."""
        accepted, _ = listening.accept()
        with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as refusing:
            with suppress(OSError):
                refusing.do_handshake()
            with suppress(OSError):
                while socket.socket.recv(refusing, 4_096):
                    pass

    for cert, said in (
        (None, "asks for a client certificate: give one as cert="),
        (home.other.issue("stranger"), "does not accept the client certificate: .*unknown ca"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(asyncio.to_thread(serve, listening))
            mqtt = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
            async with fasti.Client(
                mqtt=mqtt, ca=home.ca.path, cert=cert, retry=fasti.Retry(first_s=30)
            ) as c:
                with pytest.raises(fasti.Untrusted, match=rf"{mqtt}.*{said}"):
                    await anext(c.subscribe("a"))
            await serving


async def test_a_connection_that_was_given_up_meanwhile_is_closed(home: Home) -> None:
    """The thread that connects cannot be stopped; nothing goes out behind it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*home.ca.issue("slow", NAMES))
    is_given_up = threading.Event()

    def serve(listening: socket.socket) -> bytes:
        accepted, _ = listening.accept()
        is_given_up.wait(30)
        with context.wrap_socket(accepted, server_side=True) as slow:
            return slow.recv(4_096)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(asyncio.to_thread(serve, listening))
        mqtt = f"mqtts://127.0.0.1:{listening.getsockname()[1]}"
        async with fasti.Client(mqtt=mqtt, ca=home.ca.path) as c:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await anext(c.subscribe("a"))
            is_given_up.set()
            assert await serving == b""


# What goes wrong says what to do, and at once


@asynccontextmanager
async def quick(server: Server, **options: Any) -> AsyncIterator[fasti.Client]:
    """A client whose retries would take minutes. What fails here must fail at once."""
    began = time.monotonic()
    async with server.client(retry=fasti.Retry(first_s=300, cap_s=600), **options) as c:
        yield c
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("trusted", "said"),
    [
        (None, r"is not trusted: .*; give its CA as ca= or FASTI_CA \(--ca\)"),
        ("other", r"was not issued by the CA in .*other/ca.pem: .*; give the right CA"),
    ],
)
async def test_another_ca(home: Home, server: Server, trusted: str | None, said: str) -> None:
    ca = home.other.path if trusted else None
    where = [await server.broker(scheme) for scheme in ("mqtts", "wss")]
    async with quick(server, ca=ca) as c:
        with pytest.raises(fasti.Untrusted, match=rf"{server.url}: the server's certificate {said}"):
            await c.info()
        with pytest.raises(fasti.Untrusted, match=said):
            await c.messages.schedule("a", "b")
        with pytest.raises(fasti.Untrusted, match=said):
            [one async for one in c.messages.export()]
    for broker in where:
        async with quick(server, ca=ca, mqtt=broker) as c:
            with pytest.raises(fasti.Untrusted, match=rf"{broker}.*{said}"):
                await anext(c.subscribe("a"))


async def test_another_name(home: Home) -> None:
    said = r"has other names: .*localhost.*; use an address that it names"
    with home.serve("mqtts", names="DNS:fasti.example.com") as server:
        async with quick(server) as c:
            with pytest.raises(fasti.Untrusted, match=said):
                await c.info()
        mqtt = server.process.output.partition(" mqtt=127.0.0.1:")[2].split()[0]
        async with quick(server, mqtt=f"mqtts://localhost:{mqtt}") as c:
            with pytest.raises(fasti.Untrusted, match=said):
                await anext(c.subscribe("a"))


async def test_tls_where_there_is_none(home: Home) -> None:
    with home.serve("mqtt", has_tls=False) as server:
        plain = server.url.replace("http://", "https://")
        async with quick(server, url=plain) as c:
            with pytest.raises(fasti.Untrusted, match="does not speak TLS"):
                async with asyncio.timeout(60):
                    await c.info()


async def test_mqtt_where_tls_is_expected(server: Server) -> None:
    plain = (await server.broker("mqtt")).replace("mqtt://", "mqtts://")
    async with server.client(mqtt=plain, retry=BRIEF) as c:
        with pytest.raises(fasti.Unreachable, match=rf"{plain}: this port does not speak TLS"):
            await anext(c.subscribe("a"))
    async with server.client(url=plain.replace("mqtts://", "https://"), retry=BRIEF) as c:
        with pytest.raises(fasti.Unreachable, match="this port does not speak TLS"):
            await c.info()


async def test_no_tls_where_tls_is_expected(server: Server) -> None:
    """Both sides say so: that the port speaks TLS, and what to give instead."""
    async with server.client(url=server.url.replace("https://", "http://"), retry=BRIEF) as c:
        with pytest.raises(fasti.Refused, match="This port speaks TLS: use https://"):
            await c.info()
        for call in (c.messages.cancel("0" * 32), c.groups.delete("g"), c.messages.reschedule("0", delay=5)):
            with pytest.raises(fasti.Refused, match="This port speaks TLS: use https://"):
                await call
    for scheme, said in (
        ("mqtts", "this port speaks TLS: give mqtts://"),
        ("wss", "no websocket .* give wss://"),
    ):
        plain = (await server.broker(scheme)).replace(f"{scheme}://", f"{scheme[:-1]}://")
        async with server.client(mqtt=plain, retry=BRIEF, allow_plain=True) as c:
            with pytest.raises(fasti.Unreachable, match=rf"{plain}: {said}"):
                async with asyncio.timeout(60):
                    await anext(c.subscribe("a"))


async def test_the_first_that_can_be_trusted_of_several(home: Home, server: Server) -> None:
    with home.serve("mqtts", names="DNS:fasti.example.com") as untrusted:
        async with untrusted.client(url=f"{untrusted.url},{server.url}", retry=BRIEF) as c:
            assert (await c.info()).raw["url"] == server.url
            assert await round_trip(c) == "mqtts"
        async with untrusted.client(url=f"{untrusted.url},{untrusted.url}/x", retry=BRIEF) as c:
            with pytest.raises(fasti.Untrusted):
                await c.info()


async def test_a_subscription_goes_on_where_a_certificate_was_wrong_for_a_while(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """It says why it waits, once."""
    right, wrong = home.ca.issue("right", NAMES), home.other.issue("wrong", NAMES)
    with home.serve("mqtts", mqtt__tls_cert=right[0], mqtt__tls_key=right[1]) as server:
        port = server.process.output.partition(" mqtt=127.0.0.1:")[2].split()[0]
        retry = fasti.Retry(first_s=0.05, cap_s=0.1)
        c = server.client(retry=retry, mqtt=f"mqtts://localhost:{port}")
        async with c, asyncio.timeout(60), c.subscribe("a", session="a") as deliveries:
            server.process.kill()
            for cert, key in (wrong, right):
                given = {"mqtt.tls_cert": cert, "mqtt.tls_key": key, "auth.keys_file": home.keys.path}
                again = ServerProcess(
                    server.process.data, "--mqtt", f"mqtts://127.0.0.1:{port}", settings=given
                )
                try:
                    await again.ready()
                    if cert is wrong[0]:
                        task = asyncio.ensure_future(anext(deliveries))
                        while "not issued by the CA" not in caplog.text:
                            await asyncio.sleep(0.02)
                        await asyncio.sleep(0.5)
                        assert caplog.text.count("not issued by the CA") == 1
                        assert not task.done()
                    else:
                        url = f"http://127.0.0.1:{again.http[1]}"
                        async with fasti.Client(url, key=home.key) as other:
                            await other.messages.schedule("a", "soon")
                        assert (await task).text() == "soon"
                finally:
                    again.kill()


@pytest.mark.parametrize("argument", ["ca", "cert"])
def test_files_that_cannot_be_used(tmp_path: Path, argument: str) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path in (empty, tmp_path / "none.pem", tmp_path):
        with pytest.raises(fasti.BadArgument, match=f"{argument} cannot be used: {path}: ") as caught:
            fasti.Client(**{argument: path})
        assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("code", "said"),
    [(10, "not valid now: why; renew it"), (9, "not valid now"), (64, "other names"), (18, "not trusted")],
)
def test_what_openssl_says_is_told_with_what_to_do(code: int, said: str) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "why."
    assert said in (trouble(error, Tls()) or "")
    assert trouble(ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), Tls()) is None
    assert trouble(ConnectionResetError("reset"), Tls()) is None


# In clear, to another machine


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"url": "http://fasti.example.com:8080"}, ["http://fasti.example.com:8080"]),
        ({"url": "fasti,http://[2001:db8::1]:8080"}, ["http://fasti", "http://[2001:db8::1]:8080"]),
        ({"mqtt": "fasti:1883"}, ["mqtt://fasti:1883"]),
        ({"mqtt": "ws://fasti"}, ["ws://fasti:80/mqtt"]),
        ({"url": "HTTP://fasti", "mqtt": "MQTT://fasti"}, ["http://fasti", "mqtt://fasti:1883"]),
        ({}, []),
        ({"url": "http://localhost:8080,http://127.0.0.2,http://[::1]", "mqtt": "localhost:1883"}, []),
        ({"url": "https://fasti.example.com", "mqtt": "mqtts://fasti.example.com"}, []),
        ({"url": "http://fasti.example.com", "key": None}, []),
        ({"url": "http://fasti.example.com", "allow_plain": True}, []),
    ],
)
def test_a_key_in_clear_is_warned_of_once(given: Mapping[str, Any], told: list[str]) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fasti.Client(**{"key": KEY, **given})
    assert [one.category for one in seen] == [fasti.UnencryptedWarning] * bool(told)
    assert [one.filename for one in seen] == [__file__] * bool(told)
    for text in told:
        assert text in str(seen[0].message)


@pytest.mark.parametrize("told_by", ["info", "redirect", "reference"])
async def test_a_machine_that_this_one_leads_to_is_warned_of(told_by: str) -> None:
    """Behind a tunnel, whose own address is of this machine."""
    elsewhere = "fasti.invalid"

    async def sending_on(peer: Peer) -> None:
        await peer.read()
        reference = f"{elsewhere}:1883".encode()
        said = b"\x1c" + len(reference).to_bytes(2, "big") + reference
        peer.send(0x20, b"\x00\x9d" + bytes((len(said),)) + said)

    async def answer(request: web.Request) -> web.Response:
        if told_by == "redirect":
            return web.Response(status=307, headers={"Location": f"http://{elsewhere}{request.path}"})
        return web.json_response({"now": "2030-01-01T00:00:00Z", "mqtt": [{"url": f"mqtt://{elsewhere}"}]})

    app = web.Application()
    app.router.add_get("/v1/info", answer)
    async with Script(sending_on) as script, open_site(app) as url:
        mqtt = script.address if told_by == "reference" else None
        async with fasti.Client(url, key=KEY, mqtt=mqtt, retry=fasti.Retry(attempts=1)) as c:
            with (
                pytest.warns(fasti.UnencryptedWarning, match=rf"in clear to \w+://{elsewhere}"),
                pytest.raises(fasti.Error),
            ):
                await anext(c.subscribe("a"))


def test_an_address_in_capitals_is_https_as_well() -> None:
    with pytest.raises(fasti.Unencrypted):
        asyncio.run(fasti.Client("HTTPS://fasti", mqtt="mqtt://fasti", allow_plain=False)._find_brokers())


# The command line


async def test_the_command_line(server: Server) -> None:
    there = ("--url", server.url, "--key", server.key)
    trusting = (*there, "--ca", str(server.ca))
    await ok(*trusting, "message", "schedule", "cli/1", "soon", "--in", "3s")
    assert "soon" in await ok(*trusting, "subscribe", "cli/#", "-n", "1")
    code, _, said = await fasti_cli(*there, "cluster", "status")
    assert code == 3
    assert "give its CA as ca= or FASTI_CA (--ca)" in said
    _, _, said = await fasti_cli(
        "--url", "http://203.0.113.1", "--key", KEY, "cluster", "status", "--ca", "none.pem"
    )
    assert "ca cannot be used: none.pem: No such file" in said


async def test_a_profile(home: Home, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    where, (cert, key) = await server.broker("mqtt"), home.ca.issue("me")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/ca.pem").write_bytes(server.ca.read_bytes())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = tmp_path / "config.toml"
    monkeypatch.setenv("FASTI_CONFIG", str(config))
    text = f'url = "{server.url}"\nkey = "{server.key}"\nca = "~/ca.pem"\ncert = "{cert}, {key}"\n'
    config.write_text(f'[profiles.default]\n{text}mqtt = "{where}"\n')
    assert "(--allow-plain)" in (await fasti_cli("subscribe", "cli/#", "-n", "1"))[2]
    config.write_text(f'[profiles.default]\n{text}mqtt = "{where}"\nallow_plain = true\n')
    await ok("message", "schedule", "profile/1", "soon", "--in", "3s")
    assert "soon" in await ok("subscribe", "profile/#", "-n", "1")
    config.write_text('[profiles.default]\nallow_plain = "yes"\n')
    assert "allow_plain as true or false" in (await fasti_cli("cluster", "status"))[2]
    config.write_text('[profiles.default]\ncert = "a,b,c"\n')
    assert "cert must be FILE or FILE,KEY" in (await fasti_cli("cluster", "status"))[2]


async def test_the_command_line_warns_of_a_key_in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    made = Profile("http://fasti.example.com", KEY).client(fasti.Retry(attempts=1), told.append)
    await made.close()
    assert len(told) == 1
    assert "allow_plain=True (--allow-plain)" in told[0]
