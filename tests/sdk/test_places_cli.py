"""`fasti retry`, what is undone, and what becomes of it: the command line against the stand-in."""

import json
from typing import Any

import pytest

import fasti
from fasti.cli.places import in_words
from tests.sdk.fake import LEFT, RETRY, UNDONE, Fake
from tests.sdk.test_cli import fasti_cli, ok


async def asked(fake: Fake, *command: str) -> dict[str, Any]:
    """What the server was asked."""
    await ok(*command)
    return fake.asked


async def test_retries_are_listed_and_steered(url: str, fake: Fake) -> None:
    at = ("--url", url)
    listed = await ok("retry", "ls", "--group", "workers", "--reason", "db", "--from", "2030-01-01", *at)
    assert fake.asked == {"group": "workers", "reason": "db", "from": "2030-01-01", "limit": "100"}
    assert "2030-01-01T00:00:05.000Z" in listed
    assert json.loads(await ok("retry", "ls", "-o", "json", *at)) == [RETRY]
    assert json.loads(await ok("retry", "ls", "-o", "ndjson", *at)) == RETRY
    assert await asked(fake, "retry", "try", "1", "--in", "5m", *at) == {
        "verb": "try",
        "ids": ["1"],
        "deliver_in": "5m",
        "dry_run": False,
    }
    assert (await asked(fake, "retry", "try", "1", "--at", "2030-01-01", *at))["deliver_at"] == "2030-01-01"
    assert (await asked(fake, "retry", "bury", "-k", "k", "--dry-run", *at)) == {
        "verb": "bury",
        "filter": {"key": "k"},
        "dry_run": True,
    }
    assert (await asked(fake, "retry", "drop", "--id", "1", *at))["filter"] == {"id": "1"}
    code, _, err = await fasti_cli("retry", "drop", *at)
    assert (code, "give ids" in err) == (2, True)
    sent = await asked(fake, "dead", "requeue", "--group", "old", "--place", "hook", *at)
    assert (sent["filter"], sent["to"]) == ({"group": "old"}, "hook")


async def test_what_is_undone_is_shown(url: str) -> None:
    groups, endpoints = [await ok(noun, "ls", "--url", url) for noun in ("group", "endpoint")]
    assert "12 unread, 3 in flight, 2 to be tried again" in groups
    assert "12 unread, 3 in flight, 2 to be tried again" in endpoints
    assert "85% of 20: answered 500" in endpoints
    idle = {"failing": {"share": 0.0, "of": 0, "last_reason": None}}
    assert in_words(idle) == {"failing": "nothing posted"}
    (group,) = json.loads(await ok("group", "ls", "-o", "json", "--url", url))
    assert group["undone"] == UNDONE


@pytest.mark.parametrize(("noun", "which"), [("group", ["--filter", "jobs/#"]), ("endpoint", [])])
async def test_nothing_undone_is_deleted_without_a_word(
    url: str, fake: Fake, noun: str, which: list[str]
) -> None:
    command = (noun, "rm", "workers", *which, "--url", url)
    code, _, err = await fasti_cli(*command)
    quoted = " --filter 'jobs/#'" if which else ""
    assert code == 1
    assert [line.strip() for line in err.splitlines()] == [
        "fasti: workers has unfinished messages: 12 unread, 3 in flight, 2 to be tried again",
        f"fasti {noun} rm workers{quoted} --undone dead",
        f"fasti {noun} rm workers{quoted} --undone drop",
    ]
    code, _, err = await fasti_cli(*command, "-o", "json")
    assert (code, json.loads(err)["undone"]) == (1, UNDONE)
    await ok(*command, "--undone", "drop")
    assert fake.asked["undone"] == "drop"
    assert (await fasti_cli(*command, "--undone", "perhaps"))[0] == 2


@pytest.mark.parametrize("noun", ["group", "endpoint", "session"])
async def test_a_place_leaves_its_backlog_behind(url: str, fake: Fake, noun: str) -> None:
    said = await ok(noun, "skip", "audit", "--url", url)
    assert fake.asked == {"name": "audit", "to": "now", "undone": "dead"}
    assert "12 unread, 3 in flight, 2 to be tried again" in said
    told = json.loads(
        await ok(noun, "skip", "audit", "--to", "1h", "--undone", "drop", "-o", "json", "--url", url)
    )
    assert (fake.asked, told["undone"]) == ({"name": "audit", "to": "1h", "undone": "drop"}, UNDONE)


async def test_a_cancel_that_comes_too_late_says_what_ends_the_rest(url: str, fake: Fake) -> None:
    async with fasti.Client(url) as c:
        first, second = [await c.messages.schedule("jobs/1", n, key=str(n), delay=5) for n in range(2)]
    fake.messages[first.id]["state"] = "dispatched"
    code, out, err = await fasti_cli("message", "cancel", first.id, second.id, "--url", url)
    assert code == 1
    assert second.id in out
    left = (
        "group workers (jobs/#) waits for try 3 at 2030-01-01T00:00:05.000Z",
        "group pool (jobs/#) has it until 2030-01-01T00:01:00.000Z",
        "group late (#) has not read it yet",
        "group late (jobs/1) gets it when its sender may send it: key 'shop' is revoked",
    )
    assert [line.strip() for line in err.splitlines()] == [
        f"fasti: {first.id} was already dispatched: {'; '.join(left)}",
        f"fasti retry drop --id {first.id}",
    ]
    code, _, err = await fasti_cli("message", "cancel", first.id, "-o", "json", "--url", url)
    assert (code, json.loads(err)["deliveries"]) == (1, LEFT)


async def test_how_long_a_place_stays_is_said_where_it_is_made(url: str, fake: Fake) -> None:
    made = ("endpoint", "put", "hook", "https://example.com/hook", "--url", url)
    assert "expiry" not in await asked(fake, *made)
    assert (await asked(fake, *made, "--expiry", "2d"))["expiry"] == "2d"
    code, _, err = await fasti_cli("subscribe", "a/#", "--expiry", "2d", "--url", url)
    assert (code, "is only for groups" in err) == (2, True)
