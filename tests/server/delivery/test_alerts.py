"""Alerts are in the batch of what they tell of: none is lost, or tells of what was not, or raises another."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from server.delivery.alerts import MINUTE_MS, MOST
from server.delivery.burials import SKIPPED
from server.delivery.shared import endpoint_text
from tests.support.keyed import Keyed
from tests.support.rig import Peer, Rig, asking
from timeline.position import END

TEXT = "$share/g/t"


def made(rig: Rig, text: str = TEXT, **terms: str) -> Peer:
    """A worker of a group with alerts, which gives up a message after one try; and who reads the alerts."""
    rig.make(endpoint_text("ops"))
    rig.lasting("reader").subscribe("$alerts/#")
    more = asking(**({"alerts": "ops", "max_attempts": "1"} | terms))
    return rig.lasting(f"worker of {text}").subscribed(text, user_properties=more)


def told(rig: Rig) -> list[dict[str, Any]]:
    """The alerts since the last call."""
    return [json.loads(body) for body in rig.lasting("reader").take_all()]


def die(rig: Rig, worker: Peer, count: int, topic: str = "t") -> None:
    """So many messages die."""
    sender = rig.come("ops", "sender") if isinstance(rig, Keyed) else rig.connected("sender")
    for number in range(count):
        sender.publish1(topic, str(number))
    sender.disconnect()
    for packet in worker.publishes():
        worker.nack(packet, "never", "no")
    rig.pump()


def events(rig: Rig) -> list[object]:
    return [one.get("more", one["event"]) for one in told(rig)]


@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_kill_leaves_no_dead_letter_without_its_alert(survivors: int) -> None:
    seen = set[int]()
    for steps in range(14):
        rig = Rig()
        worker = made(rig)
        rig.send("t", "x")
        (packet,) = worker.publishes()
        worker.nack(packet, "never", pump=False)
        is_at_rest = not rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        dead, alerts = rig.core.dead_letter_queue.totals.count, told(rig)
        assert len(alerts) == dead, steps
        seen.add(dead)
        if is_at_rest:
            break
    assert seen == {0, 1}


@pytest.mark.parametrize("survivors", [0, 1])
def test_a_batch_that_has_failed_and_may_be_stored_tells_it_once(survivors: int) -> None:
    rig = Rig()
    worker = made(rig)
    rig.send("t", "x")
    (packet,) = worker.publishes()
    worker.nack(packet, "never", pump=False)
    while not rig.core.events.errand._waiting and rig.core.writer.is_idle:
        rig.turn()
    assert rig.compose()
    rig.lose(survivors)
    rig.pass_ms(3_000)
    assert rig.core.dead_letter_queue.totals.count == 1
    assert events(rig) == ["dead"]


def test_after_some_in_a_minute_the_others_are_counted_and_told_though_nothing_follows() -> None:
    rig = Rig()
    worker = made(rig)
    die(rig, worker, MOST + 7)
    die(rig, worker, 3)
    assert events(rig) == ["dead"] * MOST
    rig.pass_ms(MINUTE_MS + 3_000)
    assert events(rig) == [10]
    assert not rig.core.dispatch.alerts._minutes, "nothing is kept of a place at rest"
    die(rig, worker, 1)
    assert events(rig) == ["dead"]
    rig.pass_ms(2 * MINUTE_MS)
    assert events(rig) == []


def test_what_a_skip_buries_counts_as_the_rest() -> None:
    rig = Rig()
    made(rig).drop()
    rig.send("t", *map(str, range(200)))
    group = rig.group(TEXT)
    rig.decide(lambda commit: rig.core.replay.skip(commit, group, END, SKIPPED, is_dead=True))
    rig.pass_ms(MINUTE_MS + 5_000)
    assert rig.core.dead_letter_queue.totals.count == 200
    assert events(rig) == ["dead"] * MOST + [200 - MOST]


def test_the_rest_of_a_minute_survives_a_batch_that_fails() -> None:
    rig = Rig()
    die(rig, made(rig), MOST + 2)
    rig.break_store()
    rig.pass_ms(MINUTE_MS + 3_000)
    rig.mend_store()
    rig.pass_ms(3_000)
    assert events(rig) == ["dead"] * MOST + [2]


def test_alerts_raise_none_nor_does_what_is_told_of_them() -> None:
    """Nor do copies at `$dead`, which would have copies for ever."""
    rig = Rig()
    terms = asking(alerts="ops", max_attempts="1")
    workers = [made(rig, "$share/g/$alerts/#"), made(rig, "$share/g/$dead/#")]
    other = rig.lasting("third").subscribed("$share/h/t", user_properties=terms)
    die(rig, other, 1)
    for peer in workers * 2:
        for packet in peer.publishes():
            peer.nack(packet, "never")
        rig.pump()
    assert rig.core.dead_letter_queue.totals.count > 3
    assert events(rig) == ["dead"]


def test_an_endpoint_that_is_gone_gets_none_and_each_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    worker = made(rig)
    ops = rig.group(endpoint_text("ops"))
    rig.decide(lambda commit: rig.core.groups.disband(commit, ops))
    with caplog.at_level(logging.WARNING):
        die(rig, worker, 2)
    assert rig.core.dispatch.alerts.dropped == 2
    assert caplog.text.count("g: alert dropped: its endpoint is gone") == 2
    rig.make(endpoint_text("ops"))
    die(rig, worker, 1)
    assert events(rig) == ["dead"]


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    """`alice` sends, `boss` works and is told."""
    rig = Keyed(tmp_path)
    rig.make(endpoint_text("ops"))
    rig.add("alice", publish=["t/#"])
    rig.add("boss", deliver=["t/a"], publish=["$deliver/ops"])
    rig.stay("ops", "reader").subscribe("$alerts/#")
    return rig


def came(rig: Keyed) -> list[dict[str, Any]]:
    return [json.loads(body) for body in rig.stay("ops", "reader").take_all()]


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_is_withheld_is_told_once(keyed: Keyed, *, is_away: bool, is_killed: bool) -> None:
    worker = keyed.stay("boss", "worker").subscribed("$share/g/t/a", user_properties=asking(alerts="ops"))
    if is_away:
        worker.drop()
    keyed.come("alice").publish1("$delayed/60/t/a", "x")
    keyed.change("alice", '"t/#"', '"x"')
    keyed.pass_ms(61_000)
    if is_killed:
        keyed.kill()
    (alert,) = came(keyed)
    assert (alert["event"], alert["group"], alert["attempts"]) == ("withheld", "g", 0)
    assert (alert["topic"], alert["reason"]) == ("t/a", "key 'alice' may not publish to 't/a'")
    keyed.stay("boss", "worker").take_all()
    keyed.pass_ms(2 * MINUTE_MS)
    assert came(keyed) == []


def test_what_a_place_withholds_as_it_reads_is_told(keyed: Keyed) -> None:
    """The message was due while alice might send it; the group comes to it later."""
    keyed.stay("boss", "worker").subscribed("$share/g/t/a", user_properties=asking(alerts="ops")).drop()
    keyed.come("alice").publish1("t/a", "x")
    keyed.change("alice", '"t/#"', '"x"')
    keyed.stay("boss", "worker").take_all()
    keyed.pass_ms(1_000)
    assert [(one["event"], one["topic"]) for one in came(keyed)] == [("withheld", "t/a")]


def test_a_key_is_told_nothing_of_a_topic_that_it_may_not_receive(keyed: Keyed) -> None:
    terms = asking(alerts="ops", max_attempts="1")
    worker = keyed.stay("boss", "worker").subscribed("$share/g/t/+", user_properties=terms)
    other = keyed.stay("ops", "other").subscribed("$share/g/t/+")
    for topic in ("t/a", "t/secret"):
        keyed.come("alice").publish1(topic, "x")
        for peer in (worker, other):
            for packet in peer.publishes():
                peer.nack(packet, "never", "it says why")
    keyed.pump()
    open_, closed = came(keyed)
    assert (open_["topic"], open_["reason"]) == ("t/a", "it says why")
    assert sorted(closed) == ["at", "attempts", "event", "group"]


def test_a_key_that_may_not_deliver_any_more_sends_none(keyed: Keyed) -> None:
    terms = asking(alerts="ops", max_attempts="1")
    worker = keyed.stay("boss", "worker").subscribed("$share/g/t/a", user_properties=terms)
    keyed.change("boss", '"$deliver/ops"', '"x"')
    die(keyed, worker, 2, "t/a")
    assert (came(keyed), keyed.core.dispatch.alerts.dropped) == ([], 2)
    keyed.change("boss", '"x"', '"$deliver/ops"')
    die(keyed, worker, 1, "t/a")
    assert [one["event"] for one in came(keyed)] == ["dead"]


def test_an_alert_that_is_not_posted_yet_is_withheld_with_the_right_of_its_key(keyed: Keyed) -> None:
    """The group of the endpoint has failed, and waits for its next try."""
    poster = keyed.stay("ops", "poster")
    terms = asking(alerts="ops", max_attempts="1")
    worker = keyed.stay("boss", "worker").subscribed("$share/g/t/a", user_properties=terms)
    poster.subscribe("$share/posts/$alerts/#")
    die(keyed, worker, 1, "t/a")
    (alert,) = poster.deliveries(acks=False)
    poster.nack(alert, "10s")
    keyed.change("boss", '"$deliver/ops"', '"x"')
    keyed.pass_ms(20_000)
    assert poster.deliveries() == []
    keyed.change("boss", '"x"', '"$deliver/ops"')
    keyed.pass_ms(1_000)
    assert [one.payload for one in poster.deliveries()] == [alert.payload]
