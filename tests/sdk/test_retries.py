"""Retries: what a call says to the server, and what it gives; what is left of a dispatched message."""

from datetime import UTC, datetime, timedelta

import pytest

import fasti
from tests.sdk.fake import LEFT, RETRY, Fake

AT = datetime(2030, 1, 1, tzinfo=UTC)


async def test_list_and_get(client: fasti.Client, fake: Fake) -> None:
    (retry,) = [
        one
        async for one in client.retries.list(
            group="workers", topic="#", reason="db", key="k", retry_from=AT, retry_to="2030-01-02", limit=5
        )
    ]
    chosen = {"group": "workers", "topic": "#", "reason": "db", "key": "k", "limit": "5"}
    assert fake.asked == {**chosen, "from": "2030-01-01T00:00:00.000Z", "to": "2030-01-02"}
    assert (retry.id, retry.group, retry.attempts, retry.reason) == (RETRY["id"], "workers", 1, "db is down")
    assert (retry.retry_at, retry.payload) == (AT + timedelta(seconds=5), b"bad")
    assert [one.reason for one in retry.tries] == ["db is down"]
    assert await client.retries.get(retry.id) == (retry,)
    assert fake.asked["id"] == retry.id
    with pytest.raises(TypeError, match="died_from"):
        await anext(client.retries.list(died_from=AT))  # type: ignore[call-arg]


async def test_try_bury_and_drop(client: fasti.Client, fake: Fake) -> None:
    assert await client.retries.try_(["1", "2"], group="workers") == fasti.BulkResult(2, 2)
    assert fake.asked == {"verb": "try", "dry_run": False, "group": "workers", "ids": ["1", "2"]}
    await client.retries.try_(topic="jobs/#", deliver_in=timedelta(minutes=5))
    assert fake.asked == {
        "verb": "try",
        "filter": {"topic": "jobs/#"},
        "deliver_in": "PT5M",
        "dry_run": False,
    }
    await client.retries.try_(["1"], deliver_at=AT)
    assert fake.asked["deliver_at"] == "2030-01-01T00:00:00.000Z"
    assert await client.retries.bury(reason="db", dry_run=True) == fasti.BulkResult(1, 0)
    assert fake.asked == {"verb": "bury", "filter": {"reason": "db"}, "dry_run": True}
    await client.retries.drop(id="1", retry_to=AT)
    assert fake.asked["filter"] == {"id": "1", "to": "2030-01-01T00:00:00.000Z"}
    with pytest.raises(fasti.BadArgument, match="at and `delay` are both given"):
        await client.retries.try_(["1"], deliver_in=5, deliver_at=AT)
    with pytest.raises(fasti.BadArgument, match="ids or a filter must be given"):
        await client.retries.drop(["1"], topic="a")


async def test_a_cancel_that_comes_too_late_says_what_is_left(client: fasti.Client, fake: Fake) -> None:
    m = await client.messages.schedule("jobs/1", "", delay=5)
    fake.messages[m.id]["state"] = "dispatched"
    assert not await client.messages.cancel(m.id)
    with pytest.raises(fasti.AlreadyDispatched) as late:
        await client.messages.cancel(m.id, strict=True)
    assert late.value.deliveries == tuple(LEFT)
    assert not await m.cancel()
    retry, leased, dead, *_ = m.deliveries
    assert (m.state, retry.state, retry.retry_at) == ("dispatched", "retry", AT + timedelta(seconds=5))
    assert [one.by for one in retry.tries] == ["w/1"]
    assert (leased.group, leased.lease_until) == ("pool", AT + timedelta(minutes=1))
    assert (dead.session, dead.tries) == ("audit/1", ())


async def test_who_would_get_it_now(client: fasti.Client, fake: Fake) -> None:
    m = await client.messages.schedule("jobs/1", "", delay=5, claims=True)
    assert m.claims == fasti.Claims(groups=2, endpoints=1, sessions=0)
    assert fake.requests[-1] == ("POST", "/v1/messages?claims=true")
    assert (await client.messages.schedule("jobs/1", "", delay=5)).claims is None
