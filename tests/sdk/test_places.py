"""Places: what a group, an endpoint or a session has not finished, and what becomes of it."""

from datetime import UTC, datetime, timedelta

import pytest

import fasti
from fasti.values import kept_for
from tests.sdk.fake import Fake

AT = datetime(2030, 1, 1, tzinfo=UTC)
UNDONE = fasti.Undone(12, 3, 2, AT + timedelta(seconds=5), AT - timedelta(days=1))


async def test_what_is_undone_is_told_of(client: fasti.Client) -> None:
    (group,) = await client.groups.get("workers")
    assert (group.undone, group.incarnation, group.expiry) == (UNDONE, 3, None)
    endpoint = await client.endpoints.get("hook")
    assert (endpoint.undone, endpoint.incarnation, endpoint.expiry) == (UNDONE, 3, None)
    assert endpoint.failing == fasti.Failing(share=0.85, of=20, last_reason="answered 500")
    assert (await client.sessions.get("audit/1")).undone is None, "an older server does not say"
    assert kept_for(172_800) == timedelta(days=2)
    assert UNDONE
    assert not fasti.Undone(0, 0, 0)


async def test_nothing_undone_is_deleted_without_a_word(client: fasti.Client, fake: Fake) -> None:
    for delete in (client.groups.delete, client.endpoints.delete):
        with pytest.raises(fasti.StillUndone) as left:
            await delete("workers")
        assert (left.value.undone, left.value.slug) == (UNDONE, "undone")
    await client.groups.delete("workers", "jobs/#", undone="dead")
    assert fake.asked == {"filter": "jobs/#", "undone": "dead"}
    await client.endpoints.delete("hook", undone="drop")
    assert fake.asked == {"undone": "drop"}


async def test_a_place_leaves_its_backlog_behind(client: fasti.Client, fake: Fake) -> None:
    skipped = await client.groups.skip("workers")
    assert fake.asked == {"name": "workers", "to": "now", "undone": "dead"}
    assert (skipped.start, skipped.end, skipped.undone) == (AT - timedelta(days=1), AT, UNDONE)
    await client.groups.skip("workers", timedelta(hours=1), "drop", "jobs/#")
    assert fake.asked == {"name": "workers", "filter": "jobs/#", "to": "PT1H", "undone": "drop"}
    await client.endpoints.skip("hook", to=AT)
    assert fake.asked == {"name": "hook", "to": "2030-01-01T00:00:00.000Z", "undone": "dead"}
    await client.sessions.skip("audit/1", undone="drop")
    assert fake.asked == {"name": "audit/1", "to": "now", "undone": "drop"}


async def test_how_long_a_place_stays_is_said_where_it_is_given(client: fasti.Client, fake: Fake) -> None:
    await client.groups.put("workers", "jobs/#")
    assert fake.asked == {"filter": "jobs/#"}
    await client.groups.put("workers", "jobs/#", expiry="never")
    assert fake.asked == {"filter": "jobs/#", "expiry": "never"}
    await client.endpoints.put("hook", "https://example.com/hook", expiry=timedelta(days=2))
    assert fake.asked == {"url": "https://example.com/hook", "expiry": "P2D"}
    client.subscribe("jobs/#", group="workers", expiry="never")
    with pytest.raises(fasti.BadArgument, match="expiry"):
        client.subscribe("jobs/#", session="audit", expiry="never")
