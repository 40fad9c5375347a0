"""What one hostile client does to the others: `python -m tests.bench.hostile`.

For each attack a server of its own, in a process of its own with an empty data directory and a keys file: a
key for `honest/#`, one for `evil/#`, and one that may only read. Honest clients ask for something every 10 ms
and measure how long it takes, in another process (honest.py). The attack comes from here: with a key
(attacks.py, crowds.py), without one (strangers.py), three at once (mixes.py). Server and honest clients take
precedence over it for the processor, if the machine allows that. The table says, for each attack:

    ping, p2p, schedule   of each honest client what 99 % of its calls did not exceed, and the longest, ms
    lost         calls of theirs that were refused or not answered, and connections that were cut
    cpu          processor time of the server during the attack and a moment after, s
    wait         how long it could have run meanwhile, but other processes had the processor, s: on a busy
                 machine that much of a stall is not its own
    rss          largest resident memory above that of the idle server, MiB
    log, disk    what the log grew by, what was written to the disk (log included); data: what is there in the
                 end, MiB

`!` marks what misses the goal: GOAL for the calls, nothing lost. With `--goal` the exit code is then 1.

`--server DIR` runs the server of another checkout, several times for several, row beside row; `--mosquitto`
adds a row of that broker for each attack over MQTT. All of it is on the one machine: look at `nothing`, which
attacks nobody, for what the machine adds.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from tests.support.server import ROOT

from .attacks import ATTACKS
from .crowds import CROWDS, http_batches
from .honest import Crowd, Felt, Found, beside
from .mixes import MIXES
from .peers.mosquitto import MOSQUITTO
from .process import Address, Process, Server, environment
from .results import aligned, turn_ns
from .scene import CUT, Attack, Scene
from .strangers import STRANGERS, large_connects, silent_connections

SECONDS = 10.0
SETTLE_S = 1.5
GOAL = {"ping": (20.0, 60.0), "p2p": (20.0, 60.0), "schedule": (math.inf, 150.0)}
"""At most: p99 and the longest, ms."""
KEYS = {
    "honest": ("schedule,read", "honest/#"),
    "evil": ("schedule,read", "evil/#"),
    "reader": ("read", "evil/#"),
}
"""Scopes and topics."""
TLS = ROOT / "tests" / "support" / "tls"
SETTINGS = {
    "mqtt__listen": "mqtt://127.0.0.1:0,mqtts://127.0.0.1:0,ws://127.0.0.1:0",
    "mqtt__tls_cert": str(TLS / "cert.pem"),
    "mqtt__tls_key": str(TLS / "key.pem"),
    "spark__enabled": "false",
}
NOWHERE: Address = ("", 0)
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """What an attack came to; sizes in bytes."""

    server: str
    attack: str
    felt: dict[str, Felt]
    """By honest client."""
    cpu_s: float
    wait_s: float
    rss: int
    log: int
    disk: int
    data: int
    remark: str

    @property
    def lost(self) -> int:
        return sum(one.lost for one in self.felt.values())

    @property
    def misses(self) -> bool:
        """Whether it misses the goal."""
        return bool(self.lost) or any(_mark(name, one) for name, one in self.felt.items())

    def cells(self) -> tuple[str, ...]:
        sizes = (f"{size / _MIB:.1f}" for size in (self.rss, self.log, self.disk, self.data))
        felt = (_felt(name, self.felt.get(name)) for name in GOAL)
        spent = (f"{self.cpu_s:.1f}", f"{self.wait_s:.1f}")
        return (
            self.attack,
            self.server,
            *felt,
            f"{self.lost}{'!' if self.lost else ''}",
            *spent,
            *sizes,
            self.remark,
        )


def _felt(client: str, felt: Felt | None) -> str:
    return "-" if felt is None else f"{felt.p99_ms:.1f} {felt.max_ms:.0f}{_mark(client, felt)}"


def _mark(client: str, felt: Felt) -> str:
    p99, most = GOAL[client]
    return "!" if felt.p99_ms > p99 or felt.max_ms > most else ""


EVERY = (*ATTACKS, *CROWDS, *STRANGERS, *MIXES)
HTTP = {*CROWDS[CROWDS.index(http_batches) :], *STRANGERS, *MIXES} - {silent_connections, large_connects}
"""Attacks that are not, or not only, over MQTT."""
HEAD = ("attack", "server", *GOAL, "lost", "cpu", "wait", "rss", "log", "disk", "data", "")


# -- the server under attack


@dataclass(frozen=True, slots=True)
class Keys:
    """A keys file that the checkout has made, and its keys by name."""

    path: Path
    shown: dict[str, str]


def make_keys(root: Path, folder: Path) -> Keys:
    """Raises CalledProcessError."""
    folder.mkdir()
    path, shown = folder / "keys.toml", dict[str, str]()
    for name, (scopes, topics) in KEYS.items():
        rules = [word for rule in ("--publish", "--subscribe", "--deliver") for word in (rule, topics)]
        command = [sys.executable, "-m", "server", "keys", "add", name, "--scope", scopes, *rules]
        shown[name] = subprocess.run(
            [*command, "--file", str(path)],
            cwd=root,
            env=environment({}, root),
            check=True,
            text=True,
            capture_output=True,
        ).stdout.split()[0]
    return Keys(path, shown)


@dataclass(frozen=True, slots=True)
class Victim:
    """Who is attacked, and where it listens: MQTT, over TLS, over websockets, HTTP."""

    name: str
    process: Process
    places: tuple[Address, Address, Address, Address]


Starts = Callable[[Path], AbstractContextManager[Victim]]
"""One with its files in this folder."""


@contextmanager
def fasti(root: Path, keys: Keys, folder: Path) -> Iterator[Victim]:
    """A server of this checkout."""
    server = Server(folder / "data", SETTINGS | {"auth__keys_file": keys.path}, root)
    _hasten(server)  # before it has threads, which are like the one that made them
    try:
        server.listening()
        places = server.mqtt, server.address_of("tls"), server.address_of("ws"), server.http
        yield Victim(root.name, server, places)
    finally:
        server.stop()


@contextmanager
def broker(folder: Path) -> Iterator[Victim]:
    """mosquitto, which lets everybody in."""
    with MOSQUITTO.running(folder) as found:
        if found is None:
            raise RuntimeError("mosquitto is not installed")
        _hasten(found.process)
        yield Victim("mosquitto", found.process, (found.at, NOWHERE, NOWHERE, NOWHERE))


def _hasten(process: Process) -> None:
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, process.pid, -10)


def attacked(attack: Attack, starts: Starts, keys: Keys, seconds: float) -> Row:
    """One attack on a new victim. Raises RuntimeError if that does not start, or ends."""
    with tempfile.TemporaryDirectory(prefix="fasti-hostile-") as folder, starts(Path(folder)) as victim:
        mqtt, *_, http = victim.places
        names = [name for name in GOAL if name != "schedule" or http is not NOWHERE]
        with beside(Crowd(mqtt, http, names, keys.shown["honest"])) as friends:
            return _measured(attack, victim, keys, seconds, friends)


def _measured(
    attack: Attack, victim: Victim, keys: Keys, seconds: float, friends: Callable[[], Found]
) -> Row:
    server = victim.process
    server.forget_peak()
    rss, cpu, wait = server.rss_bytes(), server.cpu_s(), server.wait_s()
    disk, log = server.disk_bytes(), _size(server.log)
    scene = Scene(server.pid, *victim.places, keys.shown["evil"], keys.shown["reader"], seconds)
    remark = _attack(attack, scene)
    time.sleep(SETTLE_S)
    found = friends()
    server.check()
    return Row(
        server=victim.name,
        attack=attack.__name__,
        felt={name: felt for name, (felt,) in found.items()},
        cpu_s=server.cpu_s() - cpu,
        wait_s=server.wait_s() - wait,
        rss=server.peak_bytes() - rss,
        log=_size(server.log) - log,
        disk=server.disk_bytes() - disk,
        data=server.data_bytes() if isinstance(server, Server) else 0,
        remark=remark,
    )


def _attack(attack: Attack, scene: Scene) -> str:
    """The remark; that it failed, if it did."""
    scene.start()
    try:
        return attack(scene)
    except CUT as error:
        return f"ended by: {error}"
    except Exception as error:
        traceback.print_exc()
        return f"failed: {error!r}"
    finally:
        scene.close()


def _size(path: Path) -> int:
    return path.stat().st_size


# -- the table


def table(rows: list[Row]) -> str:
    """All rows as aligned text; the last column is a remark."""
    text = aligned([HEAD, *(row.cells() for row in rows)], left=2)
    return f"{text}\nan empty turn of a Python loop: {turn_ns():.0f} ns"


def main(arguments: list[str]) -> int:
    names = {attack.__name__: attack for attack in EVERY}
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.hostile",
        description="one hostile client against a server, and what the others feel of it",
        epilog="\n".join(f"  {name:30} {attack.__doc__}" for name, attack in names.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help="this attack; repeatable"
    )
    parser.add_argument("--server", action="append", type=Path, metavar="DIR", help="a checkout; repeatable")
    parser.add_argument("--mosquitto", action="store_true", help="beside it, for attacks over MQTT")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each attack, most of the time")
    parser.add_argument("--goal", action="store_true", help="exit code 1 if an attack misses the goal")
    wanted = parser.parse_args(arguments)
    rows: list[Row] = []
    has_ended = False
    roots = [root.resolve() for root in wanted.server or [ROOT]]
    with tempfile.TemporaryDirectory(prefix="fasti-hostile-keys-") as folder:
        made = [make_keys(root, Path(folder) / str(at)) for at, root in enumerate(roots)]
        tries: list[tuple[str, Starts, Keys]] = [
            (name, partial(fasti, root, keys), keys)
            for name, (root, keys) in product(wanted.only or names, zip(roots, made, strict=True))
        ]
        if wanted.mosquitto:
            over_mqtt = [name for name in wanted.only or names if names[name] not in HTTP]
            tries += [(name, broker, made[0]) for name in over_mqtt]
        for name, starts, keys in tries:
            try:
                rows.append(attacked(names[name], starts, keys, wanted.seconds))
            except RuntimeError as error:
                has_ended = True
                print(f"{name}: {error}", flush=True)
            else:
                print("  ".join(rows[-1].cells()), flush=True)
    rows.sort(key=lambda row: list(names).index(row.attack))
    print(f"\n{table(rows)}")
    return int(wanted.goal and (has_ended or any(row.misses for row in rows)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
