"""Dead letters: what a call says to the server, and what it gives."""

from datetime import UTC, datetime, timedelta

import pytest

import fasti
from tests.sdk.fake import LETTER, Fake

AT = datetime(2030, 1, 1, tzinfo=UTC)


async def test_list_and_get(client: fasti.Client, fake: Fake) -> None:
    chosen = {"group": "workers", "topic": "jobs/#", "died_from": AT, "died_to": "2030-01-02T00:00:00Z"}
    (letter,) = [one async for one in client.dead.list(reason="acked", limit=5, **chosen)]  # type: ignore[arg-type]
    assert fake.asked == {
        "group": "workers",
        "topic": "jobs/#",
        "from": "2030-01-01T00:00:00.000Z",
        "to": "2030-01-02T00:00:00Z",
        "reason": "acked",
        "limit": "5",
    }
    assert (letter.id, letter.topic, letter.group, letter.attempts) == (LETTER["id"], "jobs/1", "workers", 3)
    assert (letter.subscription, letter.reason) == ("$share/workers/jobs/#", "not acked after 3 deliveries")
    assert [(one.by, one.outcome, one.seconds) for one in letter.tries] == [("w/1", "nacked", 0.25)]
    assert (letter.payload, letter.headers, letter.died_at) == (b"bad", {"a": "b"}, AT + timedelta(seconds=1))
    assert await client.dead.get(letter.id) == (letter,)
    assert await client.dead.get("0" * 32) == ()


async def test_requeue_and_drop(client: fasti.Client, fake: Fake) -> None:
    done = await client.dead.requeue(["1", "2"], group="workers", delay=timedelta(minutes=5))
    assert done == fasti.BulkResult(2, 2)
    body = {"deliver_in": "PT5M", "dry_run": False, "group": "workers", "ids": ["1", "2"]}
    assert fake.asked == {"verb": "requeue", **body}
    await client.dead.requeue(group="old", to="hook")
    assert fake.asked == {"verb": "requeue", "filter": {"group": "old"}, "to": "hook", "dry_run": False}
    assert await client.dead.drop(topic="jobs/#", dry_run=True) == fasti.BulkResult(1, 0)
    assert fake.asked == {"verb": "drop", "filter": {"topic": "jobs/#"}, "dry_run": True}
    assert await client.dead.drop(str(n) for n in range(1_500)) == fasti.BulkResult(1_500, 1_500)
    assert len(fake.asked["ids"]) == 500
    assert await client.dead.drop([]) == fasti.BulkResult(0, 0)
    with pytest.raises(fasti.BadArgument, match="ids or a filter must be given"):
        await client.dead.drop(["1"], topic="a")
    fake.faults = ["lost"]
    with pytest.raises(fasti.Unreachable):
        await client.dead.requeue(["1"])
