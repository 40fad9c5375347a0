"""Logging: one line an event, as text or JSON, whatever clients send.

What a client says of itself (its id, a topic, a reason) may be long, and may hold line ends to forge lines
with. So every line is escaped and cut when it is formatted, in one place; `shown` does the same for one
value, so that the rest of its line is still there. And a client may cause a line with every packet. Lines
that say who caused them (`extra=by(address)`), and those of the loop, are limited: of one kind and address
`BURST` in `WINDOW_S`; then they are counted, and the next line of anybody after that says how many there
were:

    12:00:00 publish refused: 10.0.0.7:4711 (meter), topics that start with $ are the server's     (20 times)
    12:00:10 … and 1,234 more like this from 10.0.0.7: publish refused: 10.0.0.7:4711 (meter), topics ...
"""

import logging
import sys
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

LINE_MAX = 1_000
"""Characters of one event."""
SHOWN_MAX = 64
TOLD_MAX = 200
"""Characters of one field in JSON."""
BURST = 20
WINDOW_S = 10.0
KINDS_MAX = 1_000
"""Kinds of lines and addresses that are counted at a time; the oldest makes room."""


def shown(text: object, length_max: int = SHOWN_MAX) -> str:
    """What a client has sent, for a line of the log: in printable characters and shortened."""
    if isinstance(text, bytes):
        text = text[: length_max + 1].decode(errors="backslashreplace")
    cut = str(text)
    more = len(cut) - length_max
    if more > 0:
        cut = cut[:length_max]
    if not cut.isprintable():
        cut = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)
    return f"{cut}…" if more > 0 else cut


def by(cause: str, **told: object) -> Mapping[str, object]:
    """Who has caused a line, for `extra`: an address without its port, or what else there is to count by.

    `told`: what the line says, by name, for JSON: client, topic, reason.
    """
    return {"by": cause, "told": told}


def telling(**told: object) -> Mapping[str, object]:
    """What a line of the server says, by name, for `extra`: for JSON."""
    return {"told": told}


class Repeats(logging.Filter):
    """Lets `BURST` lines of one kind and cause pass in `WINDOW_S`, and counts the others."""

    def __init__(self, tell: logging.Handler) -> None:
        """`tell`: where it is said how many there were."""
        super().__init__()
        self._tell = tell
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()
        """By address and text, the oldest first."""

    def filter(self, record: logging.LogRecord) -> bool:
        self.expire(record.created)
        cause = getattr(record, "by", "the loop" if record.name == "asyncio" else None)
        if cause is None:
            return True
        key = (shown(cause), shown(record.msg, LINE_MAX))
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= KINDS_MAX:
                self._forget()
            seen = self._seen[key] = _Seen(record)
        seen.count += 1
        return seen.count <= BURST

    def expire(self, now_s: float) -> None:
        """Say what is to be said of the windows that are over."""
        while self._seen:
            first = next(iter(self._seen.values()))
            if 0 <= now_s - first.since_s < WINDOW_S:
                return
            self._forget()

    def _forget(self) -> None:
        (cause, _), seen = self._seen.popitem(last=False)
        more = seen.count - BURST
        if more > 0:
            event = f"… and {more:,} more like this from {cause}: {seen.text}"
            self._tell.emit(logging.LogRecord(seen.name, seen.level, "", 0, event, None, None))


class _Seen:
    """One kind of line in its window."""

    __slots__ = ("count", "level", "name", "since_s", "text")

    def __init__(self, record: logging.LogRecord) -> None:
        self.name = record.name
        self.level = record.levelno
        self.text = shown(record.getMessage(), 200)
        self.since_s = record.created
        self.count = 0


class _Stream(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard error, with the counts of what was left out."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.repeats = Repeats(self)
        self.addFilter(self.repeats)

    def handle(self, record: logging.LogRecord) -> bool:
        """Filtered under the lock, too: the filter counts."""
        with self.lock:  # type: ignore[union-attr]
            return bool(super().handle(record))

    def close(self) -> None:
        """Nothing that was counted goes unsaid."""
        self.repeats.expire(float("inf"))
        super().close()


class _TextFormatter(logging.Formatter):
    """An event is one line; the lines of a traceback are set in, so that none looks like an event."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = shown(record.message, LINE_MAX)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(f"    {shown(line, LINE_MAX)}" for line in lines)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": shown(record.getMessage(), LINE_MAX),
        }
        cause, told = getattr(record, "by", None), getattr(record, "told", {})
        if cause is not None:
            event["from"] = shown(cause)
        event |= {
            name: value if isinstance(value, bool) else shown(value, TOLD_MAX)
            for name, value in told.items()
            if value not in ("", None)
        }
        if record.exc_info:
            lines = self.formatException(record.exc_info).split("\n")
            event["exception"] = "\n".join(shown(line, LINE_MAX) for line in lines)
        return msgspec.json.encode(event).decode()


def configure_logging(style: str, level: str = "info") -> None:
    """Send everything from `level` on to standard error."""
    handler = _Stream()
    if style == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_TextFormatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("apscheduler", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
