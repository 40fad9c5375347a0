"""Moving averages of counters, as mosquitto computes them."""

from math import exp

import pytest

from server.reports.loads import Loads


def test_an_average_takes_in_a_rate_and_forgets_it() -> None:
    loads = Loads(100.0)
    assert loads.step(100.0, {"a": 5}) == {"a/1min": "0.00", "a/5min": "0.00", "a/15min": "0.00"}
    found = loads.step(110.0, {"a": 600})
    for minutes in (1, 5, 15):
        assert float(found[f"a/{minutes}min"]) == pytest.approx(3_600 * (1 - exp(-1 / 6 / minutes)), abs=0.01)
    later = loads.step(120.0, {"a": 600})
    assert float(later["a/1min"]) == pytest.approx(float(found["a/1min"]) * exp(-1 / 6), abs=0.01)


def test_it_comes_to_a_steady_rate_however_long_the_steps_are() -> None:
    loads, count, at_s = Loads(0.0), 0, 0.0
    found = {}
    for step_s in (10.0, 3.0, 40.0) * 400:
        at_s += step_s
        count += int(step_s * 2)
        found = loads.step(at_s, {"a": count})
    assert found == {"a/1min": "120.00", "a/5min": "120.00", "a/15min": "120.00"}
