"""Warnings of what is rarely meant. They name the user's line: the nearest one outside this package.

The blocking client runs its calls in a thread of its own, where no such line is on the stack. So it hands
a call over with `calling()`, a context that knows the line.
"""

from __future__ import annotations

import sys
import warnings
from contextvars import Context, ContextVar, copy_context
from datetime import timedelta
from typing import Any, NamedTuple

_PAST = timedelta(minutes=1)
_OURS = (__package__, f"{__package__}.")


class _Line(NamedTuple):
    file: str
    number: int
    names: dict[str, Any]
    """The globals of its module."""


_calling: ContextVar[_Line | None] = ContextVar("fasti_calling", default=None)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line, once for each line, as Python does by default."""
    line = _calling.get() or _line()
    warnings.warn_explicit(
        text,
        category,
        line.file,
        line.number,
        line.names.get("__name__"),
        line.names.setdefault("__warningregistry__", {}),
    )


def warn_of_past(name: str, at: object, ago: timedelta) -> bool:
    """Warn if `at` was more than a minute ago by the server's clock; returns whether it was."""
    if ago <= _PAST:
        return False
    whole = timedelta(seconds=ago // timedelta(seconds=1))
    warn(f"{name}: {at} was {whole} ago by the server's clock, so it is due at once")
    return True


def warn_of_empty(call: str) -> None:
    """Warn that a message has no payload."""
    warn(f"{call} has no payload, so the message is empty; give payload='' if that is meant")


def calling() -> Context:
    """A copy of this context; what runs in it, in whichever thread, warns at the line that calls now."""
    context = copy_context()
    context.run(_calling.set, _calling.get() or _line())
    return context


def _line() -> _Line:
    frame = sys._getframe(1)
    while _is_ours(frame.f_globals.get("__name__", "")) and frame.f_back is not None:
        frame = frame.f_back
    return _Line(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def _is_ours(module: str) -> bool:
    return module == _OURS[0] or module.startswith(_OURS[1])
