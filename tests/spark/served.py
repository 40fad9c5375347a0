"""A real server for the Spark tests, asked by the pipeline's own `Remote`."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark.remote import Remote
from tests.support.server import ServerProcess

SETTINGS = {
    "shards.cap_messages": 40,
    "slices.split_above": 100,
    "slices.retention": "1d",
    "slices.expire_by": "job",
    "spark.enabled": "off",
}


class Served:
    """A running server and what is known of it."""

    def __init__(self, data: Path, *arguments: str, settings: Mapping[str, object] = {}) -> None:
        self._start = (data, *arguments)
        self._settings = {**SETTINGS, **settings}
        self.data = data
        self.restart()

    def restart(self) -> None:
        """Start it; the second time after a kill -9."""
        data, *arguments = self._start
        self.process = ServerProcess(data, *arguments, settings=self._settings)
        self.process.wait_ready()
        self.url = self.process.url
        self.remote = Remote(self.url)

    def kill(self) -> None:
        self.process.kill()

    def put(self, items: list[dict[str, Any]]) -> list[str]:
        found: list[str] = self.remote.call("POST", "/v1/messages:batch", items)["ids"]
        return found

    def payloads(self, state: str = "pending") -> list[str]:
        """Of every message, in order."""
        found: list[str] = []
        cursor = ""
        while True:
            page = self.remote.call("GET", f"/v1/messages?limit=1000&state={state}{cursor}")
            found += [message["payload"] for message in page["messages"]]
            if not page["next"]:
                return found
            cursor = f"&cursor={page['next']}"

    def slices(self) -> list[dict[str, Any]]:
        return list(self.remote.slices())

    def state(self, job: str) -> str:
        return str(self.remote.call("GET", f"/v1/jobs/{job}")["state"])


@contextmanager
def served(data: Path, *arguments: str, settings: Mapping[str, object] = {}) -> Iterator[Served]:
    server = Served(data, *arguments, settings=settings)
    try:
        yield server
    finally:
        server.kill()


SLICE_S = 6 * 3_600
EDGE_S = (time.time() // SLICE_S + 1) * SLICE_S + 60
"""Just behind the edge of a slice: five hours of messages fit, at whatever time of day this runs."""


def far(count: int, days: int = 30, step_s: int = 60) -> list[dict[str, Any]]:
    """Messages in one slice, `m0`, `m1`, ..., in the order of their dues; the same dues at each call."""
    first_s = days * 86_400 + EDGE_S - time.time()
    return [
        {"topic": f"t/{n % 3}/x", "payload": f"m{n}", "deliver_in": first_s + n * step_s}
        for n in range(count)
    ]
