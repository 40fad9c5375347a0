"""What people and programs see of results and errors: whole ids, bytes, escapes, problems as JSON."""

import io
import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fasti
from fasti.addresses import base_url
from fasti.cli.output import Format, Printer, payload_text, printable
from fasti.errors import error_of, problem_of
from tests.sdk.test_against_server import Server, simulated
from tests.sdk.test_cli import fasti_cli, ok

ID = "01a1fd2c47a000000000000000100001"
COLUMNS = ("id", "deliver_at", "state", "topic", "payload")
ROW: dict[str, Any] = {
    "id": ID,
    "deliver_at": "2026-11-21T08:15:00.000Z",
    "state": "pending",
    "topic": "orders/17/reminder",
    "payload": "x" * 200,
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with simulated(tmp_path / "data") as made:
        yield made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(
    monkeypatch: pytest.MonkeyPatch, width: int | None, *rows: dict[str, Any], wide: bool = False
) -> list[str]:
    """The table on a terminal of so many columns; None: in a pipe."""
    out = io.StringIO() if width is None else Terminal()
    monkeypatch.setenv("COLUMNS", str(width or 80))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", out)
    Printer(Format.table, wide=wide).many(rows, COLUMNS)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_an_id_is_never_folded(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """What names something stays whole, beyond the edge if need be; long texts give way."""
    lines = printed(monkeypatch, width, ROW, {**ROW, "payload": "y"})
    assert len(lines) == 3
    assert lines[1].startswith(f"{ID}  2026-11-21T08:15:00.000Z  pending")
    assert lines[1].rstrip().endswith("…")
    least = 32 + 24 + 7 + 8 + 8 + 4 * 2
    assert max(len(line.rstrip()) for line in lines) <= max(width, least)


def test_a_wide_table_and_a_pipe_cut_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for lines in (printed(monkeypatch, 40, ROW, wide=True), printed(monkeypatch, None, ROW)):
        assert len(lines) == 2
        assert lines[1].rstrip().endswith("orders/17/reminder  " + "x" * 200)


def test_one_object_is_cut_as_a_table_is(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", out)
    row = {"id": ID, "payload": "x" * 200, "tries": [{"reason": "y" * 90}]}
    Printer(Format.table).one(row)
    Printer(Format.table).cut("z" * 200)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [len(line) for line in lines] == [len(f"payload  {ID}"), 60, 60, 60]
    assert [line[-1] for line in lines[1:]] == ["…"] * 3
    Printer(Format.json).one(row)
    assert json.loads(out.getvalue().splitlines()[-1]) == row


def test_wide_characters_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, line) = printed(monkeypatch, 90, {**ROW, "topic": "a", "payload": "日本" * 50})
    assert line.rstrip().endswith("…")
    assert "日本" in line


def test_what_others_wrote_speaks_to_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "a\nb\x1b[2J\u202e[red]\x07"
    lines = printed(monkeypatch, 200, {**ROW, "topic": evil, "payload": evil})
    assert len(lines) == 2
    assert r"a\nb\x1b[2J\u202e[red]\x07" in lines[1]


def test_bytes_are_text_or_said_to_be_base64(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {**ROW, "payload": payload, "encoding": "base64"} for payload in ("aGVsbG8=", "AP8=", "GQ==", "?")
    ]
    lines = printed(monkeypatch, 200, *rows)
    assert [line.split()[-1] for line in lines[1:]] == ["hello", "base64:AP8=", "base64:GQ==", "base64:?"]


@given(st.binary(max_size=12) | st.text(max_size=8).map(str.encode))
def test_a_payload_is_one_line_to_look_at(payload: bytes) -> None:
    assert payload_text(payload).isprintable()


@given(st.text(max_size=12))
def test_printable_changes_nothing_that_is(text: str) -> None:
    assert printable(text).isprintable()
    assert not text.isprintable() or printable(text) == text


async def test_errors_of_a_program_are_json(server: Server) -> None:
    """The server's problem as it came, and ours in the same form."""
    at = ("--url", server.url)
    for arguments, code, slug in (
        (("message", "get", "0" * 32, *at), 1, "not-found"),
        (("message", "schedule", "a/#", "x", *at), 1, "refused"),
        (("message", "schedule", "a", "x", "--late", "nope", *at), 2, "usage"),
        (("message", "get", *at), 2, "usage"),
        (("nonsense", *at), 2, "usage"),
        (("server", "status", "--url", "http://127.0.0.1:1"), 3, "unreachable"),
    ):
        for output in ("json", "ndjson"):
            found, out, err = await fasti_cli(*arguments, "-o", output)
            assert (found, out) == (code, ""), err
            problem = json.loads(err)
            assert problem["type"] == f"/problems/{slug}"
            assert problem["title"]
            assert problem["detail"]
        found, _, err = await fasti_cli(*arguments)
        assert found == code
        assert not err.startswith("{")


async def test_a_reason_is_said_once(server: Server) -> None:
    _, _, err = await fasti_cli("message", "schedule", "a/#", "x", "--url", server.url)
    assert err.count("wildcard") == 1
    several = {"detail": "2 items are refused", "errors": [{"line": 1, "field": "qos", "detail": "is 3"}]}
    assert "line 1 field qos is 3" in str(error_of(problem_of(several, 422)))


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("https://a.example/fasti/", "https://a.example/fasti"),
        ("meter", "http://meter"),
        ("HTTPS://meter/", "https://meter"),
    ],
)
def test_an_address_without_a_scheme_is_http(said: str, url: str) -> None:
    assert base_url(said) == url


@pytest.mark.parametrize(
    "said", ["ftp://a", "http://", "http://a:port", "https:/a", "https//a", "://x", "unix:///run/fasti"]
)
def test_what_is_no_address_is_said_so(said: str) -> None:
    with pytest.raises(ValueError, match="is no address of a server"):
        base_url(said)


@pytest.mark.parametrize(
    "said", ["https://joe:s3cret@a.example", "joe:s3cret@a:8080", "https://s3cret@a", "ftp://joe:s3cret@a"]
)
@pytest.mark.parametrize("argument", ["url", "mqtt"])
def test_an_address_with_a_password_is_refused_without_a_word_of_it(argument: str, said: str) -> None:
    with pytest.raises(fasti.BadArgument, match=f"^{argument} must not hold a user name") as refused:
        fasti.Client(key="k", **{argument: said})
    assert "s3cret" not in str(refused.value)


async def test_a_server_is_found_without_a_scheme(server: Server) -> None:
    bare = server.url.removeprefix("http://")
    assert json.loads(await ok("server", "status", "-o", "json", "--url", bare))["url"] == server.url
    async with fasti.Client(bare) as c:
        assert (await c.info()).raw


async def test_nothing_is_asked_of_an_empty_name(server: Server) -> None:
    async with fasti.Client(server.url) as c:
        for asked in (c.messages.get(""), c.sessions.get(""), c.schedules.get(""), c.groups.get("")):
            with pytest.raises(fasti.BadArgument, match="must not be empty"):
                await asked


def test_a_schedule_shows_its_rule_and_its_fires() -> None:
    fire = {"at": "2027-03-28T01:30:00.000Z", "local": "2027-03-28T04:30:00+03:00[Europe/Bucharest]"}
    said = {"name": "n", "cron": "30 4 * * *", "timezone": "Europe/Bucharest", "last": fire, "next": fire}
    found = fasti.Schedule.of(said)
    assert (found.cron, found.every, found.rrule, found.timezone) == (
        "30 4 * * *",
        None,
        None,
        "Europe/Bucharest",
    )
    assert found.last is not None
    assert found.next is not None
    assert found.last.local == fire["local"]
    assert fasti.Schedule.of({"name": "n"}).last is None


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("message", "ls", "--state", "foo"), ("'foo' is not one of", "dispatched")),
        (("message", "schedule", "a", "x", "--late", "nope"), ("'nope' is not one of", "deliver", "drop")),
    ],
)
async def test_a_word_that_is_not_known_is_answered_with_those_that_are(
    words: tuple[str, ...], known: tuple[str, ...]
) -> None:
    for more in ((), ("-o", "json")):
        code, _, err = await fasti_cli(*words, *more)
        assert (code, "Value error" in err) == (2, False)
        assert [text for text in known if text not in err] == []


async def test_a_server_without_a_cluster_says_so(server: Server) -> None:
    code, _, err = await fasti_cli("cluster", "status", "--url", server.url)
    assert (code, err.strip()) == (1, "fasti: this server is not part of a cluster")
    code, _, err = await fasti_cli("cluster", "status", "--url", server.url, "-o", "json")
    told = json.loads(err)
    assert (code, told["status"], told["detail"]) == (1, 404, "this server is not part of a cluster")


async def test_no_server_there_is_said_in_few_words() -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = await fasti_cli("server", "status", "--url", url)
    assert (code, err.strip()) == (3, f"fasti: {url}: connection refused")
