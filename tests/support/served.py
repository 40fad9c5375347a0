"""A server in this process, with real sockets: one listener of each kind."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from server.engine.clock import SystemClock
from server.mqtt.link import Links, MqttLink
from server.mqtt.listeners import Listeners, mqtt_listeners
from server.net.acceptor import Ports
from server.net.crowd import Cause, Crowd, mqtt_bounds
from server.net.loop_time import LoopTime
from server.net.proxies import proxies_of
from server.net.tls import Certificates, mqtt_certificates
from server.rounds.app import App
from server.settings.config import Config
from server.settings.kinds import Address
from shards.rocks import RocksStore
from tests.support.rig import config

TLS = Path(__file__).parent / "tls"
SCHEMES = ("mqtt", "mqtts", "ws", "wss")


class Served:
    """A server and where it listens, by scheme."""

    def __init__(
        self, app: App, listeners: Listeners, ports: dict[str, int], certificates: Certificates | None
    ) -> None:
        self.app = app
        self.certificates = certificates
        self.listeners = listeners
        self.ports = ports
        self.writers: list[asyncio.StreamWriter] = []
        """Closed in the end."""
        self.loop = asyncio.get_running_loop()

    async def dial(
        self, scheme: str = "mqtt", address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection from there that has said nothing, but for what a handshake of TLS says."""
        name = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.ports[scheme], local_addr=(address, 0), ssl=tls, server_hostname=name
        )
        self.writers.append(writer)
        return reader, writer


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def ended(reader: asyncio.StreamReader) -> None:
    """Read to the end of the stream, which may be a reset."""
    async with asyncio.timeout(60):
        with suppress(ConnectionError):
            while await reader.read(65_536):
                """More comes."""


def everywhere(**keys: Any) -> Config:
    """Settings with all listeners; the others as in `config`."""
    listen = tuple(Address("127.0.0.1", 0, scheme) for scheme in SCHEMES)
    return config(listen=listen, tls_cert=str(TLS / "cert.pem"), tls_key=str(TLS / "key.pem"), **keys)


@asynccontextmanager
async def serve(data: Path, settings: Config) -> AsyncIterator[Served]:
    """Run it on this loop."""
    app = App(settings, SystemClock(), RocksStore(data), fatal=lambda: None)
    await app.start()
    certificates = mqtt_certificates(settings)
    metrics, loop_time = app.metrics, LoopTime(time.monotonic, app.core.part)
    crowd = Crowd[MqttLink](
        mqtt_bounds(settings.limits), metrics.bounded_mqtt, metrics.tell_mqtt, proxies_of(settings)
    )
    links = Links(crowd, app.pool, app.core.publishing, app.outgoing, loop_time)
    listeners = mqtt_listeners(app.core.mqtt, app.keyring, certificates, links, loop_time, Ports())
    where = await listeners.open()
    made = Served(
        app,
        listeners,
        {at.scheme: at.port for at in where},
        certificates,
    )
    try:
        yield made
    finally:
        for writer in made.writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        listeners.close()
        await crowd.close(Cause.STOPPING, 5)
        await app.stop()
