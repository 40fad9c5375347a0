"""All endpoints of one server: made, changed, paused, tried, and their doors kept open.

An endpoint is a row (registry.py), a group like any other, and a door (door.py). The row says where and how
to post; the group has what an endpoint shares with all subscribers: its place on the timeline, what is in
flight, whether it is paused, its terms and its rate. Row and group are written in one batch.

A full URL is an unnamed endpoint, one for each origin and key: a group that delivery makes when a message for
it is due (delivery/membership.py), with a door that posts each message where it says. It has no row, and is
forgotten when it has had nothing to do for a while.

    put, drop, pause, resume    decided in the writer, answered when durable; the doors follow
    barred                      which messages may not be delivered where they say
    try_out                     a post at once, beside the queue
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
from timeline.session import USUAL, Terms

from ..delivery.burials import GROUP_EXPIRED
from ..delivery.membership import Membership
from ..delivery.message import Message
from ..delivery.router import is_unnamed
from ..delivery.settling.settling import Settling
from ..delivery.shared import ENDPOINT_PREFIX, Group, endpoint_text
from ..delivery.subscriber import Rights
from ..delivery.terms import LASTING, Keeping
from ..engine.clock import Clock
from ..engine.commit_hook import CommitHook
from ..engine.writer import Ask, Busy, Writer
from ..observe.logs import by
from ..settings.config import ENDPOINT_POSTS_MAX, POSTS, URL_POSTS_MAX, Webhook
from .door import EndpointDoor, Posts, Seat
from .failing import Failing
from .parcel import Parcel, headers_for
from .registry import Endpoint, Registry, rotated
from .sender import Lookup, Sender, trusted
from .slots import Lane, Slots
from .targets import TargetError, check_allowed, checked_url, is_url
from .verdicts import Outcome, Reply, Verdict

log = logging.getLogger(__name__)

FINISH_S = 10.0
"""How long posts under way may take when the server stops. Then they are cut, which is no try."""
LOOKED_AT = 200
"""Targets that are looked at in one go: some 4 ms."""
OPENED = 20
"""Doors of unnamed endpoints that are opened, and that are shut, in one go."""
TRIES = 10
"""Endpoints that are tried out at a time."""
TRY_S = 60.0
"""How long one may take, whatever the timeout of the endpoint: somebody waits for the answer."""


class Unknown(LookupError):
    """There is no endpoint of that name."""


class TooMany(Exception):
    """So many are tried out at the moment that this one has to wait."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An endpoint as it is asked for. `secret` None: none; UNSET: as it was."""

    url: str
    secret: bytes | msgspec.UnsetType | None
    headers: Mapping[str, str]
    concurrency: int
    timeout_ms: int
    terms: Terms
    keeping: Keeping


class Standing(NamedTuple):
    """An endpoint and its group; None: it is not there at the moment. `failing`: since the start."""

    endpoint: Endpoint
    group: Group | None
    failing: Failing


NOTHING_POSTED = Failing()
NOWHERE = URL("http://nowhere.invalid")
"""In the place of the URL of an unnamed endpoint: each message has its own."""


class Outlets(NamedTuple):
    """What posts. URLs have one of their own: names that take long to look up hold up no endpoint."""

    endpoints: Posts
    urls: Posts


class Webhooks(CommitHook):
    """The endpoints of one server."""

    def __init__(
        self,
        registry: Registry,
        groups: Membership,
        settling: Settling,
        writer: Writer,
        ask: Ask,
        config: Webhook,
        clock: Clock,
        real: Clock,
        *,
        node: int,
    ) -> None:
        """`real`: the machine's clock, where `clock` is a simulated one. Raises ConfigError."""
        self.registry = registry
        self._groups = groups
        self._settling = settling
        self._node = node
        self._ask = ask
        self._writer = writer
        self._config = config
        self._clock = clock
        self._real = real
        self._trusted = trusted(config) if config.enabled else None
        self._outlets: Outlets | None = None
        """None: it is not running, or may post nothing."""
        self._doors: dict[str, EndpointDoor] = {}
        self._slots = Slots(URL_POSTS_MAX, POSTS, real.mono)
        self._idle: dict[Group, int] = {}
        """Unnamed endpoints that had nothing to do at the last look, and how many they had been given."""
        self._tries = 0
        self._pausing: set[asyncio.Task[None]] = set()
        writer.add_hook(self)

    # -- life

    async def start(self) -> None:
        """Open the doors."""
        if self._trusted is None:
            return
        self._outlets = Outlets(
            self._posts(self._trusted, ENDPOINT_POSTS_MAX),
            self._posts(self._trusted, URL_POSTS_MAX),
        )
        await self._mend()
        self._follow()

    def _posts(self, authorities: ssl.SSLContext | Literal[True], most: int) -> Posts:
        """`most`: posts under way at a time; so many names are looked up, and so many connections rest."""
        return Posts(Sender(self._config, authorities, Lookup(most), most), self._real)

    async def _mend(self) -> None:
        """An endpoint whose group could not be read begins anew, from now on and by the settings."""
        for endpoint in list(self.registry):
            if self._group(endpoint.name) is None:
                log.error("endpoint %s: read position lost, starting from now", endpoint.name)
                try:
                    await self._ask(partial(self._create_group, name=endpoint.name))
                except (Refused, Busy, StoreFailed) as error:
                    log.error("endpoint %s: cannot start, nothing is posted: %s", endpoint.name, error)

    async def stop(self) -> None:
        """Begin no more posts, wait FINISH_S for those under way, then cut them.

        The doors leave in order: what was cut is given back, and no try. If nothing can be written any more
        (the node leads no longer) nobody could note an answer: it waits for none.
        """
        doors = list(self._doors.values())
        self._doors = {}
        outlets, self._outlets = self._outlets, None
        for door in doors:
            door.is_closing = True
        within_s = FINISH_S if self._writer.broken is None else 0.0
        await asyncio.gather(*[posts.close(within_s) for posts in outlets or ()])
        for door in doors:
            door.seat.leave()
        for task in self._pausing:
            task.cancel()

    def recover(self) -> None:
        """The store is back after a failure: what is there now may be less than what was noted."""
        self.registry.recover()
        self._follow()

    @property
    def now_ms(self) -> int:
        """The machine's time."""
        return self._real.wall_ms()

    @property
    def under_way(self) -> int:
        """Posts."""
        return sum(map(len, self._outlets or ()))

    @property
    def posted(self) -> Mapping[Outcome, int]:
        """How many posts since the start came to what."""
        every = [posts.outcomes for posts in self._outlets or ()]
        return {outcome: sum(one[outcome] for one in every) for outcome in Outcome}

    def _follow(self) -> None:
        """A door for each endpoint that has a group, and for no other."""
        outlets = self._outlets
        if outlets is None:
            return
        for name in [one for one in self._doors if not is_unnamed(one) and self.registry.get(one) is None]:
            self._doors.pop(name).shut()
        for endpoint in self.registry:
            door = self._doors.get(endpoint.name)
            if door is not None and door.seat.is_in:
                door.change(endpoint)
                continue
            self._open(endpoint)
        for group in [one for one in self._groups if one.is_unnamed and not one.members]:
            self._open(self._unnamed(group))

    def step(self) -> None:
        """Open doors for origins that are new, and let those go on that wait for a post."""
        fresh = self._groups.fresh
        if fresh:
            taken, fresh[:] = fresh[:OPENED], fresh[OPENED:]
            for group in taken:
                if self._groups.get(group.text) is group and not group.members:
                    self._open(self._unnamed(group))
        self._slots.step()

    @property
    def is_behind(self) -> bool:
        """Whether `step` has more to do at once."""
        return bool(self._groups.fresh) or self._slots.is_behind

    def _unnamed(self, group: Group) -> Endpoint:
        """The endpoint that full URLs of a group are."""
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
        seat = Seat(self._groups, self._settling, group.text)
        former = self._doors.pop(endpoint.name, None)
        if former is not None:
            former.shut()
        lane = Lane(self._slots, group.owner, seat.wake) if group.is_unnamed else None
        posts = outlets.urls if group.is_unnamed else outlets.endpoints
        door = EndpointDoor(
            endpoint, seat, posts, lane, node=self._node, gone=self._gone, url_of=self._url_of
        )
        self._doors[endpoint.name] = door
        seat.enter(door)

    def _group(self, name: str) -> Group | None:
        return self._groups.get(endpoint_text(name))

    # -- looked at

    def standing(self, name: str) -> Standing | None:
        """The endpoint of that name."""
        endpoint = self.registry.get(name)
        return None if endpoint is None else Standing(endpoint, self._group(name), self.failing(name))

    def has(self, group: Group) -> bool:
        """Whether it is the group of an endpoint that exists."""
        standing = self.standing(_name_of(group))
        return standing is not None and standing.group is group

    def failing(self, name: str) -> Failing:
        """How the last posts to the endpoint went, noted in RAM since the start."""
        door = self._doors.get(name)
        return NOTHING_POSTED if door is None else door.last_posts.failing

    async def barred(self, targets: Iterable[tuple[int, bytes]]) -> dict[int, str]:
        """Of messages, by their index, why what `deliver_to` says cannot be."""
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
            return str(error)
        return ""

    # -- changed

    async def put(self, name: str, wanted: Wanted, rights: Rights | None) -> tuple[Standing, bool]:
        """Make an endpoint or change it; True: it is new. `rights`: of the key that asks for it. Raises
        Refused, Busy, StoreFailed."""
        is_new: bool = await self._ask(lambda commit: self._put(commit, name, wanted, rights))
        self._follow()
        standing = self.standing(name)
        if standing is None:
            raise Unknown(name)
        return standing, is_new

    def _put(self, commit: Commit, name: str, wanted: Wanted, rights: Rights | None) -> bool:
        known = self.registry.get(name)
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
        )
        left = ENDPOINT_POSTS_MAX - self.registry.others_concurrency(name)
        if self.registry.concurrency_of(row) > left:
            of_all = f"of {ENDPOINT_POSTS_MAX:,} for all endpoints"
            raise Refused("concurrency", f"is more than the {max(0, left)} that are left {of_all}")
        self._create_group(commit, name, wanted.terms, wanted.keeping, rights)
        self.registry.put(commit, name, row)
        return known is None

    def _create_group(
        self,
        commit: Commit,
        name: str,
        terms: Terms = USUAL,
        keeping: Keeping = LASTING,
        rights: Rights | None = None,
    ) -> None:
        self._groups.make(commit, endpoint_text(name), terms, keeping, rights)

    async def drop(self, name: str, may_go: Callable[[Group], bool], *, is_dead: bool) -> Group | None:
        """Forget an endpoint with its group; what it has not finished becomes dead letters, or is dropped.

        `may_go`: asked in the writer; the group, and nothing done, if it may not. Raises Unknown, Busy,
        StoreFailed.
        """

        def decide(commit: Commit) -> tuple[bool, Group | None]:
            if self.registry.get(name) is None:
                return False, None
            group = self._group(name)
            if group is not None and not may_go(group):
                return True, group
            self.registry.drop(commit, name)
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
        """Forget the endpoints of these groups whose expiry has come; what is undone becomes dead letters.

        Raises Busy, StoreFailed.
        """

        def decide(commit: Commit) -> None:
            for group in groups:
                name = _name_of(group)
                if self._groups.get(group.text) is group and self._groups.is_over(group):
                    if self.registry.get(name) is not None:
                        self.registry.drop(commit, name)
                    self._groups.end(group, GROUP_EXPIRED)
                    log.info("endpoint %s: expired", name)

        await self._ask(decide)
        self._follow()

    async def forget_idle(self) -> None:
        """Forget unnamed endpoints that have had nothing to do since the last call.

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
                    if self._idle[group] == group.delivered and self._groups.forget_url(commit, group):
                        door = self._doors.pop(group.endpoint, None)
                        if door is not None:
                            door.shut()

            await self._ask(decide, cost=OPENED)

    def pause(self, commit: Commit, group: Group, is_paused: bool) -> None:
        """In the writer: give nothing out to the endpoint of this group, or go on."""
        self._switch(commit, _name_of(group), "", is_paused=is_paused)

    def _switch(
        self, commit: Commit, name: str, gone: str, *, is_paused: bool, posted: Endpoint | None = None
    ) -> bool:
        """`gone`: why, if the server does so by itself; `posted`: what it must still be then."""
        standing = self.standing(name)
        if standing is None or standing.group is None:
            return False
        if posted is not None and not standing.endpoint.is_same_receiver(posted):
            return False
        row = standing.endpoint.row
        if row.gone != gone:
            self.registry.put(commit, name, msgspec.structs.replace(row, gone=gone))
        self._groups.pause(commit, standing.group, is_paused=is_paused)
        return True

    def _gone(self, posted: Endpoint, reason: str) -> None:
        """Its receiver wants nothing any more: pause it, unless it has another one by now."""
        standing = self.standing(posted.name)
        if standing is None or standing.group is None or standing.group.is_paused:
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

    # -- tried

    async def try_out(self, name: str, message: str, body: bytes) -> tuple[Verdict, Reply]:
        """Post something at once, as a message of that id would be. Raises Unknown, TooMany, Refused."""
        endpoint = self.registry.get(name)
        if endpoint is None:
            raise Unknown(name)
        if self._outlets is None:
            raise Refused("deliver_to", "webhooks are disabled (webhook.enabled)")
        if self._tries >= TRIES:
            raise TooMany
        now_ms = self.now_ms
        headers = headers_for(
            message,
            body,
            endpoint.secrets(now_ms),
            now_ms // 1_000,
            "application/json",
            endpoint.row.headers,
            {"fasti-attempt": "1"},
        )
        self._tries += 1
        try:
            timeout_s = min(endpoint.timeout_s, TRY_S)
            return await self._outlets.endpoints.post(Parcel(endpoint.url, headers, body, timeout_s))
        finally:
            self._tries -= 1


def _name_of(group: Group) -> str:
    return group.text.removeprefix(ENDPOINT_PREFIX)
