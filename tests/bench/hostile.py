"""What one hostile client does to the others: `python -m tests.bench.hostile`.

For each attack of attacks.py a server of its own, in a process of its own with an empty data directory. An
honest client, in another process, publishes to itself at QoS 0 every 5 ms and measures the round trip; the
attack comes from here. The table says, for each attack:

    worst, p99   longest round trip of the honest client, and what 99 % of its ticks did not exceed, ms; a
                 stall counts for every tick that it covers, not once
    lost         of its messages, and connections that it lost
    cpu          processor time of the server during the attack and a moment after, s
    wait         how long it could have run meanwhile, but other processes had the processor, s: on a busy
                 machine that much of a stall is not its own
    rss          largest resident memory above that of the idle server, MiB
    log, disk    what the log grew by, what was written to the disk (log included); data: what is there in the
                 end, MiB

`--server DIR` runs the server of another checkout, several times for several, row beside row. All of it is
on the one machine: look at `nothing`, which attacks nobody, for what the machine adds.
"""

import argparse
import json
import select
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .attacks import ATTACKS
from .crowds import CROWDS
from .process import ROOT, Server, address
from .raw import PUBLISH, Address, Peer, publish
from .results import percentile, turn_ns
from .scene import CUT, Attack, Scene

SECONDS = 10.0
TICK_S = 0.005
LOST_S = 60.0
SETTLE_S = 1.5
TLS = ROOT / "tests" / "support" / "tls"
SETTINGS = {
    "mqtt__listen": "mqtt://127.0.0.1:0,mqtts://127.0.0.1:0,ws://127.0.0.1:0",
    "mqtt__tls_cert": str(TLS / "cert.pem"),
    "mqtt__tls_key": str(TLS / "key.pem"),
    "spark__enabled": "false",
}
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """What an attack came to; sizes in bytes."""

    server: str
    attack: str
    worst_ms: float
    p99_ms: float
    lost: int
    cpu_s: float
    wait_s: float
    rss: int
    log: int
    disk: int
    data: int
    remark: str

    def cells(self) -> tuple[str, ...]:
        sizes = (f"{size / _MIB:.1f}" for size in (self.rss, self.log, self.disk, self.data))
        said = (f"{self.worst_ms:.0f}", f"{self.p99_ms:.1f}", str(self.lost))
        spent = (f"{self.cpu_s:.1f}", f"{self.wait_s:.1f}")
        return (self.attack, self.server, *said, *spent, *sizes, self.remark)


HEAD = ("attack", "server", "worst", "p99", "lost", "cpu", "wait", "rss", "log", "disk", "data", "")


# -- the honest client


def honest(at: Address) -> None:
    """Measure until the standard input ends, then say what was found, as JSON."""
    trips: list[float] = []
    lost = 0
    peer, number = _honest_peer(at), 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        number += 1
        started = time.monotonic()
        try:
            peer.send(publish("honest", number.to_bytes(8)))
            while True:
                first, body = peer.read()
                if first >> 4 == PUBLISH and body[-8:] == number.to_bytes(8):
                    break
        except TimeoutError:
            lost += 1
        except CUT:
            lost += 1
            time.sleep(0.1)
            with suppress(*CUT):
                peer = _honest_peer(at)
        trips.append(time.monotonic() - started)
        time.sleep(max(0.0, TICK_S - trips[-1]))
    ticks = [trip - late * TICK_S for trip in trips for late in range(max(1, int(trip / TICK_S)))]
    said = {"worst_ms": max(ticks) * 1e3, "p99_ms": percentile(ticks, 0.99) * 1e3, "lost": lost}
    print(json.dumps(said), flush=True)


def _honest_peer(at: Address) -> Peer:
    peer = Peer(at, "honest")
    peer.subscribe(["honest"])
    peer.socket.settimeout(LOST_S)
    return peer


# -- the server under attack


def attacked(attack: Attack, root: Path, seconds: float) -> Row:
    """One attack on a new server. Raises RuntimeError if that does not start, or ends."""
    with tempfile.TemporaryDirectory(prefix="fasti-hostile-") as folder:
        server = Server(Path(folder) / "data", SETTINGS, root)
        try:
            server.listening()
            return _measured(attack, server, root, seconds)
        finally:
            server.stop()


def _measured(attack: Attack, server: Server, root: Path, seconds: float) -> Row:
    time.sleep(0.5)
    at = ":".join(map(str, server.mqtt))
    arguments = [sys.executable, "-m", "tests.bench.hostile", "--honest", at]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as friend:
        time.sleep(1.0)
        server.forget_peak()
        rss, cpu, wait = server.rss_bytes(), server.cpu_s(), server.wait_s()
        disk, log = server.disk_bytes(), _size(server.log)
        others = server.address_of("tls"), server.address_of("ws"), server.http
        scene = Scene(server.pid, server.mqtt, *others, seconds)
        scene.start()
        try:
            remark = attack(scene)
        except CUT as error:
            remark = f"ended by: {error}"
        except Exception as error:
            traceback.print_exc()
            remark = f"failed: {error!r}"
        finally:
            scene.close()
        time.sleep(SETTLE_S)
        assert friend.stdin is not None
        friend.stdin.close()
        assert friend.stdout is not None
        found = json.loads(friend.stdout.read())
    server.check()
    return Row(
        server=root.name,
        attack=attack.__name__,
        worst_ms=found["worst_ms"],
        p99_ms=found["p99_ms"],
        lost=found["lost"],
        cpu_s=server.cpu_s() - cpu,
        wait_s=server.wait_s() - wait,
        rss=server.peak_bytes() - rss,
        log=_size(server.log) - log,
        disk=server.disk_bytes() - disk,
        data=server.data_bytes(),
        remark=remark,
    )


def _size(path: Path) -> int:
    return path.stat().st_size


# -- the table


def table(rows: list[Row]) -> str:
    """All rows as aligned text; the last column is a remark."""
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(HEAD) - 1)]
    lines = []
    for row in cells:
        left = [row[at].ljust(widths[at]) for at in (0, 1)]
        right = [row[at].rjust(widths[at]) for at in range(2, len(widths))]
        lines.append("  ".join([*left, *right, row[-1]]).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, f"an empty turn of a Python loop: {turn_ns():.0f} ns"])


def main(arguments: list[str]) -> int:
    names = {attack.__name__: attack for attack in (*ATTACKS, *CROWDS)}
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
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each attack, most of the time")
    parser.add_argument("--honest", metavar="HOST:PORT", help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.honest:
        honest(address(wanted.honest))
        return 0
    rows: list[Row] = []
    for name in wanted.only or names:
        for root in wanted.server or [ROOT]:
            try:
                rows.append(attacked(names[name], root.resolve(), wanted.seconds))
            except RuntimeError as error:
                print(f"{name}: the server of {root}: {error}", flush=True)
            else:
                print("  ".join(rows[-1].cells()), flush=True)
    print(f"\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
