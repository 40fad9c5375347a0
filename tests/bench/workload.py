"""Messages to schedule, made before the clock is started.

The payload of a message is text that hardly compresses (base64 of chance, by a quarter at most); where sizes
on disk are asked about, bytes of chance, which do not at all, and a small JSON document as well. Pieces of
one long such text will do: two of them seldom meet in one block of a file. The same bodies sent over and
over would not: equal messages become neighbours.
"""

import base64
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from .http import post

NDJSON = "application/x-ndjson"
DAY_MS = 86_400_000
BATCH = 1_000
POOL_BYTES = 1 << 20


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def payload(size: int) -> str:
    """`size` characters that JSON does not escape."""
    return base64.b64encode(os.urandom(size)).decode()[:size]


def instant(ms: int) -> str:
    """RFC 3339."""
    second, rest = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


def item(topic: str, text: str, due_ms: int = 0, more: str = "") -> bytes:
    """One message request; without a due it is due at once. A text that is a JSON object goes as one.

    `more`: further fields, each with a comma before it.
    """
    due = f',"deliver_at":"{instant(due_ms)}"' if due_ms else ""
    quoted = text if text.startswith("{") else f'"{text}"'
    return f'{{"topic":"{topic}","payload":{quoted}{due}{more}}}'.encode()


def bytes_item(topic: str, text: str, due_ms: int = 0) -> bytes:
    """The same with as many bytes of chance for the text, which has but six bits in each of its own."""
    chance = base64.b64encode(os.urandom(len(text))).decode()
    return item(topic, chance, due_ms, ',"encoding":"base64"')


class Draft(NamedTuple):
    """A message to come, in nobody's words."""

    topic: str
    text: str
    due_ms: int


def drafts(count: int, size: int, seed: int = 1, topics: int = 1_000) -> list[Draft]:
    """Payloads of `size` B on so many topics, due at random over the next 30 days."""
    chance = random.Random(seed)
    start = now_ms() + 3_600_000
    pool = payload(POOL_BYTES)
    found = []
    for _ in range(count):
        at = chance.randrange(POOL_BYTES - size)
        due_ms = start + chance.randrange(30 * DAY_MS)
        found.append(Draft(f"bench/orders/{chance.randrange(topics)}", pool[at : at + size], due_ms))
    return found


NAMES = ("Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Ken", "Leslie", "Margaret")


def documents(count: int, size: int, seed: int = 1) -> list[Draft]:
    """The same with small JSON documents of about `size` B: keys that repeat, values that do partly."""
    chance = random.Random(seed)
    return [draft._replace(text=_document(chance, size)) for draft in drafts(count, 0, seed)]


def _document(chance: random.Random, size: int) -> str:
    text = (
        f'{{"order":"{chance.getrandbits(64):016x}","customer":{chance.randrange(100_000)},'
        f'"name":"{chance.choice(NAMES)} {chance.choice(NAMES)}","kind":"reminder","channel":"email",'
        f'"amount":{chance.randrange(100, 99_999) / 100},"currency":"EUR","attempt":{chance.randrange(4)}'
    )
    return f'{text},"note":"{"".join(chance.choices("aeinrst ", k=max(0, size - len(text) - 11)))}"}}'


def next_month(count: int, size: int, seed: int = 1, topics: int = 1_000) -> list[bytes]:
    """The same as message requests."""
    return [item(*draft) for draft in drafts(count, size, seed, topics)]


def cut(pieces: Sequence[bytes], size: int = BATCH, between: bytes = b"") -> list[bytes]:
    """They, `size` at a time."""
    return [between.join(pieces[at : at + size]) for at in range(0, len(pieces), size)]


def bodies(items: Sequence[bytes], batch: int = BATCH) -> list[bytes]:
    """NDJSON bodies of `batch` items each."""
    return [body + b"\n" for body in cut(items, batch, b"\n")]


def batches(items: Sequence[bytes], batch: int = BATCH) -> list[bytes]:
    """The items as requests to `:batch`, of `batch` items each."""
    return [post("/v1/messages:batch", body, NDJSON) for body in bodies(items, batch)]
