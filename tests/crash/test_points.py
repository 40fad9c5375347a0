"""kill -9 at named points of the write, dispatch and ack path, and loss of what was not synced.

A child (steps.py) ends itself at the point. Then its log is cut: not at all (the process died), to what had
been synced (the machine lost power), or somewhere between, in the middle of a record. Then a server is
started on what is left, at the same time or long after, and everything is delivered.

FASTI_SEED=n repeats a failure exactly; FASTI_SOAK=1 tries many more.
"""

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shards.record import decode, is_stub
from shards.rocks import RocksStore
from shards.verify import verify_counts
from tests.support.clock import HandClock
from tests.support.ledger.arrivals import Arrival, Arrivals
from tests.support.ledger.messages import Message
from tests.support.server import run
from tests.support.soak import SOAK, first_seed
from timeline.position import END, START

from .hand import POINTS, Audit, Hand
from .steps import SESSION, START_MS

pytestmark = pytest.mark.short

RUNS = 30 if SOAK else 1


@pytest.mark.parametrize("point", [*POINTS, "acked"])
def test_killed_at(tmp_path: Path, point: str) -> None:
    for number in range(RUNS):
        seed = first_seed()
        print(f"FASTI_SEED={seed}")
        chance = random.Random(f"{seed} {point}")
        after = After(tmp_path / f"data{number}", chance)
        after.child(point, chance.choice((1, 2, 5, 9, 17, 30, 45)), seed)
        after.cut(chance.choice(("kept", "synced", "torn")))
        after.start(chance.choice((0, 0, 1, 700, 5_000, 86_400_000, 90 * 86_400_000)))
        assert not after.faults(), f"FASTI_SEED={seed}: {after.faults()[:5]}"


class After:
    """What the child said, and a server on what it left."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self._path = path
        self._chance = chance
        self.account = Arrivals()
        self.messages = self.account.messages
        self._audit = Audit(self.account, SESSION)
        self._inbox = self._audit.inbox
        self._clock_ms = START_MS
        self._log = ("", 0)
        self._is_connected = False
        self._acks: list[tuple[Arrival, int]] = []
        self._moves: dict[str, list[int]] = {}
        """Dues asked for and not answered, by tag."""
        self._composed = self._flushed = 0

    def faults(self) -> list[str]:
        return [str(fault) for fault in self.account.check()]

    # -- before

    def child(self, point: str, nth: int, seed: int) -> None:
        done = run(str(self._path), point, str(nth), str(seed), module="tests.crash.steps")
        assert done.returncode == -9, f"{point} was not reached {nth} times: {done.stderr}"
        self.heard([json.loads(line) for line in done.stdout.splitlines()])

    def heard(self, said: list[list[Any]]) -> None:
        """What the child said before its end."""
        for words in said:
            self._said(*words)
        for arrival, composed in self._acks:
            # Acked before a group was composed that has been synced: that group has the cursor.
            arrival.is_ack_read = composed < self._flushed

    def cut(self, how: str) -> None:
        name, synced = self._log
        log = max(self._path.glob("*.log"))
        size = log.stat().st_size
        if how != "kept" and log.name == name and synced < size:
            os.truncate(log, synced if how == "synced" else self._chance.randrange(synced, size))

    def _said(self, word: str, *rest: Any) -> None:
        getattr(self, f"_on_{word}")(*rest)

    def _on_connected(self) -> None:
        self._is_connected = True

    def _on_clock(self, now_ms: int) -> None:
        self._clock_ms = now_ms
        self.messages.clock.shows(now_ms)

    def _on_composed(self) -> None:
        self._composed += 1

    def _on_flushed(self, name: str, size: int) -> None:
        self._log = (name, size)
        self._flushed = self._composed

    def _on_asked(self, request: str, wishes: list[tuple[str, str, int]]) -> None:
        for tag, topic, due_ms in wishes:
            self.messages.ask(tag, topic, due_ms, request)

    def _on_accepted(self, pairs: list[tuple[str, str]]) -> None:
        for tag, name in pairs:
            self.messages.accepted(self.messages.by_tag[tag], name)

    def _on_cancel(self, tag: str) -> None:
        self.messages.by_tag[tag].is_cancel_asked = True

    def _on_cancelled(self, tag: str, outcome: str) -> None:
        self._decided(self.messages.by_tag[tag], outcome)

    def _decided(self, message: Message, outcome: str) -> None:
        assert outcome in ("done", "already-dispatched"), outcome
        (self.messages.cancelled if outcome == "done" else self.messages.not_cancelled)(message)

    def _on_move(self, tag: str, due_ms: int) -> None:
        self._moves.setdefault(tag, []).append(due_ms)
        self.messages.wish(self.messages.by_tag[tag], due_ms)

    def _on_moved(self, tag: str, outcome: str, row: str) -> None:
        """Answers come in the order of the questions."""
        message, due_ms = self.messages.by_tag[tag], self._moves[tag].pop(0)
        if outcome == "done":
            self.messages.moved(message, due_ms, row)
        else:
            assert outcome in ("already-dispatched", "cancelled"), outcome
            self.messages.not_moved(message, due_ms)

    def _on_got(self, tag: str, due_ms: int, attempt: int) -> None:
        self.account.arrived(self._inbox, tag, self._clock_ms, due_ms, attempt)

    def _on_acked(self, tag: str) -> None:
        arrival = next(a for a in reversed(self._inbox.arrivals) if a.tag == tag)
        self.account.acked(self._inbox, arrival, self._clock_ms)
        self._acks.append((arrival, self._composed))

    # -- after

    def start(self, later_ms: int) -> None:
        """A start on what is left, and time passes until everything is out."""
        store = RocksStore(self._path)
        clock = HandClock(self._clock_ms + later_ms)
        self.messages.clock.shows(clock.now_ms)
        hand = Hand(store, clock, reached=lambda point: None)
        self._check_whole(hand)
        if self._is_connected:
            assert hand.core.sessions.get(SESSION) is not None, "a session that was durable is gone"
        self._audit.hand = hand
        if self._chance.random() < 0.5:
            sure = [message for message in self.messages.by_tag.values() if message.is_sure]
            for message in self._chance.sample(sure, min(20, len(sure))):
                self._audit.cancel(message)
        self._audit.connect("#")
        dues = sorted({due for message in self.messages.by_tag.values() for due in message.dues})
        for now_ms in [clock.now_ms, *[due for due in dues if due > clock.now_ms]]:
            clock.now_ms = now_ms
            self._audit.rest()
        self.account.book.heard(f"not verified: {one}" for one in verify_counts(store, hand.core.directory))
        store.close()

    def _check_whole(self, hand: Hand) -> None:
        rows = [
            decode(value).payload for _, _, value in hand.core.reader.read(START, END) if not is_stub(value)
        ]
        self.messages.stored(Counter(payload.decode() for payload in rows), self.messages.by_tag.values())
