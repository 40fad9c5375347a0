# ruff: noqa: ARG002 - a `Link` has more arguments than a poster needs
"""Posters: members of groups that post messages to endpoints.

Delivery adds a message to the group of its endpoint, and the group sends it to its member here, the poster.
An answer that means "done" acks it. Any other nacks it: the message is retried on the timeline for this group
alone, until it is done or a dead letter. There is no queue here: messages that do not fit wait in the store.

A poster has as many posts under way as its endpoint allows, so a slow endpoint delays no other. Unnamed
endpoints, made for full URLs, also share a bound (slots.py): each has a lane there.

A post under way when the server is killed was in flight, and is sent again after the start. A post may take
half an hour: it is aborted when the server stops, and when its endpoint is deleted.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from yarl import URL

from shards.errors import Corrupt
from timeline.session import Flight, Subscription

from ..delivery.link import Closing
from ..delivery.membership import Membership
from ..delivery.message import Message
from ..delivery.run import Run
from ..delivery.settling.settling import Settling
from ..delivery.shared import Group
from ..delivery.subscriber import Inside
from ..engine.clock import Clock
from ..observe.logs import by
from .last_posts import LastPosts
from .registry import Endpoint
from .request import WebhookRequest, request_for
from .sender import Sender
from .slots import Lane, Slots
from .targets import TargetError
from .verdicts import Outcome, Reply, Verdict, phrase_of, verdict_of

log = logging.getLogger(__name__)

LEASE_MORE_MS = 60_000
"""Added to a post's timeout for its lease, so that the post ends first."""

Ended = Callable[[Verdict, Reply], None]


class Posts:
    """Posts under way of all posters, and the count of each outcome."""

    def __init__(self, sender: Sender, real: Clock) -> None:
        """`real`: the machine's clock, even if the server's is simulated: receivers check it."""
        self._sender = sender
        self._real = real
        self._tasks: set[asyncio.Task[None]] = set()
        self.outcomes = dict.fromkeys(Outcome, 0)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def now_ms(self) -> int:
        return self._real.wall_ms()

    @property
    def mono_ms(self) -> float:
        return self._real.mono() * 1_000

    async def post(self, request: WebhookRequest) -> tuple[Verdict, Reply]:
        """Post once."""
        reply = await self._sender.post(request)
        return verdict_of(reply, self.now_ms), reply

    def begin(self, request: WebhookRequest, ended: Ended) -> asyncio.Task[None]:
        """Post in a task, then call `ended`, unless the task is cancelled. The task also waits for look-ups
        of names that outlast the post."""
        task = asyncio.get_running_loop().create_task(self._run(request, ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, within_s: float) -> None:
        """Wait for posts under way, then abort the rest, which are sent again after the next start."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._sender.close()

    async def _run(self, request: WebhookRequest, ended: Ended) -> None:
        try:
            verdict, reply = await self.post(request)
        except Exception:
            log.exception("webhooks: a post failed inside the server", extra=by("webhooks"))
            reply = Reply(0, fault="the server failed to post it")
            verdict = verdict_of(reply, self.now_ms)
        self.outcomes[verdict.outcome] += 1
        ended(verdict, reply)
        lookups = self._sender.lookups(request.url)
        if lookups:
            await asyncio.wait(lookups)


UrlOf = Callable[[Endpoint, Message], URL]
"""Where a message to an endpoint is posted. Raises TargetError."""


class EndpointPoster:
    """Posts to one endpoint: the member of its group, and the `Link` on which the group sends, with QoS 1."""

    is_limited = False

    def __init__(
        self,
        endpoint: Endpoint,
        group: Group,
        groups: Membership,
        settling: Settling,
        posts: Posts,
        slots: Slots | None,
        *,
        node: int,
        gone: Callable[[Endpoint, str], None],
        url_of: UrlOf,
    ) -> None:
        """`slots`: the bound of unnamed endpoints; None for others. `gone`: called with the endpoint as
        posted to and a reason, when the receiver answers that it is gone."""
        self.endpoint = endpoint
        """The current one. Posts under way may be to a former one."""
        self.last_posts = LastPosts()
        """Empty for an unnamed endpoint, whose receivers are many."""
        self._text = group.text
        self._groups = groups
        self._settling = settling
        self._inside: Inside | None = None
        self._posts = posts
        self._slots = slots
        self._lane = Lane(group.owner, self._wake)
        """Unused without slots."""
        self._node = node
        self._gone = gone
        self._url_of = url_of
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closing = False
        """Begins no more posts."""

    @property
    def is_joined(self) -> bool:
        return self._inside is not None

    def join(self) -> None:
        """Join the group. Raises UnknownGroup."""
        self._inside = self._groups.enlist(self, self._text, name=self._text)

    def leave(self, *, is_stopping: bool = False) -> None:
        """Leave the group. Messages in flight are redelivered: as the next try, if the server stops, as a
        receiver may be busy with them."""
        inside, self._inside = self._inside, None
        if inside is not None:
            self._settling.leave(inside, is_clean=True, is_stopping=is_stopping)

    def change(self, endpoint: Endpoint) -> None:
        """Post to the changed endpoint. A new receiver starts without results of posts."""
        if not endpoint.is_same_receiver(self.endpoint):
            self.last_posts = LastPosts()
        self.endpoint = endpoint

    def abort(self) -> None:
        """Abort the posts under way, as the endpoint is deleted: they would hold connections beyond the share
        of the next endpoint of that name."""
        self.is_closing = True
        for task in self._tasks:
            task.cancel()
        if self._slots is not None:
            self._slots.remove(self._lane)
        self.leave()

    # -- Link

    @property
    def has_room(self) -> bool:
        if self.is_closing or self._open >= self.endpoint.concurrency:
            return False
        return self._slots is None or self._slots.has_room(self._lane)

    def takes(
        self, message: Message, qos: int, subscriptions: tuple[Subscription, ...], attempt: int
    ) -> bool:
        return True

    def close(self, why: Closing) -> None:
        """Leave the group."""
        if why is not Closing.DROPPED:
            log.error("%s: closed for webhooks: %s", self._text, why.name.lower())
        self.leave()

    def release(self, packet_id: int) -> None:
        raise AssertionError(f"packet id {packet_id} is released, nothing here is QoS 2")

    def send(
        self,
        message: Message,
        qos: int,
        packet_id: int,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
        is_retained: bool = False,
        is_first: bool = False,
    ) -> None:
        """Begin to post a message of the group. Its lease lasts as long, however short the ack timeout is."""
        endpoint, now_ms, name = self.endpoint, self._posts.now_ms, message.id_text(self._node)
        self._open += 1
        if self._inside is not None:
            self._settling.extend(self._inside, packet_id, int(endpoint.timeout_s * 1_000) + LEASE_MORE_MS)
        try:
            url = self._url_of(endpoint, message)
            request = request_for(endpoint, message, url, attempt, now_ms, node=self._node)
        except Exception as error:
            self._ended(endpoint, packet_id, name, unreadable(error), Reply(0))
            return
        task = self._posts.begin(request, partial(self._ended, endpoint, packet_id, name))
        if self._slots is not None:
            slots, speed, began_ms = self._slots, self._slots.take(self._lane), self._posts.mono_ms
            task.add_done_callback(lambda _: slots.give(self._lane, speed, self._posts.mono_ms - began_ms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def takes_run(self, run: Run, qos: int) -> bool:
        return False

    def send_run(self, run: Run, qos: int, flights: Sequence[Flight]) -> None:
        raise AssertionError("a group gives one by one")

    # -- leaves

    def _wake(self) -> bool:
        """Read on, as there may be room; False if the group has no message waiting."""
        group = self._groups.get(self._text)
        if self._inside is None or group is None or group.session.tailing:
            return False
        self._groups.read_on(self._inside)
        return True

    def _ended(self, endpoint: Endpoint, packet_id: int, name: str, verdict: Verdict, reply: Reply) -> None:
        """Ack or nack the message, unless the poster has left. `name`: the message's id."""
        if self._slots is None and endpoint.is_same_receiver(self.endpoint):
            self.last_posts.note(self._posts.now_ms, name, verdict, reply)
        if verdict.outcome is Outcome.GONE:
            self._gone(endpoint, verdict.reason)
        inside = self._inside
        if inside is None or verdict.outcome is Outcome.DONE:
            self._open -= 1
            if inside is not None:
                self._settling.ack(inside, packet_id, answer=f"{reply.status}{phrase_of(reply.status)}")
                self._groups.read_on(inside)
            return

        def settled(_: object) -> None:
            self._open -= 1
            if self._inside is inside:
                self._groups.read_on(inside)

        delay_ms, reason = verdict.delay_ms, verdict.reason
        self._settling.nack(inside, packet_id, delay_ms=delay_ms, reason=reason, done=settled)


def unreadable(error: Exception) -> Verdict:
    """The verdict for a message that cannot be posted: it is retried, then becomes a dead letter.

    The error may be the server's own: one message stops no other.
    """
    match error:
        case TargetError():
            why = str(error)
        case Corrupt():
            why = "the message is unreadable"
        case _:
            why = "the server failed"
            log.error("webhooks: a message cannot be posted", exc_info=error, extra=by("webhooks"))
    return Verdict(Outcome.AGAIN, None, f"cannot be posted: {why}")
