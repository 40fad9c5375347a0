"""What has become of a message with each who was to get it: told as it is, and within bounds."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import UNSET

from server.delivery import deliveries
from server.delivery.deliveries import Delivery
from server.delivery.tries import tries_view
from server.settings.times import time_text
from shards.commit import Commit
from shards.deliveries import wait
from shards.fields import TryRow
from shards.record import decode, is_moved, is_stub
from tests.support.delivery import delivery
from tests.support.rig import Rig, config
from timeline.position import END, START, message_id

from .test_retries import dead_letter, requeue

GROUP = "$share/workers/t"


def everybody(_: Iterable[str]) -> bool:
    return True


def told(rig: Rig, index: int = 0, may: deliveries.May = everybody) -> tuple[list[Delivery], bool]:
    """Of the message that was stored as the first, or at that index."""
    core = rig.core
    rows = [row for row in core.reader.read(START, END) if not is_stub(row[2]) and not is_moved(row[2])]
    place, number, value = rows[index]
    record = decode(value)
    return core.deliveries.of(message_id(place, number, core.node), place, record, may)


def one(rig: Rig, index: int = 0) -> Delivery:
    (found,), is_cut = told(rig, index)
    assert not is_cut
    return found


def name_of(found: Delivery) -> str:
    return str(found.group or found.session)


def states(rig: Rig, index: int = 0) -> dict[str, str]:
    return {name_of(found): found.state for found in told(rig, index)[0]}


def test_a_group_that_is_away_has_not_read_it(rig: Rig) -> None:
    rig.lasting("a").subscribed(GROUP).drop()
    rig.connected("p").publish1("t", "x")
    assert one(rig) == Delivery(group="workers", filter="t", state="waiting", attempts=0)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_group_has_it_in_flight_until_it_is_acked(rig: Rig, qos: int) -> None:
    peer = rig.lasting("a").subscribed(GROUP, qos=2)
    publisher = rig.connected("p")
    (publisher.publish2 if qos == 2 else publisher.publish1)("t", "x")
    assert one(rig) == Delivery(group="workers", filter="t", state="in_flight", attempts=1, by="a")
    assert peer.take_all() == ["x"]
    assert one(rig) == Delivery(group="workers", filter="t", state="done")


def test_what_was_given_back_waits_for_who_comes(rig: Rig) -> None:
    peer = rig.lasting("a").subscribed(GROUP)
    rig.connected("p").publish1("t", "x")
    peer.drop()
    assert one(rig).state in ("waiting", "retry")
    assert one(rig).attempts == 1


def test_a_session_is_told_of_while_something_is_left(rig: Rig) -> None:
    peer = rig.lasting("a").subscribed("t")
    rig.lasting("away").subscribed("t").drop()
    rig.connected("p").publish1("t", "x")
    assert one(rig) == Delivery(session="a", state="in_flight", attempts=1)
    assert peer.take_all() == ["x"]
    assert told(rig) == ([], False), "what was acked, and what was not read, is not told of sessions"


@pytest.mark.parametrize("text", ["t", GROUP])
def test_what_is_dead_and_what_comes_again(text: str) -> None:
    rig = Rig(config(max_attempts=1))
    dead_letter(rig, text)
    name = "a" if text == "t" else "workers"
    (dead,) = [found for found in told(rig)[0] if name_of(found) == name]
    reason = "not acked after 1 deliveries" if text == "t" else "connection lost"
    tried = tries_view([TryRow(rig.clock.now_ms, "a", "lost", reason, 0 if text == "t" else 1)])
    place = {"session": "a"} if text == "t" else {"group": "workers", "filter": "t"}
    known: dict[str, Any] = {**place, "reason": reason, "tries": tried}
    assert dead == Delivery(state="dead", attempts=1, **known)
    due_ms = rig.clock.now_ms + 5_000
    requeue(rig, 5_000)
    (again,) = [found for found in told(rig)[0] if name_of(found) == name]
    assert again == Delivery(state="retry", attempts=1, retry_at=time_text(due_ms), **known)
    rig.pass_ms(6_000)
    (unread,) = [found for found in told(rig)[0] if name_of(found) == name]
    assert unread == Delivery(state="waiting", attempts=1, **known)
    peer = rig.lasting("a")
    (flying,) = [found for found in told(rig)[0] if name_of(found) == name]
    by = UNSET if text == "t" else "a"
    assert flying == Delivery(state="in_flight", attempts=2, by=by, **known)
    assert peer.take_all() == ["bad"]
    assert states(rig) == ({} if text == "t" else {name: "done"})


def test_each_group_is_told_of_by_itself() -> None:
    rig = Rig(config(max_attempts=1))
    peers = {name: rig.lasting(name) for name in ("a", "b", "c")}
    for name, peer in peers.items():
        peer.subscribe(f"$share/{name}/#")
    rig.lasting("z").subscribe("$share/z/elsewhere")
    peers["c"].drop()
    rig.connected("p").publish1("t", "x")
    peers["b"].take_all()
    assert states(rig) == {"a": "in_flight", "b": "done", "c": "waiting"}


def test_who_came_later_has_nothing_to_do_with_it(rig: Rig) -> None:
    rig.lasting("a").subscribe(GROUP)
    rig.connected("p").publish1("t", "x")
    rig.lasting("b").subscribe("$share/late/t")
    assert [name_of(found) for found in told(rig)[0]] == ["workers"]


def test_who_may_not_see_a_group_is_not_told_of_it() -> None:
    rig = Rig(config(max_attempts=1))
    dead_letter(rig, GROUP)
    assert told(rig, may=lambda owners: False) == ([], False)
    rig.lasting("a").unsubscribe(GROUP)
    assert [found.state for found in told(rig)[0] if name_of(found) == "workers"] == ["dead"], (
        "though it has ended"
    )
    assert told(rig, may=lambda owners: False) == ([], False)


def test_there_is_a_bound_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "RECEIVERS_MAX", 2)
    rig = Rig()
    for number in range(3):
        rig.lasting(f"c{number}").subscribe(f"$share/{number}/t")
        rig.connected("p").publish1("t", "x")
        found, is_cut = told(rig, number)
        assert [name_of(one) for one in found] == ["0", "1"][: number + 1]
        assert is_cut == (number == 2)


def test_there_is_a_bound_of_what_is_looked_at(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        rig.lasting(name).subscribe(f"$share/{name}/t")
    rig.send("t", *map(str, range(3)))
    monkeypatch.setattr(deliveries, "LOOKS_MAX", 107)
    assert [name_of(one) for one in told(rig)[0]] == ["a"]
    assert told(rig)[1]
    monkeypatch.setattr(deliveries, "LOOKS_MAX", 108)
    assert [name_of(one) for one in told(rig)[0]] == ["a", "b"]
    assert not told(rig)[1]


def test_there_is_a_bound_of_rows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = rig.lasting("a").subscribed(GROUP)
    rig.connected("p").publish1("t", "x")
    (row,) = rig.core.reader.read(START, END)
    name = message_id(row[0], row[1], rig.core.node)
    peer.inbox.clear()
    peer.subscribe("t", qos=1)
    names = ["a", "b"]
    rig.lasting("b").subscribe("t", qos=1)
    now_ms = rig.clock.now_ms

    def put(commit: Commit) -> None:
        for count, one in enumerate(names, 5):
            session = rig.session(one)
            wait(
                commit, delivery(session, row[0], name, row[2], attempts=count), now_ms + count, is_owed=True
            )

    rig.decide(put)
    found, is_cut = told(rig)
    assert [(name_of(one), one.state) for one in found] == [
        ("workers", "in_flight"),
        ("a", "retry"),
        ("b", "retry"),
    ]
    assert (found[1].retry_at, found[1].attempts, is_cut) == (time_text(now_ms + 5), 5, False)
    monkeypatch.setattr(deliveries, "ROWS_MAX", 1)
    assert told(rig)[1]
