"""Keys that a dead letter or somebody holds, in a group that orders."""

import logging
from collections.abc import Callable

import pytest

from server.codec import wire
from server.codec.packets import Ack
from server.delivery.shared import Group
from server.delivery.terms import Keeping
from shards import delivery_rows, keys
from shards.commit import Commit
from shards.delivery_rows import Name
from shards.errors import StoreFailed
from shards.record import decode
from shards.store import Table
from tests.model.order import check
from tests.server.delivery.test_order import TEXT, after, came, nack, send, worker
from tests.server.engine.test_decisions import spoil
from tests.support.rig import Peer, Rig

A, B = b"a", b"b"


def holder(rig: Rig) -> Peer:
    return worker(rig, on_dead="hold")


def held(rig: Rig) -> set[bytes]:
    order = rig.order(TEXT)
    check(order)
    return order.held


def letter(rig: Rig) -> Name:
    (row,) = delivery_rows.dead(rig.store)
    return row.name


def act(rig: Rig, how: str, after_ms: int = 0, *, pump: bool = True) -> None:
    """Something is done about the dead letter that there is, or else about the retry."""
    core, at_ms = rig.core, rig.clock.now_ms + after_ms

    def decide(commit: Commit) -> object:
        match how:
            case "let go":
                return core.holds.let_go(commit, rig.group(TEXT), A)
            case "expire":
                return core.dead_letter_queue.drop_expired(commit, core.writer.running_ms + 10**12)
            case "requeue":
                return core.dead_letters.requeue(commit, letter(rig), at_ms, lambda *_: True)
            case "drop":
                return core.dead_letters.drop(commit, letter(rig), lambda *_: True)
        (retry,) = [row.name for row in delivery_rows.waiting(rig.store)]
        if how == "later":
            return core.kept_retries.try_(commit, retry, at_ms, lambda *_: True)
        return (core.kept_retries.bury if how == "bury" else core.kept_retries.drop)(
            commit, retry, lambda *_: True
        )

    rig.decide(decide, pump=pump)


def dead(rig: Rig, peer: Peer) -> None:
    """`a1` is a dead letter and `a2` waits behind it."""
    send(rig, "a1", "a2", "b1")
    first = came(peer)
    nack(peer, first["a1"], "never")
    peer.ack(wire.PUBACK, first["b1"])
    assert held(rig) == {A}
    assert not came(peer)


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return holder(rig)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("how", ["drop", "let go", "expire"])
def test_a_dead_letter_holds_its_key_until_it_goes(
    rig: Rig, peer: Peer, how: str, is_killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dead(rig, peer)
    if is_killed:
        rig.kill()
        peer = holder(rig)
        assert (held(rig), came(peer)) == ({A}, {})
    with caplog.at_level(logging.INFO):
        act(rig, how)
    assert ("its dead letter is gone" in caplog.text) == (how != "let go")
    assert list(came(peer)) == ["a2"]
    assert not held(rig)
    if how == "let go":
        assert letter(rig)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_requeued_letter_is_the_head_again(rig: Rig, peer: Peer, is_killed: bool) -> None:
    dead(rig, peer)
    act(rig, "requeue")
    if is_killed:
        rig.disown()
        rig.kill()
        peer = holder(rig)
    rig.pass_ms(500)
    again = came(peer)
    assert list(again) == ["a1"]
    nack(peer, again["a1"], "never")
    assert held(rig) == {A}
    act(rig, "requeue")
    rig.pass_ms(500)
    assert after(peer, came(peer)["a1"]) == ["a2"]


def test_a_buried_retry_holds_its_key_too(rig: Rig, peer: Peer) -> None:
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "1h")
    act(rig, "bury")
    assert (held(rig), came(peer)) == ({A}, {})
    act(rig, "drop")
    assert list(came(peer)) == ["a2"]


@pytest.mark.parametrize("how", ["requeue", "later", "drop the retry"])
def test_what_is_written_counts_though_the_next_group_is_given_up(rig: Rig, peer: Peer, how: str) -> None:
    """A dead letter is requeued, a retry is tried later, or dropped; then a request spoils its group."""
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "never" if how == "requeue" else "1h")
    act(rig, how, 2_000, pump=False)
    rig.compose()
    rig.decide(spoil, pump=False)
    rig.compose()
    assert rig.core.writer.given_up == 1
    rig.pump()
    out = came(peer)
    if how != "drop the retry":
        assert (held(rig), out) == (set(), {})
        rig.pass_ms(2_500)
        out = came(peer)
        assert list(out) == ["a1"]
        peer.ack(wire.PUBACK, out["a1"])
        out = came(peer)
    assert list(out) == ["a2"]


@pytest.mark.parametrize("survivors", [0, 9])
@pytest.mark.parametrize("how", ["requeue", "bury", "drop the retry"])
def test_a_sync_that_fails_leaves_each_key_what_is_stored(rig: Rig, how: str, survivors: int) -> None:
    """Its rows may be there all the same: nobody waits for what is not."""
    peer = holder(rig)
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "never" if how == "requeue" else "2m")
    act(rig, how, 2_000, pump=False)
    rig.compose()
    rig.lose(survivors)
    rig.pump()
    is_dead = (how == "requeue") != bool(survivors)
    if how != "drop the retry":
        assert (len(held(rig)), len([*delivery_rows.dead(rig.store)])) == (is_dead, is_dead)
    rig.pass_ms(3_000)
    out = came(peer)
    if how == "drop the retry" and survivors:
        assert list(out) == ["a2"]
    elif how == "requeue" and survivors:
        assert list(out) == ["a1"]
        assert after(peer, out["a1"]) == ["a2"]
    else:
        assert not out
        if is_dead:
            act(rig, "drop")
        else:
            rig.pass_ms(120_000)
            peer.ack(wire.PUBACK, came(peer)["a1"])
        assert list(came(peer)) == ["a2"]


@pytest.mark.parametrize("on_dead", ["next", "hold"])
@pytest.mark.parametrize("how", ["bury", "skip"])
def test_a_letter_that_holds_nothing_holds_nothing_after_a_kill(rig: Rig, how: str, on_dead: str) -> None:
    """The batch with the letter takes it out of the key row. What is skipped never holds."""
    peer = worker(rig, on_dead=on_dead)
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "1h")
    group, skip = rig.group(TEXT), rig.core.replay.skip
    root = next(iter(rig.order(TEXT).heads))
    if how == "bury":
        act(rig, "bury", pump=False)
    else:
        rig.decide(lambda commit: skip(commit, group, root, "skipped", is_dead=True), pump=False)
    rig.compose()
    rig.crash(9)
    peer = worker(rig, on_dead=on_dead)
    is_held = (how, on_dead) == ("bury", "hold")
    assert (len(held(rig)), len([*delivery_rows.dead(rig.store)])) == (is_held, 1)
    assert list(came(peer)) == ([] if is_held else ["a2"])


def fail_stored(rig: Rig, peer: Peer, packet_id: int, wait: str, tries: int) -> None:
    """The last of so many tries of a1 fails. That is stored, though its sync fails."""
    if tries == 2:
        nack(peer, packet_id, "1s")
        rig.pass_ms(1_500)
        packet_id = came(peer)["a1"]
    rig.is_held = True
    nack(peer, packet_id, wait)
    rig.fail_sync()
    rig.is_held = False
    rig.store.survivors = 9
    assert rig.recover()


@pytest.mark.parametrize("tries", [1, 2])
@pytest.mark.parametrize("order", ["true", "false"])
def test_a_failure_that_is_stored_though_its_sync_failed_is_one_retry(order: str, tries: int) -> None:
    rig = Rig()
    peer = worker(rig, order=order)
    send(rig, "a1", "a2")
    out = came(peer)
    if order == "false":
        peer.ack(wire.PUBACK, out["a2"])
    fail_stored(rig, peer, out["a1"], "2s", tries)
    rig.pass_ms(1_100)
    assert (len([*delivery_rows.dead(rig.store)]), len([*delivery_rows.waiting(rig.store)])) == (0, 1)
    seen: list[str] = []
    for _ in range(5):
        rig.pass_ms(1_000)
        out = came(peer)
        seen += out
        for packet_id in out.values():
            peer.ack(wire.PUBACK, packet_id)
    seen += came(peer)
    assert seen == (["a1", "a2"] if order == "true" else ["a1"])


@pytest.mark.parametrize("on_dead", ["hold", "next"])
@pytest.mark.parametrize("tries", [1, 2])
def test_a_dead_letter_that_is_stored_though_its_sync_failed_is_the_only_one(
    rig: Rig, on_dead: str, tries: int
) -> None:
    """Its retry has gone with the batch, so nothing else has the message."""
    peer = worker(rig, on_dead=on_dead)
    send(rig, "a1", "a2")
    out = came(peer)
    fail_stored(rig, peer, out["a1"], "never", tries)
    rig.pass_ms(2_000)
    (row,) = delivery_rows.dead(rig.store)
    assert (decode(row.record).payload, row.reason) == (b"a1", "nacked with 0x80")
    if on_dead == "hold":
        assert (held(rig), came(peer)) == ({A}, {})
        act(rig, "requeue")
        rig.pass_ms(500)
        out = came(peer)
        assert list(out) == ["a1"]
        peer.ack(wire.PUBACK, out["a1"])
    assert list(came(peer)) == ["a2"]


def test_a_dead_letter_that_is_stored_though_its_sync_failed_may_be_dropped_at_once(rig: Rig) -> None:
    """Before its failure is decided again."""
    peer = worker(rig, on_dead="hold")
    send(rig, "a1", "a2")
    fail_stored(rig, peer, came(peer)["a1"], "never", 1)
    act(rig, "drop")
    rig.pass_ms(2_000)
    assert list(came(peer)) == ["a2"]
    assert not held(rig)


@pytest.mark.parametrize("survivors", [0, 9])
def test_a_group_that_ends_while_a_failure_is_not_written_leaves_a_letter(rig: Rig, survivors: int) -> None:
    """The failure of a retry is decided again when its place has ended."""
    peer = worker(rig, order="false")
    send(rig, "a1")
    nack(peer, came(peer)["a1"], "1s")
    rig.pass_ms(1_500)
    rig.is_held = True
    nack(peer, came(peer)["a1"], "1h")
    rig.fail_sync()
    rig.is_held = False
    rig.store.survivors = survivors
    assert rig.recover()
    group = rig.group(TEXT)
    rig.decide(lambda commit: rig.core.groups.disband(commit, group, is_dead=True))
    rig.pass_ms(3_000)
    assert [decode(row.record).payload for row in delivery_rows.dead(rig.store)] == [b"a1"]
    assert not list(delivery_rows.waiting(rig.store))


def test_an_ack_while_the_store_is_broken_frees_a_key_whose_failure_was_not_written(rig: Rig) -> None:
    """Its lease had lapsed, and the group with its retry could not be written: nothing is in flight."""
    peer = worker(rig, ack_timeout="2s")
    send(rig, "a1", "a2")
    out = came(peer)
    rig.pass_ms(1_900)
    rig.clock.now_ms += 900
    rig.core.settling.step()

    def broken() -> None:
        raise StoreFailed("planned")

    rig.stepper.compose(broken)
    assert rig.core.writer.broken is not None
    peer.send(Ack(wire.PUBACK, out["a1"]), pump=False)
    assert rig.recover()
    rig.pump()
    assert list(came(peer)) == ["a2"]


def test_a_retry_that_is_tried_later_is_the_head_of_its_key_after_a_kill(rig: Rig) -> None:
    peer = worker(rig)
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "1h")
    act(rig, "later", 10_000, pump=False)
    rig.write()
    rig.crash(pump=True)
    peer = worker(rig)
    assert not came(peer)
    rig.pass_ms(10_500)
    assert list(came(peer)) == ["a1"]


def test_a_letter_that_went_with_its_hold_unwritten_holds_nothing_after_a_start(rig: Rig, peer: Peer) -> None:
    dead(rig, peer)
    batch = rig.store.batch()
    batch.delete(Table.DELIVERIES, keys.state(*letter(rig)))
    rig.store.write(batch)
    rig.kill()
    peer = holder(rig)
    assert list(came(peer)) == ["a2"]
    assert not held(rig)


@pytest.mark.parametrize("is_killed", [False, True])
def test_somebody_holds_a_key_and_lets_it_go(rig: Rig, is_killed: bool) -> None:
    """What is out ends; its retry, and what follows, wait. Other keys go on."""
    peer = worker(rig)
    send(rig, "a1", "a2")
    first = came(peer)

    def hold(commit: Commit) -> object:
        return [rig.core.holds.hold(commit, rig.group(TEXT), key) for key in (A, B)]

    rig.decide(hold)
    nack(peer, first["a1"], "1s")
    send(rig, "b1", "c1")
    assert list(came(peer)) == ["c1"]
    rig.pass_ms(5_000)
    assert not came(peer)
    if is_killed:
        rig.kill()
        peer = worker(rig)
        rig.lapse()
        assert list(came(peer)) == ["c1"], "it was out"
    assert held(rig) == {A, B}

    def let_go(commit: Commit) -> object:
        return [rig.core.holds.let_go(commit, rig.group(TEXT), key) for key in (A, B)]

    rig.decide(let_go)
    rig.pass_ms(500)
    again = came(peer)
    assert sorted(again) == ["a1", "b1"]
    assert after(peer, again["a1"]) == ["a2"]
    assert not held(rig)


def test_a_held_key_moves_to_no_other_filter_of_the_name(rig: Rig) -> None:
    """Its group has no member, and a group with one would take the retry."""
    peer, other = worker(rig), rig.connected("other")
    send(rig, "a1", "b1")
    first = came(peer)
    assert other.subscribe("$share/workers/jobs/+", qos=1) == (1,)
    rig.decide(lambda commit: rig.core.holds.hold(commit, rig.group(TEXT), A), pump=False)
    for payload in ("a1", "b1"):
        nack(peer, first[payload], "1s")
    peer.unsubscribe(TEXT)
    rig.pass_ms(5_000)
    assert list(came(other)) == ["b1"]
    rig.decide(lambda commit: rig.core.holds.let_go(commit, rig.group(TEXT), A), pump=False)
    rig.pass_ms(5_000)
    assert list(came(other)) == ["a1"]


def test_a_letter_of_another_group_is_the_head_where_its_message_holds_the_key(rig: Rig) -> None:
    peer, other = holder(rig), rig.connected("other")
    assert other.subscribe("$share/second/jobs/#", qos=1) == (1,)
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "never")
    nack(other, came(other)["a1"], "never")
    (name,) = [row.name for row in delivery_rows.dead(rig.store) if row.group == "second"]
    letters, now_ms, to = rig.core.dead_letters, rig.clock.now_ms, rig.group(TEXT)
    rig.decide(lambda commit: letters.requeue(commit, name, now_ms, lambda *_: True, to), pump=False)
    rig.pass_ms(1_000)
    assert list(came(peer)) == ["a1"]


def test_a_late_ack_ends_the_hold(rig: Rig) -> None:
    peer = worker(rig, on_dead="hold", ack_timeout="2s", max_attempts="1")
    send(rig, "a1", "a2")
    first = came(peer)
    rig.pass_ms(3_000)
    assert (held(rig), came(peer)) == ({A}, {})
    peer.ack(wire.PUBACK, first["a1"])
    rig.pass_ms(100)
    assert list(came(peer)) == ["a2"]
    assert not held(rig)
    assert not list(delivery_rows.dead(rig.store))


def test_a_key_is_held_in_a_group_with_a_limit_too(rig: Rig) -> None:
    """What failed before waits with the others, when its next try is due."""
    peer = worker(rig, order="false", per_key_concurrency="2")
    send(rig, "a1", "a2", "a3")
    first = came(peer)
    assert sorted(first) == ["a1", "a2"]

    def hold(commit: Commit) -> object:
        return rig.core.holds.hold(commit, rig.group(TEXT), A)

    rig.decide(hold, pump=False)
    nack(peer, first["a1"], "1s")
    peer.ack(wire.PUBACK, first["a2"])
    rig.pass_ms(5_000)
    send(rig, "b1")
    assert (held(rig), list(came(peer))) == ({A}, ["b1"])
    rig.kill()
    peer = worker(rig, order="false", per_key_concurrency="2")
    rig.lapse()
    assert (held(rig), list(came(peer))) == ({A}, ["b1"]), "it was out"
    rig.decide(lambda commit: rig.core.holds.let_go(commit, rig.group(TEXT), A))
    rig.pass_ms(1_000)
    assert sorted(came(peer)) == ["a1", "a3"]
    assert not held(rig)


@pytest.mark.parametrize("how", ["hold", "let go", "let go of a letter"])
@pytest.mark.parametrize("what", ["lost", "stored", "given up"])
def test_a_hold_that_is_not_written_holds_nothing_and_a_release_lets_nothing_go(how: str, what: str) -> None:
    """Its caller is told that it failed, and asks again."""
    rig = Rig()
    peer = holder(rig)
    by_hand = how != "let go of a letter"

    def act(commit: Commit) -> object:
        return (rig.core.holds.hold if is_hold else rig.core.holds.let_go)(commit, rig.group(TEXT), A)

    if how == "let go":
        is_hold = True
        rig.decide(act, pump=False)
        send(rig, "a1", "a2")
    else:
        send(rig, "a1", "a2")
        nack(peer, came(peer)["a1"], "1s" if by_hand else "never")
    is_hold = how == "hold"
    assert not came(peer)
    told = rig.decide(act, pump=False)
    if what == "given up":
        rig.decide(spoil, pump=False)
        rig.compose()
    else:
        rig.compose()
        while rig.turn():
            assert not came(peer)
        rig.lose(9 * (what == "stored"))
    assert isinstance(told[0], StoreFailed)
    assert held(rig) == (set() if is_hold else {A})
    rig.pass_ms(3_000)
    if is_hold:
        again = came(peer)
        assert list(again) == ["a1"]
    else:
        assert not came(peer)
        rig.kill()
        peer = holder(rig)
        assert (held(rig), came(peer)) == ({A}, {})
        rig.decide(act)
        assert list(came(peer)) == ["a1" if by_hand else "a2"]
    assert not held(rig)


def test_what_a_release_lets_go_comes_when_it_is_durable(rig: Rig, peer: Peer) -> None:
    """A hold behind a release counts, and a release behind that."""
    dead(rig, peer)
    holds = rig.core.holds

    def ask(act: Callable[[Commit, Group, bytes], bool]) -> None:
        rig.decide(lambda commit: act(commit, rig.group(TEXT), A), pump=False)
        assert rig.compose()
        while rig.turn():
            assert not came(peer)

    ask(holds.let_go)
    ask(holds.hold)
    rig.settle()
    rig.settle()
    ask(holds.let_go)
    ask(holds.let_go)
    assert (held(rig), came(peer)) == ({A}, {})
    rig.pump()
    assert list(came(peer)) == ["a2"]
    rig.kill()
    holder(rig)
    assert not held(rig)


def test_a_retry_that_came_due_while_somebody_held_its_key_is_given_after_the_release(rig: Rig) -> None:
    """The group orders no more by then."""
    peer = worker(rig)
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "2s")
    group, core = rig.group(TEXT), rig.core
    rig.decide(lambda commit: core.holds.hold(commit, group, b"a"))
    terms = Keeping(group.keeping.expiry_s, concurrency=1)
    rig.decide(lambda commit: core.groups.make(commit, TEXT, keeping=terms))
    rig.pass_ms(5_000)
    assert not came(peer)
    rig.decide(lambda commit: core.holds.let_go(commit, group, b"a"))
    got: list[str] = []
    for _ in range(5):
        out = came(peer)
        got += out
        for packet_id in out.values():
            peer.ack(wire.PUBACK, packet_id)
        rig.pass_ms(2_000)
    assert sorted(got) == ["a1", "a2"]
