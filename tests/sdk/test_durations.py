"""Durations as text: what is kept in the client, and the CLI, is read as the server reads it."""

import re
from datetime import timedelta
from typing import Any

import pytest

from fasti.cli.timeline import span_of
from fasti.durations import parse_delay
from fasti.errors import BadArgument
from fasti.mqtt_values import NEVER
from fasti.subscribe import SubscribeRequest
from fasti.wire import seconds, span
from tests.support.durations import READ, REFUSED


@pytest.mark.parametrize(("value", "expected_ms"), READ)
def test_a_duration_is_read(value: str | float, expected_ms: int) -> None:
    assert parse_delay(value) == expected_ms
    if isinstance(value, str):
        assert seconds("lease", value) == expected_ms / 1_000
        if expected_ms:
            assert span_of("next", value) == timedelta(milliseconds=expected_ms)


@pytest.mark.parametrize(("value", "said"), [(value, said) for value, said in REFUSED if type(value) is str])
def test_the_refusal_names_the_argument_and_the_value(value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        span_of("next", value)
    with pytest.raises(BadArgument, match=said) as refused:
        seconds("lease", value)
    assert refused.value.argument == "lease"


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e20, b"5s", [5]])
def test_what_is_no_duration_is_said_so(value: Any) -> None:
    said = f"delay must be a timedelta, a number of seconds or text such as 15m, not {value!r}"
    with pytest.raises(BadArgument, match=re.escape(said)):
        span(value)
    if value != value:
        with pytest.raises(BadArgument, match=r"lease must not be negative: nan"):
            seconds("lease", value)


def test_a_session_is_kept_for_ever() -> None:
    assert SubscribeRequest("a", session="s", expiry=float("inf")).expiry_s == NEVER


def test_a_bar_is_not_of_no_width() -> None:
    with pytest.raises(ValueError, match="zero"):
        span_of("next", "0s")
