"""A child that works on a real store and ends itself by SIGKILL at the n-th passage of a named point.

    python -m tests.crash.steps DATA POINT NTH SEED

What it knows goes out as JSON lines as it happens, each in one write, so that nothing said is lost:

    ["clock", ms]  ["asked", request, [[tag, topic, due ms], ...]]  ["accepted", [[tag, id], ...]]
    ["cancel", tag]  ["cancelled", tag, outcome]  ["move", tag, due ms]  ["moved", tag, outcome, row id]
    ["got", tag, due ms, attempt]  ["acked", tag]  ["composed"]  ["flushed", log file, its bytes]

`composed` and `flushed` tell which acks must be on disk, and how much of the log.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from server.delivery.message import Message
from shards.rocks import RocksStore
from shards.store import Batch
from tests.support.clock import HandClock
from timeline.position import MessageId, id_text

from .hand import Hand

START_MS = 1_800_000_890_000
"""Ten seconds before a quarter of an hour ends: slices are crossed on the way."""
STEPS = 60
SESSION = "audit"


def say(*words: object) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


class Doomed:
    """Counts passages of the point."""

    def __init__(self, point: str, nth: int) -> None:
        self._point = point
        self._left = nth

    def reached(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


class WatchedStore(RocksStore):
    """Says what has become durable; its writes are watched."""

    doomed: Doomed

    def write(self, batch: Batch) -> None:
        self.doomed.reached("writing")
        say("composed")
        super().write(batch)
        self.doomed.reached("written")

    def flush(self) -> None:
        super().flush()
        log = newest_log(self.path)
        say("flushed", log.name, log.stat().st_size)


def newest_log(path: Path) -> Path:
    return max(path.glob("*.log"))


class Child:
    """Does a few dozen random things."""

    def __init__(self, path: Path, doomed: Doomed, seed: int) -> None:
        self._chance = random.Random(seed)
        self._doomed = doomed
        WatchedStore.doomed = Doomed("", 0)
        store = WatchedStore(path)
        say("flushed", newest_log(path).name, 0)
        store.doomed = doomed
        self._hand = Hand(store, HandClock(START_MS), reached=doomed.reached)
        self._tags = count(1)
        self._ids: dict[str, MessageId] = {}
        self._unacked: list[tuple[int, str]] = []

    def run(self) -> None:
        hand, chance = self._hand, self._chance
        audit = hand.connect(SESSION, self._taken, "#")
        say("connected")
        for _ in range(STEPS):
            for act in chance.sample([self._put, self._put, self._cancel, self._move], 2):
                act()
            hand.round()
            hand.clock.now_ms += chance.choice((0, 1, 5, 300, 1_200))
            say("clock", hand.clock.now_ms)
            hand.round()
            for packet_id, tag in chance.sample(self._unacked, len(self._unacked) * 2 // 3):
                self._unacked.remove((packet_id, tag))
                say("acked", tag)
                hand.ack(audit, packet_id)
                self._doomed.reached("acked")
        hand.store.close()

    def _taken(self, message: Message, qos: int, packet_id: int, attempt: int) -> None:
        tag = message.record.payload.decode()
        say("got", tag, message.record.due_ms, attempt)
        self._unacked.append((packet_id, tag))
        self._doomed.reached("handing on")

    def _put(self) -> None:
        wishes = []
        for _ in range(self._chance.randrange(1, 6)):
            due_ms = self._due()
            wishes.append((f"a/{self._chance.randrange(3)}", f"m{next(self._tags)}", due_ms))
        say("asked", f"r{next(self._tags)}", [[tag, topic, due] for topic, tag, due in wishes])

        def done(ids: list[MessageId]) -> None:
            pairs = [(tag, name) for (_, tag, _), name in zip(wishes, ids, strict=True)]
            say("accepted", [[tag, id_text(name)] for tag, name in pairs])
            self._ids.update(pairs)

        self._hand.put(wishes, done)

    def _cancel(self) -> None:
        if not self._ids:
            return
        tag = self._chance.choice(list(self._ids)[-20:])
        message = self._ids[tag]
        say("cancel", tag)

        def done(answer: Any) -> None:
            say("cancelled", tag, answer.outcome.value)

        self._hand.cancel(message, done)

    def _move(self) -> None:
        if not self._ids:
            return
        tag = self._chance.choice(list(self._ids)[-20:])
        message, due_ms = self._ids[tag], self._due()
        say("move", tag, due_ms)

        def done(answer: Any) -> None:
            say("moved", tag, answer.outcome.value, id_text(answer.row))

        self._hand.move(message, due_ms, done)

    def _due(self) -> int:
        """Late, at once, soon, in another slice, next month."""
        return self._hand.clock.now_ms + self._chance.choice(
            (-5_000, 0, 1, 40, 2_500, 9_000, 20_000, 1_000_000, 2_600_000_000)
        )


def main(arguments: Sequence[str]) -> int:
    path, point, nth, seed = arguments
    Child(Path(path), Doomed(point, int(nth)), int(seed)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
