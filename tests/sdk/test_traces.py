"""Traces: what is scheduled within a span takes it along, who handles it works in the same trace."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import fasti
import fasti.sync
from fasti import traces
from fasti.testing import FastiServer
from tests.sdk.conftest import until
from tests.sdk.test_worker import working


class Tracing:
    """The program's own set-up: spans are kept here."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.tracer = self.provider.get_tracer("test")

    def of_kind(self, kind: trace.SpanKind) -> list[ReadableSpan]:
        return [span for span in self._memory.get_finished_spans() if span.kind is kind]


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracing]:
    made = Tracing()
    monkeypatch.setattr(trace, "get_tracer", made.provider.get_tracer)
    yield made
    made.provider.shutdown()


def context_of(span: trace.Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def test_a_worker_handles_a_message_in_the_trace_of_who_scheduled_it(
    server: FastiServer, tracing: Tracing
) -> None:
    seen: list[trace.SpanContext] = []
    worker = fasti.Worker(group="workers")

    @worker.on("jobs/#")
    async def handle(job: fasti.Delivery) -> None:
        seen.append(trace.get_current_span().get_span_context())
        if job.text() == "bad":
            raise fasti.Reject("no such order")

    async with server.client() as c, working(worker, c):
        with tracing.tracer.start_as_current_span("caller") as caller:
            good, bad = await asyncio.gather(  # in one request
                c.messages.schedule("jobs/1", "good", headers={"x": "y"}),
                c.messages.schedule("jobs/2", "bad"),
            )
        await until(lambda: worker.figures.done + worker.figures.failed == 2)
        assert (await c.messages.get(good.id)).headers == {"traceparent": context_of(caller), "x": "y"}
        spans = {
            str(span.attributes["messaging.message.id"]): span
            for span in tracing.of_kind(trace.SpanKind.CONSUMER)
            if span.attributes
        }
        assert set(spans) == {good.id, bad.id}
        span = spans[good.id]
        assert span.name == "process jobs/#"
        assert span.attributes is not None
        assert span.attributes["messaging.consumer.group.name"] == "workers"
        assert span.attributes["messaging.destination.name"] == "jobs/1"
        assert span.parent is not None
        assert span.parent.span_id == caller.get_span_context().span_id == span.links[0].context.span_id
        assert {context.trace_id for context in seen} == {caller.get_span_context().trace_id}
        assert spans[bad.id].status.status_code is trace.StatusCode.ERROR


async def test_a_handler_in_a_thread_is_within_its_span_and_a_message_without_a_trace_begins_one(
    server: FastiServer, tracing: Tracing
) -> None:
    seen: list[trace.SpanContext] = []
    worker = fasti.Worker(group="workers")

    @worker.on("jobs/#")
    def handle(job: fasti.Delivery) -> None:
        assert job.trace_context == {}
        seen.append(trace.get_current_span().get_span_context())

    async with server.client() as c, working(worker, c):
        await c.messages.schedule("jobs/1", "x")
        await until(lambda: worker.figures.done == 1)
    (span,) = tracing.of_kind(trace.SpanKind.CONSUMER)
    assert span.parent is None
    assert not span.links
    assert [span.get_span_context()] == seen


async def test_a_subscription_has_the_context_too(server: FastiServer, tracing: Tracing) -> None:
    async with server.client() as c, c.subscribe("a/#", session="s") as deliveries:
        with tracing.tracer.start_as_current_span("caller") as caller:
            assert await c.messages.schedule_many([{"topic": "a/b", "payload": "x"}]) == 1
        d = await anext(deliveries)
        assert d.trace_context == {"traceparent": context_of(caller)}
        with d.traced():
            assert trace.get_current_span().get_span_context().trace_id == caller.get_span_context().trace_id
        await d.ack()
    (span,) = tracing.of_kind(trace.SpanKind.CONSUMER)
    assert span.name == "process"


def test_without_an_event_loop_it_is_the_same(server: FastiServer, tracing: Tracing) -> None:
    with fasti.sync.Client(server.url) as c, tracing.tracer.start_as_current_span("caller") as caller:
        made = c.messages.schedule("a/b", "x", delay=3_600)
        assert c.messages.get(made.id).headers == {"traceparent": context_of(caller)}


async def test_the_same_key_in_another_trace_is_the_same_request(
    server: FastiServer, tracing: Tracing
) -> None:
    async with server.client() as c:
        first = await c.messages.schedule("a/b", "x", delay=3_600, key="k")
        for headers in ({}, {}):
            with tracing.tracer.start_as_current_span("caller"):
                again = await c.messages.schedule("a/b", "x", delay=3_600, key="k", headers=headers)
                assert (again.id, again.replayed) == (first.id, True)


def test_what_is_not_recorded_goes_along_with_nobody(tracing: Tracing) -> None:
    assert traces.current() == {}
    unsampled = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test")
    with unsampled.start_as_current_span("caller"):
        assert traces.current() == {}
        assert traces.joined({"x": "y"}) == {"x": "y"}


def test_what_a_message_says_itself_stays_and_there_is_a_bound(tracing: Tracing) -> None:
    with tracing.tracer.start_as_current_span("caller"):
        assert traces.joined({"traceparent": "mine"}) == {"traceparent": "mine"}
        full = {f"h{number}": "v" for number in range(64)}
        assert traces.joined(full) == full
        del full["h0"]
        assert len(traces.joined(full) or {}) == 64


def test_a_program_without_opentelemetry_does_not_import_it() -> None:
    script = (
        "import sys, fasti\n"
        "from fasti import traces\n"
        "assert traces.joined(None) is None\n"
        "with traces.handling({}, 'a', None, '', '', 1): pass\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
