"""Groups with rules of keys, walked at random through the whole server, against an oracle of each message.

Two filters of one name, each a group of its own. Messages are scheduled, moved and cancelled, and expire.
Workers of MQTT, and one that pulls, ack, nack, ack late, leave and are lost; leases are extended, given back
and end, and hold over kills. People hold keys and let them go, try, bury, drop, requeue,
replay, skip, and delete a group. The server is killed anywhere. The oracle demands of each group

    1 order     with `order` only the first message of a key is given: what failed before what follows
    2 limits    of a key no more is out than the rule allows
    3 held      nothing is given of a key that somebody or a dead letter holds, but what a kill has returned
    4 progress  what may be given has been, when nothing moves any more
    5 exact     what has ended is not given, and all else comes. What was acked just before a kill may come
                again: then all that was acked later does too
    6 letters   what a skip or a deletion ends is a dead letter, unless they drop it
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pytest

from server.codec import wire
from server.codec.packets import Ack
from server.delivery.settling.undone import NEVER
from server.delivery.shared import Group
from server.pull.lease_id import LeaseId
from server.settings.config import Config
from shards.commit import Commit
from shards.dead import DEAD
from shards.fields import Record
from shards.keys import kept
from shards.memory import MemoryStore
from shards.order import followers, keys_name, rows_under
from shards.outcome import Outcome
from shards.record import decode, is_moved, is_stub
from shards.retries import RETRIES
from shards.store import Table
from shards.tables import KeptRow
from tests.model.cluster import Cluster, Node
from tests.support.planted import Fault, finds
from tests.support.pulling import Asked, Puller, lease_of
from tests.support.rig import Peer, Rig, props
from tests.support.stepper import Stepper
from timeline import key_order
from timeline.position import END, START, MessageId, Position, message_id
from timeline.session import Flight

ALL, SOME = "$share/workers/jobs/#", "$share/workers/jobs/y"
WORKERS = 2
BACKOFF_MS, NEVER_MS = 1_000, 1 << 60
LAPSE_MS = 3_000
"""A lease ends so long after its time at the latest, over kills too."""
TERMS: dict[str, dict[str, str]] = {
    "order": {"order": "true"},
    "hold": {"order": "true", "on-dead": "hold"},
    "order, fair": {"order": "true", "fair": "true"},
    "limit": {"per-key-concurrency": "2"},
    "rate": {"per-key-rate": "0.5/s"},
    "fair": {"fair": "true"},
}


def payload_of(row: KeptRow) -> str:
    return decode(row.record).payload.decode()


def expires_ms(record: Record) -> int:
    return record.due_ms + record.expires_ms if record.expires_ms else NEVER_MS


@dataclass(slots=True)
class Sent:
    """A message."""

    payload: str
    topic: str
    id: MessageId
    place: Position
    shard: int = 0
    expires_ms: int = NEVER_MS
    is_cancelled: bool = False

    @property
    def key(self) -> str:
        return self.payload[0]


@dataclass(slots=True)
class Case:
    """A message in a group. `state`: open (to be given), out, waits (for its next try), dead, over, doubt (it
    was acked just before a kill)."""

    sent: Sent
    state: str = "open"
    is_head: bool = False
    """It was given, so it goes before what follows."""
    is_returned: bool = False
    """It was out when a worker left or the server was killed."""
    stands: bool = True
    """It has its place in the line of its key: nobody has requeued it."""
    early_ms: int = 0
    """Its next try is not before."""
    expires_ms: int = 0
    """Of one that was requeued."""
    holds: bool = False
    """It is a dead letter that holds its key."""
    peer: Peer | None = None
    packet_id: int = 0
    lease: LeaseId | None = None
    """The last one. The puller has the message if it is out and no peer has it."""
    until_ms: int = 0
    """The lease does not end before."""


class Place:
    """A group, its workers, and what the oracle knows of it."""

    def __init__(self, life: "Life", text: str) -> None:
        self.life, self.text, self.rnd = life, text, life.rnd
        self.cases: dict[str, Case] = {}
        self.held: set[str] = set()
        self.acks: list[Case] = []
        """Acked, in order, since the cursor was written last."""
        self.doubts: list[list[Case]] = []
        """The same, of kills."""
        self.letters: set[Position] = set()
        self.dead: list[tuple[bytes, bytes]] = []
        """Rows of dead letters at the last look."""
        self.peers: list[Peer] = []
        self.puller = Puller(life.rig, text)
        self.asked: Asked | None = None
        """The puller's call that waits."""

    # -- the group

    def join(self) -> None:
        self.peers = [self.member(n) for n in range(WORKERS)]

    def member(self, n: int) -> Peer:
        peer = self.life.rig.connected(f"{self.text[-1]}{n}", receive_maximum=self.life.window)
        said = {"backoff": "1s", "expiry": "never", "max-attempts": "0", **self.life.terms}
        assert peer.subscribe(self.text, qos=1, user_properties=tuple(said.items())) == (1,)
        return peer

    @property
    def group(self) -> Group:
        group = self.life.rig.core.groups.get(self.text)
        assert group is not None
        return group

    def decided(self, decide: Callable[[Commit, Group], Any]) -> Any:
        """What the writer decides, once it is durable."""
        answers: list[Any] = []
        rig = self.life.rig
        rig.core.writer.submit(lambda commit: decide(commit, self.group), answers.append)
        rig.pump()
        assert not isinstance(answers[0], Exception), answers
        return answers[0]

    def in_state(self, *states: str, key: str = "") -> list[Case]:
        return [one for one in self.cases.values() if one.state in states and key in one.sent.payload[:1]]

    # -- what comes

    def take(self) -> None:
        self.look()
        if self.asked is None and self.rnd.random() < 0.5:
            lease_ms = self.rnd.choice((1_500, 6_000))
            self.asked = self.puller.ask(self.rnd.randint(1, 3), wait_ms=NEVER_MS, lease_ms=lease_ms)
            self.look()

    def look(self) -> None:
        self.lapse()
        self.sync()
        for peer in self.peers:
            for packet in peer.publishes():
                case = self.came(packet.payload.decode())
                case.peer, case.packet_id = peer, packet.packet_id
        if self.asked is None or self.asked.answer is None:
            assert self.asked is None or not self.asked.call.given, "who has messages is answered"
            return
        for one in self.asked.leased:
            case = self.came(one.given.message.record.payload.decode())
            case.peer, case.lease, case.until_ms = None, lease_of(one), one.until_ms
        self.asked = None

    def came(self, payload: str) -> Case:
        case = self.cases[payload]
        self.judge(case)
        case.state, case.is_head, case.stands, case.is_returned = "out", True, True, False
        return case

    def is_leased(self, case: Case) -> bool:
        return self.life.rig.core.settling.leased(self.text, self.lease(case).number) is not None

    @staticmethod
    def lease(case: Case) -> LeaseId:
        assert case.lease is not None
        return case.lease

    def lapse(self) -> None:
        """Leases have ended: their messages wait for their next try."""
        now_ms = self.life.rig.clock.now_ms
        leased = [one for one in self.in_state("out") if one.peer is None]
        lapsed = [one for one in leased if not self.is_leased(one)]
        for case in leased:
            late_ms = now_ms - case.until_ms if case.until_ms else 0
            assert any(case is one for one in lapsed) or late_ms <= LAPSE_MS, (
                f"5: the lease of {case} does not end"
            )
        rows = {payload_of(row): decode(row.record) for _, row in self.rows(RETRIES)} if lapsed else {}
        for case in lapsed:
            assert case.until_ms <= now_ms, f"5: the lease of {case} ended early"
            case.state, case.stands = "waits", self.life.is_ordered
            row = rows.get(case.sent.payload)
            case.early_ms = case.until_ms + BACKOFF_MS if row is None else row.due_ms
            assert case.early_ms >= case.until_ms + BACKOFF_MS

    def judge(self, case: Case) -> None:
        """Whether a message may be given now."""
        sent, key, life = case.sent, case.sent.key, self.life
        if case.state == "doubt":
            self.settle(case)
        assert case.state in ("open", "waits"), f"5: {case} is given"
        assert sent.place <= life.rig.core.horizon.position, f"5: {case} is early"
        assert case.early_ms <= life.rig.clock.now_ms, f"5: the retry of {case} is early"
        assert life.is_alive(case), f"5: {case} has expired, or was cancelled"
        if not life.counts(key):
            return
        out = self.in_state("out", key=key)
        assert not life.most or len(out) < life.most, f"2: {case} is given, and {out} are out"
        if case.is_returned:
            return
        assert key not in self.held, f"3: {case} is given, and somebody holds its key"
        if life.is_ordered and case.stands:
            for other in self.before(case):
                if other.state == "doubt":
                    self.settle(other, is_over=True)
                elif other.state != "over":
                    assert not other.stands or not self.is_due(other), f"1: {case} before {other}"
        letters = [one for one in self.in_state("dead", key=key) if one.holds]
        assert not letters, f"3: {case} is given, and {letters} hold its key"

    def before(self, case: Case) -> list[Case]:
        """What goes before it of its key."""
        rank = not case.is_head, case.sent.place
        others = self.in_state("open", "waits", "doubt", key=case.sent.key)
        return [one for one in others if one is not case and (not one.is_head, one.sent.place) < rank]

    def is_due(self, case: Case) -> bool:
        """Whether it is to be given, if its key allows it. What waits as the head of its key is."""
        sent, life = case.sent, self.life
        if not life.is_alive(case):
            return False
        is_head = case.state == "waits" and life.is_ordered and case.is_head
        return is_head or (
            sent.place <= life.rig.core.horizon.position and case.early_ms <= life.rig.clock.now_ms
        )

    def settle(self, case: Case, *, is_over: bool = False) -> None:
        """A doubt has ended: what the cursor knew is the acks up to some one, and none after it."""
        (line,) = [line for line in self.doubts if case in line]
        at = line.index(case)
        ended, again = (line[: at + 1], line[at + 1 :]) if is_over else (line[:at], line[at:])
        self.doubts.remove(line)
        if is_over:
            self.doubts.append(again)
        else:
            self.doubts.append(ended)
        for one in ended if is_over else again:
            one.state = "over" if is_over else "open"
            one.is_returned = not is_over

    def sync(self) -> None:
        """Look at the dead letters, if any has come or gone."""
        before, self.dead = self.dead, [*self.life.rig.store.scan(Table.DEAD, kept(START), kept(END))]
        if before == self.dead:
            return
        rows = {place: payload_of(row) for place, row in self.rows(DEAD)}
        for place, payload in rows.items():
            case = self.cases[payload]
            if place not in self.letters and case.state != "over":
                if case.state == "doubt":
                    self.settle(case)
                assert case.state in ("waits", "open"), f"6: {case} is dead"
                case.holds = self.life.terms.get("on-dead") == "hold" and case.is_head and case.stands
                case.state = "dead"
        self.letters = {*rows}

    def rows(self, kept: Any) -> list[tuple[Position, Any]]:
        group = self.group
        found = list(kept.all(self.life.rig.store))
        return [one for one in found if one[1].is_of(group.session.client_id, group.incarnation)]

    def sure(self) -> None:
        """All that was acked is durable."""
        for case in self.acks:
            case.state = "over"
        self.acks.clear()

    def act(self) -> None:
        op, rnd, out = self.rnd.random(), self.rnd, self.in_state("out")
        if op < 0.4 and out:
            self.ack(rnd.choice(out))
        elif op < 0.6 and out:
            self.nack(rnd.choice(out))
        elif op < 0.67:
            rnd.choice((self.leave, self.leave, self.hand_back, self.extend, self.hang_up))()
        elif op < 0.74:
            rnd.choice((self.hold, self.let_go))()
        elif op < 0.82:
            self.steer(rnd.choice(("try", "drop", "bury")))
        elif op < 0.89:
            self.requeue(is_drop=rnd.random() < 0.4)
        elif op < 0.92:
            self.finish_late()
        elif op < 0.97 and self.cases:
            spot = rnd.choice([*self.cases.values()]).sent.place
            if spot <= self.life.rig.core.horizon.position:
                rnd.choice((self.replay, self.skip))(spot)
        elif op < 0.98:
            self.delete()

    # -- what workers do

    def ack(self, case: Case, *, pump: bool = True) -> None:
        case.state = "over"
        self.acks.append(case)
        if case.peer is not None:
            case.peer.ack(wire.PUBACK, case.packet_id, pump=pump)
            return
        settled = self.puller.ack([self.lease(case)], pump=pump)
        if pump:
            assert [one.done for one in settled] == [1], f"5: {case} is acked, and was gone"
            self.sure()

    def nack(self, case: Case, *, pump: bool = True) -> None:
        wait = self.rnd.choice(("0s", "1s", "4s", "never") if pump else ("0s",))
        asked = props(user_properties=(("retry-in", wait),))
        if case.peer is not None:
            case.peer.send(Ack(wire.PUBACK, case.packet_id, 0x80, asked), pump=False)
        else:
            delay_ms = NEVER if wait == "never" else int(wait[0]) * 1_000
            self.puller.nack([self.lease(case)], delay_ms, pump=False)
        case.state = "waits"
        case.stands = self.life.is_ordered
        case.early_ms = self.life.rig.clock.now_ms + (int(wait[0]) * 1_000 if pump and wait[0] != "n" else 0)
        case.is_returned = not pump
        if pump:
            self.life.rig.pump()
            self.sure()

    def hand_back(self) -> None:
        """The puller returns what it has in order."""
        cases = [one for one in self.in_state("out") if one.peer is None]
        if not cases:
            return
        self.puller.release([self.lease(one) for one in cases], pump=False)
        for case in cases:
            case.state, case.is_returned = "open", True
        self.life.rig.pump()
        self.sure()

    def extend(self) -> None:
        cases = [one for one in self.in_state("out") if one.peer is None]
        if not cases:
            return
        (settled,) = self.puller.extend([self.lease(one) for one in cases], 4_000)
        assert settled.done == len(cases)
        for case in cases:
            case.until_ms = self.life.rig.clock.now_ms + 4_000
        self.sure()

    def hang_up(self) -> None:
        """The puller's client is gone, perhaps before it was answered."""
        if self.asked is None:
            self.asked = self.puller.ask(3, wait_ms=NEVER_MS, pump=False)
        for _ in range(self.rnd.randrange(8)):
            self.life.rig.micro()
        if self.asked is not None and self.asked.answer is None:
            for given in self.asked.call.given:
                case = self.cases[given.message.record.payload.decode()]
                case.state, case.is_returned = "open", True
            self.life.rig.core.pull.abandon(self.asked.call)
            self.asked = None
        self.life.rig.pump()

    def leave(self) -> None:
        """A worker disconnects in order, or is lost, and is back."""
        n = self.rnd.randrange(WORKERS)
        peer, is_lost = self.peers[n], self.rnd.random() < 0.5
        for case in self.in_state("out"):
            if case.peer is peer:
                case.state = "waits" if is_lost else "open"
                case.is_returned = not is_lost
                case.stands = not is_lost or self.life.is_ordered
                case.early_ms = self.life.rig.clock.now_ms + BACKOFF_MS * is_lost
        peer.drop() if is_lost else peer.disconnect()
        self.life.take()
        self.peers[n] = self.member(n)

    def finish_late(self) -> None:
        case = self.rnd.choice(self.in_state("open", "out", "waits", "dead") or [None])
        if case is None or case.sent.place > self.life.rig.core.horizon.position:
            return
        told: list[object] = []
        if case.lease is not None:
            self.life.rig.core.pull.ack([case.lease], told.append)
        else:
            self.life.rig.core.late.finish(self.group, case.sent.place, case.sent.shard, told.append)
        case.state, case.holds = "over", False
        self.life.rig.pump()
        assert len(told) == 1
        self.sure()

    # -- what people do

    def hold(self) -> None:
        key = self.rnd.choice("ab")
        self.held.add(key)
        self.decided(lambda commit, group: self.life.rig.core.holds.hold(commit, group, key.encode()))
        self.sure()

    def let_go(self, keys: Iterable[str] = "ab") -> None:
        for key in keys:
            self.held.discard(key)
            for case in self.in_state("dead", key=key):
                case.holds = False
            self.decided(partial(self.life.rig.core.holds.let_go, key=key.encode()))

    def steer(self, how: str) -> None:
        """Of what waits."""
        steering, now_ms = self.life.rig.core.steering, self.life.rig.clock.now_ms
        rows = {payload_of(row): place for place, row in self.rows(RETRIES)}
        waiting = [one for one in self.in_state("waits") if one.sent.payload in rows]
        if not waiting:
            return
        case = self.rnd.choice(waiting)
        place, due_ms = rows[case.sent.payload], now_ms + self.rnd.choice((0, 3_000))
        if how == "try":
            done = self.decided(lambda commit, _: steering.try_(commit, place, due_ms, lambda *_: True))
            case.early_ms = due_ms if done else case.early_ms
        elif how == "drop":
            done = self.decided(lambda commit, _: steering.drop(commit, place, lambda *_: True))
            case.state = "over"
        else:
            done = self.decided(lambda commit, _: steering.bury(commit, place, lambda *_: True))
        assert done or not self.life.is_alive(case, due_ms), f"{how} {case}"

    def requeue(self, *, is_drop: bool = False) -> None:
        """A dead letter is tried again, or dropped."""
        letters, now_ms = self.life.rig.core.dead_letters, self.life.rig.clock.now_ms
        rows = [(self.cases[payload_of(row)], place) for place, row in self.rows(DEAD)]
        if not rows:
            return
        case, place = self.rnd.choice(rows)
        if is_drop:
            self.decided(lambda commit, _: letters.drop(commit, place, lambda *_: True))
            case.state, case.holds = "over" if case.state == "dead" else case.state, False
            return
        if self.decided(lambda commit, _: letters.requeue(commit, place, now_ms, lambda *_: True)):
            is_over = case.state in ("dead", "over") or not self.life.is_alive(case)
            assert is_over, f"5: {case} is to come, and is requeued"
            case.state, case.early_ms, case.stands = "waits", 0, case.holds
            case.holds, case.is_head = False, True
            found = next(row for _, row in self.rows(RETRIES) if self.cases[payload_of(row)] is case)
            case.expires_ms = expires_ms(decode(found.record))

    def replay(self, to: Position) -> None:
        self.decided(lambda commit, group: self.life.rig.core.replay.rewind(commit, group, to))
        self.sure()
        for case in self.cases.values():
            if case.sent.place > to and case.state != "out":
                case.state, case.is_head, case.stands, case.holds = "open", False, True, False
                case.early_ms, case.is_returned, case.expires_ms = 0, False, 0
        self.doubts = [[case for case in line if case.state == "doubt"] for line in self.doubts]

    def skip(self, to: Position) -> None:
        is_dead = self.rnd.random() < 0.5
        flying = self.flying()
        ended = [
            one
            for one in self.in_state("open", "waits")
            if one.sent.place <= to and one.sent.id not in flying and self.is_skipped(one)
        ]
        alive = [
            one.sent.payload for one in ended if self.life.is_alive(one, self.life.rig.clock.now_ms + 1_000)
        ]
        for case in ended:
            case.state = "over"
        replay, key_order.LOOKED_MAX = self.life.rig.core.replay, 1
        while self.decided(lambda commit, one: replay.skip(commit, one, to, "skipped", is_dead=is_dead)):
            self.sure()
        self.life.pass_ms(500)
        if is_dead:
            letters = {payload_of(row) for _, row in self.rows(DEAD)}
            assert letters >= {*alive}, f"6: {[self.cases[one] for one in alive if one not in letters]}"

    def flying(self) -> dict[MessageId, Flight]:
        """What is in flight, or returned and in nobody's hands."""
        group, sent = self.group, self.life.rig.core.sent
        return {
            group.retrying.get(one.position) or sent.name_at(one.position, one.shard, 0) or MessageId(0): one
            for one in group.session.flights.values()
        }

    def is_skipped(self, case: Case) -> bool:
        return case.state == "open" or (
            self.life.is_ordered and case.stands and self.life.counts(case.sent.key)
        )

    def delete(self) -> None:
        """The group ends with all that it has, and begins anew."""
        group, is_dead, rig = self.group, self.rnd.random() < 0.7, self.life.rig
        named = group.session.client_id, group.incarnation
        undone = [one for one in self.in_state("open", "out", "waits", "dead") if self.is_dispatched(one)]
        while not self.life.disband(group, is_dead=is_dead):
            pass
        for peer in self.peers:
            peer.inbox.clear()
            peer.disconnect()
        self.life.pass_ms(1_000, but=self)
        rows = [row for _, row in DEAD.all(rig.store) if row.is_of(*named)]
        letters = {payload_of(row) for row in rows}
        if is_dead:
            left = [one for one in undone if self.life.is_alive(one) and one.sent.payload not in letters]
            assert not left, f"6: {left}"
        assert not list(rows_under(rig.store, keys_name(group.whose))), "its keys go with it"
        assert not list(rig.store.scan(Table.ORDER, b"\3", b"\4")), "and are settled"
        assert rig.store.get(Table.ORDER, b"\0" + group.whose[1:]) is None
        assert not [row for _, row in RETRIES.all(rig.store) if row.is_of(*named)]
        ahead = [one for one in self.cases.values() if not self.is_dispatched(one)]
        self.__init__(self.life, self.text)  # type: ignore[misc]
        self.cases = {one.sent.payload: Case(one.sent) for one in ahead}
        self.join()

    def is_dispatched(self, case: Case) -> bool:
        return case.sent.place <= self.life.rig.core.horizon.position

    # -- kills

    def strike(self) -> None:
        """What the server is killed in the middle of."""
        for case in self.rnd.sample(out := self.in_state("out"), len(out) // 2):
            self.ack(case, pump=False) if self.rnd.random() < 0.6 else self.nack(case, pump=False)

    def killed(self) -> None:
        for case in self.in_state("out", "waits"):
            case.is_returned = case.is_returned or case.state == "out"
            case.state = "open" if case.state == "out" else case.state
        for case in self.acks:
            case.state = "doubt"
        self.doubts = [*filter(None, self.doubts), self.acks]
        self.acks = []
        self.asked = None
        self.keep_leases()

    def keep_leases(self) -> None:
        """What is leased still is, also what the puller has not heard of."""
        payloads = {case.sent.id: payload for payload, case in self.cases.items()}
        for name, flight in self.flying().items():
            found = self.life.rig.core.settling.leased(self.text, flight.number)
            if found is None:
                continue
            case, lease = self.cases[payloads[name]], LeaseId(self.text, flight.number, *found[1].origin)
            if case.lease != lease:
                self.came(payloads[name])
                case.lease, case.until_ms = lease, 0
            elif case.state == "doubt":
                self.settle(case)
            case.state, case.peer, case.is_returned = "out", None, False

    # -- what is always true

    def check(self) -> None:
        group = self.group
        order = group.session.order
        assert order is not None
        order.check()
        rig = self.life.rig
        assert rig.core.floor.needed <= order.first_needed, "no slice goes that is needed"
        if self.life.window > 50:
            self.check_progress()
        if self.rnd.random() < 0.1:
            rig.core.cursors.secure(group, lambda _: None)
            rig.pump()
            self.sure()
            self.check_rows()

    def check_progress(self) -> None:
        """All is given that may be."""
        for key in "abc-":
            out, line = self.in_state("out", key=key), self.in_state("open", "waits", key=key)
            letters = any(one.holds for one in self.in_state("dead", key=key))
            line = [one for one in line if self.life.is_alive(one)]
            ready = [one for one in line if self.is_ready(one)]
            if key in self.held or letters or self.in_state("doubt", key=key):
                continue
            if self.life.is_ordered and self.life.counts(key):
                first = min(line, key=lambda one: (not one.is_head, one.sent.place), default=None)
                ready = [one for one in ready if one is first and not out]
            elif self.life.counts(key):
                ready = ready if not self.life.most or len(out) < self.life.most else []
            assert not ready, f"4: {ready} may be given, and {out} is out"

    def is_ready(self, case: Case) -> bool:
        return self.is_dispatched(case) and case.early_ms <= self.life.rig.clock.now_ms and case.stands

    def check_rows(self) -> None:
        group, store = self.group, self.life.rig.store
        order = group.session.order
        assert order is not None
        read = group.session.read_at(self.life.rig.core.horizon.position)
        stored = dict(rows_under(store, keys_name(group.whose)))
        if order.is_set_back:
            return
        assert {key: replace(row, shard=0) for key, row in stored.items()} == {
            key: replace(row, shard=0) for key, row in order.rows()
        }
        for key, row in order.rows():
            assert not row.wait or RETRIES.stored_at(store, row.wait), "it waits for something"
            if row.next:
                found, _ = followers(store, group.whose, key, row.next, read, 10)
                known = sorted({(row.next, row.shard), *found} if row.shard >= 0 else set(found))
                assert order.first(key) in (None, *known[:1]), "and the index has the others"


class Nodes(Rig):
    """The server on a log that three nodes share: after a kill another one may lead."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.terms = 1
        super().__init__()

    def first_store(self) -> MemoryStore:
        self.cluster = Cluster()
        return self.led(self.cluster.leader)

    def led(self, node: Node) -> MemoryStore:
        store: Any = self.cluster.lead(node)  # it can do all that a rig asks of a store in RAM
        return cast("MemoryStore", store)

    def crash(self, survivors: int = 0, settings: Config | None = None) -> None:
        cluster, before = self.cluster, self.cluster.leader
        for peer in self.peers:
            peer.is_closed = True
        self.peers.clear()
        before.arrives(survivors)
        before.lose(self.rnd)
        for node in cluster.nodes:
            cluster.follow(node, self.rnd.choice((0, 2, None)))
        self.store = self.led(self.rnd.choice(cluster.nodes))
        self.terms += cluster.leader is not before
        self.stepper = Stepper(self.store, self.clock, settings)


class Life:
    """A server, its clients, and all that becomes of messages."""

    def __init__(self, seed: int, terms: str, *, has_nodes: bool = False) -> None:
        self.rnd, self.terms = random.Random(seed), TERMS[terms]
        self.pace = random.Random(seed)
        self.rig = Nodes(self.rnd) if has_nodes else Rig()
        self.window = 2 if terms in ("fair", "rate") else 1_000
        self.is_ordered = "order" in self.terms
        self.most = 1 if self.is_ordered else int(self.terms.get("per-key-concurrency", 0))
        self.sent: dict[str, Sent] = {}
        self.places = [Place(self, text) for text in (ALL, SOME)]
        for place in self.places:
            place.join()

    def counts(self, key: str) -> bool:
        """Whether the rule counts for it."""
        return key != "-"

    def is_alive(self, case: Case, at_ms: int = 0) -> bool:
        now_ms = at_ms or self.rig.clock.now_ms
        return not case.sent.is_cancelled and now_ms < (case.expires_ms or case.sent.expires_ms)

    def pass_ms(self, by_ms: int, but: Place | None = None) -> None:
        for _ in range(0, by_ms, 500):
            self.rig.pass_ms(500)
            self.take(but)

    def take(self, but: Place | None = None) -> None:
        for place in self.places:
            if place is not but:
                place.take()

    # -- messages

    def send(self) -> None:
        publisher = self.rig.connected("publisher")
        for _ in range(self.rnd.choice((1, 2, 9))):
            key, topic = self.rnd.choice("aaabc-"), self.rnd.choice(("jobs/x", "jobs/y"))
            payload, delay = f"{key}{len(self.sent)}", self.rnd.choice((0, 0, 0, 1, 3))
            users = [("deliver-in", f"{delay}s"), ("ordering-key", key.strip("-"))]
            more: dict[str, Any] = {}
            if self.rnd.random() < 0.1:
                more["message_expiry"] = self.rnd.randint(1, 9)
            asked = publisher.publish1("jobs/" + topic[-1], payload, user_properties=tuple(users), **more)
            assert asked.reason == 0
            self.sent[payload] = Sent(payload, topic, MessageId(0), START)
            for place in self.places:
                if place.text != SOME or topic == "jobs/y":
                    place.cases[payload] = Case(self.sent[payload])
        self.look()
        publisher.disconnect()

    def look(self) -> None:
        """Where messages stand."""
        for place, shard, value in self.rig.core.reader.read(START, END, None):
            if not is_stub(value) and not is_moved(value):
                record = decode(value)
                sent = self.sent[record.payload.decode()]
                sent.place, sent.shard, sent.expires_ms = place, shard, expires_ms(record)
                sent.id = MessageId(record.id) or message_id(place, shard, 0)

    def change(self) -> None:
        """Cancel or move a message."""
        sent = self.rnd.choice([*self.sent.values()] or [None])
        if sent is None or sent.is_cancelled:
            return
        to_ms = self.rig.clock.now_ms + self.rnd.choice((0, 1_000, 4_000))
        is_ahead = sent.place > self.rig.core.horizon.position
        is_move, told = self.rnd.random() < 0.5, list[Any]()

        def decide(commit: Commit) -> Any:
            return (commit.move(sent.id, to_ms) if is_move else commit.cancel(sent.id)).outcome

        self.rig.core.writer.submit(decide, told.append)
        self.rig.pump()
        assert is_ahead or told[0] is not Outcome.DONE, "5: it has been dispatched"
        if told[0] is Outcome.DONE:
            sent.is_cancelled = not is_move
            self.look()

    # -- faults

    def disband(self, group: Group, *, is_dead: bool) -> bool:
        told: list[Any] = []
        self.rig.core.writer.submit(
            lambda commit: self.rig.core.groups.disband(commit, group, is_dead=is_dead), told.append
        )
        self.rig.pump()
        return bool(told[0])

    def kill(self) -> None:
        for place in self.places:
            place.strike()
        for _ in range(self.rnd.randrange(8)):
            self.rig.micro()
        self.rig.crash(self.rnd.randrange(3))
        self.rig.pump()
        for place in self.places:
            place.killed()
        for place in self.places:
            place.join()
        self.take()

    def restart(self) -> None:
        self.rig.kill()
        for place in self.places:
            place.sure()
            place.killed()
        for place in self.places:
            place.join()

    # -- all of it

    def act(self) -> None:
        # After a replay few keys are looked at with a cursor, or none: so much happens before they all are.
        key_order.LOOKED_MAX = self.pace.choice((0, 0, 0, 1))
        op = self.rnd.random()
        if op < 0.22:
            self.send()
        elif op < 0.26:
            self.change()
        elif op < 0.36:
            self.pass_ms(self.rnd.choice((500, 2_000)))
        elif op < 0.38:
            self.kill()
        elif op < 0.39:
            self.restart()
        else:
            self.rnd.choice(self.places).act()
        self.take()
        for place in self.places:
            place.check()

    def live(self) -> None:
        for _ in range(150):
            self.act()
        self.end()

    def end(self) -> None:
        """All is acked, each message as soon as it comes."""
        key_order.LOOKED_MAX = 1
        for turn in range(2_400):
            self.pass_ms(500)
            for place in self.places:
                for case in place.in_state("out"):
                    place.ack(case)
                if turn % 6 == 5:
                    place.let_go("abc")
            self.take()
            if not any(map(self.is_left, self.places)):
                return
        left = [place.in_state("open", "out", "waits") for place in self.places]
        raise AssertionError(f"5: not all came: {left}")

    def is_left(self, place: Place) -> bool:
        left = place.in_state("open", "out", "waits")
        return any(map(self.is_alive, left))


@pytest.fixture(autouse=True)
def _pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives change it."""
    monkeypatch.setattr(key_order, "LOOKED_MAX", 1)


def walks(seeds: Iterable[int], terms: str) -> None:
    for seed in seeds:
        Life(seed, terms).live()


@pytest.mark.long
@pytest.mark.parametrize("terms", TERMS)
def test_random_lives(terms: str) -> None:
    walks(range(6), terms)


@pytest.mark.long
@pytest.mark.parametrize("terms", ["order", "hold", "limit"])
def test_a_node_that_leads_keeps_each_key(terms: str) -> None:
    """Order, holds and key rows, over failovers; and all nodes have the same rows."""
    took_over = 0
    for seed in range(4):
        life = Life(seed, terms, has_nodes=True)
        life.live()
        assert isinstance(life.rig, Nodes)
        took_over += life.rig.terms - 1
        life.rig.finish()
        for node in life.rig.cluster.nodes:
            life.rig.cluster.follow(node, None)
        life.rig.cluster.check()
    assert took_over > 4


@pytest.mark.long
@finds("keyed")
def test_each_rule_left_out_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        walks(range(30), fault.drivers["keyed"])
