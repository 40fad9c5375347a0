"""The trace that a message belongs to, where the program uses OpenTelemetry: nothing to set up here.

What is scheduled within a span takes its context along, as W3C Trace Context in the message's headers
(`traceparent`, `tracestate`); who gets the message works within a span of the same trace, which is linked to
where it was scheduled. Spans go where the program's tracer provider sends them. A program that has not
imported OpenTelemetry has no spans, and pays for one look into a dictionary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

NAMES = ("traceparent", "tracestate")
NO_TRACE: Mapping[str, str] = MappingProxyType({})
HEADERS_MAX = 64
"""Maximum headers of a message."""


def _is_used() -> bool:
    return "opentelemetry.trace" in sys.modules


def current() -> Mapping[str, str]:
    """The context of the span that is recorded here and now; empty if none is."""
    if not _is_used():
        return NO_TRACE
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not trace.get_current_span().is_recording():
        return NO_TRACE
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


def joined(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Headers of a message with the current context, unless they have one."""
    if not _is_used():
        return headers
    context = current()
    if not context or (headers and (NAMES[0] in headers or len(headers) + len(context) > HEADERS_MAX)):
        return headers
    return {**context, **(headers or {})}


@contextmanager
def handling(
    context: Mapping[str, str], topic: str, message: str | None, topic_filter: str, group: str, attempt: int
) -> Iterator[None]:
    """Work on a message within a span, `context` being that of the message. `topic_filter`, `group`: ""
    where nobody knows."""
    if not _is_used():
        yield
        return
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract(context, Context())
    scheduled = trace.get_current_span(parent).get_span_context()
    known = {
        "messaging.message.id": message,
        "messaging.destination.template": topic_filter,
        "messaging.consumer.group.name": group,
    }
    with trace.get_tracer("fasti").start_as_current_span(
        f"process {topic_filter}".strip(),
        parent,
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(scheduled)] if scheduled.is_valid else (),
        attributes={
            "messaging.system": "fasti",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "fasti.attempt": attempt,
            **{name: value for name, value in known.items() if value},
        },
    ):
        yield
