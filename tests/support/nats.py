"""Three NATS servers with JetStream on loopback, each a process with a directory of its own.

Ports are free ones, found before and kept over restarts. What is started is ended by its process id.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .ports import free_ports

BINARY = Path(sys.executable).parent / "nats-server"
CONF = """
server_name: {name}
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{monitor}"
max_payload: 1MB
jetstream {{ store_dir: "{folder}/js", sync_interval: always, max_mem: 64MB, max_file: 4GB }}
"""
CLUSTER = """
cluster {{ name: fasti, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


class Nats:
    """The servers, named n0, n1, n2; `count=1`: one alone, without a cluster."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.folder = folder
        self.names = [f"n{index}" for index in range(count)]
        self._ports = free_ports(3 * count)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for index, name in enumerate(self.names):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "conf").write_text(self._conf(index))

    def _conf(self, index: int) -> str:
        count, name = len(self.names), self.names[index]
        ports, monitors, routes = (self._ports[part * count :][:count] for part in range(3))
        text = CONF.format(
            name=name,
            port=ports[index],
            monitor=monitors[index],
            folder=self.folder / name,
        )
        if count > 1:
            others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
            text += CLUSTER.format(route=routes[index], routes=others)
        return text

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return "nats://" + ",".join(f"127.0.0.1:{port}" for port in self._ports[: len(self.names)])

    @property
    def missing(self) -> list[str]:
        """Those that do not run."""
        return [name for name in self.names if name not in self._running]

    @property
    def pids(self) -> dict[str, list[int]]:
        """Of those that run."""
        return {name: [process.pid] for name, process in self._running.items()}

    def start(self, name: str) -> None:
        with (self.folder / name / "log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [BINARY, "-c", self.folder / name / "conf"], stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self, *names: str) -> None:
        """SIGSTOP: it holds its connections and says nothing. Returns when it has come to its effect."""
        for name in names:
            os.kill(self._running[name].pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self._running[name].pid, os.WSTOPPED)

    def resume(self, *names: str) -> None:
        for name in names:
            os.kill(self._running[name].pid, signal.SIGCONT)

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def wait_ready(self, limit_s: float = 60) -> None:
        """Until every running server counts itself healthy: in the cluster, and up to date."""
        until = time.monotonic() + limit_s
        waiting = list(self._running)
        while waiting:
            waiting = [name for name in waiting if not self._is_healthy(name)]
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{waiting} not healthy: {(self.folder / waiting[0] / 'log').read_text()[-2_000:]}"
                )
            time.sleep(0.05)

    def leader(self, stream: str, limit_s: float = 60) -> str:
        """The server that leads this stream."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            for name in self._running:
                for account in self._ask(name, "/jsz?streams=true&accounts=true").get("account_details", ()):
                    for one in account.get("stream_detail", ()):
                        if one["name"] == stream and (one.get("cluster") or {}).get("leader"):
                            return str(one["cluster"]["leader"])
            time.sleep(0.05)
        raise TimeoutError(f"nobody leads {stream}")

    def api(self, verb: str, said: dict[str, Any]) -> dict[str, Any]:
        """What JetStream's API answers."""

        return self.publish(f"$JS.API.{verb}", json.dumps(said).encode())

    @property
    def streams(self) -> set[str]:
        return {*(self.api("STREAM.NAMES", {}).get("streams") or ())}

    def delete(self, *streams: str) -> None:
        """Delete streams, if they are there: each costs all servers processor time as long as it is."""
        for name in streams:
            self.api(f"STREAM.DELETE.{name}", {})

    def publish(self, subject: str, said: bytes) -> dict[str, Any]:
        """What a message is answered with."""

        async def asked() -> dict[str, Any]:
            import nats  # of the tests alone: `make cluster` does not install it

            client = await nats.connect(self.url.split(",")[0])
            try:
                answer = await client.request(subject, said, timeout=5)
            finally:
                await client.close()
            found: dict[str, Any] = json.loads(answer.data)
            return found

        return asyncio.run(asked())

    def _is_healthy(self, name: str) -> bool:
        try:
            return bool(self._ask(name, "/healthz").get("status") == "ok")
        except OSError:
            return False

    def _ask(self, name: str, path: str) -> dict[str, Any]:
        monitor = self._ports[len(self.names) + self.names.index(name)]
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}{path}", timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
        return found
