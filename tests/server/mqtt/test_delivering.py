"""Deliveries: QoS, windows, redelivery, overlapping filters, options of subscriptions, expiry, what does not
fit: [MQTT-3.3.4], [MQTT-3.8], [MQTT-4.3], [MQTT-4.4], [MQTT-4.6]."""

import tracemalloc

import pytest

from server.codec import wire
from server.codec.packets import Ack, Pingreq, Publish
from server.codec.publish import Decoder
from server.delivery.message import Message
from server.mqtt.forms import Shape
from server.reports.figures import sys_records
from server.settings.times import format_ms
from shards.fields import Record, Retry, TryRow
from shards.properties import user_property
from tests.support.mqtt import user
from tests.support.rig import START_MS, Peer, Rig, about, config, props
from timeline.position import Position
from timeline.session import Subscription

LEVELS = pytest.mark.parametrize("level", [4, 5])


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return rig.lasting("a").subscribed("t")


@LEVELS
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("lasting", [True, False])
def test_the_lower_qos_counts(rig: Rig, level: int, granted: int, sent: int, lasting: bool) -> None:
    """[MQTT-3.8.4-8]"""
    peer = rig.lasting("a", level) if lasting else rig.connected("a", level)
    assert peer.subscribe("t", qos=granted) == (granted,)
    rig.connected("p").publish("t", "x", sent)
    (packet,) = peer.publishes()
    assert (packet.qos, packet.dup, packet.retain) == (min(sent, granted), False, False)


def test_qos_2_step_by_step(rig: Rig, peer: Peer) -> None:
    """Not on the wire before its cursor is durable; PUBREL not before PUBREC is."""
    rig.connected("p").publish("t", "x", 1)
    peer.publishes()
    publisher = rig.connected("q")
    publisher.publish("t", "two", 2, pump=False)
    rig.write()
    while rig.turn():
        pass
    rig.deliver()
    assert peer.inbox == []
    assert rig.compose()
    rig.deliver()
    assert peer.inbox == []
    rig.settle()
    rig.deliver()
    (packet,) = peer.publishes()
    peer.ack(wire.PUBREC, packet.packet_id, pump=False)
    rig.deliver()
    assert peer.inbox == []
    rig.compose()
    rig.deliver()
    assert peer.inbox == []
    rig.settle()
    rig.deliver()
    peer.take_ack(wire.PUBREL, packet.packet_id)
    peer.ack(wire.PUBCOMP, packet.packet_id)
    assert rig.session("a").session.flights.keys() == {1}


@pytest.mark.parametrize("due", [(), (("deliver-in", "0s"),)])
@LEVELS
def test_an_ordering_key_goes_with_the_message(level: int, due: tuple[tuple[str, str], ...]) -> None:
    """Plain or scheduled, at once, in a run of several and again; a publisher cannot forge the delivery's."""
    rig = Rig()
    peer = rig.lasting("a", level).subscribed("t")
    users = (("ordering-key", "c-1"), ("fasti-ordering-key", "forged"), ("k", "v"), *due)
    rig.connected("p").send(
        *[Publish(b"t", b"x", 1, packet_id=n, properties=props(user_properties=users)) for n in (1, 2)]
    )
    packets = peer.publishes()
    assert len(packets) == 2
    for packet in packets:
        said = packet.properties.user_properties if packet.properties is not None else ()
        keys = [value for name, value in said if name in ("ordering-key", "fasti-ordering-key")]
        assert keys == (["c-1"] if level == 5 else [])


@pytest.mark.parametrize(("text", "reason"), [("é" * 65, 0x97), ("a\x01b", 0x83), ("\u2028", 0x83)])
def test_an_ordering_key_that_http_would_refuse_is_refused(rig: Rig, text: str, reason: int) -> None:
    """Else no filter could name it, and no import take it back."""
    peer = rig.connected("p")
    users = (("ordering-key", text),)
    peer.send(Publish(b"t", b"x", 1, packet_id=1, properties=props(user_properties=users)))
    assert peer.take_ack(wire.PUBACK, 1).reason == reason


def test_what_comes_behind_qos_2_waits_with_it(rig: Rig) -> None:
    """[MQTT-4.6.0-6]"""
    peer = rig.lasting("a").subscribed("t/#")
    publisher = rig.connected("p")
    packets = [Publish(b"t/x", b"%d" % n, n % 3, packet_id=n + 1 if n % 3 else 0) for n in range(30)]
    publisher.send(*packets)
    found = [packet for packet in peer.inbox if isinstance(packet, Publish)]
    assert [packet.payload for packet in found] == [b"%d" % n for n in range(30)]


@LEVELS
def test_redelivery_is_first_and_in_order_with_the_same_packet_ids(rig: Rig, level: int) -> None:
    """[MQTT-4.4.0-1], [MQTT-4.6.0-1], [MQTT-3.3.1-1]"""
    peer = rig.lasting("a", level).subscribed("t")
    publisher = rig.connected("p")
    for number in range(6):
        publisher.publish("t", str(number), 1 + number % 2)
    sent = peer.publishes()
    assert [packet.packet_id for packet in sent] == [1, 2, 3, 4, 5, 6]
    peer.ack(wire.PUBREC, 4)
    peer.take_ack(wire.PUBREL, 4)
    peer.ack(wire.PUBACK, 3)
    peer.drop()
    publisher.publish("t", "new", 1)
    peer = rig.lasting("a", level)
    kinds = [(type(p).__name__, p.packet_id) for p in peer.inbox if isinstance(p, Ack | Publish)]
    in_flight = [("Publish", 1), ("Publish", 2), ("Ack", 4), ("Publish", 5), ("Publish", 6)]
    assert kinds == [*in_flight, ("Publish", 7)]
    first = peer.inbox[0]
    assert isinstance(first, Publish)
    assert (first.dup, first.payload, first.qos) == (True, b"0", 1)
    last = peer.inbox[-1]
    assert isinstance(last, Publish)
    assert (last.dup, last.payload) == (False, b"new")


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_redelivery_after_a_start(rig: Rig, peer: Peer, end: str) -> None:
    rig.send("t", *map(str, range(4)), qos=2)
    sent = peer.publishes()
    peer.ack(wire.PUBREC, 2)
    getattr(rig, end)()
    rig.pump()
    peer = rig.lasting("a")
    again = [(p.packet_id, isinstance(p, Publish)) for p in peer.inbox if isinstance(p, Ack | Publish)]
    assert again == [(1, True), (2, False), (3, True), (4, True)]
    assert [p.payload for p in sent] == [b"0", b"1", b"2", b"3"]
    assert all(p.dup for p in peer.inbox if isinstance(p, Publish))


@pytest.mark.parametrize("window", [1, 2, 7])
def test_the_client_s_receive_maximum(rig: Rig, window: int) -> None:
    """[MQTT-3.3.4-9]; QoS 0 is not counted."""
    peer = rig.lasting("a", receive_maximum=window).subscribed("t/#")
    publisher = rig.connected("p")
    for number in range(20):
        publisher.publish("t/x", str(number), 1 + number % 2)
    seen: list[bytes] = []
    while peer.inbox:
        batch = [p for p in peer.inbox if isinstance(p, Publish)]
        assert len(batch) <= window
        taken, peer.inbox = peer.inbox, []
        for packet in taken:
            if isinstance(packet, Publish):
                seen.append(packet.payload)
                peer.ack(wire.PUBACK if packet.qos == 1 else wire.PUBREC, packet.packet_id)
            elif isinstance(packet, Ack):
                flights = rig.session("a").session.flights
                assert len(flights) <= window
                peer.ack(wire.PUBCOMP, packet.packet_id)
    assert seen == [b"%d" % n for n in range(20)]


@LEVELS
def test_acks_in_any_order_open_the_window(level: int) -> None:
    """That of a client which cannot name one is `sessions.max_in_flight`."""
    rig = Rig(config(max_in_flight=5))
    peer = rig.lasting("a", level).subscribed("t")
    rig.send("t", *map(str, range(9)))
    sent = peer.publishes()
    for number in (4, 3):
        peer.ack(wire.PUBACK, sent[number].packet_id)
    assert [packet.payload for packet in (*sent, *peer.publishes())] == [b"%d" % n for n in range(7)]


def test_the_window_holds_for_redelivery_too(rig: Rig, peer: Peer) -> None:
    rig.send("t", *map(str, range(9)))
    assert len(peer.publishes()) == 9
    peer = peer.back(receive_maximum=2)
    found = []
    for _ in range(9):
        packets = peer.publishes()
        assert len(packets) <= 2
        found += [packet.payload for packet in packets]
        for packet in packets:
            peer.ack(wire.PUBACK, packet.packet_id, pump=False)
        rig.pump()
    assert found == [b"%d" % n for n in range(9)]


@pytest.mark.long
def test_65_534_in_flight() -> None:
    rig = Rig(config(max_in_flight=65_535, out_bytes=1 << 28, queued=1 << 20, receive_maximum=65_535))
    peer = rig.connected("a").subscribed("t", qos=1)
    publisher = rig.connected("p")
    for _ in range(66):
        publisher.send(*[Publish(b"t", b"x", 1, packet_id=n) for n in range(1, 1_001)])
        publisher.inbox.clear()
    packets = peer.publishes()
    assert [p.packet_id for p in packets] == list(range(1, 65_536))
    peer.ack(wire.PUBACK, 40_000)
    assert peer.one().packet_id == 40_000
    peer.send(*[Ack(wire.PUBACK, n) for n in range(1, 65_536)])
    assert len(peer.publishes()) == 66_000 - 65_536


@LEVELS
def test_overlapping_filters_give_one_copy(rig: Rig, level: int) -> None:
    """[MQTT-3.3.4-2] to [MQTT-3.3.4-4]"""
    peer = rig.lasting("a", level)
    for number, (text, qos) in enumerate((("a/b", 0), ("a/+", 2), ("#", 1), ("c", 2)), 1):
        peer.subscribe(text, qos=qos, **({"subscription_ids": (number * 200,)} if level == 5 else {}))
    rig.connected("p").publish2("a/b")
    (packet,) = peer.publishes()
    assert packet.qos == 2
    if level == 5:
        assert set(about(packet).subscription_ids) == {200, 400, 600}
    peer = peer.back()
    (packet,) = peer.publishes()
    assert packet.dup
    if level == 5:
        assert set(about(packet).subscription_ids) == {200, 400, 600}


def test_a_new_identifier_takes_the_place_of_the_old_one(rig: Rig) -> None:
    """[MQTT-3.8.4-3]"""
    peer = rig.connected("a")
    publisher = rig.connected("p")
    for ids in ((5,), (6,), ()):
        peer.subscribe("t", **({"subscription_ids": ids} if ids else {}))
        publisher.publish("t")
        (packet,) = peer.publishes()
        assert (packet.properties.subscription_ids if packet.properties else ()) == ids


@pytest.mark.parametrize("name", ["a", "x" * 300])
def test_no_local(rig: Rig, name: str) -> None:
    """[MQTT-3.8.3-3]"""
    peer = rig.lasting(name).subscribed("t", no_local=True)
    other = rig.connected("b")
    for qos in (0, 1, 2):
        peer.publish("t", "own", qos)
        other.publish("t", "theirs", qos)
    found = [p.payload for p in peer.inbox if isinstance(p, Publish)]
    assert found == [b"theirs"] * 3
    # Where another filter of the client wants its own messages too, it gets them once, by that one.
    peer = rig.connected("c").subscribed("u", no_local=True, subscription_ids=(1,))
    peer.subscribe("u/#", subscription_ids=(2,))
    peer.publish("u", "own")
    assert about(peer.one()).subscription_ids == (2,)


def test_retain_as_published(rig: Rig) -> None:
    """[MQTT-3.3.1-12], [MQTT-3.3.1-13]"""
    plain, kept, old = rig.connected("a").subscribed("t"), rig.connected("b"), rig.connected("c", 4)
    kept.subscribe("t", rap=True)
    old.subscribe("t")
    publisher = rig.connected("p")
    for retain in (True, False):
        publisher.publish("t", "x", retain=retain)
        for peer, expected in ((plain, False), (kept, retain), (old, False)):
            assert peer.one().retain == expected


def test_unsubscribe_while_in_flight(rig: Rig, peer: Peer) -> None:
    """[MQTT-3.10.4-2], [MQTT-3.10.4-3]: what was begun is finished, also on the next connection."""
    publisher = rig.connected("p")
    publisher.publish1("t", "one")
    publisher.publish2("t", "two")
    sent = peer.publishes()
    assert peer.unsubscribe("t") == (0,)
    publisher.publish1("t", "three")
    assert peer.inbox == []
    peer.ack(wire.PUBACK, sent[0].packet_id)
    peer = peer.back()
    (again,) = peer.publishes()
    assert (again.packet_id, again.dup, again.payload) == (sent[1].packet_id, True, b"two")
    peer.inbox = [again]
    assert peer.take_all() == ["two"]


def test_subscribing_again_on_each_connection_replays_nothing_and_loses_nothing(rig: Rig) -> None:
    publisher = rig.connected("p")
    seen = []
    for number in range(5):
        peer = rig.lasting("a")
        seen += peer.take_all()
        peer.subscribe("t", qos=1 + number % 2)
        publisher.publish1("t", f"here {number}")
        seen += peer.take_all()
        peer.drop()
        publisher.publish1("t", f"away {number}")
    assert seen == [f"{word} {n}" for n in range(5) for word in ("here", "away")][:-1]


def test_replay_from(rig: Rig) -> None:
    rig.lasting("keeper").subscribe("#")
    publisher = rig.connected("p")
    for number in range(5):
        publisher.publish1("t", str(number))
        rig.pass_ms(10_000)
    peer = rig.lasting("a").subscribed("u")
    publisher.publish1("u", "seen")
    assert peer.take_all() == ["seen"]
    peer.subscribe("t", user_properties=(("replay-from", "PT25S"),))
    assert peer.take_all() == ["3", "4"]
    peer.subscribe("t", user_properties=(("replay-from", "PT60S"),))
    assert peer.inbox == []
    since = format_ms(rig.clock.wall_ms() - 25_000)
    other = rig.connected("b").subscribed("t", user_properties=(("replay-from", since),))
    assert other.take_all() == ["3", "4"]
    for text in ("soon", "1796127600", "1796127600000"):
        assert peer.subscribe("v", user_properties=(("replay-from", text),)) == (0x83,)


def test_expired_messages_are_not_sent_and_the_rest_counts_down(rig: Rig, peer: Peer) -> None:
    """[MQTT-3.3.2-5], [MQTT-3.3.2-6]"""
    publisher = rig.connected("p")
    publisher.publish1("t", "now", message_expiry=10)
    (packet,) = peer.publishes()
    assert packet.properties == props(message_expiry=10)
    peer.ack(wire.PUBACK, packet.packet_id)
    peer.drop()
    publisher.publish1("t", "short", message_expiry=3)
    publisher.publish1("t", "long", message_expiry=60)
    publisher.publish1("$delayed/5/t", "delayed", message_expiry=60)
    publisher.publish1("$delayed/5/t", "delayed short", message_expiry=4)
    rig.pass_ms(20_000)
    peer = rig.lasting("a")
    found = peer.publishes()
    assert [p.payload for p in found] == [b"long", b"delayed"]
    left = [p.properties.message_expiry for p in found if p.properties]
    assert left == [40, 45]


def test_what_is_too_large_for_a_client_is_dropped_for_it() -> None:
    """[MQTT-3.1.2-25]"""
    for qos in (0, 1, 2):
        rig = Rig()
        small, big = rig.lasting("a", maximum_packet_size=60, receive_maximum=1), rig.connected("b")
        small.subscribe("t")
        big.subscribe("t")
        publisher = rig.connected("p")
        publisher.publish("t", "x" * 100, qos)
        publisher.publish("t", "small", qos)
        assert small.take_all() == ["small"]
        assert big.take_all() == ["x" * 100, "small"]
        assert not rig.session("a").session.flights


GIVES_WAY = (
    "fasti-tries",
    "fasti-late-ms",
    "fasti-schedule",
    "fasti-due",
    "fasti-ordering-key",
    "fasti-attempt",
    "fasti-ack-timeout",
    "fasti-id",
)
"""As docs/mqtt.md says it."""


def _users(data: bytes) -> list[str]:
    """Names of the user properties in a PUBLISH."""
    (packet,) = Decoder(1 << 20, 5, "client").feed(data)
    assert isinstance(packet, Publish)
    assert (about(packet).subscription_ids, about(packet).message_expiry) == ((7,), 60)
    return [name for name, _ in about(packet).user_properties]


@pytest.mark.parametrize("aliases_max", [0, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_the_server_adds_gives_way(qos: int, aliases_max: int) -> None:
    """For each Maximum Packet Size, of a message that has all of it: a packet is never larger, and loses no
    more than it must, in order."""
    record = Record(
        b"t",
        b"x" * 60,
        START_MS,
        qos,
        expires_ms=60_000,
        properties=user_property("own", "1"),
        ordering_key=b"k",
        schedule=b"nightly",
        retry=Retry(attempts=1, tries=[TryRow(START_MS, "w", "failed", "no", 5)]),
    )
    message = Message(Position(START_MS << 48 | 1), 0, record, START_MS)
    by = (Subscription("t", qos, Position(0), identifier=7, lease_ms=30_000),)
    more = b"\0\x09" if qos else b""
    absent = ["fasti-dead-reason", *(["fasti-ack-timeout"] if qos != 1 else [])]
    order = [name for name in GIVES_WAY if name not in absent]
    bare = 2 + (2 + 1) + len(more) + 1 + (1 + 2 + 3 + 2 + 1) + 5 + 2 + 60
    """Head, topic, packet id, length of the properties, `own`, expiry, subscription identifier, payload."""
    seen = set()
    for most in range(bare - 1, 700):
        shape = Shape(5, 1, most, aliases_max)
        found = shape.parts(message, qos, False, by, 1, False)
        if most < bare:
            assert found is None
            continue
        assert found is not None
        data = found[0] + more + found[1]
        assert len(data) <= most
        own, *added = _users(data)
        assert own == "own"
        left_out = len(order) - len(added)
        assert set(added) == set(order[left_out:])
        seen.add(left_out)
    assert seen == set(range(len(order) + 1))
    assert (shape._aliases == {b"t": 1}) == bool(aliases_max)
    # An alias that was not told is not counted on later.
    tight = Shape(5, 1, bare, aliases_max)
    assert tight.parts(message, qos, False, by, 1, False) == tight.parts(message, qos, False, by, 1, False)
    assert tight._aliases == {}
    # One that was told is not used where it is longer than the topic, and too long.
    if aliases_max:
        told = Shape(5, 1, bare, aliases_max)
        told._aliases[b"t"] = 1
        assert told.parts(message, qos, False, by, 1, False) == tight.parts(message, qos, False, by, 1, False)


@pytest.mark.parametrize("topic", ["t", "$share/g/t"])
@pytest.mark.parametrize("delay", [None, ("deliver-in", "1s")])
def test_a_message_that_fits_comes_and_comes_again(topic: str, delay: tuple[str, str] | None) -> None:
    """77 bytes as they were published, to a client that takes 80: at first, after a nack, and when it has
    been away."""
    rig = Rig()
    small = rig.lasting("a", maximum_packet_size=80)
    small.subscribe(topic, qos=1, **({"user_properties": (("ack-timeout", "30s"),)} if "$" in topic else {}))
    publisher = rig.connected("p")
    publisher.publish1("t", "x" * 60, **({"user_properties": (delay,)} if delay else {}))
    rig.pass_ms(1_500)
    for _ in range(2):
        (came,) = small.publishes()
        assert came.payload == b"x" * 60
        again = props(user_properties=(("retry-in", "0"),))
        small.send(Ack(wire.PUBACK, came.packet_id, 0x80, again))
        rig.pass_ms(1_500)
    small = small.back(maximum_packet_size=80)
    rig.pass_ms(40_000)
    (came,) = small.publishes()
    assert came.payload == b"x" * 60
    small.ack(wire.PUBACK, came.packet_id)
    assert rig.core.publishing.traffic.dropped == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_a_delivery_of_just_the_largest_size_is_sent(rig: Rig, qos: int) -> None:
    publisher = rig.connected("p")
    head = 2 + 2 + 1 + 1 + (2 if qos else 0)
    for size in (59, 60, 61):
        peer = rig.connected("a", maximum_packet_size=60).subscribed("t", qos=qos)
        publisher.publish("t", "x" * (size - head), qos)
        assert len(peer.publishes()) == (size <= 60)


def test_the_reason_of_a_dead_letter_gives_way(rig: Rig) -> None:
    bare = 2 + 2 + len("$dead/a/t") + 2 + 1 + 4 + 5
    """Head, topic, packet id, length of the properties, content type, payload."""
    fits, tight, short = (rig.connected(str(n), maximum_packet_size=n) for n in (200, bare, bare - 1))
    peer = rig.lasting("a")
    for one in (fits, tight, short):
        one.subscribe("$dead/#", qos=1)
    peer.subscribe("t", qos=1)
    rig.connected("p").publish1("t", "hello", content_type="3")
    (came,) = peer.publishes()
    refused = props(user_properties=(("retry-in", "never"), ("reason", "no")))
    peer.send(Ack(wire.PUBACK, came.packet_id, 0x83, refused))
    (whole,), (less,) = fits.publishes(), tight.publishes()
    assert whole.properties == props(content_type="3", user_properties=(("fasti-dead-reason", "no"),))
    assert less.properties == props(content_type="3")
    assert not short.publishes()


def test_topic_aliases_of_the_server(rig: Rig) -> None:
    """[MQTT-3.1.2-26], [MQTT-3.1.2-27]"""
    peer, plain = rig.lasting("a", topic_alias_maximum=2), rig.connected("b")
    peer.subscribe("#", subscription_ids=(3,))
    plain.subscribe("#")
    publisher = rig.connected("p")
    for topic in ("one", "two", "one", "three", "two", "three"):
        publisher.publish(topic, topic, 1)
    found = [(p.topic.decode(), p.properties.topic_alias if p.properties else None) for p in peer.publishes()]
    assert found == [("one", 1), ("two", 2), ("", 1), ("three", None), ("", 2), ("three", None)]
    assert all(packet.properties is None for packet in plain.publishes())
    peer = peer.back(topic_alias_maximum=1)
    again = [(p.topic.decode(), p.properties.topic_alias if p.properties else None) for p in peer.publishes()]
    assert again == [("one", 1), ("two", None), ("", 1), ("three", None), ("two", None), ("three", None)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a/#/b", 0x8F),
        ("a#", 0x8F),
        ("a+/b", 0x8F),
        ("#/", 0x8F),
        ("$share/", 0x8F),
        ("$share//t", 0x8F),
        ("$share/g", 0x8F),
        ("$share/g/", 0x8F),
        ("$share/g+/t", 0x8F),
        ("$share/g#/t", 0x8F),
        ("$share/#/t", 0x8F),
        ("$share/g/t#", 0x8F),
        ("denied/x", 0x87),
        ("$share/g/denied/x", 0x87),
        ("+", 2),
        ("/", 2),
        ("//", 2),
        ("$share", 2),
        ("a/+/#", 2),
        ("$share/g//", 2),
    ],
)
def test_filters(text: str, reason: int) -> None:
    """[MQTT-4.7.1-1] to [MQTT-4.7.3-4], [MQTT-4.8.2-1], [MQTT-4.8.2-2]; the others of a packet stand."""
    rig = Rig(config(deny_subscribe=("denied/#",)))
    assert rig.connected("a").subscribe("ok", text, "fine") == (2, reason, 2)
    assert rig.connected("b", 4).subscribe("ok", text, "fine") == (2, min(reason, 0x80), 2)


@pytest.mark.parametrize(
    ("kind", "qos"), [(wire.PUBREC, 1), (wire.PUBCOMP, 1), (wire.PUBACK, 2), (wire.PUBCOMP, 2)]
)
def test_acks_of_the_wrong_kind(kind: int, qos: int) -> None:
    for level in (4, 5):
        rig = Rig()
        peer = rig.lasting("a", level).subscribed("t")
        rig.connected("p").publish("t", "x", qos)
        (packet,) = peer.publishes()
        peer.ack(kind, packet.packet_id)
        assert peer.gone_with == (0x82 if level == 5 else None)
        peer = rig.lasting("a", level)
        (again,) = peer.publishes()
        assert (again.packet_id, again.dup) == (packet.packet_id, True)


def test_pubrec_with_a_failure_ends_the_delivery(rig: Rig) -> None:
    """[MQTT-4.3.3-4]"""
    peer = rig.lasting("a", receive_maximum=1).subscribed("t")
    rig.send("t", "one", "two", qos=2)
    peer.ack(wire.PUBREC, peer.one().packet_id, 0x83)
    assert peer.one().payload == b"two"


def test_wildcards_do_not_match_the_server_s_topics(rig: Rig) -> None:
    """[MQTT-4.7.2-1]"""
    wild, own = rig.connected("a").subscribed("#", "+/broker/#", "+/#"), rig.connected("b")
    own.subscribe("$SYS/#", "$SYS/broker/+")
    rig.core.publishing.publish_system(sys_records(rig.core, "1", 5), rig.core.retained.note_volatile)
    rig.pump()
    assert wild.inbox == []
    assert len(own.publishes()) > 5
    late = rig.connected("c").subscribed("#")
    assert late.inbox == []
    late.subscribe("$SYS/broker/uptime")
    (packet,) = late.publishes()
    assert (packet.retain, packet.payload) == (True, b"5 seconds")


def figures_of(rig: Rig) -> dict[str, str]:
    records = sys_records(rig.core, "1", 5)
    return {one.topic.decode().removeprefix("$SYS/broker/"): one.payload.decode() for one in records}


def test_sys_tells_of_clients_as_mosquitto_does() -> None:
    rig = Rig()
    lasting, brief = rig.lasting("a"), rig.connected("b")
    lasting.drop()
    rig.lasting("a", expiry=1)
    again = rig.lasting("a", expiry=1)  # takes over: one client, not two
    assert figures_of(rig)["clients/maximum"] == figures_of(rig)["clients/connected"] == "2"
    brief.disconnect()
    again.drop()
    told = figures_of(rig)
    assert (told["clients/connected"], told["clients/disconnected"], told["clients/maximum"]) == (
        "0",
        "1",
        "2",
    )
    rig.pass_ms(2_000)
    rig.core.clients.end_expired(list(rig.core.sessions))
    told = figures_of(rig)
    assert (told["clients/expired"], told["clients/total"], told["clients/maximum"]) == ("1", "0", "2")
    refused = Rig(config(sessions=1))
    refused.connected("a")
    assert refused.peer().connect("b").reason == 0x97
    assert figures_of(refused)["clients/maximum"] == "1"


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("count", [1, 5])
def test_sys_counts_payloads_and_what_is_stored(rig: Rig, level: int, count: int) -> None:
    """One by one, in a run, again after a lost connection, and late."""
    peer, publisher = rig.lasting("a", level).subscribed("t", qos=1), rig.connected("p", level)
    publisher.send(*[Publish(b"t", b"x" * 10, 1, packet_id=n + 1) for n in range(count)])
    peer = peer.back()
    assert len(peer.publishes()) == count
    publisher.inbox.clear()
    publisher.publish1("$delayed/60/t", "x" * 7, packet_id=99)
    told = figures_of(rig)
    assert told["publish/bytes/received"] == str(10 * count + 7)
    assert told["publish/bytes/sent"] == str(2 * 10 * count)
    assert told["store/messages/count"] == told["messages/stored"] == str(count + 1)
    assert int(told["store/messages/bytes"]) > 10 * count + 7
    rig.pass_ms(61_000)
    assert figures_of(rig)["publish/bytes/sent"] == str(2 * 10 * count + 7)


def test_the_fasti_properties_and_attempts(rig: Rig, peer: Peer) -> None:
    ack = rig.connected("p").publish1("$delayed/5/t", "x", user_properties=(("own", "1"),))
    rig.pass_ms(6_000)
    for attempt in (1, 2, 3):
        (packet,) = peer.publishes()
        assert user(packet, "fasti-id") == user(ack, "fasti-id")
        assert user(packet, "own") == "1"
        assert user(packet, "fasti-attempt") == (None if attempt == 1 else str(attempt))
        peer = peer.back()


def test_poison_messages_go_to_dead() -> None:
    rig = Rig(config(max_attempts=2))
    grave = rig.connected("grave").subscribed("$dead/#")
    name = "a/b+#"
    peer = rig.lasting(name).subscribed("t/x")
    rig.connected("p").publish2("t/x", "bad")
    rig.connected("p").publish1("t/x", "bad too")
    for _ in range(2):
        assert len(peer.publishes()) == 2
        peer = peer.back()
    assert peer.inbox == []
    dead = grave.publishes()
    assert [(p.topic, p.payload) for p in dead] == [
        (b"$dead/a%2Fb%2B%23/t/x", b"bad"),
        (b"$dead/a%2Fb%2B%23/t/x", b"bad too"),
    ]
    assert "2 deliveries" in (user(dead[0], "fasti-dead-reason") or "")


def test_the_bound_on_subscriptions() -> None:
    rig = Rig(config(subscriptions_per_session=2))
    peer = rig.connected("a")
    assert peer.subscribe("a", "$share/g/b", "c") == (2, 2, 0x97)
    assert peer.subscribe("a", "$share/g/b", qos=1) == (1, 1)


def test_a_stalled_reader_costs_a_bounded_amount_and_slows_nobody() -> None:
    rig = Rig(config(out_bytes=4_096))
    stalled, others = rig.lasting("s"), [rig.connected(f"o{n}") for n in range(3)]
    for peer in (stalled, *others):
        peer.subscribe("t")
    stalled.is_reading = False
    publisher = rig.connected("p")
    for _ in range(20):
        publisher.send(*[Publish(b"t", b"x" * 200) for _ in range(10)])
        publisher.publish1("t", "y" * 200)
    assert all(len(peer.take_all()) == 220 for peer in others)
    assert sum(map(len, stalled.connection.outbox._out)) < 3 * 4_096
    stalled.is_reading = True
    rig.pump()
    found = stalled.take_all()
    assert found.count("y" * 200) == 20


@pytest.mark.long
def test_dispatch_keeps_nothing_for_those_who_are_away(rig: Rig) -> None:
    """A stored message that everybody reads later costs a look at each of them, no object."""
    for number in range(500):
        peer = rig.lasting(f"s{number}").subscribed("t")
        peer.drop()
    publisher = rig.connected("p")
    publisher.publish1("t", "the route is known")
    publisher.publish("t", "x", 1, pump=False)
    rig.write()
    tracemalloc.start()
    rig.core.dispatch.turn()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rig.core.dispatch.counts.dispatched == 2
    assert peak < 500 * 4, "not even a list of them"


def test_deliveries_may_wait_for_others_answers_do_not(rig: Rig) -> None:
    """What asks to be written says which it is, once for all that is gathered until then."""
    peer, publisher = rig.connected("a").subscribed("t", qos=0), rig.connected("p")
    peer.planned.clear()
    for _ in range(2):
        publisher.publish("t", "x", pump=False)
    rig.write()
    while rig.turn():
        """Both are given out."""
    assert peer.planned == ["deliveries"]
    for _ in range(2):
        peer.send(Pingreq(), pump=False)
    assert peer.planned == ["deliveries", "answers"]
    rig.pump()
    peer.send(Pingreq(), pump=False)
    assert peer.planned == ["deliveries", "answers", "answers"]
