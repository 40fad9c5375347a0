"""Files that are looked at: read again when they change, a bad one changes nothing; in a process too."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from server.__main__ import main
from server.auth import keys_file
from server.auth.keyring import Keyring
from server.auth.last_use import FILE, LastUse, read_last_use
from server.auth.rights import Principal
from server.codec.packets import Connack, Connect, Disconnect
from server.settings.watch import AT_ONCE_BYTES, RETRY_LOOKS, Watch
from tests.support.http import http
from tests.support.keys import NOW_MS, Clock, KeysFile, ring, shown
from tests.support.mqtt import dial
from tests.support.server import run, serving


class Watched:
    """A keyring that is looked after."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = KeysFile(folder / "keys.toml")
        self.a = self.file.add("a")
        self.keyring: Keyring = ring(self.file.path, Clock())
        self.reviews = 0
        self.watch = Watch([self.keyring], self._review)
        self.last_use = LastUse(self.keyring.used, folder)

    def _review(self) -> None:
        self.reviews += 1

    def knows(self, name: str, key: str) -> bool:
        return isinstance(shown(self.keyring, name, key, name + key), Principal)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


async def test_a_change_is_seen(watched: Watched) -> None:
    await watched.watch.look(is_forced=False)
    assert watched.reviews == 0
    b = watched.file.add("b")
    assert not watched.knows("b", b)
    await watched.watch.look(is_forced=False)
    assert not watched.knows("b", b), "it may be half written"
    await watched.watch.look(is_forced=False)
    assert watched.knows("b", b)
    assert watched.reviews == 1
    await watched.watch.look(is_forced=True)
    assert watched.reviews == 2


async def test_on_request_small_files_are_read_before_anybody_has_a_turn(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that connects after a SIGHUP, and what it is sent then, are judged by the new rules."""
    aside: list[object] = []
    in_thread = asyncio.to_thread

    async def to_thread(read: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        aside.append(read)
        return await in_thread(read)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    b = watched.file.add("b")
    await watched.watch.look(is_forced=True)
    assert watched.knows("b", b)
    assert aside == []
    c = watched.file.add("c")
    watched.file.path.write_text(watched.file.path.read_text() + "\n" + "#" * AT_ONCE_BYTES)
    await watched.watch.look(is_forced=True)
    assert watched.knows("c", c)
    assert len(aside) == 1


async def test_half_a_file_is_not_taken(watched: Watched) -> None:
    """A key whose rules have not been written yet would be one for every topic."""
    b = watched.file.add("b", publish=["b/#"])
    whole = watched.file.path.read_text()
    half = whole[: whole.index("publish")]
    for text in ("", half[: half.index("[[key]]", 1)], half, whole):
        watched.file.path.write_text(text)
        await watched.watch.look(is_forced=False)
        assert watched.reviews == 0
        assert watched.knows("a", watched.a)
    await watched.watch.look(is_forced=False)
    assert watched.reviews == 1
    assert watched.knows("b", b)


async def test_a_bad_file_is_told_once_and_changes_nothing(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.file.write('[[key]]\nname = "b"\n')
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await watched.watch.look(is_forced=False)
    (said,) = caplog.messages
    assert said.startswith(
        f"keys: not reloaded, the old content stays in force: {watched.file.path}:1: hash: is missing"
    )
    assert watched.knows("a", watched.a)
    assert watched.reviews == 0
    watched.file.write()
    for _ in range(2):
        await watched.watch.look(is_forced=False)
    assert watched.reviews == 1


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), RuntimeError("can't start new thread")]
)
async def test_a_revoked_key_ends_though_its_file_could_not_be_read_at_once(
    watched: Watched, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is as it should be, so nothing says when it can be read again."""
    watched.file.revoke("a")

    def secured_text(*_: object) -> str:
        raise error

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(keys_file, "secured_text", secured_text)
        for _ in range(3 * RETRY_LOOKS):
            await watched.watch.look(is_forced=False)
        assert watched.knows("a", watched.a)
        assert len(caplog.messages) == 1
    for _ in range(RETRY_LOOKS):
        await watched.watch.look(is_forced=False)
    assert not watched.knows("a", watched.a)
    assert watched.reviews == 1


async def test_what_a_revoked_key_holds_ends_before_other_files_are_read(watched: Watched) -> None:
    """Which may take a while, or fail."""
    before: list[int] = []

    class Other:
        name, paths, stamps = "other", (watched.file.path,), ()

        def again(self) -> Callable[[], None]:
            before.append(watched.reviews)
            raise IndexError("a fault of the server")

    watch = Watch([watched.keyring, Other()], watched._review)
    watched.file.revoke("a")
    for _ in range(2):
        await watch.look(is_forced=False)
    assert before == [1]


async def test_last_uses_are_noted_when_there_are_new_ones(watched: Watched) -> None:
    await watched.last_use.note()
    assert not (watched.folder / FILE).exists()
    watched.knows("a", watched.a)
    await watched.last_use.note()
    assert read_last_use(watched.folder) == {"a": NOW_MS}
    (watched.folder / FILE).unlink()
    await watched.last_use.note()
    assert not (watched.folder / FILE).exists()


async def test_last_uses_that_cannot_be_noted_are_not(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.knows("a", watched.a)
    watched.last_use._folder = watched.folder / "nowhere"
    await watched.last_use.note()
    assert "not saved" in caplog.text


@pytest.mark.process
async def test_a_process_with_keys(tmp_path: Path) -> None:
    """Over both doors; SIGHUP, a revoked key's connection, what is written at the end."""
    file = KeysFile(tmp_path / "keys.toml")
    a, ops = file.add("a"), file.add("ops", "admin")
    settings = {"auth.keys_file": file.path}
    async with serving(tmp_path / "data", settings=settings) as server, http(server.url) as calls:
        await calls.call("GET", "/v1/messages", status=401)
        await calls.call("GET", "/readyz", status=200)
        body = {"topic": "t", "payload": "x"}
        await calls.call("POST", "/v1/messages", body, status=201, Authorization=f"Bearer {a}")
        assert "authorization: Bearer KEY" in server.output
        nobody = await dial(server.mqtt)
        nobody.send(Connect(5, "n"))
        assert (await nobody.take(Connack)).reason == 0x87
        peer = await dial(server.mqtt)
        peer.send(Connect(5, "c", username="a", password=a.encode()))
        assert (await peer.take(Connack)).reason == 0
        file.revoke("a")
        os.kill(server.pid, signal.SIGHUP)
        assert (await peer.take(Disconnect)).reason == 0x87
        await calls.call("GET", "/v1/messages", status=401, Authorization=f"Bearer {a}")
        await calls.call("GET", "/v1/messages", status=200, Authorization=f"Bearer {ops}")
        assert await asyncio.to_thread(server.stop) == 0
        assert a not in server.output
        assert ops not in server.output
        assert "Traceback" not in server.output, server.output
    assert read_last_use(tmp_path / "data").keys() == {"ops"}


@pytest.mark.process
def test_a_process_whose_file_is_bad_does_not_start(tmp_path: Path) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    file.write("[[key]]\nname = 3\n")
    ended = run("--data", str(tmp_path / "data"), settings={"auth.keys_file": file.path})
    assert ended.returncode == 2
    assert f"{file.path}:2: name: must be a string" in ended.stdout + ended.stderr


def test_a_check_of_the_settings_looks_at_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    monkeypatch.setenv("FASTI__AUTH__KEYS_FILE", str(file.path))
    assert main(["--check"]) == 0
    assert "auth.keys_file" in capsys.readouterr().out
    file.path.chmod(0o644)
    assert main(["--check"]) == 2
    assert "chmod 600" in capsys.readouterr().err
