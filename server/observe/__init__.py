"""What the server records about itself as it works.

    version.py        the version of the server
    logs.py           logging: one line an event, as text or JSON
    metrics.py        what is counted as it happens
    trace_context.py  the trace that a message belongs to, as it is sent and kept
    tracing.py        spans of OpenTelemetry, where the environment asks for them

Each imports only what stands above it.
"""
