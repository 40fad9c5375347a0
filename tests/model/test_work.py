"""What becomes of a message that a group is to have done, against a dull oracle.

A whole server without a socket (tests/support/rig.py), three members that do anything with what they are
given, and for each message one word of what it is by now. Asked all the time:

  - a message is in one place: still to be read, in flight, waiting to come again, dead; or done, and in none;
  - nobody is given one that does not come again yet, that is dead, or that is done for certain;
  - deliveries are counted right;
  - when the group is set back, each message comes once more, whatever had become of it: its retry or dead
    letter ends when it is read again. What is in flight then, or given back, comes once;
  - when it is set forward, each message that it has not read is dead, or dropped, once, and so is one for
    which its key waits; what had become of one before the group was set back stands;
  - a dead letter that is requeued waits, and has all its tries again; one that is requeued to another group
    waits there alone;
  - whoever once had a message may finish it, also when the group has been set back since;
  - in the end everything has been done or is dead;
  - in a group that orders, of each key the next message comes when all before it are done or dead, and none
    while somebody has another one. What was in flight when the group was set back, and what was requeued, is
    not in line.

What a kill leaves open (an ack that was not on disk, a step that was under way) the server may answer either
way; whichever it is, it is one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from server.codec import wire
from server.codec.packets import Ack, Publish
from server.delivery import by_key
from server.delivery.burials import SKIPPED
from server.delivery.settling.settling import RETURNS_FREE
from shards.commit import Commit
from shards.record import decode, is_stub
from shards.retries import RETRIES
from tests.support.planted import Fault, finds
from tests.support.rig import Peer, Rig, config, props
from tests.support.soak import SOAK
from timeline import key_order
from timeline.position import END, START, MessageId, Position, id_position

GROUP, OTHER = "$share/g/t", "$share/h/other"
MEMBERS = ("a", "b", "c")
LEASE_MS, LOOK_MS, STEP_MS = 20_000, 250, 250
BACKOFF_MS = (2_000, 10_000)
MAX_ATTEMPTS = 4
STORED_MS = 2_000
"""The read position is on disk so long after it has moved."""
NEVER = -1
"""Seconds of a nack that wants no retry."""
TERMS = (("ack-timeout", "20s"), ("max-attempts", str(MAX_ATTEMPTS)), ("backoff", "2s,10s"))
OPEN, WAITS, DEAD, DONE, LOST_ACK = "open", "waits", "dead", "done", "acked, not stored"
"""`OPEN`: to be given to somebody at once, or in somebody's hands (`holder`). The last is DONE but for a
kill."""


@dataclass
class Job:
    """One message."""

    state: str = OPEN
    holder: tuple[str, int] | None = None
    """Who has it and may say what becomes of it, by packet id."""
    until_ms: int = 0
    """Until when, at least."""
    due_ms: int = 0
    """It does not come again before this."""
    given: int = 0
    """Deliveries that somebody has seen, without those that were returned in order."""
    counted: int = 0
    """Of these, those that the server must know of."""
    had: list[tuple[str, int]] = field(default_factory=list)
    """Who has it too, but has not acked in time."""
    returns: int = 0
    key: str = ""
    place: Position = START
    is_in_line: bool = True
    """It comes after all messages of its key before it."""

    def come_back(self, at_ms: int) -> None:
        """It is returned in order: no try, unless that has been so too often."""
        if self.returns >= RETURNS_FREE:
            self.fail(at_ms)
            return
        self.holder = None
        self.returns += 1
        self.given -= 1
        self.counted -= 1

    spent: int = 0
    """Deliveries that count toward no bound any more: it was requeued, or its group was set back."""
    is_unread_again: bool = False
    """Its group was set back: until it is read, its retry or its dead letter is there too."""
    old_due_ms: int = 0
    """Of one that waited when its group was set back: when that retry comes."""
    old_until_ms: int = 0
    """By then what it was before its group was set back has ended, with the stored read position."""

    def finish(self) -> None:
        """It is done, and that is durable."""
        self.state, self.holder, self.is_unread_again = DONE, None, False

    def die_unread(self) -> None:
        """The letter knows nothing of its tries."""
        self.state, self.is_unread_again = DEAD, False
        self.counted = self.spent = 0

    def fail(self, at_ms: int, delay_ms: int | None = None) -> None:
        if self.holder is not None:
            self.holder = None
        tries = self.counted - self.spent
        if tries >= MAX_ATTEMPTS:
            self.state = DEAD
            return
        self.state = WAITS
        self.due_ms = at_ms + (BACKOFF_MS[min(tries, 2) - 1] if delay_ms is None else delay_ms)


class Work(RuleBasedStateMachine):
    terms: tuple[tuple[str, str], ...] = TERMS
    keys: tuple[str, ...] = ("",)
    """Of messages, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(config(receive_maximum=1_000))
        self.jobs: dict[str, Job] = {}
        self.peers: dict[str, Peer] = {}
        self.kills = 0
        """Each may have taken a delivery with it that nobody has seen."""
        self.replays = 0
        """After each, deliveries are counted anew."""
        keeper = self.rig.lasting("keeper")
        keeper.subscribe(GROUP, qos=1, user_properties=self.terms)
        keeper.subscribe(OTHER, qos=1)
        keeper.disconnect()
        self.elsewhere: dict[str, int] = {}
        """What the other group is to have, each with its time at the earliest."""

    @property
    def now(self) -> int:
        return self.rig.clock.now_ms

    # -- looking

    def collect(self) -> None:
        """What members have been given."""
        for name, peer in self.peers.items():
            for packet in peer.publishes():
                self.seen(name, packet)

    def seen(self, name: str, packet: Publish) -> None:
        payload = packet.payload.decode()
        job = self.jobs[payload]
        self.lapse(job)
        assert job.state in (OPEN, WAITS), f"{payload} comes and is {job.state}"
        assert job.state != WAITS or job.due_ms <= self.now, f"{payload} comes too early"
        assert job.holder is None, f"{payload} is with {job.holder} and goes to {name}"
        self.is_its_turn(payload, job)
        job.given += 1
        attempt = packet.properties and packet.properties.user("fasti-attempt")
        told = int(attempt or 1)
        job.counted = told
        if job.is_unread_again:
            if told == 1:
                job.spent = 0
            else:
                assert job.old_due_ms <= self.now, f"{payload} comes too early"
            job.old_until_ms = self.now + STORED_MS
            job.is_unread_again = False
        assert told <= job.given + self.kills, payload
        assert told == job.given or self.kills or self.replays, payload
        job.state, job.holder = OPEN, (name, packet.packet_id)
        job.until_ms = self.now + LEASE_MS

    def is_its_turn(self, payload: str, job: Job) -> None:
        """Whether nothing of its key comes first."""
        others = [(name, one) for name, one in self.jobs.items() if job.key and one.key == job.key]
        for name, other in others:
            self.lapse(other)
            assert other.holder is None, f"{payload} comes, and {name} is with {other.holder}"
            is_before = job.is_in_line and other.is_in_line and other.place < job.place
            if is_before and other.state in (OPEN, WAITS):
                assert self.has_died(other, self.where()[1].get(name, 0)), f"{payload} comes before {name}"

    def lapse(self, job: Job) -> None:
        """A lease that has come to its end may have lapsed: nobody knows when to the tick."""
        if job.holder is not None and job.until_ms <= self.now:
            place, _ = self.where()
            name = next(payload for payload, other in self.jobs.items() if other is job)
            if place.get(name) != ["in flight"] or self.now >= job.until_ms + LOOK_MS + STEP_MS:
                job.had.append(job.holder)
                job.fail(job.until_ms)

    def where(self) -> tuple[dict[str, list[str]], dict[str, int]]:
        """In which places each message is, and after how many deliveries the dead ones died."""
        core = self.rig.core
        group, other = core.groups.get(GROUP), core.groups.get(OTHER)
        assert group is not None
        assert other is not None
        found: dict[str, list[str]] = {}
        elsewhere: list[str] = []
        for flight in group.session.flights.values():
            message = core.sent.message(flight)
            assert message is not None
            found.setdefault(message.record.payload.decode(), []).append("in flight")
        read, order = group.session.read_at(core.horizon.position), group.session.order
        first = Position((read if order is None else order.read_from(read)) + 1)
        for place, _, value in core.reader.read(first, END):
            if not is_stub(value) and place not in group.session.finished:
                record = decode(value)
                payload = record.payload.decode()
                is_behind = order is not None and order.is_behind(record.ordering_key, place)
                if place > read or (is_behind and payload not in found):
                    found.setdefault(payload, []).append("unread")
        for place, row in RETRIES.all(core.opened.store):
            payload = decode(row.record).payload.decode()
            if row.addressee == other.session.client_id:
                elsewhere.append(payload)
                continue
            assert (row.addressee, row.incarnation) == (group.session.client_id, group.incarnation)
            if place not in group.retrying:
                found.setdefault(payload, []).append("waits")
        assert sorted(elsewhere) == sorted(self.elsewhere)
        dead: dict[str, int] = {}
        for _, row in core.dead_letters.read():
            payload = decode(row.record).payload.decode()
            found.setdefault(payload, []).append("dead")
            dead[payload] = row.attempts
        return found, dead

    @invariant()
    def each_is_in_one_place(self) -> None:
        self.collect()
        found, dead = self.where()
        for payload, job in self.jobs.items():
            self.lapse(job)
            places = found.get(payload, [])
            if job.is_unread_again:
                assert places in (["unread"], ["unread", "waits"], ["unread", "dead"]), (
                    f"{payload} is {places}"
                )
                continue
            if self.now < job.old_until_ms:
                continue
            assert len(places) <= 1, f"{payload} is {places}"
            if job.state in (DONE, LOST_ACK):
                assert not places, f"{payload} is {job.state} and {places}"
            elif job.state == DEAD:
                assert places == ["dead"], f"{payload} is {places}"
                assert dead[payload] <= job.given + self.kills
                assert dead[payload] == job.given or self.kills or self.replays
            elif job.state == WAITS:
                assert places in (["waits"], ["in flight"]) or self.kills, f"{payload} is {places}"
            elif job.state == OPEN and places == ["dead"]:
                # Of one that a kill has taken: it dies when it would be given to the next one.
                assert self.has_died(job, dead[payload])
                job.state = DEAD
            elif job.state == OPEN:
                assert places, f"{payload} is nowhere"

    def has_died(self, job: Job, deliveries: int) -> bool:
        """Whether one that nobody has may be dead after so many deliveries, some of which nobody has seen."""
        return job.holder is None and MAX_ATTEMPTS <= deliveries - job.spent <= job.given + self.kills

    def held(self, name: str) -> list[tuple[str, int]]:
        """(payload, packet id) of what a member could ack."""
        mine = []
        for payload, job in self.jobs.items():
            holders = [*job.had, *([job.holder] if job.holder else [])]
            mine += [(payload, packet_id) for holder, packet_id in holders if holder == name]
        return mine

    # -- doing

    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        publisher = self.rig.connected("p")
        for _ in range(count):
            payload, key = str(len(self.jobs)), self.keys[len(self.jobs) % len(self.keys)]
            job = self.jobs[payload] = Job(key=key, place=END)
            users = (("ordering-key", key),) if key else ()
            ack = publisher.publish1("$delayed/0/t", payload, user_properties=users)
            assert ack.reason == 0
            name = ack.properties and ack.properties.user("fasti-id")
            job.place = id_position(MessageId(int(name or "", 16)))
        publisher.disconnect()

    @rule(name=st.sampled_from(MEMBERS), window=st.sampled_from([1, 2, 10]))
    def come(self, name: str, window: int) -> None:
        if name not in self.peers:
            peer = self.peers[name] = self.rig.connected(name, receive_maximum=window)
            peer.subscribe(GROUP, qos=1, pump=False)
            self.rig.pump()
            peer.inbox = [packet for packet in peer.inbox if isinstance(packet, Publish)]

    def _pick(self, data: st.DataObject) -> tuple[str, Job, Peer, int, bool] | None:
        """Something that a member has, and whether it may still say what becomes of it."""
        all_ = [(name, *held) for name in self.peers for held in self.held(name)]
        if not all_:
            return None
        name, payload, packet_id = data.draw(st.sampled_from(all_))
        job = self.jobs[payload]
        self.lapse(job)
        return payload, job, self.peers[name], packet_id, job.holder == (name, packet_id)

    def _drop_hold(self, job: Job, peer_name: str, packet_id: int) -> None:
        job.had = [one for one in job.had if one != (peer_name, packet_id)]

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        picked = self._pick(data)
        if picked is None:
            return
        _, job, peer, packet_id, is_holder = picked
        before = job.state
        self._drop_hold(job, peer.connection.client_id, packet_id)
        peer.send(Ack(wire.PUBACK, packet_id))
        if is_holder:
            job.state, job.holder = LOST_ACK, None
        elif before not in (DONE, LOST_ACK):
            job.finish()  # in the writer, with what it has ended there

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), seconds=st.sampled_from([0, 1, 7, 60, None, NEVER, NEVER]))
    def nack(self, data: st.DataObject, seconds: int | None) -> None:
        picked = self._pick(data)
        if picked is None:
            return
        _, job, peer, packet_id, is_holder = picked
        self._drop_hold(job, peer.connection.client_id, packet_id)
        self._send_nack(peer, packet_id, seconds)
        if is_holder and seconds == NEVER:
            job.state, job.holder = DEAD, None
        elif is_holder:
            job.fail(self.now, None if seconds is None else 1_000 * seconds)

    def _send_nack(self, peer: Peer, packet_id: int, seconds: int | None, *, pump: bool = True) -> None:
        wait = "" if seconds is None else "never" if seconds == NEVER else f"{seconds}s"
        peer.send(Ack(wire.PUBACK, packet_id, 0x80, props(user_properties=(("retry-in", wait),))), pump=pump)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), seconds=st.sampled_from([1, 30, 100]))
    def extend(self, data: st.DataObject, seconds: int) -> None:
        picked = self._pick(data)
        if picked is None:
            return
        _, job, peer, packet_id, is_holder = picked
        self.collect()
        body = f'{{"packet_id": {packet_id}, "for": {seconds}}}'
        number = peer.publish("$control/extend", body, 1)
        acks = [packet for packet in peer.inbox if isinstance(packet, Ack)]
        peer.inbox = [packet for packet in peer.inbox if isinstance(packet, Publish)]
        (answer,) = acks
        assert answer.packet_id == number
        if is_holder and self.now < job.until_ms:
            assert answer.reason == 0
        if answer.reason == 0:
            assert is_holder
            job.until_ms = self.now + 1_000 * seconds

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), is_clean=st.booleans())
    def go(self, data: st.DataObject, is_clean: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.peers)))
        self.collect()
        peer = self.peers.pop(name)
        peer.disconnect() if is_clean else peer.drop()
        for job in self.jobs.values():
            self.lapse(job)
            job.had = [one for one in job.had if one[0] != name]
            if job.holder is not None and job.holder[0] == name:
                if is_clean:
                    job.come_back(min(self.now, job.until_ms))
                else:
                    job.fail(min(self.now, job.until_ms))

    @precondition(lambda self: self.jobs)
    @rule()
    def replay(self) -> None:
        """The group is set back to its beginning, whoever has what."""
        group = self.rig.core.groups.get(GROUP)
        assert group is not None
        self.collect()
        found, _ = self.where()
        for payload, job in self.jobs.items():  # before: what is sent at once is seen
            self.lapse(job)
            job.is_in_line = job.is_in_line and "in flight" not in found.get(payload, [])
            if "in flight" in found.get(payload, []) or job.is_unread_again:
                continue
            job.is_in_line = True
            job.old_due_ms = job.due_ms if job.state == WAITS else 0
            job.state, job.holder, job.is_unread_again = OPEN, None, True
        self.replays += 1
        rewind = self.rig.core.replay.rewind
        self.rig.core.writer.submit(lambda commit: rewind(commit, group, START), lambda _: None)
        self.rig.pump()

    @precondition(lambda self: self.jobs)
    @rule(is_dead=st.booleans())
    def skip(self, is_dead: bool) -> None:
        """The group leaves its backlog behind."""
        core = self.rig.core
        group, skip, horizon = core.groups.get(GROUP), core.replay.skip, core.horizon.position
        assert group is not None
        self.collect()
        found, _ = self.where()
        passed = {
            decode(value).payload.decode()
            for _, _, value in core.reader.read(START, Position(horizon + 1))
            if not is_stub(value)
        }
        heads = {
            decode(row.record).payload.decode()
            for place, row in RETRIES.all(core.opened.store)
            if group.session.order is not None and group.session.order.waiting_for(place)
        }
        core.writer.submit(lambda commit: skip(commit, group, END, SKIPPED, is_dead=is_dead), lambda _: None)
        self.rig.pump()
        left, _ = self.where()
        for payload in passed:
            job, places = self.jobs[payload], found.get(payload, [])
            if places == ["waits"] and payload in heads:
                job.state = DEAD if is_dead else DONE
            elif job.key and "unread" in places and not (is_dead or left.get(payload)):
                job.finish()  # it had been read again, and waited for its key
            elif places == ["unread", "waits"] and job.key:
                assert is_dead, "else it is dropped, and its retry with it"
                job.die_unread()
            elif places == ["unread", "waits"]:
                job.state, job.due_ms, job.is_unread_again = WAITS, job.old_due_ms, False
                job.is_in_line = False
            elif places == ["unread", "dead"]:
                job.state, job.is_unread_again = DEAD, False
            elif places == ["unread"] and is_dead:
                job.die_unread()
            elif places == ["unread"]:
                job.finish()

    @precondition(lambda self: any(job.state == DEAD for job in self.jobs.values()))
    @rule(data=st.data(), ms=st.sampled_from([0, 3_000, 30_000]))
    def requeue_elsewhere(self, data: st.DataObject, ms: int) -> None:
        """A dead letter is sent to another group."""
        picked = self._letter(data)
        if picked is None:
            return
        place, payload, job = picked
        other, due_ms, again = (
            self.rig.core.groups.get(OTHER),
            self.now + ms,
            self.rig.core.dead_letters.requeue,
        )
        assert self._decide(lambda commit: again(commit, place, due_ms, lambda *_: True, other))
        self.elsewhere[payload] = due_ms
        if not job.is_unread_again:
            job.finish()

    def _decide(self, what: Callable[[Commit], bool]) -> bool:
        """The writer's answer."""
        told: list[bool] = []
        self.rig.core.writer.submit(lambda commit: told.append(what(commit)), lambda _: None)
        self.rig.pump()
        return told == [True]

    def _letter(self, data: st.DataObject) -> tuple[Position, str, Job] | None:
        """A dead letter that is one still."""
        self.collect()
        letters = [
            (place, decode(row.record).payload.decode()) for place, row in self.rig.core.dead_letters.read()
        ]
        here = [one for one in letters if self.now >= self.jobs[one[1]].old_until_ms]
        if not here:
            return None
        place, payload = data.draw(st.sampled_from(here))
        return place, payload, self.jobs[payload]

    @precondition(lambda self: any(job.state == DEAD for job in self.jobs.values()))
    @rule(data=st.data(), ms=st.sampled_from([0, 3_000, 30_000]))
    def requeue(self, data: st.DataObject, ms: int) -> None:
        """A dead letter is sent again, to the group that has given it up; not if that is to read it again."""
        picked = self._letter(data)
        if picked is None:
            return
        place, payload, job = picked
        due_ms, again, is_unread = self.now + ms, self.rig.core.dead_letters.requeue, job.is_unread_again
        if not is_unread:  # before: what is sent at once is seen
            job.state, job.due_ms, job.spent, job.is_in_line = WAITS, due_ms, job.counted, False
        assert self._decide(lambda commit: again(commit, place, due_ms, lambda *_: True)) != is_unread, (
            payload
        )

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
        self.rig.core.writer.submit(lambda _: None, lambda _: None)
        self.rig.pump()
        for job in self.jobs.values():
            if job.state == LOST_ACK:
                job.state = DONE

    @rule(data=st.data(), steps=st.integers(0, 5), survivors=st.integers(0, 2), what=st.sampled_from("xna"))
    def kill(self, data: st.DataObject, steps: int, survivors: int, what: str) -> None:
        """At any step, with something under way or without."""
        picked = self._pick(data) if self.peers else None
        open_job = None
        if picked is not None and what != "x":
            _, open_job, peer, packet_id, is_holder = picked
            if what == "n":
                self._send_nack(peer, packet_id, 5, pump=False)
            else:
                peer.send(Ack(wire.PUBACK, packet_id), pump=False)
            if open_job.state == DONE or (not is_holder and what == "n"):
                open_job = None
        for _ in range(steps):
            self.rig.micro()
        self.rig.crash(survivors)
        self.rig.pump()
        self.kills += 1
        self.peers.clear()
        found, _ = self.where()
        for payload, job in self.jobs.items():
            places = found.get(payload, [])
            was_read_again = self.now < job.old_until_ms or (self.replays and job.state == LOST_ACK)
            if "unread" in places and (job.is_unread_again or was_read_again):
                # It was to be read again, or that it was is not stored.
                assert len(places) <= 2, f"{payload} is {places}"
                assert job.state != DONE
                job.state, job.holder, job.had = OPEN, None, []
                job.is_unread_again, job.old_until_ms = True, 0
                continue
            job.is_unread_again, job.old_until_ms = False, 0
            assert len(places) <= 1, f"{payload} is {places}"
            may_be_over = job is open_job or job.state in (DONE, LOST_ACK)
            assert places or may_be_over, f"{payload} was {job.state} and is nowhere"
            if job.state == DONE:
                assert not places, f"{payload} was done and is {places}"
            job.holder, job.had = None, []
            if not places:
                job.state = DONE
            elif places == ["dead"]:
                job.state = DEAD
            elif places == ["waits"]:
                assert job.state == WAITS or job is open_job or job.until_ms, payload
                job.due_ms = job.due_ms if job.state == WAITS else self.now
                job.state = WAITS
            elif job.state != WAITS or job.due_ms <= self.now:
                job.state = OPEN
            else:
                raise AssertionError(f"{payload} waited and is {places}")

    def teardown(self) -> None:
        """Everything comes to its end: done, or dead."""
        self.come("a", 10)
        peer = self.peers["a"]
        for _ in range(200):
            self.collect()
            mine = self.held("a")
            if not mine and all(job.state in (DONE, DEAD, LOST_ACK) for job in self.jobs.values()):
                break
            for payload, packet_id in mine:
                job = self.jobs[payload]
                self.collect()  # what the ack before this one has made room for
                self._drop_hold(job, "a", packet_id)
                peer.send(Ack(wire.PUBACK, packet_id))
                job.finish()
            for name in ("b", "c"):
                if name in self.peers:
                    self.collect()  # what it was given when the one before it left
                    self.peers.pop(name).disconnect()
                    for job in self.jobs.values():
                        job.had = [one for one in job.had if one[0] != name]
                        if job.holder is not None and job.holder[0] == name:
                            job.come_back(self.now)
            self.pass_time(5_000)
            self.each_is_in_one_place()
        else:
            raise AssertionError(
                {name: job for name, job in self.jobs.items() if job.state not in (DONE, DEAD)}
            )
        group = self.rig.core.groups.get(GROUP)
        assert group is not None
        assert not group.session.flights
        last = self.rig.connected("last")
        last.subscribe(OTHER, qos=1, pump=False)
        self.rig.pump()
        for _ in range(10):
            self.rig.pass_ms(3_000)
        came = [packet.payload.decode() for packet in last.inbox if isinstance(packet, Publish)]
        assert sorted(came) == sorted(self.elsewhere)
        super().teardown()


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
        for module in (key_order, by_key):
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
def test_a_naive_rule_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that the machine can fail."""
    fault.plant(monkeypatch)
    kind = {"usual": Work, "order": Ordered}[fault.drivers["work"]]
    machine = seed(1)(type("Work", (kind,), {}))  # it meets each of them within a few examples
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=settings(_settings(400, Phase.generate), database=None))
