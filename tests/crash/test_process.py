"""The process from outside: how it starts, refuses to start, and stops."""

import asyncio
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from server.__main__ import main
from server.codec.packets import Disconnect, Publish
from server.observe.version import server_version
from server.offline import inspect, verify
from shards.errors import StoreLocked
from tests.support.http import http
from tests.support.mqtt import dial
from tests.support.server import ServerProcess, run, served, serving

pytestmark = pytest.mark.short


def test_ports_are_printed_and_answer(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        assert server.http[1]
        assert server.mqtt[1]
        said = [line for line in server.output.splitlines() if line[:4] in ("list", "data", "try:")]
        assert said[0].startswith("listening http=127.0.0.1:")
        assert said[1] == f"data in {tmp_path / 'data'}"
        assert said[2].startswith(f"try: curl -s {server.url}/v1/messages ")
        for address in (server.http, server.mqtt):
            socket.create_connection(address, 5).close()
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stopping_finishes_what_was_begun(tmp_path: Path, number: signal.Signals) -> None:
    """Requests under way are answered, clients are told, what was acked is there at the next start."""
    data = tmp_path / "data"
    async with serving(data) as server, http(server.url) as calls:
        reader = await dial(server.mqtt)
        await reader.connect("reader", clean=False, session_expiry=600)
        await reader.subscribe("#")
        await calls.schedule("a", "acked")
        reader.ack(await reader.take(Publish))
        items = [{"topic": "b", "payload": str(n), "deliver_in": "1h"} for n in range(2_000)]
        sent = [asyncio.create_task(calls.schedule_many(items)) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert await asyncio.to_thread(server.stop, number) == 0
        await reader.gone()
        assert (await reader.take(Disconnect)).reason == 0x8B
        answers = await asyncio.gather(*sent, return_exceptions=True)
        assert "Traceback" not in server.output, server.output
    acked = sum(not isinstance(answer, BaseException) and answer.status == 201 for answer in answers)
    async with serving(data) as server, http(server.url) as calls:
        found = await calls.call("GET", "/v1/messages?topic=b&count=true&limit=1", status=200)
        assert found.body["count"] % 2_000 == 0
        assert found.body["count"] >= 2_000 * acked
        back = await dial(server.mqtt)
        assert (await back.connect("reader", clean=False, session_expiry=600)).session_present
        await back.silence()
        back.drop()
        assert await server.stopped() == 0


async def test_stopping_with_clients_that_do_not_read(tmp_path: Path) -> None:
    """A client that reads nothing and a connection that says nothing cannot keep the server from ending."""
    async with serving(tmp_path / "data") as server:
        silent = await dial(server.mqtt)
        stuck = await dial(server.mqtt)
        await stuck.connect("stuck")
        await stuck.subscribe("#", qos=0)
        stuck.transport.pause_reading()
        writer = await dial(server.mqtt)
        await writer.connect("")
        for _ in range(40):
            await writer.publish("a", b"x" * 200_000)
        assert await asyncio.wait_for(server.stopped(), 60) == 0
        for peer in (silent, stuck, writer):
            peer.drop()


def test_a_second_server_on_the_same_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data) as server:
        second = run("--data", str(data), "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
        assert second.returncode == 2
        assert str(data) in second.stderr
        assert "another process" in second.stderr
        assert "Traceback" not in second.stderr
        assert run("verify", "--data", str(data)).returncode == 2
        assert server.stop() == 0
    assert run("verify", "--data", str(data)).returncode == 0


def test_looking_at_the_data_of_a_running_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody who may read it only, and so cannot take its lock: its files go while one reads them."""
    data = tmp_path / "data"
    with served(data) as server:
        monkeypatch.setattr("server.offline.os.access", lambda path, mode: False)
        for look in (lambda: verify(data, 50, repair=False), lambda: inspect(data, 50)):
            with pytest.raises(StoreLocked, match=f"{data} is open in another process"):
                look()
        assert server.stop() == 0
    assert verify(data, 50, repair=False) == 0


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = run("--data", str(tmp_path / "data"), "--http", f"127.0.0.1:{port}", "--mqtt", "127.0.0.1:0")
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr, failed.stderr
    assert f"http.listen: cannot listen at 127.0.0.1:{port}: another program uses this port" in failed.stderr


def test_an_mqtt_address_that_is_not_here(tmp_path: Path) -> None:
    there = "192.0.2.1:1883"
    settings = {"auth.allow_open": "true"}
    given = ("--data", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--mqtt", there)
    failed = run(*given, settings=settings)
    assert failed.returncode == 2
    assert f"mqtt.listen: cannot listen at {there}: this machine has no such address" in failed.stderr


def test_data_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "letter.txt").write_text("dear")
    failed = run("--data", str(tmp_path), "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    assert failed.returncode == 2
    assert f"store.dir: {tmp_path} has no store of fasti, but other files (letter.txt)" in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_place_where_no_data_can_be() -> None:
    failed = run("--data", "/proc/fasti", "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    assert failed.returncode == 2
    assert "store.dir: /proc/fasti cannot be created: No such file or directory" in failed.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("http.listen", "nowhere"),
        ("http.listen", "127.0.0.1:99999"),
        ("mqtt.receive_maximum", "0"),
        ("mqtt.receive_maximum", "65536"),
        ("slices.retention", "a week"),
        ("limits.max_payload", "-1"),
        ("slices.expire_by", "nobody"),
        ("limits.nothing", "1"),
        ("nothing.at_all", "1"),
    ],
)
def test_a_bad_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    monkeypatch.setenv("FASTI__" + key.upper().replace(".", "__"), value)
    assert main(["--check"]) == 2
    assert key in capsys.readouterr().err.lower().replace("__", ".")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[http]\nlisten = 8080\n", "http.listen"),
        ("[limits]\nmax_dellay = '1d'\n", "limits.max_dellay"),
        ("[wheeel]\nmax_entries = 5\n", "wheeel"),
        ("[http\n", "config.toml"),
    ],
)
def test_a_bad_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert main(["--check", "--config", str(path)]) == 2
    assert named in capsys.readouterr().err


def test_a_bad_setting_ends_the_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    failed = run("--data", str(data), settings={"limits.nothing": 1, "http.listen": "127.0.0.1:0"})
    assert failed.returncode == 2, failed
    assert "Traceback" not in failed.stderr
    assert not data.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"],
        ["--clock", "sundial"],
        ["--clock", "simulated", "--clock-start", "2030-01-01T00:00:00"],
        ["--clock-start", "2030-01-01T00:00:00Z"],
        ["dance"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert main(["--check", "--config", "/nowhere/none.toml"]) == 2
    assert "none.toml" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_commands_on_no_data(tmp_path: Path, command: str) -> None:
    assert main([command, "--data", str(tmp_path / "nothing")]) == 1
    assert not (tmp_path / "nothing").exists()


def test_data_that_is_damaged(tmp_path: Path) -> None:
    """A flipped byte in the middle of the log: the start is refused and the file is named."""
    data = tmp_path / "data"

    async def fill() -> None:
        async with serving(data) as server, http(server.url) as calls:
            for _ in range(20):
                items = [{"topic": "b", "payload": "x" * 100, "deliver_in": "1h"} for _ in range(50)]
                assert (await calls.schedule_many(items)).status == 201

    asyncio.run(fill())
    log = max(data.glob("*.log"))
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 0x40
    log.write_bytes(raw)
    failed = run("--data", str(data), "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    assert failed.returncode == 1
    assert str(data) in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_torn_tail_is_cut_off(tmp_path: Path) -> None:
    """The same at the very end is what a power failure leaves: the server starts."""
    data = tmp_path / "data"
    with served(data):
        pass
    log = max(data.glob("*.log"))
    with log.open("ab") as tail:
        tail.write(b"\x13\x37 half a record")
    with served(data) as server:
        assert server.stop() == 0


def test_kill_before_ready(tmp_path: Path) -> None:
    """Killed while it creates its tables, a few ms apart: each next start goes on."""
    data = tmp_path / "data"
    for wait_s in (0.3, 0.4, 0.5):
        server = ServerProcess(data)
        try:
            server.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            server.kill()
    with served(data) as server:
        assert server.stop() == 0


async def test_readiness(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        await calls.call("GET", "/livez", status=200)
        await calls.call("GET", "/readyz", status=200)
        info = (await calls.call("GET", "/v1/info", status=200)).body
        assert str(server.mqtt[1]) in str(info)


def test_check_shows_where_values_come_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FASTI__LIMITS__SESSIONS", "77")
    assert main(["--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith("limits.sessions "))
    assert "77" in line
    assert "FASTI__LIMITS__SESSIONS" in line or "environment" in line
    assert lines[-1].startswith("in all ")
    assert any(line.startswith("sessions ") and " MiB  present or away" in line for line in lines)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fasti-server {server_version()}\n"


def test_an_address_of_ipv6_is_in_brackets(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with served(tmp_path / "data", "--http", "[::1]:0", "--mqtt", "[::1]:0") as server:
        assert server.http[0] == server.mqtt[0] == "[::1]"
        with socket.create_connection(("::1", server.http[1]), 5):
            pass
