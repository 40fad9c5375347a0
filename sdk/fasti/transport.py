"""HTTP with retries: the one place that speaks to aiohttp.

A request is sent again after a broken connection and after 503 or 429, with exponential waits and jitter,
or after as long as `Retry-After` says. That is safe because every request of this package either changes
nothing, says a final state (cancel), or carries an idempotency key (schedule). The few that would count
twice pass `repeatable=False`: they are sent again only where the server certainly did nothing, that is when
no connection came up or when it said 503 or 429.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from yarl import URL

from .errors import Error, Unreachable, error_of, problem_of

NDJSON = "application/x-ndjson"
JSON = "application/json"
_WAIT_AND_RETRY = (429, 503)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long: wait n is `first_s` * 2^n, at most `cap_s`, of which the upper half is chance.

    A `Retry-After` above `patience_s` is not waited for.
    """

    attempts: int = 5
    first_s: float = 0.1
    cap_s: float = 5.0
    patience_s: float = 60.0
    chance: random.Random = field(default_factory=random.Random)

    def wait_s(self, index: int) -> float:
        """Seconds before attempt `index` + 1, index from 0."""
        whole = min(self.cap_s, self.first_s * 2.0 ** min(index, 60))
        return whole * (0.5 + self.chance.random() / 2)


@dataclass(frozen=True, slots=True)
class Answer:
    """A 2xx: `body` is parsed JSON, or None where there was none."""

    status: int
    body: Any
    headers: Mapping[str, str]

    def object(self) -> dict[str, Any]:
        """The body as an object. Raises Error if it is something else."""
        if not isinstance(self.body, dict):
            raise Error(f"expected a JSON object, got {self.body!r:.100}")
        return self.body


class Transport:
    """One server's HTTP side: base URL, key, connection pool, retry policy."""

    def __init__(self, url: str, *, key: str | None, timeout_s: float, retry: Retry) -> None:
        self.url = url.rstrip("/")
        self.retry = retry
        self.key = key
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop all connections. A later call opens new ones."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    @property
    def host(self) -> str:
        """The host of the base URL."""
        return URL(self.url).host or "127.0.0.1"

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
            self._session = aiohttp.ClientSession(headers=headers)
        return self._session

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        timeout_s: float | None = None,
    ) -> Answer:
        """Send until answered. Raises NotFound, AlreadyDispatched, Refused, Unreachable.

        `path` starts with a slash and is percent-encoded already (`quoted`); `timeout_s` 0 means none.
        """
        sent = dict(headers or {})
        if body is not None:
            sent["Content-Type"] = content_type
        for index in range(self.retry.attempts):
            last = index + 1 == self.retry.attempts
            try:
                status, answered, raw = await self._once(method, path, params, body, sent, timeout_s)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                unsent = isinstance(error, aiohttp.ClientConnectorError)
                if last or not (repeatable or unsent):
                    raise Unreachable(f"{self.url}: {_said(error)}") from error
                await asyncio.sleep(self.retry.wait_s(index))
                continue
            if 200 <= status < 300:
                return Answer(status, _parsed(raw, answered), answered)
            refused = error_of(problem_of(_parsed_or_text(raw), status))
            if status not in _WAIT_AND_RETRY or last:
                raise refused
            wait_s = _retry_after_s(answered.get("Retry-After"), self.retry.wait_s(index))
            if wait_s > self.retry.patience_s:
                raise refused
            await asyncio.sleep(wait_s)
        raise Unreachable(f"{self.url}: no attempt allowed")  # attempts < 1

    async def pages(
        self,
        path: str,
        name: str,
        params: Mapping[str, str] | None = None,
        *,
        page: int | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Every object of a listing, `page` a request or as the server likes, `limit` in all.

        Raises what `call` raises, also in the middle.
        """
        asked, left = dict(params or {}), limit
        while left is None or left > 0:
            if page is not None:
                asked["limit"] = str(page if left is None else min(page, left))
            answer = (await self.call("GET", path, params=asked)).object()
            for found in answer[name]:
                yield found
            if not answer.get("next"):
                return
            asked["cursor"] = str(answer["next"])
            left = None if left is None else left - len(answer[name])

    async def lines(self, path: str, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The lines of a streamed answer, as they come. It is asked for once: half of it cannot be unsaid.

        Raises Refused, Unreachable, also in the middle.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=self._timeout_s)
        try:
            async with self._open().get(URL(self.url + path), params=params, timeout=timeout) as response:
                if response.status != 200:
                    raise error_of(problem_of(_parsed_or_text(await response.read()), response.status))
                rest = b""
                async for chunk in response.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line
                if rest:
                    yield rest
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{self.url}: {_said(error)}") from error

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        total = self._timeout_s if timeout_s is None else timeout_s
        async with self._open().request(
            method,
            URL(self.url + path, encoded=True),
            params=params,
            data=body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=total or None, sock_connect=5),
        ) as response:
            return response.status, response.headers, await response.read()


def quoted(part: str) -> str:
    """One part of a path, every reserved character percent-encoded; of nothing but dots these too."""
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _parsed(raw: bytes, headers: Mapping[str, str]) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError as error:
        raise Error(f"not JSON but {headers.get('Content-Type')}: is this a fasti server?") from error


def _parsed_or_text(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace").strip()


def _retry_after_s(said: str | None, otherwise_s: float) -> float:
    """`Retry-After` in seconds or as an HTTP date; `otherwise_s` if there is none that can be read."""
    if not said:
        return otherwise_s
    if said.strip().isdigit():
        return float(said)
    try:
        at = parsedate_to_datetime(said)
    except ValueError:
        return otherwise_s
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
