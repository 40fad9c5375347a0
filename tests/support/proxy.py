"""Networks that can be cut: TCP proxies on loopback, each way held up until it is healed.

A cut loses nothing and says nothing, as between machines: connections stay, new ones are taken and not
answered, what was on the way arrives when it is healed. All proxies are served by one thread.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PIECE_BYTES = 1 << 16


class Proxy:
    """The way to one port of loopback, by `port`."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._server: asyncio.Server
        self._pairs: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._is_open.clear()

    def heal(self) -> None:
        self._is_open.set()

    async def close(self) -> None:
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(5):  # who was just accepted has a task then; a server that has closed would forget it
            await asyncio.sleep(0)
        self._server.close()
        for pair in self._pairs:
            pair.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)
        await asyncio.sleep(0)  # their transports end in the loop's next turn

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = asyncio.current_task()
        assert pair is not None
        self._pairs.add(pair)
        try:
            await self._is_open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                await self._both_ways((reader, writer), (far_reader, far_writer))
            finally:
                far_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # who is not there is known by the connection that ends
        finally:
            writer.transport.abort()
            self._pairs.discard(pair)

    async def _both_ways(self, here: Stream, there: Stream) -> None:
        """Until one of the two ends."""
        ways = [
            asyncio.create_task(self._pass(here[0], there[1])),
            asyncio.create_task(self._pass(there[0], here[1])),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                await self._is_open.wait()
                writer.write(piece)
                await writer.drain()
        await self._is_open.wait()  # an end does not pass either


class Network:
    """The proxies and the thread that serves them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._proxies: dict[tuple[str, int], Proxy] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="network")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def way(self, who: str, target: int) -> int:
        """The port by which `who` reaches `target`; the same one each time."""
        if (who, target) not in self._proxies:
            proxy = Proxy(target)
            self._run(proxy.open())
            self._proxies[who, target] = proxy
        return self._proxies[who, target].port

    def cut(self, who: str) -> None:
        """Nothing passes any more on the ways of this one, from now on."""
        self._each(who, Proxy.cut)

    def heal(self, who: str) -> None:
        self._each(who, Proxy.heal)

    def _each(self, who: str, act: Callable[[Proxy], None]) -> None:
        async def acted() -> None:
            for (name, _), proxy in self._proxies.items():
                if name == who:
                    act(proxy)

        self._run(acted())

    async def _close(self) -> None:
        for proxy in self._proxies.values():
            await proxy.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
