"""Many concurrent calls, one request.

A call puts what it has to say in a list and waits for a future; the first one also asks the loop to flush the
list at the end of the turn. No timer is involved: a call that is alone in its turn waits for nobody. What is
flushed is cut into requests, and each answer goes to the call that waits for it.

Messages (`schedule()`): one travels as `POST /v1/messages`, several as one `POST
/v1/messages:batch?each=true`, in which each succeeds or fails on its own. Example: `gather` over 2,500 calls
makes three requests (1,000, 1,000, 500). What a call says of its key (`replace`, `key_only`) is said of a
whole request: calls that say the same share. A message has its key in the body both ways. The server compares
the requests of a repeated key byte by byte, so the bytes must not depend on who else was scheduling at that
moment.

Leases (`ack()`, `nack()`, `extend()` of what was pulled): see pull.py.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .errors import Error, error_of, problem_of
from .transport import NDJSON, Transport
from .wire import Json

MAX_ITEMS = 1_000
MAX_BYTES = 8 << 20

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Turn(Generic[Item, Answer]):
    """Collects the items of one turn of the event loop.

    `cut`: into the parts that travel together. `send`: one part; an answer, or an error, for each item.
    """

    def __init__(
        self,
        cut: Callable[[list[Item]], list[list[Item]]],
        send: Callable[[list[Item]], Awaitable[list[Answer | Error]]],
    ) -> None:
        self._cut = cut
        self._send = send
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    def submit(self, item: Item) -> asyncio.Future[Answer]:
        """Queue it; the future gives its answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((item, answer))
        return answer

    async def close(self) -> None:
        """Wait for the requests under way."""
        while self._waiting or self._sending:
            await asyncio.sleep(0)
            await asyncio.gather(*self._sending, return_exceptions=True)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        answers = {id(item): answer for item, answer in waiting}
        for part in self._cut([item for item, _ in waiting]):
            task = asyncio.create_task(self._sent(part, [answers[id(item)] for item in part]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _sent(self, part: list[Item], futures: list[asyncio.Future[Answer]]) -> None:
        try:
            answers = await self._send(part)
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        except Exception as error:
            for future in futures:  # each caller gets an exception of its own to raise
                _settle(future, copy.copy(error))
        else:
            for future, answer in zip(futures, answers, strict=True):
                _settle(future, answer)


@dataclass(frozen=True, slots=True)
class _Scheduled:
    body: bytes
    key: str
    params: Mapping[str, str]


class Coalescer:
    """The messages of one turn."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._turn: Turn[_Scheduled, Json] = Turn(_parts, self._send)

    def submit(self, body: bytes, key: str, params: Mapping[str, str]) -> asyncio.Future[Json]:
        """Queue one message (JSON with the same `key` in it); the future gives the server's object for it.

        `params`: of the request that it goes with.
        """
        return self._turn.submit(_Scheduled(body, key, params))

    async def close(self) -> None:
        """Wait for the requests under way."""
        await self._turn.close()

    async def _send(self, part: list[_Scheduled]) -> list[Json | Error]:
        return await (self._send_one(part[0]) if len(part) == 1 else self._send_batch(part))

    async def _send_one(self, item: _Scheduled) -> list[Json | Error]:
        headers = {"Idempotency-Key": item.key} if item.key.isascii() else {}
        answer = await self._transport.call(
            "POST", "/v1/messages", params=item.params, body=item.body, headers=headers
        )
        was_known = answer.headers.get("Idempotent-Replayed") == "true"
        return [{**answer.object(), "replayed": was_known}]

    async def _send_batch(self, part: list[_Scheduled]) -> list[Json | Error]:
        answer = await self._transport.call(
            "POST",
            "/v1/messages:batch",
            params={"each": "true", **part[0].params},
            body=b"\n".join(item.body for item in part) + b"\n",
            content_type=NDJSON,
        )
        results: list[Any] = answer.object().get("results", [])
        if len(results) != len(part):
            raise Error(f"{len(part)} messages sent, {len(results)} results came back")
        return [_result(r) for r in results]


def _parts(waiting: list[_Scheduled]) -> list[list[_Scheduled]]:
    """Cut at MAX_ITEMS and at MAX_BYTES, whichever comes first, and where the parameters change."""
    parts: list[list[_Scheduled]] = []
    size = 0
    for item in waiting:
        is_full = not parts or len(parts[-1]) >= MAX_ITEMS or size + len(item.body) > MAX_BYTES
        if is_full or parts[-1][0].params != item.params:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += len(item.body)
    return parts


def _result(result: Json) -> Json | Error:
    problem = result.get("problem")
    return result if problem is None else error_of(problem_of(problem))


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if future.done():  # its caller was cancelled
        return
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
