"""Retries of a filter that nobody takes from: who gets them, and that nobody gets one twice."""

import pytest

from server.delivery.terms import LASTING
from shards import delivery_rows
from tests.support.mqtt import user
from tests.support.pulling import Puller
from tests.support.rig import Peer, Rig

OLD, NEW = "$share/workers/jobs/#", "$share/workers/jobs/+/run"


def _failed(rig: Rig, topic: str, payload: str = "job", delay_ms: int = 5_000) -> None:
    """A job of the former filter has failed once; its worker is gone."""
    rig.connected("p").publish1(topic, payload)
    puller = Puller(rig, OLD)
    (settled,) = puller.nack(puller.lease(), delay_ms, "db is down")
    assert settled.done == 1


def _newcomer(rig: Rig) -> Peer:
    """The consumers of the former worker are dismissed. Another one takes from another filter."""
    rig.pass_ms(6_000)
    rig.make(NEW, keeping=LASTING)
    return rig.lasting("w").subscribed(NEW, qos=1)


def _whose(rig: Rig) -> list[str]:
    return [row.addressee.removeprefix("\0share/") for row in delivery_rows.waiting(rig.core.opened.store)]


def test_a_worker_of_another_filter_that_fits_gets_the_retry_and_its_attempt_goes_on(rig: Rig) -> None:
    rig.make(OLD, keeping=LASTING)
    _failed(rig, "jobs/1/run", delay_ms=60_000)
    worker = _newcomer(rig)
    rig.pass_ms(50_000)
    assert worker.inbox == [], "it is not due"
    rig.pass_ms(10_000)
    (came,) = worker.publishes()
    assert came.payload == b"job"
    assert user(came, "fasti-attempt") == "2"
    rig.disown()
    rig.kill()
    assert rig.lasting("w").payloads() == ["job"]
    assert rig.core.events.moved == 0
    assert _whose(rig) == [NEW]


def test_what_fits_no_filter_stays(rig: Rig) -> None:
    rig.make(OLD, keeping=LASTING)
    _failed(rig, "jobs/1/mail")
    worker = _newcomer(rig)
    rig.pass_ms(5_000)
    assert (worker.inbox, _whose(rig)) == ([], [OLD])
    other = rig.lasting("w2").subscribed(OLD, qos=1)
    rig.pass_ms(1_000)
    assert other.take_all() == ["job"]


def test_a_group_that_asked_for_the_message_itself_does_not_get_its_retry_too(rig: Rig) -> None:
    rig.make(OLD, NEW, keeping=LASTING)
    _failed(rig, "jobs/1/run")
    worker = _newcomer(rig)
    assert worker.take_all() == ["job"]
    rig.pass_ms(10_000)
    assert (worker.inbox, _whose(rig)) == ([], [OLD])


@pytest.mark.parametrize("how", ["paused", "away"])
def test_a_filter_that_is_paused_or_whose_worker_is_away_keeps_its_retries(rig: Rig, how: str) -> None:
    rig.make(OLD, keeping=LASTING)
    _failed(rig, "jobs/1/run")
    if how == "away":
        rig.lasting("away").subscribed(OLD, qos=1).disconnect()
    else:
        rig.pause(OLD, pump=False)
    worker = _newcomer(rig)
    rig.pass_ms(5_000)
    assert (worker.inbox, _whose(rig)) == ([], [OLD])


def test_retries_that_fit_nobody_keep_no_other_from_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.delivery.settling.siblings.ROWS", 3)
    rig = Rig()
    rig.make(OLD, keeping=LASTING)
    for n in range(10):
        _failed(rig, f"jobs/{n}/mail")
    _failed(rig, "jobs/1/run", "fits")
    worker = _newcomer(rig)
    rig.pass_ms(10_000)
    assert worker.take_all() == ["fits"]
    assert _whose(rig).count(OLD) == 10


def test_a_look_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One retry at least: the rest is another look's."""
    monkeypatch.setattr("server.delivery.settling.siblings.BUDGET_S", 0.0)
    rig = Rig()
    rig.make(OLD, keeping=LASTING)
    for n in range(5):
        _failed(rig, f"jobs/{n}/run", str(n))
    worker = _newcomer(rig)
    rig.pass_ms(2_000)
    assert 1 <= rig.core.events.moved <= 2
    rig.pass_ms(10_000)
    assert sorted(worker.take_all()) == ["0", "1", "2", "3", "4"]
