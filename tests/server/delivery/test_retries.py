"""A retry goes to its addressee alone: at dispatch, to who reads on, after a rewind, a restart, a kill."""

from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.codec import wire
from server.codec.packets import Ack, Publish
from shards import delivery_rows, keys
from shards.commit import Commit
from shards.deliveries import end, wait
from shards.delivery_rows import DeliveryRow
from shards.errors import Corrupt
from shards.fields import Record
from shards.pointers import pointers
from shards.record import decode
from shards.store import Table
from shards.tables import WAITING
from shards.verify import verify_counts
from tests.support.delivery import delivery
from tests.support.rig import Peer, Rig, asking, config, props
from timeline.position import END, START, MessageId, Position, before, id_position

GROUP = "$share/g/t"


def retries(rig: Rig) -> list[DeliveryRow]:
    """Those that wait, or are in flight."""
    return list(delivery_rows.waiting(rig.core.opened.store))


def nack(peer: Peer, retry_in: str, *, pump: bool = True) -> None:
    packet_id = peer.one().packet_id
    peer.send(Ack(wire.PUBACK, packet_id, 0x80, props(user_properties=(("retry-in", retry_in),))), pump=pump)


def letters(rig: Rig) -> list[str]:
    return [decode(row.record).payload.decode() for row in rig.core.dead_letters.read()]


def requeue(rig: Rig, after_ms: int = 0, *, pump: bool = True) -> None:
    """All dead letters."""
    places = [row.name for row in rig.core.dead_letters.read()]
    due_ms = rig.clock.now_ms + after_ms

    def decide(commit: object) -> None:
        for place in places:
            rig.core.dead_letters.requeue(commit, place, due_ms, lambda *_: True)  # type: ignore[arg-type]

    rig.decide(decide, pump=False)
    if pump:
        rig.pump()


def dead_letter(rig: Rig, text: str = "t", payload: str = "bad", qos: int = 1) -> None:
    """`a` has subscribed and given it up; another session too has had it, and has acked."""
    witness = rig.lasting("witness").subscribed("t", qos=2)
    peer = rig.lasting("a").subscribed(text, qos=qos)
    publisher = rig.connected("p")
    (publisher.publish2 if qos == 2 else publisher.publish1)("t", payload)
    assert witness.take_all() == [payload]
    peer = peer.back()
    assert peer.inbox == []
    for one in (witness, publisher, peer):
        one.drop()
    assert letters(rig) == [payload]


def attempt(packet: Publish) -> dict[str, str]:
    properties = packet.properties
    return {} if properties is None else dict(properties.user_properties)


@pytest.mark.parametrize(("text", "qos"), [("t", 1), ("t", 2), (GROUP, 1)])
def test_it_comes_to_its_addressee_alone_whoever_is_there(text: str, qos: int) -> None:
    rig = Rig(config(max_attempts=1))
    dead_letter(rig, text, qos=qos)
    witness = rig.lasting("witness")
    peer = rig.lasting("a")
    requeue(rig, 5_000)
    assert letters(rig) == []
    assert len(retries(rig)) == 1
    rig.pass_ms(4_999)
    assert peer.inbox == []
    rig.pass_ms(1)
    (packet,) = peer.inbox
    assert isinstance(packet, Publish)
    assert (packet.payload, packet.qos, packet.dup) == (b"bad", qos, False)
    said = attempt(packet)
    assert said["fasti-attempt"] == "2"
    assert peer.take_all() == ["bad"]
    assert witness.inbox == []
    rig.pass_ms(3_000)
    assert retries(rig) == []


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.parametrize("text", ["t", GROUP])
def test_it_waits_on_disk_for_who_is_away(how: str, text: str) -> None:
    rig = Rig(config(max_attempts=1))
    dead_letter(rig, text)
    requeue(rig, 5_000)
    rig.pass_ms(500)
    rig.start_again(how)
    assert (letters(rig), len(retries(rig))) == ([], 1)
    rig.pass_ms(6_000)
    rig.start_again(how)
    assert rig.lasting("witness").take_all() == []
    assert rig.lasting("a").take_all() == ["bad"]
    if how == "restart":
        rig.restart()
        assert rig.lasting("a").take_all() == []


@pytest.mark.parametrize("is_in_tail", [False, True])
def test_a_rewind_gives_it_again_to_its_addressee_and_to_nobody_else(is_in_tail: bool) -> None:
    rig = Rig(config(max_attempts=1))
    dead_letter(rig)
    requeue(rig)
    assert rig.lasting("a").take_all() == ["bad"]
    if not is_in_tail:
        rig.restart()
    for name in ("witness", "a"):
        peer = rig.lasting(name)
        rig.rewind(name)
        assert peer.take_all() == ["bad"]
        fresh = rig.lasting(f"new {name}").subscribed("t", user_properties=(("replay-from", "PT1H"),))
        assert fresh.take_all() == ["bad"]


@pytest.mark.long
@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_kill_leaves_a_dead_letter_or_a_retry(survivors: int) -> None:
    outcomes = set()
    for steps in range(6):
        rig = Rig(config(max_attempts=1))
        dead_letter(rig)
        requeue(rig, 2_000, pump=False)
        rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        left, waiting = letters(rig), len(retries(rig))
        assert (left, waiting) in ((["bad"], 0), ([], 1)), steps
        assert delivery_rows.totals(rig.store).count == len(left)
        outcomes.add(waiting)
        # Asked again, it is done once.
        requeue(rig, 2_000)
        assert (letters(rig), len(retries(rig))) == ([], 1)
        rig.pass_ms(3_000)
        assert rig.lasting("a").take_all() == ["bad"]
    assert 1 in outcomes


def test_it_begins_anew_toward_max_attempts_and_goes_on_counting() -> None:
    rig = Rig(config(max_attempts=3))
    rig.lasting("a").subscribe("t", qos=1)
    rig.connected("p").publish1("t", "bad")
    seen = [""]  # the first delivery of all

    def come_back() -> None:
        peer = rig.lasting("a")
        for packet in peer.publishes():
            assert packet.dup == (len(seen) % 3 > 0)
            seen.append(attempt(packet).get("fasti-attempt", ""))
        peer.drop()

    for peer in list(rig.peers):
        peer.drop()
    while not letters(rig):
        come_back()
    # A plain publish has no properties of ours.
    assert seen == ["", "", ""]
    (row,) = rig.core.dead_letters.read()
    assert (row.attempts, row.reason) == (3, "not acked after 3 deliveries")
    requeue(rig)
    while not letters(rig):
        come_back()
    assert seen[3:] == ["4", "5", "6"]
    (row,) = rig.core.dead_letters.read()
    assert (row.attempts, row.reason) == (6, "not acked after 6 deliveries")


def test_attempts_that_count_bring_the_end_nearer() -> None:
    """As those of a message that is put off and comes again will."""
    rig = Rig(config(max_attempts=3))
    rig.lasting("a").subscribe("t", qos=1)
    subscriber = rig.session("a")
    record = _stored(rig, "bad")
    made = delivery(subscriber, Position(5), MessageId(5), record, attempts=7, counted=2, reason="busy")
    now_ms = rig.clock.now_ms

    def put(commit: Commit) -> None:
        at = wait(commit, made, now_ms, is_owed=True)
        rig.core.retries.changes(subscriber, made.root, at, at)

    rig.decide(put)
    peer = rig.peers[0]
    assert peer.payloads()[-1] == "bad"
    peer.drop()
    rig.lasting("a")
    (row,) = rig.core.dead_letters.read()
    assert (row.attempts, row.id) == (8, 5)


def _stored(rig: Rig, payload: str) -> bytes:
    rig.connected("p").publish1("t", payload)
    rig.peers[0].take_all()
    (found,) = [value for _, _, value in rig.core.reader.read(START, END)]
    return found


def test_who_has_unsubscribed_or_is_another_gets_nothing() -> None:
    rig = Rig(config(max_attempts=1))
    dead_letter(rig)
    peer = rig.lasting("a")
    requeue(rig, 1_000)
    peer.unsubscribe("t")
    rig.pass_ms(2_000)
    peer.subscribe("t", user_properties=(("replay-from", "PT1H"),))
    # By its own wish it reads all again: what it has given up, and nothing else.
    assert peer.take_all() == ["bad"]


def test_a_group_that_has_ended_leaves_it_to_nobody() -> None:
    rig = Rig(config(max_attempts=1))
    dead_letter(rig, GROUP)
    rig.connected("b").subscribe("t")
    requeue(rig, 1_000)
    rig.lasting("a").unsubscribe(GROUP)
    rig.pass_ms(2_000)
    assert all(peer.take_all() == [] for peer in rig.peers)


def test_it_is_not_retained_and_not_told_of_where_it_expires() -> None:
    rig = Rig(config(max_attempts=1))
    peer = rig.lasting("a").subscribed("t", handling=2, qos=1)
    rig.connected("p").publish1("t", "old", retain=True)
    peer.drop()
    rig.lasting("a").drop()
    rig.connected("p").publish1("t", "new", retain=True)
    requeue(rig)
    late = rig.connected("late").subscribed("t")
    assert late.take_all() == ["new"]


@pytest.mark.parametrize("how", ["waits", "passed, in the tail", "passed, on disk"])
@pytest.mark.parametrize("text", ["t", GROUP])
def test_one_that_is_ended_comes_no_more(how: str, text: str) -> None:
    """Also to who has not read as far as dispatch has come."""
    rig = Rig(config(max_attempts=1))
    dead_letter(rig, text)
    (row,) = rig.core.dead_letters.read()
    requeue(rig, 5_000)
    (kept,) = retries(rig)
    if how != "waits":
        rig.pass_ms(6_000)
    if how == "passed, on disk":
        rig.restart()
    assert kept.name == row.name
    assert rig.decide(lambda commit: end(commit, kept.name)) == [True]
    rig.pass_ms(6_000)
    assert rig.lasting("a").take_all() == []
    assert (rig.core.opened.waiting.pending, rig.core.opened.waiting.retries) == (0, 0)


@pytest.mark.parametrize("survivors", [0, 1, 2])
@pytest.mark.parametrize("is_passed", [False, True])
def test_a_kill_leaves_one_that_comes_or_one_that_is_ended(survivors: int, is_passed: bool) -> None:
    outcomes = set()
    for steps in range(5):
        rig = Rig(config(max_attempts=1))
        dead_letter(rig)
        (row,) = rig.core.dead_letters.read()
        requeue(rig, 2_000)
        if is_passed:
            rig.pass_ms(3_000)
        (kept,) = retries(rig)
        assert kept.name == row.name
        durable = rig.decide(partial(end, name=kept.name), pump=False)
        rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        rig.pass_ms(3_000)
        came = rig.lasting("a").take_all()
        assert came in ([], ["bad"]), steps
        assert not (any(durable) and came), "who was told that it is ended gets it no more"
        assert rig.core.opened.waiting.pending == 0
        assert list(pointers(rig.store, rig.core.opened.directory)) == []
        assert verify_counts(rig.store, rig.core.opened.directory) == []
        outcomes.add(len(came))
    assert outcomes == {0, 1}


SESSIONS = ("a", "b")


class DeadLetters(RuleBasedStateMachine):
    """Two sessions and what each has given up, against lists: nothing is lost, nothing comes twice to who
    acks, nobody gets another's."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(config(max_attempts=1))
        self.published = 0
        self.owed: dict[str, list[str]] = {name: [] for name in SESSIONS}
        """What is in flight or still to come, in order."""
        self.dead: list[tuple[str, str]] = []
        """(session, payload) in the order of death."""
        self.waiting: list[tuple[int, str, str]] = []
        """(due, session, payload) of what has been sent again."""

    @initialize()
    def begin(self) -> None:
        for name in SESSIONS:
            peer = self.rig.lasting(name).subscribed("t", qos=1)
            peer.drop()

    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        peer = self.rig.connected("p")
        for _ in range(count):
            peer.publish1("t", str(self.published))
            for owed in self.owed.values():
                owed.append(str(self.published))
            self.published += 1
        peer.drop()

    def _fall_due(self) -> None:
        now_ms = self.rig.clock.now_ms
        for entry in sorted(one for one in self.waiting if one[0] <= now_ms):
            self.waiting.remove(entry)
            self.owed[entry[1]].append(entry[2])

    @rule(name=st.sampled_from(SESSIONS))
    def take(self, name: str) -> None:
        """It comes and acks all that it is sent."""
        peer = self.rig.lasting(name)
        assert sorted(peer.take_all()) == sorted(self.owed[name])
        self.owed[name] = []
        peer.drop()

    @rule(name=st.sampled_from(SESSIONS))
    def give_up(self, name: str) -> None:
        """It is sent all, acks nothing, and comes back."""
        peer = self.rig.lasting(name)
        found = peer.payloads()
        assert sorted(found) == sorted(self.owed[name])
        peer.drop()
        peer = self.rig.lasting(name)
        assert peer.inbox == []
        peer.drop()
        self.dead += [(name, payload) for payload in found]
        self.owed[name] = []

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), after_ms=st.sampled_from([0, 1_000, 5_000]), how=st.sampled_from(["", "crash"]))
    def requeue(self, data: st.DataObject, after_ms: int, how: str) -> None:
        index = data.draw(st.integers(0, len(self.dead) - 1))
        place = list(self.rig.core.dead_letters.read())[index].name
        due_ms = self.rig.clock.now_ms + after_ms
        letters = self.rig.core.dead_letters
        self.rig.decide(lambda commit: letters.requeue(commit, place, due_ms, lambda *_: True), pump=False)
        if how:
            steps, survivors = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 1))
            for _ in range(steps):
                self.rig.micro()
            self.rig.crash(survivors, pump=True)
        self.rig.pump()
        if len(list(self.rig.core.dead_letters.read())) < len(self.dead):
            self.waiting.append((due_ms, *self.dead.pop(index)))
            self._fall_due()

    @precondition(lambda self: self.dead)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.dead) - 1))
        place = list(self.rig.core.dead_letters.read())[index].name
        letters = self.rig.core.dead_letters
        self.rig.decide(lambda commit: letters.drop(commit, place, lambda *_: True))
        del self.dead[index]

    @rule(seconds=st.integers(1, 6))
    def pass_time(self, seconds: int) -> None:
        self.rig.pass_ms(1_000 * seconds)
        self._fall_due()

    @rule(how=st.sampled_from(["restart", "crash"]))
    def start_again(self, how: str) -> None:
        self.rig.pass_ms(500)
        self._fall_due()
        getattr(self.rig, how)()
        self.rig.pump()

    @invariant()
    def is_what_was_given_up(self) -> None:
        found = list(self.rig.core.dead_letters.read())
        told = [(row.addressee, decode(row.record).payload.decode()) for row in found]
        assert told == self.dead
        totals = delivery_rows.totals(self.rig.store)
        assert totals.count == len(self.dead)
        assert (totals.bytes > 0) == bool(self.dead)
        now = before(self.rig.clock.now_ms + 1)
        assert sum(row.at >= now for row in retries(self.rig)) == len(self.waiting)
        for name in SESSIONS:
            mine = list(self.rig.core.dead_letters.read(group=name))
            assert [row.addressee for row in mine] == [one for one, _ in self.dead if one == name]


DeadLetters.TestCase.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
TestDeadLetters = pytest.mark.long(DeadLetters.TestCase)


@pytest.mark.long
def test_one_that_is_due_does_not_wait_behind_the_backlog(rig: Rig) -> None:
    """A group with room for one message at a time: what is due and what is unread come in turns."""
    worker = rig.lasting("w", receive_maximum=1).subscribed(GROUP, qos=1)
    publisher = rig.connected("p")
    for number in range(10):
        publisher.publish1("t", f"again {number}")
    for _ in range(10):
        worker.nack(worker.one(), "1s")
    for number in range(4_900):
        publisher.publish("t", str(number), 1, pump=False)
        if number % 50 == 49:
            rig.pump()
            publisher.inbox.clear()
    rig.pass_ms(1_500)
    came = []
    for _ in range(40):
        (packet,) = worker.publishes()
        came.append(packet.payload.decode())
        worker.ack(wire.PUBACK, packet.packet_id)
    unread = [one for one in came if "again" not in one]
    again = [one for one in came if "again" in one]
    assert again == [f"again {number}" for number in range(10)]
    assert unread == [str(number) for number in range(30)]
    assert max(index for index, one in enumerate(came) if "again" in one) < 22


@pytest.mark.parametrize("was", ["acked", "waits", "dead"])
@pytest.mark.parametrize("text", ["a", GROUP])
def test_what_is_read_again_has_no_retry_and_no_letter_of_before(was: str, text: str) -> None:
    rig = Rig(config(max_attempts=1 if was == "dead" else 5))
    peer = rig.lasting("a").subscribed("t" if text == "a" else text, qos=1)
    rig.connected("p").publish1("t", "x")
    if was == "acked":
        assert peer.take_all() == ["x"]
    elif was == "waits":
        peer.nack(peer.one(), "10s")
    else:
        peer = peer.back()
        assert letters(rig) == ["x"]
    rig.rewind(text)
    (packet,) = peer.publishes()
    rig.pass_ms(3_000)
    assert (retries(rig), letters(rig)) == ([], [])
    peer.ack(wire.PUBACK, packet.packet_id)
    rig.pass_ms(12_000)
    assert peer.take_all() == []
    assert (retries(rig), letters(rig), rig.core.opened.waiting.retries) == ([], [], 0)


@pytest.mark.long
@pytest.mark.parametrize("survivors", [0, 1, 2])
@pytest.mark.parametrize("was", ["waits", "dead"])
def test_a_kill_while_it_is_read_again_leaves_it_once(was: str, survivors: int) -> None:
    for steps in range(9):
        rig = Rig(config(max_attempts=1 if was == "dead" else 5))
        peer = rig.lasting("a").subscribed(GROUP, qos=1)
        rig.connected("p").publish1("t", "x")
        if was == "waits":
            peer.nack(peer.one(), "10s")
        else:
            peer = peer.back()
        rig.pass_ms(3_000)
        rig.rewind(GROUP, pump=False)
        rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        assert len(retries(rig)) + len(letters(rig)) <= 1
        peer = rig.lasting("a")
        came = peer.take_all()
        rig.pass_ms(3_000)
        left = len(retries(rig)) + len(letters(rig))
        assert (len(came), left) in ((1, 0), (0, 1)), steps
        rig.pass_ms(12_000)
        assert peer.take_all() == (["x"] if left and was == "waits" else [])


def test_it_is_given_to_nobody_before_it_is_durable(rig: Rig) -> None:
    peer = rig.lasting("a").subscribed(GROUP, qos=1)
    rig.connected("p").publish1("t", "x")
    (packet,) = peer.publishes()
    rig.is_held = True
    peer.nack(packet, "0s")
    rig.pump()
    assert peer.publishes() == []
    rig.is_held = False
    rig.pump()
    assert peer.payloads() == ["x"]


def test_a_clock_that_is_set_back_makes_it_wait(rig: Rig) -> None:
    peer = rig.lasting("a").subscribed(GROUP, qos=1)
    rig.connected("p").publish1("t", "x")
    peer.nack(peer.one(), "60s")
    rig.pass_ms(50_000)
    rig.clock.now_ms -= 30_000
    rig.pump()
    rig.pass_ms(39_999)
    assert peer.inbox == []
    rig.pass_ms(1)
    assert peer.take_all() == ["x"]
    rig.pass_ms(3_000)
    assert retries(rig) == []


def test_those_that_come_due_while_others_are_read_are_given_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on between two looks at it: no millisecond of them is passed over."""
    rig = Rig()
    peer = rig.lasting("a").subscribed(GROUP, qos=1)
    rig.send("t", *"abcdef")
    packets = peer.publishes()
    assert len(packets) == 6
    for packet in packets:
        peer.nack(packet, "10s")
        rig.clock.now_ms += 1
    rig.pass_ms(9_990)
    assert peer.inbox == []

    last_ms = rig.clock.now_ms + 100

    def ticking() -> int:
        rig.clock.now_ms = min(last_ms, rig.clock.now_ms + 1)
        return rig.clock.now_ms

    monkeypatch.setattr(rig.clock, "wall_ms", ticking)
    rig.pump()
    assert sorted(peer.take_all()) == list("abcdef")


@pytest.mark.parametrize("qos", [1, 2])
def test_one_whose_member_goes_away_goes_to_another(rig: Rig, qos: int) -> None:
    """At QoS 2 it stays with its member (MQTT-4.8.2)."""
    first = rig.lasting("a").subscribed(GROUP, qos=qos)
    publisher = rig.connected("p")
    (publisher.publish2 if qos == 2 else publisher.publish1)("t", "x")
    (packet,) = first.publishes()
    kind = wire.PUBREC if qos == 2 else wire.PUBACK
    first.send(Ack(kind, packet.packet_id, 0x80, props(user_properties=(("retry-in", "2s"),))))
    rig.pass_ms(2_000)
    (packet,) = first.publishes()
    assert (packet.qos, attempt(packet)["fasti-attempt"]) == (qos, "2")
    second = rig.lasting("b").subscribed(GROUP, qos=qos)
    first.disconnect()
    came = second.take_all()
    if qos == 2:
        assert came == []
        assert rig.lasting("a").take_all() == ["x"]
    else:
        assert came == ["x"]
    rig.pass_ms(3_000)
    assert (retries(rig), letters(rig), rig.core.opened.waiting.retries) == ([], [], 0)


def test_a_session_that_is_made_anew_gets_nothing_of_the_one_before() -> None:
    rig = Rig(config(max_attempts=1))
    dead_letter(rig)
    requeue(rig, 1_000)
    rig.connected("a", clean=True, expiry=3_600).subscribe("t", qos=1)
    rig.pass_ms(2_000)
    assert rig.peers[-1].take_all() == []
    assert (retries(rig), rig.core.opened.waiting.retries) == ([], 0)


def test_one_that_expires_before_its_next_try_is_a_dead_letter(rig: Rig) -> None:
    peer = rig.lasting("a").subscribed(GROUP, qos=1)
    rig.connected("p").publish1("t", "x", message_expiry=5)
    peer.nack(peer.one(), "10s")
    rig.pass_ms(12_000)
    assert peer.publishes() == []
    (row,) = rig.core.dead_letters.read()
    assert row.reason.startswith("expired")
    assert (retries(rig), rig.core.opened.waiting.retries) == ([], 0)


def test_a_place_that_has_the_message_still_to_read_or_in_flight_is_not_sent_it_by_requeue_too() -> None:
    """One message and one place: one of unread, in flight, retry, dead letter."""
    rig = Rig(config(max_attempts=1))
    other = "$share/other/t"
    rig.make(other)
    dead_letter(rig, GROUP)
    place, *_ = [row.name for row in rig.core.dead_letters.read()]
    to = rig.group(other)

    def requeue_to() -> object:
        requeue = rig.core.dead_letters.requeue
        (is_done,) = rig.decide(lambda commit: requeue(commit, place, rig.clock.now_ms, lambda *_: True, to))
        return is_done

    assert requeue_to() is False, "unread"
    peer = rig.lasting("o", receive_maximum=1).subscribed(other, qos=1)
    (came,) = peer.publishes()
    assert requeue_to() is False, "in flight"
    peer.ack(wire.PUBACK, came.packet_id)
    assert requeue_to() is True, "done there, and asked for once more"
    assert [one.payload for one in peer.publishes()] == [b"bad"]


def test_a_place_that_has_dropped_a_message_and_does_it_after_a_replay_has_done_it() -> None:
    rig = Rig(config(max_attempts=1))
    dead_letter(rig, GROUP)
    (letter,) = list(rig.core.dead_letters.read())
    rig.decide(lambda commit: rig.core.dead_letters.drop(commit, letter.name, lambda *_: True))
    name, group = letter.id, rig.core.groups.get(GROUP)
    assert group is not None

    def state() -> list[str]:
        told, _ = rig.core.deliveries.of(name, id_position(name), Record(b"t", b"", qos=1), lambda _: True)
        return [one.state for one in told]

    assert state() == ["dropped"]
    rig.rewind(GROUP, pump=False)
    peer = rig.lasting("a")
    peer.ack(wire.PUBACK, peer.one().packet_id)
    rig.kill()
    assert state() == ["done"]


def test_what_is_read_again_ends_a_retry_that_is_being_placed_at_that_moment() -> None:
    rig = Rig(config(max_attempts=5))
    peer = rig.lasting("a").subscribed(GROUP, qos=1, user_properties=(("backoff", "1h"),))
    rig.connected("p").publish1("t", "job")
    peer.nack(peer.one(), "1h")
    group = rig.group(GROUP)
    (row,) = retries(rig)

    def try_and_replay(commit: object) -> None:
        rig.core.kept_retries.try_(commit, row.name, rig.clock.now_ms + 5_000, lambda *_: True)  # type: ignore[arg-type]
        rig.core.replay.rewind(commit, group, START)  # type: ignore[arg-type]

    rig.decide(try_and_replay, pump=False)
    rig.compose()
    for _ in range(3):
        rig.turn()  # it is read again before the batch is durable
    rig.pump()
    peer.ack(wire.PUBACK, peer.one().packet_id)
    rig.pass_ms(10_000)
    assert (peer.inbox, retries(rig)) == ([], [])


def test_each_of_many_that_a_session_has_in_flight_when_it_is_set_back_comes_once() -> None:
    rig = Rig(config(max_in_flight=3_000))
    peer = rig.lasting("a", receive_maximum=3_000).subscribed("t", qos=1)
    publisher = rig.connected("p")
    for number in range(1_500):
        publisher.publish("t", str(number), 1, pump=number % 50 == 49)
    came = peer.publishes()
    assert len(came) == 1_500
    rig.rewind("a", pump=False)
    rig.compose()
    for packet in came:
        peer.send(Ack(wire.PUBACK, packet.packet_id), pump=False)
    rig.pump()
    assert peer.take_all() == []
    rig.kill()
    assert rig.lasting("a").take_all() == []


def test_what_a_member_has_of_its_group_is_read_again_by_its_own_subscription(rig: Rig) -> None:
    """The member and the group are two places."""
    peer = rig.lasting("a").subscribed("t", qos=1).subscribed(GROUP, qos=1)
    rig.connected("p").publish1("t", "x")
    own, lent = peer.publishes()
    peer.send(Ack(wire.PUBACK, own.packet_id))
    rig.rewind("a")
    assert len(peer.publishes()) == 1
    peer.send(Ack(wire.PUBACK, lent.packet_id))
    assert peer.publishes() == []


@pytest.mark.parametrize("was", ["waits", "dead"])
def test_what_was_set_back_keeps_its_retry_or_letter_until_there_is_room_to_send_it(was: str) -> None:
    rig = Rig()
    peer = rig.lasting("a").subscribed(GROUP, qos=1)
    rig.send("t", *"xy")
    for packet in peer.publishes():
        peer.nack(packet, "1h" if was == "waits" else "never")
    peer.disconnect()
    peer = rig.lasting("a", receive_maximum=1)
    rig.rewind(GROUP)
    (packet,) = peer.publishes()
    rig.pass_ms(3_000)
    assert len(retries(rig)) + len(letters(rig)) == 1
    peer.ack(wire.PUBACK, packet.packet_id)
    (packet,) = peer.publishes()
    rig.pass_ms(3_000)
    assert (retries(rig), letters(rig)) == ([], [])


@pytest.mark.parametrize("survivors", [None, 0, 9])
def test_what_is_read_again_before_its_former_row_has_gone_is_no_retry(survivors: int | None) -> None:
    """Acked and set back; the batch that deletes its row is not durable when it comes again and fails."""
    rig = Rig()
    peer = rig.connected("a").subscribed(GROUP, qos=1, user_properties=asking(backoff="1s", expiry="never"))
    rig.connected("p").publish1("t", "job")
    nack(peer, "1s")
    rig.pass_ms(1_500)
    rig.is_held = True
    peer.ack(wire.PUBACK, peer.one().packet_id, pump=False)
    rig.rewind(GROUP, pump=False)
    rig.compose()
    if survivors is not None:
        rig.lose(survivors)
    for _ in range(20):
        rig.turn()
        rig.deliver()
    nack(peer, "1s", pump=False)
    rig.compose()
    rig.is_held = False
    rig.pump()
    rig.pass_ms(1_500)
    assert [one.payload for one in peer.publishes()] == [b"job"]
    assert letters(rig) == []


@pytest.mark.parametrize("kept", ["state", "record"])
@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_a_row_that_cannot_be_read_keeps_nothing_up(
    monkeypatch: pytest.MonkeyPatch, kept: str, verb: str
) -> None:
    """The place goes on, its cursor is written, and the message is on the timeline still."""
    rig = Rig()
    peer = rig.connected("a").subscribed(GROUP, qos=1, user_properties=asking(backoff="1s", expiry="never"))
    rig.connected("p").publish1("t", "job")
    nack(peer, "1s")
    rig.pass_ms(1_500)
    (row,) = retries(rig)
    bad = keys.state(*row.name) if kept == "state" else keys.record(row.root, row.whose)
    real = rig.store.get

    def get(table: Table, key: bytes) -> bytes | None:
        if (table, key) == (Table.DELIVERIES, bad):
            raise Corrupt("a rotten block")
        return real(table, key)

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "get", get)
        if verb == "ack":
            peer.ack(wire.PUBACK, peer.one().packet_id)
        else:
            nack(peer, "1s")
        rig.pass_ms(3_000)
        assert (len(rig.core.cursors.dirty), rig.core.writer.given_up) == (0, 0)
        assert not delivery_rows.is_there(rig.store, row.name, WAITING) or kept == "record"
    assert (len(retries(rig)), letters(rig)) == (int(verb == "nack"), [])
    rig.restart()
    peer = rig.connected("a").subscribed(GROUP, qos=1)
    rig.lapse()
    assert [one.payload for one in peer.publishes()] == [b"job"] * (verb == "nack")
