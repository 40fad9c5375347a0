"""Views of the server's state: sessions, slices, shards, info.

Each value keeps the server's object in `raw`, so that a field which a newer server adds can be read without a
newer client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from .places import Fate, Skipped, Undone, skip, undone_of
from .transport import Transport, quoted
from .wire import Json, When, dumps, instant, moment, parse_instant


@dataclass(frozen=True, slots=True)
class Info:
    """`GET /v1/info`. `mqtt` lists the listeners: `{"transport", "host", "port", "url"}`.

    `build`: "compiled" where the server runs compiled modules, else "pure".
    """

    version: str
    node: int
    clock: str
    now: datetime
    mqtt: tuple[Mapping[str, Any], ...]
    raw: Mapping[str, Any] = field(repr=False)
    build: str = "pure"

    @classmethod
    def of(cls, said: Json) -> Self:
        return cls(
            version=str(said.get("version", "")),
            node=int(said.get("node", 0)),
            clock=str(said.get("clock", "system")),
            now=parse_instant(said["now"]),
            mqtt=tuple(said.get("mqtt") or ()),
            raw=said,
            build=str(said.get("build", "pure")),
        )


@dataclass(frozen=True, slots=True)
class Shard:
    """A capped run of messages inside a slice; `structure` says which topics are in it."""

    shard: int
    structure: Any
    count: int
    live: int
    bytes: int
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Json) -> Self:
        return cls(said["shard"], said.get("structure"), said["count"], said["live"], said["bytes"], said)


@dataclass(frozen=True, slots=True)
class Slice:
    """A span of due time [start, end). `live` leaves out cancelled and moved messages, `count` does not.

    `shards` is filled by `get`, not by `list`; `shard_count` by both.
    """

    start: datetime
    end: datetime
    generation: int
    count: int
    live: int
    bytes: int
    shard_count: int
    shards: tuple[Shard, ...]
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Json) -> Self:
        shards = said.get("shards", 0)
        listed = shards if isinstance(shards, list) else []
        return cls(
            start=parse_instant(said["start"]),
            end=parse_instant(said["end"]),
            generation=said["generation"],
            count=said["count"],
            live=said["live"],
            bytes=said["bytes"],
            shard_count=len(shards) if isinstance(shards, list) else int(shards),
            shards=tuple(Shard.of(s) for s in listed if isinstance(s, dict)),
            raw=said,
        )


@dataclass(frozen=True, slots=True)
class Session:
    """A subscriber as the server knows it: where it has read to, and how far that is behind."""

    client_id: str
    connected: bool
    subscriptions: tuple[Mapping[str, Any], ...]
    lag_messages: int | None
    lag_seconds: float | None
    raw: Mapping[str, Any] = field(repr=False)
    undone: Undone | None = None

    @classmethod
    def of(cls, said: Json) -> Self:
        return cls(
            client_id=said["client_id"],
            connected=bool(said.get("connected")),
            subscriptions=tuple(said.get("subscriptions") or ()),
            lag_messages=said.get("lag_messages"),
            lag_seconds=said.get("lag_seconds"),
            raw=said,
            undone=undone_of(said),
        )


class Sessions:
    """Calls on `/v1/sessions`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> AsyncIterator[Session]:
        """All sessions, connected and away."""
        async for found in self._transport.pages("/v1/sessions", "sessions"):
            yield Session.of(found)

    async def get(self, client_id: str) -> Session:
        """Raises NotFound."""
        return Session.of((await self._transport.call("GET", _session(client_id))).object())

    async def remove(self, client_id: str) -> None:
        """Forget the session, its subscriptions and its read position. Raises NotFound."""
        await self._transport.call("DELETE", _session(client_id))

    async def replay(self, client_id: str, since: When | timedelta) -> Json:
        """Set the read position back to an instant, or by a duration. Raises NotFound, Refused."""
        body = dumps({"from": moment(since)})
        answer = await self._transport.call("POST", _session(client_id) + ":replay", body=body)
        return answer.body if isinstance(answer.body, dict) else {}

    async def skip(self, client_id: str, to: When | timedelta = "now", undone: Fate = "dead") -> Skipped:
        """Skip the backlog, as for a group. Raises NotFound, Refused."""
        return await skip(self._transport, _session(client_id), {}, to, undone)


class Slices:
    """Calls on `/v1/slices`. `start` is the slice's first instant, as RFC 3339 or Unix ms in text."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> AsyncIterator[Slice]:
        """All slices in order of time."""
        async for found in self._transport.pages("/v1/slices", "slices"):
            yield Slice.of(found)

    async def get(self, start: When) -> Slice:
        """One slice with its shards. Raises NotFound."""
        return Slice.of((await self._transport.call("GET", _slice(start))).object())

    async def shard(self, start: When, number: int) -> Shard:
        """Raises NotFound."""
        return Shard.of((await self._transport.call("GET", f"{_slice(start)}/shards/{number}")).object())


class Server:
    """Calls that concern the server itself."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def backup(self, directory: str) -> str:
        """Write a consistent copy of the data into a new directory on the server's machine; returns its path.

        Raises Refused: the path is not below the server's `store.backups`, or something is there.
        """
        answer = await self._transport.call(
            "POST", "/v1/backups", body=dumps({"dir": directory}), repeatable=False, timeout_s=0
        )
        return str(answer.object()["dir"])


def _session(client_id: str) -> str:
    return f"/v1/sessions/{quoted(client_id)}"


def _slice(start: When) -> str:
    return f"/v1/slices/{quoted(instant(start, 'start'))}"
