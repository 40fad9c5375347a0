"""Values that cannot be read, in everything that a delivery says: each is as if it were not there, and ends
no program."""

import asyncio
import inspect
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import fasti
from fasti import delivery
from fasti.mqtt_values import LEASE_MAX, Incoming
from fasti.traces import NAMES
from fasti.transport import _retry_after_s
from server.delivery.settling.dead_letter_queue import DEAD_REASON
from server.mqtt.forms import GIVES_WAY
from tests.sdk.conftest import QUICK
from tests.sdk.scripted import PUBACK, PUBLISH, Peer, Script

SDK = Path(fasti.__file__).parent
GARBAGE = (
    *("", " ", "soon", "-1", "0", "1e999", "nan", "inf", "9" * 20, "9" * 60_000, "null", "5", '"x"'),
    *("[5]", '[{"at": 1}]', '[{"at": "soon"}]', '{"a": 1}', "[" * 60_000, "\ufeff\U0001f4a5"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-02-30T00:00:00Z"),
)
KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("content_type", "id", "schedule", "ordering_key"), (NoneType, str)),
    "topic": (str,),
    "payload": (bytes,),
    "qos": (int,),
    "retain": (bool,),
    "redelivered": (bool,),
    "attempt": (int,),
    "due": (NoneType, datetime),
    "lateness": (NoneType, timedelta),
    "ack_timeout": (NoneType, timedelta),
    "tries": (tuple,),
    "headers": (dict,),
    "trace_context": (dict,),
}


def came_with(*pairs: tuple[str, str]) -> Incoming:
    its: Any = None
    return Incoming(topic="t", payload=b"", qos=1, mid=1, dup=False, connection=its, properties=pairs)


def incoming(**said: str) -> Incoming:
    return came_with(*((name.replace("_", "-"), value) for name, value in said.items()))


def test_the_names_are_all_that_the_server_says() -> None:
    """A name that the server adds is known here, and one that is read here is among those that are tried. The
    reason of a dead letter is a header for who reads the copies."""
    assert {name for name in GIVES_WAY if name} - {DEAD_REASON} == delivery._OURS
    read = re.compile(r'"(fasti-(?:id|due|late|attempt|tries|schedule|ordering|ack)[a-z-]*)"')
    assert {name for path in SDK.glob("*.py") for name in read.findall(path.read_text())} == delivery._OURS


def test_every_detail_is_looked_at() -> None:
    found = inspect.getmembers(delivery.Received, lambda one: isinstance(one, property))
    assert {name for name, _ in found} == set(KINDS)


@pytest.mark.parametrize("value", GARBAGE, ids=lambda value: value[:20])
@pytest.mark.parametrize("name", [*sorted(delivery._OURS), *NAMES])
def test_a_value_that_cannot_be_read_is_none(name: str, value: str) -> None:
    came = incoming(**{name: value})
    said = delivery.Received(came)
    for one, kinds in KINDS.items():
        assert isinstance(getattr(said, one), kinds), one
    assert said.attempt >= 1
    assert said.ack_timeout is None or timedelta() < said.ack_timeout <= LEASE_MAX
    assert not came.is_overdue(0.0)
    assert repr(said)
    provider = TracerProvider(shutdown_on_exit=False)
    with provider.get_tracer("test").start_as_current_span("x"), said.traced("t", "g"):
        pass


def test_what_can_be_read_is() -> None:
    came = incoming(
        fasti_id="a",
        fasti_due="2026-12-01T12:20:00.250Z",
        fasti_late_ms="1500",
        fasti_attempt="3",
        fasti_tries='[{"at": "2026-12-01T12:20:00Z", "by": "w", "outcome": "failed", "seconds": 0.5}]',
        fasti_ack_timeout="30000",
    )
    said = delivery.Received(came)
    assert said.due is not None
    assert said.due.timestamp() == 1_796_127_600.25
    assert (said.id, said.lateness, said.attempt) == ("a", timedelta(seconds=1.5), 3)
    assert [(one.by, one.seconds) for one in said.tries] == [("w", 0.5)]
    assert said.ack_timeout == timedelta(seconds=30)
    assert (came.is_overdue(29.9), came.is_overdue(30.0)) == (False, True)


def test_the_servers_own_is_the_last_of_a_name() -> None:
    names = ("fasti-id", "fasti-ack-timeout")
    came = came_with(*((name, value) for value in ("1", "9000") for name in names))
    said = delivery.Received(came)
    assert (came.id, said.id, came.lease, said.ack_timeout) == (*["9000"] * 2, *[timedelta(seconds=9)] * 2)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        *[(value, None) for value in (None, "", "soon", "-1", "\u00b2", "Wed, 99 Oct 2026 07:28:00 GMT")],
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("7", 7.0),
    ],
)
def test_retry_after_may_be_anything(said: str | None, wanted: float | None) -> None:
    assert _retry_after_s(said) == wanted


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def published(mid: int, properties: bytes) -> bytes:
    """Body of a PUBLISH at QoS 1 whose payload holds U+FEFF too."""
    return b"\x00\x01t" + mid.to_bytes(2, "big") + bytes((len(properties),)) + properties + "\ufeff!".encode()


USERS = [("fasti-ack-timeout", "soon"), ("fasti-attempt", "x"), ("fasti-tries", "["), ("own", "a\ufeffb")]
BODIES = [
    *[b"\x26" + text(name) + text(value) for name, value in USERS],
    b"\x03" + text("\ufefftext"),
    b"\x0b\x07",  # the identifier of a subscription that this program does not have
]


@pytest.mark.parametrize("works", [False, True], ids=["subscriber", "worker"])
async def test_no_value_ends_a_program(works: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Each comes to the handler, on the first connection, and is acked."""
    acked: list[int] = []

    async def act(peer: Peer) -> None:
        await peer.welcome()
        await peer.subscribed()
        for mid, body in enumerate(BODIES, 1):
            peer.send(PUBLISH | 2, published(mid, body))
        while len(acked) < len(BODIES):
            first, body = await peer.read()
            assert (first, len(body)) == (PUBACK, 2)
            acked.append(body[1])
        await peer.read()

    seen: list[bytes] = []
    async with Script(act) as script, fasti.Client(mqtt=script.address, retry=QUICK) as c:
        async with asyncio.timeout(30):
            if works:
                await _work(c, seen)
            else:
                async with c.subscribe("t", session="s") as s:
                    async for d in s:
                        seen.append(d.payload)
                        await d.ack()
                        if len(seen) == len(BODIES):
                            break
        assert script.connections == 1
    assert seen == ["\ufeff!".encode()] * len(BODIES)
    assert sorted(acked) == list(range(1, len(BODIES) + 1))


async def _work(c: fasti.Client, seen: list[bytes]) -> None:
    worker = fasti.Worker(group="g")

    @worker.on("t")
    async def job(d: fasti.Delivery) -> None:
        seen.append(d.payload)
        if len(seen) == len(BODIES):
            worker.stop()

    await worker.run(c, signals=False)
