"""`client.groups`, `client.endpoints` and `client.pull` of the blocking client. See `fasti.sync`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Self, Unpack

from . import endpoints as _endpoints
from . import groups as _groups
from . import pull as _pull
from .blocking import Loop
from .endpoints import Endpoint
from .groups import Group
from .options import EndpointOptions, GroupOptions
from .wire import Json, Span, When


class Groups:
    """See `fasti.groups.Groups`."""

    def __init__(self, loop: Loop, inner: _groups.Groups) -> None:
        self._loop = loop
        self._inner = inner

    def list(self) -> Iterator[Group]:
        """All groups."""
        return self._loop.iterate(self._inner.list())

    def get(self, name: str) -> tuple[Group, ...]:
        """Those of one name, one for each filter."""
        return self._loop.run(self._inner.get(name))

    def put(self, name: str, topic_filter: str, **options: Unpack[GroupOptions]) -> Group:
        """Make it ahead of its first member, or change its terms."""
        return self._loop.run(self._inner.put(name, topic_filter, **options))

    def delete(self, name: str, topic_filter: str | None = None) -> None:
        """Forget its place."""
        self._loop.run(self._inner.delete(name, topic_filter))

    def pause(self, name: str, topic_filter: str | None = None) -> tuple[Group, ...]:
        """Give out nothing; its place stays."""
        return self._loop.run(self._inner.pause(name, topic_filter))

    def resume(self, name: str, topic_filter: str | None = None) -> tuple[Group, ...]:
        """Go on where it stood."""
        return self._loop.run(self._inner.resume(name, topic_filter))

    def replay(
        self, name: str, since: When | timedelta, topic_filter: str | None = None
    ) -> tuple[Group, ...]:
        """Set its place back to an instant, or by a duration."""
        return self._loop.run(self._inner.replay(name, since, topic_filter))


class Endpoints:
    """See `fasti.endpoints.Endpoints`."""

    def __init__(self, loop: Loop, inner: _endpoints.Endpoints) -> None:
        self._loop = loop
        self._inner = inner

    def list(self) -> Iterator[Endpoint]:
        """All endpoints in order of their names."""
        return self._loop.iterate(self._inner.list())

    def get(self, name: str) -> Endpoint:
        """Raises NotFound."""
        return self._loop.run(self._inner.get(name))

    def put(self, name: str, url: str, **options: Unpack[EndpointOptions]) -> Endpoint:
        """Make it, or change it in place."""
        return self._loop.run(self._inner.put(name, url, **options))

    def delete(self, name: str) -> None:
        """Forget it and its place."""
        self._loop.run(self._inner.delete(name))

    def pause(self, name: str) -> Endpoint:
        """Post nothing; its place stays."""
        return self._loop.run(self._inner.pause(name))

    def resume(self, name: str) -> Endpoint:
        """Go on where it stood."""
        return self._loop.run(self._inner.resume(name))

    def replay(self, name: str, since: When | timedelta) -> Endpoint:
        """Set its place back to an instant, or by a duration."""
        return self._loop.run(self._inner.replay(name, since))

    def test(self, name: str) -> Json:
        """Have the server post a message for trial now; what came of it."""
        return self._loop.run(self._inner.test(name))


class Pulled(_pull.Leased):
    """See `fasti.Pulled`."""

    __slots__ = ("_inner", "_loop")

    def __init__(self, loop: Loop, inner: _pull.Pulled) -> None:
        super().__init__(inner.raw)
        self._loop = loop
        self._inner = inner

    def ack(self) -> bool:
        """Say that the message is done with; what the answer means: `fasti.Pulled.ack`."""
        return self._loop.run(self._inner.ack())

    def nack(self, delay: Span | None = None, reason: str | None = None) -> bool:
        """Say that it is not done: it comes again after `delay`, or after the group's back-off."""
        return self._loop.run(self._inner.nack(delay, reason))

    def reject(self, reason: str | None = None) -> bool:
        """Say that it never can be done: it is a dead letter at once, with `reason`."""
        return self._loop.run(self._inner.reject(reason))

    def extend(self, lease: Span) -> bool:
        """Hold on to it for so long from now."""
        return self._loop.run(self._inner.extend(lease))


class Pull:
    """A blocking iterator of leased messages; `close()` or leaving the `with` gives back what is left."""

    def __init__(self, loop: Loop, inner: _pull.Pull) -> None:
        self._loop = loop
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Pulled:
        return Pulled(self._loop, self._loop.step(self._inner))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the loop. May be called from another thread."""
        self._loop.run(self._inner.aclose())
