"""Coalescing: many concurrent calls share one request.

A call adds what it has to say to the request that is being put together and waits for a future: nothing else
is made of it, no task and no copy. What was put together goes at the end of the turn of the event loop if one
of `IN_FLIGHT` places is free, else as soon as one is, with what has joined it meanwhile. No timer holds
anything back: a call that is alone waits for nobody. The requests grow with the load, as calls that waited
for one answer ask again together.

Two places, because a request costs the server as much as some 25 messages do, and the client as 30: many
small requests at once are slower for all. 64 callers that each await their answer send one request of 64 at a
time; two requests of 32 take 1.3 times the processor time on both sides, at 0.75 of the rate. A request that
takes longer than `SLOW_S` (it is tried again, the server is busy) gives its place up, so that it does not
hold up the others; `UNDER_WAY` bounds them all.

Bounds: a request has at most `MAX_ITEMS` calls and `MAX_BYTES` (or one call that is larger); at most
`WAITING` requests wait to be sent, and beyond that calls wait before they are put anywhere. A call that is
cancelled before its request goes is left out of it. Later the server does what it was asked to, and nobody
hears of it.

Messages (`schedule()`): one travels as `POST /v1/messages`, several as one `POST
/v1/messages:batch?each=true`, in which each succeeds or fails on its own. Example: `gather` over 2,500 calls
makes three requests (1,000, 1,000, 500). What a call says of its key (`replace`, `key_only`) is said of a
whole request: calls that say the same share. A caller's key stands in the message. The server compares the
requests of a repeated key byte by byte, so these bytes must not depend on who else was scheduling at that
moment. Messages without a key share one that is made here for the request: sent again, the request is the
same.

Leases (`ack()`, `nack()`, `extend()` of what was pulled): see pull.py.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from .errors import Error, error_of, problem_of
from .transport import NDJSON, Transport
from .wire import KEY_HEADER, Json, new_key

MAX_ITEMS = 1_000
MAX_BYTES = 8 << 20
IN_FLIGHT = 2
SLOW_S = 1.0
UNDER_WAY = 16
WAITING = 8

Kind = TypeVar("Kind", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Request(Generic[Kind, Item, Result]):
    """Calls of one kind and their futures, index by index. `size`: bytes."""

    __slots__ = ("futures", "items", "kind", "loop", "size")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.loop = asyncio.get_running_loop()  # a call of the system each time
        self.items: list[Item] = []
        self.futures: list[asyncio.Future[Result]] = []
        self.size = 0

    def leave_out_cancelled(self) -> None:
        if any(future.cancelled() for future in self.futures):
            left = [pair for pair in zip(self.items, self.futures, strict=True) if not pair[1].cancelled()]
            self.items, self.futures = [item for item, _ in left], [future for _, future in left]


class Outbox(Generic[Kind, Item, Result]):
    """Puts calls together and sends them. Calls of one `Kind` can travel together.

    `send`: the items of one request; an answer, or an error, for each.
    """

    def __init__(self, send: Callable[[Kind, list[Item]], Awaitable[list[Result | Error]]]) -> None:
        self._send = send
        self._open: dict[Kind, _Request[Kind, Item, Result]] = {}  # the waiting request that a call joins
        self._waiting: deque[_Request[Kind, Item, Result]] = deque()
        self._quick: set[_Request[Kind, Item, Result]] = set()  # requests with a place
        self._sending: dict[asyncio.Task[None], _Request[Kind, Item, Result]] = {}
        self._outside: deque[asyncio.Future[None]] = deque()  # calls that wait for room
        self._will_flush = False

    @property
    def is_full(self) -> bool:
        """Whether a call must wait for `room()` before it submits an item."""
        return len(self._waiting) >= WAITING or bool(self._outside)

    async def room(self) -> None:
        """Wait until there is room for one item, first come first served."""
        is_full = self.is_full
        while is_full:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._outside.append(turn)
            await turn
            is_full = len(self._waiting) >= WAITING

    def submit(self, kind: Kind, item: Item, size: int) -> asyncio.Future[Result]:
        """Queue an item of `size` bytes; the future returns its answer."""
        request = self._open.get(kind)
        if request is None or len(request.items) >= MAX_ITEMS or request.size + size > MAX_BYTES:
            request = self._open[kind] = _Request(kind)
            self._waiting.append(request)
            self._flush_soon(request.loop)
        answer: asyncio.Future[Result] = request.loop.create_future()
        request.items.append(item)
        request.futures.append(answer)
        request.size += size
        return answer

    async def close(self) -> None:
        """Wait for all submitted items, and for callers that still wait to submit."""
        while self._outside or self._waiting or self._sending:
            await asyncio.sleep(0)
            await asyncio.gather(*self._sending, return_exceptions=True)

    def _flush_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._will_flush:
            self._will_flush = True
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        while self._waiting and len(self._quick) < IN_FLIGHT and len(self._sending) < UNDER_WAY:
            request = self._waiting.popleft()
            if self._open.get(request.kind) is request:
                del self._open[request.kind]
            request.leave_out_cancelled()
            if request.items:
                task = asyncio.create_task(self._sent(request))
                self._quick.add(request)
                self._sending[task] = request
                task.add_done_callback(self._ended)
        if self._outside and len(self._waiting) < WAITING:
            self._let_in()

    def _let_in(self) -> None:
        """Let in as many calls as a request has room for, and again next turn: some may be cancelled."""
        for _ in range(min(MAX_ITEMS, len(self._outside))):
            turn = self._outside.popleft()
            if not turn.done():  # cancelled
                turn.set_result(None)
        self._flush_soon(asyncio.get_running_loop())

    def _ended(self, task: asyncio.Task[None]) -> None:
        request = self._sending.pop(task)
        self._quick.discard(request)
        if task.cancelled():
            for future in request.futures:
                future.cancel()
        self._flush()

    def _give_up_place(self, request: _Request[Kind, Item, Result]) -> None:
        self._quick.discard(request)
        self._flush()

    async def _sent(self, request: _Request[Kind, Item, Result]) -> None:
        slow = asyncio.get_running_loop().call_later(SLOW_S, self._give_up_place, request)
        try:
            answers = await self._send(request.kind, request.items)
        except Exception as error:
            for future in request.futures:
                _settle(future, _own(error))
        else:
            for future, answer in zip(request.futures, answers, strict=True):
                _settle(future, answer)
        finally:
            slow.cancel()


Terms = tuple[tuple[str, str], ...]
"""Parameters of a request, in order."""
Line = tuple[bytes, str]
"""A message as JSON, and its caller's key, which is in it; empty: none."""


def message_outbox(transport: Transport) -> Outbox[Terms, Line, Json]:
    """Coalesces messages; the answer is the server's object for each."""
    return Outbox(partial(_send, transport))


async def _send(transport: Transport, terms: Terms, lines: list[Line]) -> list[Json | Error]:
    if len(lines) == 1:
        return [await send_one(transport, terms, *lines[0])]
    answer = await transport.call(
        "POST",
        "&".join(["/v1/messages:batch?each=true", *[f"{name}={value}" for name, value in terms]]),
        body=b"\n".join([body for body, _ in lines]) + b"\n",
        content_type=NDJSON,
        headers={} if all(key for _, key in lines) else {KEY_HEADER: new_key()},
    )
    results: list[Any] = answer.object().get("results", [])
    if len(results) != len(lines):
        raise Error(f"{len(lines)} messages sent, {len(results)} results came back")
    return [one if one.get("problem") is None else error_of(problem_of(one["problem"])) for one in results]


async def send_one(transport: Transport, terms: Terms, body: bytes, key: str) -> Json:
    """Send one message in its own request; returns the server's object."""
    headers = {KEY_HEADER: key or new_key()} if key.isascii() else {}
    answer = await transport.call("POST", "/v1/messages", params=dict(terms), body=body, headers=headers)
    was_known = answer.headers.get("Idempotent-Replayed") == "true"
    return {**answer.object(), "replayed": was_known}


def _own(error: Exception) -> Exception:
    """A copy of an exception for one caller to raise; if it cannot be copied, all raise the same."""
    try:
        return copy.copy(error)
    except Exception:
        return error


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if future.done():  # its caller was cancelled
        return
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
