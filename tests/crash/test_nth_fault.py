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
from contextlib import suppress
from itertools import count
from pathlib import Path

from server.codec.packets import Ack, Publish
from server.codec.reasons import Reason
from server.settings.times import format_ms
from tests.support.http import Http, http
from tests.support.ledger.arrivals import Arrivals, Inbox
from tests.support.ledger.messages import Message, Messages
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
HOUR_MS = 3_600_000
ANSWERED = (201, 503)


def _files(data: Path) -> list[str]:
    """Options of strace: all files of the store that there are or may be, but not what it logs."""
    names = [f"{number:06}.{kind}" for number in range(1, NUMBERS) for kind in ("log", "sst")]
    names += [f"MANIFEST-{number:06}" for number in range(1, NUMBERS)] + ["bound", "synced", "CURRENT"]
    return [option for name in names for option in ("-P", str(data / name))]


class _Load:
    """A small load, and the account of what it was told."""

    def __init__(self) -> None:
        self.account = Arrivals(Messages(wall_ms()))
        self.messages = self.account.messages
        self.inbox = self.account.inboxes.setdefault("reader", Inbox("reader", connection=1))
        self.counts: Counter[str] = Counter()
        self._number = count()

    def ask(self, topic: str, in_ms: int) -> Message:
        return self.messages.ask(f"m{next(self._number)}", topic, wall_ms() + in_ms)

    async def post(self, calls: Http, chance: random.Random) -> None:
        """One message, now and then a cancel."""
        is_soon = chance.random() < 0.3
        message = self.ask("soon/1", chance.randrange(300, 2_000)) if is_soon else self.ask("later", HOUR_MS)
        body = {"topic": message.topic, "payload": message.tag, "deliver_at": format_ms(message.due)}
        answer = await calls.call("POST", "/v1/messages", body)
        assert answer.status in ANSWERED, answer
        self.counts[f"{answer.status}"] += 1
        if answer.status == 201:
            self.messages.accepted(message, answer.body["id"])
            if not is_soon and chance.random() < 0.3:
                await self._cancel(calls, message)

    async def _cancel(self, calls: Http, message: Message) -> None:
        message.is_cancel_asked = True
        answer = await calls.call("DELETE", f"/v1/messages/{message.id}")
        assert answer.status in (204, 503), answer
        self.counts[f"cancel {answer.status}"] += 1
        if answer.status == 204:
            self.messages.cancelled(message)

    async def publish(self, peer: Peer) -> None:
        message = self.ask("later", HOUR_MS)
        due = (("deliver-at", format_ms(message.due)),)
        peer.put("later", message.tag, 1, user_properties=due)
        ack = await peer.take(Ack)
        assert ack.reason in (Reason.SUCCESS, 0x83), ack
        self.counts[f"PUBACK {ack.reason:#04x}"] += 1
        if ack.reason == Reason.SUCCESS:
            name = user(ack, "fasti-id")
            assert name is not None
            self.messages.accepted(message, name)

    async def delivered(self, reader: Peer) -> None:
        """Until nothing is missing of what is due soon."""
        self.account.until_ms = wall_ms() + HOUR_MS // 2
        with suppress(TimeoutError):
            while self.account.missing(self.inbox):
                packet = await reader.take(Publish, 20)
                reader.ack(packet)
                arrival = self.account.arrived(self.inbox, packet.payload.decode(), wall_ms())
                self.account.acked(self.inbox, arrival, wall_ms())


async def test_the_nth_write_or_sync_fails(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}")
    chance, load, data = random.Random(seed), _Load(), tmp_path / "data"
    injected = 0
    async with serving(data) as server, http(server.url) as calls:
        reader = await reader_of(server)
        publisher = await _publisher(server.mqtt)
        for kind, when in FAULTS:
            refused = load.counts["503"]
            system_calls, what = KINDS[kind]
            fault = f"inject={system_calls}:{what}:when={when}"
            trace = tmp_path / "trace"
            options = ("-e", f"trace={system_calls}", "-e", fault, *_files(data))
            async with traced(server.pid, trace, *options):
                ends = asyncio.get_running_loop().time() + BUSY_S
                while asyncio.get_running_loop().time() < ends:
                    await asyncio.gather(
                        load.publish(publisher), *(load.post(calls, chance) for _ in range(4))
                    )
            found = trace.read_text(errors="replace").count("(INJECTED)")
            injected += found
            assert found, f"{kind}, {when}: it was never reached"
            if when.endswith("+"):
                assert load.counts["503"] > refused, f"{kind}, {when}: nobody was refused"
            load.messages.accepted(load.ask("later", HOUR_MS), await until_taken(calls))
        await load.delivered(reader)
        for peer in (reader, publisher):
            peer.drop()
        server.kill()
        assert "Traceback" not in server.output, server.output
    async with serving(data) as server, http(server.url) as calls:
        load.messages.listed({row["id"]: row["state"] for row in await calls.listed("state=all")})
        text = f"{len(FAULTS)} faults, {injected} calls failed; {dict(sorted(load.counts.items()))}; "
        record_property("counted", f"{text}{load.account.summary()}; {load.account.counted()}")
        assert not load.account.check(), f"FASTI_SEED={seed}: {load.account.check()[:10]}"
        assert await server.stopped() == 0
    assert load.counts["201"] > 10 * len(FAULTS)
    assert load.counts["503"]
    assert run("verify", "--data", str(data)).returncode == 0


async def _publisher(address: tuple[str, int]) -> Peer:
    peer = await dial(address)
    await peer.connect("")
    return peer
