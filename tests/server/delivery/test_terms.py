"""What a subscription may ask for: read from user properties, bounded, refused by name."""

from dataclasses import replace

import pytest

from server.codec.packets import Suback, Subscribe, SubscribeOptions
from server.delivery.terms import (
    KEEP_ALL,
    KEEP_FAILED,
    KEEP_NONE,
    UNSAID,
    InForce,
    Keeping,
    TermsError,
    in_force,
    read_keeping,
    read_terms,
)
from server.settings.config import Config, Limits, Sessions
from tests.support.rig import Rig, config, props
from timeline.key_rows import ORDERED, Rule
from timeline.session import USUAL, Terms

DEFAULTS = Config()
BACKOFF_MS = (1_000, 5_000, 30_000, 300_000, 1_800_000, 3_600_000)


def test_what_nobody_says_is_as_the_settings_have_it() -> None:
    assert in_force(USUAL, Sessions(), is_group=True) == InForce(0, 20, BACKOFF_MS)
    assert in_force(USUAL, Sessions(), is_group=False) == InForce(0, 0, BACKOFF_MS)
    five = replace(Sessions(), max_attempts=5, ack_timeout_ms=9)
    assert in_force(USUAL, five, is_group=False) == in_force(USUAL, five, is_group=True)
    assert in_force(USUAL, five, is_group=True) == InForce(9, 5, BACKOFF_MS)
    assert in_force(Terms(0, 0, (7,)), five, is_group=True) == InForce(0, 0, (7,))


def test_what_is_said_again_changes_only_that() -> None:
    first = Terms(1, 2, (3,))
    assert first.changed_by(Terms(max_attempts=0)) == Terms(1, 0, (3,))
    assert Keeping(1, 2.0).changed_by(Keeping(rate=0.0)) == Keeping(1, 0.0)


def test_terms_are_read() -> None:
    said = {
        "ack_timeout": "PT30S",
        "max_attempts": "3",
        "backoff": "1s, 5s,30s",
        "expiry": "90m",
        "rate": "2.5",
    }
    assert read_terms(said.get, DEFAULTS) == Terms(30_000, 3, (1_000, 5_000, 30_000))
    assert read_keeping(said.get, DEFAULTS) == Keeping(5_400, 2.5)
    of_keys = {"per_key_concurrency": "2", "per_key_rate": "90/m", "fair": "true", "order": "false"}
    keeping = read_keeping(of_keys.get, DEFAULTS)
    assert keeping == Keeping(order=False, concurrency=2, key_rate=1.5, fair=True)
    assert keeping.rule == Rule(most=2, per_ms=0.0015, is_fair=True)
    assert Keeping(order=True, fair=False).rule == ORDERED
    assert UNSAID.rule is Keeping(order=False, concurrency=0, key_rate=0.0, fair=False).rule is None
    kept = {"keep": "2d", "result_ttl": "1s", "alerts": "ops"}
    assert read_keeping(kept.get, DEFAULTS) == Keeping(keep_ms=172_800_000, result_ttl_ms=1_000, alerts="ops")
    words = {"failed": KEEP_FAILED, "all": KEEP_ALL, "none": KEEP_NONE, "0": KEEP_NONE}
    assert {word: read_keeping({"keep": word}.get, DEFAULTS).keep_ms for word in words} == words
    assert read_terms({}.get, DEFAULTS) == USUAL
    assert read_keeping({}.get, DEFAULTS) == UNSAID


@pytest.mark.parametrize(
    ("name", "value", "settings", "detail"),
    [
        ("ack_timeout", "soon", {}, "must be a duration"),
        ("ack_timeout", "13h", {}, "at most 43200 s"),
        ("ack_timeout", "0", {"ack_timeout_ms": 1}, "must not be 0"),
        ("max_attempts", "-1", {}, "whole number"),
        ("max_attempts", "1.5", {}, "whole number"),
        ("max_attempts", "1000001", {}, "whole number"),
        ("max_attempts", "6", {"max_attempts": 5}, "from 1 to 5"),
        ("max_attempts", "0", {"max_attempts": 5}, "from 1 to 5"),
        ("backoff", "", {}, "must be a duration"),
        ("backoff", "1s,,2s", {}, "must be a duration"),
        ("backoff", ",".join(["1s"] * 33), {}, "1 to 32 steps"),
        ("backoff", "1s,3651d", {}, "no step above"),
        ("expiry", "4000d", {}, "at most 315,360,000 s"),
        ("expiry", "x", {}, "must be a duration"),
        ("rate", "fast", {}, "a number"),
        ("rate", "1e3", {}, "a number"),
        ("rate", "1000001", {}, "a number"),
        ("rate", 1e308, {}, "a number"),
        ("rate", 1e-7, {}, "a number"),
        ("rate", "0.0000001", {}, "a number"),
        ("rate", float("nan"), {}, "a number"),
        ("per_key_rate", "10/d", {}, "a number"),
        ("per_key_rate", "0.003/h", {}, "a number"),
        ("per_key_concurrency", "-1", {}, "whole number"),
        ("per_key_concurrency", "65536", {}, "whole number"),
        ("per_key_concurrency", "x", {}, "whole number"),
        ("fair", "yes", {}, "true or false"),
        ("order", "1", {}, "true or false"),
        ("keep", "some", {}, "must be failed, all, none or a duration"),
        ("keep", "-1", {}, "must be failed, all, none or a duration"),
        ("keep", "4000d", {}, "from 0 to 315,360,000 s"),
        ("result_ttl", "999ms", {}, "from 1 to 604,800 s"),
        ("result_ttl", "8d", {}, "from 1 to 604,800 s"),
        ("result_ttl", "soon", {}, "must be a duration"),
    ],
)
def test_what_is_not_understood_or_beyond_a_bound_is_refused_by_name(
    name: str, value: str | float, settings: dict[str, int], detail: str
) -> None:
    asked = replace(DEFAULTS, sessions=replace(Sessions(), **settings))
    is_term = name in ("ack_timeout", "max_attempts", "backoff")
    read = read_terms if is_term else read_keeping
    with pytest.raises(TermsError, match=detail) as raised:
        read({name: value}.get, asked)
    assert raised.value.name == name


def test_an_order_has_no_limits_of_its_keys() -> None:
    with pytest.raises(TermsError, match="does not go with order"):
        read_keeping({"order": "true", "per_key_rate": "1"}.get, DEFAULTS).checked()


def test_a_subscription_brings_its_terms_and_those_of_a_group_are_the_last_ones_said(rig: Rig) -> None:
    one, other = rig.lasting("one"), rig.lasting("other")
    asked = (("ack-timeout", "30s"), ("max-attempts", "3"), ("rate", "10"))
    assert one.subscribe("a", user_properties=asked[:2]) == (2,)
    session = rig.session("one")
    assert session.session.subscriptions["a"].terms == Terms(30_000, 3)
    assert one.subscribe("$share/g/a", user_properties=asked) == (2,)
    group = rig.group("$share/g/a")
    assert (group.terms, group.keeping.rate) == (Terms(30_000, 3), 10.0)
    assert other.subscribe("$share/g/a") == (2,)
    assert group.in_force == InForce(30_000, 3, BACKOFF_MS)
    assert other.subscribe("$share/g/a", user_properties=(("max-attempts", "0"),)) == (2,)
    assert group.in_force == InForce(30_000, 0, BACKOFF_MS)


@pytest.mark.parametrize(
    ("filters", "name", "value"),
    [
        (("a", "$share/g/a"), "ack-timeout", "never"),
        (("a",), "max-attempts", "x"),
        (("$share/g/a",), "on-dead", "wait"),
        (("$share/g/a",), "order", "yes"),
        (("a",), "on-dead", "hold"),
        (("a",), "backoff", "1s;2s"),
        (("$share/g/a", "a"), "expiry", "1h"),
        (("a",), "rate", "5"),
        (("a",), "replay-from", "once"),
    ],
)
def test_a_bad_property_refuses_every_filter_and_the_reason_names_it(
    rig: Rig, filters: tuple[str, ...], name: str, value: str
) -> None:
    peer = rig.connected("c")
    options = SubscribeOptions(1)
    asked = props(user_properties=((name, value),))
    peer.send(Subscribe(7, tuple((text, options) for text in filters), asked))
    answer = peer.take(Suback)
    assert answer.reasons == (0x83,) * len(filters)
    assert answer.properties.reason_string.startswith(name)
    found = rig.session("c")
    assert not found.session.subscriptions
    assert len(rig.core.groups) == 0
    quiet = rig.peer()
    quiet.connect("d", request_problem_info=False)
    quiet.send(Subscribe(7, ((filters[0], options),), asked))
    assert quiet.take(Suback).properties is None


def test_a_subscription_says_nothing_that_does_not_go_with_the_terms_of_its_group(rig: Rig) -> None:
    """As `PUT /v1/groups/{group}`, which gives all terms at once."""
    peer = rig.connected("c")
    texts = ("$share/orders/a", "$share/limits/a")

    def asked(*said: tuple[str, str]) -> tuple[tuple[int, ...], str]:
        options = SubscribeOptions(1)
        filters = tuple((text, options) for text in texts)
        peer.send(Subscribe(7, filters, props(user_properties=said)))
        answer = peer.take(Suback)
        reason = "" if answer.properties is None else answer.properties.reason_string
        return answer.reasons, str(reason)

    assert asked(("on-dead", "hold")) == ((0x83, 0x83), "on-dead needs order")
    both = asked(("order", "true"), ("per-key-rate", "1"))
    assert both[0] == (0x83, 0x83)
    assert both[1].startswith("per-key-rate does not go with order")
    assert len(rig.core.groups) == 0
    orders = ("order", "true"), ("on-dead", "hold"), ("per-key-concurrency", "0")
    assert peer.subscribe(texts[0], qos=1, user_properties=orders) == (1,)
    assert peer.subscribe(texts[1], qos=1, user_properties=(("per-key-concurrency", "3"),)) == (1,)
    assert asked(("on-dead", "next"))[0] == (1, 0x83)
    assert asked(("per-key-concurrency", "2"))[0] == (0x83, 1)
    assert asked(("order", "true"))[0] == (1, 0x83)
    group, other = map(rig.core.groups.get, texts)
    assert group is not None
    assert other is not None
    assert (group.keeping, other.keeping) == (
        Keeping(order=True, on_dead="next", concurrency=0),
        Keeping(concurrency=2),
    )
    assert asked(("order", "false"), ("per-key-concurrency", "1"), ("on-dead", "hold"))[0] == (0x83, 0x83)
    assert asked(("order", "false"), ("per-key-concurrency", "1"))[0] == (1, 1)
    assert group.keeping == other.keeping == Keeping(order=False, concurrency=1)


def test_a_filter_that_is_none_is_refused_and_the_reason_says_why(rig: Rig) -> None:
    peer = rig.connected("c")
    options = SubscribeOptions(1)
    peer.send(Subscribe(7, (("a/#/b", options), ("a", options), ("a" + "/b" * 128, options))))
    answer = peer.take(Suback)
    assert answer.reasons == (0x8F, 1, 0x8F)
    assert answer.properties.reason_string == "a filter has at most 128 levels, this one has 129"
    peer.send(Subscribe(8, (("x+/" + "y" * 1_000, options),)))
    assert peer.take(Suback).properties.reason_string == "a wildcard must be a whole level, level 1 is 'x+'"


def test_settings_of_retries_are_checked_together() -> None:
    assert config(max_attempts=None).sessions.group_attempts == 20
    assert Limits().groups == 10_000
