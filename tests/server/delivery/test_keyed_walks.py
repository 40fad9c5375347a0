"""Groups with rules of keys, walked at random through the whole server, against the account of deliveries.

Two filters of one name, each a group of its own. Messages are scheduled, moved and cancelled, and expire.
Workers of MQTT, and one that pulls, ack, nack, ack late, leave and are lost; leases are acked, some with what
follows, extended, given back and end, some of a call and not others, and hold over kills. What workers of
MQTT have holds too: they say so, and ack it by its id. People hold keys and let them go, try, bury, drop,
requeue, replay, skip, and delete a group. The server drains, stops, hands over, and is killed anywhere.

What comes, waits, is dead or over is where the account says that it may be (tests/support/ledger/), in its
turn among those of its key; and what may be given has been, when nothing moves any more. What the account
does not ask is asked here: nobody gets what has expired, a lease ends soon, a kill takes acks from the last
one on, the rows of keys say what the server knows.
"""

import json
import random
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pytest

from server.codec import wire
from server.codec.packets import Ack
from server.delivery.link import Closing
from server.delivery.settling import settling
from server.delivery.settling.settling import AWAY
from server.delivery.shared import Group as Shared
from server.delivery.subscriber import Subscriber, holder_of
from server.pull.lease_id import LeaseId
from server.pull.pull import Settled
from server.settings.config import Config
from shards import delivery_rows, keys
from shards.commit import Commit
from shards.delivery_rows import DeliveryRow, Name
from shards.draft import Draft, Outcome
from shards.fields import Record
from shards.order import followers, keys_name, rows_under
from shards.record import decode, encode, is_moved, is_stub
from shards.store import Table
from tests.model.cluster import Cluster, Node
from tests.model.order import check, rows_of
from tests.support.ledger.deliveries import Deliveries
from tests.support.ledger.messages import Message
from tests.support.ledger.stakes import Lease, Stake
from tests.support.ledger.words import ANY, DEAD, DONE, DROPPED, FLIGHT, UNDONE, WAITING
from tests.support.ledger.words import Fault as Found
from tests.support.memory_store import MemoryStore
from tests.support.planted import Fault, finds
from tests.support.pulling import Asked, Puller, lease_of
from tests.support.rig import Peer, Rig, about, props
from tests.support.soak import SOAK
from tests.support.stepper import Stepper
from tests.support.whereabouts import where
from timeline import key_order
from timeline.deliveries import NEVER
from timeline.position import END, START, MessageId, Position, at_of, before, id_text, message_id
from timeline.session import Flight

ALL, SOME = "$share/workers/jobs/#", "$share/workers/jobs/y"
WORKERS = 2
LIVES = 100 if SOAK else 6
STEP_MS, BACKOFF_MS, NEVER_MS = 500, 1_000, 1 << 60
LEASES_MS, EXTENDED_MS, HELD_MS = (1_500, 6_000), 8_000, 5_000
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


def _fails(fault: Found) -> None:
    raise AssertionError(str(fault))


def payload_of(row: DeliveryRow) -> str:
    return decode(row.record).payload.decode()


@dataclass(slots=True)
class Sent:
    """Where the server has a message."""

    message: Message
    id: MessageId
    place: Position = START
    shard: int = 0


class Group:
    """A group, its workers, and what they have in hand."""

    def __init__(self, life: "Life", text: str) -> None:
        self.life, self.text, self.rnd, self.ledger = life, text, life.rnd, life.ledger
        self.acked: list[Stake] = []
        """In order, since the cursor was written last."""
        self.peers: list[Peer] = []
        self.packets: dict[str, tuple[Peer, int]] = {}
        """By payload, who has it over MQTT."""
        self.leases: dict[str, Lease] = {}
        """By payload, the last one. The puller has the message if it is out and no peer has it."""
        self.former: list[Lease] = []
        """Those before."""
        self.followed: list[tuple[Lease, Message]] = []
        """Acks with what follows, which have no answer."""
        self.until: dict[str, int] = {}
        """The lease does not end before."""
        self.away: dict[str, tuple[Subscriber, Flight]] = {}
        """By payload, what a worker of MQTT has had since before the start, ..."""
        self.ending: set[str] = set()
        """... and whose lease has an end that the next start knows."""
        self.puller = Puller(life.rig, text)
        self.asked: Asked | None = None
        """The puller's call that waits."""
        self.open()

    def open(self) -> None:
        terms = self.life.terms
        self.place = place = self.ledger.lives.opened(
            "group", self.text, self.text.split("/", 2)[2], max_tries=0
        )
        place.backoff, place.is_ordered, place.waits_for_keys = (BACKOFF_MS,), "order" in terms, True
        place.most = 1 if place.is_ordered else int(terms.get("per-key-concurrency", 0))
        place.on_dead_hold = terms.get("on-dead") == "hold"

    def join(self) -> None:
        self.peers = [self.member(n) for n in range(WORKERS)]

    def member(self, n: int) -> Peer:
        peer = self.life.rig.connected(f"{self.text[-1]}{n}", receive_maximum=self.life.window)
        said = {"backoff": "1s", "expiry": "never", "max-attempts": "0", **self.life.terms}
        assert peer.subscribe(self.text, qos=1, user_properties=tuple(said.items())) == (1,)
        return peer

    @property
    def group(self) -> Shared:
        return self.life.rig.group(self.text)

    def decided(self, decide: Callable[[Commit, Shared], Any]) -> Any:
        """What the writer decides, once it is durable."""
        (answer,) = self.life.rig.decide(lambda commit: decide(commit, self.group))
        assert not isinstance(answer, Exception), answer
        return answer

    def stakes(self, may: Set[str] = ANY) -> list[Stake]:
        return [one for one in self.place.stakes.values() if one.may <= may]

    @property
    def out(self) -> list[Stake]:
        """What is in somebody's hands."""
        return [
            one
            for key, one in self.place.stakes.items()
            if FLIGHT in one.may and (key in self.packets or self.is_leased(key))
        ]

    @property
    def leased_on(self) -> list[Stake]:
        """What no connection has."""
        return [one for one in self.out if one.message.id not in self.packets]

    @property
    def pulled(self) -> list[Stake]:
        return [one for one in self.leased_on if not self.is_away(one.message.id)]

    def lease(self, stake: Stake) -> Lease:
        return self.leases[stake.message.id]

    def is_leased(self, key: str) -> bool:
        lease = self.leases.get(key)
        leased = self.life.rig.core.settling.leased
        is_pulled = lease is not None and leased(self.text, lease.name.number) is not None
        return is_pulled or self.is_away(key)

    def is_away(self, key: str) -> bool:
        found = self.away.get(key)
        return found is not None and found[0].session.has(found[1]) and self.group.is_held(found[1])

    # -- what comes

    def take(self) -> None:
        self.look()
        if self.asked is None and self.rnd.random() < 0.5:
            lease_ms = self.rnd.choice(LEASES_MS)
            self.asked = self.puller.ask(self.rnd.randint(1, 3), wait_ms=NEVER_MS, lease_ms=lease_ms)
            self.look()

    def look(self) -> None:
        self.life.watch()
        self.lapse()
        self.life.look_at_letters()
        for n, peer in enumerate(self.peers):
            for packet in peer.publishes():
                key = packet.payload.decode()
                number = int(about(packet).user("fasti-attempt") or 1)
                self.came(key, str(n), is_again=packet.dup or number > 1)
                self.packets[key] = peer, packet.packet_id
        if self.asked is None or self.asked.answer is None:
            assert self.asked is None or not self.asked.call.given, "who has messages is answered"
            return
        for one in self.asked.leased:
            key, is_again = one.given.message.record.payload.decode(), one.given.is_redelivered
            self.leased(key, lease_of(one), one.until_ms, is_again=is_again)
        self.asked = None

    def came(self, key: str, by: str, lapses: float | None = None, *, is_again: bool | None = None) -> Stake:
        stake = self.place.stakes.get(key)
        assert stake is None or not self.ledger.fates.has_expired(stake), f"{stake} has expired"
        assert not self.life.is_draining, f"{key} is given in a drain"
        self.away.pop(key, None)
        self.ending.discard(key)
        is_leased = lapses is not None
        self.ledger.given(self.place, key, by=by, lapses=lapses, is_leased=is_leased, is_again=is_again)
        return self.place.stakes[key]

    def leased(self, key: str, lease: LeaseId, until_ms: int, *, is_again: bool | None = None) -> Stake:
        self.packets.pop(key, None)
        if key in self.leases:
            self.former.append(self.leases[key])
        stake, self.until[key] = self.came(key, "pull", until_ms / 1_000, is_again=is_again), until_ms
        self.leases[key] = Lease(self.place, stake, stake.number, lease)
        return stake

    def lapse(self) -> None:
        """Leases have ended: their messages wait for their next try."""
        rows: dict[str, int] | None = None
        for key, stake in self.place.stakes.items():
            if key in self.packets:
                continue
            if self.is_leased(key):
                self.ledger.looks.shown(self.place, key, "leased")
                continue
            if FLIGHT not in stake.may:
                continue
            assert stake.may != {FLIGHT}, f"the lease of {stake} ended early"
            stake.may -= {FLIGHT}
            rows = rows or {payload_of(row): at_of(row.at) for row in self.waiting()}
            stake.not_before = rows.get(key, self.until[key] + BACKOFF_MS)
            assert stake.not_before >= self.until[key] + BACKOFF_MS

    def rows(self, found: Iterable[DeliveryRow]) -> list[DeliveryRow]:
        return [row for row in found if row.is_of(self.group.session.client_id, self.group.incarnation)]

    def waiting(self) -> list[DeliveryRow]:
        return self.rows(delivery_rows.waiting(self.life.rig.store))

    def read_again(self) -> set[str]:
        """What was dead when the group was set back, has come, and has its letter until that is on disk."""
        stakes = self.place.stakes.items()
        return {key for key, one in stakes if DEAD in one.former - one.may and one.read_again}

    def sure(self) -> None:
        """All that was acked is durable."""
        for stake in self.acked:
            stake.since = 0.0
        self.acked.clear()

    def act(self) -> None:
        op, rnd, out = self.rnd.random(), self.rnd, self.out
        if op < 0.07:
            rnd.choice((self.ack_some, self.follow))()
        elif op < 0.4 and out:
            self.ack(rnd.choice(out))
        elif op < 0.6 and out:
            self.nack(rnd.choice(out))
        elif op < 0.67:
            rnd.choice((self.leave, self.leave, self.hand_back, self.extend, self.hang_up, self.hold_on))()
        elif op < 0.74:
            rnd.choice((self.hold, self.let_go))()
        elif op < 0.82:
            self.steer(rnd.choice(("try", "drop", "bury")))
        elif op < 0.89:
            self.requeue(is_drop=rnd.random() < 0.4)
        elif op < 0.92:
            self.finish_late()
        elif op < 0.97 and self.place.stakes:
            at_ms = rnd.choice([*self.place.stakes.values()]).message.at
            rnd.choice((self.replay, self.skip))(at_ms - at_ms % STEP_MS + rnd.choice((-100, 100)))
        elif op < 0.98:
            self.delete()

    # -- what workers do

    def ack(self, stake: Stake, *, pump: bool = True) -> None:
        key = stake.message.id
        if pump or not self.is_away(key):
            self.acked.append(stake)  # an ack by its id goes through the writer
        if key in self.packets:
            peer, packet_id = self.packets.pop(key)
            peer.ack(wire.PUBACK, packet_id, pump=pump)
            self.ledger.settling.finished(stake, self.life.now / 1_000)
            return
        if self.is_away(key):
            reason = self.tell("done", "id", self.life.id_of(key), pump=pump)[0]
            if not pump:
                self.ledger.settling.unsure(stake, frozenset({DONE}))
                return
            assert reason == 0, f"{stake} is acked by its id, and was gone"
            self.ledger.settling.finished(stake)
            self.sure()
            return
        settled = self.puller.ack([self.lease(stake).name], pump=pump)
        if not pump:
            self.ledger.settling.unsure(stake, frozenset({DONE}))
            return
        assert [one.done for one in settled] == [1], f"{stake} is acked, and was gone"
        self.ledger.settling.finished(stake)
        self.sure()

    def nack(self, stake: Stake, *, pump: bool = True) -> None:
        wait, key = self.rnd.choice(("0s", "1s", "4s", "never") if pump else ("0s",)), stake.message.id
        if self.is_away(key):
            return  # a nack needs the connection that it came by
        if key in self.packets:
            peer, packet_id = self.packets.pop(key)
            asked = props(user_properties=(("retry-in", wait),))
            peer.send(Ack(wire.PUBACK, packet_id, 0x80, asked), pump=pump)
        else:
            delay_ms = NEVER if wait == "never" else int(wait[0]) * 1_000
            self.puller.nack([self.lease(stake).name], delay_ms, pump=pump)
        if not pump:
            self.ledger.settling.unsure(stake, frozenset({WAITING, DEAD}))
        elif wait == "never":
            self.ledger.settling.buried(stake)
        else:
            due_ms = self.life.now + int(wait[0]) * 1_000
            self.ledger.settling.failed(self.place, stake, not_before=due_ms, is_exact=True)
        if pump:
            self.sure()

    def tell(self, topic: str, name: str, value: object, n: int = 0, *, pump: bool = True) -> tuple[int, str]:
        """A worker tells it by `$control/`; the reason of the answer, and its text."""
        peer, body = self.peers[n], json.dumps({"group": self.text, name: value})
        peer.publish(f"$control/{topic}", body, 1, pump=pump)
        if not pump:
            return 0, ""
        (answer,) = [packet for packet in peer.inbox if isinstance(packet, Ack)]
        peer.inbox.remove(answer)
        return answer.reason, about(answer).reason_string or ""

    def hold_on(self) -> None:
        """A worker says what it has had since before the start, and what it has not."""
        n, stakes = self.rnd.randrange(WORKERS), [*self.place.stakes.values()]
        named = self.rnd.sample(stakes, min(len(stakes), self.rnd.randrange(3)))
        named += [one for one in self.leased_on if one not in named and self.is_away(one.message.id)][:3]
        holder = holder_of("", "\0" + self.peers[n].connection.client_id)
        theirs = [one for one in named if self.is_away(one.message.id)]
        theirs = [one for one in theirs if self.away[one.message.id][0].holder == holder]
        ids = {one.message.id: self.life.id_of(one.message.id) for one in named}
        reason, why = self.tell("holding", "ids", [*ids.values()], n)
        assert [one for one in named if ids[one.message.id] not in why] == theirs
        assert (reason == 0) == (theirs == named)
        for stake in theirs:
            key, until_ms = stake.message.id, self.life.now + HELD_MS
            stake.may = frozenset({FLIGHT})
            if until_ms > self.until[key]:
                self.until[key] = until_ms
                self.ending.add(key)
                self.ledger.settling.held(stake, until_ms / 1_000)

    def some(self) -> list[Lease]:
        """Some leases that the puller has."""
        pulled = self.pulled
        return [self.lease(one) for one in self.rnd.sample(pulled, self.rnd.randint(0, len(pulled)))]

    def told(self, verb: str, named: list[Lease], settled: Settled) -> list[Lease]:
        assert not {self.lease(one).name for one in self.pulled} & {*settled.gone}, "it is leased"
        if settled.done:
            self.sure()
        return self.ledger.leases.answered(verb, named, settled.done + settled.dead, settled.gone)

    def ack_some(self) -> None:
        if named := self.some():
            self.acked += [one.stake for one in named]
            self.told("ack", named, *self.puller.ack([one.name for one in named]))

    def follow(self, *, pump: bool = True) -> None:
        """The puller acks one of what it has, with a message that follows."""
        if named := self.some():
            lease, key = named[0], self.rnd.choice(("", "a", "b"))
            message = Message(f"{key or '-'}{len(self.life.sent)}", "jobs/y", self.life.now, key=key)
            self.life.sent[message.id] = Sent(message, MessageId(0))
            record = Record(b"jobs/y", message.id.encode(), qos=1, ordering_key=key.encode())
            told = self.puller.follow(lease.name, Draft(0, record.topic, encode(record)), pump=pump)
            if not pump:
                self.followed.append((lease, message))
                self.ledger.settling.unsure(lease.stake, frozenset({DONE}))
                return
            self.ledger.leases.followed(lease, is_gone=told[0] is None)
            assert told[0], f"{lease.stake} is leased"
            self.ledger.accepted(message)
            self.life.look()
            self.sure()

    def hand_back(self) -> None:
        """The puller returns some of what it has in order, and once more what it had before."""
        if named := self.some() + self.rnd.sample(self.former, min(1, len(self.former))):
            for one in self.told("release", named, *self.puller.release([one.name for one in named])):
                self.ledger.settling.returned(self.place, one.stake)

    def extend(self) -> None:
        if named := self.some() + self.rnd.sample(self.former, min(1, len(self.former))):
            for one in self.told(
                "extend", named, *self.puller.extend([one.name for one in named], EXTENDED_MS)
            ):
                self.until[one.stake.message.id] = until_ms = self.life.now + EXTENDED_MS
                one.stake.may = frozenset({FLIGHT})
                self.ledger.settling.extended(one.stake, until_ms / 1_000)

    def hang_up(self) -> None:
        """The puller's client is gone, perhaps before it was answered."""
        if self.asked is None:
            self.asked = self.puller.ask(3, wait_ms=NEVER_MS, pump=False)
        for _ in range(self.rnd.randrange(8)):
            self.life.rig.micro()
        if self.asked is not None and self.asked.answer is None:
            for given in self.asked.call.given:
                stake = self.came(given.message.record.payload.decode(), "nobody")
                self.ledger.settling.returned(self.place, stake)
            self.life.rig.core.pull.abandon(self.asked.call)
            self.asked = None
        self.life.rig.pump()

    def leave(self) -> None:
        """A worker disconnects in order, or is lost, and is back."""
        n = self.rnd.randrange(WORKERS)
        peer, is_lost = self.peers[n], self.rnd.random() < 0.5
        peer.drop() if is_lost else peer.disconnect()
        self.packets = {key: one for key, one in self.packets.items() if one[0] is not peer}
        self.ledger.losses.left(self.place, orderly=not is_lost, by=str(n))
        self.life.take()
        self.peers[n] = self.member(n)

    def finish_late(self) -> None:
        stake = self.rnd.choice(self.stakes(UNDONE | {DEAD}) or [None])
        if stake is None:
            return
        told: list[object] = []
        if stake.message.id in self.leases:
            self.life.rig.core.pull.ack([self.lease(stake).name], told.append)
        else:
            sent = self.life.sent[stake.message.id]
            self.life.rig.core.events.finish(self.group, sent.place, sent.shard, told.append)
        self.packets.pop(stake.message.id, None)
        self.life.rig.pump()
        self.ledger.settling.finished(stake)
        assert len(told) == 1
        self.sure()

    # -- what people do

    def hold(self) -> None:
        key = self.rnd.choice("ab")
        self.ledger.turns.hold(self.place, key)
        self.decided(lambda commit, group: self.life.rig.core.holds.hold(commit, group, key.encode()))
        self.sure()

    def let_go(self, keys: Iterable[str] = "ab") -> None:
        for key in keys:
            self.ledger.turns.release(self.place, key)
            self.decided(partial(self.life.rig.core.holds.let_go, key=key.encode()))

    def steer(self, how: str) -> None:
        """Of what waits."""
        steering, now_ms, group = self.life.rig.core.kept_retries, self.life.now, self.group
        rows = [row for row in self.waiting() if row.root not in group.rows.out]
        waiting = [(self.place.stakes[payload_of(row)], row.name) for row in rows]
        waiting = [one for one in waiting if one[0].may == {WAITING} and not one[0].was_finished]
        if not waiting:
            return
        (stake, name), due_ms = self.rnd.choice(waiting), now_ms + self.rnd.choice((0, 3_000))
        if how == "try":
            done = self.decided(lambda commit, _: steering.try_(commit, name, due_ms, lambda *_: True))
            if done:
                self.ledger.settling.tried(stake, due_ms)
        elif how == "drop":
            if done := self.decided(lambda commit, _: steering.drop(commit, name, lambda *_: True)):
                self.ledger.settling.dropped(stake)
        elif done := self.decided(lambda commit, _: steering.bury(commit, name, lambda *_: True)):
            self.ledger.settling.buried(stake)
        assert done or self.ledger.fates.has_expired(stake, due_ms), f"{how} {stake}"

    def requeue(self, *, is_drop: bool = False) -> None:
        """A dead letter is tried again, or dropped."""
        letters, now_ms = self.life.rig.core.dead_letters, self.life.now
        rows = [
            (self.place.stakes[payload_of(row)], row.name)
            for row in self.rows(delivery_rows.dead(self.life.rig.store))
        ]
        if not rows:
            return
        stake, name = self.rnd.choice(rows)
        if is_drop:
            self.decided(lambda commit, _: letters.drop(commit, name, lambda *_: True))
            if not stake.may & {DONE, FLIGHT}:
                self.ledger.settling.dropped(stake)
        elif self.decided(lambda commit, _: letters.requeue(commit, name, now_ms, lambda *_: True)):
            is_over = stake.may <= {DEAD, DONE, DROPPED} or self.ledger.fates.has_expired(stake)
            assert is_over, f"{stake} is to come, and is requeued"
            self.ledger.settling.again(stake, now_ms, is_head=self.ledger.turns.holds(self.place, stake))

    def spot(self, at_ms: int) -> Position:
        return min(before(at_ms), self.life.rig.core.horizon.position)

    def replay(self, to_ms: int) -> None:
        to_ms = max(to_ms, self.place.since + 100)
        self.decided(lambda commit, one: self.life.rig.core.replay.rewind(commit, one, self.spot(to_ms)))
        self.sure()
        ending = [one for one in self.leased_on if one.may == UNDONE]
        for stake in ending:  # the server says that it is leased still
            stake.may = frozenset({FLIGHT})
        self.ledger.lives.set_back(self.place, to_ms, is_sure=True)
        for stake in ending:
            stake.may = UNDONE

    def skip(self, to_ms: int) -> None:
        is_dead = self.rnd.random() < 0.5
        self.ledger.lives.skipped(self.place, DEAD if is_dead else DROPPED, to_ms, is_sure=True)
        to, skip, key_order.LOOKED_MAX = self.spot(to_ms), self.life.rig.core.replay.skip, 1
        while self.decided(lambda commit, one: skip(commit, one, to, "skipped", is_dead=is_dead)):
            self.sure()
        self.look()
        self.lie()

    def lie(self) -> None:
        """Where the server has each message."""
        found, dead = where(self.life.rig.core, self.group)
        due_ms = {payload_of(row): at_of(row.at) for row in self.waiting()}
        for key in self.place.stakes.keys() | found.keys():
            stake = self.place.stakes.get(key)
            if stake is None or not self.ledger.fates.has_expired(stake):
                self.ledger.looks.lies(self.place, key, found.get(key, []), dead.get(key))
            if stake is not None and found.get(key) == ["waits"]:
                stake.not_before = stake.not_before or due_ms[key]  # a kill has made it unknown
            if key not in self.packets and self.is_leased(key) and self.until[key] <= self.life.now:
                self.place.stakes[key].may, self.place.stakes[key].lapses = UNDONE, None  # over at any time

    def delete(self) -> None:
        """The group ends with all that it has, and begins anew."""
        group, is_dead, rig = self.group, self.rnd.random() < 0.7, self.life.rig
        self.ledger.lives.closed(self.place, DEAD if is_dead else DROPPED)
        self.life.is_burying = True
        while not rig.decide(lambda commit: rig.core.groups.disband(commit, group, is_dead=is_dead))[0]:
            pass
        for peer in self.peers:
            peer.inbox.clear()
            peer.disconnect()
        self.life.pass_ms(1_000, but=self)
        self.life.is_burying = False
        assert not list(rows_under(rig.store, keys_name(group.whose))), "its keys go with it"
        assert not list(rig.store.scan(Table.ORDER, b"\3", b"\4")), "and are settled"
        assert rig.store.get(Table.ORDER, b"\0" + group.whose) is None
        named = group.session.client_id, group.incarnation
        assert not [row for row in delivery_rows.waiting(rig.store) if row.is_of(*named)]
        self.__init__(self.life, self.text)  # type: ignore[misc]
        self.join()

    # -- kills

    def strike(self) -> None:
        """What the server is killed in the middle of."""
        if self.rnd.random() < 0.5:
            self.follow(pump=False)
        for stake in self.rnd.sample(out := self.out, len(out) // 2):
            if not any(lease.stake is stake for lease, _ in self.followed):
                self.ack(stake, pump=False) if self.rnd.random() < 0.6 else self.nack(stake, pump=False)

    def follows(self, there: Set[str]) -> None:
        """After a kill. `there`: what is stored."""
        for lease, message in self.followed:
            self.ledger.leases.found(lease, is_there=message.id in there)
            if message.id in there:
                self.ledger.accepted(message)
        self.followed.clear()

    def killed(self) -> None:
        """What is leased still is, also what the puller has not heard of."""
        self.asked = None
        self.packets.clear()
        core, leases = self.life.rig.core, dict[str, LeaseId]()
        for flight in self.group.session.flights.values():
            message, found = (
                core.sent.message(self.group, flight),
                core.settling.leased(self.text, flight.number),
            )
            if found is not None:
                assert message is not None
                key = message.record.payload.decode()
                leases[key] = LeaseId(self.text, flight.number, *found[1].origin)
        self.away = {
            self.payload_of(lent): (member, lent)
            for member, theirs in self.group.lent.items()
            for lent in theirs.values()
            if member.session.client_id == AWAY
        }
        for key in self.away:
            stake = self.place.stakes[key]
            if key not in self.ending:
                self.until[key] = self.life.now + HELD_MS
            assert stake.may & UNDONE, f"{stake} is leased"
            stake.may, stake.is_returned = frozenset({FLIGHT}), False
            late = stake.late * (key in self.ending)
            self.ledger.settling.leased(stake, self.until[key] / 1_000)
            stake.late = late
        for key, stake in self.place.stakes.items():
            if key not in leases and key not in self.away and stake.may > {FLIGHT}:
                stake.may -= {FLIGHT}  # what had been said of its lease
        for key, lease in leases.items():
            if key not in self.leases or self.leases[key].name != lease:
                self.leased(key, lease, 0)
            else:
                self.ledger.settling.leased(self.place.stakes[key], self.until[key] / 1_000)
        self.lie()
        kept = [stake.may == {DONE} for stake in self.acked if len(stake.may) == 1]
        assert kept == sorted(kept, reverse=True), f"an ack before one that is kept is not: {self.acked}"
        self.sure()

    def payload_of(self, flight: Flight) -> str:
        message = self.life.rig.core.sent.message(self.group, flight)
        assert message is not None
        return message.record.payload.decode()

    # -- what is always true

    def check(self) -> None:
        group = self.group
        order = group.session.order
        assert order.is_on
        check(order)
        rig = self.life.rig
        assert rig.core.floor.needed <= order.firsts.needed, "no slice goes that is needed"
        if self.life.window > 50 and not self.life.is_draining:
            owed = self.ledger.turns.owed(self.place)
            assert not owed, f"{owed} may be given"
        if self.rnd.random() < 0.1:
            rig.core.cursors.persist(group, lambda _: None)
            rig.pump()
            self.sure()
            self.check_rows()

    def check_rows(self) -> None:
        group, store = self.group, self.life.rig.store
        order = group.session.order
        assert order.is_on
        read = group.session.read_at(self.life.rig.core.horizon.position)
        stored = dict(rows_under(store, keys_name(group.whose)))
        if order.past:
            return
        assert {key: replace(row, shard=0) for key, row in stored.items()} == {
            key: replace(row, shard=0) for key, row in rows_of(order)
        }
        for key, row in rows_of(order):
            assert not row.root or delivery_rows.stored(store, Name(group.whose, row.root)), (
                "it waits for something"
            )
            if row.next:
                found, _ = followers(store, group.whose, key, row.next, read, 10)
                known = sorted({(row.next, row.shard), *found} if row.shard >= 0 else set(found))
                assert order._keys[key].first in (None, *known[:1]), "and the index has the others"


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
        self.drains = random.Random(seed)
        self.rig = Nodes(self.rnd) if has_nodes else Rig()
        self.window = 2 if terms in ("fair", "rate") else 1_000
        self.ledger = Deliveries(self.now, grace=LAPSE_MS / 1_000, near=0)
        self.ledger.book.tell = _fails
        self.ledger.lapse(self.now / 1_000)  # so that it knows the time
        self.sent: dict[str, Sent] = {}
        self.dead: list[tuple[bytes, bytes]] = []
        """Rows of dead letters at the last look."""
        self.is_burying = False
        self.groups = [Group(self, text) for text in (ALL, SOME)]
        for group in self.groups:
            group.join()

    @property
    def now(self) -> int:
        return self.rig.clock.now_ms

    def watch(self) -> None:
        """Look at the clock."""
        if self.ledger.clock.low == self.now:
            return
        ahead = [one.message for one in self.sent.values() if self.ledger.messages.is_ahead(one.message)]
        self.ledger.arrived(self.now, ahead)
        self.ledger.lapse(self.now / 1_000)

    def look_at_letters(self) -> None:
        """If any has come or gone."""
        found = [
            *self.rig.store.scan(
                Table.DELIVERIES, keys.delivery(keys.DEAD, START), keys.delivery(keys.DEAD, END)
            )
        ]
        if found == self.dead or self.is_burying:
            return
        self.dead = found
        gone = {(group.text, key) for group in self.groups for key in group.read_again()}
        names = {group.group.session.client_id: group.text for group in self.groups}
        rows = [*delivery_rows.dead(self.rig.store)]
        letters = [(names[row.addressee], payload_of(row), row.reason) for row in rows]
        for group in self.groups:
            for key in {payload_of(row) for row in group.rows(rows)} - group.read_again():
                self.ledger.looks.shown(group.place, key, "dead")
        self.ledger.looks.dead_letters([one for one in letters if one[:2] not in gone])

    def pass_ms(self, by_ms: int, but: Group | None = None) -> None:
        for _ in range(0, by_ms, STEP_MS):
            self.rig.pass_ms(STEP_MS)
            self.take(but)

    def take(self, but: Group | None = None) -> None:
        for group in self.groups:
            if group is not but:
                group.take()

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
            due_ms, expires = self.now + 1_000 * delay, 1_000 * more.get("message_expiry", 0) or None
            message = Message(payload, topic, due_ms, expires=expires, key=key.strip("-"))
            self.sent[payload] = Sent(message, MessageId(0))
            self.ledger.accepted(message)
        self.look()
        publisher.disconnect()

    def look(self) -> None:
        """Where messages stand."""
        for place, shard, value in self.rig.core.reader.read(START, END, None):
            if not is_stub(value) and not is_moved(value):
                record = decode(value)
                sent = self.sent[record.payload.decode()]
                sent.place, sent.shard = place, shard
                sent.id = MessageId(record.id) or message_id(place, shard, 0)

    def change(self) -> None:
        """Cancel or move a message."""
        sent = self.rnd.choice([*self.sent.values()] or [None])
        if sent is None or sent.message.is_cancelled:
            return
        message, to_ms = sent.message, self.now + self.rnd.choice((0, 1_000, 4_000))
        is_ahead, is_move = self.ledger.messages.is_ahead(message), self.rnd.random() < 0.5
        (told,) = self.rig.decide(
            lambda commit: (commit.move(sent.id, to_ms) if is_move else commit.cancel(sent.id)).outcome
        )
        assert is_ahead or told is not Outcome.DONE, f"{message} has been dispatched"
        if told is not Outcome.DONE:
            self.ledger.not_cancelled(message, None)
            return
        self.ledger.moved(message, to_ms) if is_move else self.ledger.cancelled(message)
        self.look()

    # -- drains

    @property
    def is_draining(self) -> bool:
        return self.rig.core.groups.loans.drain.since_ms is not None

    def drain(self) -> None:
        """One begins or ends, when nothing moves."""
        drain = self.rig.core.groups.loans.drain
        drain.cancel() if self.is_draining else drain.begin(self.now)
        self.rig.pump()
        for group in self.groups:
            group.look()
        assert drain.out == sum(len(group.out) for group in self.groups)

    # -- faults

    def id_of(self, key: str) -> str:
        return id_text(self.sent[key].id)

    def kill(self) -> None:
        for group in self.groups:
            group.strike()
        for _ in range(self.rnd.randrange(8)):
            self.rig.micro()
        self.rig.crash(self.rnd.randrange(3))
        self.rig.pump()
        self.begin()
        self.take()

    def restart(self) -> None:
        """In order; another node may lead then."""
        self.rig.restart(self.rnd.choice((Closing.STOPPING, Closing.MOVED)))
        for group in self.groups:
            group.sure()
        self.begin(was_killed=False)

    def begin(self, *, was_killed: bool = True) -> None:
        """The server has started."""
        self.ledger.losses.restarted(self.now / 1_000, was_killed=was_killed)
        rows = self.rig.core.reader.read(START, END, None)
        there = {decode(value).payload.decode() for _, _, value in rows if not is_stub(value)}
        for group in self.groups:
            group.follows(there)
        self.look()
        for group in self.groups:
            group.killed()
        for group in self.groups:
            group.join()

    # -- all of it

    def act(self) -> None:
        # After a replay few keys are looked at with a cursor, or none: so much happens before they all are.
        key_order.LOOKED_MAX = self.pace.choice((0, 0, 0, 1))
        if self.drains.random() < (0.2 if self.is_draining else 0.04):
            self.drain()
        op, self.ledger.book.step = self.rnd.random(), self.ledger.book.step + 1
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
            self.rnd.choice(self.groups).act()
        self.take()
        for group in self.groups:
            group.check()

    def live(self) -> None:
        for _ in range(150):
            self.act()
        self.end()

    def end(self) -> None:
        """All is acked, each message as soon as it comes."""
        self.rig.core.groups.loans.drain.cancel()
        key_order.LOOKED_MAX = 1
        for turn in range(2_400):
            self.pass_ms(STEP_MS)
            for group in self.groups:
                for stake in group.out:
                    group.ack(stake)
                if turn % 6 == 5:
                    group.let_go("abc")
            self.take()
            if not self.is_left():
                break
        self.ledger.at_the_end()
        assert not self.is_left()

    def is_left(self) -> bool:
        return any(self.ledger.messages.is_ahead(sent.message) for sent in self.sent.values()) or any(
            stake.may & UNDONE and not self.ledger.fates.has_expired(stake)
            for group in self.groups
            for stake in group.stakes()
        )


@pytest.fixture(autouse=True)
def _pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives change it."""
    monkeypatch.setattr(key_order, "LOOKED_MAX", 1)
    monkeypatch.setattr(settling, "HELD_MS", HELD_MS)


def walks(seeds: Iterable[int], terms: str) -> None:
    for seed in seeds:
        Life(seed, terms).live()


@pytest.mark.long
@pytest.mark.parametrize("terms", TERMS)
def test_random_lives(terms: str) -> None:
    walks(range(LIVES), terms)


@pytest.mark.long
@pytest.mark.parametrize("terms", ["order", "hold", "limit"])
def test_a_node_that_leads_keeps_each_key(terms: str) -> None:
    """Order, holds and key rows, over failovers; and all nodes have the same rows."""
    took_over = 0
    for seed in range(LIVES if SOAK else 4):
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
