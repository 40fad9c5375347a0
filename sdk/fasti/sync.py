# Below this head: written by sdk/generate.py from client.py and the files that it leads to, do not edit.
"""The blocking twin: the same calls without `await`.

    with fasti.sync.Client() as c:
        m = c.messages.schedule("orders/17/remind", "soon", delay=90)
        with c.subscribe("orders/#", session="audit") as deliveries:
            for d in deliveries:
                print(d.text())
                d.ack()

A private thread runs an event loop with an ordinary `fasti.Client` in it; each call here is handed to that
loop and waited for. So it may be used from several threads at once, and their concurrent `schedule()` calls
share requests too. The private thread also reads the iterables that it is given and calls the callbacks. Not
for use inside a running event loop: it would block it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Self, Unpack

from . import admin as _admin
from . import client as _client
from . import delivery as _delivery
from . import endpoints as _endpoints
from . import entries as _entries
from . import groups as _groups
from . import messages as _messages
from . import pull as _pull
from . import schedules as _schedules
from . import subscribe as _subscribe
from .admin import POLL_S
from .answers import (
    BulkResult,
    ClusterState,
    Commit,
    DeadLetter,
    Density,
    Endpoint,
    Group,
    Info,
    Job,
    OrderingKey,
    Schedule,
    Session,
    Shard,
    Skipped,
    Slice,
    Upserted,
    WaitingRetry,
    Why,
)
from .blocking import Facade, Loop, Value
from .bulk import Items
from .coalesce import MAX_ITEMS
from .delivery import Received
from .messages import Shown, Version
from .options import (
    DeadSelection,
    Door,
    Due,
    EndpointOptions,
    GroupOptions,
    Listed,
    MessageOptions,
    RetrySelection,
    ScheduleOptions,
    Selection,
    SubscribeOptions,
    Timing,
)
from .places import Fate
from .pull import DEFAULT_LEASE, DEFAULT_WAIT, Leased
from .ranges import OnProgress
from .schedules import Fires
from .signatures import unfolded
from .tls import Cert, File
from .transport import PAGE_MAX, Retry
from .wire import NO_PAYLOAD, Json, Key, KeyScope, NewMessage, Span, When

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
    "Retries",
    "Schedules",
    "Server",
    "Sessions",
    "Slices",
    "Subscription",
    "Timeline",
]


@unfolded
class ByKey(Value[_messages.ByKey]):
    """The message under an idempotency key. Each call looks the message up again.

    Each raises NotFound if nobody has used the key, or it has been forgotten, or its message is past the
    server's retention: then `error.slug` is "gone", and whether it went out is not known any more.
    """

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self._inner.key

    def get(self) -> Message:
        """The message in its current state."""
        return Message(self._loop, self._loop.run(self._inner.get()))

    def cancel(self, *, strict: bool = False, version: Version | None = None) -> bool:
        """True: nobody will get it (also if it was cancelled before). False: it was already dispatched.

        With `strict` raises AlreadyDispatched instead, which lists the deliveries that are left.

        `version`: as in `upsert`. The server remembers it even if no message is known under the key, and
            False may also mean that a higher one is known, so that nothing is cancelled.
        """
        return self._loop.run(self._inner.cancel(strict=strict, version=version))

    def upsert(
        self,
        topic: str = "",
        payload: Any = NO_PAYLOAD,
        *,
        version: Version | None = None,
        **options: Unpack[MessageOptions],
    ) -> Upserted:
        """Make the message under the key, or change the pending one, all of it; its id stays.

        A cancelled one is made anew. Raises AlreadyDispatched if it is too late, but for a higher version,
        which makes a new message, and with `key_scope="pending"` once the old one is finished everywhere.
        With `late="drop"` and a time that has passed the pending one is cancelled, and `state` says so.

        `topic`, `payload`: as in `schedule`.
        `version`: two integers, compared in order. One that is not above the highest so far changes nothing,
            so calls with versions may be repeated and may overtake each other.
        """
        return self._loop.run(self._inner.upsert(topic, payload, version=version, **options))

    def reschedule(self, **when: Unpack[Due]) -> Message:
        """Move it; its id and its key stay. Raises AlreadyDispatched, and Refused if it was cancelled."""
        return Message(self._loop, self._loop.run(self._inner.reschedule(**when)))


@unfolded
class Client(Facade[_client.Client]):
    """Speaks to one server. Use it as `with`, or call `close()` at the end.

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
        inner = _client.Client(
            url, key=key, mqtt=mqtt, ca=ca, cert=cert, allow_plain=allow_plain, timeout=timeout, retry=retry
        )
        super().__init__(Loop(), inner)
        self.messages = Messages(self._loop, inner.messages)
        self.schedules = Schedules(self._loop, inner.schedules)
        self.sessions = Sessions(self._loop, inner.sessions)
        self.groups = Groups(self._loop, inner.groups)
        self.endpoints = Endpoints(self._loop, inner.endpoints)
        self.retries = Retries(self._loop, inner.retries)
        self.dead = Dead(self._loop, inner.dead)
        self.slices = Slices(self._loop, inner.slices)
        self.jobs = Jobs(self._loop, inner.jobs)
        self.server = Server(self._loop, inner.server)
        self.cluster = Cluster(self._loop, inner.cluster)
        self.timeline = Timeline(self._loop, inner.timeline)

    def __enter__(self) -> Self:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The server's base URL; for a cluster, that of the node for the next call."""
        return self._inner.url

    def close(self) -> None:
        """Finish requests in progress, then close subscriptions and connections."""
        self._loop.close(self._inner.close())

    def info(self) -> Info:
        """Version, node, clock, MQTT listeners."""
        return self._loop.run(self._inner.info())

    def advance(self, by: Span) -> datetime:
        """Advance a simulated clock; returns the new time.

        Answers when all that became due on the way has been dispatched. Raises Refused on a server that
        runs on the system's clock.
        """
        return self._loop.run(self._inner.advance(by))

    def subscribe(self, topic_filter: str, **options: Unpack[SubscribeOptions]) -> Subscription:
        """Receive what matches the filter: `for d in client.subscribe(...)`.

        Errors come from the loop: Unreachable if the first connection fails, Refused when the server says no,
        with its `reason_code`. Raises BadArgument (a ValueError) for invalid arguments, such as an empty name
        or a group that contains `/`, `+` or `#`.
        """
        return Subscription(self._loop, self._inner.subscribe(topic_filter, **options))

    def pull(
        self,
        group: str,
        topic_filter: str | None = None,
        *,
        max: int = 100,
        wait: Span = DEFAULT_WAIT,
        lease: Span = DEFAULT_LEASE,
    ) -> Pull:
        """Take messages of a group over HTTP: `for job in client.pull(...)`, each leased for `lease`.

        With a filter the group is created if missing; without one, all groups of that name are used. `max`:
        maximum messages leased at once; `wait`: how long the server waits for the first. Errors come from the
        loop: Unreachable if the first request fails, NotFound if there is no such group, Refused. Raises
        BadArgument.
        """
        return Pull(self._loop, self._inner.pull(group, topic_filter, max=max, wait=wait, lease=lease))


class Cluster(Facade[_admin.Cluster]):
    """Calls on `/v1/cluster`."""

    def status(self) -> ClusterState:
        """The cluster as the answering node sees it. Raises NotFound if the server is not in a cluster.

        Every node answers for itself. The table of all nodes is the leader's; the others have the last one
        that they received.
        """
        return self._loop.run(self._inner.status())


@unfolded
class Dead(Facade[_entries.Dead]):
    """Calls on `/v1/dead`."""

    def list(
        self, *, limit: int | None = None, page: int = PAGE_MAX, **chosen: Unpack[DeadSelection]
    ) -> Iterator[DeadLetter]:
        """Dead letters, ordered by the time at which they died. `limit` bounds the whole listing."""
        return self._loop.iterate(self._inner.list(limit=limit, page=page, **chosen))

    def count(self, **chosen: Unpack[DeadSelection]) -> int:
        """Their exact number."""
        return self._loop.run(self._inner.count(**chosen))

    def get(self, message_id: str) -> tuple[DeadLetter, ...]:
        """Dead letters of one message, one for each session or group that gave it up; may be empty."""
        return self._loop.run(self._inner.get(message_id))

    def requeue(
        self,
        ids: Iterable[str] | None = None,
        *,
        delay: Span | None = None,
        to: str | None = None,
        dry_run: bool = False,
        **chosen: Unpack[DeadSelection],
    ) -> BulkResult:
        """Send dead letters again, each to the session or group that gave it up: at once, or after `delay`.

        Give `ids` (of all groups, or of `group`), or at least one of the others. `to`: another place gets
        them, `$share/{group}/{filter}` or an endpoint's name. `changed` leaves out those whose session or
        group no longer exists. Raises Refused; not repeated when the connection is lost.
        """
        return self._loop.run(self._inner.requeue(ids, delay=delay, to=to, dry_run=dry_run, **chosen))

    def drop(
        self, ids: Iterable[str] | None = None, *, dry_run: bool = False, **chosen: Unpack[DeadSelection]
    ) -> BulkResult:
        """Delete them. Chosen as for `requeue`. Raises Refused; not repeated when the connection is lost."""
        return self._loop.run(self._inner.drop(ids, dry_run=dry_run, **chosen))


class Delivery(Received):
    """A received message that waits for one answer: `ack()`, `nack()` or `reject()`. The first one counts."""

    __slots__ = ("_inner", "_loop")

    def __init__(self, loop: Loop, inner: _delivery.Delivery) -> None:
        super().__init__(inner._came)
        self._loop = loop
        self._inner = inner

    def ack(self, *, result: Any = NO_PAYLOAD) -> bool:
        """Finish the message; the server does not send it to this session or group again.

        True: the ack has been written to the connection that the message came on. It waits while the server
        does not read. False: nothing was acked and nothing will be, because that connection has ended, be
        there a new one or not, or because the subscription is closed, or because it was nacked before. With a
        session the message comes again; in a group it goes to another member. It raises nothing. The first
        answer stays: a second call, also one at the same time or after a close, gives the same and sends
        nothing.

        It counts however late it comes, also when the message has gone to another member meanwhile.

        At QoS 2 with a session True is also said when the connection was lost: the message comes again under
        its packet id, is recognised, not handed out a second time, and acked then, as long as this
        subscription lives. At QoS 0 nothing is acked and nothing comes again: True.

        The server makes an ack durable a little later (QoS 1): if it is killed meanwhile, the message can
        come again after a True.

        `result`: JSON of at most 65,535 bytes, of a group's message at QoS 1 acked on its own connection.
        """
        return self._loop.run(self._inner.ack(result=result))

    def nack(self, delay: Span | None = None, reason: str | None = None) -> bool:
        """Return the message: this session or group, and no other, gets it again after `delay`.

        Without a delay after the back-off of the subscription, which grows from try to try. It waits on the
        server's timeline, and survives restarts of either side. After the subscription's `max_attempts` tries
        it is a dead letter, with `reason`. Raises ValueError for a negative delay.

        True: it has been written to the connection that the message came on. False: it was not, for the
        causes that `ack` has, or because there is nothing to try again (QoS 0).
        """
        return self._loop.run(self._inner.nack(delay, reason))

    def reject(self, reason: str | None = None) -> bool:
        """Give the message up: it becomes a dead letter at once, with `reason`.

        True and False as for `nack`.
        """
        return self._loop.run(self._inner.reject(reason))

    def extend(self, span: Span) -> bool:
        """Extend the lease: the server gives the message to no other member until `span` has passed.

        Needed only where the subscription has an `ack_timeout`. True: it is ours until then. False: it is not
        ours any more, as that time was over, or its connection has ended. In a group it waits for the next
        connection: if the server was away and holds it for us still, the `ack_timeout` begins anew. Raises
        Refused for more than 12 h, ValueError for less than nothing.
        """
        return self._loop.run(self._inner.extend(span))

    def progress(self, value: Any) -> bool:
        """Say how far the work on a group's message is, in JSON of at most 4 KiB, and `extend` its lease to
        the usual time; after a lost connection only this."""
        return self._loop.run(self._inner.progress(value))


@unfolded
class Endpoints(Facade[_endpoints.Endpoints]):
    """Calls on `/v1/endpoints`."""

    def list(self) -> Iterator[Endpoint]:
        """All endpoints, sorted by name."""
        return self._loop.iterate(self._inner.list())

    def get(self, name: str) -> Endpoint:
        """Raises NotFound."""
        return self._loop.run(self._inner.get(name))

    def put(self, name: str, url: str, **options: Unpack[EndpointOptions]) -> Endpoint:
        """Create or change an endpoint.

        Raises Refused, whose `errors` name the field: say a URL of a private address.
        """
        return self._loop.run(self._inner.put(name, url, **options))

    def delete(self, name: str, *, undone: Fate | None = None) -> None:
        """Delete the endpoint with its read position. `undone` and errors are as for a group."""
        self._loop.run(self._inner.delete(name, undone=undone))

    def pause(self, name: str) -> Endpoint:
        """Pause the endpoint; it keeps its read position. Raises NotFound."""
        return self._loop.run(self._inner.pause(name))

    def resume(self, name: str) -> Endpoint:
        """Resume at the kept read position. Raises NotFound."""
        return self._loop.run(self._inner.resume(name))

    def replay(self, name: str, since: When | timedelta) -> Endpoint:
        """Set the read position back to an instant, or by a duration. Raises NotFound, Refused."""
        return self._loop.run(self._inner.replay(name, since))

    def skip(self, name: str, to: When | timedelta = "now", undone: Fate = "dead") -> Skipped:
        """Skip the backlog, as for a group. Raises NotFound, Refused."""
        return self._loop.run(self._inner.skip(name, to, undone))

    def keys(self, name: str, *, limit: int | None = None) -> Iterator[OrderingKey]:
        """Ordering keys that are behind or in trouble, as of a group. Raises NotFound."""
        return self._loop.iterate(self._inner.keys(name, limit=limit))

    def hold(self, name: str, key: str) -> tuple[OrderingKey, ...]:
        """Post nothing more of an ordering key until `release`. Raises NotFound, Refused."""
        return self._loop.run(self._inner.hold(name, key))

    def release(self, name: str, key: str) -> tuple[OrderingKey, ...]:
        """Let a held ordering key go on. Raises NotFound, Refused."""
        return self._loop.run(self._inner.release(name, key))

    def test(self, name: str) -> Json:
        """Post a test message now, without the queue. Raises NotFound.

        Gives what came of it: `{"ok", "status", "latency_ms", "reason"}`.
        """
        return self._loop.run(self._inner.test(name))


@unfolded
class Groups(Facade[_groups.Groups]):
    """Calls on `/v1/groups`."""

    def list(self) -> Iterator[Group]:
        """All groups."""
        return self._loop.iterate(self._inner.list())

    def get(self, name: str) -> tuple[Group, ...]:
        """The groups of one name, one for each filter. Raises NotFound."""
        return self._loop.run(self._inner.get(name))

    def put(self, name: str, filter: str, **options: Unpack[GroupOptions]) -> Group:
        """Create the group before its first member joins, starting from now, or change its options.

        What is left out is the server's default again. Raises Refused.
        """
        return self._loop.run(self._inner.put(name, filter, **options))

    def delete(self, name: str, filter: str | None = None, *, undone: Fate | None = None) -> None:
        """Delete the group; its members receive nothing more. Raises NotFound.

        Raises StillUndone for a group that has something undone, unless `undone` says what becomes of it:
        "dead" or "drop".
        """
        self._loop.run(self._inner.delete(name, filter, undone=undone))

    def pause(self, name: str, filter: str | None = None) -> tuple[Group, ...]:
        """Pause the group, also over restarts; it keeps its read position. Raises NotFound."""
        return self._loop.run(self._inner.pause(name, filter))

    def resume(self, name: str, filter: str | None = None) -> tuple[Group, ...]:
        """Resume at the kept read position. Raises NotFound."""
        return self._loop.run(self._inner.resume(name, filter))

    def replay(self, name: str, since: When | timedelta, filter: str | None = None) -> tuple[Group, ...]:
        """Set the read position back to an instant, or by a duration. Raises NotFound, Refused."""
        return self._loop.run(self._inner.replay(name, since, filter))

    def skip(
        self, name: str, to: When | timedelta = "now", undone: Fate = "dead", filter: str | None = None
    ) -> Skipped:
        """Skip the backlog: continue at `to`, an instant or a duration back. Raises NotFound, Refused.

        `undone`: what becomes of what is left out: "dead" letters, or "drop".
        """
        return self._loop.run(self._inner.skip(name, to, undone, filter))

    def keys(
        self, name: str, filter: str | None = None, *, limit: int | None = None
    ) -> Iterator[OrderingKey]:
        """Ordering keys that are behind or in trouble, the one with the most waiting messages first.

        Raises NotFound.
        """
        return self._loop.iterate(self._inner.keys(name, filter, limit=limit))

    def hold(self, name: str, key: str, filter: str | None = None) -> tuple[OrderingKey, ...]:
        """Deliver nothing more of an ordering key until `release`. Raises NotFound, Refused."""
        return self._loop.run(self._inner.hold(name, key, filter))

    def release(self, name: str, key: str, filter: str | None = None) -> tuple[OrderingKey, ...]:
        """Let a held ordering key go on, whether by `hold` or by a dead letter. Raises NotFound, Refused."""
        return self._loop.run(self._inner.release(name, key, filter))


class Jobs(Facade[_admin.Jobs]):
    """Calls on `/v1/jobs`: work on whole slices, and the archive.

    A job goes on by itself; a `Job` is what the server last said of it. `wait` asks until it has ended.
    """

    def split(self, start: When, *, parts: int | None = None) -> Job:
        """Split a slice into narrower ones. `start`: its first instant.

        Raises NotFound; Refused with the slug `too-near`, `job-active` or `no-spark`.
        """
        return self._loop.run(self._inner.split(start, parts=parts))

    def expire(self) -> Job:
        """Drop the slices behind retention; with an archive those that it has. Raises Refused if there are
        none."""
        return self._loop.run(self._inner.expire())

    def archive(self) -> Job:
        """Archive what has passed. Raises Refused with the slug `nothing-to-do` if that is done."""
        return self._loop.run(self._inner.archive())

    def compact(self, date: str | None = None) -> Job:
        """Compact the archive's files of a day, such as "2026-12-01", or of the newest one that is worth it.

        Raises Refused with the slug `nothing-to-do` if there is none.
        """
        return self._loop.run(self._inner.compact(date))

    def commits(self, since: int = 0) -> Iterator[Commit]:
        """The archive's commits behind a number, in order. Raises Refused if these are recorded no longer."""
        return self._loop.iterate(self._inner.commits(since))

    def get(self, job_id: str) -> Job:
        """Raises NotFound."""
        return self._loop.run(self._inner.get(job_id))

    def list(self) -> Iterator[Job]:
        """Open jobs, and the last ones that ended."""
        return self._loop.iterate(self._inner.list())

    def wait(
        self, job_id: str, *, on_progress: Callable[[Job], None] | None = None, poll_s: float = POLL_S
    ) -> Job:
        """Wait until the job is done or aborted; each poll calls `on_progress`."""
        return self._loop.run(self._inner.wait(job_id, on_progress=on_progress, poll_s=poll_s))


@unfolded
class Message(Value[_messages.Message], Shown):
    """A scheduled message, as of the server's last answer."""

    @property
    def id(self) -> str:
        """Message id; a move does not change it."""
        return self._inner.id

    @property
    def topic(self) -> str:
        """Topic."""
        return self._inner.topic

    @property
    def deliver_at(self) -> datetime:
        """Due time, UTC."""
        return self._inner.deliver_at

    @property
    def state(self) -> str:
        """State in the last answer: pending, dispatched, cancelled, expired or withheld."""
        return self._inner.state

    @property
    def raw(self) -> Mapping[str, Any]:
        """The message object of the last answer."""
        return self._inner.raw

    @property
    def replayed(self) -> bool:
        """Whether the message existed under its key, so that `schedule()` created nothing. See `state`."""
        return self._inner.replayed

    def cancel(self) -> bool:
        """Cancel it. True: nobody will get it. False: already dispatched; `deliveries` says what is left."""
        return self._loop.run(self._inner.cancel())

    def reschedule(self, **when: Unpack[Due]) -> Self:
        """Move it; the id stays. Raises AlreadyDispatched when it is too late."""
        self._loop.run(self._inner.reschedule(**when))
        return self

    def refresh(self) -> Self:
        """Ask the server again."""
        self._loop.run(self._inner.refresh())
        return self


@unfolded
class Messages(Facade[_messages.Messages]):
    """Calls on `/v1/messages`."""

    def schedule(
        self,
        topic: str = "",
        payload: Any = NO_PAYLOAD,
        *,
        replace: bool = False,
        key_only: bool = False,
        claims: bool = False,
        debounce: tuple[Span, Span] | None = None,
        **options: Unpack[MessageOptions],
    ) -> Message:
        """Schedule one message for `at`, or for `delay` from now by the server's clock, or for now.

        `key` makes the call idempotent, also across processes. Without one, the client makes a key for its
        own retries. `replayed` of the answer says that the key was known, `state` is its message's state.
        Raises Refused if the key has another message, KeyCancelled if its message was cancelled.
        Concurrent calls share requests, but for those with `claims` or `debounce`. Within a span of
        OpenTelemetry the message takes its context along.

        `topic`: where it is published; optional with `deliver_to`.
        `payload`: bytes and str go as they are, anything else as JSON.
        `replace`: schedules this message if the one under the key was cancelled; a pending or dispatched one
            keeps the key.
        `key_only`: any message under the key counts as this one, whatever its content and time.
        `claims`: `claims` of the answer says how many places would get the message now.
        `debounce`: (wait, at most): the message under `key` is due `wait` after the last such call, and never
            later than the second span after the first one. The last payload wins; the id stays.
        """
        return Message(
            self._loop,
            self._loop.run(
                self._inner.schedule(
                    topic,
                    payload,
                    replace=replace,
                    key_only=key_only,
                    claims=claims,
                    debounce=debounce,
                    **options,
                )
            ),
        )

    def schedule_many(
        self,
        items: Items,
        *,
        batch: int = MAX_ITEMS,
        on_progress: Callable[[int], None] | None = None,
        ids: bool = False,
        replace: bool = False,
        key_only: bool = False,
        key_scope: KeyScope | None = None,
    ) -> int:
        """Stream any iterable, sync or async, in atomic batches; return how many were accepted.

        `ids`: items may bring the `id` that an export gave them; one that is taken is Refused. `replace` and
        `key_only`: as in `schedule`, of the keys of all items; each needs one. `key_scope`: of the keys that
        items bring, where they say nothing of it.
        """
        return self._loop.run(
            self._inner.schedule_many(
                items,
                batch=batch,
                on_progress=on_progress,
                ids=ids,
                replace=replace,
                key_only=key_only,
                key_scope=key_scope,
            )
        )

    def get(self, message_id: str) -> Message:
        """Raises NotFound."""
        return Message(self._loop, self._loop.run(self._inner.get(message_id)))

    def by_key(self, key: Key, *, door: Door = "http") -> ByKey:
        """The message that was scheduled under `key`, to look at, cancel or move; nothing is asked yet.

        Keys are each API key's own. `door`: by which one the message came; keys of MQTT are others.
        """
        return ByKey(self._loop, self._inner.by_key(key, door=door))

    def explain(self, message_id: str) -> Json:
        """Storage details: slice, shard, structure, position, when it enters RAM."""
        return self._loop.run(self._inner.explain(message_id))

    def why(self, message_id: str) -> Why:
        """What has happened to it, in sentences, and what it waits for. Raises NotFound."""
        return self._loop.run(self._inner.why(message_id))

    def result(self, message_id: str, *, wait: Span = 0, group: str | None = None) -> Any:
        """The result that a worker has given of the message; waits for it for at most `wait` (60 s).

        Raises NoResult if there is none by then, NotFound, and Refused if several groups have one: `group`.
        """
        return self._loop.run(self._inner.result(message_id, wait=wait, group=group))

    def cancel(self, message_id: str, *, strict: bool = False) -> bool:
        """True: nobody will get it (also if it was cancelled before). False: already dispatched.

        With `strict` raises AlreadyDispatched instead, which lists the deliveries that are left. Raises
        NotFound.
        """
        return self._loop.run(self._inner.cancel(message_id, strict=strict))

    def reschedule(self, message_id: str, **when: Unpack[Due]) -> Message:
        """Move it to another time; the id stays. Raises AlreadyDispatched, NotFound, Refused (cancelled)."""
        return Message(self._loop, self._loop.run(self._inner.reschedule(message_id, **when)))

    def list(
        self, *, limit: int | None = None, page: int = PAGE_MAX, **chosen: Unpack[Listed]
    ) -> Iterator[Message]:
        """Messages by due time; pending ones, unless `state` says otherwise ("all" for every state).

        `topic` is a topic filter, `limit` bounds the whole listing, `page` what one request asks for.
        """
        return (
            Message(self._loop, each)
            for each in self._loop.iterate(self._inner.list(limit=limit, page=page, **chosen))
        )

    def count(self, **chosen: Unpack[Listed]) -> int:
        """Exact number of messages that `list` would return."""
        return self._loop.run(self._inner.count(**chosen))

    def cancel_where(
        self, *, dry_run: bool = False, on_progress: OnProgress | None = None, **chosen: Unpack[Selection]
    ) -> BulkResult:
        """Cancel every pending message that matches; give at least one of the three."""
        return self._loop.run(self._inner.cancel_where(dry_run=dry_run, on_progress=on_progress, **chosen))

    def shift(
        self,
        by: Span,
        *,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        **chosen: Unpack[Selection],
    ) -> BulkResult:
        """Move every pending message that matches by a duration, which may be negative; each once."""
        return self._loop.run(self._inner.shift(by, dry_run=dry_run, on_progress=on_progress, **chosen))

    def export(self, *, ids: bool = False, **chosen: Unpack[Selection]) -> Iterator[Json]:
        """Pending messages in order of time as `schedule_many` takes them, with their ids if asked."""
        return self._loop.iterate(self._inner.export(ids=ids, **chosen))

    def close(self) -> None:
        """Wait for requests in progress."""
        self._loop.run(self._inner.close())


class Pull(Facade[_pull.Pull]):
    """An iterator of leased messages, and a context manager that returns the rest.

    It never ends. A step may be cancelled without harm, and several steps may run at once. Once the server
    has answered, the pull waits for a server that is down.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Pulled:
        return Pulled(self._loop, self._loop.step(self._inner))

    def __enter__(self) -> Self:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the loop; leased messages that it has not yielded are released at once."""
        self._loop.run(self._inner.aclose())


class Pulled(Leased):
    """A leased message that waits for its answer: `ack()`, `nack()`, `reject()` or `release()`."""

    __slots__ = ("_inner", "_loop")

    def __init__(self, loop: Loop, inner: _pull.Pulled) -> None:
        super().__init__(inner._raw)
        self._loop = loop
        self._inner = inner

    def ack(self, then: Sequence[NewMessage] = (), *, result: Any = NO_PAYLOAD) -> bool:
        """Finish the message. True: it is finished, durably; it is not delivered again.

        False: it was finished before, by another member, or by an ack whose answer was lost. Raises
        Unreachable, Refused.

        `then`: messages that follow from it, at most 100. The server finishes the message and schedules these
            in one step, or does neither. It does so only while this lease runs: with False nothing is
            scheduled, except by an ack whose answer was lost.
        `result`: JSON of at most 64 KiB, under the same terms (`client.messages.result`).
        """
        return self._loop.run(self._inner.ack(then, result=result))

    def nack(self, delay: Span | None = None, reason: str | None = None) -> bool:
        """Return the message: the group gets it again after `delay`, by default after its back-off.

        True: it will, or is a dead letter as this was the last try; durable. False: it is not ours any more.
        Raises Unreachable, Refused, and ValueError for a negative delay.
        """
        return self._loop.run(self._inner.nack(delay, reason))

    def reject(self, reason: str | None = None) -> bool:
        """Give the message up: it becomes a dead letter at once, with `reason`.

        True and False, and what it raises, as for `nack`.
        """
        return self._loop.run(self._inner.reject(reason))

    def release(self) -> bool:
        """Release it untried: another worker gets it at once, and no attempt is counted.

        The first ten releases of a message are free; after them each counts. False: it is not ours any more.
        Raises Unreachable, Refused.
        """
        return self._loop.run(self._inner.release())

    def extend(self, lease: Span) -> bool:
        """Extend the lease to `span` from now. False: the lease is lost. Raises Unreachable, Refused."""
        return self._loop.run(self._inner.extend(lease))


@unfolded
class Retries(Facade[_entries.Retries]):
    """Calls on `/v1/retries`."""

    def list(
        self, *, limit: int | None = None, page: int = PAGE_MAX, **chosen: Unpack[RetrySelection]
    ) -> Iterator[WaitingRetry]:
        """Retries, ordered by the time of their next try. `limit` bounds the whole listing."""
        return self._loop.iterate(self._inner.list(limit=limit, page=page, **chosen))

    def count(self, **chosen: Unpack[RetrySelection]) -> int:
        """Their exact number."""
        return self._loop.run(self._inner.count(**chosen))

    def get(self, message_id: str) -> tuple[WaitingRetry, ...]:
        """Retries of one message, one for each session or group that will try it again; may be empty."""
        return self._loop.run(self._inner.get(message_id))

    def try_(
        self,
        ids: Iterable[str] | None = None,
        *,
        deliver_in: Span | None = None,
        deliver_at: When | None = None,
        dry_run: bool = False,
        **chosen: Unpack[RetrySelection],
    ) -> BulkResult:
        """Move their next attempt to now, `deliver_in` from now, or `deliver_at`.

        Give `ids` (of all groups, or of `group`), or at least one of the others. Raises Refused; not repeated
        when the connection is lost.
        """
        return self._loop.run(
            self._inner.try_(ids, deliver_in=deliver_in, deliver_at=deliver_at, dry_run=dry_run, **chosen)
        )

    def bury(
        self, ids: Iterable[str] | None = None, *, dry_run: bool = False, **chosen: Unpack[RetrySelection]
    ) -> BulkResult:
        """Turn them into dead letters. Selection, errors: as `try_`."""
        return self._loop.run(self._inner.bury(ids, dry_run=dry_run, **chosen))

    def drop(
        self, ids: Iterable[str] | None = None, *, dry_run: bool = False, **chosen: Unpack[RetrySelection]
    ) -> BulkResult:
        """Delete them: that session or group does not get them again. Selection, errors: as `try_`."""
        return self._loop.run(self._inner.drop(ids, dry_run=dry_run, **chosen))


@unfolded
class Schedules(Facade[_schedules.Schedules]):
    """Calls on `/v1/schedules`."""

    def put(
        self, name: str, *, topic: str = "", payload: Any = "", **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Create or change the schedule. Give one of `cron`, `every` and `rrule`.

        Raises Refused, whose `errors` name the field.

        `topic`: where it publishes; optional with `deliver_to`.
        `payload`: bytes and str go as they are, anything else as JSON.
        """
        return self._loop.run(self._inner.put(name, topic=topic, payload=payload, **options))

    def get(self, name: str) -> Schedule:
        """Raises NotFound."""
        return self._loop.run(self._inner.get(name))

    def list(self) -> Iterator[Schedule]:
        """All schedules, sorted by name."""
        return self._loop.iterate(self._inner.list())

    def delete(self, name: str) -> None:
        """Delete the schedule and cancel its pending occurrence. Raises NotFound."""
        self._loop.run(self._inner.delete(name))

    def pause(self, name: str) -> Schedule:
        """Pause it: cancel the pending occurrence and fire no more. Raises NotFound."""
        return self._loop.run(self._inner.pause(name))

    def resume(self, name: str, *, from_: Literal["now"] | None = None) -> Schedule:
        """Resume with the first fire after now that was not sent. Raises NotFound.

        `from_="now"`: with the first fire after now, whatever a clock that was ahead has sent; paused or not.
        """
        return self._loop.run(self._inner.resume(name, from_=from_))

    def skip(self, name: str) -> Schedule:
        """Skip the next fire and cancel its message. Not repeated. Raises NotFound, Refused."""
        return self._loop.run(self._inner.skip(name))

    def trigger(self, name: str) -> str:
        """Send its message now, beside the plan; returns its id. Not repeated. Raises NotFound."""
        return self._loop.run(self._inner.trigger(name))

    def preview(self, *, count: int = 10, name: str | None = None, **when: Unpack[Timing]) -> Fires:
        """The first fires of a schedule, saved or not. `name` only matters for jitter."""
        return self._loop.run(self._inner.preview(count=count, name=name, **when))

    def upcoming(self, name: str, count: int = 10) -> Fires:
        """The next fires of a saved schedule. Raises NotFound."""
        return self._loop.run(self._inner.upcoming(name, count))


class Server(Facade[_admin.Server]):
    """Calls that concern the server itself."""

    def backup(self, directory: str) -> str:
        """Write a consistent copy of the data into a new directory on the server's machine; returns its path.

        Raises Refused: the path is not below the server's `store.backups`, or something is there.
        """
        return self._loop.run(self._inner.backup(directory))

    def drain(self, *, cancel: bool = False) -> Json:
        """Give groups and endpoints nothing new, for maintenance, or (`cancel`) let them go on.

        Gives `draining`, `since` and `out`: how many messages workers and endpoints still have. Call it again
        to see how that falls. Raises Refused: the server is stopping, which cannot be cancelled.
        """
        return self._loop.run(self._inner.drain(cancel=cancel))


class Sessions(Facade[_admin.Sessions]):
    """Calls on `/v1/sessions`."""

    def list(self) -> Iterator[Session]:
        """All sessions, connected and away."""
        return self._loop.iterate(self._inner.list())

    def get(self, client_id: str) -> Session:
        """Raises NotFound."""
        return self._loop.run(self._inner.get(client_id))

    def remove(self, client_id: str) -> None:
        """Forget the session, its subscriptions and its read position. Raises NotFound."""
        self._loop.run(self._inner.remove(client_id))

    def replay(self, client_id: str, since: When | timedelta) -> Json:
        """Set the read position back to an instant, or by a duration. Raises NotFound, Refused."""
        return self._loop.run(self._inner.replay(client_id, since))

    def skip(self, client_id: str, to: When | timedelta = "now", undone: Fate = "dead") -> Skipped:
        """Skip the backlog, as for a group. Raises NotFound, Refused."""
        return self._loop.run(self._inner.skip(client_id, to, undone))


class Slices(Facade[_admin.Slices]):
    """Calls on `/v1/slices`. `start` is the slice's first instant, as RFC 3339 or Unix ms in text."""

    def list(self) -> Iterator[Slice]:
        """All slices in order of time."""
        return self._loop.iterate(self._inner.list())

    def get(self, start: When) -> Slice:
        """One slice with its shards. Raises NotFound."""
        return self._loop.run(self._inner.get(start))

    def shard(self, start: When, number: int) -> Shard:
        """Raises NotFound."""
        return self._loop.run(self._inner.shard(start, number))


class Subscription(Facade[_subscribe.Subscription]):
    """An iterator of deliveries, and a context manager that closes it at the end.

    It connects at the first step (or on entering the context). A step may be cancelled, say by a timeout,
    without harm, and several steps may go on at once. The connection ends with `close()`, with the
    client, or when the subscription and the deliveries out of it are no longer referenced, as after `break`
    in the usual loop.
    """

    @property
    def connections(self) -> int:
        """Number of network connections opened so far."""
        return self._inner.connections

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        return Delivery(self._loop, self._loop.step(self._inner))

    def __enter__(self) -> Self:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send the acks given so far, then disconnect for good. Loops that wait for messages end."""
        self._loop.run(self._inner.aclose())


class Timeline(Facade[_admin.Timeline]):
    """Calls on `/v1/timeline`."""

    def density(
        self,
        *,
        start: When | None = None,
        end: When | None = None,
        bucket: Span = 60,
        topic: str | None = None,
    ) -> Density:
        """Exact counts per bucket; from now and for a day if not said otherwise. Raises Refused."""
        return self._loop.run(self._inner.density(start=start, end=end, bucket=bucket, topic=topic))
