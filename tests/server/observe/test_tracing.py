"""Traces: kept with the message in any case, spans where they are recorded, a server that never waits."""

import json
import logging
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from server.engine.clock import SimulatedClock
from server.observe.trace_context import context_of as state_of
from server.observe.tracing import BATCH_SPANS, BURST, BURST_S, Traces, open_traces
from server.settings.config import Config, ConfigError
from tests.server.conftest import NDJSON, Running, running
from tests.support.http import Http
from tests.support.rig import Rig
from tests.support.server import ServerProcess
from tests.support.tracing import (
    CALLER,
    SAMPLED,
    TRACE,
    UNSAMPLED,
    Collector,
    Exported,
    collecting,
    context_of,
    parent_of,
)

SPAN_BYTES = 10 << 10
"""Most bytes of an ended span with maximum attributes, link and context."""


def told(span: ReadableSpan) -> dict[str, Any]:
    """Its attributes."""
    return dict(span.attributes or {})


SINGLE: list[dict[str, Any]] = [
    {},
    {"deliver_at": "2026-12-01T09:00[Europe/Bucharest]"},
    {"spread": "5s", "deliver_in": "1h"},
]
"""Ways of a message: the quick one, one with more to keep, the general one."""


@pytest.fixture
def exported() -> Exported:
    return Exported()


@pytest.fixture
async def traced(
    tmp_path: Path, config: Config, clock: SimulatedClock, exported: Exported
) -> AsyncIterator[Running]:
    async with running(tmp_path / "traced", config, clock, exported.traces) as made:
        yield made


@pytest.mark.parametrize(
    ("state", "members"),
    [
        *(("a=1, b@c=2", 2), (" a=1\t,,b=2 ", 2), ("0a@b=1 2", 1), ("0=1", 0), ("a=1,a=2", 0)),
        *(("a@b@c=1", 0), ("a@" + "b" * 15 + "=1", 0)),
    ],
)
def test_no_tracestate_fills_the_log(
    exported: Exported, caplog: pytest.LogCaptureFixture, state: str, members: int
) -> None:
    """What OpenTelemetry finds wrong with one it tells in a line each, whoever sends them."""
    scheduling = exported.traces.schedule(state_of(SAMPLED, state))
    assert scheduling is not None
    scheduling.end(1)
    (ended,) = exported.spans
    assert (len(ended.context.trace_state), caplog.records) == (members, [])


def test_a_span_that_waits_takes_what_the_bound_of_the_queue_says(exported: Exported) -> None:
    context = state_of(SAMPLED, ",".join(f"a{n:02}=" + "x" * 12 for n in range(30)))
    assert len(context) == 2
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(200):
        exported.traces.dispatched(context, b"t" * 1_000, "0" * 32, 1 << 40, 5, 1)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert SPAN_BYTES / 4 < (after - before) / 200 < SPAN_BYTES


async def headers_of(server: Running, message: str) -> dict[str, str]:
    found = (await server.call("GET", f"/v1/messages/{message}")).body
    return dict(found.get("headers") or {})


async def post(server: Running, status: int = 201, body: dict[str, Any] | None = None, **headers: str) -> Any:
    wanted = {"topic": "a/b", "payload": "hi", **(body or {})}
    return (await server.call("POST", "/v1/messages", wanted, status=status, **headers)).body


async def post_batch(
    server: Running, items: list[dict[str, Any]], query: str = "", **headers: str
) -> list[str]:
    lines = b"\n".join(json.dumps({"topic": "a/b", "payload": "hi", **item}).encode() for item in items)
    status = 200 if query else 201
    path = f"/v1/messages:batch{query}"
    said = (await server.call("POST", path, lines, status=status, Content_Type=NDJSON, **headers)).body
    return [one["id"] for one in said["results"]] if query else list(said["ids"])


# -- kept with the message


@pytest.mark.parametrize("more", SINGLE)
async def test_the_context_of_a_request_is_kept_with_its_message(
    server: Running, more: dict[str, Any]
) -> None:
    said = await post(server, body=more, traceparent=SAMPLED, tracestate="a=1")
    assert await headers_of(server, said["id"]) == {"traceparent": SAMPLED, "tracestate": "a=1"}
    said = await post(server, body={**more, "headers": {"x": "y"}}, TraceParent=UNSAMPLED)
    assert await headers_of(server, said["id"]) == {"x": "y", "traceparent": UNSAMPLED}


@pytest.mark.parametrize("more", SINGLE)
async def test_what_is_no_context_is_not_kept(server: Running, more: dict[str, Any]) -> None:
    for wrong in ("", "nonsense", SAMPLED + "-x", SAMPLED.replace("00-", "ff-", 1)):
        said = await post(server, body=more, traceparent=wrong, tracestate="a=1")
        assert await headers_of(server, said["id"]) == {}
    said = await post(server, body=more, tracestate="a=1")
    assert await headers_of(server, said["id"]) == {}


@pytest.mark.parametrize("more", [*SINGLE, {"payload": {"a": 1}}])
@pytest.mark.parametrize("query", ["", "?each=true"])
async def test_items_of_a_batch_bring_their_own_or_have_that_of_the_request(
    server: Running, more: dict[str, Any], query: str
) -> None:
    own = SAMPLED.replace(CALLER, "1" * 16)
    mine = {"headers": {"traceparent": own, "x": "y"}}
    ids = await post_batch(server, [more, {**mine, **more}], query, traceparent=SAMPLED)
    assert [await headers_of(server, one) for one in ids] == [
        {"traceparent": SAMPLED},
        {"traceparent": own, "x": "y"},
    ]
    ids = await post_batch(server, [more, more], query, traceparent=SAMPLED)  # of usual items, the quick way
    assert [await headers_of(server, one) for one in ids] == [{"traceparent": SAMPLED}] * 2


async def test_two_traceparents_are_none(server: Running) -> None:
    body = b'{"topic":"a/b","payload":"hi"}'
    pairs = [("Content-Type", "application/json"), ("traceparent", SAMPLED), ("traceparent", SAMPLED)]
    async with server.http.post("/v1/messages", data=body, headers=pairs) as response:
        assert response.status == 201
        said = await response.json()
    assert await headers_of(server, said["id"]) == {}


async def test_headers_have_their_bound_with_it(server: Running) -> None:
    full = {f"h{n}": "v" for n in range(64)}
    said = await post(server, body={"headers": full}, traceparent=SAMPLED)
    assert await headers_of(server, said["id"]) == full


@pytest.mark.parametrize("more", SINGLE)
async def test_a_retry_in_another_trace_gets_the_first_answer(server: Running, more: dict[str, Any]) -> None:
    first = await post(server, body=more, Idempotency_Key="k", traceparent=SAMPLED)
    other = SAMPLED.replace(CALLER, "1" * 16)
    for context in (SAMPLED, other, UNSAMPLED, "none"):
        again = await post(server, 200, body=more, Idempotency_Key="k", traceparent=context)
        assert again["id"] == first["id"]
    assert await headers_of(server, first["id"]) == {"traceparent": SAMPLED}


def compact(**members: object) -> bytes:
    return json.dumps({"topic": "a/b", **members, "key": "k"}, separators=(",", ":")).encode()


async def test_nor_does_a_context_in_the_body_make_another_request_of_it(server: Running) -> None:
    async def sent(body: bytes, status: int) -> str:
        return str((await server.call("POST", "/v1/messages", body, status=status)).body.get("id"))

    payload = {"traceparent": "the user's"}
    first = await sent(compact(payload=payload), 201)
    other = SAMPLED.replace(CALLER, "1" * 16)
    for headers in ({"traceparent": SAMPLED}, {"tracestate": "a=1", "traceparent": other}):
        assert await sent(compact(payload=payload, headers=headers), 200) == first
    await sent(compact(payload={"traceparent": "another's"}, headers={"traceparent": SAMPLED}), 422)
    await sent(compact(payload=payload, headers={"traceparent": SAMPLED, "x": "y"}), 422)
    batch = compact(payload=payload, headers={"traceparent": other})
    said = await server.call("POST", "/v1/messages:batch?each=true", batch, Content_Type=NDJSON)
    assert said.body["results"][0]["id"] == first


def test_what_a_publisher_of_mqtt_says_goes_on_as_it_is() -> None:
    rig = Rig(traces=Exported().traces)
    here, publisher = rig.connected("here"), rig.connected("p")
    here.subscribe("t")
    for users in ((("traceparent", SAMPLED), ("a", "b")), (("traceparent", "nonsense"),)):
        publisher.publish1("$delayed/5/t", "x", user_properties=users)
        rig.pass_ms(5_000)
        (packet,) = here.publishes()
        assert packet.properties is not None
        said = packet.properties.user_properties
        assert tuple(pair for pair in said if not pair[0].startswith("fasti-")) == users


# -- spans


@pytest.mark.parametrize("more", SINGLE)
async def test_one_span_when_it_is_scheduled_and_one_when_it_goes_out(
    traced: Running, exported: Exported, more: dict[str, Any]
) -> None:
    body = more or {"deliver_in": "1h"}
    said = await post(traced, body=body, traceparent=SAMPLED, tracestate="a=1")
    (scheduled,) = exported.named("schedule")
    assert parent_of(scheduled) == SAMPLED
    assert scheduled.kind is SpanKind.PRODUCER
    assert told(scheduled) == {
        "messaging.system": "fasti",
        "messaging.operation.name": "schedule",
        "messaging.operation.type": "create",
        "messaging.destination.name": "a/b",
        "messaging.message.id": said["id"],
    }
    assert await headers_of(traced, said["id"]) == {"traceparent": context_of(scheduled), "tracestate": "a=1"}
    assert not exported.named("dispatch")
    await traced.pass_time(30 * 86_400_000)
    (sent,) = exported.named("dispatch")
    assert parent_of(sent) == context_of(scheduled)
    assert [link.context.span_id for link in sent.links] == [scheduled.get_span_context().span_id]  # type: ignore[union-attr]
    assert told(sent)["messaging.message.id"] == said["id"]
    assert told(sent)["fasti.due"] == said["deliver_at"]
    assert int(told(sent)["fasti.late_ms"]) > 0


async def test_who_is_not_sampled_and_who_has_no_trace_has_no_spans(
    traced: Running, exported: Exported
) -> None:
    others: list[dict[str, str]] = [{"traceparent": UNSAMPLED}, {}, {"traceparent": "x"}]
    ids = [(await post(traced, **headers))["id"] for headers in others]
    await post_batch(traced, [{}, {"headers": {"traceparent": UNSAMPLED}}], traceparent=UNSAMPLED)
    await traced.pass_time(1_000)
    assert not exported.spans
    assert await headers_of(traced, ids[0]) == {"traceparent": UNSAMPLED}


async def test_what_is_refused_or_known_says_so(traced: Running, exported: Exported) -> None:
    first = await post(traced, Idempotency_Key="k", traceparent=SAMPLED)
    await post(traced, 200, Idempotency_Key="k", traceparent=SAMPLED)
    await post(traced, 422, body={"payload": "other"}, Idempotency_Key="k", traceparent=SAMPLED)
    _, known, refused = exported.named("schedule")
    assert told(known)["fasti.replayed"] is True
    assert told(known)["messaging.message.id"] == first["id"]
    assert refused.status.status_code is StatusCode.ERROR
    spread = {"spread": "5s", "deliver_in": "1h"}  # the same by the general way
    await post(traced, body=spread, Idempotency_Key="s", traceparent=SAMPLED)
    await post(traced, 422, body={**spread, "payload": "x"}, Idempotency_Key="s", traceparent=SAMPLED)
    assert exported.named("schedule")[-1].status.status_code is StatusCode.ERROR


@pytest.mark.long
@pytest.mark.parametrize("query", ["", "?each=true"])
@pytest.mark.parametrize("count", [3, 400])
async def test_a_batch_is_one_span_whose_context_its_items_have(
    traced: Running, exported: Exported, count: int, query: str
) -> None:
    """Three are answered at the front, 400 by the route."""
    ids = await post_batch(traced, [{"deliver_in": "1h"}] * count, query, traceparent=SAMPLED)
    (span,) = exported.named("schedule")
    assert parent_of(span) == SAMPLED
    assert told(span)["messaging.batch.message_count"] == count
    assert await headers_of(traced, ids[-1]) == {"traceparent": context_of(span)}
    await traced.pass_time(3_600_000)
    assert len(exported.named("dispatch")) == count
    assert {parent_of(sent) for sent in exported.named("dispatch")} == {context_of(span)}


async def test_items_in_traces_of_their_own_have_spans_there_up_to_a_bound(
    traced: Running, exported: Exported
) -> None:
    contexts = [f"00-{number:032x}-{CALLER}-01" for number in range(1, BATCH_SPANS + 50)]
    items = [{"headers": {"traceparent": one}} for one in contexts]
    ids = await post_batch(traced, items, "?each=true")
    spans = exported.named("schedule")
    assert [parent_of(span) for span in spans] == contexts[:BATCH_SPANS]
    assert told(spans[7])["messaging.message.id"] == ids[7]
    kept = [context_of(span) for span in spans] + contexts[BATCH_SPANS:]
    assert await headers_of(traced, ids[7]) == {"traceparent": kept[7]}
    await traced.pass_time(1_000)
    assert [parent_of(span) for span in exported.named("dispatch")] == kept


@pytest.mark.parametrize("more", SINGLE)
async def test_the_span_of_a_message_takes_the_place_of_what_its_body_says(
    traced: Running, exported: Exported, more: dict[str, Any]
) -> None:
    headers = {"tracestate": "a=1", "traceparent": SAMPLED, "x": "y"}
    other = SAMPLED.replace(CALLER, "1" * 16)
    said = await post(traced, body={**more, "headers": headers}, traceparent=other)
    (span,) = exported.named("schedule")
    assert parent_of(span) == SAMPLED
    kept = {"x": "y", "traceparent": context_of(span), "tracestate": "a=1"}
    assert await headers_of(traced, said["id"]) == kept


async def test_a_batch_that_is_refused_has_failed(traced: Running, exported: Exported) -> None:
    lines = b'{"topic":"a/b","payload":"x"}\n{"topic":"a/#","payload":"x"}\n'
    await traced.call(
        "POST", "/v1/messages:batch", lines, status=422, Content_Type=NDJSON, traceparent=SAMPLED
    )
    (span,) = exported.named("schedule")
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", ["t", "$delayed/5/t"])
def test_a_publish_over_mqtt_has_the_same_spans(qos: int, topic: str) -> None:
    exported = Exported()
    rig = Rig(traces=exported.traces)
    here, publisher = rig.connected("here"), rig.connected("p")
    here.subscribe("t")
    publisher.publish(topic, "x", qos, user_properties=(("traceparent", SAMPLED),))
    publisher.publish(topic, "y", qos, user_properties=(("traceparent", UNSAMPLED),))
    publisher.publish(topic, "z", qos)
    rig.pass_ms(5_100)
    assert here.payloads() == ["x", "y", "z"]
    (scheduled,), (sent,) = exported.named("schedule"), exported.named("dispatch")
    assert parent_of(scheduled) == parent_of(sent) == SAMPLED
    assert told(scheduled)["messaging.destination.name"] == "t"
    assert ("messaging.message.id" in told(scheduled)) == (topic != "t")  # a plain one has none


def test_a_publish_that_is_refused_has_failed() -> None:
    exported = Exported()
    rig = Rig(traces=exported.traces)
    publisher = rig.connected("p")
    users = (("idempotency-key", "k"), ("traceparent", SAMPLED))
    for payload in ("x", "y"):
        publisher.publish("t", payload, 1, user_properties=users)
    assert [span.status.status_code for span in exported.named("schedule")] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]


def test_who_publishes_thousands_at_once_has_a_burst_of_spans_and_all_messages() -> None:
    now_s = [1.0]
    exported = Exported(lambda: now_s[0])
    rig = Rig(traces=exported.traces)
    publisher = rig.connected("p")
    for _ in range(BURST + 20):
        publisher.publish("t", "x", 0, user_properties=(("traceparent", SAMPLED),))
    assert len(exported.named("schedule")) == BURST
    now_s[0] += BURST_S
    publisher.publish("t", "x", 0, user_properties=(("traceparent", SAMPLED),))
    assert len(exported.named("schedule")) == BURST + 1
    assert len(exported.named("dispatch")) == BURST + 21


async def test_a_turn_of_dispatch_has_its_budget_with_spans(traced: Running, exported: Exported) -> None:
    """A span is 20 deliveries: what is due at once goes out in more turns."""
    await post_batch(traced, [{"deliver_in": "1h"}] * 1_000, traceparent=SAMPLED)
    before = traced.app.core.dispatch.counts.turns
    await traced.pass_time(3_600_000)
    assert len(exported.named("dispatch")) == 1_000
    assert traced.app.core.dispatch.counts.turns - before >= 8


# -- what the environment asks for


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_SERVICE_NAME": "x"},
    ],
)
def test_nobody_asks_for_traces(environ: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    assert open_traces(environ) is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlp,zipkin"}, "zipkin"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
    ],
)
def test_what_is_not_there_is_told_and_holds_nobody_up(
    environ: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_traces(environ) is None
    assert said in caplog.text


def test_packages_that_are_missing_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert open_traces({"OTEL_TRACES_EXPORTER": "otlp"}) is None
    assert "fasti-server[otel]" in caplog.text


def test_values_that_cannot_be_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "5")  # less than goes in one request
    with pytest.raises(ConfigError):
        open_traces({"OTEL_TRACES_EXPORTER": "otlp"})


def test_the_end_waits_for_a_collector_for_so_long() -> None:
    class Stuck:
        def get_tracer(self, *_: object) -> None: ...

        def shutdown(self) -> None:
            time.sleep(600)

    started = time.monotonic()
    Traces(Stuck(), time.monotonic).close(0.1)  # type: ignore[arg-type]
    assert time.monotonic() - started < 60


# -- a process and a collector


async def started(
    stack: AsyncExitStack, data: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch, **more: str
) -> tuple[ServerProcess, Http]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    server = ServerProcess(data)
    stack.callback(server.kill)
    await server.ready()
    session = await stack.enter_async_context(aiohttp.ClientSession(server.url))
    return server, Http(session)


BODY = {"topic": "a/b", "payload": "hi", "deliver_in": "50ms"}


@pytest.mark.process
async def test_a_server_exports_to_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(collecting())
        server, http = await started(
            stack, tmp_path / "d", collector.url, monkeypatch, OTEL_SERVICE_NAME="orders-queue"
        )
        said = (await http.call("POST", "/v1/messages", BODY, status=201, traceparent=SAMPLED)).body
        (scheduled,) = await collector.named("schedule")
        (sent,) = await collector.named("dispatch")
        assert scheduled.trace_id.hex() == sent.trace_id.hex() == TRACE
        assert scheduled.parent_span_id.hex() == CALLER
        assert sent.links[0].span_id == scheduled.span_id == sent.parent_span_id
        assert {a.key: a.value for a in sent.attributes}["messaging.message.id"].string_value == said["id"]
        assert collector.services == {"orders-queue"}
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
        assert await server.stopped() == 0


@pytest.mark.process
async def test_what_is_left_is_exported_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(collecting())
        server, http = await started(
            stack, tmp_path / "d", collector.url, monkeypatch, OTEL_BSP_SCHEDULE_DELAY="60000"
        )
        await http.call("POST", "/v1/messages", {**BODY, "deliver_in": "1h"}, status=201, traceparent=SAMPLED)
        assert not collector.spans
        assert await server.stopped() == 0
        assert len(await collector.named("schedule")) == 1


@pytest.mark.process
@pytest.mark.parametrize("is_away", [True, False])
async def test_a_collector_that_hangs_or_is_away_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    async with AsyncExitStack() as stack:
        collector: Collector = await stack.enter_async_context(collecting())
        collector.hangs = True
        endpoint = "http://127.0.0.1:1" if is_away else collector.url
        # In seconds; whoever waited for it would wait for so long.
        patient = {"OTEL_BSP_MAX_QUEUE_SIZE": "600", "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
        server, http = await started(stack, tmp_path / "d", endpoint, monkeypatch, **patient)
        lines = b"\n".join(json.dumps(BODY).encode() for _ in range(200))
        slowest = 0.0
        for _ in range(10):  # 2,000 spans of dispatch: more than the queue holds
            began = time.monotonic()
            await http.call(
                "POST", "/v1/messages:batch", lines, status=201, Content_Type=NDJSON, traceparent=SAMPLED
            )
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 60
        if not is_away:
            await collector.asked()
        began = time.monotonic()
        assert await server.stopped() == 0
        assert time.monotonic() - began < 60
        assert "Traceback" not in server.output
