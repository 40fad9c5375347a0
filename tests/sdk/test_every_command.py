"""Each command of the line against a real server: it speaks JSON, and says so when there is no server."""

import asyncio
import json
import shlex
import warnings
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

import fasti
from fasti.cli.app import app
from fasti.wire import instant
from tests.sdk.test_against_server import Server, simulated
from tests.sdk.test_cli import fasti_cli, ok
from tests.support.ports import free_port

ELSEWHERE = {
    "slice split",
    "slice expire",
    "slice archive",
    "slice compact",
    "job ls",
    "job show",
    "server backup",
    "work",
    "endpoint test",
}
"""Against the stand-in, in test_jobs.py; in test_worker.py; in test_endpoints.py."""
ELSEWHERE |= {"cluster status", "retry show"}
ELSEWHERE |= {"message result"}
"""In test_cluster.py; below; in test_results.py."""
STREAMS = {"shard dump", "message export", "subscribe"}
"""One object a line, whatever -o says."""


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setenv("FASTI__SESSIONS__MAX_ATTEMPTS", "1")
    async with simulated(tmp_path / "data") as made:
        yield made


def leaves(command: Any, name: str = "") -> Iterator[str]:
    """Every command that does something, with its nouns; not second names, which help does not list."""
    below = getattr(command, "commands", None)
    if below is None:
        if not command.hidden:
            yield name
        return
    for noun, found in below.items():
        yield from leaves(found, f"{name} {noun}".strip())


def script(ids: list[str], start: str, export: Path, dead: str) -> list[tuple[str, tuple[str, ...]]]:
    """(command, its arguments), in an order that works; none of the ids twice."""
    nightly = ("--cron", "0 2 * * *", "-z", "Europe/Bucharest")
    return [
        ("message schedule", ("a/x", "hello", "--in", "1h")),
        ("message put", ("a/x", "hello", "--in", "1h", "-k", "put", "--version", "1,0")),
        ("message show", (ids[0],)),
        ("message why", (ids[0],)),
        ("message move", (ids[0], "--in", "2h")),
        ("message cancel", (ids[1],)),
        ("message ls", ()),
        ("message count", ()),
        ("message export", ("-", "--ids")),
        ("message import", (str(export),)),
        ("message shift", ("PT1M", "--topic", "a/#")),
        ("schedule put", ("nightly", "jobs/nightly", "go", *nightly)),
        ("schedule ls", ()),
        ("schedule show", ("nightly",)),
        ("schedule preview", nightly),
        ("schedule pause", ("nightly",)),
        ("schedule resume", ("nightly", "--from", "now")),
        ("schedule skip", ("nightly",)),
        ("schedule trigger", ("nightly",)),
        ("subscribe", ("jobs/#", "--session", "audit", "--count", "1", "--replay-from", "PT1H")),
        ("schedule rm", ("nightly",)),
        ("timeline density", ("--next", "24h")),
        ("slice ls", ()),
        ("slice show", (start,)),
        ("shard ls", (start,)),
        ("shard show", (start, "0")),
        ("shard dump", (start, "0")),
        ("dead ls", ()),
        ("dead show", (dead,)),
        ("dead requeue", (dead, "--in", "1h")),
        ("dead drop", ("--topic", "#", "--dry-run")),
        ("retry ls", ("--topic", "#")),
        ("retry try", ("--topic", "#", "--dry-run")),
        ("retry bury", ("--topic", "#")),
        ("retry drop", (dead,)),
        ("group put", ("printers", "jobs/#", "--rate", "5", "--per-key-rate", "100/m", "--backoff", "1s,5s")),
        ("group ls", ()),
        ("group show", ("workers",)),
        ("group pause", ("workers",)),
        ("group resume", ("workers", "--filter", "work/#")),
        ("group replay", ("workers", "--from", "PT1H")),
        ("group skip", ("workers",)),
        ("group hold", ("workers", "customer-17")),
        ("group keys", ("workers", "--filter", "work/#")),
        ("group release", ("workers", "customer-17")),
        ("group rm", ("workers", "--filter", "work/#")),
        (
            "endpoint put",
            ("api", "https://example.com/hook", "--rate", "5", "--backoff", "1s,5s", "-H", "a=b", "--order"),
        ),
        ("endpoint hold", ("api", "customer-17")),
        ("endpoint keys", ("api",)),
        ("endpoint release", ("api", "customer-17")),
        ("endpoint ls", ()),
        ("endpoint show", ("api",)),
        ("endpoint pause", ("api",)),
        ("endpoint resume", ("api",)),
        ("endpoint replay", ("api", "--from", "PT1H")),
        ("endpoint skip", ("api",)),
        ("message schedule", ("--deliver-to", "api", "--in", "1h")),
        ("endpoint rm", ("api",)),
        ("session ls", ()),
        ("session show", ("audit",)),
        ("session replay", ("audit", "--from", "PT1H")),
        ("session skip", ("audit", "--undone", "drop")),
        ("session rm", ("audit",)),
        ("server status", ()),
        ("server drain", ()),
        ("server drain", ("--cancel",)),
    ]


async def poison(url: str) -> str:
    """The id of a message that a session has given up: once was enough."""
    async with fasti.Client(url) as c:
        async with asyncio.timeout(60):
            async with c.subscribe("bad", session="broken") as first:
                task = asyncio.ensure_future(anext(aiter(first)))
                while not [s async for s in c.sessions.list() if s.subscriptions]:
                    await asyncio.sleep(0)
                name = (await c.messages.schedule("bad", "poison")).id
                assert (await task).id == name
            async with c.subscribe("bad", session="broken") as again:
                task = asyncio.ensure_future(anext(aiter(again)))
                while not (found := await c.dead.get(name)):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        assert [(one.group, one.attempts) for one in found] == [("broken", 1)]
        return name


async def test_each_speaks_json(server: Server, tmp_path: Path) -> None:
    async with fasti.Client(server.url) as c:
        ids = [(await c.messages.schedule(f"a/{n}", n, delay=3_600)).id for n in range(3)]
        start = str((await anext(c.slices.list())).raw["start"])
        await c.groups.put("workers", "work/#", ack_timeout="1m", backoff=["1s"], rate=100, order=True)
    export = tmp_path / "messages.ndjson"
    export.write_text('{"topic":"b","payload":1,"deliver_in":60}\n')
    steps = script(ids, start, export, await poison(server.url))
    known = set(leaves(typer.main.get_command(app)))
    assert known - ELSEWHERE == {command for command, _ in steps}, "none is forgotten"
    for command, arguments in steps:
        out = await ok(*command.split(), *arguments, "-o", "json", "--url", server.url)
        found = [json.loads(line) for line in out.splitlines()] if command in STREAMS else json.loads(out)
        assert found, command
        if command.endswith(" show"):
            second = command.replace(" show", " get")
            assert json.loads(await ok(*second.split(), *arguments, "--json", "--url", server.url)) == found
    for topics in ("#", "$deliver/#"):
        await ok("message", "cancel", "--topic", topics, "--url", server.url)
    assert json.loads(await ok("message", "ls", "-o", "json", "--url", server.url)) == []
    assert (await fasti_cli("message", "ls", "--state", "never", "--url", server.url))[0] == 2


async def test_each_says_that_nobody_is_there(tmp_path: Path) -> None:
    export = tmp_path / "messages.ndjson"
    export.write_text('{"topic":"b","payload":1}\n')
    (tmp_path / "out").mkdir()
    nowhere = f"http://127.0.0.1:{free_port()}"
    steps = script(["0" * 32] * 3, "2030-01-01T00:00:00Z", export, "0" * 32)
    more = [("slice split", ("1",)), ("slice expire", ()), ("job ls", ()), ("job show", ("a",))]
    for command, arguments in (steps + more + [("server backup", ("/b",))])[::6]:
        assert (await fasti_cli(*command.split(), *arguments, "--url", nowhere))[0] == 3, command


async def test_with_deliver_to_one_text_alone_is_the_payload(server: Server, tmp_path: Path) -> None:
    (file := tmp_path / "body").write_text("of a file")
    at = ("--deliver-to", "https://example.com/hook", "--in", "1h", "--url", server.url)
    for given in (
        *(("hello",), ("a/b", "hello"), ("a/b", ""), ("a/b", "--file", str(file))),
        *(('{"a": 1}', "--json"), ()),
    ):
        await ok("message", "schedule", *given, *at)
    await ok("schedule", "put", "n", "hello", *(*at[:2], "--every", "1h", *at[4:]))
    async with fasti.Client(server.url) as c:
        sent = [(m.topic, m.payload) async for m in c.messages.list()]
    own = "$deliver/*"
    assert sent[:4] == [(own, "hello"), ("a/b", "hello"), ("a/b", ""), ("a/b", b"of a file")]
    assert sent[4:] == [(own, {"a": 1}), (own, ""), (own, "hello")]


TYPED = {
    "group put g a --order --per-key-concurrency 2": "--per-key-concurrency: does not go",
    "group put g a --per-key-rate x": "--per-key-rate: must be",
    "message schedule t x --in '5 moons'": "--in: '5 moons' is not a delay",
    "message schedule t x --in='5 moons'": "--in: '5 moons' is not a delay",
    "message schedule t x --in 1h --expires-in ever": "--expires-in: 'ever' is not a delay",
    "message schedule t/# x": "TOPIC: ",
    f"message move {'0' * 32} --at 9 --in 9": "--at and --in are both given; give one, not both",
    "message ls --from noon": "--from: ",
    "message ls --due-from noon": "--due-from: ",
    "message shift moons --topic #": "BY: 'moons' is not a delay",
    "schedule put n t --every now": "--every: 'now' is not a delay",
    "schedule put n t --cron @daily -zNowhere": "-z: ",
    "endpoint put e https://example.com --backoff 1s,x": "--backoff: ",
    "dead requeue --topic # --in soon": "--in: 'soon' is not a delay",
    "timeline density --next moons": "--next 'moons' is not a delay",
}


async def test_an_error_names_the_option_as_it_was_typed(server: Server) -> None:
    for given, shown in TYPED.items():
        code, _, err = await fasti_cli(*shlex.split(given), "--url", server.url)
        assert code in (1, 2)
        assert err.startswith(f"fasti: {shown}")


async def test_an_error_of_the_sdk_names_its_argument(server: Server) -> None:
    async with fasti.Client(server.url) as c:
        for call, said in [
            (c.messages.schedule("t", "x", delay="5 moons"), "delay: '5 moons' is not"),
            (c.messages.schedule("t", "x", delay="5 moons", key="k"), "delay: '5 moons' is not"),
            (c.messages.schedule("t", "x", at="noon"), "at: "),
            (c.messages.reschedule("0" * 32, delay="soon"), "delay: 'soon' is not"),
            (c.messages.shift("moons", topic="#"), "by: 'moons' is not"),
            (c.dead.requeue(topic="#", delay="soon"), "delay: 'soon' is not"),
        ]:
            with pytest.raises(fasti.Refused, match=f"^{said}"):
                await call


async def test_a_time_that_has_passed_is_said(server: Server) -> None:
    """By the server's clock, whoever was scheduled at the same time, and not for what is late on purpose."""
    async with fasti.Client(server.url) as c:
        now = (await c.info()).now
        past, text = now - timedelta(minutes=2), instant(now - timedelta(minutes=2))
        said = r"^a/b: .* was 0:02:00 ago by the server's clock"
        for at in (past, text):
            with pytest.warns(UserWarning, match=said) as warned:
                await c.messages.schedule("a/b", "x", at=at)
            assert warned[0].filename == __file__
        with pytest.warns(UserWarning, match=said) as warned:
            await asyncio.gather(*(c.messages.schedule("a/b", "x", at=at) for at in (past, text)))
        assert len(warned) == 2
        made = await c.messages.schedule("a/b", "x", at=now + timedelta(days=1), key="k")
        with pytest.warns(UserWarning, match=f"^{made.id}: .* was 0:02:00 ago") as warned:
            await c.messages.reschedule(made.id, at=past)
        assert warned[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await c.messages.schedule("a/b", "x", at=now + timedelta(days=1), key="k")
            await c.messages.schedule("a/b", "x", at=past, late="deliver")
            await c.messages.schedule("a/b", "x", at=now - timedelta(seconds=50))
            await c.messages.schedule("a/b", "x", at=None, delay=0)
            await c.messages.schedule_many([{"topic": "a/b", "payload": "x", "at": past, "late": "deliver"}])
        old = fasti.NewMessage(topic="a/old", payload="x", at=now - timedelta(days=2))
        local = {"topic": "a/b", "payload": "x", "at": "2020-01-01T00:00[Europe/Bucharest]"}
        items = [local, {"topic": "a/b", "payload": "x", "delay": 1}, {**local, "at": past}, old, old]
        with pytest.warns(UserWarning, match=r"^a/old: .* was 2 days, 0:00:00 ago") as warned:
            assert await c.messages.schedule_many(items, batch=4) == 5
        assert [one.filename for one in warned] == [__file__]
    options = ("--at", text, "--url", server.url, "-o", "json")
    code, out, err = await fasti_cli("message", "schedule", "a/b", "x", *options)
    assert (code, json.loads(out)["state"]) == (0, "pending")
    assert err == f"fasti: a/b: {text} was 0:02:00 ago by the server's clock, so it is due at once\n"


async def test_a_payload_that_is_not_there_is_said(server: Server) -> None:
    async with fasti.Client(server.url) as c:
        with pytest.warns(UserWarning, match=r"schedule\('a/b'\) has no payload") as warned:
            made = await c.messages.schedule("a/b", delay=60)
        assert warned[0].filename == __file__
        assert (await made.refresh()).payload == ""
        await c.messages.schedule("a/b", "", delay=60)
        await c.messages.schedule(deliver_to="https://example.com/hook", delay=60)
        with pytest.warns(UserWarning, match="^a NewMessage has no payload") as warned:
            await c.messages.schedule_many([fasti.NewMessage(topic="a/b", delay=60)])
        assert warned[0].filename == __file__
        await c.messages.schedule_many([fasti.NewMessage(topic="a/b", payload="", delay=60)])
    hook = ("--deliver-to", "https://example.com")
    for given, said in [((), "there is no PAYLOAD"), (("",), ""), (hook, "")]:
        options = (*given, "--in", "1m", "--url", server.url)
        code, _, err = await fasti_cli("message", "schedule", "a/b", *options)
        assert (code, said in err, bool(err)) == (0, True, bool(said))


async def test_a_warning_names_the_line_that_called(server: Server) -> None:
    """Also that of a blocking call, which runs in a thread of its own, and of a handler's."""
    key, elsewhere = "fasti_ci_0", "http://fasti.example:8080"

    def blocking() -> list[warnings.WarningMessage]:
        with warnings.catch_warnings(record=True) as warned, fasti.sync.Client(server.url) as c:
            warnings.simplefilter("always")
            made = c.messages.schedule("a/b", delay=60)
            made.reschedule(at="2020-01-01T00:00:00Z")
            c.messages.reschedule(c.messages.schedule("a/b", "", delay=60).id, at="2020-01-01T00:00:00Z")
            fasti.sync.Client(elsewhere, key=key).close()
            return warned

    async def awaited() -> list[warnings.WarningMessage]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            async with fasti.Client(server.url) as c:
                await fasti.Worker(c).on("a/b")(print).schedule("x", at="2020-01-01T00:00:00Z")
            fasti.Client(elsewhere, key=key)
            return warned

    kinds = ([UserWarning] * 3, [UserWarning])
    for seen, known in zip((await asyncio.to_thread(blocking), await awaited()), kinds, strict=True):
        assert [one.category for one in seen] == [*known, fasti.UnencryptedWarning]
        assert {one.filename for one in seen} == {__file__}


async def test_a_port_of_mqtt_is_recognised_and_one_of_http(server: Server) -> None:
    async with fasti.Client(f"http://{server.mqtt}", mqtt=server.http, retry=fasti.Retry(attempts=1)) as c:
        with pytest.raises(fasti.Refused, match="This port speaks MQTT"):
            await c.info()
        with pytest.raises(fasti.Unreachable, match="this port speaks HTTP: leave out mqtt="):
            await anext(c.subscribe("a/b"))
    for port in (server.http, server.mqtt):
        async with fasti.Client(server.url, mqtt=f"ws://{port}", retry=fasti.Retry(attempts=1)) as c:
            with pytest.raises(fasti.Unreachable, match="no websocket of MQTT is there"):
                await anext(c.subscribe("a/b"))


async def test_every_noun_has_show_and_get() -> None:
    nouns = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for noun in nouns.keys() - {"subscribe", "work"}:
        assert {"show", "get"} <= nouns[noun].commands.keys(), noun
        assert nouns[noun].commands["get"].hidden, noun


async def test_every_list_counts_and_has_a_limit(server: Server) -> None:
    async with fasti.Client(server.url) as c:
        for n in range(3):
            await c.messages.schedule(f"a/{n}", n, delay=3_600)
            await c.groups.put(f"g{n}", "a/#")
            await c.endpoints.put(f"e{n}", "https://example.com/")
            await c.schedules.put(f"s{n}", topic="t", payload="", every="1h")
        start = str((await anext(c.slices.list())).raw["start"])
    at = ("--url", server.url)
    counts = {"group": 3, "endpoint": 3, "schedule": 3, "message": 6, "retry": 0, "dead": 0}
    for noun, count in counts.items():
        assert await ok(noun, "ls", "--count", *at) == f"{count}\n", noun
        assert json.loads(await ok(noun, "ls", "--count", "--json", *at)) == {"count": count}, noun
        assert len(json.loads(await ok(noun, "ls", "--limit", "2", "--json", *at))) == min(count, 2), noun
    assert await ok("session", "ls", "--count", *at) == "0\n"
    assert int(await ok("slice", "ls", "--count", *at)) >= 1
    assert int(await ok("shard", "ls", start, "--count", *at)) >= 1


async def test_group_put_says_all_that_put_takes(server: Server) -> None:
    terms = ("--expiry", "2d", "--ack-timeout", "1m", "--max-attempts", "1", "--backoff", "1s,5s")
    keys = ("--fair", "--per-key-concurrency", "2", "--per-key-rate", "120/m")
    at = ("--json", "--url", server.url)
    made = json.loads(await ok("group", "put", "shop", "orders/#", *terms, "--rate", "5", *keys, *at))
    assert (made["name"], made["filter"], made["ack_timeout"]) == ("shop", "orders/#", 60.0)
    assert (made["max_attempts"], made["backoff"], made["expiry"]) == (1, [1.0, 5.0], 172_800.0)
    assert (made["rate"], made["fair"], made["per_key"]) == (5.0, True, {"concurrency": 2, "rate": 2.0})
    await ok("endpoint", "put", "ops", "https://example.com/", "--keep", "2d", *at)
    kept = ("--keep", "all", "--result-ttl", "2h", "--alerts", "ops")
    told = json.loads(await ok("group", "put", "shop", "orders/#", *kept, *at))
    assert (told["keep"], told["result_ttl"], told["alerts"]) == ("all", 7_200.0, "ops")
    again = json.loads(await ok("group", "put", "shop", "orders/#", "--order", "--on-dead", "hold", *at))
    assert (again["order"], again["on_dead"], again["rate"]) == (True, "hold", 0)


async def test_dead_letters_are_found_by_id_and_key(server: Server) -> None:
    dead = await poison(server.url)
    at = ("--url", server.url)
    assert await ok("dead", "ls", "--count", *at) == "1\n"
    assert await ok("dead", "ls", "--id", dead, "--count", *at) == "1\n"
    assert await ok("dead", "ls", "--id", "0" * 32, "--count", *at) == "0\n"
    assert await ok("dead", "ls", "--key", "order-17", "--count", *at) == "0\n"
    assert json.loads(await ok("dead", "ls", "-k", "order-17", "--json", *at)) == []
    assert (await fasti_cli("retry", "show", dead, *at))[0] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("message list", "No such command 'list'. Did you mean 'ls'?"),
        ("mesage ls", "No such command 'mesage'. Did you mean 'message'?"),
        ("group delete x", "No such command 'delete'. Did you mean 'rm'?"),
        ("slice xyzzy", "No such command 'xyzzy'. There are: ls, show, split, expire, archive, compact."),
    ],
)
async def test_an_unknown_command_names_the_nearest(words: str, said: str) -> None:
    code, _, err = await fasti_cli(*words.split())
    assert code == 2
    assert said in " ".join(err.split())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("message", "schedule", "t", "a\udcff"), "PAYLOAD cannot be encoded as UTF-8"),
        (("message", "schedule", "a\udcff", "x"), "TOPIC cannot be encoded as UTF-8"),
        (("message", "schedule", "t", "x", "-k", "a\udcff"), "-k cannot be encoded as UTF-8"),
        (("message", "ls", "--topic", "a\udcff"), "--topic cannot be encoded as UTF-8"),
        (("group", "put", "g", "a\udcff"), "FILTER cannot be encoded as UTF-8"),
        (("session", "show", "a\udcff"), "cannot be encoded as UTF-8"),
        (("subscribe", "a", "--session", "a\udcff"), "--session cannot be encoded as UTF-8"),
    ],
)
async def test_an_argument_of_other_bytes_is_named(words: tuple[str, ...], named: str) -> None:
    """What is no UTF-8 comes from the shell as halves of surrogate pairs."""
    code, _, err = await fasti_cli(*words, "--url", f"http://127.0.0.1:{free_port()}")
    assert (code, "codec" in err, "surrogates" in err) == (2, False, False)
    assert named in err
