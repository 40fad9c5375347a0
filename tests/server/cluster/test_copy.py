"""One node's data at another: whole, or not at all; and so too after a kill at any moment of the swap."""

import asyncio
import io
import os
import shutil
import tarfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import aiohttp
import pytest
from aiohttp import web

from server.cluster import copy_in, copy_out, swap
from server.cluster.copy_in import CopyFailed, fetch
from server.cluster.copy_out import CopyRoutes, pack
from server.cluster.key import ClusterKey
from server.cluster.swap import FOLDER, IN, MOVING, READY, check_swapped, recover_swap
from server.http.problems import problem_middleware
from server.offline import verify
from shards.errors import StoreFailed, StoreLocked
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore, applied_of
from shards.rocks import RocksStore
from shards.store import Store, Table
from tests.support.http import open_site
from tests.support.logs import Elapsing
from tests.support.served import until
from tests.support.shelf import MemoryEngine, Shelf
from tests.support.stores import rewrite

SECRET = "k" * 32
KEY = ClusterKey([SECRET])
LAST = b"\xff" * 64
Rows = dict[Table, dict[bytes, bytes]]


def rows_of(store: Store) -> Rows:
    return {table: dict(store.scan(table, b"", LAST)) for table in Table}


def fill(store: Store, word: str, count: int = 50) -> Rows:
    batch = store.batch()
    for table in set(Table) - {Table.DEAD}:  # a log takes no rows of that
        for number in range(count):
            batch.put(table, b"row%04d" % number, word.encode() * 20)
    store.write(batch)
    store.flush()
    return rows_of(store)


def made(path: Path, word: str, count: int = 50) -> Rows:
    store = RocksStore(path)
    rows = fill(store, word, count)
    store.close()
    return rows


def opened(path: Path) -> Rows:
    store = RocksStore(path)
    try:
        return rows_of(store)
    finally:
        store.close()


@asynccontextmanager
async def serving(handler: Callable[[web.Request], object] | CopyRoutes) -> AsyncIterator[str]:
    """A node, as far as copies go; or whoever says it is one."""
    app = web.Application(middlewares=[problem_middleware])
    if isinstance(handler, CopyRoutes):
        app.router.add_routes(handler.routes())
    else:
        app.router.add_get("/v1/cluster/checkpoint", handler)  # type: ignore[arg-type]
    async with open_site(app) as url:
        yield url


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "theirs")
    yield store
    store.close()


def routes_of(store: Store, path: Path) -> CopyRoutes:
    return CopyRoutes(lambda: store, path, KEY, pytest.fail)


async def test_a_copy_has_every_row_and_what_is_not_the_stores_stays(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    rows, mine = fill(theirs, "new"), tmp_path / "mine"
    made(mine, "old", 80)
    for name in ("keys-used.json", "keys.toml", "lost+found/x", "jobs/1/plan/y"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text("{}")
    async with serving(routes_of(theirs, theirs.path)) as url:
        await fetch(session, url, KEY, mine)
    assert not (theirs.path / FOLDER / copy_out.OUT).exists()
    with pytest.raises(StoreFailed, match="half installed"):
        verify(mine, 100, repair=False)
    recover_swap(mine)
    check_swapped(mine)
    assert not (mine / FOLDER).exists()
    assert not (mine / "jobs").exists()
    assert all((mine / name).exists() for name in ("keys-used.json", "keys.toml", "lost+found/x"))
    assert opened(mine) == rows
    assert opened(mine) == rows  # and its note of what was synced fits


async def test_a_copy_under_writes_is_a_prefix(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    over = threading.Event()

    def write() -> None:
        for number in range(1_000_000):
            name = b"%08d" % number
            rewrite(theirs, (Table.MESSAGES, name, os.urandom(200)), (Table.META, b"last", name))
            if over.wait(0.0002):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        await until(lambda: theirs.get(Table.META, b"last") is not None)
        async with serving(routes_of(theirs, theirs.path)) as url:
            await fetch(session, url, KEY, tmp_path / "mine")
    finally:
        over.set()
        writer.join()
    recover_swap(tmp_path / "mine")
    rows, whole = opened(tmp_path / "mine"), rows_of(theirs)
    last = int(rows[Table.META][b"last"])
    assert last < int(whole[Table.META][b"last"])
    assert list(rows[Table.MESSAGES]) == [b"%08d" % number for number in range(last + 1)]
    assert rows[Table.MESSAGES].items() <= whole[Table.MESSAGES].items()


async def test_a_copy_says_up_to_which_record_it_has_the_log(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    shelf, below = Shelf(), RocksStore(tmp_path / "theirs")
    leader = ReplicatedStore(below, open_engine(MemoryEngine(shelf), Elapsing(), 2.0))
    leader.lead("a", "http://a")
    for number in range(5):
        fill(leader, f"w{number}", 3)
    async with serving(routes_of(leader, below.path)) as url:
        await fetch(session, url, KEY, tmp_path / "mine")
        at = leader.applied
    fill(leader, "later", 9)
    recover_swap(tmp_path / "mine")
    mine = RocksStore(tmp_path / "mine")
    assert applied_of(mine) == at
    follower = ReplicatedStore(mine, open_engine(MemoryEngine(shelf), Elapsing(), 2.0))
    assert follower.follow() == 1
    assert rows_of(follower) == rows_of(leader)
    follower.close()
    leader.close()


async def test_only_who_shows_the_key_gets_one(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    async with serving(routes_of(theirs, theirs.path)) as url:
        with pytest.raises(CopyFailed, match="status 401"):
            await fetch(session, url, ClusterKey(["x" * 32]), tmp_path / "mine")
        async with session.get(f"{url}/v1/cluster/checkpoint") as answer:
            assert answer.status == 401
            assert (await answer.json(content_type=None))["type"] == "/problems/unauthorized"
    assert not (tmp_path / "mine").exists()


@pytest.mark.long
async def test_one_at_a_time_and_nothing_is_left_of_who_has_gone(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    fill(theirs, "x" * 3_000, 200)
    theirs.unload()
    big = theirs.batch()
    for number in range(300):
        big.put(Table.MESSAGES, b"big%04d" % number, os.urandom(100_000))
    theirs.write(big)
    scratch = theirs.path / FOLDER / copy_out.OUT
    head = {"Authorization": f"Bearer {SECRET}"}
    async with serving(routes_of(theirs, theirs.path)) as url:
        first = await session.get(f"{url}/v1/cluster/checkpoint", headers=head)
        assert first.status == 200
        async with session.get(f"{url}/v1/cluster/checkpoint", headers=head) as second:
            assert (second.status, second.headers["Retry-After"]) == (503, "1")
        assert scratch.exists()
        first.close()
        await until(lambda: not scratch.exists())
        async with asyncio.timeout(60):
            while True:
                async with session.get(f"{url}/v1/cluster/checkpoint", headers=head) as third:
                    if third.status == 200:
                        break
        await until(lambda: not scratch.exists())
    assert not scratch.exists()


async def test_a_store_that_is_not_open_or_gives_none_is_said(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    routes = CopyRoutes(lambda: None, theirs.path, KEY, pytest.fail)
    async with serving(routes) as url:
        with pytest.raises(CopyFailed, match="status 503"):
            await fetch(session, url, KEY, tmp_path / "mine")
    async with serving(routes_of(theirs, theirs.path)) as url:
        with patch.object(RocksStore, "checkpoint", side_effect=StoreFailed("no room")):
            for _ in range(2):
                with pytest.raises(CopyFailed, match="status 503"):
                    await fetch(session, url, KEY, tmp_path / "mine")
        await fetch(session, url, KEY, tmp_path / "mine")


def test_what_a_kill_left_of_a_copy_goes(tmp_path: Path) -> None:
    rows = made(tmp_path, "old")
    for name in (IN, copy_out.OUT):
        (tmp_path / FOLDER / name).mkdir(parents=True)
        (tmp_path / FOLDER / name / "CURRENT").touch()
    check_swapped(tmp_path)
    recover_swap(tmp_path)
    assert not (tmp_path / FOLDER).exists()
    assert opened(tmp_path) == rows


@pytest.mark.long
async def test_who_takes_nothing_is_given_up(theirs: RocksStore, session: aiohttp.ClientSession) -> None:
    big = theirs.batch()
    for number in range(300):
        big.put(Table.MESSAGES, b"big%04d" % number, os.urandom(100_000))
    theirs.write(big)
    head = {"Authorization": f"Bearer {SECRET}"}
    with patch.object(copy_out, "TAKE_S", 0.05):
        async with serving(routes_of(theirs, theirs.path)) as url:
            answer = await session.get(f"{url}/v1/cluster/checkpoint", headers=head)
            await until(lambda: not (theirs.path / FOLDER / copy_out.OUT).exists())
            with pytest.raises(aiohttp.ClientError):
                await answer.read()


def names_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def packed(folder: Path) -> bytes:
    pieces: list[bytes] = []
    pack(folder, pieces.append, lambda: None)
    return b"".join(pieces)


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "CURRENT"
    return info


async def refused(session: aiohttp.ClientSession, data: Path, *bodies: bytes, match: str) -> None:
    """Each of them, and nothing is left."""
    for body in bodies:

        async def answer(_: web.Request, body: bytes = body) -> web.Response:
            return web.Response(body=body)

        async with serving(answer) as url:
            with pytest.raises(CopyFailed, match=match):
                await fetch(session, url, KEY, data)
        assert not any((data / FOLDER / name).exists() for name in (IN, READY))


@pytest.mark.long
async def test_what_was_cut_off_or_changed_is_not_taken(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    fill(theirs, "new")
    theirs.checkpoint(tmp_path / "check")
    whole, mine = packed(tmp_path / "check"), tmp_path / "mine"
    rows = made(mine, "old")
    manifest = whole.index(copy_out.MANIFEST.encode())
    some = range(1_000, manifest, manifest // 20)
    cuts = [
        whole[:at] for at in (0, 100, 512, len(whole) // 2, manifest - 1, manifest, manifest + 600, *some)
    ]
    await refused(
        session, mine, *cuts, match="incomplete|cut off|ReadError|unexpected end|StreamError|JSON|truncated"
    )
    at = whole.index(b"new" * 20) if b"new" * 20 in whole else len(whole) // 3
    flipped = bytearray(whole)
    flipped[at] ^= 1
    await refused(session, mine, bytes(flipped), match="differs from what was sent")
    await refused(session, mine, whole + bytes(4 << 20), match="follows the manifest")
    recover_swap(mine)
    assert opened(mine) == rows


async def test_a_connection_that_ends_early_is_no_end(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    """Even if all of the tar has come."""
    fill(theirs, "new")
    theirs.checkpoint(tmp_path / "check")
    whole = packed(tmp_path / "check")

    async def answer(request: web.Request) -> web.StreamResponse:
        said = web.StreamResponse()
        await said.prepare(request)
        await said.write(whole)
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.close()
        return said

    async with serving(answer) as url:
        with pytest.raises(CopyFailed):
            await fetch(session, url, KEY, tmp_path / "mine")
    assert not (tmp_path / "mine" / FOLDER / READY).exists()


async def test_who_sends_nothing_is_given_up(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        said = web.StreamResponse()
        await said.prepare(request)
        await said.write(b"x" * 100)
        await asyncio.sleep(5)
        return said

    async with serving(answer) as url:
        with patch.object(copy_in, "IDLE_S", 0.05), pytest.raises(CopyFailed, match="Timeout"):
            await fetch(session, url, KEY, tmp_path / "mine")


@pytest.mark.parametrize(
    "info",
    [
        *(member(name) for name in ("../x", "/etc/x", "a/CURRENT", "LOCK", "keys.toml", "..", "synced")),
        *(member("CURRENT", kind) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE)),
        *(member("CURRENT", kind) for kind in (tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE)),
        *(member("CURRENT", kind) for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)),
    ],
    ids=lambda info: f"{info.name} {info.type!r}",
)
async def test_other_names_and_kinds_are_refused(
    tmp_path: Path, session: aiohttp.ClientSession, info: tarfile.TarInfo
) -> None:
    await refused(session, tmp_path / "mine", tar_of((info, b"")), match="unexpected entry")
    assert names_below(tmp_path) == [FOLDER, "mine"]


async def test_a_copy_for_which_there_is_no_room_is_refused(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    with patch.object(copy_in, "SPARE_BYTES", 1 << 60):
        async with serving(routes_of(theirs, theirs.path)) as url:
            with pytest.raises(CopyFailed, match="no room for"):
                await fetch(session, url, KEY, tmp_path / "mine")


@pytest.mark.process
def test_a_store_that_is_open_is_not_swapped(tmp_path: Path) -> None:
    made(tmp_path / "mine", "old")
    (tmp_path / "mine" / FOLDER / READY).mkdir(parents=True)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # a lock is a process's
        swap.fcntl.lockf(os.open(tmp_path / "mine" / "LOCK", os.O_RDWR), swap.fcntl.LOCK_EX)
        os.write(writing, b".")
        os.read(os.pipe()[0], 1)
        os._exit(0)
    os.read(reading, 1)
    try:
        with pytest.raises(StoreLocked):
            recover_swap(tmp_path / "mine")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert (tmp_path / "mine" / "CURRENT").exists()


class Killed(BaseException):
    """Nothing cleans up after it here either."""


class Kills:
    """Ends it before the `nth` call that changes the disk; none at all comes after that."""

    CALLS = ((os, "unlink"), (os, "rmdir"), (os, "rename"), (os, "fsync"), (os, "mkdir"))

    def __init__(self, nth: int) -> None:
        self.left = nth
        self._patches = [patch.object(owner, name, self._over(owner, name)) for owner, name in self.CALLS]

    def _over(self, owner: object, name: str) -> Callable[..., object]:
        call = getattr(owner, name)

        def counted(*args: object, **named: object) -> object:
            self.left -= 1
            if self.left <= 0:
                raise Killed
            return call(*args, **named)

        return counted

    def __enter__(self) -> "Kills":
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()


@pytest.mark.long
def test_a_kill_before_any_change_of_the_disk_leaves_what_the_next_start_finishes(tmp_path: Path) -> None:
    """And one more in the midst of that."""
    base = tmp_path / "base"
    made(base / "data", "old")
    rows = made(tmp_path / "new", "new")
    store = RocksStore(tmp_path / "new")
    (base / "data" / FOLDER).mkdir()
    store.checkpoint(base / "data" / FOLDER / READY)
    store.close()
    nth, is_over, kills = 0, False, 0
    while not is_over:
        nth += 1
        data = tmp_path / "data"
        shutil.copytree(base / "data", data)
        with Kills(nth):
            try:
                recover_swap(data)
                is_over = True
            except Killed:
                kills += 1
        if nth % 3 == 0 and not is_over:
            with Kills(nth // 3), suppress(Killed):
                recover_swap(data)
        if (data / FOLDER / READY).exists() or (data / FOLDER / MOVING).exists():
            with pytest.raises(StoreFailed):
                check_swapped(data)
        recover_swap(data)
        assert not (data / FOLDER).exists()
        assert opened(data) == rows, nth
        shutil.rmtree(data)
    assert kills > 20


def rotten(store: RocksStore) -> None:
    """Flip bytes in the middle of the largest table file."""
    store.unload()
    table = max(store.path.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    at = len(data) // 2
    data[at : at + 16] = bytes(byte ^ 0x55 for byte in data[at : at + 16])
    with table.open("r+b") as file:  # the same file: links to it have rotted too
        file.write(data)


def much(store: Store) -> None:
    batch = store.batch()
    for number in range(4_000):
        batch.put(Table.MESSAGES, b"%08d" % number, os.urandom(500))
    store.write(batch)


async def test_damage_is_not_handed_on(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    """It is found before anything is sent, or between two pieces; who has found it gives no other copy."""
    much(theirs)
    rotten(theirs)
    rows, found = made(tmp_path / "mine", "old"), list[str]()
    for keep_s, match in ((5.0, "status 503"), (0.0, "incomplete|cut off|Payload|reset|Disconnected")):
        routes = CopyRoutes(lambda: theirs, theirs.path, KEY, found.append)
        with patch.object(copy_out, "KEEP_S", keep_s):
            async with serving(routes) as url:
                with pytest.raises(CopyFailed, match=match):
                    await fetch(session, url, KEY, tmp_path / "mine")
                await until(lambda: not (theirs.path / FOLDER / copy_out.OUT).exists())
    assert len(found) == 2
    assert all("block checksum mismatch" in text for text in found)
    theirs.damage = found[0]
    async with serving(routes_of(theirs, theirs.path)) as url:
        with pytest.raises(CopyFailed, match=r"status 503: This node's data is damaged$"):
            await fetch(session, url, KEY, tmp_path / "mine")
    recover_swap(tmp_path / "mine")
    assert opened(tmp_path / "mine") == rows


async def test_damage_on_the_way_to_the_disk_is_not_taken(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    """The sender does not look, as one of an earlier version."""
    much(theirs)
    rotten(theirs)
    theirs.checkpoint(tmp_path / "sent")
    await refused(session, tmp_path / "mine", packed(tmp_path / "sent"), match="block checksum mismatch")


async def test_a_check_of_what_was_received_is_given_up_with_the_copy(
    tmp_path: Path, theirs: RocksStore, session: aiohttp.ClientSession
) -> None:
    much(theirs)
    checking = threading.Event()

    def endless(_: Path) -> Iterator[None]:
        checking.set()
        while True:
            yield

    async with serving(routes_of(theirs, theirs.path)) as url:
        with patch.object(copy_in, "whole", endless):
            task = asyncio.ensure_future(fetch(session, url, KEY, tmp_path / "mine"))
            await until(checking.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert names_below(tmp_path / "mine" / FOLDER) == []
