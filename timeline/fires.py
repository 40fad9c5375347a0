"""When a schedule fires: from local times to instants, with DST, jitter and downtime.

A cron expression or a recurrence rule gives *nominal* local times; the zone maps them to instants. Twice a
year that mapping is not one-to-one, and the schedule's policy decides:

    gap      a nominal time that the clocks skip      skip    no fire
                                                      after   as far behind the gap as it was in it (default)
                                                      before  as far before the gap
    overlap  a nominal time that comes twice          first (default), second, both

    30 3 * * * in Europe/Bucharest, 2027-03-28 (03:00 becomes 04:00):  after 04:30, before 02:30
    30 3 * * * in Europe/Bucharest, 2027-10-31 (04:00 becomes 03:00):  first 00:30 UTC, second 01:30 UTC

Two nominal times that end at one instant are one fire. A shifted one can come behind a later nominal time. So
near a change the candidates of a few hours are computed before the next fire is named; elsewhere only one.
`every` counts elapsed time from an anchor, independent of wall clocks: its days have 24 hours.

*Jitter* is a pure function of a seed and the fire: it delays, never beyond the next fire or the end. So at
most one fire is between its planned time and its due. A change of the schedule keeps it: it is still to come.

*Misfires* are fires that came while nothing ran. `following` says which fire comes next:

    fire_all    each, the oldest first, at most 1,000 in a row; further missed ones are left out
    fire_once   one for all that were missed
    skip        none

A clock that was ahead has sent future fires (timeline/sent.py): these are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import chain, pairwise, takewhile
from typing import Literal
from zoneinfo import ZoneInfo

from .cron import Cron
from .recurrence import Rule, RuleError
from .sent import Ranges, end_of
from .series import YEAR_LAST

Gap = Literal["skip", "after", "before"]
Overlap = Literal["first", "second", "both"]
Misfire = Literal["fire_all", "fire_once", "skip"]

GRACE_MS = 1_000
"""A fire that is later than this was missed."""
CATCH_UP = 1_000
"""Missed fires that `fire_all` makes up for in a row."""

_EPOCH = datetime(1970, 1, 1)
_MS = timedelta(milliseconds=1)
END_MS = 250_000_000_000_000
"""Last possible time of a fire, in 9892."""
_NEAR = timedelta(hours=3)
_CLOSE_MS = (2_000, 120_000)
_FAR = timedelta(hours=26)
"""Some zones have skipped a whole day."""


@dataclass(frozen=True, slots=True)
class Every:
    """A fire each `interval_ms` of elapsed time, the first at `first_ms`."""

    interval_ms: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a schedule's fires. Bounds in UTC ms, both inclusive."""

    source: Cron | Rule | Every
    zone: ZoneInfo
    start_ms: int = 0
    end_ms: int | None = None
    gap: Gap = "after"
    overlap: Overlap = "first"
    jitter_ms: int = 0
    seed: str = ""

    @property
    def counts_elapsed(self) -> bool:
        """Whether no change of the clocks concerns it."""
        return isinstance(self.source, Every)


@dataclass(frozen=True, slots=True)
class Fire:
    """`base_ms` is the fire without jitter, from which the next is counted; `at_ms` is its due."""

    base_ms: int
    at_ms: int
    nominal: datetime
    """The local time asked for, naive."""
    note: str = ""

    @property
    def nominal_ms(self) -> int:
        """The local time asked for, in ms as if it were UTC."""
        return (self.nominal - _EPOCH) // _MS


def fires(plan: Plan, after_ms: int) -> Iterator[Fire]:
    """The fires whose base is later than `after_ms`, in order. Raises RuleError if the next one takes too
    long to find."""
    after_ms = max(after_ms, plan.start_ms - 1)
    if after_ms >= END_MS:
        return iter(())
    bases = _elapsed(plan, after_ms) if isinstance(plan.source, Every) else _local(plan, after_ms)
    if plan.end_ms is not None:
        end_ms = plan.end_ms
        bases = takewhile(lambda fire: fire.base_ms <= end_ms, bases)
    return _delayed(plan, bases) if plan.jitter_ms else bases


def unsent(plan: Plan, after_ms: int, sent: Ranges) -> Iterator[Fire]:
    """The fires later than `after_ms` that are in no range of `sent`, in order."""
    from_ms: int | None = after_ms
    while from_ms is not None:
        found, from_ms = fires(plan, from_ms), None
        for fire in found:
            from_ms = end_of(sent, fire.base_ms)
            if from_ms is not None:
                break  # a range may contain a million fires: continue behind it
            yield fire


def next_fire(plan: Plan, after_ms: int, sent: Ranges = ()) -> Fire | None:
    """The first fire later than `after_ms` that is not in `sent`, None if there is none."""
    return next(unsent(plan, after_ms, sent), None)


def due_by(plan: Plan, now_ms: int) -> int:
    """The time up to which all fires are due by `now_ms`. It is earlier than `now_ms` if jitter delays a fire
    beyond that."""
    last_ms = _last_begun(plan, now_ms) if plan.jitter_ms else None
    last = None if last_ms is None else next_fire(plan, last_ms - 1)
    return now_ms if last is None or last.at_ms <= now_ms else last.base_ms - 1


def _last_begun(plan: Plan, now_ms: int) -> int | None:
    """The last fire that is planned for now or before, if jitter may delay it beyond now.

    It walks through fires that are close together. Otherwise it halves the span that contains the last one.
    No step searches beyond now.
    """
    end_ms = now_ms if plan.end_ms is None else min(now_ms, plan.end_ms)
    begun = replace(plan, jitter_ms=0, end_ms=end_ms)
    low, high, last = now_ms - plan.jitter_ms - 1, now_ms, None
    for span_ms in _CLOSE_MS:
        for fire in fires(begun, max(low, now_ms - span_ms)):
            last = fire.base_ms
        if last is not None:
            return last
    while (found := next_fire(begun, low)) is not None:
        last = low = found.base_ms
        middle = (low + high) // 2
        found = next_fire(begun, middle)
        if found is not None:
            last = low = found.base_ms
        else:
            high = middle
    return last


def just_before(plan: Plan, nominal_ms: int, before_ms: int) -> int:
    """Up to where fires are handled by the current rules, if the fire of a local time is the next.

    `before_ms`: up to where they were handled before, perhaps by other rules. It distinguishes the second of
    a repeated local time from the first.
    """
    nominal = nominal_at(nominal_ms)
    instants = [fire.base_ms for fire in _instants(nominal, plan.zone, plan.gap, plan.overlap)]
    if not instants:
        literal = nominal.replace(tzinfo=plan.zone).utcoffset() or timedelta()
        return (nominal - literal - _EPOCH) // _MS
    return next((at_ms for at_ms in instants if at_ms > before_ms), instants[-1]) - 1


def note_of(nominal_ms: int, base_ms: int, zone: ZoneInfo, gap: Gap, overlap: Overlap) -> str:
    """The note of the fire of a local time, as `fires` would give it, without a search for it.

    Empty if that local time is another instant by the zone's current rules.
    """
    found = _instants(nominal_at(nominal_ms), zone, gap, overlap)
    return next((fire.note for fire in found if fire.base_ms == base_ms), "")


@dataclass(frozen=True, slots=True)
class Progress:
    """Fires up to `through_ms` are dealt with; `made_up`: how many missed ones in a row were made up for.

    `before_ms`: the fire that is written with it is the first behind that.
    """

    through_ms: int
    made_up: int = 0
    before_ms: int = 0


def following(
    plan: Plan, misfire: Misfire, progress: Progress, now_ms: int, *, was_late: bool, sent: Ranges = ()
) -> tuple[Fire | None, Progress]:
    """The fire to write next at `now_ms`, and the progress when it is written.

    `was_late`: the last fire was a missed one, and was delivered late. `sent`: fires to leave out.
    """
    missed_ms = now_ms - GRACE_MS
    through_ms = progress.through_ms
    if misfire == "skip":
        through_ms = max(through_ms, due_by(plan, missed_ms - 1))
    fire = next_fire(plan, through_ms, sent)
    if fire is None:
        return None, progress
    if fire.at_ms >= missed_ms:
        return fire, Progress(fire.base_ms, before_ms=through_ms)
    if misfire == "fire_all" and progress.made_up < CATCH_UP:
        return fire, Progress(fire.base_ms, progress.made_up + 1, through_ms)
    due_ms = due_by(plan, now_ms)
    if misfire == "fire_once" and not was_late:
        return fire, Progress(due_ms, before_ms=through_ms)
    fire = next_fire(plan, due_ms, sent)
    return fire, Progress(due_ms if fire is None else fire.base_ms, before_ms=due_ms)


def local_text(at_ms: int, zone: ZoneInfo) -> str:
    """The local time of an instant: `2027-03-28T04:30:00+03:00[Europe/Bucharest]`."""
    there = (_EPOCH + at_ms * _MS).replace(tzinfo=UTC).astimezone(zone)
    text = there.isoformat(timespec="milliseconds" if at_ms % 1_000 else "seconds")
    return f"{text}[{zone.key}]"


def nominal_at(nominal_ms: int) -> datetime:
    """The naive local time that is stored as if it were UTC."""
    return _EPOCH + nominal_ms * _MS


def local_of(at_ms: int, zone: ZoneInfo) -> datetime:
    """The naive local time of an instant."""
    return (_EPOCH + at_ms * _MS).replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)


def _delayed(plan: Plan, bases: Iterator[Fire]) -> Iterator[Fire]:
    """The fires with their jitter: never beyond the next one, nor the end."""
    for fire, after in pairwise(chain(bases, (None,))):
        assert fire is not None
        digest = blake2b(f"{plan.seed}\0{fire.base_ms}".encode(), digest_size=8).digest()
        at_ms = fire.base_ms + int.from_bytes(digest, "big") % (plan.jitter_ms + 1)
        if after is not None:
            at_ms = min(at_ms, after.base_ms - 1)
        if plan.end_ms is not None:
            at_ms = min(at_ms, plan.end_ms)
        yield replace(fire, at_ms=at_ms)


def _elapsed(plan: Plan, after_ms: int) -> Iterator[Fire]:
    every = plan.source
    assert isinstance(every, Every)
    step = max(0, (after_ms - every.first_ms) // every.interval_ms + 1)
    while (base_ms := every.first_ms + step * every.interval_ms) < END_MS:
        yield Fire(base_ms, base_ms, local_of(base_ms, plan.zone))
        step += 1


def _local(plan: Plan, after_ms: int) -> Iterator[Fire]:
    """Nominal times made instants, in order, each instant once."""
    last_ms = after_ms
    for fire in _ordered(plan, after_ms):
        if fire.base_ms > last_ms:
            last_ms = fire.base_ms
            yield fire


def _ordered(plan: Plan, after_ms: int) -> Iterator[Fire]:
    """Yields an instant once no earlier one can follow."""
    source = plan.source
    assert not isinstance(source, Every)
    after, last = _EPOCH + after_ms * _MS, _last_of(plan)
    waiting: list[tuple[int, str, Fire]] = []
    unfound: RuleError | None = None
    try:
        for nominal in source.times(after + _offsets(plan.zone, after)[0], last):
            while waiting and nominal > _until(plan, waiting[0][0]):
                yield heappop(waiting)[2]
            if nominal.year > YEAR_LAST or nominal > last:
                break
            for fire in _instants(nominal, plan.zone, plan.gap, plan.overlap):
                if fire.base_ms > after_ms and not _is_over(source, fire):
                    heappush(waiting, (fire.base_ms, fire.note, fire))
    except RuleError as error:  # what was found before comes first
        unfound = error
    while waiting:
        yield heappop(waiting)[2]
    if unfound is not None:
        raise unfound


def _until(plan: Plan, base_ms: int) -> datetime:
    """The nominal time after which no fire can be earlier than that one."""
    at = _EPOCH + base_ms * _MS
    return at + _offsets(plan.zone, at)[1]


def _last_of(plan: Plan) -> datetime:
    """The nominal time beyond which no fire can count: saves a useless search."""
    latest = datetime.max - 2 * _FAR
    bounds = [latest if plan.end_ms is None else min(latest, _EPOCH + plan.end_ms * _MS)]
    if isinstance(plan.source, Rule) and plan.source.until_utc is not None:
        bounds.append(plan.source.until_utc)
    return min(bounds) + 2 * _FAR


def _is_over(source: Cron | Rule, fire: Fire) -> bool:
    until = source.until_utc if isinstance(source, Rule) else None
    return until is not None and _EPOCH + fire.base_ms * _MS > until


def _instants(nominal: datetime, zone: ZoneInfo, gap: Gap, overlap: Overlap) -> list[Fire]:
    """The fires of one nominal time: none, one or two."""
    earlier = nominal.replace(tzinfo=zone).utcoffset() or timedelta()
    later = nominal.replace(tzinfo=zone, fold=1).utcoffset() or timedelta()
    if earlier == later:
        return [_fire(nominal, earlier)]
    text = nominal.isoformat(sep=" ")
    if earlier < later:
        if gap == "skip":
            return []
        offset, where = (earlier, "after") if gap == "after" else (later, "before")
        return [_fire(nominal, offset, f"the clocks skip {text}: moved {where} the gap")]
    both = [
        _fire(nominal, earlier, f"the clocks show {text} twice: the first"),
        _fire(nominal, later, f"the clocks show {text} twice: the second"),
    ]
    return both if overlap == "both" else both[:1] if overlap == "first" else both[1:]


def _fire(nominal: datetime, offset: timedelta, note: str = "") -> Fire:
    base_ms = (nominal - offset - _EPOCH) // _MS
    return Fire(base_ms, base_ms, nominal, note)


def _offsets(zone: ZoneInfo, at: datetime) -> tuple[timedelta, timedelta]:
    """The least and the greatest offset around an instant (naive UTC), as far as a change reaches."""
    aware = at.replace(tzinfo=UTC)
    here = _offset(zone, aware)
    for reach in (_NEAR, _FAR):
        low, high = _range(zone, aware, here, reach)
        if high - low >= (_NEAR if reach is _FAR else _MS):
            return _range(zone, aware, here, high - low)
    return here, here


def _range(zone: ZoneInfo, at: datetime, here: timedelta, reach: timedelta) -> tuple[timedelta, timedelta]:
    around = (_offset(zone, at - reach), here, _offset(zone, at + reach))
    return min(around), max(around)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()
