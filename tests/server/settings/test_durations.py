"""Durations in: the forms that are read and refused, and rounding that is never early."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.settings.durations import TimeError, parse_delay
from tests.support.durations import READ, REFUSED


@pytest.mark.parametrize(("value", "expected_ms"), READ)
def test_a_duration_is_read(value: str | float, expected_ms: int) -> None:
    assert parse_delay(value) == expected_ms


@pytest.mark.parametrize(("value", "said"), REFUSED)
def test_what_names_no_duration_is_refused(value: str | float, said: str) -> None:
    with pytest.raises(TimeError, match=said):
        parse_delay(value)


@given(st.text(max_size=40) | st.text("0123456789.,PTWDHMSwdhms adnoure", max_size=40))
def test_any_text_is_a_duration_or_a_time_error(text: str) -> None:
    with contextlib.suppress(TimeError):
        assert parse_delay(text) >= 0


@given(st.floats(min_value=0, max_value=1e9))
def test_a_duration_in_seconds_is_never_short(seconds: float) -> None:
    assert parse_delay(seconds) / 1_000 >= seconds
    assert Fraction(parse_delay(seconds), 1_000) - Fraction(seconds) < Fraction(1_000_001, 10**9)
