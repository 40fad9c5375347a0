"""Messages to schedule, made before the clock is started.

The payload of a message is text that does not compress (base64 of chance), so that sizes on disk are honest.
Pieces of one long such text will do: two of them seldom meet in one block of a file. The same bodies sent
over and over would not: equal messages become neighbours.
"""

import base64
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime

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


def item(topic: str, text: str, due_ms: int = 0) -> bytes:
    """One message request; without a due it is due at once."""
    due = f',"deliver_at":"{instant(due_ms)}"' if due_ms else ""
    return f'{{"topic":"{topic}","payload":"{text}"{due}}}'.encode()


def next_month(count: int, size: int, seed: int = 1) -> list[bytes]:
    """Requests of `size` B payloads on a thousand topics, due at random over the next 30 days."""
    chance = random.Random(seed)
    start = now_ms() + 3_600_000
    pool = payload(POOL_BYTES)
    items = []
    for _ in range(count):
        at = chance.randrange(POOL_BYTES - size)
        due_ms = start + chance.randrange(30 * DAY_MS)
        items.append(item(f"bench/orders/{chance.randrange(1000)}", pool[at : at + size], due_ms))
    return items


def bodies(items: Sequence[bytes], batch: int = BATCH) -> list[bytes]:
    """NDJSON bodies of `batch` items each."""
    return [b"\n".join(items[at : at + batch]) + b"\n" for at in range(0, len(items), batch)]


def batches(items: Sequence[bytes]) -> list[bytes]:
    """The items as requests to `:batch`."""
    return [post("/v1/messages:batch", body, NDJSON) for body in bodies(items)]
