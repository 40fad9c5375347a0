"""Times in and out: the forms that are read and refused, DST, and rounding that is never early."""

import contextlib
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.settings.durations import TimeError
from server.settings.times import (
    INSTANT_MS_MAX,
    format_ms,
    instant_or_back,
    other_reading,
    parse_deliver_at,
    parse_due,
    unix_ms,
)


def utc_ms(*fields: int) -> int:
    return int(datetime(*fields, tzinfo=UTC).timestamp()) * 1_000  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T08:00:00Z", utc_ms(2026, 11, 21, 8)),
        ("2026-11-21t08:00:00z", utc_ms(2026, 11, 21, 8)),
        ("2026-11-21 08:00:00Z", utc_ms(2026, 11, 21, 8)),
        ("2026-11-21T08:00Z", utc_ms(2026, 11, 21, 8)),
        ("2026-11-21T08:00:00.123Z", utc_ms(2026, 11, 21, 8) + 123),
        ("2026-11-21T08:00:00.123+02:00", utc_ms(2026, 11, 21, 6) + 123),
        ("2026-11-21T08:00:00-05:30", utc_ms(2026, 11, 21, 13, 30)),
        ("2026-11-21T08:00:00-00:00", utc_ms(2026, 11, 21, 8)),
        ("2026-11-21T08:00:00.1Z", utc_ms(2026, 11, 21, 8) + 100),
        ("2026-11-21T08:00:00.123000001Z", utc_ms(2026, 11, 21, 8) + 124),
        ("2026-11-21T08:00:00.1230Z", utc_ms(2026, 11, 21, 8) + 123),
        ("2026-12-31T23:59:59.9999Z", utc_ms(2027, 1, 1)),
        ("2016-12-31T23:59:60Z", utc_ms(2017, 1, 1)),
        ("2017-01-01T01:59:60.5+02:00", utc_ms(2017, 1, 1) + 500),
        ("2028-02-29T00:00:00Z", utc_ms(2028, 2, 29)),
        ("9999-12-31T23:59:59.999Z", INSTANT_MS_MAX),
        ("1970-01-01T00:00:00.001Z", 1),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("2026-11-21T10:00[Europe/Bucharest]", utc_ms(2026, 11, 21, 8)),
        ("2026-11-21T10:00:00+02:00[Europe/Bucharest]", utc_ms(2026, 11, 21, 8)),
        ("2026-11-21T08:00:00Z[Europe/Bucharest]", utc_ms(2026, 11, 21, 8)),
        ("2026-11-21T08:00:00.5[UTC]", utc_ms(2026, 11, 21, 8) + 500),
        ("1975-06-01T12:00[Africa/Monrovia]", utc_ms(1975, 6, 1, 12)),
    ],
)
def test_an_instant_is_read(text: str, expected: int) -> None:
    assert parse_deliver_at(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2027-03-28T02:59[Europe/Bucharest]", utc_ms(2027, 3, 28, 0, 59)),
        ("2027-03-28T03:00[Europe/Bucharest]", utc_ms(2027, 3, 28, 1, 0)),
        ("2027-03-28T03:30[Europe/Bucharest]", utc_ms(2027, 3, 28, 1, 30)),
        ("2027-03-28T04:00[Europe/Bucharest]", utc_ms(2027, 3, 28, 1, 0)),
        ("2027-03-28T09:00[Europe/Bucharest]", utc_ms(2027, 3, 28, 6)),
        ("2027-10-31T03:30[Europe/Bucharest]", utc_ms(2027, 10, 31, 0, 30)),
        ("2027-10-31T03:30+03:00[Europe/Bucharest]", utc_ms(2027, 10, 31, 0, 30)),
        ("2027-10-31T03:30+02:00[Europe/Bucharest]", utc_ms(2027, 10, 31, 1, 30)),
        ("2027-10-03T02:15[Australia/Lord_Howe]", utc_ms(2027, 10, 2, 15, 45)),
    ],
)
def test_a_gap_is_passed_and_a_doubled_hour_is_the_first(text: str, expected: int) -> None:
    assert parse_deliver_at(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "RFC 3339"),
        ("tomorrow", "RFC 3339"),
        ("2026-11-21", "RFC 3339"),
        ("20261121T080000Z", "RFC 3339"),
        ("2026-W47-6T08:00:00Z", "RFC 3339"),
        ("2026-11-21T08:00:00,123Z", "RFC 3339"),
        ("2026-11-21T08:00:00.1234567890Z", "RFC 3339"),
        ("2026-11-21T08:00:00Z ", "RFC 3339"),
        ("2026-11-21T08:00:00+0200", "RFC 3339"),
        ("２026-11-21T08:00:00Z", "RFC 3339"),
        ("2026-11-21T08:00:00", "needs an offset"),
        ("2026-11-21T08:00", "needs an offset"),
        ("2026-02-30T08:00:00Z", "no such time: day"),
        ("2026-13-01T08:00:00Z", "no such time: month"),
        ("2026-11-21T24:00:00Z", "no such time: hour"),
        ("2026-11-21T08:00:61Z", "no such time: second"),
        ("2026-11-21T08:00:60Z", "second 60"),
        ("0000-11-21T08:00:00Z", "no such time: year"),
        ("2026-11-21T08:00:00+24:00", "no such offset"),
        ("2026-11-21T08:00:00+02:60", "no such offset"),
        ("1970-01-01T00:00:00Z", "after 1970"),
        ("1970-01-01t00:00:00z", "after 1970"),
        ("1969-12-31T23:59:59+00:00", "after 1970"),
        ("9999-12-31T23:59:59-01:00", "year 9999"),
        ("9999-12-31T23:59:59.9999Z", "year 9999"),
        ("2026-11-21T08:00[Europe/Atlantis]", "unknown time zone 'Europe/Atlantis'"),
        ("2026-11-21T08:00[Europe]", "unknown time zone"),
        ("2026-11-21T08:00[]", "unknown time zone"),
        ("2026-11-21T08:00[../../etc/passwd]", "unknown time zone"),
        ("2026-11-21T08:00[/etc/localtime]", "unknown time zone"),
        ("2026-11-21T08:00[Europe" + "/a" * 4 + "]", "unknown time zone"),
        ("2026-11-21T08:00[Europe" + "/a" * 2_000 + "]", "unknown time zone"),
        ("2026-11-21T08:00[" + "a" * 300 + "]", "unknown time zone"),
        ("2026-11-21T08:00Z[Europe/Atlantis]", "unknown time zone"),
        ("2026-11-21T08:00:00+05:00[Europe/Bucharest]", "differs from the offset of Europe/Bucharest"),
    ],
)
def test_what_names_no_instant_is_refused(text: str, said: str) -> None:
    with pytest.raises(TimeError, match=said):
        parse_deliver_at(text)


@pytest.mark.long
@given(st.text(max_size=40))
def test_any_text_is_an_instant_or_a_time_error(text: str) -> None:
    with contextlib.suppress(TimeError):
        assert parse_deliver_at(text) >= 0


ZONES = st.sampled_from(
    ["Europe/Bucharest", "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kolkata"]
)
LOCAL = st.datetimes(datetime(1971, 1, 1), datetime(2060, 1, 1))


@given(LOCAL, st.integers(-1_439, 1_439), st.integers(0, 999_999_999), st.integers(0, 9))
def test_an_instant_is_never_early_and_less_than_a_ms_late(
    local: datetime, offset_minutes: int, nanos: int, digits: int
) -> None:
    local = local.replace(microsecond=0)
    sign, minutes = ("-" if offset_minutes < 0 else "+"), abs(offset_minutes)
    fraction = f"{nanos:09}"[:digits]
    text = f"{local.isoformat()}{'.' if digits else ''}{fraction}{sign}{minutes // 60:02}:{minutes % 60:02}"
    since = local - datetime(1970, 1, 1) - timedelta(minutes=offset_minutes)
    exact = Fraction(since // timedelta(seconds=1) * 1_000) + Fraction(int(fraction or 0), 10**digits) * 1_000
    assert 0 <= parse_deliver_at(text) - exact < 1


@given(LOCAL, ZONES)
def test_a_local_time_is_as_the_zone_has_it(local: datetime, zone: str) -> None:
    local = local.replace(microsecond=0)
    at_ms = parse_deliver_at(f"{local.isoformat()}[{zone}]")
    there = datetime.fromtimestamp(at_ms // 1_000, ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    assert there == local or timedelta(0) < there - local <= timedelta(hours=1)


@given(st.integers(0, INSTANT_MS_MAX))
def test_an_instant_is_written_as_datetime_writes_it_and_read_back(at_ms: int) -> None:
    text = format_ms(at_ms)
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    assert text == at.strftime("%Y").zfill(4) + at.strftime("-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03}Z"
    if at_ms:
        assert parse_deliver_at(text) == at_ms


NOW_MS = utc_ms(2026, 11, 21, 8)
MEANT = "2026-12-01T12:20:00.000Z"
"""1,796,127,600 s."""


@pytest.mark.parametrize(
    ("number", "unit", "meant"),
    [
        (1_796_127_600, "s", MEANT),
        (1_796_127_600_000, "ms", MEANT),
        (1_796_127_600_000_000, "µs", MEANT),
        (1_000_000_000, "s", "2001-09-09T01:46:40.000Z"),
    ],
)
def test_a_number_that_may_be_a_time_is_named_as_that(number: int, unit: str, meant: str) -> None:
    assert other_reading(number) == f"; {number} in Unix {unit} is {meant}"
    with pytest.raises(TimeError, match=rf"Unix {unit} is {meant}"):
        parse_deliver_at(str(number))
    with pytest.raises(TimeError, match=f"31 years; {number} in Unix {unit} is {meant}"):
        instant_or_back(str(number), NOW_MS)


@pytest.mark.parametrize("number", [0, 1, 900, 43_200_000, 10**10, 10**20, 10**30])
def test_others_are_no_time_of_these_decades(number: int) -> None:
    assert other_reading(number) == ""


def test_what_can_only_be_another_unit_is_refused() -> None:
    with pytest.raises(TimeError, match=f"1970-01-21T18:55:27.600Z; 1796127600 in Unix s is {MEANT}"):
        unix_ms(1_796_127_600)
    with pytest.raises(TimeError, match=f"is 1796127600 in Unix ms; 1796127600 in Unix s is {MEANT}"):
        parse_due("1970-01-21T18:55:27.600Z")
    with pytest.raises(TimeError, match=r"1970-01-01T01:00:00\.000Z; give ms"):
        unix_ms(3_600_000)


def test_the_past_is_not_refused() -> None:
    assert parse_due("1973-03-03T09:46:40Z") == unix_ms(100_000_000_000) == 100_000_000_000
    assert unix_ms(0) == 0
    assert unix_ms(978_307_200_000) == parse_due("2001-01-01T00:00:00Z")
    assert instant_or_back("900", NOW_MS) == NOW_MS - 900_000
    assert instant_or_back("999999999", NOW_MS) == NOW_MS - 999_999_999_000
    assert instant_or_back("99999d", NOW_MS) == 0
    assert instant_or_back("1970-01-02T00:00:00Z", NOW_MS) == 86_400_000
