"""The command line against the stand-in, in this process; exit codes and what is printed."""

import asyncio
import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

import fasti
from fasti.cli.app import hoisted, start
from fasti.cli.profiles import Profile, ProfileError, chosen, config_file
from tests.sdk.conftest import Broker
from tests.sdk.fake import Fake
from tests.sdk.scripted import Script, giving
from tests.sdk.test_subscribe import publish
from tests.support.ports import free_port

CLI = (sys.executable, "-m", "fasti.cli")


async def fasti_cli(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run the command in a thread; exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()))

    def run() -> object:
        with pytest.raises(SystemExit) as left:
            start(list(arguments))
        return left.value.code

    with redirect_stdout(out), redirect_stderr(err), patch("sys.stdin", given):
        code = await asyncio.wait_for(asyncio.to_thread(run), 60)
    assert isinstance(code, int)
    return code, out.getvalue(), err.getvalue()


async def child(*arguments: str, command: tuple[str, ...] = CLI) -> tuple[int, str]:
    """The same as a process of its own; exit code, stderr."""
    started = await asyncio.create_subprocess_exec(*command, *arguments, stderr=asyncio.subprocess.PIPE)
    _, err = await asyncio.wait_for(started.communicate(), 60)
    assert started.returncode is not None
    return started.returncode, err.decode()


@pytest.mark.parametrize("noun", [(), ("message",)], ids=["alone", "a noun"])
async def test_without_arguments_it_prints_its_help(noun: tuple[str, ...]) -> None:
    code, out, err = await fasti_cli(*noun)
    assert (code, out) == (2, "")
    assert err.startswith(" ".join(("Usage: fasti", *noun)))
    assert "--help" in err
    assert (code, err) == await child(*noun)


async def ok(*arguments: str, stdin: str = "") -> str:
    code, out, err = await fasti_cli(*arguments, stdin=stdin)
    assert code == 0, err
    return out


async def test_message_life(url: str, fake: Fake) -> None:
    at = ("--url", url)
    made = json.loads(await ok("message", "schedule", "a/b", "hello", "--in", "PT30S", "-o", "json", *at))
    assert made["deliver_at"] == "2030-01-01T00:00:30.000Z"
    keyed = ("message", "schedule", "a/k", "-k", "k", "--at", "2031-01-01T00:00Z", "-o", "json", *at)
    assert [json.loads(await ok(*keyed)).get("replayed") for _ in range(2)] == [None, True]
    del fake.messages[fake.keys["k"]]
    out = await ok(
        *at, "message", "schedule", "a/c", '{"a": [1]}', "--json", "-H", "x=y", "--at", "2031-01-01T00:00Z"
    )
    assert "2031-01-01T00:00:00.000Z" in out
    stored = list(fake.messages.values())[1]
    assert (stored["payload"], stored["headers"]) == ({"a": [1]}, {"x": "y"})
    listed = await ok("message", "ls", *at)
    assert made["id"] in listed
    assert "hello" in listed
    assert (await ok("message", "count", *at)).strip() == "2"
    lines = (await ok("message", "ls", "-o", "ndjson", *at)).splitlines()
    assert [json.loads(line)["topic"] for line in lines] == ["a/b", "a/c"]
    shown = json.loads(await ok("message", "get", made["id"], "--output=json", *at))
    assert shown["payload"] == "hello"
    moved = await ok("message", "move", made["id"], "--in", "PT5S", *at)
    assert "2030-01-01T00:00:05.000Z" in moved
    await ok("message", "cancel", made["id"], *at)
    fake.messages[made["id"]]["state"] = "dispatched"
    code, _, err = await fasti_cli("message", "cancel", made["id"], *at)
    assert (code, "already dispatched" in err) == (1, True)


async def test_an_error_of_json_says_which_text(tmp_path: Path) -> None:
    (file := tmp_path / "body").write_text("{")
    for given, shown in [
        (("a/b", "{id:17}"), "'{id:17}' is not JSON: Expecting property name"),
        (("a/b", "x" * 80), f"'{'x' * 60}...' is not JSON"),
        (("a/b", "--file", str(file)), f"{file} is not JSON"),
        (("--deliver-to", "api", "hello"), "'hello' is not JSON"),
    ]:
        code, _, err = await fasti_cli("message", "schedule", *given, "--json")
        assert (code, f"--json: {shown}" in err) == (2, True), err


async def test_exit_codes(url: str, fake: Fake) -> None:
    assert (await fasti_cli("message", "get", "0" * 32, "--url", url))[0] == 1
    code, _, err = await fasti_cli("message", "schedule", "a/#", "--url", url)
    assert (code, "no wildcards" in err) == (1, True)
    assert (await fasti_cli("message", "nonsense"))[0] == 2
    assert (await fasti_cli("--version"))[:2] == (0, f"fasti {fasti.__version__}\n")
    assert (await child("message", "get", "0" * 32, "--url", url))[0] == 1
    assert (await fasti_cli("message", "move", "0" * 32, "--url", url))[0] == 2
    assert (await fasti_cli("message", "ls", "-o", "xml"))[0] == 2
    code, err = await child("server", "status", "--url", f"http://127.0.0.1:{free_port()}")
    assert (code, "Traceback" in err) == (3, False)


async def test_import(url: str, fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "messages.ndjson"
    file.write_text("".join(f'{{"topic":"t/{n}","payload":{n}}}\n' for n in range(1_500)) + "\n")
    said = json.loads(await ok("message", "import", str(file), "-o", "json", "--url", url))
    assert (said, len(fake.messages)) == ({"accepted": 1_500}, 1_500)
    assert "1" in await ok("message", "import", "-", "--url", url, stdin='{"topic":"x","key":"k"}\n')
    await ok("message", "import", "-", "--url", url, stdin='{"topic":"x","key":"k"}\n')
    assert len(fake.messages) == 1_501
    bad = '{"topic":"a"}\n{"topic":"b"}\n{"topic":"c/#"}\n'
    code, _, err = await fasti_cli("message", "import", "-", "--batch", "2", "--url", url, stdin=bad)
    assert (code, "2 messages were accepted" in err, "line 3" in err) == (1, True, True)
    code, _, err = await fasti_cli("message", "import", "-", "--url", url, stdin="{}\nnonsense")
    assert (code, "line 2" in err) == (2, True)
    assert (await fasti_cli("message", "import", str(tmp_path / "none"), "--url", url))[0] == 2


async def test_timeline(url: str, fake: Fake) -> None:
    start = "2030-01-01T00:00:00.000Z"
    assert start in await ok("slice", "ls", "--url", url)
    assert "a/+" in await ok("slice", "show", start, "--url", url)
    assert len(json.loads(await ok("slice", "ls", "-o", "json", "--url", url))) == 2
    assert "a/+" in await ok("shard", "ls", start, "--url", url)
    assert json.loads(await ok("shard", "show", start, "1", "-o", "json", "--url", url))["live"] == 2
    assert (await fasti_cli("shard", "show", start, "2", "--url", url))[0] == 1
    async with fasti.Client(url) as c:
        made = [await c.messages.schedule("a", n, delay=n) for n in range(3)]
    other = {**fake.messages[made[0].id], "id": made[0].id[:12] + "0007" + made[0].id[16:]}
    fake.messages[other["id"]] = other
    fake.messages[made[1].id].update(deliver_at="2030-01-01T00:01:00.000Z", state="cancelled")  # asks explain
    dumped = [json.loads(line) for line in (await ok("shard", "dump", start, "1", "--url", url)).splitlines()]
    assert {d["id"] for d in dumped} == {m.id for m in made}


async def test_why_is_said_in_lines(url: str, fake: Fake) -> None:
    told = await ok("message", "why", "0" * 32, "--url", url)
    assert told.splitlines() == ["It was to be due \\u202e[b].", "It waits for its due time."]


async def test_sessions_and_status(url: str, fake: Fake) -> None:
    listed = await ok("session", "ls", "--url", url)
    assert "audit/1" in listed
    assert '"seq"' not in listed  # of a position a table shows its time
    shown = json.loads(await ok("session", "show", "audit/1", "-o", "ndjson", "--url", url))
    assert shown["lag_messages"] == 7
    await ok("session", "replay", "audit/1", "--from", "PT1H", "--url", url)
    await ok("session", "rm", "audit/1", "--url", url)
    assert (await fasti_cli("session", "rm", "nobody", "--url", url))[0] == 1
    status = await ok("server", "status", "--url", url)
    assert "simulated" in status
    assert url in status


@pytest.mark.parametrize("style", ["table", "ndjson"])
async def test_subscribe(url: str, fake: Fake, broker: Broker, style: str) -> None:
    fake.mqtt_port = broker.port
    reading = asyncio.create_task(
        ok("subscribe", "t/#", "--session", "cli", "--count", "2", "-o", style, "--url", url)
    )
    said = {"fasti-late-ms": "1.5", "fasti-id": "ab", "fasti-attempt": "2"}
    while not reading.done():
        await publish(broker, "hello [you]", said=said)
        await asyncio.sleep(0.2)
    lines = (await reading).splitlines()
    assert len(lines) == 2
    if style == "table":
        assert "+1.5 ms  attempt 2  t/1  hello [you]" in lines[0]
    else:
        got: dict[str, Any] = json.loads(lines[0])
        assert (got["payload"], got["late_ms"], got["id"]) == ("hello [you]", 1.5, "ab")
    assert (await fasti_cli("subscribe", "t", "--session", "a", "--group", "b"))[0] == 2


def test_hoisting() -> None:
    assert hoisted(["a", "-o", "json", "b", "--url=x", "--", "--key"]) == [
        *("-o", "json", "--url=x", "a", "b", "--", "--key"),
    ]
    assert hoisted(["a", "--url"]) == ["--url", "a"]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    file = tmp_path / "config.toml"
    monkeypatch.setenv("FASTI_CONFIG", str(file))

    def to_file(text: str) -> None:
        file.write_text(text)

    return to_file


def test_where_the_profiles_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FASTI_CONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert config_file() == tmp_path / ".config/fasti/config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert config_file() == Path("/x/fasti/config.toml")


def test_profiles(write: Callable[[str], None]) -> None:
    write('[profiles.default]\nurl = "d"\n[profiles.live]\nurl = "l"\nkey = "k"\n')
    assert chosen(None) == Profile("d")
    assert chosen("live") == Profile("l", "k")
    assert Profile(None, "mine").over(chosen("live")) == Profile("l", "mine")
    lab = Profile("http://lab", "k", "lab:1883", ca="ca.pem", allow_plain=True)
    assert Profile("https://live").over(lab) == Profile("https://live", "k", ca="ca.pem")
    assert Profile("http://lab").over(lab) == Profile(None).over(lab) == lab
    with pytest.raises(ProfileError, match=r"no \[profiles.none\]"):
        chosen("none")
    write("")
    assert chosen(None) == Profile()
    for bad in ("[", "[profiles.default]\nurl = 1", '[profiles.default]\nurls = "x"'):
        write(bad)
        with pytest.raises(ProfileError):
            chosen(None)


async def test_profile_option(url: str, fake: Fake, write: Callable[[str], None]) -> None:
    write(f'[profiles.here]\nurl = "{url}"\nkey = "secret"\n')
    await ok("server", "status", "--profile", "here")
    assert fake.headers[-1]["Authorization"] == "Bearer secret"
    assert (await fasti_cli("server", "status", "--profile", "there"))[0] == 2


@pytest.mark.parametrize(
    ("arguments", "ours"),
    [
        ("a b --delay 5s", "--delay; fasti calls it --in"),
        ("a b --eta 5", "--eta; fasti calls it --at"),
        ("--topic a b", "--topic; fasti calls it TOPIC"),
        ("a b --foo 5", "--foo"),
    ],
)
async def test_an_option_of_others_is_answered_with_ours(arguments: str, ours: str) -> None:
    for more in ((), ("-o", "json")):
        code, _, said = await fasti_cli("message", "schedule", *arguments.split(), *more)
        assert (code, f"No such option: {ours}" in said) == (2, True)


@pytest.mark.parametrize("wrong", [("--group", "a/b"), ("--group", ""), ("--session", ""), ("--group", "a#")])
async def test_a_name_that_cannot_be_meant_is_wrong_usage(wrong: tuple[str, str]) -> None:
    code, out, err = await fasti_cli("subscribe", "q", *wrong, "--mqtt", "127.0.0.1:1")
    assert (code, out) == (2, "")
    assert wrong[0].removeprefix("--") in err


async def test_subscribe_says_what_it_could_not_ack() -> None:
    async with Script(giving(b"x")) as script:
        with patch.object(fasti.Delivery, "ack", AsyncMock(return_value=False)):
            code, out, err = await fasti_cli("subscribe", "t", "--count", "1", "--mqtt", script.address)
    assert (code, out.split()[-1]) == (0, "x")
    assert "not acked" in err


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        ("fasti.cli.app", "aiohttp aiomqtt paho asyncio pydantic fasti.client fasti.cli.message"),
        (
            "fasti.cli.run as run; run._import_client(); import fasti.client",
            "aiomqtt paho fasti.sync fasti.worker",
        ),
    ],
    ids=["help reads no client", "a call reads no client of MQTT"],
)
async def test_what_a_start_costs_is_what_it_imports(program: str, heavy: str) -> None:
    """aiohttp and pydantic alone take longer than help may."""
    program = (
        f"import {program}; import sys; sys.exit(str(sorted({set(heavy.split())} & sys.modules.keys())))"
    )
    assert await child("-c", program, command=(sys.executable,)) == (1, "[]\n")
