"""Members of a group that may not receive its topics count as absent: nothing is lost by them, nor theirs."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.auth.rights import NO_GRANT
from server.codec import wire
from server.codec.packets import Ack, Publish, Subscribe, SubscribeOptions
from server.delivery import dispatch, picker, replay, unread
from server.delivery.router import Router, Targets
from server.delivery.shared import endpoint_text
from shards import delivery_rows
from tests.support.build import OPENED
from tests.support.keyed import Keyed
from tests.support.pulling import Puller
from tests.support.rig import Peer, asking, props
from tests.support.soak import SOAK

TEXT = "$share/g/jobs/#"
TEN = [str(number) for number in range(10)]


@pytest.fixture
def rig(tmp_path: Path) -> Keyed:
    """`alice` may have what the group gets; `mallory` may subscribe to it and receive something else."""
    rig = Keyed(tmp_path)
    rig.add("alice", deliver=["jobs/#"])
    rig.add("mallory", deliver=["else/#"])
    return rig


def join(rig: Keyed, name: str, *, stays: bool = False, qos: int = 1, **terms: str) -> Peer:
    """A member; one that stays subscribes once."""
    is_known = rig.core.sessions.get(name) is not None
    peer = rig.stay(name) if stays else rig.come(name)
    if is_known and stays:
        return peer
    return peer.subscribed(TEXT, qos=qos, user_properties=asking(**terms))


def send(rig: Keyed, topic: str = "jobs/1", payloads: list[str] = TEN, qos: int = 1) -> None:
    ops = rig.come("ops")
    for payload in payloads:
        getattr(ops, f"publish{qos}")(topic, payload)
    ops.disconnect()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("terms", [{}, {"order": "true"}, {"fair": "true"}])
def test_what_waits_for_a_group_is_kept_from_who_may_not_have_it(
    rig: Keyed, caplog: pytest.LogCaptureFixture, qos: int, stays: bool, terms: dict[str, str]
) -> None:
    join(rig, "alice", stays=stays, **terms).disconnect()
    send(rig, payloads=TEN[:5], qos=qos)
    mallory = join(rig, "mallory", qos=qos)
    send(rig, payloads=TEN[5:], qos=qos)
    rig.pass_ms(2_000)
    assert mallory.inbox == []
    assert "group g: a message waits, no connected member may receive jobs/1" in caplog.messages
    mallory.unsubscribe(TEXT)
    mallory.drop()
    alice = join(rig, "alice", stays=stays)
    assert alice.take_all() == TEN


def test_it_is_kept_from_who_leases_it_too(rig: Keyed) -> None:
    join(rig, "alice").drop()
    send(rig)
    assert Puller(rig, TEXT, rights=rig.keyring.rights_of("mallory", "")).lease() == []
    assert len(Puller(rig, TEXT, rights=rig.keyring.rights_of("alice", "")).lease()) == 10


def test_it_is_kept_over_a_kill(rig: Keyed) -> None:
    join(rig, "alice").drop()
    join(rig, "mallory", stays=True)
    send(rig)
    rig.kill()
    rig.read_keys()
    join(rig, "mallory", stays=True)
    assert join(rig, "alice").take_all() == TEN


@pytest.mark.parametrize("end", ["disconnect", "drop", "nack"])
@pytest.mark.parametrize("terms", [{}, {"order": "true"}])
def test_what_is_tried_again_waits_for_who_may_have_it(rig: Keyed, end: str, terms: dict[str, str]) -> None:
    alice = join(rig, "alice", backoff="1s", **terms)
    mallory = join(rig, "mallory")
    send(rig, payloads=["1"])
    (given,) = alice.publishes()
    if end == "nack":
        again = props(user_properties=(("retry-in", "1s"),))
        alice.send(Ack(wire.PUBACK, given.packet_id, 0x83, again))
    getattr(alice, "drop" if end == "nack" else end)()
    rig.pass_ms(5_000)
    assert mallory.inbox == []
    alice = join(rig, "alice")
    rig.pass_ms(1_000)
    assert alice.take_all() == ["1"]


def test_a_retry_that_waits_holds_up_no_other(rig: Keyed) -> None:
    rig.add("bob", deliver=["jobs/2"])
    bob, alice = join(rig, "bob"), join(rig, "alice", backoff="1s")
    send(rig, "jobs/1", ["1"])
    alice.drop()
    rig.pass_ms(3_000)
    send(rig, "jobs/2", ["2"])
    assert bob.take_all() == ["2"]


def test_a_group_reads_on_when_a_member_may_have_more(rig: Keyed) -> None:
    join(rig, "alice").drop()
    mallory = join(rig, "mallory")
    send(rig)
    rig.change("mallory", '["else/#"]', '["else/#", "jobs/#"]')
    assert mallory.take_all() == TEN


def test_qos_0_goes_to_who_is_there_or_to_nobody(rig: Keyed) -> None:
    rig.add("bob", deliver=["jobs/2"])
    join(rig, "alice", qos=0).drop()
    bob = join(rig, "bob", qos=0)
    ops = rig.come("ops")
    ops.publish("jobs/1", "1")
    ops.publish("jobs/2", "2")
    assert bob.payloads() == ["2"]


def test_what_none_of_them_may_have_is_counted_and_told(rig: Keyed, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    mallory = join(rig, "mallory", stays=True)
    send(rig)
    mallory.disconnect()
    send(rig)
    join(rig, "mallory", stays=True)
    assert rig.core.router.barred == 20
    assert "group g: passes over jobs/1, none of its clients may receive it" in caplog.messages


def test_what_waits_for_a_group_of_before_the_keys_waits_for_who_may_have_it(rig: Keyed) -> None:
    join(rig, "alice").drop()
    rig.group(TEXT).owner = ""
    rig.core.cursors.store_next(rig.group(TEXT))
    send(rig)
    rig.kill()
    rig.read_keys()
    rig.keyring.anonymous.replace(NO_GRANT)  # as an ACL file does that says nothing of them
    assert rig.group(TEXT).owner == ""
    mallory = join(rig, "mallory")
    rig.pass_ms(1_000)
    mallory.unsubscribe(TEXT)
    mallory.drop()
    assert join(rig, "alice").take_all() == TEN
    assert rig.group(TEXT).owner == "alice"


def test_what_was_given_and_may_not_be_given_again_is_a_dead_letter(rig: Keyed) -> None:
    alice = join(rig, "alice", stays=True, backoff="1s")
    send(rig, payloads=["1"])
    rig.change("alice", '["jobs/#"]', '["other"]')
    alice.drop()
    join(rig, "mallory")
    rig.pass_ms(3_000)
    (letter,) = [*delivery_rows.dead_of(rig.store, "g")]
    assert letter.reason == "its place may not receive the topic any more"


def test_who_may_not_have_it_neither_takes_a_group_over_nor_ends_it(rig: Keyed) -> None:
    join(rig, "alice").drop()
    for _ in range(2):
        mallory = join(rig, "mallory")
        mallory.unsubscribe(TEXT)
        mallory.drop()
        assert rig.group(TEXT).owner == "alice"
    join(rig, "mallory").drop()
    assert rig.group(TEXT).owner == "alice"


def test_a_group_passes_from_who_may_have_nothing_to_who_may_have_all(rig: Keyed) -> None:
    join(rig, "mallory")
    assert rig.group(TEXT).owner == "mallory"
    join(rig, "alice").drop()
    send(rig)
    assert rig.group(TEXT).owner == "alice"
    assert join(rig, "alice").take_all() == TEN


@pytest.mark.parametrize("order", ["false", "true"])
def test_more_than_are_looked_at_for_a_message_do_not_hide_who_may_have_it(
    rig: Keyed, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """They are looked at once, not again for each message."""
    monkeypatch.setattr(picker, "UNABLE_MAX", 10)
    alice = join(rig, "alice", order=order, fair=order)
    for number in range(30):
        rig.come("mallory", f"m{number}").subscribe(TEXT)
    send(rig)
    found = []
    for _ in range(5):
        found += alice.take_all()
        rig.pass_ms(100)
    assert found == TEN


def test_the_log_tells_once_in_a_while_of_each_group(rig: Keyed, caplog: pytest.LogCaptureFixture) -> None:
    """However many messages somebody sends, at QoS 0 too."""
    join(rig, "alice").drop()
    mallory = join(rig, "mallory")
    mallory.subscribe("$share/own/jobs/#")
    ops = rig.come("ops")
    for number in range(20):
        ops.publish(f"jobs/{number}", "x")
    told = [text.partition(", no")[0].partition(" jobs")[0] for text in caplog.messages if "group " in text]
    assert sorted(told) == ["group g: a message waits", "group own: passes over"]


@OPENED
def test_many_who_may_not_have_a_topic_do_not_hold_up_the_others(
    rig: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new topic is looked at for all of them; a turn's budget counts that, as does a reader's."""
    monkeypatch.setattr(dispatch, "TURN_COST", 100)
    monkeypatch.setattr(replay, "TURN_OWNERS", 100)
    monkeypatch.setattr(unread, "TURN_OWNERS", 100)
    for number in range(20):
        rig.come("mallory", f"m{number}").subscribed("jobs/#").subscribe("$share/own/jobs/#")
    rig.stay("alice").subscribed("jobs/#").drop()
    ops = rig.come("ops")
    for number in range(20):
        ops.publish1(f"$delayed/10/jobs/{number}", "x")
    routed: list[int] = []
    match, turn, read = Router._match, rig.core.dispatch.turn, rig.core.replay._read_stretch
    most = []

    def counted(self: Router, topic: bytes) -> Targets:
        routed.append(1)
        return match(self, topic)

    def in_turns(work: Callable[..., bool]) -> Callable[..., bool]:
        def one(*args: Any) -> bool:
            routed.clear()
            has_more = work(*args)
            most.append(len(routed))
            return has_more

        return one

    monkeypatch.setattr(Router, "_match", counted)
    monkeypatch.setattr(rig.core.dispatch, "turn", in_turns(turn))
    rig.pass_ms(11_000)
    assert 0 < max(most) <= 100 // (20 + 1 + 20) + 1, "in a turn of dispatch"
    most.clear()
    monkeypatch.setattr(rig.core.replay, "_read_stretch", in_turns(read))
    rig.core.router.forget()
    assert len(rig.stay("alice").take_all()) == 20
    assert 0 < max(most) <= 100 // (20 + 1 + 20) + 1, "in a turn of a reader"


@pytest.mark.parametrize(
    "terms", [{"rate": "1/h"}, {"max_attempts": "1"}, {"expiry": "0s"}, {"order": "true"}]
)
def test_who_may_not_have_it_sets_no_terms(rig: Keyed, terms: dict[str, str]) -> None:
    said = asking(**terms)
    mallory = rig.come("mallory")
    assert mallory.subscribe(TEXT, user_properties=said) == (0x87,)
    assert rig.core.groups.get(TEXT) is None
    assert mallory.subscribe(TEXT) == (2,)
    assert mallory.subscribe(TEXT, user_properties=said) == (0x87,), "also of a group that it has created"
    alice = join(rig, "alice", backoff="1s")
    before = rig.group(TEXT).terms, rig.group(TEXT).keeping
    assert mallory.subscribe(TEXT, user_properties=said) == (0x87,)
    assert (rig.group(TEXT).terms, rig.group(TEXT).keeping) == before
    assert mallory.subscribe(TEXT, user_properties=(("backoff", "1s"),)) == (2,), "these are its terms"
    send(rig)
    assert alice.take_all() == TEN


@pytest.mark.parametrize("name", ["owner", "ops"])
def test_the_owner_and_who_may_have_all_set_terms(rig: Keyed, name: str) -> None:
    rig.add("owner", deliver=["jobs/+/state"])
    join(rig, "owner", rate="5")
    rig.add("other", deliver=["jobs/1/#"])
    said = (("rate", "7"),)
    assert rig.come("other").subscribe(TEXT, user_properties=said) == (0x87,)
    assert rig.come(name, "c1").subscribe(TEXT, user_properties=said) == (2,)
    assert rig.group(TEXT).keeping.rate == 7


def test_who_may_not_deliver_to_an_endpoint_has_it_told_of_nothing(rig: Keyed) -> None:
    rig.make(endpoint_text("ops"))
    rig.add("worker", deliver=["jobs/#"], publish=["jobs/#"])
    rig.add("boss", deliver=["jobs/#"], publish=["$deliver/ops"])
    worker, boss = rig.come("worker"), rig.come("boss")
    assert worker.subscribe(TEXT, user_properties=(("alerts", "ops"),)) == (0x87,)
    assert boss.subscribe(TEXT, user_properties=(("alerts", "nobody"),)) == (0x87,)
    assert rig.core.groups.get(TEXT) is None
    assert boss.subscribe(TEXT, user_properties=(("alerts", "ops"),)) == (2,)
    assert worker.subscribe(TEXT, user_properties=(("rate", "7"),)) == (2,)
    rig.crash()
    keeping = rig.group(TEXT).keeping
    assert (keeping.alerts, keeping.alerts_by, keeping.rate) == ("ops", "boss", 7)
    assert rig.come("ops").subscribe(TEXT, user_properties=(("alerts", "nobody"),)) == (0x83,)
    assert rig.come("ops").subscribe(TEXT, user_properties=(("alerts", ""),)) == (2,)
    assert (rig.group(TEXT).keeping.alerts, rig.group(TEXT).keeping.alerts_by) == ("", "ops")


def test_terms_of_a_session_are_its_own(rig: Keyed) -> None:
    assert rig.come("mallory").subscribe("jobs/#", user_properties=(("max-attempts", "1"),)) == (2,)


def test_a_retry_goes_to_another_filter_of_the_name_if_its_own_has_none_that_may_have_it(rig: Keyed) -> None:
    alice = join(rig, "alice", backoff="1s")
    send(rig, payloads=["1"])
    join(rig, "mallory")
    bob = rig.come("ops", "bob").subscribed("$share/g/jobs/+")
    alice.drop()
    rig.pass_ms(5_000)
    assert bob.take_all() == ["1"]


def test_what_is_with_a_client_for_good_is_the_group_s_dead_letter_if_it_may_not_have_it(rig: Keyed) -> None:
    """QoS 2 stays with the client that it was sent to."""
    alice = join(rig, "alice", stays=True, qos=2)
    send(rig, payloads=["1"], qos=2)
    alice.drop()
    rig.change("alice", '["jobs/#"]', '["other"]')
    assert join(rig, "alice", stays=True, qos=2).inbox == []
    rig.pass_ms(1_000)
    (letter,) = [*delivery_rows.dead_of(rig.store, "g")]
    assert (letter.group, letter.reason) == ("g", "its place may not receive the topic any more")


class Walk:
    """Clients of different rights come, work and go; rights change, and the server is killed."""

    def __init__(self, rig: Keyed, seed: int, terms: dict[str, str]) -> None:
        self.rig, self.rnd = rig, random.Random(seed)
        self.may = {"alice": ["jobs/1", "jobs/2"], "one": ["jobs/1"], "two": ["jobs/2"], "mallory": []}
        for name in ("one", "two"):
            rig.add(name, deliver=self.may[name])
        join(rig, "alice", backoff="1s", max_attempts="0", **terms).drop()
        self.here: dict[str, Peer] = {}
        self.sent = 0
        self.acked: set[str] = set()

    def send(self) -> None:
        ops, more = self.rig.come("ops"), (("ordering-key", self.rnd.choice("abc")),)
        ops.publish1(self.rnd.choice(["jobs/1", "jobs/2"]), str(self.sent), user_properties=more)
        ops.disconnect()
        self.sent += 1

    def come(self, name: str) -> None:
        peer = self.here[name] = self.rig.come(name)
        peer.send(Subscribe(peer.next_id(), ((TEXT, SubscribeOptions(1)),)))
        peer.inbox = [packet for packet in peer.inbox if isinstance(packet, Publish)]

    def take(self, name: str, part: float) -> None:
        for packet in self.here[name].publishes():
            assert packet.topic.decode() in self.may[name]
            if self.rnd.random() < part:
                self.here[name].ack(wire.PUBACK, packet.packet_id)
                self.acked.add(packet.payload.decode())

    def swap(self) -> None:
        """Who is connected keeps what it has."""
        for name in self.here:
            self.take(name, 0.5)
        for name in ("one", "two"):
            before, after = self.may[name][0], "jobs/1" if self.may[name] == ["jobs/2"] else "jobs/2"
            self.may[name] = [after]
            self.rig.change(name, f'["{before}"]', f'["{after}"]')

    def step(self) -> None:
        match self.rnd.choice(["send"] * 4 + ["come"] * 3 + ["go", "go", "take", "time", "swap", "kill"]):
            case "send":
                self.send()
            case "come":
                if absent := sorted(self.may.keys() - self.here.keys()):
                    self.come(self.rnd.choice(absent))
            case "go" if self.here:
                name = self.rnd.choice(sorted(self.here))
                self.take(name, 0.5)
                peer = self.here.pop(name)
                self.rnd.choice([peer.drop, peer.disconnect])()
            case "take" if self.here:
                self.take(self.rnd.choice(sorted(self.here)), 0.7)
            case "time":
                self.rig.pass_ms(self.rnd.choice([500, 3_000]))
            case "swap":
                self.swap()
            case "kill" if self.rnd.random() < 0.3:
                self.rig.kill()
                self.rig.read_keys()
                self.here.clear()

    def end(self) -> None:
        """Everybody goes, and alice finishes what is left."""
        for name in list(self.here):
            self.here.pop(name).drop()
        self.come("alice")
        for _ in range(20):
            self.take("alice", 1.0)
            self.rig.pass_ms(4_000)


@pytest.mark.long
@pytest.mark.parametrize("terms", [{}, {"order": "true"}, {"fair": "true"}, {"per_key_concurrency": "1"}])
@pytest.mark.parametrize("seed", range(100 if SOAK else 4))
def test_all_is_done_by_who_may_have_it_whoever_comes_and_goes(
    rig: Keyed, seed: int, terms: dict[str, str]
) -> None:
    walk = Walk(rig, seed, terms)
    for _ in range(60):
        walk.step()
    walk.end()
    assert walk.acked == {str(number) for number in range(walk.sent)}
