"""What the server records about itself as it works.

    version.py        the version of the server
    logs.py           logging: one line an event, as text or JSON
    metrics.py        metrics counted as events happen
    history.py        samples of the last hour and day
    trace_context.py  the trace context of a message
    tracing.py        spans of OpenTelemetry, if the environment asks for them

Each imports only what stands above it.
"""
