"""`fasti.Client`: one server, or a cluster of them, both sides.

Scheduling and looking go over HTTP, receiving goes over MQTT. Where MQTT listens is asked once from `GET
/v1/info`, unless `mqtt=` says it. The client holds a connection pool and the open subscriptions; it has no
state that a second client would not have, and belongs to the event loop it is first used in.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Self, Unpack
from weakref import WeakSet

from yarl import URL

from .addresses import Broker, Brokers, Plain, addresses, broker, listener_of
from .admin import Cluster, Jobs, Server, Sessions, Slices, Timeline
from .answers import Info
from .endpoints import Endpoints
from .entries import Dead, Retries
from .errors import Error, Refused, Unencrypted, Unreachable
from .groups import Groups
from .messages import Messages
from .options import SubscribeOptions
from .pull import DEFAULT_LEASE, DEFAULT_WAIT, Pull
from .schedules import Schedules
from .signatures import check, unfolded
from .subscribe import SubscribeRequest, Subscription
from .tls import Cert, File, Tls
from .transport import Retry, Transport
from .wire import Span, dumps, parse_instant, span

DEFAULT_URL = "http://127.0.0.1:8080"


@unfolded
class Client:
    """Speaks to one server. Use it as `async with`, or call `close()` at the end.

    `url` defaults to FASTI_URL, else to http://127.0.0.1:8080; `key` to FASTI_KEY; `mqtt` is "host:port",
    or a URL with mqtt://, mqtts://, ws:// or wss://; default: as the server says, with TLS if `url` is https.
    A cluster has several addresses, of both kinds: a sequence, or text with commas between them.

    `ca` is a file of CA certificates to trust in place of the system's, default FASTI_CA; `cert` a client
    certificate, with its key in the same file or as (certificate, key); both for HTTP and MQTT, PEM. With an
    https address plain MQTT is refused (Unencrypted), and with a key http to another machine warns, unless
    `allow_plain`. `timeout` bounds one HTTP attempt, in seconds; `retry` says how often and how long to try.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        key: str | None = None,
        mqtt: str | Sequence[str] | None = None,
        ca: File | None = None,
        cert: Cert | None = None,
        allow_plain: bool = False,
        timeout: float = 30.0,
        retry: Retry | None = None,
    ) -> None:
        self._retry = retry or Retry()
        key = key or os.environ.get("FASTI_KEY")
        self._plain = Plain(key, allowed=allow_plain)
        self._transport = Transport(
            url or os.environ.get("FASTI_URL") or DEFAULT_URL,
            key=key,
            plain=self._plain,
            tls=Tls(ca or os.environ.get("FASTI_CA") or None, cert),
            timeout_s=timeout,
            retry=self._retry,
        )
        self._brokers = () if mqtt is None else tuple(broker(text) for text in addresses(mqtt, "mqtt"))
        self._plain.warn(*map(URL, self._transport.servers.given), *self._brokers)
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._pulls: WeakSet[Pull] = WeakSet()
        self.messages = Messages(self._transport)
        self.schedules = Schedules(self._transport)
        self.sessions = Sessions(self._transport)
        self.groups = Groups(self._transport)
        self.endpoints = Endpoints(self._transport)
        self.retries = Retries(self._transport)
        self.dead = Dead(self._transport)
        self.slices = Slices(self._transport)
        self.jobs = Jobs(self._transport)
        self.server = Server(self._transport)
        self.cluster = Cluster(self._transport)
        self.timeline = Timeline(self._transport)

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """The server's base URL; for a cluster, that of the node for the next call."""
        return self._transport.servers.current

    async def close(self) -> None:
        """Finish requests in progress, then close subscriptions and connections."""
        await self.messages.close()
        for subscription in tuple(self._subscriptions):
            await subscription.aclose()
        for pull in tuple(self._pulls):
            await pull.aclose()
        await self._transport.close()

    async def info(self) -> Info:
        """Version, node, clock, MQTT listeners."""
        return Info.of(await self._transport.ask("GET", "/v1/info"))

    async def advance(self, by: Span) -> datetime:
        """Advance a simulated clock; returns the new time.

        Answers when all that became due on the way has been dispatched. Raises Refused on a server that
        runs on the system's clock.
        """
        answer = await self._transport.call(
            "POST", "/v1/clock:advance", body=dumps({"by": span(by, "by")}), repeatable=False, timeout_s=0
        )
        now = answer.body.get("now") if isinstance(answer.body, dict) else None
        return parse_instant(now) if isinstance(now, str) else (await self.info()).now

    def subscribe(self, topic_filter: str, **options: Unpack[SubscribeOptions]) -> Subscription:
        """Receive what matches the filter: `async for d in client.subscribe(...)`.

        Errors come from the loop: Unreachable if the first connection fails, Refused when the server says no,
        with its `reason_code`. Raises BadArgument (a ValueError) for invalid arguments, such as an empty name
        or a group that contains `/`, `+` or `#`.
        """
        check(SubscribeOptions.__optional_keys__, options)
        return self._open([SubscribeRequest(topic_filter, **options)])

    def _open(self, requests: Sequence[SubscribeRequest]) -> Subscription:
        """Several filters over one connection."""
        brokers = Brokers(self._find_brokers, self._has_other_brokers, self._plain)
        tls, key = self._transport.tls, self._transport.key
        return Subscription(requests, brokers, tls, key, self._retry, self._subscriptions)

    def pull(
        self,
        group: str,
        topic_filter: str | None = None,
        *,
        max: int = 100,  # noqa: A002 - as the server calls it
        wait: Span = DEFAULT_WAIT,
        lease: Span = DEFAULT_LEASE,
    ) -> Pull:
        """Take messages of a group over HTTP: `async for job in client.pull(...)`, each leased for `lease`.

        With a filter the group is created if missing; without one, all groups of that name are used. `max`:
        maximum messages leased at once; `wait`: how long the server waits for the first. Errors come from the
        loop: Unreachable if the first request fails, NotFound if there is no such group, Refused. Raises
        BadArgument.
        """
        made = Pull(self._transport, group, topic_filter, max=max, wait=wait, lease=lease)
        self._pulls.add(made)
        return made

    def _has_other_brokers(self) -> bool:
        return len(self._brokers) > 1 or (not self._brokers and self._transport.servers.is_cluster)

    async def _find_brokers(self) -> tuple[Broker, ...]:
        """The given brokers, or the server's. A cluster is asked each time: its leader may change."""
        if self._brokers:
            for given in self._brokers if self._transport.servers.has_tls else ():
                self._check(given, f"mqtt={str(given)!r}")
            return self._brokers
        try:
            answer = await self._transport.call("GET", "/v1/info")
        except Refused as error:
            if self._transport.servers.is_cluster and error.problem.status in (429, 503):
                raise Unreachable(str(error)) from error  # no leader yet: no reason to give a subscription up
            raise
        found = listener_of(Info.of(answer.object()).mqtt, answer.url)
        if found is None:
            raise Error(f"{answer.url} names no MQTT listener; give mqtt='host:port' if there is one")
        if answer.url.startswith("https://"):
            self._check(found, f"{answer.url} names no MQTT listener with TLS, only {found}")
        self._plain.warn(found)
        if not self._transport.servers.is_cluster:
            self._brokers = (found,)
        return (found,)

    def _check(self, one: Broker, what: str) -> None:
        """Raises Unencrypted for a plain broker beside https."""
        if not (one.has_tls or self._plain.allowed):
            raise Unencrypted(
                f"{what}, while the address is https: the key and the messages would go in clear. Give the"
                " server a listener with mqtts:// (mqtt.listen, or mqtt.public_urls behind a proxy), name one"
                " as mqtt='mqtts://host:port', or set allow_plain=True (--allow-plain)"
            )
