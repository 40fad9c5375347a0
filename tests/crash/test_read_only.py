"""The file system becomes read-only under a running server, or is so at a start; and looking at such data.

A kernel remounts an ext4 that it finds damaged; here it is told to find it so (FASTI_SOAK=1). That cannot be
taken back, so the disk that can be written again is another one: a file system in RAM, remounted while the
server has nothing open to write, which a limit on the size of its files sees to. Both take the right to
mount; skipped without it.
"""

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.codec.packets import Ack
from server.offline import inspect, leave, verify
from server.settings.times import format_ms
from shards.errors import StoreFailed
from shards.recover import open_timeline
from shards.rocks import RocksStore
from tests.shards.timelines import CAPS, NOW, draft, put
from tests.support.http import Http, http
from tests.support.mqtt import dial, payloads, wall_ms
from tests.support.server import ServerProcess, run, serving
from tests.support.soak import SOAK

from .disks import LAG_MS, due_soon, limited, reader_of, until_refused, until_taken
from .lag import lag_of

UNSPECIFIED = 0x83


def _told(*command: str) -> str | None:
    """Why it failed, or None."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        return str(error)
    return (done.stderr.strip() or "no reason") if done.returncode else None


@contextmanager
def _mounted(image: Path, at: Path) -> Iterator[None]:
    if (why := _told("mount", "-o", "loop,errors=remount-ro", str(image), str(at))) is not None:
        pytest.skip(f"no ext4 of its own for the test: {why}")
    try:
        yield
    finally:
        assert _told("umount", "--lazy", str(at)) is None


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An ext4 file system in a file."""
    path = tmp_path / "image"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(48 << 20)
    if (why := _told("mkfs.ext4", "-q", str(path))) is not None:
        pytest.skip(f"no ext4 of its own for the test: {why}")
    return path


async def _remount(disk: Path, how: str) -> None:
    """Once nobody has anything open to write there."""
    async with asyncio.timeout(60):
        while (why := _told("mount", "-o", f"remount,{how}", str(disk))) is not None:
            assert "busy" in why, why
            await asyncio.sleep(0.05)


async def _nothing_is_taken(calls: Http, server: ServerProcess, acked: list[str]) -> None:
    """Writes are refused, whoever asks; what needs none goes on."""
    refused = await until_refused(calls)
    assert refused.slug == "store-unavailable"
    assert "Retry-After" in refused.headers
    assert (await calls.call("GET", "/readyz")).status == 503
    assert (await calls.call("DELETE", f"/v1/messages/{acked[0]}")).status == 503
    assert (await calls.call("PATCH", f"/v1/messages/{acked[1]}", {"deliver_in": "2h"})).status == 503
    publisher = await dial(server.mqtt)
    await publisher.connect("")
    due = (("deliver-at", format_ms(wall_ms() + 3_600_000)),)
    publisher.put("later", "no", 1, user_properties=due)
    assert (await publisher.take(Ack)).reason == UNSPECIFIED
    async with asyncio.timeout(60):
        while "store: still failing" not in server.output:  # open to be read from then on
            await asyncio.sleep(0.05)
    await _is_read(calls, acked)
    here = await dial(server.mqtt)
    await here.connect("")
    await here.subscribe("plain/#", qos=1)
    publisher.put("plain/0", "at most once", 0)
    publisher.put("plain/1", "at least once", 1)
    assert payloads(await here.take_many(2)) == ["at most once", "at least once"]
    for peer in (publisher, here):
        peer.drop()


async def _is_read(calls: Http, acked: list[str]) -> None:
    """One by one and in lists."""
    await calls.call("GET", f"/v1/messages/{acked[0]}", status=200)
    assert set(acked) <= {row["id"] for row in await calls.listed("state=pending")}


async def test_it_becomes_read_only_and_writable_again(
    small_disk: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    data = small_disk / "data"
    server = ServerProcess(data, log=tmp_path / "server.log")
    try:
        await server.ready()
        async with http(server.url) as calls, lag_of(server.url) as lag:
            reader = await reader_of(server)
            acked = [await calls.schedule("before", f"b{n}", deliver_in="1h") for n in range(20)]
            soon = await due_soon(calls, 40)
            with limited(server, 0):
                await until_refused(calls)
                await _remount(small_disk, "ro")
            # From here on nothing but the file system refuses.
            await _nothing_is_taken(calls, server, acked)
            assert payloads(await reader.take_many(40)) == soon
            assert "Read-only file system" in server.output
            await _remount(small_disk, "rw")
            acked.append(await until_taken(calls))
            await calls.call("GET", "/readyz", status=200)
            reader.drop()
        record_property(
            "counted", f"{len(soon)} delivered in time on a read-only disk; /livez meanwhile: {lag}"
        )
        assert lag.at(1) < LAG_MS, f"the loop waits for the disk: {lag}"
        server.kill()
        assert "Traceback" not in server.output, server.output
    finally:
        server.kill()
    async with serving(data) as server, http(server.url) as calls:
        await _is_read(calls, acked)
        assert await server.stopped() == 0
    assert run("verify", "--data", str(data)).returncode == 0


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1 runs it")
async def test_the_kernel_takes_it_away(image: Path, tmp_path: Path) -> None:
    """Under full work, for good: until the server has been stopped, and the file system mounted again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    data = disk / "data"
    with _mounted(image, disk):
        device = _device(disk)
        server = ServerProcess(data, log=tmp_path / "server.log")
        try:
            await server.ready()
            async with http(server.url) as calls:
                reader = await reader_of(server)
                acked = [await calls.schedule("before", f"b{n}", deliver_in="1h") for n in range(20)]
                soon = await due_soon(calls, 40)
                device.write_text("1")
                await _nothing_is_taken(calls, server, acked)
                assert payloads(await reader.take_many(40)) == soon
                assert "without a stored bound" in server.output
                reader.drop()
            assert await server.stopped() in (0, 1)
            assert "Traceback" not in server.output, server.output
        finally:
            server.kill()
    if shutil.which("e2fsck"):
        _told("e2fsck", "-fy", str(image))
    with _mounted(image, disk):
        async with serving(data) as server, http(server.url) as calls:
            await _is_read(calls, acked)
            assert await server.stopped() == 0


def _device(disk: Path) -> Path:
    """Where ext4 is told that it is damaged."""
    for line in Path("/proc/mounts").read_text().splitlines():
        source, at, *_ = line.split()
        if at == str(disk):
            found = Path("/sys/fs/ext4") / Path(source).name / "trigger_fs_error"
            if found.exists():
                return found
    pytest.skip("this kernel's ext4 cannot be told that it is damaged")


async def test_looking_at_it_and_starting_on_it(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands that read do; those that write refuse at once, say why and where, and leave all as it is."""
    data, new = small_disk / "data", small_disk / "new"
    store = RocksStore(data)
    opened = open_timeline(store, wall_ms=NOW, node=5, max_slices=50, max_structures=20, caps=CAPS)
    put(opened, draft(NOW + 3_600_000))
    store.close()
    await _remount(small_disk, "ro")
    before = {path: path.read_bytes() for path in data.iterdir()}
    assert inspect(data, 50) == 0
    assert "1 slices" in capsys.readouterr().out
    assert verify(data, 50, repair=False) == 0
    assert "nothing wrong" in capsys.readouterr().out
    for refused in (lambda: verify(data, 50, repair=True), lambda: leave(data)):
        with pytest.raises(StoreFailed, match=f"{data}: Read-only file system"):
            refused()
    for path, code in ((data, 1), (new, 2)):  # one that cannot be made is wrong usage
        done = run("--data", str(path), "--http", "127.0.0.1:0")
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        assert "Read-only file system" in done.stderr
        assert str(path) in done.stderr
    assert {path: path.read_bytes() for path in data.iterdir()} == before
