"""How `answers` reads what a server sends, and what the SDK adds to it.

The type of an attribute says how it is read: an instant is a datetime, a list a tuple, an object a value. A
server may be older or newer than this client. A member without which there is no value, as its attribute has
no default, raises Error where it is missing. Any other that is missing or cannot be read is None, or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from operator import itemgetter, methodcaller
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import Error
from .wire import Json, get_headers, get_payload, parse_instant, parsed

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


def inside(outer: str, name: str, answer: Json) -> Any:
    """A member of an object that may be missing."""
    found = answer.get(outer)
    return found.get(name) if isinstance(found, dict) else None


def kept_for(found: object) -> timedelta | None:
    """How long a place is kept without members; None: until it is deleted."""
    return timedelta(seconds=found) if isinstance(found, (int, float)) and found else None


def value_of(kind: Callable[..., T], answer: Json) -> T:
    """An answer as a value of that class."""
    return kind(**{name: read(answer) for name, read in _readings(kind)})


@cache
def _readings(kind: Any) -> tuple[tuple[str, Callable[[Json], Any]], ...]:
    """What reads each attribute of a class. `_PLACES` has where one is that has another name in the answer;
    `next.id`: within a member."""
    hints, places = get_type_hints(kind), getattr(kind, "_PLACES", {})
    return tuple(
        (one.name, _reading(hints[one.name], one.default, places.get(one.name, one.name)))
        for one in fields(kind)
    )


def _reading(hint: Any, default: object, place: str) -> Callable[[Json], Any]:
    """`default`: MISSING if there is no value without it."""
    if place == "raw":
        return lambda answer: answer
    is_needed, (outer, _, inner) = default is MISSING, place.rpartition(".")
    take: Callable[[Json], Any] = itemgetter(inner) if is_needed else methodcaller("get", inner)
    if outer:
        take = partial(inside, outer, inner)
    made_of = _from_json(hint, is_needed)
    if made_of is not None:
        return lambda answer: made_of(take(answer))
    return take if is_needed or default is None else lambda answer: take(answer) or default


def _from_json(hint: Any, is_needed: bool) -> Callable[[Any], Any] | None:
    """What makes an attribute of that type of a member; None: it is taken as it comes."""
    kinds: tuple[Any, ...] = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kind, is_sure = kinds[0], is_needed and NoneType not in kinds
    if kind is datetime:
        return parse_instant if is_sure else parsed
    if kind is timedelta:
        return kept_for if NoneType in kinds else lambda seconds: timedelta(seconds=seconds)
    is_list = get_origin(kind) is tuple
    item: Any = get_args(kind)[0] if is_list else kind
    is_value = is_dataclass(item)
    if not is_value:
        return listed if is_list else None
    read: Callable[[Json], Any] = partial(value_of, item)
    if is_list or not is_needed:
        return partial(each if is_list else optional, read)
    return lambda found: read(object_of(found))


class Answer:
    """What a server sends, as a value."""

    __slots__ = ()

    @classmethod
    def of(cls, answer: Json) -> Self:
        return value_of(cls, answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Answer):
    """One that keeps all that the server has sent, as `raw`."""

    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Sent:
    """What was sent, in an answer."""

    __slots__ = ()

    @property
    def raw(self) -> Mapping[str, Any]:
        """The answer."""
        raise NotImplementedError

    @property
    def payload(self) -> Any:
        """bytes, str or a JSON value, as given; None if the answer does not repeat it."""
        return get_payload(self.raw)

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's own user properties."""
        return get_headers(self.raw)


class Content(Whole, Sent):
    """The same, as a value."""

    __slots__ = ()


class Amount(Answer):
    """Unfinished messages, true if there are any."""

    __slots__ = ()
    lag: int
    in_flight: int
    retries: int

    def __bool__(self) -> bool:
        return bool(self.lag or self.in_flight or self.retries)

    def __str__(self) -> str:
        return f"{self.lag:,} unread, {self.in_flight:,} in flight, {self.retries:,} to be tried again"


class Pieces(Whole):
    """A span of the timeline, of which a list only counts the shards."""

    __slots__ = ()

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        shards = self.raw.get("shards", 0)
        return len(shards) if isinstance(shards, list) else int(shards)


class Work(Whole):
    """A job of the server."""

    __slots__ = ()
    state: str

    @property
    def is_over(self) -> bool:
        """Whether it has ended, done or aborted."""
        return self.state in ("done", "aborted")
