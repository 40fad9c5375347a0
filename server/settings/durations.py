"""Durations as people write them: to ms.

    15m, 1h30m, 250ms, 3d                  the short form: weeks, days, hours, minutes, seconds, ms
    5 minutes, 1 week, 2 hours 30 min      the same in words
    PT15M, P1DT2H                          ISO 8601
    900, 0.5, "900"                        seconds

The larger unit comes first, and each comes once. A fraction may stand in each. Days are 24 hours and weeks 7
days. A month or a year has no fixed length, so it is refused. A single letter is small, as `15M` means months
to some. "Never early" decides about what is left below a ms: the sum is exact, and rounded up once.
"""

import re
from collections.abc import Iterable

NEVER_TEXT = "never"
"""In place of a duration, where allowed: a failed message is not retried."""

_SECONDS_END = 10**15
_EXCERPT_CHARS = 40
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PERIOD_MS = {"S": 1_000, "M": 60_000, "H": 3_600_000}
_WORDS = {
    "w": "wks?|weeks?",
    "d": "days?",
    "h": "hrs?|hours?",
    "m": "mins?|minutes?",
    "s": "secs?|seconds?",
    "ms": "millis|msecs?|milliseconds?",
}
_SHORT_UNITS = tuple(_UNIT_MS[unit] for unit in _WORDS)
_PERIOD_UNITS = _SHORT_UNITS[:-1]

_NUMBER = r"\d{1,15}(?:[.,]\d{1,9})?"
_SECONDS = re.compile(r"\d{1,15}(?:\.\d{1,9})?", re.ASCII)
_SHORT = re.compile(
    r"(?=\d)"
    + "".join(
        [
            rf"(?: ?(?:and )?({_NUMBER}) ?(?:{unit}|(?i:{words}))(?![A-Za-z]))?"
            for unit, words in _WORDS.items()
        ]
    ),
    re.ASCII,
)
_PERIOD = re.compile(
    rf"[Pp](?:({_NUMBER})[Yy])?(?:({_NUMBER})[Mm])?(?:({_NUMBER})[Ww])?(?:({_NUMBER})[Dd])?"
    rf"(?:[Tt](?=\d)(?:({_NUMBER})[Hh])?(?:({_NUMBER})[Mm])?(?:({_NUMBER})[Ss])?)?",
    re.ASCII,
)
_UNFIXED = re.compile(r"\d ?(?:y|yrs?|years?|mo|months?)(?![a-z])", re.ASCII | re.IGNORECASE)


class TimeError(ValueError):
    """An invalid time or duration; the message says why."""


def parse_delay(value: str | float) -> int:
    """The duration in ms, rounded up, that a number of seconds or a text names. Raises TimeError."""
    if isinstance(value, str):
        # The usual 15m and PT15M, without the expressions that read all forms (0.6 against 4 µs).
        period = value[:2] == "PT"
        number = value[2:-1] if period else value[:-1]
        unit_ms = (_PERIOD_MS if period else _UNIT_MS).get(value[-1:])
        if unit_ms and len(number) <= 15 and number.isdecimal() and number.isascii():
            return int(number) * unit_ms
        return _parse_text(value)
    if isinstance(value, bool):
        raise TimeError("a delay must be a number of seconds or a string such as PT15M, not a boolean")
    if not 0 <= value < _SECONDS_END:
        raise TimeError("a delay in seconds must be a finite number, not negative and below 10^15")
    if isinstance(value, int):
        return value * 1_000
    near_ms = round(value * 1_000)
    # 0.07 * 1000 is a little over 70: a float that is the nearest to whole ms means those.
    return near_ms if near_ms / 1_000 >= value else near_ms + 1


def _parse_text(text: str) -> int:
    if _SECONDS.fullmatch(text):
        return _sum_ms([(text, 1_000)])
    found = _SHORT.fullmatch(text)
    if found:
        return _sum_ms(zip(found.groups(), _SHORT_UNITS, strict=True))
    period = _PERIOD.fullmatch(text)
    unfixed, fixed = (period.groups()[:2], period.groups()[2:]) if period else ((), ())
    if any(fixed) and not any(unfixed):
        return _sum_ms(zip(fixed, _PERIOD_UNITS, strict=True))
    excerpt = repr(text[:_EXCERPT_CHARS])
    if any(unfixed) or _UNFIXED.search(text[:_EXCERPT_CHARS]):
        raise TimeError(f"{excerpt}: a year or a month has no fixed length; use weeks or days, or a date")
    if text.startswith("-") and len(text) > 1:
        raise TimeError(f"a delay must not be negative: {excerpt}")
    raise TimeError(
        f"{excerpt} is not a delay such as 15m, 2h30m, 3d, 1 week, 5 minutes, PT15M or a number of seconds"
    )


def _sum_ms(parts: Iterable[tuple[str | None, int]]) -> int:
    """The sum of (number, its unit in ms), in exact integers, rounded up once."""
    total_e9 = 0
    for number, unit_ms in parts:
        if number:
            whole, _, fraction = number.replace(",", ".").partition(".")
            total_e9 += int(whole + fraction.ljust(9, "0")) * unit_ms
    return -(-total_e9 // 10**9)
