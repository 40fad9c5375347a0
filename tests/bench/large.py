"""What one machine holds: `python -m tests.bench.large` loads a hundred million messages.

JSON documents of some 200 B, to 1,000 topics, due at random over the next 30 days, in batches of 10,000, four
at a time. After 1, 10 and 100 million the server is killed with -9 and started again. The table says:

    load     seconds for those that came since the row before, and messages a second
    cpu      processor time of the server for each of them, us
    disk     the data directory, GiB
    rss      resident memory above that of the empty server, MiB: at the last answer, and 10 s later
    ready    from the start of the process after the kill to a /readyz of 200, s
    single   a POST of one message, ms: the median of 200, and the longest
    get      a message by its id, ms, likewise, of ids of all that was loaded
    month    density of 30 days by hour, ms: the median of 5

It takes 27 minutes and 8 GiB of disk. `--folder` says where; `--up-to` ends earlier.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from .exchange import Lines
from .http import answer_end, ask, get, post, ready
from .process import Server
from .workload import NDJSON, documents, instant

STEPS = (1_000_000, 10_000_000, 100_000_000)
BATCH = 10_000
IN_FLIGHT = 4
PIECE = 5_000_000
"""Messages over the same connections, which have ten minutes for them."""
SIZE = 200
POOL = 100_000
"""Documents that are made once: a store compresses some 16 KiB at a time, in which none comes twice."""
MONTH_S = 30 * 86_400
SETTLE_S = 10.0
MIB, GIB = 1 << 20, 1 << 30
HEAD = ("messages", "load", "cpu", "disk", "rss", "ready", "single", "get", "month")


class Ids:
    """Some ids of each batch, from its answer."""

    def __init__(self) -> None:
        self.some: list[str] = []
        self._chance = random.Random(2)

    def end(self, data: bytes) -> int:
        """As `exchange.End`. Raises ValueError for an answer that is not 201."""
        end = answer_end(data)
        if 0 < end <= len(data):
            if data[9:12] != b"201":
                raise ValueError(data[:300])
            if self._chance.random() < 0.1:
                self.some.append(json.loads(data[data.index(b"\r\n\r\n") :])["ids"][0])
        return end


def requests(count: int, seed: int) -> Iterator[bytes]:
    """So many messages, in batches; made as they are sent."""
    chance = random.Random(seed)
    pool = [draft.text for draft in documents(POOL, SIZE)]
    choose, number = chance.choice, chance.random
    for _ in range(count // BATCH):
        lines = [
            f'{{"topic":"bench/orders/{int(number() * 1_000)}","payload":{choose(pool)},'
            f'"deliver_in":{3_600 + number() * MONTH_S:.3f}}}'
            for _ in range(BATCH)
        ]
        yield post("/v1/messages:batch", "\n".join(lines).encode(), NDJSON)


async def took_ms(count: int, request: Callable[[int], bytes], server: Server) -> list[float]:
    """How long each of so many calls takes, one after the other."""
    found = []
    for number in range(count):
        began = time.perf_counter()
        await ask(server.http, request(number))
        found.append((time.perf_counter() - began) * 1e3)
    return found


def next_month() -> str:
    """Density of the next 30 days, by hour, from the full hour."""
    hour_ms = int(time.time()) // 3_600 * 3_600_000
    first, last = (instant(hour_ms + days * 86_400_000) for days in (0, 30))
    return f"/v1/timeline/density?from={first}&to={last}&bucket=PT1H"


def one_of(found: list[float]) -> str:
    return f"{median(found):.1f} {max(found):.0f}"


async def run(steps: Sequence[int], folder: Path) -> None:
    data, ids, loaded = folder / "data", Ids(), 0
    server = Server(data, {"spark__enabled": "false"})
    try:
        await ready(server)
        await asyncio.sleep(SETTLE_S)
        empty = server.rss_bytes()
        print("  ".join(f"{name:>14}" for name in HEAD), flush=True)
        for step in steps:
            cpu_s, began = server.cpu_s(), time.perf_counter()
            for first in range(loaded, step, PIECE):
                lines = await Lines.open(server.http, IN_FLIGHT, ids.end)
                await lines.send_all(requests(min(PIECE, step - first), first))
                lines.close()
            load_s, cpu_s = time.perf_counter() - began, server.cpu_s() - cpu_s
            at_once = server.rss_bytes() - empty
            await asyncio.sleep(SETTLE_S)
            later = server.rss_bytes() - empty
            server.kill()
            server = Server(data, {"spark__enabled": "false"})
            ready_s = await ready(server)
            disk = server.data_bytes()
            chosen = random.Random(3).choices(ids.some, k=200)
            one = post("/v1/messages", b'{"topic":"bench/one","payload":1,"deliver_in":"20d"}')
            singles = await took_ms(200, lambda _, one=one: one, server)
            gets = await took_ms(200, lambda n, c=chosen: get(f"/v1/messages/{c[n]}"), server)
            month = await took_ms(5, lambda _: get(next_month()), server)
            count, loaded = step - loaded, step
            cells = (
                f"{loaded:,}",
                f"{load_s:.0f} {count / load_s:,.0f}",
                f"{cpu_s / count * 1e6:.1f}",
                f"{disk / GIB:.2f}",
                f"{at_once / MIB:.0f} {later / MIB:.0f}",
                f"{ready_s:.2f}",
                one_of(singles),
                one_of(gets),
                f"{median(month):.0f}",
            )
            print("  ".join(f"{cell:>14}" for cell in cells), flush=True)
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.large", description="load up to a hundred million messages"
    )
    parser.add_argument("--up-to", type=int, default=STEPS[-1], metavar="N", help="messages to end with")
    parser.add_argument("--folder", type=Path, help="where the data directory is made")
    wanted = parser.parse_args(arguments)
    steps = [step for step in STEPS if step < wanted.up_to] + [wanted.up_to]
    with tempfile.TemporaryDirectory(prefix="fasti-large-", dir=wanted.folder) as folder:
        asyncio.run(run(steps, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
