"""Burials whose steps meet a kill, or a replay, at any point between."""

import pytest

from server.delivery.burials import SKIPPED
from server.delivery.settling import burying
from shards import delivery_rows
from shards.burials import burials
from shards.record import decode
from shards.store import Table
from timeline.key_order import NO_ORDER
from timeline.position import END, START

from ...support.build import OPENED
from ...support.rig import Rig

GROUP = "$share/g/t"


def dead_of(rig: Rig) -> list[str]:
    return sorted(decode(row.record).payload.decode() for row in rig.core.dead_letters.read())


def test_nothing_is_ever_written_to_the_shared_order() -> None:
    rig = Rig()
    before = len(NO_ORDER.unwritten._writing)
    for _ in range(5):
        rig.lasting("worker").subscribed(GROUP, qos=1).drop()
        rig.send("t", "1")
        group, groups = rig.group(GROUP), rig.core.groups
        rig.decide(lambda commit: groups.disband(commit, group))  # noqa: B023
    assert len(NO_ORDER.unwritten._writing) == before
    assert NO_ORDER.is_over


@OPENED
@pytest.mark.parametrize("steps", range(30))
@pytest.mark.parametrize("step", [1, 50])
def test_a_burial_that_is_over_leaves_no_row(steps: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burying, "STEP", step)
    rig = Rig()
    rig.lasting("worker").subscribed(GROUP, qos=1).drop()
    rig.send("t", *map(str, range(3)))
    group, replay = rig.group(GROUP), rig.core.replay
    places = [place for place, _, _ in rig.core.reader.read(START, END)]
    rig.decide(lambda commit: replay.skip(commit, group, END, SKIPPED, is_dead=True), pump=False)
    rig.take_steps(steps)
    rig.decide(lambda commit: replay.rewind(commit, group, places[1]), pump=False)
    rig.pump()
    assert rig.core.burials.active == {}
    assert list(burials(rig.store)) == []


def test_what_is_done_is_no_dead_letter_after_a_start() -> None:
    """Two replays, the first one while the last step of a skip is under way."""
    found: list[tuple[int, list[str], list[str]]] = []
    for steps in range(12):
        rig = Rig()
        rig.lasting("worker").subscribed(GROUP, qos=1).drop()
        rig.send("t", "0", "1", "2")
        group, replay = rig.group(GROUP), rig.core.replay
        places = [place for place, _, _ in rig.core.reader.read(START, END)]
        rig.decide(lambda commit: replay.skip(commit, group, END, SKIPPED, is_dead=True), pump=False)  # noqa: B023
        rig.take_steps(steps)
        rig.decide(lambda commit: replay.rewind(commit, group, places[1]), pump=False)  # noqa: B023
        rig.pump()
        rig.decide(lambda commit: replay.rewind(commit, group, START))  # noqa: B023
        done = rig.lasting("worker").take_all()
        rig.pass_ms(5_000)
        rig.restart()
        rig.pass_ms(5_000)
        if dead := dead_of(rig):
            found.append((steps, done, dead))
    assert not found


@OPENED
@pytest.mark.long
@pytest.mark.parametrize("survivors", [0, 1, 2])
@pytest.mark.parametrize("order", ["true", ""])
@pytest.mark.parametrize("verb", ["delete", "skip"])
def test_a_kill_within_a_burial_of_a_group_with_keys(
    survivors: int, order: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burying, "STEP", 2)
    for steps in range(40):
        rig = Rig()
        worker = rig.lasting("worker", receive_maximum=1)
        asked = (("order", "true"),) if order else ()
        worker.subscribe(GROUP, qos=1, user_properties=asked)
        publisher = rig.connected("publisher")
        for number in range(8):
            publisher.publish1("t", str(number), user_properties=(("ordering-key", "ab"[number % 2]),))
        first = worker.one()
        worker.nack(first, "10s")
        flying = worker.payloads()
        worker.drop()
        rig.pass_ms(500)
        group, groups, replay = rig.group(GROUP), rig.core.groups, rig.core.replay
        rig.core.writer.submit(
            (lambda commit: groups.disband(commit, group))  # noqa: B023
            if verb == "delete"
            else (lambda commit: replay.skip(commit, group, END, SKIPPED, is_dead=True)),  # noqa: B023
            lambda _: None,
        )
        rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        rig.pump()
        dead = dead_of(rig)
        now = rig.core.groups.get(GROUP)
        assert list(burials(rig.store)) == []
        assert len(dead) == len(set(dead)), (steps, dead)
        if now is None:
            assert len(dead) == 8, (steps, dead, flying)
            assert list(delivery_rows.waiting(rig.store)) == []
            rows = [key for key, _ in rig.store.scan(Table.ORDER, b"", b"\xff") if key[:1] in b"\0\1\3"]
            assert rows == [], steps
        else:
            back = rig.lasting("worker")
            got = back.take_all()
            rig.pass_ms(120_000)
            got += back.take_all()
            assert sorted(got + dead) == [str(n) for n in range(8)], (steps, got, dead)
