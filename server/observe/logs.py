"""Logging: one line an event, as text or JSON, safe against clients' input.

Text from a client (its id, a topic, a reason) may be long, and may contain line ends to forge lines. So every
line is escaped and cut when it is formatted, in one place; `clean` does the same for one value, so that the
rest of its line remains.

A client may cause a line with every packet, so every line is rate limited except `EACH`. A *kind* is the
format text of a line of ours; all lines of a library's logger are one kind, because its texts may contain
anything. In `WINDOW_S` a kind writes `BURST` lines for each cause (`extra=by(address)`; lines without a cause
share one) and `KIND_BURST` lines for all causes. The others are counted. After the window the first line of
any kind reports their number:

    12:00:00 publish refused: 10.0.0.7:4711 (meter), topics that start with $ are the server's     (20 times)
    12:00:10 … and 1,234 more like this from 10.0.0.7: publish refused: 10.0.0.7:4711 (meter), topics ...

A flood of one kind hides no lines of another. A kind keeps at most `KIND_BURST` causes, and there are at most
`KINDS_MAX` kinds.
"""

import logging
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from ipaddress import ip_address

import msgspec

LINE_MAX = 1_000
"""Maximum characters of an event."""
CLEAN_MAX = 64
TEXT_MAX = 200
"""Maximum characters of a field in JSON."""
BURST = 20
KIND_BURST = 100
WINDOW_S = 10.0
KINDS_MAX = 500
"""Maximum kinds counted at a time; the oldest is evicted."""
OURS = ("server", "shards", "timeline")
"""Loggers of these rooms have format texts fixed in the code (tests/house/test_log_lines.py)."""
EACH: Mapping[str, object] = {"each": True}
"""`extra` of a line that is never limited. Only for lines that no client can cause."""


def clean(text: object, length_max: int = CLEAN_MAX) -> str:
    """Client input for a log line: printable characters, shortened."""
    if isinstance(text, bytes):
        text = text[: length_max + 1].decode(errors="backslashreplace")
    cut = str(text)
    more = len(cut) - length_max
    if more > 0:
        cut = cut[:length_max]
    if not cut.isprintable():
        cut = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)
    return f"{cut}…" if more > 0 else cut


def by(cause: str, **fields: object) -> Mapping[str, object]:
    """The cause of a line, for `extra`: an address without its port, or another key to count by.

    `fields`: the line's fields for JSON: client, topic, reason.
    """
    return {"by": cause, "fields": fields}


def telling(**fields: object) -> Mapping[str, object]:
    """Fields of a line for JSON, for `extra`."""
    return {"fields": fields}


class _Kind:
    """A kind of line in its window."""

    __slots__ = ("_causes", "_others", "_others_text", "_passed", "level", "name", "since_s")

    def __init__(self, record: logging.LogRecord) -> None:
        self.name = record.name
        self.level = record.levelno
        self.since_s = record.created
        self._passed = 0
        self._causes: dict[str, _Cause] = {}
        self._others = 0
        """Lines left out after the kind's `KIND_BURST`."""
        self._others_text = ""

    def admits(self, record: logging.LogRecord) -> bool:
        """Count a line; returns whether it is written."""
        name = clean(getattr(record, "by", ""))
        cause = self._causes.get(name)
        if cause is not None and cause.count >= BURST:
            cause.count += 1
            return False
        if self._passed >= KIND_BURST:
            self._others_text = self._others_text or _text(record)
            self._others += 1
            return False
        if cause is None:
            cause = self._causes[name] = _Cause(_text(record))
        cause.count += 1
        self._passed += 1
        return True

    def left_out(self) -> Iterator[str]:
        """Reports on lines left out."""
        for name, cause in self._causes.items():
            if cause.count > BURST:
                whose = f" from {name}" if name else ""
                yield f"… and {cause.count - BURST:,} more like this{whose}: {cause.text}"
        if self._others:
            yield f"… and {self._others:,} more like this from others: {self._others_text}"


class _Cause:
    """A cause of lines of a kind: its first line, and their number."""

    __slots__ = ("count", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.count = 0


def _text(record: logging.LogRecord) -> str:
    return clean(record.getMessage(), 200)


class _Stream(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard error. If limited, it writes `BURST` lines of one kind and cause in `WINDOW_S`, and counts the
    others."""

    def __init__(self, *, is_limited: bool) -> None:
        super().__init__(sys.stderr)
        self._is_limited = is_limited
        self._kinds: OrderedDict[tuple[str, str], _Kind] = OrderedDict()
        """By logger and format text, oldest first."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Filter under the lock, too: the filter counts."""
        with self.lock:  # type: ignore[union-attr]
            return bool(super().handle(record))

    def filter(self, record: logging.LogRecord) -> bool:
        self._expire(record.created)
        if not self._is_limited or getattr(record, "each", False):
            return True
        is_ours = record.name.partition(".")[0] in OURS
        key = (record.name, str(record.msg)[:LINE_MAX] if is_ours else record.levelname)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= KINDS_MAX:
                self._forget()
            kind = self._kinds[key] = _Kind(record)
        return kind.admits(record)

    def close(self) -> None:
        """Report all remaining counts."""
        self._expire(float("inf"))
        super().close()

    def _expire(self, now_s: float) -> None:
        """Report the counts of windows that are over."""
        while self._kinds:
            first = next(iter(self._kinds.values()))
            if 0 <= now_s - first.since_s < WINDOW_S:
                return
            self._forget()

    def _forget(self) -> None:
        _, kind = self._kinds.popitem(last=False)
        for event in kind.left_out():
            self.emit(logging.LogRecord(kind.name, kind.level, "", 0, event, None, None))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class _TextFormatter(logging.Formatter):
    """An event is one line, and names the address that caused it. Lines of a traceback are indented, so that
    none looks like an event."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        cause = str(getattr(record, "by", ""))
        is_named = cause in record.message or not _is_address(cause)
        record.message = ("" if is_named else f"{cause}: ") + clean(record.message, LINE_MAX)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(f"    {clean(line, LINE_MAX)}" for line in lines)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": clean(record.getMessage(), LINE_MAX),
        }
        cause, fields = getattr(record, "by", None), getattr(record, "fields", {})
        if cause is not None:
            event["from"] = clean(cause)
        event |= {
            name: value if isinstance(value, bool) else clean(value, TEXT_MAX)
            for name, value in fields.items()
            if value not in ("", None)
        }
        if record.exc_info:
            lines = self.formatException(record.exc_info).split("\n")
            event["exception"] = "\n".join(clean(line, LINE_MAX) for line in lines)
        return msgspec.json.encode(event).decode()


def configure_logging(style: str, level: str = "info", *, is_limited: bool = True) -> None:
    """Log everything from `level` on to standard error. `is_limited` False: there are no clients."""
    handler = _Stream(is_limited=is_limited)
    if style == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_TextFormatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("apscheduler", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
