"""What becomes of a delivery when its batch fails, is stored all the same, or meets what cannot be read."""

from collections.abc import Callable

import pytest

from server.codec import wire
from server.codec.packets import Publish
from server.delivery.settling import lives
from server.delivery.settling.lives import Outcome
from server.delivery.terms import LASTING
from shards import delivery_rows
from shards.delivery_rows import DeliveryRow
from shards.errors import Corrupt
from shards.record import decode
from timeline.deliveries import NEVER

from ...support.build import OPENED
from ...support.pulling import Puller
from ...support.rig import Peer, Rig, asking

T, OTHER = "$share/g/t", "$share/h/t"
KEY = {"user_properties": (("ordering-key", "k"),)}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def pulling(rig: Rig, *texts: str) -> tuple[Puller, ...]:
    """Of each group, which has one message."""
    rig.make(*texts, keeping=LASTING)
    rig.connected("p").publish1("t", "x")
    return tuple(Puller(rig, text) for text in texts)


def letters(rig: Rig) -> list[DeliveryRow]:
    return list(rig.core.dead_letters.read())


def retries(rig: Rig) -> list[DeliveryRow]:
    return list(rig.core.kept_retries.read())


def dropped(rig: Rig, row: DeliveryRow) -> None:
    part = rig.core.dead_letters if row.is_dead else rig.core.kept_retries
    told = rig.decide(lambda commit: part.drop(commit, row.name, lambda *_: True), pump=False)
    rig.pump()
    assert told == [True]


def read_again(rig: Rig, peer: Peer) -> Publish:
    """What a rewind brings, before the next cursor is written."""
    rig.rewind(T, pump=False)
    rig.compose()
    rig.settle()
    for _ in range(8):
        rig.turn()
        rig.deliver()
    return peer.one()


@OPENED
@pytest.mark.parametrize("how", ["refused", "failed"])
def test_a_former_letter_that_goes_is_not_what_its_nack_has_written(
    rig: Rig, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is dropped before the nack is decided again: else the message would be lost."""
    peer = rig.lasting("w").subscribed(T, qos=1)
    rig.connected("p").publish1("t", "x")
    peer.nack(peer.one(), "never")
    packet = read_again(rig, peer)
    (letter,) = letters(rig)
    with monkeypatch.context() as patch:
        if how == "refused":
            patch.setattr(rig.core.publishing, "place", lambda *_: None)
        peer.nack(packet, "never" if how == "refused" else "1s", pump=False)
        rig.compose()
    if how == "failed":
        rig.lose(0)
    dropped(rig, letter)
    rig.pass_ms(5_000)
    if how == "failed":
        assert peer.payloads() == ["x"]
    else:
        assert len(letters(rig)) == 1


def test_what_another_place_has_out_is_not_requeued_to_it(rig: Rig) -> None:
    """It has had more tries there than at the place that gave it up."""
    first, second = pulling(rig, T, OTHER)
    first.nack(first.lease(), NEVER)
    for _ in range(3):
        second.nack(second.lease(), 0)
    assert second.lease()
    (letter,) = letters(rig)
    to, due_ms, requeue = rig.group(OTHER), rig.clock.now_ms, rig.core.dead_letters.requeue
    assert rig.decide(lambda commit: requeue(commit, letter.name, due_ms, lambda *_: True, to)) == [False]
    rig.pass_ms(2_000)
    assert second.ask(1).payloads == []


@OPENED
@pytest.mark.parametrize("why", ["expired", "unreadable"])
def test_a_head_that_died_in_a_batch_that_is_stored_all_the_same_holds_its_key(
    rig: Rig, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = asking(order="true", on_dead="hold", backoff="1s")
    peer, publisher = rig.lasting("w").subscribed(T, qos=1, user_properties=terms), rig.connected("p")
    publisher.publish1("t", "one", message_expiry=5, **KEY)
    publisher.publish1("t", "two", **KEY)
    packet, session = peer.one(), rig.group(T).session
    if why == "expired":
        peer.disconnect()
        rig.pass_ms(6_000)
        peer = rig.peer()
        peer.connect("w", clean=False, expiry=3600, pump=False)
        while not any(flight.fate for flight in session.flights.values()):
            assert rig.micro()
        while any(flight.fate < 2 for flight in session.flights.values()):
            if not rig.compose():
                rig.turn()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(rig.core.sent, "message", lambda *_: None)
            peer.nack(packet, "1s", pump=False)
            rig.compose()
    rig.lose(1)
    rig.pump()
    rig.pass_ms(5_000)
    assert [row.reason for row in letters(rig)] == [why]
    assert [one.payload for one in peer.inbox if isinstance(one, Publish)] == []
    assert rig.order(T).held == {b"k"}


@OPENED
def test_what_can_be_read_again_is_retried(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nack meets a block that cannot be read, and its batch fails."""
    (puller,) = pulling(rig, T)
    lease = puller.lease()
    with monkeypatch.context() as patch:
        patch.setattr(rig.core.sent, "message", lambda *_: None)
        puller.nack(lease, 1_000, pump=False)
        rig.compose()
    rig.lose(0)
    rig.pass_ms(4_000)
    assert letters(rig) == []
    assert puller.ask(1).payloads == ["x"]


@OPENED
def test_a_nack_of_what_cannot_be_read_is_told_as_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (puller,) = pulling(rig, T)
    lease = puller.lease()
    with monkeypatch.context() as patch:
        patch.setattr(rig.core.sent, "message", lambda *_: None)
        puller.nack(lease, 1_000)
    ((one,),) = [row.tries for row in letters(rig)]
    assert (one.by, one.outcome, one.reason) == ("(pull)", "failed", "unreadable")


@OPENED
def test_what_could_not_be_read_when_it_was_to_be_sent_again_says_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = rig.lasting("s").subscribed("t", qos=1)
    rig.connected("p").publish1("t", "x")
    peer.one()
    peer.drop()
    real, asked = rig.core.sent.message, list[object]()

    def once(*what: object) -> object:
        asked.append(what)
        return None if len(asked) == 1 else real(*what)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.core.sent, "message", once)
    rig.lasting("s")
    assert [row.reason for row in letters(rig)] == ["unreadable"]


def buried(rig: Rig, row: DeliveryRow) -> Callable[[], None]:
    """Waits until the retry is due, and buries it."""
    rig.pass_ms(5_000)
    return lambda: rig.core.writer.submit(
        lambda commit: rig.core.kept_retries.bury(commit, row.name, lambda *_: True), lambda _: None
    )


def put_off(rig: Rig, row: DeliveryRow) -> Callable[[], None]:
    """Waits no more, and sets its time to an hour from now."""
    far_ms = rig.clock.now_ms + 3_600_000
    return lambda: rig.core.writer.submit(
        lambda commit: rig.core.kept_retries.try_(commit, row.name, far_ms, lambda *_: True), lambda _: None
    )


@pytest.mark.parametrize("change", [buried, put_off])
def test_a_retry_whose_change_is_not_written_is_given_at_its_time(
    rig: Rig, change: Callable[[Rig, DeliveryRow], Callable[[], None]]
) -> None:
    (puller,) = pulling(rig, T)
    puller.nack(puller.lease(), 2_000)
    (row,) = retries(rig)
    submit = change(rig, row)
    submit()
    rig.compose()
    asked = puller.ask(1, wait_ms=1 << 50, pump=False)
    rig.clock.now_ms += 3_000
    for _ in range(20):
        rig.turn()
    rig.lose(0)
    rig.pump()
    rig.pass_ms(10_000)
    assert asked.answer
    assert asked.payloads == ["x"]


@OPENED
def test_a_late_ack_that_cannot_be_decided_changes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (puller,) = pulling(rig, T)
    lease = puller.lease(lease_ms=2_000)
    rig.pass_ms(4_000)
    assert puller.lease(lease_ms=60_000), "it is in flight with another"

    def rotten(*_: object) -> None:
        raise Corrupt("a rotten block")

    with monkeypatch.context() as patch:
        patch.setattr(lives, "at", rotten)
        puller.ack(lease)
    assert len(rig.group(T).session.flights) == 1


def test_a_late_ack_of_what_was_dropped_and_is_out_again(rig: Rig) -> None:
    """The cursor is not written since: the dropped row is there."""
    peer = rig.lasting("w").subscribed(T, qos=1)
    rig.connected("p").publish1("t", "x")
    peer.nack(peer.one(), "60s")
    (row,) = retries(rig)
    dropped(rig, row)
    read_again(rig, peer)
    told: list[Outcome] = []
    rig.core.events.finish(rig.group(T), row.root, row.shard, told.append)
    rig.pump()
    assert told == [Outcome.DONE]
    assert (rig.group(T).session.flights, rig.core.events.finished) == ({}, 1)


def test_a_former_letter_that_is_dropped_says_nothing_of_what_is_acked(rig: Rig) -> None:
    peer = rig.lasting("w").subscribed(T, qos=1)
    rig.connected("p").publish1("t", "x")
    peer.nack(peer.one(), "never")
    packet = read_again(rig, peer)
    (letter,) = letters(rig)
    dropped(rig, letter)
    peer.ack(wire.PUBACK, packet.packet_id)
    rig.pass_ms(10_000)
    assert list(delivery_rows.of_message(rig.store, letter.id)) == []


def test_a_nack_without_a_reason_has_none_until_it_is_for_good(rig: Rig) -> None:
    (puller,) = pulling(rig, T)
    puller.nack(puller.lease(), 0, reason="")
    (row,) = retries(rig)
    assert (row.reason, [one.reason for one in row.tries]) == ("", [""])
    puller.nack(puller.lease(), NEVER, reason="")
    (row,) = letters(rig)
    assert (row.reason, [one.reason for one in row.tries]) == ("rejected", ["", "rejected"])


def test_a_letter_whose_batch_failed_and_is_stored_is_counted(rig: Rig) -> None:
    (puller,) = pulling(rig, T)
    puller.nack(puller.lease(), NEVER, pump=False)
    rig.compose()
    rig.lose(1)
    rig.pass_ms(2_000)
    assert len(letters(rig)) == rig.core.dead_letter_queue.buried == 1


def test_a_retry_moves_to_a_filter_that_has_dropped_it_before(rig: Rig) -> None:
    old, new = "$share/workers/jobs/#", "$share/workers/jobs/+/run"
    rig.make(old, keeping=LASTING)
    rig.connected("p").publish1("jobs/1/run", "job")
    puller = Puller(rig, old)
    puller.nack(puller.lease(), 5_000)
    rig.pass_ms(6_000)
    rig.make(new, keeping=LASTING)
    peer = rig.lasting("w").subscribed(new, qos=1)
    rig.pass_ms(3_000)
    peer.nack(peer.one(), "60s")
    (row,) = retries(rig)
    dropped(rig, row)
    rig.rewind(old)
    puller.nack(puller.lease(), 1_000)
    rig.pass_ms(10_000)
    assert peer.payloads() == ["job"]
    assert decode(row.record).payload == b"job"
