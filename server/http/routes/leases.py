"""`/v1/groups/{group}/messages`: work that is asked for. Messages are leased, acked, given back, held on to.

    POST :lease     up to `max` messages of a group, at once or within `wait`, for so long
    POST :ack       they are done with; answered when that is on the disk
    POST :nack      not done: they come again, at once or in a while, or are dead, by now or on demand
    POST :extend    they are needed for longer
    POST :release   they are given back untried: another gets them at once

Who pulls is a member of the group like those that subscribe over MQTT, and shares with them: server/pull says
how. With `filter` it is the group of that name and filter, which is made if it is not there, as SUBSCRIBE to
`$share/{name}/{filter}` would; without, all groups of that name in turn.

A key may lease what it may subscribe to; without `filter` it sees the groups of its own alone, as
/v1/sessions has it. Whoever may lease of a group may ack, nack, extend and release what is leased
of it; a lease of any other is gone for him.

A call that waits is answered with nothing as soon as its client sends no more: one that has died has only
said that its side of the connection is closed, and would take messages with it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from aiohttp import web

from shards.commit import Commit
from shards.record import REASON_BYTES_MAX
from shards.state import DISPATCHED
from timeline.filters import TopicError, parse_share

from ...delivery.membership import Membership, UnknownGroup
from ...delivery.settling.undone import NEVER
from ...delivery.subscriptions import Subscriptions
from ...delivery.terms import LASTING
from ...delivery.tries import tries_before, try_view
from ...engine.writer import Ask
from ...pull.call import Answer, Leased, Wish
from ...pull.lease_id import (
    BadLeaseId,
    LeaseId,
    Shares,
    lease_head,
    lease_tail,
    lease_text,
    parse_lease,
)
from ...pull.pull import Pull, Settled
from ...settings.config import ACK_MS_MAX, Config
from ...settings.times import NEVER_TEXT
from ..access import Rights, is_own, rights_of
from ..answers import asked, json_answer, refusals
from ..calls import READ, WRITES, Gives, described
from ..problems import Problem
from ..protocol import Protocol
from ..requests import body_of
from ..turns import Turn, Turns
from ..values import shapes
from ..values.bodies import FieldError, delay_ms
from ..values.group_body import text_of
from ..values.scalars import Delay
from ..values.scalars import Filter as TopicFilter
from ..values.views import message_view, time_text

MAX_MAX = 1_000
GROUPS_MAX = 100
"""Groups that one call asks; the next one goes on behind them."""
WAIT_MAX_MS = 60_000
LEASE_MIN_MS = 1_000

LEASE_ID = "AgAAADAAAAEAAAABAAAAAAAAAAAAEKLxJHNoYXJlL3ByaW50ZXJzL2pvYnMvIw"
"""In examples."""

LeaseIds = Annotated[list[str], msgspec.Meta(max_length=MAX_MAX, description="as `:lease` gave them")]


class LeaseMessages(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `:lease`."""

    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_MAX)]
    filter: TopicFilter | None = None
    wait: Delay | None = None
    lease: Delay | None = None


class AckMessages(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `:ack`."""

    lease_ids: LeaseIds


class ReleaseMessages(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `:release`."""

    lease_ids: LeaseIds


class NackMessages(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `:nack`. `delay` null: the back-off of the group; "never": they are dead at once."""

    lease_ids: LeaseIds
    delay: Delay | None = None
    reason: Annotated[str, msgspec.Meta(max_length=REASON_BYTES_MAX)] | None = None


class ExtendLeases(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `:extend`: from now."""

    lease_ids: LeaseIds
    lease: Delay


_LEASE = msgspec.json.Decoder(LeaseMessages)
_ACK = msgspec.json.Decoder(AckMessages)
_NACK = msgspec.json.Decoder(NackMessages)
_EXTEND = msgspec.json.Decoder(ExtendLeases)
_RELEASE = msgspec.json.Decoder(ReleaseMessages)


class LeaseRoutes:
    """The routes."""

    def __init__(
        self,
        ask: Ask,
        pull: Pull,
        groups: Membership,
        subscriptions: Subscriptions,
        turns: Turns,
        config: Config,
        *,
        node: int,
    ) -> None:
        self._ask = ask
        self._pull = pull
        self._groups = groups
        self._subscriptions = subscriptions
        self._turns = turns
        self._config = config
        self._node = node
        self._first = 0
        """Which of several groups is asked first, counted on with each call."""

    def routes(self) -> list[web.RouteDef]:
        path = "/v1/groups/{group}/messages"
        return [
            web.post(f"{path}:lease", self.lease),
            web.post(f"{path}:ack", self.ack),
            web.post(f"{path}:nack", self.nack),
            web.post(f"{path}:extend", self.extend),
            web.post(f"{path}:release", self.release),
        ]

    @described(
        "Lease messages of a group: they are yours for a while",
        READ,
        Gives(200, shapes.LeasedMessages),
        body=LeaseMessages,
        example={"max": 10, "filter": "jobs/#", "wait": "20s", "lease": "1m"},
        problems=("not-found", *WRITES),
    )
    async def lease(self, request: web.Request) -> web.Response:
        wish = await body_of(request, _LEASE)
        wait_ms = 0 if wish.wait is None else delay_ms("wait", wish.wait)
        if wait_ms > WAIT_MAX_MS:
            raise FieldError("wait", f"must be at most {WAIT_MAX_MS // 1_000} s")
        lease_ms = None if wish.lease is None else self._lease_ms(wish.lease)
        name, rights = request.match_info["group"], rights_of(request)
        texts = await self._texts(name, wish.filter, rights)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        is_gone = _listener(request, answered)
        with refusals():
            whole = Wish(wish.max, wait_ms, lease_ms)
            try:
                call = self._pull.lease(name, texts, rights, whole, is_gone, _setter(answered))
            except UnknownGroup as error:
                raise Problem("not-found", str(error)) from None
        try:
            leased = await answered
            with refusals():
                if isinstance(leased, Exception):
                    raise leased
            body: shapes.LeasedMessages = {"messages": await self._views(leased, self._turns.of(request))}
            answer = json_answer(body)
            if not is_gone():
                self._pull.release(call)
            return answer
        finally:
            self._pull.abandon(call)  # unless it is released: what nobody reads goes to others

    @described(
        "Leased messages are done with",
        READ,
        Gives(200, shapes.Acked),
        body=AckMessages,
        example={"lease_ids": [LEASE_ID]},
        problems=WRITES,
    )
    async def ack(self, request: web.Request) -> web.Response:
        wish = await body_of(request, _ACK)
        mine, others = self._sorted(request, wish.lease_ids)
        settled = await _settled(lambda done: self._pull.ack(mine, done))
        body: shapes.Acked = {"acked": settled.done, "gone": _texts_of(settled, others)}
        return json_answer(body)

    @described(
        "Leased messages are not done: they come again, later",
        READ,
        Gives(200, shapes.Nacked),
        body=NackMessages,
        example={"lease_ids": [LEASE_ID], "delay": "5m", "reason": "the printer is busy"},
        problems=WRITES,
    )
    async def nack(self, request: web.Request) -> web.Response:
        wish = await body_of(request, _NACK)
        wait_ms = _nack_ms(wish.delay)
        if wait_ms is not None and wait_ms > self._config.limits.max_delay_ms:
            raise FieldError("delay", "is further ahead than limits.max_delay")
        mine, others = self._sorted(request, wish.lease_ids)
        reason = wish.reason or ""
        settled = await _settled(lambda done: self._pull.nack(mine, wait_ms, reason, done))
        body: shapes.Nacked = {
            "nacked": settled.done,
            "dead": settled.dead,
            "gone": _texts_of(settled, others),
        }
        return json_answer(body)

    @described(
        "Hold on to leased messages: they are yours for longer",
        READ,
        Gives(200, shapes.Extended),
        body=ExtendLeases,
        example={"lease_ids": [LEASE_ID], "lease": "2m"},
        problems=WRITES,
    )
    async def extend(self, request: web.Request) -> web.Response:
        wish = await body_of(request, _EXTEND)
        lease_ms = self._lease_ms(wish.lease)
        mine, others = self._sorted(request, wish.lease_ids)
        settled = await _settled(lambda done: self._pull.extend(mine, lease_ms, done))
        body: shapes.Extended = {
            "extended": settled.done,
            "lease_until": time_text(settled.until_ms),
            "gone": _texts_of(settled, others),
        }
        return json_answer(body)

    @described(
        "Give leased messages back: another worker gets them at once, and it was no try",
        READ,
        Gives(200, shapes.Released),
        body=ReleaseMessages,
        example={"lease_ids": [LEASE_ID]},
        problems=WRITES,
    )
    async def release(self, request: web.Request) -> web.Response:
        """The first ten returns of a message are no tries; each further one counts as one."""
        wish = await body_of(request, _RELEASE)
        mine, others = self._sorted(request, wish.lease_ids)
        settled = await _settled(lambda done: self._pull.release_leases(mine, done))
        body: shapes.Released = {"released": settled.done, "gone": _texts_of(settled, others)}
        return json_answer(body)

    def _lease_ms(self, text: str | float) -> int:
        """Raises FieldError."""
        lease_ms = delay_ms("lease", text)
        if not LEASE_MIN_MS <= lease_ms <= ACK_MS_MAX:
            raise FieldError("lease", f"must be from 1 s to {ACK_MS_MAX // 1_000} s")
        return lease_ms

    async def _texts(self, name: str, topic_filter: str | None, rights: Rights | None) -> Sequence[str]:
        """The groups that are asked, each time another one first. Raises Problem, FieldError."""
        if topic_filter is not None:
            return (await self._opened(name, topic_filter, rights),)
        texts = [
            group.text
            for group in self._groups.of_name(name)
            if is_own(rights, group) and _may_lease(rights, parse_share(group.text)[1])
        ]
        if not texts:
            raise Problem("not-found", f"there is no group {name[:128]!r}; `filter` makes one")
        first = self._first % len(texts)
        some = (texts[first:] + texts[:first])[:GROUPS_MAX]
        self._first += len(some) if len(some) < len(texts) else 1
        return some

    async def _opened(self, name: str, topic_filter: str, rights: Rights | None) -> str:
        """The group of that name and filter, made if it is not there. Raises Problem, FieldError."""
        groups, text = self._groups, text_of(name, topic_filter, self._config)
        if not self._subscriptions.may_ask(topic_filter, rights):
            raise Problem("forbidden", f"{topic_filter[:128]!r} may not be subscribed to")
        if groups.get(text) is None:

            def open_group(commit: Commit) -> None:
                if groups.get(text) is None:
                    groups.make(commit, text, keeping=LASTING, rights=rights)

            await asked(self._ask, open_group)
        return text

    def _sorted(self, request: web.Request, lease_ids: Sequence[str]) -> tuple[list[LeaseId], list[str]]:
        """Those that are for who asks, once each, and the others. Raises FieldError."""
        name, rights = request.match_info["group"], rights_of(request)
        mine, others = [], []
        shares: Shares = {}
        may: dict[str, bool] = {}
        """By the group's text."""
        for text in dict.fromkeys(lease_ids):
            try:
                lease = parse_lease(text, shares)
                if lease.text not in may:
                    may[lease.text] = _may_lease(rights, _filter_of(lease.text, name))
            except BadLeaseId as error:
                raise FieldError("lease_ids", f"{text[:40]!r} {error}") from None
            if may[lease.text]:
                mine.append(lease)
            else:
                others.append(text)
        return mine, others

    async def _views(self, leased: Sequence[Leased], turn: Turn) -> list[shapes.LeasedMessage]:
        views: list[shapes.LeasedMessage] = []
        shared: dict[tuple[str, int], _Shared] = {}
        for count, one in enumerate(leased):
            if not count or turn.is_over(count):
                await turn.begin()
            key = (one.given.text, one.until_ms)
            if key not in shared:
                shared[key] = _shared_of(one)
            views.append(_view(one, shared[key], self._node))
        return views


class _Shared(NamedTuple):
    """What the leases of a group in one answer have in common."""

    filter: str
    tail: str
    """Of their `lease_id`."""
    until: str


def _shared_of(leased: Leased) -> _Shared:
    text = leased.given.text
    return _Shared(parse_share(text)[1], lease_tail(text), time_text(leased.until_ms))


def _view(leased: Leased, shared: _Shared, node: int) -> shapes.LeasedMessage:
    given = leased.given
    message = given.message
    record, place = message.record, message.position
    retry = record.retry
    return {
        **message_view(message.id(node), place, record, DISPATCHED, None),
        "filter": shared.filter,
        "attempt": given.attempt,
        "reason": None if retry is None else retry.reason.decode(errors="replace"),
        "tries": [try_view(one) for one in tries_before(message, given.attempt - message.attempts_before)],
        "lease_id": lease_head(leased.number, *message.origin) + shared.tail,
        "lease_until": shared.until,
    }


def _nack_ms(delay: str | float | None) -> int | None:
    """Raises FieldError."""
    if delay is None:
        return None
    return NEVER if delay == NEVER_TEXT else delay_ms("delay", delay)


def _filter_of(text: str, name: str) -> str:
    """Of a group of that name. Raises BadLeaseId."""
    try:
        group, topic_filter = parse_share(text)
    except TopicError:
        group = None
    if group is None:
        raise BadLeaseId("is not a lease_id")
    if group != name:
        raise BadLeaseId(f"is of the group {group[:64]!r}")
    return topic_filter


def _texts_of(settled: Settled, others: list[str]) -> list[str]:
    return [*others, *map(lease_text, settled.gone)]


def _may_lease(rights: Rights | None, topic_filter: str) -> bool:
    return rights is None or rights.may_subscribe(topic_filter)


async def _settled(act: Callable[[Callable[[Settled], None]], None]) -> Settled:
    """What has become of the leases. Raises Problem, with how far it came."""
    found: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
    with refusals():
        act(_setter(found))
        settled = await found
        if settled.error is not None:
            raise settled.error
    return settled


def _setter(future: "asyncio.Future[Any]") -> Callable[[Any], None]:
    """Sets it, unless who waits for it has been given up."""

    def put(found: Any) -> None:
        if not future.done():
            future.set_result(found)

    return put


def _listener(request: web.Request, answered: "asyncio.Future[Any]") -> Callable[[], bool]:
    """Whether nobody waits for the answer any more."""
    protocol = request.protocol

    def is_gone() -> bool:
        is_ended = isinstance(protocol, Protocol) and protocol.is_ended
        return is_ended or request.transport is None or answered.cancelled()

    return is_gone
