"""Sessions that are behind at about the same place read the store once for all of them."""

import pytest

from server.codec.packets import Publish
from server.delivery.stretches import KEPT_MAX, ROWS, STRETCH_BYTES, Stretches
from tests.support.rig import Peer, Rig, config, props

SESSIONS, EACH = 8, 160
LONG_AGO = 16
"""Entries of a tail that reaches back nowhere near."""


def own(number: int) -> Publish:
    """Every seventh is not usual."""
    more = props(content_type="x") if number % 7 == 0 else None
    topic = b"own/%d" % (number % SESSIONS)
    return Publish(topic, b"%d" % number, 1, packet_id=number % 60_000 + 1, properties=more)


def crowd(rig: Rig, *filters: str) -> list[Peer]:
    """Sessions, each with a filter of its own and these, that have missed EACH messages of their own."""
    for n in range(SESSIONS):
        rig.lasting(f"s{n}").subscribe(f"own/{n}", *filters, qos=1)
        rig.peers[-1].drop()
    publisher = rig.connected("p")
    total = SESSIONS * EACH
    for first in range(0, total, 500):
        publisher.send(*(own(number) for number in range(first, min(first + 500, total))))
    return [rig.lasting(f"s{n}", pump=False) for n in range(SESSIONS)]


def test_all_of_them_together_read_each_row_about_once() -> None:
    rig = Rig(config(max_entries=LONG_AGO))
    back = crowd(rig)
    rig.pump()
    for n, peer in enumerate(back):
        peer.inbox.pop(0)  # CONNACK
        assert peer.take_all() == [f"{number}" for number in range(n, SESSIONS * EACH, SESSIONS)]
    read = rig.core.replay.stretches.read
    assert SESSIONS * EACH - ROWS < read < 2 * SESSIONS * EACH


def test_what_all_want_all_get_once_and_in_order() -> None:
    rig = Rig(config(max_entries=LONG_AGO))
    back = crowd(rig, "own/#")
    rig.pump()
    for peer in back:
        peer.inbox.pop(0)
        assert peer.take_all() == [f"{number}" for number in range(SESSIONS * EACH)]


def test_a_lone_session_keeps_nothing_in_ram() -> None:
    rig = Rig(config(max_entries=LONG_AGO))
    rig.lasting("a").subscribe("own/#", qos=1)
    rig.peers[-1].drop()
    rig.connected("p").send(*(own(number) for number in range(300)))
    assert rig.lasting("a").take_all() == [f"{number}" for number in range(300)]
    assert len(rig.core.replay.stretches) == 0


@pytest.mark.parametrize("max_bytes", [1, 100_000])
def test_the_bound_in_bytes_holds_but_for_one(max_bytes: int) -> None:
    rig = Rig(config(max_entries=LONG_AGO))
    rig.lasting("a").subscribe("own/#", qos=1)
    rig.peers[-1].drop()
    rig.connected("p").send(*(own(number) for number in range(500)))
    reader, horizon = rig.core.reader, rig.core.broker.horizon
    everything = Stretches(reader)
    whole, is_new = everything.at(reader.directory.floor, horizon, {0})
    assert is_new
    assert whole.end == horizon
    assert everything.bytes == whole.size < STRETCH_BYTES
    assert len(whole.places) >= 500
    assert not everything.at(whole.places[250], horizon, {0})[1]
    assert everything.at(whole.places[250], horizon, {0, 1})[1]
    few = Stretches(reader, max_bytes=max_bytes)
    for place in whole.places[: 2 * KEPT_MAX : -1]:
        few.at(place, horizon, {0})
        assert few.bytes <= max_bytes or len(few) == 1
        assert len(few) <= KEPT_MAX
