"""The log of `fasti work`: an event is one line, of text or JSON.

    2026-11-21 08:00:00,120 WARNING fasti.worker orders/17/remind 019...: attempt 1 failed
        Traceback (most recent call last):
          File "tasks.py", line 12, in remind
            raise LookupError("no such order")
        LookupError: no such order

In text a traceback follows its event, indented, so that no line of it looks like an event; in JSON it is a
member. It leaves out the frames between the event loop and your function, which are ours and Python's own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType

import fasti

from .output import Printer, printable

_OURS = (
    os.path.join(os.path.dirname(str(fasti.__file__)), ""),
    os.path.join(os.path.dirname(contextlib.__file__), "asyncio", ""),
)
_OUR_FILES = frozenset((contextlib.__file__, threading.__file__))
Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Style(StrEnum):
    """`--log`."""

    text = "text"
    json = "json"


@contextlib.contextmanager
def logs(out: Printer, level: int, style: Style | None) -> Iterator[None]:
    """The SDK's logs on stderr; also a handler's, unless its module has set up logging and no style is given.

    Without a style: text, on a terminal in colours and with short times.
    """
    handler: logging.Handler
    if style is None and out.errors.is_terminal:
        from rich.logging import RichHandler

        handler = RichHandler(console=out.errors, show_path=False, show_level=True, markup=False)
        handler.setFormatter(TextFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        text = TextFormatter("%(asctime)s %(levelname)-7s %(name)s %(message)s")
        handler.setFormatter(JsonFormatter() if style is Style.json else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=style is not None)
    logging.captureWarnings(True)
    ours = logging.getLogger("fasti")
    before = ours.level
    ours.setLevel(level)
    try:
        yield
    finally:
        ours.setLevel(before)
        logging.captureWarnings(False)


class TextFormatter(logging.Formatter):
    """One line, and the indented lines of a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Raised) -> str:  # noqa: N802
        return "\n".join(f"    {printable(line)}" for line in _lines(ei))


class JsonFormatter(logging.Formatter):
    """One object; what a line tells of a message is in members of their own."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "told", {}),
        }
        if record.exc_info:
            event["exception"] = "\n".join(_lines(record.exc_info))
        return json.dumps(event, ensure_ascii=False, default=str)


def _lines(raised: Raised) -> list[str]:
    if raised[1] is None:
        return []
    trace = traceback.TracebackException.from_exception(raised[1])
    _leave_out_ours(trace)
    return "".join(trace.format()).splitlines()


def _leave_out_ours(trace: traceback.TracebackException) -> None:
    trace.stack = traceback.StackSummary.from_list([frame for frame in trace.stack if not _is_ours(frame)])
    for behind in (trace.__cause__, trace.__context__, *(trace.exceptions or ())):
        if behind is not None:
            _leave_out_ours(behind)


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename in _OUR_FILES or frame.filename.startswith(_OURS)
