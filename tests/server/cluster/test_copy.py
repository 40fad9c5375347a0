"""A node's data for another: whole or not at all, whatever comes between."""

import asyncio
import os
import queue
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from server.cluster import copy_in
from server.cluster.copy_in import FOLDER, IN, MOVING, READY, CopyFailed, fetch, recover_swap, unpack
from server.cluster.copy_out import OUT, CopyRoutes, pack
from server.http.problems import problem_middleware
from shards.errors import StoreFailed
from shards.rocks import RocksStore
from shards.store import Table

KEY = "a key of the nodes"
END = b"\xff" * 64
Rows = dict[Table, list[tuple[bytes, bytes]]]


def filled(path: Path, mark: bytes, count: int = 300) -> Rows:
    store = RocksStore(path)
    for table in Table:
        batch = store.batch()
        for number in range(count):
            batch.put(table, b"k%05d" % number, mark * 40)
        store.write(batch)
    store.flush()
    rows = rows_of(store)
    store.close()
    return rows


def rows_of(store: RocksStore) -> Rows:
    return {table: list(store.scan(table, b"", END)) for table in Table}


def rows_in(path: Path) -> Rows:
    store = RocksStore(path)
    try:
        return rows_of(store)
    finally:
        store.close()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[tuple[RocksStore, Path]]:
    path = tmp_path / "source"
    filled(path, b"new")
    store = RocksStore(path)
    yield store, path
    store.close()


@asynccontextmanager
async def serving(routes: list[web.RouteDef]) -> AsyncIterator[str]:
    site = web.Application(middlewares=[problem_middleware])
    site.router.add_routes(routes)
    runner = web.AppRunner(site, shutdown_timeout=0.1)
    await runner.setup()
    at = web.TCPSite(runner, "127.0.0.1", 0)
    await at.start()
    assert runner.addresses
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def copied(url: str, data: Path, key: str = KEY) -> None:
    async with aiohttp.ClientSession() as session:
        await fetch(session, url, key, data)


async def test_a_copy_is_the_same_row_by_row(tmp_path: Path, source: tuple[RocksStore, Path]) -> None:
    store, path = source
    data = tmp_path / "data"
    filled(data, b"old")
    (data / "keys-used.json").write_text("{}")
    async with serving(CopyRoutes(lambda: store, path, KEY).routes()) as url:
        await copied(url, data)
    assert not (path / FOLDER / OUT).exists(), "nothing is left where it came from"
    recover_swap(data)
    assert rows_in(data) == rows_of(store)
    assert (data / "keys-used.json").exists(), "it is not the store's"
    assert not (data / FOLDER).exists()


async def test_the_source_goes_on_meanwhile(tmp_path: Path, source: tuple[RocksStore, Path]) -> None:
    store, path = source
    before = rows_of(store)
    gave = asyncio.Event()

    def slow() -> RocksStore:
        gave.set()
        return store

    async with serving(CopyRoutes(slow, path, KEY).routes()) as url:
        work = asyncio.ensure_future(copied(url, tmp_path / "data"))
        await gave.wait()
        for number in range(50):
            batch = store.batch()
            batch.put(Table.META, b"later%03d" % number, b"x")
            store.write(batch)
            await asyncio.sleep(0)
        await work
    recover_swap(tmp_path / "data")
    there = rows_in(tmp_path / "data")
    del before[Table.META], there[Table.META]
    assert there == before


async def test_who_does_not_show_the_key_gets_nothing(
    tmp_path: Path, source: tuple[RocksStore, Path]
) -> None:
    store, path = source
    async with serving(CopyRoutes(lambda: store, path, KEY).routes()) as url:
        with pytest.raises(CopyFailed, match="status 401"):
            await copied(url, tmp_path / "data", "another key")
    assert not (tmp_path / "data").exists()


async def test_one_copy_at_a_time(tmp_path: Path, source: tuple[RocksStore, Path]) -> None:
    store, path = source
    begun, goes_on = Event(), Event()

    class Slow:
        def checkpoint(self, path: Path) -> None:
            begun.set()
            goes_on.wait(10)
            store.checkpoint(path)

    async with serving(CopyRoutes(Slow, path, KEY).routes()) as url:  # type: ignore[arg-type]
        first = asyncio.ensure_future(copied(url, tmp_path / "a"))
        while not begun.is_set():
            await asyncio.sleep(0)
        with pytest.raises(CopyFailed, match="status 503"):
            await copied(url, tmp_path / "b")
        goes_on.set()
        await first
        await copied(url, tmp_path / "b")


async def test_a_store_that_is_not_open_is_said(tmp_path: Path) -> None:
    async with serving(CopyRoutes(lambda: None, tmp_path, KEY).routes()) as url:
        with pytest.raises(CopyFailed, match="status 503"):
            await copied(url, tmp_path / "data")


async def test_who_goes_away_leaves_nothing(tmp_path: Path, source: tuple[RocksStore, Path]) -> None:
    store, path = source
    (path / "copy").mkdir(exist_ok=True)
    big = RocksStore(tmp_path / "big")
    batch = big.batch()
    for number in range(3_000):
        batch.put(Table.MESSAGES, b"%05d" % number, os.urandom(4_000))
    big.write(batch)
    async with serving(CopyRoutes(lambda: big, tmp_path / "big", KEY).routes()) as url:
        async with aiohttp.ClientSession() as session:
            answer = await session.get(
                f"{url}/v1/cluster/checkpoint", headers={"Authorization": f"Bearer {KEY}"}
            )
            await answer.content.readany()
            answer.close()
        for _ in range(200):
            if not (tmp_path / "big" / FOLDER / OUT).exists():
                break
            await asyncio.sleep(0.02)
        assert not (tmp_path / "big" / FOLDER / OUT).exists()
        await copied(url, tmp_path / "data")
    big.close()
    del store


def packed(folder: Path) -> bytes:
    pieces: list[bytes] = []
    pack(folder, pieces.append)
    return b"".join(pieces)


def unpacked(stream: bytes, data: Path) -> None:
    pieces: queue.Queue[bytes | None] = queue.Queue()
    for start in range(0, len(stream), 1000):
        pieces.put(stream[start : start + 1000])
    pieces.put(None)
    unpack(pieces, data / FOLDER)


@pytest.fixture
def stream(tmp_path: Path) -> bytes:
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("CURRENT", "000005.sst", "MANIFEST-000004"):
        (folder / name).write_bytes(name.encode() * 500)
    return packed(folder)


def test_a_stream_that_was_cut_off_is_not_taken(tmp_path: Path, stream: bytes) -> None:
    for end in range(0, len(stream), 512):
        if stream[end:].strip(b"\0"):
            with pytest.raises((OSError, ValueError, copy_in.tarfile.TarError)):
                unpacked(stream[:end], tmp_path / "data")
        assert not (tmp_path / "data" / FOLDER / READY).exists() or not stream[end:].strip(b"\0")
        shutil.rmtree(tmp_path / "data", ignore_errors=True)


def test_a_flipped_byte_is_seen(tmp_path: Path, stream: bytes) -> None:
    for at in range(0, len(stream.rstrip(b"\0")), 257):
        changed = bytearray(stream)
        changed[at] ^= 1
        data = tmp_path / f"data{at}"
        try:
            unpacked(bytes(changed), data)
        except (OSError, ValueError, copy_in.tarfile.TarError):
            continue
        names = {path.name: path.read_bytes() for path in (data / FOLDER / READY).iterdir()}
        assert names == {name: name.encode() * 500 for name in ("CURRENT", "000005.sst", "MANIFEST-000004")}


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "..", "."])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    import io
    import tarfile

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w|") as tar:
        info = tarfile.TarInfo(name)
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(ValueError, match="a copy has no"):
        unpacked(made.getvalue(), tmp_path / "data")


class Killed(BaseException):
    """The process has ended here."""


def test_a_kill_at_any_moment_leaves_the_old_rows_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each call that changes the disk, and again while it goes on, the swap ends with one."""
    old = filled(tmp_path / "old", b"old", 20)
    new = filled(tmp_path / "new", b"new", 20)
    stream = packed(tmp_path / "new")
    left = -1

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return call(*given, **named)

        return counting

    for name in ("rename", "unlink", "mkdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(copy_in.os, "fsync", counted(os.fsync))
    monkeypatch.setattr(copy_in.shutil, "rmtree", counted(shutil.rmtree))
    seen = set()
    for kill in range(200):
        data = tmp_path / f"data{kill}"
        left = -1
        shutil.copytree(tmp_path / "old", data)
        left = kill
        try:
            unpacked(stream, data)
            recover_swap(data)
        except Killed:
            pass
        is_done = left > 0
        for again in range(kill % 7):
            left = again
            try:
                recover_swap(data)
            except Killed:
                continue
        left = -1
        recover_swap(data)
        found = rows_in(data)
        assert found in (old, new)
        seen.add(found == new)
        left = -1
        shutil.rmtree(data)
        if is_done:
            break
    else:
        pytest.fail("it never came to its end")
    assert seen == {False, True}


def test_what_a_kill_left_of_a_copy_goes(tmp_path: Path) -> None:
    for name in (IN, OUT):
        (tmp_path / FOLDER / name).mkdir(parents=True)
    recover_swap(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / FOLDER / MOVING).mkdir(parents=True)
    (tmp_path / FOLDER / MOVING / "CURRENT").touch()
    recover_swap(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["CURRENT"]


async def test_a_checkpoint_that_fails_is_said(tmp_path: Path) -> None:
    class Failing:
        def checkpoint(self, path: Path) -> None:
            raise StoreFailed("no room")

    async with serving(CopyRoutes(lambda: Failing(), tmp_path, KEY).routes()) as url:  # type: ignore[arg-type,return-value]
        with pytest.raises(CopyFailed, match="status 503"):
            await copied(url, tmp_path / "data")
