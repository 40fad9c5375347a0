"""Texts that MQTT has to be able to say, and the names of groups, looked at before anything is sent.

A server ends the connection of who sends what is none, and a group with a `/` in its name would silently be
another's filter: `$share/{group}/{filter}`. Subscriptions, pulls and the calls on groups ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from .errors import BadArgument

T = TypeVar("T")
_MAX_BYTES = 0xFFFF


def check_text(argument: str, text: str) -> None:
    """1 to 65,535 bytes of UTF-8 without NUL. Raises BadArgument."""
    if not isinstance(text, str):
        raise BadArgument(argument, f"must be text, not {text!r:.100}")
    if not text:
        raise BadArgument(argument, "must not be empty")
    if "\0" in text:
        raise BadArgument(argument, "must not contain NUL")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadArgument(argument, "cannot be encoded as UTF-8") from None
    if size > _MAX_BYTES:
        raise BadArgument(argument, f"has {size:,} bytes, more than {_MAX_BYTES:,}")


def check_count(argument: str, value: object, least: int, most: int | None = None) -> None:
    """A whole number within bounds. Raises BadArgument."""
    if not (type(value) is int and least <= value and (most is None or value <= most)):
        bound = f"at least {least:,}" if most is None else f"{least:,} to {most:,}"
        raise BadArgument(argument, f"must be {bound}, a whole number, not {value!r:.100}")


def items_of(argument: str, value: Iterable[T]) -> Iterator[T]:
    """The items of a list or another iterable, but not of text. Raises BadArgument."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise BadArgument(argument, f"must be a list, not {value!r:.100}")
    return iter(value)


def check_filter(argument: str, topic_filter: str) -> None:
    """A topic filter, its `$share/group/` included. Raises BadArgument."""
    check_text(argument, topic_filter)
    *levels, last = topic_filter.split("/")
    odd = [level for level in levels if "#" in level or ("+" in level and level != "+")]
    if "#" in levels:
        raise BadArgument(
            argument, f"has '#' before its end: {topic_filter!r}; it stands for all that follows"
        )
    if odd or (last not in ("+", "#") and ("+" in last or "#" in last)):
        raise BadArgument(argument, f"has a wildcard that is no level of its own: {topic_filter!r}")


def check_group(argument: str, name: str) -> None:
    """A text without a level's end and without wildcards. Raises BadArgument."""
    check_text(argument, name)
    if any(sign in name for sign in "/+#"):
        raise BadArgument(argument, f"must not contain '/', '+' or '#': {name!r}")
