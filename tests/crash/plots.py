"""What a process is busy with when it is killed at a point: a *plot* for each kind of change of the disk.

    served      the real server: messages, sessions, schedules, retained ones; jobs that split, archive,
                expire, are given up; a backup; the stop
    worked      groups of puts, cancels, moves and acks, and dispatch, by hand (steps.py)
    undone      a group whose members nack, lapse and ack late, by hand (undone.py)
    marked      a disk that takes no groups: the bound of dispatch in a file of its own
    repaired    rotten blocks, rows without a shard, rows that cannot be decoded
    retimed     messages by local time when the rules of their zone have changed
    keyed       the keys file, and when keys were used
    copied      another node's data in place of this one's

`prepare` makes what each try begins with; `play` says what it asks for and what was answered; `check` looks
at what is left, has it used again, and tells what is wrong. Each runs in a process of its own.
"""

import asyncio
import gc
import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
from aiohttp import ClientSession, web

from server.__main__ import main
from server.auth import keys_file
from server.auth.last_use import FILE, write_last_use
from server.auth.rights import ADMIN, Grant
from server.cluster.copy_in import fetch
from server.cluster.copy_out import CopyRoutes
from server.cluster.key import ClusterKey
from server.cluster.swap import recover_swap
from server.codec import wire
from server.codec.packets import Ack, Publish
from server.delivery import retained
from server.delivery.message import Message
from server.engine.clock import SimulatedClock
from server.offline import leave, verify
from server.schedules import retime
from server.settings.config import Config
from server.settings.times import format_ms, parse_deliver_at
from shards.delivery_rows import dead
from shards.errors import Corrupt, ShardsError, StoreFailed
from shards.fields import Record
from shards.keys import owned
from shards.record import decode, encode, is_stub
from shards.rocks import RocksStore
from shards.schedules import schedule_of
from shards.store import Table
from shards.tables import FORMAT_FIRST, META_FORMAT, META_RETAINED, encode_row, owned_value
from shards.upgrade import DeadLetterRow
from shards.verify import verify_counts
from tests.server.conftest import START_MS, running
from tests.server.schedules.rig import Zoned
from tests.server.test_repair import filled, gettable, opened_at, spoil
from tests.support.clock import HandClock
from tests.support.http import Http, http, open_site
from tests.support.ledger.messages import Messages
from tests.support.mover import counted
from tests.support.mqtt import dial, user, wall_ms
from tests.support.stores import FailingStore
from timeline.position import END, START, MessageId, id_text
from timeline.slices import Home

from . import undone
from .hand import Hand
from .past import QUARTER_MS, RETENTION_S, Past, Piece, wrong
from .steps import SESSION, Child, Doomed
from .verified import verified

Say = Callable[..., None]
Said = list[list[Any]]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HAS_ARROW = find_spec("pyarrow") is not None


class Plot(NamedTuple):
    """See above. `folder` is its own."""

    prepare: Callable[[Path], None]
    play: Callable[[Path, Say], None]
    check: Callable[[Path, Said], list[str]]


# -- worked


def _nothing(folder: Path) -> None:
    folder.mkdir(exist_ok=True)


def _work(folder: Path, say: Say) -> None:
    """The child says what it knows in its own words."""
    Child(folder / "data", Doomed("", 0), seed=7).run()


def _check_work(folder: Path, said: Said) -> list[str]:
    from .test_points import After

    after = After(folder / "data", random.Random(7))
    after.heard(said)
    after.start(5_000)
    return after.faults() + verified(folder / "data")


# -- marked


def _mark(folder: Path, say: Say) -> None:
    clock = HandClock(START_MS)
    store = FailingStore(folder / "data")
    hand = Hand(store, clock, reached=lambda point: None)

    def taken(message: Message, qos: int, packet_id: int, attempt: int) -> None:
        say("got", message.record.payload.decode())

    hand.connect(SESSION, taken, "#")
    names: list[MessageId] = []
    wishes = [("a", f"m{n}", START_MS + 60_000 * (n + 1)) for n in range(3)]
    hand.put(wishes, names.extend)
    hand.rest()
    say("accepted", [id_text(name) for name in names])
    store.is_failing = True
    hand.put([("a", "refused", START_MS + HOUR_MS)], lambda ids: None)
    for _ in wishes:
        for _ in range(8):
            hand.round()
        clock.now_ms += 60_000
    hand.round()
    store.is_failing = False
    hand.rest()
    store.close()


def _check_mark(folder: Path, said: Said) -> list[str]:
    """The clock is set back before everything was due: nobody cancels what somebody has got."""
    store = RocksStore(folder / "data")
    hand = Hand(store, HandClock(START_MS), reached=lambda point: None)
    got = {rest[0] for word, *rest in said if word == "got"}
    names = next((rest[0] for word, *rest in said if word == "accepted"), [])
    faults = []
    for number, name in enumerate(names):
        answers: list[Any] = []
        hand.cancel(MessageId(int(name, 16)), answers.append)
        hand.rest()
        if answers[0].outcome.value == "done" and f"m{number}" in got:
            faults.append(f"204 delivered: m{number} went out, and was cancelled after the start")
    store.close()
    return faults + verified(folder / "data")


# -- repaired


def _spoil(folder: Path) -> None:
    """A rotten block among rows of others, a shard without its row, a row that cannot be decoded, one that
    points nowhere, an owner with less pending than is said."""
    numbers = list(range(2_000))
    random.Random(1).shuffle(numbers)
    path = folder / "data"
    ids, files = filled(path, [numbers[:300], numbers[300:1_000], numbers[1_000:]])
    spoil(files[0], files[0].stat().st_size // 3)
    fine = sorted(gettable(path, ids))
    store = RocksStore(path, for_repair=True)
    batch = store.batch()
    batch.put(Table.SESSIONS, b"nobody's", b"\xff\xff")
    batch.put(Table.MOVED, bytes(16), (START_MS + 400 * DAY_MS << 80 | 7).to_bytes(16, "big"))
    batch.put(Table.META, owned(b"nobody"), owned_value(3, 0, 0, 0))
    some = next(iter(store.scan(Table.SHARDS, b"", b"\xff" * 16)))[0]
    stray = Home(int.from_bytes(some[:6], "big"), int.from_bytes(some[6:8], "big"))
    lost = stray.start_ms.to_bytes(6, "big") + stray.generation.to_bytes(2, "big") + b"\0\x09"
    batch.put_message(lost + some[:6] + bytes(6), _any_message(store))
    store.write(batch)
    store.flush()
    store.close()
    (path / "beside").mkdir()
    (path / "beside" / "000001.sst").write_bytes(b"of a look that was cut off")
    (folder / "fine.json").write_text(json.dumps([id_text(ids[number]) for number in fine]))


def _any_message(store: RocksStore) -> bytes:
    rows = store.scan(Table.MESSAGES, b"", b"\xff" * 32)
    return next(value for _, value in rows)


def _repair(folder: Path, say: Say) -> None:
    """Reading beside the damage, a repair that is refused, two that are cut off, one that is not."""
    path = folder / "data"

    def cut_off(store: RocksStore, *_: object) -> None:
        raise StoreFailed("told to")

    for fails in (
        patch("shards.rocks.REPAIR_BYTES", 1_000),
        patch.object(RocksStore, "_copy", cut_off),
        patch.object(RocksStore, "_finish", cut_off),
    ):
        with fails, suppress(StoreFailed):
            verify(path, 50, repair=True)
        gc.collect()  # a store that an error has left open
    verify(path, 50, repair=True)
    leave(path)  # of no cluster, which it may say again
    say("repaired")


def _check_repair(folder: Path, said: Said) -> list[str]:
    path = folder / "data"
    fine = json.loads((folder / "fine.json").read_text())
    faults = []
    with suppress(Corrupt):
        # A repair that was cut off is refused, or all is there.
        store = RocksStore(path)
        try:
            faults += _unread(store, fine, "before the next repair")
        finally:
            store.close()
    verify(path, 50, repair=True)
    if verify(path, 50, repair=False) != 0:
        faults.append("not verified: after the next repair")
    store = RocksStore(path)
    faults += _unread(store, fine, "after the next repair")
    store.close()
    return faults


def _unread(store: RocksStore, names: list[str], when: str) -> Iterator[str]:
    find = opened_at(store).reader.find
    for name in names:
        try:
            is_there = find(MessageId(int(name, 16))) is not None
        except ShardsError:
            is_there = False
        if not is_there:
            yield f"acked lost: {name} {when}"


# -- retimed

WISH = "2027-06-01T09:00[Europe/Bucharest]"
NOW_AT = "2027-06-01T05:00:00.000Z"


def _elsewhere(text: str) -> int:
    return parse_deliver_at(text) - (HOUR_MS if "Bucharest" in text else 0)


def _wish_locally(folder: Path) -> None:
    async def fill() -> None:
        async with running(folder / "data", Config(), SimulatedClock(START_MS)) as server:
            for number in range(5):
                await server.schedule(deliver_at=WISH, payload=f"local{number}")
            await server.schedule(deliver_in="1h", payload="plain")
            body = {"topic": "t", "payload": "tick", "cron": "0 2 * * *", "timezone": "Europe/Bucharest"}
            await server.call("PUT", "/v1/schedules/nightly", body, status=201)

    asyncio.run(fill())
    Zoned(folder / "data").retimed("2026a")


def _retime(folder: Path, say: Say) -> None:
    with patch.object(retime, "parse_deliver_at", _elsewhere):
        Zoned(folder / "data").retimed("2026b")


def _check_retime(folder: Path, said: Said) -> list[str]:
    """The next start goes on with it: every message is there once, by the new rules."""
    _retime(folder, lambda *words: None)
    found: dict[str, str] = {}
    faults: list[str] = []

    async def look() -> None:
        async with running(folder / "data", Config(), SimulatedClock(START_MS)) as server:
            rows = await Http(server.http).listed("state=pending")  # type: ignore[attr-defined]
            for row in rows:
                if row["payload"] in found:
                    faults.append(f"strange: {row['payload']} is there twice")
                found[row["payload"]] = row["deliver_at"]

    asyncio.run(look())
    wanted = [f"local{number}" for number in range(5)]
    faults += [f"strange: {name} is at {found.get(name)}" for name in wanted if found.get(name) != NOW_AT]
    faults += [f"acked lost: {name}" for name in ("plain", "tick") if name not in found]
    return faults + verified(folder / "data")


# -- keyed


def _key(folder: Path, say: Say) -> None:
    path = folder / "keys.toml"
    grant = Grant(frozenset((ADMIN,)))
    for number in range(3):
        name = f"k{number}"
        say("adding", name)
        keys_file.add_key(path, name, grant)
        say("added", name)
        write_last_use(folder, {name: 1_000 + number})
        say("used", name)
    with (
        patch.object(keys_file, "_keep_owner", side_effect=OSError(28, "No space left on device")),
        suppress(keys_file.KeysFileError),
    ):
        keys_file.add_key(path, "k3", grant)
    say("revoking", "k1")
    keys_file.revoke_key(path, "k1")
    say("revoked", "k1")


def _check_keys(folder: Path, said: Said) -> list[str]:
    path = folder / "keys.toml"
    done = {
        word: {rest[0] for one, *rest in said if one == word} for word in ("added", "revoking", "revoked")
    }
    keys = {key.name: key.revoked is not None for key in keys_file.read_keys(path)} if path.exists() else {}
    faults = [f"acked lost: key {name}" for name in done["added"] - keys.keys()]
    faults += [f"acked lost: {name} is revoked no more" for name in done["revoked"] if not keys.get(name)]
    faults += [
        f"strange: {name} is revoked"
        for name, is_over in keys.items()
        if is_over and name not in done["revoking"]
    ]
    used = folder / FILE
    known = json.loads(used.read_text()) if used.exists() else {}
    faults += [f"acked lost: use of {one[1]}" for one in said if one[0] == "used" and one[1] not in known]
    keys_file.add_key(path, "after", Grant(frozenset((ADMIN,))))
    if "after" not in {key.name for key in keys_file.read_keys(path)}:
        faults.append("acked lost: a key added afterwards")
    return faults


# -- copied


COPY_KEY = ClusterKey(["k" * 16])


def _two(folder: Path) -> None:
    for name in ("mine", "theirs"):
        store = RocksStore(folder / name)
        batch = store.batch()
        for number in range(20):
            batch.put(Table.RETAINED, b"%d" % number, name.encode())
        store.write(batch)
        store.flush()
        store.close()
    for left in ("jobs/1", "copy/in"):
        (folder / "mine" / left).mkdir(parents=True)
        (folder / "mine" / left / "000001.sst").touch()


def _copy(folder: Path, say: Say) -> None:
    """The other node is in this process."""
    damage: list[str] = []
    theirs = RocksStore(folder / "theirs")

    async def fetched() -> None:
        site = web.Application()
        site.add_routes(CopyRoutes(lambda: theirs, folder / "theirs", COPY_KEY, damage.append).routes())
        async with open_site(site) as url, ClientSession() as session:
            await fetch(session, url, COPY_KEY, folder / "mine")

    asyncio.run(fetched())
    theirs.close()
    say("fetched")
    recover_swap(folder / "mine")
    say("swapped")


def _check_copy(folder: Path, said: Said) -> list[str]:
    """All of the one or all of the other, at once and after another start; the sender's is as it was."""
    faults = []
    for name, allowed in (("mine", ["theirs"] if said else ["mine", "theirs"]), ("theirs", ["theirs"])):
        for _ in range(2):
            recover_swap(folder / name)
            store = RocksStore(folder / name)
            found = [value.decode() for _, value in store.scan(Table.RETAINED, b"", b"\xff")]
            store.close()
            if found not in [[one] * 20 for one in allowed]:
                faults.append(f"acked lost: {name} has {found}")
        if (folder / name / "copy").exists():
            faults.append(f"strange: something of a copy is left at {name}")
    return faults


# -- served


def _past(folder: Path) -> None:
    """Slices to expire, something of an archive that was cut off; retained messages and a dead letter of
    format 1."""
    past = Past()
    now_ms = wall_ms()
    past.fill(folder / "data", 6, now_ms)
    rows = [[piece.start_ms, piece.ids, piece.cancelled] for piece in past.pieces]
    (folder / "past.json").write_text(json.dumps(rows))
    left = folder / "archive" / "date=2026-01-01" / ".0000000001-0123abcd-0.fedcba.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"PAR1")
    os.utime(left, (0, 0))

    async def retain() -> None:
        async with running(folder / "data", Config(), SimulatedClock(now_ms - DAY_MS)) as server:
            for number in range(2):
                await server.schedule(f"old/{number}", payload="old", retain=True, deliver_in="1s")
            await server.pass_time(2_000)

    asyncio.run(retain())
    store = RocksStore(folder / "data")
    batch = store.batch()
    batch.delete(Table.META, META_RETAINED)
    message = int(past.pieces[-1].cancelled, 16).to_bytes(16, "big")
    letter = DeadLetterRow("away", "away", message, 4, "busy", "", 0, encode(Record(b"t", b"given up")))
    batch.put(Table.DEAD, b"\0" + message[:6] + message[10:], encode_row(letter))
    batch.put(Table.META, META_FORMAT, b"%d" % FORMAT_FIRST)
    store.write(batch)
    store.close()


def _serve(folder: Path, say: Say) -> None:
    """The server in this thread, as it is started; its clients in another."""
    ready, out = os.pipe()
    os.dup2(out, 1)
    settings = {
        "FASTI__SLICES__RETENTION": f"{RETENTION_S}s",
        "FASTI__SLICES__EXPIRE_BY": "job",
        "FASTI__SPARK__ENABLED": "off",
        **({"FASTI__SLICES__ARCHIVE": str(folder / "archive")} if HAS_ARROW else {}),
    }
    os.environ.update(settings)
    failed: list[BaseException] = []

    def clients() -> None:
        try:
            asyncio.run(_use(folder, ready, say))
        except BaseException as error:
            failed.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=clients)
    thread.start()
    with patch.object(retained, "INDEX_ROWS", 1):  # so that one batch is not all
        code = main(["--data", str(folder / "data"), "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"])
    thread.join()
    if failed:
        raise failed[0]
    assert code == 0
    say("stopped")


async def _use(folder: Path, ready: int, say: Say) -> None:
    line = ""
    while "listening" not in line:
        line = (await asyncio.to_thread(os.read, ready, 4_096)).decode()
    words = dict(word.split("=") for word in line.splitlines()[0].split()[1:])
    host, _, port = words["mqtt"].rpartition(":")
    async with http(f"http://{words['http']}") as calls:
        user_of = _User(calls, say, f"http://{words['http']}")
        await user_of.write()
        await user_of.publish((host, int(port)))
        await user_of.split()
        await user_of.expire()
        wish = {"dir": "tuesday"}
        say("asked", "backup")
        await calls.call("POST", "/v1/backups", wish, status=201)
        say("done", "backup")
        # What has expired is forgotten, and its space given back, while nobody waits.
        await asyncio.sleep(0.1)


class _User:
    """One call after the other, each told before and after."""

    def __init__(self, calls: Http, say: Say, url: str) -> None:
        self._calls = calls
        self._say = say
        self._url = url
        self._ids: dict[str, str] = {}

    async def put(self, *texts: str, in_ms: int = HOUR_MS) -> None:
        self._say("put", texts)
        due = format_ms(wall_ms() + in_ms)
        items = [{"topic": "a/b", "payload": text, "deliver_at": due, "key": text} for text in texts]
        if len(items) == 1:
            answer = await self._calls.call("POST", "/v1/messages", items[0], status=201)
            self._ids[texts[0]] = answer.body["id"]
        else:
            answer = await self._calls.schedule_many(items)
            assert answer.status == 201, answer
            self._ids |= dict(zip(texts, answer.body["ids"], strict=True))
        self._say("is put", texts)

    async def cancel(self, text: str) -> None:
        self._say("cancel", text)
        await self._calls.call("DELETE", f"/v1/messages/{self._ids[text]}", status=204)
        self._say("is cancelled", text)

    async def write(self) -> None:
        await self.put("one")
        await self.put("two")
        await self.put("b1", "b2", "b3")
        await self.cancel("one")
        await self._calls.call("PATCH", f"/v1/messages/{self._ids['two']}", {"deliver_in": "2h"}, status=200)
        self._say("cancel", "b2")
        wish = {"filter": {"topic": "a/+", "due_to": format_ms(wall_ms() + HOUR_MS - 100)}, "dry_run": True}
        await self._calls.call("POST", "/v1/messages:cancel", wish, status=200)
        await self.cancel("b2")
        for name in ("stays", "goes"):
            self._say("schedule", name)
            body = {"topic": "tick", "payload": name, "every": "1h"}
            await self._calls.call("PUT", f"/v1/schedules/{name}", body, status=201)
            self._say("is scheduled", name)
        self._say("unschedule", "goes")
        await self._calls.call("DELETE", "/v1/schedules/goes", status=204)
        self._say("is unscheduled", "goes")

    async def publish(self, mqtt: tuple[str, int]) -> None:
        peer = await dial(mqtt)
        await peer.connect("away", clean=False, session_expiry=36_000)
        await peer.subscribe("live/#", qos=2)
        self._say("session", "away")
        await peer.close()
        peer = await dial(mqtt)
        await peer.connect("writer")
        for number in (1, 2):
            self._say("retain", number)
            peer.send(Publish(b"kept", b"%d" % number, 1, retain=True, packet_id=number))
            await peer.take(Ack)
            self._say("is retained", number)
        self._say("put", ["live1"])
        await peer.publish("live/1", "live1")
        self._say("is put", ["live1"])
        self._say("put", ["later"])
        due = (("deliver-at", format_ms(wall_ms() + HOUR_MS)),)
        packet_id = peer.put("live/2", "later", 2, user_properties=due)
        received = await peer.take(Ack)
        assert received.kind == wire.PUBREC
        assert user(received, "fasti-id")
        self._say("is put", ["later"])
        peer.send(Ack(wire.PUBREL, packet_id))
        await peer.take(Ack)
        await peer.close()

    async def split(self) -> None:
        """One whole, with a cancel on the way; one that is given up."""
        start_ms = (wall_ms() // DAY_MS + 5) * DAY_MS
        self._say("put", [f"f{n}" for n in range(9)])
        items = [
            {"topic": "far", "payload": f"f{n}", "deliver_at": format_ms(start_ms + n * QUARTER_MS)}
            for n in range(9)
        ]
        answer = await self._calls.schedule_many(items)
        self._ids |= {f"f{n}": name for n, name in enumerate(answer.body["ids"])}
        self._say("is put", [f"f{n}" for n in range(9)])
        job = await self._job(slice=start_ms)
        cuts = [start_ms + n * QUARTER_MS for n in (3, 6)]
        await self.cancel("f4")
        pieces = await asyncio.to_thread(counted, job, cuts)
        await self.cancel("f5")
        await self._tell(job, "commit", cuts=cuts, pieces=pieces)
        job = await self._job(slice=start_ms)
        await self._tell(job, "abort", detail="enough")

    async def expire(self) -> None:
        """By the very program of the pipeline, with an archive if pyarrow is there."""
        from spark.job import Job
        from spark.remote import Remote
        from spark.run import run

        for kind in (*(["archive"] if HAS_ARROW else []), "expire"):
            job = await self._job(kind)
            starts_ms = [one["start_ms"] for one in job["slices"]] if kind == "expire" else []
            self._say(kind, starts_ms)
            await asyncio.to_thread(run, Remote(self._url), msgspec.convert(job, Job), None)
            self._say(f"is {kind}d", starts_ms)

    async def _job(self, kind: str = "split", **members: object) -> Any:
        wish = {"kind": kind, "run": "caller", **members}
        return (await self._calls.call("POST", "/v1/jobs", wish, status=201)).body

    async def _tell(self, job: Any, verb: str, **members: object) -> Any:
        body = {"token": job["token"], **members}
        return (await self._calls.call("POST", f"/v1/jobs/{job['id']}:{verb}", body, status=200)).body


def _check_served(folder: Path, said: Said) -> list[str]:
    data = folder / "data"
    faults = verified(data)
    store = RocksStore(data)
    hand = Hand(store, HandClock(wall_ms()), reached=lambda point: None)
    rows = [value for _, _, value in hand.core.reader.read(START, END) if not is_stub(value)]
    faults += _wrong_messages(Counter(decode(value).payload.decode() for value in rows), said)
    faults += _wrong_past(hand, folder, said)
    letters = [(row.group, row.message().payload) for row in dead(store)]
    if letters != [("away", b"given up")]:
        faults.append(f"acked lost: the dead letter of format 1: there are {letters}")
    faults += _wrong_rows(store, hand, said)
    hand.rest()
    faults += [f"not verified: {fault}" for fault in verify_counts(store, hand.core.directory)]
    store.close()
    faults += verified(data)
    backup = folder / "backups" / "tuesday"
    if ["done", "backup"] in said and not backup.exists():
        faults.append("acked lost: the backup")
    if backup.exists():
        faults += verified(backup)
    if HAS_ARROW:
        faults += _wrong_archive(folder, said)
    return faults


def _told(said: Said, word: str) -> list[Any]:
    return [rest[0] for one, *rest in said if one == word]


NOT_PUT = ("stays", "goes", "old")
"""Texts of messages of schedules and of the past: many have one."""


def _wrong_messages(there: Counter[str], said: Said) -> list[str]:
    messages = Messages()
    for texts in _told(said, "put"):
        for text in texts:
            message = messages.ask(text, "a/b", 0, texts[0])
            message.is_cancel_asked = text in _told(said, "cancel")
            message.is_cancelled = text in _told(said, "is cancelled")
            if texts in _told(said, "is put"):
                messages.accepted(message)
    known = Counter({text: count for text, count in there.items() if text not in NOT_PUT})
    messages.stored(known, messages.by_tag.values())
    return [str(fault) for fault in messages.book.faults]


def _wrong_rows(store: RocksStore, hand: Hand, said: Said) -> Iterator[str]:
    rows = {key.decode(): schedule_of(value) for key, value in store.scan(Table.SCHEDULES, b"", b"\xff" * 8)}
    unasked = set(_told(said, "is scheduled")) - set(_told(said, "unschedule"))
    yield from (f"acked lost: schedule {name}" for name in unasked - rows.keys())
    yield from (f"strange: schedule {name}" for name in _told(said, "is unscheduled") if name in rows)
    for name in _told(said, "session"):
        if hand.core.sessions.get(name) is None:
            yield f"acked lost: session {name}"
    kept = store.get(Table.RETAINED, b"kept")
    number = int(decode(kept[14:]).payload) if kept else 0
    if not max(_told(said, "is retained"), default=0) <= number <= max(_told(said, "retain"), default=0):
        yield f"retained lost: {number}"
    indexed = [topic for key, topic in store.scan(Table.RETAINED, b"", b"\xff" * 64) if len(topic) < 40]
    for topic in ("old/0", "old/1"):
        if topic.encode() not in indexed:
            yield f"retained lost: {topic} has no row by its position"


def _wrong_past(hand: Hand, folder: Path, said: Said) -> Iterator[str]:
    asked, done = ({ms for one in _told(said, word) for ms in one} for word in ("expire", "is expired"))
    for start_ms, ids, cancelled in json.loads((folder / "past.json").read_text()):
        piece = Piece(start_ms, ids, cancelled, start_ms in asked, start_ms in done)
        rows = {name: hand.core.reader.find(MessageId(int(name, 16))) for name in ids.values()}
        states = {
            name: "cancelled" if name == cancelled else "dispatched"
            for name, row in rows.items()
            if row is not None
        }
        yield from wrong(piece, states)


def _wrong_archive(folder: Path, said: Said) -> Iterator[str]:
    """What has expired is in it, once; whatever it has is whole."""
    import pyarrow.parquet as pq

    from spark.manifests import read_archive
    from spark.storage import storage_at
    from spark.verify import faults_in

    archive = str(folder / "archive")
    # A kill before the first commit leaves no archive yet: what has to be in it is compared with the account.
    no_faults = ("belongs to no commit", "is no archive: it has no manifests")
    yield from (fault for fault in faults_in(archive) if not fault.endswith(no_faults))
    files = read_archive(storage_at(archive)).files()
    names = [pq.ParquetFile(f"{archive}/{file.path}").read(["id"])["id"].to_pylist() for file in files]
    found = Counter(name for some in names for name in some)
    yield from (f"archived twice: {name}" for name, count in found.items() if count > 1)
    gone = {start_ms for one in _told(said, "expire") for start_ms in one}
    for start_ms, ids, _ in json.loads((folder / "past.json").read_text()):
        if lost := {*ids.values()} - {*found} if start_ms in gone else ():
            yield f"acked lost: {len(lost)} messages of {start_ms} are not in the archive"


# -- careless


def _key_in_place(folder: Path, say: Say) -> None:
    """What the others are held against: a keys file that is written where it lies."""

    def in_place(path: Path, text: str) -> None:
        path.touch(mode=0o600)
        path.write_text(text)

    with patch.object(keys_file, "_replace", in_place):
        _key(folder, say)


PLOTS = {
    "worked": Plot(_nothing, _work, _check_work),
    "undone": Plot(_nothing, undone.play, undone.check),
    "marked": Plot(_nothing, _mark, _check_mark),
    "repaired": Plot(_spoil, _repair, _check_repair),
    "retimed": Plot(_wish_locally, _retime, _check_retime),
    "keyed": Plot(_nothing, _key, _check_keys),
    "copied": Plot(_two, _copy, _check_copy),
    "served": Plot(_past, _serve, _check_served),
    "careless": Plot(_nothing, _key_in_place, _check_keys),
}
