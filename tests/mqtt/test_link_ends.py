"""How a link ends and holds back, step by step: a transport that only notes, a server without a thread."""

import asyncio
from typing import Any, cast

from server.mqtt.encode import encode
from server.mqtt.link import Links, MqttLink
from server.mqtt.packets import Connect, Publish
from tests.mqtt.rig import Rig, config


class Transport:
    """What a link does to its socket."""

    def __init__(self) -> None:
        self.out = b""
        self.is_paused = self.is_over = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.out += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_over = True

    def close(self) -> None:
        self.is_over = True

    abort = close


class Served:
    """A rig whose connections are links."""

    def __init__(self, **keys: int) -> None:
        self.rig = Rig(config(**keys))
        self.links = Links(self.rig.core.broker)

    async def link(self, client_id: str) -> tuple[MqttLink, Transport]:
        link, transport = self.begin()
        link.data_received(encode(Connect(5, client_id), 5))
        await self.settle()
        assert connection_of(link).is_open
        return link, transport

    def begin(self) -> tuple[MqttLink, Transport]:
        link, transport = MqttLink(self.rig.core.broker, asyncio.get_running_loop(), self.links), Transport()
        link.connection_made(cast("Any", transport))
        return link, transport

    async def settle(self) -> None:
        """Until nothing moves, on either side."""
        for _ in range(2_000):
            self.rig.pump()
            await asyncio.sleep(0)
            if not self.rig.core.writer.queued:
                await asyncio.sleep(0)


def connection_of(link: MqttLink) -> Any:
    return link._connection


async def test_who_keeps_too_much_is_read_to_its_end() -> None:
    """Ended in the middle of what it sends: what still comes is read and dropped, or the reason is lost."""
    served = Served(in_bytes=1 << 16)
    link, transport = await served.link("a")
    data = encode(Publish(b"a", bytes(200_000)), 5)
    link.data_received(data[:60_000])
    await served.settle()
    link.data_received(data[60_000:120_000])
    assert transport.is_over
    assert not transport.is_paused
    assert served.links.kept_bytes == 0
