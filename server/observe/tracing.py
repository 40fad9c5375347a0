"""Spans of OpenTelemetry for messages with a sampled context, exported as the environment says.

A message with a W3C context (server/observe/trace_context.py) belongs to a trace. If the trace is recorded
the server adds a span `schedule`, from the message's request to the answer, and a span `dispatch` at its
delivery, which is a child of the stored context and linked to it. The server begins no traces itself: a
message without a sampled context costs one attribute look-up here and nothing elsewhere.

    POST  traceparent: 00-T-A-01
            schedule, trace T, parent A, span B       kept with the message: 00-T-B-01
    due     dispatch, trace T, parent B, link B       goes to subscribers:   00-T-B-01

Nothing here waits: an ended span goes into a queue (OTEL_BSP_MAX_QUEUE_SIZE, 2,048 spans; a full one drops
the oldest), which a thread of the SDK empties into the exporter. Texts of a span are cut to TEXT_CHARS_MAX,
so the queue has a bound in bytes, too: 20 MiB. At shutdown the rest has CLOSE_S; then it is dropped, whatever
the collector does.

The packages come with the extra `otel`, and are imported only if the environment asks for traces.
"""

import importlib.util
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from shards.draft import Known
from timeline.position import MessageId, id_text

from ..settings.config import ConfigError
from ..settings.times import format_ms
from .trace_context import NO_TRACE, Headers, context_in, context_of, is_sampled, members_of
from .version import server_version

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanContext, Tracer

log = logging.getLogger(__name__)

DISPATCH_COST = 20
"""Cost of a dispatch span, in deliveries: some 40 µs."""
BATCH_SPANS = 100
"""Maximum items of one batch with spans of their own: 4 ms."""
BATCH_LOOKED = 1_000
"""Maximum items of a batch whose headers are read for a context: 2 ms."""
BURST, BURST_S = 100, 0.02
"""Maximum schedule spans begun per interval: thousands at once take 4 ms of the loop."""
TEXT_CHARS_MAX = 512
CLOSE_S = 2.0
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN = "http/protobuf"
EXPORTERS = frozenset(("otlp", "console"))


class Scheduling:
    """A span of a request, or of an item of one, until its outcome."""

    __slots__ = ("_span", "context")

    def __init__(self, span: "Span") -> None:
        self._span = span
        self.context = _headers_of(span.get_span_context())
        """To be stored with the scheduled message."""

    def end(self, placed: object) -> None:
        """End the span. `placed`: an id (0: none), a Known, or a sequence of results; else a failure; None:
        unknown."""
        span = self._span
        if isinstance(placed, Known):
            span.set_attribute("fasti.replayed", True)
            placed = placed.id
        if isinstance(placed, int):
            if placed:
                span.set_attribute("messaging.message.id", id_text(MessageId(placed)))
        elif isinstance(placed, Sequence) and not isinstance(placed, str):
            span.set_attribute("messaging.batch.message_count", len(placed))
        else:
            self._fail(placed)
        span.end()

    def _fail(self, why: object) -> None:
        from opentelemetry.trace import Status, StatusCode

        text = type(why).__name__ if isinstance(why, Exception) else str(why or "not answered")
        self._span.set_attribute("error.type", text[:TEXT_CHARS_MAX])
        self._span.set_status(Status(StatusCode.ERROR, str(why or "")[:TEXT_CHARS_MAX]))


class Traces:
    """Makes the spans of one process."""

    def __init__(self, provider: "TracerProvider", mono: Callable[[], float]) -> None:
        """`mono`: a monotonic clock, s."""
        from opentelemetry.trace import SpanKind

        self._provider = provider
        self._mono = mono
        self._left, self._until_s = 0, 0.0
        self._tracer: Tracer = provider.get_tracer("fasti-server", server_version())
        self._producer, self._client = SpanKind.PRODUCER, SpanKind.CLIENT

    def schedule(self, context: Headers, topic: bytes = b"") -> Scheduling | None:
        """A span for scheduling, to be ended; None if the trace is not recorded, or there are too many at
        once. `topic`: of a single message."""
        if not is_sampled(context) or not self._has_room():
            return None
        attributes = {
            "messaging.system": "fasti",
            "messaging.operation.name": "schedule",
            "messaging.operation.type": "create",
        }
        if topic:
            attributes["messaging.destination.name"] = _shortened(topic)
        span = self._tracer.start_span(
            "schedule", _parent(_remote(context)), kind=self._producer, attributes=attributes
        )
        return Scheduling(span) if span.is_recording() else None

    def _has_room(self) -> bool:
        now_s = self._mono()
        if now_s >= self._until_s:
            self._left, self._until_s = BURST, now_s + BURST_S
        self._left -= 1
        return self._left >= 0

    def dispatched(
        self, headers: Headers, topic: bytes, message: str, due_ms: int, late_ms: int, attempt: int
    ) -> bool:
        """Report the delivery of a message with these headers. Returns whether it made a span."""
        context = context_in(headers)
        if not is_sampled(context):
            return False
        from opentelemetry.trace import Link

        kept = _remote(context)
        span = self._tracer.start_span(
            "dispatch",
            _parent(kept),
            kind=self._client,
            links=(Link(kept),),
            attributes={
                "messaging.system": "fasti",
                "messaging.operation.name": "dispatch",
                "messaging.operation.type": "send",
                "messaging.destination.name": _shortened(topic),
                "messaging.message.id": message,
                "fasti.due": format_ms(due_ms),
                "fasti.late_ms": late_ms,
                "fasti.attempt": attempt,
            },
        )
        span.end()
        return True

    def close(self, within_s: float = CLOSE_S) -> None:
        """Export what is left, for a bounded time; a collector that hangs loses the rest."""
        ending = Thread(target=self._provider.shutdown, name="fasti-traces-end", daemon=True)
        ending.start()
        ending.join(within_s)
        if ending.is_alive():
            log.warning("traces: the last spans were not exported within %g s", within_s)


def open_traces(environ: Mapping[str, str]) -> Traces | None:
    """Configured by OpenTelemetry's variables; None if they ask for no traces.

    An endpoint, or OTEL_TRACES_EXPORTER, asks for traces. If what they ask for is not installed, the log says
    so and the server starts: such variables are often set for all programs of a machine. Raises ConfigError
    for values that cannot be read.
    """
    names = _exporters(environ)
    if not names:
        return None
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), SPOKEN)
    unknown = sorted(set(names) - EXPORTERS)
    if unknown:
        log.warning(
            "traces: off, OTEL_TRACES_EXPORTER=%s is unknown; use otlp, console or none", ",".join(unknown)
        )
    elif "otlp" in names and protocol != SPOKEN:
        log.warning("traces: off, OTEL_EXPORTER_OTLP_PROTOCOL=%s is not supported; use %s", protocol, SPOKEN)
    elif not _is_installed():
        log.warning("traces: off, packages are missing: pip install 'fasti-server[otel]'")
    else:
        try:
            return Traces(_provider(names), time.monotonic)
        except Exception as error:
            raise ConfigError("OTEL_…", f"{type(error).__name__}: {error}") from error
    return None


def _exporters(environ: Mapping[str, str]) -> list[str]:
    """The names of the requested exporters."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    names = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if not names:
        return ["otlp"] if any(environ.get(name) for name in ENDPOINTS) else []
    return [name for name in (part.strip() for part in names.split(",")) if name and name != "none"]


def _is_installed() -> bool:
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    return False


def _provider(names: Sequence[str]) -> "TracerProvider":
    """A provider; it reads its own variables: sampler, limits, resource, endpoint, headers, certificates,
    queue."""
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    detected = OTELResourceDetector().detect()
    ours = Resource({SERVICE_NAME: "fasti", SERVICE_VERSION: server_version()})
    made = TracerProvider(resource=Resource.create(ours.merge(detected).attributes), shutdown_on_exit=False)
    for name in dict.fromkeys(names):
        exporter: SpanExporter
        if name == "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
        else:
            exporter = ConsoleSpanExporter()
        made.add_span_processor(BatchSpanProcessor(exporter))
    return made


def _shortened(topic: bytes) -> str:
    return topic[: 4 * TEXT_CHARS_MAX].decode(errors="replace")[:TEXT_CHARS_MAX]


def _remote(context: Headers) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags
    from opentelemetry.trace.span import TraceState

    _, trace_id, span_id, flags = context[0][1].split("-")
    state = TraceState(members_of(context[1][1])) if len(context) > 1 else None
    number = int(trace_id, 16)
    return SpanContext(
        number, int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)), trace_state=state
    )


def _parent(context: "SpanContext") -> "Context":
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return set_span_in_context(NonRecordingSpan(context), Context())


def _headers_of(context: "SpanContext") -> Headers:
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return context_of(parent, context.trace_state.to_header()) or NO_TRACE
