"""Nodes of a cluster on loopback, each a process, and the log they share, real too.

    Cluster      the nodes, on a log that is there; each reaches it by ways of its own, which can be cut
    Machines     three servers of NATS and a Cluster on them

Ports are kept over restarts, so that clients and nodes find each other again. What is started is ended by
its process id. Everything here blocks.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise, zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shards.log.opening import open_log
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.store import Table

from .forked import Forked, can_fork
from .nats import Nats
from .ports import free_ports
from .proxy import Network
from .server import ROOT, environment

KEY = "the key of a cluster that is a test"
NAMES = ("a", "b", "c")
STOP_S = 30.0
READY_S = 40.0
PAUSE_S = 0.03
_END = b"\xff" * 64


class Node:
    """One node: its directory, its ports, and its process while it runs."""

    def __init__(self, name: str, folder: Path, ports: Sequence[int], settings: Mapping[str, object]) -> None:
        self.name = name
        self.data = folder / name
        self.log = folder / f"{name}.log"
        self.http, self.mqtt = ("127.0.0.1", ports[0]), ("127.0.0.1", ports[1])
        self.settings = settings
        self.environ: dict[str, str] = {}
        """Of its process, beside the settings."""
        self.root = ROOT
        """The tree of its program; the tests' own, or another version's."""
        self.module = "server.__main__"
        """Whose `main` runs, of the tests' own tree."""
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._is_stopped = False

    @property
    def url(self) -> str:
        return f"http://{self.http[0]}:{self.http[1]}"

    @property
    def pid(self) -> int:
        """Of one that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """By itself."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        assert self._process is None, f"node {self.name} has ended by itself, or runs"
        where = [f"{host}:{port}" for host, port in (self.http, self.mqtt)]
        given = ["--data", str(self.data), "--http", where[0], "--mqtt", where[1]]
        env = {**environment(self.settings), **self.environ}
        if self.root == ROOT and can_fork(env):
            # A node does not drain: its followers have everything, and a leader hands over at once.
            self._process = Forked([*given, "--drain", "1h"], ROOT, env, self.log, self.module)
            return
        env["PYTHONPATH"] = str(self.root)
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "server", *given],
                cwd=self.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
        self._process, self._is_stopped = None, False

    def terminate(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_S)
        self._process = None
        return code

    def stop(self) -> None:
        """SIGSTOP: it holds its connections and says nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        self._is_stopped = True

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
        self._is_stopped = False

    @property
    def answers(self) -> bool:
        """Whether it can."""
        return self.is_running and not self._is_stopped

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def status(self) -> dict[str, Any] | None:
        """What it says of the cluster; None if it says nothing."""
        if not self.answers:
            return None
        try:
            with urllib.request.urlopen(f"{self.url}/v1/cluster", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, urllib.error.URLError, json.JSONDecodeError):
            return None
        return found

    def is_ready(self) -> bool:
        """Whether it serves clients now."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Cluster:
    """Nodes a, b, c on the log at `log_url`, under `name`."""

    def __init__(
        self,
        folder: Path,
        log_url: str,
        *,
        name: str = "fasti",
        ports: Sequence[int] = (),
        settings: Mapping[str, object] | None = None,
        is_cuttable: bool = True,
    ) -> None:
        """`settings`: of every node. `ports`: of HTTP and MQTT of each, free ones if nothing is said.

        `is_cuttable`: they reach the log through proxies.
        """
        self.log_url, self.name = log_url, name
        folder.mkdir(parents=True, exist_ok=True)
        ports = ports or free_ports(2 * len(NAMES))
        self._network = Network() if is_cuttable else None
        self._ending = ExitStack()
        if self._network is not None:
            self._ending.enter_context(self._network)
        self.nodes: dict[str, Node] = {}
        for index, node in enumerate(NAMES):
            own: dict[str, object] = {
                "cluster.log": self._way(node),
                "cluster.name": name,
                "cluster.node": node,
                "cluster.key": KEY,
                "cluster.peers": json.dumps([f"http://127.0.0.1:{port}" for port in ports[::2]]),
                **(settings or {}),
            }
            self.nodes[node] = Node(node, folder, ports[2 * index :][:2], own)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self._ending.close()

    # -- who is there

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.answers]

    def start(self, *names: str) -> None:
        """Those that do not run, all if none is named."""
        for name in names or NAMES:
            if not self.nodes[name].is_running:
                self.nodes[name].start()

    def mend(self) -> None:
        """Everything is as it should be: healed, going on, started."""
        for node in self.nodes.values():
            if node.is_running and not node.answers:
                node.resume()
            if self._network is not None:
                self.heal(node)
        self.start()

    def kill_all(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def others(self, node: Node) -> list[Node]:
        return [one for one in self.nodes.values() if one is not node]

    def cut(self, node: Node) -> None:
        """From the log alone."""
        assert self._network is not None
        self._network.cut(node.name)

    def heal(self, node: Node) -> None:
        assert self._network is not None
        self._network.heal(node.name)

    def wipe(self, node: Node) -> None:
        """Of a node that does not run: its data is gone."""
        assert not node.is_running
        shutil.rmtree(node.data)

    # -- waiting

    def leader(self, limit_s: float = READY_S, but: Node | None = None) -> Node:
        """The node that leads and serves; `but`: another one than that."""
        found: list[Node] = []

        def leads() -> bool:
            found[:] = [
                node
                for node in self.running
                if node is not but and (node.status() or {}).get("state") == "leader" and node.is_ready()
            ]
            return len(found) == 1

        self.until(leads, "nobody leads", limit_s)
        return found[0]

    def wait_ready(self, limit_s: float = READY_S) -> Node:
        """Until one leads and every other one that runs follows it, with nothing of the log missing that was
        there when it began to lead."""
        until = time.monotonic() + limit_s
        least = (self.leader(limit_s).status() or {}).get("applied", 0)
        found: list[Node] = []

        def are_together() -> bool:
            found[:] = self._leader_of_all(least)
            return bool(found)

        self.until(are_together, "not together", until - time.monotonic())
        return found[0]

    def until(self, is_so: Callable[[], bool], what: str, limit_s: float) -> None:
        """Wait. Raises TimeoutError with what the nodes say, at once if one has ended by itself."""
        until = time.monotonic() + limit_s
        while not is_so():
            if time.monotonic() > until or any(node.has_ended for node in self.nodes.values()):
                raise TimeoutError(f"{what} after {limit_s:.0f} s\n{self.told()}")
            time.sleep(PAUSE_S)

    def told(self) -> str:
        """How the nodes are, and what they printed last: for who reads of a failure."""
        return "\n".join(
            f"--- {node.name}: {json.dumps(node.status())}\n{node.output[-3_000:]}"
            for node in self.nodes.values()
        )

    def _leader_of_all(self, least: int) -> list[Node]:
        """The node that leads and serves, if all others that run follow it, with at least this record."""
        said = {node.name: node.status() or {} for node in self.running}
        leads = [name for name, one in said.items() if one.get("state") == "leader"]
        if len(leads) != 1:
            return []
        led = said.pop(leads[0])
        is_so = all(
            one.get("state") == "follower"
            and one["epoch"] == led["epoch"]
            and one["applied"] >= least
            and (one["leader"] or {}).get("node") == leads[0]
            for one in said.values()
        )
        leader = self.nodes[leads[0]]
        return [leader] if is_so and leader.is_ready() else []

    # -- the log and the stores

    def settle(self) -> list[ReplicatedStore]:
        """The stores of the nodes, none of which runs, each brought to the end of the log."""
        stores = []
        try:
            for node in self.nodes.values():
                assert not node.is_running
                log = open_log(self.log_url, self.name, time, deadline_s=8, keys=(KEY,))
                stores.append(ReplicatedStore(RocksStore(node.data), log))
                stores[-1].follow()
                log.close()
        except BaseException:
            for store in stores:
                store.close()
            raise
        return stores

    def differences(self) -> tuple[int, list[str]]:
        """Of the stores of all nodes, none of which runs: how many rows, and which are not the same."""
        stores = self.settle()
        try:
            count, found = 0, []
            for table in Table:
                for rows in zip_longest(*(store.scan(table, b"", _END) for store in stores)):
                    count += 1
                    if any(one != other for one, other in pairwise(rows)):
                        found.append(f"{table.value}: {rows}")
        finally:
            for store in stores:
                store.close()
        return count, found

    def _way(self, node: str) -> str:
        """The log's URL, by ways of this node's own."""
        network = self._network
        if network is None:
            return self.log_url
        return re.sub(
            r"127\.0\.0\.1:(\d+)", lambda at: f"127.0.0.1:{network.way(node, int(at[1]))}", self.log_url
        )


class Machines:
    """Three servers of NATS and three nodes on them, begun together and ended together."""

    def __init__(self, folder: Path, *, ports: Sequence[int] = (), settings: Mapping[str, object]) -> None:
        self.nats = Nats(folder)
        self._folder, self._ports, self._settings = folder, ports, settings
        self._ending = ExitStack()

    def __enter__(self) -> Cluster:
        with ExitStack() as ending:
            ending.enter_context(self.nats)
            cluster = ending.enter_context(
                Cluster(
                    self._folder / "nodes",
                    self.nats.url,
                    ports=self._ports,
                    settings=self._settings,
                    is_cuttable=False,
                )
            )
            cluster.start()
            self._ending = ending.pop_all()
        return cluster

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()
