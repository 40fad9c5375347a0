"""What every proof of overload stands on: a server process of small bounds, and what is counted of it.

    bounded    a running server, its settings, the sum of its bounds, and its memory while it ran
    Table      what was counted, a line each, told at the end of the run
    aside      a load in a process of its own, so that it does not hold up who measures

The sum is of the parts of `limits.memory`, with the bounds that the process was started with: RSS above it
is a bound that does not hold, or one that is in no part.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from server.settings.config import Config
from server.settings.memory import PARTS
from server.settings.reading import load
from tests.support.parted import parted
from tests.support.server import ServerProcess, environment, serving

MIB = 1 << 20

SMALL: Mapping[str, object] = {
    "limits.connections": 50,
    "limits.sessions": 50,
    "limits.subscriptions": 1_000,
    "limits.subscription_bytes": "1MiB",
    "limits.out_bytes": "64KiB",
    "limits.pool_bytes": "8MiB",
    "limits.queued": 5_000,
    "limits.queued_bytes": "4MiB",
    "limits.route_cache_bytes": "1MiB",
    "limits.schedules": 1_000,
    "limits.max_payload": "32KiB",
    "http.max_body": "1MiB",
    "http.connections": 200,
    "http.connections_per_address": 200,
    "http.buffered_bytes": "8MiB",
    "mqtt.maximum_packet_size": "64KiB",
    "mqtt.topic_alias_maximum": 0,
    "mqtt.receive_maximum": 100,
    "sessions.max_in_flight": 200,
    "slices.max": 1_000,
    "wheel.max_bytes": "4MiB",
    "wheel.max_entries": 20_000,
    "tail.max_bytes": "4MiB",
    "tail.max_entries": 20_000,
}
"""Bounds whose sum is so small that exceeding it would be seen."""

T = TypeVar("T")


def config_of(settings: Mapping[str, object]) -> Config:
    """As the process reads them."""
    environ = environment(settings)
    return parted(load(None, environ, {})[0], environ)


class Bounded:
    """A running server of small bounds. Its memory is read from /proc."""

    def __init__(self, server: ServerProcess, settings: Mapping[str, object]) -> None:
        self.server = server
        self.config = config_of(settings)
        self.sum_bytes = sum(self.line(part.name) for part in PARTS)
        self.at_start_bytes = server.rss_bytes()

    def line(self, name: str) -> int:
        """Bytes of a part of `limits.memory`, as what bounds it is set."""
        (part,) = (one for one in PARTS if one.name == name)
        return (
            max((unit.each * self._bound(key) for key, unit in part.bounds.items()), default=0)
            or MIB * part.least
        )

    def _bound(self, key: str) -> int:
        section, _, attribute = key.partition(".")
        found: int = getattr(getattr(self.config, section), attribute)
        return found

    def check(self, table: "Table") -> None:
        """The peak is within the sum."""
        peak = self.server.peak_bytes()
        table.add("sum of the bounds", f"{self.sum_bytes / MIB:.0f} MiB")
        table.add("RSS at the start", f"{self.at_start_bytes / MIB:.0f} MiB")
        table.add("RSS at most", f"{peak / MIB:.0f} MiB")
        assert peak <= self.sum_bytes, f"{table}\n{self.server.output[-2_000:]}"


@asynccontextmanager
async def bounded(
    data: Path, settings: Mapping[str, object], *, program: Sequence[str] = ("server",)
) -> AsyncIterator[Bounded]:
    """A ready server with `SMALL` and what else is given."""
    together = {**SMALL, **settings}
    async with serving(data, settings=together, program=program) as server:
        yield Bounded(server, together)
        assert server.process.poll() is None, server.output
        assert "Traceback" not in server.output, server.output


class Table:
    """What was counted: names and values, in lines below heads. It is what the test has `counted`."""

    def __init__(self, noted: list[tuple[str, object]]) -> None:
        self._noted = noted
        self._lines: list[tuple[str, str | None]] = []

    def head(self, text: str) -> None:
        self._lines.append((text, None))

    def add(self, name: str, value: object) -> None:
        self._lines.append((name, f"{value:,}" if isinstance(value, int) else str(value)))
        self._noted[:] = [*(one for one in self._noted if one[0] != "counted"), ("counted", str(self))]

    def __str__(self) -> str:
        width = max((len(name) for name, value in self._lines if value is not None), default=0)
        return "\n".join(
            name if value is None else f"  {name:<{width}}  {value}" for name, value in self._lines
        )


async def aside(work: Callable[..., T], *arguments: object) -> T:
    """`work` in a process of its own, where the loop goes on meanwhile; its result. Both can be pickled."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return await loop.run_in_executor(pool, work, *arguments)
