"""The n-th write or sync of a working server fails: EIO, ENOSPC, or a write that takes nothing.

One fault after the other under a small load that notes what it was told: what was answered with 201 is there
and is delivered, what was answered with 204 never comes, what was refused may be there, whole. After each the
server writes again by itself; in the end it is killed, and started without faults. By strace; skipped where
there is none. FASTI_SOAK=1 tries many more.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

from server.codec.packets import Ack, Publish
from server.codec.reasons import Reason
from server.settings.times import format_ms
from tests.support.http import Http, http
from tests.support.mqtt import Peer, dial, user, wall_ms
from tests.support.server import run, serving
from tests.support.soak import SOAK

from .disks import reader_of, until_taken
from .traced import traced

WRITES = "write,pwrite64"
SYNCS = "fsync,fdatasync"
KINDS = {
    "a write, EIO": (WRITES, "error=EIO"),
    "a write, ENOSPC": (WRITES, "error=ENOSPC"),
    "a write that takes nothing": ("write", "retval=0"),
    "a sync, EIO": (SYNCS, "error=EIO"),
    "a sync, ENOSPC": (SYNCS, "error=ENOSPC"),
}
SHORT = (
    ("a write, EIO", "1"),
    ("a write that takes nothing", "3"),
    ("a sync, EIO", "2+"),
)
NOTHING = "a write that takes nothing"
LONG = tuple(
    (kind, f"{n}{more}")
    for kind in KINDS
    for n in (1, 2, 3, 5, 8, 13)
    for more in ("", "+")
    if kind != NOTHING or not more
)
"""`+`: and all after it, until the fault ends. (The engine tries a write of nothing for ever.)"""
FAULTS = LONG if SOAK else SHORT
NUMBERS = 2_000 if SOAK else 100
"""File numbers that the engine may come to."""
BUSY_S = 0.5
ANSWERED = (201, 503)


def _files(data: Path) -> list[str]:
    """Options of strace: all files of the store that there are or may be, but not what it logs."""
    names = [f"{number:06}.{kind}" for number in range(1, NUMBERS) for kind in ("log", "sst")]
    names += [f"MANIFEST-{number:06}" for number in range(1, NUMBERS)] + ["bound", "synced", "CURRENT"]
    return [option for name in names for option in ("-P", str(data / name))]


class _Told:
    """What a small load was told."""

    def __init__(self) -> None:
        self.acked: dict[str, str] = {}
        """Ids by payload."""
        self.soon: set[str] = set()
        """Of these those that are due while it goes on."""
        self.cancelled: set[str] = set()
        self.in_doubt: set[str] = set()
        """A cancel was refused."""
        self.counts: Counter[str] = Counter()
        self._number = count()

    async def post(self, calls: Http, chance: random.Random) -> None:
        """One message, now and then in a batch, or a cancel."""
        tag = f"m{next(self._number)}"
        is_soon = chance.random() < 0.3
        due_ms = wall_ms() + (chance.randrange(300, 2_000) if is_soon else 3_600_000)
        topic = "soon/1" if is_soon else "later"
        body = {"topic": topic, "payload": tag, "deliver_at": format_ms(due_ms)}
        answer = await calls.call("POST", "/v1/messages", body)
        assert answer.status in ANSWERED, answer
        self.counts[f"{answer.status}"] += 1
        if answer.status == 201:
            self.acked[tag] = answer.body["id"]
            if is_soon:
                self.soon.add(tag)
            elif chance.random() < 0.3:
                await self._cancel(calls, tag)

    async def _cancel(self, calls: Http, tag: str) -> None:
        answer = await calls.call("DELETE", f"/v1/messages/{self.acked[tag]}")
        assert answer.status in (204, 503), answer
        self.counts[f"cancel {answer.status}"] += 1
        (self.cancelled if answer.status == 204 else self.in_doubt).add(tag)

    async def publish(self, peer: Peer) -> None:
        tag = f"m{next(self._number)}"
        due = (("deliver-at", format_ms(wall_ms() + 3_600_000)),)
        peer.put("later", tag, 1, user_properties=due)
        ack = await peer.take(Ack)
        assert ack.reason in (Reason.SUCCESS, 0x83), ack
        self.counts[f"PUBACK {ack.reason:#04x}"] += 1
        if ack.reason == Reason.SUCCESS:
            name = user(ack, "fasti-id")
            assert name is not None
            self.acked[tag] = name


async def test_the_nth_write_or_sync_fails(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}")
    chance, told, data = random.Random(seed), _Told(), tmp_path / "data"
    injected = 0
    async with serving(data) as server, http(server.url) as calls:
        reader = await reader_of(server)
        publisher = await _publisher(server.mqtt)
        for kind, when in FAULTS:
            refused = told.counts["503"]
            system_calls, what = KINDS[kind]
            fault = f"inject={system_calls}:{what}:when={when}"
            trace = tmp_path / "trace"
            options = ("-e", f"trace={system_calls}", "-e", fault, *_files(data))
            async with traced(server.pid, trace, *options):
                ends = asyncio.get_running_loop().time() + BUSY_S
                while asyncio.get_running_loop().time() < ends:
                    await asyncio.gather(
                        told.publish(publisher), *(told.post(calls, chance) for _ in range(4))
                    )
            found = trace.read_text(errors="replace").count("(INJECTED)")
            injected += found
            assert found, f"{kind}, {when}: it was never reached"
            if when.endswith("+"):
                assert told.counts["503"] > refused, f"{kind}, {when}: nobody was refused"
            told.acked["again"] = await until_taken(calls)
        assert await _delivered(reader, told.soon) == set(), f"FASTI_SEED={seed}"
        for peer in (reader, publisher):
            peer.drop()
        server.kill()
        assert "Traceback" not in server.output, server.output
    async with serving(data) as server, http(server.url) as calls:
        rows = {row["id"]: row["state"] for row in await calls.listed("state=all")}
        text = f"{len(FAULTS)} faults, {injected} calls failed; {dict(sorted(told.counts.items()))}; "
        lost = {tag for tag, name in told.acked.items() if name not in rows}
        untrue = {tag for tag in told.cancelled if rows[told.acked[tag]] != "cancelled"}
        sure = set(told.acked) - told.cancelled - told.in_doubt
        gone = {tag for tag in sure if rows.get(told.acked[tag]) not in ("pending", "dispatched")}
        text += f"acked lost {len(lost)}, 204 untrue {len(untrue)}, gone without a cancel {len(gone - lost)}"
        record_property("counted", text)
        assert not lost | untrue | gone, (f"FASTI_SEED={seed}", lost, untrue, gone)
        assert await server.stopped() == 0
    assert told.counts["201"] > 10 * len(FAULTS)
    assert told.counts["503"]
    assert run("verify", "--data", str(data)).returncode == 0


async def _publisher(address: tuple[str, int]) -> Peer:
    peer = await dial(address)
    await peer.connect("")
    return peer


async def _delivered(reader: Peer, wanted: set[str]) -> set[str]:
    """What does not come of these."""
    missing = set(wanted)
    try:
        while missing:
            packet = await reader.take(Publish, 20)
            reader.ack(packet)
            missing.discard(packet.payload.decode())
    except TimeoutError:
        pass
    return missing
