"""All endpoints of one server: created, changed, paused and tested, with their posters.

An endpoint is a row (registry.py), a group like any other, and a poster (poster.py). The row has the URL and
the settings of posts. The group has what endpoints share with all subscribers: position on the timeline,
messages in flight, pause, terms and rate. Row and group are written in one batch.

Full URLs are unnamed endpoints, one for each origin and key. Delivery creates the group when a message for it
is due (delivery/url_groups.py), and its poster posts each message to the message's own URL. It has no row,
and is deleted when it has been idle for a while.

    put, drop, pause, resume    decided in the writer, answered when durable; then posters are updated
    barred                      messages whose `deliver_to` is not allowed
    try_out                     a post at once, past the queue
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import msgspec
from yarl import URL

from shards.commit import Commit, Refused
from shards.endpoints import EndpointRow
from shards.errors import StoreFailed
from timeline.session import Terms

from ..auth.rights import Rights
from ..delivery.burials import GROUP_DELETED, GROUP_EXPIRED
from ..delivery.membership import Membership
from ..delivery.message import Message
from ..delivery.owners import manages
from ..delivery.router import is_unnamed
from ..delivery.settling.settling import Settling
from ..delivery.shared import Group, endpoint_text
from ..delivery.terms import LASTING, Keeping
from ..delivery.url_groups import UrlGroups
from ..engine.clock import Clock
from ..engine.commit_hook import CommitHook, Done
from ..engine.writer import Ask, Busy, Writer
from ..observe.logs import by
from ..settings.config import ENDPOINT_POSTS_MAX, POSTS, URL_POSTS_MAX, Webhook
from .last_posts import Failing, LastPosts
from .poster import EndpointPoster, Posts
from .registry import Endpoint, Registry, rotated
from .request import WebhookRequest, headers_for
from .sender import Lookup, Sender, trusted
from .slots import Slots
from .targets import TargetError, check_allowed, checked_url, is_url
from .verdicts import Outcome, Reply, Verdict

log = logging.getLogger(__name__)

FINISH_S = 10.0
"""Time for posts under way when the server stops. Then they are aborted, which is no attempt."""
_EXCERPT_CHARS = 100
"""Maximum length of a URL in an error."""
LOOKED_AT = 200
"""Targets checked in one turn of the loop: some 4 ms."""
OPENED = 20
"""Posters of unnamed endpoints opened, or closed, in one turn of the loop."""
TRIES = 10
"""Endpoints tested at a time."""
TRY_S = 60.0
"""Timeout of a test, whatever the timeout of the endpoint: a request waits for it."""


class Unknown(LookupError):
    """No endpoint has that name."""


class TooMany(Exception):
    """TRIES endpoints are being tested."""


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Requested settings of an endpoint. `secret`: None for none, UNSET to keep it."""

    url: str
    secret: bytes | msgspec.UnsetType | None
    headers: Mapping[str, str]
    concurrency: int
    timeout_ms: int
    is_enveloped: bool
    terms: Terms
    keeping: Keeping


class EndpointStatus(NamedTuple):
    """An endpoint and its group, or None without one; `last_posts`: since the start."""

    endpoint: Endpoint
    group: Group | None
    last_posts: LastPosts


NOTHING_POSTED = LastPosts()
NOWHERE = URL("http://nowhere.invalid")
"""URL of unnamed endpoints, which are posted to the URL of each message."""


class Outlets(NamedTuple):
    """Posts of named endpoints, and of URLs: names that are slow to look up delay no named endpoint."""

    endpoints: Posts
    urls: Posts


class Webhooks(CommitHook):
    """The endpoints of one server."""

    def __init__(
        self,
        registry: Registry,
        groups: Membership,
        url_groups: UrlGroups,
        settling: Settling,
        writer: Writer,
        ask: Ask,
        config: Webhook,
        clock: Clock,
        real: Clock,
        *,
        node: int,
    ) -> None:
        """`real`: the machine's clock, even if `clock` is simulated. Raises ConfigError."""
        self.registry = registry
        self._groups = groups
        self._url_groups = url_groups
        self._settling = settling
        self._node = node
        self._ask = ask
        self._writer = writer
        self._config = config
        self._clock = clock
        self._real = real
        self._trusted = trusted(config) if config.enabled else None
        self._outlets: Outlets | None = None
        """None while not running, or if webhooks are disabled."""
        self._posters: dict[str, EndpointPoster] = {}
        self._slots = Slots(URL_POSTS_MAX, POSTS, _later)
        self._idle: dict[Group, int] = {}
        """Unnamed endpoints that were idle at the last `forget_idle`, with their counts of deliveries."""
        self._tries = 0
        self._pausing: set[asyncio.Task[None]] = set()
        writer.add_hook(self)

    # -- life

    async def start(self) -> None:
        """Open the posters."""
        if self._trusted is None:
            return
        self._outlets = Outlets(
            self._posts(self._trusted, ENDPOINT_POSTS_MAX),
            self._posts(self._trusted, URL_POSTS_MAX),
        )
        await self._recreate_groups()
        self._follow()

    def _posts(self, authorities: ssl.SSLContext | Literal[True], most: int) -> Posts:
        """`most`: posts under way at a time, names looked up at a time, and idle connections."""
        return Posts(Sender(self._config, authorities, Lookup(most), most), self._real)

    async def _recreate_groups(self) -> None:
        """Create new groups, from now on and with default terms, for endpoints whose group is lost."""
        for endpoint in list(self.registry):
            if self._group(endpoint.name) is None:
                log.error("endpoint %s: read position lost, starting from now", endpoint.name)
                try:
                    text = endpoint_text(endpoint.name)
                    await self._ask(partial(self._groups.make, text=text, keeping=LASTING))
                except (Refused, Busy, StoreFailed) as error:
                    log.error("endpoint %s: cannot start, nothing is posted: %s", endpoint.name, error)

    async def stop(self, within_s: float | None = None) -> None:
        """Begin no more posts, wait for those under way, FINISH_S unless it is said, then abort them.

        An aborted one was a try: its receiver may be busy with it. If the writer is broken (the node leads no
        more), no answer could be stored: it waits for none.
        """
        posters = list(self._posters.values())
        self._posters = {}
        outlets, self._outlets = self._outlets, None
        for poster in posters:
            poster.is_closing = True
        wait_s = FINISH_S if within_s is None else within_s
        if self._writer.broken is not None:
            wait_s = 0.0
        await asyncio.gather(*[posts.close(wait_s) for posts in outlets or ()])
        for poster in posters:
            poster.leave(is_stopping=True)
        for task in self._pausing:
            task.cancel()

    def write(self, commit: Commit) -> Done | None:
        return self.registry.write(commit)

    def recover(self) -> None:
        """Read the endpoints again: the store is back after a failure, and may have lost some. The groups of
        lost endpoints end, for nobody could see or delete them."""
        self.registry.recover()
        for group in [one for one in self._groups if one.is_endpoint and not one.is_unnamed]:
            if not self.registry.has_row(group.endpoint):
                self._groups.end(group, GROUP_DELETED)
        self._follow()

    @property
    def now_ms(self) -> int:
        """The machine's time."""
        return self._real.wall_ms()

    @property
    def under_way(self) -> int:
        """Posts under way."""
        return sum(map(len, self._outlets or ()))

    @property
    def posted(self) -> Mapping[Outcome, int]:
        """Posts since the start by outcome."""
        every = [posts.outcomes for posts in self._outlets or ()]
        return {outcome: sum(one[outcome] for one in every) for outcome in Outcome}

    def _follow(self) -> None:
        """Open posters for endpoints with a group, and abort those of deleted endpoints."""
        outlets = self._outlets
        if outlets is None:
            return
        for name in [one for one in self._posters if not is_unnamed(one) and self.registry.get(one) is None]:
            self._posters.pop(name).abort()
        for endpoint in self.registry:
            poster = self._posters.get(endpoint.name)
            if poster is not None and poster.is_joined:
                poster.change(endpoint)
                continue
            self._open(endpoint)
        for group in [one for one in self._groups if one.is_unnamed and not one.members]:
            self._open(self._unnamed(group))

    def open_fresh(self) -> bool:
        """Open posters for new origins; True if there are more."""
        fresh = self._url_groups.fresh
        taken, fresh[:] = fresh[:OPENED], fresh[OPENED:]
        for group in taken:
            if self._groups.get(group.text) is group and not group.members:
                self._open(self._unnamed(group))
        return bool(fresh)

    def _unnamed(self, group: Group) -> Endpoint:
        row = EndpointRow("", [], {}, POSTS, 0, 0, 0, "")
        return Endpoint(group.endpoint, row, NOWHERE, self._config.timeout_ms / 1_000, POSTS)

    def _url_of(self, endpoint: Endpoint, message: Message) -> URL:
        if endpoint.url is not NOWHERE:
            return endpoint.url
        url = checked_url(message.record.deliver_to.decode())
        check_allowed(url, self._config)
        return url

    def _open(self, endpoint: Endpoint) -> None:
        group, outlets = self._group(endpoint.name), self._outlets
        if group is None or outlets is None:
            return
        former = self._posters.pop(endpoint.name, None)
        if former is not None:
            former.abort()
        poster = EndpointPoster(
            endpoint,
            group,
            self._groups,
            self._settling,
            outlets.urls if group.is_unnamed else outlets.endpoints,
            self._slots if group.is_unnamed else None,
            node=self._node,
            gone=self._gone,
            url_of=self._url_of,
        )
        self._posters[endpoint.name] = poster
        poster.join()

    def _group(self, name: str) -> Group | None:
        return self._groups.get(endpoint_text(name))

    # -- read

    def status(self, name: str) -> EndpointStatus | None:
        endpoint = self.registry.get(name)
        if endpoint is None:
            return None
        return EndpointStatus(endpoint, self._group(name), self._last_posts(name))

    def has(self, group: Group) -> bool:
        """Whether it is the group of an existing endpoint."""
        name = group.endpoint
        return self.registry.get(name) is not None and self._group(name) is group

    def is_managed(self, name: str, rights: Rights | None) -> bool:
        """Whether the key may see and change the endpoint."""
        group = self._group(name)
        return manages(rights, name, "" if group is None else group.owner)

    def failing(self, name: str) -> Failing:
        """Results of the last posts to the endpoint since the start."""
        return self._last_posts(name).failing

    def _last_posts(self, name: str) -> LastPosts:
        poster = self._posters.get(name)
        return NOTHING_POSTED if poster is None else poster.last_posts

    async def barred(self, targets: Iterable[tuple[int, bytes]]) -> dict[int, str]:
        """Reasons against the `deliver_to` of messages, by index; `targets`: index and `deliver_to`."""
        found: dict[int, str] = {}
        for count, (index, target) in enumerate(targets, 1):
            why = self._why_not(target.decode())
            if why:
                found[index] = why
            if not count % LOOKED_AT:
                await asyncio.sleep(0)
        return found

    def _why_not(self, target: str) -> str:
        if not self._config.enabled:
            return "webhooks are disabled (webhook.enabled)"
        if not is_url(target):
            return "" if self.registry.get(target) else f"endpoint {target!r} not found"
        try:
            check_allowed(checked_url(target), self._config)
        except TargetError as error:
            return f"{target[:_EXCERPT_CHARS]!r} {error}"
        return ""

    # -- changed

    async def put(
        self, name: str, wanted: EndpointSettings, rights: Rights | None
    ) -> tuple[EndpointStatus, bool]:
        """Create or change an endpoint; True if created. `rights`: of the key of the request. Raises Refused,
        Busy, StoreFailed."""
        is_new: bool = await self._ask(lambda commit: self._put(commit, name, wanted, rights))
        self._follow()
        status = self.status(name)
        if status is None:
            raise Unknown(name)
        return status, is_new

    def _put(self, commit: Commit, name: str, wanted: EndpointSettings, rights: Rights | None) -> bool:
        known = self.registry.get(name)
        if known is not None and not self.is_managed(name, rights):
            raise Refused("forbidden", f"the endpoint {name!r} belongs to another key")
        if known is None and len(self.registry) >= self.registry.max_endpoints:
            raise Refused("over-quota", f"the limit of {len(self.registry)} endpoints is reached")
        now_ms = self._clock.wall_ms()
        before = [] if known is None else known.row.secrets
        secrets = before
        if not isinstance(wanted.secret, msgspec.UnsetType):
            secrets = rotated(before, wanted.secret, self._real.wall_ms())
        row = EndpointRow(
            wanted.url,
            secrets,
            dict(wanted.headers),
            wanted.concurrency,
            wanted.timeout_ms,
            now_ms if known is None else known.row.created_ms,
            now_ms,
            "" if known is None else known.row.gone,
            wanted.is_enveloped,
        )
        left = ENDPOINT_POSTS_MAX - self.registry.others_concurrency(name)
        if self.registry.concurrency_of(row) > left:
            of_all = f"of {ENDPOINT_POSTS_MAX:,} for all endpoints"
            raise Refused("concurrency", f"is more than the {max(0, left)} that are left {of_all}")
        self._groups.make(commit, endpoint_text(name), wanted.terms, wanted.keeping, rights)
        self.registry.put(commit, name, row)
        return known is None

    async def drop(
        self, name: str, rights: Rights | None, may_go: Callable[[Group], bool], *, is_dead: bool
    ) -> Group | None:
        """Delete an endpoint and its group. Pending messages are dropped, or dead letters if `is_dead`.

        `may_go`: called in the writer; if False, nothing is done and the group is returned. Raises Unknown,
        Busy, StoreFailed.
        """

        def decide(commit: Commit) -> tuple[bool, Group | None]:
            if self.registry.get(name) is None or not self.is_managed(name, rights):
                return False, None
            group = self._group(name)
            if group is not None and not may_go(group):
                return True, group
            self.registry.drop(name)
            if group is not None:
                self._groups.disband(commit, group, is_dead=is_dead)
            return True, None

        is_there, left = await self._ask(decide)
        self._follow()
        if not is_there:
            raise Unknown(name)
        found: Group | None = left
        return found

    async def end_expired(self, groups: Iterable[Group]) -> None:
        """Delete the endpoints of the groups that have expired; pending messages become dead letters.

        Raises Busy, StoreFailed.
        """

        def decide(_: Commit) -> None:
            for group in groups:
                name = group.endpoint
                if self._groups.get(group.text) is group and self._groups.is_over(group):
                    if self.registry.get(name) is not None:
                        self.registry.drop(name)
                    self._groups.end(group, GROUP_EXPIRED)
                    log.info("endpoint %s: expired", name)

        await self._ask(decide)
        self._follow()

    async def forget_idle(self) -> None:
        """Delete unnamed endpoints that have been idle since the last call.

        Raises Busy, StoreFailed.
        """
        self._follow()
        idle = {
            group: group.delivered
            for group in self._groups
            if group.is_unnamed and group.session.tailing and not group.session.flights
        }
        over = [group for group, delivered in idle.items() if self._idle.get(group) == delivered]
        self._idle = idle
        for start in range(0, len(over), OPENED):

            def decide(commit: Commit, some: Sequence[Group] = over[start : start + OPENED]) -> None:
                for group in some:
                    if self._idle[group] == group.delivered and self._url_groups.forget(commit, group):
                        poster = self._posters.pop(group.endpoint, None)
                        if poster is not None:
                            poster.abort()

            await self._ask(decide, cost=OPENED)

    def pause(self, commit: Commit, group: Group, is_paused: bool) -> None:
        """Pause or resume the endpoint of this group, in the writer."""
        self._switch(commit, group.endpoint, "", is_paused=is_paused)

    def _switch(
        self, commit: Commit, name: str, gone: str, *, is_paused: bool, posted: Endpoint | None = None
    ) -> bool:
        """`gone`: the reason if the server pauses by itself; `posted`: then the receiver must be the same."""
        status = self.status(name)
        if status is None or status.group is None:
            return False
        if posted is not None and not status.endpoint.is_same_receiver(posted):
            return False
        row = status.endpoint.row
        if row.gone != gone:
            self.registry.put(commit, name, msgspec.structs.replace(row, gone=gone))
        self._groups.pause(commit, status.group, is_paused=is_paused)
        return True

    def _gone(self, posted: Endpoint, reason: str) -> None:
        """Pause the endpoint whose receiver is gone, unless it has another receiver by now."""
        status = self.status(posted.name)
        if status is None or status.group is None or status.group.is_paused:
            return
        task = asyncio.get_running_loop().create_task(self._pause_gone(posted, reason))
        self._pausing.add(task)
        task.add_done_callback(self._pausing.discard)

    async def _pause_gone(self, posted: Endpoint, reason: str) -> None:
        name = posted.name
        switch = partial(self._switch, name=name, gone=reason, is_paused=True, posted=posted)
        try:
            if await self._ask(switch):
                log.warning("endpoint %s paused: %s", name, reason, extra=by("webhooks"))
            else:
                log.info("endpoint %s has changed since it was posted to: not paused", name)
        except (Busy, StoreFailed) as error:
            log.warning("endpoint %s: not paused: %s", name, error, extra=by("webhooks"))

    # -- tested

    async def try_out(self, name: str, message: str, body: bytes) -> tuple[Verdict, Reply]:
        """Post `body` at once with the headers of a message; `message`: its id. Raises Unknown, TooMany,
        Refused."""
        endpoint = self.registry.get(name)
        if endpoint is None:
            raise Unknown(name)
        if self._outlets is None:
            raise Refused("deliver_to", "webhooks are disabled (webhook.enabled)")
        if self._tries >= TRIES:
            raise TooMany
        more = {"fasti-attempt": "1"}
        headers = headers_for(endpoint, message, body, self.now_ms, "application/json", more)
        self._tries += 1
        try:
            timeout_s = min(endpoint.timeout_s, TRY_S)
            return await self._outlets.endpoints.post(WebhookRequest(endpoint.url, headers, body, timeout_s))
        finally:
            self._tries -= 1


def _later(delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, call)
