"""Pipeline jobs on the server: created, leased, finished.

The changes that a job makes to the timeline are in shards/.

    launch.py      starts, watches and ends the server's own job program
    pipeline.py    the life cycle of all jobs: tokens, leases, rows, checkpoints, ends
    splitting.py   split jobs: the slice is cut into narrower ones, in one batch
    archiving.py   archive and compact jobs: each adds a commit to the archive
    expiring.py    expire jobs: they drop slices behind retention
    looks.py       finds work for jobs

Each imports only what stands above it, and of the server the clock, the settings, the writer and the
retention floor.
"""
