"""An endpoint whose posts fail says so, with its last answers: in `GET`, in lists, in metrics."""

import asyncio
from typing import Any

import pytest

from server.reports import status
from server.webhook.last_posts import LAST_POSTS, Failing, LastPosts, PostResult
from server.webhook.verdicts import DONE, Outcome, Reply, Verdict
from tests.server.conftest import Running
from tests.support.receiver import Receiver, answer, drop, receiving

from .conftest import put, settled, shown

FAILED = Verdict(Outcome.AGAIN, None, "HTTP 500 Internal Server Error")
GONE = Verdict(Outcome.GONE, None, "HTTP 410 Gone")


async def post(server: Running, receiver: Receiver, *names: str) -> None:
    """A message to each of these endpoints, one after the other."""
    for name in names:
        count = len(receiver.got)
        await server.schedule("a", "x", deliver_to=name)
        await receiver.posts(count + 1)
        await settled(server)


async def shares(server: Running) -> list[str]:
    page = (await server.call("GET", "/metrics")).body.decode()
    return [line for line in page.splitlines() if line.startswith("fasti_endpoint_failing_share{")]


def test_the_last_posts_count_and_no_others() -> None:
    last = LastPosts()
    assert last.failing == Failing(0.0, 0, "")

    def note(verdict: Verdict, status: int = 204) -> None:
        last.note(1_000 + status, f"{status:032x}", verdict, Reply(status, latency_ms=12.5))

    for verdict, code in ((DONE, 200), (FAILED, 500), (DONE, 204), (GONE, 410)):
        note(verdict, code)
    assert last.failing == Failing(0.5, 4, "HTTP 410 Gone")
    assert [*last.answers(2)] == [
        PostResult(1_410, f"{410:032x}", 410, 12, "HTTP 410 Gone"),
        PostResult(1_204, f"{204:032x}", 204, 12, ""),
    ]
    for _ in range(LAST_POSTS - 1):
        note(DONE)
    assert last.failing == Failing(1 / LAST_POSTS, LAST_POSTS, "HTTP 410 Gone")
    note(DONE)
    assert last.failing == Failing(0.0, LAST_POSTS, ""), "the failure is older than all that counts"
    assert [one.status for one in last.answers()] == [204] * LAST_POSTS
    assert [*LastPosts().answers()] == []


async def test_what_fails_is_seen_to_fail(server: Running, receiver: Receiver) -> None:
    assert (await put(server, receiver))["failing"] == {"share": 0.0, "of": 0, "last_reason": None}
    await put(server, receiver, "idle")
    receiver.script = [answer(200), answer(500), drop]
    await post(server, receiver, "billing", "billing", "billing")
    failing = {"share": 0.667, "of": 3, "last_reason": "the connection was closed without an answer"}
    one = await shown(server)
    assert one["failing"] == failing
    answers = [(each["status"], each["reason"]) for each in one["last_answers"]]
    assert answers == [(None, failing["last_reason"]), (500, "HTTP 500 Internal Server Error"), (200, None)]
    assert one["last_answers"][1]["id"] == receiver.got[1].headers["webhook-id"]
    assert 0 <= one["last_answers"][1]["seconds"] < 60
    listed = (await server.call("GET", "/v1/endpoints")).body["endpoints"]
    assert [one["failing"]["share"] for one in listed] == [0.667, 0.0]
    assert [len(one["last_answers"]) for one in listed] == [3, 0]
    (line,) = await shares(server)
    name, _, value = line.rpartition(" ")
    assert name == 'fasti_endpoint_failing_share{endpoint="billing"}'
    assert float(value) == pytest.approx(2 / 3)


async def test_another_receiver_is_judged_by_its_own_posts(server: Running, receiver: Receiver) -> None:
    await put(server, receiver)
    asked = asyncio.Event()

    async def late(got: Any, writer: asyncio.StreamWriter) -> bool:
        await asked.wait()
        return await answer(500)(got, writer)

    receiver.script = [answer(500), late]
    await post(server, receiver, "billing")
    await server.call("PUT", "/v1/endpoints/billing", {"url": receiver.url(), "timeout": "5s"})
    assert (await shown(server))["failing"]["of"] == 1, "it is the same receiver"
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(2)
    await server.call("PUT", "/v1/endpoints/billing", {"url": receiver.url("/mended")})
    assert (await shown(server))["failing"]["of"] == 0
    asked.set()
    await settled(server)
    assert (await shown(server))["failing"]["of"] == 0, "the former receiver has answered"


@pytest.mark.parametrize("top", [0, 1])
class TestBounded:
    async def test_those_that_fail_most_are_told_of(
        self, server: Running, monkeypatch: pytest.MonkeyPatch, top: int
    ) -> None:
        monkeypatch.setattr(status, "TOP", top)
        async with receiving() as receiver:
            for name in ("bad", "good", "worse"):
                await put(server, receiver, name)
            receiver.script = [answer(200), answer(500), answer(200), answer(500)]
            await post(server, receiver, "bad", "bad", "good", "worse")
            told = ['fasti_endpoint_failing_share{endpoint="worse"} 1.0']
            assert await shares(server) == told[:top]


async def test_what_was_answered_is_told_of_what_is_done(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, keep="all")
    receiver.script = [answer(200), answer(299)]
    for count, told in enumerate(("200 OK", "299"), 1):
        name = await server.schedule("a", "x", deliver_to="billing")
        await receiver.posts(count)
        await settled(server)
        (one,) = (await server.call("GET", f"/v1/messages/{name}")).body["deliveries"]
        assert (one["state"], one["answer"]) == ("done", told)
