"""What a group has in flight that no member has: so much of it waits in RAM, of all groups together."""

import pytest

from shards.errors import StoreFailed
from tests.support.build import OPENED
from tests.support.rig import Peer, Rig, config

SHOWN = 16
"""What a member is given before it has acked anything."""


def text(number: int) -> str:
    return f"$share/g{number}/jobs/#"


def worker(rig: Rig, number: int) -> Peer:
    peer = rig.connected(f"w{number}")
    assert peer.subscribe(text(number), qos=1) == (1,)
    return peer


def published(rig: Rig, count: int) -> list[str]:
    publisher = rig.connected("publisher")
    payloads = [f"{number:03}" for number in range(count)]
    for payload in payloads:
        assert publisher.publish1("jobs/x", payload).reason == 0
    publisher.disconnect()
    return payloads


def returned(rig: Rig) -> tuple[int, int]:
    counted = rig.core.groups.returned
    groups = list(rig.core.groups)
    assert counted.waiting == sum(len(one.session.resends) for one in groups)
    return counted.waiting, counted.failing


@pytest.mark.parametrize("how", ["stays", "restart", "crash"])
def test_what_has_no_room_to_wait_for_a_member_waits_on_disk(how: str) -> None:
    rig = Rig(config(returned=20))
    workers = [worker(rig, number) for number in range(3)]
    payloads = published(rig, SHOWN)
    assert [len(rig.group(text(number)).session.flights) for number in range(3)] == [SHOWN] * 3
    for peer in workers:
        peer.disconnect()
    assert returned(rig) == (20, 0)
    assert [len(rig.group(text(number)).session.flights) for number in range(3)] == [16, 4, 0]
    rig.start_again(how)
    rig.pass_ms(1_000)
    waiting, failing = returned(rig)
    assert waiting <= 20
    assert not failing
    for number in range(3):
        assert sorted(worker(rig, number).take_all()) == payloads
    assert returned(rig) == (0, 0)


def test_room_to_wait_is_free_when_a_member_has_it_and_when_the_group_ends() -> None:
    rig = Rig(config(returned=SHOWN))
    first, other = worker(rig, 0), worker(rig, 1)
    published(rig, SHOWN)
    first.disconnect()
    assert returned(rig) == (SHOWN, 0)
    back = worker(rig, 0)
    assert returned(rig) == (0, 0)
    other.disconnect()
    assert returned(rig) == (SHOWN, 0)
    rig.decide(lambda commit: rig.core.groups.disband(commit, rig.group(text(1))))
    assert returned(rig) == (0, 0)
    back.disconnect()
    assert returned(rig) == (SHOWN, 0)


def test_what_was_in_flight_at_a_kill_and_has_no_room_to_wait_comes_all_the_same() -> None:
    rig = Rig(config(returned=4))
    worker(rig, 0)
    payloads = published(rig, SHOWN)
    rig.disown()
    rig.core.cursors.persist(rig.group(text(0)), lambda _: None)
    rig.pump()
    rig.crash()
    rig.pass_ms(200)
    assert returned(rig) == (4, 0)
    assert len(rig.group(text(0)).session.flights) == 4
    assert sorted(worker(rig, 0).take_all()) == payloads


@OPENED
def test_groups_read_nothing_new_while_as_many_have_failed_and_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(config(returned=SHOWN))
    worker(rig, 0)
    published(rig, SHOWN)
    submit = rig.core.writer.submit

    def refuse(*_: object, **__: object) -> None:
        raise StoreFailed("full")

    with monkeypatch.context() as broken:
        broken.setattr(rig.core.writer, "submit", refuse)
        rig.core.clients.leave(next(iter(rig.group(text(0)).members)), is_clean=False)
        assert returned(rig) == (0, SHOWN)
    assert rig.core.writer.submit == submit
    other = worker(rig, 1)
    published(rig, 3)
    assert other.take_all() == []
    assert not rig.group(text(1)).session.tailing
    rig.pass_ms(5_000)
    assert returned(rig) == (0, 0)
    assert sorted(other.take_all()) == ["000", "001", "002"]
