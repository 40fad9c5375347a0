"""Who is not taken, and who is not waited for: bounds on MQTT connections by number and address, and on the
time to a CONNECT, whatever the client does instead. By every kind of listener; the server is in this process.
"""

import asyncio
import logging
import ssl
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from server.codec.packets import Connect
from server.net.crowd import BUSY, Crowd, mqtt_bounds
from server.settings.config import Config
from tests.support.build import OPENED
from tests.support.encode import encode
from tests.support.rig import Rig, config
from tests.support.served import SCHEMES, Served, ended, everywhere, until

HEAD = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nX-Long: " + bytes(1_000)
DRIP_S = 0.05


@pytest.fixture
def settings() -> Config:
    return everywhere(connect_rate=0, connections_per_address=4)


def bounded(served: Served) -> Counter[str]:
    return served.app.metrics.bounded_mqtt


def pass_s(seconds: float) -> None:
    """The loop's clock jumps."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


async def count(served: Served, wanted: int) -> None:
    await until(lambda: len(served.listeners.crowd) == wanted)


async def test_the_bound_is_told_with_what_is_taken_of_it(served: Served) -> None:
    def taken() -> bytes:
        lines = served.app.metrics.collected().text().splitlines()
        return next(line for line in lines if line.startswith(b'fasti_limit_used{name="limits.connections"}'))

    await served.dial("mqtt")
    await count(served, 1)
    assert taken().endswith(b" 1.0")
    served.writers[0].close()
    await count(served, 0)
    assert taken().endswith(b" 0.0")


async def test_one_address_has_so_many_over_all_listeners(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for scheme in SCHEMES:
        await served.dial(scheme)
    await count(served, 4)
    with caplog.at_level(logging.WARNING):
        for scheme in SCHEMES:
            await ended((await served.dial(scheme))[0])
    assert "as many are open from there as limits.connections_per_address" in caplog.text
    assert bounded(served) == {"limits.connections_per_address": 4}
    await served.dial("mqtt", "127.0.0.2")
    await count(served, 5)
    served.writers[1].close()
    await count(served, 4)
    await served.dial("mqtts")
    await count(served, 5)
    assert bounded(served) == {"limits.connections_per_address": 4}


@OPENED
def test_what_is_refused_for_its_address_does_not_use_up_the_rate_of_others() -> None:
    rig = Rig(config(connect_rate=3, connections_per_address=2, connections=4))
    core = rig.core
    links = Crowd[Any](mqtt_bounds(core.config.limits), Counter(), lambda _: None)
    admitted = Counter[str]()

    class One:
        idle_since_s = BUSY

        def __init__(self, address: str) -> None:
            self.address = address

    made: list[Any] = []

    def comes(address: str, second: float) -> bool:
        if not links.admits(address, second):
            return False
        admitted[address] += 1
        made.append(One(address))
        links.add(made[-1])
        return True

    for _ in range(10):
        comes("2001:db8::1", 1.0)
        comes("2001:db8::2", 1.0)
    assert admitted.total() == 2
    assert comes("2001:db8:0:1::", 1.0)
    assert not comes("10.0.0.1", 1.0)
    assert comes("10.0.0.1", 2.0)
    assert not comes("10.0.0.2", 3.0)
    assert links.bounded == {
        "limits.connections_per_address": 18,
        "limits.connect_rate": 1,
        "limits.connections": 1,
    }
    links.discard(made[0])
    links.discard(made[0])
    assert not comes("2001:db8::1", 4.0) or len(links) == 4


class TestSlow:
    @pytest.fixture
    def settings(self) -> Config:
        made = everywhere(connect_rate=0, connections=8)
        return replace(made, limits=replace(made.limits, connect_timeout_ms=30_000))

    @pytest.mark.parametrize("scheme", SCHEMES)
    async def test_who_says_nothing_ends(self, served: Served, scheme: str) -> None:
        readers = [(await served.dial(scheme))[0] for _ in range(8)]
        await count(served, 8)
        await ended((await served.dial(scheme))[0])
        assert bounded(served) == {"limits.connections": 1}
        pass_s(31)
        for reader in readers:
            await ended(reader)
        await count(served, 0)
        assert bounded(served) == {"limits.connections": 1, "limits.connect_timeout": 8}

    @pytest.mark.parametrize("scheme", SCHEMES)
    async def test_who_says_it_byte_by_byte_ends(self, served: Served, scheme: str) -> None:
        """Each byte is news; only the time from the accept counts."""
        hello, connect = client_hello(), encode(Connect(5, "slow" * 400), 5)
        said = {"mqtt": connect, "mqtts": hello, "ws": HEAD, "wss": hello}[scheme]
        reader, _ = await served.dial(scheme)
        drip = asyncio.create_task(dripping(served.writers[-1], said))
        await count(served, 1)
        pass_s(15)
        await asyncio.sleep(4 * DRIP_S)
        assert len(served.listeners.crowd) == 1
        pass_s(16)
        await ended(reader)
        assert drip.cancel(), "it ended before all was said"
        await count(served, 0)
        assert bounded(served) == {"limits.connect_timeout": 1}

    @pytest.mark.parametrize("scheme", ["mqtts", "wss"])
    async def test_who_says_nothing_within_tls_ends(self, served: Served, scheme: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", served.ports[scheme], ssl=context)
        served.writers.append(writer)
        pass_s(31)
        await ended(reader)
        await count(served, 0)
        assert bounded(served) == {"limits.connect_timeout": 1}

    async def test_who_goes_in_the_midst_of_tls_is_not_counted_as_slow(self, served: Served) -> None:
        await served.dial("mqtts")
        await count(served, 1)
        served.writers[-1].write(client_hello()[:20])
        served.writers[-1].close()
        await count(served, 0)
        assert not bounded(served)


def client_hello() -> bytes:
    """What a client says first, and would be answered."""
    out = ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return out.read()


async def dripping(writer: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):
        for byte in data:
            writer.write(bytes([byte]))
            await asyncio.sleep(DRIP_S)
