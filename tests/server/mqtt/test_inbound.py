"""Publishes of clients: QoS 1 and 2, aliases, limits, what is refused and how: [MQTT-3.3], [MQTT-4.3]."""

from collections.abc import Sequence

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish
from shards.record import decode
from shards.store import Table
from tests.support.build import OPENED
from tests.support.encode import encode
from tests.support.rig import Rig, about, config, props

LEVELS = pytest.mark.parametrize("level", [4, 5])


@LEVELS
@pytest.mark.parametrize("lasting", [True, False])
def test_qos_2_is_published_once_however_often_it_comes(rig: Rig, level: int, lasting: bool) -> None:
    """[MQTT-4.3.3-8] to [MQTT-4.3.3-12]"""
    watch = rig.connected("w").subscribed("t")
    peer = rig.lasting("a", level) if lasting else rig.connected("a", level)
    for _ in range(3):
        assert peer.begin("t", "one", packet_id=7).reason == 0
    assert watch.take_all() == ["one"]
    assert peer.release(7).reason == 0
    peer.begin("t", "two", packet_id=7)
    assert watch.take_all() == ["two"]
    peer.release(7)
    assert peer.release(7).reason == (0x92 if level == 5 else 0)


@pytest.mark.parametrize("stop", ["drop", "takeover", "crash", "restart"])
def test_qos_2_goes_on_where_it_stood(rig: Rig, stop: str) -> None:
    watcher = rig.lasting("w").subscribed("t")
    peer = rig.lasting("a")
    peer.begin("t", "one", packet_id=7)
    if stop == "drop":
        peer.drop()
    elif stop in ("crash", "restart"):
        getattr(rig, stop)()
        rig.pump()
        watcher = rig.lasting("w")
    peer = rig.lasting("a")
    assert peer.begin("t", "one", packet_id=7, dup=True).reason == 0
    assert peer.release(7).reason == 0
    assert set(watcher.take_all()) <= {"one"}
    assert sum(len([p for p in packets if isinstance(p, Publish)]) for packets in [watcher.inbox]) == 0


def test_pubrec_leaves_after_message_and_packet_id_are_durable(rig: Rig) -> None:
    peer = rig.lasting("a")
    peer.publish("t", "x", 2, packet_id=7, pump=False)
    assert rig.compose()
    for _ in range(5):
        rig.turn()
        rig.deliver()
    assert peer.inbox == []
    rig.settle()
    rig.deliver()
    peer.take_ack(wire.PUBREC, 7)
    rig.pump()
    peer.ack(wire.PUBREL, 7, pump=False)
    assert rig.compose()
    rig.deliver()
    assert peer.inbox == []
    rig.settle()
    rig.deliver()
    peer.take_ack(wire.PUBCOMP, 7)


def test_the_packet_id_of_a_refused_publish_is_free_again() -> None:
    """[MQTT-4.3.3-9]: also after a kill."""
    rig = Rig(config(pending=1))
    peer = rig.lasting("a")
    peer.publish1("$delayed/100/t", "fills the quota")
    assert peer.begin("$delayed/100/t", "x", packet_id=9).reason == 0x97
    watch = rig.connected("w").subscribed("t")
    assert peer.begin("t", "at once", packet_id=9).reason == 0
    assert watch.take_all() == ["at once"]
    peer.release(9)
    assert peer.begin("$delayed/100/t", "x", packet_id=9).reason == 0x97
    rig.crash(pump=True)
    watch = rig.connected("w").subscribed("t")
    peer = rig.lasting("a")
    assert peer.begin("t", "real", packet_id=9).reason == 0
    assert watch.take_all() == ["real"]


ALIAS = encode(Publish(b"t", b"y", 0, properties=props(topic_alias=999)), 5)


@pytest.mark.parametrize(("level", "bad"), [(4, b"\0\0"), (5, b"\0\0"), (5, ALIAS)])
def test_a_good_publish_before_a_fault_in_one_chunk_is_not_stuck(rig: Rig, level: int, bad: bytes) -> None:
    watch = rig.connected("w").subscribed("t")
    peer = rig.lasting("a", level)
    peer.send_bytes(encode(Publish(b"t", b"x", 2, packet_id=4), level) + bad)
    assert peer.is_closed
    peer = rig.lasting("a", level)
    peer.begin("t", "x", packet_id=4, dup=True)
    assert watch.take_all() == ["x"]


def test_acks_come_in_the_order_of_the_publishes(rig: Rig) -> None:
    """[MQTT-4.6.0-2] to [MQTT-4.6.0-4], though some are stored and some are not."""
    rig.lasting("s").subscribe("stored")
    rig.connected("l").subscribe("live")
    peer = rig.connected("p")
    packets = [
        Publish((b"stored", b"live", b"nobody", b"$delayed/9/t")[n % 4], b"x", n % 2 + 1, packet_id=n + 1)
        for n in range(40)
    ]
    peer.send(*packets)
    assert [packet.packet_id for packet in peer.inbox if isinstance(packet, Ack)] == list(range(1, 41))


def test_more_in_one_chunk_than_receive_maximum(rig: Rig) -> None:
    """A thousand wait for their sync: what was announced holds before any of them is acked."""
    peer = rig.connected()
    peer.send(*(Publish(b"$delayed/600/t", b"x", 1, packet_id=n) for n in range(1, 4_000)))
    assert peer.gone_with == 0x93


def test_receive_maximum_is_enforced() -> None:
    """[MQTT-3.3.4-7] is the client's to keep; 0x93 says that it did not."""
    rig = Rig(config(receive_maximum=3))
    peer = rig.lasting("a")
    for number in range(3):
        peer.publish("t", "x", 2)
        peer.take_ack(wire.PUBREC, number + 1)
    peer.publish("t", "x", 0)
    assert peer.inbox == []
    peer.begin("t", "again", packet_id=2, dup=True)
    peer.publish("t", "x", 1)
    assert peer.gone_with == 0x93
    # On a new connection the count begins anew, though three are still to be released.
    peer = rig.lasting("a")
    peer._packet_id = 10
    for _ in range(3):
        peer.begin("t", "x")
    peer.publish("t", "x", 2)
    assert peer.gone_with == 0x93


def test_topic_aliases_of_clients() -> None:
    """[MQTT-3.3.2-7] to [MQTT-3.3.2-12]"""
    rig = Rig()
    watch = rig.connected("w").subscribed("#")
    peer = rig.connected("a")
    peer.publish("one", "1", topic_alias=1)
    peer.publish("", "2", topic_alias=1)
    peer.publish("two", "3", topic_alias=1)
    peer.publish("", "4", topic_alias=1)
    peer.publish("three", "5", topic_alias=32)
    found = watch.publishes()
    assert [packet.topic for packet in found] == [b"one", b"one", b"two", b"two", b"three"]
    assert all(packet.properties is None for packet in found)
    again = rig.connected("b")
    again.publish("", "x", topic_alias=1)
    assert again.gone_with == 0x82
    for alias in (0, 33):
        peer = rig.connected()
        data = b"\x30\x08\x00\x01t\x03\x23" + alias.to_bytes(2, "big") + b"x"
        peer.send_bytes(bytes((0x30, len(data) - 2)) + data[2:])
        assert peer.gone_with == 0x94
    none = Rig(config(topic_alias_maximum=0))
    assert none.peer().connect("a").properties.topic_alias_maximum is None  # type: ignore[union-attr]
    peer = none.connected()
    peer.publish("t", "x", topic_alias=1)
    assert peer.gone_with == 0x94


def test_payload_format_is_checked(rig: Rig) -> None:
    """0x99 where the payload is said to be UTF-8 and is not."""
    peer = rig.connected()
    assert peer.publish1("t", b"\xff", payload_format=1).reason == 0x99  # type: ignore[arg-type]
    assert peer.publish1("t", "ä", payload_format=1).reason in (0, 0x10)
    assert peer.begin("t", b"\xff", payload_format=1, packet_id=40).reason == 0x99
    assert peer.begin("t", b"\xff", payload_format=0, packet_id=40).reason in (0, 0x10)


def test_qos_and_retain_beyond_what_was_announced() -> None:
    """[MQTT-3.2.2-11], [MQTT-3.2.2-14]"""
    for level in (4, 5):
        rig = Rig(config(maximum_qos=1, retain_available=False))
        peer = rig.connected(level=level)
        peer.publish("t", "x", 2)
        assert peer.gone_with == (0x9B if level == 5 else None)
        peer = rig.connected(level=level)
        peer.publish("t", "x", 1, retain=True)
        assert peer.gone_with == (0x9A if level == 5 else None)
        assert peer.is_closed
        peer = rig.connected(level=level)
        assert peer.subscribe("t", qos=2) == (1,)


def test_nobody_subscribes(rig: Rig) -> None:
    peer = rig.connected()
    assert peer.publish1("t").reason == 0x10
    assert peer.begin("t", packet_id=50).reason == 0x10
    rig.connected().subscribe("t")
    assert peer.publish1("t").reason == 0
    old = rig.connected(level=4)
    assert old.publish1("u").reason == 0


DAY_S = 86_400
NOW_S = 1_795_248_000
"""2026-11-21T08:00:00Z, when a rig begins."""


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize(
    ("number", "due_s"),
    [
        ("0", 0),
        ("900", 900),
        (f"{497 * DAY_S}", 497 * DAY_S),
        ("42949669", 42_949_669),
        ("42949670", None),
        ("43200000", None),
        ("100000000", None),
        ("315360000", None),
        ("999999999", None),
        ("1000000000", 1_000_000_000 - NOW_S),
        (f"{NOW_S - 3 * 365 * DAY_S}", -3 * 365 * DAY_S),
        (f"{NOW_S + 50}", 50),
        ("3000000000", None),  # 2065: beyond limits.max_delay
        ("179524805000", None),
        (f"{NOW_S + 50}000", None),
    ],
)
def test_what_cannot_be_meant_behind_delayed_is_refused(level: int, number: str, due_s: int | None) -> None:
    """One alone, and two in one chunk, which are read another way."""
    rig = Rig()
    peer = rig.connected("p", level=level)
    peer.send(*(Publish(b"$delayed/%b/t" % number.encode(), b"x", 1, packet_id=n) for n in (1, 2)))
    rows = rig.core.opened.store.scan(Table.MESSAGES, b"", b"\xff" * 32)
    dues = [decode(value).due_ms // 1_000 - NOW_S for _, value in rows]
    assert dues == ([] if due_s is None else [due_s, due_s])
    assert peer.is_closed is (level == 4 and due_s is None)


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("$delayed/43200000/t", ("500 days", "1971-05-16T00:00:00.000Z")),
        ("$delayed/1796127600000/t", ("Unix ms is 2026-12-01T12:20:00.000Z",)),
        ("$delayed/999999999999/t", ("Unix ms is 2001-09-09T01:46:39.999Z",)),
    ],
)
def test_the_refusal_names_both_readings(topic: str, said: tuple[str, ...]) -> None:
    ack = Rig().connected().publish1(topic)
    assert ack.reason == 0x90
    assert all(words in str(about(ack).reason_string) for words in said), ack.properties


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("deliver-at", "1796127600", "Unix s is 2026-12-01T12:20:00.000Z"),
        ("deliver-at", "1970-01-21T18:55:27.600Z", "Unix s is 2026-12-01T12:20:00.000Z"),
        ("deliver-at", "9999-12-31T23:59:59Z", "the delay is longer than limits.max_delay"),
        ("deliver-in", "1796127600", "Unix s is 2026-12-01T12:20:00.000Z"),
        ("deliver-in", "1796127600000", "Unix ms is 2026-12-01T12:20:00.000Z"),
    ],
)
def test_a_property_of_another_unit_is_refused(name: str, value: str, said: str) -> None:
    ack = Rig().connected().publish1("t", user_properties=((name, value),))
    assert ack.reason == 0x90
    assert str(about(ack).reason_string).endswith(said)


@pytest.mark.parametrize(
    ("topic", "users"),
    [
        *((f"$delayed/{rest}", ()) for rest in ("-1/t", "5/", "/t", "5/$SYS/t", "99999999999/t")),
        *(("t", (("deliver-in", delay),)) for delay in ("soon", "-5s", "P1M", "4000d")),
        *(("t", (("deliver-at", time),)) for time in ("tomorrow", "2027-01-01T00:00:00")),
        ("t", (("deliver-at", "2027-01-01T00:00:00Z"), ("deliver-in", "5s"))),
    ],
)
def test_a_delay_that_is_none_is_refused(topic: str, users: tuple[tuple[str, str], ...]) -> None:
    peer = Rig().connected()
    assert peer.publish1(topic, user_properties=users).reason == 0x90
    assert peer.publish1("t").reason < 0x80, "the connection goes on"


def test_an_idempotency_key_that_is_too_long_is_refused() -> None:
    """0x95 is none of the codes that a PUBACK may carry (MQTT 5, table 3-4)."""
    ack = Rig().connected().publish1("t", user_properties=(("idempotency-key", "k" * 257),))
    assert ack.reason >= 0x80
    assert ack.reason != 0x95


@pytest.mark.parametrize("delay", ["PT0.3S", "0.3s", "300ms", "0.3"])
def test_deliver_in(rig: Rig, delay: str) -> None:
    peer = rig.connected()
    peer.subscribe("t")
    ack = peer.publish1("t", user_properties=(("deliver-in", delay), ("mine", "1")))
    rig.pass_ms(299)
    assert peer.inbox == []
    rig.pass_ms(1)
    (packet,) = peer.publishes()
    told = about(packet)
    assert told.user("fasti-id") == about(ack).user("fasti-id")
    assert (told.user("mine"), told.user("deliver-in")) == ("1", None)
    assert int(told.user("fasti-late-ms") or "-1") >= 0


def test_properties_go_through_as_they_came(rig: Rig) -> None:
    """[MQTT-3.3.2-4], [MQTT-3.3.2-15] to [MQTT-3.3.2-20]"""
    given = props(
        payload_format=1,
        content_type="text/plain",
        response_topic="answers/1",
        correlation_data=b"\x00\x01",
        user_properties=(("b", "1"), ("a", "2"), ("b", "3"), ("", "")),
    )
    rig.lasting("away").subscribed("t").drop()
    here = rig.connected("here").subscribed("t")
    old = rig.connected("old", 4).subscribed("t", qos=1)
    rig.connected("p").send(Publish(b"t", b"x", 1, packet_id=1, properties=given))
    away = rig.lasting("away")
    for peer in (here, away):
        assert peer.one().properties == given
    assert old.one().properties is None


def test_pubrel_before_pubrec_has_left(rig: Rig) -> None:
    watch = rig.connected("w").subscribed("t")
    peer = rig.lasting("a")
    peer.send(Publish(b"t", b"x", 2, packet_id=3), Ack(wire.PUBREL, 3))
    kinds = [packet.kind for packet in peer.inbox if isinstance(packet, Ack)]
    assert sorted(kinds) == [wire.PUBREC, wire.PUBCOMP]
    assert watch.take_all() == ["x"]
    peer.inbox.clear()
    peer.begin("t", "y", packet_id=3)
    assert watch.take_all() == ["y"]


def ids_of(acks: Sequence[object]) -> list[str | None]:
    return [
        ack.properties.user("fasti-id") if ack.properties is not None else None
        for ack in acks
        if isinstance(ack, Ack)
    ]


class TestDelayedRuns:
    """Usual publishes to `$delayed/` that come in one chunk are one request, and one answer."""

    @LEVELS
    def test_each_is_answered_and_delivered_as_if_it_were_alone(self, level: int) -> None:
        rig = Rig()
        watch = rig.connected("w").subscribed("#", qos=1)
        peer = rig.connected("p", level)
        before = rig.core.publishing.traffic.received
        packets = [
            Publish(b"$delayed/%d/t/%d" % (n % 3, n), b"p%d" % n, n % 2, packet_id=n % 2 and n + 1)
            for n in range(20)
        ]
        peer.send(*packets, pump=False)
        assert rig.core.writer.queued == 20
        rig.pump()
        assert rig.core.publishing.traffic.received == before + 20
        acks = [packet for packet in peer.inbox if isinstance(packet, Ack)]
        assert [ack.packet_id for ack in acks] == list(range(2, 21, 2))
        names = ids_of(acks)
        assert len(set(names)) == (10 if level == 5 else 1)
        assert (None in names) == (level < 5)
        rig.pass_ms(3_000)
        found = watch.publishes()
        assert sorted(p.payload for p in found) == sorted(b"p%d" % n for n in range(20))
        told = {p.payload: p.properties.user("fasti-id") for p in found if p.properties is not None}
        if level == 5:
            assert [told[b"p%d" % n] for n in range(1, 20, 2)] == names

    @OPENED
    def test_one_chunk_is_one_request(self) -> None:
        rig = Rig()
        peer = rig.connected("p")
        for levels, requests in ((b"dd", 1), (b"ddp", 2), (b"dpdp", 2), (b"pd", 1)):
            topics = [b"$delayed/9/t" if kind == ord("d") else b"t" for kind in levels]
            peer.send(*(Publish(t, b"x", 1, packet_id=n + 1) for n, t in enumerate(topics)), pump=False)
            assert len(rig.core.writer._queue.all) == requests
            rig.pump()

    def test_a_topic_that_only_looks_like_it_is_none(self) -> None:
        rig = Rig()
        rig.connected("p").publish1("$deferre/5/t", "x")
        assert not list(rig.core.opened.store.scan(Table.MESSAGES, b"", b"\xff" * 32))

    def test_what_is_stored_is_what_the_general_way_stores(self) -> None:
        values = []
        for users in ((), (("idempotency-replace", "false"),)):
            rig = Rig()
            peer = rig.connected("p")
            peer.publish1("$delayed/7/a/b", b"\0\1x", user_properties=users)
            (row,) = rig.core.opened.store.scan(Table.MESSAGES, b"", b"\xff" * 32)
            values.append(row)
        assert values[0] == values[1]

    def test_an_absolute_time_too(self) -> None:
        rig = Rig()
        peer = rig.connected("p")
        at_s = rig.clock.wall_ms() // 1_000 + 50
        peer.publish1(f"$delayed/{at_s}/t", "x")
        ((_, value),) = rig.core.opened.store.scan(Table.MESSAGES, b"", b"\xff" * 32)
        assert decode(value).due_ms == at_s * 1_000

    def test_of_a_run_that_is_too_long_for_the_quota_as_many_are_taken_as_may_be(self) -> None:
        rig = Rig(config(pending=3))
        peer = rig.connected("p")
        peer.send(*(Publish(b"$delayed/9/t", b"x", 1, packet_id=n) for n in range(1, 6)))
        acks = [packet for packet in peer.inbox if isinstance(packet, Ack)]
        assert [ack.reason for ack in acks] == [0, 0, 0, 0x97, 0x97]
        assert [name is not None for name in ids_of(acks)] == [True] * 3 + [False] * 2
        assert rig.core.publishing.traffic.refused == 2
        assert rig.core.opened.waiting.pending == 3

    def test_of_a_run_that_finds_no_room_all_are_refused(self) -> None:
        rig = Rig(config(queued=100))
        peer = rig.connected("p")
        rig.core.writer.submit(lambda commit: None, lambda answer: None, cost=100)
        peer.send(*(Publish(b"$delayed/9/t", b"x", 1, packet_id=n) for n in range(1, 4)))
        acks = [packet for packet in peer.inbox if isinstance(packet, Ack)]
        assert [ack.reason for ack in acks] == [0x97] * 3
        assert not rig.core.opened.waiting.pending

    def test_what_comes_between_them_keeps_its_place(self) -> None:
        rig = Rig()
        watch = rig.connected("w").subscribed("#", qos=1)
        peer = rig.connected("p")
        topics = (b"$delayed/0/a", b"$delayed/0/b", b"c", b"$delayed/0/d", b"e", b"$delayed/0/f")
        peer.send(*(Publish(topic, topic, 1, packet_id=n + 1) for n, topic in enumerate(topics)))
        assert [ack.packet_id for ack in peer.inbox if isinstance(ack, Ack)] == list(range(1, 7))
        rig.pump()
        assert [p.topic for p in watch.publishes()] == [b"a", b"b", b"c", b"d", b"e", b"f"]

    def test_a_packet_id_that_is_in_use_is_refused_alone(self) -> None:
        rig = Rig()
        peer = rig.connected("p")
        peer.send(*(Publish(b"$delayed/9/t", b"x", 1, packet_id=n) for n in (1, 2, 1, 3)))
        acks = [packet for packet in peer.inbox if isinstance(packet, Ack)]
        assert [(ack.packet_id, ack.reason) for ack in acks] == [(1, 0), (2, 0), (1, 0x91), (3, 0)]

    @pytest.mark.parametrize(
        "topic", ["$delayed/x/t", "$delayed/5", "$delayed/5/$SYS/x", "$delayed/99999999999/t", "$dead/5/5/t"]
    )
    def test_what_is_wrong_with_one_is_said_of_it_alone(self, topic: str) -> None:
        rig = Rig()
        peer = rig.connected("p")
        names = (b"$delayed/9/t", topic.encode(), b"$delayed/9/t")
        peer.send(*(Publish(name, b"x", 1, packet_id=n + 1) for n, name in enumerate(names)))
        acks = [packet for packet in peer.inbox if isinstance(packet, Ack)]
        assert [(ack.packet_id, ack.reason >= 0x80) for ack in acks] == [(1, False), (2, True), (3, False)]


@pytest.mark.parametrize("bound", [{"queued": 100}, {"queued_bytes": 1 << 16}])
def test_below_level_5_a_publish_waits_where_it_cannot_be_refused(bound: dict[str, int]) -> None:
    """The queue is full of others' requests: at level 5 that is said, below it there is no way to say it."""
    rig = Rig(config(**bound))
    peers = {level: rig.connected(str(level), level) for level in (4, 5)}
    size = bound.get("queued_bytes", 0)
    rig.core.writer.submit(lambda commit: None, lambda answer: None, cost=100, size=size)
    ids = {level: peer.publish("$delayed/60/t", qos=1, pump=False) for level, peer in peers.items()}
    rig.pump()
    assert peers[5].take_ack(wire.PUBACK, ids[5]).reason == 0x97
    assert not peers[4].is_closed
    assert peers[4].take_ack(wire.PUBACK, ids[4]).reason == 0


def test_below_level_5_no_more_is_taken_than_counts_as_congestion() -> None:
    rig = Rig(config(queued=100))
    peers = [rig.connected(str(number), 4) for number in range(50)]
    watch = rig.lasting("watch", receive_maximum=1_000).subscribed("#", qos=1)
    for peer in peers:
        for _ in range(10):
            peer.publish("t", qos=1, pump=False)
    waiting = [peer for peer in peers if peer.connection.is_unfinished]
    assert len(waiting) == 45  # 51 publishes are more than half of the bound
    assert all(peer.connection.has_published and peer.connection.kept_bytes for peer in waiting)
    rig.pump()
    for peer in peers:
        assert len(peer.inbox) == 10
    assert len(watch.publishes()) == 500
