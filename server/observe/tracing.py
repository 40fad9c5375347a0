"""Spans of OpenTelemetry, for messages whose context is sampled; exported as the environment says.

A message that comes with a context of W3C (server/observe/trace_context.py) belongs to a trace, and this
server adds to it, where the trace is recorded: a span `schedule` while the message is placed, from its
request to the answer, and a span `dispatch` when it is handed on, a child of the context that is kept with
it and linked to it. It begins no traces by itself: a message without a context, or with one that is not
sampled, costs a look at an attribute here and nothing anywhere else.

    POST  traceparent: 00-T-A-01
            schedule, trace T, parent A, span B       kept with the message: 00-T-B-01
    due     dispatch, trace T, parent B, link B       goes to subscribers:   00-T-B-01

Nothing here waits: an ended span goes into a queue (OTEL_BSP_MAX_QUEUE_SIZE, 2,048 spans; in a full one the
oldest makes room) which a thread of the SDK empties into the exporter. What a span holds is cut to
TEXT_CHARS_MAX, so the queue has a bound in bytes, too: 20 MiB. At the end what is
left has CLOSE_S, then it is given up, whatever the collector does.

The packages are those of the extra `otel`. They are imported only if the environment asks for traces.
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
"""A span of dispatch takes as long as so many deliveries: some 40 µs."""
BATCH_SPANS = 100
"""Of the items of one batch that bring contexts of their own so many have spans of their own: 4 ms."""
BATCH_LOOKED = 1_000
"""Items of a batch whose headers are looked at for one: 2 ms."""
BURST, BURST_S = 100, 0.02
"""Spans of scheduling that are begun in so long: who sends thousands at once has 4 ms of the loop for it."""
TEXT_CHARS_MAX = 512
CLOSE_S = 2.0
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN = "http/protobuf"
EXPORTERS = frozenset(("otlp", "console"))
QUEUE_SPANS = 2_048
SPAN_BYTES = 10 << 10
"""An ended one with its attributes, link and context, all as long as they may be."""
"""What OpenTelemetry takes for OTEL_BSP_MAX_QUEUE_SIZE where it is not set, or cannot be read."""


class Scheduling:
    """A span from a request, or an item of one, to what became of it."""

    __slots__ = ("_span", "context")

    def __init__(self, span: "Span") -> None:
        self._span = span
        self.context = _headers_of(span.get_span_context())
        """To be kept with what is scheduled."""

    def end(self, placed: object) -> None:
        """`placed`: an id (0: it has none), a Known, a sequence of what became of many; else it has failed,
        None: nobody knows how."""
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
        """`mono`: a clock that only elapses, in s."""
        from opentelemetry.trace import SpanKind

        self._provider = provider
        self._mono = mono
        self._left, self._until_s = 0, 0.0
        self._tracer: Tracer = provider.get_tracer("fasti-server", server_version())
        self._producer, self._client = SpanKind.PRODUCER, SpanKind.CLIENT

    def schedule(self, context: Headers, topic: bytes = b"") -> Scheduling | None:
        """A span of what is being scheduled, to be ended; None if nobody records the trace, or there are too
        many at once. `topic`: of one message."""
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
        """Tell of a message with these headers that it is handed on; whether it is worth a span."""
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
        """Export what is left, for a bounded time; a collector that hangs is left behind with it."""
        ending = Thread(target=self._provider.shutdown, name="fasti-traces-end", daemon=True)
        ending.start()
        ending.join(within_s)
        if ending.is_alive():
            log.warning("traces: the last spans were not exported within %g s", within_s)


def open_traces(environ: Mapping[str, str]) -> Traces | None:
    """As the variables of OpenTelemetry say; None if they ask for no traces.

    They do by an endpoint, or by OTEL_TRACES_EXPORTER. What they ask for and is not there is told in the log
    and is no reason not to start: such variables are set for all that runs somewhere. Raises ConfigError for
    values that cannot be read.
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
    """The names of those that are asked for."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    said = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if not said:
        return ["otlp"] if any(environ.get(name) for name in ENDPOINTS) else []
    return [name for name in (part.strip() for part in said.split(",")) if name and name != "none"]


def _is_installed() -> bool:
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    return False


def _provider(names: Sequence[str]) -> "TracerProvider":
    """Reads its own variables: sampler, limits, resource, endpoint, headers, certificates, queue."""
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    said = OTELResourceDetector().detect()
    ours = Resource({SERVICE_NAME: "fasti", SERVICE_VERSION: server_version()})
    made = TracerProvider(resource=Resource.create(ours.merge(said).attributes), shutdown_on_exit=False)
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
