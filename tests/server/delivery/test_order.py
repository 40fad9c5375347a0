"""Groups that order by key: one message of a key at a time, in order, through failures, kills and members."""

from functools import partial

import pytest

from server.codec import wire
from server.codec.packets import Ack
from server.delivery import burials
from server.delivery.message import Message
from server.delivery.place import Place
from server.delivery.settling.lives import Outcome
from server.delivery.shared import Group
from server.delivery.terms import NEVER_S, Keeping
from server.delivery.write_barrier import Persisted
from server.http.backlog import lag_of
from server.http.timeline import Timeline
from shards import delivery_rows, keys
from shards.commit import Commit
from shards.order import HOUR_MS, clear_index, keys_name, rebuild_index, rows_under
from shards.record import decode
from shards.store import Table
from tests.model.order import check
from tests.support.build import OPENED
from tests.support.kept import kept_of
from tests.support.rig import Peer, Rig, asking, config, props
from timeline import key_order, unwritten
from timeline.key_rows import Changes
from timeline.position import END, START, Position, message_id
from timeline.session import Subscription

TEXT = "$share/workers/jobs/#"


def worker(rig: Rig, name: str = "w", **more: str) -> Peer:
    asked = {"order": "true", "backoff": "1s", "expiry": "never", **more}
    return rig.connected(name).subscribed(TEXT, qos=1, user_properties=asking(**asked))


def send(rig: Rig, *payloads: str, due: str = "0s") -> None:
    """Messages whose key is their first letter; `-`: none."""
    peer = rig.connected("publisher")
    for payload in payloads:
        users = (("deliver-in", due), ("ordering-key", payload[0].strip("-")))
        assert peer.publish1("jobs/x", payload, user_properties=users).reason == 0
    peer.disconnect()


def came(peer: Peer) -> dict[str, int]:
    """Payloads and packet ids."""
    return {packet.payload.decode(): packet.packet_id for packet in peer.publishes()}


def after(peer: Peer, packet_id: int) -> list[str]:
    """What comes when it is acked."""
    peer.ack(wire.PUBACK, packet_id)
    return list(came(peer))


def nack(peer: Peer, packet_id: int, retry_in: str = "2s") -> None:
    peer.send(Ack(wire.PUBACK, packet_id, 0x80, props(user_properties=(("retry-in", retry_in),))))


def addresses(rig: Rig) -> dict[bytes, tuple[Position, int]]:
    """Where each message stands, by its payload."""
    rows = rig.core.reader.read(START, END, None)
    return {decode(value).payload: (place, shard) for place, shard, value in rows}


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return worker(rig)


def test_of_a_key_one_is_out_and_the_next_comes_with_its_ack(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2", "b1", "a3", "b2")
    first = came(peer)
    assert list(first) == ["a1", "b1"]
    peer.ack(wire.PUBACK, first["a1"])
    second = came(peer)
    assert list(second) == ["a2"]
    assert after(peer, first["b1"]) == ["b2"]
    assert after(peer, second["a2"]) == ["a3"]


def test_a_publish_of_qos_0_that_is_not_stored_does_not_wait_for_its_key(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2")
    out = came(peer)
    plain = rig.connected("plain")
    plain.publish("jobs/x", "a3", qos=0, user_properties=(("ordering-key", "a"),))
    rig.pump()
    assert list(came(peer)) == ["a3"]
    assert drain(rig, peer, out) == ["a1", "a2"]


def test_what_follows_waits_behind_a_retry(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2", "b1")
    first = came(peer)
    nack(peer, first["a1"])
    peer.ack(wire.PUBACK, first["b1"])
    assert not came(peer)
    rig.pass_ms(2_500)
    again = came(peer)
    assert list(again) == ["a1"]
    assert after(peer, again["a1"]) == ["a2"]


def test_a_replay_begins_again_in_order(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2", "b1", "b2")
    first = came(peer)
    nack(peer, first["a1"])
    assert after(peer, first["b1"]) == ["b2"]
    rig.rewind(TEXT)
    out = came(peer)
    assert list(out) == ["a1"], "b2 is still out"
    peer.ack(wire.PUBACK, out["a1"])
    out = came(peer)
    assert list(out) == ["a2"]
    peer.ack(wire.PUBACK, out["a2"])
    rig.pass_ms(10_000)
    assert not came(peer), "the retry has ended"


def test_a_second_replay_ends_the_retry_of_what_was_in_flight_at_the_first(rig: Rig, peer: Peer) -> None:
    """The group has read nothing between them, so that it stands where it stood."""
    send(rig, "a1", "a2")
    out = came(peer)
    rig.pause(TEXT)
    rig.rewind(TEXT)
    nack(peer, out["a1"], "1h")
    rig.rewind(TEXT)
    rig.pause(TEXT, is_paused=False)
    assert drain(rig, peer) == ["a1", "a2"]


def test_a_retry_that_is_dropped_or_tried_at_once_lets_its_key_go_on(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2", "b1", "b2")
    first = came(peer)
    nack(peer, first["a1"], "1h")
    nack(peer, first["b1"], "1h")
    steering, now_ms = rig.core.kept_retries, rig.clock.now_ms
    (a, b) = [row.name for row in delivery_rows.waiting(rig.store)]
    rig.decide(lambda commit: steering.drop(commit, a, lambda *_: True))
    assert list(came(peer)) == ["a2"]
    rig.decide(lambda commit: steering.try_(commit, b, now_ms, lambda *_: True))
    rig.pass_ms(500)
    again = came(peer)
    assert list(again) == ["b1"]
    assert after(peer, again["b1"]) == ["b2"]


def test_what_waits_for_its_key_is_undone_and_holds_its_slice(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2", "a3")
    came(peer)
    group = rig.group(TEXT)
    rows = [(place, decode(value)) for place, _, value in rig.core.reader.read(START, END, None)]
    (second,) = [place for place, record in rows if record.payload == b"a2"]
    assert rig.core.floor.needed <= second
    for place, record in rows:
        told, _ = rig.core.deliveries.of(message_id(place, 0, 0), place, record, lambda _: True)
        assert [one.state for one in told] == ["in_flight" if record.payload == b"a1" else "waiting"]
    timeline = Timeline(rig.core.opened, rig.core.writer.journal, rig.core.owners.why_not, node=0)
    assert lag_of(group, timeline, rig.core.router, 100).lag_messages == 2


@pytest.mark.parametrize("how", ["skip", "end"])
def test_what_waits_for_its_key_becomes_dead_letters(rig: Rig, peer: Peer, how: str) -> None:
    send(rig, *[f"a{n}" for n in range(250)], "b0", "b1")
    first = came(peer)
    group = rig.group(TEXT)
    if how == "skip":
        send(rig, "a250")

        def decide(commit: Commit) -> object:
            return rig.core.replay.skip(commit, group, END, "skipped", is_dead=True)

    else:

        def decide(commit: Commit) -> object:
            return rig.core.groups.disband(commit, group)

    rig.pause(TEXT)
    send(rig, "c0")
    rig.decide(decide, pump=False)
    rig.pass_ms(2_000)
    dead = sorted(decode(row.record).payload.decode() for row in delivery_rows.dead(rig.store))
    sent = [f"a{n}" for n in range(251 if how == "skip" else 250)] + ["b0", "b1", "c0"]
    assert dead == sorted({*sent} - ({"a0", "b0"} if how == "skip" else set()))
    assert not list(rig.store.scan(Table.ORDER, b"\3", b"\4"))
    if how == "skip":
        rig.pause(TEXT, is_paused=False, pump=False)
        peer.ack(wire.PUBACK, first["a0"])
        send(rig, "a251")
        assert list(came(peer)) == ["a251"]
    else:
        assert not list(rig.store.scan(Table.ORDER, b"", b"\2")), "its index goes with the slices"


@pytest.mark.parametrize("fair", ["false", "true"])
def test_retries_go_on_while_the_reader_stands_at_the_bound(fair: str) -> None:
    """The keys in trouble keep their rows, as a message of each waits behind; so the reader has no turn."""
    rig = Rig(config(ordering_keys=4))
    peer, first, others = worker(rig, fair=fair), ["a1", "a2", "b1", "b2"], ["c1", "d1"]
    send(rig, *first)
    for turn in range(4):
        out = came(peer)
        assert sorted(out) == ["a1", "b1"]
        for packet_id in out.values():
            nack(peer, packet_id, "1s")
        send(rig, *others[: 2 * (turn == 0)])
        rig.pass_ms(1_500)
        assert rig.order(TEXT).room.is_standing
    assert sorted(drain(rig, peer, came(peer))) == [*first, *others]


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_skip_gives_up_what_has_just_been_passed_over(rig: Rig, peer: Peer, is_dead: bool) -> None:
    """No cursor has been written since."""
    rig.pass_ms(1_000)
    send(rig, "z0", *[f"a{n}" for n in range(10)], "b0", "b1")
    came(peer)
    group, core = rig.core.groups.get(TEXT), rig.core
    assert group is not None
    assert not list(rig.store.scan(Table.ORDER, b"\2", b"\3"))
    rig.decide(lambda commit: core.replay.skip(commit, group, END, "skipped", is_dead=is_dead), pump=False)
    rig.pass_ms(1_000)
    dead = sorted(decode(row.record).payload.decode() for row in delivery_rows.dead(rig.store))
    assert dead == ([*[f"a{n}" for n in range(1, 10)], "b1"] if is_dead else [])
    assert core.burials.dropped["skipped"] == 10 * (not is_dead)


def test_a_head_that_is_dropped_does_not_wait_for_another_message_of_its_key(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2", "a3")
    nack(peer, came(peer)["a1"], "never")
    nack(peer, came(peer)["a2"], "1h")
    (letter,), (head,) = delivery_rows.dead(rig.store), delivery_rows.waiting(rig.store)
    core, later_ms = rig.core, rig.clock.now_ms + HOUR_MS

    def decide(commit: Commit) -> object:
        """In one batch."""
        core.kept_retries.drop(commit, head.name, lambda *_: True)
        return core.dead_letters.requeue(commit, letter.name, later_ms, lambda *_: True)

    rig.decide(decide)
    assert list(came(peer)) == ["a3"]


@pytest.mark.parametrize("is_set_back", [False, True])
def test_a_letter_of_another_place_comes_to_one_that_has_not_read_so_far(
    rig: Rig, peer: Peer, is_set_back: bool
) -> None:
    """Who orders never reads it itself, as it has not asked for the topic."""
    other = "$share/other/others/#"
    asked = asking(order="true", expiry="never")
    rig.connected("o").subscribed(other, qos=1, user_properties=asked).drop()
    send(rig, "a1")
    nack(peer, came(peer)["a1"], "never")
    ((name, now_ms),) = [(row.name, rig.clock.now_ms) for row in delivery_rows.dead(rig.store)]
    requeue, to = rig.core.dead_letters.requeue, rig.group(other)
    assert rig.decide(lambda commit: requeue(commit, name, now_ms, lambda *_: True, to)) == [True]
    peer = rig.connected("o").subscribed(other, qos=1, user_properties=asked)
    if is_set_back:
        rig.rewind(other)
    rig.pass_ms(1_000)
    assert list(came(peer)) == ["a1"]


def test_a_head_that_is_moved_and_dropped_at_once_lets_its_key_go_on(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "1h")
    (row,) = delivery_rows.waiting(rig.store)
    core, later_ms = rig.core, rig.clock.now_ms + HOUR_MS // 2

    def decide(commit: Commit) -> object:
        core.kept_retries.try_(commit, row.name, later_ms, lambda *_: True)
        return core.kept_retries.drop(commit, row.name, lambda *_: True)

    rig.decide(decide)
    assert list(came(peer)) == ["a2"]


def drain(rig: Rig, peer: Peer, out: dict[str, int] | None = None) -> list[str]:
    """Ack one message at a time; the payloads in the order in which they came."""
    out = came(peer) if out is None else out
    order = list(out)
    while out:
        peer.ack(wire.PUBACK, out.pop(next(iter(out))))
        rig.pump()
        fresh = came(peer)
        order += fresh
        out |= fresh
    return order


def test_keys_that_are_behind_and_the_reader_take_turns(rig: Rig) -> None:
    peer = rig.connected("w", receive_maximum=2)
    said = (("order", "true"), ("expiry", "never"))
    assert peer.subscribe(TEXT, qos=1, user_properties=said) == (1,)
    send(rig, *[f"a{n}" for n in range(30)], *[f"{key}0" for key in "bcdefghijklmnopqrst"])
    order = drain(rig, peer)
    assert len(order) == 49
    assert order.index("t0") < order.index("a25"), "the reader is not starved"
    assert order.index("a3") < order.index("t0"), "nor is the key"


def test_a_skip_ends_what_waits_for_its_next_try(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2", "b1")
    first = came(peer)
    nack(peer, first["a1"], "1h")
    group, to = rig.group(TEXT), rig.core.horizon.position
    for is_dead in (True, False):
        decide = partial(rig.core.replay.skip, subscriber=group, to=to, reason="skipped", is_dead=is_dead)
        rig.decide(decide)
    rig.pass_ms(1_000)
    dead = {decode(row.record).payload: row.reason for row in delivery_rows.dead(rig.store)}
    assert dead == {b"a1": "skipped", b"a2": "skipped"}
    assert not list(delivery_rows.waiting(rig.store))
    send(rig, "a3", "b2")
    assert list(came(peer)) == ["a3"]


def test_a_skip_of_many_keys_goes_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burials, "SKIPPED_KEYS", 2)
    rig = Rig()
    worker(rig)
    send(rig, *[f"{key}{n}" for n in range(2) for key in "abcde"])
    group, to = rig.group(TEXT), rig.core.horizon.position
    order = rig.order(TEXT)
    steps = 0
    while order.has_upto(to):
        rig.decide(lambda commit: rig.core.replay.skip(commit, group, to, "skipped", is_dead=True))
        steps += 1
    rig.pass_ms(1_000)
    assert steps == 3
    assert sorted(decode(row.record).payload for row in delivery_rows.dead(rig.store)) == [
        b"%c1" % key for key in b"abcde"
    ]


def test_a_group_that_orders_no_more_lets_what_is_behind_go_also_after_a_start(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2", "a3")
    out = came(peer)
    group = rig.group(TEXT)
    rig.make(TEXT, terms=group.terms, keeping=Keeping(NEVER_S, order=False))
    rig.pass_ms(1_000)
    rig.disown()
    rig.restart()
    peer = rig.connected("w").subscribed(TEXT, qos=1)
    group = rig.group(TEXT)
    assert not group.keeping.order
    out = came(peer)
    assert list(out) == ["a1", "a2", "a3"], "what was behind goes"
    assert drain(rig, peer, out) == ["a1", "a2", "a3"]
    rig.pass_ms(1_000)
    send(rig, "b1", "b2")
    assert list(came(peer)) == ["b1", "b2"]
    assert not group.session.order.is_on
    rig.pass_ms(1_000)
    rig.restart()
    assert not rig.group(TEXT).session.order.is_on
    assert not list(rig.store.scan(Table.ORDER, b"\1", b"\2"))


def terms(rig: Rig, *, order: bool) -> None:
    group = rig.group(TEXT)
    group.agree(group.terms, group.keeping._replace(order=order))
    rig.core.groups.read_on(group)
    rig.pump()


def test_what_is_out_when_the_order_ends_is_no_head_when_it_begins_again(rig: Rig, peer: Peer) -> None:
    send(rig, "a1")
    out = came(peer)
    terms(rig, order=False)
    send(rig, "b1")
    terms(rig, order=True)
    send(rig, "a2", "a3")
    out |= came(peer)
    assert list(out) == ["a1", "b1", "a2"]
    peer.ack(wire.PUBACK, out["a1"])
    assert not came(peer), "a2 is out"
    assert after(peer, out["a2"]) == ["a3"]


@pytest.mark.parametrize("is_held", [False, True])
def test_when_the_order_ends_nothing_waits_for_a_retry(rig: Rig, peer: Peer, *, is_held: bool) -> None:
    send(rig, "a1", "a2", "a3")
    nack(peer, came(peer)["a1"], "2m")
    group = rig.group(TEXT)
    if is_held:
        rig.decide(lambda commit: rig.core.holds.hold(commit, group, b"a"))
    terms(rig, order=False)
    if is_held:
        assert not came(peer)
        rig.decide(lambda commit: rig.core.holds.let_go(commit, group, b"a"))
    out = came(peer)
    assert list(out) == ["a2", "a3"]
    for packet_id in out.values():
        peer.ack(wire.PUBACK, packet_id)
    rig.pass_ms(130_000)
    assert list(came(peer)) == ["a1"]


def test_a_message_that_waits_for_its_key_may_be_acked_late(rig: Rig, peer: Peer) -> None:
    """A kill has taken the end of the message before it from the group's cursor."""
    send(rig, "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8")
    out, group = came(peer), rig.group(TEXT)
    rows = addresses(rig)
    told: list[Outcome] = []
    for payload in (b"a2", b"a7", b"a7"):
        rig.core.events.finish(group, *rows[payload], told.append)
        rig.pump()
    assert told == [Outcome.DONE, Outcome.DONE, Outcome.GONE]
    rig.disown()
    rig.kill()
    peer = worker(rig)
    assert drain(rig, peer, came(peer)) == ["a1", "a3", "a4", "a5", "a6", "a8"]
    assert out


def test_a_message_acked_late_behind_its_key_is_done_after_a_replay_and_a_kill(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2", "a3", "b1")
    assert len(came(peer)) == 2
    group = rig.group(TEXT)
    rows = addresses(rig)
    to, _ = rows[b"a3"]
    rig.core.events.finish(group, *rows[b"a2"], lambda _: None)
    rig.pump()
    rig.disown()
    rig.rewind(TEXT, to, pump=False)
    rig.write()
    rig.crash()
    peer = worker(rig)
    assert drain(rig, peer) == ["a1", "b1", "a3"]


def test_a_retry_that_a_late_ack_ended_holds_its_key_until_that_is_durable(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "1h")
    group = rig.group(TEXT)
    rows = addresses(rig)
    told: list[Outcome] = []
    rig.core.events.finish(group, *rows[b"a1"], told.append)
    rig.pump()
    assert told == [Outcome.DONE]
    assert list(came(peer)) == ["a2"]


@pytest.mark.parametrize("how", ["failed", "acked late"])
def test_a_lost_batch_leaves_each_key_its_head(rig: Rig, peer: Peer, how: str) -> None:
    send(rig, "a1", "a2")
    out, group = came(peer), rig.group(TEXT)
    if how == "acked late":
        nack(peer, out["a1"], "1h")
        rig.core.events.finish(group, *addresses(rig)[b"a1"], lambda _: None)
    else:
        peer.send(Ack(wire.PUBACK, out["a1"], 0x80, props(user_properties=(("retry-in", "5s"),))), pump=False)
    for _ in range(3):
        rig.compose()
    rig.lose()
    order = rig.order(TEXT)
    check(order)
    assert order.row(b"a").root or b"a" in order.out, "a2 waits"
    rig.pump()
    rig.pass_ms(2_000)
    assert list(came(peer)) == (["a2"] if how == "acked late" else [])
    rig.pass_ms(5_000)
    if how == "failed":
        assert drain(rig, peer, came(peer)) == ["a1", "a2"]


@pytest.mark.parametrize("retry_in", ["0s", "5s"])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_retry_that_survives_its_failed_sync_is_the_only_one(retry_in: str, is_ordered: bool) -> None:
    rig = Rig()
    peer = worker(rig) if is_ordered else worker(rig, order="false")
    send(rig, "a1", "a2")
    out, seen = came(peer), list[str]()
    said = props(user_properties=(("retry-in", retry_in),))
    peer.send(Ack(wire.PUBACK, out.pop("a1"), 0x80, said), pump=False)
    for _ in range(3):
        rig.compose()
    rig.lose(9)
    for _ in range(10):
        for payload, packet_id in out.items():
            seen.append(payload)
            peer.ack(wire.PUBACK, packet_id)
        rig.pass_ms(1_000)
        out = came(peer)
    assert (seen, list(delivery_rows.waiting(rig.store))) == (
        ["a1", "a2"] if is_ordered else ["a2", "a1"],
        [],
    )


def test_groups_that_stand_still_go_on_when_another_one_makes_room() -> None:
    rig = Rig(config(ordering_keys=4))
    peer, other = worker(rig), rig.connected("v")
    said = (("order", "true"), ("backoff", "1h"), ("expiry", "never"))
    other.subscribe("$share/others/jobs/#", qos=1, user_properties=said)
    send(rig, "a1", "b1")
    first, second = came(peer), came(other)
    for packet_id in second.values():
        nack(other, packet_id, "1h")
    nack(peer, first["a1"], "1h")
    send(rig, "c1")
    assert not came(peer), "three keys are in trouble"
    order = rig.order(TEXT)
    assert order.room.is_standing
    group = rig.group("$share/others/jobs/#")
    rig.decide(lambda commit: rig.core.groups.disband(commit, group))
    rig.pass_ms(100)
    assert list(came(peer)) == ["c1"]
    assert not order.room.is_standing


@pytest.mark.long
@OPENED
def test_a_reader_waits_until_its_rows_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwritten, "UNWRITTEN_MAX", 10)
    rig = Rig()
    peer = worker(rig)
    order = rig.order(TEXT)
    most, take = 0, order.take

    def counted() -> Changes:
        nonlocal most
        changes = take()
        most = max(most, len(changes.keys) + sum(map(len, changes.index.values())))
        return changes

    monkeypatch.setattr(order, "take", counted)
    send(rig, *[f"a{n}" for n in range(300)], "b0")
    rig.pass_ms(5_000)
    out = came(peer)
    assert list(out) == ["a0", "b0"]
    assert most <= 12
    assert drain(rig, peer, out) == ["a0", "b0", *[f"a{n}" for n in range(1, 300)]]


@OPENED
def test_a_reader_waits_a_while_if_its_rows_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    peer = worker(rig)
    asked: list[Place] = []

    def refuse(one: Place, done: Persisted) -> None:
        asked.append(one)
        done(-1)

    with monkeypatch.context() as patch:
        patch.setattr(unwritten, "UNWRITTEN_MAX", 0)
        patch.setattr(rig.core.cursors, "persist", refuse)
        send(rig, "a0")
        rig.pump()
        assert not came(peer)
        assert 1 <= len(asked) <= 3
        rig.pass_ms(2_100)
        assert 2 <= len(asked) <= 6
    rig.pass_ms(1_100)
    assert list(came(peer)) == ["a0"]


def test_a_group_that_orders_is_stored_whatever_its_expiry(rig: Rig) -> None:
    worker(rig, expiry="0s")
    assert rig.group(TEXT).session.is_persistent
    assert rig.group(TEXT).session.expiry_s is not True, "a number"
    rig.pass_ms(500)
    whose = rig.group(TEXT).whose
    assert rig.store.get(Table.ORDER, b"\0" + whose) == b"", "and fenced off from older versions"


def test_the_index_is_made_again_from_the_key_rows(rig: Rig, peer: Peer) -> None:
    send(rig, *[f"a{n}" for n in range(20)], *[f"b{n}" for n in range(3)], "-1")
    out = came(peer)
    rig.core.cursors.persist(rig.group(TEXT), lambda _: None)
    rig.pump()
    index = list(rig.store.scan(Table.ORDER, b"\2", b"\3"))
    assert len(index) == 18 + 1, "the first one is in the key row"
    batch = rig.store.batch()
    batch.delete_range(Table.ORDER, b"\2", b"\3")
    rig.store.write(batch)
    assert rebuild_index(rig.store, rig.core.reader) == 19 + 2
    assert {*rig.store.scan(Table.ORDER, b"\2", b"\3")} > {*index}
    assert out
    rig.disown()
    rig.kill()
    peer = worker(rig)
    order = drain(rig, peer)
    assert [one for one in order if one[0] == "a"] == [f"a{n}" for n in range(20)]


def test_the_index_of_hours_that_have_gone_goes_with_their_slices(rig: Rig, peer: Peer) -> None:
    send(rig, "a0", "a1", "a2")
    rig.core.cursors.persist(rig.group(TEXT), lambda _: None)
    drain(rig, peer)
    assert list(rig.store.scan(Table.ORDER, b"\2", b"\3"))
    floor = Position(rig.core.horizon.position + (HOUR_MS << 48))
    rig.decide(lambda commit: clear_index(commit, floor))
    assert not list(rig.store.scan(Table.ORDER, b"\2", b"\3"))


def test_a_key_that_has_been_behind_for_days_is_looked_up_hour_by_hour(rig: Rig, peer: Peer) -> None:
    send(rig, "a0", "a1")
    out = came(peer)
    for n in range(2, 12):
        rig.jump(70 * HOUR_MS)
        send(rig, f"a{n}")
    assert drain(rig, peer, out) == [f"a{n}" for n in range(12)]


def test_a_backlog_goes_out_in_runs_and_keeps_the_order_of_each_key(rig: Rig) -> None:
    worker(rig).disconnect()
    keys = [f"{chr(97 + n % 20)}" for n in range(200)]
    send(rig, *[f"{key}{n}" for n, key in enumerate(keys)])
    peers = [rig.connected(f"w{n}", receive_maximum=20).subscribed(TEXT, qos=1) for n in range(3)]
    order: list[str] = []
    out: dict[str, tuple[Peer, int]] = {}
    while len(order) < 200:
        for peer in peers:
            for payload, packet_id in came(peer).items():
                assert not [one for one in out if one[0] == payload[0]], "one of a key is out"
                out[payload] = peer, packet_id
                order.append(payload)
        for payload in list(out):
            peer, packet_id = out.pop(payload)
            peer.ack(wire.PUBACK, packet_id)
    for key in set(keys):
        theirs = [int(one[1:]) for one in order if one[0] == key]
        assert theirs == sorted(theirs)


@pytest.mark.long
@OPENED
def test_a_dump_is_passed_over_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while there is no room, so that what is behind it is soon met."""
    offered: list[bytes] = []
    offer = Group.offer

    def counted(self: Group, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:
        offered.append(message.payload)
        return offer(self, message, subscriptions)

    monkeypatch.setattr(Group, "offer", counted)
    for rule in ("order", "fair"):
        rig = Rig()
        peer = rig.connected("w", receive_maximum=2)
        assert peer.subscribe(TEXT, qos=1, user_properties=((rule, "true"), ("expiry", "never"))) == (1,)
        offered.clear()
        send(rig, *[f"a{n}" for n in range(400)], "b1", due="60s")
        rig.pass_ms(60_500)
        assert set(came(peer)) == {"a0", "b1"}
        assert len(offered) < 60


@pytest.mark.parametrize("is_dead", [True, False])
@pytest.mark.parametrize("is_behind", [True, False])
def test_a_skip_ends_what_waited_before_a_replay(rig: Rig, is_dead: bool, is_behind: bool) -> None:
    """Its retry is no head since, so no key would wait for it."""
    peer = worker(rig)
    send(rig, "a1", "a2", "a3", "b1")
    out = came(peer)
    nack(peer, out["a1"], "5s")
    if is_behind:
        rig.decide(lambda commit: rig.core.holds.hold(commit, rig.group(TEXT), b"a"))
    else:
        rig.pause(TEXT)
    rig.rewind(TEXT)
    to = rig.core.horizon.position
    rig.decide(lambda commit: rig.core.replay.skip(commit, rig.group(TEXT), to, "skipped", is_dead=is_dead))
    rig.pass_ms(1_000)
    dead = sorted(decode(row.record).payload for row in delivery_rows.dead(rig.store))
    assert dead == ([b"a1", b"a2", b"a3"] if is_dead else [])
    assert not list(delivery_rows.waiting(rig.store))
    rig.decide(lambda commit: rig.core.holds.let_go(commit, rig.group(TEXT), b"a"))
    rig.pause(TEXT, is_paused=False)
    rig.pass_ms(6_000)
    assert not came(peer)


@pytest.mark.parametrize("survivors", range(3))
@pytest.mark.parametrize("steps", range(0, 12, 3))
def test_an_order_that_ends_and_begins_again_over_kills(rig: Rig, steps: int, survivors: int) -> None:
    """Killed at any point while it ends, and while it begins: nothing is lost, what is done does not come."""
    peer = worker(rig)
    send(rig, "a1", "a2", "a3", "b1", "b2")
    nack(peer, came(peer)["b1"], "2m")

    def change(is_ordered: bool) -> None:
        terms, keeping = rig.group(TEXT).terms, Keeping(NEVER_S, order=is_ordered)
        rig.decide(lambda commit: rig.core.groups.make(commit, TEXT, terms, keeping), pump=False)

    def kill(steps: int) -> list[str]:
        """What comes after it, acked one by one."""
        rig.disown()
        rig.take_steps(steps)
        rig.crash(survivors)
        return drain(rig, joined(rig))

    change(is_ordered=False)
    given = kill(steps)
    change(is_ordered=False)
    given += kill(40)
    assert sorted({*given}) == ["a1", "a2", "a3", "b2"]
    rig.pass_ms(1_000)
    change(is_ordered=True)
    rig.pump()
    send(rig, "c1", "c2", "c3", "b3")
    given = kill(steps)
    assert [one for one in given if one[0] == "c"] == ["c1", "c2", "c3"]
    assert {*given} <= {"c1", "c2", "c3", "b3"}
    rig.crash()
    rig.pass_ms(130_000)
    assert "b1" in drain(rig, joined(rig))


def joined(rig: Rig) -> Peer:
    """A worker, whatever the terms are."""
    return rig.connected("w").subscribed(TEXT, qos=1)


def set_back(rig: Rig, monkeypatch: pytest.MonkeyPatch, behind: str) -> None:
    """The group reads again from behind a message; none of its keys is looked at but for a reason."""
    monkeypatch.setattr(key_order, "LOOKED_MAX", 0)
    rows = rig.core.reader.read(START, END, None)
    to = next((place for place, _, value in rows if decode(value).payload.decode() == behind), START)
    rig.rewind(TEXT, to)


@OPENED
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("behind", ["", "a1"])
def test_what_a_replay_gives_again_comes_once_after_a_kill_in_the_middle(
    rig: Rig, peer: Peer, monkeypatch: pytest.MonkeyPatch, behind: str, *, is_killed: bool
) -> None:
    """The row of its key still says what it said before the replay."""
    send(rig, "a1", "a2", "a3")
    nack(peer, came(peer)["a1"])
    rig.pause(TEXT)
    set_back(rig, monkeypatch, behind)
    if is_killed:
        rig.crash()
        peer = worker(rig)
    rig.pause(TEXT, is_paused=False)
    at_once = drain(rig, peer)
    rig.pass_ms(2_500)
    later = drain(rig, peer)
    assert (later if behind else at_once) == ["a1", "a2", "a3"]
    assert not (at_once if behind else later)


@OPENED
def test_what_fails_during_a_replay_that_passes_over_it_holds_its_key_after_a_kill(
    rig: Rig, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands behind the read position, and does not come again by that."""
    send(rig, "a1", "a2")
    out = came(peer)
    rig.pause(TEXT)
    set_back(rig, monkeypatch, "")
    nack(peer, out["a1"])
    rig.crash()
    peer = worker(rig)
    rig.pause(TEXT, is_paused=False)
    assert not came(peer)
    rig.pass_ms(2_500)
    assert drain(rig, peer) == ["a1", "a2"]


@OPENED
@pytest.mark.parametrize("is_skipped", [True, False])
@pytest.mark.parametrize("is_dead", [True, False])
def test_what_a_replay_gives_again_is_given_up_once(
    rig: Rig, peer: Peer, monkeypatch: pytest.MonkeyPatch, *, is_skipped: bool, is_dead: bool
) -> None:
    """By the end of the group, which does not wait for all keys, or by a skip, which does."""
    send(rig, "a1", "a2", "a3", "b1", "b2")
    out = came(peer)
    nack(peer, out["a1"], "1h")
    nack(peer, out["b1"], "1h")
    group = rig.group(TEXT)
    rig.pause(TEXT)
    set_back(rig, monkeypatch, "a1")
    assert rig.order(TEXT).past
    if is_skipped:
        monkeypatch.setattr(key_order, "LOOKED_MAX", 1)
        to = rig.core.horizon.position
        for _ in range(4):
            rig.decide(lambda commit: rig.core.replay.skip(commit, group, to, "skipped", is_dead=is_dead))
        assert not rig.order(TEXT).has_upto(to)
    else:
        rig.decide(lambda commit: rig.core.groups.disband(commit, group, is_dead=is_dead))
    rig.pass_ms(1_000)
    dead = sorted(decode(row.record).payload.decode() for row in delivery_rows.dead(rig.store))
    assert dead == (["a1", "a2", "a3", "b1", "b2"] if is_dead else [])
    assert sum(rig.core.burials.dropped.values()) == (0 if is_dead else 5 - is_skipped)


def test_what_is_out_again_before_a_skip_has_come_to_it_is_not_given_up(
    rig: Rig, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits as its group is set back and skips, and is given when it is due."""
    send(rig, "b1", "a1")
    nack(peer, came(peer)["a1"], "1s")
    rig.pass_ms(1_500)
    nack(peer, came(peer)["a1"], "2s")
    group, horizon, burying = rig.group(TEXT), rig.core.horizon, rig.core.burying.errand
    rig.pause(TEXT)
    rig.decide(lambda commit: rig.core.replay.rewind(commit, group, START))
    monkeypatch.setattr(burying, "step", lambda: None)
    skip = partial(
        rig.core.replay.skip, subscriber=group, to=horizon.position, reason="skipped", is_dead=True
    )
    while rig.decide(skip)[0]:
        pass
    rig.pause(TEXT, is_paused=False)
    rig.pass_ms(3_000)
    out = came(peer)
    monkeypatch.undo()
    rig.pass_ms(1_000)
    assert (list(out), list(delivery_rows.dead(rig.store)), rig.core.burials.active) == (["a1"], [], {})
    peer.ack(wire.PUBACK, out["a1"])
    rig.pass_ms(1_000)
    assert [one.root for one in kept_of(rig.store, rig.core.groups.get(TEXT).whose)]
    assert not list(rig.store.scan(Table.DELIVERIES, keys.RECORD, keys.KEPT))


@OPENED
def test_all_keys_are_looked_at_after_a_replay_though_nothing_happens(
    rig: Rig, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, "a1", "b1", "c1", "d1")
    for packet_id in came(peer).values():
        nack(peer, packet_id, "1h")
    group = rig.group(TEXT)
    rig.pause(TEXT)
    set_back(rig, monkeypatch, "b1")
    monkeypatch.setattr(key_order, "LOOKED_MAX", 1)
    for _ in range(6):
        rig.pass_ms(250)
    assert not rig.order(TEXT).past
    assert [key for key, _ in rows_under(rig.store, keys_name(group.whose))] == [b"a", b"b"]
