"""What a place has not finished when it ends, or is set forward: dead letters with a reason, or counted."""

import logging
from dataclasses import replace

import pytest

from server.codec import wire
from server.codec.packets import Ack
from server.delivery.burials import SKIPPED
from server.delivery.settling import burying
from server.settings.config import Config
from shards import delivery_rows
from shards.commit import Commit
from shards.record import decode, id_at
from tests.support.rig import Peer, Rig, props
from timeline.position import END, START

GROUP = "$share/g/t"


def letters(rig: Rig) -> list[tuple[str, str, str, int]]:
    rows = list(rig.core.dead_letters.read())
    return [(row.group, decode(row.record).payload.decode(), row.reason, row.attempts) for row in rows]


def behind(rig: Rig, count: int = 3) -> Peer:
    """A worker has had `0`, which waits for its next try, and has `1`; the rest is unread."""
    worker = rig.lasting("worker", receive_maximum=1).subscribed(GROUP, qos=1)
    publisher = rig.connected("publisher")  # who stays: a session that ends is counted
    for number in range(count):
        publisher.publish1("t", str(number))
    (first,) = worker.publishes()
    said = props(user_properties=(("retry-in", "10s"), ("reason", "no paper")))
    worker.send(Ack(wire.PUBACK, first.packet_id, 0x80, said))
    return worker


def dropped_of(rig: Rig) -> list[int]:
    """Of each message, how many places have dropped it."""
    rows = rig.core.reader.read(START, END)
    ids = [id_at(place, shard, 0, decode(value).id) for place, shard, value in rows]
    return [sum(row.is_dropped for row in delivery_rows.of_message(rig.store, name)) for name in ids]


def disband(rig: Rig, *, is_dead: bool = True) -> None:
    group = rig.group(GROUP)
    groups = rig.core.groups
    rig.decide(lambda commit: groups.disband(commit, group, is_dead=is_dead))


def test_a_group_that_is_deleted_leaves_dead_letters(rig: Rig) -> None:
    behind(rig).drop()
    disband(rig)
    assert sorted(letters(rig)) == [
        ("g", "0", "group deleted", 1),
        ("g", "1", "group deleted", 1),
        ("g", "2", "group deleted", 0),
    ]
    assert list(delivery_rows.waiting(rig.store)) == []
    assert rig.core.burials.active == {}
    assert rig.core.opened.waiting.retries == 0


def test_what_is_dropped_is_counted_and_known(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    behind(rig).drop()
    with caplog.at_level(logging.WARNING):
        disband(rig, is_dead=False)
    assert letters(rig) == []
    assert rig.core.burials.dropped == {"group deleted": 3}
    assert "g: group deleted: 0 unfinished messages became dead letters, 3 were dropped" in caplog.text
    assert dropped_of(rig) == [1, 1, 1]


def test_a_later_group_of_the_name_gets_nothing_of_the_former(rig: Rig) -> None:
    behind(rig).drop()
    former = rig.group(GROUP).incarnation
    disband(rig)
    worker = rig.lasting("worker").subscribed(GROUP, qos=1)
    rig.pass_ms(20_000)
    assert worker.take_all() == []
    assert rig.group(GROUP).incarnation > former


@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_kill_loses_nothing_and_doubles_nothing(survivors: int) -> None:
    """Before it ends, in between, after it: each message is with the group, or a dead letter, once."""
    outcomes = set()
    for steps in range(12):
        rig = Rig()
        behind(rig).drop()
        group, groups = rig.group(GROUP), rig.core.groups
        rig.core.writer.submit(lambda commit: groups.disband(commit, group), lambda _: None)  # noqa: B023
        rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        rig.pump()  # the first one asks the writer
        dead = [payload for _, payload, _, _ in letters(rig)]
        if rig.core.groups.get(GROUP) is None:
            assert sorted(dead) == ["0", "1", "2"], steps
            assert list(delivery_rows.waiting(rig.store)) == []
        else:
            assert dead == [], steps
        assert rig.core.burials.active == {}
        outcomes.add(len(dead))
    assert outcomes == {0, 3}


def test_who_is_set_forward_leaves_what_it_had_not_read(rig: Rig) -> None:
    worker = behind(rig, 5)
    group, replay = rig.group(GROUP), rig.core.replay
    rig.decide(lambda commit: replay.skip(commit, group, END, SKIPPED, is_dead=True))
    assert [(payload, reason) for _, payload, reason, _ in letters(rig)] == [
        ("2", "skipped"),
        ("3", "skipped"),
        ("4", "skipped"),
    ]
    assert worker.payloads() == ["1"], "what it has in flight stays"
    assert len(list(delivery_rows.waiting(rig.store))) == 1, "as does what waits for its next try"


def test_a_burial_takes_half_of_the_room_and_drives_nobody_out() -> None:
    made = Config()
    rig = Rig(replace(made, dead=replace(made.dead, max_messages=8)))
    behind(rig, 10).drop()
    disband(rig)
    assert len(letters(rig)) == 4
    assert rig.core.burials.dropped == {"group deleted": 6}
    assert rig.core.dead_letter_queue.crowded_out == 0


def test_unsubscribing_as_the_last_one_leaves_dead_letters_too(rig: Rig) -> None:
    worker = behind(rig)
    assert worker.payloads() == ["1"]
    worker.inbox.clear()
    worker.unsubscribe(GROUP)
    assert sorted(payload for _, payload, _, _ in letters(rig)) == ["0", "2"], "it may finish what it has"


def test_a_group_that_has_nothing_undone_leaves_nothing(rig: Rig) -> None:
    rig.lasting("worker").subscribe(GROUP, qos=1)
    rig.connected("publisher").publish1("t", "done")
    assert rig.peers[0].take_all() == ["done"]
    disband(rig)
    assert letters(rig) == []
    assert rig.core.burials.dropped == {}


def test_a_group_that_has_nobody_is_moved_over_what_is_not_its_own(rig: Rig) -> None:
    rig.lasting("worker").subscribed(GROUP, qos=1).drop()
    rig.lasting("keeper").subscribed("#", qos=1).drop()
    publisher = rig.connected("publisher")
    for topic in ("other", "other", "t", "other"):
        publisher.publish1(topic, topic)
    rig.pass_ms(1_000)
    group, floor = rig.group(GROUP), rig.core.floor
    places = [place for place, _, _ in rig.core.reader.read(START, END)]
    assert floor.needed <= places[0]
    asked: list[bool] = []
    for _ in range(2):
        rig.decide(lambda commit: asked.append(floor.advance(commit, group, END)))
    assert group.session.read == places[1]
    assert places[1] < floor.needed <= places[2]
    assert asked[-1] is False
    rig.decide(lambda commit: floor.give_up(commit, group, END))
    assert [(payload, reason) for _, payload, reason, _ in letters(rig)] == [("t", "kept too long")]
    assert floor.needed > places[3]


@pytest.mark.parametrize("steps", range(5))
def test_what_is_read_again_after_a_skip_is_not_given_up(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is set back before its skip is worked through. Each step is one message."""
    monkeypatch.setattr(burying, "STEP", 1)
    rig = Rig()
    rig.lasting("worker").subscribed(GROUP, qos=1).drop()
    rig.send("t", *map(str, range(6)))
    group, replay, worker = rig.group(GROUP), rig.core.replay, rig.lasting("worker", receive_maximum=1)
    from_3 = [place for place, _, _ in rig.core.reader.read(START, END)][2]
    rig.decide(lambda commit: replay.skip(commit, group, END, SKIPPED, is_dead=True), pump=False)
    rig.take_steps(3 * steps)
    rig.decide(lambda commit: replay.rewind(commit, group, from_3), pump=False)
    came = worker.take_all()
    rig.pass_ms(5_000)
    assert (worker.take_all(), rig.core.burials.active) == ([], {})
    assert [payload for _, payload, _, _ in letters(rig)] == [one for one in "12" if one not in came], came
    assert came[-3:] == ["3", "4", "5"]


def test_what_a_group_has_in_flight_for_too_long_is_told_at_dead(rig: Rig) -> None:
    behind(rig)
    watcher = rig.connected("watcher").subscribed("$dead/#", qos=1)
    group, floor = rig.group(GROUP), rig.core.floor
    rig.decide(lambda commit: floor.give_up(commit, group, END))
    assert [(one.topic, one.payload) for one in watcher.publishes()] == [(b"$dead/g/t", b"1")]
    assert sorted(letters(rig)) == [("g", "1", "kept too long", 1), ("g", "2", "kept too long", 0)]


@pytest.mark.parametrize("ends", ["skip", "drop", "deleted"])
def test_what_is_left_behind_after_a_replay_is_in_one_place(rig: Rig, ends: str) -> None:
    """`0` waits, `1` is dead, `2` was dropped, `3` is done, `4` is in flight when the group is set back."""
    worker = rig.lasting("worker").subscribed(GROUP, qos=1)
    rig.send("t", *map(str, range(5)))
    came = worker.publishes()
    for packet, wait in zip(came[:3], ("1h", "never", "never"), strict=False):
        worker.nack(packet, wait)
    worker.ack(wire.PUBACK, came[3].packet_id)
    place = next(row.name for row in rig.core.dead_letters.read() if decode(row.record).payload == b"2")
    drop = rig.core.dead_letters.drop
    rig.decide(lambda commit: drop(commit, place, lambda *_: True))
    worker.drop()
    rig.clock.now_ms += 100
    group, replay, disband = rig.group(GROUP), rig.core.replay, rig.core.groups.disband
    is_dead = ends != "drop"

    def again(commit: Commit) -> None:
        replay.rewind(commit, group, START)

    def leave(commit: Commit) -> None:
        if ends == "deleted":
            disband(commit, group)
        else:
            replay.skip(commit, group, END, SKIPPED, is_dead=is_dead)

    rig.decide(again)
    rig.decide(leave)
    dead = sorted((payload, why) for _, payload, why, _ in letters(rig))
    waiting = sorted(decode(row.record).payload.decode() for row in delivery_rows.waiting(rig.store))
    dropped = dropped_of(rig)
    if ends == "skip":
        assert dead == [("1", "nacked with 0x80"), ("2", "skipped"), ("3", "skipped")]
        assert waiting == ["0", "4"]
        assert dropped == [0, 0, 0, 0, 0]
    elif ends == "drop":
        assert dead == [("1", "nacked with 0x80")]
        assert waiting == ["0", "4"]
        assert dropped == [0, 0, 1, 1, 0]
    else:
        assert dead == [
            ("0", "group deleted"),
            ("1", "nacked with 0x80"),
            ("2", "group deleted"),
            ("3", "group deleted"),
            ("4", "group deleted"),
        ]
        assert waiting == []
        assert dropped == [0, 0, 0, 0, 0]
