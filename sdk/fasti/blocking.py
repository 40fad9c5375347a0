"""The base of `fasti.sync`: an event loop in its own thread, and objects that forward calls to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Generic, TypeVar

from .warned import calling, warn

T = TypeVar("T")
_BLOCKED = "fasti.sync.Client blocks the event loop that runs in this thread; use fasti.Client and await"


def is_in_loop() -> bool:
    """Whether an event loop runs in this thread."""
    return asyncio._get_running_loop() is not None


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fasti", daemon=True)
        self._thread.start()
        self._has_warned = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result; Ctrl-C cancels it."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        if asyncio._get_running_loop() is not None and not self._has_warned:
            self._has_warned = True
            warn(_BLOCKED)
        future = calling().run(asyncio.run_coroutine_threadsafe, work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def step(self, items: AsyncIterator[T]) -> T:
        """The next item. Raises StopIteration at the end."""
        try:
            return self.run(_next(items))
        except StopAsyncIteration:
            raise StopIteration from None

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The async iterator, one blocking step at a time."""
        while True:
            try:
                item = self.step(items)
            except StopIteration:
                return
            yield item

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last`, stop the loop and end the thread; a second call does nothing."""
        if self.is_closed:
            last.close()
            return
        self.run(last)
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


class Facade(Generic[T]):
    """The blocking form of an object of the async client."""

    def __init__(self, loop: Loop, inner: T) -> None:
        self._loop = loop
        self._inner = inner


class Value(Facade[T]):
    """A facade that is compared, hashed and shown as the object behind it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self._inner == other._inner

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)
