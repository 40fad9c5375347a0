"""What somebody has sent goes out only as long as he may send it: on every way that a message takes."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from server.codec.packets import Will
from server.delivery.dispatch import TURN_COST
from server.delivery.owners import ANSWER_COST, COST_RULES, REMEMBERED_BYTES, Auth, Owners
from server.delivery.run import Run
from server.delivery.subscriber import Subscriber
from server.schedules.recurring import Schedules
from shards.fields import Record
from shards.record import encode
from shards.schedules import TimingRow
from shards.waiting import Waiting
from shards.withheld import Withheld
from tests.support.build import OPENED
from tests.support.keyed import Keyed
from tests.support.memory_store import MemoryStore
from tests.support.rig import Peer, Rig, config, props
from tests.support.soak import SOAK
from timeline.filters import matches
from timeline.session import Subscription

GONE = ("rule", "revoked")
"""How a key loses its right to send to `m`."""


@pytest.fixture
def rig(tmp_path: Path) -> Keyed:
    rig = Keyed(tmp_path)
    rig.add("meter", publish=["m", "other"])
    return rig


def lose(rig: Keyed, how: str) -> None:
    if how == "rule":
        rig.change("meter", '"m"', '"x"')
    elif how == "revoked":
        rig.revoke("meter")


def regain(rig: Keyed, how: str) -> None:
    """The right comes back: with the rule, or with another key of the same name."""
    if how == "rule":
        rig.change("meter", '"x"', '"m"')
    else:
        rig.add("meter", publish=["m", "other"])


def send(rig: Keyed, kind: str) -> None:
    """Messages `m` of the meter, which may be sent, and `other` of ops, to the same topic."""
    for name in ("meter", "ops"):
        peer = rig.come(name)
        text = "m" if name == "meter" else "other"
        if kind == "delayed":
            peer.publish1("$delayed/60/m", text)
        elif kind == "retained":
            peer.publish1("m" if name == "meter" else "m/2", text, retain=True)
        else:
            peer.publish1("m", text)
        peer.disconnect()


def reader(rig: Keyed, client_id: str = "reader", qos: int = 1) -> Peer:
    return rig.stay("ops", client_id).subscribed("m/#", qos=qos)


@pytest.mark.parametrize("how", ["lives", "crash"])
@pytest.mark.parametrize("change", GONE)
@pytest.mark.parametrize("kind", ["delayed", "missed", "retained"])
def test_what_may_not_be_sent_any_more_is_withheld(rig: Keyed, kind: str, change: str, how: str) -> None:
    """And handed out when it may be sent again, once."""
    peer = reader(rig)
    if kind != "delayed":
        peer.drop()
    send(rig, kind)
    if how == "crash":
        rig.crash(pump=True)
    lose(rig, change)
    if kind != "delayed" or how == "crash":
        peer = reader(rig, "new") if kind == "retained" else rig.stay("ops", "reader")
    rig.pass_ms(61_000)
    assert peer.take_all() == ["other"]
    assert rig.core.owners.withheld == 1
    assert rig.core.opened.waiting.pending == 0, "dispatch does not wait for it"
    regain(rig, change)
    if kind == "retained":
        peer.unsubscribe("m/#")
        peer.subscribe("m/#", qos=1)
        assert sorted(peer.take_all()) == ["m", "other"]
    else:
        rig.pump()
        assert peer.take_all() == ["m"]
        rig.rewind("reader")
        assert peer.take_all() == (["m", "other"] if kind == "missed" else ["other", "m"])


@OPENED
@pytest.mark.parametrize("change", [*GONE, "nothing"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_backlog_of_two_keys_comes_in_runs_of_what_may_be_sent(
    rig: Keyed, change: str, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """From the tail, and from the store."""
    reader(rig).drop()
    peers = {name: rig.come(name) for name in ("meter", "ops")}
    texts = [f"{'ops' if n % 3 else 'meter'} {n}" for n in range(90)]
    for text in texts:
        peers[text.split()[0]].publish1("m", text)
    if is_killed:
        rig.crash()
    lose(rig, change)
    offered = list[int]()
    offer_run = Subscriber.offer_run

    def noted(self: Subscriber, run: Run, subscriptions: tuple[Subscription, ...]) -> int:
        offered.append(offer_run(self, run, subscriptions))
        return offered[-1]

    monkeypatch.setattr(Subscriber, "offer_run", noted)
    back = rig.stay("ops", "reader", receive_maximum=100)
    assert back.take_all() == [text for text in texts if change == "nothing" or text.startswith("ops")]
    assert max(offered) > 50
    assert rig.core.owners.withheld == (0 if change == "nothing" else 30)


def test_a_key_of_the_same_name_takes_over_what_was_sent_under_it(rig: Keyed) -> None:
    peer = reader(rig)
    send(rig, "delayed")
    lose(rig, "revoked")
    regain(rig, "revoked")
    rig.pass_ms(61_000)
    assert peer.take_all() == ["m", "other"]
    assert rig.core.owners.withheld == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("change", GONE)
def test_a_group_is_not_handed_it(rig: Keyed, qos: int, change: str) -> None:
    peer = rig.stay("ops", "worker").subscribed("$share/g/m", qos=qos)
    send(rig, "delayed")
    lose(rig, change)
    rig.pass_ms(61_000)
    assert peer.take_all() == ["other"]


@pytest.mark.parametrize("share", ["", "$share/g/"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("change", GONE)
def test_what_was_in_flight_is_not_sent_again(rig: Keyed, qos: int, change: str, share: str) -> None:
    peer = rig.stay("ops", "reader").subscribed(share + "m", qos=qos)
    for name in ("meter", "ops"):
        one = rig.come(name, f"{name}-sends")
        one.publish2("m", name) if qos == 2 else one.publish1("m", name)
    assert peer.payloads() == ["meter", "ops"]
    peer.drop()
    lose(rig, change)
    peer = rig.stay("ops", "reader")
    rig.pass_ms(1_000)  # what a member of a group had comes again then
    assert peer.take_all() == ["ops"]
    assert not rig.session("reader").session.flights


@pytest.mark.parametrize("change", ["none", *GONE])
@pytest.mark.parametrize("delay", [0, 30])
def test_a_will_is_withheld_when_it_would_come(rig: Keyed, change: str, delay: int) -> None:
    """On the timeline, and one that waits in a session that was away when it was published."""
    will = Will(b"m", b"gone", 1, False, props(will_delay=delay) if delay else None)
    peer = reader(rig)
    if not delay:
        peer.drop()
    rig.stay("meter", will=will).drop()
    lose(rig, change)
    if not delay:
        peer = rig.stay("ops", "reader")
    rig.pass_ms(31_000)
    assert peer.take_all() == (["gone"] if change == "none" else [])


def test_a_recurring_schedule_stamps_its_owner(rig: Keyed) -> None:
    peer = reader(rig)
    record = encode(Record(b"m", b"tick", owner=b"meter"))
    timing = TimingRow("every", "60000", "UTC")
    schedules: Schedules = rig.core.schedules
    rig.decide(lambda commit: schedules.put(commit, "s", timing, record, b"{}"))

    def minutes(count: int) -> list[str]:
        for _ in range(60 * count):
            rig.pass_ms(1_000)
        return peer.take_all()

    assert minutes(3) == ["tick"] * 3
    lose(rig, "revoked")
    assert minutes(3) == []
    assert rig.core.opened.owned.pending(b"meter") == 1, "it goes on, and nobody gets it"
    assert rig.core.opened.withheld.count == 3
    regain(rig, "revoked")
    assert minutes(2) == ["tick"] * 5


def test_the_same_schedule_by_somebody_else_changes_hands_and_keeps_its_times(rig: Keyed) -> None:
    timing = TimingRow("every", "60000", "UTC")
    core = rig.core

    def put(owner: bytes) -> None:
        record = encode(Record(b"m", b"tick", owner=owner))
        rig.decide(lambda commit: core.schedules.put(commit, "s", timing, record, b"{}"))

    put(b"meter")
    before = core.schedules.get("s")
    rig.pass_ms(25_000)
    put(b"ops")
    after = core.schedules.get("s")
    assert before is not None
    assert after is not None
    assert before.occurrence is not None
    assert after.occurrence is not None
    assert after.occurrence.at_ms == before.occurrence.at_ms
    assert after.count == before.count == 1
    owned = core.opened.owned
    assert (owned.pending(b"meter"), owned.pending(b"ops")) == (0, 1)


@pytest.mark.long
def test_schedules_of_one_who_is_over_his_quota_hold_up_nobody_elses(
    rig: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more of them than are asked for in a round, and all stand before the other in the line."""
    monkeypatch.setattr(rig.core.schedules.errand, "_most", 3)
    rig.add("few")
    schedules, core = rig.core.schedules, rig.core
    timing = TimingRow("every", "60000", "UTC")

    def put(name: str, owner: bytes) -> None:
        record = encode(Record(b"m", owner, owner=owner))
        rig.decide(lambda c: schedules.put(c, name, timing, record, b"{}"))

    def minutes(count: int) -> list[str]:
        for _ in range(12 * count):
            rig.pass_ms(5_000)
        return peer.take_all()

    for number in range(8):
        put(f"few-{number}", b"few")
    rig.pass_ms(10)
    put("ops", b"ops")
    rig.change("few", "scopes", "pending = 1\nscopes")
    peer = reader(rig)
    assert minutes(4).count("ops") == 4
    assert core.opened.owned.pending(b"few") == 1
    assert not schedules.errand.is_settled
    put("few-7", b"ops")
    assert minutes(2).count("ops") == 4, "who has room takes one over, whatever it still owes"
    rig.change("few", "pending = 1", "pending = 1000")
    assert minutes(2).count("few") >= 7


def test_what_is_withheld_does_not_become_what_is_retained(rig: Keyed) -> None:
    """Neither in the place of a good one, nor to clear it."""
    rig.come("ops").publish1("m", "good", retain=True)
    meter = rig.come("meter")
    meter.publish1("$delayed/10/m", "bad", retain=True)
    meter.publish1("$delayed/20/m", "", retain=True)
    lose(rig, "revoked")
    rig.pass_ms(30_000)
    assert reader(rig).take_all() == ["good"]


@pytest.mark.parametrize("client_id", ["c1", "c2"])
def test_a_rule_is_asked_for_the_client_that_has_published(rig: Keyed, client_id: str) -> None:
    rig.add("fleet", publish=["m/%c"])
    peer = reader(rig)
    rig.come("fleet", client_id).publish1(f"$delayed/10/m/{client_id}", client_id)
    rig.change("fleet", '"m/%c"', '"m/c1", "x/%c"')
    rig.pass_ms(11_000)
    assert peer.take_all() == (["c1"] if client_id == "c1" else [])


def test_what_nobody_owns_goes_to_everybody(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, allow_anonymous=True)
    peer = reader(rig)
    rig.connected("c").publish1("$delayed/10/m", "anybody's")
    rig.pass_ms(11_000)
    assert peer.take_all() == ["anybody's"]


def test_without_keys_nothing_is_withheld_any_more(tmp_path: Path) -> None:
    rig = Keyed(tmp_path)
    rig.add("meter", publish=["m"])
    reader(rig)
    rig.come("meter").publish1("$delayed/10/m", "m")
    rig.revoke("meter")
    rig.crash(settings=type(rig.core.config)())
    peer = rig.lasting("reader")
    rig.pass_ms(11_000)
    assert peer.take_all() == ["m"]


def test_a_dead_letter_is_the_server_s(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, max_attempts=1)
    rig.add("meter", publish=["m"])
    dead = rig.stay("ops", "dead").subscribed("$dead/#", qos=1)
    reader(rig)
    rig.come("meter").publish1("m", "poison")
    for peer in list(rig.peers):
        if peer.connection.client_id == "reader":
            peer.drop()
    rig.stay("ops", "reader")
    lose(rig, "revoked")
    rig.pump()
    assert dead.take_all() == ["poison"]


def test_a_quota_of_what_may_be_pending(rig: Keyed) -> None:
    rig.add("few", pending=2)
    peer = rig.come("few")
    far = "$delayed/5000/m"
    assert [peer.publish1(far).reason for _ in range(3)] == [0, 0, 0x97]
    assert rig.come("ops").publish1(far).reason == 0, "of nobody else"
    rig.crash(pump=True)
    peer = rig.come("few")
    assert peer.publish1(far).reason == 0x97
    assert peer.publish1("n").reason == 0x10, "what is not stored waits for nobody"
    rig.change("few", "pending = 2", "pending = 3")
    assert [peer.publish1("$delayed/10/m").reason, peer.publish1(far).reason] == [0, 0x97]
    rig.pass_ms(11_000)
    assert [peer.publish1(far).reason for _ in range(2)] == [0, 0x97]
    old = rig.come("few", "old", level=4)
    old.publish(far, "x", 1)
    assert old.is_closed


def test_a_quota_of_bytes_that_may_be_pending(rig: Keyed) -> None:
    rig.add("few", pending_bytes=250)
    peer = rig.come("few")
    far, payload = "$delayed/5000/m", "x" * 80
    assert [peer.publish1(far, payload).reason for _ in range(3)] == [0, 0, 0x97]
    rig.crash(pump=True)
    peer = rig.come("few")
    assert [peer.publish1(far, text).reason for text in (payload, "x")] == [0x97, 0]
    rig.change("few", "pending_bytes = 250", "pending_bytes = 400")
    assert [peer.publish1("$delayed/10/m", payload).reason, peer.publish1(far, payload).reason] == [0, 0x97]
    rig.pass_ms(11_000)
    assert [peer.publish1(far, payload).reason for _ in range(2)] == [0, 0x97]


def test_one_key_leaves_the_last_pending_messages_to_others(tmp_path: Path) -> None:
    rig = Keyed(tmp_path, pending=8, allow_anonymous=True)
    rig.add("a")
    far = "$delayed/5000/m"
    assert [rig.come("a").publish1(far).reason for _ in range(8)] == [0] * 7 + [0x97]
    rig.crash(pump=True)
    assert rig.come("a").publish1(far).reason == 0x97, "counted again at the start"
    assert [rig.come("ops").publish1(far).reason for _ in range(2)] == [0, 0x97]
    without = Rig(config(pending=8))
    assert [without.connected("c").publish1(far).reason for _ in range(9)] == [0] * 8 + [0x97], "without keys"


def test_answers_are_remembered_within_a_bound_and_no_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[tuple[str, str, bytes]] = []

    def may_send(name: str, client_id: str, topic: bytes) -> tuple[bool, int]:
        asked.append((name, client_id, topic))
        return topic != b"no", COST_RULES

    rights = {"may_send": may_send, "binds_anonymous": lambda: False, "is_absent": lambda _: False}
    rights["is_revoked"] = lambda _: False
    withheld = Withheld(MemoryStore(), Waiting())
    owners = Owners(cast("Auth", SimpleNamespace(**rights)), withheld)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not owners.allow_record(Record(b"no", b"", owner=b"a", publisher=b"c"))
            assert owners.allow_record(Record(b"yes", b"", owner=b"a", publisher=b"c"))
            assert owners.allow_record(Record(b"no", b"", publisher=b"c"))
    assert asked == [("a", "c", b"no"), ("a", "c", b"yes")]
    assert owners.take_cost() == 2 * (ANSWER_COST + 1)
    assert owners.withheld == 3
    assert [record.message for record in caplog.records] == [
        "message to no withheld: key 'a' may not publish to 'no'"
    ]
    owners.forget()
    assert not owners.allow_record(Record(b"no", b"", owner=b"a", publisher=b"c"))
    assert len(asked) == 3
    caplog.clear()
    for number in range(REMEMBERED_BYTES // 1_000):
        assert owners.allow_record(Record(b"%4d" % number * 250, b"", owner=b"a", publisher=b"c"))
    assert not owners.allow_record(Record(b"no", b"", owner=b"a", publisher=b"c"))
    assert len(caplog.records) == 1, "the answers were forgotten at theirs"


def test_a_client_id_that_is_too_long_to_be_noted_is_in_no_rule(rig: Keyed) -> None:
    """Said when it publishes: what was taken would be withheld, as a message has only the beginning of it."""
    rig.add("fleet", publish=["m/%c"])
    peer = reader(rig)
    for client, reason in (("c" * 255, 0), ("c" * 256, 0x87), ("ä" * 128, 0x87)):
        assert rig.come("fleet", client).publish1(f"m/{client}", "x").reason == reason
    assert peer.take_all() == ["x"]
    assert rig.core.owners.withheld == 0


@pytest.mark.long
def test_rules_that_take_long_to_look_at_do_not_hold_up_the_others(
    rig: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many clients of one key, each with a message to a topic of its own, all due at once."""
    clients = [f"c{number}" for number in range(30)]
    rules = [f"sites/{number}/%c/#" for number in range(1_000)]
    rig.add("gateway", publish=rules)
    peer = rig.stay("ops", "reader").subscribed("sites/#", qos=0)
    for client in clients:
        rig.come("gateway", client).publish1(f"$delayed/10/sites/999/{client}/x", client)
    dispatch = rig.core.dispatch
    turn, passed = dispatch.turn, []

    def counted(*args: int) -> bool:
        before = dispatch.counts.dispatched
        has_more = turn(*args)
        passed.append(dispatch.counts.dispatched - before)
        return has_more

    monkeypatch.setattr(dispatch, "turn", counted)
    rig.pass_ms(11_000)
    assert sorted(peer.take_all()) == sorted(clients)
    assert sum(passed) == len(clients)
    assert max(passed) <= TURN_COST // (ANSWER_COST + len(rules) // COST_RULES) + 1 < len(clients)


RULES = (["a"], ["b", "b/#"], ["#"], [], ["+/1"], ["a/#", "c"], ["%c/#"])
TOPICS = ("a", "a/1", "b", "b/1", "c", "c1/x", "c2/x")


class Walk:
    """Whatever happens: nothing arrives that its sender may not send at that moment."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rig = Keyed(folder)
        self.rules = {"s1": RULES[2], "s2": RULES[2]}
        for name, rules in self.rules.items():
            self.rig.add(name, publish=rules)
        self.arrived = self.sent = self.withheld = 0
        self.peers: dict[str, Peer] = {}

    def run(self, steps: int) -> int:
        """How many deliveries there were."""
        often: tuple[Callable[[], None], ...] = (self.publish, self.publish, self.publish, self.connect)
        for _ in range(steps):
            self.chance.choice((*often, self.change, self.drop, self.pass_time, self.rewind, self.crash))()
            self.look()
        return self.arrived

    def look(self) -> None:
        for peer in self.peers.values():
            for packet in peer.deliveries(acks=self.chance.random() < 0.6, is_strict=False):
                self.arrived += 1
                name, client_id = packet.payload.decode().split()[:2]
                allowed = [rule.replace("%c", client_id) for rule in self.rules[name]]
                assert any(matches(rule, packet.topic.decode()) for rule in allowed), (packet, allowed)

    def publish(self) -> None:
        name, client_id = self.chance.choice(("s1", "s2")), self.chance.choice(("c1", "c2"))
        topic = self.chance.choice(TOPICS)
        if self.chance.random() < 0.4:
            topic = f"$delayed/{self.chance.randrange(1, 5)}/{topic}"
        peer = self.rig.come(name, client_id)
        self.sent += 1
        text = f"{name} {client_id} {self.sent}"
        peer.publish(topic, text, self.chance.randrange(3), retain=self.chance.random() < 0.3)
        peer.disconnect()

    def change(self) -> None:
        name = self.chance.choice(sorted(self.rules))
        before, self.rules[name] = self.rules[name], self.chance.choice(RULES)
        self.rig.change(name, _toml(before), _toml(self.rules[name]))

    def connect(self) -> None:
        name = self.chance.choice(("r1", "r2"))
        if name in self.peers:
            self.peers.pop(name).drop()
        peer = self.peers[name] = self.rig.peer()
        peer.connect(name, clean=False, expiry=3_600, username="ops", key=self.rig.keys["ops"], pump=False)
        text = self.chance.choice(("#", "a/#", "$share/g/#"))
        peer.subscribe(text, qos=self.chance.randrange(3), pump=False)
        self.rig.pump()

    def drop(self) -> None:
        if self.peers:
            self.peers.pop(self.chance.choice(sorted(self.peers))).drop()

    def rewind(self) -> None:
        if self.peers:
            self.rig.rewind(self.chance.choice(sorted(self.peers)))

    def pass_time(self) -> None:
        self.rig.pass_ms(2_000)

    def crash(self) -> None:
        if self.chance.random() < 0.3:
            self.peers.clear()
            self.withheld += self.rig.core.owners.withheld
            self.rig.crash(self.chance.randrange(3), pump=True)


def _toml(rules: list[str]) -> str:
    return f"publish = {rules}".replace("'", '"')


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100 if SOAK else 6))
def test_nothing_goes_out_that_its_sender_may_not_send(tmp_path: Path, seed: int) -> None:
    walk = Walk(tmp_path, seed)
    assert walk.run(150) > 5
    assert walk.withheld + walk.rig.core.owners.withheld > 5
