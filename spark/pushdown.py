"""What a read asks for, and which rows of the table need not be read. Pure: options or Spark's filters in,
bounds out.

Known about a row's `due` and `at`, and about the stored bound B (at least T when the last group was written):

    at >= due           always: a message is placed at its due, or at T when it is late
    at == due           for at > B: beyond T messages are placed only at their due (a step of the clock below
                        1 s places at T + 1 ms; B is 2 s beyond T)

So `due >= y` means at >= y, and `due <= x` means at <= max(x, B).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_
from typing import Any

from pyarrow.dataset import Expression, field, scalar
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from shards.archives import MESSAGES, archive_url
from shards.state import STATES
from timeline.filters import FilterError, check_filter, matches

from .archived import between
from .parquet import SCHEMAS, Table

LOW, HIGH = -(1 << 62), 1 << 62
TIMES = ("due", "at", "slice")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Range:
    """low <= x <= high, ms."""

    low: int = LOW
    high: int = HIGH

    def within(self, other: "Range") -> "Range":
        return Range(max(self.low, other.low), min(self.high, other.high))

    def holds(self, value: int) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Predicate:
    """What all filters together accept. None: any."""

    due: Range = Range()
    at: Range = Range()
    slice: Range = Range()
    topics: frozenset[str] | None = None
    starts: tuple[str, ...] = ()
    """The topic starts with each of these."""
    states: frozenset[str] | None = None
    filters: tuple[str, ...] = ()
    """The topic matches each of these MQTT filters."""

    def within(self, other: "Predicate") -> "Predicate":
        """What both accept."""
        return Predicate(
            self.due.within(other.due),
            self.at.within(other.at),
            self.slice.within(other.slice),
            _common(self.topics, other.topics),
            self.starts + other.starts,
            _common(self.states, other.states),
            self.filters + other.filters,
        )

    def at_range(self, bound_ms: int) -> Range:
        """The possible range of `at`. `bound_ms`: the stored bound."""
        return self.at.within(Range(self.due.low, max(self.due.high, bound_ms)))

    def wants_topic(self, topic: str) -> bool:
        if self.topics is not None and topic not in self.topics:
            return False
        return all(map(topic.startswith, self.starts)) and all(matches(one, topic) for one in self.filters)

    @property
    def has_topic(self) -> bool:
        return self.topics is not None or bool(self.starts or self.filters)

    def archived(self) -> Expression:
        """The same for the archive's columns, without `starts` and `filters`."""
        ranges = ((name, getattr(self, name)) for name in TIMES)
        parts = [between(name, one.low, one.high) for name, one in ranges if one != Range()]
        sets = (("topic", self.topics), ("state", self.states))
        parts += [field(name).isin(sorted(one)) for name, one in sets if one is not None]
        return reduce(and_, parts, scalar(True))

    def topic_filters(self) -> list[str] | None:
        """MQTT filters that match at least every wanted topic; None: every topic is wanted."""
        if self.topics is not None:
            return sorted(self.topics)
        if self.filters:
            return [self.filters[0]]
        if self.starts:
            levels = max(self.starts, key=len).split("/")[:-1]
            return ["/".join([*levels, "#"])]
        return None


def _common(one: frozenset[str] | None, two: frozenset[str] | None) -> frozenset[str] | None:
    return two if one is None else one if two is None else one & two


ANY_ROW = Predicate()
SELECTING = frozenset({"due_from", "due_to", "slice", "topic", "state"})
OPTIONS = SELECTING | {"path", "node", "archive", "table", "columns"}
"""Options of a read, as Spark passes them: in lower case."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A read, by its options."""

    path: str
    """The backup; empty: none."""
    archive: str
    """Full name of the archive; empty: none."""
    table: Table = MESSAGES
    node: int | None = None
    columns: tuple[str, ...] = ()
    """Empty: all."""
    predicate: Predicate = ANY_ROW


def wanted_of(options: Mapping[str, str]) -> Wanted:
    """Parse the options of a read. Raises ValueError naming the option.

    `path`: a backup; `archive`: an archive, one of the two or both; `table`: of the archive; `node`: the
    server's number; `columns`: names, separated by commas. `due_from` and `slice`: RFC 3339 with an offset,
    or Unix ms; `due_to` too, exclusive; `topic`: an MQTT filter; `state`: one or several, with commas.
    """
    predicate = predicate_of(options)
    path, archive, given = options.get("path", ""), options.get("archive", ""), options.get("table", MESSAGES)
    table = next((one for one in SCHEMAS if one == given), None)
    if table is None:
        raise ValueError(f"option table: {given!r} is not one of {', '.join(SCHEMAS)}")
    if not (path or archive):
        raise ValueError('the directory is missing: spark.read.format("fasti").load(DIR)')
    if table != MESSAGES:
        for name in sorted(options.keys() & (SELECTING | {"path"})):
            raise ValueError(f"option {name}: is for the table {MESSAGES}, not for {table}")
    if archive:
        try:
            archive = archive_url(archive)
        except ValueError as error:
            raise ValueError(f"option archive: {error}") from None
    node = options.get("node")
    if node and not node.isdecimal():
        raise ValueError(f"option node: {node!r} is not a number")
    return Wanted(path, archive, table, int(node) if node else None, columns_of(options), predicate)


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("columns")
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"option columns: {text!r} must name one or several columns, each once")
    return names


def predicate_of(options: Mapping[str, str]) -> Predicate:
    unknown = sorted(options.keys() - OPTIONS)
    if unknown:
        raise ValueError(f"option {unknown[0]}: is not known; there are {', '.join(sorted(OPTIONS))}")
    low, high, start = (_instant(options, name) for name in ("due_from", "due_to", "slice"))
    if topic := options.get("topic"):
        try:
            check_filter(topic)
        except FilterError as error:
            raise ValueError(f"option topic: {error}") from error
    states = options.get("state")
    found = frozenset(part.strip() for part in states.split(",")) if states else None
    if found and found - set(STATES):
        raise ValueError(f"option state: {states!r} is not one or several of {', '.join(STATES)}")
    return Predicate(
        due=Range(LOW if low is None else low, HIGH if high is None else high - 1),
        slice=Range() if start is None else Range(start, start),
        filters=(topic,) if topic else (),
        states=found,
    )


def _instant(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"option {name}: {text!r} is neither RFC 3339 nor Unix ms") from error
    if found.tzinfo is None:
        raise ValueError(f"option {name}: {text!r} has no offset from UTC")
    return -(-(found - EPOCH) // MS)


def narrowed(filters: Iterable[Filter], predicate: Predicate = ANY_ROW) -> Predicate:
    """`predicate` and all of `filters`; a filter that is not understood accepts everything."""
    for one in filters:
        predicate = predicate.within(accepted(one)[0])
    return predicate


def accepted(one: Filter) -> tuple[Predicate, bool]:
    """The rows that a filter accepts, and whether it is just these."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    name = path[0] if len(path) == 1 else ""
    if name in TIMES and (found := _range(one)):
        by_name: dict[str, Any] = {name: found}
        return replace(ANY_ROW, **by_name), not isinstance(one, In)
    if name == "topic" and isinstance(one, StringStartsWith):
        return Predicate(starts=(one.value,)), True
    if name in ("topic", "state") and isinstance(one, EqualTo | In):
        values = one.value if isinstance(one, In) else (one.value,)
        some = frozenset(value for value in values if value is not None)
        return (Predicate(topics=some) if name == "topic" else Predicate(states=some)), True
    return ANY_ROW, False


def _range(one: Filter) -> Range | None:
    """The whole ms that it accepts, for `in` those from the first to the last; None: not understood."""
    if isinstance(one, In):
        instants = [value for value in map(_ms, one.value) if value is not None]
        if not instants or len(instants) < len(one.value):
            return None
        return Range(min(instants)[0], max(instants)[1])
    instant = _ms(getattr(one, "value", None))
    if instant is None:
        return None
    floor, ceiling = instant
    return {
        EqualTo: Range(ceiling, floor),
        GreaterThan: Range(low=floor + 1),
        GreaterThanOrEqual: Range(low=ceiling),
        LessThan: Range(high=ceiling - 1),
        LessThanOrEqual: Range(high=floor),
    }.get(type(one))


def _ms(value: object) -> tuple[int, int] | None:
    """(the ms at or before, the ms at or after); None for anything but an instant in UTC."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - EPOCH
    return since // MS, -(-since // MS)
