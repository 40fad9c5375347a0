"""Sessions, slices, info, clock; and the small pure things."""

from datetime import timedelta

import pytest

import fasti
from fasti.addresses import Broker, broker
from fasti.errors import error_of, problem_of
from fasti.transport import Retry
from tests.sdk.fake import NOW, Fake


async def test_info_and_clock(client: fasti.Client, fake: Fake) -> None:
    info = await client.info()
    assert (info.version, info.clock, info.now, info.mqtt[0]["port"]) == ("9", "simulated", NOW, 1883)
    assert await client.advance(timedelta(days=1)) == NOW + timedelta(days=1)
    fake.faults = ["lost"]
    with pytest.raises(fasti.Unreachable):
        await client.advance("P1D")
    assert fake.now == NOW + timedelta(days=2), "an advance is not sent twice"
    fake.faults = [(503, {})]
    assert await client.advance(86_400) == NOW + timedelta(days=3)


async def test_sessions(client: fasti.Client, fake: Fake) -> None:
    (found,) = [s async for s in client.sessions.list()]
    assert (found.client_id, found.lag_messages, found.connected) == ("audit/1", 7, False)
    assert (await client.sessions.get("audit/1")).subscriptions[0]["filter"] == "a/#"
    await client.sessions.replay("audit/1", timedelta(hours=1))
    assert fake.requests[-1] == ("POST", "/v1/sessions/audit%2F1:replay")
    await client.sessions.remove("audit/1")
    with pytest.raises(fasti.NotFound):
        await client.sessions.get("nobody")


async def test_slices(client: fasti.Client) -> None:
    first, second = [s async for s in client.slices.list()]
    assert (first.start, first.end) == (NOW, NOW + timedelta(minutes=15))
    assert (first.shard_count, first.shards, second.start) == (1, (), first.end)
    one = await client.slices.get(first.start)
    assert (one.shard_count, one.shards[0].structure) == (1, "a/+")
    assert (await client.slices.shard("2030-01-01T00:00:00Z", 1)).live == 2
    with pytest.raises(fasti.NotFound):
        await client.slices.shard(first.start, 2)


def test_retry_waits() -> None:
    retry = Retry(first_s=1, cap_s=5)
    for index, top in enumerate([1, 2, 4, 5, 5]):
        assert top / 2 <= retry.wait_s(index) <= top


def test_addresses() -> None:
    assert broker("h:1") == Broker("h", 1)
    assert broker("mqtt://[::1]:1883") == Broker("::1", 1883)
    assert broker("mqtts://h") == Broker("h", 8883, "mqtts")
    assert broker("MQTTS://h:1/") == Broker("h", 1, "mqtts")
    assert broker("wss://h/queue/mqtt") == Broker("h", 443, "wss", "/queue/mqtt")
    assert [str(broker(text)) for text in ("ws://[::1]:1", "h:1")] == ["ws://[::1]:1/mqtt", "mqtt://h:1"]
    with pytest.raises(ValueError, match="must not hold a user name"):
        broker("mqtts://key@h")
    for wrong in ("h", "http://h:1", "mqtt://h:1/path", "mqtts://", "h:x", "h:0", "h:65536", ":1", ""):
        with pytest.raises(ValueError, match="host:port"):
            broker(wrong)


def test_errors_of_odd_bodies() -> None:
    assert isinstance(error_of(problem_of("<html>", 404)), fasti.NotFound)
    odd = error_of(problem_of({"detail": "x", "errors": [{"line": 3, "field": "qos", "detail": "bad"}]}, 400))
    assert isinstance(odd, fasti.Refused)
    assert str(odd) == "x: line 3 field qos bad (400)"
    assert str(error_of(problem_of(None))) == "refused"
