"""W3C Trace Context: the trace of a message, in headers.

    traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
                 version-trace id-parent id-flags, of which the lowest bit says "sampled"
    tracestate:  vendor=opaque,other=more

A context is stored with its message as the headers (user properties) of these two names. So it is delivered,
shown and exported with the message, and needs no field on disk. A context that violates the grammar is
ignored. An unknown version is read as version 00, and stored as that. An invalid tracestate (also with a
repeated key), or a too long one, is left out: the trace works without it.

Source: https://www.w3.org/TR/trace-context/, sections 3.2 and 3.3.
"""

import re
from collections.abc import Iterable

Headers = tuple[tuple[str, str], ...]

PARENT, STATE = "traceparent", "tracestate"
NAMES = frozenset((PARENT, STATE))
NO_TRACE: Headers = ()
STATE_CHARS_MAX = 512
STATE_MEMBERS_MAX = 32
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(-.*)?")
_KEY = r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"[ \t]*(?:({_KEY})={_VALUE})?[ \t]*")
_SAMPLED = 1


def context_of(parent: str, state: str = "") -> Headers:
    """The headers of a context; `NO_TRACE` if `parent` is not a traceparent."""
    found = _PARENT.fullmatch(parent)
    if found is None or (found[3] is not None and found[1] == "00"):
        return NO_TRACE
    kept = (PARENT, f"00-{found[2]}")
    return (kept, (STATE, state)) if state and _is_state(state) else (kept,)


def context_in(headers: Iterable[tuple[str, str]]) -> Headers:
    """The context in a message's own headers; of repeated headers the last counts."""
    found = {name: value for name, value in headers if name in NAMES}
    return context_of(found[PARENT], found.get(STATE, "")) if PARENT in found else NO_TRACE


def members_of(state: str) -> list[tuple[str, str]]:
    """The members of a valid tracestate."""
    pairs = (member.strip(" \t").partition("=") for member in state.split(","))
    return [(key, value) for key, _, value in pairs if key]


def is_sampled(context: Headers) -> bool:
    """Whether the trace is recorded at its origin."""
    return bool(context) and bool(int(context[0][1][-2:], 16) & _SAMPLED)


def joined(headers: Headers, context: Headers, most: int, *, is_child: bool = False) -> Headers:
    """Headers of a message with its request's context, if `most` leaves room for it.

    A message's own context stays, unless `is_child`: then the new context is of a child span made for the
    message, and replaces its own.
    """
    names = {name for name, _ in headers}
    if is_child and PARENT in names:
        return tuple([pair for pair in headers if pair[0] not in NAMES]) + context
    if PARENT in names or len(headers) + len(context) > most:
        return headers
    return headers + tuple([pair for pair in context if pair[0] not in names])


def _is_state(state: str) -> bool:
    members = state.split(",")
    if len(state) > STATE_CHARS_MAX or len(members) > STATE_MEMBERS_MAX:
        return False
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = [one[1] for one in found if one is not None and one[1]]
    return None not in found and len(keys) == len(set(keys))
