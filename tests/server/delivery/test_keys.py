"""Keys over MQTT: who comes in, what rules let through, also those that are made later, and what ends."""

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from server.auth.backoff import FREE
from server.auth.keyring import OWN_NAME, Keyring
from server.codec import wire
from server.codec.packets import Connect, Disconnect, Publish, Subscribe, SubscribeOptions, Will
from server.delivery.terms import LASTING
from server.mqtt.authenticator import Authenticator
from shards.keys import OWNED, under
from shards.store import Table
from tests.support.encode import encode
from tests.support.keyed import Keyed
from tests.support.mqtt import user
from tests.support.rig import Peer, Rig, props
from tests.support.soak import SOAK
from timeline.filters import matches

HASH = (
    "$6$i9Jt32tYegzNkwSK$QS3iPoD+vTH+XaoCByGUtFnBsf37+/hyXreCViGyZOCagOg0+IhiRNI2g+"
    "GnZf6IPzOU20d7aadUf9uCIILAQA=="
)
"""Of the password x."""


@pytest.fixture
def rig(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path)


def test_who_has_a_key_comes_in(rig: Keyed) -> None:
    rig.add("a")
    for level, wrong, nothing in ((5, 0x86, 0x87), (4, 4, 5), (3, 4, 5)):
        rig.come("a", level=level)
        for name, key in (("a", "x"), ("b", rig.keys["a"]), ("ops", rig.keys["a"]), ("", rig.keys["a"])):
            peer = rig.peer(level)
            assert peer.connect("c", username=name, key=key).reason == wrong
            assert peer.is_closed
        assert rig.peer(level).connect("c", username="a").reason == wrong
        assert rig.peer(level).connect("c").reason == nothing
        rig.clock.now_ms += 10_000_000


def test_a_key_names_itself(rig: Keyed) -> None:
    """What the SDK has is the key alone."""
    rig.add("a", publish=["a/%u"])
    for name in ("key", None):
        peer = rig.connected("c", username=name, key=rig.keys["a"])
        assert peer.publish1("a/a").reason == 0x10
    for key in ("fasti_a_x", "fasti_key_x", "x", rig.keys["a"] + "0"):
        assert rig.peer().connect("c", username="key", key=key).reason == 0x86


def test_where_there_are_no_keys_names_are_not_looked_at() -> None:
    assert Rig().peer().connect("c", username="anybody", key="anything").reason == 0


def test_who_shows_nothing_comes_in_where_he_may(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, allow_anonymous=True)
    peer = rig.connected("c")
    assert peer.publish1("a").reason == 0x10
    assert peer.subscribe("#") == (2,)
    assert rig.peer().connect("d", username="ops", key="x").reason == 0x86


def test_after_too_many_wrong_keys_only_a_valid_one_comes_in(rig: Keyed) -> None:
    rig.add("late")
    rig.come("ops", "before")
    for number in range(FREE + 1):
        assert rig.peer().connect("c", username="ops", key=f"{number}").reason == 0x86
    assert rig.peer(5).connect("c", username="ops", key="again").reason == 0x9F
    assert rig.peer(4).connect("c", username="ops", key="again").reason == 3
    rig.come("ops", "known")
    rig.come("late")


class Slow:
    """A rig whose slow keys are checked when it is told. `ops` has one."""

    def __init__(self, rig: Keyed) -> None:
        rig.keys["ops"] = rig.file.add("ops", "admin", is_old=True)
        self.rig = rig
        self.waiting: list[tuple[Callable[[], bool], Callable[[bool | None], None]]] = []
        rig.stepper.keyring = Keyring(
            rig.core.config, rig.clock, lambda work, done: self.waiting.append((work, done))
        )

    def check(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work, done in waiting:
            done(work())
        self.rig.pump()


def test_what_comes_while_a_key_is_checked_waits(rig: Keyed) -> None:
    slow = Slow(rig)
    peer = rig.peer()
    hello = Connect(5, "c", username="ops", password=rig.keys["ops"].encode())
    peer.send_bytes(encode(hello, 5) + encode(Publish(b"t", b"x", 1, packet_id=7), 5))
    assert peer.inbox == []
    assert peer.connection.is_waiting
    slow.check()
    assert [type(packet).__name__ for packet in peer.inbox] == ["Connack", "Ack"]


@pytest.mark.parametrize("key", ["right", "wrong"])
def test_who_goes_while_its_key_is_checked_leaves_nothing(rig: Keyed, key: str) -> None:
    slow = Slow(rig)
    peer = rig.peer()
    peer.connect("c", username="ops", key=rig.keys["ops"] if key == "right" else "x", pump=False)
    peer.drop()
    slow.check()
    assert rig.core.sessions.get("c") is None
    assert rig.core.publishing.traffic.connects == 0


def test_a_publish_goes_to_the_topics_of_the_rules(rig: Keyed) -> None:
    rig.add("a", publish=["in/%u/%c/#"])
    ops = rig.come("ops").subscribed("#")
    peer = rig.come("a", "c1")
    assert peer.publish1("in/a/c1/x").reason == 0
    assert peer.publish1("in/a/c2/x").reason == 0x87
    assert peer.publish1("$delayed/5/in/a/c1/x").reason == 0
    assert peer.publish1("$delayed/5/other").reason == 0x87
    assert peer.begin("other", "x").reason == 0x87
    peer.publish2("in/a/c1/y")
    peer.publish("other", "x", 0)
    assert not peer.is_closed
    assert [packet.topic for packet in ops.deliveries()] == [b"in/a/c1/x", b"in/a/c1/y"]
    old = rig.come("a", "c1", level=4)
    old.publish("other", "x", 1)
    assert old.is_closed


def test_a_publish_needs_the_scope(rig: Keyed) -> None:
    rig.add("reads", "read")
    rig.add("writes", "schedule")
    assert rig.come("reads").publish1("t").reason == 0x87
    writer = rig.come("writes")
    assert writer.publish1("t").reason == 0x10
    assert writer.subscribe("t") == (0x87,)
    assert rig.come("reads").subscribe("t") == (2,)


def test_a_rate_is_kept(rig: Keyed) -> None:
    rig.add("slow", rate=2)
    peer = rig.come("slow")
    assert [peer.publish1("t").reason for _ in range(3)] == [0x10, 0x10, 0x97]
    rig.clock.now_ms += 1_000
    assert peer.publish1("t").reason == 0x10


def test_a_subscription_lies_within_the_rules(rig: Keyed) -> None:
    rig.add("a", subscribe=["a/#", "u/%u/+"])
    peer = rig.come("a")
    wanted = ("a/+/x", "a/#", "u/a/+", "u/a/#", "u/b/+", "#", "$share/g/a/b", "$share/g/b")
    assert peer.subscribe(*wanted) == (2, 2, 2, 0x87, 0x87, 0x87, 2, 0x87)
    assert rig.come("a", level=4).subscribe("a", "b") == (2, 0x80)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_of_what_it_subscribes_to_a_client_is_sent_what_it_may_have(rig: Keyed, qos: int) -> None:
    rig.add("a", deliver=["a/#", "c/%c"])
    ops, peer = rig.come("ops"), rig.come("a", "c1").subscribed("#", qos=qos)
    other = rig.come("a", "c2").subscribed("#", qos=qos)
    for topic in ("a/1", "b/1", "c/c1", "c/c2", "a/1", "b/1"):
        ops.publish(topic, qos=qos)
    assert [packet.topic for packet in peer.deliveries()] == [b"a/1", b"c/c1", b"a/1"]
    assert [packet.topic for packet in other.deliveries()] == [b"a/1", b"c/c2", b"a/1"]


def _publish_to_b(rig: Keyed, kind: str) -> None:
    """Two messages, to a and to b, that come to whoever subscribes later, or was away."""
    ops = rig.come("ops")
    for topic in ("a", "b"):
        if kind == "delayed":
            ops.publish1(f"$delayed/60/{topic}")
        else:
            ops.publish1(topic, retain=kind == "retained")


@pytest.mark.parametrize("how", ["read again", "crash"])
@pytest.mark.parametrize("kind", ["retained", "delayed", "missed"])
def test_nothing_slips_past_a_rule_that_is_made_later(rig: Keyed, kind: str, how: str) -> None:
    rig.add("a", deliver=["a", "b"])
    peer = rig.stay("a")
    if kind != "retained":
        peer.subscribe("#", qos=1)
    if kind == "missed":
        peer.drop()
    _publish_to_b(rig, kind)
    rig.change("a", '"b"', '"c"')
    if how == "crash":
        rig.crash(pump=True)
    if kind == "missed" or how == "crash":
        peer = rig.stay("a")
    if kind == "retained":
        peer.subscribe("#", qos=1)
    rig.pass_ms(61_000)
    assert [packet.topic for packet in peer.deliveries()] == [b"a"]


def test_what_is_replayed_is_what_it_may_have(rig: Keyed) -> None:
    rig.add("a", deliver=["a"])
    rig.stay("ops", "keeps").subscribe("#", qos=1)
    ops = rig.come("ops")
    for topic in ("a", "b", "a"):
        ops.publish1(topic)
    rig.pass_ms(1_000)
    peer = rig.come("a").subscribed("#", qos=1, user_properties=(("replay-from", "PT1H"),))
    assert [packet.topic for packet in peer.deliveries()] == [b"a", b"a"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_in_flight_is_not_sent_again(rig: Keyed, qos: int) -> None:
    rig.add("a", deliver=["a", "b"])
    peer = rig.stay("a").subscribed("#", qos=qos)
    ops = rig.come("ops")
    for topic in ("a", "b"):
        ops.publish(topic, qos=qos)
    assert len(peer.publishes()) == 2
    peer.drop()
    rig.change("a", '"b"', '"c"')
    again = rig.stay("a")
    assert [packet.topic for packet in again.deliveries()] == [b"a"]
    ops.publish("a", "new", qos)
    assert [packet.payload for packet in again.deliveries()] == [b"new"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_shared_message_goes_to_a_member_that_may_have_it(rig: Keyed, qos: int) -> None:
    rig.add("a", deliver=["a"])
    rig.add("b", deliver=["b"])
    one, two, ops = rig.come("a"), rig.come("b"), rig.come("ops")
    for peer in (one, two):
        peer.subscribe("$share/g/#", qos=qos)
    for topic in ("a", "b", "c", "a", "b", "c"):
        ops.publish(topic, qos=qos)
    assert [packet.topic for packet in one.deliveries()] == [b"a", b"a"]
    assert [packet.topic for packet in two.deliveries()] == [b"b", b"b"]
    rig.change("b", 'deliver = ["b"]', 'deliver = ["c"]')
    ops.publish("b", qos=qos)
    ops.publish("c", qos=qos)
    assert [packet.topic for packet in two.deliveries()] == [b"c"]
    assert one.publishes() == []


def test_what_a_member_leaves_goes_to_nobody_who_may_not_have_it(rig: Keyed) -> None:
    rig.add("a", deliver=["a", "both"])
    rig.add("b", deliver=["b", "both"])
    one, ops = rig.come("a").subscribed("$share/g/#", qos=1), rig.come("ops")
    ops.publish1("a")
    ops.publish1("both")
    assert len(one.publishes()) == 2
    two = rig.come("b").subscribed("$share/g/#", qos=1)
    one.disconnect()
    assert [packet.topic for packet in two.deliveries()] == [b"both"]
    ops.publish1("b")
    assert [packet.topic for packet in two.deliveries()] == [b"b"]


def _will(topic: str, delay: int = 0) -> Will:
    return Will(topic.encode(), b"gone", 1, False, props(will_delay=delay) if delay else None)


@pytest.mark.parametrize(("level", "reason"), [(5, 0x87), (4, 5)])
def test_a_will_has_to_be_one_that_the_key_may_send(rig: Keyed, level: int, reason: int) -> None:
    rig.add("a", publish=["a"])
    peer = rig.peer(level)
    assert peer.connect("c", username="a", key=rig.keys["a"], will=_will("b")).reason == reason
    rig.come("a", "c", level, will=_will("a"))


@pytest.mark.parametrize("change", ["none", "rule", "revoked"])
@pytest.mark.parametrize("how", ["dropped", "crash"])
def test_a_will_comes_out_if_the_key_may_send_it_then(rig: Keyed, how: str, change: str) -> None:
    rig.add("a", publish=["w"])
    rig.stay("ops", "sees").subscribe("w", qos=1)
    peer = rig.stay("a", will=_will("w"))
    if change == "rule":
        rig.change("a", '"w"', '"x"')
    if how == "crash":
        if change == "revoked":
            rig.file.revoke("a")
        rig.crash(pump=True)
    else:
        if change == "revoked":
            rig.revoke("a")
        peer.drop()
    seen = (
        rig.stay("ops", "sees")
        if how == "crash"
        else next(p for p in rig.peers if p.connection.client_id == "sees")
    )
    assert [packet.payload for packet in seen.deliveries()] == ([b"gone"] if change == "none" else [])


@pytest.mark.parametrize(("level", "reason"), [(5, 0x87), (4, None)])
def test_a_revoked_key_ends_its_connections(rig: Keyed, level: int, reason: int | None) -> None:
    rig.add("a")
    peer, other = rig.come("a", "c1", level), rig.come("ops")
    rig.revoke("a")
    assert peer.is_closed
    assert peer.gone_with == reason
    assert other.publish1("t").reason == 0x10
    assert rig.peer(5).connect("c1", username="a", key=rig.keys["a"]).reason == 0x86


def test_a_session_of_a_revoked_key_gets_nothing_more(rig: Keyed) -> None:
    rig.add("a")
    rig.stay("a").subscribe("t", qos=1)
    rig.revoke("a")
    assert rig.come("ops").publish1("t").reason == 0x10


def test_a_key_that_is_changed_for_another_keeps_its_sessions(rig: Keyed) -> None:
    rig.add("a")
    peer = rig.stay("a").subscribed("t", qos=1)
    rig.add("a")
    assert peer.is_closed
    assert rig.come("ops").publish1("t").reason == 0
    assert [packet.topic for packet in rig.stay("a").deliveries()] == [b"t"]


def test_a_key_that_is_rotated_ends_connections_of_the_former_one_only(rig: Keyed) -> None:
    """Sessions, groups and messages of the name stay as they are."""
    rig.add("a")
    old = rig.stay("a", "s").subscribed("t", qos=1)
    worker = rig.come("a", "w1").subscribed("$share/g/jobs", qos=1)
    rig.come("a", "sender").publish1("$delayed/3/t", "later")
    rig.rotate("a", 1_000)
    new = rig.come("a", "w2").subscribed("$share/g/jobs", qos=1)
    assert old.publish1("jobs").reason == 0
    assert len(worker.publishes()) == 1  # it has it still when its key ends
    rig.clock.now_ms += 999
    asyncio.run(rig.keyring.end_former(rig.review))
    assert not old.is_closed
    rig.clock.now_ms += 1
    asyncio.run(rig.keyring.end_former(rig.review))
    assert [peer.is_closed for peer in (old, worker, new)] == [True, True, False]
    assert old.gone_with == 0x87
    assert rig.peer(5).connect("s", username="a", key="fasti_a_x").reason == 0x86
    rig.pass_ms(4_000)
    assert len(new.deliveries()) == 1
    assert rig.group("$share/g/jobs").owner == "a"
    assert rig.stay("a", "s").payloads() == ["later"]


@pytest.mark.parametrize("how", ["here", "away", "crash"])
def test_a_session_is_its_key_s_own(rig: Keyed, how: str) -> None:
    rig.add("a")
    rig.add("b")
    peer = rig.stay("a", "c1")
    if how == "away":
        peer.drop()
    if how == "crash":
        rig.crash(pump=True)
    for clean in (True, False):
        assert rig.peer().connect("c1", username="b", key=rig.keys["b"], clean=clean).reason == 0x85
    assert rig.peer(4).connect("c1", username="b", key=rig.keys["b"]).reason == 2
    assert peer.is_closed is (how != "here")
    assert rig.stay("a", "c1")
    rig.revoke("a")
    rig.come("b", "c1")


@pytest.mark.parametrize("how", ["away", "crash"])
def test_who_takes_over_a_session_has_no_subscription_that_it_may_not_ask_for(rig: Keyed, how: str) -> None:
    rig.add("a")
    rig.add("b", subscribe=["own/#"])
    peer = rig.stay("a", "c1")
    for text in ("#", "$share/g/+/x", "own/x", "$share/g/own/y"):
        peer.subscribe(text, qos=1)
    peer.drop()
    rig.revoke("a")
    taken = rig.stay("b", "c1")
    if how == "crash":
        taken.drop()
        rig.crash(pump=True)
        taken = rig.stay("b", "c1")
    ops = rig.come("ops")
    for topic in ("other", "own/z", "other/x", "own/x", "own/y"):
        ops.publish1(topic)
    assert [packet.topic for packet in taken.deliveries()] == [b"own/x", b"own/y"]


@pytest.mark.parametrize("where", ["here", "away", "crashed"])
def test_a_subscription_ends_that_its_key_may_not_ask_for_any_more(
    rig: Keyed, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of who is away, and also if the server was not there when the file changed."""
    caplog.set_level(logging.INFO)
    rig.add("a", subscribe=["own/#", "more/#"])
    peer = rig.stay("a", "c1")
    for text in ("own/x", "more/x", "$share/g/own/y", "$share/g/more/y"):
        assert peer.subscribe(text, qos=1) == (1,)
    if where != "here":
        peer.drop()
    if where == "crashed":
        rig.crash(pump=True)
    rig.change("a", ', "more/#"', "")
    ended = [line for line in caplog.messages if ": subscription to " in line]
    assert ended == [
        f"session c1: subscription to {text} ended, a may not" for text in ("more/x", "$share/g/more/y")
    ]
    rig.change("a", '["own/#"]', '["own/#", "more/#"]')
    ops = rig.come("ops")
    for topic in ("more/x", "own/x", "more/y", "own/y"):
        ops.publish1(topic)
    if where != "here":
        rig.crash(pump=True)
        peer = rig.stay("a", "c1")
    assert [packet.topic for packet in peer.deliveries()] == [b"own/x", b"own/y"]


def test_of_a_revoked_key_no_subscription_ends(rig: Keyed) -> None:
    """Who has the next one of its name finds them."""
    rig.add("a")
    rig.stay("a", "c1").subscribe("x", qos=1)
    rig.revoke("a")
    rig.add("a", subscribe=["x"])
    rig.come("ops").publish1("x")
    assert [packet.topic for packet in rig.stay("a", "c1").deliveries()] == [b"x"]


def test_idempotency_keys_are_each_user_s_own(rig: Keyed) -> None:
    rig.add("a")
    ids = []
    for name in ("a", "ops", "a"):
        users = (("idempotency-key", "k"), ("deliver-in", "60s"))
        ack = rig.come(name).publish1("t", user_properties=users)
        assert ack.reason == 0
        ids.append(user(ack, "fasti-id"))
    assert ids[0] == ids[2] != ids[1]


def test_users_of_a_mosquitto(tmp_path: Path) -> None:
    (passwords := tmp_path / "passwords").write_text(f"old:{HASH}\n")
    acl = "topic read news\nuser old\ntopic readwrite old/#\ntopic deny old/secret\n"
    rig = Keyed(tmp_path, password_file=str(passwords), acl=acl, allow_anonymous=True)
    ops = rig.come("ops")
    assert rig.peer(4).connect("c", username="old", key="y").reason == 4
    old, nobody = rig.connected("c", username="old", key="x"), rig.connected("n")
    for peer in (old, nobody):
        assert peer.subscribe("#", qos=0) == (0,)
    for topic in ("news", "old/1", "old/secret", "else"):
        ops.publish(topic)
    assert [packet.topic for packet in old.deliveries()] == [b"old/1"]
    assert [packet.topic for packet in nobody.deliveries()] == [b"news"]
    assert old.publish1("old/secret").reason == 0x87
    assert nobody.publish1("news").reason == 0x87


def test_what_a_user_of_a_mosquitto_has_retained_goes_with_his_right_to_it(tmp_path: Path) -> None:
    """As with mosquitto, which asks its ACL again."""
    (passwords := tmp_path / "passwords").write_text(f"old:{HASH}\n")
    rig = Keyed(tmp_path, password_file=str(passwords), acl="user old\ntopic readwrite old/#\n")
    old = rig.connected("c", level=4, username="old", key="x")
    for topic in ("old/1", "old/2"):
        old.publish1(topic, topic, retain=True)
    rig.change_acl("user old\ntopic readwrite old/#\ntopic deny old/2\n")
    ops = rig.come("ops").subscribed("#", qos=0)
    assert ops.payloads() == ["old/1"]
    passwords.write_text(f"other:{HASH}\n")
    rig.read_keys()
    again = rig.come("ops", "again").subscribed("#", qos=0)
    assert again.payloads() == []


@pytest.mark.parametrize(
    ("lets_anybody", "identity", "reason"), [(True, "", None), (False, "", 0x87), (False, "meter", None)]
)
def test_a_door_without_a_keyring_asks_for_nothing(
    lets_anybody: bool, identity: str, reason: int | None
) -> None:
    """It may want a certificate that gives a name. mosquitto's 08-ssl-connect-identity."""
    answers: list[object] = []
    packet = Connect(5, "c", username="a", password=b"b")
    Authenticator(None, None, lets_anybody=lets_anybody).authenticate(
        packet, "c", "x", identity, lambda rights, reason: answers.append((rights, reason))
    )
    assert answers == [(None, reason)]


def test_a_certificate_stands_for_the_key_where_it_gives_the_name(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, tls_identity_as_username=True)
    rig.add("a", publish=["a/%u"])
    named = rig.peer(identity="a")
    assert named.connect("c", username="ops", key="x").reason == 0, "whatever CONNECT says"
    assert named.publish1("a/a").reason == 0x10
    assert named.publish1("a/ops").reason == 0x87
    assert rig.peer(identity="b").connect("d").reason == 0x87
    assert rig.peer().connect("d").reason == 0x87
    rig.revoke("a")
    assert named.gone_with == 0x87
    assert rig.peer(identity="a").connect("c").reason == 0x87


def test_a_certificate_that_gives_no_name_is_none(rig: Keyed) -> None:
    assert rig.peer(identity="ops").connect("c").reason == 0x87


TOPICS = ("a", "b", "c", "a/1", "b/1")
RULES = (["a"], ["b", "b/#"], ["#"], [], ["+/1"], ["a/#", "c"])


def _is_allowed(rules: list[str], topic: bytes) -> bool:
    return any(matches(rule, topic.decode()) for rule in rules)


class Walk:
    """Whatever happens: nothing arrives that the rules of that moment do not allow."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rig = Keyed(folder)
        self.rules = RULES[0]
        self.rig.add("a", deliver=self.rules)
        self.rig.add("b", deliver=["#"])
        self.peers: dict[str, Peer] = {}
        self.arrived = 0

    def run(self, steps: int) -> int:
        """How many deliveries there were."""
        for _ in range(steps):
            often = (self.publish, self.publish, self.publish, self.connect, self.subscribe)
            self.chance.choice((*often, self.change, self.drop, self.pass_time))()
            self.look()
        return self.arrived

    def look(self) -> None:
        """Everything that has come, and what comes because it is acked; some of it stays in flight."""
        for name, peer in self.peers.items():
            for packet in peer.deliveries(acks=self.chance.random() < 0.6, is_strict=False):
                self.arrived += name != "b"
                assert name == "b" or _is_allowed(self.rules, packet.topic), (packet.topic, self.rules)

    def publish(self) -> None:
        topic = self.chance.choice(TOPICS)
        if self.chance.random() < 0.2:
            topic = f"$delayed/{self.chance.randrange(1, 5)}/{topic}"
        ops = self.rig.come("ops")
        ops.publish(topic, qos=self.chance.randrange(3), retain=self.chance.random() < 0.4)
        ops.disconnect()

    def change(self) -> None:
        before, self.rules = self.rules, self.chance.choice(RULES)
        self.rig.change("a", _toml(before), _toml(self.rules))

    def connect(self) -> None:
        name, key = self.chance.choice((("c1", "a"), ("c2", "a"), ("b", "b")))
        peer = self.peers.pop(name, None)
        if peer is not None:
            peer.drop()
        self.peers[name] = self.rig.stay(key, name)

    def drop(self) -> None:
        if self.peers:
            self.peers.pop(self.chance.choice(sorted(self.peers))).drop()

    def subscribe(self) -> None:
        if self.peers:
            peer = self.peers[self.chance.choice(sorted(self.peers))]
            text = self.chance.choice(("#", "a/#", "+/1", "$share/g/#"))
            qos = self.chance.randrange(3)
            peer.send(Subscribe(peer.next_id(), ((text, SubscribeOptions(qos, False, False, 0)),)))

    def pass_time(self) -> None:
        self.rig.pass_ms(2_000)


def _toml(rules: list[str]) -> str:
    return f"deliver = {rules}".replace("'", '"')


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100 if SOAK else 6))
def test_nothing_slips_past_the_rules_whatever_happens(tmp_path: Path, seed: int) -> None:
    assert Walk(tmp_path, seed).run(200) > 5


@pytest.mark.parametrize("made_by", ["PUT", "SUBSCRIBE"])
def test_a_lasting_group_stays_when_its_key_may_not_ask_for_it_any_more(rig: Keyed, made_by: str) -> None:
    """Who may subscribe to it again finds what has come meanwhile."""
    rig.add("a", subscribe=["own/#", "jobs/#"], deliver=["#"])
    text, groups = "$share/g/jobs/#", rig.core.groups
    if made_by == "PUT":
        rights = rig.keyring.rights_of("a", "")
        rig.decide(lambda commit: groups.make(commit, text, keeping=LASTING, rights=rights))
    else:
        rig.come("a", "c1").subscribed(text, qos=1, user_properties=(("expiry", "never"),)).drop()
    rig.change("a", ', "jobs/#"', "")
    rig.come("ops").publish1("jobs/1", "kept")
    assert rig.come("a", "c2").subscribe(text, qos=1) == (0x87,)
    rig.crash(pump=True)
    rig.read_keys()
    rig.change("a", '["own/#"]', '["own/#", "jobs/#"]')
    peer = rig.come("a", "c3").subscribed(text, qos=1)
    assert peer.take_all() == ["kept"]


def test_a_plain_group_ends_when_its_key_may_not_ask_for_it_any_more(rig: Keyed) -> None:
    rig.add("a", subscribe=["own/#", "jobs/#"])
    rig.come("a", "c1").subscribed("$share/g/jobs/#", qos=1).drop()
    rig.change("a", ', "jobs/#"', "")
    assert "$share/g/jobs/#" not in rig.core.groups


def test_a_key_has_so_many_groups_and_no_more(rig: Keyed) -> None:
    rig.add("few", groups=2)
    peer = rig.come("few", "c1")
    assert peer.subscribe("$share/a/t", "$share/b/t", "$share/c/t", "t") == (2, 2, 0x97, 2)
    peer.drop()
    rig.crash(pump=True)
    again = rig.come("few", "c2")
    assert again.subscribe("$share/c/t") == (0x97,), "they stay for days without a member"
    assert again.subscribe("$share/a/t") == (2,), "it is there"
    assert rig.come("ops").subscribe("$share/c/t") == (2,), "of nobody else"
    again.unsubscribe("$share/a/t")
    assert again.subscribe("$share/d/t") == (2,)
    rig.change("few", "groups = 2", "groups = 3")
    assert again.subscribe("$share/e/t", "$share/f/t") == (2, 0x97)
    assert rig.core.groups.refused == 2, "since the crash"


def test_of_a_group_that_changes_hands_the_last_one_who_left_it_is_the_owner(rig: Keyed) -> None:
    for name in ("a", "b"):
        rig.add(name, groups=1)
    first, second = rig.come("a", "c1"), rig.come("b", "c2")
    assert first.subscribe("$share/g/t") == second.subscribe("$share/g/t") == (2,)
    first.drop()
    assert rig.come("a", "c3").subscribe("$share/h/t") == (0x97,), "it has created g"
    second.drop()
    assert rig.come("a", "c3").subscribe("$share/h/t") == (2,)
    assert rig.come("b", "c2").subscribe("$share/i/t") == (0x97,)


def test_without_a_bound_of_its_own_no_key_takes_all_groups(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, groups=8)
    rig.add("a")
    assert rig.come("a").subscribe(*(f"$share/{number}/t" for number in range(8))) == (2,) * 7 + (0x97,)
    rig.add("more", groups=9)
    assert rig.come("more").subscribe("$share/1/u", "$share/2/u") == (2, 0x97)


def test_a_key_has_so_many_sessions_and_subscriptions_and_no_more(rig: Keyed) -> None:
    rig.add("few", sessions=2, subscriptions=3)
    first, second = rig.stay("few", "c1"), rig.stay("few", "c2")
    assert rig.peer(5).connect("c3", username="few", key=rig.keys["few"]).reason == 0x97
    assert first.subscribe("a", "b") == (2, 2)
    assert second.subscribe("a", "b") == (2, 0x97)
    for peer in (first, second):
        peer.drop()
    rig.crash(pump=True)
    assert rig.peer(5).connect("c3", username="few", key=rig.keys["few"]).reason == 0x97, "they are stored"
    first = rig.stay("few", "c1")
    assert first.subscribe("c") == (0x97,)
    first.unsubscribe("a")
    assert first.subscribe("c", "d") == (2, 0x97)
    assert rig.come("ops").subscribe("a") == (2,), "of nobody else"
    rig.change("few", "sessions = 2", "sessions = 3")
    rig.come("few", "c3")


def test_of_a_session_that_changes_hands_the_new_key_has_it(rig: Keyed) -> None:
    for name in ("a", "b"):
        rig.add(name, sessions=1, subscriptions=1)
    rig.stay("a", "c").subscribed("t").drop()
    rig.revoke("a")
    taken = rig.stay("b", "c")
    assert rig.peer(5).connect("d", username="b", key=rig.keys["b"]).reason == 0x97
    assert taken.subscribe("u") == (0x97,)


def test_one_key_leaves_the_last_sessions_and_subscriptions_to_others(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, sessions=8, subscriptions=16)
    rig.add("a")
    rig.add("b")
    for number in range(7):
        rig.come("a", f"a{number}")
    assert rig.peer(5).connect("a7", username="a", key=rig.keys["a"]).reason == 0x97
    assert rig.peers[0].subscribe(*(f"t{number}" for number in range(15))) == (2,) * 14 + (0x97,)
    assert rig.come("b").subscribe("1", "2", "3") == (2, 2, 0x97)


def test_a_key_has_so_many_connections_and_no_more(rig: Keyed) -> None:
    rig.add("few", connections=2)
    first, _ = rig.come("few", "c1"), rig.come("few", "c2")
    for level, reason in ((5, 0x97), (4, 3)):
        assert rig.peer(level).connect("c3", username="few", key=rig.keys["few"]).reason == reason
    again = rig.come("few", "c1")
    assert first.is_closed
    rig.pump()
    assert rig.peer(5).connect("c3", username="few", key=rig.keys["few"]).reason == 0x97
    again.drop()
    rig.come("few", "c3")
    rig.come("ops", "c4")


def test_a_key_s_clients_have_the_ids_of_its_patterns(rig: Keyed) -> None:
    rig.add("meter", client_ids=["meter-*", "m*-*x"])
    for client_id, reason in (
        ("meter-7", 0),
        ("meter-", 0),
        ("m-x", 0),
        ("mx", 0x85),
        ("meter", 0x85),
        ("a-meter-7", 0x85),
        ("m-x-y", 0x85),
        ("", 0),  # the server makes one
    ):
        assert rig.peer(5).connect(client_id, username="meter", key=rig.keys["meter"]).reason == reason
    assert rig.peer(4).connect("other", username="meter", key=rig.keys["meter"]).reason == 2
    assert rig.core.sessions.get("other") is None
    rig.come("ops", "other")


def test_when_the_patterns_become_narrower_clients_outside_them_are_closed(
    rig: Keyed, caplog: pytest.LogCaptureFixture
) -> None:
    rig.add("meter", client_ids=["meter-*"])
    rig.add("other")
    one, two = rig.stay("meter", "meter-1"), rig.stay("meter", "meter-2")
    made = rig.peer(5)
    name = made.connect("", username="meter", key=rig.keys["meter"]).properties.assigned_client_id
    assert rig.peer(5).connect("meter-2", username="other", key=rig.keys["other"]).reason == 0x85
    with caplog.at_level("INFO"):
        rig.change("meter", '"meter-*"', '"meter-1"')
    assert [peer.is_closed for peer in (one, two, made)] == [False, True, False]
    assert two.take(Disconnect).reason == 0x87
    assert "(meter-2), its key may no longer use this client id" in caplog.text
    assert rig.peer(5).connect("meter-2", username="meter", key=rig.keys["meter"]).reason == 0x85
    assert rig.core.sessions.get("meter-2") is not None, "its session stays"
    rig.come("other", "meter-2")
    assert rig.peer(5).connect("meter-1", username="other", key=rig.keys["other"]).reason == 0x85
    made.drop()
    rig.come("meter", name)
    rig.come("ops", "meter-1-not")


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_key_may_not_retain_is_refused_and_not_confirmed(rig: Keyed, qos: int) -> None:
    rig.add("few", retained=2)
    peer = rig.come("few", "c1")

    def put(topic: str, payload: str = "x", *, by: Peer = peer) -> int:
        if qos == 1:
            return by.publish1(topic, payload, retain=True).reason
        return by.take_ack(wire.PUBREC, by.publish(topic, payload, 2, retain=True)).reason

    ops, watcher = rig.come("ops"), rig.come("ops", "watcher").subscribed("#", qos=0)
    assert [put(topic) for topic in ("a", "b", "c", "a")] == [0, 0, 0x97, 0]
    assert rig.core.retained.refused == 1
    assert [packet.topic for packet in watcher.deliveries()] == [b"a", b"b", b"a"], (
        "of the refused one nothing"
    )
    peer.publish("c", "x", 0, retain=True)
    assert [packet.topic for packet in watcher.deliveries()] == []
    assert not peer.is_closed
    assert put("b", "") == 0, "one is cleared"
    assert [put("c"), put("d")] == [0, 0x97]
    assert put("d", by=ops) == 0, "of nobody else"
    assert put("c", by=ops) == 0, "it is of who has sent it last"
    assert put("e") == 0
    rig.crash(pump=True)
    assert rig.core.retained.count == 4
    assert put("f", by=rig.come("few", "c1")) == 0x97, "counted again at the start"


def test_of_many_retained_messages_in_one_go_none_is_confirmed_that_is_not_kept(rig: Keyed) -> None:
    rig.add("few", retained=3)
    peer = rig.come("few", "c1")
    sent = [peer.publish(f"t/{number}", "x", 1, retain=True, pump=False) for number in range(6)]
    rig.pump()
    answers = [peer.take_ack(wire.PUBACK, packet_id).reason for packet_id in sent]
    assert [reason == 0x97 for reason in answers] == [False] * 3 + [True] * 3
    assert rig.core.retained.count == 3


def test_a_place_is_kept_for_a_minute(rig: Keyed) -> None:
    """What was taken may never fire: its owner may not send it any more, say."""
    rig.add("few", retained=1)
    retained = rig.core.retained
    assert retained.refusal(b"a", "few") == ""
    assert (retained.refusal(b"a", "few"), retained.count) == ("", 0)
    assert retained.refusal(b"b", "few") == "key 'few' has 1 topics with a retained message, its limit is 1"
    rig.clock.now_ms += 60_000
    assert retained.refusal(b"b", "few") == ""


def test_one_key_leaves_the_last_retained_topics_to_others(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, retained=8)
    rig.add("a")
    peer = rig.come("a")
    reasons = [peer.publish1(f"t/{number}", retain=True).reason for number in range(8)]
    assert [reason == 0x97 for reason in reasons] == [False] * 7 + [True]
    assert rig.come("ops").publish1("t/x", retain=True).reason != 0x97


def test_what_a_client_without_a_name_has_retained_goes_with_the_right_to_it(tmp_path: Path) -> None:
    """CVE-2018-12546 of mosquitto."""
    rig = Keyed(tmp_path, acl="topic readwrite a/#\n", allow_anonymous=True)
    nobody = rig.connected("n", level=4)
    for topic in ("a/1", "a/2"):
        nobody.publish1(topic, topic, retain=True)
    nobody.publish1("$delayed/60/a/2", "later", retain=True)
    nobody.publish1("$delayed/60/a/2", "once")
    rig.change_acl("topic readwrite a/1\ntopic read a/2\n")
    ops = rig.come("ops").subscribed("#", qos=1)
    assert ops.payloads() == ["a/1"]
    withheld = rig.core.owners.withheld
    rig.pass_ms(61_000)
    assert ops.payloads() == ["once"]
    assert rig.core.owners.withheld == withheld + 1
    rig.change_acl("topic readwrite a/#\n")
    again = rig.come("ops", "again").subscribed("#", qos=1)
    assert again.payloads() == ["a/1", "later"], "what was withheld is retained by now"


def test_a_name_beside_an_acl_file_needs_no_password(tmp_path: Path) -> None:
    """As with mosquitto, where there is no password file and clients without a name may come."""
    rig = Keyed(tmp_path, acl="user bob\ntopic readwrite bob/#\npattern write dev/%u\n", allow_anonymous=True)
    bob, eve = rig.connected("b", username="bob"), rig.connected("e", level=4, username="eve")
    assert bob.publish1("bob/1", "mine", retain=True).reason == 0
    assert bob.publish1("dev/bob", "of bob").reason < 0x80
    assert bob.publish1("dev/eve").reason == 0x87
    eve.publish1("dev/eve", "of eve", retain=True)
    ops = rig.come("ops").subscribed("#", qos=0)
    assert sorted(ops.payloads()) == ["mine", "of eve"]
    ops.disconnect()
    rig.change_acl("user bob\ntopic readwrite bob/2\n")
    assert bob.publish1("bob/1").reason == 0x87
    assert bob.publish1("bob/2").reason < 0x80
    ops = rig.come("ops").subscribed("#", qos=0)
    assert ops.payloads() == []


def test_names_that_anybody_may_make_up_leave_nothing(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, acl="pattern write dev/%u\n", allow_anonymous=True)
    for number in range(50):
        peer = rig.connected("c", username=f"eve-{number}")
        assert peer.publish1(f"$delayed/1/dev/eve-{number}").reason < 0x80
        peer.disconnect()
    assert len(rig.core.opened.owned) == 50
    rig.pass_ms(2_000)
    rig.come("ops").publish1("dev/ops")
    rig.pass_ms(2_000)
    assert len(rig.core.opened.owned) == 0
    assert list(rig.core.opened.store.scan(Table.META, *under(OWNED))) == []


def test_names_that_anybody_may_make_up_get_nothing_of_a_reserve(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, acl="pattern readwrite #\n", allow_anonymous=True, groups=8)
    answers = [
        rig.connected(f"c{number}", username=f"eve-{number}").subscribe(f"$share/g{number}/t")
        for number in range(9)
    ]
    assert answers == [(2,)] * 7 + [(0x97,)] * 2
    assert rig.come("ops").subscribe("$share/ours/t") == (2,)


def test_a_name_that_needs_a_key_still_needs_it(tmp_path: Path) -> None:
    acl = "".join(f"user {name}\ntopic readwrite #\n" for name in ("bob", "ops", "gone"))
    rig = Keyed(tmp_path, acl=acl, allow_anonymous=True)
    rig.add("gone")
    rig.revoke("gone")
    for name in ("ops", "gone", OWN_NAME, "x" * 256):
        assert rig.peer().connect("c", username=name).reason == 0x86, name
    assert rig.peer().connect("c", username="bob", key="wrong").reason == 0x86
    bob = rig.connected("b", username="bob")
    assert (bob.connection.key, bob.connection.is_stranger) == ("", True)
    rig.add("bob")
    assert bob.take(Disconnect).reason == 0x87
    assert rig.peer().connect("c", username="bob").reason == 0x86


@pytest.mark.parametrize("how", ["passwords", "closed"])
def test_a_name_alone_is_not_enough_elsewhere(tmp_path: Path, how: str) -> None:
    (passwords := tmp_path / "passwords").write_text(f"old:{HASH}\n")
    files = {"password_file": str(passwords)} if how == "passwords" else {}
    rig = Keyed(tmp_path, acl="user bob\ntopic readwrite #\n", allow_anonymous=how == "passwords", **files)
    assert rig.peer().connect("c", username="bob").reason == 0x86
