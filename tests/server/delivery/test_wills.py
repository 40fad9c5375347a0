"""Wills: [MQTT-3.1.2-7] to [MQTT-3.1.2-16], [MQTT-3.1.3-9], [MQTT-3.14.4-3]."""

from contextlib import suppress
from dataclasses import replace

import pytest

from server.codec.packets import Suback, Subscribe, SubscribeOptions, Will
from server.delivery.link import Closing
from server.engine.writer import Busy
from server.mqtt.forms import GIVES_WAY
from server.mqtt.publish_requests import OWN_PROPERTIES
from server.settings.config import Config, Slices
from shards.errors import StoreFailed
from shards.record import decode
from tests.support.rig import Peer, Rig, about, config, props
from timeline.position import START, Position

WILL = Will(b"w", b"gone", 1)


def _delayed(seconds: int) -> Will:
    return Will(b"w", b"gone", 1, properties=props(will_delay=seconds))


def _watch(rig: Rig) -> Peer:
    return rig.lasting("watch").subscribed("w")


@pytest.fixture
def watch(rig: Rig) -> Peer:
    return _watch(rig)


@pytest.mark.parametrize("level", [3, 4, 5])
def test_a_will_is_published_unless_the_client_says_good_bye(rig: Rig, watch: Peer, level: int) -> None:
    rig.connected("a", level, will=WILL).drop()
    assert watch.take_all() == ["gone"]
    rig.connected("a", level, will=WILL).disconnect()
    assert watch.inbox == []
    rig.connected("a", level, will=WILL).send_bytes(b"\x00\x00")
    assert watch.take_all() == ["gone"]
    rig.connected("a", level, will=WILL).connection.close(Closing.TIMED_OUT)
    rig.pump()
    assert watch.take_all() == ["gone"]
    rig.connected("a", level).drop()
    assert watch.inbox == []


@pytest.mark.parametrize("reason", [0x04, 0x80, 0x83, 0x93])
def test_disconnect_with_a_reason_publishes_it(rig: Rig, watch: Peer, reason: int) -> None:
    rig.connected("a", will=WILL).disconnect(reason)
    assert watch.take_all() == ["gone"]


def test_what_a_will_carries(rig: Rig, watch: Peer) -> None:
    given = props(
        payload_format=1,
        content_type="t",
        response_topic="r",
        correlation_data=b"c",
        user_properties=(("a", "1"), ("a", "2")),
        message_expiry=30,
    )
    rig.connected("a", will=Will(b"w", b"gone", 2, True, given)).drop()
    (packet,) = watch.publishes()
    assert packet.properties == given
    assert packet.qos == 2
    late = rig.connected("l").subscribed("w")
    (packet,) = late.publishes()
    assert (packet.retain, packet.payload) == (True, b"gone")


@pytest.mark.parametrize(
    ("delay", "expiry", "after_s"), [(5, 60, 5), (60, 5, 5), (5, 0, 0), (0, 60, 0), (9, 9, 9)]
)
def test_the_delay_ends_with_the_session_at_the_latest(delay: int, expiry: int, after_s: int) -> None:
    """[MQTT-3.1.2-8]"""
    rig = Rig()
    watch = _watch(rig)
    rig.lasting("a", expiry=expiry, will=_delayed(delay)).drop()
    if after_s:
        rig.pass_ms(after_s * 1_000 - 1)
        assert watch.inbox == []
        rig.pass_ms(1_001)
    assert watch.take_all() == ["gone"]
    rig.pass_ms(100_000)
    assert watch.inbox == []


@pytest.mark.parametrize("how", ["drop", "takeover", "at once", "crash"])
def test_a_client_that_returns_takes_its_delayed_will_back(rig: Rig, watch: Peer, how: str) -> None:
    """[MQTT-3.1.3-9]"""
    peer = rig.lasting("a", will=_delayed(5))
    if how == "drop":
        peer.drop()
        rig.pass_ms(2_000)
    elif how == "crash":
        peer.drop()
        rig.crash(pump=True)
        watch = rig.lasting("watch")
    elif how == "at once":
        peer.drop(pump=False)
    again = rig.lasting("a")
    rig.pass_ms(20_000)
    assert watch.inbox == []
    again.drop()
    rig.pass_ms(20_000)
    assert watch.inbox == []


@pytest.mark.parametrize("how", ["drop", "takeover", "at once"])
def test_a_clean_start_ends_the_session_and_publishes_it(rig: Rig, watch: Peer, how: str) -> None:
    peer = rig.lasting("a", will=_delayed(50))
    if how != "takeover":
        peer.drop(pump=how == "drop")
    rig.connected("a", clean=True)
    assert watch.take_all() == ["gone"]
    rig.pass_ms(100_000)
    assert watch.inbox == []


@pytest.mark.parametrize("level", [4, 5])
def test_takeover_without_a_delay_publishes_it(rig: Rig, watch: Peer, level: int) -> None:
    rig.lasting("a", level, will=WILL)
    again = rig.lasting("a", level, will=Will(b"w", b"second", 1))
    assert watch.take_all() == ["gone"]
    again.drop()
    assert watch.take_all() == ["second"]


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_a_delayed_will_survives_a_start(rig: Rig, how: str) -> None:
    _watch(rig)
    rig.lasting("a", will=_delayed(5)).drop()
    getattr(rig, how)()
    rig.pass_ms(10_000)
    assert rig.lasting("watch").take_all() == ["gone"]


def test_a_session_that_is_dropped_by_disconnect_publishes_it_at_once(rig: Rig, watch: Peer) -> None:
    rig.lasting("a", will=_delayed(50)).disconnect(0x04, expiry=0)
    assert watch.take_all() == ["gone"]


def test_a_session_that_is_deleted_publishes_it(rig: Rig, watch: Peer) -> None:
    peer = rig.lasting("a", will=_delayed(50))
    rig.core.clients.drop("a")
    rig.pump()
    assert peer.gone_with == 0x98
    assert watch.take_all() == ["gone"]
    rig.lasting("b", will=_delayed(50)).drop()
    rig.core.clients.drop("b")
    rig.pump()
    assert watch.take_all() == ["gone"]


@pytest.mark.parametrize("how", ["crash", "restart"])
@pytest.mark.parametrize("delay", [0, 5])
def test_a_will_of_a_persistent_session_survives_a_kill(rig: Rig, how: str, delay: int) -> None:
    """A server that stops closes the connection; one that is killed finds the will when it starts again."""
    _watch(rig)
    will = _delayed(delay) if delay else WILL
    rig.lasting("a", will=will).subscribe("x")
    rig.lasting("polite", will=Will(b"w", b"polite", 1)).disconnect()
    rig.lasting("back", will=_delayed(60))
    rig.lasting("none")
    rig.start_again(how)
    rig.lasting("back")
    watch = rig.lasting("watch")
    if delay:
        assert watch.inbox == []
        rig.pass_ms(delay * 1_000 + 1_000)
    assert watch.take_all() == ["gone"]
    rig.crash()
    rig.pass_ms(60_000)
    assert rig.lasting("watch").take_all() == ["gone"]  # of `back`, which was killed again


@pytest.mark.parametrize("survivors", range(6))
def test_a_will_is_published_once_wherever_the_kill_is(rig: Rig, survivors: int) -> None:
    _watch(rig).drop()
    rig.lasting("a", will=Will(b"w", b"gone", 2)).drop(pump=False)
    rig.take_steps(survivors)
    rig.crash(survivors % 3, pump=True)
    rig.crash(pump=True)
    assert rig.lasting("watch").take_all() == ["gone"]


def test_a_will_of_a_session_that_ends_with_its_connection_dies_with_the_server(rig: Rig) -> None:
    _watch(rig)
    rig.connected("a", will=WILL)
    rig.crash(pump=True)
    assert rig.lasting("watch").inbox == []


# -- a will has to come out


def _fill(rig: Rig) -> None:
    with suppress(Busy):
        for _ in range(10):
            rig.decide(lambda _: None, pump=False)


@pytest.mark.parametrize("delay", [0, 5])
def test_what_clients_may_have_pending_is_not_for_wills(delay: int) -> None:
    rig = Rig(config(pending=1))
    watch = _watch(rig)
    rig.connected("p").publish1("$delayed/99999/x")
    rig.lasting("a", will=_delayed(delay)).drop()
    rig.pass_ms(delay * 1_000 + 1_000)
    assert watch.take_all() == ["gone"]


@pytest.mark.parametrize("kind", ["clean", "persistent", "delayed"])
@pytest.mark.parametrize("why", ["queue", "broken", "unsynced", "directory"])
def test_a_will_that_is_refused_comes_out_later(kind: str, why: str) -> None:
    rig = Rig(replace(config(queued=5), slices=Slices(max=16)) if why != "broken" else Config())
    watch = _watch(rig)
    will = _delayed(5) if kind == "delayed" else WILL
    peer = rig.connected("a", will=will) if kind == "clean" else rig.lasting("a", will=will)
    directory = rig.core.directory
    if why == "queue":
        _fill(rig)
    elif why == "directory":
        most, directory.max_slices = directory.max_slices, len(directory)
        rig.clock.now_ms += 3_600_000  # no slice is open for now
        watch.drop()
    elif why == "broken":
        rig.break_store()
    peer.drop(pump=False)
    if why == "unsynced":
        rig.compose()
        rig.fail_sync()
    rig.pump()
    if why in ("broken", "unsynced"):
        rig.mend_store()
    if why == "directory":
        rig.pass_ms(3_000)
        directory.max_slices = most
    rig.pass_ms(8_000)
    if why == "directory":
        watch = rig.lasting("watch")
    assert watch.take_all() == ["gone"], "once"
    rig.pass_ms(20_000)
    assert watch.inbox == []
    assert len(rig.core.wills) == 0
    rig.crash()
    rig.pass_ms(20_000)
    assert rig.lasting("watch").take_all() == []


@pytest.mark.parametrize("delay", [0, 5])
def test_a_stored_will_without_a_place_survives_a_kill(rig: Rig, delay: int) -> None:
    _watch(rig)
    peer = rig.lasting("a", will=_delayed(delay))
    rig.break_store()
    peer.drop()
    assert len(rig.core.wills) == 1
    rig.store.fail_writes = False
    rig.crash()
    rig.pass_ms(10_000)
    assert rig.lasting("watch").take_all() == ["gone"]


@pytest.mark.parametrize("why", [Closing.STOPPING, Closing.MOVED])
def test_a_server_that_leaves_publishes_it_once(rig: Rig, why: Closing) -> None:
    """Be it for good or for another that leads."""
    _watch(rig)
    rig.lasting("a", will=WILL)
    rig.connected("b", will=Will(b"w", b"gone too", 1))
    rig.lasting("c", will=_delayed(5))
    rig.restart(why)
    watch = rig.lasting("watch")
    assert sorted(watch.take_all()) == ["gone", "gone too"]
    rig.pass_ms(10_000)
    assert watch.take_all() == ["gone"]
    rig.pass_ms(10_000)  # that the watcher has it is written now and then
    rig.crash()
    rig.pass_ms(10_000)
    assert rig.lasting("watch").take_all() == []


@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("survivors", [0, 1])
def test_a_will_of_whoever_is_sent_away_comes_from_the_next_leader(delay: int, survivors: int) -> None:
    """Nothing can be written any more; the group that was under way may be in the log, or not."""
    rig = Rig()
    _watch(rig)
    rig.connected("p").publish("x", "y", 1, pump=False)
    peer = rig.lasting("a", will=_delayed(delay) if delay else WILL)
    rig.break_store()
    peer.connection.close(Closing.MOVED)
    rig.pump()
    assert peer.gone_with == 0x9D
    rig.store.fail_writes = False
    for expected in (["gone"], []):
        rig.crash(survivors)
        rig.pass_ms(10_000)
        assert rig.lasting("watch").take_all() == expected
        rig.pass_ms(10_000)


@pytest.mark.parametrize("survivors", [0, 1])
def test_a_will_in_a_group_that_failed_comes_once(rig: Rig, watch: Peer, survivors: int) -> None:
    """The store comes back with the group in it, or without."""
    rig.lasting("a", will=Will(b"w", b"gone", 2, properties=props(will_delay=5))).drop(pump=False)
    rig.compose()
    rig.lose(survivors)
    rig.pass_ms(10_000)
    assert watch.take_all() == ["gone"]


def test_a_client_that_returns_takes_back_a_will_that_waits() -> None:
    rig = Rig(config(queued=5))
    watch = _watch(rig)
    peer = rig.lasting("a", will=_delayed(5))
    _fill(rig)
    peer.drop(pump=False)
    rig.core.writer._max_queued = 100
    again = rig.lasting("a")
    rig.pass_ms(10_000)
    assert watch.inbox == []
    # And one that waits on the timeline, when there is no room to cancel it at once.
    again.disconnect()
    rig.lasting("a", will=_delayed(5)).drop()
    rig.core.writer._max_queued = 5
    _fill(rig)
    rig.core.wills.recall(rig.core.sessions.get("a"), at_once=False)  # type: ignore[arg-type]
    rig.pass_ms(10_000)
    assert watch.inbox == []


def test_a_client_that_is_refused_has_not_returned() -> None:
    """Its delayed will is not cancelled for a connection that was never opened."""
    rig = Rig(config(queued=5))
    watch = _watch(rig)
    rig.lasting("a", will=_delayed(5)).drop()
    _fill(rig)
    assert rig.peer().connect("a", clean=False, expiry=60).reason == 0x88
    rig.pass_ms(10_000)
    assert watch.take_all() == ["gone"]


def test_a_will_that_waits_outlives_attempts_to_return_that_are_refused(rig: Rig, watch: Peer) -> None:
    peer = rig.lasting("a", will=_delayed(5))
    rig.break_store()
    peer.drop()
    for _ in range(3):
        assert rig.peer().connect("a", clean=False, expiry=60, will=Will(b"w", b"new", 1)).reason == 0x88
        rig.pump()
        assert len(rig.core.wills) == 1
    rig.mend_store()
    rig.pass_ms(20_000)
    assert watch.take_all() == ["gone"]
    assert not rig.core.wills._underway
    # And who does come back has none that is published.
    peer = rig.lasting("a", will=_delayed(5))
    rig.core.writer.fail(StoreFailed("told to"))
    peer.drop(pump=False)
    assert rig.recover()
    rig.lasting("a")
    rig.pass_ms(20_000)
    assert watch.take_all() == []
    assert not rig.core.wills._underway


def test_wills_that_wait_are_bounded_and_the_rest_is_counted() -> None:
    rig = Rig(config(connections=3))
    watch = _watch(rig)
    peers = [rig.connected(f"c{number}", will=Will(b"w", b"%d" % number, 1)) for number in range(5)]
    rig.break_store()
    for peer in peers:
        peer.drop()
    assert (len(rig.core.wills), rig.core.wills.lost) == (3, 2)
    rig.mend_store()
    rig.pass_ms(3_000)
    assert watch.take_all() == ["0", "1", "2"]
    rig = Rig(config(queued_bytes=1 << 16))
    peers = [rig.lasting(f"c{number}", will=Will(b"w", b"." * 30_000, 1)) for number in range(4)]
    rig.break_store()
    for peer in peers:
        peer.drop()
    assert (len(rig.core.wills), rig.core.wills.lost) == (2, 2)


def test_a_will_does_not_overtake_what_its_client_sent_before(rig: Rig, watch: Peer) -> None:
    peer = rig.connected("a", will=Will(b"w", b"offline", 1))
    peer.publish("w", "online", 1, pump=False)
    peer.drop()
    assert watch.take_all() == ["online", "offline"]


def test_nor_if_it_has_the_session_of_a_key_and_shows_none(rig: Rig, watch: Peer) -> None:
    """On a listener that asks for none: what it publishes is nobody's."""
    peer = rig.connected("a", will=Will(b"w", b"offline", 1), expiry=60)
    subscriber = rig.session("a")
    subscriber.owner = "sensors"
    online = [f"online {number}" for number in range(3)]
    for payload in online:
        peer.publish("w", payload, 1, pump=False)
    peer.drop()
    assert watch.take_all() == [*online, "offline"]


def test_a_delayed_will_is_a_plain_publish_for_its_receivers(rig: Rig, watch: Peer) -> None:
    """It waits on the timeline, where it can be listed and cancelled, and was not scheduled by anybody."""
    given = props(will_delay=5, message_expiry=60, content_type="t")
    rig.lasting("a", will=Will(b"w", b"gone", 1, properties=given)).drop()
    (row,) = rig.core.reader.read(START, Position(1 << 95))
    assert row[0] >> 48 == rig.clock.now_ms + 5_000
    assert decode(row[2]).due_ms == 0
    rig.restart()
    watch = rig.lasting("watch")
    rig.pass_ms(6_000)
    assert watch.one().properties == props(message_expiry=60, content_type="t")
    watch.drop()
    (packet,) = rig.lasting("watch").publishes()
    assert (packet.dup, packet.properties) == (True, props(message_expiry=59, content_type="t"))


@pytest.mark.parametrize("how", ["publish", "at once", "delayed", "retained"])
def test_a_will_says_nothing_that_is_the_servers_to_say(rig: Rig, how: str) -> None:
    """Nor keeps what only tells the server how to take a publish; the same as a publish."""
    added = {name for name in GIVES_WAY if name} | {"fasti-anything"}
    forged = [*sorted(OWN_PROPERTIES - {"deliver-at", "deliver-in"}), *sorted(added)]
    users = (
        *((name, "true" if "replace" in name or "only" in name else "kept") for name in forged),
        ("own", "1"),
    )
    watch = _watch(rig)
    if how == "publish":
        rig.connected("p").publish("w", "gone", 1, user_properties=users)
    else:
        carried = props(user_properties=users, will_delay=1 if how == "delayed" else None)
        rig.lasting("a", will=Will(b"w", b"gone", 1, how == "retained", properties=carried)).drop()
        rig.pass_ms(2_000)
    if how == "retained":
        watch.publishes()
        watch = rig.connected("late")
        watch.send(Subscribe(1, (("w", SubscribeOptions(1)),)))
        watch.take(Suback)
    (came,) = watch.publishes()
    ours = (("fasti-ordering-key", "kept"),) if how == "publish" else ()
    assert about(came).user_properties == (("own", "1"), *ours)
