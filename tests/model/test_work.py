"""What becomes of a message that a group is to have done, held against the account of deliveries.

A whole server without a socket (tests/support/rig.py), and three members that do anything with what they are
given. After each step every message is where the account says that it may be (tests/support/ledger/), in one
place: still to be read, in flight, waiting to come again, dead; or done, and in none. In the end everything
has been done or is dead. In a group that orders, the messages of a key take turns.

What a kill leaves open (an ack that was not on disk, a step that was under way) the server may answer either
way; whichever it is, it is one of them.
"""

import json
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from server.codec import wire
from server.codec.packets import Ack, Publish
from server.delivery import unread
from server.delivery.burials import SKIPPED
from server.delivery.done import Done
from server.delivery.link import Closing
from server.delivery.shared import Group
from shards import delivery_rows
from shards.commit import Commit
from shards.pointers import pointers
from shards.record import decode
from tests.support import planted
from tests.support.ends import check_batches, check_last
from tests.support.ledger.deliveries import Deliveries
from tests.support.ledger.messages import Message
from tests.support.ledger.stakes import Stake
from tests.support.ledger.words import DEAD, DONE, DROPPED, FLIGHT, WAITING, Fault
from tests.support.planted import finds
from tests.support.rig import Peer, Rig, about, config, props
from tests.support.soak import SOAK
from tests.support.whereabouts import done, where
from timeline import key_order
from timeline.position import END, START, Position

GROUP, OTHER = "$share/g/t", "$share/h/other"
MEMBERS = ("a", "b", "c")
LEASE_MS, STEP_MS = 20_000, 250
RESULT_TTL_MS = 60_000
GRACE_S = 0.5
"""A lease that is over ends so soon: a look, and a step."""
MAX_ATTEMPTS = 4
NEVER = -1
"""Seconds of a nack that wants no retry."""
TERMS = (("ack-timeout", "20s"), ("max-attempts", str(MAX_ATTEMPTS)), ("backoff", "2s,10s"))


def _fails(fault: Fault) -> None:
    raise AssertionError(str(fault))


class Work(RuleBasedStateMachine):
    terms: tuple[tuple[str, str], ...] = TERMS
    keys: tuple[str, ...] = ("",)
    """Of messages, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(config(receive_maximum=1_000, archive="/var/archive"))
        self.peers: dict[str, Peer] = {}
        self.ids: dict[str, str] = {}
        """By key, as deliveries say it."""
        self.results = 0
        self.had: list[tuple[str, int, Stake, int]] = []
        """Of each member: packet ids that it has not answered, of which message, and which delivery of it."""
        self.ledger = Deliveries(self.now, grace=GRACE_S)
        self.ledger.book.tell = _fails
        self.place = self.ledger.lives.opened("group", "g", "t", max_tries=MAX_ATTEMPTS)
        self.place.backoff, self.place.is_ordered = (2_000, 10_000), any(self.keys)
        self.place.most = int(self.place.is_ordered)
        self.other = self.ledger.lives.opened("group", "h", "other", max_tries=0)
        keeper = self.rig.lasting("keeper")
        keeper.subscribe(GROUP, qos=1, user_properties=self.terms)
        keeper.subscribe(OTHER, qos=1)
        keeper.disconnect()

    @property
    def now(self) -> int:
        return self.rig.clock.now_ms

    @property
    def stakes(self) -> dict[str, Stake]:
        return self.place.stakes

    @property
    def group(self) -> Group:
        group = self.rig.core.groups.get(GROUP)
        assert group is not None
        return group

    # -- looking

    def collect(self) -> None:
        """What members have been given."""
        self.ledger.arrived(self.now)
        self.ledger.lapse(self.now / 1_000)
        for name, peer in self.peers.items():
            for packet in peer.publishes():
                key, lapses = packet.payload.decode(), (self.now + LEASE_MS) / 1_000
                attempt = int((packet.properties and packet.properties.user("fasti-attempt")) or 1)
                self.ids[key] = (packet.properties and packet.properties.user("fasti-id")) or ""
                self.ledger.given(
                    self.place,
                    key,
                    lapses=lapses,
                    attempt=attempt,
                    by=name,
                    is_leased=False,
                    is_again=packet.dup,
                )
                stake = self.stakes[key]
                self.had.append((name, packet.packet_id, stake, stake.number))

    @invariant()
    def each_is_in_one_place(self) -> None:
        self.collect()
        found, dead = where(self.rig.core, self.group)
        elsewhere = [
            row
            for row in delivery_rows.waiting(self.rig.store)
            if row.addressee != self.group.session.client_id
        ]
        assert sorted(decode(row.record).payload.decode() for row in elsewhere) == sorted(self.other.stakes)
        stories = done(self.rig.core, self.group)
        for key in self.ledger.messages.by_id:
            self.ledger.looks.lies(self.place, key, found.get(key, []), dead.get(key))
            if not found.get(key) and key not in dead:
                self.ledger.ends.over(self.place, key, stories.get(key))
            elif key in stories and key not in dead and "waits" not in found[key]:
                self.ledger.ends.beside(self.place, key, "|".join(found[key]))

    # -- doing

    @initialize(keep=st.sampled_from(["none", "failed", "all"]))
    def keeps(self, keep: str) -> None:
        """What the group keeps of what is done."""
        keeper = self.rig.lasting("keeper")
        terms = (*self.terms, ("keep", keep), ("result-ttl", "60s"))
        keeper.subscribe(GROUP, qos=1, user_properties=terms)
        keeper.disconnect()
        self.place.keep = keep

    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        publisher = self.rig.connected("p")
        for _ in range(count):
            number = len(self.ledger.messages.by_id)
            message = Message(str(number), "t", self.now, self.now, key=self.keys[number % len(self.keys)])
            users = (("ordering-key", message.key),) if message.key else ()
            ack = publisher.publish1("$delayed/0/t", message.id, user_properties=users)
            assert ack.reason == 0
            self.ledger.accepted(message)
        publisher.disconnect()

    @rule(name=st.sampled_from(MEMBERS), window=st.sampled_from([1, 2, 10]), says=st.booleans())
    def come(self, name: str, window: int, *, says: bool = False) -> None:
        """`says`: what it still has from before the start."""
        if name not in self.peers:
            peer = self.peers[name] = self.rig.connected(name, receive_maximum=window)
            peer.subscribe(GROUP, qos=1, pump=False)
            self.rig.pump()
            peer.inbox = [packet for packet in peer.inbox if isinstance(packet, Publish)]
            self.each_is_in_one_place()
            left = [key for key in self.ids if self._is_left(self.stakes[key], name)]
            if says and left:
                self._hold(name, left)

    def _pick(self, data: st.DataObject, *, ends: bool = True) -> tuple[Stake, Peer, int, bool] | None:
        """Something that a member has, and whether it may still say what becomes of it; then it has it no
        more if that `ends` it."""
        self.each_is_in_one_place()
        if not self.had:
            return None
        one = data.draw(st.sampled_from(self.had))
        if ends:
            self.had.remove(one)
        name, packet_id, stake, number = one
        return stake, self.peers[name], packet_id, stake.number == number and FLIGHT in stake.may

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        if picked := self._pick(data):
            stake, peer, packet_id, is_holder = picked
            peer.send(Ack(wire.PUBACK, packet_id))
            self.ledger.ends.acks(stake, peer.connection.client_id)
            if is_holder:
                self.ledger.settling.finished(stake, self.now / 1_000)
            elif not stake.may <= {DONE, DROPPED}:
                self.ledger.settling.finished(stake)  # in the writer, with what it has ended there

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), size=st.integers(1, 3), is_late=st.booleans())
    def ack_with_result(self, data: st.DataObject, size: int, is_late: bool) -> None:
        """By a lease that its worker takes for that, and while that runs."""
        if (picked := self._pick(data)) and (number := self._leased(*picked)):
            if is_late:
                self.pass_time(LEASE_MS + 1_000)
            stake, result = picked[0], self._result(picked[0], size)
            (answer,) = self.rig.decide(self._following(number, result))
            assert answer == (None if is_late else [])
            if is_late:
                stake.enders.pop()
            else:
                self.ledger.settling.finished(stake)

    def _leased(self, stake: Stake, peer: Peer, packet_id: int, is_holder: bool) -> int:
        """The number of a lease of it; 0: its member has it no more."""
        member = self.rig.session(peer.connection.client_id)
        (number,) = self.rig.core.settling.lease(member, GROUP, [packet_id], LEASE_MS)
        assert is_holder or not number, stake
        if number:
            self.ledger.settling.extended(stake, (self.now + LEASE_MS) / 1_000)
        return number

    def _result(self, stake: Stake, size: int) -> bytes:
        self.results += 1
        result = str(self.results).rjust(size).encode()
        self.ledger.ends.acks(stake, stake.by, result, self.now + RESULT_TTL_MS)
        return result

    def _following(self, number: int, result: bytes) -> Callable[[Commit], object]:
        follow = self.rig.core.settling.follow
        return lambda commit: follow(commit, GROUP, number, lambda _: True, list, None, result)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), survivors=st.integers(0, 2), is_result=st.booleans())
    def lose(self, data: st.DataObject, survivors: int, is_result: bool) -> None:
        """A sync fails that has an ack; its batch may be stored."""
        if not (picked := self._pick(data)) or not picked[3]:
            return
        stake, peer, packet_id, _ = picked
        if not is_result:
            self.ledger.ends.acks(stake, stake.by)
            self.ledger.settling.finished(stake, self.now / 1_000)
            peer.send(Ack(wire.PUBACK, packet_id), pump=False)
            self.rig.clock.now_ms += STEP_MS
            self.rig.turn()
        elif number := self._leased(*picked):
            stake.may |= {DONE}
            self.rig.decide(self._following(number, self._result(stake, 2)), pump=False)
        if self.rig.compose() or self.rig.stepper.unsynced:
            self.rig.lose(survivors)
        self.rig.pump()
        if not stake.may <= {DONE}:
            self.each_is_in_one_place()
        if FLIGHT in stake.may:
            self.had.append((stake.by, packet_id, stake, stake.number))

    @rule()
    def sweep(self) -> None:
        """Results go whose time is over."""
        core = self.rig.core
        swept = Done(core.opened.store, core.directory, core.groups, core.clock)
        for whose, group in swept.over():
            while self._decide(partial(swept.drop, whose=whose, group=group)):
                self.ledger.seen["swept"] += 1
        self.ledger.ends.swept(self.place)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), seconds=st.sampled_from([0, 1, 7, 60, None, NEVER, NEVER]))
    def nack(self, data: st.DataObject, seconds: int | None) -> None:
        if picked := self._pick(data):
            stake, peer, packet_id, is_holder = picked
            self._send_nack(peer, packet_id, seconds)
            if is_holder and seconds == NEVER:
                stake.failures.append((stake.by, "failed"))
                self.ledger.settling.buried(stake)
            elif is_holder:
                due = None if seconds is None else self.now + 1_000 * seconds
                self.ledger.settling.failed(self.place, stake, not_before=due)

    def _send_nack(self, peer: Peer, packet_id: int, seconds: int | None, *, pump: bool = True) -> None:
        wait = "" if seconds is None else "never" if seconds == NEVER else f"{seconds}s"
        peer.send(Ack(wire.PUBACK, packet_id, 0x80, props(user_properties=(("retry-in", wait),))), pump=pump)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), seconds=st.sampled_from([1, 30, 100]))
    def extend(self, data: st.DataObject, seconds: int) -> None:
        if picked := self._pick(data, ends=False):
            stake, peer, packet_id, is_holder = picked
            body = f'{{"packet_id": {packet_id}, "for": {seconds}}}'
            number = peer.publish("$control/extend", body, 1)
            acks = [packet for packet in peer.inbox if isinstance(packet, Ack)]
            peer.inbox = [packet for packet in peer.inbox if isinstance(packet, Publish)]
            (answer,) = acks
            assert answer.packet_id == number
            if is_holder and stake.lapses is not None:
                assert answer.reason == 0
            if answer.reason == 0:
                assert is_holder
                self.ledger.settling.extended(stake, self.now / 1_000 + seconds)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), is_clean=st.booleans())
    def go(self, data: st.DataObject, is_clean: bool) -> None:
        self._goes(data.draw(st.sampled_from(sorted(self.peers))), is_clean=is_clean)

    def _goes(self, name: str, *, is_clean: bool) -> None:
        self.each_is_in_one_place()
        peer = self.peers.pop(name)
        peer.disconnect() if is_clean else peer.drop()
        self.had = [one for one in self.had if one[0] != name]
        self.ledger.losses.left(self.place, orderly=is_clean, by=name)

    @precondition(lambda self: self.ledger.messages.by_id)
    @rule()
    def replay(self) -> None:
        """The group is set back to its beginning, whoever has what."""
        self.each_is_in_one_place()
        self.ledger.lives.set_back(self.place, 0)  # before: what is sent at once is seen
        group, rewind = self.group, self.rig.core.replay.rewind
        self._decide(lambda commit: rewind(commit, group, START))

    @precondition(lambda self: self.ledger.messages.by_id)
    @rule(is_dead=st.booleans())
    def skip(self, is_dead: bool) -> None:
        """The group leaves its backlog behind."""
        self.each_is_in_one_place()
        group, skip = self.group, self.rig.core.replay.skip
        to = self.ledger.clock.top + 2
        self.ledger.lives.skipped(self.place, DEAD if is_dead else DROPPED, to, is_sure=True)
        self._decide(lambda commit: skip(commit, group, END, SKIPPED, is_dead=is_dead))

    def _decide(self, what: Callable[[Commit], object]) -> object:
        """The writer's answer."""
        told: list[object] = []
        self.rig.core.writer.submit(lambda commit: told.append(what(commit)), lambda _: None)
        self.rig.pump()
        (answer,) = told
        return answer

    def _letter(self, data: st.DataObject) -> tuple[Position, Stake] | None:
        """A dead letter that is one still."""
        self.each_is_in_one_place()
        dead = [(row.name, decode(row.record).payload.decode()) for row in self.rig.core.dead_letters.read()]
        here = [(place, self.stakes[key]) for place, key in dead if not self.stakes[key].read_again]
        return data.draw(st.sampled_from(here)) if here else None

    @precondition(lambda self: any(stake.may == {DEAD} for stake in self.stakes.values()))
    @rule(data=st.data(), ms=st.sampled_from([0, 3_000, 30_000]))
    def requeue_elsewhere(self, data: st.DataObject, ms: int) -> None:
        """A dead letter is sent to another group."""
        if letter := self._letter(data):
            (place, stake), due, again = letter, self.now + ms, self.rig.core.dead_letters.requeue
            there, before = self.ledger.settling.sending_to(self.other, stake.message, stake.total.most)
            other = self.rig.core.groups.get(OTHER)
            assert self._decide(lambda commit: again(commit, place, due, lambda *_: True, other))
            self.ledger.settling.sent_to(there, before, there.number, stake.total.most, is_changed=True)
            self.ledger.settling.tried(there, due)
            self.ledger.settling.dropped(stake)

    @precondition(lambda self: any(stake.may == {DEAD} for stake in self.stakes.values()))
    @rule(data=st.data(), ms=st.sampled_from([0, 3_000, 30_000]))
    def requeue(self, data: st.DataObject, ms: int) -> None:
        """A dead letter is sent again, to the group that has given it up; not if that is to read it again."""
        if letter := self._letter(data):
            (place, stake), due, again = letter, self.now + ms, self.rig.core.dead_letters.requeue
            is_unread = stake.was_finished
            if not is_unread:  # before: what is sent at once is seen
                self.ledger.settling.again(stake, due)
            done = self._decide(lambda commit: again(commit, place, due, lambda *_: True))
            assert done != is_unread, stake

    @rule(ms=st.sampled_from([250, 1_000, 5_000, 21_000, 65_000]))
    def pass_time(self, ms: int) -> None:
        end = self.now + ms
        while self.now < end:
            self.rig.clock.now_ms += min(STEP_MS, end - self.now)
            self.rig.pump()
            self.collect()

    @rule()
    def store(self) -> None:
        """Where everybody stands goes to the disk."""
        self.pass_time(250)
        self._decide(lambda _: None)
        self.ledger.losses.is_durable()
        assert not list(pointers(self.rig.store, self.rig.core.directory))
        check_last(self.rig.core)

    @rule(data=st.data(), steps=st.integers(0, 5), survivors=st.integers(0, 2), what=st.sampled_from("xnar"))
    def kill(self, data: st.DataObject, steps: int, survivors: int, what: str) -> None:
        """At any step, with something under way or without."""
        picked = self._pick(data) if self.peers else None
        if picked is not None and what == "r" and (number := self._leased(*picked)):
            stake = picked[0]
            self.ledger.settling.unsure(stake, frozenset({DONE}))
            self.rig.decide(self._following(number, self._result(stake, 2)), pump=False)
        elif picked is not None and what not in "xr":
            stake, peer, packet_id, is_holder = picked
            if what == "n":
                self._send_nack(peer, packet_id, 5, pump=False)
            else:
                peer.send(Ack(wire.PUBACK, packet_id), pump=False)
            if what == "a":
                self.ledger.ends.acks(stake, peer.connection.client_id)
            if (is_holder or what == "a") and not stake.may <= {DONE, DROPPED}:
                self.ledger.settling.unsure(stake, frozenset({DONE} if what == "a" else {WAITING, DEAD}))
        for _ in range(steps):
            self.rig.micro()
        self.rig.crash(survivors)
        self.rig.pump()
        self.peers.clear()
        self.had.clear()
        self.ledger.losses.restarted(self.now / 1_000, was_killed=True)
        self.each_is_in_one_place()

    @rule(why=st.sampled_from([Closing.STOPPING, Closing.MOVED]), is_ready=st.booleans())
    def stop(self, why: Closing, is_ready: bool) -> None:
        """In order, or as another node leads; started again."""
        self.each_is_in_one_place()
        self.rig.restart(why)
        if is_ready:
            self.rig.core.settling.ready()
            self.rig.pump()
        self.peers.clear()
        self.had.clear()
        self.ledger.losses.is_durable()
        self.ledger.losses.restarted(self.now / 1_000, was_killed=False)
        self.each_is_in_one_place()

    def _told(self, peer: Peer, topic: str, body: object) -> tuple[int, str]:
        """The reason of what the server answers to a command, and its text."""
        peer.publish(topic, json.dumps(body), 1)
        (answer,) = [packet for packet in peer.inbox if isinstance(packet, Ack)]
        peer.inbox = [packet for packet in peer.inbox if isinstance(packet, Publish)]
        return answer.reason, about(answer).reason_string or ""

    @precondition(lambda self: self.peers and self.ids)
    @rule(data=st.data(), is_theirs=st.booleans())
    def hold(self, data: st.DataObject, is_theirs: bool) -> None:
        """A client says what it has still: what it has, or anything."""
        self.each_is_in_one_place()
        name = data.draw(st.sampled_from(sorted(self.peers)))
        keys = [key for key in self.ids if not is_theirs or self._is_left(self.stakes[key], name)]
        keys = data.draw(st.lists(st.sampled_from(keys), max_size=4, unique=True)) if keys else []
        self._hold(name, keys)

    def _hold(self, name: str, keys: list[str]) -> None:
        reason, why = self._told(
            self.peers[name], "$control/holding", {"group": GROUP, "ids": [self.ids[key] for key in keys]}
        )
        held = [key for key in keys if self.ids[key] not in why]
        assert (reason == 0) == (held == keys), why
        for key in keys:
            stake = self.stakes[key]
            if key in held:
                assert self._is_left(stake, name), f"{name} holds {stake}"
                self.ledger.settling.held(stake, (self.now + LEASE_MS) / 1_000)
            else:
                is_sure = stake.is_leased and stake.by == name and stake.may == {FLIGHT}
                assert not is_sure, f"{name} does not hold {stake}"

    @staticmethod
    def _is_left(stake: Stake, name: str) -> bool:
        """Whether the client may have it since before the start."""
        return stake.by == name and FLIGHT in stake.may and (stake.is_leased or stake.may_be_nobodys)

    @precondition(lambda self: self.peers and self.ids)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A client acks something by its id, whoever has it."""
        self.each_is_in_one_place()
        name, key = data.draw(st.sampled_from(sorted(self.peers))), data.draw(st.sampled_from([*self.ids]))
        stake = self.stakes[key]
        reason, _ = self._told(self.peers[name], "$control/done", {"group": GROUP, "id": self.ids[key]})
        is_undone = bool(stake.may & {WAITING, FLIGHT, DEAD}) or stake.was_finished
        is_undone |= stake.read_again > 0  # behind its key once more, of which a note is made
        is_undone |= stake.since > 0  # the row of a retry goes with the next cursor
        assert reason == 0 or not stake.may <= {WAITING, FLIGHT}, f"nothing is left of {stake}"
        assert reason or is_undone, f"{stake} is over"
        self.ledger.ends.acks(stake, name)
        if not stake.may <= {DONE, DROPPED}:
            self.ledger.settling.finished(stake)

    def teardown(self) -> None:
        """Everything comes to its end: done, or dead."""
        self.come("a", 10)
        for _ in range(200):
            self.each_is_in_one_place()
            if all(stake.may <= {DONE, DEAD, DROPPED} for stake in self.stakes.values()):
                break
            for one in [one for one in self.had if one[0] == "a"]:
                self.collect()  # what the ack before this one has made room for
                self.had.remove(one)
                self.peers["a"].send(Ack(wire.PUBACK, one[1]))
                self.ledger.ends.acks(one[2], "a")
                self.ledger.settling.finished(one[2])
            for name in {*self.peers} - {"a"}:
                self._goes(name, is_clean=True)
            self.pass_time(5_000)
        self._end_elsewhere()
        self.ledger.at_the_end()
        assert not self.group.session.flights
        assert not list(pointers(self.rig.store, self.rig.core.directory))
        check_batches(self.rig.store)
        check_last(self.rig.core)
        super().teardown()

    def _end_elsewhere(self) -> None:
        """The other group has got what it was sent."""
        last = self.rig.connected("last")
        last.subscribe(OTHER, qos=1, pump=False)
        self.rig.pump()
        for _ in range(10):
            self.rig.pass_ms(3_000)
        self.ledger.arrived(self.now)
        for packet in last.inbox:
            if isinstance(packet, Publish):
                self.ledger.given(self.other, packet.payload.decode())
                self.ledger.settling.finished(self.other.stakes[packet.payload.decode()])


def _settings(examples: int, *phases: Phase) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=phases or tuple(Phase),
    )


Work.TestCase.settings = _settings(500 if SOAK else 20)
TestWork = Work.TestCase


class Ordered(Work):
    """The same of a group that orders, and knows few followers of a key without looking."""

    terms = (*TERMS, ("order", "true"))
    keys = ("a", "a", "b", "", "a", "b", "a")

    def __init__(self) -> None:
        self.known = pytest.MonkeyPatch()
        for module in (key_order, unread):
            self.known.setattr(module, "KNOWN_MAX", 1)
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.known.undo()


Ordered.TestCase.settings = _settings(500 if SOAK else 20)
TestOrdered = Ordered.TestCase


@finds("work")
def test_a_naive_rule_is_found(fault: planted.Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that the machine can fail."""
    fault.plant(monkeypatch)
    kind = {"usual": Work, "order": Ordered}[fault.drivers["work"]]
    machine = seed(3)(type("Work", (kind,), {}))  # it meets each of them within a few examples
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=settings(_settings(400, Phase.generate), database=None))
