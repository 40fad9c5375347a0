"""A past of many small slices, one more of which is behind retention each second that the server runs.

Six messages to a slice: four that went out, one that was moved before it did, one that was cancelled. They
were dispatched before the server of the test was ever started, by one that is turned by hand; what a job then
says of them, and what a start finds, is noted here. Once a slice has expired it is gone; before, it is whole;
if nobody knows, because the server died under the job, it is one of the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from server.settings.times import parse_deliver_at
from shards.commit import Commit, Draft
from shards.fields import Record
from shards.record import encode
from shards.rocks import RocksStore
from tests.support.clock import HandClock
from tests.support.http import Http
from timeline.position import MessageId, id_text

from .hand import Hand

QUARTER_MS = 900_000
RETENTION_S = 86_400
TOPIC = "past/a"
CHUNK = 100
"""Slices that are filled ahead of the clock; far ahead they would be wider ones."""
WINDOW = 60
"""Slices that a start looks at: those that may just have gone, and the next ones."""


@dataclass
class Piece:
    """A slice of the past."""

    start_ms: int
    ids: dict[str, str] = field(default_factory=dict)
    """By payload."""
    cancelled: str = ""
    is_asked: bool = False
    """A job that drops it has been committed; an answer, if there was one, says whether it was done."""
    is_gone: bool = False


class Past:
    """What there was, and what of it has been dropped."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.jobs = 0
        """Answered commits."""
        self.checked = 0
        """Slices that a start was asked for."""

    def fill(self, data: Path, count: int, now_ms: int) -> None:
        """`count` slices that end a day before `now_ms`; the first is behind retention at once."""
        start_ms = now_ms - now_ms % QUARTER_MS - (count + 96) * QUARTER_MS
        clock = HandClock(start_ms - QUARTER_MS)
        store = RocksStore(data)
        hand = Hand(store, clock, reached=lambda point: None)
        for first in range(0, count, CHUNK):
            pieces = [Piece(start_ms + n * QUARTER_MS) for n in range(first, min(first + CHUNK, count))]
            self.pieces += pieces
            for piece in pieces:
                _put(hand, piece)
            for piece in pieces:
                clock.now_ms = piece.start_ms + QUARTER_MS + 1
                hand.stepper.rest(hand.stepper.round)
                hand.core.opened.open_batch.ran(1_000)
                hand.ask(lambda commit: _pass(hand, commit), lambda answer: None)
                hand.stepper.rest(hand.stepper.round)
        hand.core.opened.open_batch.ran((RETENTION_S - count + 1) * 1_000)
        hand.ask(lambda commit: None, lambda answer: None)
        hand.stepper.rest(hand.stepper.round)
        store.close()

    # -- what a job does

    def asked(self, starts_ms: set[int]) -> None:
        for piece in self.pieces:
            piece.is_asked = piece.is_asked or piece.start_ms in starts_ms

    def dropped(self, starts_ms: set[int]) -> None:
        self.jobs += 1
        for piece in self.pieces:
            piece.is_gone = piece.is_gone or piece.start_ms in starts_ms

    # -- what a start finds

    async def found(self, calls: Http, *, is_all: bool = False) -> list[str]:
        """What is wrong. Where nobody knew whether a slice had gone, it is known after that."""
        first = next((n for n, piece in enumerate(self.pieces) if not piece.is_gone), len(self.pieces))
        low = 0 if is_all else max(0, first - WINDOW // 3)
        looked = self.pieces[low:] if is_all else self.pieces[low : low + WINDOW]
        if not looked:
            return []
        span = f"due_from={looked[0].start_ms}&due_to={looked[-1].start_ms + QUARTER_MS}"
        rows = await calls.listed(f"state=all&topic=past/%23&{span}")
        there: dict[int, dict[str, str]] = {}
        for row in rows:
            if row["state"] != "moved":
                due_ms = parse_deliver_at(row["deliver_at"])
                there.setdefault(due_ms - due_ms % QUARTER_MS, {})[row["id"]] = row["state"]
        faults = [fault for piece in looked for fault in wrong(piece, there.get(piece.start_ms, {}))]
        last = next((piece for piece in reversed(looked) if piece.is_gone), None)
        if last is not None:
            for name in last.ids.values():
                answer = await calls.call("GET", f"/v1/messages/{name}")
                if answer.status != 404:
                    faults.append(f"expired wrongly: {name} of {last.start_ms} is {answer.body}")
        self.checked += len(looked)
        return faults

    def summary(self) -> str:
        gone = sum(piece.is_gone for piece in self.pieces)
        asked = sum(piece.is_asked for piece in self.pieces)
        return (
            f"{self.jobs} expire jobs committed, {gone} of {len(self.pieces)} slices expired "
            f"({asked} asked for), {self.checked} looked at after a start"
        )


def _put(hand: Hand, piece: Piece) -> None:
    number = piece.start_ms // QUARTER_MS
    tags = [f"past-{number}-{n}" for n in range(6)]
    dues = [piece.start_ms + 1_000 + n * 140_000 for n in range(6)]
    drafts = [_draft(tag, due_ms) for tag, due_ms in zip(tags, dues, strict=True)]
    names: list[MessageId] = []
    hand.ask(lambda commit: commit.put(drafts), names.extend, len(drafts))
    hand.stepper.rest(hand.stepper.round)
    hand.move(names[4], dues[4] + 500, lambda answer: None)
    hand.cancel(names[5], lambda answer: None)
    hand.stepper.rest(hand.stepper.round)
    piece.ids = dict(zip(tags, map(id_text, names), strict=True))
    piece.cancelled = piece.ids[tags[5]]


def _draft(tag: str, due_ms: int) -> Draft:
    key = tag.encode().rjust(16, b"\0")[-16:]
    record = Record(TOPIC.encode(), tag.encode(), due_ms, 1, key=key)
    return Draft(due_ms, record.topic, encode(record), key, key)


def _pass(hand: Hand, commit: Commit) -> None:
    for piece in hand.core.directory.passed(hand.core.horizon.position):
        commit.open_batch.passed(piece)


def wrong(piece: Piece, there: dict[str, str]) -> Iterator[str]:
    """`there`: what a start finds of it, state by id."""
    if piece.is_asked and not piece.is_gone:
        piece.is_gone = not there
    if piece.is_gone:
        if there:
            yield f"expired wrongly: {len(there)} messages of {piece.start_ms} are there"
        return
    for name in piece.ids.values():
        wanted = "cancelled" if name == piece.cancelled else "dispatched"
        if there.get(name) != wanted:
            yield f"expired wrongly: {name} of {piece.start_ms} is {there.get(name)}, not {wanted}"
