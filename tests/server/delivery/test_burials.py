"""What a place has not finished when it ends, or is set forward: dead letters with a reason, or counted."""

import logging

import pytest

from server.codec import wire
from server.codec.packets import Ack
from server.delivery.shared import Group
from shards.record import decode, id_at
from shards.retries import RETRIES, dropped_of
from tests.support.rig import Peer, Rig, props
from timeline.position import END, START, MessageId

GROUP = "$share/g/t"


def letters(rig: Rig) -> list[tuple[str, str, str, int]]:
    rows = [row for _, row in rig.core.letters.read()]
    return [(row.group, decode(row.record).payload.decode(), row.reason, row.attempts) for row in rows]


def group_of(rig: Rig, text: str = GROUP) -> Group:
    group = rig.core.groups.get(text)
    assert group is not None
    return group


def behind(rig: Rig, count: int = 3) -> Peer:
    """A worker has had `0`, which waits for its next try, and has `1`; the rest is unread."""
    worker = rig.lasting("worker", receive_maximum=1)
    worker.subscribe(GROUP, qos=1)
    publisher = rig.connected("publisher")
    for number in range(count):
        publisher.publish1("t", str(number))
    (first,) = worker.publishes()
    said = props(user_properties=(("retry-in", "1h"), ("reason", "no paper")))
    worker.send(Ack(wire.PUBACK, first.packet_id, 0x80, said))
    return worker


def ids(rig: Rig) -> list[MessageId]:
    rows = rig.core.reader.read(START, END)
    return [id_at(place, shard, 0, decode(value).id) for place, shard, value in rows]


def disband(rig: Rig, *, is_dead: bool = True) -> None:
    group = group_of(rig)
    groups = rig.core.groups
    rig.core.writer.submit(lambda commit: groups.disband(commit, group, is_dead=is_dead), lambda _: None)
    rig.pump()


def test_a_group_that_is_deleted_leaves_dead_letters() -> None:
    rig = Rig()
    behind(rig).drop()
    disband(rig)
    assert sorted(letters(rig)) == [
        ("g", "0", "group deleted", 1),
        ("g", "1", "group deleted", 1),
        ("g", "2", "group deleted", 0),
    ]
    assert list(RETRIES.all(rig.store)) == []
    assert rig.core.burials.active == {}
    assert rig.core.opened.retries == 0


def test_what_is_dropped_is_counted_and_known(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    behind(rig).drop()
    with caplog.at_level(logging.WARNING):
        disband(rig, is_dead=False)
    assert letters(rig) == []
    assert rig.core.burials.dropped == {"group deleted": 3}
    assert "g: group deleted: 0 undone messages are dead letters now, 3 were dropped" in caplog.text
    assert [len(list(dropped_of(rig.store, name))) for name in ids(rig)] == [1, 1, 1]


def test_a_later_group_of_the_name_gets_nothing_of_the_former() -> None:
    rig = Rig()
    behind(rig).drop()
    former = group_of(rig).incarnation
    disband(rig)
    worker = rig.lasting("worker")
    worker.subscribe(GROUP, qos=1)
    rig.pass_ms(2 * 3_600_000)
    assert worker.take_all() == []
    assert group_of(rig).incarnation > former
