"""How `answers` reads what a server sends, and what the SDK adds to it.

A server may be older or newer than this client. A member without which there is no value raises Error where
it is missing. Any other that is missing or cannot be read is None, or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from .errors import Error
from .wire import Json, get_headers, get_payload

T = TypeVar("T")


class _Object(dict[str, Any]):
    """The server's answer. A missing required member raises Error, not KeyError."""

    def __missing__(self, name: str) -> Any:
        raise Error(f"the answer has no {name!r}: is this a fasti server?")


def object_of(answer: Any) -> Json:
    """An answer, or a part of one, as an object. Raises Error."""
    if not isinstance(answer, dict):
        raise Error(f"expected a JSON object, got {answer!r:.100}: is this a fasti server?")
    return _Object(answer)


def rows_of(answer: Mapping[str, Any], name: str) -> list[Json]:
    """The objects of a list. Raises Error."""
    if not isinstance(answer[name], list):
        raise Error(f"expected a list of {name}, got {answer[name]!r:.100}: is this a fasti server?")
    return [object_of(each) for each in answer[name]]


def optional(read: Callable[[Json], T], found: object) -> T | None:
    """A value, or None if there is none that can be read."""
    try:
        return read(object_of(found)) if isinstance(found, dict) else None
    except (Error, TypeError, ValueError, OverflowError):
        return None


def each(read: Callable[[Json], T], found: object) -> tuple[T, ...]:
    """The values of a list that can be read."""
    read_ones = (optional(read, one) for one in listed(found))
    return tuple(one for one in read_ones if one is not None)


def listed(found: object) -> tuple[Any, ...]:
    """The items of a list."""
    return tuple(found) if isinstance(found, list) else ()


def inside(found: object, name: str) -> Any:
    """A member of an object that may be missing."""
    return found.get(name) if isinstance(found, dict) else None


def kept_for(found: object) -> timedelta | None:
    """How long a place is kept without members; None: until it is deleted."""
    return timedelta(seconds=found) if isinstance(found, (int, float)) and found else None


class Content:
    """What was sent, in an answer."""

    __slots__ = ()
    raw: Mapping[str, Any]

    @property
    def payload(self) -> Any:
        """bytes, str or a JSON value, as it was given."""
        return get_payload(self.raw)

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's own user properties."""
        return get_headers(self.raw)


class Amount:
    """Unfinished messages, true if there are any."""

    __slots__ = ()
    lag: int
    in_flight: int
    retries: int

    def __bool__(self) -> bool:
        return bool(self.lag or self.in_flight or self.retries)

    def __str__(self) -> str:
        return f"{self.lag:,} unread, {self.in_flight:,} in flight, {self.retries:,} to be tried again"


class Pieces:
    """A span of the timeline, of which a list only counts the shards."""

    __slots__ = ()
    raw: Mapping[str, Any]

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        shards = self.raw.get("shards", 0)
        return len(shards) if isinstance(shards, list) else int(shards)


class Work:
    """A job of the server."""

    __slots__ = ()
    state: str

    @property
    def is_over(self) -> bool:
        """Whether it has ended, done or aborted."""
        return self.state in ("done", "aborted")
