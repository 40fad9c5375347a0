"""kill -9 at named points of the write, dispatch and ack path, and loss of what was not synced.

A child (steps.py) ends itself at the point. Then its log is cut: not at all (the process died), to what had
been synced (the machine lost power), or somewhere between, in the middle of a record. Then a server is
started on what is left, at the same time or long after, and everything is delivered.

FASTI_SEED=n repeats a failure exactly; FASTI_SOAK=1 tries many more.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from server.delivery.message import Message
from shards.record import decode, is_stub
from shards.rocks import RocksStore
from shards.verify import verify_counts
from tests.support.clock import HandClock
from tests.support.server import run
from tests.support.soak import SOAK
from timeline.position import END, START, MessageId

from .hand import POINTS, Hand
from .ledger import Arrival, Inbox, Ledger, Letter
from .steps import SESSION, START_MS

RUNS = 30 if SOAK else 1
SEED = os.environ.get("FASTI_SEED")


@pytest.mark.parametrize("point", [*POINTS, "acked"])
def test_killed_at(tmp_path: Path, point: str) -> None:
    for number in range(RUNS):
        seed = int(SEED) if SEED else random.randrange(1 << 32)
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
        self.ledger = Ledger()
        self._inbox = self.ledger.inboxes.setdefault(SESSION, Inbox(SESSION))
        self._clock_ms = START_MS
        self._log = ("", 0)
        self._is_connected = False
        self._acks: list[tuple[Arrival, int]] = []
        self._moves: dict[str, list[int]] = {}
        """Dues asked for and not answered, by tag."""
        self._places: dict[str, tuple[int, str]] = {}
        """Due and row that were answered last, by tag."""
        self._composed = self._flushed = 0
        self._faults: list[str] = []

    def faults(self) -> list[str]:
        return self._faults + self.ledger.check()

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
        self._inbox.connection += 1

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

    def _on_composed(self) -> None:
        self._composed += 1

    def _on_flushed(self, name: str, size: int) -> None:
        self._log = (name, size)
        self._flushed = self._composed

    def _on_asked(self, request: str, wishes: list[tuple[str, str, int]]) -> None:
        for tag, topic, due_ms in wishes:
            self.ledger.letter(tag, topic, due_ms, request)

    def _on_accepted(self, pairs: list[tuple[str, str]]) -> None:
        for tag, name in pairs:
            letter = self.ledger.letters[tag]
            letter.id, letter.row, letter.is_acked = name, name, True
            self._places[tag] = (min(letter.dues), name)

    def _on_cancel(self, tag: str) -> None:
        self.ledger.letters[tag].is_cancel_asked = True

    def _on_cancelled(self, tag: str, outcome: str) -> None:
        letter = self.ledger.letters[tag]
        letter.is_cancelled = letter.is_cancelled or outcome == "done"
        letter.is_cancel_asked = letter.is_cancelled
        assert outcome in ("done", "already-dispatched"), outcome

    def _on_move(self, tag: str, due_ms: int) -> None:
        """Not answered yet: it may be at either, until it is."""
        letter = self.ledger.letters[tag]
        self._moves.setdefault(tag, []).append(due_ms)
        letter.dues.add(due_ms)
        letter.row = ""

    def _on_moved(self, tag: str, outcome: str, row: str) -> None:
        """Answers come in the order of the questions."""
        letter = self.ledger.letters[tag]
        due_ms = self._moves[tag].pop(0)
        if outcome == "done":
            self._places[tag] = (due_ms, row)
        else:
            assert outcome in ("already-dispatched", "cancelled"), outcome
        base, row = self._places[tag]
        letter.dues = {base, *self._moves[tag]}
        letter.row = "" if self._moves[tag] else row

    def _on_got(self, tag: str, due_ms: int, attempt: int) -> None:
        self.ledger.arrived(self._inbox, tag, self._clock_ms, due_ms, attempt)

    def _on_acked(self, tag: str) -> None:
        arrival = next(a for a in reversed(self._inbox.arrivals) if a.tag == tag)
        arrival.acked_ms = self._clock_ms
        self._acks.append((arrival, self._composed))

    # -- after

    def start(self, later_ms: int) -> None:
        """A start on what is left, and time passes until everything is out."""
        store = RocksStore(self._path)
        clock = HandClock(self._clock_ms + later_ms)
        hand = Hand(store, clock, reached=lambda point: None)
        self._check_whole(hand)
        if self._is_connected:
            assert hand.core.sessions.get(SESSION) is not None, "a session that was durable is gone"
        unacked: list[int] = []

        def taken(message: Message, qos: int, packet_id: int, attempt: int) -> None:
            record = message.record
            tag = record.payload.decode()
            arrival = self.ledger.arrived(self._inbox, tag, clock.now_ms, record.due_ms, attempt)
            arrival.acked_ms = clock.now_ms
            unacked.append(packet_id)

        if self._chance.random() < 0.5:
            self._cancel_some(hand)
        audit = hand.connect(SESSION, taken, "#")
        dues = sorted({due for letter in self.ledger.letters.values() for due in letter.dues})
        for now_ms in [clock.now_ms, *[due for due in dues if due > clock.now_ms]]:
            clock.now_ms = now_ms
            while True:
                hand.rest()
                if not unacked:
                    break
                for packet_id in unacked:
                    hand.ack(audit, packet_id)
                unacked.clear()
        faults = verify_counts(store, hand.core.directory)
        self._faults += [str(fault) for fault in faults]
        store.close()

    def _cancel_some(self, hand: Hand) -> None:
        """Nobody got a message whose cancel wins now, whoever asks and however late."""
        letters = [x for x in self.ledger.letters.values() if x.is_acked and not x.is_cancel_asked]
        for letter in self._chance.sample(letters, min(20, len(letters))):
            answers: list[Any] = []
            hand.cancel(MessageId(int(letter.id, 16)), answers.append)
            hand.round()
            letter.is_cancelled = letter.is_cancel_asked = answers[0].outcome.value == "done"

    def _check_whole(self, hand: Hand) -> None:
        rows = [(place, number, value) for place, number, value in hand.core.reader.read(START, END)]
        there = {decode(value).payload.decode() for _, _, value in rows if not is_stub(value)}
        requests: dict[str, list[Letter]] = {}
        for letter in self.ledger.letters.values():
            requests.setdefault(letter.request, []).append(letter)
        for request, letters in requests.items():
            sure = [letter for letter in letters if not letter.is_cancel_asked]
            found = sum(letter.tag in there for letter in sure)
            if found not in (0, len(sure)) or (not found and any(letter.is_acked for letter in sure)):
                self._faults.append(f"{found} of {len(sure)} of {request} are stored: {sure}")
        tags = [decode(value).payload for _, _, value in rows if not is_stub(value)]
        if len(tags) != len(set(tags)):
            self._faults.append("a message is stored twice")
