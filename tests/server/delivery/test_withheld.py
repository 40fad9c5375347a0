"""What its sender may not send waits, whatever the cause, and goes out when the right is back."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from server.codec import wire
from server.delivery import beside
from server.delivery.settling import releasing
from shards import keys
from shards import withheld as withheld_module
from shards.commit import Commit
from shards.delivery_rows import dead
from shards.draft import Control, Outcome
from shards.record import decode, id_at, is_moved, is_stub
from shards.store import Table
from tests.support.keyed import Keyed
from tests.support.planted import Fault, finds
from tests.support.rig import Peer, asking
from tests.support.soak import SOAK
from timeline.position import END, START

KEPT_MS = 300_000


@pytest.fixture
def rig(tmp_path: Path) -> Keyed:
    rig = Keyed(tmp_path, kept_behind_ms=KEPT_MS)
    rig.add("alice", publish=["#"])
    return rig


def remove(rig: Keyed) -> str:
    lines = rig.file.remove("alice")
    rig.read_keys()
    return lines


def put_back(rig: Keyed, lines: str) -> None:
    rig.file.put_back("alice", lines)
    rig.read_keys()
    rig.pump()


CAUSES = {
    "absent": "key 'alice' does not exist",
    "revoked": "key 'alice' is revoked",
    "rule": "key 'alice' may not publish to 'm'",
}


def lose(rig: Keyed, cause: str) -> Callable[[], None]:
    """Alice loses her right to send to `m`; returns what gives it back."""
    if cause == "absent":
        return partial(put_back, rig, remove(rig))
    if cause == "revoked":
        lines = remove(rig)
        rig.file.put_back("alice", lines + "revoked = 2026-11-22T00:00:00Z\n")
        rig.read_keys()

        def add() -> None:
            rig.file.remove("alice")
            put_back(rig, lines)

        return add
    rig.change("alice", '"#"', '"x"')

    def widen() -> None:
        rig.change("alice", '"x"', '"#"')
        rig.pump()

    return widen


def send(rig: Keyed, texts: str, topic: str = "m", delay_s: int = 60, **options: bool) -> None:
    """Each letter is a message; small ones are alice's, large ones of ops."""
    for number, text in enumerate(texts):
        peer = rig.come("alice" if text.islower() else "ops")
        where = f"$delayed/{delay_s + number}/{topic}" if delay_s else topic
        peer.publish1(where, text, **options)
        peer.disconnect()


def reader(rig: Keyed, text: str = "m", client_id: str = "reader") -> Peer:
    return rig.stay("ops", client_id).subscribed(text, qos=1)


@pytest.fixture
def peer(rig: Keyed) -> Peer:
    return reader(rig)


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("filter_", ["m", "$share/g/m"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_came_due_meanwhile_goes_out_once_and_in_its_order(
    rig: Keyed, filter_: str, cause: str, *, is_killed: bool
) -> None:
    peer = reader(rig, filter_)
    send(rig, "aBcD")
    regain = lose(rig, cause)
    rig.pass_ms(70_000)
    assert peer.take_all() == ["B", "D"], "others do not wait"
    assert rig.core.opened.withheld.count == 2
    assert rig.core.opened.waiting.pending == 0
    if is_killed:
        rig.kill()
        peer = rig.stay("ops", "reader")
    regain()
    assert peer.take_all() == ["a", "c"]
    assert rig.core.opened.withheld.count == rig.core.opened.waiting.pending == 0
    assert rig.core.opened.owned.pending(b"alice") == 0
    send(rig, "e", delay_s=0)
    assert peer.take_all() == ["e"]
    peer.disconnect()
    rig.restart()
    rig.read_keys()
    assert not rig.stay("ops", "reader").take_all(), "once"


def test_it_is_told_as_withheld(rig: Keyed) -> None:
    """Dispatch has passed it, and nobody has it."""
    peer = reader(rig, "$share/g/m")
    send(rig, "aB")
    lines = remove(rig)
    rig.pass_ms(70_000)
    assert peer.take_all() == ["B"]
    assert states(rig) == [("withheld", True), ("done", False)]
    put_back(rig, lines)
    assert peer.take_all() == ["a"]
    assert states(rig) == [("done", False)] * 2


def states(rig: Keyed) -> list[tuple[str, bool]]:
    """Of each message with the group, and whether anything is left of it."""
    core, told = rig.core, []
    for place, number, value in core.reader.read(START, END):
        if is_stub(value):
            continue
        record = decode(value)
        found = core.opened.commit.find(id_at(place, number, core.node, record.id))
        assert found is not None
        (one,), _ = core.deliveries.of(found.id, found.position, record, lambda _: True)
        told.append((one.state, core.deliveries.is_undone(core.opened.open_batch, found)))
    return told


def test_a_retained_one_is_retained_then(rig: Keyed) -> None:
    send(rig, "a", retain=True)
    lines = remove(rig)
    rig.pass_ms(70_000)
    assert reader(rig).take_all() == []
    put_back(rig, lines)
    assert reader(rig, client_id="new").take_all() == ["a"]


def test_who_was_away_gets_it_once(rig: Keyed) -> None:
    reader(rig).drop()
    send(rig, "aB")
    lines = remove(rig)
    rig.pass_ms(70_000)
    assert rig.stay("ops", "reader").take_all() == ["B"]
    put_back(rig, lines)
    assert rig.stay("ops", "reader").take_all() == ["a"]


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("filter_", ["m", "$share/g/m"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_who_has_still_to_read_it_gets_it_then(
    rig: Keyed, filter_: str, cause: str, *, is_killed: bool
) -> None:
    """Others have had it: it is not sent again to all, and what is behind it does not wait for it."""
    reader(rig, filter_).drop()
    other = reader(rig, client_id="other")
    send(rig, "AbCd", delay_s=0)
    assert other.take_all() == ["A", "b", "C", "d"]
    regain = lose(rig, cause)
    peer = rig.stay("ops", "reader")
    assert peer.take_all() == ["A", "C"]
    assert rig.core.opened.waiting.retries == 2
    assert deliveries(rig, "b") == [("withheld", CAUSES[cause])]
    if is_killed:
        rig.kill()
        peer = rig.stay("ops", "reader")
        assert peer.take_all() == []
    regain()
    assert peer.take_all() == ["b", "d"]
    assert other.take_all() == []
    rig.pass_ms(2_000)  # a cursor is written
    assert rig.core.opened.waiting.retries == 0


def deliveries(rig: Keyed, text: str) -> list[tuple[str, object]]:
    """State and cause of what is left of the message with that text."""
    core = rig.core
    for place, number, value in core.reader.read(START, END):
        record = decode(value)
        if not record.stub and record.payload == text.encode():
            name = id_at(place, number, core.node, record.id)
            told, _ = core.deliveries.of(name, place, record, lambda _: True)
            return [(one.state, one.withheld_by) for one in told]
    raise AssertionError(text)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_key_of_a_group_that_orders_waits_for_it(rig: Keyed, cause: str) -> None:
    """Others go on."""
    worker = rig.stay("ops", "reader")
    worker.subscribe("$share/g/m", qos=1, user_properties=asking(order="true", expiry="never"))
    worker.inbox.clear()
    worker.drop()
    for text, key in (("a", "k"), ("B", "k"), ("C", "l"), ("d", "k")):
        peer = rig.come("alice" if text.islower() else "ops")
        peer.publish1("m", text, user_properties=(("ordering-key", key),))
        peer.disconnect()
    regain = lose(rig, cause)
    worker = rig.stay("ops", "reader")
    assert worker.take_all() == ["C"]
    regain()
    assert worker.take_all() == ["a", "B", "d"]


def test_a_reader_stands_before_more_than_it_may_have(rig: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "WITHHELD_MAX", 2)
    reader(rig, "$share/g/m").drop()
    send(rig, "abcDe", delay_s=0)
    regain = lose(rig, "rule")
    peer = rig.stay("ops", "reader")
    assert peer.take_all() == []
    assert rig.core.opened.waiting.retries == 2
    regain()
    assert sorted(peer.take_all()) == ["D", "a", "b", "c", "e"]


@pytest.mark.parametrize("cause", CAUSES)
def test_what_failed_waits_and_its_count_stays(rig: Keyed, cause: str) -> None:
    """A retry that is due is not tried while its sender may not send it."""
    peer = reader(rig, "$share/g/m")
    send(rig, "a", delay_s=0)
    (packet,) = peer.publishes()
    peer.nack(packet, "1s")
    regain = lose(rig, cause)
    rig.pass_ms(100_000)
    assert peer.take_all() == []
    assert deliveries(rig, "a") == [("withheld", CAUSES[cause])]
    regain()
    (packet,) = peer.publishes()
    assert dict(packet.properties.user_properties)["fasti-attempt"] == "2"


def test_what_has_expired_meanwhile_is_not_given(rig: Keyed) -> None:
    """Neither a message, nor a delivery, which becomes a dead letter as any retry."""
    reader(rig, "$share/g/m").drop()
    alice = rig.come("alice")
    for topic in ("m", "$delayed/10/m"):
        alice.publish1(topic, topic, message_expiry=60)
    regain = lose(rig, "revoked")
    peer = rig.stay("ops", "reader")
    rig.pass_ms(100_000)
    assert rig.core.opened.withheld.count == 1
    regain()
    rig.pass_ms(1_000)
    assert peer.take_all() == []
    assert rig.core.opened.withheld.count == 0
    assert rig.core.dispatch.counts.expired == 1
    assert [row.reason for row in dead(rig.core.opened.store)] == ["expired"]


@pytest.mark.parametrize("cause", CAUSES)
def test_nobody_waits_for_ever(rig: Keyed, cause: str, caplog: pytest.LogCaptureFixture) -> None:
    """Who would have got it has a dead letter that says why: a message, and a delivery."""
    reader(rig, "$share/g/m").drop()
    send(rig, "b", delay_s=0)
    send(rig, "a")
    regain = lose(rig, cause)
    with caplog.at_level(logging.INFO):
        rig.pass_ms(70_000)
        peer = rig.stay("ops", "reader")
        assert rig.core.opened.withheld.floor < rig.core.horizon.position, "its slice is kept"
        rig.pass_ms(KEPT_MS + 60_000)
        assert "withheld messages: 1 given up" in caplog.text
    found = sorted((decode(row.record).payload, row.reason) for row in dead(rig.core.opened.store))
    assert found == [(text, f"kept too long: {CAUSES[cause]}") for text in (b"a", b"b")]
    assert rig.core.opened.withheld.count == rig.core.opened.waiting.retries == 0
    regain()
    assert peer.take_all() == []


def test_a_group_that_was_away_for_long_passes_nothing_silently(rig: Keyed) -> None:
    """Retention has not passed the message, however old it is."""
    reader(rig, "$share/g/m").drop()
    send(rig, "aB", delay_s=0)
    rig.pass_ms(KEPT_MS + 60_000)
    regain = lose(rig, "revoked")
    peer = rig.stay("ops", "reader")
    assert peer.take_all() == ["B"]
    assert deliveries(rig, "a") == [("withheld", CAUSES["revoked"])]
    regain()
    assert peer.take_all() == ["a"]


def test_one_that_cannot_be_read_holds_its_slice_no_longer(rig: Keyed) -> None:
    """Its row is damaged after dispatch has withheld it."""
    send(rig, "ab")
    lose(rig, "revoked")
    rig.pass_ms(70_000)
    (place, name), _ = rig.core.opened.withheld.rows()
    found = rig.core.opened.commit.find(name)
    assert found is not None
    assert found.shard is not None
    batch = rig.store.batch()
    batch.put(Table.MESSAGES, found.shard.prefix + keys.place(place), b"\xff")
    rig.store.write(batch)
    rig.pass_ms(KEPT_MS + 120_000)
    assert rig.core.opened.withheld.count == 0
    assert rig.core.opened.withheld.floor == END


def test_a_disk_that_is_nearly_full_waits_for_nobody(rig: Keyed) -> None:
    """What is withheld before a position is given up, whenever it was."""
    peer = reader(rig, "$share/g/m")
    send(rig, "ab")
    regain = lose(rig, "revoked")
    rig.pass_ms(70_000)
    (_, (second, _)) = rig.core.opened.withheld.rows()
    rig.core.releasing.give_up(second)
    rig.pass_ms(1_000)
    assert [decode(row.record).payload for row in dead(rig.core.opened.store)] == [b"a"]
    assert rig.core.opened.withheld.floor == second
    regain()
    assert peer.take_all() == ["b"]


def test_what_nobody_would_have_got_is_counted(rig: Keyed) -> None:
    """And what sessions would have got, once for each: that makes no dead letters."""
    reader(rig, "m/1", client_id="one")
    reader(rig, "m/1", client_id="two")
    for number in range(2):
        send(rig, "a", f"m/{number}")
    lose(rig, "revoked")
    rig.pass_ms(70_000)
    assert rig.core.opened.withheld.count == 2
    rig.pass_ms(KEPT_MS + 120_000)
    assert rig.core.opened.withheld.count == 0
    assert rig.core.burials.dropped["kept too long"] == 3
    assert not list(dead(rig.core.opened.store))


def test_a_cause_that_becomes_another_one_changes_nothing(rig: Keyed, peer: Peer) -> None:
    send(rig, "a")
    lines = remove(rig)
    rig.pass_ms(70_000)
    put_back(rig, lines + "revoked = 2026-11-22T00:00:00Z\n")
    rig.pass_ms(2_000)
    assert peer.take_all() == []
    rig.file.remove("alice")
    put_back(rig, lines)
    assert peer.take_all() == ["a"]


def topics(peer: Peer) -> list[str]:
    return [packet.topic.decode() for packet in peer.deliveries()]


def test_only_what_may_be_sent_goes_out(rig: Keyed) -> None:
    """Of one key, by topic, in the order of before."""
    peer = reader(rig, "#")
    for number, topic in enumerate("mnmnm"):
        send(rig, "a", topic, delay_s=60 + number)
    rig.change("alice", '"#"', '"x"')
    rig.pass_ms(70_000)
    assert topics(peer) == []
    rig.change("alice", '"x"', '"n"')
    rig.pump()
    assert topics(peer) == ["n", "n"]
    assert rig.core.opened.withheld.count == 3
    rig.change("alice", '"n"', '"m"')
    rig.pump()
    assert topics(peer) == ["m"] * 3


def decided(rig: Keyed, what: Callable[[Commit], Control]) -> Outcome:
    (control,) = rig.decide(what)
    return control.outcome  # type: ignore[no-any-return]


def test_cancelled_or_moved_it_is_withheld_no_more(rig: Keyed, peer: Peer) -> None:
    """Nobody has it: both win. What is moved is judged anew at its time."""
    send(rig, "abc")
    regain = lose(rig, "rule")
    rig.pass_ms(70_000)
    first, second, _ = [message for _, message in rig.core.opened.withheld.rows()]
    opened = rig.core.opened
    assert decided(rig, lambda commit: commit.cancel(first)) is Outcome.DONE
    later_ms = rig.clock.wall_ms() + 60_000
    assert decided(rig, lambda commit: commit.move(second, later_ms)) is Outcome.DONE
    assert (opened.withheld.count, opened.waiting.pending, opened.owned.pending(b"alice")) == (1, 1, 1)
    regain()
    assert peer.take_all() == ["c"]
    rig.pass_ms(61_000)
    assert peer.take_all() == ["b"]
    assert (opened.withheld.count, opened.waiting.pending, opened.owned.pending(b"alice")) == (0, 0, 0)


def test_with_an_archive_a_cancel_is_the_last_row_of_the_message(rig: Keyed, peer: Peer) -> None:
    """The row where it was due may be archived as withheld, and is not read again."""
    opened = rig.core.opened
    opened.open_batch.notes_ends = True
    send(rig, "ab")
    regain = lose(rig, "rule")
    rig.pass_ms(70_000)
    passed = opened.horizon.position
    (due, first), _ = opened.withheld.rows()
    assert decided(rig, lambda commit: commit.cancel(first)) is Outcome.DONE
    rows = {place: value for place, _, value in opened.reader.read(START, END)}
    assert is_moved(rows[due])
    (last,) = [place for place, value in rows.items() if is_stub(value) and not is_moved(value)]
    assert last > passed
    assert decode(rows[last]).id == first
    found = opened.reader.find(first)
    assert found is not None
    assert found.position == last
    assert (opened.withheld.count, opened.waiting.pending, opened.owned.pending(b"alice")) == (1, 0, 0)
    regain()
    rig.pass_ms(1_000)
    assert peer.take_all() == ["b"]
    assert decided(rig, lambda commit: commit.cancel(first)) is Outcome.DONE, "as often as one likes"


def test_a_note_is_as_good_as_its_row(rig: Keyed, peer: Peer) -> None:
    """Before the batch that has it is written: it can be cancelled, and released."""
    send(rig, "ab")
    lose(rig, "rule")
    rig.clock.now_ms += 70_000
    rig.turn()
    rig.write()  # the bound of the horizon
    rig.turn()
    withheld = rig.core.opened.withheld
    first, second = [place for place, _ in withheld.rows()]
    assert withheld.has(first)
    assert withheld.floor == first
    assert decided(rig, lambda commit: commit.cancel(next(withheld.rows())[1])) is Outcome.DONE
    assert [place for place, _ in withheld.rows()] == [second]
    assert peer.take_all() == []


def test_dispatch_waits_while_too_many_are_not_stored(
    rig: Keyed, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(withheld_module, "FRESH_MAX", 3)
    send(rig, "abcd")
    send(rig, "E", delay_s=70)
    regain = lose(rig, "rule")
    rig.pass_ms(80_000)
    assert peer.take_all() == ["E"]
    assert rig.core.opened.withheld.count == 4
    regain()
    assert peer.take_all() == ["a", "b", "c", "d"]


@pytest.mark.long
def test_thousands_go_out_in_steps(rig: Keyed, peer: Peer) -> None:
    alice = rig.come("alice")
    for n in range(500):
        alice.publish1("$delayed/60/m", str(n))
    alice.disconnect()
    lines = remove(rig)
    rig.pass_ms(61_000)
    assert peer.take_all() == []
    put_back(rig, lines)
    got = peer.take_all()
    assert got == [str(n) for n in range(500)]


def release_half(rig: Keyed, lines: str) -> None:
    """Put alice's key back, and go on until some of what waits has been released, durably."""
    rig.file.put_back("alice", lines)
    rig.keyring.take(rig.keyring.read())
    rig.core.review()
    first = rig.core.opened.withheld.floor
    while rig.core.opened.withheld.floor == first:
        assert rig.micro()
    for _ in range(6):
        rig.write()
        rig.turn()
        rig.deliver()
    assert rig.core.opened.withheld.floor < rig.core.horizon.position, "some of it still waits"


def wait_many(rig: Keyed, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """More messages than go out in a few steps, which wait for alice."""
    monkeypatch.setattr(releasing, "STEP_ROWS", 10)
    texts = [str(n) for n in range(400)]
    alice = rig.come("alice")
    for text in texts:
        alice.publish1("$delayed/600/m", text)
    alice.disconnect()
    lines = remove(rig)
    rig.pass_ms(601_000)
    return texts, lines


@pytest.mark.long
def test_a_kill_in_the_middle_of_the_release_doubles_nothing(
    rig: Keyed, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, lines = wait_many(rig, monkeypatch)
    release_half(rig, lines)
    got = []
    for packet in peer.publishes():
        got.append(packet.payload.decode())
        peer.ack(wire.PUBACK, packet.packet_id, pump=False)
    assert got
    rig.core.cursors.finish()
    for _ in range(3):
        rig.write()
    assert rig.core.opened.withheld.floor < rig.core.horizon.position, "some of it still waits"
    rig.crash(pump=True)
    got += rig.stay("ops", "reader").take_all()
    assert len(got) == len(texts)
    assert sorted(got) == sorted(texts)


@pytest.mark.long
def test_a_key_that_goes_again_in_the_middle_of_the_release_doubles_nothing(
    rig: Keyed, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, lines = wait_many(rig, monkeypatch)
    release_half(rig, lines)
    remove(rig)
    put_back(rig, lines)
    got = peer.take_all()
    assert len(got) == len(texts)
    assert sorted(got) == sorted(texts)


def test_who_reads_in_the_turn_that_notes_it_passes_it(rig: Keyed) -> None:
    """It comes again for all: there is no delivery of its own."""
    reader(rig).drop()
    send(rig, "B", delay_s=0)  # so that it reads, and is not there when the other one falls due
    send(rig, "a")
    rig.kill()  # it reads from the store
    regain = lose(rig, "rule")
    rig.clock.now_ms += 70_000
    peer = rig.opened("reader", username="ops", key=rig.keys["ops"])
    rig.turn()
    assert rig.core.opened.withheld.count == 1
    rig.pump()
    assert rig.core.opened.waiting.retries == 0
    regain()
    assert peer.take_all() == ["B", "a"]


def test_a_change_while_a_step_is_written_begins_again(rig: Keyed, peer: Peer) -> None:
    """The step was decided by the rights of before."""
    send(rig, "ab")
    lose(rig, "rule")
    rig.pass_ms(70_000)
    rig.core.review()
    rig.turn()
    assert rig.compose(), "the step is decided, and not durable"
    rig.change("alice", '"x"', '"#"')
    rig.pump()
    assert peer.take_all() == ["a", "b"]


@pytest.mark.parametrize("survivors", [0, 1])
@pytest.mark.parametrize("filter_", ["m", "$share/g/m", "$share/o/m"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_batch_that_has_failed_and_may_be_stored_withholds_it_once(
    rig: Keyed, filter_: str, survivors: int, *, is_back: bool
) -> None:
    """`is_back`: the right, before it is known what of the batch is stored."""
    worker = rig.stay("ops", "reader")
    terms = asking(order="true", expiry="never") if "$share/o" in filter_ else ()
    worker.subscribe(filter_, qos=1, user_properties=terms)
    worker.inbox.clear()
    worker.drop()
    alice = rig.come("alice")
    for text in ("1", "2"):
        alice.publish1("m", text, user_properties=(("ordering-key", "k"),))
    regain = lose(rig, "revoked")
    peer = rig.opened("reader", username="ops", key=rig.keys["ops"])
    while not rig.core.events.errand._waiting and rig.core.writer.is_idle:
        rig.turn()
    assert rig.compose()
    rig.lose(survivors)
    if not is_back:
        rig.pass_ms(3_000)
        assert peer.take_all() == []
        assert rig.core.opened.waiting.retries == (1 if terms else 2)
        assert rig.core.writer.given_up == 0
    regain()
    rig.pass_ms(3_000)
    assert peer.take_all() == ["1", "2"]
    rig.pass_ms(2_000)
    assert rig.core.opened.waiting.retries == 0


def test_what_is_withheld_beside_what_is_not_sent_yet_comes_once(rig: Keyed) -> None:
    """The reader goes back to what it had no room for, and comes again to what is behind it."""
    reader(rig).drop()
    send(rig, "BabCD", delay_s=0)
    regain = lose(rig, "rule")
    peer = rig.stay("ops", "reader", receive_maximum=2)
    assert peer.take_all() == ["B", "C", "D"]
    assert rig.core.opened.waiting.retries == 2
    regain()
    assert sorted(peer.take_all()) == ["a", "b"]


@pytest.mark.parametrize("filter_", ["m", "$share/g/m"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_right_that_is_back_before_the_writer_withholds_it(rig: Keyed, filter_: str, steps: int) -> None:
    """The reader has judged it by the rights of before, and the walk over what waits has not met it yet."""
    reader(rig, filter_).drop()
    send(rig, "b", delay_s=0)
    lines = remove(rig)
    peer = rig.opened("reader", username="ops", key=rig.keys["ops"])
    rig.take_steps(steps)
    rig.file.put_back("alice", lines)
    rig.keyring.take(rig.keyring.read())
    rig.core.review()
    rig.core.step()
    rig.pump()
    assert peer.take_all() == ["b"]


def test_who_skips_gets_what_nobody_has_had_and_no_dead_letter_of_it(rig: Keyed) -> None:
    peer = reader(rig, "$share/g/m")
    rig.pause("$share/g/m")
    send(rig, "aB")
    regain = lose(rig, "revoked")
    rig.pass_ms(70_000)
    group, upto = rig.group("$share/g/m"), rig.core.horizon.position
    rig.decide(lambda commit: rig.core.replay.skip(commit, group, upto, "skipped", is_dead=True))
    regain()
    rig.pause("$share/g/m", is_paused=False)
    assert peer.take_all() == ["a"]
    assert [decode(row.record).payload for row in dead(rig.core.opened.store)] == [b"B"]


class Walk:
    """Anything in any order: keys come and go for each cause, batches are lost, the server is killed, places
    are away. A message is given only while its key may send it, to each place that asks, and none is lost.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.rnd = random.Random(seed)
        self.is_lossy = seed % 2 == 1
        self.rig = Keyed(folder, kept_behind_ms=KEPT_MS * 1_000)
        self.rig.add("alice", publish=["#"])
        self.regain: Callable[[], None] | None = None
        self.places = {"session": "m", "group": "$share/g/m", "ordered": "$share/o/m"}
        self.peers: dict[str, Peer | None] = {}
        self.got: dict[str, Counter[str]] = {name: Counter() for name in self.places}
        self.sent: list[str] = []
        self.cancelled: set[str] = set()
        self.lost = 0
        """How often something that was acked may have been forgotten."""
        for name, text in self.places.items():
            terms = asking(expiry="never", **({"order": "true"} if name == "ordered" else {}))
            peer = self.come(name)
            peer.subscribe(text, qos=1, user_properties=() if name == "session" else terms)
            peer.inbox.clear()
            self.peers[name] = peer

    def run(self, steps: int) -> None:
        ways = [self.send, self.send, self.key, self.time, self.away, self.step, self.take, self.end]
        ways += [self.cancel, self.note, self.note]
        for _ in range(steps):
            self.rnd.choice(ways)()
        self.finish()

    def come(self, name: str) -> Peer:
        return self.rig.stay("ops", name, receive_maximum=self.rnd.choice((1, 2, 100)))

    def send(self) -> None:
        """Of alice, as long as she may, and of ops, who always may: in capitals."""
        for _ in range(self.rnd.randrange(1, 6)):
            is_ops = self.regain is not None or self.rnd.random() < 0.5
            peer = self.rig.come("ops" if is_ops else "alice", "sender")
            text, delay = (
                f"{'OPS' if is_ops else 'alice'} {len(self.sent)}",
                self.rnd.choice((0, 0, 1, 5, 20)),
            )
            where = f"$delayed/{delay}/m" if delay else "m"
            key = (("ordering-key", self.rnd.choice("kl")),)
            assert peer.publish1(where, text, user_properties=key).reason in (0, 0x10)
            self.sent.append(text)
            peer.disconnect()

    def key(self) -> None:
        if self.regain is None:
            self.take()
            self.regain = lose(self.rig, self.rnd.choice([*CAUSES]))
        else:
            self.rig.take_steps(self.rnd.randrange(6))
            self.regain, regain = None, self.regain
            regain()

    def time(self) -> None:
        self.rig.pass_ms(self.rnd.choice((100, 1_500, 6_000, 25_000)))

    def step(self) -> None:
        """Some single things, so that a batch is lost, or the server killed, between any two."""
        self.rig.clock.now_ms += self.rnd.choice((0, 1_000, 5_000))
        self.rig.take_steps(self.rnd.randrange(20))

    def note(self) -> None:
        """What has been noted is in no batch, and something happens."""
        self.rig.clock.now_ms += 6_000
        self.rig.turn()
        self.rig.write()  # the bound of the horizon
        self.rig.stepper.dispatch()
        self.rnd.choice((self.end, self.cancel, self.take))()

    def away(self) -> None:
        name = self.rnd.choice([*self.places])
        peer = self.peers[name]
        if peer is None:
            self.peers[name] = self.come(name)
        else:
            self.take()
            peer.drop()
            self.peers[name] = None

    def end(self) -> None:
        """Something that was acked is forgotten, or a batch fails that is stored all the same: not in each
        walk, as what is given twice may then be given for that."""
        if not self.is_lossy:
            return
        self.lost += 1
        if self.rnd.random() < 0.5:
            self.rig.decide(lambda commit: commit.open_batch.row(Table.META, b"walk", b""), pump=False)
            if self.rig.compose():
                self.rig.lose(self.rnd.randrange(2))
        else:
            self.rig.crash(self.rnd.randrange(2), pump=True)
            self.rig.read_keys()
            self.peers = {name: self.come(name) for name in self.places}

    def cancel(self) -> None:
        rows = [*self.rig.core.opened.withheld.rows()]
        if rows:
            _, name = self.rnd.choice(rows)
            found = self.rig.core.opened.commit.find(name)
            if found is not None and decided(self.rig, lambda commit: commit.cancel(name)) is Outcome.DONE:
                self.cancelled.add(decode(found.value).payload.decode())

    def take(self) -> None:
        self.rig.pump()
        for name, peer in self.peers.items():
            if peer is not None:
                texts = peer.take_all()
                barred = [text for text in texts if text.islower() and self.regain is not None]
                assert not barred, f"{name} got {barred}, which their key may not send"
                self.got[name] += Counter(texts)
                assert not self.cancelled & {*texts}

    def finish(self) -> None:
        if self.regain is not None:
            self.key()
        self.peers = {name: self.peers[name] or self.come(name) for name in self.places}
        for _ in range(60):
            self.rig.pass_ms(1_000)
            self.take()
        opened = self.rig.core.opened
        assert (opened.withheld.count, opened.waiting.retries, opened.waiting.pending) == (0, 0, 0)
        assert opened.owned.pending(b"alice") == 0
        for name, got in self.got.items():
            lost = {*self.sent} - {*got} - self.cancelled
            assert not lost, f"{name} has lost {lost}"
            most = max(got.values(), default=0)
            assert most <= 1 + self.lost, f"{name}: {got.most_common(3)}"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(400 if SOAK else 25))
def test_a_walk_loses_and_doubles_nothing(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releasing, "STEP_ROWS", 2)
    Walk(tmp_path, seed).run(60)


@pytest.mark.long
@finds("withheld")
def test_each_rule_left_out_is_found(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    monkeypatch.setattr(releasing, "STEP_ROWS", 2)
    with pytest.raises((AssertionError, KeyError)):
        walks(tmp_path, range(fault.drivers["withheld"], 80))


def walks(folder: Path, seeds: Iterable[int]) -> None:
    for seed in seeds:
        (folder / str(seed)).mkdir()
        Walk(folder / str(seed), seed).run(60)
