"""The sent fires of a schedule, as at most 16 ranges.

If the clock only ran forward, one high-water mark would be enough. A clock that was two hours ahead for a
minute has sent the fires of that minute, and none of the two hours before. When it is right again the
schedule continues with the first unsent fire, and leaves out the ranges:

    every 10 min, right until 12:05; 14:00 to 14:15 by a clock that was ahead; 12:06 again
    sent     [08:00, 12:00] [14:00, 14:10]      next 12:10, ... 13:50, then 14:20

A range is the first and the last fire of a run without a gap, both in UTC ms. A fire extends a range if no
other fire lies between them. Beyond the bound the two ranges with the smallest gap become one: the fires in
that gap count as sent, so at worst a schedule is silent for that long, and it sends none twice.
"""

Ranges = tuple[tuple[int, int], ...]
"""(first, last) in order, without overlaps."""

RANGES_MAX = 16


def with_fire(sent: Ranges, since_ms: int, base_ms: int) -> Ranges:
    """The ranges when the fire at `base_ms` is sent too, the first behind `since_ms` that was not."""
    first = last = base_ms
    ranges = []
    for known in sent:
        if known[1] >= since_ms and known[0] <= base_ms:
            first, last = min(first, known[0]), max(last, known[1])
        else:
            ranges.append(known)
    ranges = sorted([*ranges, (first, last)])
    while len(ranges) > RANGES_MAX:
        index = min(range(1, len(ranges)), key=lambda at: ranges[at][0] - ranges[at - 1][1])
        ranges[index - 1 : index + 1] = [(ranges[index - 1][0], ranges[index][1])]
    return tuple(ranges)


def end_of(sent: Ranges, at_ms: int) -> int | None:
    """The last fire of the range that covers `at_ms`; None: none does."""
    return next((last for first, last in sent if first <= at_ms <= last), None)


def shifted(sent: Ranges, by_ms: int) -> Ranges:
    """The ranges shifted, after a change of the zone's rules: the same local times are other instants."""
    return tuple((first + by_ms, last + by_ms) for first, last in sent)
