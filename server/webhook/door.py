"""The doors by which messages leave: members of groups, that post what they are given.

Delivery gives a message to the group of its endpoint, the group to its member here, and that one's link
posts it. An answer that means "done" is the ack; any other a nack, by which the message stands on the
timeline again for this group alone, until it is done or dead. So there is no queue here: what has no room
waits in the store.

A door has so many posts under way as its endpoint says. A slow endpoint fills its own and no other's. The
endpoints that the server makes for full URLs share a bound besides (slots.py): each has a lane there.

A post that is under way when the server is killed was in flight, and is sent again after the start. A post
may take half an hour: it is cut when the server stops, and when its endpoint is deleted.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from yarl import URL

from shards.errors import Corrupt
from timeline.session import Subscription

from ..delivery.membership import Membership
from ..delivery.message import Message
from ..delivery.run import Run
from ..delivery.settling.settling import Settling
from ..delivery.subscriber import Closing, Inside
from ..engine.clock import Clock
from ..observe.logs import by
from .failing import LastPosts
from .parcel import Parcel, parcel_of
from .registry import Endpoint
from .sender import Sender
from .slots import Lane
from .targets import TargetError
from .verdicts import Outcome, Reply, Verdict, verdict_of

log = logging.getLogger(__name__)

LEASE_MORE_MS = 60_000
"""How much longer than a post its lease lasts: the post ends first, by its own timeout."""

Ended = Callable[[Verdict, Reply], None]


class Posts:
    """Posts under way, of all doors, and how many have come to what."""

    def __init__(self, sender: Sender, real: Clock) -> None:
        """`real`: the machine's clock, also where the server's is simulated: receivers look at it."""
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

    async def post(self, parcel: Parcel) -> tuple[Verdict, Reply]:
        """Post once."""
        reply = await self._sender.post(parcel)
        return verdict_of(reply, self.now_ms), reply

    def begin(self, parcel: Parcel, ended: Ended) -> asyncio.Task[None]:
        """Post, then say what came of it; nothing if the task that is returned is cancelled. The task goes on
        for as long as anything of it does, also the look-up of a name that took too long."""
        task = asyncio.get_running_loop().create_task(self._run(parcel, ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, within_s: float) -> None:
        """Wait for those under way; what takes longer is cut off, and sent again after the next start."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._sender.close()

    async def _run(self, parcel: Parcel, ended: Ended) -> None:
        try:
            verdict, reply = await self.post(parcel)
        except Exception:
            log.exception("webhooks: a post failed inside the server", extra=by("webhooks"))
            reply = Reply(0, fault="the server failed to post it")
            verdict = verdict_of(reply, self.now_ms)
        self.outcomes[verdict.outcome] += 1
        ended(verdict, reply)
        lookups = self._sender.lookups(parcel.url)
        if lookups:
            await asyncio.wait(lookups)


class Door(Protocol):
    """What posts the messages of one group."""

    @property
    def has_room(self) -> bool: ...

    def post(self, message: Message, packet_id: int, attempt: int) -> None:
        """Begin to post what the group has given; `attempt` as `Link.send` has it."""


class Entrance:
    """The link through which a group gives its messages to a door: they are of any size, and of QoS 1."""

    __slots__ = ("_door", "_seat")

    is_limited = False

    def __init__(self, seat: "Seat", door: Door) -> None:
        self._seat = seat
        self._door = door

    @property
    def has_room(self) -> bool:
        return self._door.has_room

    def takes(
        self,
        message: Message,  # noqa: ARG002
        qos: int,  # noqa: ARG002
        subscriptions: tuple[Subscription, ...],  # noqa: ARG002
        attempt: int,  # noqa: ARG002
    ) -> bool:
        return True

    def close(self, why: Closing) -> None:
        """Its place in the group is given up, for whatever reason."""
        if why is not Closing.DROPPED:
            log.error("%s: closed for webhooks: %s", self._seat.text, why.name.lower())
        self._seat.leave()

    def release(self, packet_id: int) -> None:
        raise AssertionError(f"packet id {packet_id} is released, nothing here is QoS 2")

    def send(
        self,
        message: Message,
        qos: int,  # noqa: ARG002
        packet_id: int,
        subscriptions: tuple[Subscription, ...],  # noqa: ARG002
        attempt: int,
        is_retained: bool = False,  # noqa: ARG002
        is_first: bool = False,  # noqa: ARG002
    ) -> None:
        self._door.post(message, packet_id, attempt)

    def takes_run(self, run: Run, qos: int) -> bool:  # noqa: ARG002
        return False

    def send_run(self, run: Run, qos: int, packet_ids: Sequence[int]) -> None:  # noqa: ARG002
        raise AssertionError("a group gives one by one")


class Seat:
    """The place of a door in its group, and what it says there of messages."""

    __slots__ = ("_groups", "_inside", "_settling", "text")

    def __init__(self, groups: Membership, settling: Settling, text: str) -> None:
        self._groups = groups
        self._settling = settling
        self.text = text
        self._inside: Inside | None = None

    @property
    def is_in(self) -> bool:
        return self._inside is not None

    def enter(self, door: Door) -> None:
        """Join the group as the member that posts its messages. Raises UnknownGroup."""
        self._inside = self._groups.enlist(Entrance(self, door), self.text, name=self.text)

    def leave(self) -> None:
        """Leave the group. Messages in flight are redelivered."""
        inside, self._inside = self._inside, None
        if inside is not None:
            self._settling.dismiss(inside, is_clean=True)

    def wake(self) -> bool:
        """There may be room: go on. False: the group has nothing to give."""
        group = self._groups.get(self.text)
        if self._inside is None or group is None or group.session.tailing:
            return False
        self._groups.read_on(self._inside)
        return True

    def keep(self, packet_id: int, for_ms: int) -> None:
        """Have the message to itself for so long, however short the group's ack timeout is."""
        if self._inside is not None:
            self._settling.extend(self._inside, packet_id, for_ms)

    def done(self, packet_id: int) -> None:
        """The message has been taken."""
        if self._inside is not None:
            self._settling.ack(self._inside, packet_id)
            self._groups.read_on(self._inside)

    def again(
        self,
        packet_id: int,
        verdict: Verdict,
        settled: Callable[[], None],
    ) -> None:
        """It has not; `settled` when that is durable, or is not to be waited for."""
        inside = self._inside
        if inside is None:
            settled()
            return

        def told(_: object) -> None:
            settled()
            if self._inside is inside:
                self._groups.read_on(inside)

        self._settling.nack(
            inside,
            packet_id,
            delay_ms=verdict.delay_ms,
            reason=verdict.reason,
            done=told,
        )


UrlOf = Callable[[Endpoint, Message], URL]
"""Where a message to an endpoint is posted. Raises TargetError."""


class EndpointDoor:
    """What posts to one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        seat: Seat,
        posts: Posts,
        lane: Lane | None,
        *,
        node: int,
        gone: Callable[[Endpoint, str], None],
        url_of: UrlOf,
    ) -> None:
        """`lane`: of the bound that full URLs share; None: it needs none. `gone`: told of the endpoint as it
        was posted to, and why, when that wants nothing any more."""
        self.endpoint = endpoint
        """As it is by now; what is under way was posted as it was."""
        self.last_posts = LastPosts()
        self.seat = seat
        self._posts = posts
        self._lane = lane
        self._node = node
        self._gone = gone
        self._url_of = url_of
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closing = False
        """Nothing more is begun."""

    @property
    def has_room(self) -> bool:
        if self.is_closing or self._open >= self.endpoint.concurrency:
            return False
        return self._lane is None or self._lane.has_room

    def change(self, endpoint: Endpoint) -> None:
        """Post to the endpoint as it is by now. Another receiver is judged by its own posts."""
        if not endpoint.is_same_receiver(self.endpoint):
            self.last_posts.clear()
        self.endpoint = endpoint

    def shut(self) -> None:
        """The endpoint is deleted: cut the posts under way, which would hold connections beyond the share of
        the next endpoint of that name."""
        self.is_closing = True
        for task in self._tasks:
            task.cancel()
        if self._lane is not None:
            self._lane.close()
        self.seat.leave()

    def post(self, message: Message, packet_id: int, attempt: int) -> None:
        endpoint, now_ms = self.endpoint, self._posts.now_ms
        self._open += 1
        self.seat.keep(packet_id, int(endpoint.timeout_s * 1_000) + LEASE_MORE_MS)
        try:
            parcel = parcel_of(
                message,
                self._url_of(endpoint, message),
                endpoint.timeout_s,
                endpoint.secrets(now_ms),
                endpoint.row.headers,
                attempt=message.try_number(attempt),
                node=self._node,
                now_s=now_ms // 1_000,
            )
        except Exception as error:
            self._ended(endpoint, packet_id, unreadable(error), Reply(0))
            return
        task = self._posts.begin(parcel, partial(self._ended, endpoint, packet_id))
        if self._lane is not None:
            lane, kind, began_ms = self._lane, self._lane.take(), self._posts.mono_ms
            task.add_done_callback(lambda _: lane.give(kind, self._posts.mono_ms - began_ms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ended(self, endpoint: Endpoint, packet_id: int, verdict: Verdict, _: Reply) -> None:
        if endpoint.is_same_receiver(self.endpoint):
            self.last_posts.note(verdict)
        if verdict.outcome is Outcome.DONE:
            self._open -= 1
            self.seat.done(packet_id)
            return
        if verdict.outcome is Outcome.GONE:
            self._gone(endpoint, verdict.reason)
        self.seat.again(packet_id, verdict, self._settled)

    def _settled(self) -> None:
        self._open -= 1


def unreadable(error: Exception) -> Verdict:
    """Of what can never be posted: it goes the way of all that fails, to a dead letter in the end.

    That may be a mistake of ours as well: one message stops no other.
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
