"""The log: one line an event whatever clients send, and a count in the place of what repeats."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from io import StringIO

import pytest

from server.observe.logs import (
    BURST,
    EACH,
    KIND_BURST,
    KINDS_MAX,
    LINE_MAX,
    TEXT_MAX,
    WINDOW_S,
    by,
    clean,
    configure_logging,
    telling,
)

log = logging.getLogger("server.test")


Begin = Callable[[str], StringIO]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Starts logging in a style and gives what is written; the handlers of the process come back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def configured(style: str) -> StringIO:
        out = StringIO()
        monkeypatch.setattr(sys, "stderr", out)
        root.handlers.clear()
        configure_logging(style)
        return out

    yield configured
    root.handlers[:] = handlers
    root.setLevel(level)


def say(
    text: str,
    *args: object,
    at: float = 1_000.0,
    cause: str | None = None,
    each: bool = False,
    name: str = log.name,
) -> None:
    extra = by(cause) if cause else EACH if each else None
    record = log.makeRecord(name, logging.INFO, "", 0, text, args, None, extra=extra)
    record.created = at
    log.handle(record)


EVIL = "evil\n2026-01-01 00:00:00,000 INFO    server.run forged\x1b[2J\u2028\u202e\x00\udc80" + "x" * 60_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("meter 7 äß", "meter 7 äß"),
        ("a\nb\rc\x00\x7f\u2028", "a\\nb\\rc\\x00\\x7f\\u2028"),
        ("\udc80\U000e0001", "\\udc80\\U000e0001"),
        (b"a/\xff\n", "a/\\xff\\n"),
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 64 + "…"),
        (b"x" * 65, "x" * 64 + "…"),
        (7, "7"),
    ],
)
def test_what_is_shown(text: object, expected: str) -> None:
    assert clean(text) == expected


def test_an_event_is_one_line_of_text(begin: Begin) -> None:
    written = begin("text")
    say("refused: %s", EVIL)
    (line,) = written.getvalue().splitlines()
    assert "server.run forged" in line
    assert len(line) < LINE_MAX + 200


def test_an_event_is_one_line_of_json(begin: Begin) -> None:
    written = begin("json")
    say("refused: %s", EVIL)
    (line,) = written.getvalue().splitlines()
    assert json.loads(line)["event"].startswith("refused: evil\\n2026-01-01")


def test_what_a_line_says_is_in_fields(begin: Begin) -> None:
    written = begin("json")
    log.info("refused: %s", "a", extra=by("10.0.0.7", client=EVIL, reason="0x87", topic=b"a/\xff", why=None))
    log.info("started", extra=telling(version="1.2", open=True))
    log.info("plain")
    refused, started, plain = map(json.loads, written.getvalue().splitlines())
    assert (refused["from"], refused["reason"], refused["topic"]) == ("10.0.0.7", "0x87", "a/\\xff")
    assert refused["client"].startswith("evil\\n")
    assert len(refused["client"]) < 2 * TEXT_MAX
    assert (started["version"], started["open"]) == ("1.2", True)
    assert "why" not in refused
    assert set(plain) == {"time", "level", "logger", "event"}


def test_the_level_is_kept(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    begin("text")
    out = StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    configure_logging("text", "warning")
    log.info("not this")
    log.warning("this")
    assert [line.rpartition(" ")[2] for line in out.getvalue().splitlines()] == ["this"]


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_traceback_forges_nothing(begin: Begin, style: str) -> None:
    written = begin(style)
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("it failed")
    first, *others = written.getvalue().splitlines()
    assert "it failed" in first
    assert all(line.startswith("    ") for line in others)
    assert len(written.getvalue()) < 5_000


def test_what_repeats_is_counted(begin: Begin) -> None:
    written = begin("text")
    for number in range(BURST + 1_234):
        say("refused: %s", number, cause="10.0.0.7")
    say("refused: %s", "another", cause="10.0.0.8")
    say("of the server")
    assert len(written.getvalue().splitlines()) == BURST + 2
    say("later", at=1_000 + WINDOW_S)
    *_, count, later = written.getvalue().splitlines()
    assert count.endswith("server.test … and 1,234 more like this from 10.0.0.7: refused: 0")
    assert later.endswith("later")
    say("refused: %s", "again", at=1_001 + WINDOW_S, cause="10.0.0.7")
    assert written.getvalue().endswith("refused: again\n")


def test_a_line_that_names_no_cause_is_limited_too(begin: Begin) -> None:
    written = begin("text")
    for number in range(BURST + 10):
        say("%s", number)
        say("another kind")
    assert len(written.getvalue().splitlines()) == 2 * BURST
    say("later", at=1_000 + WINDOW_S)
    first, second, _ = written.getvalue().splitlines()[-3:]
    assert first.endswith("… and 10 more like this: 0")
    assert second.endswith("… and 10 more like this: another kind")


@pytest.mark.parametrize("address", ["10.0.0.7", "2001:db8::7"])
def test_a_line_names_the_address_that_caused_it_once(begin: Begin, address: str) -> None:
    written = begin("text")
    say("connection closed: no TLS", cause=address)
    say("%s", "x" * 2 * LINE_MAX, cause=address)
    say("connect refused: %s:4711", address, cause=address)
    say("publish not stored", cause="clients")
    plain, long, named, of_all = written.getvalue().splitlines()
    assert plain.endswith(f"server.test {address}: connection closed: no TLS")
    assert f"server.test {address}: xxx" in long
    assert named.endswith(f"server.test connect refused: {address}:4711")
    assert of_all.endswith("server.test publish not stored")


def test_a_line_that_no_client_can_cause_may_say_so(begin: Begin) -> None:
    written = begin("text")
    for number in range(BURST + 10):
        say("%s", number, each=True)
    assert len(written.getvalue().splitlines()) == BURST + 10


def test_a_command_without_clients_writes_every_line(monkeypatch: pytest.MonkeyPatch, begin: Begin) -> None:
    begin("text")
    out = StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    configure_logging("text", is_limited=False)
    for number in range(BURST + 10):
        say("%s", number)
    assert len(out.getvalue().splitlines()) == BURST + 10


@pytest.mark.long
def test_many_causes_of_one_kind_are_bounded_together(begin: Begin) -> None:
    """Who has many addresses writes no more lines for it."""
    written = begin("text")
    for _ in range(BURST + 5):
        say("refused: %s", "the first", cause="10.0.0.1")
    for number in range(50_000):
        say("refused: %s", number, cause=f"a{number}" + "x" * 1_000)
        say("refused: %s", "the first", cause="10.0.0.1")
    assert len(written.getvalue().splitlines()) == KIND_BURST
    say("accepted", cause="10.0.0.2")
    assert written.getvalue().endswith("accepted\n"), "another kind is not held back"
    say("later", at=1_000 + WINDOW_S)
    *_, of_one, of_others, _ = written.getvalue().splitlines()
    assert of_one.endswith("… and 50,005 more like this from 10.0.0.1: refused: the first")
    assert of_others.endswith(f"… and 49,920 more like this from others: refused: {KIND_BURST - BURST}")
    assert len(written.getvalue()) < 50_000


def test_lines_of_a_library_are_one_kind_whatever_they_say(begin: Begin) -> None:
    written = begin("text")
    for number in range(1_000):
        say(f"task {number} failed", name="asyncio")
    assert len(written.getvalue().splitlines()) == BURST


def test_the_kinds_are_bounded_and_no_count_is_lost(begin: Begin) -> None:
    written = begin("text")
    for _ in range(BURST + 5):
        say("first", cause="10.0.0.1")
    for number in range(KINDS_MAX):
        say(f"kind {number}")
    assert "… and 5 more like this from 10.0.0.1: first" in written.getvalue()
    for _ in range(BURST + 6):
        say("last", cause="10.0.0.2")
    logging.getLogger().handlers[0].close()
    assert written.getvalue().endswith("… and 6 more like this from 10.0.0.2: last\n")


def test_a_clock_set_back(begin: Begin) -> None:
    written = begin("text")
    for _ in range(BURST + 1):
        say("x", cause="a")
    say("x", at=5.0, cause="a")
    assert "… and 1 more" in written.getvalue()
