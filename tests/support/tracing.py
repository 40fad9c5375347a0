"""Contexts and spans for tests: what this process has exported, and a collector that a server exports to."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from server.observe.tracing import Traces
from tests.support.http import open_site

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"


class Exported:
    """Spans of this process, in the order in which they ended."""

    def __init__(self, mono: Callable[[], float] = time.monotonic) -> None:
        self._memory = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.traces = Traces(self.provider, mono)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._memory.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


def parent_of(span: ReadableSpan) -> str:
    """Trace and parent, as a context says them."""
    assert span.parent is not None
    return f"00-{span.parent.trace_id:032x}-{span.parent.span_id:016x}-{span.parent.trace_flags:02x}"


def context_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class Collector:
    """An OTLP receiver on 127.0.0.1. `hangs`: it reads and never answers."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.requests = 0
        self.hangs = False
        self.url = ""
        self._came = asyncio.Event()
        self._let_go = asyncio.Event()

    async def named(self, name: str, count: int = 1) -> list[Span]:
        """The spans of a name, when so many have come."""
        async with asyncio.timeout(60):
            while len(found := [span for span in self.spans if span.name == name]) < count:
                self._came.clear()
                await self._came.wait()
        return found

    async def asked(self) -> None:
        """Wait for the first request."""
        async with asyncio.timeout(60):
            while not self.requests:
                self._came.clear()
                await self._came.wait()

    async def take(self, request: web.Request) -> web.Response:
        self.requests += 1
        self._came.set()
        said = ExportTraceServiceRequest.FromString(await request.read())
        if self.hangs:
            await self._let_go.wait()
        for of_resource in said.resource_spans:
            names = [a.value.string_value for a in of_resource.resource.attributes if a.key == "service.name"]
            self.services.update(names)
            for scope in of_resource.scope_spans:
                self.spans.extend(scope.spans)
        self._came.set()
        return web.Response()

    def let_go(self) -> None:
        self._let_go.set()


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector that listens."""
    made, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", made.take)
    async with open_site(app) as made.url:
        try:
            yield made
        finally:
            made.let_go()
