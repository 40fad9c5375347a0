"""The sum of the bounds: every setting that bounds something is in it, and it is always told."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.reports.bounds import MIB, NOT_COUNTED, Bound, bounds, in_all, told, told_short
from server.settings.config import Config, load

ROOT = Path(__file__).parents[3]
COUNTED = sorted({key for one in bounds(Config()) for key in one.keys})
SECTIONS = ("limits", "wheel", "tail", "sessions")


def settings() -> Iterator[str]:
    """`section.key` of the settings that are to be judged."""
    _, origins = load(None, {}, {})
    return (key for key in origins if key.partition(".")[0] in SECTIONS)


def larger(key: str) -> Config:
    """The defaults with one setting doubled."""
    name, _, attribute = key.partition(".")
    section: Any = getattr(Config(), name)
    doubled = replace(section, **{attribute: 2 * getattr(section, attribute)})
    return replace(Config(), **{name: doubled})


def by_name(config: Config) -> dict[str, Bound]:
    return {one.name: one for one in bounds(config)}


def test_every_setting_that_bounds_something_is_counted_or_said_not_to_be() -> None:
    known = set(settings())
    assert known - set(COUNTED) == set(NOT_COUNTED)
    assert all(NOT_COUNTED.values())
    assert not set(COUNTED) & set(NOT_COUNTED)
    assert {key for key in COUNTED if key.partition(".")[0] in SECTIONS} <= known


@pytest.mark.parametrize("key", COUNTED)
def test_a_setting_that_is_named_counts_where_it_is_named_and_nowhere_else(key: str) -> None:
    before, after = by_name(Config()), by_name(larger(key))
    grown = {name for name in before if after[name].bytes > before[name].bytes}
    assert grown == {name for name, one in before.items() if key in one.keys}
    assert all(after[name].bytes >= before[name].bytes for name in before)


def test_a_line_is_of_clients_exactly_if_it_grows_with_them() -> None:
    of_clients = {"http.connections", "limits.connections", "limits.sessions", "limits.subscription_bytes"}
    of_clients.add("webhook.connections")
    for one in bounds(Config()):
        assert one.is_per_client == bool(of_clients & set(one.keys)), one.name
    names = [one.is_per_client for one in bounds(Config())]
    assert names == sorted(names)


def test_the_defaults_are_absurd_and_told() -> None:
    lines = {line.partition("  ")[0]: line for line in told(Config())}
    assert "60,000 MiB" in lines["out_bytes x connections"]
    total = sum(one.bytes for one in bounds(Config()))
    assert total > 100_000 * MIB
    assert f"{-(-total // MIB):,} MiB" in lines["in all"]
    assert list(lines) == [*by_name(Config()), "in all"]
    assert f"at most {-(-total // MIB):,} MiB" in told_short(Config())
    assert all(name in told_short(Config()) for name in by_name(Config()))
    assert len(told_short(Config())) < 1_000  # one line of the log


def test_spans_that_wait_to_be_exported_are_a_line_where_there_are_traces() -> None:
    assert "spans" not in by_name(Config())
    lines = {one.name: one for one in bounds(Config(), 2_048)}
    assert lines["spans"].bytes == 20 * MIB
    assert in_all(Config(), 2_048) == in_all(Config()) + 20 * MIB
    assert "spans 20" in told_short(Config(), 2_048)
    assert any(line.startswith("spans ") for line in told(Config(), 2_048))


def test_tls_costs_a_buffer_for_each_connection() -> None:
    listeners = {"FASTI__MQTT__LISTEN": "mqtts://127.0.0.1:0", "FASTI__MQTT__TLS_CERT": "x.pem"}
    config, _ = load(None, listeners, {})
    plain, secure = by_name(Config())["connections"], by_name(config)["connections"]
    assert secure.bytes - plain.bytes == config.limits.connections * (256 << 10)


def test_what_the_page_on_operations_recommends_fits_a_small_machine() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (advice,) = re.findall(r"until the sum fits: with (.+?) it is ([0-9.]+) GiB", page, re.DOTALL)
    wishes = [tomllib.loads(one) for one in re.findall(r"`([^`]+ = [^`]+)`", advice[0])]
    config, _ = load(
        None,
        {},
        {
            f"{section}.{key}": value
            for one in wishes
            for section, keys in one.items()
            for key, value in keys.items()
        },
    )
    assert len(wishes) == 7
    assert f"{sum(one.bytes for one in bounds(config)) / (1 << 30):.1f}" == advice[1]
    first, second = re.findall(
        r"memory: at most ([0-9,]+) MiB if every bound is reached at once, ([0-9,]+)", page
    )[0]
    assert f"at most {first} MiB if every bound is reached at once, {second} without" in told_short(Config())
