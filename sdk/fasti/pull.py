"""`client.pull`: takes messages of a group on request, over HTTP.

    async for job in c.pull("workers", "jobs/#", max=100):
        await handle(job.json())
        await job.ack()

A message is leased: ours for `lease`, or until it is acked or nacked; then it returns to the group. The loop
asks for the next ones when it has none left, and waits at the server for the first (`wait`). So the client
holds only messages that the loop has asked for, and if it dies they return after at most `lease`. Members
that subscribe over MQTT and those that pull share a group's messages.

`ack()` is answered when it is durable, and counts however late it comes: after the lease, when another has
the message, after a restart of the server. Concurrent calls of one turn of the event loop travel together, at
most 1,000 in a request.

Messages that wait here for the loop are kept: when the loop asks for the next message and half of the lease
is over, their leases are extended. So a job may take half a lease, or calls `extend` itself, however many
wait behind it. If the loop does not come back in time they are dropped here: others have them by then. When
the pull is closed waiting messages are returned at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Self

from .coalesce import MAX_ITEMS, Outbox, Terms
from .delivery import NEVER_AGAIN, Received, reason_of
from .errors import Error, Refused, Unreachable
from .mqtt_values import Came, UserProperties
from .names import check_count, check_group, check_text
from .transport import PATIENCE_S, Transport, quoted
from .wire import NO_PAYLOAD, Json, NewMessage, Span, dumps, get_payload, parse_instant, seconds, span

DEFAULT_LEASE = timedelta(seconds=30)
DEFAULT_WAIT = timedelta(seconds=20)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_AT_ONCE_S = 0.1


class Leased(Received):
    """A leased message."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Json) -> None:
        super().__init__(_came(raw))
        self._raw = raw

    @property
    def raw(self) -> Json:
        """The server's object for it."""
        return self._raw

    @property
    def lease_id(self) -> str:
        """Names the lease in answers, also in another process."""
        return str(self._raw["lease_id"])

    @property
    def lease_until(self) -> datetime:
        """End of the lease, unless it is extended; by the server's clock, UTC."""
        return parse_instant(self._raw["lease_until"])


class Pulled(Leased):
    """A leased message that waits for its answer: `ack()`, `nack()`, `reject()` or `release()`."""

    __slots__ = ("_leases",)

    def __init__(self, raw: Json, leases: Leases) -> None:
        super().__init__(raw)
        self._leases = leases

    async def ack(self, then: Sequence[NewMessage] = (), *, result: Any = NO_PAYLOAD) -> bool:
        """Finish the message. True: it is finished, durably; it is not delivered again.

        False: it was finished before, by another member, or by an ack whose answer was lost. Raises
        Unreachable, Refused.

        `then`: messages that follow from it, at most 100. The server finishes the message and schedules these
            in one step, or does neither. It does so only while this lease runs: with False nothing is
            scheduled, except by an ack whose answer was lost.
        `result`: JSON of at most 64 KiB, under the same terms (`client.messages.result`).
        """
        if then or result is not NO_PAYLOAD:
            more = {} if result is NO_PAYLOAD else {"result": result}
            return await self._leases.follow(self.lease_id, [message.body() for message in then], more)
        return await self._leases.settle("ack", self.lease_id)

    async def nack(self, delay: Span | None = None, reason: str | None = None) -> bool:
        """Return the message: the group gets it again after `delay`, by default after its back-off.

        True: it will, or is a dead letter as this was the last try; durable. False: it is not ours any more.
        Raises Unreachable, Refused, and ValueError for a negative delay.
        """
        terms = {} if delay is None else {"delay": span(delay)}
        if reason:
            terms["reason"] = reason_of(reason)
        return await self._leases.settle("nack", self.lease_id, terms)

    async def reject(self, reason: str | None = None) -> bool:
        """Give the message up: it becomes a dead letter at once, with `reason`.

        True and False, and what it raises, as for `nack`.
        """
        terms = {"delay": NEVER_AGAIN}
        if reason:
            terms["reason"] = reason_of(reason)
        return await self._leases.settle("nack", self.lease_id, terms)

    async def release(self) -> bool:
        """Release it untried: another worker gets it at once, and no attempt is counted.

        The first ten releases of a message are free; after them each counts. False: it is not ours any more.
        Raises Unreachable, Refused.
        """
        return await self._leases.settle("release", self.lease_id)

    async def extend(self, lease: Span) -> bool:
        """Extend the lease to `span` from now. False: the lease is lost. Raises Unreachable, Refused."""
        return await self._leases.settle("extend", self.lease_id, {"lease": span(lease, "lease")})


_Verb = tuple[str, Terms]
"""A verb, and the further parameters of its request."""


class Leases:
    """Verbs on the leases of one group: `:ack`, `:nack`, `:extend`, `:release`."""

    def __init__(self, transport: Transport, group: str) -> None:
        self._transport = transport
        self._path = f"/v1/groups/{quoted(group)}/messages"
        self._outbox: Outbox[_Verb, str, bool] = Outbox(self._send)

    async def lease(self, body: Json, timeout_s: float) -> list[Json]:
        """Messages, none if none came within `wait`. Raises NotFound, Refused, Unreachable."""
        answer = await self._transport.ask("POST", self._path + ":lease", body, timeout_s=timeout_s)
        found: list[Json] = answer["messages"]
        return found

    async def settle(self, verb: str, lease_id: str, terms: Mapping[str, str] = _NOTHING) -> bool:
        """False: that lease is gone."""
        if self._outbox.is_full:
            await self._outbox.room()
        return await self._outbox.submit((verb, tuple(terms.items())), lease_id, len(lease_id))

    async def follow(self, lease_id: str, then: list[Json], more: Json) -> bool:
        """Ack together with follow-ups, and `more`. False: that lease is gone."""
        body = {"lease_ids": [lease_id], "then": then, **more}
        return bool((await self._transport.ask("POST", self._path + ":ack", body))["acked"])

    async def close(self) -> None:
        """Wait for running requests."""
        await self._outbox.close()

    async def _send(self, verb: _Verb, lease_ids: list[str]) -> list[bool | Error]:
        name, terms = verb
        body = {"lease_ids": lease_ids, **dict(terms)}
        gone = set((await self._transport.ask("POST", f"{self._path}:{name}", body))["gone"])
        return [lease_id not in gone for lease_id in lease_ids]


class Pull:
    """An async iterator of leased messages, and an async context manager that returns the rest.

    It never ends. A step may be cancelled without harm, and several steps may run at once. Once the server
    has answered, the pull waits for a server that is down.
    """

    def __init__(
        self,
        transport: Transport,
        group: str,
        topic_filter: str | None = None,
        *,
        max: int = 100,  # noqa: A002 - as the server calls it
        wait: Span = DEFAULT_WAIT,
        lease: Span = DEFAULT_LEASE,
    ) -> None:
        """Raises BadArgument."""
        check_group("group", group)
        if topic_filter is not None:
            check_text("topic_filter", topic_filter)
        check_count("max", max, 1, MAX_ITEMS)
        self._transport = transport
        self._leases = Leases(transport, group)
        self._wait_s, self._lease_s = seconds("wait", wait), seconds("lease", lease)
        self._body: Json = {"max": max, "wait": span(wait, "wait"), "lease": span(lease, "lease")}
        if topic_filter is not None:
            self._body["filter"] = topic_filter
        self._here: deque[Pulled] = deque()  # of one answer
        self._until_s = 0.0  # when these are no longer ours
        self._asking = asyncio.Lock()
        self._poll: asyncio.Future[list[Json]] | None = None
        self._has_answered = False
        self._closed = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Pulled:
        loop = asyncio.get_running_loop()
        while not self._closed.is_set():
            async with self._asking:
                await self._hold(loop)
                if self._here:
                    return self._here.popleft()
                await self._ask(loop)
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the loop; leased messages that it has not yielded are released at once."""
        self._closed.set()
        if self._poll is not None:
            self._poll.cancel()
        left, self._here = self._here, deque()
        with contextlib.suppress(Error):  # then their leases end by themselves
            await asyncio.gather(*(pulled.release() for pulled in left))
        await self._leases.close()

    async def _hold(self, loop: asyncio.AbstractEventLoop) -> None:
        """Drop messages that are no longer ours; extend the leases of waiting ones when half is over."""
        now_s = loop.time()
        if now_s >= self._until_s:
            self._here.clear()
        elif self._here and now_s >= self._until_s - self._lease_s / 2:
            waiting = tuple(self._here)
            try:
                are_held = await asyncio.gather(*(each.extend(self._lease_s) for each in waiting))
            except (Unreachable, Refused):
                return
            if not self._closed.is_set():
                self._here = deque(each for each, is_held in zip(waiting, are_held, strict=True) if is_held)
                self._until_s = now_s + self._lease_s

    async def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until something has come."""
        fruitless = 0  # answers in a row that came at once and brought nothing
        while not self._closed.is_set() and not self._here:
            began_s = loop.time()
            self._poll = asyncio.ensure_future(self._leases.lease(self._body, self._wait_s + PATIENCE_S))
            try:
                found = await self._poll
            except asyncio.CancelledError:
                if self._closed.is_set():
                    return
                raise
            except (Unreachable, Refused) as error:
                if not self._has_answered or not _is_passing(error):
                    raise
                found = []
            else:
                self._has_answered = True
            self._until_s = loop.time() + self._lease_s
            self._here.extend(Pulled(raw, self._leases) for raw in found)
            if not found and loop.time() - began_s < _AT_ONCE_S:
                await asyncio.sleep(self._transport.retry.wait_s(fruitless))
                fruitless += 1


def _is_passing(error: Error) -> bool:
    """Whether a later try may succeed."""
    return isinstance(error, Unreachable) or error.problem.status in (429, 503)


def _came(raw: Json) -> Came:
    """The message in the form of one over MQTT."""
    payload = get_payload(raw)
    if isinstance(payload, str):
        payload = payload.encode()
    details = {
        "fasti-id": raw.get("id"),
        "fasti-due": raw.get("deliver_at"),
        "fasti-attempt": raw.get("attempt"),
        "fasti-tries": json.dumps(raw["tries"]) if raw.get("tries") else None,
        "fasti-schedule": raw.get("schedule"),
        "fasti-ordering-key": raw.get("ordering_key"),
    }
    known = [(name, str(value)) for name, value in details.items() if value is not None]
    headers: UserProperties = tuple((raw.get("headers") or {}).items())
    return Came(
        topic=raw["topic"],
        payload=payload if isinstance(payload, bytes) else dumps(payload),
        qos=int(raw.get("qos", 1)),
        properties=(*headers, *known),
        content_type=raw.get("content_type"),
        dup=raw.get("redelivered") is True,
    )
