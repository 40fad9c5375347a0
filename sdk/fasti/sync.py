"""The blocking twin: the same calls without `await`.

    with fasti.sync.Client() as c:
        m = c.messages.schedule("orders/17/remind", "soon", delay=90)
        with c.subscribe("orders/#", session="audit") as deliveries:
            for d in deliveries:
                print(d.text())
                d.ack()

A private thread runs an event loop with an ordinary `fasti.Client` in it; each call here is handed to that
loop and waited for. So it may be used from several threads at once, and their concurrent `schedule()` calls
share requests too. Not for use inside a running event loop: it would block it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, Unpack

from . import admin as _admin
from . import client as _client
from . import delivery as _delivery
from . import subscribe as _subscribe
from . import timeline as _timeline
from .blocking import Loop
from .delivery import Received
from .options import SubscribeOptions
from .pull import DEFAULT_LEASE, DEFAULT_WAIT
from .sync_dead import Dead
from .sync_groups import Endpoints, Groups, Pull, Pulled
from .sync_jobs import Cluster, Jobs, Server
from .sync_messages import ByKey, Message, Messages
from .sync_schedules import Schedules
from .transport import Retry
from .wire import Json, Span, When

__all__ = [
    "ByKey",
    "Client",
    "Cluster",
    "Dead",
    "Delivery",
    "Endpoints",
    "Groups",
    "Jobs",
    "Message",
    "Messages",
    "Pull",
    "Pulled",
    "Schedules",
    "Server",
    "Sessions",
    "Slices",
    "Subscription",
    "Timeline",
]


class Sessions:
    """See `fasti.admin.Sessions`."""

    def __init__(self, loop: Loop, inner: _admin.Sessions) -> None:
        self._loop = loop
        self._inner = inner

    def list(self) -> Iterator[_admin.Session]:
        """All sessions, connected and away."""
        return self._loop.iterate(self._inner.list())

    def get(self, client_id: str) -> _admin.Session:
        """Raises NotFound."""
        return self._loop.run(self._inner.get(client_id))

    def remove(self, client_id: str) -> None:
        """Forget the session."""
        self._loop.run(self._inner.remove(client_id))

    def replay(self, client_id: str, since: When | timedelta) -> Json:
        """Set the read position back."""
        return self._loop.run(self._inner.replay(client_id, since))


class Slices:
    """See `fasti.admin.Slices`."""

    def __init__(self, loop: Loop, inner: _admin.Slices) -> None:
        self._loop = loop
        self._inner = inner

    def list(self) -> Iterator[_admin.Slice]:
        """All slices in order of time."""
        return self._loop.iterate(self._inner.list())

    def get(self, start: When) -> _admin.Slice:
        """One slice with its shards."""
        return self._loop.run(self._inner.get(start))

    def shard(self, start: When, number: int) -> _admin.Shard:
        """One shard."""
        return self._loop.run(self._inner.shard(start, number))


class Timeline:
    """See `fasti.timeline.Timeline`."""

    def __init__(self, loop: Loop, inner: _timeline.Timeline) -> None:
        self._loop = loop
        self._inner = inner

    def density(
        self,
        *,
        start: When | None = None,
        end: When | None = None,
        bucket: Span = 60,
        topic: str | None = None,
    ) -> _timeline.Density:
        """Exact counts per bucket."""
        return self._loop.run(self._inner.density(start=start, end=end, bucket=bucket, topic=topic))


class Delivery(Received):
    """See `fasti.Delivery`."""

    __slots__ = ("_inner", "_loop")

    def __init__(self, loop: Loop, inner: _delivery.Delivery) -> None:
        super().__init__(inner._came)
        self._loop = loop
        self._inner = inner

    def ack(self) -> bool:
        """Say that the message is done with; what the answer means: `fasti.Delivery.ack`."""
        return self._loop.run(self._inner.ack())

    def nack(self, delay: timedelta | float | None = None, reason: str | None = None) -> bool:
        """Say that it is not done: it comes again after `delay`, or after the subscription's back-off."""
        return self._loop.run(self._inner.nack(delay, reason))

    def reject(self, reason: str | None = None) -> bool:
        """Say that it never can be done: it is a dead letter at once, with `reason`."""
        return self._loop.run(self._inner.reject(reason))

    def extend(self, span: Span) -> bool:
        """Hold on to it for `span` from now; False: it is not ours any more."""
        return self._loop.run(self._inner.extend(span))


class Subscription:
    """A blocking iterator of deliveries; `close()` or leaving the `with` disconnects."""

    def __init__(self, loop: Loop, inner: _subscribe.Subscription) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def connections(self) -> int:
        """How many network connections have come up."""
        return self._inner.connections

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        return Delivery(self._loop, self._loop.step(self._inner))

    def __enter__(self) -> Self:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. May be called from another thread; the loop then ends."""
        self._loop.run(self._inner.aclose())


class Client:
    """`fasti.Client` for code without an event loop; the same arguments."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        key: str | None = None,
        mqtt: str | Sequence[str] | None = None,
        timeout: float = 30.0,
        retry: Retry | None = None,
    ) -> None:
        self._inner = _client.Client(url, key=key, mqtt=mqtt, timeout=timeout, retry=retry)
        self._loop = Loop()
        self.messages = Messages(self._loop, self._inner.messages)
        self.schedules = Schedules(self._loop, self._inner.schedules)
        self.sessions = Sessions(self._loop, self._inner.sessions)
        self.groups = Groups(self._loop, self._inner.groups)
        self.endpoints = Endpoints(self._loop, self._inner.endpoints)
        self.dead = Dead(self._loop, self._inner.dead)
        self.slices = Slices(self._loop, self._inner.slices)
        self.jobs = Jobs(self._loop, self._inner.jobs)
        self.server = Server(self._loop, self._inner.server)
        self.cluster = Cluster(self._loop, self._inner.cluster)
        self.timeline = Timeline(self._loop, self._inner.timeline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections and end the thread."""
        if not self._loop.is_closed:
            self._loop.run(self._inner.close())
            self._loop.close()

    @property
    def url(self) -> str:
        """The server's base URL; of a cluster, that of the node which the next call is sent to."""
        return self._inner.url

    def info(self) -> _admin.Info:
        """Version, node, clock, MQTT listeners."""
        return self._loop.run(self._inner.info())

    def advance(self, by: Span) -> datetime:
        """Move a simulated clock on."""
        return self._loop.run(self._inner.advance(by))

    def subscribe(self, topic_filter: str, **options: Unpack[SubscribeOptions]) -> Subscription:
        """Receive what matches the filter; `options` and errors as of `fasti.Client.subscribe`."""
        inner = self._inner.subscribe(topic_filter, **options)
        return Subscription(self._loop, inner)

    def pull(
        self,
        group: str,
        topic_filter: str | None = None,
        *,
        max: int = 100,  # noqa: A002 - as the server calls it
        wait: timedelta | float = DEFAULT_WAIT,
        lease: timedelta | float = DEFAULT_LEASE,
    ) -> Pull:
        """Take messages of a group over HTTP; arguments and errors as of `fasti.Client.pull`."""
        inner = self._inner.pull(group, topic_filter, max=max, wait=wait, lease=lease)
        return Pull(self._loop, inner)
