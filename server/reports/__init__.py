"""Reports on the server's state.

    loads.py       moving averages of counters
    figures.py     /metrics and $SYS/#
    status.py      status of sessions, groups and the disk, for /metrics
    sampling.py    takes samples for /v1/history
    inspecting.py  the data of a stopped server

Each imports only what stands above it.
"""
