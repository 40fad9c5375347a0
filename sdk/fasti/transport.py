"""HTTP with retries; the only user of aiohttp.

A request is sent again after a broken connection and after 503 or 429, with exponential waits and jitter,
or after as long as `Retry-After` says. That is safe because every request of this package either changes
nothing, says a final state (cancel), or carries an idempotency key (schedule). The few that would count
twice pass `repeatable=False`: they are sent again only where the server certainly did nothing, that is when
no connection came up, when it sent us on to another server, or when it said 503 or 429.

Of several addresses each is tried once before the next wait, and where one of them sends us on we go
(`addresses`). As long as a node answers that it has no leader, or sends us to one that is not there, a
takeover goes on: that is waited for over the number of attempts, for as long as one attempt may take.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from errno import ECONNREFUSED
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from .addresses import HOPS, REDIRECTS, Plain, Servers
from .errors import BadArgument, Error, Refused, Unreachable, Untrusted, error_of, problem_of
from .names import check_count, check_text
from .tls import CUT, Tls, is_cut, trouble
from .values import object_of, rows_of
from .wire import Json, dumps

NDJSON = "application/x-ndjson"
JSON = "application/json"
PAGE_MAX = 1_000
"""Maximum number of objects of a listing in one answer."""
PATIENCE_S = 30.0
"""Additional time for an answer that the server may wait for."""
_WAIT_AND_RETRY = (429, 503)
_TIMEOUT_MAX_S = 1e9
_TAKEOVER_WAIT_S = 1.0
_NO_LEADER = "no-leader"


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy: wait n is `first_s` * 2^n, at most `cap_s`; its upper half is random.

    A `Retry-After` above `patience_s` is an error at once.
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
class Response:
    """A 2xx: `body` is parsed JSON, or None; `url` is the base URL of the server that answered."""

    status: int
    body: Any
    headers: Mapping[str, str]
    url: str = ""

    def object(self) -> dict[str, Any]:
        """The body as an object. Raises Error if it is something else, or if a required member is missing."""
        return object_of(self.body)


class _Course:
    """One call in progress: its server, and whether and when to retry."""

    def __init__(self, servers: Servers, plain: Plain, retry: Retry, path: str, limit_s: float) -> None:
        """`limit_s`: how long a takeover is waited for."""
        self._servers = servers
        self._plain = plain
        self._retry = retry
        self._path = path
        self._until_s = asyncio.get_running_loop().time() + limit_s
        self._hops = 0
        self._misses = 0  # of this round, in which each address is tried once
        self._rounds = 0
        self._in_takeover = False
        self.base = servers.current

    async def sent_on(self, location: str, refused: Error) -> None:
        """Follow a redirect. Raises Refused if it is not allowed, Unreachable if there are too many."""
        self._in_takeover = True
        self._hops += 1
        if not self._servers.follow(self.base, location, self._path):
            why = f"{self.base}: not followed to {location}: {refused}"
            raise Refused(why, problem=refused.problem)
        if self._hops > HOPS:
            await self.missed(
                Unreachable(f"{self.base}: sent on {HOPS} times in a row, at last to {location}")
            )
        self.base = self._servers.current
        self._plain.warn(URL(self.base))

    async def missed(self, error: Error, after_s: float | None = None) -> None:
        """No answer, or no leader: try the next server. Raises `error` if that was the last try.

        `after_s`: wait before another round.
        """
        self._servers.turn(self.base)
        self._hops = 0
        self._misses += 1
        if isinstance(error, Untrusted) and len(self._servers.given) == 1:
            raise error
        if self._misses >= len(self._servers.given):
            await self.wait(error, after_s)
        self.base = self._servers.current

    async def no_leader(self, error: Error, after_s: float | None) -> None:
        """`missed` for a node that answers."""
        self._in_takeover = True
        await self.missed(error, after_s)

    async def wait(self, error: Error, after_s: float | None = None) -> None:
        """Wait for the next round. Raises `error` if there is none, or if it is too late."""
        wait_s = self._retry.wait_s(self._rounds)
        if after_s is not None:
            wait_s = after_s
        elif self._in_takeover:
            wait_s = min(wait_s, _TAKEOVER_WAIT_S)
        self._rounds, self._misses = self._rounds + 1, 0
        is_over = self._rounds >= self._retry.attempts
        if is_over and self._in_takeover and self._retry.attempts > 1:
            is_over = asyncio.get_running_loop().time() + wait_s >= self._until_s
        if is_over or wait_s > self._retry.patience_s:
            raise error
        await asyncio.sleep(wait_s)


class Transport:
    """The HTTP side of a server, or of a cluster's nodes: base URLs, key, connection pool, retry policy."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        key: str | None,
        plain: Plain,
        tls: Tls,
        timeout_s: float,
        retry: Retry,
    ) -> None:
        """Raises BadArgument."""
        if not isinstance(retry, Retry):
            raise BadArgument("retry", f"must be a fasti.Retry, not {retry!r:.100}")
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s < _TIMEOUT_MAX_S:
            raise BadArgument("timeout", f"must be seconds, more than 0, not {timeout_s!r:.100}")
        if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable()):
            raise BadArgument("key", "(API key) must be text of printable ASCII characters")
        self.servers = Servers(url)
        self.tls = tls
        self.retry = retry
        self.key = key
        self._plain = plain
        self._timeout_s = timeout_s
        self._timeout = _timeout(timeout_s)
        if self.servers.has_tls:
            tls.context()  # read before the event loop has to wait for it
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections. A later call opens new ones."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def open(self) -> aiohttp.ClientSession:
        """The connection pool."""
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
    ) -> Response:
        """Send until answered. Raises NotFound, AlreadyDispatched, Refused, Unreachable.

        `path` starts with a slash and is percent-encoded already (`quoted`); `timeout_s` 0 means none.
        """
        sent = dict(headers or {})
        if body is not None:
            sent["Content-Type"] = content_type
        _check(params)
        timeout = self._timeout if timeout_s is None else _timeout(timeout_s)
        if self.retry.attempts < 1:
            raise Unreachable(f"{self.servers.current}: no attempt allowed")
        course = _Course(self.servers, self._plain, self.retry, path, timeout_s or self._timeout_s)
        while True:
            base = course.base
            try:
                async with self._request(
                    base, method, path, params, timeout, data=body, headers=sent
                ) as response:
                    status, answered, raw = response.status, response.headers, await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                gone = self._gone(base, error)
                if not (repeatable or isinstance(error, aiohttp.ClientConnectorError)):
                    self.servers.turn(base)
                    raise gone from error
                await _raised_from(course.missed(gone), error)
                continue
            if 200 <= status < 300:
                return Response(status, _parsed(raw, answered), answered, base)
            await self._refused(course, status, answered, raw)

    async def ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        params: Mapping[str, str] | None = None,
        repeatable: bool = True,
        timeout_s: float | None = None,
    ) -> Json:
        """`call` with an object, or nothing; the object of its answer."""
        sent = None if body is None else dumps(body)
        answer = await self.call(
            method, path, params=params, body=sent, repeatable=repeatable, timeout_s=timeout_s
        )
        return answer.object()

    async def _refused(self, course: _Course, status: int, answered: Mapping[str, str], raw: bytes) -> None:
        """Return if the call must be repeated. Raises the answer's error otherwise."""
        refused = error_of(problem_of(_parsed_or_text(raw), status))
        after_s = _retry_after_s(answered.get("Retry-After"))
        if status in REDIRECTS and answered.get("Location"):
            await course.sent_on(answered["Location"], refused)
        elif status == 503 and refused.slug == _NO_LEADER:
            await course.no_leader(refused, after_s)
        elif status in _WAIT_AND_RETRY:
            await course.wait(refused, after_s)
        else:
            raise refused

    async def pages(
        self,
        path: str,
        name: str,
        params: Mapping[str, str] | None = None,
        *,
        page: int | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Every object of a listing, `page` per request or the server's default, `limit` in all.

        Raises what `call` raises, also in the middle.
        """
        if limit is not None:
            check_count("limit", limit, 0)
        if page is not None:
            check_count("page", page, 1)
        query, left = dict(params or {}), limit
        while left is None or left > 0:
            if page is not None:
                query["limit"] = str(page if left is None else min(page, left))
            answer = (await self.call("GET", path, params=query)).object()
            rows = rows_of(answer, name)
            for found in rows:
                yield found
            if not answer.get("next"):
                return
            query["cursor"] = str(answer["next"])
            left = None if left is None else left - len(rows)

    async def lines(self, path: str, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The lines of a streamed answer as they arrive. Not retried, because lines were already yielded.

        Raises Refused, Unreachable, also in the middle.
        """
        _check(params)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=self._timeout_s)
        course = _Course(self.servers, self._plain, replace(self.retry, attempts=1), path, 0)
        while True:
            has_begun, base = False, course.base
            try:
                async with self._request(base, "GET", path, params, timeout) as response:
                    if response.status != 200:
                        await self._refused(course, response.status, response.headers, await response.read())
                        continue
                    has_begun, rest = True, b""
                    async for chunk in response.content.iter_any():
                        *whole, rest = (rest + chunk).split(b"\n")
                        for line in whole:
                            yield line
                    if rest:
                        yield rest
                    return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                gone = self._gone(base, error)
                if has_begun:
                    raise gone from error
                await _raised_from(course.missed(gone), error)

    def _gone(self, base: str, error: Exception) -> Unreachable:
        why = trouble(error, self.tls)
        if why:
            return Untrusted(f"{base}: {why}")
        cut = base.startswith("https://") and is_cut(getattr(error, "os_error", None))
        return Unreachable(f"{base}: {CUT if cut else _reason(error)}")

    def _request(
        self,
        base: str,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        timeout: aiohttp.ClientTimeout,
        **sent: Any,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """One attempt. The key and the body go along only to allowed servers: see `addresses`."""
        return self.open().request(
            method,
            URL(base + path, encoded=True),
            params=params,
            allow_redirects=False,
            timeout=timeout,
            ssl=self.tls.context() if base.startswith("https:") else True,
            **sent,
        )


class Calls:
    """Calls on a part of the API."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


def _check(params: Mapping[str, str] | None) -> None:
    """Raises BadArgument unless it is text: yarl would raise another error, or change the value."""
    for name, value in (params or {}).items():
        check_text(name, " " if value == "" else value)


def _timeout(total_s: float) -> aiohttp.ClientTimeout:
    """The time-out of one attempt; `total_s` 0: none."""
    return aiohttp.ClientTimeout(total=total_s or None, sock_connect=5)


def quoted(part: str) -> str:
    """A part of a path with every reserved character percent-encoded; if it is only dots, these too.

    Raises BadArgument, for an empty one too, which would give another path.
    """
    if not isinstance(part, str):
        raise BadArgument("name", f"or id must be text, not {part!r:.100}")
    if not part:
        raise BadArgument("name", "or id must not be empty")
    try:
        return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")
    except UnicodeEncodeError:
        raise BadArgument("name", f"or id cannot be encoded as UTF-8: {part!r:.100}") from None


async def _raised_from(step: Awaitable[None], cause: Exception) -> None:
    """Its errors told with their cause."""
    try:
        await step
    except Unreachable as error:
        raise error from cause


def _reason(error: BaseException) -> str:
    """The error in words; for a failed connection without what aiohttp adds."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        why = error.strerror or error.os_error  # of several addresses that failed in different ways
        return "connection refused" if error.errno == ECONNREFUSED else f"cannot connect: {why}"
    return str(error) or type(error).__name__


def _parsed(raw: bytes, headers: Mapping[str, str]) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        kind = headers.get("Content-Type")
        raise Error(f"the answer is no JSON, though {kind}: {error}: is this a fasti server?") from error


def _parsed_or_text(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode(errors="replace").strip()


def _retry_after_s(text: str | None) -> float | None:
    """`Retry-After` in seconds or as an HTTP date; None if there is none that can be read."""
    if not text:
        return None
    try:
        if text.strip().isdecimal():
            return float(text)
        at = parsedate_to_datetime(text)
        return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None
