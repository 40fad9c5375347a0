"""Filter pushdown: which rows of the table need not be read. Pure: options or Spark's filters in, bounds out.

Known about a row's `due` and `at`, and about the stored bound B (at least T when the last group was written):

    at >= due           always: a message is placed at its due, or at T when it is late
    at == due           for at > B: beyond T messages are placed only at their due (a step of the clock below
                        1 s places at T + 1 ms; B is 2 s beyond T)

So `due >= y` means at >= y, and `due <= x` means at <= max(x, B).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

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

from shards.state import STATES
from timeline.filters import FilterError, check_filter, matches

LOW, HIGH = -(1 << 62), 1 << 62
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


ANY_ROW = Predicate()


OPTIONS = frozenset({"path", "node", "due_from", "due_to", "slice", "topic", "state"})
"""Options of a read, as Spark passes them: in lower case."""


def predicate_of(options: Mapping[str, str]) -> Predicate:
    """Parse the options of a read. Raises ValueError naming the option.

    `due_from` and `slice`: RFC 3339 with an offset, or Unix ms; `due_to` too, exclusive; `topic`: an MQTT
    filter; `state`: one or several, separated by commas.
    """
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
    """`predicate` combined with all of `filters`; a filter that is not understood accepts everything."""
    for one in filters:
        predicate = _with(predicate, one)
    return predicate


def _with(predicate: Predicate, one: Filter) -> Predicate:
    column = getattr(one, "attribute", ())
    if column in (("due",), ("at",), ("slice",)):
        name = column[0]
        return replace(predicate, **{name: getattr(predicate, name).within(_range(one))})
    if column == ("topic",):
        if isinstance(one, StringStartsWith):
            return replace(predicate, starts=(*predicate.starts, one.value))
        return replace(predicate, topics=_values(one, predicate.topics))
    if column == ("state",):
        return replace(predicate, states=_values(one, predicate.states))
    return predicate


def _values(one: Filter, known: frozenset[str] | None) -> frozenset[str] | None:
    if isinstance(one, EqualTo):
        some = frozenset([one.value])
    elif isinstance(one, In):
        some = frozenset(value for value in one.value if value is not None)
    else:
        return known
    return some if known is None else known & some


def _range(one: Filter) -> Range:
    """The range in whole ms, rounded outward."""
    if isinstance(one, In):
        instants = [value for value in map(_ms, one.value) if value is not None]
        return Range(min(instants)[0], max(instants)[1]) if len(instants) == len(one.value) > 0 else Range()
    instant = _ms(getattr(one, "value", None))
    if instant is None:
        return Range()
    floor, ceiling = instant
    if isinstance(one, EqualTo):
        return Range(floor, ceiling)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return Range(low=floor)
    if isinstance(one, LessThan | LessThanOrEqual):
        return Range(high=ceiling)
    return Range()


def _ms(value: object) -> tuple[int, int] | None:
    """(the ms at or before, the ms at or after); None for anything but an instant in UTC."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - EPOCH
    return since // MS, -(-since // MS)
