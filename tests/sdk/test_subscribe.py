"""`client.subscribe` against a mosquitto broker: acks, kills, redelivery, QoS 2, sessions."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import fasti
from fasti.mqtt_adapter import Connection
from fasti.mqtt_values import Incoming, UserProperties
from fasti.subscribe import Ledger, SubscribeRequest
from tests.sdk.conftest import QUICK, Broker, quiet, take, until
from tests.sdk.fake import Fake
from tests.support.ports import free_port


@pytest.fixture
async def c(broker: Broker) -> AsyncIterator[fasti.Client]:
    async with fasti.Client(mqtt=broker.address, retry=QUICK) as made:
        yield made


async def publish(
    broker: Broker, *payloads: object, topic: str = "t/1", qos: int = 1, said: Mapping[str, str] | None = None
) -> None:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    for pair in (said or {}).items():
        properties.UserProperty = pair
    v5 = aiomqtt.ProtocolVersion.V5
    async with aiomqtt.Client("127.0.0.1", broker.port, protocol=v5) as publisher:
        for payload in payloads:
            await publisher.publish(topic, str(payload).encode(), qos=qos, properties=properties)


async def test_a_delivery_says_what_it_is(broker: Broker, c: fasti.Client) -> None:
    async with c.subscribe("t/+") as s:
        said = {
            "fasti-id": "0" * 32,
            "fasti-due": "2030-01-01T00:00:00.000Z",
            "fasti-late-ms": "1.5",
            "fasti-attempt": "2",
            "mine": "yes",
        }
        await publish(broker, json.dumps({"id": 17}), said=said)
        await publish(broker, "plain", topic="t/2", qos=0)
        deliveries = aiter(s)
        d = await anext(deliveries)
        assert (d.topic, d.json(), d.id, d.attempt, d.qos) == ("t/1", {"id": 17}, "0" * 32, 2, 1)
        assert d.due == datetime(2030, 1, 1, tzinfo=UTC)
        assert d.lateness == timedelta(milliseconds=1.5)
        assert d.headers == {"mine": "yes"}
        assert await d.ack()
        assert await d.ack()
        d = await anext(deliveries)
        assert (d.payload, d.text(), d.id, d.due, d.lateness, d.attempt) == (
            *(b"plain", "plain", None, None, None, 1),
        )
        assert await d.ack(), "nothing to send for QoS 0"
        assert not d.retain
        assert d.content_type is None


async def test_max_in_flight_bounds_what_waits_here(broker: Broker, c: fasti.Client) -> None:
    async with c.subscribe("t/#", max_in_flight=3) as s:
        await publish(broker, *range(10))
        deliveries = aiter(s)
        first = [await anext(deliveries) for _ in range(3)]
        await quiet(deliveries)
        assert await first[0].ack()
        assert await take(deliveries, 1, ack=False) == ["3"], "the wait that was cancelled broke nothing"
        assert s.connections == 1


async def test_qos_2_unacked_comes_again_to_the_next_process(broker: Broker, c: fasti.Client) -> None:
    async with c.subscribe("t/#", session="worker", qos=2) as s:
        await publish(broker, 1, qos=2)
        await take(aiter(s), 1, ack=False)
    async with c.subscribe("t/#", session="worker", qos=2) as s:
        assert await take(aiter(s), 1) == ["1"]


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        *(("group", ""), ("group", "a/b"), ("group", "a+"), ("group", "#"), ("group", "a\0")),
        *(("group", "g" * 70_000), ("session", ""), ("session", "a\0b"), ("session", "\ud800")),
        *(("topic_filter", ""), ("qos", 3), ("max_in_flight", 0), ("expiry", timedelta(seconds=-2))),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(argument: str, bad: object) -> None:
    given: dict[str, object] = {"topic_filter": "q", argument: bad}
    for client in (fasti.Client(), fasti.sync.Client()):
        with pytest.raises(fasti.BadArgument, match=f"^{argument} ") as refused:
            client.subscribe(**given)  # type: ignore[arg-type]
        assert refused.value.argument == argument
        assert isinstance(refused.value, ValueError)
        if isinstance(client, fasti.sync.Client):
            client.close()


def test_a_group_is_said_once() -> None:
    with pytest.raises(fasti.BadArgument, match="topic_filter"):
        fasti.Client().subscribe("$share/a/b", group="c")
    assert SubscribeRequest("$share/a/b").wire_filter == "$share/a/b"
    assert SubscribeRequest("b", session="s", group="a").wire_filter == "$share/a/b"


async def test_unreachable_at_first() -> None:
    async with fasti.Client(mqtt=f"127.0.0.1:{free_port()}", retry=QUICK) as lone:
        with pytest.raises(fasti.Unreachable):
            async for _ in lone.subscribe("t"):
                pass


async def test_address_comes_from_info(broker: Broker, client: fasti.Client, fake: Fake) -> None:
    fake.mqtt_port = broker.port
    async with client.subscribe("t/#") as s:
        await publish(broker, 1)
        assert await take(aiter(s), 1) == ["1"]


async def test_leaving_the_loop_disconnects(broker: Broker, c: fasti.Client) -> None:
    async def one() -> None:
        async for d in c.subscribe("t/#", session="worker"):
            assert await d.ack()
            break
        assert len(c._subscriptions) == 1, "as long as the delivery is in our hands"

    task = asyncio.create_task(one())
    await until(lambda: bool(c._subscriptions))
    await publish(broker, 1, 2)
    async with asyncio.timeout(60):
        await task
    gc.collect()
    assert not c._subscriptions
    async with c.subscribe("t/#", session="worker") as s:
        assert await take(s, 1) == ["2"]


async def test_several_tasks_share_one_subscription(broker: Broker, c: fasti.Client) -> None:
    async with c.subscribe("t/#", session="worker") as s:
        takers = [asyncio.create_task(take(s, 5)) for _ in range(3)]
        await asyncio.sleep(0.1)
        broker.stop()
        await asyncio.sleep(0.1)
        broker.start()
        await publish(broker, *range(15))
        got = [text for taker in takers for text in await taker]
        assert sorted(got, key=int) == [str(n) for n in range(15)]
        assert s.connections == 2


async def test_close_ends_a_waiting_loop(broker: Broker, c: fasti.Client) -> None:
    async def forever() -> int:
        return len([d async for d in c.subscribe("t/#")])

    task = asyncio.create_task(forever())
    await until(lambda: bool(c._subscriptions))
    await c.close()
    async with asyncio.timeout(60):
        assert await task == 0


class Wire(Connection):
    """A connection of which only the acks are looked at; `up`: whether it takes them."""

    def __init__(self, number: int, sent: list[tuple[int, int]], *, up: bool = True) -> None:
        self.number, self.sent, self.up = number, sent, up

    def send_ack(self, incoming: Incoming, refusal: UserProperties | None = None) -> None:
        self.sent.append((self.number, incoming.mid))

    async def ack(self, incoming: Incoming, refusal: UserProperties | None = None) -> bool:
        if self.up:
            self.send_ack(incoming)
        return self.up


def came(mid: int, wire: Wire, text: str = "", *, dup: bool = False, name: str = "") -> Incoming:
    said = (("fasti-id", name),) if name else ()
    return Incoming(
        topic="t", payload=text.encode(), qos=2, mid=mid, dup=dup, properties=said, connection=wire
    )


async def test_ledger() -> None:
    sent: list[tuple[int, int]] = []
    one, two = Wire(1, sent), Wire(2, sent)
    ledger = Ledger(keeps=True)
    first, second = came(1, one), came(2, one)
    assert ledger.is_new(first)
    assert ledger.is_new(second)
    assert await ledger.ack(first)
    assert not ledger.is_new(came(1, two, dup=True)), "its PUBREC was lost: said again at once"
    assert not ledger.is_new(came(2, two, dup=True)), "in the user's hands: adopted by the new connection"
    assert await ledger.ack(second)
    assert sent == [(1, 1), (2, 1), (2, 2)]
    ledger.release(1)
    assert ledger.is_new(came(1, two)), "the packet id means another message now"
    ledger.clear()
    assert not await ledger.ack(second)


@pytest.mark.parametrize("acked", [False, True])
async def test_a_packet_id_of_another_message_is_not_mistaken(acked: bool) -> None:
    sent: list[tuple[int, int]] = []
    down, up = Wire(1, sent, up=False), Wire(2, sent)
    for said, again in (
        (came(1, up, "b"), True),  # another message
        (came(1, up, "b", dup=True), True),  # another one that another process has seen before
        (came(1, up, "a"), True),  # a second one of the same content
        (came(1, up, "a", name="f" * 32, dup=True), True),
        (came(1, up, "a", dup=True), False),
    ):
        sent.clear()
        ledger = Ledger(keeps=True)
        old = came(1, down, "a")
        assert ledger.is_new(old)
        if acked:
            assert await ledger.ack(old), "kept for when it comes again"
        assert ledger.is_new(said) is again
        if again:
            assert sent == [], "nothing was said of the new one"
            assert not await ledger.ack(old), "the old one will not come any more under this id"
            assert sent == []
            assert await ledger.ack(said)
        else:
            assert await ledger.ack(old)
        assert sent == [(2, 1)] * (1 if again or not acked else 2)


async def test_the_id_of_a_message_tells_it_without_dup() -> None:
    sent: list[tuple[int, int]] = []
    ledger = Ledger(keeps=True)
    assert ledger.is_new(came(1, Wire(1, sent), "a", name="f" * 32))
    assert not ledger.is_new(came(1, Wire(2, sent), "a", name="f" * 32))
    assert ledger.is_new(came(1, Wire(2, sent), "a", name="e" * 32))


async def test_without_a_session_nothing_is_kept() -> None:
    ledger = Ledger(keeps=False)
    message = came(1, Wire(1, [], up=False))
    assert ledger.is_new(message)
    assert not await ledger.ack(message)
