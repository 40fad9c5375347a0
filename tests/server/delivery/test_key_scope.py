"""A key that is taken while something of its message is undone: with sessions, groups, retries, dead letters;
in one group commit, after a restart, after a kill."""

from typing import Any

import pytest

from server.codec import wire
from server.codec.packets import Publish
from server.delivery import deliveries, publishing
from shards.dedupe import Refused, dedupe_key
from shards.draft import AS_EVER, Draft, Known, Outcome, Terms
from shards.fields import Record
from shards.record import encode
from tests.support.build import OPENED
from tests.support.rig import Rig, config, props

from .test_retries import letters, requeue

GROUP = "$share/g/t"
KEY = dedupe_key("mqtt", b"k")
PENDING = (("idempotency-key", "k"), ("idempotency-key-scope", "pending"))
KEPT = PENDING[:1]


def draft_of(rig: Rig, text: str = "x", *, after_ms: int = 0, qos: int = 1, pending: bool = True) -> Draft:
    due_ms = rig.clock.now_ms + after_ms
    record = Record(b"t", text.encode(), due_ms, qos, key=KEY)
    return Draft(due_ms, b"t", encode(record), KEY, text.encode().ljust(16), pending)


def decided(rig: Rig, *drafts: Draft, terms: Terms = AS_EVER) -> Any:
    """What the writer says of each, in one group."""
    answers: list[Any] = []
    for draft in drafts:
        rig.core.writer.submit(lambda commit, draft=draft: commit.put([draft], terms)[0], answers.append)
    rig.pump()
    return answers[0] if len(answers) == 1 else answers


def is_free(rig: Rig) -> bool:
    """Whether a call for the key would make a message; none is made."""
    (known,) = rig.decide(lambda commit: commit.taken_from(draft_of(rig), AS_EVER))
    return known is None


def test_nobody_is_to_get_it_and_it_is_free_when_it_is_due(rig: Rig) -> None:
    first = decided(rig, draft_of(rig, after_ms=60_000))
    assert decided(rig, draft_of(rig, after_ms=90_000)).id == first
    assert isinstance(decided(rig, draft_of(rig, "other")), Refused)
    rig.pass_ms(60_000)
    second = decided(rig, draft_of(rig, "other", after_ms=60_000))
    assert second != first
    assert decided(rig, draft_of(rig, "other")).id == second


def test_a_message_that_was_cancelled_frees_it_and_one_that_was_moved_does_not(rig: Rig) -> None:
    first = decided(rig, draft_of(rig, after_ms=60_000))
    rig.decide(lambda commit: commit.move(first, rig.clock.now_ms + 120_000), pump=False)
    rig.pass_ms(61_000)
    assert not is_free(rig)
    (said,) = rig.decide(lambda commit: commit.cancel(first))
    assert said.outcome is Outcome.DONE
    assert is_free(rig)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("text", ["t", GROUP])
def test_it_is_taken_until_it_is_acked(rig: Rig, text: str, qos: int) -> None:
    peer = rig.lasting("a").subscribed(text, qos=qos)
    first = decided(rig, draft_of(rig, qos=qos))
    assert not is_free(rig), "in flight"
    assert decided(rig, draft_of(rig)) == Known(first, rig.clock.now_ms)
    peer.drop()
    assert not is_free(rig), "in flight, or given back"
    peer = rig.lasting("a")
    rig.pass_ms(60_000)
    assert peer.take_all() == ["x"]
    assert is_free(rig)
    assert decided(rig, draft_of(rig)) != first
    assert peer.take_all() == ["x"]


@pytest.mark.parametrize("text", ["t", GROUP])
def test_it_is_taken_while_somebody_has_not_read_it(rig: Rig, text: str) -> None:
    rig.lasting("a").subscribed(text).drop()
    decided(rig, draft_of(rig))
    for _ in range(2):
        assert not is_free(rig)
        rig.restart()
    peer = rig.lasting("a")
    assert peer.take_all() == ["x"]
    assert is_free(rig)


def test_who_subscribed_later_does_not_count(rig: Rig) -> None:
    decided(rig, draft_of(rig))
    rig.lasting("a").subscribed("t").drop()
    assert is_free(rig)


def test_nor_does_who_is_behind_and_subscribed_later(rig: Rig) -> None:
    peer = rig.lasting("a", receive_maximum=1).subscribed("u")
    rig.send("u", *["x"] * 2)
    decided(rig, draft_of(rig))
    assert len(peer.publishes()) == 1
    assert peer.subscribe("t") == (2,)
    behind = rig.session("a")
    assert not behind.session.tailing
    assert is_free(rig)


@pytest.mark.parametrize("text", ["t", GROUP])
def test_it_is_taken_while_it_waits_for_its_next_try(rig: Rig, text: str) -> None:
    peer = rig.lasting("a").subscribed(text)
    decided(rig, draft_of(rig))
    peer.nack(peer.one(), "60s")
    for after_ms in (0, 50_000):
        rig.pass_ms(after_ms)
        assert not is_free(rig), "it waits"
    rig.crash(pump=True)
    assert not is_free(rig), "after a kill too"
    rig.pass_ms(20_000)
    assert not is_free(rig), "it is due, and nobody is there"
    peer = rig.lasting("a")
    assert not is_free(rig), "it is in flight again"
    assert peer.take_all() == ["x"]
    assert is_free(rig), "before its row has gone, too"


def test_what_fails_in_the_same_group_commit_is_not_lost_sight_of(rig: Rig) -> None:
    """Its flight is settled there, and its next try stands in no row that a look at the store would find."""
    peer = rig.lasting("a").subscribed(GROUP)
    first = decided(rig, draft_of(rig))
    (packet,) = peer.publishes()
    rig.is_held = True
    peer.nack(packet, "1h", pump=False)
    said = rig.decide(lambda commit: commit.put([draft_of(rig)])[0])
    assert said == []
    rig.is_held = False
    rig.pump()
    assert said == [Known(first, rig.clock.now_ms)]


def test_a_dead_letter_frees_it_and_takes_it_again_when_it_is_requeued() -> None:
    rig = Rig(config(max_attempts=1))
    peer = rig.lasting("a").subscribed(GROUP)
    decided(rig, draft_of(rig))
    peer.nack(peer.one(), "1s")
    assert letters(rig) == ["x"]
    assert is_free(rig)
    requeue(rig, 5_000)
    assert not is_free(rig)


def test_a_group_that_ends_takes_no_key_along(rig: Rig) -> None:
    peer = rig.lasting("a").subscribed(GROUP)
    decided(rig, draft_of(rig))
    assert len(peer.publishes()) == 1
    assert not is_free(rig)
    peer.unsubscribe(GROUP)
    assert is_free(rig)


def test_two_in_one_group_commit_are_one_message(rig: Rig) -> None:
    first, second = decided(rig, draft_of(rig), draft_of(rig))
    assert second.id == first
    rig.pump()
    third, fourth = decided(rig, draft_of(rig), draft_of(rig, pending=False))
    assert third != first
    assert fourth.id == third, "who wants it kept is told of the newest"


def test_the_scope_is_of_the_call_that_asks(rig: Rig) -> None:
    first = decided(rig, draft_of(rig, pending=False))
    assert decided(rig, draft_of(rig, pending=False)).id == first
    second = decided(rig, draft_of(rig))
    assert second != first
    assert decided(rig, draft_of(rig, pending=False)).id == second
    third = decided(rig, draft_of(rig, pending=False), terms=Terms(while_undone=True))
    assert third not in (first, second)


@pytest.mark.parametrize("survivors", [0, 1])
def test_a_kill_leaves_the_key_with_one_of_both(rig: Rig, survivors: int) -> None:
    first = decided(rig, draft_of(rig))
    rig.is_held = True
    rig.decide(lambda commit: commit.put([draft_of(rig, "new")]))
    rig.is_held = False
    rig.crash(survivors, pump=True)
    row = rig.core.opened.commit.known_under(KEY)
    assert row is not None
    assert (row.id == first) == (not survivors)


def test_beyond_a_bound_it_counts_as_undone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        rig.lasting(name).subscribe("t")
    decided(rig, draft_of(rig, qos=0))
    assert is_free(rig)
    monkeypatch.setattr(deliveries, "UNDONE_LOOKS_MAX", 2)
    assert not is_free(rig)


# -- over MQTT


def test_a_publish_asks_for_it(rig: Rig) -> None:
    peer = rig.lasting("a").subscribed(GROUP)
    publisher = rig.connected("p")
    for said in (PENDING, PENDING, KEPT):
        assert publisher.publish1("t", "x", user_properties=said).reason == 0
    assert peer.take_all() == ["x"]
    publisher.publish1("t", "x", user_properties=KEPT)
    assert peer.take_all() == []
    publisher.publish1("t", "x", user_properties=PENDING)
    (packet,) = peer.publishes()
    names = dict(packet.properties.user_properties) if packet.properties else {}
    assert not any(name.startswith("idempotency") for name in names), "no subscriber is told"


@OPENED
def test_many_at_once_are_asked_in_small_requests(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one client does not hold up all others; in their order, each with its answer."""
    peer = rig.lasting("a").subscribed("t")
    publisher = rig.connected("p")
    count = 25
    costs: list[int] = []
    submit = rig.core.writer.submit

    def noted(*args: Any, **more: Any) -> None:
        costs.append(more.get("cost", 1))
        submit(*args, **more)

    monkeypatch.setattr(rig.core.writer, "submit", noted)
    ids = range(1, count + 1)
    said = [props(user_properties=(("idempotency-key", f"{n}"), PENDING[1])) for n in ids]
    publisher.send(
        *(Publish(b"t", b"%d" % n, 1, packet_id=n, properties=of) for n, of in zip(ids, said, strict=True))
    )
    assert max(costs) <= publishing.UNDONE_RUN < count
    assert [publisher.take_ack(wire.PUBACK).packet_id for _ in ids] == [*ids]
    assert peer.take_all() == [f"{n}" for n in ids]
