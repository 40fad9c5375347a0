"""What the server tells about its state.

    figures.py     /metrics and $SYS/#
    standing.py    where each session and group stands, for /metrics
    inspecting.py  what the data of a stopped server contains

Each imports only what stands above it.
"""
