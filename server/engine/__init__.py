"""The writer and what feeds it: requests become group commits, and rows on disk enter the wheel.

    clock.py        the system's clocks, and a simulated one that stands still until it is set
    disk_thread.py  the thread that waits for the disk
    lease.py        how long a node may lead without a heartbeat
    commit_hook.py  parts that write with each group commit
    requests.py     what waits for the writer, by owner
    writer.py       requests in, one group commit after another, answers out after the sync
    decisions.py    what is decided and not durable yet: done when it is, else undone
    errand.py       asks the writer for work in steps: what waits, in pieces, each item alone
    loader.py       keeps the wheel filled from the slices on disk
    quarantine.py   rows that the store cannot read: noted, and dispatched late when they come back
    held.py         messages that wait because the clock was set back, moved when it comes back
    archive.py      what the archive has and lacks
    workers.py      threads for long work, and background tasks
    garbage.py      garbage collection of expired slices' rows

Each imports only what stands above it.
"""
