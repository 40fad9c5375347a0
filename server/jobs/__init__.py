"""Pipeline jobs, the server's side: handed out, leased, taken back.

What a job does to the timeline is in shards/.

    workers.py     threads for what takes long, and tasks that nobody waits for
    launch.py      the server's own job program: how it is started, watched and ended
    pipeline.py    the life that all jobs share: tokens, leases, rows, checkpoints, ends
    leavings.py    what expired slices have left: read, forgotten, its space given back
    splitting.py   split jobs: the slice is cut into narrower ones, in one batch
    expiring.py    what is behind retention, dropped by a job or without one
    overfull.py    what the server would have a job do now

Each imports only what stands above it, and of the server the clock, the settings and the writer.
"""
