"""What a principal may do as one client."""

import random

import pytest

from server.auth.rights import (
    ADMIN,
    EVERY,
    EVERY_SCOPE,
    NOTHING,
    READ,
    REMEMBERED,
    REMEMBERED_BYTES,
    SCHEDULE,
    Grant,
    Principal,
    Rights,
    Rules,
)
from tests.support.keys import Clock


def principal(name: str = "bob", **grant: object) -> Principal:
    return Principal(name, Grant(**grant), Clock().mono)  # type: ignore[arg-type]


def rights(*rules: str, name: str = "bob", client_id: str = "c1", deny: tuple[str, ...] = ()) -> Rights:
    every = Rules(rules, deny)
    return Rights(principal(name, publish=every, subscribe=every, deliver=every), client_id)


def test_without_rules_everything_is_allowed() -> None:
    free = Rights(principal(), "c1")
    for topic in (b"a", b"$SYS/broker", b"$dead/s/a"):
        assert free.may_publish(topic)
        assert free.may_receive(topic)
    assert free.may_subscribe("#")
    assert free.may_subscribe("$SYS/#")
    assert free.sees_all


def test_a_topic_has_to_match_a_rule() -> None:
    some = rights("a/+/x", "b/#")
    assert [t for t in (b"a/1/x", b"a/1/y", b"b", b"b/2/3", b"$SYS/b") if some.may_publish(t)] == [
        b"a/1/x",
        b"b",
        b"b/2/3",
    ]
    assert not some.sees_all
    assert not rights().may_receive(b"a")


def test_what_is_denied_comes_before_what_is_allowed() -> None:
    some = rights("a/#", deny=("a/secret/#",))
    assert some.may_receive(b"a/b")
    assert not some.may_receive(b"a/secret/1")
    assert not some.may_subscribe("a/secret/x")
    assert some.may_subscribe("a/b")


@pytest.mark.parametrize(
    ("rule", "wanted", "is_allowed"),
    [
        *(("a/#", "a/b/+", True), ("a/#", "a", True), ("a/+", "a/b", True), ("a/+", "a/+", True)),
        *(("a/+", "a/#", False), ("a/b", "a/+", False), ("a/+/c", "a/b/c", True), ("a/+/c", "a/b", False)),
        *(("#", "#", True), ("#", "$SYS/#", False), ("+/#", "$SYS/#", False)),
        ("$SYS/#", "$SYS/broker/+", True),
    ],
)
def test_a_filter_has_to_lie_within_a_rule(rule: str, wanted: str, is_allowed: bool) -> None:
    assert rights(rule).may_subscribe(wanted) is is_allowed


def test_name_and_client_id_are_put_in() -> None:
    some = rights("u/%u/#", "c/%c", "100%%/%u")
    assert some.may_publish(b"u/bob/x")
    assert not some.may_publish(b"u/eve/x")
    assert some.may_publish(b"c/c1")
    assert some.may_publish(b"100%/bob")
    assert some.may_subscribe("u/bob/#")
    assert not some.may_publish(b"u/%u/x")


@pytest.mark.parametrize("value", ["", "+", "#", "a/b", "a+", "$SYS", "\0"])
def test_a_value_that_would_widen_a_rule_allows_nothing(value: str) -> None:
    some = rights("c/%c/#", "%c/#", "x", client_id=value)
    for topic in (b"c/a/b", b"c/+/x", b"a/b", b"c", b"c/#", b"$SYS/x"):
        assert not some.may_publish(topic)
    assert not some.may_subscribe("c/#")
    assert some.may_publish(b"x")


def test_a_value_that_holds_a_mark_says_nothing_of_the_other() -> None:
    some = rights("%c/%u", client_id="%u")
    assert some.may_publish(b"%u/bob")
    assert not some.may_publish(b"bob/bob")


def test_a_denial_that_cannot_be_said_denies_everything() -> None:
    some = rights("#", deny=("no/%c",), client_id="a/b")
    assert not some.may_publish(b"x")


def test_scopes_say_what_rules_are_for() -> None:
    reader = Rights(principal(scopes=frozenset((READ,))), "")
    writer = Rights(principal(scopes=frozenset((SCHEDULE,))), "")
    assert (reader.may_publish(b"a"), reader.may_receive(b"a"), reader.may_subscribe("a")) == (
        False,
        True,
        True,
    )
    assert (writer.may_publish(b"a"), writer.may_receive(b"a"), writer.may_subscribe("a")) == (
        True,
        False,
        False,
    )
    assert reader.may_see(b"a")
    assert writer.may_see(b"a")
    assert principal(scopes=EVERY_SCOPE).has(ADMIN)


def test_a_rule_that_is_made_later_counts_at_once() -> None:
    somebody = principal()
    here = Rights(somebody, "c1")
    assert here.may_receive(b"a")
    somebody.replace(Grant(EVERY_SCOPE, EVERY, EVERY, Rules(("b",))))
    assert not here.may_receive(b"a")
    assert here.may_publish(b"a")
    somebody.revoke()
    assert not any((here.may_publish(b"a"), here.may_receive(b"b"), here.may_subscribe("b"), here.is_live))
    assert not somebody.has(READ)


WORDS = ("a", "b", "+", "#", "%c", "%u", "%%", "x%c", "$SYS", "")
NAMES = ("a", "b", "x", "", "a/b", "+", "$SYS", "%c", "bob")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_who_asks_once_for_each_client_hears_the_same(seed: int) -> None:
    """Whatever the rules, a mosquitto's too, and whoever the client is."""
    chance = random.Random(seed)

    def filters() -> tuple[str, ...]:
        made = []
        for _ in range(chance.randrange(4)):
            levels = [chance.choice(WORDS) for _ in range(chance.randrange(1, 4))]
            if "#" in levels:
                levels = levels[: levels.index("#") + 1]
            made.append("/".join(levels) or "a")
        return tuple(made)

    found = [0, 0]
    for _ in range(20):
        otherwise = Rules(filters(), filters()) if chance.random() < 0.5 else None
        allow = None if chance.random() < 0.1 else filters()
        deny = filters() if chance.random() < 0.5 else ()
        scopes = EVERY_SCOPE if chance.random() < 0.9 else frozenset((READ,))
        somebody = principal(chance.choice(NAMES), scopes=scopes, publish=Rules(allow, deny, otherwise))
        for _ in range(30):
            client = chance.choice(NAMES)
            topic = "/".join(chance.choice(NAMES) for _ in range(chance.randrange(1, 4))).encode()
            answer = Rights(somebody, client).may_publish(topic)
            assert somebody.may_send(client, topic)[0] == answer, (somebody.grant, client, topic)
            found[answer] += 1
    assert min(found) > 20


def test_rules_that_are_replaced_are_asked_no_more() -> None:
    somebody = principal(publish=Rules(("a/%c",)))
    assert somebody.may_send("c", b"a/c") == (True, 1)
    somebody.replace(Grant(EVERY_SCOPE, Rules(("b", "c"))))
    assert somebody.may_send("c", b"a/c") == (False, 2)
    somebody.revoke()
    assert somebody.may_send("c", b"b") == (False, 0)


def test_what_a_rule_without_a_mark_matches_is_kept_once_for_all_clients() -> None:
    """There may be 100,000 of them, and 50 rules are 60 KB."""
    every = Rules(("a/#", "b/%c"), ("a/secret",), Rules(("c/+",), ("c/%u",)))
    somebody = principal(publish=every, deliver=every)
    clients = [Rights(somebody, name) for name in ("c1", "c2")]
    answers = []
    for one in clients:
        topics = (b"a/1", b"a/secret", b"b/%c", b"b/c1", b"c/1", b"c/bob", b"d")
        assert [t for t in topics if one.may_publish(t)] == [t for t in topics if one.may_receive(t)]
        assert [t for t in topics if one.may_publish(t)] == [b"a/1", b"b/%c", b"c/1"]
        answers += [one._publish, one._deliver]
    for other in answers[1:]:
        assert other._deny == answers[0]._deny
        assert other._allow is not None
        assert answers[0]._allow is not None
        assert other._allow[0] is answers[0]._allow[0]
        assert other._otherwise is not None
        assert answers[0]._otherwise is not None
        assert other._otherwise._allow == answers[0]._otherwise._allow
    somebody.replace(Grant(EVERY_SCOPE, EVERY, EVERY, Rules(("b",))))
    assert not clients[0].may_receive(b"a/1")
    assert clients[0].may_receive(b"b")


def test_answers_are_remembered_within_a_bound() -> None:
    some = rights("a/#")
    for number in range(3 * REMEMBERED):
        assert some.may_publish(b"a/%d" % number)
        assert not some.may_publish(b"b/%d" % number)
    assert len(some._publish._known) <= REMEMBERED
    for number in range(100):
        assert some.may_publish(b"a/%d/" % number + b"x" * 1_000)
        assert sum(map(len, some._publish._known)) <= REMEMBERED_BYTES
    assert some.may_publish(b"a/" + b"x" * 60_000)
    assert sum(map(len, some._publish._known)) <= REMEMBERED_BYTES
    assert some.may_receive(b"a/1")
    assert not some._deliver._known
    assert NOTHING.allow == ()


def test_a_bucket_gives_a_second_s_worth_and_takes_what_is_more_on_credit() -> None:
    clock = Clock()
    somebody = Principal("a", Grant(rate=10), clock.mono)
    rate_limiter = somebody.rate_limiter
    assert [rate_limiter.take() for _ in range(10)] == [0.0] * 10
    assert 0.0 < rate_limiter.take() <= 0.1
    clock.mono_s = 1.0
    assert rate_limiter.take(50) == 0.0
    clock.mono_s = 2.0
    assert 2.9 < rate_limiter.take() <= 3.1
    clock.mono_s = 5.1
    assert rate_limiter.take() == 0.0
    somebody.replace(Grant(rate=0))
    assert [rate_limiter.take(1_000) for _ in range(3)] == [0.0] * 3
    somebody.replace(Grant(rate=1))
    assert rate_limiter.take() == 0.0
    assert rate_limiter.take() > 0.0


@pytest.mark.parametrize(
    ("deliver", "deny", "topic_filter", "has_all", "has_some"),
    [
        *((None, (), "#", True, True), (("a/#",), (), "a/+/b", True, True), (("a/#",), (), "a", True, True)),
        *((("a/#",), (), "#", False, True), (("a/#",), (), "+/x", False, True)),
        *((("a/#",), (), "b/#", False, False), (("a/+",), (), "a/b/c", False, False)),
        *((("a/#",), (), "$SYS/#", False, False), (("#",), (), "$SYS/#", False, False)),
        *((("#",), ("a/b",), "a/#", False, True), (("#",), ("a/#",), "a/b", False, False)),
        *((("#",), ("$SYS/#",), "#", True, True), ((), (), "#", False, False)),
    ],
)
def test_of_a_filter_a_key_may_receive_all_some_or_nothing(
    deliver: tuple[str, ...] | None, deny: tuple[str, ...], topic_filter: str, has_all: bool, has_some: bool
) -> None:
    grant = Grant(deliver=Rules(deliver, deny))
    rights = Rights(Principal("k", grant, lambda: 0.0), "c")
    assert rights.may_receive_all(topic_filter) is has_all
    assert rights.may_receive_some(topic_filter) is has_some
    nobody = Rights(
        Principal("k", Grant(frozenset({"schedule"}), deliver=Rules(deliver, deny)), lambda: 0.0), "c"
    )
    assert not nobody.may_receive_all(topic_filter)
    assert not nobody.may_receive_some(topic_filter)
