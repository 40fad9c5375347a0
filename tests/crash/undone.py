"""A group whose members fail, by hand on a real store, and what a kill has left of its messages.

The account of deliveries says where each message may be: still to be read, in flight, waiting to come again,
or dead; or somebody has said that it is done, and then in none or (the ack was not on disk) in one. What is
known to be durably done is in none.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from server.delivery.message import Message
from server.delivery.settling.lives import Outcome
from shards import delivery_rows
from shards.record import decode, is_stub
from shards.rocks import RocksStore
from tests.support.clock import HandClock
from tests.support.ledger import messages
from tests.support.ledger.deliveries import Deliveries
from tests.support.ledger.words import DEAD, DONE, FLIGHT
from timeline.position import END, MessageId, Position
from timeline.session import Subscription, Terms

from .hand import Hand
from .steps import START_MS
from .verified import verified

SHARE = "$share/pool/a"
ATTEMPTS = 3
TERMS = Terms(ack_timeout_ms=1_000, max_attempts=ATTEMPTS, backoff_ms=(500,))
JOBS = 8
LIVES_S = 12


class Given:
    """A delivery: the text, the row that was sent, the packet id."""

    def __init__(self, message: Message, packet_id: int) -> None:
        self.text = message.record.payload.decode()
        self.place, self.shard = message.position, message.shard
        self.packet_id = packet_id


def play(folder: Path, say: Callable[..., None]) -> None:
    """Acks, nacks, leases that lapse, late acks of what waits, is with another or is dead."""
    hand = Hand(RocksStore(folder / "data"), HandClock(START_MS), reached=lambda point: None)
    core = hand.core
    given: list[Given] = []

    def taken(message: Message, qos: int, packet_id: int, attempt: int) -> None:
        given.append(Given(message, packet_id))

    member = hand.connect("worker", taken)
    core.subscriptions.subscribe(member, Subscription(SHARE, 1, core.horizon.position, terms=TERMS), None)
    core.clients.store(member, lambda is_durable: say("joined"))
    hand.rest()
    texts = [f"m{n}" for n in range(JOBS)]
    say("put", texts)

    def are_put(ids: list[MessageId]) -> None:
        say("is put", texts)

    hand.put([("a", text, START_MS) for text in texts], are_put)
    hand.rest()
    late: list[Given] = []
    for second in range(LIVES_S):
        one: Given
        for one in given[:]:
            given.remove(one)
            kind = int(one.text[1:]) % 4
            if kind == 0 and second > 3:
                say("done", one.text)
                core.settling.ack(member, one.packet_id)
            elif kind == 1:
                core.settling.nack(member, one.packet_id, delay_ms=300, reason="no", done=_told(say, one))
            else:
                late.append(one)
        for one in late[second % 3 : second % 3 + 1]:
            late.remove(one)
            say("done", one.text)
            group = core.groups.get(SHARE)
            assert group is not None
            core.events.finish(group, one.place, one.shard, _told_late(say, one))
        for _ in range(4):
            hand.clock.now_ms += 250
            hand.round()
    hand.rest()
    hand.store.close()


def _told(say: Callable[..., None], one: Given) -> Callable[[Outcome], None]:
    def told(fate: Outcome) -> None:
        say("nacked", one.text, fate.name)

    return told


def _told_late(say: Callable[..., None], one: Given) -> Callable[[bool | None], None]:
    def told(was_left: bool | None) -> None:
        if was_left is not None:
            say("is done", one.text)

    return told


def check(folder: Path, said: list[list[Any]]) -> list[str]:
    account = Deliveries(START_MS)
    pool = account.lives.opened("group", "pool", "a", max_tries=ATTEMPTS)
    store = RocksStore(folder / "data")
    hand = Hand(store, HandClock(START_MS + 60_000), reached=lambda point: None)
    words: dict[str, set[str]] = {}
    for word, *rest in said:
        for text in (rest[0] if isinstance(rest[0], list) else rest[:1]) if rest else ():
            words.setdefault(word, set()).add(text)
    known = words.get("is put", set()) if ["joined"] in said else set()
    where = _places(hand)
    for text in sorted(known | set(where)):
        account.accepted(messages.Message(text, "a", START_MS, START_MS))
        stake = pool.stakes[text]
        if text in words.get("is done", set()):
            account.settling.finished(stake)
        else:
            may_be_nowhere = text in words.get("done", set()) or text not in known
            account.settling.unsure(stake, frozenset({FLIGHT, DEAD} | ({DONE} if may_be_nowhere else set())))
        account.looks.lies(pool, text, where.get(text, []))
    hand.rest()
    store.close()
    return [str(fault) for fault in account.faults] + verified(folder / "data")


def _places(hand: Hand) -> dict[str, list[str]]:
    """Where each message is for the group."""
    found: dict[str, list[str]] = {}
    group = hand.core.groups.get(SHARE)
    if group is None:
        return found
    for flight in group.session.flights.values():
        message = hand.core.sent.message(group, flight)
        if message is not None:
            found.setdefault(message.payload.decode(), []).append("in flight")
    read = group.session.read_at(hand.core.horizon.position)
    for place, _, value in hand.core.reader.read(Position(read + 1), END):
        record = decode(value)
        if not is_stub(value) and record.topic == b"a" and place not in group.session.finished:
            found.setdefault(record.payload.decode(), []).append("unread")
    for row in delivery_rows.waiting(hand.core.opened.store):
        if row.root not in group.rows.out:
            found.setdefault(decode(row.record).payload.decode(), []).append("waits")
    for row in hand.core.dead_letters.read():
        found.setdefault(decode(row.record).payload.decode(), []).append("dead")
    return found
