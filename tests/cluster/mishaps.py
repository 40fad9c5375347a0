"""What befalls nodes, their log, and those who look after them; FASTI_SOAK=1 draws from these.

    Mishaps        of the nodes: killed, cut off, emptied, rotten, of a full disk, of a wrong clock, key, data
    OnNats         and of a log on NATS: its leader killed, strays, purged, deleted, small
    OnPostgres     the same of PostgreSQL, which has no bound

Each leaves somebody who can lead, and is over when `mend` was called and the nodes are together.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from server.settings.times import format_ms
from tests.crash.disks import Filler
from tests.support import shifted
from tests.support.cluster import KEY, Cluster, Node
from tests.support.mqtt import wall_ms
from tests.support.nats import Nats
from tests.support.postgres import PRIMARY, STANDBYS, Postgres
from tests.support.server import ROOT

from .load import UNANSWERED, Calls
from .test_backups import backup
from .test_catching_up import trim
from .test_damage import MENDED_S, rot
from .test_failover import TAKEOVER_S
from .test_trouble import bounded

HOUR_S, DAY_MS = 3_600, 86_400_000
JOB_S = 180
FAR = 3_000
"""Messages of a slice that a job cuts."""
SMALL_BYTES = 2 << 20
"""Bound of a small log."""


class Mishaps:
    """Of the nodes. `disk`: a small one, for the data of node c."""

    def __init__(self, cluster: Cluster, chance: random.Random, disk: Path | None = None) -> None:
        self.cluster, self.chance = cluster, chance
        self._filler = None if disk is None else Filler(disk)
        self._ahead = {node.name: node.log.with_name(f"{node.name}.ahead") for node in cluster.nodes.values()}
        self._rotten: list[tuple[Node, int, Path]] = []
        """Nodes of which a file rots, how much each had said before, and that file."""
        self._jobs: list[subprocess.Popen[str]] = []
        self.refused = 0
        """Jobs that were refused, or whose server was gone."""
        self.all: list[Callable[[], None]] = [
            *(self.leader_killed, self.follower_killed, self.leader_hangs, self.leader_cut_off),
            *(self.leader_ends, self.all_killed, self.emptied, self.trimmed, self.leader_killed_soon_again),
            *(self.log_leader_killed, self.log_follower_hangs, self.leader_and_log_leader_killed),
            *(self.stray, self.purged, self.deleted, self.other_key, self.old_copy, self.job),
            *(self.follower_rots, self.leader_rots),
            *(self.leaders_clock_set, self.followers_clock_set),
        ]
        if self._filler is not None:
            self.all.append(self.disk_full)
        for node in cluster.nodes.values():
            node.module = shifted.__name__
            node.environ[shifted.VARIABLE] = str(self._ahead[node.name])
            self._set_clock(node, 0)

    def mend(self) -> None:
        if self._filler is not None:
            self._filler.free()
        for node in self.cluster.nodes.values():
            self._set_clock(node, 0)
            if node.environ.pop("FASTI__CLUSTER__KEY", None):
                node.kill()
        self.mend_log()
        self.cluster.mend()
        self.cluster.wait_ready()
        for rotten in self._rotten:
            self.cluster.until(lambda rotten=rotten: _is_mended(*rotten), "rot is not mended", MENDED_S)
            self.cluster.wait_ready()
        self._rotten.clear()
        for job in self._jobs:
            said, _ = job.communicate(timeout=JOB_S)
            assert job.returncode in (0, 1, 3), said
            self.refused += job.returncode != 0
        self._jobs.clear()

    def end(self) -> None:
        """Whatever has gone wrong."""
        for job in self._jobs:
            job.kill()
            job.communicate()

    def leader_killed(self) -> None:
        self.cluster.leader().kill()

    def leader_killed_soon_again(self) -> None:
        """While the others may be in the middle of taking over."""
        old = self.cluster.leader()
        old.kill()
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)
        old.start()

    def leader_ends(self) -> None:
        assert self.cluster.leader().terminate() == 0

    def follower_killed(self) -> None:
        self._follower().kill()

    def leader_hangs(self) -> None:
        self.cluster.leader().stop()
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)

    def leader_cut_off(self) -> None:
        self.cluster.cut(self.cluster.leader())
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)

    def leader_and_log_leader_killed(self) -> None:
        self.log_leader_killed()
        self.leader_killed()

    def emptied(self) -> None:
        node = self._follower()
        node.kill()
        self.cluster.wipe(node)

    def follower_rots(self) -> None:
        """And leads soon after, or not."""
        self._rot(self._follower())
        if self.chance.random() < 0.5:
            self.leader_killed()

    def leader_rots(self) -> None:
        self._rot(self.cluster.leader())

    def _rot(self, node: Node) -> None:
        said = len(node.output)
        shutil.rmtree(backup(node))
        self._rotten.append((node, said, rot(node)))

    def _follower(self) -> Node:
        return self.chance.choice(self.cluster.others(self.cluster.leader()))

    def trimmed(self) -> None:
        node = self._follower()
        node.kill()
        time.sleep(0.5)
        self.trim()

    def all_killed(self) -> None:
        self.cluster.kill_all()
        self.kill_log()
        self.mend()

    def purged(self) -> None:
        """While all are stopped: who led has stopped in order, last."""
        for node in self.cluster.others(self.cluster.leader()):
            node.kill()
        assert self.cluster.leader().terminate() == 0
        self.purge()
        self.mend()

    def deleted(self) -> None:
        """The log; while all nodes are there, or one is away, which the others wait for."""
        away = self.chance.choice((*self.cluster.nodes.values(), None))
        if away is not None:
            away.kill()
        self.delete()
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)
        self.cluster.start()

    def other_key(self) -> None:
        node = self._follower()
        node.kill()
        node.environ["FASTI__CLUSTER__KEY"] = KEY[::-1]
        node.start()
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)

    def old_copy(self) -> None:
        """A node's data is put back as it was a while ago."""
        node = self._follower()
        copy = node.log.with_name(f"{node.name}.copy")
        node.kill()
        shutil.copytree(node.data, copy)
        node.start()
        time.sleep(2 * TAKEOVER_S)
        if node is self.cluster.leader():
            shutil.rmtree(copy)
            return
        node.kill()
        self.cluster.wipe(node)
        shutil.copytree(copy, node.data)
        shutil.rmtree(copy)

    def disk_full(self) -> None:
        """Of a node, leading or not; and the leader is killed."""
        assert self._filler is not None
        self._filler.fill()
        time.sleep(self.chance.random() * TAKEOVER_S)
        self.leader_killed()
        time.sleep(2 * TAKEOVER_S)

    def leaders_clock_set(self) -> None:
        self._step(self.cluster.leader())

    def followers_clock_set(self) -> None:
        self._step(self._follower())

    def job(self) -> None:
        """A far slice is split by Spark, and half of the time its server is killed meanwhile."""
        leader = self.cluster.leader()
        due_ms = (wall_ms() // DAY_MS + self.chance.randrange(3, 300)) * DAY_MS
        items = [
            f'{{"topic": "far/{n % 7}", "deliver_at": "{format_ms(due_ms + n)}", "payload": ""}}'
            for n in range(FAR)
        ]
        calls = Calls([leader.http])
        body = "\n".join(items).encode()
        status, said = calls.ask("POST", "/v1/messages:batch", body, Content_Type="application/x-ndjson")
        calls.close()
        assert status == 201, said
        command = [
            sys.executable,
            "-m",
            "spark",
            "split",
            "--server",
            leader.url,
            "--slice",
            str(due_ms),
            "--parts",
            "3",
        ]
        self._jobs.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        if self.chance.random() < 0.5:
            time.sleep(self.chance.random() * 15)
            self.leader_killed()

    # -- of the log

    def mend_log(self) -> None:
        raise NotImplementedError

    def log_leader_killed(self) -> None:
        raise NotImplementedError

    def log_follower_hangs(self) -> None:
        raise NotImplementedError

    def kill_log(self) -> None:
        """All of its servers."""
        raise NotImplementedError

    def trim(self) -> None:
        """All but its last record."""
        raise NotImplementedError

    def purge(self) -> None:
        """All of it."""
        raise NotImplementedError

    def delete(self) -> None:
        """The stream, or the table."""
        raise NotImplementedError

    def stray(self) -> None:
        raise NotImplementedError

    def _step(self, node: Node) -> None:
        self._set_clock(node, self.chance.choice((-HOUR_S, -60, 60, HOUR_S)))
        time.sleep(self.chance.random() * 4 * TAKEOVER_S)

    def _set_clock(self, node: Node, ahead_s: int) -> None:
        self._ahead[node.name].write_text(f"{ahead_s}")


class OnNats(Mishaps):
    def __init__(self, cluster: Cluster, chance: random.Random, nats: Nats, disk: Path | None = None) -> None:
        super().__init__(cluster, chance, disk)
        self.nats = nats
        self._is_bounded = False
        self.all.append(self.small)

    def small(self) -> None:
        """The log has room for a part of what comes while a node is away."""
        bounded(self.nats, self.cluster.name, SMALL_BYTES)
        self._is_bounded = True
        calls = Calls([node.http for node in self.cluster.nodes.values()])
        self._follower().kill()
        body = json.dumps([{"topic": "far/0", "payload": "x" * 1_000, "deliver_in": "30d"}] * 200).encode()
        for _ in range(2 * SMALL_BYTES // len(body)):
            status = 0
            with suppress(*UNANSWERED):
                status, _ = calls.ask("POST", "/v1/messages:batch", body, Content_Type="application/json")
            time.sleep(0.0 if status == 201 else 0.1)
        calls.close()

    def mend_log(self) -> None:
        for name in self.nats.missing:
            self.nats.start(name)
        self.nats.wait_ready()
        if self._is_bounded:
            self.cluster.leader()
            bounded(self.nats, self.cluster.name, -1)
            self._is_bounded = False

    def log_leader_killed(self) -> None:
        self.nats.kill(self.nats.leader(self.cluster.name))

    def log_follower_hangs(self) -> None:
        led = self.nats.leader(self.cluster.name)
        name = self.chance.choice([one for one in self.nats.names if one != led])
        self.nats.stop(name)
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)
        self.nats.resume(name)

    def kill_log(self) -> None:
        for name in self.nats.names:
            self.nats.kill(name)

    def trim(self) -> None:
        trim(self.cluster, self.nats)

    def delete(self) -> None:
        assert self.nats.api(f"STREAM.DELETE.{self.cluster.name}", {}).get("success")

    def purge(self) -> None:
        assert self.nats.api(f"STREAM.PURGE.{self.cluster.name}", {}).get("success")

    def stray(self) -> None:
        self.nats.publish(f"{self.cluster.name}.log", b"hello")


class OnPostgres(Mishaps):
    def __init__(
        self, cluster: Cluster, chance: random.Random, postgres: Postgres, disk: Path | None = None
    ) -> None:
        super().__init__(cluster, chance, disk)
        self.postgres = postgres
        self._table = f"{cluster.name}_log"

    def mend_log(self) -> None:
        self.postgres.wait_ready(PRIMARY)
        self.postgres.wait_replicating()

    def log_leader_killed(self) -> None:
        self.postgres.kill(PRIMARY)
        self.postgres.start(PRIMARY)

    def log_follower_hangs(self) -> None:
        name = self.chance.choice(STANDBYS)
        self.postgres.stop(name)
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)
        self.postgres.resume(name)

    def kill_log(self) -> None:
        self.log_leader_killed()

    def trim(self) -> None:
        self.postgres.asked(f"DELETE FROM {self._table} WHERE seq < (SELECT max(seq) FROM {self._table})")

    def delete(self) -> None:
        self.postgres.asked(f"DROP TABLE {self._table}")

    def purge(self) -> None:
        self.trim()

    def stray(self) -> None:
        """Where the leader's next record would stand, if it is still free."""
        self.postgres.asked(
            f"INSERT INTO {self._table} SELECT max(seq) + 1, 'hello' FROM {self._table}"
            " ON CONFLICT DO NOTHING"
        )


def _is_mended(node: Node, said: int, table: Path) -> bool:
    """Whether a copy has come, or the file has gone before anybody read it."""
    return "copy: data of" in node.output[said:] or not table.exists()
